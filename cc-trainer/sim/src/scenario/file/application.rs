//! The `app` of a flow: its keys, and which of them each kind of application takes.

use std::time::Duration;

use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer, value::SeqAccessDeserializer},
};
use toml::Spanned;

use super::{
    super::app::{
        App, Keystrokes, OnOff, RequestResponse, Script, ShortFlows, Sizes, Step as AppStep, Video,
    },
    Fault,
    list::List,
    value::*,
};
use crate::scenario::MTU;

/// Payload of a full segment in bytes, of the [`MTU`] that it takes on the link.
const MSS: f64 = 1_448.0;

/// The value of `app`: a table, or the name of an application that needs no keys.
#[derive(Debug)]
pub(in crate::scenario::file) struct AppValue(AppTable);

/// Defines the table of an application with the keys of all kinds, which are listed once here. A
/// tagged enum would lose the positions of errors inside.
macro_rules! keys {
    ($($key:ident: $kind:ty,)*) => {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct AppTable {
            kind: Spanned<Kind>,
            $($key: Option<Spanned<$kind>>,)*
        }

        impl AppTable {
            fn of(kind: Spanned<Kind>) -> Self {
                Self { kind, $($key: None,)* }
            }

            /// The position of the first key that is given and not among `allowed`.
            fn stranger(&self, allowed: &[&str]) -> Option<(&'static str, std::ops::Range<usize>)> {
                $(if let Some(value) = &self.$key && !allowed.contains(&stringify!($key)) {
                    return Some((stringify!($key), value.span()));
                })*
                None
            }
        }
    };
}

keys! {
    on_s: PositiveSeconds,
    off_s: PositiveSeconds,
    rate_mbps: ConstantMbps,
    random: bool,
    bytes: BytesValue,
    request_bytes: SegmentBytes,
    echo_bytes: SegmentBytes,
    think_ms: Millis,
    connection: Connection,
    count: AppCount,
    bitrates_mbps: Vec<ConstantMbps>,
    chunk_s: PositiveSeconds,
    buffer_s: PositiveSeconds,
    steps: List<StepTable>,
    repeat: bool,
    load: Load,
    per_s: ArrivalRate,
    sizes: SizesTable,
    mean_ms: PositiveMillis,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Bulk,
    OnOff,
    RequestResponse,
    Video,
    Script,
    ShortFlows,
    Keystrokes,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Connection {
    #[default]
    KeepAlive,
    New,
}

/// One size in bytes, or a list of them.
#[derive(Debug)]
struct BytesValue(Vec<u64>);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTable {
    pause_s: Option<PositiveSeconds>,
    name: Option<MessageName>,
    bytes: Option<AppBytes>,
    every_ms: Option<PositiveMillis>,
    for_s: Option<PositiveSeconds>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SizesTable {
    pareto: Option<Shape>,
    least_bytes: Option<AppBytes>,
    median_bytes: Option<AppBytes>,
    sigma: Option<Sigma>,
    most_bytes: Option<AppBytes>,
}

impl Kind {
    /// Name in scenario files, and the keys beside `kind`.
    fn describe(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Bulk => ("bulk", &[]),
            Self::OnOff => ("on-off", &["on_s", "off_s", "rate_mbps", "random"]),
            Self::RequestResponse => (
                "request-response",
                &[
                    "bytes",
                    "request_bytes",
                    "think_ms",
                    "random",
                    "connection",
                    "count",
                ],
            ),
            Self::Video => (
                "video",
                &["bitrates_mbps", "chunk_s", "buffer_s", "request_bytes"],
            ),
            Self::Script => ("script", &["steps", "repeat"]),
            Self::ShortFlows => ("short-flows", &["load", "per_s", "sizes", "count"]),
            Self::Keystrokes => ("keystrokes", &["mean_ms", "bytes", "echo_bytes"]),
        }
    }
}

impl AppValue {
    /// The application, on a link with this mean rate, bit/s; `None` when it is unlimited.
    /// `span` is the position of the whole value.
    pub(in crate::scenario::file) fn app(
        self,
        span: std::ops::Range<usize>,
        link: Option<f64>,
    ) -> Result<App, Fault> {
        let mut table = self.0;
        if table.kind.span().is_empty() {
            table.kind = Spanned::new(span, *table.kind.get_ref());
        }
        let (name, allowed) = table.kind.get_ref().describe();
        if let Some((key, span)) = table.stranger(allowed) {
            let message = match allowed {
                [] => format!("a `{name}` application has no keys: remove `{key}`"),
                _ => format!(
                    "`{key}` is no key of a `{name}` application, which has {}",
                    allowed.join(", ")
                ),
            };
            return Err(Fault { span, message });
        }
        Ok(match table.kind.get_ref() {
            Kind::Bulk => App::Bulk,
            Kind::OnOff => App::OnOff(OnOff {
                on: required(&table, "on_s", table.on_s.as_ref())?.duration(),
                off: required(&table, "off_s", table.off_s.as_ref())?.duration(),
                bits_per_second: table.rate_mbps.as_ref().map(|rate| rate.get_ref().0 * 1e6),
                random: given(table.random.as_ref(), false),
            }),
            Kind::RequestResponse => App::RequestResponse(RequestResponse {
                bytes: required(&table, "bytes", table.bytes.as_ref())?.0.clone(),
                request_bytes: given(table.request_bytes.as_ref(), SegmentBytes(200)).0,
                think: given(table.think_ms.as_ref(), Millis(0.0)).duration(),
                random: given(table.random.as_ref(), false),
                new_connections: matches!(
                    given(table.connection.as_ref(), Connection::KeepAlive),
                    Connection::New
                ),
                count: table.count.as_ref().map(|count| count.get_ref().0),
            }),
            Kind::Video => App::Video(table.video()?),
            Kind::Script => App::Script(script(&table)?),
            Kind::ShortFlows => App::ShortFlows(table.short_flows(link)?),
            Kind::Keystrokes => App::Keystrokes(Keystrokes {
                bytes: match &table.bytes {
                    None => 48,
                    Some(bytes) => match bytes.get_ref().0[..] {
                        [one] => one,
                        _ => {
                            return Err(Fault::at(
                                bytes,
                                "a keystroke has one size: give a number",
                            ));
                        }
                    },
                },
                echo_bytes: given(table.echo_bytes.as_ref(), SegmentBytes(48)).0,
                mean: given(table.mean_ms.as_ref(), PositiveMillis(200.0)).duration(),
            }),
        })
    }
}

impl AppTable {
    fn video(&self) -> Result<Video, Fault> {
        let rates = required(self, "bitrates_mbps", self.bitrates_mbps.as_ref())?;
        let bitrates: Vec<f64> = rates.iter().map(|rate| rate.0 * 1e6).collect();
        if bitrates.is_empty() || !bitrates.is_sorted() {
            return Err(Fault {
                span: self.bitrates_mbps.as_ref().map_or(0..0, Spanned::span),
                message: "`bitrates_mbps` must have a rate at least, in ascending order".to_owned(),
            });
        }
        let chunk = given(self.chunk_s.as_ref(), PositiveSeconds(4.0)).duration();
        let buffer = given(self.buffer_s.as_ref(), PositiveSeconds(20.0)).duration();
        if buffer < chunk {
            let span = self.buffer_s.as_ref().or(self.chunk_s.as_ref());
            return Err(Fault {
                span: span.map_or(0..0, Spanned::span),
                message: "the buffer holds less than a chunk: make `buffer_s` at least `chunk_s`"
                    .to_owned(),
            });
        }
        Ok(Video {
            bitrates,
            chunk,
            buffer,
            request_bytes: given(self.request_bytes.as_ref(), SegmentBytes(200)).0,
        })
    }

    fn short_flows(&self, link: Option<f64>) -> Result<ShortFlows, Fault> {
        required(self, "sizes", self.sizes.as_ref())?;
        let table = self.sizes.as_ref().ok_or_else(|| missing(self, "sizes"))?;
        let sizes = sizes(table)?;
        let per_second = match (&self.load, &self.per_s) {
            (None, Some(rate)) => rate.get_ref().0,
            (Some(load), None) => {
                let Some(link) = link else {
                    return Err(Fault::at(
                        load,
                        "an unlimited link has no load: give `per_s` instead",
                    ));
                };
                // The link carries headers too.
                let bits = sizes.mean() * 8.0 * f64::from(MTU) / MSS;
                load.get_ref().0 * link / bits
            }
            (Some(_), Some(second)) => {
                return Err(Fault::at(
                    second,
                    "both `load` and `per_s` say how many connections arrive: keep one",
                ));
            }
            (None, None) => return Err(missing(self, "load")),
        };
        Ok(ShortFlows {
            per_second,
            sizes,
            count: self.count.as_ref().map(|count| count.get_ref().0),
        })
    }
}

fn script(table: &AppTable) -> Result<Script, Fault> {
    let repeat = given(table.repeat.as_ref(), false);
    let mut steps = Vec::new();
    let tables = required(table, "steps", table.steps.as_ref())?;
    for (number, table) in (1..).zip(&tables.0) {
        steps.push(step(number, table)?);
    }
    let kind = &table.kind;
    let writes = |step: &AppStep| matches!(step, AppStep::Write { .. });
    if !steps.iter().any(writes) {
        return Err(Fault::at(
            kind,
            "the script writes nothing: add a step such as { bytes = 6000, every_ms = 50, for_s = \
             20 }",
        ));
    }
    // A repeated script whose steps take no time would never come to an end.
    let takes_time = |step: &AppStep| match step {
        AppStep::Pause(_) => true,
        AppStep::Write { every, .. } => !every.is_zero(),
    };
    if repeat && !steps.iter().any(takes_time) {
        return Err(Fault::at(
            kind,
            "the repeated steps take no time: add a step such as { pause_s = 1 }",
        ));
    }
    Ok(Script { steps, repeat })
}

fn step(number: u32, table: &Spanned<StepTable>) -> Result<AppStep, Fault> {
    let StepTable {
        pause_s,
        name,
        bytes,
        every_ms,
        for_s,
    } = table.get_ref();
    let name = || {
        let own = name.as_ref().map(|name| name.0.clone());
        own.unwrap_or_else(|| format!("step-{number}"))
    };
    match (pause_s, bytes, every_ms, for_s) {
        (Some(pause), None, None, None) => Ok(AppStep::Pause(pause.duration())),
        (None, Some(bytes), None, None) => Ok(AppStep::Write {
            name: name(),
            bytes: bytes.0,
            every: Duration::ZERO,
            times: 1,
        }),
        (None, Some(bytes), Some(every), Some(length)) => {
            let times = length.duration().as_nanos() / every.duration().as_nanos().max(1);
            Ok(AppStep::Write {
                name: name(),
                bytes: bytes.0,
                every: every.duration(),
                times: u32::try_from(times).unwrap_or(u32::MAX).max(1),
            })
        }
        _ => Err(Fault::at(
            table,
            "a step is { pause_s }, { bytes }, or { bytes, every_ms, for_s }, and those that \
             write may have a name",
        )),
    }
}

fn sizes(table: &Spanned<SizesTable>) -> Result<Sizes, Fault> {
    let SizesTable {
        pareto,
        least_bytes,
        median_bytes,
        sigma,
        most_bytes,
    } = table.get_ref();
    let (sizes, least) = match (pareto, least_bytes, median_bytes, sigma, most_bytes) {
        (Some(shape), Some(least), None, None, Some(most)) => {
            let (shape, least, most) = (shape.0, least.0, most.0);
            (Sizes::Pareto { shape, least, most }, least)
        }
        (None, None, Some(median), Some(sigma), Some(most)) => {
            let (median, sigma, most) = (median.0, sigma.0, most.0);
            let sizes = Sizes::LogNormal {
                median,
                sigma,
                most,
            };
            (sizes, median)
        }
        _ => {
            return Err(Fault::at(
                table,
                "`sizes` is { pareto, least_bytes, most_bytes } or { median_bytes, sigma, \
                 most_bytes }",
            ));
        }
    };
    if most_bytes.as_ref().is_some_and(|most| most.0 < least) {
        return Err(Fault::at(
            table,
            "`most_bytes` is less than the other size: make it larger",
        ));
    }
    Ok(sizes)
}

fn required<'a, T>(
    table: &AppTable,
    key: &str,
    value: Option<&'a Spanned<T>>,
) -> Result<&'a T, Fault> {
    value
        .map(Spanned::get_ref)
        .ok_or_else(|| missing(table, key))
}

fn missing(table: &AppTable, key: &str) -> Fault {
    let (name, _) = table.kind.get_ref().describe();
    Fault::at(
        &table.kind,
        format!("a `{name}` application needs `{key}`: add it"),
    )
}

fn given<T: Copy>(value: Option<&Spanned<T>>, default: T) -> T {
    value.map_or(default, |value| *value.get_ref())
}

impl<'de> Deserialize<'de> for AppValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Chooses by the type of the value, because an untagged enum would lose the position of an
        /// error inside.
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = AppValue;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the name of an application, or a table with its kind and its keys")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<AppValue, E> {
                let kind = Kind::deserialize(de::value::StrDeserializer::new(name))?;
                // Errors about the kind are about the whole value.
                Ok(AppValue(AppTable::of(Spanned::new(0..0, kind))))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<AppValue, A::Error> {
                AppTable::deserialize(MapAccessDeserializer::new(map)).map(AppValue)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for BytesValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = BytesValue;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of bytes, or a list of such numbers")
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<BytesValue, E> {
                let bytes = u64::try_from(bytes).unwrap_or(0);
                let AppBytes(bytes) = AppBytes::try_from(bytes).map_err(E::custom)?;
                Ok(BytesValue(vec![bytes]))
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<BytesValue, E> {
                let AppBytes(bytes) = AppBytes::try_from(bytes).map_err(E::custom)?;
                Ok(BytesValue(vec![bytes]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, items: A) -> Result<BytesValue, A::Error> {
                let items: Vec<AppBytes> =
                    Deserialize::deserialize(SeqAccessDeserializer::new(items))?;
                if items.is_empty() {
                    return Err(de::Error::custom("the list of sizes is empty: add one"));
                }
                Ok(BytesValue(
                    items.into_iter().map(|AppBytes(bytes)| bytes).collect(),
                ))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
