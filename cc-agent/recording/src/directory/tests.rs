//! Directories in which somebody else has prepared files and links.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use bytemuck::Zeroable;
use cc_core::{
    interface::Interface,
    reward::Terms,
    rows::{AddressForm, FileHeader, Recorded, Row},
};
use cc_ebpf::WindowRecord;
use rustix::fs::{CWD, mknodat};
use tempfile::TempDir;

use crate::{
    FileWriter, Limits, Recorder, files,
    name::{FOOTER, OPEN},
    read, recover,
};

use super::*;

const NAME: &str = "1795000000-0000002a-000000.parquet";
const PRECIOUS: &str = "precious line 1\nprecious line 2\n";
/// A user that owns nothing else.
const OTHER: u32 = 54_321;

fn header() -> FileHeader {
    FileHeader {
        interface: Interface::default(),
        policy: "fixed:10".into(),
        policy_metadata: None,
        server: None,
        agent_version: "0.1.0".into(),
        kernel: "6.18.0".into(),
        host: [].into(),
        started_ns: 1,
        utc_offset_ns: 2,
        addresses: AddressForm::Absent,
    }
}

fn row(sequence: u32) -> Row {
    Row {
        flow: 7,
        sequence,
        window: WindowRecord::zeroed(),
        path: None,
        initial_cwnd_bytes: 14_480,
        decision: None,
        terms: Terms::default(),
        reward: 0.0,
        end: false,
        local: None,
        remote: None,
        cgroup: 1,
        cookie: 7,
        netns: 0,
    }
}

fn record(directory: &Path, rows: u32) -> Result<(), String> {
    let limits = Limits {
        directory: directory.into(),
        file_bytes: 1 << 20,
        file_age: Duration::from_secs(3_600),
        group_age: Duration::from_secs(3_600),
        total_bytes: 1 << 30,
    };
    let header = Arc::new(header());
    let recorded = |sequence| Recorded {
        header: header.clone(),
        row: Box::new(row(sequence)),
    };
    let recorder = Recorder::start(limits, "absent", || {});
    let mut recorder = recorder.map_err(|error| error.to_string())?;
    recorder.write((0..rows).map(recorded).collect());
    drop(recorder);
    Ok(())
}

/// Leaves a recording of two row groups open, as a killed agent does.
fn leave_open(directory: &Path) -> PathBuf {
    let path = directory.join(NAME);
    let mut writer = FileWriter::create(&path, header()).expect("a new file");
    writer.write(&[row(0)]).expect("there is space");
    writer.write(&[row(1), row(2)]).expect("there is space");
    drop(writer);
    directory.join(with_suffix(NAME, OPEN))
}

/// A footer file that asks for a file's content to be replaced by its own.
fn forged() -> Vec<u8> {
    [&0u64.to_le_bytes()[..], b"* * * * * root /tmp/evil\n"].concat()
}

/// A directory to record in, and a file outside it.
fn scratch() -> (TempDir, PathBuf, PathBuf) {
    let place = TempDir::new().expect("a scratch directory");
    let (directory, victim) = (place.path().join("recordings"), place.path().join("victim"));
    fs::create_dir(&directory).expect("a directory");
    chmod(&directory, 0o755);
    fs::write(&victim, PRECIOUS).expect("there is space");
    (place, directory, victim)
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

fn assert_untouched(victim: &Path) {
    assert_eq!(fs::read_to_string(victim).expect("readable"), PRECIOUS);
}

#[test]
fn a_link_in_the_place_of_an_open_file_leads_nowhere() {
    for name in ["x.parquet", NAME] {
        for hard in [false, true] {
            let (_place, directory, victim) = scratch();
            let open = directory.join(with_suffix(name, OPEN));
            if hard {
                fs::hard_link(&victim, &open).expect("the same file system");
            } else {
                symlink(&victim, &open).expect("a link");
            }
            let footer = directory.join(with_suffix(&with_suffix(name, OPEN), FOOTER));
            fs::write(footer, forged()).expect("there is space");
            let outcome = recover(&directory);
            assert_untouched(&victim);
            if name == NAME {
                let error = outcome.expect_err("refused").to_string();
                let expected = ["symbolic link", "it has 2 names"][usize::from(hard)];
                assert!(error.contains(expected), "{error}");
            } else {
                assert_eq!(outcome.expect("not an agent's"), []);
            }
            record(&directory, 1).expect("the agent records nonetheless");
            assert_untouched(&victim);
            assert_eq!(files(&directory).expect("one").len(), 1);
        }
    }
}

#[test]
fn nothing_is_cut_to_a_footer_that_is_not_its_own() {
    let (_place, directory, victim) = scratch();
    let open = leave_open(&directory);
    let footer = with_suffix(&open.to_string_lossy(), FOOTER);
    let whole = (
        fs::read(&open).expect("readable"),
        fs::read(&footer).expect("readable"),
    );
    // A footer of a Parquet file that is no recording, and one of a longer recording.
    let foreign = {
        let column: arrow_array::ArrayRef = Arc::new(arrow_array::Int64Array::from(vec![1]));
        let batch = arrow_array::RecordBatch::try_from_iter([("price", column)]);
        let batch = batch.expect("one column");
        let mut bytes = Vec::new();
        let writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), None);
        let mut writer = writer.expect("a plain schema");
        writer.write(&batch).expect("memory");
        writer.close().expect("memory");
        let length = u32::from_le_bytes(*bytes[..bytes.len() - 4].last_chunk().expect("four"));
        let footer = &bytes[bytes.len() - 8 - length as usize..];
        [&20u64.to_le_bytes()[..], footer].concat()
    };
    let mut shorter = whole.1.clone();
    shorter[..8].copy_from_slice(&100u64.to_le_bytes());
    let mut damaged = whole.1.clone();
    let middle = damaged.len() / 2;
    damaged[middle..].fill(0xff);
    for (what, changed) in [
        ("forged", forged()),
        ("foreign", foreign),
        ("of a longer file", shorter),
        ("damaged", damaged),
        ("cut short", whole.1[..whole.1.len() - 3].to_vec()),
        ("empty", Vec::new()),
    ] {
        fs::write(&footer, changed).expect("there is space");
        let error = recover(&directory).expect_err(what).to_string();
        assert!(error.contains(NAME), "{error}");
        assert_eq!(fs::read(&open).expect("readable"), whole.0, "{what}");
    }
    // A file of this name that is no Parquet file, beside a sound footer.
    fs::write(&footer, &whole.1).expect("there is space");
    let text = PRECIOUS.repeat(10_000);
    fs::write(&open, &text).expect("there is space");
    assert!(recover(&directory).is_err());
    assert_eq!(fs::read_to_string(&open).expect("readable"), text);
    fs::write(&open, &whole.0).expect("there is space");
    assert_eq!(recover(&directory).expect("as it was left")[0].rows, 3);
    assert_untouched(&victim);
}

#[test]
fn links_in_the_places_of_new_files_are_not_followed() {
    let (_place, directory, victim) = scratch();
    // Where an agent of this process would probe, and write its first footer.
    symlink(&victim, directory.join(format!(".{}", std::process::id()))).expect("a link");
    let path = directory.join(NAME);
    let draft = directory.join(format!("{NAME}.open.footer.new"));
    symlink(&victim, &draft).expect("a link");
    let mut writer = FileWriter::create(&path, header()).expect("a new file");
    writer.write(&[row(0)]).expect("the draft is made anew");
    writer.finish().expect("there is space");
    record(&directory, 3).expect("no probe");
    assert_untouched(&victim);
    // The open file itself is never an existing one.
    let other = directory.join("1795000000-0000002a-000001.parquet");
    symlink(&victim, other.with_added_extension("open")).expect("a link");
    assert!(FileWriter::create(&other, header()).is_err());
    assert_untouched(&victim);
}

#[test]
fn a_fifo_does_not_stop_the_agent() {
    let (_place, directory, _) = scratch();
    let open = leave_open(&directory);
    let footer = open.with_added_extension(FOOTER);
    fs::remove_file(&footer).expect("it is there");
    mknodat(CWD, &footer, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    let (done, outcome) = mpsc::channel();
    let place = directory.clone();
    thread::spawn(move || done.send(recover(&place).map_err(|error| error.to_string())));
    let outcome = outcome.recv_timeout(Duration::from_secs(60));
    let error = outcome.expect("it does not wait").expect_err("no footer");
    assert!(error.contains("it is a FIFO"), "{error}");
    assert!(open.exists());
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let (_place, directory, _) = scratch();
    chmod(&directory, 0o777);
    let error = record(&directory, 1).expect_err("world-writable");
    assert!(
        error.contains("can be written by everybody") && error.contains("chmod go-w"),
        "{error}"
    );
    chmod(&directory, 0o1777);
    record(&directory, 1).expect("sticky, as /tmp is");
}

#[test]
fn root_records_as_the_directorys_owner() {
    if !geteuid().is_root() {
        return;
    }
    let (place, directory, victim) = scratch();
    let reachable = |path: &Path| chmod(path, 0o755);
    reachable(place.path());
    chown(&directory, Some(OTHER), Some(OTHER)).expect("root may");
    // What a killed agent of that user left, a file of root's that bears an agent's name, and one
    // that only root may write.
    let open = leave_open(&directory);
    for path in [&open, &open.with_added_extension(FOOTER)] {
        chown(path, Some(OTHER), Some(OTHER)).expect("root may");
    }
    let theirs = directory.join("1795000000-0000002a-000001.parquet.open");
    fs::write(&theirs, PRECIOUS).expect("there is space");
    record(&directory, 2).expect("their directory");
    assert_untouched(&theirs);
    assert_untouched(&victim);
    let complete = files(&directory).expect("two");
    assert_eq!(complete.len(), 2, "{complete:?}");
    for path in &complete {
        let metadata = fs::metadata(path).expect("it is there");
        assert_eq!((metadata.uid(), metadata.gid()), (OTHER, OTHER));
        assert!(read(path).is_ok());
    }
    assert!(geteuid().is_root(), "other threads remain root's");

    // A directory of theirs that leads to one of root's.
    let hop = directory.join("hop");
    symlink(place.path(), &hop).expect("a link");
    let error = record(&hop.join("recordings-of-root"), 1).expect_err("their link");
    assert!(
        error.contains(&format!("belongs to uid {OTHER}")),
        "{error}"
    );
    assert!(!place.path().join("recordings-of-root").exists());

    // A new directory inside theirs is theirs.
    let inner = directory.join("inner");
    record(&inner, 1).expect("a new directory");
    assert_eq!(fs::metadata(&inner).expect("it is there").uid(), OTHER);

    // A group that is not root's may write.
    chown(&directory, Some(0), Some(OTHER)).expect("root may");
    chmod(&directory, 0o2770);
    let error = record(&directory, 1).expect_err("their group's");
    assert!(error.contains("by the group 54321"), "{error}");
}

#[test]
fn readers_that_run_as_root_recover_as_the_owner_too() {
    if !geteuid().is_root() {
        return;
    }
    let (_place, directory, _) = scratch();
    let open = leave_open(&directory);
    for path in [&directory, &open, &open.with_added_extension(FOOTER)] {
        chown(path, Some(OTHER), Some(0)).expect("root may");
    }
    assert_eq!(recover(&directory).expect("theirs")[0].rows, 3);
    let metadata = fs::metadata(directory.join(NAME)).expect("complete");
    assert_eq!(metadata.uid(), OTHER);
    leave_open_again(&directory);
    let error = recover(&directory).expect_err("a file of root's");
    assert!(error.to_string().contains("Permission denied"), "{error}");
}

/// Leaves an open file of root's.
fn leave_open_again(directory: &Path) {
    fs::remove_file(directory.join(NAME)).expect("it is there");
    leave_open(directory);
}
