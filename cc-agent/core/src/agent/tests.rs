//! The agent's core, fed with records made by the tests.

use std::sync::Arc;

use bytemuck::Zeroable;
use cc_ebpf::{ClosedRecord, FEATURES, Feature, Header, Mode, OpenedRecord};

use super::*;
use crate::{
    canary::CanaryBy,
    rows::{AddressForm, FileHeader},
};

const MS: u64 = 1_000_000;

fn agent() -> Agent {
    Agent::new(Interface::default(), 8)
}

fn opened(slot: u32, generation: u32, now_ns: u64) -> Record {
    Record::Opened(OpenedRecord {
        header: Header::of::<OpenedRecord>(slot, generation, now_ns),
        identity: Identity {
            family: 2,
            mss: 1_448,
            initial_cwnd: 10,
            ..Identity::default()
        },
    })
}

fn window_record(slot: u32, generation: u32, index: u32, cwnd: u32) -> WindowRecord {
    let mut window = WindowRecord::zeroed();
    window.start_ns = u64::from(index) * 100 * MS;
    window.header = Header::of::<WindowRecord>(slot, generation, window.start_ns + 101 * MS);
    window.index = index;
    window.cwnd = cwnd;
    window.mss = 1_448;
    window.add(&[1_000; FEATURES]);
    window
}

fn closed(slot: u32, generation: u32) -> Record {
    let mut record = ClosedRecord::zeroed();
    record.header = Header::of::<ClosedRecord>(slot, generation, 0);
    Record::Closed(record)
}

fn feed(agent: &mut Agent, record: &Record) {
    agent.on_record(record.header().time_ns, record, |_| None);
}

fn feed_window(agent: &mut Agent, slot: u32, index: u32, cwnd: u32) {
    feed(agent, &Record::Window(window_record(slot, 1, index, cwnd)));
}

/// Answers a batch with one choice for all, and returns what was published.
fn answer(agent: &mut Agent, batch: Batch, choice: Choice, now_ns: u64) -> Vec<(u32, Decision)> {
    let choices = vec![choice; batch.len()];
    let mut published = Vec::new();
    agent.on_choices(now_ns, batch, &choices, |slot, decision| {
        published.push((slot, decision));
    });
    published
}

const DOUBLE: Choice = Choice::Action {
    index: 4,
    probability: 1.0,
};

#[test]
fn a_window_becomes_a_query_becomes_a_decision() {
    let mut agent = agent();
    feed(&mut agent, &opened(3, 1, 0));
    feed_window(&mut agent, 3, 1, 10);
    let batch = agent.take_batch(64);
    assert_eq!(batch.len(), 1);
    assert_eq!(batch.queries[0].cwnd, 10);
    assert_eq!(batch.queries[0].observation.len(), 220);
    // The window began at 100 ms and ended at 200 ms.
    let published = answer(&mut agent, batch, DOUBLE, 203 * MS);
    let expected = Decision {
        generation: 1,
        window: 1,
        cwnd: 20,
    };
    assert_eq!(published, [(3, expected)]);
    assert_eq!(agent.views(8)[0].decision_delay_ms, 3.0);
    assert_eq!(agent.views(8)[0].action, "*2");
    assert_eq!(agent.counts().decisions_late, 0);
}

#[test]
fn a_policy_that_leaves_slow_start_alone_is_first_asked_after_it() {
    for after_slow_start in [false, true] {
        let interface = Interface {
            after_slow_start,
            ..Interface::default()
        };
        let mut agent = Agent::new(interface, 8);
        feed(&mut agent, &opened(3, 1, 0));
        for index in 1..=3 {
            let mut window = window_record(3, 1, index, 10 << index);
            window.slow_start = u32::from(index < 3);
            feed(&mut agent, &Record::Window(window));
            let batch = agent.take_batch(1);
            let is_asked = !after_slow_start || index == 3;
            assert_eq!(batch.len(), usize::from(is_asked), "window {index}");
            answer(&mut agent, batch, Choice::Invalid, 0);
        }
        let expected = if after_slow_start { 2 } else { 0 };
        assert_eq!(agent.counts().windows_in_slow_start, expected);
    }
}

#[test]
fn a_flow_observes_the_least_rtt_of_its_path_where_it_is_shared() {
    for (shared_path, expected) in [(false, 0.0), (true, 4_f32.ln())] {
        let interface = Interface {
            situation: 20,
            shared_path,
            ..Interface::default()
        };
        let floor = interface.situation_offset();
        let mut agent = Agent::new(interface, 8);
        let mut floors = Vec::new();
        for (slot, rtt_us) in [(0, 20_000), (1, 80_000), (2, 80_000)] {
            let Record::Opened(mut record) = opened(slot, 1, 0) else {
                unreachable!("it is made so");
            };
            // The last flow is with another host.
            record.identity.remote_addr[0] = slot / 2;
            feed(&mut agent, &Record::Opened(record));
            let mut window = WindowRecord::zeroed();
            window.header = Header::of::<WindowRecord>(slot, 1, 100 * MS);
            window.index = 1;
            window.mss = 1_448;
            window.add(&[rtt_us; FEATURES]);
            feed(&mut agent, &Record::Window(window));
            floors.push(agent.take_batch(1).queries[0].observation[floor]);
        }
        assert_eq!(floors, [0.0, expected, 0.0], "shared: {shared_path}");
    }
}

#[test]
fn a_flow_keeps_its_own_delays() {
    let mut agent = agent();
    for slot in [0, 1] {
        feed(&mut agent, &opened(slot, 1, 0));
    }
    // Window i ends at (i + 1) * 100 ms; the answers come 6, 1 and 2 ms later.
    for (index, delay) in [(1, 6), (2, 1), (3, 2)] {
        feed_window(&mut agent, 0, index, 10);
        let batch = agent.take_batch(1);
        let now_ns = (u64::from(index + 1) * 100 + delay) * MS;
        answer(&mut agent, batch, DOUBLE, now_ns);
    }
    let views = agent.views(8);
    assert_eq!(views[0].decisions, 3);
    assert_eq!(views[0].decision_delay_ms, 2.0);
    assert_eq!(views[0].decision_delay_max_ms, 6.0);
    let about = |value: f64, ms: f64| (value / ms - 1.0).abs() < 0.07;
    assert!(about(views[0].decision_delay_p50_ms, 2.0), "{views:?}");
    assert!(about(views[0].decision_delay_p99_ms, 6.0), "{views:?}");
    let other = &views[1];
    assert_eq!((other.decisions, other.decision_delay_p99_ms), (0, 0.0));
}

#[test]
fn a_batch_that_nobody_answers_frees_its_flows() {
    let mut agent = agent();
    for slot in [0, 1] {
        feed(&mut agent, &opened(slot, 1, 0));
        feed_window(&mut agent, slot, 1, 10);
    }
    let mut batch = agent.take_batch(2);
    batch.queries[0].state.h = vec![1.0];
    feed_window(&mut agent, 0, 2, 10);
    assert!(agent.take_batch(2).is_empty(), "they are with the policy");
    agent.on_no_answer(batch);
    assert_eq!(agent.counts().answers_missing, 2);
    let mut batch = agent.take_batch(2);
    assert_eq!(batch.len(), 1, "flow 1 has no newer window");
    assert_eq!(batch.queries[0].state.h, [1.0], "the state is kept");
    // The queries may be lost with the policy that had them.
    feed_window(&mut agent, 0, 3, 10);
    batch.queries.clear();
    agent.on_no_answer(batch);
    let batch = agent.take_batch(2);
    assert_eq!(batch.queries[0].state, State::default());
    assert_eq!(answer(&mut agent, batch, DOUBLE, 0).len(), 1);
}

#[test]
fn a_late_policy_answers_the_newest_window() {
    let mut agent = agent();
    feed(&mut agent, &opened(0, 1, 0));
    feed_window(&mut agent, 0, 1, 10);
    let first = agent.take_batch(64);
    for index in 2..=4 {
        feed_window(&mut agent, 0, index, 10);
    }
    assert!(agent.take_batch(64).is_empty(), "one query at a time");
    answer(&mut agent, first, DOUBLE, 600 * MS);
    let second = agent.take_batch(64);
    let published = answer(&mut agent, second, DOUBLE, 601 * MS);
    assert_eq!(published[0].1.window, 4);
    assert_eq!(agent.counts().windows_skipped, 2);
    assert_eq!(agent.counts().decisions_late, 2);
}

#[test]
fn actions_work_on_the_last_decision_while_it_rules() {
    let mut agent = agent();
    feed(&mut agent, &opened(0, 1, 0));
    feed_window(&mut agent, 0, 1, 10);
    let batch = agent.take_batch(1);
    answer(&mut agent, batch, DOUBLE, 0);
    // A timeout has taken the kernel's window down; the decision stands.
    let mut window = window_record(0, 1, 2, 3);
    window.mode = Mode::AfterTimeout as u32;
    feed(&mut agent, &Record::Window(window));
    assert_eq!(agent.take_batch(1).queries[0].cwnd, 20);
    // In the fallback it does not: the window is what Reno made of it.
    let mut agent = self::agent();
    feed(&mut agent, &opened(0, 1, 0));
    let mut window = window_record(0, 1, 2, 33);
    window.mode = Mode::Fallback as u32;
    window.decision = Decision {
        generation: 1,
        window: 1,
        cwnd: 90,
    }
    .to_cell();
    feed(&mut agent, &Record::Window(window));
    assert_eq!(agent.take_batch(1).queries[0].cwnd, 33);
}

#[test]
fn an_invalid_answer_leaves_the_flow_alone() {
    let mut agent = agent();
    feed(&mut agent, &opened(0, 1, 0));
    feed_window(&mut agent, 0, 1, 10);
    let batch = agent.take_batch(1);
    assert!(answer(&mut agent, batch, Choice::Invalid, 0).is_empty());
    assert_eq!(agent.counts().answers_invalid, 1);
    feed_window(&mut agent, 0, 2, 10);
    assert_eq!(agent.take_batch(1).len(), 1, "it is asked again");
}

#[test]
fn an_answer_never_reaches_the_slots_next_flow() {
    let mut agent = agent();
    feed(&mut agent, &opened(0, 1, 0));
    feed_window(&mut agent, 0, 1, 10);
    let batch = agent.take_batch(1);
    feed(&mut agent, &closed(0, 1));
    feed(&mut agent, &opened(0, 2, 0));
    assert!(answer(&mut agent, batch, DOUBLE, 0).is_empty());
    assert_eq!(agent.counts().answers_orphaned, 1);
    feed(&mut agent, &closed(0, 1));
    assert_eq!(agent.live(), 1, "an old flow's end is not the new one's");
}

fn silent_flow(index: u32, start_ns: u64) -> Flow {
    let mut flow = Flow::zeroed();
    flow.generation = 1;
    flow.live = 1;
    flow.opened.header = Header::of::<OpenedRecord>(0, 1, 0);
    flow.opened.identity.mss = 1_448;
    flow.window.index = index;
    flow.window.start_ns = start_ns;
    let mut features = [1_000; FEATURES];
    features[Feature::Cwnd as usize] = 14_480;
    flow.window.add(&features);
    flow
}

#[test]
fn a_silent_flows_window_is_closed_once() {
    let mut agent = agent();
    feed(&mut agent, &opened(0, 1, 50 * MS));
    let read = |slot| {
        assert_eq!(slot, 0);
        Some(silent_flow(1, 50 * MS))
    };
    assert_eq!(agent.close_silent(154 * MS, read), []);
    let closed = agent.close_silent(155 * MS, read);
    assert_eq!(closed.len(), 1);
    assert_eq!((closed[0].index, closed[0].header.time_ns), (1, 155 * MS));
    assert_eq!(agent.close_silent(400 * MS, read), []);
    let batch = agent.take_batch(1);
    assert_eq!((batch.len(), batch.queries[0].cwnd), (1, 10));
    answer(&mut agent, batch, DOUBLE, 156 * MS);
    // The datapath closes it too, at the next ACK: nothing new.
    let mut window = window_record(0, 1, 1, 10);
    window.start_ns = 50 * MS;
    feed(&mut agent, &Record::Window(window));
    assert!(agent.take_batch(1).is_empty());
    let counts = agent.counts();
    assert_eq!((counts.windows, counts.windows_closed_silent), (1, 1));
}

#[test]
fn a_silence_without_an_ack_is_no_window() {
    let mut agent = agent();
    feed(&mut agent, &opened(0, 1, 50 * MS));
    let mut flow = silent_flow(1, 50 * MS);
    flow.window.acks = 0;
    assert_eq!(agent.close_silent(155 * MS, |_| Some(flow)), []);
    assert!(!agent.has_waiting());
}

#[test]
fn a_slot_with_another_flow_has_no_window_to_close() {
    let mut agent = agent();
    feed(&mut agent, &opened(0, 1, 50 * MS));
    let mut next = silent_flow(1, 50 * MS);
    next.generation = 2;
    assert_eq!(agent.close_silent(155 * MS, |_| Some(next)), []);
    feed(&mut agent, &opened(1, 1, 200 * MS));
    assert_eq!(agent.close_silent(400 * MS, |_| None), []);
    assert!(!agent.has_waiting());
}

#[test]
fn lost_records_are_noticed() {
    let mut agent = agent();
    let record = Record::Window(window_record(2, 1, 5, 10));
    agent.on_record(0, &record, |slot| {
        assert_eq!(slot, 2);
        let mut flow = silent_flow(5, 0);
        flow.opened.header.slot = 2;
        Some(flow)
    });
    assert_eq!(agent.counts().flows_found_late, 1);
    assert_eq!(agent.take_batch(8).len(), 1);
    feed_window(&mut agent, 2, 8, 10);
    assert_eq!(agent.counts().windows_missed, 2);
    // Records of unknown flows are ignored.
    agent.on_record(0, &Record::Window(window_record(9, 1, 5, 10)), |_| None);
    agent.on_record(0, &Record::Window(window_record(3, 1, 5, 10)), |_| None);
    assert_eq!(agent.live(), 1);
}

#[test]
fn an_adopted_flow_continues_from_its_decision() {
    let mut agent = agent();
    let mut flow = silent_flow(7, 0);
    flow.opened.header.slot = 4;
    agent.adopt(&flow);
    let mut window = window_record(4, 1, 7, 40);
    window.mode = Mode::AfterTimeout as u32;
    window.decision = Decision {
        generation: 1,
        window: 6,
        cwnd: 44,
    }
    .to_cell();
    feed(&mut agent, &Record::Window(window));
    assert_eq!(agent.counts().windows_missed, 0);
    assert_eq!(agent.take_batch(1).queries[0].cwnd, 44);
}

#[test]
fn an_adopted_flow_has_been_idle_since_its_last_window() {
    let mut agent = agent();
    // Of the second the former agent has seen all windows that had an ACK.
    let mut flows = [silent_flow(7, 60_000 * MS), silent_flow(3, 50_000 * MS)];
    flows[1].opened.header.slot = 1;
    flows[1].window.acks = 0;
    for flow in &flows {
        agent.adopt(flow);
    }
    let now_ns = 400_000 * MS;
    let read = |slot| Some(flows[slot as usize]);
    assert_eq!(agent.close_silent(now_ns, read).len(), 1);
    let idle = |agent: &Agent, for_s: u64| {
        let idle = agent.idle_flows(now_ns, for_s * 1_000 * MS);
        idle.iter().map(|flow| flow.slot).collect::<Vec<_>>()
    };
    assert_eq!(idle(&agent, 339), [1, 0]);
    assert_eq!(idle(&agent, 345), [1]);
    let record = Record::Window(window_record(1, 1, 3, 10));
    agent.on_record(now_ns, &record, |_| None);
    assert_eq!(idle(&agent, 1), [0]);
}

#[test]
fn the_flows_that_come_first_are_found_among_all() {
    let mut agent = agent();
    for slot in 0..8 {
        feed(&mut agent, &opened(slot, 1, 0));
        feed_window(&mut agent, slot, 1, 10 + slot % 4);
    }
    let by_cwnd = |flow: &FlowView| (flow.slot != 7, f64::from(flow.cwnd));
    let slots = |most, shows: fn(&FlowView) -> bool| {
        let (flows, shown) = agent.views_by(most, shows, by_cwnd);
        let slots: Vec<u32> = flows.iter().map(|flow| flow.slot).collect();
        (slots, shown)
    };
    // Slot 7 has a large cwnd, but comes after the others.
    assert_eq!(slots(9, |_| true), (vec![3, 2, 6, 1, 5, 0, 4, 7], 8));
    assert_eq!(slots(3, |_| true), (vec![3, 2, 6], 8));
    assert_eq!(slots(1, |flow| flow.slot > 3), (vec![6], 4));
    // They are as the status shows them.
    let (flows, _) = agent.views_by(8, |_| true, |flow| (true, -f64::from(flow.slot)));
    assert_eq!(flows, agent.views(8));
}

mod arbitrary {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Open(u32, u32),
        Window(u32, u32, u32),
        Close(u32, u32),
        Silence(u32, u32),
        Ask(usize),
        Answer(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (slot, generation, index) = (0u32..10, 1u32..4, 1u32..6);
        prop_oneof![
            (slot.clone(), generation.clone()).prop_map(|(s, g)| Step::Open(s, g)),
            (slot.clone(), generation.clone(), index.clone())
                .prop_map(|(s, g, i)| Step::Window(s, g, i)),
            (slot.clone(), generation).prop_map(|(s, g)| Step::Close(s, g)),
            (slot, index).prop_map(|(s, i)| Step::Silence(s, i)),
            (0usize..4).prop_map(Step::Ask),
            any::<u8>().prop_map(Step::Answer),
        ]
    }

    proptest! {
        /// Whatever order things happen in: nothing panics, every query is of a live window, no
        /// flow has two queries out, and decisions stay within bounds.
        #[test]
        fn any_order_of_events(steps in proptest::collection::vec(step(), 0..300)) {
            let mut agent = agent();
            let mut out: VecDeque<Batch> = VecDeque::new();
            let mut now_ns = 0;
            for step in steps {
                now_ns += 10 * MS;
                match step {
                    Step::Open(s, g) => feed(&mut agent, &opened(s, g, now_ns)),
                    Step::Window(s, g, i) => {
                        feed(&mut agent, &Record::Window(window_record(s, g, i, 10)));
                    }
                    Step::Close(s, g) => feed(&mut agent, &closed(s, g)),
                    Step::Silence(s, i) => {
                        agent.close_silent(now_ns, |slot| {
                            let mut flow = silent_flow(i, 0);
                            flow.opened.header.slot = slot.max(s);
                            Some(flow)
                        });
                    }
                    Step::Ask(most) => {
                        let batch = agent.take_batch(most);
                        for ticket in &batch.tickets {
                            let twice = out.iter().flat_map(|b| &b.tickets)
                                .any(|other| other.flow == ticket.flow);
                            // A slot opened again under the same name starts afresh.
                            prop_assert!(!twice || agent.counts().flows > 1);
                        }
                        out.push_back(batch);
                    }
                    Step::Answer(kind) => {
                        let Some(batch) = out.pop_front() else { continue };
                        let choice = match kind % 3 {
                            0 => Choice::Invalid,
                            1 => Choice::Cwnd(u32::from(kind)),
                            _ => Choice::Action { index: usize::from(kind), probability: 0.5 },
                        };
                        for (slot, decision) in answer(&mut agent, batch, choice, now_ns) {
                            prop_assert!(slot < 8 && decision.generation > 0);
                        }
                    }
                }
                prop_assert!(agent.live() <= 8);
                prop_assert_eq!(agent.views(100).len(), agent.live());
            }
        }
    }
}

/// A policy whose flows have rows, for files of this name.
fn recorded_policy(name: &str, interface: Interface) -> ServedPolicy {
    let header = FileHeader {
        interface: interface.clone(),
        policy: name.into(),
        policy_metadata: None,
        server: None,
        agent_version: String::new(),
        kernel: String::new(),
        host: [].into(),
        started_ns: 0,
        utc_offset_ns: 0,
        addresses: AddressForm::Absent,
    };
    ServedPolicy {
        interface,
        header: Some(Arc::new(header)),
    }
}

mod recording {
    //! The rows that are made of flows.

    use super::*;
    use crate::rows::{Replay, Row};

    fn recording() -> Agent {
        recording_of(Interface::default())
    }

    fn recording_of(interface: Interface) -> Agent {
        let mut agent = agent();
        agent.start_recording(Episodes::new("boot", 0), Addresses::Absent);
        agent.replace(recorded_policy("random", interface));
        agent
    }

    fn rows(agent: &mut Agent) -> Vec<Row> {
        agent
            .take_rows()
            .into_iter()
            .map(|recorded| *recorded.row)
            .collect()
    }

    /// Numbers of the rows' windows, and which have a decision.
    fn windows(rows: &[Row]) -> Vec<(u32, bool)> {
        rows.iter()
            .map(|row| (row.window.index, row.decision.is_some()))
            .collect()
    }

    #[test]
    fn a_row_is_held_until_its_decision_and_successor_are_known() {
        let mut agent = recording();
        feed(&mut agent, &opened(0, 1, 0));
        feed_window(&mut agent, 0, 1, 10);
        assert_eq!(rows(&mut agent), []);
        let batch = agent.take_batch(1);
        answer(&mut agent, batch, DOUBLE, 203 * MS);
        assert_eq!(rows(&mut agent), [], "it may be the flow's last");
        feed_window(&mut agent, 0, 2, 20);
        let first = rows(&mut agent);
        assert_eq!(windows(&first), [(1, true)]);
        let decided = Decided {
            action: Some(4),
            probability: Some(1.0),
            probabilities: None,
            base_cwnd: 10,
            cwnd: 20,
            delay_ns: Some(3 * MS),
        };
        assert_eq!(first[0].decision, Some(decided));
        assert_eq!((first[0].sequence, first[0].end), (0, false));
        assert_eq!(first[0].initial_cwnd_bytes, 14_480);
        feed(&mut agent, &closed(0, 1));
        let last = rows(&mut agent);
        assert_eq!(windows(&last), [(2, false)]);
        assert_eq!((last[0].sequence, last[0].end), (1, true));
        assert_eq!(last[0].flow, first[0].flow);
    }

    #[test]
    fn skipped_and_unanswered_windows_have_rows_too() {
        let mut agent = recording();
        feed(&mut agent, &opened(0, 1, 0));
        feed_window(&mut agent, 0, 1, 10);
        let first = agent.take_batch(1);
        for index in 2..=4 {
            feed_window(&mut agent, 0, index, 10);
        }
        assert_eq!(rows(&mut agent), [], "the first still waits");
        answer(&mut agent, first, DOUBLE, 0);
        assert_eq!(
            windows(&rows(&mut agent)),
            [(1, true), (2, false), (3, false)]
        );
        let second = agent.take_batch(1);
        answer(&mut agent, second, Choice::Invalid, 0);
        feed_window(&mut agent, 0, 5, 10);
        assert_eq!(windows(&rows(&mut agent)), [(4, false)]);
        agent.stop_recording();
        let last = rows(&mut agent);
        assert_eq!(windows(&last), [(5, false)]);
        assert!(!last[0].end, "the recording stopped, the flow did not");
        feed(&mut agent, &closed(0, 1));
        assert_eq!(rows(&mut agent), []);
    }

    #[test]
    fn the_slots_next_flow_is_another_episode() {
        let mut agent = recording();
        feed(&mut agent, &opened(0, 1, 0));
        feed_window(&mut agent, 0, 1, 10);
        // The record of its end was lost.
        feed(&mut agent, &opened(0, 2, 0));
        let first = rows(&mut agent);
        assert!(first[0].end);
        feed(&mut agent, &Record::Window(window_record(0, 2, 1, 10)));
        feed(&mut agent, &closed(0, 2));
        let second = rows(&mut agent);
        assert_eq!(second[0].sequence, 0);
        assert_ne!(second[0].flow, first[0].flow);
    }

    #[test]
    fn a_policy_that_hangs_fills_no_memory() {
        let mut agent = recording();
        feed(&mut agent, &opened(0, 1, 0));
        for index in 1..=1_000 {
            feed_window(&mut agent, 0, index, 10);
            if index == 1 {
                agent.take_batch(1);
            }
        }
        assert_eq!(rows(&mut agent), []);
        feed(&mut agent, &closed(0, 1));
        let rows = rows(&mut agent);
        assert!(rows.len() < 100, "{}", rows.len());
        assert_eq!(rows.len() as u64 + agent.rows_dropped(), 1_000);
        let last = rows.last().expect("the newest is kept");
        assert_eq!((last.window.index, last.sequence), (1_000, 999));
    }

    #[test]
    fn rows_rebuild_the_observations() {
        rows_rebuild_those_of(&Interface::default());
    }

    #[test]
    fn rows_rebuild_observations_with_series() {
        rows_rebuild_those_of(&Interface {
            series: 8,
            ..Interface::default()
        });
    }

    #[test]
    fn rows_rebuild_observations_with_an_rtt_that_is_shared() {
        rows_rebuild_those_of(&Interface {
            situation: 20,
            shared_path: true,
            ..Interface::default()
        });
    }

    /// The observations are bit for bit those of the queries, with skipped windows, windows that
    /// are not decided on, missing answers and other flows in between.
    fn rows_rebuild_those_of(interface: &Interface) {
        let mut agent = recording_of(interface.clone());
        for slot in 0..3 {
            feed(&mut agent, &opened(slot, 1, 0));
        }
        let mut asked: Vec<(u32, u32, Vec<f32>)> = Vec::new();
        let mut recorded = Vec::new();
        let mut late: Option<Batch> = None;
        for index in 1..=200_u32 {
            for slot in 0..3 {
                let mut window = window_record(slot, 1, index, 10 + index % 7);
                // Flows differ, so that one could tell where another's RTT is meant.
                let rtt = Feature::LatestRtt as usize;
                window.features.min[rtt] = 1_000 + 500 * slot + index % 11;
                for i in 0..index % 5 {
                    let feature = |f: usize| 977 * (index + i) % 100_003 + slot + f as u32;
                    window.add(&std::array::from_fn(feature));
                }
                // Such a window comes after one that may still wait for its decision.
                if index % 10 == 7 && slot == 2 {
                    window.app_limited_acks = window.acks;
                }
                window.mode = if index < 3 {
                    Mode::Startup
                } else {
                    Mode::Decided
                } as u32;
                feed(&mut agent, &Record::Window(window));
            }
            if let Some(batch) = late.take() {
                answer(&mut agent, batch, DOUBLE, 0);
            }
            let batch = agent.take_batch(2 + index as usize % 2);
            for (query, ticket) in batch.queries.iter().zip(&batch.tickets) {
                asked.push((ticket.flow.slot, ticket.window, query.observation.clone()));
            }
            match index % 6 {
                0 => late = Some(batch),
                1 => drop(answer(&mut agent, batch, Choice::Invalid, 0)),
                2 => drop(answer(&mut agent, batch, Choice::Cwnd(33), 0)),
                i => {
                    let choice = Choice::Action {
                        index: i as usize - 1,
                        probability: 0.5,
                    };
                    answer(&mut agent, batch, choice, 0);
                }
            }
            recorded.extend(rows(&mut agent));
        }
        agent.stop_recording();
        recorded.extend(rows(&mut agent));

        assert_eq!(recorded.len(), 3 * 200);
        let mut compared = 0;
        for slot in 0..3 {
            let mut replay = Replay::new();
            let of_slot = recorded.iter().filter(|row| row.window.header.slot == slot);
            for (row, sequence) in of_slot.zip(0..) {
                assert_eq!(row.sequence, sequence);
                let observation = replay.next(interface, row);
                let question = asked
                    .iter()
                    .find(|(asked, window, _)| (*asked, *window) == (slot, row.window.index));
                if let Some((_, _, expected)) = question {
                    let bits =
                        |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    assert_eq!(
                        bits(&observation),
                        bits(expected),
                        "{slot} {}",
                        row.window.index
                    );
                    compared += 1;
                }
            }
        }
        assert_eq!(compared, asked.len());
        assert!(compared > 300, "{compared}");
    }
}

mod policy_changes {
    //! Policies that are replaced, tried, promoted and withdrawn while flows run.

    use super::*;

    /// A policy with this action space, for this name's files.
    fn policy(name: &str, actions: &str) -> ServedPolicy {
        let interface = Interface {
            actions: actions.parse().expect("an action space"),
            ..Interface::default()
        };
        recorded_policy(name, interface)
    }

    const PAPERS: &str = "0,/2,-10,+10,*2";

    fn recording(actions: &str) -> Agent {
        let mut agent = Agent::new(Interface::default(), 64);
        agent.start_recording(Episodes::new("boot", 0), Addresses::Absent);
        agent.replace(policy("current", actions));
        agent
    }

    /// Opens flows in these slots, each with another port on another path.
    fn open(agent: &mut Agent, slots: std::ops::Range<u32>) {
        for slot in slots {
            let Record::Opened(mut record) = opened(slot, 1, 0) else {
                unreachable!("it is one")
            };
            record.identity.remote_port = 1_000 + slot as u16;
            record.identity.remote_addr[0] = u32::from_ne_bytes([10, 0, slot as u8, 1]);
            feed(agent, &Record::Opened(record));
        }
    }

    /// The policy of each row's file, with the row's window and whether it has a decision.
    fn rows(agent: &mut Agent) -> Vec<(String, u32, bool)> {
        let rows = agent.take_rows().into_iter();
        rows.map(|Recorded { header, row }| {
            (
                header.policy.clone(),
                row.window.index,
                row.decision.is_some(),
            )
        })
        .collect()
    }

    fn row(policy: &str, window: u32, decided: bool) -> (String, u32, bool) {
        (policy.into(), window, decided)
    }

    #[test]
    fn a_policy_with_the_same_environment_goes_on_with_the_episode() {
        let mut agent = recording(PAPERS);
        open(&mut agent, 0..1);
        feed_window(&mut agent, 0, 1, 10);
        let mut batch = agent.take_batch(1);
        batch.queries[0].state.h = vec![0.5];
        answer(&mut agent, batch, DOUBLE, 0);
        agent.replace(policy("next", PAPERS));
        feed_window(&mut agent, 0, 2, 20);
        let batch = agent.take_batch(1);
        assert_eq!(batch.queries[0].state.h, [0.5], "the hidden state stays");
        assert_eq!(
            batch.queries[0].observation[214..],
            [0.0, 0.0, 0.0, 0.0, 1.0, 28.96]
        );
        answer(&mut agent, batch, DOUBLE, 0);
        feed(&mut agent, &closed(0, 1));
        let recorded = agent.take_rows();
        let found: Vec<_> = recorded
            .iter()
            .map(|r| {
                (
                    r.header.policy.as_str(),
                    r.row.sequence,
                    r.row.flow == recorded[0].row.flow,
                )
            })
            .collect();
        assert_eq!(found, [("current", 0, true), ("next", 1, true)]);
    }

    #[test]
    fn a_policy_with_another_environment_begins_an_episode() {
        let mut agent = recording(PAPERS);
        open(&mut agent, 0..1);
        feed_window(&mut agent, 0, 1, 10);
        let batch = agent.take_batch(1);
        answer(&mut agent, batch, DOUBLE, 0);
        let mut window = window_record(0, 1, 2, 20);
        window.mode = Mode::Decided as u32;
        feed(&mut agent, &Record::Window(window));
        agent.replace(policy("next", "0,*4"));
        assert!(
            agent.take_batch(1).is_empty(),
            "what waits was seen under the former environment"
        );
        feed_window(&mut agent, 0, 3, 20);
        let batch = agent.take_batch(1);
        assert_eq!(batch.queries[0].observation.len(), 160);
        // No decision yet, from the window in force: 20 segments of 1448 bytes.
        assert_eq!(batch.queries[0].observation[157..], [1.0, 0.0, 28.96]);
        let choice = Choice::Action {
            index: 1,
            probability: 1.0,
        };
        assert_eq!(answer(&mut agent, batch, choice, 0)[0].1.cwnd, 80);
        agent.stop_recording();
        let recorded = agent.take_rows();
        let found: Vec<_> = recorded
            .iter()
            .map(|r| {
                (
                    r.header.policy.as_str(),
                    r.row.window.index,
                    r.row.sequence,
                    r.row.end,
                )
            })
            .collect();
        let expected = [
            ("current", 1, 0, false),
            ("current", 2, 1, false),
            ("next", 3, 0, false),
        ];
        assert_eq!(found, expected);
        assert_eq!(recorded[2].row.initial_cwnd_bytes, 28_960);
        assert_ne!(recorded[2].row.flow, recorded[0].row.flow);
    }

    #[test]
    fn each_arm_observes_its_own_version_of_the_features() {
        let mut agent = recording(PAPERS);
        let second = Interface {
            features_version: 2,
            ..Interface::default()
        };
        agent.start_canary(
            recorded_policy("candidate", second),
            half(CanaryBy::Path),
            GuardRails::default(),
            0,
        );
        open(&mut agent, 0..16);
        for slot in 0..16 {
            let mut window = window_record(slot, 1, 1, 10);
            // The ACK's features are 1000 each: 1000 bytes of 1448 a segment.
            window.marked = 1;
            feed(&mut agent, &Record::Window(window));
        }
        let incumbents = agent.take_batch_of(Arm::Incumbent, 16);
        let candidates = agent.take_batch_of(Arm::Candidate, 16);
        assert!(!incumbents.is_empty() && !candidates.is_empty());
        assert_eq!(incumbents.len() + candidates.len(), 16);
        for query in &incumbents.queries {
            assert_eq!(query.observation.len(), 220);
        }
        for query in &candidates.queries {
            assert_eq!(query.observation.len(), 222);
            assert_eq!(query.observation[100..102], [1.0, 0.0]);
        }
    }

    #[test]
    fn an_answer_of_a_policy_that_was_replaced_is_none() {
        let mut agent = recording(PAPERS);
        open(&mut agent, 0..1);
        feed_window(&mut agent, 0, 1, 10);
        let batch = agent.take_batch(1);
        agent.replace(policy("next", PAPERS));
        assert!(answer(&mut agent, batch, DOUBLE, 0).is_empty());
        assert_eq!(agent.counts().answers_orphaned, 1);
        feed_window(&mut agent, 0, 2, 10);
        let batch = agent.take_batch(1);
        assert_eq!(answer(&mut agent, batch, DOUBLE, 0).len(), 1);
        feed(&mut agent, &closed(0, 1));
        let expected = [row("current", 1, false), row("next", 2, true)];
        assert_eq!(rows(&mut agent), expected);
    }

    /// Feeds a window with this delay to every flow and answers all batches. Returns how many flows
    /// each arm had.
    fn round(
        agent: &mut Agent,
        index: u32,
        flows: u32,
        delay_us: impl Fn(Arm) -> u32,
    ) -> [usize; 2] {
        for slot in 0..flows {
            let mut window = window_record(slot, 1, index, 10);
            let id = FlowId::from(&window.header);
            let arm = agent.flows.get_mut(id).map(|flow| flow.arm);
            window.acks = 0;
            let mut features = [0; FEATURES];
            features[Feature::Delay as usize] = delay_us(arm.unwrap_or_default()) + slot * 10;
            features[Feature::Acked as usize] = 1_000;
            window.add(&features);
            feed(agent, &Record::Window(window));
        }
        let mut arms = [0; 2];
        while agent.has_waiting() {
            let batch = agent.take_batch(7);
            arms[batch.arm() as usize] += batch.len();
            answer(agent, batch, Choice::Cwnd(20), 0);
        }
        arms
    }

    fn half(by: CanaryBy) -> CanaryPlan {
        CanaryPlan {
            percent: 50.0,
            by,
            block: Duration::from_secs(1),
            salt: 1,
        }
    }

    fn with_canary() -> (Agent, [usize; 2]) {
        let mut agent = recording(PAPERS);
        open(&mut agent, 0..8);
        let rails = GuardRails {
            units: 8,
            ..GuardRails::default()
        };
        let candidate = policy("candidate", "0,*4");
        agent.start_canary(candidate, half(CanaryBy::Path), rails, 0);
        open(&mut agent, 8..64);
        let arms = round(&mut agent, 1, 64, |_| 1_000);
        assert!(arms[0] > 24 && arms[1] > 15, "{arms:?}");
        (agent, arms)
    }

    #[test]
    fn a_candidate_has_its_share_of_the_new_flows_and_both_are_reported() {
        let (mut agent, arms) = with_canary();
        for index in 2..=25 {
            round(&mut agent, index, 64, |_| 1_000);
        }
        let now_ns = 3_000 * MS;
        let canary = agent.canary(now_ns).expect("it is on");
        assert_eq!(canary.plan.percent, 50.0);
        // Those that opened before the canary do not count.
        assert_eq!(canary.incumbent.flows as usize, arms[0] - 8);
        assert_eq!(canary.candidate.flows as usize, arms[1]);
        assert_eq!(canary.candidate.decisions as usize, 25 * arms[1]);
        assert_eq!(agent.breach(now_ns), None);
        let count = |rows: &[(String, u32, bool)], name: &str| {
            rows.iter().filter(|(policy, ..)| policy == name).count()
        };
        agent.stop_recording();
        let rows = rows(&mut agent);
        assert_eq!(count(&rows, "candidate"), 25 * arms[1]);
        assert_eq!(count(&rows, "current"), 25 * arms[0]);
    }

    #[test]
    fn flows_that_closed_count_and_the_worse_candidate_is_found() {
        let (mut agent, _) = with_canary();
        let worse = |arm| match arm {
            Arm::Incumbent => 1_000,
            Arm::Candidate => 40_000,
        };
        for index in 2..=21 {
            round(&mut agent, index, 64, worse);
        }
        for slot in 0..64 {
            feed(&mut agent, &closed(slot, 1));
        }
        let breach = agent.breach(3_000 * MS).expect("it is worse").to_string();
        assert!(breach.starts_with("queueing delay 3"), "{breach}");
        assert!(agent.withdraw());
        assert!(agent.canary(0).is_none() && agent.breach(0).is_none());
        assert!(!agent.withdraw() && !agent.promote());
    }

    #[test]
    fn after_a_canary_all_flows_are_the_winners() {
        for promoted in [false, true] {
            let (mut agent, arms) = with_canary();
            let before = agent.counts().flows;
            assert!(if promoted {
                agent.promote()
            } else {
                agent.withdraw()
            });
            assert_eq!(round(&mut agent, 2, 64, |_| 1_000), [64, 0]);
            agent.stop_recording();
            let rows = rows(&mut agent);
            let (winner, loser, losers) = match promoted {
                false => ("current", "candidate", arms[1]),
                true => ("candidate", "current", arms[0]),
            };
            let of = |name: &str, index| {
                let found = rows
                    .iter()
                    .filter(|(policy, window, _)| policy == name && *window == index);
                found.count()
            };
            assert_eq!((of(winner, 2), of(loser, 2), of(loser, 1)), (64, 0, losers));
            assert_eq!(agent.counts().flows, before, "the same flows");
        }
    }

    /// In blocks of time, half of the flows go to and fro between the arms, and the others stay.
    #[test]
    fn blocks_of_time_hand_flows_over_and_back() {
        for actions in [PAPERS, "0,*4"] {
            let mut agent = recording(PAPERS);
            open(&mut agent, 0..64);
            let plan = half(CanaryBy::Time);
            let candidate = policy("candidate", actions);
            agent.start_canary(candidate, plan, GuardRails::default(), 0);
            let mut had = [0; 2];
            let mut shares = Vec::new();
            // The last second of block 0, and five more.
            let begin_ns = plan.begin_ns(1) - 1_000 * MS;
            for index in 1..=60 {
                agent.turn_canary(begin_ns + u64::from(index) * 100 * MS);
                let arms = round(&mut agent, index, 64, |_| 1_000);
                assert_eq!(arms[0] + arms[1], 64);
                if arms[1] > 0 {
                    shares.push(arms[1]);
                }
                (had[0], had[1]) = (had[0] + arms[0], had[1] + arms[1]);
            }
            // Blocks 1 to 5, and half of a second of block 6: two or three are the candidate's.
            assert!((20..=40).contains(&shares.len()), "{shares:?}");
            assert!(shares.iter().all(|&share| share == shares[0]));
            assert!((16..=48).contains(&shares[0]), "{shares:?}");
            agent.stop_recording();
            let rows = rows(&mut agent);
            let of = |name: &str| rows.iter().filter(|row| row.0 == name && row.2).count();
            assert_eq!([of("current"), of("candidate")], had);
            assert_eq!(agent.counts().windows_skipped, 0);
        }
    }

    #[test]
    fn an_arm_that_has_lost_a_flow_decides_no_more_for_it() {
        let mut agent = recording(PAPERS);
        open(&mut agent, 0..16);
        let plan = CanaryPlan {
            percent: 100.0,
            ..half(CanaryBy::Time)
        };
        let candidate = policy("candidate", PAPERS);
        agent.start_canary(candidate, plan, GuardRails::default(), 0);
        let windows = |agent: &mut Agent, index| {
            (0..16).for_each(|slot| feed_window(agent, slot, index, 10));
        };
        windows(&mut agent, 1);
        let asked = agent.take_batch_of(Arm::Incumbent, 8);
        assert_eq!(asked.len(), 8);
        let turns = |agent: &mut Agent, arm: Arm| {
            let block = (1..9).find(|&block| plan.arm_of_block(block) == arm);
            let block = block.expect("one of both");
            agent.turn_canary(plan.begin_ns(block));
        };
        turns(&mut agent, Arm::Candidate);
        // Those that waited are asked about under the candidate, and once.
        assert!(agent.take_batch_of(Arm::Incumbent, 16).is_empty());
        assert_eq!(agent.take_batch_of(Arm::Candidate, 16).len(), 8);
        windows(&mut agent, 2);
        assert!(answer(&mut agent, asked, DOUBLE, 0).is_empty());
        assert_eq!(agent.counts().answers_orphaned, 8);
        assert_eq!(agent.take_batch_of(Arm::Candidate, 16).len(), 8);
        assert!(agent.withdraw());
    }
}
