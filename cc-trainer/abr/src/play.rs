//! A whole session with a chooser, and its score.

use crate::{
    Chooser,
    qoe::Metric,
    session::{Download, Session},
};

/// A chooser selected a quality that the video does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chunk {chunk}: quality {quality} was chosen, but the video has {levels} (from 0)")]
pub struct NoSuchQuality {
    /// Chunk that it was selected for, from 0.
    pub chunk: usize,
    /// The quality that was selected, from 0.
    pub quality: usize,
    /// Number of the video's qualities.
    pub levels: usize,
}

/// Plays a session to its end without noise and returns its downloads. The first chunk has the
/// quality that the session's rules give it.
///
/// # Errors
///
/// Returns an error when the chooser selects a quality that the video does not have.
pub fn play(
    mut session: Session,
    chooser: &(impl Chooser + ?Sized),
) -> Result<Vec<Download>, NoSuchQuality> {
    let video = session.video().clone();
    let mut history = Vec::with_capacity(video.chunks());
    let mut quality = session.rules().first_quality(video.levels());
    while !session.is_over() {
        let chunk = session.next_chunk();
        if !history.is_empty() {
            quality = chooser.choose(&session.view(&history));
        }
        let levels = video.levels();
        if quality >= levels {
            return Err(NoSuchQuality {
                chunk,
                quality,
                levels,
            });
        }
        history.push(session.download(quality, 1.0));
    }
    Ok(history)
}

/// What a session was worth: means per chunk, the first chunk left out since nobody chose it.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Score {
    /// Quality of experience of a chunk.
    pub qoe: f64,
    /// Bitrate of the chunks, Mbit/s: of the ladder, not of the sizes.
    pub mbps: f64,
    /// Rebuffering of a chunk, s.
    pub rebuffer_s: f64,
    /// Change of quality from chunk to chunk, in the measure's own unit.
    pub change: f64,
}

impl Score {
    /// Scores the downloads of a session with bitrates `kbps`.
    ///
    /// A session of one chunk has nothing to score and gets zeros.
    pub fn of(downloads: &[Download], metric: &Metric, kbps: &[f64]) -> Self {
        let mut score = Self::default();
        let chunks = downloads.len().saturating_sub(1).max(1) as f64;
        for pair in downloads.windows(2) {
            let (last, quality) = (pair[0].quality, pair[1].quality);
            let rebuffer_s = pair[1].rebuffer_ms / 1e3;
            score.qoe += metric.score(quality, last, rebuffer_s) / chunks;
            score.mbps += kbps[quality] / 1e3 / chunks;
            score.rebuffer_s += rebuffer_s / chunks;
            score.change += metric.change(quality, last) / chunks;
        }
        score
    }
}
