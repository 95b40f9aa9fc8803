//! `cc-trainer sets`: lists the built-in sets of scenarios.

use std::process::ExitCode;

use cc_sim::scenario::{self, Rule, SETS, Scenario};
use serde::Serialize;

/// List the built-in sets of scenarios with their roles and hashes, or the scenarios of some.
///
/// Policies are trained on training sets and on families of random links, chosen on validation
/// sets, and judged on test sets: `cc-trainer train` refuses the links of the latter two. The hash
/// is of the scenarios' content; results state it as well.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SetsArgs {
    /// Scenarios to list, separated by commas: sets, members of a set, and TOML files.
    #[arg(value_name = "LIST")]
    scenarios: Option<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer sets
      all sets: role, number of scenarios, hash, description
  cc-trainer sets broad,mine.toml
      the scenarios of a set and of a file, and which sets have their links
  cc-trainer sets --json sage-1 | jq -r '.[].name'
      the names of a set's scenarios";

/// A set in the list of sets.
#[derive(Debug, Serialize)]
struct SetLine {
    name: &'static str,
    role: &'static str,
    scenarios: usize,
    sha256: String,
    description: &'static str,
}

/// A scenario in the list of scenarios.
#[derive(Debug, Serialize)]
struct ScenarioLine {
    name: String,
    /// Strictest role of the sets that have its link; `None` for a link that is in no set.
    role: Option<&'static str>,
    /// Length of a run, s.
    seconds: f64,
    rule: &'static str,
    /// Index of the scored flow.
    flow: usize,
    /// Scored segments in s of scenario time.
    segments_s: Vec<[f64; 2]>,
    description: String,
}

pub(crate) fn command(args: &SetsArgs) -> anyhow::Result<ExitCode> {
    match &args.scenarios {
        None => {
            let lines: Result<Vec<_>, _> = SETS.iter().map(SetLine::of).collect();
            show(&lines?, SetLine::text, args.json)?;
        }
        Some(spec) => {
            let scenarios = scenario::load(spec)?;
            let lines: Vec<_> = scenarios.iter().map(ScenarioLine::of).collect();
            show(&lines, ScenarioLine::text, args.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show<T: Serialize>(lines: &[T], text: fn(&T) -> String, json: bool) -> anyhow::Result<()> {
    let text = match json {
        true => serde_json::to_string_pretty(lines)? + "\n",
        false => lines.iter().map(text).collect(),
    };
    super::print(text)
}

impl SetLine {
    fn of(set: &scenario::Set) -> Result<Self, scenario::ScenarioError> {
        Ok(Self {
            name: set.name,
            role: set.role.name(),
            scenarios: set.scenarios()?.len(),
            sha256: set.hash()?,
            description: set.description,
        })
    }

    fn text(&self) -> String {
        let Self {
            name,
            role,
            scenarios,
            sha256,
            description,
        } = self;
        let hash = &sha256[..16];
        format!("{name:<20}  {role:<10}  {scenarios:>4}  {hash}  {description}\n")
    }
}

impl ScenarioLine {
    fn of(scenario: &Scenario) -> Self {
        let length = scenario.length(None);
        let segments = scenario.segments(length).into_iter();
        Self {
            name: scenario.name.clone(),
            role: scenario::splits::role(scenario).map(scenario::Role::name),
            seconds: length.as_secs_f64(),
            rule: Rule::name(scenario.rule()),
            flow: scenario.scored_flow(),
            segments_s: segments
                .map(|segment| [segment.start, segment.end].map(|time| time.as_secs_f64()))
                .collect(),
            description: scenario.description.clone(),
        }
    }

    fn text(&self) -> String {
        let Self {
            name,
            role,
            seconds,
            rule,
            description,
            ..
        } = self;
        let role = role.unwrap_or("-");
        format!("{name:<28}  {role:<10}  {seconds:>4} s  {rule:<7}  {description}\n")
    }
}
