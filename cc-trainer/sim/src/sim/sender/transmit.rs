//! What leaves the sender, and its timers (Linux 6.18, net/ipv4/tcp_output.c and tcp_timer.c).

use cc_ebpf::{CaState, CwndState};

use crate::path::Nanos;
use crate::sim::NEVER;
use crate::sim::control::{CongestionControl, TransmitStart};
use crate::sim::rtt::RTO_MIN_US;
use crate::sim::timer;
use crate::sim::wire::{MSS, ToReceiver, milliseconds};

use super::Sender;

/// Shortest timeout of loss probe and reordering timer, µs (`TCP_TIMEOUT_MIN_US`).
pub(super) const TIMEOUT_MIN_US: u64 = 2_000;
/// A burst that could be larger waits for the next ACK only when the previous burst left less than
/// this before, ns (`tcp_tso_should_defer`).
const RECENT: Nanos = 1_000_000;
/// A burst waits only while the cwnd has room for less than one in this many of its segments
/// (`tcp_tso_win_divisor`).
const DEFER_DIVISOR: u32 = 3;

/// The purpose of the connection's timer (`icsk_pending`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    None,
    /// The SYN is repeated when it expires.
    Syn,
    /// Retransmission timeout (RFC 6298, `ICSK_TIME_RETRANS`).
    Retransmission,
    /// Tail loss probe (RFC 8985, section 7; `ICSK_TIME_LOSS_PROBE`).
    LossProbe,
    /// End of RACK's reordering window (RFC 8985, section 6.2; `ICSK_TIME_REO_TIMEOUT`).
    Reordering,
}

/// Whether the cwnd is what limits the sender (`tcp_cwnd_validate`).
#[derive(Clone, Debug, Default)]
pub(super) struct CwndUsage {
    /// Whether the cwnd held a burst back in the present round trip.
    is_cwnd_limited: bool,
    /// Largest number of outstanding segments in it.
    max_packets_out: u32,
    /// The round trip ends when this segment is acknowledged.
    cwnd_usage_seq: u32,
    /// Largest number of outstanding segments since the cwnd limited the sender last
    /// (`snd_cwnd_used`).
    snd_cwnd_used: u32,
    /// Tick at which the cwnd was last changed or used up (`snd_cwnd_stamp`).
    snd_cwnd_stamp: u64,
}

impl CwndUsage {
    /// Whether the cwnd may grow, since it limited the sender (`tcp_is_cwnd_limited`).
    #[inline]
    pub(super) fn is_limited(&self, cwnd: &CwndState) -> bool {
        self.is_cwnd_limited || (cwnd.cwnd < cwnd.ssthresh && cwnd.cwnd < 2 * self.max_packets_out)
    }

    /// Whether the cwnd held a burst back in the present round trip (`tcp_sock.is_cwnd_limited`).
    #[inline]
    pub(super) fn is_filled(&self) -> bool {
        self.is_cwnd_limited
    }

    /// Takes note that the cwnd was changed in this tick.
    #[inline]
    pub(super) fn changed(&mut self, tick: u64) {
        self.snd_cwnd_stamp = tick;
    }

    /// Takes note of how much of the cwnd is used. Returns whether the sender has not used it up,
    /// nor was it changed, for a retransmission timeout of `rto` ticks.
    #[inline]
    pub(super) fn starves(
        &mut self,
        cwnd: &CwndState,
        tick: u64,
        packets_out: u32,
        rto: u64,
    ) -> bool {
        if self.is_limited(cwnd) {
            self.snd_cwnd_used = 0;
            self.snd_cwnd_stamp = tick;
            return false;
        }
        self.snd_cwnd_used = self.snd_cwnd_used.max(packets_out);
        tick - self.snd_cwnd_stamp >= rto
    }

    /// Returns the number of segments of the cwnd that were used, and starts counting again.
    pub(super) fn take_used(&mut self) -> u32 {
        std::mem::take(&mut self.snd_cwnd_used)
    }

    /// Most segments that were outstanding during the last cwnd of data (`max_packets_out`).
    #[inline]
    pub(super) fn max_packets_out(&self) -> u32 {
        self.max_packets_out
    }

    #[inline]
    fn cwnd_validate(&mut self, limited: bool, una: u32, next: u32) {
        let packets_out = next - una;
        if una >= self.cwnd_usage_seq
            || limited
            || (!self.is_cwnd_limited && packets_out > self.max_packets_out)
        {
            self.is_cwnd_limited = limited;
            self.max_packets_out = packets_out;
            self.cwnd_usage_seq = next;
        }
    }
}

impl Sender {
    /// Sends what cwnd, pacing and receive window allow (`tcp_write_xmit`). A loss probe is a
    /// single burst for which the cwnd need not have room.
    #[inline]
    pub(super) fn write_xmit(&mut self, now: Nanos, probe: bool) {
        let burst = self
            .pacing
            .tso_segments(self.rtt.min_rtt_us(), self.control.min_burst());
        let idle = self.board.packets_out() == 0;
        let mut limited = false;
        let mut sent = 0;
        loop {
            if let Some(at) = self.pacing.check(now) {
                self.pacing_timer_at = at;
                break;
            }
            let (cwnd, in_flight) = (self.cwnd.cwnd, self.board.packets_in_flight());
            let room = cwnd.saturating_sub(in_flight);
            if room == 0 && !probe {
                break;
            }
            let snd_wnd = self.snd_wnd_end.saturating_sub(self.board.snd_nxt());
            let unsent = self.unsent_segments();
            // At most half the cwnd at once (`tcp_cwnd_test`).
            let quota = room.min((cwnd / 2).max(1)).max(probe.into());
            let segments = quota.min(burst).min(snd_wnd).min(unsent);
            if segments == 0 {
                break;
            }
            if !probe && unsent > 1 && room < burst && self.tso_should_defer(now, room) {
                limited |= room <= unsent;
                break;
            }
            if self.host_holds_back(segments, 0) {
                break;
            }
            self.send(now, segments);
            sent += segments;
            if probe {
                break;
            }
        }
        limited |= self.board.packets_in_flight() >= self.cwnd.cwnd;
        if sent == 0 && !limited {
            return;
        }
        self.usage
            .cwnd_validate(limited, self.board.snd_una(), self.board.snd_nxt());
        self.validate_usage(now);
        if sent == 0 {
            return;
        }
        if self.ca_state.is_reducing() {
            self.recovery.count_sent(sent);
        }
        if idle || self.timer == Timer::LossProbe {
            self.rearm_rto(now);
        }
        if !probe {
            self.schedule_loss_probe(now, false);
        }
    }

    /// Retransmits lost segments as far as the cwnd allows (`tcp_xmit_retransmit_queue`).
    pub(super) fn xmit_retransmit_queue(&mut self, now: Nanos) {
        let mut rearm = false;
        while self.board.packets_in_flight() < self.cwnd.cwnd
            && let Some(number) = self.board.first_to_retransmit()
        {
            if let Some(at) = self.pacing.check(now) {
                self.pacing_timer_at = at;
                break;
            }
            if self.host_holds_back(1, 1) {
                break;
            }
            self.retransmit(now, number);
            if self.ca_state.is_reducing() {
                self.recovery.count_sent(1);
            }
            rearm |= number == self.board.snd_una() && self.timer != Timer::Reordering;
        }
        if rearm {
            let timeout = self.rtt.rto();
            self.set_timer(now, Timer::Retransmission, timeout);
        }
    }

    /// Retransmits a segment, whatever the cwnd (`tcp_retransmit_skb`).
    pub(super) fn retransmit(&mut self, now: Nanos, number: u32) {
        if self.board.packets_in_flight() == 0 {
            self.start_transmitting(now);
        }
        let at = now.max(self.pacing.wstamp_ns());
        let stamps = self.delivery.skb_sent(at, false);
        self.board.retransmit(number, stamps);
        self.recovery.note_retransmission(at, 1);
        self.totals.segs_retrans = self.totals.segs_retrans.wrapping_add(1);
        self.send_again(now, at, number);
    }

    /// Sends a tail loss probe: new data, or the last segment where there are none
    /// (`tcp_send_loss_probe`).
    pub(super) fn send_loss_probe(&mut self, now: Nanos) {
        if !self.recovery.has_tlp() {
            let next = self.board.snd_nxt();
            if self.unsent_segments() > 0 {
                self.write_xmit(now, true);
                if self.board.snd_nxt() > next {
                    self.probes += 1;
                    self.recovery.begin_tlp(self.board.snd_nxt(), false);
                    self.timer = Timer::None;
                }
            } else if self.board.packets_out() > 0 && !self.board.get(next - 1).flags.sacked {
                let at = now.max(self.pacing.wstamp_ns());
                let stamps = self.delivery.skb_sent(at, false);
                self.board.probe(next - 1, stamps);
                self.totals.segs_retrans = self.totals.segs_retrans.wrapping_add(1);
                self.send_again(now, at, next - 1);
                self.probes += 1;
                self.recovery.begin_tlp(next, true);
                self.timer = Timer::None;
            }
        }
        self.rearm_rto(now);
    }

    /// Puts out a segment that was sent before and counts it.
    fn send_again(&mut self, now: Nanos, at: Nanos, number: u32) {
        let segment = self.board.get(number);
        let (payload, push) = (segment.payload, segment.flags.push);
        self.totals.bytes_retrans += u64::from(payload);
        if let Some(host) = &mut self.host {
            host.add(1, payload.into());
        }
        self.count_sent(now, 1, payload.into());
        (self.pacing).update_after_send(now, payload.into(), self.segments_sent);
        self.outbox.push(ToReceiver::Data {
            segment: number,
            payload,
            timestamp: milliseconds(at),
            echo: self.ts_recent,
            push,
            // Neither may be on a retransmission (RFC 3168, section 6.1.5; `tcp_ecn_send`).
            ect: false,
            cwr: false,
        });
    }

    /// Sets the loss probe's or the retransmission timer after an ACK (`tcp_set_xmit_timer`).
    #[inline]
    pub(super) fn set_xmit_timer(&mut self, now: Nanos) {
        if !self.schedule_loss_probe(now, true) {
            self.rearm_rto(now);
        }
    }

    /// Sets the retransmission timer, or stops it when nothing is outstanding (`tcp_rearm_rto`).
    #[inline]
    pub(super) fn rearm_rto(&mut self, now: Nanos) {
        if self.board.packets_out() == 0 {
            self.timer = Timer::None;
            self.timer_at = NEVER;
            return;
        }
        let timeout = match self.timer {
            // The timeout counts from the time at which the first segment was sent.
            Timer::LossProbe | Timer::Reordering => timer::jiffies(self.rto_delta_us(now).max(1)),
            _ => self.rtt.rto(),
        };
        self.set_timer(now, Timer::Retransmission, timeout);
    }

    #[inline]
    pub(super) fn set_timer(&mut self, now: Nanos, timer: Timer, jiffies: u64) {
        self.timer = timer;
        self.timer_at = self.ticks.expiry(now, jiffies);
    }

    /// Whether a burst has to wait until others have left the host's own queue.
    #[inline]
    fn host_holds_back(&mut self, segments: u32, doublings: u32) -> bool {
        let Some(host) = &mut self.host else {
            return false;
        };
        let payload = u64::from(segments) * u64::from(MSS);
        let (rate, paced) = (self.pacing.rate(), self.pacing.is_paced());
        // Two bursts always may (`tcp_rtx_queue_empty_or_single_skb`).
        self.board.packets_out() > segments && host.holds_back(payload, rate, paced, doublings)
    }

    /// Whether to wait for the next ACK, which would make the burst larger
    /// (`tcp_tso_should_defer`).
    #[inline]
    fn tso_should_defer(&self, now: Nanos, room: u32) -> bool {
        if self.ca_state >= CaState::Recovery
            || now > self.pacing.wstamp_ns() + RECENT
            || room >= self.cwnd.cwnd / DEFER_DIVISOR
            || self.board.packets_out() == 0
        {
            return false;
        }
        let srtt = Nanos::from(self.rtt.srtt_us()) * 1_000;
        let expected = self.board.get(self.board.snd_una()).sent + srtt;
        expected <= now + (srtt / 2).min(RECENT)
    }

    /// Sends new segments in a single burst.
    #[inline]
    fn send(&mut self, now: Nanos, segments: u32) {
        if self.board.packets_in_flight() == 0 {
            self.start_transmitting(now);
        }
        let at = now.max(self.pacing.wstamp_ns());
        let timestamp = milliseconds(at);
        let mut stamps = self.delivery.skb_sent(at, self.board.packets_out() == 0);
        let first = self.board.snd_nxt();
        let mut bytes = 0;
        for segment in first..first + segments {
            let (payload, last) = match &mut self.written {
                None => (MSS as u16, false),
                Some(written) => written.take_segment(),
            };
            let push = last || (segments > 1 && segment + 1 == first + segments);
            bytes += u64::from(payload);
            stamps.payload = payload;
            self.board.push(stamps, push);
            self.outbox.push(ToReceiver::Data {
                segment,
                payload,
                timestamp,
                echo: self.ts_recent,
                push,
                ect: self.ecn.enabled,
                cwr: std::mem::take(&mut self.ecn.queue_cwr),
            });
        }
        if let Some(host) = &mut self.host {
            host.add(segments, bytes);
        }
        self.count_sent(now, segments, bytes);
        self.pacing
            .update_after_send(now, bytes, self.segments_sent);
    }

    /// Tells the congestion control that sending begins again, and takes up its pacing rate.
    fn start_transmitting(&mut self, now: Nanos) {
        let start = self.transmit_start(now);
        (self.control).on_transmit_start(now, &mut self.cwnd, &start);
        if let Some(rate) = self.control.pacing_rate() {
            self.pacing.pace_at(rate);
        }
    }

    fn transmit_start(&self, now: Nanos) -> TransmitStart {
        let ticks = |ticks: u64| u32::try_from(ticks).unwrap_or(u32::MAX);
        TransmitStart {
            app_limited: self.delivery.is_app_limited(),
            idle: match self.board.packets_out() {
                0 => ticks(
                    self.ticks
                        .at(now)
                        .saturating_sub(self.ticks.at(self.lsndtime)),
                ),
                _ => 0,
            },
            rto: ticks(self.rtt.rto()),
            outstanding: self.board.packets_out() > 0,
            snd_nxt: self.board.snd_nxt().into(),
        }
    }

    #[inline]
    fn count_sent(&mut self, now: Nanos, segments: u32, bytes: u64) {
        self.lsndtime = now;
        self.segments_sent += u64::from(segments);
        self.totals.bytes_sent += bytes;
    }

    /// Sets the loss probe's timer (`tcp_schedule_loss_probe`). Returns false in states that do not
    /// probe.
    #[inline]
    fn schedule_loss_probe(&mut self, now: Nanos, advancing: bool) -> bool {
        if self.board.packets_out() == 0 || !matches!(self.ca_state, CaState::Open | CaState::Cwr) {
            return false;
        }
        let mut timeout_us = u64::from(self.rtt.srtt_us()) * 2;
        timeout_us += match self.board.packets_out() {
            // The receiver may delay the ACK of a single segment.
            1 => RTO_MIN_US,
            _ => TIMEOUT_MIN_US,
        };
        let until = if advancing {
            timer::micros(self.rtt.rto())
        } else {
            self.rto_delta_us(now)
        };
        if until > 0 {
            timeout_us = timeout_us.min(until);
        }
        self.set_timer(now, Timer::LossProbe, timer::jiffies(timeout_us));
        true
    }

    /// Time in µs until the retransmission timeout, counted from the first segment's sending; 0
    /// when it is past (`tcp_rto_delta_us`).
    #[inline]
    fn rto_delta_us(&self, now: Nanos) -> u64 {
        let sent = self.board.get(self.board.snd_una()).sent / 1_000;
        (sent + timer::micros(self.rtt.rto())).saturating_sub(now / 1_000)
    }
}
