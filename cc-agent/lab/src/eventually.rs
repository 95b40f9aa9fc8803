//! Waiting for what other threads and processes do. The trainer's tests take this file as well.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long [`eventually`] is patient. Far beyond what anything takes on a busy machine: reaching it means that the thing
/// does not happen at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// Polls until `attempt` gives something.
///
/// # Panics
///
/// When it never does; `what` says what was waited for.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "this never happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
