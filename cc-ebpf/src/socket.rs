//! Access to `tcp_sock`, `sk_buff` and `rate_sample` at the offsets that the loader found.
//!
//! Only members that the kernel allows struct_ops programs to write are written. Kernel functions
//! named here are those of Linux 6.18.

use aya_ebpf::{cty::c_void, helpers::bpf_jiffies64};
use cc_ebpf::{
    ABSENT, AckSample, CaState, ClosedRecord, CwndState, Glimpse, Identity, Selection, SocketState,
    Totals, device_name,
};

use crate::{
    layout::offset,
    structure::{Memory, Structure, Typed},
};

const AF_INET6: u16 = 10;
// Connection states of include/net/tcp_states.h.
pub(crate) const ESTABLISHED: u32 = 1;
const TCP_SYN_SENT: u8 = 2;
const TCP_SYN_RECV: u8 = 3;
/// Levels of the cgroup tree that are searched, a bound for the verifier.
const DEEPEST_CGROUP: usize = 32;
const SK_PACING_NONE: u32 = 0;
const SK_PACING_NEEDED: u32 = 1;

/// A `tcp_sock`, whose lock the kernel holds while it calls the program.
#[derive(Clone, Copy)]
pub(crate) struct Socket<M = Typed>(Structure<M>);

impl Socket {
    /// Writes the slot and stage back into the socket.
    #[inline(always)]
    pub(crate) fn set_state(self, state: SocketState) {
        self.write(offset!(ca_priv), state);
    }

    /// Writes the congestion window back, all but the clamp, which is the host's.
    #[inline(always)]
    pub(crate) fn set_cwnd_state(self, state: CwndState) {
        self.write(offset!(snd_cwnd), state.cwnd);
        self.write(offset!(snd_ssthresh), state.ssthresh);
        self.write(offset!(snd_cwnd_cnt), state.cwnd_cnt);
    }

    /// Sets the pacing rate (bytes/s, bounded by the socket's own maximum). With `enforce`, the
    /// kernel paces by it even where no fq qdisc does.
    #[inline(always)]
    pub(crate) fn set_pacing(self, rate: u64, enforce: bool) {
        let limit: u64 = self.read(offset!(max_pacing_rate));
        let rate = if rate > limit { limit } else { rate };
        self.write(offset!(pacing_rate), rate);
        if enforce && self.read::<u32>(offset!(pacing_status)) == SK_PACING_NONE {
            self.write(offset!(pacing_status), SK_PACING_NEEDED);
        }
    }

    /// Raises the pacing rate to this one (bytes/s, bounded by the socket's own maximum).
    #[inline(always)]
    pub(crate) fn raise_pacing(self, rate: u64) {
        if self.read::<u64>(offset!(pacing_rate)) < rate {
            self.set_pacing(rate, false);
        }
    }

    /// Writes the member at this offset.
    #[inline(always)]
    fn write<T: Copy>(self, offset: u32, value: T) {
        self.0.write(offset, value);
    }
}

impl<M: Memory> Socket<M> {
    /// # Safety
    /// `sk` must be a `tcp_sock` that the kernel passed to the program.
    #[inline(always)]
    pub(crate) unsafe fn new(sk: Structure<M>) -> Self {
        Self(sk)
    }

    /// The slot and stage that are kept in the socket (`icsk_ca_priv`).
    #[inline(always)]
    pub(crate) fn state(self) -> SocketState {
        self.read(offset!(ca_priv))
    }

    /// The congestion window and what belongs to it.
    #[inline(always)]
    pub(crate) fn cwnd_state(self) -> CwndState {
        CwndState {
            cwnd: self.cwnd(),
            ssthresh: self.read(offset!(snd_ssthresh)),
            cwnd_cnt: self.read(offset!(snd_cwnd_cnt)),
            clamp: self.read(offset!(snd_cwnd_clamp)),
        }
    }

    /// Congestion window in segments.
    #[inline(always)]
    pub(crate) fn cwnd(self) -> u32 {
        self.read(offset!(snd_cwnd))
    }

    /// Congestion window in segments before the present reduction.
    #[inline(always)]
    pub(crate) fn prior_cwnd(self) -> u32 {
        self.read(offset!(prior_cwnd))
    }

    /// The time when the kernel began to process the segment at hand, `CLOCK_MONOTONIC` in ns with
    /// a resolution of 1 µs (`tcp_mstamp_refresh`). All programs that see the same ACK read the
    /// same.
    #[inline(always)]
    pub(crate) fn now_ns(self) -> u64 {
        self.read::<u64>(offset!(tcp_mstamp)) * 1_000
    }

    /// Lifetime totals of the connection; `counted_rtos` stands in for the timeouts on kernels that
    /// do not count them.
    #[inline(always)]
    pub(crate) fn totals(self, counted_rtos: u32) -> Totals {
        let total_rto = offset!(total_rto);
        Totals {
            bytes_sent: self.read(offset!(bytes_sent)),
            bytes_received: self.read(offset!(bytes_received)),
            bytes_retrans: self.read(offset!(bytes_retrans)),
            segs_in: self.read(offset!(segs_in)),
            segs_retrans: self.read(offset!(total_retrans)),
            lost: self.read(offset!(lost)),
            delivered: self.read(offset!(delivered)),
            delivered_ce: self.read(offset!(delivered_ce)),
            rtos: if total_rto == ABSENT {
                counted_rtos
            } else {
                u32::from(self.read::<u16>(total_rto))
            },
        }
    }

    /// The sample of the ACK that the kernel has just processed.
    #[inline(always)]
    pub(crate) fn ack_sample(self, sample: RateSample, totals: Totals) -> AckSample {
        let mut ack = AckSample {
            now_ns: self.now_ns(),
            rtt_us: sample.rtt_us(),
            srtt_us: self.srtt_us(),
            rttvar_us: self.read::<u32>(offset!(mdev_us)) >> 2,
            mss: self.mss(),
            header_len: u32::from(self.read::<u16>(offset!(header_len))),
            in_flight: self.in_flight(),
            acked: sample.acked(),
            lost: sample.lost(),
            delivered: 0,
            interval_us: 0,
            retransmits: u32::from(self.read::<u8>(offset!(retransmits))),
            cwnd_limited: self.is_cwnd_limited(),
            max_packets_out: self.read(offset!(max_packets_out)),
            app_limited: sample.is_app_limited(),
            idle: self.is_idle(),
            decays_unused: self.decays_unused(),
            ca_state: self.ca_state(),
            totals,
        };
        if let Some((delivered, interval_us)) = sample.delivery() {
            ack.delivered = delivered;
            ack.interval_us = interval_us;
        }
        ack
    }

    /// Whether all that the application has written is acknowledged.
    #[inline(always)]
    fn is_idle(self) -> bool {
        self.read::<u32>(offset!(snd_una)) == self.read::<u32>(offset!(write_seq))
    }

    /// Time since the last transmission of data, and the retransmission timeout, both in jiffies.
    #[inline(always)]
    pub(crate) fn idle_and_rto(self) -> (u32, u32) {
        // SAFETY: a helper without arguments.
        let now = unsafe { bpf_jiffies64() } as u32;
        let last: u32 = self.read(offset!(lsndtime));
        (now.wrapping_sub(last), self.read(offset!(rto)))
    }

    /// Smoothed RTT in µs; 0 before the first sample.
    #[inline(always)]
    pub(crate) fn srtt_us(self) -> u32 {
        self.read::<u32>(offset!(srtt_us)) >> 3
    }

    /// Maximum segment size in bytes.
    #[inline(always)]
    pub(crate) fn mss(self) -> u32 {
        self.read(offset!(mss_cache))
    }

    /// Segments that have been sent and not acknowledged, lost or not (`tcp_sock.packets_out`).
    #[inline(always)]
    pub(crate) fn packets_out(self) -> u32 {
        self.read(offset!(packets_out))
    }

    /// Whether a cwnd that is not used decays (`net.ipv4.tcp_slow_start_after_idle` of the socket's
    /// network namespace); true, the kernel's default, where it cannot be read.
    #[inline(always)]
    pub(crate) fn decays_unused(self) -> bool {
        let (net, sysctl) = (offset!(net), offset!(slow_start_after_idle));
        if net == ABSENT || sysctl == ABSENT {
            return true;
        }
        self.0.follow(net).read::<u8>(sysctl) & 1 != 0
    }

    /// Has the kernel give the socket a cookie unless it has one. Does nothing in a kprobe, which
    /// may not ask for that.
    #[inline(always)]
    pub(crate) fn assign_cookie(self) {
        self.0.assign_cookie();
    }

    /// Cookie of the socket; 0 when it has none yet, or the kernel hides it.
    #[inline(always)]
    fn cookie(self) -> u64 {
        let offset = offset!(cookie);
        if offset == ABSENT {
            return 0;
        }
        self.read(offset)
    }

    /// Inode number of the socket's network namespace; 0 when it is unknown.
    #[inline(always)]
    fn netns(self) -> u32 {
        let (net, inum) = (offset!(net), offset!(net_inum));
        if net == ABSENT || inum == ABSENT {
            return 0;
        }
        self.0.follow(net).read(inum)
    }

    /// The present congestion-avoidance state.
    #[inline(always)]
    pub(crate) fn ca_state(self) -> CaState {
        CaState::from_raw(self.bits(offset!(ca_state_bit), 0x1f))
    }

    /// The socket's address in the kernel, which identifies it while it lives.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0.address()
    }

    /// The socket, as helpers take it.
    #[inline(always)]
    pub(crate) fn pointer(self) -> *mut c_void {
        self.0.pointer()
    }

    /// Address of the socket's `tcp_congestion_ops`, which identifies its congestion control.
    #[inline(always)]
    pub(crate) fn congestion_ops(self) -> u64 {
        self.read(offset!(ca_ops))
    }

    /// Whether somebody has chosen the socket's congestion control, by `setsockopt` or by a BPF
    /// program, so that it is not merely the default's or the route's
    /// (`tcp_reinit_congestion_control`, net/ipv4/tcp_cong.c).
    #[inline(always)]
    pub(crate) fn is_chosen(self) -> bool {
        self.bits(offset!(ca_chosen_bit), 1) != 0
    }

    /// The remote address; IPv4 is mapped into IPv6.
    #[inline(always)]
    pub(crate) fn remote6(self) -> [u32; 4] {
        let family: u16 = self.read(offset!(family));
        if family == AF_INET6 && offset!(remote_addr6) != ABSENT {
            self.address6(offset!(remote_addr6))
        } else {
            [0, 0, 0xffff_u32.to_be(), self.read(offset!(remote_addr))]
        }
    }

    /// Name of the device that the connection is routed over, NUL-padded; all 0 where no route is
    /// known.
    #[inline(always)]
    pub(crate) fn device(self) -> [u32; 4] {
        let route = self.0.follow(offset!(route));
        if route.is_null() {
            return [0; 4];
        }
        let device = route.follow(offset!(route_device));
        if device.is_null() {
            return [0; 4];
        }
        device_name(device.words(offset!(device_name)))
    }

    /// Whether the handshake is complete.
    #[inline(always)]
    pub(crate) fn is_synchronised(self) -> bool {
        let state: u8 = self.read(offset!(state));
        !matches!(state, TCP_SYN_SENT | TCP_SYN_RECV)
    }

    /// Whether the selection has the socket's cgroup or one of its ancestors; false when the kernel
    /// has no cgroup of the socket.
    #[inline(always)]
    pub(crate) fn is_within(self, selection: &Selection) -> bool {
        let Some(mut cgroup) = self.cgroup() else {
            return false;
        };
        for _ in 0..DEEPEST_CGROUP {
            if cgroup.is_null() {
                return false;
            }
            if selection.takes_cgroup(cgroup_id(cgroup)) {
                return true;
            }
            let parent = cgroup.follow(offset!(cgroup_css).wrapping_add(offset!(css_parent)));
            if parent.is_null() {
                return false;
            }
            cgroup = parent.follow(offset!(css_cgroup));
        }
        false
    }

    /// Fills in the socket's state at `at_ns`, when a segment arrives. It is filled in place
    /// because it is large for a program's stack.
    #[inline(always)]
    pub(crate) fn glimpse(self, glimpse: &mut Glimpse, at_ns: u64, counted_rtos: u32) {
        glimpse.at_ns = at_ns;
        glimpse.first_tx_us = self.read(offset!(first_tx_mstamp));
        glimpse.delivered_us = self.read(offset!(delivered_mstamp));
        glimpse.rack_sent_us = self.read(offset!(rack_mstamp));
        glimpse.totals = self.totals(counted_rtos);
        glimpse.cwnd = self.cwnd();
        glimpse.delivered = self.read(offset!(delivered));
        glimpse.data_segs_out = self.read(offset!(data_segs_out));
        glimpse.packets_out = self.read(offset!(packets_out));
        glimpse.sacked_out = self.read(offset!(sacked_out));
        glimpse.lost_out = self.read(offset!(lost_out));
        glimpse.retrans_out = self.read(offset!(retrans_out));
        glimpse.snd_una = self.read(offset!(snd_una));
        glimpse.retransmits = u32::from(self.read::<u8>(offset!(retransmits)));
        glimpse.rate_delivered = self.read(offset!(rate_delivered));
        glimpse.rate_interval_us = self.read(offset!(rate_interval_us));
        glimpse.rack_rtt_us = self.read(offset!(rack_rtt_us));
        glimpse.srtt_us = self.read(offset!(srtt_us));
        glimpse.mdev_us = self.read(offset!(mdev_us));
        glimpse.mss = self.mss();
        glimpse.header_len = u32::from(self.read::<u16>(offset!(header_len)));
        glimpse.ca_state = self.bits(offset!(ca_state_bit), 0x1f);
        glimpse.echoed_ms = if self.bits(offset!(saw_tstamp_bit), 1) != 0 {
            self.read(offset!(rcv_tsecr))
        } else {
            0
        };
    }

    /// Whether the kernel will call the congestion control for this segment: it acknowledges data
    /// that is in flight, possibly once more (`tcp_ack`, net/ipv4/tcp_input.c). A segment with
    /// payload that acknowledges nothing new is assumed not to reach `tcp_ack`, as in
    /// `tcp_rcv_established` when it is in order.
    #[inline(always)]
    pub(crate) fn is_acked_by(self, segment: Segment<M>) -> bool {
        let una: u32 = self.read(offset!(snd_una));
        let next: u32 = self.read(offset!(snd_nxt));
        let under_way = self.read::<u32>(offset!(packets_out)) > 0;
        let ack = segment.ack_seq();
        let is_valid = ack.wrapping_sub(una) <= next.wrapping_sub(una);
        under_way && is_valid && (ack != una || !segment.has_payload())
    }

    /// Local and remote port in host byte order.
    #[inline(always)]
    pub(crate) fn ports(self) -> (u16, u16) {
        let local: u16 = self.read(offset!(local_port));
        let remote: u16 = self.read(offset!(remote_port));
        (local, u16::from_be(remote))
    }

    /// Fills in the identity of the connection.
    #[inline(always)]
    pub(crate) fn identify(self, identity: &mut Identity) {
        let family: u16 = self.read(offset!(family));
        let (local_port, remote_port) = self.ports();
        identity.family = family;
        identity.local_port = local_port;
        identity.remote_port = remote_port;
        identity.reserved = 0;
        identity.mss = self.mss();
        identity.initial_cwnd = self.cwnd();
        identity.cgroup_id = match self.cgroup() {
            Some(cgroup) if !cgroup.is_null() => cgroup_id(cgroup),
            _ => 0,
        };
        identity.cookie = self.cookie();
        identity.netns = self.netns();
        identity.congestion_control = self.congestion_control();
        if family == AF_INET6 && offset!(local_addr6) != ABSENT {
            identity.local_addr = self.address6(offset!(local_addr6));
            identity.remote_addr = self.address6(offset!(remote_addr6));
        } else {
            identity.local_addr = [self.read(offset!(local_addr)), 0, 0, 0];
            identity.remote_addr = [self.read(offset!(remote_addr)), 0, 0, 0];
        }
    }

    /// The IPv6 address at this offset.
    #[inline(always)]
    fn address6(self, offset: u32) -> [u32; 4] {
        self.0.words(offset)
    }

    /// Fills in the totals of a connection whose flow is closed.
    #[inline(always)]
    pub(crate) fn summarise(self, closed: &mut ClosedRecord, counted_rtos: u32) {
        closed.totals = self.totals(counted_rtos);
        closed.bytes_acked = self.read(offset!(bytes_acked));
        closed.segs_out = self.read(offset!(segs_out));
        closed.data_segs_out = self.read(offset!(data_segs_out));
        closed.delivered = self.read(offset!(delivered));
        closed.min_rtt_us = self.read(offset!(min_rtt));
        closed.cwnd = self.cwnd();
    }

    /// Segments in flight (`tcp_packets_in_flight`, include/net/tcp.h).
    #[inline(always)]
    fn in_flight(self) -> u32 {
        let out: u32 = self.read(offset!(packets_out));
        let sacked: u32 = self.read(offset!(sacked_out));
        let lost: u32 = self.read(offset!(lost_out));
        let retransmitted: u32 = self.read(offset!(retrans_out));
        out.wrapping_sub(sacked)
            .wrapping_sub(lost)
            .wrapping_add(retransmitted)
    }

    /// Whether the cwnd is what limits the sender (`tcp_is_cwnd_limited`, include/net/tcp.h).
    #[inline(always)]
    fn is_cwnd_limited(self) -> bool {
        let cwnd = u64::from(self.cwnd());
        let ssthresh: u32 = self.read(offset!(snd_ssthresh));
        let most_out: u32 = self.read(offset!(max_packets_out));
        // By the signs of differences and not by branches, which would leave the verifier with two
        // known values of the result to follow.
        let in_slow_start = cwnd.wrapping_sub(u64::from(ssthresh)) >> 63;
        let has_doubled = cwnd.wrapping_sub(2 * u64::from(most_out)) >> 63;
        let flag = u64::from(self.bits(offset!(is_cwnd_limited_bit), 1));
        (flag | (in_slow_start & has_doubled)) & 1 != 0
    }

    /// The socket's cgroup v2, which may be null; `None` where the kernel has none of sockets.
    #[inline(always)]
    fn cgroup(self) -> Option<Structure<M>> {
        let offset = offset!(cgroup);
        (offset != ABSENT).then(|| self.0.follow(offset))
    }

    /// Name of the congestion control, NUL-padded.
    #[inline(always)]
    fn congestion_control(self) -> [u32; 4] {
        let ops = self.0.follow(offset!(ca_ops));
        if ops.is_null() {
            return [0; 4];
        }
        ops.words(offset!(ca_name))
    }

    /// The bit field that begins at bit `at` of the socket, which must lie in one byte.
    #[inline(always)]
    fn bits(self, at: u32, mask: u32) -> u32 {
        u32::from(self.read::<u8>(at / 8)) >> (at % 8) & mask
    }

    /// The member at this offset.
    #[inline(always)]
    fn read<T: Copy>(self, offset: u32) -> T {
        self.0.read(offset)
    }
}

/// A segment that has arrived: an `sk_buff` with TCP's control block.
#[derive(Clone, Copy)]
pub(crate) struct Segment<M>(Structure<M>);

impl<M: Memory> Segment<M> {
    /// # Safety
    /// `skb` must be a segment that the kernel passed to a tracepoint or function of TCP.
    #[inline(always)]
    pub(crate) unsafe fn new(skb: Structure<M>) -> Self {
        Self(skb)
    }

    /// Sequence number of the first byte that the segment does not acknowledge.
    #[inline(always)]
    fn ack_seq(self) -> u32 {
        self.control(offset!(cb_ack_seq))
    }

    /// Whether the segment occupies sequence space.
    #[inline(always)]
    fn has_payload(self) -> bool {
        self.control(offset!(cb_end_seq)) != self.control(offset!(cb_seq))
    }

    /// The member of `tcp_skb_cb` at this offset; the structure lies in the segment's `cb`.
    #[inline(always)]
    fn control(self, offset: u32) -> u32 {
        self.0.read(offset!(skb_cb).wrapping_add(offset))
    }
}

/// The `rate_sample` of an ACK.
#[derive(Clone, Copy)]
pub(crate) struct RateSample(Structure<Typed>);

impl RateSample {
    /// # Safety
    /// `rs` must be the rate sample that the kernel passed to `cong_control`.
    #[inline(always)]
    pub(crate) unsafe fn new(rs: Structure<Typed>) -> Self {
        Self(rs)
    }

    /// RTT that the ACK measured, µs; 0 when it measured none.
    #[inline(always)]
    fn rtt_us(self) -> u32 {
        positive(self.0.read(offset!(rs_rtt_us)))
    }

    /// Segments newly acknowledged or SACKed.
    #[inline(always)]
    fn acked(self) -> u32 {
        self.0.read(offset!(rs_acked_sacked))
    }

    /// Segments that this ACK marked as lost.
    #[inline(always)]
    fn lost(self) -> u32 {
        positive(i64::from(self.0.read::<i32>(offset!(rs_losses))))
    }

    /// Whether the application had too little to send when the newest segment delivered was sent.
    #[inline(always)]
    fn is_app_limited(self) -> bool {
        self.0.read::<u8>(offset!(rs_is_app_limited)) & 1 != 0
    }

    /// Segments delivered and the time that took, µs; `None` when the kernel rejected the sample
    /// (`tcp_rate_gen`).
    #[inline(always)]
    fn delivery(self) -> Option<(u32, u32)> {
        let delivered: i32 = self.0.read(offset!(rs_delivered));
        let interval_us = positive(self.0.read(offset!(rs_interval_us)));
        (delivered > 0 && interval_us > 0).then_some((delivered as u32, interval_us))
    }
}

/// Id of a cgroup that is not null.
#[inline(always)]
fn cgroup_id<M: Memory>(cgroup: Structure<M>) -> u64 {
    let node = cgroup.follow(offset!(cgroup_kn));
    if node.is_null() {
        return 0;
    }
    node.read(offset!(kn_id))
}

/// The value saturated to `u32`: 0 for negative values.
#[inline(always)]
fn positive(value: i64) -> u32 {
    if value <= 0 {
        0
    } else if value > u32::MAX as i64 {
        u32::MAX
    } else {
        value as u32
    }
}
