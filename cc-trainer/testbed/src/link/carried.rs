//! Observation of an emulated link: the packets that it carried, and the host's effects on its
//! threads.

use cc_sim::path::{DirectionObservation, Observation};

use super::{Contention, Lateness};

/// Counters of an emulated link in both directions.
#[derive(Clone, Debug)]
pub struct LinkObservation {
    /// Counters of the packets, defined as in the simulator.
    pub path: Observation,
    /// Effects of the host on the thread of the forward direction.
    pub forward: HostEffects,
    /// Effects of the host on the thread of the reverse direction.
    pub reverse: HostEffects,
}

/// How far the host kept the thread of one direction from doing its work in time.
#[derive(Clone, Debug)]
pub struct HostEffects {
    /// Distribution of the lateness of deliveries.
    pub lateness: Lateness,
    /// Packets dropped by the TUN device before the emulator read them.
    pub ring_drops: u64,
    /// Packets that the kernel refused when the emulator wrote them.
    pub refused: u64,
    /// Processor use of the thread since the start of the run.
    pub contention: Contention,
}

/// Observation of the thread of one direction.
#[derive(Clone, Debug)]
pub(super) struct Carried {
    pub(super) packets: DirectionObservation,
    pub(super) host: HostEffects,
}

impl Carried {
    /// An observation without packets, of `flows` flows.
    pub(super) fn new(flows: usize) -> Self {
        Self {
            packets: DirectionObservation::new(flows),
            host: HostEffects {
                lateness: Lateness::new(),
                ring_drops: 0,
                refused: 0,
                contention: Contention::default(),
            },
        }
    }

    /// All counters, without the bins.
    pub(super) fn counters(&self) -> Self {
        Self {
            packets: self.packets.counters(),
            host: self.host.clone(),
        }
    }
}

impl LinkObservation {
    pub(super) fn of(forward: Carried, reverse: Carried) -> Self {
        Self {
            path: Observation {
                forward: forward.packets,
                reverse: reverse.packets,
            },
            forward: forward.host,
            reverse: reverse.host,
        }
    }
}
