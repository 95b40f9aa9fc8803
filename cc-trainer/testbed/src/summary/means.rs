//! Means over several scenarios: one number per scheme and measure.

use std::collections::BTreeSet;

use super::aggregate::{Group, P95_DELAY, THROUGHPUT};

/// What one scheme has over several scenarios.
#[derive(Clone, Debug, PartialEq)]
pub struct Means<'a> {
    /// Name of the scheme in the summary.
    pub scheme: &'a str,
    /// Throughput of all flows together over the measured time, Mbit/s.
    pub throughput: Mean,
    /// Throughput divided by the 95th percentile of the one-way delay, Mbit/s per s.
    pub power: Mean,
    /// Number of scenarios behind the means: those on which every scheme has both values.
    pub scenarios: usize,
}

/// A geometric mean over the scenarios, of means over the valid runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// Geometric mean over the scenarios, in the unit of the measure.
    pub mean: f64,
    /// Its ratio to the highest mean among the other schemes; `None` without another scheme.
    pub against_best_other: Option<f64>,
}

/// Computes the means of each scheme, in the order of the groups.
///
/// They are geometric so that a factor counts the same on slow and on fast links. They cover the
/// same scenarios for all schemes, because otherwise a scheme would gain from having no valid run
/// on a hard scenario.
pub fn of<'a>(groups: &[Group<'a>]) -> Vec<Means<'a>> {
    // The logarithms of throughput and power.
    let logarithms = |group: &Group<'_>| {
        let throughput = group.estimate(&THROUGHPUT)?.mean;
        let delay_s = group.estimate(&P95_DELAY)?.mean / 1e3;
        let both = [throughput.ln(), (throughput / delay_s).ln()];
        both.iter().all(|value| value.is_finite()).then_some(both)
    };
    let mut schemes: Vec<&str> = Vec::new();
    for group in groups {
        if !schemes.contains(&group.scheme) {
            schemes.push(group.scheme);
        }
    }
    let all: BTreeSet<&str> = groups.iter().map(|group| group.scenario).collect();
    let of_scenario = |scenario: &str| -> Option<Vec<[f64; 2]>> {
        let of_scheme = |scheme: &&str| {
            let mut groups = groups.iter();
            logarithms(groups.find(|group| (group.scenario, group.scheme) == (scenario, *scheme))?)
        };
        schemes.iter().map(of_scheme).collect()
    };
    let complete: Vec<Vec<[f64; 2]>> = all.into_iter().filter_map(of_scenario).collect();
    if complete.is_empty() {
        return Vec::new();
    }
    let [throughputs, powers] = [0, 1].map(|measure| {
        let mean = |scheme: usize| {
            let logarithms = complete.iter().map(|values| values[scheme][measure]);
            (logarithms.sum::<f64>() / complete.len() as f64).exp()
        };
        compared(&(0..schemes.len()).map(mean).collect::<Vec<_>>())
    });
    let values = throughputs.into_iter().zip(powers);
    let rows = schemes.iter().zip(values).map(|(scheme, values)| Means {
        scheme,
        throughput: values.0,
        power: values.1,
        scenarios: complete.len(),
    });
    rows.collect()
}

/// The means of all schemes, each beside those of the others.
fn compared(means: &[f64]) -> Vec<Mean> {
    let against = |index: usize| {
        let others = means
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index);
        let best = others.map(|(_, mean)| *mean).reduce(f64::max)?;
        Some(means[index] / best)
    };
    let compared = means.iter().enumerate().map(|(index, mean)| Mean {
        mean: *mean,
        against_best_other: against(index),
    });
    compared.collect()
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
    fn means_are_geometric_over_the_scenarios_of_all_schemes() {
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
        let [a, b] = &rows[..] else {
            panic!("{rows:?}");
        };
        assert_eq!((a.scheme, b.scheme, a.scenarios), ("a", "b", 2));
        for (own, other, mean, against) in [
            // √(10·900) and √(40·100), √(1·90) and √(2·10).
            (a.power, b.power, 9000_f64.sqrt(), 1.5),
            (a.throughput, b.throughput, 90_f64.sqrt(), 4.5_f64.sqrt()),
        ] {
            assert!((own.mean / mean - 1.0).abs() < 1e-12, "{own:?}");
            let of_own = own.against_best_other.expect("there is b");
            let of_other = other.against_best_other.expect("there is a");
            assert!((of_own / against - 1.0).abs() < 1e-12, "{own:?}");
            assert!((of_other * against - 1.0).abs() < 1e-12, "{other:?}");
        }
    }

    #[test]
    fn there_are_no_means_without_a_common_scenario() {
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
