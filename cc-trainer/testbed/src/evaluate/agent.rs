//! Agents that serve policies: one `cc-agent run` process per policy.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs, io,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{self, Child, ExitStatus, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cc_client::{StatusError, fetch_within};
use cc_core::status::{Command, Snapshot, default_socket};
use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal, kill},
    },
    unistd::{Pid, getppid},
};

use super::scheme::{self, ServedPolicy};

/// File name of the program that serves policies.
const PROGRAM: &str = "cc-agent";
/// Time that an agent has to load its policy and its datapath.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Time that an agent has to unregister before it is killed.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// Time that an agent has to answer a status request.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a log, from its end, that an error message shows at most.
const LOG_SHOWN: usize = 1_200;

/// A running agent that serves one policy.
///
/// It is stopped when this value is dropped. It also ends with this process, or more precisely with
/// the *thread* that started it (prctl(2), `PR_SET_PDEATHSIG`).
#[derive(Debug)]
pub struct Agent {
    child: Mutex<Child>,
    /// Whether it was asked to end. It would take a second signal as an order to end at once, in
    /// the middle of its recording.
    asked_to_end: AtomicBool,
    control: String,
    socket: PathBuf,
    log: PathBuf,
}

/// Delays of one flow's decisions, each from the end of the observation window to the publication
/// of the decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delays {
    /// Number of decisions so far.
    pub decisions: u64,
    /// Median of the delays, ms.
    pub p50_ms: f64,
    /// 99th percentile of the delays, ms.
    pub p99_ms: f64,
    /// Longest of the delays, ms.
    pub max_ms: f64,
}

/// Errors of starting an agent, or of one that ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The program does not exist at this path.
    #[error(
        "{} is not there; build it (`cargo build --release -p cc-agent`) or say where it is with \
         --agent PATH",
        .0.display()
    )]
    Missing(PathBuf),
    /// The process or its log could not be created.
    #[error("starting {}: {source}", program.display())]
    Start {
        /// Path of the program, or of its log.
        program: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The agent's process ended on its own.
    #[error(
        "the agent for `{scheme}` has ended ({status}); the end of its log {}:\n{tail}",
        log.display()
    )]
    Ended {
        /// Name of the scheme that it served.
        scheme: String,
        /// Exit status of the process.
        status: ExitStatus,
        /// Path of the agent's log.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },
    /// The agent runs, but was not ready to serve in time.
    #[error(
        "the agent for `{scheme}` was not ready after {} s; the end of its log {}:\n{tail}",
        START_PATIENCE.as_secs(),
        log.display()
    )]
    NotReady {
        /// Name of the scheme that it serves.
        scheme: String,
        /// Path of the agent's log.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },
}

/// Finds the agent's program: `given`, or else the one beside the running program.
///
/// # Errors
///
/// Returns [`AgentError::Missing`] when there is no such file.
pub fn find(given: Option<&Path>) -> Result<PathBuf, AgentError> {
    let beside = || Some(env::current_exe().ok()?.with_file_name(PROGRAM));
    let program = given.map(Path::to_owned).or_else(beside);
    let program = program.unwrap_or_else(|| PROGRAM.into());
    match program.is_file() {
        true => Ok(program),
        false => Err(AgentError::Missing(program)),
    }
}

/// Agents of an evaluation, by the names of their schemes.
#[derive(Debug, Default)]
pub struct Agents(BTreeMap<String, Agent>);

impl Agents {
    /// Starts an agent for each policy, given with the name of its scheme, and waits until all are
    /// ready. The agents log to files in `logs`; with `record`, each one records to a subdirectory
    /// that has the scheme's name.
    ///
    /// # Errors
    ///
    /// Returns an error when an agent cannot be started, or when it ends or is not ready in time.
    pub fn start<'a>(
        program: &Path,
        policies: impl IntoIterator<Item = (&'a str, &'a ServedPolicy)>,
        logs: &Path,
        record: Option<&Path>,
    ) -> Result<Self, AgentError> {
        let mut agents = Self::default();
        for (number, (scheme, policy)) in policies.into_iter().enumerate() {
            let name = format!("rl{}x{number}", process::id());
            let mut arguments = arguments(policy, &name);
            if let Some(record) = record {
                arguments.extend(["--record".into(), record.join(scheme).into()]);
            }
            let agent = Agent::spawn(program, name, &arguments, logs, scheme)?;
            agents.0.insert(scheme.to_owned(), agent);
        }
        let deadline = Instant::now() + START_PATIENCE;
        for (scheme, agent) in &agents.0 {
            agent.wait_until_ready(scheme, deadline)?;
        }
        Ok(agents)
    }

    /// The agent that serves the named scheme; `None` for a scheme without an agent.
    pub fn get(&self, scheme: &str) -> Option<&Agent> {
        self.0.get(scheme)
    }

    /// Checks that all agents are still running.
    ///
    /// # Errors
    ///
    /// Returns [`AgentError::Ended`] for the first agent whose process has ended.
    pub fn check(&self) -> Result<(), AgentError> {
        self.0
            .iter()
            .try_for_each(|(scheme, agent)| agent.check(scheme))
    }
}

impl FromIterator<(String, Agent)> for Agents {
    /// Agents that run already, each with the name of its scheme.
    fn from_iter<T: IntoIterator<Item = (String, Agent)>>(agents: T) -> Self {
        Self(agents.into_iter().collect())
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // Signals all agents before waiting for any, so that they shut down in parallel.
        for agent in self.0.values() {
            agent.terminate();
        }
    }
}

impl Agent {
    /// Starts an agent of its own for a policy, beside those of evaluations, and waits until it is
    /// ready. `program` is its path, `None` for the one beside this program; `name` that of its
    /// congestion control; `options` are further options of `cc-agent run`. It logs to a file in
    /// `logs`.
    ///
    /// # Errors
    ///
    /// Returns an error when it cannot be started, or when it ends or is not ready in time.
    pub fn start(
        program: Option<&Path>,
        name: &str,
        policy: &ServedPolicy,
        options: &[OsString],
        logs: &Path,
    ) -> Result<Self, AgentError> {
        let program = find(program)?;
        let mut arguments = arguments(policy, name);
        arguments.extend_from_slice(options);
        let agent = Self::spawn(&program, name.to_owned(), &arguments, logs, name)?;
        agent.wait_until_ready(name, Instant::now() + START_PATIENCE)?;
        Ok(agent)
    }

    /// Sends a command, and returns what was done.
    ///
    /// # Errors
    ///
    /// Returns an error when the agent does not answer, or refuses the command.
    pub fn command(&self, command: Command) -> Result<String, StatusError> {
        cc_client::command(&self.socket, command)
    }

    /// The agent's state.
    ///
    /// # Errors
    ///
    /// Returns an error when the agent does not answer in time.
    pub fn status(&self) -> Result<Snapshot, StatusError> {
        fetch_within(&self.socket, ANSWER_PATIENCE)
    }

    fn spawn(
        program: &Path,
        control: String,
        arguments: &[OsString],
        logs: &Path,
        scheme: &str,
    ) -> Result<Self, AgentError> {
        let log = logs.join(format!("agent.{scheme}.log"));
        let start = |program: &Path| {
            let program = program.to_owned();
            move |source| AgentError::Start { program, source }
        };
        let output = fs::File::create(&log).map_err(start(&log))?;
        let copy = output.try_clone().map_err(start(&log))?;
        let socket = default_socket(&control);
        let mut command = process::Command::new(program);
        command
            .args(arguments)
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(copy)
            // Ctrl-C interrupts this program alone, which then stops its agents itself.
            .process_group(0);
        let parent = Pid::this();
        // SAFETY: between fork and exec there are only system calls that are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                // The child inherits the calling thread's signal mask, and this program blocks the
                // signals that a thread of its own handles.
                SigSet::empty().thread_set_mask()?;
                prctl::set_pdeathsig(Signal::SIGTERM)?;
                // The parent may have ended before the call above, which would then have no effect.
                match getppid() == parent {
                    true => Ok(()),
                    false => Err(io::ErrorKind::BrokenPipe.into()),
                }
            });
        }
        let child = command.spawn().map_err(start(program))?;
        Ok(Self {
            child: Mutex::new(child),
            asked_to_end: AtomicBool::new(false),
            control,
            socket,
            log,
        })
    }

    /// Name of the congestion control under which the agent serves its policy.
    pub fn control(&self) -> &str {
        &self.control
    }

    /// Delays of a live flow's decisions so far, at most 0.2 s old; `None` when the agent does not
    /// answer, does not know the flow or has not decided for it yet.
    pub fn delays(&self, local: SocketAddr, remote: SocketAddr) -> Option<Delays> {
        let status = self.status().ok()?;
        let flow = status
            .flows
            .into_iter()
            .find(|flow| (flow.local, flow.remote) == (local, remote) && flow.decisions > 0)?;
        Some(Delays {
            decisions: flow.decisions,
            p50_ms: flow.decision_delay_p50_ms,
            p99_ms: flow.decision_delay_p99_ms,
            max_ms: flow.decision_delay_max_ms,
        })
    }

    fn wait_until_ready(&self, scheme: &str, deadline: Instant) -> Result<(), AgentError> {
        let ready = || {
            let registered = scheme::available().contains(&self.control);
            registered && self.status().is_ok()
        };
        while !ready() {
            self.check(scheme)?;
            if Instant::now() > deadline {
                return Err(AgentError::NotReady {
                    scheme: scheme.to_owned(),
                    log: self.log.clone(),
                    tail: tail(&self.log),
                });
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn check(&self, scheme: &str) -> Result<(), AgentError> {
        let Ok(Some(status)) = self.child().try_wait() else {
            return Ok(());
        };
        Err(AgentError::Ended {
            scheme: scheme.to_owned(),
            status,
            log: self.log.clone(),
            tail: tail(&self.log),
        })
    }

    fn terminate(&self) {
        if self.asked_to_end.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut child = self.child();
        // A process that was waited for must not be signalled: its id may have been reused.
        if let Ok(None) = child.try_wait() {
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
        }
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.terminate();
        let deadline = Instant::now() + END_PATIENCE;
        let mut child = self.child();
        while let Ok(None) = child.try_wait() {
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Command-line arguments of the agent that serves `policy` as the congestion control `name`.
fn arguments(policy: &ServedPolicy, name: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["run", "--plain", "--name", name].map(Into::into).into();
    arguments.extend(["--policy".into(), policy.spec.to_string().into()]);
    if let Some(serving) = policy.serving {
        arguments.extend(["--serving".into(), serving.to_string().into()]);
    }
    if let Some(gain) = policy.pacing_gain {
        arguments.extend(["--pacing-gain".into(), gain.to_string().into()]);
    }
    arguments
}

/// The last [`LOG_SHOWN`] bytes of a log at most, from the beginning of a line.
fn tail(log: &Path) -> String {
    let text = match fs::read(log) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("(it cannot be read: {error})"),
    };
    let text = text.trim_end();
    let from = text.len().saturating_sub(LOG_SHOWN);
    match text.get(from..) {
        Some(text) if from == 0 => text.to_owned(),
        _ => text
            .char_indices()
            .find(|&(at, letter)| at >= from && letter == '\n')
            .map_or_else(|| text.to_owned(), |(at, _)| text[at + 1..].to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use cc_core::policy::{ActionSelection, PolicySpec};

    use super::*;

    #[test]
    fn an_agent_that_ends_shows_its_log() {
        let logs = tempfile::tempdir().expect("a scratch directory");
        // Prints its arguments to the log and ends at once.
        let program = Path::new("/bin/echo");
        let policy = ServedPolicy {
            spec: PolicySpec::Fixed(3),
            serving: Some(ActionSelection::Softmax { temperature: 2.0 }),
            sha256: None,
            pacing_gain: Some(1.25),
        };
        let record = Some(Path::new("recorded"));
        let error = Agents::start(program, [("three", &policy)], logs.path(), record);
        let text = error.expect_err("it ends").to_string();
        assert!(text.contains("`three` has ended"), "{text}");
        let expected = "--policy fixed:3 --serving softmax:2 --pacing-gain 1.25 \
                        --record recorded/three";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn an_agent_is_asked_to_end_once() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let (ready, heard) = (scratch.path().join("ready"), scratch.path().join("heard"));
        let script = format!(
            "trap 'echo asked >> {heard}' TERM; : > {ready}; until [ -s {heard} ]; do sleep 0.05; \
             done; sleep 0.3",
            heard = heard.display(),
            ready = ready.display(),
        );
        let child = process::Command::new("sh")
            .args(["-c", &script])
            .spawn()
            .expect("a shell");
        let agent = Agent {
            child: Mutex::new(child),
            asked_to_end: AtomicBool::new(false),
            control: "rlcc".to_owned(),
            socket: PathBuf::new(),
            log: PathBuf::new(),
        };
        while !ready.exists() {
            thread::sleep(Duration::from_millis(10));
        }
        drop(Agents(BTreeMap::from([("rlcc".to_owned(), agent)])));
        assert_eq!(fs::read_to_string(&heard).expect("it was asked"), "asked\n");
    }

    #[test]
    fn a_missing_program_is_an_error_with_a_remedy() {
        let error = find(Some(Path::new("/nowhere/cc-agent"))).expect_err("it is not there");
        assert!(error.to_string().contains("--agent"), "{error}");
    }

    #[test]
    fn the_tail_of_a_log_begins_with_a_whole_line() {
        let log = tempfile::NamedTempFile::new().expect("a scratch file");
        fs::write(log.path(), "short\n").expect("it is ours");
        assert_eq!(tail(log.path()), "short");
        let lines: String = (0..500).map(|n| format!("line {n} \u{e9}\n")).collect();
        fs::write(log.path(), lines).expect("it is ours");
        let tail = tail(log.path());
        assert!(
            tail.starts_with("line ") && tail.ends_with("line 499 \u{e9}"),
            "{tail}"
        );
        assert!(tail.len() <= LOG_SHOWN);
    }
}
