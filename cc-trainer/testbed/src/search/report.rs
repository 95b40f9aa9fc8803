//! The report of a search, the content of `search.json`.

use std::collections::BTreeMap;

use cc_core::policy::ActionSelection;
use cc_sim::scenario::{Scenario, families::Family};
use serde::{Deserialize, Serialize};

use super::field::worst_of;
use crate::{
    league::{Link, loss},
    summary::Host,
};

/// What was searched and how, and what was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Settings with which the search ran.
    pub settings: SearchSettings,
    /// Host that the search ran on.
    pub host: Host,
    /// Number of links that were tried.
    pub tried: usize,
    /// Number of regimes: kinds of links in parts of their ranges of rate, RTT and buffer.
    pub cells: usize,
    /// Number of these that have a link.
    pub filled: usize,
    /// Number of links that were left out because a test or validation set has them.
    pub of_sets: usize,
    /// Number of links that lost in the search and not when they were run again.
    pub vanished: usize,
    /// Whether the links were run again with other seeds, which a search that was ended early does
    /// not do.
    pub is_complete: bool,
    /// SHA-256 of the links, as of a [built-in set](cc_sim::scenario::Set::hash).
    pub sha256: String,
    /// The links, those that lose most first.
    pub worst: Vec<Found>,
}

/// What was searched, against whom, and with which seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchSettings {
    /// Command line that started the search.
    pub command: String,
    /// End of the search in UTC, in the format of RFC 3339.
    pub date: String,
    /// Name of the scheme that was searched.
    pub scheme: String,
    /// Its policy, as `--policy` takes it.
    pub policy: String,
    /// SHA-256 of the policy's file in hexadecimal; `None` for one without a file.
    pub sha256: Option<String>,
    /// How the policy selects actions; `None` is what its file says.
    pub serving: Option<ActionSelection>,
    /// Names of the controls that it is compared with.
    pub against: Vec<String>,
    /// Families of links that were searched.
    pub families: Vec<Family>,
    /// Number of links to try.
    pub links: usize,
    /// Seed of the search and of its runs. The search made run 0 of each link with it, as an
    /// evaluation of the same seed does.
    pub seed: u64,
    /// Number of runs with other seeds, which are runs 1 and following of the same seed.
    pub runs: u32,
    /// Length of a run, s; `None` is each link's own.
    pub seconds: Option<f64>,
}

/// A link on which the policy loses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Name of the scenario: its kind, and its number in the search.
    pub name: String,
    /// The link and its flows in words.
    pub description: String,
    /// Kind of link, or its family if that has one.
    pub kind: String,
    /// Rule that decides what counts ([`Link::merit`]).
    pub rule: String,
    /// Mean rate of the link, Mbit/s.
    pub rate_mbps: f64,
    /// Round-trip propagation delay of the scored flow, ms.
    pub rtt_ms: f64,
    /// Buffer as a multiple of the bandwidth-delay product.
    pub buffer_bdp: f64,
    /// The control that was the best one in the search.
    pub rival: String,
    /// How many times better the rival was in the search.
    pub found: f64,
    /// How many times better the rival was in the runs with other seeds; `None` before there are
    /// any.
    pub again: Option<f64>,
    /// The merits of the policy and of every control.
    pub merits: BTreeMap<String, Figures>,
}

/// The [merit](Link::merit) of a scheme on a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// In the search's own run.
    pub found: f64,
    /// In the runs with other seeds.
    pub again: Option<f64>,
}

impl Found {
    /// The record of a link on which schemes with these names have these merits, first the policy.
    pub(super) fn new<'a>(
        kind: &str,
        scenario: &Scenario,
        names: impl Iterator<Item = &'a str>,
        found: &[f64],
        again: Option<&[f64]>,
    ) -> Self {
        let names: Vec<&str> = names.collect();
        let (rival, lost) = worst_of(found).unwrap_or((0, 0.0));
        let lost_again = again.and_then(|merits| loss(merits[0], merits[rival]));
        let figures = names.iter().enumerate().map(|(scheme, name)| {
            let figures = Figures {
                found: found[scheme],
                again: again.map(|merits| merits[scheme]),
            };
            ((*name).to_owned(), figures)
        });
        let link = Link::of(scenario, false);
        Self {
            name: scenario.name.clone(),
            description: scenario.description.clone(),
            kind: kind.to_owned(),
            rule: scenario.rule().name().to_owned(),
            rate_mbps: link.properties.rate_mbps,
            rtt_ms: link.properties.rtt_ms,
            buffer_bdp: link.properties.buffer_bdp,
            rival: names[rival].to_owned(),
            found: lost.exp(),
            again: lost_again.map(f64::exp),
            merits: figures.collect(),
        }
    }

    /// The index of the best of `controls` in the search, and how many times better it was than
    /// `policy` in the runs with other seeds.
    pub(super) fn rival_among(&self, policy: &str, controls: &[String]) -> Option<(usize, f64)> {
        let there = controls.iter().enumerate();
        let there = there.filter_map(|(index, name)| Some((index, self.merits.get(name)?)));
        let (index, rival) = there.max_by(|(_, a), (_, b)| a.found.total_cmp(&b.found))?;
        let own = self.merits.get(policy)?.again?;
        Some((index, loss(own, rival.again?)?.exp()))
    }
}
