//! The policies at work: each answers batches of its own, one at a time, apart from the other.
//!
//! A policy runs in a child process ([`cc_cage`]), or, without a cage, on a thread of this process.
//! The event loop asks and goes on; answers and failures come out of [`Inference::next`]. A policy
//! that is slow or stuck delays only its own answers: the incumbent and the candidate have nothing
//! in common.

use std::{
    fmt,
    future::pending,
    io,
    os::{fd::AsFd, unix::net},
    sync::mpsc as blocking,
    thread,
    time::Duration,
};

use cc_cage::Cage;
use hdrhistogram::Histogram;
use tokio::{io::Interest, net::UnixDatagram, sync::mpsc, time::Instant};

use cc_core::{
    agent::Batch,
    canary::Arm,
    policy::{Choice, Policy, Query},
};

/// The longest inference time that the histogram tells apart, µs: one minute.
const LONGEST_TIME_US: u64 = 60_000_000;

/// Queries in one batch, at most: enough for the policy's full speed, and few enough that no flow
/// waits for much longer than its own inference.
const BATCH: usize = 256;

/// The looks that it takes, at least, to find that a batch hangs.
const LOOKS: u32 = 4;

/// A policy that is ready to decide, where it is to run.
pub(crate) enum ReadyPolicy {
    /// In a child process of its own.
    Caged(Box<Cage>),
    /// On a thread of this process, each of its batches delayed by this much.
    Here(Box<dyn Policy>, Duration),
}

/// Why a policy gives no answers any more.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// Its process or its thread has ended; says how.
    Ended(String),
    /// A batch has been out for longer than this.
    Hung(Duration),
    /// Too many of its recent answers were unusable.
    Unusable {
        /// Number of recent answers that were unusable.
        unusable: u64,
        /// Number of recent answers, usable or not.
        answers: u64,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(how) => f.write_str(how),
            Self::Hung(limit) => {
                let ms = limit.as_millis();
                write!(f, "it has not answered a batch for more than {ms} ms")
            }
            Self::Unusable { unusable, answers } => {
                write!(
                    f,
                    "{unusable} of its last {answers} answers were not finite"
                )
            }
        }
    }
}

/// A batch with the policy's choices for it.
pub(crate) struct Answer {
    /// The batch as it was asked, its recurrent states moved on.
    pub(crate) batch: Batch,
    /// One choice per query, in the batch's order.
    pub(crate) choices: Vec<Choice>,
    /// The time from the question to the answer, with the delay that `--added-delay-ms` adds.
    pub(crate) took: Duration,
}

/// The policies of both arms.
pub(crate) struct Inference {
    /// The policies at work, by [`Arm`].
    runners: [Option<Runner>; 2],
    /// A batch that has been out for longer than this counts as hanging.
    limit: Duration,
    /// When [`Self::look`] last counted the time that batches are out.
    looked: Instant,
    /// Time that the policies take per batch, µs.
    times: Histogram<u64>,
    /// Queries answered since the start, over all batches.
    answered: u64,
}

impl Inference {
    /// No policies yet. `limit` is the time after which a batch counts as hanging.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            runners: [None, None],
            limit,
            looked: Instant::now(),
            times: Histogram::new_with_bounds(1, LONGEST_TIME_US, 3)
                .expect("constant, valid bounds"),
            answered: 0,
        }
    }

    /// Sets a policy to work for an arm, and ends the one before it. Returns the batch that this
    /// one had.
    ///
    /// # Errors
    ///
    /// Returns an error when the runtime cannot watch the policy's process.
    pub(crate) fn install(&mut self, arm: Arm, policy: ReadyPolicy) -> io::Result<Option<Batch>> {
        let runner = Runner::start(policy)?;
        let former = self.runners[arm as usize].replace(runner);
        Ok(former.and_then(Runner::into_batch))
    }

    /// Sets the candidate to work for the incumbent, which ends. Returns the batch that the
    /// incumbent had.
    pub(crate) fn promote(&mut self) -> Option<Batch> {
        let [incumbent, candidate] = &mut self.runners;
        std::mem::replace(incumbent, candidate.take()).and_then(Runner::into_batch)
    }

    /// Ends the policy of an arm. Returns the batch that it had.
    pub(crate) fn remove(&mut self, arm: Arm) -> Option<Batch> {
        self.runners[arm as usize]
            .take()
            .and_then(Runner::into_batch)
    }

    /// Whether a policy is at work for an arm.
    pub(crate) fn has(&self, arm: Arm) -> bool {
        self.runners[arm as usize].is_some()
    }

    /// The largest batch that may be asked of an arm now; 0 while its policy has one.
    pub(crate) fn room(&self, arm: Arm) -> usize {
        match &self.runners[arm as usize] {
            Some(runner) if runner.out.is_none() => runner.most(),
            _ => 0,
        }
    }

    /// Asks the policy of an arm, which must have room for the batch.
    pub(crate) fn ask(&mut self, arm: Arm, batch: Batch) {
        if let (Some(runner), false) = (&mut self.runners[arm as usize], batch.is_empty()) {
            runner.ask(batch);
        }
    }

    /// The time after which a batch counts as hanging.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Counts the time since the last look towards what batches have been out for; to be called
    /// several times within the limit. One look counts for a quarter of the limit at most: when the
    /// agent itself was stopped or starved, the policies may have been so too, and their answers
    /// may be there, not yet read.
    pub(crate) fn look(&mut self) {
        let now = Instant::now();
        let most = self.limit / LOOKS;
        for out in self
            .runners
            .iter_mut()
            .flatten()
            .flat_map(|runner| &mut runner.out)
        {
            let since = out.since.max(self.looked);
            out.waited += now.saturating_duration_since(since).min(most);
        }
        self.looked = now;
    }

    /// Whether the batch of an arm has been out for longer than the limit, at the last look.
    pub(crate) fn hangs(&self, arm: Arm) -> bool {
        let runner = self.runners[arm as usize].as_ref();
        let out = runner.and_then(|runner| runner.out.as_ref());
        out.is_some_and(|out| out.waited > self.limit)
    }

    /// Waits for the next answer, or for the end of a policy. Nothing is lost when the future is
    /// dropped.
    pub(crate) async fn next(&mut self) -> (Arm, Result<Answer, Failure>) {
        let [incumbent, candidate] = &mut self.runners;
        let (arm, outcome) = tokio::select! {
            outcome = next_of(incumbent) => (Arm::Incumbent, outcome),
            outcome = next_of(candidate) => (Arm::Candidate, outcome),
        };
        if let Ok(answer) = &outcome {
            self.times.saturating_record(answer.took.as_micros() as u64);
            self.answered += answer.batch.len() as u64;
        }
        (arm, outcome)
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

async fn next_of(runner: &mut Option<Runner>) -> Result<Answer, Failure> {
    match runner {
        Some(runner) => runner.next().await,
        None => pending().await,
    }
}

/// A policy at work, and the batch that it has.
struct Runner {
    place: Place,
    /// The batch that is with the policy; `None` while it is idle.
    out: Option<Out>,
}

struct Out {
    batch: Batch,
    since: Instant,
    /// The time since then in which the agent could have read an answer.
    waited: Duration,
}

/// Where a policy works, and how it is asked.
enum Place {
    Process {
        cage: Box<Cage>,
        /// The cage's socket once more, which tells when there is something to learn.
        socket: UnixDatagram,
    },
    Thread {
        queries: blocking::Sender<Vec<Query>>,
        /// Queries moved on, with the choices for them. It closes when the thread has panicked.
        choices: mpsc::UnboundedReceiver<(Vec<Query>, Vec<Choice>)>,
    },
}

impl Runner {
    fn start(policy: ReadyPolicy) -> io::Result<Self> {
        let place = match policy {
            ReadyPolicy::Caged(cage) => {
                let socket = net::UnixDatagram::from(cage.as_fd().try_clone_to_owned()?);
                socket.set_nonblocking(true)?;
                let socket = UnixDatagram::from_std(socket)?;
                Place::Process { cage, socket }
            }
            ReadyPolicy::Here(policy, added) => on_thread(policy, added)?,
        };
        Ok(Self { place, out: None })
    }

    fn most(&self) -> usize {
        match &self.place {
            Place::Process { cage, .. } => cage.rows().min(BATCH),
            Place::Thread { .. } => BATCH,
        }
    }

    fn ask(&mut self, mut batch: Batch) {
        let since = Instant::now();
        // Whoever is gone shows it in `next`.
        match &mut self.place {
            Place::Process { cage, .. } => drop(cage.ask(&batch.queries)),
            Place::Thread { queries, .. } => {
                drop(queries.send(std::mem::take(&mut batch.queries)));
            }
        }
        self.out = Some(Out {
            batch,
            since,
            waited: Duration::ZERO,
        });
    }

    async fn next(&mut self) -> Result<Answer, Failure> {
        loop {
            match &mut self.place {
                Place::Process { cage, socket } => {
                    let queries = match &mut self.out {
                        Some(out) => &mut out.batch.queries[..],
                        None => &mut [],
                    };
                    let failed = |error| Failure::Ended(format!("its socket failed: {error}"));
                    socket.readable().await.map_err(failed)?;
                    let polled = socket.try_io(Interest::READABLE, || {
                        let polled = cage.poll_answer(queries).transpose();
                        polled.ok_or_else(|| io::ErrorKind::WouldBlock.into())
                    });
                    match polled {
                        Ok(choices) => {
                            let choices =
                                choices.map_err(|fault| Failure::Ended(fault.to_string()));
                            if let (choices, Some(out)) = (choices?, self.out.take()) {
                                return Ok(out.answered(choices));
                            }
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(failed(error)),
                    }
                }
                Place::Thread { choices, .. } => {
                    let Some((queries, choices)) = choices.recv().await else {
                        return Err(Failure::Ended("its thread has panicked".into()));
                    };
                    if let Some(mut out) = self.out.take() {
                        out.batch.queries = queries;
                        return Ok(out.answered(choices));
                    }
                }
            }
        }
    }

    /// Ends the policy. Returns the batch that it had.
    fn into_batch(self) -> Option<Batch> {
        self.out.map(|out| out.batch)
    }
}

impl Out {
    fn answered(self, choices: Vec<Choice>) -> Answer {
        Answer {
            batch: self.batch,
            choices,
            took: self.since.elapsed(),
        }
    }
}

/// Starts a thread that answers by a policy. It ends when the place is dropped, once the policy has
/// answered what it was asked.
fn on_thread(mut policy: Box<dyn Policy>, added: Duration) -> io::Result<Place> {
    let (queries, asked) = blocking::channel::<Vec<Query>>();
    let (answer, choices) = mpsc::unbounded_channel();
    let work = move || {
        for mut queries in asked {
            let choices = policy.decide(&mut queries);
            if !added.is_zero() {
                thread::sleep(added);
            }
            if answer.send((queries, choices)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("policy".into()).spawn(work)?;
    Ok(Place::Thread { queries, choices })
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::serve::testing::{Gate, batch, fixed};

    const LIMIT: Duration = Duration::from_secs(1);
    /// No wait in these tests may outlast this.
    const DEADLINE: Duration = Duration::from_secs(60);

    fn here(policy: Box<dyn Policy>) -> ReadyPolicy {
        ReadyPolicy::Here(policy, Duration::ZERO)
    }

    fn install(inference: &mut Inference, arm: Arm, policy: Box<dyn Policy>) -> Option<Batch> {
        inference.install(arm, here(policy)).expect("a thread")
    }

    /// The arm and the cwnd of the next answer.
    async fn answered(inference: &mut Inference) -> (Arm, u32) {
        let (arm, answer) = timeout(DEADLINE, inference.next()).await.expect("in time");
        match answer.expect("an answer").choices[..] {
            [Choice::Cwnd(cwnd)] => (arm, cwnd),
            ref choices => panic!("{choices:?}"),
        }
    }

    #[tokio::test]
    async fn each_arm_has_its_policy() {
        let mut inference = Inference::new(LIMIT);
        install(&mut inference, Arm::Incumbent, fixed(10));
        assert_eq!(inference.room(Arm::Candidate), 0, "there is no candidate");
        install(&mut inference, Arm::Candidate, fixed(20));
        for (arm, cwnd) in [(Arm::Incumbent, 10), (Arm::Candidate, 20)] {
            inference.ask(arm, batch(arm));
            assert_eq!(inference.room(arm), 0, "one batch at a time");
            assert_eq!(answered(&mut inference).await, (arm, cwnd));
        }
        assert!(inference.promote().is_none());
        inference.ask(Arm::Incumbent, batch(Arm::Incumbent));
        assert_eq!(answered(&mut inference).await, (Arm::Incumbent, 20));
        assert!(!inference.has(Arm::Candidate));
        assert_eq!((inference.times().len(), inference.mean_batch()), (3, 1.0));
    }

    #[tokio::test]
    async fn a_policy_that_does_not_answer_does_not_delay_the_other() {
        let mut inference = Inference::new(LIMIT);
        let (_gate, stuck) = Gate::before(20);
        install(&mut inference, Arm::Incumbent, fixed(10));
        install(&mut inference, Arm::Candidate, stuck);
        inference.ask(Arm::Candidate, batch(Arm::Candidate));
        for _ in 0..3 {
            inference.ask(Arm::Incumbent, batch(Arm::Incumbent));
            assert_eq!(answered(&mut inference).await, (Arm::Incumbent, 10));
        }
        let unanswered = inference.remove(Arm::Candidate).expect("it was asked");
        assert_eq!(unanswered.arm(), Arm::Candidate);
    }

    #[tokio::test]
    async fn a_policy_that_is_replaced_gives_its_batch_back() {
        let mut inference = Inference::new(LIMIT);
        let (_gate, stuck) = Gate::before(20);
        assert!(install(&mut inference, Arm::Incumbent, stuck).is_none());
        inference.ask(Arm::Incumbent, batch(Arm::Incumbent));
        assert!(install(&mut inference, Arm::Incumbent, fixed(10)).is_some());
        inference.ask(Arm::Incumbent, batch(Arm::Incumbent));
        assert_eq!(answered(&mut inference).await, (Arm::Incumbent, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_is_out_for_too_long_hangs() {
        let mut inference = Inference::new(LIMIT);
        let (gate, stuck) = Gate::before(10);
        install(&mut inference, Arm::Incumbent, stuck);
        inference.ask(Arm::Incumbent, Batch::default());
        assert!(inference.room(Arm::Incumbent) > 0, "nothing was asked");
        inference.ask(Arm::Incumbent, batch(Arm::Incumbent));
        for _ in 0..LOOKS {
            advance(LIMIT / LOOKS).await;
            inference.look();
        }
        assert!(!inference.hangs(Arm::Incumbent), "just in time");
        advance(Duration::from_millis(1)).await;
        inference.look();
        assert!(inference.hangs(Arm::Incumbent) && !inference.hangs(Arm::Candidate));
        // The thread answers in real time.
        tokio::time::resume();
        gate.open();
        assert_eq!(answered(&mut inference).await, (Arm::Incumbent, 10));
        assert!(!inference.hangs(Arm::Incumbent));
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_was_stopped_does_not_blame_its_policies() {
        let mut inference = Inference::new(LIMIT);
        let (gate, stuck) = Gate::before(10);
        install(&mut inference, Arm::Incumbent, stuck);
        inference.ask(Arm::Incumbent, batch(Arm::Incumbent));
        for _ in 0..LOOKS {
            advance(10 * LIMIT).await;
            inference.look();
            assert!(!inference.hangs(Arm::Incumbent));
        }
        // What was asked after the last look waits from then on, not from that look.
        tokio::time::resume();
        gate.open();
        answered(&mut inference).await;
        tokio::time::pause();
        advance(LIMIT / 8).await;
        inference.ask(Arm::Incumbent, batch(Arm::Incumbent));
        inference.look();
        let out = |inference: &Inference| {
            inference.runners[0]
                .as_ref()?
                .out
                .as_ref()
                .map(|o| o.waited)
        };
        assert_eq!(out(&inference), Some(Duration::ZERO));
    }

    #[tokio::test]
    async fn the_end_of_a_policy_is_a_failure() {
        struct Panics(Box<dyn Policy>);

        impl Policy for Panics {
            fn decide(&mut self, _: &mut [Query]) -> Vec<Choice> {
                panic!("as this test wants it");
            }

            fn interface(&self) -> &cc_core::interface::Interface {
                self.0.interface()
            }
        }

        let mut inference = Inference::new(LIMIT);
        install(&mut inference, Arm::Incumbent, Box::new(Panics(fixed(10))));
        inference.ask(Arm::Incumbent, batch(Arm::Incumbent));
        let (arm, outcome) = timeout(DEADLINE, inference.next()).await.expect("in time");
        assert!(arm == Arm::Incumbent && matches!(outcome, Err(Failure::Ended(_))));
        assert!(
            inference.remove(Arm::Incumbent).is_some(),
            "its batch is not lost"
        );
    }
}
