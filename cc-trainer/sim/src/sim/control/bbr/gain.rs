//! Factors of rate and window.

/// A factor in 256ths (`BBR_UNIT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gain(u64);

impl Gain {
    /// 1.
    pub(super) const ONE: Self = Self(256);
    /// 2: room for delayed and aggregated ACKs (`bbr_cwnd_gain`).
    pub(super) const TWO: Self = Self(512);
    /// 2 / ln 2: the smallest with which the rate doubles in a round (`bbr_high_gain`).
    pub(super) const HIGH: Self = Self(256 * 2885 / 1000 + 1);
    /// Its inverse: empties in a round what startup filled (`bbr_drain_gain`).
    pub(super) const DRAIN: Self = Self(256 * 1000 / 2885);
    /// 1.25: growth by less means that the pipe is full (`bbr_full_bw_thresh`).
    pub(super) const FULL_PIPE: Self = Self(320);
    /// Probes for more, drains what that left, and cruises for six phases (`bbr_pacing_gain`).
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

    /// `value` times this.
    pub(super) fn of(self, value: u64) -> u64 {
        (value * self.0) >> 8
    }
}
