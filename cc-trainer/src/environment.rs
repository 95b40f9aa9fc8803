//! What a policy is trained in: environments that ask for actions, turn by turn.
//!
//! An environment has seats. At a turn it asks one of them for an action; where the actors of one world act at
//! times of their own, as flows on a link do, turns of different seats interleave. A seat's episodes follow each
//! other without a pause: the first turn of an episode also tells how the one before it ended.

pub mod cartpole;
pub mod gridworld;
pub mod network;
pub mod recorded;

/// A world with one or more seats.
pub trait Environment: Send {
    /// The lengths of what its turns hold, and how many actions there are.
    fn spec(&self) -> Spec;

    /// Runs to the next turn and fills it in. Called first, and then after every [`act`](Self::act).
    fn next(&mut self, turn: &mut Turn);

    /// Answers the turn that [`next`](Self::next) gave last with an action, below [`Spec::actions`].
    fn act(&mut self, action: usize);
}

/// The sizes of an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Seats; those of a turn are below.
    pub seats: usize,
    /// Length of an observation.
    pub observation: usize,
    /// Length of what only the critic sees.
    pub privileged: usize,
    /// Number of actions.
    pub actions: usize,
    /// Number of tasks that [`Turn::task`] tells apart: kinds of link, each with reward statistics of its own.
    pub tasks: usize,
}

/// A seat is asked for an action.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// Which seat.
    pub seat: usize,
    /// How the seat's previous episode ended, on the first turn of an episode; on its very first, `Some(Truncated)`.
    pub first: Option<End>,
    /// What the seat's previous action earned. On the first turn of an episode, what the last action of the previous
    /// one did.
    pub reward: f32,
    /// What the policy sees, [`Spec::observation`] values.
    pub observation: Vec<f32>,
    /// The reward that the policy sees beside it: known where the policy is served, which the one that it is
    /// trained for need not be. 0 where nothing is known yet.
    pub observed_reward: f32,
    /// What only the critic sees, [`Spec::privileged`] values.
    pub privileged: Vec<f32>,
    /// Which task this is, below [`Spec::tasks`].
    pub task: usize,
    /// What was done on this turn, where it is a recorded one: nobody is asked. Environments that ask leave it empty.
    pub taken: Option<Taken>,
}

/// What somebody did.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The action, below [`Spec::actions`].
    pub action: usize,
    /// `[A]`: the probabilities that it was chosen with; none where nobody knows them.
    pub probabilities: Option<Vec<f32>>,
}

/// How an episode ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By what happened in it: nothing can be earned after it.
    Terminated,
    /// By the clock: more could have been earned.
    Truncated,
}
