//! Waits for the binary with a deadline, so that a command that hangs fails its test.

use std::{
    process::{Child, ExitStatus},
    thread,
    time::{Duration, Instant},
};

/// Longest time that a command of a test may take. Even on a busy machine in a debug build the
/// slowest one is done within a fraction of it.
const LIMIT: Duration = Duration::from_secs(600);

/// Waits for a started command.
///
/// # Panics
///
/// Panics when the command takes longer than the limit; it is then killed.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            return status;
        }
        if begun.elapsed() > LIMIT {
            child.kill().expect("our own child");
            panic!("the command took longer than {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}
