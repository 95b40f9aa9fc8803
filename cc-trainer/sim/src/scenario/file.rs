//! Scenario files: parses TOML to [`Scenario`]s, with errors that state the file, the line and a
//! remedy.

mod application;
mod build;
mod list;
mod queue;
mod score;
mod shape;
#[cfg(test)]
mod tests;
mod value;

use std::{collections::BTreeMap, ops::Range, path::Path};

use toml::Spanned;

pub(super) use shape::LossValue;
pub(crate) use value::Millis;

use super::{MTU, Scenario, ScenarioError};

/// Most flows that a scenario may have.
pub const MAX_FLOWS: usize = 64;

/// Parses the text of a scenario file. Paths of traces are relative to the directory of `path`,
/// which errors name as well.
///
/// A file is a list of `[[scenario]]` tables. All times count from the scenario's start, and rates
/// are those of IP packets. A `[[scenario]]` has these keys:
///
/// - `name`: letters, digits, `-`, `_` and `.`; unique in the file.
/// - `description`: one line of text; empty by default.
/// - Exactly one of the following keys, which give the link's rate:
///   - `rate_mbps`: a constant rate in Mbit/s; `inf` for an unlimited link.
///   - `trace`: the path of a file in mahimahi's format.
///   - `schedule`: `[{ at_s = 0, rate_mbps = 12, ramp = false }, …]`, the rate from each time on.
///     Rate 0 is an outage, and `ramp = true` changes the rate linearly until the next point.
///     `repeat_s` repeats the schedule with that period.
///   - `shaper`: `{ rate_mbps, burst_bytes, peak_mbps = inf }`, a token bucket that serves the
///     queue: bursts leave at the peak rate.
///   - `opportunities`: `{ every_ms = 200, packets = 10 }`, or `{ mbps = 77.72 }` for a trace of
///     60 s with evenly spaced opportunities on a grid of 1 ms.
///   - `poisson`: `{ mbps, seconds = 60, ramp_s = 0, seed = 1 }`, a trace of random deliveries
///     after a ramp with one packet per 100 ms ([`Poisson`](super::Poisson)).
///   - `cellular`: `{ mbps, variation = 0.6, correlation_s = 4, outage_share = 0.03,
///     outage_s = 0.3, batch = 2, seconds = 60, seed = 1 }`, a generated cellular trace
///     ([`Cellular`](super::Cellular)).
/// - `delay_ms`: the one-way propagation delay in ms.
/// - `delay_changes`: `[{ at_s, delay_ms }, …]`, the delay from each time on; none by default.
/// - `delay_variation`: `{ every_s = 15, spread_ms, drift_ms = 0, seed = 1 }`, a delay on top that
///   jumps once a period and drifts within it ([`DelayVariation`](super::DelayVariation)).
/// - `jitter_ms`: the standard deviation of each packet's delay, 0 by default. Packets of a flow
///   keep their order.
/// - `loss`: a probability, or `{ to_bad, to_good, good = 0, bad = 1 }` for a Gilbert-Elliott chain
///   that may change its state before every packet; 0 by default.
/// - `queue`: `{ packets = N }`, `{ bytes = N }`, both, or `{ bdp = X }` (mean rate × base RTT ×
///   X); `drop = "head"` drops the oldest packets of a full queue. Unlimited by default.
///   `ce_threshold_ms = 5` beside a limit marks ECN-capable packets that waited longer than that
///   (congestion experienced); connections negotiate ECN if a queue of the scenario marks.
///   `aqm` is active queue management by one of the following, with further keys. Without a limit
///   the queue has that of Linux's qdisc then.
///   - `codel`: `target_ms = 5`, `interval_ms = 100`, `ecn = false` ([`CoDel`](super::CoDel)).
///   - `fq_codel`: the same, `ecn = true`, `quantum = 1500`, `queues = 1024`
///     ([`FqCoDel`](super::FqCoDel)).
///   - `pie`: `target_ms = 15`, `update_ms = 15`, `ecn = false` ([`Pie`](super::Pie)).
///   - `dualpi2`: `target_ms = 15`, `update_ms = 16`, `step_ms = 1`, `coupling = 2`,
///     `classic_percent = 10` ([`DualPi2`](super::DualPi2)).
/// - `policer`: `{ rate_mbps, burst_bytes }`, a token bucket ahead of the queue; none by default.
/// - `aggregation_ms`: packets leave the link together, once per period; none by default.
/// - `[scenario.reverse]`: a table with any of the keys from the rate to here, for the direction of
///   the acknowledgements. By default it has the same rate and delay, and none of the rest.
/// - `sender`: `{ rate_mbps, burst_bytes, packets = 1000 }`, a queue of the sending host itself,
///   which TCP does not fill ([`SenderQueue`](super::SenderQueue)); none by default. The burst is
///   what the rate carries in 0.2 ms, and one and a half packets at least.
/// - `[[scenario.flow]]`: `{ start_s = 0, stop_s, scheme, extra_delay_ms = 0, app = "bulk" }`, a
///   flow. It runs the scheme under test unless it names one. The extra delay is added in each
///   direction. By default there is one bulk flow.
///   - `app`: the name of an [`App`](super::App), or a table with the name as `kind` and its keys:
///     - `bulk`: no keys.
///     - `on-off`: `on_s`, `off_s`, `rate_mbps` (what the connection takes), `random = false`.
///     - `request-response`: `bytes = N` or `[N, …]`, `request_bytes = 200`, `think_ms = 0`,
///       `random = false`, `connection = "keep-alive"` or `"new"`, `count`.
///     - `video`: `bitrates_mbps = […]`, `chunk_s = 4`, `buffer_s = 20`, `request_bytes = 200`.
///     - `script`: `steps = [{ bytes, every_ms, for_s, name }, { pause_s }, …]`, `repeat = false`.
///     - `short-flows`: `load` (a share of the link's mean rate) or `per_s`, `count`, `sizes = {
///       pareto = 1.2, least_bytes, most_bytes }` or `{ median_bytes, sigma, most_bytes }`.
///     - `keystrokes`: `mean_ms = 200`, `bytes = 48`, `echo_bytes = 48`.
///
/// The mean rate of a `schedule` that does not repeat counts the last rate for as long as all rates
/// before it.
///
/// # Errors
///
/// Returns [`ScenarioError::Invalid`] with the position of the first error.
///
/// # Examples
///
/// ```
/// use std::{path::Path, time::Duration};
///
/// let text = r#"
///     [[scenario]]
///     name = "shared"
///     rate_mbps = 12
///     delay_ms = 30
///     queue = { bdp = 1 }
///
///     [[scenario.flow]]
///
///     [[scenario.flow]]
///     start_s = 10
///     scheme = "cubic"
/// "#;
/// let scenarios = cc_sim::scenario::parse(text, Path::new("links.toml"))?;
/// let shared = &scenarios[0];
/// assert_eq!(shared.base_rtt(), Duration::from_millis(60));
/// assert_eq!(shared.forward.queue.bytes, Some(90_000));
/// assert_eq!(shared.flows[1].scheme.as_deref(), Some("cubic"));
///
/// let error = cc_sim::scenario::parse("[[scenario]]\n", Path::new("links.toml")).unwrap_err();
/// assert!(error.to_string().starts_with("links.toml:1:1: missing field `name`"));
/// # Ok::<(), cc_sim::scenario::ScenarioError>(())
/// ```
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
        // A message of several lines states a part of the error in each line.
        let mut message = error.message().trim().replace('\n', ", ");
        if !text.contains("scenario") {
            message += "; a file of scenarios is TOML with [[scenario]] tables (a trace of \
                        mahimahi's is named by the key `trace` of one)";
        }
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

/// An error at a position of the text.
#[derive(Debug)]
struct Fault {
    /// Byte range in the text.
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
