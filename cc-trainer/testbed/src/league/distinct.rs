//! Links that are equal under different names, of which a league counts one.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::evaluate::digest;
use cc_sim::scenario::{Direction, Scenario, Service, Trace};

/// A link that is left out because an earlier one is equal to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duplicate {
    /// Name of the link that is left out.
    pub link: String,
    /// Name of the earlier link.
    pub of: String,
}

/// Splits links into those that differ, in their order, and the copies of these.
///
/// Links are equal when everything but name and description is. Of the opportunities that a link
/// has in the same millisecond, only as many count as packets can wait for them: with a queue of
/// one packet, 60 Mbit/s are 12 Mbit/s, and the policers of `pantheon` are two links, not six.
pub fn distinct(scenarios: Vec<Scenario>) -> (Vec<Scenario>, Vec<Duplicate>) {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let (mut kept, mut copies) = (Vec::new(), Vec::new());
    for scenario in scenarios {
        let content = digest(&essence(&scenario));
        match names.get(&content) {
            Some(earlier) => copies.push(Duplicate {
                link: scenario.name,
                of: earlier.clone(),
            }),
            None => {
                names.insert(content, scenario.name.clone());
                kept.push(scenario);
            }
        }
    }
    (kept, copies)
}

/// The scenario without what makes no difference to its flows.
fn essence(scenario: &Scenario) -> Scenario {
    Scenario {
        name: String::new(),
        description: String::new(),
        forward: usable(&scenario.forward),
        reverse: usable(&scenario.reverse),
        ..scenario.clone()
    }
}

/// The direction without the opportunities that no packet can use.
fn usable(direction: &Direction) -> Direction {
    let mut direction = direction.clone();
    let (Service::Opportunities(trace), Some(packets)) =
        (&direction.service, direction.queue.packets)
    else {
        return direction;
    };
    // A packet that an earlier opportunity carried in part waits beside the queue; none can be if
    // the queue holds one packet, which an opportunity carries as a whole.
    let usable = if packets <= 1 { 1 } else { packets + 1 };
    let mut times: Vec<u32> = Vec::with_capacity(trace.times().len());
    let mut equal = 0;
    for &time in trace.times() {
        equal = if times.last() == Some(&time) {
            equal + 1
        } else {
            1
        };
        if equal <= usable {
            times.push(time);
        }
    }
    if let Ok(trace) = Trace::from_times(times) {
        direction.service = Service::Opportunities(Arc::new(trace));
    }
    direction
}

#[cfg(test)]
mod tests {
    use cc_sim::scenario;

    use super::*;

    fn parsed(links: &str) -> Vec<Scenario> {
        scenario::parse(links, "links.toml".as_ref()).expect("good links")
    }

    #[test]
    fn names_and_descriptions_make_no_link() {
        let links = parsed(
            "
[[scenario]]
name = \"one\"
rate_mbps = 12
delay_ms = 10
[[scenario]]
name = \"other\"
rate_mbps = 12
delay_ms = 11
[[scenario]]
name = \"again\"
description = \"the first one\"
rate_mbps = 12
delay_ms = 10
",
        );
        let (kept, copies) = distinct(links);
        let names: Vec<_> = kept.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["one", "other"]);
        let expected = Duplicate {
            link: "again".into(),
            of: "one".into(),
        };
        assert_eq!(copies, [expected]);
    }

    #[test]
    fn policers_with_a_queue_of_one_packet_are_equal_at_any_rate() {
        let pantheon = scenario::load("pantheon").expect("built in");
        let (kept, copies) = distinct(pantheon);
        assert_eq!(kept.len(), 14);
        let copies: Vec<_> = copies
            .iter()
            .map(|copy| (copy.link.as_str(), copy.of.as_str()))
            .collect();
        let expected = [
            ("policer-60-rtt20", "policer-12-rtt20"),
            ("policer-108-rtt20", "policer-12-rtt20"),
            ("policer-60-rtt100", "policer-12-rtt100"),
            ("policer-108-rtt100", "policer-12-rtt100"),
        ];
        assert_eq!(copies, expected);
    }

    #[test]
    fn a_longer_queue_uses_more_opportunities() {
        let link = |packets, queue| {
            parsed(&format!(
                "[[scenario]]\nname = \"a\"\nopportunities = {{ every_ms = 1, packets = {packets} \
                 }}\ndelay_ms = 10\nqueue = {{ packets = {queue} }}\n[scenario.reverse]\n\
                 rate_mbps = 12\n"
            ))
            .remove(0)
        };
        let equal = |a, b| distinct(vec![a, b]).0.len() == 1;
        assert!(equal(link(5, 1), link(9, 1)));
        assert!(!equal(link(1, 2), link(5, 2)));
        assert!(equal(link(5, 2), link(9, 2)));
        assert!(!equal(link(5, 9), link(9, 9)));
    }
}
