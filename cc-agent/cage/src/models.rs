//! Explores the exchange of batches with loom: every interleaving of agent and child, and every
//! value that each word of the shared memory may have for whoever reads it.
//!
//! Memory and socket are the model's, the two ends are the real ones. The words have no order of
//! their own, as in the real memory; messages order what was written before they were sent, as the
//! lock of the kernel's queue does.

use std::{cell::Cell, io};

use cc_core::policy::{Choice, Query, State};
use loom::{
    model::Builder,
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{self, Acquire, Relaxed, Release},
        },
    },
    thread,
};

use crate::{
    child::answer,
    connection::{Connection, Fault, Link, Received},
    layout::Layout,
    message::Message,
    region::Word,
};

/// Words of a query of one observation: the cwnd, the reward, the flags and the observation.
const QUERY: usize = 4;
/// Words of an answer of two actions: the kind, the value, its probability, the number of
/// probabilities, and two of these.
const ANSWER: usize = 6;

impl Word for AtomicU32 {
    fn get(&self) -> u32 {
        self.load(Relaxed)
    }

    fn set(&self, value: u32) {
        self.store(value, Relaxed);
    }
}

/// What both processes have.
struct Shared {
    words: Vec<AtomicU32>,
    /// Messages to the child and to the agent, in the order in which they are sent; 0 is none yet.
    messages: [Vec<AtomicU32>; 2],
    /// How a message is sent, and how it is received.
    order: [Ordering; 2],
}

/// One end of a socket pair.
struct End {
    shared: Arc<Shared>,
    /// Which of the queues it sends to: 0 for the agent.
    queue: usize,
    sent: Cell<usize>,
    received: Cell<usize>,
}

/// Both ends, the agent's first, whose messages have this order.
fn pair(order: [Ordering; 2]) -> [End; 2] {
    let words = |count: usize| (0..count).map(|_| AtomicU32::new(0)).collect();
    let shared = Arc::new(Shared {
        words: words(QUERY + ANSWER),
        messages: [words(3), words(3)],
        order,
    });
    [0, 1].map(|queue| End {
        shared: shared.clone(),
        queue,
        sent: Cell::new(0),
        received: Cell::new(0),
    })
}

fn next(place: &Cell<usize>) -> usize {
    place.replace(place.get() + 1)
}

impl End {
    /// Sends a message; `None` closes the socket.
    fn say(&self, message: Option<Message>) {
        let word = match message {
            Some(Message::Ask { rows, number }) => 1 + (rows << 8) + ((number as u32) << 16),
            Some(Message::Answered { rows, number }) => 4 + (rows << 8) + ((number as u32) << 16),
            _ => u32::MAX,
        };
        let place = &self.shared.messages[self.queue][next(&self.sent)];
        place.store(word, self.shared.order[0]);
    }

    /// Waits for a message; `None` when the socket is closed.
    fn hear(&self) -> Option<Message> {
        let place = &self.shared.messages[1 - self.queue][next(&self.received)];
        let word = loop {
            match place.load(self.shared.order[1]) {
                0 => thread::yield_now(),
                word => break word,
            }
        };
        let (rows, number) = (word >> 8 & 0xff, u64::from(word >> 16));
        match word & 0xff {
            1 => Some(Message::Ask { rows, number }),
            4 => Some(Message::Answered { rows, number }),
            _ => None,
        }
    }
}

impl Link for End {
    type Word = AtomicU32;

    fn words(&self) -> &[AtomicU32] {
        &self.shared.words
    }

    fn send(&self, message: Message) -> io::Result<()> {
        self.say(Some(message));
        Ok(())
    }

    fn receive(&self) -> Result<Received, Fault> {
        Ok(self.hear().map_or(Received::End, Received::Message))
    }
}

fn layout() -> Layout {
    Layout::new(1, 2, 0, QUERY + ANSWER, 1).expect("one row")
}

/// A query that is known by its cwnd.
fn query(cwnd: u32) -> Query {
    Query {
        observation: vec![1.0],
        reward: 0.0,
        cwnd,
        state: State::default(),
        probabilities: Vec::new(),
    }
}

/// Explores a test with at most three switches away from a thread that could have gone on.
fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

/// Two batches, one after the other.
fn exchange(order: [Ordering; 2]) {
    explore(move || {
        let [ours, theirs] = pair(order);
        let child = thread::spawn(move || {
            let decide = |queries: &mut [Query]| {
                let next = queries.iter().map(|query| Choice::Cwnd(query.cwnd + 1));
                next.collect()
            };
            let say = |message| {
                theirs.say(Some(message));
                Ok(())
            };
            answer(&layout(), theirs.words(), decide, || Ok(theirs.hear()), say)
        });
        let mut agent = Connection::new(ours, layout());
        for cwnd in [10, 20] {
            let mut batch = [query(cwnd)];
            agent.ask(&batch).expect("the child is there");
            let answer = agent.poll_answer(&mut batch);
            let expected = Some(vec![Choice::Cwnd(cwnd + 1)]);
            assert_eq!(answer, Ok(expected), "an answer to another batch");
        }
        agent.link.say(None);
        let ended = child.join().expect("it has not panicked");
        assert!(ended.is_ok(), "{ended:?}");
    });
}

#[test]
fn each_batch_gets_its_own_answers() {
    exchange([Release, Acquire]);
}

#[test]
#[should_panic(expected = "an answer to another batch")]
fn batches_are_mixed_up_if_messages_do_not_order_the_memory() {
    exchange([Relaxed, Relaxed]);
}

/// A child that repeats its answer to the first batch while the second one is out, and then
/// overwrites it.
#[test]
fn an_old_answer_is_not_taken_for_a_new_one() {
    explore(|| {
        let [ours, theirs] = pair([Release, Acquire]);
        let child = thread::spawn(move || {
            theirs.hear();
            let answered = Message::Answered { rows: 1, number: 1 };
            let choices = [Choice::Cwnd(11)];
            layout().write_answers(theirs.words(), &[query(10)], &choices);
            theirs.say(Some(answered));
            theirs.say(Some(answered));
            layout().write_answers(theirs.words(), &[query(20)], &[Choice::Cwnd(21)]);
        });
        let mut agent = Connection::new(ours, layout());
        let mut batch = [query(10)];
        agent.ask(&batch).expect("the child is there");
        let first = agent.poll_answer(&mut batch);
        // The second one may have been written already: it is for this row all the same.
        let [old, new] = [11, 21].map(|cwnd| Ok(Some(vec![Choice::Cwnd(cwnd)])));
        assert!(first == old || first == new, "{first:?}");
        agent.ask(&[query(20)]).expect("the child is there");
        let second = agent.poll_answer(&mut batch);
        assert!(
            matches!(second, Err(Some(Fault::Protocol(_)))),
            "{second:?}"
        );
        child.join().expect("it has not panicked");
    });
}

/// A child that goes on writing while the agent reads: whatever the agent makes of the mixture, a
/// policy with two actions can have answered it.
#[test]
fn an_answer_that_changes_while_it_is_read_is_still_checked() {
    explore(|| {
        let [ours, theirs] = pair([Release, Acquire]);
        let child = thread::spawn(move || {
            theirs.hear();
            let action = Choice::Action {
                index: 1,
                probability: 0.5,
            };
            layout().write_answers(theirs.words(), &[query(10)], &[action]);
            theirs.say(Some(Message::Answered { rows: 1, number: 1 }));
            let [kind, value, probability, count, ..] = &theirs.words()[QUERY..] else {
                unreachable!("an answer is longer");
            };
            value.set(9);
            probability.set(f32::NAN.to_bits());
            count.set(7);
            kind.set(2);
            value.set(0);
        });
        let mut agent = Connection::new(ours, layout());
        let mut batch = [query(10)];
        agent.ask(&batch).expect("the child is there");
        let choices = agent
            .poll_answer(&mut batch)
            .expect("it keeps the protocol");
        match choices.expect("they have come")[0] {
            Choice::Action { index, probability } => {
                assert!(index < 2 && (0.0..=1.001).contains(&probability));
            }
            Choice::Cwnd(cwnd) => assert!(cwnd > 0),
            Choice::Invalid => {}
        }
        assert!(batch[0].probabilities.is_empty(), "{batch:?}");
        child.join().expect("it has not panicked");
    });
}
