//! The links that a policy is trained on: sets of scenarios, and random families from which
//! each episode draws one link.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::NetworkConfigError;
use super::flows::{Flows, check_scheme};
use super::random::RandomLinks;
use super::range::check;
use cc_sim::scenario::{self, Scenario, families::Family};

/// One `[[links]]` entry: a kind of link and how often it is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Relative frequency: the entry is drawn in weight / (sum of all weights) of the episodes.
    #[serde(default = "one")]
    pub weight: f64,
    /// Scenarios as `--scenarios` names them: sets, members of sets, and files. Each episode
    /// draws one of them uniformly.
    pub scenarios: Option<String>,
    /// A random family with given ranges, as the alternative to `scenarios`.
    pub random: Option<RandomLinks>,
    /// A built-in family, as the alternative to both: the one that test and validation sets are
    /// samples of, drawn anew for each episode.
    pub family: Option<Family>,
    /// The flows on the link. When absent, a scenario keeps its own flows and a random link
    /// has a single learned flow.
    pub flows: Option<Flows>,
    /// The episode starts at a time drawn uniformly from 0 to this many seconds into the
    /// scenario. If a schedule or a trace always began at the same point, the policy could
    /// memorise it down to the first packets.
    #[serde(default)]
    pub shift_s: f64,
}

/// The link of one episode.
#[derive(Clone, Debug)]
pub(super) struct EpisodeLink {
    pub(super) scenario: Arc<Scenario>,
    pub(super) task: usize,
    /// Simulated time at which the episode starts.
    pub(super) begins: Duration,
}

/// All links entries, checked and with their scenarios read.
#[derive(Clone, Debug)]
pub(super) struct Links {
    entries: Vec<LoadedEntry>,
    tasks: Vec<String>,
}

/// An [`Entry`] that was checked, with its scenarios.
#[derive(Clone, Debug)]
struct LoadedEntry {
    /// Sum of the weights up to and including this entry.
    until: f64,
    /// Index of the entry's first task.
    first_task: usize,
    source: LinkSource,
    flows: Option<Flows>,
    shift_s: f64,
}

/// Where the links of an entry come from.
#[derive(Clone, Debug)]
enum LinkSource {
    Scenarios(Vec<Arc<Scenario>>),
    Random(Box<RandomLinks>),
    Family(Family),
}

impl Links {
    /// Checks the entries and reads their scenarios.
    pub(super) fn new(entries: &[Entry]) -> Result<Self, NetworkConfigError> {
        let mut links = Self {
            entries: Vec::new(),
            tasks: Vec::new(),
        };
        let mut until = 0.0;
        for (index, entry) in entries.iter().enumerate() {
            let place = |field: &str| format!("links[{index}].{field}");
            check(entry.weight, [f64::MIN_POSITIVE, 1e6], || place("weight"))?;
            check(entry.shift_s, [0.0, 1e5], || place("shift_s"))?;
            if let Some(flows) = &entry.flows {
                flows.check(|field| place(&format!("flows.{field}")))?;
            }
            let first_task = links.tasks.len();
            let source = match (&entry.scenarios, &entry.random, entry.family) {
                (Some(spec), None, None) => {
                    let scenarios = scenario::load(spec)?;
                    for scenario in &scenarios {
                        check_scenario(scenario, entry.flows.is_some())?;
                        links.tasks.push(scenario.name.clone());
                    }
                    LinkSource::Scenarios(scenarios.into_iter().map(Arc::new).collect())
                }
                (None, Some(random), None) => {
                    random.check(|field| place(&format!("random.{field}")))?;
                    links.tasks.push(format!("random-{index}"));
                    LinkSource::Random(Box::new(random.clone()))
                }
                (None, None, Some(family)) => {
                    links.tasks.push(format!("{family}-{index}"));
                    LinkSource::Family(family)
                }
                _ => {
                    return Err(NetworkConfigError::Entry { index });
                }
            };
            until += entry.weight;
            links.entries.push(LoadedEntry {
                until,
                first_task,
                source,
                flows: entry.flows.clone(),
                shift_s: entry.shift_s,
            });
        }
        if links.entries.is_empty() {
            return Err(NetworkConfigError::NoLinks);
        }
        Ok(links)
    }

    /// Returns the names of the tasks, one per scenario and one per random family.
    pub(super) fn tasks(&self) -> &[String] {
        &self.tasks
    }

    /// Returns the largest number of learned flows on any of the links.
    pub(super) fn most_learned(&self) -> usize {
        let most = |entry: &LoadedEntry| match (&entry.flows, &entry.source) {
            (Some(flows), _) => flows.learned[1],
            (None, LinkSource::Scenarios(scenarios)) => {
                let learned = |scenario: &Arc<Scenario>| {
                    let flows = scenario.flows.iter();
                    flows.filter(|flow| flow.scheme.is_none()).count()
                };
                scenarios.iter().map(learned).max().unwrap_or(1)
            }
            (None, LinkSource::Random(_)) => 1,
            (None, LinkSource::Family(family)) => family.most_under_test(),
        };
        self.entries.iter().map(most).max().unwrap_or(1)
    }

    /// Draws a link for an episode of `seconds` seconds: one of a task, or of any.
    pub(super) fn draw(
        &self,
        seconds: f64,
        only: Option<usize>,
        random: &mut Xoshiro256PlusPlus,
    ) -> EpisodeLink {
        let after = match only {
            Some(task) => {
                self.entries
                    .partition_point(|entry| entry.first_task <= task)
                    - 1
            }
            None => {
                let total = self.entries.last().map_or(0.0, |entry| entry.until);
                let place = random.random::<f64>() * total;
                self.entries.partition_point(|entry| entry.until <= place)
            }
        };
        let entry = &self.entries[after.min(self.entries.len() - 1)];
        let (scenario, offset) = match &entry.source {
            LinkSource::Scenarios(scenarios) => {
                let index = match only {
                    Some(task) => (task - entry.first_task).min(scenarios.len() - 1),
                    None => random.random_range(0..scenarios.len()),
                };
                (Arc::clone(&scenarios[index]), index)
            }
            LinkSource::Random(family) => (Arc::new(family.draw(seconds, random)), 0),
            LinkSource::Family(family) => (Arc::new(family.draw(random)), 0),
        };
        let mut link = EpisodeLink {
            scenario,
            task: entry.first_task + offset,
            begins: Duration::from_secs_f64(random.random::<f64>() * entry.shift_s),
        };
        if entry.flows.is_some() || !link.begins.is_zero() {
            let scenario = Arc::make_mut(&mut link.scenario);
            if let Some(flows) = &entry.flows {
                scenario.flows = flows.draw(seconds, random);
            }
            for flow in &mut scenario.flows {
                flow.start += link.begins;
                flow.stop = flow.stop.map(|stop| stop + link.begins);
            }
        }
        link
    }
}

/// Checks that a policy can be trained on a scenario. If the entry has flows, they replace the
/// scenario's, which are then not checked.
fn check_scenario(scenario: &Scenario, own_flows: bool) -> Result<(), NetworkConfigError> {
    let name = || format!("the scenario `{}`", scenario.name);
    if scenario.forward.service.mean_bits_per_second().is_none() {
        return Err(NetworkConfigError::Unlimited {
            scenario: scenario.name.clone(),
        });
    }
    if own_flows {
        return Ok(());
    }
    for scheme in scenario.flows.iter().filter_map(|f| f.scheme.as_ref()) {
        check_scheme(scheme, name)?;
    }
    Ok(())
}

/// The default weight of an entry.
fn one() -> f64 {
    1.0
}
