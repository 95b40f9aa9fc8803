//! A ring buffer of records that is full, because nobody takes them out.

use std::{
    thread,
    time::{Duration, Instant},
};

use cc_core::status::Snapshot;
use cc_ebpf::{Counter, Mode};
use cc_lab::{Agent, Bottleneck, Crowd, Flow, Footprint, eventually};
use nix::sys::signal::Signal;

use crate::stage::{Stage, count, wait_for_status};

const FLOWS: usize = 50;

/// Many ACKs, so that the ring buffer of 16 MiB is soon full.
const FAST: Bottleneck = Bottleneck {
    rate_mbit: 100,
    queue_bytes: 2_000_000,
};
/// Few ACKs, so that the test costs the host little while it waits.
const SLOW: Bottleneck = Bottleneck {
    rate_mbit: 10,
    ..FAST
};

const ARGUMENTS: [&str; 6] = ["--policy", "fixed:10", "--window-ms", "5", "--slots", "200"];

pub(crate) fn the_ring_is_full_for_a_minute() {
    let stage = Stage::through(FAST);
    let mut agent = stage.start(&ARGUMENTS);
    let crowd = stage.network.crowd(&stage.name, FLOWS);
    let steady = stage.connect().sending();
    let leaving = stage.connect().sending();
    wait_for_status(&agent, "each flow had decisions", |status| {
        is_decided(status, FLOWS + 2)
    });
    let footprint = Footprint::of(&stage.name);

    fill(&agent, &footprint);
    stage.network.path.reshape(SLOW);
    // The records of these events are lost.
    drop(leaving);
    let late: Vec<Flow> = (0..5).map(|_| stage.connect().sending()).collect();
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(60) {
        steady.advance(10_000);
        late[0].advance(10_000);
        assert_eq!(crowd.failed(), 0);
        thread::sleep(Duration::from_secs(1));
    }
    stage.network.path.reshape(FAST);
    agent.signal(Signal::SIGCONT);
    let flows = FLOWS + 1 + late.len();
    let status = wait_for_status(&agent, "all flows were decided on again", |status| {
        is_decided(status, flows)
    });
    assert!(count(&status, Counter::RecordsDropped) > 0);
    assert!(count(&status, Counter::FallbacksEntered) > FLOWS as u64);
    assert_eq!(status.agent.answers_invalid, 0);
    println!("{status}");

    // The next agent finds a ring full of what has become of flows before its time.
    fill(&agent, &footprint);
    agent.end(Signal::SIGKILL);
    stage.wait_for_the_name();
    drop(late);
    let next = stage.start(&ARGUMENTS);
    let status = wait_for_status(&next, "all flows were decided on again", |status| {
        is_decided(status, FLOWS + 1)
    });
    assert_eq!(status.adopted_flows, FLOWS + 1);
    assert_eq!(crowd.failed(), 0);
    steady.advance(100_000);
}

/// Stops the agent, and waits until records find no room.
fn fill(agent: &Agent, footprint: &Footprint) {
    let dropped = footprint.counter(Counter::RecordsDropped);
    agent.signal(Signal::SIGSTOP);
    eventually("records were dropped", || {
        (footprint.counter(Counter::RecordsDropped) > dropped + 1_000).then_some(())
    });
}

/// Whether these many flows are there, all have had decisions, and none is on the fallback, unless
/// its cwnd has grown beyond its send buffer there: then the application limits it, and no decision
/// is asked for.
fn is_decided(status: &Snapshot, flows: usize) -> bool {
    const MSS: usize = 1_448;
    (status.live_flows, status.flows.len()) == (flows, flows)
        && status.flows.iter().all(|flow| match flow.mode {
            Mode::Fallback => flow.cwnd as usize * MSS > Crowd::SEND_BUFFER,
            _ => flow.decisions > 3,
        })
}
