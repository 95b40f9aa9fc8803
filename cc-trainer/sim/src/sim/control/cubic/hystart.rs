//! HyStart (Ha and Rhee 2008) as in Linux 6.18 (`hystart_update`, net/ipv4/tcp_cubic.c): slow start
//! is over when the ACKs of a round come in a train as long as half the smallest RTT, or when its
//! RTTs have grown.

use cc_ebpf::{AckSample, CwndState, Gains, pacing_rate};

use super::super::RateSample;

/// HyStart does not act on smaller cwnds, segments (`hystart_low_window`).
const LOW_CWND: u32 = 16;
/// Largest gap between two ACKs of a train, µs (`hystart_ack_delta_us`).
const TRAIN_GAP_US: u64 = 2_000;
/// Number of samples whose smallest is the RTT of a round (`HYSTART_MIN_SAMPLES`).
const SAMPLES: u32 = 8;
/// Bounds of the growth of the RTT that ends slow start, µs (`HYSTART_DELAY_MIN`,
/// `HYSTART_DELAY_MAX`).
const GROWTH_US: (u32, u32) = (4_000, 16_000);
/// Largest burst that a device may be handed, bytes (`sk_gso_max_size`: 64 KiB without headers).
const BURST_BYTES: u64 = 65_536 - 321;

/// What HyStart knows of the present round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hystart {
    round: Option<Round>,
    found: bool,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    /// Begin of the round, µs (`round_start`).
    start_us: u64,
    /// Last ACK of the train, µs (`last_ack`).
    train_us: u64,
    /// The round is over when this segment is acknowledged (`end_seq`).
    end: u64,
    /// Smallest RTT of the round in µs (`curr_rtt`).
    rtt_us: u32,
    /// Number of RTT samples of the round (`sample_cnt`).
    samples: u32,
}

impl Hystart {
    /// Takes an ACK of slow start with an RTT sample. Returns true once, when slow start is over.
    pub(super) fn is_over(
        &mut self,
        cwnd: &CwndState,
        ack: &AckSample,
        rate: &RateSample,
        min_rtt_us: u32,
    ) -> bool {
        if self.found {
            return false;
        }
        let now_us = ack.now_ns / 1_000;
        let fresh = || Round {
            start_us: now_us,
            train_us: now_us,
            end: rate.snd_nxt,
            rtt_us: u32::MAX,
            samples: 0,
        };
        let round = self.round.get_or_insert_with(fresh);
        if rate.snd_una > round.end {
            *round = fresh();
        }
        if cwnd.cwnd < LOW_CWND {
            return false;
        }
        let long = round.is_long_train(now_us, cwnd, ack, min_rtt_us);
        self.found = round.has_grown(ack.rtt_us, min_rtt_us) || long;
        self.found
    }
}

impl Round {
    fn is_long_train(
        &mut self,
        now_us: u64,
        cwnd: &CwndState,
        ack: &AckSample,
        min_rtt_us: u32,
    ) -> bool {
        if now_us - self.train_us > TRAIN_GAP_US {
            return false;
        }
        self.train_us = now_us;
        // Segments are not paced: a train as long as half the RTT means that the other half is
        // filled too.
        let threshold = (u64::from(min_rtt_us) + burst_us(cwnd, ack)) / 2;
        now_us - self.start_us > threshold
    }

    fn has_grown(&mut self, rtt_us: u32, min_rtt_us: u32) -> bool {
        self.rtt_us = self.rtt_us.min(rtt_us);
        if self.samples < SAMPLES {
            self.samples += 1;
            return false;
        }
        let (least, most) = GROWTH_US;
        self.rtt_us > min_rtt_us + (min_rtt_us >> 3).clamp(least, most)
    }
}

/// Time of four bursts at the rate that the kernel derives from the cwnd, at most 1 ms: offloads
/// may lengthen a train by as much (`hystart_ack_delay`).
fn burst_us(cwnd: &CwndState, ack: &AckSample) -> u64 {
    match pacing_rate(cwnd, ack, ack.srtt_us, Gains::KERNEL) {
        None | Some(0) => 0,
        Some(rate) => (BURST_BYTES * 4 * 1_000_000 / rate).min(1_000),
    }
}
