//! The inputs and outputs of a policy's graph.

/// A name and the width of the value's second dimension, where it has one; the first is the batch.
pub(super) type Port = (&'static str, Option<usize>);

/// The widths of a policy's inputs and outputs. Its graph must have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widths {
    /// The length of an observation.
    pub observation: usize,
    /// The number of actions.
    pub actions: usize,
    /// The width of each of the two recurrent state vectors, h and c; at least 1.
    pub state: usize,
}

/// The inputs and outputs that a policy of these widths has, in their order.
///
/// A value's name is defined only once in ONNX, so the new state is called `h_out` and `c_out`. A
/// policy without memory may hand `h` and `c` through under their own names.
pub(super) fn ports(widths: &Widths) -> ([Port; 4], [Port; 4]) {
    let state = Some(widths.state);
    (
        [
            ("observation", Some(widths.observation)),
            ("reward", None),
            ("h", state),
            ("c", state),
        ],
        [
            ("logits", Some(widths.actions)),
            ("baseline", None),
            ("h_out", state),
            ("c_out", state),
        ],
    )
}
