//! The BPF programs and maps of a datapath or an observer.

use std::collections::{BTreeMap, BTreeSet};

use aya::{
    maps::{Array, Map, MapData, PerCpuArray, loaded_maps},
    programs::loaded_programs,
};
use cc_ebpf::{Counter, Settings};

use super::eventually;

/// The BPF programs and maps of one congestion control or observer, by their ids in the kernel.
#[derive(Debug)]
pub struct Footprint {
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
}

impl Footprint {
    /// Finds what the kernel holds now for a congestion control's name; an observer is called
    /// `observe` followed by its process id.
    ///
    /// These are the maps with settings for that name, every program that shares a map with what
    /// was found so far, and every map of those programs. Programs that an earlier agent of the
    /// name left to its flows share the flows' maps, and are therefore included.
    pub fn of(name: &str) -> Self {
        let mut footprint = Self {
            programs: BTreeSet::new(),
            maps: loaded_maps()
                .flatten()
                .filter(|info| info.name_as_str() == Some("CC_SETTINGS"))
                .map(|info| info.id())
                .filter(|&id| settings_name(id).as_deref() == Some(name))
                .collect(),
        };
        while footprint.grow() {}
        for info in loaded_maps().flatten() {
            if info.name_as_str() == Some(name) {
                footprint.maps.insert(info.id()); // the struct_ops map
            }
        }
        footprint
    }

    /// Adds the programs that use a map of the footprint, and all maps of these programs. Returns
    /// whether a program was added.
    fn grow(&mut self) -> bool {
        let before = self.programs.len();
        for program in loaded_programs().flatten() {
            let maps = program.map_ids().ok().flatten().unwrap_or_default();
            if maps.iter().any(|id| self.maps.contains(id)) {
                self.programs.insert(program.id());
                self.maps.extend(maps);
            }
        }
        self.programs.len() > before
    }

    /// Returns the number of programs found.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Returns the number of instructions that the verifier processed for each program, by the
    /// first 15 characters of its name, which is what the kernel keeps.
    ///
    /// # Panics
    ///
    /// Panics if a program is gone or the kernel does not tell (before Linux 5.16).
    pub fn verified_instructions(&self) -> BTreeMap<String, u32> {
        let programs = loaded_programs().flatten();
        let ours = programs.filter(|program| self.programs.contains(&program.id()));
        let counts = ours.map(|program| {
            let name = program.name_as_str().unwrap_or_default().to_owned();
            let count = program.verified_instruction_count();
            (name, count.expect("Linux 5.16 or newer"))
        });
        counts.collect()
    }

    /// Returns the number of maps found.
    pub fn maps(&self) -> usize {
        self.maps.len()
    }

    /// Reads a counter of the datapath, which no agent has to answer for.
    ///
    /// # Panics
    ///
    /// Panics if the maps are gone.
    pub fn counter(&self, counter: Counter) -> u64 {
        let counters = loaded_maps().flatten().filter(|info| {
            self.maps.contains(&info.id()) && info.name_as_str() == Some("CC_COUNTERS")
        });
        let of_map = |id| {
            let map = Map::PerCpuArray(MapData::from_id(id).expect("it was just listed"));
            let map: PerCpuArray<MapData, u64> = map.try_into().expect("a map of counters");
            let per_cpu = map.get(&(counter as u32), 0).expect("an index of the map");
            per_cpu.iter().sum::<u64>()
        };
        counters.map(|info| of_map(info.id())).sum()
    }

    /// Waits until the kernel has freed all of it, which happens shortly after the last use.
    ///
    /// # Panics
    ///
    /// Panics if a program or a map is left after 60 s.
    pub fn assert_vanishes(&self) {
        let mut left = String::new();
        let gone = || {
            let programs: Vec<u32> = loaded_programs().flatten().map(|p| p.id()).collect();
            let maps: Vec<u32> = loaded_maps().flatten().map(|map| map.id()).collect();
            let programs = programs.iter().filter(|id| self.programs.contains(id));
            let maps = maps.iter().filter(|id| self.maps.contains(id));
            left = format!(
                "programs {:?}, maps {:?}",
                programs.collect::<Vec<_>>(),
                maps.collect::<Vec<_>>()
            );
            (left == "programs [], maps []").then_some(())
        };
        eventually(
            "the kernel had no program and no map of the datapath left",
            gone,
        );
    }
}

/// Returns the name in the settings that a `CC_SETTINGS` map holds, or `None` if the map is gone.
fn settings_name(id: u32) -> Option<String> {
    let map = Map::Array(MapData::from_id(id).ok()?);
    let array: Array<MapData, [u8; size_of::<Settings>()]> = Array::try_from(map).ok()?;
    let settings: Settings = bytemuck::pod_read_unaligned(&array.get(&0, 0).ok()?);
    let name = settings.name.split(|&byte| byte == 0).next()?;
    String::from_utf8(name.to_vec()).ok()
}
