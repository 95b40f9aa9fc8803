//! Many flows at once: how soon their windows are answered, and whether flows without a slot are
//! served by the fallback.

use std::{thread, time::Duration};

use cc_lab::Report;
use cc_lab::{AfterEnd, Agent, Bottleneck, Crowd, Path, Sink};

const FLOWS: usize = 1_000;
const SECONDS: u64 = 30;
const SLOTS: usize = 10_000;
const SURPLUS: usize = 200;

fn main() -> anyhow::Result<()> {
    if let Some(reason) = cc_lab::unmet_requirement() {
        anyhow::bail!("this benchmark needs the live kernel: {reason}");
    }
    let _exclusive = cc_lab::exclusive();
    let mut report = Report::new("flows");
    let path = Path::through(Bottleneck {
        rate_mbit: 400,
        queue_bytes: 4_000_000,
    });
    answers(&path, &mut report);
    exhaustion(&path, &mut report);
    report.write()
}

/// Measures decisions for 1,000 flows under the default policy.
fn answers(path: &Path, report: &mut Report) {
    let name = cc_lab::unique_name();
    let agent = Agent::start(env!("CARGO_BIN_EXE_cc-agent"), &name, &[]);
    let sink = Sink::listen(&path.receiver, AfterEnd::Close);
    let to = sink.at(path.receiver4());
    let crowd = Crowd::connect(&path.sender, to, &name, FLOWS);
    thread::sleep(Duration::from_secs(2));
    let (before, received) = (agent.status(), sink.received());
    thread::sleep(Duration::from_secs(SECONDS));
    let (after, now_received) = (agent.status(), sink.received());
    drop(crowd);

    let windows = (after.agent.windows - before.agent.windows) as f64;
    let skipped = (after.agent.windows_skipped - before.agent.windows_skipped) as f64;
    let missed = (after.agent.windows_missed - before.agent.windows_missed) as f64;
    let late = (after.agent.decisions_late - before.agent.decisions_late) as f64;
    let seconds = after.uptime_s - before.uptime_s;
    report.show("flows", after.live_flows as f64);
    report.show(
        "mbits",
        (now_received - received) as f64 * 8.0 / seconds / 1e6,
    );
    report.show("windows_per_s", windows / seconds);
    report.show(
        "answered_within_20ms",
        1.0 - (late + skipped + missed) / windows,
    );
    report.show("decision_delay_p50_ms", after.decision_delay.p50_ms);
    report.show("decision_delay_p99_ms", after.decision_delay.p99_ms);
    report.show("mean_batch", after.mean_batch);
    report.show("agent_cores", (after.cpu_s - before.cpu_s) / seconds);
    report.show("records_dropped", after.datapath["records_dropped"] as f64);
    println!("{after}");
}

/// Connects more flows than there are slots, and counts those with and without one.
fn exhaustion(path: &Path, report: &mut Report) {
    let name = cc_lab::unique_name();
    let slots = SLOTS.to_string();
    let agent = Agent::start(env!("CARGO_BIN_EXE_cc-agent"), &name, &["--slots", &slots]);
    let sink = Sink::listen(&path.receiver, AfterEnd::Close);
    let to = sink.at(path.receiver4());
    let crowd = Crowd::connect(&path.sender, to, &name, SLOTS + SURPLUS);
    thread::sleep(Duration::from_secs(5));
    let status = agent.status();
    report.show("slots", SLOTS as f64);
    report.show("flows_with_slot", status.live_flows as f64);
    let without = status.datapath["flows_without_slot"] as f64;
    report.show("flows_without_slot", without);
    report.show("slots_leaked", status.datapath["slots_leaked"] as f64);
    report.show("flows_disconnected", crowd.failed() as f64);
    drop(crowd);
}
