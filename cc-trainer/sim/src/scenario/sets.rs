//! The built-in sets of scenarios.

use std::path::Path;

use super::{Scenario, ScenarioError, file};

/// A named list of built-in scenarios.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// Name of the set, as [`load`](super::load) takes it.
    pub name: &'static str,
    /// Description of the set in one line.
    pub description: &'static str,
    /// Content of the set's scenario file.
    text: &'static str,
    /// Number of the file's scenarios that belong to the set, from the first one.
    count: usize,
}

/// All built-in sets, in the order in which they are listed.
pub const SETS: &[Set] = &[
    Set {
        name: "calibrated",
        description: "six paths of the Internet, on which the published policy was trained (the \
                      first of `pantheon`)",
        text: PANTHEON,
        count: 6,
    },
    Set {
        name: "pantheon",
        description: "the eighteen paths of Pantheon's emulation: measured ones, policers, sparse \
                      ACKs, small buffers",
        text: PANTHEON,
        count: 18,
    },
    Set {
        name: "cellular",
        description: "mobile networks from 3G to 5G, generated",
        text: include_str!("../../scenarios/cellular.toml"),
        count: usize::MAX,
    },
    Set {
        name: "dynamic",
        description: "paths whose rate or delay changes under the flow",
        text: include_str!("../../scenarios/dynamic.toml"),
        count: usize::MAX,
    },
    Set {
        name: "jitter",
        description: "links whose delay varies from packet to packet, as in a busy radio network",
        text: include_str!("../../scenarios/jitter.toml"),
        count: usize::MAX,
    },
    Set {
        name: "fairness",
        description: "two to eight flows on one link",
        text: include_str!("../../scenarios/fairness.toml"),
        count: usize::MAX,
    },
    Set {
        name: "fast",
        description: "500 Mbit/s up to what the host can carry",
        text: include_str!("../../scenarios/fast.toml"),
        count: usize::MAX,
    },
    Set {
        name: "applications",
        description: "bursts after silence, requests, keystrokes, video and short flows",
        text: include_str!("../../scenarios/applications.toml"),
        count: usize::MAX,
    },
    Set {
        name: "demo",
        description: "one link, alone and beside a cubic flow",
        text: include_str!("../../scenarios/demo.toml"),
        count: usize::MAX,
    },
];

const PANTHEON: &str = include_str!("../../scenarios/pantheon.toml");

impl Set {
    /// The scenarios of the set.
    ///
    /// # Errors
    ///
    /// Returns an error when the set's file is invalid, which the tests exclude for the built-in
    /// sets.
    pub fn scenarios(&self) -> Result<Vec<Scenario>, ScenarioError> {
        let mut scenarios = file::parse(
            self.text,
            Path::new(&format!("(built in) {}.toml", self.name)),
        )?;
        scenarios.truncate(self.count);
        Ok(scenarios)
    }
}

/// The set with that name, if there is one.
pub(super) fn find(name: &str) -> Option<&'static Set> {
    SETS.iter().find(|set| set.name == name)
}

/// Names of all sets, separated by commas.
pub(super) fn names() -> String {
    SETS.iter()
        .map(|set| set.name)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use super::{
        super::{Loss, Queue, Service},
        *,
    };

    fn set(name: &str) -> Vec<Scenario> {
        find(name).expect(name).scenarios().expect(name)
    }

    fn mean_mbps(service: &Service) -> f64 {
        service.mean_bits_per_second().expect("a limit") / 1e6
    }

    #[test]
    fn every_set_loads_and_names_are_unique() {
        let mut names = BTreeSet::new();
        for set in SETS.iter().filter(|set| set.name != "calibrated") {
            for scenario in set.scenarios().expect(set.name) {
                assert!(!scenario.description.is_empty(), "{}", scenario.name);
                assert!(
                    names.insert(scenario.name.clone()),
                    "{} is there twice",
                    scenario.name
                );
                for flow in &scenario.flows {
                    assert!(
                        flow.start < Duration::from_secs(15),
                        "{}: for runs of 30 s",
                        scenario.name
                    );
                    assert!(
                        flow.stop.is_none_or(|stop| stop < Duration::from_secs(30)),
                        "{}",
                        scenario.name
                    );
                }
            }
        }
    }

    #[test]
    fn the_calibrated_six_are_the_first_of_pantheon() {
        let pantheon = set("pantheon");
        assert_eq!(pantheon.len(), 18);
        assert_eq!(set("calibrated"), pantheon[..6]);
    }

    /// The table of the published experiments: name, Mbit/s of the trace, delay in ms, loss, queue
    /// in packets or bytes.
    #[test]
    fn pantheon_has_the_numbers_of_its_table() {
        let packets = |packets| Queue {
            packets: Some(packets),
            ..Queue::default()
        };
        let bytes = |bytes| Queue {
            bytes: Some(bytes),
            ..Queue::default()
        };
        let table = [
            (
                "nepal-india",
                0.557,
                28,
                Loss::Bernoulli(0.0477),
                packets(14),
            ),
            ("mexico-california", 2.435, 88, Loss::None, packets(130)),
            ("brazil-colombia", 2.817, 130, Loss::None, packets(426)),
            ("india-india", 100.42, 27, Loss::None, packets(173)),
            (
                "korea-china",
                77.72,
                51,
                Loss::Bernoulli(0.0006),
                packets(94),
            ),
            ("california-mexico", 114.68, 45, Loss::None, packets(450)),
            ("policer-12-rtt20", 12.0, 10, Loss::None, packets(1)),
            ("policer-60-rtt20", 60.0, 10, Loss::None, packets(1)),
            ("policer-108-rtt20", 108.0, 10, Loss::None, packets(1)),
            ("policer-12-rtt100", 12.0, 50, Loss::None, packets(1)),
            ("policer-60-rtt100", 60.0, 50, Loss::None, packets(1)),
            ("policer-108-rtt100", 108.0, 50, Loss::None, packets(1)),
            ("ack-1-per-100ms", 12.0, 10, Loss::None, Queue::default()),
            ("ack-10-per-200ms", 12.0, 10, Loss::None, Queue::default()),
            ("bdp-tenth", 12.0, 30, Loss::None, bytes(9000)),
            ("bdp-third", 12.0, 30, Loss::None, bytes(30_000)),
            ("bdp-half", 12.0, 30, Loss::None, bytes(45_000)),
            ("bdp-1", 12.0, 30, Loss::None, bytes(90_000)),
        ];
        for (scenario, (name, mbps, delay_ms, loss, queue)) in
            set("pantheon").into_iter().zip(table)
        {
            assert_eq!(scenario.name, name);
            let mean = mean_mbps(&scenario.forward.service);
            assert!(
                (mean / mbps - 1.0).abs() < 0.005,
                "{name}: {mean} is not {mbps} Mbit/s"
            );
            assert_eq!(
                scenario.base_rtt(),
                Duration::from_millis(2 * delay_ms),
                "{name}"
            );
            assert_eq!(scenario.forward.loss, loss, "{name}");
            assert_eq!(scenario.forward.queue, queue, "{name}");
            assert_eq!(scenario.reverse.loss, Loss::None, "{name}");
            let (reverse_mbps, reverse_queue) = match name {
                "ack-1-per-100ms" => (0.12, Queue::default()),
                "ack-10-per-200ms" => (0.6, Queue::default()),
                policer if policer.starts_with("policer") => (mean, packets(1)),
                _ => (mean, Queue::default()),
            };
            assert!(
                (mean_mbps(&scenario.reverse.service) / reverse_mbps - 1.0).abs() < 1e-9,
                "{name}"
            );
            assert_eq!(scenario.reverse.queue, reverse_queue, "{name}");
        }
    }

    #[test]
    fn pantheons_random_traces_have_as_many_opportunities_as_the_recorded_ones() {
        let lines = [2786, 12_177, 14_084];
        for (scenario, lines) in set("pantheon").into_iter().zip(lines) {
            let Service::Opportunities(trace) = scenario.forward.service else {
                panic!("{} has no trace", scenario.name);
            };
            assert_eq!(trace.times().len(), lines, "{}", scenario.name);
        }
    }

    #[test]
    fn capacity_counts_the_bits_that_a_link_can_carry() {
        let capacity = |spec: &str, from, to| {
            let scenario = super::super::load(spec).expect(spec).remove(0);
            scenario
                .forward
                .service
                .capacity_bits(Duration::from_secs(from), Duration::from_secs(to))
        };
        // One packet of 12000 bits per millisecond, the first one after 1 ms.
        assert_eq!(capacity("pantheon/bdp-1", 0, 30), Some(29_999.0 * 12_000.0));
        assert_eq!(capacity("pantheon/bdp-1", 70, 71), Some(12e6));
        assert_eq!(capacity("dynamic/rate-doubles", 5, 15), Some(180e6));
        assert_eq!(capacity("dynamic/outages", 0, 30), Some(540e6));
        assert_eq!(capacity("dynamic/oscillates", 0, 4), Some(72e6));
        assert_eq!(capacity("dynamic/ramps", 0, 30), Some(600e6));
        assert_eq!(capacity("fast/ceiling", 0, 1), None);
    }

    #[test]
    fn fairness_has_two_to_eight_flows_of_which_one_is_under_test() {
        for scenario in set("fairness") {
            assert!((2..=8).contains(&scenario.flows.len()), "{}", scenario.name);
            assert!(
                scenario.flows.iter().any(|flow| flow.scheme.is_none()),
                "{}",
                scenario.name
            );
        }
    }

    #[test]
    fn fast_links_have_queues_of_a_bandwidth_delay_product() {
        for scenario in set("fast") {
            let Some(rate) = scenario.forward.service.mean_bits_per_second() else {
                continue;
            };
            let product = (rate * scenario.base_rtt().as_secs_f64() / 8.0).round() as u64;
            assert_eq!(
                scenario.forward.queue.bytes,
                Some(product),
                "{}",
                scenario.name
            );
        }
    }
}
