//! What a policy is trained for.

use cc_core::interface::Interface;
use cc_core::reward::Terms;
use cc_ebpf::{Feature, WindowRecord};
use serde::{Deserialize, Serialize};

use super::truth::Truth;
use cc_sim::path::Nanos;
use cc_sim::sim::{FlowTotals, Simulation};

/// Payload of a segment, bits.
const PAYLOAD_BITS: f64 = 1448.0 * 8.0;

/// The reward of training. It may use what nobody knows on a live host; the policy sees the agent's own reward all the
/// same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Objective {
    /// The agent's own: that of [`Interface::reward`], of every window since the action, times `scale`.
    Interface {
        /// Multiplies it.
        #[serde(default = "one")]
        scale: f64,
    },
    /// By the truth about the link.
    Power(Power),
}

/// `a ln((t + ε) / r) − b ln(d / d₀) − c l − s |ln w|`, times the action's share of a window's length.
///
/// t is the flow's throughput (payload acknowledged or SACKed) from this turn to its next one and r its fair share: the link's mean
/// rate over the number of flows that are there. d is the mean one-way delay of the data packets that arrived meanwhile, d₀
/// what an empty link has; l the share of the bytes sent that were sent again; w the factor by which the action changed the
/// window. ε is relative to r.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Power {
    /// a.
    pub throughput: f64,
    /// b.
    pub delay: f64,
    /// c.
    pub loss: f64,
    /// ε.
    pub epsilon: f64,
    /// s.
    pub switch: f64,
    /// d is the window's largest delay, by the RTT, rather than the mean.
    pub max_delay: bool,
    /// r is the link's whole rate.
    pub whole_rate: bool,
    /// The mean over all learned flows of the link, rather than the flow's own.
    pub shared: bool,
    /// Multiplies it all.
    pub scale: f64,
}

impl Default for Power {
    fn default() -> Self {
        Self {
            throughput: 1.0,
            delay: 1.0,
            loss: 1.0,
            epsilon: 0.01,
            switch: 0.0,
            max_delay: false,
            whole_rate: false,
            shared: false,
            scale: 1.0,
        }
    }
}

impl Default for Objective {
    fn default() -> Self {
        Self::Power(Power::default())
    }
}

/// Where the flows stood when a seat was asked last.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    since: Nanos,
    /// Of each flow of the link.
    totals: Vec<FlowTotals>,
    /// How the action changed the window.
    switched: f64,
}

/// What the latest windows said of each flow.
#[derive(Clone, Debug, Default)]
pub(super) struct Latest {
    /// One-way delay, s: kept while nothing arrives.
    delay_s: Vec<f64>,
    /// Largest RTT of the newest windows, µs.
    rtt_us: Vec<f64>,
}

impl Latest {
    pub(super) fn new(flows: usize) -> Self {
        Self {
            delay_s: vec![0.0; flows],
            rtt_us: vec![0.0; flows],
        }
    }

    pub(super) fn add(&mut self, flow: usize, windows: &[WindowRecord]) {
        let largest = |window: &WindowRecord| window.features.max[Feature::LatestRtt as usize];
        if let Some(rtt) = windows.iter().map(largest).max() {
            self.rtt_us[flow] = f64::from(rtt);
        }
    }
}

impl Meter {
    /// Starts to measure.
    pub(super) fn start(&mut self, simulation: &Simulation) {
        self.since = simulation.now();
        self.totals.clear();
        let flows = 0..simulation.flows();
        self.totals.extend(flows.map(|flow| simulation.flow(flow)));
        self.switched = 0.0;
    }

    /// The action took the window from `before` to `after`.
    pub(super) fn switch(&mut self, before: u32, after: u32) {
        self.switched = (f64::from(after.max(1)) / f64::from(before.max(1))).ln();
    }
}

/// A seat's turn, or the end of its episode.
#[derive(Clone, Copy)]
pub(super) struct Situation<'a> {
    pub(super) policy: &'a Interface,
    pub(super) truth: &'a Truth,
    pub(super) simulation: &'a Simulation,
    pub(super) flow: usize,
    /// That ended since its turn before.
    pub(super) windows: &'a [WindowRecord],
}

impl Objective {
    /// What the action on the flow earned since the meter's start.
    pub(super) fn reward(
        &self,
        situation: &Situation<'_>,
        meter: &Meter,
        latest: &mut Latest,
    ) -> f64 {
        let Situation {
            policy,
            truth,
            simulation,
            flow,
            windows,
        } = *situation;
        match self {
            Self::Interface { scale } => {
                let settings = &policy.reward;
                let reward = |window| Terms::of(window, settings).reward(settings);
                scale * windows.iter().map(reward).sum::<f64>()
            }
            Self::Power(power) => {
                let now = simulation.now();
                let seconds = now.saturating_sub(meter.since) as f64 / 1e9;
                if seconds <= 0.0 {
                    return 0.0;
                }
                let mut sum = 0.0;
                let mut count = 0.0;
                for other in 0..simulation.flows() {
                    let counts = match power.shared {
                        true => truth.is_learned(other) && truth.is_active(other, now),
                        false => other == flow,
                    };
                    if counts {
                        sum += power.of(situation, meter, latest, other);
                        count += 1.0;
                    }
                }
                let score = sum / f64::max(count, 1.0) - power.switch * meter.switched.abs();
                let windows = seconds * 1e3 / f64::from(policy.window_ms);
                power.scale * score * windows
            }
        }
    }
}

impl Power {
    /// The terms of one flow since the meter's start.
    fn of(
        &self,
        situation: &Situation<'_>,
        meter: &Meter,
        latest: &mut Latest,
        flow: usize,
    ) -> f64 {
        let Situation {
            truth, simulation, ..
        } = *situation;
        let now = simulation.now();
        let (before, after) = (&meter.totals[flow], simulation.flow(flow));
        let seconds = (now - meter.since) as f64 / 1e9;
        let delivered = (after.delivered - before.delivered) as f64 * PAYLOAD_BITS;
        let throughput = delivered / seconds;
        let sharers = if self.whole_rate {
            1
        } else {
            truth.active(now)
        };
        let reference = truth.mean_bits_per_second / sharers.max(1) as f64;
        let arrived = after.delays - before.delays;
        if arrived > 0 {
            let sum_ns = after.delay_sum_ns - before.delay_sum_ns;
            latest.delay_s[flow] = sum_ns as f64 / arrived as f64 / 1e9;
        }
        let base = truth.base_delay_s(flow, now);
        let delay = if self.max_delay {
            base + (latest.rtt_us[flow] / 1e6 - truth.base_rtt_s(flow, now))
        } else {
            latest.delay_s[flow]
        };
        let sent = after.bytes_sent - before.bytes_sent;
        let again = after.bytes_retransmitted - before.bytes_retransmitted;
        let loss = again as f64 / sent.max(1) as f64;
        self.throughput * (throughput / reference + self.epsilon).ln()
            - self.delay * (delay / base).max(1.0).ln()
            - self.loss * loss.min(1.0)
    }
}

fn one() -> f64 {
    1.0
}
