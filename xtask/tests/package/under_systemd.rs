//! The life of a package under a real systemd, while flows go on: installation, start, reload,
//! upgrade, death, removal.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cc_lab::{Bottleneck, Churn, Footprint, Network, eventually, unique_name};
use tempfile::TempDir;

use crate::{
    debian::{self, newer, package, stripped},
    system::System,
};

/// The default congestion control of a network namespace.
const DEFAULT: &str = "net/ipv4/tcp_congestion_control";
/// What it is before the agent.
const FORMER: &str = "reno";
/// Connections that last, and that are replaced when they have sent what they were to.
const LASTING: usize = 20;
const PASSING: usize = 20;
/// How often decisions are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time without a decision where one agent takes over from another: what a loaded machine
/// may add to a few hundred milliseconds. A restart has to load and to verify the programs first.
const TAKEOVER: Duration = Duration::from_secs(5);

/// What is missing for the test; `None` when nothing is.
pub(crate) fn missing() -> Option<String> {
    debian::missing()
        .or_else(cc_lab::unmet_requirement)
        .or_else(System::missing)
}

pub(crate) fn a_package_lives_under_systemd() {
    let _exclusive = cc_lab::exclusive();
    let directory = TempDir::new().expect("a directory for the test");
    let at = |name: &str| directory.path().join(name);
    let deb = package(&stripped(directory.path()), &at("first"), "0");
    let network = Network::through(Bottleneck {
        rate_mbit: 50,
        queue_bytes: 500_000,
    });
    let sender = &network.path.sender;
    sender.set_sysctl(DEFAULT, FORMER);
    let system = System::boot(sender);

    // An installation starts nothing.
    let begun = Instant::now();
    system.install(&deb);
    for unit in UNITS {
        let state = system.run(&format!("systemctl is-enabled {unit}"));
        let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
        assert_eq!(state, "disabled", "{unit}");
    }
    let files = system.succeed("dpkg -L cc-agent");

    let name = unique_name();
    let options = format!("name = {name:?}\ndefault = true\n");
    fs::write(system.seen("/etc/cc-agent.toml"), options).expect("it is there");
    // The units of the processes beside the agent ask for one of the name rlcc.
    let beside = format!(
        "mkdir -p /etc/systemd/system/cc-agent-metrics.service.d && \
         sed -n 's|^ExecStart=.*|ExecStart=\\n& --name {name}|p' \
         /lib/systemd/system/cc-agent-metrics.service | sed '1i [Service]' \
         > /etc/systemd/system/cc-agent-metrics.service.d/name.conf && systemctl daemon-reload"
    );
    system.succeed(&beside);
    system.succeed("systemctl enable --now cc-agent cc-agent-metrics cc-agent-observe 2>&1");
    for unit in ["cc-agent", "cc-agent-metrics", "cc-agent-observe"] {
        system.await_running(unit);
    }
    let socket = system.seen(&format!("/run/cc-agent/{name}.sock"));
    assert_eq!(sender.sysctl(DEFAULT), name, "the default");
    let first = begun.elapsed();
    for (unit, port, line) in [
        ("metrics", 9465, "rlcc_up 1"),
        ("observe", 9467, "rlcc_observed_srtt_seconds"),
    ] {
        let page = system.metrics(port);
        assert!(page.contains(line), "{unit}: {page}");
        let restarts = system.show(&format!("cc-agent-{unit}"), "NRestarts");
        assert_eq!(restarts, "0", "{unit}");
    }

    let churn = Churn::start(sender, network.address(), None, LASTING, PASSING);
    let decisions = Decisions::watch(socket.clone());
    eventually("flows are decided about", || decisions.last());
    system.succeed(&format!("cc-agent health --name {name}"));

    // A reload takes over.
    let reload = takeover(&system, &decisions, || {
        system.succeed("systemctl reload cc-agent 2>&1");
    });
    // So does an upgrade.
    let newer = newer(&deb, &at("newer"));
    let upgrade = takeover(&system, &decisions, || {
        let said = system.install(&newer);
        assert!(!said.contains("Failed"), "{said}");
    });
    let version = system.succeed("dpkg-query -W -f '${Version}' cc-agent");
    assert_eq!(version, "99.0");
    assert_eq!(system.show("cc-agent-metrics", "ActiveState"), "active");

    // One that is killed is started again; ExecStopPost has restored the default meanwhile.
    let killed = Instant::now();
    let main = system.show("cc-agent", "MainPID");
    system.succeed(&format!("kill -KILL {main}"));
    eventually("it is started again", || {
        let restarts = system.show("cc-agent", "NRestarts") == "1";
        (restarts && system.show("cc-agent", "ActiveState") == "active").then_some(())
    });
    eventually("flows are decided about again", || {
        decisions.last().filter(|&at| at > killed + LOOK)
    });
    let kill = decisions.longest_gap(killed);
    let log = system.succeed("journalctl --no-pager -o json -u cc-agent CC_SERVICE=agent");
    assert!(log.contains(&format!("\"registered {name};")), "{log}");
    let restored = format!("default congestion control is {FORMER} again, in the place of {name}");
    assert!(log.contains(&restored), "before it was started: {log}");
    assert_eq!(sender.sysctl(DEFAULT), name, "the default again");

    println!(
        "from dpkg to the default: {:.1} s; \
         longest time without a decision: reload {:.2} s, upgrade {:.2} s, SIGKILL {:.2} s",
        first.as_secs_f64(),
        reload.as_secs_f64(),
        upgrade.as_secs_f64(),
        kill.as_secs_f64()
    );

    // A stop restores the default, and open flows go on.
    system.succeed("systemctl stop cc-agent");
    assert_eq!(sender.sysctl(DEFAULT), FORMER, "the former default");
    let after = system.show("cc-agent", "ExecStopPost");
    assert!(after.contains("code=exited ; status=0"), "{after}");
    let before = churn.completed();
    eventually("flows go on without an agent", || {
        (churn.completed() > before + PASSING as u64).then_some(())
    });
    system.succeed("systemctl start cc-agent");
    drop(decisions);

    // What was installed goes, and so does what it has made.
    system.succeed("dpkg --remove cc-agent 2>&1");
    assert_eq!(sender.sysctl(DEFAULT), FORMER, "a removal stops the agent");
    assert!(!socket.exists(), "the socket");
    system.succeed("test -e /etc/cc-agent.toml");
    let footprint = Footprint::of(&name);
    system.succeed("dpkg --purge cc-agent 2>&1");
    for file in files.lines() {
        let left = system.run(&format!("test -e '{file}' -a ! -d '{file}'"));
        assert!(!left.status.success(), "{file} is left");
    }
    for place in ["/var/lib/cc-agent", "/run/cc-agent"] {
        assert!(!system.seen(place).exists(), "{place} is left");
    }
    let links = system.succeed("find /etc/systemd/system -name 'cc-agent*.service' | wc -l");
    assert_eq!(links, "0", "units that are enabled");
    assert!(
        !system.run("pgrep 'cc-agent|cc-policy'").status.success(),
        "processes"
    );
    assert_eq!(churn.failed(), 0, "no connection was reset in all of this");
    drop(churn);
    footprint.assert_vanishes();
}

/// The units of the package.
const UNITS: [&str; 5] = [
    "cc-agent",
    "cc-agent-follow",
    "cc-agent-metrics",
    "cc-agent-observe",
    "cc-agent-policy-server",
];

/// Does what makes a new agent take over from the running one, and returns the longest time without
/// a decision since it began.
fn takeover(system: &System, decisions: &Decisions, act: impl FnOnce()) -> Duration {
    let former = system.show("cc-agent", "MainPID");
    let invocation = system.show("cc-agent", "InvocationID");
    let began = Instant::now();
    act();
    eventually("another process is the agent", || {
        (system.show("cc-agent", "MainPID") != former).then_some(())
    });
    let taken = Instant::now();
    eventually("it decides", || {
        decisions.last().filter(|&at| at > taken + LOOK)
    });
    assert_eq!(system.show("cc-agent", "NRestarts"), "0");
    assert_eq!(system.show("cc-agent", "ActiveState"), "active");
    // A restart that somebody asks for changes the process and leaves `NRestarts` at 0 too.
    let same = system.show("cc-agent", "InvocationID") == invocation;
    assert!(same, "the service was restarted rather than taken over");
    let gap = decisions.longest_gap(began);
    assert!(gap < TAKEOVER, "{gap:?} without a decision");
    gap
}

/// When decisions were made, by whichever agent listens at a socket.
struct Decisions {
    /// When their number was seen to have risen, in order.
    seen: Arc<Mutex<Vec<Instant>>>,
    stop: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl Decisions {
    fn watch(socket: PathBuf) -> Self {
        let (seen, stop) = (
            Arc::<Mutex<Vec<_>>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let (ours, stopped) = (seen.clone(), stop.clone());
        let watcher = thread::spawn(move || {
            let mut last = (0, 0);
            while !stopped.load(Ordering::Relaxed) {
                if let Ok(status) = cc_client::fetch(&socket) {
                    let now = (status.pid, status.agent.decisions);
                    let risen = now.1 > if now.0 == last.0 { last.1 } else { 0 };
                    if risen {
                        ours.lock()
                            .expect("no panic while it is held")
                            .push(Instant::now());
                    }
                    last = now;
                }
                thread::sleep(LOOK);
            }
        });
        Self {
            seen,
            stop,
            watcher: Some(watcher),
        }
    }

    /// When the last ones were seen.
    fn last(&self) -> Option<Instant> {
        let seen = self.seen.lock().expect("no panic while it is held");
        seen.last().copied()
    }

    /// The longest time between two looks that saw decisions, the latter of them after `since`.
    fn longest_gap(&self, since: Instant) -> Duration {
        let seen = self.seen.lock().expect("no panic while it is held");
        let pairs = seen.windows(2).filter(|pair| pair[1] > since);
        pairs
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap_or_default()
    }
}

impl Drop for Decisions {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.watcher.take().map(JoinHandle::join);
        assert!(
            ended.is_none_or(|ended| ended.is_ok()),
            "the watcher panicked"
        );
    }
}
