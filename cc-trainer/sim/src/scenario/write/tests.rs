//! Scenarios are read as they were written.

use std::path::Path;

use super::*;
use crate::scenario::{SETS, families::Family, parse};

#[track_caller]
fn returns(scenarios: &[Scenario]) {
    let text = write(scenarios).expect("none has a trace");
    let read = parse(&text, Path::new("written.toml")).expect(&text);
    assert_eq!(read, scenarios, "{text}");
}

#[test]
fn samples_of_all_families_are_read_as_they_were_written() {
    for family in Family::ALL {
        returns(&family.sample("a", 30, 7));
    }
}

#[test]
fn built_in_scenarios_without_a_trace_are_read_as_they_were_written() {
    let mut written = 0;
    for set in SETS {
        let scenarios = set.scenarios().expect("built in");
        for scenario in scenarios {
            let follows =
                |direction: &Direction| matches!(direction.service, Service::Opportunities(_));
            match follows(&scenario.forward) || follows(&scenario.reverse) {
                true => assert!(write(&[scenario]).is_err()),
                false => {
                    returns(&[scenario]);
                    written += 1;
                }
            }
        }
    }
    assert!(written > 1000, "{written}");
}

#[test]
fn every_key_is_read_as_it_was_written() {
    let text = r#"
[[scenario]]
name = "all"
description = "a \"quoted\" \\ text"
seconds = 12.5
score = { rule = "share", flow = 1, segments_s = [[0, 1.5], [2, 3]] }
sender = { rate_mbps = 20, burst_bytes = 4000, packets = 50 }
schedule = [{ at_s = 0, rate_mbps = 12.3, ramp = true }, { at_s = 1.000000001, rate_mbps = 0 }]
repeat_s = 7
delay_ms = 12.345678
delay_changes = [{ at_s = 3, delay_ms = 4 }]
delay_variation = { every_s = 10, spread_ms = 12, drift_ms = 3, seed = 9 }
jitter_ms = 0.5
loss = { to_bad = 0.01, to_good = 0.1, good = 0.001, bad = 0.9 }
queue = { packets = 10, bytes = 15000, drop = "head", ce_threshold_ms = 5 }
policer = { rate_mbps = 10, burst_bytes = 15000 }
aggregation_ms = 5
[scenario.reverse]
shaper = { rate_mbps = 1, burst_bytes = 3000, peak_mbps = 2 }
delay_ms = 3
loss = 0.01
queue = { packets = 9, aqm = "dualpi2", target_ms = 16, coupling = 3 }
[[scenario.flow]]
start_s = 1
stop_s = 9
extra_delay_ms = 4
[scenario.flow.app]
kind = "script"
steps = [{ pause_s = 1 }, { bytes = 9, every_ms = 100, for_s = 2 }, { bytes = 7 }]
[[scenario.flow]]
scheme = "cubic"
app = { kind = "request-response", bytes = [1, 2], think_ms = 3, connection = "new", count = 4 }
[[scenario.flow]]
[scenario.flow.app]
kind = "short-flows"
per_s = 3.3
sizes = { median_bytes = 9, sigma = 1, most_bytes = 99 }
[[scenario.flow]]
app = "keystrokes"

[[scenario]]
name = "shared-delay"
rate_mbps = inf
delay_ms = 5
delay_variation = { spread_ms = 2 }
jitter_ms = 1

[[scenario]]
name = "queues"
rate_mbps = 12
delay_ms = 5
queue = { bdp = 2, aqm = "codel", target_ms = 4, interval_ms = 90, ecn = true, ce_threshold_ms = 1 }
[scenario.reverse]
queue = { bdp = 2, aqm = "fq_codel", quantum = 300, queues = 16 }

[[scenario]]
name = "pie"
rate_mbps = 12
delay_ms = 5
queue = { bdp = 2, aqm = "pie", target_ms = 4, update_ms = 9, ecn = true }
"#;
    returns(&parse(text, Path::new("all.toml")).expect("valid"));
}
