//! The policy on traces that are not trained on, in the course of training: where it selects
//! bitrates.
//!
//! Each trace is played once from its beginning, without noise and with the most likely actions,
//! as a policy is evaluated. Returns in training are those of sampled actions with noise from
//! random points, and of the traces that are learnt by heart.

use std::sync::Arc;

use super::{Run, TrainError, curve::seconds_since_1970, record::ValidationPoint};
use crate::{
    actor::{Actor, Snapshot, StepOutput},
    environment::{
        Environment,
        abr::{AbrEnvironment, AbrWorld},
    },
    model::{Shape, Weights},
};
use cc_sim::seed;

/// Keeps the seeds of what is random in videos apart from those of training.
const FIXED: u64 = 0x7661_6c69_6461_7465;
/// Length of the rollouts, which are thrown away.
const UNROLL: usize = 100;

/// How the policies of a run are judged.
pub(super) struct Validation {
    world: Arc<AbrWorld>,
    every: u64,
    keep_best: bool,
}

impl Validation {
    /// What the configuration asks for; `None` if it does not.
    pub(super) fn of(world: &Arc<AbrWorld>) -> Option<Self> {
        let settings = world.config().validation.as_ref()?;
        Some(Self {
            world: Arc::clone(world),
            every: settings.every,
            keep_best: settings.keep_best,
        })
    }

    /// Whether the policy file is that of the best judgement.
    pub(super) fn keeps_best(&self) -> bool {
        self.keep_best
    }

    /// Score of a network's policy.
    fn score(&self, shape: &Shape, parameters: &[f32]) -> f64 {
        let policy = Arc::new(Snapshot {
            version: 0,
            weights: Weights::new(shape, parameters),
        });
        let environment = |(number, trace): (u64, _)| -> Box<dyn Environment> {
            let seed = seed::fold(FIXED, number);
            let environment = AbrEnvironment::new(Arc::clone(&self.world), seed);
            Box::new(environment.of_trace(trace))
        };
        let judges = self.world.judges();
        let environments = (0..).zip(judges.iter().cloned()).map(environment);
        let mut environments: Vec<_> = environments.collect();
        // Sessions of the same length end together, and can be stepped together.
        let together = match self.world.has_equal_chunks() {
            true => environments.len(),
            false => 1,
        };
        let mut sum = 0.0;
        while !environments.is_empty() {
            let group: Vec<_> = environments.drain(..together).collect();
            let mut actor = Actor::new(group, Arc::clone(&policy), UNROLL, 0).greedy();
            let mut output = StepOutput::default();
            while output.episodes.len() < together {
                actor.step(&mut output);
                output.rollouts.clear();
            }
            let mean = output
                .episodes
                .iter()
                .map(|episode| episode.total / episode.steps as f64);
            sum += mean.sum::<f64>();
        }
        self.world.config().reward_divisor * sum / judges.len() as f64
    }
}

impl Run {
    /// Judges the policy if the last update, of `steps` steps, completed a period.
    pub(super) fn validate_after(&mut self, steps: u64) -> Result<(), TrainError> {
        let now = self.statistics.steps;
        let is_due = |own: &Validation| (now - steps) / own.every < now / own.every;
        match self.validation.as_ref().is_some_and(is_due) {
            true => self.validate(),
            false => Ok(()),
        }
    }

    /// Judges the policy that the run ends with, if it was not judged.
    pub(super) fn complete_validation(&mut self) -> Result<(), TrainError> {
        let last = self.record.validation.last();
        match last.is_none_or(|point| point.steps < self.statistics.steps) {
            true => self.validate(),
            false => Ok(()),
        }
    }

    fn validate(&mut self) -> Result<(), TrainError> {
        let Some(validation) = &self.validation else {
            return Ok(());
        };
        let mut parameters = Vec::new();
        let copied = self.learner.served_parameters(&mut parameters);
        copied.map_err(|cause| self.device_failed(cause))?;
        // A file has one baseline, and so has a judged network.
        let values = &self.learner.state().values;
        let (shape, single) = values.single(&self.record.shape, &parameters);
        let steps = self.statistics.steps;
        let score = validation.score(&shape, &single);
        let former = self.record.validation.iter().map(|point| point.score);
        let is_best = former.fold(f64::NEG_INFINITY, f64::max) < score;
        let figure = [("validation/score", score)];
        self.events
            .scalars(steps, seconds_since_1970(), figure)
            .map_err(TrainError::writing(&self.dir))?;
        self.record
            .validation
            .push(ValidationPoint { steps, score });
        match is_best && self.keeps_best() {
            true => self.save_policy(&parameters),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::atomic::AtomicBool};

    use super::super::{
        Training,
        config::Overrides,
        record::{Finish, Record},
    };
    use crate::{
        abr::{
            evaluate::{Evaluation, aims},
            schemes::Scheme,
        },
        environment::abr::{files::TraceSet, video::VideoChoice},
    };
    use cc_abr::{
        generate::{Family, trace},
        qoe::Qoe,
        session::Rules,
    };

    use super::*;

    /// A short run on one thread that is judged every 500 steps.
    fn small(dir: &Path, lstm: usize, steps: u64) -> Training {
        let config = format!(
            "
            actors = 0
            threads = 1
            [environment]
            kind = \"abr\"
            sources = [{{ family = \"cellular\", count = 20 }}]
            reward_divisor = 4
            [environment.validation]
            every = 500
            sources = [{{ family = \"markov\", seed = 2, count = 5 }}]
            [model]
            hidden = [16]
            lstm = {lstm}
            [learner]
            batch = 4
            unroll = 47
            learning_rate = 0.01
            decay_steps = 4000
            [actor]
            environments = 4
            "
        );
        Training {
            config: Some(toml::from_str(&config).expect("settings")),
            overrides: Overrides {
                steps: Some(steps),
                ..Overrides::default()
            },
            dir: dir.to_owned(),
            command: String::new(),
            listening: None,
            metrics: None,
            store: None,
        }
    }

    fn run(training: &Training) -> Record {
        super::super::train(training, &AtomicBool::new(false), &mut |_| {}).expect("a good run")
    }

    /// The policy file is that of the best judgement, and its score in an evaluation is the one
    /// that was judged, with and without memory.
    #[test]
    fn the_file_of_the_best_judgement_is_kept_and_scores_as_it_was_judged() {
        for lstm in [0, 5] {
            let dir = tempfile::tempdir().expect("a scratch directory");
            let record = run(&small(dir.path(), lstm, 2_000));
            assert_eq!(record.finish, Finish::Steps);
            let points = &record.validation;
            assert!(points.len() >= 4, "{points:?}");
            assert!(points.is_sorted_by(|one, next| one.steps < next.steps));
            assert_eq!(
                points.last().map(|point| point.steps),
                Some(record.last.steps)
            );
            let best = points
                .iter()
                .map(|point| point.score)
                .fold(f64::MIN, f64::max);

            let policy = dir.path().join("policy.onnx");
            let scheme: Scheme = policy.to_str().expect("UTF-8").parse().expect("a policy");
            let traces = (0..5).map(|number| Arc::new(trace(Family::Markov, 2, number, 320)));
            let evaluation = Evaluation {
                video: Arc::new(VideoChoice::default().load().expect("built in")),
                sets: vec![TraceSet {
                    name: "judges".to_owned(),
                    traces: traces.collect(),
                }],
                schemes: vec![scheme],
                aims: aims(&[Qoe::Linear], None),
                rules: Rules::PENSIEVE,
                command: String::new(),
            };
            let results = evaluation.run(&AtomicBool::new(false), &|| ());
            let found = results.expect("results").rows[0].mean.qoe;
            assert!((found - best).abs() < 1e-3, "{found} {points:?}");
        }
    }

    #[test]
    fn a_run_that_is_continued_keeps_its_judgements() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let first = run(&small(dir.path(), 0, 1_000));
        let both = run(&small(dir.path(), 0, 2_000));
        let kept = first.validation.len();
        assert!(both.validation.len() > kept);
        assert_eq!(both.validation[..kept], first.validation);
    }
}
