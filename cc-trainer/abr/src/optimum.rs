//! What could have been achieved with the whole trace known beforehand.
//!
//! [`solve`] finds, by dynamic programming, a schedule of qualities and a bound that no schedule
//! exceeds. The true optimum lies between the schedule's score in a [`Session`] and the bound.
//!
//! # How
//!
//! Before chunk `n` (from 0) a player is described by the time `t` at which it asks for it, the
//! rebuffering `r` so far, the quality of the chunk before, and the qualities and changes scored so
//! far, `s`. The rebuffering of a schedule is its largest lateness, the maximum over all chunks `n`
//! of the arrival time less `n` chunk lengths: sleeps change nothing about that. The first chunk's
//! quality is given, and its own rebuffering is not scored.
//!
//! One label is better than another with the same last quality if it is not later, and its `s` is
//! larger by at least the penalty of what it rebuffered more: whatever follows, rebuffering that
//! has already happened hides as much of what is to come. Only labels without a better one are
//! extended.
//!
//! A first search that keeps only the most promising labels finds a good schedule. The second one
//! keeps all that might still be worth more than that schedule: an upper bound of the chunks to
//! come says which, from the bytes that can arrive in time.
//!
//! # What the bound allows
//!
//! - The player sleeps until exactly the cap instead of in whole steps, and a player that has
//!   rebuffered for `r` may hold `r` more than the cap. Both let it ask earlier.
//! - Labels are merged when they agree in the last quality, in `s` to [`Resolution::quality`]
//!   (exactly, for bitrates in whole kbit/s under the linear measure) and in `s` less penalties to
//!   [`Resolution::net`]: the merged label has the best of each of their values.
//!
//! Each of these can only raise the bound; a merge does so by less than one cell in `s` less
//! penalties. What it amounts to in all is the difference between bound and schedule, which callers
//! get for every trace: below 0.001 in the linear measure on nearly all of them (docs/abr.md).

mod capacity;
mod frontier;
mod potential;

use std::sync::Arc;

use crate::{
    baseline::Schedule,
    play::{NoSuchQuality, Score, play},
    qoe::Metric,
    session::{Rules, Session},
    trace::Trace,
    video::Video,
};
use capacity::Capacity;
use frontier::{Frontier, Label};
use potential::{Potential, Problem};

/// Number of labels that the first search keeps after each chunk.
const WIDTH: usize = 200;
/// Difference of two sums of the same terms in another order, which must not drop a label.
const ROUNDING: f64 = 1e-6;

/// Sizes of the cells in which labels are merged, in units of the measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resolution {
    /// Cell of qualities less changes, where these are not whole numbers.
    pub quality: f64,
    /// Cell of qualities less changes less penalties.
    pub net: f64,
}

impl Default for Resolution {
    fn default() -> Self {
        Self {
            quality: 0.02,
            net: 0.1,
        }
    }
}

/// The best that was found, and what nothing exceeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimum {
    /// Quality of each chunk, the first one included.
    pub schedule: Vec<usize>,
    /// Score of the schedule in a session.
    pub score: Score,
    /// Upper bound of the mean quality of experience per chunk, the first chunk left out.
    pub bound: f64,
    /// Number of labels that were extended, a measure of the work.
    pub labels: usize,
}

/// Finds the best schedule for a video over a trace from its beginning.
///
/// # Errors
///
/// Returns no error with a metric of the video's own bitrates: the schedule has qualities of the
/// video only.
pub fn solve(
    video: &Arc<Video>,
    trace: &Arc<Trace>,
    rules: Rules,
    metric: &Metric,
    resolution: Resolution,
) -> Result<Optimum, NoSuchQuality> {
    let search = Search::new(video, trace, rules, metric);
    let score = |schedule: Vec<usize>| {
        let session = Session::new(video.clone(), trace.clone(), rules);
        let downloads = play(session, &Schedule(schedule))?;
        Ok(Score::of(&downloads, metric, video.kbps()))
    };
    let scored = (video.chunks() - 1).max(1) as f64;
    let mut schedule = vec![0; video.chunks()];
    schedule[0] = search.first;
    let mut best = score(schedule.clone())?;
    let (mut bound, mut labels) = (best.qoe, 0);
    for width in [WIDTH, usize::MAX] {
        let frontiers = search.run(best.qoe * scored, resolution, width);
        labels += frontiers.iter().map(Frontier::len).sum::<usize>();
        // Without an end no schedule is worth more than the one at hand.
        let end = search.best(&frontiers);
        bound = end.as_ref().map_or(best.qoe, |end| end.0 / scored);
        if let Some((_, other)) = end {
            let found = score(other.clone())?;
            if found.qoe > best.qoe {
                (schedule, best) = (other, found);
            }
        }
    }
    Ok(Optimum {
        schedule,
        // The bound is computed in another order of operations.
        bound: bound.max(best.qoe),
        score: best,
        labels,
    })
}

/// The problem, with what all labels need.
struct Search<'a> {
    video: &'a Video,
    rules: Rules,
    metric: &'a Metric,
    capacity: Capacity,
    /// Quality of the first chunk.
    first: usize,
    /// Time at which the first chunk has arrived, its round trip included, s.
    start_s: f64,
}

impl<'a> Search<'a> {
    fn new(video: &'a Video, trace: &Trace, rules: Rules, metric: &'a Metric) -> Self {
        let capacity = Capacity::new(trace, rules.payload_share);
        let first = rules.first_quality(video.levels());
        let start_s = capacity.arrival(0.0, video.sizes()[0][first]) + rules.rtt_ms / 1e3;
        Self {
            video,
            rules,
            metric,
            capacity,
            first,
            start_s,
        }
    }

    /// The labels after each chunk: of those that may lead to the score `asked`, summed over the
    /// chunks, the `width` most promising ones.
    fn run(&self, asked: f64, resolution: Resolution, width: usize) -> Vec<Frontier> {
        let chunks = self.video.chunks();
        let unit = self.metric.unit();
        let qualities: Vec<f64> = self.metric.levels().iter().map(|one| one / unit).collect();
        let problem = Problem {
            sizes: &self.video.sizes()[..chunks],
            qualities: &qualities,
            deadline_s: self.due_s(chunks - 1),
            penalty: self.metric.rebuffer_penalty(),
        };
        let asked = asked - ROUNDING;
        let potential = Potential::new(&problem, &self.capacity, asked);
        let mut frontiers = vec![self.first()];
        while frontiers.len() < chunks {
            let chunk = frontiers.len();
            let promise = |label: &Label| {
                let to_come =
                    potential.of(chunk + 1, label.trace_s, label.rebuffer_s, &self.capacity);
                label.net(self.metric.rebuffer_penalty()) + to_come
            };
            let mut next = self.extend(chunk, &frontiers[chunk - 1], resolution, |label| {
                promise(label) >= asked
            });
            next.keep_best(width, promise);
            frontiers.push(next);
        }
        frontiers
    }

    /// The place in the trace by which a chunk has arrived if nothing rebuffers, s.
    fn due_s(&self, chunk: usize) -> f64 {
        let round_trips_s = (chunk + 1) as f64 * self.rules.rtt_ms / 1e3;
        self.start_s + chunk as f64 * self.video.chunk_s() - round_trips_s
    }

    fn first(&self) -> Frontier {
        Frontier::of_one(Label {
            trace_s: self.start_s - self.rules.rtt_ms / 1e3,
            quality: 0.0,
            rebuffer_s: 0.0,
            last: self.first as u32,
            parent: 0,
        })
    }

    /// The labels after chunk `chunk`, from those after the chunk before it, as far as they are
    /// worth keeping.
    fn extend(
        &self,
        chunk: usize,
        labels: &Frontier,
        resolution: Resolution,
        is_worth_keeping: impl Fn(&Label) -> bool,
    ) -> Frontier {
        let (levels, unit) = (self.metric.levels(), self.metric.unit());
        let whole = levels.iter().all(|level| level.fract() == 0.0);
        let cells = frontier::Cells {
            // Whole levels are kept apart exactly: their sums are whole numbers.
            quality: if whole {
                1.0 / unit
            } else {
                resolution.quality
            },
            net: resolution.net,
            penalty: self.metric.rebuffer_penalty(),
        };
        let due_s = self.due_s(chunk);
        let earliest_s = due_s + self.video.chunk_s() - self.rules.buffer_cap_s;
        let mut next = Vec::with_capacity(labels.len() * levels.len());
        for (parent, label) in labels.labels().iter().enumerate() {
            for (quality, &bytes) in self.video.sizes()[chunk].iter().enumerate() {
                let arrival_s = self.capacity.arrival(label.trace_s, bytes);
                let change = (levels[quality] - levels[label.last as usize]).abs();
                let child = Label {
                    trace_s: arrival_s.max(earliest_s),
                    quality: label.quality + (levels[quality] - change) / unit,
                    rebuffer_s: label.rebuffer_s.max(arrival_s - due_s),
                    last: quality as u32,
                    parent: parent as u32,
                };
                if is_worth_keeping(&child) {
                    next.push(child);
                }
            }
        }
        Frontier::new(next, levels.len(), &cells)
    }

    /// The largest score of the last labels, summed over the chunks, and the schedule of its label;
    /// `None` without labels.
    fn best(&self, frontiers: &[Frontier]) -> Option<(f64, Vec<usize>)> {
        let net = |label: &Label| label.net(self.metric.rebuffer_penalty());
        let ends = frontiers.last()?.labels();
        let nets = ends.iter().map(net).enumerate();
        let (mut at, best) = nets.max_by(|one, other| one.1.total_cmp(&other.1))?;
        let mut schedule = Vec::with_capacity(frontiers.len());
        for frontier in frontiers.iter().rev() {
            let label = &frontier.labels()[at];
            schedule.push(label.last as usize);
            at = label.parent as usize;
        }
        schedule.reverse();
        Some((best, schedule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        generate::{Family, trace},
        qoe::Qoe,
    };

    #[test]
    fn leaving_out_what_cannot_be_better_changes_no_bound() {
        let mut labels = (0, 0);
        for seed in 0..12 {
            let video = Video::generate(seed, vec![300.0, 1200.0, 2850.0, 4300.0], 4.0, 16);
            let video = Arc::new(video.expect("valid"));
            let trace = Arc::new(trace(Family::Cellular, seed, 0, 100));
            let qoe = Qoe::ALL[seed as usize % 2];
            let metric = Metric::new(qoe, video.kbps()).expect("its bitrates");
            let (rules, resolution) = (Rules::PENSIEVE, Resolution::default());
            let found = solve(&video, &trace, rules, &metric, resolution);
            let found = found.expect("qualities of the video");
            let search = Search::new(&video, &trace, rules, &metric);
            let all = search.run(f64::NEG_INFINITY, resolution, usize::MAX);
            let (net, schedule) = search.best(&all).expect("labels");
            let session = Session::new(video.clone(), trace.clone(), rules);
            let downloads = play(session, &Schedule(schedule)).expect("its qualities");
            let other = Score::of(&downloads, &metric, video.kbps()).qoe;
            assert!(found.score.qoe >= other - 1e-9, "{found:?} {other}");
            // Fewer labels merge less, so that the bound may be lower, but never the scores.
            let bound = (net / 15.0).max(other);
            assert!(found.bound <= bound + 1e-9, "{found:?} {bound}");
            labels.0 += found.labels;
            labels.1 += all.iter().map(Frontier::len).sum::<usize>();
        }
        assert!(2 * labels.0 < labels.1, "{labels:?}");
    }
}
