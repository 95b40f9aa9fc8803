//! BPF array maps mapped into the agent: no system call to read a flow or publish a decision.

use std::{
    marker::PhantomData,
    os::fd::{AsRawFd, BorrowedFd},
    sync::atomic::{AtomicU64, Ordering, fence},
};

use bytemuck::Pod;
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

impl Shared<u64> {
    /// Replaces an entry with one atomic store.
    pub(super) fn publish(&self, index: usize, value: u64) {
        if let Some(entry) = self.entry(index) {
            // SAFETY: a mapped, aligned u64 that lives as long as the mapping.
            unsafe { AtomicU64::from_ptr(entry) }.store(value, Ordering::Release);
        }
    }
}

impl Shared<cc_ebpf::Flow> {
    /// A consistent copy of a flow, or `None` when the datapath kept changing it.
    pub(super) fn snapshot(&self, index: usize) -> Option<cc_ebpf::Flow> {
        (0..4).find_map(|_| {
            let before = self.sequence(index)?;
            fence(Ordering::Acquire);
            let flow = self.read(index)?;
            fence(Ordering::Acquire);
            let after = self.sequence(index)?;
            (before == after && after.is_multiple_of(2)).then_some(flow)
        })
    }

    /// Marks an entry as not live. The datapath must have left it alone.
    pub(super) fn vacate(&self, index: usize) {
        if let Some(entry) = self.entry(index) {
            // SAFETY: as for `read`; the agent alone writes to an entry whose flow was revoked.
            unsafe { (&raw mut (*entry).live).write_volatile(0) }
        }
    }

    /// The generation of the flow that is live in an entry; `None` when none is.
    pub(super) fn occupant(&self, index: usize) -> Option<u32> {
        let entry = self.entry(index)?;
        // SAFETY: as for `read`.
        let (live, generation) = unsafe {
            (
                (&raw const (*entry).live).read_volatile(),
                (&raw const (*entry).generation).read_volatile(),
            )
        };
        (live == 1).then_some(generation)
    }

    fn sequence(&self, index: usize) -> Option<u32> {
        let entry = self.entry(index)?;
        // SAFETY: as for `read`.
        Some(unsafe { (&raw const (*entry).sequence).read_volatile() })
    }
}
