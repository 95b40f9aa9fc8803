//! The cost of recording: processor time and decision delay of an agent that records, compared with
//! one that does not, and the bytes per decision.
//!
//! Both run at the same time, each on a path of its own, and swap paths every round.

use std::{thread, time::Duration};

use cc_core::status::Snapshot;
use cc_lab::{AfterEnd, Agent, Bottleneck, Crowd, Path, Sink};
use cc_lab::{Report, median};
use cc_recording::{files, read};
use nix::sys::{
    resource::{UsageWho, getrusage},
    signal::Signal,
    time::TimeValLike,
};
use tempfile::TempDir;

const FLOWS: usize = 200;
const ROUNDS: usize = 6;
const SECONDS: u64 = 20;

fn main() -> anyhow::Result<()> {
    if let Some(reason) = cc_lab::unmet_requirement() {
        anyhow::bail!("this benchmark needs the live kernel: {reason}");
    }
    let _exclusive = cc_lab::exclusive();
    let mut report = Report::new("recording");
    let bottleneck = Bottleneck {
        rate_mbit: 50,
        queue_bytes: 3_000_000,
    };
    let paths = [Path::through(bottleneck), Path::through(bottleneck)];
    let (mut cpu, mut p50, mut p99) = (Vec::new(), Vec::new(), Vec::new());
    let (mut bytes, mut rows, mut decisions) = (0, 0, 0);
    for round in 0..ROUNDS {
        let directory = TempDir::new()?;
        let place = directory.path().display().to_string();
        let [plain, recording] = [round % 2, 1 - round % 2].map(|i| &paths[i]);
        let plain = Served::start(plain, &["--serving", "softmax"]);
        let recording = Served::start(
            recording,
            &[
                "--serving",
                "softmax",
                "--record",
                &place,
                "--record-delay-s",
                "10",
            ],
        );
        thread::sleep(Duration::from_secs(SECONDS));
        let [(plain, plain_cost), (recording, recording_cost)] =
            [plain, recording].map(Served::end);
        println!(
            "round {round}: {:.2} and {:.2} us a window, p99 {:.2} and {:.2} ms",
            plain_cost,
            recording_cost,
            plain.decision_delay.p99_ms,
            recording.decision_delay.p99_ms,
        );
        cpu.push(recording_cost / plain_cost);
        p50.push(recording.decision_delay.p50_ms / plain.decision_delay.p50_ms);
        p99.push(recording.decision_delay.p99_ms / plain.decision_delay.p99_ms);
        let before = rows;
        for file in files(directory.path())? {
            bytes += std::fs::metadata(&file)?.len();
            for row in read(&file)?.1 {
                rows += 1;
                decisions += u64::from(row?.decision.is_some());
            }
        }
        let windows = recording.agent.windows;
        anyhow::ensure!(
            rows - before == windows,
            "{} rows of {windows} windows",
            rows - before
        );
    }
    report.show("cpu_ratio", median(&cpu));
    report.show(
        "cpu_ratio_min",
        cpu.iter().copied().fold(f64::MAX, f64::min),
    );
    report.show("cpu_ratio_max", cpu.iter().copied().fold(0.0, f64::max));
    report.show("decision_delay_p50_ratio", median(&p50));
    report.show("decision_delay_p99_ratio", median(&p99));
    report.show("rows", rows as f64);
    report.show("bytes_per_row", bytes as f64 / rows as f64);
    report.show("bytes_per_decision", bytes as f64 / decisions as f64);
    report.write()
}

/// An agent and the flows that it serves.
struct Served {
    agent: Agent,
    /// Processor time until it began to serve, s.
    start_cpu_s: f64,
    crowd: Crowd,
    _sink: Sink,
}

impl Served {
    fn start(path: &Path, arguments: &[&str]) -> Self {
        let name = cc_lab::unique_name();
        let agent = Agent::start(env!("CARGO_BIN_EXE_cc-agent"), &name, arguments);
        let start_cpu_s = cc_lab::eventually("it has begun to serve", || {
            Some(agent.status().cpu_s).filter(|&cpu_s| cpu_s > 0.0)
        });
        let sink = Sink::listen(&path.receiver, AfterEnd::Close);
        let crowd = Crowd::connect(&path.sender, sink.at(path.receiver4()), &name, FLOWS);
        Self {
            agent,
            start_cpu_s,
            crowd,
            _sink: sink,
        }
    }

    /// Closes all flows and ends the agent. Returns its last status, and its processor time per
    /// window without its start, µs.
    ///
    /// The time is known when the process has ended with its recording complete. Asking the agent
    /// for its status until then would cost more than recording does.
    fn end(mut self) -> (Snapshot, f64) {
        drop(self.crowd);
        let status = cc_lab::eventually("all flows closed", || {
            Some(self.agent.status()).filter(|status| status.live_flows == 0)
        });
        let before = ended_children_us();
        self.agent.end(Signal::SIGTERM);
        let cpu_us = ended_children_us() - before - 1e6 * self.start_cpu_s;
        let windows = status.agent.windows as f64;
        (status, cpu_us / windows)
    }
}

/// Returns the processor time of all child processes that have ended, µs.
fn ended_children_us() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("always there");
    (usage.user_time() + usage.system_time()).num_microseconds() as f64
}
