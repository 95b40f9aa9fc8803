//! Selection of scenarios by a list, as `--scenarios` takes it, from the built-in sets and from
//! files.

use std::path::Path;

use cc_core::regular_file;

use super::{Scenario, ScenarioError, file, sets};

/// Loads the scenarios of a list that is separated by commas.
///
/// An item is a set (`pantheon`), a scenario of a set by its name or by its index from 0
/// (`pantheon/bdp-1`, `pantheon/17`), a file (`links.toml`), or a scenario of a file
/// (`links.toml/mine`). An asterisk at the end of a scenario's name stands for all that begin so
/// (`pantheon/bdp-*`). A scenario that is named twice is returned once.
///
/// # Errors
///
/// Returns an error when the list names no scenario, when a set, scenario or file does not exist or
/// is invalid, and when two different scenarios have the same name.
pub fn load(spec: &str) -> Result<Vec<Scenario>, ScenarioError> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    for item in spec
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        for scenario in load_item(item)? {
            match scenarios.iter().find(|known| known.name == scenario.name) {
                None => scenarios.push(scenario),
                Some(known) if *known == scenario => {}
                Some(_) => {
                    return Err(ScenarioError::Ambiguous {
                        name: scenario.name,
                    });
                }
            }
        }
    }
    if scenarios.is_empty() {
        return Err(ScenarioError::Nothing {
            sets: sets::names(),
        });
    }
    Ok(scenarios)
}

fn load_item(item: &str) -> Result<Vec<Scenario>, ScenarioError> {
    if item.ends_with(".toml") || Path::new(item).is_file() {
        return read(Path::new(item));
    }
    if let Some((path, name)) = item.rsplit_once('/')
        && (path.ends_with(".toml") || Path::new(path).is_file())
    {
        return select(read(Path::new(path))?, path, name);
    }
    let (set, name) = match item.split_once('/') {
        Some((set, name)) => (set, Some(name)),
        None => (item, None),
    };
    let scenarios = sets::set(set).ok_or_else(|| ScenarioError::UnknownSet {
        name: set.to_owned(),
        sets: nearest_first(set, sets::SETS.iter().map(|set| set.name), usize::MAX),
    })?;
    match name {
        Some(name) => select(scenarios.scenarios()?, set, name),
        None => scenarios.scenarios(),
    }
}

/// Most scenarios that an error names: the largest set has 660.
const MOST_SCENARIOS: usize = 20;

/// Size limit of a scenario file, bytes.
const MAX_BYTES: u64 = 16 << 20;

fn read(path: &Path) -> Result<Vec<Scenario>, ScenarioError> {
    let text =
        regular_file::read_to_string(path, MAX_BYTES).map_err(|error| ScenarioError::Read {
            path: path.to_owned(),
            error,
        })?;
    file::parse(&text, path)
}

/// The scenario with that name, or else the one at that index; those whose names begin so before an
/// asterisk.
fn select(scenarios: Vec<Scenario>, set: &str, name: &str) -> Result<Vec<Scenario>, ScenarioError> {
    let unknown = || ScenarioError::UnknownScenario {
        set: set.to_owned(),
        name: name.to_owned(),
        scenarios: nearest_first(
            name,
            scenarios.iter().map(|scenario| scenario.name.as_str()),
            MOST_SCENARIOS,
        ),
        last: scenarios.len() - 1,
    };
    if let Some(beginning) = name.strip_suffix('*') {
        let all = scenarios.iter();
        let found = all.filter(|scenario| scenario.name.starts_with(beginning));
        let found: Vec<Scenario> = found.cloned().collect();
        return match found.is_empty() {
            true => Err(unknown()),
            false => Ok(found),
        };
    }
    let place = || scenarios.get(name.parse::<usize>().ok()?);
    let found = scenarios
        .iter()
        .find(|scenario| scenario.name == name)
        .or_else(place);
    Ok(vec![found.ok_or_else(unknown)?.clone()])
}

/// At most `most` names, the most similar one first, and an ellipsis for the rest.
fn nearest_first<'a>(wanted: &str, names: impl Iterator<Item = &'a str>, most: usize) -> String {
    let mut names: Vec<&str> = names.collect();
    names.sort_by(|a, b| {
        strsim::jaro_winkler(wanted, b).total_cmp(&strsim::jaro_winkler(wanted, a))
    });
    if names.len() > most {
        names.truncate(most);
        names.push("…");
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn scenarios_are_found_by_set_name_and_place() {
        let names = |spec: &str| -> Vec<String> {
            load(spec)
                .expect(spec)
                .into_iter()
                .map(|scenario| scenario.name)
                .collect()
        };
        assert_eq!(names("pantheon/bdp-1"), ["bdp-1"]);
        assert_eq!(names("pantheon/17, pantheon/0"), ["bdp-1", "nepal-india"]);
        assert_eq!(names("pantheon/bdp-1*"), ["bdp-1"]);
        assert_eq!(names("validation/validation-steps-*").len(), 40);
        assert_eq!(names("pantheon/*").len(), 18);
        assert_eq!(
            names("calibrated,pantheon").len(),
            18,
            "what is in both is there once"
        );
    }

    #[test]
    fn unknown_names_are_answered_with_the_available_ones() {
        let message = |spec: &str| load(spec).expect_err(spec).to_string();
        assert!(
            message("panteon")
                .starts_with("no set of scenarios is called `panteon`: there are pantheon, ")
        );
        let unknown = message("pantheon/bpd-1");
        assert!(
            unknown.starts_with("`pantheon` has no scenario `bpd-1`: it has bdp-1, "),
            "{unknown}"
        );
        assert!(
            unknown.ends_with("or give its place, from 0 to 17"),
            "{unknown}"
        );
        assert!(message("pantheon/18").contains("has no scenario `18`"));
        let long = message("sage-1/12-*");
        assert!(
            long.contains("it has sage-1-12-") && long.contains(", …; "),
            "{long}"
        );
        assert!(long.len() < 600, "{long}");
        assert!(message("pantheon/bpd-*").contains("has no scenario `bpd-*`"));
        assert!(
            message(" , ").starts_with("no scenario is named: give a set (calibrated, pantheon")
        );
        assert!(
            message("nowhere/links.toml")
                .starts_with("cannot read the scenario file nowhere/links.toml: ")
        );
    }

    #[test]
    fn two_scenarios_of_one_name_are_refused() {
        let folder = tempfile::tempdir().expect("a scratch directory");
        let file = folder.path().join("mine.toml");
        fs::write(
            &file,
            "[[scenario]]\nname = \"bdp-1\"\nrate_mbps = 12\ndelay_ms = 30\n",
        )
        .expect("the scratch directory takes files");
        let error = load(&format!("pantheon,{}", file.display())).expect_err("the same name twice");
        assert!(
            matches!(&error, ScenarioError::Ambiguous { name } if name == "bdp-1"),
            "{error}"
        );
    }
}
