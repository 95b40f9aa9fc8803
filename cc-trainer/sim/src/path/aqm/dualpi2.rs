//! DualPI2, two coupled queues: RFC 9332, as Linux implements it (net/sched/sch_dualpi2.c, Linux
//! 6.18).
//!
//! Packets with ECT(1) or a mark go to the L4S queue, which the scheduler prefers, and all others
//! to the classic queue. A proportional integral controller computes one probability p from the
//! longer delay. Classic packets are marked or dropped with probability p², since the rate of a
//! classic congestion control is proportional to the inverse of the root of its signals, and L4S
//! packets are marked with probability k p. That is what makes the rates of both kinds equal. A
//! threshold of the delay marks L4S packets as well.

use std::collections::VecDeque;

use rand::RngExt;
use rand::rngs::StdRng;

use crate::path::queue::Waiting;
use crate::path::{Content, Ecn, Nanos, Packet, nanos};
use crate::scenario::{self, MTU};

use super::{FEW_BYTES, Limits, Taken};

/// Gains of the controller per second: of the distance to the target, and of the change.
const ALPHA: f64 = 0.16;
const BETA: f64 = 3.2;

/// The two queues, their scheduler and their controller.
#[derive(Debug)]
pub(in crate::path) struct DualPi2Queue<B> {
    limits: Limits,
    classic: VecDeque<Waiting<B>>,
    l4s: VecDeque<Waiting<B>>,
    bytes: u64,
    scheduler: Scheduler,
    controller: Controller,
    random: StdRng,
    /// Delay from which L4S packets are marked, ns.
    step: Nanos,
    coupling: f64,
}

/// A weighted round robin of the two queues. Its credit is positive when it is the classic queue's
/// turn.
#[derive(Debug)]
struct Scheduler {
    credit: i64,
    /// Weights of the classic and of the L4S queue, percent.
    classic: i64,
    l4s: i64,
}

/// The controller of the probability.
#[derive(Debug)]
struct Controller {
    target: Nanos,
    period: Nanos,
    next_update: Nanos,
    probability: f64,
    /// Delay at the last run, ns.
    former_delay: Nanos,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Mark,
    Drop,
}

impl<B: Content> DualPi2Queue<B> {
    pub(super) fn new(model: &scenario::Queue, dual: &scenario::DualPi2, random: StdRng) -> Self {
        let period = nanos(dual.update).max(1);
        Self {
            limits: Limits::new(model),
            classic: VecDeque::new(),
            l4s: VecDeque::new(),
            bytes: 0,
            scheduler: Scheduler::new(dual.classic_percent.into()),
            controller: Controller {
                target: nanos(dual.target),
                period,
                next_update: period,
                probability: 0.0,
                former_delay: 0,
            },
            random,
            step: nanos(dual.step),
            coupling: dual.coupling.into(),
        }
    }

    pub(super) fn enqueue(&mut self, waiting: Waiting<B>, dropped: &mut Vec<Packet<B>>) {
        self.catch_up(waiting.arrived);
        let bytes = self.bytes + u64::from(waiting.packet.bytes);
        let packets = self.classic.len() + self.l4s.len() + 1;
        if !self.limits.hold(packets, bytes) {
            return dropped.push(waiting.packet);
        }
        self.bytes = bytes;
        match waiting.packet.body.ecn() {
            Ecn::Ect1 | Ecn::Ce => self.l4s.push_back(waiting),
            Ecn::NotEct | Ecn::Ect0 => self.classic.push_back(waiting),
        }
    }

    pub(super) fn dequeue(&mut self, now: Nanos, dropped: &mut Vec<Packet<B>>) -> Option<Taken<B>> {
        self.catch_up(now);
        loop {
            let both = !self.classic.is_empty() && !self.l4s.is_empty();
            let from_l4s = match both {
                true => self.scheduler.prefers_l4s(),
                false => !self.l4s.is_empty(),
            };
            let queue = match from_l4s {
                true => &mut self.l4s,
                false => &mut self.classic,
            };
            let Some(waiting) = queue.pop_front() else {
                self.scheduler.reset();
                return None;
            };
            self.bytes -= u64::from(waiting.packet.bytes);
            let delay = now - waiting.arrived;
            let fate = match from_l4s {
                true => self.l4s_fate(delay),
                false => self.classic_fate(waiting.packet.body.ecn()),
            };
            if fate == Fate::Drop {
                dropped.push(waiting.packet);
                continue;
            }
            if both {
                self.scheduler.charge(from_l4s, waiting.packet.bytes);
            }
            let marked = fate == Fate::Mark;
            return Some(Taken { waiting, marked });
        }
    }

    pub(super) fn packets(&self) -> u32 {
        u32::try_from(self.classic.len() + self.l4s.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Runs the controller for all of its times up to `now`.
    fn catch_up(&mut self, now: Nanos) {
        let heads = [self.classic.front(), self.l4s.front()].into_iter();
        let oldest = heads.flatten().map(|head| head.arrived).min();
        self.controller.catch_up(now, oldest);
    }

    /// What happens to a packet of the classic queue (`dualpi2_classic_marking`). When L4S packets
    /// are all marked, which is the overload, marks control nothing any more.
    fn classic_fate(&mut self, ecn: Ecn) -> Fate {
        if self.bytes < FEW_BYTES || !(self.rolls(1.0) && self.rolls(1.0)) {
            return Fate::Pass;
        }
        match ecn.is_capable() && !self.is_overloaded() {
            true => Fate::Mark,
            false => Fate::Drop,
        }
    }

    /// What happens to a packet of the L4S queue that has waited for `delay`
    /// (`dualpi2_scalable_marking`, `do_step_aqm`).
    fn l4s_fate(&mut self, delay: Nanos) -> Fate {
        let mut fate = Fate::Pass;
        if self.bytes >= FEW_BYTES {
            if self.is_overloaded() {
                if self.rolls(1.0) && self.rolls(1.0) {
                    return Fate::Drop;
                }
                fate = Fate::Mark;
            } else if self.rolls(self.coupling) {
                fate = Fate::Mark;
            }
        }
        match delay > self.step {
            true => Fate::Mark,
            false => fate,
        }
    }

    fn is_overloaded(&self) -> bool {
        self.coupling * self.controller.probability > 1.0
    }

    /// Happens with `factor` times the controller's probability.
    fn rolls(&mut self, factor: f64) -> bool {
        self.random.random::<f64>() < factor * self.controller.probability
    }
}

impl Scheduler {
    fn new(classic: i64) -> Self {
        let mut scheduler = Self {
            credit: 0,
            classic,
            l4s: 100 - classic,
        };
        scheduler.reset();
        scheduler
    }

    fn reset(&mut self) {
        self.credit = i64::from(MTU) * (self.classic - self.l4s);
    }

    fn prefers_l4s(&self) -> bool {
        self.credit <= 0
    }

    /// Takes note that one queue sent `bytes` while the other waited.
    fn charge(&mut self, from_l4s: bool, bytes: u32) {
        self.credit += i64::from(bytes)
            * match from_l4s {
                true => self.classic,
                false => -self.l4s,
            };
    }
}

impl Controller {
    /// Runs for all of its times up to `now`, while the packet that waits longest arrived at
    /// `oldest`.
    fn catch_up(&mut self, now: Nanos, oldest: Option<Nanos>) {
        while self.next_update <= now {
            let at = self.next_update;
            self.update(oldest.map_or(0, |arrived| at.saturating_sub(arrived)));
            self.next_update += self.period;
            // While nothing waits, a probability of 0 stays as it is.
            if self.probability == 0.0 && self.former_delay == 0 && oldest.is_none() {
                let missed = now.saturating_sub(self.next_update) / self.period;
                self.next_update += missed * self.period;
            }
        }
    }

    /// One run (`calculate_probability`): `delay` is the longer one of the two queues.
    fn update(&mut self, delay: Nanos) {
        let seconds = |time: Nanos| time as f64 / 1e9;
        let delta = ALPHA * (seconds(delay) - seconds(self.target))
            + BETA * (seconds(delay) - seconds(self.former_delay));
        self.probability = (self.probability + delta).clamp(0.0, 1.0);
        self.former_delay = delay;
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::super::tests::{Body, MS, full};
    use super::*;

    /// A queue at a fixed probability.
    fn queue(probability: f64) -> DualPi2Queue<Body> {
        let model = scenario::Queue {
            packets: Some(10_000),
            ..scenario::Queue::default()
        };
        let dual = scenario::DualPi2::default();
        let mut queue = DualPi2Queue::new(&model, &dual, StdRng::seed_from_u64(5));
        queue.controller.probability = probability;
        queue
    }

    impl DualPi2Queue<Body> {
        fn fill(&mut self, ecn: Ecn, packets: u32) {
            let mut dropped = Vec::new();
            for number in 0..packets {
                self.enqueue(full(0, 0, number, ecn), &mut dropped);
            }
            assert!(dropped.is_empty());
        }

        /// Takes `count` packets at `now` and returns the shares that were marked and dropped.
        fn take(&mut self, count: u32, now: Nanos) -> (f64, f64) {
            let (mut marks, mut taken, mut dropped) = (0, 0, Vec::new());
            while taken + (dropped.len() as u32) < count {
                let packet = self.dequeue(now, &mut dropped).expect("enough packets");
                marks += u32::from(packet.marked);
                taken += 1;
            }
            let share = |packets: u32| f64::from(packets) / f64::from(count);
            (share(marks), share(dropped.len() as u32))
        }
    }

    /// RFC 9332, section 2.1: classic packets meet the square of the probability, and L4S packets k
    /// times the probability.
    #[test]
    fn the_probabilities_are_coupled() {
        let cases = [
            (Ecn::Ect0, 0.2, (0.04, 0.0)),
            (Ecn::NotEct, 0.2, (0.0, 0.04)),
            (Ecn::Ect1, 0.2, (0.4, 0.0)),
            (Ecn::Ce, 0.2, (0.4, 0.0)),
            (Ecn::Ect0, 0.5, (0.25, 0.0)),
            (Ecn::Ect1, 0.5, (1.0, 0.0)),
            // Overload: marks do not help any more.
            (Ecn::Ect0, 0.6, (0.0, 0.36)),
            (Ecn::Ect1, 0.6, (0.64, 0.36)),
        ];
        for (ecn, probability, expected) in cases {
            let mut queue = queue(probability);
            queue.fill(ecn, 10_000);
            let (marked, dropped) = queue.take(9_900, 0);
            let close = |share: f64, expected: f64| (share - expected).abs() < 0.02;
            assert!(
                close(marked, expected.0) && close(dropped, expected.1),
                "{ecn:?} at {probability}: {marked} marked, {dropped} dropped"
            );
        }
    }

    #[test]
    fn l4s_packets_that_waited_are_marked() {
        let mut queue = queue(0.0);
        queue.fill(Ecn::Ect1, 100);
        assert_eq!(queue.take(50, MS), (0.0, 0.0), "at the threshold");
        assert_eq!(queue.take(50, MS + 1), (1.0, 0.0));
        queue.fill(Ecn::Ect0, 100);
        assert_eq!(
            queue.take(100, 10 * MS),
            (0.0, 0.0),
            "it is the other queue's"
        );
    }

    /// Linux's weighted round robin, which stands for the RFC's time-shifted FIFO (section 4.2.2).
    #[test]
    fn the_classic_queue_gets_its_share_and_no_more() {
        let mut queue = queue(0.0);
        queue.fill(Ecn::Ect0, 1_000);
        queue.fill(Ecn::Ect1, 1_000);
        let mut first_classic = None;
        let mut classic = 0;
        for packet in 0..1_000 {
            let taken = queue.dequeue(0, &mut Vec::new()).expect("a packet");
            if taken.waiting.packet.body.ecn == Ecn::Ect0 {
                first_classic.get_or_insert(packet);
                classic += 1;
            }
        }
        assert!((99..=101).contains(&classic), "{classic} of 1000");
        assert_eq!(
            first_classic,
            Some(9),
            "the credit begins with the L4S queue"
        );
        // Alone, either gets everything.
        queue.take(1_000, 0);
        assert_eq!(queue.packets(), 0);
        assert!(queue.dequeue(0, &mut Vec::new()).is_none());
        assert!(queue.scheduler.prefers_l4s());
    }

    #[test]
    fn the_controller_follows_the_longer_delay() {
        let mut queue = queue(0.1);
        queue.fill(Ecn::Ect0, 10);
        // Runs at 16 and 32 ms, when the oldest packet has waited for 16 and 32 ms.
        queue.catch_up(32 * MS);
        let expected = 0.1 + 0.16 * 0.001 + 3.2 * 0.016 + 0.16 * 0.017 + 3.2 * 0.016;
        let probability = queue.controller.probability;
        assert!((probability - expected).abs() < 1e-12, "{probability}");
        // Empty, it falls back to 0, and hours of silence take no time.
        queue.take(10, 32 * MS);
        queue.catch_up(1_000_000_000 * MS);
        assert_eq!(queue.controller.probability, 0.0);
        assert_eq!(queue.controller.next_update % (16 * MS), 0);
        assert!(queue.controller.next_update > 1_000_000_000 * MS);
    }

    #[test]
    fn a_small_backlog_is_left_alone() {
        let mut queue = queue(1.0);
        queue.fill(Ecn::NotEct, 2);
        assert_eq!(queue.take(2, 0), (0.0, 0.0));
    }

    #[test]
    fn both_queues_share_the_limit() {
        let model = scenario::Queue {
            packets: Some(10),
            ..scenario::Queue::default()
        };
        let dual = scenario::DualPi2::default();
        let mut queue = DualPi2Queue::new(&model, &dual, StdRng::seed_from_u64(5));
        let mut dropped = Vec::new();
        for number in 0..14 {
            let ecn = if number % 2 == 0 {
                Ecn::Ect0
            } else {
                Ecn::Ect1
            };
            queue.enqueue(full(0, 0, number, ecn), &mut dropped);
        }
        assert_eq!((queue.packets(), dropped.len()), (10, 4));
    }
}
