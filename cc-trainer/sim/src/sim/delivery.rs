//! Delivery-rate samples (net/ipv4/tcp_rate.c; draft-cheng-iccrg-delivery-rate-estimation).

use crate::path::Nanos;

use super::control::RateSample;
use super::scoreboard::Segment;

/// What a sender keeps for them.
#[derive(Clone, Debug)]
pub(super) struct DeliveryRate {
    /// Lifetime segments delivered; the SYN counts (`tcp_sock.delivered`).
    delivered: u32,
    /// When the newest of them was known to be (`delivered_mstamp`).
    delivered_mstamp: Nanos,
    /// When the segment acknowledged last was sent (`first_tx_mstamp`).
    first_tx_mstamp: Nanos,
}

/// The sample of an ACK in the making (`struct rate_sample`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateSampleDraft {
    /// 0 as long as no segment was delivered (`prior_delivered`).
    pub(super) prior_delivered: u32,
    prior_mstamp: Nanos,
    snd_interval: Nanos,
    number: u32,
    retransmitted: bool,
}

impl DeliveryRate {
    /// Before the handshake is through.
    pub(super) fn new() -> Self {
        Self {
            delivered: 1,
            delivered_mstamp: 0,
            first_tx_mstamp: 0,
        }
    }

    /// Lifetime segments delivered, the SYN included.
    #[inline]
    pub(super) fn delivered(&self) -> u32 {
        self.delivered
    }

    /// A segment is sent at `now`; `idle` when nothing was outstanding (`tcp_rate_skb_sent`).
    #[inline]
    pub(super) fn skb_sent(&mut self, now: Nanos, idle: bool) -> Segment {
        if idle {
            self.first_tx_mstamp = now;
            self.delivered_mstamp = now;
        }
        Segment::sent(
            now,
            self.first_tx_mstamp,
            self.delivered_mstamp,
            self.delivered,
        )
    }

    /// A segment was newly acknowledged or SACKed (`tcp_rate_skb_delivered`); one that was SACKed before is not
    /// looked at again.
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
            sample.number = number;
            self.first_tx_mstamp = segment.sent;
            sample.snd_interval = segment.sent.saturating_sub(segment.first_tx_mstamp);
        }
    }

    /// The sample when the ACK has been processed (`tcp_rate_gen`). `any`: it delivered something.
    #[inline]
    pub(super) fn rate_gen(
        &mut self,
        sample: &RateSampleDraft,
        now: Nanos,
        any: bool,
        min_rtt_us: u32,
    ) -> RateSample {
        if any {
            self.delivered_mstamp = now;
        }
        let mut rate = RateSample {
            prior_delivered: sample.prior_delivered.into(),
            retransmitted: sample.retransmitted,
            total_delivered: self.delivered.into(),
            min_rtt_us,
            ..RateSample::default()
        };
        if sample.prior_delivered == 0 {
            return rate;
        }
        let interval = sample.snd_interval.max(now - sample.prior_mstamp);
        let interval_us = u32::try_from(interval / 1_000).unwrap_or(u32::MAX);
        // A shorter interval than the smallest RTT is from a retransmission, and false.
        if interval_us >= min_rtt_us {
            rate.interval_us = interval_us;
            rate.delivered = Some(self.delivered - sample.prior_delivered);
        }
        rate
    }
}
