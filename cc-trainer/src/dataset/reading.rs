//! Reading what an observed congestion control did as decisions of a policy.
//!
//! `cc-agent observe` records the action that came nearest to the change of cwnd. Two things speak
//! against learning from that action. A policy's list of actions may be another one. And a cwnd is
//! what limits some controls only: BBR paces, and keeps a cwnd of twice what it has in flight, so
//! that a policy which sets the cwnd of BBR fills the path twice ([`Reading::InFlight`]).

use std::sync::Arc;

use cc_core::{
    interface::Interface,
    reward::Reward,
    rows::{Decided, NO_MODE, Row},
};
use cc_ebpf::{Feature, WindowRecord};
use serde::{Deserialize, Serialize};

/// What counts as the cwnd of an observed flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    /// The control's cwnd at the end of each window, whether or not it limited the flow.
    Cwnd,
    /// What the flow had in flight: the mean over a window's ACKs of the bytes in flight before the
    /// ACK. It is the cwnd that would have had the same effect, and takes the place of the cwnd in
    /// the observations too.
    #[default]
    InFlight,
}

/// A row with the end of its window (ns since 1970) and the identifier of its policy.
pub(super) type ReadRow = (Row, i64, Arc<str>);

impl Reading {
    /// Reads the rows of one observed flow, in their order: each decision becomes the action of the
    /// interface that comes nearest to what the flow did from one window to the next.
    pub(super) fn apply(self, interface: &Interface, rows: &mut [ReadRow]) {
        for (row, ..) in rows.iter_mut() {
            if row.window.mode == NO_MODE && self == Self::InFlight {
                carry(&mut row.window);
            }
            let Reward { terms, value } = Reward::of(&row.window, &interface.reward);
            (row.terms, row.reward) = (terms, value as f32);
        }
        for at in 0..rows.len() {
            let next = rows.get(at + 1).map(|(row, ..)| row.window);
            let row = &mut rows[at].0;
            let known = row.window.mode == NO_MODE && row.decision.is_some();
            let next = next.filter(|next| known && next.index == row.window.index + 1);
            row.decision = next.map(|next| decision(interface, &row.window, &next));
        }
    }
}

/// The decision that leads from one window to the next.
fn decision(interface: &Interface, window: &WindowRecord, next: &WindowRecord) -> Decided {
    let bounds = interface.cwnd;
    let action = interface.actions.nearest(window.cwnd, next.cwnd, bounds);
    Decided {
        action: Some(action as u8),
        probability: None,
        probabilities: None,
        base_cwnd: window.cwnd,
        cwnd: next.cwnd,
        delay_ns: None,
    }
}

/// Puts what the window's flow had in flight in the place of its cwnd.
fn carry(window: &mut WindowRecord) {
    let statistics = &window.features;
    let mean = |feature: Feature| statistics.mean(feature as usize, window.acks);
    // Bytes in flight are counted after the ACK, which has taken some out.
    let bytes = mean(Feature::InFlight) + mean(Feature::Acked);
    window.cwnd = ((bytes / f64::from(window.mss.max(1))).round() as u32).max(1);
    let (cwnd, in_flight, room) = (
        Feature::Cwnd as usize,
        Feature::InFlight as usize,
        Feature::Writable as usize,
    );
    let statistics = &mut window.features;
    statistics.sum[cwnd] = statistics.sum[in_flight];
    statistics.squares[cwnd] = statistics.squares[in_flight];
    statistics.reference[cwnd] = statistics.reference[in_flight];
    (statistics.sum[room], statistics.squares[room]) = (0, 0);
    for values in [&mut statistics.min, &mut statistics.max] {
        values[cwnd] = values[in_flight];
        values[room] = 0;
    }
    statistics.reference[room] = 0;
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use cc_core::reward::Terms;
    use cc_ebpf::FEATURES;

    use super::*;

    /// A window of a flow with this cwnd and as many segments in flight after ACKs of two.
    fn row(index: u32, cwnd: u32, in_flight: [u32; 2]) -> ReadRow {
        let mut window = WindowRecord::zeroed();
        (window.index, window.cwnd, window.mss) = (index, cwnd, 1_000);
        window.mode = NO_MODE;
        for in_flight in in_flight {
            let mut features = [0; FEATURES];
            features[Feature::Cwnd as usize] = 1_000 * cwnd;
            features[Feature::InFlight as usize] = 1_000 * in_flight;
            features[Feature::Writable as usize] = 1_000 * (cwnd - in_flight);
            features[Feature::Acked as usize] = 2_000;
            window.add(&features);
        }
        let row = Row {
            flow: 1,
            sequence: index,
            window,
            path: None,
            initial_cwnd_bytes: 10_000,
            decision: Some(Decided {
                action: Some(0),
                probability: None,
                probabilities: None,
                base_cwnd: cwnd,
                cwnd,
                delay_ns: None,
            }),
            terms: Terms::default(),
            reward: 0.0,
            end: false,
            local: None,
            remote: None,
            cgroup: 0,
            cookie: 0,
            netns: 0,
        };
        (row, 0, "observed:bbr".into())
    }

    fn interface() -> Interface {
        Interface {
            actions: "0,/1.25,*1.25,*2".parse().expect("actions"),
            ..Interface::default()
        }
    }

    /// BBR's cwnd stands while what it has in flight goes up by a quarter and down again.
    #[test]
    fn a_paced_flow_acts_by_what_it_has_in_flight() {
        let rows = || {
            vec![
                row(1, 200, [97, 99]),
                row(2, 200, [122, 124]),
                row(3, 200, [98, 98]),
                row(5, 200, [98, 98]),
            ]
        };
        let decisions = |rows: &[ReadRow]| -> Vec<_> {
            let of = |(row, ..): &ReadRow| {
                let decision = row.decision.clone()?;
                Some((decision.action?, decision.base_cwnd, decision.cwnd))
            };
            rows.iter().map(of).collect()
        };
        let mut carried = rows();
        Reading::InFlight.apply(&interface(), &mut carried);
        // Row 4 is missing after the third, and nothing is known after the last.
        let expected = [Some((2, 100, 125)), Some((1, 125, 100)), None, None];
        assert_eq!(decisions(&carried), expected);
        let window = &carried[0].0.window;
        let cwnd = window.features.mean(Feature::Cwnd as usize, window.acks);
        assert_eq!((window.cwnd, cwnd), (100, 98_000.0));
        assert_eq!(window.features.variance(Feature::Cwnd as usize, 2), 2e6);
        assert_eq!(window.features.max[Feature::Writable as usize], 0);

        let mut literal = rows();
        Reading::Cwnd.apply(&interface(), &mut literal);
        let expected = [Some((0, 200, 200)), Some((0, 200, 200)), None, None];
        assert_eq!(decisions(&literal), expected);
        assert_eq!(literal[0].0.window, rows()[0].0.window);
    }
}
