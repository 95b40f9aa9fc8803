//! Power over several scenarios: one number per scheme.

use std::collections::BTreeSet;

use super::aggregate::{Group, P95_DELAY, THROUGHPUT};

/// Power of one scheme over several scenarios.
#[derive(Clone, Debug, PartialEq)]
pub struct Power<'a> {
    /// Name of the scheme in the summary.
    pub scheme: &'a str,
    /// Geometric mean over the scenarios of throughput divided by the 95th percentile of the
    /// one-way delay, Mbit/s per s. Both are means over the valid runs.
    pub power: f64,
    /// Ratio to the highest power among the other schemes; `None` without another scheme.
    pub against_best_other: Option<f64>,
    /// Number of scenarios behind the mean: those on which every scheme has a value.
    pub scenarios: usize,
}

/// Computes the power of each scheme, in the order of the groups.
///
/// The mean is geometric so that a factor counts the same on slow and on fast links. It covers the
/// same scenarios for all schemes, because otherwise a scheme would gain from having no valid run
/// on a hard scenario.
pub fn of<'a>(groups: &[Group<'a>]) -> Vec<Power<'a>> {
    let logarithm = |group: &Group<'_>| {
        let throughput = group.estimate(&THROUGHPUT)?.mean;
        let delay_s = group.estimate(&P95_DELAY)?.mean / 1e3;
        Some((throughput / delay_s).ln()).filter(|power| power.is_finite())
    };
    let mut schemes: Vec<&str> = Vec::new();
    for group in groups {
        if !schemes.contains(&group.scheme) {
            schemes.push(group.scheme);
        }
    }
    let all: BTreeSet<&str> = groups.iter().map(|group| group.scenario).collect();
    let of_scenario = |scenario: &str| -> Option<Vec<f64>> {
        let of_scheme = |scheme: &&str| {
            let mut groups = groups.iter();
            logarithm(groups.find(|group| (group.scenario, group.scheme) == (scenario, *scheme))?)
        };
        schemes.iter().map(of_scheme).collect()
    };
    let complete: Vec<Vec<f64>> = all.into_iter().filter_map(of_scenario).collect();
    if complete.is_empty() {
        return Vec::new();
    }
    let mean = |index: usize| {
        let logarithms = complete.iter().map(|powers| powers[index]);
        (logarithms.sum::<f64>() / complete.len() as f64).exp()
    };
    let powers: Vec<f64> = (0..schemes.len()).map(mean).collect();
    let against = |index: usize| {
        let others = powers
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index);
        let best = others.map(|(_, power)| *power).reduce(f64::max)?;
        Some(powers[index] / best)
    };
    let rows = schemes.iter().enumerate().map(|(index, scheme)| Power {
        scheme,
        power: powers[index],
        against_best_other: against(index),
        scenarios: complete.len(),
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{Host, Run, Settings, Summary, aggregate::groups};

    fn run(scenario: &str, scheme: &str, throughput_mbps: f64, p95_ms: Option<f64>) -> Run {
        Run {
            scenario: scenario.into(),
            scheme: scheme.into(),
            throughput_mbps,
            p95_owd_ms: p95_ms,
            ..Run::default()
        }
    }

    #[test]
    fn power_is_a_geometric_mean_over_the_scenarios_of_all_schemes() {
        let summary = Summary {
            runs: vec![
                run("slow", "a", 1.0, Some(100.0)),  // 10
                run("slow", "b", 2.0, Some(50.0)),   // 40
                run("fast", "a", 90.0, Some(100.0)), // 900
                run("fast", "b", 10.0, Some(100.0)), // 100
                run("lossy", "a", 50.0, Some(1.0)),
                run("lossy", "b", 0.0, None),
                run("alone", "a", 50.0, Some(1.0)),
            ],
            applications: Vec::new(),
            host: Host::default(),
            settings: Settings::default(),
        };
        let rows = of(&groups(&summary));
        let [b, a] = [&rows[1], &rows[0]];
        assert_eq!((a.scheme, b.scheme, a.scenarios), ("a", "b", 2));
        // √(10·900) and √(40·100).
        assert!((a.power / 9000f64.sqrt() - 1.0).abs() < 1e-12, "{a:?}");
        assert!((b.power / 4000f64.sqrt() - 1.0).abs() < 1e-12, "{b:?}");
        assert!((a.against_best_other.expect("there is b") - 1.5).abs() < 1e-12);
        assert!((b.against_best_other.expect("there is a") - 1.0 / 1.5).abs() < 1e-12);
    }

    #[test]
    fn power_is_undefined_without_a_common_scenario() {
        let summary = Summary {
            runs: vec![
                run("one", "a", 1.0, Some(1.0)),
                run("two", "b", 1.0, Some(1.0)),
            ],
            applications: Vec::new(),
            host: Host::default(),
            settings: Settings::default(),
        };
        assert_eq!(of(&groups(&summary)), []);
    }
}
