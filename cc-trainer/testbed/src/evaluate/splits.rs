//! What an evaluation says about splits: which built-in sets its scenarios belong to, and which of
//! them its policies have seen in training.

use std::collections::BTreeSet;

use cc_core::policy::{DEFAULT_POLICY, PolicyFile, PolicyKind, PolicyMeta, PolicySpec};
use cc_sim::scenario::{
    Scenario,
    splits::{members, parts},
};

use crate::summary::{SetFacts, TrainedOn};

/// The built-in sets of which the scenarios are, with their hashes.
pub(super) fn sets(scenarios: &[Scenario]) -> Vec<SetFacts> {
    let facts = parts(scenarios).into_iter().filter_map(|part| {
        // The tests exclude built-in sets that do not load.
        let all = part.set.scenarios().ok()?;
        Some(SetFacts {
            name: part.set.name.to_owned(),
            role: part.set.role.name().to_owned(),
            sha256: part.set.hash().ok()?,
            included: u32::try_from(part.included).unwrap_or(u32::MAX),
            scenarios: u32::try_from(all.len()).unwrap_or(u32::MAX),
        })
    });
    facts.collect()
}

/// What is known about the training of a policy; `None` for one that was not trained.
pub(super) fn trained_on(spec: &PolicySpec, scenarios: &[Scenario]) -> Option<TrainedOn> {
    let file = match spec {
        PolicySpec::Default => PolicyFile::parse(DEFAULT_POLICY).ok(),
        PolicySpec::Onnx(path) | PolicySpec::Pinned { path, .. } => PolicyFile::read(path).ok(),
        _ => None,
    };
    // A policy that cannot be read is reported by those who serve it.
    of_file(file?.meta(), scenarios)
}

fn of_file(meta: &PolicyMeta, scenarios: &[Scenario]) -> Option<TrainedOn> {
    if meta.kind == PolicyKind::Heuristic {
        return None;
    }
    let list = |key: &str| -> Option<BTreeSet<&str>> {
        Some(meta.provenance.get(key)?.split(", ").collect())
    };
    let stated = list(PolicyMeta::TEST_SETS);
    // A file from before there were splits names its tasks, which are scenarios among others.
    let tasks = match stated {
        Some(_) => BTreeSet::new(),
        None => list("tasks").unwrap_or_default(),
    };
    let has_seen = |scenario: &&Scenario| {
        members(scenario).iter().any(|member| {
            let (set, name) = (member.set.name, member.scenario.as_str());
            let place = format!("{set}/{name}");
            tasks.contains(name)
                || stated
                    .as_ref()
                    .is_some_and(|sets| sets.contains(set) || sets.contains(place.as_str()))
        })
    };
    let seen = scenarios.iter().filter(has_seen);
    Some(TrainedOn {
        test_sets: meta.provenance.get(PolicyMeta::TEST_SETS).cloned(),
        seen: seen.map(|scenario| scenario.name.clone()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cc_core::interface::Interface;
    use cc_sim::scenario::load;

    use super::*;

    fn meta(provenance: &[(&str, &str)]) -> PolicyMeta {
        let entries = provenance.iter();
        PolicyMeta {
            name: "test".to_owned(),
            kind: PolicyKind::Trained,
            interface: Interface::default(),
            hidden: vec![8],
            state: 8,
            serving: Default::default(),
            provenance: entries
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>(),
        }
    }

    fn seen(provenance: &[(&str, &str)], spec: &str) -> Vec<String> {
        let scenarios = load(spec).expect(spec);
        of_file(&meta(provenance), &scenarios)
            .expect("trained")
            .seen
    }

    #[test]
    fn links_of_the_sets_that_a_file_names_are_seen() {
        let both = "pantheon/bdp-1,pantheon/0,dynamic/ramps";
        assert!(seen(&[("test_sets", "none")], both).is_empty());
        assert!(seen(&[("test_sets", "unknown")], both).is_empty());
        assert_eq!(seen(&[("test_sets", "calibrated")], both), ["nepal-india"]);
        let places = "dynamic/ramps, pantheon/bdp-1";
        assert_eq!(seen(&[("test_sets", places)], both), ["bdp-1", "ramps"]);
        assert_eq!(
            seen(&[("test_sets", "pantheon")], both),
            ["bdp-1", "nepal-india"]
        );
    }

    #[test]
    fn a_file_from_before_splits_tells_it_by_its_tasks() {
        let tasks = ("tasks", "bdp-1, ramps, random-4");
        assert_eq!(seen(&[tasks], "pantheon/bdp-1,fairness"), ["bdp-1"]);
        let old = of_file(&meta(&[tasks]), &[]).expect("trained");
        assert_eq!(old.test_sets, None);
    }

    #[test]
    fn the_embedded_policy_has_seen_no_link_of_a_test_set() {
        let scenarios = load("pantheon,sage-1").expect("built in");
        let policy = trained_on(&PolicySpec::Default, &scenarios).expect("trained");
        let none = PolicyMeta::NO_TEST_SETS.to_owned();
        assert_eq!((policy.test_sets, policy.seen.len()), (Some(none), 0));
    }

    #[test]
    fn sets_are_named_with_role_and_hash() {
        let scenarios = load("cellular").expect("built in");
        let sets = sets(&scenarios);
        assert_eq!(sets.len(), 1);
        assert_eq!(
            (sets[0].name.as_str(), sets[0].role.as_str()),
            ("cellular", "test")
        );
        assert_eq!((sets[0].included, sets[0].scenarios), (6, 6));
        assert_eq!(sets[0].sha256.len(), 64);
    }
}
