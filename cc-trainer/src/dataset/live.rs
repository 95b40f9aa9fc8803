//! Flows whose recording is read while they are alive: their decisions come out as soon as it is
//! known what followed them, with the same outcomes as in the complete recording.

use std::{collections::HashMap, sync::Arc};

use cc_core::{interface::Interface, rows::Row};

use super::trajectory::{Assembly, Settled};

/// A flow that was silent for as long is forgotten, ns: its agent may have been killed, so that
/// nothing tells of its end.
const SILENCE_NS: i64 = 600_000_000_000;
/// Rows between two looks for such flows.
const ROWS: u64 = 4_096;

/// The flows of an agent, as far as their rows have been read.
pub struct LiveFlows {
    interface: Interface,
    flows: HashMap<u64, LiveFlow>,
    rows: u64,
}

struct LiveFlow {
    assembly: Assembly,
    /// End of the newest window, ns since 1970 UTC.
    newest_ns: i64,
}

/// What a row tells about its flow and its decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct News {
    /// The decisions of its flow that are settled with it, in order.
    pub settled: Vec<Settled>,
    /// Flows that are over: its own where it has closed, and others that are forgotten.
    pub over: Vec<u64>,
    /// Whether the row came too late, after later ones of its flow, and was left out.
    pub late: bool,
}

impl LiveFlows {
    /// No flows yet. `interface` is that of the policies that decide.
    pub fn new(interface: Interface) -> Self {
        Self {
            interface,
            flows: HashMap::new(),
            rows: 0,
        }
    }

    /// Adds a row with the end of its window (ns since 1970 UTC) and the identifier of its policy.
    ///
    /// What is known of a flow begins with its first row, or where its observations are complete
    /// again after rows that are missing. The caller leaves out rows of other interfaces, which are
    /// missing then.
    pub fn add(&mut self, row: Row, time_ns: i64, policy: &Arc<str>) -> News {
        let mut news = News::default();
        let flow = row.flow;
        let own = self.flows.entry(flow).or_insert_with(|| LiveFlow {
            assembly: Assembly::new(&self.interface),
            newest_ns: time_ns,
        });
        if row.sequence < own.assembly.expected() {
            news.late = true;
            return news;
        }
        let closed = row.end;
        own.newest_ns = time_ns;
        own.assembly
            .add(&self.interface, row, time_ns, policy.clone());
        news.settled = own.assembly.take_settled();
        if closed {
            self.flows.remove(&flow);
            news.over.push(flow);
        }
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS) {
            let silent = self
                .flows
                .extract_if(|_, flow| time_ns - flow.newest_ns > SILENCE_NS);
            news.over.extend(silent.map(|(flow, _)| flow));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use cc_recording::read;
    use tempfile::TempDir;

    use super::*;
    use crate::dataset::{
        Trajectory,
        tests::{interface, record},
    };

    /// The rows of two simulated flows, interleaved, with the trajectories of the complete
    /// recording as `change` leaves it.
    fn recorded(change: impl FnOnce(&mut Vec<Row>)) -> (Vec<Row>, Vec<Trajectory>) {
        let directory = TempDir::new().expect("a scratch directory");
        let path = directory.path().join("a.parquet");
        record(&path, &interface(), 0, 2, 4, true, &|_| vec![0.2; 5]);
        let (_, rows) = read(&path).expect("a recording");
        let mut rows: Vec<Row> = rows.map(|row| row.expect("sound")).collect();
        change(&mut rows);
        let mut all = Vec::new();
        for flow in 0..2 {
            let own = rows.iter().filter(|row| row.flow == flow).cloned();
            let own = own.map(|row| (row, 0, Arc::from("policy")));
            all.extend(crate::dataset::trajectory::assemble(&interface(), own));
        }
        (rows, all)
    }

    /// The trajectories that the settled decisions of a flow make.
    fn joined(settled: Vec<Settled>) -> Vec<Vec<crate::dataset::TrajectoryStep>> {
        let mut all: Vec<Vec<_>> = Vec::new();
        for Settled { step, follows, .. } in settled {
            match all.last_mut() {
                Some(last) if follows => last.push(step),
                _ => all.push(vec![step]),
            }
        }
        all
    }

    fn stream(rows: Vec<Row>) -> (Vec<Vec<Settled>>, Vec<u64>, usize) {
        let mut flows = LiveFlows::new(interface());
        let (mut settled, mut over, mut late) = (vec![Vec::new(); 2], Vec::new(), 0);
        for row in rows {
            let flow = row.flow as usize;
            let news = flows.add(row, 0, &"policy".into());
            settled[flow].extend(news.settled);
            over.extend(news.over);
            late += usize::from(news.late);
        }
        (settled, over, late)
    }

    #[test]
    fn decisions_come_out_as_the_complete_recording_has_them() {
        let (rows, expected) = recorded(|_| {});
        let (settled, mut over, late) = stream(rows);
        let found: Vec<_> = settled.into_iter().flat_map(joined).collect();
        let expected: Vec<_> = expected.into_iter().map(|own| own.steps).collect();
        assert!(expected.iter().map(Vec::len).sum::<usize>() > 50);
        assert_eq!(found, expected);
        over.sort_unstable();
        assert_eq!((over, late), (vec![0, 1], 0));
    }

    #[test]
    fn a_decision_does_not_wait_for_the_end_of_its_flow() {
        let (rows, _) = recorded(|_| {});
        let mut flows = LiveFlows::new(interface());
        let (mut decided, mut known) = (0, 0);
        for row in rows.into_iter().filter(|row| row.flow == 0 && !row.end) {
            decided += usize::from(row.decision.is_some());
            let news = flows.add(row, 0, &"policy".into());
            known += news.settled.len();
            // One is in force, and one the datapath has not taken up yet.
            assert!(known + 2 >= decided, "{known} of {decided}");
        }
        assert!(known > 20);
    }

    #[test]
    fn a_gap_ends_what_is_known_of_a_flow_until_its_observations_are_complete() {
        let (rows, expected) = recorded(|rows| {
            rows.retain(|row| row.flow != 0 || !(10..13).contains(&row.sequence));
        });
        assert_eq!(expected.iter().filter(|own| own.flow == 0).count(), 2);
        let (settled, ..) = stream(rows);
        let found: Vec<_> = settled.into_iter().flat_map(joined).collect();
        let expected: Vec<_> = expected.into_iter().map(|own| own.steps).collect();
        assert_eq!(found, expected);
        // The outcome of the last decision before the gap is not known.
        assert_eq!(found[0].last().expect("decisions").outcome, None);
    }

    #[test]
    fn rows_that_come_after_later_ones_are_left_out() {
        let (mut rows, _) = recorded(|rows| rows.retain(|row| row.flow == 0));
        rows.swap(10, 11);
        let (_, over, late) = stream(rows);
        assert_eq!((over, late), (vec![0], 1));
    }

    #[test]
    fn a_flow_that_nothing_is_heard_of_is_forgotten() {
        let (rows, _) = recorded(|_| {});
        let own = rows.iter().find(|row| row.flow == 0).expect("a row");
        let other = rows.iter().find(|row| row.flow == 1).expect("a row");
        let mut flows = LiveFlows::new(interface());
        flows.add(own.clone(), 0, &"policy".into());
        let over: Vec<u64> = (0..ROWS as u32)
            .flat_map(|sequence| {
                let row = Row {
                    sequence,
                    ..other.clone()
                };
                flows.add(row, SILENCE_NS + 1, &"policy".into()).over
            })
            .collect();
        assert_eq!(over, [0]);
    }
}
