//! The policies' thread: one batch at a time in, its choices out.
//!
//! The event loop sends orders over a channel and never waits for the thread, so that a slow policy
//! delays only its own answers. Orders are carried out in the order in which they were sent: a
//! batch that was asked for before a policy was replaced is answered by the former policy.

use std::{
    sync::mpsc as blocking,
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::sync::mpsc;

use cc_core::{
    agent::Batch,
    canary::Arm,
    policy::{Choice, Policy},
};

/// The longest inference time that the histogram tells apart, µs: one minute.
const LONGEST_TIME_US: u64 = 60_000_000;

/// The event loop's handle of the policies' thread. The thread ends when this is dropped.
pub(crate) struct Inference {
    orders: blocking::Sender<Order>,
    /// The answers, in the order of the batches. The channel closes when the thread has panicked.
    pub(crate) answers: mpsc::UnboundedReceiver<Answer>,
    /// Since when a batch has been out; `None` while the thread is idle.
    asked: Option<tokio::time::Instant>,
    /// A batch that has been out for longer than this counts as hanging.
    limit: Duration,
    /// Time that the policy takes per batch, µs.
    times: Histogram<u64>,
    /// Queries answered since the start, over all batches.
    answered: u64,
}

/// What the policies' thread does next.
pub(crate) enum Order {
    /// Answer these queries with the policy of the batch's arm.
    Decide(Batch),
    /// Use this policy for an arm from now on.
    Install(Arm, Box<dyn Policy>),
    /// The candidate becomes the incumbent.
    Promote,
    /// Drop the candidate's policy, as its canary has ended.
    Withdraw,
}

/// A batch with the policy's choices for it.
pub(crate) struct Answer {
    /// The batch as it was asked, its recurrent states moved on.
    pub(crate) batch: Batch,
    /// One choice per query, in the batch's order.
    pub(crate) choices: Vec<Choice>,
    /// How long the policy took, with the delay that `--added-delay-ms` adds.
    pub(crate) took: Duration,
}

impl Inference {
    /// Starts the thread with `incumbent` for all flows.
    ///
    /// Each batch is delayed by `added`, for the study of late decisions; `limit` is the time
    /// without that delay after which a batch counts as hanging.
    ///
    /// # Panics
    ///
    /// Panics when the operating system refuses to start a thread.
    pub(crate) fn start(incumbent: Box<dyn Policy>, added: Duration, limit: Duration) -> Self {
        let (orders, queue) = blocking::channel::<Order>();
        let (answer, answers) = mpsc::unbounded_channel();
        let mut policies = Policies {
            incumbent,
            candidate: None,
            added,
        };
        thread::Builder::new()
            .name("policy".into())
            .spawn(move || {
                for order in queue {
                    if let Some(answered) = policies.carry_out(order)
                        && answer.send(answered).is_err()
                    {
                        return;
                    }
                }
            })
            .expect("the operating system starts a thread");
        Self {
            orders,
            answers,
            asked: None,
            limit: limit + added,
            times: Histogram::new_with_bounds(1, LONGEST_TIME_US, 3)
                .expect("constant, valid bounds"),
            answered: 0,
        }
    }

    /// Whether no batch is out.
    pub(crate) fn is_idle(&self) -> bool {
        self.asked.is_none()
    }

    /// Whether the batch that is out has been out for longer than the limit.
    pub(crate) fn hangs(&self) -> bool {
        self.asked.is_some_and(|since| since.elapsed() > self.limit)
    }

    /// Sends a batch to the thread, unless it is empty.
    pub(crate) fn ask(&mut self, batch: Batch) {
        if !batch.is_empty() {
            self.asked = Some(tokio::time::Instant::now());
            self.order(Order::Decide(batch));
        }
    }

    /// Sends an order. It is carried out after everything that was sent before it.
    pub(crate) fn order(&self, order: Order) {
        // A thread that has stopped shows when its answers end.
        let _ = self.orders.send(order);
    }

    /// Notes that the batch that was out has been answered.
    pub(crate) fn on_answer(&mut self, answer: &Answer) {
        self.asked = None;
        self.times.saturating_record(answer.took.as_micros() as u64);
        self.answered += answer.batch.len() as u64;
    }

    /// The time that each batch took, µs.
    pub(crate) fn times(&self) -> &Histogram<u64> {
        &self.times
    }

    /// The mean number of queries in a batch; 0 before the first answer.
    pub(crate) fn mean_batch(&self) -> f64 {
        self.answered as f64 / self.times.len().max(1) as f64
    }
}

/// The policies, on their thread.
struct Policies {
    incumbent: Box<dyn Policy>,
    candidate: Option<Box<dyn Policy>>,
    added: Duration,
}

impl Policies {
    /// Carries out one order. Only [`Order::Decide`] has an answer.
    fn carry_out(&mut self, order: Order) -> Option<Answer> {
        match order {
            Order::Decide(batch) => return Some(self.decide(batch)),
            Order::Install(Arm::Incumbent, policy) => self.incumbent = policy,
            Order::Install(Arm::Candidate, policy) => self.candidate = Some(policy),
            Order::Promote => {
                if let Some(candidate) = self.candidate.take() {
                    self.incumbent = candidate;
                }
            }
            Order::Withdraw => self.candidate = None,
        }
        None
    }

    fn decide(&mut self, mut batch: Batch) -> Answer {
        let start = Instant::now();
        let policy = match (batch.arm(), &mut self.candidate) {
            (Arm::Candidate, Some(candidate)) => candidate,
            _ => &mut self.incumbent,
        };
        let choices = policy.decide(&mut batch.queries);
        if !self.added.is_zero() {
            thread::sleep(self.added);
        }
        Answer {
            batch,
            choices,
            took: start.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::serve::testing::{Gate, batch, fixed};

    const LIMIT: Duration = Duration::from_secs(1);
    /// No wait in these tests may outlast this.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Asks for one decision per arm and returns the cwnds.
    fn decided(policies: &mut Policies) -> [u32; 2] {
        [Arm::Incumbent, Arm::Candidate].map(|arm| {
            let answer = policies.carry_out(Order::Decide(batch(arm)));
            match answer.expect("a batch has an answer").choices[..] {
                [Choice::Cwnd(cwnd)] => cwnd,
                ref choices => panic!("{choices:?}"),
            }
        })
    }

    fn policies() -> Policies {
        Policies {
            incumbent: fixed(10),
            candidate: None,
            added: Duration::ZERO,
        }
    }

    #[test]
    fn each_arm_has_its_policy() {
        let mut policies = policies();
        assert_eq!(decided(&mut policies), [10, 10], "there is no candidate");
        let install = Order::Install(Arm::Candidate, fixed(20));
        assert!(policies.carry_out(install).is_none());
        assert_eq!(decided(&mut policies), [10, 20]);
        assert!(policies.carry_out(Order::Promote).is_none());
        assert_eq!(decided(&mut policies), [20, 20]);
    }

    #[test]
    fn a_withdrawn_candidate_leaves_its_flows_to_the_incumbent() {
        let mut policies = policies();
        policies.carry_out(Order::Install(Arm::Candidate, fixed(20)));
        policies.carry_out(Order::Withdraw);
        assert_eq!(decided(&mut policies), [10, 10]);
        policies.carry_out(Order::Promote);
        assert_eq!(decided(&mut policies), [10, 10], "nothing to promote");
    }

    #[tokio::test]
    async fn a_batch_is_answered_by_the_policy_of_its_time() {
        let mut inference = Inference::start(fixed(10), Duration::ZERO, LIMIT);
        inference.ask(batch(Arm::Incumbent));
        inference.order(Order::Install(Arm::Incumbent, fixed(20)));
        inference.ask(batch(Arm::Incumbent));
        for cwnd in [10, 20] {
            let answer = timeout(DEADLINE, inference.answers.recv()).await;
            let answer = answer.expect("in time").expect("the thread runs");
            assert_eq!(answer.choices, [Choice::Cwnd(cwnd)]);
            inference.on_answer(&answer);
        }
        assert_eq!((inference.times().len(), inference.mean_batch()), (2, 1.0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_is_out_for_too_long_hangs() {
        let (gate, policy) = Gate::before(10);
        let mut inference = Inference::start(policy, Duration::ZERO, LIMIT);
        assert!(inference.is_idle());
        inference.ask(Batch::default());
        assert!(inference.is_idle(), "nothing was asked");
        inference.ask(batch(Arm::Incumbent));
        advance(LIMIT).await;
        assert!(!inference.is_idle() && !inference.hangs(), "just in time");
        advance(Duration::from_millis(1)).await;
        assert!(inference.hangs());
        // The thread answers in real time.
        tokio::time::resume();
        gate.open();
        let answer = timeout(DEADLINE, inference.answers.recv()).await;
        inference.on_answer(&answer.expect("in time").expect("the thread runs"));
        assert!(inference.is_idle() && !inference.hangs());
    }

    #[tokio::test]
    async fn the_answers_end_with_the_thread() {
        let mut inference = Inference::start(fixed(10), Duration::ZERO, LIMIT);
        inference.orders = blocking::channel().0;
        let answer = timeout(DEADLINE, inference.answers.recv()).await;
        assert!(answer.expect("in time").is_none());
    }
}
