//! `cc-trainer league`: lets many congestion controls play many links, and counts who wins.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use cc_core::durable::replace_durably;
use cc_sim::scenario;
use cc_testbed::{
    evaluate::Evaluation,
    league::{self, Counted, League, Outcome, Property, table},
    report,
    summary::Platform,
};

use super::{
    interrupt,
    runs::{Rlcc, Runs, check_privileges},
    screen::{Lines, Screen},
    values::{platform, property, seconds, share},
};

/// Let many congestion controls play many links, and count who wins.
///
/// Every scheme runs on every link. Each scored segment of a link is a game, won by every scheme
/// that comes within 10 % of the best: by power where a flow has the link for itself, by its
/// nearness to the fair share beside other flows. On `sage-1` and `sage-2` these are the rules and
/// links of Sage's league. A winning rate depends on who plays, so the league is named with it; the
/// absolute score does not.
///
/// The output directory gets league.json, table.md, report.html, league.svg, links.jsonl with what
/// every scheme did on every link, and runs.jsonl with every run. An interrupted league continues
/// when the same command is given again, and one with another scheme more plays that scheme only.
/// After a change of the simulator, the datapath or the kernel use --fresh.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LeagueArgs {
    /// Platform that the schemes run on.
    #[arg(long, value_name = "WHERE", default_value = "sim", value_parser = platform())]
    on: Platform,
    /// Schemes of the league, separated by commas, as `cc-trainer evaluate` takes them. Differences
    /// are those to the first one.
    #[arg(long, value_name = "LIST", default_value = "rlcc,cubic,bbr,reno,copa")]
    schemes: String,
    /// Links to play, separated by commas: built-in sets, members of a set (`SET/NAME`, or
    /// `SET/BEGINNING*` for several), and TOML files. Links that are equal under different names
    /// count once.
    #[arg(long, value_name = "LIST", default_value = "sage-1")]
    scenarios: String,
    /// Play only this part of the links, from above 0 to 1: a sample that has the rates, RTTs and
    /// buffers of the whole, the same one every time.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    sample: Option<f64>,
    /// Measure also the harm to neighbours (Ware et al., HotNets 2019), by further runs of these
    /// alone and among themselves.
    #[arg(long)]
    harm: bool,
    /// Compare the power of every scheme also with the best of these schemes of the league on each
    /// link, and name the links on which the first scheme has less than 0.6 of it. Only links that
    /// a flow has for itself count.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    against: Vec<String>,
    /// Show also the share or the power of every scheme, by which a link is scored, by these
    /// properties of the links, or by their combinations.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = property())]
    by: Vec<Property>,
    #[command(flatten)]
    rlcc: Rlcc,
    /// Length of each run, in seconds [default: each link's own, or else 30].
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Number of runs of each scheme on each link.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    runs: u32,
    /// Count runs that other load on the host disturbed, too, and repeat none: for hosts that are
    /// never calm. The tables say how many they are, and how late packets came.
    #[arg(long)]
    count_disturbed: bool,
    /// Directory for the results. Runs that it already holds under the same settings are kept.
    #[arg(long, value_name = "DIR", default_value = "league")]
    out: PathBuf,
    #[command(flatten)]
    how: Runs,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer league --schemes rlcc,cubic,bbr,reno,copa --scenarios sage-1 --out single
      Sage's Set I: 660 links, 2640 games, in the simulator
  cc-trainer league --schemes rlcc,cubic,bbr,reno,copa --scenarios sage-2 --harm --out beside
      Sage's Set II: each scheme beside a cubic that was there first, and what that costs the cubic
  cc-trainer league --schemes new=new.onnx,old=old.onnx,cubic --scenarios sage-1 --sample 0.1
      two policies on a tenth of the links; the lead of the first has an interval
  cc-trainer league --schemes rlcc,cubic,bbr,reno --against cubic,bbr,reno --scenarios broad
      also the power over the best of cubic, bbr and reno on each link
  cc-trainer league --schemes rlcc,cubic,bbr --scenarios sage-2 --by buffer --out beside
      also each scheme's share beside the cubic by the size of the buffer
  sudo cc-trainer league --on kernel --schemes rlcc,cubic,bbr --scenarios sage-1 --sample 0.05
      33 links under the kernel's own TCP

How to read the result: docs/league.md. The exit status is 1 when a link has no valid run of some
scheme; such links count for nobody.";

pub(crate) fn command(args: &LeagueArgs) -> anyhow::Result<ExitCode> {
    check_privileges("a league", args.on)?;
    let league = League {
        set: args.scenarios.clone(),
        sample: args.sample,
        harm: args.harm,
        against: args.against.clone(),
        by: args.by.clone(),
        counted: match args.count_disturbed {
            true => Counted::Disturbed,
            false => Counted::Valid,
        },
        evaluation: Evaluation {
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
            record: None,
            command: super::command_line(),
        },
    };
    let cancel = interrupt::on_interrupt()?;
    let mut screen = Screen::new(Lines::Invalid);
    let outcome = league::play(&league, &cancel, |event| screen.show(&event));
    screen.end();
    conclude(args, &outcome?)
}

fn conclude(args: &LeagueArgs, outcome: &Outcome) -> anyhow::Result<ExitCode> {
    let Outcome {
        standings,
        board,
        cancelled,
    } = outcome;
    if *cancelled {
        bail!("ended early; the same command continues from here");
    }
    let json = serde_json::to_vec_pretty(standings).context("the standings")?;
    let files = [
        (league::path(&args.out), json),
        (
            args.out.join(league::links::LINKS),
            league::links::lines(board).context("the links")?.into(),
        ),
        (args.out.join("table.md"), table::markdown(standings).into()),
    ];
    for (path, text) in &files {
        replace_durably(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    let page = report::league::write(&args.out, standings, board)?;
    super::print(format_args!(
        "{}\nstandings: {}\nreport:    {}\n",
        table::text(standings),
        files[0].0.display(),
        page.display()
    ))?;
    if !args.by.is_empty() && standings.by.is_empty() {
        super::note(format_args!(
            "--by: no link is scored by a share, nor by the power of several schemes"
        ));
    }
    if !standings.incomplete.is_empty() {
        bail!(
            "{} links have no valid run of some scheme: the host was too busy; stop other load on \
             it, or use a smaller --jobs, and give the same command again; or count what there is \
             with --count-disturbed",
            standings.incomplete.len()
        );
    }
    Ok(ExitCode::SUCCESS)
}
