//! CoDel, controlled delay: RFC 8289, as Linux implements it (`codel_dequeue` and
//! `codel_should_drop`, include/net/codel_impl.h, Linux 6.18).
//!
//! The smallest time that packets spent in the queue over an interval tells a standing queue from a
//! burst. While it is above the target, packets are dropped, or marked, at the head, at intervals
//! that shrink with the square root of their number.
//!
//! Linux keeps the reciprocal of that root as a fixed-point number with one step of Newton's method
//! for each drop; here it is exact, as in the RFC's pseudocode.

use crate::path::queue::{PacketQueue, Waiting};
use crate::path::{Content, Nanos, Packet, nanos};
use crate::scenario::{self, MTU};

use super::Taken;

/// Packets are dropped at the former rate again if the queue became too long within this many
/// intervals of the last drop (RFC 8289, section 5.6).
const REMEMBERED_INTERVALS: Nanos = 16;

/// A first-in-first-out queue under CoDel.
#[derive(Debug)]
pub(in crate::path) struct CoDelQueue<B> {
    queue: PacketQueue<B>,
    codel: CoDel,
}

/// The state of CoDel on one queue.
#[derive(Clone, Debug)]
pub(super) struct CoDel {
    target: Nanos,
    interval: Nanos,
    ecn: bool,
    /// When the delay will have been above the target for an interval; `None` while it is below
    /// (`first_above_time`).
    first_above: Option<Nanos>,
    /// Whether packets are being dropped.
    dropping: bool,
    /// When the next packet is dropped (`drop_next`).
    drop_next: Nanos,
    /// Packets dropped or marked since dropping began (`count`), and what that was when it last
    /// began (`lastcount`).
    count: u32,
    last_count: u32,
}

impl<B: Content> CoDelQueue<B> {
    pub(super) fn new(model: &scenario::Queue, codel: &scenario::CoDel) -> Self {
        Self {
            queue: PacketQueue::new(model),
            codel: CoDel::new(codel),
        }
    }

    pub(super) fn enqueue(&mut self, waiting: Waiting<B>, dropped: &mut Vec<Packet<B>>) {
        if let Err(packet) = self.queue.push(waiting) {
            dropped.push(packet);
        }
    }

    pub(super) fn dequeue(&mut self, now: Nanos, dropped: &mut Vec<Packet<B>>) -> Option<Taken<B>> {
        let queue = &mut self.queue;
        let pop = || queue.pop().map(|waiting| (waiting, queue.bytes()));
        self.codel.dequeue(now, pop, dropped)
    }

    pub(super) fn packets(&self) -> u32 {
        self.queue.packets()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.queue.bytes()
    }
}

impl CoDel {
    pub(super) fn new(model: &scenario::CoDel) -> Self {
        Self {
            target: nanos(model.target),
            interval: nanos(model.interval),
            ecn: model.ecn,
            first_above: None,
            dropping: false,
            drop_next: 0,
            count: 0,
            last_count: 0,
        }
    }

    /// Counts packets that were dropped because the queue was full, so that more follow sooner
    /// (`fq_codel_drop`).
    pub(super) fn add_drops(&mut self, packets: u32) {
        self.count = self.count.saturating_add(packets);
    }

    /// Takes the next packet that is not dropped out of the queue. `pop` takes out its head, with
    /// the bytes that remain.
    pub(super) fn dequeue<B: Content>(
        &mut self,
        now: Nanos,
        mut pop: impl FnMut() -> Option<(Waiting<B>, u64)>,
        dropped: &mut Vec<Packet<B>>,
    ) -> Option<Taken<B>> {
        let mut head = pop();
        let above = self.is_above(now, head.as_ref());
        let mut marked = false;
        if self.dropping && !above {
            self.dropping = false;
        } else if self.dropping {
            while self.dropping && now >= self.drop_next {
                self.count = self.count.saturating_add(1);
                let next = self.after(self.drop_next);
                marked = self.signal(&mut head, dropped);
                if marked {
                    self.drop_next = next;
                    break;
                }
                head = pop();
                match self.is_above(now, head.as_ref()) {
                    true => self.drop_next = next,
                    false => self.dropping = false,
                }
            }
        } else if above {
            marked = self.signal(&mut head, dropped);
            if !marked {
                head = pop();
                // Takes note of its delay. If that is short, the next packet ends the dropping.
                self.is_above(now, head.as_ref());
            }
            self.begin(now);
        }
        head.map(|(waiting, _)| Taken { waiting, marked })
    }

    /// Begins to drop. If the queue was too long shortly before, the rate that controlled it then
    /// is where it starts.
    fn begin(&mut self, now: Nanos) {
        let since = self.count.saturating_sub(self.last_count);
        let recent = now.saturating_sub(self.drop_next) < REMEMBERED_INTERVALS * self.interval;
        self.dropping = true;
        self.count = if since > 1 && recent { since } else { 1 };
        self.last_count = self.count;
        self.drop_next = self.after(now);
    }

    /// Marks the packet at the head if it can be marked, and drops it otherwise. Returns whether it
    /// was marked.
    fn signal<B: Content>(
        &self,
        head: &mut Option<(Waiting<B>, u64)>,
        dropped: &mut Vec<Packet<B>>,
    ) -> bool {
        let marked = self.ecn
            && head
                .as_ref()
                .is_some_and(|(waiting, _)| waiting.packet.body.ecn().is_capable());
        if !marked && let Some((waiting, _)) = head.take() {
            dropped.push(waiting.packet);
        }
        marked
    }

    /// Whether the delay has been above the target for an interval. A queue of at most a full
    /// packet is never too long.
    fn is_above<B>(&mut self, now: Nanos, head: Option<&(Waiting<B>, u64)>) -> bool {
        let long = head.is_some_and(|(waiting, left)| {
            now - waiting.arrived >= self.target && *left > u64::from(MTU)
        });
        if !long {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            None => {
                self.first_above = Some(now.saturating_add(self.interval));
                false
            }
            Some(at) => now > at,
        }
    }

    /// The control law: the time of the drop after one at `time`.
    fn after(&self, time: Nanos) -> Nanos {
        let gap = self.interval as f64 / f64::from(self.count.max(1)).sqrt();
        time.saturating_add(gap as Nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Body, MS, full};
    use super::*;
    use crate::path::Ecn;

    const NONE: [u64; 0] = [];

    /// A standing queue, from which a packet is taken every millisecond.
    struct Standing {
        codel: CoDel,
        now: Nanos,
        ecn: Ecn,
    }

    impl Standing {
        fn new(ecn: bool, packets: Ecn) -> Self {
            let codel = CoDel::new(&scenario::CoDel {
                ecn,
                ..scenario::CoDel::default()
            });
            Self {
                codel,
                now: 1_000 * MS,
                ecn: packets,
            }
        }

        /// Takes packets for `ms` that have waited for `delay`, with `left` bytes behind each.
        /// Returns the times of drops and those of marks since the start, in ms.
        fn run(&mut self, ms: u64, delay: Nanos, left: u64) -> (Vec<u64>, Vec<u64>) {
            let (mut drops, mut marks) = (Vec::new(), Vec::new());
            for _ in 0..ms {
                let mut dropped: Vec<Packet<Body>> = Vec::new();
                let packet = || Some((full(self.now - delay, 0, 0, self.ecn), left));
                let taken = self.codel.dequeue(self.now, packet, &mut dropped);
                let at = self.now / MS - 1_000;
                drops.extend(dropped.iter().map(|_| at));
                marks.extend(taken.filter(|taken| taken.marked).map(|_| at));
                self.now += MS;
            }
            (drops, marks)
        }
    }

    /// Section 4.2 of RFC 8289: the first drop after an interval above the target, the next ones
    /// `interval / sqrt(count)` apart.
    #[test]
    fn drops_follow_the_control_law() {
        let (drops, marks) = Standing::new(false, Ecn::Ect0).run(500, 20 * MS, 100_000);
        let mut expected = vec![101.0];
        for count in 1..8 {
            expected.push(expected[count - 1] + 100.0 / (count as f64).sqrt());
        }
        let expected: Vec<_> = expected.iter().map(|at: &f64| at.ceil() as u64).collect();
        assert_eq!(drops, expected[..drops.len()]);
        assert!(drops.len() >= 7, "{drops:?}");
        assert!(marks.is_empty(), "it is not asked for marks");
    }

    #[test]
    fn marks_come_when_drops_would() {
        let (drops, _) = Standing::new(false, Ecn::Ect0).run(500, 20 * MS, 100_000);
        let (none, marks) = Standing::new(true, Ecn::Ect0).run(500, 20 * MS, 100_000);
        assert_eq!((none, marks), (vec![], drops.clone()));
        let (dropped, marks) = Standing::new(true, Ecn::NotEct).run(500, 20 * MS, 100_000);
        assert_eq!((dropped, marks), (drops, vec![]), "it cannot be marked");
    }

    #[test]
    fn a_short_delay_ends_the_dropping_and_a_burst_does_not_begin_it() {
        let mut queue = Standing::new(false, Ecn::NotEct);
        assert_eq!(queue.run(100, 20 * MS, 100_000).0, NONE);
        assert_eq!(queue.run(1, 4 * MS, 100_000).0, NONE);
        // The interval begins again.
        assert_eq!(queue.run(100, 20 * MS, 100_000).0, NONE);
        assert_eq!(queue.run(10, 20 * MS, 100_000).0, [202]);
        queue.run(1, 4 * MS, 100_000);
        assert!(!queue.codel.dropping);
    }

    /// Section 5.6: a queue that becomes too long again soon is dropped from at the former rate.
    #[test]
    fn the_rate_is_remembered_for_a_while() {
        let mut queue = Standing::new(false, Ecn::NotEct);
        queue.run(600, 20 * MS, 100_000);
        let count = queue.codel.count;
        assert!(count > 5);
        queue.run(100, MS, 100_000);
        queue.run(102, 20 * MS, 100_000);
        assert!(queue.codel.dropping);
        assert_eq!(queue.codel.count, count - 1);

        queue.run(2_000, MS, 100_000);
        queue.run(102, 20 * MS, 100_000);
        assert!(queue.codel.dropping);
        assert_eq!(queue.codel.count, 1);
    }

    #[test]
    fn the_last_full_packet_is_never_dropped() {
        let mut queue = Standing::new(false, Ecn::NotEct);
        assert_eq!(queue.run(1_000, 50 * MS, 1_500).0, NONE);
        assert!(!queue.run(1_000, 50 * MS, 1_501).0.is_empty());
    }
}
