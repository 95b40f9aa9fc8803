//! An evaluation's directory: a file per run, the summary, the report.
//!
//! Every file is written beside its place and then moved there, so that whatever ends an evaluation leaves whole files
//! behind, and a later one with the same settings goes on from there.

use std::{
    fmt::{self, Write as _},
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::scheme::{Control, Scheme, ServedPolicy};
use crate::summary::{Platform, Run, RunFile, Summary, table};
use cc_sim::scenario::Scenario;

/// Where the runs are.
const RUNS: &str = "runs";
/// Where agents log.
const LOGS: &str = "logs";
/// Separates the parts of a key.
const SEPARATOR: &str = "; ";
/// Digits of a digest that a key shows.
const DIGITS: usize = 16;

/// An evaluation's directory.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
}

/// Why an evaluation's directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It holds runs under other settings.
    #[error(
        "{} is of another evaluation: it was made with {found}, this one has {expected}; choose another directory with \
         --out, or --fresh to remove its runs",
        file.display()
    )]
    Another {
        /// The run's file.
        file: PathBuf,
        /// Its setting.
        found: String,
        /// The one asked for.
        expected: String,
    },
    /// A run's file is not one.
    #[error("{}: not a run of this version: {reason}; remove it, or choose another directory with --out", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A system call failed.
    #[error("{what} {}: {source}", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Names all that shapes the runs of a scheme on a scenario: what is equal under equal keys may be kept.
pub fn key<'a>(
    on: Platform,
    seconds: f64,
    seed: u64,
    scenario: &str,
    schemes: impl IntoIterator<Item = &'a Scheme>,
) -> String {
    // The kernel is what goes without saying.
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
        Control::Policy(ServedPolicy {
            spec,
            serving,
            sha256,
        }) => {
            let spec = spec.to_string();
            let policy = sha256.as_ref().map_or(spec.as_str(), |sha| &sha[..DIGITS]);
            let serving = serving.map_or_else(String::new, |how| format!(" served {how}"));
            format!("{} as {policy}{serving}", scheme.name)
        }
    }));
    parts.join(SEPARATOR)
}

/// Names a scenario by all that it says.
pub fn digest(scenario: &Scenario) -> String {
    /// So that a trace of half a million numbers need not become one text.
    struct Hasher(Sha256);
    impl fmt::Write for Hasher {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text);
            Ok(())
        }
    }
    let mut hasher = Hasher(Sha256::new());
    // Neither the hasher nor the derived formatting fails.
    let _ = write!(hasher, "{scenario:?}");
    let digest = hasher.0.finalize();
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    digits[..DIGITS].to_owned()
}

impl Store {
    /// Opens a directory, and makes it where it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
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
    /// When one cannot be removed.
    pub fn clear(&self) -> Result<(), StoreError> {
        let runs = self.dir.join(RUNS);
        let entries = fs::read_dir(&runs).map_err(failed("reading the directory", &runs))?;
        for entry in entries {
            let file = entry
                .map_err(failed("reading the directory", &runs))?
                .path();
            // What else somebody may have put there is not ours to remove.
            if file
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                fs::remove_file(&file).map_err(failed("removing", &file))?;
            }
        }
        Ok(())
    }

    /// The valid run that the directory holds in the place of `run`, if there is one.
    ///
    /// # Errors
    /// When what is there was made under another key, or is no run.
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

    /// Keeps a run.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep(&self, run: &RunFile) -> Result<(), StoreError> {
        write(&self.place(&run.run), run, serde_json::to_vec)
    }

    /// Keeps the summary.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep_summary(&self, summary: &Summary) -> Result<(), StoreError> {
        write(&self.summary_path(), summary, serde_json::to_vec_pretty)
    }

    /// Keeps the table of means, as Markdown.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep_table(&self, summary: &Summary) -> Result<(), StoreError> {
        let file = self.dir.join("table.md");
        write(
            &file,
            summary,
            |summary| Ok(table::markdown(summary).into()),
        )
    }

    /// Where the summary is.
    pub fn summary_path(&self) -> PathBuf {
        self.dir.join("summary.json")
    }

    /// The directory for the agents' logs.
    pub fn logs_dir(&self) -> PathBuf {
        self.dir.join(LOGS)
    }

    fn place(&self, run: &Run) -> PathBuf {
        self.dir.join(RUNS).join(run.file_name())
    }
}

/// The first parts in which two keys differ.
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
    let draft = file.with_added_extension("part");
    fs::write(&draft, text).map_err(failed("writing", &draft))?;
    fs::rename(&draft, file).map_err(failed("writing", file))
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
    fn clearing_takes_runs_and_nothing_else() {
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
    }
}
