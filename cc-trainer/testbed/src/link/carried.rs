//! What an emulated link carried, and what its host did to the threads that carried it.

use cc_sim::path::{DirectionObservation, Observation};

use super::{Contention, Lateness};

/// What happened on an emulated link.
#[derive(Clone, Debug)]
pub struct LinkObservation {
    /// The packets, counted as the simulator counts them.
    pub path: Observation,
    /// The work of the thread that carries the forward direction.
    pub forward: HostEffects,
    /// The work of the thread that carries the reverse direction.
    pub reverse: HostEffects,
}

/// How far the host kept the thread of one direction from doing its work in time.
#[derive(Clone, Debug)]
pub struct HostEffects {
    /// How late deliveries were written.
    pub lateness: Lateness,
    /// Packets lost in the TUN device before the emulator saw them.
    pub ring_drops: u64,
    /// Packets that the kernel did not take back.
    pub refused: u64,
    /// What the thread got of the processors since the start.
    pub contention: Contention,
}

/// What the thread of one direction hands over.
#[derive(Clone, Debug)]
pub(super) struct Carried {
    pub(super) packets: DirectionObservation,
    pub(super) host: HostEffects,
}

impl Carried {
    /// Nothing yet, of `flows` flows.
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

    /// All but the bins.
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
