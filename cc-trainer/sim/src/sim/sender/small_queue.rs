//! TCP Small Queues: how much of a connection may wait in its own host (Linux 6.18,
//! `tcp_small_queue_check` and `tcp_wfree`, net/ipv4/tcp_output.c).

use std::collections::VecDeque;

/// Memory of a burst beside its payload, bytes: `sk_buff`, header room and `skb_shared_info` as
/// `tcp_stream_alloc_skb` allocates them on x86-64.
const OVERHEAD: u64 = 960;
/// A connection may keep what the pacing rate sends in a 1024th of a second (`sk_pacing_shift` is
/// 10).
const PACING_SHIFT: u32 = 10;
/// Most bytes of a connection that is not paced (`tcp_limit_output_bytes`).
const LIMIT_OUTPUT_BYTES: u64 = 4 << 20;

/// What of a connection waits in its own host.
#[derive(Debug, Default)]
pub(super) struct SmallQueue {
    /// Bursts in order of sending. Each counts until its last segment has left.
    bursts: VecDeque<Burst>,
    /// Memory of all of them, bytes (`sk_wmem_alloc`).
    allocated: u64,
    /// Whether the connection wants to send when a burst has left (`TSQ_THROTTLED`).
    throttled: bool,
}

#[derive(Debug)]
struct Burst {
    /// Segments that have not left.
    segments: u32,
    bytes: u64,
}

impl SmallQueue {
    /// Whether the connection has to wait before it sends a burst of `payload` bytes. It may queue
    /// two of them, or what `pacing_rate` (bytes/s) sends in a millisecond if that is more;
    /// `doublings` of the limit are for retransmissions. Where it waits, [`leave`](Self::leave)
    /// says when to try again.
    pub(super) fn holds_back(
        &mut self,
        payload: u64,
        pacing_rate: Option<u64>,
        paced: bool,
        doublings: u32,
    ) -> bool {
        let rate = pacing_rate.unwrap_or(u64::MAX);
        let mut limit = (2 * (payload + OVERHEAD)).max(rate >> PACING_SHIFT);
        if !paced {
            limit = limit.min(LIMIT_OUTPUT_BYTES);
        }
        self.throttled = self.allocated >= limit << doublings;
        self.throttled
    }

    /// Whether nothing of the connection waits in the host.
    pub(super) fn is_empty(&self) -> bool {
        self.bursts.is_empty()
    }

    /// Takes note of a burst that is sent.
    pub(super) fn add(&mut self, segments: u32, payload: u64) {
        let bytes = payload + OVERHEAD;
        self.allocated += bytes;
        self.bursts.push_back(Burst { segments, bytes });
    }

    /// Takes note that a segment has left the host. Returns whether the connection is to send now,
    /// as the end of a burst was what it waited for.
    pub(super) fn leave(&mut self) -> bool {
        let Some(burst) = self.bursts.front_mut() else {
            return false;
        };
        burst.segments -= 1;
        if burst.segments > 0 {
            return false;
        }
        self.allocated -= burst.bytes;
        self.bursts.pop_front();
        std::mem::take(&mut self.throttled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_connection_queues_two_bursts() {
        let mut host = SmallQueue::default();
        let payload = 2 * 1448;
        for _ in 0..2 {
            assert!(!host.holds_back(payload, Some(100_000), true, 0));
            host.add(2, payload);
        }
        assert!(host.holds_back(payload, Some(100_000), true, 0));
        assert!(
            !host.holds_back(payload, Some(100_000), true, 1),
            "retransmissions may"
        );
        assert!(host.holds_back(payload, Some(100_000), true, 0));
        assert!(!host.leave(), "half of a burst");
        assert!(host.leave(), "the burst: room for another");
        assert!(!host.holds_back(payload, Some(100_000), true, 0));
        assert!(!host.leave());
        assert!(!host.leave(), "nobody waits");
        assert_eq!(host.allocated, 0);
    }

    #[test]
    fn a_fast_connection_queues_a_millisecond() {
        let mut host = SmallQueue::default();
        let payload = 10 * 1448;
        let mut bursts = 0;
        // 1 Gbit/s: 122 kB in a 1024th of a second.
        while !host.holds_back(payload, Some(125_000_000), true, 0) {
            host.add(10, payload);
            bursts += 1;
        }
        assert_eq!(bursts, 8, "of 15,440 bytes with their overhead");
    }
}
