//! Canaries, fed with windows made by the tests.

use bytemuck::Zeroable;
use cc_ebpf::{FEATURES, Header};

use super::*;
use crate::interface::Interface;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

fn plan(by: CanaryBy, percent: f64) -> CanaryPlan {
    CanaryPlan {
        percent,
        by,
        block: Duration::from_secs(10),
        salt: 1,
    }
}

fn canary(plan: CanaryPlan) -> Canary {
    let candidate = ServedPolicy {
        interface: Interface::default(),
        header: None,
    };
    let rails = GuardRails {
        units: 4,
        ..GuardRails::default()
    };
    Canary::new(candidate, plan, rails, Objective::default(), 0)
}

/// The report without live flows.
fn report(canary: &Canary, now_ns: u64) -> CanaryReport {
    canary.report([].into_iter(), now_ns)
}

fn identity(path: u8) -> Identity {
    let mut identity = Identity {
        family: 2,
        remote_port: 443,
        ..Identity::default()
    };
    identity.remote_addr[0] = u32::from_ne_bytes([10, 0, path, 1]);
    identity
}

/// A window of 100 ms from `start_ns` with these bytes acknowledged and lost, and data on their
/// way.
fn window(start_ns: u64, acked: u32, lost: u32) -> WindowRecord {
    let mut window = WindowRecord::zeroed();
    window.header = Header::of::<WindowRecord>(0, 1, start_ns + 100 * MS);
    (window.start_ns, window.index) = (start_ns, (start_ns / (100 * MS)) as u32);
    let mut features = [0; FEATURES];
    features[Feature::Acked as usize] = acked;
    features[Feature::Lost as usize] = lost;
    features[Feature::InFlight as usize] = 14_480;
    window.add(&features);
    window
}

/// The block of this arm that comes first after the first one, and its beginning.
fn first_block(plan: &CanaryPlan, arm: Arm) -> (u64, u64) {
    let block = (1..).find(|&block| plan.arm_of_block(block) == arm);
    let block = block.expect("one of two");
    (block, block * plan.block_ns())
}

/// Feeds windows of 100 ms to a flow from one time to another, and returns the last.
fn feed(
    canary: &mut Canary,
    flow: &mut CanaryFlow,
    times: std::ops::Range<u64>,
    of: impl Fn(u64) -> WindowRecord,
) -> WindowRecord {
    let mut last = None::<WindowRecord>;
    for start_ns in times.step_by(100 * MS as usize) {
        if canary.turn(start_ns) {
            canary.moved(flow, last.as_ref(), start_ns);
        }
        let window = of(start_ns);
        let measured = Measured::following(last.as_ref(), &window);
        canary.add(flow, canary.arm_of(flow), &window, &measured);
        last = Some(window);
    }
    last.expect("a window")
}

#[test]
fn answers_that_are_no_numbers_are_a_breach_at_once() {
    let mut canary = canary(plan(CanaryBy::Time, 50.0));
    canary.answered(Arm::Candidate, 75, 25);
    let breach = canary.breach([].into_iter(), 0).expect("a breach");
    assert_eq!(breach.to_string(), "25 of its 100 answers were not finite");
}

#[test]
fn a_candidate_that_is_slower_than_the_incumbent_is_a_breach() {
    // Batches of the incumbent and of the candidate: fast and slow ones.
    let judge = |batches: [(u32, u32); 2]| {
        let mut canary = canary(plan(CanaryBy::Time, 50.0));
        for (arm, (fast, slow)) in [Arm::Incumbent, Arm::Candidate].into_iter().zip(batches) {
            (0..fast).for_each(|_| canary.timed(arm, Duration::from_millis(1)));
            (0..slow).for_each(|_| canary.timed(arm, Duration::from_millis(26)));
        }
        let breach = canary.breach([].into_iter(), 0);
        breach.map(|breach| breach.to_string())
    };
    assert_eq!(judge([(100, 0), (0, 9)]), None, "too few");
    assert_eq!(judge([(100, 0), (90, 10)]), None, "tolerated");
    let found = judge([(100, 0), (80, 20)]).expect("a breach");
    let expected = "20 of its last 100 batches took longer than 25 ms; at most 10 % is tolerated";
    assert_eq!(found, expected);
    assert_eq!(judge([(70, 30), (50, 50)]), None, "the host is slow");
    // What was long ago counts for less and less.
    assert!(judge([(100, 0), (10_000, 40)]).is_some());
}

#[test]
fn the_candidate_has_its_flows_in_its_blocks_and_others_are_neighbours() {
    let plan = plan(CanaryBy::Time, 50.0);
    let mut canary = canary(plan);
    let mut flows = (0..40).map(|path| canary.join(&identity(path), 1).1);
    let treated = flows.clone().find(|flow| flow.is_treated);
    let (treated, other) = (treated.expect("half"), flows.find(|flow| !flow.is_treated));
    let other = other.expect("half");
    assert_eq!(canary.arm_of(&treated), Arm::Incumbent, "in block 0");
    for block in 1..20 {
        let former = canary.arm_of(&treated);
        let turned = canary.turn(block * plan.block_ns());
        let arm = canary.arm_of(&treated);
        assert_eq!(arm, plan.arm_of_block(block));
        assert_eq!(turned, arm != former);
        assert!(!canary.turn(block * plan.block_ns() + 1), "once a block");
        assert_eq!(canary.arm_of(&other), Arm::Incumbent);
    }
}

/// A steady flow's throughput in a block does not depend on what is left out of it.
#[test]
fn blocks_count_what_lies_in_them() {
    let plan = plan(CanaryBy::Time, 100.0);
    let mut canary = canary(plan);
    let mut flow = canary.join(&identity(1), 1).1;
    // 10 Mbit/s under the incumbent, 5 under the candidate, in six pairs.
    let of = |start_ns| {
        let acked = match plan.arm_of_block(start_ns / plan.block_ns()) {
            Arm::Incumbent => 125_000,
            Arm::Candidate => 62_500,
        };
        window(start_ns, acked, 0)
    };
    feed(&mut canary, &mut flow, 0..130 * SECOND, of);
    let found = report(&canary, 130 * SECOND);
    let throughput = found.metrics[1];
    assert_eq!(
        (throughput.metric, throughput.units),
        (Metric::Throughput, 6)
    );
    assert!((throughput.incumbent - 10.0).abs() < 1e-9);
    assert!((throughput.candidate - 5.0).abs() < 1e-9);
    assert!((throughput.tolerated - 9.0).abs() < 1e-9);
    assert_eq!(throughput.finding, Finding::Worse);
    assert!(found.neighbours.is_empty());
    assert_eq!(found.finding, Finding::Worse);
    let breach = canary.breach([].into_iter(), 130 * SECOND);
    let breach = breach.expect("half of the throughput").to_string();
    assert!(breach.starts_with("throughput 5.00 Mbit/s, against 10.00 Mbit/s; at least 9.00"));
    // Pairs of long ago are closed, and counting goes on after any pause.
    let pause = 100_000 * SECOND;
    canary.turn(pause);
    assert_eq!(report(&canary, pause).metrics, found.metrics);
    feed(&mut canary, &mut flow, pause..pause + 40 * SECOND, of);
    let later = report(&canary, pause + 40 * SECOND).metrics[1];
    assert!(later.units > 6, "{later}");
    assert!((later.candidate - 5.0).abs() < 1e-9);
}

/// A flow that stops in the candidate's block, and goes on in the next one, stopped under the
/// candidate.
#[test]
fn a_stall_counts_in_the_blocks_that_it_lies_in() {
    let plan = plan(CanaryBy::Time, 100.0);
    let mut canary = canary(plan);
    let mut flow = canary.join(&identity(1), 1).1;
    let (block, begin) = first_block(&plan, Arm::Candidate);
    let end = begin + plan.block_ns();
    let of = |start_ns| window(start_ns, 125_000, 0);
    let last = feed(&mut canary, &mut flow, 0..begin + 5 * SECOND, of);
    canary.turn(end);
    canary.moved(&mut flow, Some(&last), end);
    let Units::Blocks(blocks) = &mut canary.units else {
        panic!("blocks of time");
    };
    let tally = blocks.tally(&plan, block, 0).expect("it is open");
    // From 2 s, the end of the washout, to 5 s at 10 Mbit/s, and nothing after that.
    assert_eq!(tally.measured.acked_bytes, 30 * 125_000);
    assert_eq!(tally.measured.ns, 8 * SECOND);
}

/// The live flows that take part, as the agent lists them.
type Live = Vec<(Arm, CanaryFlow, WindowRecord)>;

fn breach_of(canary: &Canary, live: &Live, now_ns: u64) -> Option<Breach> {
    let live = live.iter().map(|(arm, flow, last)| (*arm, flow, last));
    canary.breach(live, now_ns)
}

#[test]
fn gross_harm_shows_within_seconds_of_the_candidates_block() {
    let plan = plan(CanaryBy::Time, 100.0);
    let (_, begin) = first_block(&plan, Arm::Candidate);
    // What the candidate's flow acknowledges and loses in a window.
    let judge = |acked: u32, lost: u32, later_ms: u64| {
        let mut canary = canary(plan);
        let mut flow = canary.join(&identity(1), 1).1;
        let of = |start_ns| match start_ns < begin {
            true => window(start_ns, 125_000, 0),
            false => window(start_ns, acked, lost),
        };
        let end = begin + later_ms * MS;
        let last = feed(&mut canary, &mut flow, 0..end, of);
        breach_of(&canary, &vec![(canary.arm_of(&flow), flow, last)], end)
    };
    assert_eq!(judge(125_000, 0, 4_000), None);
    assert_eq!(judge(30_000, 0, 4_000), None, "a quarter is no collapse");
    assert_eq!(judge(50_000, 75_000, 500), None, "too early to tell");
    let breach = judge(50_000, 75_000, 2_000).expect("it is lossy");
    let expected = "its flows lost 60 % of their bytes in the last seconds, against 0 % under the \
                    current policy";
    assert_eq!(breach.to_string(), expected);
    let breach = judge(10_000, 0, 2_000).expect("it has collapsed");
    let expected = "the throughput of 1 of its 1 flows is below a tenth of what is usual";
    assert_eq!(breach.to_string(), expected);
}

/// A flow without any ACK sends no window either.
#[test]
fn flows_that_fall_silent_have_collapsed_unless_nothing_was_on_its_way() {
    let plan = plan(CanaryBy::Time, 100.0);
    let (_, begin) = first_block(&plan, Arm::Candidate);
    for (in_flight, expected) in [(14_480, true), (0, false)] {
        let mut canary = canary(plan);
        let mut flow = canary.join(&identity(1), 1).1;
        let of = |start_ns| {
            let mut window = window(start_ns, 125_000, 0);
            window.features.min[Feature::InFlight as usize] = in_flight;
            window
        };
        let last = feed(&mut canary, &mut flow, 0..begin, of);
        canary.turn(begin);
        canary.moved(&mut flow, Some(&last), begin);
        let live = vec![(Arm::Candidate, flow, last)];
        assert_eq!(breach_of(&canary, &live, begin + 500 * MS), None);
        let breach = breach_of(&canary, &live, begin + 2 * SECOND);
        let collapsed = matches!(breach, Some(Breach::Collapsed { flows: 1, of: 1 }));
        assert_eq!(collapsed, expected, "{breach:?}");
    }
}

#[test]
fn by_paths_the_flows_of_one_time_are_compared() {
    let plan = plan(CanaryBy::Path, 50.0);
    let judge = |acked: [u32; 2], lost: [u32; 2]| {
        let mut canary = canary(plan);
        let mut live = Live::new();
        for path in 0..64 {
            let (arm, mut flow) = canary.join(&identity(path), 1);
            // Paths have rates that differ threefold.
            let acked = acked[arm as usize] * u32::from(1 + path % 3);
            let of = |start_ns| window(start_ns, acked, lost[arm as usize]);
            let last = feed(&mut canary, &mut flow, 0..4 * SECOND, of);
            live.push((arm, flow, last));
        }
        breach_of(&canary, &live, 4 * SECOND)
    };
    assert_eq!(judge([10_000; 2], [100; 2]), None);
    assert_eq!(judge([10_000; 2], [90_000; 2]), None, "the network's loss");
    let lossy = judge([10_000; 2], [100, 90_000]);
    assert!(matches!(lossy, Some(Breach::Lossy { .. })), "{lossy:?}");
    let collapsed = judge([10_000, 300], [0; 2]);
    let collapsed = matches!(collapsed, Some(Breach::Collapsed { .. }));
    assert!(collapsed);
    let slower = judge([10_000, 3_000], [0; 2]).expect("worse, and no collapse");
    let is_throughput = |found: &Comparison| found.metric == Metric::Throughput;
    assert!(
        matches!(&slower, Breach::Worse(found) if is_throughput(found)),
        "{slower}"
    );
}

#[test]
fn what_the_application_limits_does_not_count() {
    let mut canary = canary(plan(CanaryBy::Path, 100.0));
    let mut flow = canary.join(&identity(1), 1).1;
    let of = |start_ns| WindowRecord {
        app_limited_acks: 1,
        ..window(start_ns, 125_000, 0)
    };
    feed(&mut canary, &mut flow, 0..10 * SECOND, of);
    assert_eq!(report(&canary, 10 * SECOND).candidate.flows, 0);
    let of = |start_ns| window(start_ns, 125_000, 0);
    feed(&mut canary, &mut flow, 10 * SECOND..12 * SECOND, of);
    assert_eq!(report(&canary, 12 * SECOND).candidate.flows, 1);
}

/// Sixteen flows with equal shares of a queue in block 0. After it, those that were chosen for the
/// candidate have one throughput and their neighbours another, whichever arm has a block.
fn after_lasting_changes(plan: CanaryPlan, kbytes: [u32; 2]) -> Option<Breach> {
    let mut canary = canary(plan);
    let first_ns = plan.begin_ns(1);
    let mut live = Live::new();
    for path in 0..16 {
        let mut flow = canary.join(&identity(path), 1).1;
        let after = kbytes[flow.group()];
        // Each flow varies by some percent of its own.
        let own = 100 + u32::from(path % 5);
        let of = |start_ns| {
            let kbytes = match start_ns < first_ns {
                true => 28,
                false => after,
            };
            window(start_ns, kbytes * 10 * own, 0)
        };
        let last = feed(&mut canary, &mut flow, 0..first_ns + 8 * SECOND, of);
        live.push((canary.arm_of(&flow), flow, last));
    }
    breach_of(&canary, &live, first_ns + 8 * SECOND)
}

#[test]
fn what_is_taken_for_good_is_a_breach_though_all_blocks_are_alike() {
    for block in [2, 10] {
        let plan = CanaryPlan {
            block: Duration::from_secs(block),
            ..plan(CanaryBy::Time, 50.0)
        };
        let breach = after_lasting_changes(plan, [41, 15]).expect("a third of it is taken");
        let Breach::Taken(taken) = breach else {
            panic!("{breach}");
        };
        assert!((taken.own - 41.0 / 28.0).abs() < 1e-9, "{taken}");
        assert!((taken.neighbours - 15.0 / 28.0).abs() < 1e-9, "{taken}");
        assert_eq!(after_lasting_changes(plan, [28, 28]), None);
        assert_eq!(
            after_lasting_changes(plan, [41, 28]),
            None,
            "a gain that costs nobody"
        );
        assert_eq!(
            after_lasting_changes(plan, [10, 10]),
            None,
            "a busier network"
        );
    }
}
