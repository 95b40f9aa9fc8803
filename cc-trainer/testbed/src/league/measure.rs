//! What is measured of every scheme on every link of a league, and the means over the links.

use serde::{Deserialize, Serialize};

use super::{
    board::{Board, Cell},
    bootstrap::{Estimate, Paired},
};

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
    pub(super) value: fn(&Cell) -> Option<f64>,
}

/// All measures, in the order in which they are shown.
pub const MEASURES: [Measure; 12] = [
    Measure {
        key: "win_rate",
        name: "wins",
        unit: "%",
        shown: 100.0,
        is_geometric: false,
        less_is_better: false,
        value: |cell| {
            let games = cell.won.len();
            (games > 0).then(|| cell.wins() as f64 / games as f64)
        },
    },
    Measure {
        key: "score",
        name: "score",
        unit: "",
        shown: 1.0,
        is_geometric: true,
        less_is_better: false,
        value: Cell::score,
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
        key: "share_distance",
        name: "factor from fair",
        unit: "",
        shown: 1.0,
        is_geometric: true,
        less_is_better: true,
        value: Cell::share_distance,
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

impl Measure {
    /// The figure of each scheme, over the links on which all of them have the measure; empty
    /// without such a link.
    pub(super) fn figures(&self, board: &Board) -> Vec<Figure> {
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
