//! Observing flows of other congestion controls on the running kernel, between network namespaces.
//!
//! No assertion depends on the machine's speed: they are about exact integers, the order of events,
//! and things that happen eventually or never.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::MetadataExt,
    process::{Child, ChildStderr, Command, ExitCode, Stdio},
};

use bytemuck::Zeroable;
use cc_agent::kernel::{
    Error, Observer,
    observer::{Options, Way},
};
use cc_core::rows::{NO_MODE, Row};
use cc_ebpf::{
    AckFilter, AckRecord, Counter, FEATURES, Feature, Header, Identity, Mode, OpenedRecord, Prefix,
    WindowRecord,
};
use cc_lab::{
    Bottleneck, Cgroup, Flow, Footprint, Network, Outcome, Tap, TcpInfo, assert_window_is,
    datapath_options, eventually, is_same_flow, observer_options, unique_name,
    within_five_attempts,
};
use cc_recording::{files, read};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        features_equal_those_of_the_datapath_by_fentry,
        features_equal_those_of_the_datapath_by_tracepoint,
        features_equal_those_of_the_datapath_by_kprobe,
        features_equal_those_of_the_datapath_with_losses_by_fentry,
        features_equal_those_of_the_datapath_with_losses_by_tracepoint,
        features_equal_those_of_the_datapath_with_losses_by_kprobe,
        flows_of_any_congestion_control_by_fentry,
        flows_of_any_congestion_control_by_tracepoint,
        flows_of_any_congestion_control_by_kprobe,
        observed_cwnds_of_reno_follow_its_rule,
        attaching_and_detaching_change_nothing,
        a_flow_from_before_the_observer_is_observed,
        a_change_of_congestion_control_opens_another_flow,
        only_selected_flows_are_observed,
        a_selected_cgroup_includes_those_below_it,
        flows_beyond_the_slots_are_left_alone,
        nothing_is_left_in_the_kernel,
        the_command_records_windows_and_changes_of_cwnd,
        a_killed_observer_leaves_nothing,
        metrics_tell_congestion_controls_and_cgroups_apart,
        metrics_are_of_a_bounded_number_of_cgroups,
        bad_input_is_refused,
    ])
}

/// At 20 Mbit/s a packet takes 0.6 ms: enough ACKs for statistics, little work for the machine.
const RATE_MBIT: u32 = 20;

/// A queue that the flows of these tests do not fill.
const ROOMY: Bottleneck = Bottleneck {
    rate_mbit: RATE_MBIT,
    queue_bytes: 3_000_000,
};

/// A queue of some twenty packets: a cwnd of forty loses some.
const TIGHT: Bottleneck = Bottleneck {
    rate_mbit: RATE_MBIT,
    queue_bytes: 30_000,
};

/// A network, and an observer of the flows to its sink.
struct Bench {
    network: Network,
    observer: Tap<Observer>,
}

impl Bench {
    fn new(bottleneck: Bottleneck, change: impl FnOnce(&mut Options)) -> Self {
        let network = Network::through(bottleneck);
        let mut options = observer_options(network.sink.port());
        change(&mut options);
        Self {
            network,
            observer: Tap::observe(&options),
        }
    }

    fn connect(&self, congestion_control: &str) -> Flow {
        self.network.connect(congestion_control)
    }

    /// Returns the windows and ACKs of a flow, once it is closed.
    fn all_of(&self, opened: &OpenedRecord) -> (Vec<WindowRecord>, Vec<AckRecord>) {
        self.observer.closed(opened);
        self.observer.assert_nothing_lost();
        self.observer.seen(|seen| {
            let windows = seen.windows.iter();
            let acks = seen.acks.iter();
            (
                windows
                    .filter(|w| is_same_flow(&w.header, &opened.header))
                    .copied()
                    .collect(),
                acks.filter(|a| is_same_flow(&a.header, &opened.header))
                    .copied()
                    .collect(),
            )
        })
    }
}

fn total(acks: &[AckRecord], feature: Feature) -> u64 {
    let values = acks.iter().map(|ack| ack.features[feature as usize]);
    values.map(u64::from).sum()
}

/// Returns those of the congestion controls that this kernel has, and prints which are missing.
fn available(wanted: &[&'static str]) -> Vec<&'static str> {
    let (there, missing): (Vec<_>, Vec<_>) = wanted
        .iter()
        .partition(|name| cc_agent::kernel::datapath::registered(name));
    for name in missing {
        eprintln!("SKIPPED: {name}: this kernel has no such congestion control");
    }
    there
}

/// Runs a test by a way to observe, if this kernel has it and the host permits it.
fn by(way: Way, test: impl FnOnce(Way)) -> Outcome {
    let options = Options {
        by: Some(way),
        ..observer_options(1)
    };
    match Observer::attach(&options) {
        Ok(observer) => drop(observer),
        Err(error @ Error::NotTraceable { .. }) => return Outcome::Undecided(error.to_string()),
        Err(Error::System { what, source }) if source.raw_os_error() == Some(libc::EPERM) => {
            return Outcome::Undecided(format!("this host forbids it: {what}"));
        }
        Err(error) => panic!("{error}"),
    }
    test(way);
    Outcome::Passed
}

fn features_equal_those_of_the_datapath_by_fentry() -> Outcome {
    by(Way::Fentry, features_equal)
}

fn features_equal_those_of_the_datapath_by_tracepoint() -> Outcome {
    by(Way::Tracepoint, features_equal)
}

fn features_equal_those_of_the_datapath_by_kprobe() -> Outcome {
    by(Way::Kprobe, features_equal)
}

fn features_equal_those_of_the_datapath_with_losses_by_fentry() -> Outcome {
    by(Way::Fentry, features_equal_with_losses)
}

fn features_equal_those_of_the_datapath_with_losses_by_tracepoint() -> Outcome {
    by(Way::Tracepoint, features_equal_with_losses)
}

fn features_equal_those_of_the_datapath_with_losses_by_kprobe() -> Outcome {
    by(Way::Kprobe, features_equal_with_losses)
}

fn flows_of_any_congestion_control_by_fentry() -> Outcome {
    by(Way::Fentry, flows_of_any_congestion_control)
}

fn flows_of_any_congestion_control_by_tracepoint() -> Outcome {
    by(Way::Tracepoint, flows_of_any_congestion_control)
}

fn flows_of_any_congestion_control_by_kprobe() -> Outcome {
    by(Way::Kprobe, flows_of_any_congestion_control)
}

fn features_equal(way: Way) {
    let both = within_five_attempts("a flow loses nothing", || {
        let bench = Bench::new(ROOMY, |options| options.by = Some(way));
        bench.network.path.without_timeouts();
        let both = observed_and_controlled(&bench, 15, |_| Some(40));
        (total(&both.own, Feature::Lost) == 0).then_some(both)
    });
    if way.has_rate_samples() {
        both.assert_equal();
    } else {
        both.assert_mostly_equal(95, 95);
    }
}

fn features_equal_with_losses(way: Way) {
    // Windows whose cwnd makes the queue overflow, and windows whose cwnd lets it drain.
    let bench = Bench::new(TIGHT, |options| options.by = Some(way));
    let both = observed_and_controlled(&bench, 30, |window| {
        Some(if window.index % 4 < 2 { 60 } else { 8 })
    });
    for feature in [Feature::Lost, Feature::Retransmitted, Feature::RtxCount] {
        assert!(total(&both.own, feature) > 0, "{feature:?}");
    }
    if way.has_rate_samples() {
        both.assert_equal();
    } else {
        both.assert_mostly_equal(85, 60);
    }
}

impl Both {
    /// Asserts that everything is equal to the bit, including the times.
    fn assert_equal(&self) {
        assert_eq!(self.observed.len(), self.own.len());
        let in_common = |ack: &AckRecord| (ack.header.time_ns, ack.window, ack.cwnd, ack.features);
        for (position, (observed, own)) in self.observed.iter().zip(&self.own).enumerate() {
            assert_eq!(in_common(observed), in_common(own), "ACK {position}");
        }
        assert_eq!(self.observed_windows.len(), self.own_windows.len());
        for (observed, own) in self.observed_windows.iter().zip(&self.own_windows) {
            let expected = WindowRecord {
                header: Header {
                    slot: observed.header.slot,
                    generation: observed.header.generation,
                    ..own.header
                },
                // Observed windows have no decisions.
                decision: 0,
                decision_taken_ns: 0,
                mode: Mode::Startup as u32,
                ..*own
            };
            assert_eq!(*observed, expected);
        }
    }

    /// Asserts that most ACKs are equal. The socket does not show everything
    /// ([`cc_ebpf::Glimpse::ack_before`]), and a segment may be missed.
    ///
    /// At least `percent` of the ACKs must be observed at the same time, with each feature equal to
    /// the bit; features of the RTT in at least `percent_rtt`. Sums of bytes may lack the last
    /// ACKs.
    fn assert_mostly_equal(&self, percent: usize, percent_rtt: usize) {
        let own: BTreeMap<u64, &AckRecord> = self
            .own
            .iter()
            .map(|ack| (ack.header.time_ns, ack))
            .collect();
        let mut known = 0;
        let mut equal = [0; FEATURES];
        for ack in &self.observed {
            let Some(own) = own.get(&ack.header.time_ns) else {
                continue;
            };
            known += 1;
            for (index, equal) in equal.iter_mut().enumerate() {
                *equal += usize::from(ack.features[index] == own.features[index]);
            }
        }
        eprintln!(
            "of {} ACKs {} were observed, {known} of them at the same time; \
             features equal in {equal:?}",
            self.own.len(),
            self.observed.len()
        );
        assert!(100 * known >= percent * self.own.len());
        for (feature, equal) in Feature::ALL.into_iter().zip(equal) {
            let percent = match feature {
                Feature::RttStanding | Feature::LatestRtt | Feature::Delay => percent_rtt,
                _ => percent,
            };
            assert!(
                100 * equal >= percent * known,
                "{feature:?}: {equal} of {known}"
            );
        }
        for feature in [Feature::Sent, Feature::Retransmitted] {
            let (observed, own) = (total(&self.observed, feature), total(&self.own, feature));
            assert!(observed <= own && 100 * observed >= 99 * own, "{feature:?}");
        }
    }
}

/// The records that the datapath and the observer made of the same flow.
struct Both {
    observed_windows: Vec<WindowRecord>,
    own_windows: Vec<WindowRecord>,
    observed: Vec<AckRecord>,
    own: Vec<AckRecord>,
}

/// Runs a flow that the datapath controls and the bench observes, for that many windows.
fn observed_and_controlled(
    bench: &Bench,
    windows: usize,
    decide: fn(&WindowRecord) -> Option<u32>,
) -> Both {
    let name = unique_name();
    let mut options = datapath_options(&name);
    options.settings = options.settings.with_ack_filter(AckFilter::All);
    let agent = Tap::serve(&options);
    agent.decide_by(decide);

    let flow = bench.connect(&name);
    while agent.seen(|seen| seen.windows.len()) < windows {
        flow.send(50_000);
    }
    let opened = bench.observer.opened(&flow);
    at_rest(&flow);
    flow.finish();
    drop(flow);
    let (observed_windows, observed) = bench.all_of(&opened);
    let closed = bench.observer.seen(|seen| seen.closed[0]);
    agent.wait_for("the flow was closed", |seen| seen.closed.first().copied());
    agent.assert_nothing_lost();

    agent.seen(|seen| {
        let own = seen.opened[0].identity;
        // Only a flow that is controlled says by which programs.
        assert_ne!(own.programs, 0);
        assert_eq!(opened.identity, Identity { programs: 0, ..own });
        assert_eq!(opened.identity.congestion_control(), name);
        assert_eq!(opened.header.time_ns, seen.opened[0].header.time_ns);
        let own = seen.closed[0];
        assert_eq!(closed.totals, own.totals);
        assert_eq!(closed.cwnd, own.cwnd);
        Both {
            observed_windows,
            own_windows: seen.windows.clone(),
            observed,
            own: seen.acks.clone(),
        }
    })
}

fn flows_of_any_congestion_control(way: Way) {
    for name in available(&["cubic", "bbr", "reno"]) {
        let bench = Bench::new(TIGHT, |options| options.by = Some(way));
        let flow = bench.connect(name);
        let mut sent = 0;
        while bench.observer.seen(|seen| seen.windows.len()) < 10 {
            flow.send(50_000);
            sent += 50_000;
        }
        let opened = bench.observer.opened(&flow);
        assert_eq!(opened.identity.congestion_control(), name);
        let cookie = flow.socket().cookie().expect("Linux has cookies");
        // Nobody else has asked for it before, and programs at kprobes may not.
        let seen = if way == Way::Kprobe { 0 } else { cookie };
        assert_eq!(opened.identity.cookie, seen);
        let rest = at_rest(&flow);
        // The ACK before is seen with the ACK of this byte, at the latest.
        flow.send(1);
        at_rest(&flow);
        let info = flow.finish();
        assert_eq!(flow.congestion_control(), name, "it was left as it was");
        assert_eq!(bench.network.sink.received_from(flow.port()), sent + 1);
        drop(flow);

        let (windows, acks) = bench.all_of(&opened);
        let mut by_window: BTreeMap<u32, Vec<AckRecord>> = BTreeMap::new();
        for ack in &acks {
            by_window.entry(ack.window).or_default().push(*ack);
        }
        for (position, window) in windows.iter().enumerate() {
            assert_eq!(window.index as usize, position + 1);
            assert_window_is(window, &by_window[&window.index]);
        }
        let unseen = u64::from(!way.has_rate_samples());
        assert_eq!(
            total(&acks, Feature::Sent),
            info.bytes_sent - unseen,
            "{name}"
        );
        assert_eq!(total(&acks, Feature::Retransmitted), info.bytes_retrans);
        let mut newest = acks.iter().rev().take(4);
        assert!(newest.any(|ack| ack.features[Feature::SmoothedRtt as usize] == rest.rtt));
        let cwnds = acks.iter().map(|ack| ack.cwnd);
        assert!(
            cwnds.clone().max() > cwnds.min(),
            "{name} changed its cwnd, and each ACK shows the cwnd that it found"
        );
        let closed = bench.observer.seen(|seen| seen.closed[0]);
        assert_eq!(closed.totals.bytes_sent, info.bytes_sent);
        assert_eq!(closed.bytes_acked, info.bytes_acked);
        assert_eq!(closed.delivered, info.delivered);
        assert_eq!(closed.cwnd, info.snd_cwnd);
    }
}

/// Each cwnd follows from the one before by the kernel's own Reno: in slow start without losses an
/// ACK adds what it acknowledged, or nothing where the cwnd was not used fully
/// (`tcp_reno_cong_avoid`).
fn observed_cwnds_of_reno_follow_its_rule() {
    for name in available(&["reno"]) {
        let (opened, acks, info) = within_five_attempts("a flow loses nothing", || {
            let bench = Bench::new(ROOMY, |_| {});
            bench.network.path.without_timeouts();
            let flow = bench.connect(name);
            flow.send(1_500_000);
            let opened = bench.observer.opened(&flow);
            at_rest(&flow);
            let info = flow.finish();
            drop(flow);
            let (_, acks) = bench.all_of(&opened);
            (info.total_retrans == 0).then_some((opened, acks, info))
        });
        assert_eq!((info.bytes_sent, info.bytes_retrans), (1_500_000, 0));
        assert_eq!(acks[0].cwnd, 10, "the initial cwnd");
        let mut grown = 0;
        for pair in acks.windows(2) {
            let mss = opened.identity.mss;
            let acked = pair[0].features[Feature::Acked as usize] / mss;
            let step = pair[1].cwnd - pair[0].cwnd;
            assert!(step == acked || step == 0, "{step} after {acked}");
            grown += u32::from(step > 0);
        }
        assert!(grown > 100, "{grown} of {} ACKs", acks.len());
    }
}

fn attaching_and_detaching_change_nothing() {
    for name in available(&["cubic", "bbr"]) {
        let network = Network::through(TIGHT);
        let options = observer_options(network.sink.port());
        let flow = network.connect(name);
        flow.send(1_000_000);
        let before = at_rest(&flow);
        let observer = Tap::observe(&options);
        assert_eq!(at_rest(&flow), before, "{name}: attached");
        drop(observer);
        assert_eq!(at_rest(&flow), before, "{name}: detached");

        // The flow works on while an observer comes and goes.
        let observer = Tap::observe(&options);
        flow.send(300_000);
        drop(observer);
        flow.send(300_000);
        flow.finish();
        assert_eq!(network.sink.received_from(flow.port()), 1_600_000, "{name}");
    }
}

/// Waits until all data of a flow is acknowledged, and returns its TCP_INFO.
///
/// Members that change with time are set to 0, and so are those that the receiver still changes
/// with window updates, which may come at any time later. All others stay as they are until the
/// flow sends again.
fn at_rest(flow: &Flow) -> TcpInfo {
    let mut last = TcpInfo::zeroed();
    eventually("the flow came to rest", || {
        let info = TcpInfo {
            last_data_sent: 0,
            last_ack_sent: 0,
            last_data_recv: 0,
            last_ack_recv: 0,
            segs_in: 0,
            snd_wnd: 0,
            ..flow.info()
        };
        // The kernel copies the pacing rates out before it locks the socket, so that one reading
        // may mix two states.
        let rests = info == last && info.unacked == 0 && info.notsent_bytes == 0;
        last = info;
        rests.then_some(info)
    })
}

fn a_flow_from_before_the_observer_is_observed() {
    let network = Network::through(ROOMY);
    let flow = network.connect("reno");
    flow.send(200_000);
    let before = at_rest(&flow);
    let bench = Bench {
        observer: Tap::observe(&observer_options(network.sink.port())),
        network,
    };
    let mut sent = 0;
    while bench.observer.seen(|seen| seen.windows.len()) < 3 {
        flow.send(50_000);
        sent += 50_000;
    }
    let opened = bench.observer.opened(&flow);
    at_rest(&flow);
    let info = flow.finish();
    assert_eq!(info.bytes_sent, before.bytes_sent + sent);
    drop(flow);
    let (windows, acks) = bench.all_of(&opened);
    assert_eq!(windows[0].index, 1);
    // Data sent before the first ACK observed is not counted; all later data is.
    let counted = total(&acks, Feature::Sent);
    assert!((sent / 2..sent).contains(&counted), "{counted} of {sent}");
}

fn a_change_of_congestion_control_opens_another_flow() {
    let bench = Bench::new(ROOMY, |_| {});
    let flow = bench.connect("reno");
    flow.send(100_000);
    let first = bench.observer.opened(&flow);
    let socket = flow.socket();
    for name in available(&["cubic"]) {
        at_rest(&flow);
        socket
            .set_tcp_congestion(name.as_bytes())
            .expect("the kernel has it");
        flow.send(100_000);
        let (_, acks) = bench.all_of(&first);
        assert_eq!(total(&acks, Feature::Sent), 100_000);
        let second = bench.observer.wait_for("the flow was seen anew", |seen| {
            let mut opened = seen.opened.iter();
            opened
                .find(|o| o.identity.congestion_control() == name)
                .copied()
        });
        assert_eq!(second.identity.local_port, first.identity.local_port);
        flow.finish();
    }
    assert_eq!(first.identity.congestion_control(), "reno");
}

fn only_selected_flows_are_observed() {
    let controls = available(&["cubic", "reno"]);
    let [selected, other] = controls[..] else {
        return;
    };
    type Change<'a> = &'a dyn Fn(&mut Options);
    let name = {
        let mut bytes = [0; 16];
        bytes[..selected.len()].copy_from_slice(selected.as_bytes());
        bytemuck::cast::<[u8; 16], [u32; 4]>(bytes)
    };
    let by_name: Change<'_> = &|options| {
        options.selection.congestion_controls_len = 1;
        options.selection.congestion_controls[0] = name;
    };
    let by_network: Change<'_> = &|options| {
        options.selection.remote_len = 1;
        options.selection.remote[0] = Prefix {
            address: [u32::from_ne_bytes([0xfd, 0x77, 0, 2]), 0, 0, 0],
            mask: [u32::MAX, 0, 0, 0],
        };
    };
    for change in [by_name, by_network] {
        let bench = Bench::new(ROOMY, change);
        let to6 = bench.network.sink.at(bench.network.path.receiver6());
        // One flow is selected and the other is not: the selected network is IPv6.
        let flows = [
            Flow::connect(&bench.network.path.sender, to6, selected),
            bench.connect(other),
        ];
        for flow in &flows {
            flow.send(200_000);
            at_rest(flow);
            flow.finish();
        }
        let wanted = flows[0].port();
        drop(flows);
        bench
            .observer
            .wait_for("the selected flow was seen", |seen| {
                (seen.closed.len() == 1).then_some(())
            });
        bench.observer.seen(|seen| {
            let ports = seen.opened.iter().map(|o| o.identity.local_port);
            assert_eq!(ports.collect::<Vec<_>>(), [wanted]);
        });
        assert_eq!(bench.observer.counter(Counter::FlowsWithoutSlot), 0);
    }
}

fn a_selected_cgroup_includes_those_below_it() {
    let cgroup = match Cgroup::new() {
        Ok(cgroup) => cgroup,
        Err(reason) => {
            eprintln!("SKIPPED: {reason}");
            return;
        }
    };
    let id = |directory| {
        let metadata = fs::metadata(directory).expect("it is there");
        metadata.ino()
    };
    let directory = cgroup.directory();
    let parent = directory.parent().expect("the root is above it");
    for (selected, seen_inside, seen_outside) in [(directory, true, false), (parent, true, true)] {
        let bench = Bench::new(ROOMY, |options| {
            options.selection.cgroups_len = 1;
            options.selection.cgroups[0] = id(selected);
        });
        let inside = cgroup.within(|| bench.connect("reno"));
        let outside = bench.connect("reno");
        let mut ports = Vec::new();
        for (flow, seen) in [(&inside, seen_inside), (&outside, seen_outside)] {
            flow.send(100_000);
            at_rest(flow);
            flow.finish();
            if seen {
                ports.push(flow.port());
            }
        }
        drop((inside, outside));
        bench.observer.wait_for("the selected flows ended", |seen| {
            (seen.closed.len() == ports.len()).then_some(())
        });
        bench.observer.seen(|seen| {
            let opened = seen.opened.iter().map(|o| o.identity.local_port);
            assert_eq!(opened.collect::<Vec<_>>(), ports);
            let first = seen.opened[0].identity.cgroup_id;
            assert_eq!(first, id(directory), "a flow names its own cgroup");
        });
    }
}

fn flows_beyond_the_slots_are_left_alone() {
    const SLOTS: u32 = 4;
    let bench = Bench::new(ROOMY, |options| options.slots = SLOTS);
    for _ in 0..2 {
        let before = bench.observer.counter(Counter::FlowsClosed);
        let flows: Vec<Flow> = (0..7).map(|_| bench.connect("reno")).collect();
        for flow in &flows {
            flow.send(60_000);
        }
        for flow in &flows {
            at_rest(flow);
            flow.finish();
            assert_eq!(bench.network.sink.received_from(flow.port()), 60_000);
        }
        drop(flows);
        eventually("all slots were given back", || {
            let closed = bench.observer.counter(Counter::FlowsClosed);
            (closed - before == u64::from(SLOTS)).then_some(())
        });
    }
    assert_eq!(bench.observer.counter(Counter::FlowsOpened), 8);
    assert_eq!(bench.observer.counter(Counter::FlowsWithoutSlot), 6);
    bench.observer.assert_nothing_lost();
}

fn nothing_is_left_in_the_kernel() {
    let bench = Bench::new(ROOMY, |_| {});
    let flow = bench.connect("reno").sending();
    let crowd = bench.network.crowd("reno", 20);
    bench.observer.wait_for("flows were seen", |seen| {
        (seen.opened.len() >= 20).then_some(())
    });
    let footprint = Footprint::of(&format!("observe{}", std::process::id()));
    assert!(footprint.programs() >= 3, "{footprint:?}");
    assert!(footprint.maps() >= 7, "{footprint:?}");

    let Bench { network, observer } = bench;
    drop(observer);
    // The flows outlive the observer, and keep none of its programs and maps.
    footprint.assert_vanishes();
    flow.advance(200_000);
    assert_eq!(crowd.failed(), 0);
    drop((flow, crowd));
    drop(network);
}

/// A running `cc-agent observe`. It is killed when it is dropped.
struct Observing {
    child: Child,
    /// What it logged until it was attached.
    start: String,
    log: BufReader<ChildStderr>,
}

impl Observing {
    /// Starts it and waits until it is attached.
    fn start(arguments: &[&str]) -> Self {
        let mut child = observe(arguments).spawn().expect("our own binary");
        let log = BufReader::new(child.stderr.take().expect("it is piped"));
        let start = String::new();
        let mut command = Self { child, start, log };
        while !command.start.contains("observing up to") {
            let read = command.log.read_line(&mut command.start).expect("text");
            assert!(read > 0, "it ended: {}", command.start);
        }
        command
    }

    /// The samples of its metrics, by name and labels.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let (_, address) = self.start.split_once("on http://").expect("it serves");
        let (address, _) = address.split_once('/').expect("it names the page");
        let mut stream = TcpStream::connect(address).expect("it listens");
        // Without chunks, as HTTP 1.0 has none.
        write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (_, page) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(page.ends_with("# EOF\n"), "{answer}");
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.map(|line| line.rsplit_once(' ').expect("a value"));
        let value = |text: &str| text.parse().expect("a number");
        samples
            .map(|(name, text)| (name.to_owned(), value(text)))
            .collect()
    }

    /// Waits until a page has what `find` looks for.
    fn eventually<T>(&self, what: &str, find: impl Fn(&Page) -> Option<T>) -> (Page, T) {
        eventually(what, || {
            let page = Page(self.scrape());
            find(&page).map(|found| (page, found))
        })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal and returns what it logged until its end.
    fn end(mut self, signal: Signal) -> String {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("our child");
        let mut text = String::new();
        self.log.read_to_string(&mut text).expect("text");
        let status = self.child.wait().expect("our child");
        assert!(signal == Signal::SIGKILL || status.success(), "{text}");
        text
    }
}

impl Drop for Observing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn observe(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cc-agent"));
    command
        .arg("observe")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn the_command_records_windows_and_changes_of_cwnd() {
    let controls = available(&["bbr", "cubic", "reno"]);
    // Without losses: after repeated timeouts a connection takes too long to come to rest.
    let network = Network::through(ROOMY);
    let directory = TempDir::new().expect("a directory for the test");
    let place = directory.path().to_str().expect("ASCII");
    let port = network.sink.port().to_string();
    let command = Observing::start(&["--record", place, "--port", &port]);

    let flows: Vec<Flow> = controls.iter().map(|name| network.connect(name)).collect();
    let mut sent = 0;
    for _ in 0..20 {
        for flow in &flows {
            flow.send(100_000);
        }
        sent += 100_000;
    }
    for flow in &flows {
        at_rest(flow);
        flow.finish();
    }
    drop(flows);
    let log = command.end(Signal::SIGINT);
    assert!(log.contains("detached"), "{log}");
    assert!(!log.contains("WARN"), "{log}");

    let mut policies = Vec::new();
    for file in files(directory.path()).expect("a recording") {
        let (header, rows) = read(&file).expect("a complete file");
        let rows: Vec<Row> = rows.collect::<Result<_, _>>().expect("complete rows");
        policies.push(header.policy);
        let interface = header.interface;
        assert!(rows.len() >= 10, "{} rows", rows.len());
        for (position, row) in rows.iter().enumerate() {
            assert_eq!((row.flow, row.sequence), (rows[0].flow, position as u32));
            assert_eq!(row.window.index as usize, position + 1);
            assert_eq!(row.window.mode, NO_MODE);
            assert_eq!(row.end, position + 1 == rows.len());
            let Some(next) = rows.get(position + 1) else {
                assert_eq!(row.decision, None);
                continue;
            };
            let decision = row.decision.as_ref().expect("a window follows");
            let (before, after) = (row.window.cwnd, next.window.cwnd);
            let nearest = interface.actions.nearest(before, after, interface.cwnd);
            assert_eq!((decision.base_cwnd, decision.cwnd), (before, after));
            assert_eq!(decision.action, Some(nearest as u8));
            assert_eq!(decision.probability, None);
            assert_eq!(decision.delay_ns, None);
        }
        let acked = rows
            .iter()
            .map(|row| row.window.features.sum[Feature::Acked as usize])
            .sum::<u64>();
        // Whole segments count, and those after the last window do not.
        assert!((sent / 2..2 * sent).contains(&acked), "{acked} of {sent}");
    }
    policies.sort();
    let expected: Vec<String> = controls
        .iter()
        .map(|name| format!("observed:{name}"))
        .collect();
    assert_eq!(policies, expected);
}

fn a_killed_observer_leaves_nothing() {
    let network = Network::through(ROOMY);
    let port = network.sink.port().to_string();
    let command = Observing::start(&["--port", &port, "--by", "tracepoint"]);
    let flow = network.connect("reno").sending();
    flow.advance(200_000);
    let footprint = Footprint::of(&format!("observe{}", command.pid()));
    assert!(footprint.programs() >= 3, "{footprint:?}");
    command.end(Signal::SIGKILL);
    footprint.assert_vanishes();
    flow.advance(200_000);
}

/// The samples of a page, by name and labels.
struct Page(BTreeMap<String, f64>);

impl Page {
    /// A figure of the flows under a congestion control in a cgroup.
    fn of(&self, metric: &str, congestion_control: &str, cgroup: &str) -> Option<f64> {
        let labels = format!("congestion_control=\"{congestion_control}\",cgroup=\"{cgroup}\"");
        let name = format!("rlcc_observed_{metric}{{{labels}}}");
        self.0.get(&name).copied()
    }

    /// How many congestion controls in cgroups have flows, or had.
    fn groups(&self) -> usize {
        let names = self.0.keys();
        names
            .filter(|name| name.starts_with("rlcc_observed_flows{"))
            .count()
    }

    /// Asserts that no count of an earlier page is missing or has fallen.
    fn assert_follows(&self, before: &Self) {
        for (name, before) in &before.0 {
            let family = name.split('{').next().expect("a name");
            let counts = ["_total", "_bucket", "_count", "_sum"];
            if counts.iter().any(|suffix| family.ends_with(suffix)) {
                let now = self.0.get(name).copied();
                assert!(now.is_some_and(|now| now >= *before), "{name}: {now:?}");
            }
        }
    }
}

/// Two cgroups, or nothing where there can be none.
fn two_cgroups() -> Option<[Cgroup; 2]> {
    let make = || {
        Cgroup::new()
            .inspect_err(|reason| eprintln!("SKIPPED: {reason}"))
            .ok()
    };
    Some([make()?, make()?])
}

/// The label of a cgroup directly below the root.
fn label_of(cgroup: &Cgroup) -> String {
    let name = cgroup.directory().file_name().expect("it has a name");
    format!("/{}", name.to_str().expect("ASCII"))
}

fn metrics_tell_congestion_controls_and_cgroups_apart() {
    let Some([shared, alone]) = two_cgroups() else {
        return;
    };
    let network = Network::through(ROOMY);
    let port = network.sink.port().to_string();
    let command = Observing::start(&["--metrics", "127.0.0.1:0", "--port", &port]);
    let (page, _) = command.eventually("it answers", |page| Some(page.groups()));
    assert_eq!(page.groups(), 0, "no flow, no group");

    let name = unique_name();
    let agent = Tap::serve(&datapath_options(&name));
    agent.decide_by(|_| Some(40));
    let groups = [(&shared, &*name), (&shared, "reno"), (&alone, "reno")];
    let flows = groups.map(|(cgroup, control)| cgroup.within(|| network.connect(control)));
    let amounts = [400_000, 200_000, 100_000];
    for (flow, amount) in flows.iter().zip(amounts) {
        flow.send(amount);
        at_rest(flow);
    }
    let (page, _) = command.eventually("each group has its flow", |page| {
        let open = groups.map(|(cgroup, name)| page.of("flows", name, &label_of(cgroup)));
        (open == [Some(1.0); 3]).then_some(())
    });
    assert_eq!(page.groups(), 3);
    let infos = flows.each_ref().map(Flow::finish);
    drop(flows);

    let (after, _) = command.eventually("the flows have closed", |page| {
        let open = groups.map(|(cgroup, name)| page.of("flows", name, &label_of(cgroup)));
        (open == [Some(0.0); 3]).then_some(())
    });
    after.assert_follows(&page);
    let exact = after
        .0
        .keys()
        .any(|name| name.starts_with("rlcc_observer_info") && name.contains("way=\"fentry\""));
    for (((cgroup, control), amount), info) in groups.into_iter().zip(amounts).zip(infos) {
        let label = label_of(cgroup);
        let figure = |metric: &str| {
            let value = after.of(metric, control, &label);
            value.unwrap_or_else(|| panic!("{metric} of {control} in {label}"))
        };
        let amount = amount as f64;
        assert_eq!(figure("opened_flows_total"), 1.0);
        // Whole segments count.
        let acked = figure("acked_bytes_total");
        assert!((amount / 2.0..2.0 * amount).contains(&acked), "{acked}");
        let sent = figure("sent_bytes_total");
        if exact {
            assert_eq!(
                sent, info.bytes_sent as f64,
                "the last window counts as well"
            );
        }
        assert!(sent >= amount / 2.0 && sent <= info.bytes_sent as f64);
        assert_eq!(figure("lost_bytes_total"), 0.0, "the queue is roomy");
        assert!(figure("sending_seconds_total") > 0.0);
        let windows = figure("windows_total");
        assert!(windows >= 1.0);
        for histogram in ["srtt_seconds_count", "queueing_delay_seconds_count"] {
            assert_eq!(figure(histogram), windows, "{histogram}");
        }
    }
    // Cgroups that are removed keep their figures, while others get theirs.
    drop((shared, alone));
    let flow = network.connect("reno");
    flow.send(50_000);
    let (last, _) = command.eventually("another flow is seen", |page| {
        (page.groups() == 4).then_some(())
    });
    last.assert_follows(&after);
    let log = command.end(Signal::SIGINT);
    assert!(!log.contains("WARN"), "{log}");
}

fn metrics_are_of_a_bounded_number_of_cgroups() {
    let Some([first, second]) = two_cgroups() else {
        return;
    };
    let network = Network::through(ROOMY);
    let port = network.sink.port().to_string();
    let arguments = ["--metrics", "127.0.0.1:0", "--cgroup-labels", "1"];
    let command = Observing::start(&[&arguments[..], &["--port", &port]].concat());
    let labels = [&label_of(&first), "other", "unknown"];
    let mut flows = Vec::new();
    for (cgroup, label) in [Some(&first), Some(&second), None].into_iter().zip(labels) {
        let flow = match cgroup {
            Some(cgroup) => cgroup.within(|| network.connect("reno")),
            // One that is removed before the flow's first ACK, and so before anybody looks.
            None => {
                let cgroup = Cgroup::new().expect("there were two");
                cgroup.within(|| network.connect("reno"))
            }
        };
        flow.send(30_000);
        command.eventually(label, |page| page.of("opened_flows_total", "reno", label));
        flows.push(flow);
    }
    let page = Page(command.scrape());
    assert_eq!(page.groups(), 3);
    assert_eq!(page.0.get("rlcc_observer_cgroups"), Some(&1.0));
}

fn bad_input_is_refused() {
    for (arguments, expected) in [
        (&["--slots", "0"][..], "--slots 0: expected 1 to"),
        (&["--remote", "10.0.0.1/8"], "bits beyond the length of 8"),
        (
            &["--cgroup", "/proc"],
            "/proc: it is no directory of a cgroup v2",
        ),
        (&["--port", "1,2,3,4,5,6,7,8,9"], "at most 8"),
        (&["--record", "/proc/nowhere"], "/proc/nowhere"),
        (
            &["--record", "/tmp", "--record-limit-mb", "1"],
            "--record-limit-mb 1",
        ),
        (
            &["--window-ms", "50"],
            "--window-ms 50 does not fit the policy default",
        ),
        (&["--policy", "/no/such.onnx"], "/no/such.onnx"),
        (&["--duration=-1"], "--duration -1"),
        (&["--by", "ftrace"], "fentry, tracepoint, kprobe"),
        (
            &["--metrics", "192.0.2.1:9467"],
            "--metrics, --expose-metrics",
        ),
        (&["--metrics", "nowhere"], "--metrics [<ADDR:PORT>]"),
        (&["--expose-metrics"], "--metrics"),
        (&["--cgroup-labels", "8"], "--metrics"),
        (&["--metrics", "--cgroup-depth", "0"], "1..=100"),
        (&["--metrics", "--cgroup-labels", "9999"], "1..=4096"),
    ] {
        let output = observe(arguments).output().expect("our own binary");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
}
