//! The messages between learner and worker, their limits, and what is refused.
//!
//! The rollouts of a message are stored field by field, `[N, ...]`, floats as little-endian bytes:
//! decoding allocates little more than the message's size, whatever its bytes. Fields that most
//! rollouts have alike (all actions allowed, each with an effect of its own, sampled by an actor)
//! are left out then.

use std::time::Duration;

use bytes::Bytes;
use cc_remote::wire::{WireError, check_finite, check_length};

use crate::{
    environment::{End, Quantities},
    learner::partners::Part,
    model::Shape,
    rollout::{Episode, Origin, Rollout},
};

/// Version of the protocol. Learner and workers must have the same.
pub const PROTOCOL: u32 = 2;
/// The path of the service's one method.
pub const PATH: &str = "/cc.Learner/Exchange";
/// Episodes in one message, at most.
pub const EPISODES: usize = 4096;
/// Rollouts in one message, at most.
const MOST: usize = 256;
/// Rollouts in a learner's part of an update, at most.
const MOST_LEARNT: u32 = 1 << 20;
/// Bytes of rollouts that a message is to have, unless a single one has more.
const USUAL_BYTES: usize = 512 << 10;
/// Size limit of the handshake's messages, bytes: enough for any configuration.
const HANDSHAKE_BYTES: usize = 4 << 20;
/// Size limit of the learner's messages, bytes: parameters of the largest network.
pub const LEARNER_BYTES: usize = 256 << 20;

/// A message from the worker.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FromWorker {
    /// The one message that this is; `None` from a release with others.
    #[prost(oneof = "from_worker::Content", tags = "1, 2, 3, 4, 5, 6")]
    pub content: Option<from_worker::Content>,
}

/// What a message from the worker holds.
pub mod from_worker {
    /// One of the messages that a worker sends.
    #[derive(Clone, PartialEq, prost::Oneof)]
    #[expect(
        clippy::large_enum_variant,
        reason = "nearly all messages are the largest one"
    )]
    pub enum Content {
        /// The first message of a stream: who wants to act.
        #[prost(message, tag = "1")]
        Hello(super::Hello),
        /// The second message: the environments are there.
        #[prost(message, tag = "2")]
        Ready(super::Ready),
        /// All other messages of who acts alone: rollouts, one message for each credit.
        #[prost(message, tag = "3")]
        Batch(super::Batch),
        /// A replica has rollouts, and takes part in the next update.
        #[prost(message, tag = "4")]
        Begin(super::Begin),
        /// The sums over a replica's part of an update's batch.
        #[prost(message, tag = "5")]
        Sums(super::Sums),
        /// The gradient of a replica's part of an update's batch.
        #[prost(message, tag = "6")]
        Gradient(super::Gradient),
    }
}

/// A message from the learner.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FromLearner {
    /// The one message that this is; `None` from a release with others.
    #[prost(oneof = "from_learner::Content", tags = "1, 2, 3, 4, 5, 6")]
    pub content: Option<from_learner::Content>,
}

/// What a message from the learner holds.
pub mod from_learner {
    /// One of the messages that a learner sends.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Content {
        /// The first message of a stream: what is learnt, and how rollouts are made.
        #[prost(message, tag = "1")]
        Plan(super::Plan),
        /// A policy to act by from now on.
        #[prost(message, tag = "2")]
        Policy(super::Policy),
        /// Leave to send further messages with rollouts.
        #[prost(message, tag = "3")]
        Credit(super::Credit),
        /// The run is done, and nobody has to act for it any more.
        #[prost(message, tag = "4")]
        Finished(super::Finished),
        /// An update begins that the replica takes part in.
        #[prost(message, tag = "5")]
        Start(super::Start),
        /// The sums over the whole batch of the update.
        #[prost(message, tag = "6")]
        Totals(super::Sums),
    }
}

/// Who the worker is, and what it insists on.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// Version of the protocol, [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// Version of the worker's package.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The secret that learner and workers share; empty for none.
    #[prost(string, tag = "3")]
    pub token: String,
    /// The run that the worker acts for; empty while it takes any.
    #[prost(string, tag = "4")]
    pub run: String,
    /// Number of the worker's actors, at least 1.
    #[prost(uint32, tag = "5")]
    pub actors: u32,
    /// The configuration that the worker insists on, as JSON; empty for none.
    #[prost(string, tag = "6")]
    pub config: String,
    /// Whether it is a replica of the learner, and sends gradients instead of rollouts.
    #[prost(bool, tag = "7")]
    pub learns: bool,
}

/// What is learnt, and how rollouts are made.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Plan {
    /// Version of the protocol, [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The run's name, which stays when the learner is started again.
    #[prost(string, tag = "2")]
    pub run: String,
    /// The run's resolved configuration, as JSON.
    #[prost(string, tag = "3")]
    pub config: String,
    /// The network's [`Shape`] as JSON.
    #[prost(string, tag = "4")]
    pub shape: String,
    /// The transform of observations as JSON; empty for environments that need none.
    #[prost(string, tag = "5")]
    pub normalizer: String,
    /// Environment steps learnt from before this start of the learner, for the actors' seeds.
    #[prost(uint64, tag = "6")]
    pub steps: u64,
    /// Index of the worker's first actor among all actors, for their seeds.
    #[prost(uint64, tag = "7")]
    pub first_actor: u64,
    /// Messages with rollouts that the worker may send before it gets a credit.
    #[prost(uint32, tag = "8")]
    pub credits: u32,
}

/// That the worker's environments are there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ready {
    /// The [`Shape`] that the environments and the configuration make on the worker, as JSON.
    #[prost(string, tag = "1")]
    pub shape: String,
}

/// A policy to act by.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Policy {
    /// Version of the policy: the number of updates that made it.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// The parameters in the layout's order, as little-endian f32.
    #[prost(bytes = "bytes", tag = "2")]
    pub parameters: Bytes,
}

/// Leave to send further messages with rollouts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Credit {
    /// The number of messages that may be sent in addition to those before.
    #[prost(uint32, tag = "1")]
    pub messages: u32,
}

/// That the run is done.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Finished {}

/// That a replica has rollouts, and takes part in the next update. If they are too old for that,
/// the answer is a [`Policy`].
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Begin {
    /// Number of the rollouts that are learnt from for the first time.
    #[prost(uint32, tag = "1")]
    pub fresh: u32,
    /// Version of the oldest policy that began one of these.
    #[prost(uint64, tag = "2")]
    pub oldest: u64,
}

/// That an update begins, and what all learners begin it with.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Start {
    /// Number of updates before it: the version of these parameters.
    #[prost(uint64, tag = "1")]
    pub updates: u64,
    /// Position on the schedule of the learning rate.
    #[prost(double, tag = "2")]
    pub learning_rate: f64,
    /// Position on the schedule of the entropy cost.
    #[prost(double, tag = "3")]
    pub entropy: f64,
    /// The parameters in the layout's order, as little-endian f32.
    #[prost(bytes = "bytes", tag = "4")]
    pub parameters: Bytes,
    /// What has been learnt beside the network, the
    /// [`LearnerState`](crate::learner::LearnerState), as JSON.
    #[prost(string, tag = "5")]
    pub state: String,
}

/// Sums over a part of an update's batch, or over all of it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Sums {
    /// Number of updates before the one that it is about.
    #[prost(uint64, tag = "1")]
    pub updates: u64,
    /// The sums, in the order of [`Partners::sum`](crate::learner::partners::Partners::sum).
    #[prost(double, repeated, tag = "2")]
    pub values: Vec<f64>,
}

/// The gradient of a part of an update's batch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Gradient {
    /// Number of updates before the one that it is about.
    #[prost(uint64, tag = "1")]
    pub updates: u64,
    /// Number of rollouts of the part.
    #[prost(uint32, tag = "2")]
    pub rollouts: u32,
    /// The gradient in the order of the parameters, as little-endian f32.
    #[prost(bytes = "bytes", tag = "3")]
    pub values: Bytes,
}

/// N rollouts of S steps, and M episodes that have ended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Batch {
    /// Versions of the policies that took the first actions, `[N]`.
    #[prost(uint64, repeated, tag = "1")]
    pub versions: Vec<u64>,
    /// Observations, `[N, S, D]` f32.
    #[prost(bytes = "bytes", tag = "2")]
    pub observation: Bytes,
    /// Rewards as the network sees them, `[N, S]` f32.
    #[prost(bytes = "bytes", tag = "3")]
    pub observed_reward: Bytes,
    /// Privileged observations, `[N, S, P]` f32.
    #[prost(bytes = "bytes", tag = "4")]
    pub privileged: Bytes,
    /// 1 and 2 at the first step after an episode that was terminated and truncated, else 0,
    /// `[N, S]`.
    #[prost(bytes = "bytes", tag = "5")]
    pub first: Bytes,
    /// Indices of the actions that were taken, `[N, S]`.
    #[prost(uint32, repeated, tag = "6")]
    pub action: Vec<u32>,
    /// Logits of the behaviour policy, `[N, S, A]` f32.
    #[prost(bytes = "bytes", tag = "7")]
    pub logits: Bytes,
    /// First actions with the same effect, `[N, S, A]`; empty where each is its own.
    #[prost(bytes = "bytes", tag = "8")]
    pub effects: Bytes,
    /// 1 for actions that were allowed, else 0, `[N, S, A]`; empty where all were.
    #[prost(bytes = "bytes", tag = "9")]
    pub allowed: Bytes,
    /// 0 for actions that an actor sampled, 1 and 2 for recorded ones with and without
    /// probabilities, `[N, S]`; empty where all were sampled.
    #[prost(bytes = "bytes", tag = "10")]
    pub origin: Bytes,
    /// Rewards as the environment gave them, `[N, S]` f32.
    #[prost(bytes = "bytes", tag = "11")]
    pub reward: Bytes,
    /// How long actions were in force, `[N, S]` f32.
    #[prost(bytes = "bytes", tag = "12")]
    pub intervals: Bytes,
    /// Loss and share of each step, NaN where unknown, `[N, S, 2]` f32; empty where all are.
    #[prost(bytes = "bytes", tag = "13")]
    pub quantities: Bytes,
    /// Tasks of the steps, `[N, S]`.
    #[prost(uint32, repeated, tag = "14")]
    pub task: Vec<u32>,
    /// The LSTM's hidden states at the start, `[N, H]` f32.
    #[prost(bytes = "bytes", tag = "15")]
    pub h: Bytes,
    /// The LSTM's cell states at the start, `[N, H]` f32.
    #[prost(bytes = "bytes", tag = "16")]
    pub c: Bytes,
    /// Tasks of the episodes, `[M]`.
    #[prost(uint32, repeated, tag = "17")]
    pub episode_task: Vec<u32>,
    /// Returns of the episodes, `[M]`.
    #[prost(double, repeated, tag = "18")]
    pub episode_total: Vec<f64>,
    /// Lengths of the episodes in steps, `[M]`.
    #[prost(uint64, repeated, tag = "19")]
    pub episode_steps: Vec<u64>,
    /// Lengths of the episodes in intervals, `[M]`.
    #[prost(double, repeated, tag = "20")]
    pub episode_intervals: Vec<f64>,
    /// Time that the worker's actors waited for credits since the message before, summed, µs.
    #[prost(uint64, tag = "21")]
    pub waited_us: u64,
}

/// The sizes that all rollouts of a run have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    /// S, the number of steps with those of the burn-in and the last.
    pub steps: usize,
    /// D, the length of an observation.
    pub observation: usize,
    /// P, the length of a privileged observation.
    pub privileged: usize,
    /// A, the number of actions.
    pub actions: usize,
    /// H, the width of the LSTM's states.
    pub state: usize,
    /// Number of tasks that there are.
    pub tasks: usize,
}

impl Widths {
    /// The sizes for a network of this shape, rollouts of `steps` steps and this many tasks.
    pub fn of(shape: &Shape, steps: usize, tasks: usize) -> Self {
        Self {
            steps,
            observation: shape.observation,
            privileged: shape.privileged,
            actions: shape.actions,
            state: shape.state(),
            tasks,
        }
    }

    /// Returns the size of a rollout in a message, bytes, at most.
    pub fn rollout_bytes(&self) -> usize {
        let floats = self.observation + self.privileged + self.actions + 5;
        // An action and a task take up to five bytes each, a version ten.
        let step = 4 * floats + 2 * self.actions + 12;
        self.steps * step + 8 * self.state + 10
    }

    /// Returns the number of rollouts in a message, at most.
    pub fn rollouts(&self) -> usize {
        (USUAL_BYTES / self.rollout_bytes()).clamp(1, MOST)
    }

    /// Returns the size limit of a worker's message, bytes.
    pub fn message_bytes(&self) -> usize {
        HANDSHAKE_BYTES + self.rollouts() * self.rollout_bytes() + EPISODES * 40
    }
}

/// What a message with rollouts brings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Received {
    /// The rollouts in the order of the message.
    pub rollouts: Vec<Rollout>,
    /// The episodes that have ended.
    pub episodes: Vec<Episode>,
    /// Time that the worker's actors waited for credits, summed over them.
    pub waited: Duration,
}

impl Batch {
    /// A message with these rollouts and episodes, at most [`Widths::rollouts`] and [`EPISODES`].
    pub fn of(rollouts: &[Rollout], episodes: &[Episode], waited: Duration) -> Self {
        let floats = |of: fn(&Rollout) -> &[f32]| to_bytes(rollouts.iter().flat_map(of).copied());
        let numbers = |of: fn(&Rollout) -> &[u32]| rollouts.iter().flat_map(of).copied().collect();
        let steps = || rollouts.iter().flat_map(|rollout| &rollout.quantities);
        let is_known = |step: &Quantities| step.loss.is_some() || step.share.is_some();
        let allowed = || rollouts.iter().flat_map(|rollout| &rollout.allowed);
        let origin = || rollouts.iter().flat_map(|rollout| &rollout.origin);
        let has_own_effects = |rollout: &Rollout| {
            let actions = rollout.effects.len() / rollout.len().max(1);
            let effects = rollout.effects.iter().enumerate();
            effects.fold(true, |own, (at, &effect)| {
                own && at % actions == usize::from(effect)
            })
        };
        Self {
            versions: rollouts.iter().map(|rollout| rollout.version).collect(),
            observation: floats(|rollout| &rollout.observation),
            observed_reward: floats(|rollout| &rollout.observed_reward),
            privileged: floats(|rollout| &rollout.privileged),
            first: (rollouts.iter().flat_map(|rollout| &rollout.first))
                .map(|first| match first {
                    None => 0,
                    Some(End::Terminated) => 1,
                    Some(End::Truncated) => 2,
                })
                .collect(),
            action: numbers(|rollout| &rollout.action),
            logits: floats(|rollout| &rollout.logits),
            effects: match rollouts.iter().all(has_own_effects) {
                true => Bytes::new(),
                false => (rollouts.iter())
                    .flat_map(|rollout| rollout.effects.iter().copied())
                    .collect(),
            },
            allowed: match allowed().all(|allowed| *allowed) {
                true => Bytes::new(),
                false => rollouts.iter().flat_map(whole_mask).map(u8::from).collect(),
            },
            origin: match origin().all(|origin| *origin == Origin::Actor) {
                true => Bytes::new(),
                false => origin()
                    .map(|origin| match origin {
                        Origin::Actor => 0,
                        Origin::Recorded => 1,
                        Origin::Observed => 2,
                    })
                    .collect(),
            },
            reward: floats(|rollout| &rollout.reward),
            intervals: floats(|rollout| &rollout.intervals),
            quantities: match steps().any(is_known) {
                false => Bytes::new(),
                true => to_bytes(
                    steps().flat_map(|step| [step.loss, step.share].map(|v| v.unwrap_or(f32::NAN))),
                ),
            },
            task: numbers(|rollout| &rollout.task),
            h: floats(|rollout| &rollout.h),
            c: floats(|rollout| &rollout.c),
            episode_task: episodes.iter().map(|episode| episode.task as u32).collect(),
            episode_total: episodes.iter().map(|episode| episode.total).collect(),
            episode_steps: episodes.iter().map(|episode| episode.steps).collect(),
            episode_intervals: episodes.iter().map(|episode| episode.intervals).collect(),
            waited_us: waited.as_micros() as u64,
        }
    }

    /// Checks the message and returns what it brings. `newest` is the version of the learner's
    /// policy, which no rollout can be ahead of.
    ///
    /// # Errors
    ///
    /// Returns an error when there are too many rollouts or episodes, when a length does not fit
    /// the widths, and for a value that cannot be: one that is not finite, an action that does not
    /// exist or was not allowed, a task that there is not, a version that is yet to come.
    pub fn check(&self, widths: &Widths, newest: u64) -> Result<Received, WireError> {
        let (n, actions) = (self.versions.len(), widths.actions);
        at_most("versions", n, widths.rollouts())?;
        at_most("episode_task", self.episode_task.len(), EPISODES)?;
        at_most(
            "versions",
            self.versions.iter().copied().max().unwrap_or(0),
            newest,
        )?;
        let steps = n * widths.steps;
        for (field, bytes, values) in [
            ("observation", &self.observation, steps * widths.observation),
            ("observed_reward", &self.observed_reward, steps),
            ("privileged", &self.privileged, steps * widths.privileged),
            ("logits", &self.logits, steps * actions),
            ("reward", &self.reward, steps),
            ("intervals", &self.intervals, steps),
            ("h", &self.h, n * widths.state),
            ("c", &self.c, n * widths.state),
        ] {
            check_length(field, bytes.len(), 4 * values)?;
        }
        check_length("first", self.first.len(), steps)?;
        check_length("action", self.action.len(), steps)?;
        check_length("task", self.task.len(), steps)?;
        for (field, bytes, length) in [
            ("effects", &self.effects, steps * actions),
            ("allowed", &self.allowed, steps * actions),
            ("origin", &self.origin, steps),
            ("quantities", &self.quantities, 8 * steps),
        ] {
            check_length(
                field,
                bytes.len(),
                if bytes.is_empty() { 0 } else { length },
            )?;
        }
        let below = |field, values: &[u32], end: usize| match values.iter().max() {
            Some(&most) => at_most(field, most as usize, end.saturating_sub(1)),
            None => Ok(()),
        };
        below("action", &self.action, actions)?;
        below("task", &self.task, widths.tasks)?;
        Ok(Received {
            rollouts: (0..n)
                .map(|at| self.rollout(at, widths))
                .collect::<Result<_, _>>()?,
            episodes: self.episodes(widths)?,
            waited: Duration::from_micros(self.waited_us),
        })
    }

    /// The rollout at this position. The caller has checked lengths, actions and tasks.
    fn rollout(&self, at: usize, widths: &Widths) -> Result<Rollout, WireError> {
        let (steps, actions) = (widths.steps, widths.actions);
        let range = |width: usize| at * width..(at + 1) * width;
        let floats = |field, bytes: &Bytes, width: usize| {
            let values = to_floats(&bytes[range(4 * width)]);
            check_finite(field, &values).map(|()| values)
        };
        let codes = |field, bytes: &Bytes, width: usize, most: u8| {
            let codes = match bytes.is_empty() {
                true => vec![0; width],
                false => bytes[range(width)].to_vec(),
            };
            let found = codes.iter().copied().max().unwrap_or(0);
            at_most(field, found, most).map(|()| codes)
        };
        let allowed = match self.allowed.is_empty() {
            true => vec![true; steps * actions],
            false => {
                let codes = codes("allowed", &self.allowed, steps * actions, 1)?;
                codes.into_iter().map(|code| code == 1).collect()
            }
        };
        let action = self.action[range(steps)].to_vec();
        for (step, &action) in action.iter().enumerate() {
            if !allowed[step * actions + action as usize] {
                return Err(wrong("action", action, "an action that was allowed"));
            }
        }
        let effects: Vec<u8> = match self.effects.is_empty() {
            true => (0..steps).flat_map(|_| 0..actions as u8).collect(),
            false => self.effects[range(steps * actions)].to_vec(),
        };
        for row in effects.chunks_exact(actions) {
            // The first action of an effect is its own.
            let is_first = |&(action, &first): &(usize, &u8)| {
                let first = usize::from(first);
                first <= action && usize::from(row[first]) == first
            };
            if let Some((_, first)) = row.iter().enumerate().find(|entry| !is_first(entry)) {
                return Err(wrong("effects", first, "the first action with an effect"));
            }
        }
        let quantities = match self.quantities.is_empty() {
            true => vec![Quantities::default(); steps],
            false => {
                let known = |value: f32| (!value.is_nan()).then_some(value);
                let values = to_floats(&self.quantities[range(8 * steps)]);
                let all: Vec<_> = (values.chunks_exact(2))
                    .map(|pair| Quantities {
                        loss: known(pair[0]),
                        share: known(pair[1]),
                    })
                    .collect();
                let is_wrong = |value: &Option<f32>| value.is_some_and(|value| !value.is_finite());
                match all.iter().any(|q| is_wrong(&q.loss) || is_wrong(&q.share)) {
                    true => return Err(wrong("quantities", "inf", "a finite number or NaN")),
                    false => all,
                }
            }
        };
        let intervals = floats("intervals", &self.intervals, steps)?;
        if let Some(found) = intervals.iter().find(|value| **value < 0.0) {
            return Err(wrong("intervals", found, "0 or more"));
        }
        Ok(Rollout {
            observation: floats("observation", &self.observation, steps * widths.observation)?,
            observed_reward: floats("observed_reward", &self.observed_reward, steps)?,
            privileged: floats("privileged", &self.privileged, steps * widths.privileged)?,
            first: (codes("first", &self.first, steps, 2)?.into_iter())
                .map(|code| match code {
                    0 => None,
                    1 => Some(End::Terminated),
                    _ => Some(End::Truncated),
                })
                .collect(),
            action,
            logits: floats("logits", &self.logits, steps * actions)?,
            effects,
            allowed,
            origin: (codes("origin", &self.origin, steps, 2)?.into_iter())
                .map(|code| match code {
                    0 => Origin::Actor,
                    1 => Origin::Recorded,
                    _ => Origin::Observed,
                })
                .collect(),
            reward: floats("reward", &self.reward, steps)?,
            intervals,
            quantities,
            task: self.task[range(steps)].to_vec(),
            h: floats("h", &self.h, widths.state)?,
            c: floats("c", &self.c, widths.state)?,
            version: self.versions[at],
        })
    }

    fn episodes(&self, widths: &Widths) -> Result<Vec<Episode>, WireError> {
        let count = self.episode_task.len();
        check_length("episode_total", self.episode_total.len(), count)?;
        check_length("episode_steps", self.episode_steps.len(), count)?;
        check_length("episode_intervals", self.episode_intervals.len(), count)?;
        (0..count)
            .map(|at| {
                let episode = Episode {
                    task: self.episode_task[at] as usize,
                    total: self.episode_total[at],
                    steps: self.episode_steps[at],
                    intervals: self.episode_intervals[at],
                };
                at_most("episode_task", episode.task, widths.tasks.saturating_sub(1))?;
                for value in [episode.total, episode.intervals] {
                    if !value.is_finite() {
                        return Err(wrong("episode_total", value, "a finite number"));
                    }
                }
                Ok(episode)
            })
            .collect()
    }
}

/// The mask of a rollout with a value for each action of each step.
fn whole_mask(rollout: &Rollout) -> Vec<bool> {
    match rollout.allowed.is_empty() {
        true => vec![true; rollout.effects.len()],
        false => rollout.allowed.clone(),
    }
}

impl Sums {
    /// Checks the sums of a part.
    ///
    /// # Errors
    ///
    /// Returns an error for a sum that is not finite.
    pub fn check(&self) -> Result<(), WireError> {
        match self.values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(wrong("values", value, "a finite number")),
            None => Ok(()),
        }
    }
}

impl Gradient {
    /// Checks the gradient, of so many parameters, and returns it.
    ///
    /// # Errors
    ///
    /// Returns an error for another length and for a value that is not finite.
    pub fn check(&self, parameters: usize) -> Result<Part, WireError> {
        check_length("values", self.values.len(), 4 * parameters)?;
        let gradient = to_floats(&self.values);
        check_finite("values", &gradient)?;
        at_most("rollouts", self.rollouts, MOST_LEARNT)?;
        Ok(Part {
            rollouts: self.rollouts as usize,
            gradient,
        })
    }
}

/// Returns plain data as JSON.
pub(super) fn to_json(data: &impl serde::Serialize) -> String {
    serde_json::to_string(data).unwrap_or_else(|e| unreachable!("plain data serialises: {e}"))
}

/// Returns floats as little-endian bytes.
pub fn to_bytes(values: impl IntoIterator<Item = f32>) -> Bytes {
    let values = values.into_iter();
    let mut bytes = Vec::with_capacity(4 * values.size_hint().0);
    values.for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    bytes.into()
}

/// Returns the floats of little-endian bytes, whose number is a multiple of four.
pub fn to_floats(bytes: &[u8]) -> Vec<f32> {
    let float = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    bytes.chunks_exact(4).map(float).collect()
}

fn at_most<T: PartialOrd + std::fmt::Display>(
    field: &'static str,
    found: T,
    most: T,
) -> Result<(), WireError> {
    match found <= most {
        true => Ok(()),
        false => Err(WireError::TooLarge {
            field,
            found: found.to_string(),
            most: most.to_string(),
        }),
    }
}

fn wrong(field: &'static str, found: impl std::fmt::Display, expected: &'static str) -> WireError {
    WireError::Value {
        field,
        found: found.to_string(),
        expected,
    }
}

#[cfg(test)]
mod tests;
