//! Scenario files: TOML to [`Scenario`], with errors that name file, line and remedy.

mod build;
mod shape;
#[cfg(test)]
mod tests;
mod value;

use std::{collections::BTreeMap, ops::Range, path::Path};

use toml::Spanned;

use super::{MTU, Scenario, ScenarioError};

/// Flows that a scenario may have.
pub const MAX_FLOWS: usize = 64;

/// Scenarios of a file's text. Its folder is where the paths of traces count from.
///
/// A file is a list of `[[scenario]]` tables. Times of day are none: everything counts from the scenario's start.
///
/// | key | value | default |
/// |---|---|---|
/// | `name` | letters, digits, `-`, `_`, `.`; unique in the file | |
/// | `description` | a line for people | empty |
/// | `rate_mbps` | a constant rate of IP packets, Mbit/s; `inf` for a link that takes no time | one of these |
/// | `trace` | a file in mahimahi's format; its path counts from the scenario file's folder | one of these |
/// | `schedule` | `[{ at_s = 0, rate_mbps = 12, ramp = false }, …]`: the rate from a time on; 0 is an outage, `ramp = true` moves linearly to the next | one of these |
/// | `repeat_s` | start the `schedule` again after so long | never |
/// | `opportunities` | `{ every_ms = 200, packets = 10 }`, or `{ mbps = 77.72 }` evenly spread over 60 s of 1 ms steps: as a trace | one of these |
/// | `poisson` | `{ mbps, seconds = 60, ramp_s = 0, seed = 1 }`: a trace of random deliveries, after a ramp of one each 100 ms | one of these |
/// | `cellular` | `{ mbps, variation = 0.6, correlation_s = 4, outage_share = 0.03, outage_s = 0.3, batch = 2, seconds = 60, seed = 1 }`: a generated cellular trace ([`Cellular`](super::Cellular)) | one of these |
/// | `delay_ms` | propagation, one way | (the reverse way: the same) |
/// | `delay_changes` | `[{ at_s, delay_ms }, …]`: another delay from a time on | none (the reverse way: the same) |
/// | `jitter_ms` | standard deviation of the delay per packet; packets keep their order | 0 |
/// | `loss` | a probability, or `{ to_bad, to_good, good = 0, bad = 1 }`: two states with their own loss, which may change at every packet | 0 |
/// | `queue` | `{ packets = N }`, `{ bytes = N }`, both, or `{ bdp = X }` (mean rate × base RTT × X); with `drop = "head"` the oldest goes when it is full | unlimited |
/// | `policer` | `{ rate_mbps, burst_bytes }`: a token bucket ahead of the queue | none |
/// | `aggregation_ms` | packets leave the link together, once each such period | none |
/// | `[scenario.reverse]` | the way of the acknowledgements: every key from `rate_mbps` to here | same rate and delay, nothing else |
/// | `[[scenario.flow]]` | `{ start_s = 0, stop_s, scheme, extra_delay_ms = 0 }`: a bulk flow; without `scheme` it runs the one under test; the extra delay counts each way | one flow |
///
/// The time average of a `schedule` counts its last rate for as long as all before it, where it does not repeat.
pub fn parse(text: &str, path: &Path) -> Result<Vec<Scenario>, ScenarioError> {
    let invalid = |fault: Fault| {
        let (line, column) = position(text, fault.span.start);
        ScenarioError::Invalid {
            path: path.to_owned(),
            line,
            column,
            message: fault.message,
        }
    };
    let document: shape::Document = toml::from_str(text).map_err(|error| {
        // A message may have several lines, of which each says a part.
        let message = error.message().trim().replace('\n', ", ");
        invalid(Fault {
            span: error.span().unwrap_or(0..0),
            message,
        })
    })?;
    if document.scenario.0.is_empty() {
        let message =
            "there is no scenario: add a [[scenario]] table with name, rate_mbps and delay_ms";
        return Err(invalid(Fault {
            span: 0..0,
            message: message.to_owned(),
        }));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut lines = BTreeMap::new();
    let mut scenarios = Vec::with_capacity(document.scenario.0.len());
    for table in document.scenario.0 {
        let name = table.get_ref().name.clone();
        let line = position(text, name.span().start).0;
        if let Some(first) = lines.insert(name.get_ref().0.clone(), line) {
            let message = format!(
                "`{}` is also the name of the scenario at line {first}: rename one",
                name.get_ref().0
            );
            return Err(invalid(Fault {
                span: name.span(),
                message,
            }));
        }
        scenarios.push(table.into_inner().scenario(folder).map_err(invalid)?);
    }
    Ok(scenarios)
}

/// Line and column of a byte, both from 1.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte.min(text.len())).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

/// What is wrong where.
#[derive(Debug)]
struct Fault {
    /// Bytes of the text.
    span: Range<usize>,
    message: String,
}

impl Fault {
    fn at<T>(value: &Spanned<T>, message: impl Into<String>) -> Self {
        Self {
            span: value.span(),
            message: message.into(),
        }
    }
}
