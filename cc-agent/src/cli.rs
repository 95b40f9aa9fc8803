//! The command line of cc-agent and its subcommands.

use std::{
    env,
    io::{self, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf, absolute},
    process::{self, ExitCode, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tracing::warn;

use crate::{
    bundle::BundleOptions,
    follow::FollowOptions,
    kernel::{host, priority, sysctl},
    logging,
    metrics::MetricsOptions,
    observe::ObserveOptions,
    options::RunOptions,
    pods::PodsOptions,
    policy_server::PolicyServerOptions,
    publish::PublishOptions,
    serve,
    ship::ShipOptions,
    trace,
    view::{self, Filter, Sort, ViewState},
};
use cc_channel::SigningKey;
use cc_client::{StatusError, fetch, fetch_flows, fetch_within};
use cc_core::{
    canary::{CanaryBy, Finding},
    policy::{PolicyFile, PolicySpec},
    status::{self, CanaryStatus, Health, default_socket},
};

/// Time between two looks at an agent that is started in the background.
const DETACH_PERIOD: Duration = Duration::from_millis(10);
/// Time between two looks at a canary that is waited for.
const CONCLUDE_PERIOD: Duration = Duration::from_secs(1);
/// Time within which the live view gets an answer, or goes on without: keys wait for it.
const VIEW_ANSWER: Duration = Duration::from_secs(1);
/// Time without an answer after which the live view ends.
const VIEW_PATIENCE: Duration = Duration::from_secs(10);

/// A learned TCP congestion control for stock Linux kernels.
///
/// `run` registers the congestion control and serves the flows that choose it: by
/// setsockopt(TCP_CONGESTION), by `ip route ... congctl rlcc`, or all of them with --default.
#[derive(Debug, Parser)]
#[command(name = "cc-agent", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Register the congestion control and serve its flows until Ctrl-C.
    Run(RunArgs),
    /// Watch flows of any congestion control, without changing anything: record them as `run`
    /// records its own, or serve metrics of them by congestion control and cgroup.
    Observe(Box<ObserveOptions>),
    /// Report what this host lacks to run the agent, with the remedies. Exits with 0 when it lacks
    /// nothing.
    Check(Format),
    /// Print the state of a running agent.
    Status(Running),
    /// Show the state of a running agent as a live view.
    ///
    /// Keys choose the order of the flows, `/` writes a filter, the arrows choose a flow, Enter
    /// shows what was seen of it since the view began, Esc leaves that, and q ends the view.
    Top {
        /// Order of the flows: rate, cwnd, srtt, queue, loss, delay, age or slot.
        #[arg(long, value_name = "ORDER", default_value = "rate")]
        sort: Sort,
        /// Show only the flows for which all these words hold: a mode (`fallback`), an address or
        /// network of either end, `cgroup=PATH`, `netns=INODE`, `sk:COOKIE`, or a part of the ends
        /// (`:443`).
        #[arg(
            long,
            value_name = "WORDS",
            default_value = "",
            hide_default_value = true
        )]
        filter: Filter,
        #[command(flatten)]
        running: Running,
    },
    /// Follow the decisions for one flow of a running agent, a line for each window, until the flow
    /// closes or Ctrl-C.
    Trace {
        /// The flow: SLOT.GENERATION or sk:COOKIE, as `top` shows them, or ADDRESS:PORT of an end.
        flow: String,
        #[command(flatten)]
        running: Running,
    },
    /// Say whether a running agent decides about its flows. Exits with 0 when it does, with 1 when
    /// it does not, and with 2 when no agent answers.
    ///
    /// Counters that should not rise are compared over --over seconds.
    Health {
        /// Time between two looks at the agent, in s; 0 takes the counters since its start.
        #[arg(long, value_name = "S", default_value_t = 1.0)]
        over: f64,
        #[command(flatten)]
        running: Running,
    },
    /// Serve the state of a running agent to monitoring systems, in the format of OpenMetrics.
    Metrics {
        #[command(flatten)]
        options: MetricsOptions,
        #[command(flatten)]
        agent: AgentOptions,
    },
    /// Collect what a report of a bug needs into one archive: versions, the kernel and its
    /// settings, the state of the running agent, and the journal's last lines.
    ///
    /// Secrets are left out, and addresses are replaced unless --addresses is given. It says what
    /// it collects, replaces no file, and sends nothing.
    Bundle {
        #[command(flatten)]
        options: BundleOptions,
        #[command(flatten)]
        agent: AgentOptions,
    },
    /// Make a running agent serve another policy file. Its flows go on without a break.
    ///
    /// With --canary the file is a candidate, which first decides for a share of the flows;
    /// `conclude` says what has been found, and `promote` and `withdraw` end the canary.
    Reload {
        /// The policy file, in the format of docs/policy.md.
        file: PathBuf,
        /// SHA-256 that the file must have, in hexadecimal; otherwise it is refused.
        #[arg(long, value_name = "HEX")]
        sha256: Option<String>,
        /// Share of the flows, paths or hosts that the file decides for as a candidate, in percent.
        #[arg(long, value_name = "PERCENT")]
        canary: Option<f64>,
        /// What the candidate is compared by: blocks of `time`, `path`s (remote prefixes) or remote
        /// `host`s.
        #[arg(long, value_name = "HOW", requires = "canary", default_value_t)]
        canary_by: CanaryBy,
        #[command(flatten)]
        agent: AgentOptions,
    },
    /// Make a running agent serve the candidate of its canary to all flows, whatever has been
    /// found; the answer says what that is.
    Promote(AgentOptions),
    /// Say what a running agent's canary has found. Exits with 0 when the candidate is not worse
    /// than tolerated in any metric, with 2 while that is open, and with 1 when it was withdrawn.
    Conclude {
        /// Wait for a conclusion for up to this long, in s.
        #[arg(long, value_name = "SECS", default_value_t = 0.0)]
        wait: f64,
        #[command(flatten)]
        agent: AgentOptions,
    },
    /// Make a running agent end its canary and serve the incumbent policy to all flows.
    Withdraw(AgentOptions),
    /// Make a running agent serve the policy again that was served before the present one, to all
    /// flows. Each further rollback goes back one more.
    ///
    /// What was rolled back from does not come back by itself: neither when the agent is started
    /// with a configuration that names it, nor by `follow`. `reload` and `rollback --to` bring it
    /// back.
    Rollback {
        /// The policy to serve: the beginning of its SHA-256, or its name, as `policies` lists
        /// them.
        #[arg(long, value_name = "SHA256")]
        to: Option<String>,
        #[command(flatten)]
        agent: AgentOptions,
    },
    /// List the policies that a running agent and those before it have served, the latest first.
    Policies(Running),
    /// Name cgroups whose sockets a running agent serves that was started with
    /// --cgroups-by-command, as it serves those of --cgroup.
    Cgroup {
        #[command(subcommand)]
        change: CgroupCommand,
    },
    /// Give the host its former default congestion control back after an agent with --default was
    /// killed, in all network namespaces. Changes nothing while the agent runs.
    Restore(AgentOptions),
    /// Make the key that announcements of a channel are signed with, and print its public half,
    /// which `follow` is started with (docs/channel.md).
    ChannelKey {
        /// The file that the private key is written to. One that is there is not replaced.
        file: PathBuf,
    },
    /// Announce a policy in a channel, which agents on other hosts follow.
    Publish(PublishOptions),
    /// Serve what a channel announces with a running agent, until Ctrl-C.
    ///
    /// Announcements that the publisher's key has not signed, older ones put back, and policy files
    /// that are not the announced ones are refused before they are parsed.
    Follow {
        #[command(flatten)]
        options: FollowOptions,
        #[command(flatten)]
        agent: AgentOptions,
    },
    /// Serve the pods of this node of Kubernetes that have an annotation with a running agent,
    /// until Ctrl-C (docs/kubernetes.md).
    ///
    /// The agent must have been started with --cgroups-by-command. What is served stays as it is
    /// while the API server is out of reach.
    Pods {
        #[command(flatten)]
        options: PodsOptions,
        #[command(flatten)]
        agent: AgentOptions,
    },
    /// Upload the completed recordings of a directory, as they appear, until Ctrl-C.
    Ship(ShipOptions),
    /// Serve a policy to the agents of other hosts, which run with --policy grpcs://HOST:PORT, until
    /// Ctrl-C (docs/remote.md).
    PolicyServer(Box<PolicyServerOptions>),
    /// Print a script by which a shell completes this program's commands and options.
    Completions {
        /// The shell that the script is for.
        shell: Shell,
    },
    /// Write the manual pages of this program and of each of its commands into a directory.
    Man {
        /// The directory, which must be there.
        directory: PathBuf,
    },
    /// Describe a policy file: its observation, actions, sizes and provenance.
    Inspect {
        /// The policy file, in the format of docs/policy.md.
        file: PathBuf,
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Debug, Subcommand)]
enum CgroupCommand {
    /// Serve new connections of these cgroups and of those below them, until they are removed or
    /// the agent ends.
    Add {
        #[command(flatten)]
        cgroups: Cgroups,
    },
    /// Serve new connections of these cgroups no longer.
    Remove {
        #[command(flatten)]
        cgroups: Cgroups,
    },
    /// Print the directories that commands have named.
    List(Running),
}

/// Cgroups that a command names.
#[derive(Args, Debug)]
struct Cgroups {
    /// Directories of cgroup v2, as /sys/fs/cgroup/a.slice.
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    #[command(flatten)]
    agent: AgentOptions,
}

#[derive(Args, Debug)]
struct RunArgs {
    /// Read options from a TOML file. Options of the command line take precedence.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Start the agent in the background, and return once it serves; exit with 1 when it does not.
    /// With --takeover this replaces a running agent, also under a service manager.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    options: Box<RunOptions>,
}

#[derive(Args, Debug)]
struct Format {
    /// Print JSON for programs rather than text.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Running {
    #[command(flatten)]
    agent: AgentOptions,
    #[command(flatten)]
    format: Format,
}

/// The running agent that is meant.
#[derive(Args, Debug)]
struct AgentOptions {
    /// Name of the congestion control that the agent serves.
    #[arg(long, default_value = "rlcc")]
    name: String,
    /// Socket of the agent [default: /run/cc-agent/NAME.sock].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl AgentOptions {
    fn socket(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| default_socket(&self.name))
    }
}

impl Cli {
    /// Runs the command and returns the exit status of the process.
    ///
    /// # Errors
    ///
    /// Returns the error that ended the command. Its sources are in its chain.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Subcommands::Run(arguments) => run(arguments),
            Subcommands::Observe(options) => observe(*options),
            Subcommands::Check(format) => check(&format),
            Subcommands::Status(running) => show(&running),
            Subcommands::Top {
                sort,
                filter,
                running,
            } if !running.format.json => top(ViewState::new(sort, filter), &running.agent),
            // What programs can read is the status.
            Subcommands::Top {
                sort,
                filter,
                running,
            } => {
                let socket = running.agent.socket();
                let flows = fetch_flows(&socket, sort.name(), &filter.canonical(), VIEW_PATIENCE)?;
                print(&running.format, &flows)?;
                Ok(ExitCode::SUCCESS)
            }
            Subcommands::Trace { flow, running } => trace(&flow, &running),
            Subcommands::Health { over, running } => health(over, &running),
            Subcommands::Metrics { options, agent } => {
                let _guard = logging::start(true).context("starting the log")?;
                carry_through(options.serve(agent.socket()))
            }
            Subcommands::Bundle { options, agent } => {
                options.write(&agent.name, &agent.socket(), write)?;
                Ok(ExitCode::SUCCESS)
            }
            Subcommands::Reload {
                file,
                sha256,
                canary,
                canary_by,
                agent,
            } => {
                let canary = canary.map(|percent| (percent, canary_by));
                reload(&file, sha256.as_deref(), canary, &agent)
            }
            Subcommands::Promote(agent) => send(&agent, status::Command::Promote),
            Subcommands::Conclude { wait, agent } => conclude(wait, &agent),
            Subcommands::Withdraw(agent) => send(&agent, status::Command::Withdraw),
            Subcommands::Rollback { to: None, agent } => send(&agent, status::Command::Rollback),
            Subcommands::Rollback {
                to: Some(policy),
                agent,
            } => send(&agent, status::Command::RollbackTo { policy }),
            Subcommands::Policies(running) => policies(&running),
            Subcommands::Cgroup { change } => change.carry_out(),
            Subcommands::Restore(agent) => restore(&agent),
            Subcommands::ChannelKey { file } => {
                let key = SigningKey::create(&file)?;
                write(&key.public().to_string())?;
                Ok(ExitCode::SUCCESS)
            }
            Subcommands::Publish(options) => {
                carry_through(async { write(&options.publish().await?.to_string()) })
            }
            Subcommands::Follow { options, agent } => {
                let _logs = logging::start(true).context("starting the log")?;
                carry_through(options.follow(&agent.name, agent.socket()))
            }
            Subcommands::Pods { options, agent } => {
                let _logs = logging::start(true).context("starting the log")?;
                carry_through(options.select(&agent.name, agent.socket()))
            }
            Subcommands::Ship(options) => {
                let _logs = logging::start(true).context("starting the log")?;
                carry_through(options.ship())
            }
            Subcommands::PolicyServer(options) => policy_server(*options),
            Subcommands::Completions { shell } => completions(shell),
            Subcommands::Man { directory } => man(&directory),
            Subcommands::Inspect { file, format } => inspect(&file, &format),
        }
    }
}

impl CgroupCommand {
    fn carry_out(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Add { cgroups } => {
                cgroups.send(|directory| status::Command::AddCgroup { directory })
            }
            Self::Remove { cgroups } => {
                cgroups.send(|directory| status::Command::RemoveCgroup { directory })
            }
            Self::List(running) => {
                let socket = running.agent.socket();
                let Some(directories) = fetch(&socket)?.cgroups else {
                    anyhow::bail!(
                        "the agent at {} was not started with --cgroups-by-command: its cgroups \
                         are those of its options (`cc-agent status`)",
                        socket.display()
                    );
                };
                if running.format.json {
                    write(&serde_json::to_string_pretty(&directories)?)?;
                } else {
                    for directory in directories {
                        write(&directory.display().to_string())?;
                    }
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl Cgroups {
    fn send(self, command: impl Fn(PathBuf) -> status::Command) -> anyhow::Result<ExitCode> {
        for directory in &self.directories {
            // The agent's working directory may be another one. One that was removed still has a
            // name.
            let directory = match directory.canonicalize() {
                Ok(directory) => directory,
                Err(_) => {
                    absolute(directory).with_context(|| format!("{}", directory.display()))?
                }
            };
            send(&self.agent, command(directory))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn run(arguments: RunArgs) -> anyhow::Result<ExitCode> {
    let mut options = *arguments.options;
    if let Some(path) = &arguments.config {
        options = options.or(RunOptions::read(path)?);
    }
    if arguments.detach {
        return detach(&options.socket());
    }
    let _logs = logging::start(options.plain.unwrap_or(false)).context("starting the log")?;
    // First of all: loading policy and datapath takes CPU time, and flows wait for the agent.
    let priority = priority::set_niceness(options.niceness()?);
    let settings = options.resolve()?;
    if let Err(error) = priority {
        warn!("the agent keeps its priority, {error}: a busy host will delay decisions");
    }
    carry_through(serve::serve(settings))
}

/// Runs this command once more without `--detach`, in the background, and waits until that process
/// answers on its socket.
fn detach(socket: &Path) -> anyhow::Result<ExitCode> {
    // The program by the name that it was started by, which may be a newer one by now.
    let mut words = env::args_os();
    let program = words
        .next()
        .context("starting the agent: no name of the program")?;
    let mut agent = process::Command::new(program)
        .args(words.filter(|word| word != "--detach"))
        .stdin(Stdio::null())
        // Signals of the terminal are not for it.
        .process_group(0)
        .spawn()
        .context("starting the agent in the background")?;
    loop {
        if let Some(status) = agent.try_wait().context("waiting for the agent")? {
            anyhow::bail!("the agent in the background ended: {status}");
        }
        if fetch(socket).is_ok_and(|status| status.pid == agent.id()) {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(DETACH_PERIOD);
    }
}

fn observe(options: ObserveOptions) -> anyhow::Result<ExitCode> {
    let _logs = logging::start(true).context("starting the log")?;
    carry_through(options.observe())
}

fn policy_server(options: PolicyServerOptions) -> anyhow::Result<ExitCode> {
    let _logs = logging::start(true).context("starting the log")?;
    carry_through(options.serve())
}

/// Runs a command of the event loop to its end.
fn carry_through(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    // Where there is no room for a pair of sockets, the runtime panics (tokio 1.54).
    UnixStream::pair().context("starting the I/O runtime")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the I/O runtime")?;
    let outcome = runtime.block_on(command);
    // A thread that hangs in a file system must not keep the process alive.
    runtime.shutdown_background();
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Undoes what a killed agent has left of the host's settings.
fn restore(agent: &AgentOptions) -> anyhow::Result<ExitCode> {
    let socket = agent.socket();
    let restored = sysctl::restore(&agent.name, &socket)?;
    if restored.is_empty() {
        write(&format!(
            "nothing to restore: no killed agent has left {} as a default",
            agent.name
        ))?;
    }
    for restored in &restored {
        write(&restored.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(format: &Format) -> anyhow::Result<ExitCode> {
    let report = host::check();
    print(format, &report)?;
    Ok(if report.supported() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn show(running: &Running) -> anyhow::Result<ExitCode> {
    print(&running.format, &fetch(&running.agent.socket())?)?;
    Ok(ExitCode::SUCCESS)
}

fn policies(running: &Running) -> anyhow::Result<ExitCode> {
    let policies = fetch(&running.agent.socket())?.policies;
    if running.format.json {
        write(&serde_json::to_string_pretty(&policies)?)?;
    } else {
        for policy in policies.iter().rev() {
            write(&policy.to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what is wrong with the agent, and says by the exit code whether flows are decided about.
fn health(over: f64, running: &Running) -> anyhow::Result<ExitCode> {
    let Ok(over) = Duration::try_from_secs_f64(over) else {
        anyhow::bail!("--over {over}: expected a number of seconds, 0 or more");
    };
    let socket = running.agent.socket();
    let looked = (|| {
        let mut before = None;
        if !over.is_zero() {
            before = Some(fetch(&socket)?);
            thread::sleep(over);
        }
        Ok::<_, StatusError>(Health::of(&fetch(&socket)?, before.as_ref()))
    })();
    let health = match looked {
        Ok(health) => health,
        Err(error) => {
            logging::last_line(&format!("error: {error}"));
            return Ok(ExitCode::from(2));
        }
    };
    print(&running.format, &health)?;
    Ok(match health.is_good() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn top(state: ViewState, agent: &AgentOptions) -> anyhow::Result<ExitCode> {
    let socket = agent.socket();
    let mut last = Arc::new(fetch(&socket)?);
    let mut answered = Instant::now();
    let mut failure = None;
    let source = |sort: Sort, filter: &Filter| match fetch_within(&socket, VIEW_ANSWER) {
        Ok(snapshot) => {
            let snapshot = Arc::new(snapshot);
            let snapshot = view::with_all_flows(&socket, snapshot, sort, filter, VIEW_ANSWER);
            (last, answered) = (snapshot, Instant::now());
            Some(Arc::clone(&last))
        }
        // A busy host's agent is late at times: what it has said last is shown meanwhile.
        Err(StatusError::Silent(_) | StatusError::NotAStatus { .. })
            if answered.elapsed() < VIEW_PATIENCE =>
        {
            Some(Arc::clone(&last))
        }
        Err(error) => {
            failure = Some(error);
            None
        }
    };
    view::run(source, || false, state)?;
    match failure {
        Some(error) => Err(error).context("the live view ended"),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn trace(flow: &str, running: &Running) -> anyhow::Result<ExitCode> {
    let socket = running.agent.socket();
    let mut status = fetch(&socket)?;
    if status.is_partial()
        && let Ok(filter) = flow.parse::<Filter>()
    {
        let slot = Sort::Slot.name();
        status = fetch_flows(&socket, slot, &filter.canonical(), VIEW_PATIENCE)?;
    }
    let flow = trace::find(flow, &status).map_err(anyhow::Error::msg)?;
    if !running.format.json
        && let Some(heading) = trace::heading(flow, &status)
    {
        write(&heading)?;
    }
    let mut written = Ok(());
    cc_client::trace(&socket, flow, |window| {
        let line = match running.format.json {
            true => serde_json::to_string(window).unwrap_or_default(),
            false => window.to_string(),
        };
        written = writeln!(io::stdout(), "{line}");
        written.is_ok()
    })?;
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn reload(
    file: &Path,
    sha256: Option<&str>,
    canary: Option<(f64, CanaryBy)>,
    agent: &AgentOptions,
) -> anyhow::Result<ExitCode> {
    // The agent's working directory may be another one.
    let mut file = file
        .canonicalize()
        .with_context(|| format!("{}", file.display()))?;
    if let Some(sha256) = sha256 {
        file = PolicySpec::Onnx(file).pinned(sha256)?.to_string().into();
    }
    let command = match canary {
        Some((percent, by)) => status::Command::StartCanary { file, percent, by },
        None => status::Command::Reload { file },
    };
    send(agent, command)
}

fn send(agent: &AgentOptions, command: status::Command) -> anyhow::Result<ExitCode> {
    let outcome = cc_client::command(&agent.socket(), command)?;
    write(&outcome)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what the canary has found, after waiting for it for up to `wait` seconds.
fn conclude(wait: f64, agent: &AgentOptions) -> anyhow::Result<ExitCode> {
    let Ok(wait) = Duration::try_from_secs_f64(wait) else {
        anyhow::bail!("--wait {wait}: expected a number of seconds, 0 or more");
    };
    let deadline = Instant::now().checked_add(wait);
    let first = fetch(&agent.socket())?;
    let mut latest = first.canary;
    if latest.is_none() {
        let news = first
            .news
            .map_or_else(String::new, |news| format!("; {news}"));
        anyhow::bail!("no canary runs{news}");
    }
    loop {
        let is_open = |canary: &CanaryStatus| canary.finding == Finding::Open;
        let has_time = deadline.is_none_or(|deadline| Instant::now() < deadline);
        if !(has_time && latest.as_ref().is_some_and(is_open)) {
            break;
        }
        thread::sleep(CONCLUDE_PERIOD.min(wait));
        let status = fetch(&agent.socket())?;
        latest = status.canary;
        if latest.is_none() {
            // It was withdrawn, or somebody has ended it.
            write(&status.news.unwrap_or_default())?;
            return Ok(ExitCode::FAILURE);
        }
    }
    let Some(canary) = latest else {
        return Ok(ExitCode::FAILURE);
    };
    write(&canary.to_string())?;
    Ok(match canary.finding {
        Finding::NotWorse => ExitCode::SUCCESS,
        Finding::Worse => ExitCode::FAILURE,
        Finding::Open => ExitCode::from(2),
    })
}

fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cc-agent", &mut script);
    write(String::from_utf8(script)?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `cc-agent.1` and a page `cc-agent-COMMAND.1` for each command.
fn man(directory: &Path) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("writing manual pages to {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn inspect(file: &Path, format: &Format) -> anyhow::Result<ExitCode> {
    let policy = PolicyFile::read(file).with_context(|| format!("policy {}", file.display()))?;
    print(format, policy.summary())?;
    Ok(ExitCode::SUCCESS)
}

fn print<T: serde::Serialize + std::fmt::Display>(
    format: &Format,
    value: &T,
) -> anyhow::Result<()> {
    let text = if format.json {
        serde_json::to_string_pretty(value)?
    } else {
        value.to_string()
    };
    write(text.trim_end())
}

fn write(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{text}") {
        // The reader, such as head, has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("writing to standard output"),
    }
}
