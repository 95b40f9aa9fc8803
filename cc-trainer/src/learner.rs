//! Learns: one update of the network from a batch of rollouts.

pub mod reward;

use serde::{Deserialize, Serialize};

use crate::{
    actor::keep,
    environment::End,
    model::{Device, Outputs, RmsProp, Sequences},
    rollout::{Origin, Rollout},
    vtrace::{Clips, Targets, Trajectories},
};
use reward::{Clipping, Normalisation, Rewards};

/// How to learn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Rollouts of an update, B.
    pub batch: usize,
    /// Actions of a rollout, T.
    pub unroll: usize,
    /// γ.
    pub discount: f32,
    /// Step size at the start; it falls linearly to 0.
    pub learning_rate: f32,
    /// Environment steps after which the step size is 0 and the entropy's weight at its end; by default those of the run.
    pub decay_steps: Option<u64>,
    /// Weight of the policy's entropy at the start.
    pub entropy_cost: f32,
    /// Weight of the policy's entropy at the end, reached linearly; by default that of the start.
    pub entropy_cost_end: Option<f32>,
    /// Weight of the baseline's squared error.
    pub baseline_cost: f32,
    /// Whether the loss is the mean over the steps of a batch or their sum. Step sizes for one do not suit the other.
    pub loss: Reduction,
    /// What large rewards are cut down to.
    pub reward_clipping: Clipping,
    /// What rewards are measured against, after clipping.
    pub reward_normalisation: Normalisation,
    /// How fast the statistics for that forget: a reward's weight in them, once there are many.
    pub reward_memory: f64,
    /// An episode that was cut off by the clock teaches nothing at its last step, rather than that nothing follows.
    pub end_of_episode_bootstrap: bool,
    /// The baseline sees what the environment has for it alone.
    pub privileged: bool,
    /// Share of the run, from its start, in which recorded actions are cloned, whatever they led to, while the baseline learns.
    pub cloning: f32,
    /// Weight of −ln π(a|x) of recorded actions after that: keeps the policy near the data.
    pub anchor: f32,
    /// Of recorded actions without probabilities: their advantages over this, in units of the advantages' root mean square,
    /// are the logarithms of their weights. The lower, the more the best of them are preferred.
    pub temperature: f32,
    /// V-trace's.
    pub clips: Clips,
    /// Norm that gradients are scaled down to; 0 leaves them.
    pub gradient_clip: f32,
    /// RMSprop: decay of the mean square.
    pub decay: f32,
    /// RMSprop: added to the root of the mean square.
    pub epsilon: f32,
    /// RMSprop: momentum.
    pub momentum: f32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch: 32,
            unroll: 80,
            discount: 0.99,
            learning_rate: 1e-3,
            decay_steps: None,
            entropy_cost: 0.01,
            entropy_cost_end: None,
            baseline_cost: 0.5,
            loss: Reduction::Mean,
            reward_clipping: Clipping::None,
            reward_normalisation: Normalisation::None,
            reward_memory: 1e-4,
            end_of_episode_bootstrap: true,
            privileged: false,
            cloning: 0.0,
            anchor: 0.0,
            temperature: 1.0,
            clips: Clips::default(),
            gradient_clip: 1.0,
            decay: 0.99,
            epsilon: 1e-3,
            momentum: 0.0,
        }
    }
}

/// How the losses of a batch's steps become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// Their mean: step sizes do not depend on T and B.
    #[default]
    Mean,
    /// Their sum, as in the paper.
    Sum,
}

/// What an update did. Means are over the batch's steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// −mean ln π(a|x)·advantage.
    pub policy_loss: f64,
    /// Mean ½(v − V)².
    pub baseline_loss: f64,
    /// Mean ½(r + γ V' − V)²: must not grow without bound.
    pub td_loss: f64,
    /// Mean ½(G − V)², G the discounted rewards to the end of the rollout and V there: what the baseline says beside what came.
    pub mc_loss: f64,
    /// Mean entropy of the policy, nats.
    pub entropy: f64,
    /// Mean Kullback-Leibler divergence of the policy that acted from the one that learns, as its actions show it.
    pub divergence: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Step size.
    pub learning_rate: f64,
    /// Mean updates between the policy that acted and the one that learns.
    pub lag: f64,
    /// How often each action was taken, as a share.
    pub actions: Vec<f64>,
}

/// Improves a network.
pub struct Learner {
    device: Box<dyn Device>,
    settings: Settings,
    rewards: Rewards,
    updates: u64,
    batch: Batch,
    outputs: Outputs,
    targets: Targets,
    d_logits: Vec<f32>,
    d_baseline: Vec<f32>,
}

impl Learner {
    /// A learner of the network on a device, with its parameters set. `updates` were done before, and `rewards` is what
    /// is known about the rewards of each task.
    pub fn new(
        device: Box<dyn Device>,
        settings: Settings,
        rewards: Rewards,
        updates: u64,
    ) -> Self {
        Self {
            device,
            settings,
            rewards,
            updates,
            batch: Batch::default(),
            outputs: Outputs::default(),
            targets: Targets::default(),
            d_logits: Vec::new(),
            d_baseline: Vec::new(),
        }
    }

    /// Updates done, those before this learner included.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Where the network is.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// What is known about the rewards.
    pub fn rewards(&self) -> &Rewards {
        &self.rewards
    }

    /// One update, `done` of the way from the start of the schedules (0) to their end (1).
    ///
    /// # Errors
    ///
    /// When the losses are not finite; the parameters are then as they were.
    ///
    /// # Panics
    ///
    /// When the rollouts are not [`Settings::batch`] of [`Settings::unroll`] + 1 steps of a fitting network.
    pub fn update(&mut self, rollouts: &[Rollout], done: f64) -> Result<Update, Diverged> {
        let settings = &self.settings;
        let (steps, lanes) = (settings.unroll, rollouts.len());
        let actions = self.device.shape().actions;
        let state = self.device.shape().lstm.unwrap_or(0);
        let left = 1.0 - done.clamp(0.0, 1.0) as f32;
        let entropy_end = settings.entropy_cost_end.unwrap_or(settings.entropy_cost);
        let entropy_cost = entropy_end + (settings.entropy_cost - entropy_end) * left;

        // Time-major arrays of T + 1 steps.
        self.batch.gather(rollouts, steps + 1);
        self.batch.rewards(rollouts, settings, &mut self.rewards);
        let input = self.batch.sequences(steps + 1, lanes, state);
        self.device.forward(&input, &mut self.outputs);

        // ln π(a|x) of the policy that learns, ln μ(a|x) of the one that acted.
        let taken = steps * lanes;
        let log_probability = |logits: &[f32], at: usize| {
            log_softmax(&logits[at * actions..][..actions], self.batch.action[at])
        };
        let learnt: Vec<f32> = (0..taken)
            .map(|at| log_probability(&self.outputs.logits, at))
            .collect();
        // Of those whose μ nobody knows, the values are those of whoever acted.
        let log_rho: Vec<f32> = (0..taken)
            .map(|at| match self.batch.origin[at] {
                Origin::Observed => 0.0,
                _ => learnt[at] - log_probability(&self.batch.logits, at),
            })
            .collect();
        self.targets.compute(
            &Trajectories {
                lanes,
                log_rho: &log_rho,
                reward: &self.batch.earned,
                discount: &self.batch.discount,
                known: &self.batch.known,
                value: &self.outputs.baseline,
            },
            &settings.clips,
        );

        let pulls = self.pulls(done < f64::from(settings.cloning));

        // The loss and its derivatives. The last step, there for its value only, has none.
        let scale = match settings.loss {
            Reduction::Mean => 1.0 / taken as f32,
            Reduction::Sum => 1.0,
        };
        self.d_logits.clear();
        self.d_logits.resize(taken * actions, 0.0);
        self.d_baseline.clear();
        let mut update = Update {
            actions: vec![0.0; actions],
            ..Update::default()
        };
        for at in 0..taken {
            let pull = pulls[at];
            let error = self.outputs.baseline[at] - self.targets.value[at];
            let entropy = policy_gradient(
                &self.outputs.logits[at * actions..][..actions],
                self.batch.action[at],
                pull * scale,
                entropy_cost * scale,
                &mut self.d_logits[at * actions..][..actions],
            );
            self.d_baseline.push(settings.baseline_cost * error * scale);
            update.policy_loss -= f64::from(learnt[at] * pull);
            update.baseline_loss += 0.5 * f64::from(error).powi(2);
            update.entropy += f64::from(entropy);
            update.divergence -= f64::from(log_rho[at]);
            update.actions[self.batch.action[at]] += 1.0;
        }
        self.d_logits.resize((steps + 1) * lanes * actions, 0.0);
        self.d_baseline.resize((steps + 1) * lanes, 0.0);
        (update.td_loss, update.mc_loss) = self.errors(lanes);
        for sum in [
            &mut update.policy_loss,
            &mut update.baseline_loss,
            &mut update.td_loss,
            &mut update.mc_loss,
            &mut update.entropy,
            &mut update.divergence,
        ]
        .into_iter()
        .chain(&mut update.actions)
        {
            *sum /= taken as f64;
        }
        if !(update.policy_loss + update.baseline_loss + update.entropy).is_finite() {
            return Err(Diverged {
                updates: self.updates,
            });
        }

        self.device
            .backward(&input, &self.d_logits, &self.d_baseline);
        let optimiser = RmsProp {
            learning_rate: settings.learning_rate * left,
            decay: settings.decay,
            epsilon: settings.epsilon,
            momentum: settings.momentum,
            clip: settings.gradient_clip,
        };
        update.gradient_norm = f64::from(self.device.step(&optimiser));
        update.learning_rate = f64::from(optimiser.learning_rate);
        update.lag = rollouts
            .iter()
            .map(|rollout| self.updates.saturating_sub(rollout.version) as f64)
            .sum::<f64>()
            / lanes as f64;
        self.updates += 1;
        Ok(update)
    }

    /// How strongly each step's action is made likelier: −pull · ln π(a|x) is the policy's loss. V-trace's advantage where it is known
    /// what the action was chosen with. Of others, a weight that rises with the advantage and is never negative, by which the
    /// policy comes to do what was best of what was done, and nothing else (advantage-weighted regression: X. Peng et al., arXiv
    /// 1910.00177). While `cloning`, 1 for all that is recorded.
    fn pulls(&self, cloning: bool) -> Vec<f32> {
        /// Largest weight, so that one step does not rule a batch.
        const MOST: f32 = 20.0;
        let advantage = &self.targets.advantage;
        let origin = &self.batch.origin[..advantage.len()];
        let observed = || {
            let steps = origin.iter().zip(&self.batch.known).zip(advantage);
            steps.filter(|((origin, known), _)| **origin == Origin::Observed && **known)
        };
        let squares: f32 = observed().map(|(_, advantage)| advantage * advantage).sum();
        let unit = (squares / observed().count().max(1) as f32)
            .sqrt()
            .max(1e-6);
        let weight = |advantage: f32| {
            let log = advantage / (unit * self.settings.temperature);
            log.min(MOST.ln()).exp()
        };
        let steps = origin.iter().zip(&self.batch.known).zip(advantage);
        steps
            .map(|((origin, known), &advantage)| match origin {
                Origin::Actor => advantage,
                _ if cloning => 1.0,
                Origin::Recorded => advantage + self.settings.anchor,
                Origin::Observed if *known => weight(advantage) + self.settings.anchor,
                Origin::Observed => self.settings.anchor,
            })
            .collect()
    }

    /// Sums of ½(r + γ V' − V)² and of ½(G − V)² over the steps of which it is known what they led to.
    fn errors(&self, lanes: usize) -> (f64, f64) {
        let Batch {
            earned,
            discount,
            known,
            ..
        } = &self.batch;
        let value = &self.outputs.baseline;
        let mut after = value.clone();
        let (mut differences, mut returns) = (0.0, 0.0);
        for at in (0..earned.len()).rev().filter(|&at| known[at]) {
            after[at] = earned[at] + discount[at] * after[at + lanes];
            let difference = earned[at] + discount[at] * value[at + lanes] - value[at];
            differences += 0.5 * f64::from(difference).powi(2);
            returns += 0.5 * f64::from(after[at] - value[at]).powi(2);
        }
        (differences, returns)
    }
}

/// A loss was not a finite number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "training diverged after {updates} updates: the loss is not a finite number; lower learner.learning_rate or \
     learner.gradient_clip, or normalise rewards (learner.reward_normalisation)"
)]
pub struct Diverged {
    /// Updates before it.
    pub updates: u64,
}

/// Rollouts side by side, time-major.
#[derive(Debug, Default)]
struct Batch {
    observation: Vec<f32>,
    observed_reward: Vec<f32>,
    keep: Vec<f32>,
    privileged: Vec<f32>,
    h: Vec<f32>,
    c: Vec<f32>,
    action: Vec<usize>,
    logits: Vec<f32>,
    origin: Vec<Origin>,
    /// `[T, B]`, of the step's action: as the learner counts it, γ unless it ended the episode, and whether it is known.
    earned: Vec<f32>,
    discount: Vec<f32>,
    known: Vec<bool>,
}

impl Batch {
    /// Fills all but the rewards.
    fn gather(&mut self, rollouts: &[Rollout], steps: usize) {
        assert!(
            rollouts.iter().all(|rollout| rollout.len() == steps),
            "rollouts are not of {steps} steps"
        );
        for array in [
            &mut self.observation,
            &mut self.observed_reward,
            &mut self.keep,
            &mut self.privileged,
            &mut self.h,
            &mut self.c,
            &mut self.logits,
        ] {
            array.clear();
        }
        self.action.clear();
        self.origin.clear();
        fn row(array: &[f32], step: usize, steps: usize) -> &[f32] {
            let width = array.len() / steps;
            &array[step * width..][..width]
        }
        for step in 0..steps {
            for rollout in rollouts {
                self.observation
                    .extend_from_slice(row(&rollout.observation, step, steps));
                self.privileged
                    .extend_from_slice(row(&rollout.privileged, step, steps));
                self.logits
                    .extend_from_slice(row(&rollout.logits, step, steps));
                self.observed_reward.push(rollout.observed_reward[step]);
                self.keep.push(keep(rollout.first[step]));
                self.action.push(rollout.action[step] as usize);
                self.origin.push(rollout.origin[step]);
            }
        }
        for rollout in rollouts {
            self.h.extend_from_slice(&rollout.h);
            self.c.extend_from_slice(&rollout.c);
        }
    }

    /// Fills what the actions earned. What action t earned stands at step t + 1.
    fn rewards(&mut self, rollouts: &[Rollout], settings: &Settings, rewards: &mut Rewards) {
        self.earned.clear();
        self.discount.clear();
        self.known.clear();
        let mut tasks = Vec::with_capacity(settings.unroll * rollouts.len());
        for step in 1..=settings.unroll {
            for rollout in rollouts {
                let first = rollout.first[step];
                self.earned
                    .push(settings.reward_clipping.apply(rollout.reward[step]));
                tasks.push(rollout.task[step] as usize);
                self.discount.push(settings.discount * keep(first));
                self.known
                    .push(!(settings.end_of_episode_bootstrap && first == Some(End::Truncated)));
            }
        }
        rewards.normalise(&mut self.earned, &tasks, settings);
    }

    fn sequences(&self, steps: usize, lanes: usize, state: usize) -> Sequences<'_> {
        debug_assert_eq!(self.h.len(), lanes * state);
        Sequences {
            steps,
            lanes,
            observation: &self.observation,
            reward: &self.observed_reward,
            keep: &self.keep,
            privileged: &self.privileged,
            h: &self.h,
            c: &self.c,
        }
    }
}

/// ln of the softmax's share of an action.
fn log_softmax(logits: &[f32], action: usize) -> f32 {
    logits[action] - log_sum_exp(logits)
}

fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    max + logits
        .iter()
        .map(|logit| (logit - max).exp())
        .sum::<f32>()
        .ln()
}

/// The derivatives of −advantage·ln π(action) − cost·H(π) by the logits; gives the entropy H, nats.
fn policy_gradient(
    logits: &[f32],
    action: usize,
    advantage: f32,
    cost: f32,
    into: &mut [f32],
) -> f32 {
    let norm = log_sum_exp(logits);
    let entropy: f32 = logits
        .iter()
        .map(|logit| -(logit - norm).exp() * (logit - norm))
        .sum();
    for ((at, logit), into) in logits.iter().enumerate().zip(into) {
        let log = logit - norm;
        let share = log.exp();
        let taken = f32::from(u8::from(at == action));
        *into = advantage * (share - taken) + cost * share * (log + entropy);
    }
    entropy
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use super::*;
    use crate::model::{Activation, Shape};

    /// A network whose outputs are given, and which shows the derivatives that it gets.
    struct Given {
        shape: Shape,
        outputs: Outputs,
        derivatives: Arc<Mutex<Derivatives>>,
    }

    /// By logits and by baselines, and the step taken along them.
    #[derive(Clone, Default)]
    struct Derivatives {
        logits: Vec<f32>,
        baseline: Vec<f32>,
        step: Option<RmsProp>,
    }

    impl Device for Given {
        fn shape(&self) -> &Shape {
            &self.shape
        }

        fn set_parameters(&mut self, _: &[f32]) {}

        fn parameters(&self, _: &mut Vec<f32>) {}

        fn moments(&self, _: &mut Vec<f32>) {}

        fn set_moments(&mut self, _: &[f32]) {}

        fn forward(&mut self, input: &Sequences<'_>, output: &mut Outputs) {
            assert_eq!(input.keep.len(), input.steps * input.lanes);
            output.clone_from(&self.outputs);
        }

        fn backward(&mut self, _: &Sequences<'_>, d_logits: &[f32], d_baseline: &[f32]) {
            let mut derivatives = self.derivatives.lock().expect("one thread");
            derivatives.logits = d_logits.to_vec();
            derivatives.baseline = d_baseline.to_vec();
        }

        fn gradient(&self, _: &mut Vec<f32>) {}

        fn step(&mut self, optimiser: &RmsProp) -> f32 {
            self.derivatives.lock().expect("one thread").step = Some(*optimiser);
            0.0
        }
    }

    const ACTIONS: usize = 3;

    /// A batch, and what the network makes of it.
    #[derive(Clone, Debug)]
    struct Case {
        steps: usize,
        rollouts: Vec<Rollout>,
        logits: Vec<f32>,
        baseline: Vec<f32>,
        settings: Settings,
    }

    impl Case {
        fn lanes(&self) -> usize {
            self.rollouts.len()
        }

        /// The learner's derivatives by logits and baseline, and what it says about the update.
        fn derivatives(&self, done: f64) -> (Vec<f32>, Vec<f32>, RmsProp, Update) {
            let shown = Arc::default();
            let device = Given {
                shape: Shape {
                    observation: 1,
                    hidden: vec![1],
                    activation: Activation::Relu,
                    lstm: None,
                    actions: ACTIONS,
                    privileged: 0,
                },
                outputs: Outputs {
                    logits: self.logits.clone(),
                    baseline: self.baseline.clone(),
                    ..Outputs::default()
                },
                derivatives: Arc::clone(&shown),
            };
            let mut learner =
                Learner::new(Box::new(device), self.settings.clone(), Rewards::new(1), 7);
            let update = learner.update(&self.rollouts, done).expect("finite losses");
            assert_eq!(learner.updates(), 8);
            let shown: &Mutex<Derivatives> = &shown;
            let shown = shown.lock().expect("one thread").clone();
            (
                shown.logits,
                shown.baseline,
                shown.step.expect("a step"),
                update,
            )
        }

        /// The loss as it is written down, in f64 and by itself: targets from the definition at `at`, held fast; policy,
        /// entropy and error from `logits` and `baseline`.
        fn loss(&self, logits: &[f64], baseline: &[f64], entropy_cost: f64) -> f64 {
            let lanes = self.lanes();
            let probability = |logits: &[f64], action: usize| {
                logits[action].exp() / logits.iter().map(|logit| logit.exp()).sum::<f64>()
            };
            let mut loss = 0.0;
            for (lane, rollout) in self.rollouts.iter().enumerate() {
                let value = |step: usize| f64::from(self.baseline[step * lanes + lane]);
                let row = |step: usize| (step * lanes + lane) * ACTIONS;
                let weight = |step: usize| {
                    let action = rollout.action[step] as usize;
                    let wide = |array: &[f32], at: usize| -> Vec<f64> {
                        array[at..][..ACTIONS]
                            .iter()
                            .map(|&logit| f64::from(logit))
                            .collect()
                    };
                    probability(&wide(&self.logits, row(step)), action)
                        / probability(&wide(&rollout.logits, step * ACTIONS), action)
                };
                let discount = |step: usize| match rollout.first[step + 1] {
                    None => f64::from(self.settings.discount),
                    Some(_) => 0.0,
                };
                let known = |step: usize| {
                    !(self.settings.end_of_episode_bootstrap
                        && rollout.first[step + 1] == Some(End::Truncated))
                };
                let reward = |step: usize| f64::from(rollout.reward[step + 1]);
                let difference = |step: usize| match known(step) {
                    true => {
                        weight(step).min(1.0)
                            * (reward(step) + discount(step) * value(step + 1) - value(step))
                    }
                    false => 0.0,
                };
                let target = |step: usize| -> f64 {
                    (step..self.steps).fold(value(step), |sum, t| {
                        let product: f64 = (step..t)
                            .map(|i| discount(i) * weight(i).min(1.0))
                            .product();
                        sum + product * difference(t)
                    })
                };
                for step in 0..self.steps {
                    let logits = &logits[row(step)..][..ACTIONS];
                    let next = match step + 1 < self.steps {
                        true => target(step + 1),
                        false => value(step + 1),
                    };
                    let advantage = match known(step) {
                        true => {
                            weight(step).min(1.0)
                                * (reward(step) + discount(step) * next - value(step))
                        }
                        false => 0.0,
                    };
                    let shares = (0..ACTIONS).map(|action| probability(logits, action));
                    let entropy: f64 = shares.map(|share| -share * share.ln()).sum();
                    let action = rollout.action[step] as usize;
                    let error = target(step) - baseline[step * lanes + lane];
                    loss += -probability(logits, action).ln() * advantage
                        + f64::from(self.settings.baseline_cost) * 0.5 * error * error
                        - entropy_cost * entropy;
                }
            }
            match self.settings.loss {
                Reduction::Sum => loss,
                Reduction::Mean => loss / (self.steps * lanes) as f64,
            }
        }
    }

    fn cases() -> impl Strategy<Value = Case> {
        let settings = (any::<bool>(), any::<bool>(), 0.0..0.1f32).prop_map(
            |(mean, end_of_episode_bootstrap, entropy_cost)| Settings {
                loss: if mean {
                    Reduction::Mean
                } else {
                    Reduction::Sum
                },
                end_of_episode_bootstrap,
                entropy_cost,
                discount: 0.9,
                ..Settings::default()
            },
        );
        (1..6usize, 1..4usize, settings).prop_flat_map(|(steps, lanes, settings)| {
            let floats = |length| proptest::collection::vec(-1.0..1.0f32, length);
            let rollout = (
                floats((steps + 1) * ACTIONS),
                floats(steps + 1),
                proptest::collection::vec((0..ACTIONS as u32, 0..6u8), steps + 1),
            )
                .prop_map(move |(logits, reward, rest)| Rollout {
                    observation: vec![0.0; steps + 1],
                    observed_reward: vec![0.0; steps + 1],
                    first: rest
                        .iter()
                        .map(|&(_, kind)| match kind {
                            0 => Some(End::Terminated),
                            1 => Some(End::Truncated),
                            _ => None,
                        })
                        .collect(),
                    action: rest.iter().map(|&(action, _)| action).collect(),
                    task: vec![0; steps + 1],
                    origin: vec![Origin::Actor; steps + 1],
                    logits,
                    reward,
                    version: 4,
                    ..Rollout::default()
                });
            (
                proptest::collection::vec(rollout, lanes),
                floats((steps + 1) * lanes * ACTIONS),
                floats((steps + 1) * lanes),
            )
                .prop_map(move |(rollouts, logits, baseline)| Case {
                    steps,
                    rollouts,
                    logits,
                    baseline,
                    settings: Settings {
                        batch: lanes,
                        unroll: steps,
                        ..settings.clone()
                    },
                })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn derivatives_are_those_of_the_loss(case in cases()) {
            let (d_logits, d_baseline, _, _) = case.derivatives(0.0);
            let wide = |array: &[f32]| array.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
            let (logits, baseline) = (wide(&case.logits), wide(&case.baseline));
            let cost = f64::from(case.settings.entropy_cost);
            const STEP: f64 = 1e-5;
            for at in 0..logits.len() {
                let loss = |by: f64| {
                    let mut moved = logits.clone();
                    moved[at] += by;
                    case.loss(&moved, &baseline, cost)
                };
                let expected = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
                prop_assert!((f64::from(d_logits[at]) - expected).abs() < 1e-4,
                    "by logit {at}: {} but {expected}", d_logits[at]);
            }
            for at in 0..baseline.len() {
                let loss = |by: f64| {
                    let mut moved = baseline.clone();
                    moved[at] += by;
                    case.loss(&logits, &moved, cost)
                };
                let expected = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
                prop_assert!((f64::from(d_baseline[at]) - expected).abs() < 1e-4,
                    "by baseline {at}: {} but {expected}", d_baseline[at]);
            }
        }
    }

    /// Two rollouts of two steps whose policy has not changed.
    fn simple() -> Case {
        let rollout = Rollout {
            observation: vec![0.0; 3],
            observed_reward: vec![0.0; 3],
            first: vec![None; 3],
            action: vec![0, 1, 2],
            logits: vec![0.0; 9],
            reward: vec![9.0, 1.0, 2.0],
            task: vec![0; 3],
            origin: vec![Origin::Actor; 3],
            version: 4,
            ..Rollout::default()
        };
        Case {
            steps: 2,
            rollouts: vec![rollout.clone(), rollout],
            logits: vec![0.0; 18],
            baseline: vec![0.0; 6],
            settings: Settings {
                batch: 2,
                unroll: 2,
                learning_rate: 0.5,
                entropy_cost: 0.4,
                entropy_cost_end: Some(0.0),
                discount: 0.5,
                ..Settings::default()
            },
        }
    }

    #[test]
    fn an_update_says_what_it_did() {
        let (_, d_baseline, optimiser, update) = simple().derivatives(0.75);
        // Targets 1 + 2/2 and 2; of four steps the mean of the errors' halved squares.
        assert_eq!(update.baseline_loss, 0.5 * (4.0 + 4.0) / 2.0);
        assert_eq!(d_baseline, [-0.25, -0.25, -0.25, -0.25, 0.0, 0.0]);
        assert!((update.entropy - 3.0f64.ln()).abs() < 1e-6);
        assert!((update.policy_loss - 3.0f64.ln() * 2.0).abs() < 1e-6);
        assert_eq!((update.lag, update.divergence), (3.0, 0.0));
        // One step ahead 1 and 2 were missed, to the end 1 + 2/2 and 2.
        assert_eq!((update.td_loss, update.mc_loss), (1.25, 2.0));
        assert_eq!(update.actions, [0.5, 0.5, 0.0]);
        assert_eq!(
            (optimiser.learning_rate, update.learning_rate),
            (0.125, 0.125)
        );
    }

    #[test]
    fn the_weight_of_entropy_follows_its_schedule() {
        // At a uniform policy entropy has no slope; beside it, the slope shrinks with the weight.
        let mut case = simple();
        case.logits[0] = 1.0;
        for rollout in &mut case.rollouts {
            rollout.logits[0] = 1.0;
            rollout.reward = vec![0.0; 3];
        }
        let slope = |done| case.derivatives(done).0[0];
        assert!(slope(0.0) > 0.0);
        assert!((slope(0.5) / slope(0.0) - 0.5).abs() < 1e-5);
        assert_eq!(slope(1.0), 0.0);
    }

    /// How far each step's action of the first rollout is pulled up, from a uniform policy.
    fn pulls(case: &Case, done: f64) -> [f32; 2] {
        let (d_logits, ..) = case.derivatives(done);
        // Of four steps, and −(1 − 1/3) of the action's own.
        [(0, 0), (1, 1)].map(|(step, action)| d_logits[step * 6 + action] * 4.0 / (1.0 / 3.0 - 1.0))
    }

    #[test]
    fn recorded_actions_are_cloned_at_first() {
        let mut case = simple();
        case.settings.entropy_cost = 0.0;
        case.settings.cloning = 0.25;
        case.settings.anchor = 0.5;
        for origin in [Origin::Recorded, Origin::Observed] {
            for rollout in &mut case.rollouts {
                rollout.origin = vec![origin; 3];
                rollout.reward[2] = -2.0;
            }
            for pull in pulls(&case, 0.2) {
                assert!((pull - 1.0).abs() < 1e-5, "{origin:?}: {pull}");
            }
        }
        // Those of the actor learn as ever.
        for rollout in &mut case.rollouts {
            rollout.origin = vec![Origin::Actor; 3];
        }
        let [_, second] = pulls(&case, 0.2);
        assert!((second + 2.0).abs() < 1e-5, "{second}");
    }

    #[test]
    fn what_was_observed_is_never_pushed_away() {
        let mut case = simple();
        case.settings.entropy_cost = 0.0;
        for rollout in &mut case.rollouts {
            rollout.origin = vec![Origin::Observed; 3];
            // Nobody knows these, so nothing may depend on them.
            rollout.logits = vec![5.0, -5.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0];
            rollout.reward[2] = -2.0;
        }
        // Advantages 1 − 2/2 and −2, of root mean square √2.
        let expected = [1.0, (-(2.0_f32.sqrt())).exp()];
        for (pull, expected) in pulls(&case, 0.5).iter().zip(expected) {
            assert!((pull - expected).abs() < 1e-4, "{pull} but {expected}");
        }
        case.settings.temperature = 0.1;
        case.settings.anchor = 0.25;
        let [first, second] = pulls(&case, 0.5);
        assert!(
            (first - 1.25).abs() < 1e-4 && (second - 0.25).abs() < 1e-3,
            "{first} {second}"
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let mut case = simple();
        case.baseline[1] = f32::NAN;
        let device = Given {
            shape: Shape {
                observation: 1,
                hidden: vec![1],
                activation: Activation::Relu,
                lstm: None,
                actions: ACTIONS,
                privileged: 0,
            },
            outputs: Outputs {
                logits: case.logits.clone(),
                baseline: case.baseline.clone(),
                ..Outputs::default()
            },
            derivatives: Arc::default(),
        };
        let derivatives = Arc::clone(&device.derivatives);
        let mut learner = Learner::new(Box::new(device), case.settings.clone(), Rewards::new(1), 7);
        assert_eq!(
            learner.update(&case.rollouts, 0.0),
            Err(Diverged { updates: 7 })
        );
        assert!(derivatives.lock().expect("one thread").step.is_none());
    }
}
