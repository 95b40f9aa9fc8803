//! Makes the estimators' flows from recordings: asks the candidate at each recorded decision,
//! carrying its recurrent state along the flow.

use cc_core::{
    interface::Interface,
    policy::{Choice, Policy, Query, State},
};

use super::{OpeFlow, OpeStep};
use crate::{
    dataset::{self, DatasetError, Partitions, TERMS, Trajectory},
    normalise::{Fit, Normalizer, input_shapes},
};

/// Names of the reward terms of the steps that [`flows`] returns.
pub const TERM_NAMES: [&str; 4] = [TERMS[0], TERMS[1], TERMS[2], "reward"];

/// Whether a larger value of a term is better, in the order of [`TERM_NAMES`].
pub const MORE_IS_BETTER: [bool; 4] = [true, false, false, true];

/// Number of flows whose queries form one batch.
const BATCH: usize = 64;

/// Flows with the candidate's probabilities, and counts of the decisions that could not be used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CandidateFlows {
    /// Flows, split where a decision could not be used.
    pub flows: Vec<OpeFlow>,
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
/// Its reward settings may differ.
///
/// # Errors
///
/// Returns an error that lists the settings that differ.
pub fn check(candidate: &dyn Policy, recorded: &Interface) -> Result<(), CandidateError> {
    let own = Interface {
        reward: recorded.reward,
        ..candidate.interface().clone()
    };
    let differences = dataset::differences(recorded, &own);
    match differences.is_empty() {
        true => Ok(()),
        false => Err(CandidateError::Interface { differences }),
    }
}

/// Returns flows with the candidate's probabilities. It reads whole partitions in order, until they
/// have at least `most` decisions.
///
/// # Errors
///
/// Returns an error when the candidate does not fit the recordings, a row is present twice, or no
/// decision has a known observation or a probability.
pub fn flows(
    partitions: &Partitions,
    candidate: &mut dyn Policy,
    most: usize,
) -> Result<CandidateFlows, CandidateError> {
    let interface = partitions.interface();
    check(candidate, interface)?;
    let mut taken = CandidateFlows::default();
    let mut decisions = 0;
    for index in 0..partitions.len() {
        if decisions >= most {
            break;
        }
        let mut all = Vec::new();
        partitions.visit(index, |trajectory| {
            decisions += trajectory.steps.len();
            all.push(trajectory);
            Ok(())
        })?;
        for chunk in all.chunks(BATCH) {
            taken.add(chunk, candidate);
        }
    }
    let gathered = partitions.gathered().decisions as usize;
    taken.not_looked_at = gathered.saturating_sub(decisions);
    if decisions == 0 {
        let decisions = partitions.gathered().decisions;
        return Err(DatasetError::NoneKnown { decisions }.into());
    }
    if taken.without_probability == decisions {
        return Err(CandidateError::NoProbability { decisions });
    }
    let normalizer = fit(interface, &taken.flows);
    for step in taken.flows.iter_mut().flat_map(|flow| &mut flow.steps) {
        // The last feature is always 1, the one before it is the reward that the policy saw.
        let (observation, rest) = step.features.split_at_mut(interface.observation_len());
        normalizer.apply(observation);
        rest[0] = normalizer.reward.apply(rest[0]);
    }
    Ok(taken)
}

impl CandidateFlows {
    /// Adds trajectories with the candidate's probabilities.
    fn add(&mut self, trajectories: &[Trajectory], candidate: &mut dyn Policy) {
        let probabilities = probabilities(candidate, trajectories);
        for (trajectory, probabilities) in trajectories.iter().zip(probabilities) {
            let mut steps = Vec::new();
            let mut end = |steps: &mut Vec<OpeStep>| {
                if !steps.is_empty() {
                    self.flows.push(OpeFlow {
                        id: trajectory.flow,
                        steps: std::mem::take(steps),
                        // The application decides when a flow ends, so the end is not an outcome of
                        // the policy: its reward is counted while the flow lasts.
                        ended: false,
                    });
                }
            };
            for (step, candidate) in trajectory.steps.iter().zip(probabilities) {
                let known = step.probability.filter(|&p| p > 0.0);
                self.without_probability += usize::from(known.is_none());
                self.without_answer += usize::from(candidate.is_none());
                let (Some(behaviour), Some(candidate), Some(outcome)) =
                    (known, candidate, step.outcome)
                else {
                    end(&mut steps);
                    continue;
                };
                let mut features = step.observation.clone();
                features.extend([step.observed_reward, 1.0]);
                let mut rewards = outcome.terms.to_vec();
                rewards.push(f64::from(outcome.reward));
                steps.push(OpeStep {
                    features,
                    action: step.action.into(),
                    behaviour: behaviour.into(),
                    candidate,
                    rewards,
                });
            }
            end(&mut steps);
        }
    }
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

/// Returns the candidate's probabilities at each step of each trajectory, `None` where
/// it has no usable answer.
fn probabilities(
    candidate: &mut dyn Policy,
    trajectories: &[Trajectory],
) -> Vec<Vec<Option<Vec<f64>>>> {
    let reward = candidate.interface().reward;
    let longest = trajectories.iter().map(|t| t.steps.len()).max();
    let mut all: Vec<Vec<_>> = vec![Vec::new(); trajectories.len()];
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
            states[flow] = query.state;
            let usable = choice != Choice::Invalid && !query.probabilities.is_empty();
            let shares = query.probabilities.iter().map(|&share| f64::from(share));
            all[flow].push(usable.then(|| shares.collect()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use cc_core::policy::{ActionSelection, OnnxPolicy, Random};
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
        let interface = interface();
        let shape = Shape {
            observation: interface.observation_len(),
            hidden: vec![8],
            activation: Activation::Tanh,
            lstm,
            actions: 5,
            privileged: 0,
        };
        let meta = policy_file::meta(
            "small",
            &shape,
            &interface,
            ActionSelection::Greedy,
            Default::default(),
        );
        let normalizer = Normalizer::identity(shape.observation);
        policy_file::encode(&shape, &initialise(&shape, 1), &normalizer, &meta, "")
            .expect("it fits")
    }

    #[test]
    fn a_candidate_keeps_its_recurrent_state_per_flow() {
        let directory = TempDir::new().expect("a scratch directory");
        let partitions = partitions(&directory, true);
        let bytes = network(Some(6));
        let serving = ActionSelection::Softmax { temperature: 1.0 };
        let load = || OnnxPolicy::from_bytes(&bytes, Some(serving), 0).expect("accepted");
        let taken = flows(&partitions, &mut load(), usize::MAX).expect("it fits");
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
                for (found, expected) in step.candidate.iter().zip(&query.probabilities) {
                    assert!((found - f64::from(*expected)).abs() < 1e-5);
                }
                state = query.state;
                assert_eq!(Some(step.behaviour as f32), recorded.probability);
                checked += 1;
            }
            Ok(())
        });
        visited.expect("sound");
        assert!(checked > 100);
    }

    #[test]
    fn recorded_flows_can_be_evaluated() {
        let directory = TempDir::new().expect("a scratch directory");
        let partitions = partitions(&directory, true);
        let mut uniform = Random::new(interface(), 0);
        let taken = flows(&partitions, &mut uniform, usize::MAX).expect("it fits");
        let settings = OpeSettings {
            horizon: 3,
            resamples: 100,
            ..OpeSettings::default()
        };
        let evaluation = evaluate(&taken.flows, &settings).expect("enough");
        assert_eq!(evaluation.terms.len(), TERM_NAMES.len());
        assert!(
            (evaluation.mean_ratio - 1.0).abs() < 0.25,
            "{}",
            evaluation.mean_ratio
        );
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

    #[test]
    fn recordings_or_candidates_that_cannot_be_evaluated_are_refused_with_the_reason() {
        let directory = TempDir::new().expect("a scratch directory");
        let partitions = partitions(&directory, false);
        let mut uniform = Random::new(interface(), 0);
        let error = flows(&partitions, &mut uniform, usize::MAX).expect_err("no probabilities");
        assert!(error.to_string().contains("has a probability"), "{error}");

        let rule = cc_core::policy::heuristic_file();
        let mut candidate =
            OnnxPolicy::from_bytes(&rule, Some(ActionSelection::Greedy), 0).expect("accepted");
        let error = flows(&partitions, &mut candidate, usize::MAX).expect_err("another");
        assert!(error.to_string().contains("history: 20, not 2"), "{error}");
    }
}
