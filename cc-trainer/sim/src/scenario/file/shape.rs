//! The tables of scenario files, as serde reads them.

use std::{fmt, path::PathBuf};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, value::MapAccessDeserializer},
};
use toml::Spanned;

use super::{application::AppValue, list::List, queue::QueueTable, score::ScoreTable, value::*};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    #[serde(default)]
    pub(super) scenario: List<ScenarioTable>,
}

/// Defines the table of a scenario, which has all keys of a direction beside its own, and the table
/// of a direction. Their common keys are listed once here, as serde's `flatten` would lose the
/// positions and the errors of unknown keys.
macro_rules! tables {
    ($($key:ident: $kind:ty,)*) => {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct ScenarioTable {
            pub(super) name: Spanned<ScenarioName>,
            #[serde(default)]
            pub(super) description: String,
            $(pub(super) $key: Option<Spanned<$kind>>,)*
            pub(super) sender: Option<SenderTable>,
            pub(super) reverse: Option<Spanned<DirectionTable>>,
            #[serde(default)]
            pub(super) flow: List<FlowTable>,
            pub(super) seconds: Option<PositiveSeconds>,
            pub(super) score: Option<Spanned<ScoreTable>>,
        }

        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct DirectionTable {
            $(pub(super) $key: Option<Spanned<$kind>>,)*
        }

        impl ScenarioTable {
            pub(super) fn take_forward(&mut self) -> DirectionTable {
                DirectionTable { $($key: self.$key.take(),)* }
            }
        }
    };
}

tables! {
    rate_mbps: LinkMbps,
    trace: PathBuf,
    schedule: List<PointTable>,
    repeat_s: PositiveSeconds,
    shaper: ShaperTable,
    opportunities: OpportunitiesTable,
    poisson: PoissonTable,
    cellular: CellularTable,
    delay_ms: Millis,
    delay_changes: List<ChangeTable>,
    delay_variation: VariationTable,
    jitter_ms: Millis,
    loss: LossValue,
    queue: QueueTable,
    policer: PolicerTable,
    aggregation_ms: PositiveMillis,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PointTable {
    pub(super) at_s: Seconds,
    pub(super) rate_mbps: ScheduleMbps,
    #[serde(default)]
    pub(super) ramp: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShaperTable {
    pub(super) rate_mbps: ConstantMbps,
    pub(super) burst_bytes: FullPackets,
    pub(super) peak_mbps: Option<Spanned<ConstantMbps>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpportunitiesTable {
    pub(super) every_ms: Option<PeriodMillis>,
    pub(super) packets: Option<PeriodPackets>,
    pub(super) mbps: Option<TraceMbps>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PoissonTable {
    pub(super) mbps: TraceMbps,
    pub(super) seconds: Option<TraceSeconds>,
    pub(super) ramp_s: Option<Seconds>,
    #[serde(default = "first_seed")]
    pub(super) seed: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CellularTable {
    pub(super) mbps: TraceMbps,
    pub(super) variation: Option<Variation>,
    pub(super) correlation_s: Option<PositiveSeconds>,
    pub(super) outage_share: Option<OutageShare>,
    pub(super) outage_s: Option<OutageSeconds>,
    pub(super) batch: Option<Batch>,
    pub(super) seconds: Option<TraceSeconds>,
    #[serde(default = "first_seed")]
    pub(super) seed: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeTable {
    pub(super) at_s: Seconds,
    pub(super) delay_ms: Millis,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VariationTable {
    pub(super) every_s: Option<PositiveSeconds>,
    pub(super) spread_ms: PositiveMillis,
    pub(super) drift_ms: Option<Millis>,
    #[serde(default = "first_seed")]
    pub(super) seed: u64,
}

/// A probability, or a table with the two states of a Gilbert-Elliott chain.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(in super::super) enum LossValue {
    Bernoulli(Probability),
    GilbertElliott(GilbertElliottTable),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct GilbertElliottTable {
    pub(super) to_bad: Probability,
    pub(super) to_good: Probability,
    pub(super) good: Option<Probability>,
    pub(super) bad: Option<Probability>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicerTable {
    pub(super) rate_mbps: ConstantMbps,
    pub(super) burst_bytes: FullPackets,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SenderTable {
    pub(super) rate_mbps: ConstantMbps,
    pub(super) burst_bytes: Option<FullPackets>,
    pub(super) packets: Option<QueuePackets>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowTable {
    pub(super) start_s: Option<Seconds>,
    pub(super) stop_s: Option<Spanned<Seconds>>,
    pub(super) scheme: Option<SchemeName>,
    pub(super) extra_delay_ms: Option<Millis>,
    pub(super) app: Option<Spanned<AppValue>>,
}

fn first_seed() -> u64 {
    1
}

impl<'de> Deserialize<'de> for LossValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Chooses by the type of the value, because an untagged enum would lose the position of an
        /// error inside.
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = LossValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a probability, or a table with to_bad and to_good")
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<LossValue, E> {
                Probability::try_from(value)
                    .map(LossValue::Bernoulli)
                    .map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<LossValue, E> {
                self.visit_f64(value as f64)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<LossValue, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map))
                    .map(LossValue::GilbertElliott)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
