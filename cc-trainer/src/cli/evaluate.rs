//! `cc-trainer evaluate`: what congestion controls are worth.

use std::{io::IsTerminal, path::PathBuf, process::ExitCode, str::FromStr, time::Duration};

use anyhow::bail;
use cc_core::policy::{PolicySpec, Serving};
use cc_sim::scenario;
use cc_testbed::{
    evaluate::{self, Controls, Evaluation, Event, Jobs, Live, Outcome},
    summary::{Platform, Run, table},
};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::interrupt;

/// Run congestion controls over emulated links and measure throughput, delay, loss and fairness.
///
/// Every scheme runs on every scenario, several times in interleaved order. On the kernel each run has its own link under
/// the running kernel's TCP, between two network namespaces (so this needs root), and takes as long as it says; a run that
/// the host disturbed is repeated, and marked if that does not help. In the simulator (`--on sim`) the same runs take a
/// moment and need nothing. The directory of --out gets summary.json, table.md, report.html
/// with the pictures, and a file per run. An evaluation that was ended goes on when it is called again.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where the schemes run.
    #[arg(long, value_name = "WHERE", default_value = "kernel", value_parser = platform())]
    on: Platform,
    /// What to compare, separated by commas: congestion controls of the kernel or of the simulator (`cubic`, `bbr`, `reno`;
    /// the kernel's others; the simulator's `copa`), `rlcc` (the
    /// policy of --policy), `random`, `heuristic`, `fixed:N` (a window of N segments), or `NAME=FILE.onnx` (another
    /// policy under a name).
    #[arg(long, value_name = "LIST", default_value = "rlcc,cubic,bbr,reno")]
    schemes: String,
    /// Where to compare them, separated by commas: built-in sets (`calibrated`, `pantheon`, …), scenarios of a set
    /// (`SET/NAME`, or `SET/N` from 0), and files in TOML.
    #[arg(long, value_name = "LIST", default_value = "calibrated")]
    scenarios: String,
    /// What `rlcc` serves: a FILE.onnx, `default` (the one that cc-agent embeds), `heuristic`, `random` or `fixed:N`.
    #[arg(long, value_name = "POLICY", default_value = "default")]
    policy: PolicySpec,
    /// How policies of files draw their actions: `greedy`, `softmax` or `softmax:TEMPERATURE` [default: as each file
    /// asks].
    #[arg(long, value_name = "HOW")]
    serving: Option<Serving>,
    /// Length of a run in seconds.
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    seconds: Duration,
    /// Runs of each scheme on each scenario.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Fixes random loss and jitter of the links: they are the same for all schemes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory for the results. Runs that it holds already under the same settings are kept.
    #[arg(long, value_name = "DIR", default_value = "evaluation")]
    out: PathBuf,
    /// Remove the runs that the directory holds, and start anew.
    #[arg(long)]
    fresh: bool,
    /// The agent's program, which serves policies on the kernel [default: cc-agent beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Record what the policies do, each in a directory of its scheme's name in DIR (on the kernel; runs that are kept
    /// are not recorded).
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Runs at the same time: `auto` (as many as leave packets punctual; in the simulator one a core), or a number.
    #[arg(long, value_name = "N", default_value = "auto", value_parser = jobs)]
    jobs: Jobs,
    /// Print a line a second about each run that is going on.
    #[arg(long)]
    live: bool,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer evaluate --schemes cubic,bbr --scenarios pantheon/bdp-1 --seconds 10 --live
      two of the kernel's own on one link
  cc-trainer evaluate --schemes rlcc,cubic --policy policy.onnx --scenarios calibrated,my-links.toml --out results
      a trained policy beside cubic
  cc-trainer evaluate --schemes old=old.onnx,new=new.onnx --scenarios fairness
      two policies
  cc-trainer evaluate --schemes rlcc --serving softmax:1 --scenarios my-links.toml --record recorded
      record what a policy does that tries things out, for `cc-trainer train --from recorded/rlcc`
  cc-trainer evaluate --on sim --schemes rlcc,cubic,bbr,copa --scenarios pantheon --out simulated
      in the simulator, within a minute; `cc-trainer compare` sets that beside figures of the kernel

Measures: throughput counts the payload that receivers got. One-way delay is that of every data packet through the link,
propagation included. Power is throughput over the 95th percentile of that. The exit status is not 0 when a scheme has no valid run on a scenario.";

pub(crate) fn command(args: &Args) -> anyhow::Result<ExitCode> {
    // SAFETY: has no arguments and cannot fail.
    if args.on == Platform::Kernel && unsafe { libc::geteuid() } != 0 {
        bail!(
            "evaluating on the kernel needs root, for network namespaces and TUN devices: run it with sudo, or \
             use --on sim"
        );
    }
    if args.on == Platform::Sim && args.record.is_some() {
        bail!(
            "--record needs the kernel: a simulated run has no agent that records; leave --on sim away"
        );
    }
    let controls = Controls::of(args.on);
    let schemes = evaluate::parse_schemes(&args.schemes, &args.policy, args.serving, controls)?;
    let evaluation = Evaluation {
        on: args.on,
        schemes,
        scenarios: scenario::load(&args.scenarios)?,
        policy: args.policy.clone(),
        serving: args.serving,
        seconds: args.seconds,
        runs: args.runs,
        seed: args.seed,
        jobs: args.jobs,
        dir: args.out.clone(),
        fresh: args.fresh,
        agent: args.agent.clone(),
        record: args.record.clone(),
        command: super::command_line(),
    };
    let cancel = interrupt::on_interrupt()?;
    let mut screen = Screen::new(args.live);
    let outcome = evaluate::evaluate(&evaluation, &cancel, |event| screen.show(event));
    screen.end();
    conclude(&outcome?)
}

fn conclude(outcome: &Outcome) -> anyhow::Result<ExitCode> {
    super::print(format_args!(
        "{}\nsummary: {}\nreport:  {}\n",
        table::text(&outcome.summary),
        outcome.summary_path.display(),
        outcome.report_path.display()
    ))?;
    if outcome.cancelled {
        bail!("ended early; the same command goes on from here");
    }
    let missing = outcome.without_valid_run();
    if !missing.is_empty() {
        let names: Vec<_> = missing
            .iter()
            .map(|(scenario, scheme)| format!("{scheme} on {scenario}"))
            .collect();
        bail!(
            "no valid run of {}: the host was too busy (the runs' reasons are in the summary); leave it alone, or use a \
             smaller --jobs",
            names.join(", ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// What a person sees meanwhile: on a terminal a bar with the time left, and a line per run that has ended.
struct Screen {
    bar: ProgressBar,
    live: bool,
    left: usize,
    ended: usize,
}

impl Screen {
    fn new(live: bool) -> Self {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let style = ProgressStyle::with_template("{bar:40} {msg}, {eta} left");
        Self {
            bar: ProgressBar::with_draw_target(Some(0), target)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
            live,
            left: 0,
            ended: 0,
        }
    }

    fn show(&mut self, event: Event<'_>) {
        match event {
            Event::Begun { left, kept } => {
                self.left = left;
                if kept > 0 {
                    self.say(&format!("{kept} runs are there already, {left} are left"));
                }
                self.count();
            }
            Event::Live { run, live } if self.live => self.say(&live_line(run, &live)),
            Event::Live { .. } => {}
            Event::Ended { run, again } => {
                self.ended += 1;
                self.left += usize::from(again);
                self.say(&run_line(run, again));
                self.count();
            }
            Event::Worked { done, all } => {
                self.bar.set_length(all.as_millis() as u64);
                self.bar.set_position(done.as_millis() as u64);
            }
        }
    }

    fn count(&self) {
        self.bar
            .set_message(format!("{} of {} runs", self.ended, self.left));
    }

    fn say(&self, line: &str) {
        match self.bar.is_hidden() {
            true => super::note(line),
            false => self.bar.println(line),
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn run_line(run: &Run, again: bool) -> String {
    let p95 = run
        .p95_owd_ms
        .map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    let validity = match (run.is_valid(), again) {
        (true, _) => String::new(),
        (false, true) => format!("  INVALID, goes again: {}", run.validity.reasons.join("; ")),
        (false, false) => format!("  INVALID: {}", run.validity.reasons.join("; ")),
    };
    format!(
        "{}  {:.2} Mbit/s  p95 {p95} ms  loss {:.2} %{validity}",
        title(run),
        run.throughput_mbps,
        run.loss_rate * 100.0,
    )
}

fn live_line(run: &Run, live: &Live) -> String {
    let delay = live
        .owd_ms
        .map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    let flows: Vec<_> = live
        .flows_mbps
        .iter()
        .map(|mbps| format!("{mbps:.2}"))
        .collect();
    format!(
        "{}  {:>4.0} s  {} Mbit/s  {delay} ms  loss {:.2} %",
        title(run),
        live.at.as_secs_f64(),
        flows.join(" + "),
        live.loss_rate * 100.0,
    )
}

fn title(run: &Run) -> String {
    format!("{} {} #{}", run.scenario, run.scheme, run.run + 1)
}

/// The library's type has no ties to clap.
fn platform() -> impl TypedValueParser<Value = Platform> {
    PossibleValuesParser::new([
        PossibleValue::new("kernel")
            .help("Emulated links under the running kernel's TCP, in real time"),
        PossibleValue::new("sim").help("The simulator, far faster than real time"),
    ])
    .map(|name| match name.as_str() {
        "sim" => Platform::Sim,
        _ => Platform::Kernel,
    })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let expected = || "expected a number of seconds from 0.1 to 86400".to_owned();
    let seconds = f64::from_str(text).map_err(|_| expected())?;
    match (0.1..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(expected()),
    }
}

fn jobs(text: &str) -> Result<Jobs, String> {
    match text.parse() {
        _ if text == "auto" => Ok(Jobs::Auto),
        Ok(count) if (1..=64).contains(&count) => Ok(Jobs::Count(count)),
        _ => Err("expected `auto` or a number from 1 to 64".into()),
    }
}
