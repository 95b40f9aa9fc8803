//! The values of scenario files. Parsing a value checks its limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::MTU;

/// Defines types of numbers within limits, which are stated in the errors.
macro_rules! quantities {
    ($($name:ident: $number:ident $from:literal in $range:expr, $what:literal;)*) => {$(
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(try_from = $from)]
        pub(crate) struct $name(pub(super) $number);

        impl TryFrom<$number> for $name {
            type Error = String;

            fn try_from(value: $number) -> Result<Self, String> {
                let range = $range;
                if range.contains(&value) {
                    return Ok(Self(value));
                }
                let (least, most) = (range.start(), range.end());
                let limits = format!("{} from {least} to {most}", $what);
                Err(format!("{limits} is wanted here, not {value}"))
            }
        }
    )*};
}

quantities! {
    AppBytes: u64 "u64" in 1..=1 << 32, "a number of bytes";
    AppCount: u32 "u32" in 1..=1_000_000, "a number";
    ArrivalRate: f64 "f64" in 0.001..=100_000.0, "a number of arrivals per second";
    Batch: f64 "f64" in 1.0..=1000.0, "a mean number of packets";
    ConstantMbps: f64 "f64" in 0.001..=100_000.0, "a rate in Mbit/s";
    Coupling: u32 "u32" in 1..=32, "a coupling factor";
    FullPackets: u64 "u64" in u64::from(MTU)..=1 << 40,
        "a number of bytes (a full packet at least)";
    Load: f64 "f64" in 0.001..=2.0, "a share of the link's rate";
    Millis: f64 "f64" in 0.0..=60_000.0, "a number of milliseconds";
    Multiple: f64 "f64" in 0.0..=1000.0, "a multiple of the bandwidth-delay product";
    OutageSeconds: f64 "f64" in 0.001..=60.0, "a number of seconds";
    OutageShare: f64 "f64" in 0.0..=0.95, "a share of the time";
    Percent: u32 "u32" in 1..=99, "a share in percent";
    PeriodMillis: u32 "u32" in 1..=60_000, "a whole number of milliseconds";
    PeriodPackets: u32 "u32" in 1..=100_000, "a number of packets";
    PositiveMillis: f64 "f64" in 0.001..=60_000.0, "a number of milliseconds";
    PositiveSeconds: f64 "f64" in 0.001..=86_400.0, "a number of seconds";
    Probability: f64 "f64" in 0.0..=1.0, "a probability";
    Quantum: u32 "u32" in 256..=1_000_000, "a number of bytes (the quantum)";
    QueueCount: u32 "u32" in 1..=65_536, "a number of queues";
    QueuePackets: u32 "u32" in 1..=100_000_000, "a number of packets";
    Seconds: f64 "f64" in 0.0..=86_400.0, "a number of seconds";
    SegmentBytes: u32 "u32" in 1..=1_448, "a number of bytes (one segment at most)";
    Shape: f64 "f64" in 0.1..=10.0, "a tail index";
    Sigma: f64 "f64" in 0.01..=5.0, "a standard deviation of the logarithm";
    TraceMbps: f64 "f64" in 0.001..=1000.0, "a rate in Mbit/s";
    TraceSeconds: f64 "f64" in 1.0..=100.0, "a length in seconds (the trace loops)";
    Variation: f64 "f64" in 0.0..=3.0, "a standard deviation over the mean";
}

/// Rate of a link in Mbit/s; an infinite one is an unlimited link.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "f64")]
pub(super) struct LinkMbps(pub(super) f64);

impl TryFrom<f64> for LinkMbps {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        if value == f64::INFINITY {
            return Ok(Self(value));
        }
        match ConstantMbps::try_from(value) {
            Ok(ConstantMbps(value)) => Ok(Self(value)),
            Err(message) => Err(format!("{message} (inf is a link that takes no time)")),
        }
    }
}

/// Rate in a schedule in Mbit/s, which may be 0.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "f64")]
pub(super) struct ScheduleMbps(pub(super) f64);

impl TryFrom<f64> for ScheduleMbps {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        if value == 0.0 {
            return Ok(Self(0.0));
        }
        match ConstantMbps::try_from(value) {
            Ok(ConstantMbps(value)) => Ok(Self(value)),
            Err(message) => Err(format!("{message} (0 is an outage)")),
        }
    }
}

/// Name of a scenario, which can be part of a file name.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct ScenarioName(pub(super) String);

impl TryFrom<String> for ScenarioName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let fits = name.len() <= 64
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if fits {
            Ok(Self(name))
        } else {
            let shown: String = name
                .chars()
                .take(70)
                .flat_map(char::escape_default)
                .collect();
            Err(format!(
                "`{shown}` cannot be a name: use 1 to 64 letters, digits, `-`, `_` and `.`, a \
                 letter or digit first"
            ))
        }
    }
}

/// Name of a scheme, as `--schemes` takes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct SchemeName(pub(super) String);

impl TryFrom<String> for SchemeName {
    type Error = String;

    fn try_from(scheme: String) -> Result<Self, String> {
        if scheme.is_empty() || scheme.contains([',', ' ', '\t', '\n']) {
            let shown = scheme.escape_default();
            return Err(format!(
                "`{shown}` is no scheme: name one, such as \"cubic\" (without the key, it is the \
                 one under test)"
            ));
        }
        Ok(Self(scheme))
    }
}

/// Name of the messages of a script's step in results.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct MessageName(pub(super) String);

impl TryFrom<String> for MessageName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        ScenarioName::try_from(name).map(|ScenarioName(name)| Self(name))
    }
}

impl Millis {
    pub(crate) fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0 / 1e3)
    }
}

impl PositiveMillis {
    pub(super) fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0 / 1e3)
    }
}

impl PositiveSeconds {
    pub(super) fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }
}

impl Seconds {
    pub(super) fn duration(self) -> Duration {
        Duration::from_secs_f64(self.0)
    }
}
