//! Small studies from end to end.

use std::{collections::BTreeMap, sync::Mutex};

use super::{results::StudyResults, *};

const SMALL: &str = "
    title = \"Poles\"
    seeds = [3, 5]
    reward_unit = 0.5
    [base]
    steps = 600
    [base.environment]
    kind = \"cartpole\"
    [base.model]
    hidden = [8]
    lstm = 0
    [base.learner]
    batch = 4
    unroll = 10
    [base.actor]
    environments = 3
    [[variant]]
    name = \"plain\"
    panel = \"without\"
    [[variant]]
    name = \"lstm\"
    panel = \"with\"
    curve = \"memory\"
    set = { model.lstm = 6, learner.discount = 0.9 }
";

fn study(text: &str) -> Result<Study, StudyError> {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = dir.path().join("study.toml");
    fs::write(&path, text).expect("a scratch file");
    Study::load(&path)
}

fn options(dir: &Path) -> Options {
    Options {
        dir: dir.to_owned(),
        jobs: 2,
        steps: None,
        command: "a test".to_owned(),
    }
}

fn finish(study: &Study, options: &Options) -> (Vec<StudyRun>, Vec<String>) {
    let names = Mutex::new(Vec::new());
    let ended = Mutex::new(Vec::new());
    let runs = run(study, options, &AtomicBool::new(false), &|event| {
        if let StudyEvent::Ended { name, done, .. } = event {
            names.lock().expect("no panic").push(name.to_owned());
            ended.lock().expect("no panic").push(done);
        }
    });
    assert_eq!(ended.into_inner().expect("no panic"), [1, 2, 3, 4]);
    let mut names = names.into_inner().expect("no panic");
    names.sort();
    (runs.expect("good runs"), names)
}

#[test]
fn every_variant_is_trained_with_every_seed_and_kept() {
    let study = study(SMALL).expect("a study");
    let dir = tempfile::tempdir().expect("a scratch directory");
    let options = options(dir.path());
    let (runs, names) = finish(&study, &options);
    assert_eq!(names, ["lstm-3", "lstm-5", "plain-3", "plain-5"]);
    let what: Vec<_> = runs
        .iter()
        .map(|run| {
            let config = &run.record.config;
            assert_eq!((config.actors, config.seed), (Some(0), run.seed));
            (run.variant, config.model.lstm, config.learner.discount)
        })
        .collect();
    assert_eq!(what, [(0, 0, 0.99), (0, 0, 0.99), (1, 6, 0.9), (1, 6, 0.9)]);

    // Finished runs are not touched; a run whose directory is gone is repeated, with the same
    // result.
    fs::remove_dir_all(dir.path().join("lstm-5")).expect("a run's directory");
    let (again, _) = finish(&study, &options);
    let parts = |runs: &[StudyRun]| runs.iter().map(|run| run.record.parts.clone()).collect();
    let (first, second): (Vec<_>, Vec<_>) = (parts(&runs), parts(&again));
    assert_eq!(first[..3], second[..3]);
    assert_eq!(
        runs[3].record.last.policy_loss,
        again[3].record.last.policy_loss
    );

    let results = StudyResults::new(&study, &again, "a test");
    assert_eq!(results.variants[1].runs.len(), 2);
    let end = results.variants[0].end.expect("episodes have ended");
    // A standing pole earns 1 a step.
    assert!((end.mean - 2.0).abs() < 1e-6, "{end:?}");
    let files = results.write(dir.path()).expect("a directory");
    let [json, svg] = files.map(|path| fs::read_to_string(path).expect("was written"));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["variants"][1]["set"]["model"]["lstm"], 6);
    assert!(
        json["variants"][0]["curve"]
            .as_array()
            .is_some_and(|curve| curve.len() > 50)
    );
    assert!(
        svg.contains(">memory</text>") && svg.contains(">without</text>"),
        "{svg}"
    );
    assert_eq!(results.table().lines().count(), 4);
}

#[test]
fn final_policies_are_judged_on_fixed_episodes_and_the_scores_kept() {
    let text = SMALL.replacen(
        "reward_unit = 0.5",
        "reward_unit = 0.5\nevaluation = { episodes = 3, seed = 4 }\ncollapsed_below = 1",
        1,
    );
    let study = study(&text).expect("a study");
    let dir = tempfile::tempdir().expect("a scratch directory");
    let options = options(dir.path());
    let (runs, _) = finish(&study, &options);
    for run in &runs {
        // A standing pole earns 1 a step.
        assert_eq!(run.links.len(), 1);
        assert!((run.links[0].score - 1.0).abs() < 1e-6, "{:?}", run.links);
    }
    let results = StudyResults::new(&study, &runs, "a test");
    let score = results.variants[0].score.expect("was judged");
    assert_eq!((score.mean, score.collapsed), (2.0, Some(0.0)));
    assert!(
        results.table().contains("| variant | cartpole |"),
        "{}",
        results.table()
    );

    // Scores in a run's directory are used as long as the episodes are the same.
    let kept = dir.path().join("plain-3/greedy.json");
    let scores = fs::read_to_string(&kept).expect("was written");
    fs::write(&kept, scores.replace("\"score\": 1.0", "\"score\": 0.25")).expect("there is space");
    let (runs, _) = finish(&study, &options);
    assert_eq!(runs[0].links[0].score, 0.25);
    let other = text.replacen("seed = 4", "seed = 5", 1);
    let (runs, _) = finish(&self::study(&other).expect("a study"), &options);
    assert!((runs[0].links[0].score - 1.0).abs() < 1e-6);
    // Nothing is judged on no episode.
    let none = text.replacen("episodes = 3", "episodes = 0", 1);
    let error = self::study(&none).expect_err("no episode").to_string();
    assert!(error.contains("evaluation.episodes is 0"), "{error}");
}

const MATRIX: &str = "
    [matrix]
    clean = \"near\"
    degraded = \"far\"
    condition = [
        { name = \"near\" },
        { name = \"far\", network = { preset = \"wifi-degraded\" } },
    ]
";

fn matrix_of_poles() -> String {
    let networked = "kind = \"networked\"\nworld = { kind = \"cartpole\" }";
    SMALL
        .replacen("kind = \"cartpole\"", networked, 1)
        .replacen(
            "reward_unit = 0.5",
            "evaluation = { episodes = 4, seed = 4, measure = \"episode\" }",
            1,
        )
        + MATRIX
}

#[test]
fn a_matrix_has_every_policy_under_every_condition_and_what_it_loses() {
    let study = study(&matrix_of_poles()).expect("a study");
    let dir = tempfile::tempdir().expect("a scratch directory");
    let (runs, _) = finish(&study, &options(dir.path()));
    for run in &runs {
        let names: Vec<&str> = run.links.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["near", "far"]);
        // A pole falls after eight steps at the earliest, and stands for 500 at most.
        let is_return = |link: &LinkScore| (8.0..=500.0).contains(&link.score);
        assert!(run.links.iter().all(is_return), "{:?}", run.links);
    }
    let results = crate::calf::CalfResults::new(&study, &runs, "a test").expect("a matrix");
    for (regime, of) in results.regimes.iter().zip([[0, 1], [2, 3]]) {
        assert_eq!(regime.seeds, [3, 5]);
        let mean = |at: usize| (runs[of[0]].links[at].score + runs[of[1]].links[at].score) / 2.0;
        let cell = &regime.cells[1];
        assert!((cell.mean - mean(1)).abs() < 1e-9);
        assert!((cell.gap - (1.0 - mean(1) / mean(0))).abs() < 1e-9);
        assert_eq!(regime.cells[0].gap, 0.0);
    }
    assert_eq!(results.gaps().len(), 2);
    let files = results.write(dir.path()).expect("a directory");
    let [json, table, picture] = files.map(|path| fs::read_to_string(path).expect("was written"));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["regimes"][1]["name"], "lstm");
    assert!(
        table.contains("| near |") && table.contains("| lost | plain | lstm |"),
        "{table}"
    );
    assert!(picture.contains(">far</text>"), "{picture}");

    // Scores are kept as long as the condition is the same.
    let kept = dir.path().join("plain-3/greedy-far.json");
    let scores = fs::read_to_string(&kept).expect("was written");
    let known = format!("\"score\": {:?}", runs[0].links[1].score);
    fs::write(&kept, scores.replace(&known, "\"score\": 0.25")).expect("there is space");
    let (again, _) = finish(&study, &options(dir.path()));
    assert_eq!(again[0].links[1].score, 0.25);
    let other = matrix_of_poles().replacen("wifi-degraded", "wifi-normal", 1);
    let (again, _) = finish(&self::study(&other).expect("a study"), &options(dir.path()));
    assert!(again[0].links[1].score >= 8.0);
}

#[test]
fn the_error_of_a_faulty_matrix_names_the_fault() {
    for (from, to, message) in [
        ("\"far\"\n", "\"away\"\n", "matrix: degraded is `away`"),
        (
            "name = \"far\"",
            "name = \"near\"",
            "matrix.condition has \"near\" twice",
        ),
        (
            "name = \"far\"",
            "name = \"a/b\"",
            "`a/b` cannot be the name of a condition",
        ),
        (
            "preset = \"wifi-degraded\"",
            "loss = [0, 2]",
            "condition `far`: loss of the network",
        ),
        ("evaluation =", "# evaluation =", "`evaluation` has to say"),
        (
            "kind = \"networked\"\nworld = { kind = \"cartpole\" }",
            "kind = \"cartpole\"",
            "variant `plain` has no network",
        ),
    ] {
        refuses(&matrix_of_poles(), from, to, message);
    }
}

/// Asserts that a study's text with one part replaced is refused with a message.
fn refuses(text: &str, from: &str, to: &str, message: &str) {
    assert!(text.contains(from), "{from}");
    let error = study(&text.replacen(from, to, 1))
        .expect_err(to)
        .to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn more_steps_continue_the_runs_that_are_there() {
    let study = study(SMALL).expect("a study");
    let dir = tempfile::tempdir().expect("a scratch directory");
    let mut options = options(dir.path());
    options.steps = Some(200);
    finish(&study, &options);
    options.steps = Some(320);
    let (runs, _) = finish(&study, &options);
    for run in runs {
        assert_eq!((run.record.last.steps, run.record.parts.len()), (320, 2));
        assert_eq!(run.record.parts[1].from_step, 200);
    }
}

#[test]
fn a_study_that_is_stopped_begins_no_run() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let stop = AtomicBool::new(true);
    let study = study(SMALL).expect("a study");
    let runs = run(&study, &options(dir.path()), &stop, &|_| {}).expect("no failure");
    assert!(runs.is_empty());
    let results = StudyResults::new(&study, &runs, "");
    assert!(results.variants.is_empty());
    results.write(dir.path()).expect("a picture of nothing");
}

#[test]
fn the_error_of_a_failed_run_has_its_name() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    fs::write(dir.path().join("plain-3"), "in the way").expect("a scratch file");
    let study = study(SMALL).expect("a study");
    let options = options(dir.path());
    let error = run(&study, &options, &AtomicBool::new(false), &|_| {})
        .expect_err("no directory can be there")
        .to_string();
    assert!(error.starts_with("plain-3: "), "{error}");
}

#[test]
fn the_error_of_a_faulty_study_names_the_fault() {
    for (from, to, message) in [
        ("[3, 5]", "[]", "seeds is empty"),
        ("[3, 5]", "[3, 3]", "seeds has 3 twice"),
        ("\"lstm\"", "\"plain\"", "variant has \"plain\" twice"),
        (
            "\"lstm\"",
            "\"../x\"",
            "`../x` cannot be the name of a variant",
        ),
        ("reward_unit = 0.5", "reward_unit = 0", "reward_unit is 0"),
        (
            "model.lstm",
            "model.lstms",
            "variant `lstm`: unknown field `lstms`",
        ),
        (
            "discount = 0.9",
            "discount = 9",
            "variant `lstm`: learner.discount is 9, and has to be from 0 to 1",
        ),
        ("title", "titel", "unknown field `titel`"),
    ] {
        let error = study(&SMALL.replacen(from, to, 1))
            .expect_err(to)
            .to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn every_committed_configuration_is_valid() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("training");
    let mut kinds = BTreeMap::<_, u32>::new();
    for file in fs::read_dir(dir).expect("a directory") {
        let path = file.expect("an entry").path();
        let table: toml::Table = toml_file::read(&path).expect("TOML");
        // What only one kind of file has.
        let keys = [
            "parameter",
            "variant",
            "axis",
            "scenario",
            "canary",
            "schemes",
            "updates",
        ];
        let kind = keys.into_iter().find(|key| table.contains_key(*key));
        let validity = match kind {
            Some("parameter") => crate::sweep::Sweep::load(&path)
                .err()
                .map(|e| e.to_string()),
            Some("variant" | "axis") => Study::load(&path).err().map(|e| e.to_string()),
            Some("scenario") => {
                let text = fs::read_to_string(&path).expect("a file");
                let links = cc_sim::scenario::parse(&text, &path);
                links.err().map(|e| e.to_string())
            }
            Some("canary") => crate::closed_loop::config::LoopConfig::load(&path)
                .err()
                .map(|e| e.to_string()),
            Some("schemes") => toml_file::read::<crate::pool::PoolConfig>(&path)
                .expect("a pool")
                .validate()
                .err()
                .map(|e| e.to_string()),
            Some(_) => toml_file::read::<crate::offline::OfflineConfig>(&path)
                .expect("learning from a pool")
                .validate()
                .err()
                .map(|e| e.to_string()),
            None => {
                let config = Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
                let resolved = config.resolve(&Overrides::default());
                resolved.err().map(|e| e.to_string())
            }
        };
        assert_eq!(validity, None, "{}", path.display());
        *kinds.entry(kind).or_default() += 1;
    }
    assert_eq!(kinds.len(), 8, "one of each kind: {kinds:?}");
}

const GRAPH: &str = "
    title = \"A graph\"
    seeds = [3, 5]
    evaluation = { episodes = 2, seed = 4 }
    [base]
    steps = 600
    [base.environment]
    kind = \"network\"
    episode_s = 4
    delay = { kind = \"network\" }
    objective = { kind = \"power\" }
    [[base.environment.links]]
    random = { rate_mbps = [4, 8], delay_ms = [5, 20], queue_bdp = [1, 2] }
    [base.model]
    hidden = [8]
    lstm = 3
    [base.learner]
    batch = 4
    unroll = 5
    [base.actor]
    environments = 3
    fit_steps = 200
    [[variant]]
    name = \"slow\"
    above = \"quick\"
    set.steps = 60
    set.environment.guide = { values = [4, 1], network = { delay_ms = [0, 90] } }
    [[variant]]
    name = \"quick\"
    set.environment.guide = { values = [1, 4] }
";

fn graph() -> String {
    GRAPH.to_owned() + MATRIX
}

#[test]
fn the_fast_policy_of_a_graph_is_trained_first_and_judged_in_the_graph() {
    let study = study(&graph()).expect("a study");
    let dir = tempfile::tempdir().expect("a scratch directory");
    let (runs, _) = finish(&study, &options(dir.path()));
    assert_eq!(
        runs.iter().map(|run| run.variant).collect::<Vec<_>>(),
        [0, 0, 1, 1]
    );
    for (slow, quick) in runs[..2].iter().zip(&runs[2..]) {
        assert!(quick.links.is_empty() && slow.links.len() == 2);
        // Two guides, and the features with the guide in front of both policies.
        assert_eq!(
            (slow.record.shape.actions, quick.record.shape.actions),
            (2, 5)
        );
        assert_eq!(
            slow.record.shape.observation,
            quick.record.shape.observation
        );
        // The slow one's scores are per window, as those of others.
        assert!(
            slow.links
                .iter()
                .all(|link| (-20.0..0.0).contains(&link.score))
        );
        assert!((slow.record.last.steps, quick.record.last.steps) == (60, 600));
    }
    let results = crate::calf::CalfResults::new(&study, &runs, "a test").expect("a matrix");
    let names: Vec<&str> = results
        .regimes
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(names, ["slow"]);

    // What is done is kept, also in a directory that was moved; a run that is missing is repeated.
    let moved = tempfile::tempdir().expect("a scratch directory");
    let at = moved.path().join("elsewhere");
    fs::rename(dir.path(), &at).expect("on one file system");
    fs::remove_dir_all(at.join("slow-5")).expect("a run's directory");
    let (again, _) = finish(&study, &options(&at));
    let parts = |runs: &[StudyRun], place: usize| runs[place].record.parts.clone();
    assert!(
        [0, 2, 3]
            .iter()
            .all(|&place| parts(&runs, place) == parts(&again, place))
    );
    assert_eq!(runs[1].links, again[1].links);
}

#[test]
fn a_graph_that_cannot_be_is_refused_with_the_variant() {
    for (from, to, message) in [
        (
            "above = \"quick\"",
            "above = \"quack\"",
            "variant `slow`: above is `quack`, and has to",
        ),
        (
            "name = \"quick\"",
            "name = \"quick\"\nabove = \"slow\"",
            "that one is above another itself",
        ),
        (
            "set.environment.guide = { values = [1, 4] }",
            "",
            "above is `quick`, and both have to set `environment.guide`",
        ),
    ] {
        refuses(&graph(), from, to, message);
    }
}

#[test]
fn a_fast_policy_that_does_not_fit_is_refused_with_the_reason() {
    let study = study(&graph()).expect("a study");
    let dir = tempfile::tempdir().expect("a scratch directory");
    finish(&study, &options(dir.path()));
    let plain = "kind = \"network\"\n[[links]]\nfamily = \"broad\"\n";
    let error = |fast: &str, settings: &str| {
        let fast = dir.path().join(fast);
        let guide = format!("{plain}[guide]\nvalues = [1]\nfast = {fast:?}\n{settings}");
        let environment: train::environments::Environments = toml::from_str(&guide.replace(
            "values = [1]\n",
            match settings.contains("values") {
                true => "",
                false => "values = [1]\n",
            },
        ))
        .expect("TOML");
        let error = environment.open().expect_err("it does not fit").to_string();
        assert!(error.starts_with("environment.guide.fast, /"), "{error}");
        error
    };
    for (fast, settings, message) in [
        (
            "none",
            "",
            "it holds no trained policy (checkpoint.bin); train one",
        ),
        ("slow-3", "", "its policy is not the fast one of a graph"),
        (
            "quick-3",
            "values = [2]",
            "was not trained with the guide 2; choose",
        ),
        (
            "quick-3",
            "[policy]\nhistory = 3",
            "another interface (history: 20, not 3)",
        ),
    ] {
        let found = error(fast, settings);
        assert!(found.contains(message), "{found}");
    }
    fs::write(dir.path().join("quick-3/checkpoint.bin"), "damaged").expect("there is space");
    let found = error("quick-3", "");
    assert!(found.contains("not a checkpoint"), "{found}");
}
