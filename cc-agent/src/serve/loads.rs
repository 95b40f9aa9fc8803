//! Loading policies on a thread of their own, one after the other.

use std::sync::mpsc as blocking;
use std::{io, thread};

use tokio::sync::{mpsc, oneshot};

use crate::{
    deploy::{DeployError, LoadedPolicy},
    kernel::priority,
};
use cc_core::{canary::CanaryBy, status::Outcome};

/// Loads that may wait behind the one that is carried out; further ones are refused.
const WAITING: usize = 4;

/// Niceness of the thread: only the client that sent the command waits for it.
const NICENESS: i32 = 10;

/// A policy that was loaded, or was not.
pub(super) struct Load {
    pub(super) outcome: Result<LoadedPolicy, DeployError>,
    pub(super) purpose: Purpose,
    /// Who asked for it, and waits for the outcome.
    pub(super) by: Requester,
}

/// Who asked for something, and waits for its outcome.
pub(super) struct Requester {
    /// The command and its sender, or the signal.
    pub(super) text: String,
    /// Where the outcome goes; `None` for what no client asked for.
    pub(super) reply: Option<oneshot::Sender<Outcome>>,
}

/// What a policy is loaded for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Purpose {
    /// To be the incumbent of all flows.
    Replace,
    /// To be the incumbent of all flows again, which it was before.
    RollBack,
    /// To be the candidate of a canary.
    Canary {
        /// Share of the flows, paths or hosts, percent.
        percent: f64,
        /// What is compared, and hence assigned to an arm.
        by: CanaryBy,
    },
    /// To go on as the incumbent, whose process has failed.
    Restart,
    /// To take over from the incumbent, which has failed.
    Reinstate,
}

/// Makes a policy, which may take seconds.
type Work = Box<dyn FnOnce() -> Result<LoadedPolicy, DeployError> + Send>;

/// Loads policies in the order in which they were asked for, so that the last one asked for is the
/// last one to be served.
///
/// The thread lives as long as the agent: a policy's process ends with the thread that started it.
/// No load takes longer than the limits of [`crate::deploy`], and nobody waits for the thread when
/// the agent ends.
pub(super) struct LoadQueue {
    orders: blocking::SyncSender<(Work, Purpose, Requester)>,
    loads: mpsc::UnboundedReceiver<Load>,
}

impl LoadQueue {
    /// Starts the thread, under this name.
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let (orders, queue) = blocking::sync_channel::<(Work, _, _)>(WAITING);
        let (done, loads) = mpsc::unbounded_channel();
        let carry_out = move || {
            // Without the privilege the thread keeps the agent's priority.
            let _ = priority::set_niceness(NICENESS);
            for (work, purpose, by) in queue {
                let load = Load {
                    outcome: work(),
                    purpose,
                    by,
                };
                if done.send(load).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name(name.into()).spawn(carry_out)?;
        Ok(Self { orders, loads })
    }

    /// Adds a load. Returns who asked for it, with the reason, when too many wait.
    pub(super) fn push(
        &self,
        purpose: Purpose,
        by: Requester,
        work: impl FnOnce() -> Result<LoadedPolicy, DeployError> + Send + 'static,
    ) -> Result<(), (Requester, String)> {
        self.orders
            .try_send((Box::new(work), purpose, by))
            .map_err(|refused| match refused {
                blocking::TrySendError::Full((_, _, by)) => {
                    let waiting = format!(
                        "{WAITING} policies wait to be loaded already; try again when they are"
                    );
                    (by, waiting)
                }
                blocking::TrySendError::Disconnected((_, _, by)) => {
                    (by, "the thread that loads policies has stopped".into())
                }
            })
    }

    /// Waits for the next load that is done.
    pub(super) async fn next(&mut self) -> Option<Load> {
        self.loads.recv().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc_core::policy::PolicySpec;

    fn nobody() -> Requester {
        Requester {
            text: "test".into(),
            reply: None,
        }
    }

    fn refused() -> Result<LoadedPolicy, DeployError> {
        Err(DeployError::ReadLate {
            policy: PolicySpec::Random,
        })
    }

    #[tokio::test]
    async fn loads_are_done_in_the_order_asked_for_and_not_more_than_wait() {
        let mut queue = LoadQueue::start("test").expect("a thread");
        let (open, gate) = blocking::channel::<()>();
        let (begun, began) = blocking::channel();
        let slow = move || {
            let _ = begun.send(());
            let _ = gate.recv();
            refused()
        };
        let purpose = |percent: usize| Purpose::Canary {
            percent: percent as f64,
            by: CanaryBy::Time,
        };
        assert!(queue.push(purpose(0), nobody(), slow).is_ok());
        began.recv().expect("it is carried out");
        for place in 1..=WAITING {
            assert!(queue.push(purpose(place), nobody(), refused).is_ok());
        }
        let Err((_, reason)) = queue.push(purpose(9), nobody(), refused) else {
            panic!("too many wait");
        };
        assert!(reason.starts_with("4 policies wait"), "{reason}");
        drop(open);
        for place in 0..=WAITING {
            let load = queue.next().await.expect("the thread lives");
            assert_eq!(load.purpose, purpose(place));
        }
    }
}
