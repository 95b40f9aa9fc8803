//! A model of an agent, a server and the network between them, beside the dispatcher.

use bytemuck::Zeroable;
use cc_ebpf::{FEATURES, Header, Identity, OpenedRecord, Record, WindowRecord};
use proptest::prelude::*;

use super::*;
use crate::{agent::Agent, interface::Interface};

const MS: u64 = 1_000_000;
/// Length of a window, ns.
const INTERVAL: u64 = 100 * MS;
const SLOTS: u32 = 3;

/// An agent whose flows are asked about through a dispatcher, and a network that keeps every
/// message until the test does something with it.
struct World {
    agent: Agent,
    dispatcher: Dispatcher,
    now_ns: u64,
    /// The generation and the newest window of each slot.
    flows: Vec<(u32, u32)>,
    /// Replies on their way, each with the end of its question's interval.
    replies: Vec<(u64, Reply)>,
    /// Replies that the server has accepted in time, by flow: what its memory must be.
    accepted: HashMap<FlowId, u32>,
    /// Windows that were given to the agent.
    windows: u64,
    published: Vec<(u32, u32)>,
    shared: bool,
}

/// What a memory begins with that belongs to this flow.
fn tag(id: FlowId) -> f32 {
    id.slot as f32 + id.generation as f32 * 100.0
}

impl World {
    fn new(shared: bool) -> Self {
        Self::patient(shared, INTERVAL)
    }

    /// A world in which answers are waited for that long.
    fn patient(shared: bool, patience_ns: u64) -> Self {
        let local = shared.then(|| "same".to_owned());
        let mut world = Self {
            agent: Agent::new(Interface::default(), SLOTS as usize),
            dispatcher: Dispatcher::new(INTERVAL, patience_ns, local),
            now_ns: 1_000 * MS,
            flows: vec![(0, 0); SLOTS as usize],
            replies: Vec::new(),
            accepted: HashMap::new(),
            windows: 0,
            published: Vec::new(),
            shared,
        };
        (0..SLOTS).for_each(|slot| world.open(slot));
        world
    }

    fn id(&self, slot: u32) -> FlowId {
        FlowId {
            slot,
            generation: self.flows[slot as usize].0,
        }
    }

    /// Opens the slot's next flow.
    fn open(&mut self, slot: u32) {
        let flow = &mut self.flows[slot as usize];
        *flow = (flow.0 + 1, 0);
        let record = OpenedRecord {
            header: Header::of::<OpenedRecord>(slot, flow.0, self.now_ns),
            identity: Identity {
                family: 2,
                mss: 1_448,
                initial_cwnd: 10,
                ..Identity::default()
            },
        };
        let record = Record::Opened(record);
        self.agent.on_record(self.now_ns, &record, |_| None);
    }

    /// Ends a window of the slot's flow now, and asks about what waits.
    fn window(&mut self, slot: u32) {
        let flow = &mut self.flows[slot as usize];
        flow.1 += 1;
        let mut record = WindowRecord::zeroed();
        record.header = Header::of::<WindowRecord>(slot, flow.0, self.now_ns);
        record.start_ns = self.now_ns - INTERVAL;
        (record.index, record.cwnd, record.mss) = (flow.1, 10, 1_448);
        record.add(&[1_000; FEATURES]);
        let record = Record::Window(record);
        self.agent.on_record(self.now_ns, &record, |_| None);
        self.windows += 1;
        self.ask();
    }

    fn ask(&mut self) {
        let batch = self.agent.take_batch(256);
        let questions = self.dispatcher.route(self.now_ns, batch);
        for question in questions {
            let memory = &question.query.state.h;
            let tag = tag(question.flow);
            assert!(memory.is_empty() || memory[0] == tag, "another flow's");
            if !self.shared {
                let moves = memory.get(1).map_or(0, |moves| *moves as u32);
                let accepted = self.accepted.get(&question.flow).copied().unwrap_or(0);
                assert_eq!(moves, accepted, "it moves once with each reply in time");
            }
            let moves = memory.get(1).copied().unwrap_or(0.0);
            let state = State {
                h: vec![tag, moves + 1.0],
                c: Vec::new(),
            };
            let reply = Reply {
                sequence: question.sequence,
                flow: question.flow,
                choice: Choice::Cwnd(70),
                probabilities: Vec::new(),
                state,
            };
            self.replies.push((question.deadline_ns, reply));
        }
        self.decide_here();
    }

    /// The local policy decides on what it was given.
    fn decide_here(&mut self) {
        let mut batch = self.dispatcher.take_local(256);
        let flows: Vec<FlowId> = batch.tickets().iter().map(|ticket| ticket.flow).collect();
        for (query, id) in batch.queries.iter_mut().zip(flows) {
            let memory = &mut query.state.h;
            if !self.shared {
                assert!(memory.is_empty() || memory[0] == -1.0, "the server's");
                *memory = vec![-1.0];
            } else if memory.is_empty() {
                *memory = vec![tag(id), 1.0];
            } else {
                memory[1] += 1.0;
            }
        }
        let choices = vec![Choice::Cwnd(20); batch.len()];
        self.publish(batch, &choices);
    }

    fn publish(&mut self, batch: Batch, choices: &[Choice]) {
        let published = &mut self.published;
        self.agent
            .on_choices(self.now_ns, batch, choices, |slot, decision| {
                published.push((slot, decision.cwnd));
            });
    }

    fn deliver(&mut self, reply: Reply, deadline_ns: u64, first: bool) {
        let is_out = self.dispatcher.asked.contains_key(&reply.sequence);
        if is_out && first && deadline_ns >= self.now_ns {
            *self.accepted.entry(reply.flow).or_default() += 1;
        }
        let (batch, choices) = self.dispatcher.on_replies(self.now_ns, [reply]);
        self.publish(batch, &choices);
        self.settle();
    }

    fn advance(&mut self, ns: u64) {
        self.now_ns += ns;
        self.dispatcher.expire(self.now_ns);
        self.settle();
    }

    /// Flows that were decided on may be asked about again.
    fn settle(&mut self) {
        self.decide_here();
        self.ask();
    }

    /// The decisions since the last call, by slot and cwnd: 70 is the server's, 20 the local one's.
    fn decisions(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.published)
    }
}

#[test]
fn the_server_decides_while_it_answers_in_time() {
    let mut world = World::new(false);
    world.window(0);
    assert_eq!(world.decisions(), [(0, 20)], "there is no connection yet");
    world.dispatcher.connected("server");
    for _ in 0..3 {
        world.advance(INTERVAL);
        world.window(0);
        assert_eq!(world.decisions(), [], "the server has its interval");
        world.advance(80 * MS);
        let (deadline, reply) = world.replies.pop().expect("it was asked");
        world.deliver(reply, deadline, true);
        assert_eq!(world.decisions(), [(0, 70)]);
    }
    let counts = world.dispatcher.counts();
    assert_eq!((counts.asked, counts.answered, counts.local), (3, 3, 1));
}

#[test]
fn the_local_policy_stands_in_for_a_late_server_and_hands_back() {
    let mut world = World::new(false);
    world.dispatcher.connected("server");
    world.window(0);
    world.advance(INTERVAL + 1);
    assert_eq!(world.decisions(), [(0, 20)], "the interval is over");
    let (deadline, late) = world.replies.pop().expect("it was asked");
    world.deliver(late, deadline, true);
    assert_eq!(world.decisions(), [], "dropped");
    // The next query goes to both; the local policy decides without waiting.
    world.window(0);
    assert_eq!(world.decisions(), [(0, 20)]);
    let (deadline, probe) = world.replies.pop().expect("it was asked, too");
    world.deliver(probe.clone(), deadline, true);
    assert_eq!(world.decisions(), [], "one decision for a window");
    world.advance(INTERVAL);
    world.window(0);
    assert_eq!(world.decisions(), [], "the server has the flow back");
    let (deadline, reply) = world.replies.pop().expect("it was asked");
    world.deliver(probe, deadline, false);
    world.deliver(reply, deadline, true);
    assert_eq!(
        world.decisions(),
        [(0, 70)],
        "and only its own reply counts"
    );
    let counts = world.dispatcher.counts();
    assert_eq!((counts.late, counts.refused, counts.answered), (1, 1, 2));
}

#[test]
fn a_patient_agent_leaves_the_cwnd_alone_until_a_late_answer_comes() {
    let mut world = World::patient(false, 5 * INTERVAL);
    world.dispatcher.connected("server");
    world.window(0);
    for _ in 0..4 {
        world.advance(INTERVAL);
        world.window(0);
        assert_eq!(world.decisions(), [], "the answer may still come");
    }
    assert_eq!(world.replies.len(), 1, "one question of a flow is out");
    world.advance(50 * MS);
    let (deadline, reply) = world.replies.pop().expect("it was asked");
    world.deliver(reply, deadline, true);
    assert_eq!(world.decisions(), [(0, 70)]);
    // The newest window is asked about next, half an interval old; then the patience ends.
    let (deadline, reply) = world.replies.pop().expect("it was asked");
    assert_eq!(deadline, world.now_ns - 50 * MS + 5 * INTERVAL);
    world.advance(deadline - world.now_ns);
    assert_eq!(world.decisions(), []);
    world.advance(1);
    assert_eq!(world.decisions(), [(0, 20)], "the local policy stands in");
    world.deliver(reply, deadline, true);
    let counts = world.dispatcher.counts();
    assert_eq!((counts.asked, counts.answered, counts.late), (2, 1, 1));
}

#[test]
fn a_connection_that_ends_leaves_its_questions_to_the_local_policy() {
    let mut world = World::new(false);
    world.dispatcher.connected("server");
    world.window(0);
    world.window(1);
    world.dispatcher.disconnected();
    world.settle();
    assert_eq!(world.decisions(), [(0, 20), (1, 20)]);
    world.advance(INTERVAL);
    world.window(0);
    assert_eq!(world.decisions(), [(0, 20)], "at once");
    assert_eq!(world.dispatcher.counts().lost, 2);
    // Another server with another policy: its memory begins anew.
    world.dispatcher.connected("other");
    world.accepted.clear();
    world.window(1);
    assert_eq!(world.replies.len(), 3);
}

#[test]
fn a_reply_without_a_choice_or_about_another_flow_decides_nothing() {
    let mut world = World::new(false);
    world.dispatcher.connected("server");
    world.window(0);
    let (_, reply) = world.replies.pop().expect("it was asked");
    let other = Reply {
        flow: world.id(1),
        ..reply.clone()
    };
    let now = world.now_ns;
    assert!(world.dispatcher.on_replies(now, [other]).0.is_empty());
    let invalid = Reply {
        choice: Choice::Invalid,
        ..reply
    };
    assert!(world.dispatcher.on_replies(now, [invalid]).0.is_empty());
    world.settle();
    assert_eq!(world.decisions(), [(0, 20)]);
    assert_eq!(world.dispatcher.counts().refused, 2);
}

#[test]
fn closed_flows_are_forgotten() {
    let mut world = World::new(false);
    world.dispatcher.connected("server");
    world.window(0);
    world.window(1);
    world.dispatcher.reconcile(|slot| (slot == 1).then_some(1));
    assert_eq!(world.dispatcher.flows.len(), 1);
}

#[test]
fn what_is_undecided_at_the_end_is_given_back() {
    let mut world = World::new(false);
    world.dispatcher.connected("server");
    (0..SLOTS).for_each(|slot| world.window(slot));
    let World {
        mut agent,
        dispatcher,
        ..
    } = world;
    let batch = dispatcher.into_batch();
    assert_eq!(batch.len(), SLOTS as usize);
    agent.on_no_answer(batch);
    assert_eq!(agent.counts().answers_missing, u64::from(SLOTS));
}

#[test]
fn rows_say_who_decided() {
    use crate::{
        ServedPolicy,
        rows::{AddressForm, Addresses, Episodes, FileHeader},
    };
    let header = |policy: &str, server: Option<&str>| {
        std::sync::Arc::new(FileHeader {
            interface: Interface::default(),
            policy: policy.into(),
            policy_metadata: None,
            server: server.map(Into::into),
            agent_version: String::new(),
            kernel: String::new(),
            host: [].into(),
            started_ns: 0,
            utc_offset_ns: 0,
            addresses: AddressForm::Absent,
        })
    };
    let mut world = World::new(false);
    let episodes = Episodes::named("test");
    world.agent.start_recording(episodes, Addresses::Absent);
    world.agent.replace(ServedPolicy {
        interface: Interface::default(),
        header: Some(header("local", None)),
    });
    let server = header("remote", Some("grpc://server:1"));
    world.agent.set_server_header(Some(server));
    world.open(0);
    world.window(0);
    world.dispatcher.connected("server");
    world.advance(INTERVAL);
    world.window(0);
    let (deadline, reply) = world.replies.pop().expect("it was asked");
    world.deliver(reply, deadline, true);
    world.agent.stop_recording();
    let rows = world.agent.take_rows();
    let who: Vec<_> = rows
        .iter()
        .map(|row| (row.header.policy.as_str(), row.header.server.as_deref()))
        .collect();
    assert_eq!(who, [("local", None), ("remote", Some("grpc://server:1"))]);
    assert_eq!(rows[0].row.flow, rows[1].row.flow, "one episode");
}

#[derive(Clone, Debug)]
enum Event {
    Window(u32),
    Reopen(u32),
    /// Delivers one of the replies on their way; the reply stays when it is to come again.
    Deliver {
        which: usize,
        again: bool,
    },
    Lose(usize),
    Advance(u64),
    Connect,
    Disconnect,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0..SLOTS).prop_map(Event::Window),
        1 => (0..SLOTS).prop_map(Event::Reopen),
        6 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, again)| Event::Deliver { which, again }),
        2 => any::<usize>().prop_map(Event::Lose),
        4 => (0..150 * MS).prop_map(Event::Advance),
        1 => Just(Event::Connect),
        1 => Just(Event::Disconnect),
    ];
    prop::collection::vec(event, 1..120)
}

proptest! {
    #[test]
    fn whatever_the_network_does_memories_stay_apart_and_every_window_is_decided(
        events in events(),
        shared: bool,
        patience_ns in INTERVAL / 2..5 * INTERVAL,
    ) {
        let mut world = World::patient(shared, patience_ns);
        let mut delivered = std::collections::HashSet::new();
        for event in events {
            match event {
                Event::Window(slot) => world.window(slot),
                Event::Reopen(slot) => world.open(slot),
                Event::Deliver { which, again } => {
                    if world.replies.is_empty() {
                        continue;
                    }
                    let which = which % world.replies.len();
                    let (deadline, reply) = match again {
                        true => world.replies[which].clone(),
                        false => world.replies.swap_remove(which),
                    };
                    let first = delivered.insert(reply.sequence);
                    world.deliver(reply, deadline, first);
                }
                Event::Lose(which) => {
                    if !world.replies.is_empty() {
                        let which = which % world.replies.len();
                        world.replies.swap_remove(which);
                    }
                }
                Event::Advance(ns) => world.advance(ns),
                Event::Connect => {
                    let policy = if shared { "same" } else { "server" };
                    world.dispatcher.connected(policy);
                }
                Event::Disconnect => {
                    world.dispatcher.disconnected();
                    world.settle();
                }
            }
        }
        // Once nothing is waited for any more, each window is accounted for.
        world.settle();
        world.advance(patience_ns + 1);
        world.advance(patience_ns + 1);
        let counts = world.agent.counts();
        prop_assert!(!world.agent.has_waiting());
        prop_assert_eq!(world.dispatcher.asked.len(), 0);
        prop_assert_eq!(world.dispatcher.local.len(), 0);
        if world.flows.iter().all(|flow| flow.0 == 1) {
            prop_assert_eq!(world.windows, counts.decisions + counts.windows_skipped);
        }
        // Every question is in one of the counts, once the last may no longer be late.
        world.advance(INTERVALS_UNTIL_LOST * INTERVAL + 1);
        let RemoteCounts { asked, answered, late, lost, .. } = world.dispatcher.counts();
        prop_assert_eq!(asked, answered + late + lost);
        // No flow is left with a question that nobody answers.
        world.dispatcher.disconnected();
        world.decisions();
        (0..SLOTS).for_each(|slot| world.window(slot));
        prop_assert_eq!(world.decisions(), [(0, 20), (1, 20), (2, 20)]);
    }
}
