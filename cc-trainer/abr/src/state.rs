//! What a learned policy observes: Pensieve's state of six rows and eight columns.

use serde::{Deserialize, Serialize};

use crate::{View, chooser};

/// Number of rows of a state.
pub const ROWS: usize = 6;
/// Number of columns: chunks of the past, and the most qualities that a state has room for.
pub const COLUMNS: usize = 8;

/// Row of the throughputs.
const THROUGHPUTS: usize = 2;
/// Row of the sizes of the next chunk, the only one that is not about the past.
pub const SIZES: usize = 4;

/// Chunks that are left are given as a fraction of this number, at most 1.
const CHUNKS_LEFT_CAP: f64 = 48.0;
/// Times are given in units of this many seconds.
const TIME_UNIT_S: f64 = 10.0;

/// The unit of throughputs in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Throughput {
    /// MB/s, as in the paper. Networks that are much faster than those of the training give values
    /// that the policy has never seen.
    #[default]
    Linear,
    /// ln(1 + 10 x) / ln(11) for x MB/s, which is 1 where the linear one is and grows slowly above.
    Log,
}

impl Throughput {
    /// A throughput in MB/s in this unit.
    fn of(self, mb_per_s: f32) -> f32 {
        match self {
            Self::Linear => mb_per_s,
            Self::Log => (10.0 * mb_per_s).ln_1p() / 11_f32.ln(),
        }
    }
}

/// The state before a decision, row by row (section 4.2 of the paper, `sim/multi_agent.py`).
///
/// | row | content | unit |
/// |---|---|---|
/// | 0 | last bitrates, newest in the last column | the video's highest bitrate |
/// | 1 | buffer after each of these chunks | 10 s |
/// | 2 | throughput of each of these chunks | MB/s |
/// | 3 | delay of each of these chunks | 10 s |
/// | 4 | sizes of the next chunk, by quality from the first column on | MB |
/// | 5 | chunks left after each of these chunks | 48 |
///
/// What does not exist is 0: chunks before the first one, and qualities that are masked. Pensieve's
/// network reads all of rows 2 and 3, the six sizes of row 4, and only the last column of rows 0, 1
/// and 5. (In its code row 4 has old sizes in the two columns that nobody reads.)
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct State {
    /// The values, by row and by column, `[row][column]`.
    pub rows: [[f32; COLUMNS]; ROWS],
}

impl State {
    /// Builds the state before a decision. `qualities` maps actions to qualities of the video, as
    /// [`crate::ladder::Actions::qualities`] does; the sizes stand in the columns of the actions.
    ///
    /// # Panics
    ///
    /// Panics when there are more than [`COLUMNS`] actions, or one has a quality that the video
    /// does not have.
    pub fn of(view: &View<'_>, qualities: &[Option<usize>]) -> Self {
        assert!(qualities.len() <= COLUMNS, "{} actions", qualities.len());
        let mut rows = [[0.0; COLUMNS]; ROWS];
        let highest = view.kbps.last().copied().unwrap_or(1.0);
        for (back, download) in view.history.iter().rev().take(COLUMNS).enumerate() {
            let column = COLUMNS - 1 - back;
            // After `back` chunks more this many were left.
            let left = (view.left + back) as f64;
            rows[0][column] = (view.kbps[download.quality] / highest) as f32;
            rows[1][column] = (download.buffer_ms / 1e3 / TIME_UNIT_S) as f32;
            rows[THROUGHPUTS][column] = chooser::throughput(download) as f32;
            rows[3][column] = (download.delay_ms / 1e3 / TIME_UNIT_S) as f32;
            rows[5][column] = (left.min(CHUNKS_LEFT_CAP) / CHUNKS_LEFT_CAP) as f32;
        }
        let next = view.upcoming.first();
        for (column, quality) in qualities.iter().enumerate() {
            if let (Some(sizes), Some(quality)) = (next, quality) {
                rows[SIZES][column] = (f64::from(sizes[*quality]) / 1e6) as f32;
            }
        }
        Self { rows }
    }

    /// The same state with the last `past` chunks only: 0 in the other columns of all rows but that
    /// of the sizes. A `past` of [`COLUMNS`] or more leaves it as it is.
    #[must_use]
    pub fn recent(mut self, past: usize) -> Self {
        let older = COLUMNS.saturating_sub(past);
        for (row, values) in self.rows.iter_mut().enumerate() {
            if row != SIZES {
                values[..older].fill(0.0);
            }
        }
        self
    }

    /// The same state, whose throughputs are in MB/s, with another unit of them.
    #[must_use]
    pub fn with_throughput(mut self, unit: Throughput) -> Self {
        for value in &mut self.rows[THROUGHPUTS] {
            *value = unit.of(*value);
        }
        self
    }

    /// The values in one row, row after row, as networks take them.
    pub fn flat(&self) -> [f32; ROWS * COLUMNS] {
        let mut flat = [0.0; ROWS * COLUMNS];
        flat.copy_from_slice(self.rows.as_flattened());
        flat
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{session::Download, video::Video};

    #[test]
    fn the_newest_chunk_is_in_the_last_column() {
        let video = Video::envivio();
        let download = |chunk: usize, quality: usize, delay_ms: f64| Download {
            chunk,
            quality,
            bytes: video.sizes()[chunk][quality],
            delay_ms,
            buffer_ms: 4_000.0 + chunk as f64 * 1_000.0,
            ..Download::default()
        };
        let history: Vec<Download> = (0..10)
            .map(|chunk| download(chunk, chunk % 6, 100.0 * (chunk + 1) as f64))
            .collect();
        let view = View {
            kbps: video.kbps(),
            chunk_s: 4.0,
            upcoming: &video.sizes()[10..],
            left: 38,
            chunks: 48,
            buffer_s: 13.0,
            history: &history,
            past: &[],
        };
        let all: Vec<_> = (0..6).map(Some).collect();
        let state = State::of(&view, &all);
        let last = |row: usize| f64::from(state.rows[row][7]);
        let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-6, "{one} {other}");
        near(last(0), 1850.0 / 4300.0);
        near(last(1), 1.3);
        near(last(2), 0.913_888);
        near(last(3), 0.1);
        near(last(5), 38.0 / 48.0);
        near(f64::from(state.rows[5][0]), 45.0 / 48.0);
        near(f64::from(state.rows[3][0]), 0.03);
        for (column, size) in video.sizes()[10].iter().enumerate() {
            near(f64::from(state.rows[4][column]), f64::from(*size) / 1e6);
        }
        assert_eq!(state.rows[4][6..], [0.0, 0.0]);
        assert_eq!(state.flat()[8 + 7], state.rows[1][7]);
        assert_eq!(state.with_throughput(Throughput::Linear), state);
        let log = state.with_throughput(Throughput::Log);
        for (row, (found, linear)) in log.rows.iter().zip(&state.rows).enumerate() {
            for (&found, &linear) in found.iter().zip(linear) {
                let (found, linear) = (f64::from(found), f64::from(linear));
                match row {
                    THROUGHPUTS => near(found, (1.0 + 10.0 * linear).ln() / 11_f64.ln()),
                    _ => assert_eq!(found, linear),
                }
            }
        }
        for past in 1..=9 {
            let recent = state.recent(past);
            for row in 0..ROWS {
                let kept = if row == SIZES {
                    COLUMNS
                } else {
                    past.min(COLUMNS)
                };
                let older = COLUMNS - kept;
                assert_eq!(recent.rows[row][older..], state.rows[row][older..]);
                assert!(recent.rows[row][..older].iter().all(|value| *value == 0.0));
            }
        }

        let young = View {
            history: &history[..2],
            left: 46,
            ..view
        };
        let state = State::of(&young, &[None, Some(0), None]);
        assert_eq!(state.rows[2][..6], [0.0; 6]);
        assert!(state.rows[2][6] > 0.0);
        assert_eq!(state.rows[4][0], 0.0);
        near(
            f64::from(state.rows[4][1]),
            f64::from(video.sizes()[10][0]) / 1e6,
        );
    }
}
