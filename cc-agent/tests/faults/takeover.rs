//! An agent that takes over from a running one (`--takeover`), with flows that transfer and an
//! application that asks for the name throughout.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::unix::{net::UnixStream, process::ExitStatusExt},
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use aya::maps::{Array, Map, MapData, loaded_maps};
use cc_agent::kernel::datapath::registered;
use cc_client::fetch;
use cc_core::status::{Request, TakeoverStep};
use cc_ebpf::{Counter, LAYOUT_VERSION, Settings};
use cc_lab::{Agent, Cgroup, Flow, Footprint, Namespace, eventually};
use nix::sys::signal::Signal;
use socket2::{Domain, Socket, Type};

use crate::{
    BINARY,
    stage::{Stage, count, end, run_against, wait_for_decision, wait_for_status},
    steps::{Account, Plan, kill},
};

/// What the agents here have in common: a host that is slow to start them causes no fallback.
const PATIENT: [&str; 3] = ["--default", "--heartbeat-ms", "30000"];

/// Starts an agent that takes over from the stage's running one.
fn succeed(stage: &Stage, arguments: &[&str]) -> Agent {
    stage.spawn(&[&["--takeover"][..], arguments].concat(), |_| ())
}

/// Waits until a process is the one that answers on the stage's socket, or has ended.
fn serves_or_ends(agent: &mut Agent) -> Result<(), ExitStatus> {
    eventually("the successor served or ended", || {
        if let Some(status) = agent.has_ended() {
            return Some(Err(status));
        }
        let pid = agent.pid().as_raw() as u32;
        let status = fetch(agent.socket()).ok()?;
        (status.pid == pid).then_some(Ok(()))
    })
}

/// An application that makes sockets and asks for the name, again and again.
struct Application {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    /// Returns what it was refused.
    thread: Option<JoinHandle<Vec<String>>>,
}

impl Application {
    fn start(namespace: &Namespace, name: &str) -> Self {
        let (stop, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&asked));
        let name = name.to_owned();
        let thread = namespace.spawn(move || {
            let mut refused = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
                let socket = socket.expect("a free descriptor");
                let default = socket.tcp_congestion().expect("a socket of TCP");
                if default.split(|&byte| byte == 0).next() != Some(name.as_bytes()) {
                    refused.push(format!(
                        "the default is {}",
                        String::from_utf8_lossy(&default)
                    ));
                }
                if let Err(error) = socket.set_tcp_congestion(name.as_bytes()) {
                    refused.push(error.to_string());
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
            refused
        });
        Self {
            stop,
            asked,
            thread: Some(thread),
        }
    }

    /// Waits until it has asked a hundred times more.
    fn goes_on(&self) {
        let from = self.asked.load(Ordering::Relaxed);
        eventually("the application asked on", || {
            (self.asked.load(Ordering::Relaxed) >= from + 100).then_some(())
        });
    }

    /// Stops it. Returns how often it has asked, and what it was refused.
    fn end(mut self) -> (u64, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it was started");
        let refused = thread.join().expect("no panic");
        (self.asked.load(Ordering::Relaxed), refused)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn flows_and_name_go_on_while_agents_take_over() {
    let stage = Stage::new();
    let sender = &stage.network.path.sender;
    fn arguments(policy: &str) -> Vec<&str> {
        [&["--policy", policy][..], &PATIENT].concat()
    }
    let mut running = stage.start(&arguments("fixed:40"));
    let flow = stage.connect().sending();
    wait_for_decision(&running, &flow, 40);
    // Its children inherit what it has chosen, programs included.
    let listener = sender.within(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let socket = socket2::SockRef::from(&listener);
        socket
            .set_tcp_congestion(stage.name.as_bytes())
            .expect("it is registered");
        listener
    });
    let application = Application::start(sender, &stage.name);
    application.goes_on();
    let mut footprint = None;
    for cwnd in [30, 50, 20] {
        let policy = format!("fixed:{cwnd}");
        let mut successor = succeed(&stage, &arguments(&policy));
        let outcome = serves_or_ends(&mut successor);
        assert_eq!(outcome, Ok(()), "{}", successor.log());
        let (status, log) = running.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("has taken over"), "{log}");
        assert!(!log.contains("unregistered"), "{log}");
        running = successor;
        wait_for_decision(&running, &flow, cwnd);
        assert_eq!(flow.info().snd_cwnd, cwnd);
        flow.advance(200_000);
        application.goes_on();

        let status = running.status();
        assert_eq!(
            (status.adopted_flows, status.flows_on_former_programs),
            (1, 1),
            "{status}"
        );
        assert_eq!(count(&status, Counter::FallbacksEntered), 0, "{status}");
        assert_eq!(status.default.as_deref(), Some(&*stage.name), "{status}");
        let gap_ms = status.takeover_gap_ms.expect("it took over");
        println!("{gap_ms:.1} ms without a heartbeat");
        assert!(
            status.to_string().contains("on its BPF programs"),
            "{status}"
        );
        let new = stage.connect().sending();
        wait_for_decision(&running, &new, cwnd);
        assert_eq!(running.status().flows_on_former_programs, 1);
        drop(new);
        footprint.get_or_insert_with(|| Footprint::of(&stage.name));
        wait_for_status(&running, "one flow is left", |status| {
            status.live_flows == 1
        });
    }
    let (asked, refused) = application.end();
    println!("{asked} sockets had the name as their default and chose it");
    assert_eq!(refused, [""; 0], "of {asked}");
    assert!(flow.info().bytes_acked > 600_000);

    let child = sender.within(|| {
        let address = listener.local_addr().expect("it is bound");
        let client = std::net::TcpStream::connect(address).expect("it listens");
        let (server, _) = listener.accept().expect("it was connected");
        (Flow::from(client).sending(), Flow::from(server).sending())
    });
    assert_eq!(child.1.congestion_control(), stage.name);
    wait_for_status(
        &running,
        "the child has the programs of its listener",
        |status| status.flows_on_former_programs == 2,
    );
    drop((child, listener));

    let log = end(&mut running);
    stage.assert_restored(&log);
    flow.advance(100_000);
    drop(flow);
    footprint.expect("it was taken").assert_vanishes();
}

/// Whether the running agent goes on after a successor was killed. It has ended otherwise, or will:
/// what the two tell each other, and what they log, may be on its way.
fn goes_on(running: &mut Agent) -> bool {
    let mut first = None;
    eventually("the agent ends or decides on", || {
        if running.has_ended().is_some() {
            return Some(false);
        }
        let decisions = fetch(running.socket()).ok()?.agent.decisions;
        (decisions > *first.get_or_insert(decisions) + 2).then_some(true)
    })
}

pub(crate) fn a_successor_is_killed_at_each_step() {
    let stage = Stage::new();
    let arguments = [&["--policy", "fixed:20", "--slots", "8"][..], &PATIENT].concat();
    let mut running = stage.start(&arguments);
    let flow = stage.connect().sending();
    wait_for_decision(&running, &flow, 20);
    let mut account = Account::default();
    let (mut before, mut after) = (0, 0);
    for number in 0.. {
        let plan = Plan::at(number);
        plan.count(true);
        let arguments = [&["--takeover"][..], &arguments].concat();
        let mut successor = stage.spawn(&arguments, |command| plan.supervise(command, kill));
        let outcome = serves_or_ends(&mut successor);
        plan.count(false);
        let Err(status) = outcome else {
            let (status, log) = running.wait();
            assert_eq!(status.code(), Some(0), "{log}");
            wait_for_decision(&successor, &flow, 20);
            let log = end(&mut successor);
            stage.assert_restored(&log);
            break;
        };
        let step = plan.interrupted();
        let log = successor.log();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{step:?}: {log}");
        account.add(format!("{number}: {step:?}"));
        flow.advance(50_000);
        if !goes_on(&mut running) {
            // Beyond the point of no return: as if any agent had been killed.
            after += 1;
            let (status, log) = running.wait();
            assert_eq!(status.code(), Some(0), "{step:?}: {log}");
            stage.wait_for_the_name();
            running = stage.start(&arguments[1..]);
        } else {
            before += 1;
            assert!(registered(&stage.name), "{step:?}");
            assert_eq!(stage.default(), stage.name, "{step:?}");
        }
        let decisions = running.status().agent.decisions;
        wait_for_status(&running, "it decides on", |status| {
            status.agent.decisions > decisions + 2 && status.live_flows == 1
        });
        wait_for_decision(&running, &flow, 20);
    }
    println!("{before} steps before the agent ended, {after} after");
    assert!(
        before > 20 && after > 0,
        "{before} steps before, {after} after"
    );
}

/// A process that asks to take over as an agent does, up to some step.
fn pretend(agent: &Agent, steps: &[TakeoverStep]) -> (UnixStream, Vec<String>) {
    let mut stream = UnixStream::connect(agent.socket()).expect("it listens");
    let mut replies = BufReader::new(stream.try_clone().expect("a free descriptor")).lines();
    let mut said = Vec::new();
    let mut say = |line: String| {
        writeln!(stream, "{line}").expect("it listens");
        let reply = replies.next().expect("it answers");
        said.push(reply.expect("it is text"));
    };
    say(serde_json::to_string(&Request::TakeOver).expect("serialises"));
    for step in steps {
        say(serde_json::to_string(step).expect("serialises"));
    }
    (stream, said)
}

pub(crate) fn a_successor_that_does_not_serve_changes_nothing() {
    let stage = Stage::new();
    let mut agent = stage.start(&[&["--policy", "fixed:40"][..], &PATIENT].concat());
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 40);
    let decides_on = |agent: &Agent| {
        let decisions = agent.status().agent.decisions;
        wait_for_status(agent, "it decides on", |status| {
            status.agent.decisions > decisions + 2
        });
    };
    let (idle, said) = pretend(&agent, &[]);
    assert!(
        said[0].contains("CC_DECISIONS") && said[0].contains("link"),
        "{said:?}"
    );
    decides_on(&agent);
    let (_other, said) = pretend(&agent, &[]);
    assert!(said[0].contains("is taking over already"), "{said:?}");
    drop(idle);
    let stopped = eventually("the place is free again", || {
        let (stopped, said) = pretend(&agent, &[]);
        (!said[0].contains("refused")).then_some(stopped)
    });
    let mut stopped = stopped;
    let step = serde_json::to_string(&TakeoverStep::Release).expect("serialises");
    writeln!(stopped, "{step}").expect("it listens");
    // It does not serve in time, and is told so by the end of the connection.
    let news = wait_for_status(&agent, "the agent went on", |status| {
        let news = status.news.as_deref();
        news.is_some_and(|news| news.contains("was to take over and did not"))
    });
    assert_eq!(count(&news, Counter::FallbacksEntered), 0);
    let step = serde_json::to_string(&TakeoverStep::Confirm { default: true });
    let _ = writeln!(stopped, "{}", step.expect("serialises"));
    decides_on(&agent);
    assert_eq!(agent.has_ended(), None);
    assert_eq!(stage.default(), stage.name);
    let log = end(&mut agent);
    stage.assert_restored(&log);
}

pub(crate) fn a_successor_with_another_layout_is_refused() {
    let stage = Stage::new();
    let mut agent = stage.start(&[&["--policy", "fixed:40"][..], &PATIENT].concat());
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 40);
    set_layout(&stage.name, LAYOUT_VERSION + 1);
    let mut successor = succeed(&stage, &["--policy", "fixed:30"]);
    let (status, log) = successor.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    let theirs = format!("have layout {}", LAYOUT_VERSION + 1);
    assert!(
        log.contains(&theirs) && log.contains("without --takeover"),
        "{log}"
    );
    set_layout(&stage.name, LAYOUT_VERSION);
    // Neither is one of another name.
    let mut command = std::process::Command::new(BINARY);
    stage.network.path.sender.hold(&mut command);
    let mut other = Agent::spawn_by(command, "another", agent.socket(), &["--takeover"]);
    let (status, log) = other.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("they are not the maps of another"), "{log}");
    wait_for_decision(&agent, &flow, 40);
    let log = end(&mut agent);
    stage.assert_restored(&log);
}

/// Has the maps of an agent say that they have another layout.
fn set_layout(name: &str, layout: u32) {
    const BYTES: usize = size_of::<Settings>();
    let named = |info: &aya::maps::MapInfo| info.name_as_str() == Some("CC_SETTINGS");
    let maps = loaded_maps().flatten().filter(named);
    let mut changed = 0;
    for info in maps {
        let map = MapData::from_id(info.id()).and_then(Map::from_map_data);
        let map = map.expect("root may open it");
        let mut array: Array<MapData, [u8; BYTES]> = map.try_into().expect("it is an array");
        let mut settings: Settings = bytemuck::cast(array.get(&0, 0).expect("its only entry"));
        if settings.name.starts_with(name.as_bytes()) {
            settings.layout = layout;
            let written = array.set(0, bytemuck::cast::<_, [u8; BYTES]>(settings), 0);
            written.expect("root may write it");
            changed += 1;
        }
    }
    assert_eq!(changed, 1, "maps of {name}");
}

pub(crate) fn who_may_not_command_may_not_take_over() {
    let stage = Stage::new();
    let agent = stage.start(&["--policy", "fixed:40", "--socket-group", "65534"]);
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", BINARY]);
    let mut other = Agent::spawn_by(
        command,
        &stage.name,
        agent.socket(),
        &["--takeover", "--policy", "fixed:10", "--no-cage"],
    );
    let (status, log) = other.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("taking over is for root"), "{log}");
    assert!(
        agent.log().contains("uid 65534, process "),
        "{}",
        agent.log()
    );
    let (is_answered, status) = run_against(&agent, &["status"]);
    assert!(is_answered && status.contains("fixed:40"), "{status}");
}

/// Handed descriptors take the place of CAP_SYS_ADMIN, by which maps are found otherwise.
pub(crate) fn a_successor_needs_no_more_than_an_agent() {
    let stage = Stage::new();
    std::fs::set_permissions(
        stage.place(""),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .expect("it is ours");
    let copy = stage.place("cc-agent");
    std::fs::copy(BINARY, &copy).expect("copies");
    let start = |arguments: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        let sets = ["--inh-caps", "--ambient-caps", "--bounding-set"];
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(sets.map(|set| format!("{set}=-all,+bpf,+perfmon")));
        command.arg("--no-new-privs").arg(&copy);
        Agent::spawn_by(command, &stage.name, &stage.place("agent.sock"), arguments)
    };
    let mut first = start(&["--policy", "fixed:40", "--heartbeat-ms", "30000"]);
    assert_eq!(first.answers_or_ends(), Ok(()), "{}", first.log());
    let flow = stage.connect().sending();
    wait_for_decision(&first, &flow, 40);
    let mut second = start(&[
        "--takeover",
        "--policy",
        "fixed:30",
        "--heartbeat-ms",
        "30000",
    ]);
    let outcome = serves_or_ends(&mut second);
    assert_eq!(outcome, Ok(()), "{}", second.log());
    wait_for_decision(&second, &flow, 30);
    let status = second.status();
    assert_eq!(status.adopted_flows, 1, "{status}");
    assert_eq!(count(&status, Counter::FallbacksEntered), 0, "{status}");
    assert_eq!(status.capabilities.as_deref(), Some("none"));
    let (status, log) = first.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    end(&mut second);
}

pub(crate) fn without_a_running_agent_it_just_starts() {
    let stage = Stage::new();
    let mut agent = stage.start(&["--takeover", "--policy", "fixed:40"]);
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 40);
    assert_eq!(agent.status().takeover_gap_ms, None);
    agent.end(Signal::SIGKILL);
    stage.wait_for_the_name();
    // A dead one's socket is no running agent.
    let mut agent = stage.start(&["--takeover", "--policy", "fixed:30"]);
    wait_for_decision(&agent, &flow, 30);
    assert_eq!(agent.status().adopted_flows, 1);
    end(&mut agent);
}

pub(crate) fn what_a_successor_does_not_ask_for_is_undone() {
    let stage = Stage::new();
    let cgroup = match Cgroup::new() {
        Ok(cgroup) => cgroup,
        Err(reason) => {
            eprintln!("SKIPPED: {reason}");
            return;
        }
    };
    let address = stage.network.address();
    let sender = &stage.network.path.sender;
    let inside = || {
        let flow = cgroup.within(|| Flow::connect_without_choice(sender, address));
        flow.congestion_control()
    };
    let directory = cgroup.directory().to_str().expect("it is ASCII").to_owned();
    let with = ["--policy", "fixed:40", "--cgroup", &directory];
    let mut first = stage.start(&[&with[..], &PATIENT].concat());
    assert_eq!(
        (stage.default(), inside()),
        (stage.name.clone(), stage.name.clone())
    );
    // The cgroup stays, the default does not.
    let mut second = succeed(&stage, &with);
    assert_eq!(serves_or_ends(&mut second), Ok(()), "{}", second.log());
    let (status, log) = first.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_ne!(stage.default(), stage.name, "{log}");
    assert_eq!(inside(), stage.name);
    let mut third = succeed(&stage, &["--policy", "fixed:40"]);
    assert_eq!(serves_or_ends(&mut third), Ok(()), "{}", third.log());
    second.wait();
    assert_ne!(inside(), stage.name);
    let log = end(&mut third);
    stage.assert_restored(&log);
}

pub(crate) fn a_recording_goes_on_in_files_of_the_successor() {
    let stage = Stage::new();
    let directory = stage.place("recorded");
    let directory = directory.to_str().expect("it is ASCII");
    let arguments = ["--policy", "fixed:40", "--record", directory];
    let mut first = stage.start(&arguments);
    let flow = stage.connect().sending();
    let has_rows = |status: &cc_core::status::Snapshot| status.agent.decisions > 5;
    wait_for_status(&first, "it decided", has_rows);
    let mut second = succeed(&stage, &arguments);
    assert_eq!(serves_or_ends(&mut second), Ok(()), "{}", second.log());
    wait_for_status(&second, "it decided", has_rows);
    first.wait();
    drop(flow);
    end(&mut second);
    let files = cc_recording::files(std::path::Path::new(directory)).expect("it is readable");
    assert_eq!(files.len(), 2, "{files:?}");
    for file in files {
        let (_, rows) = cc_recording::read(&file).expect("it is complete");
        let rows = rows.flatten().count();
        assert!(rows > 3, "{}: {rows} rows", file.display());
    }
}
