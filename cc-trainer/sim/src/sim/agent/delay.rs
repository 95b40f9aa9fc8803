//! How long the decisions of a simulated agent take, and which of them are lost.

use cc_core::interface::Interface;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::LogNormal;
use serde::{Deserialize, Serialize};

use crate::path::Nanos;
use crate::shim::{Channel, ConditionsRange, Medium};

/// The time that the agent takes for a decision: from the end of a window, closed by an ACK or by
/// the agent, to the decision's publication. The time from the window's nominal end to the ACK that
/// closes it belongs to the simulated connection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum AgentDelay {
    /// Decisions are published at once.
    None,
    /// Every decision takes the same time.
    Fixed {
        /// Time from the end of a window to its decision, ms.
        ms: f64,
    },
    /// The delay has a log-normal distribution, clamped to a maximum.
    LogNormal {
        /// Median of the delay in ms.
        median_ms: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        /// Longest delay in ms; longer ones are clamped to it.
        max_ms: f64,
    },
    /// Hosts differ, and so do their hours: each simulation draws a host, whose delays are
    /// log-normal and which loses some of its decisions, so that their flows keep their cwnd.
    /// Drawing delay, jitter and loss in training makes a policy stand all of them
    /// (communication-aware learning).
    Hosts {
        /// Least and largest median of the delay in ms; drawn uniformly in its logarithm.
        median_ms: [f64; 2],
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        /// Longest delay in ms; longer ones are clamped to it.
        max_ms: f64,
        /// Least and largest share of the decisions that are lost, each from 0 to 1; drawn
        /// uniformly.
        lost: [f64; 2],
    },
    /// A policy server decides, behind a network: the observation travels there and the decision
    /// back, and either may be lost ([`crate::shim`]). A flow whose decision is lost keeps its
    /// cwnd; the local policy that stands in for cc-agent's server is not simulated.
    Network {
        /// The network. Each simulation draws its own conditions.
        #[serde(default)]
        network: ConditionsRange,
        /// Whether what is lost is gone, or sent again as in a connection of TCP.
        #[serde(default)]
        medium: Medium,
        /// Time in ms after which a decision is given up: one that is later is dropped, and the
        /// flow's next window is asked about anew. `None` is a window, as cc-agent does it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patience_ms: Option<f64>,
    },
}

impl AgentDelay {
    /// The delay measured in evaluations on the real kernel: with frequent ACKs, a decision is
    /// published 1.3 ms after the end of its window in the median, including the wait for the ACK
    /// that closes the window; without, after 5.3 ms, of which the agent waits 5; the longest took
    /// 11 to 20 ms (docs/results.md).
    pub const MEASURED: Self = Self::LogNormal {
        median_ms: 0.3,
        sigma: 1.2,
        max_ms: 15.0,
    };

    /// Checks that the parameters are in range.
    ///
    /// # Errors
    ///
    /// Returns an error that names the parameter when one is out of range.
    pub fn validate(&self) -> Result<(), String> {
        let check = |name: &str, value: f64, least: f64| {
            if value.is_finite() && value >= least && value <= 60_000.0 {
                Ok(())
            } else {
                Err(format!(
                    "{name} of the decision delay is {value}; expected {least} to 60000"
                ))
            }
        };
        match *self {
            Self::None => Ok(()),
            Self::Fixed { ms } => check("ms", ms, 0.0),
            Self::LogNormal {
                median_ms,
                sigma,
                max_ms,
            } => {
                check("median_ms", median_ms, 1e-3)?;
                check("sigma", sigma, 0.0)?;
                check("max_ms", max_ms, 0.0)
            }
            Self::Hosts {
                median_ms: [least, most],
                sigma,
                max_ms,
                lost: [rarely, often],
            } => {
                check("median_ms", least, 1e-3)?;
                check("median_ms", most, least)?;
                check("sigma", sigma, 0.0)?;
                check("max_ms", max_ms, 0.0)?;
                if 0.0 <= rarely && rarely <= often && often <= 1.0 {
                    return Ok(());
                }
                Err(format!(
                    "lost of the decision delay is [{rarely}, {often}]; expected the least and the \
                     largest share, from 0 to 1"
                ))
            }
            Self::Network {
                network,
                patience_ms,
                ..
            } => {
                network.validate()?;
                patience_ms.map_or(Ok(()), |ms| check("patience_ms", ms, 1.0))
            }
        }
    }

    /// Draws a host: the delay of its decisions, and the share of them that are lost.
    fn host(self, random: &mut Xoshiro256PlusPlus) -> (Self, f64) {
        let Self::Hosts {
            median_ms: [least, most],
            sigma,
            max_ms,
            lost: [rarely, often],
        } = self
        else {
            return (self, 0.0);
        };
        let median_ms = least * (most / least).powf(random.random::<f64>());
        let lost = rarely + (often - rarely) * random.random::<f64>();
        let delay = Self::LogNormal {
            median_ms,
            sigma,
            max_ms,
        };
        (delay, lost)
    }

    /// Draws a delay in ns.
    fn draw(&self, random: &mut Xoshiro256PlusPlus) -> Nanos {
        let ms = match *self {
            // A simulation draws the delays of a network from its channels.
            Self::None | Self::Network { .. } => 0.0,
            Self::Fixed { ms } => ms,
            // A simulation has drawn its host before it draws delays.
            Self::Hosts { .. } => return self.host(random).0.draw(random),
            Self::LogNormal {
                median_ms,
                sigma,
                max_ms,
            } => match LogNormal::new(median_ms.ln(), sigma) {
                Ok(delays) => random.sample::<f64, _>(delays).min(max_ms),
                Err(_) => median_ms,
            },
        };
        (ms.max(0.0) * 1e6) as Nanos
    }
}

impl Default for AgentDelay {
    fn default() -> Self {
        Self::MEASURED
    }
}

/// The delays of a simulation's decisions, one after the other.
pub(super) struct Delays {
    random: Xoshiro256PlusPlus,
    source: Source,
}

enum Source {
    /// The agent decides, on the flow's own host.
    Host { delay: AgentDelay, lost: f64 },
    /// A policy server decides, which is asked over a network.
    Network {
        there: Channel<()>,
        back: Channel<()>,
        /// Longest delay of a decision that is not dropped, ns.
        patience: Nanos,
    },
}

impl Delays {
    /// Draws the host or the network of a simulation whose policy has this interface.
    pub(super) fn new(delay: AgentDelay, interface: &Interface, seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let source = match delay {
            AgentDelay::Network {
                network,
                medium,
                patience_ms,
            } => {
                let (there, back) = network.draw(&mut random).channels(medium, random.random());
                let patience_ms = patience_ms.unwrap_or(interface.window_ms.into());
                Source::Network {
                    there,
                    back,
                    patience: (patience_ms * 1e6) as Nanos,
                }
            }
            _ => {
                let (delay, lost) = delay.host(&mut random);
                Source::Host { delay, lost }
            }
        };
        Self { random, source }
    }

    /// Draws the delay in ns of the decision on a window that ends at `now`, and whether the
    /// decision is lost: then the delay is the time after which the agent gives it up.
    pub(super) fn draw(&mut self, now: Nanos) -> (Nanos, bool) {
        match &mut self.source {
            Source::Host { delay, lost } => {
                let delay = delay.draw(&mut self.random);
                // No number is drawn where no decision is lost, so that older runs can be repeated.
                (delay, *lost > 0.0 && self.random.random::<f64>() < *lost)
            }
            Source::Network {
                there,
                back,
                patience,
            } => match there.pass(now).and_then(|asked| back.pass(asked)) {
                Some(answered) if answered - now <= *patience => (answered - now, false),
                _ => (*patience, true),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::Preset;

    const MS: Nanos = 1_000_000;

    #[test]
    fn the_measured_delay_is_what_the_agent_showed() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut delays: Vec<_> = (0..10_000)
            .map(|_| AgentDelay::MEASURED.draw(&mut random))
            .collect();
        delays.sort_unstable();
        let ms = |quantile: usize| delays[quantile] as f64 / 1e6;
        assert!((ms(5_000) - 0.3).abs() < 0.02);
        assert!((3.0..8.0).contains(&ms(9_900)));
        assert!(ms(9_999) <= 15.0);
    }

    const HOSTS: AgentDelay = AgentDelay::Hosts {
        median_ms: [0.1, 60.0],
        sigma: 0.5,
        max_ms: 200.0,
        lost: [0.0, 0.05],
    };

    #[test]
    fn hosts_are_drawn_over_the_whole_range() {
        HOSTS.validate().expect("valid");
        let (mut low, mut high, mut lossy) = (0, 0, 0);
        for seed in 0..1_000 {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let (delay, lost) = HOSTS.host(&mut random);
            let AgentDelay::LogNormal { median_ms, .. } = delay else {
                panic!("a host has one distribution: {delay:?}")
            };
            assert!((0.1..=60.0).contains(&median_ms), "{median_ms}");
            assert!((0.0..=0.05).contains(&lost), "{lost}");
            // The middle of the logarithm.
            low += usize::from(median_ms < 2.45);
            high += usize::from(median_ms > 20.0);
            lossy += usize::from(lost > 0.025);
        }
        assert!((450..550).contains(&low) && high > 130, "{low} {high}");
        assert!((450..550).contains(&lossy), "{lossy}");
    }

    #[test]
    fn delays_out_of_range_are_refused_by_name() {
        let hosts = |median_ms, lost| AgentDelay::Hosts {
            median_ms,
            sigma: 1.0,
            max_ms: 100.0,
            lost,
        };
        for (bad, expected) in [
            (
                hosts([0.0, 1.0], [0.0, 0.1]),
                "median_ms of the decision delay is 0",
            ),
            (
                hosts([2.0, 1.0], [0.0, 0.1]),
                "median_ms of the decision delay is 1",
            ),
            (
                hosts([1.0, 2.0], [0.2, 0.1]),
                "lost of the decision delay is [0.2, 0.1]",
            ),
            (
                hosts([1.0, 2.0], [0.0, 1.5]),
                "lost of the decision delay is [0, 1.5]",
            ),
        ] {
            let error = bad.validate().expect_err("out of range");
            assert!(error.starts_with(expected), "{error}");
        }
        let bad = AgentDelay::Fixed { ms: -1.0 };
        let error = bad.validate().expect_err("negative");
        assert!(
            error.starts_with("ms of the decision delay is -1"),
            "{error}"
        );
        let impatient = AgentDelay::Network {
            network: ConditionsRange::default(),
            medium: Medium::Datagrams,
            patience_ms: Some(0.0),
        };
        let error = impatient.validate().expect_err("no patience");
        assert!(error.starts_with("patience_ms"), "{error}");
        AgentDelay::MEASURED.validate().expect("valid");
    }

    /// Draws 20,000 delays, one a window, and returns those that are not lost and the share that
    /// is.
    fn drawn(delay: AgentDelay) -> (Vec<Nanos>, f64) {
        delay.validate().expect("valid");
        let mut delays = Delays::new(delay, &Interface::default(), 3);
        let drawn: Vec<_> = (0..20_000)
            .map(|window| delays.draw(window * 100 * MS))
            .collect();
        let arrived: Vec<Nanos> = drawn.iter().filter(|one| !one.1).map(|one| one.0).collect();
        let lost = 1.0 - arrived.len() as f64 / drawn.len() as f64;
        (arrived, lost)
    }

    #[test]
    fn a_server_behind_a_network_is_as_late_as_both_ways_and_loses_what_either_does() {
        let network = |preset: Preset, medium, patience_ms| AgentDelay::Network {
            network: preset.into(),
            medium,
            patience_ms,
        };
        let mean = |delays: &[Nanos]| delays.iter().sum::<u64>() as f64 / 1e6 / delays.len() as f64;

        let (fixed, lost) = drawn(network(Preset::Fixed50, Medium::Datagrams, None));
        assert!(lost == 0.0 && fixed.iter().all(|&delay| delay == 100 * MS));
        let (fixed, lost) = drawn(network(Preset::Fixed50, Medium::Datagrams, Some(99.0)));
        assert!(lost == 1.0 && fixed.is_empty());

        let late = Some(1_000.0);
        let (degraded, lost) = drawn(network(Preset::WifiDegraded, Medium::Datagrams, late));
        // 1 - 0.9²; the mean of a delay that is 0 where it would be negative is 80.3 ms.
        assert!((lost - 0.19).abs() < 0.01, "{lost}");
        assert!((mean(&degraded) - 160.7).abs() < 2.0, "{}", mean(&degraded));
        // Within a window only where both ways are quick: of N(160, 57²), 14.4 %.
        let (quick, lost) = drawn(network(Preset::WifiDegraded, Medium::Datagrams, None));
        assert!(quick.iter().all(|&delay| delay <= 100 * MS));
        assert!((1.0 - lost - 0.81 * 0.15).abs() < 0.02, "{lost}");
        // A stream loses nothing, but is later.
        let (stream, lost) = drawn(network(
            Preset::WifiDegraded,
            Medium::Stream,
            Some(60_000.0),
        ));
        assert!(lost < 1e-3 && mean(&stream) > 1.1 * mean(&degraded));
    }
}
