//! `cc-agent run`: the event loop.
//!
//! One thread does all I/O: it takes records from the ring buffer, keeps the [`Agent`], publishes
//! decisions, sets the heartbeat and answers commands. The policies run on a thread of their own
//! ([`crate::inference`]), and large policies are loaded on a third, so that the event loop never
//! waits for either.
//!
//! The loop reaches the kernel only through [`DatapathIo`], which its tests implement in memory.
//!
//! [`Agent`]: cc_core::agent::Agent

mod datapath;
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
    task,
    time::{Interval, MissedTickBehavior, interval, sleep},
};
use tracing::{info, warn};

use self::{
    datapath::{DatapathIo, RegisteredDatapath},
    service::{DRAIN, Service},
};
use crate::{
    deploy::{DeployError, LoadedPolicy},
    kernel::{self, Datapath, priority, sysctl::DefaultCongestionControl},
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
/// Niceness of the thread that loads policies: only the client that sent the command waits for it.
const LOADER_NICENESS: i32 = 10;

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
    loads: (mpsc::UnboundedSender<Load>, mpsc::UnboundedReceiver<Load>),
    snapshots: watch::Sender<Arc<Snapshot>>,
    /// Whether there are log lines on the agent's state.
    log: bool,
}

/// A policy that was loaded on another thread.
struct Load {
    outcome: Result<LoadedPolicy, DeployError>,
    purpose: Purpose,
    /// Where the outcome goes; `None` for a load that no client asked for.
    reply: Option<oneshot::Sender<Outcome>>,
}

/// What a policy is loaded for.
#[derive(Clone, Copy)]
enum Purpose {
    /// To be the incumbent of all flows.
    Replace,
    /// To be the candidate of a canary.
    Canary {
        /// Share of the new flows, percent.
        percent: f64,
    },
}

impl<D: DatapathIo> EventLoop<D> {
    fn new(
        service: Service<D>,
        commands: mpsc::Receiver<CommandRequest>,
        reload: Option<Signal>,
        log: bool,
    ) -> Result<Self, kernel::Error> {
        Ok(Self {
            snapshots: watch::Sender::new(service.shared_snapshot()?),
            service,
            commands,
            reload,
            loads: mpsc::unbounded_channel(),
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
            service.ask_policy();
            let silence = service.silence_due();
            tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
                () = received(&mut self.reload) => self.reload_incumbent(),
                answer = service.inference.answers.recv() => match answer {
                    Some(answer) => service.publish(answer),
                    None => anyhow::bail!(
                        "the policy's thread has stopped; see the messages above"
                    ),
                },
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
                }
                Some(request) = self.commands.recv() => self.carry_out(request),
                Some(load) = self.loads.1.recv() => self.on_load(load),
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
                return self.load(PolicySpec::of_file(file), Purpose::Replace, reply);
            }
            Command::StartCanary { file, percent } if (0.0..=100.0).contains(&percent) => {
                return self.load(
                    PolicySpec::of_file(file),
                    Purpose::Canary { percent },
                    reply,
                );
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
            spec @ (PolicySpec::Onnx(_) | PolicySpec::Pinned { .. }) => {
                self.load(spec, Purpose::Replace, None);
            }
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
        let loads = self.loads.0.clone();
        task::spawn_blocking(move || {
            // Without the privilege the thread keeps the agent's priority.
            let _ = priority::set_niceness(LOADER_NICENESS);
            let outcome = loader.load_beside(&spec, &running);
            // The event loop may have ended.
            let _ = loads.send(Load {
                outcome,
                purpose,
                reply,
            });
        });
    }

    fn on_load(&mut self, load: Load) {
        let service = &mut self.service;
        let outcome = match (load.outcome, load.purpose) {
            (Err(error), _) => Err(format!(
                "{error}; the policy stays {}",
                service.incumbent_text()
            )),
            (Ok(loaded), Purpose::Replace) => service.replace(loaded),
            (Ok(loaded), Purpose::Canary { percent }) => Ok(service.start_canary(loaded, percent)),
        };
        self.announce(outcome, load.reply);
    }

    /// Reports the outcome of a command or a canary: to the log, in the status, and to the client
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
