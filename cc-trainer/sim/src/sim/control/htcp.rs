//! H-TCP (Leith and Shorten, "H-TCP: TCP for High-Speed and Long-Distance Networks", PFLDnet 2004;
//! draft-leith-tcp-htcp-06) as in Linux (net/ipv4/tcp_htcp.c) with its defaults: the longer
//! the last loss is past the faster the cwnd grows, and a loss takes as much as the queue held.

use cc_ebpf::{
    AckSample, CaState, CwndState,
    reno::{self, in_slow_start, slow_start},
};

use super::{Acked, CongestionControl, RateSample};
use crate::path::Nanos;
use crate::sim::timer::{HZ, jiffies, tick};

/// Factors are in units of 1 / [`ONE`].
const ONE: u64 = 1 << 7;
/// Least and largest factor of the cwnd after a loss, 0.5 and 0.8 (`BETA_MIN`, `BETA_MAX`).
const BETA: std::ops::RangeInclusive<u64> = ONE / 2..=102;
/// Smallest RTT above which the factor may differ from the least one, ticks: 10 ms.
const ADAPTIVE_RTT: u64 = HZ.div_ceil(100);
/// Most ticks by which the largest RTT grows with one sample: 20 ms.
const LARGEST_STEP: u64 = HZ / 50;
/// Time in the smallest RTT after a loss during which a measured throughput counts as it is.
const FRESH_RTTS: u64 = 3;

/// The state of H-TCP for one connection (`struct htcp`).
#[derive(Clone, Debug)]
pub struct Htcp {
    /// Segments by which the cwnd grows per round trip, in units of 1 / [`ONE`] (`alpha`).
    alpha: u64,
    /// Factor of the cwnd after a loss in units of 1 / [`ONE`] (`beta`).
    beta: u64,
    /// Whether the factor may follow the RTTs at the next loss (`modeswitch`).
    adapts: bool,
    /// Segments that the next ACK counts for (`pkts_acked`).
    acked: u32,
    /// Smallest RTT in ticks; 0 before the first (`minRTT`).
    min_rtt: u64,
    epoch: Epoch,
    /// The epoch before the present reduction, until the reduction is over or undone.
    former: Option<Epoch>,
    throughput: Throughput,
    /// Tick of the newest ACK.
    now: u64,
}

/// What a reduction that is undone restores.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    /// Tick at which the last reduction ended (`last_cong`).
    start: u64,
    /// Largest RTT in ticks, which fades with every loss (`maxRTT`).
    max_rtt: u64,
    /// Largest throughput before the last loss, segments/s (`old_maxB`).
    throughput: u64,
}

/// The throughput since the last loss.
#[derive(Clone, Copy, Debug, Default)]
struct Throughput {
    /// Segments acknowledged in the present measurement, and the tick of its start (`packetcount`,
    /// `lasttime`).
    segments: u32,
    since: u64,
    /// Smoothed and largest throughput in segments/s (`Bi`, `maxB`).
    smoothed: u64,
    largest: u64,
}

impl Htcp {
    /// Creates the control of a new connection.
    pub fn new() -> Self {
        Self {
            alpha: ONE,
            beta: *BETA.start(),
            adapts: false,
            acked: 1,
            min_rtt: 0,
            epoch: Epoch::default(),
            former: None,
            throughput: Throughput::default(),
            now: 0,
        }
    }

    fn measure_rtt(&mut self, rtt: u64, state: CaState) {
        if self.min_rtt == 0 || rtt < self.min_rtt {
            self.min_rtt = rtt;
        }
        if state == CaState::Open {
            let largest = self.epoch.max_rtt.max(self.min_rtt);
            self.epoch.max_rtt = match rtt <= largest + LARGEST_STEP {
                true => largest.max(rtt),
                false => largest,
            };
        }
    }

    fn measure_throughput(&mut self, cwnd: u32, segments: u32) {
        let throughput = &mut self.throughput;
        throughput.segments = throughput.segments.saturating_add(segments);
        let time = self.now - throughput.since;
        // Below that growth, the subtraction wraps as in the kernel: nothing is measured.
        let round = cwnd.wrapping_sub(((self.alpha / ONE) as u32).max(1));
        if throughput.segments < round || self.min_rtt == 0 || time < self.min_rtt {
            return;
        }
        let measured = u64::from(throughput.segments) * HZ / time;
        if (self.now - self.epoch.start) / self.min_rtt <= FRESH_RTTS {
            throughput.smoothed = measured;
            throughput.largest = measured;
        } else {
            throughput.smoothed = (3 * throughput.smoothed + measured) / 4;
            throughput.largest = throughput.largest.max(throughput.smoothed);
        }
        throughput.segments = 0;
        throughput.since = self.now;
    }

    /// Chooses the factor of the cwnd at a loss (`htcp_beta_update`): the part of the RTT that is
    /// not queueing, as long as the throughput stays within a fifth of what it was.
    fn update_beta(&mut self) {
        let (before, now) = (self.epoch.throughput, self.throughput.largest);
        self.epoch.throughput = now;
        let steady = (4 * before..=6 * before).contains(&(5 * now));
        let largest = self.epoch.max_rtt;
        self.beta = match steady && self.adapts && self.min_rtt > ADAPTIVE_RTT && largest > 0 {
            true => (self.min_rtt * ONE / largest).clamp(*BETA.start(), *BETA.end()),
            false => *BETA.start(),
        };
        self.adapts = steady;
    }

    /// Sets the growth from the time since the last loss, in proportion to the RTT
    /// (`htcp_alpha_update`).
    fn update_alpha(&mut self) {
        let time = self.now.saturating_sub(self.epoch.start);
        let mut factor = growth(time);
        if self.min_rtt > 0 {
            // 100 ms in the smallest RTT, in eighths, within 0.5 and 10.
            let scale = (HZ * 8 / (10 * self.min_rtt)).clamp(4, 80);
            factor = (factor * 8 / scale).max(1);
        }
        self.alpha = 2 * factor * (ONE - self.beta);
    }
}

/// Growth in segments per round trip of Reno's growth, `time` ticks after the last loss: 1 in the
/// first second, then 1 + 10 t + (t / 2)² where t is the time beyond it in seconds.
fn growth(time: u64) -> u64 {
    let Some(beyond) = time.checked_sub(HZ).filter(|&beyond| beyond > 0) else {
        return 1;
    };
    let half = beyond / 2;
    1 + (10 * beyond + half * half / HZ) / HZ
}

impl Default for Htcp {
    fn default() -> Self {
        Self::new()
    }
}

impl CongestionControl for Htcp {
    fn init(&mut self, now: Nanos, _cwnd: &mut CwndState, _rtt_us: u32) {
        self.now = tick(now);
        self.epoch.start = self.now;
        self.throughput.since = self.now;
    }

    fn on_acked(&mut self, cwnd: &CwndState, acked: &Acked) {
        self.now = tick(acked.now);
        if acked.state == CaState::Open {
            self.acked = acked.segments;
        }
        if acked.rtt_us > 0 {
            self.measure_rtt(jiffies(acked.rtt_us.into()), acked.state);
        }
        if acked.state > CaState::Disorder {
            self.throughput.segments = 0;
            self.throughput.since = self.now;
            return;
        }
        self.measure_throughput(cwnd.cwnd, acked.segments);
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, _rate: &RateSample) {
        if !ack.cwnd_limited {
            return;
        }
        if in_slow_start(cwnd) {
            slow_start(cwnd, ack.acked);
            return;
        }
        if u64::from(cwnd.cwnd_cnt) * self.alpha / ONE >= u64::from(cwnd.cwnd) {
            cwnd.cwnd = (cwnd.cwnd + 1).min(cwnd.clamp);
            cwnd.cwnd_cnt = 0;
            self.update_alpha();
        } else {
            cwnd.cwnd_cnt = cwnd.cwnd_cnt.saturating_add(self.acked);
        }
        self.acked = 1;
    }

    /// Judges the time of the loss by the newest ACK.
    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        self.update_beta();
        self.update_alpha();
        let queueing = self.epoch.max_rtt.saturating_sub(self.min_rtt);
        if self.min_rtt > 0 && queueing > 0 {
            self.epoch.max_rtt = self.min_rtt + queueing * 95 / 100;
        }
        ((u64::from(cwnd.cwnd) * self.beta / ONE) as u32).max(2)
    }

    fn undo(&mut self, cwnd: &CwndState, prior: u32) -> u32 {
        if let Some(former) = self.former.take() {
            self.epoch = former;
        }
        reno::undo(cwnd.cwnd, prior)
    }

    fn on_state(&mut self, now: Nanos, _cwnd: &mut CwndState, state: CaState) {
        match state {
            CaState::Open => {
                if self.former.take().is_some() {
                    self.epoch.start = tick(now);
                }
            }
            CaState::Disorder => {}
            CaState::Cwr | CaState::Recovery | CaState::Loss => {
                self.former = Some(self.epoch);
                self.epoch.start = tick(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MS, ack, cwnd, rate};
    use super::*;

    const SECOND: Nanos = 1_000 * MS;

    fn acked(now: Nanos, segments: u32, rtt_us: u32) -> Acked {
        Acked {
            now,
            segments,
            rtt_us,
            ..Acked::default()
        }
    }

    /// Congestion avoidance with an ACK per segment for `rtts` round trips.
    fn avoid(htcp: &mut Htcp, w: &mut CwndState, now: &mut Nanos, rtt: Nanos, rtts: u32) {
        for _ in 0..rtts {
            let acks = w.cwnd;
            for _ in 0..acks {
                *now += rtt / u64::from(acks);
                htcp.on_acked(w, &acked(*now, 1, (rtt / 1_000) as u32));
                htcp.on_ack(w, &ack(*now, 1), &rate());
            }
        }
    }

    fn lose(htcp: &mut Htcp, w: &mut CwndState, now: Nanos) {
        w.ssthresh = htcp.ssthresh(w);
        htcp.on_state(now, w, CaState::Recovery);
        w.cwnd = w.ssthresh;
        w.cwnd_cnt = 0;
        htcp.on_state(now, w, CaState::Open);
    }

    #[test]
    fn growth_begins_after_a_second() {
        assert_eq!([growth(0), growth(HZ), growth(HZ + HZ / 20)], [1, 1, 1]);
        // 1 + 10 t + t² / 4 with t = 1, 2 and 10.
        assert_eq!(growth(2 * HZ), 11);
        assert_eq!(growth(3 * HZ), 22);
        assert_eq!(growth(11 * HZ), 126);
    }

    #[test]
    fn in_the_first_second_it_is_reno() {
        let (mut htcp, mut w, mut now) = (Htcp::new(), cwnd(100, 50), 0);
        htcp.init(0, &mut w, 100_000);
        lose(&mut htcp, &mut w, 0);
        assert_eq!(w.cwnd, 50);
        avoid(&mut htcp, &mut w, &mut now, 100 * MS, 9);
        assert!((57..=59).contains(&w.cwnd), "{}", w.cwnd);
        let before = w.cwnd;
        avoid(&mut htcp, &mut w, &mut now, 100 * MS, 20);
        let grown = w.cwnd - before;
        assert!((100..=250).contains(&grown), "{grown} in two seconds more");
    }

    #[test]
    fn growth_is_in_proportion_to_the_rtt() {
        let alpha = |min_rtt| {
            let mut htcp = Htcp {
                min_rtt,
                now: 2 * HZ,
                ..Htcp::new()
            };
            htcp.update_alpha();
            htcp.alpha / ONE
        };
        // 100 ms is where nothing changes; from there on in proportion up to 200 ms, where the
        // kernel rounds the scale.
        assert_eq!(alpha(25), 11);
        assert_eq!(alpha(50), 22);
        assert_eq!(alpha(500), 22);
        assert_eq!(alpha(5), 2);
        assert_eq!(alpha(1), 1);
    }

    #[test]
    fn a_loss_takes_what_the_queue_held() {
        let mut htcp = Htcp {
            adapts: true,
            min_rtt: 25,
            ..Htcp::new()
        };
        let after_loss = |max_rtt, htcp: &mut Htcp| {
            htcp.epoch.max_rtt = max_rtt;
            htcp.ssthresh(&cwnd(1_000, 10))
        };
        assert_eq!(after_loss(25, &mut htcp), 102 * 1_000 / 128, "at most 0.8");
        assert_eq!(after_loss(35, &mut htcp), 91 * 1_000 / 128, "25 / 35");
        assert_eq!(after_loss(100, &mut htcp), 500, "at least a half");
        // The memory of the largest RTT fades.
        assert_eq!(htcp.epoch.max_rtt, 25 + 75 * 95 / 100);
    }

    #[test]
    fn a_loss_halves_the_cwnd_when_the_throughput_has_changed() {
        let mut htcp = Htcp {
            adapts: true,
            min_rtt: 25,
            ..Htcp::new()
        };
        htcp.epoch.max_rtt = 30;
        htcp.epoch.throughput = 1_000;
        htcp.throughput.largest = 1_300;
        assert_eq!(htcp.ssthresh(&cwnd(1_000, 10)), 500);
        assert_eq!(htcp.ssthresh(&cwnd(1_000, 10)), 500, "and the next time");
        assert!(htcp.ssthresh(&cwnd(1_000, 10)) > 700, "then it adapts");
    }

    #[test]
    fn throughput_is_measured_per_round_trip_and_not_in_recovery() {
        let mut htcp = Htcp::new();
        let mut w = cwnd(10, 10);
        htcp.init(0, &mut w, 100_000);
        for number in 1..=30 {
            htcp.on_acked(&w, &acked(number * 10 * MS, 1, 100_000));
        }
        // The first measurement after the losses is that of the throughput, 100 segments/s.
        assert!((90..=110).contains(&htcp.throughput.largest), "{htcp:?}");
        let recovering = Acked {
            state: CaState::Recovery,
            ..acked(SECOND, 40, 100_000)
        };
        htcp.on_acked(&w, &recovering);
        assert_eq!((htcp.throughput.segments, htcp.throughput.since), (0, HZ));
    }

    #[test]
    fn the_largest_rtt_grows_slowly_and_only_in_the_open_state() {
        let (mut htcp, w) = (Htcp::new(), cwnd(10, 10));
        htcp.on_acked(&w, &acked(MS, 1, 40_000));
        htcp.on_acked(&w, &acked(2 * MS, 1, 60_000));
        assert_eq!((htcp.min_rtt, htcp.epoch.max_rtt), (10, 15));
        htcp.on_acked(&w, &acked(3 * MS, 1, 90_000));
        assert_eq!(htcp.epoch.max_rtt, 15, "an outlier");
        let recovering = Acked {
            state: CaState::Recovery,
            ..acked(4 * MS, 1, 64_000)
        };
        htcp.on_acked(&w, &recovering);
        assert_eq!(htcp.epoch.max_rtt, 15);
    }

    #[test]
    fn undoing_a_reduction_restores_the_time_of_the_last_one() {
        let (mut htcp, mut w) = (Htcp::new(), cwnd(100, 50));
        htcp.init(0, &mut w, 100_000);
        lose(&mut htcp, &mut w, SECOND);
        htcp.ssthresh(&w);
        htcp.on_state(5 * SECOND, &mut w, CaState::Recovery);
        assert_eq!(htcp.epoch.start, 5 * HZ);
        assert_eq!(htcp.undo(&w, 80), 80);
        htcp.on_state(5 * SECOND, &mut w, CaState::Open);
        assert_eq!(htcp.epoch.start, HZ);
    }
}
