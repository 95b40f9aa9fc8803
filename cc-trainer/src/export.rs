//! Writes a trained network as the policy file that cc-agent serves.

use std::collections::BTreeMap;

use cc_agent::environment::Environment;
use cc_agent::policy::export::{Activation as Follows, ActorCritic, Dense, Lstm, Transform};
use cc_agent::policy::{PolicyKind, PolicyMeta};

use crate::model::{Activation, Array, Layer, Layout, LstmArrays, Shape};
use crate::normalise::{Input, Normalizer};

/// Why a network cannot be a policy file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Some length is another than the network's sizes ask for.
    #[error(
        "the network's {what} is {found}, but {expected} is needed: export it with the configuration that it was \
         trained with"
    )]
    Size {
        /// Of what.
        what: &'static str,
        /// Its value.
        found: usize,
        /// What it should be.
        expected: usize,
    },
    /// A parameter is not finite.
    #[error(
        "parameter {index} of the network is {value}: training has diverged; export an earlier checkpoint, and train \
         with a smaller step size"
    )]
    NotFinite {
        /// Its index in the flat vector.
        index: usize,
        /// What it is.
        value: String,
    },
}

/// What the file of a trained network says about itself.
pub fn meta(
    name: &str,
    shape: &Shape,
    environment: &Environment,
    provenance: BTreeMap<String, String>,
) -> PolicyMeta {
    PolicyMeta {
        name: name.to_owned(),
        kind: PolicyKind::Trained,
        environment: environment.clone(),
        hidden: shape.hidden.clone(),
        // A policy without memory hands a state of width 1 through.
        state: shape.lstm.unwrap_or(1),
        provenance,
    }
}

/// The bytes of a policy file: the network with its normaliser in front. `parameters` are in [`Layout`]'s order;
/// `description` is what the file says of itself to people. The baseline of a network whose critic sees more than the
/// policy is computed with all of that at 0.
///
/// # Errors
///
/// Sizes that do not fit, and parameters that are not finite.
pub fn policy_file(
    shape: &Shape,
    parameters: &[f32],
    normalizer: &Normalizer,
    meta: &PolicyMeta,
    description: &str,
) -> Result<Vec<u8>, ExportError> {
    let layout = Layout::of(shape);
    let environment = &meta.environment;
    for (what, found, expected) in [
        ("number of parameters", parameters.len(), layout.len()),
        (
            "observation",
            shape.observation,
            environment.observation_len(),
        ),
        (
            "number of actions",
            shape.actions,
            environment.actions.len(),
        ),
        (
            "number of normalised inputs",
            normalizer.observation.len(),
            shape.observation,
        ),
    ] {
        if found != expected {
            return Err(ExportError::Size {
                what,
                found,
                expected,
            });
        }
    }
    if let Some((index, value)) = parameters.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        return Err(ExportError::NotFinite {
            index,
            value: value.to_string(),
        });
    }
    let dense = |layer: &Layer| dense(layer, parameters, layer.weights.rows);
    let network = ActorCritic {
        observation: Some(transform(&normalizer.observation)),
        reward: Some(transform(&[normalizer.reward])),
        trunk: layout.trunk.iter().map(dense).collect(),
        activation: match shape.activation {
            Activation::Relu => Follows::Relu,
            Activation::Tanh => Follows::Tanh,
        },
        lstm: layout.lstm.as_ref().map(|arrays| lstm(arrays, parameters)),
        policy: dense(&layout.policy),
        baseline: baseline(&layout, parameters),
    };
    Ok(network.export(meta, description))
}

fn transform(inputs: &[Input]) -> Transform {
    let each = |of: fn(&Input) -> f32| inputs.iter().map(of).collect();
    Transform {
        curvature: each(|input| input.curvature),
        slope: each(|input| input.slope),
        offset: each(|input| input.mean),
        gain: each(|input| input.gain),
        limit: Normalizer::LIMIT,
    }
}

/// A layer with the first `inputs` of its inputs; the others are 0.
fn dense(layer: &Layer, parameters: &[f32], inputs: usize) -> Dense {
    let outputs = layer.weights.cols;
    Dense {
        inputs,
        outputs,
        weights: layer.weights.of(parameters)[..inputs * outputs].to_vec(),
        bias: layer.bias.of(parameters).to_vec(),
    }
}

fn baseline(layout: &Layout, parameters: &[f32]) -> Vec<Dense> {
    let features = layout.policy.weights.rows;
    layout
        .critic
        .iter()
        .enumerate()
        .map(|(i, layer)| {
            let inputs = match i {
                0 => features,
                _ => layer.weights.rows,
            };
            dense(layer, parameters, inputs)
        })
        .collect()
}

/// From columns of the gates i, f, g, o to rows of i, o, f, g.
fn lstm(arrays: &LstmArrays, parameters: &[f32]) -> Lstm {
    const GATES: [usize; 4] = [0, 3, 1, 2];
    let units = arrays.recurrent.rows;
    let rows = |array: &Array| -> Vec<f32> {
        let values = array.of(parameters);
        let row = |column: usize| (0..array.rows).map(move |i| values[i * array.cols + column]);
        GATES
            .iter()
            .flat_map(|gate| (0..units).map(move |unit| gate * units + unit))
            .flat_map(row)
            .collect()
    };
    let mut bias = rows(&arrays.bias);
    bias.resize(8 * units, 0.0);
    Lstm {
        inputs: arrays.input.rows,
        hidden: units,
        input_weights: rows(&arrays.input),
        recurrent_weights: rows(&arrays.recurrent),
        bias,
    }
}

#[cfg(test)]
mod tests {
    use cc_agent::policy::{Answer, OnnxPolicy, PolicyFile, Query, Serving, State};
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::model::{Cpu, Outputs, Sequences, initialise};

    fn environment(history: usize) -> Environment {
        Environment {
            history,
            ..Environment::default()
        }
    }

    fn shape(environment: &Environment, hidden: &[usize], lstm: Option<usize>) -> Shape {
        Shape {
            observation: environment.observation_len(),
            hidden: hidden.to_vec(),
            activation: Activation::Relu,
            lstm,
            actions: environment.actions.len(),
            privileged: 0,
        }
    }

    /// With all kinds of inputs: logarithmic, linear and constant.
    fn normalizer(observation: usize, random: &mut StdRng) -> Normalizer {
        let mut input = |i: usize| Input {
            mean: random.random_range(-1.0..1.0),
            gain: if i % 7 == 3 {
                0.0
            } else {
                random.random_range(0.2..2.0)
            },
            ..match i % 3 {
                0 => Input::LINEAR,
                _ => Input::logarithmic(random.random_range(0.1..10.0)),
            }
        };
        Normalizer {
            observation: (0..observation).map(&mut input).collect(),
            reward: input(0),
        }
    }

    /// Several steps of several flows, by the trainer and by the agent's engine; the largest difference of logits,
    /// of what softmax sees of them, and of the state.
    fn largest_difference(environment: &Environment, shape: &Shape, seed: u64) -> f32 {
        const FLOWS: usize = 3;
        let mut random = StdRng::seed_from_u64(seed);
        let parameters = initialise(shape, seed);
        let normalizer = normalizer(shape.observation, &mut random);
        let meta = meta("test", shape, environment, BTreeMap::new());
        let bytes = policy_file(shape, &parameters, &normalizer, &meta, "").expect("the sizes fit");
        let mut served = OnnxPolicy::from_bytes(&bytes, Serving::Greedy, 0).expect("accepted");

        let mut network = Cpu::<f32>::new(shape, 1).expect("threads");
        network.set_parameters(&parameters);
        let state = shape.lstm.unwrap_or(0);
        let mut outputs = Outputs {
            h: vec![0.0; FLOWS * state],
            c: vec![0.0; FLOWS * state],
            ..Outputs::default()
        };
        let mut states = vec![State::default(); FLOWS];
        let mut largest = 0.0_f32;
        for _ in 0..5 {
            let mut queries: Vec<_> = states
                .iter()
                .map(|state| Query {
                    observation: (0..shape.observation)
                        .map(|_| random.random_range(-1.0..9.0))
                        .collect(),
                    reward: random.random_range(-3.0..3.0),
                    cwnd: 10,
                    state: state.clone(),
                    probabilities: Vec::new(),
                })
                .collect();
            let mut observation = Vec::new();
            for query in &queries {
                let mut values = query.observation.clone();
                normalizer.apply(&mut values);
                observation.extend(values);
            }
            let reward: Vec<_> = queries
                .iter()
                .map(|query| normalizer.reward.apply(query.reward))
                .collect();
            let (h, c) = (outputs.h.clone(), outputs.c.clone());
            let input = Sequences {
                steps: 1,
                lanes: FLOWS,
                observation: &observation,
                reward: &reward,
                keep: &[1.0; FLOWS],
                privileged: &vec![0.0; FLOWS * shape.privileged],
                h: &h,
                c: &c,
            };
            network.forward(&input, &mut outputs);
            let answers = served.evaluate(&mut queries);
            for (flow, (answer, query)) in answers.into_iter().zip(queries).enumerate() {
                let Answer { logits, baseline } = answer.expect("finite");
                let expected = &outputs.logits[flow * shape.actions..][..shape.actions];
                let hidden = &outputs.h[flow * state..][..state];
                let cell = &outputs.c[flow * state..][..state];
                let pairs = logits
                    .iter()
                    .zip(expected)
                    .chain([(&baseline, &outputs.baseline[flow])])
                    .chain(query.state.h.iter().zip(hidden))
                    .chain(query.state.c.iter().zip(cell));
                for (a, b) in pairs {
                    largest = largest.max((a - b).abs());
                }
                states[flow] = query.state;
            }
        }
        largest
    }

    #[test]
    fn the_agent_computes_what_the_trainer_does() {
        let environment = environment(20);
        for lstm in [Some(48), None] {
            for privileged in [0, 9] {
                let shape = Shape {
                    privileged,
                    ..shape(&environment, &[64, 32], lstm)
                };
                let largest = largest_difference(&environment, &shape, 5);
                assert!(largest < 1e-4, "{shape:?}: {largest}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn networks_of_any_shape(
            history in 0_usize..4,
            hidden in prop::collection::vec(1_usize..24, 1..4),
            lstm in prop::option::of(1_usize..20),
            privileged in 0_usize..5,
            tanh: bool,
            seed: u64,
        ) {
            let environment = environment(history);
            let shape = Shape {
                activation: if tanh { Activation::Tanh } else { Activation::Relu },
                privileged,
                ..shape(&environment, &hidden, lstm)
            };
            let largest = largest_difference(&environment, &shape, seed);
            prop_assert!(largest < 1e-4, "{:?}: {}", shape, largest);
        }
    }

    #[test]
    fn the_file_says_what_it_is() {
        let environment = environment(2);
        let shape = shape(&environment, &[8], None);
        let provenance = BTreeMap::from([("steps".to_owned(), "1000".to_owned())]);
        let meta = meta("small", &shape, &environment, provenance);
        let normalizer = Normalizer::identity(shape.observation);
        let parameters = initialise(&shape, 0);
        let bytes =
            policy_file(&shape, &parameters, &normalizer, &meta, "A test.").expect("the sizes fit");
        let file = PolicyFile::parse(&bytes).expect("accepted");
        assert_eq!(file.meta(), &meta);
        assert_eq!(file.summary().description, "A test.");
        assert_eq!(
            (file.meta().state, file.meta().kind),
            (1, PolicyKind::Trained)
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let environment = environment(2);
        let shape = shape(&environment, &[8], Some(4));
        let meta = meta("small", &shape, &environment, BTreeMap::new());
        let normalizer = Normalizer::identity(shape.observation);
        let mut parameters = initialise(&shape, 0);
        let export = |parameters: &[f32], normalizer: &Normalizer, meta: &PolicyMeta| {
            policy_file(&shape, parameters, normalizer, meta, "")
                .expect_err("refused")
                .to_string()
        };
        let error = export(&parameters[1..], &normalizer, &meta);
        assert!(
            error.starts_with("the network's number of parameters is"),
            "{error}"
        );
        let other = Normalizer::identity(7);
        let error = export(&parameters, &other, &meta);
        assert!(
            error.contains("number of normalised inputs is 7, but 112"),
            "{error}"
        );
        let longer = PolicyMeta {
            environment: self::environment(20),
            ..meta.clone()
        };
        let error = export(&parameters, &normalizer, &longer);
        assert!(
            error.contains("observation is 112, but 220 is needed"),
            "{error}"
        );
        parameters[3] = f32::NAN;
        let error = export(&parameters, &normalizer, &meta);
        assert!(
            error.starts_with("parameter 3 of the network is NaN"),
            "{error}"
        );
    }
}
