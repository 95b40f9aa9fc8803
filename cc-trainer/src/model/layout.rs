//! Where each array lies in the flat vector of parameters, and what it holds before training.

use std::ops::Range;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::Shape;

/// Width of the hidden layer of a baseline that sees more than the policy.
pub const CRITIC_WIDTH: usize = 64;

/// A row-major array `[rows, cols]` in the flat vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Unique in a layout, such as `lstm.recurrent`.
    pub name: String,
    /// Inputs of a layer; 1 for a bias.
    pub rows: usize,
    /// Outputs of a layer.
    pub cols: usize,
    /// Index of its first element.
    pub offset: usize,
}

impl Array {
    /// Its indices in the flat vector.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.rows * self.cols
    }

    /// Its part of a flat vector.
    pub fn of<'a, R>(&self, flat: &'a [R]) -> &'a [R] {
        &flat[self.range()]
    }

    /// Its part of a flat vector, to write.
    pub fn of_mut<'a, R>(&self, flat: &'a mut [R]) -> &'a mut [R] {
        &mut flat[self.range()]
    }
}

/// A fully connected layer y = x W + b.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// W `[inputs, outputs]`.
    pub weights: Array,
    /// b `[1, outputs]`.
    pub bias: Array,
}

/// An LSTM cell. The columns are the gates i, f, g, o of all units: `[i_0 … i_S-1, f_0 …, g_0 …, o_0 …]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LstmArrays {
    /// `[last hidden + 1, 4 S]`; the last row is the reward's.
    pub input: Array,
    /// `[S, 4 S]`.
    pub recurrent: Array,
    /// `[1, 4 S]`.
    pub bias: Array,
}

/// The arrays of a network, in the order of the flat vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The layers between observation and reward.
    pub trunk: Vec<Layer>,
    /// The LSTM, if there is one.
    pub lstm: Option<LstmArrays>,
    /// From the features to logits. The features are the LSTM's h, or without it the trunk's output and the reward.
    pub policy: Layer,
    /// From the features to the baseline; with privileged input, from `[features, privileged]` to a ReLU layer of
    /// [`CRITIC_WIDTH`] and from there to the baseline.
    pub critic: Vec<Layer>,
    len: usize,
}

impl Layout {
    /// The layout of a network.
    pub fn of(shape: &Shape) -> Self {
        let mut next = Next { offset: 0 };
        let mut width = shape.observation;
        let mut trunk = Vec::with_capacity(shape.hidden.len());
        for (i, &outputs) in shape.hidden.iter().enumerate() {
            trunk.push(next.layer(&format!("trunk{i}"), width, outputs));
            width = outputs;
        }
        let lstm = shape.lstm.map(|units| LstmArrays {
            input: next.array("lstm.input", width + 1, 4 * units),
            recurrent: next.array("lstm.recurrent", units, 4 * units),
            bias: next.array("lstm.bias", 1, 4 * units),
        });
        let features = shape.features();
        let policy = next.layer("policy", features, shape.actions);
        let critic = if shape.privileged == 0 {
            vec![next.layer("critic", features, 1)]
        } else {
            vec![
                next.layer("critic0", features + shape.privileged, CRITIC_WIDTH),
                next.layer("critic1", CRITIC_WIDTH, 1),
            ]
        };
        Self {
            trunk,
            lstm,
            policy,
            critic,
            len: next.offset,
        }
    }

    /// Length of the flat vector.
    #[expect(
        clippy::len_without_is_empty,
        reason = "no network is without parameters"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// All arrays, in order.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        fn of(layer: &Layer) -> [&Array; 2] {
            [&layer.weights, &layer.bias]
        }
        let lstm = self.lstm.iter();
        self.trunk
            .iter()
            .flat_map(of)
            .chain(lstm.flat_map(|lstm| [&lstm.input, &lstm.recurrent, &lstm.bias]))
            .chain(of(&self.policy))
            .chain(self.critic.iter().flat_map(of))
    }
}

/// Parameters to begin with, in [`Layout`]'s order: uniform on ±1/√inputs for a layer's weights and bias, on ±1/√S for
/// all of an LSTM's (PyTorch's defaults for `nn.Linear` and `nn.LSTM`).
pub fn initialise(shape: &Shape, seed: u64) -> Vec<f32> {
    let layout = Layout::of(shape);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut parameters = vec![0.0; layout.len()];
    let mut draw = |array: &Array, fan_in: usize| {
        let bound = 1.0 / (fan_in as f32).sqrt();
        array
            .of_mut(&mut parameters)
            .fill_with(|| rng.random_range(-bound..bound));
    };
    let heads = [&layout.policy].into_iter().chain(&layout.critic);
    for layer in layout.trunk.iter().chain(heads) {
        draw(&layer.weights, layer.weights.rows);
        draw(&layer.bias, layer.weights.rows);
    }
    if let Some(lstm) = &layout.lstm {
        for array in [&lstm.input, &lstm.recurrent, &lstm.bias] {
            draw(array, lstm.recurrent.rows);
        }
    }
    parameters
}

/// Places arrays one after the other.
struct Next {
    offset: usize,
}

impl Next {
    fn layer(&mut self, name: &str, inputs: usize, outputs: usize) -> Layer {
        Layer {
            weights: self.array(&format!("{name}.weights"), inputs, outputs),
            bias: self.array(&format!("{name}.bias"), 1, outputs),
        }
    }

    fn array(&mut self, name: &str, rows: usize, cols: usize) -> Array {
        let array = Array {
            name: name.to_owned(),
            rows,
            cols,
            offset: self.offset,
        };
        self.offset += rows * cols;
        array
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Activation;

    #[test]
    fn arrays_lie_one_after_the_other_under_their_own_names() {
        for lstm in [Some(7), None] {
            for privileged in [0, 3] {
                let shape = Shape {
                    observation: 5,
                    hidden: vec![6, 4],
                    activation: Activation::Tanh,
                    lstm,
                    actions: 2,
                    privileged,
                };
                let layout = Layout::of(&shape);
                let mut names = Vec::new();
                let mut end = 0;
                for array in layout.arrays() {
                    assert_eq!(array.range().start, end, "{}", array.name);
                    end = array.range().end;
                    assert!(!names.contains(&&array.name), "{} twice", array.name);
                    names.push(&array.name);
                }
                assert_eq!(end, layout.len());

                let parameters = initialise(&shape, 1);
                assert_eq!(parameters, initialise(&shape, 1));
                assert_ne!(parameters, initialise(&shape, 2));
                for array in layout.arrays() {
                    let values = array.of(&parameters);
                    assert!(values.iter().all(|x| x.abs() <= 0.5), "{}", array.name);
                    assert!(values.iter().any(|&x| x != 0.0), "{}", array.name);
                }
            }
        }
    }

    /// 220 → 512 → 512, reward, LSTM of 512, 5 + 1: the sizes of the layers, added up.
    #[test]
    fn the_network_of_the_benchmark_has_2_48_million_parameters() {
        let shape = Shape {
            observation: 220,
            hidden: vec![512, 512],
            activation: Activation::Relu,
            lstm: Some(512),
            actions: 5,
            privileged: 0,
        };
        let trunk = 220 * 512 + 512 + 512 * 512 + 512;
        let lstm = 513 * 2048 + 512 * 2048 + 2048;
        let heads = 512 * 5 + 5 + 512 + 1;
        assert_eq!(Layout::of(&shape).len(), trunk + lstm + heads);
    }
}
