//! BBR version 1 (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016) as
//! in Linux 6.18 (net/ipv4/tcp_bbr.c): a model of the path, made of its highest delivery rate and
//! its smallest RTT, determines pacing rate and cwnd.

pub(super) mod aggregation;
pub(super) mod bandwidth;
pub(super) mod gain;
mod policer;
pub(super) mod rounds;

use cc_ebpf::{AckSample, CaState, CwndState, WindowedMin};
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use super::{CongestionControl, RateSample, TransmitStart};
use crate::path::Nanos;
use aggregation::Aggregation;
use bandwidth::{Bandwidth, sample};
use gain::Gain;
use policer::PolicerDetector;
use rounds::{Limited, Rounds};

const SECOND: Nanos = 1_000_000_000;
/// Number of rounds for which a highest bandwidth counts (`bbr_bw_rtts`).
const BW_ROUNDS: u64 = 10;
/// Time for which a smallest RTT counts, ns (`bbr_min_rtt_win_sec`).
const MIN_RTT_WINDOW: Nanos = 10 * SECOND;
/// Time for which the cwnd stays small to find a smaller RTT, ns (`bbr_probe_rtt_mode_ms`).
const PROBE_RTT_TIME: Nanos = SECOND / 5;
/// The cwnd during that time, and the smallest cwnd outside recovery, in segments
/// (`bbr_cwnd_min_target`).
const MIN_CWND: u32 = 4;
/// The initial cwnd in segments (`TCP_INIT_CWND`).
const INITIAL_CWND: u32 = 10;
/// Segments are sent singly below this rate, bytes/s (`bbr_min_tso_rate`: 1.2 Mbit/s).
const SINGLE_SEGMENT_RATE: u64 = 1_200_000 / 8;
/// Number of phases of the gain cycle (`CYCLE_LEN`).
const PHASES: usize = 8;
/// Number of phases among which the first one is drawn: it is never the draining one
/// (`bbr_cycle_rand`).
const RANDOM_PHASES: usize = 7;
/// Number of rounds of growth below a quarter after which the pipe counts as full
/// (`bbr_full_bw_cnt`).
const FULL_ROUNDS: u32 = 3;

/// The state of BBR for one connection (`struct bbr`).
#[derive(Clone, Debug)]
pub struct Bbr {
    mode: Mode,
    random: Xoshiro256PlusPlus,
    /// Pacing rate in bytes/s (`sk_pacing_rate`).
    pacing_rate: u64,
    pacing_gain: Gain,
    cwnd_gain: Gain,
    /// Highest bandwidth of the last [`BW_ROUNDS`] rounds (`bw`).
    bandwidth: MaxBandwidth,
    /// Smallest RTT in µs, and the time of it in ns (`min_rtt_us`, `min_rtt_stamp`).
    min_rtt: (u32, Nanos),
    rounds: Rounds,
    cycle: Cycle,
    startup: FullPipe,
    probe_rtt: ProbeRtt,
    policer: PolicerDetector,
    aggregation: Aggregation,
    /// The cwnd to restore after recovery and RTT probing, segments (`prior_cwnd`).
    prior_cwnd: u32,
    /// Congestion-avoidance state at the last ACK (`prev_ca_state`).
    prior_state: CaState,
    /// Whether one segment leaves per delivered one, in the first round of recovery
    /// (`packet_conservation`).
    conserves: bool,
    /// Whether sending began again after the application had paused (`idle_restart`).
    restarted: bool,
    /// Whether the next ACK has to account for a timeout: the segments lost by it are not known
    /// before.
    timed_out: bool,
    /// Payload of a segment in bytes.
    mss: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The rate doubles every round until the bandwidth grows no more.
    Startup,
    /// Drains the queue that startup has built.
    Drain,
    /// Cycles through pacing gains around the bandwidth.
    ProbeBandwidth,
    /// Keeps the cwnd small for a moment to measure the RTT without a queue.
    ProbeRtt,
}

/// Position in the cycle of pacing gains.
#[derive(Clone, Copy, Debug, Default)]
struct Cycle {
    phase: usize,
    since: Nanos,
}

/// Detection of a full pipe in startup (`full_bw`, `full_bw_cnt`, `full_bw_reached`).
#[derive(Clone, Copy, Debug, Default)]
struct FullPipe {
    highest: Bandwidth,
    rounds: u32,
    is_full: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct ProbeRtt {
    /// When probing ends, once few enough segments are in flight (`probe_rtt_done_stamp`).
    end: Option<Nanos>,
    /// Whether a round has passed with few segments in flight (`probe_rtt_round_done`).
    round_over: bool,
    /// The samples that say nothing about the bandwidth.
    limited: Limited,
}

/// The highest bandwidth of the last [`BW_ROUNDS`] rounds, kept as the smallest of the complements.
#[derive(Clone, Copy, Debug, Default)]
struct MaxBandwidth(WindowedMin);

impl Bbr {
    /// Creates the control. `seed` determines the phase in which each cycle of gains begins.
    pub fn new(seed: u64) -> Self {
        Self {
            mode: Mode::Startup,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            pacing_rate: 0,
            pacing_gain: Gain::HIGH,
            cwnd_gain: Gain::HIGH,
            bandwidth: MaxBandwidth::default(),
            min_rtt: (u32::MAX, 0),
            rounds: Rounds::default(),
            cycle: Cycle::default(),
            startup: FullPipe::default(),
            probe_rtt: ProbeRtt::default(),
            policer: PolicerDetector::default(),
            aggregation: Aggregation::default(),
            prior_cwnd: 0,
            prior_state: CaState::Open,
            conserves: false,
            restarted: false,
            timed_out: false,
            mss: 1448,
        }
    }

    /// Updates the model of the path after an ACK (`bbr_update_model`).
    fn update_model(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.update_bandwidth(ack, rate);
        self.update_aggregation(cwnd, ack, rate);
        if self.mode == Mode::ProbeBandwidth && self.is_phase_over(ack, rate) {
            self.advance_phase(ack.now_ns);
        }
        self.check_full_pipe(rate);
        self.check_drain(cwnd, ack, rate);
        self.update_min_rtt(cwnd, ack, rate);
        self.update_gains();
    }

    /// Updates round count and highest bandwidth (`bbr_update_bw`).
    fn update_bandwidth(&mut self, ack: &AckSample, rate: &RateSample) {
        self.rounds.began = false;
        if std::mem::take(&mut self.timed_out) {
            self.rounds.began = true;
            self.sample_policer(ack, rate, true, false);
            self.rounds.began = false;
        }
        let Some(bandwidth) = sample(rate) else {
            return;
        };
        self.rounds.update(rate);
        self.conserves &= !self.rounds.began;
        let limited = self.probe_rtt.limited.covers(rate);
        self.sample_policer(ack, rate, ack.lost > 0, limited);
        if !limited || bandwidth >= self.bandwidth.get() {
            self.bandwidth.update(self.rounds.count, bandwidth);
        }
    }

    fn sample_policer(&mut self, ack: &AckSample, rate: &RateSample, lost: bool, limited: bool) {
        let round = policer::Interval {
            at: ack.now_ns,
            delivered: rate.total_delivered,
            lost: ack.totals.lost,
            round_began: self.rounds.began,
            has_loss: lost,
            limited,
            mss: self.mss,
        };
        let cycling = self.mode == Mode::ProbeBandwidth;
        if self.policer.update(&round, cycling) == policer::Change::Over {
            self.probe_bandwidth(ack.now_ns);
        }
    }

    /// Updates the estimate of ACK aggregation (`bbr_update_ack_aggregation`).
    fn update_aggregation(&mut self, cwnd: &CwndState, ack: &AckSample, rate: &RateSample) {
        if ack.acked > 0 && sample(rate).is_some() {
            let bandwidth = self.estimate();
            let (acked, most) = (ack.acked, cwnd.cwnd);
            self.aggregation.update(
                ack.now_ns,
                acked,
                bandwidth,
                most,
                self.rounds.began,
                aggregation::ROUNDS,
            );
        }
    }

    /// Whether the phase of the gain cycle is over (`bbr_is_next_cycle_phase`).
    fn is_phase_over(&self, ack: &AckSample, rate: &RateSample) -> bool {
        let lasted = ack.now_ns.saturating_sub(self.cycle.since) / 1_000;
        let is_long = lasted > u64::from(self.min_rtt.0);
        if self.pacing_gain == Gain::ONE {
            return is_long;
        }
        let inflight = self.inflight_at_departure(rate.prior_in_flight, ack, rate);
        let highest = self.bandwidth.get();
        // A gain above 1 lasts until the pipe holds as much as the gain asks for, or overflows; a
        // gain below 1 until the queue is empty.
        match self.pacing_gain > Gain::ONE {
            true => {
                let goal = self.inflight(highest, self.pacing_gain);
                is_long && (ack.lost > 0 || inflight >= goal)
            }
            false => is_long || inflight <= self.inflight(highest, Gain::ONE),
        }
    }

    fn advance_phase(&mut self, now: Nanos) {
        self.cycle = Cycle {
            phase: (self.cycle.phase + 1) % PHASES,
            since: now,
        };
    }

    /// Detects whether the pipe is full (`bbr_check_full_bw_reached`).
    fn check_full_pipe(&mut self, rate: &RateSample) {
        let startup = &mut self.startup;
        if startup.is_full || !self.rounds.began || self.probe_rtt.limited.covers(rate) {
            return;
        }
        let highest = self.bandwidth.get();
        if highest >= Gain::FULL_PIPE.of(startup.highest) {
            startup.highest = highest;
            startup.rounds = 0;
            return;
        }
        startup.rounds += 1;
        startup.is_full = startup.rounds >= FULL_ROUNDS;
    }

    /// Moves from startup to draining and from draining to probing (`bbr_check_drain`).
    fn check_drain(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        let full = self.bandwidth.get();
        if self.mode == Mode::Startup && self.startup.is_full {
            self.mode = Mode::Drain;
            cwnd.ssthresh = self.inflight(full, Gain::ONE);
        }
        if self.mode == Mode::Drain
            && self.inflight_at_departure(ack.in_flight, ack, rate)
                <= self.inflight(full, Gain::ONE)
        {
            self.probe_bandwidth(ack.now_ns);
        }
    }

    /// Updates the smallest RTT, and probes for it when it is old (`bbr_update_min_rtt`).
    fn update_min_rtt(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        let now = ack.now_ns;
        let expired = now > self.min_rtt.1 + MIN_RTT_WINDOW;
        if ack.rtt_us > 0 && (ack.rtt_us < self.min_rtt.0 || (expired && !rate.ack_delayed)) {
            self.min_rtt = (ack.rtt_us, now);
        }
        if expired && !self.restarted && self.mode != Mode::ProbeRtt {
            self.save_cwnd(cwnd);
            self.mode = Mode::ProbeRtt;
            self.probe_rtt.end = None;
            self.probe_rtt.limited.begin(rate);
        }
        if self.mode == Mode::ProbeRtt {
            self.probe_rtt.limited.extend(rate, ack.in_flight);
            match self.probe_rtt.end {
                None if ack.in_flight <= MIN_CWND => {
                    self.probe_rtt.end = Some(now + PROBE_RTT_TIME);
                    self.probe_rtt.round_over = false;
                    self.rounds.end = rate.total_delivered;
                }
                None => {}
                Some(_) => {
                    self.probe_rtt.round_over |= self.rounds.began;
                    if self.probe_rtt.round_over {
                        self.check_probe_rtt_end(now, cwnd);
                    }
                }
            }
        }
        if rate.delivered.is_some_and(|delivered| delivered > 0) {
            self.restarted = false;
        }
    }

    /// Ends the probing of the RTT when its time has come (`bbr_check_probe_rtt_done`).
    fn check_probe_rtt_end(&mut self, now: Nanos, cwnd: &mut CwndState) {
        if self.probe_rtt.end.is_none_or(|end| now <= end) {
            return;
        }
        // The smallest RTT has been confirmed, and counts from now.
        self.min_rtt.1 = now;
        cwnd.cwnd = cwnd.cwnd.max(self.prior_cwnd);
        match self.startup.is_full {
            true => self.probe_bandwidth(now),
            false => self.mode = Mode::Startup,
        }
    }

    /// Sets the gains of the present mode (`bbr_update_gains`).
    fn update_gains(&mut self) {
        (self.pacing_gain, self.cwnd_gain) = match self.mode {
            Mode::Startup => (Gain::HIGH, Gain::HIGH),
            Mode::Drain => (Gain::DRAIN, Gain::HIGH),
            Mode::ProbeBandwidth if self.policer.bandwidth().is_some() => (Gain::ONE, Gain::TWO),
            Mode::ProbeBandwidth => (Gain::CYCLE[self.cycle.phase], Gain::TWO),
            Mode::ProbeRtt => (Gain::ONE, Gain::ONE),
        };
    }

    /// Enters the gain cycle at a random phase (`bbr_reset_probe_bw_mode`).
    fn probe_bandwidth(&mut self, now: Nanos) {
        self.mode = Mode::ProbeBandwidth;
        self.cycle.phase = PHASES - 1 - self.random.random_range(0..RANDOM_PHASES);
        self.advance_phase(now);
    }

    /// Sets the cwnd after an ACK (`bbr_set_cwnd`).
    fn set_cwnd(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        if ack.acked > 0 {
            let segments = match self.recover(cwnd, ack, rate) {
                CwndAfterAck::Conserved(segments) => segments,
                CwndAfterAck::Modelled(segments) => {
                    self.toward_target(segments, ack, rate).max(MIN_CWND)
                }
            };
            cwnd.cwnd = segments.min(cwnd.clamp);
        }
        if self.mode == Mode::ProbeRtt {
            cwnd.cwnd = cwnd.cwnd.min(MIN_CWND);
        }
    }

    fn toward_target(&self, cwnd: u32, ack: &AckSample, rate: &RateSample) -> u32 {
        let bandwidth = self.estimate();
        let aggregated = match self.startup.is_full {
            true => self.aggregation.extra(bandwidth),
            false => 0,
        };
        let target = self.with_bursts(self.bdp(bandwidth, self.cwnd_gain) + aggregated);
        let grown = cwnd.saturating_add(ack.acked);
        if self.startup.is_full {
            grown.min(target)
        } else if cwnd < target || rate.total_delivered < u64::from(INITIAL_CWND) {
            grown
        } else {
            cwnd
        }
    }

    /// Conserves packets in recovery and restores the cwnd after it
    /// (`bbr_set_cwnd_to_recover_or_restore`).
    fn recover(&mut self, cwnd: &CwndState, ack: &AckSample, rate: &RateSample) -> CwndAfterAck {
        let mut segments = cwnd.cwnd.saturating_sub(ack.lost).max(1);
        let (before, state) = (self.prior_state, ack.ca_state);
        let conserved = ack.in_flight + ack.acked;
        if state == CaState::Recovery && before != CaState::Recovery {
            self.conserves = true;
            self.rounds.end = rate.total_delivered;
            segments = conserved;
        } else if before >= CaState::Recovery && state < CaState::Recovery {
            segments = segments.max(self.prior_cwnd);
            self.conserves = false;
        }
        self.prior_state = state;
        match self.conserves {
            true => CwndAfterAck::Conserved(segments.max(conserved)),
            false => CwndAfterAck::Modelled(segments),
        }
    }

    /// Remembers the cwnd to restore later (`bbr_save_cwnd`).
    fn save_cwnd(&mut self, cwnd: &CwndState) {
        let in_trouble = self.prior_state >= CaState::Recovery || self.mode == Mode::ProbeRtt;
        self.prior_cwnd = match in_trouble {
            true => self.prior_cwnd.max(cwnd.cwnd),
            false => cwnd.cwnd,
        };
    }

    /// Sets the pacing rate, which does not fall in startup (`bbr_set_pacing_rate`).
    fn pace(&mut self, bandwidth: Bandwidth, gain: Gain) {
        let rate = bandwidth::pacing_rate(bandwidth, gain, self.mss);
        if self.startup.is_full || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// The bandwidth estimate: a policer's rate where one was found (`bbr_bw`).
    fn estimate(&self) -> Bandwidth {
        self.policer.bandwidth().unwrap_or(self.bandwidth.get())
    }

    /// Bandwidth-delay product times `gain`, in segments (`bbr_bdp`).
    fn bdp(&self, bandwidth: Bandwidth, gain: Gain) -> u32 {
        match self.min_rtt.0 {
            u32::MAX => INITIAL_CWND,
            rtt_us => bandwidth::bdp(bandwidth, rtt_us, gain),
        }
    }

    /// Segments in flight that `gain` asks for (`bbr_inflight`).
    fn inflight(&self, bandwidth: Bandwidth, gain: Gain) -> u32 {
        self.with_bursts(self.bdp(bandwidth, gain))
    }

    /// Adds room for bursts at the sender, in offloads and at the receiver
    /// (`bbr_quantization_budget`).
    fn with_bursts(&self, segments: u32) -> u32 {
        let probing = self.mode == Mode::ProbeBandwidth && self.cycle.phase == 0;
        let even = (segments + 3 * self.burst()).next_multiple_of(2);
        even + if probing { 2 } else { 0 }
    }

    /// Size of a burst in segments (`bbr_tso_segs_goal`).
    fn burst(&self) -> u32 {
        bandwidth::burst(self.pacing_rate, self.mss, self.min_burst())
    }

    /// Segments in flight when the next one leaves, which pacing may delay
    /// (`bbr_packets_in_net_at_edt`).
    fn inflight_at_departure(&self, now_in_flight: u32, ack: &AckSample, rate: &RateSample) -> u32 {
        let wait_us = rate.next_send.saturating_sub(ack.now_ns) / 1_000;
        let delivered = self.estimate().saturating_mul(wait_us) >> bandwidth::BW_SCALE;
        let burst = match self.pacing_gain > Gain::ONE {
            true => self.burst(),
            false => 0,
        };
        (now_in_flight + burst).saturating_sub(delivered as u32)
    }
}

enum CwndAfterAck {
    /// The cwnd by packet conservation, segments.
    Conserved(u32),
    /// The cwnd from which the model goes on, segments.
    Modelled(u32),
}

impl CongestionControl for Bbr {
    fn sets_cwnd_in_recovery(&self) -> bool {
        true
    }

    fn init(&mut self, now: Nanos, cwnd: &mut CwndState, rtt_us: u32) {
        let rtt_us = rtt_us.max(1);
        self.min_rtt = (rtt_us, now);
        cwnd.ssthresh = u32::MAX;
        let bandwidth = (u64::from(cwnd.cwnd) << bandwidth::BW_SCALE) / u64::from(rtt_us);
        self.pacing_rate = bandwidth::pacing_rate(bandwidth, Gain::HIGH, self.mss);
        self.aggregation = Aggregation::new(now);
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.mss = u64::from(ack.mss.max(1));
        self.update_model(cwnd, ack, rate);
        self.pace(self.estimate(), self.pacing_gain);
        self.set_cwnd(cwnd, ack, rate);
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        self.save_cwnd(cwnd);
        cwnd.ssthresh
    }

    fn undo(&mut self, cwnd: &CwndState, _prior: u32) -> u32 {
        // The model stays valid, but startup may have stopped at a spurious loss.
        self.startup.highest = 0;
        self.startup.rounds = 0;
        self.policer = PolicerDetector::default();
        cwnd.cwnd
    }

    fn on_state(&mut self, _now: Nanos, _cwnd: &mut CwndState, state: CaState) {
        if state == CaState::Loss {
            self.prior_state = CaState::Loss;
            self.startup.highest = 0;
            self.timed_out = true;
        }
    }

    fn on_transmit_start(&mut self, now: Nanos, cwnd: &mut CwndState, start: &TransmitStart) {
        // While BBR probes the RTT, the kernel counts the flow as limited by the application.
        if !start.app_limited && self.mode != Mode::ProbeRtt {
            return;
        }
        self.restarted = true;
        self.aggregation.restart(now);
        match self.mode {
            Mode::ProbeBandwidth => self.pace(self.estimate(), Gain::ONE),
            Mode::ProbeRtt => self.check_probe_rtt_end(now, cwnd),
            Mode::Startup | Mode::Drain => {}
        }
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.pacing_rate)
    }

    fn min_burst(&self) -> u32 {
        match self.pacing_rate < SINGLE_SEGMENT_RATE {
            true => 1,
            false => 2,
        }
    }
}

impl MaxBandwidth {
    fn update(&mut self, round: u64, bandwidth: Bandwidth) {
        let complement = u32::MAX - u32::try_from(bandwidth).unwrap_or(u32::MAX);
        // To the filter, a time of 0 means that there is no sample.
        self.0.update(round + 1, complement, BW_ROUNDS);
    }

    /// The highest bandwidth; 0 before the first sample.
    fn get(&self) -> Bandwidth {
        match self.0 == WindowedMin::default() {
            true => 0,
            false => u64::from(u32::MAX - self.0.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MS, Path, ack, cwnd};
    use super::*;

    /// The pacing rate in segments/s.
    fn per_second(bbr: &Bbr) -> f64 {
        bbr.pacing_rate as f64 / 1448.0
    }

    #[test]
    fn the_first_rate_is_the_initial_cwnd_in_the_handshakes_rtt() {
        let mut bbr = Bbr::new(1);
        bbr.init(MS, &mut cwnd(10, u32::MAX), 100_000);
        // 2.885 · 10 segments in 0.1 s, less 1 %.
        let rate = per_second(&bbr);
        assert!((283.0..290.0).contains(&rate), "{rate}");
        assert_eq!(bbr.min_burst(), 2);
        bbr.pacing_rate = SINGLE_SEGMENT_RATE - 1;
        assert_eq!(bbr.min_burst(), 1);
    }

    #[test]
    fn it_finds_rate_and_rtt_and_keeps_the_queue_short() {
        // 1,000 segments/s and 40 ms: a BDP of 40 segments.
        let mut bbr = Bbr::new(1);
        let mut path = Path::new(MS, 40 * MS);
        let w = path.run(&mut bbr, 5_000 * MS);
        assert_eq!(bbr.mode, Mode::ProbeBandwidth);
        let bandwidth = bbr.bandwidth.get() as f64 / f64::from(1 << 24) * 1e6;
        assert!((980.0..1_050.0).contains(&bandwidth), "{bandwidth}");
        assert!(
            (40_000..43_000).contains(&bbr.min_rtt.0),
            "{:?}",
            bbr.min_rtt
        );
        // Twice the BDP, three bursts of two segments, and what probing adds.
        assert!((80..110).contains(&w.cwnd), "{}", w.cwnd);
        assert!(path.longest_queue(4_000 * MS) < 40);
    }

    #[test]
    fn startup_fills_and_drain_empties() {
        let mut bbr = Bbr::new(1);
        let mut path = Path::new(MS, 40 * MS);
        let mut modes = vec![];
        for _ in 0..100 {
            path.run(&mut bbr, 10 * MS);
            if modes.last() != Some(&bbr.mode) {
                modes.push(bbr.mode);
            }
        }
        assert_eq!(modes, [Mode::Startup, Mode::Drain, Mode::ProbeBandwidth]);
    }

    #[test]
    fn the_cycle_begins_at_a_random_phase_and_never_with_draining() {
        let mut seen = [0; PHASES];
        let mut bbr = Bbr::new(1);
        for _ in 0..400 {
            bbr.probe_bandwidth(MS);
            seen[bbr.cycle.phase] += 1;
        }
        assert_eq!(seen[1], 0);
        assert!(
            seen.iter().filter(|&&count| count > 20).count() == 7,
            "{seen:?}"
        );
        let first = |seed| {
            let mut bbr = Bbr::new(seed);
            (0..10)
                .map(|_| {
                    bbr.probe_bandwidth(MS);
                    bbr.cycle.phase
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(first(5), first(5));
        assert_ne!(first(5), first(6));
    }

    #[test]
    fn the_rtt_is_probed_every_ten_seconds() {
        let mut bbr = Bbr::new(1);
        let mut path = Path::new(MS, 40 * MS);
        let (mut probing, mut least) = (0, u32::MAX);
        for _ in 0..2_500 {
            let w = path.run(&mut bbr, 10 * MS);
            if bbr.mode == Mode::ProbeRtt {
                probing += 1;
                least = least.min(w.cwnd);
            }
        }
        assert_eq!(least, MIN_CWND);
        // Twice in 25 s, 0.2 s and some round trips each.
        assert!((40..80).contains(&probing), "{probing}");
        assert!(bbr.startup.is_full && bbr.bandwidth.get() > 0);
    }

    #[test]
    fn recovery_conserves_packets_and_then_restores_the_cwnd() {
        let mut bbr = Bbr::new(1);
        let mut path = Path::new(MS, 40 * MS);
        let mut w = path.run(&mut bbr, 3_000 * MS);
        let before = w.cwnd;
        w.ssthresh = bbr.ssthresh(&w);
        let recovering = AckSample {
            in_flight: 20,
            lost: 5,
            ca_state: CaState::Recovery,
            ..ack(path.now(), 1)
        };
        let sample = RateSample {
            prior_delivered: path.delivered(),
            total_delivered: path.delivered() + 1,
            ..RateSample::default()
        };
        bbr.on_ack(&mut w, &recovering, &sample);
        assert_eq!(w.cwnd, 21, "what is in flight and what was acknowledged");
        let open = AckSample {
            lost: 0,
            ca_state: CaState::Open,
            ..recovering
        };
        bbr.on_ack(&mut w, &open, &sample);
        assert!(w.cwnd >= before, "{} of {before}", w.cwnd);
    }

    #[test]
    fn samples_limited_by_the_application_do_not_lower_the_bandwidth() {
        let mut bbr = Bbr::new(1);
        let sample = |delivered, limited, round: u64| RateSample {
            prior_delivered: round * 10,
            delivered: Some(delivered),
            interval_us: 1_000,
            app_limited: limited,
            total_delivered: (round + 1) * 10,
            ..RateSample::default()
        };
        bbr.update_bandwidth(&ack(MS, 1), &sample(10, false, 0));
        let highest = bbr.bandwidth.get();
        for round in 1..30 {
            bbr.update_bandwidth(&ack(MS, 1), &sample(1, true, round));
        }
        assert_eq!(bbr.bandwidth.get(), highest);
        bbr.update_bandwidth(&ack(MS, 1), &sample(20, true, 31));
        assert_eq!(
            bbr.bandwidth.get(),
            2 * highest,
            "more is more all the same"
        );
        for round in 32..50 {
            bbr.update_bandwidth(&ack(MS, 1), &sample(1, false, round));
        }
        assert_eq!(
            bbr.bandwidth.get(),
            highest / 10,
            "the old ones are forgotten"
        );
    }
}
