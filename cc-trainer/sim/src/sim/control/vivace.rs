//! PCC Vivace with its latency-aware utility (Dong et al., "PCC Vivace: Online-Learning Congestion
//! Control", NSDI 2018). A sender tries rates for an interval each, computes from what happened to
//! the interval's segments how useful each rate was, and climbs the gradient of that utility.
//! Sections are those of the paper; constants that it does not name are those of its authors'
//! implementations (github.com/PCCproject, PCC-Uspace and PCC-Kernel).

mod step;
mod utility;

use cc_ebpf::{AckSample, CaState, CwndState};
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use super::{
    CongestionControl, LostSegment, RateSample,
    monitor::{self, Monitor},
};
use crate::path::Nanos;
use step::Step;
use utility::utility;

/// Part by which probed rates differ from the base rate (ε, section 4.1).
const PROBE: f64 = 0.05;
/// Number of intervals of a probe: two pairs of a higher and a lower rate.
const PROBES: usize = 4;
/// Smallest rate, in segments per round trip (`PCC_RATE_MIN_PACKETS_PER_RTT`).
const LEAST_PER_RTT: f64 = 2.0;
/// Bounds of the rate, Mbit/s.
const LEAST_RATE: f64 = 0.01;
const MOST_RATE: f64 = 1e6;
/// Round trips without an interval's results after which the rate is halved (section 4.3).
const TIMEOUT_RTTS: u64 = 4;
/// An interval that sent less than this part of its rate says nothing about the rate.
const SENT: f64 = 0.75;
/// The initial cwnd in segments, which the first interval sends.
const INITIAL_CWND: f64 = 10.0;

type Interval = monitor::Interval<Purpose>;

/// What an interval is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// It is the measurement of this number.
    Measure(usize),
    /// It passes the time until measurements are complete.
    Wait,
}

/// The state of Vivace for one connection.
#[derive(Clone, Debug)]
pub struct Vivace {
    random: Xoshiro256PlusPlus,
    phase: Phase,
    /// The base rate, Mbit/s of payload.
    rate: f64,
    step: Step,
    monitor: Monitor<Purpose>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The rate doubles while that is useful (section 4): whenever the results of an interval are
    /// in, as in PCC-Kernel, so that the queue of a rate that was too high stays bounded.
    Starting {
        /// Rate and utility of the last interval.
        last: Option<(f64, f64)>,
        /// Whether the results of probes are awaited.
        waits: bool,
    },
    /// Intervals around the base rate find the gradient.
    Probing {
        /// Whether the higher rate comes first, in each pair.
        higher_first: [bool; PROBES / 2],
        /// Number of the intervals that have begun.
        begun: usize,
        /// Rate and utility of each.
        results: [(f64, f64); PROBES],
    },
}

impl Vivace {
    /// Creates the control. `seed` determines the order of the probed rates.
    pub fn new(seed: u64) -> Self {
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            phase: Phase::Starting {
                last: None,
                waits: false,
            },
            rate: LEAST_RATE,
            step: Step::default(),
            monitor: Monitor::new(),
        }
    }

    /// The rate of so many segments per round trip, Mbit/s.
    fn per_rtt(&self, segments: f64) -> f64 {
        segments * self.monitor.segment * 1e3 / self.monitor.srtt.max(1_000) as f64
    }

    fn set_rate(&mut self, rate: f64) {
        let least = self.per_rtt(LEAST_PER_RTT).max(LEAST_RATE);
        self.rate = rate.clamp(least.min(MOST_RATE), MOST_RATE);
    }

    /// Begins to probe around the base rate, and forgets what was being measured.
    fn probe(&mut self) {
        self.phase = Phase::Probing {
            higher_first: [self.random.random(), self.random.random()],
            begun: 0,
            results: [(0.0, 0.0); PROBES],
        };
        self.monitor.clear();
        self.begin();
    }

    /// Starts again from a rate.
    fn start(&mut self, rate: f64) {
        self.set_rate(rate);
        self.step = Step::default();
        self.phase = Phase::Starting {
            last: None,
            waits: false,
        };
        self.monitor.clear();
        self.begin();
    }

    /// Begins the next monitor interval.
    fn begin(&mut self) {
        let (purpose, rate) = match &mut self.phase {
            Phase::Starting { waits, .. } => match std::mem::replace(waits, true) {
                true => (Purpose::Wait, self.rate),
                false => (Purpose::Measure(0), self.rate),
            },
            Phase::Probing { begun, .. } if *begun == PROBES => (Purpose::Wait, self.rate),
            Phase::Probing {
                higher_first,
                begun,
                ..
            } => {
                let number = *begun;
                *begun += 1;
                let higher = higher_first[number / 2] == (number % 2 == 0);
                let factor = if higher { 1.0 + PROBE } else { 1.0 - PROBE };
                (Purpose::Measure(number), self.rate * factor)
            }
        };
        self.monitor.begin(purpose, rate);
    }

    /// Takes the results of the intervals whose segments are accounted for, now that those sent at
    /// `sent` are acknowledged.
    fn collect(&mut self, sent: Nanos) {
        while let Some(interval) = self.monitor.pop_complete(sent) {
            if let Purpose::Measure(number) = interval.purpose {
                self.learn(number, &interval);
            }
        }
        if self.monitor.is_overdue(TIMEOUT_RTTS) {
            // The network has changed for the worse (section 4.3, MI timeout).
            self.set_rate(self.rate / 2.0);
            self.step = Step::default();
            self.probe();
        }
    }

    /// Learns from the results of an interval.
    fn learn(&mut self, number: usize, interval: &Interval) {
        let is_full = interval.sent_rate() >= SENT * interval.rate;
        match &mut self.phase {
            Phase::Starting { last, waits } => {
                let utility = utility(interval, true);
                let before = last.replace((interval.rate, utility));
                match before {
                    Some((rate, best)) if utility < best || !is_full => {
                        self.set_rate(rate);
                        self.probe();
                    }
                    _ if !is_full => {
                        self.set_rate(interval.rate);
                        self.probe();
                    }
                    _ => {
                        *waits = false;
                        self.set_rate(2.0 * interval.rate);
                        self.monitor.clear();
                        self.begin();
                    }
                }
            }
            // What the sender did not send teaches nothing.
            Phase::Probing { .. } if !is_full => self.probe(),
            Phase::Probing { results, .. } => {
                results[number] = (interval.rate, utility(interval, false));
                if number + 1 == PROBES {
                    let results = *results;
                    self.decide(&results);
                }
            }
        }
    }

    /// Changes the rate along the gradient if both pairs agree on its direction, and probes again.
    /// A difference that only one pair shows is noise more likely than not (section 4.3, double
    /// checking).
    fn decide(&mut self, results: &[(f64, f64); PROBES]) {
        let gradient = |pair: usize| {
            let ((rate, utility), (other, its)) = (results[2 * pair], results[2 * pair + 1]);
            (utility - its) / (rate - other)
        };
        let gradients = [gradient(0), gradient(1)];
        if gradients[0] * gradients[1] > 0.0 {
            let mean = (gradients[0] + gradients[1]) / 2.0;
            let change = self.step.change(self.rate, mean);
            self.set_rate(self.rate + change);
        }
        self.probe();
    }
}

impl CongestionControl for Vivace {
    fn sets_cwnd_in_recovery(&self) -> bool {
        true
    }

    fn init(&mut self, now: Nanos, cwnd: &mut CwndState, rtt_us: u32) {
        self.monitor.init(now, rtt_us);
        cwnd.ssthresh = u32::MAX;
        self.start(self.per_rtt(INITIAL_CWND));
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.monitor.acknowledge(ack, rate);
        if rate.sent > 0 {
            self.collect(rate.sent);
        }
        if self.monitor.is_due() {
            self.begin();
        }
        cwnd.cwnd = self.monitor.cwnd(cwnd.clamp);
    }

    /// Losses do not change the cwnd.
    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        cwnd.cwnd.max(2)
    }

    fn on_state(&mut self, now: Nanos, _cwnd: &mut CwndState, state: CaState) {
        // No result comes back at all: half the rate (section 4.3), from which it starts again.
        if state == CaState::Loss {
            self.monitor.now = now;
            self.start(self.rate / 2.0);
        }
    }

    fn tracks_transmissions(&self) -> bool {
        true
    }

    fn on_lost(&mut self, _cwnd: &CwndState, lost: &LostSegment) {
        self.monitor.lose(lost.sent);
    }

    fn pacing_rate(&self) -> Option<u64> {
        self.monitor.pacing_rate()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MS, Path};
    use super::*;

    /// The results of probes of `rate` when its utility is that of `utility`.
    fn results(rate: f64, utility: impl Fn(f64) -> f64) -> [(f64, f64); PROBES] {
        [1.05, 0.95, 0.95, 1.05].map(|factor| (rate * factor, utility(rate * factor)))
    }

    fn probing(rate: f64) -> Vivace {
        let mut vivace = Vivace::new(1);
        vivace.monitor.srtt = 40 * MS;
        vivace.set_rate(rate);
        vivace.probe();
        vivace
    }

    #[test]
    fn it_climbs_the_gradient() {
        let mut vivace = probing(10.0);
        vivace.decide(&results(10.0, |rate| rate.powf(0.9)));
        assert!(vivace.rate > 10.0, "{}", vivace.rate);
        let before = vivace.rate;
        vivace.decide(&results(before, |rate| -rate));
        assert!(vivace.rate < before, "{}", vivace.rate);
    }

    #[test]
    fn pairs_that_disagree_change_nothing() {
        let mut vivace = probing(10.0);
        vivace.decide(&[(10.5, 8.0), (9.5, 7.0), (9.5, 8.0), (10.5, 7.0)]);
        assert_eq!(vivace.rate, 10.0);
    }

    #[test]
    fn a_probe_has_both_rates_in_each_pair_in_an_order_of_the_seed() {
        let orders = |seed| {
            let mut vivace = Vivace::new(seed);
            vivace.set_rate(100.0);
            let mut seen = Vec::new();
            for _ in 0..20 {
                vivace.probe();
                let rates = [(); PROBES].map(|()| {
                    let rate = vivace.monitor.rate();
                    vivace.begin();
                    rate.expect("an interval has begun")
                });
                for pair in rates.chunks(2) {
                    assert!((pair[0] + pair[1] - 200.0).abs() < 1e-9, "{rates:?}");
                }
                assert_eq!(vivace.monitor.rate(), Some(100.0), "then the base rate");
                seen.push(rates);
            }
            seen
        };
        assert_eq!(orders(3), orders(3));
        assert_ne!(orders(3), orders(4));
    }

    #[test]
    fn it_fills_a_link_with_a_short_queue() {
        // 1,000 segments/s and 40 ms.
        let mut vivace = Vivace::new(1);
        let mut path = Path::new(MS, 40 * MS);
        path.run(&mut vivace, 20_000 * MS);
        let before = path.delivered();
        path.run(&mut vivace, 20_000 * MS);
        let delivered = path.delivered() - before;
        assert!(delivered > 17_000, "{delivered} of 20,000");
        let queue = path.longest_queue(20_000 * MS);
        assert!(queue < 60, "{queue}");
    }

    #[test]
    fn a_timeout_halves_the_rate_and_starts_again() {
        let mut vivace = probing(10.0);
        vivace.on_state(MS, &mut super::super::tests::cwnd(10, 100), CaState::Loss);
        assert_eq!(vivace.rate, 5.0);
        assert!(matches!(vivace.phase, Phase::Starting { last: None, .. }));
    }
}
