//! Schemes on traces: their scores, with the spread over the traces.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use cc_abr::{
    optimum::{self, Resolution},
    play::{self, NoSuchQuality, Score},
    qoe::{Aim, Metric, Qoe, QoeError},
    session::{Rules, Session},
    trace::Trace,
    video::Video,
};
use cc_testbed::{
    report::chart::{Chart, Curve, Panel, Spread},
    summary::{Host, statistics, table, utc_now},
};
use rayon::prelude::*;
use serde::Serialize;

use super::schemes::Scheme;
use crate::environment::abr::files::TraceSet;

/// Seed of the confidence intervals.
const SEED: u64 = 1;
/// Percentiles of the scores that are reported.
const PERCENTILES: [f64; 3] = [5.0, 50.0, 95.0];
/// Share of all scores, in percent, that lies left of the picture: few traces are so bad that they
/// would squeeze all others.
const LEFT_OUT: f64 = 2.0;

/// What is to be evaluated.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The video that every session plays.
    pub video: Arc<Video>,
    /// Sets of traces, each with means of its own.
    pub sets: Vec<TraceSet>,
    /// The schemes, in the order of tables.
    pub schemes: Vec<Scheme>,
    /// Measures that schemes aim at and are scored by, one after the other.
    pub aims: Vec<Aim>,
    /// Settings of link and player.
    pub rules: Rules,
    /// Command line, which the results state.
    pub command: String,
}

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// A measure cannot score the video.
    #[error(transparent)]
    Qoe(#[from] QoeError),
    /// A scheme chose what the video does not have.
    #[error("{scheme} on {trace}: {source}")]
    Choice {
        /// The scheme that chose, as it was named in the command.
        scheme: Scheme,
        /// Name of the trace: that of its file without the ending.
        trace: String,
        /// The quality that it chose, which the video does not have.
        source: NoSuchQuality,
    },
    /// A scheme cannot choose among the video's bitrates.
    #[error("{scheme}: {reason}")]
    Scheme {
        /// The scheme.
        scheme: Scheme,
        /// Why it cannot choose for this video, with the remedy.
        reason: String,
    },
    /// The evaluation was cancelled before its end.
    #[error("ended early: there is no result")]
    Stopped,
}

/// Results of an evaluation, the content of `abr.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Version of cc-trainer that made them.
    pub version: String,
    /// Date in UTC, in the format of RFC 3339.
    pub date: String,
    /// Command line of the evaluation.
    pub command: String,
    /// Host that it ran on.
    pub host: Host,
    /// Name of the video, as it was given on the command line.
    pub video: String,
    /// One row for each measure, set and scheme.
    pub rows: Vec<Row>,
}

/// Results of one scheme on one set under one measure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the set of traces.
    pub set: String,
    /// The measure, `linear`, `log` or `hd`.
    pub qoe: String,
    /// Penalty for a second of rebuffering.
    pub rebuffer_penalty: f64,
    /// The scheme, as on the command line.
    pub scheme: String,
    /// Mean over the traces of the means per chunk, the first chunk left out.
    pub mean: Score,
    /// 95 % bootstrap interval of the mean quality of experience over the traces.
    pub interval: Option<(f64, f64)>,
    /// Percentiles 5, 50 and 95 of the traces' qualities of experience.
    pub percentiles: Vec<f64>,
    /// Of the optimum: the mean of what no scheme can exceed on each trace.
    pub bound: Option<f64>,
    /// Hours of video per minute of computing, on all processors together.
    pub hours_per_minute: f64,
    /// Each trace's score, in the set's order.
    pub traces: Vec<TraceScore>,
}

/// Score of a scheme on one trace.
#[derive(Clone, Debug, Serialize)]
pub struct TraceScore {
    /// Name of the trace.
    pub name: String,
    /// Means per chunk, the first one left out.
    #[serde(flatten)]
    pub score: Score,
    /// What no scheme can exceed; of the optimum only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
}

impl Evaluation {
    /// Number of sessions in all.
    pub fn sessions(&self) -> usize {
        let traces: usize = self.sets.iter().map(|set| set.traces.len()).sum();
        traces * self.schemes.len() * self.aims.len()
    }

    /// Plays every scheme on every trace under every measure, on all processors. `played` is called
    /// after each session.
    ///
    /// # Errors
    ///
    /// Returns an error when a measure or scheme cannot be used with the video, and
    /// [`EvaluateError::Stopped`] once `stop` is true.
    pub fn run(
        &self,
        stop: &AtomicBool,
        played: &(dyn Fn() + Sync),
    ) -> Result<Results, EvaluateError> {
        let mut rows = Vec::new();
        for aim in &self.aims {
            let metric = aim.metric(self.video.kbps())?;
            for set in &self.sets {
                for scheme in &self.schemes {
                    rows.push(self.row(set, scheme, *aim, &metric, stop, played)?);
                }
            }
        }
        Ok(Results {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            date: utc_now(),
            command: self.command.clone(),
            host: Host::probe(),
            video: self.video.name().to_owned(),
            rows,
        })
    }

    fn row(
        &self,
        set: &TraceSet,
        scheme: &Scheme,
        aim: Aim,
        metric: &Metric,
        stop: &AtomicBool,
        played: &(dyn Fn() + Sync),
    ) -> Result<Row, EvaluateError> {
        let began = Instant::now();
        let one = |trace: &Arc<Trace>| {
            if stop.load(Ordering::Relaxed) {
                return Err(EvaluateError::Stopped);
            }
            let score = self.session(trace, scheme, aim, metric);
            played();
            score
        };
        let traces: Vec<TraceScore> = set
            .traces
            .par_iter()
            .map(one)
            .collect::<Result<_, EvaluateError>>()?;
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        let hours = (traces.len() * self.video.chunks()) as f64 * self.video.chunk_s() / 3600.0;
        let scores: Vec<f64> = traces.iter().map(|trace| trace.score.qoe).collect();
        let bounds: Option<Vec<f64>> = traces.iter().map(|trace| trace.bound).collect();
        let percentile = |percent| statistics::percentile(&scores, percent);
        Ok(Row {
            set: set.name.clone(),
            qoe: aim.qoe.to_string(),
            rebuffer_penalty: metric.rebuffer_penalty(),
            scheme: scheme.to_string(),
            mean: mean(&traces),
            interval: statistics::bootstrap_interval(&scores, 0.95, SEED),
            percentiles: PERCENTILES.into_iter().filter_map(percentile).collect(),
            bound: bounds.as_deref().and_then(statistics::mean),
            hours_per_minute: hours / minutes.max(1e-9),
            traces,
        })
    }

    fn session(
        &self,
        trace: &Arc<Trace>,
        scheme: &Scheme,
        aim: Aim,
        metric: &Metric,
    ) -> Result<TraceScore, EvaluateError> {
        let choice = |source| EvaluateError::Choice {
            scheme: scheme.clone(),
            trace: trace.name().to_owned(),
            source,
        };
        let name = trace.name().to_owned();
        let Some(choosers) = scheme.choosers(aim) else {
            let resolution = Resolution::default();
            let best = optimum::solve(&self.video, trace, self.rules, metric, resolution);
            let best = best.map_err(choice)?;
            return Ok(TraceScore {
                name,
                score: best.score,
                bound: Some(best.bound),
            });
        };
        let chooser = choosers(self.video.kbps()).map_err(|reason| EvaluateError::Scheme {
            scheme: scheme.clone(),
            reason,
        })?;
        let session = Session::new(self.video.clone(), trace.clone(), self.rules);
        let downloads = play::play(session, &*chooser).map_err(choice)?;
        Ok(TraceScore {
            name,
            score: Score::of(&downloads, metric, self.video.kbps()),
            bound: None,
        })
    }
}

fn mean(traces: &[TraceScore]) -> Score {
    let of = |value: fn(&Score) -> f64| {
        let sum: f64 = traces.iter().map(|trace| value(&trace.score)).sum();
        sum / traces.len() as f64
    };
    Score {
        qoe: of(|score| score.qoe),
        mbps: of(|score| score.mbps),
        rebuffer_s: of(|score| score.rebuffer_s),
        change: of(|score| score.change),
    }
}

impl Results {
    /// The means as a table for a terminal, a block for each measure and set.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for rows in self
            .rows
            .chunk_by(|one, next| (&one.set, &one.qoe) == (&next.set, &next.qoe))
        {
            let first = &rows[0];
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{} traces of {}, {} quality of experience per chunk (a second of rebuffering \
                 costs {})",
                first.traces.len(),
                first.set,
                first.qoe,
                first.rebuffer_penalty,
            );
            let head = [
                "scheme",
                "QoE",
                "95 %",
                "p5",
                "p50",
                "p95",
                "Mbit/s",
                "rebuffering s",
                "change",
                "bound",
                "video h/min",
            ];
            let mut cells = vec![head.map(str::to_owned).to_vec()];
            cells.extend(rows.iter().map(cells_of));
            text.push_str(&table::aligned(&cells));
            text.push('\n');
        }
        text
    }

    /// The distribution over the traces, one chart for each measure with a panel for each set, and
    /// the measure's name.
    pub fn charts(&self) -> Vec<(String, Chart)> {
        let of_qoe = self.rows.chunk_by(|one, next| one.qoe == next.qoe);
        let chart = |rows: &[Row]| {
            let scores = || {
                rows.iter()
                    .flat_map(|row| &row.traces)
                    .map(|one| one.score.qoe)
            };
            let all: Vec<f64> = scores().collect();
            let least = statistics::percentile(&all, LEFT_OUT).unwrap_or(f64::NEG_INFINITY);
            let panels = rows.chunk_by(|one, next| one.set == next.set);
            let chart = Chart {
                title: format!("{}: {} quality of experience", self.video, rows[0].qoe),
                x: "quality of experience, mean of a trace's chunks".to_owned(),
                y: "share of traces below".to_owned(),
                floor: None,
                panels: panels.map(|rows| panel(rows, least)).collect(),
            };
            (rows[0].qoe.clone(), chart)
        };
        of_qoe.map(chart).collect()
    }
}

fn cells_of(row: &Row) -> Vec<String> {
    let show = |value: f64| format!("{value:.3}");
    let interval = row.interval.map_or_else(
        || "-".to_owned(),
        |(low, high)| format!("{low:.3} to {high:.3}"),
    );
    let mut cells = vec![row.scheme.clone(), show(row.mean.qoe), interval];
    cells.extend(row.percentiles.iter().copied().map(show));
    cells.extend([
        show(row.mean.mbps),
        format!("{:.4}", row.mean.rebuffer_s),
        show(row.mean.change),
        row.bound.map_or_else(|| "-".to_owned(), show),
        format!("{:.0}", row.hours_per_minute),
    ]);
    cells
}

fn panel(rows: &[Row], least: f64) -> Panel {
    let curve = |row: &Row| {
        let mut scores: Vec<f64> = row.traces.iter().map(|one| one.score.qoe).collect();
        scores.sort_by(f64::total_cmp);
        let count = scores.len() as f64;
        let point = |(place, &x): (usize, &f64)| {
            let share = (place + 1) as f64 / count;
            Spread {
                x,
                mean: share,
                least: share,
                greatest: share,
            }
        };
        let points = scores.iter().enumerate().map(point);
        Curve {
            name: row.scheme.clone(),
            points: points.filter(|point| point.x >= least).collect(),
        }
    };
    Panel {
        title: rows[0].set.clone(),
        curves: rows.iter().map(curve).collect(),
    }
}

/// The measures of these names, with the same penalty instead of their own if one is given.
pub fn aims(qoes: &[Qoe], rebuffer_penalty: Option<f64>) -> Vec<Aim> {
    let aim = |&qoe: &Qoe| Aim {
        qoe,
        rebuffer_penalty,
    };
    qoes.iter().map(aim).collect()
}

#[cfg(test)]
mod tests {
    use cc_abr::generate::{Family, trace};

    use super::*;

    fn evaluation(schemes: &[&str], qoes: &[Qoe]) -> Evaluation {
        let traces = (0..6).map(|number| Arc::new(trace(Family::Cellular, 1, number, 300)));
        Evaluation {
            video: Arc::new(Video::envivio()),
            sets: vec![TraceSet {
                name: "generated".to_owned(),
                traces: traces.collect(),
            }],
            schemes: schemes
                .iter()
                .map(|name| name.parse().expect("a name"))
                .collect(),
            aims: aims(qoes, None),
            rules: Rules::PENSIEVE,
            command: "a test".to_owned(),
        }
    }

    #[test]
    fn nothing_exceeds_the_bound_and_means_are_those_of_the_traces() {
        let evaluation = evaluation(&["rate-based", "bola", "optimum"], &[Qoe::Linear, Qoe::Hd]);
        let sessions = std::sync::atomic::AtomicUsize::new(0);
        let count = || {
            sessions.fetch_add(1, Ordering::Relaxed);
        };
        let results = evaluation
            .run(&AtomicBool::new(false), &count)
            .expect("results");
        assert_eq!(sessions.into_inner(), evaluation.sessions());
        assert_eq!(results.rows.len(), 6);
        for rows in results.rows.chunks(3) {
            for row in rows {
                let sum: f64 = row.traces.iter().map(|one| one.score.qoe).sum();
                assert!((sum / 6.0 - row.mean.qoe).abs() < 1e-9);
                for (one, best) in row.traces.iter().zip(&rows[2].traces) {
                    let bound = best.bound.expect("the optimum has a bound");
                    assert!(one.score.qoe <= bound + 1e-9, "{one:?} {best:?}");
                }
            }
        }
        let table = results.table();
        assert!(table.contains("6 traces of generated, linear") && table.contains("optimum"));
        let charts = results.charts();
        let names: Vec<&str> = charts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["linear", "hd"]);
        assert!(
            charts
                .iter()
                .all(|(_, chart)| chart.svg().contains("rate-based"))
        );
    }

    #[test]
    fn a_stopped_evaluation_and_an_unknown_bitrate_have_no_result() {
        let stopped = evaluation(&["bola"], &[Qoe::Linear]).run(&AtomicBool::new(true), &|| ());
        assert!(matches!(stopped, Err(EvaluateError::Stopped)));
        let mut other = evaluation(&["bola"], &[Qoe::Hd]);
        let video = Video::generate(1, vec![300.0, 500.0], 4.0, 5).expect("valid");
        other.video = Arc::new(video);
        let error = other
            .run(&AtomicBool::new(false), &|| ())
            .expect_err("500 kbit/s");
        assert!(error.to_string().contains("500 kbit/s"), "{error}");
    }
}
