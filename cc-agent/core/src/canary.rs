//! A canary: a candidate policy decides for a share of the new flows, and is compared with the
//! incumbent, which decides for all others.
//!
//! ```text
//!         start_canary                withdraw, replace or another start_canary,
//!   none ─────────────► running ─── which the agent also calls when a rail is breached ──► none
//!    ▲                     │                                   the incumbent has all flows
//!    │                     │ promote
//!    └─────────────────────┘ the candidate is the incumbent, and has all flows
//! ```
//!
//! Each flow counts once, with its own means, because the windows of a flow are not independent
//! samples. Only flows that opened during the canary count, in either arm. The candidate breaches a
//! guard rail when its mean over the flows is worse than the incumbent's by more than the rail
//! tolerates, and by more than four standard errors.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use cc_ebpf::{Feature, Identity, WindowRecord};
use serde::{Deserialize, Serialize};

use crate::served::ServedPolicy;

/// The policy that decides for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arm {
    /// The policy that decides for all flows when no canary runs.
    #[default]
    Incumbent,
    /// The policy that a canary compares with the incumbent.
    Candidate,
}

impl Arm {
    /// The arm that is not this one.
    pub fn other(self) -> Self {
        match self {
            Self::Incumbent => Self::Candidate,
            Self::Candidate => Self::Incumbent,
        }
    }
}

/// A candidate that decides for its share of the flows.
#[derive(Debug)]
pub(crate) struct Canary {
    candidate: ServedPolicy,
    share: CanaryShare,
    rails: GuardRails,
    /// The flows that have closed, and the answers for all flows, by [`Arm`].
    closed: [ArmResults; 2],
}

impl Canary {
    pub(crate) fn new(candidate: ServedPolicy, share: CanaryShare, rails: GuardRails) -> Self {
        Self {
            candidate,
            share,
            rails,
            closed: Default::default(),
        }
    }

    pub(crate) fn candidate(&self) -> &ServedPolicy {
        &self.candidate
    }

    pub(crate) fn into_candidate(self) -> ServedPolicy {
        self.candidate
    }

    /// The arm of a flow that opens.
    pub(crate) fn arm_of(&self, identity: &Identity, generation: u32) -> Arm {
        self.share.arm(identity, generation)
    }

    /// Counts a flow of the canary that has closed.
    pub(crate) fn closed(&mut self, arm: Arm, flow: &FlowTotals) {
        self.closed[arm as usize].add(flow, &self.rails);
    }

    /// Counts the answers of a policy to a batch.
    pub(crate) fn answered(&mut self, arm: Arm, usable: u64, unusable: u64) {
        self.closed[arm as usize].answered(usable, unusable);
    }

    /// Counts a batch by the time that its policy took.
    pub(crate) fn timed(&mut self, arm: Arm, took: Duration) {
        self.closed[arm as usize].timed(took > self.rails.batch_time);
    }

    /// The results by [`Arm`] over the flows that have closed and those that are live.
    pub(crate) fn results<'a>(
        &self,
        live: impl Iterator<Item = (Arm, &'a FlowTotals)>,
    ) -> [ArmResults; 2] {
        let mut results = self.closed;
        for (arm, flow) in live {
            results[arm as usize].add(flow, &self.rails);
        }
        results
    }

    pub(crate) fn report(&self, results: &[ArmResults; 2]) -> CanaryReport {
        let [incumbent, candidate] = results.map(|arm| arm.report());
        CanaryReport {
            percent: self.share.percent(),
            incumbent,
            candidate,
        }
    }

    pub(crate) fn breach(&self, [incumbent, candidate]: &[ArmResults; 2]) -> Option<Breach> {
        breach(incumbent, candidate, &self.rails)
    }
}

/// The results of a canary so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CanaryReport {
    /// The candidate's share of the new flows, percent.
    pub percent: f64,
    /// Metrics of the flows that the incumbent decides for.
    pub incumbent: ArmReport,
    /// Metrics of the flows that the candidate decides for.
    pub candidate: ArmReport,
}

/// The candidate's share of the flows, and which flows these are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CanaryShare {
    percent: f64,
    /// Makes successive canaries choose different flows.
    salt: u64,
}

impl CanaryShare {
    /// A share of `percent` of the flows, 0 to 100. Canaries with different salts choose different
    /// flows.
    pub fn new(percent: f64, salt: u64) -> Self {
        Self { percent, salt }
    }

    /// The share in percent of the new flows.
    pub fn percent(&self) -> f64 {
        self.percent
    }

    /// The arm of a flow: by a hash of its endpoints and its slot's generation, so that it does not
    /// depend on the order in which flows open.
    pub fn arm(&self, identity: &Identity, generation: u32) -> Arm {
        let mut hasher = DefaultHasher::new();
        (self.salt, identity.endpoints(), generation).hash(&mut hasher);
        let place = hasher.finish() as f64 / u64::MAX as f64 * 100.0;
        if place < self.percent {
            Arm::Candidate
        } else {
            Arm::Incumbent
        }
    }
}

/// How much worse than the incumbent a candidate may be before it is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardRails {
    /// Flows that each arm needs before its means are compared.
    pub flows: u64,
    /// Windows that a flow needs before it counts.
    pub windows: u32,
    /// Tolerance for the loss rate: lost bytes over lost and acknowledged bytes.
    pub loss: Tolerance,
    /// Tolerance for the mean queueing delay, ms.
    pub delay: Tolerance,
    /// Tolerance for the retransmission timeouts per minute.
    pub stalls: Tolerance,
    /// The time for a batch from which on it counts as slow.
    pub batch_time: Duration,
}

/// The excess over the incumbent's mean that is tolerated: `part` × mean + `amount`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Relative part, as a fraction of the incumbent's mean.
    pub part: f64,
    /// Absolute part, in the metric's unit.
    pub amount: f64,
}

impl Default for GuardRails {
    fn default() -> Self {
        Self {
            flows: 20,
            windows: 20,
            loss: Tolerance {
                part: 0.25,
                amount: 0.005,
            },
            delay: Tolerance {
                part: 0.25,
                amount: 5.0,
            },
            stalls: Tolerance {
                part: 0.25,
                amount: 0.5,
            },
            batch_time: Duration::from_millis(25),
        }
    }
}

/// Standard errors by which the candidate's mean must exceed what is tolerated. More than the usual
/// two, because the rails are checked again and again: under the normal distribution one in 30 000
/// checks of equal policies would be mistaken.
const STANDARD_ERRORS: f64 = 4.0;

/// A candidate breaches the rails once at least this many of its answers, and more than this
/// fraction of them, are NaN or infinite.
const INVALID: (u64, f64) = (10, 0.01);

/// A candidate breaches the rails once at least this many of its recent batches, more than this
/// fraction of them, and more than twice the incumbent's fraction are slow.
const SLOW: (u64, f64) = (10, 0.1);

/// The batches that are recent: the counts are halved each time there are this many.
const RECENT_BATCHES: u64 = 200;

/// Sums over the windows of one flow of a canary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowTotals {
    windows: u32,
    ns: u64,
    reward: f64,
    throughput_mbps: f64,
    delay_ms: f64,
    lost: u64,
    acked: u64,
    timeouts: u64,
}

impl FlowTotals {
    /// Adds a window, and its reward under the incumbent's settings.
    pub fn add(&mut self, window: &WindowRecord, reward: f64) {
        let mean = |feature: Feature| window.features.mean(feature as usize, window.acks);
        let sum = |feature: Feature| window.features.sum[feature as usize];
        self.windows += 1;
        self.ns += window.header.time_ns.saturating_sub(window.start_ns);
        self.reward += reward;
        self.throughput_mbps += mean(Feature::Throughput) * 8.0 / 1e3;
        self.delay_ms += mean(Feature::Delay) / 1e3;
        self.lost += sum(Feature::Lost);
        self.acked += sum(Feature::Acked);
        self.timeouts += sum(Feature::PtoDelta);
    }

    fn means(&self) -> Means {
        let windows = f64::from(self.windows.max(1));
        let minutes = self.ns as f64 / 60e9;
        let part = |of: f64, all: f64| if all > 0.0 { of / all } else { 0.0 };
        Means {
            reward: self.reward / windows,
            throughput_mbps: self.throughput_mbps / windows,
            delay_ms: self.delay_ms / windows,
            loss: part(self.lost as f64, (self.lost + self.acked) as f64),
            stalls: part(self.timeouts as f64, minutes),
        }
    }
}

/// Means over the windows of one flow.
#[derive(Clone, Copy, Debug)]
struct Means {
    reward: f64,
    throughput_mbps: f64,
    delay_ms: f64,
    loss: f64,
    stalls: f64,
}

/// Mean and spread over flows of one metric (Welford, 1962).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spread {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Spread {
    fn add(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// Variance of the mean over flows: the sample variance over their number.
    fn error(&self) -> f64 {
        if self.count < 2 {
            return f64::INFINITY;
        }
        self.squares / (self.count - 1) as f64 / self.count as f64
    }
}

/// The metrics of one arm over its flows, and the answers of its policy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ArmResults {
    reward: Spread,
    throughput_mbps: Spread,
    delay_ms: Spread,
    loss: Spread,
    stalls: Spread,
    decisions: u64,
    invalid: u64,
    batches: Batches,
}

/// The recent batches of a policy, and those that were slow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Batches {
    all: u64,
    slow: u64,
}

impl Batches {
    fn add(&mut self, slow: bool) {
        if self.all == RECENT_BATCHES {
            self.all /= 2;
            self.slow /= 2;
        }
        self.all += 1;
        self.slow += u64::from(slow);
    }

    fn slow_part(&self) -> f64 {
        self.slow as f64 / self.all.max(1) as f64
    }
}

impl ArmResults {
    /// Adds a flow, if it has lasted for as many windows as the rails ask for.
    pub fn add(&mut self, flow: &FlowTotals, rails: &GuardRails) {
        if flow.windows < rails.windows {
            return;
        }
        let means = flow.means();
        self.reward.add(means.reward);
        self.throughput_mbps.add(means.throughput_mbps);
        self.delay_ms.add(means.delay_ms);
        self.loss.add(means.loss);
        self.stalls.add(means.stalls);
    }

    /// Adds answers of the policy: how many were usable, and how many were NaN or infinite.
    pub fn answered(&mut self, usable: u64, unusable: u64) {
        self.decisions += usable;
        self.invalid += unusable;
    }

    /// Adds a batch of the policy, and whether it was slow.
    pub fn timed(&mut self, slow: bool) {
        self.batches.add(slow);
    }

    /// The means over the flows added so far, for the agent's status.
    pub fn report(&self) -> ArmReport {
        ArmReport {
            flows: self.loss.count,
            decisions: self.decisions,
            answers_invalid: self.invalid,
            reward: self.reward.mean,
            reward_error: (self.reward.count > 1).then(|| self.reward.error().sqrt()),
            throughput_mbps: self.throughput_mbps.mean,
            delay_ms: self.delay_ms.mean,
            loss: self.loss.mean,
            timeouts_per_minute: self.stalls.mean,
        }
    }
}

/// Means over the flows of one arm of a canary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArmReport {
    /// Flows that opened during the canary and have lasted long enough to count.
    pub flows: u64,
    /// Decisions published for flows of the canary.
    pub decisions: u64,
    /// Answers of the policy that were NaN or infinite.
    pub answers_invalid: u64,
    /// Mean reward of a window, under the incumbent's settings in either arm.
    pub reward: f64,
    /// Standard error of the reward over the flows; `None` for fewer than two flows.
    pub reward_error: Option<f64>,
    /// Mean delivery rate of a flow, Mbit/s.
    pub throughput_mbps: f64,
    /// Mean queueing delay of a flow, ms.
    pub delay_ms: f64,
    /// Loss rate: lost bytes over lost and acknowledged bytes.
    pub loss: f64,
    /// Retransmission timeouts of a flow per minute.
    pub timeouts_per_minute: f64,
}

/// The first guard rail that the candidate breaches; `None` when it breaches none.
pub fn breach(
    incumbent: &ArmResults,
    candidate: &ArmResults,
    rails: &GuardRails,
) -> Option<Breach> {
    let answers = candidate.decisions + candidate.invalid;
    if candidate.invalid >= INVALID.0 && candidate.invalid as f64 > INVALID.1 * answers as f64 {
        return Some(Breach::Answers {
            invalid: candidate.invalid,
            answers,
        });
    }
    let Batches { all, slow } = candidate.batches;
    let tolerated = SLOW.1.max(2.0 * incumbent.batches.slow_part());
    if slow >= SLOW.0 && candidate.batches.slow_part() > tolerated {
        return Some(Breach::Slow {
            slow,
            batches: all,
            limit: rails.batch_time,
            tolerated,
        });
    }
    if incumbent.loss.count.min(candidate.loss.count) < rails.flows {
        return None;
    }
    let worse = |metric, incumbent: &Spread, candidate: &Spread, tolerance: Tolerance| {
        let allowed = incumbent.mean * (1.0 + tolerance.part) + tolerance.amount;
        let error = candidate.error() + (1.0 + tolerance.part).powi(2) * incumbent.error();
        (candidate.mean - allowed > STANDARD_ERRORS * error.sqrt()).then_some(Breach::Worse {
            metric,
            incumbent: incumbent.mean,
            candidate: candidate.mean,
            allowed,
            flows: [incumbent.count, candidate.count],
        })
    };
    worse(Metric::Loss, &incumbent.loss, &candidate.loss, rails.loss)
        .or_else(|| {
            worse(
                Metric::Delay,
                &incumbent.delay_ms,
                &candidate.delay_ms,
                rails.delay,
            )
        })
        .or_else(|| {
            worse(
                Metric::Stalls,
                &incumbent.stalls,
                &candidate.stalls,
                rails.stalls,
            )
        })
}

/// The metric that a guard rail limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Mean queueing delay of a flow.
    Delay,
    /// Lost bytes over lost and acknowledged bytes.
    Loss,
    /// Retransmission timeouts per minute.
    Stalls,
}

/// A breach of a guard rail, for which a candidate is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Breach {
    /// Too many of the candidate's answers were NaN or infinite.
    Answers {
        /// Number of answers that were NaN or infinite.
        invalid: u64,
        /// Number of the candidate's answers, usable or not.
        answers: u64,
    },
    /// Too many of the candidate's batches took too long.
    Slow {
        /// Number of recent batches that took longer than `limit`.
        slow: u64,
        /// Number of recent batches whose times are kept.
        batches: u64,
        /// The time from which on a batch is slow.
        limit: Duration,
        /// The largest fraction of slow batches that would have been tolerated.
        tolerated: f64,
    },
    /// A metric of the candidate's flows is worse than tolerated.
    Worse {
        /// The metric; the next three values are in its unit.
        metric: Metric,
        /// Mean over the incumbent's flows.
        incumbent: f64,
        /// Mean over the candidate's flows.
        candidate: f64,
        /// The largest mean that would have been tolerated.
        allowed: f64,
        /// Number of flows of the incumbent and of the candidate.
        flows: [u64; 2],
    },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Answers { invalid, answers } => {
                write!(f, "{invalid} of its {answers} answers were not finite")
            }
            Self::Slow {
                slow,
                batches,
                limit,
                tolerated,
            } => write!(
                f,
                "{slow} of its last {batches} batches took longer than {} ms; at most {:.0} % is \
                 tolerated",
                limit.as_secs_f64() * 1e3,
                100.0 * tolerated,
            ),
            Self::Worse {
                metric,
                incumbent,
                candidate,
                allowed,
                flows: [incumbents, candidates],
            } => {
                let (name, factor, unit) = match metric {
                    Metric::Delay => ("queueing delay", 1.0, " ms"),
                    Metric::Loss => ("loss", 100.0, " %"),
                    Metric::Stalls => ("timeouts", 1.0, " per minute"),
                };
                let [candidate, incumbent, allowed] =
                    [candidate, incumbent, allowed].map(|value| value * factor);
                write!(
                    f,
                    "{name} {candidate:.2}{unit} over {candidates} flows, against \
                     {incumbent:.2}{unit} over {incumbents} flows of the current policy; at most \
                     {allowed:.2}{unit} is tolerated"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;
    use cc_ebpf::{FEATURES, Header};

    /// A flow of 30 windows of 100 ms with this delay, loss and timeouts in each.
    fn flow(delay_us: u32, lost: u32, timeouts: u32) -> FlowTotals {
        let mut window = WindowRecord::zeroed();
        let mut features = [0; FEATURES];
        features[Feature::Delay as usize] = delay_us;
        features[Feature::Lost as usize] = lost;
        features[Feature::Acked as usize] = 100_000 - lost;
        features[Feature::PtoDelta as usize] = timeouts;
        features[Feature::Throughput as usize] = 1_000;
        window.add(&features);
        window.header = Header::of::<WindowRecord>(0, 1, 100_000_000);
        let mut totals = FlowTotals::default();
        (0..30).for_each(|_| totals.add(&window, -0.5));
        totals
    }

    /// `count` flows, each a little different from the one before it.
    fn flows(count: u32, delay_us: u32, lost: u32, timeouts: u32) -> ArmResults {
        let mut flows = ArmResults::default();
        for i in 0..count {
            let flow = flow(delay_us + 100 * (i % 10), lost + 10 * (i % 7), timeouts);
            flows.add(&flow, &GuardRails::default());
        }
        flows
    }

    fn judge(incumbent: &ArmResults, candidate: &ArmResults) -> Option<Metric> {
        match breach(incumbent, candidate, &GuardRails::default())? {
            Breach::Worse { metric, .. } => Some(metric),
            Breach::Answers { .. } | Breach::Slow { .. } => None,
        }
    }

    #[test]
    fn a_flows_means() {
        let means = flow(20_000, 1_000, 1).means();
        assert_eq!((means.delay_ms, means.loss), (20.0, 0.01));
        assert_eq!((means.throughput_mbps, means.stalls), (8.0, 600.0));
        assert_eq!(means.reward, -0.5);
    }

    #[test]
    fn what_is_worse_is_named_and_what_is_not_is_left() {
        let current = flows(40, 20_000, 100, 0);
        assert_eq!(judge(&current, &current), None);
        assert_eq!(
            judge(&current, &flows(40, 24_000, 100, 0)),
            None,
            "tolerated"
        );
        assert_eq!(
            judge(&current, &flows(40, 60_000, 100, 0)),
            Some(Metric::Delay)
        );
        assert_eq!(
            judge(&current, &flows(40, 20_000, 3_000, 0)),
            Some(Metric::Loss)
        );
        assert_eq!(
            judge(&current, &flows(40, 20_000, 100, 1)),
            Some(Metric::Stalls)
        );
        assert_eq!(
            judge(&flows(40, 60_000, 3_000, 1), &current),
            None,
            "better"
        );
    }

    #[test]
    fn few_flows_say_nothing() {
        let (few, many) = (flows(19, 90_000, 9_000, 1), flows(40, 20_000, 100, 0));
        assert_eq!(judge(&many, &few), None);
        assert_eq!(
            judge(&flows(19, 20_000, 100, 0), &flows(40, 90_000, 9_000, 1)),
            None
        );
        let mut short = FlowTotals::default();
        short.add(&WindowRecord::zeroed(), 0.0);
        let mut flows = ArmResults::default();
        flows.add(&short, &GuardRails::default());
        assert_eq!(flows.report().flows, 0);
    }

    /// A difference that a few odd flows make is chance.
    #[test]
    fn chance_is_no_breach() {
        let current = flows(20, 20_000, 100, 0);
        let mut candidate = flows(20, 20_000, 100, 0);
        for _ in 0..2 {
            candidate.add(&flow(400_000, 100, 0), &GuardRails::default());
        }
        assert!(candidate.report().delay_ms > 50.0);
        assert_eq!(judge(&current, &candidate), None);
    }

    #[test]
    fn answers_that_are_no_numbers_are_a_breach_at_once() {
        let mut candidate = ArmResults::default();
        candidate.answered(75, 25);
        let found = breach(&ArmResults::default(), &candidate, &GuardRails::default());
        let text = found.expect("a breach").to_string();
        assert_eq!(text, "25 of its 100 answers were not finite");
    }

    #[test]
    fn a_candidate_that_is_slower_than_the_incumbent_is_a_breach() {
        let arm = |fast: u32, slow: u32| {
            let mut arm = ArmResults::default();
            (0..fast).for_each(|_| arm.timed(false));
            (0..slow).for_each(|_| arm.timed(true));
            arm
        };
        let judge = |incumbent, candidate| {
            breach(&incumbent, &candidate, &GuardRails::default()).map(|breach| breach.to_string())
        };
        assert_eq!(judge(arm(100, 0), arm(0, 9)), None, "too few");
        assert_eq!(judge(arm(100, 0), arm(90, 10)), None, "tolerated");
        let found = judge(arm(100, 0), arm(80, 20)).expect("a breach");
        let expected = "20 of its last 100 batches took longer than 25 ms; at most 10 % is \
                        tolerated";
        assert_eq!(found, expected);
        assert_eq!(judge(arm(70, 30), arm(50, 50)), None, "the host is slow");
        // What was long ago counts for less and less.
        assert!(judge(arm(100, 0), arm(10_000, 40)).is_some());
    }

    #[test]
    fn the_share_is_what_was_asked_for() {
        let identity = |port| Identity {
            family: 2,
            remote_port: port,
            ..Identity::default()
        };
        for (percent, expected) in [(0.0, 0..=0), (10.0, 800..=1_200), (100.0, 10_000..=10_000)] {
            let share = CanaryShare::new(percent, 7);
            let is_candidate = |port: &u16| share.arm(&identity(*port), 1) == Arm::Candidate;
            let count = (0..10_000).filter(is_candidate).count();
            assert!(expected.contains(&count), "{percent} %: {count}");
        }
        let other = |salt| CanaryShare::new(50.0, salt);
        let differs = |port| other(1).arm(&identity(port), 1) != other(2).arm(&identity(port), 1);
        assert!((0..100).any(differs), "another canary has other flows");
    }
}
