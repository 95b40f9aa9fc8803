//! Makes the estimators' flows from recordings: asks the candidate at each recorded decision,
//! carrying its recurrent state along the flow.

use std::collections::BTreeSet;

use cc_core::{
    interface::Interface,
    policy::{Choice, Policy, Query, State},
};

use super::{ClusterBy, OpeFlow, OpeStep, Per, RecordingEnd};
use crate::{
    dataset::{
        self, DatasetError, FlowOrigin, Partitions, StepOutcome, TERMS, Trajectory, TrajectoryStep,
    },
    normalise::{Fit, Normalizer, input_shapes},
};

/// Names of the first reward terms of the steps that [`flows`] returns: those of an outcome, and
/// its reward. What was joined with the recordings follows ([`CandidateFlows::terms`]).
pub const TERM_NAMES: [&str; 5] = [TERMS[0], TERMS[1], TERMS[2], TERMS[3], "reward"];

/// Whether a larger value of a term is better, in the order of [`TERM_NAMES`].
pub const MORE_IS_BETTER: [bool; 5] = [true, false, false, false, true];

/// Number of flows whose queries form one batch.
const BATCH: usize = 64;

/// Largest number of features that a recurrent candidate's memory becomes.
const MEMORY: usize = 128;

/// Which decisions [`flows`] takes, and what it takes as their rewards.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Identifier of the behaviour policy whose decisions are taken; `None` takes those of all.
    pub of: Option<String>,
    /// Whether rewards are means per decision, or amounts from which rates per second are made.
    pub per: Per,
    /// Number of decisions after which no further partition is read.
    pub most: usize,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            of: None,
            per: Per::default(),
            most: usize::MAX,
        }
    }
}

/// Flows with the candidate's probabilities, and counts of the decisions that could not be used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CandidateFlows {
    /// Flows, split where a decision could not be used. Each is a cluster of its own, together with
    /// the other parts of the same flow, unless [`group`](Self::group) says otherwise.
    pub flows: Vec<OpeFlow>,
    /// Where and when each of the flows was recorded.
    pub origins: Vec<FlowOrigin>,
    /// Names of the reward terms, and whether more of each is better.
    pub terms: Vec<(String, bool)>,
    /// Number of decisions without a recorded probability, which have no importance weight.
    pub without_probability: usize,
    /// Number of decisions for which the candidate gave no usable answer.
    pub without_answer: usize,
    /// Number of decisions beyond the limit, which were not read.
    pub not_looked_at: usize,
}

/// Why a candidate cannot be evaluated on recordings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CandidateError {
    /// The candidate has other observations, actions or windows.
    #[error(
        "the policy was made for other settings than the recording ({}): only a policy with the \
         same observations, actions and windows can be evaluated on it",
        differences.join("; ")
    )]
    Interface {
        /// The settings that differ, each as `setting: this, not that`.
        differences: Vec<String>,
    },
    /// The recordings cannot be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Several policies decided, as during a canary.
    #[error(
        "{} policies decided in the recordings ({}), and their mixture is nothing to compare a \
         candidate with: name one of them with --of",
        policies.len(),
        policies.join(", ")
    )]
    Mixture {
        /// Identifiers of the recorded policies.
        policies: Vec<String>,
    },
    /// No policy with known decisions has the identifier, or several begin with it.
    #[error(
        "`{asked}` does not name one of the policies that decided in the recordings ({}): give its \
         identifier, the beginning of it, or its file",
        policies.join(", ")
    )]
    NoSuchPolicy {
        /// The identifier that was asked for.
        asked: String,
        /// Identifiers of the recorded policies.
        policies: Vec<String>,
    },
    /// The recordings do not tell the clusters that were asked for.
    #[error(
        "{unknown} of {flows} flows have no remote address, so it is unknown which of them shared \
         a path: record with cc-agent run --record-addresses hashed:KEYFILE, or use another kind \
         of cluster (flow, host, hour)"
    )]
    NoPaths {
        /// Number of flows without an address.
        unknown: usize,
        /// Number of flows that were taken.
        flows: usize,
    },
    /// No recorded decision has a probability, so none has an importance weight.
    #[error(
        "none of {decisions} recorded decisions has a probability, without which another policy's \
         reward cannot be estimated: record a policy that samples its actions \
         (cc-agent run --serving softmax), not another congestion control"
    )]
    NoProbability {
        /// Number of decisions that were read.
        decisions: usize,
    },
}

/// Checks that a candidate has the observations, actions and windows of the recordings.
/// Its reward settings may differ, and so may its masks, which are part of how it chooses.
///
/// # Errors
///
/// Returns an error that lists the settings that differ.
pub fn check(candidate: &dyn Policy, recorded: &Interface) -> Result<(), CandidateError> {
    let own = Interface {
        reward: recorded.reward,
        mask_actions: recorded.mask_actions,
        ..candidate.interface().clone()
    };
    let differences = dataset::differences(recorded, &own);
    match differences.is_empty() {
        true => Ok(()),
        false => Err(CandidateError::Interface { differences }),
    }
}

/// Returns the identifier of the recorded policy that a candidate is compared with: the only one,
/// or the one that `asked` names by its identifier or the beginning of it.
///
/// # Errors
///
/// Returns an error that lists the `recorded` policies when nothing was asked for although there
/// are several, or when it does not name one of them.
pub fn behaviour(recorded: &[String], asked: Option<&str>) -> Result<String, CandidateError> {
    let Some(asked) = asked else {
        return match recorded {
            [only] => Ok(only.clone()),
            _ => Err(CandidateError::Mixture {
                policies: recorded.to_vec(),
            }),
        };
    };
    let exact = recorded.iter().find(|policy| *policy == asked);
    let mut begun = recorded.iter().filter(|policy| policy.starts_with(asked));
    match (exact, begun.next(), begun.next()) {
        (Some(policy), ..) | (None, Some(policy), None) => Ok(policy.clone()),
        _ => Err(CandidateError::NoSuchPolicy {
            asked: asked.to_owned(),
            policies: recorded.to_vec(),
        }),
    }
}

/// Returns flows with the candidate's probabilities. It reads whole partitions in order, until they
/// have as many decisions as the selection wants.
///
/// # Errors
///
/// Returns an error when the candidate does not fit the recordings, a row is present twice, or no
/// decision of the selection has a known observation or a probability.
pub fn flows(
    partitions: &Partitions,
    candidate: &mut dyn Policy,
    selection: &Selection,
) -> Result<CandidateFlows, CandidateError> {
    let interface = partitions.interface();
    check(candidate, interface)?;
    let own = TERM_NAMES.into_iter().zip(MORE_IS_BETTER);
    let mut taken = CandidateFlows {
        terms: own.map(|(name, more)| (name.to_owned(), more)).collect(),
        ..CandidateFlows::default()
    };
    if let Some((joined, _)) = partitions.joined() {
        let names = joined.names().iter().cloned();
        taken.terms.extend(names.zip(joined.more_is_better()));
    }
    let (mut seen, mut decisions) = (0, 0);
    let mut others = BTreeSet::new();
    let mut memory = Memory::default();
    for index in 0..partitions.len() {
        if decisions >= selection.most {
            break;
        }
        let mut all = Vec::new();
        partitions.visit(index, |trajectory| {
            seen += trajectory.steps.len();
            match &selection.of {
                Some(of) if **of != *trajectory.policy => {
                    others.insert(trajectory.policy);
                }
                _ => {
                    decisions += trajectory.steps.len();
                    all.push(trajectory);
                }
            }
            Ok(())
        })?;
        for chunk in all.chunks(BATCH) {
            taken.add(chunk, candidate, &mut memory, selection.per, interface);
        }
    }
    let gathered = partitions.gathered().decisions as usize;
    taken.not_looked_at = gathered.saturating_sub(seen);
    if decisions == 0 {
        return Err(match &selection.of {
            Some(asked) if !others.is_empty() => CandidateError::NoSuchPolicy {
                asked: asked.clone(),
                policies: others.iter().map(ToString::to_string).collect(),
            },
            _ => DatasetError::NoneKnown {
                decisions: partitions.gathered().decisions,
            }
            .into(),
        });
    }
    if taken.without_probability == decisions {
        return Err(CandidateError::NoProbability { decisions });
    }
    let normalizer = fit(interface, &taken.flows);
    for step in taken.flows.iter_mut().flat_map(|flow| &mut flow.steps) {
        // Behind the observation is the reward that the policy saw, then a feature that is always
        // 1, then the candidate's memory, whose numbers have about unit size already.
        let (observation, rest) = step.features.split_at_mut(interface.observation_len());
        normalizer.apply(observation);
        rest[0] = normalizer.reward.apply(rest[0]);
    }
    Ok(taken)
}

impl CandidateFlows {
    /// Puts the flows into clusters of this kind, or of the [safest](ClusterBy::safest) that the
    /// recording supports; `least` and `closing` are for that choice. Returns the kind.
    ///
    /// # Errors
    ///
    /// Returns an error when the recording does not tell such clusters.
    pub fn group(
        &mut self,
        by: Option<ClusterBy>,
        least: usize,
        closing: bool,
    ) -> Result<ClusterBy, CandidateError> {
        let by = by.unwrap_or_else(|| {
            let flows = self.flows.iter().map(|flow| flow.id).zip(&self.origins);
            ClusterBy::safest(flows, least, closing)
        });
        let mut unknown = 0;
        for (flow, origin) in self.flows.iter_mut().zip(&self.origins) {
            match by.cluster(flow.id, origin) {
                Some(cluster) => flow.cluster = cluster,
                None => unknown += 1,
            }
        }
        match unknown {
            0 => Ok(by),
            _ => Err(CandidateError::NoPaths {
                unknown,
                flows: self.flows.len(),
            }),
        }
    }

    /// Adds trajectories with the candidate's probabilities.
    fn add(
        &mut self,
        trajectories: &[Trajectory],
        candidate: &mut dyn Policy,
        memory: &mut Memory,
        per: Per,
        interface: &Interface,
    ) {
        let answers = answers(candidate, trajectories, memory);
        for (trajectory, answers) in trajectories.iter().zip(answers) {
            let mut steps = Vec::new();
            let mut begun_ns = 0;
            let mut end = |steps: &mut Vec<OpeStep>, begun_ns: i64, reached: bool| {
                if !steps.is_empty() {
                    self.origins.push(trajectory.origin);
                    self.flows.push(OpeFlow {
                        id: trajectory.flow,
                        cluster: trajectory.flow,
                        steps: std::mem::take(steps),
                        // The application decides when a flow ends, so the end is not an outcome of
                        // the policy: its reward is counted while the flow lasts.
                        ended: false,
                        end: Some(RecordingEnd {
                            after_s: (trajectory.until_ns - begun_ns) as f64 / 1e9,
                            reached,
                        }),
                    });
                }
            };
            let last = trajectory.steps.len() - 1;
            for (at, (step, answer)) in trajectory.steps.iter().zip(answers).enumerate() {
                let known = step.probability.filter(|&p| p > 0.0);
                self.without_probability += usize::from(known.is_none());
                self.without_answer += usize::from(answer.is_none());
                let (Some(behaviour), Some(answer), Some(outcome)) = (known, answer, step.outcome)
                else {
                    end(&mut steps, begun_ns, trajectory.reached && at == last);
                    continue;
                };
                if steps.is_empty() {
                    begun_ns = step.time_ns;
                }
                let mut features = step.observation.clone();
                features.extend([step.observed_reward, 1.0]);
                features.extend(answer.memory);
                let (action, behaviour, candidate) =
                    of_effects(step, behaviour, answer.probabilities, interface);
                steps.push(OpeStep {
                    features,
                    action,
                    behaviour,
                    candidate,
                    rewards: rewards(&outcome, trajectory.figures.as_deref(), per),
                    seconds: outcome.seconds,
                });
            }
            end(&mut steps, begun_ns, trajectory.reached);
        }
    }
}

/// Returns a decision by what it does, if all recorded probabilities are known: the first of all
/// actions that lead to the same cwnd, its probability under the behaviour policy, and the
/// candidate's probabilities, each the sum over such actions. The ratio between two names for one
/// thing is chance alone. Otherwise it is returned as it was recorded.
///
/// A behaviour policy with masks gave all but the first of these actions the probability 0, so that
/// the one recorded probability is the sum, whether or not the others are known. A candidate
/// without masks is then estimated as one that chooses among the first ones: no action that the
/// recorded policy could not take counts as one that it happened not to take.
fn of_effects(
    step: &TrajectoryStep,
    behaviour: f32,
    candidate: Vec<f64>,
    interface: &Interface,
) -> (usize, f64, Vec<f64>) {
    let taken = usize::from(step.action);
    let recorded = step.probabilities.as_deref();
    if recorded.is_none() && !interface.mask_actions {
        return (taken, behaviour.into(), candidate);
    }
    let recorded = recorded.unwrap_or_default();
    let mut effects = Vec::new();
    let actions = &interface.actions;
    actions.effects(step.base_cwnd, interface.cwnd, &mut effects);
    let effect = |action: usize| effects.get(action).map_or(action, |&first| first.into());
    let taken = effect(taken);
    let alike = (0..recorded.len()).filter(|&action| effect(action) == taken);
    let others: Vec<f64> = alike.map(|action| f64::from(recorded[action])).collect();
    let mut merged = vec![0.0; candidate.len()];
    for (action, probability) in candidate.iter().enumerate() {
        merged[effect(action)] += probability;
    }
    match others.as_slice() {
        [] | [_] => (taken, behaviour.into(), merged),
        _ => (taken, others.iter().sum(), merged),
    }
}

/// Returns the rewards of a decision in the order of [`TERM_NAMES`]: its outcome's rates, or for
/// rates per second the rates times the seconds, of which the estimators make means over time.
/// `figures` are what was joined about the flow, which hold for each of its decisions.
fn rewards(outcome: &StepOutcome, figures: Option<&[f64]>, per: Per) -> Vec<f64> {
    let factor = match per {
        Per::Decision => 1.0,
        Per::Second => outcome.seconds,
    };
    let own = outcome.terms.into_iter().chain([outcome.reward.into()]);
    let all = own.chain(figures.into_iter().flatten().copied());
    all.map(|rate| rate * factor).collect()
}

/// Fits the transforms that bring the features to about unit size.
fn fit(interface: &Interface, flows: &[OpeFlow]) -> Normalizer {
    let mut fit = Fit::new(input_shapes(interface));
    for step in flows.iter().flat_map(|flow| &flow.steps) {
        let (observation, rest) = step.features.split_at(interface.observation_len());
        fit.add(observation, rest[0]);
    }
    fit.normalizer()
}

/// The candidate's answer to a recorded decision.
struct Answer {
    /// `[A]`: the probabilities of the actions.
    probabilities: Vec<f64>,
    /// Its memory after the observation ([`Memory`]); empty without a recurrent state.
    memory: Vec<f32>,
}

/// A recurrent candidate's memory as features.
///
/// What such a candidate will do depends on its memory as well as on the next observations, so that
/// its value is a function of both: a model of the observation alone is biased. The features are
/// the recurrent state h and c after the observation. If these are more than [`MEMORY`] numbers,
/// that many sums of them with random signs stand for them, which keep distances and so linear
/// functions about as they are (D. Achlioptas, "Database-friendly random projections", Journal of
/// Computer and System Sciences 66, 2003).
#[derive(Debug, Default)]
struct Memory {
    /// `[MEMORY][width]`: ±1/√width; empty where no projection is needed.
    signs: Vec<f32>,
}

impl Memory {
    /// Returns the features of a state.
    fn features(&mut self, state: &State) -> Vec<f32> {
        let width = state.h.len() + state.c.len();
        let numbers = state.h.iter().chain(&state.c);
        if width <= MEMORY {
            return numbers.copied().collect();
        }
        if self.signs.len() != MEMORY * width {
            let size = (width as f32).sqrt().recip();
            let sign = |at: usize| match cc_sim::seed::output(0, at as u64).is_multiple_of(2) {
                true => size,
                false => -size,
            };
            self.signs = (0..MEMORY * width).map(sign).collect();
        }
        let rows = self.signs.chunks_exact(width);
        rows.map(|signs| signs.iter().zip(numbers.clone()).map(|(a, b)| a * b).sum())
            .collect()
    }
}

/// Returns the candidate's answer at each step of each trajectory, `None` where it has no usable
/// one.
fn answers(
    candidate: &mut dyn Policy,
    trajectories: &[Trajectory],
    memory: &mut Memory,
) -> Vec<Vec<Option<Answer>>> {
    let reward = candidate.interface().reward;
    let longest = trajectories.iter().map(|t| t.steps.len()).max();
    let mut all: Vec<Vec<_>> = trajectories.iter().map(|_| Vec::new()).collect();
    let mut states = vec![State::default(); trajectories.len()];
    for at in 0..longest.unwrap_or(0) {
        let present: Vec<usize> = (0..trajectories.len())
            .filter(|&flow| at < trajectories[flow].steps.len())
            .collect();
        let mut queries: Vec<_> = present
            .iter()
            .map(|&flow| {
                let step = &trajectories[flow].steps[at];
                Query {
                    observation: step.observation.clone(),
                    reward: step.observed_terms.reward(&reward) as f32,
                    cwnd: step.base_cwnd,
                    state: std::mem::take(&mut states[flow]),
                    probabilities: Vec::new(),
                }
            })
            .collect();
        let choices = candidate.decide(&mut queries);
        for ((flow, query), choice) in present.into_iter().zip(queries).zip(choices) {
            let usable = choice != Choice::Invalid && !query.probabilities.is_empty();
            let shares = query.probabilities.iter().map(|&share| f64::from(share));
            all[flow].push(usable.then(|| Answer {
                probabilities: shares.collect(),
                memory: memory.features(&query.state),
            }));
            states[flow] = query.state;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use cc_core::action::CwndBounds;
    use cc_core::policy::{ActionSelection, OnnxPolicy, PolicySpec, Random};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        dataset::{
            Recordings,
            tests::{interface, record},
        },
        model::{Activation, Shape, initialise},
        ope::{Method, OpeSettings, evaluate},
        policy_file,
        simulated_recording::{SimulatedRun, record_policy, write},
    };

    fn partitions(directory: &TempDir, known: bool) -> Partitions {
        let path = directory.path().join("a.parquet");
        record(&path, &interface(), 0, 12, 6, known, &|query| {
            // Prefers growth when the cwnd is small.
            let up = if query.cwnd < 20 { 0.6 } else { 0.2 };
            vec![0.1, 0.1, 0.7 - up, up, 0.1]
        });
        let recordings = Recordings::open(&[path]).expect("one file");
        recordings
            .partition(directory.path(), 1 << 20, &|_| {})
            .expect("there is space")
    }

    fn network(lstm: Option<usize>) -> Vec<u8> {
        network_for(&interface(), lstm)
    }

    fn network_for(interface: &Interface, lstm: Option<usize>) -> Vec<u8> {
        let shape = Shape {
            observation: interface.observation_len(),
            hidden: vec![8],
            activation: Activation::Tanh,
            lstm,
            actions: 5,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        let meta = policy_file::meta(
            "small",
            &shape,
            interface,
            ActionSelection::Greedy,
            Default::default(),
        );
        let normalizer = Normalizer::identity(shape.observation);
        policy_file::encode(&shape, &initialise(&shape, 1), &normalizer, &meta, "")
            .expect("it fits")
    }

    #[test]
    fn actions_with_the_same_effect_are_one_decision() {
        let interface = interface();
        let mut step = TrajectoryStep {
            base_cwnd: interface.cwnd.min,
            action: 2,
            probability: Some(0.2),
            probabilities: Some(vec![0.3, 0.1, 0.2, 0.25, 0.15]),
            ..Default::default()
        };
        let candidate = vec![0.0, 0.5, 0.1, 0.3, 0.1];
        // At the smallest cwnd, `0`, `/2` and `-10` leave it where it is.
        let (action, behaviour, merged) = of_effects(&step, 0.2, candidate.clone(), &interface);
        assert_eq!(action, 0);
        assert!((behaviour - 0.6).abs() < 1e-6, "{behaviour}");
        let close = |a: &f64, b: &f64| (a - b).abs() < 1e-12;
        let expected = [0.6, 0.0, 0.0, 0.3, 0.1];
        assert!(
            merged.iter().zip(&expected).all(|(a, b)| close(a, b)),
            "{merged:?}"
        );
        // Elsewhere all five differ, and nothing changes.
        step.base_cwnd = 100;
        let apart = of_effects(&step, 0.2, candidate.clone(), &interface);
        assert_eq!(apart, (2, f64::from(0.2_f32), candidate.clone()));
        // Without the others' probabilities, nothing can be added up.
        step.base_cwnd = interface.cwnd.min;
        step.probabilities = None;
        let alone = of_effects(&step, 0.2, candidate.clone(), &interface);
        assert_eq!(alone, (2, f64::from(0.2_f32), candidate));
    }

    /// What a policy with masks records, and what a policy without them records, is evidence about
    /// either: the ratios are those of effects.
    #[test]
    fn masked_actions_have_no_ratio_of_their_own() {
        let mut interface = interface();
        interface.mask_actions = true;
        let mut step = TrajectoryStep {
            base_cwnd: interface.cwnd.min,
            action: 0,
            probability: Some(0.5),
            probabilities: Some(vec![0.5, 0.0, 0.0, 0.25, 0.25]),
            ..Default::default()
        };
        let (plain, masked) = (vec![0.1, 0.3, 0.2, 0.3, 0.1], vec![0.6, 0.0, 0.0, 0.3, 0.1]);
        for probabilities in [step.probabilities.clone(), None] {
            step.probabilities = probabilities;
            for candidate in [&plain, &masked] {
                let (action, behaviour, merged) =
                    of_effects(&step, 0.5, candidate.clone(), &interface);
                assert_eq!((action, behaviour), (0, 0.5));
                let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
                assert!(merged.iter().zip(&masked).all(close), "{merged:?}");
            }
        }
    }

    /// A recording by a policy with masks, of a link on which the cwnd meets both of its bounds.
    #[test]
    fn a_masked_policy_is_estimated_from_recordings_with_masks() {
        let directory = TempDir::new().expect("a scratch directory");
        let path = directory.path().join("a.parquet");
        let interface = Interface {
            mask_actions: true,
            cwnd: CwndBounds { min: 4, max: 12 },
            ..interface()
        };
        let masked = interface.clone();
        let shares = move |query: &Query| {
            let mut policy = Random::new(masked.clone(), 0);
            let mut asked = [query.clone()];
            policy.decide(&mut asked);
            let [query] = asked;
            query.probabilities
        };
        record(&path, &interface, 0, 12, 6, true, &shares);
        let recordings = Recordings::open(&[path]).expect("one file");
        let partitions = recordings
            .partition(directory.path(), 1 << 20, &|_| {})
            .expect("there is space");
        // The recorded policy itself: every ratio is 1, and masked actions have no probability on
        // either side.
        let mut same = Random::new(interface.clone(), 1);
        let taken = flows(&partitions, &mut same, &Selection::default()).expect("it fits");
        let steps = || taken.flows.iter().flat_map(|flow| &flow.steps);
        assert!(steps().count() > 300);
        assert!(
            steps().any(|step| step.candidate.contains(&0.0)),
            "the bounds are met"
        );
        for step in steps() {
            assert!((step.candidate[step.action] / step.behaviour - 1.0).abs() < 1e-6);
            let supported = step.candidate.iter().filter(|p| **p > 0.0).count();
            assert!((step.behaviour * supported as f64 - 1.0).abs() < 1e-6);
        }
        let settings = OpeSettings {
            horizon: 3,
            resamples: 100,
            ..OpeSettings::default()
        };
        let evaluation = evaluate(&taken.flows, &settings).expect("enough");
        assert!((evaluation.mean_ratio.value - 1.0).abs() < 1e-6);
        // A policy without masks is supported, too, by the effects of what it does: its ratios are
        // 1 in the mean over the recorded policy's actions.
        let mut without = Random::new(
            Interface {
                mask_actions: false,
                ..interface
            },
            1,
        );
        let taken = flows(&partitions, &mut without, &Selection::default()).expect("it fits");
        for step in taken.flows.iter().flat_map(|flow| &flow.steps) {
            assert!((step.candidate.iter().sum::<f64>() - 1.0).abs() < 1e-6);
            let supported = step.candidate.iter().filter(|p| **p > 0.0).count();
            assert!((step.behaviour * supported as f64 - 1.0).abs() < 1e-6);
        }
        let evaluation = evaluate(&taken.flows, &settings).expect("enough");
        let ratio = evaluation.mean_ratio;
        assert!((0.8..1.25).contains(&ratio.value), "{ratio:?}");
    }

    /// What the agent chose and recorded with masks is what an estimate of the same file finds: its
    /// probabilities, and zeros for the same actions.
    #[test]
    fn an_agents_masks_are_found_again_in_its_recording() {
        let directory = TempDir::new().expect("a scratch directory");
        let interface = Interface {
            mask_actions: true,
            cwnd: CwndBounds { min: 4, max: 12 },
            ..interface()
        };
        let bytes = network_for(&interface, Some(6));
        let path = directory.path().join("policy.onnx");
        std::fs::write(&path, &bytes).expect("there is space");
        let serving = ActionSelection::Softmax { temperature: 1.0 };
        let link = "[[scenario]]\nname = \"link\"\nrate_mbps = 12\ndelay_ms = 10\n\
                    queue = { bdp = 3 }\n";
        let link = cc_sim::scenario::parse(link, std::path::Path::new("."));
        let link = link.expect("a scenario").remove(0);
        let run = SimulatedRun::new(std::time::Duration::from_secs(20), 5);
        let rows = record_policy(&link, &PolicySpec::Onnx(path), Some(serving), &run);
        let rows = rows.expect("it is served");
        let recordings = write(directory.path(), "masked", &rows).expect("there is space");
        let mut allowed = Vec::new();
        let mut masked = 0;
        for row in &rows {
            let Some(decision) = &row.row.decision else {
                continue;
            };
            let own = decision.probabilities.as_ref().expect("sampled");
            interface.allowed(decision.base_cwnd, &mut allowed);
            for (probability, allowed) in own.iter().zip(&allowed) {
                assert_eq!(*probability == 0.0, !allowed, "{decision:?}");
            }
            let action = usize::from(decision.action.expect("one of its actions"));
            assert_eq!(decision.probability, Some(own[action]));
            masked += usize::from(allowed.contains(&false));
        }
        assert!(masked > 100, "the bounds are met: {masked}");

        let partitions = Recordings::open(&recordings).expect("one file");
        assert_eq!(partitions.interface(), &interface);
        let partitions = partitions
            .partition(directory.path(), 1 << 20, &|_| {})
            .expect("there is space");
        let mut same = OnnxPolicy::from_bytes(&bytes, Some(serving), 9).expect("accepted");
        let taken = flows(&partitions, &mut same, &Selection::default()).expect("it fits");
        let steps = || taken.flows.iter().flat_map(|flow| &flow.steps);
        assert!(steps().count() > 100);
        for step in steps() {
            let ratio = step.candidate[step.action] / step.behaviour;
            assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");
            assert!(step.candidate.contains(&0.0));
        }
    }

    #[test]
    fn a_candidate_keeps_its_recurrent_state_per_flow() {
        let directory = TempDir::new().expect("a scratch directory");
        let partitions = partitions(&directory, true);
        let bytes = network(Some(6));
        let serving = ActionSelection::Softmax { temperature: 1.0 };
        let load = || OnnxPolicy::from_bytes(&bytes, Some(serving), 0).expect("accepted");
        let taken = flows(&partitions, &mut load(), &Selection::default()).expect("it fits");
        assert_eq!((taken.flows.len(), taken.without_answer), (12, 0));
        // The same flow on its own, one decision after the other.
        let mut policy = load();
        let mut checked = 0;
        let visited = partitions.visit(0, |trajectory| {
            let flow = taken.flows.iter().find(|flow| flow.id == trajectory.flow);
            let flow = flow.expect("every flow is there");
            let mut state = State::default();
            for (step, recorded) in flow.steps.iter().zip(&trajectory.steps) {
                let mut query = [Query {
                    observation: recorded.observation.clone(),
                    reward: recorded.observed_reward,
                    cwnd: recorded.base_cwnd,
                    state,
                    probabilities: Vec::new(),
                }];
                policy.decide(&mut query);
                let [query] = query;
                let own = query.probabilities.iter().map(|&p| p.into()).collect();
                let probability = recorded.probability.expect("recorded with it");
                let (action, behaviour, expected) =
                    of_effects(recorded, probability, own, &interface());
                assert_eq!((step.action, step.behaviour), (action, behaviour));
                for (found, expected) in step.candidate.iter().zip(&expected) {
                    assert!((found - expected).abs() < 1e-5);
                }
                state = query.state;
                let observed = recorded.observation.len();
                assert_eq!(step.features.len(), observed + 2 + 2 * 6);
                let remembered = state.h.iter().chain(&state.c);
                for (found, expected) in step.features[observed + 2..].iter().zip(remembered) {
                    assert!(
                        (found - expected).abs() < 1e-5,
                        "its memory is known to the model"
                    );
                }
                checked += 1;
            }
            Ok(())
        });
        visited.expect("sound");
        assert!(checked > 100);
    }

    #[test]
    fn a_large_memory_is_projected() {
        let state = |factor: f32| State {
            h: (0..100).map(|i| factor * (i as f32).sin()).collect(),
            c: (0..100).map(|i| factor * (i as f32).cos()).collect(),
        };
        let mut memory = Memory::default();
        let [once, twice] = [1.0, 2.0].map(|factor| memory.features(&state(factor)));
        assert_eq!(once.len(), MEMORY);
        for (once, twice) in once.iter().zip(&twice) {
            assert!((2.0 * once - twice).abs() < 1e-5, "linear");
        }
        assert_eq!(once, Memory::default().features(&state(1.0)), "repeatable");
        // The mean square of the projections is that of the numbers, 1/2, but for chance.
        let squares: f32 = once.iter().map(|x| x * x).sum();
        assert!((0.3..0.8).contains(&(squares / MEMORY as f32)), "{squares}");
        assert!(Memory::default().features(&State::default()).is_empty());
    }

    #[test]
    fn recorded_flows_can_be_evaluated() {
        let directory = TempDir::new().expect("a scratch directory");
        let partitions = partitions(&directory, true);
        for (per, discount) in [(Per::Decision, 0.95), (Per::Second, 0.6)] {
            let mut uniform = Random::new(interface(), 0);
            let selection = Selection {
                per,
                ..Selection::default()
            };
            let mut taken = flows(&partitions, &mut uniform, &selection).expect("it fits");
            let by = taken.group(None, 10, false).expect("flows are known");
            assert_eq!(by, ClusterBy::Flow, "one host, one hour, no addresses");
            let settings = OpeSettings {
                horizon: 3,
                resamples: 100,
                per,
                discount,
                ..OpeSettings::default()
            };
            let evaluation = evaluate(&taken.flows, &settings).expect("enough");
            assert_eq!(evaluation.terms.len(), TERM_NAMES.len());
            assert_eq!(evaluation.clusters, 12);
            let mean_ratio = evaluation.mean_ratio.value;
            assert!((mean_ratio - 1.0).abs() < 0.25, "{mean_ratio}");
            let throughput = evaluation.terms[0].recorded.value;
            assert!(
                (1.0..12.5).contains(&throughput),
                "{throughput} Mbit/s of 12"
            );
            let magic = &evaluation.terms[0].estimates[Method::ALL.len() - 1];
            assert!(
                magic.candidate.value.is_finite() && magic.refusal.is_some(),
                "12 flows are few"
            );
        }
    }

    #[test]
    fn a_decision_counts_with_its_time_in_means_over_time() {
        let outcome = StepOutcome {
            windows: 3,
            seconds: 0.5,
            terms: [8.0, 40.0, 0.25, 0.5],
            reward: -6.0,
            ..StepOutcome::default()
        };
        let [rates, amounts] =
            [Per::Decision, Per::Second].map(|per| rewards(&outcome, Some(&[7.0]), per));
        assert_eq!(rates, [8.0, 40.0, 0.25, 0.5, -6.0, 7.0]);
        assert_eq!(amounts, [4.0, 20.0, 0.125, 0.25, -3.0, 3.5]);
    }

    #[test]
    fn decisions_of_one_policy_are_taken_and_its_name_may_be_short() {
        let recorded = ["0a1b2c", "0a9f", "heuristic"].map(str::to_owned);
        let of = |asked| behaviour(&recorded, Some(asked)).ok();
        assert_eq!(of("0a9f").as_deref(), Some("0a9f"));
        assert_eq!(of("0a1").as_deref(), Some("0a1b2c"));
        assert_eq!(of("heur").as_deref(), Some("heuristic"));
        assert_eq!(of("0a"), None, "two begin with it");
        assert_eq!(of("1"), None);
        let error = behaviour(&recorded, None).expect_err("a mixture");
        assert!(
            error.to_string().contains("3 policies") && error.to_string().contains("--of"),
            "{error}"
        );
        assert_eq!(
            behaviour(&recorded[..1], None).ok().as_deref(),
            Some("0a1b2c")
        );

        let directory = TempDir::new().expect("a scratch directory");
        let partitions = partitions(&directory, true);
        let mut uniform = Random::new(interface(), 0);
        let mut of = |policy: &str| {
            let selection = Selection {
                of: Some(policy.to_owned()),
                ..Selection::default()
            };
            flows(&partitions, &mut uniform, &selection)
        };
        assert_eq!(of("softmax").expect("recorded").flows.len(), 12);
        let error = of("another").expect_err("not recorded").to_string();
        assert!(
            error.contains("`another`") && error.contains("(softmax)"),
            "{error}"
        );
    }

    #[test]
    fn flows_are_grouped_by_what_was_recorded() {
        let flow = |id| OpeFlow {
            id,
            cluster: id,
            steps: Vec::new(),
            ended: false,
            end: None,
        };
        let mut taken = CandidateFlows::default();
        // Two parts of each of 24 flows, over 12 paths.
        for id in (0..24).flat_map(|id| [id, id]) {
            taken.flows.push(flow(id));
            taken.origins.push(FlowOrigin {
                path: Some(100 + id % 12),
                ..FlowOrigin::default()
            });
        }
        let clusters = |taken: &CandidateFlows| {
            let all = taken.flows.iter().map(|flow| flow.cluster);
            all.collect::<BTreeSet<_>>().len()
        };
        assert_eq!(taken.group(None, 10, false).ok(), Some(ClusterBy::Path));
        assert_eq!(clusters(&taken), 12);
        assert_eq!(taken.group(None, 10, true).ok(), Some(ClusterBy::Flow));
        assert_eq!(clusters(&taken), 24);
        taken.origins[5].path = None;
        let error = taken.group(Some(ClusterBy::Path), 10, false);
        let error = error.expect_err("unknown").to_string();
        assert!(
            error.contains("1 of 48 flows") && error.contains("--record-addresses"),
            "{error}"
        );
    }

    #[test]
    fn recordings_or_candidates_that_cannot_be_evaluated_are_refused_with_the_reason() {
        let directory = TempDir::new().expect("a scratch directory");
        let partitions = partitions(&directory, false);
        let mut uniform = Random::new(interface(), 0);
        let error =
            flows(&partitions, &mut uniform, &Selection::default()).expect_err("no probabilities");
        assert!(error.to_string().contains("has a probability"), "{error}");

        let rule = cc_core::policy::heuristic_file();
        let mut candidate =
            OnnxPolicy::from_bytes(&rule, Some(ActionSelection::Greedy), 0).expect("accepted");
        let error = flows(&partitions, &mut candidate, &Selection::default()).expect_err("another");
        assert!(error.to_string().contains("history: 20, not 2"), "{error}");
    }
}
