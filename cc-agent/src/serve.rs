//! `cc-agent run`: the event loop.
//!
//! One thread does all I/O: it takes records from the ring buffer, keeps the [`Agent`], publishes
//! decisions, sets the heartbeat and answers commands. What is due by the clock, such as the
//! heartbeat, is done at each turn of the loop, and each turn does a limited amount of other work:
//! however many records come, the heartbeat, the commands and the status stay in time. Each policy
//! runs in a process of its own ([`crate::inference`]), and policies are loaded on further threads
//! ([`loads`]), so that the event loop never waits for either.
//!
//! The loop reaches the kernel only through [`DatapathIo`], which its tests implement in memory.
//!
//! [`Agent`]: cc_core::agent::Agent

mod datapath;
mod health;
mod loads;
mod reclaim;
mod service;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod traces;

use std::{
    future::pending,
    io::{self, IsTerminal},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use nix::net::if_::if_nametoindex;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use self::{
    datapath::{DatapathIo, KernelDatapath},
    loads::{Load, LoadQueue, Purpose, Requester},
    service::{DRAIN, Remedy, Service},
};
use crate::{
    deploy::load_again,
    history::History,
    kernel::{
        Datapath, clock,
        privileges::{self, Capabilities},
        sysctl::{self, DefaultCongestionControl},
    },
    ledger::Ledger,
    notify::Notifier,
    promoted::Memory,
    recording_setup::RecordingSettings,
    remote,
    settings::Settings,
    shutdown::{Shutdown, received},
    status::{CommandRequest, FlowsRequest, Peer, Server, SuccessorRequest, TraceRequest},
    takeover::{Predecessor, Successor},
    view,
};
use cc_client::fetch;
use cc_core::{
    policy::PolicySpec,
    status::{Command, Health, Outcome, Snapshot},
};

/// Time between two snapshots for `status`, `top` and the live view.
const SNAPSHOT_PERIOD: Duration = Duration::from_millis(200);
/// Time between two comparisons of the agent's flows with the datapath's.
const RECONCILIATION_PERIOD: Duration = Duration::from_secs(1);
/// Time between two log lines.
const LOG_PERIOD: Duration = Duration::from_secs(5);
/// Questions for flows in an order that are answered in a heartbeat, at most: each goes through all
/// flows.
const QUESTIONS: usize = 2;
/// Commands that may wait for the event loop; further ones are refused.
const COMMANDS: usize = 16;

/// Registers the congestion control and serves its flows until a signal, the end of the duration,
/// or `q` in the live view.
///
/// # Errors
///
/// Returns an error when the host refuses the datapath, when the socket, the recording or the file
/// for ACKs cannot be created, when a thread cannot be started, or when the host's default cannot
/// be restored at the end.
pub async fn serve(mut settings: Settings) -> Result<(), anyhow::Error> {
    let name = settings.datapath.name.clone();
    let socket = settings.socket.clone();
    let duration = settings.duration;
    let is_default = settings.default;
    let keep = settings.capabilities_to_keep();
    let on_terminal = io::stdout().is_terminal();
    let show = !settings.plain && on_terminal;
    let log = settings.plain || !on_terminal;
    let hangup = signal(SignalKind::hangup())?;
    let mut signals = vec![SignalKind::interrupt(), SignalKind::terminate()];
    // A terminal that is closed takes the agent with it; a service's SIGHUP means to reload.
    let mut reload = None;
    if show || io::stdin().is_terminal() || io::stderr().is_terminal() {
        signals.push(SignalKind::hangup());
    } else {
        reload = Some(hangup);
    }
    let mut shutdown = Shutdown::on_signals(&signals, keep).context("waiting for signals")?;
    let predecessor = match settings.takeover {
        true => Predecessor::find(&socket)?,
        false => None,
    };
    let instead = settings.serve_what_was_gone_back_to(&Ledger::of(&name, &socket));
    let mut cgroups = Vec::new();
    if predecessor.is_some() && settings.datapath.cgroups_by_command {
        // It takes no commands about cgroups any more.
        cgroups = fetch(&socket)?.cgroups.unwrap_or_default();
    }
    let server = match &predecessor {
        Some(_) => Server::draft(&socket, settings.socket_group)?,
        None => Server::prepare(&socket, settings.socket_group)?,
    };
    match sysctl::heal(&name, &socket) {
        Ok(healed) => healed.iter().for_each(|restored| {
            warn!("what an agent that was killed has left is undone: {restored}");
        }),
        Err(error) => warn!("what a killed agent may have left is not undone: {error}"),
    }
    for (device, _) in &settings.datapath.scope.devices {
        if if_nametoindex(device.to_string().as_str()).is_err() {
            warn!("there is no network device {device} here yet");
        }
    }
    if settings.datapath.scope.leaves() {
        let other = sysctl::default_without(&name, &socket);
        settings.served += &format!("; others have {other}");
        settings.datapath.scope.other = other;
    }
    let (mut predecessor, inheritance) = predecessor.unzip();
    let mut datapath = match inheritance {
        Some(inheritance) => Datapath::inherit(&settings.datapath, inheritance)?,
        None => Datapath::load(&settings.datapath)?,
    };
    // Its thread may have to take another identity, for which it needs capabilities.
    let recording = settings.recording.take();
    let recording = recording.map(RecordingSettings::begin).transpose()?;
    // Before the policy's thread starts, which has no more than this one.
    if settings.keep_capabilities {
        info!("all capabilities are kept");
    } else if let Err(error) = privileges::keep_only(keep) {
        warn!("the agent keeps its capabilities: {error}");
    }
    let memory = Memory::of(&name, &socket);
    let differs = instead.or_else(|| memory.differs(&settings.policy.name));
    let first_candidate = settings
        .canary
        .as_ref()
        .map(|canary| canary.candidate.name.clone());
    // A predecessor's commands are in it that came in the meantime.
    let ledger = Ledger::of(&name, &socket);
    let (commands, requests) = mpsc::channel(COMMANDS);
    // From here until it is confirmed that this agent serves, flows are without decisions.
    if let Some(predecessor) = &mut predecessor {
        predecessor.release()?;
        datapath.resume()?;
    }
    let last_beat_ns = datapath.last_beat_ns().filter(|_| predecessor.is_some());
    let adopted = datapath.adopted();
    let registered = format!(
        "registered {name}; {} {}; {} slots; {adopted} flows adopted",
        if settings.remote.is_some() {
            "local policy"
        } else {
            "policy"
        },
        settings.policy.text,
        datapath.slots(),
    );
    // Everything is ready to serve before the name can be chosen.
    let mut service = Service::start(settings, recording, KernelDatapath::new(datapath)?, adopted)?;
    service.datapath.register()?;
    service.inherit_cgroups(&cgroups);
    service.takeover_gap_ms =
        last_beat_ns.map(|last_ns| clock::now_ns().saturating_sub(last_ns) as f64 / 1e6);
    let succeeds = predecessor.is_some();
    if let Some(predecessor) = predecessor {
        predecessor.confirm(is_default)?;
    }
    let mut default = None;
    if is_default {
        let changed = DefaultCongestionControl::set(&name, &socket)?;
        let last = changed.clone();
        service.datapath.hold(changed.clone());
        shutdown.before_exit(move || {
            last.restore();
        });
        service.default = Some(name.clone());
        default = Some(changed);
    }
    let (traces, followers) = mpsc::channel(COMMANDS);
    let mut server = match succeeds {
        true => server.replace()?,
        false => server.publish()?,
    };
    server.offer_traces(traces);
    let (flows, questions) = mpsc::channel(COMMANDS);
    server.offer_flows(flows);
    let (successors, succession) = mpsc::channel(1);
    server.offer_succession(successors);
    let leaver = server.leaver();
    if let Some(gap_ms) = service.takeover_gap_ms {
        info!("took over from the running agent; {gap_ms:.1} ms without a heartbeat");
    }
    info!("{registered}; capabilities: {}", held_capabilities());
    if let Some(differs) = &differs {
        warn!("{differs}");
    }
    service.differs = differs;
    service.history = History::of(&name);
    service.history.begin(&registered);
    service.begin_ledger(ledger);
    let mut event_loop = EventLoop::new(service, requests, reload, log)?;
    event_loop.memory = Some(memory);
    event_loop.candidate = first_candidate;
    event_loop.followers = Some(followers);
    event_loop.questions = Some(questions);
    event_loop.succession = Some(succession);
    event_loop.default = default.clone();
    let notifier = Notifier::from_environment();
    match succeeds {
        true => notifier.succeeded(),
        false => notifier.ready(),
    }
    event_loop.manager = Some(notifier);
    let latest = event_loop.snapshots.subscribe();
    let screen =
        show.then(|| view::Screen::start(latest.clone(), socket.clone(), shutdown.stopper()));
    let answering = tokio::spawn(server.serve(latest, commands));
    shutdown.after(duration);
    let outcome = event_loop.run(&mut shutdown).await;
    shutdown.ending();
    let successor = match &outcome {
        Ok(End::Succeeded(successor)) => Some(*successor),
        _ => None,
    };
    match &event_loop.manager {
        // The service goes on.
        _ if successor.is_some() => leaver.leave(),
        Some(manager) => manager.stopping(),
        None => {}
    }
    answering.abort();
    if let Some(screen) = screen {
        screen.stop();
    }
    if successor.is_none() {
        event_loop.service.history.end();
    }
    drop(event_loop);
    outcome?;
    match successor {
        Some(successor) => info!("{successor} has taken over"),
        None => info!("unregistered {name}"),
    }
    // It may have been refused when it was tried first.
    if default.is_some_and(|default| !default.restore()) {
        bail!(
            "{name} stays the default congestion control; `cc-agent restore` restores the former"
        );
    }
    Ok(())
}

/// Why an agent's event loop ends, other than by an error.
enum End {
    /// It was asked to, or its time is up.
    Asked,
    /// This process serves in its place.
    Succeeded(Peer),
}

/// The capabilities of this thread, as the log and the status show them.
fn held_capabilities() -> String {
    match Capabilities::held() {
        Some(held) => held.to_string(),
        None => "not known".into(),
    }
}

/// What a running agent waits for, and whom it reports to.
struct EventLoop<D: DatapathIo> {
    service: Service<D>,
    commands: mpsc::Receiver<CommandRequest>,
    /// SIGHUP, where it means to read the policy's file again.
    reload: Option<Signal>,
    /// Loads policies by command, in the order asked.
    loads: LoadQueue,
    /// Loads policies in place of failed ones, which shall not wait behind a command.
    repairs: LoadQueue,
    snapshots: watch::Sender<Arc<Snapshot>>,
    /// SHA-256 of the candidate's file.
    candidate: Option<String>,
    /// Whether the policy of a rollback is being loaded.
    rolling_back: bool,
    /// Where commands that changed the policy are remembered; `None` in tests.
    memory: Option<Memory>,
    /// Clients that follow a flow from now on; `None` where that is not offered.
    followers: Option<mpsc::Receiver<TraceRequest>>,
    /// Clients that ask for flows in an order; `None` where that is not offered.
    questions: Option<mpsc::Receiver<FlowsRequest>>,
    /// Clients that are to succeed this agent; `None` where that is not offered.
    succession: Option<mpsc::Receiver<SuccessorRequest>>,
    /// The process that gets ready to succeed this agent.
    successor: Option<Successor>,
    /// The host's default, where this agent has changed it.
    default: Option<DefaultCongestionControl>,
    /// Whether flows were decided about when that was last looked at.
    healthy: bool,
    /// The service manager, which restarts an agent that hangs; `None` in tests.
    manager: Option<Notifier>,
    /// Whether there are log lines on the agent's state.
    log: bool,
}

impl<D: DatapathIo> EventLoop<D> {
    fn new(
        service: Service<D>,
        commands: mpsc::Receiver<CommandRequest>,
        reload: Option<Signal>,
        log: bool,
    ) -> Result<Self, anyhow::Error> {
        Ok(Self {
            snapshots: watch::Sender::new(service.shared_snapshot()?),
            service,
            commands,
            reload,
            loads: LoadQueue::start("policy loader").context("starting the loader of policies")?,
            repairs: LoadQueue::start("policy repair")
                .context("starting the loader of policies")?,
            candidate: None,
            rolling_back: false,
            memory: None,
            followers: None,
            questions: None,
            succession: None,
            successor: None,
            default: None,
            healthy: true,
            manager: None,
            log,
        })
    }

    /// Serves until `shutdown` is requested, or a successor serves.
    async fn run(&mut self, shutdown: &mut Shutdown) -> Result<End, anyhow::Error> {
        let mut heartbeat = Timer::every(self.service.heartbeat_period());
        let mut snapshot = Timer::every(SNAPSHOT_PERIOD);
        let mut reconciliation = Timer::every(RECONCILIATION_PERIOD);
        let mut log = Timer::every(LOG_PERIOD);
        let mut logged: Option<Arc<Snapshot>> = None;
        loop {
            let now = Instant::now();
            let service = &mut self.service;
            if heartbeat.is_due(now) {
                service.beat();
                service.turn_canary();
                service.take_records();
                service.take_acks();
                // All rows of a heartbeat at once: waking the recorder for each row would cost more
                // than writing it.
                service.record();
                while let Some(Ok(request)) = self.followers.as_mut().map(mpsc::Receiver::try_recv)
                {
                    service.tracers.begin(&mut service.agent, request);
                }
                service.tracers.tell(&mut service.agent);
                for _ in 0..QUESTIONS {
                    let Some(Ok(request)) = self.questions.as_mut().map(mpsc::Receiver::try_recv)
                    else {
                        break;
                    };
                    let answer = service.snapshot_of(request.order, &request.filter)?;
                    // The client may have disconnected.
                    let _ = request.reply.send(answer);
                }
                service.datapath.flush_messages();
                if let Some(arm) = service.hanging() {
                    let remedy = service.on_failure(arm, &service.hang());
                    self.apply(remedy);
                }
            }
            let service = &mut self.service;
            if reconciliation.is_due(now) {
                service.reconcile();
                service.forget_removed_cgroups();
                if let Some(manager) = &self.manager {
                    if service.is_fit() {
                        manager.alive();
                    }
                    manager.status(&service.line());
                }
                self.look_at_default();
                self.look_at_health();
            }
            let service = &mut self.service;
            if snapshot.is_due(now) {
                service.reclaim();
                if let Some(outcome) = service.check_canary() {
                    self.announce(outcome, None);
                }
                self.snapshots.send_replace(self.service.shared_snapshot()?);
            }
            let service = &mut self.service;
            if log.is_due(now) && self.log {
                let latest = service.shared_snapshot()?;
                if logged.is_some() {
                    info!("{}", view::log_line(logged.as_deref(), &latest));
                }
                logged = Some(latest);
            }
            service.close_silent_windows();
            service.ask_policies();
            let due = [&heartbeat, &reconciliation, &snapshot, &log].map(|timer| timer.next);
            let others = [service.silence_due(), service.remote_due()];
            let others = others.into_iter().flatten();
            let others = others.map(|left| Instant::now() + left);
            let wake = due.into_iter().chain(others).min().unwrap_or(now);
            let mut is_flooded = false;
            tokio::select! {
                // Records last: while they keep coming, everything else has its turn.
                biased;
                () = shutdown.requested() => return Ok(End::Asked),
                () = received(&mut self.reload) => self.reload_incumbent(),
                (arm, outcome) = service.inference.next() => {
                    let failure = match outcome {
                        Ok(answer) => service.publish(arm, answer),
                        Err(failure) => Some(failure),
                    };
                    if let Some(failure) = failure {
                        let remedy = service.on_failure(arm, &failure);
                        self.apply(remedy);
                    }
                }
                event = remote::next_of(&mut service.remote) => service.on_remote(event),
                Some(request) = self.commands.recv() => self.carry_out(request),
                Some(request) = next_of(&mut self.succession) => self.greet(request).await,
                is_ready = readiness(&mut self.successor) => {
                    if is_ready && let Some(successor) = self.hand_over().await? {
                        return Ok(End::Succeeded(successor));
                    }
                    self.successor = None;
                }
                Some(load) = self.loads.next() => self.on_load(load),
                Some(load) = self.repairs.next() => self.on_load(load),
                () = sleep_until(wake) => {}
                records = service.datapath.next_records(DRAIN) => {
                    let records = records?;
                    is_flooded = records.len() == DRAIN;
                    service.on_records(&records);
                }
            }
            if is_flooded {
                // Otherwise the tasks that answer clients would not run.
                task::yield_now().await;
            }
        }
    }

    /// Takes note of the host's default congestion control, and says so when somebody has changed
    /// it. It is not changed back: whoever did it had a reason.
    fn look_at_default(&mut self) {
        let Some(found) = self
            .default
            .as_ref()
            .and_then(DefaultCongestionControl::present)
        else {
            return;
        };
        if self.service.default.as_ref() == Some(&found) {
            return;
        }
        let name = self.service.name();
        let outcome = match found == name {
            true => Ok(format!("{name} is the host's default again")),
            false => Err(format!(
                "somebody has made {found} the host's default congestion control in the place of \
                 {name}: new flows do not use this agent; `sysctl \
                 net.ipv4.tcp_congestion_control={name}` undoes it"
            )),
        };
        self.service.default = Some(found);
        self.announce(outcome, None);
    }

    /// Adds to the history that flows are no longer decided about, or are again.
    fn look_at_health(&mut self) {
        let health = Health::of(&self.snapshots.borrow(), None);
        if health.is_good() == self.healthy {
            return;
        }
        self.healthy = health.is_good();
        let history = &mut self.service.history;
        match self.healthy {
            true => history.add(false, "flows are decided about again"),
            false => history.add(true, &health.failures.join("; ")),
        }
    }

    /// Carries out a command; one that names a file is answered once the file is loaded.
    fn carry_out(&mut self, request: CommandRequest) {
        let CommandRequest {
            command,
            peer,
            reply,
        } = request;
        info!("{peer} asks: {command}");
        let by = Requester {
            text: format!("{command} by {peer}"),
            reply: Some(reply),
        };
        let outcome = match command {
            Command::Reload { file } => {
                return self.load(PolicySpec::of_file(file), Purpose::Replace, by);
            }
            Command::StartCanary {
                file,
                percent,
                by: way,
            } if (0.0..=100.0).contains(&percent) => {
                let purpose = Purpose::Canary { percent, by: way };
                return self.load(PolicySpec::of_file(file), purpose, by);
            }
            Command::StartCanary { percent, .. } => Err(format!("{percent} %: expected 0 to 100")),
            Command::Promote => {
                let outcome = self.service.promote();
                if outcome.is_ok()
                    && let Some(sha256) = self.candidate.take()
                {
                    self.remember(&sha256, &by.text);
                }
                outcome
            }
            Command::Withdraw => self.service.withdraw("by command"),
            Command::Rollback => return self.roll_back(None, by),
            Command::RollbackTo { policy } => return self.roll_back(Some(&policy), by),
            Command::AddCgroup { directory } => {
                let outcome = self.may_change_cgroups(&directory);
                let outcome = outcome.and_then(|()| self.service.add_cgroup(&directory));
                return self.answer(outcome, by.reply);
            }
            Command::RemoveCgroup { directory } => {
                let outcome = self.may_change_cgroups(&directory);
                let outcome = outcome.and_then(|()| self.service.remove_cgroup(&directory));
                return self.answer(outcome, by.reply);
            }
        };
        self.announce(outcome, by.reply);
    }

    /// Refuses a change that a successor would not know of, and a path that is not absolute.
    fn may_change_cgroups(&self, directory: &Path) -> Result<(), String> {
        if self.successor.is_some() {
            return Err("another process is taking over: ask again in a moment".into());
        }
        match directory.is_absolute() {
            true => Ok(()),
            false => Err(format!(
                "{}: expected an absolute path, such as /sys/fs/cgroup/a.slice",
                directory.display()
            )),
        }
    }

    /// Hands a client what it needs to succeed this agent, which goes on serving meanwhile.
    async fn greet(&mut self, request: SuccessorRequest) {
        let peer = request.peer;
        info!("{peer} asks to take over");
        let refused = match (&self.successor, self.service.datapath.bequeath()) {
            (Some(other), _) => format!("{} is taking over already", other.peer()),
            (None, Err(error)) => error.to_string(),
            (None, Ok(inheritance)) => {
                self.successor = Successor::greet(request, &inheritance);
                return;
            }
        };
        warn!("{peer} is refused: {refused}");
        Successor::refuse(request, refused).await;
    }

    /// Stops serving, so that the successor, which is ready, can. Returns the successor once it
    /// serves. When it does not, this agent goes on.
    async fn hand_over(&mut self) -> Result<Option<Peer>, anyhow::Error> {
        let Some(successor) = &mut self.successor else {
            return Ok(None);
        };
        let peer = successor.peer();
        self.service.history.hand_over(&peer);
        // Nothing is done until it serves, or has ended.
        if let Some(takes_default) = successor.serves().await
            && successor.leave().await.is_ok()
        {
            if let (true, Some(default)) = (takes_default, &self.default) {
                default.leave();
            }
            return Ok(Some(peer));
        }
        self.service.resume()?;
        let reason = format!("{peer} was to take over and did not: this agent goes on");
        self.announce(Err(reason), None);
        Ok(None)
    }

    /// Reads the incumbent's file again.
    fn reload_incumbent(&mut self) {
        let by = Requester {
            text: "SIGHUP".into(),
            reply: None,
        };
        if let Some(remote) = &self.service.remote {
            let outcome = Err(format!(
                "{} decides: restart it with another file, or use `cc-agent reload FILE` to decide \
                 here",
                remote.address()
            ));
            return self.announce(outcome, None);
        }
        match self.service.incumbent().clone() {
            spec @ (PolicySpec::Onnx(_) | PolicySpec::Pinned { .. }) => {
                self.load(spec, Purpose::Replace, by);
            }
            spec => {
                let outcome = Err(format!(
                    "policy {spec} has no file that could be read again"
                ));
                self.announce(outcome, None);
            }
        }
    }

    /// Has a policy loaded that was served before: the last one, or the one that `to` names.
    fn roll_back(&mut self, to: Option<&str>, by: Requester) {
        let target = match self.rolling_back {
            // What is the last one depends on it.
            true => Err("another rollback is under way: ask again in a moment".to_owned()),
            false => self.service.ledger.target(to),
        };
        let target = match target {
            Ok(target) => target,
            Err(reason) => return self.announce(Err(reason), by.reply),
        };
        let (loader, running) = self.service.loader();
        let place = self.service.ledger.place();
        let former = self.service.former(target.id());
        let work = move || match former {
            // As it was loaded, also where its file could not be kept.
            Some(job) => load_again(&job, loader.caged),
            None => place.load(&target, &loader, &running),
        };
        match self.loads.push(Purpose::RollBack, by, work) {
            Ok(()) => self.rolling_back = true,
            Err((by, reason)) => self.announce(Err(reason), by.reply),
        }
    }

    /// Loads a policy on another thread: a large one takes longer than a flow can wait.
    fn load(&mut self, spec: PolicySpec, purpose: Purpose, by: Requester) {
        let (loader, running) = self.service.loader();
        let place = self.service.ledger.place();
        let (job, sha256) = self.service.incumbent_file();
        let work = move || {
            let loaded = loader.load_beside(&spec, &running)?;
            place.keep(&job, sha256.as_deref());
            place.keep(&loaded.job, loaded.sha256().as_deref());
            Ok(loaded)
        };
        if let Err((by, reason)) = self.loads.push(purpose, by, work) {
            self.announce(Err(reason), by.reply);
        }
    }

    /// Announces that a policy has failed, and has another one loaded in its place.
    fn apply(&mut self, (news, repair): Remedy) {
        self.announce(news, None);
        if let Some(repair) = repair {
            let by = Requester {
                text: "repair".into(),
                reply: None,
            };
            let work = move || load_again(&repair.job, repair.caged);
            if let Err((_, reason)) = self.repairs.push(repair.purpose, by, work) {
                self.announce(Err(reason), None);
            }
        }
    }

    fn on_load(&mut self, load: Load) {
        let Load {
            outcome,
            purpose,
            by,
        } = load;
        if purpose == Purpose::RollBack {
            self.rolling_back = false;
        }
        let outcome = match (outcome, purpose) {
            // Another policy has been loaded meanwhile.
            (_, Purpose::Restart | Purpose::Reinstate) if self.service.decides() => return,
            (Err(error), Purpose::Restart) => {
                let reason = format!("it could not be started again: {error}");
                let remedy = self.service.give_up(&reason);
                return self.apply(remedy);
            }
            (Err(error), Purpose::Reinstate) => Err(format!(
                "{error}; no policy decides, and flows run on the fallback until one is loaded \
                 with `cc-agent reload`"
            )),
            (Err(error), _) => Err(format!(
                "{error}; the policy stays {}",
                self.service.incumbent_text()
            )),
            (Ok(loaded), Purpose::Replace) => {
                let sha256 = loaded.name.clone();
                let outcome = self.service.replace(loaded);
                if outcome.is_ok() {
                    self.remember(&sha256, &by.text);
                }
                outcome
            }
            (Ok(loaded), Purpose::RollBack) => {
                let sha256 = loaded.name.clone();
                let outcome = self.service.roll_back(loaded, &by.text);
                if outcome.is_ok() {
                    self.note_for_the_next_start(&sha256, &by.text);
                }
                outcome
            }
            (Ok(loaded), Purpose::Canary { percent, by: way }) => {
                let sha256 = loaded.name.clone();
                let outcome = self.service.start_canary(loaded, percent, way);
                if outcome.is_ok() {
                    self.candidate = Some(sha256);
                }
                outcome.map_err(|error| error.to_string())
            }
            (Ok(loaded), purpose) => self.service.repair(loaded, purpose),
        };
        self.announce(outcome, by.reply);
    }

    /// Remembers that the incumbent was put into service by a command.
    fn remember(&mut self, sha256: &str, by: &str) {
        self.service.note_in_service(by);
        self.note_for_the_next_start(sha256, by);
    }

    /// Remembers that the incumbent is what the next start is expected to serve.
    fn note_for_the_next_start(&mut self, sha256: &str, by: &str) {
        self.service.differs = None;
        if let Some(memory) = &self.memory {
            memory.remember(&self.service.incumbent().to_string(), sha256, by);
        }
    }

    /// Reports the outcome of a command, a canary or a failure: to the log, in the status, and to
    /// the client that waits for it.
    fn announce(&mut self, outcome: Outcome, reply: Option<oneshot::Sender<Outcome>>) {
        self.service.note(&outcome);
        self.answer(outcome, reply);
    }

    /// Answers a client, which finds what it has changed in the status.
    fn answer(&mut self, outcome: Outcome, reply: Option<oneshot::Sender<Outcome>>) {
        // Before the reply, so that the client finds the outcome in the status.
        if let Ok(snapshot) = self.service.shared_snapshot() {
            self.snapshots.send_replace(snapshot);
        }
        if let Some(reply) = reply {
            // The client may have disconnected.
            let _ = reply.send(outcome);
        }
    }
}

/// The next client that asks to succeed this agent; never where that is not offered.
async fn next_of(
    succession: &mut Option<mpsc::Receiver<SuccessorRequest>>,
) -> Option<SuccessorRequest> {
    match succession {
        Some(succession) => succession.recv().await,
        None => pending().await,
    }
}

/// Waits until the successor is ready to serve; false when it has ended. Never where there is none.
async fn readiness(successor: &mut Option<Successor>) -> bool {
    match successor {
        Some(successor) => successor.is_ready().await,
        None => pending().await,
    }
}

/// Says when something that is done periodically is due.
struct Timer {
    period: Duration,
    next: Instant,
}

impl Timer {
    /// Due now, and then with this period.
    fn every(period: Duration) -> Self {
        Self {
            period,
            next: Instant::now(),
        }
    }

    /// Whether it is due. If so, it is due again a period later.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.period;
        }
        is_due
    }
}
