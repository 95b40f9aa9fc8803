//! Handling of Ctrl-C: the first one ends a command in good order, the second one at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};

/// Returns a flag that is set at the first SIGINT, SIGTERM or SIGHUP. A second one exits the
/// process with status 130; its children are killed with it.
///
/// Call this before any other thread starts.
pub(super) fn on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    // All threads started later inherit the mask, so that none of their system calls is
    // interrupted.
    signals.thread_block().context("blocking signals")?;
    let cancel = Arc::new(AtomicBool::new(false));
    let cancelled = cancel.clone();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while signals.wait().is_ok() {
                if cancelled.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        })
        .context("starting a thread")?;
    Ok(cancel)
}
