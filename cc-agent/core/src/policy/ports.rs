//! The inputs and outputs of a policy's graph.

use super::meta::PolicyMeta;

/// A name and the width of the value's second dimension, where it has one; the first is the batch.
pub(super) type Port = (&'static str, Option<usize>);

/// The inputs and outputs that a policy of this description has, in their order.
///
/// A value's name is defined only once in ONNX, so the new state is called `h_out` and `c_out`. A
/// policy without memory may hand `h` and `c` through under their own names.
pub(super) fn ports(meta: &PolicyMeta) -> ([Port; 4], [Port; 4]) {
    let interface = &meta.interface;
    let state = Some(meta.state);
    (
        [
            ("observation", Some(interface.observation_len())),
            ("reward", None),
            ("h", state),
            ("c", state),
        ],
        [
            ("logits", Some(interface.actions.len())),
            ("baseline", None),
            ("h_out", state),
            ("c_out", state),
        ],
    )
}
