//! The policy's end of a session: a world elsewhere as an environment.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use cc_sim::{
    path::{Nanos, nanos},
    shim::Medium,
};
use prost::Message;

use super::{
    PROTOCOL, REPEAT, SILENCE, SLICE,
    link::Link,
    wire::{
        Decided, Fault, FromPolicy, FromWorld, Hello, Nothing, Observation, decode, from_policy,
        from_world,
    },
};
use crate::environment::{
    End, Environment, Spec, Turn,
    networked::{Decision, NetworkedConfig, PolicyEnd},
};

/// Longest age of an observation that is believed: the clocks of the two hosts differ by more.
const OLDEST: Duration = Duration::from_secs(60);

/// Why there is no world, or none any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The connection cannot be made or used.
    #[error("the world at {at}: {source}; does `cc-trainer calf serve` run there?")]
    Link {
        /// Address that the service was asked at.
        at: SocketAddr,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// Nothing of use came for [`SILENCE`].
    #[error(
        "the world at {at} has said nothing of use for {} s ({faults} messages were none); does \
         `cc-trainer calf serve` run there, with the same transport?",
        SILENCE.as_secs()
    )]
    Silent {
        /// Address that the service was asked at.
        at: SocketAddr,
        /// Messages that made no sense.
        faults: u64,
    },
    /// The service refuses what it was asked for.
    #[error("the world at {at} refuses: {reason}")]
    Refused {
        /// Address that the service was asked at.
        at: SocketAddr,
        /// What the service says about it.
        reason: String,
    },
    /// The caller has ended it.
    #[error("stopped")]
    Stopped,
}

/// A world that another process steps in real time, behind whatever network there is.
///
/// [`Environment::next`] waits until an observation arrives that is newer than all before. When
/// there is none for [`SILENCE`], the world has [failed](Self::failure): each turn is then the
/// first of an episode, at once.
pub struct RemoteWorld {
    at: SocketAddr,
    link: Link,
    config: NetworkedConfig,
    /// Sizes of the world itself.
    world: Spec,
    session: u64,
    policy: PolicyEnd,
    /// Whether an observation has come.
    has_begun: bool,
    faults: u64,
    failure: Arc<OnceLock<LiveError>>,
    stop: Arc<AtomicBool>,
}

impl RemoteWorld {
    /// Asks a service for a world, which the seed determines. The network that `config` has is not
    /// used: it is the one between here and there. Waits end when `stop` becomes true.
    ///
    /// # Errors
    ///
    /// Returns an error when the service cannot be reached, does not answer, or refuses.
    pub fn connect(
        at: SocketAddr,
        medium: Medium,
        config: NetworkedConfig,
        seed: u64,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, LiveError> {
        let hello = Hello {
            protocol: PROTOCOL,
            world: serde_json::to_string(&config.world)
                .unwrap_or_else(|error| unreachable!("plain data serialises: {error}")),
            interval_ms: config.interval_ms,
            grace_ms: config.grace_ms,
            seed,
        };
        let link = Link::connect(at, medium).map_err(|source| LiveError::Link { at, source })?;
        let world = config.world.environment(0).spec();
        let mut remote = Self {
            at,
            link,
            policy: PolicyEnd::new(config.clone(), world),
            config,
            world,
            session: 0,
            has_begun: false,
            faults: 0,
            failure: Arc::default(),
            stop,
        };
        remote.session = remote.greet(&hello)?;
        Ok(remote)
    }

    /// Where the reason appears when the world fails.
    pub fn failure(&self) -> Arc<OnceLock<LiveError>> {
        self.failure.clone()
    }

    /// Says hello until there is an answer, and returns the session's number.
    fn greet(&mut self, hello: &Hello) -> Result<u64, LiveError> {
        let begun = Instant::now();
        while begun.elapsed() < SILENCE {
            self.send(from_policy::Content::Hello(hello.clone()))?;
            let asked = Instant::now();
            while asked.elapsed() < REPEAT {
                if let Some(FromWorld {
                    session,
                    content: Some(from_world::Content::Welcome(_)),
                }) = self.receive()?
                {
                    return Ok(session);
                }
            }
        }
        Err(self.silent())
    }

    /// Waits for the policy's next turn.
    fn wait(&mut self, turn: &mut Turn) -> Result<(), LiveError> {
        let begun = Instant::now();
        let mut said: Option<Instant> = None;
        while begun.elapsed() < SILENCE {
            if !self.has_begun && said.is_none_or(|said| said.elapsed() > REPEAT) {
                self.send(from_policy::Content::Ready(Nothing {}))?;
                said = Some(Instant::now());
            }
            if let Some(FromWorld {
                session,
                content: Some(from_world::Content::Observation(observation)),
            }) = self.receive()?
                && session == self.session
            {
                match self.observe(observation, turn) {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(_) => self.faults += 1,
                }
            }
        }
        Err(self.silent())
    }

    /// Takes an observation that has just arrived; returns whether it is the policy's turn.
    fn observe(&mut self, observation: Observation, turn: &mut Turn) -> Result<bool, Fault> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let age = nanos(now.unwrap_or_default()).saturating_sub(observation.sent_ns);
        let (observed, progress) = observation.read(&self.world)?;
        self.has_begun = true;
        let at: Nanos =
            (self.config.time(observed.of.interval)).saturating_add(age.min(nanos(OLDEST)));
        Ok(self.policy.observe(at, observed, progress, turn))
    }

    /// Receives a message, `None` if there was none of use within a moment.
    fn receive(&mut self) -> Result<Option<FromWorld>, LiveError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(LiveError::Stopped);
        }
        let received = self.link.receive(SLICE);
        let at = self.at;
        let received = received.map_err(|source| LiveError::Link { at, source })?;
        match received.map(|bytes| decode(&bytes)) {
            None => Ok(None),
            Some(Ok(FromWorld {
                content: Some(from_world::Content::Refusal(refusal)),
                ..
            })) if self.session == 0 => Err(LiveError::Refused {
                at,
                reason: refusal.reason,
            }),
            Some(Ok(message)) => Ok(Some(message)),
            Some(Err(_)) => {
                self.faults += 1;
                Ok(None)
            }
        }
    }

    fn send(&mut self, content: from_policy::Content) -> Result<(), LiveError> {
        let message = FromPolicy {
            session: self.session,
            content: Some(content),
        };
        let at = self.at;
        let sent = self.link.send(&message.encode_to_vec());
        sent.map_err(|source| LiveError::Link { at, source })
    }

    fn silent(&self) -> LiveError {
        LiveError::Silent {
            at: self.at,
            faults: self.faults,
        }
    }

    /// Keeps the reason of a failure.
    fn failed(&self, outcome: Result<(), LiveError>) {
        if let Err(error) = outcome {
            // The first one is the reason.
            let _ = self.failure.set(error);
        }
    }
}

impl Environment for RemoteWorld {
    fn spec(&self) -> Spec {
        self.policy.spec()
    }

    fn next(&mut self, turn: &mut Turn) {
        if self.failure.get().is_none() {
            let outcome = self.wait(turn);
            self.failed(outcome);
        }
        if self.failure.get().is_some() {
            *turn = Turn {
                first: Some(End::Truncated),
                observation: vec![0.0; self.spec().observation],
                ..Turn::default()
            };
        }
    }

    fn act(&mut self, action: usize) {
        let Some((_, Decision { of, action })) = self.policy.decide(action) else {
            return;
        };
        let decided = Decided {
            episode: of.episode,
            interval: of.interval,
            action: action as u32,
        };
        let outcome = self.send(from_policy::Content::Decision(decided));
        self.failed(outcome);
    }
}

impl Drop for RemoteWorld {
    fn drop(&mut self) {
        // One of them arrives, or the service waits for a while.
        for _ in 0..3 {
            let _ = self.send(from_policy::Content::Bye(Nothing {}));
        }
    }
}
