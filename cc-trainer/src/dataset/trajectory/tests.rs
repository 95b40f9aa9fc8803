//! Synthetic flows, one for each way in which a decision can be in force, or not.

use bytemuck::Zeroable;
use cc_core::rows::Decided;
use cc_ebpf::{FEATURES, Feature, Header};
use proptest::prelude::*;

use super::*;
use crate::dataset::tests::interface;

const MS: u64 = 1_000_000;
const GENERATION: u32 = 7;

/// A flow with `count` windows of 100 ms, one after the other, each with a decision on it. The
/// datapath takes a decision up 2 ms into the next window. Window k, from 0, acknowledges k + 1
/// Mbit/s; before the first decision the flow starts up.
fn flow(count: usize) -> Vec<Row> {
    let mut rows: Vec<_> = (0..count).map(row).collect();
    for index in 1..count {
        in_force(&mut rows, index, index - 1, 2);
    }
    rows
}

fn row(index: usize) -> Row {
    let mut window = WindowRecord::zeroed();
    let start_ns = index as u64 * 100 * MS;
    window.header = Header::of::<WindowRecord>(0, GENERATION, start_ns + 100 * MS);
    window.start_ns = start_ns;
    window.index = index as u32 + 1;
    window.mss = 1_250;
    window.mode = Mode::Startup as u32;
    let mut features = [0; FEATURES];
    features[Feature::RttMin as usize] = 20_000;
    features[Feature::Delay as usize] = 5_000;
    features[Feature::Acked as usize] = 12_500 * (index as u32 + 1);
    window.add(&features);
    Row {
        flow: 3,
        sequence: index as u32,
        window,
        path: None,
        initial_cwnd_bytes: 12_500,
        decision: Some(Decided {
            action: Some((index % 5) as u8),
            probability: Some(0.2),
            probabilities: None,
            base_cwnd: 10,
            cwnd: 10 + index as u32,
            delay_ns: Some(MS),
        }),
        terms: Terms::default(),
        reward: 0.5,
        end: false,
        local: None,
        remote: None,
        cgroup: 0,
        cookie: 0,
        netns: 0,
    }
}

/// Lets the decision on window `of` be in force at the end of window `index`, from `into_ms` after
/// that window's start.
fn in_force(rows: &mut [Row], index: usize, of: usize, into_ms: u64) {
    let answered = rows[of].window.index;
    let window = &mut rows[index].window;
    window.mode = Mode::Decided as u32;
    window.decision = Decision {
        generation: GENERATION,
        window: answered,
        cwnd: 10,
    }
    .to_cell();
    window.decision_taken_ns = window.start_ns + into_ms * MS;
}

/// Moves all windows from `index` on by this time.
fn pause(rows: &mut [Row], index: usize, by_ms: u64) {
    for row in &mut rows[index..] {
        row.window.start_ns += by_ms * MS;
        row.window.header.time_ns += by_ms * MS;
        row.window.decision_taken_ns += by_ms * MS;
    }
}

fn of(rows: Vec<Row>) -> Vec<Trajectory> {
    let rows = rows.into_iter().map(|row| {
        let time_ns = row.window.header.time_ns as i64;
        (row, time_ns, Arc::from("policy"))
    });
    assemble(&interface(), rows)
}

/// The number of a step's row, and the windows and the time in ms of its outcome.
type Summary = (u32, Option<(u32, u64)>);

/// The steps of every trajectory.
fn outcomes(rows: Vec<Row>) -> Vec<Vec<Summary>> {
    let all = of(rows).into_iter().map(|trajectory| {
        let steps = trajectory.steps.into_iter();
        let steps = steps.map(|step| {
            let outcome = step.outcome;
            (
                step.sequence,
                outcome.map(|own| (own.windows, own.measured.ns / MS)),
            )
        });
        steps.collect()
    });
    all.collect()
}

/// The usual outcome: one window of 100 ms.
const USUAL: Option<(u32, u64)> = Some((1, 100));

#[test]
fn a_decision_earns_what_is_measured_while_it_is_in_force() {
    let rows = flow(6);
    let expected: Vec<_> = (rows.iter().skip(1))
        .map(|row| Measured::of(&row.window))
        .collect();
    let [trajectory] = &of(rows)[..] else {
        panic!("one trajectory")
    };
    assert_eq!(trajectory.steps.len(), 6);
    for (index, (step, measured)) in trajectory.steps.iter().zip(expected).enumerate() {
        let outcome = step.outcome.expect("a window followed");
        assert_eq!((outcome.windows, outcome.seconds), (1, 0.1));
        assert_eq!(outcome.measured, measured);
        let [mbps, delay, loss, silence] = outcome.terms;
        assert!((mbps - (index + 2) as f64).abs() < 1e-9);
        assert_eq!((delay, loss, silence), (5.0, 0.0, 0.0));
        let reward = interface().objective().value(&measured);
        assert_eq!(outcome.reward, reward as f32);
        assert!((outcome.intervals(&interface()) - 1.0).abs() < 1e-12);
        assert_eq!(
            (step.delay_ns, step.taken_after_ns),
            (Some(MS), Some(2 * MS))
        );
        let mode = if index == 0 {
            Mode::Startup
        } else {
            Mode::Decided
        };
        assert_eq!(step.mode, mode as u32);
    }
    assert_eq!(trajectory.steps[5].outcome, None);
    assert!(!trajectory.ended);
}

#[test]
fn silence_is_priced_with_its_length() {
    let plain = of(flow(8));
    let mut rows = flow(8);
    // Window 3 is closed by the agent; no ACK comes for 900 ms. The first one takes up decision 3.
    pause(&mut rows, 4, 900);
    in_force(&mut rows, 4, 3, 0);
    let silent = of(rows.clone());
    let step = |all: &[Trajectory], index: usize| all[0].steps[index].outcome.expect("known");
    let (before, after) = (step(&plain, 2), step(&silent, 2));
    assert_eq!((after.windows, after.seconds), (1, 1.0));
    assert_eq!(after.measured.acked_bytes, before.measured.acked_bytes);
    assert!((after.terms[0] - before.terms[0] / 10.0).abs() < 1e-9);
    assert!((after.terms[3] - 0.9).abs() < 1e-12 && before.terms[3] == 0.0);
    // Less is earned per window, although ten times as many have passed.
    assert!(after.reward < before.reward - 1.0);
    for index in [0, 1, 3, 4, 5] {
        assert_eq!(
            step(&silent, index),
            step(&plain, index),
            "decision {index}"
        );
    }
    // All of the time is somebody's.
    let time = |all: &[Trajectory]| -> f64 { (0..7).map(|index| step(all, index).seconds).sum() };
    assert!((time(&silent) - time(&plain) - 0.9).abs() < 1e-9);

    // An application that has nothing to send is no silence.
    rows[4].window.app_limited_acks = 1;
    assert_eq!(step(&of(rows), 2), before);
}

#[test]
fn windows_before_a_late_decision_takes_effect_belong_to_the_one_before() {
    let late = |into_ms| {
        let mut rows = flow(9);
        for index in [4, 5] {
            rows[index].decision = None;
            in_force(&mut rows, index, 2, 0);
        }
        in_force(&mut rows, 6, 3, into_ms);
        rows
    };
    let expected = |second, third| {
        vec![vec![
            (0, USUAL),
            (1, USUAL),
            (2, Some((second, 100 * u64::from(second)))),
            (3, Some((third, 100 * u64::from(third)))),
            (6, USUAL),
            (7, USUAL),
            (8, None),
        ]]
    };
    assert_eq!(outcomes(late(10)), expected(3, 1));
    let taken_after_ns = of(late(10))[0].steps[3].taken_after_ns;
    assert_eq!(taken_after_ns, Some(210 * MS));
    // A window counts for the decision that was in force in most of it.
    assert_eq!(outcomes(late(50)), expected(3, 1));
    assert_eq!(outcomes(late(51)), expected(4, 0));
}

#[test]
fn a_decision_whose_place_another_took_at_once_earns_nothing_in_no_time() {
    let mut rows = flow(7);
    in_force(&mut rows, 4, 2, 0);
    in_force(&mut rows, 5, 4, 2);
    let expected = vec![vec![
        (0, USUAL),
        (1, USUAL),
        (2, Some((2, 200))),
        (3, Some((0, 0))),
        (4, USUAL),
        (5, USUAL),
        (6, None),
    ]];
    assert_eq!(outcomes(rows.clone()), expected);
    let never = &of(rows)[0].steps[3];
    assert_eq!(never.outcome, Some(StepOutcome::default()));
    assert_eq!(never.taken_after_ns, None);
}

#[test]
fn a_trajectory_ends_where_no_decision_is_in_force() {
    for mode in [Mode::Fallback, Mode::ApplicationLimited] {
        // Decision 3 is taken up in window 4, but not in force at its end any more.
        let mut rows = flow(9);
        for index in [4, 5] {
            in_force(&mut rows, index, 3, 2);
            rows[index].window.mode = mode as u32;
        }
        rows[4].decision = None;
        let expected = vec![
            vec![(0, USUAL), (1, USUAL), (2, USUAL), (3, None)],
            vec![(5, USUAL), (6, USUAL), (7, USUAL), (8, None)],
        ];
        assert_eq!(outcomes(rows), expected, "{mode:?}");

        // Decision 3 comes after the flow was on its own: it starts a trajectory.
        let mut rows = flow(9);
        for index in [4, 5] {
            in_force(&mut rows, index, 2, 0);
            rows[index].window.mode = mode as u32;
            rows[index].decision = None;
        }
        in_force(&mut rows, 6, 3, 2);
        let expected = vec![
            vec![(0, USUAL), (1, USUAL), (2, None)],
            vec![(3, USUAL), (6, USUAL), (7, USUAL), (8, None)],
        ];
        assert_eq!(outcomes(rows), expected, "{mode:?}");
    }
    // Slow start up to the decision, after a timeout, is the decision's doing.
    let mut rows = flow(4);
    rows[2].window.mode = Mode::AfterTimeout as u32;
    let expected = vec![vec![(0, USUAL), (1, USUAL), (2, USUAL), (3, None)]];
    assert_eq!(outcomes(rows), expected);
}

#[test]
fn a_trajectory_ends_after_too_many_windows_without_a_decision() {
    let without = |windows: usize| {
        let last = 3 + windows;
        let mut rows = flow(last + 4);
        for index in 4..last {
            rows[index].decision = None;
            in_force(&mut rows, index, 3, 2);
        }
        in_force(&mut rows, last, 3, 2);
        in_force(&mut rows, last + 1, last, 2);
        outcomes(rows)
    };
    let most = MOST_WINDOWS;
    let [trajectory] = &without(most as usize)[..] else {
        panic!("one trajectory")
    };
    assert_eq!(trajectory[3], (3, Some((most, 100 * u64::from(most)))));
    let [before, after] = &without(most as usize + 1)[..] else {
        panic!("two trajectories")
    };
    assert_eq!(before.last(), Some(&(3, None)));
    assert_eq!(after[0], (4 + most, USUAL));
}

#[test]
fn a_lost_window_ends_a_trajectory_without_loss_of_decisions() {
    let mut rows = flow(8);
    // The datapath's buffer was full: the agent has not seen a window after window 4.
    pause(&mut rows, 5, 100);
    for row in &mut rows[5..] {
        row.window.index += 1;
    }
    for index in 5..8 {
        in_force(&mut rows, index, index - 1, 2);
    }
    // Decision 4 was in force in the window that is missing, too.
    let expected = vec![
        vec![(0, USUAL), (1, USUAL), (2, USUAL), (3, USUAL), (4, None)],
        vec![(5, USUAL), (6, USUAL), (7, None)],
    ];
    assert_eq!(outcomes(rows), expected);
}

#[test]
fn what_others_decide_they_carry_out_at_once() {
    let mut rows = flow(4);
    for row in &mut rows {
        row.window.mode = NO_MODE;
        (row.window.decision, row.window.decision_taken_ns) = (0, 0);
    }
    rows[3].end = true;
    let expected = vec![vec![(0, USUAL), (1, USUAL), (2, USUAL), (3, None)]];
    assert_eq!(outcomes(rows.clone()), expected);
    let all = of(rows);
    assert!(
        all[0].ended
            && all[0]
                .steps
                .iter()
                .all(|step| step.taken_after_ns.is_none())
    );
}

#[test]
fn a_flow_that_closes_on_its_fallback_is_not_the_last_decisions_doing() {
    let mut rows = flow(5);
    rows[4].end = true;
    assert!(of(rows.clone())[0].ended);
    rows[4].window.mode = Mode::Fallback as u32;
    rows[4].decision = None;
    let all = of(rows);
    assert!(!all[0].ended && all.len() == 1);
    assert_eq!(all[0].steps[3].outcome, None);
}

proptest! {
    /// However decisions come and go: no window and no time counts twice, and what is not known is
    /// the end of a trajectory.
    #[test]
    fn all_time_counts_once_at_most(
        changes in proptest::collection::vec((0..8_u8, 0..30_u64, 0..100_u64), 2..30),
    ) {
        let mut rows = flow(changes.len());
        let mut newest = 0;
        for (index, &(kind, waited_ms, into_ms)) in changes.iter().enumerate().skip(1) {
            pause(&mut rows, index, waited_ms);
            if rows[index - 1].decision.is_some() && kind > 2 {
                newest = index - 1;
            }
            in_force(&mut rows, index, newest, into_ms);
            match kind {
                0 => rows[index].window.mode = Mode::Fallback as u32,
                1 => rows[index].decision = None,
                3 => rows[index].window.mode = Mode::AfterTimeout as u32,
                _ => {}
            }
        }
        let windows = rows.len() as u32;
        let ends = |row: &Row| (row.window.start_ns, row.window.header.time_ns);
        let span = ends(rows.last().expect("two or more")).1 - ends(&rows[0]).0;
        let acked: u64 = rows.iter().map(|row| Measured::of(&row.window).acked_bytes).sum();
        let decisions = rows.iter().filter(|row| row.decision.is_some()).count();
        let all = of(rows);
        let mut counted = (0, Measured::default(), 0);
        for trajectory in &all {
            let (last, others) = trajectory.steps.split_last().expect("never empty");
            prop_assert!(others.iter().all(|step| step.outcome.is_some()));
            for outcome in others.iter().chain([last]).filter_map(|step| step.outcome) {
                counted.0 += outcome.windows;
                counted.1 += outcome.measured;
                prop_assert!(outcome.windows <= MOST_WINDOWS);
                prop_assert!((0.0..=1.0).contains(&outcome.terms[3]));
            }
            counted.2 += trajectory.steps.len();
        }
        prop_assert!(counted.0 <= windows && counted.1.ns <= span);
        prop_assert!(counted.1.acked_bytes <= acked);
        prop_assert_eq!(counted.2, decisions);
    }
}
