//! The results of a league by kinds of links: by their rate, RTT, buffer or neighbours.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    board::{Board, Cell, Link},
    measure::{MEASURES, Measure},
};
use crate::summary::{statistics, table::figure};
use cc_sim::scenario::Rule;

/// Most values of a property that are a kind each; links with more of them are told apart by
/// thirds.
const MOST_VALUES: usize = 8;

/// What links are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Property {
    /// The mean rate of the link over the run.
    Rate,
    /// The RTT of the empty path.
    Rtt,
    /// The buffer as a multiple of the BDP.
    Buffer,
    /// The schemes of the flows that have one of their own.
    Neighbours,
}

/// Links sorted into kinds by one property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// Name of each kind, in the order in which they are shown.
    pub names: Vec<String>,
    /// The kind of each link, as an index of `names`.
    pub of_links: Vec<usize>,
}

/// One measure of all schemes by kinds of links, over the links on which all schemes have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct By {
    /// What the links are told apart by.
    pub properties: Vec<Property>,
    /// The [`Measure::key`]: `share` on links that are scored by it, `power` on links that are
    /// scored by that.
    pub measure: String,
    /// The kinds that there are, sorted by the properties.
    pub kinds: Vec<Kind>,
}

/// The results on the links of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kind {
    /// What the links have in common, for each of [`By::properties`].
    pub of: Vec<String>,
    /// Number of links of this kind on which all schemes have the measure.
    pub links: usize,
    /// The result of each scheme, in the order of the league.
    pub schemes: Vec<Spread>,
}

/// A measure of one scheme on some links.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The mean over the links, geometric where [`Measure::is_geometric`].
    pub mean: f64,
    /// The figure of the link where it is least.
    pub least: f64,
    /// The figure of the link where it is greatest.
    pub greatest: f64,
}

impl Property {
    /// All properties, in the order in which a report shows them.
    pub const ALL: [Self; 4] = [Self::Rate, Self::Rtt, Self::Buffer, Self::Neighbours];

    /// Name of the property, as the command line and `league.json` have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Rtt => "rtt",
            Self::Buffer => "buffer",
            Self::Neighbours => "neighbours",
        }
    }

    /// Name in headings, with the unit.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Rate => "rate, Mbit/s",
            Self::Rtt => "base RTT, ms",
            Self::Buffer => "buffer, BDP",
            Self::Neighbours => "neighbours",
        }
    }

    /// The property of a link as a number; `None` where it is not one.
    fn number(self, link: &Link) -> Option<f64> {
        match self {
            Self::Rate => Some(link.properties.rate_mbps),
            Self::Rtt => Some(link.properties.rtt_ms),
            Self::Buffer => Some(link.properties.buffer_bdp),
            Self::Neighbours => None,
        }
    }
}

impl Kinds {
    /// Sorts links by a property: a kind for each of at most eight values, or else for each third
    /// of the links.
    pub fn of(links: &[&Link], property: Property) -> Self {
        let numbers = links.iter().map(|link| property.number(link));
        match numbers.collect::<Option<Vec<f64>>>() {
            Some(numbers) => Self::of_numbers(&numbers),
            None => Self::of_neighbours(links),
        }
    }

    fn of_numbers(numbers: &[f64]) -> Self {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        // Values that differ by rounding, as buffers of whole packets do, are one.
        let distinct = |mut values: Vec<f64>| {
            values.dedup_by(|one, other| figure(*one) == figure(*other));
            values
        };
        let mut lower = distinct(sorted.clone());
        let by_thirds = lower.len() > MOST_VALUES;
        if by_thirds {
            let third = |third: usize| sorted[third * sorted.len() / 3];
            lower = distinct((0..3).map(third).collect());
        }
        let kind = |number: &f64| {
            let below = |lower: &f64| lower <= number || figure(*lower) == figure(*number);
            lower.partition_point(below).max(1) - 1
        };
        let name = |&lower: &f64| match (by_thirds, lower.is_finite()) {
            (_, false) => "unlimited".to_owned(),
            (true, _) => format!("from {}", figure(lower)),
            (false, _) => figure(lower),
        };
        Self {
            names: lower.iter().map(name).collect(),
            of_links: numbers.iter().map(kind).collect(),
        }
    }

    fn of_neighbours(links: &[&Link]) -> Self {
        let name = |link: &&Link| match link.neighbour_schemes.as_slice() {
            [] => "none".to_owned(),
            schemes => schemes.join(" + "),
        };
        let of_links: Vec<String> = links.iter().map(name).collect();
        let mut names = of_links.clone();
        names.sort();
        names.dedup();
        Self {
            of_links: (of_links.iter())
                .map(|name| names.partition_point(|other| other < name))
                .collect(),
            names,
        }
    }
}

impl By {
    /// The shares and the powers of all schemes by the combinations of these properties; only the
    /// measures that some link has, and nothing without a property.
    pub fn of(board: &Board, properties: &[Property]) -> Vec<Self> {
        let mut distinct: Vec<Property> = Vec::new();
        for property in properties {
            if !distinct.contains(property) {
                distinct.push(*property);
            }
        }
        if distinct.is_empty() {
            return Vec::new();
        }
        let shown = ["share", "power"];
        let measures = MEASURES.iter().filter(|by| shown.contains(&by.key));
        measures
            .filter_map(|measure| Self::of_measure(board, &distinct, measure))
            .collect()
    }

    fn of_measure(board: &Board, properties: &[Property], measure: &Measure) -> Option<Self> {
        let counts = |&link: &usize| {
            let cells = &board.cells[link];
            // Flows that are scored otherwise have a power, too.
            (measure.key == "share" || board.links[link].rule == Rule::Power)
                && cells.iter().all(|cell| (measure.value)(cell).is_some())
        };
        let counted: Vec<usize> = (0..board.links.len()).filter(counts).collect();
        let links: Vec<&Link> = counted.iter().map(|&link| &board.links[link]).collect();
        let by_property: Vec<Kinds> = properties
            .iter()
            .map(|&property| Kinds::of(&links, property))
            .collect();
        let mut kinds: BTreeMap<Vec<usize>, Vec<&[Cell]>> = BTreeMap::new();
        for (place, &link) in counted.iter().enumerate() {
            let kind = by_property.iter().map(|kinds| kinds.of_links[place]);
            let cells = kinds.entry(kind.collect()).or_default();
            cells.push(&board.cells[link]);
        }
        let kinds = kinds.into_iter().map(|(kind, links)| {
            let names = kind.iter().zip(&by_property);
            Some(Kind {
                of: names
                    .map(|(&kind, kinds)| kinds.names[kind].clone())
                    .collect(),
                links: links.len(),
                schemes: (0..board.schemes.len())
                    .map(|scheme| spread(measure, links.iter().map(|cells| &cells[scheme])))
                    .collect::<Option<_>>()?,
            })
        });
        let kinds: Vec<Kind> = kinds.collect::<Option<_>>()?;
        (!kinds.is_empty()).then(|| Self {
            properties: properties.to_vec(),
            measure: measure.key.to_owned(),
            kinds,
        })
    }

    /// The measure of the figures.
    pub fn measure(&self) -> Option<&'static Measure> {
        MEASURES.iter().find(|measure| measure.key == self.measure)
    }
}

/// The mean and the extremes of a measure; `None` without a cell, or where one lacks it.
fn spread<'a>(measure: &Measure, cells: impl Iterator<Item = &'a Cell>) -> Option<Spread> {
    let figures: Vec<f64> = cells.map(measure.value).collect::<Option<_>>()?;
    let mean = match measure.is_geometric {
        true => statistics::geometric_mean(&figures),
        false => statistics::mean(&figures),
    };
    Some(Spread {
        mean: mean?,
        least: figures.iter().copied().fold(f64::INFINITY, f64::min),
        greatest: figures.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    })
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use cc_sim::scenario::parse;

    fn link(text: &str) -> Link {
        let text = format!("[[scenario]]\nname = \"a\"\n{text}");
        Link::of(&parse(&text, "a.toml".as_ref()).expect("valid")[0], false)
    }

    #[test]
    fn links_are_told_apart_by_the_schemes_of_their_neighbours() {
        let alone = link("rate_mbps = 12\ndelay_ms = 10");
        let beside = |flows: &str| {
            link(&format!(
                "rate_mbps = 12\ndelay_ms = 10\nflow = [{{}}, {flows}]"
            ))
        };
        let cubic = beside("{ scheme = \"cubic\" }");
        let two = beside("{ scheme = \"cubic\" }, { scheme = \"bbr\" }");
        let kinds = Kinds::of(&[&alone, &cubic, &two, &cubic], Property::Neighbours);
        assert_eq!(kinds.names, ["bbr + cubic", "cubic", "none"]);
        assert_eq!(kinds.of_links, [2, 1, 0, 1]);
    }

    #[test]
    fn values_that_are_shown_alike_are_one_kind() {
        let kinds = Kinds::of_numbers(&[4.001, 1.0, 16.0, 3.999, 1.0]);
        assert_eq!(kinds.names, ["1.00", "4.00", "16.0"]);
        assert_eq!(kinds.of_links, [1, 0, 2, 1, 0]);
        let unlimited = Kinds::of_numbers(&[1.0, f64::INFINITY]);
        assert_eq!(unlimited.names, ["1.00", "unlimited"]);
        assert_eq!(unlimited.of_links, [0, 1]);
    }

    proptest! {
        #[test]
        fn every_link_is_of_one_kind_and_kinds_are_in_order(
            numbers in vec(0.1..500.0_f64, 0..60),
        ) {
            let kinds = Kinds::of_numbers(&numbers);
            prop_assert!(kinds.names.len() <= MOST_VALUES);
            prop_assert_eq!(kinds.of_links.len(), numbers.len());
            for kind in 0..kinds.names.len() {
                prop_assert!(kinds.of_links.contains(&kind), "{:?}", kinds);
            }
            for (one, a) in kinds.of_links.iter().zip(&numbers) {
                prop_assert!(*one < kinds.names.len());
                for (other, b) in kinds.of_links.iter().zip(&numbers) {
                    prop_assert!(a > b || one <= other);
                }
            }
        }
    }
}
