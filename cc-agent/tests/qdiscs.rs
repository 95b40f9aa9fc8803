//! The agent's flows beside the kernel's own over managed queues (AQM), on links that netem
//! delays: each transfer comes to its end, decisions are made and taken, and nothing is left.
//!
//! A queue that this kernel lacks is reported as ignored. In virtual time, as `cargo xtask kernels`
//! has it, the figures of two runs are equal.

use std::{
    collections::BTreeSet,
    panic,
    process::{Command, ExitCode},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use cc_agent::kernel::datapath::registered;
use cc_ebpf::Counter;
use cc_lab::{
    Agent, Bottleneck, Flow, Footprint, Namespace, Network, Outcome, TcpInfo, eventually, figure,
    harness, unique_name,
};
use serde_json::Value;

fn main() -> ExitCode {
    let trials = cc_lab::trials![
        over_netem_alone,
        over_codel,
        over_fq_codel,
        over_pie,
        over_fq_pie,
        over_red,
        over_cake,
        over_dualpi2,
        paced_by_fq,
    ];
    harness::run(trials, cc_lab::unmet_requirement())
}

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");

/// The rate of the link, Mbit/s.
const RATE_MBIT: u32 = 12;

/// The delay of netem on the way back, ms: with the time to send, an RTT of some 32 ms.
const DELAY_MS: u32 = 30;

/// What each flow transfers, bytes: both together take some 4 s.
const AMOUNT: usize = 3_000_000;

/// netem's own rate, delay and queue of 60 packets, in the place of token bucket and AQM.
fn over_netem_alone() -> Outcome {
    let link = format!("netem rate {RATE_MBIT}mbit delay 1ms limit 60");
    compete("netem", |router| {
        router.tc(&format!("qdisc replace dev r1 root {link}"));
    })
}

fn over_codel() -> Outcome {
    managed("codel", "ecn")
}

fn over_fq_codel() -> Outcome {
    managed("fq_codel", "")
}

fn over_pie() -> Outcome {
    managed("pie", "ecn")
}

fn over_fq_pie() -> Outcome {
    managed("fq_pie", "ecn")
}

fn over_red() -> Outcome {
    managed(
        "red",
        "limit 400000 min 15000 max 45000 avpkt 1000 burst 25 probability 0.1 ecn",
    )
}

fn over_cake() -> Outcome {
    managed("cake", "")
}

fn over_dualpi2() -> Outcome {
    managed("dualpi2", "")
}

/// The sender's own queue paces, in the place of TCP's timers.
fn paced_by_fq() -> Outcome {
    compete("fq", |_| {})
}

/// Two flows through a queue of that kind, behind a token bucket of the link's rate.
fn managed(kind: &str, options: &str) -> Outcome {
    compete(kind, |router| {
        router.tc(&format!(
            "qdisc replace dev r1 root handle 1: tbf rate {RATE_MBIT}mbit burst 5000 limit 300000"
        ));
        router.tc(&format!(
            "qdisc add dev r1 parent 1:1 handle 10: {kind} {options}"
        ));
    })
}

/// Transfers by the agent's default policy and by cubic at the same time, over a router whose queue
/// `set_up` makes.
fn compete(kind: &str, set_up: impl FnOnce(&Namespace)) -> Outcome {
    for needed in [kind, "netem"] {
        if !has_qdisc(needed) {
            return Outcome::Undecided(format!("this kernel has no {needed}"));
        }
    }
    let network = Network::through(Bottleneck {
        rate_mbit: RATE_MBIT,
        queue_bytes: 90_000,
    });
    let path = &network.path;
    set_up(path.router());
    path.router().tc(&format!(
        "qdisc replace dev r0 root netem delay {DELAY_MS}ms"
    ));
    if kind == "fq" {
        path.sender.tc("qdisc replace dev s0 root fq");
    }
    let name = unique_name();
    let mut agent = Agent::start(BINARY, &name, &[]);
    let other = if registered("cubic") { "cubic" } else { "reno" };

    let start = Instant::now();
    let flows = [network.connect(&name), network.connect(other)];
    let mut cwnds = BTreeSet::new();
    let transfers: Vec<Transfer> = thread::scope(|scope| {
        let transfer = |flow: &Flow| {
            flow.send(AMOUNT);
            (flow.finish(), start.elapsed())
        };
        let transfers: Vec<_> = flows
            .iter()
            .map(|flow| scope.spawn(move || transfer(flow)))
            .collect();
        while !transfers.iter().all(ScopedJoinHandle::is_finished) {
            cwnds.insert(flows[0].info().snd_cwnd);
            thread::sleep(Duration::from_millis(20));
        }
        let results = transfers.into_iter().map(ScopedJoinHandle::join);
        results
            .map(|transfer| transfer.unwrap_or_else(|panic| panic::resume_unwind(panic)))
            .collect()
    });
    for (flow, (info, _)) in flows.iter().zip(&transfers) {
        assert_eq!(network.sink.received_from(flow.port()), AMOUNT as u64);
        assert_eq!(info.bytes_sent - info.bytes_retrans, AMOUNT as u64);
        // At least the delay of netem, and an RTT that shows its queue was there.
        assert!(info.min_rtt >= DELAY_MS * 1_000, "{}", info.min_rtt);
    }
    let queue = match kind {
        "fq" => queue(&path.sender, "s0", kind),
        _ => queue(path.router(), "r1", kind),
    };
    let packets = queue["packets"].as_u64().unwrap_or(0);
    assert!(
        packets as usize > AMOUNT / 1_500,
        "the queue was passed by: {queue}"
    );

    let status = agent.status();
    let decisions = status.datapath[Counter::DecisionsTaken.name()];
    assert!(decisions >= 10, "{decisions} decisions: {status}");
    assert!(
        cwnds.len() >= 3,
        "the cwnd did not follow the path: {cwnds:?}"
    );
    let seconds = transfers
        .iter()
        .map(|(_, time)| format!("{:.3}", time.as_secs_f64()));
    figure(
        &format!("{kind}: rlcc / {other}"),
        format!(
            "{} s, {} dropped",
            seconds.collect::<Vec<_>>().join(" / "),
            queue["drops"].as_u64().unwrap_or(0),
        ),
    );
    for (name, (info, _)) in ["rlcc", other].iter().zip(&transfers) {
        eprintln!("{kind}: {name}: {info:?}");
    }

    drop(flows);
    let closed = eventually("the flow gave its slot back", || {
        let status = agent.status();
        let count = |counter: Counter| status.datapath[counter.name()];
        (count(Counter::FlowsClosed) == count(Counter::FlowsOpened)).then_some(status)
    });
    for counter in [Counter::SlotsLeaked, Counter::RecordsDropped] {
        assert_eq!(closed.datapath[counter.name()], 0, "{}", counter.name());
    }
    let footprint = Footprint::of(&name);
    assert!(footprint.programs() > 0, "{footprint:?}");
    agent.end(nix::sys::signal::Signal::SIGTERM);
    footprint.assert_vanishes();
    assert!(!registered(&name), "the name is left");
    Outcome::Passed
}

/// The state of a connection at its end, and the time that it took.
type Transfer = (TcpInfo, Duration);

/// Whether this kernel has a queueing discipline. The first use may load its module.
fn has_qdisc(kind: &str) -> bool {
    let namespace = Namespace::new("q");
    let mut command = Command::new("tc");
    command.args(["-n", namespace.name(), "qdisc", "add", "dev", "lo", "root"]);
    match kind {
        // These have no defaults for everything.
        "red" => command.args("red limit 1000 min 100 max 300 avpkt 100".split(' ')),
        kind => command.arg(kind),
    };
    let output = command.output().expect("tc was found before");
    output.status.success()
}

/// Returns the statistics of a device's queueing discipline of that kind.
fn queue(namespace: &Namespace, device: &str, kind: &str) -> Value {
    let mut command = Command::new("tc");
    command.args([
        "-n",
        namespace.name(),
        "-s",
        "-j",
        "qdisc",
        "show",
        "dev",
        device,
    ]);
    let output = command.output().expect("tc was found before");
    let list: Value = serde_json::from_slice(&output.stdout).expect("tc -j prints JSON");
    let all = list.as_array().into_iter().flatten();
    let mut ours = all.filter(|queue| queue["kind"] == kind).cloned();
    ours.next().unwrap_or_else(|| panic!("no {kind} in {list}"))
}
