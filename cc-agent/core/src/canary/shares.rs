//! What a candidate takes from its neighbours for good.
//!
//! Pairs of blocks compare a flow with itself, which presumes that a block forgets the one before.
//! Where flows do not return to fair shares within a block, the incumbent keeps in its block what
//! the candidate has taken in its own, and the pairs show nothing.
//!
//! Which flows the candidate has in its blocks is drawn at random. Without an effect, their
//! throughputs since block 0, relative to those in block 0, differ from their neighbours' by chance
//! alone, whatever else has changed in the network meanwhile. The units are flows, and the scale is
//! the logarithm of the throughput. That the candidate's flows do better than their neighbours is
//! welcome where it costs these nothing; so a candidate has *taken* only where the neighbours have
//! also lost more than is tolerated since block 0.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::compare::{Spread, half_width, harm_of_throughput};
use crate::objective::Measured;

/// Flows of either kind without which nothing is said.
const LEAST_FLOWS: u64 = 5;
/// Time of a flow, in block 0 and after it, from which on it counts, ns.
const LEAST_NS: u64 = 4_000_000_000;
/// Probability of the finding where the candidate has no effect.
const CHANCE: f64 = 0.001;

/// What a flow did in block 0 and in all blocks after it, under either arm.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Growth {
    before: Measured,
    since: Measured,
}

impl Growth {
    /// Adds a window that began in this block.
    pub(super) fn add(&mut self, block: u64, measured: &Measured) {
        match block {
            0 => self.before += *measured,
            _ => self.since += *measured,
        }
    }

    /// ln of the throughput since block 0 over that in block 0; `None` where either is too short.
    fn log_ratio(&self, waits_ns: u64) -> Option<f64> {
        let since = self.since + Measured::silence(waits_ns);
        let is_long = self.before.ns >= LEAST_NS && since.ns >= LEAST_NS;
        is_long.then(|| harm_of_throughput(&self.before) - harm_of_throughput(&since))
    }
}

/// The growths of the candidate's flows (0) and of their neighbours (1).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shares([Spread; 2]);

impl Shares {
    /// Adds a flow of a group, which now waits for an ACK for `waits_ns`.
    pub(super) fn add(&mut self, group: usize, growth: &Growth, waits_ns: u64) {
        if let Some(ratio) = growth.log_ratio(waits_ns) {
            self.0[group].add(ratio);
        }
    }

    /// How both groups have changed, whatever it means.
    pub(super) fn shift(&self) -> Shift {
        let [own, neighbours] = &self.0;
        Shift {
            own: own.mean.exp(),
            neighbours: neighbours.mean.exp(),
            flows: [own.count, neighbours.count],
        }
    }

    /// What the candidate has taken beyond chance, where its neighbours have lost more than this
    /// part of their throughput.
    pub(super) fn taken(&self, tolerated: f64) -> Option<Shift> {
        let [own, neighbours] = &self.0;
        let flows = own.count.min(neighbours.count);
        if flows < LEAST_FLOWS || neighbours.mean > (1.0 - tolerated).ln() {
            return None;
        }
        let error = (own.error() + neighbours.error()).sqrt();
        let gained = own.mean - neighbours.mean;
        (gained > half_width(flows, error, CHANCE)).then(|| self.shift())
    }
}

/// How the throughputs of the candidate's flows and of their neighbours have changed since block 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shift {
    /// Throughput of the candidate's flows in all blocks after the first, relative to the first
    /// (geometric mean over the flows; 1 without any).
    pub own: f64,
    /// The same of their neighbours, which the incumbent has in all blocks.
    pub neighbours: f64,
    /// Flows of the candidate and neighbours that were counted.
    pub flows: [u64; 2],
}

impl fmt::Display for Shift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [own, neighbours] = self.flows;
        if own.min(neighbours) < LEAST_FLOWS {
            return write!(
                f,
                "what it takes from its neighbours for good shows with {LEAST_FLOWS} flows of its \
                 own and {LEAST_FLOWS} others since the canary began, and here are {own} and \
                 {neighbours}"
            );
        }
        write!(
            f,
            "since the canary began, the throughput of its {own} flows is {:.2} times what it \
             was, and that of {neighbours} flows of the current policy beside them {:.2} times",
            self.own, self.neighbours,
        )
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    fn of_mbps(mbps: f64, seconds: u64) -> Measured {
        Measured {
            ns: seconds * 1_000_000_000,
            acked_bytes: (mbps * 125_000.0 * seconds as f64) as u64,
            ..Measured::default()
        }
    }

    /// Flows of rates that differ tenfold, each with a change of its own by half on average, and
    /// those of a group by this factor.
    fn shares(factors: [f64; 2], flows: u64, random: &mut StdRng) -> Shares {
        let mut shares = Shares::default();
        for flow in 0..2 * flows {
            let group = (flow % 2) as usize;
            let mbps = 10f64.powf(random.random_range(0.0..1.0));
            let own = random.random_range(-0.4..0.4f64).exp();
            let mut growth = Growth::default();
            growth.add(0, &of_mbps(mbps, 10));
            growth.add(1, &of_mbps(mbps * own * factors[group], 10));
            shares.add(group, &growth, 0);
        }
        shares
    }

    #[test]
    fn what_is_taken_is_found_and_a_common_change_is_not() {
        let mut random = StdRng::seed_from_u64(1);
        let mut found = |factors, flows| {
            let taken = (0..400).map(|_| shares(factors, flows, &mut random).taken(0.1));
            taken.flatten().count()
        };
        assert!(found([1.5, 0.6], 8) >= 380);
        assert_eq!(found([1.5, 0.6], LEAST_FLOWS - 1), 0, "too few");
        // The network, and not the candidate.
        assert!(found([0.3, 0.3], 20) <= 2);
        assert!(found([3.0, 3.0], 20) == 0);
        // A gain that costs the neighbours nothing, and one that they share.
        assert!(found([2.0, 1.0], 20) <= 20);
        assert_eq!(found([2.0, 1.3], 20), 0);
        // A candidate that gives way.
        assert_eq!(found([0.5, 1.5], 20), 0);
    }

    #[test]
    fn a_flow_counts_when_it_was_there_before_and_its_wait_counts_against_it() {
        let mut shares = Shares::default();
        let mut growth = Growth::default();
        growth.add(3, &of_mbps(1.0, 20));
        shares.add(0, &growth, 0);
        assert_eq!(shares.0[0].count, 0, "it is new");
        growth.add(0, &of_mbps(1.0, 5));
        shares.add(0, &growth, 20_000_000_000);
        assert_eq!(shares.0[0].count, 1);
        assert!((shares.0[0].mean - 0.5f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn the_text_names_both_sides_or_what_is_lacking() {
        let shift = Shift {
            own: 1.5,
            neighbours: 0.625,
            flows: [9, 7],
        };
        assert_eq!(
            shift.to_string(),
            "since the canary began, the throughput of its 9 flows is 1.50 times what it was, and \
             that of 7 flows of the current policy beside them 0.62 times"
        );
        let few = Shares::default().shift().to_string();
        assert!(few.ends_with("here are 0 and 0"), "{few}");
    }
}
