//! Policies that fail, in an agent that serves flows on the running kernel: killed, stopped,
//! exhausting, without usable answers.

use std::{
    fs,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use cc_core::{
    interface::Interface,
    policy::{DEFAULT_POLICY, heuristic_file},
    status::{FlowView, Snapshot},
};
use cc_ebpf::Counter;
use cc_lab::{
    Agent, Bottleneck, Crowd, MemoryCgroup, Network, Outcome, SmallDisk, eventually, unique_name,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use prost::Message;
use tempfile::TempDir;
use tract_onnx::pb::{
    AttributeProto, ModelProto, NodeProto, TensorProto, attribute_proto::AttributeType,
    tensor_proto::DataType,
};

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        a_killed_policy_is_started_again,
        a_stopped_policy_is_started_again,
        a_model_that_asks_for_gigabytes_is_refused,
        a_stopped_candidate_is_withdrawn,
        a_candidate_that_burns_the_processor_delays_nobody,
        an_incumbent_that_burns_the_processor_stops_nothing,
        for_want_of_memory_a_policy_goes_and_never_the_agent,
        a_policy_without_finite_answers_is_refused,
        a_policy_that_loses_its_mind_is_replaced_by_the_former,
        an_agent_ends_while_a_load_hangs,
        policies_end_with_a_killed_agent,
        without_a_cage_there_is_no_process,
    ])
}

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");

/// Flows that run while a policy fails.
const FLOWS: usize = 1_000;

/// Flows that suffice where their number is not what matters.
const FEW: usize = 50;

/// Room for the cwnds of all flows, and so slow that the thread of a whole crowd's senders keeps
/// all of them busy: a sender that waits for its application is asked nothing.
const BUSY: Bottleneck = Bottleneck {
    rate_mbit: 100,
    queue_bytes: 20_000_000,
};
/// So slow that the crowd keeps its few senders busy also where it gets little of the processor.
const NARROW: Bottleneck = Bottleneck {
    rate_mbit: 40,
    ..BUSY
};

/// A network with an agent, and a directory for its files.
struct Bench {
    network: Network,
    agent: Agent,
    name: String,
    files: TempDir,
}

impl Bench {
    fn new(arguments: &[&str]) -> Self {
        Self::by(Command::new(BINARY), arguments)
    }

    fn by(command: Command, arguments: &[&str]) -> Self {
        let name = unique_name();
        // Debug builds on busy hosts are slow; that is no matter of these tests. Without slow start
        // no flow comes to a cwnd of more than its send buffer: then the buffer would limit it, and
        // it would be asked nothing.
        let common = ["--batch-budget-ms", "10000", "--startup", "constant"];
        let agent = Agent::start_by(command, &name, &[&common[..], arguments].concat());
        Self {
            network: Network::through(BUSY),
            agent,
            name,
            files: TempDir::new().expect("a directory for the test"),
        }
    }

    /// Connects many flows, and waits until they have decisions.
    fn crowd(&self, flows: usize) -> Crowd {
        let crowd = self.network.crowd(&self.name, flows);
        self.status("each flow had decisions", |status| {
            status.live_flows == flows && status.agent.decisions > 3 * flows as u64
        });
        crowd
    }

    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, content).expect("writes");
        path.display().to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn status(&self, what: &str, accept: impl Fn(&Snapshot) -> bool) -> Snapshot {
        eventually(what, || {
            let status = self.agent.status();
            accept(&status).then_some(status)
        })
    }

    /// Waits until every flow could have had some more decisions.
    fn goes_on(&self, flows: usize) {
        let before = self.agent.status().agent.decisions;
        self.status("decisions go on", |status| {
            status.agent.decisions > before + 5 * flows as u64
        });
    }

    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(BINARY);
        command
            .args(arguments)
            .arg("--socket")
            .arg(self.agent.socket());
        let output = command.output().expect("it starts");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    /// The processes of policies so far, in the order in which they were set to work.
    fn policies(&self) -> Vec<Pid> {
        let log = self.agent.log();
        let pid = |line: &str| {
            let (_, rest) = line.split_once("runs in process ")?;
            rest.split(';').next()?.parse().ok()
        };
        log.lines().filter_map(pid).map(Pid::from_raw).collect()
    }

    /// Waits until the log, which is written behind the events, says this.
    fn logs(&self, words: &str) {
        eventually(words, || self.agent.log().contains(words).then_some(()));
    }

    /// Sends a signal to the newest process of a policy.
    fn signal(&self, signal: Signal) -> Pid {
        let newest = eventually("a policy is at work", || self.policies().last().copied());
        kill(newest, signal).expect("it lives");
        newest
    }
}

fn gone(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/statm")).map_or(true, |pages| pages.starts_with("0 "))
}

/// A policy file made of another one by a change to its graph.
fn changed(file: &[u8], change: impl FnOnce(&mut ModelProto)) -> Vec<u8> {
    let mut model = ModelProto::decode(file).expect("a model");
    change(&mut model);
    model.encode_to_vec()
}

/// Gives an output of the graph another name, under which further nodes can take it up.
fn rename(model: &mut ModelProto, output: &str, name: &str) {
    let graph = model.graph.as_mut().expect("a graph");
    for found in graph.node.iter_mut().flat_map(|node| &mut node.output) {
        if found == output {
            *found = name.into();
        }
    }
}

fn node(model: &mut ModelProto, operator: &str, inputs: &[&str], output: &str) {
    let graph = model.graph.as_mut().expect("a graph");
    graph.node.push(NodeProto {
        op_type: operator.into(),
        name: output.into(),
        input: inputs.iter().map(|input| (*input).into()).collect(),
        output: vec![output.into()],
        ..NodeProto::default()
    });
}

fn constant(model: &mut ModelProto, name: &str, value: f32) {
    tensor(model, name, &[1], value);
}

/// A constant of which all elements are equal.
fn tensor(model: &mut ModelProto, name: &str, dims: &[i64], value: f32) {
    let graph = model.graph.as_mut().expect("a graph");
    let elements = dims.iter().product::<i64>() as usize;
    graph.initializer.push(TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: DataType::Float.into(),
        raw_data: value.to_le_bytes().repeat(elements),
        ..TensorProto::default()
    });
}

/// The width of layers by which a batch of 256 flows takes some 50 ms.
const MODERATE: i64 = 896;
/// The width of four layers that are the most work that a policy may ask for.
const MOST: i64 = 1_792;

/// A policy that decides as the heuristic does, and multiplies large matrices for it.
fn burning(width: i64) -> Vec<u8> {
    changed(&heuristic_file(), |model| {
        let meta = Interface::default();
        let (inputs, actions) = (meta.observation_len() as i64, meta.actions.len() as i64);
        tensor(model, "burn_in", &[inputs, width], 0.0);
        tensor(model, "burn", &[width, width], 0.0);
        tensor(model, "burn_out", &[width, actions], 0.0);
        rename(model, "logits", "logits_before");
        node(model, "MatMul", &["observation", "burn_in"], "burnt");
        let mut last = "burnt".to_owned();
        for layer in 0..4 {
            let next = format!("burnt{layer}");
            node(model, "MatMul", &[&last, "burn"], &next);
            last = format!("rectified{layer}");
            node(model, "Relu", &[&next], &last);
        }
        node(model, "MatMul", &[&last, "burn_out"], "ashes");
        node(model, "Add", &["logits_before", "ashes"], "logits");
    })
}

/// Processor time that a process has used, in clock ticks; `None` when it is gone.
fn ticks_of(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    // Fields 14 and 15 of proc_pid_stat(5); the state is field 3.
    let times = fields.split(' ').skip(11).take(2);
    let ticks = times.map(|ticks| ticks.parse::<u64>().expect("a number"));
    Some(ticks.sum())
}

/// A policy whose recurrent state grows by this factor with each decision, until it is infinite.
fn growing(factor: f32) -> Vec<u8> {
    changed(&heuristic_file(), |model| {
        rename(model, "h_out", "h_before");
        constant(model, "factor", factor);
        constant(model, "one", 1.0);
        node(model, "Mul", &["h_before", "factor"], "h_larger");
        node(model, "Add", &["h_larger", "one"], "h_out");
    })
}

fn a_killed_policy_is_started_again() {
    let bench = Bench::new(&[]);
    let crowd = bench.crowd(FLOWS);
    let killed = bench.signal(Signal::SIGKILL);
    let status = bench.status("it is started again", |status| {
        status.agent.policies_restarted == 1
    });
    let news = status.news.expect("it says so");
    assert!(news.ends_with("was started again"), "{news}");
    bench.logs("has failed and is started again: its process was killed");
    eventually("it is another process", || {
        (bench.policies().last() != Some(&killed)).then_some(())
    });
    bench.goes_on(FLOWS);
    assert_eq!(
        (bench.agent.status().live_flows, crowd.failed()),
        (FLOWS, 0)
    );
}

fn a_stopped_policy_is_started_again() {
    let bench = Bench::new(&[]);
    let crowd = bench.crowd(FLOWS);
    let stopped = bench.signal(Signal::SIGSTOP);
    let status = bench.status("it is started again", |status| {
        status.agent.policies_restarted == 1
    });
    assert!(status.agent.answers_missing > 0, "{status}");
    bench.logs("it has not answered a batch for more than 1000 ms");
    eventually("its process is gone", || gone(stopped).then_some(()));
    bench.goes_on(FLOWS);
    assert_eq!(
        (bench.agent.status().live_flows, crowd.failed()),
        (FLOWS, 0)
    );
}

fn a_model_that_asks_for_gigabytes_is_refused() {
    let bench = Bench::new(&[]);
    let crowd = bench.crowd(FLOWS);
    let before = bench.agent.status().policy;
    let bomb = changed(DEFAULT_POLICY, |model| {
        rename(model, "logits", "doubled");
        let mut last = "doubled".to_owned();
        for level in 0..40 {
            let next = format!("doubled{level}");
            node(model, "Concat", &[&last, &last], &next);
            let graph = model.graph.as_mut().expect("a graph");
            let concat = graph.node.last_mut().expect("it was added");
            concat.attribute.push(AttributeProto {
                name: "axis".into(),
                i: 1,
                r#type: AttributeType::Int.into(),
                ..AttributeProto::default()
            });
            last = next;
        }
        for (name, value) in [("start", 0), ("end", 9), ("axis", 1)] {
            let graph = model.graph.as_mut().expect("a graph");
            graph.initializer.push(TensorProto {
                name: name.into(),
                dims: vec![1],
                data_type: DataType::Int64.into(),
                int64_data: vec![value],
                ..TensorProto::default()
            });
        }
        node(model, "Softmax", &[&last], "soft");
        node(model, "Slice", &["soft", "start", "end", "axis"], "logits");
    });
    let (done, said) = bench.run(&["reload", &bench.file("bomb.onnx", &bomb)]);
    assert!(!done && said.contains("the policy stays"), "{said}");
    bench.goes_on(FLOWS);
    let status = bench.agent.status();
    assert_eq!((status.policy, crowd.failed()), (before, 0));
    assert_eq!(status.agent.policies_restarted, 0);
}

fn a_stopped_candidate_is_withdrawn() {
    let canary = [
        "--policy",
        "fixed:7",
        "--candidate",
        "fixed:9",
        "--canary",
        "50",
        "--canary-block",
        "1",
    ];
    let bench = Bench::new(&canary);
    let crowd = bench.crowd(FLOWS);
    bench.signal(Signal::SIGSTOP);
    // The incumbent's half goes on while the candidate is stuck.
    bench.goes_on(FLOWS / 4);
    let status = bench.status("it is withdrawn", |status| {
        status.agent.candidates_withdrawn == 1
    });
    let news = status.news.expect("it says so");
    assert!(
        news.contains("fixed:9 was withdrawn: it has not answered"),
        "{news}"
    );
    assert_eq!(status.agent.policies_restarted, 0, "the incumbent worked");
    // Flows that their application limits at the moment are not decided on.
    bench.status("all flows are the incumbent's", |status| {
        let decided = || {
            let decided = |flow: &&FlowView| flow.mode == cc_ebpf::Mode::Decided;
            status.flows.iter().filter(decided)
        };
        decided().count() > 0 && decided().all(|flow| flow.cwnd != 9)
    });
    assert_eq!(crowd.failed(), 0);
}

/// Waits until a policy has used some batches' worth of processor time; false when it is gone
/// before.
fn burns(policy: Pid) -> bool {
    let before = ticks_of(policy);
    eventually("it uses the processor", || {
        let (Some(before), Some(used)) = (before, ticks_of(policy)) else {
            return Some(false);
        };
        (used > before + 20).then_some(true)
    })
}

fn a_candidate_that_burns_the_processor_delays_nobody() -> Outcome {
    // No guard rail ends the canary: both policies decide alike.
    let units = ["--canary-units", "100000", "--canary-block", "1"];
    let bench = Bench::new(&[&["--policy", "heuristic"], &units[..]].concat());
    let file = bench.file("burns.onnx", &burning(MODERATE));
    let (done, said) = bench.run(&["reload", &file, "--canary", "50"]);
    assert!(done, "{said}");
    let crowd = bench.crowd(FLOWS);
    let candidate = *bench.policies().last().expect("it is at work");
    // Where the host gives it so little of the processor that it does not answer, or that most of
    // its batches or flows stall, it is withdrawn, as it should be; what it does to the others
    // until then cannot be seen.
    let withdrawn = || {
        let status = bench.status("it was withdrawn", |status| {
            status.agent.candidates_withdrawn == 1
        });
        assert_eq!(status.agent.policies_restarted, 0);
        bench.goes_on(FLOWS);
        let reason = status.news.unwrap_or_default();
        Outcome::Undecided(format!("this host is too busy for it: {reason}"))
    };
    if !burns(candidate) {
        return withdrawn();
    }
    let decisions = |status: &Snapshot| {
        let canary = status.canary.as_ref()?;
        Some(canary.incumbent_flows.decisions)
    };
    let before = decisions(&bench.agent.status());
    bench.status("decisions of the incumbent go on", |status| {
        let (Some(before), Some(now)) = (before, decisions(status)) else {
            return true;
        };
        now > before + FLOWS as u64
    });
    if !burns(candidate) {
        return withdrawn();
    }
    let (done, said) = bench.run(&["withdraw"]);
    assert!(done, "{said}");
    eventually("its process is gone", || gone(candidate).then_some(()));
    bench.goes_on(FLOWS);
    assert_eq!(crowd.failed(), 0);
    assert_eq!(bench.agent.status().agent.policies_restarted, 0);
    Outcome::Passed
}

fn an_incumbent_that_burns_the_processor_stops_nothing() {
    let bench = Bench::new(&["--policy", "fixed:7"]);
    let crowd = bench.crowd(FLOWS);
    let file = bench.file("burns.onnx", &burning(MODERATE));
    let heuristic = bench.file("heuristic.onnx", &heuristic_file());
    let (done, said) = bench.run(&["reload", &file]);
    assert!(done, "{said}");
    // One that is started again for being late burns on in another process.
    eventually("it uses the processor", || {
        let newest = bench.policies().last().copied();
        newest.filter(|policy| burns(*policy))
    });
    let received = bench.network.sink.received();
    // Flows that it answers too late are on the fallback, and all transfer.
    eventually("the flows transfer", || {
        (bench.network.sink.received() > received + 10_000_000).then_some(())
    });
    let (done, said) = bench.run(&["reload", &heuristic]);
    assert!(done, "{said}");
    bench.goes_on(FLOWS);
    assert_eq!(
        (bench.agent.status().live_flows, crowd.failed()),
        (FLOWS, 0)
    );
}

fn for_want_of_memory_a_policy_goes_and_never_the_agent() -> Outcome {
    let cgroup = match MemoryCgroup::new() {
        Ok(cgroup) => cgroup,
        Err(reason) => return Outcome::Undecided(format!("a limit of memory: {reason}")),
    };
    // The kernel takes a share of the limit into account: one of a hundred megabytes, of which the
    // agent has most, would be another case.
    let place = TempDir::new().expect("a directory for the test");
    let _disk = SmallDisk::mount(place.path(), "300m");
    let mut ballast = Command::new("dd");
    let target = format!("of={}", place.path().join("ballast").display());
    ballast.args(["if=/dev/zero", &target, "bs=1M", "count=256"]);
    cgroup.hold(&mut ballast);
    let filled = ballast.stderr(Stdio::null()).status().expect("it starts");
    assert!(filled.success() && cgroup.usage() > 256 << 20);

    let mut command = Command::new(BINARY);
    cgroup.hold(&mut command);
    let bench = Bench::by(command, &["--policy", "heuristic"]);
    let crowd = bench.crowd(FLOWS);
    // There is room for what the agent itself needs to load the policy, and not for the policy.
    let burns = bench.file("burns.onnx", &burning(MOST));
    cgroup.limit(Some(cgroup.usage() + (64 << 20)));
    let (done, said) = bench.run(&["reload", &burns]);
    println!("{said}{}", bench.agent.status());
    // On a busy host it takes long until the kernel finds nothing to reclaim.
    let reasons = [
        "was killed, perhaps for its use of memory",
        "took longer than 30 s",
    ];
    let is_refused = reasons.iter().any(|reason| said.contains(reason));
    assert!(!done && is_refused, "{said}");
    let received = bench.network.sink.received();
    eventually("the flows transfer", || {
        (bench.network.sink.received() > received + 10_000_000).then_some(())
    });
    cgroup.limit(None);
    let file = bench.file("heuristic.onnx", &heuristic_file());
    let (done, said) = bench.run(&["reload", &file]);
    assert!(done, "{said}");
    bench.goes_on(FLOWS);
    assert_eq!(
        (bench.agent.status().live_flows, crowd.failed()),
        (FLOWS, 0)
    );
    Outcome::Passed
}

fn a_policy_without_finite_answers_is_refused() {
    let bench = Bench::new(&["--policy", "fixed:20"]);
    // Its state is infinite at the third decision of a flow.
    let file = bench.file("nan.onnx", &growing(1e30));
    for arguments in [&["reload", &file][..], &["reload", &file, "--canary", "50"]] {
        let (done, said) = bench.run(arguments);
        assert!(!done && said.contains("are not finite"), "{said}");
    }
    let output = Command::new(BINARY)
        .args([
            "run",
            "--plain",
            "--name",
            &unique_name(),
            "--policy",
            &file,
        ])
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("are not finite"),
        "{said}"
    );
}

/// The try-out takes each flow 35 decisions far. This policy needs 42 to reach infinity.
fn a_policy_that_loses_its_mind_is_replaced_by_the_former() {
    let bench = Bench::new(&["--policy", "fixed:20"]);
    bench.network.path.reshape(NARROW);
    let _crowd = bench.crowd(FEW);
    let (done, said) = bench.run(&["reload", &bench.file("grows.onnx", &growing(8.0))]);
    assert!(done, "{said}");
    let status = bench.status("the former policy decides again", |status| {
        status.agent.policies_replaced == 1 && status.policy == "fixed:20"
    });
    assert!(status.agent.answers_invalid >= 20, "{status}");
    bench.logs("answers were not finite; the former policy fixed:20 takes over");
    bench.goes_on(FEW);
}

/// The processes that the agent has started and not waited for.
fn children(of: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{of}/task"))
        .into_iter()
        .flatten();
    let lists = threads
        .flatten()
        .map(|thread| thread.path().join("children"));
    let lists: String = lists
        .filter_map(|list| fs::read_to_string(list).ok())
        .collect();
    let pids = lists.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.map(Pid::from_raw).collect()
}

fn an_agent_ends_while_a_load_hangs() {
    let mut bench = Bench::new(&["--policy", "fixed:20"]);
    let incumbents = children(bench.agent.pid());
    let mut client = Command::new(BINARY)
        .args([
            "reload",
            &bench.file("burns.onnx", &burning(MOST)),
            "--socket",
        ])
        .arg(bench.agent.socket())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let loading = eventually("the policy is being loaded", || {
        let mut children = children(bench.agent.pid()).into_iter();
        // Only a confined process has asked to end with the agent, and seccomp comes last.
        let confined = |child| {
            let status = fs::read_to_string(format!("/proc/{child}/status"));
            status.is_ok_and(|status| status.contains("\nSeccomp:\t2\n"))
        };
        children.find(|child| !incumbents.contains(child) && confined(*child))
    });
    kill(loading, Signal::SIGSTOP).expect("it lives");
    let (status, log) = bench.agent.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0), "{log}");
    eventually("the process of the load is gone", || {
        gone(loading).then_some(())
    });
    assert!(!client.wait().expect("our child").success());
}

fn policies_end_with_a_killed_agent() {
    let mut bench = Bench::new(&[
        "--policy",
        "fixed:7",
        "--candidate",
        "fixed:9",
        "--canary",
        "50",
    ]);
    let policies = eventually("both policies are at work", || {
        let policies = bench.policies();
        (policies.len() == 2).then_some(policies)
    });
    assert!(policies.iter().all(|&pid| !gone(pid)));
    bench.agent.end(Signal::SIGKILL);
    eventually("they are gone", || {
        policies.iter().all(|&pid| gone(pid)).then_some(())
    });
}

fn without_a_cage_there_is_no_process() {
    let bench = Bench::new(&["--policy", "fixed:20", "--no-cage"]);
    bench.network.path.reshape(NARROW);
    let _crowd = bench.crowd(FEW);
    assert_eq!(bench.policies(), []);
    bench.logs("without protection");
    let status = bench.agent.status();
    assert_eq!(status.datapath[Counter::FallbacksEntered.name()], 0);
}
