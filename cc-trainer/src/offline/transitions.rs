//! What was recorded, in the form that offline methods learn from: states in a row, each with the
//! action that was taken in it and what followed.

/// States, actions and outcomes. The states of a trajectory follow each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Transitions {
    /// Length D of a state.
    width: usize,
    /// Number A of actions to choose from.
    actions: usize,
    /// `[N, D]`: the states, in the order of their trajectories.
    states: Vec<f32>,
    taken: Vec<Taken>,
    /// `[N, A]`: how far each action would have changed the cwnd in the state.
    offers: Vec<f32>,
    outcomes: Vec<Option<Outcome>>,
    /// Indices of the states whose outcome is known.
    known: Vec<usize>,
}

/// What was done in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Taken {
    /// Index of the action, below A.
    pub action: usize,
    /// How far it really changed the cwnd: the logarithm of the ratio. It differs from the action's
    /// own where a control that knows no actions was observed.
    pub change: f32,
}

/// What followed an action, up to the next state that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The discounted reward until the next state that counts.
    pub reward: f32,
    /// The discount of that state's value; 0 where nothing follows.
    pub discount: f32,
    /// Number of states from this one to that one; 0 where nothing follows.
    pub ahead: usize,
}

impl Transitions {
    /// None yet, of states with `width` values and of `actions` actions.
    ///
    /// # Panics
    ///
    /// Panics when there is no action.
    pub fn new(width: usize, actions: usize) -> Self {
        assert!(actions > 0, "nothing can be chosen without an action");
        Self {
            width,
            actions,
            states: Vec::new(),
            taken: Vec::new(),
            offers: Vec::new(),
            outcomes: Vec::new(),
            known: Vec::new(),
        }
    }

    /// Adds a state after those of its trajectory. `offers` has the change by each action.
    ///
    /// # Panics
    ///
    /// Panics when a length is another one than [`new`](Self::new) was told, or there is no such
    /// action.
    pub fn push(&mut self, state: &[f32], taken: Taken, offers: &[f32], outcome: Option<Outcome>) {
        assert_eq!(state.len(), self.width, "values of a state");
        assert_eq!(offers.len(), self.actions, "a change by each action");
        assert!(taken.action < self.actions, "one of the actions");
        if outcome.is_some() {
            self.known.push(self.taken.len());
        }
        self.states.extend_from_slice(state);
        self.taken.push(taken);
        self.offers.extend_from_slice(offers);
        self.outcomes.push(outcome);
    }

    /// Length D of a state.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number A of actions to choose from.
    pub fn actions(&self) -> usize {
        self.actions
    }

    /// Number N of states, with a known outcome or without.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether there is no state.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Indices of the states whose outcome is known: those that something is learned from.
    pub fn known(&self) -> &[usize] {
        &self.known
    }

    /// The values of a state.
    ///
    /// # Panics
    ///
    /// Panics when there is no such state.
    pub fn state(&self, index: usize) -> &[f32] {
        &self.states[index * self.width..][..self.width]
    }

    /// What was done in a state.
    ///
    /// # Panics
    ///
    /// Panics when there is no such state.
    pub fn taken(&self, index: usize) -> Taken {
        self.taken[index]
    }

    /// How far each action would have changed the cwnd in a state.
    ///
    /// # Panics
    ///
    /// Panics when there is no such state.
    pub fn offers(&self, index: usize) -> &[f32] {
        &self.offers[index * self.actions..][..self.actions]
    }

    /// Makes nothing follow any action but its own reward.
    #[cfg(test)]
    pub(super) fn forget_what_follows(&mut self) {
        for outcome in self.outcomes.iter_mut().flatten() {
            outcome.discount = 0.0;
        }
    }

    /// Gathers states whose outcome is known for an update.
    ///
    /// # Panics
    ///
    /// Panics when one of the outcomes is not known, or the state that follows is missing.
    pub fn batch(&self, indices: &[usize]) -> Batch {
        let mut batch = Batch {
            width: self.width,
            actions: self.actions,
            ..Batch::default()
        };
        for &index in indices {
            let Some(outcome) = self.outcomes[index] else {
                panic!("the outcome of state {index} is not known");
            };
            let next = index + outcome.ahead;
            batch.states.extend_from_slice(self.state(index));
            batch.next.extend_from_slice(self.state(next));
            batch.offers.extend_from_slice(self.offers(index));
            batch.next_offers.extend_from_slice(self.offers(next));
            batch.taken.push(self.taken[index]);
            batch.outcomes.push(outcome);
        }
        batch
    }
}

/// States with what was done in them and what followed, for one update; B of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Length D of a state.
    pub width: usize,
    /// Number A of actions to choose from.
    pub actions: usize,
    /// `[B, D]`: the states, one after the other.
    pub states: Vec<f32>,
    /// `[B, D]`: the states that follow.
    pub next: Vec<f32>,
    /// `[B, A]`: how far each action would change the cwnd.
    pub offers: Vec<f32>,
    /// `[B, A]`: the same in the states that follow.
    pub next_offers: Vec<f32>,
    /// `[B]`: what was done in each state.
    pub taken: Vec<Taken>,
    /// `[B]`: what followed in each state.
    pub outcomes: Vec<Outcome>,
}

impl Batch {
    /// Number B of states in the batch.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether there is no state.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_the_states_that_follow() {
        let mut data = Transitions::new(2, 3);
        let taken = |action| Taken {
            action,
            change: 0.5,
        };
        let outcome = |ahead| Outcome {
            reward: 1.5,
            discount: 0.9,
            ahead,
        };
        data.push(&[1.0, 2.0], taken(0), &[0.0, 0.1, 0.2], Some(outcome(2)));
        data.push(&[3.0, 4.0], taken(1), &[0.0, 0.3, 0.4], Some(outcome(1)));
        data.push(&[5.0, 6.0], taken(2), &[0.0, 0.5, 0.6], None);
        assert_eq!((data.len(), data.known()), (3, &[0, 1][..]));
        let batch = data.batch(&[1, 0]);
        assert_eq!(batch.states, [3.0, 4.0, 1.0, 2.0]);
        assert_eq!(batch.next, [5.0, 6.0, 5.0, 6.0]);
        assert_eq!(batch.next_offers[..3], [0.0, 0.5, 0.6]);
        assert_eq!((batch.taken[0].action, batch.len()), (1, 2));
    }

    #[test]
    #[should_panic(expected = "the outcome of state 0 is not known")]
    fn a_state_without_an_outcome_teaches_nothing() {
        let mut data = Transitions::new(1, 1);
        data.push(&[1.0], Taken::default(), &[0.0], None);
        data.batch(&[0]);
    }
}
