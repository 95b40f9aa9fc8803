//! YeAH (Baiocchi, Castellani and Vacirca, "YeAH-TCP: Yet Another Highspeed TCP", PFLDnet 2007) as
//! in Linux (net/ipv4/tcp_yeah.c): fast growth while the queue is short, Reno's while it is
//! not, and a reduction without a loss when it is long.

use cc_ebpf::{
    AckSample, CaState, CwndState,
    reno::{additive_increase, in_slow_start, slow_start},
};

use super::vegas::{RoundTrip, RttRounds};
use super::{Acked, CongestionControl, RateSample, TransmitStart};
use crate::path::Nanos;

/// Most queued segments with which growth is fast (`TCP_YEAH_ALPHA`).
const MOST_QUEUED: u32 = 80;
/// Growth is fast up to this part of the smallest RTT in queueing delay, an eighth
/// (`TCP_YEAH_PHY`).
const LONG_DELAY: u32 = 8;
/// Largest part of the cwnd that is given up without a loss, as a shift: a half
/// (`TCP_YEAH_EPSILON`).
const LARGEST_DRAIN_SHIFT: u32 = 1;
/// Least part of the cwnd that a loss takes, as a shift: an eighth (`TCP_YEAH_DELTA`).
const LEAST_CUT_SHIFT: u32 = 3;
/// Number of slow round trips in a row after which other flows are taken to fill the queue
/// (`TCP_YEAH_RHO`).
const COMPETITION: u32 = 16;
/// Number of fast round trips after which the share of Reno's flows is estimated anew
/// (`TCP_YEAH_ZETA`).
const FORGETTING: u32 = 50;
/// Acknowledged segments per segment gained in fast growth, at most (`TCP_SCALABLE_AI_CNT`).
const FAST_INTERVAL: u32 = 100;
/// Upper bound of the cwnd in segments.
const LARGEST_CWND: u32 = u32::MAX / 128;
/// The cwnd in segments of a Reno flow of which nothing is known, and the smallest threshold.
const LEAST: u32 = 2;

/// The state of YeAH for one connection (`struct yeah`).
#[derive(Clone, Debug)]
pub struct Yeah {
    rounds: RttRounds,
    /// Queued segments in the last round trip (`lastQ`).
    queued: u32,
    /// Number of slow round trips in a row; growth is fast while it is 0 (`doing_reno_now`).
    slow_rounds: u32,
    /// Number of fast round trips since the last loss (`fast_count`).
    fast_rounds: u32,
    /// The cwnd that a Reno flow would have beside this one, segments (`reno_count`).
    reno: u32,
}

impl Yeah {
    /// Creates the control of a new connection.
    pub fn new() -> Self {
        Self {
            rounds: RttRounds::default(),
            queued: 0,
            slow_rounds: 0,
            fast_rounds: 0,
            reno: LEAST,
        }
    }

    /// Chooses the growth of the next round trip, and drains a long queue.
    fn end_round(&mut self, cwnd: &mut CwndState, round: RoundTrip) {
        let queueing_us = round.queueing_us();
        let queued = u64::from(cwnd.cwnd) * u64::from(queueing_us) / u64::from(round.rtt_us);
        self.queued = queued as u32;
        let long = self.queued > MOST_QUEUED;
        if long || queueing_us > round.base_us / LONG_DELAY {
            if long && cwnd.cwnd > self.reno {
                let drained = self.queued.min(cwnd.cwnd >> LARGEST_DRAIN_SHIFT);
                cwnd.cwnd = (cwnd.cwnd - drained).max(self.reno);
                cwnd.ssthresh = cwnd.cwnd;
            }
            self.reno = match self.reno {
                0..=LEAST => (cwnd.cwnd / 2).max(LEAST),
                reno => reno.saturating_add(1),
            };
            self.slow_rounds = self.slow_rounds.saturating_add(1);
        } else {
            self.fast_rounds += 1;
            if self.fast_rounds > FORGETTING {
                self.reno = LEAST;
                self.fast_rounds = 0;
            }
            self.slow_rounds = 0;
        }
    }

    /// Grows the cwnd by this ACK.
    fn grow(&self, cwnd: &mut CwndState, mut acked: u32) {
        if in_slow_start(cwnd) {
            acked = slow_start(cwnd, acked);
            if acked == 0 {
                return;
            }
        }
        let interval = match self.slow_rounds {
            0 => cwnd.cwnd.min(FAST_INTERVAL),
            _ => cwnd.cwnd,
        };
        additive_increase(cwnd, interval, acked);
    }
}

impl Default for Yeah {
    fn default() -> Self {
        Self::new()
    }
}

impl CongestionControl for Yeah {
    fn init(&mut self, _now: Nanos, cwnd: &mut CwndState, _rtt_us: u32) {
        cwnd.clamp = cwnd.clamp.min(LARGEST_CWND);
    }

    fn on_acked(&mut self, _cwnd: &CwndState, acked: &Acked) {
        self.rounds.measure(acked);
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        if !ack.cwnd_limited {
            return;
        }
        self.grow(cwnd, ack.acked);
        if self.rounds.is_over(rate)
            && let Some(round) = self.rounds.next(rate)
        {
            self.end_round(cwnd, round);
        }
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        let half = (cwnd.cwnd / 2).max(LEAST);
        let cut = match self.slow_rounds < COMPETITION {
            true => self.queued.min(half).max(cwnd.cwnd >> LEAST_CUT_SHIFT),
            false => half,
        };
        self.fast_rounds = 0;
        self.reno = (self.reno / 2).max(LEAST);
        cwnd.cwnd.saturating_sub(cut).max(LEAST)
    }

    fn on_state(&mut self, _now: Nanos, _cwnd: &mut CwndState, state: CaState) {
        self.rounds.on_state(state);
    }

    fn on_transmit_start(&mut self, _now: Nanos, _cwnd: &mut CwndState, start: &TransmitStart) {
        self.rounds.forget(start.snd_nxt);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::cwnd;
    use super::*;

    /// A round trip of 100 ms without queue in which this many of a cwnd's segments are queued.
    fn round(cwnd: u32, queued: u32) -> RoundTrip {
        RoundTrip {
            rtt_us: 100_000 * cwnd / (cwnd - queued) + 1,
            base_us: 100_000,
        }
    }

    #[test]
    fn growth_is_fast_while_the_queue_is_short() {
        let (mut yeah, mut w) = (Yeah::new(), cwnd(1_000, 10));
        yeah.end_round(&mut w, round(1_000, 50));
        assert_eq!((yeah.slow_rounds, yeah.queued), (0, 50));
        yeah.grow(&mut w, 100);
        assert_eq!(w.cwnd, 1_001, "a hundredth per round trip");
    }

    #[test]
    fn growth_is_renos_while_the_delay_is_an_eighth_of_the_rtt() {
        let (mut yeah, mut w) = (Yeah::new(), cwnd(200, 10));
        yeah.end_round(&mut w, round(200, 30));
        assert_eq!((w.cwnd, yeah.slow_rounds), (200, 1));
        yeah.grow(&mut w, 199);
        assert_eq!((w.cwnd, w.cwnd_cnt), (200, 199));
        // One round trip with a short queue is enough for fast growth.
        yeah.end_round(&mut w, round(200, 10));
        assert_eq!(yeah.slow_rounds, 0);
    }

    #[test]
    fn a_long_queue_is_drained_without_a_loss() {
        let (mut yeah, mut w) = (Yeah::new(), cwnd(1_000, 10));
        yeah.end_round(&mut w, round(1_000, 90));
        assert_eq!((w.cwnd, w.ssthresh), (910, 910));
        assert_eq!(yeah.reno, 455, "a first guess");
        yeah.end_round(&mut w, round(910, 700));
        assert_eq!((w.cwnd, yeah.reno), (455, 456), "by half, not below Reno");
        yeah.end_round(&mut w, round(455, 90));
        assert_eq!((w.cwnd, yeah.reno), (455, 457), "Reno would have as much");
    }

    #[test]
    fn a_loss_takes_the_queue_an_eighth_at_least_and_half_at_most() {
        let after_loss = |queued, slow_rounds| {
            let mut yeah = Yeah {
                queued,
                slow_rounds,
                ..Yeah::new()
            };
            yeah.ssthresh(&cwnd(800, 10))
        };
        assert_eq!(after_loss(10, 0), 700);
        assert_eq!(after_loss(150, 0), 650);
        assert_eq!(after_loss(600, 0), 400);
        assert_eq!(after_loss(10, 16), 400, "beside flows that fill the queue");
    }

    #[test]
    fn small_cwnds_keep_two_segments() {
        assert_eq!(Yeah::new().ssthresh(&cwnd(2, 10)), 2);
        assert_eq!(Yeah::new().ssthresh(&cwnd(1, 10)), 2);
    }

    #[test]
    fn fifty_fast_round_trips_forget_renos_share() {
        let (mut yeah, mut w) = (Yeah::new(), cwnd(1_000, 10));
        yeah.end_round(&mut w, round(1_000, 90));
        for _ in 0..50 {
            yeah.end_round(&mut w, round(1_000, 0));
        }
        assert_eq!(yeah.reno, 455);
        yeah.end_round(&mut w, round(1_000, 0));
        assert_eq!(yeah.reno, 2);
    }
}
