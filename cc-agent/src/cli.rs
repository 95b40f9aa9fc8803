//! The command line.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};

use crate::{config::RunOptions, kernel::host, logging, observe::ObserveOptions, serve, view};
use cc_client::fetch;
use cc_core::{
    policy::PolicyFile,
    status::{self, default_socket},
};

/// A learned TCP congestion control for stock Linux kernels.
///
/// `run` registers the congestion control and serves the flows that choose it: by
/// setsockopt(TCP_CONGESTION), by `ip route ... congctl rlcc`, or all of them with --default.
#[derive(Debug, Parser)]
#[command(name = "cc-agent", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Register the congestion control and serve its flows until Ctrl-C.
    Run(RunArgs),
    /// Watch the flows of other congestion controls, and record them like our own, without changing anything.
    Observe(Box<ObserveOptions>),
    /// Say whether this host supports it: each need, and the remedy. Exits 0 when it does.
    Check(Format),
    /// Print what a running agent does.
    Status(Running),
    /// Watch a running agent.
    Top(Running),
    /// Have a running agent serve another policy file from now on; its flows go on as they are.
    ///
    /// With --canary the file gets a share of the new flows first: `promote` and `withdraw` end that trial.
    Reload {
        /// The policy.
        file: PathBuf,
        /// Only for this share of the new flows, in percent, beside the current policy.
        #[arg(long, value_name = "PERCENT")]
        canary: Option<f64>,
        #[command(flatten)]
        place: Place,
    },
    /// Have a running agent serve the candidate of its trial to all flows.
    Promote(Place),
    /// Have a running agent end the trial of its candidate.
    Withdraw(Place),
    /// Say what a policy file is: its observation, actions, sizes and provenance.
    Inspect {
        /// The policy.
        file: PathBuf,
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Args, Debug)]
struct RunArgs {
    /// Read options from a TOML file; the command line wins over it.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Box<RunOptions>,
}

#[derive(Args, Debug)]
struct Format {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Running {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    format: Format,
}

/// Which agent.
#[derive(Args, Debug)]
struct Place {
    /// Name of its congestion control.
    #[arg(long, default_value = "rlcc")]
    name: String,
    /// Its socket, where it is not the usual one.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Place {
    fn socket(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| default_socket(&self.name))
    }
}

impl Cli {
    /// Does what was asked.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Run(arguments) => run(arguments),
            Command::Observe(options) => observe(*options),
            Command::Check(format) => check(&format),
            Command::Status(running) => show(&running),
            Command::Top(running) => top(&running),
            Command::Reload {
                file,
                canary,
                place,
            } => reload(&file, canary, &place),
            Command::Promote(place) => tell(&place, status::Command::Promote),
            Command::Withdraw(place) => tell(&place, status::Command::Withdraw),
            Command::Inspect { file, format } => inspect(&file, &format),
        }
    }
}

fn run(arguments: RunArgs) -> anyhow::Result<ExitCode> {
    let mut options = *arguments.options;
    if let Some(path) = &arguments.config {
        options = options.or(RunOptions::read(path)?);
    }
    let _logs = logging::start(options.plain.unwrap_or(false));
    let settings = options.resolve()?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the I/O runtime")?
        .block_on(serve::serve(settings))?;
    Ok(ExitCode::SUCCESS)
}

fn observe(options: ObserveOptions) -> anyhow::Result<ExitCode> {
    let _logs = logging::start(true);
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the I/O runtime")?
        .block_on(options.observe())?;
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
    print(&running.format, &fetch(&running.place.socket())?)?;
    Ok(ExitCode::SUCCESS)
}

fn top(running: &Running) -> anyhow::Result<ExitCode> {
    let socket = running.place.socket();
    fetch(&socket)?;
    view::run(|| fetch(&socket).ok().map(Arc::new), || false)?;
    Ok(ExitCode::SUCCESS)
}

fn reload(file: &Path, canary: Option<f64>, place: &Place) -> anyhow::Result<ExitCode> {
    // The agent may have another working directory.
    let file = file
        .canonicalize()
        .with_context(|| format!("{}", file.display()))?;
    let command = match canary {
        Some(percent) => status::Command::StartCanary { file, percent },
        None => status::Command::Reload { file },
    };
    tell(place, command)
}

fn tell(place: &Place, command: status::Command) -> anyhow::Result<ExitCode> {
    let outcome = cc_client::command(&place.socket(), command)?;
    write(&outcome)?;
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
        // A reader that has seen enough, such as head.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("writing to standard output"),
    }
}
