//! `cc-trainer calf serve`: worlds in real time for policies elsewhere.

use std::{
    net::{SocketAddr, TcpListener, UdpSocket},
    process::ExitCode,
};

use anyhow::Context;
use cc_trainer::{live, shim::Socket};

use super::super::interrupt;

/// Serve CartPole or the gridworld in real time, for a policy elsewhere.
///
/// `cc-trainer calf live --world ADDR` asks for a world, by the settings that its policy was
/// trained with. A step is taken every interval (20 ms), with the last action that arrived. One
/// policy at a time is served; a policy that is silent for 10 s is forgotten. Nobody is
/// authenticated, and nothing is encrypted: listen on an address that only the policy's host can
/// reach.
///
/// Ages of observations are told by the clocks of both hosts, which have to agree. Ctrl-C ends the
/// service and prints what it did.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7450")]
    listen: SocketAddr,
    /// Serve over TCP instead of datagrams of UDP.
    #[arg(long)]
    tcp: bool,
}

pub(super) fn command(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let stop = interrupt::on_interrupt()?;
    let listening = || format!("listening on {}; is the port free?", args.listen);
    let (socket, address) = if args.tcp {
        let listener = TcpListener::bind(args.listen).with_context(listening)?;
        let address = listener.local_addr();
        (Socket::Tcp(listener), address)
    } else {
        let socket = UdpSocket::bind(args.listen).with_context(listening)?;
        let address = socket.local_addr();
        (Socket::Udp(socket), address)
    };
    super::super::note(format_args!(
        "{} {} serves worlds; Ctrl-C ends it",
        if args.tcp { "TCP" } else { "UDP" },
        address.unwrap_or(args.listen)
    ));
    let summary = live::serve(socket, &stop).context("serving worlds")?;
    let json = serde_json::to_string_pretty(&summary).context("the summary")?;
    super::super::print(format_args!("{json}\n"))?;
    Ok(ExitCode::SUCCESS)
}
