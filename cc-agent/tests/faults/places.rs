//! Directories that others have prepared, and agents beside each other.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use cc_agent::kernel::datapath::registered;
use cc_core::status::RecordingStatus;
use cc_ebpf::Counter;
use cc_lab::{Agent, eventually, unique_name};
use nix::{
    sys::{
        signal::Signal,
        stat::{Mode, stat},
    },
    unistd::mkfifo,
};
use tempfile::TempDir;

use crate::stage::{Stage, count, end, run_against, wait_for_decision, wait_for_status};

const NOBODY: u32 = 65_534;
const PRECIOUS: &[u8] = b"precious";

/// A directory of somebody who is not root, and a file of root's that must not change.
struct Trap {
    directory: TempDir,
    victim: PathBuf,
    _home: TempDir,
}

impl Trap {
    fn with_mode(mode: u32) -> Self {
        let (directory, home) = (TempDir::new(), TempDir::new());
        let (directory, home) = (directory.expect("a directory"), home.expect("a directory"));
        let victim = home.path().join("victim");
        fs::write(&victim, PRECIOUS).expect("writes");
        fs::set_permissions(directory.path(), Permissions::from_mode(mode)).expect("it is ours");
        Self {
            directory,
            victim,
            _home: home,
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts links to the victim in the places of files to come.
    fn link(&self, names: &[&str]) {
        for name in names {
            symlink(&self.victim, self.place(name)).expect("a new name");
        }
    }

    fn assert_is_whole(&self) {
        assert_eq!(fs::read(&self.victim).expect("it is there"), PRECIOUS);
        let found = stat(&self.victim).expect("it is there");
        assert_eq!((found.st_uid, found.st_nlink), (0, 1));
    }
}

/// The directory of the socket is like /tmp: everybody may create files there.
pub(crate) fn a_directory_in_which_others_set_traps() {
    let stage = Stage::new();
    let trap = Trap::with_mode(0o1777);
    let name = stage.name.as_str();
    let files = ["former", "former.new", "policy", "policy.new"].map(|end| format!("{name}.{end}"));
    let start = |socket: &str, arguments: &[&str]| {
        stage.spawn_at(&trap.place(socket), arguments, |command| {
            command.env_remove("STATE_DIRECTORY");
        })
    };
    let fixed = ["--policy", "fixed:20", "--default"];

    // Links: what they lead to is neither read nor written.
    trap.link(&files.each_ref().map(String::as_str));
    let mut agent = start("agent.sock", &fixed);
    assert_eq!(agent.answers_or_ends(), Ok(()), "{}", agent.log());
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 20);
    let log = end(&mut agent);
    assert!(log.contains("is not used"), "{log}");
    assert_eq!(stage.default(), "reno", "{log}");
    trap.assert_is_whole();
    flow.advance(100_000);

    // FIFOs, which would be waited for, and files of somebody else, which would be believed.
    for file in &files {
        let _ = fs::remove_file(trap.place(file));
    }
    mkfifo(&trap.place(&files[0]), Mode::S_IRWXU).expect("a new name");
    mkfifo(&trap.place(&files[1]), Mode::S_IRWXU).expect("a new name");
    let forged = r#"{"policy":"evil","sha256":"aa","at_s":0,"by":"nobody"}"#;
    fs::write(trap.place(&files[2]), forged).expect("writes");
    chown(trap.place(&files[2]), Some(NOBODY), Some(NOBODY)).expect("root may");
    let mut agent = start("agent.sock", &fixed);
    assert_eq!(agent.answers_or_ends(), Ok(()), "{}", agent.log());
    assert_eq!(agent.status().differs, None);
    wait_for_decision(&agent, &flow, 20);
    let log = end(&mut agent);
    assert_eq!(stage.default(), "reno", "{log}");

    // In the place of the socket.
    trap.link(&["link.sock"]);
    mkfifo(&trap.place("fifo.sock"), Mode::S_IRWXU).expect("a new name");
    fs::create_dir(trap.place("directory.sock")).expect("a new name");
    for socket in ["link.sock", "fifo.sock", "directory.sock"] {
        let (status, log) = start(socket, &fixed).wait();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("error: ") && log.contains(socket), "{log}");
        assert_eq!(stage.default(), "reno", "{log}");
    }
    trap.assert_is_whole();
    assert!(!registered(name));
    flow.advance(100_000);
}

/// The owner of the recordings' directory, who is not root, changes it while the agent records.
pub(crate) fn a_recording_directory_that_its_owner_plays_with() {
    let stage = Stage::new();
    let trap = Trap::with_mode(0o755);
    chown(trap.directory.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
    let directory = trap.directory.path().display().to_string();
    // A row group and a file every second.
    let mut agent = stage.start(
        &[
            &["--policy", "fixed:20", "--record", &directory][..],
            &["--record-delay-s", "1", "--record-file-s", "1"],
        ]
        .concat(),
    );
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 20);
    let running = AtomicBool::new(true);
    let status = thread::scope(|scope| {
        scope.spawn(|| {
            while running.load(Ordering::Relaxed) {
                trap.play();
            }
        });
        let _stop = Stop(&running);
        let lost = |recording: &RecordingStatus| {
            recording.rows_lost_unwritten + recording.rows_lost_behind
        };
        wait_for_status(&agent, "rows were lost, or many written", |status| {
            let recording = status.recording.as_ref().expect("it records");
            status.agent.decisions > 100 && lost(recording) + recording.rows > 50
        })
    });
    println!("{status}");
    assert_eq!(count(&status, Counter::FallbacksEntered), 0);
    trap.assert_is_whole();
    // Left alone, it records again.
    let before = agent.status().recording.expect("it records").rows;
    wait_for_status(&agent, "rows are written again", |status| {
        let recording = status.recording.as_ref().expect("it records");
        recording.rows > before + 20
    });
    flow.advance(100_000);
    end(&mut agent);
    trap.assert_is_whole();
}

impl Trap {
    /// Puts links to the victim, hard links, directories and FIFOs in the places of all files that
    /// are there, and of those that will come for them.
    fn play(&self) {
        for (turn, name) in crate::stage::names(self.directory.path())
            .iter()
            .enumerate()
        {
            let (place, aside) = (self.place(name), self.place("aside"));
            let _ = match turn % 4 {
                0 => symlink(&self.victim, self.place(&format!("{name}.footer.new"))),
                1 => fs::rename(&place, &aside).and_then(|()| symlink(&self.victim, &place)),
                2 => fs::remove_file(&place).and_then(|()| fs::create_dir(&place)),
                _ => fs::hard_link(&place, &aside),
            };
        }
        thread::sleep(std::time::Duration::from_millis(2));
        // Otherwise the directory fills up with what nobody removes.
        for name in crate::stage::names(self.directory.path()) {
            let place = self.place(&name);
            if place.is_dir() {
                let _ = fs::remove_dir(&place);
            } else if place.is_symlink() {
                let _ = fs::remove_file(&place);
            }
        }
    }
}

/// Ends the play, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

pub(crate) fn a_policy_that_is_no_file_is_refused() {
    let stage = Stage::new();
    let mut agent = stage.start(&["--policy", "fixed:20"]);
    let flow = stage.connect().sending();
    wait_for_decision(&agent, &flow, 20);
    let place = TempDir::new().expect("a directory for the test");
    let fifo = place.path().join("fifo.onnx");
    mkfifo(&fifo, Mode::S_IRWXU).expect("a new name");
    // Everybody may write to the device, which alone would be a reason.
    let any = "ab".repeat(32);
    for file in [Path::new("/dev/zero"), place.path(), &fifo] {
        for more in [&[][..], &["--canary", "50"], &["--sha256", &any]] {
            let path = file.display().to_string();
            let (done, said) = run_against(&agent, &[&["reload", &path], more].concat());
            let reasons = ["regular file", "can be written by everybody"];
            let is_refused = reasons.iter().any(|reason| said.contains(reason));
            assert!(
                !done && is_refused && said.contains("the policy stays"),
                "{said}"
            );
        }
    }
    let before = agent.status();
    let after = wait_for_status(&agent, "decisions go on", |status| {
        status.agent.decisions > before.agent.decisions + 5
    });
    assert_eq!(after.policy, "fixed:20");
    end(&mut agent);
}

pub(crate) fn of_agents_that_start_at_once_one_serves_a_name() {
    let stage = Stage::new();
    let fixed = ["--policy", "fixed:20", "--default"];
    let mut flow = None;
    for turn in 0..5 {
        // Half of the time they have one socket, too.
        let sockets = [0, 1, 2].map(|agent| match turn % 2 {
            0 => stage.place("agent.sock"),
            _ => stage.place(&format!("agent{agent}.sock")),
        });
        let mut agents = sockets.map(|socket| stage.spawn_at(&socket, &fixed, |_| ()));
        eventually("all but one have ended", || {
            let ended = agents.iter_mut().filter_map(Agent::has_ended).count();
            (ended == 2).then_some(())
        });
        for agent in &mut agents {
            match agent.has_ended() {
                Some(status) => {
                    let (_, log) = agent.wait();
                    assert_eq!(status.code(), Some(1), "{log}");
                    let said = ["already registered", "is in use"];
                    assert!(said.iter().any(|said| log.contains(said)), "{log}");
                }
                None => {
                    assert_eq!(agent.answers_or_ends(), Ok(()), "{}", agent.log());
                    let flow = flow.get_or_insert_with(|| stage.connect().sending());
                    wait_for_decision(agent, flow, 20);
                    assert_eq!(stage.default(), stage.name);
                    let log = end(agent);
                    stage.assert_restored(&log);
                }
            }
        }
    }
}

pub(crate) fn two_agents_take_turns_as_the_default() {
    let stage = Stage::new();
    let other = unique_name();
    let sender = &stage.network.path.sender;
    let with_default = ["--policy", "fixed:30", "--default"];
    let mut first = stage.start(&["--policy", "fixed:20", "--default"]);
    let mut second = Agent::start_in(sender, crate::BINARY, &other, &with_default);
    assert_eq!(stage.default(), other);
    let flows = [&stage.name, &other].map(|name| stage.network.connect(name).sending());
    wait_for_decision(&first, &flows[0], 20);
    wait_for_decision(&second, &flows[1], 30);

    // The first one's end leaves the default of the second, whose former one is gone then.
    end(&mut first);
    assert_eq!(stage.default(), other);
    let (status, log) = second.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0), "{log}");
    let default = stage.default();
    assert!(registered(&default), "{default}: {log}");
    flows.iter().for_each(|flow| flow.advance(100_000));

    // In the opposite order both defaults come back.
    sender.set_sysctl("net/ipv4/tcp_congestion_control", "reno");
    let mut first = stage.start(&["--policy", "fixed:20", "--default"]);
    let mut second = Agent::start_in(sender, crate::BINARY, &other, &with_default);
    second.end(Signal::SIGTERM);
    assert_eq!(stage.default(), stage.name);
    let log = end(&mut first);
    stage.assert_restored(&log);
}
