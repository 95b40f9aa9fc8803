use std::{fs, path::Path};

use tempfile::TempDir;

use super::*;
use crate::{files, read, samples};

fn header(policy: &str) -> Arc<FileHeader> {
    Arc::new(samples::header(policy))
}

fn limits(directory: &TempDir) -> Limits {
    Limits {
        directory: directory.path().into(),
        file_bytes: 1 << 20,
        file_age: Duration::from_secs(3_600),
        group_age: Duration::from_secs(3_600),
        total_bytes: 1 << 30,
    }
}

/// Rows 0, 1, 2 … of flow 7.
fn rows(header: &Arc<FileHeader>, count: u32) -> Vec<Recorded> {
    let mut row = samples::one_row();
    row.flow = 7;
    let row = |sequence| {
        Box::new(Row {
            sequence,
            ..row.clone()
        })
    };
    let recorded = |row| Recorded {
        header: header.clone(),
        row,
    };
    (0..count).map(row).map(recorded).collect()
}

fn sequences(path: &Path) -> Vec<u32> {
    let (_, rows) = read(path).expect("a recording");
    rows.map(|row| row.expect("sound").sequence).collect()
}

fn start(limits: Limits) -> Recorder {
    Recorder::start(limits, "absent", || {}).expect("a directory")
}

#[test]
fn dropping_the_recorder_completes_one_file_per_header() {
    let directory = TempDir::new().expect("a scratch directory");
    let mut recorder = start(limits(&directory));
    let (one, other) = (header("one"), header("other"));
    // In another order than they are to be found in.
    let mut mixed = rows(&one, 30);
    mixed.extend(rows(&other, 20));
    mixed.reverse();
    recorder.write(mixed);
    drop(recorder);
    let files = files(directory.path()).expect("two files");
    let found: Vec<_> = files.iter().map(|path| sequences(path)).collect();
    let expected = [(0..20).collect::<Vec<_>>(), (0..30).collect()];
    assert_eq!(found, expected);
    assert_eq!(
        fs::read_dir(directory.path()).expect("it exists").count(),
        2
    );
}

#[test]
fn files_are_completed_at_their_size_and_the_oldest_go() {
    let directory = TempDir::new().expect("a scratch directory");
    let header = header("one");
    let small = Limits {
        // Every group fills a file, and three files are too many.
        file_bytes: 1,
        group_age: Duration::ZERO,
        total_bytes: 100_000,
        ..limits(&directory)
    };
    let stranger = directory.path().join("0000000000-notes.parquet");
    fs::write(&stranger, vec![0; 1 << 18]).expect("there is space");
    let mut recorder = start(small);
    for row in rows(&header, 12) {
        let before = recorder.status().rows;
        recorder.write(vec![row]);
        while recorder.status().rows == before {
            thread::sleep(Duration::from_millis(1));
        }
    }
    drop(recorder);
    assert!(stranger.exists(), "not its own");
    fs::remove_file(stranger).expect("it is there");
    let files = files(directory.path()).expect("some are left");
    let bytes: u64 = files
        .iter()
        .map(|f| fs::metadata(f).expect("it is there").len())
        .sum();
    assert!(bytes <= 100_000, "{bytes}");
    assert!(files.len() < 12, "{files:?}");
    let left: Vec<_> = files.iter().flat_map(|path| sequences(path)).collect();
    let newest: Vec<_> = (12 - left.len() as u32..12).collect();
    assert_eq!(left, newest);
}

#[test]
fn open_files_of_another_run_are_completed_at_the_start() {
    let directory = TempDir::new().expect("a scratch directory");
    let path = directory.path().join("0000000001-0000002a-000000.parquet");
    let header = header("one");
    let mut writer = FileWriter::create(&path, (*header).clone()).expect("a new file");
    let rows: Vec<_> = rows(&header, 5)
        .into_iter()
        .map(|recorded| recorded.row)
        .collect();
    writer.write(&rows).expect("there is space");
    drop(writer);
    let recorder = start(limits(&directory));
    assert_eq!(recorder.status().files, 1);
    assert_eq!(sequences(&path), [0, 1, 2, 3, 4]);
}

#[test]
fn a_directory_that_cannot_be_created_is_refused() {
    let limits = Limits {
        directory: "/proc/no/such/place".into(),
        ..limits(&TempDir::new().expect("a scratch directory"))
    };
    let error = Recorder::start(limits, "absent", || {})
        .err()
        .expect("refused");
    assert!(error.to_string().contains("/proc/no/such/place"), "{error}");
}

#[test]
fn rows_that_do_not_fit_are_counted_at_once() {
    let directory = TempDir::new().expect("a scratch directory");
    let (go, wait) = channel::<()>();
    // A thread that has not begun is a disk that never answers.
    let mut recorder = Recorder::start(limits(&directory), "absent", move || {
        let _ = wait.recv();
    })
    .expect("a directory");
    let header = header("one");
    let batch = rows(&header, 1_000);
    for _ in 0..BACKLOG / 1_000 + 5 {
        recorder.write(batch.clone());
    }
    let lost = recorder.status().rows_lost_behind;
    assert_eq!(lost, 5_000);
    drop(go);
    drop(recorder);
    let found: usize = files(directory.path())
        .expect("files")
        .iter()
        .map(|path| sequences(path).len())
        .sum();
    assert_eq!(found as u64, BACKLOG / 1_000 * 1_000);
}
#[test]
fn names_continue_after_the_newest_when_the_clock_is_behind() {
    let directory = TempDir::new().expect("a scratch directory");
    // An agent whose clock was far ahead, and which recorded more than a million files.
    let ahead = OwnName {
        start: 9_999_999_999,
        run: 1,
        number: 1_000_000,
    };
    let oldest = OwnName { number: 7, ..ahead };
    for name in [oldest, ahead] {
        fs::write(directory.path().join(name.complete()), [0; 60_000]).expect("there is space");
    }
    let small = Limits {
        total_bytes: 100_000,
        ..limits(&directory)
    };
    let header = header("one");
    let mut recorder = start(small);
    recorder.write(rows(&header, 5));
    drop(recorder);
    let left: Vec<_> = files(directory.path())
        .expect("two")
        .iter()
        .map(|path| path.file_name().expect("a name").to_owned())
        .collect();
    let new = OwnName {
        start: 10_000_000_000,
        run: std::process::id(),
        number: 0,
    };
    let left: Vec<_> = left.iter().map(|name| name.to_string_lossy()).collect();
    assert_eq!(left, [ahead.complete(), new.complete()]);
    let now = UNIX_EPOCH + Duration::from_secs(50);
    assert_eq!(start_after(None, now), 50);
    assert_eq!(start_after(Some(49), now), 50);
    assert_eq!(start_after(Some(50), now), 51);
    assert_eq!(start_after(Some(OwnName::LATEST), now), OwnName::LATEST);
}

#[test]
fn a_panic_of_the_thread_is_reported_as_one() {
    let directory = TempDir::new().expect("a scratch directory");
    let mut recorder = Recorder::start(limits(&directory), "absent", || panic!("on purpose"))
        .expect("a directory");
    let header = header("one");
    let deadline = Instant::now() + Duration::from_secs(60);
    while recorder.status().trouble.is_none() && Instant::now() < deadline {
        recorder.write(rows(&header, 1));
        thread::sleep(Duration::from_millis(1));
    }
    recorder.write(rows(&header, 3));
    let status = recorder.status();
    let trouble = status.trouble.as_deref();
    assert!(trouble.is_some_and(|text| text.contains("panicked")));
    assert!(status.rows_lost_unwritten >= 4, "{status:?}");
    assert_eq!(status.rows_lost_behind, 0);
}
