//! The sender's scoreboard (RFC 6675): the state of each outstanding segment, and how many segments
//! are in which state. Linux 6.18 keeps both in its retransmission queue and `struct tcp_sock`.

use crate::path::Nanos;

use super::control::LostSegment;
use super::wire::MSS;

/// End of the list by time of sending.
const NONE: u32 = u32::MAX;
/// Initial capacity in segments; a power of two.
const CAPACITY: usize = 64;

/// A segment that was sent and is not acknowledged cumulatively (`struct tcp_skb_cb`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Time at which it was last sent, ns (`skb_mstamp`).
    pub(super) sent: Nanos,
    /// Time at which the segment was sent that the delivery-rate sample starts from, ns
    /// (`tx.first_tx_mstamp`).
    pub(super) first_tx_mstamp: Nanos,
    /// Time of the newest delivery before it was sent, ns (`tx.delivered_mstamp`).
    pub(super) delivered_mstamp: Nanos,
    /// Lifetime segments delivered when it was sent (`tx.delivered`).
    pub(super) delivered: u32,
    /// Neighbours in the list by time of sending, or [`NONE`].
    before: u32,
    after: u32,
    /// Payload of the segment in bytes.
    pub(super) payload: u16,
    /// Whether it was sent while the application limited the sender (`tx.is_app_limited`).
    pub(super) app_limited: bool,
    /// What the sender knows about it (`TCPCB_*`).
    pub(super) flags: Flags,
}

/// The state of a segment (`TCPCB_*`, include/net/tcp.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// The receiver has SACKed it (`TCPCB_SACKED_ACKED`).
    pub(super) sacked: bool,
    /// Loss detection has marked it lost (`TCPCB_LOST`).
    pub(super) lost: bool,
    /// A retransmission of it is in flight (`TCPCB_SACKED_RETRANS`).
    pub(super) retransmitted: bool,
    /// It was the last of a burst, and carries PSH whenever it is sent.
    pub(super) push: bool,
    /// It was retransmitted at least once (`TCPCB_EVER_RETRANS`).
    pub(super) ever_retrans: bool,
    /// It is in the list by time of sending (`tsorted_sent_queue`).
    listed: bool,
}

/// The state of the sender when it last sent a segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Transmission {
    /// Segments in flight, this one included.
    pub(super) in_flight: u32,
    /// Lifetime count of segments marked lost.
    pub(super) lost: u64,
}

/// The scoreboard of a connection: its outstanding segments `snd_una..snd_nxt`.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    /// Ring buffer: segment `n` is at `n` modulo its length, which is a power of two.
    ring: Vec<Segment>,
    snd_una: u32,
    snd_nxt: u32,
    /// Ends of the list by time of sending, of the segments in flight (`tsorted_sent_queue`).
    oldest: u32,
    newest: u32,
    sacked_out: u32,
    lost_out: u32,
    retrans_out: u32,
    /// One after the highest SACKed segment, over the connection's life.
    highest_sack_end: u32,
    /// A bit per place of the ring, set where the segment is lost and not retransmitted: thousands
    /// may be missing at once, and every ACK asks for the first.
    awaiting_retrans: Vec<u64>,
    /// No segment before this one awaits retransmission (`retransmit_skb_hint`).
    retransmit_hint: u32,
    /// Lifetime count of segments marked lost, retransmissions included (`tcp_sock.lost`).
    total_lost: u64,
    /// The last transmission of each segment, at the places of the ring; empty unless the
    /// congestion control wants it.
    transmissions: Vec<Transmission>,
    /// Segments marked lost of which the congestion control has not heard; stays empty together
    /// with the transmissions.
    newly_lost: Vec<LostSegment>,
}

impl Segment {
    /// Creates a segment sent at `sent`, with the stamps of
    /// [`DeliveryRate`](super::delivery::DeliveryRate).
    #[inline]
    pub(super) fn sent(
        sent: Nanos,
        first_tx_mstamp: Nanos,
        delivered_mstamp: Nanos,
        delivered: u32,
    ) -> Self {
        Self {
            sent,
            first_tx_mstamp,
            delivered_mstamp,
            delivered,
            before: NONE,
            after: NONE,
            payload: MSS as u16,
            app_limited: false,
            flags: Flags::default(),
        }
    }
}

impl Scoreboard {
    /// Creates the scoreboard of a connection that has sent nothing.
    pub(super) fn new() -> Self {
        Self {
            ring: vec![Segment::sent(0, 0, 0, 0); CAPACITY],
            snd_una: 0,
            snd_nxt: 0,
            oldest: NONE,
            newest: NONE,
            sacked_out: 0,
            lost_out: 0,
            retrans_out: 0,
            highest_sack_end: 0,
            awaiting_retrans: vec![0; CAPACITY / 64],
            retransmit_hint: 0,
            total_lost: 0,
            transmissions: Vec::new(),
            newly_lost: Vec::new(),
        }
    }

    /// Makes the scoreboard keep each segment's [`Transmission`] and report losses from now on.
    pub(super) fn track_transmissions(&mut self) {
        self.transmissions = vec![Transmission::default(); self.ring.len()];
    }

    /// The last transmission of a segment that was outstanding before the present ACK; `None` where
    /// transmissions are not tracked.
    #[inline]
    pub(super) fn transmission(&self, number: u32) -> Option<&Transmission> {
        self.transmissions.get(self.place(number))
    }

    /// Whether segments were marked lost of which the congestion control has not heard.
    #[inline]
    pub(super) fn has_newly_lost(&self) -> bool {
        !self.newly_lost.is_empty()
    }

    /// Takes the segments marked lost since the last call. [`reuse`](Self::reuse) takes the list
    /// back.
    pub(super) fn take_newly_lost(&mut self) -> Vec<LostSegment> {
        std::mem::take(&mut self.newly_lost)
    }

    /// Takes back a list of [`take_newly_lost`](Self::take_newly_lost), for its memory.
    pub(super) fn reuse(&mut self, mut list: Vec<LostSegment>) {
        list.clear();
        self.newly_lost = list;
    }

    /// The first unacknowledged segment (`snd_una`).
    #[inline]
    pub(super) fn snd_una(&self) -> u32 {
        self.snd_una
    }

    /// The segment to be sent next for the first time (`snd_nxt`).
    #[inline]
    pub(super) fn snd_nxt(&self) -> u32 {
        self.snd_nxt
    }

    /// Segments sent and not acknowledged cumulatively (`packets_out`).
    #[inline]
    pub(super) fn packets_out(&self) -> u32 {
        self.snd_nxt - self.snd_una
    }

    /// Segments in flight by the sender's knowledge (`tcp_packets_in_flight`).
    #[inline]
    pub(super) fn packets_in_flight(&self) -> u32 {
        self.packets_out() + self.retrans_out - self.sacked_out - self.lost_out
    }

    /// Number of SACKed segments (`sacked_out`).
    #[inline]
    pub(super) fn sacked_out(&self) -> u32 {
        self.sacked_out
    }

    /// Number of segments marked lost (`lost_out`).
    #[inline]
    pub(super) fn lost_out(&self) -> u32 {
        self.lost_out
    }

    /// Number of retransmissions in flight (`retrans_out`).
    #[inline]
    pub(super) fn retrans_out(&self) -> u32 {
        self.retrans_out
    }

    /// Lifetime count of segments marked lost (`tcp_sock.lost`).
    #[inline]
    pub(super) fn total_lost(&self) -> u64 {
        self.total_lost
    }

    /// One after the highest SACKed segment, at least [`snd_una`](Self::snd_una)
    /// (`tcp_highest_sack_seq`).
    #[inline]
    pub(super) fn highest_sack_end(&self) -> u32 {
        self.highest_sack_end.max(self.snd_una)
    }

    /// Whether a retransmission is in flight or the first segment was retransmitted
    /// (`tcp_any_retrans_done`, which looks at the head too).
    #[inline]
    pub(super) fn any_retrans_done(&self) -> bool {
        self.retrans_out > 0
            || (self.snd_una != self.snd_nxt && self.get(self.snd_una).flags.ever_retrans)
    }

    /// The state of one of the segments `snd_una..snd_nxt`.
    #[inline]
    pub(super) fn get(&self, segment: u32) -> &Segment {
        &self.ring[self.place(segment)]
    }

    /// Adds the segment `snd_nxt`, which is sent now.
    #[inline]
    pub(super) fn push(&mut self, mut segment: Segment, push: bool) {
        if self.packets_out() as usize == self.ring.len() {
            self.grow();
        }
        let number = self.snd_nxt;
        self.snd_nxt += 1;
        segment.flags = Flags {
            push,
            ..Flags::default()
        };
        let place = self.place(number);
        self.ring[place] = segment;
        self.set_awaiting(number, false);
        self.link(number);
        self.note_transmission(number);
    }

    /// Removes the first segment, which is acknowledged cumulatively, and returns its last state.
    /// There must be one.
    #[inline]
    pub(super) fn pop(&mut self) -> Segment {
        let number = self.snd_una;
        self.unlink(number);
        let segment = *self.get(number);
        self.snd_una += 1;
        self.sacked_out -= u32::from(segment.flags.sacked);
        self.lost_out -= u32::from(segment.flags.lost);
        self.retrans_out -= u32::from(segment.flags.retransmitted);
        segment
    }

    /// Marks one of the segments `snd_una..snd_nxt` as SACKed. Returns its state before, or `None`
    /// when it was SACKed already.
    #[inline]
    pub(super) fn sack(&mut self, number: u32) -> Option<Segment> {
        let place = self.place(number);
        let before = self.ring[place];
        if before.flags.sacked {
            return None;
        }
        let flags = &mut self.ring[place].flags;
        flags.sacked = true;
        // A retransmission of a segment that is not marked lost counts as in flight until it is
        // acknowledged.
        if before.flags.lost {
            flags.lost = false;
            self.lost_out -= 1;
            self.retrans_out -= u32::from(before.flags.retransmitted);
            flags.retransmitted = false;
            self.set_awaiting(number, false);
        }
        self.sacked_out += 1;
        self.unlink(number);
        self.highest_sack_end = self.highest_sack_end.max(number + 1);
        Some(before)
    }

    /// Takes note of a D-SACK of this segment: its retransmission is no longer in flight.
    pub(super) fn dsack(&mut self, number: u32) {
        let place = self.place(number);
        let flags = &mut self.ring[place].flags;
        self.retrans_out -= u32::from(flags.retransmitted);
        flags.retransmitted = false;
        if flags.lost {
            self.set_awaiting(number, true);
        }
    }

    /// Marks the segment, or its retransmission, as lost (`tcp_mark_skb_lost`).
    pub(super) fn mark_lost(&mut self, number: u32) {
        let place = self.place(number);
        let flags = &mut self.ring[place].flags;
        if flags.sacked || (flags.lost && !flags.retransmitted) {
            return;
        }
        self.retrans_out -= u32::from(flags.lost && flags.retransmitted);
        if flags.lost {
            flags.retransmitted = false;
        } else {
            flags.lost = true;
            self.lost_out += 1;
        }
        self.total_lost += 1;
        if let Some(&sent) = self.transmissions.get(place) {
            let segment = &self.ring[place];
            self.newly_lost.push(LostSegment {
                number: number.into(),
                sent: segment.sent,
                tx_in_flight: sent.in_flight,
                lost: (self.total_lost - sent.lost) as u32,
                app_limited: segment.app_limited,
                // The sender adds the time and what was delivered.
                ..LostSegment::default()
            });
        }
        self.set_awaiting(number, true);
        self.unlink(number);
    }

    /// Removes all loss marks (`tcp_undo_cwnd_reduction`).
    pub(super) fn unmark_lost(&mut self) {
        if self.lost_out > 0 {
            for number in self.snd_una..self.snd_nxt {
                let place = self.place(number);
                self.ring[place].flags.lost = false;
            }
            self.awaiting_retrans.fill(0);
        }
        self.lost_out = 0;
    }

    /// Returns the first segment that is lost and not retransmitted.
    #[inline]
    pub(super) fn first_to_retransmit(&mut self) -> Option<u32> {
        if self.lost_out == 0 {
            return None;
        }
        self.retransmit_hint = self.retransmit_hint.max(self.snd_una);
        while self.retransmit_hint < self.snd_nxt {
            let place = self.place(self.retransmit_hint);
            let word = self.awaiting_retrans[place / 64] >> (place % 64);
            if word != 0 {
                self.retransmit_hint += word.trailing_zeros();
                // Beyond the last segment, bits belong to the first ones, whose places follow in
                // the ring.
                return (self.retransmit_hint < self.snd_nxt).then_some(self.retransmit_hint);
            }
            self.retransmit_hint += 64 - (place % 64) as u32;
        }
        None
    }

    /// Marks one of the segments `snd_una..snd_nxt` as retransmitted. `stamps` has the times and
    /// counts of the new transmission.
    pub(super) fn retransmit(&mut self, number: u32, stamps: Segment) {
        self.unlink(number);
        let place = self.place(number);
        let segment = &mut self.ring[place];
        let mut flags = segment.flags;
        self.retrans_out += u32::from(!flags.retransmitted);
        flags.retransmitted = true;
        flags.ever_retrans = true;
        *segment = Segment {
            flags,
            payload: segment.payload,
            ..stamps
        };
        self.set_awaiting(number, false);
        self.link(number);
        self.note_transmission(number);
    }

    /// Takes note that the segment was sent again as a loss probe, which does not count as a
    /// retransmission in flight (`__tcp_retransmit_skb`). It must not be SACKed or lost.
    pub(super) fn probe(&mut self, number: u32, stamps: Segment) {
        self.unlink(number);
        let place = self.place(number);
        let segment = &mut self.ring[place];
        let mut flags = segment.flags;
        flags.ever_retrans = true;
        *segment = Segment {
            flags,
            payload: segment.payload,
            ..stamps
        };
        self.link(number);
        self.note_transmission(number);
    }

    /// The segment in flight that was sent first, by the time of its last transmission.
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

    /// Heap memory of the ring in bytes.
    pub(super) fn memory(&self) -> usize {
        self.ring.capacity() * size_of::<Segment>()
            + self.transmissions.capacity() * size_of::<Transmission>()
    }

    #[inline]
    fn note_transmission(&mut self, number: u32) {
        if self.transmissions.is_empty() {
            return;
        }
        let place = self.place(number);
        self.transmissions[place] = Transmission {
            in_flight: self.packets_in_flight(),
            lost: self.total_lost,
        };
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
        for number in self.snd_una..self.snd_nxt {
            ring[number as usize & mask] = *self.get(number);
        }
        if !self.transmissions.is_empty() {
            let mut transmissions = vec![Transmission::default(); ring.len()];
            for number in self.snd_una..self.snd_nxt {
                transmissions[number as usize & mask] = self.transmissions[self.place(number)];
            }
            self.transmissions = transmissions;
        }
        self.ring = ring;
        self.awaiting_retrans = vec![0; self.ring.len() / 64];
        for number in self.snd_una..self.snd_nxt {
            let flags = self.get(number).flags;
            self.set_awaiting(number, flags.lost && !flags.retransmitted);
        }
    }

    /// Sets whether the segment is lost and not retransmitted.
    #[inline]
    fn set_awaiting(&mut self, number: u32, waits: bool) {
        let place = self.place(number);
        let bit = 1 << (place % 64);
        if waits {
            self.awaiting_retrans[place / 64] |= bit;
            self.retransmit_hint = self.retransmit_hint.min(number);
        } else {
            self.awaiting_retrans[place / 64] &= !bit;
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
        assert_eq!(
            (
                board.packets_in_flight(),
                board.lost_out(),
                board.sacked_out()
            ),
            (2, 2, 1)
        );
        assert_eq!(board.first_to_retransmit(), Some(0));
        board.retransmit(0, Segment::sent(0, 0, 0, 0));
        assert_eq!(board.first_to_retransmit(), Some(1));
        assert_eq!(order(&board), [3, 4, 0]);
        assert_eq!(board.packets_in_flight(), 3);
        board.mark_lost(0);
        assert_eq!((board.packets_in_flight(), board.total_lost()), (2, 3));
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
        assert_eq!(board.packets_out(), 503);
        assert_eq!(order(&board).len(), 502);
        assert!(board.get(8).flags.lost);
    }

    proptest! {
        /// The counts are those of the flags, and the list has what is in flight in order of
        /// sending.
        #[test]
        fn counts_and_list_agree_with_the_segments(
            steps in proptest::collection::vec((0u8..6, 0u32..200), 1..300),
        ) {
            let mut board = Scoreboard::new();
            for (time, (step, at)) in steps.into_iter().enumerate() {
                let stamps = Segment::sent(time as Nanos, 0, 0, 0);
                let out = board.packets_out();
                let number = board.snd_una() + at % out.max(1);
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
                let outstanding = || board.snd_una()..board.snd_nxt();
                let all = || outstanding().map(|number| board.get(number).flags);
                prop_assert_eq!(board.sacked_out() as usize, all().filter(|f| f.sacked).count());
                prop_assert_eq!(board.lost_out() as usize, all().filter(|f| f.lost).count());
                prop_assert_eq!(
                    board.retrans_out() as usize, all().filter(|f| f.retransmitted).count());
                let order = order(&board);
                prop_assert!(order.is_sorted_by_key(|&number| board.get(number).sent));
                let flying = all().filter(|f| !f.sacked && (!f.lost || f.retransmitted)).count();
                prop_assert_eq!(order.len(), flying);
                let pending = (board.snd_una()..board.snd_nxt()).find(|&number| {
                    let flags = board.get(number).flags;
                    flags.lost && !flags.retransmitted
                });
                prop_assert_eq!(board.first_to_retransmit(), pending);
            }
        }
    }
}
