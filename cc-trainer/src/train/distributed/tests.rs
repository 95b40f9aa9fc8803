//! Learner and workers over the loopback network, and workers that do not keep to the protocol.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc as threads,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cc_remote::{
    rpc,
    transport::{self, Plaintext},
};
use tokio::{sync::mpsc, time::timeout};
use tonic::{Code, Status, Streaming};

use super::{
    Follower, Leader, LearnerServer, Learning, Listening, Offer, RealTime, Refusal, ServedFlows,
    WorkError, WorkEvent, Worker,
    wire::{
        Batch, Begin, FromLearner, FromWorker, Hello, LEARNER_BYTES, PATH, PROTOCOL, Plan, Ready,
        Widths, from_learner, from_worker, to_json,
    },
};
use crate::{
    learner::partners::tests as partners,
    listening,
    model::{DeviceKind, Shape},
    rollout::Rollout,
    train::{
        self, TrainError, TrainEvent, Training,
        config::{Config, Overrides, WhenFull},
        exchange::{LocalExchange, Published},
        metrics::{MetricsAddress, tests::scrape},
        record::{Finish, Record},
    },
};

/// No wait in these tests may outlast this.
const DEADLINE: Duration = Duration::from_secs(120);

/// CartPole with 80 steps per update.
fn config() -> Config {
    let config = "
        actors = 0
        threads = 1
        [environment]
        kind = \"cartpole\"
        [model]
        hidden = [8]
        lstm = 6
        [learner]
        batch = 8
        unroll = 10
        decay_steps = 4000
        reward_normalisation = \"per_task\"
        [actor]
        environments = 3
        max_lag = 3
    ";
    toml::from_str(config).expect("settings")
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// A learner on a thread of its own, which is stopped when it is dropped.
struct Learner {
    address: SocketAddr,
    metrics: SocketAddr,
    run: String,
    stop: Arc<AtomicBool>,
    /// `None` after it was waited for.
    thread: Option<JoinHandle<Result<Record, TrainError>>>,
}

impl Learner {
    fn start(dir: &Path, config: Config, steps: u64, address: SocketAddr) -> Self {
        Self::start_of(1, dir, config, steps, address)
    }

    /// The same for the first of so many learners.
    fn start_of(
        learners: usize,
        dir: &Path,
        config: Config,
        steps: u64,
        address: SocketAddr,
    ) -> Self {
        let training = Training {
            config: Some(config),
            overrides: Overrides {
                steps: Some(steps),
                ..Overrides::default()
            },
            dir: dir.to_owned(),
            command: "a test".to_owned(),
            listening: Some(Listening {
                address,
                tls: None,
                plaintext: Plaintext::Loopback,
                token: Some("secret".to_owned()),
                learners,
            }),
            metrics: Some(MetricsAddress {
                address: anywhere(),
                exposed: false,
            }),
            store: None,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (listens, listening) = threads::channel();
        let thread = thread::spawn({
            let stop = stop.clone();
            move || {
                let mut metrics = None;
                train::train(&training, &stop, &mut |event| match event {
                    TrainEvent::Metrics { address } => metrics = Some(address),
                    TrainEvent::Listening { address, run } => {
                        // The test may have failed and gone.
                        let _ = listens.send((address, metrics, run.to_owned()));
                    }
                    _ => {}
                })
            }
        });
        let (address, metrics, run) = listening.recv_timeout(DEADLINE).expect("it listens");
        Self {
            address,
            metrics: metrics.expect("they come first"),
            run,
            stop,
            thread: Some(thread),
        }
    }

    fn wait(mut self) -> Record {
        let thread = self.thread.take().expect("it is waited for once");
        thread.join().expect("no panic").expect("a good run")
    }

    /// Ends it as Ctrl-C does.
    fn interrupt(self) -> Record {
        self.stop.store(true, Relaxed);
        self.wait()
    }

    fn worker(&self) -> Worker {
        Worker {
            learner: format!("grpc://{}", self.address)
                .parse()
                .expect("an address"),
            tls: None,
            plaintext: Plaintext::Loopback,
            token: Some("secret".to_owned()),
            actors: 1,
            config: None,
            replay: false,
            real_time: None,
            learning: None,
        }
    }

    fn hello(&self) -> Hello {
        Hello {
            protocol: PROTOCOL,
            version: "a test".to_owned(),
            token: "secret".to_owned(),
            run: String::new(),
            actors: 1,
            config: String::new(),
            learns: false,
        }
    }
}

impl Drop for Learner {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// A worker on a thread of its own.
struct Working {
    stop: Arc<AtomicBool>,
    events: threads::Receiver<WorkEvent>,
    ended: threads::Receiver<Result<(), WorkError>>,
}

impl Working {
    fn start(worker: Worker) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (event, events) = threads::channel();
        let (end, ended) = threads::channel();
        thread::spawn({
            let stop = stop.clone();
            move || {
                let outcome = worker.work(&stop, &mut |happened| drop(event.send(happened)));
                // The test may have failed and gone.
                let _ = end.send(outcome);
            }
        });
        Self {
            stop,
            events,
            ended,
        }
    }

    /// Waits for an event of this kind.
    fn wait_for(&self, is_meant: impl Fn(&WorkEvent) -> bool) {
        while !is_meant(&self.events.recv_timeout(DEADLINE).expect("in time")) {}
    }

    fn end(self) -> Result<(), WorkError> {
        self.ended.recv_timeout(DEADLINE).expect("in time")
    }
}

/// A worker's stream that a test writes itself.
struct Raw {
    to_learner: mpsc::Sender<FromWorker>,
    from_learner: Streaming<FromLearner>,
}

impl Raw {
    async fn open(learner: &Learner) -> Self {
        let address = learner.worker().learner;
        let endpoint = transport::endpoint(&address, None, Plaintext::Loopback).expect("loopback");
        let channel = endpoint.connect().await.expect("a learner");
        let (to_learner, outgoing) = mpsc::channel(8);
        let opened = rpc::open(channel, PATH, outgoing, LEARNER_BYTES).await;
        Self {
            to_learner,
            from_learner: opened.expect("a stream"),
        }
    }

    /// A stream on which the learner has said what it wants.
    async fn welcomed(learner: &Learner) -> (Self, Plan) {
        let mut raw = Self::open(learner).await;
        raw.say(from_worker::Content::Hello(learner.hello())).await;
        let Ok(from_learner::Content::Plan(plan)) = raw.hear().await else {
            panic!("the plan comes first");
        };
        (raw, plan)
    }

    /// A stream on which rollouts can be sent.
    async fn ready(learner: &Learner) -> (Self, Shape) {
        let (mut raw, plan) = Self::welcomed(learner).await;
        let shape = plan.shape.clone();
        raw.say(from_worker::Content::Ready(Ready { shape })).await;
        let policy = raw.hear().await.expect("a policy");
        assert!(matches!(policy, from_learner::Content::Policy(_)));
        (raw, serde_json::from_str(&plan.shape).expect("a shape"))
    }

    async fn say(&self, content: from_worker::Content) {
        let content = Some(content);
        // The stream may have been closed, which the answer tells.
        let _ = self.to_learner.send(FromWorker { content }).await;
    }

    async fn hear(&mut self) -> Result<from_learner::Content, Status> {
        let heard = timeout(DEADLINE, self.from_learner.message()).await;
        let message = heard.expect("in time")?;
        Ok(message
            .expect("the stream goes on")
            .content
            .expect("content"))
    }

    /// The status with which the learner ends the stream.
    async fn refusal(&mut self) -> Status {
        loop {
            if let Err(status) = self.hear().await {
                return status;
            }
        }
    }
}

fn widths(shape: &Shape) -> Widths {
    Widths::of(shape, 11, 1)
}

/// A rollout of this version in which nothing happens.
pub(super) fn rollout(widths: &Widths, version: u64) -> Rollout {
    let steps = widths.steps;
    Rollout {
        observation: vec![0.01; steps * widths.observation],
        observed_reward: vec![1.0; steps],
        privileged: vec![0.0; steps * widths.privileged],
        first: vec![None; steps],
        action: vec![0; steps],
        logits: vec![0.0; steps * widths.actions],
        effects: (0..steps).flat_map(|_| 0..widths.actions as u8).collect(),
        allowed: vec![true; steps * widths.actions],
        origin: vec![crate::rollout::Origin::Actor; steps],
        reward: vec![1.0; steps],
        intervals: vec![1.0; steps],
        quantities: vec![crate::environment::Quantities::default(); steps],
        task: vec![0; steps],
        h: vec![0.0; widths.state],
        c: vec![0.0; widths.state],
        version,
    }
}

fn batch(widths: &Widths, count: usize, version: u64) -> from_worker::Content {
    let rollouts = vec![rollout(widths, version); count];
    from_worker::Content::Batch(Batch::of(&rollouts, &[], Duration::ZERO))
}

fn block_on<F: Future>(future: F) -> F::Output {
    listening::runtime().expect("a runtime").block_on(future)
}

#[test]
fn two_workers_learn_cartpole() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    // As the example of `train`, which learns in turns.
    let config = "
        actors = 0
        threads = 1
        [environment]
        kind = \"cartpole\"
        [model]
        hidden = [32]
        activation = \"tanh\"
        lstm = 0
        [learner]
        batch = 8
        unroll = 20
        learning_rate = 1e-2
        gradient_clip = 10
        [actor]
        environments = 16
        max_lag = 50
    ";
    let config = toml::from_str(config).expect("settings");
    let learner = Learner::start(dir.path(), config, 60_000, anywhere());
    let workers = [1, 2].map(|actors| {
        Working::start(Worker {
            actors,
            ..learner.worker()
        })
    });
    let run = learner.run.clone();
    let record = learner.wait();
    for worker in workers {
        worker.end().expect("the run is done, and says so");
    }
    assert_eq!((record.finish, record.run), (Finish::Steps, Some(run)));
    let last = &record.last;
    assert!(last.episode_return.expect("episodes") > 60.0, "{last:?}");
    let exchange = last.exchange.as_ref().expect("figures of workers");
    assert_eq!((exchange.welcomed, exchange.refused), (2, 0));
    assert!(exchange.lag_max <= 50 && exchange.lag_p50 <= exchange.lag_p99);
    assert!(exchange.steps_per_hour > 0.0 && exchange.handling_ms > 0.0);
    assert!(exchange.received_bytes_per_s > 0.0 && exchange.sent_bytes_per_s > 0.0);
}

#[test]
fn own_actors_and_workers_act_together() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let config = Config {
        actors: Some(1),
        ..config()
    };
    let learner = Learner::start(dir.path(), config, 40_000, anywhere());
    let worker = Working::start(learner.worker());
    let record = learner.wait();
    worker.end().expect("the run is done");
    assert!(record.last.exchange.expect("figures").received_bytes_per_s > 0.0);
}

#[test]
fn workers_come_back_to_a_learner_that_was_started_again() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let first = Learner::start(dir.path(), config(), 1 << 40, anywhere());
    let (address, run) = (first.address, first.run.clone());
    let worker = Working::start(first.worker());
    worker.wait_for(|event| matches!(event, WorkEvent::Acting { .. }));
    let early = Working::start(first.worker());
    early.wait_for(|event| matches!(event, WorkEvent::Acting { .. }));
    early.stop.store(true, Relaxed);
    early.end().expect("a worker may leave at any time");
    let since = Instant::now();
    let page = loop {
        let page = scrape(first.metrics);
        // The learner may not have noticed yet who has left. A message is counted once all of its
        // rollouts are in the queue, when some of them may have been learnt from.
        let counted = ["rollouts_total", "messages_total", "handling_seconds_total"];
        let counted = counted.map(|name| page[&format!("cc_trainer_{name}")] > 0.0);
        if page["cc_trainer_workers"] == 1.0 && counted == [true; 3] {
            break page;
        }
        assert!(since.elapsed() < DEADLINE, "{page:?}");
    };
    assert_eq!(page["cc_trainer_worker_actors"], 1.0);
    assert_eq!(page["cc_trainer_workers_welcomed_total"], 2.0);
    for positive in [
        "messages_total",
        "received_bytes_total",
        "sent_bytes_total",
        "handling_seconds_total",
        "handling_mean_seconds",
        "steps_per_second",
        "learner_utilization",
    ] {
        assert!(page[&format!("cc_trainer_{positive}")] > 0.0, "{page:?}");
    }
    let lag = |quantile| page[&format!("cc_trainer_rollout_lag{{quantile=\"{quantile}\"}}")];
    assert!(lag("0.5") <= lag("0.99") && lag("1") <= 3.0, "the bound");
    let part = first.interrupt();
    assert_eq!(part.finish, Finish::Open);
    worker.wait_for(|event| matches!(event, WorkEvent::Waiting { .. }));
    let steps = part.last.steps + 4_000;
    let second = Learner::start(dir.path(), config(), steps, address);
    assert_eq!(second.run, run);
    let record = second.wait();
    worker.end().expect("the run is done");
    assert!(record.last.steps >= steps && record.parts.len() == 2);
}

#[test]
fn workers_of_something_else_are_refused() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let learner = Learner::start(dir.path(), config(), 800, anywhere());
    let refused = |worker: Worker| {
        let error = Working::start(worker).end().expect_err("refused");
        error.to_string()
    };
    let with_token = |token: Option<&str>| Worker {
        token: token.map(str::to_owned),
        ..learner.worker()
    };
    assert!(refused(with_token(None)).contains("the learner asks for a token"));
    assert!(refused(with_token(Some("secre"))).contains("wrong token"));
    let mut other = config();
    other.learner.unroll = 11;
    let text = refused(Worker {
        config: Some(other),
        ..learner.worker()
    });
    assert!(text.contains("learner.unroll: 11, not 10"), "{text}");

    block_on(async {
        let refusal = async |hello: Hello| {
            let mut raw = Raw::open(&learner).await;
            raw.say(from_worker::Content::Hello(hello)).await;
            raw.refusal().await
        };
        let hello = learner.hello();
        let status = refusal(Hello {
            run: "another".to_owned(),
            ..hello.clone()
        });
        let status = status.await;
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("acts for run \"another\""));
        let newer = Hello {
            protocol: PROTOCOL + 1,
            ..hello.clone()
        };
        assert!(refusal(newer).await.message().contains("of the protocol"));
        let nobody = Hello {
            actors: 0,
            ..hello.clone()
        };
        assert!(refusal(nobody).await.message().contains("0 actors"));
        // One action more than the learner's network has.
        let (mut raw, plan) = Raw::welcomed(&learner).await;
        let mut shape: Shape = serde_json::from_str(&plan.shape).expect("a shape");
        shape.actions += 1;
        let shape = to_json(&shape);
        raw.say(from_worker::Content::Ready(Ready { shape })).await;
        let status = raw.refusal().await;
        assert!(status.message().contains("another network"), "{status}");
    });
    let page = scrape(learner.metrics);
    for refusal in Refusal::ALL {
        let reason = refusal.name();
        let count = page[&format!("cc_trainer_workers_refused_total{{reason=\"{reason}\"}}")];
        let expected = match refusal {
            Refusal::Token => 2.0,
            Refusal::Silence => 0.0,
            _ => 1.0,
        };
        assert_eq!(count, expected, "{reason}");
    }
    let worker = Working::start(Worker {
        config: Some(config()),
        ..learner.worker()
    });
    let exchange = learner.wait().last.exchange.expect("figures");
    worker.end().expect("the run is done");
    assert_eq!((exchange.welcomed, exchange.refused), (1, 7));
}

#[test]
fn messages_that_cannot_be_end_their_stream_alone() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let learner = Learner::start(dir.path(), config(), 800, anywhere());
    block_on(async {
        let refusal = async |content: &dyn Fn(&Widths) -> from_worker::Content| {
            let (mut raw, shape) = Raw::ready(&learner).await;
            raw.say(content(&widths(&shape))).await;
            raw.refusal().await
        };
        let changed = |change: fn(&mut Batch)| {
            move |widths: &Widths| {
                let from_worker::Content::Batch(mut batch) = batch(widths, 2, 0) else {
                    unreachable!("it is one");
                };
                change(&mut batch);
                from_worker::Content::Batch(batch)
            }
        };
        for (change, expected) in [
            (
                changed(|batch| batch.observation = batch.observation.slice(4..)),
                "observation has",
            ),
            (changed(|batch| batch.action[3] = 2), "action has 2"),
            (changed(|batch| batch.task[3] = 1), "task has 1"),
            (changed(|batch| batch.versions[1] = 1 << 40), "versions has"),
        ] {
            let status = refusal(&change).await;
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().contains(expected), "{status}");
        }
        let huge = |widths: &Widths| {
            from_worker::Content::Batch(Batch {
                observation: vec![0; widths.message_bytes() + 1].into(),
                ..Batch::default()
            })
        };
        assert_eq!(refusal(&huge).await.code(), Code::OutOfRange);
        let again = |_: &Widths| from_worker::Content::Hello(learner.hello());
        let status = refusal(&again).await;
        assert!(status.message().contains("expected rollouts"), "{status}");
    });
    let page = scrape(learner.metrics);
    let refused = |what: &str| page[&format!("cc_trainer_{what}")];
    assert_eq!(refused("workers_refused_total{reason=\"message\"}"), 6.0);
    // Two in each of the four that could be decoded.
    assert_eq!(refused("rollouts_refused_total{reason=\"malformed\"}"), 8.0);
    // Others go on.
    let worker = Working::start(learner.worker());
    let exchange = learner.wait().last.exchange.expect("figures");
    worker.end().expect("the run is done");
    assert_eq!((exchange.welcomed, exchange.refused), (7, 6));
}

#[test]
fn nothing_beyond_the_bound_is_learnt_from_and_silent_workers_hold_nobody_up() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let learner = Learner::start(dir.path(), config(), 8_000, anywhere());
    let (hold, held) = tokio::sync::oneshot::channel::<()>();
    let address = learner.worker();
    let (sent, is_sent) = threads::channel();
    let bad = {
        let (address, hello) = (learner.address, learner.hello());
        thread::spawn(move || {
            let stand_in = Learner {
                address,
                metrics: address,
                run: String::new(),
                stop: Arc::default(),
                thread: None,
            };
            block_on(async {
                // One says nothing, one only its name, and one reads nothing.
                let _silent = Raw::open(&stand_in).await;
                let named = Raw::open(&stand_in).await;
                named.say(from_worker::Content::Hello(hello)).await;
                let (raw, shape) = Raw::ready(&stand_in).await;
                // These are of the first policy, however many updates there are.
                for _ in 0..4 {
                    raw.say(batch(&widths(&shape), 16, 0)).await;
                }
                let _ = sent.send(());
                let sending = async {
                    loop {
                        raw.say(batch(&widths(&shape), 16, 0)).await;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                tokio::select! {
                    () = sending => {}
                    _ = held => {}
                }
            });
        })
    };
    is_sent.recv_timeout(DEADLINE).expect("they are sent");
    let worker = Working::start(address);
    let record = learner.wait();
    worker.end().expect("the run is done");
    drop(hold);
    bad.join().expect("no panic");
    assert_eq!(record.finish, Finish::Steps);
    let exchange = record.last.exchange.expect("figures");
    assert!(exchange.lag_max <= 3, "{exchange:?}");
    assert!(exchange.stale > 0, "{exchange:?}");
}

#[test]
fn a_real_time_worker_ends_where_nothing_can_be_learnt_from_flows() {
    let network = "
        actors = 0
        threads = 1
        [environment]
        kind = \"network\"
        inputs = \"raw\"
        [[environment.links]]
        scenarios = \"calibrated\"
        [model]
        hidden = [8]
        [learner]
        batch = 8
        unroll = 10
        privileged = true
    ";
    let network: Config = toml::from_str(network).expect("settings");
    let network = Config {
        allow_test_sets: true,
        ..network
    };
    for (config, expected) in [
        (config(), "does not learn policies that cc-agent serves"),
        (network, "set learner.privileged = false"),
    ] {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let learner = Learner::start(dir.path(), config, 4000, anywhere());
        let worker = Worker {
            real_time: Some(RealTime {
                flows: ServedFlows::Links { agent: None },
                reload: Duration::ZERO,
            }),
            ..learner.worker()
        };
        let error = Working::start(worker).end().expect_err("it cannot");
        assert!(error.to_string().contains(expected), "{error}");
        learner.interrupt();
    }
}

/// A replica of a learner, with one actor.
fn replica(learner: &Learner) -> Worker {
    Worker {
        learning: Some(Learning {
            device: DeviceKind::Cpu,
            threads: 1,
        }),
        ..learner.worker()
    }
}

#[test]
fn two_learners_of_half_a_batch_each_make_the_updates_of_one() {
    let config = config().resolve(&Overrides::default()).expect("valid");
    let source = config.environment.open().expect("an environment");
    let shape = config.shape(&source.spec(), &[]).expect("a shape");
    let settings = &config.learner;
    let batches: Vec<_> = (0..10)
        .map(|seed| partners::rollouts(&shape, 1, settings.unroll, 8, seed))
        .collect();
    let mut single = partners::learner(&shape, 1, settings);
    for batch in &batches {
        single.update(batch, 0.25).expect("finite");
    }
    let expected = partners::parameters(&single);

    let mut first = partners::learner(&shape, 1, settings);
    let published = Published::new(0, Arc::new(shape.clone()), partners::parameters(&first));
    let exchange = LocalExchange::new(8, WhenFull::Wait, None, published);
    let offer = Offer {
        run: "a test".to_owned(),
        config: config.clone(),
        shape: shape.clone(),
        tasks: 1,
        normalizer: None,
        steps: 0,
    };
    let listening = Listening {
        address: anywhere(),
        tls: None,
        plaintext: Plaintext::Loopback,
        token: None,
        learners: 2,
    };
    let server = LearnerServer::start(&listening, &offer, Arc::new(exchange)).expect("it listens");
    let group = server.group().expect("there are two");
    first.learn_with(Box::new(Leader::new(group.clone())));

    let address = server.address();
    let (connected, connection) = threads::channel();
    thread::spawn(move || {
        let worker = Worker {
            learner: format!("grpc://{address}").parse().expect("an address"),
            tls: None,
            plaintext: Plaintext::Loopback,
            token: None,
            actors: 1,
            config: None,
            replay: false,
            real_time: None,
            learning: None,
        };
        let hello = Hello {
            protocol: PROTOCOL,
            actors: 1,
            learns: true,
            ..Hello::default()
        };
        block_on(async {
            let endpoint = transport::endpoint(&worker.learner, None, Plaintext::Loopback);
            let session = worker.connect(&endpoint.expect("loopback"), hello).await;
            let Ok(mut session) = session else {
                panic!("the learner takes a replica");
            };
            let (hear, heard) = threads::channel();
            // The test may have failed and gone.
            let _ = connected.send((session.to_learner, heard));
            while let Ok(Some(message)) = session.from_learner.message().await {
                let _ = hear.send(message.content.expect("content"));
            }
        });
    });
    let (to_learner, heard) = connection.recv_timeout(DEADLINE).expect("in time");
    let mut second = partners::learner(&shape, 1, settings);
    second.learn_with(Box::new(Follower::new(to_learner.clone(), heard)));
    let halves = batches.clone();
    let learnt = thread::spawn(move || {
        for (oldest, batch) in (0..).zip(&halves) {
            let begin = Begin { fresh: 4, oldest };
            let content = Some(from_worker::Content::Begin(begin));
            to_learner.try_send(FromWorker { content }).expect("room");
            second.update(&batch[4..], 0.0).expect("finite");
        }
    });
    for batch in &batches {
        assert!(group.wait(DEADLINE), "the replica has its rollouts");
        first.update(&batch[..4], 0.25).expect("finite");
    }
    learnt.join().expect("no panic");
    assert_eq!(group.take_fresh(), 40);
    partners::assert_equal(&partners::parameters(&first), &expected);
    server.stop(true).expect("it served well");
}

#[test]
fn replicas_come_and_go_and_one_too_many_waits() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let learner = Learner::start_of(
        2,
        dir.path(),
        Config {
            actors: Some(1),
            ..config()
        },
        1 << 40,
        anywhere(),
    );
    let learns = |event: &WorkEvent| matches!(event, WorkEvent::Acting { .. });
    let first = Working::start(replica(&learner));
    first.wait_for(learns);
    let second = Working::start(replica(&learner));
    second.wait_for(|event| match event {
        WorkEvent::Waiting { reason, .. } => reason.contains("has all of its --learners"),
        _ => false,
    });
    let since = Instant::now();
    while scrape(learner.metrics)["cc_trainer_rollouts_total"] < 80.0 {
        assert!(since.elapsed() < DEADLINE, "both learn");
    }
    first.stop.store(true, Relaxed);
    first.end().expect("a replica may leave at any time");
    // Now there is a place.
    second.wait_for(learns);
    let record = learner.interrupt();
    let exchange = record.last.exchange.expect("figures");
    assert_eq!(exchange.workers, 0, "replicas are no workers: {exchange:?}");
    second.stop.store(true, Relaxed);
    second
        .end()
        .expect("it waits for a learner, and may be stopped");
    // What replicas learnt from counts as well.
    let steps = record.last.steps;
    assert!(steps > 80 * record.last.updates, "{steps} steps");
}

#[test]
fn a_learner_that_learns_alone_refuses_replicas() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let learner = Learner::start(dir.path(), config(), 800, anywhere());
    let error = Working::start(replica(&learner))
        .end()
        .expect_err("refused");
    assert!(error.to_string().contains("--learners N"), "{error}");
}
