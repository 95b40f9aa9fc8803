//! The agent's end of the shared memory and the socket pair, once the policy is loaded.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::AtomicU32,
};

use cc_core::policy::{Choice, Query};
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv, send},
};

use crate::{
    layout::Layout,
    message::{LENGTH, Message},
    region::{Region, Word},
};

/// Why a child gives no answers any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The process has ended; says how.
    #[error("its process {0}")]
    Ended(String),
    /// The process sent what it must not send; says what.
    #[error("its process broke the protocol: {0}")]
    Protocol(String),
}

/// What came over the socket.
#[derive(Debug, PartialEq)]
pub(crate) enum Received {
    /// No message has come yet.
    Nothing,
    /// The other end is closed.
    End,
    /// A message of the other side.
    Message(Message),
}

/// Receives one message without waiting.
pub(crate) fn receive(socket: &OwnedFd) -> Result<Received, Fault> {
    let mut bytes = [0; LENGTH];
    // The true length of a message that is too long is returned as well.
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
    match recv(socket.as_raw_fd(), &mut bytes, flags) {
        Ok(0) | Err(Errno::ECONNRESET) => Ok(Received::End),
        Ok(LENGTH) => Message::decode(&bytes)
            .map(Received::Message)
            .ok_or_else(|| Fault::Protocol("it sent a message of an unknown kind".into())),
        Ok(length) => Err(Fault::Protocol(format!(
            "it sent a message of {length} bytes"
        ))),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(Received::Nothing),
        Err(error) => Err(Fault::Protocol(format!("its socket failed: {error}"))),
    }
}

/// What joins the agent to a child: messages both ways, and the memory that they are about.
///
/// What was written to the memory before a message was sent is there for whoever receives it.
pub(crate) trait Link {
    /// A word of the memory.
    type Word: Word;

    /// The shared memory.
    fn words(&self) -> &[Self::Word];

    /// Sends a message to the child, without waiting.
    fn send(&self, message: Message) -> io::Result<()>;

    /// Receives one message of the child, without waiting.
    fn receive(&self) -> Result<Received, Fault>;
}

/// The link to a child process: a socket pair and a memory file.
pub(crate) struct Wire {
    pub(crate) socket: OwnedFd,
    pub(crate) region: Region,
}

impl Link for Wire {
    type Word = AtomicU32;

    fn words(&self) -> &[AtomicU32] {
        self.region.words()
    }

    fn send(&self, message: Message) -> io::Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        send(self.socket.as_raw_fd(), &message.encode(), flags)?;
        Ok(())
    }

    fn receive(&self) -> Result<Received, Fault> {
        receive(&self.socket)
    }
}

/// A child that answers batches, one at a time.
pub(crate) struct Connection<L = Wire> {
    pub(crate) link: L,
    pub(crate) layout: Layout,
    /// Number of the last batch.
    number: u64,
    /// Whether that batch is with the child.
    out: bool,
}

impl<L: Link> Connection<L> {
    /// A connection without a batch.
    pub(crate) fn new(link: L, layout: Layout) -> Self {
        Self {
            link,
            layout,
            number: 0,
            out: false,
        }
    }

    /// Sends a batch of at most [`Layout::rows`] queries. The one before it must have been
    /// answered.
    pub(crate) fn ask(&mut self, queries: &[Query]) -> io::Result<()> {
        debug_assert!(!self.out && queries.len() <= self.layout.rows());
        self.layout.write_queries(self.link.words(), queries);
        self.number += 1;
        let message = Message::Ask {
            rows: queries.len() as u32,
            number: self.number,
        };
        self.link.send(message)?;
        self.out = true;
        Ok(())
    }

    /// Takes the answers to the batch of these queries, if they have come, and moves the queries
    /// on. `Ok(None)` when they have not come yet, `Err(None)` when the other end is closed.
    pub(crate) fn poll_answer(
        &mut self,
        queries: &mut [Query],
    ) -> Result<Option<Vec<Choice>>, Option<Fault>> {
        let message = match self.link.receive()? {
            Received::Nothing => return Ok(None),
            Received::End => return Err(None),
            Received::Message(message) => message,
        };
        let expected = Message::Answered {
            rows: queries.len() as u32,
            number: self.number,
        };
        if !self.out || message != expected {
            let found = format!(
                "it sent {message:?} when {} queries were out",
                match self.out {
                    true => queries.len(),
                    false => 0,
                }
            );
            return Err(Some(Fault::Protocol(found)));
        }
        self.out = false;
        Ok(Some(self.layout.read_answers(self.link.words(), queries)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use cc_core::policy::State;
    use nix::unistd::write;

    use super::*;
    use crate::hostile::wire;

    /// A connection, and the end and the memory of a child that the test plays.
    fn connected() -> (Connection, OwnedFd, Region) {
        let (wire, child, theirs) = wire(4_096);
        let layout = Layout::new(2, 3, 1, theirs.words().len(), 8).expect("room");
        (Connection::new(wire, layout), child, theirs)
    }

    fn queries() -> Vec<Query> {
        let query = Query {
            observation: vec![1.0, 2.0],
            reward: 0.0,
            cwnd: 10,
            state: State::default(),
            probabilities: Vec::new(),
        };
        vec![query; 2]
    }

    fn say(child: &OwnedFd, bytes: &[u8]) {
        write(child.as_fd(), bytes).expect("sent");
    }

    fn answered(rows: u32, number: u64) -> [u8; LENGTH] {
        Message::Answered { rows, number }.encode()
    }

    #[test]
    fn a_batch_is_asked_and_answered() {
        let (mut connection, child, memory) = connected();
        let mut asked = queries();
        for number in 1..=3 {
            connection.ask(&asked).expect("the child is there");
            assert_eq!(connection.poll_answer(&mut asked), Ok(None), "not yet");
            let seen = connection.layout.read_queries(memory.words(), 2);
            assert_eq!(seen[0].observation, [1.0, 2.0]);
            let choices = [Choice::Cwnd(number as u32), Choice::Invalid];
            connection
                .layout
                .write_answers(memory.words(), &seen, &choices);
            say(&child, &answered(2, number));
            let found = connection.poll_answer(&mut asked);
            assert_eq!(found, Ok(Some(choices.to_vec())));
        }
    }

    /// What a hostile child says while two queries are out as batch number 1.
    #[test]
    fn messages_that_do_not_fit_break_the_protocol() {
        let long = [4u8; 400];
        for (what, bytes) in [
            ("too many rows", &answered(3, 1)[..]),
            ("huge", &answered(u32::MAX, 1)),
            ("too few rows", &answered(1, 1)),
            ("another batch", &answered(2, 2)),
            ("an old batch", &answered(2, 0)),
            ("a question", &Message::Ask { rows: 2, number: 1 }.encode()),
            ("a report", &Message::Loaded { length: 5 }.encode()),
            ("of no kind", &[7; LENGTH]),
            ("short", &answered(2, 1)[..9]),
            ("long", &long),
        ] {
            let (mut connection, child, _memory) = connected();
            let mut asked = queries();
            connection.ask(&asked).expect("the child is there");
            say(&child, bytes);
            let found = connection.poll_answer(&mut asked);
            assert!(
                matches!(found, Err(Some(Fault::Protocol(_)))),
                "{what}: {found:?}"
            );
            assert_eq!(asked, queries(), "{what}");
        }
    }

    #[test]
    fn an_answer_that_nobody_asked_for_breaks_the_protocol() {
        let (mut connection, child, memory) = connected();
        say(&child, &answered(0, 0));
        assert!(
            connection
                .poll_answer(&mut [])
                .is_err_and(|fault| fault.is_some())
        );

        let (mut connection, second, _memory) = connected();
        let mut asked = queries();
        connection.ask(&asked).expect("the child is there");
        say(&second, &answered(2, 1));
        say(&second, &answered(2, 1));
        assert!(
            connection
                .poll_answer(&mut asked)
                .is_ok_and(|answer| answer.is_some())
        );
        assert!(
            connection
                .poll_answer(&mut asked)
                .is_err_and(|fault| fault.is_some())
        );
        drop(memory);
    }

    #[test]
    fn the_end_of_the_child_is_seen() {
        let (mut connection, child, _memory) = connected();
        let mut asked = queries();
        connection.ask(&asked).expect("the child is there");
        drop(child);
        assert_eq!(connection.poll_answer(&mut asked), Err(None));
    }
}
