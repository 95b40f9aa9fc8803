//! Aggregation of the runs of each scheme on each scenario.

use super::{Run, Summary, statistics};

/// Confidence level of all intervals that are shown.
pub const CONFIDENCE: f64 = 0.95;

/// Seed of the bootstrap, fixed so that the same runs always give the same interval.
const SEED: u64 = 1;

/// A measure of a run, with the name and unit that tables show.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Name of the measure in headings.
    pub name: &'static str,
    /// Unit of `value`; may be empty.
    pub unit: &'static str,
    /// Reads the measure from a run; `None` where it is undefined.
    pub value: fn(&Run) -> Option<f64>,
}

/// Measures that are shown for every scenario.
pub const MEASURES: [Measure; 6] = [
    THROUGHPUT,
    Measure {
        name: "utilisation",
        unit: "%",
        value: |run| run.utilization.map(|share| 100.0 * share),
    },
    P95_DELAY,
    Measure {
        name: "mean delay",
        unit: "ms",
        value: |run| run.mean_owd_ms,
    },
    Measure {
        name: "loss",
        unit: "%",
        value: |run| Some(100.0 * run.loss_rate),
    },
    Measure {
        name: "retrans.",
        unit: "",
        value: |run| Some(run.retransmissions as f64),
    },
];

/// Additional measures of scenarios with several flows.
pub const MEASURES_OF_SHARING: [Measure; 3] = [
    Measure {
        name: "Jain's index",
        unit: "",
        value: |run| run.jain,
    },
    Measure {
        name: "least ÷ greatest",
        unit: "",
        value: |run| run.least_over_greatest,
    },
    Measure {
        name: "converg.",
        unit: "s",
        value: |run| run.convergence_s,
    },
];

/// Throughput of all flows together, Mbit/s.
pub const THROUGHPUT: Measure = Measure {
    name: "throughput",
    unit: "Mbit/s",
    value: |run| Some(run.throughput_mbps),
};

/// 95th percentile of the one-way delay, ms.
pub const P95_DELAY: Measure = Measure {
    name: "p95 delay",
    unit: "ms",
    value: |run| run.p95_owd_ms,
};

/// All runs of one scheme on one scenario.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// Name of the scenario that the runs were made on.
    pub scenario: &'a str,
    /// Name of the scheme under test in the runs.
    pub scheme: &'a str,
    /// The runs in the order of their numbers, invalid ones included.
    pub runs: Vec<&'a Run>,
}

/// Mean over several runs, with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Mean over the runs for which the measure is defined.
    pub mean: f64,
    /// Bootstrap interval of the mean at the level [`CONFIDENCE`]; `None` for a single run.
    pub interval: Option<(f64, f64)>,
    /// Number of runs behind the mean.
    pub samples: usize,
}

/// Groups the runs by scenario and scheme, each in the order of the settings. Scenarios and schemes
/// that the settings do not list come last, in the order of their names.
pub fn groups(summary: &Summary) -> Vec<Group<'_>> {
    let settings = &summary.settings;
    let place = |run: &Run| {
        let scenario = settings
            .scenarios
            .iter()
            .position(|s| s.name == run.scenario);
        let scheme = settings.schemes.iter().position(|s| *s == run.scheme);
        (scenario.unwrap_or(usize::MAX), scheme.unwrap_or(usize::MAX))
    };
    let key = |run: &Run| {
        let (scenario, scheme) = place(run);
        (
            scenario,
            run.scenario.clone(),
            scheme,
            run.scheme.clone(),
            run.run,
        )
    };
    let mut runs: Vec<&Run> = summary.runs.iter().collect();
    runs.sort_by_cached_key(|run| key(run));
    runs.chunk_by(|a, b| (&a.scenario, &a.scheme) == (&b.scenario, &b.scheme))
        .map(|runs| Group {
            scenario: &runs[0].scenario,
            scheme: &runs[0].scheme,
            runs: runs.to_vec(),
        })
        .collect()
}

impl<'a> Group<'a> {
    /// The valid runs of the group.
    pub fn valid(&self) -> impl Iterator<Item = &'a Run> + '_ {
        self.runs.iter().copied().filter(|run| run.is_valid())
    }

    /// The mean of a measure over the valid runs; `None` when it is undefined in all of them.
    pub fn estimate(&self, measure: &Measure) -> Option<Estimate> {
        let samples: Vec<f64> = self
            .valid()
            .filter_map(measure.value)
            .filter(|value| value.is_finite())
            .collect();
        Some(Estimate {
            mean: statistics::mean(&samples)?,
            interval: statistics::bootstrap_interval(&samples, CONFIDENCE, SEED),
            samples: samples.len(),
        })
    }

    /// Whether the scenario has several flows.
    pub fn is_shared(&self) -> bool {
        self.runs.iter().any(|run| run.flows.len() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{Settings, Validity};

    fn run(scheme: &str, run: u32, throughput_mbps: f64, reason: Option<&str>) -> Run {
        Run {
            scenario: "a".into(),
            scheme: scheme.into(),
            run,
            throughput_mbps,
            validity: Validity {
                reasons: reason.map(str::to_owned).into_iter().collect(),
                ..Validity::default()
            },
            ..Run::default()
        }
    }

    #[test]
    fn only_valid_runs_count_and_schemes_keep_their_order() {
        let summary = Summary {
            runs: vec![
                run("cubic", 1, 4.0, None),
                run("bbr", 0, 9.0, None),
                run("cubic", 0, 2.0, None),
                run("cubic", 2, 900.0, Some("late")),
                run("bbr", 1, 900.0, Some("late")),
            ],
            applications: Vec::new(),
            host: crate::summary::Host::default(),
            settings: Settings {
                schemes: vec!["cubic".into(), "bbr".into()],
                ..Settings::default()
            },
        };
        let groups = groups(&summary);
        let schemes: Vec<&str> = groups.iter().map(|group| group.scheme).collect();
        assert_eq!(schemes, ["cubic", "bbr"]);
        let cubic = groups[0].estimate(&THROUGHPUT).expect("two valid runs");
        assert_eq!(
            (cubic.mean, cubic.interval, cubic.samples),
            (3.0, Some((2.0, 4.0)), 2)
        );
        let bbr = groups[1].estimate(&THROUGHPUT).expect("a valid run");
        assert_eq!((bbr.mean, bbr.interval, bbr.samples), (9.0, None, 1));
        assert_eq!(groups[1].estimate(&P95_DELAY), None);
        assert_eq!(groups[0].runs.len(), 3);
    }
}
