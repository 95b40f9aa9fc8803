//! The runs of a league on disk: one JSON record a line, appended as runs end.
//!
//! A league has thousands of short runs, too many for a file each. A run is found again by its
//! [key](crate::evaluate::key), which names everything that its result depends on, so a league that
//! was interrupted continues, and one with another scheme more plays that scheme only.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{evaluate::ATTEMPTS, summary::Run};

/// Name of the file in the directory of a league.
const RUNS: &str = "runs.jsonl";
/// Subdirectory for the logs of agents.
const LOGS: &str = "logs";

/// A run with its key, one line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    key: String,
    run: Run,
}

/// Which of the runs that a directory holds count in a league, and with it which are repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counted {
    /// Only valid ones; those that the host disturbed are repeated.
    #[default]
    Valid,
    /// Those that the host disturbed, too, where there is no valid one. Nothing is repeated.
    Disturbed,
}

/// The file of a league's runs.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    logs: PathBuf,
    file: File,
    counted: Counted,
    /// The runs that count, by key and number.
    runs: HashMap<(String, u32), Run>,
}

/// The runs of a league could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}", path.display())]
pub struct StoreError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl Store {
    /// Opens the file of a directory, which is created if it does not exist, and reads its runs.
    /// With `fresh` they are removed instead.
    ///
    /// A line that cannot be parsed is a run that was being written when the league ended, or that
    /// another version wrote; it is ignored.
    pub(crate) fn open(dir: &Path, fresh: bool, counted: Counted) -> Result<Self, StoreError> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError { what, path, source }
        };
        let logs = dir.join(LOGS);
        std::fs::create_dir_all(&logs).map_err(failed("making the directory", &logs))?;
        let path = dir.join(RUNS);
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        let mut file = options.open(&path).map_err(failed("opening", &path))?;
        if fresh {
            file.set_len(0).map_err(failed("emptying", &path))?;
        }
        let text = std::fs::read(&path).map_err(failed("reading", &path))?;
        if text.last().is_some_and(|&byte| byte != b'\n') {
            // The next record begins on a line of its own.
            file.write_all(b"\n").map_err(failed("writing", &path))?;
        }
        let mut store = Self {
            path,
            logs,
            file,
            counted,
            runs: HashMap::new(),
        };
        for line in text.split(|&byte| byte == b'\n') {
            if let Ok(record) = serde_json::from_slice(line) {
                store.count(record);
            }
        }
        Ok(store)
    }

    /// Takes a run that counts among [`Self::runs`]; a disturbed one never replaces a valid one.
    fn count(&mut self, Record { key, run }: Record) {
        let place = self.runs.entry((key, run.run));
        match (run.is_valid(), self.counted) {
            (true, _) => drop(place.insert_entry(run)),
            (false, Counted::Disturbed) => drop(place.or_insert(run)),
            (false, Counted::Valid) => {}
        }
    }

    /// Path of the subdirectory for the logs of agents.
    pub(crate) fn logs(&self) -> &Path {
        &self.logs
    }

    /// Number of times that a disturbed run is tried at most.
    pub(crate) fn attempts(&self) -> u32 {
        match self.counted {
            Counted::Valid => ATTEMPTS,
            Counted::Disturbed => 1,
        }
    }

    /// The run that counts with this key and number, if there is one.
    pub(crate) fn find(&self, key: &str, run: u32) -> Option<&Run> {
        self.runs.get(&(key.to_owned(), run))
    }

    /// Appends a run to the file.
    pub(crate) fn keep(&mut self, key: &str, run: &Run) -> Result<(), StoreError> {
        let record = Record {
            key: key.to_owned(),
            run: run.clone(),
        };
        let path = self.path.clone();
        let failed = |source| StoreError {
            what: "writing",
            path: path.clone(),
            source,
        };
        let mut line = serde_json::to_vec(&record).map_err(|error| failed(error.into()))?;
        // What is read may differ from what was written in the last digit. The standings must not
        // depend on which runs were made just now.
        self.count(serde_json::from_slice(&line).map_err(|error| failed(error.into()))?);
        line.push(b'\n');
        self.file.write_all(&line).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run(number: u32) -> Run {
        Run {
            scenario: "a".into(),
            scheme: "cubic".into(),
            run: number,
            throughput_mbps: 11.5,
            ..Run::default()
        }
    }

    #[test]
    fn runs_are_found_again_by_key_and_number() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let dir = dir.path().join("deep/down");
        let mut store = Store::open(&dir, false, Counted::Valid).expect("it can be made");
        store.keep("k", &run(0)).expect("it can be written");
        store.keep("k", &run(1)).expect("it can be written");
        let mut disturbed = run(2);
        disturbed.validity.reasons.push("busy".into());
        store.keep("k", &disturbed).expect("it can be written");
        drop(store);
        let store = Store::open(&dir, false, Counted::Valid).expect("it is there");
        assert_eq!(store.find("k", 1), Some(&run(1)));
        assert_eq!(store.find("k", 2), None, "it is not valid");
        assert_eq!(store.attempts(), ATTEMPTS);
        assert_eq!(store.find("other", 1), None);
        let store = Store::open(&dir, true, Counted::Valid).expect("it is there");
        assert_eq!(store.find("k", 1), None);
    }

    #[test]
    fn a_line_that_was_cut_off_is_ignored_and_what_follows_is_not() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut store = Store::open(dir.path(), false, Counted::Valid).expect("it can be made");
        store.keep("k", &run(0)).expect("it can be written");
        drop(store);
        let path = dir.path().join(RUNS);
        let mut text = fs::read(&path).expect("just written");
        text.extend_from_slice(b"{\"key\": \"k\", \"run\": {\"scen");
        fs::write(&path, text).expect("it is ours");
        let mut store = Store::open(dir.path(), false, Counted::Valid).expect("it is readable");
        assert_eq!(store.find("k", 0), Some(&run(0)));
        store.keep("k", &run(1)).expect("it can be written");
        drop(store);
        let store = Store::open(dir.path(), false, Counted::Valid).expect("it is readable");
        assert!(store.find("k", 0).is_some() && store.find("k", 1).is_some());
    }

    #[test]
    fn disturbed_runs_count_where_they_are_asked_for_and_no_valid_one_is_there() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut disturbed = [run(0), run(1)];
        for run in &mut disturbed {
            run.validity.reasons.push("busy".into());
        }
        let mut store = Store::open(dir.path(), false, Counted::Valid).expect("it can be made");
        store.keep("k", &run(0)).expect("it can be written");
        for run in &disturbed {
            store.keep("k", run).expect("it can be written");
        }
        drop(store);
        let store = Store::open(dir.path(), false, Counted::Disturbed).expect("it is there");
        assert_eq!(store.attempts(), 1, "nothing is repeated");
        assert_eq!(store.find("k", 0), Some(&run(0)));
        assert_eq!(store.find("k", 1), Some(&disturbed[1]));
    }
}
