//! The end of the network where the world is.

use crate::environment::{End, Environment, Turn};

/// A moment of the world: an interval, counted from 0 in its episode, which is counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub(crate) episode: u64,
    pub(crate) interval: u64,
}

/// An action, and the moment whose observation it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) of: Moment,
    pub(crate) action: usize,
}

/// What the world sends in an interval.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observed {
    pub(crate) of: Moment,
    /// What there is to be observed.
    pub(crate) turn: Turn,
}

/// How far the world is. Sums over an episode tell both ends the same, whatever was lost between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Progress {
    /// The present episode, from 1 on.
    pub(crate) episode: u64,
    /// Steps that it has had so far.
    pub(crate) steps: u64,
    /// Sum of its rewards so far.
    pub(crate) reward: f64,
    /// The episode before the present one.
    pub(crate) before: Past,
}

/// An episode that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Past {
    pub(crate) end: End,
    pub(crate) steps: u64,
    pub(crate) reward: f64,
}

/// What happened between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) reward: f32,
    pub(crate) steps: f32,
    /// How the former episode ended, if another has begun.
    pub(crate) ended: Option<End>,
}

impl Progress {
    /// Before the first episode, which begins as after a truncated one of a single step.
    pub(crate) const BEFORE: Self = Self {
        episode: 0,
        steps: 0,
        reward: 0.0,
        before: Past {
            end: End::Truncated,
            steps: 0,
            reward: 0.0,
        },
    };

    /// What happened since the progress was `known`, in the same episode or the one before.
    pub(crate) fn since(&self, known: &Self) -> Outcome {
        let (reward, steps, ended) = match self.episode == known.episode {
            true => (self.reward, self.steps, None),
            false => (self.before.reward, self.before.steps, Some(self.before.end)),
        };
        Outcome {
            reward: (reward - known.reward) as f32,
            steps: steps.saturating_sub(known.steps) as f32,
            ended,
        }
    }
}

/// A world that takes a step per interval with the newest decision that has arrived, by the
/// observation that it answers. An episode's first step waits for a decision.
pub(crate) struct WorldEnd<E> {
    world: E,
    /// What the world was like after its latest step.
    now: Turn,
    interval: u64,
    /// What the world does in each step.
    held: Option<Decision>,
    progress: Progress,
}

impl<E: Environment> WorldEnd<E> {
    /// The beginning of a world of one seat.
    pub(crate) fn new(mut world: E) -> Self {
        let mut now = Turn::default();
        world.next(&mut now);
        Self {
            world,
            now,
            interval: 0,
            held: None,
            progress: Progress {
                episode: 1,
                before: Past {
                    steps: 1,
                    ..Progress::BEFORE.before
                },
                ..Progress::BEFORE
            },
        }
    }

    /// The present moment of the world.
    pub(crate) fn moment(&self) -> Moment {
        Moment {
            episode: self.progress.episode,
            interval: self.interval,
        }
    }

    /// How far the world is.
    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    /// Whether a decision is in force: there is none at the beginning of an episode.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// What the world sends in the present interval.
    pub(crate) fn observed(&self) -> Observed {
        Observed {
            of: self.moment(),
            turn: self.now.clone(),
        }
    }

    /// Takes a decision that has arrived, unless it is about a former episode or older than the one
    /// in force.
    pub(crate) fn decide(&mut self, decision: Decision) {
        let is_newer = self.held.is_none_or(|held| held.of < decision.of);
        if is_newer && decision.of.episode == self.progress.episode {
            self.held = Some(decision);
        }
    }

    /// Lets an interval pass, and returns whether an episode has begun with its end.
    pub(crate) fn step(&mut self) -> bool {
        self.interval += 1;
        let Some(held) = self.held else {
            return false;
        };
        self.world.act(held.action);
        self.world.next(&mut self.now);
        self.progress.reward += f64::from(self.now.reward);
        self.progress.steps += 1;
        let Some(end) = self.now.first else {
            return false;
        };
        self.progress = Progress {
            episode: self.progress.episode + 1,
            steps: 0,
            reward: 0.0,
            before: Past {
                end,
                steps: self.progress.steps,
                reward: self.progress.reward,
            },
        };
        self.interval = 0;
        self.held = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::cartpole::{CartPole, CartPoleConfig};

    fn decision(episode: u64, interval: u64, action: usize) -> Decision {
        Decision {
            of: Moment { episode, interval },
            action,
        }
    }

    #[test]
    fn the_first_step_waits_and_the_newest_decision_is_held() {
        let mut end = WorldEnd::new(CartPole::new(&CartPoleConfig::default(), 1));
        assert!(!end.step() && !end.step());
        assert_eq!(end.progress().steps, 0);
        assert_eq!(end.moment().interval, 2);
        end.decide(decision(1, 1, 1));
        end.decide(decision(1, 0, 0));
        end.decide(decision(2, 9, 0));
        end.step();
        assert_eq!(end.held, Some(decision(1, 1, 1)));
        let begun = Progress::BEFORE;
        assert_eq!(
            end.progress().since(&begun),
            Outcome {
                reward: 0.0,
                steps: 1.0,
                ended: Some(End::Truncated)
            }
        );
        let known = end.progress();
        let mut steps = 0.0;
        while !end.step() {
            steps += 1.0;
        }
        // A pole that is pushed to one side falls, and nobody holds the next one.
        let outcome = end.progress().since(&known);
        assert_eq!(outcome.ended, Some(End::Terminated));
        assert_eq!((outcome.reward, outcome.steps), (steps + 1.0, steps + 1.0));
        assert_eq!((end.held, end.moment()), (None, decision(2, 0, 0).of));
    }
}
