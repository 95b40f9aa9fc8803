//! The further runs that harm is measured by: the neighbours of a link without the scheme under
//! test, and beside a flow of their own scheme in its place.

use std::ops::Range;
use std::time::Duration;

use super::{Link, Neighbours, References};
use crate::{evaluate::Evaluation, summary::Run};
use cc_sim::scenario::Scenario;

/// Ending of the name of a link without the scored flows.
const ALONE: &str = ".alone";
/// Ending of the name of a link on which the neighbours' scheme plays in the place of the one under
/// test.
const OWN: &str = ".own";

/// The variants of those links of a league that have neighbours.
#[derive(Debug, Default)]
pub(super) struct Variants {
    scenarios: Vec<Scenario>,
    /// Where the variants of each link are.
    places: Vec<Option<Place>>,
}

/// Where the variants of a link are.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Index of the variant without the scored flows.
    alone: usize,
    own: Own,
}

/// Where the neighbours are beside a flow of their own scheme.
#[derive(Clone, Copy, Debug)]
enum Own {
    /// In the runs of this scheme of the league.
    Scheme(usize),
    /// In the variant with this index.
    Variant(usize),
}

impl Variants {
    /// The variants of these links in a league with the schemes and the length of `evaluation`.
    pub(super) fn of(scenarios: &[Scenario], links: &[Link], evaluation: &Evaluation) -> Self {
        let mut variants = Self::default();
        for (scenario, link) in scenarios.iter().zip(links) {
            let place = link
                .shows_harm()
                .then(|| variants.add(scenario, link, evaluation));
            variants.places.push(place.flatten());
        }
        variants
    }

    fn add(&mut self, scenario: &Scenario, link: &Link, evaluation: &Evaluation) -> Option<Place> {
        let scheme = scenario.flows[*link.neighbours.first()?].scheme.clone()?;
        let length = scenario.length(evaluation.seconds);
        let alone = self.scenarios.len();
        self.scenarios.push(without(scenario, link, length));
        let played = evaluation.schemes.iter().position(|s| s.name == scheme);
        let own = match played {
            Some(played) => Own::Scheme(played),
            None => {
                self.scenarios.push(with(scenario, &scheme));
                Own::Variant(alone + 1)
            }
        };
        Some(Place { alone, own })
    }

    /// The scenarios of the variants, by their indices.
    pub(super) fn scenarios(&self) -> impl Iterator<Item = Scenario> + '_ {
        self.scenarios.iter().cloned()
    }

    /// Number of variants of all links.
    pub(super) fn len(&self) -> usize {
        self.scenarios.len()
    }

    /// Whether no link has neighbours.
    pub(super) fn is_empty(&self) -> bool {
        self.scenarios.is_empty()
    }

    /// What the neighbours of a link have without the scheme under test. `of_schemes` are the
    /// link's runs by scheme, and `of_variant` gives those of a variant.
    pub(super) fn references<'a>(
        &self,
        number: usize,
        link: &Link,
        of_schemes: &[Vec<&'a Run>],
        of_variant: impl Fn(usize) -> Vec<&'a Run>,
    ) -> References {
        let Some(Some(place)) = self.places.get(number) else {
            return References::default();
        };
        // The neighbours alone are the only flows of their runs.
        let all: Vec<usize> = (0..link.neighbours.len()).collect();
        References {
            alone: Neighbours::of(&of_variant(place.alone), &all),
            among_themselves: match place.own {
                Own::Scheme(scheme) => Neighbours::of(&of_schemes[scheme], &link.neighbours),
                Own::Variant(variant) => Neighbours::of(&of_variant(variant), &link.neighbours),
            },
        }
    }
}

/// The scenario without its scored flows; what is scored is the same time.
fn without(scenario: &Scenario, link: &Link, length: Duration) -> Scenario {
    let segments = scenario.segments(length);
    let mut alone = scenario.clone();
    alone.name += ALONE;
    alone.flows = link
        .neighbours
        .iter()
        .map(|&flow| scenario.flows[flow].clone())
        .collect();
    alone.scoring.length = Some(length);
    alone.scoring.flow = Some(0);
    // Segments count from the start of the scored flow, which is another one now.
    let start = alone
        .flows
        .first()
        .map_or(Duration::ZERO, |flow| flow.start);
    let moved = |segment: Range<Duration>| {
        segment.start.saturating_sub(start)..segment.end.saturating_sub(start)
    };
    alone.scoring.segments = segments.into_iter().map(moved).collect();
    alone
}

/// The scenario with `scheme` in the place of the scheme under test.
fn with(scenario: &Scenario, scheme: &str) -> Scenario {
    let mut own = scenario.clone();
    own.name += OWN;
    own.scoring.flow = Some(scenario.scored_flow());
    own.scoring.rule = Some(scenario.rule());
    for flow in &mut own.flows {
        flow.scheme.get_or_insert_with(|| scheme.to_owned());
    }
    own
}
