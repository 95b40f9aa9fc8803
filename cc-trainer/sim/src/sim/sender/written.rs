//! What an application has written, and what Linux does about a sender that its application limits
//! (Linux 6.18, net/ipv4/tcp.c, tcp_output.c and tcp_rate.c; RFC 2861, RFC 7661).

use cc_ebpf::CaState;

use crate::app::stream_ahead;
use crate::path::Nanos;
use crate::sim::NEVER;
use crate::sim::wire::MSS;

use super::{INIT_CWND, Sender, SkState};

/// The data of an application that does not always have some.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    /// Bytes that wait to be sent for the first time.
    unsent: u64,
    /// Bytes that were sent, each counted once.
    sent: u64,
    /// While the application writes as much as the connection takes: the bytes that had been sent
    /// when it began to.
    streams: Option<u64>,
}

impl Written {
    /// Takes the payload of the next segment. Returns its size, and whether it leaves nothing.
    #[inline]
    pub(super) fn take_segment(&mut self) -> (u16, bool) {
        let payload = match self.streams {
            Some(_) => u64::from(MSS),
            None => self.unsent.min(MSS.into()),
        };
        self.unsent = self.unsent.saturating_sub(payload);
        self.sent += payload;
        (payload as u16, self.unsent == 0 && self.streams.is_none())
    }
}

impl Sender {
    /// The application writes `bytes` more. What the connection permits is sent at once, without
    /// Nagle's algorithm (`tcp_sendmsg_locked` with TCP_NODELAY).
    pub(in crate::sim) fn write(&mut self, now: Nanos, bytes: u64) {
        self.begin_write(now);
        if let Some(written) = &mut self.written {
            written.unsent += bytes;
        }
        self.push(now);
    }

    /// The application writes as much as the connection takes from now on.
    pub(in crate::sim) fn stream(&mut self, now: Nanos) {
        self.begin_write(now);
        if let Some(written) = &mut self.written {
            written.streams = Some(written.sent);
        }
        self.push(now);
    }

    /// The application stops to do so. What it has written ahead is still sent. Returns the bytes
    /// that it has written so far.
    pub(in crate::sim) fn end_stream(&mut self) -> u64 {
        let Some(written) = &mut self.written else {
            return 0;
        };
        if let Some(before) = written.streams.take() {
            written.unsent = stream_ahead(written.sent - before).max(written.unsent);
        }
        written.sent + written.unsent
    }

    /// Number of segments that wait to be sent for the first time.
    #[inline]
    pub(super) fn unsent_segments(&self) -> u32 {
        match &self.written {
            None => u32::MAX,
            Some(Written {
                streams: Some(_), ..
            }) => u32::MAX,
            Some(written) => written.unsent.div_ceil(MSS.into()).min(1 << 24) as u32,
        }
    }

    /// Reduces the cwnd of a sender that has not used it for a retransmission timeout
    /// (`tcp_cwnd_validate`, whose other half is `CwndUsage`).
    #[inline]
    pub(super) fn validate_usage(&mut self, now: Nanos) {
        let Some(written) = &self.written else {
            return;
        };
        let (tick, packets_out) = (self.ticks.at(now), self.board.packets_out());
        if !self
            .usage
            .starves(&self.cwnd, tick, packets_out, self.rtt.rto())
        {
            return;
        }
        // An application that streams waits for room in the send buffer (`SOCK_NOSPACE`).
        if self.has_cong_control || written.streams.is_some() {
            return;
        }
        let mut used = 0;
        if self.ca_state == CaState::Open {
            used = self.usage.take_used();
        }
        if self.ca_state == CaState::Open && used.max(INIT_CWND) < self.cwnd.cwnd {
            self.cwnd.ssthresh = self.current_ssthresh();
            self.cwnd.cwnd = (self.cwnd.cwnd + used.max(INIT_CWND)) >> 1;
        }
        self.usage.changed(tick);
    }

    /// What the kernel does before it takes data of an application.
    fn begin_write(&mut self, now: Nanos) {
        let Some(written) = &self.written else {
            return;
        };
        if written.unsent < MSS.into()
            && written.streams.is_none()
            && self.board.packets_in_flight() < self.cwnd.cwnd
            && self.board.lost_out() <= self.board.retrans_out()
            && (self.host.as_ref()).is_none_or(|host| host.is_empty())
        {
            (self.delivery).limit_by_application(self.board.packets_in_flight());
        }
        self.slow_start_after_idle_check(now);
    }

    /// Restarts a connection that was idle for longer than its retransmission timeout: the cwnd is
    /// halved for each timeout, down to the initial one (`tcp_slow_start_after_idle_check`,
    /// `tcp_cwnd_restart`). Controls that set the cwnd themselves see to that in
    /// `CongestionControl::on_transmit_start`.
    fn slow_start_after_idle_check(&mut self, now: Nanos) {
        let (tick, rto) = (self.ticks.at(now), self.rtt.rto());
        let mut idle = tick.saturating_sub(self.ticks.at(self.lsndtime));
        if self.has_cong_control
            || self.sk_state != SkState::Established
            || self.board.packets_out() > 0
            || idle <= rto
        {
            return;
        }
        self.cwnd.ssthresh = self.current_ssthresh();
        let restart = INIT_CWND.min(self.cwnd.cwnd);
        let mut cwnd = self.cwnd.cwnd;
        while idle > rto && cwnd > restart {
            idle -= rto;
            cwnd >>= 1;
        }
        self.cwnd.cwnd = cwnd.max(restart);
        self.usage.changed(tick);
        self.usage.take_used();
    }

    fn push(&mut self, now: Nanos) {
        // Data that were written during the handshake wait for its end and a moment longer.
        let waits = self.segments_sent == 0 && self.pacing_timer_at != NEVER;
        if self.sk_state == SkState::Established && !waits {
            self.write_xmit(now, false);
        }
    }
}
