//! Recorded flows as estimators want them: what a candidate would have chosen at each decision, its memory of the flow included.

use cc_core::{
    interface::Interface,
    policy::{Choice, Policy, Query, State},
};

use super::{Flow, Step};
use crate::{
    dataset::{self, DatasetError, Partitions, TERMS, Trajectory},
    environment::network,
    normalise::{Fit, Normalizer},
};

/// Names of the reward terms of [`flows`]'s steps.
pub const TERM_NAMES: [&str; 4] = [TERMS[0], TERMS[1], TERMS[2], "reward"];

/// Whether more of a term is better, in [`TERM_NAMES`]'s order.
pub const MORE_IS_BETTER: [bool; 4] = [true, false, false, true];

/// Flows that are asked together.
const LANES: usize = 64;

/// What became of recorded decisions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taken {
    /// Flows, or parts of them between gaps.
    pub flows: Vec<Flow>,
    /// Decisions without a probability, which cannot be weighed.
    pub without_probability: usize,
    /// Decisions for which the candidate gave no usable answer.
    pub without_answer: usize,
    /// Decisions that were not looked at, as there were more than asked for.
    pub not_looked_at: usize,
}

/// Why a candidate cannot be evaluated on recordings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CandidateError {
    /// It expects other observations or has other actions.
    #[error(
        "the policy was made for other settings than the recording ({}): only a policy with the same observations, actions and \
         windows can be evaluated on it",
        differences.join("; ")
    )]
    Interface {
        /// What differs: `setting: this, not that`.
        differences: Vec<String>,
    },
    /// Of the recordings.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// No decision can be weighed.
    #[error(
        "none of {decisions} recorded decisions has a probability, without which nobody can say what another policy would have \
         earned: record with a policy that chooses by chance (cc-agent run --serving softmax), not another congestion control"
    )]
    NoProbability {
        /// Decisions read.
        decisions: usize,
    },
}

/// Checks that a candidate can be asked what the recorded policy was. What it is rewarded for does not matter.
///
/// # Errors
///
/// Says what differs.
pub fn check(candidate: &dyn Policy, recorded: &Interface) -> Result<(), CandidateError> {
    let own = Interface {
        reward: recorded.reward,
        ..candidate.environment().clone()
    };
    let differences = dataset::differences(recorded, &own);
    match differences.is_empty() {
        true => Ok(()),
        false => Err(CandidateError::Interface { differences }),
    }
}

/// Flows with a candidate's probabilities, from at most about `most` decisions: whole partitions, in order.
///
/// # Errors
///
/// A candidate that does not fit, rows that are there twice, or no decision with a probability.
pub fn flows(
    partitions: &Partitions,
    candidate: &mut dyn Policy,
    most: usize,
) -> Result<Taken, CandidateError> {
    let environment = partitions.environment();
    check(candidate, environment)?;
    let mut taken = Taken::default();
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
        for chunk in all.chunks(LANES) {
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
    let normalizer = fit(environment, &taken.flows);
    for step in taken.flows.iter_mut().flat_map(|flow| &mut flow.steps) {
        // The reward that the policy saw stands last but one, and last what is always 1.
        let (observation, rest) = step.features.split_at_mut(environment.observation_len());
        normalizer.apply(observation);
        rest[0] = normalizer.reward.apply(rest[0]);
    }
    Ok(taken)
}

impl Taken {
    fn add(&mut self, trajectories: &[Trajectory], candidate: &mut dyn Policy) {
        let probabilities = probabilities(candidate, trajectories);
        for (trajectory, probabilities) in trajectories.iter().zip(probabilities) {
            let mut steps = Vec::new();
            let mut end = |steps: &mut Vec<Step>| {
                if !steps.is_empty() {
                    self.flows.push(Flow {
                        id: trajectory.flow,
                        steps: std::mem::take(steps),
                        // That a flow ended is the application's doing: what a policy earns is counted while it lasts.
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
                steps.push(Step {
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

/// What makes the features about unit size.
fn fit(environment: &Interface, flows: &[Flow]) -> Normalizer {
    let mut fit = Fit::new(network::inputs(environment));
    for step in flows.iter().flat_map(|flow| &flow.steps) {
        let (observation, rest) = step.features.split_at(environment.observation_len());
        fit.add(observation, rest[0]);
    }
    fit.normalizer()
}

/// The candidate's probabilities at each step of some trajectories, none where it has no usable answer.
fn probabilities(
    candidate: &mut dyn Policy,
    trajectories: &[Trajectory],
) -> Vec<Vec<Option<Vec<f64>>>> {
    let reward = candidate.environment().reward;
    let longest = trajectories.iter().map(|t| t.steps.len()).max();
    let mut all: Vec<Vec<_>> = vec![Vec::new(); trajectories.len()];
    let mut states = vec![State::default(); trajectories.len()];
    for at in 0..longest.unwrap_or(0) {
        let present: Vec<usize> = (0..trajectories.len())
            .filter(|&lane| at < trajectories[lane].steps.len())
            .collect();
        let mut queries: Vec<_> = present
            .iter()
            .map(|&lane| {
                let step = &trajectories[lane].steps[at];
                Query {
                    observation: step.observation.clone(),
                    reward: step.observed_terms.reward(&reward) as f32,
                    cwnd: step.base_cwnd,
                    state: std::mem::take(&mut states[lane]),
                    probabilities: Vec::new(),
                }
            })
            .collect();
        let choices = candidate.decide(&mut queries);
        for ((lane, query), choice) in present.into_iter().zip(queries).zip(choices) {
            states[lane] = query.state;
            let usable = choice != Choice::Invalid && !query.probabilities.is_empty();
            let shares = query.probabilities.iter().map(|&share| f64::from(share));
            all[lane].push(usable.then(|| shares.collect()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use cc_core::policy::{OnnxPolicy, Random, Serving};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        dataset::{
            Recordings,
            tests::{environment, record},
        },
        model::{Activation, Shape, initialise},
        ope::{Method, Settings, evaluate},
        policy_file,
    };

    fn partitions(directory: &TempDir, known: bool) -> Partitions {
        let path = directory.path().join("a.parquet");
        record(&path, &environment(), 0, 12, 6, known, &|query| {
            // Growing is the better liked, the smaller the window.
            let up = if query.cwnd < 20 { 0.6 } else { 0.2 };
            vec![0.1, 0.1, 0.7 - up, up, 0.1]
        });
        let recordings = Recordings::open(&[path]).expect("one file");
        recordings
            .partition(directory.path(), 1 << 20, &|_| {})
            .expect("there is space")
    }

    fn network(lstm: Option<usize>) -> Vec<u8> {
        let environment = environment();
        let shape = Shape {
            observation: environment.observation_len(),
            hidden: vec![8],
            activation: Activation::Tanh,
            lstm,
            actions: 5,
            privileged: 0,
        };
        let meta = policy_file::meta(
            "small",
            &shape,
            &environment,
            Serving::Greedy,
            Default::default(),
        );
        let normalizer = Normalizer::identity(shape.observation);
        policy_file::encode(&shape, &initialise(&shape, 1), &normalizer, &meta, "")
            .expect("it fits")
    }

    #[test]
    fn a_candidate_remembers_each_flow() {
        let directory = TempDir::new().expect("a scratch directory");
        let partitions = partitions(&directory, true);
        let bytes = network(Some(6));
        let serving = Serving::Softmax { temperature: 1.0 };
        let load = || OnnxPolicy::from_bytes(&bytes, Some(serving), 0).expect("accepted");
        let taken = flows(&partitions, &mut load(), usize::MAX).expect("it fits");
        assert_eq!((taken.flows.len(), taken.without_answer), (12, 0));
        // The same flow alone, one decision after the other.
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
        let mut uniform = Random::new(environment(), 0);
        let taken = flows(&partitions, &mut uniform, usize::MAX).expect("it fits");
        let settings = Settings {
            horizon: 3,
            resamples: 100,
            ..Settings::default()
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
    fn what_cannot_be_evaluated_says_why() {
        let directory = TempDir::new().expect("a scratch directory");
        let partitions = partitions(&directory, false);
        let mut uniform = Random::new(environment(), 0);
        let error = flows(&partitions, &mut uniform, usize::MAX).expect_err("no μ");
        assert!(error.to_string().contains("has a probability"), "{error}");

        let rule = cc_core::policy::heuristic_file();
        let mut candidate =
            OnnxPolicy::from_bytes(&rule, Some(Serving::Greedy), 0).expect("accepted");
        let error = flows(&partitions, &mut candidate, usize::MAX).expect_err("another");
        assert!(error.to_string().contains("history: 20, not 2"), "{error}");
    }
}
