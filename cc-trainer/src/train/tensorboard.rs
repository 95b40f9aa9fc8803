//! Event files for TensorBoard: scalars over steps.
//!
//! A file is a sequence of TFRecords (`tensorflow/core/lib/io/record_writer.h`): the length of the
//! data, its masked checksum, the data, its masked checksum. The data is an `Event` message
//! (`tensorflow/core/util/event.proto`), the checksum CRC-32C. TFRecords are four writes, so they
//! are written here; messages and checksums come from libraries.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use crc::{CRC_32_ISCSI, Crc};
use prost::Message;

/// CRC-32C (Castagnoli), which iSCSI uses as well (RFC 3720).
const CRC_32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Writes scalars to an event file.
#[derive(Debug)]
pub struct EventWriter {
    file: BufWriter<File>,
}

impl EventWriter {
    /// Creates a file in the directory `dir`. `seconds` is the time since 1970; it is part of the
    /// file's name, so that TensorBoard reads the files of later parts of a run after it.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be created or written.
    pub fn create(dir: &Path, seconds: f64) -> io::Result<Self> {
        // Parts of a run may follow each other within a second.
        let file = (0..)
            .map(|number| File::create_new(path(dir, seconds, number)))
            .find(
                |file| !matches!(file, Err(error) if error.kind() == io::ErrorKind::AlreadyExists),
            )
            .unwrap_or_else(|| unreachable!("numbers do not end"))?;
        let mut writer = Self {
            file: BufWriter::new(file),
        };
        writer.write(&EventMessage {
            wall_time: seconds,
            file_version: Some("brain.Event:2".to_owned()),
            ..EventMessage::default()
        })?;
        Ok(writer)
    }

    /// Appends the value of each tag at an environment step, and flushes them to the file.
    /// `seconds` is the time since 1970.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be written.
    pub fn scalars<'a>(
        &mut self,
        step: u64,
        seconds: f64,
        values: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> io::Result<()> {
        let value = values
            .into_iter()
            .map(|(tag, value)| ScalarMessage {
                tag: tag.to_owned(),
                simple_value: Some(value as f32),
            })
            .collect();
        self.write(&EventMessage {
            wall_time: seconds,
            step: step as i64,
            file_version: None,
            summary: Some(SummaryMessage { value }),
        })?;
        self.file.flush()
    }

    fn write(&mut self, event: &EventMessage) -> io::Result<()> {
        let data = event.encode_to_vec();
        let length = (data.len() as u64).to_le_bytes();
        self.file.write_all(&length)?;
        self.file.write_all(&masked_crc(&length).to_le_bytes())?;
        self.file.write_all(&data)?;
        self.file.write_all(&masked_crc(&data).to_le_bytes())
    }
}

/// TensorBoard looks for `tfevents` in the names, and reads the files in the order of their names.
fn path(dir: &Path, seconds: f64, number: u32) -> PathBuf {
    dir.join(format!(
        "events.out.tfevents.{:010}.{number}.cc-trainer",
        seconds as u64
    ))
}

/// The message `tensorflow.Event`, with the fields that are used here.
#[derive(Clone, PartialEq, Message)]
struct EventMessage {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<SummaryMessage>,
}

/// The message `tensorflow.Summary`, a list of values.
#[derive(Clone, PartialEq, Message)]
struct SummaryMessage {
    #[prost(message, repeated, tag = "1")]
    value: Vec<ScalarMessage>,
}

/// The message `tensorflow.Summary.Value` of a scalar.
#[derive(Clone, PartialEq, Message)]
struct ScalarMessage {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// The masked checksum of TFRecords, which keeps a checksum of data that contains checksums useful.
fn masked_crc(data: &[u8]) -> u32 {
    CRC_32C
        .checksum(data)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        // Appendix B.4.
        assert_eq!(CRC_32C.checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(CRC_32C.checksum(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(CRC_32C.checksum(&Vec::from_iter(0..32)), 0x46dd_794e);
    }

    #[test]
    fn events_that_are_written_can_be_read_back() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut writer = EventWriter::create(dir.path(), 17.25).expect("a new file");
        writer
            .scalars(640, 18.5, [("return", 1.5), ("loss/policy", -0.25)])
            .expect("room on the disk");
        let mut data = &std::fs::read(path(dir.path(), 17.25, 0)).expect("written")[..];
        let mut events = Vec::new();
        while !data.is_empty() {
            let word =
                |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().expect("four bytes"));
            let length = word(0) as usize;
            assert_eq!((word(4), word(8)), (0, masked_crc(&data[..8])));
            assert_eq!(word(12 + length), masked_crc(&data[12..][..length]));
            events.push(EventMessage::decode(&data[12..][..length]).expect("an event"));
            data = &data[16 + length..];
        }
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!((events[1].step, events[1].wall_time), (640, 18.5));
        let values = &events[1].summary.as_ref().expect("scalars").value;
        assert_eq!(
            values
                .iter()
                .map(|value| (&*value.tag, value.simple_value))
                .collect::<Vec<_>>(),
            [("return", Some(1.5)), ("loss/policy", Some(-0.25))]
        );
    }
}
