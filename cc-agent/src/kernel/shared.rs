//! BPF array maps mapped into the agent: no system call to read a flow or publish a decision.

use std::{
    marker::PhantomData,
    os::fd::{AsRawFd, BorrowedFd},
    sync::atomic::{AtomicU64, Ordering, fence},
};

use bytemuck::Pod;
use cc_ebpf::{
    Flow,
    slot::{self, AgentMaps, Copied},
};
use memmap2::{MmapOptions, MmapRaw};

use super::Error;

/// A mapped `BPF_F_MMAPABLE` array of `T`.
#[derive(Debug)]
pub(super) struct Shared<T> {
    memory: MmapRaw,
    entries: usize,
    _type: PhantomData<T>,
}

impl<T: Pod> Shared<T> {
    /// Maps an array with `entries` entries.
    pub(super) fn map(fd: BorrowedFd<'_>, entries: u32) -> Result<Self, Error> {
        // Array maps lay their elements out at multiples of 8 bytes (array_map_alloc,
        // kernel/bpf/arraymap.c).
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let entries = entries as usize;
        let memory = MmapOptions::new()
            .len(entries * size_of::<T>())
            .map_raw(fd.as_raw_fd())
            .map_err(Error::system("mapping a BPF array"))?;
        Ok(Self {
            memory,
            entries,
            _type: PhantomData,
        })
    }

    /// Number of entries in the mapped array.
    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// A copy of an entry, which the datapath may be changing meanwhile.
    pub(super) fn read(&self, index: usize) -> Option<T> {
        let entry = self.entry(index)?;
        // SAFETY: a mapped, aligned entry; any bytes are a `T`. Volatile as the kernel writes it.
        Some(unsafe { entry.read_volatile() })
    }

    /// Replaces an entry by one volatile write.
    pub(super) fn write(&self, index: usize, value: T) {
        if let Some(entry) = self.entry(index) {
            // SAFETY: as for `read`; only the agent writes the arrays that it writes.
            unsafe { entry.write_volatile(value) }
        }
    }

    fn entry(&self, index: usize) -> Option<*mut T> {
        // SAFETY: within the mapping, as `index < entries`.
        (index < self.entries).then(|| unsafe { self.memory.as_mut_ptr().cast::<T>().add(index) })
    }
}

impl Shared<Flow> {
    /// A consistent copy of a flow, or `None` when the datapath kept changing it.
    pub(super) fn snapshot(&self, slot: u32) -> Option<Flow> {
        slot::snapshot(self, slot)
    }
}

impl Copied for Shared<Flow> {
    type Copy = Flow;

    fn sequence(&self, slot: u32) -> u32 {
        // SAFETY: as for `read`.
        let read = |flow: *mut Flow| unsafe { (&raw const (*flow).sequence).read_volatile() };
        self.entry(slot as usize).map_or(0, read)
    }

    fn order_loads(&self) {
        fence(Ordering::Acquire);
    }

    fn copy(&self, slot: u32) -> Option<Flow> {
        self.read(slot as usize)
    }
}

/// The cwnd map and the flow map.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) decisions: Shared<u64>,
    pub(super) flows: Shared<Flow>,
}

impl AgentMaps for Slots {
    fn cell(&self, slot: u32) -> u64 {
        self.decisions.read(slot as usize).unwrap_or_default()
    }

    fn set_cell(&self, slot: u32, cell: u64) {
        if let Some(entry) = self.decisions.entry(slot as usize) {
            // SAFETY: a mapped, aligned u64 that lives as long as the mapping.
            unsafe { AtomicU64::from_ptr(entry) }.store(cell, Ordering::Release);
        }
    }

    fn occupant(&self, slot: u32) -> Option<u32> {
        let flow = self.flows.entry(slot as usize)?;
        // SAFETY: as for `read`.
        let (live, generation) = unsafe {
            (
                (&raw const (*flow).live).read_volatile(),
                (&raw const (*flow).generation).read_volatile(),
            )
        };
        (live == 1).then_some(generation)
    }

    fn vacate(&self, slot: u32) {
        if let Some(flow) = self.flows.entry(slot as usize) {
            // SAFETY: as for `read`; the agent alone writes to an entry whose flow was revoked.
            unsafe { (&raw mut (*flow).live).write_volatile(0) }
        }
    }
}
