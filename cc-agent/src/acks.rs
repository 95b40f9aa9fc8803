//! Per-ACK records, written as CSV by a thread of their own, so that a slow disk loses records
//! instead of delaying the event loop.

use std::{
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::mpsc::{SyncSender, TrySendError, sync_channel},
    thread,
};

use bytes::Bytes;
use cc_core::regular_file::{create_anew, expect_regular};
use cc_ebpf::{AckRecord, Feature, Record};
use tracing::warn;

/// Batches of records that may wait for the disk; further ones are lost and counted.
const BACKLOG: usize = 256;
/// The size at which the file ends, bytes: some hundred million ACKs. Further ones are lost.
const MAX_BYTES: u64 = 16 << 30;
/// Permissions of the file: its group may read.
const MODE: u32 = 0o640;

/// The writer of a CSV file of ACK records. Dropping it writes the records that wait.
pub struct AckWriter {
    batches: Option<SyncSender<Vec<Bytes>>>,
    thread: Option<thread::JoinHandle<()>>,
    lost: u64,
}

/// A writer that fails when it has written so many bytes.
struct Limited<W> {
    file: W,
    /// Bytes that may still be written.
    left: u64,
}

impl<W: Write> Write for Limited<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the file has reached its size limit",
            ));
        }
        let written = self.file.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The error of a CSV file that cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}; choose another place with --per-ack-file")]
pub struct AckWriterError {
    path: PathBuf,
    source: io::Error,
}

impl AckWriter {
    /// Creates the file and starts the thread. A file that exists is replaced; what a link leads to
    /// is not.
    ///
    /// # Errors
    ///
    /// Returns an error when something other than a regular file has the name, or the file cannot
    /// be created.
    pub fn create(path: &Path) -> Result<Self, AckWriterError> {
        Self::create_up_to(path, MAX_BYTES)
    }

    fn create_up_to(path: &Path, limit: u64) -> Result<Self, AckWriterError> {
        let fail = |source| AckWriterError {
            path: path.into(),
            source,
        };
        if let Ok(found) = fs::symlink_metadata(path) {
            expect_regular(found.file_type()).map_err(fail)?;
        }
        let file = create_anew(path, MODE).map_err(fail)?;
        let mut out = BufWriter::new(Limited { file, left: limit });
        write_heading(&mut out).map_err(fail)?;
        let (batches, queue) = sync_channel::<Vec<Bytes>>(BACKLOG);
        let place = path.to_owned();
        let write = move || {
            for batch in queue {
                if let Err(error) = write_batch(&mut out, &batch) {
                    warn!("{}: {error}; no more ACKs are recorded", place.display());
                    return;
                }
            }
            if let Err(error) = out.flush() {
                warn!("{}: {error}; the last ACKs are lost", place.display());
            }
        };
        let thread = thread::Builder::new().name("acks".into()).spawn(write);
        let thread = thread.map_err(fail)?;
        Ok(Self {
            batches: Some(batches),
            thread: Some(thread),
            lost: 0,
        })
    }

    /// Hands records to the thread, or counts them as lost when the disk is behind.
    pub fn write(&mut self, records: Vec<Bytes>) {
        let Some(batches) = &self.batches else { return };
        if let Err(TrySendError::Full(records) | TrySendError::Disconnected(records)) =
            batches.try_send(records)
        {
            if self.lost == 0 {
                warn!("the disk is behind: ACK records are being lost");
            }
            self.lost += records.len() as u64;
        }
    }
}

impl Drop for AckWriter {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the thread that records ACKs panicked");
        }
        if self.lost > 0 {
            warn!(
                "{} ACK records were lost because the disk was behind",
                self.lost
            );
        }
    }
}

fn write_heading(out: &mut impl Write) -> io::Result<()> {
    write!(out, "time_ns,slot,generation,window,cwnd")?;
    for feature in Feature::ALL {
        write!(out, ",{feature:?}")?;
    }
    writeln!(out)
}

fn write_batch(out: &mut impl Write, batch: &[Bytes]) -> io::Result<()> {
    for bytes in batch {
        if let Ok(Record::Ack(record)) = Record::decode(bytes) {
            write_record(out, &record)?;
        }
    }
    Ok(())
}

fn write_record(out: &mut impl Write, record: &AckRecord) -> io::Result<()> {
    let header = &record.header;
    write!(
        out,
        "{},{},{},{},{}",
        header.time_ns, header.slot, header.generation, record.window, record.cwnd
    )?;
    for value in record.features {
        write!(out, ",{value}")?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;
    use cc_ebpf::Header;

    #[test]
    fn one_line_per_ack() {
        let mut record = AckRecord::zeroed();
        record.header = Header::of::<AckRecord>(4, 2, 99);
        record.features[19] = 1;
        let batch = [
            Bytes::copy_from_slice(bytemuck::bytes_of(&record)),
            Bytes::from_static(b"no record"),
        ];
        let mut out = Vec::new();
        write_heading(&mut out).expect("memory");
        write_batch(&mut out, &batch).expect("memory");
        let text = String::from_utf8(out).expect("ASCII");
        let mut lines = text.lines();
        let heading = lines.next().expect("a heading");
        assert!(heading.starts_with("time_ns,slot,generation,window,cwnd,RttMin,"));
        let line = lines.next().expect("one ACK");
        assert!(line.starts_with("99,4,2,0,0,0,") && line.ends_with(",0,1"));
        assert_eq!(heading.split(',').count(), line.split(',').count());
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn a_link_is_refused_and_what_it_leads_to_is_left_alone() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let (path, victim) = (
            directory.path().join("acks.csv"),
            directory.path().join("v"),
        );
        fs::write(&victim, "precious").expect("there is space");
        std::os::unix::fs::symlink(&victim, &path).expect("a link");
        let error = AckWriter::create(&path).err().expect("refused").to_string();
        assert!(error.contains("it is a symbolic link"), "{error}");
        fs::remove_file(&path).expect("it is there");
        fs::hard_link(&victim, &path).expect("the same file system");
        drop(AckWriter::create(&path).expect("in its place"));
        assert_eq!(fs::read(&victim).expect("untouched"), b"precious");
        assert!(fs::read(&path).expect("new").starts_with(b"time_ns,"));
    }

    #[test]
    fn the_file_ends_at_its_limit() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let path = directory.path().join("acks.csv");
        let mut writer = AckWriter::create_up_to(&path, 20_000).expect("a new file");
        let mut record = AckRecord::zeroed();
        record.header = Header::of::<AckRecord>(4, 2, 99);
        let record = Bytes::copy_from_slice(bytemuck::bytes_of(&record));
        for _ in 0..1_000 {
            writer.write(vec![record.clone(); 10]);
        }
        drop(writer);
        let size = fs::metadata(&path).expect("it is there").len();
        assert!((10_000..=20_000).contains(&size), "{size}");
    }

    #[test]
    fn an_error_names_the_file() {
        let error = AckWriter::create(Path::new("/no/such/place.csv"))
            .err()
            .expect("refused");
        assert!(error.to_string().contains("/no/such/place.csv"), "{error}");
    }
}
