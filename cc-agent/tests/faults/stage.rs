//! A host whose settings are watched: a path between network namespaces, of which the sender's has
//! a default congestion control of its own, and a directory for what agents leave behind.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cc_agent::kernel::datapath::registered;
use cc_core::status::Snapshot;
use cc_ebpf::{Counter, Mode};
use cc_lab::{Agent, Bottleneck, Flow, Network, eventually, links_register, unique_name};
use nix::{sys::signal::Signal, unistd::Pid};
use tempfile::TempDir;

use crate::BINARY;

/// A queue that the fixed cwnds of these tests do not fill.
const ROOMY: Bottleneck = Bottleneck {
    rate_mbit: 20,
    queue_bytes: 1_000_000,
};

/// The default congestion control of a network namespace.
const DEFAULT: &str = "net/ipv4/tcp_congestion_control";
/// What the administrator has chosen for the sender.
const CHOSEN: &str = "reno";

pub(crate) struct Stage {
    pub(crate) network: Network,
    pub(crate) name: String,
    directory: TempDir,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::through(ROOMY)
    }

    pub(crate) fn through(bottleneck: Bottleneck) -> Self {
        let directory = TempDir::new().expect("a directory for the test");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("it is ours");
        let network = Network::through(bottleneck);
        network.path.sender.set_sysctl(DEFAULT, CHOSEN);
        Self {
            network,
            name: unique_name(),
            directory,
        }
    }

    /// A place for a file in the agents' directory.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts an agent in the sender's namespace by a command that `prepare` has changed, and
    /// returns at once.
    pub(crate) fn spawn(&self, arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Agent {
        self.spawn_at(&self.place("agent.sock"), arguments, prepare)
    }

    /// Does what [`Self::spawn`] does, with another socket.
    pub(crate) fn spawn_at(
        &self,
        socket: &Path,
        arguments: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Agent {
        let mut command = Command::new(BINARY);
        self.network.path.sender.hold(&mut command);
        prepare(&mut command);
        Agent::spawn_by(command, &self.name, socket, arguments)
    }

    /// Does what [`Self::spawn`] does, with the log in this file.
    pub(crate) fn spawn_to(&self, log: &Path, arguments: &[&str]) -> Agent {
        self.spawn(arguments, |command| {
            let mut shell = Command::new("sh");
            let script = format!("exec \"$@\" 2>> {}", log.display());
            shell.args(["-c", &script, "sh", BINARY]);
            self.network.path.sender.hold(&mut shell);
            *command = shell;
        })
    }

    /// Starts an agent in the sender's namespace and waits until it serves.
    pub(crate) fn start(&self, arguments: &[&str]) -> Agent {
        let mut agent = self.spawn(arguments, |_| ());
        let outcome = agent.answers_or_ends();
        assert_eq!(outcome, Ok(()), "{}", agent.log());
        agent
    }

    pub(crate) fn connect(&self) -> Flow {
        self.network.connect(&self.name)
    }

    /// The default congestion control of the sender.
    pub(crate) fn default(&self) -> String {
        self.network.path.sender.sysctl(DEFAULT)
    }

    /// Runs `cc-agent restore` for the stage's agents.
    pub(crate) fn restore(&self) {
        let mut command = Command::new(BINARY);
        command.args(["restore", "--name", &self.name, "--socket"]);
        command.arg(self.place("agent.sock"));
        self.network.path.sender.hold(&mut command);
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
    }

    /// Waits until the kernel has unregistered the name of an agent that was killed. Without links
    /// it stays until the next one starts.
    pub(crate) fn wait_for_the_name(&self) {
        if links_register() {
            eventually("the kernel unregistered the name", || {
                (!registered(&self.name)).then_some(())
            });
        }
    }

    /// The names of the files that agents have left.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        names(self.directory.path())
    }

    /// Asserts that the host is as the administrator has left it.
    pub(crate) fn assert_restored(&self, log: &str) {
        assert_eq!(self.default(), CHOSEN, "{log}");
        assert!(!registered(&self.name), "{log}");
        assert_eq!(self.left_behind(), [""; 0], "{log}");
    }
}

/// The names in a directory, sorted.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.flatten().map(name).collect();
    names.sort();
    names
}

/// Waits for a status that `accept` accepts, and shows the last one when none comes.
pub(crate) fn wait_for_status(
    agent: &Agent,
    what: &str,
    accept: impl Fn(&Snapshot) -> bool,
) -> Snapshot {
    let mut last = ShownInPanic(None);
    eventually(what, || {
        let status = agent.status();
        last.0 = Some(status.clone());
        accept(&status).then_some(status)
    })
}

struct ShownInPanic(Option<Snapshot>);

impl Drop for ShownInPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last status: {:#?}", self.0);
        }
    }
}

/// Waits until a decision of the agent has set the flow's cwnd.
pub(crate) fn wait_for_decision(agent: &Agent, flow: &Flow, cwnd: u32) {
    let what = format!("the cwnd was decided to be {cwnd}");
    wait_for_status(agent, &what, |status| {
        let view = status.flows.iter().find(|view| view.local == flow.local());
        view.is_some_and(|view| (view.mode, view.cwnd) == (Mode::Decided, cwnd))
    });
}

pub(crate) fn count(status: &Snapshot, counter: Counter) -> u64 {
    let count = status.datapath.get(counter.name());
    *count.unwrap_or_else(|| panic!("no {} in {status:?}", counter.name()))
}

/// Ends an agent in good order.
pub(crate) fn end(agent: &mut Agent) -> String {
    let (status, log) = agent.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0), "{log}");
    log
}

/// The processes of policies that an agent has started, the newest last.
pub(crate) fn policies(agent: &Agent) -> Vec<Pid> {
    let pid = |line: &str| {
        let (_, rest) = line.split_once("runs in process ")?;
        rest.split(';').next()?.parse().ok()
    };
    let log = agent.log();
    log.lines().filter_map(pid).map(Pid::from_raw).collect()
}

/// Runs a subcommand against a running agent, and returns whether it succeeded and its output.
pub(crate) fn run_against(agent: &Agent, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(BINARY);
    command.args(arguments).arg("--socket").arg(agent.socket());
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.success(), text)
}
