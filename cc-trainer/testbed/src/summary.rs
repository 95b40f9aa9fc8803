//! What an evaluation measured: the records of its files, and what is made of them.
//!
//! Every number in a file is finite: what may be undefined (the delay of packets of which none arrived) is an
//! `Option` and `null` in JSON, and a record with another number that is not finite is refused when it is written.

pub mod aggregate;
pub mod compare;
mod date;
mod host;
pub mod power;
pub mod statistics;
pub mod table;

pub use date::utc_now;

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer, ser::Error};

use cc_sim::scenario::Scenario;

/// `summary.json`: an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The runs, in the order in which they are shown: by scenario, scheme and number.
    pub runs: Vec<Run>,
    /// Where they ran.
    pub host: Host,
    /// What was asked for.
    pub settings: Settings,
}

/// What a reader needs to know of a host to judge figures from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The kernel's release.
    pub kernel: String,
    /// The processor's model.
    pub cpu: String,
    /// Processors that may be used.
    pub cores: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// `net.ipv4.tcp_available_congestion_control`.
    pub congestion_controls: Vec<String>,
    /// Version of cc-trainer.
    pub version: String,
}

/// Where schemes run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// Over emulated links under the running kernel's TCP, in real time.
    #[default]
    Kernel,
    /// In the simulator.
    Sim,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Where the schemes ran; the kernel where a file does not say.
    #[serde(default)]
    pub on: Platform,
    /// The command line.
    pub command: String,
    /// When the evaluation began: UTC, as RFC 3339 has it.
    pub date: String,
    /// Length of a run, s.
    #[serde(serialize_with = "finite")]
    pub seconds: f64,
    /// Runs of each scheme on each scenario.
    pub runs: u32,
    /// What fixes loss, jitter and random policies.
    pub seed: u64,
    /// The schemes, in the order in which they were given.
    pub schemes: Vec<String>,
    /// The scenarios, in the order in which they were given.
    pub scenarios: Vec<ScenarioFacts>,
    /// The policies of the schemes that have one.
    pub policies: Vec<PolicyFacts>,
}

/// What a reader needs to know of a scenario to read its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScenarioFacts {
    /// Its name.
    pub name: String,
    /// What it stands for; may be empty.
    pub description: String,
    /// Mean rate of the data's direction, Mbit/s of IP packets; none when it is unlimited.
    pub rate_mbps: Option<f64>,
    /// Propagation of the data's direction at the start, ms.
    #[serde(serialize_with = "finite")]
    pub owd_ms: f64,
    /// Round-trip propagation at the start, ms.
    #[serde(serialize_with = "finite")]
    pub rtt_ms: f64,
    /// Flows.
    pub flows: u32,
}

/// Which policy a scheme served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyFacts {
    /// The scheme.
    pub scheme: String,
    /// Where the policy came from: a file, or `default` for the one that the agent embeds.
    pub source: String,
    /// SHA-256 of the file, in hexadecimal; empty for a policy that is no file.
    pub sha256: String,
}

/// One scheme on one scenario, once.
///
/// Throughput counts the payload that receivers got, each byte once; packets
/// and their delays are those that carry payload in the forward direction, and one-way delay (`owd`) includes propagation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The scenario's name.
    pub scenario: String,
    /// The scheme under test.
    pub scheme: String,
    /// Which of the runs of this scheme on this scenario, from 0.
    pub run: u32,
    /// Length of the measured time, s.
    #[serde(serialize_with = "finite")]
    pub seconds: f64,
    /// Of all flows together, Mbit/s over the measured time.
    #[serde(serialize_with = "finite")]
    pub throughput_mbps: f64,
    /// Delivered bits of IP, as a share of what the link offered while at least one flow was active; none
    /// when the link offers without limit.
    pub utilization: Option<f64>,
    /// 95th percentile of the one-way delay of a packet, ms; none when no packet was delivered.
    pub p95_owd_ms: Option<f64>,
    /// Mean one-way delay of a packet, ms.
    pub mean_owd_ms: Option<f64>,
    /// Mean round-trip time that the sender measured, ms.
    pub mean_rtt_ms: Option<f64>,
    /// Share of the arriving packets that the link dropped, whatever the cause; 0 when none arrived.
    #[serde(serialize_with = "finite")]
    pub loss_rate: f64,
    /// Segments that senders sent again.
    pub retransmissions: u64,
    /// Of the flows that an agent serves.
    pub decision_delay: Option<DecisionDelay>,
    /// Jain's index of the flows' throughputs, where several flows run.
    pub jain: Option<f64>,
    /// When the flows had settled at equal shares, s after the last one's start
    /// ([`statistics::convergence`]); none when they never did, or when there is one flow.
    pub convergence_s: Option<f64>,
    /// Whether the figures can be trusted.
    pub validity: Validity,
    /// Each flow, in the scenario's order.
    pub flows: Vec<FlowRun>,
}

/// One flow of a run. The terms are those of [`Run`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowRun {
    /// The flow's scheme.
    pub scheme: String,
    /// When it started, s since the scenario's start.
    #[serde(serialize_with = "finite")]
    pub start_s: f64,
    /// When it stopped, s since the scenario's start.
    #[serde(serialize_with = "finite")]
    pub stop_s: f64,
    /// Mbit/s between its start and its stop.
    #[serde(serialize_with = "finite")]
    pub throughput_mbps: f64,
    /// 95th percentile, ms.
    pub p95_owd_ms: Option<f64>,
    /// Mean, ms.
    pub mean_owd_ms: Option<f64>,
    /// Mean, ms.
    pub mean_rtt_ms: Option<f64>,
    /// Share of the arriving packets.
    #[serde(serialize_with = "finite")]
    pub loss_rate: f64,
    /// Segments.
    pub retransmissions: u64,
    /// When an agent serves it.
    pub decision_delay: Option<DecisionDelay>,
}

/// How long decisions took, from the end of the observation window until the decision was published, µs. Of a run with several
/// such flows, each figure is the largest of the flows'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DecisionDelay {
    /// How many there were.
    pub decisions: u64,
    /// Median.
    #[serde(serialize_with = "finite")]
    pub p50_us: f64,
    /// 99th percentile.
    #[serde(serialize_with = "finite")]
    pub p99_us: f64,
    /// Longest.
    #[serde(serialize_with = "finite")]
    pub max_us: f64,
}

/// Whether a run's figures can be trusted, and what says so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Validity {
    /// Why they cannot; empty when they can.
    pub reasons: Vec<String>,
    /// How often the run was tried, this time included.
    pub attempts: u32,
    /// How late packets left the emulator, 99.9th percentile of the worse direction, ms.
    #[serde(serialize_with = "finite")]
    pub lateness_p999_ms: f64,
    /// The latest, ms.
    #[serde(serialize_with = "finite")]
    pub lateness_max_ms: f64,
    /// Packets that were lost before the emulator saw them.
    pub ring_drops: u64,
    /// Packets that the kernel did not take back from the emulator.
    pub refused: u64,
    /// How long a thread was ready to run and had no processor, ms: the worst of emulator, senders and receivers;
    /// none where the kernel does not tell.
    pub run_delay_ms: Option<f64>,
}

/// `runs/SCENARIO.SCHEME.N.json`: a run with its course.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFile {
    /// Names the settings that shaped the run: a run under other settings has another key.
    pub key: String,
    /// The figures.
    pub run: Run,
    /// The course.
    pub series: Series,
}

/// The course of a run. The i-th value of every list is of `[i, i + 1) * bin_s` of scenario time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Length of a bin, s.
    #[serde(serialize_with = "finite")]
    pub bin_s: f64,
    /// What the link offered, Mbit/s of IP packets; none while that is unlimited.
    pub capacity_mbps: Vec<Option<f64>>,
    /// Mean one-way delay of the packets delivered, ms; none where there were none.
    pub delay_ms: Vec<Option<f64>>,
    /// The longest queue, bytes of IP.
    pub queue_bytes: Vec<u64>,
    /// Packets that the link dropped.
    pub dropped: Vec<u64>,
    /// Each flow, in the scenario's order.
    pub flows: Vec<FlowSeries>,
}

/// The course of a flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowSeries {
    /// Delivered, Mbit/s of IP packets.
    #[serde(serialize_with = "all_finite")]
    pub throughput_mbps: Vec<f64>,
    /// Congestion window, segments; none where the flow was not seen.
    pub cwnd: Vec<Option<f64>>,
    /// Smoothed round-trip time, ms; none where the flow was not seen.
    pub rtt_ms: Vec<Option<f64>>,
}

impl Run {
    /// Whether the figures can be trusted.
    pub fn is_valid(&self) -> bool {
        self.validity.reasons.is_empty()
    }

    /// The file that holds this run and its course: `SCENARIO.SCHEME.N.json`.
    pub fn file_name(&self) -> String {
        format!("{}.{}.{}.json", self.scenario, self.scheme, self.run)
    }
}

impl From<&Scenario> for ScenarioFacts {
    fn from(scenario: &Scenario) -> Self {
        let ms = |delay: Duration| delay.as_secs_f64() * 1e3;
        Self {
            name: scenario.name.clone(),
            description: scenario.description.clone(),
            rate_mbps: scenario
                .forward
                .service
                .mean_bits_per_second()
                .map(|rate| rate / 1e6),
            owd_ms: ms(scenario.forward.delay.base),
            rtt_ms: ms(scenario.base_rtt()),
            flows: u32::try_from(scenario.flows.len()).unwrap_or(u32::MAX),
        }
    }
}

/// JSON has no other numbers; serde_json would write `null`, which could not be read again.
fn finite<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if !value.is_finite() {
        return Err(S::Error::custom(format!("{value} is not a finite number")));
    }
    serializer.serialize_f64(*value)
}

fn all_finite<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    if let Some(value) = values.iter().find(|value| !value.is_finite()) {
        return Err(S::Error::custom(format!("{value} is not a finite number")));
    }
    values.serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_file_is_read_as_it_was_written() {
        let written = RunFile {
            key: "k".into(),
            run: Run {
                scenario: "a".into(),
                scheme: "cubic".into(),
                throughput_mbps: 0.1 + 0.2,
                p95_owd_ms: Some(12.5),
                flows: vec![FlowRun::default()],
                ..Run::default()
            },
            series: Series {
                bin_s: 0.1,
                capacity_mbps: vec![Some(12.0), None],
                flows: vec![FlowSeries {
                    throughput_mbps: vec![1.0, 1.0 / 3.0],
                    cwnd: vec![None, Some(10.0)],
                    rtt_ms: vec![],
                }],
                ..Series::default()
            },
        };
        let text = serde_json::to_string(&written).expect("every number is finite");
        let read: RunFile = serde_json::from_str(&text).expect("just written");
        assert_eq!(read, written);
        assert_eq!(written.run.file_name(), "a.cubic.0.json");
    }

    #[test]
    fn what_is_not_finite_becomes_null_or_is_refused() {
        let undefined = Run {
            mean_rtt_ms: Some(f64::NAN),
            ..Run::default()
        };
        let text = serde_json::to_string(&undefined).expect("an optional number may be undefined");
        let read: Run = serde_json::from_str(&text).expect("just written");
        assert_eq!(read.mean_rtt_ms, None);

        let wrong = Run {
            throughput_mbps: f64::INFINITY,
            ..Run::default()
        };
        let error = serde_json::to_string(&wrong).expect_err("a throughput is finite");
        assert!(error.to_string().contains("inf"), "{error}");
        let series = FlowSeries {
            throughput_mbps: vec![f64::NAN],
            ..FlowSeries::default()
        };
        assert!(serde_json::to_string(&series).is_err());
    }
}
