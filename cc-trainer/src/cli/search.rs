//! `cc-trainer search`: looks for the links on which a policy loses most.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use cc_core::{
    durable::replace_durably,
    policy::{ActionSelection, PolicySpec},
};
use cc_sim::scenario::families::Family;
use cc_testbed::{
    evaluate::{Controls, Jobs, Scheme, parse_schemes},
    search::{
        self, Check, Checked, Progress, Report, Search, check_path, links_path, links_text,
        report_path, table,
    },
    summary::Platform,
};

use super::{
    interrupt,
    runs::check_privileges,
    screen::{Lines, Screen},
    values::{jobs, platform, seconds, share},
};

/// Look for the links and neighbours with which a policy loses most, in the simulator.
///
/// The search draws links from families, and then moves those on which the policy loses most to the
/// best of the controls of --against, until it has tried as many as --links says. It keeps the
/// worst of each of many regimes (kinds of links in parts of their ranges of rate, RTT and buffer),
/// and runs the worst of these again with other seeds, so that luck does not count. A loss is how
/// many times better the control's power is, or its nearness to the fair share beside other flows,
/// or the balance of several flows of its own.
///
/// The output directory gets worst.toml with the links, which train, evaluate and league read,
/// search.json with every figure, table.md, and runs.jsonl. After Ctrl-C the files hold what has
/// been found, and the same command continues. After a change of the simulator or the datapath use
/// --fresh.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct SearchArgs {
    #[command(subcommand)]
    check: Option<Subcommand>,
    /// The policy: a FILE.onnx, `default` (the one embedded in cc-agent), `heuristic`, `random` or
    /// `fixed:N`.
    #[arg(long, value_name = "POLICY", default_value = "default")]
    policy: PolicySpec,
    /// How a policy from a file selects actions: `greedy` (the most probable one), `softmax`
    /// (sampled) or `softmax:TEMPERATURE` [default: as the file specifies].
    #[arg(long, value_name = "HOW")]
    serving: Option<ActionSelection>,
    /// Congestion controls to lose to, separated by commas, as `cc-trainer evaluate` takes them.
    #[arg(long, value_name = "LIST", default_value = "cubic,bbr,reno,copa")]
    against: String,
    /// Families of links to search, separated by commas: `broad`, `extreme`, `steps`,
    /// `beside-cubic`.
    #[arg(
        long,
        value_name = "LIST",
        default_value = "broad,extreme,steps,beside-cubic"
    )]
    families: String,
    /// Number of links to try.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = count())]
    links: u32,
    /// Try no further links after this time; running the worst again comes on top.
    #[arg(long, value_name = "M", value_parser = minutes)]
    minutes: Option<Duration>,
    /// Number of links to find.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count())]
    worst: u32,
    /// Number of runs of each scheme, with other seeds, that confirm a link.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    runs: u32,
    /// Seed of the search, and of the links' random loss and jitter.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Length of each run, in seconds [default: each link's own, or else 30].
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Directory for the results. Runs that it already holds under the same settings are kept.
    #[arg(long, value_name = "DIR", default_value = "search")]
    out: PathBuf,
    /// Remove the runs that the directory holds, and start over.
    #[arg(long)]
    fresh: bool,
    /// Number of runs at the same time, which does not change the result: `auto` (one per core) or
    /// a number from 1 to 64.
    #[arg(long, value_name = "N", default_value = "auto", value_parser = jobs)]
    jobs: Jobs,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Check(CheckArgs),
}

/// Run the links that a search found under the kernel, and tell which losses are real.
///
/// The policy and the best of those controls that the kernel has run on each link. A loss is real
/// when at least half of it, as logarithms, is there on the kernel as well. Links that the emulator
/// or this host cannot carry are named, and not counted.
///
/// The directory gets check.json, and table.md the verdicts. A check that was ended early continues
/// with the same command. Needs root.
#[derive(Debug, clap::Args)]
struct CheckArgs {
    /// Directory that the search wrote to.
    #[arg(value_name = "DIR", default_value = "search")]
    dir: PathBuf,
    /// Platform to run the links on.
    #[arg(long, value_name = "WHERE", default_value = "kernel", value_parser = platform())]
    on: Platform,
    /// The policy's file, if it is not where the search had it.
    #[arg(long, value_name = "POLICY")]
    policy: Option<PolicySpec>,
    /// Run only this part of the links, from above 0 to 1: a sample that has the rates, RTTs and
    /// buffers of the whole, the same one every time.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    sample: Option<f64>,
    /// Run only links of at most this rate, in Mbit/s.
    #[arg(long, value_name = "MBPS", value_parser = rate)]
    most_mbps: Option<f64>,
    /// Length of each run, in seconds [default: that of the search].
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
    /// Path of the cc-agent program, which serves policies on the kernel
    /// [default: cc-agent beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Number of runs at the same time: `auto` (on the kernel, as many as leave packets punctual;
    /// in the simulator, one per core) or a number from 1 to 64.
    #[arg(long, value_name = "N", default_value = "auto", value_parser = jobs)]
    jobs: Jobs,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer search --out worst
      the hundred worst links of the embedded policy among 2000
  cc-trainer search --policy new.onnx --against cubic,bbr --families broad --minutes 10 --out new
      a policy of yours on plain links, against controls that the kernel has
  sudo cc-trainer search check worst --most-mbps 40 --sample 0.2
      how many of the losses are real, by a fifth of the slower links
  cc-trainer league --scenarios worst/worst.toml --schemes rlcc,cubic,bbr,copa
      all measures on the links that were found

How to read the result: docs/search.md.";

pub(crate) fn command(args: &SearchArgs) -> anyhow::Result<ExitCode> {
    match &args.check {
        Some(Subcommand::Check(args)) => check(args),
        None => find(args),
    }
}

fn find(args: &SearchArgs) -> anyhow::Result<ExitCode> {
    let search = Search {
        policy: Scheme::parse("rlcc", &args.policy, args.serving, Controls::SIMULATOR)?,
        against: match words(&args.against).next() {
            None => Vec::new(),
            Some(_) => parse_schemes(
                &args.against,
                &args.policy,
                args.serving,
                Controls::SIMULATOR,
            )?,
        },
        families: families(&args.families)?,
        links: args.links as usize,
        time: args.minutes,
        worst: args.worst as usize,
        runs: args.runs,
        seed: args.seed,
        seconds: args.seconds,
        jobs: args.jobs,
        dir: args.out.clone(),
        fresh: args.fresh,
        command: super::command_line(),
    };
    let cancel = interrupt::on_interrupt()?;
    let bar = super::bar(search.links as u64, "links");
    let mut tenths = 0;
    let outcome = search::search(&search, &cancel, |progress| match progress {
        Progress::Tried { links, worst } => {
            let worst = worst.map_or_else(String::new, |(kind, times)| {
                format!(", the worst is {kind} (× {times:.1})")
            });
            bar.set_position(links as u64);
            bar.set_message(format!("links{worst}"));
            if bar.is_hidden() && 10 * links / search.links > tenths {
                tenths = 10 * links / search.links;
                super::note(format_args!("{links} of {} links{worst}", search.links));
            }
        }
        Progress::Again { links } => {
            super::note(format_args!("running {links} links again with other seeds"));
        }
    });
    bar.finish_and_clear();
    let outcome = outcome?;
    write(&links_path(&args.out), links_text(&outcome)?.as_bytes())?;
    let json = serde_json::to_vec_pretty(&outcome.report).context("the report")?;
    write(&report_path(&args.out), &json)?;
    show(&args.out, &outcome.report, None)?;
    super::print(format_args!(
        "links:  {}\nreport: {}\n",
        links_path(&args.out).display(),
        report_path(&args.out).display()
    ))?;
    if !outcome.report.is_complete {
        bail!("ended early; the same command continues from here");
    }
    Ok(ExitCode::SUCCESS)
}

fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    check_privileges("a check", args.on)?;
    let asked = Check {
        dir: args.dir.clone(),
        on: args.on,
        policy: args.policy.clone(),
        sample: args.sample,
        most_mbps: args.most_mbps,
        seconds: args.seconds,
        runs: args.runs,
        jobs: args.jobs,
        agent: args.agent.clone(),
        command: super::command_line(),
    };
    let cancel = interrupt::on_interrupt()?;
    let mut screen = Screen::new(Lines::Invalid);
    let outcome = search::check(&asked, &cancel, |event| screen.show(&event));
    screen.end();
    let (report, checked) = outcome?;
    let json = serde_json::to_vec_pretty(&checked).context("the check")?;
    write(&check_path(&args.dir), &json)?;
    show(&args.dir, &report, Some(&checked))?;
    if checked.is_cancelled {
        bail!("ended early; the same command continues from here");
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the table, and prints its first part.
fn show(dir: &Path, report: &Report, checked: Option<&Checked>) -> anyhow::Result<()> {
    let markdown = table::markdown(report, checked);
    write(&dir.join("table.md"), markdown.as_bytes())?;
    super::print(table::text(report, checked) + "\n")
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    replace_durably(path, bytes).with_context(|| format!("writing {}", path.display()))
}

/// The families of a list that is separated by commas, each once.
fn families(list: &str) -> anyhow::Result<Vec<Family>> {
    let mut families: Vec<Family> = Vec::new();
    for word in words(list) {
        let family = word.parse::<Family>().map_err(anyhow::Error::msg);
        let family = family.context("--families")?;
        if !families.contains(&family) {
            families.push(family);
        }
    }
    Ok(families)
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    let words = list.split(',').map(str::trim);
    words.filter(|word| !word.is_empty())
}

/// Parses a number of links from 1 to a million.
fn count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1_000_000)
}

/// Parses a number of minutes from 0.1 to 10080.
fn minutes(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(minutes) if (0.1..=10_080.0).contains(&minutes) => {
            Ok(Duration::from_secs_f64(60.0 * minutes))
        }
        _ => Err("expected a number of minutes from 0.1 to 10080 (a week)".to_owned()),
    }
}

/// Parses a rate above 0, in Mbit/s.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 => Ok(rate),
        _ => Err("expected a rate in Mbit/s above 0, for example 40".to_owned()),
    }
}
