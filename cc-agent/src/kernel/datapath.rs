//! The datapath, loaded and registered: records come out of it, decisions go in.

use std::{
    collections::HashMap,
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Map, MapData, loaded_maps},
    programs::{
        CgroupAttachMode, ProgramError, ProgramInfo, SockOps, loaded_programs,
        sock_ops::SockOpsLinkId,
    },
};
use aya_obj::generated::bpf_prog_type;
use cc_core::error_chain;
use cc_ebpf::{
    Decision, Flow, Heartbeat, LAYOUT_VERSION, Settings,
    slot::{self, AgentMaps},
};
use nix::unistd::geteuid;

pub use super::object::{Ring, has_object};
use super::{
    Error, btf, cgroup,
    cgroup::AddedCgroups,
    clock, cookies,
    inheritance::Inheritance,
    object::{
        ACKS, COUNTERS, Counters, DECISIONS, DEVICES, FLOWS, FREE_SLOTS, FreeSlots, HEARTBEAT,
        Maps, NETWORKS, OBJECT, RECORDS, SAMPLES, SETTINGS, as_words, no_program, open_map,
    },
    process::Process,
    scope::Scope,
    shared::{Shared, Slots},
    struct_ops::{CONG_CONTROL_PROGRAMS, Prepared, StructOps},
    sysctl::AVAILABLE,
};

/// The maps that live flows share with their agent; the rest belongs to one load of the programs.
const SHARED: [&str; 8] = [
    SETTINGS, HEARTBEAT, DECISIONS, FLOWS, FREE_SLOTS, RECORDS, ACKS, COUNTERS,
];

/// How the datapath is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Name of the congestion control.
    pub name: String,
    /// Flows that can be served at once.
    pub slots: u32,
    /// The datapath's settings, but for slots and name, which are filled in from here.
    pub settings: Settings,
    /// Directories of cgroup v2 whose sockets use the congestion control.
    pub cgroups: Vec<PathBuf>,
    /// Whether further ones may be added while it runs.
    pub cgroups_by_command: bool,
    /// Which connections are served, and which are left.
    pub scope: Scope,
    /// Whether only processes with CAP_NET_ADMIN may choose the congestion control for a socket.
    pub restricted: bool,
}

impl Options {
    /// The name as the kernel has it, NUL-padded; [`check_name`] has seen that it fits.
    fn padded_name(&self) -> [u8; 16] {
        let mut name = [0; 16];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        name
    }

    fn settings(&self, slots: u32) -> Settings {
        Settings {
            slots,
            name: self.padded_name(),
            ..self.settings
        }
    }
}

/// The datapath: loaded, and registered once [`Self::register`] has returned. Dropping it
/// unregisters the congestion control; its flows fall back once the heartbeat is too old.
pub struct Datapath {
    // The cgroups' sockets stop choosing the name before it is unregistered, and that happens while
    // everything else is still there.
    /// The cgroups that were added since the start; `None` where none may be.
    added: Option<AddedCgroups>,
    programs: Ebpf,
    cgroups: Vec<(PathBuf, fs::File)>,
    registration: Option<Registration>,
    logger: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
    settings: Shared<Settings>,
    heartbeat: Shared<Heartbeat>,
    maps: Slots,
    free_slots: FreeSlots,
    records: Ring,
    acks: Ring,
    counters: Counters,
    /// The maps that a successor needs.
    shared: Vec<(&'static str, OwnedFd)>,
    /// The number of this load of the programs.
    number: u32,
    /// Live flows in maps that a former agent has made; `None` where the maps are new.
    adopted: Option<usize>,
    /// The settings that hold once it is registered.
    asked: Settings,
}

/// The states of the congestion control's registration.
enum Registration {
    Prepared(Prepared),
    /// To be registered in the place of a running agent's, by its link.
    Succeeding(Prepared, OwnedFd),
    Done(StructOps),
}

impl Datapath {
    /// Loads the programs and registers them: [`Self::load`] and [`Self::register`].
    ///
    /// # Errors
    ///
    /// Returns the errors of both.
    pub fn attach(options: &Options) -> Result<Self, Error> {
        let mut datapath = Self::load(options)?;
        datapath.register()?;
        Ok(datapath)
    }

    /// Loads the programs, without registering them. Where a former agent of the same name left
    /// flows behind, their maps are used again, and stay as they are until [`Self::register`].
    ///
    /// # Errors
    ///
    /// Returns an error when the name cannot be used or is taken, when the host lacks what BPF
    /// needs, or when the kernel refuses the programs.
    pub fn load(options: &Options) -> Result<Self, Error> {
        Self::load_with(options, None)
    }

    /// Loads the programs against the maps of an agent that is running, in whose place
    /// [`Self::register`] registers them. Until then that agent serves, and nothing here is to be
    /// called but [`Self::resume`] when it has stopped doing so.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::load`], and an error when the maps of the running agent are
    /// not those of the same name and layout.
    pub fn inherit(options: &Options, inheritance: Inheritance) -> Result<Self, Error> {
        Self::load_with(options, Some(inheritance))
    }

    fn load_with(options: &Options, inheritance: Option<Inheritance>) -> Result<Self, Error> {
        check_name(&options.name)?;
        let cgroups = cgroup::open_all(&options.cgroups)?;
        if OBJECT.is_empty() {
            return Err(Error::NoObject);
        }
        clock::check()?;
        let kernel = btf::Kernel::running()?;
        let layout = kernel.layout()?;
        let ops = kernel.congestion_ops()?;
        let (orphans, link) = match inheritance {
            Some(Inheritance { link, maps }) => (Some(inherited(&options.name, maps)?), Some(link)),
            None => (orphans(&options.name), None),
        };
        if !ops.links && orphans.as_ref().is_some_and(|found| !found.owner_lives()) {
            StructOps::unregister_leftover(&options.name);
        }
        if link.is_none() && registered(&options.name) {
            return Err(Error::NameTaken(options.name.clone()));
        }

        // Each load of the programs has its own; its flows may have any slot of the former agent's.
        let samples = orphans.as_ref().map_or(options.slots, |found| found.slots);
        let number = load_number();
        let name = options.padded_name();
        let scope = options.scope.constants();
        // A map has room for one entry at least.
        let room = |entries: usize| u32::try_from(entries).unwrap_or(u32::MAX).max(1);
        let mut programs = EbpfLoader::new()
            .override_global("KERNEL", as_words(&layout), true)
            .override_global("LOAD", &number, true)
            .override_global("NAME", name.as_slice(), true)
            .override_global("SCOPE", as_words(&scope), true)
            .map_max_entries(NETWORKS, room(options.scope.networks.len()))
            .map_max_entries(DEVICES, room(options.scope.devices.len()))
            .map_max_entries(DECISIONS, options.slots)
            .map_max_entries(FLOWS, options.slots)
            .map_max_entries(SAMPLES, samples)
            .map_max_entries(FREE_SLOTS, options.slots)
            .load(OBJECT)
            .map_err(Error::aya("creating the BPF maps"))?;
        let logger = match aya_log::EbpfLogger::init(&mut programs) {
            Ok(logger) => Some(logger),
            Err(error) => {
                tracing::warn!("the datapath's messages will not be shown: {error}");
                None
            }
        };
        if !cgroups.is_empty() || options.cgroups_by_command {
            chooser(&mut programs)?
                .load()
                .map_err(Error::aya("loading the cgroups' program"))?;
        }
        cookies::attach(&mut programs, &kernel);
        let mut maps = Maps::of(&mut programs);
        maps.fill_scope(&options.scope)?;

        let (slots, adopted) = match orphans {
            Some(orphans) => {
                if orphans.slots != options.slots {
                    tracing::warn!(
                        "the {} slots of the former agent stay, not the {} asked for, until none \
                         of its flows is open when an agent starts",
                        orphans.slots,
                        options.slots
                    );
                }
                maps.extend(orphans.maps);
                (orphans.slots, Some(orphans.live))
            }
            None => {
                maps.free_slots(options.slots)?;
                (options.slots, None)
            }
        };

        let mut fds: HashMap<String, RawFd> = HashMap::new();
        for (name, fd) in maps.descriptors() {
            fds.insert(name.to_owned(), fd.as_raw_fd());
        }
        if let Some(logs) = logger.as_ref() {
            fds.insert("AYA_LOGS".into(), logs.as_raw_fd());
        }
        let prepared = Prepared::load(OBJECT, &fds, &ops, &options.name, options.restricted)?;
        let keep = |name| {
            let kept = maps.fd_of(name)?.try_clone_to_owned();
            Ok((name, kept.map_err(Error::system("keeping a BPF map"))?))
        };
        let shared = SHARED.into_iter().map(keep).collect::<Result<_, Error>>()?;
        Ok(Self {
            added: options.cgroups_by_command.then(AddedCgroups::default),
            programs,
            cgroups,
            registration: Some(match link {
                Some(link) => Registration::Succeeding(prepared, link),
                None => Registration::Prepared(prepared),
            }),
            shared,
            number,
            settings: Shared::map(maps.fd_of(SETTINGS)?, 1)?,
            heartbeat: Shared::map(maps.fd_of(HEARTBEAT)?, 1)?,
            maps: Slots {
                decisions: Shared::map(maps.fd_of(DECISIONS)?, slots)?,
                flows: Shared::map(maps.fd_of(FLOWS)?, slots)?,
            },
            free_slots: FreeSlots::take(&mut maps)?,
            records: Ring::take(&mut maps, RECORDS)?,
            acks: Ring::take(&mut maps, ACKS)?,
            counters: Counters::take(&mut maps)?,
            adopted,
            asked: options.settings(slots),
            logger,
        })
    }

    /// Registers the congestion control, with the settings and a first heartbeat in place before a
    /// flow can choose it. Does nothing when it is registered.
    ///
    /// Maps of a former agent are written to only when that has succeeded: of two agents that start
    /// at the same time, the one that is refused has changed nothing.
    ///
    /// # Errors
    ///
    /// Returns an error when the name is taken, or when the kernel refuses to register it or to
    /// attach to a cgroup. The datapath cannot be registered after that.
    pub fn register(&mut self) -> Result<(), Error> {
        if self.adopted.is_none() {
            self.settings.write(0, self.asked);
            self.write_heartbeat(clock::now_ns());
        }
        let registered = match self.registration.take() {
            Some(Registration::Prepared(prepared)) => prepared.register()?,
            Some(Registration::Succeeding(prepared, link)) => prepared.replace(link)?,
            other => {
                self.registration = other;
                return Ok(());
            }
        };
        self.registration = Some(Registration::Done(registered));
        self.settings.write(0, self.asked);
        self.write_heartbeat(clock::now_ns());
        for (path, directory) in &self.cgroups {
            attach(&mut self.programs, path, directory)?;
        }
        Ok(())
    }

    /// The directories of the cgroups that were added since the start, in that order; `None` where
    /// none may be.
    pub fn added_cgroups(&self) -> Option<Vec<PathBuf>> {
        self.added.as_ref().map(AddedCgroups::directories)
    }

    /// Serves the sockets of a cgroup from now on. Returns false when it was added before.
    ///
    /// # Errors
    ///
    /// Returns an error where none may be added, when the directory is none of cgroup v2, and when
    /// the kernel refuses to attach to it.
    pub fn add_cgroup(&mut self, directory: &Path) -> Result<bool, Error> {
        let added = self.added.as_mut().ok_or(Error::CgroupsFixed)?;
        added.add(directory, &self.cgroups, |file| {
            let id = attach(&mut self.programs, directory, file)?;
            let link = chooser(&mut self.programs)?.take_link(id);
            link.map_err(Error::aya("keeping the link of a cgroup"))
        })
    }

    /// Serves the sockets of a cgroup no longer that was added. Returns false when it was not.
    ///
    /// # Errors
    ///
    /// Returns an error where none may be added.
    pub fn remove_cgroup(&mut self, directory: &Path) -> Result<bool, Error> {
        let added = self.added.as_mut().ok_or(Error::CgroupsFixed)?;
        Ok(added.remove(directory))
    }

    /// Forgets the added cgroups whose directories were removed since, and returns these.
    pub fn forget_removed_cgroups(&mut self) -> Vec<PathBuf> {
        (self.added.as_mut()).map_or_else(Vec::new, AddedCgroups::forget_removed)
    }

    /// What a successor needs to serve in the place of this agent.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoLink`] where the name is not registered by a link, and another error when
    /// the process has no descriptors left.
    pub fn bequeath(&self) -> Result<Inheritance, Error> {
        let Some(Registration::Done(registered)) = &self.registration else {
            return Err(Error::NoLink);
        };
        let link = registered.link().ok_or(Error::NoLink)?;
        let copying = || Error::system("copying the descriptors of the datapath");
        let maps = self.shared.iter().map(|(name, fd)| {
            let fd = fd.as_fd().try_clone_to_owned().map_err(copying())?;
            Ok(((*name).to_owned(), fd))
        });
        Ok(Inheritance {
            link: link.try_clone_to_owned().map_err(copying())?,
            maps: maps.collect::<Result<_, Error>>()?,
        })
    }

    /// Serves on where another agent has stopped: reads records from there, and counts its live
    /// flows as adopted. The settings are those of this agent again, once it is registered.
    ///
    /// # Errors
    ///
    /// Returns an error when a ring buffer cannot be opened.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.records.reopen()?;
        self.acks.reopen()?;
        if self.may_write() {
            self.settings.write(0, self.asked);
            self.write_heartbeat(clock::now_ns());
        } else {
            self.adopted = Some(self.live_flows().len());
        }
        Ok(())
    }

    /// The number of this load of the programs, which flows that they open carry
    /// ([`cc_ebpf::Identity::programs`]).
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The last heartbeat, of whatever agent, ns.
    pub fn last_beat_ns(&self) -> Option<u64> {
        Some(self.heartbeat.read(0)?.at_ns)
    }

    /// Whether the maps are this agent's to write to.
    fn may_write(&self) -> bool {
        self.adopted.is_none() || matches!(self.registration, Some(Registration::Done(_)))
    }

    fn write_heartbeat(&self, at_ns: u64) {
        let pid = u64::from(std::process::id());
        self.heartbeat.write(0, Heartbeat { at_ns, pid });
    }

    /// Live flows that a former agent had left behind when this one took over.
    pub fn adopted(&self) -> usize {
        self.adopted.unwrap_or(0)
    }

    /// The settings that hold for the datapath's flows now.
    pub fn settings(&self) -> Option<Settings> {
        self.settings.read(0)
    }

    /// Number of slots for flows in the maps.
    pub fn slots(&self) -> usize {
        self.maps.flows.entries()
    }

    /// Publishes a decision for the flow in `slot` ([`slot::publish`]).
    pub fn publish(&self, slot: u32, decision: Decision) {
        if self.may_write() {
            slot::publish(&self.maps, slot, decision);
        }
    }

    /// Frees the slot of a flow that was revoked long enough ago ([`slot::free`]). Returns false
    /// when the flow of this generation is not live in the slot.
    ///
    /// # Errors
    ///
    /// Returns an error when the kernel refuses the slot on the free list; then it stays unused.
    pub fn free(&mut self, slot: u32, generation: u32) -> Result<bool, Error> {
        if !self.may_write() {
            return Ok(false);
        }
        slot::free(&self.maps, slot, generation, |slot| {
            self.free_slots.push(slot)
        })
    }

    /// Tells the datapath that the agent was serving at `now_ns`.
    pub fn beat(&self, now_ns: u64) {
        if self.may_write() {
            self.write_heartbeat(now_ns);
        }
    }

    /// The generation of the flow that is live in `slot`; `None` when none is.
    pub fn occupant(&self, slot: u32) -> Option<u32> {
        self.maps.occupant(slot)
    }

    /// The state of the flow in `slot`, or `None` while the datapath is changing it.
    pub fn flow(&self, slot: u32) -> Option<Flow> {
        self.maps.flows.snapshot(slot)
    }

    /// The states of the flows that are open.
    pub fn live_flows(&self) -> Vec<Flow> {
        (0..self.slots() as u32)
            .filter_map(|slot| self.flow(slot))
            .filter(|flow| flow.live == 1)
            .collect()
    }

    /// The datapath's counters, summed over the CPUs, in the order of [`cc_ebpf::Counter::ALL`].
    ///
    /// # Errors
    ///
    /// Returns an error when the kernel refuses to read the map.
    pub fn counters(&self) -> Result<Vec<u64>, Error> {
        self.counters.read()
    }

    /// Opened, window and closed records. Its descriptor becomes readable when there are some.
    pub fn records(&mut self) -> &mut Ring {
        &mut self.records
    }

    /// Per-ACK records. They do not make its descriptor readable.
    pub fn acks(&mut self) -> &mut Ring {
        &mut self.acks
    }

    /// Passes on what the datapath had to say.
    pub fn flush_messages(&mut self) {
        if let Some(logger) = &mut self.logger {
            logger.flush();
        }
    }
}

/// Whether a congestion control of this name is registered.
pub fn registered(name: &str) -> bool {
    fs::read_to_string(AVAILABLE)
        .is_ok_and(|names| names.split_whitespace().any(|other| other == name))
}

/// Checks that the kernel and `sysctl` can use the name of a congestion control.
///
/// # Errors
///
/// Returns an error that says which names can be used.
pub fn check_name(name: &str) -> Result<(), Error> {
    // `bpf_obj_name_cpy` takes these and a dot, which the names of BPF objects here do not keep.
    let usable = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if (1..=15).contains(&name.len()) && name.chars().all(usable) {
        Ok(())
    } else {
        Err(Error::BadName(name.into()))
    }
}

/// Maps that outlived their agent, because flows still use the programs that use them.
struct Orphans {
    maps: Maps,
    slots: u32,
    live: usize,
    heartbeat: Heartbeat,
    heartbeat_limit_ns: u64,
}

impl Orphans {
    /// Whether the agent that made them still runs: one that beats, in whatever PID namespace, or a
    /// process with its id that was there when the last heartbeat came.
    fn owner_lives(&self) -> bool {
        let now_ns = clock::now_ns();
        let silent_ns = now_ns.saturating_sub(self.heartbeat.at_ns);
        if !self.heartbeat.is_stale(now_ns, self.heartbeat_limit_ns) {
            return true;
        }
        // Clock ticks are 10 ms long.
        const TICKS_NS: u64 = 20_000_000;
        let process = u32::try_from(self.heartbeat.pid).ok().and_then(Process::of);
        process.is_some_and(|process| process.age_ns() + TICKS_NS >= silent_ns)
    }
}

/// Finds the maps of live flows of that name. Nothing is pinned: what is in use is found by its
/// programs, and what is not is gone.
fn orphans(name: &str) -> Option<Orphans> {
    let mut names_by_id = HashMap::new();
    for info in loaded_maps().flatten() {
        if let Some(map_name) = info.name_as_str()
            && SHARED.contains(&map_name)
        {
            names_by_id.insert(info.id(), map_name.to_owned());
        }
    }
    let mut found: Option<Orphans> = None;
    for program in loaded_programs() {
        let program = match program {
            Ok(program) => program,
            // Ended meanwhile.
            Err(ProgramError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::NotFound =>
            {
                continue;
            }
            Err(error) => {
                tracing::warn!(
                    "flows that a former agent has left cannot be looked for, and stay on the \
                     fallback until they close ({}); CAP_SYS_ADMIN is needed for that",
                    error_chain(&error)
                );
                break;
            }
        };
        if !is_ours(&program) {
            continue;
        }
        let Ok(Some(ids)) = program.map_ids() else {
            continue;
        };
        let ids = ids.into_iter();
        let named = ids.filter_map(|id| Some((names_by_id.get(&id)?.clone(), id)));
        let Some(candidate) = open_orphans(name, named) else {
            continue;
        };
        if found.as_ref().is_none_or(|best| best.live < candidate.live) {
            found = Some(candidate);
        }
    }
    found
}

/// Whether a program is the `cong_control` of a congestion control that root or this user has
/// loaded. Whoever may load programs could offer maps of its own otherwise.
fn is_ours(program: &ProgramInfo) -> bool {
    let is_named = program.name_as_str().is_some_and(|name| {
        !name.is_empty() && CONG_CONTROL_PROGRAMS.iter().any(|p| p.starts_with(name))
    });
    let own = geteuid().as_raw();
    is_named
        && program.program_type() == bpf_prog_type::BPF_PROG_TYPE_STRUCT_OPS
        && program
            .created_by_uid()
            .is_some_and(|uid| uid == 0 || uid == own)
}

fn open_orphans(name: &str, named: impl Iterator<Item = (String, u32)>) -> Option<Orphans> {
    let opened = named.map(|(map_name, id)| {
        let map = Map::from_map_data(MapData::from_id(id).ok()?).ok()?;
        Some((map_name, map))
    });
    let orphans = Orphans::of(name, opened.collect::<Option<Vec<_>>>()?)?;
    if let Err(theirs) = &orphans {
        tracing::warn!(
            "flows of a former agent use layout {theirs} of the maps, this agent has \
             {LAYOUT_VERSION}: they stay on the fallback until they close"
        );
    }
    orphans.ok()
}

/// The maps of a running agent that serves `name`.
fn inherited(name: &str, maps: Vec<(String, OwnedFd)>) -> Result<Orphans, Error> {
    let opened = maps
        .into_iter()
        .map(|(map_name, fd)| Ok((map_name, open_map(fd)?)));
    match Orphans::of(name, opened.collect::<Result<Vec<_>, Error>>()?) {
        Some(Ok(orphans)) => Ok(orphans),
        Some(Err(theirs)) => Err(Error::Layout { theirs }),
        None => Err(Error::Inheritance(format!(
            "they are not the maps of {name}"
        ))),
    }
}

impl Orphans {
    /// Opens the maps of the congestion control `name`. `None` when these are not all of them, and
    /// the version of their layout when it is another one than this agent's.
    fn of(name: &str, named: Vec<(String, Map)>) -> Option<Result<Self, u32>> {
        let mut maps = Maps::default();
        for (map_name, map) in named {
            let is_expected = match map_name.as_str() {
                RECORDS | ACKS => matches!(map, Map::RingBuf(_)),
                FREE_SLOTS => matches!(map, Map::Queue(_)),
                COUNTERS => matches!(map, Map::PerCpuArray(_)),
                _ => matches!(map, Map::Array(_)),
            };
            if !is_expected {
                return None;
            }
            maps.insert(map_name, map);
        }
        if SHARED.iter().any(|needed| !maps.contains(needed)) {
            return None;
        }
        let settings: Shared<Settings> = Shared::map(maps.fd_of(SETTINGS).ok()?, 1).ok()?;
        let settings = settings.read(0)?;
        let theirs = settings.name.split(|&byte| byte == 0).next()?;
        if theirs != name.as_bytes() {
            return None;
        }
        if settings.layout != LAYOUT_VERSION {
            return Some(Err(settings.layout));
        }
        let flows: Shared<Flow> = Shared::map(maps.fd_of(FLOWS).ok()?, settings.slots).ok()?;
        let live = (0..flows.entries())
            .filter(|&slot| flows.read(slot).is_some_and(|flow| flow.live == 1))
            .count();
        let heartbeat: Shared<Heartbeat> = Shared::map(maps.fd_of(HEARTBEAT).ok()?, 1).ok()?;
        Some(Ok(Self {
            heartbeat: heartbeat.read(0)?,
            heartbeat_limit_ns: settings.heartbeat_limit_ns,
            maps,
            slots: settings.slots,
            live,
        }))
    }
}

/// A number for a load of the programs that the loads before it do not have, and not 0: the time in
/// units of 2^20 ns, about a millisecond.
fn load_number() -> u32 {
    ((clock::now_ns() >> 20) as u32).max(1)
}

/// Attaches the program by which sockets of a cgroup choose the name.
fn attach(ebpf: &mut Ebpf, path: &Path, directory: &fs::File) -> Result<SockOpsLinkId, Error> {
    let what = format!("attaching to the cgroup {}", path.display());
    chooser(ebpf)?
        // A link always allows others beside it; old kernels refuse the flag that says so.
        .attach(directory, CgroupAttachMode::Single)
        .map_err(Error::aya(what))
}

fn chooser(ebpf: &mut Ebpf) -> Result<&mut SockOps, Error> {
    let program = ebpf
        .program_mut("cc_choose")
        .ok_or_else(|| no_program("cc_choose"))?;
    program
        .try_into()
        .map_err(Error::aya("reading the BPF object"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_would_cut_or_refuse() {
        assert!(check_name("rlcc").is_ok());
        assert!(check_name("a_b_C9").is_ok());
        for bad in [
            "",
            "sixteen_letters_",
            "with space",
            "ünïcode",
            "a/b",
            "a-b",
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
