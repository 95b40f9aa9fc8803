//! Copa (Arun and Balakrishnan, "Copa: Practical Delay-Based Congestion Control for the Internet",
//! NSDI 2018): the cwnd moves towards the rate 1 / (δ · queueing delay), the faster the longer it
//! has moved in one direction. Sections are those of the paper: 2.1, "Target Rate and Update Rule",
//! and 2.2, "Competing with Buffer-Filling Schemes". Where it leaves something open, "the authors'
//! code" is github.com/venkatarun95/genericCC (commit 25fa626, `markoviancc.cc`, `rtt-window.cc`).

use cc_ebpf::{AckSample, CaState, CwndState, WindowedMin};

use super::{CongestionControl, LostSegment, RateSample};
use crate::path::Nanos;

const SECOND: Nanos = 1_000_000_000;
/// δ of the default mode, the weight of queueing delay against throughput (section 2.2): in
/// equilibrium 1/δ segments are queued.
const DELTA: f64 = 0.5;
/// Time for which a smallest RTT counts, ns (section 2.1).
const MIN_RTT_WINDOW: Nanos = 10 * SECOND;
/// Number of RTTs in which the cwnd moves in one direction before the velocity doubles (section
/// 2.1).
const STEADY_RTTS: u32 = 3;
/// Smallest cwnd outside slow start, in segments.
const LEAST: f64 = 2.0;
/// Number of RTTs without an almost empty queue after which other flows are taken to fill it
/// (section 2.2).
const PATIENCE_RTTS: u32 = 5;
/// Number of RTTs over which the largest is taken (section 2.2).
const MAX_RTT_ROUNDS: usize = 4;
/// The queue counts as almost empty below this part of the largest queueing delay (section 2.2).
const ALMOST_EMPTY: f64 = 0.1;

/// The state of Copa for one connection.
#[derive(Clone, Debug)]
pub struct Copa {
    cwnd: f64,
    slow_start: bool,
    velocity: Velocity,
    /// Smallest RTT of the last 10 s (RTTmin), µs.
    min_rtt: WindowedMin,
    /// Smallest RTT of the last half RTT (RTTstanding), µs, so that compressed ACKs do not count.
    standing: WindowedMin,
    rate: u64,
    competition: Option<Competition>,
}

/// Speed and direction of the cwnd.
#[derive(Clone, Copy, Debug)]
struct Velocity {
    value: f64,
    up: bool,
    steady: u32,
    /// The cwnd at the last evaluation, and the time of it.
    from: (f64, Nanos),
}

/// The competitive mode: detects whether other flows keep the queue full, and lowers δ while they
/// do, without a least δ (section 2.2).
#[derive(Clone, Copy, Debug)]
struct Competition {
    /// The present 1/δ, in segments of queue.
    inverse_delta: f64,
    round: Nanos,
    /// The largest RTT of each of the last rounds in µs, the present one first.
    largest: [u32; MAX_RTT_ROUNDS],
    /// Number of rounds since the queue was almost empty.
    since_empty: u32,
    /// Whether a segment was lost in the present round.
    lost: bool,
}

impl Copa {
    /// Creates Copa in its default mode, with δ = 0.5.
    pub fn new() -> Self {
        Self {
            cwnd: 0.0,
            slow_start: true,
            velocity: Velocity {
                value: 1.0,
                up: true,
                steady: 0,
                from: (0.0, 0),
            },
            min_rtt: WindowedMin::default(),
            standing: WindowedMin::default(),
            rate: 0,
            competition: None,
        }
    }

    /// Creates Copa with the competitive mode of section 2.2.
    pub fn with_competition() -> Self {
        Self {
            competition: Some(Competition {
                inverse_delta: 1.0 / DELTA,
                round: 0,
                largest: [0; MAX_RTT_ROUNDS],
                since_empty: 0,
                lost: false,
            }),
            ..Self::new()
        }
    }

    /// A control of the same kind for another connection.
    pub(super) fn another(&self) -> Self {
        match self.competition {
            None => Self::new(),
            Some(_) => Self::with_competition(),
        }
    }

    /// A segment was lost in the present round.
    fn lose(&mut self) {
        if let Some(competition) = &mut self.competition {
            competition.lost = true;
        }
    }

    fn delta(&self) -> f64 {
        self.competition
            .map_or(DELTA, |competition| 1.0 / competition.inverse_delta)
    }

    /// Moves the cwnd towards the target rate after an ACK (section 2.1).
    fn step(&mut self, ack: &AckSample, min_us: u32, standing_us: u32) {
        let acked = f64::from(ack.acked);
        let queueing_us = f64::from(standing_us - min_us);
        let standing_us = f64::from(standing_us);
        let delta = self.delta();
        // Compares cwnd / RTTstanding with 1 / (δ · queueing delay).
        let up = self.cwnd * delta * queueing_us <= standing_us;
        self.slow_start &= up;
        if self.slow_start {
            // The cwnd doubles once per RTT.
            self.cwnd += acked;
            return;
        }
        self.velocity.turn(up);
        // At most a doubling per RTT.
        let velocity = self.velocity.value.min(delta * self.cwnd).max(1.0);
        let change = velocity * acked / (delta * self.cwnd);
        self.cwnd += if up { change } else { -change };
        self.cwnd = self.cwnd.max(LEAST);
        self.velocity
            .look(ack.now_ns, self.cwnd, u64::from(ack.srtt_us) * 1_000);
    }
}

impl Default for Copa {
    fn default() -> Self {
        Self::new()
    }
}

impl CongestionControl for Copa {
    fn sets_cwnd_in_recovery(&self) -> bool {
        true
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, _rate: &RateSample) {
        // After a timeout the kernel has set the cwnd.
        if self.cwnd as u32 != cwnd.cwnd {
            self.cwnd = f64::from(cwnd.cwnd);
        }
        let now = ack.now_ns;
        if ack.rtt_us == 0 && self.min_rtt.get() == 0 {
            return;
        }
        if ack.rtt_us > 0 {
            let half = u64::from(ack.srtt_us) * 1_000 / 2;
            self.min_rtt.update(now, ack.rtt_us, MIN_RTT_WINDOW);
            self.standing.update(now, ack.rtt_us, half);
        }
        let (min_us, standing_us) = (self.min_rtt.get(), self.standing.get());
        let standing_us = standing_us.max(min_us);
        if let Some(competition) = &mut self.competition {
            competition.update(ack, min_us, standing_us);
        }
        if ack.cwnd_limited {
            self.step(ack, min_us, standing_us);
        }
        self.cwnd = self.cwnd.min(f64::from(cwnd.clamp));
        cwnd.cwnd = self.cwnd as u32;
        // TCP paces payload.
        let bytes = self.cwnd * f64::from(ack.mss);
        self.rate = (2.0 * bytes * 1e6 / f64::from(standing_us)) as u64;
    }

    /// Losses do not change the cwnd.
    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        cwnd.cwnd.max(2)
    }

    fn on_state(&mut self, _now: Nanos, _cwnd: &mut CwndState, state: CaState) {
        if state == CaState::Loss {
            self.slow_start = true;
            self.velocity.value = 1.0;
            self.velocity.steady = 0;
        }
        // A tail loss probe has repaired a loss that was never marked, or a router has marked a
        // packet instead of dropping it.
        if state == CaState::Cwr {
            self.lose();
        }
    }

    fn tracks_transmissions(&self) -> bool {
        self.competition.is_some()
    }

    /// A loss counts whether an ACK or a timer has found it: the authors' code counts each gap in
    /// the sequence numbers of the ACKs.
    fn on_lost(&mut self, _cwnd: &CwndState, _lost: &LostSegment) {
        self.lose();
    }

    fn pacing_rate(&self) -> Option<u64> {
        (self.rate > 0).then_some(self.rate)
    }
}

impl Velocity {
    /// Resets the velocity when the direction changes.
    fn turn(&mut self, up: bool) {
        if up != self.up {
            self.up = up;
            self.value = 1.0;
            self.steady = 0;
        }
    }

    /// Once per RTT, doubles the velocity if the cwnd has moved in one direction for long enough.
    fn look(&mut self, now: Nanos, cwnd: f64, rtt: Nanos) {
        let (from, at) = self.from;
        if now < at + rtt {
            return;
        }
        self.from = (cwnd, now);
        if (cwnd > from) == self.up {
            self.steady += 1;
            if self.steady >= STEADY_RTTS {
                self.value = (self.value * 2.0).min(f64::from(1 << 16));
            }
        } else {
            self.value = 1.0;
            self.steady = 0;
        }
    }
}

impl Competition {
    fn update(&mut self, ack: &AckSample, min_us: u32, standing_us: u32) {
        self.largest[0] = self.largest[0].max(ack.rtt_us);
        let largest = self.largest.iter().fold(min_us, |a, &b| a.max(b));
        if f64::from(standing_us - min_us) <= ALMOST_EMPTY * f64::from(largest - min_us) {
            self.since_empty = 0;
        }
        if ack.now_ns < self.round + u64::from(ack.srtt_us) * 1_000 {
            return;
        }
        self.round = ack.now_ns;
        self.largest.rotate_right(1);
        self.largest[0] = 0;
        self.since_empty += 1;
        // AIMD on 1/δ by success and loss, like Reno's on the cwnd.
        self.inverse_delta = match (self.since_empty > PATIENCE_RTTS, self.lost) {
            (false, _) => 1.0 / DELTA,
            (true, true) => (self.inverse_delta / 2.0).max(1.0 / DELTA),
            (true, false) => self.inverse_delta + 1.0,
        };
        self.lost = false;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MS, Path, ack, cwnd, rate};
    use super::*;

    #[test]
    fn it_keeps_a_few_segments_in_the_queue() {
        // 1,000 segments/s and 40 ms. In equilibrium 1/δ = 2 segments are queued, and oscillation
        // adds some.
        let mut copa = Copa::new();
        let mut path = Path::new(MS, 40 * MS);
        path.run(&mut copa, 5_000 * MS);
        let before = path.delivered();
        path.run(&mut copa, 5_000 * MS);
        let delivered = path.delivered() - before;
        assert!(delivered > 4_500, "{delivered} of 5,000");
        assert!(
            path.longest_queue(5_000 * MS) < 30,
            "{}",
            path.longest_queue(5_000 * MS)
        );
    }

    #[test]
    fn slow_start_doubles_until_there_is_a_queue() {
        let mut copa = Copa::new();
        let mut path = Path::new(MS / 10, 100 * MS);
        path.run(&mut copa, 250 * MS);
        assert!(copa.slow_start);
        path.run(&mut copa, 2_000 * MS);
        assert!(!copa.slow_start);
    }

    #[test]
    fn velocity_doubles_after_three_steady_rtts_and_falls_with_a_turn() {
        let mut velocity = Copa::new().velocity;
        let mut seen = vec![];
        for rtt in 1..=6_u32 {
            velocity.look(u64::from(rtt) * 100 * MS, f64::from(rtt), 100 * MS);
            seen.push(velocity.value);
        }
        assert_eq!(seen, [1.0, 1.0, 2.0, 4.0, 8.0, 16.0]);
        velocity.turn(true);
        assert_eq!(velocity.value, 16.0);
        velocity.turn(false);
        assert_eq!((velocity.value, velocity.steady), (1.0, 0));
    }

    #[test]
    fn it_paces_at_twice_the_cwnd_per_standing_rtt() {
        let mut copa = Copa::new();
        let mut w = cwnd(10, u32::MAX);
        let sample = AckSample {
            rtt_us: 100_000,
            srtt_us: 100_000,
            ..ack(MS, 2)
        };
        copa.on_ack(&mut w, &sample, &rate());
        assert_eq!(w.cwnd, 12);
        assert_eq!(copa.pacing_rate(), Some(2 * 12 * 1448 * 10));
    }

    #[test]
    fn it_takes_up_the_cwnd_that_a_timeout_leaves() {
        let mut copa = Copa::new();
        let mut path = Path::new(MS, 40 * MS);
        let mut w = path.run(&mut copa, 3_000 * MS);
        copa.on_state(path.now(), &mut w, CaState::Loss);
        w.cwnd = 1;
        copa.on_ack(&mut w, &ack(path.now(), 1), &rate());
        assert!((1..=3).contains(&w.cwnd), "{}", w.cwnd);
    }

    #[test]
    fn beside_a_full_queue_it_competes() {
        let mut copa = beside_a_full_queue(20);
        assert!(inverse_delta(&copa) > 10.0, "{copa:?}");
        update(&mut copa, 2_200, 41_000);
        assert_eq!(inverse_delta(&copa), 2.0, "an empty queue ends it");
    }

    #[test]
    fn what_it_competes_for_has_no_bound() {
        assert!(inverse_delta(&beside_a_full_queue(1_000)) > 900.0);
    }

    #[test]
    fn a_loss_halves_what_it_competes_for_however_it_was_found() {
        let mut w = cwnd(10, u32::MAX);
        let found: [&dyn Fn(&mut Copa); 2] = [
            &|copa| copa.on_lost(&w, &LostSegment::default()),
            // By a tail loss probe.
            &|copa| copa.on_state(0, &mut w.clone(), CaState::Cwr),
        ];
        for lose in found {
            let mut copa = beside_a_full_queue(20);
            let before = inverse_delta(&copa);
            lose(&mut copa);
            update(&mut copa, 2_100, 100_000);
            assert_eq!(inverse_delta(&copa), before / 2.0);
            update(&mut copa, 2_200, 100_000);
            assert_eq!(inverse_delta(&copa), before / 2.0 + 1.0);
        }
        // The default mode has nothing to halve, and need not hear of losses.
        let mut copa = Copa::new();
        copa.on_state(0, &mut w, CaState::Cwr);
        assert!(!copa.tracks_transmissions());
        assert!(Copa::with_competition().tracks_transmissions());
    }

    #[test]
    fn a_path_without_a_queue_has_no_competition() {
        let mut copa = Copa::with_competition();
        for rtt in 1..=20 {
            let ack = AckSample {
                rtt_us: 40_000,
                srtt_us: 40_000,
                ..ack(rtt * 40 * MS, 1)
            };
            if let Some(competition) = &mut copa.competition {
                competition.update(&ack, 40_000, 40_000);
            }
        }
        assert_eq!(inverse_delta(&copa), 2.0);
    }

    /// The state after so many round trips of 100 ms in which the queue was never almost empty.
    fn beside_a_full_queue(rtts: u64) -> Copa {
        let mut copa = Copa::with_competition();
        (1..=rtts).for_each(|rtt| update(&mut copa, rtt * 100, 100_000));
        copa
    }

    /// Acknowledges a segment at `ms` that took 100 ms, where the path takes 40 ms.
    fn update(copa: &mut Copa, ms: u64, standing_us: u32) {
        let ack = AckSample {
            rtt_us: 100_000,
            srtt_us: 100_000,
            ..ack(ms * MS, 1)
        };
        if let Some(competition) = &mut copa.competition {
            competition.update(&ack, 40_000, standing_us);
        }
    }

    fn inverse_delta(copa: &Copa) -> f64 {
        copa.competition.expect("it competes").inverse_delta
    }
}
