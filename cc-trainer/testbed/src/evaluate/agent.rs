//! Agents: a `cc-agent run` process for every policy that flows are served by.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs, io,
    io::Read,
    net::{Shutdown, SocketAddr},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use cc_core::status::FlowView;
use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal, kill},
    },
    unistd::{Pid, getppid},
};
use serde::Deserialize;

use super::scheme::{self, Control, Scheme};

/// The program that serves policies.
const PROGRAM: &str = "cc-agent";
/// Where agents have their status sockets.
const SOCKETS: &str = "/run/cc-agent";
/// How long an agent may take to load its policy and its datapath.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long an agent may take to unregister.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long an agent may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// What an error shows of a log, bytes from its end.
const LOG_SHOWN: usize = 1_200;

/// A running agent that serves one policy. It is stopped when this is dropped, and ends with this process, or
/// rather (prctl(2), PR_SET_PDEATHSIG) with the *thread* that started it.
#[derive(Debug)]
pub struct Agent {
    child: Mutex<Child>,
    control: String,
    socket: PathBuf,
    log: PathBuf,
}

/// The delays of a flow's decisions: from the end of a window to the publication of its decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delays {
    /// How many decisions there were.
    pub decisions: u64,
    /// Median, ms.
    pub p50_ms: f64,
    /// 99th percentile, ms.
    pub p99_ms: f64,
    /// Longest, ms.
    pub max_ms: f64,
}

/// Why there is no agent, or no answer from it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Its program is missing.
    #[error(
        "{} is not there; build it (`cargo build --release -p cc-agent`) or say where it is with --agent PATH",
        .0.display()
    )]
    Missing(PathBuf),
    /// It could not be started.
    #[error("starting {}: {source}", program.display())]
    Start {
        /// The program, or the log that it should write.
        program: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It has ended by itself.
    #[error("the agent for `{scheme}` has ended ({status}); the end of its log {}:\n{tail}", log.display())]
    Ended {
        /// What it served.
        scheme: String,
        /// How.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The log's end.
        tail: String,
    },
    /// It is running but not ready.
    #[error("the agent for `{scheme}` was not ready after {} s; the end of its log {}:\n{tail}", START_PATIENCE.as_secs(), log.display())]
    NotReady {
        /// What it serves.
        scheme: String,
        /// Its log.
        log: PathBuf,
        /// The log's end.
        tail: String,
    },
}

/// Finds the agent's program: the one given, or the one beside the running program.
///
/// # Errors
/// When it is not there.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf, AgentError> {
    let beside = || Some(env::current_exe().ok()?.with_file_name(PROGRAM));
    let program = given.map(Path::to_owned).or_else(beside);
    let program = program.unwrap_or_else(|| PROGRAM.into());
    match program.is_file() {
        true => Ok(program),
        false => Err(AgentError::Missing(program)),
    }
}

/// The agents of an evaluation by their schemes' names.
#[derive(Debug, Default)]
pub struct Agents(BTreeMap<String, Agent>);

impl Agents {
    /// Starts an agent for each scheme that is a policy and waits until all are ready. Their logs go to `logs`, their
    /// recordings, if any, to directories of the schemes' names in `record`.
    ///
    /// # Errors
    /// When one cannot be started, or ends instead of being ready.
    pub fn start<'a>(
        program: &Path,
        schemes: impl IntoIterator<Item = &'a Scheme>,
        logs: &Path,
        record: Option<&Path>,
    ) -> Result<Self, AgentError> {
        let mut agents = Self::default();
        for (number, scheme) in schemes.into_iter().enumerate() {
            let name = format!("rl{}x{number}", std::process::id());
            if let Some(arguments) = arguments(scheme, &name, record) {
                let agent = Agent::spawn(program, name, &arguments, logs, &scheme.name)?;
                agents.0.insert(scheme.name.clone(), agent);
            }
        }
        let deadline = Instant::now() + START_PATIENCE;
        for (scheme, agent) in &agents.0 {
            agent.wait_until_ready(scheme, deadline)?;
        }
        Ok(agents)
    }

    /// The agent that serves a scheme.
    pub fn get(&self, scheme: &str) -> Option<&Agent> {
        self.0.get(scheme)
    }

    /// Makes sure that all are still running.
    ///
    /// # Errors
    /// [`AgentError::Ended`].
    pub fn check(&self) -> Result<(), AgentError> {
        self.0
            .iter()
            .try_for_each(|(scheme, agent)| agent.check(scheme))
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // All at once, so that each has the time that the others take.
        for agent in self.0.values() {
            agent.terminate();
        }
    }
}

impl Agent {
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
        let socket = Path::new(SOCKETS).join(format!("{control}.sock"));
        let mut command = Command::new(program);
        command
            .args(arguments)
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(copy)
            // Ctrl-C is for this program, which stops its agents when it needs them no more.
            .process_group(0);
        let parent = Pid::this();
        // SAFETY: between fork and exec there are only system calls that are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                // Signals that this program takes in a thread of its own are blocked in all others.
                SigSet::empty().thread_set_mask()?;
                prctl::set_pdeathsig(Signal::SIGTERM)?;
                // The parent may have ended before the call above.
                match getppid() == parent {
                    true => Ok(()),
                    false => Err(io::ErrorKind::BrokenPipe.into()),
                }
            });
        }
        let child = command.spawn().map_err(start(program))?;
        Ok(Self {
            child: Mutex::new(child),
            control,
            socket,
            log,
        })
    }

    /// Name of the congestion control that it serves.
    pub fn control(&self) -> &str {
        &self.control
    }

    /// The delays of a live flow's decisions so far, at most 0.2 s old; none when the agent does not know the flow
    /// or has not decided for it.
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

    fn status(&self) -> io::Result<Status> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(serde_json::from_slice(&answer)?)
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
        let mut child = self.child();
        // Not after it was waited for: its number may be another's by then.
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

/// What the agent that serves a scheme under `name` is told; none for a scheme that is no policy.
fn arguments(scheme: &Scheme, name: &str, record: Option<&Path>) -> Option<Vec<OsString>> {
    let Control::Policy { spec, serving, .. } = &scheme.control else {
        return None;
    };
    let mut arguments: Vec<OsString> = ["run", "--plain", "--name", name].map(Into::into).into();
    arguments.extend(["--policy".into(), spec.to_string().into()]);
    if let Some(serving) = serving {
        arguments.extend(["--serving".into(), serving.to_string().into()]);
    }
    if let Some(record) = record {
        arguments.extend(["--record".into(), record.join(&scheme.name).into()]);
    }
    Some(arguments)
}

/// What is of use here of the agent's status (`cc-agent status --json`).
#[derive(Debug, Deserialize)]
struct Status {
    flows: Vec<FlowView>,
}

/// The end of a log, from the beginning of a line.
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
        // Ends at once, whatever its arguments, and says what they were.
        let program = Path::new("/bin/echo");
        let scheme = Scheme {
            name: "three".into(),
            control: Control::Policy {
                spec: PolicySpec::Fixed(3),
                serving: Some(ActionSelection::Softmax { temperature: 2.0 }),
                sha256: None,
            },
        };
        let error = Agents::start(program, [&scheme], logs.path(), Some(Path::new("recorded")));
        let text = error.expect_err("it ends").to_string();
        assert!(text.contains("`three` has ended"), "{text}");
        let told = "--policy fixed:3 --serving softmax:2 --record recorded/three";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn a_missing_program_comes_with_the_remedy() {
        let error = find(Some(Path::new("/nowhere/cc-agent"))).expect_err("it is not there");
        assert!(error.to_string().contains("--agent"), "{error}");
    }

    #[test]
    fn a_tail_begins_with_a_line() {
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
