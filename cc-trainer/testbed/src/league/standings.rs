//! The standings of a league: the content of `league.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    against::Against,
    board::{Board, Cell},
    by::By,
    distinct::Duplicate,
    measure::{Figure, MEASURES, Measure},
};
use crate::summary::{Host, Platform, PolicyFacts, Run, SetFacts, statistics::percentile};

/// The result of a league.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standings {
    /// The sets or files of the links, as `--scenarios` names them.
    pub set: String,
    /// Number of games: the scored segments of all links together.
    pub games: usize,
    /// The schemes of the league.
    pub schemes: BTreeMap<String, Standing>,
    /// Names of the schemes in the order in which they were given. Differences are those to the
    /// first one.
    pub order: Vec<String>,
    /// Number of links that count.
    pub links: usize,
    /// Links that are left out because an earlier one is equal.
    pub duplicates: Vec<Duplicate>,
    /// Links without a valid run of some scheme, which count for nobody.
    pub incomplete: Vec<String>,
    /// Every scheme against the best of some; `None` where none were named, and where no link can
    /// be compared.
    #[serde(default)]
    pub against: Option<Against>,
    /// Shares and powers by kinds of links, as far as they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<By>,
    /// How the results were made.
    pub settings: Settings,
}

/// How the results of a league were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Platform on which the runs were made.
    pub on: Platform,
    /// The built-in sets among the links.
    pub sets: Vec<SetFacts>,
    /// The part of the set that was played, if not all of it.
    pub sample: Option<f64>,
    /// Number of runs of each scheme on each link.
    pub runs: u32,
    /// Seed of random loss, jitter and random policies.
    pub seed: u64,
    /// Policies of those schemes that are policies.
    pub policies: Vec<PolicyFacts>,
    /// What is known of the sets and of the policies' training, in sentences.
    pub notes: Vec<String>,
    /// Command line that started the league.
    pub command: String,
    /// Start of the league in UTC, in the format of RFC 3339.
    pub date: String,
    /// Host that the runs were made on.
    pub host: Host,
    /// The runs that count although the host disturbed them; `None` where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<Disturbed>,
}

/// Runs that count although the host disturbed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disturbed {
    /// Number of the disturbed runs, of which none counts twice.
    pub runs: usize,
    /// Number of all runs that count.
    pub of: usize,
    /// Median of these runs' [`Validity::lateness_p999_ms`](crate::summary::Validity), ms.
    pub lateness_p999_ms: f64,
    /// The greatest of them, ms.
    pub greatest_p999_ms: f64,
    /// Number of these runs in which packets were lost outside of the emulated link.
    pub lossy: usize,
}

impl Disturbed {
    /// The disturbed ones among the runs that count; `None` where there are none.
    pub(super) fn among<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<Self> {
        let runs: Vec<&Run> = runs.collect();
        let disturbed = || runs.iter().filter(|run| !run.is_valid());
        let lateness: Vec<f64> = disturbed()
            .map(|run| run.validity.lateness_p999_ms)
            .collect();
        Some(Self {
            runs: lateness.len(),
            of: runs.len(),
            lateness_p999_ms: percentile(&lateness, 50.0)?,
            greatest_p999_ms: percentile(&lateness, 100.0)?,
            lossy: disturbed()
                .filter(|run| run.validity.ring_drops + run.validity.refused > 0)
                .count(),
        })
    }
}

/// The result of one scheme.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Number of games won; several schemes may win the same game.
    pub wins: usize,
    /// Geometric mean of the absolute score over links and segments; `None` where no link has a
    /// rate.
    pub score: Option<f64>,
    /// The result by segments, where all links have equally many.
    pub segments: Vec<Part>,
    /// The measures with their intervals, by their [`Measure::key`].
    pub measures: BTreeMap<String, Figure>,
}

/// The result of one scheme in one segment of all links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Number of games won in this segment.
    pub wins: usize,
    /// Number of games in this segment.
    pub games: usize,
    /// Geometric mean of the absolute score.
    pub score: Option<f64>,
}

impl Standings {
    /// The standings of a board. The first scheme of the board is the one that differences are
    /// taken to.
    pub fn of(board: &Board, set: &str, duplicates: Vec<Duplicate>, settings: Settings) -> Self {
        let mut standings: Vec<Standing> = (0..board.schemes.len())
            .map(|scheme| Standing {
                wins: cells_of(board, scheme).map(Cell::wins).sum(),
                segments: parts(board, scheme),
                ..Standing::default()
            })
            .collect();
        for measure in &MEASURES {
            let figures = measure.figures(board);
            for (standing, figure) in standings.iter_mut().zip(figures) {
                if measure.key == "score" {
                    standing.score = Some(figure.estimate.mean);
                }
                standing.measures.insert(measure.key.to_owned(), figure);
            }
        }
        Self {
            set: set.to_owned(),
            games: (0..board.links.len()).map(|link| board.games(link)).sum(),
            schemes: board.schemes.iter().cloned().zip(standings).collect(),
            order: board.schemes.clone(),
            links: board.links.len(),
            duplicates,
            incomplete: board.incomplete.clone(),
            against: None,
            by: Vec::new(),
            settings,
        }
    }

    /// The schemes with their names, those that won most first.
    pub fn ranked(&self) -> Vec<(&str, &Standing)> {
        let in_order = self.order.iter();
        let mut ranked: Vec<_> = in_order
            .filter_map(|name| Some((name.as_str(), self.schemes.get(name)?)))
            .collect();
        ranked.sort_by_key(|(_, standing)| std::cmp::Reverse(standing.wins));
        ranked
    }

    /// The measures that the schemes have.
    pub fn measures(&self) -> impl Iterator<Item = &'static Measure> + '_ {
        let has = |measure: &&Measure| {
            let mut standings = self.schemes.values();
            standings.any(|standing| standing.measures.contains_key(measure.key))
        };
        MEASURES.iter().filter(has)
    }
}

/// The results of a scheme by segments; empty where links have different numbers of them.
fn parts(board: &Board, scheme: usize) -> Vec<Part> {
    let games: Vec<usize> = (0..board.links.len())
        .map(|link| board.games(link))
        .collect();
    let count = games.first().copied().unwrap_or(0);
    if games.iter().any(|games| *games != count) {
        return Vec::new();
    }
    let part = |segment: usize| {
        let scores = cells_of(board, scheme).map(|cell| cell.scores.get(segment).copied());
        let scores: Option<Vec<f64>> = scores.collect();
        Part {
            wins: cells_of(board, scheme)
                .filter(|cell| cell.won[segment])
                .count(),
            games: games.len(),
            score: scores.and_then(|scores| crate::summary::statistics::geometric_mean(&scores)),
        }
    };
    (0..count).map(part).collect()
}

fn cells_of(board: &Board, scheme: usize) -> impl Iterator<Item = &Cell> {
    board.cells.iter().map(move |cells| &cells[scheme])
}
