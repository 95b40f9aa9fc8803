//! The path from the link to the far end: aggregation, then the propagation delay.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand_distr::StandardNormal;

use crate::scenario::{self, DelayVariation};

use super::{NEVER, Nanos, nanos};

/// Computes when packets that have left the link arrive at the far end.
#[derive(Debug)]
pub(super) struct Propagation {
    aggregation: Option<Nanos>,
    /// The present delay, preceded by the later ones in reverse order.
    steps: Vec<Step>,
    /// The delay without jitter, for packets that are released before the time beside.
    base: Nanos,
    base_until: Nanos,
    variation: Option<DelayVariation>,
    /// Standard deviation of the delay, ns.
    jitter: f64,
    random: StdRng,
    flows: Vec<FlowPropagation>,
}

/// The propagation delay from a time on.
#[derive(Debug)]
struct Step {
    at: Nanos,
    delay: Nanos,
    /// Least delay of this step and of all later ones.
    least: Nanos,
}

#[derive(Debug)]
struct FlowPropagation {
    extra_delay: Nanos,
    /// Arrival of the flow's latest packet, before which no later packet arrives.
    latest: Nanos,
}

impl Propagation {
    /// Creates the propagation of `extra_delay.len()` flows, and of one more without extra delay.
    pub(super) fn new(
        model: &scenario::Direction,
        extra_delay: &[Duration],
        random: StdRng,
    ) -> Self {
        let later = model
            .delay
            .changes
            .iter()
            .map(|change| (change.at, change.delay));
        let mut steps: Vec<Step> = Vec::new();
        for (at, delay) in later.rev().chain([(Duration::ZERO, model.delay.base)]) {
            let delay = nanos(delay);
            let least = steps.last().map_or(delay, |later| later.least.min(delay));
            steps.push(Step {
                at: nanos(at),
                delay,
                least,
            });
        }
        let flow = |&extra: &Duration| FlowPropagation {
            extra_delay: nanos(extra),
            latest: 0,
        };
        Self {
            aggregation: model.aggregation.map(nanos).filter(|&period| period > 0),
            steps,
            base: 0,
            base_until: 0,
            variation: model.delay.variation,
            jitter: model.delay.jitter.as_nanos() as f64,
            random,
            flows: extra_delay
                .iter()
                .chain([&Duration::ZERO])
                .map(flow)
                .collect(),
        }
    }

    /// Time at which a packet arrives that leaves the link at `departed`, which must not decrease.
    #[inline]
    pub(super) fn arrival(&mut self, departed: Nanos, flow: usize) -> Nanos {
        let released = self.release(departed);
        if released >= self.base_until {
            self.change_base(released);
        }
        let flow = &mut self.flows[flow];
        let mut delay = self.base.saturating_add(flow.extra_delay);
        if self.jitter > 0.0 {
            let jitter = self.jitter * self.random.sample::<f64, _>(StandardNormal);
            delay = delay.saturating_add_signed(jitter as i64);
        }
        flow.latest = flow.latest.max(released.saturating_add(delay));
        flow.latest
    }

    /// Finds the delay of packets that are released from `released` on.
    #[cold]
    fn change_base(&mut self, released: Nanos) {
        while let [.., next, _] = self.steps.as_slice()
            && next.at <= released
        {
            self.steps.pop();
        }
        self.base = self.steps.last().map_or(0, |step| step.delay);
        self.base_until = match self.steps.as_slice() {
            [.., next, _] => next.at,
            _ => NEVER,
        };
        if let Some(variation) = &self.variation {
            let more = variation.at(Duration::from_nanos(released));
            self.base = self.base.saturating_add(nanos(more));
            self.base_until = 0;
        }
    }

    /// A lower bound of the arrival of packets that leave the link at `departed` or later.
    pub(super) fn earliest(&self, departed: Nanos) -> Nanos {
        let least = match self.steps.last() {
            Some(step) if self.jitter == 0.0 => step.least,
            _ => 0,
        };
        self.release(departed).saturating_add(least)
    }

    /// Time at which aggregation releases a packet. A packet that leaves the link at the very end
    /// of a period is released with that period.
    fn release(&self, departed: Nanos) -> Nanos {
        match self.aggregation {
            Some(period) => departed.div_ceil(period).saturating_mul(period),
            None => departed,
        }
    }
}
