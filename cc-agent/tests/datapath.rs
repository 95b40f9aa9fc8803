//! The datapath on the running kernel, between network namespaces, without the agent: a
//! [`cc_lab::TestAgent`] in this process takes the records and publishes the decisions.
//!
//! No assertion depends on the machine's speed: they are about exact integers, the order of events,
//! and things that happen eventually or never.

use std::{
    collections::BTreeMap, fs, net::SocketAddr, os::unix::fs::MetadataExt, process::ExitCode,
};

use cc_agent::kernel::{Datapath, Error, Options, clock::now_ns, datapath::registered};
use cc_ebpf::{
    AckFilter, AckRecord, Counter, Decision, Feature, Identity, Mode, Startup, WindowRecord,
};
use cc_lab::{
    Bottleneck, Cgroup, Flow, Footprint, Network, Tap, TcpInfo, TestAgent, assert_window_is,
    datapath_options, eventually, is_same_flow, unique_name, within_five_attempts,
};

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        statistics_are_exact_without_losses,
        statistics_are_exact_with_losses,
        totals_agree_with_tcp_info,
        opened_records_identify_their_flow,
        a_decision_takes_effect_at_the_next_ack,
        decisions_are_clamped,
        a_decision_for_another_generation_is_ignored,
        slow_start_lasts_until_the_first_decision,
        the_initial_cwnd_can_be_kept_until_the_first_decision,
        without_heartbeat_flows_fall_back_to_reno,
        after_a_timeout_the_cwnd_climbs_to_the_decision,
        flows_beyond_the_slots_run_on_the_fallback,
        pacing_is_cwnd_over_the_longest_rtt,
        a_paced_flow_sends_its_segments_singly,
        the_send_buffer_keeps_what_a_recovery_at_the_same_cwnd_needs,
        a_name_that_is_registered_is_refused,
        of_two_that_start_at_once_the_loser_changes_nothing,
        nothing_is_left_in_the_kernel,
    ])
}

/// At 20 Mbit/s a packet takes 0.6 ms: enough ACKs for statistics, little work for the machine.
const RATE_MBIT: u32 = 20;

/// A queue that the cwnds of these tests do not fill.
const ROOMY: Bottleneck = Bottleneck {
    rate_mbit: RATE_MBIT,
    queue_bytes: 1_000_000,
};

/// A queue of some twenty packets: a cwnd of forty loses some.
const TIGHT: Bottleneck = Bottleneck {
    rate_mbit: RATE_MBIT,
    queue_bytes: 30_000,
};

/// A network, a datapath served by this process, and the name of its congestion control.
struct Bench {
    network: Network,
    agent: Tap<TestAgent>,
    name: String,
}

impl Bench {
    fn new(bottleneck: Bottleneck, change: impl FnOnce(&mut Options)) -> Self {
        let name = unique_name();
        let mut options = datapath_options(&name);
        change(&mut options);
        Self {
            network: Network::through(bottleneck),
            agent: Tap::serve(&options),
            name,
        }
    }

    fn connect(&self) -> Flow {
        self.network.connect(&self.name)
    }
}

fn sum(window: &WindowRecord, feature: Feature) -> u64 {
    window.features.sum[feature as usize]
}

fn statistics_are_exact_without_losses() {
    let windows = within_five_attempts("a flow loses nothing", || {
        let bench = Bench::new(ROOMY, |options| {
            options.settings = options.settings.with_ack_filter(AckFilter::All);
        });
        bench.network.path.without_timeouts();
        bench.agent.decide(40);
        let windows = statistics_are_exact(&bench, 15);
        let loses = |w: &WindowRecord| sum(w, Feature::Lost) + sum(w, Feature::Retransmitted) > 0;
        (!windows.iter().any(loses)).then_some(windows)
    });
    assert!(windows.iter().all(|w| sum(w, Feature::Acked) > 0));
}

fn statistics_are_exact_with_losses() {
    let bench = Bench::new(TIGHT, |options| {
        options.settings = options.settings.with_ack_filter(AckFilter::All);
    });
    // Windows whose cwnd makes the queue overflow, and windows whose cwnd lets it drain.
    bench
        .agent
        .decide_by(|window| Some(if window.index % 4 < 2 { 60 } else { 8 }));
    let windows = statistics_are_exact(&bench, 30);
    for feature in [Feature::Lost, Feature::Retransmitted, Feature::RtxCount] {
        let with = windows.iter().filter(|w| sum(w, feature) > 0).count();
        assert!(with >= 3, "{feature:?} in {with} windows only");
    }
}

/// Runs a flow for that many windows and compares each with its per-ACK records, then all records
/// with TCP_INFO. Returns the flow's windows.
fn statistics_are_exact(bench: &Bench, windows: usize) -> Vec<WindowRecord> {
    let flow = bench.connect();
    let mut sent = 0;
    while bench.agent.seen(|seen| seen.windows.len()) < windows {
        flow.send(50_000);
        sent += 50_000;
    }
    let opened = bench.agent.opened(&flow);
    let info = flow.finish();
    assert_eq!(info.bytes_sent - info.bytes_retrans, sent);
    drop(flow);
    bench.agent.closed(&opened);
    bench.agent.assert_nothing_lost();

    let (windows, acks) = bench
        .agent
        .seen(|seen| (seen.windows.clone(), seen.acks.clone()));
    assert!(
        windows
            .iter()
            .all(|w| is_same_flow(&w.header, &opened.header))
    );
    let mut by_window: BTreeMap<u32, Vec<AckRecord>> = BTreeMap::new();
    for ack in acks {
        assert!(is_same_flow(&ack.header, &opened.header));
        by_window.entry(ack.window).or_default().push(ack);
    }
    for (position, window) in windows.iter().enumerate() {
        assert_eq!(
            window.index as usize,
            position + 1,
            "windows are numbered from 1"
        );
        let acks = by_window.get(&window.index).expect("a window has ACKs");
        assert_window_is(window, acks);
    }
    let last = windows.len() as u32;
    assert!(
        by_window.keys().all(|&index| index <= last + 1),
        "only the unfinished window has ACKs and no record"
    );

    let acks: Vec<&AckRecord> = by_window.values().flatten().collect();
    let total = |feature: Feature| -> u64 {
        acks.iter()
            .map(|ack| u64::from(ack.features[feature as usize]))
            .sum()
    };
    assert_eq!(total(Feature::Sent), info.bytes_sent);
    assert_eq!(total(Feature::Retransmitted), info.bytes_retrans);
    let newest = acks.last().expect("there were ACKs");
    assert_eq!(newest.features[Feature::SmoothedRtt as usize], info.rtt);
    let least = acks
        .iter()
        .map(|ack| ack.features[Feature::LatestRtt as usize])
        .min();
    assert_eq!(
        least,
        Some(newest.features[Feature::RttMin as usize]),
        "10 s have not passed"
    );
    windows
}

/// Compares the totals at close with TCP_INFO, which can only be read before. The flow therefore
/// comes to rest first: it ends its own direction, and the sink keeps the other one open. In
/// FIN_WAIT2 everything including the FIN is acknowledged, and close then sends nothing more.
fn totals_agree_with_tcp_info() {
    for bottleneck in [ROOMY, TIGHT] {
        let lossy = bottleneck.queue_bytes == TIGHT.queue_bytes;
        let (info, closed) = within_five_attempts("a flow loses where the queue is short", || {
            let bench = Bench::new(bottleneck, |_| {});
            if !lossy {
                bench.network.path.without_timeouts();
            }
            bench.agent.decide(60);
            let flow = bench.connect();
            flow.send(3_000_000);
            let opened = bench.agent.opened(&flow);
            let info = flow.finish();
            assert_eq!(bench.network.sink.received_from(flow.port()), 3_000_000);
            drop(flow);
            let closed = bench.agent.closed(&opened);
            bench.agent.assert_nothing_lost();
            ((info.total_retrans > 0) == lossy).then_some((info, closed))
        });
        assert_eq!(closed.totals.bytes_sent, info.bytes_sent);
        assert_eq!(closed.totals.bytes_received, info.bytes_received);
        assert_eq!(closed.totals.bytes_retrans, info.bytes_retrans);
        assert_eq!(closed.totals.segs_retrans, info.total_retrans);
        assert_eq!(closed.totals.segs_in, info.segs_in);
        if let Some(timeouts) = info.timeouts() {
            assert_eq!(closed.totals.rtos, u32::from(timeouts));
        }
        assert_eq!(closed.bytes_acked, info.bytes_acked);
        assert_eq!(closed.segs_out, info.segs_out);
        assert_eq!(closed.data_segs_out, info.data_segs_out);
        assert_eq!(closed.delivered, info.delivered);
        assert_eq!(closed.min_rtt_us, info.min_rtt);
        assert_eq!(closed.cwnd, info.snd_cwnd);
        // The kernel's count includes the SYN. The amounts are large enough that they are not equal
        // by chance.
        assert!(info.bytes_acked > 3_000_000 - 2 && info.data_segs_out >= 2_000);
    }
}

fn opened_records_identify_their_flow() {
    let bench = Bench::new(ROOMY, |_| {});
    for host in [
        bench.network.path.receiver4(),
        bench.network.path.receiver6(),
    ] {
        let to = bench.network.sink.at(host);
        let flow = Flow::connect(&bench.network.path.sender, to, &bench.name);
        let initial = flow.info();
        flow.send(100);
        let opened = bench.agent.opened(&flow);
        let Identity {
            mss,
            initial_cwnd,
            cgroup_id,
            ..
        } = opened.identity;
        let (local, remote): (SocketAddr, SocketAddr) = opened.identity.endpoints();
        // The scope and flow label of an IPv6 address are not in the record.
        assert_eq!((local.ip(), local.port()), (flow.local().ip(), flow.port()));
        assert_eq!((remote.ip(), remote.port()), (to.ip(), to.port()));
        assert_eq!(mss, initial.snd_mss);
        assert_eq!((initial_cwnd, initial.snd_cwnd), (10, 10));
        match Cgroup::own() {
            // A cgroup's id is its directory's inode.
            Some(directory) => assert_eq!(
                cgroup_id,
                fs::metadata(directory).expect("it is ours").ino()
            ),
            None => eprintln!("no cgroup v2 is mounted: the cgroup of flows was not compared"),
        }
    }
}

fn a_decision_takes_effect_at_the_next_ack() {
    let bench = Bench::new(ROOMY, |options| {
        options.settings = options.settings.with_ack_filter(AckFilter::All);
    });
    let flow = bench.connect().sending();
    // Upwards the cwnd doubles until it has reached the decision.
    bench.agent.decide(200);
    eventually("the flow has used the decision", || {
        (flow.info().snd_cwnd == 200).then_some(())
    });
    for cwnd in [50, 10, 4] {
        bench.agent.decide(cwnd);
        let from = bench.agent.seen(|seen| seen.published.len());
        bench
            .agent
            .wait_for_window("a window ran under the decision", |window| {
                Decision::from_cell(window.decision).is_some_and(|d| d.cwnd == cwnd)
            });
        let info = flow.info();
        assert_eq!(info.snd_cwnd, cwnd);
        // Each ACK shows the cwnd that it found. The first one after the publication applies the
        // decision, so the second must find it. This holds at any speed of the machine.
        let publication = bench.agent.seen(|seen| seen.published[from]);
        assert_eq!(publication.decision.cwnd, cwnd);
        bench
            .agent
            .wait_for("two ACKs arrived after the decision", |seen| {
                let after = |ack: &&AckRecord| ack.header.time_ns > publication.time_ns;
                let second = seen.acks.iter().filter(after).nth(1)?;
                assert_eq!(second.cwnd, cwnd);
                Some(())
            });
    }
    assert_eq!(bench.agent.counter(Counter::DecisionsClamped), 0);
    assert_eq!(bench.agent.counter(Counter::DecisionsStale), 0);
    bench.agent.assert_nothing_lost();
}

fn decisions_are_clamped() {
    let bench = Bench::new(ROOMY, |options| {
        options.settings.cwnd_min = 3;
        options.settings.cwnd_max = 90;
    });
    let flow = bench.connect().sending();
    for (decided, clamped) in [(1, 3), (1_000_000, 90), (2, 3)] {
        let before = bench.agent.counter(Counter::DecisionsClamped);
        bench.agent.decide(decided);
        bench
            .agent
            .wait_for_window("a window ran under the decision", |window| {
                Decision::from_cell(window.decision).is_some_and(|d| d.cwnd == decided)
            });
        eventually("the flow has used the decision", || {
            (flow.info().snd_cwnd == clamped).then_some(())
        });
        assert!(bench.agent.counter(Counter::DecisionsClamped) > before);
    }
}

fn a_decision_for_another_generation_is_ignored() {
    let bench = Bench::new(ROOMY, |_| {});
    let flow = bench.connect().sending();
    let header = bench.agent.opened(&flow).header;
    bench.agent.decide(40);
    bench
        .agent
        .wait_for_window("a window ran under the decision", |window| {
            window.cwnd == 40
        });
    bench.agent.stop_deciding();
    let taken = eventually("decisions ceased", || {
        let before = bench.agent.counter(Counter::DecisionsTaken);
        flow.advance(100_000);
        (bench.agent.counter(Counter::DecisionsTaken) == before).then_some(before)
    });
    assert_eq!(bench.agent.counter(Counter::DecisionsStale), 0);

    let successors = Decision {
        generation: Decision::next_generation(header.generation),
        window: 1,
        cwnd: 99,
    };
    bench
        .agent
        .with_datapath(|datapath| datapath.publish(header.slot, successors));
    eventually("the stale decision was counted", || {
        (bench.agent.counter(Counter::DecisionsStale) == 1).then_some(())
    });
    flow.advance(100_000);
    assert_eq!(flow.info().snd_cwnd, 40);
    assert_eq!(bench.agent.counter(Counter::DecisionsTaken), taken);
    assert_eq!(
        bench.agent.counter(Counter::DecisionsStale),
        1,
        "counted once"
    );
}

fn slow_start_lasts_until_the_first_decision() {
    // Without a loss, slow start adds a segment for each one acknowledged.
    let (bench, flow) = within_five_attempts("a flow grows without a loss", || {
        // However late the cwnd is read, it has not filled the queue.
        let bench = Bench::new(ROOMY, |options| options.settings.cwnd_max = 400);
        bench.network.path.without_timeouts();
        let flow = bench.connect().sending();
        let lost = eventually("the cwnd grew beyond 100", || {
            let info = flow.info();
            let lost = info.total_retrans > 0;
            (lost || info.snd_cwnd > 100).then_some(lost)
        });
        (!lost).then_some((bench, flow))
    });
    let info = flow.info();
    assert!(
        info.snd_cwnd <= 10 + info.delivered + info.unacked,
        "faster than slow start: {info:?}"
    );
    let first = bench.agent.wait_for("the first window passed", |seen| {
        seen.windows.first().copied()
    });
    assert_eq!((first.mode, first.decision), (Mode::Startup as u32, 0));
    bench.agent.decide(12);
    bench
        .agent
        .wait_for_window("the first decision ended slow start", |w| {
            (w.mode, w.cwnd) == (Mode::Decided as u32, 12)
        });
    assert_eq!(flow.info().snd_cwnd, 12);
}

fn the_initial_cwnd_can_be_kept_until_the_first_decision() {
    let bench = Bench::new(ROOMY, |options| {
        options.settings = options.settings.with_startup(Startup::Constant);
    });
    let _flow = bench.connect().sending();
    let windows = bench.agent.wait_for("five windows passed", |seen| {
        (seen.windows.len() >= 5).then(|| seen.windows.clone())
    });
    for window in windows {
        assert_eq!((window.mode, window.cwnd), (Mode::Startup as u32, 10));
    }
}

fn without_heartbeat_flows_fall_back_to_reno() {
    let bench = Bench::new(ROOMY, |_| {});
    let flow = bench.connect().sending();
    bench.agent.decide(20);
    bench
        .agent
        .wait_for_window("a window ran under the decision", |window| {
            window.cwnd == 20
        });
    assert_eq!(bench.agent.counter(Counter::FallbacksEntered), 0);

    // Without a heartbeat, decisions that are still published have no effect.
    bench.agent.set_heartbeat(false);
    let from = bench.agent.seen(|seen| seen.windows.len());
    let windows = bench
        .agent
        .wait_for("six windows ran on the fallback", |seen| {
            let windows = seen.windows[from..].iter().copied();
            let fallback: Vec<WindowRecord> = windows.filter(is_fallback).collect();
            (fallback.len() >= 6).then_some(fallback)
        });
    assert_eq!(bench.agent.counter(Counter::FallbacksEntered), 1);
    assert_eq!(bench.agent.counter(Counter::FallbacksLeft), 0);
    // Congestion avoidance starts from the cwnd that was decided, and adds at most one segment per
    // cwnd of segments acknowledged.
    assert!(windows[0].cwnd >= 20);
    for pair in windows.windows(2) {
        let acked = sum(&pair[1], Feature::Acked) / u64::from(pair[1].mss);
        let most = pair[0].cwnd + (acked / u64::from(pair[0].cwnd)) as u32 + 1;
        assert!(
            (pair[0].cwnd..=most).contains(&pair[1].cwnd),
            "{} after {}",
            pair[1].cwnd,
            pair[0].cwnd
        );
    }
    assert!(windows[5].cwnd > windows[0].cwnd);

    // The heartbeat is back: the next fresh decision takes effect.
    bench.agent.decide(25);
    bench.agent.set_heartbeat(true);
    bench
        .agent
        .wait_for_window("a decision ruled again", |window| {
            (window.mode, window.cwnd) == (Mode::Decided as u32, 25)
        });
    assert_eq!(flow.info().snd_cwnd, 25);
    assert_eq!(bench.agent.counter(Counter::FallbacksEntered), 1);
    assert_eq!(bench.agent.counter(Counter::FallbacksLeft), 1);
}

fn is_fallback(window: &WindowRecord) -> bool {
    window.mode == Mode::Fallback as u32
}

fn after_a_timeout_the_cwnd_climbs_to_the_decision() {
    let bench = Bench::new(ROOMY, |options| {
        options.settings = options.settings.with_ack_filter(AckFilter::All);
    });
    let flow = bench.connect().sending();
    bench.agent.decide(40);
    bench
        .agent
        .wait_for_window("a window ran under the decision", |window| {
            window.cwnd == 40
        });
    assert_eq!(bench.agent.counter(Counter::Timeouts), 0);

    bench.network.path.cut();
    let info = eventually("the retransmission timer fired twice", || {
        Some(flow.info()).filter(|i| i.ca_state == TcpInfo::CA_LOSS && i.backoff >= 2)
    });
    assert!(
        info.snd_cwnd < 40,
        "tcp_enter_loss reduces the cwnd: {}",
        info.snd_cwnd
    );
    assert_eq!(
        bench.agent.counter(Counter::Timeouts),
        1,
        "one timeout episode, however often the timer fires"
    );
    // From here on the cwnd climbs without new decisions.
    bench.agent.stop_deciding();
    let (windows, acks) = bench
        .agent
        .seen(|seen| (seen.windows.len(), seen.acks.len()));
    bench.network.path.mend();

    bench.agent.wait_for("the decision ruled again", |seen| {
        let later = &seen.windows[windows..];
        let climbing = later
            .iter()
            .position(|w| w.mode == Mode::AfterTimeout as u32)?;
        let mut rest = later[climbing..].iter();
        rest.find(|w| (w.mode, w.cwnd) == (Mode::Decided as u32, 40))
            .map(|_| ())
    });
    assert_eq!(flow.info().snd_cwnd, 40);
    // Slow start: with each ACK the cwnd grows by at most what that ACK acknowledged, and it never
    // exceeds the decision.
    let climb = bench.agent.seen(|seen| seen.acks[acks..].to_vec());
    assert!(climb[0].cwnd < 40);
    for pair in climb.windows(2) {
        let acked = pair[0].features[Feature::Acked as usize];
        let mss = bench.agent.opened(&flow).identity.mss;
        assert!(pair[1].cwnd <= (pair[0].cwnd + acked / mss).min(40));
    }
    flow.advance(100_000);
    assert_eq!(bench.agent.counter(Counter::Timeouts), 1);
    assert_eq!(bench.agent.counter(Counter::FallbacksEntered), 0);
}

fn flows_beyond_the_slots_run_on_the_fallback() {
    const SLOTS: u32 = 16;
    const FLOWS: usize = 24;
    let bench = Bench::new(ROOMY, |options| options.slots = SLOTS);
    bench.agent.decide(5);
    let flows: Vec<Flow> = (0..FLOWS).map(|_| bench.connect()).collect();
    for flow in &flows {
        flow.send(60_000);
    }
    for flow in &flows {
        flow.finish();
        assert_eq!(bench.network.sink.received_from(flow.port()), 60_000);
    }
    assert_eq!(bench.agent.counter(Counter::FlowsOpened), u64::from(SLOTS));
    assert_eq!(bench.agent.counter(Counter::FlowsWithoutSlot), 8);
    assert_eq!(
        bench
            .agent
            .with_datapath(|datapath| datapath.live_flows().len()),
        16
    );
    drop(flows);
    eventually("all slots were given back", || {
        (bench.agent.counter(Counter::FlowsClosed) == u64::from(SLOTS)).then_some(())
    });
    assert_eq!(
        bench
            .agent
            .with_datapath(|datapath| datapath.live_flows().len()),
        0
    );

    // All slots can be used again, and two more rounds lose none.
    for _ in 0..2 {
        let flows: Vec<Flow> = (0..SLOTS).map(|_| bench.connect()).collect();
        for flow in &flows {
            flow.send(10_000);
            bench.agent.opened(flow);
        }
    }
    assert_eq!(bench.agent.counter(Counter::FlowsWithoutSlot), 8);
    assert_eq!(
        bench.agent.counter(Counter::FlowsOpened),
        3 * u64::from(SLOTS)
    );
    bench.agent.assert_nothing_lost();
}

fn pacing_is_cwnd_over_the_longest_rtt() {
    let bench = Bench::new(ROOMY, |options| {
        options.settings = options.settings.with_pacing_gain(Some(1.0));
    });
    bench.agent.decide(50);
    let flow = bench.connect().sending();
    bench
        .agent
        .wait_for_window("a window ran under the decision", |window| {
            window.cwnd == 50
        });
    // The kernel copies the rate out before it locks the socket, so single readings may mix two
    // ACKs; most do not.
    let mut readings: Vec<(f64, f64)> = (0..25)
        .map(|_| {
            flow.advance(20_000);
            let info = flow.info();
            let bytes = f64::from(info.snd_cwnd) * f64::from(info.snd_mss);
            let paced_over_us = bytes / info.pacing_rate as f64 * 1e6;
            (paced_over_us, paced_over_us / f64::from(info.rtt))
        })
        .collect();
    let after = now_ns();
    bench
        .agent
        .wait_for_window("all these ACKs are in windows", |window| {
            window.start_ns > after
        });
    let longest_us = bench.agent.seen(|seen| {
        let decided = seen.windows.iter().filter(|window| window.cwnd == 50);
        let longest = |window: &WindowRecord| window.features.max[Feature::LatestRtt as usize];
        decided.map(longest).max()
    });
    // The longest RTT of two round trips is no shorter than the smoothed one, and no longer than
    // the longest of all.
    let longest_us = f64::from(longest_us.expect("there were windows"));
    readings.sort_by(|one, other| one.0.total_cmp(&other.0));
    assert!(readings[12].0 < 1.02 * longest_us, "{readings:?}");
    readings.sort_by(|one, other| one.1.total_cmp(&other.1));
    assert!(readings[12].1 > 0.98, "{readings:?}");
    assert_eq!(flow.info().snd_cwnd, 50);
}

fn a_paced_flow_sends_its_segments_singly() {
    let bench = Bench::new(ROOMY, |options| {
        options.settings = options.settings.with_pacing_gain(Some(1.0));
    });
    let sender = &bench.network.path.sender;
    // The kernel may bundle segments, but not because the RTT is as short as on an idle veth pair.
    sender.set_offloads("s0", true);
    sender.set_sysctl("net/ipv4/tcp_tso_rtt_log", "0");
    bench.agent.decide(50);
    let flow = bench.connect().sending();
    bench
        .agent
        .wait_for_window("a window ran under the decision", |window| {
            window.cwnd == 50
        });
    let count = || (sender.packets_sent("s0"), flow.info().segs_out);
    let (packets, segments) = count();
    flow.advance(1_000_000);
    let (more_packets, more_segments) = count();
    let ratio = f64::from(more_segments - segments) / (more_packets - packets) as f64;
    // The kernel's own bundles have at least two segments each. At moments of a high pacing rate
    // two segments still share a packet.
    assert!((0.9..1.5).contains(&ratio), "{ratio}");
}

fn the_send_buffer_keeps_what_a_recovery_at_the_same_cwnd_needs() {
    let bench = Bench::new(ROOMY, |options| {
        options.settings = options.settings.with_startup(Startup::Constant);
    });
    let buffer = |flow: &Flow| flow.socket().send_buffer_size().expect("SO_SNDBUF");
    // Two initial cwnds of ten segments, by which the kernel's memory per segment is known.
    let reference = bench.network.connect("cubic");
    let segment = buffer(&reference) / 20;
    let flow = bench.connect();
    assert_eq!(buffer(&flow), 30 * segment);
    bench.agent.decide(40);
    let flow = flow.sending();
    eventually("the buffer grew with the cwnd", || {
        flow.advance(20_000);
        (buffer(&flow) == 120 * segment).then_some(())
    });
}

fn a_name_that_is_registered_is_refused() {
    let bench = Bench::new(ROOMY, |_| {});
    bench.agent.decide(30);
    let flow = bench.connect().sending();
    bench
        .agent
        .wait_for_window("a window ran under the decision", |window| {
            window.cwnd == 30
        });
    match Datapath::attach(&datapath_options(&bench.name)) {
        Err(Error::NameTaken(name)) => assert_eq!(name, bench.name),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the name was given twice"),
    }
    bench.agent.decide(31);
    bench
        .agent
        .wait_for_window("the first datapath still served", |window| {
            window.cwnd == 31
        });
    flow.advance(100_000);
    assert_eq!(bench.agent.counter(Counter::FallbacksEntered), 0);
}

fn of_two_that_start_at_once_the_loser_changes_nothing() {
    let network = Network::through(ROOMY);
    let name = unique_name();
    let options = |cwnd_max| {
        let mut options = datapath_options(&name);
        options.settings.cwnd_max = cwnd_max;
        options
    };
    // A flow that outlives its agent, whose maps both will want.
    let first = Datapath::attach(&options(100)).expect("the name is free");
    first.beat(now_ns());
    let flow = network.connect(&name).sending();
    eventually("the flow has a slot", || {
        (!first.live_flows().is_empty()).then_some(())
    });
    drop(first);
    eventually("the kernel unregistered the name", || {
        (!registered(&name)).then_some(())
    });

    let mut winner = Datapath::load(&options(200)).expect("the name is free");
    let mut loser = Datapath::load(&options(300)).expect("it is still free");
    assert_eq!((winner.adopted(), loser.adopted()), (1, 1));
    let cwnd_max = |datapath: &Datapath| datapath.settings().expect("they are mapped").cwnd_max;
    assert_eq!(cwnd_max(&winner), 100, "nothing is written before");
    winner.register().expect("it is the first");
    match loser.register() {
        Err(Error::NameTaken(taken)) => assert_eq!(taken, name),
        other => panic!("{other:?}"),
    }
    loser.beat(1);
    assert_eq!((cwnd_max(&winner), cwnd_max(&loser)), (200, 200));
    drop(loser);
    assert!(registered(&name));
    assert_eq!(cwnd_max(&winner), 200);
    flow.advance(100_000);
    let fallbacks = Counter::FallbacksEntered as usize;
    let counters = winner.counters().expect("they can be read");
    assert!(counters[fallbacks] <= 1, "no heartbeat of the past was set");
}

fn nothing_is_left_in_the_kernel() {
    let bench = Bench::new(ROOMY, |_| {});
    bench.agent.decide(30);
    let flow = bench.connect().sending();
    let crowd = bench.network.crowd(&bench.name, 20);
    bench
        .agent
        .wait_for_window("a window ran under the decision", |window| {
            window.cwnd == 30
        });
    let footprint = Footprint::of(&bench.name);
    assert!(footprint.programs() >= 7, "{footprint:?}");
    assert!(footprint.maps() >= 9, "{footprint:?}");

    let Bench {
        network,
        agent,
        name,
    } = bench;
    drop(agent);
    assert!(!registered(&name), "unregistered as soon as it is dropped");
    // The flows outlive the datapath.
    flow.advance(200_000);
    assert_eq!(crowd.failed(), 0);
    drop((flow, crowd));
    footprint.assert_vanishes();
    drop(network);
}
