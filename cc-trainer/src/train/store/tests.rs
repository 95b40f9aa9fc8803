//! Stores that work, and ones that are slow, full or forbidden.

use std::{
    sync::mpsc::{self, Receiver, Sender},
    time::Duration,
};

use super::*;
use crate::train::{
    self, TrainError, Training,
    record::{Finish, Record},
    tests::{saved, small},
};

/// How long a test waits for another thread before it fails.
const DEADLINE: Duration = Duration::from_secs(60);

fn train(training: &Training) -> Result<(Record, Vec<String>), TrainError> {
    let mut warnings = Vec::new();
    let record = train::train(training, &false.into(), &mut |event| {
        if let train::TrainEvent::Warning(warning) = event {
            warnings.push(warning.to_owned());
        }
    })?;
    Ok((record, warnings))
}

fn with_store(dir: &Path, steps: u64, store: &Path) -> Training {
    Training {
        store: Some(store.display().to_string()),
        ..small(dir, steps)
    }
}

#[test]
fn a_run_is_continued_on_a_machine_that_has_nothing_of_it() {
    let [first, second, store] = [(); 3].map(|()| tempfile::tempdir().expect("scratch"));
    train(&with_store(first.path(), 1000, store.path())).expect("a good run");
    let copied = saved(store.path());
    assert_eq!(copied.parameters, saved(first.path()).parameters);
    let (record, _) = train(&with_store(second.path(), 2000, store.path())).expect("a good run");
    assert_eq!((record.last.steps, record.parts.len()), (2000, 2));
    // The one that has learnt more is continued, wherever it is.
    let (record, _) = train(&with_store(first.path(), 3000, store.path())).expect("a good run");
    assert_eq!((record.last.steps, record.parts.len()), (3000, 3));
    let (record, _) = train(&small(second.path(), 2400)).expect("a good run");
    assert_eq!(record.finish, Finish::Steps);
    let (record, _) = train(&with_store(first.path(), 3200, store.path())).expect("a good run");
    assert_eq!((record.last.steps, record.parts.len()), (3200, 4));
    assert_eq!(
        saved(store.path()).parameters,
        saved(first.path()).parameters
    );
}

#[test]
fn a_store_that_cannot_be_used_is_told_before_anything_is_learnt() {
    let [dir, store] = [(); 2].map(|()| tempfile::tempdir().expect("scratch"));
    let missing = store.path().join("missing");
    let error = train(&with_store(dir.path(), 1000, &missing)).expect_err("no store");
    assert!(
        error.to_string().contains("expected a directory or a URL"),
        "{error}"
    );
    fs::write(store.path().join(CHECKPOINT), "something else").expect("a file");
    let error = train(&with_store(dir.path(), 1000, store.path())).expect_err("no checkpoint");
    assert!(error.to_string().contains("not a checkpoint"), "{error}");
    assert!(!dir.path().join(CHECKPOINT).exists());
    // A directory in the place of an object cannot be written to, also by root.
    fs::remove_file(store.path().join(CHECKPOINT)).expect("a file");
    fs::create_dir(store.path().join("train.json")).expect("a directory");
    let error = train(&with_store(dir.path(), 1000, store.path())).expect_err("not written");
    assert!(
        error.to_string().contains("is whole: once the store"),
        "{error}"
    );
    assert_eq!(saved(dir.path()).header.statistics.steps, 0);
}

#[test]
fn a_store_that_fails_costs_the_run_nothing_and_is_told_once() {
    let dir = tempfile::tempdir().expect("scratch");
    fs::write(dir.path().join(CHECKPOINT), "a checkpoint").expect("a file");
    let (answer, answers): (Sender<Result<(), String>>, Receiver<_>) = mpsc::channel();
    let (put, puts) = mpsc::channel();
    let copier = Copier::start("a test".to_owned(), dir.path(), move |name, bytes| {
        put.send((name.to_owned(), bytes))
            .expect("the test goes on");
        answers.recv().expect("the test goes on")
    })
    .expect("a thread");
    let was_put = || puts.recv_timeout(DEADLINE).expect("it is copied");
    let full = || Err("the disk is full".to_owned());
    assert_eq!(copier.news(), None);
    copier.copy();
    assert_eq!(was_put(), (CHECKPOINT.to_owned(), b"a checkpoint".to_vec()));
    // While it is slow, newer checkpoints replace each other.
    for number in 0..9 {
        fs::write(dir.path().join(CHECKPOINT), [number]).expect("a file");
        copier.copy();
    }
    answer.send(full()).expect("the thread goes on");
    assert_eq!(was_put().1, [8]);
    let news = copier.news().expect("the first copy has failed");
    assert!(news.contains("the disk is full"), "{news}");
    answer.send(full()).expect("the thread goes on");
    copier.copy();
    was_put();
    assert_eq!(copier.news(), None, "it is told once");
    answer.send(Ok(())).expect("the thread goes on");
    answer.send(full()).expect("the thread goes on");
    let error = copier.copy_now().expect_err("it fails again");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    was_put();
    assert!(copier.news().is_some(), "a new series of failures");
    answer.send(Ok(())).expect("the thread goes on");
    copier.copy();
    copier.finish().expect("the last copy was made");
}
