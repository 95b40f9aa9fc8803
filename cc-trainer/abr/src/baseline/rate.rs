//! The rate-based chooser: the quality follows from the past throughput alone.

use crate::{Chooser, View};

/// The highest bitrate that is not above the harmonic mean of the last throughputs: section 5.1 of
/// the Pensieve paper. The lowest one if all are above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateBased {
    /// Number of past chunks that the mean is taken over.
    pub chunks: usize,
}

impl RateBased {
    /// The published setting: five chunks.
    pub const PENSIEVE: Self = Self { chunks: 5 };
}

impl Chooser for RateBased {
    fn choose(&self, view: &View<'_>) -> usize {
        let kbps = view.harmonic_throughput(self.chunks) * 8e3;
        let not_above = view.kbps.partition_point(|&rate| rate <= kbps);
        not_above.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Download;

    #[test]
    fn the_mean_is_harmonic_and_over_five_chunks() {
        let choose = |delays_ms: &[f64]| {
            let history: Vec<Download> = delays_ms
                .iter()
                .map(|&delay_ms| Download {
                    bytes: 125_000,
                    delay_ms,
                    ..Download::default()
                })
                .collect();
            RateBased::PENSIEVE.choose(&View {
                kbps: &[300.0, 750.0, 1200.0, 2000.0],
                chunk_s: 4.0,
                upcoming: &[],
                left: 1,
                chunks: 48,
                buffer_s: 10.0,
                history: &history,
                past: &[],
            })
        };
        // A megabit in one second is 1000 kbit/s.
        assert_eq!(choose(&[1000.0]), 1);
        assert_eq!(choose(&[500.0]), 3);
        assert_eq!(choose(&[5000.0]), 0);
        // 1000 and 2000 kbit/s have the harmonic mean 1333; their arithmetic one is 1500.
        assert_eq!(choose(&[1000.0, 500.0]), 2);
        // The first chunk is the sixth from the end.
        assert_eq!(choose(&[9e9, 500.0, 500.0, 500.0, 500.0, 500.0]), 3);
    }
}
