//! What selects bitrates, and what it may know.

use crate::session::Download;

/// Selects the quality of each chunk.
///
/// A chooser keeps no state: all that it may use is in the [`View`]. The same chooser therefore
/// serves a simulated session and any number of players over HTTP.
pub trait Chooser: Send + Sync {
    /// Returns the quality of the next chunk, below the number of bitrates. The first chunk of a
    /// session is not asked for, since nothing is known before it.
    fn choose(&self, view: &View<'_>) -> usize;
}

/// What is known before a chunk is asked for.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Bitrates of the qualities, kbit/s, ascending.
    pub kbps: &'a [f64],
    /// Length of a chunk, s.
    pub chunk_s: f64,
    /// Bytes of the chunks to come in each quality, the next one first. There may be more than are
    /// left to play, or fewer: a live player knows the next ones only.
    pub upcoming: &'a [Vec<u32>],
    /// Number of chunks that are left to play: at least 1.
    pub left: usize,
    /// Number of chunks of the video.
    pub chunks: usize,
    /// Video that is downloaded and not played yet, s.
    pub buffer_s: f64,
    /// What was downloaded before, in order: at least one chunk. A player may remember the last
    /// ones only.
    pub history: &'a [Download],
    /// Bytes of the chunks of the history in each quality, for policies with memory; empty where
    /// they are not known.
    pub past: &'a [Vec<u32>],
}

impl View<'_> {
    /// Quality of the chunk before.
    pub fn last_quality(&self) -> usize {
        self.history.last().map_or(0, |last| last.quality)
    }

    /// The views of the decisions from that after the first chunk of the history to this one, in
    /// their order: what a policy with memory has seen. Chunks whose sizes are not known count as
    /// of the downloaded size in its quality, and of sizes in proportion to the bitrates in the
    /// others.
    pub fn replay(&self, mut seen: impl FnMut(&View<'_>)) {
        let last = self.history.len();
        let estimate = |download: &Download| -> Vec<u32> {
            let bytes = f64::from(download.bytes) / self.kbps[download.quality];
            self.kbps.iter().map(|kbps| (bytes * kbps) as u32).collect()
        };
        for count in 1..last {
            // The chunk that this decision was about is now part of the history.
            let next = match self.past.get(count) {
                Some(sizes) => sizes.clone(),
                None => estimate(&self.history[count]),
            };
            seen(&View {
                upcoming: &[next],
                left: self.left + last - count,
                buffer_s: self.history[count - 1].buffer_ms / 1e3,
                history: &self.history[..count],
                past: &self.past[..count.min(self.past.len())],
                ..*self
            });
        }
        seen(self);
    }

    /// Harmonic mean of the throughputs of the last `count` downloads, MB/s, their round trips
    /// included; 0 without a download.
    pub fn harmonic_throughput(&self, count: usize) -> f64 {
        harmonic(&self.history[self.history.len().saturating_sub(count)..])
    }
}

/// Throughput of a download, MB/s, its round trip included.
pub(crate) fn throughput(download: &Download) -> f64 {
    f64::from(download.bytes) / download.delay_ms / 1e3
}

/// Harmonic mean of the throughputs of downloads, MB/s; 0 without any.
pub(crate) fn harmonic(downloads: &[Download]) -> f64 {
    if downloads.is_empty() {
        return 0.0;
    }
    let sum: f64 = downloads.iter().map(|one| 1.0 / throughput(one)).sum();
    1.0 / (sum / downloads.len() as f64)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{
        play::play,
        session::{Rules, Session},
        trace::Trace,
        video::Video,
    };

    /// What of a view a policy may read before a decision.
    type Seen = (Vec<u32>, usize, f64, Vec<Download>);

    fn seen(view: &View<'_>) -> Seen {
        let next = view.upcoming[0].clone();
        (next, view.left, view.buffer_s, view.history.to_vec())
    }

    /// Keeps all views of a session, and checks each replay against them.
    #[derive(Default)]
    struct Witness(Mutex<Vec<Seen>>);

    impl Chooser for Witness {
        fn choose(&self, view: &View<'_>) -> usize {
            let mut before = self.0.lock().expect("nobody panicked");
            before.push(seen(view));
            let mut replayed = Vec::new();
            view.replay(|past| replayed.push(seen(past)));
            assert_eq!(replayed, *before);
            before.len() % view.kbps.len()
        }
    }

    #[test]
    fn a_replay_has_the_views_of_the_session() {
        let trace = Trace::new("t", vec![0.0, 5.0, 9.0], vec![0.0, 2.0, 0.7]).expect("valid");
        let video = Arc::new(Video::envivio());
        let session = Session::new(video, Arc::new(trace), Rules::PENSIEVE);
        let witness = Witness::default();
        play(session, &witness).expect("qualities of the video");
        assert_eq!(witness.0.into_inner().expect("nobody panicked").len(), 47);
    }

    #[test]
    fn sizes_that_are_not_known_are_estimated_from_the_one_that_is() {
        let download = |quality, bytes| Download {
            quality,
            bytes,
            delay_ms: 100.0,
            ..Download::default()
        };
        let history = [download(0, 1_000), download(1, 6_000)];
        let view = View {
            kbps: &[300.0, 600.0],
            chunk_s: 4.0,
            upcoming: &[vec![7, 8]],
            left: 3,
            chunks: 5,
            buffer_s: 4.0,
            history: &history,
            past: &[],
        };
        let mut next = Vec::new();
        view.replay(|past| next.push((past.upcoming.to_vec(), past.left)));
        assert_eq!(next, [(vec![vec![3_000, 6_000]], 4), (vec![vec![7, 8]], 3)]);
    }
}
