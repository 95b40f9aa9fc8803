//! Environments: the worlds that a policy is trained in, each of which asks for actions turn by
//! turn.
//!
//! An environment has one or more *seats*, each with its own sequence of episodes. Every turn asks
//! one seat for one action. Where several agents act at times of their own, as flows that share a
//! link do, the turns of different seats interleave. A seat's episodes follow each other without a
//! pause: the first turn of an episode also reports how the previous one ended.
//!
//! `cc-trainer/examples/own_environment.rs` implements a small environment and trains a policy in
//! it.

pub mod abr;
pub mod cartpole;
mod flow_task;
pub mod gridworld;
pub mod network;
pub mod networked;
mod normalised;
pub mod recorded;
pub mod streamed;

pub use flow_task::{FlowTask, RewardScale};
pub use normalised::Normalised;

use cc_core::interface::{Interface, Quantity};

/// An environment with one or more seats.
pub trait Environment: Send {
    /// Returns the sizes of observations, actions and so on. They never change during a run.
    fn spec(&self) -> Spec;

    /// Returns how an observation divides into time series, for a network that reads each by a
    /// layer of its own; none, as by default, where it has no such order. They never change during
    /// a run. What is in none of them is not read by such a network.
    fn series(&self) -> Vec<Series> {
        Vec::new()
    }

    /// Advances the environment to the next turn and writes it to `turn`, reusing its buffers.
    ///
    /// The caller calls this first, and then again after every [`act`](Self::act).
    fn next(&mut self, turn: &mut Turn);

    /// Answers the turn that the last call of [`next`](Self::next) returned.
    ///
    /// `action` is an index below [`Spec::actions`], of an action that the turn
    /// [allows](Turn::allowed).
    fn act(&mut self, action: usize);
}

impl<E: Environment + ?Sized> Environment for Box<E> {
    fn spec(&self) -> Spec {
        (**self).spec()
    }

    fn series(&self) -> Vec<Series> {
        (**self).series()
    }

    fn next(&mut self, turn: &mut Turn) {
        (**self).next(turn);
    }

    fn act(&mut self, action: usize) {
        (**self).act(action);
    }
}

/// Sizes of an environment, by which the network's shape is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Number of seats; [`Turn::seat`] is below it.
    pub seats: usize,
    /// Number of values in [`Turn::observation`].
    pub observation: usize,
    /// Number of values in [`Turn::privileged`], 0 when the critic sees nothing of its own.
    pub privileged: usize,
    /// Number of actions to choose from.
    pub actions: usize,
    /// Number of tasks that [`Turn::task`] distinguishes: kinds of link, for instance. Each task
    /// has its own reward statistics.
    pub tasks: usize,
}

/// A part of an observation: adjacent values of one quantity in an order, such as that of time, or
/// a context, values that have no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    /// Index in the observation of the part's first value.
    pub from: usize,
    /// Number of values; at least 1.
    pub length: usize,
    /// Whether it is a context, whose values only a fully connected layer can read together.
    pub is_context: bool,
}

impl Series {
    /// Returns the parts of the observations that an interface defines: all that an interface
    /// without [series](Interface::series) has, as a context, then the series. None where it has no
    /// series.
    pub fn of(interface: &Interface) -> Vec<Self> {
        if interface.series == 0 {
            return Vec::new();
        }
        let first = interface.series_offset();
        let context = Self {
            from: 0,
            length: first,
            is_context: true,
        };
        let series = (0..Quantity::ALL.len()).map(|quantity| Self {
            from: first + quantity * interface.series,
            length: interface.series,
            is_context: false,
        });
        [context].into_iter().chain(series).collect()
    }
}

/// One turn: the request to choose an action for one seat, with the outcome of its previous action.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Index of the seat that is asked, below [`Spec::seats`].
    pub seat: usize,
    /// On the first turn of an episode, how the seat's previous episode ended; `None` on every
    /// other turn. The very first turn of a seat has `Some(End::Truncated)`.
    pub first: Option<End>,
    /// Reward of the seat's previous action. On the first turn of an episode it belongs to the last
    /// action of the previous episode.
    pub reward: f32,
    /// How long the seat's previous action was in force, in units of the interval between two
    /// actions by which the learner's discount is meant. Always 1, as it is by default, in
    /// environments without a time of their own.
    pub intervals: f32,
    /// What can be limited of that action's outcome; unknown, as by default, in environments that
    /// do not measure it.
    pub quantities: Quantities,
    /// The policy's observation, [`Spec::observation`] values.
    pub observation: Vec<f32>,
    /// The reward that is part of the policy's input, 0 while none is known yet.
    ///
    /// A served policy receives the same number, so it can only depend on what the
    /// serving host measures. [`reward`](Self::reward), the one that is maximised, may
    /// use the simulator's ground truth.
    pub observed_reward: f32,
    /// Input of the critic alone, [`Spec::privileged`] values. It is not
    /// needed to serve the policy.
    pub privileged: Vec<f32>,
    /// Index of the seat's current task, below [`Spec::tasks`].
    pub task: usize,
    /// For each action, the index of the first action that would have the same effect in this
    /// turn, [`Spec::actions`] values; empty where all actions have effects of their own.
    pub effects: Vec<u8>,
    /// For each action, whether it may be chosen in this turn, [`Spec::actions`] values of which at
    /// least one is true; empty where all actions are allowed. A policy gives masked actions, those
    /// that are not allowed, a probability of exactly 0.
    pub allowed: Vec<bool>,
    /// The action that was taken on this turn, where the turn comes from a recording: the policy's
    /// choice is then ignored. `None` in environments that act on the choice.
    pub taken: Option<RecordedAction>,
}

impl Default for Turn {
    fn default() -> Self {
        Self {
            seat: 0,
            first: None,
            reward: 0.0,
            intervals: 1.0,
            quantities: Quantities::default(),
            observation: Vec::new(),
            observed_reward: 0.0,
            privileged: Vec::new(),
            task: 0,
            effects: Vec::new(),
            allowed: Vec::new(),
            taken: None,
        }
    }
}

impl Turn {
    /// Whether an action may be chosen in this turn.
    pub fn allows(&self, action: usize) -> bool {
        self.allowed.get(action).is_none_or(|allowed| *allowed)
    }
}

/// What an action brought beside its reward, as means over the time in which it was in force: the
/// quantities that [constraints](crate::learner::constraints) are about.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantities {
    /// Share of the bytes sent that were retransmissions, from 0 to 1; `None` if not measured.
    pub loss: Option<f32>,
    /// Throughput relative to the fair share of the link; `None` if not measured, and while no
    /// other flow is on the link.
    pub share: Option<f32>,
}

/// An action that the behaviour policy took while it was recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedAction {
    /// Index of the action, below [`Spec::actions`].
    pub action: usize,
    /// `[A]`: probabilities of all actions under the behaviour policy; `None` where they are
    /// unknown, as for a kernel congestion control.
    pub probabilities: Option<Vec<f32>>,
    /// Whether the policy that the actor acts by sampled it, elsewhere: it then counts as sampled
    /// by the actor.
    pub own: bool,
}

/// How an episode ended, which decides whether the value after it is bootstrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The environment reached a terminal state: the value of what follows is 0.
    Terminated,
    /// A time limit ended the episode in a state from which more reward would have followed.
    Truncated,
}

/// The factor of the LSTM's state before a step: 0 where an episode begins, else 1.
pub(crate) fn not_done(first: Option<End>) -> f32 {
    f32::from(u8::from(first.is_none()))
}
