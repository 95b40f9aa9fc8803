//! What the live view remembers between two drawings.

use std::{
    collections::{HashMap, VecDeque},
    str::FromStr,
    sync::Arc,
};

use ratatui::crossterm::event::KeyCode;

use super::filter::Filter;
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
    /// By age, the oldest first.
    Age,
    /// By slot, the lowest first.
    Slot,
}

impl Sort {
    /// Every order, with its key and its name.
    pub const ALL: [(char, &str, Self); 8] = [
        ('r', "rate", Self::Rate),
        ('c', "cwnd", Self::Cwnd),
        ('t', "srtt", Self::Rtt),
        ('d', "queue", Self::Queue),
        ('l', "loss", Self::Loss),
        ('p', "delay", Self::Delay),
        ('a', "age", Self::Age),
        ('s', "slot", Self::Slot),
    ];

    /// Its name, as options have it.
    pub(crate) fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(.., sort)| *sort == self);
        found.map_or("", |(_, name, _)| name)
    }

    /// Where a flow comes in this order at `now_ns`, the highest first: those from which nothing
    /// came of late come after the others, unless the order is one of age or place.
    pub(crate) fn rank(self, flow: &FlowView, now_ns: u64) -> (bool, f64) {
        let age_s = now_ns.saturating_sub(flow.seen_ns) as f64 / 1e9;
        let is_first = matches!(self, Self::Slot | Self::Age) || age_s < RECENT_S;
        (is_first, self.value(flow))
    }

    fn value(self, flow: &FlowView) -> f64 {
        match self {
            Self::Rate => flow.rate_mbps,
            Self::Cwnd => f64::from(flow.cwnd),
            Self::Rtt => flow.srtt_ms,
            Self::Queue => flow.queue_ms,
            Self::Loss => flow.loss,
            Self::Delay => flow.decision_delay_ms,
            Self::Age => -(flow.opened_ns as f64),
            Self::Slot => -f64::from(flow.slot),
        }
    }
}

impl FromStr for Sort {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, known, _)| *known == name);
        found.map(|&(.., sort)| sort).ok_or_else(|| {
            let names = Self::ALL.map(|(_, known, _)| known);
            format!("`{name}`: expected one of {}", names.join(", "))
        })
    }
}

/// Names a flow: its slot and generation.
type Key = (u32, u32);

fn key(flow: &FlowView) -> Key {
    (flow.slot, flow.generation)
}

/// What was seen of a flow while the view was open, a point for each snapshot, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    pub(super) rates_kbps: VecDeque<u64>,
    pub(super) srtts_us: VecDeque<u64>,
    pub(super) cwnds: VecDeque<u64>,
    pub(super) losses_ppm: VecDeque<u64>,
}

impl Past {
    /// Adds a point. A flow from which nothing came has no rate, and is otherwise as it was.
    fn add(&mut self, flow: &FlowView, is_quiet: bool) {
        let rate_mbps = if is_quiet { 0.0 } else { flow.rate_mbps };
        for (points, value) in [
            (&mut self.rates_kbps, rate_mbps * 1e3),
            (&mut self.srtts_us, flow.srtt_ms * 1e3),
            (&mut self.cwnds, f64::from(flow.cwnd)),
            (&mut self.losses_ppm, flow.loss * 1e6),
        ] {
            push(points, value as u64);
        }
    }
}

fn push(points: &mut VecDeque<u64>, value: u64) {
    points.push_back(value);
    if points.len() > POINTS {
        points.pop_front();
    }
}

/// What the live view remembers: how to show the flows, and the last while.
#[derive(Clone, Debug, Default)]
pub struct ViewState {
    sort: Sort,
    filter: Filter,
    /// The filter that is being written, and what is wrong with it; `None` while none is.
    draft: Option<(String, Option<String>)>,
    /// The row of the chosen flow among the flows that are shown.
    chosen: usize,
    /// The flow whose past is shown; `None` while none is.
    opened: Option<Key>,
    pasts: HashMap<Key, Past>,
    recent: Recent,
    /// The snapshots of the last [`RECENT_S`], oldest first.
    trail: VecDeque<Arc<Snapshot>>,
    rates_kbps: VecDeque<u64>,
    queues_us: VecDeque<u64>,
}

impl ViewState {
    /// A view that begins with this order, and with the flows that `filter` shows.
    pub fn new(sort: Sort, filter: Filter) -> Self {
        Self {
            sort,
            filter,
            ..Self::default()
        }
    }

    /// Takes the snapshot that is to be drawn next.
    pub fn observe(&mut self, snapshot: &Arc<Snapshot>) {
        if let Some(last) = self.trail.back() {
            if Arc::ptr_eq(last, snapshot) || **last == **snapshot {
                return;
            }
            if !snapshot.continues(last) {
                // Another agent: its figures do not go on from these.
                *self = Self {
                    draft: self.draft.take(),
                    ..Self::new(self.sort, std::mem::take(&mut self.filter))
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
            push(points, (value * 1e3) as u64);
        }
        let mut former = std::mem::take(&mut self.pasts);
        for flow in &snapshot.flows {
            let mut past = former.remove(&key(flow)).unwrap_or_default();
            past.add(flow, self.recent.is_quiet(flow));
            self.pasts.insert(key(flow), past);
        }
        // A flow that has closed is shown until the user has seen that.
        if let Some((opened, past)) = self.opened.and_then(|opened| former.remove_entry(&opened)) {
            self.pasts.insert(opened, past);
        }
        self.stay_in_range(snapshot);
    }

    /// Takes a key. Returns false when it means nothing here, so that it may end the view.
    pub fn on_key(&mut self, key: KeyCode) -> bool {
        if self.draft.is_some() {
            self.write_filter(key);
            return true;
        }
        self.chosen = match key {
            KeyCode::Down => self.chosen + 1,
            KeyCode::Up => self.chosen.saturating_sub(1),
            KeyCode::PageDown => self.chosen + PAGE,
            KeyCode::PageUp => self.chosen.saturating_sub(PAGE),
            KeyCode::Home => 0,
            KeyCode::Enter => {
                self.opened = self.chosen_flow();
                return true;
            }
            KeyCode::Esc => return self.opened.take().is_some(),
            KeyCode::Char('/') => {
                self.draft = Some((self.filter.to_string(), None));
                return true;
            }
            KeyCode::Char(pressed) => {
                let Some(&(.., sort)) = Sort::ALL.iter().find(|(key, ..)| *key == pressed) else {
                    return false;
                };
                self.sort = sort;
                return true;
            }
            _ => return false,
        };
        if let Some(latest) = self.trail.back().cloned() {
            self.stay_in_range(&latest);
        }
        true
    }

    /// Takes a key of the filter that is being written.
    fn write_filter(&mut self, key: KeyCode) {
        let Some((text, problem)) = &mut self.draft else {
            return;
        };
        match key {
            KeyCode::Enter => match text.parse() {
                Ok(filter) => {
                    self.filter = filter;
                    self.draft = None;
                    self.chosen = 0;
                }
                Err(error) => *problem = Some(error),
            },
            KeyCode::Esc => self.draft = None,
            KeyCode::Backspace => {
                text.pop();
                *problem = None;
            }
            KeyCode::Char(pressed) => {
                text.push(pressed);
                *problem = None;
            }
            _ => {}
        }
    }

    fn chosen_flow(&self) -> Option<Key> {
        let latest = self.trail.back()?;
        self.ordered(latest).get(self.chosen).map(|flow| key(flow))
    }

    fn stay_in_range(&mut self, snapshot: &Snapshot) {
        let shown = self.shown(snapshot);
        self.chosen = self.chosen.min(shown.saturating_sub(1));
    }

    /// Number of flows that the filter shows, of those of `snapshot`.
    pub(super) fn shown(&self, snapshot: &Snapshot) -> usize {
        let flows = snapshot.flows.iter();
        flows.filter(|flow| self.filter.shows(flow)).count()
    }

    /// The condition that flows must meet to be shown.
    pub(super) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The filter that is being written, and what is wrong with it; `None` while none is.
    pub(super) fn draft(&self) -> Option<(&str, Option<&str>)> {
        let (text, problem) = self.draft.as_ref()?;
        Some((text, problem.as_deref()))
    }

    /// The past of the flow that was opened, and the flow while it is live; `None` while no flow is
    /// opened.
    pub(super) fn opened<'a>(
        &self,
        snapshot: &'a Snapshot,
    ) -> Option<(Key, &Past, Option<&'a FlowView>)> {
        let opened = self.opened?;
        let flow = snapshot.flows.iter().find(|flow| key(flow) == opened);
        Some((opened, self.pasts.get(&opened)?, flow))
    }

    /// What the agent is asked for where there are more flows than its status shows.
    pub(super) fn question(&self) -> (Sort, &Filter) {
        (self.sort, &self.filter)
    }

    /// What the flows are sorted by.
    pub fn sort(&self) -> Sort {
        self.sort
    }

    /// What happened in the last two seconds.
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// The flows of `snapshot` that the filter shows and `rows` rows have place for, in order, each
    /// with whether it is the chosen one. Flows from which nothing came come last.
    pub(super) fn rows<'a>(
        &self,
        snapshot: &'a Snapshot,
        rows: usize,
    ) -> Vec<(bool, &'a FlowView)> {
        let flows = self.ordered(snapshot).into_iter();
        let first = (self.chosen + 1).saturating_sub(rows);
        let numbered = flows.enumerate().skip(first).take(rows);
        numbered
            .map(|(row, flow)| (row == self.chosen, flow))
            .collect()
    }

    fn ordered<'a>(&self, snapshot: &'a Snapshot) -> Vec<&'a FlowView> {
        let flows = snapshot.flows.iter();
        let mut flows: Vec<&FlowView> = flows.filter(|flow| self.filter.shows(flow)).collect();
        flows.sort_by(|a, b| {
            let quiet =
                |flow| !matches!(self.sort, Sort::Slot | Sort::Age) && self.recent.is_quiet(flow);
            let value = |flow| self.sort.value(flow);
            let order = quiet(a).cmp(&quiet(b));
            order
                .then(value(b).total_cmp(&value(a)))
                .then(a.slot.cmp(&b.slot))
        });
        flows
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

/// The last `most` points, the oldest first.
pub(super) fn newest(points: &VecDeque<u64>, most: usize) -> impl Iterator<Item = u64> {
    points
        .iter()
        .copied()
        .skip(points.len().saturating_sub(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc_core::status::samples::busy;
    use cc_ebpf::Mode;

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
                .map(|(_, flow)| flow.slot)
                .collect()
        };
        state.observe(&Arc::new(snapshot.clone()));
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
    fn a_filter_is_written_and_corrected() {
        let mut state = ViewState::default();
        let mut snapshot = busy(4);
        snapshot.flows[1].mode = Mode::Fallback;
        state.observe(&Arc::new(snapshot.clone()));
        let write = |state: &mut ViewState, text: &str| {
            for pressed in text.chars() {
                assert!(state.on_key(KeyCode::Char(pressed)));
            }
            state.on_key(KeyCode::Enter);
        };
        // Its letters are no keys of orders, and q does not quit.
        write(&mut state, "/10.0.0.0/99q");
        let (text, problem) = state.draft().expect("it is wrong");
        assert!(text.ends_with("99q") && problem.is_some());
        state.on_key(KeyCode::Esc);
        assert_eq!((state.draft(), state.shown(&snapshot)), (None, 4));
        write(&mut state, "/fallbackk");
        assert_eq!(state.shown(&snapshot), 0);
        state.on_key(KeyCode::Char('/'));
        state.on_key(KeyCode::Backspace);
        state.on_key(KeyCode::Enter);
        assert_eq!(state.shown(&snapshot), 1);
        assert_eq!(state.rows(&snapshot, 5)[0].1.slot, 1);
        assert_eq!(state.sort(), Sort::Rate);
    }

    #[test]
    fn the_past_of_a_flow_goes_on_until_it_is_left() {
        let mut state = ViewState::default();
        let mut snapshot = busy(2);
        for cwnd in [10, 20, 30] {
            snapshot.uptime_s += 0.2;
            snapshot.flows[1].window += 1;
            snapshot.flows[1].cwnd = cwnd;
            state.observe(&Arc::new(snapshot.clone()));
        }
        assert!(state.opened(&snapshot).is_none());
        state.on_key(KeyCode::Enter);
        let (key, past, flow) = state.opened(&snapshot).expect("the first one");
        assert_eq!((key, flow.map(|flow| flow.cwnd)), ((1, 1), Some(30)));
        assert_eq!(past.cwnds, [10, 20, 30]);
        assert_eq!(past.rates_kbps, [2_000; 3]);
        // Another order moves rows, and not the flow that was opened. It closes.
        state.on_key(KeyCode::Char('s'));
        snapshot.uptime_s += 0.2;
        snapshot.flows.pop();
        state.observe(&Arc::new(snapshot.clone()));
        let (key, past, flow) = state.opened(&snapshot).expect("it is still looked at");
        assert_eq!((key, past.cwnds.len(), flow), ((1, 1), 3, None));
        assert!(state.on_key(KeyCode::Esc));
        assert!(state.opened(&snapshot).is_none());
        assert!(!state.on_key(KeyCode::Esc), "it may end the view");
    }

    #[test]
    fn orders_are_known_by_their_names() {
        assert_eq!("age".parse(), Ok(Sort::Age));
        let error = "weight".parse::<Sort>().expect_err("no such order");
        assert!(error.contains("rate, cwnd"), "{error}");
        assert!(Sort::ALL.iter().all(|(_, name, sort)| sort.name() == *name));
        let mut state = ViewState::new(Sort::Age, Filter::default());
        let mut snapshot = busy(3);
        snapshot.flows[1].opened_ns = 5;
        state.observe(&Arc::new(snapshot.clone()));
        assert_eq!(state.rows(&snapshot, 1)[0].1.slot, 1);
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
            .map(|(_, flow)| flow.slot)
            .collect();
        assert_eq!(slots, [0, 2, 1]);
        assert_eq!(state.recent().rate_mbps, 1.0);
    }
}
