//! Queues that manage themselves, and the sending host's own, under the running kernel's TCP: what
//! they are for can be seen, and the simulator agrees.
//!
//! A run that the host disturbed is repeated, and decides nothing when it always is.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    path::Path,
    process::ExitCode,
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use cc_lab::{Outcome, TcpInfo, trials};
use cc_sim::{
    path::DirectionObservation,
    scenario::{self, Scenario},
    sim::agent::AgentDelay,
};
use cc_testbed::{
    evaluate::{self, Agents, Controls, FlowSetup, Scheme, Setup},
    link::{Addresses, Classifier, Limits, Link, Namespace},
    summary::{Platform, Run},
};
use socket2::{Domain, Socket, Type};

fn main() -> ExitCode {
    cc_lab::run_on_links(trials![
        managed_queues_are_short_with_marks_and_without,
        managed_queues_agree_with_the_simulator,
        a_connection_does_not_fill_its_hosts_queue,
        the_hosts_queue_agrees_with_the_simulator,
    ])
}

/// Times that a run is tried before the host counts as too busy.
const ATTEMPTS: u32 = 4;
/// 12 Mbit/s, an RTT of 30 ms, and room for 300 ms of packets.
const LINK: &str = "rate_mbps = 12\ndelay_ms = 15\nqueue = { packets = 300";

fn scenario(keys: &str) -> Scenario {
    let text = format!("[[scenario]]\nname = \"test\"\n{keys}");
    let mut all = scenario::parse(&text, Path::new(".")).expect("a good scenario");
    all.remove(0)
}

/// Sends with cubic over an emulated link for 4 s. Returns what the sender's kernel says at the
/// end, and what the link saw.
fn carry(scenario: &Scenario, ecn: bool) -> Result<(TcpInfo, DirectionObservation), String> {
    let near = Namespace::new().expect("root may");
    let far = Namespace::new().expect("root may");
    if ecn {
        near.request_ecn().expect("root may");
    }
    let addresses = Addresses::nth(901);
    let link = Link::new(scenario, &near, &far, addresses, Classifier::SINGLE, 1);
    let link = link.expect("root may");
    let socket = |namespace: &Namespace| {
        let socket = namespace.within(|| Socket::new(Domain::IPV4, Type::STREAM, None));
        socket.expect("it can be entered").expect("a socket")
    };
    let server: SocketAddr = (addresses.far, 7100).into();
    let listener = socket(&far);
    listener.bind(&server.into()).expect("a free port");
    listener.listen(1).expect("it is bound");
    let sender = socket(&near);
    sender
        .set_tcp_congestion(b"cubic")
        .expect("every kernel has it");
    link.start();
    sender.connect(&server.into()).expect("a route");
    let (receiver, _) = listener.accept().expect("it has connected");
    let patience = Some(Duration::from_secs(20));
    receiver.set_read_timeout(patience).expect("a good timeout");
    let mut writing = sender.try_clone().expect("a descriptor");
    let info = thread::scope(|scope| {
        // Closed at the end of this closure, which ends the writing.
        let mut receiver = receiver;
        scope.spawn(move || while writing.write_all(&[0; 1 << 14]).is_ok() {});
        let start = Instant::now();
        let mut block = vec![0; 1 << 16];
        while start.elapsed() < Duration::from_secs(4) {
            let received = receiver.read(&mut block).expect("data within its patience");
            assert!(received > 0, "the sender lives");
        }
        TcpInfo::of(&sender).expect("a TCP socket")
    });
    let observation = link.finish().expect("the devices stay");
    match Limits::of(scenario).disturbances(&observation).first() {
        None => Ok((info, observation.path.forward)),
        Some(disturbance) => Err(disturbance.to_string()),
    }
}

/// 95th percentile of the time in the queue, ms.
fn queued_ms(link: &DirectionObservation) -> f64 {
    let delay = link
        .total()
        .delay_quantile(0.95)
        .expect("there were packets");
    delay.as_secs_f64() * 1e3 - 16.0
}

/// Tries again what the host has disturbed.
fn undisturbed<T>(mut attempt: impl FnMut() -> Result<T, String>) -> Result<T, Outcome> {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match attempt() {
            Ok(result) => return Ok(result),
            Err(reason) => last = reason,
        }
    }
    Err(Outcome::Undecided(format!("disturbed: {last}")))
}

/// A long buffer under each kind of management: cubic has a shorter queue than in the buffer alone,
/// and nearly the whole link; with ECN it is marked and loses nothing.
fn managed_queues_are_short_with_marks_and_without() -> Outcome {
    let unmanaged = scenario(&format!("{LINK} }}"));
    let unmanaged = match undisturbed(|| carry(&unmanaged, false)) {
        Ok((_, link)) => queued_ms(&link),
        Err(outcome) => return outcome,
    };
    println!("unmanaged: {unmanaged:.1} ms");
    let mut disturbed = None;
    for (kind, limit_ms) in [
        ("codel", 30.0),
        ("fq_codel", 30.0),
        ("pie", 100.0),
        ("dualpi2", 70.0),
    ] {
        for ecn in [false, true] {
            // DualPI2 has no such key: it marks who negotiates ECN.
            let key = match kind {
                "dualpi2" => String::new(),
                _ => format!(", ecn = {ecn}"),
            };
            let scenario = scenario(&format!("{LINK}, aqm = \"{kind}\"{key} }}"));
            let (info, link) = match undisturbed(|| carry(&scenario, ecn)) {
                Ok(result) => result,
                Err(outcome) => {
                    disturbed = Some(outcome);
                    continue;
                }
            };
            let total = link.total();
            let (queued, dropped) = (queued_ms(&link), total.dropped.total().packets);
            let mbps = total.delivered.bytes as f64 * 8.0 / 4e6;
            let marked = info.delivered_ce;
            println!(
                "{kind}, ecn = {ecn}: {mbps:.2} Mbit/s, p95 {queued:.1} ms, {marked} echoed, \
                 {dropped} dropped"
            );
            assert!(queued < limit_ms && queued < 0.6 * unmanaged, "{queued} ms");
            assert!(mbps > 9.5, "{mbps} Mbit/s");
            assert_eq!(marked > 0, ecn, "{marked} echoes");
            assert_eq!(dropped == 0, ecn, "{dropped} drops");
        }
    }
    disturbed.unwrap_or(Outcome::Passed)
}

/// Runs a scheme over a link for 10 s.
fn evaluated(on: Platform, scheme: &str, scenario: &Scenario) -> Result<Run, String> {
    let schemes = evaluate::parse_schemes(
        scheme,
        &cc_core::policy::PolicySpec::Heuristic,
        None,
        Controls::of(on),
    );
    let scheme: Scheme = schemes.expect("both platforms have it").remove(0);
    let seconds = Duration::from_secs(10);
    let flow = |flow: &scenario::Flow| FlowSetup::of(flow, &scheme, seconds);
    let setup = Setup {
        scenario,
        flows: scenario.flows.iter().map(flow).collect(),
        seconds,
        seed: 7,
        slot: 902,
        delay: AgentDelay::MEASURED,
    };
    let never = AtomicBool::new(false);
    let measured = evaluate::run(on, &setup, &Agents::default(), &never, |_| {});
    let (run, ..) = measured
        .expect("the run is carried out")
        .expect("it is not cancelled");
    match run.validity.reasons.first() {
        None => Ok(run),
        Some(reason) => Err(reason.clone()),
    }
}

/// Compares throughput and RTT of both sides.
fn compare(scheme: &str, keys: &str, most: [f64; 2]) -> Option<Outcome> {
    let scenario = scenario(keys);
    let kernel = match undisturbed(|| evaluated(Platform::Kernel, scheme, &scenario)) {
        Ok(run) => run,
        Err(outcome) => return Some(outcome),
    };
    let simulated = evaluated(Platform::Sim, scheme, &scenario).expect("nothing disturbs it");
    let delay = |run: &Run| {
        run.p95_owd_ms
            .zip(run.mean_rtt_ms)
            .expect("there were packets")
    };
    let (kernel_delay, simulated_delay) = (delay(&kernel), delay(&simulated));
    println!(
        "{scheme}, {keys}: {:.2} and simulated {:.2} Mbit/s, p95 one-way {:.1} and {:.1} ms, mean \
         RTT {:.1} and {:.1} ms",
        kernel.throughput_mbps,
        simulated.throughput_mbps,
        kernel_delay.0,
        simulated_delay.0,
        kernel_delay.1,
        simulated_delay.1
    );
    let [throughput, rtt] = most;
    let differs = |a: f64, b: f64, most: f64| (a / b - 1.0).abs() > most;
    assert!(!differs(
        simulated.throughput_mbps,
        kernel.throughput_mbps,
        throughput
    ));
    assert!(!differs(simulated_delay.1, kernel_delay.1, rtt));
    None
}

fn managed_queues_agree_with_the_simulator() -> Outcome {
    let mut disturbed = None;
    for kind in ["codel", "fq_codel", "pie", "dualpi2"] {
        let keys = format!("{LINK}, aqm = \"{kind}\" }}");
        disturbed = disturbed.or(compare("cubic", &keys, [0.1, 0.15]));
    }
    disturbed.unwrap_or(Outcome::Passed)
}

/// The path's buffer holds 300 ms; the host's own has room for more and gets next to nothing, since
/// TCP knows what waits there.
fn a_connection_does_not_fill_its_hosts_queue() -> Outcome {
    let scenario = scenario(
        "rate_mbps = 100\ndelay_ms = 15\nqueue = { packets = 300 }\nsender = { rate_mbps = 12 }",
    );
    let (info, link) = match undisturbed(|| carry(&scenario, false)) {
        Ok(result) => result,
        Err(outcome) => return outcome,
    };
    let mbps = link.total().delivered.bytes as f64 * 8.0 / 4e6;
    println!(
        "{mbps:.2} Mbit/s, RTT {} µs, cwnd {}",
        info.rtt, info.snd_cwnd
    );
    assert!((11.0..12.5).contains(&mbps), "{mbps} Mbit/s");
    assert!(info.rtt < 60_000, "{} µs", info.rtt);
    assert_eq!(info.total_retrans, 0);
    Outcome::Passed
}

fn the_hosts_queue_agrees_with_the_simulator() -> Outcome {
    let mut disturbed = None;
    for (scheme, rate) in [
        ("cubic", 4),
        ("cubic", 20),
        ("reno", 20),
        ("bbr", 20),
        ("cubic", 60),
    ] {
        let keys = format!("rate_mbps = 100\ndelay_ms = 15\nsender = {{ rate_mbps = {rate} }}");
        disturbed = disturbed.or(compare(scheme, &keys, [0.05, 0.15]));
    }
    disturbed.unwrap_or(Outcome::Passed)
}
