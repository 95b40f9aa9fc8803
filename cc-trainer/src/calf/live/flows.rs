//! Congestion control in real time: flows on emulated links under the kernel, whose agent asks a
//! policy server through the relay.
//!
//! ```text
//!   flow ── windows ──► cc-agent ── questions ──►  relay with   ──►  cc-agent policy-server
//!    ▲                     │    ◄── answers ────  delay, jitter  ◄──  the regime's policy
//!    └──── decisions ──────┘                        and loss
//! ```
//!
//! The simulator runs the same flows on the same links, with decisions that take as long as a
//! question and an answer on the condition's network: as messages of a stream, which is what the
//! agent's connection is. On both sides an answer is waited for as long as in training, meanwhile
//! the flow keeps its cwnd, and it keeps it as well where no answer comes.

use std::{
    ffi::OsString,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use cc_core::policy::{ActionSelection, PolicySpec};
use cc_sim::{
    scenario::{MTU, Scenario},
    shim::{Conditions, ConditionsRange, Medium},
    sim::agent::AgentDelay,
};
use cc_testbed::{
    evaluate::{
        self, Agent, AgentError, Agents, Control, FlowSetup, RunError, Scheme, ServedPolicy, Setup,
        find_agent,
    },
    summary::{Platform, Run},
};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};

use crate::{
    environment::network::{NetworkConfig, NetworkConfigError, Objective, PowerObjective, World},
    shim::{self, Settings, Socket, Summary},
};

/// Times that a run is tried which other load on the host disturbs.
const ATTEMPTS: u32 = 3;
/// Time that a policy server has to load its policy and to listen.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks whether it does.
const POLL: Duration = Duration::from_millis(20);
/// Slot of the first cell's runs; runs of evaluations begin with 0.
const FIRST_SLOT: u16 = 4_000;
/// Name of the scheme of all flows.
const SCHEME: &str = "calf";

/// The flows of a regime, a flow on each of some links.
pub(super) struct Flows {
    /// The policy file that the regime's training has left.
    policy: PathBuf,
    links: Vec<Scenario>,
    objective: PowerObjective,
    /// How long an answer is waited for, ms.
    patience_ms: f64,
    /// Length of the run on each link, in its own time.
    length: Duration,
}

/// Where the policy of flows in real time is.
pub(super) struct Behind<'a> {
    /// The network between an agent and its server; `None` for none.
    pub(super) network: Option<Conditions>,
    /// Path of the agent's program; `None` is the one beside this program.
    pub(super) agent: Option<&'a Path>,
    /// The cell's place in the list, which its names and addresses are made of.
    pub(super) place: usize,
    /// Determines the losses of the links, and the delays and losses of the relay.
    pub(super) seed: u64,
}

/// The flow on a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scored {
    /// Logarithm of power, as the objective weighs throughput, delay and loss.
    pub(super) score: f64,
    /// Decisions that came to the flow from its policy.
    pub(super) decisions: u64,
}

/// What came of a cell's flows in real time.
pub(super) struct Ran {
    pub(super) scored: Vec<Scored>,
    pub(super) relay: Option<Summary>,
    /// Runs that other load disturbed whenever they were tried.
    pub(super) disturbed: u64,
}

/// Why flows could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// They were to end early.
    #[error("ended early")]
    Stopped,
    /// A run on a link failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The agent could not be started.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The policy server did not begin to listen.
    #[error("the policy server: {reason}")]
    Server {
        /// What happened instead, with the server's own words.
        reason: String,
    },
    /// A socket or a scratch directory failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl Flows {
    /// The flows of the run in `dir`, on as many links of its environment as last `duration`, at
    /// least [`super::LEAST`]. `None` where the environment has no policy server, its objective is
    /// no power, or hardly a link can be emulated.
    ///
    /// # Errors
    ///
    /// Returns an error when the links cannot be made.
    pub(super) fn new(
        dir: &Path,
        config: &NetworkConfig,
        duration: Duration,
        seed: u64,
    ) -> Result<Option<Self>, NetworkConfigError> {
        let (AgentDelay::Network { patience_ms, .. }, Objective::Power(objective)) =
            (config.delay, &config.objective)
        else {
            return Ok(None);
        };
        let count = ((duration.as_secs_f64() / config.episode_s) as u64).max(super::LEAST);
        let world = World::new(config.clone())?;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let drawn = (0..count).map(|_| world.emulated_link(&mut random));
        let links: Option<Vec<_>> = drawn.map(|link| Some(link?.scenario)).collect();
        let Some(links) = links else {
            return Ok(None);
        };
        Ok(Some(Self {
            policy: dir.join("policy.onnx"),
            links,
            objective: objective.clone(),
            patience_ms: patience_ms.unwrap_or(config.policy.window_ms.into()),
            length: Duration::from_secs_f64(config.episode_s),
        }))
    }

    /// Runs the flows in the simulator: behind a network, or with decisions that take no time.
    pub(super) fn simulate(
        &self,
        network: Option<ConditionsRange>,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Vec<Scored>, FlowError> {
        let scheme = scheme(ServedPolicy {
            spec: PolicySpec::Onnx(self.policy.clone()),
            serving: Some(ActionSelection::Greedy),
            sha256: None,
            pacing_gain: None,
        });
        let delay = network.map_or(AgentDelay::None, |network| AgentDelay::Network {
            network,
            medium: Medium::Stream,
            patience_ms: Some(self.patience_ms),
        });
        let run = |link| {
            let setup = self.setup(link, &scheme, 0, seed, delay);
            let run = run(Platform::Sim, &setup, &Agents::default(), stop)?;
            Ok(self.scored(link, &run))
        };
        self.links.iter().map(run).collect()
    }

    /// Runs the flows under the kernel, one after the other.
    pub(super) fn in_real_time(
        &self,
        behind: &Behind<'_>,
        stop: &AtomicBool,
    ) -> Result<Ran, FlowError> {
        let logs = tempfile::tempdir()?;
        let program = find_agent(behind.agent)?;
        let server = PolicyServer::start(&program, &self.policy, logs.path())?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let over = &over;
            let (mut at, mut relay) = (server.address, None);
            if let Some(conditions) = &behind.network {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                at = listener.local_addr()?;
                let settings = Settings {
                    to: server.address,
                    conditions: conditions.clone(),
                    seed: behind.seed,
                };
                let socket = Socket::Tcp(listener);
                relay = Some(scope.spawn(move || shim::relay(socket, settings, None, over)));
            }
            let ran = self.on_links(at, behind, logs.path(), stop);
            over.store(true, Ordering::Relaxed);
            let relay = relay.map(super::joined).transpose()?;
            Ok(Ran { relay, ..ran? })
        })
    }

    /// Runs the flows with an agent that asks the server at an address.
    fn on_links(
        &self,
        server: SocketAddr,
        behind: &Behind<'_>,
        logs: &Path,
        stop: &AtomicBool,
    ) -> Result<Ran, FlowError> {
        let spec = format!("grpc://{server}").parse();
        let served = ServedPolicy {
            spec: spec.unwrap_or_else(|error| unreachable!("it is an address: {error}")),
            serving: None,
            sha256: None,
            pacing_gain: None,
        };
        let patience = self.patience_ms.round().max(1.0).to_string();
        let options = ["--patience-ms", &patience, "--local-policy", "keep"];
        let options = options.map(OsString::from);
        let name = format!("rl{}y{}", process::id(), behind.place);
        let agent = Agent::start(behind.agent, &name, &served, &options, logs)?;
        let agents: Agents = [(SCHEME.to_owned(), agent)].into_iter().collect();
        let scheme = scheme(served);
        let slot = FIRST_SLOT + behind.place as u16;
        let mut ran = Ran {
            scored: Vec::new(),
            relay: None,
            disturbed: 0,
        };
        for link in &self.links {
            let setup = self.setup(link, &scheme, slot, behind.seed, AgentDelay::None);
            let mut tried = run(Platform::Kernel, &setup, &agents, stop)?;
            for _ in 1..ATTEMPTS {
                if tried.is_valid() {
                    break;
                }
                tried = run(Platform::Kernel, &setup, &agents, stop)?;
            }
            agents.check()?;
            ran.disturbed += u64::from(!tried.is_valid());
            ran.scored.push(self.scored(link, &tried));
        }
        Ok(ran)
    }

    fn setup<'a>(
        &self,
        link: &'a Scenario,
        scheme: &'a Scheme,
        slot: u16,
        seed: u64,
        delay: AgentDelay,
    ) -> Setup<'a> {
        let flows = link.flows.iter();
        Setup {
            scenario: link,
            flows: flows
                .map(|flow| FlowSetup::of(flow, scheme, self.length))
                .collect(),
            seconds: self.length,
            seed,
            slot,
            delay,
        }
    }

    fn scored(&self, link: &Scenario, run: &Run) -> Scored {
        Scored {
            score: score(&self.objective, link, run),
            decisions: run.decision_delay.map_or(0, |delay| delay.decisions),
        }
    }
}

/// The objective of a whole run: a ln(u + ε) − b ln(max(d/d₀, 1)) − c l, with the link's
/// utilization u, the mean one-way delay d beside the empty link's d₀, and the dropped share l.
fn score(objective: &PowerObjective, link: &Scenario, run: &Run) -> f64 {
    let bits_per_second = link.mean_bits_per_second().unwrap_or(f64::INFINITY);
    let empty_ms = 1e3
        * (link.forward.delay.base.as_secs_f64() + 8.0 * f64::from(MTU) / bits_per_second.max(1.0));
    let delay = run.mean_owd_ms.map_or(1.0, |mean| mean / empty_ms);
    objective.throughput * (run.utilization.unwrap_or(0.0) + objective.epsilon).ln()
        - objective.delay * delay.max(1.0).ln()
        - objective.loss * run.loss_rate
}

/// The scheme of a policy.
fn scheme(policy: ServedPolicy) -> Scheme {
    Scheme {
        name: SCHEME.to_owned(),
        control: Control::Policy(policy),
    }
}

/// Carries out a run to its end.
fn run(
    on: Platform,
    setup: &Setup<'_>,
    agents: &Agents,
    stop: &AtomicBool,
) -> Result<Run, FlowError> {
    let measured = evaluate::run(on, setup, agents, stop, |_| {})?;
    measured.map(|(run, ..)| run).ok_or(FlowError::Stopped)
}

/// A `cc-agent policy-server` of one policy on the loopback device, which ends when this is
/// dropped.
struct PolicyServer {
    child: Child,
    address: SocketAddr,
}

impl PolicyServer {
    /// Starts it, and waits until it listens. It logs to a file in `logs`.
    fn start(program: &Path, policy: &Path, logs: &Path) -> Result<Self, FlowError> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = free.local_addr()?;
        drop(free);
        let log = logs.join("policy-server.log");
        let output = std::fs::File::create(&log)?;
        let child = Command::new(program)
            .args(["policy-server", "--plaintext", "--serving", "greedy"])
            .args(["--listen", &address.to_string()])
            .arg("--policy")
            .arg(policy)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()?;
        let mut server = Self { child, address };
        let begun = Instant::now();
        loop {
            let Err(error) = TcpStream::connect(address) else {
                return Ok(server);
            };
            let reason = match server.child.try_wait()? {
                Some(status) => {
                    let said = std::fs::read_to_string(&log).unwrap_or_default();
                    format!("it has ended ({status}): {}", said.trim_end())
                }
                None if begun.elapsed() > START_PATIENCE => {
                    let seconds = START_PATIENCE.as_secs();
                    format!("it does not listen after {seconds} s: {error}")
                }
                None => {
                    thread::sleep(POLL);
                    continue;
                }
            };
            return Err(FlowError::Server { reason });
        }
    }
}

impl Drop for PolicyServer {
    fn drop(&mut self) {
        // It keeps nothing that an end in good order would save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_link_without_a_queue_scores_nothing_and_a_queue_costs_its_logarithm() {
        let text = "[[scenario]]\nname = \"link\"\nrate_mbps = 12\ndelay_ms = 9\n\
                    queue = { bdp = 2 }\n";
        let mut links =
            cc_sim::scenario::parse(text, "link.toml".as_ref()).expect("a valid scenario");
        let link = links.remove(0);
        let objective = PowerObjective {
            epsilon: 0.0,
            loss: 8.0,
            ..PowerObjective::default()
        };
        // A packet takes 1 ms at 12 Mbit/s.
        let full = Run {
            utilization: Some(1.0),
            mean_owd_ms: Some(10.0),
            ..Run::default()
        };
        let of = |run: &Run| score(&objective, &link, run);
        assert!(of(&full).abs() < 1e-9, "{}", of(&full));
        let queued = Run {
            mean_owd_ms: Some(20.0),
            loss_rate: 0.01,
            ..full.clone()
        };
        assert!((of(&queued) + 2.0_f64.ln() + 0.08).abs() < 1e-9);
        let half = Run {
            utilization: Some(0.5),
            ..full
        };
        assert!((of(&half) + 2.0_f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn a_server_that_does_not_start_says_why() {
        let logs = tempfile::tempdir().expect("a scratch directory");
        let started = PolicyServer::start("/bin/false".as_ref(), "none.onnx".as_ref(), logs.path());
        let Err(error) = started else {
            panic!("it cannot listen");
        };
        assert!(error.to_string().contains("it has ended"), "{error}");
    }
}
