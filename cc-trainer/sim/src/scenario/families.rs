//! Families of links: distributions from which test, validation and training sets are drawn with
//! different seeds.
//!
//! Training may draw from the same families without end, since a family is a distribution and not a
//! set: no link of a test set is drawn again.

mod extreme;
mod place;
mod sage_like;

pub use place::Place;

use std::{fmt, str::FromStr, time::Duration};

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use serde::{Deserialize, Serialize};

use super::{
    Delay, Direction, Flow, Loss, MAX_FLOWS, MTU, Queue, Rate, Scenario, Scoring, Service,
};

/// A distribution of scenarios, from which training and sets draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Family {
    /// Plain links of many rates, RTTs, buffers and loss rates, with one flow.
    Broad,
    /// Links at the ends of what is found: slow, fast, near, far, with tiny and with bloated
    /// buffers, policers, bursty loss, asymmetry, aggregation, crowds and cross traffic.
    Extreme,
    /// Links as in Sage's Set I, of any rate, RTT and buffer: one flow, a steady rate or steps.
    Steps,
    /// Links as in Sage's Set II, of any rate, RTT and buffer: beside a cubic that was there first.
    BesideCubic,
}

impl Family {
    /// All families, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Broad, Self::Extreme, Self::Steps, Self::BesideCubic];

    /// Name of the family in training configurations and in the names of its scenarios.
    pub fn name(self) -> &'static str {
        match self {
            Self::Broad => "broad",
            Self::Extreme => "extreme",
            Self::Steps => "steps",
            Self::BesideCubic => "beside-cubic",
        }
    }

    /// Draws `count` scenarios of each kind in the family, which a seed determines. They are called
    /// `PREFIX-NUMBER`, with the kind between them if there are several. Rate, RTT, buffer and loss
    /// of a kind are a Latin hypercube: each is divided into `count` equally likely strata, and
    /// every stratum is drawn once (M. McKay, R. Beckman and W. Conover, "A Comparison of Three
    /// Methods for Selecting Values of Input Variables in the Analysis of Output from a Computer
    /// Code", Technometrics 21(2), 1979).
    pub fn sample(self, prefix: &str, count: usize, seed: u64) -> Vec<Scenario> {
        let mut scenarios = Vec::new();
        for (place, (kind, draw)) in (0..).zip(self.kinds()) {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(1000 * seed + place);
            for (number, point) in hypercube(count, &mut random).into_iter().enumerate() {
                let kind = match *kind {
                    "" => String::new(),
                    kind => format!("{kind}-"),
                };
                scenarios.push(Scenario {
                    name: format!("{prefix}-{kind}{number}"),
                    ..draw(point, &mut random)
                });
            }
        }
        scenarios
    }

    /// Draws a scenario, independently of all others.
    pub fn draw(self, random: &mut Xoshiro256PlusPlus) -> Scenario {
        let kinds = self.kinds();
        let (_, draw) = kinds[random.random_range(0..kinds.len())];
        let point = [(); DIMENSIONS].map(|()| random.random());
        Scenario {
            name: self.name().to_owned(),
            ..draw(point, random)
        }
    }

    /// Largest number of flows under test on one link.
    pub fn most_under_test(self) -> usize {
        match self {
            Self::Extreme => MAX_FLOWS,
            _ => 1,
        }
    }

    /// The kinds of links in the family, each with its name; at least one.
    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Broad => &[("", broad)],
            Self::Extreme => &extreme::KINDS,
            Self::Steps => &[("", sage_like::steps)],
            Self::BesideCubic => &[("", sage_like::beside_cubic)],
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Family {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|family| family.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no family `{name}`; there are {names}")
        })
    }
}

impl TryFrom<String> for Family {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<Family> for String {
    fn from(family: Family) -> Self {
        family.name().to_owned()
    }
}

/// A kind of link: its name in those of scenarios, and how one is drawn at a point of the
/// hypercube.
type Kind = (&'static str, fn(Point, &mut Xoshiro256PlusPlus) -> Scenario);

/// Number of dimensions that are stratified.
const DIMENSIONS: usize = 4;

/// A point of the unit hypercube: rate, RTT, buffer and loss.
type Point = [f64; DIMENSIONS];

/// The points of a Latin hypercube.
fn hypercube(count: usize, random: &mut Xoshiro256PlusPlus) -> Vec<Point> {
    let mut points = vec![[0.0; DIMENSIONS]; count];
    for dimension in 0..DIMENSIONS {
        // A random permutation of the strata (R. Durstenfeld 1964).
        let mut strata: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            strata.swap(last, random.random_range(0..=last));
        }
        for (point, stratum) in points.iter_mut().zip(strata) {
            point[dimension] = (stratum as f64 + random.random::<f64>()) / count as f64;
        }
    }
    points
}

/// Ranges of a plain link, in which a point selects on logarithmic scales.
#[derive(Clone, Copy, Debug)]
struct Ranges {
    mbps: [f64; 2],
    rtt_ms: [f64; 2],
    /// Size of the buffer in bandwidth-delay products, from and to.
    buffer: [f64; 2],
}

/// A plain link: a steady rate, an RTT and a drop-tail buffer.
#[derive(Clone, Copy, Debug)]
struct Plain {
    mbps: f64,
    rtt_ms: f64,
    buffer: f64,
}

impl Ranges {
    const fn new(mbps: [f64; 2], rtt_ms: [f64; 2], buffer: [f64; 2]) -> Self {
        Self {
            mbps,
            rtt_ms,
            buffer,
        }
    }

    fn at(self, point: Point) -> Plain {
        Plain {
            mbps: logarithmic(self.mbps, point[0]),
            rtt_ms: logarithmic(self.rtt_ms, point[1]),
            buffer: logarithmic(self.buffer, point[2]),
        }
    }
}

impl Plain {
    /// The link with one flow under test, and a name to be given.
    fn scenario(self) -> Scenario {
        let delay = Duration::from_secs_f64(self.rtt_ms / 2e3);
        let direction = |queue| Direction {
            policer: None,
            queue,
            service: Service::Rate(Rate::constant(self.mbps * 1e6)),
            loss: Loss::None,
            aggregation: None,
            delay: Delay {
                base: delay,
                changes: Vec::new(),
                variation: None,
                jitter: Duration::ZERO,
            },
        };
        let bytes = (self.buffer * self.mbps * 1e3 * self.rtt_ms / 8.0).round() as u64;
        Scenario {
            name: String::new(),
            description: self.to_string(),
            sender: None,
            forward: direction(Queue {
                bytes: Some(bytes.max(MTU.into())),
                ..Queue::default()
            }),
            reverse: direction(Queue::default()),
            flows: vec![Flow::default()],
            scoring: Scoring::default(),
        }
    }
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mbps,
            rtt_ms,
            buffer,
        } = self;
        write!(
            f,
            "{mbps} Mbit/s, RTT {rtt_ms} ms, a buffer of {buffer} BDP"
        )
    }
}

/// A plain link. Half of them lose packets at random.
fn broad([rate, rtt, buffer, loss]: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let ranges = Ranges::new([0.5, 200.0], [4.0, 300.0], [0.1, 16.0]);
    let mut scenario = ranges.at([rate, rtt, buffer, loss]).scenario();
    if loss >= 0.5 {
        let probability = logarithmic([1e-4, 0.05], 2.0 * loss - 1.0);
        scenario.forward.loss = Loss::Bernoulli(probability);
        scenario.description += &format!(", loss {} %", three_digits(100.0 * probability));
    }
    scenario
}

/// The value at `u` in [0, 1) of the way from least to most on a logarithmic scale, with three
/// digits: descriptions state it, and it does not depend on how a host computes powers.
fn logarithmic([least, most]: [f64; 2], u: f64) -> f64 {
    three_digits(least * (most / least).powf(u))
}

/// Rounds to three significant digits.
fn three_digits(value: f64) -> f64 {
    // Through text, because a product of powers of ten would not be the nearest number.
    format!("{value:.2e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_a_sample_and_another_one_shares_no_link_with_it() {
        for family in Family::ALL {
            let sample = family.sample("a", 40, 1);
            assert_eq!(sample, family.sample("a", 40, 1), "{family}");
            let links = |seed| -> Vec<_> {
                let sample = family.sample("a", 40, seed);
                sample.iter().map(super::super::content::link).collect()
            };
            let (ours, theirs) = (links(1), links(2));
            assert!(ours.iter().all(|link| !theirs.contains(link)), "{family}");
        }
    }

    #[test]
    fn every_stratum_of_a_hypercube_is_drawn_once() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        let points = hypercube(50, &mut random);
        for dimension in 0..DIMENSIONS {
            let mut strata: Vec<_> = points
                .iter()
                .map(|point| (point[dimension] * 50.0) as usize)
                .collect();
            strata.sort_unstable();
            assert_eq!(strata, (0..50).collect::<Vec<_>>());
        }
        let first: Vec<_> = points.iter().map(|point| point[0]).collect();
        assert!(!first.is_sorted(), "strata come in random order");
    }

    #[test]
    fn numbers_are_rounded_to_three_digits() {
        assert_eq!(three_digits(0.012_345), 0.0123);
        assert_eq!(three_digits(123_456.0), 123_000.0);
        assert_eq!(logarithmic([1.0, 100.0], 0.5), 10.0);
    }
}
