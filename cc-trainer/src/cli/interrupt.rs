//! Ctrl-C: a command ends in good order, or at once when it is pressed again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};

/// Becomes true at the first Ctrl-C or SIGTERM; a second one ends the process at once (its children end with it).
pub(super) fn on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    // Before any other thread is there: all inherit it, and no system call of theirs is interrupted.
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
