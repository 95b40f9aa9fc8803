//! Test sets are not trained on: the check of a configuration, and what its exception leaves in the
//! policy's file.

use std::collections::BTreeSet;

use cc_core::policy::{PolicyKind, PolicyMeta};
use cc_sim::scenario::{
    self, Role, SETS, Scenario, ScenarioError,
    content::link,
    splits::{Member, members},
};

use super::{config::Config, environments::Environments};
use crate::environment::network::NetworkConfig;

/// What stands in the place of sets where nobody can tell which links a policy has seen.
const UNKNOWN: &str = "unknown";

/// Why the links of a configuration cannot be trained on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestSetError {
    /// An entry of the links has a link that policies are judged on.
    #[error(
        "links[{index}].scenarios = {spec:?}: the link of `{scenario}` is that of \
         `{set}/{member}`, and policies are judged on this {role} set, so none is trained on it. \
         Train on a family (family = \"broad\") or on the set `training`; or, to reproduce figures \
         that were measured on the links of their training, set allow_test_sets = true at the top \
         of the file"
    )]
    TestLink {
        /// Index of the entry, from 0.
        index: usize,
        /// The scenarios that the entry names.
        spec: String,
        /// Name of the first scenario of a test or validation set.
        scenario: String,
        /// Name of the set that has the link.
        set: &'static str,
        /// Name of the link in that set.
        member: String,
        /// Role of the set that has the link.
        role: Role,
    },
    /// The scenarios of an entry cannot be read.
    #[error("links: {0}")]
    Scenario(#[from] ScenarioError),
}

/// Checks that a configuration has no link of a test or validation set, unless it may. Links are
/// compared by their content, so that copies in files and under other names count.
///
/// Returns the test and validation sets whose links it has, for the policy's file.
///
/// # Errors
///
/// Returns an error that names the first entry with such a link.
pub(super) fn check(config: &Config) -> Result<Vec<String>, TestSetError> {
    let (network, mut seen) = match &config.environment {
        Environments::Network(network) => (Some(&**network), Vec::new()),
        // Recordings do not say on which links they were made.
        Environments::Recorded(recorded) => (recorded.network.as_deref(), vec![UNKNOWN.to_owned()]),
        Environments::Abr(_)
        | Environments::CartPole(_)
        | Environments::GridWorld(_)
        | Environments::Networked(_) => (None, Vec::new()),
    };
    if let Some(network) = network {
        seen.extend(names(&test_links(network, config.allow_test_sets)?));
    }
    Ok(seen)
}

/// The test sets that a policy has seen, as its file says.
pub(crate) fn of_policy(meta: &PolicyMeta) -> Vec<String> {
    match meta.provenance.get(PolicyMeta::TEST_SETS) {
        Some(sets) if sets == PolicyMeta::NO_TEST_SETS => Vec::new(),
        Some(sets) => sets.split(", ").map(str::to_owned).collect(),
        None if meta.kind == PolicyKind::Heuristic => Vec::new(),
        None => vec![UNKNOWN.to_owned()],
    }
}

/// What the file of a policy that has seen these test sets states: what [`of_policy`] reads.
pub(crate) fn stated(sets: &[String]) -> String {
    match sets {
        [] => PolicyMeta::NO_TEST_SETS.to_owned(),
        sets => sets.join(", "),
    }
}

/// The scenarios of a configuration whose links are those of a test or validation set.
fn test_links(network: &NetworkConfig, allowed: bool) -> Result<Vec<Scenario>, TestSetError> {
    let mut found = Vec::new();
    for (index, entry) in network.links.iter().enumerate() {
        let Some(spec) = &entry.scenarios else {
            continue;
        };
        for scenario in scenario::load(spec)? {
            let judges = |member: &&Member| member.set.role != Role::Training;
            let Some(member) = members(&scenario).iter().find(judges) else {
                continue;
            };
            if !allowed {
                return Err(TestSetError::TestLink {
                    index,
                    spec: spec.clone(),
                    scenario: scenario.name,
                    set: member.set.name,
                    member: member.scenario.clone(),
                    role: member.set.role,
                });
            }
            found.push(scenario);
        }
    }
    Ok(found)
}

/// Names for links of test and validation sets: a set if all of its links are there, and otherwise
/// `SET/SCENARIO` for each.
fn names(links: &[Scenario]) -> Vec<String> {
    let has: BTreeSet<_> = links.iter().map(link).collect();
    let mut names = Vec::new();
    for set in SETS.iter().filter(|set| set.role != Role::Training) {
        // The tests exclude built-in sets that do not load.
        let scenarios = set.scenarios().unwrap_or_default();
        let seen: Vec<_> = scenarios
            .iter()
            .filter(|own| has.contains(&link(own)))
            .collect();
        match seen.len() == scenarios.len() {
            true => names.push(set.name.to_owned()),
            false => names.extend(seen.iter().map(|own| format!("{}/{}", set.name, own.name))),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use cc_core::policy::{DEFAULT_POLICY, PolicyFile};

    use super::*;

    fn config(links: &str, more: &str) -> Config {
        toml::from_str(&format!(
            "{more}\n[environment]\nkind = \"network\"\n{links}"
        ))
        .expect("a configuration")
    }

    #[track_caller]
    fn refused(links: &str) -> String {
        check(&config(links, "")).expect_err(links).to_string()
    }

    #[test]
    fn a_test_set_by_name_is_refused_with_its_key_and_a_remedy() {
        let message = refused("links = [{ family = \"broad\" }, { scenarios = \"pantheon\" }]");
        let beginning = "links[1].scenarios = \"pantheon\": the link of `nepal-india` is that of \
                         `calibrated/nepal-india`, and policies are judged on this test set";
        assert!(message.starts_with(beginning), "{message}");
        assert!(message.contains("set allow_test_sets = true"), "{message}");
        assert!(refused("links = [{ scenarios = \"sage-2/0\" }]").contains("sage-1"));
        let validation = refused("links = [{ scenarios = \"validation/3\" }]");
        assert!(validation.contains("this validation set"), "{validation}");
    }

    #[test]
    fn a_renamed_copy_with_other_flows_is_refused() {
        let folder = tempfile::tempdir().expect("a scratch directory");
        let file = folder.path().join("mine.toml");
        let text = "[[scenario]]\nname = \"fresh\"\nrate_mbps = 17\ndelay_ms = 3\n\
                    [[scenario]]\nname = \"mine\"\nrate_mbps = 24\ndelay_ms = 20\n\
                    queue = { bytes = 120000 }\n[[scenario.flow]]\nscheme = \"bbr\"\n";
        fs::write(&file, text).expect("the scratch directory takes files");
        let message = refused(&format!("links = [{{ scenarios = {file:?} }}]"));
        let expected = "the link of `mine` is that of `fairness/pair`";
        assert!(message.contains(expected), "{message}");
        let fresh = format!("{}/fresh", file.display());
        let fresh = config(&format!("links = [{{ scenarios = {fresh:?} }}]"), "");
        assert_eq!(check(&fresh).expect("allowed"), [""; 0]);
    }

    #[test]
    fn what_is_allowed_is_named_in_the_policys_file() {
        let allowed = |spec| {
            let links = format!("links = [{{ scenarios = \"{spec}\" }}]");
            check(&config(&links, "allow_test_sets = true")).expect("allowed")
        };
        let six: Vec<_> = allowed("calibrated");
        assert_eq!(six[0], "calibrated");
        assert!(
            six[1..].iter().all(|name| name.starts_with("pantheon/")),
            "{six:?}"
        );
        assert_eq!(six.len(), 7);
        let all = allowed("pantheon");
        assert!(all.contains(&"pantheon".to_owned()), "{all:?}");
        assert!(allowed("training/0").is_empty());
    }

    /// The configuration of that name that comes along.
    fn load(name: &str) -> Config {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("training");
        Config::load(&folder.join(name)).expect(name)
    }

    #[test]
    fn configurations_that_come_along_say_what_they_train_on() {
        let config = load("calibrated.toml");
        assert!(config.allow_test_sets);
        assert!(!check(&config).expect("allowed").is_empty());
        for name in [
            "batches.toml",
            "cartpole.toml",
            "cartpole-lstm.toml",
            "changes.toml",
            "contest.toml",
            "convolution.toml",
            "default.toml",
            "distant.toml",
            "even.toml",
            "excess.toml",
            "fair.toml",
            "falls.toml",
            "families.toml",
            "forgets.toml",
            "jitter.toml",
            "later.toml",
            "longer.toml",
            "noise.toml",
            "pairs.toml",
            "radio.toml",
            "refine.toml",
            "response.toml",
            "rises.toml",
            "shares.toml",
        ] {
            let config = load(name);
            assert!(!config.allow_test_sets, "{name}");
            assert_eq!(check(&config).expect(name), [""; 0], "{name}");
            config.environment.open().expect(name);
        }
    }

    /// It is the mean of four seeds of one configuration ([`crate::average`]). The hashes of the
    /// configuration are those of the version that trained them, so that what the file states is
    /// compared.
    #[test]
    fn the_embedded_policy_was_trained_by_the_configuration_that_says_so() {
        let file = PolicyFile::parse(DEFAULT_POLICY).expect("it is ours");
        let meta = file.meta();
        let config = load("contest.toml");
        let source = config.environment.open().expect("contest.toml");
        assert_eq!(Some(&meta.interface), source.interface());
        assert_eq!(meta.serving, config.serving);
        for (number, seed) in [(1, "71"), (2, "72"), (3, "73"), (4, "74")] {
            let stated = |entry: &str| meta.provenance[&format!("{number}.{entry}")].as_str();
            assert_eq!(stated("seed"), seed, "{number}");
            assert_eq!(stated("tasks"), source.tasks().join(", "), "{number}");
            let steps: u64 = stated("steps").parse().expect("a number");
            assert!(
                (config.steps..config.steps + 10_000).contains(&steps),
                "{number}: {steps}"
            );
        }
    }

    #[test]
    fn families_and_the_training_set_may_be_trained_on() {
        for links in [
            "links = [{ family = \"extreme\" }, { scenarios = \"training\" }]",
            "",
        ] {
            assert_eq!(check(&config(links, "")).expect(links), [""; 0]);
        }
    }
}
