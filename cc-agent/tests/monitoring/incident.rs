//! What an operator sees of a healthy agent, and of three incidents.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    process::Command,
    time::{Duration, Instant},
};

use cc_client::command;
use cc_core::{policy::heuristic_file, status::Command as Order};
use cc_ebpf::Counter;
use cc_lab::{Agent, Bottleneck, Cgroup, Footprint, Network, Outcome, eventually, unique_name};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{
    panels::{Story, Variables, dashboard, queries},
    watchers::{Watchers, example, missing, within},
};

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");
/// The default congestion control of a network namespace.
const DEFAULT: &str = "net/ipv4/tcp_congestion_control";

/// Fast enough for a record of each flow in each window, so that the ring buffer is soon full.
const FAST: Bottleneck = Bottleneck {
    rate_mbit: 100,
    queue_bytes: 2_000_000,
};
const FLOWS: usize = 500;
/// Flows of the kernel's own beside them.
const BESIDE: usize = 20;
/// Longer than an alert takes with the shipped interval.
const PATIENCE: Duration = Duration::from_secs(240);

pub(crate) fn a_prometheus_answers_the_queries_of_the_dashboard() -> Outcome {
    if let Some(reason) = missing() {
        return Outcome::Undecided(reason);
    }
    let checked = Command::new("promtool")
        .args(["check", "rules"])
        .arg(example("prometheus/rlcc.rules.yml"))
        .output()
        .expect("it starts");
    assert!(checked.status.success(), "{checked:?}");

    let network = Network::through(FAST);
    let sender = &network.path.sender;
    let name = unique_name();
    let agent = Agent::start_in(sender, BINARY, &name, &["--default"]);
    let flow = network.connect(&name).sending();
    let watchers = Watchers::start(sender, BINARY, agent.socket());
    flow.advance(100_000);
    let variables = Variables {
        rate_interval: "1m",
        cgroup: ".*",
    };
    let panels = dashboard();
    let queries = panels.iter().flat_map(queries);
    let queries: Vec<String> = queries
        .map(|(query, _)| variables.in_query(query))
        .collect();
    assert!(queries.len() > 20);
    for query in queries {
        // Rates are of two scrapes or more.
        within(PATIENCE, &query, || {
            let series = watchers
                .query(&query)
                .unwrap_or_else(|error| panic!("{query}: {error}"));
            (!series.is_empty()).then_some(())
        });
    }
    let beside = format!("rlcc_observed_acked_bytes_total{{congestion_control=\"{name}\"}} > 0");
    let beside = watchers.query(&beside).expect("it is a query");
    assert_eq!(beside.len(), 1, "the observer sees the agent's flow");
    let decided = watchers
        .query("sum(rlcc_flows_by_mode)")
        .expect("it is a query");
    assert_ne!(decided[0]["value"][1], "0", "the flow is counted");
    Outcome::Passed
}

pub(crate) fn incidents_are_alerted_and_the_runbook_ends_them() -> Outcome {
    if let Some(reason) = missing() {
        return Outcome::Undecided(reason);
    }
    let directory = TempDir::new().expect("a directory for the test");
    let network = Network::through(FAST);
    let sender = &network.path.sender;
    sender.set_sysctl(DEFAULT, "reno");
    let name = unique_name();
    let arguments = ["--default", "--policy", "heuristic"];
    let agent = Agent::start_in(sender, BINARY, &name, &arguments);
    let watchers = Watchers::start(sender, BINARY, agent.socket());
    // The observer sees flows of the whole host: those of this test have a cgroup of their own.
    let cgroup = Cgroup::new().ok();
    let mut story = Story::begin();
    let fires = |alert: &str| watchers.alerts().iter().any(|found| found == alert);
    let alerted = |alert: &str| {
        let ((), took) = within(PATIENCE, alert, || fires(alert).then_some(()));
        println!("{alert} alerted after {:.0} s", took.as_secs_f64());
    };
    let resolved = |alert: &str| {
        let ((), took) = within(PATIENCE, alert, || (!fires(alert)).then_some(()));
        println!("{alert} resolved after {:.0} s", took.as_secs_f64());
    };
    let connect = || (network.crowd(&name, FLOWS), network.crowd("reno", BESIDE));
    let (crowd, _beside) = match &cgroup {
        Some(cgroup) => cgroup.within(connect),
        None => connect(),
    };
    eventually("flows are decided about", || {
        (agent.status().agent.decisions > 0).then_some(())
    });
    assert_eq!(watchers.alerts(), Vec::<String>::new(), "nothing is wrong");

    // Somebody else changes the sysctl.
    story.event("somebody sets another default");
    sender.set_sysctl(DEFAULT, "reno");
    alerted("RlccDefaultTaken");
    story.event("it is set back");
    sender.set_sysctl(DEFAULT, &name);
    resolved("RlccDefaultTaken");

    // The ring buffer overflows, since the agent is stopped.
    let footprint = Footprint::of(&name);
    let stopped = Instant::now();
    story.event("the agent is stopped");
    agent.signal(Signal::SIGSTOP);
    eventually("records were dropped", || {
        (footprint.counter(Counter::RecordsDropped) > 1_000).then_some(())
    });
    let full = stopped.elapsed().as_secs_f64();
    println!("the ring was full after {full:.0} s, and the agent goes on");
    story.event("it goes on");
    agent.signal(Signal::SIGCONT);
    alerted("RlccRecordsDropped");
    // The remedy is processor time. With it nothing more is lost, and all flows are decided about.
    eventually("flows leave the fallback", || {
        let fallen = agent.status().modes.get("fallback").copied();
        (fallen.unwrap_or_default() * 50 < FLOWS).then_some(())
    });
    let dropped = footprint.counter(Counter::RecordsDropped);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(footprint.counter(Counter::RecordsDropped), dropped);

    // The policy hangs, is started again, and hangs again.
    story.event("the policy hangs");
    let former = stop_policy(&agent, None);
    eventually("it was started again", || {
        (agent.status().agent.policies_restarted == 1).then_some(())
    });
    story.event("it hangs again");
    stop_policy(&agent, Some(former));
    alerted("RlccNotDeciding");
    assert!(fires("RlccPolicyFailed"), "{:?}", watchers.alerts());
    let file = directory.path().join("heuristic.onnx");
    fs::write(&file, heuristic_file()).expect("writes");
    story.event("another policy is loaded");
    let outcome = command(agent.socket(), Order::Reload { file });
    assert!(outcome.is_ok(), "{outcome:?}");
    resolved("RlccNotDeciding");
    assert_eq!(crowd.failed(), 0, "no flow was reset");
    let label = cgroup
        .as_ref()
        .and_then(|cgroup| cgroup.directory().file_name());
    let label = label.map(|label| format!("/{}", label.to_string_lossy()));
    story.draw(&watchers, label.as_deref().unwrap_or(".*"));
    Outcome::Passed
}

pub(crate) fn the_watchdog_is_not_fed_without_a_policy() {
    let directory = TempDir::new().expect("a directory for the test");
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("the directory is ours");
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("it is no zero");
    let network = Network::through(FAST);
    let name = unique_name();
    let mut command = Command::new(BINARY);
    command.env("NOTIFY_SOCKET", &path);
    let agent = Agent::start_by(command, &name, &["--policy", "heuristic"]);
    let hear = || {
        let mut bytes = [0; 1_024];
        let length = manager
            .recv(&mut bytes)
            .expect("it says something each second");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert_eq!(hear(), "READY=1");
    let flow = network.connect(&name).sending();
    flow.advance(10_000);
    while hear() != "WATCHDOG=1" {}
    let former = stop_policy(&agent, None);
    eventually("it was started again", || {
        (agent.status().agent.policies_restarted == 1).then_some(())
    });
    stop_policy(&agent, Some(former));
    eventually("it was given up", || {
        (agent.status().agent.policies_replaced == 1).then_some(())
    });
    // Two lines on the state without a word to the watchdog in between.
    let mut lines = 0;
    while lines < 2 {
        let said = hear();
        match said.strip_prefix("STATUS=") {
            Some(line) if line.contains("on the fallback") => lines += 1,
            _ => lines = 0,
        }
    }
    flow.advance(10_000);
}

/// Stops the process of the agent's policy, once it is another one than `former`.
fn stop_policy(agent: &Agent, former: Option<Pid>) -> Pid {
    let agent = agent.pid();
    let policy = eventually("there is a policy's process", || {
        let tasks = fs::read_dir(format!("/proc/{agent}/task")).ok()?;
        let lists = tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let lists: String = lists.collect();
        let pids = lists.split_whitespace().filter_map(|pid| pid.parse().ok());
        let mut pids = pids.map(Pid::from_raw);
        pids.find(|&pid| Some(pid) != former)
    });
    kill(policy, Signal::SIGSTOP).expect("it lives");
    policy
}
