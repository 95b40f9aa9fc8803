//! Small sweeps from end to end.

use std::{fs, sync::Mutex};

use super::*;

const SMALL: &str = "
    title = \"rates\"
    trials = 3
    seed = 5
    rungs = [64, 128]
    keep = 0.5
    validation = { scenarios = \"calibrated/india-india\", episodes = 1, seed = 3 }
    [base]
    [base.environment]
    kind = \"network\"
    episode_s = 1
    links = [{ random = { rate_mbps = [2, 4], delay_ms = [5, 9] } }]
    [base.model]
    hidden = [6]
    lstm = 0
    [base.learner]
    batch = 4
    unroll = 4
    [base.actor]
    environments = 2
    fit_steps = 50
    [[parameter]]
    key = \"learner.learning_rate\"
    log = [1e-4, 1e-2]
    [[parameter]]
    key = \"environment.policy.history\"
    choices = [0, 3]
";

fn sweep(text: &str) -> Result<Sweep, SweepError> {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = dir.path().join("sweep.toml");
    fs::write(&path, text).expect("a scratch file");
    Sweep::load(&path)
}

fn options(dir: &Path) -> Options {
    Options {
        dir: dir.to_owned(),
        jobs: 2,
        command: "a test".to_owned(),
    }
}

#[test]
fn the_best_half_of_the_trials_goes_on_and_a_sweep_is_continued() {
    let sweep = sweep(SMALL).expect("a sweep");
    let dir = tempfile::tempdir().expect("a scratch directory");
    let seen = Mutex::new(Vec::new());
    let go = || {
        run(
            &sweep,
            &options(dir.path()),
            &AtomicBool::new(false),
            &|trial, rung| {
                seen.lock().expect("no panic").push((rung, trial.number));
            },
        )
        .expect("good runs")
    };
    let trials = go();
    let reached = |rung: usize| trials.iter().filter(|own| own.scores.len() > rung).count();
    assert_eq!((reached(0), reached(1)), (3, 2));
    assert!(
        trials
            .iter()
            .all(|own| own.scores.iter().all(Option::is_some))
    );
    // The one that did not go on was the worst.
    let first = |own: &Trial| own.scores[0].expect("a score");
    let worst = trials.iter().min_by(|a, b| first(a).total_cmp(&first(b)));
    assert_eq!(worst.expect("three").scores.len(), 1);
    assert_eq!(seen.lock().expect("no panic").len(), 5);

    let results = SweepResults::new(&sweep, &trials, "a test");
    let best = results.best().expect("scores");
    assert_eq!(best.scores.len(), 2);
    assert_eq!(results.table().lines().count(), 5);
    let paths = results.write(&sweep, dir.path()).expect("a directory");
    // What it wrote is the configuration of the best trial, and can be trained from.
    let config = Config::load(&paths[1]).expect("a configuration");
    let drawn = best.settings["learner.learning_rate"]
        .as_float()
        .expect("a number");
    assert_eq!(config.learner.learning_rate, drawn as f32);
    assert_eq!(config.steps, 128);

    // The same command again trains nothing, and finds the same.
    let scores = |trials: &[Trial]| trials.iter().map(|own| own.scores.clone()).collect();
    let (before, after): (Vec<_>, Vec<_>) = (scores(&trials), scores(&go()));
    assert_eq!(before, after);
}

#[test]
fn the_best_share_survives_and_what_diverged_does_not() {
    let trial = |number, score: Option<f64>| Trial {
        number,
        scores: vec![score],
    };
    let trials = [
        trial(0, Some(-3.0)),
        trial(1, None),
        trial(2, Some(1.0)),
        trial(3, Some(-1.0)),
    ];
    assert_eq!(survivors(&trials, 0, 0.5), [0, 1, 2, 3]);
    assert_eq!(survivors(&trials, 1, 0.5), [2, 3]);
    assert_eq!(survivors(&trials, 1, 0.01), [2]);
    assert_eq!(survivors(&trials, 1, 1.0), [2, 3, 0]);
    assert_eq!(survivors(&trials[1..2], 1, 1.0), [0; 0]);
    // Those that did not reach the rung before do not come back.
    assert_eq!(survivors(&trials, 2, 1.0), [0; 0]);
}

#[test]
fn every_trial_is_scored_by_the_objective_of_the_base() {
    let text = format!(
        "{SMALL}[[parameter]]\nkey = \"environment.objective\"\n\
         choices = [{{ kind = \"power\", scale = 7.0 }}]\n"
    );
    let sweep = sweep(&text).expect("a sweep");
    let trained = sweep.config(0).expect("valid");
    let scored = validation(&sweep, 0).expect("valid");
    let (Environments::Network(trained), Environments::Network(scored)) =
        (trained.environment, scored)
    else {
        panic!("networks")
    };
    assert_ne!(trained.objective, scored.objective);
    assert_eq!(trained.policy, scored.policy);
    assert_eq!(scored.links.len(), 1);
    assert_eq!(
        scored.links[0].scenarios.as_deref(),
        Some("calibrated/india-india")
    );
}

#[test]
fn the_error_of_a_faulty_sweep_names_the_fault() {
    for (from, to, message) in [
        ("trials = 3", "trials = 0", "trials is 0"),
        ("[64, 128]", "[128, 64]", "rungs is [128, 64]"),
        ("keep = 0.5", "keep = 0", "keep is 0"),
        ("episodes = 1", "episodes = 0", "validation.episodes is 0"),
        (
            "log = [1e-4, 1e-2]",
            "log = [0, 1]",
            "the parameter `learner.learning_rate` needs",
        ),
        (
            "learner.learning_rate",
            "learner.rate",
            "unknown field `rate`",
        ),
        ("learner.learning_rate", "learner.discount", "trial 0"),
        ("title", "titel", "unknown field `titel`"),
    ] {
        let mut text = SMALL.replacen(from, to, 1);
        if to == "learner.discount" {
            text = text.replacen("log = [1e-4, 1e-2]", "uniform = [2, 3]", 1);
        }
        let error = sweep(&text).expect_err(to).to_string();
        assert!(error.contains(message), "{error}");
    }
    let poles = "title = \"poles\"\ntrials = 1\nbase = { environment = { kind = \"cartpole\" } }\n\
                 parameter = []";
    let error = sweep(poles).expect_err("no links").to_string();
    assert!(
        error.contains("neither `network` nor `recorded`"),
        "{error}"
    );
}
