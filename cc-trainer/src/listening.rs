//! What servers on one thread have in common: their runtime and their end.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    time,
};

/// How often a server looks whether it is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// A runtime that serves all sockets on the thread that blocks on it.
pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
}

/// Waits until `stop` is true.
pub(crate) async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        time::sleep(STOP_INTERVAL).await;
    }
}
