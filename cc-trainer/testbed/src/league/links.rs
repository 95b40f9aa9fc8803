//! What every scheme did on every link: the lines of `links.jsonl`, from which leagues are compared
//! and anything else can be computed.

use std::{collections::BTreeMap, io, path::Path};

use serde::{Deserialize, Serialize};

use super::board::{Board, Cell};

/// Name of the file in the directory of a league.
pub const LINKS: &str = "links.jsonl";

/// A link with the results of all schemes, a line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkLine {
    /// Name of the link in its set or file.
    pub link: String,
    /// Mean rate, Mbit/s; `None` for a link without a rate.
    pub rate_mbps: Option<f64>,
    /// Propagation delay of both directions together, ms.
    pub rtt_ms: f64,
    /// Buffer as a multiple of the BDP; `None` for an unlimited queue.
    pub buffer_bdp: Option<f64>,
    /// The schemes of flows that have one of their own, sorted, each once.
    pub neighbours: Vec<String>,
    /// The result of each scheme of the league.
    pub schemes: BTreeMap<String, LinkResult>,
}

/// What one scheme did on one link: means over its runs, of the flows that are scored.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkResult {
    /// Number of games that the scheme won, of as many as the link has segments.
    pub wins: usize,
    /// Geometric mean of the absolute score over the segments; `None` on a link without a rate.
    pub score: Option<f64>,
    /// Payload that the scored flows got together, Mbit/s.
    pub throughput_mbps: f64,
    /// 95th percentile of the one-way delay of their packets, ms; `None` where none arrived.
    pub p95_owd_ms: Option<f64>,
    /// Throughput ÷ p95 delay, divided by the highest of the other schemes; `None` without one.
    pub power: Option<f64>,
    /// Throughput as a multiple of the fair share; `None` where that is not what is scored.
    pub share: Option<f64>,
    /// Fraction of the scored flows' packets that were dropped.
    pub loss: f64,
}

/// The links of a board, one JSON object a line.
///
/// # Errors
///
/// Returns an error when a figure is not finite, which none is.
pub fn lines(board: &Board) -> serde_json::Result<String> {
    let links = board.links.iter().zip(&board.cells);
    let lines = links.map(|(link, cells)| {
        let finite = |value: f64| value.is_finite().then_some(value);
        let schemes = board.schemes.iter().cloned();
        let line = LinkLine {
            link: link.name.clone(),
            rate_mbps: finite(link.properties.rate_mbps),
            rtt_ms: link.properties.rtt_ms,
            buffer_bdp: finite(link.properties.buffer_bdp),
            neighbours: link.neighbour_schemes.clone(),
            schemes: schemes.zip(cells.iter().map(LinkResult::of)).collect(),
        };
        Ok(serde_json::to_string(&line)? + "\n")
    });
    lines.collect()
}

/// Reads the links of the league in a directory.
///
/// # Errors
///
/// Returns an error when the file cannot be read, or is not of this version.
pub fn read(dir: &Path) -> io::Result<Vec<LinkLine>> {
    let text = std::fs::read_to_string(dir.join(LINKS))?;
    let lines = text.lines().map(serde_json::from_str);
    Ok(lines.collect::<serde_json::Result<_>>()?)
}

impl LinkResult {
    fn of(cell: &Cell) -> Self {
        Self {
            wins: cell.wins(),
            score: cell.score(),
            throughput_mbps: cell.throughput_mbps,
            p95_owd_ms: cell.p95_owd_ms,
            power: cell.power,
            share: cell.share,
            loss: cell.loss,
        }
    }
}
