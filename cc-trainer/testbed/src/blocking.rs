//! The cost of a sender that blocks while the policy decides: figure 1 of the mvfst-rl paper (arXiv
//! 1910.04054), with simulated flows.
//!
//! The same policy serves the same link in two modes, with decisions that take a fixed time: once
//! the sender waits for each decision, as if the policy ran in the packet path, and once it
//! continues in the meantime.

use std::{
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use cc_core::{
    interface::Interface,
    policy::{ActionSelection, PolicyError, PolicySpec},
};
use cc_ebpf::Startup;
use serde::Serialize;

use crate::{
    report::chart::{Chart, Curve, Panel, Spread},
    summary::{Host, table::figure, utc_now},
};
use cc_sim::{
    path::{Nanos, nanos},
    scenario::Scenario,
    sim::{
        Control, Simulation,
        agent::{AgentDelay, SenderMode, SimulatedAgent},
        control::learned::Learned,
    },
};

/// Interval between two samples of the bytes sent.
const SAMPLE: Duration = Duration::from_millis(500);

/// Settings of the experiment: link, policy, delays and number of runs.
#[derive(Clone, Debug)]
pub struct Blocking {
    /// The link and its flows; the policy serves those without a scheme.
    pub scenario: Scenario,
    /// Policy that serves the flows without a scheme.
    pub policy: PolicySpec,
    /// How a policy file selects actions; `None` follows the file.
    pub serving: Option<ActionSelection>,
    /// Length of each run in simulated time.
    pub length: Duration,
    /// Delays of decisions, ms. The first one is the reference of the ratios.
    pub delays_ms: Vec<f64>,
    /// Number of runs with each delay; their seeds count from 1.
    pub runs: u64,
    /// Command line of the experiment, which the results state.
    pub command: String,
}

/// Results of the experiment, the content of `blocking.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Version of cc-trainer that made the runs.
    pub version: String,
    /// Date in UTC, in the format of RFC 3339.
    pub date: String,
    /// Command line of the experiment.
    pub command: String,
    /// Host that the runs were made on.
    pub host: Host,
    /// Name of the scenario that the flows ran on.
    pub scenario: String,
    /// The policy, as on a command line.
    pub policy: String,
    /// Length of a run, s.
    pub seconds: f64,
    /// One row per mode and delay.
    pub rows: Vec<Row>,
}

/// Results of one mode with one delay.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Whether the sender waits for decisions.
    pub mode: SenderMode,
    /// Delay of each decision, ms.
    pub delay_ms: f64,
    /// Payload sent by the learned flows, retransmissions included, bytes; `x` is the delay.
    pub sent: Spread,
    /// Mean of `sent` relative to that of the first delay in the same mode.
    pub ratio: f64,
    /// Payload that the receivers got, bytes.
    pub delivered: Spread,
    /// Mean number of decisions per run that took effect.
    pub decisions: f64,
    /// Payload sent since the start, bytes, over the time in s.
    #[serde(rename = "course")]
    pub sent_over_time: Vec<Spread>,
}

/// Errors that prevent or end the experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockingError {
    /// The policy could not be loaded.
    #[error("{policy}: {source}")]
    Policy {
        /// The policy, as on a command line.
        policy: String,
        /// Reason why it could not be loaded.
        source: Box<PolicyError>,
    },
    /// All flows of the scenario have a scheme of their own.
    #[error("every flow of `{scenario}` has a scheme of its own: the policy has none to serve")]
    NothingToServe {
        /// Name of the scenario without a flow for the policy.
        scenario: String,
    },
    /// The simulator does not implement the scheme of a flow.
    #[error(
        "a flow of `{scenario}` runs {scheme}; the simulator has {}",
        Control::NAMES.join(", ")
    )]
    Scheme {
        /// Name of the scenario that has this flow.
        scenario: String,
        /// Scheme that the flow names.
        scheme: String,
    },
    /// A delay is outside the allowed range.
    #[error("delays: {0}")]
    Delay(String),
    /// A setting is empty or zero, so that there is nothing to measure.
    #[error("{0} is empty or 0; give at least one")]
    Nothing(&'static str),
    /// The experiment was cancelled before its end.
    #[error("ended early: there is no result")]
    Stopped,
    /// A result could not be written.
    #[error("writing {}: {source}", path.display())]
    Write {
        /// Path of the file that could not be written.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

/// Bytes and decisions of a single run.
#[derive(Clone, Debug, PartialEq)]
struct Transfer {
    /// Bytes sent at every multiple of [`SAMPLE`], from 0 on.
    sent: Vec<u64>,
    delivered: u64,
    decisions: u64,
}

impl Blocking {
    /// Carries out all runs, one after the other.
    ///
    /// # Errors
    ///
    /// Returns an error when a setting, the policy or a flow's scheme cannot be used, and
    /// [`BlockingError::Stopped`] once `stop` is true.
    pub fn measure(&self, stop: &AtomicBool) -> Result<Results, BlockingError> {
        for (what, count) in [
            ("the list of delays", self.delays_ms.len() as u64),
            ("the number of runs", self.runs),
        ] {
            if count == 0 {
                return Err(BlockingError::Nothing(what));
            }
        }
        let mut rows = Vec::new();
        for mode in [SenderMode::Blocking, SenderMode::Asynchronous] {
            let mut first = None;
            for &ms in &self.delays_ms {
                let delay = AgentDelay::Fixed { ms };
                delay.validate().map_err(BlockingError::Delay)?;
                let transfers: Result<Vec<_>, _> = (1..=self.runs)
                    .map(|seed| self.run(mode, delay, seed, stop))
                    .collect();
                let row = self.row(mode, ms, &transfers?, first);
                first = first.or(Some(row.sent.mean));
                rows.push(row);
            }
        }
        Ok(Results {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            date: utc_now(),
            command: self.command.clone(),
            host: Host::probe(),
            scenario: self.scenario.name.clone(),
            policy: self.policy.to_string(),
            seconds: self.length.as_secs_f64(),
            rows,
        })
    }

    fn run(
        &self,
        mode: SenderMode,
        delay: AgentDelay,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Transfer, BlockingError> {
        let mut policy = self
            .policy
            .load(&Interface::default(), self.serving, seed)
            .map_err(|source| BlockingError::Policy {
                policy: self.policy.to_string(),
                source: Box::new(source),
            })?;
        let learned = self.learned()?;
        let mut served = self.served(policy.interface(), mode, delay, seed)?;
        let total = |served: &SimulatedAgent, of: fn(&cc_sim::sim::FlowTotals) -> u64| -> u64 {
            let flows = learned.iter();
            flows.map(|&flow| of(&served.simulation().flow(flow))).sum()
        };
        let mut sent = vec![0];
        while sent.len() <= self.samples() {
            if stop.load(Ordering::Relaxed) {
                return Err(BlockingError::Stopped);
            }
            served.serve(self.time(sent.len()), |_, query| {
                policy.decide(std::slice::from_mut(query)).pop()
            });
            sent.push(total(&served, |flow| flow.bytes_sent));
        }
        Ok(Transfer {
            sent,
            delivered: total(&served, |flow| flow.payload_delivered),
            decisions: served.counts().decisions,
        })
    }

    fn served(
        &self,
        interface: &Interface,
        mode: SenderMode,
        delay: AgentDelay,
        seed: u64,
    ) -> Result<SimulatedAgent, BlockingError> {
        let settings = Learned::settings(interface, Startup::SlowStart);
        let control = |(number, scheme): (u64, Option<&str>)| match scheme {
            None => Ok(Control::Learned(Box::new(Learned::new(settings)))),
            Some(name) => Control::named(name, seed.wrapping_add(number)).ok_or_else(|| {
                BlockingError::Scheme {
                    scenario: self.scenario.name.clone(),
                    scheme: name.to_owned(),
                }
            }),
        };
        let schemes = self
            .scenario
            .flows
            .iter()
            .map(|flow| flow.scheme.as_deref());
        let controls: Result<Vec<_>, _> = (0..).zip(schemes).map(control).collect();
        let simulation = Simulation::new(&self.scenario, controls?, seed);
        Ok(SimulatedAgent::new(
            simulation,
            interface.clone(),
            delay,
            mode,
            seed,
        ))
    }

    fn row(
        &self,
        mode: SenderMode,
        delay_ms: f64,
        transfers: &[Transfer],
        first: Option<f64>,
    ) -> Row {
        let spread = |x: f64, of: &dyn Fn(&Transfer) -> u64| {
            let values: Vec<f64> = transfers
                .iter()
                .map(|transfer| of(transfer) as f64)
                .collect();
            Spread::of(x, &values)
        };
        // There is at least one run per row.
        let end = |of: &dyn Fn(&Transfer) -> u64| spread(delay_ms, of).unwrap_or_default();
        let last = self.samples();
        let sent = end(&|transfer| transfer.sent[last]);
        Row {
            mode,
            delay_ms,
            sent,
            ratio: sent.mean / first.unwrap_or(sent.mean),
            delivered: end(&|transfer| transfer.delivered),
            decisions: end(&|transfer| transfer.decisions).mean,
            sent_over_time: (0..=last)
                .filter_map(|i| spread(self.time(i) as f64 / 1e9, &|transfer| transfer.sent[i]))
                .collect(),
        }
    }

    /// Indices of the flows that the policy serves.
    fn learned(&self) -> Result<Vec<usize>, BlockingError> {
        let flows = self.scenario.flows.iter().enumerate();
        let learned: Vec<_> = flows
            .filter(|(_, flow)| flow.scheme.is_none())
            .map(|(place, _)| place)
            .collect();
        match learned.is_empty() {
            true => Err(BlockingError::NothingToServe {
                scenario: self.scenario.name.clone(),
            }),
            false => Ok(learned),
        }
    }

    /// Number of samples after the first one.
    fn samples(&self) -> usize {
        self.length.as_nanos().div_ceil(SAMPLE.as_nanos()) as usize
    }

    /// Time of a sample in ns; the last one is the end of the run.
    fn time(&self, sample: usize) -> Nanos {
        let time = SAMPLE.saturating_mul(u32::try_from(sample).unwrap_or(u32::MAX));
        nanos(time.min(self.length))
    }
}

impl Results {
    /// Writes `blocking.json` and `blocking.svg` into a directory and returns their paths.
    ///
    /// # Errors
    ///
    /// Returns an error when a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<[PathBuf; 2], BlockingError> {
        let written = self.chart().write(dir, "blocking", self);
        written.map_err(|(path, source)| BlockingError::Write { path, source })
    }

    /// The chart of bytes sent over time.
    pub fn chart(&self) -> Chart {
        let megabytes = |point: &Spread| Spread {
            x: point.x,
            mean: point.mean / 1e6,
            least: point.least / 1e6,
            greatest: point.greatest / 1e6,
        };
        let panel = |(mode, title): (SenderMode, &str)| Panel {
            title: title.to_owned(),
            curves: self
                .rows
                .iter()
                .filter(|row| row.mode == mode)
                .map(|row| Curve {
                    name: format!("{} ms", row.delay_ms),
                    points: row.sent_over_time.iter().map(megabytes).collect(),
                })
                .collect(),
        };
        Chart {
            title: format!(
                "Bytes sent on {}, by how long a decision takes",
                self.scenario
            ),
            x: "time, s".to_owned(),
            y: "sent, MB".to_owned(),
            floor: None,
            panels: [
                (SenderMode::Blocking, "the sender waits for decisions"),
                (SenderMode::Asynchronous, "it goes on meanwhile"),
            ]
            .map(panel)
            .into(),
        }
    }

    /// Formats one row per mode and delay, in Markdown.
    pub fn table(&self) -> String {
        let mut table = String::from(
            "| the sender | a decision takes | sent, MB | of its runs | to the first | delivered, \
             MB | decisions |\n\
             |---|---|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            let mode = match row.mode {
                SenderMode::Asynchronous => "goes on",
                SenderMode::Blocking => "waits",
            };
            let mb = |bytes: f64| figure(bytes / 1e6);
            // Writing to a string cannot fail.
            let _ = writeln!(
                table,
                "| {mode} | {} ms | {} | {} to {} | {:.4} | {} | {:.0} |",
                row.delay_ms,
                mb(row.sent.mean),
                mb(row.sent.least),
                mb(row.sent.greatest),
                row.ratio,
                mb(row.delivered.mean),
                row.decisions,
            );
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc_sim::scenario;

    fn blocking(link: &str, policy: PolicySpec) -> Blocking {
        let text = format!("[[scenario]]\nname = \"link\"\nqueue = {{ bdp = 1 }}\n{link}");
        Blocking {
            scenario: scenario::parse(&text, "test.toml".as_ref())
                .expect("a valid scenario")
                .remove(0),
            policy,
            serving: None,
            length: Duration::from_millis(4_800),
            delays_ms: vec![0.0, 50.0, 90.0],
            runs: 2,
            command: "a test".to_owned(),
        }
    }

    fn measure(blocking: &Blocking) -> Result<Results, BlockingError> {
        blocking.measure(&AtomicBool::new(false))
    }

    #[test]
    fn a_blocking_sender_sends_less_and_any_other_as_much() {
        // Its BDP is 20 segments: there is a queue, but none that would last for 50 ms.
        let blocking = blocking("rate_mbps = 12\ndelay_ms = 10", PolicySpec::Fixed(22));
        let results = measure(&blocking).expect("two runs each");
        let row = |mode, delay_ms| {
            let mut rows = results.rows.iter();
            rows.find(|row| row.mode == mode && row.delay_ms == delay_ms)
                .expect("was measured")
        };
        let (free, half, most) = (
            row(SenderMode::Blocking, 0.0),
            row(SenderMode::Blocking, 50.0),
            row(SenderMode::Blocking, 90.0),
        );
        assert_eq!(free.ratio, 1.0);
        assert!(
            half.ratio < 0.9 && most.ratio < half.ratio - 0.1,
            "{half:?} {most:?}"
        );
        for delay in [0.0, 50.0, 90.0] {
            let row = row(SenderMode::Asynchronous, delay);
            assert!((row.ratio - 1.0).abs() < 0.02, "{row:?}");
        }
        assert_eq!(row(SenderMode::Asynchronous, 0.0).sent.mean, free.sent.mean);
        // One point at 0 and at every half second, and one at the end.
        assert_eq!(free.sent_over_time.len(), 11);
        assert_eq!(
            (free.sent_over_time[0].mean, free.sent_over_time[10].x),
            (0.0, 4.8)
        );
        assert_eq!(free.sent_over_time[10].mean, free.sent.mean);
        assert!(free.sent.mean >= free.delivered.mean && free.decisions > 30.0);
        assert_eq!(results.table().lines().count(), 2 + 6);
    }

    #[test]
    fn results_are_written_to_files() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut blocking = blocking("rate_mbps = 5\ndelay_ms = 10", PolicySpec::Random);
        blocking.length = Duration::from_secs(1);
        let results = measure(&blocking).expect("two runs each");
        let row = &results.rows[0];
        assert!(
            row.sent.least < row.sent.greatest,
            "each seed has its chance"
        );
        let files = results.write(dir.path()).expect("a directory");
        let [json, svg] = files.map(|path| std::fs::read_to_string(path).expect("was written"));
        assert!(json.contains("\"blocking\"") && json.contains("\"asynchronous\""));
        assert!(svg.contains("50 ms") && svg.contains("goes on meanwhile"));
    }

    #[test]
    fn unusable_settings_are_named_in_errors() {
        let link = "rate_mbps = 5\ndelay_ms = 10\n";
        let missing = PolicySpec::Onnx("no/such.onnx".into());
        for (link, policy, delays_ms, runs, message) in [
            (
                link,
                missing,
                vec![0.0],
                1,
                "no/such.onnx: policy file refused",
            ),
            (
                link,
                PolicySpec::Random,
                vec![],
                1,
                "the list of delays is empty",
            ),
            (
                link,
                PolicySpec::Random,
                vec![0.0],
                0,
                "the number of runs is",
            ),
            (
                link,
                PolicySpec::Random,
                vec![-3.0],
                1,
                "delays: ms of the decision delay is -3",
            ),
            (
                "rate_mbps = 5\ndelay_ms = 10\n[[scenario.flow]]\nscheme = \"reno\"",
                PolicySpec::Random,
                vec![0.0],
                1,
                "every flow of `link` has a scheme of its own",
            ),
            (
                "rate_mbps = 5\ndelay_ms = 10\n[[scenario.flow]]\n[[scenario.flow]]\nscheme = \
                 \"cdg\"",
                PolicySpec::Random,
                vec![0.0],
                1,
                "a flow of `link` runs cdg; the simulator has reno",
            ),
        ] {
            let blocking = Blocking {
                delays_ms,
                runs,
                ..blocking(link, policy)
            };
            let error = measure(&blocking).expect_err(message).to_string();
            assert!(error.starts_with(message), "{error}");
        }
        let blocking = blocking(link, PolicySpec::Random);
        let error = blocking
            .measure(&AtomicBool::new(true))
            .expect_err("stopped");
        assert!(matches!(error, BlockingError::Stopped));
    }
}
