//! Starts and ends of agents that are interrupted at each system call by which they change or take
//! something. Equal calls that follow each other, as for a map after a map, count as one.

use std::{
    os::unix::process::ExitStatusExt,
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use cc_agent::kernel::datapath::registered;
use cc_lab::{Agent, Flow, Step, Verdict, supervise};
use nix::sys::signal::Signal;

use crate::stage::{Stage, end, wait_for_decision};

const ARGUMENTS: [&str; 5] = ["--policy", "fixed:20", "--default", "--slots", "8"];

/// What happened at each step, which is printed when the test fails.
#[derive(Default)]
pub(crate) struct Account(Vec<String>);

impl Account {
    pub(crate) fn add(&mut self, line: String) {
        self.0.push(line);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("{}", self.0.join("\n"));
        }
    }
}

/// The interruption that is to come, shared with the thread that supervises an agent.
#[derive(Clone, Default)]
pub(crate) struct Plan(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Whether steps count now.
    counts: bool,
    passed: usize,
    former: Option<Step>,
    /// The number of the step that is interrupted.
    at: usize,
    /// The step that was interrupted.
    interrupted: Option<Step>,
}

impl Plan {
    /// Interrupts the step of this number.
    pub(crate) fn at(at: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            at,
            ..State::default()
        })))
    }

    /// Counts steps from now on, or no more.
    pub(crate) fn count(&self, counts: bool) {
        self.0.lock().expect("no panic while it is held").counts = counts;
    }

    pub(crate) fn interrupted(&self) -> Option<Step> {
        let state = self.0.lock().expect("no panic while it is held");
        state.interrupted.clone()
    }

    /// Has the steps of `command` judged: all may proceed but the one, which gets this verdict.
    pub(crate) fn supervise(&self, command: &mut Command, verdict: fn(&Step) -> Verdict) {
        let state = Arc::clone(&self.0);
        supervise(command, move |step| {
            let mut state = state.lock().expect("no panic while it is held");
            let former = state.former.replace(step.clone());
            let is_repeated = former.is_some_and(|former| {
                (former.call, former.object) == (step.call, step.object.clone())
            });
            if !state.counts || is_repeated {
                return Verdict::Proceed;
            }
            state.passed += 1;
            if state.passed - 1 != state.at {
                return Verdict::Proceed;
            }
            state.interrupted = Some(step.clone());
            verdict(step)
        });
    }
}

/// What the kernel says where it is short of what a call needs.
fn shortage(step: &Step) -> i32 {
    match step.call {
        "bpf" => libc::ENOMEM,
        "clone" | "clone3" => libc::EAGAIN,
        "openat" | "memfd_create" | "socket" | "socketpair" | "epoll_create1" | "eventfd2" => {
            libc::EMFILE
        }
        "mkdir" | "mkdirat" | "rename" | "renameat2" | "fsync" | "fdatasync" | "ftruncate"
        | "bind" => libc::ENOSPC,
        _ => libc::EPERM,
    }
}

pub(crate) fn kill(_: &Step) -> Verdict {
    Verdict::Kill
}

fn refuse(step: &Step) -> Verdict {
    Verdict::Fail(shortage(step))
}

/// A flow that an agent has left behind when it was killed, as it does on a host where agents are
/// killed again and again.
fn orphan(stage: &Stage) -> Flow {
    let mut agent = stage.start(&["--policy", "fixed:30", "--slots", "8"]);
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 30);
    agent.end(Signal::SIGKILL);
    stage.wait_for_the_name();
    flow
}

/// Asserts that an agent serves the flow that its predecessors have left, and ends without a trace.
fn assert_serves(stage: &Stage, agent: &mut Agent, flow: &Flow) {
    wait_for_decision(agent, flow, 20);
    assert_eq!(stage.default(), stage.name);
    let log = end(agent);
    stage.assert_restored(&log);
}

pub(crate) fn an_agent_is_killed_at_each_step_of_its_start() {
    let stage = Stage::new();
    let flow = orphan(&stage);
    let mut killed = 0;
    let mut account = Account::default();
    for number in 0.. {
        let plan = Plan::at(number);
        plan.count(true);
        let mut agent = stage.spawn(&ARGUMENTS, |command| plan.supervise(command, kill));
        let outcome = agent.answers_or_ends();
        plan.count(false);
        let Err(status) = outcome else {
            assert_serves(&stage, &mut agent, &flow);
            break;
        };
        let log = agent.log();
        let step = plan.interrupted();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{step:?}: {log}");
        account.add(format!("{number}: {step:?}"));
        killed += 1;
        stage.wait_for_the_name();
        flow.advance(50_000);
        assert_eq!(flow.congestion_control(), stage.name);
        // The next start finds what this one left, or what `restore` has left of that.
        if number % 2 == 0 {
            stage.restore();
            assert_ne!(stage.default(), stage.name, "{step:?}");
        }
    }
    assert!(killed > 20, "a start has {killed} steps");
}

pub(crate) fn an_agent_is_killed_at_each_step_of_its_end() {
    let stage = Stage::new();
    let flow = orphan(&stage);
    let mut killed = 0;
    let mut account = Account::default();
    for number in 0.. {
        let plan = Plan::at(number);
        let mut agent = stage.spawn(&ARGUMENTS, |command| plan.supervise(command, kill));
        let outcome = agent.answers_or_ends();
        assert_eq!(outcome, Ok(()), "{}", agent.log());
        wait_for_decision(&agent, &flow, 20);
        plan.count(true);
        let (status, log) = agent.end(Signal::SIGTERM);
        let Some(step) = plan.interrupted() else {
            assert_eq!(status.code(), Some(0), "{log}");
            stage.assert_restored(&log);
            break;
        };
        account.add(format!("{number}: {step:?}"));
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{step:?}: {log}");
        killed += 1;
        stage.wait_for_the_name();
        flow.advance(50_000);
        if number % 2 == 0 {
            stage.restore();
            assert_ne!(stage.default(), stage.name, "{step:?}");
        }
    }
    assert!(killed > 3, "an end has {killed} steps");
}

pub(crate) fn each_step_of_a_start_may_be_refused() {
    let stage = Stage::new();
    let flow = orphan(&stage);
    let (mut refused, mut served) = (0, 0);
    let mut faults = Vec::new();
    let mut account = Account::default();
    for number in 0.. {
        let plan = Plan::at(number);
        plan.count(true);
        let mut agent = stage.spawn(&ARGUMENTS, |command| plan.supervise(command, refuse));
        let outcome = agent.answers_or_ends();
        plan.count(false);
        let step = plan.interrupted();
        account.add(format!("{number}: {step:?}: {outcome:?}\n{}", agent.log()));
        match outcome {
            Ok(()) => assert_serves(&stage, &mut agent, &flow),
            Err(status) => {
                let (_, log) = agent.wait();
                let code = status.code();
                // The agent has seen before that there is room for this pair of sockets.
                let is_tokios = log.contains("failed to create UnixStream");
                let says_why = log.contains("error: ") && !log.contains("panicked");
                let says_why = says_why || is_tokios;
                if code.is_none_or(|code| code == 0) || !says_why {
                    faults.push(format!("{step:?}: {status}: {log}"));
                }
                stage.assert_restored(&log);
            }
        }
        flow.advance(50_000);
        match (step, outcome) {
            (None, _) => break,
            (Some(_), Ok(())) => served += 1,
            (Some(_), Err(_)) => refused += 1,
        }
    }
    assert_eq!(faults, [""; 0], "an error says why it does not start");
    assert!(refused > 15, "{refused} starts were refused, {served} not");
}

pub(crate) fn each_step_of_an_end_may_be_refused() {
    let stage = Stage::new();
    let flow = orphan(&stage);
    let mut account = Account::default();
    for number in 0.. {
        let plan = Plan::at(number);
        let mut agent = stage.spawn(&ARGUMENTS, |command| plan.supervise(command, refuse));
        let outcome = agent.answers_or_ends();
        assert_eq!(outcome, Ok(()), "{}", agent.log());
        wait_for_decision(&agent, &flow, 20);
        plan.count(true);
        let (status, log) = agent.end(Signal::SIGTERM);
        let step = plan.interrupted();
        account.add(format!("{number}: {step:?}: {status}\n{log}"));
        assert_eq!(status.code(), Some(0), "{step:?}: {log}");
        assert_ne!(stage.default(), stage.name, "{step:?}: {log}");
        assert!(!registered(&stage.name), "{step:?}: {log}");
        flow.advance(50_000);
        if step.is_none() {
            stage.assert_restored(&log);
            break;
        }
    }
}
