//! The cost of the datapath: throughput compared with cubic on a path without a rate limit, and the
//! time per ACK in BPF.
//!
//! All run on the live kernel and need root. `rlcc` has a fixed cwnd larger than it needs, so that
//! it differs from cubic by its cost only. They take turns, and the figures are medians.
//! `ns_per_ack_kernel_bbr` is the time of the kernel's own `bbr_main`, called by a BPF program that
//! does nothing else ([`register_kernel_bbr`]).

use std::{thread, time::Duration};

use cc_lab::{
    AfterEnd, Agent, BBR_PROGRAM, Flow, Offloads, Path, ProgramTime, Report, Sink, median,
    register_kernel_bbr,
};

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
    let bbr_name = format!("{name}b");
    let bbr = register_kernel_bbr(&bbr_name);
    if let Err(error) = &bbr {
        println!("SKIPPED: the time per ACK of the kernel's bbr: {error:#}");
    }
    let (mut windows, mut bbrs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        windows.push(ns_per_ack(&path, &name, ProgramTime::DATAPATH));
        if bbr.is_ok() {
            bbrs.push(ns_per_ack(&path, &bbr_name, BBR_PROGRAM));
        }
    }
    report.show("ns_per_ack_window", median(&windows));
    if bbr.is_ok() {
        report.show("ns_per_ack_kernel_bbr", median(&bbrs));
    }
    drop(bbr);
    drop(serving);
    let acks = std::env::temp_dir().join(format!("{name}.csv"));
    let acks_file = acks.to_string_lossy().into_owned();
    let serving = agent(&["--per-ack", "all", "--per-ack-file", &acks_file]);
    let raw: Vec<f64> = (0..ROUNDS)
        .map(|_| ns_per_ack(&path, &name, ProgramTime::DATAPATH))
        .collect();
    report.show("ns_per_ack_raw", median(&raw));
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

/// Measures the mean time of this program per ACK of one flow, ns.
fn ns_per_ack(path: &Path, congestion_control: &str, program: &'static str) -> f64 {
    let time = ProgramTime::start(program);
    gbits(path, congestion_control);
    time.ns_per_run()
}
