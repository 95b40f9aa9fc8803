//! When a command that runs until it is stopped ends: on a signal, when its time is up, or when
//! another part of the process asks for it. And that it does end then, whatever is stuck.
//!
//! Signals are waited for on a thread of their own. After the first one, or once the command says
//! that it is [ending](Shutdown::ending), the process has [`GRACE`] to end in good order, and
//! [`LONGEST`] while it still computes, as a recorder does that has many rows to compress. Then, or
//! at the second signal, the thread takes the [last steps](Shutdown::before_exit) itself and ends
//! the process. A file system that hangs, a reader of the log that has stopped, or a policy that
//! does not return cannot keep it alive.

use std::{
    future::{pending, poll_fn},
    io, process,
    sync::{Arc, Mutex, PoisonError, mpsc},
    task::Poll,
    thread,
    time::Duration,
};

use tokio::{
    runtime::{self, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::kernel::{
    clock,
    privileges::{self, Capabilities},
};

/// Time after which a process that was asked to end counts as stuck, unless it computes.
const GRACE: Duration = Duration::from_millis(2_000);
/// Time in which it must end even if it computes.
const LONGEST: Duration = Duration::from_secs(10);
/// Processor time in [`GRACE`] from which on a process computes, s. A recorder has a low priority,
/// and so little of it on a busy host; threads that wait have none.
const COMPUTES_S: f64 = 0.001;
/// Time for the last steps of a process that is ended by force, and for saying so.
const LAST_STEPS: Duration = Duration::from_millis(300);

/// What must be done before the process ends, in good order or by force.
type Steps = Arc<Mutex<Vec<Box<dyn FnOnce() + Send>>>>;

/// The reasons for which `run` and `observe` end.
pub(crate) struct Shutdown {
    /// When the command ends by itself; `None` means never.
    deadline: Option<Instant>,
    stop: Arc<Notify>,
    ending: Arc<Notify>,
    steps: Steps,
}

impl Shutdown {
    /// Ends on these signals. From now on the first of them does not kill the process; the second
    /// one does. The thread that waits for them keeps these capabilities for the last steps.
    ///
    /// # Errors
    ///
    /// Returns an error when a signal handler cannot be installed, or the thread not be started.
    pub(crate) fn on_signals(kinds: &[SignalKind], keep: Capabilities) -> io::Result<Self> {
        let shutdown = Self::on_request();
        let [stop, ending] = [&shutdown.stop, &shutdown.ending].map(Arc::clone);
        let steps = Arc::clone(&shutdown.steps);
        let kinds = kinds.to_vec();
        let (begin, begun) = mpsc::channel();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let (runtime, signals) = match handlers(&kinds) {
                    Ok(installed) => installed,
                    Err(error) => return drop(begin.send(Err(error))),
                };
                let _ = begin.send(Ok(()));
                // Where it cannot, the agent itself cannot either, and says so.
                let _ = privileges::keep_only(keep);
                let mut used_s = 0.0;
                let computes = || {
                    let before_s = std::mem::replace(&mut used_s, clock::cpu_s());
                    used_s - before_s > COMPUTES_S
                };
                let force = runtime.block_on(overdue(signals, &stop, &ending, computes));
                end_by_force(&steps, &force);
            })?;
        begun.recv().map_err(io::Error::other)??;
        Ok(shutdown)
    }

    /// Ends only when [`Self::stopper`] is notified or a duration set later is over.
    pub(crate) fn on_request() -> Self {
        Self {
            deadline: None,
            stop: Arc::default(),
            ending: Arc::default(),
            steps: Arc::default(),
        }
    }

    /// Ends this long from now too; `None` sets no limit.
    pub(crate) fn after(&mut self, duration: Option<Duration>) {
        self.deadline = duration.map(|duration| Instant::now() + duration);
    }

    /// Notifying this ends the command, from any thread.
    pub(crate) fn stopper(&self) -> Arc<Notify> {
        Arc::clone(&self.stop)
    }

    /// Adds a step that is taken even when the process is ended by force. It must be quick, and do
    /// nothing when it has been done already.
    pub(crate) fn before_exit(&self, step: impl FnOnce() + Send + 'static) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push(Box::new(step));
    }

    /// Says that the command is ending, for whatever reason: the process has [`GRACE`] to end.
    pub(crate) fn ending(&self) {
        self.ending.notify_one();
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
        tokio::select! {
            () = self.stop.notified() => {}
            () = time_is_up => {}
        }
    }
}

/// Installs handlers of these signals, and returns them with the runtime that they belong to.
fn handlers(kinds: &[SignalKind]) -> io::Result<(Runtime, Vec<(SignalKind, Signal)>)> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let signals = {
        let _inside = runtime.enter();
        let handlers = kinds.iter().map(|&kind| Ok((kind, signal(kind)?)));
        handlers.collect::<io::Result<Vec<_>>>()?
    };
    Ok((runtime, signals))
}

/// Why a process is ended by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Force {
    /// It has not ended in time.
    Overdue,
    /// It was asked twice, the second time by this signal.
    AskedAgain(SignalKind),
}

/// Notifies `stop` at the first signal, and returns when the process must end at once. `computes`
/// says whether the process has computed since it was last asked.
async fn overdue(
    mut signals: Vec<(SignalKind, Signal)>,
    stop: &Notify,
    ending: &Notify,
    mut computes: impl FnMut() -> bool,
) -> Force {
    let mut asked = tokio::select! {
        _ = any_of(&mut signals) => {
            stop.notify_one();
            true
        }
        () = ending.notified() => false,
    };
    let end = Instant::now() + LONGEST;
    let mut deadline = Instant::now() + GRACE;
    computes();
    loop {
        tokio::select! {
            kind = any_of(&mut signals) => match asked {
                true => return Force::AskedAgain(kind),
                // It ends already, for another reason.
                false => asked = true,
            },
            () = sleep_until(deadline) => {
                if deadline >= end || !computes() {
                    return Force::Overdue;
                }
                deadline = end.min(deadline + GRACE);
            }
        }
    }
}

/// Waits for any of the signals.
async fn any_of(signals: &mut [(SignalKind, Signal)]) -> SignalKind {
    poll_fn(|context| {
        let received = signals
            .iter_mut()
            .find_map(|(kind, signal)| signal.poll_recv(context).is_ready().then_some(*kind));
        received.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Takes the last steps and ends the process, within [`LAST_STEPS`] even if a step hangs.
fn end_by_force(steps: &Steps, force: &Force) -> ! {
    let steps = Arc::clone(steps);
    let (done, finished) = mpsc::channel();
    let force = *force;
    let last = move || {
        let steps = std::mem::take(&mut *steps.lock().unwrap_or_else(PoisonError::into_inner));
        for step in steps {
            step();
        }
        match force {
            Force::Overdue => tracing::error!(
                "ended by force, since a part of it did not end in time: rows or log lines that \
                 were not written yet are lost"
            ),
            Force::AskedAgain(_) => tracing::warn!("ended at the second signal"),
        }
        let _ = done.send(());
    };
    if thread::Builder::new().spawn(last).is_ok() {
        let _ = finished.recv_timeout(LAST_STEPS);
    }
    // Gives the thread that writes the log a moment.
    thread::sleep(Duration::from_millis(20));
    process::exit(match force {
        Force::Overdue => 1,
        // As shells show the end by a signal.
        Force::AskedAgain(kind) => 128 + kind.as_raw_value(),
    })
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

    #[tokio::test(start_paused = true)]
    async fn an_end_that_takes_too_long_is_forced() {
        let (stop, ending) = (Notify::new(), Notify::new());
        let waited = timeout(DEADLINE, overdue(Vec::new(), &stop, &ending, || false)).await;
        assert!(waited.is_err(), "nothing ends it");
        for (computes, longest) in [(false, GRACE), (true, LONGEST)] {
            let start = Instant::now();
            ending.notify_one();
            let overdue = overdue(Vec::new(), &stop, &ending, || computes);
            let waited = timeout(DEADLINE, overdue).await;
            assert_eq!(waited, Ok(Force::Overdue));
            assert_eq!(start.elapsed(), longest);
        }
    }

    #[tokio::test]
    async fn the_second_signal_ends_at_once() {
        // A signal that nothing else in this process uses.
        let kind = SignalKind::from_raw(libc::SIGWINCH);
        let signals = vec![(kind, signal(kind).expect("a handler"))];
        let (stop, ending) = (Notify::new(), Notify::new());
        let raise = || {
            // SAFETY: has no pointers; the signal has a handler, and is ignored without one.
            unsafe { libc::raise(libc::SIGWINCH) };
        };
        raise();
        let twice = async {
            stop.notified().await;
            raise();
            pending::<()>().await;
        };
        let force = tokio::select! {
            force = overdue(signals, &stop, &ending, || false) => force,
            () = twice => unreachable!("it waits for ever"),
        };
        assert_eq!(force, Force::AskedAgain(kind));
    }
}
