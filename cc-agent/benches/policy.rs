//! Decisions per second on one core, for a network of the paper's size and for a small one, by
//! batch size (flows decided at once).
//!
//! Prints a table and, where the environment variable `BENCH_JSON` names a file, writes the figures
//! to it. The networks have random parameters, which do not affect the time. Policy files that the
//! environment variable `BENCH_POLICIES` names, separated by colons, are measured beside them.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use cc_core::interface::Interface;
use cc_core::policy::export::ActorCritic;
use cc_core::policy::{
    ActionSelection, Choice, OnnxPolicy, Policy, PolicyKind, PolicyMeta, Query, State,
};
use cc_lab::{Report, median};

/// Batch sizes: the numbers of flows decided at once.
const BATCHES: [usize; 4] = [1, 8, 64, 256];

/// Number of repetitions, of which each figure is the median. They are interleaved, so that a
/// disturbance of the machine affects all figures alike.
const REPETITIONS: usize = 15;

/// Duration of one repetition of one figure.
const REPETITION: Duration = Duration::from_millis(200);

fn main() -> anyhow::Result<()> {
    let files = std::env::var("BENCH_POLICIES").unwrap_or_default();
    let built_in = [("h512", [512, 512], 512), ("h64", [64, 64], 64)]
        .into_iter()
        .map(|(name, hidden, state)| Ok((name, load(name, &hidden, state)?)));
    let given = files
        .split(':')
        .filter(|file| !file.is_empty())
        .map(|file| Ok((file, OnnxPolicy::from_file(Path::new(file), None, 1)?)));
    let mut policies = built_in.chain(given).collect::<anyhow::Result<Vec<_>>>()?;

    let width = policies.iter().map(|(name, _)| name.len()).max();
    let width = width.unwrap_or(0).max(8);
    let mut seconds: BTreeMap<(&str, usize), Vec<f64>> = BTreeMap::new();
    for _ in 0..REPETITIONS {
        for (name, policy) in &mut policies {
            for batch in BATCHES {
                seconds
                    .entry((name, batch))
                    .or_default()
                    .push(seconds_a_call(policy, batch)?);
            }
        }
    }

    let mut report = Report::new("policy");
    println!(
        "{:<width$}{:>8}{:>14}{:>16}{:>14}",
        "network", "flows", "µs a call", "µs a decision", "decisions/s"
    );
    for ((name, batch), samples) in &mut seconds {
        let call = median(samples);
        let (micros, rate) = (call * 1e6, *batch as f64 / call);
        println!(
            "{name:<width$}{batch:>8}{micros:>14.1}{:>16.2}{rate:>14.0}",
            micros / *batch as f64
        );
        report.add(format!("decisions_per_s_{name}_b{batch}"), rate);
        report.add(format!("us_per_call_{name}_b{batch}"), micros);
    }
    report.write()
}

/// Returns a policy with hidden layers and an LSTM state of these sizes, with random parameters.
fn load(name: &str, hidden: &[usize], state: usize) -> anyhow::Result<OnnxPolicy> {
    let meta = PolicyMeta {
        name: name.to_owned(),
        kind: PolicyKind::Heuristic,
        interface: Interface::default(),
        hidden: hidden.to_vec(),
        state,
        serving: Default::default(),
        provenance: BTreeMap::new(),
    };
    let file = ActorCritic::random(&meta, 1).export(&meta, "Random weights, for measurement only.");
    Ok(OnnxPolicy::from_bytes(
        &file,
        Some(ActionSelection::Softmax { temperature: 1.0 }),
        1,
    )?)
}

/// Measures the mean time in s of a call that decides for `batch` flows, whose recurrent states are
/// carried along.
fn seconds_a_call(policy: &mut OnnxPolicy, batch: usize) -> anyhow::Result<f64> {
    let observation = vec![0.5; policy.interface().observation_len()];
    let query = Query {
        observation,
        reward: 0.1,
        cwnd: 10,
        state: State::default(),
        probabilities: Vec::new(),
    };
    let mut queries = vec![query; batch];
    let choices = policy.decide(&mut queries);
    anyhow::ensure!(
        !choices.contains(&Choice::Invalid),
        "the network gives no valid answer"
    );
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < REPETITION {
        black_box(policy.decide(black_box(&mut queries)));
        calls += 1;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(calls))
}
