//! Harm to neighbours (Ware, Mukerjee, Seshan, Sherry: Beyond Jain's Fairness Index, HotNets 2019).
//!
//! A congestion control harms a neighbour by what it takes from the neighbour's performance alone.
//! It may be deployed beside the neighbour's scheme when it harms that no more than flows of that
//! scheme harm each other: the paper's threshold.

use serde::{Deserialize, Serialize};

use crate::summary::{Run, statistics};

/// What the neighbours on a link got: means over flows and runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbours {
    /// Delivered rate of a flow in the scored segments, Mbit/s of IP packets.
    pub throughput_mbps: f64,
    /// 95th percentile of a flow's one-way delay, ms; `None` when no packet arrived.
    pub p95_owd_ms: Option<f64>,
}

/// Harm to neighbours, as fractions: 0 is none, 1 takes everything, and below 0 they are better
/// off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Harm {
    /// (alone - with us) / alone, of the throughput.
    pub throughput: f64,
    /// (with us - alone) / with us, of the p95 delay.
    pub delay: f64,
}

impl Neighbours {
    /// What the flows `neighbours` got in `runs`; `None` without a flow or a run.
    pub fn of(runs: &[&Run], neighbours: &[usize]) -> Option<Self> {
        let (mut throughputs, mut delays) = (Vec::new(), Vec::new());
        for run in runs {
            for &flow in neighbours {
                let (mut got, mut seconds) = (0.0, 0.0);
                for segment in &run.segments {
                    let length = segment.to_s - segment.from_s;
                    got += segment.throughput_mbps.get(flow)? * length;
                    seconds += length;
                }
                if seconds > 0.0 {
                    throughputs.push(got / seconds);
                }
                delays.extend(run.flows.get(flow)?.p95_owd_ms);
            }
        }
        Some(Self {
            throughput_mbps: statistics::mean(&throughputs)?,
            p95_owd_ms: statistics::mean(&delays),
        })
    }
}

/// The harm to neighbours that have `alone` without us and `with_us` beside us; `None` for
/// neighbours that get nothing alone.
pub(super) fn harm(alone: &Neighbours, with_us: &Neighbours) -> Option<Harm> {
    let delay = match (alone.p95_owd_ms, with_us.p95_owd_ms) {
        (Some(alone), Some(with_us)) => (with_us - alone) / with_us,
        // Packets that never arrive are infinitely late.
        _ => 1.0,
    };
    (alone.throughput_mbps > 0.0).then(|| Harm {
        throughput: (alone.throughput_mbps - with_us.throughput_mbps) / alone.throughput_mbps,
        delay,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{FlowRun, SegmentRun};

    fn neighbours(throughput_mbps: f64, p95_owd_ms: f64) -> Neighbours {
        Neighbours {
            throughput_mbps,
            p95_owd_ms: Some(p95_owd_ms),
        }
    }

    #[test]
    fn harm_is_what_is_missing() {
        let alone = neighbours(20.0, 50.0);
        let found = harm(&alone, &neighbours(5.0, 100.0)).expect("it had something");
        assert_eq!((found.throughput, found.delay), (0.75, 0.5));
        let none = harm(&alone, &alone).expect("it had something");
        assert_eq!((none.throughput, none.delay), (0.0, 0.0));
        let starved = Neighbours {
            throughput_mbps: 0.0,
            p95_owd_ms: None,
        };
        let found = harm(&alone, &starved).expect("it had something");
        assert_eq!((found.throughput, found.delay), (1.0, 1.0));
        assert_eq!(harm(&starved, &alone), None);
    }

    #[test]
    fn only_the_scored_time_counts() {
        let segment = |from_s, to_s, neighbour| SegmentRun {
            from_s,
            to_s,
            throughput_mbps: vec![neighbour, 99.0],
            ..SegmentRun::default()
        };
        let flow = |p95| FlowRun {
            p95_owd_ms: Some(p95),
            throughput_mbps: 77.0,
            ..FlowRun::default()
        };
        let run = Run {
            segments: vec![segment(5.0, 15.0, 4.0), segment(15.0, 45.0, 8.0)],
            flows: vec![flow(30.0), flow(60.0)],
            ..Run::default()
        };
        assert_eq!(Neighbours::of(&[&run], &[0]), Some(neighbours(7.0, 30.0)));
        assert_eq!(Neighbours::of(&[&run], &[]), None);
        assert_eq!(Neighbours::of(&[], &[0]), None);
    }
}
