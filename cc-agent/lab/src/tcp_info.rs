//! The kernel's view of a connection.

use std::{io, mem, os::fd::AsRawFd};

use bytemuck::{Pod, Zeroable};

/// `struct tcp_info` (include/uapi/linux/tcp.h, Linux 6.7), its members without the prefix `tcpi_`.
///
/// An older kernel fills in a shorter structure; the remaining members are 0. Counts are of
/// segments and over the connection's life unless stated otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct TcpInfo {
    /// State of the connection: `TCP_ESTABLISHED` (1) and so on.
    pub state: u8,
    /// State of loss recovery: `TCP_CA_Open` (0) to `TCP_CA_Loss` (4).
    pub ca_state: u8,
    /// Consecutive retransmission timeouts without progress.
    pub retransmits: u8,
    /// Zero-window and keepalive probes without an answer.
    pub probes: u8,
    /// Exponent of the timer's exponential backoff.
    pub backoff: u8,
    /// Options in use, as bits `TCPI_OPT_*`.
    pub options: u8,
    /// Window scales: the sender's in the low four bits, the receiver's in the high four.
    pub window_scales: u8,
    /// Bit 0: the application limits the delivery rate. Bits 1 and 2: failures of TCP Fast Open.
    pub flags: u8,
    /// Retransmission timeout, µs.
    pub rto: u32,
    /// Delayed-ACK timeout, µs.
    pub ato: u32,
    /// Sender's maximum segment size, bytes.
    pub snd_mss: u32,
    /// Estimate of the other side's segment size, bytes.
    pub rcv_mss: u32,
    /// Segments sent and not yet acknowledged.
    pub unacked: u32,
    /// Of the unacknowledged segments, those acknowledged selectively (SACK).
    pub sacked: u32,
    /// Of the unacknowledged segments, those considered lost.
    pub lost: u32,
    /// Of the unacknowledged segments, retransmissions in flight.
    pub retrans: u32,
    /// Unused since Linux 4.15: 0.
    pub fackets: u32,
    /// Time since data was last sent, ms.
    pub last_data_sent: u32,
    /// Not kept by the kernel: 0.
    pub last_ack_sent: u32,
    /// Time since data was last received, ms.
    pub last_data_recv: u32,
    /// Time since an ACK was last received, ms.
    pub last_ack_recv: u32,
    /// Path MTU, bytes.
    pub pmtu: u32,
    /// Receiver's current limit for the advertised window, bytes.
    pub rcv_ssthresh: u32,
    /// Smoothed RTT (srtt), µs.
    pub rtt: u32,
    /// Mean deviation of the RTT, µs.
    pub rttvar: u32,
    /// Slow start threshold (ssthresh), segments.
    pub snd_ssthresh: u32,
    /// Congestion window (cwnd), segments.
    pub snd_cwnd: u32,
    /// Maximum segment size advertised, bytes.
    pub advmss: u32,
    /// Reordering that loss detection tolerates, segments.
    pub reordering: u32,
    /// Receiver's estimate of the RTT, µs.
    pub rcv_rtt: u32,
    /// Space that the receiver's auto-tuning aims at, bytes.
    pub rcv_space: u32,
    /// Segments retransmitted.
    pub total_retrans: u32,
    /// Pacing rate, bytes/s.
    pub pacing_rate: u64,
    /// Upper bound of the pacing rate (`SO_MAX_PACING_RATE`), bytes/s.
    pub max_pacing_rate: u64,
    /// Bytes acknowledged, including the SYN and FIN (RFC 4898 tcpEStatsAppHCThruOctetsAcked).
    pub bytes_acked: u64,
    /// Bytes received in order (RFC 4898 tcpEStatsAppHCThruOctetsReceived).
    pub bytes_received: u64,
    /// Segments sent, including those without data and retransmissions.
    pub segs_out: u32,
    /// Segments received.
    pub segs_in: u32,
    /// Bytes written by the application and not yet sent.
    pub notsent_bytes: u32,
    /// Minimum RTT of the kernel's filter (`net.ipv4.tcp_min_rtt_wlen`), µs.
    pub min_rtt: u32,
    /// Segments with data received.
    pub data_segs_in: u32,
    /// Segments with data sent, including retransmissions.
    pub data_segs_out: u32,
    /// Latest delivery rate sample, bytes/s.
    pub delivery_rate: u64,
    /// Time with data to send or in flight, µs.
    pub busy_time: u64,
    /// Time limited by the receiver's window, µs.
    pub rwnd_limited: u64,
    /// Time limited by the send buffer, µs.
    pub sndbuf_limited: u64,
    /// Segments delivered, including spurious retransmissions.
    pub delivered: u32,
    /// Segments delivered with a congestion mark (ECN-CE).
    pub delivered_ce: u32,
    /// Bytes of data sent, including retransmissions.
    pub bytes_sent: u64,
    /// Bytes of data retransmitted.
    pub bytes_retrans: u64,
    /// Duplicate SACKs (D-SACK) received.
    pub dsack_dups: u32,
    /// Reordering events seen.
    pub reord_seen: u32,
    /// Segments received out of order.
    pub rcv_ooopack: u32,
    /// The other side's advertised window after scaling, bytes.
    pub snd_wnd: u32,
    /// The advertised window after scaling, bytes.
    pub rcv_wnd: u32,
    /// Changes of the flow hash after timeouts (PLB).
    pub rehash: u32,
    /// Retransmission timeouts.
    pub total_rto: u16,
    /// Recoveries from retransmission timeouts, finished or not.
    pub total_rto_recoveries: u16,
    /// Time in such recoveries, ms.
    pub total_rto_time: u32,
}

impl TcpInfo {
    /// `TCP_FIN_WAIT2`: the FIN and everything before it are acknowledged.
    pub const FIN_WAIT2: u8 = 5;
    /// `TCP_CA_Open`: nothing is known to be lost or reordered.
    pub const CA_OPEN: u8 = 0;
    /// `TCP_CA_Disorder`: there were duplicate ACKs or SACKs, too few for a loss.
    pub const CA_DISORDER: u8 = 1;
    /// `TCP_CA_CWR`: the cwnd is being reduced for a congestion mark.
    pub const CA_CWR: u8 = 2;
    /// `TCP_CA_Recovery`: a loss was found by fast retransmit and is being repaired.
    pub const CA_RECOVERY: u8 = 3;
    /// `TCP_CA_Loss`: a retransmission timeout fired and recovery is not complete.
    pub const CA_LOSS: u8 = 4;

    /// Reads the information about a TCP socket (tcp(7): `TCP_INFO`).
    ///
    /// # Errors
    ///
    /// Returns the error of getsockopt(2) when the descriptor is not a TCP socket.
    pub fn of(socket: &impl AsRawFd) -> io::Result<Self> {
        let mut info = Self::zeroed();
        let mut length = mem::size_of::<Self>() as libc::socklen_t;
        // SAFETY: `info` is `length` bytes long, and any bytes are a valid `TcpInfo`.
        let status = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info)
    }

    /// Asserts how many timeouts and retransmissions there were. Before Linux 6.7 the kernel does
    /// not tell of timeouts.
    ///
    /// # Panics
    ///
    /// Panics if there were others.
    #[track_caller]
    pub fn assert_repairs(&self, timeouts: u16, retransmissions: u32) {
        assert_eq!(self.total_retrans, retransmissions);
        assert_eq!(self.timeouts().unwrap_or(timeouts), timeouts);
    }

    /// The retransmission timeouts; `None` where the kernel does not count them
    /// (`tcp_sock.total_rto`, since Linux 6.7).
    ///
    /// # Panics
    ///
    /// Panics on kernels without types, or such as the datapath does not know.
    pub fn timeouts(&self) -> Option<u16> {
        let kernel = cc_agent::kernel::btf::Kernel::running().expect("the tests need its types");
        let layout = kernel.layout().expect("a kernel that the datapath knows");
        (layout.total_rto != cc_ebpf::ABSENT).then_some(self.total_rto)
    }
}
