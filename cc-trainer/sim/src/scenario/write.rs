//! Writes scenarios as a scenario file, the inverse of [`parse`](super::parse).

mod application;
#[cfg(test)]
mod tests;

use std::{fmt::Write as _, time::Duration};

use super::{
    App, Aqm, CoDel, Delay, DelayChange, DelayVariation, Direction, Discipline, DualPi2, Flow,
    FqCoDel, Loss, Pie, Policer, Queue, Rate, RatePoint, Scenario, Scoring, SenderQueue, Service,
    Shaper,
};

/// A scenario file names a trace by its path, so it cannot hold one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "scenario `{scenario}`: its link follows a trace, which a scenario file cannot hold; write the \
     trace to a file of its own and name that by the key `trace`"
)]
pub struct TraceInLine {
    /// Name of the scenario that has the trace.
    pub scenario: String,
}

/// The text of a scenario file with these scenarios. [`parse`](super::parse) returns them again.
///
/// # Errors
///
/// Returns an error when a link follows a trace.
pub fn write(scenarios: &[Scenario]) -> Result<String, TraceInLine> {
    let blocks: Result<Vec<String>, _> = scenarios.iter().map(block).collect();
    Ok(blocks?.join("\n"))
}

// The structures are taken apart without `..`, so that a new field cannot be forgotten here.

fn block(scenario: &Scenario) -> Result<String, TraceInLine> {
    let Scenario {
        name,
        description,
        forward,
        reverse,
        sender,
        flows,
        scoring,
    } = scenario;
    let trace = || TraceInLine {
        scenario: name.clone(),
    };
    let mut text = format!("[[scenario]]\nname = {}\n", quoted(name));
    if !description.is_empty() {
        line(&mut text, "description", &quoted(description));
    }
    let Scoring {
        length,
        rule,
        flow,
        segments,
    } = scoring;
    if let Some(length) = length {
        line(&mut text, "seconds", &seconds(*length));
    }
    let rule = rule.map(|rule| pair("rule", quoted(rule.name())));
    let flow = flow.map(|flow| pair("flow", flow));
    let segments = (!segments.is_empty()).then(|| {
        let bounds = segments.iter();
        let bounds =
            bounds.map(|from_to| format!("[{}, {}]", seconds(from_to.start), seconds(from_to.end)));
        pair("segments_s", list(bounds))
    });
    let score: Vec<String> = [rule, flow, segments].into_iter().flatten().collect();
    if !score.is_empty() {
        line(&mut text, "score", &table(score));
    }
    if let Some(SenderQueue {
        bits_per_second,
        burst,
        packets,
    }) = sender
    {
        let keys = vec![
            pair("rate_mbps", mbps(*bits_per_second)),
            pair("burst_bytes", burst),
            pair("packets", packets),
        ];
        line(&mut text, "sender", &table(keys));
    }
    service(&mut text, &forward.service).ok_or_else(trace)?;
    delay(&mut text, &forward.delay);
    rest(&mut text, forward);
    write_reverse(&mut text, forward, reverse).ok_or_else(trace)?;
    if flows.as_slice() != [Flow::default()] {
        for flow in flows {
            write_flow(&mut text, flow);
        }
    }
    Ok(text)
}

/// Writes the table of the reverse direction, which has the forward one's service and delay unless
/// it says otherwise. Returns `None` when it follows a trace of its own.
fn write_reverse(text: &mut String, forward: &Direction, reverse: &Direction) -> Option<()> {
    let mut keys = String::new();
    if reverse.service != forward.service {
        service(&mut keys, &reverse.service)?;
    }
    // The jitter of the forward direction is not taken over.
    let taken_over = Delay {
        jitter: Duration::ZERO,
        ..forward.delay.clone()
    };
    if reverse.delay != taken_over {
        delay(&mut keys, &reverse.delay);
    }
    rest(&mut keys, reverse);
    if !keys.is_empty() {
        *text += "\n[scenario.reverse]\n";
        *text += &keys;
    }
    Some(())
}

/// Writes the rate of a link; returns `None` when it follows a trace.
fn service(text: &mut String, service: &Service) -> Option<()> {
    match service {
        Service::Unlimited => line(text, "rate_mbps", "inf"),
        Service::Rate(Rate { points, repeat }) => match (points.as_slice(), repeat) {
            ([only], None) if !only.ramp && only.bits_per_second > 0.0 => {
                line(text, "rate_mbps", &mbps(only.bits_per_second));
            }
            _ => {
                let points: Vec<String> = points.iter().map(rate_point).collect();
                // One to a line, since there may be many.
                line(
                    text,
                    "schedule",
                    &format!("[\n    {},\n]", points.join(",\n    ")),
                );
                if let Some(repeat) = repeat {
                    line(text, "repeat_s", &seconds(*repeat));
                }
            }
        },
        Service::Shaper(Shaper {
            bits_per_second,
            burst,
            peak_bits_per_second,
        }) => {
            let mut keys = vec![
                pair("rate_mbps", mbps(*bits_per_second)),
                pair("burst_bytes", burst),
            ];
            keys.extend(peak_bits_per_second.map(|peak| pair("peak_mbps", mbps(peak))));
            line(text, "shaper", &table(keys));
        }
        Service::Opportunities(_) => return None,
    }
    Some(())
}

fn rate_point(point: &RatePoint) -> String {
    let RatePoint {
        at,
        bits_per_second,
        ramp,
    } = point;
    let mut keys = vec![
        pair("at_s", seconds(*at)),
        pair("rate_mbps", mbps(*bits_per_second)),
    ];
    keys.extend(ramp.then(|| pair("ramp", true)));
    table(keys)
}

fn delay(text: &mut String, delay: &Delay) {
    let Delay {
        base,
        changes,
        variation,
        // Written with what is not taken over from the other direction.
        jitter: _,
    } = delay;
    line(text, "delay_ms", &milliseconds(*base));
    if !changes.is_empty() {
        let change = |&DelayChange { at, delay }: &DelayChange| {
            table([
                pair("at_s", seconds(at)),
                pair("delay_ms", milliseconds(delay)),
            ])
        };
        line(text, "delay_changes", &list(changes.iter().map(change)));
    }
    if let Some(DelayVariation {
        every,
        spread,
        drift,
        seed,
    }) = variation
    {
        let keys = [
            pair("every_s", seconds(*every)),
            pair("spread_ms", milliseconds(*spread)),
            pair("drift_ms", milliseconds(*drift)),
            pair("seed", seed),
        ];
        line(text, "delay_variation", &table(keys));
    }
}

/// Writes what a direction has beside its rate and delay.
fn rest(text: &mut String, direction: &Direction) {
    let Direction {
        policer,
        queue,
        service: _,
        loss,
        aggregation,
        delay,
    } = direction;
    if !delay.jitter.is_zero() {
        line(text, "jitter_ms", &milliseconds(delay.jitter));
    }
    match *loss {
        Loss::None => {}
        Loss::Bernoulli(probability) => line(text, "loss", &probability.to_string()),
        Loss::GilbertElliott {
            to_bad,
            to_good,
            good,
            bad,
        } => {
            let keys = [
                ("to_bad", to_bad),
                ("to_good", to_good),
                ("good", good),
                ("bad", bad),
            ];
            line(
                text,
                "loss",
                &table(keys.map(|(key, value)| pair(key, value))),
            );
        }
    }
    if *queue != Queue::default() {
        line(text, "queue", &table(queue_keys(queue)));
    }
    if let Some(Policer {
        bits_per_second,
        burst,
    }) = policer
    {
        let keys = [
            pair("rate_mbps", mbps(*bits_per_second)),
            pair("burst_bytes", burst),
        ];
        line(text, "policer", &table(keys));
    }
    if let Some(period) = aggregation {
        line(text, "aggregation_ms", &milliseconds(*period));
    }
}

fn queue_keys(queue: &Queue) -> Vec<String> {
    let Queue {
        packets,
        bytes,
        discipline,
        ce_threshold,
        aqm,
    } = queue;
    let mut keys = Vec::new();
    keys.extend(packets.map(|packets| pair("packets", packets)));
    keys.extend(bytes.map(|bytes| pair("bytes", bytes)));
    if *discipline == Discipline::DropHead {
        keys.push(pair("drop", quoted("head")));
    }
    keys.extend(ce_threshold.map(|time| pair("ce_threshold_ms", milliseconds(time))));
    match aqm {
        None => {}
        Some(Aqm::CoDel(codel)) => keys.extend(codel_keys("codel", codel)),
        Some(Aqm::FqCoDel(FqCoDel {
            codel,
            quantum,
            queues,
        })) => {
            keys.extend(codel_keys("fq_codel", codel));
            keys.extend([pair("quantum", quantum), pair("queues", queues)]);
        }
        Some(Aqm::Pie(Pie {
            target,
            update,
            ecn,
        })) => keys.extend([
            pair("aqm", quoted("pie")),
            pair("target_ms", milliseconds(*target)),
            pair("update_ms", milliseconds(*update)),
            pair("ecn", ecn),
        ]),
        Some(Aqm::DualPi2(DualPi2 {
            target,
            update,
            step,
            coupling,
            classic_percent,
        })) => keys.extend([
            pair("aqm", quoted("dualpi2")),
            pair("target_ms", milliseconds(*target)),
            pair("update_ms", milliseconds(*update)),
            pair("step_ms", milliseconds(*step)),
            pair("coupling", coupling),
            pair("classic_percent", classic_percent),
        ]),
    }
    keys
}

fn codel_keys(name: &str, codel: &CoDel) -> [String; 4] {
    let CoDel {
        target,
        interval,
        ecn,
    } = codel;
    [
        pair("aqm", quoted(name)),
        pair("target_ms", milliseconds(*target)),
        pair("interval_ms", milliseconds(*interval)),
        pair("ecn", ecn),
    ]
}

fn write_flow(text: &mut String, flow: &Flow) {
    let Flow {
        start,
        stop,
        scheme,
        extra_delay,
        app,
    } = flow;
    *text += "\n[[scenario.flow]]\n";
    if !start.is_zero() {
        line(text, "start_s", &seconds(*start));
    }
    if let Some(stop) = stop {
        line(text, "stop_s", &seconds(*stop));
    }
    if let Some(scheme) = scheme {
        line(text, "scheme", &quoted(scheme));
    }
    if !extra_delay.is_zero() {
        line(text, "extra_delay_ms", &milliseconds(*extra_delay));
    }
    if *app != App::Bulk {
        let kind = pair("kind", quoted(app.name()));
        let keys = std::iter::once(kind).chain(application::keys(app));
        line(text, "app", &table(keys));
    }
}

fn line(text: &mut String, key: &str, value: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{key} = {value}");
}

fn pair(key: &str, value: impl std::fmt::Display) -> String {
    format!("{key} = {value}")
}

fn table(keys: impl IntoIterator<Item = String>) -> String {
    let keys: Vec<String> = keys.into_iter().collect();
    format!("{{ {} }}", keys.join(", "))
}

fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(", "))
}

/// The text as a TOML string in quotes.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A rate in bit/s as the number of Mbit/s that is parsed to exactly this rate, if there is one.
fn mbps(bits_per_second: f64) -> String {
    let near = bits_per_second / 1e6;
    let candidates = [near, near.next_up(), near.next_down()];
    let exact = candidates
        .into_iter()
        .find(|mbps| mbps * 1e6 == bits_per_second);
    exact.unwrap_or(near).to_string()
}

fn seconds(time: Duration) -> String {
    decimal(time, 9)
}

fn milliseconds(time: Duration) -> String {
    decimal(time, 6)
}

/// A time in units of 10^`digits` ns as an exact decimal number.
fn decimal(time: Duration, digits: u32) -> String {
    let (nanos, unit) = (time.as_nanos(), 10_u128.pow(digits));
    let (whole, part) = (nanos / unit, nanos % unit);
    let text = format!("{whole}.{part:0width$}", width = digits as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
