//! PIE, the proportional integral controller, enhanced: RFC 8033, as Linux implements it
//! (net/sched/sch_pie.c, Linux 6.18).
//!
//! A controller computes, every 15 ms, the probability with which arriving packets are dropped or
//! marked, from how far the delay is from the target and from how it changes. As in Linux, the
//! delay is that of the last packet that left the queue, and not an estimate from the departure
//! rate.

use std::collections::VecDeque;

use rand::RngExt;
use rand::rngs::StdRng;

use crate::path::queue::{PacketQueue, Waiting};
use crate::path::{Content, Nanos, Packet, nanos};
use crate::scenario;

use super::{FEW_BYTES, Taken};

/// Gains of the controller per second: of the distance to the target, and of the change.
const ALPHA: f64 = 0.125;
const BETA: f64 = 1.25;
/// Time that packets may come in a burst without a drop, ns (`MAX_BURST`).
const MAX_BURST: Nanos = 150_000_000;
/// First run of the controller, ns (`pie_init`).
const FIRST_UPDATE: Nanos = 500_000_000;
/// Packets are dropped instead of marked above this probability (`mark_ecnth`).
const MOST_MARKS: f64 = 0.1;
/// Delay from which the probability rises by [`MOST_STEP`] more at each run, ns.
const LONG_DELAY: Nanos = 250_000_000;
/// Largest rise of the probability at once, where it is 10 % or more.
const MOST_STEP: f64 = 0.02;
/// No packet is dropped while the probabilities since the last drop add up to less than this, and
/// one is dropped for certain from the second value on (section 5.4).
const EARLIEST: f64 = 0.85;
const LATEST: f64 = 8.5;

/// A first-in-first-out queue under PIE.
#[derive(Debug)]
pub(in crate::path) struct PieQueue<B> {
    queue: PacketQueue<B>,
    /// Whether each packet of the queue is marked.
    marks: VecDeque<bool>,
    pie: Pie,
}

/// The state of the controller.
#[derive(Debug)]
struct Pie {
    target: Nanos,
    period: Nanos,
    ecn: bool,
    random: StdRng,
    next_update: Nanos,
    /// Delay of the last packet that left the queue, and what it was at the last run.
    delay: Nanos,
    former_delay: Nanos,
    probability: f64,
    /// Sum of the probabilities since the last drop (`accu_prob`).
    accumulated: f64,
    /// What is left of the burst allowance.
    burst: Nanos,
    /// Time at which the last packet left the queue.
    dequeued: Option<Nanos>,
}

impl<B: Content> PieQueue<B> {
    pub(super) fn new(model: &scenario::Queue, pie: &scenario::Pie, random: StdRng) -> Self {
        Self {
            queue: PacketQueue::new(model),
            marks: VecDeque::new(),
            pie: Pie::new(pie, random),
        }
    }

    pub(super) fn enqueue(&mut self, waiting: Waiting<B>, dropped: &mut Vec<Packet<B>>) {
        self.pie.catch_up(waiting.arrived, self.queue.bytes());
        let has_room = self.queue.has_room(waiting.packet.bytes);
        let signals = has_room && self.pie.signals(self.queue.bytes());
        let marked = signals && self.pie.marks() && waiting.packet.body.ecn().is_capable();
        if !has_room || (signals && !marked) {
            self.pie.accumulated = 0.0;
            return dropped.push(waiting.packet);
        }
        match self.queue.push(waiting) {
            Ok(()) => self.marks.push_back(marked),
            // It had room.
            Err(packet) => dropped.push(packet),
        }
    }

    pub(super) fn dequeue(&mut self, now: Nanos) -> Option<Taken<B>> {
        self.pie.catch_up(now, self.queue.bytes());
        let waiting = self.queue.pop()?;
        let marked = self.marks.pop_front().unwrap_or(false);
        (self.pie).on_dequeue(now, now - waiting.arrived, self.queue.is_empty());
        Some(Taken { waiting, marked })
    }

    pub(super) fn packets(&self) -> u32 {
        self.queue.packets()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.queue.bytes()
    }
}

impl Pie {
    fn new(model: &scenario::Pie, random: StdRng) -> Self {
        Self {
            target: nanos(model.target),
            period: nanos(model.update).max(1),
            ecn: model.ecn,
            random,
            next_update: FIRST_UPDATE,
            delay: 0,
            former_delay: 0,
            probability: 0.0,
            accumulated: 0.0,
            burst: MAX_BURST,
            dequeued: None,
        }
    }

    /// Runs the controller for all of its times up to `now`, since which the queue has had `bytes`.
    fn catch_up(&mut self, now: Nanos, bytes: u64) {
        while self.next_update <= now {
            self.update(bytes);
            self.next_update += self.period;
            // An idle queue whose probability is 0 stays as it is.
            if self.probability == 0.0 && self.delay == 0 && self.former_delay == 0 {
                let missed = now.saturating_sub(self.next_update) / self.period;
                self.next_update += missed * self.period;
            }
        }
    }

    /// One run of the controller (`pie_calculate_probability`).
    fn update(&mut self, bytes: u64) {
        let seconds = |time: Nanos| time as f64 / 1e9;
        let (delay, former) = (seconds(self.delay), seconds(self.former_delay));
        let scale = scale(self.probability);
        let mut delta = scale * (ALPHA * (delay - seconds(self.target)) + BETA * (delay - former));
        if delta > MOST_STEP && self.probability >= 0.1 {
            delta = MOST_STEP;
        }
        if self.delay > LONG_DELAY {
            delta += MOST_STEP;
        }
        self.probability = (self.probability + delta).clamp(0.0, 1.0);
        if self.delay == 0 && self.former_delay == 0 && bytes == 0 {
            // The probability decays while the queue is empty.
            self.probability *= 1.0 - 1.0 / 64.0;
        }
        let half = self.target / 2;
        if self.delay < half && self.former_delay < half && self.probability == 0.0 {
            self.burst = MAX_BURST;
            self.accumulated = 0.0;
            self.dequeued = None;
        }
        self.former_delay = self.delay;
    }

    /// Whether an arriving packet is to be dropped or marked (`pie_drop_early`), while `bytes`
    /// wait.
    fn signals(&mut self, bytes: u64) -> bool {
        let is_short = self.delay < self.target / 2 && self.probability < 0.2;
        if self.burst > 0 || is_short || bytes < FEW_BYTES {
            return false;
        }
        match self.probability {
            0.0 => self.accumulated = 0.0,
            probability => self.accumulated += probability,
        }
        if self.accumulated < EARLIEST {
            return false;
        }
        if self.accumulated >= LATEST {
            return true;
        }
        let signals = self.random.random::<f64>() < self.probability;
        if signals {
            self.accumulated = 0.0;
        }
        signals
    }

    /// Whether ECN-capable packets are marked and not dropped at the present probability.
    fn marks(&self) -> bool {
        self.ecn && self.probability <= MOST_MARKS
    }

    /// Takes note of a packet that left the queue after `delay` (`pie_process_dequeue`).
    fn on_dequeue(&mut self, now: Nanos, delay: Nanos, is_empty: bool) {
        self.delay = if is_empty { 0 } else { delay };
        let since = self.dequeued.map_or(0, |former| now - former);
        self.dequeued = Some(now);
        self.burst = self.burst.saturating_sub(since);
    }
}

/// Factor of the gains at a probability, which keeps the controller stable (section 4.2).
fn scale(probability: f64) -> f64 {
    match probability {
        ..0.000_001 => 1.0 / 2048.0,
        ..0.000_01 => 1.0 / 512.0,
        ..0.000_1 => 1.0 / 128.0,
        ..0.001 => 1.0 / 32.0,
        ..0.01 => 1.0 / 8.0,
        ..0.1 => 1.0 / 2.0,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::super::tests::{Body, MS, full};
    use super::*;
    use crate::path::Ecn;

    fn pie() -> Pie {
        let model = scenario::Pie {
            ecn: true,
            ..scenario::Pie::default()
        };
        Pie::new(&model, StdRng::seed_from_u64(3))
    }

    fn assert_near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-12, "{value}, not {expected}");
    }

    /// The update of the drop probability (RFC 8033, section 4.2).
    #[test]
    fn the_probability_follows_the_delay() {
        let mut pie = pie();
        (pie.probability, pie.former_delay, pie.delay) = (0.2, 30 * MS, 35 * MS);
        pie.update(100_000);
        assert_near(pie.probability, 0.2 + 0.125 * 0.020 + 1.25 * 0.005);
        assert_eq!(pie.former_delay, 35 * MS);

        // A tenth of the probability, an eighth of the gains: it falls with the delay.
        (pie.probability, pie.delay) = (0.009, 25 * MS);
        pie.update(100_000);
        assert_near(
            pie.probability,
            0.009 + (0.125 * 0.010 - 1.25 * 0.010) / 8.0,
        );
        (pie.probability, pie.delay, pie.former_delay) = (0.000_5, 0, 100 * MS);
        pie.update(100_000);
        assert_eq!(pie.probability, 0.0, "never below 0");
    }

    #[test]
    fn the_gains_are_scaled_with_the_probability() {
        let table = [
            (0.0, 2048.0),
            (0.000_000_9, 2048.0),
            (0.000_001, 512.0),
            (0.000_01, 128.0),
            (0.000_1, 32.0),
            (0.001, 8.0),
            (0.01, 2.0),
            (0.1, 1.0),
            (1.0, 1.0),
        ];
        for (probability, divisor) in table {
            assert_eq!(scale(probability), 1.0 / divisor, "at {probability}");
        }
    }

    /// Sections 5.2 and 5.3: small steps where the probability is high, and more of them when the
    /// delay is very long.
    #[test]
    fn the_steps_are_limited() {
        let mut pie = pie();
        (pie.probability, pie.former_delay, pie.delay) = (0.1, 0, 200 * MS);
        pie.update(100_000);
        assert_near(pie.probability, 0.12);
        (pie.delay, pie.former_delay) = (251 * MS, 0);
        pie.update(100_000);
        assert_near(pie.probability, 0.16);
    }

    #[test]
    fn an_empty_queue_forgets() {
        let mut pie = pie();
        pie.probability = 0.5;
        pie.update(0);
        let fallen = 0.5 - 0.125 * 0.015;
        assert_near(pie.probability, fallen * (1.0 - 1.0 / 64.0));
        (pie.burst, pie.accumulated) = (0, 0.5);
        pie.catch_up(100_000 * MS, 0);
        assert_eq!(pie.probability, 0.0);
        assert_eq!(
            (pie.burst, pie.accumulated),
            (MAX_BURST, 0.0),
            "a burst may come again"
        );
        // Hours of silence take no time, and the controller keeps its times.
        pie.catch_up(1_000_000_000 * MS, 0);
        let next = pie.next_update;
        assert!(next > 1_000_000_000 * MS && next <= 1_000_000_015 * MS);
        assert_eq!((next - FIRST_UPDATE) % (15 * MS), 0);
    }

    /// The allowance for bursts (RFC 8033, section 4.4).
    #[test]
    fn a_burst_passes() {
        let mut pie = pie();
        (pie.probability, pie.delay) = (1.0, 50 * MS);
        for now in 0..=150 {
            assert!(!pie.signals(100_000), "at {now} ms");
            pie.on_dequeue(now * MS, 50 * MS, false);
        }
        assert_eq!(pie.burst, 0);
        assert!(pie.signals(100_000));
    }

    #[test]
    fn short_delays_and_small_backlogs_are_left_alone() {
        let mut pie = pie();
        (pie.probability, pie.burst) = (0.19, 0);
        pie.delay = 7 * MS;
        assert!((0..1_000).all(|_| !pie.signals(100_000)));
        pie.delay = 8 * MS;
        assert!((0..1_000).all(|_| !pie.signals(2_999)));
        assert!((0..1_000).any(|_| pie.signals(3_000)));
    }

    /// Section 5.4: drops are spread out.
    #[test]
    fn drops_are_neither_close_together_nor_far_apart() {
        let mut pie = pie();
        (pie.probability, pie.burst, pie.delay) = (0.05, 0, 20 * MS);
        let mut last = None;
        let mut drops = 0;
        for packet in 0..100_000 {
            if pie.signals(100_000) {
                // As the queue does for a drop.
                pie.accumulated = 0.0;
                if let Some(last) = last.replace(packet) {
                    assert!((17..=171).contains(&(packet - last)), "{}", packet - last);
                }
                drops += 1;
            }
        }
        // 16 packets in which none is dropped, then one in 20.
        assert!((2_500..3_000).contains(&drops), "{drops}");
    }

    #[test]
    fn packets_are_marked_up_to_a_tenth() {
        let signals = |probability, ecn| {
            let model = scenario::Queue {
                packets: Some(1_000),
                ..scenario::Queue::default()
            };
            let mut queue: PieQueue<Body> = PieQueue {
                queue: PacketQueue::new(&model),
                marks: VecDeque::new(),
                pie: pie(),
            };
            (queue.pie.probability, queue.pie.burst) = (probability, 0);
            queue.pie.delay = 20 * MS;
            let mut dropped = Vec::new();
            for number in 0..1_000 {
                queue.enqueue(full(0, 0, number, ecn), &mut dropped);
            }
            let marks = queue.marks.iter().filter(|&&marked| marked).count();
            assert_eq!(queue.marks.len(), queue.queue.packets() as usize);
            (marks > 0, !dropped.is_empty())
        };
        assert_eq!(signals(0.1, Ecn::Ect0), (true, false));
        assert_eq!(signals(0.1, Ecn::NotEct), (false, true));
        assert_eq!(signals(0.11, Ecn::Ect0), (false, true));
    }
}
