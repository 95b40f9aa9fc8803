//! The boxes of fragmented MP4 (ISO/IEC 14496-12, and -15 for H.264) that a player needs.

use super::h264;

/// Units of time a second.
pub(super) const TIMESCALE: u32 = 1000;

/// Bytes of a box without content.
pub(super) const BOX_HEADER: usize = 8;

/// Number of the only track.
const TRACK: u32 = 1;

/// Flags of a sample (clause 8.8.3.1): no other sample is needed for it.
const KEY_SAMPLE: u32 = 0x0200_0000;
/// Flags of a sample: others are needed for it, and playback cannot begin with it.
const OTHER_SAMPLE: u32 = 0x0101_0000;

/// Language of no spoken word, `und`, in the packed form of clause 8.4.2.
const NO_LANGUAGE: u16 = 0x55c4;

/// One frame of a fragment.
pub(super) struct Frame {
    /// How long it is shown, in units of [`TIMESCALE`].
    pub(super) duration: u32,
    /// Whether it needs no other frame.
    pub(super) is_key: bool,
    /// Its unit of H.264, without a length.
    pub(super) sample: Vec<u8>,
}

/// The initialization segment: the type of the file, and a movie without frames.
pub(super) fn initialization() -> Vec<u8> {
    let kind = boxed(b"ftyp", &[b"iso6", &words(&[1]), b"iso6avc1dash"]);
    let movie = boxed(b"moov", &[&movie_header(), &extends(), &track()]);
    [kind, movie].concat()
}

/// A fragment: the frames that begin at `start` (units of [`TIMESCALE`]), and where they are.
pub(super) fn fragment(number: u32, start: u64, frames: &[Frame]) -> Vec<u8> {
    // Each unit of H.264 comes after its length.
    let sizes: Vec<u32> = frames
        .iter()
        .map(|frame| 4 + frame.sample.len() as u32)
        .collect();
    let head = |offset: usize| {
        let mut run = words(&[frames.len() as u32, offset as u32]);
        for (frame, size) in frames.iter().zip(&sizes) {
            let flags = match frame.is_key {
                true => KEY_SAMPLE,
                false => OTHER_SAMPLE,
            };
            run.extend(words(&[frame.duration, *size, flags]));
        }
        let decoded = full(b"tfdt", 1, 0, &[&start.to_be_bytes()]);
        // Offsets count from the fragment's beginning (0x20000).
        let header = full(b"tfhd", 0, 0x2_0000, &[&words(&[TRACK])]);
        // The run has an offset (0x1), and each sample a duration, a size and flags (0x700).
        let run = full(b"trun", 0, 0x701, &[&run]);
        let track = boxed(b"traf", &[&header, &decoded, &run]);
        boxed(
            b"moof",
            &[&full(b"mfhd", 0, 0, &[&words(&[number + 1])]), &track],
        )
    };
    // The offset has a fixed length, so that the head's length does not depend on it.
    let head = head(head(0).len() + BOX_HEADER);
    let mut media = Vec::new();
    for (frame, size) in frames.iter().zip(&sizes) {
        media.extend((size - 4).to_be_bytes());
        media.extend_from_slice(&frame.sample);
    }
    [head, boxed(b"mdat", &[&media])].concat()
}

/// A box of `bytes` bytes in all that players skip; empty for 0, `None` when it does not fit.
pub(super) fn padding(bytes: usize) -> Option<Vec<u8>> {
    match bytes {
        0 => Some(Vec::new()),
        _ => Some(boxed(b"free", &[&vec![0; bytes.checked_sub(BOX_HEADER)?]])),
    }
}

fn movie_header() -> Vec<u8> {
    // Times, a timescale, no duration, the normal rate and volume; at the end the next track.
    let first = words(&[0, 0, TIMESCALE, 0, 0x1_0000]);
    let volume = halves(&[0x100, 0]);
    let reserved = words(&[0; 2]);
    let rest = [words(&[0; 6]), words(&[TRACK + 1])].concat();
    full(
        b"mvhd",
        0,
        0,
        &[&first, &volume, &reserved, &identity(), &rest],
    )
}

/// That the frames come in fragments.
fn extends() -> Vec<u8> {
    boxed(
        b"mvex",
        &[&full(b"trex", 0, 0, &[&words(&[TRACK, 1, 0, 0, 0])])],
    )
}

fn track() -> Vec<u8> {
    let side = u32::from(h264::SIDE) << 16;
    let header = full(
        b"tkhd",
        0,
        // Enabled, and part of the presentation.
        3,
        &[
            &words(&[0, 0, TRACK, 0, 0, 0, 0]),
            &halves(&[0; 4]),
            &identity(),
            &words(&[side, side]),
        ],
    );
    let media_header = full(
        b"mdhd",
        0,
        0,
        &[&words(&[0, 0, TIMESCALE, 0]), &halves(&[NO_LANGUAGE, 0])],
    );
    let handler = full(
        b"hdlr",
        0,
        0,
        &[&words(&[0]), b"vide", &words(&[0; 3]), b"video\0"],
    );
    // The data are in this file.
    let here = full(b"dref", 0, 0, &[&words(&[1]), &full(b"url ", 0, 1, &[])]);
    let information = boxed(
        b"minf",
        &[
            &full(b"vmhd", 0, 1, &[&halves(&[0; 4])]),
            &boxed(b"dinf", &[&here]),
            &sample_table(),
        ],
    );
    boxed(
        b"trak",
        &[
            &header,
            &boxed(b"mdia", &[&media_header, &handler, &information]),
        ],
    )
}

/// The description of the samples, of which there are none outside the fragments.
fn sample_table() -> Vec<u8> {
    let (sequence, picture) = (h264::sequence_parameters(), h264::picture_parameters());
    let [profile, constraints, level] = h264::PROFILE;
    // Lengths take four bytes, and there is one parameter set of each kind.
    let configuration = boxed(
        b"avcC",
        &[
            &[1, profile, constraints, level, 0xff, 0xe1],
            &halves(&[sequence.len() as u16]),
            &sequence,
            &[1],
            &halves(&[picture.len() as u16]),
            &picture,
        ],
    );
    let entry = boxed(
        b"avc1",
        &[
            &[0; 6],
            &halves(&[1]),
            &[0; 16],
            &halves(&[h264::SIDE, h264::SIDE]),
            // 72 dots per inch in both directions.
            &words(&[0x48_0000, 0x48_0000, 0]),
            // One frame per sample, no name, 24 bits of colour.
            &halves(&[1]),
            &[0; 32],
            &halves(&[24, 0xffff]),
            &configuration,
        ],
    );
    boxed(
        b"stbl",
        &[
            &full(b"stsd", 0, 0, &[&words(&[1]), &entry]),
            &full(b"stts", 0, 0, &[&words(&[0])]),
            &full(b"stsc", 0, 0, &[&words(&[0])]),
            &full(b"stsz", 0, 0, &[&words(&[0, 0])]),
            &full(b"stco", 0, 0, &[&words(&[0])]),
        ],
    )
}

/// The transformation that leaves a picture as it is.
fn identity() -> Vec<u8> {
    words(&[0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000])
}

/// A box: its size, its type and its content.
fn boxed(kind: &[u8; 4], parts: &[&[u8]]) -> Vec<u8> {
    let content: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = ((BOX_HEADER + content) as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(kind);
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// A box with a version and flags.
fn full(kind: &[u8; 4], version: u8, flags: u32, parts: &[&[u8]]) -> Vec<u8> {
    let start = (u32::from(version) << 24 | flags).to_be_bytes();
    boxed(kind, &[&[&start[..]], parts].concat())
}

fn words(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_be_bytes())
        .collect()
}

fn halves(values: &[u16]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_be_bytes())
        .collect()
}
