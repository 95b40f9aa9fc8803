//! The running agent: records in, inference on a thread of its own, decisions out.
//!
//! One thread does all I/O: it drains the ring buffer, keeps the [`Agent`], publishes decisions and
//! beats the heartbeat. A second runs the policies. They exchange batches over channels, so that a slow
//! policy delays only its own answers.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc as blocking,
    },
    thread,
    time::{Duration, Instant},
};

use cc_ebpf::{Counter, Record};
use hdrhistogram::Histogram;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{Notify, mpsc, oneshot, watch},
    task,
    time::{MissedTickBehavior, interval, sleep_until},
};
use tracing::{info, warn};

use crate::{
    acks::AckWriter,
    config::Settings,
    deploy::{DeployError, Loaded, Loader},
    kernel::{self, Datapath, clock, priority, sysctl::DefaultCongestionControl},
    record::Run,
    status::{Server, Told},
    view,
};
use cc_core::{
    agent::{Agent, Batch},
    canary::{Arm, CanaryShare, GuardRails},
    policy::{Choice, Policy, PolicySpec},
    status::{CanaryStatus, Command, Outcome, Percentiles, RecordingStatus, Snapshot},
};
use cc_recording::Recorder;

/// Flows in one call of the policy, at most: enough for its full speed, and no flow waits for more.
const BATCH: usize = 256;
/// Records taken between two looks at everything else.
const DRAIN: usize = 4_096;
/// Flows in a snapshot, at most.
const FLOWS_SHOWN: usize = 500;
const VIEW_PERIOD: Duration = Duration::from_millis(200);
const LOG_PERIOD: Duration = Duration::from_secs(5);
/// Commands that wait, at most.
const COMMANDS: usize = 16;
/// Niceness of the thread that loads policies: nobody waits for it but who gave the command.
const LOADER_NICENESS: i32 = 10;

/// Serves until a signal, the duration's end, or `q` in the live view.
pub async fn serve(settings: Settings) -> Result<(), anyhow::Error> {
    let mut shutdown = Shutdown::new()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let duration = settings.duration;
    let show = !settings.plain && std::io::stdout().is_terminal();
    let datapath = Datapath::attach(&settings.datapath)?;
    if let Err(error) = priority::set_niceness(settings.niceness) {
        warn!("the agent keeps its priority, {error}: a busy host will delay decisions");
    }
    let name = settings.datapath.name.clone();
    let default = match settings.default {
        true => Some(DefaultCongestionControl::set(&name)?),
        false => None,
    };
    let server = Server::bind(&settings.socket)?;
    info!(
        "registered {name}; policy {}; {} slots; {} flows adopted",
        settings.policy.text,
        datapath.slots(),
        datapath.adopted()
    );
    // Who looks at a live view is gone when the terminal is; a service is told to reload.
    let ends_at_hangup = show || std::io::stdin().is_terminal() || std::io::stderr().is_terminal();
    let (commands, told) = mpsc::channel(COMMANDS);
    let mut service = Service::new(settings, datapath, default, told)?;
    let latest = service.snapshots.subscribe();
    let view = show.then(|| Screen::start(latest.clone(), shutdown.stop.clone()));
    let answering = tokio::spawn(server.serve(latest, commands));
    shutdown.after(duration);
    let outcome = service
        .run(&mut shutdown, &mut hangup, ends_at_hangup)
        .await;
    answering.abort();
    if let Some(view) = view {
        view.stop();
    }
    drop(service);
    outcome?;
    info!("unregistered {name}");
    Ok(())
}

struct Service {
    // Dropped in this order: the host's default is restored before the name that it has goes.
    _default: Option<DefaultCongestionControl>,
    datapath: Datapath,
    agent: Agent,
    inference: Inference,
    acks: Option<AckWriter>,
    recorder: Option<Recorder>,
    run: Option<Run>,
    policies: Policies,
    commands: mpsc::Receiver<Told>,
    loads: (mpsc::UnboundedSender<Load>, mpsc::UnboundedReceiver<Load>),
    snapshots: watch::Sender<Arc<Snapshot>>,
    started: Instant,
    heartbeat: Duration,
    log: bool,
}

/// What the agent serves, for people.
struct Policies {
    loader: Loader,
    rails: GuardRails,
    spec: PolicySpec,
    text: String,
    candidate: Option<(PolicySpec, String)>,
    /// What became of the last command or trial.
    news: Option<String>,
}

/// A policy that was to be loaded.
struct Load {
    outcome: Result<Loaded, DeployError>,
    /// Its share of the new flows, in percent; none for all flows.
    percent: Option<f64>,
    tell: Option<oneshot::Sender<Outcome>>,
}

impl Service {
    fn new(
        settings: Settings,
        datapath: Datapath,
        default: Option<DefaultCongestionControl>,
        commands: mpsc::Receiver<Told>,
    ) -> Result<Self, anyhow::Error> {
        let policy = settings.policy;
        let interface = policy.policy.interface().clone();
        let mut agent = Agent::new(interface, datapath.slots());
        let (mut recorder, mut run) = (None, None);
        if let Some(options) = settings.record {
            let begun = Run::begin(options.addresses.clone());
            recorder = Some(begun.record(options.limits)?);
            agent.start_recording(begun.episodes(), options.addresses);
            run = Some(begun);
        }
        agent.replace(policy.served(run.as_ref()));
        for flow in datapath.live_flows() {
            agent.adopt(&flow);
        }
        let limit = Duration::from_nanos(settings.datapath.settings.heartbeat_limit_ns);
        let acks = match &settings.per_ack_file {
            Some(path) => Some(AckWriter::create(path)?),
            None => None,
        };
        let log = settings.plain || !std::io::stdout().is_terminal();
        let mut service = Self {
            inference: Inference::start(policy.policy, settings.added_delay, limit),
            policies: Policies {
                loader: settings.loader,
                rails: settings.rails,
                spec: policy.spec,
                text: policy.text.clone(),
                candidate: None,
                news: None,
            },
            run,
            commands,
            loads: mpsc::unbounded_channel(),
            snapshots: watch::Sender::new(Arc::new(Snapshot {
                name: settings.datapath.name,
                version: env!("CARGO_PKG_VERSION").into(),
                pid: std::process::id(),
                policy: policy.text,
                uptime_s: 0.0,
                slots: datapath.slots(),
                live_flows: 0,
                adopted_flows: datapath.adopted(),
                agent: agent.counts(),
                datapath: BTreeMap::new(),
                decision_delay: Percentiles::default(),
                inference: Percentiles::default(),
                mean_batch: 0.0,
                cpu_s: 0.0,
                canary: None,
                news: None,
                recording: None,
                flows: Vec::new(),
            })),
            _default: default,
            datapath,
            agent,
            acks,
            recorder,
            started: Instant::now(),
            heartbeat: (limit / 10).clamp(Duration::from_millis(2), Duration::from_millis(100)),
            log,
        };
        if let Some(canary) = settings.canary {
            info!("{}", service.try_out(canary.candidate, canary.percent));
        }
        service.datapath.beat(clock::now_ns());
        let first = service.snapshot()?;
        service.snapshots.send_replace(Arc::new(first));
        Ok(service)
    }

    async fn run(
        &mut self,
        shutdown: &mut Shutdown,
        hangup: &mut Signal,
        ends_at_hangup: bool,
    ) -> Result<(), anyhow::Error> {
        let readable = self.datapath.records().readiness()?;
        let mut heartbeat = ticker(self.heartbeat);
        let mut snapshot = ticker(VIEW_PERIOD);
        let mut log = ticker(LOG_PERIOD);
        let mut logged: Option<Arc<Snapshot>> = None;
        loop {
            // Not left to the timer alone: while records keep arriving, it would never be waited for.
            self.close_silent_windows();
            if self.agent.has_waiting() && self.inference.is_idle() {
                self.inference.ask(self.agent.take_batch(BATCH));
            }
            let silence = self.agent.silence_due_ns().map(|due_ns| {
                let left = due_ns.saturating_sub(clock::now_ns());
                tokio::time::Instant::now() + Duration::from_nanos(left)
            });
            tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
                _ = hangup.recv() => {
                    if ends_at_hangup {
                        return Ok(());
                    }
                    self.load_again();
                }
                answer = self.inference.answers.recv() => match answer {
                    Some(answer) => self.publish(answer),
                    None => anyhow::bail!("the policy's thread has stopped; see the messages above"),
                },
                guard = readable.readable() => {
                    let mut guard = guard?;
                    if self.take_records() < DRAIN {
                        guard.clear_ready();
                    }
                }
                () = sleep_until(silence.unwrap_or_else(tokio::time::Instant::now)),
                    if silence.is_some() => {}
                _ = heartbeat.tick() => {
                    self.beat();
                    self.take_records();
                    self.take_acks();
                    // All rows of a while at once: to wake the recorder for each would cost more than to write it.
                    self.record();
                    self.datapath.flush_messages();
                }
                Some((command, tell)) = self.commands.recv() => {
                    self.obey(command, tell);
                }
                Some(load) = self.loads.1.recv() => self.loaded(load),
                _ = snapshot.tick() => {
                    self.watch_candidate();
                    let snapshot = self.snapshot()?;
                    self.snapshots.send_replace(Arc::new(snapshot));
                }
                _ = log.tick(), if self.log => {
                    let now = Arc::new(self.snapshot()?);
                    if logged.is_some() {
                        info!("{}", view::log_line(logged.as_deref(), &now));
                    }
                    logged = Some(now);
                }
            }
        }
    }

    fn take_records(&mut self) -> usize {
        let records = self.datapath.records().drain(DRAIN);
        let now_ns = clock::now_ns();
        for bytes in &records {
            match Record::decode(bytes) {
                Ok(record) => {
                    let datapath = &self.datapath;
                    self.agent
                        .on_record(now_ns, &record, |slot| datapath.flow(slot));
                }
                Err(error) => warn!("the datapath sent {error}"),
            }
        }
        records.len()
    }

    fn obey(&mut self, command: Command, tell: oneshot::Sender<Outcome>) {
        let outcome = match command {
            Command::Reload { file } => return self.load(PolicySpec::Onnx(file), None, Some(tell)),
            Command::StartCanary { file, percent } if (0.0..=100.0).contains(&percent) => {
                return self.load(PolicySpec::Onnx(file), Some(percent), Some(tell));
            }
            Command::StartCanary { percent, .. } => Err(format!("{percent} %: expected 0 to 100")),
            Command::Promote => self.promote(),
            Command::Withdraw => self.withdraw("as it was told"),
        };
        self.announce(outcome, Some(tell));
    }

    /// Reads the current policy's file again.
    fn load_again(&mut self) {
        match self.policies.spec.clone() {
            spec @ PolicySpec::Onnx(_) => self.load(spec, None, None),
            spec => {
                let outcome = Err(format!(
                    "policy {spec} is in no file that could be read again"
                ));
                self.announce(outcome, None);
            }
        }
    }

    /// Loads a policy, on another thread: a large one takes longer than a flow may wait.
    fn load(
        &mut self,
        spec: PolicySpec,
        percent: Option<f64>,
        tell: Option<oneshot::Sender<Outcome>>,
    ) {
        let loader = self.policies.loader.clone();
        let running = self.agent.interface().clone();
        let loads = self.loads.0.clone();
        task::spawn_blocking(move || {
            // Best effort, as it is at the start.
            let _ = priority::set_niceness(LOADER_NICENESS);
            let outcome = loader.load_beside(&spec, &running);
            let _ = loads.send(Load {
                outcome,
                percent,
                tell,
            });
        });
    }

    fn loaded(&mut self, load: Load) {
        let outcome = match (load.outcome, load.percent) {
            (Err(error), _) => Err(format!("{error}; the policy stays {}", self.policies.text)),
            (Ok(_), None) if self.policies.candidate.is_some() => {
                Err("a candidate is on trial: promote or withdraw it first".into())
            }
            (Ok(loaded), None) => Ok(self.replace(loaded)),
            (Ok(loaded), Some(percent)) => Ok(self.try_out(loaded, percent)),
        };
        self.announce(outcome, load.tell);
    }

    fn replace(&mut self, loaded: Loaded) -> String {
        self.agent.replace(loaded.served(self.run.as_ref()));
        self.inference
            .order(Order::Install(Arm::Incumbent, loaded.policy));
        self.policies.spec = loaded.spec;
        self.policies.text = loaded.text;
        format!("policy {} decides from now on", self.policies.text)
    }

    fn try_out(&mut self, loaded: Loaded, percent: f64) -> String {
        let candidate = loaded.served(self.run.as_ref());
        let share = CanaryShare::new(percent, clock::now_ns());
        self.agent
            .start_canary(candidate, share, self.policies.rails);
        self.inference
            .order(Order::Install(Arm::Candidate, loaded.policy));
        let told = format!("candidate {} has {percent} % of the new flows", loaded.text);
        self.policies.candidate = Some((loaded.spec, loaded.text));
        told
    }

    fn promote(&mut self) -> Outcome {
        let Some((spec, text)) = self.policies.candidate.take() else {
            return Err("there is no candidate to promote".into());
        };
        self.agent.promote();
        self.inference.order(Order::Promote);
        self.policies.spec = spec;
        self.policies.text = text;
        Ok(format!("candidate {} was promoted", self.policies.text))
    }

    fn withdraw(&mut self, why: &str) -> Outcome {
        let Some((_, text)) = self.policies.candidate.take() else {
            return Err("there is no candidate to withdraw".into());
        };
        self.agent.withdraw();
        self.inference.order(Order::Withdraw);
        Ok(format!("candidate {text} was withdrawn: {why}"))
    }

    /// Takes the candidate's flows back when it breaches a guard rail.
    fn watch_candidate(&mut self) {
        if let Some(breach) = self.agent.breach() {
            let outcome = self.withdraw(&breach.to_string());
            self.announce(outcome, None);
        }
    }

    /// Tells what became of a command or a trial: who gave it, the log, and the status.
    fn announce(&mut self, outcome: Outcome, tell: Option<oneshot::Sender<Outcome>>) {
        match &outcome {
            Ok(text) => info!("{text}"),
            Err(text) => warn!("{text}"),
        }
        self.policies.news = Some(outcome.clone().unwrap_or_else(|text| text));
        if let Ok(snapshot) = self.snapshot() {
            self.snapshots.send_replace(Arc::new(snapshot));
        }
        if let Some(tell) = tell {
            // Who asked may have gone.
            let _ = tell.send(outcome);
        }
    }

    fn record(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.write(self.agent.take_rows());
        }
    }

    fn take_acks(&mut self) {
        if let Some(writer) = &mut self.acks {
            loop {
                let records = self.datapath.acks().drain(DRAIN);
                if records.is_empty() {
                    return;
                }
                writer.write(records);
            }
        }
    }

    fn close_silent_windows(&mut self) {
        let now_ns = clock::now_ns();
        let datapath = &self.datapath;
        self.agent.close_silent(now_ns, |slot| datapath.flow(slot));
    }

    fn publish(&mut self, answer: Answer) {
        self.inference.answered(answer.batch.len(), answer.took);
        let datapath = &self.datapath;
        let publish = |slot, decision| datapath.publish(slot, decision);
        self.agent
            .on_choices(clock::now_ns(), answer.batch, &answer.choices, publish);
    }

    /// A policy that hangs is as good as an agent that is gone: no heartbeat, so that flows fall
    /// back.
    fn beat(&mut self) {
        if !self.inference.hangs() {
            self.datapath.beat(clock::now_ns());
        }
    }

    fn snapshot(&self) -> Result<Snapshot, kernel::Error> {
        let counters = self.datapath.counters()?;
        let fixed = self.snapshots.borrow();
        Ok(Snapshot {
            uptime_s: self.started.elapsed().as_secs_f64(),
            live_flows: self.agent.live(),
            agent: self.agent.counts(),
            datapath: Counter::ALL
                .iter()
                .zip(counters)
                .map(|(counter, value)| (counter.name().to_owned(), value))
                .collect(),
            decision_delay: percentiles(self.agent.delays()),
            inference: percentiles(&self.inference.times),
            mean_batch: self.inference.mean_batch(),
            cpu_s: clock::cpu_s(),
            recording: self.recorder.as_ref().map(|recorder| RecordingStatus {
                rows_lost_unanswered: self.agent.rows_dropped(),
                ..recorder.status()
            }),
            flows: self.agent.views(FLOWS_SHOWN),
            name: fixed.name.clone(),
            version: fixed.version.clone(),
            policy: self.policies.text.clone(),
            canary: self.canary(),
            news: self.policies.news.clone(),
            ..**fixed
        })
    }
}

impl Service {
    fn canary(&self) -> Option<CanaryStatus> {
        let report = self.agent.canary()?;
        let (_, candidate) = self.policies.candidate.clone()?;
        Some(CanaryStatus {
            candidate,
            percent: report.percent,
            flows_needed: self.policies.rails.flows,
            incumbent_flows: report.incumbent,
            candidate_flows: report.candidate,
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The recorder, dropped next, waits until all is written.
        self.agent.stop_recording();
        self.record();
    }
}

/// The policies' thread, as the I/O thread sees it.
struct Inference {
    orders: blocking::Sender<Order>,
    answers: mpsc::UnboundedReceiver<Answer>,
    asked: Option<Instant>,
    limit: Duration,
    /// Of a batch, µs.
    times: Histogram<u64>,
    decided: u64,
}

/// What the policies' thread is to do next.
enum Order {
    Decide(Batch),
    Install(Arm, Box<dyn Policy>),
    /// The candidate becomes the current policy.
    Promote,
    /// There is no candidate any more.
    Withdraw,
}

struct Answer {
    batch: Batch,
    choices: Vec<Choice>,
    took: Duration,
}

impl Inference {
    fn start(mut current: Box<dyn Policy>, added: Duration, limit: Duration) -> Self {
        let (orders, queue) = blocking::channel::<Order>();
        let (answer, answers) = mpsc::unbounded_channel();
        thread::Builder::new()
            .name("policy".into())
            .spawn(move || {
                let mut candidate: Option<Box<dyn Policy>> = None;
                for order in queue {
                    let mut batch = match order {
                        Order::Decide(batch) => batch,
                        Order::Install(Arm::Incumbent, policy) => {
                            current = policy;
                            continue;
                        }
                        Order::Install(Arm::Candidate, policy) => {
                            candidate = Some(policy);
                            continue;
                        }
                        Order::Promote => {
                            current = candidate.take().unwrap_or(current);
                            continue;
                        }
                        Order::Withdraw => {
                            candidate = None;
                            continue;
                        }
                    };
                    let start = Instant::now();
                    let policy = match (batch.arm(), &mut candidate) {
                        (Arm::Candidate, Some(candidate)) => candidate,
                        _ => &mut current,
                    };
                    let choices = policy.decide(&mut batch.queries);
                    if !added.is_zero() {
                        thread::sleep(added);
                    }
                    let took = start.elapsed();
                    let answered = Answer {
                        batch,
                        choices,
                        took,
                    };
                    if answer.send(answered).is_err() {
                        return;
                    }
                }
            })
            .expect("a thread can be started");
        Self {
            orders,
            answers,
            asked: None,
            limit: limit + added,
            times: Histogram::new_with_bounds(1, 60_000_000, 3).expect("constant, valid bounds"),
            decided: 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.asked.is_none()
    }

    fn hangs(&self) -> bool {
        self.asked.is_some_and(|since| since.elapsed() > self.limit)
    }

    fn ask(&mut self, batch: Batch) {
        if !batch.is_empty() {
            self.asked = Some(Instant::now());
            self.order(Order::Decide(batch));
        }
    }

    fn order(&self, order: Order) {
        // A thread that has stopped shows when its answers end.
        let _ = self.orders.send(order);
    }

    fn answered(&mut self, flows: usize, took: Duration) {
        self.asked = None;
        self.times.saturating_record(took.as_micros() as u64);
        self.decided += flows as u64;
    }

    fn mean_batch(&self) -> f64 {
        self.decided as f64 / self.times.len().max(1) as f64
    }
}

/// What ends the agent.
struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    until: Option<tokio::time::Instant>,
    stop: Arc<Notify>,
}

impl Shutdown {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            until: None,
            stop: Arc::new(Notify::new()),
        })
    }

    /// Also ends it after this time, from now.
    fn after(&mut self, duration: Option<Duration>) {
        self.until = duration.map(|duration| tokio::time::Instant::now() + duration);
    }

    async fn requested(&mut self) {
        let until = self.until;
        let time_is_up = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = self.stop.notified() => {}
            () = time_is_up => {}
        }
    }
}

/// The live view, on a thread of its own.
struct Screen {
    thread: thread::JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Screen {
    fn start(latest: watch::Receiver<Arc<Snapshot>>, quit: Arc<Notify>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let source = || Some(latest.borrow().clone());
            if let Err(error) = view::run(source, || stopped.load(Ordering::Relaxed)) {
                warn!("the live view ended: {error}");
            }
            quit.notify_one();
        });
        Self { thread, stop }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.join().is_err() {
            warn!("the live view panicked");
        }
    }
}

fn ticker(period: Duration) -> tokio::time::Interval {
    let mut ticker = interval(period);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticker
}

fn percentiles(micros: &Histogram<u64>) -> Percentiles {
    let at = |quantile| micros.value_at_quantile(quantile) as f64 / 1e3;
    Percentiles {
        count: micros.len(),
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        p999_ms: at(0.999),
        max_ms: micros.max() as f64 / 1e3,
    }
}
