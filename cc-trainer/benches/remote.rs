//! A policy server for many flows under the kernel: how many windows it answers in time behind
//! networks of the shim, what that does to the flows, what happens while it is gone, and how many
//! decisions a core of it makes for two agents.
//!
//! The flows are in network namespaces of their own; agents, relay and server talk over the
//! loopback device. `REMOTE_FLOWS` changes the number of flows.

use std::{
    fs,
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path as FilePath,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use cc_lab::{AfterEnd, Agent, Bottleneck, Crowd, Path, Report, Sink, eventually, median};
use cc_sim::shim::Preset;
use cc_trainer::shim::{self, Settings, Socket};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, SysconfVar, sysconf},
};

/// Flows of an agent, unless `REMOTE_FLOWS` is set.
const FLOWS: usize = 1_000;
/// Rounds of the server behind the worst network and the local policy in turns.
const ROUNDS: usize = 3;
const SETTLE: Duration = Duration::from_secs(3);
const MEASURE: Duration = Duration::from_secs(10);
/// The local policy that decides as late as the server does not add more than this, ms.
const MOST_ADDED: f64 = 1_000.0;
/// Mean delay of [`Preset::WifiDegraded`], there and back, ms.
const ROUND_TRIP_MS: f64 = 160.0;
/// How long a patient agent waits for an answer, ms.
const PATIENCE: &str = "2000";

fn main() -> anyhow::Result<()> {
    if let Some(reason) = cc_lab::unmet_requirement() {
        bail!("this benchmark needs the live kernel: {reason}");
    }
    let agent = FilePath::new(env!("CARGO_BIN_EXE_cc-trainer")).with_file_name("cc-agent");
    let agent = agent.to_str().context("a path in UTF-8")?;
    if !FilePath::new(agent).exists() {
        bail!("{agent} is not there: `cargo xtask build` makes it");
    }
    let flows = match std::env::var("REMOTE_FLOWS") {
        Ok(flows) => flows.parse().context("REMOTE_FLOWS: expected a number")?,
        Err(_) => FLOWS,
    };
    let _exclusive = cc_lab::exclusive();
    let stage = Stage { agent, flows };
    let mut report = Report::new("remote");
    report.show("flows", flows as f64);
    stage.behind_networks(&mut report);
    stage.without_the_server(&mut report);
    stage.two_agents(&mut report);
    report.write()
}

/// What all parts have in common.
struct Stage<'a> {
    /// Path of the agent's program.
    agent: &'a str,
    flows: usize,
}

/// What an agent and its flows did in [`MEASURE`].
#[derive(Clone, Copy, Default)]
struct Measured {
    /// Payload that arrived at the sink, bytes.
    bytes: f64,
    windows: f64,
    /// Windows that no policy is asked about: those that the application limits, and slow start.
    unasked: f64,
    asked: f64,
    answered: f64,
    late: f64,
    lost: f64,
    /// Decisions of the local policy beside a server.
    local: f64,
    /// Median delay of decisions since the agent's start, ms.
    delay_ms: f64,
    /// Flows that the datapath took for left alone by the agent.
    fallbacks: f64,
    disconnected: f64,
}

impl Stage<'_> {
    /// A path that the senders of this host can fill, so that no application limits a flow, and on
    /// which each of a thousand flows has room for eight segments. With three they are in slow
    /// start or wait for a timeout nearly all of the time, and no policy is asked.
    fn path() -> Path {
        Path::through(Bottleneck {
            rate_mbit: 200,
            queue_bytes: 12_000_000,
        })
    }

    /// Serves the flows with an agent and measures for a while.
    fn serve(&self, path: &Path, arguments: &[&str]) -> Measured {
        let name = cc_lab::unique_name();
        let agent = Agent::start(self.agent, &name, arguments);
        let sink = Sink::listen(&path.receiver, AfterEnd::Close);
        let crowd = Crowd::connect(&path.sender, sink.at(path.receiver4()), &name, self.flows);
        thread::sleep(SETTLE);
        let before = Measured::now(&agent, &sink, &crowd);
        thread::sleep(MEASURE);
        Measured::now(&agent, &sink, &crowd).since(&before)
    }

    /// The server without a network and behind three, with and without patience, behind the worst
    /// of them in turns with a local policy that decides as late.
    fn behind_networks(&self, report: &mut Report) {
        let server = Server::start(self.agent, free_address());
        let path = Self::path();
        let mut near = |name: &str, to: SocketAddr, more: &[&str]| {
            let policy = format!("grpc://{to}");
            let arguments = [&["--policy", &*policy], more].concat();
            self.serve(&path, &arguments).report(name, report);
        };
        near("direct", server.address, &[]);
        let patient: &[&str] = &["--patience-ms", PATIENCE];
        for (name, preset, more) in [
            ("ethernet", Preset::Ethernet, &[] as &[&str]),
            ("wifi_normal", Preset::WifiNormal, &[]),
            ("wifi_normal_patient", Preset::WifiNormal, patient),
        ] {
            let relay = Relay::start(server.address, preset);
            near(name, relay.address, more);
            relay.end();
        }
        self.degraded("wifi_degraded", &server, &[], None, report);
        let late = Some(ROUND_TRIP_MS);
        self.degraded("wifi_degraded_patient", &server, patient, late, report);
        server.end();
    }

    /// The server behind the worst network in turns with a local policy that decides `added_ms`
    /// later than it could, or, without it, later by what was the server's flows' median delay.
    fn degraded(
        &self,
        name: &str,
        server: &Server,
        more: &[&str],
        added_ms: Option<f64>,
        report: &mut Report,
    ) {
        let path = Self::path();
        let (mut remote, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let relay = Relay::start(server.address, Preset::WifiDegraded);
            let policy = format!("grpc://{}", relay.address);
            let there = self.serve(&path, &[&["--policy", &*policy], more].concat());
            relay.end();
            let added = added_ms.unwrap_or(there.delay_ms).clamp(0.0, MOST_ADDED);
            let added = added.round().to_string();
            let here = self.serve(&path, &["--policy", "default", "--added-delay-ms", &added]);
            ratios.push(there.bytes / here.bytes);
            remote.push(there);
        }
        // The round with the median share.
        remote.sort_by(|a, b| a.answered_share().total_cmp(&b.answered_share()));
        if let Some(middle) = remote.get(remote.len() / 2) {
            middle.report(name, report);
        }
        report.show(format!("{name}_bytes_ratio_to_local"), median(&ratios));
    }

    /// Kills the server under the flows, and starts it again.
    fn without_the_server(&self, report: &mut Report) {
        let flows = self.flows;
        let (path, name) = (Self::path(), cc_lab::unique_name());
        let server = Server::start(self.agent, free_address());
        let address = server.address;
        let agent = Agent::start(
            self.agent,
            &name,
            &["--policy", &format!("grpc://{address}")],
        );
        let sink = Sink::listen(&path.receiver, AfterEnd::Close);
        let crowd = Crowd::connect(&path.sender, sink.at(path.receiver4()), &name, flows);
        thread::sleep(SETTLE);
        let now = || Measured::now(&agent, &sink, &crowd);
        let over = |duration| {
            let before = now();
            thread::sleep(duration);
            now().since(&before)
        };
        let with = over(MEASURE / 2);
        let (answered, local) = (now().answered, now().local);
        server.kill();
        let killed = Instant::now();
        eventually("the local policy decides", || {
            (now().local > local + flows as f64).then_some(())
        });
        report.show(
            "server_killed_local_after_s",
            killed.elapsed().as_secs_f64(),
        );
        let without = over(MEASURE / 2);
        report.show("server_killed_bytes_ratio", without.bytes / with.bytes);
        report.show(
            "server_killed_windows_ratio",
            without.windows / with.windows,
        );
        let server = Server::start(self.agent, address);
        let back = Instant::now();
        let before = now().answered;
        eventually("the server decides again", || {
            (now().answered > before + flows as f64).then_some(())
        });
        report.show("server_back_answers_after_s", back.elapsed().as_secs_f64());
        let after = now();
        report.show("server_back_answered_before_the_kill", answered);
        report.show("server_back_fallbacks", after.fallbacks);
        report.show("server_back_flows_disconnected", after.disconnected);
        report.show("server_back_live_flows", agent.status().live_flows as f64);
        drop(crowd);
        server.end();
    }

    /// Two agents with half of the flows each, on one server.
    fn two_agents(&self, report: &mut Report) {
        let server = Server::start(self.agent, free_address());
        let policy = format!("grpc://{}", server.address);
        let half = Stage {
            flows: (self.flows / 2).max(1),
            ..*self
        };
        let (begun, busy) = (Instant::now(), server.cpu_s());
        let paths = [Self::path(), Self::path()];
        let both: Vec<Measured> = thread::scope(|scope| {
            let (half, policy) = (&half, &policy);
            let serve = |path| scope.spawn(move || half.serve(path, &["--policy", policy]));
            let threads: Vec<_> = paths.iter().map(serve).collect();
            let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
            joined
                .map(|one| one.expect("an agent's part does not panic"))
                .collect()
        });
        let (seconds, busy) = (begun.elapsed().as_secs_f64(), server.cpu_s() - busy);
        for (name, one) in ["first", "second"].into_iter().zip(&both) {
            one.report(&format!("two_agents_{name}"), report);
        }
        let log = server.end();
        let queries = before_word(&log, " queries in ");
        let batches = before_word(&log, " batches of ");
        report.show("two_agents_queries_per_s", queries / seconds);
        report.show("two_agents_mean_batch", queries / batches);
        report.show("server_cores", busy / seconds);
        report.show("server_decisions_per_core_s", queries / busy);
    }
}

impl Measured {
    /// The sums since the agent's start.
    fn now(agent: &Agent, sink: &Sink, crowd: &Crowd) -> Self {
        let status = agent.status();
        let counts = status.remote.as_ref().map(|remote| remote.counts);
        let counts = counts.unwrap_or_default();
        Self {
            bytes: sink.received() as f64,
            windows: status.agent.windows as f64,
            unasked: (status.agent.windows_application_limited + status.agent.windows_in_slow_start)
                as f64,
            asked: counts.asked as f64,
            answered: counts.answered as f64,
            late: counts.late as f64,
            lost: counts.lost as f64,
            local: counts.local as f64,
            delay_ms: status.decision_delay.p50_ms,
            fallbacks: status.datapath["fallbacks_entered"] as f64,
            disconnected: crowd.failed() as f64,
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            bytes: self.bytes - before.bytes,
            windows: self.windows - before.windows,
            unasked: self.unasked - before.unasked,
            asked: self.asked - before.asked,
            answered: self.answered - before.answered,
            late: self.late - before.late,
            lost: self.lost - before.lost,
            local: self.local - before.local,
            delay_ms: self.delay_ms,
            fallbacks: self.fallbacks,
            disconnected: self.disconnected,
        }
    }

    /// Share of the windows that the server answered in time.
    fn answered_share(&self) -> f64 {
        self.answered / self.windows.max(1.0)
    }

    fn report(&self, name: &str, report: &mut Report) {
        let share = |of: f64| of / self.windows.max(1.0);
        report.show(
            format!("{name}_windows_per_s"),
            self.windows / MEASURE.as_secs_f64(),
        );
        report.show(format!("{name}_unasked"), share(self.unasked));
        report.show(format!("{name}_asked"), share(self.asked));
        report.show(format!("{name}_answered_in_time"), self.answered_share());
        report.show(format!("{name}_late"), share(self.late));
        report.show(format!("{name}_lost"), share(self.lost));
        report.show(format!("{name}_local"), share(self.local));
        report.show(format!("{name}_decision_delay_p50_ms"), self.delay_ms);
        report.show(
            format!("{name}_mbits"),
            self.bytes * 8.0 / MEASURE.as_secs_f64() / 1e6,
        );
        report.show(format!("{name}_fallbacks"), self.fallbacks);
        report.show(format!("{name}_flows_disconnected"), self.disconnected);
    }
}

/// An address of the loopback device that nobody listens on.
fn free_address() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("it is bound")
}

/// A `cc-agent policy-server` of the default policy.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts it, and waits until it listens.
    fn start(agent: &str, address: SocketAddr) -> Self {
        let child = Command::new(agent)
            .args(["policy-server", "--plaintext", "--policy", "default"])
            .args(["--listen", &address.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let server = Self { child, address };
        eventually("the policy server listens", || {
            TcpStream::connect(address).ok()
        });
        server
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time of the server and the process of its policy, s.
    fn cpu_s(&self) -> f64 {
        let pid = self.pid().to_string();
        let ticks: u64 = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
            .filter_map(|stat| {
                let own = stat.split(' ').next()? == pid;
                // The name, in brackets, may have spaces.
                let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
                let is_ours = own || fields.get(1)? == &pid;
                let time = |at: usize| fields.get(at)?.parse::<u64>().ok();
                is_ours.then_some(time(11)? + time(12)?)
            })
            .sum();
        let per_s = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        ticks as f64 / per_s as f64
    }

    /// Kills it, as a host does that loses its power.
    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Ends it in good order, and returns its log.
    fn end(mut self) -> String {
        let pid = Pid::from_raw(self.pid() as i32);
        kill(pid, Signal::SIGTERM).expect("it runs");
        let mut log = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut log).expect("a log in UTF-8");
        }
        self.child.wait().expect("it ends");
        log
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a panic; otherwise it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last number before some words of a log.
fn before_word(log: &str, words: &str) -> f64 {
    let before = log.rsplit_once(words).map_or("", |(before, _)| before);
    let number = before.rsplit(' ').next().and_then(|one| one.parse().ok());
    number.unwrap_or(f64::NAN)
}

/// A relay on a thread of its own.
struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Relay {
    fn start(to: SocketAddr, preset: Preset) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let settings = Settings {
            to,
            conditions: preset.into(),
            seed: 1,
        };
        let thread = thread::spawn(move || {
            let relayed = shim::relay(Socket::Tcp(listener), settings, None, &stopped);
            match relayed {
                Ok(summary) => println!("{preset}: {summary}"),
                Err(error) => println!("{preset}: {error}"),
            }
        });
        Self {
            address,
            stop,
            thread,
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the relay does not panic");
    }
}
