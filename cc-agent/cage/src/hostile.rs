//! A child that wants to harm the agent, for the fuzz targets: it writes what it likes to the
//! shared memory, and sends what it likes.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicU32},
};

use cc_core::{
    interface::Interface,
    policy::{ActionSelection, Choice, PolicySpec, Query, State},
};
use nix::{
    sys::socket::{AddressFamily, SockFlag, SockType, socketpair},
    unistd::write,
};

use crate::{
    child,
    connection::{Connection, Wire},
    job::{Job, Report},
    layout::Layout,
    message::Message,
    region::{Region, Word, sealed_file},
};

/// The shared memory, bytes.
const MEMORY: u64 = 8 << 10;
/// The most queries that are out at once.
const ROWS: usize = 16;

/// The next bytes of an input; zeros at its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes().map(|[byte]| byte)
    }

    fn take(&mut self, most: usize) -> &[u8] {
        let (bytes, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// The agent's end of a connection with a child whose part the caller plays: with the child's
/// socket and its mapping of the `memory` bytes that both share.
///
/// # Panics
///
/// Panics when the host is short of descriptors or memory.
pub(crate) fn wire(memory: u64) -> (Wire, OwnedFd, Region) {
    let file = sealed_file(c"hostile", memory).expect("memory");
    let [region, theirs] = [(), ()].map(|()| Region::map(&file).expect("a mapping"));
    let (socket, child) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .expect("a pair");
    (Wire { socket, region }, child, theirs)
}

/// Asks and polls as the agent does, while the child does what an input says: three bytes for the
/// sizes of its policy, then steps. What the agent takes for an answer must be one that a policy of
/// these sizes can give.
///
/// # Panics
///
/// Panics when the agent takes what no policy can answer.
pub fn answer_batches(bytes: &[u8]) {
    let mut input = Input(bytes);
    let Some([observation, actions, state]) = input.bytes() else {
        return;
    };
    let sizes = [observation, actions, state].map(|size| usize::from(size % 16));
    let [observation, actions, state] = sizes;
    let (wire, child, theirs) = wire(MEMORY);
    let Some(layout) = Layout::new(observation, actions, state, theirs.words().len(), ROWS) else {
        return;
    };
    let mut connection = Connection::new(wire, layout);
    let mut batch: Option<Vec<Query>> = None;
    let mut number = 0;
    while let Some(step) = input.byte() {
        match step % 6 {
            // The agent asks, when it may.
            0 if batch.is_none() => {
                let rows = usize::from(step / 6) % layout.rows() + 1;
                let asked = vec![query(observation, state); rows];
                connection.ask(&asked).expect("the child is there");
                number += 1;
                batch = Some(asked);
            }
            // The child writes: words of its choice, whether at the queries or at the answers.
            1 => {
                let Some([low, high, many]) = input.bytes() else {
                    return;
                };
                let from = usize::from(u16::from_le_bytes([low, high])) % theirs.words().len();
                scribble(
                    &theirs.words()[from..],
                    input.take(4 * usize::from(many % 32)),
                );
            }
            // The child answers as it should.
            2 => {
                let most = batch.as_ref().map_or(0, Vec::len);
                let mut asked = layout.read_queries(theirs.words(), most);
                let choices: Vec<_> = (asked.iter_mut())
                    .map(|query| {
                        query.state = State {
                            h: vec![0.5; state],
                            c: vec![-0.5; state],
                        };
                        Choice::Cwnd(query.cwnd.max(1))
                    })
                    .collect();
                layout.write_answers(theirs.words(), &asked, &choices);
            }
            // It says so, or something like it.
            3 => {
                let Some([rows, other]) = input.bytes() else {
                    return;
                };
                let message = Message::Answered {
                    rows: u32::from(rows),
                    number: number - u64::from(other).min(number),
                };
                let _ = write(&child, &message.encode());
            }
            // It sends anything.
            4 => {
                let length = usize::from(input.byte().unwrap_or_default() % 32);
                let _ = write(&child, input.take(length));
            }
            _ => {
                let mut none = Vec::new();
                let queries = batch.as_mut().unwrap_or(&mut none);
                match connection.poll_answer(queries) {
                    Ok(None) => {}
                    Ok(Some(choices)) => {
                        assert_eq!(choices.len(), queries.len());
                        for (choice, found) in choices.iter().zip(queries) {
                            check(*choice, found, sizes);
                        }
                        assert!(batch.take().is_some(), "an answer that nobody asked for");
                    }
                    // The agent ends the child.
                    Err(_) => return,
                }
            }
        }
    }
}

fn query(observation: usize, state: usize) -> Query {
    Query {
        observation: vec![1.0; observation],
        reward: 0.0,
        cwnd: 10,
        state: State {
            h: vec![0.25; state],
            c: vec![0.25; state],
        },
        probabilities: Vec::new(),
    }
}

fn scribble(words: &[AtomicU32], bytes: &[u8]) {
    for (word, bytes) in words.iter().zip(bytes.chunks_exact(4)) {
        word.set(u32::from_le_bytes(std::array::from_fn(|i| bytes[i])));
    }
}

/// Checks what the agent has made of an answer.
fn check(choice: Choice, found: &Query, [observation, actions, state]: [usize; 3]) {
    let is_probability = |p: f32| (0.0..=1.01).contains(&p);
    match choice {
        Choice::Action { index, probability } => {
            assert!(index < actions && is_probability(probability), "{choice:?}");
        }
        Choice::Cwnd(cwnd) => assert!(cwnd > 0),
        Choice::Invalid => {}
    }
    let asked = query(observation, state);
    assert_eq!(
        (&found.observation, found.reward, found.cwnd),
        (&asked.observation, asked.reward, asked.cwnd)
    );
    let count = found.probabilities.len();
    assert!(count == 0 || count == actions, "{found:?}");
    assert!(found.probabilities.iter().all(|&p| is_probability(p)));
    for values in [&found.state.h, &found.state.c] {
        assert_eq!(values.len(), state);
        assert!(values.iter().all(|value| value.is_finite()), "{found:?}");
    }
}

/// Reads what a child reports of the policy that it has loaded: the default policy if the first
/// byte is odd, otherwise one without a file.
///
/// # Panics
///
/// Panics when the agent believes what cannot be true.
pub fn report(bytes: &[u8]) {
    let Some((kind, text)) = bytes.split_first() else {
        return;
    };
    let Ok(report) = serde_json::from_slice::<Report>(text) else {
        return;
    };
    let job = job(kind % 2 == 1);
    let Ok(loaded) = report.check(&job, 1, String::new) else {
        return;
    };
    assert!(loaded.interface.validate().is_ok(), "{loaded:?}");
    assert_eq!(loaded.file.is_some(), kind % 2 == 1, "{loaded:?}");
    let state = loaded.file.as_ref().map_or(0, |file| file.meta.state);
    let sizes = [
        loaded.interface.observation_len(),
        loaded.interface.actions.len(),
        state,
    ];
    let words = MEMORY as usize / 4;
    let [observation, actions, state] = sizes;
    if let Some(layout) = Layout::new(observation, actions, state, words, child::MOST_ROWS) {
        assert!((1..=child::MOST_ROWS).contains(&layout.rows()), "{sizes:?}");
    }
}

/// A report as an honest child writes it, of the default policy or of one without a file.
pub fn honest_report(has_file: bool) -> Vec<u8> {
    let (_, loaded) = job(has_file).load().expect("both can be loaded");
    serde_json::to_vec(&Report::of(&loaded)).expect("a report has a JSON form")
}

fn job(has_file: bool) -> Job {
    Job {
        policy: match has_file {
            true => PolicySpec::Default,
            false => "fixed:10".parse().expect("a policy's name"),
        },
        file: Arc::default(),
        interface: Interface::default(),
        serving: None::<ActionSelection>,
        seed: 0,
        added_delay: std::time::Duration::ZERO,
        batch_budget: Some(std::time::Duration::MAX),
    }
}
