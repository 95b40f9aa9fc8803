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
}

impl View<'_> {
    /// Quality of the chunk before.
    pub fn last_quality(&self) -> usize {
        self.history.last().map_or(0, |last| last.quality)
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
