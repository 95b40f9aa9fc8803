//! The estimate against exact values, and runs that hold flows out.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use cc_core::policy::{ActionSelection, OnnxPolicy};
use proptest::prelude::*;

use super::*;
use crate::{
    dataset::{FlowOrigin, StepOutcome, tests as recordings},
    environment::recorded::RecordedConfig,
    ope::recorded::{Selection, flows as recorded_flows},
    train::{Record, Training, config::Overrides, environments::Environments, record::Finish},
};

fn interface() -> Interface {
    recordings::interface()
}

/// A flow of decisions by a policy of two equally likely actions. The first one earns 1 per window
/// and is in force for one, the second earns nothing in three.
fn flow(id: u64, actions: impl Iterator<Item = u8>) -> Trajectory {
    let step = |action: u8| TrajectoryStep {
        sequence: 0,
        time_ns: 0,
        observation: Vec::new(),
        observed_reward: 0.0,
        observed_terms: Default::default(),
        mode: 1,
        action,
        probability: Some(0.5),
        probabilities: None,
        base_cwnd: 10,
        cwnd: 10,
        delay_ns: None,
        taken_after_ns: None,
        outcome: Some(StepOutcome {
            windows: 1,
            seconds: if action == 0 { 0.1 } else { 0.3 },
            reward: if action == 0 { 1.0 } else { 0.0 },
            ..StepOutcome::default()
        }),
    };
    Trajectory {
        flow: id,
        origin: FlowOrigin::default(),
        policy: "even".into(),
        steps: actions.map(step).collect(),
        ended: true,
        until_ns: 0,
        reached: true,
        figures: None,
    }
}

/// All sequences of actions are as frequent as the recorded policy makes them, so the estimate is
/// the expectation.
#[test]
fn the_estimate_is_the_rate_that_the_candidate_would_earn() {
    let candidate = [0.8_f64, 0.2];
    let flows: Vec<_> = (0..1_u64 << HORIZON)
        .map(|id| {
            let flow = flow(id, (0..HORIZON).map(|at| (id >> at & 1) as u8));
            let logs: Vec<_> = (flow.steps.iter())
                .map(|step| candidate[usize::from(step.action)].ln())
                .collect();
            ClusterSums::of(&flow, &logs, &interface(), true)
        })
        .collect();
    let found = estimate(&flows).expect("many flows");
    // Per window: 0.8 earned in 0.8 + 3 × 0.2 windows, and 0.5 in 0.5 + 3 × 0.5. The flows that the
    // candidate would have are a few of them.
    assert!((found.candidate - 0.8 / 1.4).abs() < 1e-9, "{found:?}");
    assert!((found.recorded - 0.5 / 2.0).abs() < 1e-9, "{found:?}");
    assert!(found.low < found.candidate - found.recorded);
    assert!(found.effective < flows.len() as f64 / 2.0, "{found:?}");
}

#[test]
fn what_is_not_known_is_left_out() {
    let mut whole = flow(1, (0..3 * HORIZON).map(|at| (at % 2) as u8));
    let logs = vec![0.5_f64.ln(); 3 * HORIZON];
    let sums =
        |flow: &Trajectory| ClusterSums::of(flow, &logs[..flow.steps.len()], &interface(), true);
    let all = sums(&whole).recorded.0;
    assert!((all - 60.0).abs() < 1e-9, "{all}");
    whole.steps[HORIZON].probability = None;
    assert!((sums(&whole).recorded.0 - 40.0).abs() < 1e-9);
    whole.steps[2 * HORIZON].outcome = None;
    assert!((sums(&whole).recorded.0 - 20.0).abs() < 1e-9);
    whole.steps.truncate(HORIZON - 1);
    assert_eq!(sums(&whole), ClusterSums::default());
    assert_eq!(estimate(&[sums(&flow(1, (0..20).map(|_| 0)))]), None);
}

/// Two names for one thing tell nothing about each other: the ratio is that of the thing.
#[test]
fn actions_with_the_same_effect_have_one_ratio() {
    let mut flow = flow(1, (0..HORIZON).map(|at| (at % 2) as u8));
    let interface = interface();
    for step in &mut flow.steps {
        // 0 and -10 both leave the smallest cwnd where it is.
        step.base_cwnd = interface.cwnd.min;
        step.action = if step.action == 0 { 0 } else { 2 };
        step.probabilities = Some(vec![0.3, 0.1, 0.2, 0.2, 0.2]);
        step.probability = Some(if step.action == 0 { 0.3 } else { 0.2 });
    }
    // `0`, `/2` and `-10`, of which the recorded policy did one or another with 0.6.
    for step in &flow.steps {
        let merged = log_behaviour(step, &interface, true).expect("known");
        assert!((merged - 0.6_f64.ln()).abs() < 1e-6);
        let apart = log_behaviour(step, &interface, false).expect("known");
        assert!((apart - f64::from(step.probability.expect("known")).ln()).abs() < 1e-6);
    }
    // A candidate that does one of the three as often has weights of 1 with either.
    let logs = vec![0.6_f64.ln(); HORIZON];
    let sums = ClusterSums::of(&flow, &logs, &interface, true);
    assert!((sums.weighted.0 - sums.recorded.0).abs() < 1e-5, "{sums:?}");
    // Without the others' probabilities, the effect's is not known.
    flow.steps[0].probabilities = None;
    let alone = log_behaviour(&flow.steps[0], &interface, true).expect("known");
    assert!((alone - 0.3_f64.ln()).abs() < 1e-6);
}

/// A recording with masks has one name for each thing, whose probability needs no others.
#[test]
fn the_ratio_of_a_masked_recording_is_that_of_its_actions() {
    let masked = Interface {
        mask_actions: true,
        ..interface()
    };
    let mut flow = flow(1, (0..1).map(|_| 0));
    let step = &mut flow.steps[0];
    step.base_cwnd = masked.cwnd.min;
    (step.action, step.probability) = (0, Some(0.5));
    for probabilities in [Some(vec![0.5, 0.0, 0.0, 0.25, 0.25]), None] {
        step.probabilities = probabilities;
        for merged in [true, false] {
            assert_eq!(effects(step, &masked, merged), Some(vec![0, 0, 0, 3, 4]));
            let log = log_behaviour(step, &masked, merged).expect("known");
            assert!((log - 0.5_f64.ln()).abs() < 1e-6);
        }
    }
    // The candidate's own probability is that over the allowed actions.
    let shape = Shape {
        observation: 1,
        branches: Vec::new(),
        hidden: vec![1],
        activation: crate::model::Activation::Tanh,
        lstm: None,
        actions: 5,
        privileged: 0,
        predictions: 0,
        values: 1,
    };
    let parameters = crate::model::initialise(&shape, 3);
    flow.steps[0].observation = vec![0.5];
    let held_out = |interface: &Interface| HeldOut {
        trajectories: vec![flow.clone()],
        interface: interface.clone(),
        steps_per_epoch: 1,
        patience: 0,
        cloning_steps: 0.0,
        cloning: false,
        temperature: 0.5,
        merged: false,
    };
    let with = held_out(&masked).point(&shape, &parameters).log_likelihood;
    let weights = Weights::new(&shape, &parameters);
    let mut outputs = Outputs::default();
    let input = Sequences {
        steps: 1,
        batch_size: 1,
        observation: &[0.5],
        reward: &[flow.steps[0].observed_reward],
        not_done: &[0.0],
        privileged: &[],
        h: &[],
        c: &[],
    };
    Inference::new(&shape).forward(&weights, &input, &mut outputs);
    let weight = |at: usize| (f64::from(outputs.logits[at]) / 0.5).exp();
    let expected = (weight(0) / (weight(0) + weight(3) + weight(4))).ln();
    assert!((with - expected).abs() < 1e-5, "{with} but {expected}");
    let without = held_out(&interface())
        .point(&shape, &parameters)
        .log_likelihood;
    assert!(
        without < with - 1e-3,
        "all five share it: {without} and {with}"
    );
}

proptest! {
    /// A policy like the recorded one differs by nothing, without any doubt.
    #[test]
    fn the_recorded_policy_itself_is_no_better(
        actions in proptest::collection::vec(proptest::collection::vec(0..2u8, 10..40), 2..9),
    ) {
        let flows: Vec<_> = (0..)
            .zip(&actions)
            .map(|(id, actions)| {
                let flow = flow(id, actions.iter().copied());
                ClusterSums::of(&flow, &vec![0.5_f64.ln(); actions.len()], &interface(), true)
            })
            .collect();
        let found = estimate(&flows).expect("two flows or more");
        prop_assert!((found.candidate - found.recorded).abs() < 1e-12);
        prop_assert!(found.low.abs() < 1e-9, "{:?}", found);
        prop_assert!(found.effective <= flows.len() as f64 + 1e-9);
    }
}

fn point(epoch: u64, score: Option<f64>) -> HeldOutPoint {
    HeldOutPoint {
        epoch,
        steps: 100 * epoch,
        decisions: 7,
        log_likelihood: -1.5,
        estimate: None,
        score,
    }
}

#[test]
fn the_best_point_is_the_first_with_the_largest_score() {
    let points = [
        point(1, None),
        point(2, Some(-0.5)),
        point(3, Some(0.25)),
        point(4, Some(0.25)),
        point(5, None),
    ];
    assert_eq!(best(&points).map(|point| point.epoch), Some(3));
    assert_eq!(best(&points[..1]), None);
    let csv = csv(&points[1..2]);
    assert_eq!(csv.lines().last(), Some("2,200,7,-1.5,,,,,-0.5"), "{csv}");
    assert!(csv.starts_with("epoch,steps,decisions,log_likelihood,"));
}

/// A short run from recordings of twelve flows, of which about half are held out.
fn small(dir: &Path, change: impl FnOnce(&mut Config)) -> Training {
    let recording = dir.join("a.parquet");
    if !recording.exists() {
        recordings::record(&recording, &interface(), 0, 12, 3, true, &|_| {
            vec![0.1, 0.2, 0.3, 0.3, 0.1]
        });
    }
    let mut config = Config::recorded(vec![recording]);
    config.actors = Some(0);
    config.threads = Some(1);
    config.steps = 6_000;
    config.learner.learning_rate = 5e-3;
    config.model.hidden = vec![8];
    config.model.lstm = 4;
    (config.learner.batch, config.learner.unroll) = (4, 10);
    config.actor.environments = 4;
    config.actor.fit_steps = 200;
    config.serving = ActionSelection::Softmax { temperature: 0.5 };
    change(&mut config);
    Training {
        config: Some(config),
        overrides: Overrides::default(),
        dir: dir.join("run"),
        command: String::new(),
        listening: None,
        metrics: None,
        store: None,
    }
}

fn recorded(config: &mut Config) -> &mut RecordedConfig {
    match &mut config.environment {
        Environments::Recorded(recorded) => recorded,
        _ => panic!("it learns from recordings"),
    }
}

fn run(training: &Training) -> Record {
    super::super::train(training, &AtomicBool::new(false), &mut |_| {}).expect("a good run")
}

/// The figures are those of the policy file as it is served, on the flows that are held out.
#[test]
fn a_point_tells_how_the_policy_file_does_on_the_flows_that_are_held_out() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let training = small(dir.path(), |config| {
        let recorded = recorded(config);
        (recorded.held_out, recorded.patience) = (0.5, 0);
        config.learner.cloning = 1.0;
    });
    let record = run(&training);
    assert_eq!(record.finish, Finish::Steps);
    let points = &record.held_out;
    let epochs: Vec<_> = points.iter().map(|point| point.epoch).collect();
    assert!(points.len() > 5 && epochs.is_sorted(), "{epochs:?}");
    assert!(
        points
            .iter()
            .all(|point| point.decisions == points[0].decisions)
    );
    assert!(
        points
            .iter()
            .all(|point| point.score == Some(point.log_likelihood))
    );
    // Cloning raises the log-likelihood, to about that of the recorded policy itself.
    let entropy = [0.1, 0.2, 0.3, 0.3, 0.1]
        .map(|p: f64| -p * p.ln())
        .iter()
        .sum::<f64>();
    let last = points.last().expect("several");
    assert!(last.log_likelihood > points[0].log_likelihood, "{points:?}");
    assert!(
        (last.log_likelihood + entropy).abs() < 0.15,
        "{last:?} {entropy}"
    );

    let csv = fs::read_to_string(training.dir.join("held_out.csv")).expect("written");
    assert_eq!(csv.lines().count(), points.len() + 1);
    let events = fs::read_dir(&training.dir)
        .expect("a run")
        .find_map(|entry| {
            let path = entry.expect("an entry").path();
            path.to_string_lossy().contains("tfevents").then_some(path)
        });
    let events = fs::read(events.expect("TensorBoard's")).expect("readable");
    let tag = b"held_out/log_likelihood";
    assert!(events.windows(tag.len()).any(|part| part == tag));

    // The policy file, asked by other code about the same flows. It is newer than the last point,
    // so a fresh point is made of its parameters.
    let path = training.dir.join("policy.onnx");
    let file = cc_core::policy::PolicyFile::read(&path).expect("a policy");
    let network = crate::policy_file::decode(&file, 0, 0).expect("one of ours");
    let config = training.config.clone().expect("given");
    let config = config.resolve(&Overrides::default()).expect("valid");
    let source = config.environment.open().expect("the recordings");
    let normalizer = Arc::new(network.normalizer);
    let held_out = HeldOut::of(&source, &config, Some(&normalizer))
        .expect("readable")
        .expect("about half of the flows");
    let own = held_out.point(&network.shape, &network.parameters);
    let flows: std::collections::BTreeSet<u64> =
        held_out.trajectories.iter().map(|own| own.flow).collect();
    let mut policy = OnnxPolicy::from_file(&path, None, 0).expect("it is served");
    let recording = crate::dataset::Recordings::open(&[dir.path().join("a.parquet")]);
    let partitions = recording
        .expect("one file")
        .partition(dir.path(), 1 << 20, &|_| {})
        .expect("there is space");
    let served = recorded_flows(&partitions, &mut policy, &Selection::default()).expect("it fits");
    let logs: Vec<f64> = (served.flows.iter())
        .filter(|flow| flows.contains(&flow.id))
        .flat_map(|flow| &flow.steps)
        .map(|step| step.candidate[step.action].ln())
        .collect();
    // The last decision of a flow has no outcome, which the estimators leave out.
    assert!(logs.len() as u64 <= own.decisions && logs.len() as u64 + 12 >= own.decisions);
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    assert!(
        (mean - own.log_likelihood).abs() < 0.02,
        "{mean} but {own:?}"
    );
}

#[test]
fn training_ends_when_the_policy_gets_no_better_and_leaves_the_best() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let training = small(dir.path(), |config| {
        let recorded = recorded(config);
        (recorded.held_out, recorded.patience) = (0.5, 3);
        config.learner.cloning = 0.0;
        // It learns nothing, so that the first point stays the best.
        config.learner.learning_rate = 1e-30;
    });
    let record = run(&training);
    assert_eq!(record.finish, Finish::Patience);
    assert_eq!(record.held_out.len(), 4, "{:?}", record.held_out);
    assert!(record.last.steps < 600);
    let policy = cc_core::policy::PolicyFile::read(&training.dir.join("policy.onnx"));
    let policy = policy.expect("a policy");
    let steps = &policy.meta().provenance["steps"];
    assert_eq!(*steps, record.held_out[0].steps.to_string());
    // It stays done, however often it is continued.
    let again = run(&training);
    assert_eq!((again.finish, again.held_out.len()), (Finish::Patience, 4));
    assert_eq!(again.last.steps, record.last.steps);
}
