//! Several learners against one that has the whole batch.

use std::{
    sync::{Arc, Barrier, Mutex},
    thread,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    environment::{End, Quantities},
    learner::{Learner, LearnerSettings, Normalisation, constraints::Constraints},
    model::{self, Activation, DeviceKind, Shape},
    rollout::{Origin, Rollout},
};

/// A learner on the CPU at the beginning of a run.
pub(crate) fn learner(shape: &Shape, tasks: usize, settings: &LearnerSettings) -> Learner {
    let mut device = model::device(DeviceKind::Cpu, shape, 1).expect("a thread");
    let parameters = model::initialise(shape, 1);
    device.set_parameters(&parameters).expect("a CPU");
    let state = LearnerState::new(tasks, settings);
    Learner::new(device, settings.clone(), state, 0)
}

pub(crate) fn parameters(learner: &Learner) -> Vec<f32> {
    let mut parameters = Vec::new();
    learner.device().parameters(&mut parameters).expect("a CPU");
    parameters
}

/// Rollouts of random numbers, of `steps` actions in these many tasks.
pub(crate) fn rollouts(
    shape: &Shape,
    tasks: u32,
    steps: usize,
    count: usize,
    seed: u64,
) -> Vec<Rollout> {
    let mut random = StdRng::seed_from_u64(seed);
    let steps = steps + 1;
    (0..count)
        .map(|_| {
            let mut floats = |length: usize| -> Vec<f32> {
                (0..length).map(|_| random.random::<f32>() - 0.5).collect()
            };
            Rollout {
                observation: floats(steps * shape.observation),
                observed_reward: floats(steps),
                privileged: floats(steps * shape.privileged),
                logits: floats(steps * shape.actions),
                reward: floats(steps),
                h: floats(shape.state()),
                c: floats(shape.state()),
                quantities: (floats(steps).into_iter())
                    .map(|loss| Quantities {
                        loss: (loss > 0.0).then_some(loss),
                        share: None,
                    })
                    .collect(),
                intervals: floats(steps).iter().map(|value| 1.5 + value).collect(),
                first: (floats(steps).iter())
                    .map(|&value| match value {
                        0.4.. => Some(End::Terminated),
                        0.3..0.4 => Some(End::Truncated),
                        _ => None,
                    })
                    .collect(),
                action: (0..steps)
                    .map(|_| random.random_range(0..shape.actions as u32))
                    .collect(),
                task: (0..steps).map(|_| random.random_range(0..tasks)).collect(),
                effects: (0..steps).flat_map(|_| 0..shape.actions as u8).collect(),
                allowed: Vec::new(),
                origin: vec![Origin::Actor; steps],
                version: 0,
            }
        })
        .collect()
}

pub(crate) fn assert_equal(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let largest = differences.fold(0.0, f32::max);
    assert!(largest < 1e-6, "parameters differ by up to {largest}");
}

/// Where the threads of several learners meet.
struct Meeting {
    barrier: Barrier,
    sums: Mutex<Vec<Option<Vec<f64>>>>,
    parts: Mutex<Vec<Option<Part>>>,
}

/// A learner of a thread, among others.
struct Peer {
    index: usize,
    meeting: Arc<Meeting>,
}

impl Peer {
    /// Lays down what this learner has, and returns what all have.
    fn exchange<T: Clone>(&self, table: &Mutex<Vec<Option<T>>>, own: T) -> Vec<T> {
        table.lock().expect("no panic")[self.index] = Some(own);
        self.meeting.barrier.wait();
        let all = table.lock().expect("no panic").clone();
        self.meeting.barrier.wait();
        all.into_iter().flatten().collect()
    }
}

impl Partners for Peer {
    fn begin(&mut self, _: Beginning<'_>) -> Result<(), PartnersError> {
        Ok(())
    }

    fn sum(&mut self, sums: &mut [f64]) -> Result<(), PartnersError> {
        let all = self.exchange(&self.meeting.sums, sums.to_vec());
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum = all.iter().map(|own| own[at]).sum();
        }
        Ok(())
    }

    fn step(
        &mut self,
        device: &mut dyn Device,
        rollouts: usize,
        loss: Reduction,
        optimiser: &RmsProp,
    ) -> Result<f32, PartnersError> {
        let mut own = Part {
            rollouts,
            gradient: Vec::new(),
        };
        device.gradient(&mut own.gradient)?;
        let all = self.exchange(&self.meeting.parts, own);
        let mut sum = all[0].clone();
        combine(&mut sum, &all[1..], loss);
        device.set_gradient(&sum.gradient)?;
        Ok(device.step(optimiser)?)
    }
}

#[test]
fn three_learners_of_parts_of_a_batch_make_the_updates_of_one() {
    let shape = Shape {
        observation: 5,
        hidden: vec![7],
        activation: Activation::Tanh,
        lstm: Some(4),
        actions: 3,
        privileged: 0,
        predictions: 0,
        values: 1,
        branches: vec![],
    };
    for loss in [Reduction::Mean, Reduction::Sum] {
        for reward_normalisation in [Normalisation::None, Normalisation::PerTask] {
            let settings = LearnerSettings {
                unroll: 6,
                loss,
                reward_normalisation,
                gradient_clip: 0.5,
                constraints: Constraints {
                    loss_at_most: Some(0.1),
                    ..Constraints::default()
                },
                ..LearnerSettings::default()
            };
            let batches: Vec<_> = (0..10).map(|at| rollouts(&shape, 2, 6, 7, at)).collect();
            let mut single = learner(&shape, 2, &settings);
            for batch in &batches {
                single.update(batch, 0.3).expect("finite");
            }
            let expected = parameters(&single);
            let meeting = Arc::new(Meeting {
                barrier: Barrier::new(3),
                sums: Mutex::new(vec![None; 3]),
                parts: Mutex::new(vec![None; 3]),
            });
            thread::scope(|scope| {
                for (index, part) in [0..1, 1..3, 3..7].into_iter().enumerate() {
                    let mut one = learner(&shape, 2, &settings);
                    let meeting = meeting.clone();
                    one.learn_with(Box::new(Peer { index, meeting }));
                    let (batches, expected) = (&batches, &expected);
                    scope.spawn(move || {
                        for batch in batches {
                            one.update(&batch[part.clone()], 0.3).expect("finite");
                        }
                        assert_equal(&parameters(&one), expected);
                    });
                }
            });
        }
    }
}

#[test]
fn gradients_of_a_mean_are_averaged_by_their_rollouts_and_those_of_a_sum_are_summed() {
    let part = |rollouts, gradient: [f32; 2]| Part {
        rollouts,
        gradient: gradient.to_vec(),
    };
    for (loss, expected) in [
        (Reduction::Mean, [3.75, -1.0]),
        (Reduction::Sum, [9.0, 0.0]),
    ] {
        let mut first = part(1, [1.0, 2.0]);
        let others = [part(2, [6.0, -4.0]), part(1, [2.0, 2.0])];
        combine(&mut first, &others, loss);
        assert_eq!(first, part(4, expected));
    }
    let mut alone = part(3, [1.25, -7.5]);
    combine(&mut alone, &[], Reduction::Mean);
    assert_eq!(alone, part(3, [1.25, -7.5]));
}
