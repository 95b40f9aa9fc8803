//! What the event loop needs of a datapath.

use std::{
    future::Future,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use cc_ebpf::{Decision, Flow};
use tokio::io::unix::AsyncFd;

use crate::kernel::{
    self, Datapath, Inheritance, clock,
    sysctl::{DefaultCongestionControl, RestoredOnDrop},
};

/// A datapath as the event loop sees it: records come out, decisions go in.
///
/// [`KernelDatapath`] is the kernel's. Tests of the event loop implement it in memory.
pub(crate) trait DatapathIo {
    /// Number of slots for flows.
    fn slots(&self) -> usize;

    /// The state of the flow in `slot`, live or not; `None` while the datapath is changing it.
    fn flow(&self, slot: u32) -> Option<Flow>;

    /// Waits until records may have come and takes up to `most` of them, in their order. There may
    /// be none. Nothing is lost when the returned future is dropped.
    fn next_records(
        &mut self,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Bytes>, kernel::Error>>;

    /// Takes up to `most` records that are there, in their order, without waiting.
    fn drain_records(&mut self, most: usize) -> Vec<Bytes>;

    /// Takes up to `most` per-ACK records that are there, without waiting.
    fn drain_acks(&mut self, most: usize) -> Vec<Bytes>;

    /// Publishes a decision for the flow in `slot`.
    fn publish(&self, slot: u32, decision: Decision);

    /// Frees the slot of a flow that was revoked long enough ago. Returns false when another flow
    /// has the slot, or none.
    fn free(&mut self, slot: u32, generation: u32) -> Result<bool, kernel::Error>;

    /// Sets the heartbeat: the agent was serving at `now_ns`.
    fn beat(&self, now_ns: u64);

    /// The time on the datapath's clock, ns.
    fn now_ns(&self) -> u64;

    /// The datapath's counters since the start, in the order of [`cc_ebpf::Counter::ALL`].
    fn counters(&self) -> Result<Vec<u64>, kernel::Error>;

    /// Passes the datapath's log messages on to the log.
    fn flush_messages(&mut self);

    /// The generation of the flow that is live in `slot`; `None` when none is.
    fn occupant(&self, slot: u32) -> Option<u32>;

    /// The directories of the cgroups that were added since the start; `None` where none may be.
    fn added_cgroups(&self) -> Option<Vec<PathBuf>> {
        None
    }

    /// Serves the sockets of a cgroup from now on. Returns false when it was added before.
    fn add_cgroup(&mut self, _directory: &Path) -> Result<bool, kernel::Error> {
        Err(kernel::Error::CgroupsFixed)
    }

    /// Serves the sockets of an added cgroup no longer. Returns false when it was not added.
    fn remove_cgroup(&mut self, _directory: &Path) -> Result<bool, kernel::Error> {
        Err(kernel::Error::CgroupsFixed)
    }

    /// Forgets the added cgroups whose directories were removed, and returns these.
    fn forget_removed_cgroups(&mut self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// The descriptors that a successor needs.
    fn bequeath(&self) -> Result<Inheritance, kernel::Error> {
        Err(kernel::Error::NoLink)
    }

    /// Goes on with the records where another agent has stopped reading them.
    fn resume(&mut self) -> Result<(), kernel::Error> {
        Ok(())
    }

    /// The number of this load of the programs, which the flows that they open carry.
    fn number(&self) -> u32 {
        0
    }

    /// The states of the live flows, which a former agent has left behind.
    fn live_flows(&self) -> Vec<Flow> {
        (0..self.slots() as u32)
            .filter_map(|slot| self.flow(slot))
            .filter(|flow| flow.live == 1)
            .collect()
    }
}

/// The kernel's datapath, to be registered as a congestion control and possibly as the host's
/// default.
pub(crate) struct KernelDatapath {
    // Dropped in this order: the host's default is restored before its name is unregistered.
    default: Option<RestoredOnDrop>,
    readable: AsyncFd<OwnedFd>,
    datapath: Datapath,
}

impl KernelDatapath {
    /// Takes charge of a datapath that has been loaded. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns an error when the runtime cannot watch the ring buffer of records.
    pub(crate) fn new(mut datapath: Datapath) -> Result<Self, kernel::Error> {
        Ok(Self {
            default: None,
            readable: datapath.records().readiness()?,
            datapath,
        })
    }

    /// Registers the congestion control, from when on flows can choose it.
    ///
    /// # Errors
    ///
    /// Returns an error when the name is taken or the kernel refuses to register it.
    pub(crate) fn register(&mut self) -> Result<(), kernel::Error> {
        self.datapath.register()
    }

    /// Holds the host's default until this is dropped, and restores it then.
    pub(crate) fn hold(&mut self, default: DefaultCongestionControl) {
        self.default = Some(RestoredOnDrop(default));
    }
}

impl DatapathIo for KernelDatapath {
    fn slots(&self) -> usize {
        self.datapath.slots()
    }

    fn flow(&self, slot: u32) -> Option<Flow> {
        self.datapath.flow(slot)
    }

    fn occupant(&self, slot: u32) -> Option<u32> {
        self.datapath.occupant(slot)
    }

    async fn next_records(&mut self, most: usize) -> Result<Vec<Bytes>, kernel::Error> {
        let mut ready = self
            .readable
            .readable()
            .await
            .map_err(kernel::Error::system("waiting for records"))?;
        let records = self.datapath.records().drain(most);
        if records.len() < most {
            ready.clear_ready();
        }
        Ok(records)
    }

    fn drain_records(&mut self, most: usize) -> Vec<Bytes> {
        self.datapath.records().drain(most)
    }

    fn drain_acks(&mut self, most: usize) -> Vec<Bytes> {
        self.datapath.acks().drain(most)
    }

    fn publish(&self, slot: u32, decision: Decision) {
        self.datapath.publish(slot, decision);
    }

    fn free(&mut self, slot: u32, generation: u32) -> Result<bool, kernel::Error> {
        self.datapath.free(slot, generation)
    }

    fn beat(&self, now_ns: u64) {
        self.datapath.beat(now_ns);
    }

    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn counters(&self) -> Result<Vec<u64>, kernel::Error> {
        self.datapath.counters()
    }

    fn flush_messages(&mut self) {
        self.datapath.flush_messages();
    }

    fn added_cgroups(&self) -> Option<Vec<PathBuf>> {
        self.datapath.added_cgroups()
    }

    fn add_cgroup(&mut self, directory: &Path) -> Result<bool, kernel::Error> {
        self.datapath.add_cgroup(directory)
    }

    fn remove_cgroup(&mut self, directory: &Path) -> Result<bool, kernel::Error> {
        self.datapath.remove_cgroup(directory)
    }

    fn forget_removed_cgroups(&mut self) -> Vec<PathBuf> {
        self.datapath.forget_removed_cgroups()
    }

    fn bequeath(&self) -> Result<Inheritance, kernel::Error> {
        self.datapath.bequeath()
    }

    fn resume(&mut self) -> Result<(), kernel::Error> {
        self.datapath.resume()
    }

    fn number(&self) -> u32 {
        self.datapath.number()
    }
}
