//! A flow's rows on their way out: each is held back until it is known what was decided on its window, and whether it
//! is the flow's last.

use std::{collections::VecDeque, sync::Arc};

use cc_ebpf::{Identity, WindowRecord};

use super::{Addresses, Decided, Episodes, FileHeader, Recorded, Row};
use crate::reward::Terms;

/// Rows of one flow that are held back, at most: a policy that hangs must not fill the memory.
const HELD: usize = 64;

/// What rows are made with, and those that may go.
#[derive(Debug)]
pub(crate) struct Book {
    episodes: Episodes,
    addresses: Addresses,
    ready: Vec<Recorded>,
    dropped: u64,
}

impl Book {
    pub(crate) fn new(episodes: Episodes, addresses: Addresses) -> Self {
        Self {
            episodes,
            addresses,
            ready: Vec::new(),
            dropped: 0,
        }
    }

    /// The rows that may go, in the order in which they became ready.
    pub(crate) fn take(&mut self) -> Vec<Recorded> {
        std::mem::take(&mut self.ready)
    }

    /// Rows that were dropped as their flow's policy had not answered for too long.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// One episode of a flow.
#[derive(Debug)]
pub(crate) struct Episode {
    name: u64,
    sequence: u32,
    initial_cwnd_bytes: u64,
    local: Option<Arc<str>>,
    remote: Option<Arc<str>>,
    cgroup: u64,
    held: VecDeque<Held>,
}

#[derive(Debug)]
struct Held {
    recorded: Recorded,
    /// Nothing more will be decided on its window.
    settled: bool,
}

impl Episode {
    /// Begins with a history of `initial_cwnd_bytes`.
    pub(crate) fn begin(book: &mut Book, identity: &Identity, initial_cwnd_bytes: u64) -> Self {
        let (local, remote) = identity.endpoints();
        Self {
            name: book.episodes.next_name(),
            sequence: 0,
            initial_cwnd_bytes,
            local: book.addresses.write(local),
            remote: book.addresses.write(remote),
            cgroup: identity.cgroup_id,
            held: VecDeque::new(),
        }
    }

    /// A window has ended, on which something may still be decided.
    pub(crate) fn on_window(
        &mut self,
        book: &mut Book,
        header: &Arc<FileHeader>,
        window: &WindowRecord,
    ) {
        if self.held.len() >= HELD && self.held.back().is_some_and(|newest| newest.settled) {
            self.held.pop_back();
            book.dropped += 1;
        }
        let settings = &header.interface.reward;
        let terms = Terms::of(window, settings);
        let row = Box::new(Row {
            flow: self.name,
            sequence: self.sequence,
            window: *window,
            initial_cwnd_bytes: self.initial_cwnd_bytes,
            decision: None,
            terms,
            reward: terms.reward(settings) as f32,
            end: false,
            local: self.local.clone(),
            remote: self.remote.clone(),
            cgroup: self.cgroup,
        });
        self.sequence = self.sequence.wrapping_add(1);
        self.held.push_back(Held {
            recorded: Recorded {
                header: header.clone(),
                row,
            },
            settled: false,
        });
        self.release(book);
    }

    /// What was decided on the window of this number under this header; nothing, when nothing will be.
    pub(crate) fn settle(
        &mut self,
        book: &mut Book,
        header: Option<&Arc<FileHeader>>,
        window: u32,
        decision: Option<Decided>,
    ) {
        let of = |held: &&mut Held| held.recorded.row.window.index == window;
        if let Some(held) = self.held.iter_mut().find(of) {
            if let (Some(header), Some(_)) = (header, &decision) {
                held.recorded.header = header.clone();
            }
            held.recorded.row.decision = decision;
            held.settled = true;
        }
        self.release(book);
    }

    /// The episode is over: because the flow `closed`, or because nobody goes on recording it.
    pub(crate) fn finish(mut self, book: &mut Book, closed: bool) {
        if let Some(last) = self.held.back_mut() {
            last.recorded.row.end = closed;
        }
        book.ready
            .extend(self.held.into_iter().map(|held| held.recorded));
    }

    /// All but the newest, which may be the last, and those before which one still waits.
    fn release(&mut self, book: &mut Book) {
        while self.held.len() > 1
            && let Some(held) = self.held.pop_front_if(|held| held.settled)
        {
            book.ready.push(held.recorded);
        }
    }
}
