//! `cc-agent run`: the event loop.
//!
//! One thread does all I/O: it takes records from the ring buffer, keeps the [`Agent`], publishes
//! decisions, sets the heartbeat and answers commands. Each policy runs in a process of its own
//! ([`crate::inference`]), and policies are loaded on further threads ([`loads`]), so that the event
//! loop never waits for either.
//!
//! The loop reaches the kernel only through [`DatapathIo`], which its tests implement in memory.
//!
//! [`Agent`]: cc_core::agent::Agent

mod datapath;
mod health;
mod loads;
mod service;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::{
    future::pending,
    io::{self, IsTerminal},
    sync::Arc,
    time::Duration,
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    time::{Interval, MissedTickBehavior, interval, sleep},
};
use tracing::{info, warn};

use self::{
    datapath::{DatapathIo, RegisteredDatapath},
    loads::{Load, LoadQueue, Purpose},
    service::{DRAIN, Remedy, Service},
};
use crate::{
    deploy::load_again,
    kernel::{Datapath, priority, sysctl::DefaultCongestionControl},
    settings::Settings,
    shutdown::{Shutdown, received},
    status::{CommandRequest, Server},
    view,
};
use cc_core::{
    policy::PolicySpec,
    status::{Command, Outcome, Snapshot},
};

/// Time between two snapshots for `status`, `top` and the live view.
const SNAPSHOT_PERIOD: Duration = Duration::from_millis(200);
/// Time between two log lines.
const LOG_PERIOD: Duration = Duration::from_secs(5);
/// Commands that may wait for the event loop; further ones are refused.
const COMMANDS: usize = 16;

/// Registers the congestion control and serves its flows until a signal, the end of the duration,
/// or `q` in the live view.
///
/// # Errors
///
/// Returns an error when the host refuses the datapath, when the socket, the recording or the file
/// for ACKs cannot be created, or when the policy's thread has panicked.
pub async fn serve(settings: Settings) -> Result<(), anyhow::Error> {
    let mut shutdown = Shutdown::on_signals()?;
    let hangup = signal(SignalKind::hangup())?;
    let duration = settings.duration;
    let on_terminal = io::stdout().is_terminal();
    let show = !settings.plain && on_terminal;
    let log = settings.plain || !on_terminal;
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
    let adopted = datapath.adopted();
    info!(
        "registered {name}; policy {}; {} slots; {adopted} flows adopted",
        settings.policy.text,
        datapath.slots(),
    );
    // A terminal that is closed takes the agent with it; a service's SIGHUP means to reload.
    let mut reload = None;
    if show || io::stdin().is_terminal() || io::stderr().is_terminal() {
        shutdown.also_on(hangup);
    } else {
        reload = Some(hangup);
    }
    let (commands, requests) = mpsc::channel(COMMANDS);
    let datapath = RegisteredDatapath::new(datapath, default)?;
    let service = Service::start(settings, datapath, adopted)?;
    let mut event_loop = EventLoop::new(service, requests, reload, log)?;
    let latest = event_loop.snapshots.subscribe();
    let screen = show.then(|| view::Screen::start(latest.clone(), shutdown.stopper()));
    let answering = tokio::spawn(server.serve(latest, commands));
    shutdown.after(duration);
    let outcome = event_loop.run(&mut shutdown).await;
    answering.abort();
    if let Some(screen) = screen {
        screen.stop();
    }
    drop(event_loop);
    outcome?;
    info!("unregistered {name}");
    Ok(())
}

/// What a running agent waits for, and whom it reports to.
struct EventLoop<D: DatapathIo> {
    service: Service<D>,
    commands: mpsc::Receiver<CommandRequest>,
    /// SIGHUP, where it means to read the policy's file again.
    reload: Option<Signal>,
    /// Loads policies by command.
    loads: LoadQueue,
    /// Loads policies in place of failed ones, which shall not wait behind a command.
    repairs: LoadQueue,
    snapshots: watch::Sender<Arc<Snapshot>>,
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
            loads: LoadQueue::start("policy loader")?,
            repairs: LoadQueue::start("policy repair")?,
            log,
        })
    }

    /// Serves until `shutdown` is requested.
    async fn run(&mut self, shutdown: &mut Shutdown) -> Result<(), anyhow::Error> {
        let mut heartbeat = ticker(self.service.heartbeat_period());
        let mut snapshot = ticker(SNAPSHOT_PERIOD);
        let mut log = ticker(LOG_PERIOD);
        let mut logged: Option<Arc<Snapshot>> = None;
        loop {
            let service = &mut self.service;
            // Not left to the timer alone, which would never be waited for while records keep
            // arriving.
            service.close_silent_windows();
            service.ask_policies();
            let silence = service.silence_due();
            tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
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
                records = service.datapath.next_records(DRAIN) => service.on_records(&records?),
                () = sleep_or_never(silence) => {}
                _ = heartbeat.tick() => {
                    service.beat();
                    service.take_records();
                    service.take_acks();
                    // All rows of a heartbeat at once: waking the recorder for each row would cost
                    // more than writing it.
                    service.record();
                    service.datapath.flush_messages();
                    if let Some(arm) = service.hanging() {
                        let remedy = service.on_failure(arm, &service.hang());
                        self.apply(remedy);
                    }
                }
                Some(request) = self.commands.recv() => self.carry_out(request),
                Some(load) = self.loads.next() => self.on_load(load),
                Some(load) = self.repairs.next() => self.on_load(load),
                _ = snapshot.tick() => {
                    if let Some(outcome) = service.check_canary() {
                        self.announce(outcome, None);
                    }
                    self.snapshots.send_replace(self.service.shared_snapshot()?);
                }
                _ = log.tick(), if self.log => {
                    let now = service.shared_snapshot()?;
                    if logged.is_some() {
                        info!("{}", view::log_line(logged.as_deref(), &now));
                    }
                    logged = Some(now);
                }
            }
        }
    }

    /// Carries out a command; one that names a file is answered once the file is loaded.
    fn carry_out(&mut self, CommandRequest { command, reply }: CommandRequest) {
        let reply = Some(reply);
        let outcome = match command {
            Command::Reload { file } => {
                return self.load(PolicySpec::Onnx(file), Purpose::Replace, reply);
            }
            Command::StartCanary { file, percent } if (0.0..=100.0).contains(&percent) => {
                return self.load(PolicySpec::Onnx(file), Purpose::Canary { percent }, reply);
            }
            Command::StartCanary { percent, .. } => Err(format!("{percent} %: expected 0 to 100")),
            Command::Promote => self.service.promote(),
            Command::Withdraw => self.service.withdraw("by command"),
        };
        self.announce(outcome, reply);
    }

    /// Reads the incumbent's file again.
    fn reload_incumbent(&mut self) {
        match self.service.incumbent().clone() {
            spec @ PolicySpec::Onnx(_) => self.load(spec, Purpose::Replace, None),
            spec => {
                let outcome = Err(format!(
                    "policy {spec} has no file that could be read again"
                ));
                self.announce(outcome, None);
            }
        }
    }

    /// Loads a policy on another thread: a large one takes longer than a flow can wait.
    fn load(
        &mut self,
        spec: PolicySpec,
        purpose: Purpose,
        reply: Option<oneshot::Sender<Outcome>>,
    ) {
        let (loader, running) = self.service.loader();
        let work = move || loader.load_beside(&spec, &running);
        if let Err((reply, reason)) = self.loads.push(purpose, reply, work) {
            self.announce(Err(reason), reply);
        }
    }

    /// Announces that a policy has failed, and has another one loaded in its place.
    fn apply(&mut self, (news, repair): Remedy) {
        self.announce(news, None);
        if let Some(repair) = repair {
            let work = move || load_again(&repair.job, repair.caged);
            if let Err((_, reason)) = self.repairs.push(repair.purpose, None, work) {
                self.announce(Err(reason), None);
            }
        }
    }

    fn on_load(&mut self, load: Load) {
        let service = &mut self.service;
        let outcome = match (load.outcome, load.purpose) {
            // Another policy has been loaded meanwhile.
            (_, Purpose::Restart | Purpose::Reinstate) if service.decides() => return,
            (Err(error), Purpose::Restart) => {
                let remedy = service.give_up(&format!("it could not be started again: {error}"));
                return self.apply(remedy);
            }
            (Err(error), Purpose::Reinstate) => Err(format!(
                "{error}; no policy decides, and flows run on the fallback until one is loaded \
                 with `cc-agent reload`"
            )),
            (Err(error), _) => Err(format!(
                "{error}; the policy stays {}",
                service.incumbent_text()
            )),
            (Ok(loaded), Purpose::Replace) => service.replace(loaded),
            (Ok(loaded), Purpose::Canary { percent }) => service
                .start_canary(loaded, percent)
                .map_err(|error| error.to_string()),
            (Ok(loaded), purpose) => service.repair(loaded, purpose),
        };
        self.announce(outcome, load.reply);
    }

    /// Reports the outcome of a command, a canary or a failure: to the log, in the status, and to the client
    /// that waits for it.
    fn announce(&mut self, outcome: Outcome, reply: Option<oneshot::Sender<Outcome>>) {
        self.service.note(&outcome);
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

/// Sleeps this long; forever without a duration.
async fn sleep_or_never(duration: Option<Duration>) {
    match duration {
        Some(duration) => sleep(duration).await,
        None => pending().await,
    }
}

/// Ticks with this period, and not more often after a delay.
fn ticker(period: Duration) -> Interval {
    let mut ticker = interval(period);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticker
}
