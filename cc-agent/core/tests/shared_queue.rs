//! Canaries over a shared queue, where comparing flows side by side has the wrong sign.
//!
//! The queue is a fluid model: every flow keeps its cwnd on the way, what exceeds the path's
//! product of rate and delay waits in the queue, what exceeds the queue is lost, and each flow has
//! the part of the rate that it has of the cwnds. The agent is the real one, in virtual time.

use std::time::Duration;

use bytemuck::Zeroable;
use cc_core::{
    ServedPolicy,
    agent::Agent,
    canary::{Arm, Breach, CanaryBy, CanaryPlan, Finding, GuardRails, Metric},
    interface::Interface,
    objective::{Measured, Objective},
    policy::Choice,
};
use cc_ebpf::{FEATURES, Feature, Header, Identity, OpenedRecord, Record, WindowRecord};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const MSS: u32 = 1_448;
const TICK_NS: u64 = 100_000_000;

/// A bottleneck that its flows share.
#[derive(Clone, Copy)]
struct Bottleneck {
    bytes_per_second: f64,
    rtt_s: f64,
    buffer_bytes: f64,
}

/// 40 Mbit/s, 40 ms, and a queue of 60 ms.
const ORDINARY: Bottleneck = Bottleneck {
    bytes_per_second: 5e6,
    rtt_s: 0.04,
    buffer_bytes: 300e3,
};

/// 400 Mbit/s and 5 ms: a few ms of queue decide over the shares.
const NEAR: Bottleneck = Bottleneck {
    bytes_per_second: 50e6,
    rtt_s: 0.005,
    buffer_bytes: 5e6,
};

impl Bottleneck {
    /// The windows of 100 ms from `start_ns` of flows with these cwnds, in segments, while the
    /// bottleneck has this part of its rate.
    fn windows(&self, start_ns: u64, cwnds: &[u32], part: f64) -> Vec<WindowRecord> {
        let rate = part * self.bytes_per_second;
        let bytes = |cwnd: u32| f64::from(cwnd * MSS);
        let sum: f64 = cwnds.iter().map(|&cwnd| bytes(cwnd)).sum();
        let waiting = (sum - rate * self.rtt_s).max(0.0);
        let queue = waiting.min(self.buffer_bytes);
        let lost = (waiting - queue) / sum;
        let delay_s = queue / rate;
        let window = |&cwnd: &u32| {
            let sent = bytes(cwnd) / (self.rtt_s + delay_s) * 0.1;
            let mut features = [0; FEATURES];
            features[Feature::RttMin as usize] = (self.rtt_s * 1e6) as u32;
            features[Feature::Delay as usize] = (delay_s * 1e6) as u32;
            features[Feature::InFlight as usize] = cwnd * MSS;
            features[Feature::Acked as usize] = (sent * (1.0 - lost)) as u32;
            features[Feature::Lost as usize] = (sent * lost) as u32;
            let mut window = WindowRecord::zeroed();
            window.header = Header::of::<WindowRecord>(0, 1, start_ns + TICK_NS);
            (window.start_ns, window.cwnd, window.mss) = (start_ns, cwnd, MSS);
            window.add(&features);
            window
        };
        cwnds.iter().map(window).collect()
    }
}

/// The part of its rate that a bottleneck has: it wanders around one.
struct Weather(StdRng, f64);

impl Weather {
    fn next(&mut self) -> f64 {
        self.1 += 0.05 * (1.0 - self.1) + self.0.random_range(-0.03..0.03);
        self.1.clamp(0.7, 1.3)
    }
}

/// Policies that keep a constant cwnd, in segments: the incumbent's and the candidate's.
#[derive(Clone, Copy)]
struct Cwnds {
    incumbent: u32,
    candidate: u32,
}

/// How a canary ended, and how soon.
#[derive(Debug)]
struct End {
    breach: Option<Breach>,
    finding: Finding,
    /// Time since the candidate first decided, s.
    seconds: f64,
}

/// Runs a canary over `paths` bottlenecks with `flows` flows each until it concludes, or for
/// `seconds`.
fn canary(
    bottleneck: Bottleneck,
    [paths, flows]: [usize; 2],
    cwnds: Cwnds,
    (by, percent): (CanaryBy, f64),
    seconds: u64,
) -> End {
    let mut agent = Agent::new(Interface::default(), paths * flows);
    let candidate = ServedPolicy {
        interface: Interface::default(),
        header: None,
    };
    let plan = CanaryPlan {
        percent,
        by,
        block: Duration::from_secs(5),
        salt: 11,
    };
    agent.start_canary(candidate, plan, GuardRails::default(), 0);
    let slots = 0..(paths * flows) as u32;
    for slot in slots.clone() {
        let path = slot as usize / flows;
        let mut identity = Identity {
            family: 2,
            remote_port: slot as u16,
            mss: MSS,
            initial_cwnd: cwnds.incumbent,
            ..Identity::default()
        };
        identity.remote_addr[0] = u32::from_ne_bytes([10, 0, path as u8, 1]);
        let header = Header::of::<OpenedRecord>(slot, 1, 0);
        agent.on_record(
            0,
            &Record::Opened(OpenedRecord { header, identity }),
            |_| None,
        );
    }
    let mut weather: Vec<_> = (0..paths as u64)
        .map(|seed| Weather(StdRng::seed_from_u64(seed), 1.0))
        .collect();
    let mut decided = vec![cwnds.incumbent; paths * flows];
    let mut since = None;
    let mut end = End {
        breach: None,
        finding: Finding::Open,
        seconds: 0.0,
    };
    for tick in 0..seconds * 10 {
        let now_ns = (tick + 1) * TICK_NS;
        let mut slot = 0;
        for (cwnds, weather) in decided.chunks(flows).zip(&mut weather) {
            for mut window in bottleneck.windows(tick * TICK_NS, cwnds, weather.next()) {
                (window.header.slot, window.index) = (slot, tick as u32 + 1);
                agent.on_record(now_ns, &Record::Window(window), |_| None);
                slot += 1;
            }
        }
        agent.turn_canary(now_ns);
        for arm in [Arm::Incumbent, Arm::Candidate] {
            let batch = agent.take_batch_of(arm, usize::MAX);
            let cwnd = match arm {
                Arm::Incumbent => cwnds.incumbent,
                Arm::Candidate => cwnds.candidate,
            };
            if arm == Arm::Candidate && !batch.is_empty() {
                since.get_or_insert(now_ns);
            }
            let choices = vec![Choice::Cwnd(cwnd); batch.len()];
            agent.on_choices(now_ns, batch, &choices, |slot, decision| {
                decided[slot as usize] = decision.cwnd;
            });
        }
        end.breach = agent.breach(now_ns);
        end.finding = agent.canary(now_ns).expect("it runs").finding;
        end.seconds = (now_ns - since.unwrap_or(now_ns)) as f64 / 1e9;
        if end.breach.is_some() || end.finding != Finding::Open {
            break;
        }
    }
    end
}

/// What a mean flow earns of the objective when all flows of the bottleneck have one of these
/// cwnds, by cwnd.
fn earns(bottleneck: Bottleneck, cwnds: &[u32], of: u32) -> f64 {
    let mut weather = Weather(StdRng::seed_from_u64(0), 1.0);
    let (mut sum, mut count) = (0.0, 0.0);
    for tick in 0..1_000 {
        let windows = bottleneck.windows(tick * TICK_NS, cwnds, weather.next());
        for window in windows.iter().filter(|window| window.cwnd == of) {
            sum += Objective::default().value(&Measured::of(window));
            count += 1.0;
        }
    }
    sum / count
}

const GREEDY: Cwnds = Cwnds {
    incumbent: 20,
    candidate: 60,
};

/// Four flows of either policy in one queue: the greedy one earns more than the other, though all
/// flows earn less than before once it has them all.
#[test]
fn flows_side_by_side_have_the_wrong_sign() {
    let Cwnds {
        incumbent,
        candidate,
    } = GREEDY;
    let mixed: Vec<u32> = [[incumbent; 4], [candidate; 4]].concat();
    let naive = earns(ORDINARY, &mixed, candidate) - earns(ORDINARY, &mixed, incumbent);
    assert!(naive > 1.0, "side by side it looks better by {naive}");
    let all = |cwnd| earns(ORDINARY, &[cwnd; 8], cwnd);
    let truth = all(candidate) - all(incumbent);
    assert!(truth < -1.0, "it is worse by {truth}");

    for percent in [100.0, 50.0] {
        let end = canary(ORDINARY, [1, 8], GREEDY, (CanaryBy::Time, percent), 1_000);
        assert_eq!(end.finding, Finding::Worse, "{percent} %: {end:?}");
    }
    // Each path is a queue of its own, with flows of one policy.
    let end = canary(ORDINARY, [40, 8], GREEDY, (CanaryBy::Path, 50.0), 100);
    assert_eq!(end.finding, Finding::Worse, "{end:?}");
}

/// The candidate's own flows are better off in every metric that has a rail for them.
#[test]
fn harm_to_neighbours_alone_is_found() {
    let cwnds = Cwnds {
        incumbent: 50,
        candidate: 100,
    };
    let end = canary(NEAR, [1, 6], cwnds, (CanaryBy::Time, 30.0), 1_000);
    let Some(Breach::Neighbours(found)) = end.breach else {
        panic!("{end:?}");
    };
    assert!(matches!(
        found.metric,
        Metric::Throughput | Metric::Objective
    ));
    assert!(found.candidate < found.tolerated, "{found}");
}

#[test]
fn a_policy_that_does_the_same_passes() {
    let same = Cwnds {
        incumbent: 20,
        candidate: 20,
    };
    for (shape, way) in [
        ([1, 8], (CanaryBy::Time, 50.0)),
        ([1, 8], (CanaryBy::Time, 100.0)),
        ([60, 2], (CanaryBy::Path, 50.0)),
    ] {
        let end = canary(ORDINARY, shape, same, way, 1_500);
        assert_eq!(end.finding, Finding::NotWorse, "{way:?}: {end:?}");
        assert_eq!(end.breach, None);
    }
}

/// A policy that keeps a shorter queue at the same throughput is better where it has all flows of a
/// queue, and loses its share of it to the greedy incumbent where it has not.
#[test]
fn a_policy_that_holds_back_passes_where_it_has_the_whole_queue() {
    let polite = Cwnds {
        incumbent: 40,
        candidate: 22,
    };
    for (shape, way) in [
        ([1, 8], (CanaryBy::Time, 100.0)),
        ([60, 8], (CanaryBy::Path, 50.0)),
    ] {
        let end = canary(ORDINARY, shape, polite, way, 1_500);
        assert_eq!(end.finding, Finding::NotWorse, "{way:?}: {end:?}");
    }
    let end = canary(ORDINARY, [1, 8], polite, (CanaryBy::Time, 50.0), 1_500);
    assert!(matches!(end.breach, Some(Breach::Worse(_))), "{end:?}");
}

#[test]
fn gross_harm_ends_a_canary_within_seconds() {
    let with = |candidate| Cwnds {
        incumbent: 20,
        candidate,
    };
    for percent in [50.0, 100.0] {
        let way = (CanaryBy::Time, percent);
        let end = canary(ORDINARY, [1, 8], with(1_000), way, 100);
        let is_lossy = matches!(end.breach, Some(Breach::Lossy { .. }));
        assert!(is_lossy && end.seconds <= 5.0, "{percent} %: {end:?}");
        let end = canary(ORDINARY, [1, 8], with(1), way, 100);
        let collapsed = matches!(end.breach, Some(Breach::Collapsed { .. }));
        assert!(collapsed && end.seconds <= 5.0, "{percent} %: {end:?}");
    }
    let end = canary(ORDINARY, [60, 2], with(2_000), (CanaryBy::Path, 50.0), 100);
    let is_lossy = matches!(end.breach, Some(Breach::Lossy { .. }));
    assert!(is_lossy && end.seconds <= 5.0, "{end:?}");
}
