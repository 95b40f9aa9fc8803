//! One figure for how well a scheme does on a link, by the link's rule.

use super::{Link, References, board::LEAST_POWER};
use crate::summary::{Run, statistics};
use cc_sim::scenario::Rule;

impl Link {
    /// How good the runs of a scheme are by the rule of the link, 0 at worst. Only the ratio of two
    /// schemes on the same link means something.
    ///
    /// **Power**: throughput ÷ 95th percentile of the one-way delay, in Mbit/s per ms, of the whole
    /// run. **Share**: the throughput as a multiple of the fair share, or the inverse of that where
    /// it is more, so that twice the share is as bad as half of it. **Balance**: the least
    /// throughput of the flows under test ÷ the largest, the mean over segments.
    pub fn merit(&self, runs: &[&Run]) -> f64 {
        let cell = self.cell(runs, Vec::new(), &References::default());
        match self.rule {
            Rule::Power => cell.own_power(),
            Rule::Share => match cell.share {
                Some(share) if share > 0.0 => share.min(1.0 / share),
                Some(_) => 0.0,
                // A link without a rate has no fair share.
                None => cell.own_power(),
            },
            Rule::Balance => {
                let of_run = |run: &&Run| {
                    let segments = 0..run.segments.len();
                    let balances = segments.map(|segment| self.played(run, segment).balance);
                    statistics::mean(&balances.collect::<Vec<_>>())
                };
                let balances: Vec<f64> = runs.iter().filter_map(of_run).collect();
                statistics::mean(&balances).unwrap_or(0.0)
            }
        }
    }
}

/// What a scheme of merit `own` loses to one of merit `other` on the same link: the natural
/// logarithm of their ratio, at most that of 1000, and below 0 where it is the better one. `None`
/// when the other one achieves nothing either.
pub fn loss(own: f64, other: f64) -> Option<f64> {
    (other > 0.0).then(|| -(own / other).max(LEAST_POWER).ln())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{FlowRun, SegmentRun};
    use cc_sim::scenario::parse;

    fn link(flows: &str) -> Link {
        let text = format!("[[scenario]]\nname = \"a\"\nrate_mbps = 12\ndelay_ms = 10\n{flows}");
        Link::of(&parse(&text, "a.toml".as_ref()).expect("valid")[0], false)
    }

    fn run(throughputs: &[f64], p95_ms: f64) -> Run {
        let flow = |throughput_mbps: &f64| FlowRun {
            throughput_mbps: *throughput_mbps,
            p95_owd_ms: Some(p95_ms),
            ..FlowRun::default()
        };
        Run {
            flows: throughputs.iter().map(flow).collect(),
            segments: vec![SegmentRun {
                from_s: 0.0,
                to_s: 30.0,
                capacity_mbps: Some(12.0),
                throughput_mbps: throughputs.to_vec(),
                mean_owd_ms: Some(p95_ms),
            }],
            ..Run::default()
        }
    }

    #[test]
    fn the_rule_of_the_link_decides_what_counts() {
        let alone = link("");
        assert_eq!(alone.merit(&[&run(&[10.0], 20.0)]), 0.5);
        assert_eq!(
            alone.merit(&[&run(&[10.0], 20.0), &run(&[14.0], 20.0)]),
            0.6
        );

        let beside = link("flow = [{}, { scheme = \"cubic\" }]");
        let merit = |own| beside.merit(&[&run(&[own, 12.0 - own], 20.0)]);
        assert_eq!((merit(6.0), merit(3.0), merit(12.0)), (1.0, 0.5, 0.5));
        assert_eq!(merit(0.0), 0.0);

        let crowd = link("flow = [{}, {}, {}]");
        assert_eq!(crowd.merit(&[&run(&[2.0, 4.0, 8.0], 20.0)]), 0.25);
    }

    #[test]
    fn a_loss_is_bounded_and_needs_somebody_better() {
        assert_eq!(loss(1.0, 1.0), Some(-0.0));
        assert_eq!(loss(1.0, 2.0), Some(2f64.ln()));
        assert_eq!(loss(0.0, 2.0), Some(1000f64.ln()));
        assert!(loss(2.0, 1.0).is_some_and(|loss| loss < 0.0));
        assert_eq!(loss(1.0, 0.0), None);
    }
}
