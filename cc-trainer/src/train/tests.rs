//! Whole runs, small ones.

use cc_agent::policy::{PolicyFile, PolicyKind};

use super::*;
use crate::model::DeviceKind;

/// A run that takes a moment: 40 steps an update, one thread.
fn small(dir: &Path, steps: u64) -> Training {
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
    }
}

fn run(training: &Training) -> Record {
    train(training, &AtomicBool::new(false), &mut |_| {}).expect("a good run")
}

fn saved(dir: &Path) -> Checkpoint {
    Checkpoint::load(&dir.join("checkpoint.bin"))
        .expect("a whole checkpoint")
        .expect("a checkpoint")
}

/// All of a curve that does not depend on the clock.
fn timeless(record: &Record) -> Vec<Point> {
    record
        .curve
        .iter()
        .map(|point| Point {
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

#[test]
fn a_run_goes_on_where_it_was_left() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let first = run(&small(dir.path(), 1000));
    assert_eq!(
        (first.last.steps, first.last.updates, first.finish),
        (1000, 25, Finish::Steps)
    );
    let left = saved(dir.path());

    // Nothing is left to do: nothing changes.
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
            if let Event::Begun { steps, .. } = event {
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

    // The same checkpoint leads to the same end.
    run(&small(copy.path(), 2000));
    assert_eq!(saved(copy.path()).parameters, right.parameters);
    // The account is on the disk, too.
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
fn actors_beside_the_learner_feed_it() {
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
fn the_return_asked_for_ends_a_run() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let mut training = small(dir.path(), 1_000_000);
    if let Some(config) = &mut training.config {
        config.until_return = Some(5.0);
    }
    let record = run(&training);
    // Any policy holds the pole for some ten steps: the first hundred episodes suffice.
    assert_eq!(record.finish, Finish::Return);
    assert!((100..200).contains(&record.last.episodes));
}

#[test]
fn what_is_not_this_run_is_refused() {
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
fn a_device_that_is_not_there_is_named() {
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
fn memory_finds_the_prize() {
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
    // Who forgets the sign gets (0.94 − 0.56) / 2 at best.
    assert_eq!(record.finish, Finish::Return, "{:?}", record.last);
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

    // The normaliser stays as it was fitted.
    let normalizer = saved(dir.path()).header.normalizer.expect("one is needed");
    run(&training(120));
    assert_eq!(saved(dir.path()).header.normalizer, Some(normalizer));
    assert_ne!(fs::read(&path).expect("written anew"), bytes);
}
