//! Recordings of the agent's binary on the running kernel, read back and checked for completeness.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, TcpListener, TcpStream},
    os::unix::fs::MetadataExt,
    path::Path,
    process::ExitCode,
};

use cc_core::{
    rows::{FileHeader, Replay, Row},
    status::{RecordingStatus, Snapshot},
};
use cc_lab::{
    Agent, Bottleneck, Crowd, Flow, Namespace, Network, SmallDisk, eventually, unique_name,
};
use cc_recording::{files, read, recover};
use nix::sys::signal::Signal;
use tempfile::TempDir;

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        two_hundred_flows_are_recorded_whole,
        a_killed_agents_recording_is_whole_up_to_its_last_group,
        a_full_disk_costs_rows_and_nothing_else,
        rows_pair_with_sockets_by_their_cookies,
    ])
}

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");
const FLOWS: usize = 200;

/// Flows, and a link for them, that also leave processor time to a recorder on a machine that is
/// emulated: it yields to everything else.
const FEW: usize = 40;
const SLOW: u32 = 20;

/// A rule that leaves cwnds below what the flows of a crowd have to send, so that their windows are
/// decided on without end.
const RULE: [&str; 2] = ["--policy", "heuristic"];

/// A network that many flows share, and the name of the congestion control to come.
struct Bench {
    network: Network,
    name: String,
}

impl Bench {
    fn new(rate_mbit: u32) -> Self {
        // The queue holds the initial cwnds and slow start of all flows: a flow that loses its
        // first segments is opened late, by its first ACK.
        let network = Network::through(Bottleneck {
            rate_mbit,
            queue_bytes: 6_000_000,
        });
        Self {
            network,
            name: unique_name(),
        }
    }

    fn agent(&self, directory: &Path, arguments: &[&str]) -> Agent {
        let directory = directory
            .to_str()
            .expect("a scratch directory's name is ASCII");
        let mut all = vec!["--record", directory, "--serving", "softmax"];
        all.extend(arguments);
        Agent::start(BINARY, &self.name, &all)
    }

    fn crowd(&self, flows: usize) -> Crowd {
        self.network.crowd(&self.name, flows)
    }
}

fn recording(status: &Snapshot) -> &RecordingStatus {
    status.recording.as_ref().expect("it records")
}

fn wait_for(agent: &Agent, what: &str, accept: impl Fn(&Snapshot) -> bool) -> Snapshot {
    eventually(what, || Some(agent.status()).filter(&accept))
}

/// Returns the header of the last file of a directory, and all rows by flow, in the order of their
/// sequence numbers.
fn flows(directory: &Path) -> (FileHeader, BTreeMap<u64, Vec<Row>>) {
    let mut flows: BTreeMap<u64, Vec<Row>> = BTreeMap::new();
    let mut header = None;
    for file in files(directory).expect("recordings") {
        let (found, rows) = read(&file).expect("a complete file");
        for row in rows {
            let row = row.expect("a sound row");
            flows.entry(row.flow).or_default().push(row);
        }
        header = Some(found);
    }
    for rows in flows.values_mut() {
        rows.sort_by_key(|row| row.sequence);
    }
    (header.expect("at least one file"), flows)
}

/// Asserts that a flow's rows are numbered from 0 without gaps, and that only the last is its end.
fn assert_gapless(rows: &[Row]) {
    let found: Vec<_> = rows.iter().map(|row| row.sequence).collect();
    assert_eq!(found, (0..rows.len() as u32).collect::<Vec<_>>());
    assert!(
        rows.windows(2)
            .all(|pair| pair[0].window.index < pair[1].window.index)
    );
    assert!(
        rows.windows(2).all(|pair| !pair[0].end),
        "an end in the middle"
    );
}

fn two_hundred_flows_are_recorded_whole() {
    let bench = Bench::new(100);
    let directory = TempDir::new().expect("a scratch directory");
    // Files and row groups are small enough that there are many.
    let mut agent = bench.agent(
        directory.path(),
        &["--record-delay-s", "1", "--record-file-s", "2"],
    );
    let crowd = bench.crowd(FLOWS);
    wait_for(&agent, "each flow had thirty decisions", |status| {
        status.agent.decisions >= 30 * FLOWS as u64
    });
    drop(crowd);
    let status = wait_for(&agent, "all flows were closed and on the disk", |status| {
        status.live_flows == 0 && recording(status).rows == status.agent.windows
    });
    let (ended, log) = agent.end(Signal::SIGTERM);
    assert!(ended.success(), "{log}");

    let (header, flows) = flows(directory.path());
    assert_eq!(flows.len(), FLOWS);
    assert_eq!(header.policy.len(), 64, "the hash of the policy's file");
    assert_eq!(header.addresses.name(), "absent");
    assert!(!header.kernel.is_empty() && header.host.contains_key("net.ipv4.tcp_sack"));
    let (mut rows, mut decisions, mut explored) = (0, 0, BTreeSet::new());
    for flow in flows.values() {
        assert_gapless(flow);
        assert!(
            flow.last().is_some_and(|row| row.end),
            "its end was recorded"
        );
        let mut replay = Replay::new();
        for row in flow {
            let observation = replay.next(&header.interface, row);
            assert!(observation.iter().all(|value| value.is_finite()));
            assert!(row.local.is_none() && row.remote.is_none());
            rows += 1;
            let Some(decision) = &row.decision else {
                continue;
            };
            decisions += 1;
            let action = decision.action.expect("the policy chooses actions");
            let probabilities = decision.probabilities.as_ref().expect("sampled actions");
            assert_eq!(
                decision.probability,
                Some(probabilities[usize::from(action)])
            );
            let bounds = header.interface.cwnd;
            let space = &header.interface.actions;
            let cwnd = space.apply(usize::from(action), decision.base_cwnd, bounds);
            assert_eq!(decision.cwnd, cwnd);
            explored.insert(action);
        }
    }
    assert_eq!(rows, status.agent.windows);
    assert_eq!(decisions, status.agent.decisions);
    assert!(explored.len() > 1, "softmax explores: {explored:?}");
    let recording = recording(&status);
    let lost = recording.rows_lost_behind + recording.rows_lost_unwritten;
    assert_eq!(lost + recording.rows_lost_unanswered, 0);
}

fn a_killed_agents_recording_is_whole_up_to_its_last_group() {
    let bench = Bench::new(SLOW);
    let directory = TempDir::new().expect("a scratch directory");
    let delayed = [&["--record-delay-s", "1"], &RULE[..]].concat();
    let mut agent = bench.agent(directory.path(), &delayed);
    let crowd = bench.crowd(FEW);
    let status = wait_for(&agent, "some groups were on the disk", |status| {
        recording(status).rows > 20 * FEW as u64
    });
    assert!(files(directory.path()).is_err(), "no file is complete yet");
    assert_eq!(
        recover(directory.path()).expect("readable"),
        [],
        "a file that is being written is left alone"
    );
    agent.end(Signal::SIGKILL);

    // The next agent completes the file and adopts the flows.
    let mut next = bench.agent(directory.path(), &RULE);
    let (_, before) = flows(directory.path());
    let rows: usize = before.values().map(Vec::len).sum();
    assert!(rows as u64 >= recording(&status).rows, "{rows} of {status}");
    assert_eq!(before.len(), FEW);
    before.values().for_each(|rows| assert_gapless(rows));
    wait_for(&next, "the flows were decided on again", |status| {
        status.agent.decisions >= 5 * FEW as u64
    });
    drop(crowd);
    next.end(Signal::SIGTERM);
    let (_, after) = flows(directory.path());
    assert_eq!(after.len(), 2 * FEW, "other episodes of the same flows");
    after.values().for_each(|rows| assert_gapless(rows));
    let open = fs::read_dir(directory.path()).expect("it exists").count();
    assert_eq!(open, files(directory.path()).expect("recordings").len());
}

fn a_full_disk_costs_rows_and_nothing_else() {
    let bench = Bench::new(SLOW);
    let place = TempDir::new().expect("a scratch directory");
    let disk = SmallDisk::mount(place.path(), "300k");
    let arguments = ["--record-delay-s", "1", "--record-addresses", "plain"];
    let arguments = [&arguments[..], &RULE].concat();
    let mut agent = bench.agent(place.path(), &arguments);
    let crowd = bench.crowd(FEW);
    let full = wait_for(&agent, "rows were lost on the full disk", |status| {
        recording(status).rows_lost_unwritten > 0
    });
    assert!(recording(&full).trouble.is_some());
    let later = wait_for(&agent, "decisions went on", |status| {
        status.agent.decisions >= full.agent.decisions + 10 * FEW as u64
    });
    assert_eq!(later.agent.answers_invalid + later.agent.windows_missed, 0);
    assert_eq!(later.live_flows, FEW);
    disk.resize("64m");
    wait_for(&agent, "there was room again", |status| {
        let now = recording(status);
        now.trouble.is_none() && now.rows > recording(&later).rows
    });
    drop(crowd);
    wait_for(&agent, "all flows were closed", |status| {
        status.live_flows == 0
    });
    let (ended, log) = agent.end(Signal::SIGTERM);
    assert!(ended.success(), "{log}");
    assert!(
        log.contains("cannot be written") || log.contains("No space"),
        "{log}"
    );

    let mut seen = BTreeSet::new();
    let (_, flows) = flows(place.path());
    for row in flows.values().flatten() {
        assert!(seen.insert((row.flow, row.sequence)), "twice");
        assert!(
            row.local
                .as_ref()
                .is_some_and(|address| address.contains(':'))
        );
    }
    let open = fs::read_dir(place.path()).expect("it exists").count();
    assert_eq!(open, files(place.path()).expect("recordings").len());
}

/// Nobody asks for a socket's cookie before its rows are recorded, so that it is the agent that has
/// the kernel assign it.
fn rows_pair_with_sockets_by_their_cookies() {
    const OLDER: &str = "older than the agent";
    let bench = Bench::new(SLOW);
    let sender = &bench.network.path.sender;
    let directory = TempDir::new().expect("a scratch directory");
    let older = bench.network.connect("reno");
    let mut agent = Agent::start_in(
        sender,
        BINARY,
        &bench.name,
        &[
            "--default",
            "--record",
            directory.path().to_str().expect("its name is ASCII"),
            "--record-addresses",
            "plain",
        ],
    );
    let switch = |flow: &Flow| {
        let set = flow.socket().set_tcp_congestion(bench.name.as_bytes());
        set.expect("it is registered");
    };
    switch(&older);
    let chosen = bench.network.connect(&bench.name);
    let switched = bench.network.connect("reno");
    switched.send(10_000);
    switch(&switched);
    let accepted = accepted_from(&bench.network.path.receiver, sender, chosen.local().ip());
    let flows = [
        ("chosen before it connected", chosen),
        ("switched while open", switched),
        ("accepted, by default", accepted),
        (OLDER, older),
    ]
    .map(|(how, flow)| (how, flow.sending()));
    wait_for(&agent, "rows of all flows were made", |status| {
        status.live_flows == flows.len() && status.agent.windows >= 40
    });
    let (ended, log) = agent.end(Signal::SIGTERM);
    assert!(ended.success(), "{log}");

    let namespace = sender.within(|| fs::metadata("/proc/thread-self/ns/net"));
    let namespace = namespace.expect("/proc is mounted").ino();
    let (_, recorded) = self::flows(directory.path());
    for (how, flow) in &flows {
        assert_eq!(flow.congestion_control(), bench.name, "{how}");
        let local = flow.local().to_string();
        let mut rows = recorded.values().flatten();
        let row = rows.find(|row| row.local.as_deref() == Some(&local));
        let row = row.unwrap_or_else(|| panic!("{how}: no row of {local}"));
        assert_eq!(u64::from(row.netns), namespace, "{how}");
        if *how == OLDER && log.contains("will have no cookies in their rows") {
            eprintln!("SKIPPED: {how}: no function can be traced here");
            assert_eq!(row.cookie, 0, "{how}");
            continue;
        }
        let cookie = flow.socket().cookie().expect("Linux has cookies");
        assert_eq!(row.cookie, cookie, "{how}");
    }
}

/// Connects from `from` to a socket that listens in `to`, and returns the accepted end. The other
/// end discards what it receives.
fn accepted_from(from: &Namespace, to: &Namespace, address: IpAddr) -> Flow {
    let listener = to.within(|| TcpListener::bind((address, 0)));
    let listener = listener.expect("the namespace has this address");
    let address = listener.local_addr().expect("it is bound");
    from.spawn(move || {
        let mut stream = TcpStream::connect(address).expect("somebody listens");
        // The accepted end is reset when it is dropped.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let (accepted, _) = listener.accept().expect("somebody connects");
    accepted.into()
}
