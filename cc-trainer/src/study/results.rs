//! The results of a study: the learning curves of its variants, as figures and as a chart.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{Study, StudyError, StudyRun, Variant};
use crate::{
    ope::student_quantile,
    train::{CurvePoint, greedy::LinkScore},
};
use cc_testbed::{
    report::chart::{Chart, Curve, Panel, Spread},
    summary::{Host, table::figure, utc_now},
};

/// Number of points on a curve.
const POINTS: u32 = 100;
/// The last part of a run, as a fraction, whose mean reward is the run's final reward.
const END: f64 = 0.1;
/// How much earlier, as a fraction of the run, the part begins that the last one is compared with.
const BEFORE: f64 = 0.25;

/// The results of a study, as `study.json` has them.
#[derive(Clone, Debug, Serialize)]
pub struct StudyResults {
    /// Version of cc-trainer that made them.
    pub version: String,
    /// When they were made: UTC, as in RFC 3339.
    pub date: String,
    /// The command line of the study.
    pub command: String,
    /// The host that the study ran on.
    pub host: Host,
    /// Title of the chart ([`Study::title`]).
    pub title: String,
    /// Label of the curves: the mean reward per decision, over the last 100
    /// episodes, in units of [`Study::reward_unit`].
    pub reward: String,
    /// The reward that is drawn as 1 ([`Study::reward_unit`]).
    pub reward_unit: f64,
    /// Lowest value on the vertical axis ([`Study::floor`]).
    pub floor: Option<f64>,
    /// The configuration that all variants have in common.
    pub base: toml::Table,
    /// Results of the variants, in the study's order; variants without a run are left out.
    pub variants: Vec<VariantResults>,
}

/// The results of one variant.
#[derive(Clone, Debug, Serialize)]
pub struct VariantResults {
    /// The variant, as the study has it.
    #[serde(flatten)]
    pub variant: Variant,
    /// Number of its network's parameters.
    pub parameters: u64,
    /// Mean reward against steps, as far as all of its runs got.
    pub curve: Vec<Spread>,
    /// Mean reward over the last tenth of the runs' steps; `None` if a run has no point there.
    pub end: Option<Spread>,
    /// The scores of the final policies; `None` if a run has none.
    pub score: Option<ScoreResults>,
    /// Mean score on each link over the runs, in the order of the configuration's tasks.
    pub links: Vec<LinkScore>,
    /// Late gain: that mean less the mean over the tenth that begins a
    /// quarter of the steps earlier.
    pub late_gain: Option<f64>,
    /// One run for each seed.
    pub runs: Vec<RunResults>,
}

/// The final scores of a variant's runs. The score of a run is the mean over the links of the
/// reward per window on fixed episodes, with the most likely actions; without [`Study::evaluation`]
/// it is the mean reward at the end of training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScoreResults {
    /// Mean score of the variant's runs.
    pub mean: f64,
    /// Half the width of Student's 95 % interval of the mean over seeds; `None` for one run.
    pub margin: Option<f64>,
    /// The score of the best run.
    pub best: f64,
    /// Share of the runs that collapsed ([`Study::collapsed_below`]).
    pub collapsed: Option<f64>,
    /// Mean over the runs that did not collapse; `None` if there is none.
    pub learnt: Option<f64>,
}

impl ScoreResults {
    /// The figures of some runs' scores; `None` without scores.
    fn of(scores: &[f64], collapsed_below: Option<f64>) -> Option<Self> {
        let spread = Spread::of(0.0, scores)?;
        let count = scores.len() as f64;
        let squares: f64 = scores.iter().map(|one| (one - spread.mean).powi(2)).sum();
        let margin = (scores.len() > 1).then(|| {
            let quantile = student_quantile(0.975, count - 1.0);
            quantile * (squares / (count - 1.0) / count).sqrt()
        });
        let least = collapsed_below.unwrap_or(f64::NEG_INFINITY);
        let learnt: Vec<f64> = scores.iter().copied().filter(|&one| one >= least).collect();
        Some(Self {
            mean: spread.mean,
            margin,
            best: spread.greatest,
            collapsed: collapsed_below.map(|_| 1.0 - learnt.len() as f64 / count),
            learnt: Spread::of(0.0, &learnt).map(|learnt| learnt.mean),
        })
    }
}

/// The results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct RunResults {
    /// Seed that the run was trained with.
    pub seed: u64,
    /// Number of environment steps learnt from.
    pub steps: u64,
    /// Duration of the run, s.
    pub seconds: f64,
    /// Mean reward over the last tenth of the steps.
    pub end: Option<f64>,
    /// The final policy's score on each link, in units of [`Study::reward_unit`].
    pub links: Vec<LinkScore>,
}

impl StudyResults {
    /// Collects the results of a study from its runs.
    pub fn new(study: &Study, runs: &[StudyRun], command: &str) -> Self {
        let of = |(place, variant)| -> Option<VariantResults> {
            let runs: Vec<&StudyRun> = runs.iter().filter(|run| run.variant == place).collect();
            variant_results(study, variant, &runs)
        };
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            date: utc_now(),
            command: command.to_owned(),
            host: Host::probe(),
            title: study.title.clone(),
            reward: study.reward.clone(),
            reward_unit: study.reward_unit,
            floor: study.floor,
            base: study.base.clone(),
            variants: study.variants.iter().enumerate().filter_map(of).collect(),
        }
    }

    /// Writes `study.json` and `study.svg` to the directory `dir`, and returns their paths.
    ///
    /// # Errors
    ///
    /// Returns an error when a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<[PathBuf; 2], StudyError> {
        let written = self.chart().write(dir, "study", &rounded(self));
        written.map_err(|(path, source)| StudyError::Write { path, source })
    }

    /// The chart of the learning curves.
    pub fn chart(&self) -> Chart {
        let mut panels: Vec<Panel> = Vec::new();
        for results in &self.variants {
            let Variant {
                name, panel, curve, ..
            } = &results.variant;
            let curve = Curve {
                name: curve.as_ref().unwrap_or(name).clone(),
                points: results.curve.clone(),
            };
            match panels.iter_mut().find(|known| known.title == *panel) {
                Some(known) => known.curves.push(curve),
                None => panels.push(Panel {
                    title: panel.clone(),
                    curves: vec![curve],
                }),
            }
        }
        let seeds = self.variants.iter().map(|one| one.runs.len()).max();
        Chart {
            title: format!(
                "{}: mean and range of {} runs",
                self.title,
                seeds.unwrap_or(0)
            ),
            x: "steps (decisions)".to_owned(),
            y: self.reward.clone(),
            floor: self.floor,
            panels,
        }
    }

    /// Tables in Markdown with one row per variant: the figures of the runs, and where policies
    /// were judged on fixed episodes, their mean score on each link.
    pub fn table(&self) -> String {
        let mut table = String::from(
            "| variant | parameters | steps | score | best | collapsed | of those that learnt \
             | at the end | of its runs | gained late | s a run |\n\
             |---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        let show = |value: Option<f64>| value.map_or("–".to_owned(), figure);
        for results in &self.variants {
            let runs = &results.runs;
            let steps = runs.iter().map(|run| run.steps).min().unwrap_or(0);
            let seconds = runs.iter().map(|run| run.seconds).sum::<f64>() / runs.len() as f64;
            let range = results.end.map_or("–".to_owned(), |end| {
                format!("{} to {}", figure(end.least), figure(end.greatest))
            });
            let score = results
                .score
                .map_or("–".to_owned(), |score| match score.margin {
                    Some(margin) => format!("{} ± {}", figure(score.mean), figure(margin)),
                    None => figure(score.mean),
                });
            let collapsed = results.score.and_then(|score| score.collapsed);
            // Writing to a string does not fail.
            let _ = writeln!(
                table,
                "| {} | {} | {steps} | {score} | {} | {} | {} | {} | {range} | {} | {seconds:.0} |",
                results.variant.name,
                results.parameters,
                show(results.score.map(|score| score.best)),
                collapsed.map_or("–".to_owned(), |share| format!(
                    "{:.0} of {}",
                    share * runs.len() as f64,
                    runs.len()
                )),
                show(results.score.and_then(|score| score.learnt)),
                show(results.end.map(|end| end.mean)),
                show(results.late_gain),
            );
        }
        let links = self.variants.iter().map(|results| &results.links);
        let Some(links) = links
            .max_by_key(|links| links.len())
            .filter(|own| !own.is_empty())
        else {
            return table;
        };
        let names = links.iter().map(|link| format!(" {} |", link.name));
        let _ = write!(
            table,
            "\n| variant |{}\n|---|{}\n",
            names.collect::<String>(),
            "---|".repeat(links.len())
        );
        for results in &self.variants {
            let scores = results
                .links
                .iter()
                .map(|link| format!(" {} |", figure(link.score)));
            let scores: String = scores.collect();
            let _ = writeln!(table, "| {} |{scores}", results.variant.name);
        }
        table
    }
}

fn variant_results(study: &Study, variant: &Variant, runs: &[&StudyRun]) -> Option<VariantResults> {
    let curves: Vec<Vec<(f64, f64)>> = runs
        .iter()
        .map(|run| reward_curve(&run.record.curve, study.reward_unit))
        .collect();
    let steps = runs.iter().map(|run| run.record.last.steps).min()?;
    let spread = |x: f64| {
        let values: Option<Vec<f64>> = curves.iter().map(|curve| at(curve, x)).collect();
        Spread::of(x, &values?)
    };
    let part = |from: f64| -> Option<Vec<f64>> {
        let part = from * steps as f64..=(from + END) * steps as f64;
        curves
            .iter()
            .map(|curve| mean_within(curve, &part))
            .collect()
    };
    let end = part(1.0 - END);
    let scores: Option<Vec<f64>> = match study.evaluation {
        None => end.clone(),
        Some(_) => runs.iter().map(|run| score(study, &run.links)).collect(),
    };
    let mean = |values: Option<&Vec<f64>>| Some(Spread::of(0.0, values?)?.mean);
    let before = part(1.0 - END - BEFORE);
    let gained = |end: f64| Some(end - mean(before.as_ref())?);
    Some(VariantResults {
        variant: variant.clone(),
        parameters: runs.first()?.record.parameters,
        curve: (1..=POINTS)
            .filter_map(|i| spread(steps as f64 * f64::from(i) / f64::from(POINTS)))
            .collect(),
        end: end
            .as_ref()
            .and_then(|values| Spread::of(steps as f64, values)),
        late_gain: mean(end.as_ref()).and_then(gained),
        score: scores.and_then(|scores| ScoreResults::of(&scores, study.collapsed_below)),
        links: mean_links(study, runs),
        runs: runs
            .iter()
            .enumerate()
            .map(|(place, run)| RunResults {
                seed: run.seed,
                steps: run.record.last.steps,
                seconds: run.record.last.seconds,
                end: end.as_ref().map(|values| values[place]),
                links: in_units(study, &run.links),
            })
            .collect(),
    })
}

/// The scores of a run on its links, in the study's units.
fn in_units(study: &Study, links: &[LinkScore]) -> Vec<LinkScore> {
    let of = |link: &LinkScore| LinkScore {
        score: link.score / study.reward_unit,
        ..link.clone()
    };
    links.iter().map(of).collect()
}

/// The score of a run: the mean over its links; `None` for a run that was not judged.
fn score(study: &Study, links: &[LinkScore]) -> Option<f64> {
    let scores: Vec<f64> = in_units(study, links)
        .iter()
        .map(|link| link.score)
        .collect();
    Some(Spread::of(0.0, &scores)?.mean)
}

/// The mean score on each link over the runs that were judged.
fn mean_links(study: &Study, runs: &[&StudyRun]) -> Vec<LinkScore> {
    let judged: Vec<_> = runs.iter().filter(|run| !run.links.is_empty()).collect();
    let Some(first) = judged.first() else {
        return Vec::new();
    };
    let mean = |(at, link): (usize, &LinkScore)| {
        let of = judged
            .iter()
            .map(|run| run.links[at].score / study.reward_unit);
        LinkScore {
            name: link.name.clone(),
            score: of.sum::<f64>() / judged.len() as f64,
        }
    };
    first.links.iter().enumerate().map(mean).collect()
}

/// The learning curve as steps and mean reward per decision over the last
/// episodes, in units of `unit`.
fn reward_curve(points: &[CurvePoint], unit: f64) -> Vec<(f64, f64)> {
    let of = |point: &CurvePoint| {
        let mean = point.episode_return? / point.episode_steps.filter(|steps| *steps > 0.0)?;
        Some((point.steps as f64, mean / unit))
    };
    points.iter().filter_map(of).collect()
}

/// The curve's height at `x` by linear interpolation; `None` beyond its ends.
fn at(curve: &[(f64, f64)], x: f64) -> Option<f64> {
    let next = curve.partition_point(|point| point.0 < x);
    let (after, before) = (curve.get(next)?, next.checked_sub(1).map(|i| curve[i]));
    match before {
        Some(before) => {
            let share = (x - before.0) / (after.0 - before.0);
            Some(before.1 + share * (after.1 - before.1))
        }
        None => (after.0 == x).then_some(after.1),
    }
}

fn mean_within(curve: &[(f64, f64)], part: &std::ops::RangeInclusive<f64>) -> Option<f64> {
    let within = curve.iter().filter(|point| part.contains(&point.0));
    let values: Vec<f64> = within.map(|point| point.1).collect();
    Some(Spread::of(0.0, &values)?.mean)
}

/// The results with four digits after the decimal point, beyond which figures are noise.
fn rounded(results: &StudyResults) -> serde_json::Value {
    let mut value = serde_json::to_value(results).unwrap_or_default();
    fn round(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Number(number) if number.is_f64() => {
                let rounded = number.as_f64().map(|value| (value * 1e4).round() / 1e4);
                *value = rounded.into();
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(round),
            serde_json::Value::Object(values) => values.values_mut().for_each(round),
            _ => {}
        }
    }
    if let Some(variants) = value.get_mut("variants") {
        round(variants);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_interpolated_between_its_points_and_ends_with_them() {
        let curve = [(10.0, 1.0), (20.0, 3.0), (40.0, 3.0)];
        for (x, height) in [
            (9.0, None),
            (10.0, Some(1.0)),
            (15.0, Some(2.0)),
            (40.0, Some(3.0)),
            (41.0, None),
        ] {
            assert_eq!(at(&curve, x), height, "{x}");
        }
        assert_eq!(at(&[], 1.0), None);
        assert_eq!(mean_within(&curve, &(15.0..=50.0)), Some(3.0));
        assert_eq!(mean_within(&curve, &(50.0..=60.0)), None);
    }

    #[test]
    fn scores_have_students_interval_and_tell_collapsed_runs_apart() {
        let of = |scores: &[f64], least| ScoreResults::of(scores, least);
        assert_eq!(of(&[], None), None);
        let one = of(&[-2.0], Some(-3.0)).expect("one");
        assert_eq!(
            (one.mean, one.margin, one.collapsed),
            (-2.0, None, Some(0.0))
        );
        // Mean −3, deviation 2; 3.182 is the quantile of three degrees of freedom.
        let four = of(&[-2.0, -2.0, -2.0, -6.0], Some(-3.0)).expect("four");
        let margin = 3.182_446 * 2.0 / 2.0;
        assert!(
            (four.margin.expect("four") - margin).abs() < 1e-3,
            "{four:?}"
        );
        assert_eq!((four.mean, four.best), (-3.0, -2.0));
        assert_eq!((four.collapsed, four.learnt), (Some(0.25), Some(-2.0)));
        let all = of(&[-5.0, -6.0], Some(-3.0)).expect("two");
        assert_eq!((all.collapsed, all.learnt), (Some(1.0), None));
    }

    #[test]
    fn a_reward_curve_divides_returns_by_episode_length_and_unit() {
        let point = |steps, episode_return, episode_steps| CurvePoint {
            steps,
            episode_return,
            episode_steps,
            ..CurvePoint::default()
        };
        let points = [
            point(5, None, None),
            point(9, Some(-30.0), Some(100.0)),
            point(12, Some(-30.0), Some(0.0)),
        ];
        let curve = reward_curve(&points, 0.1);
        assert_eq!((curve.len(), curve[0].0), (1, 9.0));
        assert!((curve[0].1 + 3.0).abs() < 1e-9);
    }
}
