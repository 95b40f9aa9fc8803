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

/// How many cwnds the send buffer is to hold; the kernel's own is 2, for CUBIC and Reno
/// (`tcp_sndbuf_expand`, net/ipv4/tcp_input.c).
///
/// Those shrink in recovery, and a decided cwnd does not. A lost segment arrives two round trips
/// after it was first sent, and what was sent since, two cwnds, has to be kept until then; a third
/// where a retransmission is lost as well. With less room the sender waits for its own buffer, as
/// if the application had nothing to send. bbr asks for 3 (`bbr_sndbuf_expand`,
/// net/ipv4/tcp_bbr.c).
pub const SEND_BUFFER_CWNDS: u32 = 3;

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
