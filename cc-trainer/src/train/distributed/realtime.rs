//! A worker whose environments run by the clock: flows under the real kernel, which an agent serves
//! by the learner's policies, and records.
//!
//! ```text
//!              policies                        recording
//!   learner ──────────────► worker ──► agent ──────────────► worker ──► learner
//!                          (reload)    │   ▲   (read while    rollouts
//!                                      ▼   │    it is written)
//!                                      flows
//! ```
//!
//! The flows are either those of emulated links, which the worker draws and runs, with an agent of
//! its own, or those of a live agent, whose recording the worker reads. A thread makes rollouts of
//! the rows ([`StreamedFlows`]): it runs the policy that took each decision over the observations,
//! so that the LSTM's states are those that the agent had, and takes action and probabilities from
//! the row. A rollout is of one flow or of flows that follow each other, and none waits for another
//! one's.

use std::{
    collections::{HashMap, VecDeque},
    ffi::OsString,
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use cc_client::StatusError;
use cc_core::{
    interface::Interface,
    policy::{ActionSelection, PolicySpec, SpecError},
    rows::Row,
    status::Command,
};
use cc_recording::{Followed, Follower, RecordingError};
use cc_sim::{seed, sim::agent::AgentDelay};
use cc_testbed::{
    evaluate::{
        Agent, AgentError, Agents, Control, FlowSetup, RunError, Scheme, ServedPolicy, Setup, run,
    },
    link::{Addresses, Link},
    summary::Platform,
};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{link::RemoteExchange, work::Work};
use crate::{
    actor::{Actor, Snapshot, StepOutput},
    dataset::differences,
    environment::{
        Environment, FlowTask, Normalised, RewardScale,
        network::{EmulatedLink, World},
        streamed::{StreamCounts, StreamedEnvironment, StreamedFlows},
    },
    learner::values::ValueStatistics,
    policy_file::ExportError,
    train::{
        exchange::{EndOfActing, Exchange},
        source::Source,
    },
};

/// Flows that rollouts are made of at a time, at most.
const SEATS: usize = 1_024;
/// Time between two looks for rows, for a newer policy, and whether acting is over.
const LOOK: Duration = Duration::from_millis(100);
/// Policies of the learner that decisions are known by: the newest of those that were served.
const KNOWN: usize = 128;
/// Policy files that are kept: the agent may go back to the one before.
const KEPT: usize = 4;
/// Numbers of address pairs; an agent's flows are told apart by their addresses.
const PAIRS: u16 = 16_384;
/// Name of the directory with policy files in that of a live agent's recordings.
const POLICIES: &str = "policies";

/// Environments that run by the clock, in the place of simulated ones.
#[derive(Clone, Debug, PartialEq)]
pub struct RealTime {
    /// The flows that the policies are served to.
    pub flows: ServedFlows,
    /// Time between two policies that the agent is given, at least: it takes a good part of a
    /// second of processor time to load one.
    pub reload: Duration,
}

/// Flows that the learner's policies are served to.
#[derive(Clone, Debug, PartialEq)]
pub enum ServedFlows {
    /// Those of emulated links under this host's kernel: as many links at a time as the worker has
    /// actors, drawn as the run's configuration says.
    Links {
        /// Path of the agent's program; `None` for the one beside this program.
        agent: Option<PathBuf>,
    },
    /// Those that a running agent on this host serves. It goes on with the last policy when the
    /// worker ends.
    Live {
        /// The directory that the agent records to. What it holds already is not read. Policy
        /// files are written to a directory in it.
        recording: PathBuf,
        /// The socket at which the agent takes commands.
        socket: PathBuf,
    },
}

/// Why flows cannot be served or learnt from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RealTimeError {
    /// No agent serves policies of such environments.
    #[error(
        "the run does not learn policies that cc-agent serves: real-time workers need \
         environment.kind = \"network\""
    )]
    NotServed,
    /// There is nothing to draw links from.
    #[error(
        "the run learns from recordings, and has no links to draw: name the recording of a live \
         agent (--recording), or learn with environment.kind = \"network\""
    )]
    NoLinks,
    /// The critic reads what only the simulator knows.
    #[error(
        "the critic of the run has a privileged observation, which only simulated environments \
         have: set learner.privileged = false (and learner.prediction_cost = 0) to learn from \
         real-time workers"
    )]
    Privileged,
    /// Hardly any of the configuration's links is slow enough.
    #[error(
        "the links of the run are faster than the {} Mbit/s that are emulated",
        Link::MAX_MBPS
    )]
    TooFast,
    /// A policy cannot be written as a policy file.
    #[error("a policy of the learner cannot be served: {0}")]
    Export(#[from] ExportError),
    /// A policy file's name cannot be given to the agent.
    #[error("a policy of the learner cannot be served: {0}")]
    Name(#[from] SpecError),
    /// The agent cannot be started.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The agent does not take a policy, or does not answer.
    #[error("serving the learner's policy: {0}")]
    Command(#[from] StatusError),
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// A link cannot be emulated.
    #[error("a link of {scenario}: {source}")]
    Run {
        /// Name of the link's scenario.
        scenario: String,
        /// Why it cannot be, in the words of its source.
        source: Box<RunError>,
    },
    /// A directory or file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Path of the file or directory.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
}

impl RealTimeError {
    /// Whether it may pass, as when a live agent is started again.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Command(error) if !matches!(error, StatusError::Refused(_)))
    }
}

/// What was made of the rows so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamPoint {
    /// Decisions that came, and those that nothing is learnt from.
    pub counts: StreamCounts,
    /// Rows of other interfaces than the run's, which are left out.
    pub others: u64,
}

/// Flows that are being served and recorded.
pub(super) struct Serving<'a> {
    work: &'a Work,
    interface: Interface,
    reload: Duration,
    /// Directory of the agent's recording.
    recording: PathBuf,
    /// Directory of the policy files that the agent is to load.
    policies: PathBuf,
    target: Target<'a>,
    known: Mutex<VecDeque<Known>>,
    /// What the decisions of emulated links count as, by the address of their senders.
    places: Mutex<HashMap<IpAddr, FlowTask>>,
    /// Number of the next address pair.
    pair: AtomicU16,
    point: Mutex<StreamPoint>,
    /// Whether links are to end.
    over: AtomicBool,
    // The last one: the agent ends before its directory does.
    _scratch: Option<TempDir>,
}

/// Who serves the policies of the learner.
enum Target<'a> {
    Links { agent: Agent, world: &'a World },
    Live { socket: PathBuf },
}

/// A policy of the learner that decisions may be of.
struct Known {
    /// SHA-256 of its file, by which recordings name it.
    sha256: String,
    snapshot: Arc<Snapshot>,
}

impl<'a> Serving<'a> {
    /// Begins to serve a policy. For emulated links this starts an agent, which ends with the
    /// calling thread.
    ///
    /// # Errors
    ///
    /// Returns an error when the run's policies cannot be served or learnt from flows, when the
    /// agent cannot be started, and when a file cannot be written.
    pub(super) fn start(
        real_time: &RealTime,
        work: &'a Work,
        first: &Arc<Snapshot>,
    ) -> Result<Self, RealTimeError> {
        let interface = work.source.interface().ok_or(RealTimeError::NotServed)?;
        if work.shape.privileged > 0 || work.shape.predictions > 0 {
            return Err(RealTimeError::Privileged);
        }
        let serving = |target, recording: PathBuf, policies, scratch| Self {
            work,
            interface: interface.clone(),
            reload: real_time.reload,
            recording,
            policies,
            target,
            known: Mutex::default(),
            places: Mutex::default(),
            pair: AtomicU16::new(0),
            point: Mutex::default(),
            over: AtomicBool::new(false),
            _scratch: scratch,
        };
        match &real_time.flows {
            ServedFlows::Live { recording, socket } => {
                let policies = recording.join(POLICIES);
                fs::create_dir_all(&policies).map_err(write_failed(&policies))?;
                let socket = socket.clone();
                let target = Target::Live { socket };
                Ok(serving(target, recording.clone(), policies, None))
            }
            ServedFlows::Links { agent } => {
                let Source::Network(world) = &work.source else {
                    return Err(RealTimeError::NoLinks);
                };
                let scratch = tempfile::Builder::new().prefix("cc-trainer-").tempdir();
                let scratch = scratch.map_err(write_failed(&std::env::temp_dir()))?;
                let (file, known) = export(work, first, scratch.path())?;
                let recording = scratch.path().join("recording");
                let agent = start(agent.as_deref(), &file, &known, &recording, scratch.path())?;
                let target = Target::Links { agent, world };
                let policies = scratch.path().to_owned();
                let serving = serving(target, recording, policies, Some(scratch));
                serving.known().push_back(known);
                Ok(serving)
            }
        }
    }

    /// Number of links that are to run at a time, of a worker with so many actors.
    pub(super) fn links(&self, actors: usize) -> usize {
        match self.target {
            Target::Links { .. } => actors,
            Target::Live { .. } => 0,
        }
    }

    /// What was made of the rows so far.
    pub(super) fn point(&self) -> StreamPoint {
        *lock(&self.point)
    }

    /// Ends the links that run.
    pub(super) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// Gives the agent the learner's newest policy from time to time, until acting is over.
    pub(super) fn serve(&self, exchange: &RemoteExchange) -> Result<(), RealTimeError> {
        let _end = EndOfActing(exchange);
        let mut files = VecDeque::new();
        let mut served: Option<(u64, Instant)> =
            (self.known().back()).map(|known| (known.snapshot.version, Instant::now()));
        while !exchange.is_over() {
            let newer = match served {
                None => Some(exchange.newest()),
                Some((_, since)) if since.elapsed() < self.reload => None,
                Some((version, _)) => exchange.newer_than(version),
            };
            let Some(policy) = newer else {
                thread::sleep(LOOK);
                continue;
            };
            let (file, known) = export(self.work, &policy, &self.policies)?;
            let pinned = PolicySpec::Onnx(file.clone()).pinned(&known.sha256)?;
            // Known before the first decision is.
            {
                let mut all = self.known();
                all.push_back(known);
                while all.len() > KNOWN {
                    all.pop_front();
                }
            }
            let reload = Command::Reload {
                file: pinned.to_string().into(),
            };
            match &self.target {
                Target::Links { agent, .. } => agent.command(reload)?,
                Target::Live { socket } => cc_client::command(socket, reload)?,
            };
            served = Some((policy.version, Instant::now()));
            files.push_back(file);
            while files.len() > KEPT {
                if let Some(file) = files.pop_front() {
                    fs::remove_file(&file).map_err(write_failed(&file))?;
                }
            }
        }
        Ok(())
    }

    /// Reads what is recorded and sends rollouts of it, until acting is over.
    pub(super) fn stream(&self, exchange: &RemoteExchange) -> Result<(), RealTimeError> {
        let _end = EndOfActing(exchange);
        let work = self.work;
        let (sender, turns) = mpsc::channel();
        let tasks = work.source.spec().tasks;
        let environment = StreamedEnvironment::new(&self.interface, SEATS, tasks, turns);
        let mut environment: Box<dyn Environment> = Box::new(environment);
        if let Some(normalizer) = &work.normalizer {
            environment = Box::new(Normalised::new(environment, normalizer.clone()));
        }
        let learner = &work.config.learner;
        // Nothing is drawn from the seed: every action was taken before.
        let mut actor = Actor::new(vec![environment], exchange.newest(), learner.unroll, 0)
            .at_temperature(learner.policy_temperature())
            .with_burn_in(learner.burn_in);
        let mut flows = StreamedFlows::new(self.interface.clone(), SEATS);
        let mut follower = Follower::new(&self.recording);
        if let Target::Live { .. } = self.target {
            follower.skip()?;
        }
        let mut output = StepOutput::default();
        while !exchange.is_over() {
            let news = follower.poll()?;
            if news.is_empty() {
                thread::sleep(LOOK);
            }
            for Followed { header, rows } in news {
                if !differences(&self.interface, &header.interface).is_empty() {
                    lock(&self.point).others += rows.len() as u64;
                    continue;
                }
                let policy = header.policy.as_str().into();
                for row in rows {
                    let (of, time_ns) = (self.task(&row), header.time_ns(&row));
                    flows.add(row, time_ns, &policy, of, |policy| self.snapshot(policy));
                    while let Some((snapshot, turn)) = flows.take_turn() {
                        actor.adopt(snapshot);
                        // The actor has the other end.
                        let _ = sender.send(turn);
                        actor.step(&mut output);
                    }
                }
            }
            lock(&self.point).counts = flows.counts();
            // Also where there is nothing new: what was gathered before goes then.
            exchange.put(&mut output);
        }
        Ok(())
    }

    /// Emulates one link after the other until acting is over. The seed decides which.
    pub(super) fn emulate(
        &self,
        seed: u64,
        exchange: &RemoteExchange,
    ) -> Result<(), RealTimeError> {
        let _end = EndOfActing(exchange);
        let Target::Links { agent, world } = &self.target else {
            return Ok(());
        };
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut number = 0;
        while !exchange.is_over() && !self.over.load(Relaxed) {
            let link = world.emulated_link(&mut random);
            let link = link.ok_or(RealTimeError::TooFast)?;
            number += 1;
            self.run(&link, agent.control(), seed::fold(seed, number))?;
        }
        Ok(())
    }

    /// Runs a link, whose flows without a scheme are the agent's.
    fn run(&self, link: &EmulatedLink, control: &str, seed: u64) -> Result<(), RealTimeError> {
        let EmulatedLink {
            scenario,
            of,
            length,
        } = link;
        let schemes: Vec<Scheme> = (scenario.flows.iter())
            .map(|flow| Scheme {
                name: flow.scheme.as_deref().unwrap_or(control).to_owned(),
                control: Control::Named,
            })
            .collect();
        let flows = (scenario.flows.iter().zip(&schemes))
            .map(|(flow, scheme)| FlowSetup::of(flow, scheme, *length))
            .collect();
        let slot = self.pair.fetch_add(1, Relaxed) % PAIRS;
        let sender = IpAddr::V4(Addresses::nth(slot).near);
        lock(&self.places).insert(sender, *of);
        let setup = Setup {
            scenario,
            flows,
            seconds: *length,
            seed,
            slot,
            delay: AgentDelay::MEASURED,
        };
        let ran = run(
            Platform::Kernel,
            &setup,
            &Agents::default(),
            &self.over,
            |_| {},
        );
        ran.map(drop).map_err(|source| RealTimeError::Run {
            scenario: scenario.name.clone(),
            source: Box::new(source),
        })
    }

    /// What the decisions of a row's flow count as.
    fn task(&self, row: &Row) -> FlowTask {
        let address = row.local.as_deref().and_then(|local| local.parse().ok());
        let place = address.and_then(|local: SocketAddr| {
            let place = local.ip().to_canonical();
            lock(&self.places).get(&place).copied()
        });
        place.unwrap_or_else(|| FlowTask {
            task: 0,
            rewards: match &self.work.source {
                Source::Network(world) => world.recorded_rewards(None),
                _ => RewardScale::default(),
            },
        })
    }

    /// The policy of the learner's that recordings name so; `None` for another one's.
    fn snapshot(&self, policy: &str) -> Option<Arc<Snapshot>> {
        let known = self.known();
        let own = known.iter().rev().find(|known| known.sha256 == policy);
        own.map(|known| known.snapshot.clone())
    }

    fn known(&self) -> MutexGuard<'_, VecDeque<Known>> {
        lock(&self.known)
    }
}

/// Writes a policy of the learner as a policy file, which is served as it is trained.
fn export(
    work: &Work,
    policy: &Arc<Snapshot>,
    directory: &Path,
) -> Result<(PathBuf, Known), RealTimeError> {
    let temperature = work.config.learner.policy_temperature();
    // A file has one baseline, which no agent reads.
    let statistics = ValueStatistics::default();
    let (shape, parameters) = statistics.single(&work.shape, policy.weights.parameters());
    let provenance = [
        (
            "trainer",
            format!("cc-trainer {}", env!("CARGO_PKG_VERSION")),
        ),
        ("run", work.plan.run.clone()),
        ("updates", policy.version.to_string()),
    ];
    let bytes = work.source.policy(
        &shape,
        &parameters,
        work.normalizer.as_deref(),
        ActionSelection::Softmax { temperature },
        provenance
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
    );
    let bytes = bytes.ok_or(RealTimeError::NotServed)??;
    let file = directory.join(format!("policy-{}.onnx", policy.version));
    fs::write(&file, &bytes).map_err(write_failed(&file))?;
    let known = Known {
        sha256: format!("{:x}", Sha256::digest(&bytes)),
        snapshot: policy.clone(),
    };
    Ok((file, known))
}

/// Starts an agent that serves a policy and records what it does.
fn start(
    program: Option<&Path>,
    file: &Path,
    known: &Known,
    recording: &Path,
    logs: &Path,
) -> Result<Agent, RealTimeError> {
    /// Agents of this process so far: each has a name of its own.
    static AGENTS: AtomicU32 = AtomicU32::new(0);
    let number = AGENTS.fetch_add(1, Relaxed);
    let name = format!("rl{}w{number}", std::process::id());
    let served = ServedPolicy {
        spec: PolicySpec::Onnx(file.to_owned()).pinned(&known.sha256)?,
        serving: None,
        sha256: Some(known.sha256.clone()),
        pacing_gain: None,
    };
    // A row is on the disk within a second. Each policy begins a file, which is soon complete, and
    // removed when it is long read.
    let mut options: Vec<OsString> = vec!["--record".into(), recording.into()];
    let settings = [
        ("--record-delay-s", "1"),
        ("--record-file-s", "10"),
        ("--record-file-mb", "8"),
        ("--record-limit-mb", "128"),
        ("--record-addresses", "plain"),
    ];
    options.extend(
        settings
            .iter()
            .flat_map(|(name, value)| [name.into(), value.into()]),
    );
    Ok(Agent::start(program, &name, &served, &options, logs)?)
}

fn write_failed(path: &Path) -> impl FnOnce(io::Error) -> RealTimeError {
    let path = path.to_owned();
    move |source| RealTimeError::Write { path, source }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
