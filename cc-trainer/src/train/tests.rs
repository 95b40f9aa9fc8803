//! Small training runs from end to end.

mod failures;

use std::{fs, path::Path};

use cc_core::policy::{ActionSelection, OnnxPolicy, PolicyFile, PolicyKind, Query, State};

use super::{checkpoint::Checkpoint, config::Model, *};
use crate::{
    dataset::{self, Recordings},
    environment::Turn,
    learner::ReplaySettings,
    model::{Cpu, DeviceKind, Outputs, Sequences},
    ope::recorded::{Selection, flows as recorded_flows},
};

/// A short run on one thread, with 40 steps per update.
pub(super) fn small(dir: &Path, steps: u64) -> Training {
    let config = "
        actors = 0
        threads = 1
        [environment]
        kind = \"cartpole\"
        [model]
        hidden = [8]
        lstm = 6
        [learner]
        batch = 4
        unroll = 10
        decay_steps = 4000
        reward_normalisation = \"per_task\"
        momentum = 0.1
        [actor]
        environments = 3
    ";
    Training {
        config: Some(toml::from_str(config).expect("settings")),
        overrides: Overrides {
            steps: Some(steps),
            ..Overrides::default()
        },
        dir: dir.to_owned(),
        command: "a test".to_owned(),
        listening: None,
        metrics: None,
        store: None,
    }
}

fn run(training: &Training) -> Record {
    train(training, &AtomicBool::new(false), &mut |_| {}).expect("a good run")
}

pub(super) fn saved(dir: &Path) -> Checkpoint {
    Checkpoint::load(&dir.join("checkpoint.bin"))
        .expect("a whole checkpoint")
        .expect("a checkpoint")
}

/// The curve without the figures that depend on the clock.
fn timeless(record: &Record) -> Vec<CurvePoint> {
    record
        .curve
        .iter()
        .map(|point| CurvePoint {
            seconds: 0.0,
            steps_per_second: 0.0,
            learner_utilization: 0.0,
            actor_utilization: 0.0,
            ..point.clone()
        })
        .collect()
}

#[test]
fn a_seed_fixes_a_single_threaded_run_bit_for_bit() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().expect("a scratch directory"));
    let records = [(0, 1), (1, 1), (2, 2)].map(|(dir, seed)| {
        let mut training = small(dirs[dir].path(), 2000);
        training.overrides.seed = Some(seed);
        run(&training)
    });
    let checkpoints = dirs.each_ref().map(|dir| saved(dir.path()));
    assert_eq!(checkpoints[0].parameters, checkpoints[1].parameters);
    assert_eq!(checkpoints[0].moments, checkpoints[1].moments);
    assert_eq!(timeless(&records[0]), timeless(&records[1]));
    assert_ne!(checkpoints[0].parameters, checkpoints[2].parameters);
    assert!(
        records[0]
            .curve
            .iter()
            .all(|point| point.policy_loss.is_finite())
    );
    assert!(records[0].last.episodes > 10);
}

/// Half of each batch is replayed, and no step of the environments counts twice.
#[test]
fn a_seed_fixes_a_run_with_replay_which_learns_twice_from_each_step() {
    let replaying = |dir: &Path, ratio: Option<f64>| {
        let mut training = small(dir, 2000);
        let config = training.config.as_mut().expect("small has one");
        config.learner.replay = ratio.map(|ratio| ReplaySettings {
            ratio,
            capacity: 50,
            max_lag: Some(60),
        });
        run(&training)
    };
    let dirs = [(); 4].map(|()| tempfile::tempdir().expect("a scratch directory"));
    let records = [Some(1.0), Some(1.0), None, Some(0.0)];
    let mut number = 0;
    let records = records.map(|ratio| {
        number += 1;
        replaying(dirs[number - 1].path(), ratio)
    });
    let [first, second, none, nothing] = dirs.each_ref().map(|dir| saved(dir.path()));
    assert_eq!(first.parameters, second.parameters);
    assert_eq!(timeless(&records[0]), timeless(&records[1]));
    assert_ne!(first.parameters, none.parameters);
    assert_eq!(none.parameters, nothing.parameters, "a ratio of 0 is none");

    let last = &records[0].last;
    // Two of four rollouts of ten steps are new.
    assert_eq!((last.steps, last.updates), (2000, 100));
    let replay = last.replay.expect("there is one");
    assert_eq!((replay.kept, replay.share), (50, 198.0 / 398.0));
    assert!(replay.lag_mean > 5.0 && replay.lag_max <= 60, "{replay:?}");
    assert_eq!(records[2].last.replay, None);
}

/// It changes nothing about training, is in the checkpoint, and goes on from there.
#[test]
fn the_mean_of_the_parameters_is_kept_beside_them() {
    let plain = tempfile::tempdir().expect("a scratch directory");
    run(&small(plain.path(), 1000));
    let averaged = |dir: &Path, steps, over| {
        let mut training = small(dir, steps);
        let config = training.config.as_mut().expect("small has one");
        config.learner.average_over = over;
        run(&training);
        saved(dir)
    };
    let [dir, copy, last] = [(); 3].map(|()| tempfile::tempdir().expect("a scratch directory"));
    let left = averaged(dir.path(), 1000, 10);
    assert_eq!(left.parameters, saved(plain.path()).parameters);
    assert_eq!(left.served_parameters().len(), left.parameters.len());
    assert_ne!(left.served_parameters(), left.parameters);
    assert_eq!(saved(plain.path()).served_parameters(), left.parameters);
    // The mean over one update is the last one's.
    let newest = averaged(last.path(), 1000, 1);
    assert_eq!(newest.served_parameters(), left.parameters);

    let checkpoint = |dir: &Path| dir.join("checkpoint.bin");
    fs::copy(checkpoint(dir.path()), checkpoint(copy.path())).expect("a copy");
    let right = averaged(dir.path(), 2000, 10);
    assert_ne!(right.average, left.average);
    assert_eq!(averaged(copy.path(), 2000, 10).average, right.average);
}

#[test]
fn a_run_is_continued_from_its_checkpoint() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let first = run(&small(dir.path(), 1000));
    assert_eq!(
        (first.last.steps, first.last.updates, first.finish),
        (1000, 25, Finish::Steps)
    );
    let left = saved(dir.path());

    // A run that is finished stays as it is.
    let again = run(&Training {
        config: None,
        overrides: Overrides::default(),
        ..small(dir.path(), 0)
    });
    assert_eq!(
        (again.last.steps, again.config),
        (1000, first.config.clone())
    );
    assert_eq!(saved(dir.path()).parameters, left.parameters);
    assert!((again.last.entropy - first.last.entropy).abs() < 1e-9);

    let copy = tempfile::tempdir().expect("a scratch directory");
    fs::copy(
        dir.path().join("checkpoint.bin"),
        copy.path().join("checkpoint.bin"),
    )
    .expect("a copy");
    let mut begun_at = None;
    let record = train(
        &small(dir.path(), 2000),
        &AtomicBool::new(false),
        &mut |event| {
            if let TrainEvent::Begun { steps, .. } = event {
                begun_at = Some(steps);
            }
        },
    )
    .expect("a good run");
    assert_eq!(begun_at, Some(1000));
    assert_eq!((record.last.steps, record.last.updates), (2000, 50));
    assert!(record.last.episodes > first.last.episodes);
    assert!(record.last.learning_rate < first.last.learning_rate);
    let steps: Vec<_> = record.curve.iter().map(|point| point.steps).collect();
    assert_eq!(
        steps,
        (1..=50).map(|update| update * 40).collect::<Vec<_>>()
    );
    assert_eq!(
        record
            .parts
            .iter()
            .map(|part| part.from_step)
            .collect::<Vec<_>>(),
        [0, 1000, 1000]
    );
    let right = saved(dir.path());
    assert_eq!(right.header.statistics.updates, 50);
    assert_ne!(right.parameters, left.parameters);
    assert_eq!(right.moments.len(), 2 * right.parameters.len());

    // The same checkpoint leads to the same parameters.
    run(&small(copy.path(), 2000));
    assert_eq!(saved(copy.path()).parameters, right.parameters);
    // The record is on the disk, too.
    let json = fs::read(dir.path().join("train.json")).expect("written");
    let read: Record = serde_json::from_slice(&json).expect("a record");
    assert_eq!(
        (read.last.steps, read.curve.len()),
        (2000, record.curve.len())
    );
}

#[test]
fn an_interrupted_run_can_be_continued() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let stop = AtomicBool::new(true);
    let record =
        train(&small(dir.path(), 400), &stop, &mut |_| {}).expect("an early end is no failure");
    assert_eq!((record.finish, record.last.steps), (Finish::Open, 0));
    assert_eq!(run(&small(dir.path(), 400)).finish, Finish::Steps);
}

#[test]
fn actor_threads_supply_the_learner_under_both_queue_policies() {
    for when_full in [config::WhenFull::DropOldest, config::WhenFull::Wait] {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut training = small(dir.path(), 2000);
        training.overrides.actors = Some(2);
        if let Some(config) = &mut training.config {
            config.actor.when_full = when_full;
        }
        let record = run(&training);
        assert_eq!((record.last.steps, record.last.updates), (2000, 50));
        assert!(record.last.policy_lag >= 0.0 && record.last.episodes > 10);
        if when_full == config::WhenFull::Wait {
            assert_eq!(record.last.dropped, 0);
        }
    }
}

#[test]
fn a_run_ends_when_its_mean_return_is_reached() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let mut training = small(dir.path(), 1_000_000);
    if let Some(config) = &mut training.config {
        config.until_return = Some(5.0);
    }
    let record = run(&training);
    // Any policy holds the pole for about ten steps: the first hundred episodes suffice.
    assert_eq!(record.finish, Finish::Return);
    assert!((100..200).contains(&record.last.episodes));
}

#[test]
fn a_directory_without_this_runs_checkpoint_is_refused() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = dir.path().join("checkpoint.bin");
    let refused = |training: &Training| {
        train(training, &AtomicBool::new(false), &mut |_| {})
            .expect_err("another run")
            .to_string()
    };
    let unsaid = Training {
        config: None,
        ..small(dir.path(), 40)
    };
    assert!(refused(&unsaid).contains("holds no run to continue"));

    run(&small(dir.path(), 40));
    let mut other = small(dir.path(), 40);
    other.overrides.seed = Some(9);
    if let Some(config) = &mut other.config {
        config.learner.unroll = 7;
    }
    assert!(refused(&other).contains("(learner.unroll: 7, not 10; seed: 9, not 1)"));

    let whole = fs::read(&path).expect("a checkpoint");
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    for (data, reason) in [
        (&damaged[..], "its checksum is another"),
        (&whole[..whole.len() - 5], "its checksum is another"),
        (b"policy", "not a checkpoint"),
        (b"", "not a checkpoint"),
    ] {
        fs::write(&path, data).expect("a file");
        let message = refused(&small(dir.path(), 40));
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn the_error_of_a_missing_device_has_its_name() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let mut training = small(dir.path(), 40);
    training.overrides.device = Some(DeviceKind::Cuda);
    let result = train(&training, &AtomicBool::new(false), &mut |_| {});
    if cfg!(feature = "cuda") && result.is_ok() {
        // This host has a GPU.
        return;
    }
    let error = result.expect_err("nothing computes on a GPU").to_string();
    assert!(error.contains("device cuda"), "{error}");
}

#[test]
fn an_lstm_solves_the_corridor() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let config = "
        actors = 0
        threads = 1
        steps = 60_000
        until_return = 0.8
        [environment]
        kind = \"gridworld\"
        length = 3
        [model]
        hidden = [16]
        activation = \"tanh\"
        lstm = 16
        [learner]
        batch = 16
        unroll = 10
        learning_rate = 5e-3
        epsilon = 1e-4
        [actor]
        environments = 16
    ";
    let record = run(&Training {
        config: Some(toml::from_str(config).expect("settings")),
        ..small(dir.path(), 60_000)
    });
    // Without memory of the sign the best return is (0.94 − 0.56) / 2.
    assert_eq!(record.finish, Finish::Return, "{:?}", record.last);
}

/// A run on a test set is refused before anything is written. If it is allowed, its policy says so,
/// and so does one that begins from it.
#[test]
fn a_run_on_a_test_set_is_refused_or_says_so() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let training = |name: &str, allowed: &str, links: &str| {
        let config = format!(
            "{allowed}
            actors = 0
            threads = 1
            [environment]
            kind = \"network\"
            episode_s = 1
            links = [{{ {links} }}]
            [model]
            hidden = [8]
            lstm = 4
            [learner]
            batch = 2
            unroll = 5
            [actor]
            environments = 2
            fit_steps = 20"
        );
        Training {
            config: Some(toml::from_str(&config).expect("settings")),
            ..small(&dir.path().join(name), 20)
        }
    };
    let links = "scenarios = \"pantheon/bdp-1\"";
    let refused = training("refused", "", links);
    let error = train(&refused, &AtomicBool::new(false), &mut |_| {}).expect_err("a test set");
    let beginning = "environment.links[0].scenarios = \"pantheon/bdp-1\": ";
    assert!(error.to_string().starts_with(beginning), "{error}");
    assert!(!dir.path().join("refused").exists());

    let record = run(&training("allowed", "allow_test_sets = true", links));
    assert_eq!(record.test_sets, ["pantheon/bdp-1"]);
    let policy = |name: &str| {
        let path = dir.path().join(name).join("policy.onnx");
        PolicyFile::read(&path).expect("accepted").meta().clone()
    };
    assert_eq!(policy("allowed").provenance["test_sets"], "pantheon/bdp-1");

    let mut further = training("further", "", "family = \"broad\"");
    if let Some(config) = &mut further.config {
        config.init = Some(dir.path().join("allowed/policy.onnx"));
    }
    run(&further);
    assert_eq!(policy("further").provenance["test_sets"], "pantheon/bdp-1");
    // It names the file that it began with; the first one began with none, and names none.
    let first = PolicyFile::read(&dir.path().join("allowed/policy.onnx")).expect("accepted");
    let stated = format!("sha256 {}", first.summary().sha256);
    assert_eq!(policy("further").provenance["init"], stated);
    assert!(!first.meta().provenance.contains_key("init"));
}

#[test]
fn a_run_on_links_leaves_a_policy_that_can_be_served() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let config = "
        actors = 0
        threads = 1
        [environment]
        kind = \"network\"
        episode_s = 2
        [model]
        hidden = [8]
        lstm = 4
        [learner]
        batch = 2
        unroll = 10
        privileged = true
        reward_normalisation = \"per_task\"
        [actor]
        environments = 2
        fit_steps = 50
    ";
    let training = |steps| Training {
        config: Some(toml::from_str(config).expect("settings")),
        ..small(dir.path(), steps)
    };
    let record = run(&training(100));
    assert_eq!(record.last.steps, 100);
    assert!(record.shape.privileged > 0);
    assert!(record.last.episodes > 0 && !record.last.tasks.is_empty());
    let path = dir.path().join("policy.onnx");
    let bytes = fs::read(&path).expect("written");
    let file = PolicyFile::parse(&bytes).expect("a policy file");
    assert_eq!(file.meta().kind, PolicyKind::Trained);
    assert_eq!(file.meta().hidden, [8]);
    let provenance = &file.meta().provenance;
    assert_eq!(provenance["steps"], "100");
    assert_eq!(record.config_sha256.len(), 64);
    assert!(provenance["config"].ends_with(&record.config_sha256));
    assert_eq!(provenance["test_sets"], "none");

    // The normaliser stays as it was fitted.
    let normalizer = saved(dir.path()).header.normalizer.expect("one is needed");
    run(&training(120));
    assert_eq!(saved(dir.path()).header.normalizer, Some(normalizer));
    assert_ne!(fs::read(&path).expect("written anew"), bytes);
}

/// Settings for a few steps on links that mark, of a policy and a model with these settings.
fn on_marking_links(policy: &str, model: &str) -> Config {
    let config = format!(
        "
        actors = 0
        threads = 1
        [environment]
        kind = \"network\"
        episode_s = 3
        policy = {{ {policy} }}
        [[environment.links]]
        [environment.links.random]
        rate_mbps = [12, 12]
        delay_ms = [20, 20]
        queue_bdp = [3, 3]
        ce_threshold_ms = {{ share = 1, range = [5, 10] }}
        [model]
        hidden = [8]
        {model}
        [learner]
        batch = 2
        unroll = 10
        learning_rate = 5e-3
        [actor]
        environments = 2
        fit_steps = 300
    "
    );
    toml::from_str(&config).expect("settings")
}

/// A policy is trained, exported, loaded by the agent's engine, and served to a flow on a link of
/// the run; it is the network that was trained. `seen` is called with each observation.
fn is_served_as_it_was_trained(
    dir: &Path,
    config: &Config,
    record: &Record,
    mut seen: impl FnMut(&[f32]),
) {
    let saved = saved(dir);
    let normalizer = saved.header.normalizer.as_ref().expect("one is needed");
    let policy = dir.join("policy.onnx");
    let mut served = OnnxPolicy::from_file(&policy, None, 0).expect("the agent accepts it");
    let mut trained = Cpu::<f32>::new(&record.shape, 1).expect("threads");
    trained.set_parameters(saved.served_parameters());

    let source = config.environment.open().expect("links");
    let mut environment = source.environment(0, 5, None);
    let (mut turn, mut state) = (Turn::default(), State::default());
    let mut outputs = Outputs {
        h: vec![0.0; record.shape.state()],
        c: vec![0.0; record.shape.state()],
        ..Outputs::default()
    };
    for _ in 0..25 {
        environment.next(&mut turn);
        let mut query = [Query {
            observation: turn.observation.clone(),
            reward: turn.observed_reward,
            cwnd: 10,
            state,
            probabilities: Vec::new(),
        }];
        let answer = served.evaluate(&mut query).remove(0).expect("finite");
        let [answered] = query;
        state = answered.state;

        seen(&turn.observation);
        let mut observation = turn.observation.clone();
        normalizer.apply(&mut observation);
        let (h, c) = (outputs.h.clone(), outputs.c.clone());
        let input = Sequences {
            steps: 1,
            batch_size: 1,
            observation: &observation,
            reward: &[normalizer.reward.apply(turn.observed_reward)],
            not_done: &[1.0],
            privileged: &[],
            h: &h,
            c: &c,
        };
        trained.forward(&input, &mut outputs);
        for (served, trained) in answer.logits.iter().zip(&outputs.logits) {
            assert!((served - trained).abs() < 1e-4, "{served} and {trained}");
        }
        // Doubles the cwnd, so that the queue fills and is marked.
        environment.act(4);
    }
}

/// From the simulator to the agent: a policy that observes marks is trained for a few steps on
/// links that make them, and served to a flow on such a link.
#[test]
fn a_policy_of_features_version_2_is_served_as_it_was_trained() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let config = on_marking_links("features_version = 2, history = 2", "lstm = 4");
    let record = run(&Training {
        config: Some(config.clone()),
        ..small(dir.path(), 200)
    });
    assert_eq!(record.shape.observation, 5 * 20 + 2 + 2 * 6);
    let normalizer = saved(dir.path()).header.normalizer;
    let normalizer = normalizer.expect("one is needed");
    assert!(normalizer.observation[100].gain > 0.0, "marks were seen");
    assert!(
        normalizer.observation[101].gain > 0.0,
        "what a bulk flow sends first is limited by the application"
    );
    let file = PolicyFile::read(&dir.path().join("policy.onnx")).expect("a policy");
    assert_eq!(file.meta().interface.features_version, 2);
    let mut marked = 0;
    is_served_as_it_was_trained(dir.path(), &config, &record, |observation| {
        marked += usize::from(observation[100] > 0.0);
    });
    assert!(marked > 3, "{marked} of 25 windows with marks");
}

/// The same with the situation of the flow.
#[test]
fn a_policy_that_observes_its_situation_is_served_as_it_was_trained() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let config = on_marking_links("history = 2, situation = 10", "lstm = 4");
    let record = run(&Training {
        config: Some(config.clone()),
        ..small(dir.path(), 200)
    });
    assert_eq!(record.shape.observation, 5 * 20 + 7 + 2 * 6);
    // The flow doubles its cwnd until a mark halves it: the queue comes and goes.
    let mut queues = 0;
    let mut deepest = 0.0;
    is_served_as_it_was_trained(dir.path(), &config, &record, |observation| {
        let [floor, ceiling, depth] = [100, 101, 102].map(|at| observation[at]);
        assert!(0.0 <= floor && floor <= ceiling && ceiling <= depth);
        assert!(depth >= deepest, "the largest RTT only grows");
        deepest = depth;
        queues += usize::from(ceiling > 0.1);
    });
    assert!(queues > 3, "{queues} of 25");
}

/// The same with convolutions over the series of the last windows. The run begins a second one with
/// its policy.
#[test]
fn a_policy_with_convolutions_is_served_as_it_was_trained() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let model = "lstm = 0\nconvolution = { filters = 6, width = 3 }";
    let mut config = on_marking_links("history = 2, series = 5", model);
    // What is served is the mean of the parameters.
    config.learner.average_over = 5;
    let record = run(&Training {
        config: Some(config.clone()),
        ..small(dir.path(), 200)
    });
    let context = 5 * 20 + 2 * 6;
    assert_eq!(record.shape.observation, context + 7 * 5);
    assert_eq!(record.shape.trunk_input(), 6 + 7 * 3 * 6);
    // The newest throughput of one turn is an earlier one in the next: windows without a turn may
    // lie between the two.
    let at = context + 4;
    let mut before: Option<f32> = None;
    is_served_as_it_was_trained(dir.path(), &config, &record, |observation| {
        if let Some(before) = before.replace(observation[at]) {
            assert!(observation[context..at].contains(&before), "{before}");
        }
    });

    let further = tempfile::tempdir().expect("a scratch directory");
    let init = Some(dir.path().join("policy.onnx"));
    let other = Config {
        init,
        ..config.clone()
    };
    let again = run(&Training {
        config: Some(other),
        ..small(further.path(), 40)
    });
    assert_eq!(again.shape, record.shape);

    let config = on_marking_links("history = 2", model);
    let nowhere = tempfile::tempdir().expect("a scratch directory");
    let training = Training {
        config: Some(config),
        ..small(nowhere.path(), 40)
    };
    let error = train(&training, &AtomicBool::new(false), &mut |_| {});
    let error = error.expect_err("no series").to_string();
    assert!(error.contains("environment.policy.series"), "{error}");
}

/// A short run from recordings.
fn from_recordings(dir: &Path, recording: &Path, steps: u64) -> Training {
    let mut config = Config::recorded(vec![recording.to_owned()]);
    config.threads = Some(1);
    config.model = Model {
        hidden: vec![16],
        lstm: 8,
        ..Model::default()
    };
    config.learner.batch = 8;
    config.learner.unroll = 10;
    config.learner.learning_rate = 3e-3;
    config.actor.environments = 8;
    config.actor.fit_steps = 500;
    Training {
        config: Some(config),
        overrides: Overrides {
            steps: Some(steps),
            actors: Some(0),
            ..Overrides::default()
        },
        dir: dir.to_owned(),
        command: "a test".to_owned(),
        listening: None,
        metrics: None,
        store: None,
    }
}

/// The mean of ln π(a|x) over the recorded decisions, under the policy in a file.
fn likelihood(policy: &Path, recording: &Path) -> f64 {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let recordings = Recordings::open(&[recording.to_owned()]).expect("a recording");
    let partitions = recordings
        .partition(scratch.path(), 1 << 30, &|_| {})
        .expect("there is space");
    let serving = ActionSelection::Softmax { temperature: 1.0 };
    let mut candidate = OnnxPolicy::from_file(policy, Some(serving), 0).expect("accepted");
    let taken =
        recorded_flows(&partitions, &mut candidate, &Selection::default()).expect("it fits");
    let steps = taken.flows.iter().flat_map(|flow| &flow.steps);
    let logs: Vec<f64> = steps.map(|step| step.candidate[step.action].ln()).collect();
    logs.iter().sum::<f64>() / logs.len() as f64
}

/// A behaviour policy that mostly grows below 15 segments and mostly shrinks above.
fn around_fifteen(query: &cc_core::policy::Query) -> Vec<f32> {
    match query.cwnd < 15 {
        true => vec![0.02, 0.02, 0.02, 0.92, 0.02],
        false => vec![0.02, 0.92, 0.02, 0.02, 0.02],
    }
}

#[test]
fn actions_recorded_without_probabilities_are_cloned() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let recording = dir.path().join("a.parquet");
    dataset::tests::record(
        &recording,
        &dataset::tests::interface(),
        0,
        12,
        5,
        true,
        &around_fifteen,
    );
    let observed = dir.path().join("observed.parquet");
    dataset::tests::record(
        &observed,
        &dataset::tests::interface(),
        0,
        12,
        5,
        false,
        &around_fifteen,
    );
    let mut training = from_recordings(&dir.path().join("run"), &observed, 16_000);
    if let Some(config) = &mut training.config {
        config.learner.cloning = 1.0;
        config.learner.entropy_cost = 0.0;
    }
    let record = run(&training);
    let found = likelihood(&dir.path().join("run/policy.onnx"), &recording);
    // A uniform policy has −1.61; the behaviour policy itself has −0.39.
    assert!(found > -0.8, "{found}");
    let last = &record.last;
    assert!(last.td_loss > 0.0 && last.mc_loss > 0.0 && last.mc_loss.is_finite());
    assert_eq!(last.dropped, 0);
}

#[test]
fn a_policy_is_trained_further_from_its_own_recordings() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let recording = dir.path().join("a.parquet");
    dataset::tests::record(
        &recording,
        &dataset::tests::interface(),
        0,
        8,
        4,
        true,
        &around_fifteen,
    );
    let first = run(&from_recordings(
        &dir.path().join("first"),
        &recording,
        3_200,
    ));
    let mut further = from_recordings(&dir.path().join("further"), &recording, 800);
    if let Some(config) = &mut further.config {
        config.init = Some(dir.path().join("first/policy.onnx"));
        config.learner.learning_rate = 1e-9;
    }
    run(&further);
    // It began where the other ended, with the same parameters and normaliser.
    let (a, b) = (
        saved(&dir.path().join("first")),
        saved(&dir.path().join("further")),
    );
    for (a, b) in a.parameters.iter().zip(&b.parameters) {
        assert!((a - b).abs() < 1e-4, "{a} and {b}");
    }
    assert_eq!(a.header.normalizer, b.header.normalizer);
    let policy = PolicyFile::read(&dir.path().join("further/policy.onnx")).expect("accepted");
    let provenance = &policy.meta().provenance;
    assert_eq!(
        provenance.get("recorded").map(String::as_str),
        Some("softmax")
    );
    assert_eq!(first.last.steps, 3_200);

    let mut other = from_recordings(&dir.path().join("other"), &recording, 800);
    if let Some(config) = &mut other.config {
        config.init = Some(dir.path().join("first/policy.onnx"));
        config.model.hidden = vec![9];
    }
    let error = train(&other, &AtomicBool::new(false), &mut |_| {}).expect_err("another network");
    assert!(error.to_string().contains("[model] asks for"), "{error}");
}

#[test]
fn a_seed_fixes_a_run_from_recordings() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let recording = dir.path().join("a.parquet");
    dataset::tests::record(
        &recording,
        &dataset::tests::interface(),
        0,
        4,
        4,
        true,
        &around_fifteen,
    );
    for name in ["a", "b"] {
        run(&from_recordings(&dir.path().join(name), &recording, 800));
    }
    let [a, b] = ["a", "b"].map(|name| saved(&dir.path().join(name)).parameters);
    assert_eq!(a, b);
}
