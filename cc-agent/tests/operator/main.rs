//! What an operator has of a running agent: the live view on a terminal, the exit code of `health`,
//! and ports that nobody else can reach.

mod ports;
mod screen;

use std::{
    io::{BufRead, BufReader},
    process::{Command, ExitCode, Stdio},
};

use cc_core::status::{FlowView, Snapshot};
use cc_lab::{Agent, Bottleneck, Network, eventually, unique_name};
use nix::sys::signal::Signal;

use ports::*;
use screen::*;

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        the_live_view_shows_flows_and_gives_the_terminal_back,
        health_tells_an_agent_that_decides_from_one_that_is_gone,
        flows_beyond_those_of_the_status_are_found,
        what_listens_is_on_loopback_only,
    ])
}

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");

/// Some Mbit/s for each of a few dozen flows.
const SHARED: Bottleneck = Bottleneck {
    rate_mbit: 100,
    queue_bytes: 500_000,
};

/// Room for the first ten segments of each of several hundred flows. A flow gets its slot with its
/// first ACK, which can take a minute where its segments are lost again and again.
const ROOMY: Bottleneck = Bottleneck {
    rate_mbit: 100,
    queue_bytes: 10_000_000,
};

/// Of more flows than a status shows, the view and a trace find any.
pub(crate) fn flows_beyond_those_of_the_status_are_found() {
    const FLOWS: usize = 520;
    let network = Network::through(ROOMY);
    let name = unique_name();
    let agent = Agent::start_in(
        &network.path.sender,
        BINARY,
        &name,
        &["--policy", "fixed:2"],
    );
    let crowd = network.crowd(&name, FLOWS);
    eventually("all flows are open", || {
        (agent.status().live_flows == FLOWS).then_some(())
    });
    let last = network.connect(&name).sending();
    let own = last.local().to_string();
    let status = eventually("the last flow is open", || {
        Some(agent.status()).filter(|status| status.live_flows == FLOWS + 1)
    });
    assert_eq!(status.flows.len(), 500);
    assert!(status.flows.iter().all(|flow| flow.local != last.local()));
    let top = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["top", "--json"]).args(arguments);
        command.arg("--socket").arg(agent.socket());
        let output = command.output().expect("our own binary");
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str::<Snapshot>(&text).expect(&text)
    };
    let found = top(&["--filter", &own]);
    let [flow] = &found.flows[..] else {
        panic!("one flow is {own}: {found}");
    };
    assert_eq!((flow.local, found.matching_flows), (last.local(), Some(1)));
    let all = top(&["--sort", "age"]);
    assert_eq!(
        (all.flows.len(), all.matching_flows),
        (500, Some(FLOWS + 1))
    );
    let is_older = |pair: &[FlowView]| pair[0].opened_ns <= pair[1].opened_ns;
    assert!(all.flows.windows(2).all(is_older), "the oldest first");
    // A trace finds it by its end.
    let mut trace = Command::new(BINARY);
    trace.args(["trace", &own, "--socket"]).arg(agent.socket());
    let mut trace = trace.stdout(Stdio::piped()).spawn().expect("starts");
    let mut heading = String::new();
    let mut text = BufReader::new(trace.stdout.take().expect("it is piped"));
    text.read_line(&mut heading).expect("it is text");
    assert!(heading.contains(&format!("  {own} → ")), "{heading}");
    trace.kill().expect("our child");
    trace.wait().expect("our child");
    // The view says how many there are, and finds those that its filter means.
    let mut terminal = Terminal::start(&agent, 120, 24);
    terminal.eventually("it says how many are shown", |screen| {
        screen.contents().contains("500 of 521 flows")
    });
    terminal.press(&format!("/{own}\r"));
    terminal.eventually("the flow is found", |screen| {
        let text = screen.contents();
        text.contains(&format!(", 1 for `{own}`")) && text.contains(&format!("{own} → "))
    });
    terminal.press("q");
    assert!(terminal.end().0.success());
    assert_eq!(crowd.failed(), 0);
}

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
