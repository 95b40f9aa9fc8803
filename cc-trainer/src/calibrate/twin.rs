//! A twin: the parameters of a link that stands for a recorded path.

use std::{fmt::Write as _, path::Path};

use cc_sim::scenario::{self, Scenario, ScenarioError};
use serde::Serialize;

/// What a link has beyond a constant rate, a propagation delay and a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Packets are lost at random.
    Loss,
    /// ACKs arrive together, once per period.
    Aggregation,
    /// The delay of each packet varies.
    Jitter,
    /// The rate alternates between two levels.
    Steps,
    /// A token bucket ahead of the queue drops what exceeds its rate.
    Policer,
    /// The rate wanders as a cellular link's does.
    Cellular,
}

impl Feature {
    /// All features, in the order in which they are tried.
    pub const ALL: [Self; 6] = [
        Self::Loss,
        Self::Aggregation,
        Self::Jitter,
        Self::Steps,
        Self::Policer,
        Self::Cellular,
    ];

    /// The feature's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Aggregation => "ack-aggregation",
            Self::Jitter => "jitter",
            Self::Steps => "steps",
            Self::Policer => "policer",
            Self::Cellular => "cellular",
        }
    }

    /// Whether a link can have both: there is one process of the rate.
    pub(super) fn goes_with(self, other: Self) -> bool {
        !matches!(
            (self, other),
            (Self::Steps, Self::Cellular) | (Self::Cellular, Self::Steps)
        )
    }
}

/// A rate that alternates between two levels, beginning with the link's rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Steps {
    /// The other level over the link's rate.
    pub ratio: f64,
    /// Time after which the rate repeats, s; each level lasts half of it.
    pub period_s: f64,
}

/// A policer ahead of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TokenBucket {
    /// Rate at which tokens arrive, Mbit/s of IP packets.
    pub rate_mbps: f64,
    /// Capacity of the bucket, kB: what may pass at once after a pause.
    pub burst_kb: f64,
}

/// A rate that wanders ([`Cellular`](cc_sim::scenario::Cellular), without outages).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wandering {
    /// Standard deviation of the rate over its mean.
    pub variation: f64,
    /// Time constant of the rate's autocorrelation, s.
    pub correlation_s: f64,
}

/// The parameters of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Twin {
    /// Rate of IP packets, Mbit/s: constant, the first level, or the mean of one that wanders.
    pub rate_mbps: f64,
    /// Propagation delay of both directions together, ms.
    pub rtt_ms: f64,
    /// Size of the buffer as the time that it takes to empty it at the rate, ms.
    pub queue_ms: f64,
    /// Probability that a packet is lost at random.
    pub loss: Option<f64>,
    /// Period at which ACKs arrive together, ms.
    pub aggregation_ms: Option<f64>,
    /// Standard deviation of each data packet's delay, ms.
    pub jitter_ms: Option<f64>,
    /// Steps of the rate; `None` where it has none.
    pub steps: Option<Steps>,
    /// A policer ahead of the queue; `None` for none.
    pub policer: Option<TokenBucket>,
    /// How the rate wanders; `None` where it does not.
    pub cellular: Option<Wandering>,
}

/// The least buffer, bytes: two packets.
const LEAST_QUEUE: f64 = 3_000.0;

impl Twin {
    /// A link of a constant rate with a propagation delay and a buffer, and nothing else.
    pub fn plain(rate_mbps: f64, rtt_ms: f64, queue_ms: f64) -> Self {
        Self {
            rate_mbps,
            rtt_ms,
            queue_ms,
            loss: None,
            aggregation_ms: None,
            jitter_ms: None,
            steps: None,
            policer: None,
            cellular: None,
        }
    }

    /// Size of the buffer, bytes of IP.
    pub fn queue_bytes(&self) -> u64 {
        (self.queue_ms * self.rate_mbps * 125.0)
            .max(LEAST_QUEUE)
            .round() as u64
    }

    /// Size of the buffer over the product of rate and propagation delay.
    pub fn queue_bdp(&self) -> f64 {
        self.queue_bytes() as f64 / (self.rate_mbps * self.rtt_ms * 125.0)
    }

    /// The features that the link has.
    pub fn features(&self) -> Vec<Feature> {
        let has = |feature: &Feature| match feature {
            Feature::Loss => self.loss.is_some(),
            Feature::Aggregation => self.aggregation_ms.is_some(),
            Feature::Jitter => self.jitter_ms.is_some(),
            Feature::Steps => self.steps.is_some(),
            Feature::Policer => self.policer.is_some(),
            Feature::Cellular => self.cellular.is_some(),
        };
        Feature::ALL.into_iter().filter(has).collect()
    }

    /// The link as a `[[scenario]]` of a scenario file. `seed` is that of a rate that wanders.
    pub fn toml(&self, name: &str, description: &str, seed: u64) -> String {
        let mut text = format!("[[scenario]]\nname = \"{name}\"\n");
        if !description.is_empty() {
            let escaped = description.replace(['"', '\\'], "'");
            let _ = writeln!(text, "description = \"{escaped}\"");
        }
        let mbps = self.rate_mbps;
        let constant = format!("rate_mbps = {mbps}\n");
        match (self.cellular, self.steps) {
            (
                Some(Wandering {
                    variation,
                    correlation_s,
                }),
                _,
            ) => {
                let _ = writeln!(
                    text,
                    "cellular = {{ mbps = {mbps}, variation = {variation}, correlation_s = \
                     {correlation_s}, outage_share = 0, batch = 1, seed = {} }}",
                    // TOML's integers are signed.
                    seed >> 1,
                );
            }
            (None, Some(Steps { ratio, period_s })) => {
                let _ = writeln!(
                    text,
                    "schedule = [{{ at_s = 0, rate_mbps = {mbps} }}, {{ at_s = {}, rate_mbps = {} \
                     }}]\nrepeat_s = {period_s}",
                    period_s / 2.0,
                    mbps * ratio,
                );
            }
            (None, None) => text += &constant,
        }
        let _ = writeln!(text, "delay_ms = {}", self.rtt_ms / 2.0);
        if let Some(jitter_ms) = self.jitter_ms {
            let _ = writeln!(text, "jitter_ms = {jitter_ms}");
        }
        if let Some(loss) = self.loss {
            let _ = writeln!(text, "loss = {loss}");
        }
        let _ = writeln!(text, "queue = {{ bytes = {} }}", self.queue_bytes());
        if let Some(TokenBucket {
            rate_mbps,
            burst_kb,
        }) = self.policer
        {
            let burst = (burst_kb * 1e3).round().max(LEAST_QUEUE);
            let _ = writeln!(
                text,
                "policer = {{ rate_mbps = {rate_mbps}, burst_bytes = {burst} }}"
            );
        }
        // ACKs do not wait for the rate of the data.
        let _ = write!(text, "\n[scenario.reverse]\nrate_mbps = inf\n");
        if let Some(period_ms) = self.aggregation_ms {
            let _ = writeln!(text, "aggregation_ms = {period_ms}");
        }
        text
    }

    /// The link as a scenario with one flow of the scheme under test.
    ///
    /// # Errors
    ///
    /// Returns an error when a parameter is out of the range of scenario files.
    pub fn scenario(&self, name: &str, seed: u64) -> Result<Scenario, ScenarioError> {
        let text = self.toml(name, "", seed);
        let mut scenarios = scenario::parse(&text, Path::new("a twin"))?;
        Ok(scenarios.remove(0))
    }
}

/// A parameter of a twin. All are positive and searched on a logarithmic scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    Rate,
    Rtt,
    Queue,
    Loss,
    Aggregation,
    Jitter,
    StepsRatio,
    StepsPeriod,
    PolicerRate,
    PolicerBurst,
    Variation,
    Correlation,
}

impl Parameter {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate_mbps",
            Self::Rtt => "rtt_ms",
            Self::Queue => "queue_ms",
            Self::Loss => "loss",
            Self::Aggregation => "ack_aggregation_ms",
            Self::Jitter => "jitter_ms",
            Self::StepsRatio => "steps_ratio",
            Self::StepsPeriod => "steps_period_s",
            Self::PolicerRate => "policer_mbps",
            Self::PolicerBurst => "policer_burst_kb",
            Self::Variation => "cellular_variation",
            Self::Correlation => "cellular_correlation_s",
        }
    }

    /// The parameter's place in a twin that has it.
    pub(super) fn of(self, twin: &mut Twin) -> &mut f64 {
        let steps = twin.steps.get_or_insert(Steps {
            ratio: 1.0,
            period_s: 10.0,
        });
        let policer = twin.policer.get_or_insert(TokenBucket {
            rate_mbps: 1.0,
            burst_kb: 30.0,
        });
        let cellular = twin.cellular.get_or_insert(Wandering {
            variation: 0.3,
            correlation_s: 4.0,
        });
        match self {
            Self::Rate => &mut twin.rate_mbps,
            Self::Rtt => &mut twin.rtt_ms,
            Self::Queue => &mut twin.queue_ms,
            Self::Loss => twin.loss.get_or_insert(0.0),
            Self::Aggregation => twin.aggregation_ms.get_or_insert(0.0),
            Self::Jitter => twin.jitter_ms.get_or_insert(0.0),
            Self::StepsRatio => &mut steps.ratio,
            Self::StepsPeriod => &mut steps.period_s,
            Self::PolicerRate => &mut policer.rate_mbps,
            Self::PolicerBurst => &mut policer.burst_kb,
            Self::Variation => &mut cellular.variation,
            Self::Correlation => &mut cellular.correlation_s,
        }
    }

    /// The parameter's value in a twin; `None` when it lacks the feature.
    pub(super) fn value(self, twin: &Twin) -> Option<f64> {
        match self {
            Self::Rate => Some(twin.rate_mbps),
            Self::Rtt => Some(twin.rtt_ms),
            Self::Queue => Some(twin.queue_ms),
            Self::Loss => twin.loss,
            Self::Aggregation => twin.aggregation_ms,
            Self::Jitter => twin.jitter_ms,
            Self::StepsRatio => twin.steps.map(|steps| steps.ratio),
            Self::StepsPeriod => twin.steps.map(|steps| steps.period_s),
            Self::PolicerRate => twin.policer.map(|policer| policer.rate_mbps),
            Self::PolicerBurst => twin.policer.map(|policer| policer.burst_kb),
            Self::Variation => twin.cellular.map(|cellular| cellular.variation),
            Self::Correlation => twin.cellular.map(|cellular| cellular.correlation_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cc_sim::scenario::{Loss, Service};

    use super::*;

    fn everything() -> Twin {
        Twin {
            loss: Some(0.01),
            aggregation_ms: Some(5.0),
            jitter_ms: Some(2.0),
            steps: Some(Steps {
                ratio: 0.5,
                period_s: 8.0,
            }),
            policer: Some(TokenBucket {
                rate_mbps: 6.0,
                burst_kb: 30.0,
            }),
            ..Twin::plain(12.0, 40.0, 60.0)
        }
    }

    #[test]
    fn a_twin_is_the_scenario_that_it_says() {
        let scenario = everything().scenario("all", 1).expect("in range");
        assert_eq!(scenario.base_rtt(), Duration::from_millis(40));
        let forward = &scenario.forward;
        assert_eq!(forward.queue.bytes, Some(90_000));
        assert_eq!(forward.loss, Loss::Bernoulli(0.01));
        assert_eq!(forward.service.mean_bits_per_second(), Some(9e6));
        assert_eq!(forward.delay.jitter, Duration::from_millis(2));
        assert_eq!(forward.aggregation, None);
        assert_eq!(
            forward.policer.map(|p| (p.bits_per_second, p.burst)),
            Some((6e6, 30_000))
        );
        assert_eq!(scenario.reverse.aggregation, Some(Duration::from_millis(5)));
        assert_eq!(scenario.reverse.service, Service::Unlimited);
        let plain = Twin::plain(12.0, 40.0, 60.0)
            .scenario("plain", 1)
            .expect("in range");
        assert_eq!(plain.forward.service.mean_bits_per_second(), Some(12e6));
        assert_eq!(plain.forward.loss, Loss::None);
        let wandering = Twin {
            cellular: Some(Wandering {
                variation: 0.5,
                correlation_s: 2.0,
            }),
            ..Twin::plain(12.0, 40.0, 60.0)
        };
        let of = |seed| wandering.scenario("cellular", seed).expect("in range");
        assert_eq!(of(u64::MAX), of(u64::MAX));
        assert_ne!(of(2), of(9));
    }

    #[test]
    fn features_are_those_that_the_twin_has() {
        use Feature::*;
        let all = [Loss, Aggregation, Jitter, Steps, Policer];
        assert_eq!(everything().features(), all);
        assert_eq!(Twin::plain(1.0, 1.0, 1.0).features(), []);
        assert!(!Steps.goes_with(Cellular) && !Cellular.goes_with(Steps));
        assert!(Steps.goes_with(Loss));
    }
}
