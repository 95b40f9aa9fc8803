//! Ground truth about an episode's link, known in simulation and never on a live host. It feeds the
//! objective and the critic's privileged input.

use std::sync::Arc;
use std::time::Duration;

use cc_sim::path::{Nanos, nanos};
use cc_sim::scenario::{App, Loss, MTU, Scenario, Service};
use cc_sim::sim::Simulation;

/// Ground truth about the link of one episode.
#[derive(Clone, Debug)]
pub(super) struct Truth {
    scenario: Arc<Scenario>,
    /// Mean rate of the link in the direction of the data, bit/s; at least 1.
    pub(super) mean_bits_per_second: f64,
    /// Whether each flow is learned, in the scenario's order.
    learned: Vec<bool>,
}

/// Number of values in the critic's privileged input. The time that is left is not among them:
/// nothing ends for the flow when an episode is truncated, so that its value must not depend on it
/// (Pardo et al., arXiv 1712.00378).
pub(super) const PRIVILEGED: usize = 11;

/// Interval over which the current rate is averaged, ns. On a trace, a shorter
/// one would count single packets.
const NOW_NS: u64 = 200_000_000;

impl Truth {
    /// The truth about an episode from `begins` to `end`, in the scenario's time.
    pub(super) fn new(scenario: &Arc<Scenario>, begins: Duration, end: Duration) -> Self {
        let service = &scenario.forward.service;
        let mean = match service {
            // The mean over the episode: the mean of a rate that does not repeat gives its last
            // point too much weight.
            Service::Rate(rate) if rate.points.len() > 1 => {
                let seconds = end.saturating_sub(begins).as_secs_f64();
                scenario
                    .capacity_bits(begins, end)
                    .map(|bits| bits / seconds)
            }
            _ => scenario.mean_bits_per_second(),
        };
        Self {
            mean_bits_per_second: mean.unwrap_or(0.0).max(1.0),
            learned: scenario
                .flows
                .iter()
                .map(|flow| flow.scheme.is_none())
                .collect(),
            scenario: Arc::clone(scenario),
        }
    }

    pub(super) fn is_learned(&self, flow: usize) -> bool {
        self.learned[flow]
    }

    pub(super) fn is_active(&self, flow: usize, now: Nanos) -> bool {
        let flow = &self.scenario.flows[flow];
        nanos(flow.start) <= now && flow.stop.is_none_or(|stop| now < nanos(stop))
    }

    /// Whether a flow always has data to send.
    pub(super) fn is_bulk(&self, flow: usize) -> bool {
        matches!(self.scenario.flows[flow].app, App::Bulk)
    }

    /// Whether a flow that is not learned, and that always has data to send, has started and not
    /// stopped. A neighbour that its application limits may want less than its share, and what it
    /// leaves is the learned flow's to take.
    pub(super) fn has_bulk_neighbours(&self, now: Nanos) -> bool {
        (0..self.learned.len())
            .any(|flow| !self.learned[flow] && self.is_bulk(flow) && self.is_active(flow, now))
    }

    /// Returns the number of flows that have started and not stopped.
    pub(super) fn active(&self, now: Nanos) -> usize {
        (0..self.learned.len())
            .filter(|&flow| self.is_active(flow, now))
            .count()
    }

    /// Returns the one-way delay of a full-sized data packet on the idle
    /// link, s: propagation and serialisation.
    pub(super) fn base_delay_s(&self, flow: usize, now: Nanos) -> f64 {
        let extra = self.scenario.flows[flow].extra_delay;
        let propagation = self.scenario.forward.delay.at(Duration::from_nanos(now)) + extra;
        propagation.as_secs_f64() + f64::from(MTU) * 8.0 / self.mean_bits_per_second
    }

    /// Returns the RTT on the idle link, s.
    pub(super) fn base_rtt_s(&self, flow: usize, now: Nanos) -> f64 {
        let extra = self.scenario.flows[flow].extra_delay;
        let back = self.scenario.reverse.delay.at(Duration::from_nanos(now)) + extra;
        self.base_delay_s(flow, now) + back.as_secs_f64()
    }

    /// Writes the critic's privileged input for a flow: [`PRIVILEGED`] values of about unit size.
    pub(super) fn privileged(
        &self,
        simulation: &Simulation,
        flow: usize,
        cwnd: u32,
        into: &mut Vec<f32>,
    ) {
        let now = simulation.now();
        let forward = &self.scenario.forward;
        let mean = self.mean_bits_per_second;
        let rate = self.rate_now(now);
        let rtt = self.base_rtt_s(flow, now);
        let product = mean * rtt / 8.0;
        let limit = [
            forward.queue.bytes.map(|bytes| bytes as f64),
            forward
                .queue
                .packets
                .map(|packets| f64::from(packets) * f64::from(MTU)),
        ];
        let limit = limit.into_iter().flatten().fold(20.0 * product, f64::min);
        let (_, backlog) = simulation.backlog();
        let active = self.active(now).max(1) as f64;
        let learned = (0..self.learned.len())
            .filter(|&other| self.learned[other] && self.is_active(other, now))
            .count() as f64;
        let window = f64::from(cwnd) * f64::from(MTU) / (product / active);
        let ack_period_ms = match &self.scenario.reverse.service {
            Service::Opportunities(trace) => {
                f64::from(trace.period_ms()) / trace.times().len() as f64
            }
            _ => self
                .scenario
                .reverse
                .aggregation
                .map_or(0.0, |period| period.as_secs_f64() * 1e3),
        };
        let values = [
            ((rate / 1e6).max(0.01).ln() - 2.0) / 2.0,
            ((mean / 1e6).max(0.01).ln() - 2.0) / 2.0,
            (rtt * 1e3).max(0.1).ln() - 4.0,
            (1.0 + limit / product).ln(),
            50.0 * mean_loss(forward.loss),
            active.ln(),
            learned / active,
            // Time to drain the queue, in base RTTs.
            (1.0 + backlog as f64 * 8.0 / rate.max(mean * 0.05) / rtt).ln(),
            window.max(1e-3).ln().clamp(-3.0, 3.0),
            (1.0 + ack_period_ms).ln() / 3.0,
            forward.policer.map_or(0.0, |policer| {
                1.0 - (policer.bits_per_second / mean).min(1.0)
            }),
        ];
        let values: [f64; PRIVILEGED] = values;
        into.clear();
        into.extend(values.map(|value| value as f32));
    }

    fn rate_now(&self, now: Nanos) -> f64 {
        let from = now.saturating_sub(NOW_NS / 2);
        let to = from + NOW_NS;
        let (from, to) = (Duration::from_nanos(from), Duration::from_nanos(to));
        let bits = self.scenario.capacity_bits(from, to);
        bits.unwrap_or(0.0) / (NOW_NS as f64 / 1e9)
    }
}

fn mean_loss(loss: Loss) -> f64 {
    match loss {
        Loss::None => 0.0,
        Loss::Bernoulli(probability) => probability,
        Loss::GilbertElliott {
            to_bad,
            to_good,
            good,
            bad,
        } => {
            let share = to_bad / (to_bad + to_good).max(f64::MIN_POSITIVE);
            good * (1.0 - share) + bad * share
        }
    }
}
