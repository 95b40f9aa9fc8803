//! Nothing waits for the agent: bytes delivered, and the time per ACK in BPF, while every inference
//! takes longer and longer; and what it costs that policies run in processes of their own.
//!
//! One flow has a fixed cwnd on a path of 100 Mbit/s. Agents whose inferences take an additional 0,
//! 25, 50 and 200 ms take turns, and the figures are medians.
//!
//! Then 1,000 flows are served by the default policy, with the cage and without it in turns.

use std::{thread, time::Duration};

use cc_lab::{AfterEnd, Agent, Bottleneck, Crowd, Flow, Path, ProgramTime, Sink};
use cc_lab::{Report, median};

const DELAYS_MS: [u32; 4] = [0, 25, 50, 200];
const ROUNDS: usize = 5;
const SETTLE: Duration = Duration::from_millis(1_500);
const MEASURE: Duration = Duration::from_secs(4);
/// Flows that are served with and without a cage.
const CROWD: usize = 1_000;

fn main() -> anyhow::Result<()> {
    if let Some(reason) = cc_lab::unmet_requirement() {
        anyhow::bail!("this benchmark needs the live kernel: {reason}");
    }
    let _exclusive = cc_lab::exclusive();
    let mut report = Report::new("delay");
    added_delay(&mut report);
    cage(&mut report);
    report.write()
}

/// Measures a flow while every inference takes longer and longer.
fn added_delay(report: &mut Report) {
    let path = Path::through(Bottleneck {
        rate_mbit: 100,
        queue_bytes: 400_000,
    });
    let mut bytes = DELAYS_MS.map(|_| Vec::new());
    let mut nanos = DELAYS_MS.map(|_| Vec::new());
    let mut answered = DELAYS_MS.map(|_| Vec::new());
    println!(
        "{:>8} {:>14} {:>10} {:>16}",
        "added", "bytes", "ns/ACK", "decision p50"
    );
    for _ in 0..ROUNDS {
        for (index, delay) in DELAYS_MS.into_iter().enumerate() {
            let name = cc_lab::unique_name();
            let added = delay.to_string();
            let arguments = ["--policy", "fixed:60", "--added-delay-ms", &added];
            let agent = Agent::start(env!("CARGO_BIN_EXE_cc-agent"), &name, &arguments);
            let sink = Sink::listen(&path.receiver, AfterEnd::Close);
            let flow = Flow::connect(&path.sender, sink.at(path.receiver4()), &name).sending();
            thread::sleep(SETTLE);
            let time = ProgramTime::start(ProgramTime::DATAPATH);
            let before = sink.received();
            thread::sleep(MEASURE);
            let delivered = (sink.received() - before) as f64;
            let ns = time.ns_per_run();
            let decision = agent.status().decision_delay.p50_ms;
            println!("{delay:>5} ms {delivered:>14.0} {ns:>10.0} {decision:>13.2} ms");
            bytes[index].push(delivered);
            nanos[index].push(ns);
            answered[index].push(decision);
            drop(flow);
        }
    }
    for (index, delay) in DELAYS_MS.into_iter().enumerate() {
        report.show(format!("bytes_{delay}ms"), median(&bytes[index]));
        report.show(
            format!("bytes_ratio_{delay}ms"),
            median(&bytes[index]) / median(&bytes[0]),
        );
        report.show(format!("ns_per_ack_{delay}ms"), median(&nanos[index]));
        report.show(
            format!("decision_delay_p50_ms_{delay}ms"),
            median(&answered[index]),
        );
    }
}

/// Measures what the cage adds to the decision delays of many flows.
fn cage(report: &mut Report) {
    let path = Path::through(Bottleneck {
        rate_mbit: 400,
        queue_bytes: 4_000_000,
    });
    let ways: [(&str, &[&str]); 2] = [("uncaged", &["--no-cage"]), ("caged", &[])];
    let mut medians = ways.map(|_| Vec::new());
    let mut tails = ways.map(|_| Vec::new());
    let mut batches = ways.map(|_| Vec::new());
    println!(
        "{:>8} {:>14} {:>14} {:>14}",
        "", "decision p50", "decision p99", "batch p50"
    );
    for _ in 0..ROUNDS {
        for (index, (way, arguments)) in ways.into_iter().enumerate() {
            let name = cc_lab::unique_name();
            let agent = Agent::start(env!("CARGO_BIN_EXE_cc-agent"), &name, arguments);
            let sink = Sink::listen(&path.receiver, AfterEnd::Close);
            let crowd = Crowd::connect(&path.sender, sink.at(path.receiver4()), &name, CROWD);
            thread::sleep(SETTLE + 2 * MEASURE);
            let status = agent.status();
            let (p50, p99) = (status.decision_delay.p50_ms, status.decision_delay.p99_ms);
            let batch = status.inference.p50_ms;
            println!("{way:>8} {p50:>11.3} ms {p99:>11.3} ms {batch:>11.3} ms");
            medians[index].push(p50);
            tails[index].push(p99);
            batches[index].push(batch);
            drop(crowd);
        }
    }
    for (index, (way, _)) in ways.into_iter().enumerate() {
        report.show(
            format!("{way}_decision_delay_p50_ms"),
            median(&medians[index]),
        );
        report.show(
            format!("{way}_decision_delay_p99_ms"),
            median(&tails[index]),
        );
        report.show(format!("{way}_batch_p50_ms"), median(&batches[index]));
    }
    // By rounds, so that what both of a round have in common drops out.
    let pairs = medians[0].iter().zip(&medians[1]);
    let added: Vec<f64> = pairs.map(|(uncaged, caged)| caged - uncaged).collect();
    report.show("cage_adds_ms", median(&added));
}
