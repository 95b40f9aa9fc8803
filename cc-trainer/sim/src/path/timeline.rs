//! A queue of future events in order of time.

use std::collections::VecDeque;

use super::{NEVER, Nanos};

/// A priority queue of events on a few lanes, each of which is already in order of time: the next
/// event is the earliest of the lanes' heads. Events of the same time are returned in the order in
/// which they were added.
#[derive(Debug)]
pub(super) struct Timeline<E> {
    lanes: Vec<VecDeque<(Key, E)>>,
    /// Keys of the lanes' heads, side by side because every operation reads all of them.
    heads: Vec<Key>,
    /// Index of the lane with the earliest head.
    first: usize,
    pushed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    at: Nanos,
    /// Number of events added before.
    order: u64,
}

const EMPTY: Key = Key {
    at: NEVER,
    order: u64::MAX,
};

impl<E> Timeline<E> {
    /// Creates a timeline without events.
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            lanes: (0..lanes).map(|_| VecDeque::new()).collect(),
            heads: vec![EMPTY; lanes],
            first: 0,
            pushed: 0,
        }
    }

    /// Adds an event to a lane, none of whose events may be later.
    #[inline(always)]
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

    /// Removes the first event if its time is `now` or earlier.
    #[inline(always)]
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

    /// Time of the first event; [`NEVER`] without events.
    #[inline]
    pub(super) fn first(&self) -> Nanos {
        self.heads[self.first].at
    }
}
