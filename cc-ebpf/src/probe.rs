//! An ACK's sample reconstructed from the socket's state before the ACK and before the next
//! segment.
//!
//! The observer needs this where it sees segments arrive (the tracepoint `tcp_probe`,
//! include/trace/events/tcp.h) but is not called with the `rate_sample`. What the kernel keeps of
//! the `rate_sample` in the socket is exact without losses and while the application has enough to
//! send; [`Glimpse::ack_before`] documents where it is not. Kernel sources are those of Linux 6.18.

use bytemuck::{Pod, Zeroable};

use crate::{AckSample, CaState, Totals};

/// A socket's state when a segment arrives, before the segment is processed.
///
/// Fields are copies of the members of `tcp_sock` with the same name, unless another is given.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Glimpse {
    /// Time of the glimpse, ns.
    pub at_ns: u64,
    /// Send time of the most recently sent segment among those delivered last, µs
    /// (`first_tx_mstamp`).
    pub first_tx_us: u64,
    /// Time of the last delivery, µs (`delivered_mstamp`).
    pub delivered_us: u64,
    /// Send time of the segment by which RACK judges the others, µs (`rack.mstamp`).
    pub rack_sent_us: u64,
    /// Lifetime totals of the connection.
    pub totals: Totals,
    /// Congestion window in segments (`snd_cwnd`).
    pub cwnd: u32,
    /// Segments delivered since the connection began.
    pub delivered: u32,
    /// Segments with payload sent, retransmissions included.
    pub data_segs_out: u32,
    /// Segments sent and not yet acknowledged cumulatively.
    pub packets_out: u32,
    /// Those of `packets_out` that are acknowledged selectively.
    pub sacked_out: u32,
    /// Those of `packets_out` that are marked lost.
    pub lost_out: u32,
    /// Retransmitted segments in flight.
    pub retrans_out: u32,
    /// Sequence number of the oldest unacknowledged byte.
    pub snd_una: u32,
    /// Consecutive retransmission timeouts (`icsk_retransmits`).
    pub retransmits: u32,
    /// Segments of the newest rate sample that the application did not limit.
    pub rate_delivered: u32,
    /// Length of that rate sample, µs.
    pub rate_interval_us: u32,
    /// RTT of the segment that was delivered last, µs (`rack.rtt_us`).
    pub rack_rtt_us: u32,
    /// Smoothed RTT in units of 1/8 µs.
    pub srtt_us: u32,
    /// Mean deviation of the RTT in units of 1/4 µs.
    pub mdev_us: u32,
    /// Sender's maximum segment size in bytes (`mss_cache`).
    pub mss: u32,
    /// Length of the TCP header in bytes (`tcp_header_len`).
    pub header_len: u32,
    /// [`CaState`] as a number (`icsk_ca_state`).
    pub ca_state: u32,
    /// The newest timestamp that the peer echoed, ms (`rx_opt.rcv_tsecr`); 0 without the timestamp
    /// option.
    pub echoed_ms: u32,
}

impl Glimpse {
    /// The sample of the one ACK that was processed between `before` and this glimpse.
    ///
    /// It equals what `cong_control` was given, with these exceptions:
    /// - A delivery rate that the application limited is missing, unless it exceeds the last one.
    /// - The RTT of an ACK that covers retransmissions and new SACKs is that of the timestamp.
    /// - Whatever a timer did since the ACK counts as if the ACK had done it.
    /// - Where a segment has gone out since with nothing in flight, and RACK judges by another
    ///   segment than the one delivered last, as after reordering, its time may be any between
    ///   `before` and this glimpse.
    #[inline(always)]
    pub fn ack_before(&self, before: &Self) -> AckSample {
        let acked = self.delivered.wrapping_sub(before.delivered);
        let resent = self
            .totals
            .segs_retrans
            .wrapping_sub(before.totals.segs_retrans);
        let sent = self.data_segs_out.wrapping_sub(before.data_segs_out);
        // Segments that were sent after the ACK were not in flight when it was processed.
        let packets_out = self.packets_out.wrapping_sub(sent.wrapping_sub(resent));
        let retrans_out = self.retrans_out.wrapping_sub(resent);
        let at_us = self.delivery_us(before);
        let mut ack = AckSample {
            now_ns: if acked > 0 {
                at_us * 1_000
            } else {
                before.at_ns
            },
            rtt_us: 0,
            srtt_us: self.srtt_us >> 3,
            rttvar_us: self.mdev_us >> 2,
            mss: self.mss,
            header_len: self.header_len,
            in_flight: packets_out
                .wrapping_sub(self.sacked_out)
                .wrapping_sub(self.lost_out)
                .wrapping_add(retrans_out),
            acked,
            lost: self.totals.lost.wrapping_sub(before.totals.lost),
            delivered: 0,
            interval_us: 0,
            // An ACK of new data resets the count of timeouts.
            retransmits: if self.snd_una == before.snd_una {
                before.retransmits
            } else {
                0
            },
            cwnd_limited: false,
            max_packets_out: 0,
            app_limited: false,
            idle: false,
            decays_unused: false,
            ca_state: CaState::from_raw(self.ca_state),
            totals: Totals {
                // The ACK finds the losses; everything else grows as segments come and go.
                lost: self.totals.lost,
                ..before.totals
            },
        };
        if acked > 0 {
            // An ACK of a retransmission measures nothing (Karn's rule), except by the timestamp
            // that it echoes when it acknowledges cumulatively. If fewer retransmissions are in
            // flight and more segments are lost, retransmissions were lost again.
            ack.rtt_us = if retrans_out == before.retrans_out || ack.lost > 0 {
                self.delivered_rtt_us()
            } else if self.snd_una == before.snd_una {
                0
            } else {
                self.echoed_rtt_us(at_us)
            };
        }
        if self.rate_delivered != before.rate_delivered
            || self.rate_interval_us != before.rate_interval_us
        {
            ack.delivered = self.rate_delivered;
            ack.interval_us = self.rate_interval_us;
        }
        ack
    }

    /// Whether a segment has been sent since the ACK with nothing in flight, which restarts both
    /// measurements (`tcp_rate_skb_sent`, net/ipv4/tcp_rate.c).
    #[inline(always)]
    fn is_restarted(&self) -> bool {
        self.first_tx_us == self.delivered_us
    }

    /// Time of the last delivery, µs, also after a restart of the measurements.
    ///
    /// It was between both glimpses, right after `before`. After a restart, only RACK's segment
    /// tells more; but `tcp_rack_advance` (net/ipv4/tcp_recovery.c) keeps the RTT of whatever was
    /// delivered last beside the send time of what was sent last, and the sum of two segments'
    /// values may be any time.
    #[inline(always)]
    fn delivery_us(&self, before: &Self) -> u64 {
        let at_us = if self.is_restarted() {
            self.rack_sent_us.wrapping_add(u64::from(self.rack_rtt_us))
        } else {
            self.delivered_us
        };
        let arrival_us = before.at_ns / 1_000;
        if (arrival_us..=self.at_ns / 1_000).contains(&at_us) {
            at_us
        } else {
            arrival_us
        }
    }

    /// RTT of the most recently sent segment among those delivered last, µs.
    #[inline(always)]
    fn delivered_rtt_us(&self) -> u32 {
        if self.is_restarted() {
            self.rack_rtt_us
        } else {
            self.delivered_us.wrapping_sub(self.first_tx_us) as u32
        }
    }

    /// RTT by the echoed timestamp, µs, at least 1 ms; 0 without a timestamp (`tcp_rtt_tsopt_us`,
    /// net/ipv4/tcp_input.c).
    #[inline(always)]
    fn echoed_rtt_us(&self, at_us: u64) -> u32 {
        if self.echoed_ms == 0 {
            return 0;
        }
        let ms = ((at_us / 1_000) as u32).wrapping_sub(self.echoed_ms);
        if ms == 0 {
            1_000
        } else if ms > 1_000_000 {
            0
        } else {
            ms * 1_000
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT_US: u64 = 5_000_000;

    fn before() -> Glimpse {
        Glimpse {
            at_ns: 5_040_000_100,
            first_tx_us: SENT_US - 1_000,
            delivered_us: SENT_US + 39_000,
            rack_sent_us: SENT_US - 1_000,
            totals: Totals {
                bytes_sent: 30_000,
                segs_in: 10,
                lost: 3,
                segs_retrans: 2,
                ..Totals::default()
            },
            cwnd: 20,
            delivered: 8,
            data_segs_out: 28,
            packets_out: 20,
            rate_delivered: 10,
            rate_interval_us: 40_000,
            retransmits: 1,
            rack_rtt_us: 40_000,
            srtt_us: 8 * 40_000,
            mss: 1_448,
            ..Glimpse::default()
        }
    }

    /// Two segments are acknowledged and three go out.
    fn after() -> Glimpse {
        let before = before();
        Glimpse {
            at_ns: 5_041_000_000,
            first_tx_us: SENT_US,
            delivered_us: SENT_US + 40_000,
            rack_sent_us: SENT_US,
            totals: Totals {
                bytes_sent: 30_000 + 3 * 1_448,
                segs_in: 11,
                ..before.totals
            },
            delivered: 10,
            data_segs_out: 31,
            packets_out: 21,
            snd_una: 2_896,
            rate_delivered: 11,
            srtt_us: 8 * 40_000 + 8,
            ..before
        }
    }

    #[test]
    fn an_ack_is_what_changed_before_anything_went_out() {
        let ack = after().ack_before(&before());
        assert_eq!(ack.now_ns, (SENT_US + 40_000) * 1_000);
        assert_eq!((ack.rtt_us, ack.srtt_us), (40_000, 40_001));
        assert_eq!((ack.acked, ack.lost, ack.in_flight), (2, 0, 18));
        assert_eq!((ack.delivered, ack.interval_us), (11, 40_000));
        assert_eq!(ack.retransmits, 0);
        assert_eq!(ack.totals, before().totals);
    }

    #[test]
    fn what_goes_into_an_empty_pipe_hides_nothing() {
        let all = Glimpse {
            first_tx_us: SENT_US + 90_000,
            delivered_us: SENT_US + 90_000,
            packets_out: 3,
            delivered: 28,
            ..after()
        };
        let ack = all.ack_before(&before());
        assert_eq!(ack.now_ns, (SENT_US + 40_000) * 1_000);
        assert_eq!((ack.rtt_us, ack.acked, ack.in_flight), (40_000, 20, 0));
    }

    #[test]
    fn a_segment_that_was_overtaken_is_not_delivered_at_another_time() {
        let restarted = Glimpse {
            first_tx_us: SENT_US + 40_900,
            delivered_us: SENT_US + 40_900,
            ..after()
        };
        let arrival_ns = before().at_ns / 1_000 * 1_000;
        // The one that was delivered last had been sent before the one that RACK judges by: the sum
        // lies after the next segment's arrival.
        let overtaken = Glimpse {
            rack_rtt_us: 55_000,
            ..restarted
        };
        assert_eq!(overtaken.ack_before(&before()).now_ns, arrival_ns);
        assert_eq!(overtaken.ack_before(&before()).rtt_us, 55_000);
        // A retransmission that RACK passes over leaves the sum at an earlier delivery.
        let passed_over = Glimpse {
            rack_sent_us: SENT_US - 9_000,
            ..restarted
        };
        assert_eq!(passed_over.ack_before(&before()).now_ns, arrival_ns);
    }

    #[test]
    fn one_that_acknowledges_nothing_measures_nothing() {
        let same = Glimpse {
            at_ns: 5_041_000_000,
            lost_out: 1,
            totals: Totals {
                lost: 4,
                ..before().totals
            },
            ..before()
        };
        let ack = same.ack_before(&before());
        assert_eq!((ack.acked, ack.lost, ack.rtt_us), (0, 1, 0));
        assert_eq!((ack.now_ns, ack.interval_us), (before().at_ns, 0));
        assert_eq!((ack.in_flight, ack.retransmits), (19, 1));
        assert_eq!(ack.totals.lost, 4);
    }

    #[test]
    fn retransmissions_are_measured_by_time_stamps_alone() {
        let waiting = Glimpse {
            retrans_out: 1,
            lost_out: 1,
            ..before()
        };
        let mut filled = Glimpse {
            echoed_ms: 5_010,
            ..after()
        };
        let ack = filled.ack_before(&waiting);
        assert_eq!((ack.rtt_us, ack.in_flight), (30_000, 18));
        filled.echoed_ms = 5_040;
        assert_eq!(
            filled.ack_before(&waiting).rtt_us,
            1_000,
            "no less than its unit"
        );
        filled.echoed_ms = 0;
        assert_eq!(filled.ack_before(&waiting).rtt_us, 0);
        // Acknowledged selectively, it measures nothing.
        filled.echoed_ms = 5_010;
        filled.snd_una = waiting.snd_una;
        assert_eq!(filled.ack_before(&waiting).rtt_us, 0);
        // One that was marked lost again was not what was delivered.
        filled.totals.lost += 1;
        assert_eq!(filled.ack_before(&waiting).rtt_us, 40_000);

        // One goes out after the ACK, in place of one of the three: the ACK itself covered none.
        let resent = Glimpse {
            retrans_out: 1,
            lost_out: 1,
            packets_out: 20,
            totals: Totals {
                segs_retrans: 3,
                lost: 4,
                ..after().totals
            },
            ..after()
        };
        let ack = resent.ack_before(&before());
        assert_eq!((ack.rtt_us, ack.in_flight, ack.lost), (40_000, 17, 1));
        assert_eq!(ack.totals.segs_retrans, 2);
    }
}
