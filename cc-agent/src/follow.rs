//! `cc-agent follow`: serves what a channel announces.
//!
//! A process of its own beside the agent, as `metrics` is: the agent itself talks to no network. It
//! polls the channel, keeps the policy files that it has checked in a directory, and asks the agent
//! over its socket, as an operator would. [`cc_channel::Follower`] decides what is asked, and is
//! remembered in `NAME.channel` beside the policies.

mod tally;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, bail};
use cc_channel::{
    Agent, Announcement, Canary, ChannelError, Follower, PublicKey, Request, Stage, Store, Turn,
    latest, policy,
};
use cc_client::{StatusError, command, fetch};
use cc_core::{
    durable::replace_durably,
    policy::{MAX_BYTES, PolicySpec},
    regular_file,
    status::{Command, Snapshot, Standing},
};
use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tracing::{error, info, warn};

use self::tally::Tally;
use crate::{metrics, period::period, said::Said, state_file};

#[cfg(test)]
pub(crate) use tally::page;

/// The directory of policies where systemd names none.
const DIRECTORY: &str = "/var/lib/cc-agent/policies";
/// The extension of policy files.
const POLICY: &str = "onnx";

/// The channel that is followed.
#[derive(Args, Debug)]
pub struct FollowOptions {
    /// The channel: a directory, or the URL of one or of an object store.
    #[arg(long, value_name = "URL")]
    pub channel: String,

    /// The publisher's public key, as `cc-agent channel-key` has printed it.
    #[arg(long, value_name = "HEX")]
    pub key: PublicKey,

    /// Time between two looks at the channel and the agent, in s.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub every: f64,

    /// Look once, and end. Exits with 1 when the announced policy is not in service then, and no
    /// canary tries it.
    #[arg(long)]
    pub once: bool,

    /// The directory that policies are kept in. The agent must be able to read it, and other users
    /// than this one must not be able to write to it [default: policies in systemd's
    /// STATE_DIRECTORY, or /var/lib/cc-agent/policies].
    #[arg(long, value_name = "DIR")]
    pub policies: Option<PathBuf>,

    /// Number of policy files that are kept; the oldest are removed.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub keep: usize,

    /// Serve how following goes, in OpenMetrics' text format at http://ADDR:PORT/metrics [without
    /// an address: 127.0.0.1:9468].
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:9468",
        conflicts_with = "once"
    )]
    pub metrics: Option<SocketAddr>,

    /// Allow an address for --metrics that is not a loopback one. Whoever reaches it can read how
    /// often the channel and the agent have failed.
    #[arg(long, requires = "metrics")]
    pub expose_metrics: bool,
}

/// One host's end of a channel.
struct Host {
    store: Store,
    key: PublicKey,
    /// Socket of the agent that is asked.
    socket: PathBuf,
    /// The directory that policy files are kept in.
    policies: PathBuf,
    keep: usize,
    follower: Follower,
    /// The file that the follower is remembered in.
    memory: PathBuf,
    /// What was last said of the channel and of the agent, which is not said again each time.
    said: [Said; 2],
    tally: Tally,
}

impl FollowOptions {
    /// Follows the channel until SIGINT or SIGTERM, or once, for the agent of this name. Neither a
    /// channel out of reach nor an agent that does not run ends it.
    ///
    /// # Errors
    ///
    /// Returns an error when the channel's URL is not one, when the directory of policies cannot be
    /// used, when what is remembered cannot be read, and with `once` in the cases of its help.
    pub async fn follow(self, name: &str, socket: PathBuf) -> anyhow::Result<()> {
        let every = period(self.every)?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let once = self.once;
        let mut registry = metrics::registry();
        let tally = Tally::of(&mut registry);
        metrics::serve_own(self.metrics, self.expose_metrics, registry)?;
        let mut host = Host::new(self, name, socket, tally)?;
        if once {
            return host.look_once().await;
        }
        info!(
            "following {} as the agent at {}",
            host.store,
            host.socket.display()
        );
        host.look_until(every, async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        })
        .await;
        Ok(())
    }
}

impl Host {
    fn new(
        options: FollowOptions,
        name: &str,
        socket: PathBuf,
        tally: Tally,
    ) -> anyhow::Result<Self> {
        let policies = options
            .policies
            .unwrap_or_else(|| match state_file::directory() {
                Some(directory) => directory.join("policies"),
                None => DIRECTORY.into(),
            });
        fs::create_dir_all(&policies)
            .with_context(|| format!("creating the directory {}", policies.display()))?;
        let policies = policies.canonicalize()?;
        let memory = policies.join(name).with_added_extension("channel");
        let follower = state_file::read(&memory).with_context(|| {
            format!(
                "reading {}; whoever removes it lets older announcements be followed again",
                memory.display()
            )
        })?;
        Ok(Self {
            store: Store::open(&options.channel).context("--channel")?,
            key: options.key,
            socket,
            policies,
            keep: options.keep.max(1),
            follower: follower.unwrap_or_default(),
            memory,
            said: Default::default(),
            tally,
        })
    }

    /// Looks at the channel and the agent every so often until `stop`, whatever fails.
    async fn look_until(&mut self, every: Duration, stop: impl Future<Output = ()>) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(stop);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = &mut stop => return,
            }
            // Not interrupted: what is asked of the agent is also remembered.
            if let Err(error) = self.look().await {
                self.said[0].warn(&error);
            }
        }
    }

    async fn look_once(&mut self) -> anyhow::Result<()> {
        self.look().await?;
        match self.follower.current() {
            Some((_, Stage::Serving | Stage::Trying)) => Ok(()),
            Some((announcement, stage)) => {
                bail!(
                    "announcement {} is not in service: {stage}",
                    announcement.sequence
                )
            }
            None => bail!("nothing was announced"),
        }
    }

    /// Looks at the channel, then at the agent.
    async fn look(&mut self) -> anyhow::Result<()> {
        let before = self.follower.clone();
        let heard = self.hear().await;
        self.tally.heard(&heard);
        // What was announced before goes on, also while the channel is out of reach.
        let asked = self.ask_agent().await;
        self.tally.stands(self.follower.current());
        if self.follower != before {
            state_file::write(&self.memory, &self.follower)
                .with_context(|| format!("writing {}", self.memory.display()))?;
        }
        heard?;
        asked
    }

    /// Takes what the channel announces.
    async fn hear(&mut self) -> Result<(), ChannelError> {
        let signed = latest(&self.store, &self.key).await?;
        let announcement = signed.announcement.clone();
        match self.follower.hear(signed) {
            Turn::New => info!("announced: {announcement}"),
            Turn::Known => {
                self.said[0].clear();
            }
            Turn::Replayed { found, known } => {
                self.tally.suspect();
                self.said[0].warn(&format!(
                    "{} announces {found} again, but {known} came after it: the publisher has lost \
                     the channel's content, or somebody has put former content back; {known} stays",
                    self.store
                ));
            }
            Turn::Forked => {
                self.tally.suspect();
                self.said[0].warn(&format!(
                    "{} announces another {} than before: two publishers have the same key; what \
                     was heard first stays",
                    self.store, announcement.sequence
                ));
            }
        }
        Ok(())
    }

    /// Looks at the agent, and asks what is to be asked.
    async fn ask_agent(&mut self) -> anyhow::Result<()> {
        loop {
            let socket = self.socket.clone();
            let fetched = spawn_blocking(move || fetch(&socket)).await?;
            self.tally.asked(&fetched);
            let snapshot = match fetched {
                Ok(snapshot) => snapshot,
                Err(error) => {
                    self.said[1].warn(&error);
                    return Ok(());
                }
            };
            self.said[1].clear();
            let before = self.follower.current().map(|(_, stage)| stage.clone());
            let request = self.follower.look(&seen(&snapshot));
            if let Some((announcement, Stage::Withdrawn)) = self.follower.current()
                && before == Some(Stage::Trying)
            {
                warn!(
                    "the canary ended without the policy of announcement {}, which stays out of \
                     service until the next announcement",
                    announcement.sequence
                );
            }
            if let Some((announcement, Stage::RolledBack)) = self.follower.current()
                && before != Some(Stage::RolledBack)
            {
                warn!(
                    "an operator has rolled back from the policy of announcement {}, which stays \
                     out of service until `cc-agent reload` or `rollback --to` brings it back, or \
                     another one is announced",
                    announcement.sequence
                );
            }
            let Some(request) = request else {
                return Ok(());
            };
            match self.ask(&request).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.follower.unanswered();
                    return Err(error);
                }
            }
        }
    }

    /// Asks the agent, and returns whether it has done so; a refusal is remembered.
    async fn ask(&mut self, request: &Request) -> anyhow::Result<bool> {
        let (announcement, _) = self.follower.current().context("something is asked")?;
        let announcement = announcement.clone();
        let message = match request {
            Request::Serve => Command::Reload {
                file: self.policy(&announcement).await?,
            },
            Request::Try { percent, by } => Command::StartCanary {
                file: self.policy(&announcement).await?,
                percent: *percent,
                by: *by,
            },
            Request::Promote => Command::Promote,
            Request::Withdraw => Command::Withdraw,
        };
        let (socket, sent) = (self.socket.clone(), message.clone());
        let outcome = spawn_blocking(move || command(&socket, sent)).await?;
        self.tally.asked(&outcome);
        let outcome = match outcome {
            Ok(done) => {
                info!("{message}: {done}");
                Ok(())
            }
            Err(StatusError::Refused(reason)) => {
                error!(
                    "announcement {}: the agent refuses: {reason}",
                    announcement.sequence
                );
                Err(reason)
            }
            Err(error) => return Err(error.into()),
        };
        let is_done = outcome.is_ok();
        self.follower.answered(request, outcome);
        Ok(is_done)
    }

    /// The file of the announced policy with the hash that the agent is to find in it. Fetches it
    /// where it is not there.
    async fn policy(&self, announcement: &Announcement) -> anyhow::Result<PathBuf> {
        let sha256 = &announcement.sha256;
        let path = self.policies.join(sha256).with_added_extension(POLICY);
        let kept = regular_file::read(&path, MAX_BYTES);
        if !kept.is_ok_and(|bytes| announcement.check_policy(&bytes).is_ok()) {
            let fetched = policy(&self.store, announcement).await;
            self.tally.heard(&fetched);
            let bytes = fetched?;
            replace_durably(&path, &bytes)?;
            info!("fetched {} ({} bytes)", path.display(), bytes.len());
            self.remove_oldest(&path)?;
        }
        Ok(PolicySpec::Onnx(path).pinned(sha256)?.to_string().into())
    }

    /// Removes the policy files that have been there longest, beyond the number that is kept.
    fn remove_oldest(&self, newest: &Path) -> anyhow::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.policies)? {
            let entry = entry?;
            let path = entry.path();
            if path.extension().is_some_and(|it| it == POLICY) && path != newest {
                let modified = entry.metadata()?.modified();
                files.push((modified.unwrap_or(SystemTime::UNIX_EPOCH), path));
            }
        }
        files.sort_unstable();
        let excess = (files.len() + 1).saturating_sub(self.keep);
        for (_, path) in &files[..excess] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    warn!("{} stays: {error}", path.display());
                }
                _ => info!("removed {}, of a former announcement", path.display()),
            }
        }
        Ok(())
    }
}

/// What the follower looks at.
fn seen(snapshot: &Snapshot) -> Agent<'_> {
    Agent {
        pid: snapshot.pid,
        uptime_s: snapshot.uptime_s,
        sha256: snapshot.policy_sha256.as_deref(),
        rolled_back: (snapshot.policies.iter())
            .filter(|known| known.standing == Standing::RolledBack)
            .filter_map(|known| known.sha256.as_deref())
            .collect(),
        canary: snapshot.canary.as_ref().map(|canary| Canary {
            candidate: &canary.candidate,
            finding: canary.finding,
        }),
    }
}
