//! `cc-trainer ope`: off-policy evaluation of a policy on recorded flows.

use std::{
    env,
    fs::Permissions,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use cc_core::policy::{ActionSelection, PolicySpec};
use cc_trainer::{
    dataset::Recordings,
    ope::{
        self, Interval, Method, MethodEstimate, OpeEvaluation, OpeSettings,
        recorded::{self, CandidateFlows, MORE_IS_BETTER, TERM_NAMES},
    },
};
use tempfile::NamedTempFile;

use super::{SCRATCH_PARTITION, bar, values::discount};

/// Estimate from recordings what another policy would have earned.
///
/// Asks the candidate at every recorded decision, carrying its recurrent state along each flow, and
/// weights the recorded rewards by how much more probable the recorded action is under the
/// candidate. Seven estimators are computed for throughput, delay, loss and reward, each with a
/// bootstrap interval over flows and an effective sample size. There is no conclusion where the
/// effective sample size is too small, or the recorded policy hardly ever took the candidate's
/// actions. The recorded policy must have sampled its actions (cc-agent run --serving softmax).
///
/// Exit codes: 0 when the candidate's reward is better than the recorded one, 3 when it is worse, 4
/// when there is no conclusion, 1 on an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct OpeArgs {
    /// Recordings: files, or directories of them. Can be given several times.
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    from: Vec<PathBuf>,
    /// Candidate policy: a FILE.onnx, `default`, `heuristic` or `random`.
    #[arg(long, value_name = "POLICY")]
    policy: PolicySpec,
    /// How the candidate would select actions: `greedy`, `softmax`, or `softmax:T` at temperature T
    /// [default: as its file specifies].
    #[arg(long, value_name = "HOW")]
    serving: Option<ActionSelection>,
    /// Number of decisions over which rewards are summed. Flows are cut
    /// into sub-trajectories of this length.
    #[arg(long, value_name = "N", default_value_t = OpeSettings::default().horizon)]
    horizon: usize,
    /// Discount of rewards, per decision.
    #[arg(
        long,
        value_name = "GAMMA",
        default_value_t = OpeSettings::default().discount,
        value_parser = discount
    )]
    discount: f64,
    /// Confidence level of the intervals, between 0 and 1.
    #[arg(long, value_name = "SHARE", default_value_t = OpeSettings::default().confidence)]
    confidence: f64,
    /// Number of bootstrap resamples, at least 20.
    #[arg(long, value_name = "N", default_value_t = OpeSettings::default().resamples)]
    resamples: usize,
    /// Smallest effective sample size, in flows, that allows a conclusion.
    #[arg(long, value_name = "N", default_value_t = OpeSettings::default().least_effective)]
    least_effective: f64,
    /// Largest number of decisions to read, approximately. They are held in memory.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    decisions: usize,
    /// Seed of the folds and resamples.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory for the sorted recordings, about 800 bytes per recorded row [default: the
    /// system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Also write all results to FILE, which must not exist.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer ope --from recordings --policy retrained/policy.onnx
      is the retrained policy better than the recorded one?
  cc-trainer ope --from host1 --from host2 --policy new.onnx --serving softmax:0.5 --horizon 5
      the same policy sampling its actions; a shorter horizon gives a larger effective sample";

pub(crate) fn command(args: &OpeArgs) -> anyhow::Result<ExitCode> {
    if let PolicySpec::Fixed(_) = args.policy {
        bail!(
            "{}: it sets the cwnd directly and chooses no actions, so it cannot be evaluated \
             from recorded actions",
            args.policy
        );
    }
    let settings = OpeSettings {
        horizon: args.horizon,
        discount: args.discount,
        confidence: args.confidence,
        resamples: args.resamples,
        least_effective: args.least_effective,
        seed: args.seed,
        ..OpeSettings::default()
    };
    settings.validate()?;
    let figures = args.json.as_deref().map(FigureFile::create).transpose()?;
    let recordings = Recordings::open(&args.from)?;
    let mut candidate = args
        .policy
        .load(recordings.interface(), args.serving, args.seed)
        .with_context(|| format!("the policy {}", args.policy))?;
    // The recorded rows tell what the candidate would have observed, whatever the recorded policy did.
    let recordings = recordings.with_features_version(candidate.interface().features_version)?;
    recorded::check(&*candidate, recordings.interface())?;
    let scratch = args.scratch.clone().unwrap_or_else(env::temp_dir);
    let reading = bar(recordings.rows(), "rows read");
    let partitions = recordings.partition(&scratch, SCRATCH_PARTITION, &|rows| {
        reading.set_position(rows);
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
            "stretches": evaluation.sub_trajectories,
            "decisions": evaluation.decisions,
            "mean_ratio": evaluation.mean_ratio,
            "terms": named,
        });
        figures.write(&json)?;
    }
    super::print(report(args, &recordings, &taken, &evaluation))?;
    Ok(match conclusion(&evaluation, TERM_NAMES.len() - 1) {
        Conclusion::Better => ExitCode::SUCCESS,
        Conclusion::Worse => ExitCode::from(3),
        Conclusion::Undecided | Conclusion::Refused(_) => ExitCode::from(4),
    })
}

/// A temporary file that becomes the file of `--json` once all results are known.
struct FigureFile {
    path: PathBuf,
    file: NamedTempFile,
}

impl FigureFile {
    /// Creates the file, so that a path that cannot be written is an error before any work is done.
    fn create(path: &Path) -> anyhow::Result<Self> {
        if path.exists() {
            bail!(
                "{} exists already, and nothing is overwritten: choose another file with --json",
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

/// Conclusion about one reward term.
#[derive(Debug, PartialEq)]
enum Conclusion {
    /// The interval of the difference is on the better side of 0.
    Better,
    /// The interval of the difference is on the worse side of 0.
    Worse,
    /// The interval of the difference contains 0.
    Undecided,
    /// The estimate allows no conclusion, for this reason.
    Refused(String),
}

/// Concludes from MAGIC's estimate, whose interval also covers the uncertainty
/// of the fitted Q function.
fn conclusion(evaluation: &OpeEvaluation, term: usize) -> Conclusion {
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

/// Formats the results as tables, one per reward term, each with its conclusion.
fn report(
    args: &OpeArgs,
    recordings: &Recordings,
    taken: &CandidateFlows,
    evaluation: &OpeEvaluation,
) -> String {
    let mut text = format!(
        "{} flows recorded with {}, {} sub-trajectories of {} decisions; \
         mean ratio of probabilities {:.3}\n",
        evaluation.flows,
        recordings.policies().join(", "),
        evaluation.sub_trajectories,
        args.horizon,
        evaluation.mean_ratio
    );
    for (count, what) in [
        (taken.without_probability, "decisions have no probability"),
        (
            taken.without_answer,
            "decisions got no answer from the candidate",
        ),
        (taken.not_looked_at, "decisions were not read (--decisions)"),
    ] {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    }
    for (term, name) in TERM_NAMES.iter().enumerate() {
        let found = &evaluation.terms[term];
        text += &format!(
            "\n{name:<32} {:>28} {:>28} {:>9}\n{:<32} {:>28}\n",
            "per decision",
            "minus recorded",
            "effective",
            "  recorded",
            shown(&found.recorded)
        );
        for MethodEstimate {
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
                "undecided: the interval of the difference contains 0".to_owned()
            }
            Conclusion::Refused(why) => format!("no conclusion: {why}"),
        };
        text += &format!("  candidate: {better}\n");
    }
    text + "\n* allows no conclusion. Step-wise doubly robust averages single decisions in \
            recorded states.\n"
}

/// Formats an estimate with its interval.
fn shown(interval: &Interval) -> String {
    let Interval { value, low, high } = interval;
    let largest = value.abs().max(low.abs()).max(high.abs());
    match largest > 0.0 && largest < 0.01 {
        // Loss in MB per window is typically this small.
        true => format!("{value:.1e} [{low:.1e}, {high:.1e}]"),
        false => format!("{value:.4} [{low:.4}, {high:.4}]"),
    }
}

#[cfg(test)]
mod tests {
    use cc_trainer::ope::{Refusal, Term};

    use super::*;

    fn evaluation(low: f64, high: f64, refusal: Option<Refusal>) -> OpeEvaluation {
        let interval = Interval {
            value: 0.5 * (low + high),
            low,
            high,
        };
        let term = Term {
            recorded: interval,
            estimates: vec![MethodEstimate {
                method: Method::Magic,
                candidate: interval,
                difference: interval,
                effective: 100.0,
                refusal,
            }],
        };
        OpeEvaluation {
            flows: 1,
            sub_trajectories: 1,
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
        let Conclusion::Refused(why) = conclusion(&refused, 3) else {
            panic!("a refused estimate allows no conclusion");
        };
        assert!(why.contains("record more"), "{why}");
    }
}
