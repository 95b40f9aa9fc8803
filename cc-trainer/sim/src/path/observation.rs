//! What a path carried, by direction and flow: counted alike by the simulator and by emulated links.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::{Cause, Nanos};

/// Time that a [`Bin`] covers.
pub const BIN: Duration = Duration::from_millis(100);

/// What happened on a path.
#[derive(Clone, Debug)]
pub struct Observation {
    /// From the near end to the far one.
    pub forward: DirectionObservation,
    /// Back.
    pub reverse: DirectionObservation,
}

/// What happened in one direction.
#[derive(Clone, Debug)]
pub struct DirectionObservation {
    /// A flow each, and last the packets that belong to none.
    pub flows: Vec<FlowObservation>,
    /// One per [`BIN`] of scenario time; none in a snapshot.
    pub bins: Vec<Bin>,
    /// Packets that waited at the end, without the one being sent.
    pub backlog: Volume,
    /// Scenario time at the end.
    pub elapsed: Duration,
}

/// What happened to a flow's packets in one direction.
#[derive(Clone, Debug)]
pub struct FlowObservation {
    /// What came to the link.
    pub arrived: Volume,
    /// What it delivered.
    pub delivered: Volume,
    /// What it dropped.
    pub dropped: Drops,
    /// What came that carries payload.
    pub data_arrived: Volume,
    /// What was delivered that carries payload.
    pub data_delivered: Volume,
    /// What was dropped that carries payload.
    pub data_dropped: Volume,
    /// TCP or UDP payload delivered, bytes; retransmissions included.
    pub payload_delivered: u64,
    /// One-way delay of packets with payload, µs, from when they were read to when they were written.
    pub delay: Histogram<u64>,
    /// The same delays' exact sum, ns.
    pub delay_sum_ns: u128,
    /// When the first packet was delivered; 0 when none was.
    pub first_ns: Nanos,
    /// When the last packet was delivered; 0 when none was.
    pub last_ns: Nanos,
}

/// Some packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// How many.
    pub packets: u64,
    /// Their bytes of IP.
    pub bytes: u64,
}

/// What was dropped, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Too few tokens.
    pub policer: Volume,
    /// No room.
    pub queue: Volume,
    /// By chance.
    pub loss: Volume,
}

/// A [`BIN`] of a direction's history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Bytes of IP delivered, per flow.
    pub delivered_bytes: Vec<u64>,
    /// Packets dropped.
    pub dropped: u64,
    /// Most that waited at once, bytes.
    pub max_queue_bytes: u64,
    /// Sum of the one-way delays of the packets with payload that were delivered, ns.
    pub delay_sum_ns: u64,
    /// Number of them.
    pub delays: u64,
}

impl DirectionObservation {
    /// Nothing yet, of `flows` flows; the last of them is for packets that belong to none.
    pub fn new(flows: usize) -> Self {
        Self {
            flows: vec![FlowObservation::new(); flows],
            bins: Vec::new(),
            backlog: Volume::default(),
            elapsed: Duration::ZERO,
        }
    }

    /// All flows together.
    pub fn total(&self) -> FlowObservation {
        let mut total = FlowObservation::new();
        for flow in &self.flows {
            total.add(flow);
        }
        total
    }

    /// A packet of `bytes` with `payload` bytes of data came to the path.
    pub fn arrived(&mut self, flow: usize, bytes: u32, payload: u32) {
        let flow = &mut self.flows[flow];
        flow.arrived.count(bytes);
        if payload > 0 {
            flow.data_arrived.count(bytes);
        }
    }

    /// `backlog` bytes wait at `now`.
    pub fn queued(&mut self, now: Nanos, backlog: u64) {
        let bin = self.bin(now);
        bin.max_queue_bytes = bin.max_queue_bytes.max(backlog);
    }

    /// A packet was dropped.
    pub fn dropped(&mut self, now: Nanos, flow: usize, bytes: u32, payload: u32, cause: Cause) {
        self.bin(now).dropped += 1;
        let flow = &mut self.flows[flow];
        flow.dropped.of_mut(cause).count(bytes);
        if payload > 0 {
            flow.data_dropped.count(bytes);
        }
    }

    /// A packet was delivered, `delay` after it came.
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

    /// All but the bins.
    pub fn counters(&self) -> Self {
        Self {
            flows: self.flows.clone(),
            bins: Vec::new(),
            ..*self
        }
    }

    /// Fills the bins up to `end`, so that a quiet end shows as such.
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

    /// Mean one-way delay of the packets with payload; none when there were none.
    pub fn mean_delay(&self) -> Option<Duration> {
        let packets = u128::from(self.data_delivered.packets);
        let mean = self.delay_sum_ns.checked_div(packets)?;
        Some(Duration::from_nanos(mean as u64))
    }

    /// The one-way delay that a share `quantile` (0 to 1) of the packets with payload did not exceed; none when
    /// there were none.
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
    /// Whatever the cause.
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
    fn data_is_what_carries_payload() {
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
