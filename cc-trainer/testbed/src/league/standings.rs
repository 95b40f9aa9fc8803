//! The standings of a league: the content of `league.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    against::Against,
    board::{Board, Cell},
    bootstrap::{Estimate, Paired},
    distinct::Duplicate,
};
use crate::summary::{Host, Platform, PolicyFacts, SetFacts};

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

/// A measure of one scheme over all links for which all schemes have it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The mean with its interval.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The first scheme's mean less this one, or divided by it for a geometric mean, with its
    /// interval: both on the same links.
    pub lead: Estimate,
    /// Number of links behind the mean.
    pub links: usize,
}

/// A measure of a league.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Name of the measure in `league.json`.
    pub key: &'static str,
    /// Name of the measure in headings.
    pub name: &'static str,
    /// Unit of the figures that are shown; may be empty.
    pub unit: &'static str,
    /// Factor from the figure to the one that is shown.
    pub shown: f64,
    /// Whether the mean over links is geometric; arithmetic otherwise.
    pub is_geometric: bool,
    /// Whether a smaller value of the measure is the better one.
    pub less_is_better: bool,
    /// The measure of a scheme on a link; `None` where it is undefined.
    value: fn(&Cell) -> Option<f64>,
}

/// All measures, in the order in which they are shown.
pub const MEASURES: [Measure; 11] = [
    Measure {
        key: "win_rate",
        name: "wins",
        unit: "%",
        shown: 100.0,
        is_geometric: false,
        less_is_better: false,
        value: |cell| {
            let wins = cell.won.iter().filter(|won| **won).count();
            (!cell.won.is_empty()).then(|| wins as f64 / cell.won.len() as f64)
        },
    },
    Measure {
        key: "score",
        name: "score",
        unit: "",
        shown: 1.0,
        is_geometric: true,
        less_is_better: false,
        value: |cell| crate::summary::statistics::geometric_mean(&cell.scores),
    },
    Measure {
        key: "power",
        name: "power ÷ best other",
        unit: "",
        shown: 1.0,
        is_geometric: true,
        less_is_better: false,
        value: |cell| cell.power,
    },
    Measure {
        key: "utilisation",
        name: "utilisation",
        unit: "%",
        shown: 100.0,
        is_geometric: false,
        less_is_better: false,
        value: |cell| cell.utilisation,
    },
    Measure {
        key: "p95_queueing_ms",
        name: "p95 queueing",
        unit: "ms",
        shown: 1.0,
        is_geometric: false,
        less_is_better: true,
        value: |cell| cell.p95_queueing_ms,
    },
    Measure {
        key: "loss",
        name: "loss",
        unit: "%",
        shown: 100.0,
        is_geometric: false,
        less_is_better: true,
        value: |cell| Some(cell.loss),
    },
    Measure {
        key: "share",
        name: "share ÷ fair",
        unit: "",
        shown: 1.0,
        is_geometric: false,
        less_is_better: false,
        value: |cell| cell.share,
    },
    Measure {
        key: "harm_throughput",
        name: "harm to rate",
        unit: "%",
        shown: 100.0,
        is_geometric: false,
        less_is_better: true,
        value: |cell| Some(cell.harm?.throughput),
    },
    Measure {
        key: "excess_harm_throughput",
        name: "beyond its own",
        unit: "%",
        shown: 100.0,
        is_geometric: false,
        less_is_better: true,
        value: |cell| Some(cell.harm?.throughput - cell.own_harm?.throughput),
    },
    Measure {
        key: "harm_delay",
        name: "harm to delay",
        unit: "%",
        shown: 100.0,
        is_geometric: false,
        less_is_better: true,
        value: |cell| Some(cell.harm?.delay),
    },
    Measure {
        key: "excess_harm_delay",
        name: "beyond its own",
        unit: "%",
        shown: 100.0,
        is_geometric: false,
        less_is_better: true,
        value: |cell| Some(cell.harm?.delay - cell.own_harm?.delay),
    },
];

impl Standings {
    /// The standings of a board. The first scheme of the board is the one that differences are
    /// taken to.
    pub fn of(board: &Board, set: &str, duplicates: Vec<Duplicate>, settings: Settings) -> Self {
        let mut standings: Vec<Standing> = (0..board.schemes.len())
            .map(|scheme| Standing {
                wins: cells_of(board, scheme).map(wins).sum(),
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

impl Measure {
    /// The figure of each scheme, over the links on which all of them have the measure; empty
    /// without such a link.
    fn figures(&self, board: &Board) -> Vec<Figure> {
        let mut paired = Paired {
            values: vec![Vec::new(); board.schemes.len()],
            weights: Vec::new(),
        };
        for (link, cells) in board.cells.iter().enumerate() {
            let values: Option<Vec<f64>> = cells.iter().map(self.value).collect();
            let Some(values) = values else {
                continue;
            };
            for (list, value) in paired.values.iter_mut().zip(values) {
                list.push(if self.is_geometric { value.ln() } else { value });
            }
            // Each game counts the same, also where links have different numbers of them.
            paired.weights.push(match self.key {
                "win_rate" | "score" => board.games(link) as f64,
                _ => 1.0,
            });
        }
        let links = paired.weights.len();
        let Some(estimates) = paired.estimate() else {
            return Vec::new();
        };
        let mean = |estimate: Estimate| match self.is_geometric {
            true => estimate.exp(),
            false => estimate,
        };
        let pairs = estimates.means.into_iter().zip(estimates.differences);
        let figures = pairs.map(|(own, difference)| Figure {
            estimate: mean(own),
            lead: mean(difference),
            links,
        });
        figures.collect()
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

fn wins(cell: &Cell) -> usize {
    cell.won.iter().filter(|won| **won).count()
}
