//! The state of a running agent and everything that the event loop does with it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cc_ebpf::{Counter, Record};
use hdrhistogram::Histogram;
use tracing::{info, warn};

use super::datapath::DatapathIo;
use crate::{
    acks::AckWriter,
    deploy::{LoadedPolicy, PolicyLoader},
    inference::{Answer, Inference, Order},
    kernel::{self, clock, privileges::Capabilities},
    recording_setup::RecordingSession,
    settings::Settings,
};
use cc_core::{
    agent::Agent,
    canary::{Arm, CanaryShare, GuardRails},
    interface::Interface,
    policy::PolicySpec,
    status::{CanaryStatus, Outcome, Percentiles, RecordingStatus, Snapshot},
};
use cc_recording::Recorder;

/// Queries in one batch, at most: enough for the policy's full speed, and few enough that no flow
/// waits for much longer than its own inference.
const BATCH: usize = 256;
/// Records taken at once, at most: so many that taking them is cheap, and so few that the event
/// loop soon gets to everything else.
pub(super) const DRAIN: usize = 4_096;
/// Times that per-ACK records are taken at once, at most: on many processors they may come faster
/// than they are taken.
const ACK_DRAINS: usize = 16;
/// Flows in a snapshot, at most.
const FLOWS_SHOWN: usize = 500;

/// A running agent: its datapath, its flows and the policies that decide for them.
pub(super) struct Service<D: DatapathIo> {
    // Dropped first, which unregisters the congestion control.
    pub(super) datapath: D,
    pub(super) agent: Agent,
    pub(super) inference: Inference,
    policies: Policies,
    acks: Option<AckWriter>,
    recorder: Option<Recorder>,
    session: Option<RecordingSession>,
    name: String,
    adopted: usize,
    /// When the agent took over, on the datapath's clock: older records tell of what a former agent
    /// has seen, or what the state of the flows said already.
    since_ns: u64,
    started: Instant,
    /// Without a heartbeat for this long, flows fall back.
    heartbeat_limit: Duration,
    /// The capabilities that the agent holds.
    capabilities: String,
    /// How the policy differs from what was remembered at the start.
    pub(super) differs: Option<String>,
}

/// The policies, as commands and reports name them.
struct Policies {
    loader: PolicyLoader,
    rails: GuardRails,
    spec: PolicySpec,
    text: String,
    candidate: Option<(PolicySpec, String)>,
    /// The outcome of the last command, or the reason why the last canary ended.
    last_outcome: Option<String>,
}

impl<D: DatapathIo> Service<D> {
    /// Starts the policy's thread and the recorder, and takes over the flows that a former agent
    /// left behind, `adopted` of them.
    ///
    /// # Errors
    ///
    /// Returns an error when the recording or the file for ACKs cannot be written.
    pub(super) fn start(
        settings: Settings,
        datapath: D,
        adopted: usize,
    ) -> Result<Self, anyhow::Error> {
        let policy = settings.policy;
        let interface = policy.policy.interface().clone();
        let mut agent = Agent::new(interface, datapath.slots());
        let (mut recorder, mut session) = (None, None);
        if let Some(recording) = settings.recording {
            let begun = RecordingSession::begin(recording.addresses.clone());
            recorder = Some(begun.start_recorder(recording.limits)?);
            agent.start_recording(begun.episodes(), recording.addresses);
            session = Some(begun);
        }
        agent.replace(policy.served(session.as_ref()));
        let since_ns = datapath.now_ns();
        for flow in datapath.live_flows() {
            agent.adopt(&flow);
        }
        let heartbeat_limit = Duration::from_nanos(settings.datapath.settings.heartbeat_limit_ns);
        let acks = match &settings.per_ack_file {
            Some(path) => Some(AckWriter::create(path)?),
            None => None,
        };
        let mut service = Self {
            inference: Inference::start(policy.policy, settings.added_delay, heartbeat_limit),
            policies: Policies {
                loader: settings.loader,
                rails: settings.rails,
                spec: policy.spec,
                text: policy.text,
                candidate: None,
                last_outcome: None,
            },
            session,
            datapath,
            agent,
            acks,
            recorder,
            name: settings.datapath.name,
            adopted,
            since_ns,
            started: Instant::now(),
            heartbeat_limit,
            capabilities: Capabilities::held()
                .map_or_else(|| "not known".into(), |held| held.to_string()),
            differs: None,
        };
        if let Some(canary) = settings.canary {
            info!("{}", service.start_canary(canary.candidate, canary.percent));
        }
        service.beat();
        Ok(service)
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

    /// Sends the flows that wait to their policy, unless a batch is out.
    pub(super) fn ask_policy(&mut self) {
        if self.agent.has_waiting() && self.inference.is_idle() {
            self.inference.ask(self.agent.take_batch(BATCH));
        }
    }

    /// Publishes the decisions of an answer.
    pub(super) fn publish(&mut self, answer: Answer) {
        self.inference.on_answer(&answer);
        let datapath = &self.datapath;
        let publish = |slot, decision| datapath.publish(slot, decision);
        self.agent
            .on_choices(datapath.now_ns(), answer.batch, &answer.choices, publish);
    }

    /// Sets the heartbeat, unless the policy hangs: flows shall fall back then, as they do when the
    /// agent is gone.
    pub(super) fn beat(&mut self) {
        if !self.inference.hangs() {
            self.datapath.beat(self.datapath.now_ns());
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
        &self.policies.spec
    }

    /// The incumbent in a line.
    pub(super) fn incumbent_text(&self) -> &str {
        &self.policies.text
    }

    /// Makes a policy the incumbent of all flows. Refused while a canary is running.
    pub(super) fn replace(&mut self, loaded: LoadedPolicy) -> Outcome {
        if self.policies.candidate.is_some() {
            return Err("a canary is running: promote or withdraw its candidate first".into());
        }
        self.agent.replace(loaded.served(self.session.as_ref()));
        self.inference
            .order(Order::Install(Arm::Incumbent, loaded.policy));
        self.policies.spec = loaded.spec;
        self.policies.text = loaded.text;
        Ok(format!("policy {} decides from now on", self.policies.text))
    }

    /// Gives a candidate `percent` of the new flows. A canary that is running ends, its candidate
    /// withdrawn.
    pub(super) fn start_canary(&mut self, loaded: LoadedPolicy, percent: f64) -> String {
        let candidate = loaded.served(self.session.as_ref());
        let share = CanaryShare::new(percent, self.datapath.now_ns());
        self.agent
            .start_canary(candidate, share, self.policies.rails);
        self.inference
            .order(Order::Install(Arm::Candidate, loaded.policy));
        let text = format!("candidate {} has {percent} % of the new flows", loaded.text);
        self.policies.candidate = Some((loaded.spec, loaded.text));
        text
    }

    /// Makes the candidate the incumbent.
    pub(super) fn promote(&mut self) -> Outcome {
        let Some((spec, text)) = self.policies.candidate.take() else {
            return Err("there is no candidate to promote".into());
        };
        self.agent.promote();
        self.inference.order(Order::Promote);
        self.policies.spec = spec;
        self.policies.text = text;
        Ok(format!("candidate {} was promoted", self.policies.text))
    }

    /// Ends the canary; the incumbent takes over the candidate's flows.
    pub(super) fn withdraw(&mut self, reason: &str) -> Outcome {
        let Some((_, text)) = self.policies.candidate.take() else {
            return Err("there is no candidate to withdraw".into());
        };
        self.agent.withdraw();
        self.inference.order(Order::Withdraw);
        Ok(format!("candidate {text} was withdrawn: {reason}"))
    }

    /// Withdraws the candidate when it breaches a guard rail; `None` when it does not.
    pub(super) fn check_canary(&mut self) -> Option<Outcome> {
        let breach = self.agent.breach()?;
        Some(self.withdraw(&breach.to_string()))
    }

    /// Logs the outcome of a command or canary and keeps it for the snapshots to come.
    pub(super) fn note(&mut self, outcome: &Outcome) {
        match outcome {
            Ok(text) => info!("{text}"),
            Err(text) => warn!("{text}"),
        }
        let (Ok(text) | Err(text)) = outcome;
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
            policy: self.policies.text.clone(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            slots: self.datapath.slots(),
            live_flows: self.agent.live(),
            adopted_flows: self.adopted,
            agent: self.agent.counts(),
            datapath: Counter::ALL
                .iter()
                .zip(counters)
                .map(|(counter, value)| (counter.name().to_owned(), value))
                .collect(),
            decision_delay: percentiles(self.agent.delays()),
            inference: percentiles(self.inference.times()),
            mean_batch: self.inference.mean_batch(),
            cpu_s: clock::cpu_s(),
            canary: self.canary(),
            news: self.policies.last_outcome.clone(),
            capabilities: Some(self.capabilities.clone()),
            differs: self.differs.clone(),
            recording: self.recorder.as_ref().map(|recorder| RecordingStatus {
                rows_lost_unanswered: self.agent.rows_dropped(),
                ..recorder.status()
            }),
            flows: self.agent.views(FLOWS_SHOWN),
        })
    }

    /// [`Self::snapshot`], ready to be shared with the threads that show it.
    pub(super) fn shared_snapshot(&self) -> Result<Arc<Snapshot>, kernel::Error> {
        self.snapshot().map(Arc::new)
    }

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
