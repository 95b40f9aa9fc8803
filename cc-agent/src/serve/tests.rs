//! The event loop on a datapath in memory.
//!
//! Time is tokio's and paused: it moves on only when everything waits, and not while
//! [`Fixture::eventually`] or [`answered`] waits in real time for a policy's thread or its load.

use std::{fs, path::PathBuf, thread};

use cc_core::{
    canary::{Arm, CanaryBy},
    interface::Interface,
    policy::{Choice, PolicyKind, PolicyMeta, Query, export::ActorCritic, heuristic_file},
    status::{AgentCounts, Standing},
};
use tempfile::TempDir;
use tokio::task::{self, JoinHandle, LocalSet};

use super::{
    End,
    testing::{FakeDatapath, Gate, closed, fixed, opened, window},
    *,
};
use super::{loads::Purpose, service::Remedy};
use crate::{
    deploy::load_again,
    inference::{Failure, ReadyPolicy},
    options::RunOptions,
    status::Peer,
    view::{Filter, Sort},
};

/// No wait in these tests may outlast this, in real time.
const DEADLINE: Duration = Duration::from_secs(60);
/// The heartbeat limit of these agents.
const LIMIT: Duration = Duration::from_secs(1);

/// Settings of these TOML options, with this policy in place of theirs. Policies run within the
/// test, which cannot start itself as a policy's process.
fn settings(options: &str, policy: Box<dyn cc_core::policy::Policy>) -> Settings {
    let mut options = RunOptions::parse(options).expect("valid options");
    options.no_cage = Some(true);
    options.policy.policy.get_or_insert(PolicySpec::Fixed(10));
    options.batch_budget_ms = Some(60_000.0);
    let mut settings = options.resolve().expect("valid settings");
    settings.policy.policy = ReadyPolicy::Here(policy, Duration::ZERO);
    settings
}

/// An agent whose event loop runs on a datapath in memory.
struct Fixture {
    datapath: FakeDatapath,
    commands: mpsc::Sender<CommandRequest>,
    questions: mpsc::Sender<FlowsRequest>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stop: Arc<tokio::sync::Notify>,
    running: JoinHandle<Result<End, anyhow::Error>>,
    directory: TempDir,
}

impl Fixture {
    /// Starts an agent with these TOML options and this policy in place of theirs.
    fn start(options: &str, policy: Box<dyn cc_core::policy::Policy>) -> Self {
        Self::with(settings(options, policy))
    }

    /// Starts an agent with these settings.
    fn with(mut settings: Settings) -> Self {
        let datapath = FakeDatapath::new();
        let (commands, requests) = mpsc::channel(COMMANDS);
        let recording = settings.recording.take().map(RecordingSettings::begin);
        let recording = recording.transpose().expect("a scratch directory");
        let service = Service::start(settings, recording, datapath.clone(), 0).expect("starts");
        let mut event_loop =
            EventLoop::new(service, requests, None, false).expect("the counters are read");
        let directory = TempDir::new().expect("a directory for the test");
        let socket = directory.path().join("rlcc.sock");
        event_loop.memory = Some(Memory::of("rlcc", &socket));
        event_loop.service.begin_ledger(Ledger::of("rlcc", &socket));
        let (questions, asked) = mpsc::channel(COMMANDS);
        event_loop.questions = Some(asked);
        let snapshots = event_loop.snapshots.subscribe();
        let mut shutdown = Shutdown::on_request();
        let stop = shutdown.stopper();
        let running = task::spawn_local(async move { event_loop.run(&mut shutdown).await });
        Self {
            datapath,
            commands,
            questions,
            snapshots,
            stop,
            running,
            directory,
        }
    }

    /// Sends a command and returns its outcome.
    async fn command(&self, command: Command) -> Outcome {
        let outcome = self.send(command);
        answered(outcome).await
    }

    /// Sends a command, and returns where its outcome will be.
    fn send(&self, command: Command) -> oneshot::Receiver<Outcome> {
        let (reply, outcome) = oneshot::channel();
        let peer = Peer {
            uid: 7,
            pid: Some(77),
        };
        let request = CommandRequest {
            command,
            peer,
            reply,
        };
        self.commands.try_send(request).expect("there is room");
        outcome
    }

    /// A policy file that can be loaded.
    fn file(&self) -> PathBuf {
        let path = self.directory.path().join("heuristic.onnx");
        fs::write(&path, heuristic_file()).expect("writes");
        path
    }

    fn status(&self) -> Arc<Snapshot> {
        self.snapshots.borrow().clone()
    }

    /// The counters in the next snapshot, which is made after everything that was seen so far.
    async fn counts(&mut self) -> AgentCounts {
        self.snapshots.mark_unchanged();
        self.snapshots.changed().await.expect("it runs");
        self.status().agent
    }

    /// Waits in real time until `done`, while the event loop runs and its clock stands still: the
    /// policies' thread works in real time.
    async fn eventually(&self, what: &str, done: impl Fn(&FakeDatapath) -> bool) {
        let start = std::time::Instant::now();
        while !done(&self.datapath) {
            assert!(start.elapsed() < DEADLINE, "never: {what}");
            let pause = || thread::sleep(Duration::from_millis(1));
            task::spawn_blocking(pause).await.expect("does not panic");
        }
    }

    /// Opens a flow and ends its windows of these numbers, one after the other.
    async fn windows(&self, slot: u32, indices: std::ops::RangeInclusive<u32>) {
        for index in indices {
            if index == 1 {
                self.datapath.send([opened(slot, self.datapath.now_ns())]);
            }
            self.datapath
                .send([window(slot, index, self.datapath.now_ns())]);
            self.eventually("it is taken", FakeDatapath::is_drained)
                .await;
        }
    }

    /// Ends the event loop and returns its outcome.
    async fn end(self) -> Result<End, anyhow::Error> {
        self.stop.notify_one();
        self.running.await.expect("does not panic")
    }
}

/// Waits in real time for the outcome of a command, while the event loop runs and its clock stands
/// still: policies are loaded in real time.
async fn answered(mut outcome: oneshot::Receiver<Outcome>) -> Outcome {
    let start = std::time::Instant::now();
    loop {
        match outcome.try_recv() {
            Ok(outcome) => return outcome,
            Err(oneshot::error::TryRecvError::Closed) => panic!("every command is answered"),
            Err(oneshot::error::TryRecvError::Empty) => {}
        }
        assert!(start.elapsed() < DEADLINE, "no outcome");
        let pause = || thread::sleep(Duration::from_millis(1));
        task::spawn_blocking(pause).await.expect("does not panic");
    }
}

/// Runs a test of an agent on one thread with paused time.
fn on_paused_time(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("a runtime");
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn a_window_becomes_a_decision() {
    on_paused_time(async {
        let agent = Fixture::start("", fixed(30));
        agent.windows(3, 1..=1).await;
        agent
            .eventually("a decision", |datapath| !datapath.published().is_empty())
            .await;
        let (slot, decision) = agent.datapath.published()[0];
        assert_eq!((slot, decision.window, decision.cwnd), (3, 1, 30));
        agent.end().await.expect("ends well");
    });
}

#[test]
fn commands_follow_each_other() {
    on_paused_time(async {
        let agent = Fixture::start("", fixed(10));
        let file = agent.file();
        let reload = || Command::Reload { file: file.clone() };
        let canary = |percent| Command::StartCanary {
            file: file.clone(),
            percent,
            by: CanaryBy::Time,
        };
        let refused = agent.command(Command::Promote).await;
        assert_eq!(refused, Err("there is no candidate to promote".into()));
        let refused = agent.command(Command::Withdraw).await;
        assert_eq!(refused, Err("there is no candidate to withdraw".into()));

        let done = agent.command(reload()).await.expect("it is loaded");
        assert!(done.ends_with("decides from now on"), "{done}");
        let done = agent.command(canary(25.0)).await.expect("it is loaded");
        assert!(
            done.ends_with("has 25 % of the flows in its blocks of time"),
            "{done}"
        );
        let status = agent.status();
        assert_eq!(
            status.canary.as_ref().map(|canary| canary.percent),
            Some(25.0)
        );
        assert_eq!(status.news, Some(done));

        let refused = agent.command(reload()).await.expect_err("a canary runs");
        assert!(refused.contains("promote or withdraw"), "{refused}");
        let refused = agent.command(canary(101.0)).await.expect_err("too much");
        assert!(refused.contains("expected 0 to 100"), "{refused}");

        let done = agent.command(Command::Promote).await;
        let done = done.expect("a candidate");
        assert!(
            done.ends_with("was promoted; found: open after 0 of 10 pairs of blocks"),
            "{done}"
        );
        assert_eq!(agent.status().canary, None);
        assert!(agent.command(Command::Withdraw).await.is_err());
        agent.command(canary(0.0)).await.expect("a candidate");
        let done = agent.command(Command::Withdraw).await.expect("a candidate");
        assert!(done.contains("was withdrawn"), "{done}");
        agent.end().await.expect("ends well");
    });
}

#[test]
fn a_file_that_cannot_be_loaded_changes_nothing() {
    on_paused_time(async {
        let agent = Fixture::start("policy = 'fixed:10'", fixed(10));
        let file = agent.directory.path().join("broken.onnx");
        fs::write(&file, "not a policy").expect("writes");
        let refused = agent.command(Command::Reload { file }).await;
        let refused = refused.expect_err("broken");
        assert!(refused.ends_with("the policy stays fixed:10"), "{refused}");
        assert_eq!(agent.status().news, Some(refused));
        agent.end().await.expect("ends well");
    });
}

#[test]
fn a_policy_that_hangs_is_started_again() {
    on_paused_time(async {
        let (gate, policy) = Gate::before(10);
        let options = "heartbeat_ms = 1000\npolicy = 'fixed:30'";
        let mut agent = Fixture::start(options, policy);
        agent.windows(0, 1..=1).await;
        tokio::time::sleep(LIMIT / 2).await;
        assert!(
            agent.datapath.beats() > 3,
            "it beats while the batch is in time"
        );
        // Windows that end meanwhile replace each other.
        agent.windows(0, 2..=4).await;
        tokio::time::sleep(LIMIT).await;
        agent
            .eventually("a decision", |datapath| !datapath.published().is_empty())
            .await;
        let (_, decision) = agent.datapath.published()[0];
        assert_eq!((decision.window, decision.cwnd), (4, 30));
        let beats = agent.datapath.beats();
        tokio::time::sleep(LIMIT).await;
        assert!(agent.datapath.beats() > beats, "it answers again");
        let counts = agent.counts().await;
        assert_eq!((counts.windows_skipped, counts.answers_missing), (2, 1));
        assert_eq!(
            (counts.policies_restarted, counts.policies_replaced),
            (1, 0)
        );
        let news = agent.status().news.clone().expect("news");
        assert_eq!(news, "policy fixed:30 was started again");
        drop(gate);
        agent.end().await.expect("ends well");
    });
}

#[test]
fn a_policy_that_panics_is_started_again() {
    struct Panics(Box<dyn cc_core::policy::Policy>);

    impl cc_core::policy::Policy for Panics {
        fn decide(&mut self, _: &mut [cc_core::policy::Query]) -> Vec<cc_core::policy::Choice> {
            panic!("as this test wants it");
        }

        fn interface(&self) -> &cc_core::interface::Interface {
            self.0.interface()
        }
    }

    on_paused_time(async {
        let mut agent = Fixture::start("policy = 'fixed:30'", Box::new(Panics(fixed(10))));
        agent.windows(0, 1..=1).await;
        agent.windows(0, 2..=2).await;
        agent
            .eventually("a decision", |datapath| !datapath.published().is_empty())
            .await;
        let (_, decision) = agent.datapath.published()[0];
        assert_eq!((decision.window, decision.cwnd), (2, 30));
        assert_eq!(agent.counts().await.policies_restarted, 1);
        agent.end().await.expect("ends well");
    });
}

#[test]
fn a_candidate_that_hangs_is_withdrawn_and_delays_nobody() {
    on_paused_time(async {
        // The canary of the options has all new flows; its policy never answers.
        let options = "policy = 'fixed:30'\ncandidate = 'fixed:40'\ncanary = 100.0\n\
                       canary_by = 'path'";
        let mut settings = settings(options, fixed(30));
        let (gate, stuck) = Gate::before(40);
        let canary = settings.canary.as_mut().expect("a candidate");
        canary.candidate.policy = ReadyPolicy::Here(stuck, Duration::ZERO);
        let mut agent = Fixture::with(settings);
        agent.windows(0, 1..=1).await;
        let beats = agent.datapath.beats();
        tokio::time::sleep(LIMIT / 2).await;
        assert!(
            agent.datapath.beats() > beats,
            "the incumbent does not hang"
        );
        let status = agent.status();
        assert!(status.canary.is_some(), "it is in time: {:?}", status.news);
        tokio::time::sleep(LIMIT).await;
        assert_eq!(agent.counts().await.candidates_withdrawn, 1);
        let news = agent.status().news.clone().expect("news");
        assert!(
            news.starts_with("candidate fixed:40 was withdrawn: it has not answered"),
            "{news}"
        );
        // Its flow is the incumbent's now.
        agent.windows(0, 2..=2).await;
        agent
            .eventually("a decision", |datapath| !datapath.published().is_empty())
            .await;
        let (_, decision) = agent.datapath.published()[0];
        assert_eq!((decision.window, decision.cwnd), (2, 30));
        drop(gate);
        agent.end().await.expect("ends well");
    });
}

/// A service whose incumbent, which came after another policy, gives unusable answers only.
fn with_unusable_answers() -> (Service<FakeDatapath>, FakeDatapath) {
    let datapath = FakeDatapath::new();
    let start = settings("policy = 'fixed:30'", fixed(30));
    let mut service = Service::start(start, None, datapath.clone(), 0).expect("starts");
    let next = settings(
        "policy = 'fixed:50'",
        Box::new(Unusable(Interface::default())),
    )
    .policy;
    service.replace(next).expect("no canary runs");
    (service, datapath)
}

struct Unusable(Interface);

impl cc_core::policy::Policy for Unusable {
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
        vec![Choice::Invalid; queries.len()]
    }

    fn interface(&self) -> &Interface {
        &self.0
    }
}

/// Ends windows until the policy has failed.
async fn until_failed(service: &mut Service<FakeDatapath>) -> Remedy {
    let now_ns = service.datapath.now_ns();
    service.on_records(&[opened(0, now_ns)]);
    for index in 1.. {
        assert!(index < 100, "it goes on without usable answers");
        service.on_records(&[window(0, index, now_ns)]);
        service.ask_policies();
        let (arm, outcome) = service.inference.next().await;
        let answer = outcome.expect("it answers");
        if let Some(failure) = service.publish(arm, answer) {
            return service.on_failure(arm, &failure);
        }
    }
    unreachable!("the loop returns");
}

#[tokio::test]
async fn a_policy_with_unusable_answers_is_replaced_by_the_former_one() {
    let (mut service, datapath) = with_unusable_answers();
    let (news, repair) = until_failed(&mut service).await;
    let news = news.expect_err("it has failed");
    let expected = "policy fixed:50 has failed: 20 of its last 20 answers were not finite; the \
                    former policy fixed:30 takes over";
    assert_eq!(news, expected);
    assert!(datapath.published().is_empty());
    let beats = datapath.beats();
    service.beat();
    assert_eq!(datapath.beats(), beats, "no policy, no heartbeat");
    let status = service.snapshot().expect("counters");
    assert!(
        status.policy.starts_with("fixed:50 (failed: 20 of"),
        "{}",
        status.policy
    );

    let repair = repair.expect("the former policy is loaded");
    assert_eq!(repair.purpose, Purpose::Reinstate);
    let loaded = load_again(&repair.job, repair.caged).expect("it worked before");
    let done = service.repair(loaded, repair.purpose).expect("it decides");
    assert_eq!(done, "the former policy fixed:30 decides again");
    service.beat();
    assert!(datapath.beats() > beats);
    let status = service.snapshot().expect("counters");
    assert_eq!(
        (&*status.policy, status.agent.policies_replaced),
        ("fixed:30", 1)
    );

    // The policy that failed is not the next one's former.
    let failure = Failure::Ended("its process was killed".into());
    let (_, repair) = service.on_failure(Arm::Incumbent, &failure);
    assert_eq!(
        repair.expect("it is started again").purpose,
        Purpose::Restart
    );
    let (news, repair) = service.give_up("it could not be started again");
    assert!(repair.is_none());
    assert!(news.is_err_and(|news| news.contains("there is no former policy")));
}

#[tokio::test]
async fn a_policy_is_not_started_again_and_again() {
    tokio::time::pause();
    let (mut service, _) = with_unusable_answers();
    let killed = || Failure::Ended("its process was killed".into());
    for (after, expected) in [
        (0, Some(Purpose::Restart)),
        (30, Some(Purpose::Reinstate)),
        // The former policy has a first time of its own.
        (61, Some(Purpose::Restart)),
        (61, Some(Purpose::Restart)),
        (59, None),
    ] {
        tokio::time::advance(Duration::from_secs(after)).await;
        let (_, repair) = service.on_failure(Arm::Incumbent, &killed());
        assert_eq!(repair.as_ref().map(|repair| repair.purpose), expected);
        if let Some(repair) = repair {
            let loaded = load_again(&repair.job, repair.caged).expect("it loads");
            service.repair(loaded, repair.purpose).expect("it decides");
        }
    }
    let counts = service.snapshot().expect("counters").agent;
    assert_eq!(
        (counts.policies_restarted, counts.policies_replaced),
        (3, 2)
    );
}

/// A policy file with a large network.
fn large_file() -> Vec<u8> {
    let meta = PolicyMeta {
        name: "large".into(),
        kind: PolicyKind::Trained,
        interface: Interface::default(),
        hidden: vec![256, 256],
        state: 64,
        serving: Default::default(),
        provenance: Default::default(),
    };
    ActorCritic::random(&meta, 1).export(&meta, "")
}

#[test]
fn of_two_reloads_the_one_asked_for_last_wins() {
    on_paused_time(async {
        let agent = Fixture::start("", fixed(10));
        let quick = agent.file();
        // The larger one takes longer to load.
        let slow = agent.directory.path().join("slow.onnx");
        fs::write(&slow, large_file()).expect("writes");
        let reload = |file: &PathBuf| agent.send(Command::Reload { file: file.clone() });
        let outcomes = [&slow, &quick].map(reload);
        for outcome in outcomes {
            answered(outcome).await.expect("loaded");
        }
        let status = agent.status();
        assert!(
            status.policy.contains("heuristic.onnx"),
            "{}",
            status.policy
        );
        agent.end().await.expect("ends well");
    });
}

/// Records come faster than they can be taken, in real time.
#[test]
fn a_flood_of_records_starves_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let directory = TempDir::new().expect("a directory for the test");
        let options = format!(
            "heartbeat_ms = 20\nper_ack = 'all'\nper_ack_file = '{}'",
            directory.path().join("acks.csv").display()
        );
        let mut agent = Fixture::start(&options, fixed(10));
        agent.datapath.flood();
        let beats = agent.datapath.beats();
        for _ in 0..3 {
            agent.counts().await;
            let refused = agent.command(Command::Promote).await;
            assert_eq!(refused, Err("there is no candidate to promote".into()));
        }
        assert!(agent.datapath.beats() > beats);
        agent.end().await.expect("ends well");
    });
}

#[test]
fn records_from_before_the_start_are_skipped() {
    on_paused_time(async {
        let mut agent = Fixture::start("", fixed(10));
        agent
            .datapath
            .send([opened(0, 1), window(0, 1, 2), closed(0, 3)]);
        agent.windows(1, 1..=1).await;
        let counts = agent.counts().await;
        assert_eq!((counts.flows, counts.windows), (1, 1), "only the new ones");
        agent.end().await.expect("ends well");
    });
}

#[test]
fn a_flow_whose_closed_record_was_lost_is_closed() {
    on_paused_time(async {
        let mut agent = Fixture::start("", fixed(10));
        agent.windows(0, 1..=1).await;
        agent.windows(1, 1..=1).await;
        agent.counts().await;
        assert_eq!(agent.status().live_flows, 2);
        agent.datapath.vacate(1);
        tokio::time::sleep(4 * RECONCILIATION_PERIOD).await;
        agent.counts().await;
        assert_eq!(agent.status().live_flows, 1);
        agent.end().await.expect("ends well");
    });
}

#[test]
fn what_a_command_put_into_service_is_remembered() {
    on_paused_time(async {
        let agent = Fixture::start("", fixed(10));
        let memory = || Memory::of("rlcc", &agent.directory.path().join("rlcc.sock"));
        assert_eq!(memory().differs("another"), None);
        let reload = Command::Reload { file: agent.file() };
        agent.command(reload).await.expect("it is loaded");
        let text = memory().differs("another").expect("it is remembered");
        assert!(text.contains("heuristic.onnx"), "{text}");
        assert!(text.contains("by uid 7, process 77"), "{text}");
        agent.end().await.expect("ends well");
    });
}

#[test]
fn flows_are_told_in_an_order_of_all() {
    on_paused_time(async {
        let agent = Fixture::start("", fixed(10));
        let now_ns = agent.datapath.now_ns();
        agent.datapath.send((0..5).map(|slot| opened(slot, now_ns)));
        agent.windows(3, 1..=1).await;
        let (reply, answer) = oneshot::channel();
        let request = FlowsRequest {
            order: Sort::Rate,
            filter: "decided startup".parse::<Filter>().expect("two modes"),
            reply,
        };
        agent.questions.try_send(request).expect("there is room");
        let answer = answer.await.expect("it answers");
        assert_eq!((answer.flows.len(), answer.matching_flows), (0, Some(0)));
        let (reply, answer) = oneshot::channel();
        let request = FlowsRequest {
            order: Sort::Rate,
            filter: Filter::default(),
            reply,
        };
        agent.questions.try_send(request).expect("there is room");
        let answer = answer.await.expect("it answers");
        let slots: Vec<u32> = answer.flows.iter().map(|flow| flow.slot).collect();
        assert_eq!(slots, [3, 0, 1, 2, 4], "the one with a window is first");
        assert_eq!(answer.matching_flows, Some(5));
        assert_eq!(agent.status().matching_flows, None);
        agent.end().await.expect("ends well");
    });
}

#[test]
fn each_rollback_goes_back_one_policy_further() {
    use Standing::{Former, InService, RolledBack};
    on_paused_time(async {
        let agent = Fixture::start("", fixed(10));
        let first = agent.file();
        let second = agent.directory.path().join("second.onnx");
        fs::write(&second, large_file()).expect("writes");
        for file in [&first, &second] {
            let file = file.clone();
            let reload = Command::Reload { file };
            agent.command(reload).await.expect("it is loaded");
        }
        // What is gone back to is not read from its place any more.
        for file in [&first, &second] {
            fs::remove_file(file).expect("it is there");
        }
        let names = [
            "fixed:10".to_owned(),
            first.display().to_string(),
            second.display().to_string(),
        ];
        // What the status tells, and in which order.
        let told = |expected: [(usize, Standing); 3]| {
            let policies = agent.status().policies.clone().into_iter();
            let told: Vec<_> = policies.map(|it| (it.policy, it.standing)).collect();
            let expected = expected.map(|(name, standing)| (names[name].clone(), standing));
            assert_eq!(told, expected);
        };
        told([(0, Former), (1, Former), (2, InService)]);
        for (name, first, second) in [(1, Former, InService), (0, InService, RolledBack)] {
            let done = agent.command(Command::Rollback).await.expect("one before");
            assert!(done.contains(&names[name]), "{done}");
            told([(0, first), (1, second), (2, RolledBack)]);
            // The next start is to know of it.
            let ledger = Ledger::of("rlcc", &agent.directory.path().join("rlcc.sock"));
            assert_eq!(ledger.known(), agent.status().policies);
        }
        let refused = agent.command(Command::Rollback).await.expect_err("none");
        assert!(refused.contains("no former policy"), "{refused}");
        // And forwards again, to one that was rolled back from.
        let sha256 = agent.status().policies[2].id()[..8].to_owned();
        let forwards = Command::RollbackTo { policy: sha256 };
        let done = agent.command(forwards).await.expect("it is known");
        assert!(done.contains(&names[2]), "{done}");
        told([(0, Former), (1, RolledBack), (2, InService)]);
        agent.end().await.expect("ends well");
    });
}

#[test]
fn answers_of_a_replaced_policy_are_dropped() {
    on_paused_time(async {
        let (gate, policy) = Gate::before(30);
        let mut agent = Fixture::start("", policy);
        agent.windows(0, 1..=1).await;
        let file = agent.file();
        let done = agent.command(Command::Reload { file }).await;
        done.expect("it is loaded");
        gate.open();
        // The next window is the new policy's to answer.
        agent.windows(0, 2..=2).await;
        agent
            .eventually("an answer", |datapath| !datapath.published().is_empty())
            .await;
        let (_, decision) = agent.datapath.published()[0];
        assert_eq!(decision.window, 2, "that of the first window was dropped");
        assert_ne!(decision.cwnd, 30, "the former policy decides no more");
        let counts = agent.counts().await;
        assert_eq!((counts.answers_missing, counts.decisions), (1, 1));
        agent.end().await.expect("ends well");
    });
}

#[test]
fn answers_for_a_closed_flow_are_not_published() {
    on_paused_time(async {
        let (gate, policy) = Gate::before(30);
        let agent = Fixture::start("", policy);
        agent.windows(0, 1..=1).await;
        agent.datapath.send([closed(0, agent.datapath.now_ns())]);
        agent.windows(1, 1..=1).await;
        gate.pass();
        gate.pass();
        agent
            .eventually("an answer", |datapath| !datapath.published().is_empty())
            .await;
        let slots: Vec<u32> = agent.datapath.published().iter().map(|(s, _)| *s).collect();
        assert_eq!(slots, [1]);
        agent.end().await.expect("ends well");
    });
}

#[test]
fn shutdown_completes_the_recording() {
    on_paused_time(async {
        let (gate, policy) = Gate::before(30);
        let directory = TempDir::new().expect("a directory for the test");
        let options = format!("record = '{}'", directory.path().display());
        let agent = Fixture::start(&options, policy);
        agent.windows(0, 1..=1).await;
        gate.pass();
        agent
            .eventually("a decision", |datapath| !datapath.published().is_empty())
            .await;
        // The second window is with the policy, and so its row is not finished yet.
        agent.windows(0, 2..=2).await;
        agent.end().await.expect("ends well");
        gate.open();
        let files: Vec<_> = fs::read_dir(directory.path())
            .expect("is there")
            .map(|entry| entry.expect("is there").path())
            .collect();
        let [file] = &files[..] else {
            panic!("{files:?}");
        };
        assert!(file.extension().is_some_and(|end| end == "parquet"));
        let mut rows = 0;
        for row in cc_recording::read(file).expect("complete").1 {
            row.expect("a whole row");
            rows += 1;
        }
        assert_eq!(rows, 2, "one per window, answered or not");
    });
}

/// A policy server of the embedded policy, on a thread of its own. It stops when it is dropped.
struct PolicyServer {
    address: std::net::SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    running: Option<thread::JoinHandle<()>>,
}

impl PolicyServer {
    fn start(address: std::net::SocketAddr) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (listening, address_found) = std::sync::mpsc::channel();
        let running = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let policy = cc_core::policy::OnnxPolicy::from_bytes(
                    cc_core::policy::DEFAULT_POLICY,
                    None,
                    0,
                );
                let policy = Box::new(policy.expect("the embedded policy"));
                let server = cc_remote::Server::start(policy).expect("it is of a file");
                let listener = server.listen(address, None).expect("a free port");
                listening.send(listener.address()).expect("awaited");
                let served = server.serve(listener, async { drop(stopped.await) });
                served.await.expect("ends well");
            });
        });
        Self {
            address: address_found.recv().expect("it listens"),
            stop: Some(stop),
            running: Some(running),
        }
    }
}

impl Drop for PolicyServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(running) = self.running.take() {
            running.join().expect("does not panic");
        }
    }
}

#[test]
fn a_policy_server_decides_and_the_local_policy_while_it_is_gone() {
    /// What the local policy decides, and no action from 10 segments leads to.
    const LOCAL: u32 = 7;
    on_paused_time(async {
        let server = PolicyServer::start(([127, 0, 0, 1], 0).into());
        let address = server.address;
        let options = format!("policy = 'grpc://{address}'");
        // The server's thread is waited for before the event loop runs.
        let settings = task::spawn_blocking(move || settings(&options, fixed(LOCAL)));
        let mut agent = Fixture::with(settings.await.expect("does not panic"));
        let decided = |n: usize| move |datapath: &FakeDatapath| datapath.published().len() == n;
        let last = |agent: &Fixture| agent.datapath.published().last().map(|(_, d)| d.cwnd);
        // Connections end and begin in real time.
        let pause = || async {
            let pause = || thread::sleep(Duration::from_millis(1));
            task::spawn_blocking(pause).await.expect("does not panic");
        };
        let remote = |agent: &Fixture| agent.status().remote.clone().expect("a server is asked");

        agent.counts().await;
        while !remote(&agent).connected {
            agent.counts().await;
        }
        agent.windows(3, 1..=1).await;
        agent.eventually("a decision", decided(1)).await;
        assert_ne!(last(&agent), Some(LOCAL));

        drop(server);
        while remote(&agent).connected {
            agent.counts().await;
            pause().await;
        }
        agent.windows(3, 2..=2).await;
        agent.eventually("a local decision", decided(2)).await;
        assert_eq!(last(&agent), Some(LOCAL));

        let _server = PolicyServer::start(address);
        while !remote(&agent).connected {
            agent.counts().await;
            pause().await;
        }
        agent.windows(3, 3..=3).await;
        agent.eventually("a decision", decided(3)).await;
        assert_ne!(last(&agent), Some(LOCAL), "the server has the flow back");
        agent.counts().await;
        let status = remote(&agent);
        assert_eq!((status.connections, status.counts.local), (2, 1));
        assert_eq!((status.counts.asked, status.counts.answered), (2, 2));

        // A file in its place ends the connection.
        let file = agent.directory.path().join("default.onnx");
        fs::write(&file, cc_core::policy::DEFAULT_POLICY).expect("writes");
        let done = agent.command(Command::Reload { file }).await;
        done.expect("it is loaded");
        assert_eq!(agent.status().remote, None);
        agent.end().await.expect("ends well");
    });
}

#[test]
fn an_agent_starts_without_its_policy_server() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = nobody.local_addr().expect("bound");
    drop(nobody);
    let settings = settings(&format!("policy = 'grpc://{address}'"), fixed(7));
    assert!(settings.remote.is_some());
    let refused = |options: &str| {
        let options = RunOptions::parse(options).expect("valid TOML");
        options.resolve().err().expect("refused").to_string()
    };
    for (options, expected) in [
        (
            "policy = 'grpc://192.0.2.1:1'",
            "192.0.2.1:1 is another host: give",
        ),
        (
            "policy = 'grpcs://127.0.0.1:1'",
            "grpcs://127.0.0.1:1 needs the authorities'",
        ),
        (
            "policy = 'grpcs://127.0.0.1:1'\nremote_ca = 'ca.pem'",
            "--remote-cert is missing",
        ),
        (
            "policy = 'random'\nremote_key = 'k'",
            "--remote-key is for a policy server",
        ),
        (
            "policy = 'grpcs://127.0.0.1:1'\nremote_ca = 'no'\nremote_cert = 'no'\nremote_key = 'no'",
            "no: No such file",
        ),
    ] {
        let error = refused(options);
        assert!(error.contains(expected), "{options}: {error}");
    }
}
