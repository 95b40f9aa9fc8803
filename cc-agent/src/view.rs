//! What a running agent shows: a live view on a terminal, log lines elsewhere.

mod draw;
mod filter;
mod state;

pub use draw::draw;
pub use filter::Filter;
pub use state::{Sort, ViewState};

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};

use tokio::sync::{Notify, watch};
use tracing::warn;

use cc_client::fetch_flows;
use cc_core::status::{Snapshot, digits};

/// Time between two drawings of the screen.
const REDRAW: Duration = Duration::from_millis(200);
/// Time within which the process's own agent tells of its flows, or the view goes on without.
const ANSWER: Duration = Duration::from_secs(1);

/// Shows the snapshots of `source` on the terminal until the user quits, `quit` returns true, or
/// `source` returns `None`; it is told in which order flows are shown, and which. The terminal is
/// left as it was found, after a panic too.
///
/// # Errors
///
/// Returns an error when standard output is not a terminal, or stops being one.
pub fn run(
    mut source: impl FnMut(Sort, &Filter) -> Option<Arc<Snapshot>>,
    quit: impl Fn() -> bool,
    mut state: ViewState,
) -> io::Result<()> {
    let _restore = Restore;
    let mut terminal = ratatui::try_init()?;
    while !quit() {
        let (sort, filter) = state.question();
        let Some(snapshot) = source(sort, filter) else {
            break;
        };
        state.observe(&snapshot);
        let next = Instant::now() + REDRAW;
        loop {
            terminal.draw(|frame| draw(frame, &snapshot, &state))?;
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            if let Event::Key(key) = event::read()?
                && key.is_press()
                && (interrupts(key) || !state.on_key(key.code) && quits(key))
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The snapshot with the flows that come first in an order, of all that a filter shows: those that
/// it has, unless it leaves flows out. Then the agent is asked, and where that does not answer in
/// time, or is too old to, they are those that it has.
pub fn with_all_flows(
    socket: &Path,
    snapshot: Arc<Snapshot>,
    sort: Sort,
    filter: &Filter,
    within: Duration,
) -> Arc<Snapshot> {
    if !snapshot.is_partial() {
        return snapshot;
    }
    match fetch_flows(socket, sort.name(), &filter.canonical(), within) {
        Ok(found) => Arc::new(found),
        Err(_) => snapshot,
    }
}

/// The live view of the process's own agent, on a thread of its own.
pub(crate) struct Screen {
    thread: thread::JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Screen {
    /// Shows the latest snapshot until stopped, and asks the agent at `socket`, itself, where there
    /// are more flows than that shows. Notifies `ended` when the view has ended, by the user or by
    /// an error.
    pub(crate) fn start(
        latest: watch::Receiver<Arc<Snapshot>>,
        socket: PathBuf,
        ended: Arc<Notify>,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let source = |sort: Sort, filter: &Filter| {
                let latest = latest.borrow().clone();
                Some(with_all_flows(&socket, latest, sort, filter, ANSWER))
            };
            let state = ViewState::default();
            if let Err(error) = run(source, || stopped.load(Ordering::Relaxed), state) {
                warn!("the live view ended: {error}");
            }
            ended.notify_one();
        });
        Self { thread, stop }
    }

    /// Ends the view and waits until it has restored the terminal.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.join().is_err() {
            warn!("the live view panicked");
        }
    }
}

/// A log line on the time since `previous`: flows, rates, decision delays, and the counters of
/// problems that have risen.
pub fn log_line(previous: Option<&Snapshot>, now: &Snapshot) -> String {
    let recent = now.since(previous);
    let mut line = format!(
        "{} flows, {} decisions/s, {}{} Mbit/s, decision delay {}",
        now.live_flows,
        digits(recent.decisions_per_s),
        if now.is_partial() { "over " } else { "" },
        digits(recent.rate_mbps),
        now.decision_delay,
    );
    let before = previous
        .filter(|previous| now.continues(previous))
        .map(Snapshot::troubles)
        .unwrap_or_default();
    for trouble in now.troubles() {
        let known = before.iter().find(|count| count.name == trouble.name);
        let rise = trouble
            .value
            .saturating_sub(known.map_or(0, |count| count.value));
        if rise > 0 {
            line.push_str(&format!(", {} +{rise}", trouble.name));
        }
    }
    line
}

/// Whether the key ends the view whatever is being done.
fn interrupts(key: KeyEvent) -> bool {
    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// Whether the key ends the view when it means nothing else.
fn quits(key: KeyEvent) -> bool {
    matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

/// Restores the terminal on drop.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc_core::status::samples::{busy, idle};

    #[test]
    fn a_log_line_has_what_is_new() {
        assert_eq!(
            log_line(None, &idle()),
            "0 flows, 0.00 decisions/s, 0.00 Mbit/s, decision delay none yet"
        );
        let mut before = busy(2);
        before.agent.windows_skipped = 5;
        before.datapath.insert("records_dropped".into(), 2);
        let mut now = before.clone();
        now.uptime_s += 4.0;
        now.agent.decisions += 80;
        now.agent.windows_skipped = 8;
        now.flows[0].window += 40;
        assert_eq!(
            log_line(Some(&before), &now),
            "2 flows, 20.0 decisions/s, 1.00 Mbit/s, \
             decision delay p50 0.31 ms, p99 1.25 ms, max 7.50 ms, windows_skipped +3"
        );
        now.live_flows = 3;
        assert!(log_line(Some(&before), &now).contains("over 1.00 Mbit/s"));
    }

    #[test]
    fn escape_q_and_control_c_quit() {
        let key = |code, modifiers| {
            let key = KeyEvent::new(code, modifiers);
            quits(key) || interrupts(key)
        };
        assert!(key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
    }
}
