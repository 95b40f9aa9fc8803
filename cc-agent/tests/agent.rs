//! The agent's binary on the running kernel, seen from outside: TCP connections between network
//! namespaces, their TCP_INFO, and the agent's status and log.
//!
//! Where two congestion controls are compared, each has a path of its own and both run at the same
//! time, so that a busy machine slows both; samples are taken by bytes delivered, not by time. All
//! other assertions are about things that happen eventually or never, at any speed.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
};

use cc_agent::kernel::datapath::registered;
use cc_client::{command, fetch};
use cc_core::{
    interface::Interface,
    policy::{PolicyKind, PolicyMeta, export::ActorCritic, heuristic_file},
    status::{FlowView, Snapshot, Standing, TracedWindow},
};
use cc_ebpf::{Counter, Mode};
use cc_lab::{
    Agent, Bottleneck, Cgroup, Flow, Footprint, Namespace, Network, Outcome, beyond_unit,
    eventually, is_slow, is_unique_name, links_register, median, unique_name,
};
use cc_recording::{files as files_of, read};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::{
        signal::{Signal, kill},
        stat::Mode as FileMode,
    },
    unistd::{Pid, mkfifo},
};
use prost::Message;
use tempfile::TempDir;
use tract_onnx::pb::{ModelProto, tensor_proto::DataLocation};

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        the_kernel_shows_the_cwnd_decided,
        the_heuristic_keeps_the_queue_short,
        the_default_policy_fills_the_link,
        the_next_agent_adopts_the_flows_of_a_killed_one,
        without_an_agent_flows_do_as_well_as_reno,
        the_fallback_does_not_pace_as_the_policy_does,
        a_stopped_agent_resumes_its_flows_when_it_continues,
        an_agent_that_ends_leaves_nothing_behind,
        it_is_the_default_congestion_control_while_it_runs,
        the_default_of_a_killed_agent_is_undone_by_the_next_start,
        the_default_of_a_killed_agent_is_undone_in_all_namespaces,
        it_ends_when_asked_whatever_is_stuck,
        it_needs_two_capabilities_and_keeps_none,
        it_serves_from_another_time_namespace,
        no_flow_falls_back_at_the_start,
        the_status_is_for_a_group_and_commands_are_not,
        what_was_reloaded_is_remembered,
        a_report_of_a_bug_leaves_addresses_out,
        a_flow_is_traced_until_it_closes,
        a_cgroup_can_use_it,
        slow_inference_costs_no_throughput,
        bad_input_is_refused_while_another_agent_serves_on,
        a_policy_is_reloaded_while_its_flows_go_on,
        a_channel_is_followed_and_only_what_its_key_has_signed,
        flows_go_on_while_their_policy_server_is_gone,
        a_candidate_gets_its_share_of_flows_until_it_is_promoted,
        a_candidate_with_more_queueing_delay_is_withdrawn,
        two_hundred_flows_are_answered,
        flows_beyond_the_slots_transfer_too,
        idle_connections_do_not_keep_the_slots,
    ])
}

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");

/// A queue that the fixed cwnds of these tests do not fill.
const ROOMY: Bottleneck = Bottleneck {
    rate_mbit: 20,
    queue_bytes: 1_000_000,
};

/// A network, and the name of the congestion control to come.
struct Bench {
    network: Network,
    name: String,
}

impl Bench {
    fn new(bottleneck: Bottleneck) -> Self {
        Self {
            network: Network::through(bottleneck),
            name: unique_name(),
        }
    }

    fn agent(&self, arguments: &[&str]) -> Agent {
        Agent::start(BINARY, &self.name, arguments)
    }

    fn connect(&self) -> Flow {
        self.connect_by(&self.name)
    }

    fn connect_by(&self, congestion_control: &str) -> Flow {
        self.network.connect(congestion_control)
    }

    fn connect_without_choice(&self) -> Flow {
        Flow::connect_without_choice(&self.network.path.sender, self.network.address())
    }
}

/// Compares what two benches have delivered side by side since the start.
struct Race<'a> {
    benches: [&'a Bench; 2],
    start: [u64; 2],
}

impl<'a> Race<'a> {
    fn start(first: &'a Bench, second: &'a Bench) -> Self {
        let benches = [first, second];
        Self {
            benches,
            start: benches.map(|bench| bench.network.sink.received()),
        }
    }

    /// Waits until the second bench has delivered at least that many bytes and `accept` accepts the
    /// ratio of the first's bytes to them. All bytes since the start count, so that a busy machine,
    /// which delays now one bench and now the other, evens out.
    fn reach(&self, what: &str, bytes: u64, accept: impl Fn(f64) -> bool) {
        eventually(what, || {
            let latest = [0, 1].map(|i| self.benches[i].network.sink.received() - self.start[i]);
            let ratio = latest[0] as f64 / latest[1].max(1) as f64;
            (latest[1] >= bytes && accept(ratio)).then_some(())
        });
    }
}

/// Returns the median srtts of two flows that send side by side, µs: of 50 samples, one for each
/// 50 kB that the second flow delivers.
fn median_srtts(flows: [&Flow; 2]) -> [f64; 2] {
    let mut srtts = [Vec::new(), Vec::new()];
    for _ in 0..50 {
        flows[1].advance(50_000);
        for (flow, srtts) in flows.iter().zip(&mut srtts) {
            srtts.push(f64::from(flow.info().rtt));
        }
    }
    srtts.map(|srtts| median(&srtts))
}

/// Waits until a decision of the agent has set the flow's cwnd. The cwnd alone does not show that:
/// slow start passes through any value. Nor does the agent's view alone show the cwnd: where the
/// sending thread has waited for the processor, the flow restarts from less after an idle time
/// (`tcp_cwnd_restart`) and climbs to it again.
fn wait_for_decision(agent: &Agent, flow: &Flow, cwnd: u32) {
    let decided = |status: &Snapshot| {
        let view = status.flows.iter().find(|view| view.local == flow.local());
        view.is_some_and(|view| (view.mode, view.cwnd) == (Mode::Decided, cwnd))
    };
    wait_for_status(
        agent,
        &format!("the cwnd was decided to be {cwnd}"),
        |status| decided(status) && flow.info().snd_cwnd == cwnd,
    );
}

/// Waits until the flow's cwnd grows beyond the one decided, as Reno lets it without an agent.
fn wait_for_growth(flow: &Flow, beyond: u32) {
    eventually("the cwnd grew without an agent", || {
        (flow.info().snd_cwnd > beyond).then_some(())
    });
}

fn wait_for_status(agent: &Agent, what: &str, accept: impl Fn(&Snapshot) -> bool) -> Snapshot {
    eventually(what, || Some(agent.status()).filter(&accept))
}

fn count(status: &Snapshot, counter: Counter) -> u64 {
    let count = status.datapath.get(counter.name());
    *count.unwrap_or_else(|| panic!("no {} in {status:?}", counter.name()))
}

fn the_kernel_shows_the_cwnd_decided() {
    let bench = Bench::new(ROOMY);
    for cwnd in [4, 40, 200] {
        let agent = bench.agent(&["--policy", &format!("fixed:{cwnd}")]);
        let flow = bench.connect().sending();
        wait_for_decision(&agent, &flow, cwnd);
        flow.advance(100_000);
        assert_eq!(flow.info().snd_cwnd, cwnd);

        let shown = ss(&bench.network.path.sender, &flow, "-tinH");
        let words: Vec<&str> = shown.split_whitespace().collect();
        assert!(words.contains(&bench.name.as_str()), "{shown}");
        assert!(words.contains(&format!("cwnd:{cwnd}").as_str()), "{shown}");
    }
}

/// Returns what `ss` prints about a flow with these options.
fn ss(namespace: &Namespace, flow: &Flow, options: &str) -> String {
    let mut command = Command::new("ss");
    let port = format!("sport = :{}", flow.port());
    namespace.hold(command.args([options, &port]));
    let output = command.output().expect("ss is part of iproute2, as ip is");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A queue that takes 200 ms to drain.
const DEEP: Bottleneck = Bottleneck {
    rate_mbit: 20,
    queue_bytes: 500_000,
};

/// The whole loop from ACKs to cwnd and back, under a rule whose answers are known, side by side
/// with cubic on a path of its own.
fn the_heuristic_keeps_the_queue_short() {
    let (ours, theirs) = (Bench::new(DEEP), Bench::new(DEEP));
    let agent = ours.agent(&["--policy", "heuristic"]);
    let (rlcc, cubic) = (
        ours.connect().sending(),
        theirs.connect_by("cubic").sending(),
    );
    wait_for_status(&agent, "there were ten decisions", |status| {
        status.agent.decisions >= 10
    });
    let race = Race::start(&ours, &theirs);
    wait_for_half_a_queue(&cubic);
    let [srtt, cubic_srtt] = median_srtts([&rlcc, &cubic]);
    assert!(2.0 * srtt < cubic_srtt, "srtts {srtt} and {cubic_srtt} us");
    race.reach("as much as cubic", 0, |ratio| ratio > 0.8);

    // On a faster link the cwnd is too small to fill it; on a slower one the queue is too long.
    let settled = rlcc.info().snd_cwnd;
    ours.network.path.reshape(Bottleneck {
        rate_mbit: 80,
        ..DEEP
    });
    let faster = eventually("the cwnd grew with the rate", || {
        Some(rlcc.info().snd_cwnd).filter(|&cwnd| cwnd >= 2 * settled)
    });
    ours.network.path.reshape(DEEP);
    eventually("the cwnd shrank with the rate", || {
        let info = rlcc.info();
        (2 * info.snd_cwnd < 3 * settled && info.snd_cwnd < faster && info.rtt < 50_000)
            .then_some(())
    });
    let status = agent.status();
    assert_eq!(count(&status, Counter::FallbacksEntered), 0);
    assert_eq!(status.agent.answers_invalid, 0);
}

/// The default policy delivers as much as cubic without filling the queue: its srtt here is about
/// 2 to 7 ms, and cubic's 150 to 190 ms. How good a trained policy is, evaluations show, on links
/// like those of its training; this path has no propagation delay.
fn the_default_policy_fills_the_link() {
    let (ours, theirs) = (Bench::new(DEEP), Bench::new(DEEP));
    let agent = ours.agent(&[]);
    let (rlcc, cubic) = (
        ours.connect().sending(),
        theirs.connect_by("cubic").sending(),
    );
    wait_for_status(&agent, "there were ten decisions", |status| {
        status.agent.decisions >= 10
    });
    let race = Race::start(&ours, &theirs);
    race.reach("as much as cubic", 8_000_000, |ratio| ratio > 0.8);
    wait_for_half_a_queue(&cubic);
    let [srtt, cubic_srtt] = median_srtts([&rlcc, &cubic]);
    assert!(2.0 * srtt < cubic_srtt, "srtts {srtt} and {cubic_srtt} us");
    let status = agent.status();
    assert!(status.policy.starts_with("default: "), "{status}");
    assert_eq!(status.flows[0].mode, Mode::Decided);
    assert_eq!(count(&status, Counter::FallbacksEntered), 0);
    assert_eq!(status.agent.answers_invalid, 0);
}

fn wait_for_half_a_queue(cubic: &Flow) {
    eventually("cubic filled half of the queue", || {
        (cubic.info().rtt > 100_000).then_some(())
    });
}

fn the_next_agent_adopts_the_flows_of_a_killed_one() -> Outcome {
    if let Some(outcome) = beyond_unit("CAP_SYS_ADMIN, which adopting flows needs") {
        return outcome;
    }
    let bench = Bench::new(ROOMY);
    let mut first = bench.agent(&["--policy", "fixed:40"]);
    let flow = bench.connect().sending();
    wait_for_decision(&first, &flow, 40);

    let (status, _) = first.end(Signal::SIGKILL);
    assert!(!status.success());
    // Without links the name of a killed agent stays until the next one starts.
    if links_register() {
        eventually("the kernel unregistered the name", || {
            (!registered(&bench.name)).then_some(())
        });
    }
    flow.advance(500_000);
    wait_for_growth(&flow, 40);
    flow.advance(500_000);
    assert_eq!(flow.congestion_control(), bench.name);

    let mut second = bench.agent(&["--policy", "fixed:30", "--slots", "100"]);
    let said = "16384 slots of the former agent stay, not the 100 asked for";
    assert!(second.log().contains(said), "{}", second.log());
    wait_for_decision(&second, &flow, 30);
    let status = wait_for_status(&second, "the flow left the fallback", |status| {
        count(status, Counter::FallbacksLeft) == 1
    });
    assert_eq!(count(&status, Counter::FallbacksEntered), 1);
    assert_eq!((status.adopted_flows, status.live_flows), (1, 1));
    assert_eq!(status.flows[0].local, flow.local());
    let next = bench.connect().sending();
    wait_for_decision(&second, &next, 30);

    let footprint = Footprint::of(&bench.name);
    assert!(footprint.programs() > 0 && footprint.maps() > 0);
    second.end(Signal::SIGTERM);
    flow.advance(100_000);
    drop((flow, next));
    footprint.assert_vanishes();
    Outcome::Passed
}

fn without_an_agent_flows_do_as_well_as_reno() {
    // The queue is small enough that both lose packets many times.
    const TIGHT: Bottleneck = Bottleneck {
        rate_mbit: 20,
        queue_bytes: 60_000,
    };
    let (ours, theirs) = (Bench::new(TIGHT), Bench::new(TIGHT));
    let mut agent = ours.agent(&["--policy", "fixed:20"]);
    let flow = ours.connect().sending();
    wait_for_decision(&agent, &flow, 20);
    agent.end(Signal::SIGKILL);
    wait_for_growth(&flow, 20);

    let reno = theirs.connect_by("reno").sending();
    let losses = flow.info().total_retrans;
    let race = Race::start(&ours, &theirs);
    race.reach("as much as reno", 10_000_000, |ratio| ratio > 0.8);
    assert!(reno.info().total_retrans > 0, "the queue never overflowed");
    assert!(flow.info().total_retrans > losses, "it never overflowed");
}

/// Paced at less than cwnd over srtt, a flow never fills its cwnd, and so would never grow it.
fn the_fallback_does_not_pace_as_the_policy_does() {
    let bench = Bench::new(ROOMY);
    let mut agent = bench.agent(&["--policy", "fixed:20", "--pacing-gain", "0.75"]);
    let flow = bench.connect().sending();
    wait_for_decision(&agent, &flow, 20);
    agent.end(Signal::SIGKILL);
    wait_for_growth(&flow, 40);
}

fn a_stopped_agent_resumes_its_flows_when_it_continues() {
    let bench = Bench::new(ROOMY);
    let agent = bench.agent(&["--policy", "fixed:40"]);
    let flow = bench.connect().sending();
    wait_for_decision(&agent, &flow, 40);

    agent.signal(Signal::SIGSTOP);
    wait_for_growth(&flow, 40);
    flow.advance(500_000);
    agent.signal(Signal::SIGCONT);
    let status = wait_for_status(&agent, "the flow left the fallback", |status| {
        count(status, Counter::FallbacksLeft) == 1
    });
    flow.advance(500_000);
    assert_eq!(flow.info().snd_cwnd, 40);
    assert_eq!(count(&status, Counter::FallbacksEntered), 1);
    assert_eq!(count(&status, Counter::RecordsDropped), 0);
    assert_eq!(status.live_flows, 1);
}

fn an_agent_that_ends_leaves_nothing_behind() {
    let bench = Bench::new(ROOMY);
    let signalled = |signal| {
        let mut agent = bench.agent(&["--policy", "fixed:20"]);
        let flow = bench.connect().sending();
        wait_for_decision(&agent, &flow, 20);
        assert!(agent.socket().exists() && registered(&bench.name));
        let (status, log) = agent.end(signal);
        flow.advance(100_000);
        drop(flow);
        assert_left_nothing(&bench.name, &agent, status, &log);
    };
    signalled(Signal::SIGTERM);
    signalled(Signal::SIGINT);

    let mut agent = Agent::spawn(BINARY, &bench.name, &["--duration", "1"]);
    let (status, log) = agent.wait();
    assert_left_nothing(&bench.name, &agent, status, &log);

    // The reader of its log has gone.
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let mut unread = run(&["--policy", "fixed:20"]);
    let status = unread.stdout(Stdio::null()).stderr(writer).status();
    assert_eq!(status.expect("it starts").code(), Some(0));
}

fn assert_left_nothing(name: &str, agent: &Agent, status: ExitStatus, log: &str) {
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains(&format!("registered {name}")), "{log}");
    assert!(log.contains(&format!("unregistered {name}")), "{log}");
    assert!(!registered(name));
    assert!(!agent.socket().exists());
    Footprint::of(name).assert_vanishes();
}

fn it_is_the_default_congestion_control_while_it_runs() {
    const SYSCTL: &str = "net/ipv4/tcp_congestion_control";
    let bench = Bench::new(ROOMY);
    let host = fs::read_to_string(PathBuf::from("/proc/sys").join(SYSCTL)).expect("it is there");
    let sender = &bench.network.path.sender;
    sender.set_sysctl(SYSCTL, "reno");
    let arguments = ["--policy", "fixed:20", "--default"];
    let mut agent = Agent::start_in(sender, BINARY, &bench.name, &arguments);
    assert_eq!(sender.sysctl(SYSCTL), bench.name);
    let flow = bench.connect_without_choice().sending();
    assert_eq!(flow.congestion_control(), bench.name);
    wait_for_decision(&agent, &flow, 20);
    let of_others = bench.network.path.receiver.sysctl(SYSCTL);
    assert_ne!(of_others, bench.name, "it is a namespace's own default");

    let (status, log) = agent.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(sender.sysctl(SYSCTL), "reno");
    assert_eq!(bench.connect_without_choice().congestion_control(), "reno");
    let now = fs::read_to_string(PathBuf::from("/proc/sys").join(SYSCTL)).expect("it is there");
    assert_eq!(now, host);
}

/// The default congestion control of a network namespace.
const DEFAULT: &str = "net/ipv4/tcp_congestion_control";

/// Kills an agent that is the default in `namespace`, which leaves its name there. Where links
/// register it, the kernel has unregistered the name then.
fn kill_default(namespace: &Namespace, name: &str) -> Agent {
    let arguments = ["--policy", "fixed:20", "--default"];
    let mut agent = Agent::start_in(namespace, BINARY, name, &arguments);
    assert_eq!(namespace.sysctl(DEFAULT), name);
    agent.end(Signal::SIGKILL);
    if links_register() {
        eventually("the kernel unregistered the name", || {
            (!registered(name)).then_some(())
        });
    }
    assert_eq!(namespace.sysctl(DEFAULT), name, "nobody restored it");
    agent
}

fn the_default_of_a_killed_agent_is_undone_by_the_next_start() {
    let bench = Bench::new(ROOMY);
    let sender = &bench.network.path.sender;
    // What the administrator chose is none of the usual ones: another agent's.
    let chosen = unique_name();
    let mut other = Agent::start(BINARY, &chosen, &["--policy", "fixed:20"]);
    sender.set_sysctl(DEFAULT, &chosen);
    let fixed = ["--policy", "fixed:20"];
    let with_default = ["--policy", "fixed:20", "--default"];

    // An agent of the same name, without --default.
    kill_default(sender, &bench.name);
    let mut next = Agent::start_in(sender, BINARY, &bench.name, &fixed);
    assert_eq!(sender.sysctl(DEFAULT), chosen);
    next.end(Signal::SIGTERM);
    assert_eq!(sender.sysctl(DEFAULT), chosen);
    // One with --default.
    kill_default(sender, &bench.name);
    let mut next = Agent::start_in(sender, BINARY, &bench.name, &with_default);
    assert_eq!(sender.sysctl(DEFAULT), bench.name);
    next.end(Signal::SIGTERM);
    assert_eq!(sender.sysctl(DEFAULT), chosen);
    // One of another name.
    kill_default(sender, &bench.name);
    let mut next = Agent::start_in(sender, BINARY, &unique_name(), &with_default);
    next.end(Signal::SIGTERM);
    assert_eq!(sender.sysctl(DEFAULT), chosen);

    // When the former one has gone meanwhile, one that is there takes its place.
    let mut last = Agent::start_in(sender, BINARY, &bench.name, &with_default);
    other.end(Signal::SIGTERM);
    let (status, log) = last.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(
        log.contains(&format!("{chosen}, is not available")),
        "{log}"
    );
    let default = sender.sysctl(DEFAULT);
    assert!(registered(&default), "{default}: {log}");
    assert_eq!(bench.connect_without_choice().congestion_control(), default);
}

fn the_default_of_a_killed_agent_is_undone_in_all_namespaces() -> Outcome {
    if let Some(outcome) = beyond_unit("CAP_SYS_ADMIN, which entering namespaces needs") {
        return outcome;
    }
    let bench = Bench::new(ROOMY);
    let (sender, receiver) = (&bench.network.path.sender, &bench.network.path.receiver);
    sender.set_sysctl(DEFAULT, "reno");
    let restore = |socket: &Path| {
        let mut command = Command::new(BINARY);
        command.args(["restore", "--name", &bench.name, "--socket"]);
        sender.hold(command.arg(socket));
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    // The kernel copies the default of the initial namespace into new ones; this one has it set.
    let arguments = ["--policy", "fixed:20", "--default"];
    let mut agent = Agent::start_in(sender, BINARY, &bench.name, &arguments);
    receiver.set_sysctl(DEFAULT, &bench.name);
    let text = restore(agent.socket());
    assert!(text.contains("nothing to restore"), "{text}");
    assert_eq!(sender.sysctl(DEFAULT), bench.name, "it runs");
    agent.end(Signal::SIGTERM);
    assert_eq!(
        receiver.sysctl(DEFAULT),
        "reno",
        "after an end in good order"
    );

    let mut agent = Agent::start_in(sender, BINARY, &bench.name, &arguments);
    receiver.set_sysctl(DEFAULT, &bench.name);
    agent.end(Signal::SIGKILL);
    let text = restore(agent.socket());
    assert!(text.contains("is reno again"), "{text}");
    assert_eq!(sender.sysctl(DEFAULT), "reno");
    assert_eq!(receiver.sysctl(DEFAULT), "reno");
    let text = restore(agent.socket());
    assert!(text.contains("nothing to restore"), "{text}");
    Outcome::Passed
}

fn it_ends_when_asked_whatever_is_stuck() {
    // Nobody reads the log, whose pipe is full from the start.
    let (_reader, mut writer) = io::pipe().expect("a pipe");
    let filling = writer.try_clone().expect("a free descriptor");
    let flags = fcntl(&filling, FcntlArg::F_GETFL).expect("an open pipe");
    let flags = OFlag::from_bits_retain(flags);
    fcntl(&filling, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).expect("a pipe");
    while writer.write(&[b'#'; 1]).is_ok() {}
    fcntl(&filling, FcntlArg::F_SETFL(flags)).expect("a pipe");
    let name = unique_name();
    let socket = std::env::temp_dir().join(format!("{name}.sock"));
    let mut command = Command::new(BINARY);
    command
        .args(["run", "--plain", "--policy", "fixed:20", "--name", &name])
        .arg("--socket")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer);
    let mut unread = command.spawn().expect("it starts");
    drop(command);
    eventually("it answers", || fetch(&socket).ok());

    // A file that never ends to be read, where the agent tries to.
    let files = Files::new();
    let fifo = files.place("fifo.onnx");
    mkfifo(fifo.as_str(), FileMode::S_IRUSR).expect("makes a FIFO");
    let mut reload = Command::new(BINARY);
    reload.args(["reload", &fifo, "--socket"]).arg(&socket);
    let mut reload = reload.stderr(Stdio::null()).spawn().expect("it starts");
    eventually("the command arrived or was refused", || {
        let news = fetch(&socket).ok()?.news;
        let ended = reload.try_wait().expect("our child").is_some();
        (ended || news.is_some() || threads_of(unread.id()).len() > 4).then_some(())
    });

    let id = Pid::from_raw(unread.id() as i32);
    kill(id, Signal::SIGTERM).expect("our child");
    let status = eventually("it ends", || unread.try_wait().expect("our child"));
    assert_eq!(status.code(), Some(0));
    assert!(!registered(&name));
    let _ = reload.kill();
    let _ = reload.wait();
}

/// The threads of a process, with the `status` files that /proc has of them.
fn threads_of(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let status = |thread: io::Result<fs::DirEntry>| {
        fs::read_to_string(thread.ok()?.path().join("status")).ok()
    };
    threads.into_iter().flatten().filter_map(status).collect()
}

/// The value of a line of such a file.
fn line_of<'a>(status: &'a str, key: &str) -> &'a str {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value
        .unwrap_or_else(|| panic!("no {key} in {status}"))
        .trim()
}

fn it_needs_two_capabilities_and_keeps_none() -> Outcome {
    if let Some(outcome) = beyond_unit("what it takes away and starts from") {
        return outcome;
    }
    let bench = Bench::new(ROOMY);
    let files = Files::new();
    let copy = files.place("cc-agent");
    fs::copy(BINARY, &copy).expect("copies");
    let as_nobody = |capabilities: &str| {
        let mut command = Command::new("setpriv");
        let sets = ["--inh-caps", "--ambient-caps", "--bounding-set"];
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(sets.map(|set| format!("{set}={capabilities}")));
        command.args(["--no-new-privs", &copy]);
        command
    };
    let command = as_nobody("-all,+bpf,+perfmon");
    let mut agent = Agent::start_by(command, &bench.name, &["--policy", "fixed:40"]);
    let flow = bench.connect().sending();
    wait_for_decision(&agent, &flow, 40);
    assert_eq!(agent.status().capabilities.as_deref(), Some("none"));
    let (status, log) = agent.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(
        log.contains("CAP_SYS_ADMIN is needed"),
        "it cannot adopt: {log}"
    );
    drop(flow);

    // Of all that root has, it keeps what ending needs.
    let sender = &bench.network.path.sender;
    const KILL_SETGID_SETUID_NICE: &str = "00000000008000e0";
    const AND_NET_ADMIN_SYS_PTRACE_SYS_ADMIN: &str = "0000000000a810e0";
    for (arguments, kept) in [
        (
            &["--policy", "fixed:40", "--no-cage"][..],
            "0000000000000000",
        ),
        (&["--policy", "fixed:40"], KILL_SETGID_SETUID_NICE),
        (
            &["--policy", "fixed:40", "--default"],
            AND_NET_ADMIN_SYS_PTRACE_SYS_ADMIN,
        ),
    ] {
        let mut agent = Agent::start_in(sender, BINARY, &bench.name, arguments);
        let threads = threads_of(agent.status().pid);
        assert!(threads.len() > 2, "{threads:?}");
        for thread in threads {
            let held = line_of(&thread, "CapEff");
            let is_bare = held == "0000000000000000";
            assert!(held == kept || is_bare, "{thread}");
            assert_eq!(line_of(&thread, "CapPrm"), held);
            assert_eq!(line_of(&thread, "NoNewPrivs"), "1", "{thread}");
        }
        let flow = bench.connect().sending();
        wait_for_decision(&agent, &flow, 40);
        let (status, log) = agent.end(Signal::SIGTERM);
        assert_eq!(status.code(), Some(0), "{log}");
        assert_ne!(sender.sysctl(DEFAULT), bench.name);
    }
    Outcome::Passed
}

fn it_serves_from_another_time_namespace() {
    let bench = Bench::new(ROOMY);
    let mut command = Command::new("unshare");
    // Eleven days ahead.
    command.args(["--time", "--monotonic", "1000000", "--fork", "--kill-child"]);
    command.arg(BINARY);
    let mut agent = Agent::start_by(command, &bench.name, &["--policy", "fixed:40"]);
    let flow = bench.connect().sending();
    wait_for_decision(&agent, &flow, 40);
    let status = wait_for_status(&agent, "there were ten decisions", |status| {
        status.agent.decisions >= 10
    });
    assert!(status.decision_delay.p50_ms < 30_000.0, "{status}");
    assert_eq!(count(&status, Counter::FallbacksEntered), 0);
    agent.end(Signal::SIGKILL);
    wait_for_growth(&flow, 40);
}

/// The first heartbeat is there before the name can be chosen.
fn no_flow_falls_back_at_the_start() {
    let bench = Bench::new(ROOMY);
    let agent = Agent::spawn(BINARY, &bench.name, &["--policy", "fixed:40"]);
    // At once, without the pauses of `eventually`.
    while !registered(&bench.name) {
        assert!(!agent.log().contains("error: "), "{}", agent.log());
        std::thread::yield_now();
    }
    let flow = bench.connect().sending();
    flow.advance(100_000);
    eventually("it answers", || fetch(agent.socket()).ok());
    wait_for_decision(&agent, &flow, 40);
    assert_eq!(count(&agent.status(), Counter::FallbacksEntered), 0);
}

fn the_status_is_for_a_group_and_commands_are_not() -> Outcome {
    if let Some(outcome) =
        beyond_unit("CAP_CHOWN, which root needs for a group that is not its own")
    {
        return outcome;
    }
    let bench = Bench::new(ROOMY);
    let files = Files::new();
    let copy = files.place("cc-agent");
    fs::copy(BINARY, &copy).expect("copies");
    let policy = files.with("heuristic.onnx", &heuristic_file());
    let arguments = ["--policy", "fixed:20", "--socket-group", "65534"];
    let mut agent = bench.agent(&arguments);
    let ask = |user: u32, group: u32, words: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(words).arg("--socket").arg(agent.socket());
        let output = command.uid(user).gid(group).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), text)
    };
    let (is_answered, text) = ask(65_533, 65_533, &["status"]);
    assert!(!is_answered && text.contains("Permission denied"), "{text}");
    let (is_answered, text) = ask(65_534, 65_534, &["status"]);
    assert!(is_answered, "{text}");
    for command in [&["reload", &policy][..], &["promote"], &["withdraw"]] {
        let (is_done, text) = ask(65_534, 65_534, command);
        assert!(!is_done && text.contains("commands are for root"), "{text}");
    }
    let (is_done, text) = ask(0, 0, &["reload", &policy]);
    assert!(is_done, "{text}");
    let (_, log) = agent.end(Signal::SIGTERM);
    assert!(log.contains("uid 65534, process "), "{log}");
    assert!(log.contains(&format!("asks: reload {policy}")), "{log}");
    Outcome::Passed
}

fn a_flow_is_traced_until_it_closes() {
    let bench = Bench::new(ROOMY);
    let agent = bench.agent(&["--policy", "fixed:40"]);
    let (flow, other) = (bench.connect().sending(), bench.connect().sending());
    wait_for_decision(&agent, &flow, 40);
    let name = flow.local().to_string();
    let mut command = Command::new(BINARY);
    command.args(["trace", &name, "--json", "--socket"]);
    let command = command.arg(agent.socket()).stdout(Stdio::piped());
    let mut trace = command.spawn().expect("starts");
    let mut lines = BufReader::new(trace.stdout.take().expect("it is piped")).lines();
    let mut windows: Vec<TracedWindow> = Vec::new();
    while windows.len() < 5 {
        let line = lines.next().expect("the flow goes on").expect("it is text");
        windows.push(serde_json::from_str(&line).expect("a window"));
    }
    for (window, next) in windows.iter().zip(&windows[1..]) {
        assert!(next.window > window.window, "{windows:?}");
    }
    let decided = windows.iter().filter_map(|window| window.decision.as_ref());
    let decided: Vec<_> = decided.map(|it| (it.action.as_str(), it.cwnd)).collect();
    assert!(!decided.is_empty(), "{windows:?}");
    assert!(decided.iter().all(|it| *it == ("=40", 40)), "{windows:?}");
    // It pairs with the kernel's list of sockets, in the network namespace that is named.
    let namespace = &bench.network.path.sender;
    let status = agent.status();
    let shown = status.flows.iter().find(|it| it.local == flow.local());
    let shown = shown.expect("it is open");
    let inode = namespace.within(|| fs::metadata("/proc/thread-self/ns/net").map(|it| it.ino()));
    assert_eq!(u64::from(shown.netns), inode.expect("procfs"));
    let listed = ss(namespace, &flow, "-tenH");
    assert!(
        listed.contains(&format!(" sk:{:x} ", shown.cookie)),
        "{listed}"
    );
    for window in &windows {
        assert_eq!((window.cookie, window.netns), (shown.cookie, shown.netns));
    }
    let name = format!("sk:{:x}", shown.cookie);
    let mut told = Command::new(BINARY);
    told.args(["trace", &name, "--socket"]).arg(agent.socket());
    let mut told = told.stdout(Stdio::piped()).spawn().expect("starts");
    let mut heading = String::new();
    let mut text = BufReader::new(told.stdout.take().expect("it is piped"));
    text.read_line(&mut heading).expect("it is text");
    let pairs = format!("  {name}  netns {}  cgroup ", shown.netns);
    assert!(heading.contains(&pairs), "{heading}");
    told.kill().expect("our child");
    told.wait().expect("our child");
    // Another flow's end is not this one's.
    drop(other);
    let line = lines.next().expect("the flow goes on").expect("it is text");
    assert!(line.starts_with('{'), "{line}");
    drop(flow);
    let rest = lines.map_while(Result::ok).count();
    assert!(
        trace.wait().expect("our child").success(),
        "{rest} more windows"
    );
    let gone = cc_client::trace(agent.socket(), (7, 1), |_| true).expect_err("no such flow");
    assert!(gone.to_string().contains("flow 7.1 is not open"), "{gone}");
}

fn a_report_of_a_bug_leaves_addresses_out() {
    let bench = Bench::new(ROOMY);
    let agent = bench.agent(&["--policy", "fixed:10"]);
    let flow = bench.connect().sending();
    wait_for_decision(&agent, &flow, 10);
    let directory = TempDir::new().expect("a directory for the test");
    let peer = bench.network.address();
    let report = |file: &str, more: &[&str]| {
        let path = directory.path().join(file);
        let mut command = Command::new(BINARY);
        command
            .arg("bundle")
            .arg(&path)
            .args(["--name", &bench.name, "--socket"]);
        let output = command
            .arg(agent.socket())
            .args(more)
            .output()
            .expect("runs");
        assert!(output.status.success(), "{output:?}");
        let mut archive = Command::new("tar");
        archive.arg("-xzOf").arg(&path);
        let text = archive.output().expect("there is a tar").stdout;
        String::from_utf8(text).expect("it is text")
    };
    let text = report("without.tar.gz", &[]);
    let map = format!("StructOps {}", bench.name);
    for part in [map.as_str(), "\"decisions\"", "(runs)", "policy fixed:10"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains(&peer.ip().to_string()), "{text}");
    let text = report("with.tar.gz", &["--addresses"]);
    assert!(text.contains(&peer.to_string()), "{text}");
}

fn what_was_reloaded_is_remembered() {
    let bench = Bench::new(ROOMY);
    let files = Files::new();
    let policy = files.with("heuristic.onnx", &heuristic_file());
    let state = files.place("state");
    fs::create_dir(&state).expect("creates");
    let start = |policy: &str| {
        let mut command = Command::new(BINARY);
        command.env("STATE_DIRECTORY", &state);
        Agent::start_by(command, &bench.name, &["--policy", policy])
    };
    let mut agent = start("fixed:20");
    assert_eq!(agent.status().differs, None, "nothing was reloaded");
    let reload = cc_core::status::Command::Reload {
        file: policy.clone().into(),
    };
    command(agent.socket(), reload).expect("it is loaded");
    let rollback = || command(agent.socket(), cc_core::status::Command::Rollback);
    let done = rollback().expect("there was a policy before");
    assert_eq!(done, "policy fixed:20 decides from now on");
    let refused = rollback()
        .expect_err("there was none before that")
        .to_string();
    assert!(refused.contains("no former policy"), "{refused}");
    let forwards = cc_core::status::Command::RollbackTo {
        policy: policy.clone(),
    };
    let done = command(agent.socket(), forwards).expect("it was served");
    assert!(done.contains(&policy), "{done}");
    let history = PathBuf::from(&state).join(format!("{}.history", bench.name));
    eventually("all of it is written", || {
        let text = fs::read_to_string(&history).ok()?;
        (text.matches(&policy).count() == 2).then_some(())
    });
    agent.end(Signal::SIGKILL);

    let mut agent = start("fixed:20");
    let history = agent.status().incidents;
    let texts: Vec<&str> = history.iter().map(|incident| &*incident.text).collect();
    assert_eq!(
        texts.len(),
        7,
        "two starts, three policies, a refusal, a kill: {texts:?}"
    );
    assert!(texts[0].starts_with("registered "), "{texts:?}");
    assert_eq!(texts[5], "the former agent was killed, or failed");
    let differs = agent.status().differs.expect("it serves another one");
    assert!(differs.contains(&policy), "{differs}");
    assert!(differs.contains("by uid 0, process "), "{differs}");
    // What the agent before has served, from what it has kept.
    fs::remove_file(&policy).expect("it is there");
    let done = command(agent.socket(), cc_core::status::Command::Rollback);
    let done = done.expect("another agent has served it");
    assert!(done.contains(&policy), "{done}");
    assert_eq!(agent.status().differs, None);
    agent.end(Signal::SIGKILL);

    // What was rolled back from does not come back, although the configuration names it.
    let mut agent = start("fixed:20");
    let status = agent.status();
    assert!(status.policy.starts_with(&policy), "{status}");
    let differs = status.differs.expect("it is not what was named");
    let named = "the configuration names fixed:20, which was rolled back from";
    assert!(differs.starts_with(named), "{differs}");
    let listed = finish(
        Command::new(BINARY)
            .arg("policies")
            .arg("--socket")
            .arg(agent.socket()),
    );
    let lines: Vec<&str> = listed.1.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].starts_with("in service ") && lines[0].contains(&policy),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("rolled back  -             fixed:20"),
        "{lines:?}"
    );
    let (_, log) = agent.end(Signal::SIGTERM);
    assert!(log.contains(&differs), "{log}");
    files.with("heuristic.onnx", &heuristic_file());
    let agent = start(&policy);
    let status = agent.status();
    assert_eq!(status.differs, None, "it serves that one");
    let ends = status.incidents.iter();
    let ends = ends.filter(|incident| incident.text == "the agent ended");
    assert_eq!(ends.count(), 1, "{status}");
}

fn a_cgroup_can_use_it() {
    let cgroup = match Cgroup::new() {
        Ok(cgroup) => cgroup,
        Err(reason) => {
            eprintln!("SKIPPED: a cgroup whose sockets use the congestion control: {reason}");
            return;
        }
    };
    let bench = Bench::new(ROOMY);
    let connect = || bench.connect_without_choice();
    let directory = cgroup.directory().to_str().expect("it is ASCII");
    let mut agent = bench.agent(&["--policy", "fixed:20", "--cgroup", directory]);
    assert_ne!(connect().congestion_control(), bench.name);
    let inside = cgroup.within(connect).sending();
    assert_eq!(inside.congestion_control(), bench.name);
    wait_for_decision(&agent, &inside, 20);
    assert_ne!(connect().congestion_control(), bench.name);

    let (status, log) = agent.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0), "{log}");
    assert_ne!(cgroup.within(connect).congestion_control(), bench.name);
    drop(inside);
    Footprint::of(&bench.name).assert_vanishes();
}

fn slow_inference_costs_no_throughput() {
    let (prompt, slow) = (Bench::new(ROOMY), Bench::new(ROOMY));
    let fixed = ["--policy", "fixed:60"];
    let added = ["--policy", "fixed:60", "--added-delay-ms", "200"];
    let agents = (prompt.agent(&fixed), slow.agent(&added));
    let flows = (prompt.connect().sending(), slow.connect().sending());
    wait_for_decision(&agents.0, &flows.0, 60);
    wait_for_decision(&agents.1, &flows.1, 60);

    let race = Race::start(&slow, &prompt);
    race.reach("neither more nor less", 6_000_000, |ratio| {
        (0.9..1.1).contains(&ratio)
    });

    let status = agents.1.status();
    assert!(status.decision_delay.count >= 5, "{status:?}");
    assert!(status.decision_delay.p50_ms >= 200.0, "{status:?}");
    // Each answer takes two windows, and is for the newest.
    assert!(status.agent.windows_skipped > 0);
    assert_eq!(count(&status, Counter::FallbacksEntered), 0);
    let status = agents.0.status();
    assert!(status.decision_delay.p50_ms < 200.0, "{status:?}");
}

fn bad_input_is_refused_while_another_agent_serves_on() {
    let bench = Bench::new(ROOMY);
    let agent = bench.agent(&["--policy", "fixed:30"]);
    let flow = bench.connect().sending();
    wait_for_decision(&agent, &flow, 30);

    let files = Files::new();
    let whole = heuristic_file();
    let truncated = files.with("truncated.onnx", &whole[..whole.len() / 2]);
    let no_metadata = files.policy("no-metadata.onnx", |model| model.metadata_props.clear());
    let external = files.policy("external.onnx", |model| {
        let graph = model.graph.as_mut().expect("a policy has a graph");
        graph.initializer[0].raw_data.clear();
        graph.initializer[0].data_location = Some(DataLocation::External as i32);
    });
    let misdeclared = files.policy("misdeclared.onnx", |model| {
        let graph = model.graph.as_mut().expect("a policy has a graph");
        let reward = graph.input[1].r#type.clone();
        graph.input[0].r#type = reward;
    });
    let misshapen = files.with("misshapen.onnx", &misshapen_policy());
    let config = files.with("agent.toml", b"policy = \"random\"\nwindow_sm = 50\n");
    let other_socket = agent.socket().display().to_string();
    let taken = bench.name.as_str();
    let cases: [(&[&str], &[&str]); 13] = [
        (
            &["--policy", "random", "--actions", "0,/2,banana"],
            &["--actions", "banana"],
        ),
        (&["--policy", "fixed:many"], &["--policy", "fixed:many"]),
        (
            &["--config", &config],
            &[&config, "window_sm", "expected one of"],
        ),
        (
            &["--policy", "/nowhere/at/all.onnx"],
            &["/nowhere/at/all.onnx"],
        ),
        (
            &["--policy", &truncated],
            &[&truncated, "truncated", "again"],
        ),
        (
            &["--policy", &no_metadata],
            &[&no_metadata, "metadata", "missing", "export it"],
        ),
        (
            &["--policy", &external],
            &[&external, "outside the file", "export"],
        ),
        (
            &["--policy", &misdeclared],
            &[&misdeclared, "observation", "[N]", "[N, 220]"],
        ),
        (
            &["--policy", &misshapen],
            &[&misshapen, "Gemm", "220 values", "219 weights"],
        ),
        (&["--name", taken], &[taken, "already registered", "--name"]),
        (
            &["--socket", &other_socket],
            &[&other_socket, "in use", taken, "--socket"],
        ),
        (
            &["--socket", "/proc/nowhere/agent.sock"],
            &["/proc/nowhere", "--socket"],
        ),
        (
            &["--cgroup", "/sys/fs/cgroup/nowhere"],
            &["cgroup", "/sys/fs/cgroup/nowhere", "No such file"],
        ),
    ];
    for (arguments, parts) in cases {
        assert_refused(&mut run(arguments), parts);
    }
    assert_refused(&mut as_nobody(&files), &["root"]);
    assert_refused(&mut without_btf(), &["BTF", "CONFIG_DEBUG_INFO_BTF"]);

    let before = agent.status();
    flow.advance(300_000);
    assert_eq!(flow.info().snd_cwnd, 30);
    let after = wait_for_status(&agent, "the flow was served on", |status| {
        status.agent.decisions > before.agent.decisions
    });
    assert_eq!(count(&after, Counter::FallbacksEntered), 0);
    assert_eq!(after.live_flows, 1);
}

/// Files to give to the agent, in a directory that every user may read.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory for the test");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), open).expect("it is ours");
        Self(directory)
    }

    fn place(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn with(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.place(name);
        fs::write(&path, bytes).expect("writes");
        path
    }

    /// Writes the heuristic's policy file after `change` and returns its path.
    fn policy(&self, name: &str, change: impl FnOnce(&mut ModelProto)) -> String {
        let mut model = ModelProto::decode(&heuristic_file()[..]).expect("it is an ONNX file");
        change(&mut model);
        self.with(name, &model.encode_to_vec())
    }
}

/// Returns `cc-agent run` under a new name, with a duration of 1 s in case it is not refused, and
/// with a policy that no machine is too slow for.
fn run(arguments: &[&str]) -> Command {
    run_by(BINARY, arguments)
}

fn run_by(binary: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.args(["run", "--plain", "--duration", "1"]);
    if !arguments.contains(&"--name") {
        command.args(["--name", &unique_name()]);
    }
    if !arguments.contains(&"--policy") {
        command.args(["--policy", "fixed:10"]);
    }
    if !arguments.contains(&"--socket") {
        let socket = std::env::temp_dir().join(unique_name());
        command.arg("--socket").arg(socket);
    }
    command.args(arguments);
    command
}

/// Returns `cc-agent run` by the user nobody, from a copy of the binary that this user can read.
fn as_nobody(files: &Files) -> Command {
    let copy = files.place("cc-agent");
    fs::copy(BINARY, &copy).expect("copies");
    let mut command = run_by(&copy, &[]);
    command.uid(65_534).gid(65_534);
    command
}

/// Returns `cc-agent run` in a mount namespace that hides the kernel's BTF.
fn without_btf() -> Command {
    let mut command = run(&[]);
    let hide = || {
        let none = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        let tmpfs = Some("tmpfs");
        mount(tmpfs, "/sys/kernel/btf", tmpfs, MsFlags::empty(), none)?;
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(move || hide().map_err(|error: nix::Error| io::Error::from(error))) };
    command
}

/// Runs a command and asserts that it fails with one error line that contains all `parts`, and that
/// it registers nothing.
fn assert_refused(command: &mut Command, parts: &[&str]) {
    let before = ours_registered();
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{command:?}: {text}");
    assert!(output.status.code().is_some(), "{command:?}: {text}");
    let errors = text.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), 1, "{command:?}: {text}");
    assert!(!text.contains("panicked"), "{command:?}: {text}");
    // The error and its causes are printed once each.
    let clauses: Vec<&str> = text.trim_end().split(": ").collect();
    let distinct: HashSet<&&str> = clauses.iter().collect();
    assert_eq!(clauses.len(), distinct.len(), "{command:?}: {text}");
    for part in parts {
        assert!(
            text.contains(part),
            "{command:?} does not say {part}: {text}"
        );
    }
    assert_eq!(ours_registered(), before, "{command:?}");
}

/// Returns the congestion controls registered by this program's agents; the host may have others.
fn ours_registered() -> Vec<String> {
    let names = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let names = names.expect("it is there");
    let names = names.split_whitespace().map(str::to_owned);
    names.filter(|name| is_unique_name(name)).collect()
}

/// Returns a small network with random parameters, and its metadata.
fn untrained() -> (ActorCritic, PolicyMeta) {
    let meta = PolicyMeta {
        name: "untrained".into(),
        kind: PolicyKind::Trained,
        interface: Interface::default(),
        hidden: vec![8],
        state: 4,
        serving: Default::default(),
        provenance: BTreeMap::new(),
    };
    (ActorCritic::random(&meta, 1), meta)
}

/// Returns a policy file whose first layer takes one value less than an observation has.
fn misshapen_policy() -> Vec<u8> {
    let (mut network, meta) = untrained();
    let layer = &mut network.trunk[0];
    layer.inputs -= 1;
    layer.weights.truncate(layer.inputs * layer.outputs);
    network.export(&meta, "misshapen")
}

/// Returns a policy file that sets every cwnd to `cwnd` segments, after `change` to its interface.
fn constant_policy(cwnd: u32, change: impl FnOnce(&mut Interface)) -> Vec<u8> {
    let (_, mut meta) = untrained();
    meta.name = format!("always-{cwnd}");
    // Every choice is clamped to these bounds.
    meta.interface.cwnd.min = cwnd;
    meta.interface.cwnd.max = cwnd;
    change(&mut meta.interface);
    let network = ActorCritic::random(&meta, 1);
    network.export(&meta, "")
}

/// Runs a subcommand against a running agent, and returns whether it succeeded and its output.
fn run_against(agent: &Agent, arguments: &[&str]) -> (bool, String) {
    finish(
        Command::new(BINARY)
            .args(arguments)
            .arg("--socket")
            .arg(agent.socket()),
    )
}

/// Runs a command to its end, and returns whether it succeeded and its output.
fn finish(command: &mut Command) -> (bool, String) {
    let output = command.output().expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn a_policy_is_reloaded_while_its_flows_go_on() {
    let bench = Bench::new(ROOMY);
    let files = Files::new();
    let file = files.with("policy.onnx", &constant_policy(30, |_| {}));
    let agent = bench.agent(&["--policy", "fixed:20"]);
    let flow = bench.connect().sending();
    wait_for_decision(&agent, &flow, 20);

    let (done, said) = run_against(&agent, &["reload", &file]);
    assert!(done && said.contains("always-30"), "{said}");
    wait_for_decision(&agent, &flow, 30);
    files.with("policy.onnx", &constant_policy(40, |_| {}));
    agent.signal(Signal::SIGHUP);
    wait_for_decision(&agent, &flow, 40);

    let broken = files.with("broken.onnx", b"no policy");
    let short = files.with("short.onnx", &constant_policy(50, |e| e.window_ms = 50));
    for (file, parts) in [
        (broken.as_str(), ["broken.onnx", "the policy stays"]),
        (short.as_str(), ["window_ms 50", "the policy stays"]),
        (
            "/nowhere/at/all.onnx",
            ["/nowhere/at/all.onnx", "No such file"],
        ),
    ] {
        let (done, said) = run_against(&agent, &["reload", file]);
        assert!(
            !done && parts.iter().all(|part| said.contains(part)),
            "{said}"
        );
    }
    let (done, said) = run_against(&agent, &["promote"]);
    assert!(!done && said.contains("no candidate"), "{said}");
    let next = bench.connect().sending();
    wait_for_decision(&agent, &next, 40);
    let status = agent.status();
    assert!(status.policy.contains("always-40"), "{}", status.policy);
    assert_eq!(
        (status.agent.flows, status.live_flows),
        (2, 2),
        "no flow was lost"
    );
    assert_eq!(count(&status, Counter::FallbacksEntered), 0);
}

/// A `cc-agent policy-server` on the loopback network, killed when it is dropped.
struct PolicyServer(Child);

impl PolicyServer {
    /// Starts it, and waits until it listens.
    fn start(file: &str, address: SocketAddr) -> Self {
        let child = Command::new(BINARY)
            .args(["policy-server", "--plaintext", "--policy", file])
            .args(["--serving", "softmax", "--batch-budget-ms", "60000"])
            .args(["--listen", &address.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        eventually("the policy server listens", || {
            TcpStream::connect(address).ok()
        });
        Self(child)
    }
}

impl Drop for PolicyServer {
    fn drop(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

fn flows_go_on_while_their_policy_server_is_gone() {
    let bench = Bench::new(ROOMY);
    let files = Files::new();
    // The server's policy leads to 30 segments from wherever the local one, always 20, has left a
    // flow.
    let policy = constant_policy(30, |interface| {
        interface.cwnd.min = 20;
        interface.actions = "0,*2".parse().expect("an action space");
    });
    let file = files.with("served.onnx", &policy);
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("bound");
    drop(free);
    let server = PolicyServer::start(&file, address);
    let policy = format!("grpc://{address}");
    let record = files.place("recordings");
    fs::create_dir(&record).expect("a directory");
    let mut agent = bench.agent(&[
        "--policy",
        &policy,
        "--local-policy",
        "fixed:20",
        "--record",
        &record,
    ]);
    let flow = bench.connect().sending();
    let wait_for = |what, connected, cwnd| {
        wait_for_status(&agent, what, |status| {
            let view = status.flows.iter().find(|view| view.local == flow.local());
            let remote = status.remote.as_ref();
            remote.is_some_and(|remote| remote.connected == connected)
                && view.is_some_and(|view| (view.mode, view.cwnd) == (Mode::Decided, cwnd))
        })
    };
    wait_for("the server decides", true, 30);
    // SIGKILL.
    drop(server);
    wait_for("the local policy decides", false, 20);
    let _server = PolicyServer::start(&file, address);
    let status = wait_for("the server decides again", true, 30);
    let remote = status.remote.as_ref().expect("it is asked");
    assert!(remote.connections >= 2, "{remote:?}");
    assert!(
        remote.counts.local > 0 && remote.counts.answered > 0,
        "{remote:?}"
    );
    assert_eq!((status.agent.flows, status.live_flows), (1, 1), "{status}");
    assert_eq!(count(&status, Counter::FallbacksEntered), 0);
    drop(flow);
    agent.end(Signal::SIGTERM);
    // Each row is in a file of the policy that decided.
    let mut deciders = BTreeMap::new();
    for path in files_of(record.as_ref()).expect("readable") {
        let (header, rows) = read(&path).expect("a recording");
        let decided = rows.map(|row| row.expect("whole").decision.is_some());
        let decided = decided.filter(|is_decided| *is_decided).count();
        *deciders.entry((header.server, header.policy)).or_insert(0) += decided;
    }
    let local = (None, "fixed:20".to_owned());
    assert!(
        deciders.remove(&local).is_some_and(|rows| rows > 0),
        "{deciders:?}"
    );
    let ((server, sha256), rows) = deciders.pop_first().expect("the server has decided");
    assert_eq!((server, sha256.len()), (Some(policy), 64));
    assert!(rows > 0 && deciders.is_empty(), "{deciders:?}");
}

/// Returns the number of flows for each cwnd that was decided.
fn flows_by_cwnd(status: &Snapshot) -> BTreeMap<u32, usize> {
    let mut windows = BTreeMap::new();
    for flow in status
        .flows
        .iter()
        .filter(|flow| flow.mode == Mode::Decided)
    {
        *windows.entry(flow.cwnd).or_default() += 1;
    }
    windows
}

/// A channel in a directory, followed once at a time.
struct Channel<'a> {
    files: &'a Files,
    agent: &'a Agent,
    key: &'a str,
}

impl Channel<'_> {
    fn publish(&self, policy: &str, arguments: &[&str]) -> (bool, String) {
        let (channel, key) = (self.files.place("channel"), self.files.place("key.pem"));
        let arguments = [
            &["publish", policy, "--channel", &channel, "--key", &key],
            arguments,
        ];
        finish(Command::new(BINARY).args(arguments.concat()))
    }

    fn follow(&self) -> (bool, String) {
        let (channel, policies) = (self.files.place("channel"), self.files.place("policies"));
        let arguments = ["follow", "--once", "--channel", &channel, "--key", self.key];
        run_against(
            self.agent,
            &[&arguments[..], &["--policies", &policies]].concat(),
        )
    }
}

fn a_channel_is_followed_and_only_what_its_key_has_signed() {
    let bench = Bench::new(ROOMY);
    let files = Files::new();
    let [of_30, of_40, of_50] = [30, 40, 50]
        .map(|cwnd| files.with(&format!("{cwnd}.onnx"), &constant_policy(cwnd, |_| ())));
    fs::create_dir(files.place("channel")).expect("creates");
    let mut agent = bench.agent(&["--policy", "fixed:20"]);
    let flow = bench.connect().sending();
    wait_for_decision(&agent, &flow, 20);
    let (made, key) = finish(Command::new(BINARY).args(["channel-key", &files.place("key.pem")]));
    assert!(made, "{key}");
    let key = key.trim();
    let files = &files;
    let it = Channel {
        files,
        agent: &agent,
        key,
    };
    let (followed, said) = it.follow();
    assert!(
        !followed && said.contains("holds no announcement"),
        "{said}"
    );

    let (published, said) = it.publish(&of_30, &[]);
    assert!(
        published && said.contains("announcement 1: always-30"),
        "{said}"
    );
    let (followed, said) = it.follow();
    assert!(followed, "{said}");
    wait_for_decision(&agent, &flow, 30);

    // Neither an announcement nor a policy that the publisher did not write is parsed.
    let announced = files.place("channel/channel");
    let first = fs::read(&announced).expect("it is there");
    let (published, said) = it.publish(&of_40, &[]);
    assert!(published, "{said}");
    let second = fs::read(&announced).expect("it is there");
    let mut forged = second.clone();
    let place = forged.len() - 10;
    forged[place] ^= 1;
    fs::write(&announced, forged).expect("writes");
    let (followed, said) = it.follow();
    assert!(
        !followed && said.contains("is not signed by the key"),
        "{said}"
    );
    fs::write(&announced, &second).expect("writes");
    let policy = fs::read_dir(files.place("channel/policies")).expect("it is there");
    let mut policies = policy.map(|entry| entry.expect("reads").path());
    let is_of_40 = |path: &PathBuf| fs::read(path).ok() == fs::read(&of_40).ok();
    let policy = policies.find(is_of_40).expect("it was published");
    fs::copy(&of_50, &policy).expect("copies");
    let (followed, said) = it.follow();
    assert!(
        !followed && said.contains("not the announced one"),
        "{said}"
    );
    assert_eq!(flow.info().snd_cwnd, 30, "nothing has changed");
    fs::copy(&of_40, &policy).expect("copies");
    let (followed, said) = it.follow();
    assert!(followed, "{said}");
    wait_for_decision(&agent, &flow, 40);

    // What was announced before is not served again, but an operator may.
    fs::write(&announced, first).expect("writes");
    let (_, said) = it.follow();
    assert!(
        said.contains("announces 1 again, but 2 came after it"),
        "{said}"
    );
    fs::write(&announced, second).expect("writes");
    command(agent.socket(), cc_core::status::Command::Rollback).expect("there is one");
    wait_for_decision(&agent, &flow, 30);
    let (followed, said) = it.follow();
    let stays_out = "is not in service: an operator has rolled it back";
    assert!(!followed && said.contains(stays_out), "{said}");
    assert_eq!(flow.info().snd_cwnd, 30, "the operator's decision stays");

    // Neither does another run of the agent get it, until the operator has it served again.
    agent.end(Signal::SIGTERM);
    let agent = bench.agent(&["--policy", "fixed:20", "--canary-block", "1"]);
    let it = Channel {
        files,
        agent: &agent,
        key,
    };
    let (followed, said) = it.follow();
    assert!(!followed && said.contains(stays_out), "{said}");
    let flow = bench.connect().sending();
    wait_for_decision(&agent, &flow, 20);
    let rolled_back = agent.status().policies.into_iter();
    let mut rolled_back = rolled_back.filter(|it| it.standing == Standing::RolledBack);
    let of_40 = rolled_back.next().expect("one was").sha256.expect("a file");
    let (done, said) = run_against(&agent, &["rollback", "--to", &of_40[..10]]);
    assert!(done && said.contains("always-40"), "{said}");
    let (followed, said) = it.follow();
    assert!(followed, "{said}");
    wait_for_decision(&agent, &flow, 40);
    let (published, said) = it.publish(&of_50, &["--canary", "10"]);
    assert!(
        published && said.contains("canary of 10 % by time"),
        "{said}"
    );
    let (followed, said) = it.follow();
    assert!(followed && said.contains("--canary 10"), "{said}");
    let canary = agent.status().canary.expect("it runs");
    assert!(canary.candidate.contains("always-50"), "{canary}");
    command(agent.socket(), cc_core::status::Command::Withdraw).expect("it runs");
    let (followed, said) = it.follow();
    assert!(
        !followed && said.contains("its canary ended without it"),
        "{said}"
    );
}

fn a_candidate_gets_its_share_of_flows_until_it_is_promoted() {
    const FLOWS: usize = 24;
    // Flows that may be in a recovery, with a cwnd between both policies'.
    const BETWEEN: usize = 3;
    // Fast enough for several windows in a block.
    let bench = Bench::new(Bottleneck {
        rate_mbit: 60,
        ..ROOMY
    });
    let files = Files::new();
    // A cwnd that is little larger, so that it takes no more from its neighbours than is tolerated,
    // and by two segments, between which none is either policy's.
    let file = files.with("candidate.onnx", &constant_policy(22, |e| e.history = 3));
    let agent = bench.agent(&["--policy", "fixed:20", "--canary-block", "1"]);
    let first = bench.connect().sending();
    // All but one are open before the canary begins: what many flows take from each other while it
    // has its first block would be in how their throughput has changed since.
    let mut flows: Vec<_> = (2..FLOWS).map(|_| bench.connect().sending()).collect();
    wait_for_decision(&agent, &first, 20);
    wait_for_status(&agent, "all flows are the incumbent's", |status| {
        flows_by_cwnd(status) == BTreeMap::from([(20, FLOWS - 1)])
    });
    let (done, said) = run_against(&agent, &["reload", &file, "--canary", "50"]);
    assert!(done && said.contains("50 %"), "{said}");
    let (done, said) = run_against(&agent, &["reload", &file]);
    assert!(
        !done && said.contains("promote or withdraw its candidate first"),
        "{said}"
    );

    flows.push(bench.connect().sending());
    // Between its blocks the candidate has no flow. A flow that is in the middle of a recovery
    // reaches its decision after it.
    wait_for_status(
        &agent,
        "its share of the flows has the candidate",
        |status| {
            let windows = flows_by_cwnd(status);
            let with = |cwnd| windows.get(&cwnd).copied().unwrap_or(0);
            let (incumbents, candidates) = (with(20), with(22));
            let between = FLOWS.saturating_sub(incumbents + candidates);
            let canary = status.canary.as_ref();
            let canary = canary.unwrap_or_else(|| panic!("the canary ended: {:?}", status.news));
            let counted = canary.candidate_flows.flows as usize;
            // The incumbent has had all flows.
            canary.incumbent_flows.flows as usize == FLOWS
                && between <= BETWEEN
                && (candidates..=candidates + between).contains(&counted)
                && (4..FLOWS - 4).contains(&candidates)
                && incumbents >= 4
        },
    );
    wait_for_status(&agent, "all flows are the incumbent's again", |status| {
        flows_by_cwnd(status) == BTreeMap::from([(20, FLOWS)])
    });

    let (done, said) = run_against(&agent, &["promote"]);
    assert!(
        done && said.contains("always-22") && said.contains("found: open"),
        "{said}"
    );
    wait_for_decision(&agent, &first, 22);
    let status = wait_for_status(&agent, "all flows were the candidate's", |status| {
        flows_by_cwnd(status) == BTreeMap::from([(22, FLOWS)])
    });
    assert!(status.canary.is_none() && status.policy.contains("always-22"));
    assert_eq!(status.live_flows, flows.len() + 1);
}

fn a_candidate_with_more_queueing_delay_is_withdrawn() {
    const EACH: u64 = 3;
    // Chance may make many flows necessary, and an emulated machine has to carry them all.
    const SLOW: Bottleneck = Bottleneck {
        rate_mbit: 5,
        ..ROOMY
    };
    let files = Files::new();
    let file = files.with("greedy.onnx", &constant_policy(300, |_| {}));
    let name = unique_name();
    let share = [
        "--canary",
        "50",
        "--canary-by",
        "path",
        "--canary-units",
        &EACH.to_string(),
        "--candidate",
        &file,
    ];
    let agent = Agent::start(
        BINARY,
        &name,
        &[&["--policy", "fixed:10"], &share[..]].concat(),
    );
    // Each flow has a path of its own: paths are compared.
    let mut flows: Vec<(Flow, Bench)> = Vec::new();
    let status = eventually("it was withdrawn", || {
        let status = agent.status();
        if status.canary.is_none() {
            return Some(status);
        }
        let windows = flows_by_cwnd(&status);
        let enough = |cwnd| windows.get(&cwnd).copied().unwrap_or(0) as u64 >= EACH;
        if !(enough(10) && enough(300)) && flows.len() < 40 {
            let bench = Bench::new(SLOW);
            flows.push((bench.connect_by(&name).sending(), bench));
        }
        None
    });
    let news = status.news.expect("it says why");
    assert!(news.contains("withdrawn: queueing delay"), "{news}");
    let flow = &flows[0].0;
    wait_for_decision(&agent, flow, 10);
    wait_for_status(&agent, "all flows are there", |status| {
        status.live_flows == flows.len()
    });
}

fn two_hundred_flows_are_answered() -> Outcome {
    const FLOWS: usize = 200;
    if is_slow() {
        return Outcome::Undecided("an emulated machine is too slow for that many flows".into());
    }
    // The queue holds the initial cwnds and slow start of all flows: a flow that loses its first
    // segments is opened late, by its first ACK.
    let bench = Bench::new(Bottleneck {
        rate_mbit: 100,
        queue_bytes: 6_000_000,
    });
    let agent = bench.agent(&[]);
    let crowd = bench.network.crowd(&bench.name, FLOWS);
    let status = wait_for_status(&agent, "each flow had thirty decisions", |status| {
        status.agent.decisions >= 30 * FLOWS as u64
    });
    let counts = status.agent;
    assert_eq!(
        (status.live_flows, counts.flows, crowd.failed()),
        (FLOWS, FLOWS as u64, 0),
        "{status}"
    );
    assert!(counts.decisions * 2 > counts.windows, "{counts:?}");
    let lost = (
        counts.windows_missed,
        counts.flows_found_late,
        counts.answers_invalid,
    );
    assert_eq!(lost, (0, 0, 0));
    for counter in [
        Counter::RecordsDropped,
        Counter::FallbacksEntered,
        Counter::FlowsWithoutSlot,
        Counter::SlotsLeaked,
    ] {
        assert_eq!(count(&status, counter), 0, "{}", counter.name());
    }
    drop(crowd);
    wait_for_status(&agent, "all flows were closed", |status| {
        status.live_flows == 0 && count(status, Counter::FlowsClosed) == FLOWS as u64
    });
    Outcome::Passed
}

fn flows_beyond_the_slots_transfer_too() {
    const FLOWS: usize = 80;
    const BYTES: usize = 60_000;
    let bench = Bench::new(ROOMY);
    let agent = bench.agent(&["--slots", "50"]);
    let flows: Vec<Flow> = (0..FLOWS).map(|_| bench.connect()).collect();
    for flow in &flows {
        flow.send(BYTES);
    }
    for flow in &flows {
        flow.finish();
        assert_eq!(bench.network.sink.received_from(flow.port()), BYTES as u64);
    }
    let status = wait_for_status(&agent, "the surplus was counted", |status| {
        count(status, Counter::FlowsWithoutSlot) == 30
    });
    assert_eq!(status.slots, 50);
    assert!(status.live_flows <= 50);
    drop(flows);
    // A flow gives its slot back when it closes, unless it has lost it to another one before.
    wait_for_status(&agent, "all slots were given back", |status| {
        let opened = count(status, Counter::FlowsOpened);
        let closed = count(status, Counter::FlowsClosed);
        status.live_flows == 0 && opened >= 50 && opened == closed + status.agent.slots_reclaimed
    });
}

fn idle_connections_do_not_keep_the_slots() {
    const SLOTS: u64 = 16;
    let bench = Bench::new(ROOMY);
    let agent = bench.agent(&["--slots", "16"]);
    let idle: Vec<Flow> = (0..SLOTS).map(|_| bench.connect()).collect();
    for flow in &idle {
        flow.send(3_000);
    }
    wait_for_status(&agent, "all slots are taken", |status| {
        count(status, Counter::FlowsOpened) == SLOTS
    });
    let flow = bench.connect().sending();
    let status = wait_for_status(&agent, "the busy flow has decisions", |status| {
        let port = flow.port();
        let decided = |view: &&FlowView| view.local.port() == port && view.decisions > 3;
        status.flows.iter().any(|view| decided(&view))
    });
    assert!(status.agent.slots_reclaimed > 0);
    // Who sends again gets a slot again, with the flow's own decisions and nobody else's.
    for flow in &idle {
        flow.send(3_000);
    }
    wait_for_status(
        &agent,
        "flows have noticed that their slots were gone",
        |status| count(status, Counter::SlotsRevoked) > 0,
    );
    assert_eq!(count(&agent.status(), Counter::SlotsLeaked), 0);
}
