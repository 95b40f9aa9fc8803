//! The BPF maps, which the agent finds by their names, and the counters.

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    macros::map,
    maps::{Array, HashMap, LpmTrie, PerCpuArray, Queue, RingBuf},
};
use cc_ebpf::{AckSample, Counter, Flow, Heartbeat, Observed, Selection, Settings};

/// Flow slots, unless the agent sizes the maps otherwise.
const SLOTS: u32 = 16_384;

/// The datapath's settings, which the agent may change at any time.
#[map(name = "CC_SETTINGS")]
pub(crate) static SETTINGS: Array<Settings> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// The agent's heartbeat, which it writes while it serves.
#[map(name = "CC_HEARTBEAT")]
pub(crate) static HEARTBEAT: Array<Heartbeat> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// The cwnd map: one decision per slot, which the agent writes with a single store.
#[map(name = "CC_DECISIONS")]
pub(crate) static DECISIONS: Array<u64> = Array::with_max_entries(SLOTS, BPF_F_MMAPABLE);

/// One flow state per slot.
#[map(name = "CC_FLOWS")]
pub(crate) static FLOWS: Array<Flow> = Array::with_max_entries(SLOTS, BPF_F_MMAPABLE);

/// The ACK at hand of each slot's flow ([`keep`]).
#[map(name = "CC_SAMPLES")]
pub(crate) static SAMPLES: Array<AckSample> = Array::with_max_entries(SLOTS, 0);

/// Free slots. First in, first out: a slot rests as long as possible before its next flow.
#[map(name = "CC_FREE_SLOTS")]
pub(crate) static FREE_SLOTS: Queue<u32> = Queue::with_max_entries(SLOTS, 0);

/// Opened, window and closed records.
#[map(name = "CC_RECORDS")]
pub(crate) static RECORDS: RingBuf = RingBuf::with_byte_size(16 << 20, 0);

/// Per-ACK records, in a ring of their own so that they can never crowd out the others.
#[map(name = "CC_ACKS")]
pub(crate) static ACKS: RingBuf = RingBuf::with_byte_size(16 << 20, 0);

/// Event counts per CPU, indexed by [`Counter`].
#[map(name = "CC_COUNTERS")]
pub(crate) static COUNTERS: PerCpuArray<u64> =
    PerCpuArray::with_max_entries(Counter::ALL.len() as u32, 0);

/// Which flows of other congestion controls are observed.
#[map(name = "CC_SELECTION")]
pub(crate) static SELECTION: Array<Selection> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Sockets that the observer has met, by their address; sized by the agent that observes.
#[map(name = "CC_OBSERVED")]
pub(crate) static OBSERVED: HashMap<u64, Observed> =
    HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// The number of the [`Verdict`](cc_ebpf::Verdict) on each network: the longest prefix of a remote
/// address decides. IPv4 is mapped into IPv6. Sized and filled by the agent.
#[map(name = "CC_NETWORKS")]
pub(crate) static NETWORKS: LpmTrie<[u32; 4], u32> = LpmTrie::with_max_entries(1, 0);

/// The number of the [`Verdict`](cc_ebpf::Verdict) on each device, by its NUL-padded name. Sized
/// and filled by the agent.
#[map(name = "CC_DEVICES")]
pub(crate) static DEVICES: HashMap<[u32; 4], u32> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// Keeps the ACK at hand of a slot's flow in the map; `None` for a slot out of range.
///
/// The kernel's verifier explores every path of a program with the values that it knows, and takes
/// two paths together only where these agree. An ACK's flags and missing measurements are known
/// numbers on the path that found them, and would keep all that follows from being taken together:
/// Linux 6.1 gave up after a million instructions. What was written to a map is an unknown number
/// when it is read again.
#[inline(always)]
pub(crate) fn keep(slot: u32, ack: AckSample) -> Option<&'static AckSample> {
    let place = SAMPLES.get_ptr_mut(slot)?;
    // SAFETY: a valid map value, which is the slot's owner's. The kernel calls the programs under
    // that socket's lock, so that nothing else reads or writes it.
    unsafe { place.write(ack) };
    // Looked up anew, so that the compiler reads memory and not what it remembers to have written.
    SAMPLES.get(slot)
}

/// Adds one to a counter and returns its new value on this CPU.
#[inline(always)]
pub(crate) fn count(counter: Counter) -> u64 {
    match COUNTERS.get_ptr_mut(counter as u32) {
        Some(value) => {
            // SAFETY: the pointer is not null and the value is this CPU's own; an increment lost to
            // a nested program only makes a statistic inexact.
            unsafe {
                *value += 1;
                *value
            }
        }
        None => 0,
    }
}
