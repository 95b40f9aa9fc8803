//! Applications over simulated connections, compared with what Linux does.

use std::path::Path;

use cc_core::{interface::Interface, policy::Choice};
use cc_ebpf::Startup;
use cc_sim::{
    app::Message,
    path::Nanos,
    scenario::{self, Scenario},
    sim::{
        Control, FlowTotals, Simulation,
        agent::{AgentDelay, SenderMode, SimulatedAgent},
        control::learned::Learned,
    },
};
use proptest::prelude::*;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000 * MS;
/// The link of most tests: 24 Mbit/s, a round trip of 40 ms, a queue of a bandwidth-delay product.
const LINK: &str = "rate_mbps = 24\ndelay_ms = 20\nqueue = { bdp = 1 }";

fn scenario(link: &str, app: &str) -> Scenario {
    let text = format!("[[scenario]]\nname = \"test\"\n{link}\n[[scenario.flow]]\napp = {app}");
    let mut all = scenario::parse(&text, Path::new(".")).expect("a good scenario");
    all.remove(0)
}

fn simulation(link: &str, app: &str, control: &str, seed: u64) -> Simulation {
    let control = Control::named(control, seed).expect("a known control");
    Simulation::new(&scenario(link, app), vec![control], seed)
}

fn messages(simulation: &Simulation) -> &[Message] {
    simulation.session(0).expect("not bulk").messages()
}

/// Completion times of the complete messages, ms.
fn completion_ms(simulation: &Simulation) -> Vec<f64> {
    let complete = messages(simulation).iter();
    let times = complete.filter_map(|message| Some(message.completed? - message.start));
    times.map(|time| time as f64 / 1e6).collect()
}

const TRICKLE: &str = "{ kind = \"script\", steps = [{ name = \"trickle\", bytes = 6000, every_ms \
                       = 50, for_s = 20 }, { pause_s = 5 }, { name = \"burst\", bytes = 3000000 \
                       }] }";

/// State after 20 s of 1 Mbit/s, after 5 s of idleness, and 3 MB later.
fn trickle_and_burst(control: &str) -> [FlowTotals; 3] {
    let mut simulation = simulation(LINK, TRICKLE, control, 1);
    let states = [20, 25, 40].map(|second| {
        // The handshake takes 40 ms.
        simulation.run(second * SECOND + 39 * MS);
        simulation.flow(0)
    });
    let last = messages(&simulation).last().expect("a burst");
    assert_eq!(last.bytes, 3_000_000);
    let time = last.completed.expect("it arrived") - last.start;
    // 3 MB at 23.2 Mbit/s of payload take 1.04 s.
    assert!(
        (1_040 * MS..2_500 * MS).contains(&time),
        "{control}: {time}"
    );
    assert_eq!(states[2].payload_delivered, 400 * 6_000 + 3_000_000);
    let session = simulation.finished_session(0).expect("not bulk");
    let burst = session.messages().last().expect("a burst");
    assert_eq!(
        burst.retransmissions, states[2].retransmissions,
        "{control}"
    );
    states
}

#[test]
fn an_application_that_sends_little_does_not_raise_the_cwnd() {
    // On the live kernel the cwnd of cubic and reno was 10, that of BBR 20 to 22.
    for (control, most) in [("cubic", 10), ("reno", 10), ("bbr", 40)] {
        let [trickle, idle, _] = trickle_and_burst(control);
        assert!((5..=most).contains(&trickle.cwnd), "{control}: {trickle:?}");
        assert_eq!(idle.cwnd, trickle.cwnd, "{control}");
        assert_eq!(trickle.retransmissions, 0, "{control}");
    }
}

#[test]
fn the_cwnd_is_at_most_twice_what_is_used() {
    // Two bursts of 40 segments per second, between which nothing is in flight for long.
    let app =
        "{ kind = \"script\", repeat = true, steps = [{ bytes = 57920 }, { pause_s = 0.19 }] }";
    for control in ["cubic", "reno"] {
        let mut simulation = simulation(LINK, app, control, 1);
        for second in 1..30 {
            simulation.run(second * SECOND);
            let flow = simulation.flow(0);
            assert!(flow.cwnd <= 80, "{control}: {flow:?}");
        }
        assert!(
            simulation.flow(0).cwnd >= 40,
            "{control}: it fits into one round trip"
        );
    }
}

#[test]
fn a_connection_that_was_idle_starts_slowly_again() {
    let app = "{ kind = \"on-off\", on_s = 5, off_s = 5 }";
    for control in ["cubic", "reno"] {
        let mut simulation = simulation(LINK, app, control, 1);
        simulation.run(10 * SECOND + 39 * MS);
        let before = simulation.flow(0);
        assert!(before.cwnd > 50, "{control}: {before:?}");
        // The first segments of the second period are on their way.
        simulation.run(10 * SECOND + 60 * MS);
        let after = simulation.flow(0);
        assert_eq!((after.cwnd, after.in_flight), (10, 10), "{control}");
        assert!(
            after.ssthresh >= before.cwnd * 3 / 4,
            "{control}: {after:?}"
        );
    }
    // A control that sets the cwnd itself is not restarted, but paced.
    let mut simulation = simulation(LINK, app, "bbr", 1);
    simulation.run(10 * SECOND + 60 * MS);
    let bbr = simulation.flow(0);
    assert!(bbr.cwnd > 50 && bbr.in_flight < 60, "{bbr:?}");
}

#[test]
fn what_a_period_has_written_ahead_is_sent_after_it() {
    // 64 to 192 KiB of the stream are unsent when it stops.
    let link = "rate_mbps = 2\ndelay_ms = 20\nqueue = { bdp = 1 }";
    for on in [0.5, 0.7, 1.0, 1.3] {
        let app = format!("{{ kind = \"on-off\", on_s = {on}, off_s = 9 }}");
        let mut simulation = simulation(link, &app, "bbr", 1);
        let stops = (on * SECOND as f64) as Nanos + 39 * MS;
        simulation.run(stops);
        let then = simulation.flow(0).payload_delivered;
        simulation.run(5 * SECOND);
        let after = simulation.flow(0).payload_delivered - then;
        // What was in flight comes on top: a BDP of 10 kB, and the queue's.
        let ahead = (64 << 10)..(192 << 10) + 25_000;
        assert!(ahead.contains(&after), "{on} s: {after} bytes");
        let period = &messages(&simulation)[0];
        assert_eq!(
            period.bytes,
            then + after,
            "the message is all that was written"
        );
        assert!(period.completed.is_some());
    }
}

#[test]
fn a_response_takes_its_round_trips() {
    // 10 kB fit into the initial window: 7 segments, 3.5 ms of transmission.
    let ask = |connection: &str| {
        format!(
            "{{ kind = \"request-response\", bytes = 10000, think_ms = 500, connection = \
             \"{connection}\", count = 20 }}"
        )
    };
    for (connection, first, later) in [("keep-alive", 83.5, 43.5), ("new", 83.5, 83.5)] {
        let mut simulation = simulation(LINK, &ask(connection), "cubic", 1);
        simulation.run(60 * SECOND);
        let times = completion_ms(&simulation);
        assert_eq!(times.len(), 20);
        let near = |time: f64, expected: f64| (expected..expected + 1.5).contains(&time);
        assert!(near(times[0], first), "{connection}: {times:?}");
        assert!(
            times[1..].iter().all(|&time| near(time, later)),
            "{connection}: {times:?}"
        );
        for message in messages(&simulation) {
            let first_byte = message.first_byte.expect("it arrived");
            assert!(first_byte < message.completed.expect("it arrived"));
        }
        assert_eq!(simulation.flow(0).payload_delivered, 200_000);
    }
}

#[test]
fn a_lost_tail_is_repaired_by_a_probe() {
    // Of ten segments at once, the link takes one and its queue five.
    let link = "rate_mbps = 12\ndelay_ms = 20\nqueue = { packets = 5 }";
    let app = "{ kind = \"script\", steps = [{ bytes = 14480 }] }";
    let mut simulation = simulation(link, app, "cubic", 1);
    simulation.run(10 * SECOND);
    let flow = simulation.flow(0);
    assert_eq!((flow.timeouts, flow.probes), (0, 1), "{flow:?}");
    assert_eq!(flow.payload_delivered, 14_480);
    let [time] = completion_ms(&simulation)[..] else {
        panic!("one message");
    };
    // Handshake, flight, two smoothed RTTs until the probe, its round trip and the repair's.
    assert!((200.0..300.0).contains(&time), "{time}");
}

#[test]
fn a_probe_that_repairs_the_loss_reduces_the_cwnd() {
    // The last of seven segments is lost: the probe alone fills the gap.
    let link = "rate_mbps = 12\ndelay_ms = 20\nqueue = { packets = 5 }";
    let app =
        "{ kind = \"script\", steps = [{ bytes = 10136 }, { pause_s = 1 }, { bytes = 100 }] }";
    let mut simulation = simulation(link, app, "cubic", 1);
    simulation.run(SECOND - 1);
    let repaired = simulation.flow(0);
    assert_eq!(
        (repaired.timeouts, repaired.probes, repaired.retransmissions),
        (0, 1, 1)
    );
    simulation.run(2 * SECOND);
    let flow = simulation.flow(0);
    assert!(
        flow.ssthresh < 10,
        "the answer to later data shows the loss: {flow:?}"
    );
}

#[test]
fn keystrokes_beside_a_bulk_flow_wait_in_its_queue() {
    let text = format!(
        "[[scenario]]\nname = \"test\"\n{LINK}\n[[scenario.flow]]\n[[scenario.flow]]\nstart_s = \
         5\napp = \"keystrokes\""
    );
    let scenario = scenario::parse(&text, Path::new("."))
        .expect("good")
        .remove(0);
    let cubic = || Control::named("cubic", 1).expect("a known control");
    let mut simulation = Simulation::new(&scenario, vec![cubic(), cubic()], 1);
    simulation.run(30 * SECOND);
    let session = simulation.session(1).expect("keystrokes");
    let echoed: Vec<Nanos> = (session.messages().iter())
        .filter_map(|message| Some(message.echoed? - message.start))
        .collect();
    assert!(echoed.len() > 80, "{}", echoed.len());
    let mean = echoed.iter().sum::<Nanos>() / echoed.len() as Nanos;
    assert!(
        (55 * MS..85 * MS).contains(&mean),
        "up to 40 ms of queue: {mean}"
    );
    assert!(simulation.session(0).is_none());
}

const SHORT_FLOWS: &str = "{ kind = \"short-flows\", load = 0.6, count = 500, sizes = { pareto = \
                           1.2, least_bytes = 2000, most_bytes = 2000000 } }";

#[test]
fn short_flows_reuse_places_and_complete() {
    for control in ["cubic", "bbr", "reno"] {
        let mut simulation = simulation(LINK, SHORT_FLOWS, control, 3);
        simulation.run(60 * SECOND);
        let all = messages(&simulation);
        assert_eq!(all.len(), 500);
        assert!(
            all.iter().all(|message| message.completed.is_some()),
            "{control}"
        );
        let bytes: u64 = all.iter().map(|message| message.bytes).sum();
        let flow = simulation.flow(0);
        assert_eq!(
            (flow.payload_delivered, flow.bytes_acked),
            (bytes, bytes),
            "{control}"
        );
        assert_eq!(
            flow.bytes_sent - flow.bytes_retransmitted,
            bytes,
            "{control}"
        );
        let retransmissions: u64 = all.iter().map(|message| message.retransmissions).sum();
        assert_eq!(retransmissions, flow.retransmissions, "{control}");
        assert!(
            simulation.connections() < 100,
            "{}",
            simulation.connections()
        );
        // Two round trips at least: the handshake, and the data one way.
        assert!(completion_ms(&simulation).iter().all(|&time| time > 60.0));
    }
}

#[test]
fn an_agent_serves_every_connection_of_a_flow() {
    let settings = Learned::settings(&Interface::default(), Startup::SlowStart);
    let control = Control::Learned(Box::new(Learned::new(settings)));
    // Flows of some round trips, which get decisions.
    let flows = "{ kind = \"short-flows\", load = 0.4, count = 100, sizes = { pareto = 1.2, \
                 least_bytes = 100000, most_bytes = 2000000 } }";
    let simulation = Simulation::new(&scenario(LINK, flows), vec![control], 3);
    let (delay, mode) = (AgentDelay::MEASURED, SenderMode::Asynchronous);
    let mut served = SimulatedAgent::new(simulation, Interface::default(), delay, mode, 1);
    let mut asked = 0;
    served.serve(100 * SECOND, |_, _| {
        asked += 1;
        Some(Choice::Cwnd(20))
    });
    let all = messages(served.simulation());
    assert!(all.iter().all(|message| message.completed.is_some()));
    let counts = served.counts();
    assert_eq!(counts.flows, 100, "{counts:?}");
    assert!(asked > 100, "{asked}");
    assert!(counts.decisions > 100, "{counts:?}");
}

/// The figures that the documentation promises of the built-in set.
#[test]
fn the_built_in_set_has_enough_messages() {
    for scenario in scenario::load("applications").expect("a built-in set") {
        let (seconds, least) = match scenario.name.as_str() {
            "short-flows" => (250, 10_000),
            name if name.starts_with("response") => (3 * 120, 500),
            _ => (30, 0),
        };
        let cubic = || Control::named("cubic", 1).expect("a known control");
        let controls = scenario.flows.iter().map(|_| cubic()).collect();
        let mut simulation = Simulation::new(&scenario, controls, 1);
        simulation.run(seconds * SECOND);
        let flow = scenario.flows.len() - 1;
        let session = simulation
            .session(flow)
            .expect("the last flow has an application");
        let done = session
            .messages()
            .iter()
            .filter(|message| message.completed.is_some());
        let (done, all) = (done.count(), session.messages().len());
        println!("{}: {done} of {all} in {seconds} s", scenario.name);
        assert!(
            done > 0 && done >= least && done + 12 >= all,
            "{}: {done}",
            scenario.name
        );
        if let Some(playback) = session.playback(seconds * SECOND) {
            assert!(playback.chunks > 10 && playback.stalls == 0, "{playback:?}");
        }
    }
}

/// A policy that asks for thousands of segments gets what the application has used.
#[test]
fn a_learned_flow_does_not_burst_after_idle_time() {
    let settings = Learned::settings(&Interface::default(), Startup::SlowStart);
    let control = Control::Learned(Box::new(Learned::new(settings)));
    let simulation = Simulation::new(&scenario(LINK, TRICKLE), vec![control], 1);
    let (delay, mode) = (AgentDelay::MEASURED, SenderMode::Asynchronous);
    let mut served = SimulatedAgent::new(simulation, Interface::default(), delay, mode, 1);
    served.serve(20 * SECOND, |_, _| Some(Choice::Cwnd(2_000)));
    let trickle = served.simulation().flow(0);
    assert!(trickle.cwnd <= 20, "{trickle:?}");
    // The first segments of the burst are on their way.
    served.serve(25 * SECOND + 60 * MS, |_, _| Some(Choice::Cwnd(2_000)));
    let burst = served.simulation().flow(0);
    assert!(burst.in_flight <= 10, "{burst:?}");
    assert_eq!(burst.retransmissions, 0);
}

#[test]
fn it_does_not_matter_in_how_many_steps_applications_run() {
    let run = |step: Nanos| {
        let mut simulation = simulation(LINK, SHORT_FLOWS, "cubic", 5);
        for end in 1..=10 * SECOND / step {
            simulation.run(end * step);
        }
        (messages(&simulation).to_vec(), simulation.flow(0))
    };
    assert_eq!(run(10 * SECOND), run(MS));
}

#[test]
fn a_flow_that_stops_closes_its_connections() {
    let link = format!("{LINK}\n[[scenario.flow]]\nstop_s = 2\n");
    let text = format!(
        "[[scenario]]\nname = \"test\"\n{link}app = {}",
        SHORT_FLOWS.replace("count = 500, ", "")
    );
    let scenario = scenario::parse(&text, Path::new("."))
        .expect("good")
        .remove(0);
    let cubic = Control::named("cubic", 1).expect("a known control");
    let mut simulation = Simulation::new(&scenario, vec![cubic], 1);
    simulation.run(2 * SECOND);
    let (before, count) = (simulation.flow(0).bytes_sent, messages(&simulation).len());
    simulation.run(10 * SECOND);
    assert_eq!(simulation.flow(0).bytes_sent, before);
    assert_eq!(messages(&simulation).len(), count);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is lost in either direction, everything arrives in the end, once and in order.
    #[test]
    fn applications_survive_losses(
        loss in 0.0f64..0.1, back in 0.0f64..0.1, seed in 0u64..1_000, kind in 0usize..5,
        control in prop::sample::select(vec!["cubic", "bbr", "reno"]),
    ) {
        let app = [
            "{ kind = \"request-response\", bytes = [3000, 90000], think_ms = 50, count = 12 }",
            "{ kind = \"request-response\", bytes = 20000, connection = \"new\", count = 12 }",
            "{ kind = \"short-flows\", per_s = 5, count = 20, sizes = { median_bytes = 9000, sigma \
             = 1, most_bytes = 90000 } }",
            "{ kind = \"script\", steps = [{ bytes = 700, every_ms = 20, for_s = 2 }, { bytes = \
             90000 }] }",
            "{ kind = \"on-off\", on_s = 1, off_s = 1000, rate_mbps = 2 }",
        ][kind];
        let link = format!(
            "rate_mbps = 10\ndelay_ms = 15\nqueue = {{ packets = 30 }}\nloss = {loss}"
        );
        let text = format!(
            "[[scenario]]\nname = \"test\"\n{link}\n[scenario.reverse]\nloss = {back}\n\
             [[scenario.flow]]\napp = {app}"
        );
        let scenario = scenario::parse(&text, Path::new(".")).expect("good").remove(0);
        let control = Control::named(control, seed).expect("a known control");
        let mut simulation = Simulation::new(&scenario, vec![control], seed);
        simulation.run(900 * SECOND);
        let all = messages(&simulation);
        prop_assert!(!all.is_empty());
        for message in all {
            prop_assert!(message.completed.is_some(), "{:?}", message);
        }
        let bytes: u64 = all.iter().map(|message| message.bytes).sum();
        let flow = simulation.flow(0);
        prop_assert_eq!(flow.payload_delivered, bytes);
        prop_assert!(flow.bytes_sent - flow.bytes_retransmitted >= bytes);
        // A last segment in flight at a connection's end may wait for its ACK for ever.
        prop_assert!(flow.bytes_acked <= bytes);
    }
}
