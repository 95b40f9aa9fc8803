//! The layout of the flat vector of parameters, and initial parameters.

use std::ops::Range;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{Shape, Write};

/// Width of the hidden layer of a baseline with a privileged observation.
pub const CRITIC_WIDTH: usize = 64;

/// A row-major array `[rows, cols]` in the flat vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Name of the array, unique in a layout, such as `lstm.recurrent`.
    pub name: String,
    /// Number of the layer's inputs; 1 for a bias.
    pub rows: usize,
    /// Number of the layer's outputs.
    pub cols: usize,
    /// Index of the first element in the flat vector.
    pub offset: usize,
}

impl Array {
    /// The indices of the array in the flat vector.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.rows * self.cols
    }

    /// The array's part of a flat vector.
    ///
    /// # Panics
    ///
    /// Panics if the vector is shorter than the layout.
    pub fn of<'a, R>(&self, flat: &'a [R]) -> &'a [R] {
        &flat[self.range()]
    }

    /// The array's part of a flat vector, mutably.
    ///
    /// # Panics
    ///
    /// Panics if the vector is shorter than the layout.
    pub fn of_mut<'a, R>(&self, flat: &'a mut [R]) -> &'a mut [R] {
        &mut flat[self.range()]
    }
}

/// A fully connected layer y = x W + b.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The weights W, `[inputs, outputs]`.
    pub weights: Array,
    /// The bias b, `[1, outputs]`.
    pub bias: Array,
}

/// The parameters of an LSTM cell. Columns are the gates i, f, g, o of all units in turn:
/// `[i_0 … i_S-1, f_0 …, g_0 …, o_0 …]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LstmArrays {
    /// The input weights W, `[last hidden + 1, 4 S]`; the last row belongs to the reward.
    pub input: Array,
    /// The recurrent weights U, `[S, 4 S]`.
    pub recurrent: Array,
    /// The bias b, `[1, 4 S]`.
    pub bias: Array,
}

/// The arrays of a network, in the order of the flat vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterLayout {
    /// The branches: the weights of a filter are a column of `[width, filters]`, the same at all of
    /// its positions.
    pub branches: Vec<Layer>,
    /// The fully connected layers that take the observation, or the outputs of the branches.
    pub trunk: Vec<Layer>,
    /// The LSTM; `None` for a network without one.
    pub lstm: Option<LstmArrays>,
    /// From the features to the logits and the predictions. The features are the LSTM's hidden
    /// state, or without an LSTM the trunk's output and the reward.
    pub policy: Layer,
    /// From the features to the baselines. With a privileged observation, from the features and
    /// that to a ReLU layer of width [`CRITIC_WIDTH`], and from there to the baselines.
    pub critic: Vec<Layer>,
    len: usize,
}

impl ParameterLayout {
    /// The layout of a network of this shape.
    pub fn of(shape: &Shape) -> Self {
        let mut next = Allocator { offset: 0 };
        let branches = shape.branches.iter().enumerate();
        let branches = branches
            .map(|(i, branch)| next.layer(&format!("branch{i}"), branch.width, branch.filters))
            .collect();
        let mut width = shape.trunk_input();
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
        let policy = next.layer("policy", features, shape.outputs());
        let critic = if shape.privileged == 0 {
            vec![next.layer("critic", features, shape.values)]
        } else {
            vec![
                next.layer("critic0", features + shape.privileged, CRITIC_WIDTH),
                next.layer("critic1", CRITIC_WIDTH, shape.values),
            ]
        };
        Self {
            branches,
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

    /// The positions of all branches' filters, in the order of the outputs.
    pub(super) fn positions<'a>(&'a self, shape: &'a Shape) -> impl Iterator<Item = Position<'a>> {
        let mut end = 0;
        let branches = shape.branches.iter().zip(&self.branches);
        let positions = branches.flat_map(|(branch, layer)| {
            (0..branch.positions()).map(move |position| (branch, layer, position))
        });
        positions.map(move |(branch, layer, position)| {
            let start = end;
            end += branch.filters;
            Position {
                layer,
                inputs: branch.from + position..branch.from + position + branch.width,
                outputs: start..end,
                write: match position {
                    0 => Write::Replace,
                    _ => Write::Add,
                },
            }
        })
    }

    /// All arrays, in the order of the flat vector.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        fn of(layer: &Layer) -> [&Array; 2] {
            [&layer.weights, &layer.bias]
        }
        let lstm = self.lstm.iter();
        self.branches
            .iter()
            .chain(&self.trunk)
            .flat_map(of)
            .chain(lstm.flat_map(|lstm| [&lstm.input, &lstm.recurrent, &lstm.bias]))
            .chain(of(&self.policy))
            .chain(self.critic.iter().flat_map(of))
    }
}

/// A position of a branch's filters.
pub(super) struct Position<'a> {
    /// The parameters, which all positions of the branch share.
    pub(super) layer: &'a Layer,
    /// The columns of the observation that the filters take there.
    pub(super) inputs: Range<usize>,
    /// The columns of the trunk's input that they give.
    pub(super) outputs: Range<usize>,
    /// Whether a gradient of the parameters is the first one, or is added to those of the
    /// positions before.
    pub(super) write: Write,
}

/// Random initial parameters, in [`ParameterLayout`]'s order: uniform on ±1/√inputs for the
/// weights and the bias of a layer, on ±1/√width for those of a filter, and on ±1/√S for those of
/// the LSTM, as PyTorch's `nn.Linear`, `nn.Conv1d` and `nn.LSTM` do by default.
pub fn initialise(shape: &Shape, seed: u64) -> Vec<f32> {
    let layout = ParameterLayout::of(shape);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut parameters = vec![0.0; layout.len()];
    let mut draw = |array: &Array, fan_in: usize| {
        let bound = 1.0 / (fan_in as f32).sqrt();
        array
            .of_mut(&mut parameters)
            .fill_with(|| rng.random_range(-bound..bound));
    };
    let heads = [&layout.policy].into_iter().chain(&layout.critic);
    for layer in layout.branches.iter().chain(&layout.trunk).chain(heads) {
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

/// Places arrays one after the other in the flat vector.
struct Allocator {
    offset: usize,
}

impl Allocator {
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
    use crate::model::{Activation, Branch};

    #[test]
    fn arrays_are_adjacent_and_have_unique_names() {
        for lstm in [Some(7), None] {
            for privileged in [0, 3] {
                let shape = Shape {
                    observation: 5,
                    hidden: vec![6, 4],
                    activation: Activation::Tanh,
                    lstm,
                    actions: 2,
                    privileged,
                    predictions: 0,
                    values: 3,
                    branches: vec![],
                };
                let layout = ParameterLayout::of(&shape);
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

    /// The sizes of 220 → 512 → 512, reward, LSTM of 512, 5 + 1 outputs, added up.
    #[test]
    fn the_network_of_the_benchmark_has_2_48_million_parameters() {
        let shape = Shape {
            observation: 220,
            hidden: vec![512, 512],
            activation: Activation::Relu,
            lstm: Some(512),
            actions: 5,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        let trunk = 220 * 512 + 512 + 512 * 512 + 512;
        let lstm = 513 * 2048 + 512 * 2048 + 2048;
        let heads = 512 * 5 + 5 + 512 + 1;
        assert_eq!(ParameterLayout::of(&shape).len(), trunk + lstm + heads);
    }

    /// Those of a network without branches, which begins with the same arrays as before there were
    /// any, drawn in the same order.
    #[test]
    fn branches_come_before_the_trunk_and_filters_are_drawn_by_their_width() {
        let plain = Shape {
            observation: 12,
            hidden: vec![3],
            activation: Activation::Relu,
            lstm: None,
            actions: 2,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        let names = |shape: &Shape| -> Vec<String> {
            let layout = ParameterLayout::of(shape);
            layout.arrays().map(|array| array.name.clone()).collect()
        };
        assert_eq!(names(&plain)[..2], ["trunk0.weights", "trunk0.bias"]);
        assert!(
            !serde_json::to_string(&plain)
                .expect("plain data")
                .contains("branches")
        );

        let branch = |from, length, width| Branch {
            from,
            length,
            width,
            filters: 50,
        };
        let shape = Shape {
            branches: vec![branch(0, 8, 4), branch(8, 4, 4)],
            ..plain
        };
        let found = names(&shape);
        assert_eq!(found[..2], ["branch0.weights", "branch0.bias"]);
        assert_eq!(found[4], "trunk0.weights");
        let layout = ParameterLayout::of(&shape);
        // Five positions of the first, one of the second.
        assert_eq!(
            (shape.trunk_input(), layout.trunk[0].weights.rows),
            (300, 300)
        );
        assert!(shape.branches[1].is_dense() && !shape.branches[0].is_dense());
        let parameters = initialise(&shape, 1);
        for layer in &layout.branches {
            assert_eq!((layer.weights.rows, layer.weights.cols), (4, 50));
            let weights = layer.weights.of(&parameters);
            let largest = weights.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            // Of 200 uniform on ±1/2.
            assert!((0.45..=0.5).contains(&largest), "{largest}");
        }
        let json = serde_json::to_string(&shape).expect("plain data");
        assert_eq!(
            serde_json::from_str::<Shape>(&json).expect("our own"),
            shape
        );
    }
}
