//! Flow queueing with CoDel: RFC 8290, as Linux implements it (net/sched/sch_fq_codel.c, Linux
//! 6.18).
//!
//! Connections are hashed to queues. Queues take turns by deficit round robin, and one that has
//! just become busy comes before those that were busy already. Each is under CoDel of its own. When
//! all of them together are too long, the longest loses up to half of its packets.

use std::collections::VecDeque;

use rand::RngExt;
use rand::rngs::StdRng;

use crate::path::queue::Waiting;
use crate::path::{Content, Nanos, Packet};
use crate::scenario;
use crate::seed;

use super::codel::CoDel;
use super::{Limits, Taken};

/// Most packets dropped at a time from the longest queue (`drop_batch_size`).
const DROP_BATCH: u32 = 64;

/// Queues of connections that take turns, each under CoDel.
#[derive(Debug)]
pub(in crate::path) struct FqCoDelQueue<B> {
    limits: Limits,
    quantum: i64,
    /// Decides which connections share a queue.
    perturbation: u64,
    queues: Vec<ConnectionQueue<B>>,
    /// Indices of the queues that have become busy and not had their turn (`new_flows`).
    new: VecDeque<usize>,
    /// Indices of the others that take turns (`old_flows`).
    old: VecDeque<usize>,
    packets: usize,
    bytes: u64,
}

/// One of the queues, with the flows whose hash fell on it.
#[derive(Debug)]
struct ConnectionQueue<B> {
    waiting: VecDeque<Waiting<B>>,
    bytes: u64,
    /// Bytes that it may still send in its turn.
    deficit: i64,
    /// Whether it is in one of the lists.
    listed: bool,
    codel: CoDel,
}

impl<B: Content> FqCoDelQueue<B> {
    pub(super) fn new(model: &scenario::Queue, fq: &scenario::FqCoDel, mut random: StdRng) -> Self {
        let queue = || ConnectionQueue {
            waiting: VecDeque::new(),
            bytes: 0,
            deficit: 0,
            listed: false,
            codel: CoDel::new(&fq.codel),
        };
        Self {
            limits: Limits::new(model),
            quantum: fq.quantum.into(),
            perturbation: random.random(),
            queues: (0..fq.queues).map(|_| queue()).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            packets: 0,
            bytes: 0,
        }
    }

    pub(super) fn enqueue(&mut self, waiting: Waiting<B>, dropped: &mut Vec<Packet<B>>) {
        let index = self.index(waiting.packet.body.connection());
        let queue = &mut self.queues[index];
        let bytes = u64::from(waiting.packet.bytes);
        queue.bytes += bytes;
        self.bytes += bytes;
        self.packets += 1;
        queue.waiting.push_back(waiting);
        if !queue.listed {
            queue.listed = true;
            queue.deficit = self.quantum;
            self.new.push_back(index);
        }
        while !self.limits.hold(self.packets, self.bytes) {
            self.shorten_the_longest(dropped);
        }
    }

    pub(super) fn dequeue(&mut self, now: Nanos, dropped: &mut Vec<Packet<B>>) -> Option<Taken<B>> {
        loop {
            let is_new = !self.new.is_empty();
            let index = *self.new.front().or_else(|| self.old.front())?;
            let queue = &mut self.queues[index];
            if queue.deficit <= 0 {
                queue.deficit += self.quantum;
                self.unlist_first(is_new);
                self.old.push_back(index);
                continue;
            }
            let (packets, bytes) = (&mut self.packets, &mut self.bytes);
            let (own, own_bytes) = (&mut queue.waiting, &mut queue.bytes);
            let pop = || {
                let waiting = own.pop_front()?;
                let length = u64::from(waiting.packet.bytes);
                *own_bytes -= length;
                *bytes -= length;
                *packets -= 1;
                // CoDel leaves a small backlog alone, which is that of all queues together.
                Some((waiting, *bytes))
            };
            if let Some(taken) = queue.codel.dequeue(now, pop, dropped) {
                queue.deficit -= i64::from(taken.waiting.packet.bytes);
                return Some(taken);
            }
            // A new queue that runs empty goes through the old ones, so that one which keeps coming
            // back cannot starve them.
            self.unlist_first(is_new);
            if is_new && !self.old.is_empty() {
                self.old.push_back(index);
            } else {
                self.queues[index].listed = false;
            }
        }
    }

    pub(super) fn packets(&self) -> u32 {
        u32::try_from(self.packets).unwrap_or(u32::MAX)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The queue of a connection.
    fn index(&self, connection: u32) -> usize {
        let hash = seed::fold(self.perturbation, connection.into());
        let count = self.queues.len() as u64;
        (((hash >> 32) * count) >> 32) as usize
    }

    fn unlist_first(&mut self, is_new: bool) {
        match is_new {
            true => self.new.pop_front(),
            false => self.old.pop_front(),
        };
    }

    /// Drops packets at the head of the longest queue until it has half of its bytes, at most
    /// [`DROP_BATCH`] (`fq_codel_drop`).
    fn shorten_the_longest(&mut self, dropped: &mut Vec<Packet<B>>) {
        // The first of equally long ones, as in the kernel.
        let longest = (self.queues.iter_mut().rev()).max_by_key(|queue| queue.bytes);
        let Some(queue) = longest else { return };
        let half = queue.bytes / 2;
        let (mut packets, mut bytes) = (0, 0);
        while let Some(waiting) = queue.waiting.pop_front() {
            packets += 1;
            bytes += u64::from(waiting.packet.bytes);
            dropped.push(waiting.packet);
            if packets == DROP_BATCH || bytes >= half {
                break;
            }
        }
        queue.bytes -= bytes;
        queue.codel.add_drops(packets);
        self.packets -= packets as usize;
        self.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::super::tests::{Body, full, numbers, sized};
    use super::*;
    use crate::path::Ecn;

    const MINE: u32 = 7;
    const OTHER: u32 = 8;
    const NONE: [u32; 0] = [];

    fn queue(packets: u32) -> FqCoDelQueue<Body> {
        let model = scenario::Queue {
            packets: Some(packets),
            ..scenario::Queue::default()
        };
        let fq = scenario::FqCoDel::default();
        let queue = FqCoDelQueue::new(&model, &fq, StdRng::seed_from_u64(1));
        assert_ne!(queue.index(MINE), queue.index(OTHER), "choose another seed");
        queue
    }

    impl FqCoDelQueue<Body> {
        /// Takes in `count` packets of a connection and returns the numbers of those dropped.
        fn fill(&mut self, connection: u32, bytes: u32, count: u32) -> Vec<u32> {
            let mut dropped = Vec::new();
            for number in 0..count {
                let packet = sized(bytes, 0, connection, number, Ecn::NotEct);
                self.enqueue(packet, &mut dropped);
            }
            numbers(&dropped)
        }

        /// The connections of the next packets, all taken at once.
        fn next(&mut self, count: usize) -> Vec<u32> {
            let mut connections = Vec::new();
            for _ in 0..count {
                let taken = self.dequeue(0, &mut Vec::new());
                connections.extend(taken.map(|taken| taken.waiting.packet.body.connection));
            }
            connections
        }
    }

    /// RFC 8290, section 4.2: new queues come first, for one quantum.
    #[test]
    fn a_connection_that_becomes_busy_comes_first() {
        let mut queue = queue(100);
        queue.fill(MINE, 1_500, 10);
        assert_eq!(queue.next(1), [MINE]);
        queue.fill(OTHER, 1_500, 2);
        assert_eq!(queue.next(4), [OTHER, MINE, OTHER, MINE]);
    }

    #[test]
    fn a_new_queue_that_runs_empty_waits_for_its_turn_among_the_old_ones() {
        let mut queue = queue(100);
        // Three packets are a quantum.
        queue.fill(MINE, 500, 20);
        queue.fill(OTHER, 100, 1);
        assert_eq!(queue.next(5), [MINE, MINE, MINE, OTHER, MINE]);
        queue.fill(OTHER, 100, 1);
        assert_eq!(queue.next(3), [MINE, MINE, OTHER]);
    }

    /// Section 3: deficit round robin gives equal bytes, and not equal packets.
    #[test]
    fn connections_get_equal_bytes() {
        let mut queue = queue(10_000);
        queue.fill(MINE, 1_500, 200);
        queue.fill(OTHER, 300, 1_000);
        let served = queue.next(600);
        let mine = served
            .iter()
            .filter(|&&connection| connection == MINE)
            .count();
        assert!((99..=101).contains(&mine), "{mine} of 100");
        let counted: u64 = (queue.queues.iter()).map(|queue| queue.bytes).sum();
        assert_eq!(queue.bytes, counted);
    }

    /// Section 4.1: the longest queue loses from its head, up to half of its bytes and 64 packets.
    #[test]
    fn the_longest_queue_makes_room() {
        let mut queue = queue(100);
        assert_eq!(queue.fill(OTHER, 1_500, 20), NONE);
        assert_eq!(queue.fill(MINE, 1_500, 80), NONE);
        let dropped = queue.fill(OTHER, 1_500, 1);
        assert_eq!(dropped, (0..40).collect::<Vec<_>>());
        assert_eq!(queue.packets(), 61);

        let mut queue = super::tests::queue(1_000);
        assert_eq!(queue.fill(MINE, 1_500, 1_001).len(), 64);
        // Large packets make a queue long, not many packets.
        let mut queue = super::tests::queue(100);
        queue.fill(OTHER, 100, 60);
        queue.fill(MINE, 1_500, 40);
        let mut dropped = Vec::new();
        queue.enqueue(full(0, OTHER, 60, Ecn::NotEct), &mut dropped);
        assert!(dropped.iter().all(|packet| packet.body.connection == MINE));
        assert_eq!(dropped.len(), 20);
    }
}
