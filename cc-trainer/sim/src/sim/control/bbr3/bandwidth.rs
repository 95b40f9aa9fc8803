//! The highest bandwidth of the present and the previous cycle (sections 5.5.3 to 5.5.6).

use crate::sim::control::bbr::bandwidth::Bandwidth;

/// The filter of the highest bandwidths (`max_bw_filter`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MaxBandwidth {
    previous: Bandwidth,
    present: Bandwidth,
}

impl MaxBandwidth {
    /// Takes a sample of the present cycle. The kernel keeps 32 bits of it.
    pub(super) fn update(&mut self, bandwidth: Bandwidth) {
        self.present = self.present.max(bandwidth.min(u32::MAX.into()));
    }

    /// The highest bandwidth (`max_bw`); 0 before the first sample.
    pub(super) fn get(&self) -> Bandwidth {
        self.previous.max(self.present)
    }

    /// Begins a cycle (`AdvanceMaxBwFilter`). One without a sample is not remembered.
    pub(super) fn advance(&mut self) {
        if self.present > 0 {
            self.previous = std::mem::take(&mut self.present);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_two_cycles() {
        let mut filter = MaxBandwidth::default();
        filter.update(30);
        filter.update(20);
        filter.advance();
        filter.update(10);
        assert_eq!(filter.get(), 30);
        filter.advance();
        assert_eq!(filter.get(), 10);
        filter.advance();
        assert_eq!(filter.get(), 10, "the last cycle had no sample");
    }
}
