//! The power of every scheme against the best of some schemes of the league on the same link.
//!
//! Unlike the measure of the standings, [`Cell::power`], the yardstick is the same for all schemes
//! and does not change with who else plays: a scheme that is one of those named is measured against
//! itself too, so that it has at most 1.

use serde::{Deserialize, Serialize};

use super::{
    board::{Board, Cell, LEAST_POWER},
    bootstrap::{Estimate, Paired},
};
use cc_sim::scenario::Rule;

/// A link on which a scheme has less than this part of the best power is named.
pub const WEAK: f64 = 0.6;
/// Part of the first named scheme's throughput that a scheme should not be below.
pub(super) const ENOUGH: f64 = 0.9;

/// Every scheme against the best of some of them, on the links on which the scored flow has the
/// link for itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Against {
    /// The schemes of which the best on each link is the yardstick.
    pub best_of: Vec<String>,
    /// Number of links: those where one of them delivered anything.
    pub links: usize,
    /// The result of each scheme, in the order of the league.
    pub schemes: Vec<Standoff>,
}

/// What one scheme has against the best of those named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standoff {
    /// Name of the scheme in the league.
    pub scheme: String,
    /// Throughput ÷ p95 delay, divided by the highest of those named, at least 10⁻³: the geometric
    /// mean over the links.
    pub power: Estimate,
    /// The link on which that is least.
    pub least: Weak,
    /// All links on which it is below [`WEAK`], the least first.
    pub weak: Vec<Weak>,
    /// Part of the links on which the throughput is at least [`ENOUGH`] of that of the first of
    /// those named.
    pub enough: f64,
}

/// A link and the ratio of powers there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weak {
    /// Name of the link in its set or file.
    pub link: String,
    /// The scheme's power divided by the highest of those named.
    pub power: f64,
}

impl Against {
    /// Compares all schemes of the board with the best of `best_of`. `None` where no scored flow
    /// has a link for itself, and where `best_of` is empty or names a scheme that is not on the
    /// board.
    pub fn of(board: &Board, best_of: &[String]) -> Option<Self> {
        let places = best_of.iter().map(|name| place(board, name));
        let places: Option<Vec<usize>> = places.collect();
        let places = places?;
        let first = *places.first()?;
        let best = |cells: &[Cell]| {
            let powers = places.iter().map(|&place| cells[place].own_power());
            powers.fold(0.0, f64::max)
        };
        let links: Vec<usize> = (0..board.links.len())
            .filter(|&link| board.links[link].rule == Rule::Power && best(&board.cells[link]) > 0.0)
            .collect();
        let ratio = |link: usize, scheme: usize| {
            let cells = &board.cells[link];
            (cells[scheme].own_power() / best(cells)).max(LEAST_POWER)
        };
        let ratios: Vec<Vec<f64>> = (0..board.schemes.len())
            .map(|scheme| links.iter().map(|&link| ratio(link, scheme)).collect())
            .collect();
        let logarithms = |ratios: &Vec<f64>| ratios.iter().map(|ratio| ratio.ln()).collect();
        let estimates = Paired {
            values: ratios.iter().map(logarithms).collect(),
            weights: vec![1.0; links.len()],
        };
        let estimates = estimates.estimate()?;
        let standoff = |(scheme, power): (usize, Estimate)| {
            let of_links = links.iter().zip(&ratios[scheme]);
            let mut ratios: Vec<Weak> = of_links
                .map(|(&link, &power)| Weak {
                    link: board.links[link].name.clone(),
                    power,
                })
                .collect();
            ratios.sort_by(|a, b| a.power.total_cmp(&b.power));
            let is_enough = |&&link: &&usize| {
                let cells = &board.cells[link];
                cells[scheme].throughput_mbps >= ENOUGH * cells[first].throughput_mbps
            };
            let enough = links.iter().filter(is_enough).count();
            Some(Standoff {
                scheme: board.schemes[scheme].clone(),
                power: power.exp(),
                least: ratios.first()?.clone(),
                weak: ratios
                    .into_iter()
                    .take_while(|link| link.power < WEAK)
                    .collect(),
                enough: enough as f64 / links.len() as f64,
            })
        };
        Some(Self {
            best_of: best_of.to_vec(),
            links: links.len(),
            schemes: estimates
                .means
                .into_iter()
                .enumerate()
                .map(standoff)
                .collect::<Option<_>>()?,
        })
    }
}

fn place(board: &Board, name: &str) -> Option<usize> {
    board.schemes.iter().position(|scheme| scheme == name)
}
