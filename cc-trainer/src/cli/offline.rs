//! `cc-trainer offline`: learns a policy from observed flows of other congestion controls.

use std::{
    collections::BTreeMap, env, fs, path::PathBuf, process::ExitCode, sync::atomic::Ordering,
};

use anyhow::{Context, bail};
use cc_core::durable::replace_durably;
use cc_testbed::summary::utc_now;
use cc_trainer::{
    offline::{self, OfflineConfig},
    toml_file,
};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{bar, interrupt};

/// Learn a policy from what other congestion controls did, and from nothing else.
///
/// Reads recordings of `cc-agent observe`, or of `cc-trainer pool`, and writes policy.onnx, which
/// `cc-agent run`, `cc-trainer evaluate` and all others take, and offline.json with the settings
/// and the losses. No flow is sent.
///
/// Recordings of policies go to `cc-trainer train --from`: their actions have probabilities.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct OfflineArgs {
    /// Configuration in TOML: the method, the interface of the policy and the networks.
    #[arg(long, value_name = "FILE.toml")]
    config: PathBuf,
    /// Recordings: files, or directories of them. Can be given several times.
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    from: Vec<PathBuf>,
    /// Number of updates [default: the configuration's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    updates: Option<u64>,
    /// Seed of the initial parameters and the order of the states [default: the configuration's].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Directory for the sorted recordings, about 800 bytes per recorded row [default: the
    /// system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Directory of the run, which must not hold a policy yet.
    #[arg(long, value_name = "DIR", default_value = "offline")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer pool record --config cc-trainer/training/pool.toml --out pool
  cc-trainer offline --config cc-trainer/training/offline.toml --from pool/recordings --out learned
      a policy from simulated flows of bbr, cubic and reno
  cc-agent observe --record recordings --congestion-control bbr,cubic,reno --duration 3600
  cc-trainer offline --config cc-trainer/training/offline.toml --from recordings --out learned
      a policy from an hour of a host's own flows
  cc-agent inspect learned/policy.onnx";

pub(crate) fn command(args: &OfflineArgs) -> anyhow::Result<ExitCode> {
    let mut config: OfflineConfig = toml_file::read(&args.config)?;
    config.updates = args.updates.unwrap_or(config.updates);
    config.seed = args.seed.unwrap_or(config.seed);
    let path = args.out.join("policy.onnx");
    if path.exists() {
        bail!(
            "{} exists, and nothing is overwritten: choose another directory with --out",
            path.display()
        );
    }
    let place = || args.config.display().to_string();
    let scratch = args.scratch.clone().unwrap_or_else(env::temp_dir);
    let stop = interrupt::on_interrupt()?;
    let material = offline::gather(&config, &args.from, &scratch).with_context(place)?;
    let shown = bar(config.updates, "updates");
    let learned = offline::learn(&config, &material.learned, &mut |done| {
        shown.set_position(done);
        !stop.load(Ordering::Relaxed)
    });
    shown.finish_and_clear();
    let learned = learned.with_context(place)?;

    let settings = serde_json::to_vec(&config)?;
    let digest = Sha256::digest(&settings);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let provenance = BTreeMap::from(
        [
            (
                "trainer",
                format!("cc-trainer {}", env!("CARGO_PKG_VERSION")),
            ),
            ("algorithm", format!("offline, {}", config.method.name())),
            ("config", format!("sha256 {digest}")),
            ("date", utc_now()),
            ("updates", config.updates.to_string()),
            ("seed", config.seed.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    let bytes = material.policy_file(&learned.network, config.serving, provenance)?;
    let likeness = material.likeness(&learned.network);
    let states = material.learned.len();
    let record = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "command": super::command_line(),
        "date": utc_now(),
        "config": config,
        "recorded": material.policies,
        "states": states,
        "outcomes": material.learned.known().len(),
        "inputs": learned.network.shape.observation,
        "held_out": likeness,
        "curve": learned.curve,
    });
    fs::create_dir_all(&args.out).with_context(|| format!("creating {}", args.out.display()))?;
    let json = serde_json::to_vec_pretty(&record)?;
    replace_durably(&args.out.join("offline.json"), &json)?;
    replace_durably(&path, &bytes)?;
    let last = learned.curve.last().copied().unwrap_or_default();
    let mut text = format!(
        "{states} states of {}, {} inputs; {} updates by {}: loss of the policy {:.4}, of the \
         values {:.5}\n",
        material.policies.join(", "),
        learned.network.shape.observation,
        config.updates,
        config.method.name(),
        last.loss.policy,
        last.loss.value,
    );
    if let Some(likeness) = likeness {
        text += &format!(
            "{} states held out: ln π of what was done {:.4}, the same action in {:.1} %\n",
            likeness.states,
            likeness.log_likelihood,
            100.0 * likeness.agreement,
        );
    }
    super::print(format_args!("{text}{}\n", path.display()))?;
    Ok(ExitCode::SUCCESS)
}
