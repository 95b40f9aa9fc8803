//! Event files for TensorBoard: scalars over steps.
//!
//! A file is a sequence of TFRecords (tensorflow/core/lib/io/record_writer.h): length, its masked checksum, an `Event`
//! message (tensorflow/core/util/event.proto), its masked checksum. The checksum is CRC-32C.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use prost::Message;

/// An event file that is being written.
#[derive(Debug)]
pub struct EventWriter {
    file: BufWriter<File>,
}

impl EventWriter {
    /// Begins a file in a directory. `seconds` is the time since 1970; it names the file, so that files of later runs
    /// come after it.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn create(dir: &Path, seconds: f64) -> io::Result<Self> {
        // Runs may follow each other within a second.
        let file = (0..)
            .map(|number| File::create_new(path(dir, seconds, number)))
            .find(
                |file| !matches!(file, Err(error) if error.kind() == io::ErrorKind::AlreadyExists),
            )
            .unwrap_or_else(|| unreachable!("numbers do not end"))?;
        let mut writer = Self {
            file: BufWriter::new(file),
        };
        writer.write(&Event {
            wall_time: seconds,
            file_version: Some("brain.Event:2".to_owned()),
            ..Event::default()
        })?;
        Ok(writer)
    }

    /// Appends a value for each name, at a step and a time in seconds since 1970, and hands them to the file.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn scalars<'a>(
        &mut self,
        step: u64,
        seconds: f64,
        values: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> io::Result<()> {
        let value = values
            .into_iter()
            .map(|(tag, value)| Scalar {
                tag: tag.to_owned(),
                simple_value: Some(value as f32),
            })
            .collect();
        self.write(&Event {
            wall_time: seconds,
            step: step as i64,
            file_version: None,
            summary: Some(Summary { value }),
        })?;
        self.file.flush()
    }

    fn write(&mut self, event: &Event) -> io::Result<()> {
        let data = event.encode_to_vec();
        let length = (data.len() as u64).to_le_bytes();
        self.file.write_all(&length)?;
        self.file.write_all(&masked_crc(&length).to_le_bytes())?;
        self.file.write_all(&data)?;
        self.file.write_all(&masked_crc(&data).to_le_bytes())
    }
}

/// TensorBoard looks for `tfevents` in names, and reads files in the order of names.
fn path(dir: &Path, seconds: f64, number: u32) -> PathBuf {
    dir.join(format!(
        "events.out.tfevents.{:010}.{number}.cc-trainer",
        seconds as u64
    ))
}

/// `tensorflow.Event`.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

/// `tensorflow.Summary.Value`.
#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// The checksum as TFRecords have it, so that one of data that holds checksums is good too.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), reflected; RFC 3720 appendix B.4 has test vectors.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&Vec::from_iter(0..32)), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn what_is_written_can_be_read_back() {
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
            events.push(Event::decode(&data[12..][..length]).expect("an event"));
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
