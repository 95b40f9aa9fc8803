//! The rules of the draft, section by section, with samples made by hand, and runs on a path
//! without loss.

mod probing;
mod startup;

use super::super::tests::{MS, Path, ack, cwnd};
use super::*;

/// The RTT of the connection.
const RTT: Nanos = 40 * MS;
/// Segments that the connection delivers per round trip.
const BDP: u32 = 400;

/// Feeds a control one ACK per round trip.
struct Driver {
    bbr: Bbr3,
    w: CwndState,
    now: Nanos,
    delivered: u64,
    /// Segments in flight when an ACK's segment was sent, and after the ACK.
    in_flight: u32,
    /// Segments in flight before an ACK, where that matters.
    before: Option<u32>,
    /// Whether the smallest RTT grows old, instead of being measured again and again.
    ages: bool,
    state: CaState,
    marked: u32,
    limited: bool,
    rtt_us: u32,
}

impl Driver {
    fn new() -> Self {
        let (mut bbr, mut w) = (Bbr3::new(1), cwnd(10, u32::MAX));
        bbr.init(SECOND, &mut w, (RTT / 1_000) as u32);
        Self {
            bbr,
            w,
            now: SECOND,
            delivered: 1,
            in_flight: BDP,
            before: None,
            ages: false,
            state: CaState::Open,
            marked: 0,
            limited: false,
            rtt_us: (RTT / 1_000) as u32,
        }
    }

    /// A connection that has found the pipe full and its queue empty.
    fn cruising() -> Self {
        let mut driver = Self::new();
        driver.until(State::Cruise);
        driver
    }

    /// A connection at the begin of UP.
    fn probing() -> Self {
        let mut driver = Self::cruising();
        driver.until(State::Up);
        driver
    }

    /// A round trip of `segments` in the RTT's time.
    fn round(&mut self, segments: u32) {
        self.now += RTT;
        let prior_delivered = self.delivered;
        self.delivered += u64::from(segments);
        if !self.ages {
            self.bbr.round_trip.recent.1 = self.now;
            self.bbr.round_trip.smallest.1 = self.now;
        }
        self.acknowledge(segments, prior_delivered);
    }

    fn rounds(&mut self, number: u32, segments: u32) {
        (0..number).for_each(|_| self.round(segments));
    }

    /// Goes on with full round trips until the control is in a state.
    fn until(&mut self, state: State) {
        for _ in 0..300 {
            if self.bbr.state == state {
                return;
            }
            self.round(BDP);
        }
        panic!("no {state:?}: {:?}", self.bbr);
    }

    fn acknowledge(&mut self, segments: u32, prior_delivered: u64) {
        let mut sample = AckSample {
            rtt_us: self.rtt_us,
            srtt_us: self.rtt_us,
            in_flight: self.in_flight,
            ca_state: self.state,
            ..ack(self.now, segments)
        };
        sample.totals.delivered_ce = self.marked;
        let rate = RateSample {
            prior_delivered,
            delivered: Some((self.delivered - prior_delivered) as u32),
            interval_us: (RTT / 1_000) as u32,
            prior_in_flight: self.before.unwrap_or(self.in_flight),
            total_delivered: self.delivered,
            app_limited: self.limited,
            cwnd_filled: true,
            tx_in_flight: self.in_flight,
            sent: self.now - RTT,
            ..RateSample::default()
        };
        self.bbr.on_ack(&mut self.w, &sample, &rate);
    }

    /// `lost` of the segments in flight were lost, in as many separate places as `ranges`.
    fn lose(&mut self, lost: u32, ranges: u32) {
        if self.state < CaState::Recovery {
            self.w.ssthresh = self.bbr.ssthresh(&self.w);
            self.state = CaState::Recovery;
            (self.bbr).on_state(self.now, &mut self.w, CaState::Recovery);
        }
        for number in 0..lost {
            let gaps = u64::from(number * ranges / lost);
            let segment = LostSegment {
                number: self.delivered + u64::from(number) + gaps,
                sent: self.now - RTT,
                tx_in_flight: self.in_flight,
                lost: number + 1,
                app_limited: self.limited,
                at: self.now,
                total_delivered: self.delivered,
            };
            self.bbr.on_lost(&self.w, &segment);
        }
    }

    /// Bandwidth-delay product by the control's model, in segments.
    fn bdp(&self) -> u32 {
        self.bbr.bdp(self.bbr.bandwidth(), Gain::ONE)
    }
}

/// The pacing rate in segments/s.
fn per_second(bbr: &Bbr3) -> f64 {
    bbr.pacing_rate as f64 / 1448.0
}

/// A round trip of startup at whose begin so much was lost; then the state of the control.
fn startup_with(lost: u32, ranges: u32, state: CaState) -> Driver {
    let mut driver = Driver::new();
    driver.in_flight = 200;
    driver.rounds(2, 100);
    driver.lose(lost, ranges);
    driver.state = state;
    driver.now += RTT;
    let prior_delivered = driver.delivered;
    driver.delivered += 150;
    let sample = AckSample {
        rtt_us: driver.rtt_us,
        in_flight: 200,
        ca_state: state,
        ..ack(driver.now, 150)
    };
    let rate = RateSample {
        prior_delivered,
        delivered: Some(150),
        interval_us: (RTT / 1_000) as u32,
        total_delivered: driver.delivered,
        tx_in_flight: 200,
        lost,
        ..RateSample::default()
    };
    driver.bbr.on_ack(&mut driver.w, &sample, &rate);
    driver
}

#[test]
fn section_5_6_4_7_cruising_leaves_headroom() {
    let mut driver = Driver::cruising();
    driver.bbr.bounds.long_term = 500;
    driver.round(BDP);
    assert_eq!((driver.bbr.state, driver.w.cwnd), (State::Cruise, 425));
    driver.until(State::Refill);
    driver.rounds(1, BDP);
    assert!(driver.w.cwnd >= 499, "{}", driver.w.cwnd);
}

#[test]
fn section_5_3_4_the_rtt_is_probed_after_five_seconds_with_half_the_bdp() {
    let mut driver = Driver::cruising();
    driver.rtt_us += 1_000;
    driver.ages = true;
    let start = driver.now;
    driver.until(State::ProbeRtt);
    let seconds = (driver.now - start) as f64 / 1e9;
    assert!((4.5..5.1).contains(&seconds), "{seconds}");
    assert_eq!(driver.w.cwnd, driver.bdp() / 2);
    driver.bbr.bounds.in_flight = 100;
    driver.in_flight = driver.bdp() / 2;
    driver.round(BDP / 2);
    let begin = driver.now;
    while driver.bbr.state == State::ProbeRtt {
        driver.round(BDP / 2);
    }
    let lasted = driver.now - begin;
    assert!((200 * MS..=280 * MS).contains(&lasted), "{lasted}");
    assert_eq!(
        driver.bbr.state,
        State::Cruise,
        "the queue is drained already"
    );
    assert_eq!(driver.bbr.bounds.in_flight, UNBOUNDED);
    assert!(driver.w.cwnd >= 2 * BDP, "{}", driver.w.cwnd);
    // The low samples say nothing.
    assert_eq!(driver.bdp(), BDP);
}

#[test]
fn section_5_3_4_a_smaller_rtt_puts_probing_off() {
    let mut driver = Driver::cruising();
    driver.ages = true;
    for _ in 0..200 {
        driver.rtt_us -= 1;
        driver.round(BDP);
        assert_ne!(driver.bbr.state, State::ProbeRtt);
    }
}

#[test]
fn section_5_5_7_the_smallest_rtt_counts_for_ten_seconds() {
    let mut driver = Driver::cruising();
    let start = driver.now;
    driver.rtt_us = 60_000;
    driver.ages = true;
    let mut changed = None;
    for _ in 0..400 {
        driver.round(BDP);
        if driver.bbr.round_trip.smallest.0 != 40_000 {
            changed = Some((driver.now - start) as f64 / 1e9);
            break;
        }
    }
    let changed = changed.expect("the old one is forgotten");
    assert!((9.0..10.3).contains(&changed), "{changed}");
}

#[test]
fn section_5_4_restarting_from_idle_paces_at_the_bandwidth() {
    let mut driver = Driver::probing();
    let idle = TransmitStart {
        app_limited: true,
        ..TransmitStart::default()
    };
    (driver.bbr).on_transmit_start(driver.now, &mut driver.w, &idle);
    let rate = per_second(&driver.bbr);
    assert!((rate - 0.99 * 10_000.0).abs() < 20.0, "{rate}");
    // An idle period counts as an attempt to drain the queue.
    driver.now += 6 * SECOND;
    driver.ages = true;
    driver.round(BDP);
    assert_ne!(driver.bbr.state, State::ProbeRtt);
}

#[test]
fn section_5_5_11_a_spurious_loss_is_undone() {
    let mut driver = startup_with(12, 6, CaState::Recovery);
    driver.w.cwnd = driver.bbr.undo(&driver.w, 0);
    assert_eq!(driver.bbr.state, State::Startup);
    assert!(!driver.bbr.full_pipe.reached);
    assert_eq!(driver.bbr.bounds.long_term, UNBOUNDED);
    let mut driver = Driver::probing();
    driver.in_flight = BDP * 5 / 4;
    driver.lose(20, 5);
    assert_eq!(driver.bbr.state, State::Down);
    driver.bbr.undo(&driver.w, 0);
    assert_eq!(driver.bbr.state, State::Refill);
    assert_eq!(driver.bbr.bounds.long_term, UNBOUNDED);
}

#[test]
fn section_5_6_4_4_a_timeout_leaves_one_segment_and_its_end_restores_the_cwnd() {
    let mut driver = Driver::cruising();
    driver.w.ssthresh = driver.bbr.ssthresh(&driver.w);
    driver.w.cwnd = 1;
    (driver.bbr).on_state(driver.now, &mut driver.w, CaState::Loss);
    driver.state = CaState::Loss;
    driver.round(3);
    assert_eq!(driver.w.cwnd, 4);
    driver.state = CaState::Open;
    driver.round(3);
    assert!(driver.w.cwnd >= 2 * BDP, "{}", driver.w.cwnd);
}

#[test]
fn section_3_7_an_ecn_echo_is_congestion() {
    let mut driver = Driver::cruising();
    let bandwidth = driver.bbr.max_bandwidth.get();
    driver.marked = 1;
    driver.round(BDP / 2);
    driver.bbr.bounds.latest = (0, 0);
    driver.round(BDP / 2);
    assert!(driver.bbr.bounds.bandwidth < bandwidth);
    let mut driver = Driver::probing();
    driver.marked = 1;
    driver.round(BDP);
    assert_eq!(driver.bbr.state, State::Down);
    assert_eq!(driver.bbr.bounds.long_term, BDP);
}

#[test]
fn section_5_5_6_a_bandwidth_is_forgotten_after_two_cycles() {
    let mut driver = Driver::cruising();
    let highest = driver.bdp();
    for cycle in 0..3 {
        while driver.bbr.state != State::Up {
            driver.in_flight = BDP / 2;
            driver.round(BDP / 2);
        }
        driver.rounds(3, BDP / 2);
        assert_eq!(driver.bbr.state, State::Down, "cycle {cycle}");
        driver.round(BDP / 2);
    }
    assert_eq!(driver.bdp(), highest / 2);
}

#[test]
fn it_finds_rate_and_rtt_and_keeps_the_queue_short() {
    // 1,000 segments/s and 40 ms: a BDP of 40 segments.
    let mut bbr = Bbr3::new(1);
    let mut path = Path::new(MS, 40 * MS);
    path.run(&mut bbr, 5_000 * MS);
    let before = path.delivered();
    path.run(&mut bbr, 20_000 * MS);
    assert!(bbr.state.is_probe_bw() || bbr.state == State::ProbeRtt);
    let delivered = path.delivered() - before;
    assert!(delivered > 18_800, "{delivered} of 20,000");
    let bandwidth = bbr.max_bandwidth.get() as f64 / f64::from(1 << 24) * 1e6;
    assert!((980.0..1_050.0).contains(&bandwidth), "{bandwidth}");
    assert!((40_000..42_000).contains(&bbr.round_trip.smallest.0));
    let queue = path.longest_queue(5_000 * MS);
    assert!(queue < 60, "1.5 times the BDP: {queue}");
}

#[test]
fn the_states_follow_one_another() {
    let mut bbr = Bbr3::new(1);
    let mut path = Path::new(MS, 40 * MS);
    let mut states = vec![];
    for _ in 0..2_000 {
        path.run(&mut bbr, 5 * MS);
        if states.last() != Some(&bbr.state) {
            states.push(bbr.state);
        }
    }
    assert_eq!(states[..2], [State::Startup, State::Drain]);
    for pair in states[2..].windows(2) {
        let legal = match pair[0] {
            State::Down => &[State::Cruise, State::Refill, State::ProbeRtt][..],
            State::Cruise => &[State::Refill, State::ProbeRtt],
            State::Refill => &[State::Up, State::ProbeRtt],
            State::Up => &[State::Down, State::ProbeRtt],
            State::ProbeRtt => &[State::Cruise],
            State::Startup | State::Drain => &[],
        };
        assert!(legal.contains(&pair[1]), "{pair:?}");
    }
    assert!(states.contains(&State::Up) && states.contains(&State::ProbeRtt));
}
