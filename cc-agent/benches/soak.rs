//! Many flows that come and go over links that change, for half an hour, while the agent is killed
//! again and again: beside the same under an agent that nobody disturbs, and under CUBIC without
//! one.
//!
//! Each of the three has a path of its own, and all run at the same time, so that a busy machine
//! slows them alike. What is to hold is listed at the end; the program fails where something
//! does not.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use cc_agent::kernel::datapath::registered;
use cc_ebpf::Counter;
use cc_lab::{
    AfterEnd, Agent, Bottleneck, Churn, Footprint, Namespace, Path, Report, Sink, eventually,
    links_register, unique_name,
};
use nix::sys::signal::Signal;

/// The default congestion control of a network namespace.
const DEFAULT: &str = "net/ipv4/tcp_congestion_control";
/// The one before the agents': that which every network namespace may have.
const FORMER: &str = "reno";
/// What the flows without an agent run under.
const CLASSICAL: &str = "cubic";
/// What the links are, one after the other. The queue, which many flows fill, makes their
/// round-trip time: 0.1 to 0.8 s.
const LINKS: [Bottleneck; 6] = [
    link(80, 1_500_000),
    link(25, 2_500_000),
    link(120, 1_500_000),
    link(50, 3_000_000),
    link(20, 2_000_000),
    link(100, 4_000_000),
];
/// Time for which a link stays as it is.
const LINK_PERIOD: Duration = Duration::from_secs(7);
/// Time before each kill at which everything is compared.
const BEFORE_KILL: Duration = Duration::from_secs(5);
/// The longest time for which it is waited until counts agree, while no connection comes or goes.
const AGREEMENT: Duration = Duration::from_secs(20);
/// The longest time for which it is waited until connections have ended: it takes retransmission
/// timeouts of connections that have lost much.
const PATIENCE: Duration = Duration::from_secs(120);
/// The share of the undisturbed goodput that the disturbed one must reach.
const LEAST_GOODPUT: f64 = 0.95;
/// By how much memory may differ between two looks: a share, and bytes.
const MEMORY_SHARE: f64 = 0.10;
const MEMORY_BYTES: f64 = 4e6;
/// One connection in this many may fail, or as many as under CUBIC if those are more: the links
/// hold two to four segments of each, and one whose every retransmission finds the queue full gives
/// up.
const FAILS_ONE_IN: u64 = 10_000;
/// One connection in this many keeps its slot after its end, because a hardened kernel leaves out
/// single callbacks (docs/datapath.md), ...
const KEEPS_SLOT_ONE_IN: u64 = 100;
/// ... until it has been idle for five minutes, and the agent has looked.
const SLOT_KEPT: Duration = Duration::from_secs(330);

const fn link(rate_mbit: u32, queue_bytes: u32) -> Bottleneck {
    Bottleneck {
        rate_mbit,
        queue_bytes,
    }
}

/// What the environment asks for.
struct Plan {
    length: Duration,
    kill_every: Duration,
    lasting: usize,
    passing: usize,
    policy: String,
}

impl Plan {
    fn from_environment() -> anyhow::Result<Self> {
        let number = |variable: &str, otherwise: u64| match std::env::var(variable) {
            Err(_) => Ok(otherwise),
            Ok(text) => (text.parse::<u64>().ok())
                .filter(|&number| number > 0)
                .with_context(|| format!("{variable}={text}: expected a whole number above 0")),
        };
        let flows = number("SOAK_FLOWS", 500)? as usize;
        let plan = Self {
            length: Duration::from_secs(number("SOAK_SECONDS", 1_800)?),
            kill_every: Duration::from_secs(number("SOAK_KILL_SECONDS", 60)?),
            lasting: flows / 5,
            passing: flows - flows / 5,
            policy: std::env::var("SOAK_POLICY").unwrap_or_else(|_| "default".into()),
        };
        if plan.kill_every < 3 * BEFORE_KILL || plan.length < 2 * plan.kill_every {
            bail!(
                "SOAK_KILL_SECONDS has to be {} at least, and SOAK_SECONDS twice as much",
                3 * BEFORE_KILL.as_secs()
            );
        }
        Ok(plan)
    }
}

fn main() -> anyhow::Result<()> {
    if let Some(reason) = cc_lab::unmet_requirement() {
        bail!("this needs the live kernel: {reason}");
    }
    let plan = Plan::from_environment()?;
    let _exclusive = cc_lab::exclusive();
    let mut undisturbed = Side::start("undisturbed", &plan);
    let mut disturbed = Side::start("disturbed", &plan);
    let classical = Traffic::start(Path::through(LINKS[0]), Some(CLASSICAL), &plan);
    run(&plan, &mut undisturbed, &mut disturbed, &classical);

    let mut report = Report::new("soak");
    let mut broken = Vec::new();
    report.show("seconds", plan.length.as_secs_f64());
    report.show("flows", (plan.lasting + plan.passing) as f64);
    report.show("kills", f64::from(disturbed.kills));
    let without_agent = disturbed.without_agent.as_secs_f64();
    report.show("longest_without_agent_s", without_agent);
    // Both at the same time, before either is ended.
    let received = [&undisturbed.traffic, &disturbed.traffic, &classical]
        .map(|traffic| traffic.sink.received() as f64);
    let ratio = received[1] / received[0];
    report.show("goodput_ratio", ratio);
    report.show("cubic_received_mb", received[2] / 1e6);
    report.show("cubic_connections", classical.churn.connected() as f64);
    report.show("cubic_failed", classical.churn.failed() as f64);
    if ratio < LEAST_GOODPUT {
        broken.push(format!(
            "goodput is {ratio:.3} of the undisturbed, not {LEAST_GOODPUT}"
        ));
    }
    for (side, received) in [undisturbed, disturbed].into_iter().zip(received) {
        report.show(format!("{}_received_mb", side.role), received / 1e6);
        side.judge(classical.churn.failed(), &mut report, &mut broken);
    }
    report.write()?;
    match broken.as_slice() {
        [] => Ok(()),
        broken => bail!("this does not hold: {}", broken.join("; ")),
    }
}

/// Lets time pass: changes all links, kills the agent of one, and looks at both
/// before each kill.
fn run(plan: &Plan, undisturbed: &mut Side, disturbed: &mut Side, classical: &Traffic) {
    let start = Instant::now();
    let (mut next_link, mut links) = (Duration::ZERO, LINKS.iter().cycle());
    let mut next_kill = plan.kill_every;
    while start.elapsed() < plan.length {
        let now = start.elapsed();
        if now >= next_link {
            let &link = links.next().expect("it goes round");
            for traffic in [&undisturbed.traffic, &disturbed.traffic, classical] {
                traffic.path.reshape(link);
            }
            next_link += LINK_PERIOD;
        }
        // No kill so late that the end comes before the agent has settled.
        if now + BEFORE_KILL >= next_kill && next_kill + 2 * BEFORE_KILL < plan.length {
            undisturbed.look(now);
            disturbed.look(now);
            while start.elapsed() < next_kill {
                thread::sleep(Duration::from_millis(10));
            }
            disturbed.kill(plan);
            next_kill += plan.kill_every;
        }
        thread::sleep(Duration::from_millis(20));
    }
    undisturbed.look(start.elapsed());
    disturbed.look(start.elapsed());
}

/// A path, and the connections over it.
struct Traffic {
    churn: Churn,
    sink: Sink,
    path: Path,
}

impl Traffic {
    /// Starts connections under the named congestion control, or under the path's default.
    fn start(path: Path, name: Option<&str>, plan: &Plan) -> Self {
        let sink = Sink::listen(&path.receiver, AfterEnd::Close);
        let to = sink.at(path.receiver4());
        let churn = Churn::start(&path.sender, to, name, plan.lasting, plan.passing);
        Self { churn, sink, path }
    }
}

/// Connections, and an agent that is their default.
struct Side {
    role: &'static str,
    name: String,
    agent: Agent,
    traffic: Traffic,
    looks: Vec<Look>,
    kills: u32,
    /// Slots that agents which were killed had taken away from idle flows.
    reclaimed: u64,
    /// The longest time from a kill until the next agent had the name.
    without_agent: Duration,
}

/// What was seen of an agent at one time.
struct Look {
    /// Time since the start of the run, at which the connections were held.
    at: Duration,
    /// Connections that were made since the start, those that have ended among them.
    connected: u64,
    /// Memory of the agent and of its policy's process, bytes.
    memory: f64,
    /// Descriptors of these two processes.
    descriptors: usize,
    /// Flows that are open, by the agent, by `ss`, and as a difference of the datapath's counters.
    live: [u64; 3],
    programs: usize,
    maps: usize,
}

impl Side {
    fn start(role: &'static str, plan: &Plan) -> Self {
        let path = Path::through(LINKS[0]);
        path.sender.set_sysctl(DEFAULT, FORMER);
        let name = unique_name();
        let agent = start_agent(&path, &name, plan);
        Self {
            role,
            name,
            agent,
            traffic: Traffic::start(path, None, plan),
            looks: Vec::new(),
            kills: 0,
            reclaimed: 0,
            without_agent: Duration::ZERO,
        }
    }

    /// Kills the agent, as a crash would end it, and starts it again, as a service manager would.
    fn kill(&mut self, plan: &Plan) {
        self.reclaimed += self.agent.status().agent.slots_reclaimed;
        let killed = Instant::now();
        self.agent.end(Signal::SIGKILL);
        self.kills += 1;
        if links_register() {
            eventually("the kernel unregistered the name", || {
                (!registered(&self.name)).then_some(())
            });
        }
        self.agent = start_agent(&self.traffic.path, &self.name, plan);
        self.without_agent = self.without_agent.max(killed.elapsed());
    }

    /// Lets no flow come or go until all that count them agree, and notes what there is.
    fn look(&mut self, at: Duration) {
        self.traffic.churn.pause(true);
        let mut live = [0; 3];
        let started = Instant::now();
        // Where they do not agree within this time, that is what is noted.
        while started.elapsed() < AGREEMENT {
            let status = self.agent.status();
            let count = |counter: Counter| status.datapath[counter.name()];
            let reclaimed = self.reclaimed + status.agent.slots_reclaimed;
            let ended = count(Counter::FlowsClosed) + reclaimed;
            let open = count(Counter::FlowsOpened).wrapping_sub(ended);
            live = [status.live_flows as u64, self.seen_by_ss(), open];
            if self.agree(at, live) {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        let footprint = Footprint::of(&self.name);
        let (memory, descriptors) = usage(self.agent.pid().as_raw());
        let look = Look {
            at,
            connected: self.traffic.churn.connected(),
            memory,
            descriptors,
            live,
            programs: footprint.programs(),
            maps: footprint.maps(),
        };
        println!(
            "{:>5.0} s  {:<12} {:>6.1} MB, {} descriptors, flows {:?} (agent, ss, counters), {} \
             programs, {} maps, {} connections, {} failed",
            at.as_secs_f64(),
            self.role,
            look.memory / 1e6,
            look.descriptors,
            look.live,
            look.programs,
            look.maps,
            self.traffic.churn.connected(),
            self.traffic.churn.failed(),
        );
        self.looks.push(look);
        self.traffic.churn.pause(false);
    }

    /// The connections that have a slot by now, as `ss` counts them: those of which anything was
    /// acknowledged.
    fn seen_by_ss(&self) -> u64 {
        let connections = connections(&self.traffic.path.sender, &self.name);
        connections
            .iter()
            .filter(|line| is_acknowledged(line))
            .count() as u64
    }

    /// Whether three counts of the live flows at a time agree: those of the agent and of the
    /// datapath's counters are equal, and that of `ss` differs by no more than the slots that ended
    /// connections may keep.
    fn agree(&self, at: Duration, [agent, ss, counters]: [u64; 3]) -> bool {
        let connected_by = |at: Duration| {
            let earlier = self.looks.iter().rev().find(|look| look.at <= at);
            earlier.map_or(0, |look| look.connected)
        };
        let connected = self.looks.iter().find(|look| look.at == at);
        let connected = connected.map_or(self.traffic.churn.connected(), |look| look.connected);
        let recent = connected - connected_by(at.saturating_sub(SLOT_KEPT));
        agent == counters && agent.abs_diff(ss) <= recent.div_ceil(KEEPS_SLOT_ONE_IN)
    }

    /// Adds the side's figures to the report, and what does not hold to `broken`. Then ends the
    /// side, and checks that nothing is left.
    fn judge(mut self, cubic_failed: u64, report: &mut Report, broken: &mut Vec<String>) {
        let role = self.role;
        let mut expect = |holds: bool, what: String| {
            if !holds {
                broken.push(format!("{role}: {what}"));
            }
        };
        let figure = |name: &str| format!("{role}_{name}");
        let status = self.agent.status();
        report.show(figure("connections"), self.traffic.churn.connected() as f64);
        report.show(figure("failed"), self.traffic.churn.failed() as f64);
        let (failed, connected) = (self.traffic.churn.failed(), self.traffic.churn.connected());
        expect(
            failed <= cubic_failed.max(connected / FAILS_ONE_IN),
            format!("{failed} of {connected} connections failed, {cubic_failed} under CUBIC"),
        );
        for counter in [
            Counter::SlotsLeaked,
            Counter::FlowsWithoutSlot,
            Counter::RecordsDropped,
        ] {
            let count = status.datapath[counter.name()];
            report.show(figure(counter.name()), count as f64);
            let matters = counter != Counter::RecordsDropped;
            expect(
                !matters || count == 0,
                format!("{} is {count}", counter.name()),
            );
        }
        report.show(figure("decisions_per_s"), {
            status.agent.decisions as f64 / status.uptime_s
        });
        for look in &self.looks {
            let [agent, ss, counters] = look.live;
            let found = format!("{agent} live flows, {ss} by ss, {counters} by counters");
            expect(self.agree(look.at, look.live), found);
        }
        let from_ss = (self.looks.iter()).map(|look| look.live[0].abs_diff(look.live[1]));
        let most = from_ss.max().unwrap_or(0);
        report.show(figure("most_difference_from_ss"), most as f64);
        if let [first, .., last] = self.looks.as_slice() {
            report.show(figure("memory_mb_first"), first.memory / 1e6);
            report.show(figure("memory_mb_last"), last.memory / 1e6);
            let most = first.memory * (1.0 + MEMORY_SHARE) + MEMORY_BYTES;
            let grown = format!("memory has grown to {:.1} MB", last.memory / 1e6);
            expect(last.memory <= most, grown);
            report.show(figure("descriptors_first"), first.descriptors as f64);
            report.show(figure("descriptors_last"), last.descriptors as f64);
            let grown = format!(
                "{} descriptors, at first {}",
                last.descriptors, first.descriptors
            );
            expect(last.descriptors <= first.descriptors, grown);
            report.show(figure("maps_first"), first.maps as f64);
            report.show(figure("maps_last"), last.maps as f64);
        }
        let footprint = Footprint::of(&self.name);
        let Traffic { churn, sink, path } = self.traffic;
        drop(churn);
        // Those that have ended before have still to send what they had written.
        let started = Instant::now();
        while !connections(&path.sender, &self.name).is_empty() && started.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(100));
        }
        let left = connections(&path.sender, &self.name).len();
        expect(left == 0, format!("{left} connections do not end"));
        let (ended, log) = self.agent.end(Signal::SIGTERM);
        expect(
            ended.success(),
            format!("the agent ended with {ended}: {log}"),
        );
        let default = path.sender.sysctl(DEFAULT);
        expect(default == FORMER, format!("the default stays {default}"));
        drop((sink, path));
        footprint.assert_vanishes();
    }
}

/// The connections of a namespace that have the congestion control, a line of `ss` for each,
/// without those whose handshake goes on.
fn connections(namespace: &Namespace, name: &str) -> Vec<String> {
    let mut command = Command::new("ss");
    namespace.hold(command.args(["-tinHO", "state", "synchronized"]));
    let output = command.output().expect("ss is part of iproute2, as ip is");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines();
    let ours = lines.filter(|line| line.split_whitespace().any(|word| word == name));
    ours.map(str::to_owned).collect()
}

/// Whether anything but the handshake of a connection, as `ss` shows it, was acknowledged.
fn is_acknowledged(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let delivered = words.find_map(|word| word.strip_prefix("delivered:")?.parse::<u64>().ok());
    delivered.is_some_and(|delivered| delivered > 1)
}

fn start_agent(path: &Path, name: &str, plan: &Plan) -> Agent {
    let arguments = ["--policy", &plan.policy, "--default"];
    Agent::start_in(
        &path.sender,
        env!("CARGO_BIN_EXE_cc-agent"),
        name,
        &arguments,
    )
}

/// Memory in bytes and descriptors of a process and of those that it has started.
fn usage(pid: i32) -> (f64, usize) {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let text = |file: &str| fs::read_to_string(process.join(file)).unwrap_or_default();
    let status = text("status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    let descriptors = fs::read_dir(process.join("fd")).map_or(0, Iterator::count);
    let mut total = (resident.unwrap_or(0.0) * 1024.0, descriptors);
    // A child belongs to the thread that has started it.
    for thread in fs::read_dir(process.join("task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
        {
            let (memory, descriptors) = usage(child);
            total = (total.0 + memory, total.1 + descriptors);
        }
    }
    total
}
