//! The kernels of `kernels.cu` and their arguments.

use super::matrix::Matrix;
use crate::model::{Activation, RmsProp};

/// The names of all kernels.
pub(super) const KERNELS: [&str; 9] = [
    "activate",
    "activate_backward",
    "copy_columns",
    "fill",
    "lstm_backward",
    "lstm_begin",
    "lstm_forward",
    "rmsprop",
    "sum_squares",
];

/// Threads of a block, for every kernel.
pub(super) const BLOCK: usize = 256;

/// A kernel with what it is called on. The kernel's comment says what it does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Activate {
        y: Matrix,
        bias: Matrix,
        /// None only adds the bias.
        activation: Option<Activation>,
    },
    ActivateBackward {
        d: Matrix,
        y: Matrix,
        activation: Activation,
    },
    CopyColumns {
        from: Matrix,
        into: Matrix,
    },
    Fill {
        into: Matrix,
        value: f32,
    },
    LstmBackward {
        gates: Matrix,
        c_before: Matrix,
        c: Matrix,
        dh: Matrix,
        keep_next: Matrix,
        dh_next: Matrix,
        dc: Matrix,
    },
    LstmBegin {
        h: Matrix,
        c: Matrix,
        keep: Matrix,
        h_before: Matrix,
        c_before: Matrix,
    },
    LstmForward {
        gates: Matrix,
        bias: Matrix,
        c_before: Matrix,
        c: Matrix,
        h: Matrix,
        keep_next: Matrix,
        h_before_next: Matrix,
        c_before_next: Matrix,
    },
    RmsProp {
        parameters: Matrix,
        gradient: Matrix,
        mean_square: Matrix,
        velocity: Matrix,
        scale: f32,
        optimiser: RmsProp,
    },
    SumSquares {
        x: Matrix,
        sums: Matrix,
    },
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    /// A pointer to the first element.
    Array(Matrix),
    Integer(i32),
    Real(f32),
}

impl Call {
    /// The kernel's name.
    pub(super) fn kernel(&self) -> &'static str {
        match self {
            Self::Activate { .. } => "activate",
            Self::ActivateBackward { .. } => "activate_backward",
            Self::CopyColumns { .. } => "copy_columns",
            Self::Fill { .. } => "fill",
            Self::LstmBackward { .. } => "lstm_backward",
            Self::LstmBegin { .. } => "lstm_begin",
            Self::LstmForward { .. } => "lstm_forward",
            Self::RmsProp { .. } => "rmsprop",
            Self::SumSquares { .. } => "sum_squares",
        }
    }

    /// Blocks of [`BLOCK`] threads that together give each element one.
    pub(super) fn blocks(&self) -> usize {
        let elements = match self {
            Self::Activate { y, .. } => y.count(),
            Self::ActivateBackward { d, .. } => d.count(),
            Self::CopyColumns { into, .. } | Self::Fill { into, .. } => into.count(),
            Self::LstmBackward { c, .. }
            | Self::LstmBegin { c, .. }
            | Self::LstmForward { c, .. } => c.count(),
            Self::RmsProp { parameters, .. } => parameters.count(),
            Self::SumSquares { sums, .. } => sums.count(),
        };
        elements.div_ceil(BLOCK)
    }

    /// The kernel's arguments, in its order.
    ///
    /// # Panics
    ///
    /// When matrices have not the sizes that the kernel takes them to have, or too many elements for its indices.
    pub(super) fn arguments(&self) -> Vec<Argument> {
        use Argument::{Array, Real};
        match *self {
            Self::Activate {
                y,
                bias,
                activation,
            } => {
                assert_eq!(bias.count(), y.cols, "{self:?}");
                let code = Argument::Integer(activation.map_or(0, code));
                let bias = dense(bias);
                vec![
                    Array(y),
                    integer(y.stride),
                    bias,
                    integer(y.rows),
                    integer(y.cols),
                    code,
                ]
            }
            Self::ActivateBackward { d, y, activation } => {
                assert_eq!((d.rows, d.cols), (y.rows, y.cols), "{self:?}");
                vec![
                    Array(d),
                    integer(d.stride),
                    Array(y),
                    integer(y.stride),
                    integer(d.rows),
                    integer(d.cols),
                    Argument::Integer(code(activation)),
                ]
            }
            Self::CopyColumns { from, into } => {
                assert_eq!((from.rows, from.cols), (into.rows, into.cols), "{self:?}");
                vec![
                    Array(from),
                    integer(from.stride),
                    Array(into),
                    integer(into.stride),
                    integer(into.rows),
                    integer(into.cols),
                ]
            }
            Self::Fill { into, value } => vec![dense(into), integer(into.count()), Real(value)],
            Self::LstmBackward {
                gates,
                c_before,
                c,
                dh,
                keep_next,
                dh_next,
                dc,
            } => {
                self.check_step(gates, keep_next, &[c_before, c, dh, dh_next, dc]);
                vec![
                    dense(gates),
                    dense(c_before),
                    dense(c),
                    Array(dh),
                    integer(dh.stride),
                    dense(keep_next),
                    dense(dh_next),
                    dense(dc),
                    integer(c.rows),
                    integer(c.cols),
                ]
            }
            Self::LstmBegin {
                h,
                c,
                keep,
                h_before,
                c_before,
            } => {
                for matrix in [h, h_before, c_before] {
                    assert_eq!((matrix.rows, matrix.cols), (c.rows, c.cols), "{self:?}");
                }
                assert_eq!(keep.count(), c.rows, "{self:?}");
                let arrays = [h, c, keep, h_before, c_before].map(dense);
                let sizes = [c.rows, c.cols].map(integer);
                arrays.into_iter().chain(sizes).collect()
            }
            Self::LstmForward {
                gates,
                bias,
                c_before,
                c,
                h,
                keep_next,
                h_before_next,
                c_before_next,
            } => {
                let states = [c_before, c, h, h_before_next, c_before_next];
                self.check_step(gates, keep_next, &states);
                assert_eq!(bias.count(), gates.cols, "{self:?}");
                vec![
                    dense(gates),
                    dense(bias),
                    dense(c_before),
                    dense(c),
                    Array(h),
                    integer(h.stride),
                    dense(keep_next),
                    dense(h_before_next),
                    dense(c_before_next),
                    integer(c.rows),
                    integer(c.cols),
                ]
            }
            Self::RmsProp {
                parameters,
                gradient,
                mean_square,
                velocity,
                scale,
                optimiser,
            } => {
                for matrix in [gradient, mean_square, velocity] {
                    assert_eq!(matrix.count(), parameters.count(), "{self:?}");
                }
                vec![
                    dense(parameters),
                    dense(gradient),
                    dense(mean_square),
                    dense(velocity),
                    integer(parameters.count()),
                    Real(scale),
                    Real(optimiser.learning_rate),
                    Real(optimiser.decay),
                    Real(optimiser.epsilon),
                    Real(optimiser.momentum),
                ]
            }
            Self::SumSquares { x, sums } => vec![
                dense(x),
                integer(x.count()),
                dense(sums),
                integer(sums.count()),
            ],
        }
    }

    /// That the matrices of one step of an LSTM are of one size.
    fn check_step(&self, gates: Matrix, keep: Matrix, states: &[Matrix]) {
        assert!(
            states.iter().all(|state| state.rows == gates.rows
                && 4 * state.cols == gates.cols
                && keep.count() == gates.rows),
            "{self:?}"
        );
    }
}

/// As `kernels.cu` numbers them.
fn code(activation: Activation) -> i32 {
    match activation {
        Activation::Relu => 1,
        Activation::Tanh => 2,
    }
}

/// An array whose kernel knows no stride.
fn dense(matrix: Matrix) -> Argument {
    assert!(matrix.is_dense(), "{matrix:?}");
    Argument::Array(matrix)
}

/// Kernels count with 32 bits.
fn integer(number: usize) -> Argument {
    Argument::Integer(i32::try_from(number).expect("fewer than 2^31 elements in an array"))
}
