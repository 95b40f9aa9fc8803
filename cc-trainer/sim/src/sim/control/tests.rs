//! Shared by the tests of the congestion controls: samples made by hand, and a path without loss
//! that makes them.

use std::collections::VecDeque;

use cc_ebpf::{AckSample, CaState, CwndState, Totals};

use super::{Acked, CongestionControl, RateSample};
use crate::path::Nanos;

pub(super) const MS: Nanos = 1_000_000;

pub(super) fn cwnd(cwnd: u32, ssthresh: u32) -> CwndState {
    CwndState {
        cwnd,
        ssthresh,
        cwnd_cnt: 0,
        clamp: u32::MAX,
    }
}

/// An ACK of `acked` segments without an RTT sample, from a sender that is limited by its cwnd.
pub(super) fn ack(now_ns: Nanos, acked: u32) -> AckSample {
    AckSample {
        now_ns,
        rtt_us: 0,
        srtt_us: 0,
        rttvar_us: 0,
        mss: 1448,
        header_len: 32,
        in_flight: 0,
        acked,
        lost: 0,
        delivered: 0,
        interval_us: 0,
        retransmits: 0,
        cwnd_limited: true,
        max_packets_out: 10,
        app_limited: false,
        idle: false,
        decays_unused: true,
        ca_state: CaState::Open,
        totals: Totals::default(),
    }
}

/// A rate sample that is not valid.
pub(super) fn rate() -> RateSample {
    RateSample::default()
}

/// A link that serves each segment in the same time behind an unbounded queue, and a sender on it
/// that gets an ACK for every segment.
pub(super) struct Path {
    service: Nanos,
    rtt: Nanos,
    now: Nanos,
    cwnd: Option<CwndState>,
    flight: VecDeque<Sent>,
    /// When the link will have served all segments in its queue.
    free: Nanos,
    next_send: Nanos,
    last_sent: Nanos,
    sent: u64,
    delivered: u64,
    delivered_at: Nanos,
    first_sent: Nanos,
    srtt: Nanos,
    min_rtt: Nanos,
    /// For each segment sent: the time, and the segments then in the queue.
    queues: Vec<(Nanos, u64)>,
}

struct Sent {
    sent: Nanos,
    acked: Nanos,
    first_sent: Nanos,
    delivered: u64,
    delivered_at: Nanos,
    in_flight: u32,
}

impl Path {
    pub(super) fn new(service: Nanos, rtt: Nanos) -> Self {
        // The state after a handshake.
        Self {
            service,
            rtt,
            now: rtt,
            cwnd: None,
            flight: VecDeque::new(),
            free: 0,
            next_send: 0,
            last_sent: 0,
            sent: 0,
            delivered: 0,
            delivered_at: rtt,
            first_sent: rtt,
            srtt: rtt,
            min_rtt: rtt,
            queues: Vec::new(),
        }
    }

    pub(super) fn now(&self) -> Nanos {
        self.now
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// The longest queue in segments that a segment sent at `from` or later found.
    pub(super) fn longest_queue(&self, from: Nanos) -> u64 {
        let later = self.queues.iter().filter(|(at, _)| *at >= from);
        later.map(|(_, queue)| *queue).max().unwrap_or(0)
    }

    /// Runs for `time` and returns the cwnd at its end.
    pub(super) fn run(&mut self, control: &mut impl CongestionControl, time: Nanos) -> CwndState {
        let mut w = self.cwnd.take().unwrap_or_else(|| {
            let mut w = cwnd(10, u32::MAX);
            control.init(self.now, &mut w, (self.rtt / 1_000) as u32);
            w
        });
        let end = self.now + time;
        loop {
            let may_send = (self.flight.len() as u32) < w.cwnd;
            let send = may_send.then(|| self.next_send.max(self.now));
            let acked = self.flight.front().map(|segment| segment.acked);
            // Something is in flight, or may be.
            let next = send.into_iter().chain(acked).min().unwrap_or(end);
            if next > end {
                break;
            }
            self.now = next;
            match acked {
                Some(at) if at == next => self.acknowledge(control, &mut w),
                _ => self.send(control.pacing_rate()),
            }
        }
        self.now = end;
        self.cwnd = Some(w);
        w
    }

    fn send(&mut self, pacing_rate: Option<u64>) {
        if self.flight.is_empty() {
            self.first_sent = self.now;
            self.delivered_at = self.now;
        }
        let starts = self.free.max(self.now);
        self.queues
            .push((self.now, (starts - self.now) / self.service));
        self.free = starts + self.service;
        self.flight.push_back(Sent {
            sent: self.now,
            acked: self.free + self.rtt,
            first_sent: self.first_sent,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            in_flight: self.flight.len() as u32 + 1,
        });
        self.sent += 1;
        self.last_sent = self.now;
        if let Some(rate) = pacing_rate {
            self.next_send = self.now + 1448 * 1_000 * MS / rate;
        }
    }

    fn acknowledge(&mut self, control: &mut impl CongestionControl, w: &mut CwndState) {
        let before = self.flight.len() as u32;
        let Some(segment) = self.flight.pop_front() else {
            return;
        };
        self.delivered += 1;
        self.delivered_at = self.now;
        self.first_sent = segment.sent;
        let rtt = self.now - segment.sent;
        self.srtt = (7 * self.srtt + rtt) / 8;
        self.min_rtt = self.min_rtt.min(rtt);
        let (sending, acking) = (
            segment.sent - segment.first_sent,
            self.now - segment.delivered_at,
        );
        let sample = AckSample {
            rtt_us: (rtt / 1_000) as u32,
            srtt_us: (self.srtt / 1_000) as u32,
            in_flight: before - 1,
            totals: Totals {
                bytes_sent: self.sent * 1_448,
                ..Totals::default()
            },
            ..ack(self.now, 1)
        };
        let rate = RateSample {
            prior_delivered: segment.delivered,
            delivered: Some((self.delivered - segment.delivered) as u32),
            interval_us: (sending.max(acking) / 1_000) as u32,
            prior_in_flight: before,
            total_delivered: self.delivered,
            snd_una: self.delivered,
            snd_nxt: self.sent,
            min_rtt_us: (self.min_rtt / 1_000) as u32,
            last_sent: self.last_sent,
            next_send: self.next_send,
            cwnd_filled: before >= w.cwnd,
            sent: segment.sent,
            tx_in_flight: segment.in_flight,
            ..RateSample::default()
        };
        let acked = Acked {
            now: self.now,
            segments: 1,
            rtt_us: sample.rtt_us,
            snd_nxt: self.sent,
            mss: sample.mss,
            ..Acked::default()
        };
        control.on_acked(w, &acked);
        control.on_ack(w, &sample, &rate);
    }
}
