//! Too little disk, too few descriptors, and a log that nobody reads.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::OpenOptionsExt,
};

use cc_client::fetch;
use cc_core::policy::heuristic_file;
use cc_ebpf::Counter;
use cc_lab::{Agent, SmallDisk, eventually};
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::mkfifo,
};
use tempfile::TempDir;

use crate::stage::{Stage, count, end, policies, run_against, wait_for_decision, wait_for_status};

fn wait_for_log(agent: &Agent, words: &str) {
    eventually(words, || agent.log().contains(words).then_some(()));
}

/// The disk that fills up holds everything that an agent writes but its recording: socket, notes,
/// ACKs, and log.
pub(crate) fn a_full_disk_costs_no_flow_and_no_setting() {
    let stage = Stage::new();
    let disk = SmallDisk::mount(&stage.place(""), "600k");
    let elsewhere = TempDir::new().expect("a directory for the test");
    let policy = elsewhere.path().join("heuristic.onnx");
    fs::write(&policy, heuristic_file()).expect("writes");
    let policy = policy.display().to_string();
    let acks = stage.place("acks.csv").display().to_string();

    let with_default = ["--policy", "fixed:20", "--default"];
    let per_ack = ["--per-ack", "all", "--per-ack-file", &acks];
    let mut agent = stage.start(&[&with_default[..], &per_ack].concat());
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 20);
    let ballast = disk.fill();
    wait_for_log(&agent, "no more ACKs are recorded");
    let before = agent.status().agent.decisions;
    wait_for_status(&agent, "decisions go on", |status| {
        status.agent.decisions > before + 5
    });
    let (done, said) = run_against(&agent, &["reload", &policy]);
    assert!(done, "{said}");
    wait_for_log(&agent, "the next start will not know of this");
    let log = end(&mut agent);
    assert!(log.contains("is reno again"), "{log}");
    assert_eq!(stage.left_behind(), ["acks.csv", "ballast"], "{log}");
    fs::remove_file(stage.place("acks.csv")).expect("it is there");
    flow.advance(100_000);

    // An agent that cannot write the former default down does not change it.
    disk.fill();
    let mut refused = stage.spawn(&with_default, |_| ());
    let (status, log) = refused.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    let said = "cannot remember the former default congestion control";
    assert!(log.contains(said) && log.contains("No space left"), "{log}");
    fs::remove_file(&ballast).expect("it is there");
    stage.assert_restored(&log);

    // Its log goes to the full disk.
    let unwritten = stage.place("log");
    let mut agent = stage.spawn_to(&unwritten, &with_default);
    assert_eq!(agent.answers_or_ends(), Ok(()));
    disk.fill();
    wait_for_decision(&agent, &flow, 20);
    let (done, said) = run_against(&agent, &["promote"]);
    assert!(!done && said.contains("no candidate"), "{said}");
    agent.end(Signal::SIGKILL);
    stage.wait_for_the_name();
    stage.restore();
    flow.advance(100_000);
    assert_eq!(stage.left_behind(), ["agent.sock", "ballast", "log"]);
    // Where there is nothing to write down, it serves.
    let mut agent = stage.start(&["--policy", "fixed:20"]);
    wait_for_decision(&agent, &flow, 20);
    end(&mut agent);
    fs::remove_file(&ballast).expect("it is there");
    fs::remove_file(&unwritten).expect("it is there");
    stage.assert_restored("");
}

pub(crate) fn without_descriptors_flows_are_served_on() {
    let stage = Stage::new();
    let mut agent = stage.start(&["--policy", "fixed:20", "--default"]);
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 20);

    agent.limit_descriptors(3);
    eventually("clients are turned away", || fetch(agent.socket()).err());
    flow.advance(1_000_000);
    assert_eq!(flow.info().snd_cwnd, 20);
    agent.limit_descriptors(1 << 16);
    let status = eventually("it answers again", || fetch(agent.socket()).ok());
    assert_eq!(count(&status, Counter::FallbacksEntered), 0);
    wait_for_log(&agent, "could not take a client: Too many open files");

    // Its policy dies, and there are no descriptors for another process.
    agent.limit_descriptors(3);
    let policy = *policies(&agent).last().expect("it has started one");
    kill(policy, Signal::SIGKILL).expect("it lives");
    eventually("the flow fell back", || {
        (flow.info().snd_cwnd > 20).then_some(())
    });
    agent.limit_descriptors(1 << 16);
    let status = eventually("it answers again", || fetch(agent.socket()).ok());
    let news = status.news.unwrap_or_default();
    assert!(news.contains("could not be started again"), "{news}");
    let elsewhere = TempDir::new().expect("a directory for the test");
    let policy = elsewhere.path().join("heuristic.onnx");
    fs::write(&policy, heuristic_file()).expect("writes");
    let (done, said) = run_against(&agent, &["reload", &policy.display().to_string()]);
    assert!(done, "{said}");
    wait_for_status(&agent, "the flow left the fallback", |status| {
        count(status, Counter::FallbacksLeft) > 0
    });
    let log = end(&mut agent);
    assert_eq!(stage.default(), "reno", "{log}");
}

pub(crate) fn a_log_that_nobody_reads_stops_nothing() {
    let stage = Stage::new();
    let pipe = stage.place("log");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a new name");
    let open = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&pipe);
    let mut unread = open.expect("it was just made");
    while unread.write(&[b'#'; 1]).is_ok() {}
    let mut agent = stage.spawn_to(&pipe, &["--policy", "fixed:20", "--default"]);
    assert_eq!(agent.answers_or_ends(), Ok(()));
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 20);
    // Each is a line of the log.
    for _ in 0..30 {
        let (done, said) = run_against(&agent, &["promote"]);
        assert!(!done && said.contains("no candidate"), "{said}");
    }
    let status = wait_for_status(&agent, "decisions go on", |status| {
        status.agent.decisions > 30
    });
    assert_eq!(count(&status, Counter::FallbacksEntered), 0);
    let (status, _) = agent.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0));
    fs::remove_file(&pipe).expect("it is there");
    stage.assert_restored("");
    flow.advance(100_000);
}
