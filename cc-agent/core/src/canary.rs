//! A canary: a candidate policy decides for a share of the flows, and is compared with the
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
//! # What is compared
//!
//! Flows that share a queue share its delay and its loss, and what one flow takes another lacks.
//! Arms in one queue therefore say little of a candidate, and may say the opposite of the truth: a
//! candidate that takes from its neighbours has more throughput than they, at the same delay. So
//! the arms are kept apart, by paths, by remote hosts or in time ([`CanaryBy`]), and the units of
//! the statistics are these paths, hosts or pairs of blocks of time rather than flows.
//!
//! In time, the candidate has its share of the flows in its blocks only. These flows are compared
//! with themselves in the incumbent's blocks; and so are their *neighbours*, the flows that the
//! incumbent has in all blocks. What a candidate takes for good, so that the incumbent keeps it in
//! its own blocks, does not show in that. It shows between the flows that were chosen for the
//! candidate and their neighbours, over all blocks ([`shares`]).
//!
//! # Guard rails
//!
//! The candidate breaches a rail when it is worse than tolerated in one of five metrics, or its
//! neighbours are, beyond chance ([`compare`]); when its answers are not finite, or late; and at
//! once when it does gross harm: within seconds of losing half of its packets, or of carrying less
//! than a tenth of what is usual. It has passed when none of the metrics is worse than tolerated,
//! beyond chance.

mod compare;
mod plan;
mod shares;
mod tally;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    time::Duration,
};

use cc_ebpf::{Feature, Identity, WindowRecord};
use serde::{Deserialize, Serialize};

pub use compare::{Comparison, Finding, Metric};
pub use plan::{CanaryBy, CanaryPlan};
pub use shares::Shift;

use self::{
    compare::Sample,
    plan::Cluster,
    shares::{Growth, Shares},
    tally::{Recent, Tally},
};
use crate::{
    objective::{Measured, Objective},
    served::ServedPolicy,
    tolerance::{Tolerance, Tolerances},
};

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

/// How much worse than the incumbent a candidate may be before it is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardRails {
    /// Pairs of blocks, or paths or hosts in each arm, that are needed before the arms are compared
    /// by their means.
    pub units: u64,
    /// Windows that a unit needs in order to count.
    pub windows: u32,
    /// What is tolerated of each metric.
    pub tolerances: Tolerances,
    /// The time for a batch from which on it counts as slow.
    pub batch_time: Duration,
}

impl GuardRails {
    /// The tolerance of a metric on its scale of harm.
    fn tolerance(&self, metric: Metric, objective: &Objective) -> Tolerance {
        match metric {
            Metric::Objective => Tolerance::of_objective(self.tolerances.throughput, objective),
            Metric::Throughput => Tolerance::of_throughput(self.tolerances.throughput),
            Metric::Delay => self.tolerances.delay,
            Metric::Loss => self.tolerances.loss,
            Metric::Timeouts => self.tolerances.timeouts,
        }
    }
}

impl Default for GuardRails {
    fn default() -> Self {
        Self {
            units: 10,
            windows: 20,
            tolerances: Tolerances::default(),
            batch_time: Duration::from_millis(25),
        }
    }
}

/// A candidate breaches the rails once at least this many of its answers, and more than this
/// fraction of them, are NaN or infinite.
const INVALID: (u64, f64) = (10, 0.01);

/// A candidate breaches the rails once at least this many of its recent batches, more than this
/// fraction of them, and more than twice the incumbent's fraction are slow.
const SLOW: (u64, f64) = (10, 0.1);

/// The batches that are recent: the counts are halved each time there are this many.
const RECENT_BATCHES: u64 = 200;

/// Gross harm: the lost part of all bytes in the candidate's last seconds, and how much more it is
/// than the incumbent's.
const GROSS_LOSS: (f64, f64) = (0.5, 0.25);
/// Bytes from which on a lost part says anything.
const GROSS_BYTES: u64 = 64 << 10;
/// Gross harm: a flow's throughput in the last seconds, as a part of what is usual.
const COLLAPSED: f64 = 0.1;
/// Time of a flow from which on its throughput says anything, ns.
const GROSS_NS: u64 = 1_000_000_000;
/// Flows of each arm without which the throughputs of different flows are not compared.
const GROSS_FLOWS: usize = 8;
/// Time that a flow has waited for an ACK, as far as it is counted in its last seconds, ns.
const LONGEST_WAIT_NS: u64 = 4_000_000_000;

/// How long after their end the blocks of a pair are still added to, ns: longer than Linux waits
/// between two retransmission timeouts.
const LATE_NS: u64 = 130_000_000_000;
/// Pairs of blocks that are added to at a time, at most: blocks are at least a second long.
const MOST_OPEN: usize = 256;
/// Paths or hosts that are counted, at most.
const MOST_CLUSTERS: usize = 16_384;

/// One value for each [`Metric`].
type PerMetric<T> = [T; Metric::ALL.len()];

/// A candidate that decides for its share of the flows.
#[derive(Debug)]
pub(crate) struct Canary {
    candidate: ServedPolicy,
    plan: CanaryPlan,
    rails: GuardRails,
    objective: Objective,
    begun_ns: u64,
    /// The arm that has the candidate's share of the flows: with blocks, that of the present one.
    arm: Arm,
    units: Units,
    /// By [`Arm`]: the answers for flows that take part, and the flows that have counted.
    answers: [Answers; 2],
    flows: [u64; 2],
}

/// What the statistical units came to.
#[derive(Debug)]
enum Units {
    Blocks(Box<Blocks>),
    Clusters(HashMap<Cluster, (Arm, Tally)>),
}

/// The blocks of time after the first, in pairs with one block of either arm.
#[derive(Debug, Default)]
struct Blocks {
    /// The number of the oldest pair in `open`.
    first: u64,
    /// The pairs that may still be added to.
    open: VecDeque<Pair>,
    /// The pairs before them: of the flows that the candidate has in its blocks, and of their
    /// neighbours.
    closed: [PerMetric<Sample>; 2],
}

/// A pair of blocks: of the flows that the candidate has in its blocks, and of their neighbours,
/// what they came to in the block of each [`Arm`].
type Pair = [[Tally; 2]; 2];

/// What a canary keeps of a flow that takes part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CanaryFlow {
    cluster: Cluster,
    /// Whether the candidate has the flow: always, or in its blocks.
    is_treated: bool,
    /// Since when the same arm has had it, ns.
    since_ns: u64,
    /// Windows that counted under each [`Arm`].
    windows: [u32; 2],
    recent: Recent,
    /// What it did under the incumbent.
    usual: Measured,
    /// What it did in block 0 and after it.
    growth: Growth,
}

/// The answers of a policy to flows that take part, and the times of its batches.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    usable: u64,
    invalid: u64,
    batches: Batches,
}

/// The recent batches of a policy, and those that were slow.
#[derive(Clone, Copy, Debug, Default)]
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

impl Canary {
    /// Begins at `now_ns`. Both arms are judged by `objective`.
    pub(crate) fn new(
        candidate: ServedPolicy,
        plan: CanaryPlan,
        rails: GuardRails,
        objective: Objective,
        now_ns: u64,
    ) -> Self {
        let (arm, units) = match plan.by {
            CanaryBy::Time => (Arm::Incumbent, Units::Blocks(Box::default())),
            CanaryBy::Path | CanaryBy::Host => (Arm::Candidate, Units::Clusters(HashMap::new())),
        };
        Self {
            candidate,
            plan,
            rails,
            objective,
            begun_ns: now_ns,
            arm,
            units,
            answers: Default::default(),
            flows: [0; 2],
        }
    }

    pub(crate) fn candidate(&self) -> &ServedPolicy {
        &self.candidate
    }

    pub(crate) fn into_candidate(self) -> ServedPolicy {
        self.candidate
    }

    /// The arm of a flow that opens, and what is kept of it.
    pub(crate) fn join(&self, identity: &Identity, generation: u32) -> (Arm, CanaryFlow) {
        let flow = CanaryFlow {
            cluster: self.plan.cluster(identity),
            is_treated: self.plan.is_treated(identity, generation),
            since_ns: self.begun_ns,
            windows: [0; 2],
            recent: Recent::from(self.begun_ns),
            usual: Measured::default(),
            growth: Growth::default(),
        };
        (self.arm_of(&flow), flow)
    }

    /// What is kept of a flow that was open when the canary began. It takes part where blocks of
    /// time are compared; a path that the incumbent has filled says nothing of the candidate.
    pub(crate) fn join_live(&self, identity: &Identity, generation: u32) -> Option<CanaryFlow> {
        let is_by_time = matches!(self.units, Units::Blocks(_));
        is_by_time.then(|| self.join(identity, generation).1)
    }

    /// The arm that decides for a flow that takes part.
    pub(crate) fn arm_of(&self, flow: &CanaryFlow) -> Arm {
        if flow.is_treated {
            self.arm
        } else {
            Arm::Incumbent
        }
    }

    /// Goes on to the block of `now_ns`. Returns whether the candidate's share of the flows has
    /// another arm from now on.
    pub(crate) fn turn(&mut self, now_ns: u64) -> bool {
        let Units::Blocks(blocks) = &mut self.units else {
            return false;
        };
        let block = self.plan.block_at(now_ns.saturating_sub(self.begun_ns));
        let ended = |pair: u64| self.begun_ns + self.plan.begin_ns(2 * pair + 3);
        while ended(blocks.first) + LATE_NS < now_ns {
            if let Some(pair) = blocks.open.pop_front() {
                add_pair(&mut blocks.closed, &pair, &self.rails, &self.objective);
            }
            blocks.first += 1;
        }
        let arm = self.plan.arm_of_block(block);
        std::mem::replace(&mut self.arm, arm) != arm
    }

    /// Notes that another arm has the flow from `now_ns` on; `last` is its newest window. What it
    /// has waited since then is the former arm's doing.
    pub(crate) fn moved(
        &mut self,
        flow: &mut CanaryFlow,
        last: Option<&WindowRecord>,
        now_ns: u64,
    ) {
        let waits_ns = last.map_or(0, |last| flow.waits_ns(last, now_ns));
        self.add_silence(flow, now_ns - waits_ns, now_ns);
        flow.since_ns = now_ns;
        flow.recent = Recent::from(now_ns);
    }

    /// Adds the time from `from_ns` to `to_ns`, in which a flow only waited, to the blocks that it
    /// lies in.
    fn add_silence(&mut self, flow: &CanaryFlow, from_ns: u64, to_ns: u64) {
        let Units::Blocks(blocks) = &mut self.units else {
            return;
        };
        let clock = Clock {
            begun_ns: self.begun_ns,
            plan: &self.plan,
        };
        let last = clock.block(to_ns);
        for block in (clock.block(from_ns)..=last).rev() {
            let Some(tally) = blocks.tally(&self.plan, block, flow.group()) else {
                break;
            };
            let counted = clock.counted(block);
            let (from_ns, to_ns) = (from_ns.max(counted.start), to_ns.min(counted.end));
            if from_ns < to_ns {
                let span = Measured::silence(to_ns - from_ns);
                tally.add(&span, self.objective.value(&span));
            }
        }
    }

    /// Adds a window of a flow under `arm`, with what it `measured` since the window before.
    /// Windows that the application limited say little of a policy, and are left out.
    pub(crate) fn add(
        &mut self,
        flow: &mut CanaryFlow,
        arm: Arm,
        window: &WindowRecord,
        measured: &Measured,
    ) {
        if window.is_application_limited() || window.start_ns < flow.since_ns {
            return;
        }
        let end_ns = window.header.time_ns;
        let measured = Measured {
            ns: measured.ns.min(end_ns.saturating_sub(flow.since_ns)),
            ..*measured
        };
        flow.recent.add(end_ns, &measured);
        if arm == Arm::Incumbent {
            flow.usual += measured;
        }
        let windows = &mut flow.windows[arm as usize];
        *windows = windows.saturating_add(1);
        self.flows[arm as usize] += u64::from(*windows == self.rails.windows);
        match &mut self.units {
            Units::Clusters(clusters) => {
                if clusters.len() < MOST_CLUSTERS || clusters.contains_key(&flow.cluster) {
                    let arm = match flow.is_treated {
                        true => Arm::Candidate,
                        false => Arm::Incumbent,
                    };
                    let new = || (arm, Tally::default());
                    let (_, tally) = clusters.entry(flow.cluster).or_insert_with(new);
                    tally.add(&measured, self.objective.value(&measured));
                }
            }
            Units::Blocks(blocks) => {
                let clock = Clock {
                    begun_ns: self.begun_ns,
                    plan: &self.plan,
                };
                let block = clock.block(window.start_ns);
                flow.growth.add(block, &measured);
                let counted = clock.counted(block);
                let began_ns = end_ns.saturating_sub(measured.ns);
                if counted.contains(&window.start_ns)
                    && end_ns <= counted.end
                    && let Some(tally) = blocks.tally(&self.plan, block, flow.group())
                {
                    let span = Measured {
                        ns: end_ns - began_ns.max(counted.start),
                        ..measured
                    };
                    tally.add(&span, self.objective.value(&span));
                }
                // The flow may have waited through the end of the block before.
                let begin_ns = clock.begin_ns(block);
                if began_ns < begin_ns {
                    self.add_silence(flow, began_ns, begin_ns - 1);
                }
            }
        }
    }

    /// Counts the answers of a policy to a batch.
    pub(crate) fn answered(&mut self, arm: Arm, usable: u64, unusable: u64) {
        let answers = &mut self.answers[arm as usize];
        answers.usable += usable;
        answers.invalid += unusable;
    }

    /// Counts a batch by the time that its policy took.
    pub(crate) fn timed(&mut self, arm: Arm, took: Duration) {
        let slow = took > self.rails.batch_time;
        self.answers[arm as usize].batches.add(slow);
    }

    /// The results of the units that have ended by `now_ns`. `live` are the live flows that take
    /// part, with their newest windows.
    pub(crate) fn report<'a>(
        &self,
        live: impl Iterator<Item = (Arm, &'a CanaryFlow, &'a WindowRecord)>,
        now_ns: u64,
    ) -> CanaryReport {
        let (metrics, neighbours) = self.compare(now_ns);
        let arm = |arm: Arm| ArmReport {
            flows: self.flows[arm as usize],
            decisions: self.answers[arm as usize].usable,
            answers_invalid: self.answers[arm as usize].invalid,
        };
        let all = || metrics.iter().chain(&neighbours);
        let finding = if all().any(|found| found.finding == Finding::Worse) {
            Finding::Worse
        } else if all().all(|found| found.finding == Finding::NotWorse) {
            Finding::NotWorse
        } else {
            Finding::Open
        };
        CanaryReport {
            plan: self.plan,
            units_needed: self.rails.units,
            finding,
            metrics,
            neighbours,
            shift: self.shares(live, now_ns).map(|shares| shares.shift()),
            incumbent: arm(Arm::Incumbent),
            candidate: arm(Arm::Candidate),
        }
    }

    /// The guard rail that the candidate breaches; `None` when it breaches none. `live` are the
    /// live flows that take part, with their newest windows.
    pub(crate) fn breach<'a>(
        &self,
        live: impl Iterator<Item = (Arm, &'a CanaryFlow, &'a WindowRecord)> + Clone,
        now_ns: u64,
    ) -> Option<Breach> {
        self.bad_answers()
            .or_else(|| self.gross_harm(live.clone(), now_ns))
            .or_else(|| {
                let (metrics, neighbours) = self.compare(now_ns);
                // The objective last: the others say more about what is wrong.
                let worse = |all: &[Comparison]| {
                    let mut all = all.iter().rev();
                    all.find(|found| found.finding == Finding::Worse).copied()
                };
                let own = worse(&metrics).map(Breach::Worse);
                own.or_else(|| worse(&neighbours).map(Breach::Neighbours))
            })
            .or_else(|| {
                let tolerated = self.rails.tolerances.throughput;
                let taken = self.shares(live, now_ns)?.taken(tolerated);
                taken.map(Breach::Taken)
            })
    }

    /// The growths of the candidate's flows and of their neighbours; `None` where units are not
    /// blocks of time.
    fn shares<'a>(
        &self,
        live: impl Iterator<Item = (Arm, &'a CanaryFlow, &'a WindowRecord)>,
        now_ns: u64,
    ) -> Option<Shares> {
        if !matches!(self.units, Units::Blocks(_)) {
            return None;
        }
        let mut shares = Shares::default();
        for (_, flow, last) in live {
            let waits_ns = flow.waits_ns(last, now_ns);
            shares.add(flow.group(), &flow.growth, waits_ns);
        }
        Some(shares)
    }

    fn bad_answers(&self) -> Option<Breach> {
        let [incumbent, candidate] = &self.answers;
        let answers = candidate.usable + candidate.invalid;
        if candidate.invalid >= INVALID.0 && candidate.invalid as f64 > INVALID.1 * answers as f64 {
            return Some(Breach::Answers {
                invalid: candidate.invalid,
                answers,
            });
        }
        let Batches { all, slow } = candidate.batches;
        let tolerated = SLOW.1.max(2.0 * incumbent.batches.slow_part());
        let is_slow = slow >= SLOW.0 && candidate.batches.slow_part() > tolerated;
        is_slow.then_some(Breach::Slow {
            slow,
            batches: all,
            limit: self.rails.batch_time,
            tolerated,
        })
    }

    /// Harm that shows within seconds. In time, the candidate's flows are compared with what they
    /// did under the incumbent, and otherwise with the incumbent's flows at the same time.
    fn gross_harm<'a>(
        &self,
        live: impl Iterator<Item = (Arm, &'a CanaryFlow, &'a WindowRecord)>,
        now_ns: u64,
    ) -> Option<Breach> {
        let is_by_time = matches!(self.units, Units::Blocks(_));
        let (mut candidate, mut reference) = (Measured::default(), Measured::default());
        let (mut collapsed, mut compared) = (0, 0);
        // Throughputs, by arm.
        let mut rates = [Vec::new(), Vec::new()];
        for (arm, flow, last) in live {
            let waits_ns = flow.waits_ns(last, now_ns).min(LONGEST_WAIT_NS);
            let recent = flow.recent.sum(now_ns) + Measured::silence(waits_ns);
            if recent.ns < GROSS_NS {
                continue;
            }
            match arm {
                Arm::Candidate => candidate += recent,
                Arm::Incumbent if !is_by_time => reference += recent,
                Arm::Incumbent => continue,
            }
            if !is_by_time {
                rates[arm as usize].push(recent.throughput_mbps());
            } else if flow.usual.ns >= GROSS_NS {
                reference += flow.usual;
                compared += 1;
                let least = COLLAPSED * flow.usual.throughput_mbps();
                collapsed += usize::from(recent.throughput_mbps() < least);
            }
        }
        let loss = [reference, candidate].map(|measured| measured.loss());
        let bytes = candidate.acked_bytes.saturating_add(candidate.lost_bytes);
        if bytes >= GROSS_BYTES && loss[1] > GROSS_LOSS.0.max(loss[0] + GROSS_LOSS.1) {
            return Some(Breach::Lossy {
                candidate: loss[1],
                incumbent: loss[0],
            });
        }
        if rates.iter().all(|rates| rates.len() >= GROSS_FLOWS) {
            // Paths differ: most of the candidate's are below a tenth of most of the incumbent's.
            let [incumbents, candidates] = &mut rates;
            incumbents.sort_unstable_by(f64::total_cmp);
            let least = COLLAPSED * incumbents[incumbents.len() / 4];
            compared = candidates.len();
            collapsed = candidates.iter().filter(|rate| **rate < least).count();
        }
        (2 * collapsed > compared).then_some(Breach::Collapsed {
            flows: collapsed as u64,
            of: compared as u64,
        })
    }

    /// The arms by each metric: of the flows that the candidate has, and of their neighbours, if
    /// there are any.
    fn compare(&self, now_ns: u64) -> (Vec<Comparison>, Vec<Comparison>) {
        let [own, neighbours] = self.samples(now_ns);
        let compare = |samples: PerMetric<Sample>| -> Vec<Comparison> {
            let pairs = Metric::ALL.into_iter().zip(samples);
            pairs
                .map(|(metric, sample)| {
                    let tolerance = self.rails.tolerance(metric, &self.objective);
                    sample.compare(metric, tolerance, self.rails.units)
                })
                .collect()
        };
        let has_neighbours = neighbours[0].units() > 0;
        let neighbours = if has_neighbours {
            compare(neighbours)
        } else {
            Vec::new()
        };
        (compare(own), neighbours)
    }

    /// The units that have ended, by metric: of the flows that the candidate has, and of their
    /// neighbours.
    fn samples(&self, now_ns: u64) -> [PerMetric<Sample>; 2] {
        match &self.units {
            Units::Blocks(blocks) => {
                let ended = self.plan.block_at(now_ns.saturating_sub(self.begun_ns));
                // Pair p has the blocks 2p + 1 and 2p + 2.
                let pairs = (ended.saturating_sub(1) / 2).saturating_sub(blocks.first);
                let mut samples = blocks.closed;
                for pair in blocks.open.iter().take(pairs as usize) {
                    add_pair(&mut samples, pair, &self.rails, &self.objective);
                }
                samples
            }
            Units::Clusters(clusters) => {
                let mut own = PerMetric::<Sample>::default();
                let enough = |tally: &Tally| tally.windows >= self.rails.windows;
                for (arm, tally) in clusters.values().filter(|(_, tally)| enough(tally)) {
                    for (metric, sample) in Metric::ALL.into_iter().zip(&mut own) {
                        sample.add(metric, *arm as usize, tally);
                    }
                }
                [own, Default::default()]
            }
        }
    }
}

/// Adds a pair to the samples of the candidate's flows and of their neighbours, each if it has
/// enough windows in both blocks.
fn add_pair(
    samples: &mut [PerMetric<Sample>; 2],
    pair: &Pair,
    rails: &GuardRails,
    objective: &Objective,
) {
    for (samples, [incumbent, candidate]) in samples.iter_mut().zip(pair) {
        if incumbent.windows.min(candidate.windows) < rails.windows {
            continue;
        }
        for (metric, sample) in Metric::ALL.into_iter().zip(samples) {
            let tolerance = rails.tolerance(metric, objective);
            sample.add_pair(metric, tolerance, [incumbent, candidate]);
        }
    }
}

impl Blocks {
    /// What the flows of a group came to in a block; `None` for the first block, for those that are
    /// closed, and for those of a distant future.
    fn tally(&mut self, plan: &CanaryPlan, block: u64, group: usize) -> Option<&mut Tally> {
        let pair = block.checked_sub(1)? / 2;
        let at = usize::try_from(pair.checked_sub(self.first)?).ok()?;
        if at >= MOST_OPEN {
            return None;
        }
        if at >= self.open.len() {
            self.open.resize(at + 1, Pair::default());
        }
        Some(&mut self.open[at][group][plan.arm_of_block(block) as usize])
    }
}

/// When the blocks of a canary are.
struct Clock<'a> {
    begun_ns: u64,
    plan: &'a CanaryPlan,
}

impl Clock<'_> {
    /// The block that a time is in.
    fn block(&self, ns: u64) -> u64 {
        self.plan.block_at(ns.saturating_sub(self.begun_ns))
    }

    /// The time at which a block begins, ns.
    fn begin_ns(&self, block: u64) -> u64 {
        self.begun_ns + self.plan.begin_ns(block)
    }

    /// The part of a block that is counted.
    fn counted(&self, block: u64) -> std::ops::Range<u64> {
        self.begin_ns(block) + self.plan.washout_ns()..self.begin_ns(block + 1)
    }
}

impl CanaryFlow {
    /// Its group in a pair of blocks.
    fn group(&self) -> usize {
        usize::from(!self.is_treated)
    }

    /// How long the flow has waited for an ACK since its newest window, ns: 0 unless data were on
    /// their way after every ACK of that window.
    fn waits_ns(&self, last: &WindowRecord, now_ns: u64) -> u64 {
        let in_flight = last.features.min[Feature::InFlight as usize];
        if last.acks == 0 || in_flight == 0 || last.is_application_limited() {
            return 0;
        }
        let since_ns = last.header.time_ns.max(self.since_ns);
        now_ns.saturating_sub(since_ns)
    }
}

/// The results of a canary so far.
#[derive(Clone, Debug, PartialEq)]
pub struct CanaryReport {
    /// The candidate's share, and how it is assigned.
    pub plan: CanaryPlan,
    /// Units that are needed before the arms are compared.
    pub units_needed: u64,
    /// What all metrics say together: worse if one is, and not worse if none is.
    pub finding: Finding,
    /// The arms by each metric.
    pub metrics: Vec<Comparison>,
    /// The flows that the incumbent has in all blocks, in the candidate's blocks against the
    /// others; empty where there are none.
    pub neighbours: Vec<Comparison>,
    /// How the throughputs of the live flows have changed since block 0; `None` where units are not
    /// blocks of time.
    pub shift: Option<Shift>,
    /// Counts of the incumbent's arm.
    pub incumbent: ArmReport,
    /// Counts of the candidate's arm.
    pub candidate: ArmReport,
}

/// Counts of one arm of a canary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmReport {
    /// Flows that the arm has had for long enough to count.
    pub flows: u64,
    /// Decisions published for flows that take part.
    pub decisions: u64,
    /// Answers of the policy that were NaN or infinite.
    pub answers_invalid: u64,
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
    /// Most of what the candidate's flows sent in the last seconds was lost.
    Lossy {
        /// The lost part of the bytes of the candidate's flows.
        candidate: f64,
        /// The lost part of the incumbent's.
        incumbent: f64,
    },
    /// The throughput of most of the candidate's flows has collapsed in the last seconds.
    Collapsed {
        /// Number of flows below a tenth of what is usual.
        flows: u64,
        /// Number of flows that were compared.
        of: u64,
    },
    /// A metric of the candidate's flows is worse than tolerated.
    Worse(Comparison),
    /// A metric of the incumbent's flows is worse than tolerated in the candidate's blocks.
    Neighbours(Comparison),
    /// The candidate's flows have taken throughput from their neighbours, and keep it.
    Taken(Shift),
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
            Self::Lossy {
                candidate,
                incumbent,
            } => write!(
                f,
                "its flows lost {:.0} % of their bytes in the last seconds, against {:.0} % under \
                 the current policy",
                100.0 * candidate,
                100.0 * incumbent,
            ),
            Self::Collapsed { flows, of } => write!(
                f,
                "the throughput of {flows} of its {of} flows is below a tenth of what is usual"
            ),
            Self::Worse(found) => write!(f, "{found}, over {} units", found.units),
            Self::Neighbours(found) => write!(
                f,
                "its neighbours, flows of the current policy beside its own, have {found}, over \
                 {} units",
                found.units
            ),
            Self::Taken(shift) => {
                write!(f, "it takes from its neighbours, in all blocks: {shift}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
