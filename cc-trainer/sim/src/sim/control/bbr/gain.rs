//! Gains: the factors of pacing rate and cwnd.

/// A factor in 256ths (`BBR_UNIT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sim::control) struct Gain(u64);

impl Gain {
    /// A gain of 1: as much as the path takes.
    pub(in crate::sim::control) const ONE: Self = Self(256);
    /// A gain of 2: room for delayed and aggregated ACKs (`bbr_cwnd_gain`).
    pub(in crate::sim::control) const TWO: Self = Self(512);
    /// 2 / ln 2: the smallest gain with which the rate doubles every round (`bbr_high_gain`).
    pub(in crate::sim::control) const HIGH: Self = Self(256 * 2885 / 1000 + 1);
    /// The inverse of [`HIGH`](Self::HIGH): drains in a round what startup queued
    /// (`bbr_drain_gain`).
    pub(in crate::sim::control) const DRAIN: Self = Self(256 * 1000 / 2885);
    /// 1.25: growth of the bandwidth by less means that the pipe is full (`bbr_full_bw_thresh`).
    pub(in crate::sim::control) const FULL_PIPE: Self = Self(320);
    /// The cycle of pacing gains: probe for more bandwidth, drain the queue, and cruise for six
    /// phases (`bbr_pacing_gain`).
    pub(in crate::sim::control) const CYCLE: [Self; 8] = [
        Self(320),
        Self(192),
        Self::ONE,
        Self::ONE,
        Self::ONE,
        Self::ONE,
        Self::ONE,
        Self::ONE,
    ];

    /// A gain of so many hundredths, rounded down to a 256th.
    pub(in crate::sim::control) const fn hundredths(hundredths: u64) -> Self {
        Self(256 * hundredths / 100)
    }

    /// Multiplies a value by this gain.
    pub(in crate::sim::control) fn of(self, value: u64) -> u64 {
        value.saturating_mul(self.0) >> 8
    }
}
