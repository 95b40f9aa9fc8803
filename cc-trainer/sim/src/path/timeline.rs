//! What is bound to happen, in order of time.

use std::collections::VecDeque;

use super::{NEVER, Nanos};

/// Events on a few lanes, each of which is in order of time already: the next one is the first of the lanes' heads.
/// Events of the same time come in the order of their coming in.
#[derive(Debug)]
pub(super) struct Timeline<E> {
    lanes: Vec<VecDeque<(Key, E)>>,
    /// The keys of the lanes' heads, side by side because every event looks at all of them.
    heads: Vec<Key>,
    /// The lane with the least head.
    first: usize,
    pushed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    at: Nanos,
    /// Events that came in before.
    order: u64,
}

const EMPTY: Key = Key {
    at: NEVER,
    order: u64::MAX,
};

impl<E> Timeline<E> {
    /// Without events.
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            lanes: (0..lanes).map(|_| VecDeque::new()).collect(),
            heads: vec![EMPTY; lanes],
            first: 0,
            pushed: 0,
        }
    }

    /// Adds an event to a lane, whose other events are not later.
    #[inline]
    pub(super) fn push(&mut self, lane: usize, at: Nanos, event: E) {
        let key = Key {
            at,
            order: self.pushed,
        };
        self.pushed += 1;
        if self.lanes[lane].is_empty() {
            self.heads[lane] = key;
            if key < self.heads[self.first] {
                self.first = lane;
            }
        }
        self.lanes[lane].push_back((key, event));
    }

    /// Takes out the first event, when its time is `now` or earlier.
    #[inline]
    pub(super) fn pop(&mut self, now: Nanos) -> Option<E> {
        if self.first() > now {
            return None;
        }
        let lane = &mut self.lanes[self.first];
        let (_, event) = lane.pop_front()?;
        self.heads[self.first] = lane.front().map_or(EMPTY, |&(key, _)| key);
        for (lane, head) in self.heads.iter().enumerate() {
            if *head < self.heads[self.first] {
                self.first = lane;
            }
        }
        Some(event)
    }

    /// The time of the first event, [`NEVER`] without one.
    #[inline]
    pub(super) fn first(&self) -> Nanos {
        self.heads[self.first].at
    }
}
