//! Clocks that differ between agents, and a clock that is set.

use std::process::Command;

use cc_ebpf::Counter;
use cc_lab::{Agent, Outcome};
use nix::{
    sys::{signal::Signal, time::TimeSpec},
    time::{ClockId, clock_gettime, clock_settime},
};

use crate::{
    BINARY,
    stage::{Stage, count, end, wait_for_decision, wait_for_status},
};

/// Starts an agent whose clocks since boot are ahead of the host's by this many seconds.
fn start_ahead(stage: &Stage, seconds: i64, policy: &str) -> Agent {
    let arguments = ["--policy", policy, "--default"];
    let mut agent = stage.spawn(&arguments, |command| {
        let mut unshare = Command::new("unshare");
        let offset = seconds.to_string();
        unshare.args(["--time", "--monotonic", &offset, "--boottime", &offset]);
        unshare.args(["--fork", "--kill-child", BINARY]);
        stage.network.path.sender.hold(&mut unshare);
        *command = unshare;
    });
    assert_eq!(agent.answers_or_ends(), Ok(()), "{}", agent.log());
    agent
}

/// Agents ahead of the host, behind it, and with its time adopt each other's flows.
pub(crate) fn flows_are_adopted_from_another_time() {
    let stage = Stage::new();
    let up = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    let mut flow = None;
    for (turn, seconds) in [1_000_000, 0, -up.tv_sec() / 2, 1_000_000]
        .into_iter()
        .enumerate()
    {
        let cwnd = 20 + turn as u32;
        let mut agent = start_ahead(&stage, seconds, &format!("fixed:{cwnd}"));
        let flow = flow.get_or_insert_with(|| stage.connect().sending());
        wait_for_decision(&agent, flow, cwnd);
        let status = agent.status();
        assert_eq!(status.adopted_flows, usize::from(turn > 0));
        assert!(status.decision_delay.p50_ms < 30_000.0, "{status}");
        // It lives, whatever time it has.
        stage.restore();
        assert_eq!(stage.default(), stage.name);
        agent.end(Signal::SIGKILL);
        stage.wait_for_the_name();
        flow.advance(100_000);
        stage.restore();
        assert_eq!(stage.default(), "reno");
    }
}

/// Only on a kernel that runs nothing but tests, since the clock is everybody's.
pub(crate) fn a_clock_that_is_set_changes_nothing() -> Outcome {
    const DAY: i64 = 86_400;
    if std::env::var_os("CC_LAB_OWN_KERNEL").is_none() {
        let reason = "the clock is the host's; `cargo xtask kernels` runs this test";
        return Outcome::Undecided(reason.into());
    }
    let stage = Stage::new();
    let mut agent = stage.start(&["--policy", "fixed:20", "--default"]);
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 20);
    for days in [400, -800, 400] {
        let now = clock_gettime(ClockId::CLOCK_REALTIME).expect("a clock");
        let then = TimeSpec::new(now.tv_sec() + days * DAY, now.tv_nsec());
        clock_settime(ClockId::CLOCK_REALTIME, then).expect("root may set the clock");
        let before = agent.status().agent.decisions;
        let status = wait_for_status(&agent, "decisions go on", |status| {
            status.agent.decisions > before + 20
        });
        assert!(status.decision_delay.max_ms < 30_000.0, "{status}");
        assert_eq!(count(&status, Counter::FallbacksEntered), 0);
    }
    assert_eq!(flow.info().snd_cwnd, 20);
    let log = end(&mut agent);
    stage.assert_restored(&log);
    Outcome::Passed
}
