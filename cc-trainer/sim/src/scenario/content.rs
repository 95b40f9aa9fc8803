//! What a scenario is apart from its names: a text that is the same for all scenarios with the same
//! links, and digests of it.
//!
//! The text states every field that differs from its default, on a line of its own, with times in
//! µs and other numbers to seven digits, so that neither the way in which a file is written nor the
//! rounding of its units matters. A field that a later version adds leaves the digests of scenarios
//! that do not use it as they are.

use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{
    Aqm, CoDel, Delay, DelayChange, DelayVariation, Direction, Discipline, DualPi2, Flow, FqCoDel,
    Loss, Pie, Policer, Queue, Rate, RatePoint, Scenario, Scoring, SenderQueue, Service, Shaper,
    Trace,
};

/// SHA-256 of a link, which is both directions of a path, whatever its name and the flows on it.
pub fn link(scenario: &Scenario) -> [u8; 32] {
    digest(&link_text(scenario))
}

/// SHA-256 of a scenario without its name and description: its link, its flows and its scoring.
pub fn scenario(scenario: &Scenario) -> [u8; 32] {
    let mut text = link_text(scenario);
    for flow in &scenario.flows {
        write_flow(&mut text, flow);
    }
    write_scoring(&mut text, &scenario.scoring);
    digest(&text)
}

/// SHA-256 of scenarios in their order, without names and descriptions, in hexadecimal.
pub fn set(scenarios: &[Scenario]) -> String {
    let mut hasher = Sha256::new();
    for each in scenarios {
        hasher.update(scenario(each));
    }
    hexadecimal(&hasher.finalize())
}

/// Formats a digest in hexadecimal.
pub fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// The text that [`link`] is the digest of.
fn link_text(scenario: &Scenario) -> String {
    let mut text = String::new();
    if let Some(SenderQueue {
        bits_per_second,
        burst,
        packets,
    }) = scenario.sender
    {
        let rate = number(bits_per_second);
        line(
            &mut text,
            "sender",
            format_args!("{rate} {burst} {packets}"),
        );
    }
    for (name, direction) in [
        ("forward", &scenario.forward),
        ("reverse", &scenario.reverse),
    ] {
        line(&mut text, name, "");
        write_direction(&mut text, direction);
    }
    text
}

// The structures are taken apart without `..`, so that a new field cannot be forgotten here.

fn write_direction(text: &mut String, direction: &Direction) {
    let Direction {
        policer,
        queue,
        service,
        loss,
        aggregation,
        delay,
    } = direction;
    if let Some(Policer {
        bits_per_second,
        burst,
    }) = policer
    {
        line(
            text,
            "policer",
            format_args!("{} {burst}", number(*bits_per_second)),
        );
    }
    write_queue(text, queue);
    match service {
        Service::Unlimited => line(text, "unlimited", ""),
        Service::Rate(rate) => write_rate(text, rate),
        Service::Shaper(shaper) => write_shaper(text, shaper),
        Service::Opportunities(trace) => line(text, "opportunities", trace_digest(trace)),
    }
    match *loss {
        Loss::None => {}
        Loss::Bernoulli(probability) => line(text, "loss", number(probability)),
        Loss::GilbertElliott {
            to_bad,
            to_good,
            good,
            bad,
        } => {
            let numbers = [to_bad, to_good, good, bad].map(number);
            line(text, "loss", numbers.join(" "));
        }
    }
    if let Some(period) = aggregation {
        line(text, "aggregation", micros(*period));
    }
    let Delay {
        base,
        changes,
        variation,
        jitter,
    } = delay;
    line(text, "delay", micros(*base));
    for DelayChange { at, delay } in changes {
        line(
            text,
            "delay-change",
            format_args!("{} {}", micros(*at), micros(*delay)),
        );
    }
    if let Some(DelayVariation {
        every,
        spread,
        drift,
        seed,
    }) = variation
    {
        let times = [every, spread, drift].map(|time| micros(*time).to_string());
        line(
            text,
            "delay-variation",
            format_args!("{} {seed}", times.join(" ")),
        );
    }
    if !jitter.is_zero() {
        line(text, "jitter", micros(*jitter));
    }
}

fn write_shaper(text: &mut String, shaper: &Shaper) {
    let Shaper {
        bits_per_second,
        burst,
        peak_bits_per_second,
    } = shaper;
    let rate = number(*bits_per_second);
    line(text, "shaper", format_args!("{rate} {burst}"));
    if let Some(peak) = peak_bits_per_second {
        line(text, "shaper-peak", number(*peak));
    }
}

fn write_queue(text: &mut String, queue: &Queue) {
    let Queue {
        packets,
        bytes,
        discipline,
        ce_threshold,
        aqm,
    } = queue;
    if let Some(packets) = packets {
        line(text, "queue-packets", packets);
    }
    if let Some(bytes) = bytes {
        line(text, "queue-bytes", bytes);
    }
    match discipline {
        Discipline::DropTail => {}
        Discipline::DropHead => line(text, "drop-head", ""),
    }
    if let Some(threshold) = ce_threshold {
        line(text, "ce-threshold", micros(*threshold));
    }
    if let Some(aqm) = aqm {
        write_aqm(text, aqm);
    }
}

fn write_aqm(text: &mut String, aqm: &Aqm) {
    let codel =
        |CoDel {
             target,
             interval,
             ecn,
         }: &CoDel| format!("{} {} {ecn}", micros(*target), micros(*interval));
    match aqm {
        Aqm::CoDel(parameters) => line(text, "codel", codel(parameters)),
        Aqm::FqCoDel(FqCoDel {
            codel: parameters,
            quantum,
            queues,
        }) => {
            let parameters = codel(parameters);
            line(
                text,
                "fq-codel",
                format_args!("{parameters} {quantum} {queues}"),
            );
        }
        Aqm::Pie(Pie {
            target,
            update,
            ecn,
        }) => {
            let times = format_args!("{} {}", micros(*target), micros(*update));
            line(text, "pie", format_args!("{times} {ecn}"));
        }
        Aqm::DualPi2(DualPi2 {
            target,
            update,
            step,
            coupling,
            classic_percent,
        }) => {
            let times = [target, update, step].map(|time| micros(*time).to_string());
            line(
                text,
                "dualpi2",
                format_args!("{} {coupling} {classic_percent}", times.join(" ")),
            );
        }
    }
}

fn write_rate(text: &mut String, rate: &Rate) {
    let Rate { points, repeat } = rate;
    for RatePoint {
        at,
        bits_per_second,
        ramp,
    } in points
    {
        let ramp = if *ramp { " ramp" } else { "" };
        let rate = number(*bits_per_second);
        line(text, "rate", format_args!("{} {rate}{ramp}", micros(*at)));
    }
    if let Some(repeat) = repeat {
        line(text, "repeat", micros(*repeat));
    }
}

fn write_flow(text: &mut String, flow: &Flow) {
    let Flow {
        start,
        stop,
        scheme,
        extra_delay,
        app,
    } = flow;
    line(text, "flow", micros(*start));
    if let Some(stop) = stop {
        line(text, "stop", micros(*stop));
    }
    if let Some(scheme) = scheme {
        line(text, "scheme", scheme);
    }
    if !extra_delay.is_zero() {
        line(text, "extra-delay", micros(*extra_delay));
    }
    line(text, "app", format_args!("{app:?}"));
}

fn write_scoring(text: &mut String, scoring: &Scoring) {
    let Scoring {
        length,
        rule,
        flow,
        segments,
    } = scoring;
    if let Some(length) = length {
        line(text, "length", micros(*length));
    }
    if let Some(rule) = rule {
        line(text, "rule", rule.name());
    }
    if let Some(flow) = flow {
        line(text, "scored-flow", flow);
    }
    for segment in segments {
        let (start, end) = (micros(segment.start), micros(segment.end));
        line(text, "segment", format_args!("{start} {end}"));
    }
}

/// Adds a line. A `String` takes whatever is written to it.
fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{name} {value}");
}

fn micros(duration: Duration) -> u128 {
    (duration.as_nanos() + 500) / 1000
}

fn number(value: f64) -> String {
    format!("{value:.6e}")
}

/// Digest of a trace's times. A trace may have half a million of them.
fn trace_digest(trace: &Trace) -> String {
    let mut hasher = Sha256::new();
    hasher.update(trace.period_ms().to_le_bytes());
    for time in trace.times() {
        hasher.update(time.to_le_bytes());
    }
    hexadecimal(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(text: &str) -> Scenario {
        let scenarios = crate::scenario::parse(text, Path::new("test.toml"));
        scenarios.expect("valid").remove(0)
    }

    const PLAIN: &str = "[[scenario]]\nname = \"a\"\nrate_mbps = 12\ndelay_ms = 30\n";

    #[test]
    fn names_and_ways_of_writing_do_not_matter() {
        let plain = parse(&format!("{PLAIN}queue = {{ bdp = 1 }}"));
        let other = parse(
            "[[scenario]]\nname = \"other\"\ndescription = \"text\"\ndelay_ms = 30.0\nrate_mbps = \
             12.0\nqueue = { bytes = 90000 }\nloss = 0\n[scenario.reverse]\nrate_mbps = \
             12\ndelay_ms = 30\n[[scenario.flow]]\nstart_s = 0",
        );
        assert_eq!(scenario(&plain), scenario(&other));
    }

    #[test]
    fn flows_and_scoring_are_of_the_scenario_and_not_of_the_link() {
        let plain = parse(PLAIN);
        for more in [
            "flow = [{}, {}]",
            "flow = [{ scheme = \"cubic\" }]",
            "flow = [{ app = { kind = \"on-off\", on_s = 1, off_s = 1 } }]",
            "seconds = 10",
            "score = { segments_s = [[0, 3]] }",
        ] {
            let other = parse(&format!("{PLAIN}{more}"));
            assert_eq!(link(&plain), link(&other), "{more}");
            assert_ne!(scenario(&plain), scenario(&other), "{more}");
        }
    }

    #[test]
    fn every_property_of_a_link_matters() {
        let plain = link(&parse(PLAIN));
        let mut seen = vec![plain];
        for more in [
            "loss = 0.01",
            "loss = { to_bad = 0.01, to_good = 0.1 }",
            "queue = { packets = 10 }",
            "queue = { bytes = 15000 }",
            "queue = { packets = 10, drop = \"head\" }",
            "queue = { packets = 10, ce_threshold_ms = 5 }",
            "policer = { rate_mbps = 10, burst_bytes = 15000 }",
            "aggregation_ms = 5",
            "jitter_ms = 2",
            "delay_changes = [{ at_s = 5, delay_ms = 60 }]",
            "reverse = { rate_mbps = 1 }",
            "reverse = { loss = 0.01 }",
            "reverse = { delay_ms = 31 }",
            "sender = { rate_mbps = 12 }",
            "sender = { rate_mbps = 12, packets = 50 }",
        ] {
            let other = link(&parse(&format!("{PLAIN}{more}")));
            assert!(!seen.contains(&other), "{more}");
            seen.push(other);
        }
        let rate = "name = \"a\"\ndelay_ms = 30";
        for rate in [
            format!("[[scenario]]\n{rate}\nrate_mbps = 13"),
            format!("[[scenario]]\n{rate}\nrate_mbps = inf"),
            format!("[[scenario]]\n{rate}\nopportunities = {{ mbps = 12 }}"),
            format!(
                "[[scenario]]\n{rate}\nschedule = [{{ at_s = 0, rate_mbps = 12, ramp = true }}, \
                 {{ at_s = 5, rate_mbps = 6 }}]"
            ),
            format!(
                "[[scenario]]\n{rate}\nschedule = [{{ at_s = 0, rate_mbps = 12 }}, \
                 {{ at_s = 5, rate_mbps = 6 }}]"
            ),
            format!(
                "[[scenario]]\n{rate}\nrepeat_s = 10\nschedule = [{{ at_s = 0, rate_mbps = 12 }}, \
                 {{ at_s = 5, rate_mbps = 6 }}]"
            ),
        ] {
            let other = link(&parse(&rate));
            assert!(!seen.contains(&other), "{rate}");
            seen.push(other);
        }
    }
}
