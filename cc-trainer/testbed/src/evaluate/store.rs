//! The directory of an evaluation: one file per run, the summary and a table.
//!
//! Every file is replaced durably ([`cc_core::durable`]), so that an interrupted evaluation leaves
//! complete files only, and a later one with the same settings continues from there.

use std::{
    fmt::{self, Write as _},
    fs, io,
    path::{Path, PathBuf},
};

use cc_core::durable::replace_durably;
use sha2::{Digest, Sha256};

use super::scheme::{Control, Scheme, ServedPolicy};
use crate::summary::{Platform, Run, RunFile, Summary, table};
use cc_sim::scenario::Scenario;

/// Subdirectory that holds one file per run.
const RUNS: &str = "runs";
/// Subdirectory that holds the agents' logs.
const LOGS: &str = "logs";
/// Separator between the parts of a key.
const SEPARATOR: &str = "; ";
/// Hexadecimal digits of a SHA-256 that keys contain.
const DIGITS: usize = 16;

/// The directory that holds the results of an evaluation.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
}

/// Errors of the directory of an evaluation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The directory holds a run that was made under other settings.
    #[error(
        "{} is of another evaluation: it was made with {found}, this one has {expected}; choose \
         another directory with --out, or --fresh to remove its runs",
        file.display()
    )]
    Another {
        /// File of the run with other settings.
        file: PathBuf,
        /// First part of its key that differs.
        found: String,
        /// The same part of the key that was expected.
        expected: String,
    },
    /// A file in the place of a run cannot be parsed.
    #[error(
        "{}: not a run of this version: {reason}; remove it, or choose another directory with \
         --out",
        file.display()
    )]
    Unreadable {
        /// Path of the file that cannot be parsed.
        file: PathBuf,
        /// Reason why it cannot be parsed.
        reason: String,
    },
    /// A file or directory cannot be read or written.
    #[error("{what} {}: {source}", path.display())]
    System {
        /// Operation that failed, in words.
        what: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

/// The key of a run of `schemes` on a scenario with digest `scenario`. A run on disk is kept when
/// its key is equal. It names everything that the result depends on but this program's version (the
/// simulator and the datapath) and, for runs on the kernel, the kernel's.
pub fn key<'a>(
    on: Platform,
    seconds: f64,
    seed: u64,
    scenario: &str,
    schemes: impl IntoIterator<Item = &'a Scheme>,
) -> String {
    // Keys of runs on the kernel do not name the platform.
    let (place, owner) = match on {
        Platform::Kernel => ("", "the kernel"),
        Platform::Sim => (" in the simulator", "the simulator"),
    };
    let mut parts = vec![
        format!("{seconds} s{place}"),
        format!("seed {seed}"),
        format!("scenario {scenario}"),
    ];
    parts.extend(schemes.into_iter().map(|scheme| match &scheme.control {
        Control::Named => format!("{} of {owner}", scheme.name),
        Control::Policy(
            policy @ ServedPolicy {
                serving, sha256, ..
            },
        ) => {
            let source = policy.source();
            let policy = sha256
                .as_ref()
                .map_or(source.as_str(), |sha| &sha[..DIGITS]);
            let serving = serving.map_or_else(String::new, |how| format!(" served {how}"));
            format!("{} as {policy}{serving}", scheme.name)
        }
    }));
    parts.join(SEPARATOR)
}

/// Identifies a scenario by its full content, in hexadecimal.
///
/// The digest covers the `Debug` output of the scenario: renaming a type or field of
/// [`cc_sim::scenario`] changes the keys of all runs, so that none of the existing ones is kept.
pub fn digest(scenario: &Scenario) -> String {
    /// Hashes text as it is formatted, because a trace may have half a million numbers.
    struct Hasher(Sha256);
    impl fmt::Write for Hasher {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text);
            Ok(())
        }
    }
    let mut hasher = Hasher(Sha256::new());
    // Neither the hasher nor the derived `Debug` fails.
    let _ = write!(hasher, "{scenario:?}");
    let digest = hasher.0.finalize();
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    digits[..DIGITS].to_owned()
}

impl Store {
    /// Opens a directory, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error when the directory or one of its subdirectories cannot be created.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let store = Self {
            dir: dir.to_owned(),
        };
        for part in [RUNS, LOGS] {
            let path = dir.join(part);
            fs::create_dir_all(&path).map_err(failed("making the directory", &path))?;
        }
        Ok(store)
    }

    /// Removes the runs that the directory holds.
    ///
    /// # Errors
    ///
    /// Returns an error when the directory cannot be read or a run cannot be removed.
    pub fn clear(&self) -> Result<(), StoreError> {
        let runs = self.dir.join(RUNS);
        let entries = fs::read_dir(&runs).map_err(failed("reading the directory", &runs))?;
        for entry in entries {
            let file = entry
                .map_err(failed("reading the directory", &runs))?
                .path();
            // Other files in the directory may belong to the user.
            if file
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                fs::remove_file(&file).map_err(failed("removing", &file))?;
            }
        }
        Ok(())
    }

    /// Reads the valid run with the scenario, scheme and number of `run`; `None` when the directory
    /// has none.
    ///
    /// # Errors
    ///
    /// Returns an error when the run on disk has another key or cannot be parsed.
    pub fn find(&self, run: &Run, key: &str) -> Result<Option<RunFile>, StoreError> {
        let file = self.place(run);
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("reading", &file)(error)),
        };
        let found: RunFile =
            serde_json::from_slice(&text).map_err(|error| StoreError::Unreadable {
                file: file.clone(),
                reason: error.to_string(),
            })?;
        if let Some((found, expected)) = difference(&found.key, key) {
            return Err(StoreError::Another {
                file,
                found,
                expected,
            });
        }
        Ok(found.run.is_valid().then_some(found))
    }

    /// Writes the file of a run.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be written.
    pub fn keep(&self, run: &RunFile) -> Result<(), StoreError> {
        write(&self.place(&run.run), run, serde_json::to_vec)
    }

    /// Writes the summary as `summary.json`.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be written.
    pub fn keep_summary(&self, summary: &Summary) -> Result<(), StoreError> {
        write(&self.summary_path(), summary, serde_json::to_vec_pretty)
    }

    /// Writes the table of means as `table.md`.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be written.
    pub fn keep_table(&self, summary: &Summary) -> Result<(), StoreError> {
        let file = self.dir.join("table.md");
        write(
            &file,
            summary,
            |summary| Ok(table::markdown(summary).into()),
        )
    }

    /// Path of `summary.json` in the directory.
    pub fn summary_path(&self) -> PathBuf {
        self.dir.join("summary.json")
    }

    /// Path of the subdirectory that holds the agents' logs.
    pub fn logs_dir(&self) -> PathBuf {
        self.dir.join(LOGS)
    }

    fn place(&self, run: &Run) -> PathBuf {
        self.dir.join(RUNS).join(run.file_name())
    }
}

/// The first parts in which two keys differ; `None` when they are equal.
fn difference(found: &str, expected: &str) -> Option<(String, String)> {
    if found == expected {
        return None;
    }
    let pairs = found.split(SEPARATOR).zip(expected.split(SEPARATOR));
    let pair = pairs
        .into_iter()
        .find(|(found, expected)| found != expected);
    let (found, expected) = pair.unwrap_or((found, expected));
    Some((found.to_owned(), expected.to_owned()))
}

fn write<T>(
    file: &Path,
    value: &T,
    format: impl FnOnce(&T) -> serde_json::Result<Vec<u8>>,
) -> Result<(), StoreError> {
    let text = format(value).map_err(|error| failed("writing", file)(error.into()))?;
    replace_durably(file, &text).map_err(|error| failed(error.step, &error.path)(error.source))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::System { what, path, source }
}

#[cfg(test)]
mod tests {
    use cc_core::policy::PolicySpec;

    use super::*;

    fn run_file(key: &str) -> RunFile {
        RunFile {
            key: key.into(),
            run: Run {
                scenario: "a".into(),
                scheme: "cubic".into(),
                throughput_mbps: 11.5,
                ..Run::default()
            },
            ..RunFile::default()
        }
    }

    fn scheme(name: &str, sha256: Option<&str>) -> Scheme {
        Scheme {
            name: name.into(),
            control: Control::Policy(ServedPolicy {
                spec: PolicySpec::Random,
                serving: None,
                sha256: sha256.map(str::to_owned),
                pacing_gain: None,
            }),
        }
    }

    #[test]
    fn valid_runs_under_the_same_key_are_found_again() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let store = Store::open(&dir.path().join("deep/down")).expect("it can be made");
        let mut kept = run_file("3 s; seed 1");
        assert_eq!(store.find(&kept.run, &kept.key).expect("none yet"), None);
        store.keep(&kept).expect("it can be written");
        let found = store.find(&kept.run, &kept.key).expect("it is readable");
        assert_eq!(found.as_ref(), Some(&kept));
        let other = Run {
            run: 1,
            ..kept.run.clone()
        };
        assert_eq!(store.find(&other, &kept.key).expect("none"), None);
        kept.run.validity.reasons.push("busy".into());
        store.keep(&kept).expect("it can be written");
        assert_eq!(store.find(&kept.run, &kept.key).expect("readable"), None);
    }

    #[test]
    fn clearing_removes_runs_and_no_other_files() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let store = Store::open(dir.path()).expect("it can be made");
        let kept = run_file("3 s");
        store.keep(&kept).expect("it can be written");
        let note = dir.path().join("runs/note.txt");
        fs::write(&note, "mine").expect("it is ours");
        store.clear().expect("it is ours");
        assert_eq!(store.find(&kept.run, &kept.key).expect("readable"), None);
        assert!(note.exists());
    }

    #[test]
    fn runs_under_another_key_are_refused_with_the_difference() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let store = Store::open(dir.path()).expect("it can be made");
        let kept = run_file("3 s; seed 1; scenario ab");
        store.keep(&kept).expect("it can be written");
        let error = store
            .find(&kept.run, "30 s; seed 1; scenario ab")
            .expect_err("another length");
        let text = error.to_string();
        assert!(text.contains("made with 3 s, this one has 30 s"), "{text}");
        assert!(text.contains("--out"), "{text}");
        fs::write(dir.path().join("runs/a.cubic.0.json"), "{").expect("it is ours");
        let error = store.find(&kept.run, &kept.key).expect_err("no run");
        assert!(error.to_string().contains("a.cubic.0.json"), "{error}");
    }

    #[test]
    fn a_key_names_the_policy_by_its_content() {
        let sha256 = "0123456789abcdef0123";
        let one = key(
            Platform::Kernel,
            30.0,
            1,
            "ab",
            [&scheme("rlcc", Some(sha256))],
        );
        assert_eq!(one, "30 s; seed 1; scenario ab; rlcc as 0123456789abcdef");
        let other = key(Platform::Kernel, 30.0, 1, "ab", [&scheme("random", None)]);
        assert_eq!(other, "30 s; seed 1; scenario ab; random as random");
        let simulated = key(Platform::Sim, 30.0, 1, "ab", [&scheme("random", None)]);
        assert_ne!(simulated, other);
        let mut paced = scheme("random", None);
        if let Control::Policy(policy) = &mut paced.control {
            policy.pacing_gain = Some(1.25);
        }
        let paced = key(Platform::Kernel, 30.0, 1, "ab", [&paced]);
        assert!(
            paced.ends_with("; random as random, paced by 1.25"),
            "{paced}"
        );
    }
}
