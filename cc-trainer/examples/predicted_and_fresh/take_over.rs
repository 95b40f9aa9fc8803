//! What a candidate earns that takes over from the recorded policy: the quantity that `ope`
//! estimates, measured by doing it.
//!
//! A run is repeated up to the same decision with each policy, so that all begin in the same state.
//! A recurrent candidate has followed the flow from its beginning, as in `ope`.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use cc_core::{policy::Query, rows::Row};
use cc_sim::seed;
use cc_trainer::dataset::{Recordings, Trajectory};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::{
    means::{Flow, Mean, difference, mean},
    name,
    world::{self, Follower, Run, Runs},
};

/// What a candidate earned while it had taken over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TakenOver {
    /// Name of the candidate; `recorded` is the recorded policy.
    pub(crate) name: String,
    /// What it earned per window.
    pub(crate) reward: Mean,
    /// The difference from what the recorded policy earned from the same states.
    pub(crate) difference: Mean,
}

/// Measures what each candidate earns in `horizon` decisions from states of the recorded policy,
/// discounted as `ope` does by default.
pub(crate) fn measure(
    recorded: &Path,
    candidates: &[PathBuf],
    horizon: usize,
    runs: &Runs,
) -> anyhow::Result<Vec<TakenOver>> {
    let own = measured(recorded, recorded, horizon, runs)?;
    let mut all = vec![TakenOver {
        name: "recorded".to_owned(),
        reward: mean(&own),
        difference: difference(&own, &own),
    }];
    for candidate in candidates {
        let found = measured(recorded, candidate, horizon, runs)?;
        all.push(TakenOver {
            name: name(candidate),
            reward: mean(&found),
            difference: difference(&found, &own),
        });
    }
    Ok(all)
}

/// What a candidate earned in each run.
fn measured(
    recorded: &Path,
    candidate: &Path,
    horizon: usize,
    runs: &Runs,
) -> anyhow::Result<Vec<Flow>> {
    let interface = Follower::new(recorded, 0)?.interface().clone();
    // Sub-trajectories that begin at least two seconds before the end of a recorded run.
    let windows =
        (runs.seconds.saturating_sub(2) * 1_000 / u64::from(interface.window_ms)) as usize;
    let places = windows / horizon;
    ensure!(places > 0, "runs of {} s are too short", runs.seconds);
    let all = runs.all()?;
    let flows: Vec<Vec<Row>> = all
        .par_iter()
        .map(|run| {
            let first = horizon * (seed::fold(run.id, 3) as usize % places);
            rows(run, recorded, candidate, first, horizon, runs)
        })
        .collect::<anyhow::Result<_>>()?;
    let directory = TempDir::new()?;
    let path = directory.path().join("0.parquet");
    world::write(&path, recorded, interface.clone(), &flows)?;
    let partitions = Recordings::open(&[path])?.partition(directory.path(), 32 << 20, &|_| {})?;
    let discount = 0.95_f64.powf(1_000.0 / f64::from(interface.window_ms));
    let mut found = Vec::new();
    for index in 0..partitions.len() {
        partitions.visit(index, |trajectory| {
            let run = all.iter().find(|run| run.id == trajectory.flow);
            found.extend(run.and_then(|run| {
                let first = horizon * (seed::fold(run.id, 3) as usize % places);
                earned(&trajectory, first, horizon, discount)
            }));
            Ok(())
        })?;
    }
    ensure!(
        found.len() * 10 >= all.len() * 9,
        "only {} of {} runs have the decisions from their beginning on",
        found.len(),
        all.len()
    );
    Ok(found)
}

/// Runs a flow under the recorded policy up to its decision number `first`, and under the candidate
/// from there.
fn rows(
    run: &Run,
    recorded: &Path,
    candidate: &Path,
    first: usize,
    horizon: usize,
    runs: &Runs,
) -> anyhow::Result<Vec<Row>> {
    let mut before = Follower::new(recorded, seed::fold(run.id, 2))?;
    let mut after = Follower::new(candidate, seed::fold(run.id, 4))?;
    let interface = before.interface().clone();
    let mut decisions = 0;
    let decide = &mut |query: &mut Query, windows: &[_]| {
        let mut other = query.clone();
        decisions += 1;
        match decisions <= first {
            true => {
                after.decide(&mut other, windows);
                before.decide(query, windows)
            }
            false => after.decide(query, windows),
        }
    };
    // Long enough for what the horizon's last decision leads to.
    let seconds = 3 * runs.seconds + 60;
    Ok(world::rows(
        run,
        &interface,
        seconds,
        first + horizon + 2,
        decide,
    ))
}

/// What was earned from the decision number `first` on; `None` for the parts of a flow that does
/// not go on from its beginning to the last of them.
fn earned(trajectory: &Trajectory, first: usize, horizon: usize, discount: f64) -> Option<Flow> {
    if trajectory.steps[0].sequence > 1 {
        return None;
    }
    let mut sums = Flow {
        id: trajectory.flow,
        ..Flow::default()
    };
    let mut left = 1.0;
    for step in trajectory.steps.get(first..first + horizon)? {
        let outcome = step.outcome?;
        sums.reward += left * f64::from(outcome.reward) * outcome.seconds;
        sums.seconds += left * outcome.seconds;
        left *= discount.powf(outcome.seconds);
    }
    Some(sums)
}

/// Finds a candidate among what was measured.
pub(crate) fn of<'a>(all: &'a [TakenOver], candidate: &str) -> anyhow::Result<&'a TakenOver> {
    let found = all.iter().find(|own| own.name == candidate);
    found.with_context(|| format!("take-over has no figures of {candidate}"))
}
