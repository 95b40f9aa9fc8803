//! Links as in the two sets of Sage's league, with continuous parameters.

use rand::{RngExt, rngs::Xoshiro256PlusPlus};

use super::{
    super::{Scenario, sage},
    Point, Ranges, three_digits,
};

/// One flow for 24 s, on a link whose rate is steady or changes every 7 s by a factor of 2 or 4.
pub(super) fn steps(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    let plain = Ranges::new([10.0, 200.0], [8.0, 180.0], [0.4, 20.0]).at(point);
    // Rates stay within those of the ranking.
    let factors = [1.0, 2.0, 4.0, 0.5, 0.25].map(|factor| factor * plain.mbps);
    let factors = factors.map(|rate| rate.min(200.0));
    let other = three_digits(factors[random.random_range(0..factors.len())]);
    let mut scenario = plain.scenario();
    if other != plain.mbps {
        let service = sage::steps(plain.mbps, other);
        scenario.forward.service = service.clone();
        scenario.reverse.service = service;
        scenario.description += &format!(", and {other} Mbit/s in turns of 7 s");
    }
    scenario.scoring = sage::alone();
    scenario
}

/// A flow that joins a cubic 5 s after its start, in a run of 120 s.
pub(super) fn beside_cubic(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let plain = Ranges::new([10.0, 200.0], [8.0, 180.0], [0.8, 20.0]).at(point);
    Scenario {
        description: format!("5 s after a cubic, {plain}"),
        flows: sage::after_a_cubic(),
        scoring: sage::beside(),
        ..plain.scenario()
    }
}
