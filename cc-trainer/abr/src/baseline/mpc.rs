//! Model predictive control: the best of all plans for the next chunks, if throughput stays as
//! predicted.

use crate::{
    Chooser, View,
    chooser::{harmonic, throughput},
    qoe::Metric,
};

/// MPC and RobustMPC of Yin et al. (SIGCOMM 2015), in the terms of Pensieve's `test/mpc.py`.
///
/// The throughput of the next chunks is predicted by the harmonic mean of the last five. RobustMPC
/// divides it by one plus the largest relative error of the last five predictions; the first chunk
/// of a session has no prediction and counts as an error of 0. Every combination of qualities for
/// the next five chunks is tried. Equal ones are common in the linear measure, where going up for
/// two chunks and down again is worth as much as staying: [`Ties`] says which of them wins. The
/// plan's own model knows neither round trips nor the cap of the buffer.
///
/// A chooser keeps no state, so that errors end with their session. In Pensieve's code they go on
/// from one trace to the next one: the first five predictions on a trace are lowered by the errors
/// at the end of the trace before it, and its scores depend on the order of the traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Mpc {
    /// RobustMPC: whether the prediction is lowered by its past errors.
    pub is_robust: bool,
    /// Which chunk's sizes the first step of a plan has: 0 takes the next one. Pensieve's code
    /// takes the one after it (1), so that all sizes are one chunk late, and its scores are lower.
    /// Chunks beyond the known ones count as of the nominal size with 0, and as empty with 1, as
    /// there.
    pub offset: usize,
    /// Which of the best plans wins.
    pub ties: Ties,
    /// Number of chunks of a plan.
    pub horizon: usize,
    /// Number of past chunks that predictions and errors are taken over.
    pub memory: usize,
    /// The measure of quality that a plan maximises.
    pub metric: Metric,
}

/// Which of several equal plans wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    /// The first one in lexicographic order of qualities, the lowest first: the lower quality now.
    First,
    /// The last one, as in Pensieve's code: the higher quality now.
    Last,
}

impl Mpc {
    /// RobustMPC with the published settings: five chunks forward, five back.
    pub fn published(metric: Metric) -> Self {
        Self {
            is_robust: true,
            offset: 0,
            ties: Ties::Last,
            horizon: 5,
            memory: 5,
            metric,
        }
    }

    /// The throughput that plans count on, MB/s.
    fn prediction(&self, view: &View<'_>) -> f64 {
        let history = view.history;
        let mean = |end: usize| harmonic(&history[end.saturating_sub(self.memory)..end]);
        let predicted = mean(history.len());
        if !self.is_robust {
            return predicted;
        }
        let first = history.len().saturating_sub(self.memory);
        let errors = (first..history.len()).map(|chunk| {
            let actual = throughput(&history[chunk]);
            match chunk {
                0 => 0.0,
                _ => (mean(chunk) - actual).abs() / actual,
            }
        });
        predicted / (1.0 + errors.fold(0.0, f64::max))
    }

    /// Seconds that each chunk of a plan takes to arrive in each quality.
    fn arrivals(&self, view: &View<'_>, throughput: f64) -> Vec<Vec<f64>> {
        let arrival = |step: usize| {
            let sizes = view.upcoming.get(step + self.offset);
            let mb = |quality: usize| match sizes {
                Some(sizes) => f64::from(sizes[quality]) / 1e6,
                None if self.offset > 0 => 0.0,
                None => view.kbps[quality] * view.chunk_s / 8e3,
            };
            (0..view.kbps.len())
                .map(|quality| mb(quality) / throughput)
                .collect()
        };
        (0..self.horizon.min(view.left)).map(arrival).collect()
    }
}

impl Chooser for Mpc {
    fn choose(&self, view: &View<'_>) -> usize {
        let arrivals = self.arrivals(view, self.prediction(view));
        let mut search = Search {
            arrivals: &arrivals,
            chunk_s: view.chunk_s,
            metric: &self.metric,
            ties: self.ties,
            first: 0,
            best: (f64::NEG_INFINITY, 0),
        };
        let start = Plan {
            buffer_s: view.buffer_s,
            last: view.last_quality(),
            ..Plan::default()
        };
        search.extend(0, start);
        search.best.1
    }
}

/// The beginning of a plan and what it amounts to so far.
#[derive(Clone, Copy, Default)]
struct Plan {
    buffer_s: f64,
    rebuffer_s: f64,
    quality: f64,
    change: f64,
    last: usize,
}

/// Depth-first search over all plans, in lexicographic order.
struct Search<'a> {
    arrivals: &'a [Vec<f64>],
    chunk_s: f64,
    metric: &'a Metric,
    ties: Ties,
    /// First quality of the plan at hand.
    first: usize,
    /// Reward and first quality of the best plan.
    best: (f64, usize),
}

impl Search<'_> {
    fn extend(&mut self, step: usize, plan: Plan) {
        let metric = self.metric;
        let Some(arrivals) = self.arrivals.get(step) else {
            let reward = plan.quality / metric.unit()
                - metric.rebuffer_penalty() * plan.rebuffer_s
                - plan.change / metric.unit();
            let wins = match self.ties {
                Ties::First => reward > self.best.0,
                Ties::Last => reward >= self.best.0,
            };
            if wins {
                self.best = (reward, self.first);
            }
            return;
        };
        for (quality, &arrival_s) in arrivals.iter().enumerate() {
            if step == 0 {
                self.first = quality;
            }
            let mut next = plan;
            if next.buffer_s < arrival_s {
                next.rebuffer_s += arrival_s - next.buffer_s;
                next.buffer_s = 0.0;
            } else {
                next.buffer_s -= arrival_s;
            }
            next.buffer_s += self.chunk_s;
            next.quality += metric.levels()[quality];
            next.change += (metric.levels()[quality] - metric.levels()[plan.last]).abs();
            next.last = quality;
            self.extend(step + 1, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{qoe::Qoe, session::Download, video::Video};

    fn download(chunk: usize, quality: usize, mb_per_s: f64) -> Download {
        let bytes = Video::envivio().sizes()[chunk][quality];
        Download {
            chunk,
            quality,
            bytes,
            delay_ms: f64::from(bytes) / mb_per_s / 1e3,
            ..Download::default()
        }
    }

    fn metric() -> Metric {
        Metric::new(Qoe::Linear, Video::envivio().kbps()).expect("its own bitrates")
    }

    /// The reward of a plan after a chunk of quality 2, by the definition.
    fn reward(video: &Video, plan: &[usize], from: usize, buffer_s: f64, mb_per_s: f64) -> f64 {
        let lateness = (0..plan.len()).map(|step| {
            let arrived: f64 = plan[..=step]
                .iter()
                .enumerate()
                .map(|(step, &quality)| f64::from(video.sizes()[from + step][quality]) / 1e6)
                .sum();
            arrived / mb_per_s - buffer_s - 4.0 * step as f64
        });
        let rebuffer = lateness.fold(0.0, f64::max);
        let kbps = |quality: usize| video.kbps()[quality] / 1e3;
        let before = std::iter::once(2).chain(plan.iter().copied());
        let change: f64 = plan
            .iter()
            .zip(before)
            .map(|(&quality, before)| (kbps(quality) - kbps(before)).abs())
            .sum();
        plan.iter().map(|&quality| kbps(quality)).sum::<f64>() - 4.3 * rebuffer - change
    }

    #[test]
    fn the_first_step_of_the_best_plan_is_chosen() {
        let video = Video::envivio();
        for offset in [0, 1] {
            for chunk in [1, 44, 46, 47] {
                for (buffer_s, mb_per_s) in [(4.0, 0.1), (12.0, 0.2), (30.0, 0.25)] {
                    let history = [download(chunk - 1, 2, mb_per_s)];
                    let view = View {
                        kbps: video.kbps(),
                        chunk_s: 4.0,
                        upcoming: &video.sizes()[chunk..],
                        left: 48 - chunk,
                        chunks: 48,
                        buffer_s,
                        history: &history,
                        past: &[],
                    };
                    let mpc = Mpc {
                        is_robust: false,
                        offset,
                        ..Mpc::published(metric())
                    };
                    let chosen = mpc.choose(&view);
                    let steps = view.left.min(5);
                    let mut best = [f64::NEG_INFINITY; 6];
                    for number in 0..6_usize.pow(steps as u32) {
                        let digit = |place: u32| number / 6_usize.pow(place) % 6;
                        let plan: Vec<usize> = (0..steps as u32).map(digit).collect();
                        let found = reward(&video, &plan, chunk + offset, buffer_s, mb_per_s);
                        best[plan[0]] = best[plan[0]].max(found);
                    }
                    let highest = best.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    assert!(
                        best[chosen] > highest - 1e-9,
                        "{chunk}: {chosen} of {best:?}"
                    );
                    // At the very end a rise is worth as much as it costs.
                    assert!(steps > 1 || buffer_s < 30.0 || chosen >= 2, "{chosen}");
                }
            }
        }
    }

    #[test]
    fn of_equal_plans_the_first_or_the_last_wins() {
        // Whole Mbit/s, so that sums are exact, and a buffer that nothing empties.
        let kbps = [1000.0, 2000.0, 4000.0];
        let metric = Metric::new(Qoe::Linear, &kbps).expect("its own bitrates");
        let history = [download(0, 1, 10.0)];
        let choose = |ties, left| {
            let mpc = Mpc {
                ties,
                ..Mpc::published(metric.clone())
            };
            mpc.choose(&View {
                kbps: &kbps,
                chunk_s: 4.0,
                upcoming: &[],
                left,
                chunks: 48,
                buffer_s: 50.0,
                history: &history,
                past: &[],
            })
        };
        // The last chunk's rise costs as much as it is worth; a fall only costs.
        assert_eq!(choose(Ties::First, 1), 1);
        assert_eq!(choose(Ties::Last, 1), 2);
        // With one chunk more a rise is worth more than it costs.
        assert_eq!(choose(Ties::First, 2), 2);
        assert_eq!(choose(Ties::Last, 2), 2);
    }

    #[test]
    fn errors_of_the_last_five_predictions_lower_the_next_one() {
        let rates = [0.2, 0.4, 0.3, 0.1, 0.2, 0.3, 0.25];
        let history: Vec<Download> = rates
            .iter()
            .enumerate()
            .map(|(chunk, &rate)| download(chunk, 1, rate))
            .collect();
        let mean =
            |rates: &[f64]| rates.len() as f64 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>();
        let video = Video::envivio();
        let view = |history| View {
            kbps: video.kbps(),
            chunk_s: 4.0,
            upcoming: &[],
            left: 1,
            chunks: 48,
            buffer_s: 4.0,
            history,
            past: &[],
        };
        let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-12, "{one} {other}");
        let robust = Mpc::published(metric());
        // The largest error is that of the fourth chunk: it is the last of the five for the whole
        // history, and of no account with a memory of three.
        let error = (mean(&rates[..3]) - 0.1) / 0.1;
        near(
            robust.prediction(&view(&history)),
            mean(&rates[2..]) / (1.0 + error),
        );
        let plain = Mpc {
            is_robust: false,
            ..robust.clone()
        };
        near(plain.prediction(&view(&history)), mean(&rates[2..]));
        near(robust.prediction(&view(&history[..1])), 0.2);
        near(
            robust.prediction(&view(&history[..2])),
            mean(&rates[..2]) / 1.5,
        );
        let short = Mpc {
            memory: 3,
            ..robust
        };
        let error = f64::max(
            (mean(&rates[1..4]) - 0.2).abs() / 0.2,
            f64::max(
                (mean(&rates[2..5]) - 0.3).abs() / 0.3,
                (mean(&rates[3..6]) - 0.25).abs() / 0.25,
            ),
        );
        near(
            short.prediction(&view(&history)),
            mean(&rates[4..]) / (1.0 + error),
        );
    }
}
