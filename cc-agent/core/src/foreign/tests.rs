//! Foreign flows, fed with records made by the tests.

use std::collections::BTreeMap;

use bytemuck::Zeroable;
use cc_ebpf::{ClosedRecord, FEATURES, Header, Identity, OpenedRecord};

use super::*;
use crate::rows::{AddressForm, Replay, Row};

const MS: u64 = 1_000_000;

fn recording() -> ForeignFlows {
    let interface = Interface::default();
    let header = FileHeader {
        interface: interface.clone(),
        policy: String::new(),
        policy_metadata: None,
        server: None,
        agent_version: "0".into(),
        kernel: "6.18.0".into(),
        host: BTreeMap::new(),
        started_ns: 0,
        utc_offset_ns: 0,
        addresses: AddressForm::Absent,
    };
    let mut foreign = ForeignFlows::new(interface, 8);
    foreign.start_recording(header, Episodes::new("a boot", 1), Addresses::Absent);
    foreign
}

fn identity(congestion_control: &str) -> Identity {
    let mut name = [0; 16];
    name[..congestion_control.len()].copy_from_slice(congestion_control.as_bytes());
    Identity {
        family: 2,
        mss: 1_448,
        initial_cwnd: 10,
        congestion_control: bytemuck::cast(name),
        ..Identity::default()
    }
}

fn open(foreign: &mut ForeignFlows, slot: u32, congestion_control: &str) {
    let record = OpenedRecord {
        header: Header::of::<OpenedRecord>(slot, 1, 0),
        identity: identity(congestion_control),
    };
    feed(foreign, &Record::Opened(record));
}

fn window(slot: u32, index: u32, cwnd: u32) -> WindowRecord {
    let mut window = WindowRecord::zeroed();
    window.start_ns = u64::from(index) * 100 * MS;
    window.header = Header::of::<WindowRecord>(slot, 1, window.start_ns + 101 * MS);
    window.index = index;
    window.cwnd = cwnd;
    window.mss = 1_448;
    window.add(&[cwnd * 1_448; FEATURES]);
    window
}

fn feed(foreign: &mut ForeignFlows, record: &Record) {
    foreign.on_record(record, |_| None);
}

fn feed_windows(foreign: &mut ForeignFlows, slot: u32, windows: &[(u32, u32)]) {
    for &(index, cwnd) in windows {
        feed(foreign, &Record::Window(window(slot, index, cwnd)));
    }
}

fn close(foreign: &mut ForeignFlows, slot: u32) {
    let mut record = ClosedRecord::zeroed();
    record.header = Header::of::<ClosedRecord>(slot, 1, 0);
    feed(foreign, &Record::Closed(record));
}

fn rows(foreign: &mut ForeignFlows) -> Vec<Row> {
    let rows = foreign.take_rows().into_iter();
    rows.map(|recorded| *recorded.row).collect()
}

/// Window before, window after, and the action, of each row's decision.
fn decisions(rows: &[Row]) -> Vec<Option<(u32, u32, Option<u8>)>> {
    let decided = rows.iter().map(|row| row.decision.as_ref());
    decided
        .map(|decided| decided.map(|d| (d.base_cwnd, d.cwnd, d.action)))
        .collect()
}

#[test]
fn what_was_done_is_told_by_the_next_window() {
    let mut foreign = recording();
    open(&mut foreign, 3, "cubic");
    feed_windows(&mut foreign, 3, &[(1, 100), (2, 200), (3, 140), (4, 141)]);
    let first = rows(&mut foreign);
    // From 200 to 140: 190 (-10) is 1.36 times that, and that is 1.4 times 100 (/2).
    assert_eq!(
        decisions(&first),
        [
            Some((100, 200, Some(4))),
            Some((200, 140, Some(2))),
            Some((140, 141, Some(0)))
        ],
        "the newest may be the last"
    );
    close(&mut foreign, 3);
    let last = rows(&mut foreign);
    assert_eq!(decisions(&last), [None]);
    assert!(last[0].end && first.iter().all(|row| !row.end));
    let all: Vec<&Row> = first.iter().chain(&last).collect();
    for (sequence, row) in all.iter().enumerate() {
        assert_eq!((row.flow, row.sequence), (all[0].flow, sequence as u32));
        assert_eq!(row.window.mode, NO_MODE);
        assert_eq!(row.initial_cwnd_bytes, 14_480);
        let decision = row.decision.iter();
        assert!(decision.clone().all(|d| d.probability.is_none()));
        assert!(decision.clone().all(|d| d.probabilities.is_none()));
        assert!(decision.clone().all(|d| d.delay_ns.is_none()));
    }
}

#[test]
fn across_a_missing_window_nothing_is_told() {
    let mut foreign = recording();
    open(&mut foreign, 0, "cubic");
    feed_windows(&mut foreign, 0, &[(1, 10), (3, 20), (4, 20)]);
    // One that was closed for a silent flow comes again.
    feed_windows(&mut foreign, 0, &[(4, 99)]);
    close(&mut foreign, 0);
    let rows = rows(&mut foreign);
    assert_eq!(decisions(&rows), [None, Some((20, 20, Some(0))), None]);
    assert_eq!(foreign.counts().windows_missed, 1);
    assert_eq!(foreign.counts().windows, 3);
}

#[test]
fn a_file_for_each_congestion_control() {
    let mut foreign = recording();
    for (slot, name) in [(0, "cubic"), (1, "bbr"), (2, "cubic")] {
        open(&mut foreign, slot, name);
        feed_windows(&mut foreign, slot, &[(1, 10), (2, 10)]);
    }
    let recorded = foreign.take_rows();
    let policies: Vec<&str> = recorded.iter().map(|r| &*r.header.policy).collect();
    assert_eq!(
        policies,
        ["observed:cubic", "observed:bbr", "observed:cubic"]
    );
    assert!(Arc::ptr_eq(&recorded[0].header, &recorded[2].header));
    assert_ne!(recorded[0].row.flow, recorded[2].row.flow);

    let reports = foreign.reports();
    let names: Vec<_> = reports
        .iter()
        .map(|s| (&*s.congestion_control, s.flows))
        .collect();
    assert_eq!(names, [("bbr", 1), ("cubic", 2)]);
    // One ACK of 14 480 bytes in 101 ms, whatever rate the kernel took of it.
    let expected = 2.0 * 14_480.0 * 8.0 / 101e3;
    assert!((reports[1].rate_mbps - expected).abs() < 1e-9);
    assert_eq!(reports[1].srtt_ms, 14.48);
}

#[test]
fn what_stops_has_no_end() {
    let mut foreign = recording();
    open(&mut foreign, 0, "cubic");
    feed_windows(&mut foreign, 0, &[(1, 10)]);
    foreign.stop_recording();
    let last = rows(&mut foreign);
    assert_eq!((last.len(), last[0].end), (1, false));
}

#[test]
fn a_flow_whose_opening_was_lost() {
    let mut foreign = recording();
    let mut flow = Flow::zeroed();
    flow.generation = 1;
    flow.opened.identity = identity("bbr");
    let record = Record::Window(window(5, 7, 10));
    foreign.on_record(&record, |slot| (slot == 5).then_some(flow));
    close(&mut foreign, 5);
    assert_eq!(rows(&mut foreign).len(), 1);
    let counts = foreign.counts();
    assert_eq!((counts.flows_found_late, counts.windows_missed), (1, 0));
    // Of one that has left its slot nothing is known.
    foreign.on_record(&record, |_| None);
    assert_eq!(foreign.counts().flows, 1);
}

#[test]
fn the_window_of_a_silent_flow_is_closed() {
    let mut foreign = recording();
    open(&mut foreign, 0, "cubic");
    let mut flow = Flow::zeroed();
    flow.live = 1;
    flow.generation = 1;
    flow.window = window(0, 1, 12);
    flow.window.start_ns = 0;
    assert_eq!(foreign.close_silent(104 * MS, |_| Some(flow)), []);
    let closed = foreign.close_silent(105 * MS, |_| Some(flow));
    assert_eq!((closed.len(), closed[0].index), (1, 1));
    close(&mut foreign, 0);
    let rows = rows(&mut foreign);
    assert_eq!((rows[0].window.index, rows[0].window.cwnd), (1, 12));
    assert_eq!(rows[0].window.mode, NO_MODE);
    assert_eq!(foreign.counts().windows_closed_silent, 1);
}

/// Observations can be rebuilt, with what the congestion control did as their history.
#[test]
fn the_history_is_what_was_done() {
    let mut foreign = recording();
    open(&mut foreign, 0, "cubic");
    feed_windows(&mut foreign, 0, &[(1, 100), (2, 200), (3, 200)]);
    close(&mut foreign, 0);
    let interface = Interface::default();
    let mut replay = Replay::new();
    let observations: Vec<Vec<f32>> = rows(&mut foreign)
        .iter()
        .map(|row| replay.next(&interface, row))
        .collect();
    let newest = |observation: &[f32]| observation[observation.len() - 6..].to_vec();
    assert_eq!(newest(&observations[0]), [1.0, 0.0, 0.0, 0.0, 0.0, 14.48]);
    assert_eq!(newest(&observations[1]), [0.0, 0.0, 0.0, 0.0, 1.0, 289.6]);
    assert_eq!(newest(&observations[2]), [1.0, 0.0, 0.0, 0.0, 0.0, 289.6]);
}

#[test]
fn without_a_recording_there_are_no_rows() {
    let mut foreign = ForeignFlows::new(Interface::default(), 8);
    open(&mut foreign, 0, "cubic");
    feed_windows(&mut foreign, 0, &[(1, 10), (2, 10)]);
    assert_eq!((foreign.live(), foreign.counts().windows), (1, 2));
    close(&mut foreign, 0);
    foreign.stop_recording();
    assert!(foreign.take_rows().is_empty());
    assert_eq!(foreign.live(), 0);
}

/// The sums of the only group.
fn sums(foreign: &mut ForeignFlows) -> groups::Sums {
    let groups = foreign.groups().expect("they were started");
    groups.name(0, |id| (id == 7).then_some("/web"));
    let all = groups.all();
    assert_eq!(all.len(), 1);
    assert_eq!(
        (&*all[0].cgroup, &*all[0].congestion_control),
        ("/web", "cubic")
    );
    all[0].sums.clone()
}

fn grouped() -> ForeignFlows {
    let mut foreign = ForeignFlows::new(Interface::default(), 8);
    foreign.start_groups(Grouping {
        depth: None,
        places: 4,
    });
    let identity = Identity {
        cgroup_id: 7,
        ..identity("cubic")
    };
    let record = OpenedRecord {
        header: Header::of::<OpenedRecord>(0, 1, 0),
        identity,
    };
    feed(&mut foreign, &Record::Opened(record));
    foreign
}

#[test]
fn what_a_flow_has_done_since_its_last_window_counts_when_it_closes() {
    for (in_slot, generation, expected) in [(2, 1, 2), (1, 1, 1), (2, 9, 1)] {
        let mut foreign = grouped();
        feed_windows(&mut foreign, 0, &[(1, 10)]);
        assert_eq!(sums(&mut foreign).open, 1);
        // The slot as the datapath leaves it: with a window that is under way, or with one that has
        // arrived, or with that of the next flow.
        let mut flow = Flow::zeroed();
        flow.generation = generation;
        flow.window = window(0, in_slot, 10);
        let mut closed = ClosedRecord::zeroed();
        closed.header = Header::of::<ClosedRecord>(0, 1, 250 * MS);
        foreign.on_record(&Record::Closed(closed), |_| Some(flow));
        let sums = sums(&mut foreign);
        assert_eq!((sums.open, sums.opened), (0, 1));
        assert_eq!(sums.windows, expected);
        assert_eq!(sums.measured.acked_bytes, expected * 14_480);
        assert_eq!(sums.srtt.len(), expected);
    }
}

#[test]
fn a_flow_shorter_than_a_window_counts_when_it_closes() {
    let mut foreign = grouped();
    let mut flow = Flow::zeroed();
    flow.generation = 1;
    flow.opened.identity = identity("cubic");
    flow.window = window(0, 1, 10);
    flow.window.start_ns = 0;
    flow.window.mss = 0;
    flow.window.marked = 3;
    let mut closed = ClosedRecord::zeroed();
    closed.header = Header::of::<ClosedRecord>(0, 1, 40 * MS);
    foreign.on_record(&Record::Closed(closed), |_| Some(flow));
    let sums = sums(&mut foreign);
    assert_eq!(sums.measured.ns, 40 * MS, "until it closed");
    assert_eq!(sums.measured.marked_bytes, 3 * 1_448);
    assert_eq!(foreign.counts().windows, 0, "no record of it was sent");
}

#[test]
fn a_flow_whose_closing_was_lost_is_open_no_more() {
    let mut foreign = grouped();
    foreign.close_lost(|_| Some(1));
    foreign.close_lost(|_| None);
    assert_eq!(sums(&mut foreign).open, 1, "it may have been changing");
    foreign.close_lost(|_| None);
    assert_eq!(sums(&mut foreign).open, 0);
}
