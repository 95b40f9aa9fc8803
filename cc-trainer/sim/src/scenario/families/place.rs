//! Places in families: links that can be moved a little, for searches over them.

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use super::{
    super::{Scenario, generate::normal},
    Family, Point,
};

/// Share of the moves that draw anew what the point does not determine.
const REDRAWN: f64 = 0.25;

/// A place in a family, which determines a scenario: a kind of link, a point of its hypercube, and
/// the seed of everything else that is random in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    family: Family,
    /// Index of the kind in the family.
    kind: usize,
    point: Point,
    seed: u64,
}

impl Place {
    /// Number of kinds in a family.
    pub fn kinds(family: Family) -> usize {
        family.kinds().len()
    }

    /// Draws a place of a kind, each equally likely.
    ///
    /// # Panics
    ///
    /// Panics when the family has no such kind.
    pub fn random(family: Family, kind: usize, random: &mut Xoshiro256PlusPlus) -> Self {
        assert!(kind < Self::kinds(family), "{family} has no kind {kind}");
        Self {
            family,
            kind,
            point: Point::default().map(|_| random.random()),
            seed: random.random(),
        }
    }

    /// Draws a place near this one: each coordinate moves by a normal step with this standard
    /// deviation and is reflected at the ends of the hypercube. What the point does not determine
    /// stays in three quarters of the cases.
    pub fn near(&self, deviation: f64, random: &mut Xoshiro256PlusPlus) -> Self {
        let point = self
            .point
            .map(|at| reflected(at + deviation * normal(random)));
        let seed = match random.random::<f64>() < REDRAWN {
            true => random.random(),
            false => self.seed,
        };
        Self {
            point,
            seed,
            ..self.clone()
        }
    }

    /// The scenario of the place; it has the name of its kind.
    pub fn scenario(&self) -> Scenario {
        let (_, draw) = self.family.kinds()[self.kind];
        let mut random = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        Scenario {
            name: self.kind().to_owned(),
            ..draw(self.point, &mut random)
        }
    }

    /// Name of the kind of link, or of the family if that has only one. No two are equal.
    pub fn kind(&self) -> &'static str {
        match self.family.kinds()[self.kind] {
            ("", _) => self.family.name(),
            (kind, _) => kind,
        }
    }

    /// Rate, RTT, buffer, and loss or what the kind has instead, each in [0, 1) of its range on a
    /// logarithmic scale.
    pub fn point(&self) -> Point {
        self.point
    }
}

/// Brings a coordinate back into [0, 1) by reflection at both ends.
fn reflected(at: f64) -> f64 {
    let at = at.rem_euclid(2.0);
    let at = if at < 1.0 { at } else { 2.0 - at };
    at.min(1.0 - f64::EPSILON)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn places(count: usize) -> Vec<Place> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
        let mut places = Vec::new();
        for family in Family::ALL {
            for kind in 0..Place::kinds(family) {
                places.extend((0..count).map(|_| Place::random(family, kind, &mut random)));
            }
        }
        places
    }

    #[test]
    fn a_place_determines_a_scenario_and_its_kind_a_name() {
        for place in places(3) {
            assert_eq!(place.scenario(), place.scenario());
            assert_eq!(place.scenario().name, place.kind());
        }
        let all = places(1);
        let names: BTreeSet<_> = all.iter().map(Place::kind).collect();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn a_near_place_has_a_link_of_the_same_kind_and_similar_figures() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(6);
        for place in places(3) {
            let near = place.near(0.01, &mut random);
            assert_eq!(near.kind(), place.kind());
            let rate = |place: &Place| {
                let mean = place.scenario().reverse.service.mean_bits_per_second();
                mean.expect("families have rates")
            };
            let factor = rate(&near) / rate(&place);
            // What is drawn anew may change the rates of `steps` by a factor of 4.
            assert!((0.2..5.0).contains(&factor), "{}: {factor}", place.kind());
            for (moved, before) in near.point().into_iter().zip(place.point()) {
                assert!((moved - before).abs() < 0.06, "{}", place.kind());
            }
        }
    }

    #[test]
    fn coordinates_are_reflected_at_both_ends() {
        for (at, expected) in [(0.25, 0.25), (-0.25, 0.25), (1.25, 0.75), (2.5, 0.5)] {
            assert_eq!(reflected(at), expected, "{at}");
        }
        assert!(reflected(1.0) < 1.0);
        assert!(reflected(-1e-300) < 1.0);
    }
}
