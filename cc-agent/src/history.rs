//! What has happened to an agent and its policies: the last of it, kept beyond its end.
//!
//! Where systemd names a directory in `STATE_DIRECTORY`, the history is the file `NAME.history` in
//! there, written by a thread of its own, so that a slow disk delays nothing. Elsewhere it begins
//! with the agent.

use std::{
    collections::VecDeque,
    fmt::Display,
    mem,
    path::PathBuf,
    sync::mpsc::{Sender, channel},
    thread::{self, JoinHandle},
};

use cc_core::status::Incident;
use tracing::warn;
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime, SystemTime},
};

use crate::state_file;

/// Incidents that are kept; the oldest go first.
const MOST: usize = 64;
/// Length of an incident's text, at most, in characters: all of them fit into a state file.
const LONGEST: usize = 400;
/// How the last incident of an agent begins that has ended as it was asked to.
const ENDED: &str = "the agent ended";
/// How the last incident of an agent begins whose successor has taken over.
const SUCCEEDED: &str = "the agent hands over to";

/// The last incidents, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    incidents: VecDeque<Incident>,
    file: Option<File>,
}

/// The file that the history is kept in, and the thread that writes it.
#[derive(Debug)]
struct File {
    histories: Sender<Vec<Incident>>,
    thread: JoinHandle<()>,
}

impl History {
    /// The history of the agents that serve `name`, with what former ones have left.
    pub(crate) fn of(name: &str) -> Self {
        match state_file::directory() {
            Some(directory) => Self::in_file(directory.join(name).with_added_extension("history")),
            None => Self::default(),
        }
    }

    fn in_file(path: PathBuf) -> Self {
        let incidents = match state_file::read::<VecDeque<Incident>>(&path) {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => {
                warn!("{} is not used: {error}", path.display());
                VecDeque::new()
            }
        };
        let (histories, received) = channel::<Vec<Incident>>();
        let writer = move || {
            let mut is_written = true;
            while let Ok(mut latest) = received.recv() {
                // Those that came meanwhile contain it.
                latest = received.try_iter().last().unwrap_or(latest);
                let written = state_file::write(&path, &latest);
                if let (true, Err(error)) = (is_written, &written) {
                    warn!(
                        "the history is not kept: writing {}: {error}",
                        path.display()
                    );
                }
                is_written = written.is_ok();
            }
        };
        let file = match thread::Builder::new().name("history".into()).spawn(writer) {
            Ok(thread) => Some(File { histories, thread }),
            Err(error) => {
                warn!("the history is not kept: {error}");
                None
            }
        };
        Self { incidents, file }
    }

    /// Adds the start of an agent, and before it what has become of the former one, if that was not
    /// asked to end.
    pub(crate) fn begin(&mut self, text: &str) {
        let former = self.incidents.back();
        let is_orderly = |text: &str| [ENDED, SUCCEEDED].iter().any(|end| text.starts_with(end));
        if former.is_some_and(|last| !is_orderly(&last.text)) {
            self.add(true, "the former agent was killed, or failed");
        }
        self.add(false, text);
    }

    /// Adds the end of this agent, and waits until all is written.
    pub(crate) fn end(&mut self) {
        self.add(false, ENDED);
        if let Some(File { histories, thread }) = self.file.take() {
            drop(histories);
            // It logs what fails, and does not panic.
            let _ = thread.join();
        }
    }

    /// Adds that another process is about to succeed this agent. Nothing is added after it, unless
    /// this agent goes on: the file is the successor's.
    pub(crate) fn hand_over(&mut self, to: &impl Display) {
        self.add(false, &format!("{SUCCEEDED} {to}"));
    }

    /// Adds an incident that happens now.
    pub(crate) fn add(&mut self, trouble: bool, text: &str) {
        let text = text.replace('\n', " ");
        self.incidents.push_back(Incident {
            at: now_utc(),
            trouble,
            text: text.chars().take(LONGEST).collect(),
        });
        let surplus = self.incidents.len().saturating_sub(MOST);
        self.incidents.drain(..surplus);
        if let Some(file) = &self.file {
            // The thread has ended only when it panicked.
            let _ = file.histories.send(self.incidents());
        }
    }

    /// All incidents that are kept, the oldest first.
    pub(crate) fn incidents(&self) -> Vec<Incident> {
        self.incidents.iter().cloned().collect()
    }
}

/// The time in UTC, as lines of the log have it.
pub(crate) fn now_utc() -> String {
    let mut now = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut now));
    now
}

impl Drop for History {
    fn drop(&mut self) {
        // Without a last incident: this is an agent that fails.
        if let Some(File { histories, thread }) = mem::take(&mut self.file) {
            drop(histories);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn texts(history: &History) -> Vec<String> {
        let incidents = history.incidents().into_iter();
        incidents.map(|incident| incident.text).collect()
    }

    #[test]
    fn a_history_goes_on_after_a_restart() {
        let directory = TempDir::new().expect("a directory for the test");
        let path = directory.path().join("rlcc.history");
        let mut first = History::in_file(path.clone());
        first.begin("registered");
        first.add(true, "policy has\nfailed");
        first.end();
        let mut second = History::in_file(path.clone());
        second.begin("registered again");
        let expected = ["registered", "policy has failed", ENDED, "registered again"];
        assert_eq!(texts(&second), expected);
        assert!(second.incidents()[0].at.starts_with("20"), "a date");
        // It does not end as it should.
        drop(second);
        let mut third = History::in_file(path);
        third.begin("and again");
        let last = texts(&third).split_off(4);
        assert_eq!(
            last,
            ["the former agent was killed, or failed", "and again"]
        );
        assert!(third.incidents()[4].trouble);
    }

    #[test]
    fn the_longest_history_can_be_read_again() {
        let directory = TempDir::new().expect("a directory for the test");
        let path = directory.path().join("rlcc.history");
        let mut history = History::in_file(path.clone());
        for number in 0..200 {
            history.add(true, &format!("{number} {}", "x".repeat(5_000)));
        }
        history.end();
        let kept = texts(&History::in_file(path));
        assert_eq!(kept.len(), MOST);
        assert!(kept[0].starts_with("137 x"), "{}", kept[0]);
    }

    #[test]
    fn a_history_that_is_none_is_replaced() {
        let directory = TempDir::new().expect("a directory for the test");
        let path = directory.path().join("rlcc.history");
        fs::write(&path, "{").expect("writes");
        let mut history = History::in_file(path.clone());
        history.begin("registered");
        history.end();
        assert_eq!(texts(&History::in_file(path)), ["registered", ENDED]);
    }
}
