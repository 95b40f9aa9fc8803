//! Value scaling per task: PopArt (H. van Hasselt et al., arXiv 1602.07714) with one baseline for
//! each task, as in PopArt-IMPALA (M. Hessel et al., "Multi-task Deep Reinforcement Learning with
//! PopArt", AAAI 2019, arXiv 1809.04474).
//!
//! Returns differ between links by orders of magnitude: an outage costs a hundred times what a
//! steady link does. Without scaling the squared errors of a few tasks rule the gradient of the
//! layers that all of them share. Here every task k has a baseline n of its own, whose targets are
//! normalised by the running mean μ and deviation σ of its returns: V = σ n + μ. Advantages are
//! divided by σ, so that every task moves the policy alike.
//!
//! When μ and σ change, the weights w and the bias b of the task's baseline change with them so
//! that V stays as it was: w' = w σ/σ', b' = (σ b + μ − μ')/σ'. The statistics learn the targets of
//! an update *after* the step that it takes; the paper has them learn before it, which delays them
//! by one update here.

use serde::{Deserialize, Serialize};

use crate::model::{Layer, ParameterLayout, Shape};

/// Bounds of σ: a task whose returns hardly differ must not be magnified without limit.
const SIGMA: [f64; 2] = [1e-4, 1e6];

/// How the baselines of several tasks are scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueScaling {
    /// One baseline for all tasks, as it is.
    #[default]
    None,
    /// A baseline for each task, normalised by the statistics of its returns.
    PerTask,
}

/// Mean and deviation of returns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// μ, the mean of the returns.
    pub mean: f64,
    /// σ, the deviation, within bounds.
    pub deviation: f64,
}

impl Scale {
    /// The scale of what is not scaled.
    const NONE: Self = Self {
        mean: 0.0,
        deviation: 1.0,
    };

    /// The value of a normalised one.
    pub fn value(self, normalised: f32) -> f32 {
        (self.deviation * f64::from(normalised) + self.mean) as f32
    }
}

/// Running statistics of the returns of each task; of none where values are not scaled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueStatistics {
    tasks: Vec<ReturnMoments>,
}

/// Exponentially forgetting mean and mean square.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReturnMoments {
    /// Number of returns, which the first ones are averaged by.
    count: u64,
    mean: f64,
    square: f64,
}

impl ValueStatistics {
    /// Statistics without returns, of this many tasks.
    pub fn new(tasks: usize) -> Self {
        Self {
            tasks: vec![ReturnMoments::default(); tasks],
        }
    }

    /// Whether values are not scaled at all.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Number of tasks whose values are scaled.
    pub(super) fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// The scale of a task; that of what is not scaled before its first return.
    pub fn scale(&self, task: usize) -> Scale {
        match self.tasks.get(task) {
            Some(moments) if moments.count > 0 => Scale {
                mean: moments.mean,
                deviation: (moments.square - moments.mean.powi(2))
                    .max(0.0)
                    .sqrt()
                    .clamp(SIGMA[0], SIGMA[1]),
            },
            _ => Scale::NONE,
        }
    }

    /// Learns returns and the tasks that they belong to. `memory` is the weight of one new return
    /// once there are many.
    pub(super) fn learn(&mut self, returns: impl Iterator<Item = (usize, f32)>, memory: f64) {
        for (task, value) in returns {
            let Some(moments) = self.tasks.get_mut(task) else {
                continue;
            };
            moments.count += 1;
            // The first value alone has no deviation, and would be blown up to σ's bound.
            let weight = memory.max(1.0 / (moments.count as f64 + 1.0));
            let value = f64::from(value);
            if moments.count == 1 {
                // As if a return of a deviation of 1 had been there before.
                (moments.mean, moments.square) = (value, value.powi(2) + 1.0);
            } else {
                moments.mean += weight * (value - moments.mean);
                moments.square += weight * (value.powi(2) - moments.square);
            }
        }
    }

    /// Changes the baselines' parameters, which fit the statistics `before`, to fit these: values
    /// stay as they are.
    pub(super) fn preserve(&self, before: &Self, shape: &Shape, parameters: &mut [f32]) {
        let layout = ParameterLayout::of(shape);
        for task in 0..self.tasks.len().min(shape.values) {
            let (old, new) = (before.scale(task), self.scale(task));
            let factor = old.deviation / new.deviation;
            change(
                &layout,
                parameters,
                task,
                |weight| weight * factor,
                |bias| (old.deviation * bias + old.mean - new.mean) / new.deviation,
            );
        }
    }

    /// The network with one baseline, for a policy file: the mean over the tasks of their values.
    /// A network with one already stays as it is.
    pub fn single(&self, shape: &Shape, parameters: &[f32]) -> (Shape, Vec<f32>) {
        if shape.values == 1 && self.is_empty() {
            return (shape.clone(), parameters.to_vec());
        }
        let mut scaled = parameters.to_vec();
        let layout = ParameterLayout::of(shape);
        for task in 0..shape.values {
            let scale = self.scale(task);
            change(
                &layout,
                &mut scaled,
                task,
                |weight| weight * scale.deviation,
                |bias| scale.deviation * bias + scale.mean,
            );
        }
        let single = Shape {
            values: 1,
            ..shape.clone()
        };
        let mean = |row: &[f32]| row.iter().sum::<f32>() / row.len() as f32;
        (single, with_heads(shape, &scaled, |row| vec![mean(row)]))
    }

    /// A network with one baseline as one with `values` of them, all alike.
    pub fn repeated(shape: &Shape, parameters: &[f32], values: usize) -> (Shape, Vec<f32>) {
        let several = Shape {
            values,
            ..shape.clone()
        };
        (
            several,
            with_heads(shape, parameters, |row| vec![row[0]; values]),
        )
    }
}

/// Changes a task's column of the last layer of the critic.
fn change(
    layout: &ParameterLayout,
    parameters: &mut [f32],
    task: usize,
    weight: impl Fn(f64) -> f64,
    bias: impl Fn(f64) -> f64,
) {
    let last = last(layout);
    let weights = last.weights.of_mut(parameters);
    for value in weights.iter_mut().skip(task).step_by(last.weights.cols) {
        *value = weight(f64::from(*value)) as f32;
    }
    let own = &mut last.bias.of_mut(parameters)[task];
    *own = bias(f64::from(*own)) as f32;
}

/// The parameters with each row of the critic's last layer replaced, that of its bias included.
fn with_heads(shape: &Shape, parameters: &[f32], of: impl Fn(&[f32]) -> Vec<f32>) -> Vec<f32> {
    let layout = ParameterLayout::of(shape);
    let last = last(&layout);
    let mut all = Vec::with_capacity(parameters.len());
    for array in layout.arrays() {
        let values = array.of(parameters);
        match array == &last.weights || array == &last.bias {
            true => all.extend(values.chunks_exact(array.cols).flat_map(&of)),
            false => all.extend_from_slice(values),
        }
    }
    all
}

fn last(layout: &ParameterLayout) -> &Layer {
    &layout.critic[layout.critic.len() - 1]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{Activation, Cpu, Outputs, Sequences, initialise};

    fn shape(lstm: Option<usize>, privileged: usize) -> Shape {
        Shape {
            observation: 4,
            hidden: vec![6],
            activation: Activation::Tanh,
            lstm,
            actions: 3,
            privileged,
            predictions: 0,
            values: 3,
            branches: vec![],
        }
    }

    /// Logits and values of two steps of one sequence.
    fn outputs(
        shape: &Shape,
        parameters: &[f32],
        scales: &ValueStatistics,
    ) -> (Vec<f32>, Vec<f32>) {
        let wave = |count: usize| (0..count).map(|i| (i as f32).sin()).collect::<Vec<_>>();
        let mut cpu = Cpu::new(shape, 1).expect("a thread");
        cpu.set_parameters(parameters);
        let mut outputs = Outputs::default();
        let input = Sequences {
            steps: 2,
            batch_size: 1,
            observation: &wave(2 * shape.observation),
            reward: &[0.5, -0.5],
            not_done: &[0.0, 1.0],
            privileged: &wave(2 * shape.privileged),
            h: &vec![0.0; shape.state()],
            c: &vec![0.0; shape.state()],
        };
        cpu.forward(&input, &mut outputs);
        let normalised = outputs.baseline.iter().enumerate();
        let values = normalised.map(|(at, &value)| scales.scale(at % shape.values).value(value));
        (outputs.logits, values.collect())
    }

    fn assert_close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let size = expected.abs().max(1.0);
            assert!(
                (found - expected).abs() < 2e-4 * size,
                "{found} for {expected}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Whatever the statistics learn, the values that the network stands for stay as they
        /// are, and so do its logits.
        #[test]
        fn outputs_are_preserved_when_the_statistics_change(
            seed: u64,
            batches in proptest::collection::vec(
                proptest::collection::vec((0..3usize, -300.0..300.0f32), 1..20), 1..6),
            with_lstm: bool,
            with_privileged: bool,
        ) {
            let shape = shape(with_lstm.then_some(5), if with_privileged { 2 } else { 0 });
            let mut parameters = initialise(&shape, seed);
            let mut scales = ValueStatistics::new(3);
            for batch in batches {
                let (logits, values) = outputs(&shape, &parameters, &scales);
                let before = scales.clone();
                scales.learn(batch.into_iter(), 0.01);
                scales.preserve(&before, &shape, &mut parameters);
                let (logits_after, values_after) = outputs(&shape, &parameters, &scales);
                prop_assert_eq!(logits, logits_after);
                assert_close(&values_after, &values);
            }
            // The exported baseline is their mean.
            let (logits, values) = outputs(&shape, &parameters, &scales);
            let (single, folded) = scales.single(&shape, &parameters);
            let none = ValueStatistics::default();
            let (same, means) = outputs(&single, &folded, &none);
            prop_assert_eq!(same, logits);
            let expected: Vec<f32> =
                values.chunks_exact(3).map(|own| own.iter().sum::<f32>() / 3.0).collect();
            assert_close(&means, &expected);
            // And one baseline as several is each of them.
            let (several, repeated) = ValueStatistics::repeated(&single, &folded, 3);
            let (_, all) = outputs(&several, &repeated, &none);
            let copies: Vec<f32> = means.iter().flat_map(|&mean| [mean; 3]).collect();
            assert_close(&all, &copies);
        }
    }

    #[test]
    fn statistics_are_those_of_the_returns() {
        let mut scales = ValueStatistics::new(2);
        assert_eq!(scales.scale(0), Scale::NONE);
        // Of task 1 alone: 10 and 30 in turn.
        let returns = (0..20_000).map(|at| (1, if at % 2 == 0 { 10.0 } else { 30.0 }));
        scales.learn(returns, 1e-3);
        assert_eq!(scales.scale(0), Scale::NONE);
        let scale = scales.scale(1);
        assert!((scale.mean - 20.0).abs() < 0.1, "{scale:?}");
        assert!((scale.deviation - 10.0).abs() < 0.1, "{scale:?}");
        assert!((scale.value(-1.0) - 10.0).abs() < 0.2);
        // Returns that do not differ have the least deviation.
        let mut constant = ValueStatistics::new(1);
        constant.learn((0..200_000).map(|_| (0, 5.0)), 1e-3);
        let scale = constant.scale(0);
        assert!(
            (scale.mean - 5.0).abs() < 1e-6 && scale.deviation < 0.01,
            "{scale:?}"
        );
        assert!(scale.deviation >= SIGMA[0]);
    }

    #[test]
    fn what_is_not_scaled_stays_as_it_is() {
        let shape = Shape {
            values: 1,
            ..shape(None, 0)
        };
        let parameters = initialise(&shape, 1);
        let none = ValueStatistics::default();
        assert_eq!(none.single(&shape, &parameters), (shape, parameters));
        assert_eq!(none.scale(7).value(0.25), 0.25);
    }
}
