//! The runs of a search, and what follows from them.

use std::{
    collections::HashMap,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use cc_sim::scenario::{Role, Scenario, splits};

use super::{
    Found, Progress, Search, SearchError,
    archive::{Archive, Candidate, Elite},
};
use crate::{
    evaluate::{Event, Job, Plan},
    league::{Link, MARGIN, Store, fill, loss},
    summary::Run,
};

/// Number of links that are proposed and run together. It does not depend on the host, so that a
/// seed determines the search.
pub(super) const GENERATION: usize = 24;

/// A link that was tried, with the merit of each scheme in the order of the evaluation.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    scenario: Scenario,
    merits: Vec<f64>,
}

/// The links that were tried, and the worst of them.
pub(super) struct Explored {
    pub(super) archive: Archive,
    /// The links by their numbers, without those on which no control achieves anything.
    pub(super) tried: HashMap<usize, Tried>,
    /// Number of all links tried.
    pub(super) done: usize,
    /// Number of these that a test or validation set has, which were not run.
    pub(super) of_sets: usize,
}

/// The links on which the policy loses again with other seeds.
pub(super) struct Confirmed {
    pub(super) links: Vec<(Found, Scenario)>,
    /// Number of links on which it does not.
    pub(super) vanished: usize,
}

/// The search's runs, and what follows from them.
pub(super) struct Field<'a> {
    pub(super) search: &'a Search,
    pub(super) store: Store,
    pub(super) cancel: &'a AtomicBool,
}

impl Field<'_> {
    /// Tries links, generation by generation, until there are enough or the time is over.
    pub(super) fn explore(
        &mut self,
        on_progress: &mut impl FnMut(Progress<'_>),
    ) -> Result<Explored, SearchError> {
        let search = self.search;
        let began = Instant::now();
        let mut archive = Archive::new(&search.families, search.worst, search.links, search.seed);
        let mut tried: HashMap<usize, Tried> = HashMap::new();
        let (mut done, mut of_sets) = (0, 0);
        while done < search.links && search.time.is_none_or(|time| began.elapsed() < time) {
            let generation = archive.propose(GENERATION.min(search.links - done));
            let proposed = generation.len();
            let (candidates, known): (Vec<_>, Vec<_>) =
                generation.into_iter().partition(is_of_no_judging_set);
            let scenarios: Vec<Scenario> = candidates.iter().map(Candidate::scenario).collect();
            let merits = self.play(&scenarios, 0..1)?;
            if self.cancel.load(Ordering::Relaxed) {
                // A generation counts as a whole or not at all, so that the same search continues.
                break;
            }
            done += proposed;
            of_sets += known.len();
            let links = candidates.into_iter().zip(scenarios).zip(merits);
            for ((candidate, scenario), merits) in links {
                let merits = merits.unwrap_or_default();
                if let Some((_, loss)) = worst_of(&merits) {
                    tried.insert(candidate.number, Tried { scenario, merits });
                    archive.add(candidate, loss);
                }
            }
            on_progress(Progress::Tried {
                links: done,
                worst: archive.worst().map(|elite| {
                    let kind = elite.candidate.place.kind();
                    (kind, elite.loss.exp())
                }),
            });
        }
        Ok(Explored {
            archive,
            tried,
            done,
            of_sets,
        })
    }

    /// Runs every scheme on every scenario, once for each of `numbers`, and returns the merits of
    /// the schemes on each scenario; `None` where not all runs have ended.
    fn play(
        &mut self,
        scenarios: &[Scenario],
        numbers: Range<u32>,
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
    pub(super) fn confirm(
        &mut self,
        ranked: &[&Elite],
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
    pub(super) fn found(
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
pub(super) const LOST: f64 = 1.0 / (1.0 - MARGIN);

/// The control that is the best one by these merits, of which the first is the policy's, and what
/// the policy loses to it; `None` when no control achieves anything.
pub(super) fn worst_of(merits: &[f64]) -> Option<(usize, f64)> {
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
