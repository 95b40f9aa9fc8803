//! From recordings to a better policy with the binary's commands `dataset`, `train --from` and
//! `ope`.
//!
//! The recordings come from a small world whose truth is known: a window's throughput depends on
//! the action before it and on nothing else ([`CARRIED`]).

mod deadline;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    ops::Range,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
    thread,
};

use arrow_array::{ArrayRef, Float32Array, Float64Array, RecordBatch, UInt64Array};
use bytemuck::Zeroable;
use cc_core::{
    interface::Interface,
    policy::{
        ActionSelection, Choice, OnnxPolicy, Policy, PolicyFile, PolicyKind, PolicyMeta, Query,
        State, export::ActorCritic,
    },
    reward::Terms,
    rows::{AddressForm, Decided, FileHeader, NO_MODE, Replay, Row},
};
use cc_ebpf::{FEATURES, Feature, Header, Mode, WindowRecord};
use cc_recording::FileWriter;
use cc_trainer::{
    dataset::features::Analysis,
    ope::{Interval, Method, Refusal, Term, recorded::TERM_NAMES},
    policy_file,
};
use parquet::{
    arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder},
    file::{
        metadata::KeyValue,
        properties::WriterProperties,
        reader::{FileReader, SerializedFileReader},
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

/// Throughput of a window after each of the actions `0,/2,-10,+10,*2`, Mbit/s.
const CARRIED: [u32; 5] = [4, 1, 2, 16, 8];
/// Logits of three policies: one that samples all actions evenly, one that prefers the action with
/// the highest throughput, and one that prefers the action with the lowest.
const EVEN: [f32; 5] = [0.0; 5];
const BETTER: [f32; 5] = [0.0, 0.0, 0.0, 1.2, 0.0];
const WORSE: [f32; 5] = [0.0, 1.2, 0.0, 0.0, 0.0];
/// Number of flows of a recording, and of decisions per flow; a flow has one more window.
const FLOWS: u64 = 200;
const DECISIONS: usize = 16;

/// Configuration of a run that takes moments and is reproducible.
const SMALL: &str = "
    serving = \"softmax\"
    actors = 0
    environment = { kind = \"recorded\", from = [] }

    [model]
    hidden = [16]
    lstm = 0

    [learner]
    batch = 8
    unroll = 16
    learning_rate = 5e-3
    discount = 0.5
    entropy_cost = 0.01
    reward_normalisation = \"global\"
    cloning = 0.1
    anchor = 0.05

    [actor]
    environments = 8
    fit_steps = 1000
";

/// Configuration of a run that clones what it was recorded from, to be served at a temperature.
const CLONE: &str = "
    serving = \"softmax:0.5\"
    actors = 0
    environment = { kind = \"recorded\", from = [], patience = 0 }

    [learner]
    batch = 8
    unroll = 16
    learning_rate = 1e-2
    entropy_cost = 0
    cloning = 1

    [actor]
    environments = 8
    fit_steps = 1000
";

/// Configuration of a run with simulated networks beside the recordings.
const BESIDE: &str = "
    actors = 0

    [environment]
    kind = \"network\"
    episode_s = 1

    [[environment.links]]
    random = { rate_mbps = [10, 14] }

    [learner]
    batch = 4
    unroll = 10
    learning_rate = 1e-5

    [actor]
    environments = 4
";

#[test]
fn a_recording_becomes_a_policy_that_is_better() {
    let place = Place::new();
    place.policy("even.onnx", &interface(), EVEN);
    place.record("day1", &interface(), Some("even.onnx"), 0..FLOWS);
    place.record("day2", &interface(), Some("even.onnx"), FLOWS..2 * FLOWS);

    let output = place.run(0, "dataset day1 --out timeline");
    let decisions = FLOWS as usize * DECISIONS;
    assert!(
        output.contains(&format!("{decisions} decisions of {FLOWS} flows")),
        "{output}"
    );
    let summary: BTreeMap<String, u64> = place.json("timeline/dataset.json");
    let expected = [
        ("rows", FLOWS * (DECISIONS as u64 + 1)),
        ("decisions", decisions as u64),
        ("left_out", 0),
        ("without_probability", 0),
        ("trajectories", FLOWS),
        ("ended", FLOWS),
    ];
    for (name, expected) in expected {
        assert_eq!(summary[name], expected, "{name}");
    }
    let files = fs::read_dir(place.at("timeline")).expect("it was written");
    let mut rows = 0;
    for file in files {
        let path = file.expect("an entry").path();
        match path.extension().and_then(|kind| kind.to_str()) {
            Some("parquet") => {
                let file = SerializedFileReader::new(File::open(path).expect("readable"));
                let file = file.expect("Parquet");
                rows += file.metadata().file_metadata().num_rows();
            }
            kind => assert_eq!(kind, Some("json"), "{}", path.display()),
        }
    }
    assert_eq!(rows, decisions as i64);
    place.refuses(
        "dataset day1 --out timeline",
        &["nothing is overwritten", "--out"],
    );

    // Training uses the transforms that were found, and the exported policy contains them.
    place.write("small.toml", SMALL);
    let train = "train --config small.toml --from day1 --normalisation timeline/features.json \
                 --steps 15000 --out retrained";
    place.run(0, train);
    let policy = PolicyFile::read(&place.at("retrained/policy.onnx")).expect("a policy");
    let network = policy_file::decode(&policy, 0, 0).expect("one of ours");
    let analysis: Analysis = place.json("timeline/features.json");
    assert_eq!(Some(network.normalizer), analysis.normalizer());
    assert_eq!(policy.meta().interface, interface());
    let even = PolicyFile::read(&place.at("even.onnx")).expect("a policy");
    assert_eq!(policy.meta().provenance["recorded"], even.summary().sha256);
    let record: Value = place.json("retrained/train.json");
    for loss in ["td_loss", "mc_loss"] {
        assert!(record["last"][loss].as_f64().is_some_and(|loss| loss > 0.0));
    }
    // The policy on the flows that are held out is in the record, and in a file of its own.
    let points = record["held_out"].as_array().expect("a list");
    assert!(points.len() > 3, "{points:?}");
    let last = points.last().expect("several");
    let estimated = |figure: &str| last["estimate"][figure].as_f64().expect("an estimate");
    assert!(estimated("candidate") > estimated("recorded") && estimated("low") > 0.0);
    let csv = fs::read_to_string(place.at("retrained/held_out.csv")).expect("written");
    assert_eq!(csv.lines().count(), points.len() + 1, "{csv}");
    place.run(0, train);
    place.refuses(
        &format!("{train} --seed 2"),
        &["a run with other settings", "seed: 2, not 1"],
    );

    // Evaluated on flows that it was not trained on.
    let ope = "ope --from day2 --policy retrained/policy.onnx --horizon 2 --json ope.json";
    let output = place.run(0, ope);
    assert!(output.contains("candidate: better"), "{output}");
    place.refuses(ope, &["ope.json exists already", "nothing is overwritten"]);
}

#[test]
fn a_candidate_is_better_or_worse_or_undecided_or_refused() {
    let place = Place::new();
    place.policy("even.onnx", &interface(), EVEN);
    place.record("day", &interface(), Some("even.onnx"), 0..FLOWS);
    place.policy("better.onnx", &interface(), BETTER);
    place.policy("worse.onnx", &interface(), WORSE);
    let ask = |code, candidate: &str, json: &str| {
        let ope = format!("ope --from day --horizon 3 --policy {candidate} --json {json}");
        let output = place.run(code, &ope);
        let last = output.lines().rfind(|line| line.contains("candidate: "));
        (
            last.unwrap_or_default().to_owned(),
            place.json::<Figures>(json),
        )
    };
    let reward = |figures: &Figures| {
        let magic = figures.terms["reward"]
            .estimates
            .last()
            .expect("seven")
            .clone();
        assert_eq!(magic.method, Method::Magic);
        magic
    };

    let (last, better) = ask(0, "better.onnx", "better.json");
    assert!(last.ends_with("candidate: better"), "{last}");
    let (last, worse) = ask(3, "worse.onnx", "worse.json");
    assert!(last.ends_with("candidate: worse"), "{last}");
    for figures in [&better, &worse] {
        let names: Vec<_> = figures.terms.keys().map(String::as_str).collect();
        let mut expected = TERM_NAMES;
        expected.sort_unstable();
        assert_eq!(names, expected);
        for Term {
            recorded,
            estimates,
            ..
        } in figures.terms.values()
        {
            let methods: Vec<_> = estimates.iter().map(|estimate| estimate.method).collect();
            assert_eq!(methods, Method::ALL);
            let differences = estimates.iter().map(|estimate| &estimate.difference);
            let values = estimates.iter().map(|estimate| &estimate.candidate);
            for Interval { value, low, high } in values.chain(differences).chain([recorded]) {
                assert!(low <= high && value.is_finite(), "{low} to {high}: {value}");
            }
            for estimate in estimates {
                assert!((30.0..=FLOWS as f64).contains(&estimate.effective));
                assert_eq!(estimate.refusal, None);
            }
        }
        // The difference is so large that all seven estimators agree on its sign.
        let sign = if reward(figures).difference.low > 0.0 {
            1.0
        } else {
            -1.0
        };
        for estimate in &figures.terms["reward"].estimates {
            assert!(sign * estimate.difference.value > 0.0, "{estimate:?}");
        }
    }
    // The true mean throughput of a policy.
    let mean = |logits: [f32; 5]| {
        let weights = logits.map(f32::exp);
        let carried = weights
            .iter()
            .zip(CARRIED)
            .map(|(w, carried)| w * carried as f32);
        f64::from(carried.sum::<f32>() / weights.iter().sum::<f32>())
    };
    for (figures, logits) in [(&better, BETTER), (&worse, WORSE)] {
        let magic = figures.terms[TERM_NAMES[0]]
            .estimates
            .last()
            .expect("seven");
        assert!(
            (magic.candidate.value / mean(logits) - 1.0).abs() < 0.1,
            "{magic:?}"
        );
    }

    let (last, same) = ask(4, "even.onnx", "same.json");
    assert!(last.contains("undecided: "), "{last}");
    assert!((same.mean_ratio - 1.0).abs() < 1e-6, "{}", same.mean_ratio);

    // A policy that hardly ever explores records nothing about what others would do.
    place.policy("narrow.onnx", &interface(), [12.0, 0.0, 0.0, 0.0, 0.0]);
    place.record("narrow", &interface(), Some("narrow.onnx"), 0..FLOWS);
    let output = place.run(
        4,
        "ope --from narrow --policy better.onnx --json refused.json",
    );
    assert!(output.contains("record with more exploration"), "{output}");
    let refused = reward(&place.json("refused.json")).refusal;
    assert!(matches!(refused, Some(Refusal::Unsupported { mean_ratio, .. }) if mean_ratio < 0.8));
}

#[test]
fn a_candidate_is_compared_with_one_of_the_recorded_policies() {
    let place = Place::new();
    for (policy, logits) in [("even", EVEN), ("better", BETTER)] {
        place.policy(&format!("{policy}.onnx"), &interface(), logits);
    }
    place.policy("worse.onnx", &interface(), WORSE);
    place.record("even", &interface(), Some("even.onnx"), 0..FLOWS);
    place.record(
        "better",
        &interface(),
        Some("better.onnx"),
        FLOWS..2 * FLOWS,
    );
    let identifier = |policy: &str| {
        let file = PolicyFile::read(&place.at(policy)).expect("a policy");
        file.summary().sha256.clone()
    };
    let (even, better) = (identifier("even.onnx"), identifier("better.onnx"));

    // Both arms of a canary: their mean is no policy's.
    let both = "ope --from even better --horizon 3 --policy worse.onnx";
    place.refuses(both, &["2 policies decided", &even, &better, "--of"]);
    place.refuses(
        &format!("{both} --of worse.onnx"),
        &["does not name one", &even, &better],
    );
    let one = "ope --from even --horizon 3 --policy worse.onnx";
    place.run(3, &format!("{one} --json one.json"));
    let alone = place.json::<Figures>("one.json").terms;
    for (number, of) in ["even.onnx", &even, &even[..12]].into_iter().enumerate() {
        place.run(3, &format!("{both} --of {of} --json of{number}.json"));
        let found: Figures = place.json(&format!("of{number}.json"));
        assert_eq!(found.terms, alone, "{of}");
        assert_eq!(
            (found.of.as_str(), found.cluster.as_str()),
            (&*even, "flow")
        );
    }
    let of_better: Figures = {
        place.run(3, &format!("{both} --of {better} --json better.json"));
        place.json("better.json")
    };
    let recorded = |terms: &BTreeMap<String, Term>| terms["reward"].recorded.value;
    assert!(recorded(&of_better.terms) > recorded(&alone) + 0.1);

    // The clusters that the recording does not have.
    for (cluster, why) in [
        ("path", ["have no remote address", "--record-addresses"]),
        ("host", ["in 1 clusters", "fewer than 10"]),
        ("hour", ["in 1 clusters", "record more"]),
        ("host --anytime", ["--cluster host", "--cluster hour"]),
    ] {
        place.refuses(&format!("{one} --cluster {cluster}"), &why);
    }
    // A confidence sequence is wider, and says so.
    let output = place.run(3, &format!("{one} --anytime=200 --json anytime.json"));
    assert!(output.contains("at all looks"), "{output}");
    let width = |terms: &BTreeMap<String, Term>| {
        let magic = terms["reward"].estimates.last().expect("seven");
        magic.difference.high - magic.difference.low
    };
    let anytime = place.json::<Figures>("anytime.json").terms;
    let ratio = width(&anytime) / width(&alone);
    assert!((1.3..1.9).contains(&ratio), "{ratio}");
}

#[test]
fn observed_flows_are_learned_from_without_probabilities() {
    let place = Place::new();
    place.record("observed", &interface(), None, 0..FLOWS);
    let output = place.run(0, "dataset observed --out timeline");
    let expected = format!(
        "{} decisions without a probability",
        FLOWS as usize * DECISIONS
    );
    assert!(
        output.contains("of observed:cubic") && output.contains(&expected),
        "{output}"
    );
    place.write("small.toml", SMALL);
    place.run(
        0,
        "train --config small.toml --from observed --steps 15000 --out learnt",
    );
    let why = ["has a probability", "cc-agent run --serving softmax"];
    place.refuses("ope --from observed --policy learnt/policy.onnx", &why);

    // The policy stayed close to the recorded one, and yet prefers what turned out well.
    place.policy("even.onnx", &interface(), EVEN);
    place.record("day", &interface(), Some("even.onnx"), FLOWS..2 * FLOWS);
    place.run(0, "ope --from day --policy learnt/policy.onnx --horizon 2");
}

/// What is recorded is sampled at the temperature of serving, and so is what is learned: the loop
/// neither sharpens the policy nor blunts it.
#[test]
fn five_turns_of_recording_cloning_and_serving_keep_the_entropy() {
    let place = Place::new();
    // Sampled at temperature 0.5: 0.84 for the action *2, the rest for the others.
    let logits = [0.0, 0.0, 0.0, 0.0, 1.51];
    let serving = ActionSelection::Softmax { temperature: 0.5 };
    place.policy_served("turn0.onnx", &interface(), logits, serving);
    place.write("clone.toml", CLONE);
    place.write(
        "another.toml",
        &CLONE.replace("cloning = 1", "cloning = 1\n    policy_temperature = 1"),
    );
    let entropy = |day: &str| {
        let mut all = Vec::new();
        for file in cc_recording::files(&place.at(day)).expect("a recording") {
            let (_, rows) = cc_recording::read(&file).expect("sound");
            for row in rows {
                let decision = row.expect("sound").decision;
                let shares = decision.and_then(|decision| decision.probabilities);
                let entropy = |shares: Vec<f32>| -> f32 {
                    let nats = shares.iter().filter(|share| **share > 0.0);
                    nats.map(|share| -share * share.ln()).sum()
                };
                all.extend(shares.map(entropy));
            }
        }
        assert_eq!(all.len(), FLOWS as usize * DECISIONS);
        all.iter().sum::<f32>() / all.len() as f32
    };
    let train = |config: &str, from: &str, init: &str, out: &str| {
        place.run(
            0,
            &format!(
                "train --config {config} --from {from} --init {init} --steps 16000 --out {out}"
            ),
        )
    };
    let mut policy = "turn0.onnx".to_owned();
    let mut entropies = Vec::new();
    for turn in 0..=5_u64 {
        let day = format!("day{turn}");
        let flows = turn * FLOWS..(turn + 1) * FLOWS;
        place.record(&day, &interface(), Some(&policy), flows);
        entropies.push(entropy(&day));
        if turn < 5 {
            let out = format!("turn{}", turn + 1);
            train("clone.toml", &day, &policy, &out);
            policy = format!("{out}/policy.onnx");
        }
    }
    assert!((entropies[0] - 0.67).abs() < 0.01, "{entropies:?}");
    for later in &entropies[1..] {
        assert!((later - entropies[0]).abs() < 0.08, "{entropies:?}");
    }
    // A policy that learns at another temperature than it is served at comes out sharper.
    let output = train("another.toml", "day0", "turn0.onnx", "another");
    let warning = "warning: the policy learns at temperature 1 and will be served at 0.5";
    assert!(output.contains(warning), "{output}");
    let flows = 6 * FLOWS..7 * FLOWS;
    place.record("after", &interface(), Some("another/policy.onnx"), flows);
    let sharper = entropy("after");
    assert!(sharper < 0.5, "{sharper} after {entropies:?}");
}

/// An application's cost of a flow is here the number of decisions for the action with the highest
/// throughput. A policy that learns it with a weight does without that action.
#[test]
fn what_applications_measured_is_a_term_of_training_and_of_estimates() {
    let place = Place::new();
    place.policy("even.onnx", &interface(), EVEN);
    place.record("day1", &interface(), Some("even.onnx"), 0..FLOWS);
    place.record("day2", &interface(), Some("even.onnx"), FLOWS..2 * FLOWS);
    let costs: Vec<_> = ["day1", "day2"].map(|day| place.serve(day)).into();

    let output = place.run(0, "dataset day1 --join day1.served --out timeline");
    let expected = "180 flows joined with day1.served, which has no row of 20 others";
    assert!(output.contains(expected), "{output}");
    let summary: BTreeMap<String, u64> = place.json("timeline/dataset.json");
    assert_eq!((summary["joined_flows"], summary["left_out"]), (180, 0));

    place.write("small.toml", SMALL);
    let train = "train --config small.toml --from day1 --join day1.served";
    let weigh = "--weigh surges=-5 --steps 15000 --out frugal";
    let output = place.run(0, &format!("{train} {weigh}"));
    let warning = "warning: 20 of 200 recorded flows are left out";
    assert!(output.contains(warning), "{output}");
    let ope = "ope --from day2 --policy frugal/policy.onnx --horizon 2 --join day2.served";
    let output = place.run(3, &format!("{ope} --json frugal.json"));
    assert!(output.contains("20 flows are left out"), "{output}");
    let terms = place.json::<Figures>("frugal.json").terms;
    let surges = &terms["surges"];
    let mean = costs[1].iter().sum::<f64>() / costs[1].len() as f64;
    assert!(
        (surges.recorded.value - mean).abs() < 1e-6,
        "{mean}: {surges:?}"
    );
    let magic = surges.estimates.last().expect("seven");
    assert!(magic.difference.high < 0.0, "{magic:?}");
    assert!(
        output.ends_with("\n") && output.contains("\nsurges "),
        "{output}"
    );
    // With the weight, the reward of the estimate is better, too; the throughput that it costs is
    // more than is tolerated.
    let output = place.run(3, &format!("{ope} --weigh surges=-50 --json weighed.json"));
    let reward = output
        .split("\nreward ")
        .nth(1)
        .expect("the reward's table");
    let found = reward.lines().find(|line| line.contains("candidate:"));
    assert_eq!(found, Some("  candidate: better"), "{output}");
    assert!(
        output.contains("verdict: worse (throughput_mbps worse"),
        "{output}"
    );

    for (command, expected) in [
        (format!("{train} --out new"), "no term of it has a weight"),
        (
            format!("{train} --weigh surge=-1 --out new"),
            "--weigh surge: day1.served has the columns surges",
        ),
        (
            "ope --from day1 --policy even.onnx --join day2.served".to_owned(),
            "none of 200 recorded flows is among the 180 rows of day2.served",
        ),
        (
            "dataset day1 --join day1/0.parquet --out new".to_owned(),
            "day1/0.parquet",
        ),
        (
            "dataset day1 --join missing --out new".to_owned(),
            "missing: No such file",
        ),
    ] {
        place.refuses(&command, &[expected]);
    }
}

#[test]
fn a_run_starts_from_a_policy_and_mixes_in_simulated_links() {
    let place = Place::new();
    place.policy("first.onnx", &interface(), BETTER);
    place.record("day", &interface(), Some("first.onnx"), 0..20);
    place.write("beside.toml", BESIDE);
    place.run(
        0,
        "train --config beside.toml --from day --simulated 0.5 --init first.onnx --steps 800 \
         --out mixed",
    );
    let network = |path: &str| {
        let file = PolicyFile::read(&place.at(path)).expect("a policy");
        policy_file::decode(&file, 0, 0).expect("one of ours")
    };
    let (first, mixed) = (network("first.onnx"), network("mixed/policy.onnx"));
    assert_eq!(
        (mixed.shape, mixed.normalizer),
        (first.shape, first.normalizer)
    );
    let moved = mixed.parameters.iter().zip(&first.parameters);
    let moved = moved
        .map(|(now, then)| (now - then).abs())
        .fold(0.0, f32::max);
    assert!(moved > 0.0 && moved < 0.01, "{moved}");
    let record: Value = place.json("mixed/train.json");
    let tasks = record["last"]["tasks"].as_array().expect("a list");
    let names: Vec<_> = tasks
        .iter()
        .filter_map(|task| task["name"].as_str())
        .collect();
    assert_eq!(names[0], "recorded");
    assert!(names.len() > 1, "{names:?}");
}

/// Recordings of a policy that observed version 1 of the features lead to one that observes
/// version 2, which can be estimated on such recordings.
#[test]
fn a_policy_of_the_next_features_version_is_made_from_recordings_of_the_former() {
    let place = Place::new();
    place.policy("even.onnx", &interface(), EVEN);
    place.record("day1", &interface(), Some("even.onnx"), 0..FLOWS);
    place.record("day2", &interface(), Some("even.onnx"), FLOWS..2 * FLOWS);
    place.write("small.toml", SMALL);

    place.run(0, "dataset day1 --features-version 2 --out timeline");
    let analysis: Analysis = place.json("timeline/features.json");
    let names: Vec<_> = (analysis.features.iter())
        .map(|found| found.name.as_str())
        .collect();
    assert_eq!(names[100..102], ["fraction.marked", "fraction.app_limited"]);
    let marked = &analysis.features[100];
    assert!(
        marked.least == 0.0 && marked.most > 0.3 && marked.most <= 1.0,
        "the rows' counters: {marked:?}"
    );

    let train = "train --config small.toml --from day1 --features-version 2 --steps 16000";
    place.run(0, &format!("{train} --out fresh"));
    place.run(
        0,
        &format!("{train} --normalisation timeline/features.json --out normalised"),
    );
    // A policy of version 1 begins with the recorded policy's decisions.
    place.run(
        0,
        "train --from day1 --features-version 2 --init even.onnx --actors 0 --steps 128 \
         --out further",
    );
    for run in ["fresh", "normalised", "further"] {
        let path = place.at(&format!("{run}/policy.onnx"));
        let file = PolicyFile::read(&path).expect("a policy");
        assert_eq!(file.meta().interface.features_version, 2, "{run}");
        let policy = OnnxPolicy::from_file(&path, None, 0).expect("it is served");
        assert_eq!(policy.summary().observation, 5 * 20 + 2 + 2 * 6);
    }
    let network = |path: &str| {
        let file = PolicyFile::read(&place.at(path)).expect("a policy");
        policy_file::decode(&file, 0, 0).expect("one of ours")
    };
    let second = Interface {
        features_version: 2,
        ..interface()
    };
    let begun = network("even.onnx").widened(&interface(), &second);
    let further = network("further/policy.onnx");
    assert_eq!(further.normalizer, begun.normalizer);
    let moved = begun.parameters.iter().zip(&further.parameters);
    let moved = moved.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(moved > 0.0 && moved < 0.1, "{moved}");

    let output = place.run(0, "ope --from day2 --policy fresh/policy.onnx --horizon 2");
    assert!(output.contains("candidate: better"), "{output}");

    place.refuses(
        "train --from day1 --init fresh/policy.onnx --out new",
        &["fresh/policy.onnx", "features_version: 2, not 1"],
    );
    place.refuses(
        "train --from day1 --features-version 3 --out new",
        &["features_version is 3", "computes versions 1 to 2"],
    );
    // The file has decisions, but its release did not count marks.
    let former = "../cc-agent/recording/tests/data/version-1.parquet";
    let former = Path::new(env!("CARGO_MANIFEST_DIR")).join(former);
    let former = former.display();
    for command in ["train --from", "dataset"] {
        place.refuses(
            &format!("{command} {former} --features-version 2 --out new"),
            &[
                "version-1.parquet",
                "schema version 1",
                "features version 1",
            ],
        );
    }
    place.run(
        0,
        &format!("dataset {former} --features-version 1 --out former"),
    );
}

#[test]
fn a_bad_recording_is_refused_with_its_path_and_leaves_no_output() {
    let place = Place::new();
    place.policy("even.onnx", &interface(), EVEN);
    place.write("small.toml", SMALL);
    place.record("good", &interface(), Some("even.onnx"), 0..8);
    let good = place.at("good/0.parquet");
    let damaged = |directory: &str| {
        fs::create_dir(place.at(directory)).expect("a new directory");
        place.at(directory).join("1.parquet")
    };

    place.run(0, "dataset good --out foreign");
    rewritten(&good, &damaged("newer"), |values, _| {
        for value in values {
            if value.key == "cc.schema_version" {
                value.value = Some("9".to_owned());
            }
        }
    });
    let other = Interface {
        actions: "0,/2,*2".parse().expect("actions"),
        ..interface()
    };
    place.record("mixed", &other, None, 8..12);
    fs::copy(&good, place.at("mixed/2.parquet")).expect("there is space");
    rewritten(&good, &damaged("nan"), |_, batch| {
        let column = batch.schema().index_of("reward").expect("a column");
        let mut columns = batch.columns().to_vec();
        let mut rewards: Vec<f32> = vec![0.5; batch.num_rows()];
        rewards[3] = f32::NAN;
        columns[column] = Arc::new(Float32Array::from(rewards)) as ArrayRef;
        *batch = RecordBatch::try_new(batch.schema(), columns).expect("the same columns");
    });
    fs::create_dir(place.at("empty")).expect("a new directory");
    let bytes = fs::read(&good).expect("readable");
    fs::write(damaged("truncated"), &bytes[..bytes.len() / 2]).expect("there is space");
    fs::write(damaged("text"), "flow,sequence,reward\n").expect("there is space");
    fs::copy(&good, damaged("copied")).expect("there is space");
    // The middle of flows that are shorter than the observation's history.
    let parts = place.at("good/1.parquet");
    let long = Interface {
        history: DECISIONS,
        ..interface()
    };
    rewritten(&parts, &damaged("middle"), |values, _| {
        for value in values {
            if value.key == "cc.environment" {
                value.value = serde_json::to_string(&long).ok();
            }
        }
    });
    place.policy("long.onnx", &long, EVEN);

    let cases: [(&str, &[&str]); 11] = [
        (
            "foreign",
            &["foreign/timeline-0", "no recording", "leave it out"],
        ),
        (
            "newer",
            &[
                "newer/1.parquet",
                "version 9",
                "versions 1 to 3",
                "use the release",
            ],
        ),
        (
            "mixed",
            &[
                "mixed/2.parquet",
                "other settings than mixed/0.parquet",
                "actions:",
                "name the files",
            ],
        ),
        (
            "nan",
            &["nan/1.parquet", "row 3, column reward: NaN", "leave it out"],
        ),
        ("empty", &["empty: no recording there", "*.parquet"]),
        ("missing", &["missing: No such file"]),
        (
            "truncated",
            &["truncated/1.parquet", "cut short", "copy it again"],
        ),
        ("text", &["text/1.parquet", "not Parquet"]),
        (
            "good copied",
            &[
                "row 0 of flow",
                "good/0.parquet and in copied/1.parquet",
                "no copy",
            ],
        ),
        (
            "good good",
            &[
                "row 0 of flow",
                "good/0.parquet and in good/0.parquet",
                "once",
            ],
        ),
        (
            "middle",
            &["rows are missing before each", "from their beginning"],
        ),
    ];
    for (paths, expected) in cases {
        let candidate = if paths == "middle" {
            "long.onnx"
        } else {
            "even.onnx"
        };
        for command in [
            format!("dataset {paths} --out new/timeline"),
            format!("train --config small.toml --from {paths} --steps 128 --out new"),
            format!("ope --from {paths} --policy {candidate} --json new.json"),
        ] {
            place.refuses(&command, expected);
        }
    }
}

#[test]
fn settings_that_do_not_fit_the_recording_are_refused_and_nothing_is_overwritten() {
    let place = Place::new();
    place.policy("even.onnx", &interface(), EVEN);
    place.record("good", &interface(), Some("even.onnx"), 0..8);
    place.write("small.toml", SMALL);
    let actions = Interface {
        actions: "0,/2,-20,+20,*2".parse().expect("actions"),
        ..interface()
    };
    let history = Interface {
        history: 3,
        ..interface()
    };
    place.policy("actions.onnx", &actions, EVEN);
    place.policy("history.onnx", &history, EVEN);
    place.write("broken.onnx", "no policy");
    place.record("others", &actions, None, 8..12);
    place.run(0, "dataset others --out others/timeline");
    place.run(0, "dataset good --out timeline");

    let train = "train --config small.toml --steps 128 --from good";
    let ope = "ope --from good --policy";
    let cases: [(String, &[&str]); 18] = [
        (
            format!("{ope} actions.onnx"),
            &["actions: \"0,/2,-20,+20,*2\", not \"0,/2,-10,+10,*2\""],
        ),
        (
            format!("{ope} history.onnx"),
            &["history: 3, not 2", "same observations"],
        ),
        (
            format!("{ope} broken.onnx"),
            &["broken.onnx", "not an ONNX file"],
        ),
        (
            format!("{ope} missing.onnx"),
            &["missing.onnx: No such file"],
        ),
        (format!("{ope} fixed:10"), &["fixed:10: it sets the cwnd"]),
        (
            format!("{ope} even.onnx --horizon 0"),
            &["horizon is 0", "1 to 10000"],
        ),
        (
            format!("{ope} even.onnx --confidence 95"),
            &["confidence is 95", "between 0 and 1"],
        ),
        (
            format!("{ope} even.onnx --horizon 100"),
            &["0 flows have a sub-trajectory of 100", "shorten"],
        ),
        (
            format!("{ope} even.onnx --json nowhere/ope.json"),
            &["nowhere/ope.json"],
        ),
        (
            format!("{ope} even.onnx --json small.toml"),
            &["small.toml exists already", "--json"],
        ),
        (
            format!("{train} --init actions.onnx --out new"),
            &["actions.onnx", "-20,+20", "other settings"],
        ),
        (
            format!("{train} --init history.onnx --out new"),
            &["history.onnx", "history: 3, not 2"],
        ),
        (
            format!("{train} --init broken.onnx --out new"),
            &["broken.onnx", "not an ONNX file"],
        ),
        (
            format!("{train} --normalisation others/timeline/features.json --out new"),
            &[
                "features.json",
                "`past2.-20` where these recordings have `past2.-10`",
                "dataset",
            ],
        ),
        (
            format!("{train} --normalisation timeline/dataset.json --out new"),
            &["timeline/dataset.json", "unknown field", "dataset"],
        ),
        // A recording directory that contains a policy of the same name.
        (
            format!("{train} --out policies"),
            &["policies/policy.onnx is there already", "--out"],
        ),
        (
            "dataset good --out good".to_owned(),
            &["good/", "nothing is overwritten", "--out"],
        ),
        (
            "dataset good --override nothing=binary --out new".to_owned(),
            &["`nothing`", "features.json"],
        ),
    ];
    fs::create_dir(place.at("policies")).expect("a new directory");
    fs::copy(place.at("even.onnx"), place.at("policies/policy.onnx")).expect("there is space");
    for (command, expected) in cases {
        place.refuses(&command, expected);
    }
}

/// The parts of the file of `--json` that are checked.
#[derive(Deserialize)]
struct Figures {
    of: String,
    cluster: String,
    mean_ratio: f64,
    terms: BTreeMap<String, Term>,
}

/// A scratch directory in which commands are run.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let directory = TempDir::new().expect("a scratch directory");
        fs::create_dir(directory.path().join("scratch")).expect("a new directory");
        Self(directory)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).expect("there is space");
    }

    fn json<T: for<'a> Deserialize<'a>>(&self, path: &str) -> T {
        let text = fs::read(self.at(path)).expect("it was written");
        serde_json::from_slice(&text).expect("of this kind")
    }

    /// Runs a command, checks its exit code and returns its output.
    fn run(&self, code: i32, command: &str) -> String {
        let output = output(
            Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
                .args(command.split_whitespace())
                .current_dir(self.0.path())
                .env("TMPDIR", self.at("scratch")),
        );
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text += &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{command}: {text}");
        text
    }

    /// Checks that a command fails with an error that contains every part of `expected`, and that
    /// it leaves all files as they were.
    fn refuses(&self, command: &str, expected: &[&str]) {
        let before = contents(self.0.path());
        let text = self.run(1, command);
        assert!(
            text.starts_with("error: ") && text.lines().count() == 1,
            "{command}: {text}"
        );
        for expected in expected {
            assert!(
                text.contains(expected),
                "{command}: {text}\nlacks {expected}"
            );
        }
        let after = contents(self.0.path());
        assert!(
            before == after,
            "{command} has changed something: {:?}",
            after.keys()
        );
    }

    /// Writes a policy with fixed logits, whose network can be trained further.
    fn policy(&self, path: &str, interface: &Interface, logits: [f32; 5]) {
        self.policy_served(path, interface, logits, SOFTMAX);
    }

    fn policy_served(
        &self,
        path: &str,
        interface: &Interface,
        logits: [f32; 5],
        serving: ActionSelection,
    ) {
        let meta = PolicyMeta {
            name: "small".to_owned(),
            kind: PolicyKind::Trained,
            interface: interface.clone(),
            hidden: vec![8],
            state: 8,
            serving,
            provenance: BTreeMap::new(),
        };
        let mut network = ActorCritic::random(&meta, 1);
        network.policy.weights.fill(0.0);
        network.policy.bias = logits.to_vec();
        fs::write(self.at(path), network.export(&meta, "")).expect("there is space");
    }

    /// Writes DAY.served, what an application measured of the flows of a recording but every tenth,
    /// and returns the costs.
    fn serve(&self, day: &str) -> Vec<f64> {
        let mut costs: BTreeMap<u64, f64> = BTreeMap::new();
        for file in cc_recording::files(&self.at(day)).expect("a recording") {
            let (_, rows) = cc_recording::read(&file).expect("sound");
            for row in rows {
                let row = row.expect("sound");
                let action = row.decision.and_then(|decision| decision.action);
                *costs.entry(row.flow).or_default() += f64::from(u8::from(action == Some(3)));
            }
        }
        costs.retain(|flow, _| !flow.is_multiple_of(10));
        let flows: ArrayRef = Arc::new(UInt64Array::from_iter_values(costs.keys().copied()));
        let surges: ArrayRef = Arc::new(Float64Array::from_iter_values(costs.values().copied()));
        let batch = RecordBatch::try_from_iter([("flow", flows), ("surges", surges)]);
        let batch = batch.expect("of the same length");
        let file = File::create_new(self.at(&format!("{day}.served"))).expect("a new file");
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
        writer.write(&batch).expect("there is space");
        writer.close().expect("there is space");
        costs.into_values().collect()
    }

    /// Records flows to two files, as when the first one has become full. The decisions are those
    /// of the policy `by`, or random ones without probabilities.
    fn record(&self, path: &str, interface: &Interface, by: Option<&str>, flows: Range<u64>) {
        let mut policy = by.map(|path| {
            OnnxPolicy::from_file(&self.at(path), None, flows.start).expect("a policy")
        });
        let mut random = StdRng::seed_from_u64(flows.start);
        let mut recorded: Vec<_> = flows.map(Recorded::new).collect();
        let mut rows = Vec::new();
        for number in 0..=DECISIONS {
            let mut newest: Vec<_> = recorded
                .iter()
                .map(|flow| flow.row(interface, number, by.is_some(), &mut random))
                .collect();
            if number < DECISIONS {
                let decisions = match &mut policy {
                    Some(policy) => decided(policy, interface, &mut recorded, &newest),
                    None => observed(interface, &recorded, &mut random),
                };
                for ((flow, row), decision) in recorded.iter_mut().zip(&mut newest).zip(decisions) {
                    flow.carry_out(interface, row, decision);
                }
            }
            rows.push(newest);
        }
        let header = FileHeader {
            interface: interface.clone(),
            policy: match by {
                None => "observed:cubic".to_owned(),
                Some(path) => {
                    let file = PolicyFile::read(&self.at(path)).expect("a policy");
                    file.summary().sha256.clone()
                }
            },
            policy_metadata: None,
            server: None,
            agent_version: "0.1.0".to_owned(),
            kernel: "6.12.0".to_owned(),
            host: BTreeMap::new(),
            started_ns: 1_795_000_000_000_000_000,
            utc_offset_ns: 1_700_000_000_000_000_000,
            addresses: AddressForm::Absent,
        };
        fs::create_dir(self.at(path)).expect("a new directory");
        for (number, part) in rows.chunks(DECISIONS / 2).enumerate() {
            let file = self.at(path).join(format!("{number}.parquet"));
            let mut writer = FileWriter::create(&file, header.clone()).expect("a new file");
            writer.write(&part.concat()).expect("there is space");
            writer.finish().expect("there is space");
        }
    }
}

const SOFTMAX: ActionSelection = ActionSelection::Softmax { temperature: 1.0 };

fn interface() -> Interface {
    Interface {
        history: 2,
        ..Interface::default()
    }
}

/// A flow that is being recorded.
struct Recorded {
    flow: u64,
    cwnd: u32,
    action: usize,
    replay: Replay,
    state: State,
}

impl Recorded {
    fn new(flow: u64) -> Self {
        Self {
            flow,
            cwnd: 10,
            action: 0,
            replay: Replay::new(),
            state: State::default(),
        }
    }

    /// Returns the flow's next window, whose throughput follows from the
    /// last action with some noise.
    fn row(&self, interface: &Interface, number: usize, ours: bool, random: &mut StdRng) -> Row {
        let length_ns = u64::from(interface.window_ms) * 1_000_000;
        let mut window = WindowRecord::zeroed();
        let end_ns = (number as u64 + 1) * length_ns;
        window.header = Header::of::<WindowRecord>(self.flow as u32, 0, end_ns);
        window.start_ns = end_ns - length_ns;
        window.index = number as u32;
        window.cwnd = self.cwnd;
        window.mss = 1448;
        window.mode = if ours { Mode::Decided as u32 } else { NO_MODE };
        let carried = CARRIED[self.action] * random.random_range(115..=135);
        for _ in 0..4 {
            let mut features = [0; FEATURES];
            features[Feature::RttStanding as usize] = random.random_range(20_000..30_000);
            features[Feature::Throughput as usize] = carried;
            features[Feature::Delay as usize] = 10_000;
            // A quarter of what the rate carries in a window, kB/s times ms.
            features[Feature::Acked as usize] = carried * interface.window_ms / 4;
            window.add(&features);
        }
        // At most three segments are marked, and one of four ACKs is application-limited.
        window.marked = random.random_range(0..4);
        window.app_limited_acks = random.random_range(0..2);
        let terms = Terms::of(&window, &interface.reward);
        Row {
            flow: self.flow,
            sequence: number as u32,
            window,
            path: None,
            initial_cwnd_bytes: 14_480,
            decision: None,
            terms,
            reward: terms.reward(&interface.reward) as f32,
            end: number == DECISIONS,
            local: None,
            remote: None,
            cgroup: 0,
            cookie: 0,
            netns: 0,
        }
    }

    fn carry_out(&mut self, interface: &Interface, row: &mut Row, decision: Decided) {
        self.action = usize::from(decision.action.expect("all have one"));
        self.cwnd = decision.cwnd;
        row.decision = Some(decision);
        self.replay.next(interface, row);
    }
}

/// Returns a policy's decisions on the flows' newest windows.
fn decided(
    policy: &mut OnnxPolicy,
    interface: &Interface,
    flows: &mut [Recorded],
    newest: &[Row],
) -> Vec<Decided> {
    let queries = flows.iter_mut().zip(newest).map(|(flow, row)| Query {
        observation: flow.replay.next(interface, row),
        reward: row.reward,
        cwnd: flow.cwnd,
        state: std::mem::take(&mut flow.state),
        probabilities: Vec::new(),
    });
    let mut queries: Vec<_> = queries.collect();
    let choices = policy.decide(&mut queries);
    let answers = flows.iter_mut().zip(queries).zip(choices);
    let decisions = answers.map(|((flow, query), choice)| {
        flow.state = query.state;
        let Choice::Action { index, probability } = choice else {
            panic!("no action: {choice:?}")
        };
        Decided {
            action: Some(index as u8),
            probability: Some(probability),
            probabilities: Some(query.probabilities),
            base_cwnd: flow.cwnd,
            cwnd: interface.actions.apply(index, flow.cwnd, interface.cwnd),
            delay_ns: Some(1_000_000),
        }
    });
    decisions.collect()
}

/// Returns random decisions without probabilities.
fn observed(interface: &Interface, flows: &[Recorded], random: &mut StdRng) -> Vec<Decided> {
    let decisions = flows.iter().map(|flow| {
        let action = random.random_range(0..interface.actions.len());
        Decided {
            action: Some(action as u8),
            probability: None,
            probabilities: None,
            base_cwnd: flow.cwnd,
            cwnd: interface.actions.apply(action, flow.cwnd, interface.cwnd),
            delay_ns: None,
        }
    });
    decisions.collect()
}

/// Runs a command to its end, within the deadline, and returns its exit status and output.
fn output(command: &mut Command) -> Output {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // Both pipes are drained meanwhile, so that neither fills up and blocks the command.
    let drain = |pipe: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                pipe.read_to_end(&mut bytes).expect("a readable pipe");
            }
            bytes
        })
    };
    let stdout = drain(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = drain(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let status = deadline::wait(&mut child);
    Output {
        status,
        stdout: stdout.join().expect("it only reads"),
        stderr: stderr.join().expect("it only reads"),
    }
}

/// Copies a Parquet file with its metadata and rows changed.
fn rewritten(from: &Path, to: &Path, change: impl FnOnce(&mut [KeyValue], &mut RecordBatch)) {
    let file = File::open(from).expect("readable");
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let metadata = builder.metadata().file_metadata().key_value_metadata();
    let mut values = metadata.cloned().unwrap_or_default();
    values.retain(|value| value.key.starts_with("cc."));
    let batches: Vec<_> = builder.build().expect("readable").collect();
    let [Ok(batch)] = &batches[..] else {
        panic!("one batch, as it is small")
    };
    let mut batch = batch.clone();
    change(&mut values, &mut batch);
    let properties = WriterProperties::builder().set_key_value_metadata(Some(values));
    let file = File::create_new(to).expect("a new file");
    let writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build()));
    let mut writer = writer.expect("a writer");
    writer.write(&batch).expect("there is space");
    writer.close().expect("there is space");
}

/// Returns every file and directory below a directory, with its contents.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.extend(contents(&path));
            all.insert(path, Vec::new());
        } else {
            let bytes = fs::read(&path).expect("readable");
            all.insert(path, bytes);
        }
    }
    all
}
