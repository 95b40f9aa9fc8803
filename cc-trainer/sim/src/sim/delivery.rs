//! Delivery-rate samples (Linux 6.18, net/ipv4/tcp_rate.c;
//! draft-cheng-iccrg-delivery-rate-estimation).

use crate::path::Nanos;

use super::control::RateSample;
use super::scoreboard::Segment;

/// The sender's state for delivery-rate samples.
#[derive(Clone, Debug)]
pub(super) struct DeliveryRate {
    /// Lifetime segments delivered, the SYN included (`tcp_sock.delivered`).
    delivered: u32,
    /// Time of the newest delivery, ns (`delivered_mstamp`).
    delivered_mstamp: Nanos,
    /// Time at which the segment acknowledged last was sent, ns (`first_tx_mstamp`).
    first_tx_mstamp: Nanos,
    /// Samples of segments sent now are limited by the application until this many segments are
    /// delivered; 0 while the application does not limit the sender (`app_limited`).
    app_limited: u32,
}

/// The sample of an ACK while the ACK is processed (`struct rate_sample`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateSampleDraft {
    /// Lifetime segments delivered when the sample's segment was sent; 0 while the ACK has
    /// delivered nothing (`prior_delivered`).
    pub(super) prior_delivered: u32,
    prior_mstamp: Nanos,
    snd_interval: Nanos,
    /// The sample's segment, the newest that the ACK delivered.
    pub(super) number: u32,
    retransmitted: bool,
    app_limited: bool,
}

impl DeliveryRate {
    /// Creates the state before the handshake.
    pub(super) fn new() -> Self {
        Self {
            delivered: 1,
            delivered_mstamp: 0,
            first_tx_mstamp: 0,
            app_limited: 0,
        }
    }

    /// Takes note that the application leaves the sender without data while `in_flight` segments
    /// are on their way (`tcp_rate_check_app_limited`, whose conditions the caller has checked).
    pub(super) fn limit_by_application(&mut self, in_flight: u32) {
        self.app_limited = self.delivered + in_flight;
    }

    /// Whether segments sent now are limited by the application.
    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited != 0
    }

    /// Lifetime segments delivered, the SYN included.
    #[inline]
    pub(super) fn delivered(&self) -> u32 {
        self.delivered
    }

    /// Stamps a segment that is sent at `now`; `idle` when nothing was outstanding
    /// (`tcp_rate_skb_sent`).
    #[inline]
    pub(super) fn skb_sent(&mut self, now: Nanos, idle: bool) -> Segment {
        if idle {
            self.first_tx_mstamp = now;
            self.delivered_mstamp = now;
        }
        let mut segment = Segment::sent(
            now,
            self.first_tx_mstamp,
            self.delivered_mstamp,
            self.delivered,
        );
        segment.app_limited = self.app_limited != 0;
        segment
    }

    /// Takes note of a segment that is newly acknowledged or SACKed (`tcp_rate_skb_delivered`). A
    /// segment that was SACKed before must not be passed again.
    #[inline]
    pub(super) fn skb_delivered(
        &mut self,
        sample: &mut RateSampleDraft,
        number: u32,
        segment: &Segment,
    ) {
        self.delivered += 1;
        if sample.prior_delivered == 0
            || (segment.sent, number) > (self.first_tx_mstamp, sample.number)
        {
            sample.prior_delivered = segment.delivered;
            sample.prior_mstamp = segment.delivered_mstamp;
            sample.retransmitted = segment.flags.ever_retrans;
            sample.app_limited = segment.app_limited;
            sample.number = number;
            self.first_tx_mstamp = segment.sent;
            sample.snd_interval = segment.sent.saturating_sub(segment.first_tx_mstamp);
        }
    }

    /// Completes the sample after the ACK has been processed (`tcp_rate_gen`). `any` says whether
    /// the ACK delivered anything.
    #[inline]
    pub(super) fn rate_gen(
        &mut self,
        sample: &RateSampleDraft,
        now: Nanos,
        any: bool,
        min_rtt_us: u32,
    ) -> RateSample {
        if self.delivered > self.app_limited {
            // The gap that the application left is acknowledged.
            self.app_limited = 0;
        }
        if any {
            self.delivered_mstamp = now;
        }
        let mut rate = RateSample {
            app_limited: sample.app_limited,
            prior_delivered: sample.prior_delivered.into(),
            retransmitted: sample.retransmitted,
            total_delivered: self.delivered.into(),
            min_rtt_us,
            ..RateSample::default()
        };
        if sample.prior_delivered == 0 {
            return rate;
        }
        rate.sent = self.first_tx_mstamp;
        let interval = sample.snd_interval.max(now - sample.prior_mstamp);
        let interval_us = u32::try_from(interval / 1_000).unwrap_or(u32::MAX);
        // An interval shorter than the smallest RTT comes from a retransmission and would be wrong.
        if interval_us >= min_rtt_us {
            rate.interval_us = interval_us;
            rate.delivered = Some(self.delivered - sample.prior_delivered);
        }
        rate
    }
}
