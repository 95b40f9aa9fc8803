//! `cc-trainer loop`: turns the closed loop.

use std::{path::PathBuf, process::ExitCode};

use cc_core::canary::Finding;
use cc_trainer::{
    closed_loop::{
        Loop, LoopEvent, LoopRun,
        config::LoopConfig,
        field::{Field, FieldEvent},
    },
    train::progress::ProgressView,
};

use super::{
    interrupt,
    runs::check_privileges,
    screen::{Lines, Screen},
};

/// Turn the closed loop: record a policy, train a candidate from its recordings, estimate it, try
/// it on live flows, and put it in force or refuse it, turn after turn.
///
/// A candidate that is estimated to be worse is refused. One that is estimated to be better, or of
/// which the estimate says nothing, is tried as a canary, and put in force if no guard rail is
/// breached and none of the metrics is found worse than tolerated. After each turn the policy in
/// force is measured on fresh runs. Nobody chooses anything in between.
///
/// The directory of --out gets loop.json, the state; loop.md, a table with a row a turn; and a
/// directory for each turn with its recordings, its candidate and report.json. A loop that was
/// interrupted or killed continues with the stage that it was in when the same command is given
/// again. On the kernel it needs root, and takes as long as its flows last.
///
/// Exit codes: 0 when all turns are done, whatever became of their candidates; 1 on an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LoopArgs {
    /// Configuration in TOML. Can be omitted to continue the loop in --out.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Directory of the loop. A loop that it already holds is continued.
    #[arg(long, value_name = "DIR", default_value = "loop")]
    out: PathBuf,
    /// Path of the cc-agent program, which serves policies on the kernel
    /// [default: cc-agent beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer train --config cc-trainer/training/calibrated.toml --out first
  sudo cc-trainer loop --config cc-trainer/training/loop.toml --out turned
      five turns on links that the first policy was not trained for, and two policies to refuse
  sudo cc-trainer loop --out turned
      the same loop, continued after an interruption

What each key of the configuration means, and what is refused: docs/retraining.md.";

pub(crate) fn command(args: &LoopArgs) -> anyhow::Result<ExitCode> {
    let run = LoopRun {
        config: args.config.as_deref().map(LoopConfig::load).transpose()?,
        dir: args.out.clone(),
        command: super::command_line(),
    };
    let mut turning = Loop::open(&run)?;
    check_privileges("turning a loop", turning.config().on)?;
    let cancel = interrupt::on_interrupt()?;
    let mut view = View::default();
    let mut watch = |event: FieldEvent<'_>| view.show(event);
    let mut field = Field {
        config: turning.config().clone(),
        links: turning.links().to_vec(),
        agent: args.agent.clone(),
        command: run.command.clone(),
        cancel: &cancel,
        watch: &mut watch,
    };
    turning.run(&mut field, &mut |event| match event {
        LoopEvent::Stage { step, stage, again } => {
            let again = if again { ", once more" } else { "" };
            super::note(format_args!("{step}: {}{again}", stage.name()));
        }
        LoopEvent::Ended { line, .. } => super::note(line),
        _ => {}
    })?;
    super::print(format_args!("{}\n", turning.table().display()))?;
    Ok(ExitCode::SUCCESS)
}

/// What is shown while a stage goes on.
#[derive(Default)]
struct View {
    runs: Option<Screen>,
    training: Option<ProgressView>,
    /// Units that the canary had when a line was last shown.
    units: u64,
}

impl View {
    fn show(&mut self, event: FieldEvent<'_>) {
        match event {
            FieldEvent::Runs(event) => self
                .runs
                .get_or_insert_with(|| Screen::new(Lines::Invalid))
                .show(event),
            FieldEvent::Ran => {
                if let Some(mut screen) = self.runs.take() {
                    screen.end();
                }
            }
            FieldEvent::Training(event) => self
                .training
                .get_or_insert_with(ProgressView::new)
                .show(event),
            FieldEvent::Trained => {
                if let Some(view) = self.training.take() {
                    view.end();
                }
            }
            FieldEvent::Canary(status) => {
                let is_new = status.units() / 5 != self.units / 5;
                self.units = status.units();
                if is_new || status.finding != Finding::Open {
                    super::note(format_args!(
                        "canary at {} %: {} after {} units",
                        status.percent,
                        status.finding,
                        status.units()
                    ));
                }
            }
            _ => {}
        }
    }
}
