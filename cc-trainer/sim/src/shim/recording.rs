//! Recordings of what a network did to messages, to be replayed.
//!
//! A recording is text with one message per line: its delay in ms, or `lost`. A line that begins
//! with `there` or `back` belongs to that direction, any other one to both. Empty lines and what
//! follows a `#` are ignored.
//!
//! ```text
//! # Delays of messages in ms.
//! there 31.5
//! there lost
//! back 28.0
//! 30.25
//! ```

use std::{io, str::FromStr};

use super::{Fate, Way};
use crate::{
    path::{Nanos, nanos},
    scenario::Millis,
};

/// Size limit of a recording, bytes: about six million messages.
pub const MAX_BYTES: u64 = 64 << 20;

/// First line of the recordings that a [`Recorder`] writes.
const HEADING: &str = "# Delay of each message in ms, or `lost`: docs/shim.md#recordings";

/// What happened to messages in turn: the delay in ns, or `None` for a lost one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    there: Vec<Option<Nanos>>,
    back: Vec<Option<Nanos>>,
}

/// Why a text is no recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct RecordingError {
    /// Line of the fault, from 1.
    pub line: usize,
    /// What is wrong with the line, and what is wanted.
    pub fault: String,
}

/// Writes a recording, message by message.
#[derive(Debug)]
pub struct Recorder<W> {
    writer: W,
}

impl Recording {
    /// The messages of one direction, in order.
    pub fn way(&self, way: Way) -> &[Option<Nanos>] {
        match way {
            Way::There => &self.there,
            Way::Back => &self.back,
        }
    }

    fn push(&mut self, way: Way, delay: Option<Nanos>) {
        match way {
            Way::There => self.there.push(delay),
            Way::Back => self.back.push(delay),
        }
    }
}

impl FromStr for Recording {
    type Err = RecordingError;

    fn from_str(text: &str) -> Result<Self, RecordingError> {
        let mut recording = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let content = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = content.split_whitespace().take(3).collect();
            let named = |word| Way::BOTH.into_iter().find(|way| way.to_string() == word);
            let (ways, what) = match words[..] {
                [] => continue,
                [what] => (&Way::BOTH[..], what),
                [way, what] => match named(way) {
                    Some(Way::There) => (&Way::BOTH[..1], what),
                    Some(Way::Back) => (&Way::BOTH[1..], what),
                    None => return Err(RecordingError::new(number, line)),
                },
                _ => return Err(RecordingError::new(number, line)),
            };
            let delay = match what {
                "lost" => None,
                _ => {
                    let ms: f64 = what
                        .parse()
                        .map_err(|_| RecordingError::new(number, line))?;
                    let ms = Millis::try_from(ms).map_err(|fault| RecordingError {
                        line: number,
                        fault,
                    })?;
                    Some(nanos(ms.duration()))
                }
            };
            for &way in ways {
                recording.push(way, delay);
            }
        }
        Ok(recording)
    }
}

impl RecordingError {
    fn new(number: usize, line: &str) -> Self {
        let shown: String = line.trim().chars().take(40).collect();
        Self {
            line: number,
            fault: format!(
                "`{}` is no message: write its delay in ms, or `lost`, after `there` or `back` \
                 where it belongs to one direction",
                shown.escape_debug()
            ),
        }
    }
}

impl<W: io::Write> Recorder<W> {
    /// Begins a recording with a line that explains it.
    ///
    /// # Errors
    ///
    /// Returns the error of the writer, if it fails.
    pub fn new(mut writer: W) -> io::Result<Self> {
        writeln!(writer, "{HEADING}")?;
        Ok(Self { writer })
    }

    /// Adds a message that was offered at `now`, to the nanosecond.
    ///
    /// # Errors
    ///
    /// Returns the error of the writer, if it fails.
    pub fn record(&mut self, way: Way, now: Nanos, fate: Fate) -> io::Result<()> {
        match fate {
            Fate::Arrives { at, .. } => {
                let delay = at.saturating_sub(now);
                let (ms, rest) = (delay / 1_000_000, delay % 1_000_000);
                writeln!(self.writer, "{way} {ms}.{rest:06}")
            }
            Fate::Lost => writeln!(self.writer, "{way} lost"),
        }
    }

    /// Ends the recording and returns its writer.
    ///
    /// # Errors
    ///
    /// Returns the error of the writer, if it fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.writer.flush()?;
        Ok(self.writer)
    }
}
