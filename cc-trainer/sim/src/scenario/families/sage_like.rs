//! Links as in the two sets of Sage's league, with continuous parameters.

use std::{ops::Range, time::Duration};

use rand::{RngExt, rngs::Xoshiro256PlusPlus};

use super::{
    super::{Flow, Rate, RatePoint, Rule, Scenario, Scoring, Service},
    Point, Ranges, three_digits,
};

/// One flow for 24 s, on a link whose rate is steady or changes every 7 s by a factor of 2 or 4.
pub(super) fn steps(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    const STEP: Duration = Duration::from_secs(7);
    let plain = Ranges::new([10.0, 200.0], [8.0, 180.0], [0.4, 20.0]).at(point);
    // Rates stay within those of the ranking.
    let factors = [1.0, 2.0, 4.0, 0.5, 0.25].map(|factor| factor * plain.mbps);
    let factors = factors.map(|rate| rate.min(200.0));
    let other = three_digits(factors[random.random_range(0..factors.len())]);
    let mut scenario = plain.scenario();
    if other != plain.mbps {
        let rate = |at, mbps: f64| RatePoint {
            at,
            bits_per_second: mbps * 1e6,
            ramp: false,
        };
        let service = Service::Rate(Rate {
            points: vec![rate(Duration::ZERO, plain.mbps), rate(STEP, other)],
            repeat: Some(2 * STEP),
        });
        scenario.forward.service = service.clone();
        scenario.reverse.service = service;
        scenario.description += &format!(", and {other} Mbit/s in turns of 7 s");
    }
    scenario.scoring = Scoring {
        length: Some(Duration::from_secs(24)),
        rule: Some(Rule::Power),
        flow: Some(0),
        segments: [(0, 3), (3, 10), (10, 17), (17, 24)].map(seconds).into(),
    };
    scenario
}

/// A flow that joins a cubic 5 s after its start, in a run of 120 s.
pub(super) fn beside_cubic(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let plain = Ranges::new([10.0, 200.0], [8.0, 180.0], [0.8, 20.0]).at(point);
    Scenario {
        description: format!("5 s after a cubic, {plain}"),
        flows: vec![
            Flow {
                scheme: Some("cubic".to_owned()),
                ..Flow::default()
            },
            Flow {
                start: Duration::from_secs(5),
                ..Flow::default()
            },
        ],
        scoring: Scoring {
            length: Some(Duration::from_secs(120)),
            rule: Some(Rule::Share),
            flow: Some(1),
            segments: [(0, 30), (30, 60), (60, 90), (90, 115)].map(seconds).into(),
        },
        ..plain.scenario()
    }
}

fn seconds((from, to): (u64, u64)) -> Range<Duration> {
    Duration::from_secs(from)..Duration::from_secs(to)
}
