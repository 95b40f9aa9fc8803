//! Asking a policy server over a network, with a local policy that stands in for it.
//!
//! [`Dispatcher`] says for each query of the incumbent's flows who decides: the server, or the
//! local policy where the server is away or late. It is pure: batches of the
//! [`Agent`](crate::agent::Agent) come in with the time, questions for the server and batches for
//! the local policy come out, replies come in, and answered batches come out. A question has until
//! its patience, by default one observation interval, has passed since its window's end. What
//! arrives later is dropped. The agent asks about one window of a flow at a time, so that a flow
//! keeps its cwnd while an answer is waited for.
//!
//! ```text
//!              the flow's last question            in time
//!              was answered in time  ──► server ─────────────► the server's decision
//!   query ──┤                              │ late, lost, refused
//!              it was not                  ▼
//!           └──────────────────────► local policy ───────────► the local policy's decision
//!                and, beside it, ──► server ── in time ──► its next query goes to the server
//! ```
//!
//! # Memory
//!
//! The server keeps nothing of a flow: each question carries the recurrent state, and each reply
//! brings the next one. The state of the server's policy is kept here and that of the local policy
//! in the agent, apart from each other, unless both are the same file. A state is replaced only by
//! the reply to the newest question of its flow, and only in time, so that replies that are lost,
//! late, repeated or out of order leave it as it was.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque, hash_map::Entry},
};

use crate::{
    agent::{Batch, Ticket},
    flows::FlowId,
    policy::{Choice, Query, State},
    status::RemoteCounts,
};

/// A question whose reply has not come is counted as lost this many intervals after its time is
/// over; until then the reply may still be counted as late.
const INTERVALS_UNTIL_LOST: u64 = 9;

/// What a policy server is asked about one flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Number of the question, which no other question of this agent has.
    pub sequence: u64,
    /// The flow that the question is about.
    pub flow: FlowId,
    /// Until when the reply is of use, ns.
    pub deadline_ns: u64,
    /// The query, with the memory of the server's policy.
    pub query: Query,
}

/// What a policy server replies to a [`Question`].
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Number of the question that this is the answer to.
    pub sequence: u64,
    /// The flow that the question was about.
    pub flow: FlowId,
    /// What the server's policy has chosen.
    pub choice: Choice,
    /// The probabilities of all actions, in their order; empty when the policy gives none.
    pub probabilities: Vec<f32>,
    /// The policy's memory of the flow after this decision.
    pub state: State,
}

/// Says who decides on each query, the server or the local policy, and keeps the memory of the
/// server's policy.
#[derive(Debug)]
pub struct Dispatcher {
    interval_ns: u64,
    /// How long after its window's end a question may be answered, ns.
    patience_ns: u64,
    /// SHA-256 of the local policy's file; `None` when it has none.
    local_policy: Option<String>,
    /// SHA-256 of the file of the server's policy, once there was a connection.
    server_policy: Option<String>,
    connected: bool,
    next_sequence: u64,
    /// What is kept of the flows that the server was asked about, by their slots.
    flows: HashMap<u32, RemoteFlow>,
    /// The questions whose time is not over, by their numbers.
    asked: HashMap<u64, Asked>,
    /// Until when those of `asked` have time, ns, with the numbers. Those of answered questions
    /// stay until their time has come.
    deadlines: BinaryHeap<Reverse<(u64, u64)>>,
    /// Questions that were not answered in time, with the time at which they count as lost, ns.
    overdue: BTreeMap<u64, u64>,
    /// What the local policy is to decide, the oldest first.
    local: VecDeque<(Ticket, Query)>,
    counts: RemoteCounts,
}

/// What is kept of a flow that the server was asked about.
#[derive(Debug)]
struct RemoteFlow {
    generation: u32,
    /// The flow's last question was answered in time, or there was none.
    in_time: bool,
    /// The number of the question that is out.
    asked: Option<u64>,
    /// The memory of the server's policy; unused when the local policy is the same file.
    state: State,
}

/// A question that is out.
#[derive(Debug)]
struct Asked {
    flow: FlowId,
    /// What the local policy decides if the server does not; `None` when it has been told to.
    held: Option<(Ticket, Query)>,
}

impl Dispatcher {
    /// A dispatcher without a connection, for windows of `interval_ns`, whose questions have until
    /// `patience_ns` after their window's end. `local_policy` is the SHA-256 of the local policy's
    /// file; `None` when it has none.
    pub fn new(interval_ns: u64, patience_ns: u64, local_policy: Option<String>) -> Self {
        Self {
            interval_ns,
            patience_ns,
            local_policy,
            server_policy: None,
            connected: false,
            next_sequence: 0,
            flows: HashMap::new(),
            asked: HashMap::new(),
            deadlines: BinaryHeap::new(),
            overdue: BTreeMap::new(),
            local: VecDeque::new(),
            counts: RemoteCounts::default(),
        }
    }

    /// Notes that a server is connected whose policy has this SHA-256. The memory of another policy
    /// is dropped.
    pub fn connected(&mut self, server_policy: &str) {
        self.disconnected();
        self.connected = true;
        if self.server_policy.as_deref() != Some(server_policy) {
            self.server_policy = Some(server_policy.to_owned());
            self.flows.clear();
        }
    }

    /// Notes that the connection has ended: what the server was asked goes to the local policy.
    pub fn disconnected(&mut self) {
        self.connected = false;
        let mut out: Vec<u64> = self.asked.keys().copied().collect();
        out.sort_unstable();
        self.not_sent(out);
        self.counts.lost += self.overdue.len() as u64;
        self.overdue.clear();
    }

    /// Whether a server is connected.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Distributes the queries of a batch of the incumbent's. Returns the questions for the server;
    /// the others wait for the local policy ([`Self::take_local`]).
    pub fn route(&mut self, now_ns: u64, batch: Batch) -> Vec<Question> {
        let shared = self.memory_is_shared();
        let mut questions = Vec::new();
        for (ticket, query) in batch.into_queries() {
            let deadline_ns = ticket.end_ns + self.patience_ns;
            if !self.connected || deadline_ns <= now_ns {
                self.local.push_back((ticket, query));
                continue;
            }
            let id = ticket.flow;
            let new = || RemoteFlow {
                generation: id.generation,
                in_time: true,
                asked: None,
                state: State::default(),
            };
            let flow = self.flows.entry(id.slot).or_insert_with(new);
            if flow.generation != id.generation {
                *flow = new();
            }
            if flow.asked.is_some() {
                self.local.push_back((ticket, query));
                continue;
            }
            let sequence = self.next_sequence;
            self.next_sequence += 1;
            flow.asked = Some(sequence);
            let in_time = flow.in_time;
            let state = match shared {
                true => query.state.clone(),
                false => flow.state.clone(),
            };
            questions.push(Question {
                sequence,
                flow: id,
                deadline_ns,
                query: Query {
                    observation: query.observation.clone(),
                    state,
                    probabilities: Vec::new(),
                    ..query
                },
            });
            let held = match in_time {
                true => Some((ticket, query)),
                false => {
                    self.local.push_back((ticket, query));
                    None
                }
            };
            self.counts.asked += 1;
            self.deadlines.push(Reverse((deadline_ns, sequence)));
            self.asked.insert(sequence, Asked { flow: id, held });
        }
        questions
    }

    /// Takes questions back that cannot be sent, or whose replies can no longer come: they count as
    /// lost, and the local policy decides.
    pub fn not_sent(&mut self, sequences: impl IntoIterator<Item = u64>) {
        for sequence in sequences {
            if let Some(asked) = self.asked.remove(&sequence) {
                self.counts.lost += 1;
                self.hand_over(sequence, asked);
            }
        }
    }

    /// Takes replies that have come at `now_ns`. Returns the batch that they answer, with the
    /// choices, for [`crate::agent::Agent::on_choices`].
    pub fn on_replies(
        &mut self,
        now_ns: u64,
        replies: impl IntoIterator<Item = Reply>,
    ) -> (Batch, Vec<Choice>) {
        self.expire(now_ns);
        let shared = self.memory_is_shared();
        let mut answered = Vec::new();
        let mut choices = Vec::new();
        for reply in replies {
            let Entry::Occupied(asked) = self.asked.entry(reply.sequence) else {
                match self.overdue.remove(&reply.sequence) {
                    Some(_) => self.counts.late += 1,
                    None => self.counts.refused += 1,
                }
                continue;
            };
            if asked.get().flow != reply.flow {
                self.counts.refused += 1;
                continue;
            }
            let asked = asked.remove();
            if reply.choice == Choice::Invalid {
                self.counts.refused += 1;
                self.hand_over(reply.sequence, asked);
                continue;
            }
            self.counts.answered += 1;
            let flow = self.flows.get_mut(&asked.flow.slot);
            if let Some(flow) = flow.filter(|flow| flow.asked == Some(reply.sequence)) {
                flow.asked = None;
                flow.in_time = true;
                if !shared {
                    flow.state = reply.state.clone();
                }
            }
            if let Some((ticket, mut query)) = asked.held {
                query.probabilities = reply.probabilities;
                if shared {
                    query.state = reply.state;
                }
                answered.push((ticket, query));
                choices.push(reply.choice);
            }
        }
        // Nobody need wake up for questions that were answered.
        let is_out = |&Reverse((_, sequence)): &_| self.asked.contains_key(&sequence);
        while self.deadlines.peek().is_some_and(|first| !is_out(first)) {
            self.deadlines.pop();
        }
        (Batch::gathered(true, answered), choices)
    }

    /// Gives what the server has not answered in time to the local policy.
    pub fn expire(&mut self, now_ns: u64) {
        while let Some(&Reverse((deadline_ns, sequence))) = self.deadlines.peek() {
            if deadline_ns >= now_ns {
                break;
            }
            self.deadlines.pop();
            if let Some(asked) = self.asked.remove(&sequence) {
                let lost_ns = deadline_ns + INTERVALS_UNTIL_LOST * self.interval_ns;
                self.overdue.insert(sequence, lost_ns);
                self.hand_over(sequence, asked);
            }
        }
        while let Some(first) = self.overdue.first_entry() {
            if *first.get() >= now_ns {
                break;
            }
            first.remove();
            self.counts.lost += 1;
        }
    }

    /// When [`Self::expire`] is due next, ns; `None` while no question is out.
    pub fn due_ns(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse((at, _))| at + 1)
    }

    /// Takes up to `most` queries for the local policy, the oldest first.
    pub fn take_local(&mut self, most: usize) -> Batch {
        let count = most.min(self.local.len());
        self.counts.local += count as u64;
        Batch::gathered(false, self.local.drain(..count))
    }

    /// Forgets the flows that are closed. `occupant` returns the generation of the flow that is
    /// live in a slot.
    pub fn reconcile(&mut self, mut occupant: impl FnMut(u32) -> Option<u32>) {
        self.flows
            .retain(|&slot, flow| occupant(slot) == Some(flow.generation));
    }

    /// Ends: returns what nobody has decided yet.
    pub fn into_batch(mut self) -> Batch {
        self.disconnected();
        Batch::gathered(false, self.local)
    }

    /// Counts of questions and decisions since the start.
    pub fn counts(&self) -> RemoteCounts {
        self.counts
    }

    /// Notes that a question will have no answer in time, and gives its query to the local policy
    /// unless that has it already.
    fn hand_over(&mut self, sequence: u64, asked: Asked) {
        let flow = self.flows.get_mut(&asked.flow.slot);
        if let Some(flow) = flow.filter(|flow| flow.asked == Some(sequence)) {
            flow.asked = None;
            flow.in_time = false;
        }
        self.local.extend(asked.held);
    }

    /// Whether server and local policy are the same file, so that either continues the other's
    /// memory.
    fn memory_is_shared(&self) -> bool {
        self.local_policy.is_some() && self.local_policy == self.server_policy
    }
}

#[cfg(test)]
mod tests;
