//! The agent's core: which flows wait for a decision, what the policy is asked, and what is
//! published.
//!
//! [`Agent`] is pure: records come in with the time, queries for the policy come out, its choices
//! come in, and decisions to publish come out. The event loop around it does the I/O: the agent's
//! on the live kernel, the simulator's in virtual time.
//!
//! [`crate::flows`] has the life of a flow. While a flow lives, its decisions go through these
//! states:
//!
//! ```text
//!   idle ── window ends ──► waiting ── take_batch ──► asked ── on_choices ──► idle
//!                            ▲   └─ a newer window replaces   │      the decision is published,
//!                            │      the waiting one: skipped  │      or the answer was unusable
//!                            │                                │
//!                            └──────── on_choices ────────────┘ a window has ended meanwhile
//! ```
//!
//! A flow has at most one query with the policy, so a slow policy answers each flow's newest
//! window.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use cc_ebpf::{Decision, Flow, Identity, Mode, OpenedRecord, Record, WindowRecord};
use hdrhistogram::Histogram;

use crate::{
    action::base_cwnd,
    canary::{Arm, Breach, Canary, CanaryFlow, CanaryPlan, CanaryReport, GuardRails},
    flows::{FlowId, FlowTable, FollowFlows, initial_cwnd_bytes},
    interface::{Interface, Unasked},
    objective::Measured,
    observation::{History, Windows, observe},
    paths::Paths,
    policy::{Choice, Query, State},
    reward::Reward,
    rows::{
        Addresses, Decided, Episodes, FileHeader, Recorded,
        buffer::{EpisodeRows, RowBuffer},
    },
    served::ServedPolicy,
    status::{AgentCounts, FlowView, TracedDecision, TracedWindow, WindowDistributions},
    traces::Traces,
};

/// A decision published more than this after its window's end counts as late, ns.
const LATE_NS: u64 = 20_000_000;

/// Longer decision delays are counted as this one, µs.
const LONGEST_DELAY_US: u64 = 60_000_000;

/// Queries for one policy, and the flows and windows that they are about.
#[derive(Debug, Default)]
pub struct Batch {
    arm: Arm,
    /// Whether a policy server has decided on these queries, instead of the policy of the arm.
    by_server: bool,
    tickets: Vec<Ticket>,
    /// The queries, for [`crate::policy::Policy::decide`].
    pub queries: Vec<Query>,
}

/// The flow and the window that a query is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) flow: FlowId,
    window: u32,
    /// When the window ended, ns.
    pub(crate) end_ns: u64,
    mss: u32,
    /// [`Agent::epoch`] when the query was made.
    epoch: u32,
}

impl Batch {
    /// Number of queries in the batch, one per flow.
    pub fn len(&self) -> usize {
        self.queries.len()
    }

    /// Whether the batch has no query, because no flow waits for a decision.
    pub fn is_empty(&self) -> bool {
        self.queries.is_empty()
    }

    /// The arm whose policy is to answer.
    pub fn arm(&self) -> Arm {
        self.arm
    }

    /// A batch of the incumbent's queries, which were taken from other batches. `by_server` says
    /// whether a policy server has decided on them.
    pub(crate) fn gathered(
        by_server: bool,
        queries: impl IntoIterator<Item = (Ticket, Query)>,
    ) -> Self {
        let (tickets, queries) = queries.into_iter().unzip();
        Self {
            arm: Arm::Incumbent,
            by_server,
            tickets,
            queries,
        }
    }

    /// The queries with the flows and windows that they are about.
    pub(crate) fn into_queries(self) -> impl Iterator<Item = (Ticket, Query)> {
        self.tickets.into_iter().zip(self.queries)
    }

    /// What the queries are about, in their order.
    #[cfg(test)]
    pub(crate) fn tickets(&self) -> &[Ticket] {
        &self.tickets
    }

    /// The slot of the flow that query number `query` is about; `None` past the last query.
    pub fn slot(&self, query: usize) -> Option<u32> {
        self.tickets.get(query).map(|ticket| ticket.flow.slot)
    }
}

/// What the agent keeps of a flow.
#[derive(Debug)]
pub(crate) struct ServedFlow {
    identity: Identity,
    /// When it was given its slot, ns.
    opened_ns: u64,
    history: History,
    windows: Windows,
    state: State,
    /// The newest window, while no query has been made of it.
    waiting: Option<WaitingWindow>,
    /// A query of this flow is with the policy.
    asked: bool,
    /// The newest window that has ended.
    last: Option<WindowRecord>,
    /// What was measured since the window before that one.
    measured: Measured,
    /// The newest decision that was published for the flow; `None` before the first.
    published: Option<Decision>,
    /// The last action, as [`FlowView::action`] has it.
    action: String,
    delays: FlowDelays,
    /// When its last window came or, of one that nothing followed, began, ns; 0 before the first.
    seen_ns: u64,
    /// Its rows, while the agent records.
    rows: Option<EpisodeRows>,
    /// The arm whose policy decides for it.
    arm: Arm,
    /// What the canary keeps of it, when it takes part in one.
    canary: Option<CanaryFlow>,
}

/// A window that waits for the policy, with its reward under the settings of that policy.
#[derive(Debug)]
struct WaitingWindow {
    window: WindowRecord,
    reward: Reward,
    /// The flow's windows when this one ended: later ones may end while it waits.
    windows: Windows,
}

/// Decision delays of one flow.
#[derive(Debug)]
struct FlowDelays {
    last_ns: u64,
    max_ns: u64,
    /// In µs, to one digit: there may be thousands of flows.
    all: Histogram<u32>,
}

impl FlowDelays {
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

/// Follows flows, asks policies about their windows, and turns the answers into decisions.
///
/// ```
/// use cc_core::{agent::Agent, interface::Interface, policy::{Fixed, Policy}};
/// use cc_ebpf::{FEATURES, Header, Identity, OpenedRecord, Record, WindowRecord};
///
/// let mut policy = Fixed::new(64, Interface::default());
/// let mut agent = Agent::new(policy.interface().clone(), 1);
///
/// // A flow opens in slot 0, and 100 ms later its first window ends.
/// let identity = Identity { family: 2, mss: 1448, initial_cwnd: 10, ..Identity::default() };
/// let opened = OpenedRecord { header: Header::of::<OpenedRecord>(0, 1, 0), identity };
/// agent.on_record(0, &Record::Opened(opened), |_| None);
/// let mut window: WindowRecord = bytemuck::Zeroable::zeroed();
/// window.header = Header::of::<WindowRecord>(0, 1, 100_000_000);
/// (window.index, window.cwnd, window.mss) = (1, 10, 1448);
/// window.add(&[1_000; FEATURES]);
/// agent.on_record(100_000_000, &Record::Window(window), |_| None);
///
/// let mut batch = agent.take_batch(256);
/// let choices = policy.decide(&mut batch.queries);
/// agent.on_choices(101_000_000, batch, &choices, |slot, decision| {
///     assert_eq!((slot, decision.window, decision.cwnd), (0, 1, 64));
/// });
/// assert_eq!(agent.counts().decisions, 1);
/// ```
pub struct Agent {
    incumbent: ServedPolicy,
    /// The header for rows of the incumbent's flows that a policy server has decided; `None` where
    /// there is no server, or nothing is recorded.
    server_header: Option<Arc<FileHeader>>,
    canary: Option<Canary>,
    /// Counts the changes of policies: a batch of an earlier epoch was answered by a policy that
    /// may no longer decide.
    epoch: u32,
    window_ns: u64,
    flows: FlowTable<ServedFlow>,
    paths: Paths,
    /// The flows that wait for a decision, by [`Arm`], the longest waiting first.
    waiting: [VecDeque<FlowId>; 2],
    /// The arm of the last batch that [`Self::take_batch`] returned.
    asked_last: Arm,
    /// All counts but those of [`FlowTable::counts`], which are 0 here.
    counts: AgentCounts,
    delays: Histogram<u64>,
    window_distributions: WindowDistributions,
    rows: Option<RowBuffer>,
    traces: Traces,
}

impl Agent {
    /// Creates an agent without flows, for a flow map of `slots` slots. It records nothing.
    pub fn new(interface: Interface, slots: usize) -> Self {
        let window_ns = interface.datapath_settings().window_ns;
        Self {
            window_ns,
            incumbent: ServedPolicy {
                interface,
                header: None,
            },
            server_header: None,
            canary: None,
            epoch: 0,
            flows: FlowTable::new(slots, window_ns),
            paths: Paths::default(),
            waiting: Default::default(),
            asked_last: Arm::Candidate,
            counts: AgentCounts::default(),
            delays: empty_delays(),
            window_distributions: WindowDistributions::new(),
            rows: None,
            traces: Traces::default(),
        }
    }

    /// The interface of the incumbent policy.
    pub fn interface(&self) -> &Interface {
        &self.incumbent.interface
    }

    /// Starts to make rows of every flow that opens from now on and whose policy has a header.
    /// [`Self::take_rows`] returns them.
    pub fn start_recording(&mut self, episodes: Episodes, addresses: Addresses) {
        self.rows = Some(RowBuffer::new(episodes, addresses));
    }

    /// Takes the rows that became complete since the last call.
    pub fn take_rows(&mut self) -> Vec<Recorded> {
        self.rows.as_mut().map_or_else(Vec::new, RowBuffer::take)
    }

    /// Stops making rows. [`Self::take_rows`] returns those held back, as they are.
    pub fn stop_recording(&mut self) {
        let Some(rows) = &mut self.rows else {
            return;
        };
        for flow in self.flows.values_mut() {
            if let Some(episode) = flow.rows.take() {
                episode.finish(rows, false);
            }
        }
    }

    /// Rows dropped because the policy did not answer their flow for too long.
    pub fn rows_dropped(&self) -> u64 {
        self.rows.as_ref().map_or(0, RowBuffer::dropped)
    }

    /// Serves another policy to all flows from now on; its observation windows must have the same
    /// length. A canary that runs is withdrawn first.
    ///
    /// Flows keep their cwnd, and their recurrent state where it has the new policy's size. When
    /// the interface differs, their history of decisions begins anew, and with it a new episode.
    pub fn replace(&mut self, policy: ServedPolicy) {
        self.withdraw();
        self.server_header = None;
        let former = std::mem::replace(&mut self.incumbent, policy);
        self.hand_over(Arm::Incumbent, &former);
    }

    /// Sets the header for rows of the incumbent's flows that a policy server decides from now on
    /// ([`crate::remote`]); `None` when nothing is recorded. It holds until another policy becomes
    /// the incumbent.
    pub fn set_server_header(&mut self, header: Option<Arc<FileHeader>>) {
        self.server_header = header;
    }

    /// Starts a canary at `now_ns`: the candidate decides for its share of the flows. Its windows
    /// must have the same length. A canary that runs is withdrawn first.
    ///
    /// Where blocks of time are compared, the flows that are open take part, and
    /// [`Self::turn_canary`] must be called at least several times in a block. Otherwise only those
    /// that open from now on do.
    pub fn start_canary(
        &mut self,
        candidate: ServedPolicy,
        plan: CanaryPlan,
        rails: GuardRails,
        now_ns: u64,
    ) {
        self.withdraw();
        // The objective of the policy in service; that of the candidate if it alone states one.
        let stated = [&self.incumbent, &candidate].map(|policy| policy.interface.objective);
        let objective = stated.into_iter().flatten().next();
        let objective = objective.unwrap_or_else(|| self.incumbent.interface.objective());
        let canary = Canary::new(candidate, plan, rails, objective, now_ns);
        for (id, flow) in self.flows.iter_mut() {
            flow.canary = canary.join_live(&flow.identity, id.generation);
        }
        self.canary = Some(canary);
    }

    /// Goes on to the block of time that `now_ns` is in: its arm takes the candidate's share of the
    /// flows over.
    pub fn turn_canary(&mut self, now_ns: u64) {
        if !self
            .canary
            .as_mut()
            .is_some_and(|canary| canary.turn(now_ns))
        {
            return;
        }
        let Some(canary) = &mut self.canary else {
            return;
        };
        let has_one_interface = self.incumbent.interface == canary.candidate().interface;
        for (id, flow) in self.flows.iter_mut() {
            let Some(mut member) = flow.canary else {
                continue;
            };
            let arm = canary.arm_of(&member);
            if arm == flow.arm {
                continue;
            }
            canary.moved(&mut member, flow.last.as_ref(), now_ns);
            flow.canary = Some(member);
            flow.arm = arm;
            if !has_one_interface {
                let interface = match arm {
                    Arm::Incumbent => &self.incumbent.interface,
                    Arm::Candidate => &canary.candidate().interface,
                };
                self.counts.windows_skipped += flow.begin_anew(interface, &mut self.rows);
            } else if flow.waiting.is_some() && !flow.asked {
                self.waiting[arm as usize].push_back(id);
            }
        }
    }

    /// Ends the canary: the incumbent takes the candidate's flows over. Returns false when no
    /// canary runs.
    pub fn withdraw(&mut self) -> bool {
        let Some(canary) = self.canary.take() else {
            return false;
        };
        self.hand_over(Arm::Candidate, &canary.into_candidate());
        true
    }

    /// Ends the canary: the candidate becomes the incumbent and takes all flows over. Returns false
    /// when no canary runs.
    pub fn promote(&mut self) -> bool {
        let Some(canary) = self.canary.take() else {
            return false;
        };
        self.server_header = None;
        let former = std::mem::replace(&mut self.incumbent, canary.into_candidate());
        self.hand_over(Arm::Incumbent, &former);
        true
    }

    /// The results of both arms so far; `None` when no canary runs.
    pub fn canary(&self, now_ns: u64) -> Option<CanaryReport> {
        let canary = self.canary.as_ref()?;
        Some(canary.report(self.live_in_canary(), now_ns))
    }

    /// The guard rail that the candidate breaches; `None` when it breaches none or no canary runs.
    pub fn breach(&self, now_ns: u64) -> Option<Breach> {
        let canary = self.canary.as_ref()?;
        canary.breach(self.live_in_canary(), now_ns)
    }

    /// The live flows that take part in the canary, with their newest windows.
    fn live_in_canary(&self) -> impl Iterator<Item = (Arm, &CanaryFlow, &WindowRecord)> + Clone {
        let flows = self.flows.iter();
        flows
            .filter_map(|(_, _, flow)| Some((flow.arm, flow.canary.as_ref()?, flow.last.as_ref()?)))
    }

    /// Takes over a live flow that a former agent served. It has been idle since the last window of
    /// which that agent learned, or which its slot still has.
    pub fn adopt(&mut self, flow: &Flow) {
        self.take_over(flow);
        if let Some(adopted) = self.flows.get_mut(FlowId::from(flow)) {
            adopted.seen_ns = flow.window.start_ns;
        }
    }

    /// Takes a record that arrived at `now_ns`. `read` reads the flow's state from a slot, for a
    /// flow whose opened record was lost.
    pub fn on_record(
        &mut self,
        now_ns: u64,
        record: &Record,
        read: impl FnOnce(u32) -> Option<Flow>,
    ) {
        self.follow(record, read);
        if let Record::Window(window) = record {
            self.saw(window, now_ns);
        }
    }

    /// Closes the windows of flows that have fallen silent, and returns them: those that ended 5 ms
    /// ago or earlier without an ACK that closed them. `read` reads the flow's state from a slot.
    ///
    /// Such a window is decided on like any other. The flow's next ACK makes the datapath send the
    /// same window once more, which is then ignored.
    pub fn close_silent(
        &mut self,
        now_ns: u64,
        read: impl FnMut(u32) -> Option<Flow>,
    ) -> Vec<WindowRecord> {
        let closed = self.close_silent_windows(now_ns, read);
        for window in &closed {
            // Long ago, where a former agent has closed it before.
            self.saw(window, window.start_ns);
        }
        closed
    }

    /// Closes the flows whose closed records were lost, which would stay in the table until their
    /// slots are used again. `occupant` returns the generation of the flow that is live in a slot.
    ///
    /// A flow is closed when two calls in a row do not find it, so that records that are on their
    /// way can arrive in between.
    pub fn reconcile(&mut self, occupant: impl FnMut(u32) -> Option<u32>) {
        self.close_lost(occupant);
    }

    /// The flows whose last window came more than `idle_ns` before `now_ns`, longest idle first.
    pub fn idle_flows(&self, now_ns: u64, idle_ns: u64) -> Vec<FlowId> {
        let idle = |seen_ns| now_ns.saturating_sub(seen_ns) > idle_ns;
        let mut flows: Vec<_> = (self.flows.iter())
            // A flow of which only the opening is known has its first window to come.
            .filter(|(_, _, flow)| flow.seen_ns != 0 && idle(flow.seen_ns))
            .map(|(id, _, flow)| (flow.seen_ns, id))
            .collect();
        flows.sort_unstable_by_key(|&(seen_ns, id)| (seen_ns, id.slot));
        flows.into_iter().map(|(_, id)| id).collect()
    }

    /// When [`Self::close_silent`] is due next, ns; `None` while no flow has an open window.
    pub fn silence_due_ns(&self) -> Option<u64> {
        self.flows.silence_due_ns()
    }

    /// Whether any flow waits for a decision.
    pub fn has_waiting(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// Takes the queries of up to `most` flows that wait for the same policy, as
    /// [`Self::take_batch_of`] does. The two arms of a canary take turns.
    pub fn take_batch(&mut self, most: usize) -> Batch {
        let first = self.asked_last.other();
        for arm in [first, first.other()] {
            let batch = self.take_batch_of(arm, most);
            if !batch.is_empty() {
                self.asked_last = arm;
                return batch;
            }
        }
        Batch::default()
    }

    /// Takes the queries of up to `most` flows that wait for the policy of `arm`, the longest
    /// waiting first. The batch is empty when none waits.
    ///
    /// A batch is answered by [`Self::on_choices`], or given back by [`Self::on_no_answer`]; until
    /// then its flows are not asked about again.
    pub fn take_batch_of(&mut self, arm: Arm, most: usize) -> Batch {
        let mut batch = Batch {
            arm,
            ..Batch::default()
        };
        while batch.len() < most {
            let Some(id) = self.waiting[arm as usize].pop_front() else {
                break;
            };
            // A flow that the other arm has taken over waits there.
            let Some(flow) = self.flows.get_mut(id).filter(|flow| flow.arm == arm) else {
                continue;
            };
            let Some(waiting) = flow.waiting.take() else {
                continue;
            };
            let WaitingWindow {
                window,
                reward,
                windows,
            } = waiting;
            flow.asked = true;
            let interface = &policy_of(&self.incumbent, &self.canary, arm).interface;
            batch.queries.push(Query {
                observation: observe(interface, &window, &flow.history, &windows),
                reward: reward.value as f32,
                cwnd: base_cwnd(&window, flow.published),
                state: std::mem::take(&mut flow.state),
                probabilities: Vec::new(),
            });
            batch.tickets.push(Ticket {
                flow: id,
                window: window.index,
                end_ns: window.start_ns + self.window_ns,
                mss: window.mss,
                epoch: self.epoch,
            });
        }
        batch
    }

    /// Takes back a batch that no policy will answer, because its policy failed or was replaced.
    ///
    /// Its flows may be asked about again from their next windows on. They have the recurrent
    /// states of the batch's queries, or that of a new flow where the queries are gone.
    pub fn on_no_answer(&mut self, batch: Batch) {
        let policy = policy_of(&self.incumbent, &self.canary, batch.arm);
        let mut states = batch.queries.into_iter().map(|query| query.state);
        for ticket in batch.tickets {
            let state = states.next().unwrap_or_default();
            let Some(flow) = self.flows.get_mut(ticket.flow) else {
                continue;
            };
            flow.asked = false;
            flow.state = state;
            if flow.waiting.is_some() {
                self.waiting[flow.arm as usize].push_back(ticket.flow);
            }
            self.counts.answers_missing += 1;
            self.traces
                .settle(ticket.flow, ticket.window, || Err("no answer"));
            if let (Some(rows), Some(episode)) = (&mut self.rows, &mut flow.rows) {
                episode.settle(rows, policy.header.as_ref(), ticket.window, None);
            }
        }
    }

    /// Notes how long the policy of `arm` took for a batch, from asking to its answer, for the
    /// guard rails of a canary.
    pub fn on_batch_time(&mut self, arm: Arm, took: Duration) {
        if let Some(canary) = &mut self.canary {
            canary.timed(arm, took);
        }
    }

    /// Takes the policy's choices for a batch, in the order of its queries, and calls `publish`
    /// with each slot and the decision for it.
    ///
    /// Choices for flows that have closed are dropped, and so are all of a batch that was taken
    /// before the policies changed.
    pub fn on_choices(
        &mut self,
        now_ns: u64,
        batch: Batch,
        choices: &[Choice],
        mut publish: impl FnMut(u32, Decision),
    ) {
        let Batch { arm, by_server, .. } = batch;
        let policy = policy_of(&self.incumbent, &self.canary, arm);
        let interface = &policy.interface;
        let header = match by_server {
            true => self.server_header.as_ref(),
            false => policy.header.as_ref(),
        };
        let settle = |flow: &mut ServedFlow, rows: &mut Option<RowBuffer>, window, decision| {
            if let (Some(rows), Some(episode)) = (rows, &mut flow.rows) {
                episode.settle(rows, header, window, decision);
            }
        };
        // Of flows that take part in a canary: usable answers, and others.
        let (mut usable, mut unusable) = (0, 0);
        for ((ticket, query), choice) in batch.tickets.into_iter().zip(batch.queries).zip(choices) {
            let Some(flow) = self.flows.get_mut(ticket.flow) else {
                self.counts.answers_orphaned += u64::from(self.flows.is_succeeded(ticket.flow));
                continue;
            };
            flow.asked = false;
            flow.state = query.state;
            if flow.waiting.is_some() {
                self.waiting[flow.arm as usize].push_back(ticket.flow);
            }
            if ticket.epoch != self.epoch || arm != flow.arm {
                self.counts.answers_orphaned += 1;
                self.traces.settle(ticket.flow, ticket.window, || {
                    Err("the policy that answered no longer decides")
                });
                settle(flow, &mut self.rows, ticket.window, None);
                continue;
            }
            if flow.canary.is_some() {
                usable += u64::from(*choice != Choice::Invalid);
                unusable += u64::from(*choice == Choice::Invalid);
            }
            let (action, probability, cwnd) = match *choice {
                Choice::Action { index, probability } => {
                    flow.action = interface
                        .actions
                        .actions()
                        .get(index)
                        .map_or_else(String::new, ToString::to_string);
                    let cwnd = interface.actions.apply(index, query.cwnd, interface.cwnd);
                    (Some(index), Some(probability), cwnd)
                }
                Choice::Cwnd(cwnd) => {
                    flow.action = format!("={cwnd}");
                    (None, None, cwnd)
                }
                Choice::Invalid => {
                    self.counts.answers_invalid += 1;
                    flow.action = "invalid".into();
                    self.traces
                        .settle(ticket.flow, ticket.window, || Err("unusable answer"));
                    settle(flow, &mut self.rows, ticket.window, None);
                    continue;
                }
            };
            let decision = Decision {
                generation: ticket.flow.generation,
                window: ticket.window,
                cwnd,
            };
            publish(ticket.flow.slot, decision);
            flow.published = Some(decision);
            flow.history.push(
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
            settle(flow, &mut self.rows, ticket.window, Some(decision));
            self.traces.settle(ticket.flow, ticket.window, || {
                Ok(TracedDecision {
                    action: flow.action.clone(),
                    probability,
                    base_cwnd: query.cwnd,
                    cwnd,
                    delay_ms: delay_ns as f64 / 1e6,
                })
            });
            flow.delays.add(delay_ns);
            self.counts.decisions += 1;
            self.counts.decisions_late += u64::from(delay_ns > LATE_NS);
            self.delays.saturating_record(delay_ns / 1_000);
        }
        if let Some(canary) = &mut self.canary {
            canary.answered(arm, usable, unusable);
        }
    }

    /// Counts of flows, windows and decisions since the agent's start.
    pub fn counts(&self) -> AgentCounts {
        let flows = self.flows.counts();
        AgentCounts {
            flows: flows.flows,
            flows_found_late: flows.flows_found_late,
            windows: flows.windows,
            windows_closed_silent: flows.windows_closed_silent,
            windows_missed: flows.windows_missed,
            ..self.counts
        }
    }

    /// Delays from a window's end to the publication of its decision since the start, µs.
    pub fn delays(&self) -> &Histogram<u64> {
        &self.delays
    }

    /// What the windows since the start were like.
    pub fn window_distributions(&self) -> &WindowDistributions {
        &self.window_distributions
    }

    /// Number of live flows by what sets their cwnd. Those that had no window are in
    /// [`Mode::Startup`].
    pub fn modes(&self) -> BTreeMap<&'static str, usize> {
        let mut modes = BTreeMap::new();
        for (_, _, flow) in self.flows.iter() {
            let mode = flow
                .last
                .as_ref()
                .map_or(Mode::Startup, |window| Mode::from_raw(window.mode));
            *modes.entry(mode.name()).or_default() += 1;
        }
        modes
    }

    /// Tells of each window of a flow from the next one on, by [`Self::take_traced`]. Returns false
    /// when the flow is not live.
    pub fn trace(&mut self, id: FlowId) -> bool {
        let is_live = self.flows.is_live(id);
        if is_live {
            self.traces.begin(id);
        }
        is_live
    }

    /// Tells of a flow no longer.
    pub fn untrace(&mut self, id: FlowId) {
        self.traces.end(id);
    }

    /// Takes the windows of traced flows that were decided on since the last call, or will not be.
    pub fn take_traced(&mut self) -> Vec<(FlowId, TracedWindow)> {
        self.traces.take()
    }

    /// Whether the flow is open, as far as the records of the datapath have told.
    pub fn is_live(&self, id: FlowId) -> bool {
        self.flows.is_live(id)
    }

    /// Number of flows that are open at the moment.
    pub fn live(&self) -> usize {
        self.flows.live()
    }

    /// Number of live flows that run on another load of the programs than `load`
    /// ([`Identity::programs`]): on those of a former agent.
    pub fn live_on_other_programs(&self, load: u32) -> usize {
        let flows = self.flows.iter();
        flows
            .filter(|(_, _, flow)| flow.identity.programs != load)
            .count()
    }

    /// The first `most` live flows in slot order, as the status shows them.
    pub fn views(&self, most: usize) -> Vec<FlowView> {
        let flows = self.flows.iter().take(most);
        flows
            .map(|(id, newest, flow)| flow.view(id, newest))
            .collect()
    }

    /// The `most` live flows that `shows` holds for and that have the highest `rank`, the highest
    /// first and those of equal rank in slot order, with the number of all that `shows` holds for.
    /// Neither is told the flows' actions, nor the percentiles of their delays.
    pub fn views_by(
        &self,
        most: usize,
        shows: impl Fn(&FlowView) -> bool,
        rank: impl Fn(&FlowView) -> (bool, f64),
    ) -> (Vec<FlowView>, usize) {
        let mut found: Vec<_> = (self.flows.iter())
            .map(|(id, newest, flow)| (flow, flow.brief_view(id, newest)))
            .filter(|(_, view)| shows(view))
            .map(|(flow, view)| (rank(&view), flow, view))
            .collect();
        let shown = found.len();
        found.sort_unstable_by(|((a, high), _, one), ((b, low), _, other)| {
            let order = b.cmp(a).then(low.total_cmp(high));
            order.then(one.slot.cmp(&other.slot))
        });
        found.truncate(most);
        let views = found.into_iter().map(|(_, flow, view)| flow.complete(view));
        (views.collect(), shown)
    }

    fn saw(&mut self, window: &WindowRecord, at_ns: u64) {
        if let Some(flow) = self.flows.get_mut(FlowId::from(&window.header)) {
            flow.seen_ns = at_ns;
        }
    }

    /// Makes the incumbent decide for all flows, and counts an epoch. `former` is the policy that
    /// decided until now for the flows of `arm`, which another policy takes over; for the flows of
    /// the other arm the same policy goes on deciding.
    fn hand_over(&mut self, arm: Arm, former: &ServedPolicy) {
        self.epoch = self.epoch.wrapping_add(1);
        let [incumbent, candidate] = &mut self.waiting;
        incumbent.append(candidate);
        let interface = &self.incumbent.interface;
        for flow in self.flows.values_mut() {
            let handed_over = flow.arm == arm;
            flow.arm = Arm::Incumbent;
            flow.canary = None;
            if handed_over && *interface != former.interface {
                self.counts.windows_skipped += flow.begin_anew(interface, &mut self.rows);
            }
        }
    }
}

impl FollowFlows for Agent {
    type Flow = ServedFlow;

    fn table(&mut self) -> &mut FlowTable<ServedFlow> {
        &mut self.flows
    }

    fn on_opened(&mut self, id: FlowId, opened: &OpenedRecord) -> ServedFlow {
        let identity = &opened.identity;
        self.paths.join(identity);
        let initial = initial_cwnd_bytes(identity);
        let joined = self.canary.as_ref();
        let joined = joined.map(|canary| canary.join(identity, id.generation));
        let (arm, canary) = joined.map_or((Arm::Incumbent, None), |(arm, flow)| (arm, Some(flow)));
        let interface = &policy_of(&self.incumbent, &self.canary, arm).interface;
        let rows = self.rows.as_mut();
        ServedFlow {
            identity: *identity,
            opened_ns: opened.header.time_ns,
            history: History::new(interface, initial),
            windows: Windows::new(interface),
            state: State::default(),
            waiting: None,
            asked: false,
            last: None,
            measured: Measured::default(),
            published: None,
            action: String::new(),
            delays: FlowDelays::new(),
            seen_ns: 0,
            rows: rows.map(|rows| EpisodeRows::begin(rows, identity, initial)),
            arm,
            canary,
        }
    }

    fn on_window(&mut self, id: FlowId, window: &WindowRecord) {
        let Some(flow) = self.flows.get_mut(id) else {
            return;
        };
        flow.measured = Measured::following(flow.last.as_ref(), window);
        flow.last = Some(*window);
        self.window_distributions.add(window, &flow.measured);
        if let (Some(canary), Some(member)) = (&mut self.canary, &mut flow.canary) {
            canary.add(member, flow.arm, window, &flow.measured);
        }
        let policy = policy_of(&self.incumbent, &self.canary, flow.arm);
        let reward = Reward::of(window, &policy.interface.reward);
        let end_ns = window.start_ns + self.window_ns;
        self.traces.window(
            id,
            &flow.identity,
            window,
            end_ns,
            &flow.measured,
            reward.value,
        );
        let path = self.paths.observe(&flow.identity, window);
        flow.windows.push(&policy.interface, window, path);
        // A window that the policy is not asked about is recorded all the same.
        let unasked = policy.interface.unasked(window);
        let is_asked = unasked.is_none();
        let replaced = match is_asked {
            true => flow.waiting.replace(WaitingWindow {
                window: *window,
                reward,
                windows: flow.windows.clone(),
            }),
            false => None,
        };
        if let (Some(rows), Some(episode), Some(header)) =
            (&mut self.rows, &mut flow.rows, &policy.header)
        {
            if let Some(replaced) = &replaced {
                episode.settle(rows, Some(header), replaced.window.index, None);
            }
            episode.on_window(rows, header, window, path, reward);
            if !is_asked {
                episode.settle(rows, Some(header), window.index, None);
            }
        }
        if let Some(replaced) = &replaced {
            self.traces
                .settle(id, replaced.window.index, || Err("skipped for a newer one"));
        }
        if let Some(unasked) = unasked {
            self.traces
                .settle(id, window.index, || Err(unasked.reason()));
            *match unasked {
                Unasked::ApplicationLimited => &mut self.counts.windows_application_limited,
                Unasked::SlowStart => &mut self.counts.windows_in_slow_start,
            } += 1;
            return;
        }
        if replaced.is_some() {
            self.counts.windows_skipped += 1;
        } else if !flow.asked {
            self.waiting[flow.arm as usize].push_back(id);
        }
    }

    fn on_closed(&mut self, flow: ServedFlow) {
        self.paths.leave(&flow.identity);
        if let (Some(episode), Some(rows)) = (flow.rows, &mut self.rows) {
            episode.finish(rows, true);
        }
    }
}

impl ServedFlow {
    /// The cwnd in force, in bytes.
    fn cwnd_bytes(&self) -> u64 {
        match &self.last {
            Some(window) => u64::from(base_cwnd(window, self.published)) * u64::from(window.mss),
            None => initial_cwnd_bytes(&self.identity),
        }
    }

    /// Begins a new history and a new episode for a policy with another interface. Returns the
    /// number of waiting windows that are dropped: they were rewarded under the former interface.
    fn begin_anew(&mut self, interface: &Interface, rows: &mut Option<RowBuffer>) -> u64 {
        let dropped = self.waiting.take().is_some();
        let bytes = self.cwnd_bytes();
        self.history = History::new(interface, bytes);
        self.windows = Windows::new(interface);
        if let Some(rows) = rows {
            let next = EpisodeRows::begin(rows, &self.identity, bytes);
            if let Some(episode) = self.rows.replace(next) {
                episode.finish(rows, false);
            }
        }
        dropped.into()
    }

    fn view(&self, id: FlowId, newest: u32) -> FlowView {
        self.complete(self.brief_view(id, newest))
    }

    /// A brief view with what takes longer: the action, and percentiles.
    fn complete(&self, brief: FlowView) -> FlowView {
        FlowView {
            action: self.action.clone(),
            decision_delay_p50_ms: self.delays.quantile_ms(0.5),
            decision_delay_p99_ms: self.delays.quantile_ms(0.99),
            ..brief
        }
    }

    /// The view without what [`Self::complete`] adds: there may be thousands of flows.
    fn brief_view(&self, id: FlowId, newest: u32) -> FlowView {
        let view = FlowView {
            window: newest,
            decision_delay_ms: self.delays.last_ns as f64 / 1e6,
            decisions: self.delays.all.len(),
            decision_delay_max_ms: self.delays.max_ns as f64 / 1e6,
            opened_ns: self.opened_ns,
            seen_ns: self.seen_ns,
            ..FlowView::new(id, &self.identity)
        };
        match &self.last {
            Some(window) => view.after(window, &self.measured),
            None => view,
        }
    }
}

/// The policy that decides for the flows of an arm.
fn policy_of<'a>(
    incumbent: &'a ServedPolicy,
    canary: &'a Option<Canary>,
    arm: Arm,
) -> &'a ServedPolicy {
    match (arm, canary) {
        (Arm::Candidate, Some(canary)) => canary.candidate(),
        _ => incumbent,
    }
}

/// A histogram of delays in µs, to three digits.
fn empty_delays() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_DELAY_US, 3).expect("constant, valid bounds")
}

#[cfg(test)]
mod tests;
