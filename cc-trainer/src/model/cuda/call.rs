//! Calls of the kernels of `kernels.cu`.

use super::matrix::DeviceMatrix;
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

/// Number of threads per block, for every kernel.
pub(super) const BLOCK: usize = 256;

/// A call of a kernel. The kernel's comment in `kernels.cu` says what it computes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Activate {
        y: DeviceMatrix,
        bias: DeviceMatrix,
        /// `None` to add the bias alone.
        activation: Option<Activation>,
    },
    ActivateBackward {
        d: DeviceMatrix,
        y: DeviceMatrix,
        activation: Activation,
    },
    CopyColumns {
        from: DeviceMatrix,
        into: DeviceMatrix,
    },
    Fill {
        into: DeviceMatrix,
        value: f32,
    },
    LstmBackward {
        gates: DeviceMatrix,
        c_before: DeviceMatrix,
        c: DeviceMatrix,
        dh: DeviceMatrix,
        not_done_next: DeviceMatrix,
        dh_next: DeviceMatrix,
        dc: DeviceMatrix,
    },
    LstmBegin {
        h: DeviceMatrix,
        c: DeviceMatrix,
        not_done: DeviceMatrix,
        h_before: DeviceMatrix,
        c_before: DeviceMatrix,
    },
    LstmForward {
        gates: DeviceMatrix,
        bias: DeviceMatrix,
        c_before: DeviceMatrix,
        c: DeviceMatrix,
        h: DeviceMatrix,
        not_done_next: DeviceMatrix,
        h_before_next: DeviceMatrix,
        c_before_next: DeviceMatrix,
    },
    RmsProp {
        parameters: DeviceMatrix,
        gradient: DeviceMatrix,
        mean_square: DeviceMatrix,
        velocity: DeviceMatrix,
        scale: f32,
        optimiser: RmsProp,
    },
    SumSquares {
        x: DeviceMatrix,
        sums: DeviceMatrix,
    },
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    /// A pointer to the first element of a matrix.
    Array(DeviceMatrix),
    Integer(i32),
    Real(f32),
}

impl Call {
    /// Name of the kernel in `kernels.cu`.
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

    /// Number of blocks of [`BLOCK`] threads that have a thread for every element.
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

    /// The kernel's arguments, in the order of its parameters.
    ///
    /// # Panics
    ///
    /// Panics if the sizes of the matrices do not fit the kernel, or
    /// their elements its 32-bit indices.
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
                not_done_next,
                dh_next,
                dc,
            } => {
                self.check_step(gates, not_done_next, &[c_before, c, dh, dh_next, dc]);
                vec![
                    dense(gates),
                    dense(c_before),
                    dense(c),
                    Array(dh),
                    integer(dh.stride),
                    dense(not_done_next),
                    dense(dh_next),
                    dense(dc),
                    integer(c.rows),
                    integer(c.cols),
                ]
            }
            Self::LstmBegin {
                h,
                c,
                not_done,
                h_before,
                c_before,
            } => {
                for matrix in [h, h_before, c_before] {
                    assert_eq!((matrix.rows, matrix.cols), (c.rows, c.cols), "{self:?}");
                }
                assert_eq!(not_done.count(), c.rows, "{self:?}");
                let arrays = [h, c, not_done, h_before, c_before].map(dense);
                let sizes = [c.rows, c.cols].map(integer);
                arrays.into_iter().chain(sizes).collect()
            }
            Self::LstmForward {
                gates,
                bias,
                c_before,
                c,
                h,
                not_done_next,
                h_before_next,
                c_before_next,
            } => {
                let states = [c_before, c, h, h_before_next, c_before_next];
                self.check_step(gates, not_done_next, &states);
                assert_eq!(bias.count(), gates.cols, "{self:?}");
                vec![
                    dense(gates),
                    dense(bias),
                    dense(c_before),
                    dense(c),
                    Array(h),
                    integer(h.stride),
                    dense(not_done_next),
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
                    Real(optimiser.correction),
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

    /// Asserts that the sizes of the matrices of an LSTM's step agree.
    fn check_step(&self, gates: DeviceMatrix, not_done: DeviceMatrix, states: &[DeviceMatrix]) {
        assert!(
            states.iter().all(|state| state.rows == gates.rows
                && 4 * state.cols == gates.cols
                && not_done.count() == gates.rows),
            "{self:?}"
        );
    }
}

/// The number of an activation function in `kernels.cu`.
fn code(activation: Activation) -> i32 {
    match activation {
        Activation::Relu => 1,
        Activation::Tanh => 2,
    }
}

/// The argument for a matrix that the kernel takes without a stride.
fn dense(matrix: DeviceMatrix) -> Argument {
    assert!(matrix.is_dense(), "{matrix:?}");
    Argument::Array(matrix)
}

/// The argument for a size, of which kernels have 32 bits.
fn integer(number: usize) -> Argument {
    Argument::Integer(i32::try_from(number).expect("fewer than 2^31 elements in an array"))
}
