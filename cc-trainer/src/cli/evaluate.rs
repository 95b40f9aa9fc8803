//! `cc-trainer evaluate`: runs congestion controls over scenarios and measures them.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::bail;
use cc_sim::scenario;
use cc_testbed::{
    evaluate::{self, Evaluation, Outcome},
    report,
    summary::{Platform, table},
};

use super::{
    interrupt,
    runs::{Rlcc, Runs, check_privileges},
    screen::{Lines, Screen},
    values::{platform, seconds},
};

/// Run congestion controls over emulated links and measure throughput, delay, loss and fairness.
///
/// Every scheme runs on every scenario, several times in interleaved order. On the kernel, each
/// run has its own link between two network namespaces under the running kernel's TCP; this needs
/// root and takes as long as the runs last. A run that other load on the host disturbed is
/// repeated, and marked invalid if it is disturbed again. In the simulator (`--on sim`) the same
/// runs take moments and no privileges.
///
/// The output directory gets summary.json, table.md, report.html with the plots, and a file per
/// run. An interrupted evaluation continues when the same command is given again.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct EvaluateArgs {
    /// Platform that the schemes run on.
    #[arg(long, value_name = "WHERE", default_value = "kernel", value_parser = platform())]
    on: Platform,
    /// Schemes to compare, separated by commas: congestion controls (`cubic`, `bbr`, `reno`; on the
    /// kernel any it has, in the simulator also `vegas`, `westwood`, `htcp`, `bic`, `illinois`,
    /// `yeah`, `copa`, `copa-compete`, `bbr3`, `vivace` and `aurora`), `rlcc` (the policy of
    /// --policy), `random`, `heuristic`, `fixed:N` (a cwnd of N segments), each of these three also
    /// paced as the policy of --policy is (`heuristic:paced`), or `NAME=FILE.onnx` (a policy under
    /// a name).
    #[arg(long, value_name = "LIST", default_value = "rlcc,cubic,bbr,reno")]
    schemes: String,
    /// Scenarios to run on, separated by commas: built-in sets (`calibrated`, `pantheon`, …),
    /// members of a set (`SET/NAME`, or `SET/N` counted from 0), and TOML files.
    #[arg(long, value_name = "LIST", default_value = "calibrated")]
    scenarios: String,
    #[command(flatten)]
    rlcc: Rlcc,
    /// Length of each run, in seconds [default: that of the scenario, or else 30].
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Number of runs of each scheme on each scenario.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    runs: u32,
    /// Directory for the results. Runs that it already holds under the same settings are kept.
    #[arg(long, value_name = "DIR", default_value = "evaluation")]
    out: PathBuf,
    /// Record the policies' decisions to DIR, in one subdirectory per scheme. Needs the kernel;
    /// runs that are kept are not recorded.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    #[command(flatten)]
    how: Runs,
    /// Draw rates and delays of the runs in progress while they run; where standard error is no
    /// terminal, or a small one, print a line per second about each.
    #[arg(long)]
    live: bool,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer evaluate --schemes cubic,bbr --scenarios pantheon/bdp-1 --seconds 10 --live
      two of the kernel's congestion controls on one link
  cc-trainer evaluate --schemes rlcc,cubic --policy policy.onnx --scenarios calibrated,mine.toml
      a trained policy compared with cubic
  cc-trainer evaluate --schemes old=old.onnx,new=new.onnx --scenarios fairness
      two policies compared with each other
  cc-trainer evaluate --on sim --schemes rlcc,heuristic,heuristic:paced --scenarios pantheon
      what pacing does, apart from what the policy has learned
  cc-trainer evaluate --schemes rlcc --serving softmax:1 --scenarios mine.toml --record recorded
      record a policy that samples its actions, for `cc-trainer train --from recorded/rlcc`
  cc-trainer evaluate --on sim --schemes rlcc,cubic,bbr,copa --scenarios pantheon --out simulated
      in the simulator, within a minute; `cc-trainer compare` compares it with results on the kernel

Measures: throughput counts the payload that receivers got. One-way delay is that of every data
packet through the link, propagation included. Power is throughput divided by the 95th percentile
of the one-way delay. The exit status is 1 when a scheme has no valid run on a scenario.";

pub(crate) fn command(args: &EvaluateArgs) -> anyhow::Result<ExitCode> {
    check_privileges("evaluating", args.on)?;
    if args.on == Platform::Sim && args.record.is_some() {
        bail!(
            "--record needs the kernel, because a simulated run has no agent that records: \
             omit --on sim"
        );
    }
    let evaluation = Evaluation {
        on: args.on,
        schemes: args.rlcc.schemes(&args.schemes, args.on)?,
        scenarios: scenario::load(&args.scenarios)?,
        policy: args.rlcc.policy.clone(),
        serving: args.rlcc.serving,
        seconds: args.seconds,
        runs: args.runs,
        seed: args.how.seed,
        jobs: args.how.jobs,
        dir: args.out.clone(),
        fresh: args.how.fresh,
        agent: args.how.agent.clone(),
        record: args.record.clone(),
        command: super::command_line(),
    };
    let cancel = interrupt::on_interrupt()?;
    let mut screen = match args.live {
        true => Screen::live(&evaluation.scenarios),
        false => Screen::new(Lines::Runs),
    };
    let outcome = evaluate::evaluate(&evaluation, &cancel, |event| screen.show(&event));
    screen.end();
    let outcome = outcome?;
    let report_path = report::write(&args.out, &outcome.summary, &outcome.runs)?;
    conclude(&outcome, &report_path)
}

fn conclude(outcome: &Outcome, report_path: &Path) -> anyhow::Result<ExitCode> {
    super::print(format_args!(
        "{}\nsummary: {}\nreport:  {}\n",
        table::text(&outcome.summary),
        outcome.summary_path.display(),
        report_path.display()
    ))?;
    if outcome.cancelled {
        bail!("ended early; the same command continues from here");
    }
    let missing = outcome.without_valid_run();
    if !missing.is_empty() {
        let names: Vec<_> = missing
            .iter()
            .map(|(scenario, scheme)| format!("{scheme} on {scenario}"))
            .collect();
        bail!(
            "no valid run of {}: the host was too busy (the summary has the reason for each run); \
             stop other load on it, or use a smaller --jobs",
            names.join(", ")
        );
    }
    Ok(ExitCode::SUCCESS)
}
