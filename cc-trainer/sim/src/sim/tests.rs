use super::*;
use control::{Cubic, Reno};
use proptest::prelude::*;

const MS: Nanos = 1_000_000;

fn reno() -> Control {
    Control::Reno(Reno::new())
}

fn scenario(text: &str) -> Scenario {
    let text = format!("[[scenario]]\nname = \"test\"\n{text}");
    let mut all = scenario::parse(&text, std::path::Path::new(".")).expect("a good scenario");
    all.remove(0)
}

fn ran(link: &str, seconds: u64) -> (FlowTotals, Observation) {
    let mut simulation = Simulation::observed(&scenario(link), vec![reno()], 1);
    assert!(!simulation.run(seconds * 1_000 * MS));
    let observation = simulation.observation().expect("it was asked for");
    (simulation.flow(0), observation)
}

#[test]
fn a_bulk_flow_fills_the_link() {
    let (flow, observation) = ran("rate_mbps = 12\ndelay_ms = 30\nqueue = { bdp = 1.0 }", 10);
    let mbps = flow.payload_delivered as f64 * 8.0 / 10e6;
    // Of 11.584 Mbit/s of payload.
    assert!((11.3..11.4).contains(&mbps), "{mbps}");
    assert_eq!(flow.timeouts, 0);
    assert_eq!(flow.min_rtt_us / 1_000, 60);
    let sent = &observation.forward.flows[0];
    let longest = sent.delay_quantile(1.0).expect("there were packets");
    assert!((90..92).contains(&longest.as_millis()), "{longest:?}");
}

#[test]
fn without_loss_nothing_is_retransmitted() {
    let (flow, observation) = ran("rate_mbps = 5\ndelay_ms = 10", 5);
    assert_eq!((flow.retransmissions, flow.lost, flow.timeouts), (0, 0, 0));
    let link = &observation.forward.flows[0];
    assert_eq!(flow.payload_delivered, link.payload_delivered);
}

#[test]
fn every_second_segment_is_acknowledged_once_the_receive_window_is_open() {
    let (flow, _) = ran("rate_mbps = 12\ndelay_ms = 30\nqueue = { bdp = 0.5 }", 60);
    let per_ack = flow.bytes_acked as f64 / 1448.0 / flow.acks as f64;
    assert!((1.9..1.95).contains(&per_ack), "{per_ack}");
}

#[test]
fn an_outage_ends_with_a_timeout_that_backs_off() {
    let outage = "schedule = [{ at_s = 0, rate_mbps = 10 }, { at_s = 2, rate_mbps = 0 }, \
                  { at_s = 4, rate_mbps = 10 }]\ndelay_ms = 20\nqueue = { packets = 20 }";
    let (flow, _) = ran(outage, 10);
    assert_eq!((flow.timeouts, flow.probes), (3, 1));
    let mbps = flow.payload_delivered as f64 * 8.0 / 8e6;
    assert!((4.5..4.6).contains(&mbps), "it recovers: {mbps}");
}

#[test]
fn a_delay_that_jumps_up_costs_little() {
    let jump = "rate_mbps = 10\ndelay_ms = 20\n\
                delay_changes = [{ at_s = 3, delay_ms = 600 }]\nqueue = { packets = 30 }";
    let (flow, _) = ran(jump, 10);
    assert_eq!(flow.timeouts, 1);
    assert!(
        flow.cwnd > 40,
        "originals arrived, so the timeout was undone: {flow:?}"
    );
}

/// `tcpi_busy_time`: what a flow's application leaves unused does not count.
#[test]
fn a_flow_is_busy_while_it_has_data_that_are_not_acknowledged() {
    let link = "rate_mbps = 12\ndelay_ms = 20\nqueue = { bdp = 1.0 }";
    let (bulk, _) = ran(link, 8);
    // All but the handshake.
    assert!((7_900..8_000).contains(&(bulk.busy_ns / MS)), "{bulk:?}");
    // A pause of 3 s before each write of 150 kB, of which the link carries 1.5 MB/s.
    let pausing = "[[scenario.flow]]\napp = { kind = \"script\", repeat = true, steps = [\
                   { pause_s = 3 }, { bytes = 150000 }] }";
    let (paused, _) = ran(&format!("{link}\n{pausing}"), 8);
    assert!(paused.bytes_acked >= 2 * 150_000, "{paused:?}");
    let per_write = paused.busy_ns / MS / (paused.bytes_acked / 150_000);
    assert!((140..400).contains(&per_write), "{per_write} ms a write");
}

/// A link of 12 Mbit/s with an RTT of 40 ms, a deep queue, and marks from 20 ms on.
const MARKING: &str =
    "rate_mbps = 12\ndelay_ms = 20\nqueue = { packets = 400, ce_threshold_ms = 20 }";

#[test]
fn marks_keep_the_queue_short_without_a_loss() {
    for name in ["reno", "cubic"] {
        let run = |link: &str| {
            let control = Control::named(name, 1).expect("a known control");
            let mut simulation = Simulation::observed(&scenario(link), vec![control], 1);
            simulation.run(20_000 * MS);
            let link = simulation.observation().expect("it was asked for");
            let delay = link.forward.flows[0].mean_delay().expect("data");
            (simulation.flow(0), delay)
        };
        let (marked, delay) = run(MARKING);
        assert_eq!((marked.retransmissions, marked.timeouts), (0, 0), "{name}");
        assert!(marked.ssthresh < 100, "{name}: {marked:?}");
        let mbps = marked.payload_delivered as f64 * 8.0 / 20e6;
        // The segment that answers the echo finds the queue above the threshold too and is marked,
        // so that the cwnd is often halved twice, as on the kernel.
        assert!(mbps > 9.0, "{name} uses the link: {mbps}");
        assert!(delay < Duration::from_millis(45), "{name}: {delay:?}");
        // A mark is echoed for a round trip, so many segments count, but far from all.
        let share = marked.delivered_ce as f64 / marked.delivered as f64;
        assert!((0.005..0.5).contains(&share), "{name}: {share}");

        let (unmarked, delay) = run(&MARKING.replace(", ce_threshold_ms = 20", ""));
        assert_eq!(unmarked.delivered_ce, 0, "{name}");
        assert!(delay > Duration::from_millis(100), "{name}: {delay:?}");
    }
}

/// RFC 3168, section 6.1.2: the cwnd is reduced at most once per window of data.
#[test]
fn a_mark_halves_the_cwnd_once_per_round_trip() {
    let mut simulation = Simulation::new(&scenario(MARKING), vec![reno()], 1);
    let mut reductions = Vec::new();
    let mut former = simulation.flow(0);
    while simulation.now() < 20_000 * MS {
        simulation.run(simulation.now() + MS);
        let flow = simulation.flow(0);
        if flow.ssthresh != former.ssthresh {
            reductions.push((simulation.now(), former.cwnd, flow.ssthresh));
        }
        former = flow;
    }
    assert!(reductions.len() > 5, "{reductions:?}");
    for &(_, cwnd, ssthresh) in &reductions {
        assert!(ssthresh.abs_diff(cwnd / 2) <= 1, "{cwnd} to {ssthresh}");
    }
    for pair in reductions.windows(2) {
        assert!(pair[1].0 - pair[0].0 > 40 * MS, "{pair:?}");
    }
}

#[test]
fn records_of_a_learned_flow_have_its_marks() {
    let interface = cc_core::interface::Interface::default();
    let settings = Learned::settings(&interface, cc_ebpf::Startup::SlowStart);
    let control = Control::Learned(Box::new(Learned::new(settings)));
    let mut simulation = Simulation::new(&scenario(MARKING), vec![control], 1);
    let (mut marked, mut fractions) = (0, Vec::new());
    while simulation.run(5_000 * MS) {
        let learned = simulation.learned(0).expect("it is");
        while let Some(record) = learned.take_record() {
            if let cc_ebpf::Record::Window(window) = record {
                marked += u64::from(window.marked);
                fractions.push(window.marked_fraction());
            }
        }
    }
    let flow = simulation.flow(0);
    assert!(flow.delivered_ce > 100, "{flow:?}");
    // The last window is still open.
    assert!(marked <= flow.delivered_ce && marked + 200 > flow.delivered_ce);
    assert_eq!(fractions[0], 0.0, "slow start has not filled the queue yet");
    assert!(fractions.iter().any(|fraction| *fraction > 0.2));
    assert!(
        fractions
            .iter()
            .all(|fraction| (0.0..=1.0).contains(fraction))
    );
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_another() {
    let link = scenario("rate_mbps = 20\ndelay_ms = 15\nloss = 0.01\nqueue = { packets = 40 }");
    let run = |seed| {
        let mut simulation = Simulation::new(&link, vec![reno()], seed);
        simulation.run(5_000 * MS);
        simulation.flow(0)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn it_does_not_matter_in_how_many_steps_a_run_is_done() {
    let link = scenario("rate_mbps = 20\ndelay_ms = 15\nloss = 0.01\nqueue = { packets = 40 }");
    let mut whole = Simulation::new(&link, vec![reno()], 1);
    whole.run(3_000 * MS);
    let mut steps = Simulation::new(&link, vec![reno()], 1);
    for step in 1..=3_000 {
        steps.run(step * MS);
    }
    assert_eq!(whole.flow(0), steps.flow(0));
}

#[test]
fn a_busy_receiver_acknowledges_more_at_a_time() {
    let link = scenario("rate_mbps = 96\ndelay_ms = 10\nqueue = { bdp = 1.0 }");
    let segments_per_ack = |rest: Duration| {
        let simulation = Simulation::new(&link, vec![reno()], 1);
        let mut simulation = simulation.with_receiver_rest(rest);
        // By then the receive window has stopped growing.
        simulation.run(5_000 * MS);
        let before = simulation.flow(0);
        simulation.run(8_000 * MS);
        let flow = simulation.flow(0);
        (flow.delivered - before.delivered) as f64 / (flow.acks - before.acks) as f64
    };
    // 8 packets a millisecond.
    let (prompt, usual, busy) = (
        segments_per_ack(Duration::from_micros(50)),
        segments_per_ack(RECEIVER_REST),
        segments_per_ack(Duration::from_millis(3)),
    );
    assert!((1.7..1.9).contains(&prompt), "{prompt}");
    assert!((8.5..9.0).contains(&usual), "{usual}");
    assert!((11.5..12.1).contains(&busy), "{busy}");
}

#[test]
fn flows_start_and_stop_when_the_scenario_says() {
    let link = scenario(
        "rate_mbps = 10\ndelay_ms = 10\nqueue = { bdp = 2.0 }\n\
         [[scenario.flow]]\nstop_s = 2\n[[scenario.flow]]\nstart_s = 1",
    );
    let controls = vec![reno(), Control::Cubic(Cubic::new())];
    let mut simulation = Simulation::new(&link, controls, 1);
    simulation.run(1_000 * MS);
    assert_eq!(simulation.flow(1).bytes_sent, 0);
    simulation.run(2_500 * MS);
    let stopped = simulation.flow(0);
    simulation.run(5_000 * MS);
    assert_eq!(simulation.flow(0), stopped);
    assert!(!stopped.established && simulation.flow(1).established);
    let late = simulation.flow(1).payload_delivered as f64 * 8.0 / 4e6;
    assert!((8.0..8.1).contains(&late), "{late}");
}

#[test]
fn a_blocked_sender_goes_on_where_it_was() {
    let link = scenario("rate_mbps = 10\ndelay_ms = 10\nqueue = { bdp = 2.0 }");
    let mut simulation = Simulation::new(&link, vec![reno()], 1);
    simulation.run(1_000 * MS);
    let before = simulation.flow(0);
    simulation.block(0, 1_100 * MS);
    simulation.run(1_099 * MS);
    let blocked = simulation.flow(0);
    assert_eq!(
        (blocked.bytes_sent, blocked.acks),
        (before.bytes_sent, before.acks)
    );
    simulation.run(1_101 * MS);
    assert!(simulation.flow(0).acks > before.acks);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// On any link, the receiver gets what was sent, once and in order; every packet sent is on the
    /// way, was dropped or has arrived; and every flow makes progress.
    #[test]
    fn nothing_is_lost_or_made_up(
        mbps in 1u32..60,
        delay_ms in 1u32..120,
        loss in 0.0f64..0.08,
        packets in 2u32..200,
        jitter_ms in 0u32..5,
        seed in any::<u64>(),
        cubic in any::<bool>(),
    ) {
        let link = scenario(&format!(
            "rate_mbps = {mbps}\ndelay_ms = {delay_ms}\nloss = {loss}\n\
             queue = {{ packets = {packets} }}\njitter_ms = {jitter_ms}",
        ));
        let control = if cubic { Control::Cubic(Cubic::new()) } else { reno() };
        let mut simulation = Simulation::observed(&link, vec![control], seed);
        for tenth in 1..=40 {
            simulation.run(tenth * 100 * MS);
            let flow = simulation.flow(0);
            prop_assert!(flow.cwnd >= 1);
            prop_assert!(flow.bytes_acked <= flow.payload_delivered);
            prop_assert!(flow.payload_delivered <= flow.bytes_sent - flow.bytes_retransmitted);
        }
        let flow = simulation.flow(0);
        let observation = simulation.observation().expect("it was asked for");
        let way = &observation.forward.flows[0];
        prop_assert_eq!(way.data_arrived.packets * 1448, flow.bytes_sent);
        let ended = way.data_delivered.packets + way.data_dropped.packets;
        prop_assert!(ended <= way.data_arrived.packets);
        prop_assert!(flow.payload_delivered <= way.payload_delivered);
        prop_assert!(flow.payload_delivered > 0, "{:?}", flow);
    }
}
