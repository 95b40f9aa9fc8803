//! How an agent takes over from a running one of the same name, over the running agent's socket.
//!
//! ```text
//!   successor                                     running agent
//!      │  take-over                                     │  serves
//!      │ ─────────────────────────────────────────────► │
//!      │           descriptors: maps and link           │
//!      │ ◄───────────────────────────────────────────── │
//!   loads its programs against the maps                 │
//!      │  release                                       │
//!      │ ─────────────────────────────────────────────► │
//!      │                   released                     │
//!      │ ◄───────────────────────────────────────────── │  neither reads, decides nor beats
//!   adopts the flows, replaces what the link            │
//!   has registered, beats                               │
//!      │  confirm                                       │
//!      │ ─────────────────────────────────────────────► │
//!      │                     done                       │
//!      │ ◄───────────────────────────────────────────── │  ends
//!   serves                                              ▼
//! ```
//!
//! The name is registered throughout, as one of them holds the link. The answer to the last step
//! is the point of no return: if the connection ends before it, for whatever reason, the running
//! agent serves on, and the programs of the successor are served by it, since they use its maps.

use std::{
    io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::Duration,
};

use cc_client::StatusError;
use cc_core::status::{Request, TakeoverReply, TakeoverStep};
use nix::unistd::geteuid;
use rustix::{
    cmsg_space,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt::socket_peercred,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    kernel::{self, Inheritance},
    status::{Peer, SuccessorRequest},
};

/// Descriptors that are handed over, at most.
const MOST: usize = 16;
/// Time in which the running agent must answer: it answers between two turns of its event loop.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Time in which a successor for which the running agent has stopped must serve. It is shorter than
/// the successor's patience, so that both come to the same end.
const SILENCE_LIMIT: Duration = Duration::from_secs(3);
/// Length of the longest line, bytes.
const LONGEST: usize = 1 << 12;

/// Why a running agent was not taken over from. It serves on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TakeoverError {
    /// The running agent cannot be asked.
    #[error(transparent)]
    Client(#[from] StatusError),
    /// The running agent has refused.
    #[error(
        "the running agent cannot be taken over from: {0}. It goes on serving; end it and start \
         this one without --takeover"
    )]
    Refused(String),
    /// The connection broke, or its other end does not speak as an agent does.
    #[error("the running agent could not be taken over from, and goes on serving: {0}")]
    Broken(#[from] io::Error),
    /// What it has handed over cannot be used.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
}

/// The running agent, to the process that is to succeed it.
#[derive(Debug)]
pub(crate) struct Predecessor {
    stream: BufReader<UnixStream>,
}

impl Predecessor {
    /// Asks the agent that listens on `socket` for its descriptors; `None` when there is none.
    ///
    /// # Errors
    ///
    /// Returns an error when the agent belongs to another user than root or this process's, does
    /// not answer, or refuses.
    pub(crate) fn find(socket: &Path) -> Result<Option<(Self, Inheritance)>, TakeoverError> {
        let stream = match cc_client::connect(socket, ANSWER_LIMIT) {
            Ok(stream) => stream,
            Err(StatusError::NotRunning(_) | StatusError::Dead(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let owner = socket_peercred(&stream).map_err(io::Error::from)?.uid;
        if !owner.is_root() && owner.as_raw() != geteuid().as_raw() {
            return Err(TakeoverError::Refused(format!(
                "it belongs to user {}, and so must its successor",
                owner.as_raw()
            )));
        }
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        write_line(&stream, &Request::TakeOver)?;
        let (line, descriptors) = receive(&stream)?;
        let mut predecessor = Self {
            stream: BufReader::new(stream),
        };
        let names = match predecessor.understand(&line)? {
            TakeoverReply::Descriptors(names) => names,
            other => return Err(unexpected(&other)),
        };
        Ok(Some((predecessor, Inheritance::of(names, descriptors)?)))
    }

    /// Has it stop serving, without ending. From now on nobody serves, until
    /// [`Self::confirm`] has returned, or the running agent goes on because this is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error when the agent does not answer.
    pub(crate) fn release(&mut self) -> Result<(), TakeoverError> {
        match self.ask(TakeoverStep::Release)? {
            TakeoverReply::Released => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells it that its successor serves, so that it ends.
    ///
    /// # Errors
    ///
    /// Returns an error when the agent does not answer, or has gone on serving meanwhile: then this
    /// process must not serve.
    pub(crate) fn confirm(mut self, default: bool) -> Result<(), TakeoverError> {
        match self.ask(TakeoverStep::Confirm { default })? {
            TakeoverReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&mut self, step: TakeoverStep) -> Result<TakeoverReply, TakeoverError> {
        write_line(self.stream.get_ref(), &step)?;
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        self.understand(&line)
    }

    fn understand(&mut self, line: &[u8]) -> Result<TakeoverReply, TakeoverError> {
        match parse(line)? {
            TakeoverReply::Refused(reason) => Err(TakeoverError::Refused(reason)),
            reply => Ok(reply),
        }
    }
}

fn unexpected(reply: &TakeoverReply) -> TakeoverError {
    io::Error::other(format!("it answered with {reply:?}")).into()
}

/// The process that is to succeed this agent.
#[derive(Debug)]
pub(crate) struct Successor {
    peer: Peer,
    stream: tokio::io::BufReader<tokio::net::UnixStream>,
    /// What has come of its next line.
    line: Vec<u8>,
}

impl Successor {
    /// Answers the request with the descriptors. `None` when they cannot be sent.
    pub(crate) fn greet(request: SuccessorRequest, inheritance: &Inheritance) -> Option<Self> {
        let (names, descriptors) = inheritance.parts();
        let line = line_of(&TakeoverReply::Descriptors(names)).ok()?;
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return None;
        }
        let stream = request.stream.get_ref().as_fd();
        let sent = sendmsg(
            stream,
            &[IoSlice::new(&line)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        // Nothing was sent before, so there is room for all of it.
        (sent.ok()? == line.len()).then_some(Self {
            peer: request.peer,
            stream: request.stream,
            line: Vec::new(),
        })
    }

    /// Answers the request with a reason why it is refused.
    pub(crate) async fn refuse(mut request: SuccessorRequest, reason: String) {
        if let Ok(line) = line_of(&TakeoverReply::Refused(reason)) {
            // The client may have disconnected.
            let _ = timeout(SILENCE_LIMIT, request.stream.write_all(&line)).await;
        }
    }

    /// The process that has asked to succeed this agent.
    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    /// Waits for the next step of the successor, and takes it; `None` when the connection has
    /// ended. Nothing is lost when the returned future is dropped.
    async fn step(&mut self) -> Option<TakeoverStep> {
        self.stream.read_until(b'\n', &mut self.line).await.ok()?;
        parse(&std::mem::take(&mut self.line)).ok()
    }

    /// Waits until the successor is ready to serve. Returns false when it has ended instead.
    pub(crate) async fn is_ready(&mut self) -> bool {
        self.step().await == Some(TakeoverStep::Release)
    }

    /// Tells the successor that nobody serves any more, and waits until it does. Returns whether it
    /// holds the host's default; `None` when it has ended instead, or does not serve in time.
    pub(crate) async fn serves(&mut self) -> Option<bool> {
        let exchange = async {
            self.say(&TakeoverReply::Released).await.ok()?;
            match self.step().await? {
                TakeoverStep::Confirm { default } => Some(default),
                TakeoverStep::Release => None,
            }
        };
        timeout(SILENCE_LIMIT, exchange).await.ok()?
    }

    /// Tells the successor that this agent ends.
    ///
    /// # Errors
    ///
    /// Returns an error when it cannot be told: it has ended, and this agent must not.
    pub(crate) async fn leave(&mut self) -> io::Result<()> {
        self.say(&TakeoverReply::Done).await
    }

    async fn say(&mut self, reply: &TakeoverReply) -> io::Result<()> {
        self.stream.write_all(&line_of(reply)?).await
    }
}

fn line_of(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

fn write_line(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&line_of(message)?)
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> io::Result<T> {
    match line {
        [] => Err(io::ErrorKind::UnexpectedEof.into()),
        line => Ok(serde_json::from_slice(line)?),
    }
}

/// Receives a line, and the descriptors that come with it.
fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut line = Vec::new();
    let mut descriptors = Vec::new();
    while !line.ends_with(b"\n") {
        let mut chunk = [0; LONGEST];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut chunk)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        line.extend_from_slice(&chunk[..received.bytes]);
        if received.bytes == 0 {
            break;
        }
        if line.len() > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok((line, descriptors))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A connection between an agent, which hands over two descriptors, and its successor.
    async fn pair() -> (Successor, Predecessor, Inheritance) {
        let (theirs, ours) = UnixStream::pair().expect("a free descriptor");
        theirs.set_nonblocking(true).expect("it is a socket");
        ours.set_read_timeout(Some(ANSWER_LIMIT))
            .expect("it is a socket");
        let stream = tokio::net::UnixStream::from_std(theirs).expect("within a runtime");
        let request = SuccessorRequest {
            peer: Peer { uid: 0, pid: None },
            stream: tokio::io::BufReader::new(stream),
        };
        let open = |_| File::open("/dev/null").expect("it is there").into();
        let descriptors = (0..2).map(open).collect();
        let names = vec!["CC_FLOWS".to_owned(), "link".to_owned()];
        let inheritance = Inheritance::of(names.clone(), descriptors).expect("it is complete");
        let successor = Successor::greet(request, &inheritance).expect("there is room");
        let (line, descriptors) = receive(&ours).expect("it was sent");
        let mut predecessor = Predecessor {
            stream: BufReader::new(ours),
        };
        let reply = predecessor.understand(&line).expect("it is a reply");
        assert_eq!(reply, TakeoverReply::Descriptors(names.clone()));
        let received = Inheritance::of(names, descriptors).expect("it is complete");
        (successor, predecessor, received)
    }

    #[tokio::test]
    async fn descriptors_and_steps_arrive() {
        let (mut successor, mut predecessor, inheritance) = pair().await;
        assert_eq!(inheritance.parts().1.len(), 2);
        let client = tokio::task::spawn_blocking(move || {
            predecessor.release()?;
            predecessor.confirm(true)
        });
        assert!(successor.is_ready().await);
        assert_eq!(successor.serves().await, Some(true));
        successor.leave().await.expect("it waits");
        client.await.expect("no panic").expect("it is done");
    }

    #[tokio::test]
    async fn a_successor_that_ends_is_noticed_at_each_step() {
        let (mut successor, predecessor, _) = pair().await;
        drop(predecessor);
        assert!(!successor.is_ready().await);
        let (mut successor, mut predecessor, _) = pair().await;
        let client = tokio::task::spawn_blocking(move || predecessor.release().map(drop));
        assert!(successor.is_ready().await);
        assert_eq!(successor.serves().await, None);
        client.await.expect("no panic").expect("it was released");
        assert!(successor.leave().await.is_err());
    }

    #[tokio::test]
    async fn an_agent_that_goes_on_is_noticed() {
        let (mut successor, mut predecessor, _) = pair().await;
        let client = tokio::task::spawn_blocking(move || {
            predecessor.release().expect("it is released");
            predecessor.confirm(false)
        });
        assert!(successor.is_ready().await);
        assert_eq!(successor.serves().await, Some(false));
        drop(successor);
        let error = client.await.expect("no panic").expect_err("it goes on");
        assert!(error.to_string().contains("goes on serving"), "{error}");
    }
}
