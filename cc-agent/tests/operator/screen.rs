//! `cc-agent top` on a terminal of its own, whose screen is read.

use std::{
    env,
    fs::{self, File},
    io::{Read, Write},
    num::NonZero,
    path::PathBuf,
    process::{Child, Command, ExitStatus},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use cc_lab::{Agent, Crowd, Network, eventually, unique_name};
use nix::{
    pty::{Winsize, openpty},
    sys::signal::Signal,
};
use vt100::{Parser, Screen};

use crate::{BINARY, SHARED};

/// The variable that names the directory to write screens to, for looking at.
const DIRECTORY_VARIABLE: &str = "CC_VIEW_SCREENS";
const FLOWS: usize = 40;
/// Time in which the curves get some length, when the screens are to be looked at.
const WATCHED: Duration = Duration::from_secs(20);
/// A drawing is not in parts that are further apart, and the next one comes later.
const STILL: Duration = Duration::from_millis(50);
/// What begins the last line of the screen, at any width.
const FOOTER: &str = "r rate";

pub(crate) fn the_live_view_shows_flows_and_gives_the_terminal_back() {
    let network = Network::through(SHARED);
    let name = unique_name();
    let mut agent = Agent::start_in(&network.path.sender, BINARY, &name, &[]);
    let crowd = network.crowd(&name, FLOWS);
    // One that the application limits, and one that has nothing to send.
    let slow = network.connect(&name);
    slow.send(20_000);
    let idle = network.connect(&name);
    idle.send(20_000);
    for (columns, rows) in [(80, 24), (200, 50)] {
        let mut terminal = Terminal::start(&agent, columns, rows);
        let shown = |screen: &Screen| {
            let text = screen.contents();
            let flows = format!("flows {} of ", FLOWS + 2);
            text.contains(&flows) && text.contains("decided")
        };
        terminal.eventually("the flows are shown", shown);
        let ends = format!("{}", network.address());
        let screen = terminal.text();
        // Both below and above the flows all is there: nothing has scrolled.
        assert!(screen.starts_with(&name), "{screen}");
        let last = screen.lines().last().unwrap_or_default();
        assert!(
            last.contains(FOOTER) && last.ends_with("q quit"),
            "{screen}"
        );
        let all = usize::from(rows) - 3 - 4 - 1 - 1;
        assert_eq!(
            screen.matches(&ends).count(),
            all.min(FLOWS + 2),
            "{screen}"
        );
        terminal.keep(&format!("flows-{columns}x{rows}"), &slow, &crowd);
        // The arrow chooses a flow, and Enter opens it.
        terminal.press("\x1b[B\r");
        terminal.eventually("a flow is opened", |screen| {
            screen.contents().contains("  sk:")
        });
        terminal.keep(&format!("past-{columns}x{rows}"), &slow, &crowd);
        terminal.press("q");
        let (status, screen) = terminal.end();
        assert!(status.success(), "{status}: {screen}");
        assert!(!screen.contains(FOOTER), "it was given back: {screen}");
    }
    // It does not outlive the agent, and says why it ends.
    let mut terminal = Terminal::start(&agent, 80, 24);
    terminal.eventually("the flows are shown", |screen| {
        screen.contents().contains(FOOTER)
    });
    let (ended, log) = agent.end(Signal::SIGTERM);
    assert!(ended.success(), "{log}");
    let (status, screen) = terminal.end();
    assert_eq!(status.code(), Some(1), "{screen}");
    assert!(screen.contains("the live view ended"), "{screen}");
    assert_eq!(crowd.failed(), 0);
}

/// A terminal that shows what the view of an agent writes to it.
pub(crate) struct Terminal {
    child: Child,
    keys: File,
    parser: Arc<Mutex<Parser>>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Terminal {
    pub(crate) fn start(agent: &Agent, columns: u16, rows: u16) -> Self {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pair = openpty(&size, None).expect("a pseudoterminal");
        let cell = |length| NonZero::new(length).expect("a terminal has cells");
        let end = || pair.slave.try_clone().expect("a free descriptor");
        // The view shall find its own terminal, and not that of whoever runs the tests.
        let mut command = Command::new("setsid");
        command.args(["--ctty", BINARY, "top", "--socket"]);
        command.arg(agent.socket()).env("TERM", "xterm-256color");
        command.stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().expect("util-linux has setsid");
        let keys = File::from(pair.master);
        let mut written = keys.try_clone().expect("a free descriptor");
        let parser = Arc::new(Mutex::new(Parser::new(cell(rows), cell(columns), 0)));
        let screen = Arc::clone(&parser);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // Reading fails once nobody has the terminal open.
            while let Ok(length @ 1..) = written.read(&mut bytes) {
                let mut parser = screen.lock().expect("no panic while it is held");
                parser.process(&bytes[..length]);
            }
        });
        Self {
            child,
            keys,
            parser,
            reader: Some(reader),
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("it is open");
    }

    fn on_screen<T>(&self, look: impl FnOnce(&Screen) -> T) -> T {
        let parser = self.parser.lock().expect("no panic while it is held");
        look(parser.screen())
    }

    /// What is on the screen between two drawings.
    fn text(&self) -> String {
        eventually("the screen is still", || {
            let before = self.on_screen(Screen::contents);
            thread::sleep(STILL);
            (before == self.on_screen(Screen::contents)).then_some(before)
        })
    }

    pub(crate) fn eventually(&mut self, what: &str, condition: impl Fn(&Screen) -> bool) {
        eventually(what, || {
            let ended = self.child.try_wait().expect("our child");
            assert!(ended.is_none(), "{ended:?}: {}", self.text());
            self.on_screen(&condition).then_some(())
        });
    }

    /// Writes the screen to a file, where a variable says so, after some seconds.
    fn keep(&self, name: &str, slow: &cc_lab::Flow, crowd: &Crowd) {
        let Some(directory) = env::var_os(DIRECTORY_VARIABLE) else {
            return;
        };
        for _ in 0..WATCHED.as_millis() / 100 {
            slow.send(5_000);
            thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(crowd.failed(), 0);
        let directory = PathBuf::from(directory);
        fs::create_dir_all(&directory).expect("a place for the screens");
        let text = self.text() + "\n";
        fs::write(directory.join(name).with_extension("txt"), text).expect("writes");
    }

    /// Waits for its end, and returns what is left on the screen.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let status = eventually("the view has ended", || {
            self.child.try_wait().expect("our child")
        });
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the screen was read");
        }
        (status, self.text())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
