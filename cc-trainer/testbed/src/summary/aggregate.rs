//! The runs of a scheme on a scenario, taken together.

use super::{Run, Summary, statistics};

/// Confidence of every interval that is shown.
pub const CONFIDENCE: f64 = 0.95;

/// The bootstrap's: any will do, as long as the same runs always give the same interval.
const SEED: u64 = 1;

/// A measure of a run, as tables show it.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Its name.
    pub name: &'static str,
    /// The unit of `value`; may be empty.
    pub unit: &'static str,
    /// Its value; none where it is undefined.
    pub value: fn(&Run) -> Option<f64>,
}

/// What is shown of every scenario.
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

/// What is shown as well where several flows run.
pub const MEASURES_OF_SHARING: [Measure; 2] = [
    Measure {
        name: "Jain's index",
        unit: "",
        value: |run| run.jain,
    },
    Measure {
        name: "converg.",
        unit: "s",
        value: |run| run.convergence_s,
    },
];

/// Throughput.
pub const THROUGHPUT: Measure = Measure {
    name: "throughput",
    unit: "Mbit/s",
    value: |run| Some(run.throughput_mbps),
};

/// 95th percentile of the one-way delay.
pub const P95_DELAY: Measure = Measure {
    name: "p95 delay",
    unit: "ms",
    value: |run| run.p95_owd_ms,
};

/// The runs of a scheme on a scenario.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// The scenario's name.
    pub scenario: &'a str,
    /// The scheme.
    pub scheme: &'a str,
    /// Its runs, by number.
    pub runs: Vec<&'a Run>,
}

/// A mean over runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its bootstrap confidence interval ([`CONFIDENCE`]); none of a single run.
    pub interval: Option<(f64, f64)>,
    /// Runs that it is taken over.
    pub samples: usize,
}

/// The runs by scenario and scheme, each in the order of the settings; what those do not name comes last, by name.
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
    /// The runs whose figures can be trusted.
    pub fn valid(&self) -> impl Iterator<Item = &'a Run> + '_ {
        self.runs.iter().copied().filter(|run| run.is_valid())
    }

    /// The mean of a measure over the valid runs; none when it is undefined in all of them.
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

    /// Whether several flows run.
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
