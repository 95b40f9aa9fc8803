//! `cc-trainer shim`: relays TCP or UDP as a network with delay, jitter and loss would.

use std::{
    fs::File,
    io::{BufWriter, Write},
    net::{SocketAddr, TcpListener, ToSocketAddrs, UdpSocket},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use cc_sim::shim::{Conditions, ConditionsTable, Preset};
use cc_trainer::{
    shim::{self, Settings, Socket},
    toml_file,
};

use super::interrupt;

/// Relay TCP or UDP as a network with delay, jitter and loss would.
///
/// Clients connect to --listen instead of the server, and the relay connects to --to for each of
/// them. Every message is delayed by max(0, N(mean, jitter²)) and lost with some probability, in
/// each direction. Needs no privileges, and changes nothing of the host.
///
/// A message of UDP is a datagram: it may be lost, and may overtake others. A message of TCP is a
/// piece of the stream, what one read returns: a lost one is sent again after a round trip, and all
/// behind it waits. The rate is not limited; `cc-trainer link` emulates that, packet by packet.
///
/// Ctrl-C ends the relay and prints what it did: messages, losses, delays, and by how much the
/// relay itself was late. docs/shim.md has the presets' sources and the keys of --config.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ShimArgs {
    /// Address to listen on. Whoever can reach it reaches the server.
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// The server: its name or address, and the port.
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// Relay datagrams of UDP instead of TCP connections. A peer that is silent for 60 s is
    /// forgotten.
    #[arg(long)]
    udp: bool,
    /// Network in both directions: ethernet (2 ± 0.5 ms), wifi-normal (30 ± 10 ms, 2 % lost),
    /// wifi-degraded (80 ± 40 ms, 10 %), fixed-50 (50 ms) or wan (100 ± 20 ms, 0.5 %).
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "config",
        conflicts_with = "config"
    )]
    preset: Option<Preset>,
    /// Network as a TOML file describes it, with keys such as delay_ms, jitter_ms, loss, replay,
    /// and tables [there] and [back].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seed of delays and losses. Each connection has a seed of its own, made of this one and its
    /// number.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the delay or loss of every message to a file, which `replay = "FILE"` repeats.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print the summary as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  cc-agent policy-server --policy default --listen 127.0.0.1:7443 --plaintext
  cc-trainer shim --listen 127.0.0.1:7444 --to 127.0.0.1:7443 --preset wifi-degraded
  cc-agent run --policy grpc://127.0.0.1:7444
      a policy server behind a bad Wi-Fi
  cc-trainer shim --listen 127.0.0.1:5353 --to 192.0.2.1:53 --udp --preset wan --record wan.txt
      datagrams, with a recording of what happened to each
  printf 'replay = \"wan.txt\"\\n' > again.toml
  cc-trainer shim --listen 127.0.0.1:5353 --to 192.0.2.1:53 --udp --config again.toml
      the same again
  printf 'delay_ms = 30\\n[back]\\nloss = { to_bad = 0.01, to_good = 0.2 }\\n' > bursts.toml
  cc-trainer shim --listen 127.0.0.1:5353 --to 192.0.2.1:53 --udp --config bursts.toml
      30 ms in both directions, and bursts of five lost datagrams on the way back";

pub(crate) fn command(args: &ShimArgs) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        to: resolve(&args.to)?,
        conditions: conditions(args)?,
        seed: args.seed,
    };
    let stop = interrupt::on_interrupt()?;
    let listening = || format!("listening on {}; is the port free?", args.listen);
    let (socket, address) = if args.udp {
        let socket = UdpSocket::bind(args.listen).with_context(listening)?;
        let address = socket.local_addr();
        (Socket::Udp(socket), address)
    } else {
        let listener = TcpListener::bind(args.listen).with_context(listening)?;
        let address = listener.local_addr();
        (Socket::Tcp(listener), address)
    };
    let recording = match &args.record {
        Some(path) => {
            let file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
            Some(Box::new(BufWriter::new(file)) as Box<dyn Write>)
        }
        None => None,
    };
    super::note(format_args!(
        "{} {} leads to {}; Ctrl-C ends it",
        if args.udp { "UDP" } else { "TCP" },
        address.unwrap_or(args.listen),
        settings.to
    ));
    let summary = shim::relay(socket, settings, recording, &stop).context("relaying")?;
    if args.json {
        let json = serde_json::to_string_pretty(&summary).context("the summary")?;
        super::print(format_args!("{json}\n"))?;
    } else {
        super::print(summary)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn resolve(to: &str) -> anyhow::Result<SocketAddr> {
    let mut addresses = to
        .to_socket_addrs()
        .with_context(|| format!("--to {to}: give HOST:PORT of a server that can be found"))?;
    addresses
        .next()
        .with_context(|| format!("--to {to}: the name has no address"))
}

fn conditions(args: &ShimArgs) -> anyhow::Result<Conditions> {
    match (args.preset, &args.config) {
        (Some(preset), _) => Ok(preset.into()),
        (None, Some(path)) => {
            let table: ConditionsTable = toml_file::read(path)?;
            let folder = path.parent().unwrap_or(Path::new(""));
            Ok(table.conditions(folder)?)
        }
        (None, None) => bail!("give --preset NAME or --config FILE"),
    }
}
