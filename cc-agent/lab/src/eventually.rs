//! Waiting for other threads and processes.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long [`eventually`] waits: far longer than anything takes on a busy machine, so that
/// reaching the limit means that the condition will never hold.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `attempt` every 5 ms until it returns a value, and returns that value.
///
/// # Panics
///
/// Panics with `what`, the awaited condition, if there is no value after 60 s.
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

/// Calls `attempt` until it returns a value, five times at most, and returns that value. For flows
/// that are to lose nothing: where a processor stalls, packets that wait for it are overtaken by
/// later ones on another, which TCP takes for losses (RACK).
///
/// # Panics
///
/// Panics with `what`, which was attempted, if none of five attempts returned a value.
pub fn within_five_attempts<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let found = (0..5).find_map(|_| attempt());
    found.unwrap_or_else(|| panic!("none of five attempts did: {what}"))
}
