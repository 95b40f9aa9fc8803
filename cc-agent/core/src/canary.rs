//! A trial: a candidate policy decides for a share of the new flows, and is watched beside the current one.
//!
//! Pure, as the agent's core is. Each flow counts once, with its own means, for a flow's windows are no independent
//! samples; only flows that began during the trial count, on either side. The candidate breaches a guard rail when its
//! mean over the flows is worse than the current policy's by more than the rail tolerates, and by more than chance
//! would explain.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

use cc_ebpf::{Feature, Identity, WindowRecord};
use serde::{Deserialize, Serialize};

/// Which policy decides for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// The one that serves all flows outside of a trial.
    #[default]
    Current,
    /// The one on trial.
    Candidate,
}

impl Side {
    /// Both, in the order of their numbers.
    pub const BOTH: [Self; 2] = [Self::Current, Self::Candidate];
}

/// Which flows are the candidate's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    percent: f64,
    /// So that trials after each other have different flows.
    salt: u64,
}

impl Share {
    /// So many percent of the flows, 0 to 100.
    pub fn new(percent: f64, salt: u64) -> Self {
        Self { percent, salt }
    }

    /// Percent.
    pub fn percent(&self) -> f64 {
        self.percent
    }

    /// The side of a flow: by a hash of who it is, so that it does not depend on the order in which flows come.
    pub fn side(&self, identity: &Identity, generation: u32) -> Side {
        let mut hasher = DefaultHasher::new();
        (self.salt, identity.endpoints(), generation).hash(&mut hasher);
        let place = hasher.finish() as f64 / u64::MAX as f64 * 100.0;
        if place < self.percent {
            Side::Candidate
        } else {
            Side::Current
        }
    }
}

/// How much worse a candidate may be: by a part of the current policy's value, and by an amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardRails {
    /// Flows that each side needs before anything is concluded.
    pub flows: u64,
    /// Windows that a flow needs before it counts.
    pub windows: u32,
    /// Lost of sent bytes.
    pub loss: Tolerance,
    /// Queueing delay, ms.
    pub delay: Tolerance,
    /// Timeouts a minute.
    pub stalls: Tolerance,
}

/// `part × current + amount` is tolerated on top of the current policy's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Of the current policy's mean.
    pub part: f64,
    /// In the metric's unit.
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
        }
    }
}

/// Standard errors beyond which a difference is no chance. The rails are looked at again and again, so more than the
/// usual two: under the normal distribution one in 30 000 looks at equal policies would be mistaken.
const SURE: f64 = 4.0;

/// Answers that were no numbers, of a candidate, that are too many; and the share of its answers.
const INVALID: (u64, f64) = (10, 0.01);

/// What one flow's windows add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    windows: u32,
    ns: u64,
    reward: f64,
    throughput_mbps: f64,
    delay_ms: f64,
    lost: u64,
    acked: u64,
    timeouts: u64,
}

impl Tally {
    /// Takes a window in, and its reward.
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

/// One flow's means.
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

    /// Variance of the mean.
    fn error(&self) -> f64 {
        if self.count < 2 {
            return f64::INFINITY;
        }
        self.squares / (self.count - 1) as f64 / self.count as f64
    }
}

/// What the flows of one side add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flows {
    reward: Spread,
    throughput_mbps: Spread,
    delay_ms: Spread,
    loss: Spread,
    stalls: Spread,
    decisions: u64,
    invalid: u64,
}

impl Flows {
    /// Takes a flow in, if it has lasted long enough to count.
    pub fn add(&mut self, flow: &Tally, rails: &GuardRails) {
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

    /// Takes answers of the policy in: how many were usable, and how many were not.
    pub fn answered(&mut self, usable: u64, unusable: u64) {
        self.decisions += usable;
        self.invalid += unusable;
    }

    /// As it is told.
    pub fn report(&self) -> SideReport {
        SideReport {
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

/// Means over the flows of one side of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SideReport {
    /// Flows that began during the trial and have lasted long enough to count.
    pub flows: u64,
    /// Decisions published for flows of the trial.
    pub decisions: u64,
    /// Answers of the policy that were not finite.
    pub answers_invalid: u64,
    /// Mean of a window's reward, by the current policy's settings on either side.
    pub reward: f64,
    /// Its standard error over flows; none of a single one.
    pub reward_error: Option<f64>,
    /// Mean delivery rate of a flow, Mbit/s.
    pub throughput_mbps: f64,
    /// Mean queueing delay, ms.
    pub delay_ms: f64,
    /// Lost of lost and acknowledged bytes.
    pub loss: f64,
    /// Retransmission timeouts a minute of a flow.
    pub timeouts_per_minute: f64,
}

/// Whether the candidate breaches a guard rail beside the current policy, and which: the first found.
pub fn breach(current: &Flows, candidate: &Flows, rails: &GuardRails) -> Option<Breach> {
    let answers = candidate.decisions + candidate.invalid;
    if candidate.invalid >= INVALID.0 && candidate.invalid as f64 > INVALID.1 * answers as f64 {
        return Some(Breach::Answers {
            invalid: candidate.invalid,
            answers,
        });
    }
    if current.loss.count.min(candidate.loss.count) < rails.flows {
        return None;
    }
    let worse = |metric, current: &Spread, candidate: &Spread, tolerance: Tolerance| {
        let allowed = current.mean * (1.0 + tolerance.part) + tolerance.amount;
        let error = candidate.error() + (1.0 + tolerance.part).powi(2) * current.error();
        (candidate.mean - allowed > SURE * error.sqrt()).then_some(Breach::Worse {
            metric,
            current: current.mean,
            candidate: candidate.mean,
            allowed,
            flows: [current.count, candidate.count],
        })
    };
    worse(Metric::Loss, &current.loss, &candidate.loss, rails.loss)
        .or_else(|| {
            worse(
                Metric::Delay,
                &current.delay_ms,
                &candidate.delay_ms,
                rails.delay,
            )
        })
        .or_else(|| {
            worse(
                Metric::Stalls,
                &current.stalls,
                &candidate.stalls,
                rails.stalls,
            )
        })
}

/// What a guard rail is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Queueing delay.
    Delay,
    /// Lost of sent bytes.
    Loss,
    /// Timeouts.
    Stalls,
}

/// Why a candidate is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Breach {
    /// Too many of its answers were no numbers.
    Answers {
        /// How many.
        invalid: u64,
        /// Of how many.
        answers: u64,
    },
    /// Its flows fare worse.
    Worse {
        /// In what.
        metric: Metric,
        /// Mean over the current policy's flows.
        current: f64,
        /// Mean over its own.
        candidate: f64,
        /// What would have been tolerated.
        allowed: f64,
        /// How many flows there are, of the current policy and its own.
        flows: [u64; 2],
    },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Answers { invalid, answers } => {
                write!(f, "{invalid} of its {answers} answers were not finite")
            }
            Self::Worse {
                metric,
                current,
                candidate,
                allowed,
                flows: [ours, theirs],
            } => {
                let (name, factor, unit) = match metric {
                    Metric::Delay => ("queueing delay", 1.0, " ms"),
                    Metric::Loss => ("loss", 100.0, " %"),
                    Metric::Stalls => ("timeouts", 1.0, " a minute"),
                };
                let [candidate, current, allowed] =
                    [candidate, current, allowed].map(|value| value * factor);
                write!(
                    f,
                    "{name} {candidate:.2}{unit} over {theirs} flows, against {current:.2}{unit} over {ours} flows \
                     of the current policy; at most {allowed:.2}{unit} is tolerated"
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
    fn flow(delay_us: u32, lost: u32, timeouts: u32) -> Tally {
        let mut window = WindowRecord::zeroed();
        let mut features = [0; FEATURES];
        features[Feature::Delay as usize] = delay_us;
        features[Feature::Lost as usize] = lost;
        features[Feature::Acked as usize] = 100_000 - lost;
        features[Feature::PtoDelta as usize] = timeouts;
        features[Feature::Throughput as usize] = 1_000;
        window.add(&features);
        window.header = Header::of::<WindowRecord>(0, 1, 100_000_000);
        let mut tally = Tally::default();
        (0..30).for_each(|_| tally.add(&window, -0.5));
        tally
    }

    /// So many flows, each a little different from the one before it.
    fn flows(count: u32, delay_us: u32, lost: u32, timeouts: u32) -> Flows {
        let mut flows = Flows::default();
        for i in 0..count {
            let flow = flow(delay_us + 100 * (i % 10), lost + 10 * (i % 7), timeouts);
            flows.add(&flow, &GuardRails::default());
        }
        flows
    }

    fn judge(current: &Flows, candidate: &Flows) -> Option<Metric> {
        match breach(current, candidate, &GuardRails::default())? {
            Breach::Worse { metric, .. } => Some(metric),
            Breach::Answers { .. } => None,
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
        let mut short = Tally::default();
        short.add(&WindowRecord::zeroed(), 0.0);
        let mut flows = Flows::default();
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
        let mut candidate = Flows::default();
        candidate.answered(75, 25);
        let found = breach(&Flows::default(), &candidate, &GuardRails::default());
        let text = found.expect("a breach").to_string();
        assert_eq!(text, "25 of its 100 answers were not finite");
    }

    #[test]
    fn the_share_is_what_was_asked_for() {
        let identity = |port| Identity {
            family: 2,
            remote_port: port,
            ..Identity::default()
        };
        for (percent, expected) in [(0.0, 0..=0), (10.0, 800..=1_200), (100.0, 10_000..=10_000)] {
            let share = Share::new(percent, 7);
            let is_candidate = |port: &u16| share.side(&identity(*port), 1) == Side::Candidate;
            let count = (0..10_000).filter(is_candidate).count();
            assert!(expected.contains(&count), "{percent} %: {count}");
        }
        let other = |salt| Share::new(50.0, salt);
        let differs = |port| other(1).side(&identity(port), 1) != other(2).side(&identity(port), 1);
        assert!((0..100).any(differs), "another trial has other flows");
    }
}
