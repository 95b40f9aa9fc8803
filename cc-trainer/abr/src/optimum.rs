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
//! get for every trace: 0.001 to 0.01 in the linear measure (docs/abr.md).

mod capacity;
mod frontier;

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
    let (mut frontiers, mut labels) = (vec![search.first()], 1);
    while frontiers.len() < video.chunks() {
        let last = &frontiers[frontiers.len() - 1];
        let next = search.extend(frontiers.len(), last, resolution);
        labels += next.len();
        frontiers.push(next);
    }
    let (bound, schedule) = search.best(&frontiers);
    let session = Session::new(video.clone(), trace.clone(), rules);
    let downloads = play(session, &Schedule(schedule.clone()))?;
    let score = Score::of(&downloads, metric, video.kbps());
    Ok(Optimum {
        schedule,
        // The bound is computed in another order of operations.
        bound: bound.max(score.qoe),
        score,
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

    fn first(&self) -> Frontier {
        Frontier::of_one(Label {
            trace_s: self.start_s - self.rules.rtt_ms / 1e3,
            quality: 0.0,
            rebuffer_s: 0.0,
            last: self.first as u32,
            parent: 0,
        })
    }

    /// The labels after chunk `chunk`, from those after the chunk before it.
    fn extend(&self, chunk: usize, labels: &Frontier, resolution: Resolution) -> Frontier {
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
        let round_trips_s = (chunk + 1) as f64 * self.rules.rtt_ms / 1e3;
        let played_s = chunk as f64 * self.video.chunk_s();
        let earliest_s = self.start_s + (chunk + 1) as f64 * self.video.chunk_s()
            - self.rules.buffer_cap_s
            - round_trips_s;
        let mut next = Vec::with_capacity(labels.len() * levels.len());
        for (parent, label) in labels.labels().iter().enumerate() {
            for (quality, &bytes) in self.video.sizes()[chunk].iter().enumerate() {
                let arrival_s = self.capacity.arrival(label.trace_s, bytes);
                let late_s = arrival_s + round_trips_s - played_s - self.start_s;
                let change = (levels[quality] - levels[label.last as usize]).abs();
                next.push(Label {
                    trace_s: arrival_s.max(earliest_s),
                    quality: label.quality + (levels[quality] - change) / unit,
                    rebuffer_s: label.rebuffer_s.max(late_s),
                    last: quality as u32,
                    parent: parent as u32,
                });
            }
        }
        Frontier::new(next, levels.len(), &cells)
    }

    /// The bound of the mean score per chunk, and the schedule of its label.
    fn best(&self, frontiers: &[Frontier]) -> (f64, Vec<usize>) {
        let net = |label: &Label| label.net(self.metric.rebuffer_penalty());
        let ends = frontiers[frontiers.len() - 1].labels();
        let mut at = 0;
        for (place, label) in ends.iter().enumerate() {
            if net(label) > net(&ends[at]) {
                at = place;
            }
        }
        let bound = net(&ends[at]) / (frontiers.len() - 1).max(1) as f64;
        let mut schedule = Vec::with_capacity(frontiers.len());
        for frontier in frontiers.iter().rev() {
            let label = &frontier.labels()[at];
            schedule.push(label.last as usize);
            at = label.parent as usize;
        }
        schedule.reverse();
        (bound, schedule)
    }
}
