//! Writes policies as ONNX files (opset 13, one graph, batch dimension `N`), and reads such files
//! back.

use prost::Message;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto, type_proto,
};

use super::file::PolicyFile;
use super::file_error::META_KEY;
use super::meta::PolicyMeta;
use super::ports::{Widths, ports};

/// A fully connected layer: `y = x · weights + bias`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    /// Length of the input vector x.
    pub inputs: usize,
    /// Length of the output vector y.
    pub outputs: usize,
    /// The weights, shaped `[inputs, outputs]`, row-major.
    pub weights: Vec<f32>,
    /// The biases, one per output.
    pub bias: Vec<f32>,
}

/// An LSTM cell with gates in ONNX order: input, output, forget, cell.
///
/// Libraries such as PyTorch use another order (input, forget, cell, output); permute the gates.
#[derive(Debug, Clone, PartialEq)]
pub struct Lstm {
    /// Length of the cell's input vector.
    pub inputs: usize,
    /// Length H of each of the state vectors h and c.
    pub hidden: usize,
    /// The weights of the input, shaped `[4·H, inputs]`, row-major.
    pub input_weights: Vec<f32>,
    /// The weights of h, shaped `[4·H, H]`, row-major.
    pub recurrent_weights: Vec<f32>,
    /// `[8·H]`: the input biases of the four gates, then their recurrent biases.
    pub bias: Vec<f32>,
}

/// The activation function after every layer of the trunk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Activation {
    /// The rectifier, max(0, x).
    #[default]
    Relu,
    /// The hyperbolic tangent, tanh x.
    Tanh,
}

/// Normalisation of the inputs before the network, element by element:
/// `clip((ln(1 + curvature · max(0, x)) + slope · x − offset) · gain)`.
///
/// Each vector has one value per input. A curvature of 0 leaves out the logarithm, a gain of 0 the
/// input. The terms of [`Bends`] are added before the offset is subtracted.
#[derive(Debug, Clone, PartialEq)]
pub struct Transform {
    /// Factor of x inside the logarithm.
    pub curvature: Vec<f32>,
    /// Slope of the linear part.
    pub slope: Vec<f32>,
    /// Offset that is subtracted before the gain is applied.
    pub offset: Vec<f32>,
    /// Factor that is applied last, before clipping.
    pub gain: Vec<f32>,
    /// Results are clipped to ± this value.
    pub limit: f32,
    /// Terms of inputs with other nonlinearities; such inputs have curvature and slope 0.
    pub bends: Bends,
}

/// Further nonlinearities of inputs. Each vector has one value per input, or is empty when no input
/// has this nonlinearity.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bends {
    /// With l = ln(max(x + shift, least)): `weight · (exp(power · l) − 1) + logarithm · l`.
    pub power: Option<Power>,
    /// `weight · (ln y − ln(1 − y))` with y = x kept within margin and 1 − margin.
    pub logit: Option<Logit>,
    /// `rise · min(max(x − from, 0), width)`, summed.
    pub ramps: Vec<Ramp>,
}

/// The parameters of [`Bends::power`].
#[derive(Debug, Clone, PartialEq)]
pub struct Power {
    /// Shift that is added to x.
    pub shift: Vec<f32>,
    /// Lower bound of the argument of the logarithm.
    pub least: f32,
    /// Exponent of the power, as a factor of l.
    pub power: Vec<f32>,
    /// Weight of the power; 0 leaves it out.
    pub weight: Vec<f32>,
    /// Weight of the logarithm alone; 0 leaves it out.
    pub logarithm: Vec<f32>,
}

/// The parameters of [`Bends::logit`].
#[derive(Debug, Clone, PartialEq)]
pub struct Logit {
    /// Weight of the logit; 0 leaves it out.
    pub weight: Vec<f32>,
    /// Smallest distance of y from 0 and from 1.
    pub margin: f32,
}

/// One ramp of each input, a term of [`Bends::ramps`].
#[derive(Debug, Clone, PartialEq)]
pub struct Ramp {
    /// The x at which the ramp begins.
    pub from: Vec<f32>,
    /// Width of the ramp in x; 0 leaves the ramp out.
    pub width: Vec<f32>,
    /// Slope of the ramp within its width.
    pub rise: Vec<f32>,
}

/// A layer on a part of the observation, followed by the activation function of the trunk: a
/// one-dimensional convolution with stride 1 and without padding. With `width` equal to `length`,
/// it has one position and is a fully connected layer.
///
/// The output is `[filters, positions]`, row-major, with `length + 1 − width` positions: all
/// positions of the first filter, then those of the second, and so on.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// Index in the observation at which the part begins.
    pub from: usize,
    /// Length of the part; at least `width`.
    pub length: usize,
    /// Number of adjacent values that a filter takes; at least 1.
    pub width: usize,
    /// Number of filters; at least 1.
    pub filters: usize,
    /// The weights, shaped `[width, filters]`, row-major.
    pub weights: Vec<f32>,
    /// The biases, one per filter.
    pub bias: Vec<f32>,
}

/// The network of the mvfst-rl paper (arXiv 1910.04054, section 4) and its variants: normalised or
/// raw inputs, branches or none, a trunk of dense layers, the reward appended, an optional LSTM,
/// and the heads for policy and baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct ActorCritic {
    /// Normalisation of the observation; `None` takes it as it is.
    pub observation: Option<Transform>,
    /// Normalisation of the reward; `None` takes it as it is.
    pub reward: Option<Transform>,
    /// Layers on parts of the observation, side by side; may be empty.
    pub branches: Vec<Branch>,
    /// The layers of the trunk, of which the first takes the outputs of the branches, one after the
    /// other, or without branches the observation.
    pub trunk: Vec<Dense>,
    /// Activation function after each branch and each layer of the trunk.
    pub activation: Activation,
    /// The LSTM, which takes the trunk's output and the reward. With `None` the heads take these,
    /// and the state passes through unchanged.
    pub lstm: Option<Lstm>,
    /// The policy head: from h, or the LSTM's input without one, to one logit per action.
    pub policy: Dense,
    /// The baseline head: from h, or the LSTM's input without one, to one value. There is a ReLU
    /// between its layers.
    pub baseline: Vec<Dense>,
}

impl ActorCritic {
    /// An untrained network for this description: weights drawn uniformly from ±1/√(inputs), and
    /// from ±1/√H in the LSTM. The seed determines them.
    pub fn random(meta: &PolicyMeta, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut draw = |n: usize, fan_in: usize| -> Vec<f32> {
            let bound = 1.0 / (fan_in as f32).sqrt();
            (0..n).map(|_| rng.random_range(-bound..bound)).collect()
        };
        let mut dense = |inputs: usize, outputs: usize| Dense {
            inputs,
            outputs,
            weights: draw(inputs * outputs, inputs),
            bias: draw(outputs, inputs),
        };
        let mut width = meta.interface.observation_len();
        let mut trunk = vec![];
        for &hidden in &meta.hidden {
            trunk.push(dense(width, hidden));
            width = hidden;
        }
        let hidden = meta.state;
        let policy = dense(hidden, meta.interface.actions.len());
        let baseline = dense(hidden, 1);
        let lstm = Lstm {
            inputs: width + 1,
            hidden,
            input_weights: draw(4 * hidden * (width + 1), hidden),
            recurrent_weights: draw(4 * hidden * hidden, hidden),
            bias: draw(8 * hidden, hidden),
        };
        Self {
            observation: None,
            reward: None,
            branches: vec![],
            trunk,
            activation: Activation::Relu,
            lstm: Some(lstm),
            policy,
            baseline: vec![baseline],
        }
    }

    /// The network as a policy file. `description` is what the file says of itself to people.
    ///
    /// Sizes that do not fit each other or `meta` make a file that the loader refuses.
    pub fn export(&self, meta: &PolicyMeta, description: &str) -> Vec<u8> {
        self.export_as(&meta.widths(), (META_KEY, meta.to_json()), description)
    }

    /// The network as a policy file of any kind: `metadata` are the key and the value of the entry
    /// that says what the policy is for.
    ///
    /// Sizes that do not fit each other or `widths` make a file that the loader refuses.
    pub fn export_as(
        &self,
        widths: &Widths,
        metadata: (&str, String),
        description: &str,
    ) -> Vec<u8> {
        let mut graph = GraphBuilder::default();
        let mut x = "observation".to_owned();
        if let Some(transform) = &self.observation {
            x = graph.transform(&x, transform);
        }
        let operator = match self.activation {
            Activation::Relu => "Relu",
            Activation::Tanh => "Tanh",
        };
        // The constant is made where it is first used, so that a graph without branches has its
        // constants in the order that it always had.
        let mut axis = None;
        if !self.branches.is_empty() {
            let axis = axis.insert(graph.ints("axis1", &[1]));
            let sums = graph.branches(&x, &self.branches, axis);
            x = graph.node(operator, &[&sums], "branches.activation", vec![]);
        }
        for (i, layer) in self.trunk.iter().enumerate() {
            let sums = graph.dense(&format!("trunk{i}"), &x, layer);
            x = graph.node(operator, &[&sums], &format!("trunk{i}.activation"), vec![]);
        }
        let axis = axis.unwrap_or_else(|| graph.ints("axis1", &[1]));
        let mut reward = graph.node("Unsqueeze", &["reward", &axis], "reward.column", vec![]);
        if let Some(transform) = &self.reward {
            reward = graph.transform(&reward, transform);
        }
        let joined = graph.node("Concat", &[&x, &reward], "joined", vec![int("axis", 1)]);
        let core = match &self.lstm {
            Some(lstm) => graph.lstm(&joined, lstm),
            None => {
                for (state, output) in [("h", "h_out"), ("c", "c_out")] {
                    graph.node_into("Identity", &[state], &[output], vec![]);
                }
                joined
            }
        };
        graph.dense_into("logits", &core, &self.policy, "logits");
        let mut value = core;
        for (i, layer) in self.baseline.iter().enumerate() {
            if i > 0 {
                value = graph.node("Relu", &[&value], &format!("baseline{i}.input"), vec![]);
            }
            value = graph.dense(&format!("baseline{i}"), &value, layer);
        }
        graph.node_into("Squeeze", &[&value, &axis], &["baseline"], vec![]);
        graph.finish_as(widths, metadata, description)
    }
}

/// Why a policy file's network cannot be taken out of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the file's graph is not one that cc-trainer writes: {reason}; only such a network can be \
     trained further"
)]
pub struct ImportError {
    reason: String,
}

impl ActorCritic {
    /// The network in a file that [`Self::export`] wrote.
    ///
    /// # Errors
    ///
    /// Returns an error when the file has another graph than this module writes.
    pub fn import(file: &PolicyFile) -> Result<Self, ImportError> {
        let wrong = |reason: String| ImportError { reason };
        let graph = file
            .graph
            .proto
            .graph
            .as_ref()
            .ok_or_else(|| wrong("it has none".to_owned()))?;
        let found = |name: &str| {
            let tensor = graph
                .initializer
                .iter()
                .find(|tensor| tensor.name == name)?;
            let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let values: Vec<f32> = tensor.raw_data.chunks_exact(4).map(value).collect();
            let dims: Vec<usize> = tensor.dims.iter().map(|&dim| dim as usize).collect();
            (dims.iter().product::<usize>() == values.len()).then_some((dims, values))
        };
        let needed = |name: &str| found(name).ok_or_else(|| wrong(format!("it has no `{name}`")));
        let dense = |name: &str| -> Result<Dense, ImportError> {
            let (dims, weights) = needed(&format!("{name}.weights"))?;
            let (_, bias) = needed(&format!("{name}.bias"))?;
            match dims[..] {
                [inputs, outputs] if bias.len() == outputs => Ok(Dense {
                    inputs,
                    outputs,
                    weights,
                    bias,
                }),
                _ => Err(wrong(format!("`{name}` is no layer"))),
            }
        };
        let layers = |name: &str| -> Result<Vec<Dense>, ImportError> {
            let names = (0..).map(|i| format!("{name}{i}"));
            let names = names.take_while(|name| found(&format!("{name}.weights")).is_some());
            names.map(|name| dense(&name)).collect()
        };
        let place = |name: &str| -> Option<usize> {
            let mut tensors = graph.initializer.iter();
            let tensor = tensors.find(|tensor| tensor.name == name)?;
            let bytes = <[u8; 8]>::try_from(tensor.raw_data.as_slice()).ok()?;
            usize::try_from(i64::from_le_bytes(bytes)).ok()
        };
        let branch = |name: &str| -> Result<Branch, ImportError> {
            let no_branch = || wrong(format!("`{name}` is no branch"));
            let (dims, weights) = needed(&format!("{name}.weights"))?;
            let (_, bias) = needed(&format!("{name}.bias"))?;
            let from = place(&format!("{name}.from")).ok_or_else(no_branch)?;
            let to = place(&format!("{name}.to")).ok_or_else(no_branch)?;
            let (width, filters, weights) = match dims[..] {
                [width, filters] => (width, filters, weights),
                [filters, 1, width] => (width, filters, transposed(&weights, width)),
                _ => return Err(no_branch()),
            };
            let length = to.checked_sub(from).ok_or_else(no_branch)?;
            if to > file.meta().interface.observation_len() {
                return Err(no_branch());
            }
            match (1..=length).contains(&width) && filters > 0 && bias.len() == filters {
                true => Ok(Branch {
                    from,
                    length,
                    width,
                    filters,
                    weights,
                    bias,
                }),
                false => Err(no_branch()),
            }
        };
        let branches = (0..).map(|i| format!("branch{i}"));
        let branches = branches.take_while(|name| found(&format!("{name}.weights")).is_some());
        let branches = branches
            .map(|name| branch(&name))
            .collect::<Result<_, _>>()?;
        let lstm = match found("lstm.w") {
            None => None,
            Some((dims, input_weights)) => {
                let [1, gates, inputs] = dims[..] else {
                    return Err(wrong("`lstm.w` is no LSTM's".to_owned()));
                };
                Some(Lstm {
                    inputs,
                    hidden: gates / 4,
                    input_weights,
                    recurrent_weights: needed("lstm.r")?.1,
                    bias: needed("lstm.b")?.1,
                })
            }
        };
        let first = graph.node.iter().find(|node| {
            let output = node.output.first().map(String::as_str);
            output == Some("trunk0.activation")
        });
        let activation = match first.map(|node| node.op_type.as_str()) {
            Some("Relu") => Activation::Relu,
            Some("Tanh") => Activation::Tanh,
            _ => {
                return Err(wrong(
                    "its layers have no activation that is known".to_owned(),
                ));
            }
        };
        let network = Self {
            observation: transform(&found, "observation"),
            reward: transform(&found, "reward.column"),
            branches,
            trunk: layers("trunk")?,
            activation,
            lstm,
            policy: dense("logits")?,
            baseline: layers("baseline")?,
        };
        // Whatever else is in the graph would be lost.
        let again = network.export(file.meta(), &file.graph.proto.doc_string);
        let again = ModelProto::decode(again.as_slice()).ok();
        match again.and_then(|model| model.graph).as_ref() == Some(graph) {
            true => Ok(network),
            false => Err(wrong("it has other nodes".to_owned())),
        }
    }
}

/// A row-major matrix with this many columns, transposed.
fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    (0..columns)
        .flat_map(|column| matrix.iter().skip(column).step_by(columns.max(1)).copied())
        .collect()
}

/// A constant's dimensions and values.
type Constant = (Vec<usize>, Vec<f32>);

/// A transform of `x`, by the names of its constants; none where there is none.
fn transform(found: &dyn Fn(&str) -> Option<Constant>, x: &str) -> Option<Transform> {
    let values = |part: &str| Some(found(&format!("{x}.{part}"))?.1);
    let gain = values("gain")?;
    let or_zeros = |part: &str| values(part).unwrap_or_else(|| vec![0.0; gain.len()]);
    let single = |part: &str| values(part)?.first().copied();
    let ramps = (0..).map_while(|i| {
        Some(Ramp {
            from: values(&format!("ramp{i}.from"))?,
            width: values(&format!("ramp{i}.width"))?,
            rise: values(&format!("ramp{i}.rise"))?,
        })
    });
    Some(Transform {
        curvature: or_zeros("curvature"),
        slope: or_zeros("slope"),
        offset: or_zeros("offset"),
        limit: single("high")?,
        bends: Bends {
            power: values("power.weight").and_then(|weight| {
                Some(Power {
                    shift: values("power.shift")?,
                    least: single("power.least")?,
                    power: values("power.exponent")?,
                    weight,
                    logarithm: values("power.logarithm")?,
                })
            }),
            logit: values("logit.weight").and_then(|weight| {
                Some(Logit {
                    weight,
                    margin: single("logit.low")?,
                })
            }),
            ramps: ramps.collect(),
        },
        gain,
    })
}

/// Assembles a policy's graph. Values are named by strings, as in ONNX; the inputs `observation`,
/// `reward`, `h`, `c` exist from the start.
#[derive(Debug, Default)]
pub(super) struct GraphBuilder {
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
}

impl GraphBuilder {
    /// A constant tensor of floats; gives its name back.
    pub(super) fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) -> String {
        self.constant(
            name,
            dims,
            DataType::Float,
            values.iter().flat_map(|v| v.to_le_bytes()),
        )
    }

    /// A constant vector of integers; gives its name back.
    pub(super) fn ints(&mut self, name: &str, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes());
        self.constant(name, &[values.len()], DataType::Int64, bytes)
    }

    /// A node with one output; gives the output's name back.
    pub(super) fn node(
        &mut self,
        op: &str,
        inputs: &[&str],
        output: &str,
        attributes: Vec<AttributeProto>,
    ) -> String {
        self.node_into(op, inputs, &[output], attributes);
        output.to_owned()
    }

    /// A node with any number of outputs; an empty name leaves out an optional input or output.
    pub(super) fn node_into(
        &mut self,
        op: &str,
        inputs: &[&str],
        outputs: &[&str],
        attribute: Vec<AttributeProto>,
    ) {
        self.nodes.push(NodeProto {
            name: format!("{op}.{}", self.nodes.len()),
            op_type: op.to_owned(),
            input: inputs.iter().map(|&s| s.to_owned()).collect(),
            output: outputs.iter().map(|&s| s.to_owned()).collect(),
            attribute,
            ..NodeProto::default()
        });
    }

    /// A fully connected layer on `x`; gives its output's name back.
    pub(super) fn dense(&mut self, name: &str, x: &str, layer: &Dense) -> String {
        let output = format!("{name}.sums");
        self.dense_into(name, x, layer, &output);
        output
    }

    /// A fully connected layer on `x` whose output is called `output`.
    pub(super) fn dense_into(&mut self, name: &str, x: &str, layer: &Dense, output: &str) {
        let dims = [layer.inputs, layer.outputs];
        let weights = self.floats(&format!("{name}.weights"), &dims, &layer.weights);
        let bias = self.floats(&format!("{name}.bias"), &dims[1..], &layer.bias);
        self.node_into("Gemm", &[x, &weights, &bias], &[output], vec![]);
    }

    /// The sums of all branches on `x`, one after the other; gives their name back. `axis` is the
    /// constant `[1]`.
    fn branches(&mut self, x: &str, branches: &[Branch], axis: &str) -> String {
        let sums: Vec<String> = (branches.iter().enumerate())
            .map(|(i, branch)| {
                let name = format!("branch{i}");
                let part = |part: &str| format!("{name}.{part}");
                let [from, to] = [("from", branch.from), ("to", branch.from + branch.length)].map(
                    |(end, at)| self.ints(&part(end), &[i64::try_from(at).unwrap_or(i64::MAX)]),
                );
                let values = self.node("Slice", &[x, &from, &to, axis], &part("part"), vec![]);
                if branch.width == branch.length {
                    let layer = Dense {
                        inputs: branch.width,
                        outputs: branch.filters,
                        weights: branch.weights.clone(),
                        bias: branch.bias.clone(),
                    };
                    return self.dense(&name, &values, &layer);
                }
                let dims = [branch.filters, 1, branch.width];
                let weights = transposed(&branch.weights, branch.filters);
                let weights = self.floats(&part("weights"), &dims, &weights);
                let bias = self.floats(&part("bias"), &dims[..1], &branch.bias);
                // The op runs over [batch, channels, positions]; a series has one channel.
                let channel = self.node("Unsqueeze", &[&values, axis], &part("channel"), vec![]);
                let inputs = [channel.as_str(), &weights, &bias];
                let filtered = self.node("Conv", &inputs, &part("filtered"), vec![]);
                let flat = vec![int("axis", 1)];
                self.node("Flatten", &[&filtered], &part("sums"), flat)
            })
            .collect();
        let inputs: Vec<&str> = sums.iter().map(String::as_str).collect();
        self.node("Concat", &inputs, "branches.sums", vec![int("axis", 1)])
    }

    /// A transform of `x`; gives its output's name back.
    fn transform(&mut self, x: &str, transform: &Transform) -> String {
        let name = |part: &str| format!("{x}.{part}");
        let vector = |graph: &mut Self, part: &str, values: &[f32]| {
            graph.floats(&name(part), &[values.len()], values)
        };
        let is_zero = |values: &[f32]| values.iter().all(|&value| value == 0.0);
        let mut terms = Vec::new();
        if !is_zero(&transform.curvature) {
            let curvature = vector(self, "curvature", &transform.curvature);
            let one = self.floats(&name("one"), &[1], &[1.0]);
            let positive = self.node("Relu", &[x], &name("positive"), vec![]);
            let scaled = self.node("Mul", &[&positive, &curvature], &name("scaled"), vec![]);
            let shifted = self.node("Add", &[&scaled, &one], &name("shifted"), vec![]);
            terms.push(self.node("Log", &[&shifted], &name("logarithm"), vec![]));
        }
        if !is_zero(&transform.slope) {
            let slope = vector(self, "slope", &transform.slope);
            terms.push(self.node("Mul", &[x, &slope], &name("linear"), vec![]));
        }
        terms.extend(self.bends(x, &transform.bends));
        let sum = terms.into_iter().enumerate().reduce(|(_, sum), (i, term)| {
            let output = match i {
                1 => name("sum"),
                _ => name(&format!("sum{i}")),
            };
            (i, self.node("Add", &[&sum, &term], &output, vec![]))
        });
        // Where there is none, every gain is 0, too, or the offset is all.
        let sum = sum.map_or_else(|| x.to_owned(), |(_, sum)| sum);
        let offset = vector(self, "offset", &transform.offset);
        let gain = vector(self, "gain", &transform.gain);
        let centred = self.node("Sub", &[&sum, &offset], &name("centred"), vec![]);
        let unit = self.node("Mul", &[&centred, &gain], &name("unit"), vec![]);
        let [low, high] = [("low", -transform.limit), ("high", transform.limit)]
            .map(|(part, limit)| self.floats(&name(part), &[], &[limit]));
        self.node("Clip", &[&unit, &low, &high], &name("clipped"), vec![])
    }

    /// What bends make of `x`: the names of terms.
    fn bends(&mut self, x: &str, bends: &Bends) -> Vec<String> {
        let name = |part: &str| format!("{x}.{part}");
        let mut terms = Vec::new();
        if let Some(power) = &bends.power {
            let vector = |graph: &mut Self, part: &str, values: &[f32]| {
                graph.floats(&name(&format!("power.{part}")), &[values.len()], values)
            };
            let shift = vector(self, "shift", &power.shift);
            let exponent = vector(self, "exponent", &power.power);
            let weight = vector(self, "weight", &power.weight);
            let logarithm = vector(self, "logarithm", &power.logarithm);
            let least = self.floats(&name("power.least"), &[1], &[power.least]);
            let one = self.floats(&name("power.one"), &[1], &[1.0]);
            let mut step = |op: &str, inputs: &[&str], output: &str| {
                self.node(op, inputs, &name(&format!("power.{output}")), vec![])
            };
            let shifted = step("Add", &[x, &shift], "shifted");
            let positive = step("Max", &[&shifted, &least], "positive");
            let log = step("Log", &[&positive], "log");
            let scaled = step("Mul", &[&log, &exponent], "scaled");
            let raised = step("Exp", &[&scaled], "raised");
            let less = step("Sub", &[&raised, &one], "less");
            terms.push(step("Mul", &[&less, &weight], "weighted"));
            terms.push(step("Mul", &[&log, &logarithm], "log.weighted"));
        }
        if let Some(logit) = &bends.logit {
            let weight = self.floats(&name("logit.weight"), &[logit.weight.len()], &logit.weight);
            let low = self.floats(&name("logit.low"), &[], &[logit.margin]);
            let high = self.floats(&name("logit.high"), &[], &[1.0 - logit.margin]);
            let one = self.floats(&name("logit.one"), &[1], &[1.0]);
            let mut step = |op: &str, inputs: &[&str], output: &str| {
                self.node(op, inputs, &name(&format!("logit.{output}")), vec![])
            };
            let kept = step("Clip", &[x, &low, &high], "kept");
            let rest = step("Sub", &[&one, &kept], "rest");
            let [log, log_rest] = [
                step("Log", &[&kept], "log"),
                step("Log", &[&rest], "log.rest"),
            ];
            let difference = step("Sub", &[&log, &log_rest], "difference");
            terms.push(step("Mul", &[&difference, &weight], "weighted"));
        }
        for (i, ramp) in bends.ramps.iter().enumerate() {
            let name = |part: &str| format!("{x}.ramp{i}.{part}");
            let vector = |graph: &mut Self, part: &str, values: &[f32]| {
                graph.floats(&name(part), &[values.len()], values)
            };
            let from = vector(self, "from", &ramp.from);
            let width = vector(self, "width", &ramp.width);
            let rise = vector(self, "rise", &ramp.rise);
            let beyond = self.node("Sub", &[x, &from], &name("beyond"), vec![]);
            let positive = self.node("Relu", &[&beyond], &name("positive"), vec![]);
            let within = self.node("Min", &[&positive, &width], &name("within"), vec![]);
            terms.push(self.node("Mul", &[&within, &rise], &name("risen"), vec![]));
        }
        terms
    }

    /// One step of an LSTM on `x` from inputs `h` and `c` to outputs `h_out` and `c_out`; gives
    /// the name of the new h back.
    fn lstm(&mut self, x: &str, cell: &Lstm) -> String {
        let gates = 4 * cell.hidden;
        let w = self.floats("lstm.w", &[1, gates, cell.inputs], &cell.input_weights);
        let r = self.floats("lstm.r", &[1, gates, cell.hidden], &cell.recurrent_weights);
        let b = self.floats("lstm.b", &[1, 2 * gates], &cell.bias);
        // The op runs over [time, batch, features]; a decision is one step.
        let time = self.ints("axis0", &[0]);
        let [x, h, c] = [x, "h", "c"].map(|value| {
            self.node(
                "Unsqueeze",
                &[value, &time],
                &format!("{value}.step"),
                vec![],
            )
        });
        let size = i64::try_from(cell.hidden).unwrap_or(i64::MAX);
        self.node_into(
            "LSTM",
            &[&x, &w, &r, &b, "", &h, &c],
            &["", "h_out.step", "c_out.step"],
            vec![int("hidden_size", size)],
        );
        self.node_into("Squeeze", &["c_out.step", &time], &["c_out"], vec![]);
        self.node("Squeeze", &["h_out.step", &time], "h_out", vec![])
    }

    /// The file's bytes; the same graph and metadata give the same bytes.
    pub(super) fn finish(self, meta: &PolicyMeta, description: &str) -> Vec<u8> {
        self.finish_as(&meta.widths(), (META_KEY, meta.to_json()), description)
    }

    /// The same for any kind of policy: `metadata` are the key and the value of its entry.
    fn finish_as(
        self,
        widths: &Widths,
        (key, value): (&str, String),
        description: &str,
    ) -> Vec<u8> {
        let (inputs, outputs) = ports(widths);
        let value_info = |(name, width): &(&str, Option<usize>)| {
            let batch = dimension::Value::DimParam("N".to_owned());
            let width = width.map(|w| dimension::Value::DimValue(i64::try_from(w).unwrap_or(-1)));
            let dim = [Some(batch), width]
                .into_iter()
                .flatten()
                .map(|value| Dimension {
                    value: Some(value),
                    ..Dimension::default()
                })
                .collect();
            let tensor = type_proto::Tensor {
                elem_type: DataType::Float as i32,
                shape: Some(TensorShapeProto { dim }),
            };
            ValueInfoProto {
                name: (*name).to_owned(),
                r#type: Some(TypeProto {
                    value: Some(type_proto::Value::TensorType(tensor)),
                    ..TypeProto::default()
                }),
                ..ValueInfoProto::default()
            }
        };
        let graph = GraphProto {
            name: "policy".to_owned(),
            node: self.nodes,
            initializer: self.initializers,
            input: inputs.iter().map(value_info).collect(),
            output: outputs.iter().map(value_info).collect(),
            ..GraphProto::default()
        };
        let model = ModelProto {
            ir_version: 8,
            opset_import: vec![OperatorSetIdProto {
                domain: String::new(),
                version: 13,
            }],
            producer_name: "rlcc".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            doc_string: description.to_owned(),
            graph: Some(graph),
            metadata_props: vec![StringStringEntryProto {
                key: key.to_owned(),
                value,
            }],
            ..ModelProto::default()
        };
        model.encode_to_vec()
    }

    fn constant(
        &mut self,
        name: &str,
        dims: &[usize],
        data_type: DataType,
        little_endian: impl Iterator<Item = u8>,
    ) -> String {
        self.initializers.push(TensorProto {
            name: name.to_owned(),
            dims: dims
                .iter()
                .map(|&d| i64::try_from(d).unwrap_or(-1))
                .collect(),
            data_type: data_type as i32,
            raw_data: little_endian.collect(),
            ..TensorProto::default()
        });
        name.to_owned()
    }
}

/// An integer attribute of a node.
fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: attribute_proto::AttributeType::Int as i32,
        i: value,
        ..AttributeProto::default()
    }
}
