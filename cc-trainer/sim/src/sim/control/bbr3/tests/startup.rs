//! Sections on the first rate, Startup and Drain.

use super::*;

#[test]
fn section_5_6_1_the_gains_of_each_state() {
    let gains = |state: State| {
        let of = |gain: Gain| gain.of(10_000) as f64 / 10_000.0;
        (of(state.pacing_gain()), of(state.cwnd_gain()))
    };
    let table = [
        (State::Startup, (2.77, 2.0)),
        (State::Drain, (0.5, 2.0)),
        (State::Down, (0.9, 2.0)),
        (State::Cruise, (1.0, 2.0)),
        (State::Refill, (1.0, 2.0)),
        (State::Up, (1.25, 2.25)),
        (State::ProbeRtt, (1.0, 0.5)),
    ];
    for (state, (pacing, cwnd)) in table {
        let found = gains(state);
        assert!((found.0 - pacing).abs() < 0.005, "{state:?}: {found:?}");
        assert!((found.1 - cwnd).abs() < 0.005, "{state:?}: {found:?}");
    }
}

#[test]
fn section_5_6_2_the_first_rate_is_the_initial_cwnd_in_the_handshakes_rtt() {
    let driver = Driver::new();
    // 2.77 · 10 segments in 40 ms, less 1 %.
    let rate = per_second(&driver.bbr);
    assert!((684.0..687.0).contains(&rate), "{rate}");
}

#[test]
fn section_5_6_2_the_rate_does_not_fall_in_startup() {
    let mut driver = Driver::new();
    driver.round(100);
    let before = driver.bbr.pacing_rate;
    driver.limited = true;
    driver.round(1);
    assert_eq!(driver.bbr.pacing_rate, before);
}

#[test]
fn section_5_3_1_2_startup_ends_after_three_rounds_without_growth() {
    let mut driver = Driver::new();
    driver.in_flight = 10 * BDP;
    for segments in [10, 20, 40, 80, 100, 125] {
        driver.round(segments);
        assert_eq!(driver.bbr.state, State::Startup, "growth by a quarter");
    }
    driver.rounds(2, 150);
    assert_eq!(driver.bbr.state, State::Startup);
    driver.round(150);
    assert_eq!(driver.bbr.state, State::Drain);
    assert!(driver.bbr.full_pipe.reached);
}

#[test]
fn section_5_3_1_2_samples_limited_by_the_application_do_not_count() {
    let mut driver = Driver::new();
    driver.round(100);
    driver.limited = true;
    driver.rounds(10, 100);
    assert_eq!(driver.bbr.state, State::Startup);
}

#[test]
fn section_5_3_1_3_startup_ends_by_loss() {
    let driver = startup_with(12, 6, CaState::Recovery);
    assert_ne!(driver.bbr.state, State::Startup);
    // What was delivered in the round.
    assert_eq!(driver.bbr.bounds.long_term, 150);
    assert_eq!(driver.bbr.undo.state, Some(State::Startup));
}

#[test]
fn section_5_3_1_3_but_not_by_little_loss_or_a_single_burst() {
    for (lost, ranges, state) in [
        (4, 4, CaState::Recovery),
        (12, 5, CaState::Recovery),
        (12, 6, CaState::Open),
    ] {
        let driver = startup_with(lost, ranges, state);
        let place = format!("{lost} lost in {ranges} places, {state:?}");
        assert_eq!(driver.bbr.state, State::Startup, "{place}");
        assert_eq!(driver.bbr.bounds.long_term, UNBOUNDED, "{place}");
    }
}

#[test]
fn section_5_3_2_drain_ends_with_the_queue_or_after_three_rounds() {
    let mut driver = Driver::new();
    driver.in_flight = 3 * BDP;
    driver.before = Some(3 * BDP);
    driver.rounds(4, BDP);
    assert_eq!(driver.bbr.state, State::Drain);
    let mut other = Driver {
        bbr: driver.bbr.clone(),
        in_flight: BDP,
        ..driver
    };
    other.round(BDP);
    assert_eq!(other.bbr.state, State::Down, "no more than the BDP");
    driver.rounds(3, BDP);
    assert_eq!(driver.bbr.state, State::Drain);
    driver.round(BDP);
    assert_eq!(driver.bbr.state, State::Down);
}
