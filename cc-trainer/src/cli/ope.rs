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
use cc_core::{
    policy::{ActionSelection, PolicyFile, PolicySpec},
    tolerance::Tolerances,
};
use cc_trainer::ope::{
    ClusterBy, Interval, MethodEstimate, OpeSettings, Per, RATIO_CONFIDENCE,
    estimate::{Estimated, Request, estimate},
    recorded::TERM_NAMES,
    verdict::{Conclusion, TermFinding, Verdict},
};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tempfile::NamedTempFile;

use super::{bar, joined::JoinArgs, values::discount};

/// Index of the reward among the terms.
const REWARD: usize = TERM_NAMES.len() - 1;

/// Estimate from recordings what another policy would have earned.
///
/// Asks the candidate at every recorded decision, carrying its recurrent state along each flow, and
/// weights the recorded rewards by how much more probable the recorded action is under the
/// candidate. Seven estimators are computed for throughput, delay, loss and reward, each with a
/// bootstrap interval over clusters of flows and an effective sample size. There is no conclusion
/// where the effective sample size is too small, where the estimate rests on the fitted model alone
/// or contradicts it, or where the recorded probabilities and actions do not fit together. The
/// recorded policy must have sampled its actions (cc-agent run --serving softmax).
///
/// Exit codes: 0 when the candidate's reward is better than the recorded one and none of
/// throughput, delay, loss and silence is worse by more than a canary tolerates; 3 when the reward
/// is worse or one of these is; 4 when there is no conclusion; 1 on an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct OpeArgs {
    /// Recordings: files, or directories of them. Can be given several times.
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    from: Vec<PathBuf>,
    /// Candidate policy: a FILE.onnx, `default`, `heuristic` or `random`.
    #[arg(long, value_name = "POLICY")]
    policy: PolicySpec,
    /// Recorded policy to compare with, where several are in the recordings, as after a canary: its
    /// file, or its identifier or the beginning of it.
    #[arg(long, value_name = "POLICY")]
    of: Option<String>,
    /// What flows that may depend on each other have in common. Such clusters, and not flows, count
    /// as independent of each other [default: the safest that the recording supports].
    #[arg(long, value_name = "KIND", value_parser = clusters())]
    cluster: Option<ClusterBy>,
    /// How the candidate would select actions: `greedy`, `softmax`, or `softmax:T` at temperature T
    /// [default: as its file specifies].
    #[arg(long, value_name = "HOW")]
    serving: Option<ActionSelection>,
    /// Number of decisions over which rewards are summed. Flows are cut
    /// into sub-trajectories of this length.
    #[arg(long, value_name = "N", default_value_t = OpeSettings::default().horizon)]
    horizon: usize,
    /// What means are taken over. Over time, a decision counts with the time in which it was in
    /// force, so that silence has its price.
    #[arg(long, value_name = "UNIT", default_value = "second", value_parser = units())]
    per: Per,
    /// Discount of rewards over a window of the policy, or over a decision with `--per decision`.
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
    /// Make intervals that stay valid however often a growing recording is evaluated, from CLUSTERS
    /// clusters on. They are wider, and narrowest there; it must be the same number every time.
    #[arg(
        long,
        value_name = "CLUSTERS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "100"
    )]
    anytime: Option<usize>,
    /// Smallest effective sample size, in clusters, that allows a conclusion.
    #[arg(long, value_name = "N", default_value_t = OpeSettings::default().least_effective)]
    least_effective: f64,
    /// Largest number of decisions to read, approximately. They are held in memory.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    decisions: usize,
    /// Seed of the folds and resamples.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    application: JoinArgs,
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
      the same policy sampling its actions; a shorter horizon gives a larger effective sample
  cc-trainer ope --from canary --of current.onnx --policy new.onnx --cluster path
      from the flows of one arm of a canary; flows to the same network count as one cluster
  cc-trainer ope --from day1 --from day2 --policy new.onnx --cluster hour --anytime=200
      asked again with every further day, until it concludes
  cc-trainer ope --from recordings --policy new.onnx --join served.parquet --weigh stalls_s=-3
      also of what the application measured, with a weight in the reward";

/// Parses a kind of cluster here, so that the library's type does not depend on clap.
fn clusters() -> impl TypedValueParser<Value = ClusterBy> {
    let help = |by: ClusterBy| match by {
        ClusterBy::Flow => "The flow: flows count as independent of each other",
        ClusterBy::Path => "The remote network (/24 of IPv4, /48 of IPv6), or hashed address",
        ClusterBy::Host => "The directory of the recording, since each agent has its own",
        ClusterBy::Hour => "That directory, and the hour in which the flow began",
    };
    let values = ClusterBy::ALL.map(|by| PossibleValue::new(by.name()).help(help(by)));
    PossibleValuesParser::new(values).map(|name| {
        let named = ClusterBy::ALL.into_iter().find(|by| by.name() == name);
        named.unwrap_or_else(|| unreachable!("one of the possible values: {name}"))
    })
}

/// Parses what means are taken over.
fn units() -> impl TypedValueParser<Value = Per> {
    PossibleValuesParser::new([
        PossibleValue::new("second").help("Time: sums of amounts over sums of seconds"),
        PossibleValue::new("decision").help("Decisions, however long each was in force"),
    ])
    .map(|name| match name.as_str() {
        "second" => Per::Second,
        _ => Per::Decision,
    })
}

pub(crate) fn command(args: &OpeArgs) -> anyhow::Result<ExitCode> {
    let request = Request {
        from: args.from.clone(),
        policy: args.policy.clone(),
        serving: args.serving,
        of: identifier(args.of.as_deref())?,
        cluster: args.cluster,
        settings: OpeSettings {
            horizon: args.horizon,
            per: args.per,
            discount: args.discount,
            confidence: args.confidence,
            resamples: args.resamples,
            least_effective: args.least_effective,
            anytime: args.anytime,
            seed: args.seed,
            ..OpeSettings::default()
        },
        decisions: args.decisions,
        joined: args.application.read()?,
        scratch: args.scratch.clone().unwrap_or_else(env::temp_dir),
    };
    request.settings.validate()?;
    let figures = args.json.as_deref().map(FigureFile::create).transpose()?;
    let reading = bar(0, "rows read");
    let estimated = estimate(&request, &|rows, all| {
        reading.set_length(all);
        reading.set_position(rows);
    });
    reading.finish_and_clear();
    let estimated = estimated?;
    let verdict = Verdict::new(
        &estimated.evaluation,
        &estimated.taken.terms,
        &Tolerances::default(),
    );
    if let Some(figures) = figures {
        figures.write(&json(args, &estimated, &verdict))?;
    }
    super::print(report(args, &estimated, &verdict))?;
    Ok(match verdict.conclusion {
        Conclusion::Better => ExitCode::SUCCESS,
        Conclusion::Worse => ExitCode::from(3),
        Conclusion::None => ExitCode::from(4),
    })
}

/// All figures of an estimate, which `--json` prints.
fn json(args: &OpeArgs, estimated: &Estimated, verdict: &Verdict) -> serde_json::Value {
    let evaluation = &estimated.evaluation;
    let named: serde_json::Map<_, _> = (estimated.taken.terms.iter())
        .zip(&evaluation.terms)
        .map(|((name, _), term)| (name.clone(), serde_json::json!(term)))
        .collect();
    serde_json::json!({
        "settings": estimated.settings,
        "policy": args.policy.to_string(),
        "of": estimated.of,
        "recorded": estimated.policies,
        "flows": evaluation.flows,
        "cluster": estimated.by,
        "clusters": evaluation.clusters,
        "effective_clusters": evaluation.effective_clusters,
        "stretches": evaluation.sub_trajectories,
        "left_out": evaluation.left_out,
        "left_out_within_s": evaluation.left_out_within_s,
        "decisions": evaluation.decisions,
        "mean_ratio": evaluation.mean_ratio.value,
        "mean_ratio_interval": evaluation.mean_ratio,
        "terms": named,
        "verdict": verdict,
    })
}

/// Returns the identifier of the policy that `--of` names: that of a file, or the text itself.
fn identifier(of: Option<&str>) -> anyhow::Result<Option<String>> {
    let Some(text) = of else { return Ok(None) };
    let path = Path::new(text);
    if !path.is_file() {
        return Ok(Some(text.to_owned()));
    }
    let file = PolicyFile::read(path).with_context(|| format!("the policy {text}"))?;
    Ok(Some(file.summary().sha256.clone()))
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

/// Formats the results as tables, one per reward term, each with its conclusion.
fn report(args: &OpeArgs, estimated: &Estimated, verdict: &Verdict) -> String {
    let Estimated {
        of,
        by,
        unmatched,
        taken,
        evaluation,
        ..
    } = estimated;
    let Interval { value, low, high } = evaluation.mean_ratio;
    let mut text = format!(
        "{} flows recorded with {of}, {} sub-trajectories of {} decisions\n\
         {} clusters (by {by}), worth {:.1} of equal size\n\
         mean ratio of probabilities {value:.3} [{low:.3}, {high:.3}] ({:.0}%)\n",
        evaluation.flows,
        evaluation.sub_trajectories,
        args.horizon,
        evaluation.clusters,
        evaluation.effective_clusters,
        100.0 * RATIO_CONFIDENCE,
    );
    if *by == ClusterBy::Flow {
        text += "flows count as independent of each other: intervals are too narrow if they shared \
                 links\n";
    }
    if args.anytime.is_some() {
        text += "intervals hold at all looks at a growing recording together\n";
    }
    let per = match args.per {
        Per::Second => "mean over time",
        Per::Decision => "per decision",
    };
    for (count, what) in [
        (taken.without_probability, "decisions have no probability"),
        (
            taken.without_answer,
            "decisions got no answer from the candidate",
        ),
        (taken.not_looked_at, "decisions were not read (--decisions)"),
        (
            *unmatched as usize,
            "flows are left out, of which the file of --join has no row",
        ),
    ] {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    }
    if evaluation.left_out > 0 {
        text += &format!(
            "{} sub-trajectories are left out that began within {:.1} s of the end of a flow's \
             recording, where others are cut off\n",
            evaluation.left_out, evaluation.left_out_within_s
        );
    }
    for (term, (name, _)) in taken.terms.iter().enumerate() {
        let found = &evaluation.terms[term];
        text += &format!(
            "\n{name:<32} {:>28} {:>28} {:>9}\n{:<32} {:>28}\n",
            per,
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
        let judged = &verdict.terms[term];
        let tolerated = match judged.finding {
            TermFinding::NotWorse | TermFinding::Worse | TermFinding::Open if term < REWARD => {
                format!(" ({:+.4} is tolerated)", judged.tolerated)
            }
            TermFinding::Open => ": the interval of the difference contains 0".to_owned(),
            _ => String::new(),
        };
        text += &format!("  candidate: {}{tolerated}\n", judged.finding);
    }
    text += &format!("\nverdict: {}", verdict.conclusion);
    if verdict.conclusion != Conclusion::Better {
        text += &format!(" ({})", verdict.reasons().join("; "));
    }
    text + "\n\n* allows no conclusion. Step-wise doubly robust averages single decisions in \
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
