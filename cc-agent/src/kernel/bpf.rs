//! The bpf(2) commands that aya does not offer: loading struct_ops programs, their map and its
//! link.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

// enum bpf_cmd, enum bpf_map_type, enum bpf_prog_type, enum bpf_attach_type
// (include/uapi/linux/bpf.h).
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_BTF_LOAD: libc::c_int = 18;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_UPDATE: libc::c_int = 29;
const BPF_PROG_TYPE_STRUCT_OPS: u32 = 27;
const BPF_MAP_TYPE_STRUCT_OPS: u32 = 26;
const BPF_STRUCT_OPS: u32 = 44;
const BPF_F_LINK: u32 = 1 << 13;

/// Length of a verifier log, enough for its verdict and the instructions before it.
const LOG_BYTES: usize = 1 << 20;

/// Names of maps and programs, NUL included.
const NAME_BYTES: usize = 16;

/// The `BPF_PROG_LOAD` part of `union bpf_attr`, as far as it is used.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; NAME_BYTES],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
}

/// The part of `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; NAME_BYTES],
    map_ifindex: u32,
    btf_fd: u32,
    btf_key_type_id: u32,
    btf_value_type_id: u32,
    btf_vmlinux_value_type_id: u32,
    map_extra: u64,
}

/// The part of `union bpf_attr` for `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
#[derive(Default)]
struct MapUpdate {
    map_fd: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The part of `union bpf_attr` for `BPF_MAP_DELETE_ELEM`.
#[repr(C)]
#[derive(Default)]
struct MapDelete {
    map_fd: u32,
    _padding: u32,
    key: u64,
}

/// The part of `union bpf_attr` for `BPF_BTF_LOAD`.
#[repr(C)]
#[derive(Default)]
struct BtfLoad {
    btf: u64,
    btf_log_buf: u64,
    btf_size: u32,
    btf_log_size: u32,
    btf_log_level: u32,
    /// Written by the kernel since Linux 6.4. Before, these bytes must be zero: no padding here.
    btf_log_true_size: u32,
}

/// The part of `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    map_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}

/// The part of `union bpf_attr` for `BPF_LINK_UPDATE`.
#[repr(C)]
#[derive(Default)]
struct LinkUpdate {
    link_fd: u32,
    new_map_fd: u32,
    flags: u32,
    old_map_fd: u32,
}

/// A program that the kernel refused: its answer and the verifier's log.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) source: io::Error,
    pub(super) log: String,
}

/// Loads a program for member number `member` of the structure with BTF id `type_id`.
pub(super) fn load_struct_ops_program(
    name: &str,
    instructions: &[aya_obj::generated::bpf_insn],
    type_id: u32,
    member: u32,
) -> Result<OwnedFd, Refused> {
    let license = c"GPL";
    let mut attributes = ProgLoad {
        prog_type: BPF_PROG_TYPE_STRUCT_OPS,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        prog_name: object_name(name),
        expected_attach_type: member,
        attach_btf_id: type_id,
        ..ProgLoad::default()
    };
    // SAFETY: instructions and licence outlive the call.
    let refused = match unsafe { command_fd(BPF_PROG_LOAD, &mut attributes) } {
        Ok(fd) => return Ok(fd),
        Err(error) => error,
    };
    // Only a refusal is worth the log: once more, with a place for it.
    let mut log = vec![0u8; LOG_BYTES];
    attributes.log_level = 1;
    attributes.log_size = log.len() as u32;
    attributes.log_buf = log.as_mut_ptr() as u64;
    // SAFETY: as above, and the log is as long as it says.
    match unsafe { command_fd(BPF_PROG_LOAD, &mut attributes) } {
        Ok(fd) => Ok(fd),
        Err(_) => {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            Err(Refused {
                source: refused,
                log: tail(&String::from_utf8_lossy(&log[..end]), 60),
            })
        }
    }
}

/// Creates a struct_ops map whose value is the wrapper with this BTF id and size. One that is
/// `linked` is registered by [`link_struct_ops`] (Linux 6.4), another by filling it.
pub(super) fn create_struct_ops_map(
    name: &str,
    wrapper_id: u32,
    wrapper_size: usize,
    linked: bool,
) -> io::Result<OwnedFd> {
    let btf = load_btf(&minimal_btf())?;
    let mut attributes = MapCreate {
        map_type: BPF_MAP_TYPE_STRUCT_OPS,
        key_size: 4,
        value_size: wrapper_size as u32,
        max_entries: 1,
        map_flags: if linked { BPF_F_LINK } else { 0 },
        map_name: object_name(name),
        btf_fd: btf.as_raw_fd() as u32,
        btf_vmlinux_value_type_id: wrapper_id,
        ..MapCreate::default()
    };
    // SAFETY: the attributes hold no pointers.
    unsafe { command_fd(BPF_MAP_CREATE, &mut attributes) }
}

/// Writes the value of the struct_ops map: the table of callbacks.
pub(super) fn set_struct_ops(map: BorrowedFd<'_>, value: &[u8]) -> io::Result<()> {
    let key = 0u32;
    let mut attributes = MapUpdate {
        map_fd: map.as_raw_fd() as u32,
        key: &raw const key as u64,
        value: value.as_ptr() as u64,
        ..MapUpdate::default()
    };
    // SAFETY: key and value outlive the call, and the value has the map's value size.
    unsafe { command(BPF_MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Empties the struct_ops map, which unregisters what was registered by filling it.
pub(super) fn unset_struct_ops(map: BorrowedFd<'_>) -> io::Result<()> {
    let key = 0u32;
    let mut attributes = MapDelete {
        map_fd: map.as_raw_fd() as u32,
        key: &raw const key as u64,
        ..MapDelete::default()
    };
    // SAFETY: the key outlives the call.
    unsafe { command(BPF_MAP_DELETE_ELEM, &mut attributes) }.map(drop)
}

/// Registers the structure. It stays registered until the link is closed.
pub(super) fn link_struct_ops(map: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate {
        map_fd: map.as_raw_fd() as u32,
        attach_type: BPF_STRUCT_OPS,
        ..LinkCreate::default()
    };
    // SAFETY: the attributes hold no pointers.
    unsafe { command_fd(BPF_LINK_CREATE, &mut attributes) }
}

/// Registers the structure in the place of the one that the link has registered, which must have
/// the same name. The name is never free meanwhile (`tcp_update_congestion_control`,
/// net/ipv4/tcp_cong.c, Linux 6.18).
///
/// The map must not be the one that the link has: the kernel would put it into its list twice.
pub(super) fn relink_struct_ops(link: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes = LinkUpdate {
        link_fd: link.as_raw_fd() as u32,
        new_map_fd: map.as_raw_fd() as u32,
        ..LinkUpdate::default()
    };
    // SAFETY: the attributes hold no pointers.
    unsafe { command(BPF_LINK_UPDATE, &mut attributes) }.map(drop)
}

fn load_btf(blob: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes = BtfLoad {
        btf: blob.as_ptr() as u64,
        btf_size: blob.len() as u32,
        ..BtfLoad::default()
    };
    // SAFETY: the blob outlives the call.
    unsafe { command_fd(BPF_BTF_LOAD, &mut attributes) }
}

/// BTF with a single 32-bit integer. A struct_ops map must have some BTF, though no type of it is
/// used (`map_create`, kernel/bpf/syscall.c).
fn minimal_btf() -> Vec<u8> {
    const HEADER: u32 = 24;
    let types: [u32; 4] = [
        1,            // name: "int"
        1 << 24,      // BTF_KIND_INT
        4,            // bytes
        1 << 24 | 32, // BTF_INT_SIGNED, 32 bits
    ];
    let strings = b"\0int\0";
    let mut blob = Vec::new();
    blob.extend(0xeb9f_u16.to_ne_bytes());
    blob.extend([1, 0]); // version, flags
    let type_bytes = size_of_val(&types) as u32;
    for word in [HEADER, 0, type_bytes, type_bytes, strings.len() as u32] {
        blob.extend(word.to_ne_bytes());
    }
    for word in types {
        blob.extend(word.to_ne_bytes());
    }
    blob.extend(strings);
    blob
}

/// The kernel takes 15 characters out of letters, digits, `_` and `.` (`bpf_obj_name_cpy`).
pub(super) fn object_name(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    for (to, from) in bytes.iter_mut().take(NAME_BYTES - 1).zip(name.bytes()) {
        *to = if from.is_ascii_alphanumeric() {
            from
        } else {
            b'_'
        };
    }
    bytes
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// # Safety
/// The attributes must be those of the command, and their pointers valid for it.
unsafe fn command<A>(command: libc::c_int, attributes: &mut A) -> io::Result<libc::c_long> {
    // SAFETY: the caller vouches for the attributes; their size goes with them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<A>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// # Safety
/// As for [`command`], for a command that returns a file descriptor.
unsafe fn command_fd<A>(number: libc::c_int, attributes: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the caller's; and the kernel has just made this descriptor for us.
    unsafe {
        let fd = command(number, attributes)?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_the_kernel_takes() {
        assert_eq!(&object_name("cc-agent x.y")[..13], b"cc_agent_x_y\0");
        assert_eq!(object_name("a_name_that_is_far_too_long")[15], 0);
    }

    #[test]
    fn the_log_keeps_its_verdict() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }

    #[test]
    fn the_minimal_btf_parses() {
        assert!(btf_rs::Btf::from_bytes(&minimal_btf()).is_ok());
    }
}
