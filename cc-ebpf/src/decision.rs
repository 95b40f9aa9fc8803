//! A decision as it lies in the cwnd map: one 64-bit cell a flow slot.

/// A window that the agent decided, addressed so that it cannot reach the wrong flow.
///
/// The cell holds, from the most significant bit: 20 bits of the flow's generation, 20 bits of the
/// window that the decision answers, 24 bits of cwnd in segments. A cell is written and read whole,
/// by one store and one load. The all-zero cell is no decision, as no flow has generation 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Generation of the flow that it is for, modulo 2^20.
    pub generation: u32,
    /// Index of the flow's window that it answers, modulo 2^20.
    pub window: u32,
    /// The congestion window, in segments; larger values saturate at [`Decision::MAX_CWND`].
    pub cwnd: u32,
}

const ID_BITS: u32 = 20;
const ID_MASK: u32 = (1 << ID_BITS) - 1;
const CWND_BITS: u32 = 24;

impl Decision {
    /// The largest window that a cell can hold, in segments.
    pub const MAX_CWND: u32 = (1 << CWND_BITS) - 1;

    /// The cell for this decision.
    #[inline(always)]
    pub fn to_cell(self) -> u64 {
        let cwnd = if self.cwnd > Self::MAX_CWND {
            Self::MAX_CWND
        } else {
            self.cwnd
        };
        u64::from(self.generation & ID_MASK) << (ID_BITS + CWND_BITS)
            | u64::from(self.window & ID_MASK) << CWND_BITS
            | u64::from(cwnd)
    }

    /// The decision in a cell, if it holds one.
    #[inline(always)]
    pub fn from_cell(cell: u64) -> Option<Self> {
        let decision = Self {
            generation: (cell >> (ID_BITS + CWND_BITS)) as u32,
            window: (cell >> CWND_BITS) as u32 & ID_MASK,
            cwnd: cell as u32 & Self::MAX_CWND,
        };
        (decision.generation != 0).then_some(decision)
    }

    /// Whether this decision is for the flow of that generation.
    #[inline(always)]
    pub fn is_for(self, generation: u32) -> bool {
        self.generation == generation
    }

    /// The generation that follows: 1 to 2^20 − 1, never 0.
    #[inline(always)]
    pub fn next_generation(generation: u32) -> u32 {
        let next = (generation + 1) & ID_MASK;
        if next == 0 { 1 } else { next }
    }

    /// Whether it answers the window of this (unwrapped) index.
    pub fn answers(self, window: u32) -> bool {
        self.window == window & ID_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_is_no_decision() {
        assert_eq!(Decision::from_cell(0), None);
        assert_eq!(Decision::next_generation(ID_MASK), 1);
        assert_eq!(Decision::next_generation(0), 1);
    }

    proptest! {
        #[test]
        fn round_trips(generation in 1..=ID_MASK, window: u32, cwnd: u32) {
            let cell = Decision { generation, window, cwnd }.to_cell();
            let decision = Decision::from_cell(cell).expect("its generation is not 0");
            prop_assert_eq!(decision.generation, generation);
            prop_assert!(decision.answers(window));
            prop_assert_eq!(decision.cwnd, cwnd.min(Decision::MAX_CWND));
            prop_assert_eq!(decision.to_cell(), cell);
        }
    }
}
