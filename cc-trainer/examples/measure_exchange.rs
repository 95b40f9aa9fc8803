//! Measures one learner with many workers that only send: what the exchange and the learner do,
//! without the time that environments take.
//!
//! The learner is this process, and the workers are tasks of others. Each sends the same
//! rollouts again and again, as those of the newest policy that it has got, whenever the learner
//! gives it leave. docs/distributed.md has the figures.
//!
//!     cargo run --release -p cc-trainer --example measure_exchange -- \
//!         --network theirs --unroll 20 --workers 64

use std::{
    env,
    net::{IpAddr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use cc_core::policy::ServerAddress;
use cc_remote::{rpc, transport::Plaintext};
use cc_sim::shim::ConditionsTable;
use cc_trainer::{
    environment::{End, Quantities},
    learner::{Learner, LearnerState},
    model::{self, Activation, DeviceKind, Shape},
    rollout::{Origin, Rollout},
    shim::{self, Settings, Socket},
    toml_file,
    train::{
        config::{Config, Overrides},
        distributed::{
            LearnerServer, Listening, Offer,
            wire::{
                Batch, FromLearner, FromWorker, Hello, LEARNER_BYTES, PATH, PROTOCOL, Ready,
                Widths, from_learner, from_worker,
            },
            worker::endpoint,
        },
        exchange::{Exchange, LocalExchange, Published},
    },
};
use clap::{Parser, ValueEnum};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::sync::mpsc::{self, error::TrySendError};
use tonic::Streaming;

#[derive(Debug, Parser)]
struct Options {
    /// The network whose parameters are learnt, and whose rollouts are sent.
    #[arg(long, value_enum, default_value = "ours")]
    network: Network,
    /// Number of steps in a rollout.
    #[arg(long, default_value_t = 20)]
    unroll: usize,
    /// Number of rollouts that the learner takes for each update.
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Number of workers that connect, each with a stream of its own.
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// Number of processes that the workers are divided among.
    #[arg(long, default_value_t = 1)]
    processes: usize,
    /// Network namespace of the workers' processes, for which `ip netns exec` needs root.
    #[arg(long)]
    netns: Option<String>,
    /// The network between workers and learner, as `cc-trainer shim --config` takes it. The relay
    /// is a thread of the learner's process.
    #[arg(long, value_name = "FILE.toml")]
    shim: Option<PathBuf>,
    /// Address that the learner listens on.
    #[arg(long, default_value = "127.0.0.1")]
    listen: IpAddr,
    /// Time before figures are counted, s: workers connect, and the queue fills. Hundreds of
    /// workers need more.
    #[arg(long, default_value_t = 3)]
    warm_up: u64,
    /// Time that is counted, s.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Learn nothing: only receive rollouts and drop them.
    #[arg(long)]
    idle: bool,
    /// Be the workers of the learner at this address.
    #[arg(long, hide = true)]
    connect: Option<ServerAddress>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Network {
    /// 150 inputs, two layers of 64, an LSTM of 64, 9 actions: the embedded policy's.
    Ours,
    /// 164 inputs, two layers of 256, 2 actions: that of distributed Learn-to-Race.
    Theirs,
}

impl Network {
    fn shape(self) -> Shape {
        let (observation, hidden, lstm, actions) = match self {
            Self::Ours => (150, 64, Some(64), 9),
            Self::Theirs => (164, 256, None, 2),
        };
        Shape {
            observation,
            hidden: vec![hidden; 2],
            activation: Activation::Relu,
            lstm,
            actions,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: Vec::new(),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match options.connect.clone() {
        Some(address) => runtime.block_on(send_from_all(&options, address)),
        None => learn(&options),
    }
}

/// The learner: learns from what comes, and prints the figures.
fn learn(options: &Options) -> anyhow::Result<()> {
    let shape = options.network.shape();
    // The environment is a name only: nobody acts in it.
    let mut config: Config = toml::from_str("[environment]\nkind = \"cartpole\"")?;
    config.learner.batch = options.batch;
    config.learner.unroll = options.unroll;
    config.threads = Some(1);
    let overrides = Overrides {
        actors: Some(0),
        ..Overrides::default()
    };
    let config = config.resolve(&overrides)?;
    let parameters = model::initialise(&shape, 1);
    let mut device = model::device(DeviceKind::Cpu, &shape, 1)?;
    let failed = |failure| anyhow::anyhow!("the device failed: {failure}");
    device.set_parameters(&parameters).map_err(failed)?;
    let state = LearnerState::new(1, &config.learner);
    let mut learner = Learner::new(device, config.learner.clone(), state, 0);
    let of_policies = Arc::new(shape.clone());
    let publish = |version, parameters| Published::new(version, of_policies.clone(), parameters);
    let exchange = Arc::new(LocalExchange::new(
        2 * options.batch,
        config.actor.when_full,
        None,
        publish(0, parameters),
    ));
    let offer = Offer {
        run: "a measurement".to_owned(),
        config,
        shape,
        tasks: 1,
        normalizer: None,
        steps: 0,
    };
    let listening = Listening {
        address: (options.listen, 0).into(),
        tls: None,
        plaintext: Plaintext::Anywhere,
        token: None,
        learners: 1,
    };
    let server = LearnerServer::start(&listening, &offer, exchange.clone())?;
    let relay = (options.shim.as_deref())
        .map(|file| Relay::start(file, server.address()))
        .transpose()?;
    let address = relay
        .as_ref()
        .map_or(server.address(), |relay| relay.address);
    let workers = start(options, address)?;

    let since = Instant::now();
    let mut figures = None;
    let mut busy = Duration::ZERO;
    let warm_up = Duration::from_secs(options.warm_up);
    let end = warm_up + Duration::from_secs(options.seconds);
    while since.elapsed() < end {
        if exchange.is_over() {
            bail!("the server has ended");
        }
        if figures.is_none() && since.elapsed() >= warm_up {
            figures = Some(server.figures());
            busy = Duration::ZERO;
        }
        let Some((rollouts, report)) = exchange.take(options.batch) else {
            continue;
        };
        if let Some(figures) = &mut figures {
            let steps = (options.batch * options.unroll) as u64;
            figures.count(&rollouts, learner.updates(), steps, report.stale);
        }
        if options.idle {
            continue;
        }
        let begun = Instant::now();
        learner.update(&rollouts, 0.0)?;
        let mut parameters = Vec::new();
        learner
            .device()
            .parameters(&mut parameters)
            .map_err(failed)?;
        exchange.publish(publish(learner.updates(), parameters));
        busy += begun.elapsed();
    }
    let figures = figures.context("it has been longer than the warm-up")?;
    let point = figures.point();
    println!(
        "{:?} unroll {} batch {} workers {}: {:.2} million steps/h, handling {:.2} ms, learner \
         busy {:.0} %, {:.1} MB/s in, {:.1} MB/s out, lag {}/{} (50/99 %)",
        options.network,
        options.unroll,
        options.batch,
        point.workers,
        point.steps_per_hour / 1e6,
        point.handling_ms,
        100.0 * busy.as_secs_f64() / options.seconds as f64,
        point.received_bytes_per_s / 1e6,
        point.sent_bytes_per_s / 1e6,
        point.lag_p50,
        point.lag_p99,
    );
    server.stop(true)?;
    for mut process in workers {
        let ended = process.wait()?;
        anyhow::ensure!(ended.success(), "workers ended with {ended}");
    }
    relay.map_or(Ok(()), Relay::end)
}

/// What relays the workers' connections to the learner.
struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<shim::Summary>>,
}

impl Relay {
    fn start(conditions: &Path, to: SocketAddr) -> anyhow::Result<Self> {
        let table: ConditionsTable = toml_file::read(conditions)?;
        let settings = Settings {
            to,
            conditions: table.conditions(conditions.parent().unwrap_or(Path::new("")))?,
            seed: 1,
        };
        let listener = TcpListener::bind((to.ip(), 0))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = stop.clone();
            move || shim::relay(Socket::Tcp(listener), settings, None, &stop)
        });
        Ok(Self {
            address,
            stop,
            thread,
        })
    }

    fn end(self) -> anyhow::Result<()> {
        self.stop.store(true, Relaxed);
        let ended = self.thread.join();
        let ended = ended.map_err(|_| anyhow::anyhow!("the relay has panicked"))?;
        ended.context("relaying").map(drop)
    }
}

/// Starts the processes of all workers, each with the same number of them but for one.
fn start(options: &Options, learner: SocketAddr) -> anyhow::Result<Vec<Child>> {
    let network = options.network.to_possible_value();
    let network = network.context("every network has a name")?;
    let processes = options.processes.clamp(1, options.workers.max(1));
    let own = env::current_exe()?;
    (0..processes)
        .map(|index| {
            let until = |index: usize| options.workers * index / processes;
            let workers = until(index + 1) - until(index);
            let mut command = match &options.netns {
                None => Command::new(&own),
                Some(name) => {
                    let mut command = Command::new("ip");
                    command.args(["netns", "exec", name]).arg(&own);
                    command
                }
            };
            let child = command
                .args(["--network", network.get_name()])
                .args(["--unroll", &options.unroll.to_string()])
                .args(["--workers", &workers.to_string()])
                .args(["--connect", &format!("grpc://{learner}")])
                .spawn()?;
            Ok(child)
        })
        .collect()
}

/// The workers: each sends its message whenever it may, until the learner is done.
async fn send_from_all(options: &Options, address: ServerAddress) -> anyhow::Result<()> {
    let widths = Widths::of(&options.network.shape(), options.unroll + 1, 1);
    let rollouts: Vec<_> = (0..widths.rollouts() as u64)
        .map(|seed| random(&widths, seed))
        .collect();
    let message = Batch::of(&rollouts, &[], Duration::ZERO);
    let tasks: Vec<_> = (0..options.workers)
        .map(|_| tokio::spawn(send(address.clone(), message.clone())))
        .collect();
    let mut broken = Vec::new();
    for task in tasks {
        broken.extend(task.await?.err());
    }
    if let Some(error) = broken.first() {
        // The learner cuts off those that are not done in time; the line of figures says how many
        // were connected until then.
        let (broken, all) = (broken.len(), options.workers);
        eprintln!("{broken} of {all} workers were cut off: {error:#}");
    }
    Ok(())
}

/// One worker, on a connection of its own.
async fn send(address: ServerAddress, message: Batch) -> anyhow::Result<()> {
    let endpoint = endpoint(&address, None, Plaintext::Anywhere)?;
    let channel = endpoint.connect().await?;
    let (to_learner, outgoing) = mpsc::channel(16);
    let say = |content| {
        let message = FromWorker {
            content: Some(content),
        };
        // There is room for as many messages as there are credits. A stream that has ended says so
        // to its reader.
        match to_learner.try_send(message) {
            Err(TrySendError::Full(_)) => bail!("the learner gives more credits than it has told"),
            _ => Ok(()),
        }
    };
    say(from_worker::Content::Hello(Hello {
        protocol: PROTOCOL,
        actors: 1,
        ..Hello::default()
    }))?;
    let mut learner: Streaming<FromLearner> =
        rpc::open(channel, PATH, outgoing, LEARNER_BYTES).await?;
    let version = AtomicU64::new(0);
    let send = |messages| {
        (0..messages).try_for_each(|_| {
            let mut batch = message.clone();
            batch.versions.fill(version.load(Relaxed));
            say(from_worker::Content::Batch(batch))
        })
    };
    let mut credits = 0;
    loop {
        let heard = learner.message().await?.and_then(|message| message.content);
        match heard {
            Some(from_learner::Content::Plan(plan)) => {
                credits = plan.credits;
                say(from_worker::Content::Ready(Ready { shape: plan.shape }))?;
            }
            Some(from_learner::Content::Policy(policy)) => {
                version.store(policy.version, Relaxed);
                // With the first one it may begin.
                send(std::mem::take(&mut credits))?;
            }
            Some(from_learner::Content::Credit(credit)) => send(credit.messages)?,
            Some(from_learner::Content::Finished(_)) => return Ok(()),
            Some(from_learner::Content::Start(_) | from_learner::Content::Totals(_)) => {
                bail!("the learner takes the worker for a replica")
            }
            None => bail!("the learner has closed the stream"),
        }
    }
}

/// A rollout of random numbers.
fn random(widths: &Widths, seed: u64) -> Rollout {
    let mut random = StdRng::seed_from_u64(seed);
    let mut floats =
        |count: usize| -> Vec<f32> { (0..count).map(|_| random.random::<f32>() - 0.5).collect() };
    let steps = widths.steps;
    Rollout {
        observation: floats(steps * widths.observation),
        observed_reward: floats(steps),
        privileged: Vec::new(),
        first: (0..steps)
            .map(|step| (step % 50 == 0).then_some(End::Truncated))
            .collect(),
        action: (0..steps)
            .map(|step| (step % widths.actions) as u32)
            .collect(),
        logits: floats(steps * widths.actions),
        effects: (0..steps).flat_map(|_| 0..widths.actions as u8).collect(),
        allowed: vec![true; steps * widths.actions],
        origin: vec![Origin::Actor; steps],
        reward: floats(steps),
        intervals: vec![1.0; steps],
        quantities: vec![Quantities::default(); steps],
        task: vec![0; steps],
        h: floats(widths.state),
        c: floats(widths.state),
        version: 0,
    }
}
