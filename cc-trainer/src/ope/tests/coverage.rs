//! How often intervals contain the truth in worlds with what recordings of networks have: flows
//! that share a queue, decisions that stay in force for different times, missing rows, decisions
//! that take effect late, and a candidate with a memory.
//!
//! The truth is what a candidate earns on one flow when it takes that flow over at the beginning of
//! a sub-trajectory, while the flows beside it go on as recorded. It is measured by doing so, from
//! copies of the world at the beginnings of the sub-trajectories of many more clusters.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use rayon::prelude::*;

use super::super::*;

const LEVELS: usize = 4;
const ACTIONS: usize = 3;
const HORIZON: usize = 4;
/// Packets that the queue holds.
const QUEUE: f64 = 6.0;
/// Length of a tick, s.
const TICK: f64 = 0.1;
/// Number of decisions for which a flow is recorded, and of ticks where the clock ends it.
const DECISIONS: usize = 36;
const TICKS: usize = 48;
/// Discount γ of rewards over a second.
const DISCOUNT: f64 = 0.6;

/// What a world has beside queues that the flows of a cluster share.
#[derive(Clone, Copy, Default)]
struct World {
    /// Number of flows that share a queue.
    flows: usize,
    /// A flow may fall silent for 2 to 6 ticks while the queue is long. No decision is made
    /// meanwhile.
    silence: bool,
    /// Decisions are lost on their way to the disk, and with them those before whose outcome is
    /// then unknown and those after whose observation is.
    missing: bool,
    /// A decision may take effect a tick late.
    late: bool,
    /// The candidate decides by its memory of the queue instead of by the queue.
    recurrent: bool,
    /// Recordings end after a time instead of a number of decisions, which cuts the sub-trajectory
    /// at the end of a flow off, the more often the longer it takes. The truth is that of the
    /// sub-trajectories that begin more than this many seconds before.
    cut: Option<f64>,
    /// The recordings do not tell when the clock ended them.
    unknown_end: bool,
}

/// The flows of a cluster and the queue that they share.
#[derive(Clone)]
struct Bottleneck {
    /// Mean capacity, packets a tick, and the deviation from it.
    capacity: f64,
    deviation: f64,
    /// What every flow of the cluster earns beside what its decisions earn, a second.
    luck: f64,
    queue: f64,
    senders: Vec<Sender>,
}

#[derive(Clone)]
struct Sender {
    /// Packets a tick, and the level that a late decision has set.
    level: usize,
    next: Option<usize>,
    /// Number of further ticks without a decision.
    silent: u32,
    /// The candidate's memory: an exponentially weighted mean of the queue.
    memory: f64,
}

impl Bottleneck {
    fn new(world: &World, random: &mut StdRng) -> Self {
        let sender = |level| Sender {
            level,
            next: None,
            silent: 0,
            memory: 0.0,
        };
        Self {
            capacity: random.random_range(1.2..3.0) * world.flows as f64,
            deviation: 0.0,
            luck: random.random_range(-2.0..2.0),
            queue: 0.0,
            senders: (0..world.flows)
                .map(|_| sender(random.random_range(1..=LEVELS)))
                .collect(),
        }
    }

    /// Makes the queue part of a flow's memory.
    fn observe(&mut self, sender: usize) {
        let memory = &mut self.senders[sender].memory;
        *memory = 0.7 * *memory + 0.3 * self.queue;
    }

    /// Probabilities of one level less, the same, and one more, of a policy that answers to `queue`
    /// with this strength.
    fn shares(queue: f64, strength: f64) -> [f64; ACTIONS] {
        let weights = [
            (strength * queue).exp(),
            1.3,
            (1.0 - strength * queue).exp(),
        ];
        let sum: f64 = weights.iter().sum();
        weights.map(|weight| weight / sum)
    }

    fn behaviour(&self) -> [f64; ACTIONS] {
        Self::shares(self.queue, 0.15)
    }

    fn candidate(&self, world: &World, sender: usize) -> [f64; ACTIONS] {
        let queue = match world.recurrent {
            true => self.senders[sender].memory,
            false => self.queue,
        };
        Self::shares(queue, 0.4)
    }

    fn features(&self, world: &World, sender: usize) -> Vec<f32> {
        let level = self.senders[sender].level as f64 / LEVELS as f64;
        let queue = self.queue / QUEUE;
        let mut features = vec![1.0, level, queue, queue * queue, level * queue];
        if world.recurrent {
            features.push(self.senders[sender].memory / QUEUE);
        }
        features.into_iter().map(|feature| feature as f32).collect()
    }

    fn act(&mut self, world: &World, sender: usize, action: usize, random: &mut StdRng) {
        let sender = &mut self.senders[sender];
        let level = (sender.level + action).saturating_sub(1).clamp(1, LEVELS);
        match world.late && random.random_bool(0.25) {
            true => sender.next = Some(level),
            false => sender.level = level,
        }
    }

    /// Passes a tick. Returns what each flow earns in it, a second.
    fn pass(&mut self, world: &World, random: &mut StdRng) -> Vec<f64> {
        self.deviation = 0.8 * self.deviation + random.random_range(-1.0..1.0);
        let capacity = (self.capacity + self.deviation).max(1.0);
        let sent = self.senders.iter().map(|sender| match sender.silent {
            0 => sender.level as f64,
            _ => 0.2,
        });
        let sent: Vec<f64> = sent.collect();
        let total: f64 = sent.iter().sum();
        self.queue = (self.queue + total - capacity).clamp(0.0, QUEUE);
        let carried = (capacity / total).min(1.0);
        for sender in &mut self.senders {
            sender.level = sender.next.take().unwrap_or(sender.level);
            let full = self.queue > 0.7 * QUEUE;
            sender.silent = match sender.silent {
                0 if world.silence && full && random.random_bool(0.25) => {
                    random.random_range(2..=6)
                }
                silent => silent.saturating_sub(1),
            };
        }
        let cost = 0.4 * self.queue;
        let earned = sent.iter().map(|sent| sent * carried - cost + self.luck);
        earned.collect()
    }
}

/// A flow while it is recorded.
#[derive(Default)]
struct Recording {
    /// The decisions of the current part, and the one in force.
    steps: Vec<OpeStep>,
    open: Option<OpeStep>,
    /// Number of decisions until one is recorded again.
    blank: u32,
    /// Number of decisions made; none is recorded after [`DECISIONS`] of them.
    made: usize,
    /// Number of the tick in which the current part began.
    began: usize,
    /// The world at the beginnings of the part's sub-trajectories, and the numbers of the ticks.
    starts: Vec<(usize, Bottleneck)>,
}

/// Σ Γ r and Σ Γ s over sub-trajectories, of the candidate and of the recorded policy.
#[derive(Clone, Copy, Default)]
struct Truth {
    candidate: [f64; 2],
    recorded: [f64; 2],
}

impl Truth {
    fn add(self, other: Self) -> Self {
        let sum = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
        Self {
            candidate: sum(self.candidate, other.candidate),
            recorded: sum(self.recorded, other.recorded),
        }
    }

    fn candidate(&self) -> f64 {
        self.candidate[0] / self.candidate[1]
    }

    fn recorded(&self) -> f64 {
        self.recorded[0] / self.recorded[1]
    }

    fn difference(&self) -> f64 {
        self.candidate() - self.recorded()
    }
}

/// Records the flows of one cluster. Measures the truth as well if asked to.
fn record(world: &World, cluster: u64, measure: bool) -> (Vec<OpeFlow>, Truth) {
    let mut random = StdRng::seed_from_u64(cc_sim::seed::output(12, cluster));
    let mut place = Bottleneck::new(world, &mut random);
    let mut recordings: Vec<Recording> = (0..world.flows).map(|_| Recording::default()).collect();
    let (mut flows, mut truth) = (Vec::new(), Truth::default());
    let seconds_left = |tick: usize| (TICKS as f64 - tick as f64) * TICK;
    let mut end = |recording: &mut Recording, flow: usize, by_clock: bool, random: &mut StdRng| {
        let steps = std::mem::take(&mut recording.steps);
        let starts = std::mem::take(&mut recording.starts);
        for (own, (tick, start)) in steps.chunks_exact(HORIZON).zip(starts) {
            if world.cut.is_some_and(|near| seconds_left(tick) <= near) {
                continue;
            }
            truth = truth.add(Truth {
                candidate: taken_over(world, start, flow, random),
                recorded: discounted(own),
            });
        }
        if !steps.is_empty() {
            flows.push(OpeFlow {
                id: cluster * 100 + flow as u64,
                cluster,
                steps,
                ended: false,
                end: (world.cut.is_some() && !world.unknown_end).then(|| RecordingEnd {
                    after_s: seconds_left(recording.began),
                    reached: by_clock,
                }),
            });
        }
    };
    for tick in 0.. {
        let is_over = |recording: &Recording| recording.made > DECISIONS;
        let ends = match world.cut {
            Some(_) => tick == TICKS,
            None => recordings.iter().all(is_over),
        };
        if ends {
            break;
        }
        let asked: Vec<usize> = (0..world.flows)
            .filter(|&flow| place.senders[flow].silent == 0)
            .collect();
        for &flow in &asked {
            let recording = &mut recordings[flow];
            recording.steps.extend(recording.open.take());
            recording.made += 1;
            if world.cut.is_none() && is_over(recording) {
                continue;
            }
            if world.missing && recording.blank == 0 && random.random_bool(0.03) {
                recording.steps.pop();
                end(recording, flow, false, &mut random);
                recording.blank = 4;
            }
            recording.blank = recording.blank.saturating_sub(1);
            if recording.blank == 0 && recording.steps.is_empty() {
                // The memory is replayed from the beginning of each part.
                place.senders[flow].memory = 0.0;
            }
            if measure && recording.blank == 0 && recording.steps.len().is_multiple_of(HORIZON) {
                recording.starts.push((tick, place.clone()));
            }
        }
        for &flow in &asked {
            place.observe(flow);
        }
        let decided = place.clone();
        for &flow in &asked {
            let behaviour = decided.behaviour();
            let action = draw(&behaviour, &mut random);
            let recording = &mut recordings[flow];
            if recording.blank == 0 && (world.cut.is_some() || !is_over(recording)) {
                if recording.steps.is_empty() {
                    recording.began = tick;
                }
                recording.open = Some(OpeStep {
                    features: decided.features(world, flow),
                    action,
                    behaviour: behaviour[action],
                    candidate: decided.candidate(world, flow).to_vec(),
                    rewards: vec![0.0],
                    seconds: 0.0,
                });
            }
            place.act(world, flow, action, &mut random);
        }
        let earned = place.pass(world, &mut random);
        for (recording, earned) in recordings.iter_mut().zip(earned) {
            if let Some(open) = &mut recording.open {
                open.rewards[0] += earned * TICK;
                open.seconds += TICK;
            }
        }
    }
    for (flow, recording) in recordings.iter_mut().enumerate() {
        end(recording, flow, true, &mut random);
    }
    (flows, truth)
}

/// Returns Σ Γ r and Σ Γ s of recorded steps.
fn discounted(steps: &[OpeStep]) -> [f64; 2] {
    let (mut sums, mut discount) = ([0.0; 2], 1.0);
    for step in steps {
        sums[0] += discount * step.rewards[0];
        sums[1] += discount * step.seconds;
        discount *= DISCOUNT.powf(step.seconds);
    }
    sums
}

/// Lets the candidate take over a flow for H decisions. Returns Σ Γ r and Σ Γ s of these.
fn taken_over(world: &World, mut place: Bottleneck, own: usize, random: &mut StdRng) -> [f64; 2] {
    let mut steps: Vec<OpeStep> = Vec::new();
    loop {
        let asked: Vec<usize> = (0..world.flows)
            .filter(|&flow| place.senders[flow].silent == 0)
            .collect();
        if asked.contains(&own) {
            if steps.len() == HORIZON {
                return discounted(&steps);
            }
            steps.push(OpeStep {
                features: Vec::new(),
                action: 0,
                behaviour: 1.0,
                candidate: Vec::new(),
                rewards: vec![0.0],
                seconds: 0.0,
            });
        }
        for &flow in &asked {
            place.observe(flow);
        }
        let decided = place.clone();
        for &flow in &asked {
            let shares = match flow == own {
                true => decided.candidate(world, flow),
                false => decided.behaviour(),
            };
            let action = draw(&shares, random);
            place.act(world, flow, action, random);
        }
        let earned = place.pass(world, random)[own];
        if let Some(step) = steps.last_mut() {
            step.rewards[0] += earned * TICK;
            step.seconds += TICK;
        }
    }
}

fn draw(shares: &[f64; ACTIONS], random: &mut StdRng) -> usize {
    super::draw(shares, random).unwrap_or(ACTIONS - 1)
}

fn truth(world: &World, clusters: u64) -> Truth {
    (0..clusters)
        .into_par_iter()
        .map(|cluster| record(world, 1_000_000_000 + cluster, true).1)
        .reduce(Truth::default, Truth::add)
}

fn settings() -> OpeSettings {
    OpeSettings {
        horizon: HORIZON,
        per: Per::Second,
        discount: DISCOUNT,
        resamples: 300,
        ..OpeSettings::default()
    }
}

/// Records `clusters` clusters that no other repetition has.
fn recorded(world: &World, clusters: u64, repetition: u64) -> Vec<OpeFlow> {
    let own = (0..clusters).map(|cluster| repetition * 1_000 + cluster);
    own.flat_map(|cluster| record(world, cluster, false).0)
        .collect()
}

/// How often intervals contained the truth.
#[derive(Clone, Copy, Debug, Default)]
struct Coverage {
    /// Number of repetitions in which MAGIC's estimate was not refused.
    concluded: usize,
    /// Of these, number whose interval contained the truth, of the difference and of the candidate.
    difference: usize,
    candidate: usize,
    /// The same of all repetitions for the weighted doubly robust estimate of the difference, and
    /// for the recorded policy.
    weighted: usize,
    recorded: usize,
    /// The recorded policy's when each flow is a cluster, and the sum of the quotients of the two
    /// intervals' widths.
    by_flow: usize,
    widths: f64,
    /// Sum of the direct method's errors of the difference.
    direct_error: f64,
    /// Sums of what is left out near the ends of recordings: seconds, and a share.
    within_s: f64,
    left_out: f64,
}

impl Coverage {
    fn add(self, other: Self) -> Self {
        Self {
            concluded: self.concluded + other.concluded,
            difference: self.difference + other.difference,
            candidate: self.candidate + other.candidate,
            weighted: self.weighted + other.weighted,
            recorded: self.recorded + other.recorded,
            by_flow: self.by_flow + other.by_flow,
            widths: self.widths + other.widths,
            direct_error: self.direct_error + other.direct_error,
            within_s: self.within_s + other.within_s,
            left_out: self.left_out + other.left_out,
        }
    }

    fn of(world: &World, clusters: u64, repetitions: u64, truth: &Truth) -> Self {
        let once = |repetition| {
            let mut flows = recorded(world, clusters, repetition);
            let mut whole = evaluate(&flows, &settings()).expect("valid");
            let term = whole.terms.remove(0);
            for flow in &mut flows {
                flow.cluster = flow.id;
            }
            let by_flow = evaluate(&flows, &settings())
                .expect("valid")
                .terms
                .remove(0);
            let [_, _, direct, _, _, weighted, magic] = &term.estimates[..] else {
                panic!("seven estimates")
            };
            let concluded = magic.refusal.is_none();
            let count = |interval: &Interval, truth| usize::from(interval.contains(truth));
            let width = |interval: &Interval| interval.high - interval.low;
            Self {
                concluded: usize::from(concluded),
                difference: usize::from(concluded) * count(&magic.difference, truth.difference()),
                candidate: usize::from(concluded) * count(&magic.candidate, truth.candidate()),
                weighted: count(&weighted.difference, truth.difference()),
                recorded: count(&term.recorded, truth.recorded()),
                by_flow: count(&by_flow.recorded, truth.recorded()),
                widths: width(&term.recorded) / width(&by_flow.recorded),
                direct_error: direct.difference.value - truth.difference(),
                within_s: whole.left_out_within_s,
                left_out: whole.left_out as f64 / (whole.left_out + whole.sub_trajectories) as f64,
            }
        };
        (0..repetitions)
            .into_par_iter()
            .map(once)
            .reduce(Self::default, Self::add)
    }
}

/// Number of clusters that the truth is measured on where it must be known well.
const TRUTH: u64 = 12_000;

/// The least number of `count` intervals of 95 % that contain the truth, within three standard
/// deviations of the nominal number, as there are more than thirty such numbers.
fn least(count: usize) -> usize {
    let count = count as f64;
    (0.95 * count - 3.0 * (0.95 * 0.05 * count).sqrt()) as usize
}

/// A world with all of these at once.
const ALL: World = World {
    flows: 3,
    silence: true,
    missing: true,
    late: true,
    recurrent: true,
    cut: None,
    unknown_end: false,
};

/// Checks one world over 200 repetitions, and prints a line of the table in docs/retraining.md.
fn study(name: &str, world: World) {
    const REPETITIONS: usize = 200;
    let world = World { flows: 3, ..world };
    let truth = truth(&world, TRUTH);
    let found = Coverage::of(&world, 60, REPETITIONS as u64, &truth);
    println!(
        "{name}: true difference {:.3}; concluded {}; MAGIC's difference {}, candidate {}; \
         weighted doubly robust {}; recorded {}, by flow {}; error of the direct method {:.4}",
        truth.difference(),
        found.concluded,
        found.difference,
        found.candidate,
        found.weighted,
        found.recorded,
        found.by_flow,
        found.direct_error / REPETITIONS as f64,
    );
    assert!(found.concluded > REPETITIONS / 2, "{found:?}");
    assert!(found.difference >= least(found.concluded), "{found:?}");
    assert!(found.candidate >= least(found.concluded), "{found:?}");
    assert!(found.weighted >= least(REPETITIONS), "{found:?}");
    assert!(found.recorded >= least(REPETITIONS), "{found:?}");
    assert!(found.by_flow < least(REPETITIONS), "{found:?}");
}

#[test]
fn clusters_of_flows_that_share_a_queue_have_the_intervals_that_they_claim() {
    const REPETITIONS: usize = 30;
    let truth = truth(&ALL, 1_000);
    let found = Coverage::of(&ALL, 40, REPETITIONS as u64, &truth);
    println!("{found:?}");
    // A nominal number of 28.5 with a standard deviation of 1.2.
    for count in [found.weighted, found.recorded] {
        assert!(count >= 25, "{found:?}");
    }
    assert!(found.difference + 4 >= found.concluded, "{found:?}");
    // Intervals over flows, as if these did not share a queue, are too narrow.
    assert!(found.by_flow <= found.recorded, "{found:?}");
    assert!(found.widths > 1.2 * REPETITIONS as f64, "{found:?}");
}

#[test]
#[ignore = "takes a minute"]
fn coverage_with_shared_queues() {
    study("shared queues", World::default());
}

#[test]
#[ignore = "takes a minute"]
fn coverage_with_silence() {
    let world = World {
        silence: true,
        ..World::default()
    };
    study("variable length", world);
}

#[test]
#[ignore = "takes a minute"]
fn coverage_with_missing_rows() {
    let world = World {
        missing: true,
        ..World::default()
    };
    study("missing rows", world);
}

#[test]
#[ignore = "takes a minute"]
fn coverage_with_late_decisions() {
    let world = World {
        late: true,
        ..World::default()
    };
    study("late decisions", world);
}

#[test]
#[ignore = "takes a minute"]
fn coverage_of_a_recurrent_candidate() {
    let world = World {
        recurrent: true,
        ..World::default()
    };
    study("recurrent candidate", world);
}

#[test]
#[ignore = "takes a minute"]
fn coverage_with_everything_at_once() {
    study("everything", ALL);
}

/// Where recordings of the worst world are cut off, in the mean over repetitions, s.
const NEAR: f64 = 1.0;

/// The end of the recordings is allowed for, and has to be.
#[test]
#[ignore = "takes two minutes"]
fn coverage_where_a_clock_ends_short_recordings() {
    let world = World {
        cut: Some(NEAR),
        ..ALL
    };
    let found = Coverage::of(&world, 60, 200, &truth(&world, TRUTH));
    println!("recordings of {TICKS} ticks: {found:?}");
    let neglected = World {
        cut: Some(0.0),
        unknown_end: true,
        ..ALL
    };
    let missed = Coverage::of(&neglected, 60, 200, &truth(&neglected, TRUTH));
    println!("the same, when they ended being unknown: {missed:?}");
    assert!(found.concluded > 100, "{found:?}");
    assert!(found.difference >= least(found.concluded), "{found:?}");
    assert!(found.candidate >= least(found.concluded), "{found:?}");
    assert!(found.weighted >= least(200), "{found:?}");
    assert!(found.recorded >= least(200), "{found:?}");
    assert!(missed.weighted < least(200), "{missed:?}");
}
