//! Decisions, as they lie in the cwnd map: one 64-bit cell per flow slot.

/// A cwnd that the agent decided, addressed so that it cannot reach the wrong flow.
///
/// A cell is written by one store and read by one load:
///
/// ```text
///  63        44 43        24 23            0
/// +------------+------------+---------------+
/// | generation |   window   | cwnd/segments |
/// +------------+------------+---------------+
/// ```
///
/// The all-zero cell is no decision, as no flow has generation 0.
///
/// ```
/// use cc_ebpf::Decision;
///
/// let cell = Decision { generation: 7, window: 41, cwnd: 120 }.to_cell();
/// let decision = Decision::from_cell(cell).expect("the generation is not 0");
/// assert!(decision.is_for(7) && decision.answers(41));
/// assert_eq!(decision.cwnd, 120);
/// assert_eq!(Decision::from_cell(0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Generation of the flow that the decision is for, modulo 2^20.
    pub generation: u32,
    /// Number of the flow's observation window that the decision answers, modulo 2^20.
    pub window: u32,
    /// Congestion window in segments; larger values saturate at [`Decision::MAX_CWND`].
    pub cwnd: u32,
}

const ID_BITS: u32 = 20;
const ID_MASK: u32 = (1 << ID_BITS) - 1;
const CWND_BITS: u32 = 24;

impl Decision {
    /// The largest cwnd that a cell can hold, in segments.
    pub const MAX_CWND: u32 = (1 << CWND_BITS) - 1;

    /// A cwnd of 0 is no cwnd but takes the slot away from the flow with this generation, which may
    /// be given to another flow soon after. The agent does that to idle flows when slots are scarce
    /// and frees the slot once no callback of the flow can be running that has not seen it.
    pub fn revocation(generation: u32) -> Self {
        Self {
            generation,
            window: 0,
            cwnd: 0,
        }
    }

    /// Whether the decision takes the slot away from the flow with that generation.
    #[inline(always)]
    pub fn revokes(self, generation: u32) -> bool {
        self.cwnd == 0 && self.is_for(generation)
    }

    /// Encodes the decision as a cell.
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

    /// Decodes a cell; `None` when it holds no decision.
    #[inline(always)]
    pub fn from_cell(cell: u64) -> Option<Self> {
        let decision = Self {
            generation: (cell >> (ID_BITS + CWND_BITS)) as u32,
            window: (cell >> CWND_BITS) as u32 & ID_MASK,
            cwnd: cell as u32 & Self::MAX_CWND,
        };
        (decision.generation != 0).then_some(decision)
    }

    /// Whether this decision is for the flow with that generation.
    #[inline(always)]
    pub fn is_for(self, generation: u32) -> bool {
        self.generation == generation
    }

    /// The generation of the slot's next flow: 1 to 2^20 − 1, never 0.
    #[inline(always)]
    pub fn next_generation(generation: u32) -> u32 {
        let next = (generation + 1) & ID_MASK;
        if next == 0 { 1 } else { next }
    }

    /// Whether the decision answers the observation window with this number, which is not wrapped.
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
