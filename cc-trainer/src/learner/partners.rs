//! Learners that learn together: each takes a part of the batch, and all of them take one step.
//!
//! The loss is a mean over the steps of a batch (or their sum), so that its gradient is the mean
//! (the sum) of the gradients of the batch's parts, wherever each was computed. What else an update
//! takes from the whole batch, such as the mean of its rewards, are sums over steps as well. A
//! learner that has these sums and this gradient from its [`Partners`] makes the update of a batch
//! of which it holds but a part, and knows nothing of where the others are.

use super::{LearnerState, Reduction, SchedulePosition};
use crate::model::{Device, DeviceFailure, RmsProp, StepError};

/// What all learners have to begin an update with.
pub struct Beginning<'a> {
    /// Number of updates before this one.
    pub updates: &'a mut u64,
    /// Where the update is on the schedules.
    pub position: &'a mut SchedulePosition,
    /// The device, with the parameters before the update.
    pub device: &'a mut dyn Device,
    /// What has been learnt beside the network.
    pub state: &'a mut LearnerState,
}

/// The gradient of a part of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// The number of rollouts that the part has.
    pub rollouts: usize,
    /// The gradient of its loss, in the order of the parameters.
    pub gradient: Vec<f32>,
}

/// The learners that a learner makes its updates with. All of them call the methods in this order,
/// for each update.
pub trait Partners: Send {
    /// Has all learners begin an update with the same parameters, state and position.
    ///
    /// # Errors
    ///
    /// Returns an error when the device fails, and when the others are gone or go on without this
    /// learner.
    fn begin(&mut self, beginning: Beginning<'_>) -> Result<(), PartnersError>;

    /// Replaces sums over the steps of this learner by those over the steps of all.
    ///
    /// # Errors
    ///
    /// Returns an error when the others are gone.
    fn sum(&mut self, sums: &mut [f64]) -> Result<(), PartnersError>;

    /// Takes the optimiser's step along the gradient of all learners' rollouts, of which this
    /// learner's part, of so many `rollouts`, is on the device. Returns the norm of the gradient.
    ///
    /// # Errors
    ///
    /// Returns an error when the device fails, when the gradient is not finite, and when the others
    /// are gone.
    fn step(
        &mut self,
        device: &mut dyn Device,
        rollouts: usize,
        loss: Reduction,
        optimiser: &RmsProp,
    ) -> Result<f32, PartnersError>;
}

/// Why an update cannot be made with others.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartnersError {
    /// The own device failed, or the gradient is not finite.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The others cannot be reached any more, or have ended.
    #[error("the learner that the others learn with is gone: {0}")]
    Gone(String),
    /// The others go on without the rollouts of this learner, whose policies are too old. It has
    /// their parameters, and can try again with newer rollouts.
    #[error("the rollouts are too old for the others' update")]
    Stale,
}

impl From<DeviceFailure> for PartnersError {
    fn from(failure: DeviceFailure) -> Self {
        Self::Step(failure.into())
    }
}

/// No partners: the learner has the whole batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alone;

impl Partners for Alone {
    fn begin(&mut self, _: Beginning<'_>) -> Result<(), PartnersError> {
        Ok(())
    }

    fn sum(&mut self, _: &mut [f64]) -> Result<(), PartnersError> {
        Ok(())
    }

    fn step(
        &mut self,
        device: &mut dyn Device,
        _: usize,
        _: Reduction,
        optimiser: &RmsProp,
    ) -> Result<f32, PartnersError> {
        Ok(device.step(optimiser)?)
    }
}

/// Turns the gradient of the first part into that of all: with a loss that is a mean, the mean of
/// the gradients weighted by the parts' rollouts; with one that is a sum, their sum.
///
/// # Panics
///
/// Panics if the gradients have different lengths.
pub fn combine(first: &mut Part, others: &[Part], loss: Reduction) {
    let rollouts = others.iter().map(|part| part.rollouts).sum::<usize>() + first.rollouts;
    let weight = |part: &Part| match loss {
        Reduction::Mean => part.rollouts as f32 / rollouts.max(1) as f32,
        Reduction::Sum => 1.0,
    };
    let own = weight(first);
    first.gradient.iter_mut().for_each(|value| *value *= own);
    for part in others {
        assert_eq!(part.gradient.len(), first.gradient.len(), "of one network");
        let weight = weight(part);
        for (sum, value) in first.gradient.iter_mut().zip(&part.gradient) {
            *sum += weight * value;
        }
    }
    first.rollouts = rollouts;
}

#[cfg(test)]
pub(crate) mod tests;
