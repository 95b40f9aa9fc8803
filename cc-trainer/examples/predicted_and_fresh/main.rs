//! Predicted against fresh: how `ope`'s estimates of several candidates, from recordings of one
//! policy, compare with what the candidates then earn. docs/retraining/predicted.sh runs all of it.
//!
//! ```text
//! predicted_and_fresh serve POLICY.onnx softmax:0.5 DIR/sharp.onnx    the policy, served so
//! predicted_and_fresh record recorded/first --policy first.onnx       simulated runs, recorded
//! predicted_and_fresh take-over switched.json --recorded-policy first.onnx CANDIDATE.onnx…
//! predicted_and_fresh compare --recorded recorded/first --fresh fresh --switched switched.json \
//!     CANDIDATE.onnx…
//! ```
//!
//! `cc-trainer evaluate --record` records the same runs under the kernel. `take-over` exists in the
//! simulator only, where a run can be repeated: it measures the very quantity that `ope` estimates.

mod compare;
mod means;
mod take_over;
mod world;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use cc_core::policy::{ActionSelection, PolicyFile};
use cc_trainer::policy_file;
use clap::Parser;

/// Compares off-policy estimates of candidates with what these earn in fresh runs.
#[derive(Debug, Parser)]
enum Command {
    /// Write a copy of a policy that is served in another way, so that one `evaluate` can run it
    /// beside others.
    Serve {
        /// The file of the policy that is run.
        policy: PathBuf,
        /// How the copy selects actions: `greedy` or `softmax:T`.
        serving: ActionSelection,
        /// The copy, which must not exist.
        to: PathBuf,
    },
    /// Record simulated runs of a policy, one flow per run.
    Record {
        /// Directory of the recording, which must not exist.
        to: PathBuf,
        /// The file of the policy that is run.
        #[arg(long)]
        policy: PathBuf,
        #[command(flatten)]
        runs: world::Runs,
    },
    /// Measure what candidates earn that take over from the recorded policy for some decisions.
    TakeOver {
        /// File for the figures, which must not exist.
        to: PathBuf,
        /// The file of the recorded policy.
        #[arg(long)]
        recorded_policy: PathBuf,
        /// The files of the candidates.
        #[arg(required = true)]
        candidates: Vec<PathBuf>,
        /// Number of decisions for which they do.
        #[arg(long, default_value_t = 10)]
        horizon: usize,
        #[command(flatten)]
        runs: world::Runs,
    },
    /// Estimate candidates from a recording, and compare the estimates with fresh runs.
    Compare {
        /// Directory of the recorded policy's recording.
        #[arg(long)]
        recorded: PathBuf,
        /// Directory with a recording of fresh runs of each candidate, in a directory named after
        /// the candidate's file, and of the recorded policy in `recorded`.
        #[arg(long)]
        fresh: PathBuf,
        /// The file that `take-over` wrote.
        #[arg(long)]
        switched: Option<PathBuf>,
        /// The files of the candidates.
        #[arg(required = true)]
        candidates: Vec<PathBuf>,
        /// Number of decisions of the estimates.
        #[arg(long, default_value_t = 10)]
        horizon: usize,
        /// Also write the figures to this file, which must not exist.
        #[arg(long)]
        json: Option<PathBuf>,
    },
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Serve {
            policy,
            serving,
            to,
        } => serve(&policy, serving, &to),
        Command::Record { to, policy, runs } => world::record(&to, &policy, &runs),
        Command::TakeOver {
            to,
            recorded_policy,
            candidates,
            horizon,
            runs,
        } => {
            let found = take_over::measure(&recorded_policy, &candidates, horizon, &runs)?;
            write_new(&to, &serde_json::to_string_pretty(&found)?)
        }
        Command::Compare {
            recorded,
            fresh,
            switched,
            candidates,
            horizon,
            json,
        } => {
            let switched = switched.map(|path| {
                let text = fs::read_to_string(&path)?;
                let found: Vec<take_over::TakenOver> = serde_json::from_str(&text)?;
                anyhow::Ok(found)
            });
            let switched = switched.transpose().context("the figures of take-over")?;
            let found = compare::compare(&recorded, &fresh, switched, &candidates, horizon)?;
            print!("{}", found.text());
            match json {
                Some(path) => write_new(&path, &serde_json::to_string_pretty(&found)?),
                None => Ok(()),
            }
        }
    }
}

/// The name of a candidate: that of its file.
fn name(policy: &Path) -> String {
    let stem = policy.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

fn serve(from: &Path, serving: ActionSelection, to: &Path) -> anyhow::Result<()> {
    let file = PolicyFile::read(from).with_context(|| from.display().to_string())?;
    let network = policy_file::decode(&file, 0, 0).with_context(|| from.display().to_string())?;
    let mut meta = file.meta().clone();
    meta.serving = serving;
    let bytes = policy_file::encode(
        &network.shape,
        &network.parameters,
        &network.normalizer,
        &meta,
        "The same network, served in another way.",
    )?;
    ensure!(!to.exists(), "{} exists already", to.display());
    fs::write(to, bytes).with_context(|| format!("writing {}", to.display()))
}

fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    ensure!(!path.exists(), "{} exists already", path.display());
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
