//! The reward that training maximises, computed from the simulator's ground truth or
//! from the agent's own measurements.

use cc_core::interface::Interface;
use cc_core::objective::Objective as Observable;
use cc_core::reward::Terms;
use cc_ebpf::{Feature, WindowRecord};
use serde::{Deserialize, Serialize};

use super::NetworkConfigError;
use super::range::check;
use super::truth::Truth;
use crate::environment::Quantities;
use cc_sim::path::Nanos;
use cc_sim::sim::{FlowTotals, Simulation};

/// Payload of a full-sized segment, bits.
const PAYLOAD_BITS: f64 = 1448.0 * 8.0;

/// The largest weight of an objective.
pub(super) const MOST_WEIGHT: f64 = 1e6;

/// The reward that training maximises.
///
/// It may use quantities that are unknown on a live host. The policy's input holds the agent's own
/// reward in any case ([`Turn::observed_reward`](super::Turn::observed_reward)).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Objective {
    /// The agent's own reward ([`Interface::reward`]), summed over all windows
    /// since the action, times `scale`.
    Environment {
        /// Factor of the reward, 1 by default.
        #[serde(default = "one")]
        scale: f64,
    },
    /// A reward from the simulator's ground truth, relative to what the link can carry.
    Power(PowerObjective),
}

/// `a ln(t/r + ε) − b ln(max(d/d₀, 1)) − c l − s |ln w|`, times the time since the action in
/// units of a window's length.
///
/// - t is the flow's throughput (payload acknowledged or SACKed) from this turn to its next one,
///   and r its fair share: the link's mean rate divided by the number of active flows.
/// - d is the mean one-way delay of the data packets that arrived in that time, d₀
///   that of an idle link.
/// - l is the fraction of the bytes sent that were retransmissions.
/// - w is the factor by which the action changed the cwnd.
///
/// The reward is logarithmic so that doubling the throughput is worth the same at 0.5 Mbit/s as at
/// 100 Mbit/s, and relative to the link so that fast links do not dominate the gradient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PowerObjective {
    /// a, the weight of the throughput term.
    pub throughput: f64,
    /// b, the weight of the delay term.
    pub delay: f64,
    /// c, the weight of the loss term.
    pub loss: f64,
    /// ε, added to t/r so that a flow at rest has a finite reward.
    pub epsilon: f64,
    /// s, the cost of changing the cwnd by a factor of e.
    pub switch: f64,
    /// Takes as d the largest delay of the newest windows, derived from the RTT, instead
    /// of the mean one-way delay.
    pub max_delay: bool,
    /// Takes as r the link's whole rate instead of the fair share.
    pub whole_rate: bool,
    /// Gives every learned flow the mean reward of all active learned flows of the link,
    /// instead of its own reward.
    pub shared: bool,
    /// Charges each flow for what it causes while all that share the link are learned, instead of
    /// for what it suffers: `a f(x) − b ln(max(x d/d₀, 1)) − c max(s/r − 1, 0)`, with x = t/r, f(x)
    /// = ln(x + ε) up to the fair share and −ln x above it, and s the rate at which it sends.
    ///
    /// On a full link a segment more in flight delays, and at last loses, a segment of somebody:
    /// of N flows each feels an Nth of what it does, and all together send too much. By Little's
    /// law x d/d₀ is the flow's part of the path's content over its fair one, and s/r − 1 the part
    /// of what it sends beyond what it could get through, which counts where something is lost.
    /// The derivatives by the flow's own rate are those of the sum of all flows' rewards where all
    /// have the same, which makes these difference rewards (Wolpert and Tumer, Advances in Complex
    /// Systems 4, 2001) without the noise of the other flows.
    pub caused: bool,
    /// What counts otherwise while a bulk flow that is not learned is on the link; `None` for
    /// nothing.
    pub beside: Option<Beside>,
    /// Factor of the whole reward.
    pub scale: f64,
}

/// The weights of [`PowerObjective`] while a bulk flow that is not learned shares the link.
///
/// There the queue is the neighbour's doing as well, and throughput beyond the fair share is taken
/// from it: what is good alone, a short queue and every bit that the link carries, is to be weighed
/// anew. Above the fair share, t > r, the term `a ln(t/r + ε)` becomes `−x a ln(t/r)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Beside {
    /// x, what throughput above the fair share costs, relative to what it would earn: 0 makes it
    /// worthless, and 1 as bad as the same factor below.
    pub excess: f64,
    /// Takes the place of b, the weight of the delay term.
    pub delay: f64,
}

impl Default for Beside {
    fn default() -> Self {
        Self {
            excess: 1.0,
            delay: 0.0,
        }
    }
}

impl Default for PowerObjective {
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
            caused: false,
            beside: None,
            scale: 1.0,
        }
    }
}

impl Default for Objective {
    fn default() -> Self {
        Self::Power(PowerObjective::default())
    }
}

/// Counters of all flows at a seat's last turn, from which its reward is measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    since: Nanos,
    /// Totals of each flow of the link, in the scenario's order.
    totals: Vec<FlowTotals>,
    /// Logarithm of the factor by which the action changed the cwnd.
    switched: f64,
}

/// The newest delay measurements of each flow of the link.
#[derive(Clone, Debug, Default)]
pub(super) struct Latest {
    /// Mean one-way delay, s; kept while no packet arrives.
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
    /// Starts a measurement at the current simulated time.
    pub(super) fn start(&mut self, simulation: &Simulation) {
        self.since = simulation.now();
        self.totals.clear();
        let flows = 0..simulation.flows();
        self.totals.extend(flows.map(|flow| simulation.flow(flow)));
        self.switched = 0.0;
    }

    /// Time since the measurement was started, in units of a window's length.
    pub(super) fn windows(&self, situation: &Situation<'_>) -> f64 {
        let now = situation.simulation.now();
        let seconds = now.saturating_sub(self.since) as f64 / 1e9;
        seconds * 1e3 / f64::from(situation.policy.window_ms)
    }

    /// Seconds since the measurement was started in which a flow had data to send: what its
    /// application leaves unused is nobody's doing.
    fn seconds(&self, situation: &Situation<'_>, flow: usize) -> f64 {
        let (truth, simulation) = (situation.truth, situation.simulation);
        let nanos = match truth.is_bulk(flow) {
            true => simulation.now().saturating_sub(self.since),
            false => simulation.flow(flow).busy_ns - self.totals[flow].busy_ns,
        };
        nanos as f64 / 1e9
    }

    /// What can be limited of a flow since the measurement was started.
    pub(super) fn quantities(&self, situation: &Situation<'_>) -> Quantities {
        let Situation {
            truth,
            simulation,
            flow,
            ..
        } = *situation;
        let now = simulation.now();
        let (before, after) = (&self.totals[flow], simulation.flow(flow));
        let seconds = now.saturating_sub(self.since) as f64 / 1e9;
        let sent = after.bytes_sent - before.bytes_sent;
        let again = after.bytes_retransmitted - before.bytes_retransmitted;
        let sharers = truth.active(now);
        Quantities {
            // Of nothing sent, nothing was lost.
            loss: Some((again as f64 / sent.max(1) as f64).min(1.0) as f32),
            share: (sharers > 1 && seconds > 0.0).then(|| {
                let delivered = (after.delivered - before.delivered) as f64 * PAYLOAD_BITS;
                let fair = truth.mean_bits_per_second / sharers as f64;
                (delivered / seconds / fair) as f32
            }),
        }
    }

    /// Whether any flow of the link has retransmitted since the measurement was started.
    fn lost(&self, simulation: &Simulation) -> bool {
        (self.totals.iter().enumerate()).any(|(flow, before)| {
            simulation.flow(flow).bytes_retransmitted > before.bytes_retransmitted
        })
    }

    /// Notes that the action changed the cwnd from `before` to `after` segments.
    pub(super) fn switch(&mut self, before: u32, after: u32) {
        self.switched = (f64::from(after.max(1)) / f64::from(before.max(1))).ln();
    }
}

/// What a reward is computed from, at a seat's turn or at the end of its episode.
#[derive(Clone, Copy)]
pub(super) struct Situation<'a> {
    pub(super) policy: &'a Interface,
    pub(super) truth: &'a Truth,
    pub(super) simulation: &'a Simulation,
    pub(super) flow: usize,
    /// The windows that ended since the flow's previous turn; empty at the end of an episode.
    pub(super) windows: &'a [WindowRecord],
}

impl Objective {
    /// Checks that weights are no rewards for what they are to prevent.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first weight that is negative or no number.
    pub(super) fn check(&self) -> Result<(), NetworkConfigError> {
        let Self::Power(power) = self else {
            return Ok(());
        };
        if power.caused && power.shared {
            return Err(NetworkConfigError::Charged);
        }
        let own = [
            ("throughput", power.throughput),
            ("delay", power.delay),
            ("loss", power.loss),
            ("epsilon", power.epsilon),
            ("switch", power.switch),
            ("scale", power.scale),
        ];
        let beside = power.beside.iter().flat_map(|beside| {
            [
                ("beside.excess", beside.excess),
                ("beside.delay", beside.delay),
            ]
        });
        own.into_iter()
            .chain(beside)
            .try_for_each(|(name, weight)| {
                check(weight, [0.0, MOST_WEIGHT], || format!("objective.{name}"))
            })
    }

    /// Returns the objective with another weight of delay, beside others as well as alone.
    pub(super) fn weighing_delay(&self, weight: f64) -> Self {
        match self {
            Self::Environment { .. } => self.clone(),
            Self::Power(power) => Self::Power(PowerObjective {
                delay: weight,
                beside: (power.beside).map(|beside| Beside {
                    delay: weight,
                    ..beside
                }),
                ..power.clone()
            }),
        }
    }

    /// Returns what a host can observe of it: the objective by which recordings, estimates and
    /// canaries judge the policies that are trained for it. The simulator's own quantities have
    /// counterparts: the fair share is a constant of a link, which a logarithm turns into a
    /// constant of the objective, and the delay relative to that of an idle link is the queueing
    /// delay relative to the propagation.
    pub fn observable(&self, policy: &Interface) -> Observable {
        match self {
            Self::Environment { .. } => Observable::derived(&policy.reward),
            Self::Power(power) => Observable {
                throughput: power.throughput,
                delay: power.delay,
                loss: power.loss,
                ..Observable::default()
            },
        }
    }

    /// Returns the terms in which the objective that the policy's interface states weighs other
    /// things than the reward that is trained, each as `term W of the throughput's weight, V in
    /// training`. Weights count relative to the throughput's: a factor of the whole changes
    /// nothing.
    pub fn divergence(&self, policy: &Interface) -> Vec<String> {
        let (Some(stated), trained) = (policy.objective, self.observable(policy)) else {
            return Vec::new();
        };
        let weights = |objective: Observable| {
            [objective.delay, objective.loss, objective.marks]
                .map(|weight| weight / objective.throughput)
        };
        let pairs = weights(stated).into_iter().zip(weights(trained));
        ["delay", "loss", "marks"]
            .into_iter()
            .zip(pairs)
            .filter(|(_, (stated, trained))| {
                // Within a tenth of each other, or both next to nothing.
                (stated - trained).abs() > 0.1 * stated.max(*trained).max(0.01)
            })
            .map(|(term, (stated, trained))| {
                format!("{term} {stated:.3} of the throughput's weight, {trained:.3} in training")
            })
            .collect()
    }

    /// Returns the reward of the last action on the flow, measured since `meter` was started.
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
            Self::Environment { scale } => {
                let settings = &policy.reward;
                let reward = |window| Terms::of(window, settings).reward(settings);
                scale * windows.iter().map(reward).sum::<f64>()
            }
            Self::Power(power) => {
                let now = simulation.now();
                let seconds = meter.seconds(situation, flow);
                if seconds <= 0.0 {
                    return 0.0;
                }
                let elapsed = seconds * 1e3 / f64::from(policy.window_ms);
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
                power.scale * score * elapsed
            }
        }
    }
}

impl PowerObjective {
    /// Returns a ln(t/r + ε) − b ln(max(d/d₀, 1)) − c l of one flow since the meter was started, or
    /// what [`Self::beside`] makes of it. Rates are those of the time in which the flow had data to
    /// send; 0 where it had none.
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
        let seconds = meter.seconds(situation, flow);
        if seconds <= 0.0 {
            return 0.0;
        }
        let (before, after) = (&meter.totals[flow], simulation.flow(flow));
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
        let share = throughput / reference;
        let (queued, loss) = (delay / base, again as f64 / sent.max(1) as f64);
        let earned = (share + self.epsilon).ln();
        let earned_with = |excess: f64| match share > 1.0 {
            true => -excess * share.ln(),
            false => earned,
        };
        let is_beside = truth.has_bulk_neighbours(now);
        let (earned, weight, queued, loss) = match self.beside.filter(|_| is_beside) {
            Some(beside) => (earned_with(beside.excess), beside.delay, queued, loss),
            None if self.caused && !is_beside && sharers > 1 => {
                let sent_share = sent as f64 * 8.0 / seconds / reference;
                let excess = match meter.lost(simulation) {
                    true => (sent_share - 1.0).max(0.0),
                    false => 0.0,
                };
                (earned_with(1.0), self.delay, share * queued, excess)
            }
            None => (earned, self.delay, queued, loss),
        };
        self.throughput * earned - weight * queued.max(1.0).ln() - self.loss * loss.min(1.0)
    }
}

fn one() -> f64 {
    1.0
}
