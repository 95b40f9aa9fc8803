//! A learner and workers whose environments run by the clock, under the live kernel.

use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cc_core::{policy::PolicySpec, status::default_socket};
use cc_lab::Outcome;
use cc_remote::transport::Plaintext;
use cc_sim::{scenario, sim::agent::AgentDelay};
use cc_testbed::{
    evaluate::{Agent, Agents, Control, FlowSetup, Scheme, ServedPolicy, Setup, run},
    summary::Platform,
};
use cc_trainer::{
    environment::{Series, network::World},
    model::{Inference, Outputs, Sequences, Shape, Weights, initialise},
    normalise::Normalizer,
    rollout::{Origin, Rollout},
    train::{
        config::{Config, Overrides},
        distributed::{
            LearnerServer, Listening, Offer, RealTime, ServedFlows, WorkError, WorkEvent, Worker,
        },
        environments::Environments,
        exchange::{LocalExchange, Published},
    },
};

fn main() -> ExitCode {
    cc_lab::run_on_links(&[
        (
            "rollouts_of_emulated_links_and_of_simulated_ones",
            rollouts_of_emulated_links_and_of_simulated_ones,
        ),
        (
            "rollouts_of_a_live_agent_whose_policy_is_replaced",
            rollouts_of_a_live_agent_whose_policy_is_replaced,
        ),
    ])
}

/// What comes comes within this, however busy the host is.
const DEADLINE: Duration = Duration::from_secs(240);

const LINK: &str = "
[[scenario]]
name = \"small\"
rate_mbps = 3
delay_ms = 15
queue = { bdp = 2 }
";

/// Two flows that are learnt from, and one that is not.
const FLOWS: &str = "
[[scenario.flow]]

[[scenario.flow]]
start_s = 1

[[scenario.flow]]
start_s = 2
stop_s = 3
scheme = \"reno\"
";

fn config(place: &Path) -> Config {
    let links = place.join("links.toml");
    std::fs::write(&links, format!("{LINK}{FLOWS}")).expect("it is ours");
    let text = format!(
        "
        actors = 0
        threads = 1
        [environment]
        kind = \"network\"
        episode_s = 6
        inputs = \"raw\"
        # As the embedded policy, which a live agent begins with, has it.
        [environment.policy]
        min_rtt_window_s = 5
        pacing_gain = 1.25
        [[environment.links]]
        scenarios = \"{}\"
        [model]
        hidden = [8]
        lstm = 6
        [learner]
        batch = 4
        unroll = 5
        [actor]
        environments = 2
        ",
        links.display()
    );
    toml::from_str(&text).expect("settings")
}

/// A learner that hands out policies and takes rollouts, but learns nothing.
struct Learner {
    shape: Arc<Shape>,
    exchange: Arc<LocalExchange>,
    server: LearnerServer,
}

impl Learner {
    fn start(config: Config) -> Self {
        let config = config.resolve(&Overrides::default()).expect("valid");
        let Environments::Network(network) = &config.environment else {
            unreachable!("the configuration of these tests");
        };
        let world = World::new((**network).clone()).expect("valid");
        let series = Series::of(&world.config().policy);
        let shape = config.shape(&world.spec(), &series).expect("a shape");
        let shape = Arc::new(shape);
        let first = Published::new(0, shape.clone(), parameters(&shape, 0));
        let when_full = config.actor.when_full;
        let exchange = Arc::new(LocalExchange::new(64, when_full, None, first));
        let offer = Offer {
            run: "a test".to_owned(),
            normalizer: Some(Normalizer::raw(shape.observation)),
            shape: (*shape).clone(),
            tasks: world.tasks().len(),
            config,
            steps: 0,
        };
        let listening = Listening {
            address: ([127, 0, 0, 1], 0).into(),
            tls: None,
            plaintext: Plaintext::Loopback,
            token: None,
            learners: 1,
        };
        let server = LearnerServer::start(&listening, &offer, exchange.clone());
        Self {
            shape,
            exchange,
            server: server.expect("it listens"),
        }
    }

    fn publish(&self, version: u64) {
        let parameters = parameters(&self.shape, version);
        let policy = Published::new(version, self.shape.clone(), parameters);
        self.exchange.publish(policy);
    }

    /// A worker on a thread of its own, which an agent may end with.
    fn worker(&self, real_time: Option<RealTime>) -> Working {
        let worker = Worker {
            learner: format!("grpc://{}", self.server.address())
                .parse()
                .expect("an address"),
            tls: None,
            plaintext: Plaintext::Loopback,
            token: None,
            actors: 1,
            config: None,
            replay: false,
            real_time,
            learning: None,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (event, events) = mpsc::channel();
        let thread = thread::spawn({
            let stop = stop.clone();
            move || worker.work(&stop, &mut |happened| drop(event.send(happened)))
        });
        Working {
            stop,
            events,
            thread: Some(thread),
        }
    }

    /// Takes rollouts until this many have been `meant`, and returns these. Ends at once with the
    /// error of a worker that has ended.
    fn take(
        &self,
        count: usize,
        workers: &mut [Working],
        is_meant: impl Fn(&Rollout) -> bool,
    ) -> Result<Vec<Rollout>, WorkError> {
        let (since, mut all) = (Instant::now(), Vec::new());
        while all.len() < count {
            for worker in workers.iter_mut() {
                worker.check()?;
            }
            assert!(
                since.elapsed() < DEADLINE,
                "{} of {count} rollouts after {} s; {:?}",
                all.len(),
                DEADLINE.as_secs(),
                workers.iter().map(Working::news).collect::<Vec<_>>()
            );
            if let Some((rollouts, _)) = self.exchange.take(1) {
                all.extend(rollouts.into_iter().filter(&is_meant));
            }
        }
        Ok(all)
    }

    /// Checks that the rollout that a flow begins with holds the distributions of the policy of
    /// this version, run over the observations: what the agent saw and did is what the learner is
    /// told. A later episode of the flow begins without the state that the agent goes on with.
    fn assert_told_truly(&self, rollout: &Rollout, version: u64) {
        let steps = rollout.first[1..].iter().position(Option::is_some);
        let steps = steps.map_or(rollout.len(), |at| at + 1);
        assert!(rollout.version == version && rollout.first[0].is_some());
        let weights = Weights::new(&self.shape, &parameters(&self.shape, version));
        let mut outputs = Outputs::default();
        let mut not_done = vec![1.0; steps];
        not_done[0] = 0.0;
        Inference::new(&self.shape).forward(
            &weights,
            &Sequences {
                steps,
                batch_size: 1,
                observation: &rollout.observation[..steps * self.shape.observation],
                reward: &rollout.observed_reward[..steps],
                not_done: &not_done,
                privileged: &[],
                h: &rollout.h,
                c: &rollout.c,
            },
            &mut outputs,
        );
        let actions = self.shape.actions;
        let pairs = outputs.logits.chunks_exact(actions);
        for (own, told) in pairs.zip(rollout.logits.chunks_exact(actions)) {
            for (own, told) in softmax(own).into_iter().zip(softmax(told)) {
                assert!((own - told).abs() < 1e-3, "{own} is told as {told}");
            }
        }
    }
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// A network of the shape, with outputs that differ between actions and observations.
fn parameters(shape: &Shape, version: u64) -> Vec<f32> {
    let mut parameters = initialise(shape, version + 1);
    // Inputs are raw, up to hundreds of kB.
    parameters.iter_mut().for_each(|own| *own *= 0.5);
    parameters
}

/// A worker on a thread of its own, which ends when this is dropped.
struct Working {
    stop: Arc<AtomicBool>,
    events: mpsc::Receiver<WorkEvent>,
    thread: Option<JoinHandle<Result<(), WorkError>>>,
}

impl Working {
    fn news(&self) -> Vec<WorkEvent> {
        self.events.try_iter().collect()
    }

    /// Returns the error of a worker that has ended.
    fn check(&mut self) -> Result<(), WorkError> {
        match self.thread.take_if(|thread| thread.is_finished()) {
            None => Ok(()),
            Some(thread) => {
                thread.join().expect("no panic")?;
                panic!("a worker has ended before the run has");
            }
        }
    }

    fn end(mut self) {
        self.stop.store(true, Relaxed);
        let thread = self.thread.take().expect("it is ended once");
        thread.join().expect("no panic").expect("a good end");
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The test has failed, and says why.
            let _ = thread.join();
        }
    }
}

/// Whether it was simulated: a host does not know what the simulator measures.
fn is_simulated(rollout: &Rollout) -> bool {
    rollout.quantities.iter().all(|step| step.loss.is_some())
}

fn is_of_the_kernel(rollout: &Rollout) -> bool {
    !is_simulated(rollout)
}

/// Has the threads of a test end, also when it fails.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn rollouts_of_emulated_links_and_of_simulated_ones() -> Outcome {
    let agent = match cc_lab::agent_beside(env!("CARGO_BIN_EXE_cc-trainer")) {
        Ok(agent) => agent,
        Err(reason) => return Outcome::Undecided(reason),
    };
    let place = tempfile::tempdir().expect("a scratch directory");
    let learner = Learner::start(config(place.path()));
    let real_time = RealTime {
        flows: ServedFlows::Links { agent: Some(agent) },
        reload: Duration::from_millis(500),
    };
    let mut workers = [learner.worker(Some(real_time)), learner.worker(None)];
    let mut both = || {
        let real = learner.take(6, &mut workers, is_of_the_kernel)?;
        for rollout in &real {
            assert!(rollout.origin.iter().all(|origin| *origin == Origin::Actor));
            assert!(rollout.reward.iter().all(|reward| reward.is_finite()));
            // Some hundred ms.
            let whole = rollout.intervals[1..].iter().sum::<f32>();
            assert!(whole > 1.0, "{:?}", rollout.intervals);
        }
        learner.assert_told_truly(&real[0], 0);
        assert!(!learner.take(1, &mut workers, is_simulated)?.is_empty());

        // The agent is given the next policy, and its decisions are told as such.
        learner.publish(1);
        let is_newer = |rollout: &Rollout| is_of_the_kernel(rollout) && rollout.version == 1;
        learner.take(4, &mut workers, is_newer)?;
        Ok(())
    };
    let outcome: Result<(), WorkError> = both();
    outcome.unwrap_or_else(|error| panic!("a worker has ended: {error}"));
    workers.into_iter().for_each(Working::end);
    Outcome::Passed
}

fn rollouts_of_a_live_agent_whose_policy_is_replaced() -> Outcome {
    let program = match cc_lab::agent_beside(env!("CARGO_BIN_EXE_cc-trainer")) {
        Ok(agent) => agent,
        Err(reason) => return Outcome::Undecided(reason),
    };
    let place = tempfile::tempdir().expect("a scratch directory");
    let recording = place.path().join("recording");
    // It begins with a policy of another interface, as a host's agent does.
    let name = format!("rl{}l", std::process::id());
    let served = ServedPolicy {
        spec: PolicySpec::Default,
        serving: None,
        sha256: None,
        pacing_gain: None,
    };
    let options = ["--record".into(), recording.clone().into()]
        .into_iter()
        .chain(["--record-delay-s".into(), "1".into()]);
    let options: Vec<_> = options.collect();
    let agent = Agent::start(Some(&program), &name, &served, &options, place.path());
    let agent = agent.expect("the agent starts here, as `find` has seen");

    let learner = Learner::start(config(place.path()));
    let link = &scenario::parse(LINK, Path::new(".")).expect("a scenario")[0];
    let scheme = Scheme {
        name: agent.control().to_owned(),
        control: Control::Named,
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = AtTheEnd(&over);
        // A host's flow, which is there before the worker is, and outlives it.
        let flow = scope.spawn(|| {
            let setup = Setup {
                scenario: link,
                flows: vec![FlowSetup {
                    scheme: &scheme,
                    start: Duration::ZERO,
                    stop: 2 * DEADLINE,
                }],
                seconds: 2 * DEADLINE,
                seed: 1,
                slot: 3,
                delay: AgentDelay::MEASURED,
            };
            run(Platform::Kernel, &setup, &Agents::default(), &over, |_| {})
        });
        let since = Instant::now();
        while agent.status().expect("an answer").live_flows == 0 {
            assert!(since.elapsed() < DEADLINE && !flow.is_finished(), "no flow");
            thread::sleep(Duration::from_millis(100));
        }
        let real_time = RealTime {
            flows: ServedFlows::Live {
                recording,
                socket: default_socket(&name),
            },
            reload: Duration::from_millis(500),
        };
        let mut workers = [learner.worker(Some(real_time))];
        let mut take = || {
            let first = learner.take(4, &mut workers, |rollout| rollout.version == 0)?;
            learner.assert_told_truly(&first[0], 0);
            learner.publish(1);
            learner.take(4, &mut workers, |rollout| rollout.version == 1)?;
            Ok(())
        };
        let outcome: Result<(), WorkError> = take();
        outcome.unwrap_or_else(|error| panic!("the worker has ended: {error}"));
        workers.into_iter().for_each(Working::end);
        drop(end);
        let ran = flow.join().expect("no panic");
        assert!(ran.expect("the link holds").is_none(), "it was cancelled");
    });
    // The agent goes on by the learner's policy.
    let policy = agent.status().expect("an answer").policy;
    assert!(policy.contains("policy-1.onnx"), "{policy}");
    Outcome::Passed
}
