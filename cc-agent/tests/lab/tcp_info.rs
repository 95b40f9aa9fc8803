//! What the kernel says about a connection.

use std::{io, mem, os::fd::AsRawFd};

use bytemuck::{Pod, Zeroable};

/// `struct tcp_info` (include/uapi/linux/tcp.h, Linux 6.7), without the prefix of its members. An
/// older kernel fills in a shorter one; the rest is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct TcpInfo {
    pub(crate) state: u8,
    pub(crate) ca_state: u8,
    pub(crate) retransmits: u8,
    pub(crate) probes: u8,
    pub(crate) backoff: u8,
    pub(crate) options: u8,
    pub(crate) window_scales: u8,
    pub(crate) flags: u8,
    pub(crate) rto: u32,
    pub(crate) ato: u32,
    pub(crate) snd_mss: u32,
    pub(crate) rcv_mss: u32,
    pub(crate) unacked: u32,
    pub(crate) sacked: u32,
    pub(crate) lost: u32,
    pub(crate) retrans: u32,
    pub(crate) fackets: u32,
    pub(crate) last_data_sent: u32,
    pub(crate) last_ack_sent: u32,
    pub(crate) last_data_recv: u32,
    pub(crate) last_ack_recv: u32,
    pub(crate) pmtu: u32,
    pub(crate) rcv_ssthresh: u32,
    /// Smoothed, µs.
    pub(crate) rtt: u32,
    pub(crate) rttvar: u32,
    pub(crate) snd_ssthresh: u32,
    pub(crate) snd_cwnd: u32,
    pub(crate) advmss: u32,
    pub(crate) reordering: u32,
    pub(crate) rcv_rtt: u32,
    pub(crate) rcv_space: u32,
    pub(crate) total_retrans: u32,
    /// Bytes/s.
    pub(crate) pacing_rate: u64,
    pub(crate) max_pacing_rate: u64,
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    pub(crate) segs_out: u32,
    pub(crate) segs_in: u32,
    pub(crate) notsent_bytes: u32,
    /// µs.
    pub(crate) min_rtt: u32,
    pub(crate) data_segs_in: u32,
    pub(crate) data_segs_out: u32,
    pub(crate) delivery_rate: u64,
    pub(crate) busy_time: u64,
    pub(crate) rwnd_limited: u64,
    pub(crate) sndbuf_limited: u64,
    pub(crate) delivered: u32,
    pub(crate) delivered_ce: u32,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_retrans: u64,
    pub(crate) dsack_dups: u32,
    pub(crate) reord_seen: u32,
    pub(crate) rcv_ooopack: u32,
    pub(crate) snd_wnd: u32,
    pub(crate) rcv_wnd: u32,
    pub(crate) rehash: u32,
    pub(crate) total_rto: u16,
    pub(crate) total_rto_recoveries: u16,
    pub(crate) total_rto_time: u32,
}

impl TcpInfo {
    /// `TCP_FIN_WAIT2`: our FIN is acknowledged, and so is everything before it.
    pub(crate) const FIN_WAIT2: u8 = 5;
    /// `TCP_CA_Loss`: a retransmission timeout fired.
    pub(crate) const CA_LOSS: u8 = 4;

    /// Of a connected socket.
    pub(crate) fn of(socket: &impl AsRawFd) -> io::Result<Self> {
        let mut info = Self::zeroed();
        let mut length = mem::size_of::<Self>() as libc::socklen_t;
        // SAFETY: the place is as long as it is said to be, and any bytes are a `TcpInfo`.
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
}
