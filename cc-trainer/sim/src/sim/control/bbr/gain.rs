//! Gains: the factors of pacing rate and cwnd.

/// A factor in 256ths (`BBR_UNIT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gain(u64);

impl Gain {
    /// A gain of 1: as much as the path takes.
    pub(super) const ONE: Self = Self(256);
    /// A gain of 2: room for delayed and aggregated ACKs (`bbr_cwnd_gain`).
    pub(super) const TWO: Self = Self(512);
    /// 2 / ln 2: the smallest gain with which the rate doubles every round (`bbr_high_gain`).
    pub(super) const HIGH: Self = Self(256 * 2885 / 1000 + 1);
    /// The inverse of [`HIGH`](Self::HIGH): drains in a round what startup queued
    /// (`bbr_drain_gain`).
    pub(super) const DRAIN: Self = Self(256 * 1000 / 2885);
    /// 1.25: growth of the bandwidth by less means that the pipe is full (`bbr_full_bw_thresh`).
    pub(super) const FULL_PIPE: Self = Self(320);
    /// The cycle of pacing gains: probe for more bandwidth, drain the queue, and cruise for six
    /// phases (`bbr_pacing_gain`).
    pub(super) const CYCLE: [Self; 8] = [
        Self(320),
        Self(192),
        Self::ONE,
        Self::ONE,
        Self::ONE,
        Self::ONE,
        Self::ONE,
        Self::ONE,
    ];

    /// Multiplies a value by this gain.
    pub(super) fn of(self, value: u64) -> u64 {
        (value * self.0) >> 8
    }
}
