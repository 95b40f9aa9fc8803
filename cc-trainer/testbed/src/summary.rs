//! Measurements of an evaluation: the records of its files, and their statistics.
//!
//! Every number in a file is finite. Measures that may be undefined, such as the delay of packets
//! of which none arrived, are an `Option` and `null` in JSON. Writing a record with another number
//! that is not finite fails.

pub mod aggregate;
pub mod apps;
pub mod compare;
mod date;
mod host;
pub mod means;
pub mod splits;
pub mod statistics;
pub mod table;

pub use apps::{AppMeasures, Application, MessageRecord, PlaybackMeasures};
pub use date::utc_now;

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize, Serializer, ser::Error};

use cc_sim::scenario::Scenario;

/// All measurements of an evaluation, the content of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Runs in the order in which they are shown: by scenario, scheme and number.
    pub runs: Vec<Run>,
    /// Messages of applications over all valid runs, by scenario, scheme and name; absent where all
    /// flows are bulk flows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applications: Vec<Application>,
    /// Host that the runs were made on.
    pub host: Host,
    /// Settings under which the runs were made.
    pub settings: Settings,
}

/// Facts about a host that matter when its figures are judged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Release of the running kernel.
    pub kernel: String,
    /// Model name of the processor.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cores: u32,
    /// Size of the memory in bytes.
    pub memory_bytes: u64,
    /// Congestion controls that the kernel lists in `net.ipv4.tcp_available_congestion_control`.
    pub congestion_controls: Vec<String>,
    /// Version of cc-trainer that made the runs.
    pub version: String,
}

/// Platform that schemes run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// Emulated links under the running kernel's TCP, in real time.
    #[default]
    Kernel,
    /// The simulator, in virtual time.
    Sim,
}

/// Settings of an evaluation, as its summary states them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Platform of the runs; the kernel where a file does not state it.
    #[serde(default)]
    pub on: Platform,
    /// Command line that started the evaluation.
    pub command: String,
    /// Start of the evaluation in UTC, in the format of RFC 3339.
    pub date: String,
    /// Length of a run, s, except on scenarios that have one of their own.
    #[serde(serialize_with = "finite")]
    pub seconds: f64,
    /// Number of runs of each scheme on each scenario.
    pub runs: u32,
    /// Seed of random loss, jitter and random policies.
    pub seed: u64,
    /// Names of the schemes, in the order in which they were given.
    pub schemes: Vec<String>,
    /// Scenarios, in the order in which they were given.
    pub scenarios: Vec<ScenarioFacts>,
    /// Policies of those schemes that are policies.
    pub policies: Vec<PolicyFacts>,
    /// Built-in sets of which the scenarios are, found by the content of the links.
    #[serde(default)]
    pub sets: Vec<SetFacts>,
}

/// A built-in set of which an evaluation has scenarios.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetFacts {
    /// Name of the built-in set, as `--scenarios` takes it.
    pub name: String,
    /// Role of the set: `training`, `validation` or `test`.
    pub role: String,
    /// SHA-256 of the set in hexadecimal ([`Set::hash`](cc_sim::scenario::Set::hash)).
    pub sha256: String,
    /// Number of scenarios of the evaluation whose links are of the set.
    pub included: u32,
    /// Number of scenarios of the set.
    pub scenarios: u32,
}

/// Facts about a scenario that a reader of its figures needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScenarioFacts {
    /// Name, unique in an evaluation.
    pub name: String,
    /// Description of the scenario in one line; may be empty.
    pub description: String,
    /// Mean rate of the forward direction, Mbit/s of IP packets; `None` when it is unlimited.
    pub rate_mbps: Option<f64>,
    /// One-way propagation delay of the forward direction at the start, ms.
    #[serde(serialize_with = "finite")]
    pub owd_ms: f64,
    /// Round-trip propagation delay at the start, ms.
    #[serde(serialize_with = "finite")]
    pub rtt_ms: f64,
    /// Number of flows on the path.
    pub flows: u32,
    /// Length of a run in s, where it is the scenario's own and not that of the evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// The policy that a scheme served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyFacts {
    /// Name of the scheme that is this policy.
    pub scheme: String,
    /// Source of the policy: a file, or `default` for the one embedded in the agent.
    pub source: String,
    /// SHA-256 of the policy file in hexadecimal; empty for a policy without a file.
    pub sha256: String,
    /// On which links it was trained; `None` for a policy that was not trained.
    #[serde(default)]
    pub trained_on: Option<TrainedOn>,
}

/// On which of an evaluation's links a policy was trained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainedOn {
    /// Test and validation sets of its training, as its file names them
    /// ([`PolicyMeta::TEST_SETS`](cc_core::policy::PolicyMeta::TEST_SETS)); `None` for a file from
    /// before there were splits.
    pub test_sets: Option<String>,
    /// Names of the evaluation's scenarios whose links were seen in training.
    pub seen: Vec<String>,
}

/// Measurements of one scheme on one scenario in one run.
///
/// Throughput counts the payload that receivers got, each byte once. Packets and their delays are
/// those with payload in the forward direction. One-way delay (`owd`) includes propagation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Name of the scenario that the run was made on.
    pub scenario: String,
    /// Name of the scheme under test.
    pub scheme: String,
    /// Number of the run among those of this scheme on this scenario, from 0.
    pub run: u32,
    /// Time in which at least one flow was active, s.
    #[serde(serialize_with = "finite")]
    pub seconds: f64,
    /// Throughput of all flows together over the measured time, Mbit/s.
    #[serde(serialize_with = "finite")]
    pub throughput_mbps: f64,
    /// Delivered bits of IP as a fraction of the link's capacity while at least one flow was
    /// active; `None` when the link is unlimited.
    pub utilization: Option<f64>,
    /// 95th percentile of the packets' one-way delay, ms; `None` when no packet was delivered.
    pub p95_owd_ms: Option<f64>,
    /// Mean of the packets' one-way delay, ms; `None` when no packet was delivered.
    pub mean_owd_ms: Option<f64>,
    /// Mean of the sender's smoothed round-trip time, ms; `None` without a sample.
    pub mean_rtt_ms: Option<f64>,
    /// Fraction of the arriving packets that the link dropped for any reason; 0 when none arrived.
    #[serde(serialize_with = "finite")]
    pub loss_rate: f64,
    /// Number of segments that senders retransmitted.
    pub retransmissions: u64,
    /// Decision delays of the flows that an agent serves; `None` without such a flow.
    pub decision_delay: Option<DecisionDelay>,
    /// Jain's fairness index of the flows' throughputs; `None` for a single flow.
    pub jain: Option<f64>,
    /// The least flow's throughput over the greatest's; `None` for a single flow, and in files of
    /// older versions.
    #[serde(default)]
    pub least_over_greatest: Option<f64>,
    /// Time from the last flow's start until all flows had settled at equal shares, s
    /// ([`statistics::convergence`]); `None` when they never settled or there is one flow.
    pub convergence_s: Option<f64>,
    /// Messages of the flows' applications, by their names; absent where all flows are bulk flows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub apps: BTreeMap<String, AppMeasures>,
    /// Whether the figures can be trusted.
    pub validity: Validity,
    /// Measurements of each flow, in the scenario's order.
    pub flows: Vec<FlowRun>,
    /// The scored segments of the run, in order of time
    /// ([`Scenario::segments`]); absent in files of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<SegmentRun>,
}

/// Measurements of one scored segment of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SegmentRun {
    /// Start of the segment, s since the scenario's start.
    #[serde(serialize_with = "finite")]
    pub from_s: f64,
    /// End of the segment, s since the scenario's start.
    #[serde(serialize_with = "finite")]
    pub to_s: f64,
    /// Mean capacity of the link, Mbit/s of IP packets; `None` when it is unlimited.
    pub capacity_mbps: Option<f64>,
    /// Delivered rate of each flow, Mbit/s of IP packets, in the scenario's order.
    #[serde(serialize_with = "all_finite")]
    pub throughput_mbps: Vec<f64>,
    /// Mean of the one-way delay of all flows' packets, ms; `None` when no packet was delivered.
    pub mean_owd_ms: Option<f64>,
}

/// Measurements of one flow of a run, defined as those of [`Run`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowRun {
    /// Name of the flow's scheme.
    pub scheme: String,
    /// Start of the flow, s since the scenario's start.
    #[serde(serialize_with = "finite")]
    pub start_s: f64,
    /// Stop of the flow, s since the scenario's start.
    #[serde(serialize_with = "finite")]
    pub stop_s: f64,
    /// Throughput between the flow's start and stop, Mbit/s.
    #[serde(serialize_with = "finite")]
    pub throughput_mbps: f64,
    /// 95th percentile of the one-way delay, ms.
    pub p95_owd_ms: Option<f64>,
    /// Mean of the one-way delay, ms.
    pub mean_owd_ms: Option<f64>,
    /// Mean of the smoothed round-trip time, ms.
    pub mean_rtt_ms: Option<f64>,
    /// Fraction of the arriving packets that the link dropped.
    #[serde(serialize_with = "finite")]
    pub loss_rate: f64,
    /// Number of segments that the sender retransmitted.
    pub retransmissions: u64,
    /// Decision delays, if an agent served the flow.
    pub decision_delay: Option<DecisionDelay>,
}

/// Delays of decisions, µs: from the end of an observation window until its decision was published.
/// For a run with several served flows, each figure is the largest of the flows' figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DecisionDelay {
    /// Number of decisions that were published.
    pub decisions: u64,
    /// Median of the delays, µs.
    #[serde(serialize_with = "finite")]
    pub p50_us: f64,
    /// 99th percentile of the delays, µs.
    #[serde(serialize_with = "finite")]
    pub p99_us: f64,
    /// Longest of the delays, µs.
    #[serde(serialize_with = "finite")]
    pub max_us: f64,
}

/// Whether the figures of a run can be trusted, with the evidence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Validity {
    /// Reasons why the run is invalid; empty for a valid run.
    pub reasons: Vec<String>,
    /// Number of times that the run was tried, including this one.
    pub attempts: u32,
    /// 99.9th percentile of the lateness of packets that leave the emulator, for the worse
    /// direction, ms.
    #[serde(serialize_with = "finite")]
    pub lateness_p999_ms: f64,
    /// Largest lateness of any packet, ms.
    #[serde(serialize_with = "finite")]
    pub lateness_max_ms: f64,
    /// Packets that the TUN devices dropped before the emulator read them.
    pub ring_drops: u64,
    /// Packets that the kernel refused when the emulator wrote them.
    pub refused: u64,
    /// Longest total time that one thread of the emulator, the senders or the receivers was
    /// runnable but waited for a processor, ms; `None` where the kernel does not account for it.
    pub run_delay_ms: Option<f64>,
}

/// A run with its time series, the content of `runs/SCENARIO.SCHEME.N.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFile {
    /// Key that names the settings of the run; runs under other settings have other keys.
    pub key: String,
    /// Measurements of the run, as in the summary.
    pub run: Run,
    /// Time series of the run.
    pub series: Series,
    /// Messages of the flows' applications, by flow and start; absent where all flows are bulk
    /// flows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<MessageRecord>,
}

/// Time series of a run. Element `i` of every list covers `[i, i + 1) * bin_s` of scenario time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Length of a bin, s.
    #[serde(serialize_with = "finite")]
    pub bin_s: f64,
    /// Capacity of the link, Mbit/s of IP packets; `None` while it is unlimited.
    pub capacity_mbps: Vec<Option<f64>>,
    /// Mean one-way delay of the delivered packets, ms; `None` in a bin without any.
    pub delay_ms: Vec<Option<f64>>,
    /// Longest queue in each bin, bytes of IP.
    pub queue_bytes: Vec<u64>,
    /// Number of packets that the link dropped in each bin.
    pub dropped: Vec<u64>,
    /// Time series of each flow, in the scenario's order.
    pub flows: Vec<FlowSeries>,
}

/// Time series of one flow, with the bins of its [`Series`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowSeries {
    /// Delivered rate, Mbit/s of IP packets.
    #[serde(serialize_with = "all_finite")]
    pub throughput_mbps: Vec<f64>,
    /// Congestion window, segments; `None` in a bin without a sample.
    pub cwnd: Vec<Option<f64>>,
    /// Smoothed round-trip time, ms; `None` in a bin without a sample.
    pub rtt_ms: Vec<Option<f64>>,
}

impl Run {
    /// Whether the run is valid, so that its figures can be trusted.
    pub fn is_valid(&self) -> bool {
        self.validity.reasons.is_empty()
    }

    /// Name of the file that holds this run and its time series: `SCENARIO.SCHEME.N.json`.
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
            seconds: None,
        }
    }
}

/// Serializes a finite number. JSON has no others: serde_json would write `null`, which could not
/// be read back.
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
            ..RunFile::default()
        };
        let text = serde_json::to_string(&written).expect("every number is finite");
        let read: RunFile = serde_json::from_str(&text).expect("just written");
        assert_eq!(read, written);
        assert_eq!(written.run.file_name(), "a.cubic.0.json");
    }

    #[test]
    fn numbers_that_are_not_finite_become_null_or_are_refused() {
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
