//! Counters of the packets on a path, by direction and flow, with the same definitions in the
//! simulator and on emulated links.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::{Cause, Nanos};

/// Time that one [`Bin`] covers.
pub const BIN: Duration = Duration::from_millis(100);

/// Counters of both directions of a path.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Direction from the near end to the far end.
    pub forward: DirectionObservation,
    /// Direction from the far end to the near end.
    pub reverse: DirectionObservation,
}

/// Counters and time series of one direction.
#[derive(Clone, Debug)]
pub struct DirectionObservation {
    /// Counters of each flow, followed by those of the packets that belong to no flow.
    pub flows: Vec<FlowObservation>,
    /// One entry per [`BIN`] of scenario time; empty in a snapshot.
    pub bins: Vec<Bin>,
    /// Packets that waited in the queue at the end, without the one being sent.
    pub backlog: Volume,
    /// Scenario time at the end of the observation.
    pub elapsed: Duration,
}

/// Counters of one flow's packets in one direction.
#[derive(Clone, Debug)]
pub struct FlowObservation {
    /// Packets that arrived at the path.
    pub arrived: Volume,
    /// Packets that the path delivered.
    pub delivered: Volume,
    /// Packets that the path dropped, by cause.
    pub dropped: Drops,
    /// Packets with payload that arrived.
    pub data_arrived: Volume,
    /// Packets with payload that were delivered.
    pub data_delivered: Volume,
    /// Packets with payload that were dropped.
    pub data_dropped: Volume,
    /// Bytes of TCP or UDP payload delivered, retransmissions included.
    pub payload_delivered: u64,
    /// One-way delays of packets with payload, µs, from arrival at the path to delivery.
    pub delay: Histogram<u64>,
    /// Exact sum of the same delays, ns.
    pub delay_sum_ns: u128,
    /// Time of the first delivery, ns; 0 when there was none.
    pub first_ns: Nanos,
    /// Time of the last delivery, ns; 0 when there was none.
    pub last_ns: Nanos,
}

/// Number and size of a set of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Number of packets in the set.
    pub packets: u64,
    /// Bytes of IP of all packets together.
    pub bytes: u64,
}

/// Counters of dropped packets, one per cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Packets dropped by the policer.
    pub policer: Volume,
    /// Packets dropped because the queue was full.
    pub queue: Volume,
    /// Packets lost at random behind the link.
    pub loss: Volume,
}

/// Counters of one direction during one [`BIN`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Bytes of IP delivered, per flow.
    pub delivered_bytes: Vec<u64>,
    /// Number of packets dropped in the bin, of any cause.
    pub dropped: u64,
    /// Largest backlog of the queue, bytes of IP.
    pub max_queue_bytes: u64,
    /// Sum of the one-way delays of the delivered packets with payload, ns.
    pub delay_sum_ns: u64,
    /// Number of delays in that sum.
    pub delays: u64,
}

impl DirectionObservation {
    /// An observation without packets, of `flows` flows, the last of which counts packets of no
    /// flow.
    pub fn new(flows: usize) -> Self {
        Self {
            flows: vec![FlowObservation::new(); flows],
            bins: Vec::new(),
            backlog: Volume::default(),
            elapsed: Duration::ZERO,
        }
    }

    /// Counters of all flows together.
    pub fn total(&self) -> FlowObservation {
        let mut total = FlowObservation::new();
        for flow in &self.flows {
            total.add(flow);
        }
        total
    }

    /// Counts a packet of `bytes` with `payload` bytes of data that arrived at the path.
    pub fn arrived(&mut self, flow: usize, bytes: u32, payload: u32) {
        let flow = &mut self.flows[flow];
        flow.arrived.count(bytes);
        if payload > 0 {
            flow.data_arrived.count(bytes);
        }
    }

    /// Records that `backlog` bytes wait at `now`.
    pub fn queued(&mut self, now: Nanos, backlog: u64) {
        let bin = self.bin(now);
        bin.max_queue_bytes = bin.max_queue_bytes.max(backlog);
    }

    /// Counts a packet that was dropped at `now`.
    pub fn dropped(&mut self, now: Nanos, flow: usize, bytes: u32, payload: u32, cause: Cause) {
        self.bin(now).dropped += 1;
        let flow = &mut self.flows[flow];
        flow.dropped.of_mut(cause).count(bytes);
        if payload > 0 {
            flow.data_dropped.count(bytes);
        }
    }

    /// Counts a packet that was delivered at `now`, `delay` ns after its arrival.
    pub fn delivered(&mut self, now: Nanos, flow: usize, bytes: u32, payload: u32, delay: Nanos) {
        let bin = self.bin(now);
        bin.delivered_bytes[flow] += u64::from(bytes);
        if payload > 0 {
            bin.delay_sum_ns += delay;
            bin.delays += 1;
        }
        let flow = &mut self.flows[flow];
        if flow.delivered.packets == 0 {
            flow.first_ns = now;
        }
        flow.last_ns = now;
        flow.delivered.count(bytes);
        if payload > 0 {
            flow.data_delivered.count(bytes);
            flow.payload_delivered += u64::from(payload);
            flow.delay
                .record((delay + 500) / 1000)
                .expect("it grows as needed");
            flow.delay_sum_ns += u128::from(delay);
        }
    }

    /// A copy of all counters without the bins.
    pub fn counters(&self) -> Self {
        Self {
            flows: self.flows.clone(),
            bins: Vec::new(),
            ..*self
        }
    }

    /// Extends the bins up to `end`, so that a period without packets at the end is covered as
    /// well.
    pub fn close(&mut self, end: Nanos) {
        self.bin(end);
    }

    fn bin(&mut self, now: Nanos) -> &mut Bin {
        let index = (u128::from(now) / BIN.as_nanos()) as usize;
        while self.bins.len() <= index {
            self.bins.push(Bin {
                delivered_bytes: vec![0; self.flows.len()],
                ..Bin::default()
            });
        }
        &mut self.bins[index]
    }
}

impl FlowObservation {
    fn new() -> Self {
        Self {
            arrived: Volume::default(),
            delivered: Volume::default(),
            dropped: Drops::default(),
            data_arrived: Volume::default(),
            data_delivered: Volume::default(),
            data_dropped: Volume::default(),
            payload_delivered: 0,
            delay: Histogram::new(3).expect("3 digits are allowed"),
            delay_sum_ns: 0,
            first_ns: 0,
            last_ns: 0,
        }
    }

    /// Mean one-way delay of the packets with payload; `None` without such a packet.
    pub fn mean_delay(&self) -> Option<Duration> {
        let packets = u128::from(self.data_delivered.packets);
        let mean = self.delay_sum_ns.checked_div(packets)?;
        Some(Duration::from_nanos(mean as u64))
    }

    /// The one-way delay that a fraction `quantile` (0 to 1) of the packets with payload did not
    /// exceed; `None` without such a packet.
    pub fn delay_quantile(&self, quantile: f64) -> Option<Duration> {
        (!self.delay.is_empty())
            .then(|| Duration::from_micros(self.delay.value_at_quantile(quantile)))
    }

    fn add(&mut self, other: &Self) {
        if other.delivered.packets > 0 {
            self.first_ns = match self.delivered.packets {
                0 => other.first_ns,
                _ => self.first_ns.min(other.first_ns),
            };
            self.last_ns = self.last_ns.max(other.last_ns);
        }
        self.arrived.add(other.arrived);
        self.delivered.add(other.delivered);
        self.dropped.policer.add(other.dropped.policer);
        self.dropped.queue.add(other.dropped.queue);
        self.dropped.loss.add(other.dropped.loss);
        self.data_arrived.add(other.data_arrived);
        self.data_delivered.add(other.data_delivered);
        self.data_dropped.add(other.data_dropped);
        self.payload_delivered += other.payload_delivered;
        self.delay.add(&other.delay).expect("it grows as needed");
        self.delay_sum_ns += other.delay_sum_ns;
    }
}

impl Drops {
    /// Dropped packets of all causes together.
    pub fn total(&self) -> Volume {
        let mut total = self.policer;
        total.add(self.queue);
        total.add(self.loss);
        total
    }

    fn of_mut(&mut self, cause: Cause) -> &mut Volume {
        match cause {
            Cause::Policer => &mut self.policer,
            Cause::Queue => &mut self.queue,
            Cause::Loss => &mut self.loss,
        }
    }
}

impl Volume {
    fn count(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }

    fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn packets_with_payload_count_as_data() {
        let mut observed = DirectionObservation::new(2);
        observed.arrived(0, 1500, 1448);
        observed.arrived(0, 52, 0);
        observed.delivered(7 * MS, 0, 1500, 1448, 5 * MS);
        observed.delivered(9 * MS, 0, 52, 0, 6 * MS);
        let flow = &observed.flows[0];
        assert_eq!(
            flow.arrived,
            Volume {
                packets: 2,
                bytes: 1552
            }
        );
        assert_eq!(
            flow.data_arrived,
            Volume {
                packets: 1,
                bytes: 1500
            }
        );
        assert_eq!(flow.payload_delivered, 1448);
        assert_eq!(flow.mean_delay(), Some(Duration::from_millis(5)));
        assert_eq!((flow.first_ns, flow.last_ns), (7 * MS, 9 * MS));
        assert_eq!(observed.flows[1].mean_delay(), None);
        assert_eq!(observed.total().delivered.packets, 2);
    }

    #[test]
    fn bins_cover_the_time_without_gaps() {
        let mut observed = DirectionObservation::new(1);
        observed.delivered(99 * MS, 0, 100, 0, MS);
        observed.dropped(350 * MS, 0, 100, 72, Cause::Queue);
        observed.queued(350 * MS, 4_000);
        observed.queued(351 * MS, 3_000);
        observed.close(499 * MS);
        assert_eq!(observed.bins.len(), 5);
        assert_eq!(observed.bins[0].delivered_bytes, [100]);
        assert_eq!(observed.bins[3].dropped, 1);
        assert_eq!(observed.bins[3].max_queue_bytes, 4_000);
        assert_eq!(
            observed.flows[0].dropped.total(),
            Volume {
                packets: 1,
                bytes: 100
            }
        );
        assert!(observed.counters().bins.is_empty());
    }
}
