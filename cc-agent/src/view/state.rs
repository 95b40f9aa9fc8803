//! What the live view remembers between two drawings.

use std::{collections::VecDeque, sync::Arc};

use ratatui::crossterm::event::KeyCode;

use cc_core::status::{FlowView, Recent, Snapshot};

/// Rates are those of about this long, s: several windows, and still what one sees change.
const RECENT_S: f64 = 2.0;
/// Points of the curves: at least as many as a wide terminal has columns.
const POINTS: usize = 512;
/// Flows that a page key moves by.
const PAGE: usize = 20;

/// What the flows are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// By delivery rate, the highest first.
    #[default]
    Rate,
    /// By cwnd, the largest first.
    Cwnd,
    /// By smoothed RTT, the longest first.
    Rtt,
    /// By queueing delay, the longest first.
    Queue,
    /// By loss, the highest share first.
    Loss,
    /// By decision delay, the longest first.
    Delay,
    /// By slot, the lowest first.
    Slot,
}

impl Sort {
    /// Every order, with its key and its name.
    pub const ALL: [(char, &str, Self); 7] = [
        ('r', "rate", Self::Rate),
        ('c', "cwnd", Self::Cwnd),
        ('t', "srtt", Self::Rtt),
        ('d', "queue", Self::Queue),
        ('l', "loss", Self::Loss),
        ('p', "delay", Self::Delay),
        ('s', "slot", Self::Slot),
    ];

    fn value(self, flow: &FlowView) -> f64 {
        match self {
            Self::Rate => flow.rate_mbps,
            Self::Cwnd => f64::from(flow.cwnd),
            Self::Rtt => flow.srtt_ms,
            Self::Queue => flow.queue_ms,
            Self::Loss => flow.loss,
            Self::Delay => flow.decision_delay_ms,
            Self::Slot => -f64::from(flow.slot),
        }
    }
}

/// What the live view remembers: how to show the flows, and the last while.
#[derive(Clone, Debug, Default)]
pub struct ViewState {
    sort: Sort,
    first: usize,
    recent: Recent,
    /// The snapshots of the last [`RECENT_S`], oldest first.
    trail: VecDeque<Arc<Snapshot>>,
    rates_kbps: VecDeque<u64>,
    queues_us: VecDeque<u64>,
}

impl ViewState {
    /// Takes the snapshot that is to be drawn next.
    pub fn observe(&mut self, snapshot: &Arc<Snapshot>) {
        if let Some(last) = self.trail.back() {
            if Arc::ptr_eq(last, snapshot) || **last == **snapshot {
                return;
            }
            if !snapshot.continues(last) {
                // Another agent: its figures do not go on from these.
                *self = Self {
                    sort: self.sort,
                    ..Self::default()
                };
            }
        }
        self.trail.push_back(Arc::clone(snapshot));
        while self
            .trail
            .get(1)
            .is_some_and(|next| snapshot.uptime_s - next.uptime_s >= RECENT_S)
        {
            self.trail.pop_front();
        }
        self.recent = snapshot.since(self.trail.front().map(Arc::as_ref));
        for (points, value) in [
            (&mut self.rates_kbps, self.recent.rate_mbps),
            (&mut self.queues_us, self.recent.queue_ms),
        ] {
            points.push_back((value * 1e3) as u64);
            if points.len() > POINTS {
                points.pop_front();
            }
        }
        self.first = self.first.min(snapshot.flows.len().saturating_sub(1));
    }

    /// Changes the order or scrolls, as the key says.
    pub fn on_key(&mut self, key: KeyCode) {
        self.first = match key {
            KeyCode::Down => self.first + 1,
            KeyCode::Up => self.first.saturating_sub(1),
            KeyCode::PageDown => self.first + PAGE,
            KeyCode::PageUp => self.first.saturating_sub(PAGE),
            KeyCode::Home => 0,
            KeyCode::Char(pressed) => {
                if let Some(&(.., sort)) = Sort::ALL.iter().find(|(key, ..)| *key == pressed) {
                    self.sort = sort;
                }
                self.first
            }
            _ => self.first,
        };
    }

    /// What the flows are sorted by.
    pub fn sort(&self) -> Sort {
        self.sort
    }

    /// What happened in the last two seconds.
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// The flows of `snapshot` that `rows` rows have place for, in order. Flows from which nothing
    /// came come last.
    pub(super) fn rows<'a>(&self, snapshot: &'a Snapshot, rows: usize) -> Vec<&'a FlowView> {
        let mut flows: Vec<&FlowView> = snapshot.flows.iter().collect();
        flows.sort_by(|a, b| {
            let quiet = |flow| self.sort != Sort::Slot && self.recent.is_quiet(flow);
            let value = |flow| self.sort.value(flow);
            let order = quiet(a).cmp(&quiet(b));
            order
                .then(value(b).total_cmp(&value(a)))
                .then(a.slot.cmp(&b.slot))
        });
        let first = self.first.min(flows.len().saturating_sub(rows));
        flows.into_iter().skip(first).take(rows).collect()
    }

    /// The last `points` total rates, kbit/s, oldest first.
    pub(super) fn rates_kbps(&self, points: usize) -> impl Iterator<Item = u64> {
        newest(&self.rates_kbps, points)
    }

    /// The last `points` longest queueing delays, µs, oldest first.
    pub(super) fn queues_us(&self, points: usize) -> impl Iterator<Item = u64> {
        newest(&self.queues_us, points)
    }
}

fn newest(points: &VecDeque<u64>, most: usize) -> impl Iterator<Item = u64> {
    points
        .iter()
        .copied()
        .skip(points.len().saturating_sub(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc_core::status::samples::busy;

    #[test]
    fn rates_are_those_of_the_last_two_seconds() {
        let mut state = ViewState::default();
        let mut snapshot = busy(1);
        for _ in 0..50 {
            snapshot.uptime_s += 0.25;
            snapshot.agent.decisions += 10;
            snapshot.flows[0].window += 1;
            state.observe(&Arc::new(snapshot.clone()));
        }
        assert_eq!(state.recent().seconds, 2.0);
        assert_eq!(state.recent().decisions_per_s, 40.0);
        assert_eq!(state.rates_kbps(3).collect::<Vec<_>>(), [1_000; 3]);
        // Seen again, it is not counted again.
        state.observe(&Arc::new(snapshot.clone()));
        assert_eq!(state.rates_kbps(100).count(), 50);
        // A restarted agent begins anew.
        snapshot.pid += 1;
        snapshot.uptime_s = 1.0;
        state.observe(&Arc::new(snapshot));
        assert_eq!(state.queues_us(100).count(), 1);
    }

    #[test]
    fn flows_come_in_the_order_of_the_key() {
        let mut snapshot = busy(4);
        snapshot.flows[2].loss = 0.5;
        let mut state = ViewState::default();
        let slots = |state: &ViewState, snapshot: &Snapshot| -> Vec<u32> {
            state
                .rows(snapshot, 3)
                .iter()
                .map(|flow| flow.slot)
                .collect()
        };
        assert_eq!(slots(&state, &snapshot), [3, 2, 1]);
        state.on_key(KeyCode::Char('l'));
        assert_eq!(slots(&state, &snapshot), [2, 0, 1]);
        state.on_key(KeyCode::Char('s'));
        assert_eq!(slots(&state, &snapshot), [0, 1, 2]);
        state.on_key(KeyCode::Char('x'));
        state.on_key(KeyCode::PageDown);
        assert_eq!(slots(&state, &snapshot), [1, 2, 3]);
        // Scrolling far beyond the end takes no equal number of steps back.
        state.observe(&Arc::new(snapshot.clone()));
        state.on_key(KeyCode::Up);
        state.on_key(KeyCode::Up);
        state.on_key(KeyCode::Up);
        assert_eq!(slots(&state, &snapshot), [0, 1, 2]);
    }

    #[test]
    fn flows_that_say_nothing_come_last() {
        let mut state = ViewState::default();
        let mut snapshot = busy(3);
        state.observe(&Arc::new(snapshot.clone()));
        snapshot.uptime_s += 1.0;
        snapshot.flows[0].window += 1;
        state.observe(&Arc::new(snapshot.clone()));
        let slots: Vec<u32> = state
            .rows(&snapshot, 9)
            .iter()
            .map(|flow| flow.slot)
            .collect();
        assert_eq!(slots, [0, 2, 1]);
        assert_eq!(state.recent().rate_mbps, 1.0);
    }
}
