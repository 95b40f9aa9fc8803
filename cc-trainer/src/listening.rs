//! What servers on one thread have in common: their runtime, their end, and their connections.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::{OwnedSemaphorePermit, Semaphore},
    time,
};

/// How often a server looks whether it is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Pause after the operating system refused a connection, for instance for want of descriptors.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(100);

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

/// Waits for a free place and then for a connection. Dropped in between, it loses neither.
pub(crate) async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            unreachable!("the semaphore is never closed");
        };
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(_) => time::sleep(REFUSED_PAUSE).await,
        }
    }
}
