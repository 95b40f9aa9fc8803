//! An adversarial search: over links and neighbours, for those where a policy loses most to the
//! best of some congestion controls in the simulator.
//!
//! [`search`] looks in [families](Family) of links, runs the worst again with seeds that it did not
//! use before, and returns a [`Report`] with the links. [`check`] runs them on another platform,
//! which tells what is the policy's weakness and what the simulator's. docs/search.md describes
//! both.

mod archive;
mod check;
mod report;
pub mod table;
#[cfg(test)]
mod tests;

pub use check::{Check, CheckError, Checked, Judged, Verdict, check};
pub use report::{Figures, Found, Report, SearchSettings};

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use cc_core::policy::PolicySpec;
use cc_sim::scenario::{Role, Scenario, TraceInLine, families::Family, splits};

use crate::{
    evaluate::{EvaluateError, Evaluation, Event, Job, Jobs, Plan, Scheme},
    league::{Link, MARGIN, Store, StoreError, fill, loss},
    summary::{Host, Platform, Run, utc_now},
};
use archive::{Archive, Candidate, Elite};

/// Number of links that are proposed and run together. It does not depend on the host, so that a
/// seed determines the search.
const GENERATION: usize = 24;

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

/// Progress of a search.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Links were tried.
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
    /// The content of `search.json`.
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
        /// Name of the scheme.
        name: String,
    },
    /// There is nowhere to search.
    #[error("there is no family of links to search; name at least one, as in --families broad")]
    NoFamilies,
    /// No link was tried to the end.
    #[error("no link was tried; give the search more time or more links")]
    NothingTried,
    /// A scheme or scenario cannot be used, or a run failed.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// The directory cannot be used.
    #[error("{0}; choose another directory with --out")]
    Store(#[from] StoreError),
    /// A family has links that a file cannot hold.
    #[error(transparent)]
    Trace(#[from] TraceInLine),
}

/// A link that was tried, with the merit of each scheme in the order of the evaluation.
#[derive(Clone, Debug)]
struct Tried {
    scenario: Scenario,
    merits: Vec<f64>,
}

/// Searches. Runs that the directory already holds under the same settings are kept, so that a
/// search that was ended early continues with the same settings.
///
/// When `cancel` becomes true, or a link is still left when the time is over, the links found so
/// far are returned.
///
/// # Errors
///
/// Returns an error when there is no control or no family, when a scheme cannot be used, when a run
/// fails, or when the directory cannot be written.
pub fn search(
    search: &Search,
    cancel: &AtomicBool,
    mut on_progress: impl FnMut(Progress<'_>),
) -> Result<Outcome, SearchError> {
    search.check()?;
    let began = Instant::now();
    let is_over = || {
        let time_is_up = search.time.is_some_and(|time| began.elapsed() >= time);
        time_is_up || cancel.load(Ordering::Relaxed)
    };
    let mut field = Field {
        search,
        store: Store::open(&search.dir, search.fresh)?,
        cancel,
    };
    let Search { links, worst, .. } = *search;
    let mut archive = Archive::new(&search.families, worst, links, search.seed);
    let mut tried: HashMap<usize, Tried> = HashMap::new();
    let (mut done, mut of_sets) = (0, 0);
    while done < links && !is_over() {
        let generation = archive.propose(GENERATION.min(links - done));
        let proposed = generation.len();
        let (candidates, known): (Vec<_>, Vec<_>) =
            generation.into_iter().partition(is_of_no_judging_set);
        let scenarios: Vec<Scenario> = candidates.iter().map(Candidate::scenario).collect();
        let merits = field.play(&scenarios, 0..1)?;
        if cancel.load(Ordering::Relaxed) {
            // A generation counts as a whole or not at all, so that the same search continues.
            break;
        }
        done += proposed;
        of_sets += known.len();
        for ((candidate, scenario), merits) in candidates.into_iter().zip(scenarios).zip(merits) {
            let Some((_, loss)) = merits.as_deref().and_then(worst_of) else {
                continue;
            };
            let merits = merits.unwrap_or_default();
            tried.insert(candidate.number, Tried { scenario, merits });
            archive.add(candidate, loss);
        }
        on_progress(Progress::Tried {
            links: done,
            worst: archive.worst().map(|elite| {
                let kind = elite.candidate.place.kind();
                (kind, elite.loss.exp())
            }),
        });
    }
    let ranked: Vec<Elite> = archive.ranked().into_iter().cloned().collect();
    if ranked.is_empty() {
        return Err(SearchError::NothingTried);
    }
    let confirmed = field.confirm(&ranked, &tried, &mut on_progress)?;
    let is_complete = confirmed.is_some();
    let Confirmed { links, vanished } = confirmed.unwrap_or_else(|| {
        let links = ranked.iter().take(worst);
        Confirmed {
            links: links
                .map(|elite| field.found(elite, &tried, None))
                .collect(),
            vanished: 0,
        }
    });
    let scenarios: Vec<Scenario> = links.iter().map(|(_, scenario)| scenario.clone()).collect();
    let report = Report {
        settings: search.settings(),
        host: Host::probe(),
        tried: done,
        cells: archive.cells(),
        filled: archive.filled(),
        of_sets,
        vanished,
        is_complete,
        sha256: cc_sim::scenario::content::set(&scenarios),
        worst: links.into_iter().map(|(found, _)| found).collect(),
    };
    Ok(Outcome { report, scenarios })
}

/// The links on which the policy loses again with other seeds.
struct Confirmed {
    links: Vec<(Found, Scenario)>,
    /// Number of links on which it does not.
    vanished: usize,
}

/// The search's runs, and what follows from them.
struct Field<'a> {
    search: &'a Search,
    store: Store,
    cancel: &'a AtomicBool,
}

impl Field<'_> {
    /// Runs every scheme on every scenario, once for each of `numbers`, and returns the merits of
    /// the schemes on each scenario; `None` where not all runs have ended.
    fn play(
        &mut self,
        scenarios: &[Scenario],
        numbers: std::ops::Range<u32>,
    ) -> Result<Vec<Option<Vec<f64>>>, SearchError> {
        let evaluation = self.search.evaluation(scenarios.to_vec());
        let plan = Plan::new(&evaluation)?;
        let schemes = evaluation.schemes.len();
        let of_scheme = |scenario, scheme| {
            numbers.clone().map(move |run| Job {
                run,
                scenario,
                scheme,
            })
        };
        let jobs: Vec<Job> = (0..scenarios.len())
            .flat_map(|scenario| (0..schemes).map(move |scheme| (scenario, scheme)))
            .flat_map(|(scenario, scheme)| of_scheme(scenario, scheme))
            .collect();
        fill::<SearchError>(
            &plan,
            &mut self.store,
            &jobs,
            self.cancel,
            |_: Event<'_>| {},
        )?;
        let merits = scenarios.iter().enumerate().map(|(number, scenario)| {
            let link = Link::of(scenario, false);
            let merit = |scheme| {
                let jobs = of_scheme(number, scheme);
                let runs: Option<Vec<&Run>> = jobs
                    .map(|job| self.store.find(&plan.key(job), job.run))
                    .collect();
                Some(link.merit(&runs?))
            };
            (0..schemes).map(merit).collect()
        });
        Ok(merits.collect())
    }

    /// Runs the worst links with other seeds until there are as many as wanted that the policy
    /// still loses on, against the control that was the best one in the search. Returns them with
    /// the number of those on which it does not; `None` when the search is cancelled.
    fn confirm(
        &mut self,
        ranked: &[Elite],
        tried: &HashMap<usize, Tried>,
        on_progress: &mut impl FnMut(Progress<'_>),
    ) -> Result<Option<Confirmed>, SearchError> {
        let mut kept: Vec<(Found, Scenario)> = Vec::new();
        let (mut next, mut vanished) = (0, 0);
        while kept.len() < self.search.worst && next < ranked.len() {
            let end = ranked.len().min(next + self.search.worst - kept.len());
            let round = &ranked[next..end];
            next = end;
            on_progress(Progress::Again { links: round.len() });
            let scenarios: Vec<Scenario> = round
                .iter()
                .map(|elite| tried[&elite.candidate.number].scenario.clone())
                .collect();
            // The search had run 0 of each link.
            let again = self.play(&scenarios, 1..self.search.runs + 1)?;
            if self.cancel.load(Ordering::Relaxed) {
                return Ok(None);
            }
            for (elite, again) in round.iter().zip(again) {
                let found = self.found(elite, tried, again);
                match found.0.again.is_some_and(|times| times > LOST) {
                    true => kept.push(found),
                    false => vanished += 1,
                }
            }
        }
        kept.sort_by(|(a, _), (b, _)| b.again.unwrap_or(0.0).total_cmp(&a.again.unwrap_or(0.0)));
        Ok(Some(Confirmed {
            links: kept,
            vanished,
        }))
    }

    /// The record of a link, with the merits of its runs with other seeds, if there are any.
    fn found(
        &self,
        elite: &Elite,
        tried: &HashMap<usize, Tried>,
        again: Option<Vec<f64>>,
    ) -> (Found, Scenario) {
        let Tried { scenario, merits } = &tried[&elite.candidate.number];
        let kind = elite.candidate.place.kind();
        let names = self.search.schemes().map(|scheme| scheme.name.as_str());
        let found = Found::new(kind, scenario, names, merits, again.as_deref());
        (found, scenario.clone())
    }
}

/// From how many times better the control must be for a loss to count: the policy is further from
/// it than a winner of a league may be from the best.
const LOST: f64 = 1.0 / (1.0 - MARGIN);

/// The control that is the best one by these merits, of which the first is the policy's, and what
/// the policy loses to it; `None` when no control achieves anything.
fn worst_of(merits: &[f64]) -> Option<(usize, f64)> {
    let (own, others) = merits.split_first()?;
    let best = others.iter().enumerate();
    // The first of several equal ones.
    let (best, merit) = best.rev().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    Some((best + 1, loss(*own, *merit)?))
}

/// Whether a link may be returned: it is in no set that policies are judged or chosen by.
fn is_of_no_judging_set(candidate: &Candidate) -> bool {
    matches!(
        splits::role(&candidate.place.scenario()),
        None | Some(Role::Training)
    )
}

impl Candidate {
    /// The scenario of the link, named by its kind and number: the seeds of its runs depend on the
    /// name.
    fn scenario(&self) -> Scenario {
        Scenario {
            name: format!("{}-{}", self.place.kind(), self.number),
            ..self.place.scenario()
        }
    }
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
    let links = cc_sim::scenario::write(&outcome.scenarios)?;
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
