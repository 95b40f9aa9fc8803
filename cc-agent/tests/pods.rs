//! `cc-agent pods` between a mock API server, directories named as the kubelet names cgroups, and a
//! socket that answers as an agent does. That its choice reaches the kernel is shown by
//! `tests/selection.rs`.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use cc_core::status::{Command as Asked, Reply, Request, samples};
use cc_lab::{ApiServer, Fault, eventually};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");
/// The annotation of a selected pod.
const SELECTED: (&str, &str) = ("rlcc/congestion-control", "rlcc");
const UIDS: [&str; 3] = [
    "0f5b2c1e-3d4a-4b6c-8d7e-9f0a1b2c3d4e",
    "1a2b3c4d-0000-4000-8000-000000000001",
    "ffffffff-0000-4000-8000-000000000002",
];

/// An agent's socket, without an agent.
struct FakeAgent {
    socket: PathBuf,
    cgroups: Arc<Mutex<Option<Vec<PathBuf>>>>,
}

impl FakeAgent {
    fn listen(socket: PathBuf) -> Self {
        let cgroups = Arc::new(Mutex::new(Some(Vec::new())));
        let listener = UnixListener::bind(&socket).expect("a socket");
        let shared = Arc::clone(&cgroups);
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut line = String::new();
                let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
                let _ = reader.read_line(&mut line);
                let mut cgroups = shared.lock().expect("no panic");
                let answer = match serde_json::from_str(&line).expect("a request") {
                    Request::Command(command) => {
                        let cgroups = cgroups.as_mut().expect("only where it may be asked");
                        match command {
                            Asked::AddCgroup { directory } => cgroups.push(directory),
                            Asked::RemoveCgroup { directory } => {
                                cgroups.retain(|it| *it != directory);
                            }
                            other => panic!("{other}"),
                        }
                        serde_json::to_string(&Reply::Done("done".into()))
                    }
                    _ => {
                        let mut status = samples::idle();
                        status.cgroups.clone_from(&cgroups);
                        serde_json::to_string(&status)
                    }
                };
                let _ = writeln!(stream, "{}", answer.expect("it is plain data"));
            }
        });
        Self { socket, cgroups }
    }

    fn serves(&self) -> Vec<PathBuf> {
        let cgroups = self.cgroups.lock().expect("no panic").clone();
        let mut cgroups = cgroups.unwrap_or_default();
        cgroups.sort();
        cgroups
    }

    fn set(&self, cgroups: Option<Vec<PathBuf>>) {
        *self.cgroups.lock().expect("no panic") = cgroups;
    }
}

/// A selector at work, and all around it.
struct Bench {
    api: ApiServer,
    agent: FakeAgent,
    directory: TempDir,
    child: Option<Child>,
    log: Arc<Mutex<String>>,
}

impl Bench {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let agent = FakeAgent::listen(directory.path().join("agent.sock"));
        fs::create_dir(directory.path().join("cgroup")).expect("ours");
        Self {
            api: ApiServer::new(),
            agent,
            directory,
            child: None,
            log: Arc::default(),
        }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("cgroup")
    }

    /// Makes the cgroup of a pod, as the systemd driver names it.
    fn pod(&self, uid: &str) -> PathBuf {
        let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
        let directory = self
            .root()
            .join("kubepods.slice/kubepods-burstable.slice")
            .join(slice);
        fs::create_dir_all(directory.join("cri-containerd-1.scope")).expect("ours");
        directory
    }

    fn command(&self) -> Command {
        let mut command = Command::new(BINARY);
        command
            .args(["pods", "--node", "node-1", "--every", "0.1", "--server"])
            .arg(self.api.url())
            .arg("--socket")
            .arg(&self.agent.socket)
            .arg("--cgroup-root")
            .arg(self.root())
            .env_remove("NODE_NAME")
            .stdin(Stdio::null());
        command
    }

    fn start(&mut self, arguments: &[&str]) {
        let mut command = self.command();
        let spawned = command.args(arguments).stderr(Stdio::piped()).spawn();
        let mut child = spawned.expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let log = Arc::clone(&self.log);
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                log.lock().expect("no panic").push_str(&(line + "\n"));
            }
        });
        self.child = Some(child);
    }

    fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }

    /// Waits until the agent serves these cgroups and no others.
    fn serves(&self, expected: &[&Path]) {
        let mut expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
        expected.sort();
        for _ in 0..6_000 {
            if self.agent.serves() == expected {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!(
            "it serves {:?}, not {expected:?}; {}",
            self.agent.serves(),
            self.log()
        );
    }

    fn says(&self, part: &str) {
        eventually(&format!("it says `{part}`"), || {
            self.log().contains(part).then_some(())
        });
    }

    /// Waits until that many requests in all have come.
    fn asked(&self, requests: usize) {
        eventually("the server was asked again", || {
            (self.api.requests().len() >= requests).then_some(())
        });
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn the_agent_serves_the_pods_that_the_annotation_selects() {
    let mut bench = Bench::new();
    let [a, b, c] = UIDS.map(|uid| bench.pod(uid));
    let other = PathBuf::from("/sys/fs/cgroup/by-hand.slice");
    bench.agent.set(Some(vec![other.clone(), c.clone()]));
    bench.api.put(UIDS[0], &[SELECTED]);
    bench
        .api
        .put(UIDS[1], &[("rlcc/congestion-control", "cubic")]);
    bench.api.put(UIDS[2], &[]);
    bench.start(&[]);
    // What is no pod's stays; what is one's that is not selected goes.
    bench.serves(&[&other, &a]);
    bench.api.put(UIDS[1], &[SELECTED, ("another", "one")]);
    bench.serves(&[&other, &a, &b]);
    bench.api.put(UIDS[0], &[("another", "one")]);
    bench.serves(&[&other, &b]);
    bench.api.delete(UIDS[1]);
    bench.serves(&[&other]);
    bench.says(&format!("pod default/pod-{0} ({0}) is selected", UIDS[0]));

    let requests = bench.api.requests();
    assert!(
        requests[0].starts_with(
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1&resourceVersion=0 HTTP/1.1\r\n"
        ),
        "{}",
        requests[0]
    );
    let list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    assert!(requests[0].contains(list), "{}", requests[0]);
    assert!(
        requests[1].contains("&watch=true&allowWatchBookmarks=true&timeoutSeconds=290"),
        "{}",
        requests[1]
    );
    // No token goes over plain HTTP unless it is asked for.
    assert!(!requests[0].to_lowercase().contains("authorization"));
    // All of it was one list and one watch.
    assert_eq!(requests.len(), 2);
}

#[test]
fn a_cgroup_may_come_after_its_pod_and_go_before_it() {
    let mut bench = Bench::new();
    bench.api.put(UIDS[0], &[SELECTED]);
    bench.start(&[]);
    bench.says("is selected");
    bench.serves(&[]);
    let cgroupfs = bench
        .root()
        .join("kubepods/besteffort")
        .join(format!("pod{}", UIDS[0]));
    fs::create_dir_all(&cgroupfs).expect("ours");
    bench.serves(&[&cgroupfs]);
    // The agent forgets a cgroup that is removed; this one must not name it again.
    fs::remove_dir(&cgroupfs).expect("it is empty");
    bench.agent.set(Some(Vec::new()));
    thread::sleep(Duration::from_millis(400));
    bench.serves(&[]);
}

#[test]
fn an_agent_that_was_started_again_is_told_anew() {
    let mut bench = Bench::new();
    let a = bench.pod(UIDS[0]);
    bench.api.put(UIDS[0], &[SELECTED]);
    bench.start(&[]);
    bench.serves(&[&a]);
    bench.agent.set(Some(Vec::new()));
    bench.serves(&[&a]);
    bench.agent.set(None);
    bench.says("start it with --cgroups-by-command");
}

/// What the API server may do, and what is said of it.
const FAULTS: [(Fault, &str); 7] = [
    (
        Fault::Refuse(401),
        "refuses to show pods: 401 as the test asks; is the token",
    ),
    (Fault::Refuse(403), "needs the verbs `list` and `watch`"),
    (Fault::Refuse(500), "refuses to show pods: 500"),
    (Fault::Nonsense, "is no API server of Kubernetes"),
    (Fault::Endless, "longer than 4194304 bytes"),
    (Fault::Cut, "the answer broke off"),
    (Fault::Slow(Duration::from_millis(300)), ""),
];

#[test]
fn faults_of_the_api_server_change_nothing_and_pass() {
    let mut bench = Bench::new();
    let [a, b, _] = UIDS.map(|uid| bench.pod(uid));
    bench.api.put(UIDS[0], &[SELECTED]);
    bench.start(&[]);
    bench.serves(&[&a]);
    for (fault, says) in FAULTS {
        bench.api.fail(fault.clone());
        bench.api.end_watches();
        eventually("it was met", || {
            (bench.api.faults_left() == 0).then_some(())
        });
        bench.says(says);
        assert_eq!(bench.agent.serves(), std::slice::from_ref(&a), "{fault:?}");
        // It goes on where it was.
        bench.api.put(UIDS[1], &[SELECTED]);
        bench.serves(&[&a, &b]);
        bench.api.delete(UIDS[1]);
        bench.serves(&[&a]);
    }
    assert!(bench.log().contains("answers again"), "{}", bench.log());
}

#[test]
fn the_first_list_is_tried_until_it_comes() {
    let mut bench = Bench::new();
    let [a, b, _] = UIDS.map(|uid| bench.pod(uid));
    bench.agent.set(Some(vec![b.clone()]));
    bench.api.put(UIDS[0], &[SELECTED]);
    for fault in [Fault::Refuse(503), Fault::Nonsense] {
        bench.api.fail(fault);
    }
    bench.start(&[]);
    bench.says("503");
    // Until then nothing is known to be selected no longer.
    assert!(bench.agent.serves().contains(&b));
    bench.serves(&[&a]);
}

#[test]
fn a_version_that_is_gone_is_listed_anew() {
    let mut bench = Bench::new();
    let [a, b, c] = UIDS.map(|uid| bench.pod(uid));
    bench.api.put(UIDS[0], &[SELECTED]);
    bench.api.put(UIDS[1], &[SELECTED]);
    bench.start(&[]);
    bench.serves(&[&a, &b]);
    bench.asked(2);
    // Within a watch, by the line of an error.
    bench.api.fail(Fault::Slow(Duration::from_millis(200)));
    bench.api.end_watches();
    bench.asked(3);
    bench.api.delete(UIDS[0]);
    bench.api.put(UIDS[2], &[SELECTED]);
    bench.api.forget();
    bench.serves(&[&b, &c]);
    // And as the status of an answer.
    bench.api.fail(Fault::Refuse(410));
    bench.api.end_watches();
    bench.says("410");
    bench.api.delete(UIDS[2]);
    bench.serves(&[&b]);
    // A list that follows is no old one of a cache.
    let lists = bench.api.requests();
    let lists: Vec<_> = lists
        .iter()
        .filter(|it| !it.contains("watch=true"))
        .collect();
    assert_eq!(lists.len(), 3);
    assert!(!lists[2].contains("resourceVersion"), "{}", lists[2]);
}

#[test]
fn a_bookmark_is_where_the_next_watch_begins() {
    let mut bench = Bench::new();
    bench.start(&[]);
    bench.asked(2);
    bench.api.bookmark();
    bench.api.bookmark();
    thread::sleep(Duration::from_millis(100));
    bench.api.end_watches();
    bench.asked(3);
    let requests = bench.api.requests();
    assert!(
        requests[1].contains("&resourceVersion=1 "),
        "{}",
        requests[1]
    );
    assert!(
        requests[2].contains("&resourceVersion=3 "),
        "{}",
        requests[2]
    );
}

#[test]
fn metrics_say_what_fails_until_it_does_not() {
    let mut bench = Bench::new();
    let a = bench.pod(UIDS[0]);
    bench.api.put(UIDS[0], &[SELECTED]);
    bench.api.put(UIDS[1], &[SELECTED]);
    bench.agent.set(None);
    for _ in 0..3 {
        bench.api.fail(Fault::Refuse(503));
    }
    bench.start(&["--metrics", "127.0.0.1:0"]);
    let address = eventually("it says where", || {
        let log = bench.log();
        let (_, rest) = log.split_once("serving metrics on http://")?;
        Some(rest.split_once("/metrics")?.0.to_owned())
    });
    let shows = |expected: &str| {
        eventually(&format!("the page has `{expected}`"), || {
            let mut stream = TcpStream::connect(&address).ok()?;
            let request = "GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).ok()?;
            let mut page = String::new();
            stream.read_to_string(&mut page).ok()?;
            page.lines().any(|line| line == expected).then_some(())
        });
    };
    shows("rlcc_pods_server_failing 1");
    // The agent takes no cgroups by command.
    shows("rlcc_pods_agent_failing 1");
    bench.agent.set(Some(Vec::new()));
    bench.serves(&[&a]);
    shows("rlcc_pods_server_failing 0");
    shows("rlcc_pods_server_failures_total 3");
    shows("rlcc_pods_agent_failing 0");
    shows("rlcc_pods_selected 2");
    shows("rlcc_pods_without_cgroup 1");
}

#[test]
fn what_is_served_stays_while_the_api_server_is_away() {
    let mut bench = Bench::new();
    let a = bench.pod(UIDS[0]);
    bench.api.put(UIDS[0], &[SELECTED]);
    bench.start(&[]);
    bench.serves(&[&a]);
    drop(std::mem::take(&mut bench.api));
    // The agent is started again meanwhile.
    bench.agent.set(Some(Vec::new()));
    bench.serves(&[&a]);
}

#[test]
fn the_token_is_read_again() {
    let mut bench = Bench::new();
    let token = bench.directory.path().join("token");
    fs::write(&token, "first\n").expect("ours");
    bench.start(&["--token-file", token.to_str().expect("ASCII")]);
    bench.asked(2);
    fs::write(&token, "second\n").expect("ours");
    bench.api.end_watches();
    bench.asked(3);
    let requests = bench.api.requests();
    for (request, token) in [(0, "first"), (1, "first"), (2, "second")] {
        let expected = format!("authorization: Bearer {token}\r\n");
        assert!(
            requests[request].contains(&expected),
            "{}",
            requests[request]
        );
    }
    assert!(!bench.log().contains("second"), "{}", bench.log());
    fs::remove_file(&token).expect("it is there");
    bench.api.end_watches();
    bench.says("token: No such file or directory (os error 2); mount it");
}

#[test]
fn what_cannot_work_is_refused() {
    let bench = Bench::new();
    let refused = |change: &dyn Fn(&mut Command)| {
        let mut command = Command::new(BINARY);
        command
            .arg("pods")
            .stdin(Stdio::null())
            .env_remove("NODE_NAME");
        for variable in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
            command.env_remove(variable);
        }
        change(&mut command);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = String::new();
        let mut stderr = child.stderr.take().expect("it is piped");
        stderr.read_to_string(&mut said).expect("text");
        assert!(!child.wait().expect("ours").success(), "{said}");
        said
    };
    for (arguments, parts) in [
        (
            &["--server", "https://10.0.0.1"][..],
            &["--node", "NODE_NAME", "spec.nodeName"][..],
        ),
        (&["--node", "n"], &["KUBERNETES_SERVICE_HOST", "--server"]),
        (
            &["--node", "n", "--server", "http://10.0.0.1:80"],
            &[
                "--server",
                "http://10.0.0.1:80",
                "https://HOST:PORT",
                "kubectl proxy",
            ],
        ),
        (
            &["--node", "n", "--every", "0"],
            &["--every 0", "a number of seconds above 0"],
        ),
    ] {
        let said = refused(&|command| {
            command
                .arg("--cgroup-root")
                .arg(bench.root())
                .args(arguments);
        });
        for part in parts {
            assert!(
                said.contains(part),
                "{arguments:?} does not say {part}: {said}"
            );
        }
    }
    let said = refused(&|command| {
        command.args(["--cgroup-root", "/nowhere"]);
    });
    assert!(
        said.contains("--cgroup-root /nowhere: expected the directory"),
        "{said}"
    );
}
