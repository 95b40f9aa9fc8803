//! The learner: updates of the network from batches of rollouts, by IMPALA's actor-critic loss.
//!
//! Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
//! Architectures" (arXiv 1802.01561), section 4.2. [`Learner::update`] is the algorithm; V-trace is
//! in [`crate::vtrace`], the network in [`crate::model`].

pub mod average;
mod batch;
pub mod constraints;
mod loss;
mod metrics;
pub mod partners;
mod recorded;
pub mod reward;
mod settings;
pub mod values;

use self::{
    average::ParameterAverage,
    batch::Batch,
    constraints::Multipliers,
    loss::ActionLogs,
    metrics::StepTerms,
    partners::{Alone, Beginning, Partners, PartnersError},
    recorded::Weighting,
    reward::RewardStatistics,
    values::{ValueScaling, ValueStatistics},
};
pub use self::{
    metrics::{TaskErrors, UpdateMetrics},
    settings::{
        Clipping, LearnerSettings, Normalisation, Reduction, ReplaySettings, SchedulePosition,
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    model::{Device, DeviceFailure, Outputs, StepError},
    rollout::{Origin, Rollout},
    softmax,
    vtrace::{Targets, Trajectories},
};

/// Updates a network from rollouts.
pub struct Learner {
    device: Box<dyn Device>,
    settings: LearnerSettings,
    state: LearnerState,
    updates: u64,
    /// The learners that have the rest of each batch.
    partners: Box<dyn Partners>,
    // Memory that is kept between updates.
    batch: Batch,
    /// The steps of the burn-in.
    before: Batch,
    outputs: Outputs,
    /// `[T + 1, B, A]`: the logits among the outputs.
    logits: Vec<f32>,
    targets: Targets,
    d_logits: Vec<f32>,
    /// `[T + 1, B, A + M]`: the derivatives by logits and predictions.
    d_outputs: Vec<f32>,
    d_baseline: Vec<f32>,
    parameters: Vec<f32>,
}

/// What a learner has learnt beside parameters and moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LearnerState {
    /// The statistics that rewards are normalised with.
    pub rewards: RewardStatistics,
    /// The multipliers of the constraints.
    pub multipliers: Multipliers,
    /// The statistics that values are scaled with; of no task where they are not.
    pub values: ValueStatistics,
    /// The mean of the parameters over the last updates; of none where none is kept. It stays with
    /// the learner whose parameters these are.
    #[serde(skip)]
    pub average: ParameterAverage,
}

impl LearnerState {
    /// The state of a learner that has learnt nothing, for this many tasks.
    pub fn new(tasks: usize, settings: &LearnerSettings) -> Self {
        Self {
            rewards: RewardStatistics::new(tasks),
            multipliers: Multipliers::default(),
            values: ValueStatistics::new(match settings.value_scaling {
                ValueScaling::None => 0,
                ValueScaling::PerTask => tasks,
            }),
            average: ParameterAverage::default(),
        }
    }

    /// Whether it is for as many tasks as another one.
    pub(crate) fn has_tasks_of(&self, other: &Self) -> bool {
        self.rewards.tasks() == other.rewards.tasks() && self.values.tasks() == other.values.tasks()
    }
}

impl Learner {
    /// A learner of the network on `device`, whose parameters and moments are set already.
    /// `updates` and `state` are the number of updates and the state from before.
    pub fn new(
        device: Box<dyn Device>,
        settings: LearnerSettings,
        state: LearnerState,
        updates: u64,
    ) -> Self {
        Self {
            device,
            settings,
            state,
            updates,
            partners: Box::new(Alone),
            batch: Batch::default(),
            before: Batch::default(),
            outputs: Outputs::default(),
            logits: Vec::new(),
            targets: Targets::default(),
            d_logits: Vec::new(),
            d_outputs: Vec::new(),
            d_baseline: Vec::new(),
            parameters: Vec::new(),
        }
    }

    /// Makes the learner one of several, which make all updates together from now on.
    pub fn learn_with(&mut self, partners: Box<dyn Partners>) {
        self.partners = partners;
    }

    /// Number of updates, including those from before this learner.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The device that holds the network.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Copies the parameters of the policy that is judged and served, in the order of
    /// [`ParameterLayout`](crate::model::ParameterLayout), to `into`: their mean over updates if
    /// [`LearnerSettings::average_over`] asks for it and there was an update, and otherwise those
    /// of the network.
    ///
    /// # Errors
    ///
    /// Returns an error when the device fails.
    pub fn served_parameters(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        match self.state.average.parameters() {
            [] => self.device.parameters(into),
            mean => {
                into.clear();
                into.extend_from_slice(mean);
                Ok(())
            }
        }
    }

    /// What has been learnt beside the network.
    pub fn state(&self) -> &LearnerState {
        &self.state
    }

    /// Makes one update. `position` is where it is on the schedules of learning rate and entropy
    /// cost; a number, 0 at their start and 1 at their end, stands for the same position on both.
    ///
    /// Actions that were not allowed do not exist for it: ratios, policy gradient, entropy and
    /// divergence are those of the policies over the allowed ones, and the derivatives by masked
    /// logits are exactly 0.
    ///
    /// # Errors
    ///
    /// Returns [`UpdateError::Diverged`] when the loss or its gradient is not finite; the
    /// parameters are unchanged then. After [`UpdateError::Device`] the learner is of no more use.
    /// [`UpdateError::Partners`] is of one of several learners, whose others are gone or go on
    /// without it.
    ///
    /// # Panics
    ///
    /// Panics if a rollout does not fit the network, if its length is not
    /// [`LearnerSettings::burn_in`] + [`LearnerSettings::unroll`] + 1 steps, or if an action was
    /// taken that was not allowed.
    pub fn update(
        &mut self,
        rollouts: &[Rollout],
        position: impl Into<SchedulePosition>,
    ) -> Result<UpdateMetrics, UpdateError> {
        let mut position = position.into();
        let beginning = Beginning {
            updates: &mut self.updates,
            position: &mut position,
            device: &mut *self.device,
            state: &mut self.state,
        };
        let begun = self.partners.begin(beginning);
        begun.map_err(|error| self.failed(error))?;
        let settings = &self.settings;
        let (steps, batch_size) = (settings.unroll, rollouts.len());
        let count = steps * batch_size;
        let actions = self.device.shape().actions;
        let state = self.device.shape().state();

        // Logits and values of T + 1 steps.
        let (burn_in, merge) = (settings.burn_in, settings.merge_actions);
        assert!(
            rollouts
                .iter()
                .all(|rollout| rollout.len() == burn_in + steps + 1),
            "rollouts are not of {burn_in} + {steps} + 1 steps"
        );
        self.batch
            .gather(rollouts, burn_in..burn_in + steps + 1, merge);
        if burn_in > 0 {
            self.before.gather(rollouts, 0..burn_in, merge);
            let input = self.before.sequences(burn_in, batch_size, state);
            self.device.forward(&input, &mut self.outputs)?;
            self.batch.set_state(&self.outputs.h, &self.outputs.c);
        }
        let mut sums = self.batch.gather_rewards(rollouts, settings, &self.state);
        if !sums.is_empty() {
            let summed = self.partners.sum(&mut sums);
            summed.map_err(|error| self.failed(error))?;
        }
        self.batch.shape_rewards(&sums, settings, &mut self.state);
        let input = self.batch.sequences(steps + 1, batch_size, state);
        self.device.forward(&input, &mut self.outputs)?;
        // From here on, logits are those of the policy π = softmax(logits / T).
        let temperature = settings.policy_temperature();
        let width = self.device.shape().outputs();
        self.logits.clear();
        for row in self.outputs.logits.chunks_exact(width) {
            self.logits.extend_from_slice(&row[..actions]);
        }
        softmax::at_temperature(&mut self.logits, temperature);
        softmax::mask(&mut self.logits, &self.batch.allowed);

        // V(x) of each step, by the baseline of its task.
        let values = self.device.shape().values;
        let value_task = self.batch.value_tasks(values, steps);
        let scales = &self.state.values;
        let value: Vec<f32> = (value_task.iter().enumerate())
            .map(|(at, &task)| {
                scales
                    .scale(task)
                    .value(self.outputs.baseline[at * values + task])
            })
            .collect();

        // ln π(a|x) of the learner's policy, of all actions with the same effect as a, and
        // ln ρ = ln π(a|x) − ln μ(a|x) against the behaviour policy. Where μ is unknown ρ is 1: the
        // values are then the behaviour policy's.
        let (batch, outputs) = (&self.batch, &self.outputs);
        let of_action = |logits: &[f32], at: usize| {
            let effects = &batch.effects[at * actions..][..actions];
            let logits = &logits[at * actions..][..actions];
            softmax::log_probability_of_effect(logits, effects, batch.action[at])
        };
        let log_pi: Vec<f32> = (0..count).map(|at| of_action(&self.logits, at)).collect();
        let log_rho: Vec<f32> = (0..count)
            .map(|at| match batch.origin[at] {
                Origin::Observed => 0.0,
                _ => log_pi[at] - of_action(&batch.logits, at),
            })
            .collect();
        self.targets.compute(
            &Trajectories {
                batch_size,
                log_rho: &log_rho,
                reward: &batch.reward,
                discount: &batch.discount,
                lambda: &batch.lambda,
                known: &batch.known,
                value: &value,
            },
            &settings.clips,
        );
        // Of unit size for every task.
        if !scales.is_empty() {
            for (advantage, &task) in self.targets.advantage.iter_mut().zip(&value_task) {
                *advantage /= scales.scale(task).deviation as f32;
            }
        }
        let weights = Weighting::of(settings, position.learning_rate).advantage_weights(
            &self.targets.advantage,
            &batch.origin,
            &batch.known,
        );

        // The loss's derivatives by logits and baselines. Step T, whose value is a bootstrap, has
        // none.
        let scale = settings.loss.scale(count);
        let entropy_cost = settings.entropy_cost_at(position.entropy);
        self.d_logits.clear();
        self.d_logits
            .resize((steps + 1) * batch_size * actions, 0.0);
        self.d_baseline.clear();
        self.d_baseline
            .resize((steps + 1) * batch_size * values, 0.0);
        let mut metrics = UpdateMetrics::new(actions, self.state.rewards.tasks());
        let (mut logs, mut behaviour_logs) = (ActionLogs::default(), ActionLogs::default());
        for at in 0..count {
            let (action, weight) = (batch.action[at], weights[at]);
            let logits = &self.logits[at * actions..][..actions];
            let d_logits = &mut self.d_logits[at * actions..][..actions];
            let task = value_task[at];
            let mut error = value[at] - self.targets.value[at];
            if !scales.is_empty() {
                error /= scales.scale(task).deviation as f32;
            }
            let effects = &batch.effects[at * actions..][..actions];
            logs.set(logits, effects);
            let entropy =
                logs.policy_gradient(action, weight * scale, entropy_cost * scale, d_logits);
            if settings.pessimism > 0.0 && batch.origin[at] == Origin::Recorded {
                behaviour_logs.set(&batch.logits[at * actions..][..actions], effects);
                let cost = settings.pessimism * scale;
                logs.divergence_gradient(&behaviour_logs, cost, d_logits);
            }
            self.d_baseline[at * values + task] = settings.baseline_cost * error * scale;
            metrics.add(&StepTerms {
                weighted_log_probability: log_pi[at] * weight,
                error,
                entropy,
                log_rho: log_rho[at],
                action,
            });
        }
        // Each prediction's error, of which step T has none either.
        self.d_outputs.clear();
        let predictions = width - actions;
        let cost = settings.prediction_cost * scale / predictions.max(1) as f32;
        for (at, row) in outputs.logits.chunks_exact(width).enumerate() {
            // The network's own logits are T times those of the policy.
            let own = self.d_logits[at * actions..][..actions].iter();
            self.d_outputs
                .extend(own.map(|derivative| derivative / temperature));
            let truth = &batch.privileged[at * predictions..][..predictions];
            for (prediction, truth) in row[actions..].iter().zip(truth) {
                let error = if at < count { prediction - truth } else { 0.0 };
                self.d_outputs.push(cost * error);
                metrics.prediction_loss += 0.5 * f64::from(error).powi(2) / predictions as f64;
            }
        }
        metrics.add_value_errors(batch, &value, batch_size);
        metrics.constraints = self.state.multipliers.points(&settings.constraints);
        metrics.divide(count);
        if !metrics.is_finite() {
            return Err(self.diverged("the loss").into());
        }

        // The gradient, and the optimiser's step along it.
        self.device
            .backward(&input, &self.d_outputs, &self.d_baseline)?;
        let optimiser = settings.optimiser_at(position.learning_rate, self.updates);
        let (device, loss) = (&mut *self.device, settings.loss);
        let stepped = self.partners.step(device, batch_size, loss, &optimiser);
        let norm = stepped.map_err(|error| self.failed(error))?;
        self.scale_values(&value_task)?;
        metrics.gradient_norm = f64::from(norm);
        metrics.learning_rate = f64::from(optimiser.learning_rate);
        metrics.lag = rollouts
            .iter()
            .map(|rollout| self.updates.saturating_sub(rollout.version) as f64)
            .sum::<f64>()
            / batch_size as f64;
        self.updates += 1;
        if self.settings.average_over > 0 {
            self.device.parameters(&mut self.parameters)?;
            let average = &mut self.state.average;
            average.learn(&self.parameters, self.updates, self.settings.average_over);
        }
        Ok(metrics)
    }

    fn diverged(&self, what: &'static str) -> Diverged {
        Diverged {
            what,
            updates: self.updates,
        }
    }

    fn failed(&self, error: PartnersError) -> UpdateError {
        match error {
            PartnersError::Step(StepError::Device(failure)) => UpdateError::Device(failure),
            PartnersError::Step(StepError::Gradient { .. }) => self.diverged("the gradient").into(),
            error => UpdateError::Partners(error),
        }
    }

    /// Has the scales of values learn the targets of the update, and changes the baselines'
    /// parameters so that values stay as they are.
    fn scale_values(&mut self, value_task: &[usize]) -> Result<(), DeviceFailure> {
        if self.state.values.is_empty() {
            return Ok(());
        }
        let before = self.state.values.clone();
        let targets = value_task.iter().zip(&self.targets.value);
        let known = targets.zip(&self.batch.known).filter(|(_, known)| **known);
        let returns = known.map(|((&task, &target), _)| (task, target));
        self.state.values.learn(returns, self.settings.value_memory);
        let mut parameters = Vec::new();
        self.device.parameters(&mut parameters)?;
        let shape = self.device.shape();
        self.state.values.preserve(&before, shape, &mut parameters);
        self.device.set_parameters(&parameters)
    }
}

/// Why an update was not made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// A number that the network depends on was not finite.
    #[error(transparent)]
    Diverged(#[from] Diverged),
    /// The device that holds the network failed.
    #[error(transparent)]
    Device(#[from] DeviceFailure),
    /// The update cannot be made with the other learners.
    #[error(transparent)]
    Partners(PartnersError),
}

/// A number that the network depends on was not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "training diverged after {updates} updates: {what} is not a finite number; lower \
     learner.learning_rate or learner.gradient_clip, or normalise rewards \
     (learner.reward_normalisation)"
)]
pub struct Diverged {
    /// What is not finite, such as `the loss`.
    pub what: &'static str,
    /// Number of updates before the one that failed.
    pub updates: u64,
}

#[cfg(test)]
mod tests;
