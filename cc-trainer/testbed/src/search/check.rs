//! Runs the links of a search on another platform, and tells which losses are real there.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use cc_core::{
    policy::{PolicySpec, SpecError},
    regular_file,
};
use cc_sim::scenario::{self, Scenario, ScenarioError, content};
use serde::{Deserialize, Serialize};

use super::{Found, Report, SearchSettings, field::LOST, links_path, report_path};
use crate::{
    evaluate::{
        Controls, EvaluateError, Evaluation, Event, Job, Jobs, Plan, Scheme, SchemeError,
        fastest_mbps,
    },
    league::{Counted, Link, Properties, Store, StoreError, fill, loss, sample},
    link,
    summary::{Host, Platform, Run, utc_now},
};

/// Size limit of the report of a search, bytes.
const MAX_BYTES: u64 = 64 << 20;

/// A loss is real when it is at least this part of the simulator's, as logarithms.
const REAL: f64 = 0.5;

/// Which links to run, and how.
#[derive(Clone, Debug)]
pub struct Check {
    /// Directory that the search wrote to.
    pub dir: PathBuf,
    /// Platform to run the links on.
    pub on: Platform,
    /// The policy, if it is not where the search had it; its content must be the same.
    pub policy: Option<PolicySpec>,
    /// Part of the links to run, from above 0 to 1, as [`sample`] chooses it.
    pub sample: Option<f64>,
    /// Run only links of at most this rate, Mbit/s.
    pub most_mbps: Option<f64>,
    /// Length of each run; `None` is that of the search.
    pub seconds: Option<Duration>,
    /// Number of runs of each scheme on each link.
    pub runs: u32,
    /// Number of runs at the same time.
    pub jobs: Jobs,
    /// Path of the `cc-agent` program; `None` is the one beside this program.
    pub agent: Option<PathBuf>,
    /// Command line of this check, which its result states.
    pub command: String,
}

/// The result of a check, the content of `check.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    /// Platform that the links ran on.
    pub on: Platform,
    /// Command line that started the check.
    pub command: String,
    /// End of the check in UTC, in the format of RFC 3339.
    pub date: String,
    /// Host that the links ran on.
    pub host: Host,
    /// The controls of the search that the platform has.
    pub controls: Vec<String>,
    /// SHA-256 of the links of the search.
    pub sha256: String,
    /// Number of runs of each scheme on each link.
    pub runs: u32,
    /// Number of links that were not asked for, because of their rate or the sample.
    pub left_out: usize,
    /// Whether the check was ended early.
    pub is_cancelled: bool,
    /// The links, in the order of the search.
    pub links: Vec<Judged>,
}

/// A link of a search, judged on another platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Name of the link in the search.
    pub name: String,
    /// The best control in the search of those that the platform has.
    pub rival: Option<String>,
    /// How many times better the rival is in the simulator, with other seeds than the search's.
    pub simulated: Option<f64>,
    /// How many times better it is on the platform.
    pub measured: Option<f64>,
    /// What follows from both figures.
    pub verdict: Verdict,
}

/// Whether a loss is real.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// At least half of it, as logarithms, is there on the platform.
    Real,
    /// Less than half of it is there: it is the simulator's.
    Simulated,
    /// The link could not be judged, for this reason.
    NotJudged(String),
}

/// Errors that end a check.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// A file of the search cannot be read.
    #[error(
        "reading {}: {source}; name the directory that `cc-trainer search` wrote, as in \
         `cc-trainer search check DIR`", path.display()
    )]
    Read {
        /// Path of the file that cannot be read.
        path: PathBuf,
        /// Reason why it cannot be read.
        source: io::Error,
    },
    /// The links cannot be read.
    #[error(transparent)]
    Scenarios(#[from] ScenarioError),
    /// The links are not those of the report.
    #[error(
        "{} does not hold the links that {} describes; it was changed, or is of another search: \
         give the command of the search again",
        links_path(dir).display(), report_path(dir).display()
    )]
    Foreign {
        /// The directory of the search.
        dir: PathBuf,
    },
    /// The search was ended early.
    #[error(
        "{}: the search was ended early, so its links were not run again; give its command again \
         first", report_path(dir).display()
    )]
    Unfinished {
        /// The directory of the search.
        dir: PathBuf,
    },
    /// The policy's file has changed or is another one.
    #[error(
        "the policy `{policy}` is not the one that was searched (SHA-256 {found}, not {expected}); \
         name that one with --policy, or search again"
    )]
    OtherPolicy {
        /// The policy that would run.
        policy: String,
        /// SHA-256 of that policy's file, in hexadecimal.
        found: String,
        /// Digest of the file that was searched.
        expected: String,
    },
    /// The report names a policy that cannot be.
    #[error("{}: {source}; name the policy with --policy", path.display())]
    Policy {
        /// Path of the report of the search.
        path: PathBuf,
        /// Reason why it cannot be.
        source: SpecError,
    },
    /// The platform has none of the controls.
    #[error(
        "none of the controls of the search ({controls}) is on this platform; load one \
         (`modprobe tcp_NAME`), or search with --against cubic"
    )]
    NoControls {
        /// Names of the search's controls, separated by commas.
        controls: String,
    },
    /// Nothing is left to run.
    #[error("no link is left to run of {links}; raise --most-mbps or --sample")]
    NoLinks {
        /// Number of links of the search.
        links: usize,
    },
    /// A scheme cannot be used.
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    /// A link cannot be used, or a run failed.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// The runs cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Runs the policy and a rival on the links of a search. The rival is the best control in the
/// search of those that the platform has. Valid runs that the directory already holds are kept.
///
/// # Errors
///
/// Returns an error when the directory holds no complete search, when the policy is another one,
/// when the platform has none of the controls, or when a run fails.
pub fn check(
    check: &Check,
    cancel: &AtomicBool,
    on_event: impl FnMut(Event<'_>),
) -> Result<(Report, Checked), CheckError> {
    let (report, scenarios) = read(&check.dir)?;
    let settings = &report.settings;
    let schemes = schemes(check, settings)?;
    let controls: Vec<String> = schemes[1..]
        .iter()
        .map(|control| control.name.clone())
        .collect();
    let asked = asked(check, &scenarios);
    if asked.is_empty() {
        let links = scenarios.len();
        return Err(CheckError::NoLinks { links });
    }
    let pairs: Vec<Result<Pair, String>> = asked
        .iter()
        .map(|&number| {
            carried(check.on, &scenarios[number])?;
            Pair::of(&report.worst[number], settings, &controls)
        })
        .collect();
    // The links that can run, with their numbers.
    let running: Vec<(usize, &Pair)> = asked
        .iter()
        .zip(&pairs)
        .filter_map(|(&number, pair)| Some((number, pair.as_ref().ok()?)))
        .collect();
    let evaluation = Evaluation {
        on: check.on,
        scenarios: running
            .iter()
            .map(|&(number, _)| scenarios[number].clone())
            .collect(),
        policy: super::policy_of(&schemes[0]),
        serving: settings.serving,
        schemes,
        seconds: check
            .seconds
            .or(settings.seconds.map(Duration::from_secs_f64)),
        runs: check.runs,
        seed: settings.seed,
        jobs: check.jobs,
        dir: check.dir.clone(),
        fresh: false,
        agent: check.agent.clone(),
        record: None,
        command: check.command.clone(),
    };
    let plan = Plan::new(&evaluation)?;
    let mut store = Store::open(&check.dir, false, Counted::Valid)?;
    // As when the search ran the links again.
    let numbers = 1..check.runs + 1;
    let runs_of = |scenario: usize, scheme: usize| {
        numbers.clone().map(move |run| Job {
            run,
            scenario,
            scheme,
        })
    };
    let mut jobs: Vec<Job> = running
        .iter()
        .enumerate()
        .flat_map(|(place, (_, pair))| runs_of(place, 0).chain(runs_of(place, pair.rival)))
        .collect();
    jobs.sort();
    // Probed before agents register further congestion controls, which are not the host's.
    let host = Host::probe();
    fill::<CheckError>(&plan, &mut store, &jobs, cancel, on_event)?;
    let merit = |number: usize, scheme: usize| {
        let place = running.iter().position(|&(other, _)| other == number)?;
        let runs: Option<Vec<&Run>> = runs_of(place, scheme)
            .map(|job| store.find(&plan.key(job), job.run))
            .collect();
        Some(Link::of(&scenarios[number], false).merit(&runs?))
    };
    let judged = asked.iter().zip(&pairs).map(|(&number, pair)| {
        let name = report.worst[number].name.clone();
        match pair {
            Ok(pair) => {
                let merits = merit(number, 0).zip(merit(number, pair.rival));
                pair.judged(name, &controls, merits)
            }
            Err(reason) => Judged {
                name,
                rival: None,
                simulated: None,
                measured: None,
                verdict: Verdict::NotJudged(reason.clone()),
            },
        }
    });
    let links = judged.collect();
    let checked = Checked {
        on: check.on,
        command: check.command.clone(),
        date: utc_now(),
        host,
        sha256: report.sha256.clone(),
        runs: check.runs,
        left_out: scenarios.len() - asked.len(),
        is_cancelled: cancel.load(Ordering::Relaxed),
        links,
        controls,
    };
    Ok((report, checked))
}

/// Whether the platform can carry a link at all, and the reason why not.
fn carried(on: Platform, scenario: &Scenario) -> Result<(), String> {
    let (fastest, most) = (fastest_mbps(scenario), link::Link::MAX_MBPS);
    match on == Platform::Kernel && fastest > most {
        true => Err(format!(
            "its link has {fastest} Mbit/s, and the emulator carries at most {most}"
        )),
        false => Ok(()),
    }
}

/// Reads the report and the links of a search.
fn read(dir: &Path) -> Result<(Report, Vec<Scenario>), CheckError> {
    let path = report_path(dir);
    let failed = |source| CheckError::Read {
        path: path.clone(),
        source,
    };
    let text = regular_file::read_to_string(&path, MAX_BYTES).map_err(failed)?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    let links = links_path(dir);
    fs::metadata(&links).map_err(|source| CheckError::Read {
        path: links.clone(),
        source,
    })?;
    let scenarios = scenario::load(&links.to_string_lossy())?;
    let names = scenarios.iter().map(|scenario| &scenario.name);
    let is_same = content::set(&scenarios) == report.sha256
        && names.eq(report.worst.iter().map(|found| &found.name));
    if !is_same {
        let dir = dir.to_owned();
        return Err(CheckError::Foreign { dir });
    }
    if !report.is_complete {
        let dir = dir.to_owned();
        return Err(CheckError::Unfinished { dir });
    }
    Ok((report, scenarios))
}

/// The policy of the search, and those of its controls that the platform has.
fn schemes(check: &Check, settings: &SearchSettings) -> Result<Vec<Scheme>, CheckError> {
    let platform = Controls::of(check.on);
    let policy = match &check.policy {
        Some(policy) => policy.clone(),
        None => settings
            .policy
            .parse()
            .map_err(|source| CheckError::Policy {
                path: report_path(&check.dir),
                source,
            })?,
    };
    let scheme = Scheme::parse(&settings.scheme, &policy, settings.serving, platform)?;
    let digest = scheme.policy().and_then(|policy| policy.sha256.clone());
    if digest != settings.sha256 {
        let shown = |digest: Option<String>| digest.unwrap_or_else(|| "none".to_owned());
        return Err(CheckError::OtherPolicy {
            policy: policy.to_string(),
            found: shown(digest),
            expected: shown(settings.sha256.clone()),
        });
    }
    let there = settings.against.iter();
    let there = there.filter_map(|name| Scheme::parse(name, &policy, None, platform).ok());
    let schemes: Vec<Scheme> = std::iter::once(scheme).chain(there).collect();
    if schemes.len() == 1 {
        return Err(CheckError::NoControls {
            controls: settings.against.join(", "),
        });
    }
    Ok(schemes)
}

/// The indices of the links to run, ascending.
fn asked(check: &Check, scenarios: &[Scenario]) -> Vec<usize> {
    let most = check.most_mbps.unwrap_or(f64::INFINITY);
    let slow: Vec<usize> = (0..scenarios.len())
        .filter(|&number| fastest_mbps(&scenarios[number]) <= most)
        .collect();
    let Some(share) = check.sample else {
        return slow;
    };
    let properties = |&number: &usize| Link::of(&scenarios[number], false).properties;
    let properties: Vec<Properties> = slow.iter().map(properties).collect();
    let taken = sample(&properties, share);
    taken.into_iter().map(|place| slow[place]).collect()
}

/// What a link is judged by: the rival, and what the policy loses to it in the simulator.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// Index of the rival among the schemes, of which the first is the policy.
    rival: usize,
    /// How many times better it is.
    simulated: f64,
}

impl Pair {
    /// The best of `controls` on a link of the search. It is an error when the policy does not lose
    /// to any of them.
    fn of(found: &Found, settings: &SearchSettings, controls: &[String]) -> Result<Self, String> {
        let rival = found.rival_among(&settings.scheme, controls);
        let lost = rival.filter(|&(_, times)| times > LOST);
        let (rival, simulated) = lost.ok_or_else(|| {
            format!(
                "in the simulator it loses to none of {}",
                controls.join(", ")
            )
        })?;
        Ok(Self {
            rival: 1 + rival,
            simulated,
        })
    }

    /// Judges a link by the merits of the policy and the rival; `None` when one has no valid run.
    fn judged(self, name: String, controls: &[String], merits: Option<(f64, f64)>) -> Judged {
        let measured = merits.map(|(own, rival)| loss(own, rival));
        let verdict = match measured {
            None => Verdict::NotJudged("no valid run: the host was too busy".to_owned()),
            Some(None) => Verdict::NotJudged("the rival got nothing through".to_owned()),
            Some(Some(loss)) if loss >= REAL * self.simulated.ln() => Verdict::Real,
            Some(Some(_)) => Verdict::Simulated,
        };
        Judged {
            name,
            rival: Some(controls[self.rival - 1].clone()),
            simulated: Some(self.simulated),
            measured: measured.flatten().map(f64::exp),
            verdict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_apart_by_what_is_left_of_them() {
        let pair = Pair {
            rival: 1,
            simulated: 4.0,
        };
        let verdict = |own: f64, rival: f64| {
            let judged = pair.judged("a".into(), &["cubic".into()], Some((own, rival)));
            judged.verdict
        };
        assert_eq!(verdict(1.0, 2.1), Verdict::Real);
        assert_eq!(verdict(1.0, 1.9), Verdict::Simulated);
        assert_eq!(verdict(2.0, 1.0), Verdict::Simulated);
        assert!(matches!(verdict(1.0, 0.0), Verdict::NotJudged(_)));
        let judged = pair.judged("a".into(), &["cubic".into()], None);
        assert!(matches!(judged.verdict, Verdict::NotJudged(_)));
    }
}
