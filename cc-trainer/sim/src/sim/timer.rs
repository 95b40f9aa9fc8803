//! Linux's timers, which the tick and the timer wheel make late by up to an eighth (Linux 6.18,
//! kernel/time/timer.c).

use crate::path::Nanos;

/// Length of a tick in ns (`CONFIG_HZ=250`, as most distributions set it).
pub(super) const JIFFY: Nanos = 4_000_000;
/// Number of ticks per second.
pub(super) const HZ: u64 = 1_000_000_000 / JIFFY;

/// The kernel's clock of ticks: timers are set in ticks and fire on one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticks {
    /// Time from the last tick before time 0 to time 0, ns.
    phase: Nanos,
}

impl Ticks {
    /// Creates a clock whose phase is derived from `random`.
    pub(super) fn new(random: u64) -> Self {
        Self {
            phase: random % JIFFY,
        }
    }

    /// Ticks up to this time (`jiffies`).
    #[inline]
    pub(super) fn at(self, now: Nanos) -> u64 {
        (now + self.phase) / JIFFY
    }

    /// When a timer fires that is set at `now` to expire `jiffies` later, ns. It never fires early,
    /// so the tick under way does not count; distant timers fire on every 8th, 64th, … tick only
    /// (`calc_wheel_index`).
    #[inline]
    pub(super) fn expiry(self, now: Nanos, jiffies: u64) -> Nanos {
        let shift = match jiffies {
            0..63 => 0,
            63..504 => 3,
            504..4_032 => 6,
            4_032..32_256 => 9,
            _ => 12,
        };
        let bucket = ((self.at(now) + jiffies) >> shift) + 1;
        (bucket << shift) * JIFFY - self.phase
    }
}

/// Ticks up to this time, as congestion controls count them (`tcp_jiffies32`).
#[inline]
pub(super) fn tick(now: Nanos) -> u64 {
    now / JIFFY
}

/// Converts µs to ticks, rounded up (`usecs_to_jiffies`).
#[inline]
pub(super) fn jiffies(us: u64) -> u64 {
    us.div_ceil(JIFFY / 1_000)
}

/// Converts ticks to µs (`jiffies_to_usecs`).
#[inline]
pub(super) fn micros(jiffies: u64) -> u64 {
    jiffies * (JIFFY / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn near_timers_fire_within_a_tick_and_never_early() {
        for phase in [0, 1, 3_999_999] {
            let ticks = Ticks::new(phase);
            for now in (0..40 * MS).step_by(333_333) {
                let late = ticks.expiry(now, 50) - now;
                assert!((200 * MS..=204 * MS).contains(&late), "{late}");
            }
        }
    }

    #[test]
    fn far_timers_fire_on_a_coarser_grid() {
        let ticks = Ticks::new(0);
        for now in (0..100 * MS).step_by(1_700_000) {
            let at = ticks.expiry(now, 75);
            assert!((300 * MS..=332 * MS).contains(&(at - now)));
            assert_eq!(at % (32 * MS), 0);
        }
    }
}
