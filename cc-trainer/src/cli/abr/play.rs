//! `cc-trainer abr play`: a browser plays a video over an emulated link.

use std::{
    env,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddrV4, TcpListener},
    path::{Path, PathBuf},
    process::{self, Command, ExitCode, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use cc_abr::{
    Chooser, View, dash,
    play::Score,
    qoe::{Aim, Metric, Qoe},
    request::ChooserFor,
    session::{self, Download, Rules},
    trace::Trace,
    video::Video,
};
use cc_core::regular_file;
use cc_testbed::{
    evaluate::{Agent, Control, Scheme as Sender, listener},
    link::{Addresses, Classifier, Limits, Link, LinkObservation, Namespace},
    summary::{Platform, utc_now},
};
use cc_trainer::abr::{
    player::{
        self, Arrived, BROWSERS, DASH_VERSION, Outcome, Report, Selection, Session,
        records::{Chunk, Conditions, Record, Records, Times},
    },
    serve,
};
use cc_trainer::environment::abr::files;
use hyper::body::Bytes;

use super::{
    super::{interrupt, link::init::Contained, runs::Rlcc},
    VideoArgs,
};

/// Where `cargo xtask setup --player` puts dash.js, below the directory of build output.
const DASH_PLACE: &str = "tools/dashjs/package/dist/modern/umd/dash.all.min.js";

/// Largest program text of dash.js, bytes.
const MAX_DASH_BYTES: u64 = 64 << 20;

/// Settings that keep a browser from doing anything but playing the page.
const BROWSER_FLAGS: [&str; 13] = [
    "--headless",
    // It runs as root, within namespaces of its own.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-breakpad",
    "--mute-audio",
    "--autoplay-policy=no-user-gesture-required",
];

/// Port of each server in its network.
const PORT: u16 = 8333;

/// Rate of the link to the server that decides, Mbit/s: fast enough to cost nothing.
const DECISION_MBPS: f64 = 100.0;

/// Packets of that link's queue, which never fills.
const DECISION_QUEUE: u32 = 1000;

/// Time that the browser has to start, beside the video's own.
const START_PATIENCE: Duration = Duration::from_secs(90);

/// Times the video's length that a session may take.
const PATIENCE: f64 = 4.0;

/// How often a session is looked after.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of the browser's log, from its end, that an error shows at most.
const LOG_SHOWN: usize = 2000;

/// Play a video with a real player: dash.js in headless Chromium, over an emulated link.
///
/// The video's server is at one end of a link whose rate follows a trace, and sends by the kernel's
/// TCP with the congestion control of --tcp. The browser is at the other end, in a network of its
/// own. The server of `abr serve` decides in a third network, at a round trip of --decision-rtt-ms;
/// with `--select dash:RULE` a rule of dash.js decides instead.
///
/// All combinations of the lists play, in real time: a session takes as long as its video, less the
/// 60 s that may be in the buffer at its end. Each prints a line of JSON.
///
/// Needs root, iproute2, Chromium and dash.js; `cargo xtask setup --player` installs them.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct PlayArgs {
    /// Traces: a directory of trace files, or one file. May be given several times.
    #[arg(long, value_name = "PATH", required = true)]
    traces: Vec<PathBuf>,
    /// What selects the bitrates, separated by commas: schemes as `abr serve` takes them, and
    /// dash.js's own rules dash:dynamic (its default), dash:bola and dash:throughput, which play
    /// with the buffer that dash.js has by default, or one of S seconds as dash:RULE@S.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "robust-mpc,dash:dynamic"
    )]
    select: Vec<Selection>,
    /// Congestion controls of the video's TCP, separated by commas, as `cc-trainer evaluate
    /// --schemes` takes them.
    #[arg(long, value_name = "LIST", default_value = "cubic")]
    tcp: String,
    #[command(flatten)]
    rlcc: Rlcc,
    /// Slow start after idle (net.ipv4.tcp_slow_start_after_idle) at the video's server, separated
    /// by commas: on, off. bbr does not know it.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "on")]
    slow_start_after_idle: Vec<Switch>,
    /// Round-trip times to the server that decides, ms, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    decision_rtt_ms: Vec<f64>,
    /// Round-trip time of the video's link without a queue, ms.
    #[arg(long, value_name = "MS", default_value_t = Rules::PENSIEVE.rtt_ms)]
    rtt_ms: f64,
    /// Packets that the queue of the video's link holds.
    #[arg(long, value_name = "N", default_value_t = 100)]
    queue_packets: u32,
    #[command(flatten)]
    video: VideoArgs,
    /// Play the first N chunks of the video only.
    #[arg(long, value_name = "N")]
    first_chunks: Option<usize>,
    /// Quality of experience that schemes aim at and sessions are scored by: linear, log or hd.
    #[arg(long, value_name = "QOE", default_value = "linear")]
    qoe: Qoe,
    /// Penalty for a second of rebuffering [default: the quality of experience's own].
    #[arg(long, value_name = "P")]
    rebuffer_penalty: Option<f64>,
    /// The browser [default: chromium, chromium-browser or google-chrome in PATH].
    #[arg(long, value_name = "PATH")]
    browser: Option<PathBuf>,
    /// The file dash.all.min.js of dash.js [default: where `cargo xtask setup --player` puts it].
    #[arg(long, value_name = "PATH")]
    dash: Option<PathBuf>,
    /// The program that serves policies [default: cc-agent beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Seed of the links' random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Leave the chunks out of the lines.
    #[arg(long)]
    brief: bool,
    /// Append the lines to this file instead of printing them, and print a table of all its lines.
    /// Sessions that it has are not played again, unless the host was too busy for them.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Number of sessions at the same time. Each one takes some 5 % of a processor.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer abr traces --family cellular --count 3 --out traces
  cc-trainer abr play --traces traces --tcp rlcc,cubic,bbr --slow-start-after-idle on,off
      our server beside the player's own rules, over each TCP
  cc-trainer abr play --traces traces --select robust-mpc --decision-rtt-ms 0,50,100 --brief
      what a distant server costs";

/// Whether a setting of the kernel is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

/// What all sessions have in common.
struct Setting<'a> {
    args: &'a PlayArgs,
    video: Arc<Video>,
    aim: Aim,
    metric: Metric,
    browser: PathBuf,
    dash: Bytes,
    stop: Arc<AtomicBool>,
}

/// What one session differs in.
struct Run<'a> {
    trace: &'a Arc<Trace>,
    select: &'a Selection,
    /// The congestion control of the video, of `--tcp`.
    sender: &'a Sender,
    /// Its congestion control in the kernel.
    control: &'a str,
    slow_start_after_idle: bool,
    decision_rtt_ms: f64,
}

pub(super) fn command(args: &PlayArgs) -> anyhow::Result<ExitCode> {
    let video = shortened(args.video.load()?, args.first_chunks)?;
    let aim = Aim {
        qoe: args.qoe,
        rebuffer_penalty: args.rebuffer_penalty,
    };
    let metric = aim.metric(video.kbps())?;
    check_sizes(&video)?;
    check_selections(&args.select, aim, &video)?;
    let traces = traces(&args.traces)?;
    let senders = args.rlcc.schemes(&args.tcp, Platform::Kernel)?;
    let kept = args.out.as_deref().map(Records::open).transpose()?;
    let setting = Setting {
        args,
        video: Arc::new(video),
        aim,
        metric,
        browser: find_browser(args.browser.as_deref())?,
        dash: read_dash(args.dash.as_deref())?,
        stop: interrupt::on_interrupt()?,
    };
    let scratch = tempfile::tempdir().context("a scratch directory")?;
    let agents = agents(&senders, args.agent.as_deref(), scratch.path())?;
    let mut runs = runs(args, &traces, &senders, &agents);
    let kept = kept.map(|records| {
        runs.retain(|run| !records.has(&setting.conditions(run)));
        Mutex::new(records)
    });
    setting.play_all(&runs, kept.as_ref())?;
    if let Some(records) = kept {
        let records = records.into_inner().unwrap_or_else(PoisonError::into_inner);
        super::super::print(records.table())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All combinations of the command line's lists.
fn runs<'a>(
    args: &'a PlayArgs,
    traces: &'a [Arc<Trace>],
    senders: &'a [Sender],
    agents: &'a [Option<Agent>],
) -> Vec<Run<'a>> {
    let mut runs = Vec::new();
    for trace in traces {
        for (sender, agent) in senders.iter().zip(agents) {
            for switch in &args.slow_start_after_idle {
                for select in &args.select {
                    let rtts: &[f64] = match select {
                        Selection::Served(_) => &args.decision_rtt_ms,
                        // The player's own rules ask no server.
                        Selection::Own(_) => &[0.0],
                    };
                    runs.extend(rtts.iter().map(|&decision_rtt_ms| Run {
                        trace,
                        select,
                        sender,
                        control: agent.as_ref().map_or(sender.name.as_str(), Agent::control),
                        slow_start_after_idle: *switch == Switch::On,
                        decision_rtt_ms,
                    }));
                }
            }
        }
    }
    runs
}

fn shortened(video: Video, first: Option<usize>) -> anyhow::Result<Video> {
    let Some(first) = first else {
        return Ok(video);
    };
    let of_quality =
        |quality: usize| -> Vec<u32> { video.sizes().iter().map(|sizes| sizes[quality]).collect() };
    let sizes: Vec<Vec<u32>> = (0..video.levels()).map(of_quality).collect();
    let kbps = video.kbps().to_vec();
    Video::new(video.name(), kbps, video.chunk_s(), Some(first), &sizes).context("--first-chunks")
}

/// Checks that every chunk has room for its frames.
fn check_sizes(video: &Video) -> anyhow::Result<()> {
    for chunk in 0..video.chunks() {
        for quality in 0..video.levels() {
            dash::segment(video, chunk, quality)?;
        }
    }
    Ok(())
}

/// Checks that the schemes can decide for the video.
fn check_selections(list: &[Selection], aim: Aim, video: &Video) -> anyhow::Result<()> {
    for select in list {
        let Selection::Served(scheme) = select else {
            continue;
        };
        let Some(choosers) = scheme.choosers(aim) else {
            bail!("{scheme} needs the whole trace beforehand and cannot serve: leave it out");
        };
        if let Err(reason) = choosers(video.kbps()) {
            bail!("{scheme}: {reason}");
        }
    }
    Ok(())
}

fn traces(paths: &[PathBuf]) -> anyhow::Result<Vec<Arc<Trace>>> {
    let mut traces = Vec::new();
    for path in paths {
        traces.extend(files::traces(path)?.traces);
    }
    for trace in &traces {
        let fastest = trace.mbps().iter().copied().fold(0.0, f64::max);
        if fastest > Link::MAX_MBPS {
            bail!(
                "{}: {fastest} Mbit/s are more than the {} Mbit/s of an emulated link: leave the \
                 trace out",
                trace.name(),
                Link::MAX_MBPS
            );
        }
    }
    Ok(traces)
}

/// Starts an agent for each scheme that is a policy.
fn agents(
    senders: &[Sender],
    program: Option<&Path>,
    logs: &Path,
) -> anyhow::Result<Vec<Option<Agent>>> {
    let start = |(number, sender): (usize, &Sender)| match &sender.control {
        Control::Named => Ok(None),
        Control::Policy(policy) => {
            let name = format!("rl{}p{number}", process::id());
            Ok(Some(Agent::start(program, &name, policy, &[], logs)?))
        }
    };
    senders.iter().enumerate().map(start).collect()
}

fn find_browser(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        if !given.is_file() {
            bail!("--browser {}: there is no such file", given.display());
        }
        return Ok(given.to_owned());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = BROWSERS
        .split_whitespace()
        .flat_map(|name| env::split_paths(&path).map(move |dir| dir.join(name)));
    places.find(|place| place.is_file()).with_context(|| {
        format!(
            "no {} in PATH: `cargo xtask setup --player` installs Chromium, or say where it is \
             with --browser PATH",
            BROWSERS.replace(' ', ", ")
        )
    })
}

/// The program text of dash.js.
fn read_dash(given: Option<&Path>) -> anyhow::Result<Bytes> {
    let found = given.map(Path::to_owned).or_else(default_dash);
    let path = found.with_context(|| {
        format!(
            "no dash.js: `cargo xtask setup --player` installs version {DASH_VERSION}, or say \
             where its dash.all.min.js is with --dash PATH"
        )
    })?;
    let text = regular_file::read_to_string(&path, MAX_DASH_BYTES)
        .with_context(|| format!("reading {}", path.display()))?;
    if !text.contains("MediaPlayer") {
        bail!(
            "{} is not dash.js: give its dash.all.min.js",
            path.display()
        );
    }
    Ok(text.into())
}

/// dash.js in the directory of build output that this program lies in.
fn default_dash() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let mut places = program.ancestors().map(|dir| dir.join(DASH_PLACE));
    places.find(|place| place.is_file())
}

impl Setting<'_> {
    /// Plays the sessions, `--jobs` at the same time, and prints or keeps what each was worth.
    /// After an error, and when the user ends it, no further session begins.
    fn play_all(&self, runs: &[Run<'_>], kept: Option<&Mutex<Records>>) -> anyhow::Result<()> {
        let waiting = Mutex::new(runs.iter());
        let failed = AtomicBool::new(false);
        let worker = || {
            while !failed.load(Ordering::Relaxed) {
                let next = waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .next();
                let Some(run) = next else {
                    break;
                };
                let played = self.play(run).with_context(|| {
                    let (select, tcp, trace) = (run.select, &run.sender.name, run.trace.name());
                    format!("{select} over {tcp} on {trace}")
                });
                let shown = played.and_then(|record| show(record, kept));
                if shown.is_err() {
                    failed.store(true, Ordering::Relaxed);
                    return shown;
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.args.jobs).map(|_| scope.spawn(worker)).collect();
            let ends = workers.into_iter().map(|worker| match worker.join() {
                Ok(end) => end,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ends.collect()
        })
    }

    /// What a session plays, and over what.
    fn conditions(&self, run: &Run<'_>) -> Conditions {
        Conditions {
            trace: run.trace.name().to_owned(),
            select: run.select.to_string(),
            tcp: run.sender.name.clone(),
            policy: match &run.sender.control {
                Control::Named => None,
                Control::Policy(policy) => Some(match &policy.sha256 {
                    Some(sha256) => sha256.clone(),
                    None => policy.spec.to_string(),
                }),
            },
            slow_start_after_idle: run.slow_start_after_idle,
            rtt_ms: self.args.rtt_ms,
            queue_packets: self.args.queue_packets,
            decision_rtt_ms: run.decision_rtt_ms,
            video: self.video.name().to_owned(),
            chunks: self.video.chunks(),
            qoe_metric: self.args.qoe.to_string(),
            rebuffer_penalty: self.metric.rebuffer_penalty(),
        }
    }

    /// What the scheme of a session gets in the simulator, on the same trace; `None` for the
    /// player's own rules.
    fn simulated(&self, run: &Run<'_>) -> anyhow::Result<Option<Score>> {
        let Selection::Served(scheme) = run.select else {
            return Ok(None);
        };
        let choosers = scheme.choosers(self.aim).context("it cannot serve")?;
        let chooser = choosers(self.video.kbps()).map_err(|reason| anyhow!("{reason}"))?;
        let rules = Rules {
            rtt_ms: self.args.rtt_ms,
            ..Rules::PENSIEVE
        };
        let session = session::Session::new(self.video.clone(), run.trace.clone(), rules);
        let downloads = cc_abr::play::play(session, &*chooser)?;
        Ok(Some(Score::of(&downloads, &self.metric, self.video.kbps())))
    }

    /// Plays one session, and says what it was worth.
    fn play(&self, run: &Run<'_>) -> anyhow::Result<Record> {
        let args = self.args;
        let scenario = player::link_of(run.trace, args.rtt_ms, args.queue_packets)?;
        let (server, client) = (Namespace::new()?, Namespace::new()?);
        server.slow_start_after_idle(run.slow_start_after_idle)?;
        let addresses = Addresses::nth(0);
        let all = Classifier::SINGLE;
        let link = Link::new(&scenario, &server, &client, addresses, all, args.seed)?;
        let video_address = SocketAddrV4::new(addresses.near, PORT);
        let video_socket = server.within(|| listener(video_address, Some(run.control)))??;
        let page_address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT);
        let page_socket = client.within(|| listener(page_address, None))??;
        let (decider, own) = match run.select {
            Selection::Served(scheme) => {
                let choosers = scheme.choosers(self.aim).context("it cannot serve")?;
                let decider = Decider::new(&client, choosers, run.decision_rtt_ms, args.seed)?;
                (Some(decider), None)
            }
            Selection::Own(own) => (None, Some(*own)),
        };
        let session = Session::new(
            &self.video,
            &Rules::PENSIEVE,
            video_address,
            decider.as_ref().map(|decider| decider.address),
            own,
        );

        let over = AtomicBool::new(false);
        let over = &over;
        let (reports, received) = mpsc::channel();
        let outcome = thread::scope(|scope| {
            // Ends the servers, also after an error.
            let ending = Ending(over);
            let (video, dash) = (self.video.clone(), self.dash.clone());
            let (video_socket, page_socket) = (video_socket.into(), page_socket.into());
            let mut servers = vec![
                scope.spawn(move || player::serve_video(video_socket, video, over)),
                scope.spawn(move || player::serve_page(page_socket, session, dash, reports, over)),
            ];
            if let Some(decider) = &decider {
                let (socket, choosers) = decider.parts()?;
                let limits = serve::Limits::default();
                servers.push(scope.spawn(move || serve::serve(socket, choosers, limits, over)));
            }
            let outcome = self.watch(&client, &received, &link);
            drop(ending);
            for server in servers {
                match server.join() {
                    Ok(served) => served.context("a server of the session")?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            outcome
        })?;
        let observation = link.finish()?;
        let mut disturbances = disturbances(&Limits::of(&scenario), &observation);
        let mut compute_ms = Vec::new();
        if let Some(decider) = decider {
            let (times, more) = decider.finish()?;
            compute_ms = times;
            disturbances.extend(more);
        }
        self.record(run, &outcome, &compute_ms, &observation, disturbances)
    }

    /// Runs the browser until its page has reported. The link's trace begins when the page does.
    fn watch(
        &self,
        client: &Namespace,
        received: &mpsc::Receiver<Report>,
        link: &Link,
    ) -> anyhow::Result<Outcome> {
        let scratch = tempfile::tempdir().context("a scratch directory")?;
        let log = scratch.path().join("browser.log");
        let output = File::create(&log).context("the browser's log")?;
        let profile = scratch.path().join("profile");
        let mut program = Command::new("/proc/self/exe");
        program
            .args(["link", "--as-init", "--"])
            .arg(&self.browser)
            .args(BROWSER_FLAGS)
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("http://127.0.0.1:{PORT}/"))
            // Whatever it writes beside its profile disappears with it.
            .env("HOME", scratch.path())
            .env("XDG_CONFIG_HOME", scratch.path())
            .env("XDG_CACHE_HOME", scratch.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("the browser's log")?)
            .stderr(output);
        let mut browser = Contained::spawn(program, client)?;
        let length_s = self.video.chunk_s() * self.video.chunks() as f64;
        let patience = START_PATIENCE + Duration::from_secs_f64(PATIENCE * length_s);
        let deadline = Instant::now() + patience;
        loop {
            match received.recv_timeout(LOOK_INTERVAL) {
                Ok(Report::Begun) => {
                    link.start();
                }
                Ok(Report::Over(outcome)) => {
                    return outcome.map_err(|error| anyhow!("the page's report: {error}"));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the page's server has ended"),
            }
            if self.stop.load(Ordering::Relaxed) {
                bail!("ended early: this session has no result");
            }
            if browser.try_wait()?.is_some() {
                bail!("the browser has ended; the end of its log:\n{}", tail(&log));
            }
            if Instant::now() > deadline {
                bail!(
                    "the session was not over after {:.0} s; the end of the browser's log:\n{}",
                    patience.as_secs_f64(),
                    tail(&log)
                );
            }
        }
    }

    fn record(
        &self,
        run: &Run<'_>,
        outcome: &Outcome,
        compute_ms: &[f64],
        observation: &LinkObservation,
        disturbances: Vec<String>,
    ) -> anyhow::Result<Record> {
        let downloads = outcome.downloads(&self.video)?;
        let rebuffer_ms: f64 = downloads.iter().map(|one| one.rebuffer_ms).sum();
        let chunk = |(download, arrived): (&Download, &Arrived)| Chunk {
            quality: download.quality,
            bytes: download.bytes,
            ms: download.delay_ms,
            rebuffer_ms: download.rebuffer_ms,
            buffer_s: arrived.buffer_s,
            requested_s: arrived.requested_ms / 1e3,
        };
        let chunks = downloads.iter().zip(&outcome.chunks).map(chunk);
        Ok(Record {
            date: utc_now(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            conditions: self.conditions(run),
            score: Score::of(&downloads, &self.metric, self.video.kbps()),
            simulated: self.simulated(run)?,
            rebuffer_total_s: rebuffer_ms / 1e3,
            stalls: outcome.stalls,
            abandoned: outcome.abandoned,
            startup_s: outcome.startup_ms.unwrap_or_default() / 1e3,
            decision_ms: Times::of(&outcome.decisions),
            compute_ms: Times::of(compute_ms),
            dropped_packets: observation.path.forward.total().dropped.total().packets,
            disturbances,
            dash: outcome.dash.clone(),
            browser: outcome.browser.clone(),
            downloads: match self.args.brief {
                true => Vec::new(),
                false => chunks.collect(),
            },
        })
    }
}

/// Adds a session to the file of `--out`, or prints it.
fn show(record: Record, kept: Option<&Mutex<Records>>) -> anyhow::Result<()> {
    let Some(kept) = kept else {
        let json = serde_json::to_string(&record).context("the results")?;
        return super::super::print(format_args!("{json}\n"));
    };
    let Conditions {
        select, tcp, trace, ..
    } = &record.conditions;
    super::super::note(format_args!(
        "{}: {select} over {tcp} on {trace}: {:.3}",
        record.date, record.score.qoe
    ));
    kept.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .keep(record)?;
    Ok(())
}

/// Ends the servers of a session when it is dropped.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The server that decides, behind a link of its own.
struct Decider {
    link: Link,
    limits: Limits,
    socket: TcpListener,
    address: SocketAddrV4,
    choosers: Arc<ChooserFor>,
    /// Time that each choice took, ms.
    times: Arc<Mutex<Vec<f64>>>,
}

impl Decider {
    /// Makes the server's network and its link to the player's, which is open at once.
    fn new(
        client: &Namespace,
        choosers: Box<ChooserFor>,
        rtt_ms: f64,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let scenario = player::constant_link(DECISION_MBPS, rtt_ms, DECISION_QUEUE)?;
        let own = Namespace::new()?;
        let addresses = Addresses::nth(1);
        let all = Classifier::SINGLE;
        let link = Link::new(&scenario, &own, client, addresses, all, seed)?;
        let address = SocketAddrV4::new(addresses.near, PORT);
        let socket = own.within(|| listener(address, None))??;
        link.start();
        let times = Arc::new(Mutex::new(Vec::new()));
        let recorded = times.clone();
        let choosers = move |kbps: &[f64]| -> Result<Box<dyn Chooser>, String> {
            Ok(Box::new(Timed {
                chooser: choosers(kbps)?,
                times: recorded.clone(),
            }))
        };
        Ok(Self {
            link,
            limits: Limits::of(&scenario),
            socket: socket.into(),
            address,
            choosers: Arc::new(choosers),
            times,
        })
    }

    /// The socket and choosers that the server needs.
    fn parts(&self) -> anyhow::Result<(TcpListener, Arc<ChooserFor>)> {
        let socket = self.socket.try_clone().context("a descriptor")?;
        Ok((socket, self.choosers.clone()))
    }

    /// The time of each choice, ms, and what disturbed the link.
    fn finish(self) -> anyhow::Result<(Vec<f64>, Vec<String>)> {
        let disturbances = disturbances(&self.limits, &self.link.finish()?);
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((times.clone(), disturbances))
    }
}

/// A chooser whose choices are timed.
struct Timed {
    chooser: Box<dyn Chooser>,
    times: Arc<Mutex<Vec<f64>>>,
}

impl Chooser for Timed {
    fn choose(&self, view: &View<'_>) -> usize {
        let began = Instant::now();
        let quality = self.chooser.choose(view);
        let ms = began.elapsed().as_secs_f64() * 1e3;
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.push(ms);
        quality
    }
}

fn disturbances(limits: &Limits, observation: &LinkObservation) -> Vec<String> {
    let disturbances = limits.disturbances(observation);
    disturbances.iter().map(ToString::to_string).collect()
}

/// The end of a log.
fn tail(log: &Path) -> String {
    match fs::read(log) {
        Ok(bytes) => {
            let from = bytes.len().saturating_sub(LOG_SHOWN);
            String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
        }
        Err(error) => format!("(it cannot be read: {error})"),
    }
}
