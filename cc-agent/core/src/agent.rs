//! The agent's core: which flows there are, which wait for a decision, and what was decided.
//!
//! Pure: records come in with the time, queries for the policy come out, its choices come in and
//! decisions to publish come out. No sockets, no clocks, no maps; the agent's event loop does the I/O.
//!
//! A flow has at most one query out. Windows that end meanwhile replace each other, so that a late
//! policy answers each flow's newest window; the replaced ones are counted as skipped.

use std::{collections::VecDeque, sync::Arc};

use cc_ebpf::{Decision, Feature, Flow, Header, Identity, Mode, Record, WindowRecord};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::{
    canary::{Breach, Flows, GuardRails, Share, Side, SideReport, Tally, breach},
    interface::Interface,
    observation::{History, observe},
    policy::{Choice, Query, State},
    reward::Terms,
    rows::{
        Addresses, Decided, Episodes, FileHeader, Recorded,
        buffer::{Book, Episode},
    },
    silence::Silences,
};

/// What happened to windows and flows on the agent's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Flows opened, or adopted from a former agent.
    pub flows: u64,
    /// Flows whose opened record was lost and that were found by a later one.
    pub flows_found_late: u64,
    /// Windows received or closed by the agent.
    pub windows: u64,
    /// Windows of silent flows that the agent closed itself.
    pub windows_closed_silent: u64,
    /// Windows that a newer one replaced before the policy got to it.
    pub windows_skipped: u64,
    /// Windows that never arrived.
    pub windows_missed: u64,
    /// Decisions published.
    pub decisions: u64,
    /// Decisions later than 20 ms after the window's end.
    pub decisions_late: u64,
    /// Answers that were not finite: the flow kept its window.
    pub answers_invalid: u64,
    /// Answers for flows that had closed meanwhile, and those of a policy that another had replaced meanwhile.
    pub answers_orphaned: u64,
}

/// A decision later than this counts as late, ns.
const LATE_NS: u64 = 20_000_000;

/// Longer delays count as this, µs.
const LONGEST_DELAY_US: u64 = 60_000_000;

/// Names a flow: its slot and the slot's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// The slot.
    pub slot: u32,
    /// Its generation.
    pub generation: u32,
}

impl FlowId {
    /// The flow that a slot's state is of.
    pub(crate) fn of(flow: &Flow) -> Self {
        Self {
            slot: flow.opened.header.slot,
            generation: flow.generation,
        }
    }

    /// The flow that a record is of.
    pub(crate) fn named_by(header: &Header) -> Self {
        Self {
            slot: header.slot,
            generation: header.generation,
        }
    }
}

/// Queries that wait for the policy, and for which flows and windows they are.
#[derive(Debug, Default)]
pub struct Batch {
    side: Side,
    /// Which policies there were when it was made.
    epoch: u32,
    tickets: Vec<Ticket>,
    /// The queries, for [`crate::policy::Policy::decide`].
    pub queries: Vec<Query>,
}

#[derive(Clone, Copy, Debug)]
struct Ticket {
    flow: FlowId,
    window: u32,
    end_ns: u64,
    mss: u32,
}

impl Batch {
    /// Number of queries.
    pub fn len(&self) -> usize {
        self.queries.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.queries.is_empty()
    }

    /// Which policy is to answer.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The slot of the flow that a query is of.
    pub fn slot(&self, query: usize) -> Option<u32> {
        self.tickets.get(query).map(|ticket| ticket.flow.slot)
    }
}

/// A policy, as far as the agent's core knows it.
#[derive(Clone, Debug)]
pub struct Served {
    /// What its observations, actions and rewards are made of.
    pub interface: Interface,
    /// What the files of its rows say; none where nothing is recorded.
    pub header: Option<Arc<FileHeader>>,
}

/// How a trial stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialReport {
    /// Share of the new flows that the candidate has, percent.
    pub percent: f64,
    /// The current policy's flows.
    pub current: SideReport,
    /// The candidate's flows.
    pub candidate: SideReport,
}

/// A flow as the live view shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// Slot and generation.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// Local address and port.
    pub local: std::net::SocketAddr,
    /// Remote address and port.
    pub remote: std::net::SocketAddr,
    /// Id of its cgroup, 0 unknown.
    pub cgroup_id: u64,
    /// Windows so far.
    pub window: u32,
    /// What sets its window: `startup`, `decided`, `after-timeout`, `fallback`.
    pub mode: String,
    /// Window in segments at the end of the last window.
    pub cwnd: u32,
    /// Mean delivery rate of the last window, Mbit/s.
    pub rate_mbps: f64,
    /// Smoothed RTT, ms.
    pub srtt_ms: f64,
    /// Mean queueing delay of the last window, ms.
    pub queue_ms: f64,
    /// Lost of acknowledged and lost bytes in the last window.
    pub loss: f64,
    /// The last action, as the action space writes it, or the window that was set.
    pub action: String,
    /// From the last window's end to the publication of its decision, ms.
    pub decision_delay_ms: f64,
    /// Decisions published for it.
    pub decisions: u64,
    /// Median of their delays, ms, to 6 %; 0 before the first, as the next two.
    pub decision_delay_p50_ms: f64,
    /// 99 % of their delays are at most this, ms, to 6 %.
    pub decision_delay_p99_ms: f64,
    /// Largest of their delays, ms.
    pub decision_delay_max_ms: f64,
    /// When its last record came, ns.
    pub seen_ns: u64,
}

#[derive(Debug)]
struct FlowEntry {
    generation: u32,
    identity: Identity,
    history: History,
    state: State,
    /// The newest window that waits.
    pending: Option<WindowRecord>,
    /// A query of this flow is with the policy.
    asked: bool,
    /// Index of the newest window seen.
    newest: u32,
    last: Option<WindowRecord>,
    /// Window of the last decision published.
    published: Option<u32>,
    action: String,
    delays: Delays,
    seen_ns: u64,
    /// Its rows, where the agent records.
    episode: Option<Episode>,
    /// Which policy decides for it.
    side: Side,
    /// What its windows add up to, when it takes part in a trial.
    tally: Option<Tally>,
}

/// The delays of a flow's decisions.
#[derive(Debug)]
struct Delays {
    last_ns: u64,
    max_ns: u64,
    /// µs; one digit, as there may be thousands of flows.
    all: Histogram<u32>,
}

impl Delays {
    fn new() -> Self {
        Self {
            last_ns: 0,
            max_ns: 0,
            all: Histogram::new_with_bounds(1, LONGEST_DELAY_US, 1)
                .expect("constant, valid bounds"),
        }
    }

    fn add(&mut self, delay_ns: u64) {
        self.last_ns = delay_ns;
        self.max_ns = self.max_ns.max(delay_ns);
        self.all.saturating_record(delay_ns / 1_000);
    }

    fn quantile_ms(&self, quantile: f64) -> f64 {
        self.all.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// The agent's state.
pub struct Agent {
    current: Served,
    trial: Option<Trial>,
    /// Counts the changes of policies: what was asked before one is not answered after it.
    epoch: u32,
    window_ns: u64,
    flows: Vec<Option<Box<FlowEntry>>>,
    /// By [`Side`].
    waiting: [VecDeque<FlowId>; 2],
    asked_last: Side,
    silences: Silences,
    counts: Counts,
    delays: Histogram<u64>,
    book: Option<Book>,
}

#[derive(Debug)]
struct Trial {
    candidate: Served,
    share: Share,
    rails: GuardRails,
    /// The flows that have closed, by [`Side`].
    closed: [Flows; 2],
}

impl Agent {
    /// An agent without flows, for `slots` slots.
    pub fn new(interface: Interface, slots: usize) -> Self {
        let mut flows = Vec::new();
        flows.resize_with(slots, || None);
        let window_ns = u64::from(interface.window_ms) * 1_000_000;
        Self {
            window_ns,
            current: Served {
                interface,
                header: None,
            },
            trial: None,
            epoch: 0,
            flows,
            waiting: Default::default(),
            asked_last: Side::Current,
            silences: Silences::new(window_ns),
            counts: Counts::default(),
            delays: empty_delays(),
            book: None,
        }
    }

    /// Makes rows from now on, of every flow that comes to a policy with a header; [`Self::take_rows`] hands them
    /// out.
    pub fn record(&mut self, episodes: Episodes, addresses: Addresses) {
        self.book = Some(Book::new(episodes, addresses));
    }

    /// What the current policy's observations, actions and rewards are made of.
    pub fn interface(&self) -> &Interface {
        &self.current.interface
    }

    /// The rows about which everything is known, since this was last asked.
    pub fn take_rows(&mut self) -> Vec<Recorded> {
        self.book.as_mut().map_or_else(Vec::new, Book::take)
    }

    /// Makes no more rows: those held back are handed out by [`Self::take_rows`] as they are.
    pub fn stop_recording(&mut self) {
        let Some(book) = &mut self.book else {
            return;
        };
        for entry in self.flows.iter_mut().flatten() {
            if let Some(episode) = entry.episode.take() {
                episode.finish(book, false);
            }
        }
    }

    /// Rows dropped as the policy had not answered their flow for too long.
    pub fn rows_dropped(&self) -> u64 {
        self.book.as_ref().map_or(0, Book::dropped)
    }

    /// Serves another policy from now on, in windows of the same length. Flows go on with their windows, and with
    /// their hidden state where it has the new policy's size; with another environment their history begins anew.
    pub fn replace(&mut self, policy: Served) {
        let former = std::mem::replace(&mut self.current, policy);
        self.hand_over(Side::Current, &former);
    }

    /// Lets a candidate decide for its share of the flows that come from now on, in windows of the same length. A
    /// trial that was on ends first, its candidate withdrawn.
    pub fn begin_trial(&mut self, candidate: Served, share: Share, rails: GuardRails) {
        self.withdraw();
        self.trial = Some(Trial {
            candidate,
            share,
            rails,
            closed: Default::default(),
        });
    }

    /// Ends the trial: the current policy takes the candidate's flows over. False without a trial.
    pub fn withdraw(&mut self) -> bool {
        let Some(trial) = self.trial.take() else {
            return false;
        };
        self.hand_over(Side::Candidate, &trial.candidate);
        true
    }

    /// Ends the trial: the candidate becomes the current policy. False without a trial.
    pub fn promote(&mut self) -> bool {
        let Some(trial) = self.trial.take() else {
            return false;
        };
        let former = std::mem::replace(&mut self.current, trial.candidate);
        self.hand_over(Side::Current, &former);
        true
    }

    /// How the trial stands, if there is one.
    pub fn trial(&self) -> Option<TrialReport> {
        let trial = self.trial.as_ref()?;
        let [current, candidate] = self.results(trial).map(|flows| flows.report());
        Some(TrialReport {
            percent: trial.share.percent(),
            current,
            candidate,
        })
    }

    /// The guard rail that the candidate breaches, if it does.
    pub fn breach(&self) -> Option<Breach> {
        let trial = self.trial.as_ref()?;
        let [current, candidate] = self.results(trial);
        breach(&current, &candidate, &trial.rails)
    }

    /// Takes over a live flow that a former agent served.
    pub fn adopt(&mut self, flow: &Flow) {
        let id = FlowId::of(flow);
        self.open(id, flow.opened.identity);
        let window = &flow.window;
        if let Some(entry) = self.entry(id) {
            entry.newest = window.index.saturating_sub(1);
        }
        self.silences.expect(id, window.index, window.start_ns);
    }

    /// Takes a record that arrived at `now_ns`. `find` reads a slot's state, for flows whose opened
    /// record was lost.
    pub fn on_record(
        &mut self,
        now_ns: u64,
        record: &Record,
        find: impl FnOnce(u32) -> Option<Flow>,
    ) {
        let header = record.header();
        let id = FlowId::named_by(header);
        match record {
            Record::Opened(opened) => {
                self.open(id, opened.identity);
                self.silences.expect(id, 1, opened.header.time_ns);
            }
            Record::Window(window) => {
                if self.entry(id).is_none() {
                    let Some(flow) = find(id.slot).filter(|f| f.generation == id.generation) else {
                        return;
                    };
                    self.counts.flows_found_late += 1;
                    self.open(id, flow.opened.identity);
                    if let Some(entry) = self.entry(id) {
                        entry.newest = window.index - 1;
                    }
                }
                self.on_window(now_ns, id, window);
                self.silences
                    .expect(id, window.index + 1, window.header.time_ns);
            }
            Record::Closed(_) => self.close(id),
            Record::Ack(_) => {}
        }
    }

    /// A flow whose window should have been closed by now: its state is to be read and handed to
    /// [`Self::on_silence`].
    pub fn next_silence(&mut self, now_ns: u64) -> Option<FlowId> {
        let flows = &self.flows;
        self.silences.next(now_ns, |id| {
            let entry = flows.get(id.slot as usize)?.as_deref()?;
            (entry.generation == id.generation).then_some(entry.newest)
        })
    }

    /// Closes the window of a silent flow, if it is over.
    pub fn on_silence(&mut self, now_ns: u64, flow: &Flow) {
        let id = FlowId::of(flow);
        let Some(newest) = self.entry(id).map(|entry| entry.newest) else {
            return;
        };
        let window = self.silences.close(now_ns, flow);
        if let Some(window) = window.filter(|window| window.index > newest) {
            self.counts.windows_closed_silent += 1;
            self.on_window(now_ns, id, &window);
        }
    }

    /// When the next silence is due, ns.
    pub fn silence_due_ns(&self) -> Option<u64> {
        self.silences.due_ns()
    }

    /// Whether anybody waits for a decision.
    pub fn has_waiting(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// The queries of up to `most` flows that wait for one policy, the longest waiting first.
    pub fn take_batch(&mut self, most: usize) -> Batch {
        let side = match self.waiting.each_ref().map(VecDeque::is_empty) {
            [false, false] => match self.asked_last {
                Side::Current => Side::Candidate,
                Side::Candidate => Side::Current,
            },
            [true, false] => Side::Candidate,
            _ => Side::Current,
        };
        self.asked_last = side;
        let mut batch = Batch {
            side,
            epoch: self.epoch,
            ..Batch::default()
        };
        while batch.len() < most {
            let Some(id) = self.waiting[side as usize].pop_front() else {
                break;
            };
            let Some(Some(entry)) = self.flows.get_mut(id.slot as usize) else {
                continue;
            };
            if entry.generation != id.generation {
                continue;
            }
            let Some(window) = entry.pending.take() else {
                continue;
            };
            entry.asked = true;
            let interface = &served(&self.current, &self.trial, side).interface;
            let reward = Terms::of(&window, &interface.reward).reward(&interface.reward);
            batch.queries.push(Query {
                observation: observe(interface, &window, &entry.history),
                reward: reward as f32,
                cwnd: base_cwnd(entry, &window),
                state: std::mem::take(&mut entry.state),
                probabilities: Vec::new(),
            });
            batch.tickets.push(Ticket {
                flow: id,
                window: window.index,
                end_ns: window.start_ns + self.window_ns,
                mss: window.mss,
            });
        }
        // All that waited for this policy have gone meanwhile.
        if batch.is_empty() && most > 0 && self.has_waiting() {
            return self.take_batch(most);
        }
        batch
    }

    /// Takes the policy's choices for a batch and calls `publish` with the decision for each slot.
    pub fn on_choices(
        &mut self,
        now_ns: u64,
        batch: Batch,
        choices: &[Choice],
        mut publish: impl FnMut(u32, Decision),
    ) {
        let Batch { side, epoch, .. } = batch;
        let policy = served(&self.current, &self.trial, side);
        let interface = &policy.interface;
        let settle = |entry: &mut FlowEntry, book: &mut Option<Book>, window, decision| {
            if let (Some(book), Some(episode)) = (book, &mut entry.episode) {
                episode.settle(book, policy.header.as_ref(), window, decision);
            }
        };
        // Of flows that take part in a trial: usable answers, and others.
        let (mut usable, mut unusable) = (0, 0);
        for ((ticket, query), choice) in batch.tickets.into_iter().zip(batch.queries).zip(choices) {
            let Some(Some(entry)) = self.flows.get_mut(ticket.flow.slot as usize) else {
                continue;
            };
            if entry.generation != ticket.flow.generation {
                self.counts.answers_orphaned += 1;
                continue;
            }
            entry.asked = false;
            entry.state = query.state;
            if entry.pending.is_some() {
                self.waiting[entry.side as usize].push_back(ticket.flow);
            }
            if epoch != self.epoch {
                self.counts.answers_orphaned += 1;
                settle(entry, &mut self.book, ticket.window, None);
                continue;
            }
            if entry.tally.is_some() {
                usable += u64::from(*choice != Choice::Invalid);
                unusable += u64::from(*choice == Choice::Invalid);
            }
            let (action, probability, cwnd) = match *choice {
                Choice::Action { index, probability } => {
                    entry.action = interface
                        .actions
                        .actions()
                        .get(index)
                        .map_or_else(String::new, ToString::to_string);
                    let cwnd = interface.actions.apply(index, query.cwnd, interface.cwnd);
                    (Some(index), Some(probability), cwnd)
                }
                Choice::Cwnd(cwnd) => {
                    entry.action = format!("={cwnd}");
                    (None, None, cwnd)
                }
                Choice::Invalid => {
                    self.counts.answers_invalid += 1;
                    entry.action = "invalid".into();
                    settle(entry, &mut self.book, ticket.window, None);
                    continue;
                }
            };
            publish(
                ticket.flow.slot,
                Decision {
                    generation: ticket.flow.generation,
                    window: ticket.window,
                    cwnd,
                },
            );
            entry.published = Some(cwnd);
            entry.history.push(
                interface,
                action.unwrap_or(0),
                u64::from(cwnd) * u64::from(ticket.mss),
            );
            let delay_ns = now_ns.saturating_sub(ticket.end_ns);
            let decision = Decided {
                action: action.map(|index| index as u8),
                probability,
                probabilities: (!query.probabilities.is_empty()).then_some(query.probabilities),
                base_cwnd: query.cwnd,
                cwnd,
                delay_ns: Some(delay_ns),
            };
            settle(entry, &mut self.book, ticket.window, Some(decision));
            entry.delays.add(delay_ns);
            self.counts.decisions += 1;
            self.counts.decisions_late += u64::from(delay_ns > LATE_NS);
            self.delays.saturating_record(delay_ns / 1_000);
        }
        if let Some(trial) = &mut self.trial {
            trial.closed[side as usize].answered(usable, unusable);
        }
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Delays from window end to publication since the start, in µs.
    pub fn delays(&self) -> &Histogram<u64> {
        &self.delays
    }

    /// Number of live flows.
    pub fn live(&self) -> usize {
        self.flows.iter().flatten().count()
    }

    /// The flows as the live view shows them, up to `most`, in slot order.
    pub fn views(&self, most: usize) -> Vec<FlowView> {
        let entries = self.flows.iter().enumerate();
        entries
            .filter_map(|(slot, entry)| Some((slot as u32, entry.as_ref()?)))
            .take(most)
            .map(|(slot, entry)| view(slot, entry))
            .collect()
    }

    fn entry(&mut self, id: FlowId) -> Option<&mut FlowEntry> {
        let entry = self.flows.get_mut(id.slot as usize)?.as_deref_mut()?;
        (entry.generation == id.generation).then_some(entry)
    }

    fn open(&mut self, id: FlowId, identity: Identity) {
        let initial = u64::from(identity.initial_cwnd) * u64::from(identity.mss);
        let (side, tally) = match &self.trial {
            Some(trial) => (
                trial.share.side(&identity, id.generation),
                Some(Tally::default()),
            ),
            None => (Side::Current, None),
        };
        let interface = &served(&self.current, &self.trial, side).interface;
        let history = History::new(interface, initial);
        // The record of its predecessor's end may have been lost.
        self.vacate(id.slot);
        let Some(place) = self.flows.get_mut(id.slot as usize) else {
            return;
        };
        self.counts.flows += 1;
        let book = self.book.as_mut();
        let episode = book.map(|book| Episode::begin(book, &identity, initial));
        *place = Some(Box::new(FlowEntry {
            generation: id.generation,
            identity,
            history,
            state: State::default(),
            pending: None,
            asked: false,
            newest: 0,
            last: None,
            published: None,
            action: String::new(),
            delays: Delays::new(),
            seen_ns: 0,
            episode,
            side,
            tally,
        }));
    }

    fn close(&mut self, id: FlowId) {
        if self.entry(id).is_some() {
            self.vacate(id.slot);
        }
    }

    /// The flow in a slot, if there is one, has closed.
    fn vacate(&mut self, slot: u32) {
        let Some(entry) = self.flows.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        if let (Some(episode), Some(book)) = (entry.episode, &mut self.book) {
            episode.finish(book, true);
        }
        if let (Some(tally), Some(trial)) = (&entry.tally, &mut self.trial) {
            trial.closed[entry.side as usize].add(tally, &trial.rails);
        }
    }

    /// A policy that was another until now decides for the flows of a side that had `former`; all flows are the
    /// current policy's from now on.
    fn hand_over(&mut self, side: Side, former: &Served) {
        self.epoch = self.epoch.wrapping_add(1);
        let [current, candidate] = &mut self.waiting;
        current.append(candidate);
        let interface = &self.current.interface;
        for entry in self.flows.iter_mut().flatten() {
            let handed_over = entry.side == side;
            entry.side = Side::Current;
            entry.tally = None;
            if !handed_over || *interface == former.interface {
                continue;
            }
            // The window that waits was seen under the former environment.
            self.counts.windows_skipped += u64::from(entry.pending.take().is_some());
            let bytes = window_bytes(entry);
            entry.history = History::new(interface, bytes);
            if let Some(book) = &mut self.book {
                let next = Episode::begin(book, &entry.identity, bytes);
                if let Some(episode) = entry.episode.replace(next) {
                    episode.finish(book, false);
                }
            }
        }
    }

    /// The trial's flows, closed and live, by [`Side`].
    fn results(&self, trial: &Trial) -> [Flows; 2] {
        let mut results = trial.closed;
        for entry in self.flows.iter().flatten() {
            if let Some(tally) = &entry.tally {
                results[entry.side as usize].add(tally, &trial.rails);
            }
        }
        results
    }

    fn on_window(&mut self, now_ns: u64, id: FlowId, window: &WindowRecord) {
        let Some(entry) = self
            .flows
            .get_mut(id.slot as usize)
            .and_then(Option::as_deref_mut)
            .filter(|entry| entry.generation == id.generation)
        else {
            return;
        };
        entry.seen_ns = now_ns;
        if window.index <= entry.newest {
            return;
        }
        self.counts.windows += 1;
        self.counts.windows_missed += u64::from(window.index - entry.newest - 1);
        entry.newest = window.index;
        entry.last = Some(*window);
        let replaced = entry.pending.replace(*window);
        if let Some(tally) = &mut entry.tally {
            let reward = &self.current.interface.reward;
            tally.add(window, Terms::of(window, reward).reward(reward));
        }
        let policy = served(&self.current, &self.trial, entry.side);
        if let (Some(book), Some(episode), Some(header)) =
            (&mut self.book, &mut entry.episode, &policy.header)
        {
            if let Some(replaced) = &replaced {
                episode.settle(book, Some(header), replaced.index, None);
            }
            episode.on_window(book, header, window);
        }
        if replaced.is_some() {
            self.counts.windows_skipped += 1;
        } else if !entry.asked {
            self.waiting[entry.side as usize].push_back(id);
        }
    }
}

/// The policy that decides for a side.
fn served<'a>(current: &'a Served, trial: &'a Option<Trial>, side: Side) -> &'a Served {
    match (side, trial) {
        (Side::Candidate, Some(trial)) => &trial.candidate,
        _ => current,
    }
}

/// The window in force, in bytes.
fn window_bytes(entry: &FlowEntry) -> u64 {
    let identity = &entry.identity;
    match &entry.last {
        Some(window) => u64::from(base_cwnd(entry, window)) * u64::from(window.mss),
        None => u64::from(identity.initial_cwnd) * u64::from(identity.mss),
    }
}

/// The window that an action works on: the last decision while one rules, what the kernel made of
/// it otherwise.
fn base_cwnd(entry: &FlowEntry, window: &WindowRecord) -> u32 {
    if !Mode::from_raw(window.mode).is_decided() {
        return window.cwnd;
    }
    entry
        .published
        .or_else(|| Decision::from_cell(window.decision).map(|decision| decision.cwnd))
        .unwrap_or(window.cwnd)
}

fn view(slot: u32, entry: &FlowEntry) -> FlowView {
    let (local, remote) = entry.identity.endpoints();
    let mut view = FlowView {
        slot,
        generation: entry.generation,
        local,
        remote,
        cgroup_id: entry.identity.cgroup_id,
        window: entry.newest,
        mode: "startup".into(),
        cwnd: entry.identity.initial_cwnd,
        rate_mbps: 0.0,
        srtt_ms: 0.0,
        queue_ms: 0.0,
        loss: 0.0,
        action: entry.action.clone(),
        decision_delay_ms: entry.delays.last_ns as f64 / 1e6,
        decisions: entry.delays.all.len(),
        decision_delay_p50_ms: entry.delays.quantile_ms(0.5),
        decision_delay_p99_ms: entry.delays.quantile_ms(0.99),
        decision_delay_max_ms: entry.delays.max_ns as f64 / 1e6,
        seen_ns: entry.seen_ns,
    };
    if let Some(window) = &entry.last {
        let mean = |feature: Feature| window.features.mean(feature as usize, window.acks);
        let sum = |feature: Feature| window.features.sum[feature as usize] as f64;
        let lost = sum(Feature::Lost);
        view.mode = Mode::from_raw(window.mode).name().into();
        view.cwnd = window.cwnd;
        view.rate_mbps = mean(Feature::Throughput) * 8.0 / 1e3;
        view.srtt_ms = mean(Feature::SmoothedRtt) / 1e3;
        view.queue_ms = mean(Feature::Delay) / 1e3;
        view.loss = if lost > 0.0 {
            lost / (lost + sum(Feature::Acked))
        } else {
            0.0
        };
    }
    view
}

/// Three digits.
fn empty_delays() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_DELAY_US, 3).expect("constant, valid bounds")
}

#[cfg(test)]
mod tests;
