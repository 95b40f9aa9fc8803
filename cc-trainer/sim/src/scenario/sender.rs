//! The qdisc of the host that sends the data.

use std::time::Duration;

use super::{Delay, Direction, Loss, Queue, Service, Shaper};

/// A queue of the sending host itself, ahead of the path: a FIFO that a token bucket empties, as
/// Linux's `tbf` over `pfifo` on the interface, and as a network card that is slower than what its
/// host can write.
///
/// TCP knows this queue. It keeps no more than some two bursts or a millisecond of data of a
/// connection there, and writes on when they have left (TCP Small Queues). The flows' data share
/// the queue; what the far end sends does not pass it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SenderQueue {
    /// Rate at which packets leave the host, bit/s of IP packets.
    pub bits_per_second: f64,
    /// Bytes of IP that leave at once after a pause.
    pub burst: u64,
    /// Most packets that wait; further ones are dropped.
    pub packets: u32,
}

impl SenderQueue {
    /// Packets of the queue if a scenario does not say: `txqueuelen` of an Ethernet device.
    pub const PACKETS: u32 = 1_000;

    /// Bytes that leave at once if a scenario does not say: what the rate carries in 0.2 ms, by
    /// which the kernel's timer may be late, and one and a half packets at least.
    pub fn default_burst(bits_per_second: f64) -> u64 {
        ((bits_per_second / 8.0 * 2e-4) as u64).max(2_250)
    }

    /// The queue as a path of its own, which takes no time but what packets wait.
    pub(crate) fn direction(&self) -> Direction {
        Direction {
            policer: None,
            queue: Queue {
                packets: Some(self.packets),
                ..Queue::default()
            },
            service: Service::Shaper(Shaper {
                bits_per_second: self.bits_per_second,
                burst: self.burst,
                peak_bits_per_second: None,
            }),
            loss: Loss::None,
            aggregation: None,
            delay: Delay {
                base: Duration::ZERO,
                ..Delay::default()
            },
        }
    }
}
