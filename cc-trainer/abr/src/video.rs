//! Videos: bitrates, and the size of every chunk in each of them.

use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StandardNormal};
use serde::Deserialize;

use crate::ladder::{self, LadderError};

/// Pensieve's test video, as a file of this module's format.
const ENVIVIO: &str = include_str!("../videos/envivio.toml");

/// The bitrates of Pensieve's test video, kbit/s.
pub const ENVIVIO_KBPS: [f64; 6] = [300.0, 750.0, 1200.0, 1850.0, 2850.0, 4300.0];

/// Most chunks of a video.
pub const MAX_CHUNKS: usize = 100_000;

/// A video in several bitrates, cut into chunks of equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct Video {
    name: String,
    kbps: Vec<f64>,
    chunk_s: f64,
    chunks: usize,
    /// Bytes of each chunk in each quality: `sizes[chunk][quality]`.
    sizes: Vec<Vec<u32>>,
}

/// What is wrong with a video.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VideoError {
    /// The text is no TOML, or lacks a key or has one too many.
    #[error(
        "{0}; a video has `name`, `chunk_s` and one `[[quality]]` with `kbps` and `sizes` (bytes \
         of each chunk) for each bitrate"
    )]
    Parse(String),
    /// The list of bitrates cannot be used.
    #[error(transparent)]
    Ladder(#[from] LadderError),
    /// A quality has another number of chunks than the first one.
    #[error(
        "quality {quality} has {found} sizes and quality 0 has {expected}: give every quality one \
         size per chunk"
    )]
    Uneven {
        /// Quality with the deviating number of sizes, from 0.
        quality: usize,
        /// Number of sizes of that quality.
        found: usize,
        /// Number of sizes of quality 0.
        expected: usize,
    },
    /// There is no chunk, or more than [`MAX_CHUNKS`].
    #[error("{0} chunks: give 1 to {MAX_CHUNKS}")]
    Chunks(usize),
    /// More chunks are to be played than there are sizes.
    #[error("`chunks` is {chunks}, but there are {sizes} sizes: lower it, or leave it out")]
    Played {
        /// Number of chunks to be played.
        chunks: usize,
        /// Number of sizes of each quality.
        sizes: usize,
    },
    /// The length of a chunk is no usable time.
    #[error("`chunk_s` is {0}: give the length of a chunk in seconds, from 0.1 to 60")]
    ChunkLength(f64),
    /// A line of a list of sizes is no size.
    #[error(
        "line {line}: `{text}` is no size: write one whole number of bytes per line, from 1 to \
         {max}",
        max = u32::MAX
    )]
    Size {
        /// Line of the fault, from 1.
        line: usize,
        /// Beginning of the line that is wrong.
        text: String,
    },
    /// A chunk has no byte.
    #[error("chunk {chunk} of quality {quality} has 0 bytes: give its size in bytes")]
    Empty {
        /// Number of the chunk, from 0.
        chunk: usize,
        /// Number of the quality, from 0.
        quality: usize,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    chunk_s: f64,
    chunks: Option<usize>,
    quality: Vec<Quality>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Quality {
    kbps: f64,
    sizes: Vec<u32>,
}

impl Video {
    /// Creates a video from its bitrates (kbit/s, ascending), the length of a chunk in seconds, and
    /// the bytes of each chunk of each quality (`sizes[quality][chunk]`). `chunks` of them are
    /// played; `None` plays all.
    ///
    /// # Errors
    ///
    /// Returns the first fault that is found.
    pub fn new(
        name: &str,
        kbps: Vec<f64>,
        chunk_s: f64,
        chunks: Option<usize>,
        sizes: &[Vec<u32>],
    ) -> Result<Self, VideoError> {
        ladder::check(&kbps)?;
        if kbps.len() != sizes.len() {
            return Err(VideoError::Ladder(LadderError::MaskLength {
                mask: sizes.len(),
                levels: kbps.len(),
            }));
        }
        if !(0.1..=60.0).contains(&chunk_s) {
            return Err(VideoError::ChunkLength(chunk_s));
        }
        let expected = sizes[0].len();
        if expected == 0 || expected > MAX_CHUNKS {
            return Err(VideoError::Chunks(expected));
        }
        for (quality, of) in sizes.iter().enumerate() {
            if of.len() != expected {
                return Err(VideoError::Uneven {
                    quality,
                    found: of.len(),
                    expected,
                });
            }
            if let Some(chunk) = of.iter().position(|&bytes| bytes == 0) {
                return Err(VideoError::Empty { chunk, quality });
            }
        }
        let played = chunks.unwrap_or(expected);
        if played == 0 {
            return Err(VideoError::Chunks(0));
        }
        if played > expected {
            return Err(VideoError::Played {
                chunks: played,
                sizes: expected,
            });
        }
        let chunk = |chunk: usize| sizes.iter().map(|of| of[chunk]).collect();
        Ok(Self {
            name: name.to_owned(),
            kbps,
            chunk_s,
            chunks: played,
            sizes: (0..expected).map(chunk).collect(),
        })
    }

    /// Pensieve's test video: six bitrates, 48 chunks of 4 s.
    pub fn envivio() -> Self {
        Self::parse(ENVIVIO)
            .unwrap_or_else(|error| unreachable!("the built-in video is one: {error}"))
    }

    /// Parses a video in TOML: `name`, `chunk_s`, optionally `chunks` (how many are played), and
    /// one `[[quality]]` with `kbps` and `sizes` for each bitrate.
    ///
    /// # Errors
    ///
    /// Returns the first fault that is found.
    pub fn parse(text: &str) -> Result<Self, VideoError> {
        let file: File = toml::from_str(text)
            .map_err(|error| VideoError::Parse(error.to_string().trim_end().to_owned()))?;
        let kbps = file.quality.iter().map(|quality| quality.kbps).collect();
        let sizes: Vec<Vec<u32>> = file.quality.into_iter().map(|one| one.sizes).collect();
        Self::new(&file.name, kbps, file.chunk_s, file.chunks, &sizes)
    }

    /// Draws a video with these bitrates from a seed, as encoders with a target bitrate make them.
    ///
    /// Sizes are the bitrate times the length, times a factor of the scene that all qualities
    /// share: lognormal, with a standard deviation of 10 % and a correlation of 0.5 from chunk to
    /// chunk, and times one of 2 % of each quality. A chunk is larger in each higher quality.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the bitrates, the length or the number of chunks.
    pub fn generate(
        seed: u64,
        kbps: Vec<f64>,
        chunk_s: f64,
        chunks: usize,
    ) -> Result<Self, VideoError> {
        if chunks == 0 || chunks > MAX_CHUNKS {
            return Err(VideoError::Chunks(chunks));
        }
        let mut random = StdRng::seed_from_u64(seed);
        let mut normal = || -> f64 { StandardNormal.sample(&mut random) };
        let mut sizes = vec![Vec::with_capacity(chunks); kbps.len()];
        let mut scene = normal();
        for _ in 0..chunks {
            let mut least = 0;
            for (rate, of) in kbps.iter().zip(&mut sizes) {
                let nominal = rate * 125.0 * chunk_s;
                let factor = (0.1 * scene + 0.02 * normal()).exp();
                least = ((nominal * factor) as u32).max(least + 1);
                of.push(least);
            }
            scene = 0.5 * scene + 0.75_f64.sqrt() * normal();
        }
        Self::new(&format!("generated-{seed}"), kbps, chunk_s, None, &sizes)
    }

    /// The same video without some of its bitrates: those whose entry in `keep` is false.
    ///
    /// # Errors
    ///
    /// Returns an error when the mask leaves no bitrate or has another length than the list.
    pub fn masked(&self, keep: &[bool]) -> Result<Self, VideoError> {
        if keep.len() != self.levels() {
            let (mask, levels) = (keep.len(), self.levels());
            return Err(LadderError::MaskLength { mask, levels }.into());
        }
        if !keep.contains(&true) {
            return Err(LadderError::NothingLeft.into());
        }
        fn kept<T: Copy>(all: &[T], keep: &[bool]) -> Vec<T> {
            let pairs = all.iter().zip(keep);
            pairs
                .filter(|(_, keep)| **keep)
                .map(|(one, _)| *one)
                .collect()
        }
        Ok(Self {
            kbps: kept(&self.kbps, keep),
            sizes: self.sizes.iter().map(|of| kept(of, keep)).collect(),
            ..self.clone()
        })
    }

    /// Name of the video, for tables and files.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bitrates of the qualities, kbit/s, ascending.
    pub fn kbps(&self) -> &[f64] {
        &self.kbps
    }

    /// Number of qualities of the video.
    pub fn levels(&self) -> usize {
        self.kbps.len()
    }

    /// Length of a chunk, s.
    pub fn chunk_s(&self) -> f64 {
        self.chunk_s
    }

    /// Number of chunks that a session plays.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Bytes of each chunk in each quality, `[chunk][quality]`; there may be more chunks than are
    /// played.
    pub fn sizes(&self) -> &[Vec<u32>] {
        &self.sizes
    }
}

/// Parses a list of sizes: one whole number of bytes per line, the format of Pensieve's files
/// `video_size_N`.
///
/// # Errors
///
/// Returns the first line that is no size.
pub fn parse_sizes(text: &str) -> Result<Vec<u32>, VideoError> {
    let lines = text.lines().enumerate();
    let filled = lines.filter(|(_, line)| !line.trim().is_empty());
    let size = |(index, line): (usize, &str)| {
        let parsed = line.trim().parse::<u32>().ok().filter(|&bytes| bytes > 0);
        parsed.ok_or_else(|| VideoError::Size {
            line: index + 1,
            text: line.chars().take(40).collect(),
        })
    };
    filled.map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_video_is_pensieves() {
        let video = Video::envivio();
        assert_eq!(video.kbps(), ENVIVIO_KBPS);
        assert_eq!((video.chunks(), video.sizes().len()), (48, 49));
        assert_eq!(
            video.sizes()[0],
            [181_801, 450_283, 668_286, 1_034_108, 1_728_879, 2_354_772]
        );
        assert_eq!(video.sizes()[48][5], 1_433_658);
        // The mean size of every quality is near its bitrate.
        for (quality, kbps) in ENVIVIO_KBPS.iter().enumerate() {
            let bytes: u64 = video.sizes().iter().map(|of| u64::from(of[quality])).sum();
            let mean = bytes as f64 / 49.0 / 500.0;
            assert!((mean / kbps - 1.0).abs() < 0.05, "{mean} of {kbps}");
        }
    }

    #[test]
    fn a_mask_leaves_the_sizes_of_what_it_keeps() {
        let video = Video::envivio();
        let masked = video
            .masked(&[false, true, false, false, false, true])
            .expect("two are left");
        assert_eq!(masked.kbps(), [750.0, 4300.0]);
        assert_eq!(masked.sizes()[0], [450_283, 2_354_772]);
        assert_eq!(
            video.masked(&[false; 6]),
            Err(LadderError::NothingLeft.into())
        );
        assert!(video.masked(&[true; 5]).is_err());
    }

    #[test]
    fn a_seed_gives_the_same_video_near_its_bitrates() {
        let video = |seed| Video::generate(seed, ENVIVIO_KBPS.to_vec(), 4.0, 48).expect("valid");
        assert_eq!(video(1), video(1));
        assert_ne!(video(1), video(2));
        for (quality, kbps) in ENVIVIO_KBPS.iter().enumerate() {
            let sizes = video(3);
            let bytes: u64 = sizes.sizes().iter().map(|of| u64::from(of[quality])).sum();
            let mean = bytes as f64 / 48.0 / 500.0;
            assert!((mean / kbps - 1.0).abs() < 0.15, "{mean} of {kbps}");
        }
        for chunk in video(4).sizes() {
            assert!(chunk.is_sorted_by(|one, next| one < next), "{chunk:?}");
        }
    }

    #[test]
    fn faults_name_place_and_remedy() {
        let text = |quality: &str| format!("name = \"v\"\nchunk_s = 4.0\n{quality}");
        for (quality, expected) in [
            ("", "missing field `quality`"),
            ("[[quality]]\nkbps = 1\nsizes = []\n", "0 chunks"),
            ("[[quality]]\nkbps = 0\nsizes = [1]\n", "bitrate 0"),
            (
                "[[quality]]\nkbps = 1\nsizes = [0]\n",
                "chunk 0 of quality 0",
            ),
            (
                "[[quality]]\nkbps = 1\nsizes = [1]\nx = 2\n",
                "unknown field `x`",
            ),
            (
                "[[quality]]\nkbps = 1\nsizes = [1]\n[[quality]]\nkbps = 2\nsizes = [1, 2]\n",
                "quality 1 has 2 sizes",
            ),
        ] {
            let error = Video::parse(&text(quality)).expect_err(quality).to_string();
            assert!(error.contains(expected), "{quality}: {error}");
        }
        let long = "name = \"v\"\nchunk_s = 4.0\nchunks = 2\n[[quality]]\nkbps = 1\nsizes = [1]";
        assert!(matches!(Video::parse(long), Err(VideoError::Played { .. })));
        assert_eq!(parse_sizes("1\n2\n\n"), Ok(vec![1, 2]));
        assert!(matches!(
            parse_sizes("1\n2.5\n"),
            Err(VideoError::Size { line: 2, .. })
        ));
    }
}
