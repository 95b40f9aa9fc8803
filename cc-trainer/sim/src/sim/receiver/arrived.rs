//! The segments that have arrived, and the SACK blocks that the next ACK reports.

use std::collections::VecDeque;

use crate::sim::wire::SackBlock;

/// Number of SACK blocks that a receiver remembers (`TCP_NUM_SACKS`).
const REMEMBERED: usize = 4;

/// The segments received in order, and blocks of segments beyond gaps (`out_of_order_queue`).
#[derive(Clone, Debug, Default)]
pub(super) struct Arrived {
    rcv_nxt: u32,
    /// Blocks beyond the first gap, in order, with gaps between them.
    blocks: VecDeque<SackBlock>,
    /// The blocks that segments arrived in last, the latest first (`selective_acks`).
    recent: [SackBlock; REMEMBERED],
    count: usize,
    /// Number of segments in `blocks`.
    held: u32,
}

impl Arrived {
    /// The first segment that is missing (`rcv_nxt`).
    #[inline]
    pub(super) fn rcv_nxt(&self) -> u32 {
        self.rcv_nxt
    }

    /// Whether segments have arrived beyond a gap.
    #[inline]
    pub(super) fn has_gap(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Number of segments beyond gaps.
    #[inline]
    pub(super) fn held(&self) -> u32 {
        self.held
    }

    /// Number of segments from the first missing one to the last that arrived.
    pub(super) fn span(&self) -> u32 {
        self.blocks.back().map_or(0, |last| last.to - self.rcv_nxt)
    }

    /// The SACK blocks to report, the latest first.
    #[inline]
    pub(super) fn recent(&self) -> &[SackBlock] {
        &self.recent[..self.count]
    }

    /// Whether there are more blocks than an ACK reports reliably (`TCP_SACK_BLOCKS_EXPECTED`).
    pub(super) fn full(&self) -> bool {
        self.count > 2
    }

    /// Takes note that the missing segment has arrived.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.rcv_nxt += 1;
        if self.blocks.is_empty() {
            return;
        }
        while let Some(first) = self.blocks.front()
            && first.from <= self.rcv_nxt
        {
            self.rcv_nxt = self.rcv_nxt.max(first.to);
            self.held -= first.to - first.from;
            self.blocks.pop_front();
        }
        let mut kept = 0;
        for index in 0..self.count {
            if self.recent[index].from > self.rcv_nxt {
                self.recent[kept] = self.recent[index];
                kept += 1;
            }
        }
        self.count = kept;
    }

    /// Takes note of a segment beyond the missing one. Returns whether it is new.
    pub(super) fn add(&mut self, segment: u32) -> bool {
        let new = self.insert(segment);
        self.held += u32::from(new);
        self.remember(SackBlock {
            from: segment,
            to: segment + 1,
        });
        new
    }

    /// Memory on the heap in bytes: the blocks beyond gaps.
    pub(super) fn memory(&self) -> usize {
        self.blocks.capacity() * size_of::<SackBlock>()
    }

    fn insert(&mut self, segment: u32) -> bool {
        // Most segments continue the last block.
        let place = match self.blocks.back() {
            Some(last) if last.to <= segment && last.from <= segment => self.blocks.len(),
            _ => self.blocks.partition_point(|block| block.to <= segment),
        };
        if let Some(block) = self.blocks.get(place)
            && block.from <= segment
        {
            return false;
        }
        let joins_before = place > 0 && self.blocks[place - 1].to == segment;
        let joins_after = (self.blocks.get(place)).is_some_and(|block| block.from == segment + 1);
        match (joins_before, joins_after) {
            (true, true) => {
                self.blocks[place - 1].to = self.blocks[place].to;
                self.blocks.remove(place);
            }
            (true, false) => self.blocks[place - 1].to += 1,
            (false, true) => self.blocks[place].from -= 1,
            (false, false) => self.blocks.insert(
                place,
                SackBlock {
                    from: segment,
                    to: segment + 1,
                },
            ),
        }
        true
    }

    /// Extends the SACK block next to the segment and moves it to the front, or puts a new one
    /// there (`tcp_sack_new_ofo_skb`).
    fn remember(&mut self, new: SackBlock) {
        let touches = |block: &SackBlock| new.from <= block.to && block.from <= new.to;
        let found = self.recent().iter().position(touches);
        let place = match found {
            Some(place) => {
                let block = &mut self.recent[place];
                block.from = block.from.min(new.from);
                block.to = block.to.max(new.to);
                place
            }
            None => {
                self.count = REMEMBERED.min(self.count + 1);
                self.recent[self.count - 1] = new;
                self.count - 1
            }
        };
        self.recent[..=place].rotate_right(1);
        // Blocks that it now adjoins are merged with it.
        let mut index = 1;
        while found.is_some() && index < self.count {
            let (first, other) = (self.recent[0], self.recent[index]);
            if other.from <= first.to && first.from <= other.to {
                self.recent[0] = SackBlock {
                    from: first.from.min(other.from),
                    to: first.to.max(other.to),
                };
                self.recent.copy_within(index + 1..self.count, index);
                self.count -= 1;
            } else {
                index += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn block(from: u32, to: u32) -> SackBlock {
        SackBlock { from, to }
    }

    #[test]
    fn the_latest_block_is_reported_first() {
        let mut arrived = Arrived::default();
        for segment in [2, 3, 6, 9, 4] {
            arrived.add(segment);
        }
        assert_eq!(arrived.recent(), [block(2, 5), block(9, 10), block(6, 7)]);
        arrived.add(5);
        assert_eq!(arrived.recent(), [block(2, 7), block(9, 10)]);
        arrived.advance();
        assert_eq!((arrived.rcv_nxt(), arrived.has_gap()), (1, true));
        arrived.advance();
        assert_eq!(arrived.rcv_nxt(), 7);
        assert_eq!(arrived.recent(), [block(9, 10)]);
    }

    proptest! {
        /// Whatever arrives in whatever order, the result is that of a set of numbers.
        #[test]
        fn it_knows_what_arrived(segments in proptest::collection::vec(0u32..60, 1..120)) {
            let mut arrived = Arrived::default();
            let mut model = BTreeSet::new();
            for segment in segments {
                let new = model.insert(segment);
                match segment.cmp(&arrived.rcv_nxt()) {
                    std::cmp::Ordering::Less => prop_assert!(!new),
                    std::cmp::Ordering::Equal => arrived.advance(),
                    std::cmp::Ordering::Greater => prop_assert_eq!(arrived.add(segment), new),
                }
                let next = (0..).find(|n| !model.contains(n)).expect("60 at most");
                prop_assert_eq!(arrived.rcv_nxt(), next);
                for block in arrived.recent() {
                    prop_assert!(block.from > next);
                    prop_assert!((block.from..block.to).all(|n| model.contains(&n)));
                }
                prop_assert_eq!(arrived.held() as usize, model.range(next..).count());
                prop_assert_eq!(arrived.has_gap(), model.iter().any(|&n| n > next));
            }
        }
    }
}
