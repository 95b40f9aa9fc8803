//! `cc-trainer ope`: what another policy would have earned on recorded flows.

use std::{
    env,
    fs::Permissions,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use cc_core::policy::{PolicySpec, Serving};
use cc_trainer::{
    dataset::Recordings,
    ope::{
        self, Estimate, Evaluation, Interval, Method, Settings,
        recorded::{self, MORE_IS_BETTER, TERM_NAMES, Taken},
    },
};
use tempfile::NamedTempFile;

use super::{SCRATCH_PARTITION, bar, dataset::discount};

/// Estimate, from recordings alone, what another policy would have earned.
///
/// Runs the candidate over every recorded flow, its memory included, and weighs what was recorded by how much likelier the
/// candidate would have done it. Seven estimators answer for throughput, delay, loss and reward, each with a bootstrap interval
/// over flows and an effective sample size; where that is too small, or the recording never tried what the candidate would do,
/// there is no conclusion. The recording has to be of a policy that chose by chance.
///
/// Exit codes: 0 when the reward's conclusion is "better", 3 when it is "worse", 4 when there is none, 1 on an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Recordings: files, or directories of them. Can be given several times.
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    from: Vec<PathBuf>,
    /// The candidate: a policy file, `default`, `heuristic` or `random`.
    #[arg(long, value_name = "POLICY")]
    policy: PolicySpec,
    /// How the candidate will be served: `greedy`, `softmax`, or `softmax:T` at temperature T [default: as its file asks].
    #[arg(long, value_name = "HOW")]
    serving: Option<Serving>,
    /// Decisions over which rewards count: the stretches that flows are cut into.
    #[arg(long, value_name = "N", default_value_t = Settings::default().horizon)]
    horizon: usize,
    /// Discount of rewards, a decision.
    #[arg(long, value_name = "GAMMA", default_value_t = Settings::default().discount, value_parser = discount)]
    discount: f64,
    /// Of the intervals.
    #[arg(long, value_name = "SHARE", default_value_t = Settings::default().confidence)]
    confidence: f64,
    /// Resamples of the bootstrap.
    #[arg(long, value_name = "N", default_value_t = Settings::default().resamples)]
    resamples: usize,
    /// The least effective sample size, in flows, that allows a conclusion.
    #[arg(long, value_name = "N", default_value_t = Settings::default().least_effective)]
    least_effective: f64,
    /// Decisions to look at, at most: they are held in memory.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    decisions: usize,
    /// Fixes folds and resamples.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where to sort the recordings, some 800 bytes a row [default: the system's temporary directory].
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Also write all figures to FILE, which must not exist.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer ope --from recordings --policy retrained/policy.onnx
      is it better than what was recorded?
  cc-trainer ope --from host1 --from host2 --policy retrained/policy.onnx --serving softmax:0.5 --horizon 5 --json ope.json
      as it would explore, over shorter stretches: more of the data counts";

pub(crate) fn command(args: &Args) -> anyhow::Result<ExitCode> {
    if let PolicySpec::Fixed(_) = args.policy {
        bail!(
            "{}: it sets a window and chooses no actions, so recorded actions tell nothing about it",
            args.policy
        );
    }
    let settings = Settings {
        horizon: args.horizon,
        discount: args.discount,
        confidence: args.confidence,
        resamples: args.resamples,
        least_effective: args.least_effective,
        seed: args.seed,
        ..Settings::default()
    };
    settings.validate()?;
    let figures = args.json.as_deref().map(Figures::create).transpose()?;
    let recordings = Recordings::open(&args.from)?;
    let mut candidate = args
        .policy
        .load(recordings.environment(), args.serving, args.seed)
        .with_context(|| format!("the policy {}", args.policy))?;
    recorded::check(&*candidate, recordings.environment())?;
    let scratch = args.scratch.clone().unwrap_or_else(env::temp_dir);
    let reading = bar(recordings.rows(), "rows read");
    let partitions = recordings.partition(&scratch, SCRATCH_PARTITION, &|rows| {
        reading.set_position(rows)
    })?;
    reading.finish_and_clear();
    let taken = recorded::flows(&partitions, &mut *candidate, args.decisions)?;
    let evaluation = ope::evaluate(&taken.flows, &settings)?;
    if let Some(figures) = figures {
        let named: serde_json::Map<_, _> = TERM_NAMES
            .iter()
            .zip(&evaluation.terms)
            .map(|(name, term)| ((*name).to_owned(), serde_json::json!(term)))
            .collect();
        let json = serde_json::json!({
            "settings": settings,
            "policy": args.policy.to_string(),
            "recorded": recordings.policies(),
            "flows": evaluation.flows,
            "stretches": evaluation.stretches,
            "decisions": evaluation.decisions,
            "mean_ratio": evaluation.mean_ratio,
            "terms": named,
        });
        figures.write(&json)?;
    }
    super::print(told(args, &recordings, &taken, &evaluation))?;
    Ok(match conclusion(&evaluation, TERM_NAMES.len() - 1) {
        Conclusion::Better => ExitCode::SUCCESS,
        Conclusion::Worse => ExitCode::from(3),
        Conclusion::Undecided | Conclusion::Refused(_) => ExitCode::from(4),
    })
}

/// A file that is to get all figures, and has none before.
struct Figures {
    path: PathBuf,
    file: NamedTempFile,
}

impl Figures {
    /// Whatever is wrong with the place shows before any work is done.
    fn create(path: &Path) -> anyhow::Result<Self> {
        if path.exists() {
            bail!(
                "{} is there already, and nothing is overwritten: choose another file with --json",
                path.display()
            );
        }
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory.unwrap_or(Path::new(".")))
            .with_context(|| format!("creating {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    fn write(mut self, json: &serde_json::Value) -> anyhow::Result<()> {
        let context = || format!("writing {}", self.path.display());
        writeln!(self.file, "{json:#}").with_context(context)?;
        self.file
            .persist_noclobber(&self.path)
            .with_context(context)?;
        Ok(())
    }
}

/// What can be said of a term.
#[derive(Debug, PartialEq)]
enum Conclusion {
    Better,
    Worse,
    /// The interval of the difference holds 0.
    Undecided,
    /// Why not.
    Refused(String),
}

/// By MAGIC, whose interval holds for all that goes before it.
fn conclusion(evaluation: &Evaluation, term: usize) -> Conclusion {
    let estimates = &evaluation.terms[term].estimates;
    let Some(estimate) = estimates.iter().find(|e| e.method == Method::Magic) else {
        return Conclusion::Undecided;
    };
    if let Some(refusal) = &estimate.refusal {
        return Conclusion::Refused(refusal.to_string());
    }
    let Interval { low, high, .. } = estimate.difference;
    match (low > 0.0, high < 0.0) {
        (false, false) => Conclusion::Undecided,
        (up, _) if up == MORE_IS_BETTER[term] => Conclusion::Better,
        _ => Conclusion::Worse,
    }
}

fn told(args: &Args, recordings: &Recordings, taken: &Taken, evaluation: &Evaluation) -> String {
    let mut text = format!(
        "{} flows recorded with {}, {} stretches of {} decisions; mean ratio of probabilities {:.3}\n",
        evaluation.flows,
        recordings.policies().join(", "),
        evaluation.stretches,
        args.horizon,
        evaluation.mean_ratio
    );
    for (count, what) in [
        (taken.without_probability, "decisions have no probability"),
        (
            taken.without_answer,
            "decisions got no answer from the candidate",
        ),
        (
            taken.not_looked_at,
            "decisions were not looked at (--decisions)",
        ),
    ] {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    }
    for (term, name) in TERM_NAMES.iter().enumerate() {
        let found = &evaluation.terms[term];
        text += &format!(
            "\n{name:<32} {:>28} {:>28} {:>9}\n{:<32} {:>28}\n",
            "a decision",
            "less the recorded",
            "effective",
            "  recorded",
            shown(&found.recorded)
        );
        for Estimate {
            method,
            candidate,
            difference,
            effective,
            refusal,
        } in &found.estimates
        {
            text += &format!(
                "  {:<30} {:>28} {:>28} {effective:>8.1}{}\n",
                method.name(),
                shown(candidate),
                shown(difference),
                if refusal.is_some() { "*" } else { "" }
            );
        }
        let better = match conclusion(evaluation, term) {
            Conclusion::Better => "better".to_owned(),
            Conclusion::Worse => "worse".to_owned(),
            Conclusion::Undecided => {
                "cannot be told apart: the interval of the difference holds 0".to_owned()
            }
            Conclusion::Refused(why) => format!("no conclusion: {why}"),
        };
        text += &format!("  candidate: {better}\n");
    }
    text + "\n* allows no conclusion. Step-wise doubly robust counts single decisions in recorded states.\n"
}

fn shown(interval: &Interval) -> String {
    let Interval { value, low, high } = interval;
    let largest = value.abs().max(low.abs()).max(high.abs());
    match largest > 0.0 && largest < 0.01 {
        // Megabytes lost in a window are few.
        true => format!("{value:.1e} [{low:.1e}, {high:.1e}]"),
        false => format!("{value:.4} [{low:.4}, {high:.4}]"),
    }
}

#[cfg(test)]
mod tests {
    use cc_trainer::ope::{Refusal, Term};

    use super::*;

    fn evaluation(low: f64, high: f64, refusal: Option<Refusal>) -> Evaluation {
        let interval = Interval {
            value: 0.5 * (low + high),
            low,
            high,
        };
        let term = Term {
            recorded: interval,
            estimates: vec![Estimate {
                method: Method::Magic,
                candidate: interval,
                difference: interval,
                effective: 100.0,
                refusal,
            }],
        };
        Evaluation {
            flows: 1,
            stretches: 1,
            decisions: 1,
            mean_ratio: 1.0,
            terms: vec![term; 4],
        }
    }

    #[test]
    fn less_delay_is_better_and_less_reward_is_worse() {
        let less = evaluation(-2.0, -1.0, None);
        assert_eq!(conclusion(&less, 1), Conclusion::Better);
        assert_eq!(conclusion(&less, 3), Conclusion::Worse);
        assert_eq!(
            conclusion(&evaluation(1.0, 2.0, None), 3),
            Conclusion::Better
        );
        assert_eq!(
            conclusion(&evaluation(-1.0, 2.0, None), 3),
            Conclusion::Undecided
        );
        let refusal = Refusal::Few {
            effective: 3.0,
            least: 30.0,
        };
        let refused = evaluation(1.0, 2.0, Some(refusal));
        assert!(
            matches!(conclusion(&refused, 3), Conclusion::Refused(why) if why.contains("record more"))
        );
    }
}
