//! The loop that follows a channel, on paused time, between a channel that comes and goes and an
//! agent that answers on a socket and does as it is told.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
    sync::{Arc, Mutex},
    thread,
};

use cc_channel::{SigningKey, publish};
use cc_core::{
    policy::DEFAULT_POLICY,
    status::{Reply, Request as SocketRequest, samples::busy},
};
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::time::sleep;

use super::*;

const EVERY: Duration = Duration::from_secs(60);

/// What the agent behind the socket is, and has been told.
#[derive(Clone, Default)]
struct Agent(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Number of times that it was started again.
    runs: u32,
    uptime_s: f64,
    sha256: Option<String>,
    asked: Vec<String>,
}

impl Agent {
    /// Begins to answer at `socket`.
    fn listen(socket: &Path) -> Self {
        let agent = Self::default();
        let listener = UnixListener::bind(socket).expect("a socket");
        let answering = agent.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let mut line = String::new();
                let mut reader = BufReader::new(stream.try_clone().expect("another descriptor"));
                reader.read_line(&mut line).expect("a line");
                let request = serde_json::from_str(&line).expect("a request");
                // The client may have gone.
                let _ = writeln!(stream, "{}", answering.answer(request));
            }
        });
        agent
    }

    fn answer(&self, request: SocketRequest) -> String {
        let mut state = self.0.lock().expect("no panic");
        let answer = match request {
            SocketRequest::Command(command) => {
                state.asked.push(command.to_string());
                if let Command::Reload { file } = &command {
                    let file = file.display().to_string();
                    state.sha256 = file.rsplit(':').next().map(str::to_owned);
                }
                serde_json::to_string(&Reply::Done("so it is".into()))
            }
            _ => {
                state.uptime_s += 1.0;
                let mut status = busy(1);
                status.pid = 100 + state.runs;
                status.uptime_s = state.uptime_s;
                status.policy_sha256.clone_from(&state.sha256);
                serde_json::to_string(&status)
            }
        };
        answer.expect("it is plain data")
    }

    /// Ends, and starts with the policy of its configuration.
    fn start_again(&self) {
        let mut state = self.0.lock().expect("no panic");
        let runs = state.runs + 1;
        *state = State {
            runs,
            ..State::default()
        };
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no panic").asked)
    }
}

/// A channel, its publisher, and a host.
struct Bench {
    directory: TempDir,
    key: SigningKey,
}

impl Bench {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory for the test");
        let key = SigningKey::create(&directory.path().join("key.pem")).expect("writes");
        let bench = Self { directory, key };
        fs::create_dir(bench.at("channel")).expect("creates");
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn publish(&self) {
        let policy = self.at("policy.onnx");
        fs::write(&policy, DEFAULT_POLICY).expect("writes");
        let store = Store::open(&self.at("channel").display().to_string()).expect("it is there");
        publish(&store, &self.key, &policy, None, 0)
            .await
            .expect("publishes");
    }

    /// A process that follows, with the page of its metrics.
    fn host(&self) -> (Host, Registry) {
        let options = FollowOptions {
            channel: self.at("channel").display().to_string(),
            key: self.key.public(),
            every: 60.0,
            once: false,
            policies: Some(self.at("policies")),
            keep: 20,
            metrics: None,
            expose_metrics: false,
        };
        let mut registry = metrics::registry();
        let tally = Tally::of(&mut registry);
        let host = Host::new(options, "rlcc", self.at("agent.sock"), tally);
        (host.expect("valid options"), registry)
    }

    /// Puts something in the way of the channel.
    fn take_away(&self) {
        fs::rename(self.at("channel"), self.at("away")).expect("moves");
        fs::write(self.at("channel"), "a file is in the way").expect("writes");
    }

    fn bring_back(&self) {
        fs::remove_file(self.at("channel")).expect("removes");
        fs::rename(self.at("away"), self.at("channel")).expect("moves");
    }
}

/// A figure of how following goes.
fn value(registry: &Registry, name: &str) -> f64 {
    metrics::value(registry, &format!("follow_{name}"))
}

/// Looks every minute for this many minutes, the first time at once.
async fn look_for(host: &mut Host, minutes: u32) {
    let stop = sleep(EVERY * minutes - Duration::from_secs(1));
    host.look_until(EVERY, stop).await;
}

#[tokio::test(start_paused = true)]
async fn a_channel_out_of_reach_is_looked_at_every_minute_until_it_is_back() {
    let bench = Bench::new();
    let agent = Agent::listen(&bench.at("agent.sock"));
    bench.publish().await;
    let (mut host, page) = bench.host();
    bench.take_away();
    look_for(&mut host, 5).await;
    let figures = |names: [&str; 3]| names.map(|name| value(&page, name));
    let channel = [
        "channel_attempts_total",
        "channel_failures_total",
        "channel_failing",
    ];
    assert_eq!(figures(channel), [5.0, 5.0, 1.0]);
    assert_eq!(value(&page, "agent_failures_total"), 0.0);
    assert!(agent.asked().is_empty());
    bench.bring_back();
    look_for(&mut host, 2).await;
    // The policy file was read from the channel as well.
    assert_eq!(figures(channel), [8.0, 5.0, 0.0]);
    let asked = agent.asked();
    assert!(
        asked.len() == 1 && asked[0].starts_with("reload "),
        "{asked:?}"
    );
    // What was put into service stays so while the channel is away again.
    bench.take_away();
    look_for(&mut host, 3).await;
    assert!(agent.asked().is_empty());
    let service = ["channel_failing", "announcement", "in_service"];
    assert_eq!(figures(service), [1.0, 1.0, 1.0]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_away_is_asked_once_it_answers() {
    let bench = Bench::new();
    bench.publish().await;
    let (mut host, page) = bench.host();
    look_for(&mut host, 3).await;
    assert_eq!(value(&page, "agent_failures_total"), 3.0);
    assert_eq!(value(&page, "agent_failing"), 1.0);
    assert_eq!(value(&page, "in_service"), 0.0);
    let agent = Agent::listen(&bench.at("agent.sock"));
    look_for(&mut host, 2).await;
    assert_eq!(agent.asked().len(), 1);
    assert_eq!(value(&page, "agent_failing"), 0.0);
    assert_eq!(value(&page, "in_service"), 1.0);
    // Another run of the agent is asked again, once.
    agent.start_again();
    look_for(&mut host, 3).await;
    assert_eq!(agent.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_is_started_again_knows_what_it_has_heard() {
    let bench = Bench::new();
    let agent = Agent::listen(&bench.at("agent.sock"));
    bench.publish().await;
    let former = fs::read(bench.at("channel/channel")).expect("it is there");
    bench.publish().await;
    let (mut host, _page) = bench.host();
    look_for(&mut host, 1).await;
    assert_eq!(agent.asked().len(), 1);
    drop(host);
    let (mut host, page) = bench.host();
    look_for(&mut host, 2).await;
    assert!(agent.asked().is_empty(), "it was asked before");
    assert_eq!(value(&page, "announcement"), 2.0);
    assert_eq!(value(&page, "suspicious_total"), 0.0);
    // What was announced before is not served again.
    fs::write(bench.at("channel/channel"), former).expect("writes");
    look_for(&mut host, 2).await;
    assert!(agent.asked().is_empty());
    assert_eq!(value(&page, "announcement"), 2.0);
    assert_eq!(value(&page, "suspicious_total"), 2.0);
}
