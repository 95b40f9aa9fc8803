//! `cc-trainer abr`: evaluating and serving bitrate selection, playing with a real player, and
//! drawing traces.

mod play;

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, bail};
use cc_abr::{
    generate::{self, Family},
    qoe::{Aim, Qoe},
    session::Rules,
    video::{ENVIVIO_KBPS, Video},
};
use cc_core::{durable::replace_durably, policy::ActionSelection};
use cc_trainer::abr::{
    evaluate::{self, Evaluation, Results},
    policy::BitratePolicy,
    schemes::Scheme,
    serve,
    tabular::{QTable, TabularSettings},
};
use cc_trainer::environment::abr::{
    AbrConfig, AbrWorld, TraceSource, VideoSource, files, video::VideoChoice,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::interrupt;

/// Evaluate and serve what selects the bitrates of videos.
///
/// The rules are Pensieve's (SIGCOMM 2017), at the level of chunks; docs/abr.md has them, and the
/// scores of the classical schemes beside published ones. Policies are learnt by `cc-trainer train`
/// with an environment of kind `abr`.
#[derive(Debug, clap::Args)]
pub(crate) struct AbrArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Evaluate(EvaluateArgs),
    Inspect(InspectArgs),
    Play(Box<play::PlayArgs>),
    Serve(ServeArgs),
    Tabular(TabularArgs),
    Traces(TracesArgs),
}

/// Play a video over traces with several schemes, and compare what viewers get.
///
/// Every session starts at its trace's beginning, without noise. Means are per chunk, the first
/// chunk left out. The directory --out gets abr.json with the score on every trace, and a picture
/// of the distribution over the traces for each quality of experience.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EVALUATE_EXAMPLES)]
struct EvaluateArgs {
    /// Traces: a directory of trace files, or one file. May be given several times; each one is a
    /// set with means of its own. Formats: docs/abr.md#traces.
    #[arg(long, value_name = "PATH", required = true)]
    traces: Vec<PathBuf>,
    /// Schemes, separated by commas: buffer-based, rate-based, bola, bola-finite, mpc, robust-mpc,
    /// robust-mpc-first, mpc-late, robust-mpc-late, fixed:N, optimum, and files of learned policies
    /// (.onnx) and of tables (.json).
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "buffer-based,rate-based,bola,mpc,robust-mpc"
    )]
    schemes: Vec<Scheme>,
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    video: VideoArgs,
    /// Qualities of experience, separated by commas: linear, log, hd. Schemes that plan aim at the
    /// one that they are scored by.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "linear"
    )]
    qoe: Vec<Qoe>,
    /// Penalty for a second of rebuffering [default: 4.3 for linear, 2.66 for log, 8 for hd].
    #[arg(long, value_name = "P")]
    rebuffer_penalty: Option<f64>,
    /// Directory for abr.json and the pictures.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the results as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

const EVALUATE_EXAMPLES: &str = "\
Examples:
  cc-trainer abr traces --family cellular --count 100 --out traces
  cc-trainer abr evaluate --traces traces
      the classical schemes on a hundred generated traces
  cc-trainer abr evaluate --traces traces --schemes robust-mpc,optimum --qoe linear,hd --out abr
      what is left to gain, with the distribution over the traces
  cc-trainer abr evaluate --traces traces --schemes robust-mpc,run/policy.onnx
      a learned policy beside the best classical scheme";

/// Answer the requests of video players over HTTP.
///
/// POST /decide takes all that a decision needs as one JSON object and returns the quality of the
/// next chunk; nothing is kept between requests. The format is in docs/abr.md. GET /health answers
/// as long as the server runs. Ctrl-C ends it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = SERVE_EXAMPLES)]
struct ServeArgs {
    /// Address to listen on. Whoever can reach it can ask; there is no encryption.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8333")]
    listen: SocketAddr,
    /// Scheme that decides, as `abr evaluate` takes it; all but optimum.
    #[arg(long, value_name = "SCHEME", default_value = "robust-mpc")]
    scheme: Scheme,
    #[command(flatten)]
    selection: SelectionArgs,
    /// Quality of experience that schemes which plan aim at: linear, log or hd.
    #[arg(long, value_name = "QOE", default_value = "linear")]
    qoe: Qoe,
    /// Penalty for a second of rebuffering [default: the quality of experience's own].
    #[arg(long, value_name = "P")]
    rebuffer_penalty: Option<f64>,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  cc-trainer abr serve --scheme bola
  curl -d '{\"kbps\": [300, 750, 1200], \"chunk_s\": 4, \"buffer_s\": 9.5, \"chunks_left\": 40,
            \"history\": [{\"quality\": 1, \"bytes\": 381000, \"ms\": 2100}]}' localhost:8333/decide
      {\"quality\":1,\"kbps\":750.0}";

/// Draw traces of throughput from a seed.
///
/// Each trace is a file with lines `TIME_S MBPS`. The same family, seed, number and length give the
/// same trace. What the families are: docs/abr.md#traces.
#[derive(Debug, clap::Args)]
struct TracesArgs {
    /// Family that the traces are drawn from.
    #[arg(long, value_name = "FAMILY", default_value = "cellular", value_parser = family())]
    family: Family,
    /// Number of traces to draw.
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: u64,
    /// Length of each trace, s.
    #[arg(
        long,
        value_name = "S",
        default_value_t = 320,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    seconds: u32,
    /// Seed that determines all traces.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory for the files. It must not have any.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Show what a learned policy's file says of itself.
#[derive(Debug, clap::Args)]
struct InspectArgs {
    /// The file, as `cc-trainer train` wrote it.
    #[arg(value_name = "FILE.onnx")]
    file: PathBuf,
}

/// Learn a table of tabular Q-learning, the simplest learner to compare others with.
///
/// The state is the throughput of the last chunk, the buffer and the last bitrate, each in a few
/// classes. `abr evaluate` takes the file as a scheme.
#[derive(Debug, clap::Args)]
struct TabularArgs {
    /// Traces to learn from: a directory of trace files, or one file. May be given several times.
    #[arg(long, value_name = "PATH", required = true)]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    video: VideoArgs,
    /// Quality of experience that is learnt for: linear, log or hd.
    #[arg(long, value_name = "QOE", default_value = "linear")]
    qoe: Qoe,
    /// Penalty for a second of rebuffering [default: the quality of experience's own].
    #[arg(long, value_name = "P")]
    rebuffer_penalty: Option<f64>,
    /// Number of decisions to learn from.
    #[arg(long, value_name = "N", default_value_t = TabularSettings::default().steps)]
    steps: u64,
    /// Discount of the reward per chunk.
    #[arg(long, value_name = "G", default_value_t = TabularSettings::default().discount)]
    discount: f64,
    /// Seed that determines the table.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// File for the table, ending in .json.
    #[arg(long, value_name = "FILE.json")]
    out: PathBuf,
}

#[derive(Debug, clap::Args)]
struct SelectionArgs {
    /// How learned policies select actions: greedy, softmax or softmax:T [default: what the file
    /// says].
    #[arg(long, value_name = "SELECTION")]
    selection: Option<ActionSelection>,
    /// Seed of the actions that learned policies sample.
    #[arg(long, value_name = "N", default_value_t = 1)]
    selection_seed: u64,
}

impl SelectionArgs {
    fn apply(&self, scheme: &Scheme) -> Scheme {
        match self.selection {
            Some(selection) => scheme.selecting(selection, self.selection_seed),
            None => scheme.clone(),
        }
    }
}

#[derive(Debug, clap::Args)]
struct VideoArgs {
    /// Video: `envivio` (Pensieve's), `generated:SEED`, a file in TOML, or a directory with
    /// Pensieve's files video_size_N.
    #[arg(long, value_name = "VIDEO", default_value = "envivio")]
    video: String,
    /// Bitrates of a generated video or of a directory's files, kbit/s, separated by commas.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_values_t = ENVIVIO_KBPS
    )]
    kbps: Vec<f64>,
    /// Number of chunks of a generated video, or of a directory's files that are played.
    #[arg(long, value_name = "N", default_value_t = 48)]
    chunks: usize,
    /// Length of a chunk of a generated video or of a directory's files, s.
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    chunk_s: f64,
    /// Leave out bitrates of the video: those listed here, kbit/s, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    without: Vec<f64>,
}

fn family() -> impl TypedValueParser<Value = Family> {
    let names = Family::NAMED.map(|(name, _)| name);
    PossibleValuesParser::new(names).map(|name| {
        let named = Family::NAMED.into_iter().find(|(known, _)| *known == name);
        named.map_or(Family::Cellular, |(_, family)| family)
    })
}

pub(crate) fn command(args: &AbrArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Evaluate(args) => evaluate(args),
        Command::Inspect(args) => inspect(args),
        Command::Play(args) => play::command(args),
        Command::Serve(args) => serve(args),
        Command::Tabular(args) => tabular(args),
        Command::Traces(args) => traces(args),
    }
}

impl VideoArgs {
    fn choice(&self) -> VideoChoice {
        VideoChoice {
            video: self.video.clone(),
            kbps: self.kbps.clone(),
            chunks: self.chunks,
            chunk_s: self.chunk_s,
            without: self.without.clone(),
        }
    }

    fn load(&self) -> anyhow::Result<Video> {
        Ok(self.choice().load()?)
    }
}

fn evaluate(args: &EvaluateArgs) -> anyhow::Result<ExitCode> {
    let schemes = args
        .schemes
        .iter()
        .map(|scheme| args.selection.apply(scheme));
    let sets: Result<Vec<_>, _> = args.traces.iter().map(|path| files::traces(path)).collect();
    let evaluation = Evaluation {
        video: Arc::new(args.video.load()?),
        sets: sets?,
        schemes: schemes.collect(),
        aims: evaluate::aims(&args.qoe, args.rebuffer_penalty),
        rules: Rules::PENSIEVE,
        command: super::command_line(),
    };
    let stop = interrupt::on_interrupt()?;
    let bar = super::bar(evaluation.sessions() as u64, "sessions");
    let results = evaluation.run(&stop, &|| bar.inc(1));
    bar.finish_and_clear();
    let results = results?;
    if let Some(out) = &args.out {
        write(out, &results)?;
    }
    if args.json {
        let json = serde_json::to_string_pretty(&results).context("the results")?;
        super::print(format_args!("{json}\n"))?;
    } else {
        super::print(results.table())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(out: &Path, results: &Results) -> anyhow::Result<()> {
    fs::create_dir_all(out).with_context(|| format!("creating {}", out.display()))?;
    let json = serde_json::to_vec_pretty(results).context("the results")?;
    let pictures = results
        .charts()
        .into_iter()
        .map(|(qoe, chart)| (out.join(format!("cdf-{qoe}.svg")), chart.svg().into_bytes()));
    for (path, text) in std::iter::once((out.join("abr.json"), json)).chain(pictures) {
        replace_durably(&path, &text).with_context(|| format!("writing {}", path.display()))?;
        super::note(format_args!("written: {}", path.display()));
    }
    Ok(())
}

fn serve(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let aim = Aim {
        qoe: args.qoe,
        rebuffer_penalty: args.rebuffer_penalty,
    };
    // A penalty that cannot be used is better refused now than at each request.
    aim.metric(&ENVIVIO_KBPS)?;
    let Some(choosers) = args.selection.apply(&args.scheme).choosers(aim) else {
        bail!(
            "{} needs the whole trace beforehand and cannot serve: take another --scheme",
            args.scheme
        );
    };
    let stop = interrupt::on_interrupt()?;
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("listening on {}; is the port free?", args.listen))?;
    let address = listener.local_addr().unwrap_or(args.listen);
    super::note(format_args!(
        "{} answers POST http://{address}/decide; Ctrl-C ends it",
        args.scheme
    ));
    serve::serve(listener, choosers.into(), serve::Limits::default(), &stop)
        .with_context(|| format!("serving on {address}"))?;
    Ok(ExitCode::SUCCESS)
}

fn inspect(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let policy = BitratePolicy::read(&args.file)
        .with_context(|| format!("the policy {}", args.file.display()))?;
    super::print(format_args!("{}\n", policy.meta()))?;
    Ok(ExitCode::SUCCESS)
}

fn tabular(args: &TabularArgs) -> anyhow::Result<ExitCode> {
    if args.out.extension().is_none_or(|ending| ending != "json") {
        bail!(
            "--out {}: name a file that ends in .json, by which `abr evaluate` knows a table",
            args.out.display()
        );
    }
    if !(0.0..=1.0).contains(&args.discount) {
        bail!("--discount {}: give a number from 0 to 1", args.discount);
    }
    let choice = args.video.choice();
    let source = |path: &PathBuf| TraceSource {
        traces: Some(path.clone()),
        ..TraceSource::default()
    };
    let config = AbrConfig {
        sources: args.traces.iter().map(source).collect(),
        actions: choice.load()?.kbps().to_vec(),
        videos: vec![VideoSource {
            choice,
            ..VideoSource::default()
        }],
        qoe: args.qoe,
        rebuffer_penalty: args.rebuffer_penalty,
        ..AbrConfig::default()
    };
    let settings = TabularSettings {
        steps: args.steps,
        discount: args.discount,
        seed: args.seed,
        ..TabularSettings::default()
    };
    let world = Arc::new(AbrWorld::open(config)?);
    let stop = interrupt::on_interrupt()?;
    let bar = super::bar(args.steps, "decisions");
    let table = QTable::learn(world, &settings, &stop, &|steps| bar.set_position(steps));
    bar.finish_and_clear();
    let json = serde_json::to_vec(&table).context("the table")?;
    replace_durably(&args.out, &json).with_context(|| format!("writing {}", args.out.display()))?;
    super::note(format_args!("written: {}", args.out.display()));
    Ok(ExitCode::SUCCESS)
}

fn traces(args: &TracesArgs) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(&args.out).with_context(|| format!("creating {}", args.out.display()))?;
    let mut entries =
        fs::read_dir(&args.out).with_context(|| format!("reading {}", args.out.display()))?;
    if entries.next().is_some() {
        bail!(
            "{} is not empty: what else is there would become part of the set; name a new \
             directory",
            args.out.display()
        );
    }
    for number in 0..args.count {
        let trace = generate::trace(args.family, args.seed, number, args.seconds);
        let path = args.out.join(trace.name());
        fs::write(&path, trace.to_text()).with_context(|| format!("writing {}", path.display()))?;
    }
    super::print(format_args!(
        "{} traces: {}\n",
        args.count,
        args.out.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
