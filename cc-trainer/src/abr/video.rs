//! Videos by a name and some settings, as command lines and configurations give them.

use std::path::Path;

use cc_abr::video::{ENVIVIO_KBPS, Video, VideoError};
use serde::{Deserialize, Serialize};

use super::files::{self, FileError};

/// Name of Pensieve's video.
const ENVIVIO: &str = "envivio";
/// What a generated video's name begins with; its seed follows.
const GENERATED: &str = "generated:";

/// Which video, and which of its bitrates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VideoChoice {
    /// `envivio` (Pensieve's), `generated:SEED`, a file in TOML, or a directory with Pensieve's
    /// files `video_size_N`.
    pub video: String,
    /// Bitrates of a generated video or of a directory's files, kbit/s, ascending.
    pub kbps: Vec<f64>,
    /// Number of chunks of a generated video, or of a directory's files that are played.
    pub chunks: usize,
    /// Length of a chunk of a generated video or of a directory's files, s.
    pub chunk_s: f64,
    /// Bitrates that are left out of the video, kbit/s.
    pub without: Vec<f64>,
}

impl Default for VideoChoice {
    fn default() -> Self {
        Self {
            video: ENVIVIO.to_owned(),
            kbps: ENVIVIO_KBPS.to_vec(),
            chunks: 48,
            chunk_s: 4.0,
            without: Vec::new(),
        }
    }
}

/// Why there is no such video.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// The seed of a generated video is no number.
    #[error("`{0}` is no seed: give a whole number, as in `generated:1`")]
    Seed(String),
    /// A bitrate that is to be left out is not there.
    #[error("the video has no bitrate of {without} kbit/s to be left out, but {kbps:?} kbit/s")]
    Without {
        /// The bitrate that is to be left out, kbit/s.
        without: f64,
        /// The bitrates that the video has, kbit/s.
        kbps: Vec<f64>,
    },
    /// The settings make no video.
    #[error(transparent)]
    Video(#[from] VideoError),
    /// The files cannot be read, or are no video.
    #[error(transparent)]
    File(#[from] FileError),
}

impl VideoChoice {
    /// Reads or draws the video.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the settings or with the files that they name.
    pub fn load(&self) -> Result<Video, ChoiceError> {
        let video = if self.video == ENVIVIO {
            Video::envivio()
        } else if let Some(seed) = self.video.strip_prefix(GENERATED) {
            let seed = seed
                .parse()
                .map_err(|_| ChoiceError::Seed(seed.to_owned()))?;
            Video::generate(seed, self.kbps.clone(), self.chunk_s, self.chunks)?
        } else {
            let path = Path::new(&self.video);
            files::video(path, &self.kbps, self.chunk_s, Some(self.chunks))?
        };
        let lacks = |without: &&f64| !video.kbps().contains(without);
        if let Some(&without) = self.without.iter().find(lacks) {
            let kbps = video.kbps().to_vec();
            return Err(ChoiceError::Without { without, kbps });
        }
        let keep = |kbps: &f64| !self.without.contains(kbps);
        let mask: Vec<bool> = video.kbps().iter().map(keep).collect();
        Ok(video.masked(&mask)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_a_video_without_what_is_left_out() {
        assert_eq!(
            VideoChoice::default().load().expect("the built-in one"),
            Video::envivio()
        );
        let generated = VideoChoice {
            video: "generated:3".to_owned(),
            chunks: 5,
            without: vec![300.0, 4300.0],
            ..VideoChoice::default()
        };
        let video = generated.load().expect("four bitrates");
        assert_eq!(video.kbps(), [750.0, 1200.0, 1850.0, 2850.0]);
        assert_eq!(video.chunks(), 5);
    }

    #[test]
    fn faults_are_named() {
        let fault = |change: fn(&mut VideoChoice)| {
            let mut choice = VideoChoice::default();
            change(&mut choice);
            choice.load().expect_err("a fault").to_string()
        };
        assert!(fault(|own| own.video = "generated:x".to_owned()).contains("`x` is no seed"));
        assert!(fault(|own| own.video = "/nowhere".to_owned()).contains("/nowhere"));
        assert!(fault(|own| own.without = vec![1.0]).contains("no bitrate of 1 kbit/s"));
        assert!(fault(|own| own.without = ENVIVIO_KBPS.to_vec()).contains("leaves no bitrate"));
    }
}
