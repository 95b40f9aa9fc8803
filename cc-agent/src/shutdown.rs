//! When a command that runs until it is stopped ends: on a signal, when its time is up, or when
//! another part of the process asks for it.

use std::{future::pending, io, sync::Arc, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The reasons for which `run` and `observe` end.
pub(crate) struct Shutdown {
    /// The signals that end the command; none in tests, which must stay killable by Ctrl-C.
    signals: Vec<Signal>,
    /// When the command ends by itself; `None` means never.
    deadline: Option<Instant>,
    stop: Arc<Notify>,
}

impl Shutdown {
    /// Ends on SIGINT and SIGTERM. From now on neither kills the process.
    ///
    /// # Errors
    ///
    /// Returns an error when a signal handler cannot be installed.
    pub(crate) fn on_signals() -> io::Result<Self> {
        Ok(Self {
            signals: vec![
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
            ],
            ..Self::on_request()
        })
    }

    /// Ends only when [`Self::stopper`] is notified or a duration set later is over.
    pub(crate) fn on_request() -> Self {
        Self {
            signals: Vec::new(),
            deadline: None,
            stop: Arc::new(Notify::new()),
        }
    }

    /// Ends on this signal too.
    pub(crate) fn also_on(&mut self, signal: Signal) {
        self.signals.push(signal);
    }

    /// Ends this long from now too; `None` sets no limit.
    pub(crate) fn after(&mut self, duration: Option<Duration>) {
        self.deadline = duration.map(|duration| Instant::now() + duration);
    }

    /// Notifying this ends the command, from any thread.
    pub(crate) fn stopper(&self) -> Arc<Notify> {
        Arc::clone(&self.stop)
    }

    /// Waits for the first reason to end.
    pub(crate) async fn requested(&mut self) {
        let deadline = self.deadline;
        let time_is_up = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => pending().await,
            }
        };
        let signals = &mut self.signals;
        let any_signal = std::future::poll_fn(|context| {
            let received = signals
                .iter_mut()
                .any(|signal| signal.poll_recv(context).is_ready());
            match received {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        });
        tokio::select! {
            () = any_signal => {}
            () = self.stop.notified() => {}
            () = time_is_up => {}
        }
    }
}

/// Waits for a signal; forever when there is none to wait for.
pub(crate) async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// No wait in these tests may outlast this.
    const DEADLINE: Duration = Duration::from_secs(3_600);

    #[tokio::test(start_paused = true)]
    async fn the_duration_counts_from_where_it_was_set() {
        let mut shutdown = Shutdown::on_request();
        let start = Instant::now();
        shutdown.after(Some(Duration::from_secs(5)));
        timeout(DEADLINE, shutdown.requested())
            .await
            .expect("the time is up");
        assert_eq!(start.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_that_came_before_the_wait_counts() {
        let mut shutdown = Shutdown::on_request();
        shutdown.stopper().notify_one();
        timeout(DEADLINE, shutdown.requested())
            .await
            .expect("it was asked to stop");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_reason_it_goes_on() {
        let mut shutdown = Shutdown::on_request();
        shutdown.after(None);
        let waited = timeout(DEADLINE, shutdown.requested()).await;
        assert!(waited.is_err(), "there was no reason to end");
    }
}
