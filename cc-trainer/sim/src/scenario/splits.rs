//! Which built-in sets a scenario belongs to, and in which role.
//!
//! Membership is decided by the [digest of the link](super::content::link), so that a copy of a
//! test set under other names, in a file, or with other flows on its links is found as well.

use std::{collections::HashMap, sync::OnceLock};

use super::{Role, SETS, Scenario, Set, content};

/// A scenario of a built-in set.
#[derive(Clone, Debug)]
pub struct Member {
    /// The set that has the link.
    pub set: &'static Set,
    /// Name of the scenario in the set.
    pub scenario: String,
}

/// The scenarios of built-in sets whose link is that of `scenario`, in the order of [`SETS`];
/// empty for a link that is in none.
pub fn members(scenario: &Scenario) -> &'static [Member] {
    let found = index().get(&content::link(scenario));
    found.map_or(&[], Vec::as_slice)
}

/// The role of a scenario: the strictest one of the sets that have its link, where test is stricter
/// than validation, and validation stricter than training; `None` for a link that is in no set.
pub fn role(scenario: &Scenario) -> Option<Role> {
    members(scenario).iter().map(|member| member.set.role).max()
}

/// The members of all built-in sets by the digests of their links.
fn index() -> &'static HashMap<[u8; 32], Vec<Member>> {
    static INDEX: OnceLock<HashMap<[u8; 32], Vec<Member>>> = OnceLock::new();
    INDEX.get_or_init(|| {
        let mut index: HashMap<_, Vec<_>> = HashMap::new();
        for set in SETS {
            // The tests exclude built-in sets that do not load.
            for scenario in set.scenarios().unwrap_or_default() {
                index
                    .entry(content::link(&scenario))
                    .or_default()
                    .push(Member {
                        set,
                        scenario: scenario.name,
                    });
            }
        }
        index
    })
}

/// A built-in set of which an evaluation has scenarios.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The set that has these scenarios.
    pub set: &'static Set,
    /// Number of its links that the evaluation has.
    pub included: usize,
}

/// The built-in sets of which `scenarios` has at least one link, in the order of [`SETS`].
pub fn parts(scenarios: &[Scenario]) -> Vec<Part> {
    let members: Vec<_> = scenarios.iter().map(members).collect();
    let part = |set: &'static Set| {
        let is_of = |members: &&&[Member]| members.iter().any(|own| own.set.name == set.name);
        Part {
            set,
            included: members.iter().filter(is_of).count(),
        }
    };
    let parts = SETS.iter().map(part);
    parts.filter(|part| part.included > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;

    #[test]
    fn parts_are_counted_by_links() {
        let scenarios = load("pantheon/0,pantheon/17,sage-2").expect("built in");
        let found: Vec<_> = parts(&scenarios)
            .into_iter()
            .map(|part| (part.set.name, part.included))
            .collect();
        // The links of `sage-2` are also in `sage-1`, which has them without the cubic.
        let expected = [
            ("calibrated", 1),
            ("pantheon", 2),
            ("sage-1", 125),
            ("sage-2", 125),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn roles_follow_from_the_links() {
        let role_of = |spec| role(&load(spec).expect(spec)[0]);
        assert_eq!(role_of("training/0"), Some(Role::Training));
        assert_eq!(role_of("validation/0"), Some(Role::Validation));
        assert_eq!(role_of("broad/0"), Some(Role::Test));
    }
}
