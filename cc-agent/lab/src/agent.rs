//! The agent's binary as a child process.

use std::{
    io::{BufRead, BufReader},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cc_client::{fetch, fetch_within};
use cc_core::status::Snapshot;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Namespace, Outcome, eventually, eventually::PATIENCE};

/// A running `cc-agent run --plain`, with a status socket of its own in the temporary directory.
/// It is killed when it is dropped.
pub struct Agent {
    child: Child,
    name: String,
    socket: PathBuf,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// Time in which an agent has to have registered its name: systemd's `TimeoutStartSec`. Links that
/// keep all processors in interrupts have delayed it by 36 s.
const START: Duration = Duration::from_secs(90);

/// The variable that allows a policy more time for a batch, in ms, on machines that are too slow
/// for the default: emulated ones.
const BATCH_BUDGET: &str = "CC_LAB_BATCH_BUDGET_MS";

/// The variable that lets agents have no capabilities but those that their systemd unit grants.
const AS_UNIT: &str = "CC_LAB_AS_UNIT";

/// The agent's unit, for its capabilities.
const UNIT: &str = include_str!("../../systemd/cc-agent.service");

/// The command that runs the agent's binary: with `CC_LAB_AS_UNIT`, under the unit's bounding set
/// and without new privileges. The user stays the same, so that it can read what tests prepare.
fn command_of(binary: &str) -> Command {
    if std::env::var_os(AS_UNIT).is_none() {
        return Command::new(binary);
    }
    let granted = (UNIT.lines())
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .expect("the unit bounds its capabilities");
    let granted: String = (granted.split_whitespace())
        .map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let mut command = Command::new("setpriv");
    command.arg(format!("--bounding-set=-all{granted}"));
    command.args(["--no-new-privs", binary]);
    command
}

/// Returns, where agents have only the capabilities of their unit (`CC_LAB_AS_UNIT`), the outcome
/// of a trial that needs more, for the given reason; otherwise `None`.
pub fn beyond_unit(reason: &str) -> Option<Outcome> {
    std::env::var_os(AS_UNIT)?;
    Some(Outcome::Undecided(format!(
        "the unit does not grant {reason}"
    )))
}

/// Returns whether this machine is too slow for the embedded policy to answer hundreds of flows in
/// time, as emulated ones are.
pub fn is_slow() -> bool {
    std::env::var_os(BATCH_BUDGET).is_some()
}

/// Returns the option for that, unless the arguments have it.
fn patience(arguments: &[&str]) -> Vec<String> {
    let option = "--batch-budget-ms";
    match std::env::var(BATCH_BUDGET) {
        Ok(ms) if !arguments.contains(&option) => vec![option.to_owned(), ms],
        _ => Vec::new(),
    }
}

/// Path of the agent's program beside a program of another package.
///
/// # Errors
///
/// Returns the reason, with its remedy, when there is none that can load its datapath here.
pub fn agent_beside(program: &str) -> Result<PathBuf, String> {
    let agent = Path::new(program).with_file_name("cc-agent");
    let name = format!("rlt{}", std::process::id());
    let works = Command::new(&agent)
        .args(["run", "--plain", "--policy", "fixed:3"])
        .args(["--duration", "0.1", "--name", &name, "--socket"])
        .arg(std::env::temp_dir().join(format!("{name}.sock")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match works {
        Ok(status) if status.success() => Ok(agent),
        _ => Err(
            "no cc-agent that runs here beside cc-trainer (`cargo xtask build` makes it)".into(),
        ),
    }
}

impl Agent {
    /// Starts `binary run --name NAME ARGUMENTS` and waits until its status socket answers, which
    /// is when the congestion control is registered.
    ///
    /// # Panics
    ///
    /// Panics with the agent's log if it ends before that, or does not answer within 90 s.
    pub fn start(binary: &str, name: &str, arguments: &[&str]) -> Self {
        Self::launch(command_of(binary), name, arguments).registered()
    }

    /// Starts it as [`Self::start`] does, in a network namespace.
    ///
    /// # Panics
    ///
    /// Panics with the agent's log if it ends before it is registered, or does not answer within
    /// 90 s.
    pub fn start_in(namespace: &Namespace, binary: &str, name: &str, arguments: &[&str]) -> Self {
        let mut command = command_of(binary);
        namespace.hold(&mut command);
        Self::launch(command, name, arguments).registered()
    }

    /// Starts it as [`Self::start`] does, by a command whose last argument is the binary.
    ///
    /// # Panics
    ///
    /// Panics with the agent's log if it ends before it is registered, or does not answer within
    /// 90 s.
    pub fn start_by(command: Command, name: &str, arguments: &[&str]) -> Self {
        Self::launch(command, name, arguments).registered()
    }

    /// Starts it as [`Self::start`] does, but returns at once.
    ///
    /// # Panics
    ///
    /// Panics if the binary cannot be started.
    pub fn spawn(binary: &str, name: &str, arguments: &[&str]) -> Self {
        Self::launch(command_of(binary), name, arguments)
    }

    /// Starts it by a command whose last argument is the binary, with this status socket, and
    /// returns at once.
    ///
    /// # Panics
    ///
    /// Panics if the binary cannot be started.
    pub fn spawn_by(mut command: Command, name: &str, socket: &Path, arguments: &[&str]) -> Self {
        let socket = socket.to_owned();
        let mut child = command
            .args(["run", "--plain", "--name", name, "--socket"])
            .arg(&socket)
            .args(arguments)
            .args(patience(arguments))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let lines = log.clone();
        let reader = thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut log = lines.lock().expect("no panic while it is held");
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self {
            child,
            name: name.to_owned(),
            socket,
            log,
            reader: Some(reader),
        }
    }

    fn launch(command: Command, name: &str, arguments: &[&str]) -> Self {
        let socket = std::env::temp_dir().join(format!("{name}-{}.sock", super::next_number()));
        Self::spawn_by(command, name, &socket, arguments)
    }

    /// Waits until its status socket answers, which is when the congestion control is registered.
    ///
    /// # Errors
    ///
    /// Returns its exit status when it ends instead.
    ///
    /// # Panics
    ///
    /// Panics if neither happens within 30 s.
    pub fn answers_or_ends(&mut self) -> Result<(), ExitStatus> {
        eventually("the agent answered or ended", || {
            if let Some(status) = self.has_ended() {
                return Some(Err(status));
            }
            fetch(&self.socket).is_ok().then_some(Ok(()))
        })
    }

    /// Returns its exit status if it has ended.
    ///
    /// # Panics
    ///
    /// Panics if the operating system does not tell.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our child")
    }

    /// Returns its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    fn registered(mut self) -> Self {
        let started = Instant::now();
        while fetch(&self.socket).is_err() {
            let ended = self.has_ended();
            assert!(ended.is_none(), "the agent ended: {}", self.log());
            assert!(
                started.elapsed() < START,
                "the agent has not registered its name in {} s: {}",
                START.as_secs(),
                self.log()
            );
            thread::sleep(Duration::from_millis(5));
        }
        self
    }

    /// Returns the path of its status socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks it for its status.
    ///
    /// # Panics
    ///
    /// Panics if the agent does not answer within 30 s.
    pub fn status(&self) -> Snapshot {
        fetch_within(&self.socket, PATIENCE).expect("a running agent answers")
    }

    /// Returns what it has written to standard error so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no panic while it is held").clone()
    }

    /// Sets how many descriptors the agent may have from now on (the soft `RLIMIT_NOFILE`); those
    /// that are open stay so.
    ///
    /// # Panics
    ///
    /// Panics if the limit cannot be set.
    pub fn limit_descriptors(&self, soft: u64) {
        let pid = self.pid().as_raw();
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        let (nothing, present) = (std::ptr::null(), &raw mut limit);
        // SAFETY: the place for the present limit outlives the call.
        let read = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, nothing, present) };
        limit.rlim_cur = soft.min(limit.rlim_max);
        let nowhere = std::ptr::null_mut();
        // SAFETY: the new limit outlives the call.
        let set = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, nowhere) };
        let error = std::io::Error::last_os_error();
        assert_eq!((read, set), (0, 0), "prlimit: {error}");
    }

    /// Sends a signal to the agent's process.
    ///
    /// # Panics
    ///
    /// Panics if the agent has ended and been waited for.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("our child");
    }

    /// Sends it a signal and waits for its end, without a limit. Returns its exit status and its
    /// log.
    ///
    /// # Panics
    ///
    /// Panics if the agent has ended and been waited for.
    pub fn end(&mut self, signal: Signal) -> (ExitStatus, String) {
        self.signal(signal);
        self.wait()
    }

    /// Waits for its end, without a limit. Returns its exit status and its log.
    ///
    /// # Panics
    ///
    /// Panics if the operating system cannot wait for the process.
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let status = self.child.wait().expect("our child");
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        (status, self.log())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.wait();
        // Another agent may have taken over.
        if UnixStream::connect(&self.socket).is_err() {
            let _ = std::fs::remove_file(&self.socket);
        }
        // What it remembers of reloaded policies; tests of that choose another directory.
        let _ = std::fs::remove_file(
            self.socket
                .with_file_name(&self.name)
                .with_extension("policy"),
        );
        let ledger = self
            .socket
            .with_file_name(format!("{}.policies", self.name));
        let _ = std::fs::remove_file(&ledger);
        let _ = std::fs::remove_dir_all(ledger.with_extension("policies.d"));
    }
}
