//! Overview of all scenarios in one plot: each scheme relative to the best one of each scenario.

use std::fmt::Write as _;

use super::{
    palette::Palette,
    scatter::{self, Cloud, Point, Scatter},
};
use crate::summary::{
    aggregate::{CONFIDENCE, Group, P95_DELAY, THROUGHPUT},
    statistics,
    table::figure,
};

/// Seed of the bootstrap, fixed so that the same runs always give the same interval.
const SEED: u64 = 2;

/// Comparison of the schemes over several scenarios.
pub(super) struct Overview<'a> {
    /// Scenarios on which every scheme has a delay and a throughput.
    scenarios: Vec<&'a str>,
    schemes: Vec<Standing<'a>>,
}

/// One scheme with its values on each of the scenarios.
struct Standing<'a> {
    scheme: &'a str,
    /// Throughput relative to the scenario's highest, and 95th-percentile delay relative to its
    /// lowest.
    relative: Vec<Point>,
    /// Ranks among the schemes, from 1, by throughput, by delay and by power.
    ranks: Vec<[f64; 3]>,
}

impl<'a> Overview<'a> {
    /// Compares the schemes; `None` with fewer than two schemes, or with fewer than two scenarios
    /// on which all of them have valid runs.
    pub(super) fn new(groups: &[Group<'a>]) -> Option<Self> {
        let mut schemes: Vec<Standing<'a>> = Vec::new();
        for group in groups {
            if !schemes
                .iter()
                .any(|standing| standing.scheme == group.scheme)
            {
                schemes.push(Standing {
                    scheme: group.scheme,
                    relative: Vec::new(),
                    ranks: Vec::new(),
                });
            }
        }
        let mut scenarios = Vec::new();
        for groups in groups.chunk_by(|a, b| a.scenario == b.scenario) {
            let point = |standing: &Standing<'_>| {
                let group = groups
                    .iter()
                    .find(|group| group.scheme == standing.scheme)?;
                let (throughput, delay) = (
                    group.estimate(&THROUGHPUT)?.mean,
                    group.estimate(&P95_DELAY)?.mean,
                );
                (throughput > 0.0 && delay > 0.0).then_some(Point { delay, throughput })
            };
            let points: Option<Vec<Point>> = schemes.iter().map(point).collect();
            if let Some(points) = points {
                scenarios.push(groups[0].scenario);
                add(&mut schemes, &points);
            }
        }
        (scenarios.len() > 1 && schemes.len() > 1).then_some(Self { scenarios, schemes })
    }

    /// Renders an introduction, the plot and its numbers.
    pub(super) fn draw(&self, palette: &Palette) -> String {
        let picture = Scatter {
            title: format!(
                "Throughput against delay over {} scenarios",
                self.scenarios.len()
            ),
            delay: "p95 one-way delay ÷ the lowest (less is further right)",
            throughput: "throughput ÷ the highest",
            clouds: self
                .schemes
                .iter()
                .filter_map(|standing| self.cloud(standing))
                .collect(),
            ceiling: None,
            floor: None,
        };
        format!(
            "<div class=\"pair\"><figure>{}<figcaption>Each scheme's throughput and \
             95th-percentile one-way delay, relative to the best scheme of each scenario. Large: \
             geometric mean over the {} scenarios on which every scheme has valid runs, with its \
             95 % bootstrap interval over scenarios. Small: each scenario.</figcaption>\
             </figure>\n<div class=\"scroll\">{}</div></div>\n",
            picture.draw(&scatter::FULL, palette),
            self.scenarios.len(),
            self.table(palette)
        )
    }

    fn cloud(&self, standing: &Standing<'a>) -> Option<Cloud<'a>> {
        let (delays, rates) = standing.lists();
        let names = self.scenarios.iter().zip(&standing.relative);
        let hint = |scenario: &str, point: &Point| {
            let (rate, delay) = (figure(point.throughput), figure(point.delay));
            format!(
                "{} on {scenario}: {rate} of the highest throughput, {delay} times the lowest \
                 delay",
                standing.scheme
            )
        };
        Some(Cloud {
            scheme: standing.scheme,
            mean: Point {
                delay: statistics::geometric_mean(&delays)?,
                throughput: statistics::geometric_mean(&rates)?,
            },
            delay_interval: interval(&delays),
            throughput_interval: interval(&rates),
            samples: names
                .map(|(name, point)| (*point, hint(name, point)))
                .collect(),
        })
    }

    fn table(&self, palette: &Palette) -> String {
        let mut html = String::from(
            "<table><thead><tr><th>scheme</th><th>throughput ÷ highest</th><th>p95 delay ÷ \
             lowest</th><th>rank by throughput</th><th>by delay</th><th>by power</th></tr></thead>\
             <tbody>\n",
        );
        for standing in &self.schemes {
            let (delays, rates) = standing.lists();
            let _ = write!(html, "<tr><th>{}</th>", palette.key(standing.scheme));
            for values in [rates, delays] {
                let mean = statistics::geometric_mean(&values).map_or("–".to_owned(), figure);
                let interval = interval(&values)
                    .map(|(low, high)| format!("<small>{}–{}</small>", figure(low), figure(high)));
                let _ = write!(html, "<td>{mean}{}</td>", interval.unwrap_or_default());
            }
            for by in 0..3 {
                let ranks: Vec<f64> = standing.ranks.iter().map(|ranks| ranks[by]).collect();
                let mean = statistics::mean(&ranks).unwrap_or_default();
                let _ = write!(html, "<td>{mean:.1}</td>");
            }
            html.push_str("</tr>\n");
        }
        html.push_str(
            "</tbody></table>\n<p class=\"note\">Ranks are means over the scenarios; 1 is best. \
             Power is throughput over 95th-percentile delay.</p>",
        );
        html
    }
}

impl Standing<'_> {
    /// The relative delays and the relative throughputs.
    fn lists(&self) -> (Vec<f64>, Vec<f64>) {
        self.relative
            .iter()
            .map(|point| (point.delay, point.throughput))
            .unzip()
    }
}

/// Adds a scenario, with one point per scheme.
fn add(schemes: &mut [Standing<'_>], points: &[Point]) {
    let highest = points
        .iter()
        .map(|point| point.throughput)
        .fold(0.0, f64::max);
    let lowest = points
        .iter()
        .map(|point| point.delay)
        .fold(f64::INFINITY, f64::min);
    let measures = [
        |point: &Point| point.throughput,
        |point: &Point| -point.delay,
        |point: &Point| statistics::power(point.throughput, point.delay),
    ];
    for (standing, point) in schemes.iter_mut().zip(points) {
        standing.relative.push(Point {
            delay: point.delay / lowest,
            throughput: point.throughput / highest,
        });
        // Equal schemes share the mean of their ranks.
        standing.ranks.push(measures.map(|measure| {
            let better = points
                .iter()
                .filter(|other| measure(other) > measure(point))
                .count();
            let equal = points
                .iter()
                .filter(|other| measure(other) == measure(point))
                .count();
            better as f64 + (equal as f64 + 1.0) / 2.0
        }));
    }
}

/// Bootstrap interval of the geometric mean, computed as that of the logarithms' mean.
fn interval(values: &[f64]) -> Option<(f64, f64)> {
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let (low, high) = statistics::bootstrap_interval(&logs, CONFIDENCE, SEED)?;
    Some((low.exp(), high.exp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_compared_with_the_best_one_of_each_scenario() {
        let standing = |scheme| Standing {
            scheme,
            relative: Vec::new(),
            ranks: Vec::new(),
        };
        let mut schemes = [standing("a"), standing("b"), standing("c")];
        let point = |delay, throughput| Point { delay, throughput };
        add(
            &mut schemes,
            &[point(10.0, 5.0), point(40.0, 10.0), point(20.0, 10.0)],
        );
        let relative = |i: usize| {
            (
                schemes[i].relative[0].delay,
                schemes[i].relative[0].throughput,
            )
        };
        assert_eq!(
            [relative(0), relative(1), relative(2)],
            [(1.0, 0.5), (4.0, 1.0), (2.0, 1.0)]
        );
        let ranks: Vec<[f64; 3]> = schemes.iter().map(|standing| standing.ranks[0]).collect();
        assert_eq!(ranks, [[3.0, 1.0, 1.5], [1.5, 3.0, 3.0], [1.5, 2.0, 1.5]]);
    }
}
