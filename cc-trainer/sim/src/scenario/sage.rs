//! What Sage's league plays on its links, apart from the links themselves: the league's own sets
//! and the families that are drawn like them have it. Sources are with the sets.

use std::{ops::Range, time::Duration};

use super::{Flow, Rate, RatePoint, Rule, Scoring, Service};

/// Time between two steps of a rate.
const STEP: Duration = Duration::from_secs(7);

/// A rate that alternates between two values in Mbit/s, or is constant when they are equal.
pub(super) fn steps(rate: f64, other: f64) -> Service {
    if rate == other {
        return Service::Rate(Rate::constant(rate * 1e6));
    }
    let point = |at, mbps: f64| RatePoint {
        at,
        bits_per_second: mbps * 1e6,
        ramp: false,
    };
    Service::Rate(Rate {
        points: vec![point(Duration::ZERO, rate), point(STEP, other)],
        repeat: Some(2 * STEP),
    })
}

/// Set I: one flow for 24 s, whose power counts.
pub(super) fn alone() -> Scoring {
    Scoring {
        length: Some(Duration::from_secs(24)),
        rule: Some(Rule::Power),
        flow: Some(0),
        segments: [(0, 3), (3, 10), (10, 17), (17, 24)].map(seconds).into(),
    }
}

/// The flows of Set II: the second one joins a cubic 5 s after its start.
pub(super) fn after_a_cubic() -> Vec<Flow> {
    let cubic = Flow {
        scheme: Some("cubic".to_owned()),
        ..Flow::default()
    };
    let joining = Flow {
        start: Duration::from_secs(5),
        ..Flow::default()
    };
    vec![cubic, joining]
}

/// Set II: a run of 120 s, in which the share of the flow that joined counts. The last of its four
/// windows of 30 s ends with the run.
pub(super) fn beside() -> Scoring {
    Scoring {
        length: Some(Duration::from_secs(120)),
        rule: Some(Rule::Share),
        flow: Some(1),
        segments: [(0, 30), (30, 60), (60, 90), (90, 115)].map(seconds).into(),
    }
}

fn seconds((from, to): (u64, u64)) -> Range<Duration> {
    Duration::from_secs(from)..Duration::from_secs(to)
}
