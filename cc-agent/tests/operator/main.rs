//! What an operator has of a running agent: the live view on a terminal, the exit code of `health`,
//! and ports that nobody else can reach.

mod ports;
mod screen;

use std::process::{Command, ExitCode, Stdio};

use cc_lab::{Agent, Bottleneck, Network, eventually, unique_name};
use nix::sys::signal::Signal;

use ports::*;
use screen::*;

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        the_live_view_shows_flows_and_gives_the_terminal_back,
        health_tells_an_agent_that_decides_from_one_that_is_gone,
        what_listens_is_on_loopback_only,
    ])
}

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");

/// Some Mbit/s for each of a few dozen flows.
const SHARED: Bottleneck = Bottleneck {
    rate_mbit: 100,
    queue_bytes: 500_000,
};

pub(crate) fn health_tells_an_agent_that_decides_from_one_that_is_gone() {
    let network = Network::through(SHARED);
    let name = unique_name();
    let mut agent = Agent::start_in(
        &network.path.sender,
        BINARY,
        &name,
        &["--policy", "fixed:3"],
    );
    let flow = network.connect(&name).sending();
    flow.advance(100_000);
    let health = || {
        let mut command = Command::new(BINARY);
        command.args(["health", "--over", "0.2", "--socket"]);
        command.arg(agent.socket()).stdin(Stdio::null());
        let output = command.output().expect("our own binary");
        let text = [output.stdout, output.stderr].concat();
        let code = output.status.code().expect("no signal");
        (code, String::from_utf8_lossy(&text).into_owned())
    };
    eventually("the agent decides", || {
        (agent.status().agent.decisions > 0).then_some(())
    });
    let (code, text) = health();
    assert_eq!(code, 0, "{text}");
    // One that is stopped does not answer.
    agent.signal(Signal::SIGSTOP);
    let (code, text) = health();
    assert_eq!(code, 2, "{text}");
    agent.signal(Signal::SIGCONT);
    eventually("it answers again", || (health().0 == 0).then_some(()));
    agent.end(Signal::SIGTERM);
    let mut command = Command::new(BINARY);
    command.args(["health", "--socket"]).arg(agent.socket());
    let output = command.output().expect("our own binary");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
