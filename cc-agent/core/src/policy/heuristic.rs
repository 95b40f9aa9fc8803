//! A rule set by hand that keeps a flow's queueing delay near a target: a baseline for trained
//! policies, and a network whose every answer can be predicted.
//!
//! **Delay picks the action.** Each action has the queueing delay at which it is best, its centre.
//! Its logit falls with the distance of the window's mean delay from it, so the nearest centre
//! wins:
//!
//! | action | `*2` | `+10` | `0` | `-10` | `/2` |
//! |---|---|---|---|---|---|
//! | centre (ms) | 0 | 8 | 20 | 35 | 80 |
//!
//! **Vetoes forbid what delay alone would get wrong.** Each has a strength, 0 for none and 1 for
//! full, and weights; strength times weight times [`VETO`] is taken from the actions' logits:
//!
//! | veto | when | `*2` | `+10` | `0` | `-10` | `/2` |
//! |---|---|---|---|---|---|---|
//! | loss | more than 2 % of what was acked, and a segment, was lost | 2 | 2 | 1 | | |
//! | heavy loss | more than 20 %, and two segments, was lost | | | 1 | 1 | |
//! | unused | half of the cwnd was never in flight | 1 | 1 | | | |
//! | small | the cwnd is at most 16 segments, and 10 more or less are a jump | | 1 | | 1 | |
//! | reduced | a reduction is among the last ten decisions: the limit is near | 1 | | | | |
//! | doubled | a doubling is not seen yet | 1 | 1 | | | |
//! | halved | a halving is not seen yet | | | | 2 | 2 |
//!
//! The j-th newest decision was in force for j − 1 windows when the observed window began, and a
//! decision shows after one round trip: it is *not seen yet* while j − 1 windows are shorter than
//! the smoothed RTT (and partly for one window more).
//!
//! [`export`] writes the rule as a network with two ReLU layers on the ordinary observation;
//! [`Heuristic`] computes it in plain Rust. Each is the other's test.

use std::collections::BTreeMap;

use cc_ebpf::{FEATURES, Feature};

use super::export::{Dense, GraphBuilder};
use super::{
    ActionSelection,
    meta::{PolicyKind, PolicyMeta},
};
use super::{Choice, Policy, Query};
use crate::action::ActionSpace;
use crate::interface::Interface;

/// The best queueing delay for each action of the default action space, in milliseconds.
const CENTRES_MS: [f64; 5] = [20.0, 80.0, 35.0, 8.0, 0.0];

/// How many milliseconds of distance from its centre take 1 from an action's logit.
const MS_PER_LOGIT: f64 = 5.0;

/// The logit that a full veto of weight 1 takes: more than any distance between two centres does.
const VETO: f64 = 20.0;

/// Vetoes' weights, for the actions in their order: `0`, `/2`, `-10`, `+10`, `*2`.
const LOSS: [f64; 5] = [1.0, 0.0, 0.0, 2.0, 2.0];
const HEAVY_LOSS: [f64; 5] = [1.0, 0.0, 1.0, 0.0, 0.0];
const UNUSED: [f64; 5] = [0.0, 0.0, 0.0, 1.0, 1.0];
const SMALL: [f64; 5] = [0.0, 0.0, 1.0, 1.0, 0.0];
const REDUCED: [f64; 5] = [0.0, 0.0, 0.0, 0.0, 1.0];
const DOUBLED: [f64; 5] = [0.0, 0.0, 0.0, 1.0, 1.0];
const HALVED: [f64; 5] = [0.0, 2.0, 2.0, 0.0, 0.0];

/// The indices of the actions that the history is searched for.
const HALVE: usize = 1;
const SUBTRACT: usize = 2;
const DOUBLE: usize = 4;

/// Fractions of the bytes acked that may be lost.
const LOSS_SHARE: f64 = 0.02;
const HEAVY_LOSS_SHARE: f64 = 0.2;

/// About one segment, in kB, and the kB over which a veto rises from none to full.
const SEGMENT_KB: f64 = 1.5;
const RAMP_KB: f64 = 3.0;

/// The cwnd in kB below which 10 segments are a jump.
const SMALL_KB: f64 = 24.0;

/// How far back a reduction is remembered, and how far back an unseen decision is looked for.
const REDUCED_SLOTS: usize = 10;
const UNSEEN_SLOTS: usize = 8;

/// The rule in plain Rust.
#[derive(Debug, Clone)]
pub struct Heuristic {
    interface: Interface,
}

impl Heuristic {
    /// Creates the rule for the windows, scales and history of an interface.
    ///
    /// # Errors
    ///
    /// Returns an error when the interface has other actions than the default ones, or a history of
    /// fewer than two decisions.
    pub fn new(interface: Interface) -> Result<Self, HeuristicError> {
        if interface.actions != ActionSpace::default() {
            return Err(HeuristicError::Actions {
                found: interface.actions.to_string(),
            });
        }
        if interface.history < 2 {
            return Err(HeuristicError::History {
                found: interface.history,
            });
        }
        Ok(Self { interface })
    }

    /// One logit for each action.
    fn logits(&self, observation: &[f32]) -> [f64; 5] {
        let Interface {
            window_ms,
            history,
            scales,
            ..
        } = &self.interface;
        let time = |statistic, feature| {
            f64::from(observation[index(statistic, feature)]) * f64::from(scales.time_ms)
        };
        let kilobytes = |statistic, feature| {
            f64::from(observation[index(statistic, feature)]) * f64::from(scales.bytes) / 1000.0
        };
        // Whether the j-th newest decision was this action.
        let chosen = |j: usize, action: usize| {
            f64::from(observation[self.interface.past_action(j) + action]).max(0.0)
        };
        let ramp = |excess: f64| (excess / RAMP_KB).clamp(0.0, 1.0);

        let delay = time(MEAN, Feature::Delay).max(0.0);
        let (lost, acked) = (
            kilobytes(SUM, Feature::Lost),
            kilobytes(SUM, Feature::Acked),
        );
        let cwnd = kilobytes(MEAN, Feature::Cwnd);
        let used = kilobytes(MAX, Feature::InFlight) + kilobytes(MAX, Feature::Acked);
        let round_trip = time(MEAN, Feature::SmoothedRtt) / f64::from(*window_ms);
        let unseen = |action| -> f64 {
            (1..=UNSEEN_SLOTS.min(*history))
                .map(|j| (chosen(j, action) - ((j - 1) as f64 - round_trip).max(0.0)).max(0.0))
                .sum()
        };
        let reductions: f64 = (1..=REDUCED_SLOTS.min(*history))
            .map(|j| chosen(j, HALVE) + chosen(j, SUBTRACT))
            .sum();

        let vetoes = [
            (LOSS, ramp(lost - LOSS_SHARE * acked - SEGMENT_KB)),
            (
                HEAVY_LOSS,
                ramp(lost - HEAVY_LOSS_SHARE * acked - 2.0 * SEGMENT_KB),
            ),
            (UNUSED, ramp(cwnd / 2.0 - used - 2.0 * SEGMENT_KB)),
            (SMALL, ramp(SMALL_KB - cwnd)),
            (REDUCED, reductions.min(1.0)),
            (DOUBLED, unseen(DOUBLE)),
            (HALVED, unseen(HALVE)),
        ];
        std::array::from_fn(|a| {
            let vetoed: f64 = vetoes
                .iter()
                .map(|(weights, strength)| weights[a] * strength)
                .sum();
            -(delay - CENTRES_MS[a]).abs() / MS_PER_LOGIT - VETO * vetoed
        })
    }
}

impl Policy for Heuristic {
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
        let length = self.interface.observation_len();
        let mut allowed = Vec::new();
        queries
            .iter_mut()
            .map(|query| {
                let finite = query.observation.iter().all(|value| value.is_finite());
                if query.observation.len() != length || !finite {
                    return Choice::Invalid;
                }
                let logits = self.logits(&query.observation);
                self.interface.allowed(query.cwnd, &mut allowed);
                // `0`, the first action, always is.
                let others = (1..5).filter(|&a| super::is_allowed(&allowed, a));
                let first_best =
                    others.fold(0, |best, a| if logits[a] > logits[best] { a } else { best });
                query.probabilities = super::one_hot(first_best, logits.len());
                Choice::Action {
                    index: first_best,
                    probability: 1.0,
                }
            })
            .collect()
    }

    fn interface(&self) -> &Interface {
        &self.interface
    }
}

/// Why the rule does not work with an interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeuristicError {
    /// The interface has other actions than the default ones.
    #[error(
        "the heuristic policy works with the actions {} only, not {found}",
        ActionSpace::default()
    )]
    Actions {
        /// The actions of the interface.
        found: String,
    },
    /// The history of past decisions is too short for the rule.
    #[error(
        "the heuristic policy looks at past decisions: history is {found}, expected at least 2"
    )]
    History {
        /// The interface's number of past decisions.
        found: usize,
    },
}

/// The rule as a policy file for the default interface. Every call returns the same bytes.
///
/// Layer 1 computes ReLU signals from the observation, layer 2 the distances from the centres and
/// the vetoes' strengths, and the output weighs them. The recurrent state is handed through.
pub(super) fn export() -> Vec<u8> {
    let interface = Interface::default();
    let length = interface.observation_len();
    let (time, kilobytes) = (
        f64::from(interface.scales.time_ms),
        f64::from(interface.scales.bytes) / 1000.0,
    );
    let time = |statistic, feature, weight: f64| (index(statistic, feature), weight * time);
    let kilobytes =
        |statistic, feature, weight: f64| (index(statistic, feature), weight * kilobytes);
    let chosen = |j: usize, action: usize| (interface.past_action(j) + action, 1.0);
    let per_kb = 1.0 / RAMP_KB;

    let mut signals = Layer::new(length);
    let delay = signals.unit(0.0, &[time(MEAN, Feature::Delay, 1.0)]);
    let [loss, heavy_loss] = [
        (LOSS_SHARE, SEGMENT_KB),
        (HEAVY_LOSS_SHARE, 2.0 * SEGMENT_KB),
    ]
    .map(|(share, allowed)| {
        let lost = kilobytes(SUM, Feature::Lost, per_kb);
        let acked = kilobytes(SUM, Feature::Acked, -share * per_kb);
        signals.unit(-allowed * per_kb, &[lost, acked])
    });
    let unused = signals.unit(
        -2.0 * SEGMENT_KB * per_kb,
        &[
            kilobytes(MEAN, Feature::Cwnd, 0.5 * per_kb),
            kilobytes(MAX, Feature::InFlight, -per_kb),
            kilobytes(MAX, Feature::Acked, -per_kb),
        ],
    );
    let small = signals.unit(
        SMALL_KB * per_kb,
        &[kilobytes(MEAN, Feature::Cwnd, -per_kb)],
    );
    let reductions: Vec<_> = (1..=REDUCED_SLOTS)
        .flat_map(|j| [chosen(j, HALVE), chosen(j, SUBTRACT)])
        .collect();
    let reduced = signals.unit(0.0, &reductions);
    let past: Vec<[usize; 3]> = (1..=UNSEEN_SLOTS)
        .map(|j| {
            let windows = 1.0 / f64::from(interface.window_ms);
            let round_trip = time(MEAN, Feature::SmoothedRtt, -windows);
            [
                signals.unit(0.0, &[chosen(j, DOUBLE)]),
                signals.unit(0.0, &[chosen(j, HALVE)]),
                signals.unit((j - 1) as f64, &[round_trip]),
            ]
        })
        .collect();

    let mut strengths = Layer::new(signals.len());
    let mut logits = Layer::new(0);
    let distances = CENTRES_MS.map(|centre| {
        [
            strengths.unit(-centre, &[(delay, 1.0)]),
            strengths.unit(centre, &[(delay, -1.0)]),
        ]
    });
    // These five saturate: what is left of 1 is what a veto leaves, so the veto is 1 less that.
    let saturating = [
        (LOSS, loss),
        (HEAVY_LOSS, heavy_loss),
        (UNUSED, unused),
        (SMALL, small),
        (REDUCED, reduced),
    ]
    .map(|(weights, signal)| (weights, strengths.unit(1.0, &[(signal, -1.0)])));
    let unseen: Vec<_> = past
        .iter()
        .flat_map(|&[doubled, halved, seen]| [(DOUBLED, doubled, seen), (HALVED, halved, seen)])
        .map(|(weights, chosen, seen)| {
            (weights, strengths.unit(0.0, &[(chosen, 1.0), (seen, -1.0)]))
        })
        .collect();

    logits.inputs = strengths.len();
    for (a, distances) in distances.iter().enumerate() {
        let mut terms: Vec<_> = distances
            .iter()
            .map(|&unit| (unit, -1.0 / MS_PER_LOGIT))
            .collect();
        terms.extend(
            saturating
                .iter()
                .map(|(weights, left)| (*left, VETO * weights[a])),
        );
        terms.extend(
            unseen
                .iter()
                .map(|(weights, unit)| (*unit, -VETO * weights[a])),
        );
        let vetoes: f64 = saturating.iter().map(|(weights, _)| weights[a]).sum();
        logits.unit(-VETO * vetoes, &terms);
    }

    let meta = PolicyMeta {
        name: "delay-target".to_owned(),
        kind: PolicyKind::Heuristic,
        hidden: vec![signals.len(), strengths.len()],
        state: 1,
        serving: ActionSelection::Greedy,
        provenance: BTreeMap::from([(
            "origin".to_owned(),
            "weights set by hand; see cc-agent/src/policy/heuristic.rs".to_owned(),
        )]),
        interface,
    };
    let mut graph = GraphBuilder::default();
    let sums = graph.dense("signals", "observation", &signals.dense());
    let x = graph.node("Relu", &[&sums], "signals", vec![]);
    let sums = graph.dense("strengths", &x, &strengths.dense());
    let x = graph.node("Relu", &[&sums], "strengths", vec![]);
    graph.dense_into("logits", &x, &logits.dense(), "logits");
    let zero = graph.floats("zero", &[1], &[0.0]);
    graph.node("Mul", &["reward", &zero], "baseline", vec![]);
    graph.node("Identity", &["h"], "h_out", vec![]);
    graph.node("Identity", &["c"], "c_out", vec![]);
    graph.finish(
        &meta,
        "Follows a queueing-delay target by a rule whose weights were set by hand. It is a \
         heuristic and was not trained.",
    )
}

/// Where a statistic's 20 features begin in the observation.
const SUM: usize = 0;
const MEAN: usize = FEATURES;
const MAX: usize = 4 * FEATURES;

/// A feature's place in the observation.
fn index(statistic: usize, feature: Feature) -> usize {
    statistic + feature as usize
}

/// A layer that is set up unit by unit.
struct Layer {
    inputs: usize,
    units: Vec<(f64, Vec<(usize, f64)>)>,
}

impl Layer {
    fn new(inputs: usize) -> Self {
        Self {
            inputs,
            units: vec![],
        }
    }

    fn len(&self) -> usize {
        self.units.len()
    }

    /// Adds a unit: bias + Σ weight · input; gives its index back.
    fn unit(&mut self, bias: f64, terms: &[(usize, f64)]) -> usize {
        self.units.push((bias, terms.to_vec()));
        self.units.len() - 1
    }

    fn dense(&self) -> Dense {
        let outputs = self.units.len();
        let mut weights = vec![0.0; self.inputs * outputs];
        for (unit, (_, terms)) in self.units.iter().enumerate() {
            for (input, weight) in terms {
                weights[input * outputs + unit] += *weight as f32;
            }
        }
        let bias = self.units.iter().map(|(bias, _)| *bias as f32).collect();
        Dense {
            inputs: self.inputs,
            outputs,
            weights,
            bias,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{OnnxPolicy, State};

    fn rule() -> Heuristic {
        Heuristic::new(Interface::default()).expect("fits the default environment")
    }

    fn network() -> OnnxPolicy {
        OnnxPolicy::from_bytes(&export(), None, 0).expect("what the rule exports loads")
    }

    fn query(observation: Vec<f32>) -> Query {
        Query {
            observation,
            reward: 0.0,
            cwnd: 10,
            state: State::default(),
            probabilities: Vec::new(),
        }
    }

    #[test]
    fn the_file_is_labelled_honestly() {
        let network = network();
        let summary = network.summary();
        assert_eq!(summary.meta.kind, PolicyKind::Heuristic);
        assert!(
            summary.description.contains("not trained"),
            "{}",
            summary.description
        );
    }

    #[test]
    fn an_environment_that_does_not_fit_is_refused() {
        let refuse = |interface| {
            Heuristic::new(interface)
                .err()
                .map(|e| e.to_string())
                .unwrap_or_default()
        };
        let error = refuse(Interface {
            history: 1,
            ..Interface::default()
        });
        assert!(
            error.contains("history is 1, expected at least 2"),
            "{error}"
        );
        let actions = "0,*2,/2".parse().expect("an action list");
        let error = refuse(Interface {
            actions,
            ..Interface::default()
        });
        assert!(
            error.contains("0,/2,-10,+10,*2 only, not 0,*2,/2"),
            "{error}"
        );
    }

    /// Windows such as flows see them, decisions included, in the default environment's scales.
    fn any_observation() -> impl Strategy<Value = Vec<f32>> {
        let action = prop::collection::vec(0usize..5, 20);
        let near_thresholds = (0.0..200.0f32, 0.0..600.0f32, 0.0..3000.0f32, 0.0..1.2f32);
        (
            action,
            near_thresholds,
            0.0..0.4f32,
            0.0..3000.0f32,
            0.0..1.0f32,
        )
            .prop_map(
                |(actions, (delay, rtt, cwnd, in_flight), loss, acked, share)| {
                    let mut observation = vec![0.0; 220];
                    let mut set = |statistic, feature, value| {
                        observation[index(statistic, feature)] = value;
                    };
                    set(MEAN, Feature::Delay, delay / 100.0);
                    set(MEAN, Feature::SmoothedRtt, rtt / 100.0);
                    set(MEAN, Feature::Cwnd, cwnd * share);
                    set(MAX, Feature::InFlight, cwnd * share * in_flight);
                    set(MAX, Feature::Acked, acked * share / 20.0);
                    set(SUM, Feature::Acked, acked * share);
                    set(SUM, Feature::Lost, acked * share * loss);
                    for (slot, action) in actions.into_iter().enumerate() {
                        observation[100 + 6 * slot + action] = 1.0;
                        observation[100 + 6 * slot + 5] = cwnd * share;
                    }
                    observation
                },
            )
    }

    /// On logits of up to 200: loss is a difference of up to a megabyte, which f32 keeps to 0.1
    /// byte, and 3000 bytes are a full veto.
    const TOLERANCE: f64 = 1e-3;

    proptest! {
        #[test]
        fn network_and_rule_agree(observations in prop::collection::vec(any_observation(), 1..12)) {
            let rule = rule();
            let mut network = network();
            let expected: Vec<_> = observations.iter().map(|o| rule.logits(o)).collect();
            let mut queries: Vec<_> = observations.into_iter().map(query).collect();
            let found = network.evaluate(&mut queries);
            for (expected, found) in expected.iter().zip(&found) {
                let found = &found.as_ref().expect("finite").logits;
                for (e, f) in expected.iter().zip(found) {
                    prop_assert!((e - f64::from(*f)).abs() < TOLERANCE, "{expected:?} {found:?}");
                }
            }
            // The same decision, unless two actions are as good as each other.
            let by_rule = rule.clone().decide(&mut queries);
            for (i, (a, b)) in by_rule.into_iter().zip(network.decide(&mut queries)).enumerate() {
                let (Choice::Action { index: a, .. }, Choice::Action { index: b, .. }) = (a, b)
                else {
                    panic!("{a:?}, {b:?}");
                };
                prop_assert!(a == b || (expected[i][a] - expected[i][b]).abs() < TOLERANCE);
            }
        }
    }

    /// A link of `rate` packets/s, `rtt_ms` without queueing and a queue of `queue` packets, and on
    /// it one flow that always has data. A fluid model: what is beyond the pipe stands in the
    /// queue, a change of the window shows one round trip later.
    struct Link {
        rate: f64,
        rtt_ms: f64,
        queue: f64,
    }

    #[derive(Debug)]
    struct Outcome {
        utilisation: f64,
        delay_ms: f64,
        /// Lost as a share of delivered.
        loss: f64,
    }

    impl Link {
        /// Runs the rule for `windows` decisions from 10 packets; the outcome is the second half's.
        fn run(&self, windows: usize) -> Outcome {
            const SEGMENT_KB: f64 = 1.448;
            let interface = Interface::default();
            let mut rule = rule();
            let (mut cwnd, mut queue) = (10u32, 0.0f64);
            // The window of each past millisecond, and the (action, window) of each past decision.
            let mut sent = vec![10.0];
            let mut history = vec![(0, 10u32); interface.history];
            let (mut delivered, mut dropped, mut delays) = (0.0, 0.0, vec![]);
            let pipe = self.rate * self.rtt_ms / 1000.0;
            for window in 0..windows {
                let (mut acked, mut lost, mut delay, mut in_flight) = (0.0, 0.0, 0.0, 0.0f64);
                for _ in 0..100 {
                    sent.push(f64::from(cwnd));
                    let round_trip = self.rtt_ms + queue / self.rate * 1000.0;
                    let lag = sent.len().saturating_sub(1 + round_trip as usize);
                    let outstanding = sent[lag];
                    // The queue drains no faster than the link sends.
                    let drained = queue - self.rate / 1000.0;
                    let excess = (outstanding - pipe).max(drained).max(0.0) - self.queue;
                    lost += excess.max(0.0) / round_trip;
                    queue = (outstanding - pipe).max(drained).clamp(0.0, self.queue);
                    let busy = if queue > 0.0 {
                        1.0
                    } else {
                        (outstanding / pipe).min(1.0)
                    };
                    acked += busy * self.rate / 1000.0;
                    delay += queue / self.rate * 10.0;
                    in_flight = in_flight.max(outstanding);
                }
                let mut observation = vec![0.0; interface.observation_len()];
                let mut set = |statistic, feature, value: f64| {
                    observation[index(statistic, feature)] = value as f32;
                };
                set(MEAN, Feature::Delay, delay / 100.0);
                set(MEAN, Feature::SmoothedRtt, (self.rtt_ms + delay) / 100.0);
                set(MEAN, Feature::Cwnd, f64::from(cwnd) * SEGMENT_KB);
                set(MAX, Feature::InFlight, in_flight * SEGMENT_KB);
                set(SUM, Feature::Acked, acked * SEGMENT_KB);
                set(SUM, Feature::Lost, lost * SEGMENT_KB);
                for (slot, (action, after)) in history.iter().enumerate() {
                    observation[100 + 6 * slot + action] = 1.0;
                    observation[100 + 6 * slot + 5] = *after as f32 * SEGMENT_KB as f32;
                }
                let choice = rule.decide(&mut [query(observation)])[0];
                let Choice::Action { index, .. } = choice else {
                    panic!("{choice:?}")
                };
                cwnd = interface.actions.apply(index, cwnd, interface.cwnd);
                history.remove(0);
                history.push((index, cwnd));
                if window >= windows / 2 {
                    delivered += acked;
                    dropped += lost;
                    delays.push(delay);
                }
            }
            let seconds = (windows - windows / 2) as f64 / 10.0;
            Outcome {
                utilisation: delivered / (self.rate * seconds),
                delay_ms: delays.iter().sum::<f64>() / delays.len() as f64,
                loss: dropped / delivered,
            }
        }
    }

    #[test]
    fn the_rule_fills_links_without_filling_their_queues() {
        for mbps in [1.0, 4.0, 12.0, 48.0, 96.0] {
            for rtt_ms in [10.0, 30.0, 80.0, 150.0] {
                let rate = mbps * 1e6 / 8.0 / 1500.0;
                let outcome = Link {
                    rate,
                    rtt_ms,
                    queue: 1e6,
                }
                .run(600);
                // On slow links one packet takes 3 to 12 ms and a few more are a jump.
                let (least, most) = if mbps < 10.0 {
                    (0.6, 60.0)
                } else {
                    (0.95, 25.0)
                };
                assert!(
                    outcome.utilisation > least && outcome.delay_ms < most,
                    "{mbps} Mbit/s, {rtt_ms} ms: {outcome:?}"
                );
            }
        }
    }

    #[test]
    fn the_rule_does_not_flood_short_queues() {
        for mbps in [12.0, 48.0, 96.0] {
            for rtt_ms in [30.0, 80.0, 150.0] {
                let rate = mbps * 1e6 / 8.0 / 1500.0;
                // A tenth of what the pipe holds, 3 packets at the least: it overflows before the
                // delay shows much.
                let queue = 0.1 * rate * rtt_ms / 1000.0;
                let outcome = Link {
                    rate,
                    rtt_ms,
                    queue,
                }
                .run(600);
                assert!(
                    outcome.utilisation > 0.9 && outcome.loss < 0.08,
                    "{mbps} Mbit/s, {rtt_ms} ms: {outcome:?}"
                );
            }
        }
    }
}
