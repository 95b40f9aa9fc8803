//! The buffer-based chooser: the quality follows from the buffer alone.

use crate::{Chooser, View};

/// Maps the buffer to a quality: the lowest one below the reservoir, the highest one above
/// reservoir and cushion, in proportion between them.
///
/// After Huang et al. (SIGCOMM 2014), as Pensieve's `test/bb.py` has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BufferBased {
    /// Buffer below which the lowest quality is chosen, s.
    pub reservoir_s: f64,
    /// Buffer above the reservoir over which the quality rises, s.
    pub cushion_s: f64,
}

impl BufferBased {
    /// The published settings: 5 s and 10 s.
    pub const PENSIEVE: Self = Self {
        reservoir_s: 5.0,
        cushion_s: 10.0,
    };
}

impl Chooser for BufferBased {
    fn choose(&self, view: &View<'_>) -> usize {
        let highest = view.kbps.len() - 1;
        let above = view.buffer_s - self.reservoir_s;
        if above < 0.0 {
            0
        } else if above >= self.cushion_s {
            highest
        } else {
            (highest as f64 * above / self.cushion_s) as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quality_rises_with_the_buffer() {
        let choose = |buffer_s| {
            BufferBased::PENSIEVE.choose(&View {
                kbps: &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
                chunk_s: 4.0,
                upcoming: &[],
                left: 1,
                chunks: 48,
                buffer_s,
                history: &[],
                past: &[],
            })
        };
        let chosen = [0.0, 4.99, 5.0, 6.99, 7.0, 9.5, 14.99, 15.0, 60.0].map(choose);
        assert_eq!(chosen, [0, 0, 0, 0, 1, 2, 4, 5, 5]);
    }
}
