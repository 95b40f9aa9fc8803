//! Real time beside virtual time: CALF's third mode, and whether the second one predicts it.
//!
//! A cell is a regime's policy under a condition. Its world is [stepped by the clock](crate::live),
//! its network is [relayed](crate::shim), and the same policy decides as in virtual time, with the
//! same rules of what is observed and which decision counts. In congestion control the world is the
//! kernel ([`flows`]).

mod flows;

use std::{
    fmt::Write as _,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cc_sim::{
    seed,
    shim::{Conditions, ConditionsRange, Medium},
};
use cc_testbed::summary::{Host, table::figure, utc_now};
use serde::Serialize;

use crate::{
    environment::{
        Environment,
        networked::{Networked, NetworkedConfig},
    },
    live::{self, LiveError, RemoteWorld, ServiceSummary},
    rollout::Episode,
    shim::{self, Settings, Socket, Summary},
    study::{Condition, Study, StudyError, Variant},
    train::{
        TrainError,
        environments::{Environments, OpenError},
        final_policy::FinalPolicy,
    },
};
use flows::{Behind, Flows};

/// Episodes in virtual time, which take no time.
const VIRTUAL: u64 = 200;
/// Least number of episodes in real time.
const LEAST: u64 = 5;
/// The difference from virtual time up to which a cell agrees with it.
const AGREEMENT: f64 = 0.1;
/// Deviations from a mean to the end of its 95 % interval.
const DEVIATIONS: f64 = 1.96;
/// Keeps the seeds of these episodes apart from others.
const LIVE: u64 = 0x6c69_7665_2063_616c;

/// What is run in real time, and how.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// The study's directory, with finished runs.
    pub dir: PathBuf,
    /// The runs with this seed of training; their worlds and networks have it as well.
    pub seed: u64,
    /// Names of the regimes; empty for all.
    pub regimes: Vec<String>,
    /// Names of the conditions; empty for all.
    pub conditions: Vec<String>,
    /// How long a cell is to last: it has as many episodes as take that time in virtual time, and
    /// five at least.
    pub duration: Duration,
    /// How long after an interval's beginning a decision counts for its step, ms, in both modes.
    pub grace_ms: f64,
    /// What carries the messages between service, relay and policy.
    pub medium: Medium,
    /// Cells at the same time; one for a service elsewhere, which has one world.
    pub jobs: usize,
    /// The service of the worlds; `None` starts one for each cell.
    pub world: Option<SocketAddr>,
    /// Path of the program that serves flows and their policy; `None` is the one beside this
    /// program.
    pub agent: Option<PathBuf>,
    /// The command line, for the results.
    pub command: String,
}

/// Policies in real time beside virtual time, as `calf-live.json` has them.
#[derive(Clone, Debug, Serialize)]
pub struct LiveResults {
    /// Version of cc-trainer that made them.
    pub version: String,
    /// When they were made: UTC, as in RFC 3339.
    pub date: String,
    /// The command line that made them.
    pub command: String,
    /// The host that they were made on.
    pub host: Host,
    /// Title of the study ([`Study::title`]).
    pub title: String,
    /// What a score is: the mean return of an episode.
    pub reward: String,
    /// Seed of the runs, the worlds and the networks.
    pub seed: u64,
    /// How long after an interval's beginning a decision counted for its step, ms.
    pub grace_ms: f64,
    /// What carried the messages of real time.
    pub medium: Medium,
    /// The cells that were run, in the study's order.
    pub cells: Vec<LiveCell>,
    /// Steps of a world an hour in the simulator without a network, in virtual and in real time, of
    /// one world each.
    pub steps_per_hour: [f64; 3],
}

/// A regime's policy under a condition, in virtual and in real time.
#[derive(Clone, Debug, Serialize)]
pub struct LiveCell {
    /// Name of the regime, the study's variant.
    pub regime: String,
    /// Name of the condition of the study's matrix.
    pub condition: String,
    /// Mode 1, the world without a network and without the grace.
    pub plain: Sample,
    /// Mode 2, in virtual time.
    pub simulated: Sample,
    /// Mode 3, in real time.
    pub real: Sample,
    /// Difference of real from virtual time, as a share of the latter's mean.
    pub difference: f64,
    /// Half of the difference's 95 % interval, from the errors of both means.
    pub margin: f64,
    /// What the service did; `None` for one elsewhere.
    pub service: Option<ServiceSummary>,
    /// What the relay did; `None` under a condition without a network.
    pub relay: Option<Summary>,
    /// Runs under the kernel that other load on the host disturbed whenever they were tried.
    pub disturbed: u64,
}

/// The episodes of a cell in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Number of episodes that ended.
    pub episodes: u64,
    /// Mean return of an episode.
    pub mean: f64,
    /// Standard error of the mean.
    pub error: f64,
    /// Steps that the world took in them.
    pub steps: f64,
    /// How long they took, s.
    pub seconds: f64,
}

/// Why a cell was not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalfLiveError {
    /// The study has no matrix of conditions.
    #[error("the study has no `[matrix]` of conditions: add one")]
    NoMatrix,
    /// A name is not one of the study.
    #[error("there is no {what} `{name}`: there are {known}")]
    Unknown {
        /// What was named: a regime, a condition or a seed.
        what: &'static str,
        /// The name that was given.
        name: String,
        /// The names that the study has.
        known: String,
    },
    /// A run has no policy.
    #[error(
        "{} holds no finished run: train it first, by `cc-trainer calf` with the same --config and \
         --out",
        dir.display()
    )]
    NoRun {
        /// Directory that the run would have.
        dir: PathBuf,
    },
    /// A run was not trained in a world that can be stepped by the clock, nor with a policy server
    /// behind a network.
    #[error(
        "{} was trained neither in an environment of kind \"networked\" nor in one of kind \
         \"network\" with `delay.kind = \"network\"` and an objective of kind \"power\", and only \
         those can be run in real time here",
        dir.display()
    )]
    NoWorld {
        /// Directory that has the run.
        dir: PathBuf,
    },
    /// The study has a variant that is no configuration.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// A setting of the world, or the grace, is out of range.
    #[error("{0}")]
    Setting(String),
    /// A condition is not one network.
    #[error(
        "condition `{0}` draws its network from a range, and a relay has one: give the least and \
         the largest value alike, or leave it out by --conditions"
    )]
    Range(String),
    /// The policy cannot be read.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The world could not be reached, or failed later.
    #[error("{cell}: {source}")]
    World {
        /// Regime and condition that it was for.
        cell: String,
        /// What went wrong with the world.
        source: LiveError,
    },
    /// A flow's link, its agent or its policy server failed.
    #[error("{cell}: {source}")]
    Flow {
        /// Regime and condition that it was for.
        cell: String,
        /// What went wrong with link, agent or server.
        source: Box<flows::FlowError>,
    },
    /// The service or the relay failed.
    #[error("{cell}: {source}")]
    Socket {
        /// Regime and condition that it was for.
        cell: String,
        /// The error that the operating system returned.
        source: io::Error,
    },
}

/// A cell that is to be run.
struct Planned<'a> {
    variant: &'a Variant,
    condition: &'a Condition,
    conditions: Conditions,
    plant: Plant,
}

/// What a policy is to control.
enum Plant {
    /// A world that is stepped by the clock.
    World(Box<World>),
    /// Flows on links, one after the other.
    Flows(Box<Flows>),
}

/// A world that is stepped by the clock, and the policy that acts in it.
struct World {
    policy: FinalPolicy,
    config: NetworkedConfig,
}

/// What a cell's policy does in the simulator.
struct Simulated {
    /// Without a network, and in virtual time.
    samples: [Sample; 2],
    /// The score of each link in virtual time; empty for worlds.
    links: Vec<f64>,
}

/// Runs the cells, and calls `watch` with each that has ended. Once `stop` is true, cells end
/// early and are left out.
///
/// # Errors
///
/// Returns an error that names what is missing or wrong before a cell begins, or the first failure
/// of one.
pub fn run(
    study: &Study,
    options: &LiveOptions,
    stop: &Arc<AtomicBool>,
    watch: &(dyn Fn(&LiveCell) + Sync),
) -> Result<LiveResults, CalfLiveError> {
    let planned = plan(study, options)?;
    let jobs = match options.world {
        Some(_) => 1,
        None => options.jobs.clamp(1, planned.len().max(1)),
    };
    // First what needs the processor, so that nothing of this keeps the clock's worlds waiting.
    let simulated = in_parallel(jobs, &planned, stop, |place, one| {
        one.simulate(Planned::seed(place, options), stop)
    })?;
    let simulated: Vec<_> = planned.iter().zip(simulated).collect();
    let cells = in_parallel(jobs, &simulated, stop, |place, (one, simulated)| {
        let cell = cell(place, one, simulated, options, stop)?;
        watch(&cell);
        Ok(cell)
    })?;
    Ok(LiveResults {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        date: utc_now(),
        command: options.command.clone(),
        host: Host::probe(),
        title: study.title.clone(),
        reward: study.reward.clone(),
        seed: options.seed,
        grace_ms: options.grace_ms,
        medium: options.medium,
        steps_per_hour: [
            per_hour(cells.iter().map(|cell| &cell.plain)),
            per_hour(cells.iter().map(|cell| &cell.simulated)),
            per_hour(cells.iter().map(|cell| &cell.real)),
        ],
        cells,
    })
}

/// Reads the policies, and checks all that can be checked before.
fn plan<'a>(study: &'a Study, options: &LiveOptions) -> Result<Vec<Planned<'a>>, CalfLiveError> {
    let matrix = study.matrix.as_ref().ok_or(CalfLiveError::NoMatrix)?;
    let variants: Vec<&str> = study.variants.iter().map(|one| &*one.name).collect();
    let conditions: Vec<&str> = matrix.conditions.iter().map(|one| &*one.name).collect();
    check("regime", &options.regimes, &variants)?;
    check("condition", &options.conditions, &conditions)?;
    let seeds: Vec<String> = study.seeds.iter().map(u64::to_string).collect();
    let known: Vec<&str> = seeds.iter().map(String::as_str).collect();
    check("seed", &[options.seed.to_string()], &known)?;
    let is_wanted = |list: &[String], name: &String| list.is_empty() || list.contains(name);
    let mut planned = Vec::new();
    for variant in &study.variants {
        if !is_wanted(&options.regimes, &variant.name) {
            continue;
        }
        let dir = options
            .dir
            .join(format!("{}-{}", variant.name, options.seed));
        // Policies of a graph are not served. They are left out, unless they are asked for.
        let environment = study.config(variant)?.environment;
        if environment.is_of_graph() && options.regimes.is_empty() {
            continue;
        }
        let policy = FinalPolicy::load(&dir).map_err(TrainError::from)?;
        let policy = policy.ok_or_else(|| CalfLiveError::NoRun { dir: dir.clone() })?;
        for condition in &matrix.conditions {
            if !is_wanted(&options.conditions, &condition.name) {
                continue;
            }
            let conditions = condition.network.fixed();
            let conditions =
                conditions.ok_or_else(|| CalfLiveError::Range(condition.name.clone()))?;
            let no_world = || CalfLiveError::NoWorld { dir: dir.clone() };
            let plant = match &policy.environment {
                Environments::Networked(config) => {
                    let config = NetworkedConfig {
                        network: condition.network,
                        grace_ms: options.grace_ms,
                        ..config.clone()
                    };
                    config.validate().map_err(CalfLiveError::Setting)?;
                    let policy = policy.clone();
                    Plant::World(Box::new(World { policy, config }))
                }
                Environments::Network(config) if !policy.environment.is_of_graph() => {
                    let seed = seed::fold(LIVE, options.seed);
                    let flows = Flows::new(&dir, config, options.duration, seed)
                        .map_err(OpenError::from)
                        .map_err(TrainError::from)?;
                    let flows = flows.ok_or_else(no_world)?;
                    Plant::Flows(Box::new(flows))
                }
                _ => return Err(no_world()),
            };
            planned.push(Planned {
                variant,
                condition,
                conditions,
                plant,
            });
        }
    }
    Ok(planned)
}

/// Checks that all names are known.
fn check(what: &'static str, names: &[String], known: &[&str]) -> Result<(), CalfLiveError> {
    let strange = names.iter().find(|name| !known.contains(&name.as_str()));
    strange.map_or(Ok(()), |name| {
        Err(CalfLiveError::Unknown {
            what,
            name: name.clone(),
            known: known.join(", "),
        })
    })
}

/// Does something with each of some items, a few at a time, in no particular order. Returns the
/// results in the items' order; those that had not ended when `stop` became true are left out from
/// the first such one on.
fn in_parallel<T: Sync, R: Send>(
    jobs: usize,
    items: &[T],
    stop: &AtomicBool,
    work: impl Fn(usize, &T) -> Result<R, CalfLiveError> + Sync,
) -> Result<Vec<R>, CalfLiveError> {
    let (next, ended) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while !stop.load(Ordering::Relaxed) {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else {
                return;
            };
            let outcome = work(place, item);
            if outcome.is_err() {
                // Nothing else begins after a failure.
                next.store(items.len(), Ordering::Relaxed);
            }
            let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.push((place, outcome));
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(worker);
        }
    });
    let mut ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    ended.sort_by_key(|(place, _)| *place);
    let mut results = Vec::new();
    for (_, outcome) in ended {
        match outcome {
            Ok(result) => results.push(result),
            Err(error) if error.is_stop() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(results)
}

impl Planned<'_> {
    /// The seed of a cell's worlds and networks, which its place in the list determines.
    fn seed(place: usize, options: &LiveOptions) -> u64 {
        [options.seed, place as u64]
            .into_iter()
            .fold(LIVE, seed::fold)
    }

    /// Regime and condition, for messages.
    fn name(&self) -> String {
        format!("{} under {}", self.variant.name, self.condition.name)
    }

    /// Whether there is something for a relay to do.
    fn has_network(&self) -> bool {
        self.condition.network != ConditionsRange::default()
    }

    /// Runs the cell without a network, and in virtual time.
    fn simulate(&self, seed: u64, stop: &AtomicBool) -> Result<Simulated, CalfLiveError> {
        let flows = match &self.plant {
            Plant::World(world) => {
                let (samples, links) = (world.simulate(seed), Vec::new());
                return Ok(Simulated { samples, links });
            }
            Plant::Flows(flows) => flows,
        };
        let run = |network| {
            let begun = Instant::now();
            let scored = flows.simulate(network, seed, stop);
            let scored = scored.map_err(|source| CalfLiveError::Flow {
                cell: self.name(),
                source: source.into(),
            })?;
            let links: Vec<f64> = scored.iter().map(|one| one.score).collect();
            Ok::<_, CalfLiveError>((Sample::of_flows(&scored, begun.elapsed()), links))
        };
        let (plain, _) = run(None)?;
        let (behind, links) = run(Some(self.condition.network))?;
        Ok(Simulated {
            samples: [plain, behind],
            links,
        })
    }
}

impl World {
    /// Plays episodes without a network, and in virtual time.
    fn simulate(&self, seed: u64) -> [Sample; 2] {
        let config = &self.config;
        let plain = NetworkedConfig {
            network: ConditionsRange::default(),
            grace_ms: 0.0,
            ..config.clone()
        };
        [&plain, config].map(|config| {
            let world = config.world.environment(seed);
            let world = Networked::new(world, config.clone(), seed);
            Sample::of(&self.policy, Box::new(world), VIRTUAL)
        })
    }
}

/// Runs a cell in real time, and compares.
fn cell(
    place: usize,
    planned: &Planned<'_>,
    simulated: &Simulated,
    options: &LiveOptions,
    stop: &Arc<AtomicBool>,
) -> Result<LiveCell, CalfLiveError> {
    let seed = Planned::seed(place, options);
    let [plain, behind] = simulated.samples;
    let blank = LiveCell {
        regime: planned.variant.name.clone(),
        condition: planned.condition.name.clone(),
        difference: 0.0,
        margin: 0.0,
        plain,
        simulated: behind,
        real: behind,
        service: None,
        relay: None,
        disturbed: 0,
    };
    match &planned.plant {
        Plant::World(world) => {
            let length = behind.steps / behind.episodes as f64 * world.config.interval_ms / 1e3;
            let episodes = ((options.duration.as_secs_f64() / length) as u64).max(LEAST);
            let (real, service, relay) =
                in_real_time(planned, world, seed, episodes, options, stop)?;
            Ok(LiveCell {
                difference: (real.mean - behind.mean) / behind.mean.abs(),
                margin: DEVIATIONS * behind.error.hypot(real.error) / behind.mean.abs(),
                real,
                service,
                relay,
                ..blank
            })
        }
        Plant::Flows(flows) => {
            let network = planned.has_network();
            let behind = Behind {
                network: network.then(|| planned.conditions.clone()),
                agent: options.agent.as_deref(),
                place,
                seed,
            };
            let begun = Instant::now();
            let ran = flows.in_real_time(&behind, stop);
            let ran = ran.map_err(|source| CalfLiveError::Flow {
                cell: planned.name(),
                source: source.into(),
            })?;
            let scores: Vec<f64> = ran.scored.iter().map(|one| one.score).collect();
            let (difference, margin) = of_logarithms(&simulated.links, &scores);
            Ok(LiveCell {
                difference,
                margin,
                real: Sample::of_flows(&ran.scored, begun.elapsed()),
                relay: ran.relay,
                disturbed: ran.disturbed,
                ..blank
            })
        }
    }
}

/// What power under the kernel is relative to the simulator's less 1, and half of its 95 %
/// interval, from logarithms for the same links.
fn of_logarithms(simulated: &[f64], real: &[f64]) -> (f64, f64) {
    let differences: Vec<f64> = (simulated.iter().zip(real))
        .map(|(simulated, real)| real - simulated)
        .collect();
    let (mean, error) = mean_and_error(&differences);
    (mean.exp() - 1.0, DEVIATIONS * error * mean.exp())
}

/// The mean of some numbers and its standard error; the error of one number is 0.
fn mean_and_error(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares: f64 = numbers.iter().map(|one| (one - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

/// Runs a cell in real time: the service and the relay on threads of their own, the policy on this
/// one.
fn in_real_time(
    planned: &Planned<'_>,
    world: &World,
    seed: u64,
    episodes: u64,
    options: &LiveOptions,
    stop: &Arc<AtomicBool>,
) -> Result<(Sample, Option<ServiceSummary>, Option<Summary>), CalfLiveError> {
    let socket_failed = |source| CalfLiveError::Socket {
        cell: planned.name(),
        source,
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let play = || -> io::Result<_> {
            let (mut at, mut service, mut relay) = (options.world, None, None);
            if at.is_none() {
                let (socket, address) = listen(options.medium)?;
                service = Some(scope.spawn(move || live::serve(socket, over)));
                at = Some(address);
            }
            let mut at = at.unwrap_or_else(|| unreachable!("it is given, or was just set"));
            if planned.has_network() {
                let (socket, address) = listen(options.medium)?;
                let settings = Settings {
                    to: at,
                    conditions: planned.conditions.clone(),
                    seed,
                };
                relay = Some(scope.spawn(move || shim::relay(socket, settings, None, over)));
                at = address;
            }
            let config = world.config.clone();
            let remote = RemoteWorld::connect(at, options.medium, config, seed, stop.clone());
            Ok((remote, service, relay))
        };
        let played = play()
            .map_err(socket_failed)
            .map(|(remote, service, relay)| {
                let sample = remote.and_then(|remote| {
                    let failure = remote.failure();
                    let sample = Sample::of(&world.policy, Box::new(remote), episodes);
                    // The world is gone by now, and so is its share of the failure.
                    match Arc::into_inner(failure).and_then(std::sync::OnceLock::into_inner) {
                        Some(failure) => Err(failure),
                        None => Ok(sample),
                    }
                });
                (sample, service, relay)
            });
        over.store(true, Ordering::Relaxed);
        let (sample, service, relay) = played?;
        let sample = sample.map_err(|source| CalfLiveError::World {
            cell: planned.name(),
            source,
        })?;
        let service = service.map(joined).transpose().map_err(socket_failed)?;
        let relay = relay.map(joined).transpose().map_err(socket_failed)?;
        Ok((sample, service, relay))
    })
}

/// What a thread returns, or its panic.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A socket on this host alone.
fn listen(medium: Medium) -> io::Result<(Socket, SocketAddr)> {
    let any = (Ipv4Addr::LOCALHOST, 0);
    Ok(match medium {
        Medium::Datagrams => {
            let socket = UdpSocket::bind(any)?;
            let address = socket.local_addr()?;
            (Socket::Udp(socket), address)
        }
        Medium::Stream => {
            let listener = TcpListener::bind(any)?;
            let address = listener.local_addr()?;
            (Socket::Tcp(listener), address)
        }
    })
}

impl Sample {
    /// Plays that many episodes, and takes the time.
    fn of(policy: &FinalPolicy, world: Box<dyn Environment>, episodes: u64) -> Self {
        let begun = Instant::now();
        let played = policy.play(world, episodes);
        Self::from_episodes(&played, begun.elapsed())
    }

    fn from_episodes(played: &[Episode], took: Duration) -> Self {
        let totals: Vec<f64> = played.iter().map(|one| one.total).collect();
        let steps = played.iter().map(|one| one.intervals).sum();
        Self::new(&totals, steps, took)
    }

    /// Flows on some links, of which each is an episode.
    fn of_flows(scored: &[flows::Scored], took: Duration) -> Self {
        let scores: Vec<f64> = scored.iter().map(|one| one.score).collect();
        let decisions = scored.iter().map(|one| one.decisions as f64).sum();
        Self::new(&scores, decisions, took)
    }

    fn new(scores: &[f64], steps: f64, took: Duration) -> Self {
        let (mean, error) = mean_and_error(scores);
        Self {
            episodes: scores.len() as u64,
            mean,
            error,
            steps,
            seconds: took.as_secs_f64(),
        }
    }
}

impl CalfLiveError {
    /// Whether a cell ended because it was to stop.
    fn is_stop(&self) -> bool {
        match self {
            Self::World { source, .. } => matches!(source, LiveError::Stopped),
            Self::Flow { source, .. } => matches!(**source, flows::FlowError::Stopped),
            _ => false,
        }
    }
}

/// Steps of all samples, an hour.
fn per_hour<'a>(samples: impl Iterator<Item = &'a Sample>) -> f64 {
    let sum = |sum: (f64, f64), one: &Sample| (sum.0 + one.steps, sum.1 + one.seconds);
    let (steps, seconds) = samples.fold((0.0, 0.0), sum);
    steps / seconds.max(f64::MIN_POSITIVE) * 3600.0
}

impl LiveCell {
    /// Whether real time differs from virtual time by at most a tenth.
    pub fn agrees(&self) -> bool {
        self.difference.abs() <= AGREEMENT
    }

    /// Whether more than a tenth of difference is beyond what so few episodes tell.
    pub fn contradicts(&self) -> bool {
        self.difference.abs() - self.margin > AGREEMENT
    }
}

impl LiveResults {
    /// Writes `calf-live.json` and `calf-live.md` to a directory, and returns their paths.
    ///
    /// # Errors
    ///
    /// Returns an error when a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<[PathBuf; 2], StudyError> {
        let json = serde_json::to_string_pretty(self)
            .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
        let files = [
            ("calf-live.json", json + "\n"),
            ("calf-live.md", self.table()),
        ];
        let [json, table] = files.map(|(name, text)| {
            let path = dir.join(name);
            match std::fs::write(&path, text) {
                Ok(()) => Ok(path),
                Err(source) => Err(StudyError::Write { path, source }),
            }
        });
        Ok([json?, table?])
    }

    /// A table in Markdown with a row per cell, and the speed of the modes.
    pub fn table(&self) -> String {
        let mut text = "| regime | condition | virtual time | real time | episodes | difference | \
                        late p99 ms | latest ms |\n|---|---|---|---|---|---|---|---|\n"
            .to_owned();
        for cell in &self.cells {
            let shown =
                |sample: &Sample| format!("{} ± {}", figure(sample.mean), figure(sample.error));
            let late = cell.service.as_ref().and_then(|service| service.lateness);
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {}{} | {:+.1} % ± {:.1} | {} | {} |",
                cell.regime,
                cell.condition,
                shown(&cell.simulated),
                shown(&cell.real),
                cell.real.episodes,
                match cell.disturbed {
                    0 => String::new(),
                    disturbed => format!(", {disturbed} disturbed"),
                },
                100.0 * cell.difference,
                100.0 * cell.margin,
                late.map_or("–".to_owned(), |late| figure(late.p99_ms)),
                late.map_or("–".to_owned(), |late| figure(late.max_ms)),
            );
        }
        let agree = self.cells.iter().filter(|cell| cell.agrees()).count();
        let contradict = self.cells.iter().filter(|cell| cell.contradicts()).count();
        let [plain, simulated, real] = self.steps_per_hour;
        let _ = writeln!(
            text,
            "\n{agree} of {} cells differ by at most 10 %; {contradict} by more than 10 % beyond \
             their 95 % interval.\nSteps of one world an hour: {plain:.0} without a network, \
             {simulated:.0} in virtual time, {real:.0} in real time.",
            self.cells.len(),
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(totals: &[f64]) -> Sample {
        let episodes: Vec<Episode> = totals
            .iter()
            .map(|&total| Episode {
                task: 0,
                total,
                steps: total as u64,
                intervals: total,
            })
            .collect();
        Sample::from_episodes(&episodes, Duration::from_secs(2))
    }

    #[test]
    fn a_sample_has_the_error_of_its_mean_and_its_steps_an_hour() {
        let both = [sample(&[100.0, 140.0]), sample(&[60.0])];
        assert_eq!((both[0].mean, both[0].error), (120.0, 20.0));
        assert_eq!((both[1].mean, both[1].error), (60.0, 0.0));
        assert_eq!(per_hour(both.iter()), 300.0 / 4.0 * 3600.0);
    }

    #[test]
    fn a_difference_contradicts_only_beyond_what_the_episodes_tell() {
        let cell = |difference, margin| LiveCell {
            regime: "baseline".to_owned(),
            condition: "clean".to_owned(),
            plain: sample(&[1.0]),
            simulated: sample(&[1.0]),
            real: sample(&[1.0]),
            difference,
            margin,
            service: None,
            relay: None,
            disturbed: 0,
        };
        let of = |difference, margin| {
            let cell = cell(difference, margin);
            (cell.agrees(), cell.contradicts())
        };
        assert_eq!(of(-0.05, 0.01), (true, false));
        assert_eq!(of(-0.15, 0.1), (false, false));
        assert_eq!(of(-0.15, 0.04), (false, true));
    }

    #[test]
    fn logarithms_of_the_same_links_are_compared_link_by_link() {
        let (difference, margin) = of_logarithms(&[0.0, -3.0], &[-0.1, -3.1]);
        assert!((difference - (-0.1_f64).exp_m1()).abs() < 1e-12);
        assert!(margin < 1e-12, "both links say the same: {margin}");
        let (difference, margin) = of_logarithms(&[0.0, 0.0], &[0.2, -0.2]);
        assert!(difference.abs() < 1e-12 && (margin - 1.96 * 0.2).abs() < 1e-12);
    }

    const STUDY: &str = "
        title = \"Poles\"
        seeds = [3]
        evaluation = { episodes = 4, measure = \"episode\" }
        matrix = { clean = \"near\", degraded = \"far\", condition = [
            { name = \"near\" },
            { name = \"far\", network = { preset = \"wifi-normal\" } },
            { name = \"drawn\", network = { loss = [0, 0.1] } },
        ] }
        [base]
        steps = 200
        [base.environment]
        kind = \"networked\"
        world = { kind = \"cartpole\" }
        ages = true
        [base.model]
        hidden = [8]
        lstm = 0
        [base.learner]
        batch = 4
        unroll = 10
        [base.actor]
        environments = 3
        [[variant]]
        name = \"plain\"
    ";

    fn options(dir: &Path) -> LiveOptions {
        LiveOptions {
            dir: dir.to_owned(),
            seed: 3,
            regimes: Vec::new(),
            conditions: vec!["near".to_owned(), "far".to_owned()],
            duration: Duration::from_secs(1),
            grace_ms: 10.0,
            medium: Medium::Datagrams,
            jobs: 2,
            world: None,
            agent: None,
            command: "a test".to_owned(),
        }
    }

    #[test]
    fn a_trained_policy_balances_in_real_time_as_long_as_the_world_says() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("study.toml");
        std::fs::write(&path, STUDY).expect("a scratch file");
        let study = Study::load(&path).expect("a study");
        let options = options(dir.path());
        let stop = Arc::new(AtomicBool::new(false));
        let run = |options: &LiveOptions| run(&study, options, &stop, &|_| {});
        let error = run(&options).expect_err("nothing is trained").to_string();
        assert!(error.contains("holds no finished run"), "{error}");
        let training = crate::study::Options {
            dir: dir.path().to_owned(),
            jobs: 1,
            steps: None,
            command: "a test".to_owned(),
        };
        crate::study::run(&study, &training, &stop, &|_| {}).expect("a run");

        let results = run(&options).expect("two cells");
        let [near, far] = &results.cells[..] else {
            panic!("{:?}", results.cells);
        };
        assert_eq!((&*near.condition, &*far.condition), ("near", "far"));
        assert!(near.relay.is_none() && far.relay.is_some());
        for cell in [near, far] {
            // A standing pole earns 1 a step, and falls after eight at the earliest.
            let mean = cell.real.steps / cell.real.episodes as f64;
            assert!(cell.real.episodes >= LEAST);
            assert!(
                (cell.real.mean - mean).abs() < 1e-6 && mean >= 8.0,
                "{cell:?}"
            );
            let service = cell.service.as_ref().expect("on this host");
            assert!(service.steps as f64 >= cell.real.steps);
            assert_eq!(service.sessions, 1);
        }
        let [json, table] = results.write(dir.path()).expect("a directory");
        let json = std::fs::read_to_string(json).expect("was written");
        assert!(json.contains("\"regime\": \"plain\""), "{json}");
        let table = std::fs::read_to_string(table).expect("was written");
        assert!(table.contains("\n| plain | far | "), "{table}");

        for (change, expected) in [
            (
                |one| one.regimes = vec!["plane".to_owned()],
                "no regime `plane`: there are plain",
            ),
            (
                |one| one.conditions = Vec::new(),
                "condition `drawn` draws its network",
            ),
            (|one| one.seed = 4, "no seed `4`: there are 3"),
            (|one| one.grace_ms = 20.0, "grace_ms is 20"),
        ] as [(fn(&mut LiveOptions), &str); 4]
        {
            let mut bad = options.clone();
            change(&mut bad);
            let error = run(&bad).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
