//! What the sender knows of each segment in flight, and how many are in which state (RFC 6675's scoreboard, as Linux
//! keeps it in its retransmission queue).

use crate::path::Nanos;

/// Marks the end of the list by time of sending.
const NONE: u32 = u32::MAX;
/// Segments that there is room for at first; a power of two.
const CAPACITY: usize = 64;

/// A segment that has been sent and not acknowledged cumulatively.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// When it was sent last, ns (`skb_mstamp`).
    pub(super) sent: Nanos,
    /// When the segment that the delivery-rate sample starts from was sent, ns (`tx.first_tx_mstamp`).
    pub(super) first_sent: Nanos,
    /// When the newest delivery before it was sent was known, ns (`tx.delivered_mstamp`).
    pub(super) delivered_at: Nanos,
    /// Lifetime segments delivered when it was sent (`tx.delivered`).
    pub(super) delivered: u32,
    /// Neighbours in the order of sending.
    before: u32,
    after: u32,
    /// Its state.
    pub(super) flags: Flags,
}

/// A segment's state (`TCPCB_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// The receiver has it.
    pub(super) sacked: bool,
    /// Taken for lost.
    pub(super) lost: bool,
    /// A retransmission of it is in flight.
    pub(super) retransmitted: bool,
    /// It was the last of several that were sent together, and has PSH set whenever it is sent.
    pub(super) push: bool,
    /// It was retransmitted some time.
    pub(super) ever_retransmitted: bool,
    /// It is in the list by time of sending.
    listed: bool,
}

/// Segments `una..next`.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    /// Segment `n` is at `n` modulo the length, a power of two.
    ring: Vec<Segment>,
    una: u32,
    next: u32,
    /// First and last in the order of sending, of those in flight (`tsorted_sent_queue`).
    oldest: u32,
    newest: u32,
    sacked: u32,
    lost: u32,
    retransmitted: u32,
    /// One after the highest SACKed segment.
    sacked_end: u32,
    /// A bit a place of the ring: lost and not retransmitted. Thousands of segments may be missing at once, and each
    /// ACK asks for the first of these.
    waiting: Vec<u64>,
    /// None of them is before this one (`retransmit_skb_hint`).
    hint: u32,
    /// Segments marked lost so far, retransmissions included.
    losses: u64,
}

impl Segment {
    /// A segment that is sent at `sent`, with the stamps of [`Delivery`](super::delivery::Delivery).
    #[inline]
    pub(super) fn sent(
        sent: Nanos,
        first_sent: Nanos,
        delivered_at: Nanos,
        delivered: u32,
    ) -> Self {
        Self {
            sent,
            first_sent,
            delivered_at,
            delivered,
            before: NONE,
            after: NONE,
            flags: Flags::default(),
        }
    }
}

impl Scoreboard {
    /// Nothing sent.
    pub(super) fn new() -> Self {
        Self {
            ring: vec![Segment::sent(0, 0, 0, 0); CAPACITY],
            una: 0,
            next: 0,
            oldest: NONE,
            newest: NONE,
            sacked: 0,
            lost: 0,
            retransmitted: 0,
            sacked_end: 0,
            waiting: vec![0; CAPACITY / 64],
            hint: 0,
            losses: 0,
        }
    }

    /// First unacknowledged segment.
    #[inline]
    pub(super) fn una(&self) -> u32 {
        self.una
    }

    /// The segment to be sent next for the first time.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Segments sent and not acknowledged cumulatively (`packets_out`).
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        self.next - self.una
    }

    /// Segments that are in the network as far as the sender knows (`tcp_packets_in_flight`).
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.outstanding() + self.retransmitted - self.sacked - self.lost
    }

    /// SACKed segments (`sacked_out`).
    #[inline]
    pub(super) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Segments that are lost by the sender's judgement (`lost_out`).
    #[inline]
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Retransmissions in flight (`retrans_out`).
    #[inline]
    pub(super) fn retransmitted(&self) -> u32 {
        self.retransmitted
    }

    /// Lifetime count of segments marked lost (`tcp_sock.lost`).
    #[inline]
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// One after the highest SACKed segment, at least [`una`](Self::una) (`tcp_highest_sack_seq`).
    #[inline]
    pub(super) fn sacked_end(&self) -> u32 {
        self.sacked_end.max(self.una)
    }

    /// Whether the first segment has been retransmitted (`tcp_any_retrans_done`, which looks at the head too).
    #[inline]
    pub(super) fn any_retransmitted(&self) -> bool {
        self.retransmitted > 0
            || (self.una != self.next && self.get(self.una).flags.ever_retransmitted)
    }

    /// A segment of `una..next`.
    #[inline]
    pub(super) fn get(&self, segment: u32) -> &Segment {
        &self.ring[self.place(segment)]
    }

    /// Sends the next segment for the first time.
    #[inline]
    pub(super) fn push(&mut self, mut segment: Segment, push: bool) {
        if self.outstanding() as usize == self.ring.len() {
            self.grow();
        }
        let number = self.next;
        self.next += 1;
        segment.flags = Flags {
            push,
            ..Flags::default()
        };
        let place = self.place(number);
        self.ring[place] = segment;
        self.wait(number, false);
        self.link(number);
    }

    /// Acknowledges the first segment; gives what was known of it. There must be one.
    #[inline]
    pub(super) fn pop(&mut self) -> Segment {
        let number = self.una;
        self.unlink(number);
        let segment = *self.get(number);
        self.una += 1;
        self.sacked -= u32::from(segment.flags.sacked);
        self.lost -= u32::from(segment.flags.lost);
        self.retransmitted -= u32::from(segment.flags.retransmitted);
        segment
    }

    /// The receiver has this segment of `una..next` beyond a gap. Gives what was known of it, none when that was known.
    #[inline]
    pub(super) fn sack(&mut self, number: u32) -> Option<Segment> {
        let place = self.place(number);
        let before = self.ring[place];
        if before.flags.sacked {
            return None;
        }
        let flags = &mut self.ring[place].flags;
        flags.sacked = true;
        // A retransmission of a segment that is not held for lost is still in flight for all that is known.
        if before.flags.lost {
            flags.lost = false;
            self.lost -= 1;
            self.retransmitted -= u32::from(before.flags.retransmitted);
            flags.retransmitted = false;
            self.wait(number, false);
        }
        self.sacked += 1;
        self.unlink(number);
        self.sacked_end = self.sacked_end.max(number + 1);
        Some(before)
    }

    /// The receiver told that this segment of `una..next` came twice: its retransmission is no longer in flight.
    pub(super) fn duplicate(&mut self, number: u32) {
        let place = self.place(number);
        let flags = &mut self.ring[place].flags;
        self.retransmitted -= u32::from(flags.retransmitted);
        flags.retransmitted = false;
        if flags.lost {
            self.wait(number, true);
        }
    }

    /// Takes the segment, or its retransmission, for lost (`tcp_mark_skb_lost`).
    pub(super) fn mark_lost(&mut self, number: u32) {
        let place = self.place(number);
        let flags = &mut self.ring[place].flags;
        if flags.sacked || (flags.lost && !flags.retransmitted) {
            return;
        }
        self.retransmitted -= u32::from(flags.lost && flags.retransmitted);
        if flags.lost {
            flags.retransmitted = false;
        } else {
            flags.lost = true;
            self.lost += 1;
        }
        self.losses += 1;
        self.wait(number, true);
        self.unlink(number);
    }

    /// Takes nothing for lost any more.
    pub(super) fn unmark_lost(&mut self) {
        if self.lost > 0 {
            for number in self.una..self.next {
                let place = self.place(number);
                self.ring[place].flags.lost = false;
            }
            self.waiting.fill(0);
        }
        self.lost = 0;
    }

    /// The first segment that is lost and not retransmitted.
    #[inline]
    pub(super) fn first_to_retransmit(&mut self) -> Option<u32> {
        if self.lost == 0 {
            return None;
        }
        self.hint = self.hint.max(self.una);
        while self.hint < self.next {
            let place = self.place(self.hint);
            let word = self.waiting[place / 64] >> (place % 64);
            if word != 0 {
                self.hint += word.trailing_zeros();
                // Beyond the last segment, a bit is of the first ones, whose places follow in the ring.
                return (self.hint < self.next).then_some(self.hint);
            }
            self.hint += 64 - (place % 64) as u32;
        }
        None
    }

    /// Sends a segment of `una..next` again. `stamps` holds the times and counts of the new sending.
    pub(super) fn retransmit(&mut self, number: u32, stamps: Segment) {
        self.unlink(number);
        let place = self.place(number);
        let segment = &mut self.ring[place];
        let mut flags = segment.flags;
        self.retransmitted += u32::from(!flags.retransmitted);
        flags.retransmitted = true;
        flags.ever_retransmitted = true;
        *segment = Segment { flags, ..stamps };
        self.wait(number, false);
        self.link(number);
    }

    /// The segment in flight that was sent first.
    #[inline]
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// The segment in flight that was sent next after this one.
    #[inline]
    pub(super) fn sent_after(&self, number: u32) -> Option<u32> {
        let after = self.get(number).after;
        (after != NONE).then_some(after)
    }

    /// Bytes of memory held.
    pub(super) fn memory(&self) -> usize {
        self.ring.capacity() * size_of::<Segment>()
    }

    #[inline]
    fn place(&self, number: u32) -> usize {
        number as usize & (self.ring.len() - 1)
    }

    #[inline]
    fn link(&mut self, number: u32) {
        let newest = self.newest;
        let place = self.place(number);
        let segment = &mut self.ring[place];
        segment.before = newest;
        segment.after = NONE;
        segment.flags.listed = true;
        match newest {
            NONE => self.oldest = number,
            _ => {
                let place = self.place(newest);
                self.ring[place].after = number;
            }
        }
        self.newest = number;
    }

    #[inline]
    fn unlink(&mut self, number: u32) {
        let place = self.place(number);
        let segment = &mut self.ring[place];
        if !segment.flags.listed {
            return;
        }
        segment.flags.listed = false;
        let (before, after) = (segment.before, segment.after);
        match before {
            NONE => self.oldest = after,
            _ => {
                let place = self.place(before);
                self.ring[place].after = after;
            }
        }
        match after {
            NONE => self.newest = before,
            _ => {
                let place = self.place(after);
                self.ring[place].before = before;
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut ring = vec![Segment::sent(0, 0, 0, 0); self.ring.len() * 2];
        let mask = ring.len() - 1;
        for number in self.una..self.next {
            ring[number as usize & mask] = *self.get(number);
        }
        self.ring = ring;
        self.waiting = vec![0; self.ring.len() / 64];
        for number in self.una..self.next {
            let flags = self.get(number).flags;
            self.wait(number, flags.lost && !flags.retransmitted);
        }
    }

    /// The segment is lost and not retransmitted, or is not.
    #[inline]
    fn wait(&mut self, number: u32, waits: bool) {
        let place = self.place(number);
        let bit = 1 << (place % 64);
        if waits {
            self.waiting[place / 64] |= bit;
            self.hint = self.hint.min(number);
        } else {
            self.waiting[place / 64] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent(count: u32) -> Scoreboard {
        let mut board = Scoreboard::new();
        for _ in 0..count {
            board.push(Segment::sent(0, 0, 0, 0), false);
        }
        board
    }

    fn order(board: &Scoreboard) -> Vec<u32> {
        std::iter::successors(board.oldest(), |&number| board.sent_after(number)).collect()
    }

    #[test]
    fn a_lost_segment_leaves_flight_and_returns_when_sent_again() {
        let mut board = sent(5);
        assert!(board.sack(2).is_some() && board.sack(2).is_none());
        board.mark_lost(0);
        board.mark_lost(1);
        assert_eq!((board.in_flight(), board.lost(), board.sacked()), (2, 2, 1));
        assert_eq!(board.first_to_retransmit(), Some(0));
        board.retransmit(0, Segment::sent(0, 0, 0, 0));
        assert_eq!(board.first_to_retransmit(), Some(1));
        assert_eq!(order(&board), [3, 4, 0]);
        assert_eq!(board.in_flight(), 3);
        board.mark_lost(0);
        assert_eq!((board.in_flight(), board.losses()), (2, 3));
        assert_eq!(
            board.first_to_retransmit(),
            Some(0),
            "its retransmission was lost too"
        );
    }

    #[test]
    fn growing_keeps_everything() {
        let mut board = sent(10);
        for _ in 0..7 {
            board.pop();
        }
        board.mark_lost(8);
        for _ in 0..500 {
            board.push(Segment::sent(0, 0, 0, 0), false);
        }
        assert_eq!(board.outstanding(), 503);
        assert_eq!(order(&board).len(), 502);
        assert!(board.get(8).flags.lost);
    }

    proptest! {
        /// The counts are always those of the flags, and the list holds what is in flight in order of sending.
        #[test]
        fn counts_and_list_agree_with_the_segments(
            steps in proptest::collection::vec((0u8..6, 0u32..200), 1..300),
        ) {
            let mut board = Scoreboard::new();
            for (time, (step, at)) in steps.into_iter().enumerate() {
                let stamps = Segment::sent(time as Nanos, 0, 0, 0);
                let out = board.outstanding();
                let number = board.una() + at % out.max(1);
                match step {
                    0 | 1 => board.push(stamps, false),
                    _ if out == 0 => {}
                    2 => { board.pop(); }
                    3 => { board.sack(number); }
                    4 => board.mark_lost(number),
                    _ => if let Some(number) = board.first_to_retransmit() {
                        board.retransmit(number, stamps);
                    }
                }
                let all = || (board.una()..board.next()).map(|number| board.get(number).flags);
                prop_assert_eq!(board.sacked() as usize, all().filter(|f| f.sacked).count());
                prop_assert_eq!(board.lost() as usize, all().filter(|f| f.lost).count());
                prop_assert_eq!(
                    board.retransmitted() as usize, all().filter(|f| f.retransmitted).count());
                let order = order(&board);
                prop_assert!(order.is_sorted_by_key(|&number| board.get(number).sent));
                let flying = all().filter(|f| !f.sacked && (!f.lost || f.retransmitted)).count();
                prop_assert_eq!(order.len(), flying);
                let pending = (board.una()..board.next()).find(|&number| {
                    let flags = board.get(number).flags;
                    flags.lost && !flags.retransmitted
                });
                prop_assert_eq!(board.first_to_retransmit(), pending);
            }
        }
    }
}
