//! The first use of a machine: an update of a small network with every operation, compared with the
//! CPU's. What a driver or a library lacks shows here, before a run begins.

use super::{machine::Machine, network::DeviceNetwork};
use crate::model::{
    Activation, Branch, Cpu, Outputs, RmsProp, Sequences, Shape, StepError, initialise,
};

/// Number of steps and of sequences. An episode begins in the middle of one.
const SIZE: (usize, usize) = (3, 2);
/// Largest difference between the two devices' numbers, relative to the largest number.
const TOLERANCE: f32 = 1e-4;

/// Uses the machine, and gives it back if it computes what the CPU does.
///
/// # Errors
///
/// Returns what failed or is different.
pub(super) fn try_out<M: Machine>(machine: M) -> Result<M, String> {
    let shape = Shape {
        observation: 5,
        hidden: vec![8, 6],
        activation: Activation::Tanh,
        lstm: Some(4),
        actions: 3,
        privileged: 2,
        predictions: 0,
        values: 1,
        branches: vec![
            Branch {
                from: 0,
                length: 4,
                width: 2,
                filters: 3,
            },
            Branch {
                from: 3,
                length: 2,
                width: 2,
                filters: 4,
            },
        ],
    };
    let failed = |error: StepError| error.to_string();
    let mut network = DeviceNetwork::new(machine, &shape).map_err(|failure| failure.to_string())?;
    let mut cpu = Cpu::<f32>::new(&shape, 1).map_err(|error| error.to_string())?;
    let parameters = initialise(&shape, 1);
    cpu.set_parameters(&parameters);

    let (steps, batch_size) = SIZE;
    let frames = steps * batch_size;
    let wave = |len: usize| -> Vec<f32> { (0..len).map(|i| (i as f32 * 0.7).sin()).collect() };
    let (observation, privileged) = (wave(frames * 5), wave(frames * 2));
    let (reward, state) = (wave(frames), wave(batch_size * 4));
    let mut not_done = vec![1.0; frames];
    not_done[batch_size] = 0.0;
    let input = Sequences {
        steps,
        batch_size,
        observation: &observation,
        reward: &reward,
        not_done: &not_done,
        privileged: &privileged,
        h: &state,
        c: &state,
    };
    let (d_logits, d_baseline) = (wave(frames * 3), wave(frames));
    let optimiser = RmsProp {
        learning_rate: 0.01,
        decay: 0.9,
        epsilon: 0.01,
        momentum: 0.5,
        clip: 0.5,
        correction: 10.0,
    };

    let (mut expected, mut gradient) = (Outputs::default(), Vec::new());
    cpu.forward(&input, &mut expected);
    cpu.backward(&input, &d_logits, &d_baseline);
    cpu.gradient(&mut gradient);
    let norm = cpu.step(&optimiser).map_err(failed)?;
    let mut stepped = Vec::new();
    cpu.parameters(&mut stepped);

    let mut used = || -> Result<_, StepError> {
        network.set_parameters(&parameters)?;
        let (mut outputs, mut found, mut parameters) = (Outputs::default(), Vec::new(), Vec::new());
        network.forward(&input, &mut outputs)?;
        network.backward(&input, &d_logits, &d_baseline)?;
        network.gradient(&mut found)?;
        let norm = network.step(&optimiser)?;
        network.parameters(&mut parameters)?;
        Ok((outputs, found, norm, parameters))
    };
    let found = used().map_err(failed)?;
    compare("logits", &found.0.logits, &expected.logits)?;
    compare("baselines", &found.0.baseline, &expected.baseline)?;
    compare("states", &found.0.c, &expected.c)?;
    compare("gradients", &found.1, &gradient)?;
    compare("norms", &[found.2], &[norm])?;
    compare("parameters", &found.3, &stepped)?;
    Ok(network.into_machine())
}

fn compare(what: &str, found: &[f32], expected: &[f32]) -> Result<(), String> {
    let largest = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let mut pairs = found.iter().zip(expected);
    // Written so that NaN is different.
    let agree = |(found, expected): (&f32, &f32)| (found - expected).abs() <= TOLERANCE * largest;
    match pairs.all(agree) {
        true => Ok(()),
        false => Err(format!(
            "it computes other {what} than the CPU in a small network: {found:?}, not {expected:?}"
        )),
    }
}
