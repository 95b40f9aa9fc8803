//! A worker's exchange with the learner, as its actors see it: rollouts are gathered into messages,
//! and a message is sent when the learner has given leave.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::mpsc::{self, error::TrySendError};

use super::wire::{Batch, EPISODES, FromWorker, from_worker};
use crate::{
    actor::{Snapshot, StepOutput},
    rollout::{Episode, Rollout},
    train::exchange::Exchange,
};

/// Rollouts wait for others to share a message with, but no longer than this.
const GATHERING: Duration = Duration::from_millis(20);

/// The exchange of a worker's actors with a learner on another machine.
#[derive(Debug)]
pub struct RemoteExchange {
    state: Mutex<State>,
    /// Notified when there are credits, and when acting is over.
    changed: Condvar,
    /// Version of the newest policy.
    version: AtomicU64,
    /// It has as much room as there can be credits, so that sending never waits.
    to_learner: mpsc::Sender<FromWorker>,
    /// Rollouts in a message, at most.
    most: usize,
}

#[derive(Debug)]
struct State {
    policy: Arc<Snapshot>,
    /// Messages that the learner gives leave to send.
    credits: u32,
    over: bool,
    /// What waits for others to share a message with.
    gathered: StepOutput,
    /// When rollouts were last taken to be sent.
    taken: Instant,
    /// Time that actors waited for credits and that no message has told yet.
    waited: Duration,
    /// Rollouts that were sent since the connection was made.
    sent: u64,
}

impl RemoteExchange {
    /// An exchange that begins with this policy and may send `credits` messages of at most `most`
    /// rollouts each. What is on its way ages: messages of more than the learner takes for an
    /// update make its rollouts older without making it faster.
    pub fn new(
        policy: Arc<Snapshot>,
        credits: u32,
        most: usize,
        to_learner: mpsc::Sender<FromWorker>,
    ) -> Self {
        Self {
            version: AtomicU64::new(policy.version),
            state: Mutex::new(State {
                policy,
                credits,
                over: false,
                gathered: StepOutput::default(),
                taken: Instant::now(),
                waited: Duration::ZERO,
                sent: 0,
            }),
            changed: Condvar::new(),
            to_learner,
            most,
        }
    }

    /// Takes note of a newer policy.
    pub fn publish(&self, policy: Arc<Snapshot>) {
        let version = policy.version;
        self.lock().policy = policy;
        self.version.store(version, Ordering::Release);
    }

    /// Adds messages that the learner gives leave to send, and wakes actors that wait for one.
    pub fn add_credits(&self, messages: u32) {
        let mut state = self.lock();
        state.credits = state.credits.saturating_add(messages);
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the newest policy that the learner has sent.
    pub fn newest(&self) -> Arc<Snapshot> {
        self.lock().policy.clone()
    }

    /// Returns the number of rollouts that were sent.
    pub fn sent(&self) -> u64 {
        self.lock().sent
    }

    /// Sends a message with these, when there is a credit for it; not any more when acting is over.
    fn send(&self, rollouts: &[Rollout], episodes: &[Episode]) {
        let since = Instant::now();
        let mut state = self
            .changed
            .wait_while(self.lock(), |state| state.credits == 0 && !state.over)
            .unwrap_or_else(PoisonError::into_inner);
        if state.over {
            return;
        }
        state.credits -= 1;
        state.sent += rollouts.len() as u64;
        let waited = std::mem::take(&mut state.waited) + since.elapsed();
        drop(state);
        let batch = Batch::of(rollouts, episodes, waited);
        let message = FromWorker {
            content: Some(from_worker::Content::Batch(batch)),
        };
        // Where the stream has ended, its reader finds out as well, and why: the learner may have
        // said before that the run is done.
        if let Err(TrySendError::Full(_)) = self.to_learner.try_send(message) {
            // The learner has given more credits than it has told.
            self.end();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange for RemoteExchange {
    fn newer_than(&self, version: u64) -> Option<Arc<Snapshot>> {
        // Another learner's policies may begin anew, but then this exchange has ended.
        (self.version.load(Ordering::Acquire) > version).then(|| self.newest())
    }

    fn put(&self, output: &mut StepOutput) {
        let most = self.most;
        let mut state = self.lock();
        state.gathered.rollouts.append(&mut output.rollouts);
        state.gathered.episodes.append(&mut output.episodes);
        if state.gathered.rollouts.len() < most && state.taken.elapsed() < GATHERING {
            return;
        }
        state.taken = Instant::now();
        let StepOutput { rollouts, episodes } = std::mem::take(&mut state.gathered);
        drop(state);
        let mut episodes = episodes.chunks(EPISODES);
        for rollouts in rollouts.chunks(most) {
            self.send(rollouts, episodes.next().unwrap_or_default());
        }
        episodes.for_each(|episodes| self.send(&[], episodes));
    }

    fn is_over(&self) -> bool {
        self.lock().over
    }

    fn end(&self) {
        self.lock().over = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc as threads, thread};

    use super::*;
    use crate::{
        model::{Activation, Shape, initialise},
        train::exchange::Published,
    };

    fn exchange(credits: u32) -> (Arc<RemoteExchange>, mpsc::Receiver<FromWorker>) {
        let shape = Shape {
            observation: 1,
            hidden: vec![1],
            activation: Activation::Relu,
            lstm: None,
            actions: 2,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        let parameters = initialise(&shape, 1);
        let policy = Published::new(0, Arc::new(shape), parameters).snapshot();
        let (to_learner, sent) = mpsc::channel(8);
        let exchange = RemoteExchange::new(policy, credits, 8, to_learner);
        (Arc::new(exchange), sent)
    }

    fn full(exchange: &RemoteExchange) -> StepOutput {
        StepOutput {
            rollouts: vec![Rollout::default(); exchange.most],
            episodes: Vec::new(),
        }
    }

    #[test]
    fn messages_wait_for_credits_and_for_no_longer_than_acting() {
        let (exchange, mut sent) = exchange(2);
        for _ in 0..2 {
            exchange.put(&mut full(&exchange));
            assert!(sent.try_recv().is_ok());
        }
        let (returned, returns) = threads::channel();
        for _ in 0..2 {
            let (exchange, returned) = (exchange.clone(), returned.clone());
            thread::spawn(move || {
                exchange.put(&mut full(&exchange));
                // The test may have failed and gone.
                let _ = returned.send(());
            });
        }
        assert!(returns.try_recv().is_err() && sent.try_recv().is_err());
        let deadline = Duration::from_secs(60);
        exchange.add_credits(1);
        returns.recv_timeout(deadline).expect("one of them goes on");
        assert!(sent.try_recv().is_ok());
        exchange.end();
        returns
            .recv_timeout(deadline)
            .expect("and so does the other");
        assert!(sent.try_recv().is_err() && exchange.is_over());
    }

    #[test]
    fn the_end_of_the_stream_is_left_to_its_reader() {
        let (exchange, sent) = exchange(2);
        drop(sent);
        exchange.put(&mut full(&exchange));
        assert!(!exchange.is_over());
    }

    #[test]
    fn a_learner_that_reads_nothing_ends_acting_and_blocks_nobody() {
        let (exchange, sent) = exchange(u32::MAX);
        while !exchange.is_over() {
            exchange.put(&mut full(&exchange));
        }
        assert_eq!(sent.len(), 8);
    }
}
