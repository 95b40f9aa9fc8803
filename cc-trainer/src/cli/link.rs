//! `cc-trainer link`: runs any program behind an emulated link.

pub(super) mod init;
mod view;

use std::{
    ffi::OsString,
    io::{self, Write},
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, bail};
use cc_sim::scenario::{self, Scenario};
use cc_testbed::link::{Addresses, Classifier, Limits, Link, Namespace};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};

use init::{Contained, Signals};

/// Run a program behind an emulated link.
///
/// COMMAND runs in a network namespace of its own, whose only connection is the scenario's link.
/// The other end is in the current namespace: servers on this host are reached at the address in
/// $LINK_HOST, and what COMMAND sends there takes the scenario's data direction (forward).
/// $LINK_ADDRESS is COMMAND's own address. Both are addresses of 100.64.0.0/10.
///
/// The Internet is not reachable: nothing is routed or translated beyond this host. If the host
/// forwards and masquerades, `ip route add default via $LINK_HOST` as COMMAND's first
/// step opens the way.
///
/// When COMMAND ends, all its descendants are killed, and a line reports what the link did. The
/// exit status is COMMAND's, 128 + N when signal N ended it, 127 when it was not found. The
/// scenario's list of flows does not apply: what COMMAND sends is the traffic.
///
/// Needs root and iproute2.
///
/// Examples:
///
///   iperf3 --server --daemon
///   cc-trainer link --scenario pantheon/bdp-1 --live -- sh -c 'iperf3 --client $LINK_HOST'
///
///   cc-trainer link --scenario mine.toml -- ping -c 10 100.64.0.1
///
///   cc-trainer link --scenario cellular/0 -- bash
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Scenario: SET/NAME or SET/INDEX of a built-in set, or a TOML file
    /// (FILE.toml/NAME if it holds several).
    #[arg(long, value_name = "NAME|FILE", required_unless_present = "as_init")]
    scenario: Option<String>,
    /// Print a line per second to stderr with each direction's offered and delivered
    /// rate, queue, delay and drops.
    #[arg(long)]
    live: bool,
    /// Seed of random loss and jitter.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Set by the command itself in the first process of COMMAND's process namespace.
    #[arg(long, hide = true)]
    as_init: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn command(args: &Args) -> anyhow::Result<ExitCode> {
    if args.as_init {
        return init::run(&args.command);
    }
    let scenario = only_scenario(args.scenario.as_deref().unwrap_or_default())?;
    // Taken before any thread starts, so that all threads leave the signals to the one that handles
    // them.
    let signals = Signals::take().context("cannot handle signals")?;
    let near = Namespace::new()?;
    if scenario.marks() {
        near.request_ecn()?;
    }
    let far = Namespace::current()?;
    let (addresses, _reservation) = free_addresses()?;
    let link = Link::new(
        &scenario,
        &near,
        &far,
        addresses,
        Classifier::SINGLE,
        args.seed,
    )?;
    let mut program = Command::new("/proc/self/exe");
    program
        .args(["link", "--as-init", "--"])
        .args(&args.command)
        .env("LINK_HOST", addresses.far.to_string())
        .env("LINK_ADDRESS", addresses.near.to_string());
    let start = link.start();
    let mut contained = Contained::spawn(program, &near)?;
    let mut view = args.live.then(|| view::Live::new(&scenario, start));
    let status = loop {
        if let Some(status) = contained.try_wait()? {
            break status;
        }
        let timeout = view.as_ref().map(view::Live::until_next);
        wait(&signals, timeout)?;
        while let Some(signal) = signals.next()? {
            if signal != Signal::SIGCHLD {
                contained.forward(signal);
            }
        }
        if let Some(view) = view.as_mut().filter(|view| view.until_next().is_zero()) {
            view.show(link.snapshot());
        }
    };
    let observation = link.finish()?;
    // The reader may be gone; a failed write is ignored.
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "link: {}", view::summary(&scenario, &observation));
    for disturbance in Limits::of(&scenario).disturbances(&observation) {
        let _ = writeln!(err, "link: INVALID: {disturbance}");
    }
    Ok(status)
}

fn only_scenario(spec: &str) -> anyhow::Result<Scenario> {
    let mut scenarios = scenario::load(spec)?;
    match (scenarios.pop(), scenarios.len()) {
        (Some(scenario), 0) => Ok(scenario),
        (last, more) => bail!(
            "`{spec}` holds {} scenarios; a link needs one, so name it: `--scenario {spec}/{}`",
            more + usize::from(last.is_some()),
            last.map_or_else(|| "NAME".into(), |scenario| scenario.name)
        ),
    }
}

/// Reserves addresses that no other `link` command in this network namespace uses. They are
/// reserved until the returned value is dropped.
fn free_addresses() -> anyhow::Result<(Addresses, UnixListener)> {
    for n in 0..=u16::MAX {
        // Abstract socket names belong to the network namespace, as addresses do, and disappear
        // with the process.
        let name = SocketAddr::from_abstract_name(format!("cc-trainer/link/{n}"))?;
        match UnixListener::bind_addr(&name) {
            Ok(reservation) => return Ok((Addresses::nth(n), reservation)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).context("cannot reserve addresses for the link"),
        }
    }
    bail!("65536 links run in this network namespace already")
}

/// Waits until a signal is pending, or for `timeout`.
fn wait(signals: &Signals, timeout: Option<Duration>) -> anyhow::Result<()> {
    let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
        // Rounded up, so that the time has passed afterwards.
        PollTimeout::try_from(timeout + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    });
    match poll(
        &mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)],
        timeout,
    ) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for signals"),
    }
}
