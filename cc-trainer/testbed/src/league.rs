//! A league of congestion controls: every scheme plays every link, and each scored segment of a
//! link is a game with one or more winners.
//!
//! [`play`] carries out the runs, on the kernel or in the simulator, and keeps them on disk; a
//! [`Board`] holds what each scheme did on each link, and [`Standings`] what follows from it. What
//! each measure is, and where it comes from, is in docs/league.md.

mod against;
mod board;
mod bootstrap;
mod by;
mod distinct;
mod fill;
mod harm;
pub mod links;
mod measure;
mod merit;
mod score;
mod standings;
mod store;
mod strata;
pub mod table;
mod variants;

#[cfg(test)]
mod tests;

pub use against::{Against, Standoff, WEAK, Weak};
pub use board::{Board, Cell, Link, References};
pub use bootstrap::{CONFIDENCE, Estimate};
pub use by::{By, Kind, Kinds, Property, Spread};
pub use distinct::{Duplicate, distinct};
pub use harm::{Harm, Neighbours};
pub use measure::{Figure, MEASURES, Measure};
pub use merit::loss;
pub use score::{Game, MARGIN, Played, Rule, absolute};
pub use standings::{Disturbed, Part, Settings, Standing, Standings};
pub use store::{Counted, StoreError};
pub use strata::{Properties, sample};

pub(crate) use fill::fill;
pub(crate) use store::Store;

use std::{collections::HashSet, path::Path, sync::atomic::AtomicBool};

use cc_sim::scenario::{self, Scenario, content};

use crate::{
    evaluate::{EvaluateError, Evaluation, Event, Job, Plan, interleaved},
    summary::{Host, Run, splits},
};
use variants::Variants;

/// Built-in sets whose games are decided with figures that are rounded to whole Mbit/s and ms, as
/// their authors do.
const ROUNDED: [&str; 2] = ["sage-1", "sage-2"];

/// The schemes and links of a league, and what to measure.
#[derive(Clone, Debug)]
pub struct League {
    /// The schemes, the links, and how to run them. Equal links count once.
    pub evaluation: Evaluation,
    /// The links as `--scenarios` names them.
    pub set: String,
    /// The part of the links to play, from above 0 to 1, as [`sample`] chooses it; `None` plays all
    /// of them.
    pub sample: Option<f64>,
    /// Whether to measure the harm to neighbours, which takes further runs.
    pub harm: bool,
    /// Schemes of the league whose best on each link all schemes are also compared with
    /// ([`Against`]); may be empty.
    pub against: Vec<String>,
    /// What the links are told apart by in further tables ([`By`]); may be empty.
    pub by: Vec<Property>,
    /// Whether runs that the host disturbed count, too, instead of being repeated.
    pub counted: Counted,
}

/// The result of a league.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The standings, the content of `league.json`.
    pub standings: Standings,
    /// What they were computed from.
    pub board: Board,
    /// Whether the league was cancelled before all runs had ended. The standings then cover the
    /// links that are complete.
    pub cancelled: bool,
}

/// Errors that end a league.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeagueError {
    /// The sample has no link.
    #[error(
        "a sample of {share} of {links} links is empty; --sample {least} or more takes at least one"
    )]
    EmptySample {
        /// The part of the links that was asked for.
        share: f64,
        /// Number of links without those that are equal to another one.
        links: usize,
        /// A part that is not empty, rounded up to two digits.
        least: f64,
    },
    /// Harm was asked for, but no link has neighbours.
    #[error(
        "--harm: none of the {links} links has a scored flow beside flows with a scheme of their \
         own, so there is nobody to harm; use a set such as `sage-2`, or omit --harm"
    )]
    NoNeighbours {
        /// Number of links that would be played.
        links: usize,
    },
    /// The league is to be compared with a scheme that does not play.
    #[error(
        "--against: no scheme of the league is called `{name}`: there are {schemes}; name some of \
         them, or add it to --schemes"
    )]
    NotInLeague {
        /// The name that was given.
        name: String,
        /// The names of all schemes.
        schemes: String,
    },
    /// A scenario or scheme cannot be used, or a run failed.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// The runs on disk cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Plays a league. Runs that count and that the directory already holds under the same settings are
/// kept.
///
/// # Errors
///
/// Returns an error when the sample is empty, when harm is asked for and no link has neighbours,
/// when a scheme to compare with does not play, when a scenario or scheme cannot be used, when a
/// run fails, or when a run cannot be written. All runs that ended before are on disk by then.
pub fn play(
    league: &League,
    cancel: &AtomicBool,
    on_event: impl FnMut(Event<'_>),
) -> Result<Outcome, LeagueError> {
    let names = league.names();
    if let Some(name) = league.against.iter().find(|name| !names.contains(*name)) {
        return Err(LeagueError::NotInLeague {
            name: name.clone(),
            schemes: names.join(", "),
        });
    }
    let (scenarios, duplicates) = distinct(league.evaluation.scenarios.clone());
    let scenarios = league.sampled(scenarios)?;
    let rounded = rounded();
    let is_rounded = |scenario: &Scenario| rounded.contains(&content::scenario(scenario));
    let links: Vec<Link> = scenarios
        .iter()
        .map(|scenario| Link::of(scenario, is_rounded(scenario)))
        .collect();
    let variants = match league.harm {
        true => Variants::of(&scenarios, &links, &league.evaluation),
        false => Variants::default(),
    };
    if league.harm && variants.is_empty() {
        return Err(LeagueError::NoNeighbours { links: links.len() });
    }
    let mut evaluation = Evaluation {
        scenarios,
        ..league.evaluation.clone()
    };
    // What is said of sets and schemes is about the links, not about their variants.
    let facts = Plan::new(&evaluation)?.settings().clone();
    evaluation.scenarios.extend(variants.scenarios());
    let plan = Plan::new(&evaluation)?;
    let mut store = Store::open(&evaluation.dir, evaluation.fresh, league.counted)?;
    let of_links = interleaved(links.len(), evaluation.schemes.len(), evaluation.runs);
    let of_variants = interleaved(variants.len(), 1, evaluation.runs).map(|job| Job {
        scenario: links.len() + job.scenario,
        ..job
    });
    let jobs: Vec<Job> = of_links.chain(of_variants).collect();
    // Probed before agents register further congestion controls, which are not the host's.
    let host = Host::probe();
    fill::<LeagueError>(&plan, &mut store, &jobs, cancel, on_event)?;
    let runs = |scenario: usize, scheme: usize| -> Vec<&Run> {
        let jobs = (0..evaluation.runs).map(|run| Job {
            run,
            scenario,
            scheme,
        });
        jobs.filter_map(|job| store.find(&plan.key(job), job.run))
            .collect()
    };
    let mut board = Board::new(names);
    for (number, link) in links.iter().enumerate() {
        let of_schemes: Vec<Vec<&Run>> = (0..evaluation.schemes.len())
            .map(|scheme| runs(number, scheme))
            .collect();
        let references = variants.references(number, link, &of_schemes, |variant| {
            runs(links.len() + variant, 0)
        });
        board.add(link.clone(), &of_schemes, &references);
    }
    let counting = jobs
        .iter()
        .filter_map(|job| store.find(&plan.key(*job), job.run));
    let settings = Settings {
        disturbed: Disturbed::among(counting),
        on: facts.on,
        sample: league.sample,
        runs: facts.runs,
        seed: facts.seed,
        notes: splits::notes(&facts),
        sets: facts.sets,
        policies: facts.policies,
        command: facts.command,
        date: facts.date,
        host,
    };
    Ok(Outcome {
        standings: Standings {
            against: Against::of(&board, &league.against),
            by: By::of(&board, &league.by),
            ..Standings::of(&board, &league.set, duplicates, settings)
        },
        board,
        cancelled: cancel.load(std::sync::atomic::Ordering::Relaxed),
    })
}

impl League {
    /// The names of the schemes, in the order in which they are given.
    fn names(&self) -> Vec<String> {
        let schemes = self.evaluation.schemes.iter();
        schemes.map(|scheme| scheme.name.clone()).collect()
    }

    /// The links to play: all, or a stratified sample of them.
    fn sampled(&self, scenarios: Vec<Scenario>) -> Result<Vec<Scenario>, LeagueError> {
        let Some(share) = self.sample else {
            return Ok(scenarios);
        };
        let properties: Vec<Properties> = scenarios
            .iter()
            .map(|scenario| Link::of(scenario, false).properties)
            .collect();
        let taken = sample(&properties, share);
        if taken.is_empty() {
            let links = scenarios.len();
            return Err(LeagueError::EmptySample {
                share,
                links,
                least: (50.0 / links.max(1) as f64).ceil() / 100.0,
            });
        }
        let mut scenarios: Vec<Option<Scenario>> = scenarios.into_iter().map(Some).collect();
        Ok(taken
            .into_iter()
            .filter_map(|link| scenarios[link].take())
            .collect())
    }
}

/// The links of the sets whose games are decided with rounded figures, by their content.
fn rounded() -> HashSet<[u8; 32]> {
    let sets = ROUNDED.iter().filter_map(|name| scenario::set(name));
    let links = sets.filter_map(|set| set.scenarios().ok()).flatten();
    links.map(|link| content::scenario(&link)).collect()
}

/// Path of the file of the standings in the directory of a league.
pub fn path(dir: &Path) -> std::path::PathBuf {
    dir.join("league.json")
}
