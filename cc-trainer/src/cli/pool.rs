//! `cc-trainer pool`: records a pool of classical controls, and judges a policy beside them.

use std::{fs, path::PathBuf, process::ExitCode, sync::atomic::AtomicBool};

use anyhow::Context;
use cc_testbed::summary::Summary;
use cc_trainer::{
    pool::{self, PoolConfig, judge},
    toml_file,
};
use serde_json::json;

use super::{bar, interrupt};

/// Record what classical congestion controls do in the simulator, and judge a policy that learned
/// from it.
///
/// A pool is made of links of one family: the teachers are recorded on some, methods are chosen on
/// others, and the policy is judged on links of a third part. The recordings have the form of those
/// of `cc-agent observe`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PoolArgs {
    #[command(subcommand)]
    command: PoolCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PoolCommand {
    /// Draw the links, and record the teachers on those of the training part.
    Record(RecordArgs),
    /// Compare a scheme of an evaluation with its teachers, link by link.
    Judge(JudgeArgs),
}

#[derive(Debug, clap::Args)]
struct RecordArgs {
    /// Configuration in TOML: the family, the number of links, the teachers and the interface.
    #[arg(long, value_name = "FILE.toml")]
    config: PathBuf,
    /// Directory of the pool, which must not hold one yet.
    #[arg(long, value_name = "DIR", default_value = "pool")]
    out: PathBuf,
    /// Write the files of links and record nothing: to record on them under the kernel.
    #[arg(long)]
    links_only: bool,
}

#[derive(Debug, clap::Args)]
struct JudgeArgs {
    /// The summary.json of an evaluation that has the scheme and its teachers.
    #[arg(value_name = "SUMMARY")]
    summary: PathBuf,
    /// Schemes to judge, separated by commas [default: all that are no teachers].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    schemes: Vec<String>,
    /// The teachers, separated by commas.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "bbr,cubic,reno"
    )]
    teachers: Vec<String>,
    /// One line per scheme instead of one per link.
    #[arg(long)]
    short: bool,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer pool record --config cc-trainer/training/pool.toml --out pool
      links of a family in three files, and bbr, cubic and reno recorded on one of them
  cc-trainer offline --config cc-trainer/training/offline.toml --from pool/recordings --out learned
      a policy that learned from these recordings alone
  cc-trainer evaluate --on sim --policy learned/policy.onnx --scenarios pool/validation.toml \\
      --schemes rlcc,bbr,cubic,reno --out validation
  cc-trainer pool judge validation/summary.json
      the policy's power beside that of the best teacher of each link";

pub(crate) fn command(args: &PoolArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        PoolCommand::Record(args) => record(args, &*interrupt::on_interrupt()?),
        PoolCommand::Judge(args) => judge(args),
    }
}

fn record(args: &RecordArgs, cancel: &AtomicBool) -> anyhow::Result<ExitCode> {
    let config: PoolConfig = toml_file::read(&args.config)?;
    let links = config
        .draw()
        .with_context(|| args.config.display().to_string())?;
    let parts = links.write(&args.out)?;
    let mut recorded = Vec::new();
    if !args.links_only {
        let flows = links.parts[0].len() * config.schemes.len() * config.runs as usize;
        let shown = bar(flows as u64, "flows recorded");
        let directory = args.out.join("recordings");
        recorded = pool::record(&config, &links.parts[0], &directory, cancel, &|done| {
            shown.set_position(done);
        })?;
        shown.finish_and_clear();
    }
    let path = args.out.join("pool.json");
    let facts = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "command": super::command_line(),
        "config": config,
        "parts": parts,
        "recorded": recorded,
    });
    fs::write(&path, serde_json::to_string_pretty(&facts)?)
        .with_context(|| format!("writing {}", path.display()))?;
    let mut text = String::new();
    for part in &parts {
        let hash = &part.sha256[..16];
        text += &format!("{:<10}  {:>5} links  {hash}\n", part.part, part.links);
    }
    for pool::Recorded {
        scheme,
        flows,
        rows,
        ..
    } in &recorded
    {
        text += &format!("{scheme:<10}  {flows:>5} flows  {rows} rows\n");
    }
    super::print(text)?;
    Ok(ExitCode::SUCCESS)
}

fn judge(args: &JudgeArgs) -> anyhow::Result<ExitCode> {
    let text = fs::read_to_string(&args.summary)
        .with_context(|| format!("reading {}", args.summary.display()))?;
    let summary: Summary = serde_json::from_str(&text).with_context(|| {
        format!(
            "{}: not a summary of an evaluation of this version",
            args.summary.display()
        )
    })?;
    let mut schemes = args.schemes.clone();
    if schemes.is_empty() {
        schemes.clone_from(&summary.settings.schemes);
        schemes.retain(|scheme| !args.teachers.contains(scheme));
    }
    for scheme in &schemes {
        let verdict = judge::judge(&summary, scheme, &args.teachers)?;
        super::print(match args.short {
            true => verdict.line() + "\n",
            false => verdict.text(),
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
