//! Registers the datapath as a congestion control: what aya does not do.
//!
//! aya creates the maps and owns every ordinary program; it has no struct_ops. The callbacks are
//! therefore parsed a second time from the same object, relocated against the maps that are to be
//! used, loaded one by one, and put into a `tcp_congestion_ops` that a BPF link registers.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
};

use aya::maps::{MapType, loaded_maps};
use aya_obj::{Object, generated::bpf_insn};

use super::{
    Error,
    bpf::{self, Refused},
    btf::{self, CongestionOps},
    object::no_program,
};

/// Unprivileged sockets may choose the congestion control (`TCP_CONG_NON_RESTRICTED`,
/// include/net/tcp.h).
const TCP_CONG_NON_RESTRICTED: u32 = 1;

/// Members of `tcp_congestion_ops` and the programs that serve them.
const CALLBACKS: [(&str, &str); 9] = [
    ("init", "cc_init"),
    ("release", "cc_release"),
    ("ssthresh", "cc_ssthresh"),
    ("undo_cwnd", "cc_undo_cwnd"),
    ("set_state", "cc_set_state"),
    ("cwnd_event", "cc_cwnd_event"),
    ("min_tso_segs", "cc_min_tso_segs"),
    ("sndbuf_expand", "cc_sndbuf_expand"),
    ("cong_control", "cc_cong_control"),
];
/// A member that kernels have since Linux 7.1, and its program. Before, `cwnd_event` takes this
/// event too.
const TX_START: (&str, &str) = ("cwnd_event_tx_start", "cc_tx_start");

/// Serves `cong_control` before Linux 6.10.
const NARROW_CONG_CONTROL: &str = "cc_cong_control_2";

/// A registered congestion control. Dropping it unregisters the name; sockets that already use it
/// keep its programs until they close.
#[derive(Debug)]
pub struct StructOps(Registration);

#[derive(Debug)]
enum Registration {
    /// By a link: closing it unregisters, also when the process is killed.
    Link(OwnedFd),
    /// By the map's content, before Linux 6.4: it stays until the map is emptied.
    Map(OwnedFd),
}

/// Names of the programs, for those who look them up by name.
pub(super) const CONG_CONTROL_PROGRAMS: [&str; 2] = ["cc_cong_control", NARROW_CONG_CONTROL];

/// A callback of a congestion control.
#[derive(Clone, Copy, Debug)]
pub struct Callback<'a> {
    /// The member of `tcp_congestion_ops`.
    pub member: &'a str,
    /// The name that the kernel shows for the program.
    pub program: &'a str,
    /// The program, with maps and kernel functions in place.
    pub instructions: &'a [bpf_insn],
}

/// Registers a congestion control made of these callbacks.
///
/// # Errors
///
/// Returns an error when the kernel has no struct_ops for congestion controls, or refuses a
/// program or the name.
pub fn register(name: &str, callbacks: &[Callback<'_>]) -> Result<StructOps, Error> {
    let ops = btf::Kernel::running()?.congestion_ops()?;
    Prepared::of(callbacks, &ops, name, false)?.register()
}

/// A `tcp_congestion_ops` whose callbacks are loaded, ready to be registered.
#[derive(Debug)]
pub(super) struct Prepared {
    name: String,
    map: OwnedFd,
    /// The content of the map; it holds the programs once it is set.
    value: Vec<u8>,
    programs: Vec<OwnedFd>,
    linked: bool,
}

impl Prepared {
    /// Loads the callbacks in `object` against these maps, to be registered as `name`, for
    /// privileged sockets only if it is `restricted`.
    pub(super) fn load(
        object: &[u8],
        maps: &HashMap<String, RawFd>,
        ops: &CongestionOps,
        name: &str,
        restricted: bool,
    ) -> Result<Self, Error> {
        let object = relocate(object, maps)?;
        let tx_start = ops.member(TX_START.0).is_ok().then_some(TX_START);
        let callbacks = CALLBACKS.into_iter().chain(tx_start);
        let callbacks = callbacks.map(|(member, program)| {
            let program = match member {
                "cong_control" if !ops.wide_cong_control => NARROW_CONG_CONTROL,
                _ => program,
            };
            let instructions = instructions(&object, program)?;
            Ok(Callback {
                member,
                program,
                instructions,
            })
        });
        let callbacks = callbacks.collect::<Result<Vec<_>, Error>>()?;
        Self::of(&callbacks, ops, name, restricted)
    }

    /// Loads these callbacks, to be registered as `name`.
    fn of(
        callbacks: &[Callback<'_>],
        ops: &CongestionOps,
        name: &str,
        restricted: bool,
    ) -> Result<Self, Error> {
        let mut value = vec![0u8; ops.wrapper_size];
        let mut programs = Vec::new();
        for callback in callbacks {
            let (index, offset) = ops.member(callback.member)?;
            let fd = callback.load(ops.type_id, index)?;
            let at = ops.data_offset + offset;
            let raw = std::os::fd::AsRawFd::as_raw_fd(&fd) as u64;
            value[at..at + 8].copy_from_slice(&raw.to_ne_bytes());
            programs.push(fd);
        }
        let (_, name_offset) = ops.member("name")?;
        let at = ops.data_offset + name_offset;
        value[at..at + name.len()].copy_from_slice(name.as_bytes());
        let (_, flags_offset) = ops.member("flags")?;
        let at = ops.data_offset + flags_offset;
        let flags = match restricted {
            true => 0,
            false => TCP_CONG_NON_RESTRICTED,
        };
        value[at..at + 4].copy_from_slice(&flags.to_ne_bytes());

        let map = bpf::create_struct_ops_map(name, ops.wrapper_id, ops.wrapper_size, ops.links)
            .map_err(Error::system("creating the struct_ops map"))?;
        Ok(Self {
            name: name.into(),
            map,
            value,
            programs,
            linked: ops.links,
        })
    }

    /// Registers it in the place of what the link of a running agent has registered under the same
    /// name. New sockets get these callbacks from then on; others keep those that they have.
    pub(super) fn replace(self, link: OwnedFd) -> Result<StructOps, Error> {
        let replacing = "replacing the registered congestion control by BPF_LINK_UPDATE";
        bpf::set_struct_ops(self.map.as_fd(), &self.value).map_err(Error::system(replacing))?;
        bpf::relink_struct_ops(link.as_fd(), self.map.as_fd()).map_err(Error::system(replacing))?;
        Ok(StructOps(Registration::Link(link)))
    }

    /// Registers it. The kernel refuses a name that is taken.
    pub(super) fn register(self) -> Result<StructOps, Error> {
        let registering = |source: io::Error| {
            if source.raw_os_error() == Some(libc::EEXIST) {
                Error::NameTaken(self.name.clone())
            } else {
                Error::system("registering the congestion control")(source)
            }
        };
        bpf::set_struct_ops(self.map.as_fd(), &self.value).map_err(registering)?;
        // Whatever registers holds the map, and the map the programs.
        drop(self.programs);
        if !self.linked {
            return Ok(StructOps(Registration::Map(self.map)));
        }
        let link = bpf::link_struct_ops(self.map.as_fd()).map_err(registering)?;
        Ok(StructOps(Registration::Link(link)))
    }
}

impl StructOps {
    /// The link that registers the name; `None` where it was registered without one.
    pub(super) fn link(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Registration::Link(link) => Some(link.as_fd()),
            Registration::Map(_) => None,
        }
    }

    /// Unregisters what a process that was killed had registered without a link.
    pub(super) fn unregister_leftover(name: &str) {
        for info in loaded_maps().flatten() {
            if info.name()
                == bpf::object_name(name)
                    .split(|&byte| byte == 0)
                    .next()
                    .unwrap_or(&[])
                && matches!(info.map_type(), Ok(MapType::StructOps))
                && let Ok(fd) = info.fd()
                && let Err(error) = bpf::unset_struct_ops(fd.as_fd())
                // Unregistered already, but flows still use its programs.
                && error.raw_os_error() != Some(libc::EINPROGRESS)
            {
                tracing::warn!("unregistering what a former agent left behind: {error}");
            }
        }
    }
}

impl Drop for StructOps {
    fn drop(&mut self) {
        if let Registration::Map(map) = &self.0
            && let Err(error) = bpf::unset_struct_ops(map.as_fd())
        {
            tracing::warn!("unregistering the congestion control: {error}");
        }
    }
}

fn relocate(bytes: &[u8], maps: &HashMap<String, RawFd>) -> Result<Object, Error> {
    let mut object = Object::parse(bytes).map_err(Error::aya("parsing the BPF object"))?;
    let text: HashSet<usize> = object
        .functions
        .keys()
        .map(|(section, _)| *section)
        .collect();
    let own = object.maps.clone();
    let bound = own
        .iter()
        .filter_map(|(name, map)| Some((name.as_str(), *maps.get(name)?, map)));
    object
        .relocate_maps(bound, &text)
        .map_err(Error::aya("relocating the BPF object's maps"))?;
    object
        .relocate_calls(&text)
        .map_err(Error::aya("relocating the BPF object's calls"))?;
    Ok(object)
}

fn instructions<'a>(object: &'a Object, program: &str) -> Result<&'a [bpf_insn], Error> {
    let function = object
        .programs
        .get(program)
        .and_then(|program| object.functions.get(&program.function_key()))
        .ok_or_else(|| no_program(program))?;
    Ok(&function.instructions)
}

impl Callback<'_> {
    fn load(&self, type_id: u32, member: u32) -> Result<OwnedFd, Error> {
        bpf::load_struct_ops_program(self.program, self.instructions, type_id, member).map_err(
            |Refused { source, log }| match source.raw_os_error() {
                Some(libc::EPERM) => {
                    Error::system(format!("loading the BPF program {}", self.program))(source)
                }
                _ => Error::Verifier {
                    program: self.program.into(),
                    source,
                    log,
                },
            },
        )
    }
}
