//! The box in which the twins of one structure are looked for, as points of the unit cube.

use super::estimate::Estimates;
use super::twin::{Feature, Parameter, Twin};

/// A parameter that is looked for, and where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dimension {
    pub(super) parameter: Parameter,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// The box in which the twins of one structure are looked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Space {
    pub(super) features: Vec<Feature>,
    pub(super) dimensions: Vec<Dimension>,
}

impl Space {
    /// The box for links with these features, around what the recording suggests.
    pub(super) fn new(features: &[Feature], estimates: &Estimates) -> Self {
        let mut dimensions = Vec::new();
        let mut add = |parameter, [low, high]: [f64; 2]| {
            dimensions.push(Dimension {
                parameter,
                low,
                high: high.max(low * 1.001),
            });
        };
        let has = |feature| features.contains(&feature);
        add(Parameter::Rate, estimates.rate_range(features));
        add(Parameter::Rtt, estimates.rtt_range(features));
        add(Parameter::Queue, estimates.queue_range());
        if has(Feature::Loss) {
            add(Parameter::Loss, estimates.loss_range());
        }
        if has(Feature::Aggregation) {
            add(Parameter::Aggregation, estimates.spread_range(1.0, 8.0));
        }
        if has(Feature::Jitter) {
            add(Parameter::Jitter, estimates.spread_range(0.1, 4.0));
        }
        if has(Feature::Steps) {
            add(Parameter::StepsRatio, [0.12, 8.0]);
            add(Parameter::StepsPeriod, estimates.period_range());
        }
        if has(Feature::Policer) {
            add(Parameter::PolicerRate, estimates.policer_range());
            add(Parameter::PolicerBurst, [3.0, 500.0]);
        }
        if has(Feature::Cellular) {
            add(Parameter::Variation, [0.05, 1.2]);
            add(Parameter::Correlation, [0.3, 12.0]);
        }
        Self {
            features: features.to_vec(),
            dimensions,
        }
    }

    /// The twin at a point of the unit cube.
    pub(super) fn twin(&self, point: &[f64]) -> Twin {
        let mut twin = Twin::plain(1.0, 1.0, 1.0);
        for (dimension, &at) in self.dimensions.iter().zip(point) {
            let Dimension {
                parameter,
                low,
                high,
            } = *dimension;
            *parameter.of(&mut twin) = low * (high / low).powf(at);
        }
        // What was made room for, and is no feature of this structure.
        let has = |feature| self.features.contains(&feature);
        twin.steps = twin.steps.filter(|_| has(Feature::Steps));
        twin.policer = twin.policer.filter(|_| has(Feature::Policer));
        twin.cellular = twin.cellular.filter(|_| has(Feature::Cellular));
        twin
    }

    /// The point of the unit cube nearest to a twin. Where the twin lacks a feature, that is at its
    /// least noticeable.
    pub(super) fn point(&self, twin: &Twin) -> Vec<f64> {
        let dimensions = self.dimensions.iter();
        dimensions
            .map(|dimension| {
                let Dimension {
                    parameter,
                    low,
                    high,
                } = *dimension;
                let value = parameter.value(twin).unwrap_or(match parameter {
                    Parameter::StepsRatio => 1.0,
                    Parameter::StepsPeriod => (low * high).sqrt(),
                    Parameter::PolicerRate | Parameter::PolicerBurst => high,
                    _ => low,
                });
                ((value / low).ln() / (high / low).ln()).clamp(0.0, 1.0)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_and_its_twin_name_each_other() {
        let estimates = Estimates::example();
        let mut structures = vec![vec![]];
        structures.extend(Feature::ALL.map(|feature| vec![feature]));
        structures.push(vec![Feature::Loss, Feature::Steps, Feature::Policer]);
        for features in structures {
            let space = Space::new(&features, &estimates);
            let point: Vec<f64> = (0..space.dimensions.len())
                .map(|n| 0.1 + 0.07 * n as f64)
                .collect();
            let twin = space.twin(&point);
            let mut sorted = features.clone();
            sorted.sort_unstable();
            assert_eq!(twin.features(), sorted);
            for (found, expected) in space.point(&twin).iter().zip(&point) {
                assert!((found - expected).abs() < 1e-9, "{features:?}");
            }
            twin.scenario("any", 1).expect("all of the box is in range");
        }
    }

    #[test]
    fn a_start_lies_within_the_box_of_its_features() {
        let estimates = Estimates::example();
        for features in [
            vec![],
            vec![Feature::Loss],
            vec![Feature::Steps],
            vec![Feature::Policer],
        ] {
            let space = Space::new(&features, &estimates);
            let start = estimates.start(&features);
            for at in space.point(&start) {
                assert!((0.0..=1.0).contains(&at));
            }
            let again = space.twin(&space.point(&start));
            assert!(
                (again.rate_mbps / start.rate_mbps - 1.0).abs() < 1e-9,
                "{features:?}"
            );
        }
    }
}
