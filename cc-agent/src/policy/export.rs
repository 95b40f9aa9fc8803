//! Writes policies as ONNX files: opset 13, one graph, batch dimension `N`.

use prost::Message;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto, type_proto,
};

use super::file::{META_KEY, ports};
use super::meta::PolicyMeta;

/// A fully connected layer: `y = x · weights + bias`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    /// Length of x.
    pub inputs: usize,
    /// Length of y.
    pub outputs: usize,
    /// `[inputs, outputs]`, row-major.
    pub weights: Vec<f32>,
    /// `[outputs]`.
    pub bias: Vec<f32>,
}

/// An LSTM cell with gates in ONNX order: input, output, forget, cell.
///
/// Other libraries order the gates otherwise (input, forget, cell, output): permute first.
#[derive(Debug, Clone, PartialEq)]
pub struct Lstm {
    /// Length of its input.
    pub inputs: usize,
    /// Length H of h and of c.
    pub hidden: usize,
    /// `[4·H, inputs]`, row-major.
    pub input_weights: Vec<f32>,
    /// `[4·H, H]`, row-major.
    pub recurrent_weights: Vec<f32>,
    /// `[8·H]`: the input biases of the four gates, then their recurrent biases.
    pub bias: Vec<f32>,
}

/// What every layer of the trunk is followed by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Activation {
    /// max(0, x).
    #[default]
    Relu,
    /// tanh x.
    Tanh,
}

/// What the inputs go through before the network, element by element:
/// `clip((ln(1 + curvature · max(0, x)) + slope · x − offset) · gain)`.
///
/// Each vector has a value per input. A curvature of 0 leaves out the logarithm, a gain of 0 the input.
#[derive(Debug, Clone, PartialEq)]
pub struct Transform {
    /// Inside the logarithm.
    pub curvature: Vec<f32>,
    /// Of the linear part.
    pub slope: Vec<f32>,
    /// Subtracted.
    pub offset: Vec<f32>,
    /// Multiplied by at last.
    pub gain: Vec<f32>,
    /// Results are kept within ± this.
    pub limit: f32,
}

/// The paper's network (section 4) with its variants: inputs transformed or not, a trunk, the reward appended, an LSTM
/// or none, policy and baseline heads.
#[derive(Debug, Clone, PartialEq)]
pub struct ActorCritic {
    /// Of the observation.
    pub observation: Option<Transform>,
    /// Of the reward.
    pub reward: Option<Transform>,
    /// The first layer takes the observation.
    pub trunk: Vec<Dense>,
    /// Follows each of them.
    pub activation: Activation,
    /// Takes the last trunk layer's output and the reward; without one, the heads do, and the state is handed through.
    pub lstm: Option<Lstm>,
    /// From h, or what stands for it, to one logit per action.
    pub policy: Dense,
    /// From h, or what stands for it, to one value: layers with ReLU between.
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
        let mut width = meta.environment.observation_len();
        let mut trunk = vec![];
        for &hidden in &meta.hidden {
            trunk.push(dense(width, hidden));
            width = hidden;
        }
        let hidden = meta.state;
        let policy = dense(hidden, meta.environment.actions.len());
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
        let mut graph = GraphBuilder::default();
        let mut x = "observation".to_owned();
        if let Some(transform) = &self.observation {
            x = graph.transform(&x, transform);
        }
        let operator = match self.activation {
            Activation::Relu => "Relu",
            Activation::Tanh => "Tanh",
        };
        for (i, layer) in self.trunk.iter().enumerate() {
            let sums = graph.dense(&format!("trunk{i}"), &x, layer);
            x = graph.node(operator, &[&sums], &format!("trunk{i}.activation"), vec![]);
        }
        let axis = graph.ints("axis1", &[1]);
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
        graph.finish(meta, description)
    }
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
        let sum = match terms.as_slice() {
            [] => x.to_owned(),
            [term] => term.clone(),
            [first, second, ..] => self.node("Add", &[first, second], &name("sum"), vec![]),
        };
        let offset = vector(self, "offset", &transform.offset);
        let gain = vector(self, "gain", &transform.gain);
        let centred = self.node("Sub", &[&sum, &offset], &name("centred"), vec![]);
        let unit = self.node("Mul", &[&centred, &gain], &name("unit"), vec![]);
        let [low, high] = [("low", -transform.limit), ("high", transform.limit)]
            .map(|(part, limit)| self.floats(&name(part), &[], &[limit]));
        self.node("Clip", &[&unit, &low, &high], &name("clipped"), vec![])
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
        let (inputs, outputs) = ports(meta);
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
                key: META_KEY.to_owned(),
                value: meta.to_json(),
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
