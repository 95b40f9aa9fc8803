//! The congestion window of a connection.

/// The members of `tcp_sock` that make up a connection's congestion window, in segments.
///
/// The owner of the sender copies them out before an ACK is handled and writes them back after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CwndState {
    /// Congestion window in segments (`tcp_sock.snd_cwnd`).
    pub cwnd: u32,
    /// Slow-start threshold in segments (`tcp_sock.snd_ssthresh`); `u32::MAX` before the first
    /// loss.
    pub ssthresh: u32,
    /// Segments acknowledged since additive increase last grew the cwnd (`tcp_sock.snd_cwnd_cnt`).
    pub cwnd_cnt: u32,
    /// Upper bound in segments that the host sets for this connection (`tcp_sock.snd_cwnd_clamp`).
    pub clamp: u32,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::CwndState;

    /// A congestion window that the host does not bound.
    pub(crate) fn state(cwnd: u32, ssthresh: u32) -> CwndState {
        CwndState {
            cwnd,
            ssthresh,
            cwnd_cnt: 0,
            clamp: u32::MAX,
        }
    }
}
