//! CUBIC (RFC 9438) as in Linux 6.18 (net/ipv4/tcp_cubic.c) with its defaults: fast convergence, a
//! cwnd of at least Reno's, and HyStart.

mod hystart;
mod hystart_pp;

use cc_ebpf::{
    AckSample, CaState, CwndState,
    reno::{additive_increase, in_slow_start, slow_start},
};

use super::{CongestionControl, RateSample, TransmitStart};
use crate::path::Nanos;
use crate::sim::timer::{HZ, JIFFY, tick};
use hystart::Hystart;
use hystart_pp::HystartPlusPlus;

/// β, the factor of the cwnd after a loss, in units of 1 / [`SCALE`]: 0.7 (`beta`).
const BETA: u64 = 717;
/// The factor 1 in the units of [`BETA`] (`BICTCP_BETA_SCALE`).
const SCALE: u64 = 1024;
/// Unit of time in which the cubic function is evaluated: 2⁻¹⁰ s (`BICTCP_HZ`).
const TIME_BITS: u32 = 10;
/// The constant C of the cubic function in units of 10 / 1024: 0.4 segments/s³ (`bic_scale`).
const CUBE_SCALE: u64 = 41 * 10;
/// Acknowledged segments per segment that Reno would gain with this β at a cwnd of 8: 8 (1 + β) /
/// (3 (1 - β)) (RFC 9438, section 4.3).
const RENO_SCALE: u64 = 8 * (SCALE + BETA) / 3 / (SCALE - BETA);
/// Smallest number of acknowledged segments per segment gained before the first loss
/// (`bictcp_update`).
const FIRST_SEARCH: u32 = 20;
/// Smallest number of acknowledged segments per segment gained: the cwnd grows by half per RTT at
/// most.
const FASTEST: u32 = 2;

/// The state of CUBIC for one connection (`struct bictcp`).
#[derive(Clone, Debug)]
pub struct Cubic {
    exit: SlowStartExit,
    /// Smallest RTT in µs; 0 before the first (`delay_min`).
    min_rtt_us: u32,
    /// The cwnd at the last loss, less what fast convergence gives up, in segments; 0 for none
    /// (`last_max_cwnd`).
    last_max: u32,
    epoch: Option<Epoch>,
    /// Acknowledged segments per segment gained (`cnt`).
    interval: u32,
    /// The cwnd at the last evaluation, and the tick of it (`last_cwnd`, `last_time`).
    evaluated: (u32, u64),
    /// When a segment was last sent (`lsndtime`), ns.
    last_sent: Nanos,
}

/// The growth since the last reduction.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// Tick at which it began (`epoch_start`).
    start: u64,
    /// The plateau of the cubic function in segments (`bic_origin_point`).
    origin: u32,
    /// Time from the start to the plateau, 1024ths of a second (`bic_K`).
    k: u64,
    /// The cwnd that Reno would have, in segments (`tcp_cwnd`).
    reno: u32,
    /// Acknowledged segments that Reno's cwnd has not grown by yet (`ack_cnt`).
    acked: u64,
}

/// The method by which slow start may end without a loss.
#[derive(Clone, Copy, Debug)]
enum SlowStartExit {
    /// HyStart, as Linux implements it (Ha and Rhee 2008).
    Hystart(Hystart),
    /// HyStart++, as RFC 9406 defines it.
    HystartPlusPlus(HystartPlusPlus),
}

impl Cubic {
    /// Creates CUBIC with the kernel's HyStart: slow start ends on a long train of ACKs or when the
    /// RTT grows.
    pub fn new() -> Self {
        Self::with(SlowStartExit::Hystart(Hystart::default()))
    }

    /// Creates CUBIC with HyStart++ (RFC 9406): a growing RTT first slows slow start down, and ends
    /// it if it lasts.
    pub fn with_hystart_plus_plus() -> Self {
        Self::with(SlowStartExit::HystartPlusPlus(HystartPlusPlus::default()))
    }

    /// A control of the same kind for another connection.
    pub(super) fn another(&self) -> Self {
        match self.exit {
            SlowStartExit::Hystart(_) => Self::new(),
            SlowStartExit::HystartPlusPlus(_) => Self::with_hystart_plus_plus(),
        }
    }

    fn with(exit: SlowStartExit) -> Self {
        Self {
            exit,
            min_rtt_us: 0,
            last_max: 0,
            epoch: None,
            interval: 0,
            evaluated: (0, 0),
            last_sent: 0,
        }
    }

    /// Takes an RTT sample, and ends slow start (`cubictcp_acked`).
    fn measure(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.last_sent = rate.last_sent;
        if ack.rtt_us == 0 {
            return;
        }
        // Samples right after a recovery show the queue that led to it.
        let jiffy = tick(ack.now_ns);
        if self.epoch.is_some_and(|epoch| jiffy < epoch.start + HZ) {
            return;
        }
        if self.min_rtt_us == 0 || ack.rtt_us < self.min_rtt_us {
            self.min_rtt_us = ack.rtt_us;
        }
        let SlowStartExit::Hystart(hystart) = &mut self.exit else {
            return;
        };
        if in_slow_start(cwnd) && hystart.is_over(cwnd, ack, rate, self.min_rtt_us) {
            cwnd.ssthresh = cwnd.cwnd;
        }
    }

    /// Evaluates the cubic function and sets the interval (`bictcp_update`).
    fn evaluate(&mut self, cwnd: u32, acked: u32, jiffy: u64) {
        // Acknowledged segments count whether or not the function is evaluated. A new epoch starts
        // with those of this ACK.
        if let Some(epoch) = &mut self.epoch {
            epoch.acked += u64::from(acked);
        }
        let (last_cwnd, last_jiffy) = self.evaluated;
        if last_cwnd == cwnd && jiffy <= last_jiffy + HZ / 32 {
            return;
        }
        let evaluated_now = self.epoch.is_some() && jiffy == last_jiffy;
        if !evaluated_now {
            self.evaluated = (cwnd, jiffy);
        }
        let last_max = self.last_max;
        let epoch = self
            .epoch
            .get_or_insert_with(|| Epoch::new(jiffy, cwnd, last_max, acked));
        if !evaluated_now {
            let target = epoch.target(jiffy, self.min_rtt_us);
            let ahead = target.saturating_sub(u64::from(cwnd));
            let interval = u64::from(cwnd).checked_div(ahead);
            self.interval = interval.map_or(cwnd.saturating_mul(100), |interval| interval as u32);
            if self.last_max == 0 {
                self.interval = self.interval.min(FIRST_SEARCH);
            }
        }
        if let Some(reno) = cwnd.checked_div(epoch.reno_ahead(cwnd)) {
            self.interval = self.interval.min(reno);
        }
        self.interval = self.interval.max(FASTEST);
    }

    /// Forgets everything after a timeout (`bictcp_reset`).
    fn reset(&mut self) {
        *self = Self::with(match self.exit {
            SlowStartExit::Hystart(_) => SlowStartExit::Hystart(Hystart::default()),
            SlowStartExit::HystartPlusPlus(_) => {
                SlowStartExit::HystartPlusPlus(HystartPlusPlus::after_loss())
            }
        });
    }
}

impl Default for Cubic {
    fn default() -> Self {
        Self::new()
    }
}

impl CongestionControl for Cubic {
    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.measure(cwnd, ack, rate);
        if let SlowStartExit::HystartPlusPlus(hystart) = &mut self.exit {
            hystart.measure(ack, rate);
        }
        if !ack.cwnd_limited {
            return;
        }
        let mut acked = ack.acked;
        if in_slow_start(cwnd) {
            if let SlowStartExit::HystartPlusPlus(hystart) = &mut self.exit {
                acked = hystart.growth(cwnd, acked);
            }
            acked = slow_start(cwnd, acked);
            if acked == 0 {
                return;
            }
        }
        self.evaluate(cwnd.cwnd, acked, tick(ack.now_ns));
        additive_increase(cwnd, self.interval, acked);
    }

    fn on_measurement(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.measure(cwnd, ack, rate);
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        self.epoch = None;
        if let SlowStartExit::HystartPlusPlus(hystart) = &mut self.exit {
            *hystart = HystartPlusPlus::after_loss();
        }
        let segments = u64::from(cwnd.cwnd);
        // Fast convergence: a flow that lost before it came back to its last maximum makes room for
        // others.
        self.last_max = match cwnd.cwnd < self.last_max {
            true => (segments * (SCALE + BETA) / (2 * SCALE)) as u32,
            false => cwnd.cwnd,
        };
        ((segments * BETA / SCALE) as u32).max(2)
    }

    fn on_state(&mut self, _now: Nanos, _cwnd: &mut CwndState, state: CaState) {
        if state == CaState::Loss {
            self.reset();
        }
    }

    fn on_transmit_start(&mut self, now: Nanos, _cwnd: &mut CwndState, _start: &TransmitStart) {
        // Idle time does not count for the cubic function (`cubictcp_cwnd_event`).
        if let Some(epoch) = &mut self.epoch {
            let idle = tick(now) - tick(self.last_sent);
            epoch.start = (epoch.start + idle).min(tick(now));
        }
    }
}

impl Epoch {
    fn new(start: u64, cwnd: u32, last_max: u32, acked: u32) -> Self {
        let below = u64::from(last_max.saturating_sub(cwnd));
        // K = ∛((W_max - cwnd) / C), RFC 9438, section 4.2.
        let cubed = (below << (TIME_BITS * 4)) / CUBE_SCALE;
        Self {
            start,
            origin: last_max.max(cwnd),
            k: (cubed as f64).cbrt() as u64,
            reno: cwnd,
            acked: u64::from(acked),
        }
    }

    /// The cubic function one smallest RTT ahead, in segments.
    fn target(&self, jiffy: u64, min_rtt_us: u32) -> u64 {
        let ahead = u64::from(min_rtt_us).div_ceil(JIFFY / 1_000);
        let time = ((jiffy - self.start + ahead) << TIME_BITS) / HZ;
        let offset = u128::from(time.abs_diff(self.k));
        let delta = (u128::from(CUBE_SCALE) * offset * offset * offset) >> (TIME_BITS * 4);
        let (delta, origin) = (delta as u64, u64::from(self.origin));
        match time < self.k {
            true => origin.saturating_sub(delta),
            false => origin + delta,
        }
    }

    /// Number of segments by which Reno's cwnd exceeds `cwnd`.
    fn reno_ahead(&mut self, cwnd: u32) -> u32 {
        let per_segment = ((u64::from(cwnd) * RENO_SCALE) >> 3).max(1);
        // The kernel's loop counts only what exceeds a segment's worth.
        let gained = self.acked.saturating_sub(1) / per_segment;
        self.acked -= gained * per_segment;
        self.reno = self.reno.saturating_add(gained as u32);
        self.reno.saturating_sub(cwnd)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MS, Path, ack, cwnd, rate};
    use super::*;

    /// Congestion avoidance for `rtts` round trips, in each of which a cwnd of segments is
    /// acknowledged.
    fn avoid(cubic: &mut Cubic, w: &mut CwndState, now: &mut Nanos, rtt: Nanos, rtts: u32) {
        for _ in 0..rtts {
            let acks = w.cwnd;
            for _ in 0..acks {
                *now += rtt / u64::from(acks);
                let ack = AckSample {
                    rtt_us: (rtt / 1_000) as u32,
                    ..ack(*now, 1)
                };
                cubic.on_ack(w, &ack, &rate());
            }
        }
    }

    /// A connection after a loss at a cwnd of `from`, past the second in which samples do not
    /// count.
    fn after_loss(from: u32) -> (Cubic, CwndState) {
        let mut cubic = Cubic::new();
        let mut w = cwnd(from, from / 2);
        w.ssthresh = cubic.ssthresh(&w);
        w.cwnd = w.ssthresh;
        (cubic, w)
    }

    #[test]
    fn a_loss_takes_three_tenths() {
        let mut cubic = Cubic::new();
        assert_eq!(cubic.ssthresh(&cwnd(100, 10)), 70);
        assert_eq!(cubic.last_max, 100);
        assert_eq!(cubic.ssthresh(&cwnd(2, 10)), 2);
    }

    #[test]
    fn a_loss_below_the_last_maximum_makes_room() {
        let mut cubic = Cubic::new();
        cubic.ssthresh(&cwnd(100, 10));
        cubic.ssthresh(&cwnd(80, 10));
        // 80 · (1 + β) / 2.
        assert_eq!(cubic.last_max, 68);
    }

    #[test]
    fn the_cwnd_is_back_at_its_maximum_after_k() {
        // K = ∛((W - 0.7 W) / 0.4) s: 7.2 s for 500 segments, at an RTT at which Reno is slower.
        // The last segment alone takes ∛(1 / 0.4) = 1.36 s, and the function is evaluated an RTT
        // ahead.
        let (mut cubic, mut w) = after_loss(500);
        let mut now = 10_000 * MS;
        let start = now;
        let mut reached = None;
        let mut halfway = 0;
        while reached.is_none() {
            avoid(&mut cubic, &mut w, &mut now, 200 * MS, 1);
            if now < start + 3_600 * MS {
                halfway = w.cwnd;
            }
            if w.cwnd >= 499 {
                reached = Some((now - start) / MS);
            }
            assert!(now < start + 20_000 * MS, "stuck at {}", w.cwnd);
        }
        let reached = reached.expect("it was");
        assert!((5_300..6_100).contains(&reached), "{reached} ms");
        // Concave: at half the time it has come seven eighths of the way.
        assert!((470..492).contains(&halfway), "{halfway}");
        avoid(&mut cubic, &mut w, &mut now, 200 * MS, 20);
        assert!(w.cwnd > 505, "convex beyond: {}", w.cwnd);
    }

    #[test]
    fn it_is_never_slower_than_reno() {
        // At 10 ms the cubic function is far behind Reno: 3 (1 - β) / (1 + β) = 0.53 segments per
        // RTT.
        let (mut cubic, mut w) = after_loss(50);
        let (mut now, from) = (10_000 * MS, w.cwnd);
        avoid(&mut cubic, &mut w, &mut now, 10 * MS, 20);
        let gained = w.cwnd - from;
        assert!((8..=13).contains(&gained), "{gained}");
    }

    #[test]
    fn the_cwnd_grows_by_at_most_half_per_rtt() {
        let (mut cubic, mut w) = after_loss(20);
        let mut now = 10_000 * MS;
        avoid(&mut cubic, &mut w, &mut now, 100 * MS, 200);
        let from = w.cwnd;
        avoid(&mut cubic, &mut w, &mut now, 100 * MS, 1);
        assert!(w.cwnd <= from + from / 2 + 1, "{from} {}", w.cwnd);
    }

    #[test]
    fn a_timeout_forgets_the_maximum() {
        let (mut cubic, mut w) = after_loss(100);
        let mut now = 10_000 * MS;
        avoid(&mut cubic, &mut w, &mut now, 100 * MS, 5);
        cubic.on_state(now, &mut w, CaState::Loss);
        assert_eq!((cubic.last_max, cubic.min_rtt_us), (0, 0));
        assert!(cubic.epoch.is_none());
    }

    #[test]
    fn idle_time_does_not_count() {
        let (mut cubic, mut w) = after_loss(500);
        let mut now = 10_000 * MS;
        avoid(&mut cubic, &mut w, &mut now, 200 * MS, 2);
        let start = cubic.epoch.expect("it runs").start;
        cubic.last_sent = now;
        cubic.on_transmit_start(now + 400 * MS, &mut w, &TransmitStart::default());
        assert_eq!(cubic.epoch.expect("it runs").start, start + 100);
    }

    #[test]
    fn an_application_that_sends_less_does_not_grow_the_cwnd() {
        let (mut cubic, mut w) = after_loss(100);
        let idle = AckSample {
            cwnd_limited: false,
            ..ack(20_000 * MS, 50)
        };
        let before = w;
        cubic.on_ack(&mut w, &idle, &rate());
        assert_eq!(w, before);
    }

    #[test]
    fn slow_start_ends_before_the_queue_is_full() {
        // A pipe of 100 segments (12 Mbit/s, 100 ms) with an endless queue.
        for (mut cubic, most) in [
            (Cubic::new(), 210),
            (Cubic::with_hystart_plus_plus(), 1_000),
        ] {
            let mut path = Path::new(MS, 100 * MS);
            let w = path.run(&mut cubic, 5_000 * MS);
            assert!(w.ssthresh < u32::MAX, "still in slow start at {}", w.cwnd);
            assert!((50..most).contains(&w.ssthresh), "{}", w.ssthresh);
        }
    }

    #[test]
    fn a_short_train_and_a_steady_delay_do_not_end_slow_start() {
        // A pipe far larger than what is sent: neither sign is there.
        let mut cubic = Cubic::new();
        let mut path = Path::new(MS / 1_000, 100 * MS);
        let w = path.run(&mut cubic, 650 * MS);
        assert_eq!(w.ssthresh, u32::MAX);
        assert!(w.cwnd > 300, "{}", w.cwnd);
    }
}
