//! The running agent: records in, inference on a thread of its own, decisions out.
//!
//! One thread does all I/O: it drains the ring buffer, keeps the [`Agent`], publishes decisions and
//! beats the heartbeat. A second runs the policy. They exchange batches over channels, so that a slow
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
    signal::unix::{SignalKind, signal},
    sync::{Notify, mpsc, watch},
    time::{MissedTickBehavior, interval, sleep_until},
};
use tracing::{info, warn};

use crate::{
    acks::AckWriter,
    agent::{Agent, Batch},
    config::Settings,
    kernel::{self, Datapath, clock, priority, sysctl::DefaultCongestionControl},
    policy::{Choice, Policy},
    record::Run,
    recording::{Recorder, RecordingStatus},
    status::{Percentiles, Server, Snapshot},
    view,
};

/// Flows in one call of the policy, at most: enough for its full speed, and no flow waits for more.
const BATCH: usize = 256;
/// Records taken between two looks at everything else.
const DRAIN: usize = 4_096;
/// Flows in a snapshot, at most.
const FLOWS_SHOWN: usize = 500;
const VIEW_PERIOD: Duration = Duration::from_millis(200);
const LOG_PERIOD: Duration = Duration::from_secs(5);

/// Serves until a signal, the duration's end, or `q` in the live view.
pub async fn serve(settings: Settings) -> Result<(), anyhow::Error> {
    let mut shutdown = Shutdown::new()?;
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
        settings.policy_text,
        datapath.slots(),
        datapath.adopted()
    );
    let mut service = Service::new(settings, datapath, default)?;
    let latest = service.snapshots.subscribe();
    let view = show.then(|| Screen::start(latest.clone(), shutdown.stop.clone()));
    let answering = tokio::spawn(server.serve(latest));
    shutdown.after(duration);
    let outcome = service.run(&mut shutdown).await;
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
    snapshots: watch::Sender<Arc<Snapshot>>,
    started: Instant,
    heartbeat: Duration,
    log: bool,
}

impl Service {
    fn new(
        settings: Settings,
        datapath: Datapath,
        default: Option<DefaultCongestionControl>,
    ) -> Result<Self, anyhow::Error> {
        let environment = settings.policy.environment().clone();
        let mut agent = Agent::new(environment.clone(), datapath.slots());
        let mut recorder = None;
        if let Some(options) = settings.record {
            let run = Run::begin(options.addresses.clone());
            recorder = Some(run.record(options.limits)?);
            let metadata = settings.policy.file().map(|file| file.meta.clone());
            let header = run.header(environment, &settings.policy_name, metadata);
            agent.record(Arc::new(header), run.episodes(), options.addresses);
        }
        for flow in datapath.live_flows() {
            agent.adopt(&flow);
        }
        let limit = Duration::from_nanos(settings.datapath.heartbeat_limit_ns);
        let acks = match &settings.per_ack_file {
            Some(path) => Some(AckWriter::create(path)?),
            None => None,
        };
        let log = settings.plain || !std::io::stdout().is_terminal();
        let service = Self {
            inference: Inference::start(settings.policy, settings.added_delay, limit),
            snapshots: watch::Sender::new(Arc::new(Snapshot {
                name: settings.datapath.name,
                version: env!("CARGO_PKG_VERSION").into(),
                pid: std::process::id(),
                policy: settings.policy_text,
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
        service.datapath.beat(clock::now_ns());
        let first = service.snapshot()?;
        service.snapshots.send_replace(Arc::new(first));
        Ok(service)
    }

    async fn run(&mut self, shutdown: &mut Shutdown) -> Result<(), anyhow::Error> {
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
            // After the policy has been asked: what follows costs no flow any time.
            self.record();
            let silence = self.agent.silence_due_ns().map(|due_ns| {
                let left = due_ns.saturating_sub(clock::now_ns());
                tokio::time::Instant::now() + Duration::from_nanos(left)
            });
            tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
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
                    self.datapath.flush_messages();
                }
                _ = snapshot.tick() => {
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
        while let Some(id) = self.agent.next_silence(now_ns) {
            if let Some(flow) = self.datapath.flow(id.slot)
                && flow.generation == id.generation
            {
                self.agent.on_silence(now_ns, &flow);
            }
        }
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
            policy: fixed.policy.clone(),
            ..**fixed
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

/// The policy's thread, as the I/O thread sees it.
struct Inference {
    questions: blocking::Sender<Batch>,
    answers: mpsc::UnboundedReceiver<Answer>,
    asked: Option<Instant>,
    limit: Duration,
    /// Of a batch, µs.
    times: Histogram<u64>,
    decided: u64,
}

struct Answer {
    batch: Batch,
    choices: Vec<Choice>,
    took: Duration,
}

impl Inference {
    fn start(mut policy: Box<dyn Policy>, added: Duration, limit: Duration) -> Self {
        let (questions, asked) = blocking::channel::<Batch>();
        let (answer, answers) = mpsc::unbounded_channel();
        thread::Builder::new()
            .name("policy".into())
            .spawn(move || {
                for mut batch in asked {
                    let start = Instant::now();
                    let choices = policy.decide(&mut batch.queries);
                    if !added.is_zero() {
                        thread::sleep(added);
                    }
                    let took = start.elapsed();
                    if answer
                        .send(Answer {
                            batch,
                            choices,
                            took,
                        })
                        .is_err()
                    {
                        return;
                    }
                }
            })
            .expect("a thread can be started");
        Self {
            questions,
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
            // A thread that has stopped shows when its answers end.
            let _ = self.questions.send(batch);
        }
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
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    until: Option<tokio::time::Instant>,
    stop: Arc<Notify>,
}

impl Shutdown {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
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
            _ = self.hangup.recv() => {}
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
