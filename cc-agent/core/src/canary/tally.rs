//! What flows came to under an arm of a canary: sums over a unit, and a flow's last seconds.

use crate::objective::Measured;

/// What flows came to in one unit of a canary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) measured: Measured,
    /// The objective of each span times its ns, summed.
    pub(super) objective_ns: f64,
    /// Number of the windows that were added.
    pub(super) windows: u32,
}

impl Tally {
    /// Adds a span whose objective has this value.
    pub(super) fn add(&mut self, span: &Measured, value: f64) {
        self.measured += *span;
        self.objective_ns += value * span.ns as f64;
        self.windows = self.windows.saturating_add(u32::from(span.acks > 0));
    }

    /// The mean of the objective over the time; 0 over none.
    pub(super) fn objective(&self) -> f64 {
        self.objective_ns / self.measured.ns.max(1) as f64
    }
}

/// How long a flow's last seconds are at least; they are twice that at most.
const RECENT_NS: u64 = 2_000_000_000;

/// What a flow did in its last seconds, 2 to 4 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Recent {
    /// When the present part began.
    since_ns: u64,
    present: Measured,
    past: Measured,
}

impl Recent {
    /// Nothing, from this time on.
    pub(super) fn from(now_ns: u64) -> Self {
        Self {
            since_ns: now_ns,
            ..Self::default()
        }
    }

    /// Adds a span that ended at `end_ns`.
    pub(super) fn add(&mut self, end_ns: u64, span: &Measured) {
        *self = self.at(end_ns);
        self.present += *span;
    }

    /// What there was in the seconds before `now_ns`.
    pub(super) fn sum(&self, now_ns: u64) -> Measured {
        let Self { present, past, .. } = self.at(now_ns);
        present + past
    }

    /// The last seconds as seen from `now_ns`.
    fn at(&self, now_ns: u64) -> Self {
        match now_ns.saturating_sub(self.since_ns) / RECENT_NS {
            0 => *self,
            1 => Self {
                since_ns: self.since_ns + RECENT_NS,
                present: Measured::default(),
                past: self.present,
            },
            _ => Self::from(now_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objective_of_a_unit_is_the_mean_over_its_time() {
        let mut tally = Tally::default();
        let span = |ms: u64, acks| Measured {
            ns: ms * 1_000_000,
            acks,
            ..Measured::default()
        };
        assert_eq!(tally.objective(), 0.0);
        tally.add(&span(300, 3), 2.0);
        tally.add(&span(100, 0), -6.0);
        assert_eq!((tally.objective(), tally.windows), (0.0, 1));
    }

    #[test]
    fn the_last_seconds_forget() {
        let second = |acked_bytes| Measured {
            ns: 1_000_000_000,
            acked_bytes,
            ..Measured::default()
        };
        let at = |s: u64| s * 1_000_000_000;
        let mut recent = Recent::from(at(10));
        recent.add(at(11), &second(1));
        assert_eq!(recent.sum(at(11)).acked_bytes, 1);
        recent.add(at(12), &second(10));
        assert_eq!(recent.sum(at(13)).acked_bytes, 11);
        assert_eq!(recent.sum(at(14)).acked_bytes, 10);
        recent.add(at(15), &second(100));
        assert_eq!(recent.sum(at(15)).acked_bytes, 110);
        assert_eq!(recent.sum(at(17)), second(100));
        assert_eq!(recent.sum(at(60)), Measured::default());
    }
}
