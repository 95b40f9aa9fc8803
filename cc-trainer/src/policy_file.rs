//! Policy files: encoding a trained network as the ONNX file that cc-agent serves, and decoding
//! such a file to train its network further.

use std::collections::BTreeMap;

use cc_core::interface::Interface;
use cc_core::policy::export::ImportError;
use cc_core::policy::export::{
    self, Activation as Follows, ActorCritic, Bends, Dense, Logit, Lstm, Power, Ramp, Transform,
};
use cc_core::policy::{ActionSelection, PolicyFile, PolicyKind, PolicyMeta, Widths};

use crate::model::{
    Activation, Array, Branch, Layer, LstmArrays, ParameterLayout, Shape, initialise,
};
use crate::normalise::{Bend, Input, Normalizer, input_shapes};

/// Why a network cannot be encoded as a policy file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A length does not agree with the network's shape or its interface.
    #[error(
        "the network's {what} is {found}, but {expected} is needed: export it with the \
         configuration that it was trained with"
    )]
    Size {
        /// The quantity, such as `number of parameters`.
        what: &'static str,
        /// The value that was found.
        found: usize,
        /// The value that it should have.
        expected: usize,
    },
    /// A parameter is not a finite number.
    #[error(
        "parameter {index} of the network is {value}: training has diverged; export an earlier \
         checkpoint, and train with a smaller learning rate"
    )]
    NotFinite {
        /// Index of the parameter in the flat vector.
        index: usize,
        /// Its value: `NaN`, `inf` or `-inf`.
        value: String,
    },
}

/// The metadata of a trained network's policy file.
pub fn meta(
    name: &str,
    shape: &Shape,
    environment: &Interface,
    serving: ActionSelection,
    provenance: BTreeMap<String, String>,
) -> PolicyMeta {
    PolicyMeta {
        name: name.to_owned(),
        kind: PolicyKind::Trained,
        interface: environment.clone(),
        hidden: shape.hidden.clone(),
        // A policy without an LSTM passes a state of width 1 through.
        state: shape.lstm.unwrap_or(1),
        serving,
        provenance,
    }
}

/// Encodes a network, with its normaliser in front, as the bytes of a policy file. `parameters` are
/// in [`ParameterLayout`]'s order; `description` is a sentence for people. If the critic has a
/// privileged observation, the file's baseline is computed with all of it at 0.
///
/// # Errors
///
/// Returns an error when lengths do not agree, or a parameter is not finite.
pub fn encode(
    shape: &Shape,
    parameters: &[f32],
    normalizer: &Normalizer,
    meta: &PolicyMeta,
    description: &str,
) -> Result<Vec<u8>, ExportError> {
    let network = network(shape, parameters, Some(normalizer), &meta.widths())?;
    Ok(network.export(meta, description))
}

/// A network in the form that is exported, with its normaliser in front, if it has one. `widths`
/// are those that the file's metadata ask for.
///
/// # Errors
///
/// Returns an error when lengths do not agree, or a parameter is not finite.
pub(crate) fn network(
    shape: &Shape,
    parameters: &[f32],
    normalizer: Option<&Normalizer>,
    widths: &Widths,
) -> Result<ActorCritic, ExportError> {
    let layout = ParameterLayout::of(shape);
    let normalised = normalizer.map_or(shape.observation, |own| own.observation.len());
    for (what, found, expected) in [
        ("number of parameters", parameters.len(), layout.len()),
        ("observation", shape.observation, widths.observation),
        ("number of actions", shape.actions, widths.actions),
        ("number of baselines", shape.values, 1),
        ("number of normalised inputs", normalised, shape.observation),
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
    let branches = shape.branches.iter().zip(&layout.branches);
    let mut trunk: Vec<Dense> = layout.trunk.iter().map(dense).collect();
    // The file has the outputs of a branch filter by filter, and the network position by position.
    if let (Some(first), false) = (trunk.first_mut(), shape.branches.is_empty()) {
        let rows = first.weights.chunks_exact(first.outputs);
        let rows: Vec<&[f32]> = rows.collect();
        let order = outputs_by_filter(&shape.branches);
        first.weights = order.flat_map(|row| rows[row]).copied().collect();
    }
    Ok(ActorCritic {
        observation: normalizer.map(|own| transform(&own.observation)),
        reward: normalizer.map(|own| transform(std::slice::from_ref(&own.reward))),
        branches: branches
            .map(|(branch, layer)| export_branch(branch, layer, parameters))
            .collect(),
        trunk,
        activation: match shape.activation {
            Activation::Relu => Follows::Relu,
            Activation::Tanh => Follows::Tanh,
        },
        lstm: layout.lstm.as_ref().map(|arrays| lstm(arrays, parameters)),
        policy: first_outputs(dense(&layout.policy), shape.actions),
        baseline: baseline(&layout, parameters),
    })
}

/// A network decoded from a policy file.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedNetwork {
    /// Sizes of the network, with the critic's privileged observation.
    pub shape: Shape,
    /// The network's parameters, in [`ParameterLayout`]'s order.
    pub parameters: Vec<f32>,
    /// Whether the critic's parameters are the file's. A critic with a privileged observation is
    /// not in the file; the one here is random then.
    pub has_critic: bool,
    /// The transform of the network's inputs.
    pub normalizer: Normalizer,
}

impl ImportedNetwork {
    /// Returns the network with as many predictions ([`Shape::predictions`]), which no file has:
    /// all are 0 until it is trained further.
    #[must_use]
    pub fn predicting(self, predictions: usize) -> Self {
        let layout = ParameterLayout::of(&self.shape);
        let mut parameters = Vec::with_capacity(self.parameters.len());
        for array in layout.arrays() {
            let values = array.of(&self.parameters);
            let of_head = array == &layout.policy.weights || array == &layout.policy.bias;
            for row in values.chunks_exact(array.cols) {
                match of_head {
                    true => {
                        parameters.extend_from_slice(&row[..self.shape.actions]);
                        parameters.resize(parameters.len() + predictions, 0.0);
                    }
                    false => parameters.extend_from_slice(row),
                }
            }
        }
        Self {
            shape: Shape {
                predictions,
                ..self.shape
            },
            parameters,
            ..self
        }
    }

    /// Returns the network with the inputs that the interface `to` has besides those of `from`, the
    /// one that it was made for: the [`Fraction`](cc_ebpf::Fraction)s of a later version of the
    /// features, and the [`Aspect`](cc_core::interface::Aspect)s of a flow's situation. Their
    /// weights are 0, so that it decides as before until it is trained further.
    ///
    /// # Panics
    ///
    /// Panics when the network's observations are not those of `from`.
    #[must_use]
    pub fn widened(self, from: &Interface, to: &Interface) -> Self {
        assert_eq!(self.shape.observation, from.observation_len());
        let inputs = input_shapes(to);
        let fractions = from.situation_offset()..to.situation_offset();
        let aspects = to.situation_offset() + from.aspects().len()..to.history_offset();
        // The last ones first: those before them keep their places.
        self.with_inputs(from.history_offset(), &inputs[aspects])
            .with_inputs(from.situation_offset(), &inputs[fractions])
    }

    /// Returns the network with further inputs of these shapes before the input `at`.
    fn with_inputs(mut self, at: usize, added: &[Input]) -> Self {
        let before = ParameterLayout::of(&self.shape);
        self.shape.observation += added.len();
        // The index of the first new input among those of the layer that takes them.
        let mut place = at;
        for branch in &mut self.shape.branches {
            if branch.from >= at {
                branch.from += added.len();
            } else if branch.from + branch.length >= at && branch.is_dense() {
                place = at - branch.from;
                branch.length += added.len();
                branch.width = branch.length;
            }
        }
        let after = ParameterLayout::of(&self.shape);
        let mut parameters = Vec::with_capacity(after.len());
        for (old, new) in before.arrays().zip(after.arrays()) {
            let values = old.of(&self.parameters);
            // A row is an input. Only one layer takes the new ones: the first of the trunk, or the
            // fully connected branch that takes the inputs before.
            let (head, tail) = match new.rows == old.rows {
                true => (values, &[][..]),
                false => values.split_at(place * old.cols),
            };
            parameters.extend_from_slice(head);
            parameters.resize(new.offset + new.rows * new.cols - tail.len(), 0.0);
            parameters.extend_from_slice(tail);
        }
        self.parameters = parameters;
        let shapes = added.iter().cloned();
        self.normalizer.observation.splice(at..at, shapes);
        self
    }
}

/// The interface `own` with what `to` observes besides: what a network for `own` is
/// [widened](ImportedNetwork::widened) for. Where both observe something in different ways, it
/// stays as it is; but a largest rate that was never forgotten is forgotten as in `to`, and what is
/// known of a path is shared as in `to`, which changes what the network decides.
pub fn observing_more(own: &Interface, to: &Interface) -> Interface {
    let other_unless = |windows: usize, other: usize| match windows {
        0 => other,
        _ => windows,
    };
    Interface {
        features_version: own.features_version.max(to.features_version),
        situation: other_unless(own.situation, to.situation),
        shared_path: own.shared_path || to.shared_path,
        rate_memory: other_unless(own.rate_memory, to.rate_memory),
        response: other_unless(own.response, to.response),
        changes: other_unless(own.changes, to.changes),
        ..own.clone()
    }
}

/// Decodes a file that [`encode`] made into a network whose critic has a privileged observation of
/// length `privileged`. Where the file's critic cannot be used, a random one is drawn from `seed`.
///
/// # Errors
///
/// Returns an error when the file's graph is not one that [`encode`] makes.
pub fn decode(
    file: &PolicyFile,
    privileged: usize,
    seed: u64,
) -> Result<ImportedNetwork, ImportError> {
    let ActorCritic {
        observation,
        reward,
        branches,
        trunk,
        activation,
        lstm,
        policy,
        baseline,
    } = ActorCritic::import(file)?;
    let width = file.meta().interface.observation_len();
    let shape = Shape {
        observation: width,
        hidden: trunk.iter().map(|layer| layer.outputs).collect(),
        activation: match activation {
            Follows::Relu => Activation::Relu,
            Follows::Tanh => Activation::Tanh,
        },
        lstm: lstm.as_ref().map(|lstm| lstm.hidden),
        actions: policy.outputs,
        privileged,
        predictions: 0,
        values: 1,
        branches: (branches.iter())
            .map(|branch| Branch {
                from: branch.from,
                length: branch.length,
                width: branch.width,
                filters: branch.filters,
            })
            .collect(),
    };
    let layout = ParameterLayout::of(&shape);
    let mut parameters = initialise(&shape, seed);
    let mut set = |layer: &Layer, dense: &Dense| {
        layer
            .weights
            .of_mut(&mut parameters)
            .copy_from_slice(&dense.weights);
        layer
            .bias
            .of_mut(&mut parameters)
            .copy_from_slice(&dense.bias);
    };
    for (layer, dense) in layout.trunk.iter().zip(&trunk) {
        set(layer, dense);
    }
    for (layer, branch) in layout.branches.iter().zip(&branches) {
        set(
            layer,
            &Dense {
                inputs: branch.width,
                outputs: branch.filters,
                weights: branch.weights.clone(),
                bias: branch.bias.clone(),
            },
        );
    }
    set(&layout.policy, &policy);
    let has_critic = privileged == 0 && baseline.len() == layout.critic.len();
    if has_critic {
        for (layer, dense) in layout.critic.iter().zip(&baseline) {
            set(layer, dense);
        }
    }
    if let (Some(arrays), Some(lstm)) = (&layout.lstm, &lstm) {
        set_lstm(arrays, lstm, &mut parameters);
    }
    if let (Some(layer), Some(dense), false) =
        (layout.trunk.first(), trunk.first(), branches.is_empty())
    {
        let into = layer.weights.of_mut(&mut parameters);
        let rows = dense.weights.chunks_exact(dense.outputs);
        for (row, values) in outputs_by_filter(&shape.branches).zip(rows) {
            into[row * dense.outputs..][..dense.outputs].copy_from_slice(values);
        }
    }
    let inputs = |transform: &Option<Transform>, width| match transform {
        Some(transform) => inputs(transform),
        // The file does not clip; the limits of this transform are far out.
        None => vec![Input::LINEAR; width],
    };
    Ok(ImportedNetwork {
        shape,
        parameters,
        has_critic,
        normalizer: Normalizer {
            observation: inputs(&observation, width),
            reward: inputs(&reward, 1).remove(0),
        },
    })
}

/// The indices of the branches' outputs in the order of a file: those of the first branch's first
/// filter at all positions, then those of its second filter.
fn outputs_by_filter(branches: &[Branch]) -> impl Iterator<Item = usize> {
    let starts = branches.iter().scan(0, |end, branch| {
        let start = *end;
        *end += branch.outputs();
        Some((start, *branch))
    });
    starts.flat_map(|(start, branch)| {
        (0..branch.filters).flat_map(move |filter| {
            (0..branch.positions()).map(move |position| start + position * branch.filters + filter)
        })
    })
}

/// A branch in the form of a file.
fn export_branch(branch: &Branch, layer: &Layer, parameters: &[f32]) -> export::Branch {
    export::Branch {
        from: branch.from,
        length: branch.length,
        width: branch.width,
        filters: branch.filters,
        weights: layer.weights.of(parameters).to_vec(),
        bias: layer.bias.of(parameters).to_vec(),
    }
}

/// Copies ONNX's form of an LSTM to the layout's, the inverse of [`lstm`].
fn set_lstm(arrays: &LstmArrays, lstm: &Lstm, parameters: &mut [f32]) {
    let units = lstm.hidden;
    let mut columns = |array: &Array, rows: &[f32]| {
        let values = array.of_mut(parameters);
        for (place, gate) in GATES.iter().enumerate() {
            for unit in 0..units {
                let row = &rows[(place * units + unit) * array.rows..][..array.rows];
                for (i, value) in row.iter().enumerate() {
                    values[i * array.cols + gate * units + unit] = *value;
                }
            }
        }
    };
    columns(&arrays.input, &lstm.input_weights);
    columns(&arrays.recurrent, &lstm.recurrent_weights);
    let (input, recurrent) = lstm.bias.split_at(4 * units);
    let bias: Vec<f32> = input.iter().zip(recurrent).map(|(a, b)| a + b).collect();
    columns(&arrays.bias, &bias);
}

/// The inputs that a file's transform encodes, the inverse of [`transform`].
fn inputs(transform: &Transform) -> Vec<Input> {
    let bends = &transform.bends;
    let bend = |i: usize| {
        if let Some(power) = &bends.power
            && (power.weight[i] != 0.0 || power.logarithm[i] != 0.0)
        {
            return Some(Bend::BoxCox {
                power: power.power[i],
                shift: power.shift[i],
            });
        }
        if bends
            .logit
            .as_ref()
            .is_some_and(|logit| logit.weight[i] != 0.0)
        {
            return Some(Bend::Logit);
        }
        let mut ramps = bends.ramps.iter().filter(|ramp| ramp.width[i] != 0.0);
        let mut knots: Vec<f32> = ramps.clone().map(|ramp| ramp.from[i]).collect();
        let last = ramps.next_back()?;
        knots.push(last.from[i] + last.width[i]);
        Some(Bend::Ramps { knots })
    };
    (0..transform.gain.len())
        .map(|i| Input {
            curvature: transform.curvature[i],
            slope: transform.slope[i],
            mean: transform.offset[i],
            gain: transform.gain[i],
            limit: transform.limit,
            bend: bend(i),
        })
        .collect()
}

fn transform(inputs: &[Input]) -> Transform {
    let each = |of: fn(&Input) -> f32| inputs.iter().map(of).collect();
    Transform {
        curvature: each(|input| input.curvature),
        slope: each(|input| input.slope),
        offset: each(|input| input.mean),
        gain: each(|input| input.gain),
        // All inputs of an observation have the same one.
        limit: inputs.iter().fold(0.0, |most, input| input.limit.max(most)),
        bends: bends(inputs),
    }
}

fn bends(inputs: &[Input]) -> Bends {
    let each = |of: &dyn Fn(&Bend) -> f32| -> Vec<f32> {
        let value = |input: &Input| input.bend.as_ref().map_or(0.0, of);
        inputs.iter().map(value).collect()
    };
    let any = |values: &[f32]| values.iter().any(|&value| value != 0.0);
    let power = |bend: &Bend| match bend {
        Bend::BoxCox { power, shift } => Some((*power, *shift)),
        _ => None,
    };
    let is_log = |power: f32| power.abs() < Bend::LEAST_POWER;
    let powers = Power {
        shift: each(&|bend| power(bend).map_or(0.0, |(_, shift)| shift)),
        least: Bend::LEAST_POSITIVE,
        power: each(&|bend| power(bend).map_or(0.0, |(power, _)| power)),
        weight: each(&|bend| match power(bend) {
            Some((power, _)) if !is_log(power) => 1.0 / power,
            _ => 0.0,
        }),
        logarithm: each(&|bend| match power(bend) {
            Some((power, _)) if is_log(power) => 1.0,
            _ => 0.0,
        }),
    };
    let logits = Logit {
        weight: each(&|bend| f32::from(u8::from(matches!(bend, Bend::Logit)))),
        margin: Bend::MARGIN,
    };
    let ends = |bend: &Bend, ramp: usize| match bend {
        Bend::Ramps { knots } => Some((*knots.get(ramp)?, *knots.get(ramp + 1)?, knots.len() - 1)),
        _ => None,
    };
    let count = inputs.iter().filter_map(|input| match &input.bend {
        Some(Bend::Ramps { knots }) => Some(knots.len().saturating_sub(1)),
        _ => None,
    });
    let ramps = (0..count.max().unwrap_or(0)).map(|ramp| Ramp {
        from: each(&|bend| ends(bend, ramp).map_or(0.0, |(from, ..)| from)),
        width: each(&|bend| ends(bend, ramp).map_or(0.0, |(from, to, _)| to - from)),
        rise: each(&|bend| {
            ends(bend, ramp).map_or(0.0, |(from, to, count)| 1.0 / ((to - from) * count as f32))
        }),
    });
    Bends {
        power: (any(&powers.weight) || any(&powers.logarithm)).then_some(powers),
        logit: any(&logits.weight).then_some(logits),
        ramps: ramps.collect(),
    }
}

/// The layer restricted to its first `inputs` inputs; the others are 0.
/// The layer without its outputs after the first `outputs`.
fn first_outputs(layer: Dense, outputs: usize) -> Dense {
    let rows = layer.weights.chunks_exact(layer.outputs);
    Dense {
        inputs: layer.inputs,
        outputs,
        weights: rows.flat_map(|row| &row[..outputs]).copied().collect(),
        bias: layer.bias[..outputs].to_vec(),
    }
}

fn dense(layer: &Layer, parameters: &[f32], inputs: usize) -> Dense {
    let outputs = layer.weights.cols;
    Dense {
        inputs,
        outputs,
        weights: layer.weights.of(parameters)[..inputs * outputs].to_vec(),
        bias: layer.bias.of(parameters).to_vec(),
    }
}

fn baseline(layout: &ParameterLayout, parameters: &[f32]) -> Vec<Dense> {
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

/// Index of ONNX's gates i, o, f, g among the layout's, i, f, g, o.
const GATES: [usize; 4] = [0, 3, 1, 2];

/// The LSTM in ONNX's form: from columns of the gates i, f, g, o to rows of i, o, f, g.
fn lstm(arrays: &LstmArrays, parameters: &[f32]) -> Lstm {
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
    use cc_core::policy::{Answer, OnnxPolicy, PolicyFile, Query, State};
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::model::{Cpu, Outputs, Sequences};

    fn environment(history: usize) -> Interface {
        Interface {
            history,
            ..Interface::default()
        }
    }

    fn shape(environment: &Interface, hidden: &[usize], lstm: Option<usize>) -> Shape {
        Shape {
            observation: environment.observation_len(),
            hidden: hidden.to_vec(),
            activation: Activation::Relu,
            lstm,
            actions: environment.actions.len(),
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        }
    }

    fn bent(bend: Bend) -> Input {
        Input {
            slope: 0.0,
            bend: Some(bend),
            ..Input::LINEAR
        }
    }

    /// A random normaliser with all kinds of inputs: logarithmic, linear, constant, and every bend.
    fn normalizer(observation: usize, random: &mut StdRng) -> Normalizer {
        let mut input = |i: usize| Input {
            mean: random.random_range(-1.0..1.0),
            gain: if i % 7 == 3 {
                0.0
            } else {
                random.random_range(0.2..2.0)
            },
            ..match i % 7 {
                0 | 3 => Input::LINEAR,
                1 => bent(Bend::BoxCox {
                    power: random.random_range(-1.5..2.0),
                    shift: random.random_range(1.0..2.0),
                }),
                2 => bent(Bend::BoxCox {
                    power: 0.0,
                    shift: 1.5,
                }),
                4 => bent(Bend::Logit),
                5 => bent(Bend::Ramps {
                    knots: (0..random.random_range(2..22))
                        .map(|knot| 0.4 * knot as f32 - 1.0)
                        .collect(),
                }),
                _ => Input::logarithmic(random.random_range(0.1..10.0)),
            }
        };
        Normalizer {
            observation: (0..observation).map(&mut input).collect(),
            reward: input(0),
        }
    }

    /// The largest difference of logits, baselines and states between the trainer's network and the
    /// agent's engine, over several steps of this many flows.
    fn largest_difference(environment: &Interface, shape: &Shape, flows: usize, seed: u64) -> f32 {
        let mut random = StdRng::seed_from_u64(seed);
        let parameters = initialise(shape, seed);
        let normalizer = normalizer(shape.observation, &mut random);
        let meta = meta(
            "test",
            shape,
            environment,
            ActionSelection::Greedy,
            BTreeMap::new(),
        );
        let bytes = encode(shape, &parameters, &normalizer, &meta, "").expect("the sizes fit");
        let mut served = OnnxPolicy::from_bytes(&bytes, None, 0).expect("accepted");

        let mut network = Cpu::<f32>::new(shape, 1).expect("threads");
        network.set_parameters(&parameters);
        let state = shape.lstm.unwrap_or(0);
        let mut outputs = Outputs {
            h: vec![0.0; flows * state],
            c: vec![0.0; flows * state],
            ..Outputs::default()
        };
        let mut states = vec![State::default(); flows];
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
                batch_size: flows,
                observation: &observation,
                reward: &reward,
                not_done: &vec![1.0; flows],
                privileged: &vec![0.0; flows * shape.privileged],
                h: &h,
                c: &c,
            };
            network.forward(&input, &mut outputs);
            let answers = served.evaluate(&mut queries);
            for (flow, (answer, query)) in answers.into_iter().zip(queries).enumerate() {
                let Answer { logits, baseline } = answer.expect("finite");
                let expected = &outputs.logits[flow * shape.outputs()..][..shape.actions];
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
    fn the_agents_engine_computes_what_the_trainers_network_does() {
        let environment = environment(20);
        for lstm in [Some(48), None] {
            for privileged in [0, 9] {
                let shape = Shape {
                    privileged,
                    ..shape(&environment, &[64, 32], lstm)
                };
                let largest = largest_difference(&environment, &shape, 3, 5);
                assert!(largest < 1e-4, "{shape:?}: {largest}");
            }
        }
    }

    /// Branches over parts of an observation, of which some are convolutions.
    fn branches(lengths: &[(usize, usize, usize)]) -> Vec<Branch> {
        let mut from = 0;
        let mut branches = Vec::new();
        for &(length, width, filters) in lengths {
            branches.push(Branch {
                from,
                length,
                width: width.min(length),
                filters,
            });
            from += length;
        }
        branches
    }

    #[test]
    fn the_agents_engine_computes_what_a_network_with_branches_does() {
        let environment = environment(20);
        // As in Pensieve: 128 filters of width 4 over 8 values, and single values.
        let lengths = [
            (8, 4, 128),
            (8, 4, 128),
            (6, 4, 128),
            (1, 4, 128),
            (1, 4, 128),
        ];
        for (lengths, activation) in [
            (&lengths[..], Activation::Relu),
            (&[(190, 190, 32), (29, 4, 7)][..], Activation::Tanh),
        ] {
            for lstm in [Some(16), None] {
                let shape = Shape {
                    branches: branches(lengths),
                    activation,
                    ..shape(&environment, &[24, 16], lstm)
                };
                // Each number of flows is answered by another of the engine's plans.
                for flows in [1, 5, 20] {
                    let largest = largest_difference(&environment, &shape, flows, 6);
                    assert!(largest < 1e-4, "{shape:?}, {flows} flows: {largest}");
                }
            }
        }
    }

    /// Tract's optimiser fails on this one (0.23.9), and the agent runs it as it is.
    #[test]
    fn the_agents_engine_computes_one_convolution_before_a_single_unit() {
        let environment = environment(0);
        let shape = Shape {
            branches: branches(&[(4, 3, 3)]),
            activation: Activation::Tanh,
            ..shape(&environment, &[1], None)
        };
        let largest = largest_difference(&environment, &shape, 3, 6);
        assert!(largest < 1e-4, "{largest}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn networks_of_any_shape_agree_between_trainer_and_agent(
            history in 0_usize..4,
            hidden in prop::collection::vec(1_usize..24, 1..4),
            lstm in prop::option::of(1_usize..20),
            privileged in 0_usize..5,
            predicts: bool,
            features_version in 1_u32..=2,
            tanh: bool,
            lengths in prop::collection::vec((1_usize..20, 1_usize..8, 1_usize..9), 0..5),
            seed: u64,
        ) {
            let environment = Interface { features_version, ..environment(history) };
            let shape = Shape {
                activation: if tanh { Activation::Tanh } else { Activation::Relu },
                privileged,
                predictions: if predicts { privileged } else { 0 },
                branches: branches(&lengths),
                ..shape(&environment, &hidden, lstm)
            };
            let largest = largest_difference(&environment, &shape, 3, seed);
            prop_assert!(largest < 1e-4, "{:?}: {}", shape, largest);
        }
    }

    #[test]
    fn decoding_a_file_gives_the_encoded_network() {
        let environment = environment(2);
        let series = branches(&[(8, 4, 5), (3, 4, 2), (90, 3, 3)]);
        for (lstm, privileged, branches) in [
            (Some(5), 0, vec![]),
            (None, 0, vec![]),
            (Some(5), 3, vec![]),
            (None, 0, series.clone()),
            (Some(5), 3, series),
        ] {
            let shape = Shape {
                privileged,
                branches,
                ..shape(&environment, &[7, 6], lstm)
            };
            let normalizer = normalizer(shape.observation, &mut StdRng::seed_from_u64(3));
            let parameters = initialise(&shape, 4);
            let meta = meta(
                "small",
                &shape,
                &environment,
                ActionSelection::Greedy,
                BTreeMap::new(),
            );
            let bytes = encode(&shape, &parameters, &normalizer, &meta, "").expect("it fits");
            let file = PolicyFile::parse(&bytes).expect("accepted");
            let found = decode(&file, 0, 9).expect("our own");
            assert_eq!(found.has_critic, privileged == 0);
            let expected = Shape {
                privileged: 0,
                ..shape.clone()
            };
            assert_eq!(found.shape, expected);
            // The critic has the requested size, whatever the file's was.
            let begun = decode(&file, 3, 9).expect("our own");
            assert_eq!((begun.shape.privileged, begun.has_critic), (3, false));
            assert_eq!(
                begun.parameters.len(),
                ParameterLayout::of(&begun.shape).len()
            );
            // Predictions are trained, and are in no file.
            let predicting = begun.clone().predicting(3);
            assert_eq!(predicting.shape.outputs(), shape.actions + 3);
            let encoded = |network: &ImportedNetwork| {
                let (shape, parameters) = (&network.shape, &network.parameters);
                encode(shape, parameters, &network.normalizer, &meta, "").expect("it fits")
            };
            let again = PolicyFile::parse(&encoded(&predicting)).expect("accepted");
            let again = decode(&again, 0, 9).expect("our own");
            let layout = ParameterLayout::of(&again.shape);
            for array in [&layout.policy.weights, &layout.policy.bias] {
                assert_eq!(array.of(&again.parameters), array.of(&found.parameters));
            }
            // All parameters but those of a critic that is not in the file are the same.
            let same = |array: &Array| array.of(&found.parameters) == array.of(&parameters);
            let layout = ParameterLayout::of(&shape);
            let policy = layout
                .arrays()
                .filter(|array| !array.name.starts_with("critic"));
            policy.for_each(|array| assert!(same(array), "{}", array.name));
            if found.has_critic {
                let again = encode(
                    &found.shape,
                    &found.parameters,
                    &found.normalizer,
                    &meta,
                    "",
                );
                let seen = |bytes: &[u8]| {
                    let file = PolicyFile::parse(bytes).expect("accepted");
                    decode(&file, 0, 9).expect("our own").parameters
                };
                assert_eq!(seen(&again.expect("it fits")), found.parameters);
            }
        }
        let rule = cc_core::policy::heuristic_file();
        let rule = PolicyFile::parse(&rule).expect("accepted");
        let error = decode(&rule, 0, 0).expect_err("no network").to_string();
        assert!(error.contains("not one that cc-trainer writes"), "{error}");
    }

    #[test]
    fn a_network_decides_alike_with_inputs_that_came_later() {
        let first = environment(2);
        let version_2 = |interface: &Interface| Interface {
            features_version: 2,
            ..interface.clone()
        };
        let situation = |interface: &Interface| Interface {
            situation: 20,
            ..interface.clone()
        };
        decides_alike(&first, &version_2(&first), &[(100, 2)]);
        decides_alike(&first, &situation(&first), &[(100, 7)]);
        decides_alike(&first, &situation(&version_2(&first)), &[(100, 9)]);
        let second = version_2(&first);
        decides_alike(&second, &situation(&second), &[(102, 7)]);
        let response = |interface: &Interface| Interface {
            response: 40,
            ..situation(interface)
        };
        decides_alike(&first, &response(&first), &[(100, 9)]);
        decides_alike(&situation(&first), &response(&first), &[(107, 2)]);
        decides_alike(&situation(&second), &response(&second), &[(109, 2)]);
        let changes = |interface: &Interface| Interface {
            changes: 20,
            ..response(interface)
        };
        decides_alike(&first, &changes(&first), &[(100, 11)]);
        decides_alike(&response(&second), &changes(&second), &[(111, 2)]);
        let placed = situation(&first);
        decides_alike(&placed, &version_2(&placed), &[(100, 2)]);
        decides_alike(&placed, &placed, &[]);
    }

    /// Networks for `from` decide alike when widened for `to`, which has so many inputs more at
    /// these places.
    fn decides_alike(from: &Interface, to: &Interface, added: &[(usize, usize)]) {
        let mut random = StdRng::seed_from_u64(8);
        // A fully connected branch over all that there was, and convolutions beside it.
        let before_history = from.history_offset();
        let whole = [(from.observation_len(), usize::MAX, 6)];
        let apart = [(before_history, usize::MAX, 6), (8, 4, 3), (4, 2, 2)];
        for (hidden, branches) in [
            (&[7, 6][..], vec![]),
            (&[9], vec![]),
            (&[9], branches(&whole)),
            (&[9, 5], branches(&apart)),
        ] {
            let shape = Shape {
                branches,
                ..shape(from, hidden, Some(5))
            };
            let former = ImportedNetwork {
                parameters: initialise(&shape, 4),
                normalizer: normalizer(shape.observation, &mut random),
                has_critic: true,
                shape: shape.clone(),
            };
            let wide = former.clone().widened(from, to);
            assert_eq!(wide.shape.observation, to.observation_len());
            let outputs = |network: &ImportedNetwork, observation: &[f32]| {
                let mut cpu = Cpu::<f32>::new(&network.shape, 1).expect("threads");
                cpu.set_parameters(&network.parameters);
                let mut observation = observation.to_vec();
                network.normalizer.apply(&mut observation);
                let mut outputs = Outputs::default();
                let input = Sequences {
                    steps: 1,
                    batch_size: 1,
                    observation: &observation,
                    reward: &[0.5],
                    not_done: &[1.0],
                    privileged: &[],
                    h: &[0.1; 5],
                    c: &[0.2; 5],
                };
                cpu.forward(&input, &mut outputs);
                (outputs.logits, outputs.baseline)
            };
            let mut observation: Vec<f32> = (0..shape.observation)
                .map(|_| random.random_range(0.0..9.0))
                .collect();
            let expected = outputs(&former, &observation);
            for &(at, inputs) in added {
                observation.splice(at..at, (0..inputs).map(|i| 0.25 + i as f32));
            }
            let (logits, baseline) = outputs(&wide, &observation);
            let found = logits.iter().chain(&baseline);
            for (found, expected) in found.zip(expected.0.iter().chain(&expected.1)) {
                assert!((found - expected).abs() < 1e-5, "{found} and {expected}");
            }
        }
    }

    #[test]
    fn the_file_contains_its_metadata_and_description() {
        let environment = environment(2);
        let shape = shape(&environment, &[8], None);
        let provenance = BTreeMap::from([("steps".to_owned(), "1000".to_owned())]);
        let meta = meta(
            "small",
            &shape,
            &environment,
            ActionSelection::Softmax { temperature: 0.5 },
            provenance,
        );
        let normalizer = Normalizer::identity(shape.observation);
        let parameters = initialise(&shape, 0);
        let bytes =
            encode(&shape, &parameters, &normalizer, &meta, "A test.").expect("the sizes fit");
        let file = PolicyFile::parse(&bytes).expect("accepted");
        assert_eq!(file.meta(), &meta);
        assert_eq!(file.summary().description, "A test.");
        assert_eq!(
            (file.meta().state, file.meta().kind),
            (1, PolicyKind::Trained)
        );
    }

    /// The file says whether actions are masked, and the network in it is the same.
    #[test]
    fn the_file_says_whether_actions_are_masked() {
        let environment = environment(2);
        let shape = shape(&environment, &[8], None);
        let masked = Interface {
            mask_actions: true,
            ..environment.clone()
        };
        let [without, with] = [&environment, &masked].map(|interface| {
            let provenance = BTreeMap::new();
            let meta = meta(
                "small",
                &shape,
                interface,
                ActionSelection::Greedy,
                provenance,
            );
            let normalizer = Normalizer::identity(shape.observation);
            let parameters = initialise(&shape, 0);
            encode(&shape, &parameters, &normalizer, &meta, "").expect("the sizes fit")
        });
        let read = |bytes: &[u8]| PolicyFile::parse(bytes).expect("accepted");
        assert!(!read(&without).meta().interface.mask_actions);
        assert!(read(&with).meta().interface.mask_actions);
        assert!(read(&with).summary().to_string().contains("\nmasked "));
        assert!(!read(&without).summary().to_string().contains("\nmasked "));
        let parameters = |bytes: &[u8]| decode(&read(bytes), 0, 0).expect("ours").parameters;
        assert_eq!(parameters(&without), parameters(&with));
    }

    #[test]
    fn encoding_names_the_length_or_parameter_that_is_wrong() {
        let environment = environment(2);
        let shape = shape(&environment, &[8], Some(4));
        let meta = meta(
            "small",
            &shape,
            &environment,
            ActionSelection::Greedy,
            BTreeMap::new(),
        );
        let normalizer = Normalizer::identity(shape.observation);
        let mut parameters = initialise(&shape, 0);
        let export = |parameters: &[f32], normalizer: &Normalizer, meta: &PolicyMeta| {
            encode(&shape, parameters, normalizer, meta, "")
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
            interface: self::environment(20),
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
