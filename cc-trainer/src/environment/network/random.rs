//! Families of random links, drawn anew for each episode.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::NetworkConfigError;
use super::range::{Range, Sometimes, check, draw, logarithmic, milliseconds, ordered};
use cc_sim::scenario::{
    Cellular, Delay, DelayChange, Direction, Flow, Loss, MTU, Poisson, Policer, Queue, Rate,
    RatePoint, Scenario, Scoring, Service, Trace,
};

/// Largest rate of a random link, Mbit/s: a step of 100 ms on it simulates about 10,000 packets.
const MAX_MBPS: f64 = 1000.0;

/// A family of random links. Rates, delays, queue sizes and probabilities are
/// drawn uniformly in their logarithm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomLinks {
    /// Rate, Mbit/s of IP packets. The computing time of a step grows with it.
    pub rate_mbps: Range,
    /// How the rate varies over time.
    pub service: ServiceKind,
    /// One-way propagation delay, ms, the same in both directions.
    pub delay_ms: Range,
    /// Queue size, in units of the BDP (rate × base RTT); at least one packet.
    pub queue_bdp: Range,
    /// Queue size in packets, as the alternative to `queue_bdp`.
    pub queue_packets: Option<Range>,
    /// Time in the queue from which packets are marked (congestion experienced), ms. The flows of
    /// such links negotiate ECN.
    pub ce_threshold_ms: Option<Sometimes>,
    /// Probability that a packet is lost at random.
    pub loss: Option<Sometimes>,
    /// Standard deviation of the propagation delay from packet to packet, ms.
    pub jitter_ms: Option<Sometimes>,
    /// Factor by which the delay changes once in the episode.
    pub delay_factor: Option<Sometimes>,
    /// Rate of a policer in front of the queue, as a fraction of the link's rate. Its bucket holds
    /// 3 kB to 100 kB.
    pub policer: Option<Sometimes>,
    /// Period at which queued ACKs are delivered together, ms.
    pub ack_aggregation_ms: Option<Sometimes>,
    /// Period at which the ACK path may send 1504 bytes, ms.
    pub ack_every_ms: Option<Sometimes>,
    /// Time at the start in which the link is slow, s, as cellular links are before they are given
    /// resources: at a `constant` service a hundredth to a half of the rate, at a `poisson` one a
    /// packet per 100 ms ([`Poisson::ramp_s`]). Other services have rises of their own.
    pub rises_after_s: Option<Sometimes>,
}

/// How the rate of a random link varies over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// The rate stays at the drawn value.
    #[default]
    Constant,
    /// The mean rate is constant, and packets leave at the times of a Poisson process, as on
    /// the calibrated paths of Pantheon.
    Poisson,
    /// A generated cellular trace ([`Cellular`]) with randomly drawn parameters.
    Cellular,
    /// The rate jumps every 1 to 10 s, to between a quarter of and four times the drawn rate.
    Steps,
    /// The rate moves linearly between such points.
    Ramps,
    /// The rate drops to 0 every few seconds, for 0.1 to 2 s.
    Outages,
}

impl Default for RandomLinks {
    /// Constant rates of 0.5 to 100 Mbit/s, base RTTs of 4 to 200 ms, queues of 0.2 to 4 BDP.
    fn default() -> Self {
        Self {
            rate_mbps: [0.5, 100.0],
            service: ServiceKind::Constant,
            delay_ms: [2.0, 100.0],
            queue_bdp: [0.2, 4.0],
            queue_packets: None,
            ce_threshold_ms: None,
            loss: None,
            jitter_ms: None,
            delay_factor: None,
            policer: None,
            ack_aggregation_ms: None,
            ack_every_ms: None,
            rises_after_s: None,
        }
    }
}

impl RandomLinks {
    pub(crate) fn check(&self, place: impl Fn(&str) -> String) -> Result<(), NetworkConfigError> {
        let logarithmic = |name: &str, range: Range, least: f64, most: f64| {
            ordered(range, least, most, || place(name))
        };
        logarithmic("rate_mbps", self.rate_mbps, 0.01, MAX_MBPS)?;
        logarithmic("delay_ms", self.delay_ms, 0.01, 10_000.0)?;
        logarithmic("queue_bdp", self.queue_bdp, 1e-3, 1e3)?;
        if let Some(range) = self.queue_packets {
            logarithmic("queue_packets", range, 1.0, 1e6)?;
        }
        for (name, sometimes, least, most) in [
            ("ce_threshold_ms", self.ce_threshold_ms, 0.01, 10_000.0),
            ("loss", self.loss, 1e-9, 0.9),
            ("jitter_ms", self.jitter_ms, 1e-3, 1e3),
            ("delay_factor", self.delay_factor, 0.01, 100.0),
            ("policer", self.policer, 0.01, 10.0),
            ("ack_aggregation_ms", self.ack_aggregation_ms, 0.1, 1e3),
            ("ack_every_ms", self.ack_every_ms, 1.0, 1e3),
            ("rises_after_s", self.rises_after_s, 0.1, 1e3),
        ] {
            if let Some(Sometimes { share, range }) = sometimes {
                check(share, [0.0, 1.0], || place(&format!("{name}.share")))?;
                logarithmic(&format!("{name}.range"), range, least, most)?;
            }
        }
        let rises = matches!(self.service, ServiceKind::Constant | ServiceKind::Poisson);
        if self.rises_after_s.is_some() && !rises {
            return Err(NetworkConfigError::RisesAlready(place("rises_after_s")));
        }
        Ok(())
    }

    pub(crate) fn draw(&self, seconds: f64, random: &mut Xoshiro256PlusPlus) -> Scenario {
        let mbps = logarithmic(self.rate_mbps, random);
        let base = milliseconds(logarithmic(self.delay_ms, random));
        let rises_after = draw(self.rises_after_s, random).filter(|after| *after < seconds);
        let service = self.service.draw(mbps, seconds, rises_after, random);
        let limits = match self.queue_packets {
            Some(range) => Queue {
                packets: Some(logarithmic(range, random).round() as u32),
                ..Queue::default()
            },
            None => {
                let product = mbps * 1e6 / 8.0 * 2.0 * base.as_secs_f64();
                let bytes = product * logarithmic(self.queue_bdp, random);
                Queue {
                    bytes: Some(bytes.max(f64::from(MTU)) as u64),
                    ..Queue::default()
                }
            }
        };
        let queue = Queue {
            ce_threshold: draw(self.ce_threshold_ms, random).map(milliseconds),
            ..limits
        };
        let jitter = draw(self.jitter_ms, random).map_or(Duration::ZERO, milliseconds);
        let change = draw(self.delay_factor, random).map(|factor| DelayChange {
            at: Duration::from_secs_f64(random.random_range(0.2..0.8) * seconds),
            delay: base.mul_f64(factor),
        });
        let delay = Delay {
            base,
            changes: change.into_iter().collect(),
            variation: None,
            jitter,
        };
        let policer = draw(self.policer, random).map(|share| Policer {
            bits_per_second: mbps * 1e6 * share,
            burst: logarithmic([3e3, 1e5], random) as u64,
        });
        let forward = Direction {
            policer,
            queue,
            service,
            loss: draw(self.loss, random).map_or(Loss::None, Loss::Bernoulli),
            aggregation: None,
            delay: delay.clone(),
        };
        let ack_service = draw(self.ack_every_ms, random)
            .and_then(|ms| Trace::from_times(vec![ms.round().max(1.0) as u32]).ok())
            .map_or(Service::Rate(Rate::constant(mbps * 1e6)), |trace| {
                Service::Opportunities(Arc::new(trace))
            });
        let reverse = Direction {
            policer: None,
            queue: Queue::default(),
            service: ack_service,
            loss: Loss::None,
            aggregation: draw(self.ack_aggregation_ms, random).map(milliseconds),
            delay,
        };
        Scenario {
            name: "random".to_owned(),
            description: String::new(),
            sender: None,
            forward,
            reverse,
            flows: vec![Flow::default()],
            scoring: Scoring::default(),
        }
    }
}

impl ServiceKind {
    fn draw(
        self,
        mbps: f64,
        seconds: f64,
        rises_after: Option<f64>,
        random: &mut Xoshiro256PlusPlus,
    ) -> Service {
        let trace = match self {
            Self::Constant => {
                return Service::Rate(match rises_after {
                    Some(after) => rising(mbps, after, random),
                    None => Rate::constant(mbps * 1e6),
                });
            }
            Self::Steps | Self::Ramps => {
                return Service::Rate(changing(mbps, seconds, self == Self::Ramps, random));
            }
            Self::Outages => return Service::Rate(interrupted(mbps, seconds, random)),
            Self::Poisson => Poisson {
                mbps,
                seconds,
                ramp_s: rises_after.unwrap_or(0.0),
                seed: random.random(),
            }
            .trace(),
            Self::Cellular => Cellular {
                mbps,
                variation: random.random_range(0.2..0.9),
                correlation_s: logarithmic([1.0, 8.0], random),
                outage_share: random.random_range(0.0..0.06),
                outage_s: logarithmic([0.1, 0.6], random),
                batch: random.random_range(1.0..4.0),
                seconds,
                seed: random.random(),
            }
            .trace(),
        };
        match trace {
            Ok(trace) => Service::Opportunities(Arc::new(trace)),
            // The trace would exceed the largest trace length.
            Err(_) => Service::Rate(Rate::constant(mbps * 1e6)),
        }
    }
}

/// A rate of `mbps` from `at`, s, on.
fn point(at: f64, mbps: f64) -> RatePoint {
    RatePoint {
        at: Duration::from_secs_f64(at),
        bits_per_second: mbps * 1e6,
        ramp: false,
    }
}

/// Draws a rate that is a hundredth to a half of `mbps` until `after`, s.
fn rising(mbps: f64, after: f64, random: &mut Xoshiro256PlusPlus) -> Rate {
    let slow = mbps * logarithmic([0.01, 0.5], random);
    Rate {
        points: vec![point(0.0, slow), point(after, mbps)],
        repeat: None,
    }
}

/// Draws a rate that changes every few seconds.
fn changing(mbps: f64, seconds: f64, ramp: bool, random: &mut Xoshiro256PlusPlus) -> Rate {
    let period = [1.0, 10.0];
    let mut points = Vec::new();
    let mut at = 0.0;
    while at < seconds {
        points.push(RatePoint {
            at: Duration::from_secs_f64(at),
            bits_per_second: mbps * 1e6 * logarithmic([0.25, 4.0], random),
            ramp,
        });
        at += logarithmic(period, random);
    }
    Rate {
        points,
        repeat: None,
    }
}

/// Draws a rate that drops to 0 for a while again and again.
fn interrupted(mbps: f64, seconds: f64, random: &mut Xoshiro256PlusPlus) -> Rate {
    let mut points = vec![point(0.0, mbps)];
    let mut at = 0.0;
    loop {
        at += random.random_range(1.0..8.0);
        if at >= seconds {
            break;
        }
        points.push(point(at, 0.0));
        at += logarithmic([0.1, 2.0], random);
        points.push(point(at, mbps));
    }
    Rate {
        points,
        repeat: None,
    }
}
