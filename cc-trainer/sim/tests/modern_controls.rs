//! What BBR version 3 and PCC Vivace do on simulated links, beside what their specifications
//! promise; and that no measurement, however odd, stops them.

use std::path::Path;

use cc_ebpf::{AckSample, CaState, CwndState, Totals};
use cc_sim::{
    path::Nanos,
    scenario::{self, Scenario},
    sim::{
        Control, Simulation,
        control::{CongestionControl, LostSegment, RateSample, TransmitStart},
    },
};
use proptest::prelude::*;

const SECOND: Nanos = 1_000_000_000;
/// Time that a run takes to settle, and time over which it is measured then.
const SETTLING: Nanos = 10 * SECOND;
const MEASURED: Nanos = 50 * SECOND;

/// What a flow got from its link.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Mean throughput of payload, Mbit/s.
    mbps: f64,
    /// Mean one-way delay, propagation included, ms.
    delay_ms: f64,
    /// Part of the segments that was retransmitted.
    lost: f64,
}

fn link(text: &str) -> Scenario {
    let text = format!("[[scenario]]\nname = \"link\"\n{text}\n");
    let mut scenarios = scenario::parse(&text, Path::new(".")).expect("a valid scenario");
    scenarios.remove(0)
}

/// Runs a flow of each control on the link, and returns what each got in the end.
fn run(link: &Scenario, controls: &[&str]) -> Vec<Share> {
    let named = controls.iter().zip(1..).map(|(name, seed)| {
        Control::named(name, seed).unwrap_or_else(|| panic!("a control named {name}"))
    });
    let mut simulation = Simulation::new(link, named.collect(), 1);
    simulation.run(SETTLING);
    let before: Vec<_> = (0..controls.len())
        .map(|flow| simulation.flow(flow))
        .collect();
    simulation.run(SETTLING + MEASURED);
    (0..controls.len())
        .map(|flow| {
            let (from, to) = (&before[flow], simulation.flow(flow));
            let bytes = to.payload_delivered - from.payload_delivered;
            let sent = to.bytes_sent - from.bytes_sent;
            let again = to.bytes_retransmitted - from.bytes_retransmitted;
            Share {
                mbps: bytes as f64 * 8e3 / MEASURED as f64,
                delay_ms: (to.delay_sum_ns - from.delay_sum_ns) as f64
                    / (to.delays - from.delays).max(1) as f64
                    / 1e6,
                lost: again as f64 / sent.max(1) as f64,
            }
        })
        .collect()
}

fn alone(text: &str, control: &str) -> Share {
    run(&link(text), &[control])[0]
}

#[test]
fn bbr3_fills_a_deep_buffer_only_in_part() {
    // A BDP of 33 ms of queueing each: the draft bounds the queue by 1.5 (section 3.2).
    let share = alone(
        "rate_mbps = 30\ndelay_ms = 25\nqueue = { bdp = 10.0 }",
        "bbr3",
    );
    assert!(share.mbps > 0.9 * 30.0 * 1448.0 / 1500.0, "{share:?}");
    assert!(share.delay_ms - 25.0 < 1.5 * 50.0, "{share:?}");
    // And the mean is far below the bound.
    assert!(share.delay_ms - 25.0 < 0.4 * 50.0, "{share:?}");
}

#[test]
fn bbr3_loses_less_than_version_1_in_a_shallow_buffer() {
    let shallow = "rate_mbps = 40\ndelay_ms = 20\nqueue = { bdp = 0.1 }";
    let (first, third) = (alone(shallow, "bbr"), alone(shallow, "bbr3"));
    assert!(third.lost < 0.02, "{third:?}");
    assert!(third.lost < first.lost / 3.0, "{first:?} {third:?}");
    assert!(third.mbps > 0.6 * 40.0, "{third:?}");
}

#[test]
fn bbr3_tolerates_one_percent_of_random_loss() {
    // Section 3.1: the full throughput with an average loss of up to 1 %.
    let lossy = "rate_mbps = 30\ndelay_ms = 20\nloss = 0.01\nqueue = { bdp = 1.0 }";
    let (cubic, bbr3) = (alone(lossy, "cubic"), alone(lossy, "bbr3"));
    assert!(bbr3.mbps > 0.75 * 30.0, "{bbr3:?}");
    assert!(bbr3.mbps > 3.0 * cubic.mbps, "{cubic:?} {bbr3:?}");
}

#[test]
fn bbr3_leaves_cubic_more_than_version_1_does() {
    // Where version 1 takes most from CUBIC: in shallow buffers.
    let shared = |control: &str, bdp: f64| {
        let text = format!(
            "rate_mbps = 30\ndelay_ms = 15\nqueue = {{ bdp = {bdp} }}\n\
             [[scenario.flow]]\n[[scenario.flow]]\nstart_s = 2"
        );
        run(&link(&text), &["cubic", control])[0].mbps
    };
    for bdp in [0.5, 1.0] {
        let (first, third) = (shared("bbr", bdp), shared("bbr3", bdp));
        assert!(third > first, "{bdp} BDP: {first} and {third} Mbit/s");
    }
}

#[test]
fn two_flows_of_bbr3_share() {
    let text = "rate_mbps = 30\ndelay_ms = 15\nqueue = { bdp = 2.0 }\n\
                [[scenario.flow]]\n[[scenario.flow]]\nstart_s = 3";
    let shares = run(&link(text), &["bbr3", "bbr3"]);
    let (less, more) = (
        shares[0].mbps.min(shares[1].mbps),
        shares[0].mbps.max(shares[1].mbps),
    );
    assert!(less > 0.5 * more, "{shares:?}");
    assert!(less + more > 0.9 * 30.0 * 1448.0 / 1500.0, "{shares:?}");
}

#[test]
fn vivace_fills_a_lossy_link_that_cubic_cannot() {
    // Its utility tolerates loss of some percent (section 3.2).
    let lossy = "rate_mbps = 40\ndelay_ms = 15\nloss = 0.01\nqueue = { bdp = 1.0 }";
    let (cubic, vivace) = (alone(lossy, "cubic"), alone(lossy, "vivace"));
    assert!(vivace.mbps > 0.7 * 40.0, "{vivace:?}");
    assert!(vivace.mbps > 2.0 * cubic.mbps, "{cubic:?} {vivace:?}");
}

#[test]
fn vivace_keeps_a_deep_buffer_nearly_empty() {
    let deep = "rate_mbps = 30\ndelay_ms = 15\nqueue = { bdp = 10.0 }";
    let (cubic, vivace) = (alone(deep, "cubic"), alone(deep, "vivace"));
    assert!(vivace.mbps > 0.8 * 30.0, "{vivace:?}");
    assert!(
        vivace.delay_ms - 15.0 < 0.2 * (cubic.delay_ms - 15.0),
        "{cubic:?} {vivace:?}"
    );
}

#[test]
fn two_flows_of_vivace_converge() {
    let text = "rate_mbps = 30\ndelay_ms = 15\nqueue = { bdp = 2.0 }\n\
                [[scenario.flow]]\n[[scenario.flow]]\nstart_s = 3";
    let shares = run(&link(text), &["vivace", "vivace"]);
    let (less, more) = (
        shares[0].mbps.min(shares[1].mbps),
        shares[0].mbps.max(shares[1].mbps),
    );
    assert!(less > 0.5 * more, "{shares:?}");
    assert!(less + more > 0.8 * 30.0, "{shares:?}");
}

/// A measurement of any size.
fn measurement() -> impl Strategy<Value = (u32, u32, u32, u32, u32, bool, u8)> {
    let rtt_us = prop_oneof![Just(0u32), 1u32..100, 100u32..30_000_000];
    let interval_us = prop_oneof![Just(0u32), 1u32..100, 1u32..30_000_000];
    (
        rtt_us,
        interval_us,
        0u32..1 << 20,
        0u32..1 << 20,
        0u32..1_000,
        any::<bool>(),
        0u8..6,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// RTTs of 1 µs to 30 s, a million segments at once, samples of no time and of no segment:
    /// the cwnd stays within its bounds and the pacing rate above 0.
    #[test]
    fn no_measurement_stops_a_control(
        measurements in proptest::collection::vec(measurement(), 1..150),
        handshake_us in prop_oneof![Just(0u32), 1u32..50, 1u32..30_000_000],
        clamp in 4u32..1 << 20,
        first in 1u32..1 << 20,
    ) {
        for name in ["bbr", "bbr3", "copa", "copa-compete", "vivace", "aurora"] {
            let mut control = Control::named(name, 1).expect("a known name");
            let mut cwnd = CwndState {
                cwnd: first.min(clamp),
                ssthresh: 0x7fff_ffff,
                cwnd_cnt: 0,
                clamp,
            };
            let mut now = SECOND;
            control.init(now, &mut cwnd, handshake_us);
            let (mut delivered, mut lost) = (1_u64, 0_u32);
            for &(rtt_us, interval_us, acked, in_flight, losses, limited, event) in &measurements {
                now += Nanos::from(interval_us.max(1)) * 1_000;
                let prior_delivered = delivered.saturating_sub(in_flight.into()).max(1);
                delivered += u64::from(acked);
                lost = lost.wrapping_add(losses);
                let ca_state = match event {
                    0 => CaState::Loss,
                    1 => CaState::Recovery,
                    _ => CaState::Open,
                };
                if event < 2 {
                    cwnd.ssthresh = control.ssthresh(&cwnd);
                    control.on_state(now, &mut cwnd, ca_state);
                }
                if event == 0 {
                    cwnd.cwnd = 1;
                }
                for number in 0..losses.min(20) {
                    let segment = LostSegment {
                        number: delivered + u64::from(number),
                        sent: now.saturating_sub(Nanos::from(rtt_us) * 1_000),
                        tx_in_flight: in_flight,
                        lost: number + 1,
                        app_limited: limited,
                        at: now,
                        total_delivered: delivered,
                    };
                    control.on_lost(&cwnd, &segment);
                }
                let totals = Totals {
                    lost,
                    bytes_sent: delivered * 1_448,
                    delivered: delivered as u32,
                    ..Totals::default()
                };
                let ack = AckSample {
                    now_ns: now,
                    rtt_us,
                    srtt_us: rtt_us.max(1),
                    rttvar_us: 1,
                    mss: 1_448,
                    header_len: 32,
                    in_flight,
                    acked,
                    lost: losses,
                    delivered: (delivered - prior_delivered) as u32,
                    interval_us,
                    retransmits: 0,
                    cwnd_limited: !limited,
                    max_packets_out: in_flight,
                    app_limited: limited,
                    idle: false,
                    decays_unused: true,
                    ca_state,
                    totals,
                };
                let rate = RateSample {
                    prior_delivered,
                    delivered: (interval_us > 0).then_some((delivered - prior_delivered) as u32),
                    interval_us,
                    prior_in_flight: in_flight,
                    app_limited: limited,
                    total_delivered: delivered,
                    min_rtt_us: 1,
                    last_sent: now,
                    next_send: now,
                    cwnd_filled: !limited,
                    sent: now.saturating_sub(Nanos::from(rtt_us) * 1_000),
                    tx_in_flight: in_flight,
                    lost: losses,
                    ..RateSample::default()
                };
                control.on_ack(&mut cwnd, &ack, &rate);
                if event == 2 {
                    let start = TransmitStart {
                        app_limited: true,
                        ..TransmitStart::default()
                    };
                    control.on_transmit_start(now, &mut cwnd, &start);
                }
                if event == 3 {
                    cwnd.cwnd = control.undo(&cwnd, cwnd.cwnd);
                }
                prop_assert!((1..=clamp).contains(&cwnd.cwnd), "{}: {:?}", name, cwnd);
                let pacing = control.pacing_rate();
                prop_assert!(pacing != Some(0), "{name}: no pacing rate");
            }
        }
    }
}
