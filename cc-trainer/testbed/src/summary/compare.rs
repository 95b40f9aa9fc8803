//! Comparison of two evaluations of the same schemes on the same scenarios: how far the figures of
//! one are from those of the other.

use super::{
    Platform, Summary,
    aggregate::{Group, Measure, P95_DELAY, THROUGHPUT, groups},
    table::{aligned, figure, piped},
};

/// Allowed differences, as fractions of the second evaluation's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Allowed relative difference in throughput.
    pub throughput: f64,
    /// Allowed difference in the 95th percentile of the one-way delay.
    pub p95_delay: f64,
}

/// Result of comparing two evaluations.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Names of the two evaluations, as tables show them.
    pub names: [String; 2],
    /// Differences that count as agreement.
    pub tolerance: Tolerance,
    /// Schemes in both evaluations, in the first one's order.
    pub schemes: Vec<SchemeComparison>,
    /// Pairs of scenario and scheme of which only one evaluation has valid runs.
    pub unmatched: Vec<(String, String)>,
}

/// Comparison of one scheme over all common scenarios.
#[derive(Clone, Debug)]
pub struct SchemeComparison {
    /// Name of the scheme in both evaluations.
    pub scheme: String,
    /// Comparison on each scenario, in the first evaluation's order.
    pub scenarios: Vec<ScenarioComparison>,
}

/// Comparison of one scheme on one scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioComparison {
    /// Name of the scenario in both evaluations.
    pub scenario: String,
    /// Throughput in both evaluations, Mbit/s.
    pub throughput: Pair,
    /// 95th percentile of the one-way delay in both evaluations, ms.
    pub p95_delay: Pair,
}

/// Means over the valid runs of the first and of the second evaluation; `None` where the measure is
/// undefined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair(pub Option<f64>, pub Option<f64>);

impl Pair {
    /// Ratio of the first to the second; `None` where either is undefined or the second is 0.
    pub fn ratio(self) -> Option<f64> {
        let Self(Some(first), Some(second)) = self else {
            return None;
        };
        (second != 0.0).then(|| first / second)
    }

    /// Whether the first differs from the second by at most the fraction `tolerance` of the second.
    /// Two undefined figures agree.
    pub fn agrees(self, tolerance: f64) -> bool {
        match self {
            Self(None, None) => true,
            Self(Some(first), Some(second)) => (first - second).abs() <= tolerance * second.abs(),
            _ => false,
        }
    }
}

impl Tolerance {
    /// Whether both measures agree on a scenario.
    pub fn holds(&self, scenario: &ScenarioComparison) -> bool {
        scenario.throughput.agrees(self.throughput) && scenario.p95_delay.agrees(self.p95_delay)
    }
}

impl SchemeComparison {
    /// Number of scenarios on which both measures agree.
    pub fn agreeing(&self, tolerance: &Tolerance) -> usize {
        let holds = |scenario: &&ScenarioComparison| tolerance.holds(scenario);
        self.scenarios.iter().filter(holds).count()
    }
}

impl Comparison {
    /// Compares two evaluations, taking the second one as the reference.
    pub fn new(first: &Summary, second: &Summary, tolerance: Tolerance) -> Self {
        let names = match (first.settings.on, second.settings.on) {
            (a, b) if a == b => ["first".to_owned(), "second".to_owned()],
            (a, b) => [a, b].map(|on| name(on).to_owned()),
        };
        let (ours, theirs) = (groups(first), groups(second));
        let mut comparison = Self {
            names,
            tolerance,
            schemes: Vec::new(),
            unmatched: Vec::new(),
        };
        let is_valid = |group: &&Group<'_>| group.valid().next().is_some();
        for group in ours.iter().filter(is_valid) {
            let other = theirs
                .iter()
                .filter(is_valid)
                .find(|other| same(group, other));
            match other {
                Some(other) => comparison.add(group, other),
                None => comparison.miss(group),
            }
        }
        for group in theirs.iter().filter(is_valid) {
            if !ours.iter().filter(is_valid).any(|other| same(group, other)) {
                comparison.miss(group);
            }
        }
        comparison
    }

    /// Formats one table per scheme for a terminal, with the number of scenarios that agree.
    pub fn text(&self) -> String {
        self.by_scheme(|scheme, rows, agreement| {
            format!("{}\n{}  {agreement}\n", scheme.scheme, aligned(rows))
        })
    }

    /// Formats one table per scheme in Markdown.
    pub fn markdown(&self) -> String {
        self.by_scheme(|scheme, rows, agreement| {
            format!("### {}\n\n{agreement}\n\n{}", scheme.scheme, piped(rows))
        })
    }

    fn add(&mut self, first: &Group<'_>, second: &Group<'_>) {
        let pair = |measure: &Measure| {
            let mean = |group: &Group<'_>| Some(group.estimate(measure)?.mean);
            Pair(mean(first), mean(second))
        };
        let scenario = ScenarioComparison {
            scenario: first.scenario.to_owned(),
            throughput: pair(&THROUGHPUT),
            p95_delay: pair(&P95_DELAY),
        };
        let known = self
            .schemes
            .iter_mut()
            .find(|scheme| scheme.scheme == first.scheme);
        match known {
            Some(scheme) => scheme.scenarios.push(scenario),
            None => self.schemes.push(SchemeComparison {
                scheme: first.scheme.to_owned(),
                scenarios: vec![scenario],
            }),
        }
    }

    fn miss(&mut self, group: &Group<'_>) {
        self.unmatched
            .push((group.scenario.to_owned(), group.scheme.to_owned()));
    }

    fn by_scheme(
        &self,
        block: impl Fn(&SchemeComparison, &[Vec<String>], &str) -> String,
    ) -> String {
        let blocks = self.schemes.iter().map(|scheme| {
            let rows: Vec<_> = [self.head()]
                .into_iter()
                .chain(scheme.scenarios.iter().map(|scenario| self.row(scenario)))
                .collect();
            block(scheme, &rows, &self.agreement(scheme))
        });
        blocks.collect::<Vec<_>>().join("\n")
    }

    fn head(&self) -> Vec<String> {
        let [first, second] = &self.names;
        let mut head = vec!["scenario".to_owned()];
        for measure in [THROUGHPUT, P95_DELAY] {
            head.push(format!("{}, {}: {first}", measure.name, measure.unit));
            head.push(second.clone());
            head.push("ratio".to_owned());
        }
        head.push("agrees".to_owned());
        head
    }

    fn row(&self, scenario: &ScenarioComparison) -> Vec<String> {
        let mut row = vec![scenario.scenario.clone()];
        for pair in [scenario.throughput, scenario.p95_delay] {
            let cell = |value: Option<f64>| figure(value.unwrap_or(f64::NAN));
            let ratio = pair
                .ratio()
                .map_or("–".to_owned(), |ratio| format!("{ratio:.3}"));
            row.extend([cell(pair.0), cell(pair.1), ratio]);
        }
        let Tolerance {
            throughput,
            p95_delay,
        } = self.tolerance;
        let verdict = match (
            scenario.throughput.agrees(throughput),
            scenario.p95_delay.agrees(p95_delay),
        ) {
            (true, true) => "yes",
            (false, true) => "no: throughput",
            (true, false) => "no: delay",
            (false, false) => "no: both",
        };
        row.push(verdict.to_owned());
        row
    }

    fn agreement(&self, scheme: &SchemeComparison) -> String {
        let count = |agrees: &dyn Fn(&ScenarioComparison) -> bool| {
            scheme
                .scenarios
                .iter()
                .filter(|scenario| agrees(scenario))
                .count()
        };
        let Tolerance {
            throughput,
            p95_delay,
        } = self.tolerance;
        format!(
            "Both agree on {} of {}: throughput within {} % on {}, p95 delay within {} % on {}.",
            scheme.agreeing(&self.tolerance),
            scheme.scenarios.len(),
            figure(100.0 * throughput),
            count(&|scenario| scenario.throughput.agrees(throughput)),
            figure(100.0 * p95_delay),
            count(&|scenario| scenario.p95_delay.agrees(p95_delay)),
        )
    }
}

fn same(one: &Group<'_>, other: &Group<'_>) -> bool {
    (one.scenario, one.scheme) == (other.scenario, other.scheme)
}

fn name(on: Platform) -> &'static str {
    match on {
        Platform::Kernel => "kernel",
        Platform::Sim => "sim",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{Host, Run, Settings, Validity};

    const TOLERANCE: Tolerance = Tolerance {
        throughput: 0.1,
        p95_delay: 0.15,
    };

    fn run(scenario: &str, scheme: &str, throughput_mbps: f64, p95_owd_ms: Option<f64>) -> Run {
        Run {
            scenario: scenario.into(),
            scheme: scheme.into(),
            throughput_mbps,
            p95_owd_ms,
            ..Run::default()
        }
    }

    fn summary(on: Platform, runs: Vec<Run>) -> Summary {
        Summary {
            runs,
            applications: Vec::new(),
            host: Host::default(),
            settings: Settings {
                on,
                ..Settings::default()
            },
        }
    }

    fn comparison() -> Comparison {
        let mut spoilt = run("a", "cubic", 900.0, None);
        spoilt.validity = Validity {
            reasons: vec!["late".into()],
            ..Validity::default()
        };
        let sim = vec![
            run("a", "cubic", 11.0, Some(100.0)),
            run("b", "cubic", 8.9, Some(50.0)),
            run("c", "cubic", 0.0, None),
            run("a", "bbr", 1.0, Some(1.0)),
        ];
        let kernel = vec![
            run("a", "cubic", 9.0, Some(90.0)),
            run("a", "cubic", 11.0, Some(95.0)),
            spoilt,
            run("b", "cubic", 10.0, Some(40.0)),
            run("c", "cubic", 0.0, None),
            run("d", "cubic", 1.0, None),
        ];
        Comparison::new(
            &summary(Platform::Sim, sim),
            &summary(Platform::Kernel, kernel),
            TOLERANCE,
        )
    }

    #[test]
    fn means_of_valid_runs_are_compared() {
        let comparison = comparison();
        assert_eq!(comparison.schemes.len(), 1);
        let cubic = &comparison.schemes[0];
        let expected = |scenario: &str, throughput, p95_delay| ScenarioComparison {
            scenario: scenario.into(),
            throughput,
            p95_delay,
        };
        assert_eq!(
            cubic.scenarios,
            [
                expected(
                    "a",
                    Pair(Some(11.0), Some(10.0)),
                    Pair(Some(100.0), Some(92.5))
                ),
                expected(
                    "b",
                    Pair(Some(8.9), Some(10.0)),
                    Pair(Some(50.0), Some(40.0))
                ),
                expected("c", Pair(Some(0.0), Some(0.0)), Pair(None, None)),
            ]
        );
        assert_eq!(cubic.agreeing(&TOLERANCE), 2);
        let unmatched = [("a", "bbr"), ("d", "cubic")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(comparison.unmatched, unmatched);
    }

    #[test]
    fn a_difference_equal_to_the_tolerance_agrees() {
        assert!(Pair(Some(1.25), Some(1.0)).agrees(0.25));
        assert!(Pair(Some(0.75), Some(1.0)).agrees(0.25));
        assert!(!Pair(Some(1.26), Some(1.0)).agrees(0.25));
        assert!(!Pair(Some(1.0), None).agrees(0.25));
        assert_eq!(Pair(Some(1.0), Some(0.0)).ratio(), None);
    }

    #[test]
    fn tables_state_which_figures_agree() {
        let comparison = comparison();
        let text = comparison.text();
        let line = |name: &str| {
            let start = format!("  {name} ");
            let mut lines = text.lines();
            lines.find(|line| line.starts_with(&start)).expect("a row")
        };
        assert!(
            line("a").contains("1.100") && line("a").ends_with("yes"),
            "{text}"
        );
        assert!(line("b").ends_with("no: both"), "{text}");
        assert!(
            line("c").contains('–') && line("c").ends_with("yes"),
            "{text}"
        );
        assert!(
            text.contains("Both agree on 2 of 3: throughput within 10.0 % on 2"),
            "{text}"
        );
        let markdown = comparison.markdown();
        let rows = markdown.lines().filter(|line| line.starts_with('|'));
        let cells: Vec<usize> = rows.map(|row| row.matches('|').count()).collect();
        assert_eq!(cells, [9; 5], "{markdown}");
        assert!(
            markdown.contains("throughput, Mbit/s: sim | kernel"),
            "{markdown}"
        );
    }
}
