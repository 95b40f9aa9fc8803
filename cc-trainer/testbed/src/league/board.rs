//! What every scheme did on every link of a league, and the games that follow from it.

use std::{collections::BTreeSet, time::Duration};

use super::{
    harm::{self, Harm, Neighbours},
    score::{self, Game, Played},
    strata::Properties,
};
use crate::summary::{FlowRun, Run, statistics};
use cc_sim::scenario::{self, MTU, Scenario};

/// The least ratio of powers, so that a scheme that delivers nothing on one link does not make its
/// geometric mean over all links 0.
pub(super) const LEAST_POWER: f64 = 1e-3;
/// Least share of which a distance is taken, so that a flow that got nothing has one.
const LEAST_SHARE: f64 = 1e-3;

/// A link and what of it is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Name of the scenario that this is the board of.
    pub name: String,
    /// Rate, RTT and buffer of the link, for strata.
    pub properties: Properties,
    /// One-way propagation delay of the data direction, ms.
    pub base_owd_ms: f64,
    /// How the games of the link are decided.
    pub rule: scenario::Rule,
    /// Whether games are decided with rounded figures ([`score::Rule::rounds`]).
    pub rounds: bool,
    /// Indices of the flows that are scored together.
    pub scored: Vec<usize>,
    /// Indices of the flows with schemes of their own.
    pub neighbours: Vec<usize>,
    /// The schemes of those, sorted, each once.
    pub neighbour_schemes: Vec<String>,
    /// Share of the link that the scored flows may take.
    pub fair_share: f64,
}

/// What the neighbours of a link have without the scheme under test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct References {
    /// The neighbours alone on the link.
    pub alone: Option<Neighbours>,
    /// The neighbours beside a flow of their own scheme in the place of the one under test.
    pub among_themselves: Option<Neighbours>,
}

/// What one scheme did on one link: means over its runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The games of the link, one per segment, and whether the scheme won them.
    pub won: Vec<bool>,
    /// Absolute score of each game, the mean over runs; empty on a link without a rate.
    pub scores: Vec<f64>,
    /// Payload that the scored flows got together, Mbit/s.
    pub throughput_mbps: f64,
    /// 95th percentile of the one-way delay of their packets, ms.
    pub p95_owd_ms: Option<f64>,
    /// The power, throughput / p95 delay, divided by the highest of the other schemes; `None`
    /// without another scheme.
    pub power: Option<f64>,
    /// Delivered bits of all flows as a fraction of the link's capacity.
    pub utilisation: Option<f64>,
    /// 95th percentile of the one-way delay less the propagation delay, ms.
    pub p95_queueing_ms: Option<f64>,
    /// Fraction of the scored flows' packets that were dropped.
    pub loss: f64,
    /// Throughput of the scored flow as a multiple of its fair share; `None` where that is not what
    /// is scored.
    pub share: Option<f64>,
    /// What the scheme does to its neighbours.
    pub harm: Option<Harm>,
    /// What the neighbours' own scheme would do to them.
    pub own_harm: Option<Harm>,
}

/// Links with the results of all schemes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Board {
    /// Names of the schemes, the first of which leads are counted for.
    pub schemes: Vec<String>,
    /// Links on which every scheme has a result.
    pub links: Vec<Link>,
    /// The result of each scheme on each link: `cells[link][scheme]`.
    pub cells: Vec<Vec<Cell>>,
    /// Links without a valid run of some scheme, which count for nobody.
    pub incomplete: Vec<String>,
}

impl Board {
    /// An empty board for these schemes.
    pub fn new(schemes: Vec<String>) -> Self {
        Self {
            schemes,
            ..Self::default()
        }
    }

    /// Adds a link with the valid runs of each scheme, in the order of [`Self::schemes`]. A link on
    /// which a scheme has no run is listed as incomplete instead.
    pub fn add(&mut self, link: Link, runs: &[Vec<&Run>], references: &References) {
        if runs.iter().any(Vec::is_empty) {
            self.incomplete.push(link.name);
            return;
        }
        let segments = runs.iter().flatten().map(|run| run.segments.len()).min();
        let mut won = vec![Vec::new(); runs.len()];
        for segment in 0..segments.unwrap_or(0) {
            let played: Vec<Vec<Played>> = runs
                .iter()
                .map(|runs| runs.iter().map(|run| link.played(run, segment)).collect())
                .collect();
            let league: Vec<&[Played]> = played.iter().map(Vec::as_slice).collect();
            let winners = link.rule(runs[0][0], segment).winners(&league);
            for (won, wins) in won.iter_mut().zip(winners) {
                won.push(wins);
            }
        }
        let mut cells: Vec<Cell> = runs
            .iter()
            .zip(won)
            .map(|(runs, won)| link.cell(runs, won, references))
            .collect();
        compare_powers(&mut cells);
        self.links.push(link);
        self.cells.push(cells);
    }

    /// Number of games of a link.
    pub fn games(&self, link: usize) -> usize {
        self.cells[link].first().map_or(0, |cell| cell.won.len())
    }
}

impl Link {
    /// What is judged of a scenario.
    pub fn of(scenario: &Scenario, rounds: bool) -> Self {
        let ms = |delay: Duration| delay.as_secs_f64() * 1e3;
        let rule = scenario.rule();
        let flows = &scenario.flows;
        let (tested, neighbours): (Vec<usize>, Vec<usize>) =
            (0..flows.len()).partition(|&flow| flows[flow].scheme.is_none());
        let scored = match rule {
            scenario::Rule::Balance => tested,
            _ => vec![scenario.scored_flow()],
        };
        let extra = scored.iter().map(|&flow| flows[flow].extra_delay).max();
        let extra = extra.unwrap_or_default();
        let mbps = scenario.mean_bits_per_second();
        let rate_mbps = mbps.map_or(f64::INFINITY, |rate| rate / 1e6);
        let rtt_ms = ms(scenario.base_rtt() + 2 * extra);
        // Without this an unlimited queue at an unlimited rate would be no number.
        let buffer_bdp = match buffer_bytes(scenario) {
            bytes if bytes.is_finite() => bytes / (rate_mbps * rtt_ms * 125.0),
            _ => f64::INFINITY,
        };
        let schemes = flows.iter().filter_map(|flow| flow.scheme.clone());
        let neighbour_schemes: BTreeSet<String> = schemes.collect();
        Self {
            name: scenario.name.clone(),
            properties: Properties {
                rate_mbps,
                rtt_ms,
                buffer_bdp,
            },
            base_owd_ms: ms(scenario.forward.delay.base + extra),
            rule,
            rounds,
            fair_share: match rule {
                scenario::Rule::Share => scored.len() as f64 / flows.len() as f64,
                _ => 1.0,
            },
            scored,
            neighbours,
            neighbour_schemes: neighbour_schemes.into_iter().collect(),
        }
    }

    /// Whether the link shows what a scheme does to others: it is scored by its share, and has
    /// neighbours with schemes of their own.
    pub fn shows_harm(&self) -> bool {
        self.rule == scenario::Rule::Share && !self.neighbours.is_empty()
    }

    /// Mean capacity of a segment that the scored flows may take, Mbit/s.
    fn fair_mbps(&self, run: &Run, segment: usize) -> Option<f64> {
        Some(run.segments[segment].capacity_mbps? * self.fair_share)
    }

    fn rule(&self, run: &Run, segment: usize) -> score::Rule {
        let share = || {
            let fair_mbps = self.fair_mbps(run, segment)?;
            Some(Game::Share { fair_mbps })
        };
        let game = match self.rule {
            scenario::Rule::Balance => Game::Balance,
            // A link without a rate has no fair share.
            scenario::Rule::Share => share().unwrap_or(Game::Power),
            scenario::Rule::Power => Game::Power,
        };
        score::Rule {
            game,
            rounds: self.rounds,
        }
    }

    pub(super) fn played(&self, run: &Run, segment: usize) -> Played {
        let segment = &run.segments[segment];
        let flows = self.scored.iter();
        let throughputs: Vec<f64> = flows
            .filter_map(|&flow| segment.throughput_mbps.get(flow).copied())
            .collect();
        let least = throughputs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = throughputs.iter().copied().fold(0.0, f64::max);
        let way_back_ms = self.properties.rtt_ms - self.base_owd_ms;
        Played {
            throughput_mbps: throughputs.iter().sum(),
            delay_ms: segment.mean_owd_ms.map(|owd| owd + way_back_ms),
            balance: if most > 0.0 { least / most } else { 0.0 },
        }
    }

    pub(super) fn cell(&self, runs: &[&Run], won: Vec<bool>, references: &References) -> Cell {
        let mean = |value: &dyn Fn(&Run) -> Option<f64>| {
            let values: Vec<f64> = runs.iter().filter_map(|run| value(run)).collect();
            statistics::mean(&values)
        };
        let scored = |run: &Run, value: fn(&FlowRun) -> Option<f64>| {
            let flows = self.scored.iter().filter_map(|&flow| run.flows.get(flow));
            flows.filter_map(value).collect::<Vec<f64>>()
        };
        let scores = (0..won.len()).map_while(|segment| {
            let score = |run: &Run| {
                let fair_mbps = self.fair_mbps(run, segment);
                score::absolute(
                    &self.played(run, segment),
                    fair_mbps,
                    self.properties.rtt_ms,
                )
            };
            mean(&score)
        });
        let throughput = mean(&|run| {
            let throughputs = scored(run, |flow| Some(flow.throughput_mbps));
            Some(throughputs.iter().sum())
        });
        let p95_owd_ms = mean(&|run| statistics::mean(&scored(run, |flow| flow.p95_owd_ms)));
        let loss = mean(&|run| statistics::mean(&scored(run, |flow| Some(flow.loss_rate))));
        let share = |run: &Run| {
            let (mut got, mut fair) = (0.0, 0.0);
            for (segment, figures) in run.segments.iter().enumerate() {
                let seconds = figures.to_s - figures.from_s;
                got += self.played(run, segment).throughput_mbps * seconds;
                fair += self.fair_mbps(run, segment)? * seconds;
            }
            (fair > 0.0).then(|| got / fair)
        };
        let with_us = Neighbours::of(runs, &self.neighbours);
        let harm = |with: Option<&Neighbours>| harm::harm(references.alone.as_ref()?, with?);
        Cell {
            won,
            scores: scores.collect(),
            throughput_mbps: throughput.unwrap_or(0.0),
            p95_owd_ms,
            power: None,
            utilisation: mean(&|run| run.utilization),
            p95_queueing_ms: p95_owd_ms.map(|p95| (p95 - self.base_owd_ms).max(0.0)),
            loss: loss.unwrap_or(0.0),
            share: (self.rule == scenario::Rule::Share)
                .then(|| mean(&share))
                .flatten(),
            harm: harm(with_us.as_ref()),
            own_harm: harm(references.among_themselves.as_ref()),
        }
    }
}

impl Cell {
    /// Number of games that the scheme won.
    pub(crate) fn wins(&self) -> usize {
        self.won.iter().filter(|won| **won).count()
    }

    /// Geometric mean of the absolute score over the games; `None` on a link without a rate.
    pub(super) fn score(&self) -> Option<f64> {
        statistics::geometric_mean(&self.scores)
    }

    /// How far the share is from the fair one, as a factor: s or 1 / s, whichever is at least 1,
    /// so that half of the fair share is as far from it as twice as much. `None` where the share
    /// is.
    pub(super) fn share_distance(&self) -> Option<f64> {
        let share = self.share?.max(LEAST_SHARE);
        Some(share.max(1.0 / share))
    }

    /// The power of the scheme itself, throughput / p95 delay, Mbit/s per ms; 0 when nothing
    /// arrived.
    pub(super) fn own_power(&self) -> f64 {
        let p95 = self.p95_owd_ms;
        p95.map_or(0.0, |p95| self.throughput_mbps / p95)
    }
}

/// Size of the queue in bytes; infinite when it is unlimited.
fn buffer_bytes(scenario: &Scenario) -> f64 {
    let queue = &scenario.forward.queue;
    let packets = queue.packets.map_or(f64::INFINITY, f64::from) * f64::from(MTU);
    let bytes = queue.bytes.map_or(f64::INFINITY, |bytes| bytes as f64);
    packets.min(bytes)
}

/// Fills in each scheme's power as a ratio to the best of the others.
fn compare_powers(cells: &mut [Cell]) {
    let powers: Vec<f64> = cells.iter().map(Cell::own_power).collect();
    for (own, cell) in cells.iter_mut().enumerate() {
        let others = powers.iter().enumerate().filter(|(other, _)| *other != own);
        let best = others.map(|(_, power)| *power).reduce(f64::max);
        cell.power = best
            .filter(|&best| best > 0.0)
            .map(|best| (powers[own] / best).max(LEAST_POWER));
    }
}
