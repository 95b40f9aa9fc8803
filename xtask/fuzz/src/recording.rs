//! The recovery of a recording that a killed agent left open.
//!
//! An input is the length of the footer in two little-endian bytes, then the footer and the open
//! file: the two files that lie beside each other on disk.

use std::{fs, path::Path, sync::Arc};

use bytemuck::Zeroable;
use cc_core::{
    interface::Interface,
    reward::Terms,
    rows::{AddressForm, FileHeader, Row},
};
use cc_ebpf::{Header, WindowRecord};
use cc_recording::FileWriter;
use tempfile::TempDir;

const OPEN: &str = "1795000000-0000002a-000000.parquet.open";
const FOOTER: &str = "1795000000-0000002a-000000.parquet.open.footer";

/// Recovers the recording, and reads the file when it could be completed.
pub(crate) fn recover(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes(*length));
    let Some((footer, file)) = rest.split_at_checked(length) else {
        return;
    };
    let directory = scratch();
    let write = |name: &str, bytes: &[u8]| {
        fs::write(directory.path().join(name), bytes).expect("the scratch directory is writable");
    };
    write(OPEN, file);
    write(FOOTER, footer);
    let Ok(recovered) = cc_recording::recover(directory.path()) else {
        return;
    };
    for path in recovered.iter().filter_map(|file| file.path.as_deref()) {
        // A complete file may still hold rows that cannot be read; reading them must say so.
        if let Ok((_, rows)) = cc_recording::read(path) {
            rows.take_while(Result::is_ok).for_each(drop);
        }
    }
}

/// A directory in memory where there is one, as recovery waits for the disk.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .expect("a scratch directory")
}

/// Recordings of no rows, and of one row group and of two, that were never finished.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    (0..3).map(unfinished).collect()
}

fn unfinished(groups: u32) -> Vec<u8> {
    let directory = scratch();
    let path = directory.path().join("1795000000-0000002a-000000.parquet");
    let mut writer =
        FileWriter::create(&path, header()).expect("the scratch directory is writable");
    for group in 0..groups {
        writer
            .write(&[row(2 * group), row(2 * group + 1)])
            .expect("rows can be written");
    }
    drop(writer);
    // Before its first row group a recording has no footer.
    let footer = fs::read(directory.path().join(FOOTER)).unwrap_or_default();
    let file = fs::read(directory.path().join(OPEN)).expect("the open file");
    let length = u16::try_from(footer.len()).expect("the footer of a small file is short");
    [&length.to_le_bytes()[..], &footer, &file].concat()
}

fn header() -> FileHeader {
    FileHeader {
        interface: Interface::default(),
        policy: "fixed:10".to_owned(),
        policy_metadata: None,
        server: None,
        agent_version: "0.1.0".to_owned(),
        kernel: "6.18.0".to_owned(),
        host: [("net.ipv4.tcp_sack".to_owned(), "1".to_owned())].into(),
        started_ns: 1,
        utc_offset_ns: 2,
        addresses: AddressForm::Plain,
    }
}

fn row(sequence: u32) -> Row {
    let mut window = WindowRecord::zeroed();
    window.header = Header::of::<WindowRecord>(1, 2, 3 + u64::from(sequence));
    Row {
        flow: 1,
        sequence,
        window,
        path: None,
        initial_cwnd_bytes: 14480,
        decision: None,
        terms: Terms::default(),
        reward: 0.5,
        end: false,
        local: Some(Arc::from("10.0.0.1:1")),
        remote: None,
        cgroup: 1,
        cookie: 0,
        netns: 0,
    }
}
