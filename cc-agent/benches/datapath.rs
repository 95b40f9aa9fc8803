//! The cost of the datapath: throughput compared with cubic on a path without a rate limit, and the
//! time per ACK in BPF.
//!
//! Both run on the live kernel and need root. `rlcc` has a fixed cwnd larger than it needs, so that
//! it differs from cubic by its cost only. The two take turns, and the figures are medians.

use std::{thread, time::Duration};

use cc_lab::{AfterEnd, Agent, Flow, Offloads, Path, ProgramTime, Sink};
use cc_lab::{Report, median};

const ROUNDS: usize = 9;
const SETTLE: Duration = Duration::from_millis(300);
const MEASURE: Duration = Duration::from_millis(1_500);

fn main() -> anyhow::Result<()> {
    if let Some(reason) = cc_lab::unmet_requirement() {
        anyhow::bail!("this benchmark needs the live kernel: {reason}");
    }
    let _exclusive = cc_lab::exclusive();
    let mut report = Report::new("datapath");
    let path = Path::direct(Offloads::On);
    let name = cc_lab::unique_name();
    let agent = |more: &[&str]| {
        let mut arguments = vec!["--policy", "fixed:2000"];
        arguments.extend(more);
        Agent::start(env!("CARGO_BIN_EXE_cc-agent"), &name, &arguments)
    };

    let serving = agent(&[]);
    let (mut ours, mut cubics, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let our = gbits(&path, &name);
        let cubic = gbits(&path, "cubic");
        println!(
            "{:<12} {our:>7.2} Gbit/s   cubic {cubic:>7.2} Gbit/s",
            "rlcc"
        );
        ours.push(our);
        cubics.push(cubic);
        ratios.push(our / cubic);
    }
    report.show("throughput_gbits_rlcc", median(&ours));
    report.show("throughput_gbits_cubic", median(&cubics));
    report.show("throughput_ratio_vs_cubic", median(&ratios));
    report.show(
        "throughput_ratio_of_medians",
        median(&ours) / median(&cubics),
    );

    // The time per ACK includes the kernel's measurement itself, some 40 ns.
    let window = ns_per_ack(&path, &name);
    report.show("ns_per_ack_window", window);
    drop(serving);
    let acks = std::env::temp_dir().join(format!("{name}.csv"));
    let acks_file = acks.to_string_lossy().into_owned();
    let serving = agent(&["--per-ack", "all", "--per-ack-file", &acks_file]);
    report.show("ns_per_ack_raw", ns_per_ack(&path, &name));
    drop(serving);
    let _ = std::fs::remove_file(acks);
    report.write()
}

/// Measures the goodput of one flow in Gbit/s.
fn gbits(path: &Path, congestion_control: &str) -> f64 {
    let sink = Sink::listen(&path.receiver, AfterEnd::Close);
    let to = sink.at(path.receiver4());
    let _flow = Flow::connect(&path.sender, to, congestion_control).sending();
    thread::sleep(SETTLE);
    let (before, start) = (sink.received(), std::time::Instant::now());
    thread::sleep(MEASURE);
    (sink.received() - before) as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9
}

/// Measures the median time of the program `cong_control` per ACK, ns.
fn ns_per_ack(path: &Path, name: &str) -> f64 {
    let times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let time = ProgramTime::start();
            gbits(path, name);
            time.ns_per_run()
        })
        .collect();
    median(&times)
}
