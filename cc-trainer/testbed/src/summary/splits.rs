//! The lines of tables and reports about sets and training.

use super::{PolicyFacts, SetFacts, Settings, TrainedOn};

/// Digits of a hash that are shown.
const DIGITS: usize = 16;

/// One line per built-in set, with its role and hash, and one per policy that was trained, with
/// what it has seen of the scenarios; none for an evaluation of files only.
pub fn notes(settings: &Settings) -> Vec<String> {
    let policies = settings.policies.iter();
    let mut notes: Vec<_> = settings.sets.iter().map(set).collect();
    notes.extend(policies.filter_map(|facts| policy(facts, settings)));
    notes
}

fn set(facts: &SetFacts) -> String {
    let SetFacts {
        name,
        role,
        sha256,
        included,
        scenarios,
    } = facts;
    let hash = sha256.get(..DIGITS).unwrap_or(sha256);
    format!("set {name}: {role}, {included} of {scenarios} links, sha256 {hash}")
}

fn policy(facts: &PolicyFacts, settings: &Settings) -> Option<String> {
    let TrainedOn { test_sets, seen } = facts.trained_on.as_ref()?;
    if settings.sets.is_empty() {
        return None;
    }
    let scheme = &facts.scheme;
    let seen = match (seen.len(), settings.scenarios.len()) {
        (0, _) => None,
        (some, all) if some == all => Some("seen in training: all links".to_owned()),
        (some, all) => Some(format!("seen in training: {some} of {all} links")),
    };
    Some(match (test_sets.as_deref(), seen) {
        (Some("none"), _) => format!("{scheme}: no link of a test set was seen in training"),
        (Some(sets), Some(seen)) => format!("{scheme}: {seen} (trained on {sets})"),
        (Some("unknown"), None) => {
            format!("{scheme}: nobody can tell on which links it was trained")
        }
        (Some(sets), None) => format!("{scheme}: trained on {sets}"),
        (None, Some(seen)) => {
            format!("{scheme}: {seen}, by the names of its tasks (trained before splits existed)")
        }
        (None, None) => format!(
            "{scheme}: whether it was trained on these links is unknown (trained before splits \
             existed); none of its tasks has the name of one"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(test_sets: Option<&str>, seen: usize) -> String {
        let settings = Settings {
            scenarios: vec![Default::default(); 3],
            sets: vec![SetFacts {
                name: "pantheon".into(),
                role: "test".into(),
                sha256: "0123456789abcdef0123".into(),
                included: 3,
                scenarios: 18,
            }],
            policies: vec![PolicyFacts {
                scheme: "rlcc".into(),
                trained_on: Some(TrainedOn {
                    test_sets: test_sets.map(str::to_owned),
                    seen: vec!["a".to_owned(); seen],
                }),
                ..PolicyFacts::default()
            }],
            ..Settings::default()
        };
        let [set, policy] = notes(&settings).try_into().expect("two lines");
        let expected = "set pantheon: test, 3 of 18 links, sha256 0123456789abcdef";
        assert_eq!(set, expected);
        policy
    }

    #[test]
    fn what_a_policy_has_seen_is_said() {
        let expected = "rlcc: seen in training: 2 of 3 links (trained on pantheon/a, pantheon/b)";
        assert_eq!(note(Some("pantheon/a, pantheon/b"), 2), expected);
        assert!(note(Some("calibrated"), 3).contains("seen in training: all links"));
        assert!(note(Some("none"), 0).contains("no link of a test set was seen"));
        assert!(note(None, 1).contains("trained before splits existed"));
        assert!(note(None, 0).contains("unknown"));
        assert!(note(Some("unknown"), 0).contains("nobody can tell"));
    }

    #[test]
    fn an_evaluation_of_files_says_nothing() {
        assert!(notes(&Settings::default()).is_empty());
    }
}
