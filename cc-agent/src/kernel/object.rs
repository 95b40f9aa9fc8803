//! The BPF object that this build carries, and its maps.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use aya::{
    Ebpf,
    maps::{
        HashMap as BpfHashMap, LpmTrie, Map, MapData, MapError, PerCpuArray, Queue, RingBuf,
        lpm_trie::Key,
    },
};
use bytemuck::Pod;
use bytes::{Bytes, BytesMut};
use cc_ebpf::Counter;
use sha2::{Digest, Sha256};
use tokio::io::{Interest, unix::AsyncFd};

use super::{Error, scope::Scope};

/// The BPF object, or nothing where the build had none.
pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/cc-ebpf.o"));

pub(super) const SETTINGS: &str = "CC_SETTINGS";
pub(super) const HEARTBEAT: &str = "CC_HEARTBEAT";
pub(super) const DECISIONS: &str = "CC_DECISIONS";
pub(super) const FLOWS: &str = "CC_FLOWS";
pub(super) const SAMPLES: &str = "CC_SAMPLES";
pub(super) const FREE_SLOTS: &str = "CC_FREE_SLOTS";
pub(super) const RECORDS: &str = "CC_RECORDS";
pub(super) const ACKS: &str = "CC_ACKS";
pub(super) const COUNTERS: &str = "CC_COUNTERS";
pub(super) const SELECTION: &str = "CC_SELECTION";
pub(super) const OBSERVED: &str = "CC_OBSERVED";
pub(super) const NETWORKS: &str = "CC_NETWORKS";
pub(super) const DEVICES: &str = "CC_DEVICES";

/// Whether this build carries the BPF object.
pub fn has_object() -> bool {
    !OBJECT.is_empty()
}

/// SHA-256 of the BPF object in hexadecimal digits; `None` where this build carries none.
pub fn object_sha256() -> Option<String> {
    has_object().then(|| format!("{:x}", Sha256::digest(OBJECT)))
}

/// The maps of one load of the object, by their names.
#[derive(Default)]
pub(super) struct Maps(HashMap<String, Map>);

impl Maps {
    /// Takes the maps out of what aya has loaded.
    pub(super) fn of(ebpf: &mut Ebpf) -> Self {
        let names: Vec<String> = ebpf.maps().map(|(name, _)| name.to_owned()).collect();
        let maps = names
            .into_iter()
            .filter_map(|name| ebpf.take_map(&name).map(|map| (name, map)));
        Self(maps.collect())
    }

    /// Adds a map, or puts it in the place of the one of that name.
    pub(super) fn insert(&mut self, name: String, map: Map) {
        self.0.insert(name, map);
    }

    /// Puts these maps in the places of those that have the same names.
    pub(super) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Whether there is a map of that name.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Every map's name and descriptor.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        self.0.iter().map(|(name, map)| (name.as_str(), fd(map)))
    }

    /// The descriptor of a map.
    pub(super) fn fd_of(&self, name: &str) -> Result<BorrowedFd<'_>, Error> {
        self.0.get(name).map(fd).ok_or_else(|| no_map(name))
    }

    /// Takes a map out of the object by its name.
    pub(super) fn take<M: TryFrom<Map>>(&mut self, name: &str) -> Result<M, Error>
    where
        M::Error: std::error::Error + 'static,
    {
        let map = self.0.remove(name).ok_or_else(|| no_map(name))?;
        M::try_from(map).map_err(Error::aya(format!("opening the BPF map {name}")))
    }

    /// Fills the maps of networks and devices, which are empty.
    pub(super) fn fill_scope(&mut self, scope: &Scope) -> Result<(), Error> {
        let filling = || Error::aya("listing networks and devices for the datapath");
        let map = self.0.get_mut(NETWORKS).ok_or_else(|| no_map(NETWORKS))?;
        let mut networks: LpmTrie<&mut MapData, [u32; 4], u32> =
            map.try_into().map_err(Error::aya("opening the networks"))?;
        for (network, verdict) in &scope.networks {
            let key = Key::new(network.length(), network.words());
            let inserted: Result<(), MapError> = networks.insert(&key, *verdict as u32, 0);
            inserted.map_err(filling())?;
        }
        let map = self.0.get_mut(DEVICES).ok_or_else(|| no_map(DEVICES))?;
        let mut devices: BpfHashMap<&mut MapData, [u32; 4], u32> =
            map.try_into().map_err(Error::aya("opening the devices"))?;
        for (device, verdict) in &scope.devices {
            let inserted: Result<(), MapError> = devices.insert(device.words(), *verdict as u32, 0);
            inserted.map_err(filling())?;
        }
        Ok(())
    }

    /// Puts every slot on the free list, which is empty.
    pub(super) fn free_slots(&mut self, slots: u32) -> Result<(), Error> {
        let map = self.0.get_mut(FREE_SLOTS);
        let map = map.ok_or_else(|| no_map(FREE_SLOTS))?;
        let mut free: Queue<&mut MapData, u32> =
            Queue::try_from(map).map_err(Error::aya("opening the free list"))?;
        for slot in 0..slots {
            free.push(slot, 0)
                .map_err(Error::aya("filling the free list"))?;
        }
        Ok(())
    }
}

/// The list of free slots.
pub(super) struct FreeSlots(Queue<MapData, u32>);

impl FreeSlots {
    /// The free list, taken out.
    pub(super) fn take(maps: &mut Maps) -> Result<Self, Error> {
        maps.take(FREE_SLOTS).map(Self)
    }

    /// Adds a slot to the end of the list.
    pub(super) fn push(&mut self, slot: u32) -> Result<(), Error> {
        self.0
            .push(slot, 0)
            .map_err(Error::aya("adding to the free list"))
    }
}

/// A ring buffer of records.
pub struct Ring(RingBuf<MapData>);

impl Ring {
    /// The ring buffer of that name, taken out.
    pub(super) fn take(maps: &mut Maps, name: &str) -> Result<Self, Error> {
        maps.take(name).map(Self)
    }

    /// Reads on where the last reader of the ring buffer, in whatever process, has stopped.
    pub(super) fn reopen(&mut self) -> Result<(), Error> {
        let what = "opening a ring buffer again";
        let fd = self.0.as_fd().try_clone_to_owned();
        let fd = fd.map_err(Error::system(what))?;
        self.0 = open_map(fd)?.try_into().map_err(Error::aya(what))?;
        Ok(())
    }

    /// Takes up to `most` records out, each a slice of one shared buffer.
    pub fn drain(&mut self, most: usize) -> Vec<Bytes> {
        let mut buffer = BytesMut::new();
        let mut records = Vec::new();
        while records.len() < most {
            let Some(item) = self.0.next() else { break };
            buffer.extend_from_slice(&item);
            records.push(buffer.split().freeze());
        }
        records
    }

    /// The ring buffer's descriptor, which becomes readable when records arrive. Needs a tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// Returns an error when the descriptor cannot be duplicated or registered with the runtime.
    pub fn readiness(&self) -> Result<AsyncFd<OwnedFd>, Error> {
        let what = "watching a ring buffer";
        let fd = self
            .0
            .as_fd()
            .try_clone_to_owned()
            .map_err(Error::system(what))?;
        // SAFETY: an owned descriptor is open, and the same, for as long as it lives.
        unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
            .map_err(|error| Error::system(what)(error.into()))
    }
}

/// The counters of one load of the object.
pub(super) struct Counters(PerCpuArray<MapData, u64>);

impl Counters {
    /// The map of the counters, taken out.
    pub(super) fn take(maps: &mut Maps) -> Result<Self, Error> {
        maps.take(COUNTERS).map(Self)
    }

    /// Their values, summed over the CPUs, in the order of [`Counter::ALL`].
    pub(super) fn read(&self) -> Result<Vec<u64>, Error> {
        Counter::ALL
            .iter()
            .map(|&counter| {
                let per_cpu = self
                    .0
                    .get(&(counter as u32), 0)
                    .map_err(Error::aya("reading the datapath's counters"))?;
                Ok(per_cpu.iter().sum())
            })
            .collect()
    }
}

/// A structure of 32-bit words as a static of the object has it.
pub(super) fn as_words<T: Pod>(structure: &T) -> &[u32] {
    bytemuck::cast_slice(std::slice::from_ref(structure))
}

/// The object has no such program.
pub(super) fn no_program(name: &str) -> Error {
    Error::Aya {
        what: "reading the BPF object".into(),
        reason: format!("it has no program {name}"),
    }
}

/// The map behind a descriptor.
pub(super) fn open_map(fd: OwnedFd) -> Result<Map, Error> {
    let what = "opening a BPF map that a running agent has handed over";
    let map = MapData::from_fd(fd).map_err(Error::aya(what))?;
    Map::from_map_data(map).map_err(Error::aya(what))
}

fn fd(map: &Map) -> BorrowedFd<'_> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LpmTrie(data)
        | Map::PerCpuArray(data)
        | Map::Queue(data)
        | Map::RingBuf(data)
        | Map::Unsupported(data) => data.fd().as_fd(),
        // The object declares no map of another type.
        other => unreachable!("an unexpected map type in the BPF object: {other:?}"),
    }
}

fn no_map(name: &str) -> Error {
    Error::Aya {
        what: "reading the BPF object".into(),
        reason: format!("it has no map {name}"),
    }
}
