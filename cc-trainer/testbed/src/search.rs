//! An adversarial search: over links and neighbours, for those where a policy loses most to the
//! best of some congestion controls in the simulator.
//!
//! [`search`] looks in [families](Family) of links, runs the worst again with seeds that it did not
//! use before, and returns a [`Report`] with the links. [`check`] runs them on another platform,
//! which tells what is the policy's weakness and what the simulator's. docs/search.md describes
//! both.

mod archive;
mod check;
mod field;
mod report;
pub mod table;
#[cfg(test)]
mod tests;

pub use check::{Check, CheckError, Checked, Judged, Verdict, check};
pub use report::{Figures, Found, Report, SearchSettings};

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Duration,
};

use cc_core::policy::PolicySpec;
use cc_sim::scenario::{self, Scenario, TraceInLine, content, families::Family};

use crate::{
    evaluate::{EvaluateError, Evaluation, Jobs, Scheme},
    league::{Counted, Store, StoreError},
    summary::{Host, Platform, utc_now},
};
use archive::Elite;
use field::{Confirmed, Explored, Field, LOST};

/// What to search, where, and how long.
#[derive(Clone, Debug)]
pub struct Search {
    /// The scheme whose weaknesses are searched.
    pub policy: Scheme,
    /// Congestion controls that it is compared with, at least one.
    pub against: Vec<Scheme>,
    /// Families of links to search, at least one.
    pub families: Vec<Family>,
    /// Number of links to try.
    pub links: usize,
    /// Time after which no further links are tried; `None` is no limit.
    pub time: Option<Duration>,
    /// Number of links to return.
    pub worst: usize,
    /// Number of runs that confirm a link, with seeds that the search did not use.
    pub runs: u32,
    /// Seed of the search, and of the random loss and jitter of the links.
    pub seed: u64,
    /// Length of each run; `None` is each link's own.
    pub seconds: Option<Duration>,
    /// Number of runs at the same time. It does not change the result.
    pub jobs: Jobs,
    /// Directory for the runs, of which those that it already holds are kept.
    pub dir: PathBuf,
    /// Whether to remove the runs that `dir` holds instead of keeping them.
    pub fresh: bool,
    /// Command line of this search, which the report states.
    pub command: String,
}

/// Progress of a search, passed to its callback.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A generation of links was tried.
    Tried {
        /// Number of links tried so far.
        links: usize,
        /// Kind of the link that loses most, and how many times better the best control is there.
        worst: Option<(&'a str, f64)>,
    },
    /// The worst links are run with other seeds.
    Again {
        /// Number of links that are run.
        links: usize,
    },
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was found, the content of `search.json`.
    pub report: Report,
    /// The links that were found, those that lose most first: the content of `worst.toml`.
    pub scenarios: Vec<Scenario>,
}

/// Errors that end a search.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// There is nobody to lose to.
    #[error("there is no control to lose to; name at least one, as in --against cubic,bbr")]
    NoControls,
    /// A control is the policy itself.
    #[error("`{name}` is the policy that is searched; remove it from --against")]
    Itself {
        /// Name that both schemes have.
        name: String,
    },
    /// There is nowhere to search.
    #[error("there is no family of links to search; name at least one, as in --families broad")]
    NoFamilies,
    /// No link was tried to the end.
    #[error("no link was tried; give the search more time or more links")]
    NothingTried,
    /// The policy loses on no link.
    #[error(
        "on none of {tried} links does it lose more than a tenth with other seeds too; try more \
         with --links, other families or other controls"
    )]
    Unbeaten {
        /// Number of links that were tried.
        tried: usize,
    },
    /// A scheme or scenario cannot be used, or a run failed.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// The directory cannot be used.
    #[error("{0}; choose another directory with --out")]
    Store(#[from] StoreError),
}

/// Searches. Runs that the directory already holds under the same settings are kept, so that a
/// search that was ended early continues with the same settings.
///
/// When `cancel` becomes true, the links found so far are returned as they are; when the time is
/// over, they are first run again.
///
/// # Errors
///
/// Returns an error when there is no control or no family, when a scheme cannot be used, when the
/// policy loses nowhere, when a run fails, or when the directory cannot be written.
pub fn search(
    search: &Search,
    cancel: &AtomicBool,
    mut on_progress: impl FnMut(Progress<'_>),
) -> Result<Outcome, SearchError> {
    search.check()?;
    let mut field = Field {
        search,
        store: Store::open(&search.dir, search.fresh, Counted::Valid)?,
        cancel,
    };
    let explored = field.explore(&mut on_progress)?;
    let Explored { archive, tried, .. } = &explored;
    if tried.is_empty() {
        return Err(SearchError::NothingTried);
    }
    let losing = |elite: &&&Elite| elite.loss.exp() > LOST;
    let ranked = archive.ranked();
    let ranked: Vec<&Elite> = ranked.iter().filter(losing).copied().collect();
    let confirmed = field.confirm(&ranked, tried, &mut on_progress)?;
    let is_complete = confirmed.is_some();
    let Confirmed { links, vanished } = confirmed.unwrap_or_else(|| {
        let links = ranked.iter().take(search.worst);
        Confirmed {
            links: links.map(|elite| field.found(elite, tried, None)).collect(),
            vanished: 0,
        }
    });
    if links.is_empty() {
        return Err(SearchError::Unbeaten {
            tried: explored.done,
        });
    }
    let (worst, scenarios): (Vec<Found>, Vec<Scenario>) = links.into_iter().unzip();
    let report = Report {
        settings: search.settings(),
        host: Host::probe(),
        tried: explored.done,
        cells: archive.cells(),
        filled: archive.filled(),
        of_sets: explored.of_sets,
        vanished,
        is_complete,
        sha256: content::set(&scenarios),
        worst,
    };
    Ok(Outcome { report, scenarios })
}

impl Search {
    fn check(&self) -> Result<(), SearchError> {
        if self.against.is_empty() {
            return Err(SearchError::NoControls);
        }
        if self.families.is_empty() {
            return Err(SearchError::NoFamilies);
        }
        let itself = |control: &&Scheme| control.name == self.policy.name;
        match self.against.iter().find(itself) {
            Some(Scheme { name, .. }) => Err(SearchError::Itself { name: name.clone() }),
            None => Ok(()),
        }
    }

    /// The policy and the controls.
    fn schemes(&self) -> impl Iterator<Item = &Scheme> {
        std::iter::once(&self.policy).chain(&self.against)
    }

    fn evaluation(&self, scenarios: Vec<Scenario>) -> Evaluation {
        Evaluation {
            on: Platform::Sim,
            schemes: self.schemes().cloned().collect(),
            scenarios,
            policy: policy_of(&self.policy),
            serving: self.policy.policy().and_then(|policy| policy.serving),
            seconds: self.seconds,
            runs: 1,
            seed: self.seed,
            jobs: self.jobs,
            dir: self.dir.clone(),
            fresh: false,
            agent: None,
            record: None,
            command: self.command.clone(),
        }
    }

    fn settings(&self) -> SearchSettings {
        let policy = self.policy.policy();
        SearchSettings {
            command: self.command.clone(),
            date: utc_now(),
            scheme: self.policy.name.clone(),
            policy: policy_of(&self.policy).to_string(),
            sha256: policy.and_then(|policy| policy.sha256.clone()),
            serving: policy.and_then(|policy| policy.serving),
            against: self
                .against
                .iter()
                .map(|control| control.name.clone())
                .collect(),
            families: self.families.clone(),
            links: self.links,
            seed: self.seed,
            runs: self.runs,
            seconds: self.seconds.map(|seconds| seconds.as_secs_f64()),
        }
    }
}

/// The policy of a scheme; that of a congestion control by name is never used.
fn policy_of(scheme: &Scheme) -> PolicySpec {
    let policy = scheme.policy();
    policy.map_or(PolicySpec::Default, |policy| policy.spec.clone())
}

/// Path of the file of the links that were found in the directory of a search.
pub fn links_path(dir: &Path) -> PathBuf {
    dir.join("worst.toml")
}

/// Path of the file of the report in the directory of a search.
pub fn report_path(dir: &Path) -> PathBuf {
    dir.join("search.json")
}

/// Path of the file of the check in the directory of a search.
pub fn check_path(dir: &Path) -> PathBuf {
    dir.join("check.json")
}

/// The text of the file of the links, with a head that says what they are for.
///
/// # Errors
///
/// Returns an error when a link follows a trace.
pub fn links_text(outcome: &Outcome) -> Result<String, TraceInLine> {
    let Report { settings, .. } = &outcome.report;
    let links = scenario::write(&outcome.scenarios)?;
    Ok(format!(
        "# Links on which {} ({}) loses most to the best of {},\n# found by cc-trainer search with \
         seed {}. They were chosen by how this policy does on them: train\n# and harden with them, \
         but do not judge by them.\n\n{links}",
        settings.scheme,
        settings.policy,
        settings.against.join(", "),
        settings.seed
    ))
}
