//! Children with good and bad policies. The program starts itself: with the argument `child` it is
//! a child, whose policy the next argument names.

use std::{
    ffi::OsString,
    fs,
    net::{TcpStream, UdpSocket},
    os::unix::net::UnixStream,
    process::{Command, ExitCode},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use cc_cage::{Cage, CageError, Fault, Job, Limits, Program, confinement};
use cc_core::{
    interface::Interface,
    policy::{ActionSelection, Choice, DEFAULT_POLICY, Policy, PolicySpec, Query, State},
};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use prost::Message;
use tract_onnx::pb::{
    AttributeProto, ModelProto, NodeProto, TensorProto, attribute_proto::AttributeType,
    tensor_proto::DataType,
};

/// No wait in these tests may outlast this.
const DEADLINE: Duration = Duration::from_secs(120);

/// Makes trials of test functions, named after them.
macro_rules! trials {
    ($($test:ident),+ $(,)?) => {
        vec![$(Trial::test(stringify!($test), || -> Result<(), Failed> {
            $test();
            Ok(())
        })),+]
    };
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.get(1).and_then(|argument| argument.to_str()) {
        Some("child") => child(&arguments[2].to_string_lossy(), &arguments[3..]),
        Some("landlocked") => landlocked(),
        _ => libtest_mimic::run(
            &Arguments::from_args(),
            trials![
                answers_are_those_of_the_same_policy_in_this_process,
                a_file_that_is_no_policy_is_refused_in_the_child,
                a_model_that_asks_for_gigabytes_is_no_policy,
                answers_that_are_not_finite_are_refused,
                a_slow_policy_is_refused,
                memory_without_end_ends_the_child,
                memory_without_end_ends_the_load,
                a_load_without_end_is_ended,
                a_panic_ends_the_child_and_is_told,
                a_killed_child_is_noticed,
                a_stopped_child_is_ended_when_it_is_dropped,
                signals_of_a_terminal_do_not_end_a_child,
                a_child_ends_with_the_thread_that_started_it,
                a_child_can_only_answer,
                landlock_alone_keeps_files_and_tcp_away,
                a_program_that_cannot_be_started_is_an_error,
            ],
        )
        .exit_code(),
    }
}

/// A job for a policy without a file.
fn job(policy: &str) -> Job {
    Job {
        policy: policy.parse().expect("a policy's name"),
        file: Arc::default(),
        interface: Interface::default(),
        serving: None,
        seed: 7,
        added_delay: Duration::ZERO,
        // What is slow on a busy host in a debug build is no matter of these tests.
        batch_budget: Some(DEADLINE),
    }
}

/// The program with the misbehaviour of this name.
fn program(behaviour: &str) -> Program {
    Program {
        path: "/proc/self/exe".into(),
        arguments: vec!["child".into(), behaviour.into()],
    }
}

fn limits() -> Limits {
    Limits {
        memory: 512 << 20,
        load: DEADLINE,
    }
}

fn start(behaviour: &str) -> Result<Cage, CageError> {
    Cage::start(&program(behaviour), &job("fixed:10"), &limits())
}

fn started(behaviour: &str) -> Cage {
    start(behaviour).unwrap_or_else(|error| panic!("{behaviour}: {error}"))
}

fn refused(behaviour: &str, job: &Job, limits: &Limits) -> String {
    match Cage::start(&program(behaviour), job, limits) {
        Ok(_) => panic!("{behaviour}: the policy was accepted"),
        Err(error) => error.to_string(),
    }
}

fn queries(interface: &Interface, count: usize) -> Vec<Query> {
    let value = |i: usize| ((i * 7_919) % 1_000) as f32 / 500.0 - 0.5;
    (0..count)
        .map(|i| Query {
            observation: (0..interface.observation_len())
                .map(|j| value(i * 31 + j))
                .collect(),
            reward: value(i),
            cwnd: 10 + i as u32,
            state: State::default(),
            probabilities: Vec::new(),
        })
        .collect()
}

/// Asks and waits for the answer.
fn ask(cage: &mut Cage, queries: &mut [Query]) -> Result<Vec<Choice>, Fault> {
    // A child that is gone shows below.
    let _ = cage.ask(queries);
    let start = Instant::now();
    loop {
        if let Some(choices) = cage.poll_answer(queries)? {
            return Ok(choices);
        }
        assert!(start.elapsed() < DEADLINE, "no answer");
        thread::sleep(Duration::from_millis(1));
    }
}

fn fault(cage: &mut Cage) -> String {
    let mut queries = queries(&Interface::default(), 1);
    let fault = ask(cage, &mut queries).expect_err("there is no answer");
    fault.to_string()
}

fn gone(pid: u32) -> bool {
    // A zombie has a state, but no memory.
    fs::read_to_string(format!("/proc/{pid}/statm")).map_or(true, |pages| pages.starts_with("0 "))
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn answers_are_those_of_the_same_policy_in_this_process() {
    let softmax = Some(ActionSelection::Softmax { temperature: 1.0 });
    for (policy, serving) in [
        ("default", None),
        ("default", softmax),
        ("heuristic", None),
        ("random", None),
        ("fixed:33", None),
        ("file.onnx", softmax),
    ] {
        let mut job = job(policy);
        job.serving = serving;
        if matches!(job.policy, PolicySpec::Onnx(_)) {
            job.file = Arc::new(cc_core::policy::heuristic_file());
        }
        let (mut here, expected) = job.load().expect("it loads");
        let mut there = Cage::start(&program("obeys"), &job, &limits()).expect("it loads");
        let found = there.loaded();
        assert_eq!(found.interface, expected.interface, "{policy}");
        assert_eq!(found.file, expected.file, "{policy}");
        assert_eq!(found.lacking, Vec::<String>::new(), "{policy}");
        // The second round goes on with the states of the first.
        let mut local = queries(&expected.interface, 70);
        let mut remote = local.clone();
        for count in [70, 1, 9, 70] {
            let choices = here.decide(&mut local[..count]);
            let answers = ask(&mut there, &mut remote[..count]).expect("it answers");
            assert_eq!(answers, choices, "{policy}");
            assert_eq!(remote, local, "{policy}");
        }
    }
}

fn a_file_that_is_no_policy_is_refused_in_the_child() {
    let mut job = job("some.onnx");
    job.file = Arc::new(b"not a policy".to_vec());
    let error = refused("obeys", &job, &limits());
    assert!(
        error.contains("policy file refused: not an ONNX file"),
        "{error}"
    );
}

/// The default policy with its logits doubled in length 40 times and cut again: 34 kB that ask for
/// terabytes.
fn a_model_that_asks_for_gigabytes_is_no_policy() {
    let mut model = ModelProto::decode(DEFAULT_POLICY).expect("a model");
    let graph = model.graph.as_mut().expect("a graph");
    for node in &mut graph.node {
        for output in &mut node.output {
            if output == "logits" {
                *output = "before".into();
            }
        }
    }
    let mut last = "before".to_owned();
    for level in 0..40 {
        let name = format!("doubled{level}");
        graph.node.push(NodeProto {
            op_type: "Concat".into(),
            name: name.clone(),
            input: vec![last.clone(), last],
            output: vec![name.clone()],
            attribute: vec![AttributeProto {
                name: "axis".into(),
                i: 1,
                r#type: AttributeType::Int.into(),
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        });
        last = name;
    }
    let actions = 9;
    for (name, value) in [("start", 0), ("end", actions), ("axis", 1)] {
        graph.initializer.push(TensorProto {
            name: name.into(),
            dims: vec![1],
            data_type: DataType::Int64.into(),
            int64_data: vec![value],
            ..TensorProto::default()
        });
    }
    for (operator, inputs, output) in [
        ("Softmax", vec![last], "soft"),
        (
            "Slice",
            ["soft", "start", "end", "axis"].map(String::from).to_vec(),
            "logits",
        ),
    ] {
        graph.node.push(NodeProto {
            op_type: operator.into(),
            name: operator.into(),
            input: inputs,
            output: vec![output.into()],
            ..NodeProto::default()
        });
    }
    let mut job = job("bomb.onnx");
    job.file = Arc::new(model.encode_to_vec());
    // Refused by a check of the file, or the end of the child; never that of this process.
    let error = refused("obeys", &job, &limits());
    assert!(
        error.contains("refused") || error.contains("memory allocation"),
        "{error}"
    );
}

fn answers_that_are_not_finite_are_refused() {
    let error = refused("never", &job("fixed:10"), &limits());
    assert!(error.contains("are not finite"), "{error}");
}

fn a_slow_policy_is_refused() {
    let mut job = job("heuristic");
    job.batch_budget = Some(Duration::from_nanos(1));
    let error = refused("obeys", &job, &limits());
    assert!(error.starts_with("a batch of 1 flows takes "), "{error}");
    assert!(error.contains("--batch-budget-ms"), "{error}");
}

fn memory_without_end_ends_the_child() {
    let mut cage = started("later-eats");
    let fault = fault(&mut cage);
    assert!(fault.contains("aborted: memory allocation of"), "{fault}");
}

fn memory_without_end_ends_the_load() {
    let error = refused("eats", &job("fixed:10"), &limits());
    assert!(error.contains("memory allocation of"), "{error}");
    assert!(error.contains("may take 536 MB"), "{error}");
}

fn a_load_without_end_is_ended() {
    let limits = Limits {
        load: Duration::from_millis(500),
        ..limits()
    };
    let error = refused("hangs", &job("fixed:10"), &limits);
    assert!(
        error.starts_with("loading it took longer than 0.5 s"),
        "{error}"
    );
}

fn a_panic_ends_the_child_and_is_told() {
    let fault = fault(&mut started("later-panics"));
    assert!(fault.contains("ended with status 101"), "{fault}");
    assert!(fault.contains("as this test wants it"), "{fault}");
}

fn a_killed_child_is_noticed() {
    let mut cage = started("obeys");
    kill(Pid::from_raw(cage.pid() as i32), Signal::SIGKILL).expect("our child");
    let fault = fault(&mut cage);
    assert!(fault.contains("was killed"), "{fault}");
}

fn a_stopped_child_is_ended_when_it_is_dropped() {
    let mut cage = started("obeys");
    let pid = cage.pid();
    kill(Pid::from_raw(pid as i32), Signal::SIGSTOP).expect("our child");
    let mut queries = queries(&Interface::default(), 1);
    cage.ask(&queries).expect("it is there");
    thread::sleep(Duration::from_millis(50));
    assert_eq!(cage.poll_answer(&mut queries), Ok(None), "it is stopped");
    drop(cage);
    eventually("the child is gone", || gone(pid));
}

fn signals_of_a_terminal_do_not_end_a_child() {
    let mut cage = started("obeys");
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        kill(Pid::from_raw(cage.pid() as i32), signal).expect("our child");
    }
    let mut queries = queries(&Interface::default(), 1);
    assert_eq!(ask(&mut cage, &mut queries), Ok(vec![Choice::Cwnd(10)]));
}

fn a_child_ends_with_the_thread_that_started_it() {
    let start = || {
        let cage = started("later-hangs");
        let pid = cage.pid();
        // Without its drop, which would end the child.
        std::mem::forget(cage);
        pid
    };
    let pid = thread::spawn(start).join().expect("it starts");
    eventually("the child is gone", || gone(pid));
}

/// Names of what a child must not manage to do, by the bits of its answer.
const DEEDS: [&str; 9] = [
    "open a file",
    "write a file",
    "list a directory",
    "start a program",
    "connect by TCP",
    "open a UDP socket",
    "connect to a Unix socket",
    "start a thread",
    "signal the parent",
];

fn a_child_can_only_answer() {
    let mut cage = started("later-tries");
    let pid = cage.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {status}"))
            .trim()
    };
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    if nix::unistd::geteuid().is_root() {
        assert_eq!(field("Uid:"), "65534\t65534\t65534\t65534");
        assert_eq!(field("Groups:"), "");
    }
    let files = fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count);
    assert!(
        files.is_err() || files.is_ok_and(|count| count == 3),
        "descriptors"
    );
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it lives");
    assert_eq!(score.trim(), "1000");

    let mut queries = queries(&Interface::default(), 1);
    let choices = ask(&mut cage, &mut queries).expect("it answers");
    let [Choice::Cwnd(done)] = choices[..] else {
        panic!("{choices:?}");
    };
    let done: Vec<&str> = (0..DEEDS.len())
        .filter(|bit| done & (1 << bit) != 0)
        .map(|bit| DEEDS[bit])
        .collect();
    assert_eq!(done, Vec::<&str>::new(), "a policy managed this");
}

fn landlock_alone_keeps_files_and_tcp_away() {
    let output = Command::new("/proc/self/exe")
        .arg("landlocked")
        .output()
        .expect("it starts");
    let words = String::from_utf8_lossy(&output.stdout);
    if words.contains("lacking") {
        println!("SKIPPED: {words}");
        return;
    }
    assert_eq!(words, "open: false, list: false\n");
}

fn landlocked() -> ExitCode {
    match confinement::landlock() {
        Ok(()) => println!(
            "open: {}, list: {}",
            fs::read("/proc/self/exe").is_ok(),
            fs::read_dir("/").is_ok()
        ),
        Err(reason) => println!("lacking: {reason}"),
    }
    ExitCode::SUCCESS
}

fn a_program_that_cannot_be_started_is_an_error() {
    let missing = Program {
        path: "/no/such/program".into(),
        arguments: Vec::new(),
    };
    let Err(error) = Cage::start(&missing, &job("fixed:10"), &limits()) else {
        panic!("it was started");
    };
    assert!(
        error.to_string().starts_with("no process can be started"),
        "{error}"
    );
}

/// Runs a child. `later-…` misbehaves in the first batch after the try-out.
fn child(behaviour: &str, arguments: &[OsString]) -> ExitCode {
    if behaviour == "obeys" {
        return cc_cage::run(arguments);
    }
    let later = behaviour.strip_prefix("later-");
    let behaviour = later.unwrap_or(behaviour).to_owned();
    cc_cage::run_with(arguments, |job| {
        let mut policy = Misbehaving {
            interface: job.interface.clone(),
            behaviour,
            // One batch of zeros, and three times 34 of plausible windows.
            patience: if later.is_some() { 103 } else { 0 },
        };
        // What a bad file does while it is loaded.
        if policy.patience == 0 && policy.behaviour != "never" {
            policy.decide(&mut queries(&job.interface, 1));
        }
        Ok(Box::new(policy))
    })
}

struct Misbehaving {
    interface: Interface,
    behaviour: String,
    /// Batches that it answers well.
    patience: u32,
}

impl Policy for Misbehaving {
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
        if self.patience > 0 {
            self.patience -= 1;
            return vec![Choice::Cwnd(10); queries.len()];
        }
        match &*self.behaviour {
            "never" => vec![Choice::Invalid; queries.len()],
            "eats" => {
                let mut eaten = Vec::new();
                loop {
                    eaten.push(vec![1u8; 16 << 20]);
                    std::hint::black_box(&eaten);
                }
            }
            "hangs" => loop {
                std::hint::spin_loop();
            },
            "panics" => panic!("as this test wants it"),
            "tries" => vec![Choice::Cwnd(1 << DEEDS.len() | deeds()); queries.len()],
            other => unreachable!("{other}"),
        }
    }

    fn interface(&self) -> &Interface {
        &self.interface
    }
}

/// Tries all [`DEEDS`]. The bits of those that succeeded.
fn deeds() -> u32 {
    let parent = Pid::from_raw(std::os::unix::process::parent_id() as i32);
    [
        fs::read("/etc/hostname").is_ok() || fs::read("/proc/self/status").is_ok(),
        fs::write("/tmp/cc-cage-was-here", "x").is_ok(),
        fs::read_dir("/").is_ok(),
        Command::new("/bin/true").status().is_ok(),
        TcpStream::connect("127.0.0.1:9").was_permitted(),
        UdpSocket::bind("127.0.0.1:0").is_ok(),
        UnixStream::connect("/run/no").was_permitted(),
        thread::Builder::new().spawn(|| {}).is_ok(),
        kill(parent, None).is_ok(),
    ]
    .into_iter()
    .enumerate()
    .map(|(bit, done)| u32::from(done) << bit)
    .sum()
}

/// A connection that is refused by the other side is one that was tried.
trait Tried {
    fn was_permitted(self) -> bool;
}

impl<T> Tried for std::io::Result<T> {
    fn was_permitted(self) -> bool {
        match self {
            Ok(_) => true,
            Err(error) => error.kind() != std::io::ErrorKind::PermissionDenied,
        }
    }
}
