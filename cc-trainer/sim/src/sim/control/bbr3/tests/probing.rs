//! Sections on probing for bandwidth and on the bounds that loss sets.

use super::*;

#[test]
fn section_5_3_3_1_down_lasts_until_headroom_is_free_and_the_queue_drained() {
    let mut driver = Driver::new();
    driver.before = Some(BDP + 20);
    driver.rounds(5, BDP);
    assert_eq!(driver.bbr.state, State::Down, "more than the BDP");
    driver.bbr.bounds.long_term = BDP;
    driver.before = Some(BDP * 9 / 10);
    driver.round(BDP);
    assert_eq!(driver.bbr.state, State::Down, "more than 85 % of the bound");
    driver.in_flight = BDP / 2;
    driver.bbr.bounds.long_term = BDP;
    driver.before = Some(BDP * 85 / 100);
    driver.round(BDP);
    assert_eq!(driver.bbr.state, State::Cruise);
}

#[test]
fn section_5_3_3_8_a_large_bdp_is_probed_every_two_to_three_seconds() {
    let mut driver = Driver::cruising();
    let mut times = vec![];
    for _ in 0..10 {
        driver.until(State::Up);
        times.push(driver.now);
        driver.bbr.start_down(driver.now, driver.delivered);
        driver.until(State::Cruise);
    }
    for (before, after) in times.iter().zip(&times[1..]) {
        let seconds = (after - before) as f64 / 1e9;
        // The round of REFILL, and one for the ACK on which time is up.
        assert!((1.99..3.09).contains(&seconds), "{seconds}");
    }
    let different = times.windows(3).any(|times| {
        let first = times[1] - times[0];
        first.abs_diff(times[2] - times[1]) > 2 * RTT
    });
    assert!(different, "the times are random: {times:?}");
}

#[test]
fn section_5_3_3_8_a_small_bdp_as_often_as_reno_loses() {
    let mut driver = Driver::new();
    driver.in_flight = 20;
    driver.rounds(6, 20);
    assert_eq!(driver.bbr.state, State::Cruise);
    let mut rounds = 0;
    while driver.bbr.state != State::Refill {
        driver.round(20);
        rounds += 1;
    }
    // The BDP of 20 segments, less what passed before and the random one.
    assert!((17..=20).contains(&rounds), "{rounds}");
}

#[test]
fn section_5_3_3_3_refill_forgets_the_short_term_and_lasts_a_round() {
    let mut driver = Driver::cruising();
    driver.lose(4, 4);
    driver.rounds(2, BDP / 2);
    assert!(driver.bbr.bounds.in_flight < UNBOUNDED);
    driver.state = CaState::Open;
    driver.until(State::Refill);
    assert_eq!(driver.bbr.bounds.in_flight, UNBOUNDED);
    assert_eq!(driver.bbr.bounds.bandwidth, Bandwidth::MAX);
    driver.round(BDP);
    assert_eq!(driver.bbr.state, State::Up);
}

#[test]
fn section_5_3_3_7_up_ends_when_the_bandwidth_grows_no_more() {
    let mut driver = Driver::probing();
    driver.rounds(2, BDP);
    assert_eq!(driver.bbr.state, State::Up);
    driver.round(BDP);
    assert_eq!(driver.bbr.state, State::Down);
    let mut driver = Driver::probing();
    for doublings in 1..5 {
        driver.rounds(3, BDP << doublings);
        assert_eq!(driver.bbr.state, State::Up, "growth");
    }
    driver.round(BDP << 4);
    assert_eq!(driver.bbr.state, State::Down);
}

#[test]
fn section_5_3_3_5_the_long_term_bound_grows_by_twice_as_much_every_round() {
    let mut driver = Driver::cruising();
    driver.until(State::Refill);
    driver.bbr.bounds.long_term = BDP;
    driver.w.cwnd = BDP;
    driver.round(BDP);
    let mut grown = vec![];
    for _ in 0..5 {
        // The cwnd, and with it what is acknowledged in a round, is the bound.
        driver.w.cwnd = driver.bbr.bounds.long_term;
        let before = driver.bbr.bounds.long_term;
        driver.in_flight = before;
        driver.round(before);
        grown.push(driver.bbr.bounds.long_term - before);
        // With more than one ACK per round, the bound keeps the search from its end.
        driver.bbr.full_pipe.restart(0);
    }
    assert_eq!(driver.bbr.state, State::Up);
    // The last has what the divisions before have left over.
    assert_eq!(grown, [1, 2, 4, 8, 17]);
}

#[test]
fn section_5_5_10_2_a_probe_that_loses_too_much_sets_the_long_term_bound() {
    let mut driver = Driver::probing();
    driver.in_flight = BDP * 5 / 4;
    driver.lose(5, 5);
    assert_eq!(driver.bbr.state, State::Up, "one percent");
    assert_eq!(driver.bbr.bounds.long_term, UNBOUNDED);
    driver.lose(20, 5);
    assert_eq!(driver.bbr.state, State::Down);
    // Of 500 in flight, the eleventh loss is more than 2 %: nothing of it is safe.
    assert_eq!(driver.bbr.bounds.long_term, BDP * 5 / 4 - 1);
    assert!(driver.bbr.cycle.was_too_high);
    driver.lose(200, 5);
    assert_eq!(
        driver.bbr.bounds.long_term,
        BDP * 5 / 4 - 1,
        "once per probe"
    );
}

#[test]
fn section_5_5_10_2_the_bound_does_not_fall_below_seven_tenths() {
    let mut driver = Driver::probing();
    driver.in_flight = 100;
    driver.lose(50, 5);
    let target = driver.bbr.target_inflight(driver.w.cwnd);
    assert_eq!(driver.bbr.bounds.long_term, target * 7 / 10);
}

#[test]
fn section_5_5_10_2_losses_that_no_probe_caused_leave_it() {
    let mut driver = Driver::cruising();
    driver.lose(100, 10);
    assert_eq!(driver.bbr.bounds.long_term, UNBOUNDED);
    assert_eq!(driver.bbr.state, State::Cruise);
}

#[test]
fn section_5_3_3_6_the_next_probe_stops_at_the_bound_and_returns_if_that_was_safe() {
    let mut driver = Driver::probing();
    driver.in_flight = BDP * 5 / 4;
    driver.lose(20, 5);
    driver.round(BDP);
    driver.state = CaState::Open;
    driver.in_flight = BDP / 2;
    driver.until(State::Up);
    driver.in_flight = BDP * 5 / 4;
    driver.round(BDP);
    assert_eq!(driver.bbr.state, State::Down, "at the bound");
    driver.round(BDP);
    assert_eq!(driver.bbr.state, State::Refill, "its ACKs show no loss");
    driver.round(BDP);
    driver.round(BDP);
    assert_eq!(driver.bbr.state, State::Up, "this time it stays there");
}

#[test]
fn section_5_5_10_3_loss_lowers_the_short_term_bounds_once_per_round() {
    let mut driver = Driver::cruising();
    let (bandwidth, window) = (driver.bbr.max_bandwidth.get(), driver.w.cwnd);
    driver.lose(4, 4);
    assert_eq!(
        driver.bbr.bounds.in_flight, UNBOUNDED,
        "at the end of the round"
    );
    // A tenth is delivered: the bounds fall to seven tenths.
    driver.bbr.bounds.latest = (0, 0);
    driver.round(BDP / 10);
    assert_eq!(driver.bbr.bounds.bandwidth, bandwidth * 7 / 10);
    assert_eq!(driver.bbr.bounds.in_flight, window * 7 / 10);
    assert_eq!(driver.w.cwnd, window * 7 / 10);
    // Nine tenths are delivered: not below that.
    let mut driver = Driver::cruising();
    driver.lose(4, 4);
    driver.bbr.bounds.latest = (0, 0);
    driver.round(BDP * 9 / 10);
    let nine_tenths = driver.bbr.bounds.bandwidth as f64 / bandwidth as f64;
    assert!((nine_tenths - 0.9).abs() < 0.01, "{nine_tenths}");
    // Without loss nothing changes.
    let bounds = driver.bbr.bounds;
    driver.round(BDP / 10);
    assert_eq!(driver.bbr.bounds.bandwidth, bounds.bandwidth);
}

#[test]
fn section_5_5_10_3_the_short_term_bounds_stay_while_bandwidth_is_probed() {
    let mut driver = Driver::probing();
    driver.lose(4, 4);
    driver.round(BDP / 2);
    assert_eq!(driver.bbr.bounds.bandwidth, Bandwidth::MAX);
}
