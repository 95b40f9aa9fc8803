//! An ACK as the owner of a TCP sender describes it.
//!
//! Kernel members and functions are those of Linux 6.18.

use bytemuck::{Pod, Zeroable};

/// Lifetime totals of a connection, from which the per-ACK differences are taken.
///
/// The 32-bit ones wrap, as they do in the kernel; differences are taken modulo their width.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Totals {
    /// Payload bytes sent, retransmissions included (`tcp_sock.bytes_sent`).
    pub bytes_sent: u64,
    /// Payload bytes received (`tcp_sock.bytes_received`).
    pub bytes_received: u64,
    /// Payload bytes retransmitted (`tcp_sock.bytes_retrans`).
    pub bytes_retrans: u64,
    /// Segments received, pure ACKs included (`tcp_sock.segs_in`).
    pub segs_in: u32,
    /// Segments retransmitted (`tcp_sock.total_retrans`).
    pub segs_retrans: u32,
    /// Segments that loss detection has marked lost (`tcp_sock.lost`).
    pub lost: u32,
    /// Retransmission timeouts (`tcp_sock.total_rto`, since Linux 6.7). On older kernels the number
    /// of `CA_EVENT_LOSS`, which counts a timer that backs off only once.
    pub rtos: u32,
    /// Segments delivered, cumulatively or by SACK (`tcp_sock.delivered`).
    pub delivered: u32,
    /// Segments delivered by ACKs with the ECN echo, which report congestion-experienced marks
    /// (`tcp_sock.delivered_ce`).
    pub delivered_ce: u32,
}

/// The kernel's congestion-avoidance states (`enum tcp_ca_state`, include/uapi/linux/tcp.h).
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaState {
    /// Neither loss nor reordering is suspected.
    #[default]
    Open = 0,
    /// SACKs or duplicate ACKs arrived, but nothing is marked lost yet.
    Disorder = 1,
    /// The cwnd is being reduced because of ECN or local congestion.
    Cwr = 2,
    /// Fast recovery: segments are marked lost and are being retransmitted.
    Recovery = 3,
    /// A retransmission timeout fired, and its losses are not repaired yet.
    Loss = 4,
}

impl CaState {
    /// The state with this number; unknown numbers count as [`CaState::Open`].
    #[inline(always)]
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::Disorder,
            2 => Self::Cwr,
            3 => Self::Recovery,
            4 => Self::Loss,
            _ => Self::Open,
        }
    }

    /// Whether the kernel reduces the cwnd by proportional rate reduction in this state
    /// (`tcp_in_cwnd_reduction`, include/net/tcp.h).
    #[inline(always)]
    pub fn is_reducing(self) -> bool {
        matches!(self, Self::Cwr | Self::Recovery)
    }
}

/// What a sender knows after it has processed an ACK and before it sends again.
///
/// The BPF programs fill it from `tcp_sock` and `rate_sample` in `cong_control`, the simulator from
/// its own sender. The default is that of a connection that has measured and sent nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckSample {
    /// Time of the ACK, nanoseconds on a monotonic clock.
    pub now_ns: u64,
    /// The RTT that this ACK measured, in µs; 0 when it measured none (`rate_sample.rtt_us`).
    pub rtt_us: u32,
    /// Smoothed RTT in µs (`tcp_sock.srtt_us >> 3`); 0 before the first measurement.
    pub srtt_us: u32,
    /// Mean deviation of the RTT in µs (`tcp_sock.mdev_us >> 2`).
    pub rttvar_us: u32,
    /// Sender's maximum segment size in bytes (`tcp_sock.mss_cache`).
    pub mss: u32,
    /// Length of the TCP header with its usual options, in bytes (`tcp_sock.tcp_header_len`).
    pub header_len: u32,
    /// Segments in flight after this ACK (`tcp_packets_in_flight`, include/net/tcp.h).
    pub in_flight: u32,
    /// Segments newly acknowledged or SACKed by this ACK (`rate_sample.acked_sacked`).
    pub acked: u32,
    /// Segments newly marked lost on this ACK (`rate_sample.losses`).
    pub lost: u32,
    /// Segments delivered over `interval_us`, the kernel's delivery-rate sample
    /// (`rate_sample.delivered`).
    pub delivered: u32,
    /// Length of the delivery-rate sample in µs; 0 when this ACK has none
    /// (`rate_sample.interval_us`).
    pub interval_us: u32,
    /// Consecutive retransmission timeouts since the last ACK of new data (`icsk_retransmits`).
    pub retransmits: u32,
    /// Whether the cwnd is what limits the sender (`tcp_is_cwnd_limited`, include/net/tcp.h).
    pub cwnd_limited: bool,
    /// Most segments that were outstanding during the last cwnd of data
    /// (`tcp_sock.max_packets_out`, as `tcp_cwnd_validate` in net/ipv4/tcp_output.c keeps it).
    pub max_packets_out: u32,
    /// Whether the newest segment that this ACK delivered was sent while the application had too
    /// little to send (`rate_sample.is_app_limited`, net/ipv4/tcp_rate.c).
    pub app_limited: bool,
    /// Whether all that the application has written is acknowledged (`tcp_sock.snd_una` equals
    /// `write_seq`).
    pub idle: bool,
    /// Whether a cwnd that the application leaves unused decays, as
    /// `net.ipv4.tcp_slow_start_after_idle` asks.
    pub decays_unused: bool,
    /// The congestion-avoidance state after this ACK.
    pub ca_state: CaState,
    /// The connection's lifetime totals, this ACK included.
    pub totals: Totals,
}

impl AckSample {
    /// The retransmission timeout in µs that the RTT estimates give: srtt plus four mean
    /// deviations, which count as 200 ms at least (`__tcp_set_rto` and `TCP_RTO_MIN`).
    #[inline(always)]
    pub fn rto_us(&self) -> u64 {
        const LEAST_VARIATION_US: u64 = 200_000;
        let variation = 4 * u64::from(self.rttvar_us);
        let variation = if variation < LEAST_VARIATION_US {
            LEAST_VARIATION_US
        } else {
            variation
        };
        u64::from(self.srtt_us) + variation
    }
}
