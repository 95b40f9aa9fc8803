//! A [`Video`] as a stream that real players play: MPEG-DASH with fragmented MP4 and H.264.
//!
//! The pictures are 64 pixels wide, one colour per quality, so that decoding costs next to nothing.
//! What counts is the size of each segment, which is exactly the video's: a `free` box, which
//! players skip, fills what the pictures leave. Nothing is encoded beforehand and nothing is kept
//! in files: a segment is made when it is asked for, and is always the same.

mod h264;
mod mp4;

use std::fmt::Write as _;

use crate::video::Video;

/// Name of the initialization segment, which all qualities share.
pub const INITIALIZATION: &str = "init.mp4";

/// Name of the manifest, which players ask for first.
pub const MANIFEST: &str = "manifest.mpd";

/// Frames a second. A browser stops a frame's length before the end of its buffer, which would
/// count as rebuffering.
const FRAME_RATE: f64 = 24.0;

/// A chunk is too small for its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "chunk {chunk} in quality {quality} has {bytes} bytes, and its frames take {least}: play a \
     video with larger chunks"
)]
pub struct TooSmall {
    /// Number of the chunk, from 0.
    pub chunk: usize,
    /// Number of the quality, from 0.
    pub quality: usize,
    /// Size that the video has for it, bytes.
    pub bytes: u32,
    /// Least size of such a segment, bytes.
    pub least: usize,
}

/// The manifest of a video: one representation for each quality, whose id is the quality's number.
/// Segment `N` of representation `Q` is [`segment_name`]`(Q, N)`, beside the manifest.
pub fn manifest(video: &Video) -> String {
    let segment_ms = chunk_ms(video);
    let length_s = segment_ms as f64 * video.chunks() as f64 / 1e3;
    let mut representations = String::new();
    for (quality, kbps) in video.kbps().iter().enumerate() {
        let bandwidth = (kbps * 1e3).round();
        // Writing to a string does not fail.
        let _ = writeln!(
            representations,
            "      <Representation id=\"{quality}\" bandwidth=\"{bandwidth}\"/>"
        );
    }
    let (side, codec) = (h264::SIDE, h264::CODEC);
    let media = segment_name("$RepresentationID$", "$Number$");
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"
    profiles="urn:mpeg:dash:profile:isoff-live:2011"
    mediaPresentationDuration="PT{length_s}S" minBufferTime="PT{chunk_s}S">
  <Period>
    <AdaptationSet contentType="video" mimeType="video/mp4" codecs="{codec}" width="{side}"
        height="{side}" frameRate="{FRAME_RATE}" segmentAlignment="true" startWithSAP="1">
      <SegmentTemplate timescale="{TIMESCALE}" duration="{segment_ms}" startNumber="0"
          initialization="{INITIALIZATION}" media="{media}"/>
{representations}    </AdaptationSet>
  </Period>
</MPD>
"#,
        chunk_s = segment_ms as f64 / 1e3,
        TIMESCALE = mp4::TIMESCALE,
    )
}

/// Path of a segment relative to the manifest's.
fn segment_name(quality: &str, chunk: &str) -> String {
    format!("{quality}/{chunk}.m4s")
}

/// Quality and chunk of a segment's path ([`manifest`]); `None` when it is no such path.
pub fn parse_segment(path: &str) -> Option<(usize, usize)> {
    let (quality, chunk) = path.strip_suffix(".m4s")?.split_once('/')?;
    let number = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<usize>().ok()).flatten()
    };
    Some((number(quality)?, number(chunk)?))
}

/// The initialization segment, which has no frames and is the same for all videos.
pub fn initialization() -> Vec<u8> {
    mp4::initialization()
}

/// A chunk in a quality, in exactly as many bytes as the video has for it.
///
/// # Errors
///
/// Returns an error when these bytes do not suffice for the frames: some 9 kB for 4 s.
///
/// # Panics
///
/// Panics when the video has no such chunk or quality.
pub fn segment(video: &Video, chunk: usize, quality: usize) -> Result<Vec<u8>, TooSmall> {
    let bytes = video.sizes()[chunk][quality];
    let length = chunk_ms(video);
    let count = ((length as f64 / 1e3 * FRAME_RATE).ceil() as u32).max(1);
    let frames: Vec<mp4::Frame> = (0..count)
        .map(|number| {
            let at = |number: u32| length * u64::from(number) / u64::from(count);
            mp4::Frame {
                // A frame is far shorter than the 49 days that fit.
                duration: (at(number + 1) - at(number)) as u32,
                is_key: number == 0,
                sample: match number {
                    0 => h264::key_frame(colour(quality), (chunk % 2) as u32),
                    _ => h264::repeated_frame(number),
                },
            }
        })
        .collect();
    let fragment = mp4::fragment(chunk as u32, length * chunk as u64, &frames);
    let room = (bytes as usize).checked_sub(fragment.len());
    match room.and_then(mp4::padding) {
        Some(padding) => Ok([fragment, padding].concat()),
        None => Err(TooSmall {
            chunk,
            quality,
            bytes,
            least: fragment.len() + mp4::BOX_HEADER,
        }),
    }
}

/// Length of a chunk in units of [`mp4::TIMESCALE`], which are ms.
fn chunk_ms(video: &Video) -> u64 {
    (video.chunk_s() * f64::from(mp4::TIMESCALE)).round() as u64
}

/// A colour that tells a quality from its neighbours: luma, blue and red difference.
fn colour(quality: usize) -> [u8; 3] {
    let step = (quality % 8) as u8;
    [60 + 20 * step, 90 + 18 * step, 200 - 18 * step]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn video(chunk_s: f64, size: u32) -> Video {
        let sizes = [vec![size; 3], vec![size + 1; 3]];
        Video::new("v", vec![300.0, 750.5], chunk_s, None, &sizes).expect("valid")
    }

    /// The boxes of a file or of a box's content: types and contents.
    fn boxes(mut bytes: &[u8]) -> Vec<(&[u8], &[u8])> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let size = number(&bytes[..4]) as usize;
            found.push((&bytes[4..8], &bytes[8..size]));
            bytes = &bytes[size..];
        }
        found
    }

    fn number(bytes: &[u8]) -> u64 {
        bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    fn content<'a>(bytes: &'a [u8], kind: &str) -> &'a [u8] {
        let found = boxes(bytes)
            .into_iter()
            .find(|(name, _)| *name == kind.as_bytes());
        found.unwrap_or_else(|| panic!("no {kind}")).1
    }

    #[test]
    fn the_built_in_video_has_its_sizes() {
        let video = Video::envivio();
        for chunk in [0, 1, 47] {
            for quality in 0..6 {
                let bytes = segment(&video, chunk, quality).expect("room enough");
                assert_eq!(bytes.len(), video.sizes()[chunk][quality] as usize);
            }
        }
    }

    proptest! {
        #[test]
        fn a_segment_has_its_size_and_its_frames_fill_its_time(
            chunk_s in 0.1..60.0_f64,
            size in 60_000_u32..100_000,
            chunk in 0_usize..3,
            quality in 0_usize..2,
        ) {
            let video = video(chunk_s, size);
            let bytes = segment(&video, chunk, quality).expect("room enough");
            prop_assert_eq!(bytes.len(), size as usize + quality);
            let length = (chunk_s * 1e3).round() as u64;
            let names: Vec<&[u8]> = boxes(&bytes).iter().map(|one| one.0).collect();
            prop_assert_eq!(names, [&b"moof"[..], b"mdat", b"free"]);
            let fragment = content(content(&bytes, "moof"), "traf");
            // Version and flags, then 64 bits.
            prop_assert_eq!(number(&content(fragment, "tfdt")[4..]), length * chunk as u64);
            let run = content(fragment, "trun");
            let count = number(&run[4..8]) as usize;
            let samples: Vec<&[u8]> = run[12..].chunks(12).collect();
            prop_assert_eq!(samples.len(), count);
            let sum = |at: usize| samples.iter().map(|one| number(&one[at..at + 4])).sum::<u64>();
            prop_assert_eq!(sum(0), length);
            // The offset of the data is that of the box's content, which the samples fill.
            let media = content(&bytes, "mdat");
            prop_assert_eq!(sum(4), media.len() as u64);
            let offset = number(&run[8..12]) as usize;
            prop_assert_eq!(&bytes[offset..offset + media.len()], media);
            prop_assert!(content(&bytes, "free").iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_chunk_without_room_for_its_frames_is_refused() {
        let error = segment(&video(4.0, 1000), 2, 1).expect_err("1001 bytes");
        assert_eq!((error.chunk, error.quality, error.bytes), (2, 1, 1001));
        let least = error.least as u32;
        assert!(segment(&video(4.0, least), 2, 0).is_ok());
        assert!(segment(&video(4.0, least - 1), 2, 0).is_err());
    }

    #[test]
    fn the_manifest_names_what_there_is() {
        let text = manifest(&video(2.5, 1));
        for part in [
            "mediaPresentationDuration=\"PT7.5S\"",
            "duration=\"2500\"",
            "<Representation id=\"1\" bandwidth=\"750500\"/>",
            "media=\"$RepresentationID$/$Number$.m4s\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.matches("<Representation ").count(), 2);
    }

    #[test]
    fn only_paths_of_segments_are_segments() {
        assert_eq!(parse_segment(&segment_name("3", "41")), Some((3, 41)));
        for path in [
            "3/41",
            "41.m4s",
            "3/x.m4s",
            "-1/2.m4s",
            "+1/2.m4s",
            "/2.m4s",
            "1/2/3.m4s",
        ] {
            assert_eq!(parse_segment(path), None, "{path}");
        }
    }
}
