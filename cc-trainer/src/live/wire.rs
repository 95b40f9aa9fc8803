//! The messages between a world's service and a policy, their limits, and what is refused.

use prost::Message;

use crate::environment::{
    End, Spec, Turn,
    networked::{Moment, Observed, Past, Progress},
};

/// Version of the protocol. Both ends must have the same.
pub const PROTOCOL: u32 = 1;
/// Largest message, bytes: what a datagram carries over any path without being fragmented.
pub(super) const LARGEST: usize = 1_200;
/// Bytes before a message in a stream: its length, little endian.
const PREFIX: usize = 2;

/// A message from the policy's end.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FromPolicy {
    /// The session that a service has opened; 0 in a greeting.
    #[prost(fixed64, tag = "1")]
    pub(super) session: u64,
    /// The one message that this is; `None` from a release with others.
    #[prost(oneof = "from_policy::Content", tags = "2, 3, 4, 5")]
    pub(super) content: Option<from_policy::Content>,
}

/// What a message from the policy's end holds.
pub(super) mod from_policy {
    /// One of the messages that the policy's end sends.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Content {
        /// Which world is wanted. Said again until there is an answer.
        #[prost(message, tag = "2")]
        Hello(super::Hello),
        /// The answer has come: the world may begin. Said again until there is an observation.
        #[prost(message, tag = "3")]
        Ready(super::Nothing),
        /// An action in answer to an observation.
        #[prost(message, tag = "4")]
        Decision(super::Decided),
        /// The world is not wanted any more.
        #[prost(message, tag = "5")]
        Bye(super::Nothing),
    }
}

/// A message from the world's end.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FromWorld {
    /// The session that this is about; 0 in a refusal.
    #[prost(fixed64, tag = "1")]
    pub(super) session: u64,
    /// The one message that this is; `None` from a release with others.
    #[prost(oneof = "from_world::Content", tags = "2, 3, 4")]
    pub(super) content: Option<from_world::Content>,
}

/// What a message from the world's end holds.
pub(super) mod from_world {
    /// One of the messages that the world's end sends.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Content {
        /// The session is open, and has a number.
        #[prost(message, tag = "2")]
        Welcome(super::Nothing),
        /// There is no session, and why.
        #[prost(message, tag = "3")]
        Refusal(super::Refusal),
        /// What there is to be observed in an interval.
        #[prost(message, tag = "4")]
        Observation(super::Observation),
    }
}

/// Which world is wanted, and at which pace.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Hello {
    /// Version of the protocol, [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub(super) protocol: u32,
    /// Settings of the world, a [`SteppedWorld`](crate::environment::networked::SteppedWorld) as
    /// JSON.
    #[prost(string, tag = "2")]
    pub(super) world: String,
    /// Time between two steps, ms.
    #[prost(double, tag = "3")]
    pub(super) interval_ms: f64,
    /// How long after an interval's beginning a decision counts for its step, ms.
    #[prost(double, tag = "4")]
    pub(super) grace_ms: f64,
    /// Seed of everything random in the world.
    #[prost(fixed64, tag = "5")]
    pub(super) seed: u64,
}

/// A message whose kind says all.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Nothing {}

/// Why there is no session.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Refusal {
    /// The reason with its remedy.
    #[prost(string, tag = "1")]
    pub(super) reason: String,
}

/// An action, and the observation that it answers.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Decided {
    /// Episode of the observation, from 1 on.
    #[prost(uint64, tag = "1")]
    pub(super) episode: u64,
    /// Interval of the observation in its episode, from 0 on.
    #[prost(uint64, tag = "2")]
    pub(super) interval: u64,
    /// Index of the action, from 0 on.
    #[prost(uint32, tag = "3")]
    pub(super) action: u32,
}

/// What there is to be observed in an interval, and how far the world is.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Observation {
    /// Present episode, from 1 on.
    #[prost(uint64, tag = "1")]
    pub(super) episode: u64,
    /// Present interval of the episode, from 0 on.
    #[prost(uint64, tag = "2")]
    pub(super) interval: u64,
    /// When the interval began, ns since 1970 by the service's clock.
    #[prost(fixed64, tag = "3")]
    pub(super) sent_ns: u64,
    /// The observation of the world.
    #[prost(float, repeated, tag = "4")]
    pub(super) values: Vec<f32>,
    /// The reward that is part of the observation.
    #[prost(float, tag = "5")]
    pub(super) reward: f32,
    /// Steps of the present episode so far.
    #[prost(uint64, tag = "6")]
    pub(super) steps: u64,
    /// Sum of the rewards of these steps.
    #[prost(double, tag = "7")]
    pub(super) total: f64,
    /// Whether a time limit ended the episode before this one, and not a terminal state.
    #[prost(bool, tag = "8")]
    pub(super) before_truncated: bool,
    /// Steps of the episode before this one.
    #[prost(uint64, tag = "9")]
    pub(super) before_steps: u64,
    /// Sum of the rewards of these steps.
    #[prost(double, tag = "10")]
    pub(super) before_total: f64,
}

/// Why a message was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("a message of {0} bytes, where {LARGEST} are the most")]
    Length(usize),
    #[error("no message: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("{0}")]
    Value(&'static str),
}

/// Reads a message from one end.
pub(super) fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, Fault> {
    match bytes.len() {
        0..=LARGEST => Ok(M::decode(bytes)?),
        length => Err(Fault::Length(length)),
    }
}

impl Observation {
    /// The message about a moment of the world that began at `sent_ns`.
    pub(super) fn new(observed: Observed, progress: Progress, sent_ns: u64) -> Self {
        Self {
            episode: observed.of.episode,
            interval: observed.of.interval,
            sent_ns,
            values: observed.turn.observation,
            reward: observed.turn.observed_reward,
            steps: progress.steps,
            total: progress.reward,
            before_truncated: progress.before.end == End::Truncated,
            before_steps: progress.before.steps,
            before_total: progress.before.reward,
        }
    }

    /// What the message says about a world of the size `spec`.
    pub(super) fn read(self, spec: &Spec) -> Result<(Observed, Progress), Fault> {
        if self.values.len() != spec.observation {
            return Err(Fault::Value("an observation of another length"));
        }
        if !self.values.iter().all(|value| value.is_finite()) || !self.reward.is_finite() {
            return Err(Fault::Value("an observation that is not finite"));
        }
        if !(self.total.is_finite() && self.before_total.is_finite()) {
            return Err(Fault::Value("a sum of rewards that is not finite"));
        }
        if self.episode == 0 {
            return Err(Fault::Value("an observation before the first episode"));
        }
        let observed = Observed {
            of: Moment {
                episode: self.episode,
                interval: self.interval,
            },
            turn: Turn {
                observation: self.values,
                observed_reward: self.reward,
                ..Turn::default()
            },
        };
        let progress = Progress {
            episode: self.episode,
            steps: self.steps,
            reward: self.total,
            before: Past {
                end: match self.before_truncated {
                    true => End::Truncated,
                    false => End::Terminated,
                },
                steps: self.before_steps,
                reward: self.before_total,
            },
        };
        Ok((observed, progress))
    }
}

/// A message as a stream carries it, with its length before it.
pub(super) fn frame(message: &[u8]) -> Vec<u8> {
    let length = message.len().min(usize::from(u16::MAX)) as u16;
    [&length.to_le_bytes(), message].concat()
}

/// The messages of a stream, put together again.
#[derive(Debug, Default)]
pub(super) struct Frames(Vec<u8>);

impl Frames {
    /// Takes what has been read.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole message; `None` until more has been read.
    ///
    /// # Errors
    ///
    /// Returns an error when a message is too long, after which the stream is of no use.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        let Some((prefix, rest)) = self.0.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_le_bytes(*prefix));
        if length > LARGEST {
            return Err(Fault::Length(length));
        }
        let Some(message) = rest.get(..length) else {
            return Ok(None);
        };
        let message = message.to_vec();
        self.0.drain(..PREFIX + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPEC: Spec = Spec {
        seats: 1,
        observation: 2,
        privileged: 0,
        actions: 2,
        tasks: 1,
    };

    fn observation() -> Observation {
        Observation {
            episode: 3,
            interval: 7,
            sent_ns: 11,
            values: vec![0.5, -1.0],
            reward: 1.0,
            steps: 7,
            total: 7.0,
            before_truncated: true,
            before_steps: 500,
            before_total: 500.0,
        }
    }

    #[test]
    fn an_observation_says_what_the_world_said() {
        let (observed, progress) = observation().read(&SPEC).expect("fine");
        assert_eq!(progress.before.end, End::Truncated);
        assert_eq!(Observation::new(observed, progress, 11), observation());
    }

    #[test]
    fn observations_of_no_use_are_refused() {
        type Change = fn(&mut Observation);
        let changes: [Change; 5] = [
            |one| one.values.truncate(1),
            |one| one.values[0] = f32::NAN,
            |one| one.reward = f32::INFINITY,
            |one| one.before_total = f64::NAN,
            |one| one.episode = 0,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut bad = observation();
            change(&mut bad);
            assert!(bad.read(&SPEC).is_err(), "change {number}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_read_beyond_the_limits(
            bytes in prop::collection::vec(any::<u8>(), 0..2_000),
        ) {
            let long = bytes.len() > LARGEST;
            let policy = decode::<FromPolicy>(&bytes);
            let world = decode::<FromWorld>(&bytes);
            prop_assert!(!long || (policy.is_err() && world.is_err()));
            let content = world.ok().and_then(|one| one.content);
            if let Some(from_world::Content::Observation(one)) = content {
                prop_assert!(one.values.len() <= LARGEST);
            }
        }

        #[test]
        fn frames_are_put_together_however_they_were_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..8),
            cuts in prop::collection::vec(1..20_usize, 1..40),
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(|one| frame(one)).collect();
            let (mut frames, mut found, mut rest) = (Frames::default(), Vec::new(), &stream[..]);
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let cut = rest.len().min(*cuts.next().expect("a cycle"));
                frames.extend(&rest[..cut]);
                rest = &rest[cut..];
                while let Some(message) = frames.next().expect("short") {
                    found.push(message);
                }
            }
            prop_assert_eq!(found, messages);
        }
    }

    #[test]
    fn a_stream_of_nonsense_is_given_up() {
        let mut frames = Frames::default();
        frames.extend(&[0xff; 40]);
        assert_eq!(frames.next(), Err(Fault::Length(0xffff)));
    }
}
