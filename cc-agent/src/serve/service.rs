//! The state of a running agent and everything that the event loop does with it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cc_ebpf::{Counter, Record};
use hdrhistogram::Histogram;
use tracing::{info, warn};

use super::{
    datapath::DatapathIo, health::Health, loads::Purpose, reclaim::Reclaimer, traces::Tracers,
};
use crate::{
    acks::AckWriter,
    deploy::{LoadedPolicy, PolicyLoader},
    history::History,
    inference::{Answer, Failure, Inference, ReadyPolicy},
    kernel::{self, clock, privileges::Capabilities},
    ledger::{self, Ledger},
    recording_setup::{Recording, RecordingSession},
    remote::Remote,
    settings::Settings,
    view::{Filter, Sort},
};
use cc_cage::Job;
use cc_core::{
    agent::Agent,
    canary::{Arm, CanaryBy, CanaryPlan, GuardRails},
    interface::Interface,
    policy::PolicySpec,
    status::{
        AgentCounts, CanaryStatus, DELAY_MS, Distribution, Distributions, FlowView, Outcome,
        Percentiles, RecordingStatus, Snapshot,
    },
};
use cc_recording::Recorder;
use cc_remote::Event;

/// Records taken at once, at most: so many that taking them is cheap, and so few that the event
/// loop soon gets to everything else.
pub(super) const DRAIN: usize = 4_096;
/// Times that per-ACK records are taken at once, at most: on many processors they may come faster
/// than they are taken.
const ACK_DRAINS: usize = 16;
/// Flows in a snapshot, at most.
const FLOWS_SHOWN: usize = 500;
/// A policy whose process fails is started again, but only once within this time.
const RESTART_PERIOD: Duration = Duration::from_secs(60);

/// Beyond the heartbeat's limit, the time in which a failed policy is usually started again.
const HEARTBEAT_SLACK: Duration = Duration::from_secs(5);

/// A running agent: its datapath, its flows and the policies that decide for them.
pub(super) struct Service<D: DatapathIo> {
    // Dropped first, which unregisters the congestion control.
    pub(super) datapath: D,
    pub(super) agent: Agent,
    pub(super) inference: Inference,
    policies: Policies,
    /// The policy server that decides where it can instead of the incumbent; `None` where the
    /// incumbent decides alone.
    pub(super) remote: Option<Remote>,
    acks: Option<AckWriter>,
    recorder: Option<Recorder>,
    session: Option<RecordingSession>,
    name: String,
    adopted: usize,
    /// Time from the heartbeat of the agent that this one took over from to its own, ms.
    pub(super) takeover_gap_ms: Option<f64>,
    /// When the agent took over, on the datapath's clock: older records tell of what a former agent
    /// has seen, or what the state of the flows said already.
    since_ns: u64,
    reclaimer: Reclaimer,
    /// Clients that follow a flow, window by window.
    pub(super) tracers: Tracers,
    started: Instant,
    /// Without a heartbeat for this long, flows fall back.
    heartbeat_limit: Duration,
    /// Time of the last heartbeat, ns; `None` before the first.
    last_beat_ns: Option<u64>,
    /// The capabilities that the agent holds.
    capabilities: String,
    /// Which sockets are served, in words.
    served: String,
    /// How the policy differs from what was remembered at the start.
    pub(super) differs: Option<String>,
    /// What has happened so far.
    pub(super) history: History,
    /// The policies that were served so far.
    pub(super) ledger: Ledger,
    /// The host's default congestion control when it was last looked at; `None` without
    /// `--default`.
    pub(super) default: Option<String>,
}

/// The policies, as commands and reports name them.
struct Policies {
    loader: PolicyLoader,
    rails: GuardRails,
    /// Length of a canary's blocks of time.
    block: Duration,
    incumbent: Origin,
    /// Why the incumbent does not decide; `None` while it does.
    failure: Option<String>,
    health: Health,
    /// When the incumbent was last started again after a failure.
    restarted: Option<tokio::time::Instant>,
    /// The incumbent before this one, which takes over when this one fails. A policy that has
    /// failed never becomes it.
    former: Option<Origin>,
    candidate: Option<Origin>,
    /// The outcome of the last command, or the reason why the last canary or policy ended.
    last_outcome: Option<String>,
    /// The counts of [`AgentCounts`] that are about policies.
    restarts: u64,
    replacements: u64,
    withdrawals: u64,
}

/// Where a policy came from.
struct Origin {
    /// What it can be made of again.
    job: Job,
    /// One-line description.
    text: String,
    /// SHA-256 of its file in hexadecimal digits, or the spec for a policy that has no file.
    name: String,
}

impl Origin {
    fn of(loaded: &LoadedPolicy) -> Self {
        Self {
            job: loaded.job.clone(),
            text: loaded.text.clone(),
            name: loaded.name.clone(),
        }
    }

    /// SHA-256 of the policy's file in hexadecimal digits; `None` for a policy that has none.
    fn sha256(&self) -> Option<String> {
        (self.name != self.job.policy.to_string()).then(|| self.name.clone())
    }
}

/// A policy that shall be loaded because another one has failed.
pub(super) struct Repair {
    /// What it is made of.
    pub(super) job: Job,
    /// Whether it runs in a process of its own.
    pub(super) caged: bool,
    /// [`Purpose::Restart`] or [`Purpose::Reinstate`].
    pub(super) purpose: Purpose,
}

/// What is known and done after a policy has failed: the news, and the policy to load.
pub(super) type Remedy = (Outcome, Option<Repair>);

impl<D: DatapathIo> Service<D> {
    /// Starts the policy's thread and the recorder, and takes over the flows that a former agent
    /// left behind, `adopted` of them.
    ///
    /// # Errors
    ///
    /// Returns an error when the recording or the file for ACKs cannot be written.
    pub(super) fn start(
        settings: Settings,
        recording: Option<Recording>,
        datapath: D,
        adopted: usize,
    ) -> Result<Self, anyhow::Error> {
        let policy = settings.policy;
        let interface = policy.interface().clone();
        let mut agent = Agent::new(interface, datapath.slots());
        let (mut recorder, mut session) = (None, None);
        if let Some(begun) = recording {
            agent.start_recording(begun.session.episodes(), begun.addresses);
            recorder = Some(begun.recorder);
            session = Some(begun.session);
        }
        agent.replace(policy.served(session.as_ref()));
        let since_ns = datapath.now_ns();
        for flow in datapath.live_flows() {
            agent.adopt(&flow);
        }
        let heartbeat_limit = Duration::from_nanos(settings.datapath.settings.heartbeat_limit_ns);
        let remote = settings.remote;
        let remote = remote.map(|remote| Remote::new(remote, &policy));
        let acks = match &settings.per_ack_file {
            Some(path) => Some(AckWriter::create(path)?),
            None => None,
        };
        let mut service = Self {
            inference: Inference::new(heartbeat_limit + settings.loader.added_delay),
            policies: Policies {
                loader: settings.loader,
                rails: settings.rails,
                block: settings.canary_block,
                incumbent: Origin::of(&policy),
                failure: None,
                health: Health::default(),
                restarted: None,
                former: None,
                candidate: None,
                last_outcome: None,
                restarts: 0,
                replacements: 0,
                withdrawals: 0,
            },
            session,
            datapath,
            agent,
            remote,
            acks,
            recorder,
            name: settings.datapath.name,
            adopted,
            takeover_gap_ms: None,
            since_ns,
            reclaimer: Reclaimer::default(),
            tracers: Tracers::default(),
            started: Instant::now(),
            heartbeat_limit,
            last_beat_ns: None,
            capabilities: Capabilities::held()
                .map_or_else(|| "not known".into(), |held| held.to_string()),
            served: settings.served,
            differs: None,
            history: History::default(),
            ledger: Ledger::default(),
            default: None,
        };
        service
            .install(Arm::Incumbent, policy)
            .map_err(anyhow::Error::msg)?;
        if let Some(canary) = settings.canary {
            let news = service.start_canary(canary.candidate, canary.percent, canary.by)?;
            info!("{news}");
        }
        service.beat();
        Ok(service)
    }

    /// Serves on after another agent was to take over and did not.
    ///
    /// # Errors
    ///
    /// Returns an error when the records cannot be read any more.
    pub(super) fn resume(&mut self) -> Result<(), kernel::Error> {
        self.datapath.resume()?;
        self.beat();
        Ok(())
    }

    /// Time between two heartbeats, a tenth of the datapath's limit.
    pub(super) fn heartbeat_period(&self) -> Duration {
        (self.heartbeat_limit / 10).clamp(Duration::from_millis(2), Duration::from_millis(100))
    }

    /// Takes the records that are there.
    pub(super) fn take_records(&mut self) {
        let records = self.datapath.drain_records(DRAIN);
        self.on_records(&records);
    }

    /// Hands records to the agent's core.
    pub(super) fn on_records(&mut self, records: &[Bytes]) {
        let now_ns = self.datapath.now_ns();
        for bytes in records {
            match Record::decode(bytes) {
                Ok(record) if record.header().time_ns < self.since_ns => {}
                Ok(record) => {
                    let datapath = &self.datapath;
                    self.agent
                        .on_record(now_ns, &record, |slot| datapath.flow(slot));
                }
                Err(error) => warn!("the datapath sent {error}"),
            }
        }
    }

    /// Hands single ACKs to the thread that writes them.
    pub(super) fn take_acks(&mut self) {
        if let Some(writer) = &mut self.acks {
            for _ in 0..ACK_DRAINS {
                let records = self.datapath.drain_acks(DRAIN);
                if records.is_empty() {
                    return;
                }
                writer.write(records);
            }
        }
    }

    /// Closes the flows that the datapath has closed without the agent hearing of it.
    pub(super) fn reconcile(&mut self) {
        let datapath = &self.datapath;
        self.agent.reconcile(|slot| datapath.occupant(slot));
        if let Some(remote) = &mut self.remote {
            remote.reconcile(|slot| datapath.occupant(slot));
        }
    }

    /// Serves the sockets of a cgroup from now on. It is no news: there may be many.
    pub(super) fn add_cgroup(&mut self, directory: &Path) -> Outcome {
        let added = self.datapath.add_cgroup(directory);
        let shown = directory.display();
        match added.map_err(|error| error.to_string())? {
            true => {
                info!("new connections of the cgroup {shown} are served");
                Ok(format!("new connections of {shown} are served from now on"))
            }
            false => Ok(format!("new connections of {shown} are served already")),
        }
    }

    /// Serves the sockets of a cgroup no longer that a command has named.
    pub(super) fn remove_cgroup(&mut self, directory: &Path) -> Outcome {
        let removed = self.datapath.remove_cgroup(directory);
        let shown = directory.display();
        match removed.map_err(|error| error.to_string())? {
            true => {
                info!("the cgroup {shown} is none of those that commands have named any more");
                Ok(format!(
                    "{shown} was removed from the cgroups that commands have named"
                ))
            }
            false => Ok(format!("no command has named {shown}")),
        }
    }

    /// Serves the cgroups that commands to a former agent had named, as far as they are there.
    pub(super) fn inherit_cgroups(&mut self, directories: &[PathBuf]) {
        for directory in directories {
            if let Err(error) = self.datapath.add_cgroup(directory) {
                warn!("a cgroup of the former agent is not served: {error}");
            }
        }
    }

    /// Forgets the cgroups that commands have named and somebody has removed.
    pub(super) fn forget_removed_cgroups(&mut self) {
        for directory in self.datapath.forget_removed_cgroups() {
            info!("the cgroup {} was removed", directory.display());
        }
    }

    /// Takes slots of idle flows away.
    pub(super) fn reclaim(&mut self) {
        self.reclaimer.turn(&self.agent, &mut self.datapath);
    }

    /// Closes the windows of flows that have fallen silent.
    pub(super) fn close_silent_windows(&mut self) {
        let now_ns = self.datapath.now_ns();
        let datapath = &self.datapath;
        self.agent.close_silent(now_ns, |slot| datapath.flow(slot));
    }

    /// Time until the next window of a silent flow is due; `None` when no window is awaited.
    pub(super) fn silence_due(&self) -> Option<Duration> {
        let due_ns = self.agent.silence_due_ns()?;
        let left_ns = due_ns.saturating_sub(self.datapath.now_ns());
        Some(Duration::from_nanos(left_ns))
    }

    /// Time until a question to the policy server is late; `None` while none is out.
    pub(super) fn remote_due(&self) -> Option<Duration> {
        let due_ns = self.remote.as_ref()?.due_ns()?;
        let left_ns = due_ns.saturating_sub(self.datapath.now_ns());
        Some(Duration::from_nanos(left_ns))
    }

    /// Sends the flows that wait to their policies, each unless it has a batch. The policy server,
    /// where there is one, has the choice of the incumbent's.
    pub(super) fn ask_policies(&mut self) {
        let now_ns = self.datapath.now_ns();
        for arm in [Arm::Incumbent, Arm::Candidate] {
            let room = self.inference.room(arm);
            let batch = match &mut self.remote {
                Some(remote) if arm == Arm::Incumbent => {
                    remote.ask(now_ns, self.agent.take_batch_of(arm, usize::MAX));
                    if !self.inference.has(arm) {
                        // Their next windows may be the server's again.
                        let batch = remote.take_local(now_ns, usize::MAX);
                        self.agent.on_no_answer(batch);
                        continue;
                    }
                    remote.take_local(now_ns, room)
                }
                _ => self.agent.take_batch_of(arm, room),
            };
            self.inference.ask(arm, batch);
        }
    }

    /// Takes note of what has happened to the policy server's connection, and publishes its
    /// decisions.
    pub(super) fn on_remote(&mut self, event: Event) {
        let Some(remote) = &mut self.remote else {
            return;
        };
        let now_ns = self.datapath.now_ns();
        let is_up = matches!(event, Event::Up(_));
        let (batch, choices) = remote.on_event(now_ns, event);
        if is_up {
            let session = self.session.as_ref();
            let header = session.and_then(|session| remote.header(session));
            self.agent.set_server_header(header);
        }
        let datapath = &self.datapath;
        self.agent
            .on_choices(now_ns, batch, &choices, |slot, decision| {
                datapath.publish(slot, decision);
            });
    }

    /// Ends the connection to the policy server, because another policy decides from now on.
    fn end_remote(&mut self) {
        if let Some(remote) = self.remote.take() {
            remote.end(&mut self.agent);
        }
    }

    /// Publishes the decisions of an answer. Returns the failure once too many answers of the
    /// incumbent were unusable.
    pub(super) fn publish(&mut self, arm: Arm, answer: Answer) -> Option<Failure> {
        let Answer {
            batch,
            choices,
            took,
        } = answer;
        self.agent.on_batch_time(arm, took);
        let failure = match arm {
            Arm::Incumbent => self.policies.health.after(&choices),
            // The guard rails of the canary are stricter.
            Arm::Candidate => None,
        };
        let datapath = &self.datapath;
        let publish = |slot, decision| datapath.publish(slot, decision);
        self.agent
            .on_choices(datapath.now_ns(), batch, &choices, publish);
        failure
    }

    /// Sets the heartbeat, unless no policy decides: flows shall fall back then, as they do when
    /// the agent is gone.
    pub(super) fn beat(&mut self) {
        self.inference.look();
        let remote = self.remote.as_ref();
        if remote.is_some_and(Remote::is_connected)
            || self.decides() && !self.inference.hangs(Arm::Incumbent)
        {
            let now_ns = self.datapath.now_ns();
            self.datapath.beat(now_ns);
            self.last_beat_ns = Some(now_ns);
        }
    }

    /// Whether flows are decided about, or soon will be: whether a service manager should leave the
    /// agent alone. While no policy works a restart may bring back the one that is configured.
    pub(super) fn is_fit(&self) -> bool {
        let age_ns = self
            .last_beat_ns
            .map_or(0, |beat_ns| self.datapath.now_ns().saturating_sub(beat_ns));
        Duration::from_nanos(age_ns) <= self.heartbeat_limit + HEARTBEAT_SLACK
    }

    /// Name of the congestion control.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The state in a line, for `systemctl status`.
    pub(super) fn line(&self) -> String {
        let policy = &self.policies.incumbent.text;
        let live = self.agent.live();
        match &self.policies.failure {
            None => format!("{}: {live} flows; policy {policy}", self.name),
            Some(failure) => format!(
                "{}: {live} flows, on the fallback; policy {policy} failed: {failure}",
                self.name
            ),
        }
    }

    /// The arm whose policy hangs; `None` when neither does.
    pub(super) fn hanging(&self) -> Option<Arm> {
        [Arm::Incumbent, Arm::Candidate]
            .into_iter()
            .find(|&arm| self.inference.hangs(arm))
    }

    /// The failure of a policy that hangs.
    pub(super) fn hang(&self) -> Failure {
        Failure::Hung(self.inference.limit())
    }

    /// Ends a policy that has failed. A candidate is withdrawn. An incumbent whose process failed
    /// is to be started again, unless it was so within the last minute; then, and when its answers
    /// are unusable, the former policy is to take over. Without one, flows run on the fallback.
    pub(super) fn on_failure(&mut self, arm: Arm, failure: &Failure) -> Remedy {
        if arm == Arm::Candidate {
            return (self.withdraw_breaching(&failure.to_string()), None);
        }
        let batch = self.inference.remove(arm);
        self.give_back(batch);
        let policies = &mut self.policies;
        let text = &policies.incumbent.text;
        let now = tokio::time::Instant::now();
        let of_the_process = !matches!(failure, Failure::Unusable { .. });
        let long_ago = |at: tokio::time::Instant| now - at >= RESTART_PERIOD;
        if of_the_process && policies.restarted.is_none_or(long_ago) {
            policies.restarted = Some(now);
            policies.failure = Some(failure.to_string());
            let news = format!("policy {text} has failed and is started again: {failure}");
            let repair = Repair {
                job: policies.incumbent.job.clone(),
                caged: policies.loader.caged,
                purpose: Purpose::Restart,
            };
            return (Err(news), Some(repair));
        }
        self.give_up(&failure.to_string())
    }

    /// Replaces the incumbent, which has failed and is not started again.
    pub(super) fn give_up(&mut self, reason: &str) -> Remedy {
        let policies = &mut self.policies;
        policies.replacements += 1;
        policies.failure = Some(reason.to_owned());
        self.ledger.fail(&policies.incumbent.name);
        let failed = format!("policy {} has failed: {reason}", policies.incumbent.text);
        let Some(former) = policies.former.take() else {
            let news = format!(
                "{failed}; there is no former policy, and flows run on the fallback until one is \
                 loaded with `cc-agent reload`"
            );
            return (Err(news), None);
        };
        let news = format!("{failed}; the former policy {} takes over", former.text);
        let repair = Repair {
            job: former.job,
            caged: policies.loader.caged,
            purpose: Purpose::Reinstate,
        };
        (Err(news), Some(repair))
    }

    /// Whether an incumbent is at work.
    pub(super) fn decides(&self) -> bool {
        self.inference.has(Arm::Incumbent)
    }

    /// Sets the incumbent to work again, or the former policy in its place.
    pub(super) fn repair(&mut self, loaded: LoadedPolicy, purpose: Purpose) -> Outcome {
        let text = loaded.text.clone();
        let news = if purpose == Purpose::Restart {
            self.policies.restarts += 1;
            format!("policy {text} was started again")
        } else {
            let candidate = self.inference.remove(Arm::Candidate);
            self.policies.candidate = None;
            self.end_remote();
            self.agent.replace(loaded.served(self.session.as_ref()));
            self.give_back(candidate);
            self.policies.incumbent = Origin::of(&loaded);
            self.policies.restarted = None;
            self.note_in_service("the failure of the policy that was in service");
            format!("the former policy {text} decides again")
        };
        self.install(Arm::Incumbent, loaded).map(|()| news)
    }

    /// Sets a policy to work for an arm.
    fn install(&mut self, arm: Arm, loaded: LoadedPolicy) -> Result<(), String> {
        loaded.log();
        if let ReadyPolicy::Caged(cage) = &loaded.policy
            && let Err(error) = cage.take_niceness()
        {
            warn!("the policy's process keeps its priority, {error}");
        }
        let former = self
            .inference
            .install(arm, loaded.policy)
            .map_err(|error| format!("policy {} cannot be set to work: {error}", loaded.text))?;
        self.give_back(former);
        if arm == Arm::Incumbent {
            self.policies.failure = None;
            self.policies.health = Health::default();
        }
        Ok(())
    }

    /// Frees the flows of a batch that nobody answers.
    fn give_back(&mut self, batch: Option<cc_core::agent::Batch>) {
        if let Some(batch) = batch {
            self.agent.on_no_answer(batch);
        }
    }

    /// Hands finished rows to the recorder.
    pub(super) fn record(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.write(self.agent.take_rows());
        }
    }

    /// The loader of policies, and the interface that they must fit.
    pub(super) fn loader(&self) -> (PolicyLoader, Interface) {
        (self.policies.loader.clone(), self.agent.interface().clone())
    }

    /// The incumbent's spec, which is a file's if it can be loaded again.
    pub(super) fn incumbent(&self) -> &PolicySpec {
        &self.policies.incumbent.job.policy
    }

    /// The incumbent in a line.
    pub(super) fn incumbent_text(&self) -> &str {
        &self.policies.incumbent.text
    }

    /// What the incumbent before this one can be made of again, if that is the policy of this id.
    pub(super) fn former(&self, id: &str) -> Option<Job> {
        let former = self.policies.former.as_ref();
        former
            .filter(|former| former.name == id)
            .map(|former| former.job.clone())
    }

    /// Enters into the ledger that the incumbent is in service, because of `by`.
    pub(super) fn note_in_service(&mut self, by: &str) {
        let incumbent = &self.policies.incumbent;
        let policy = ledger::in_service(&incumbent.job.policy, incumbent.sha256(), by);
        self.ledger.serve(policy);
    }

    /// Enters the policies of the agent's start into a ledger, which is the service's from now on.
    pub(super) fn begin_ledger(&mut self, ledger: Ledger) {
        self.ledger = ledger;
        let incumbent = &self.policies.incumbent;
        let policy = ledger::in_service(
            &incumbent.job.policy,
            incumbent.sha256(),
            "the agent's start",
        );
        self.ledger.begin(policy, &incumbent.job);
        if let Some(candidate) = &self.policies.candidate {
            let sha256 = candidate.sha256();
            self.ledger.place().keep(&candidate.job, sha256.as_deref());
        }
    }

    /// What the incumbent can be made of again, with the SHA-256 of its file; `None` where it has
    /// none.
    pub(super) fn incumbent_file(&self) -> (Job, Option<String>) {
        let incumbent = &self.policies.incumbent;
        (incumbent.job.clone(), incumbent.sha256())
    }

    /// Makes a policy the incumbent of all flows that was it before: what was put into service
    /// after it was rolled back from, and does not take over when this one fails.
    pub(super) fn roll_back(&mut self, loaded: LoadedPolicy, by: &str) -> Outcome {
        let id = loaded.name.clone();
        let outcome = self.replace(loaded)?;
        self.policies.former = None;
        self.ledger.roll_back_to(&id, by);
        Ok(outcome)
    }

    /// Makes a policy the incumbent of all flows. Refused while a canary is running.
    pub(super) fn replace(&mut self, loaded: LoadedPolicy) -> Outcome {
        if self.policies.candidate.is_some() {
            return Err("a canary is running: promote or withdraw its candidate first".into());
        }
        let served = loaded.served(self.session.as_ref());
        let origin = Origin::of(&loaded);
        // What decided until now is no policy that has failed.
        let worked = self.decides();
        self.end_remote();
        self.agent.replace(served);
        self.install(Arm::Incumbent, loaded)?;
        self.succeed(origin, worked);
        let text = &self.policies.incumbent.text;
        Ok(format!("policy {text} decides from now on"))
    }

    /// Notes the new incumbent, and the former one if it `worked` until now.
    fn succeed(&mut self, origin: Origin, worked: bool) {
        let former = std::mem::replace(&mut self.policies.incumbent, origin);
        match worked {
            true => self.policies.former = Some(former),
            false => self.ledger.fail(&former.name),
        }
        self.policies.restarted = None;
    }

    /// Gives a candidate `percent` of the flows, paths or hosts. A canary that is running ends, its
    /// candidate withdrawn.
    ///
    /// # Errors
    ///
    /// Returns the reason why the candidate cannot be set to work.
    pub(super) fn start_canary(
        &mut self,
        loaded: LoadedPolicy,
        percent: f64,
        by: CanaryBy,
    ) -> Result<String, anyhow::Error> {
        let candidate = loaded.served(self.session.as_ref());
        let now_ns = self.datapath.now_ns();
        let plan = CanaryPlan {
            percent,
            by,
            block: self.policies.block,
            salt: now_ns,
        };
        let origin = Origin::of(&loaded);
        self.agent
            .start_canary(candidate, plan, self.policies.rails, now_ns);
        if let Err(reason) = self.install(Arm::Candidate, loaded) {
            self.agent.withdraw();
            anyhow::bail!(reason);
        }
        let share = match by {
            CanaryBy::Time => "flows in its blocks of time",
            CanaryBy::Path => "paths",
            CanaryBy::Host => "hosts",
        };
        let text = format!("candidate {} has {percent} % of the {share}", origin.text);
        self.policies.candidate = Some(origin);
        Ok(text)
    }

    /// Goes on to the present block of a canary's time.
    pub(super) fn turn_canary(&mut self) {
        self.agent.turn_canary(self.datapath.now_ns());
    }

    /// Makes the candidate the incumbent, whatever the canary has found; the answer says what.
    pub(super) fn promote(&mut self) -> Outcome {
        let found = self.canary().map(|canary| {
            let (units, needed) = (canary.units(), canary.units_needed);
            let of = canary.by.units();
            format!("; found: {} after {units} of {needed} {of}", canary.finding)
        });
        let Some(candidate) = self.policies.candidate.take() else {
            return Err("there is no candidate to promote".into());
        };
        let worked = self.decides();
        self.end_remote();
        self.agent.promote();
        let former = self.inference.promote();
        self.give_back(former);
        self.succeed(candidate, worked);
        self.policies.failure = None;
        self.policies.health = Health::default();
        let text = &self.policies.incumbent.text;
        let found = found.unwrap_or_default();
        Ok(format!("candidate {text} was promoted{found}"))
    }

    /// Ends the canary; the incumbent takes over the candidate's flows.
    pub(super) fn withdraw(&mut self, reason: &str) -> Outcome {
        let Some(Origin { text, .. }) = self.policies.candidate.take() else {
            return Err("there is no candidate to withdraw".into());
        };
        self.agent.withdraw();
        let batch = self.inference.remove(Arm::Candidate);
        self.give_back(batch);
        Ok(format!("candidate {text} was withdrawn: {reason}"))
    }

    /// Withdraws a candidate that has failed or breaches a guard rail.
    fn withdraw_breaching(&mut self, reason: &str) -> Outcome {
        self.policies.withdrawals += 1;
        self.withdraw(reason)
    }

    /// Withdraws the candidate when it breaches a guard rail; `None` when it does not.
    pub(super) fn check_canary(&mut self) -> Option<Outcome> {
        let breach = self.agent.breach(self.datapath.now_ns())?;
        Some(self.withdraw_breaching(&breach.to_string()))
    }

    /// Logs the outcome of a command or canary and keeps it for the snapshots to come.
    pub(super) fn note(&mut self, outcome: &Outcome) {
        match outcome {
            Ok(text) => info!("{text}"),
            Err(text) => warn!("{text}"),
        }
        let (Ok(text) | Err(text)) = outcome;
        self.history.add(outcome.is_err(), text);
        self.policies.last_outcome = Some(text.clone());
    }

    /// The state of the agent now.
    ///
    /// # Errors
    ///
    /// Returns an error when the datapath's counters cannot be read.
    pub(super) fn snapshot(&self) -> Result<Snapshot, kernel::Error> {
        let counters = self.datapath.counters()?;
        Ok(Snapshot {
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            remote: self.remote.as_ref().map(Remote::status),
            policy: match &self.policies.failure {
                None => self.policies.incumbent.text.clone(),
                Some(failure) => format!("{} (failed: {failure})", self.policies.incumbent.text),
            },
            policy_sha256: self.policies.incumbent.sha256(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            slots: self.datapath.slots(),
            live_flows: self.agent.live(),
            modes: (self.agent.modes().into_iter())
                .map(|(mode, flows)| (mode.to_owned(), flows))
                .collect(),
            heartbeat_age_ms: self
                .last_beat_ns
                .map(|beat_ns| self.datapath.now_ns().saturating_sub(beat_ns) as f64 / 1e6),
            taken_ns: self.datapath.now_ns(),
            adopted_flows: self.adopted,
            flows_on_former_programs: self.agent.live_on_other_programs(self.datapath.number()),
            takeover_gap_ms: self.takeover_gap_ms,
            agent: AgentCounts {
                policies_restarted: self.policies.restarts,
                policies_replaced: self.policies.replacements,
                candidates_withdrawn: self.policies.withdrawals,
                slots_reclaimed: self.reclaimer.freed(),
                ..self.agent.counts()
            },
            datapath: Counter::ALL
                .iter()
                .zip(counters)
                .map(|(counter, value)| (counter.name().to_owned(), value))
                .collect(),
            decision_delay: percentiles(self.agent.delays()),
            inference: percentiles(self.inference.times()),
            distributions: self.distributions(),
            mean_batch: self.inference.mean_batch(),
            cpu_s: clock::cpu_s(),
            canary: self.canary(),
            news: self.policies.last_outcome.clone(),
            incidents: self.history.incidents(),
            policies: self.ledger.known(),
            served: Some(self.served.clone()),
            cgroups: self.datapath.added_cgroups(),
            capabilities: Some(self.capabilities.clone()),
            differs: self.differs.clone(),
            default: self.default.clone(),
            recording: self.recorder.as_ref().map(|recorder| RecordingStatus {
                rows_lost_unanswered: self.agent.rows_dropped(),
                ..recorder.status()
            }),
            flows: self.agent.views(FLOWS_SHOWN),
            matching_flows: None,
        })
    }

    fn distributions(&self) -> Distributions {
        Distributions {
            decision_delay: Distribution::of(self.agent.delays(), &DELAY_MS),
            inference: Distribution::of(self.inference.times(), &DELAY_MS),
            windows: self.agent.window_distributions().clone(),
        }
    }

    /// The state of the agent now, with the flows that come first in an order, of all that a filter
    /// shows.
    ///
    /// # Errors
    ///
    /// Returns an error when the datapath's counters cannot be read.
    pub(super) fn snapshot_of(
        &self,
        order: Sort,
        filter: &Filter,
    ) -> Result<Snapshot, kernel::Error> {
        let now_ns = self.datapath.now_ns();
        let shows = |flow: &FlowView| filter.shows(flow);
        let rank = |flow: &FlowView| order.rank(flow, now_ns);
        let (flows, matching) = self.agent.views_by(FLOWS_SHOWN, shows, rank);
        Ok(Snapshot {
            flows,
            matching_flows: Some(matching),
            ..self.snapshot()?
        })
    }

    /// [`Self::snapshot`], ready to be shared with the threads that show it.
    pub(super) fn shared_snapshot(&self) -> Result<Arc<Snapshot>, kernel::Error> {
        self.snapshot().map(Arc::new)
    }

    fn canary(&self) -> Option<CanaryStatus> {
        let report = self.agent.canary(self.datapath.now_ns())?;
        let candidate = self.policies.candidate.as_ref()?;
        Some(CanaryStatus {
            candidate: candidate.text.clone(),
            by: report.plan.by,
            percent: report.plan.percent,
            block_s: report.plan.block.as_secs_f64(),
            units_needed: report.units_needed,
            finding: report.finding,
            metrics: report.metrics,
            neighbours: report.neighbours,
            shift: report.shift,
            incumbent_flows: report.incumbent,
            candidate_flows: report.candidate,
        })
    }
}

impl<D: DatapathIo> Drop for Service<D> {
    fn drop(&mut self) {
        // The recorder, dropped after this, waits until all rows are written.
        self.agent.stop_recording();
        self.record();
    }
}

/// Percentiles in ms of durations in µs.
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
