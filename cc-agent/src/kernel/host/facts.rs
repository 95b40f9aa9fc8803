//! What there is to know about a host before the datapath is loaded.

use std::{fs, path::Path};

use aya::{maps::MapType, sys::is_map_supported};
use cc_ebpf::KernelLayout;

use crate::kernel::{btf::Kernel, cgroup, datapath, observer, privileges::Capabilities};

/// The name that agents serve unless told otherwise.
pub(super) const NAME: &str = "rlcc";

/// The properties of this host that BPF and TCP depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The kernel's release, such as `6.18.1`.
    pub release: Option<String>,
    /// What its BTF says, or why there is none.
    pub types: Result<KernelTypes, String>,
    /// The effective capabilities of this process.
    pub capabilities: Option<Capabilities>,
    /// Whether a ring buffer could be created, or the errno of bpf(2).
    pub ring_buffer: Result<bool, i32>,
    /// The sysctl `net.core.bpf_jit_enable`: 0 interprets BPF programs.
    pub jit: Option<u32>,
    /// Where cgroup v2 is mounted.
    pub cgroups: Option<String>,
    /// The sysctl `net.core.default_qdisc`, which new devices get.
    pub qdisc: Option<String>,
    /// Whether this build carries the BPF object.
    pub has_object: bool,
    /// Whether a congestion control of the usual name is registered.
    pub name_taken: bool,
}

/// What the kernel's BTF says about what the datapath needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTypes {
    /// Whether a BPF program can be a congestion control, or what is missing for it.
    pub congestion_ops: Result<(), String>,
    /// Whether a struct_ops can be registered by a link.
    pub links: bool,
    /// How ACKs of any congestion control can be observed, or what is missing for that.
    pub observable: Result<observer::Way, String>,
    /// Members that the datapath reads and this kernel lacks, as `structure.member`.
    pub missing: Vec<String>,
}

impl Facts {
    /// Looks at this host. What cannot be read is left open.
    pub fn gather() -> Self {
        Self {
            release: read("/proc/sys/kernel/osrelease"),
            types: Kernel::running()
                .map(|kernel| KernelTypes::of(&kernel))
                .map_err(|error| error.to_string()),
            capabilities: Capabilities::held(),
            ring_buffer: make_ring_buffer(),
            jit: read("/proc/sys/net/core/bpf_jit_enable").and_then(|level| level.parse().ok()),
            cgroups: cgroup::mount(),
            qdisc: read("/proc/sys/net/core/default_qdisc"),
            has_object: datapath::has_object(),
            name_taken: datapath::registered(NAME),
        }
    }
}

impl KernelTypes {
    /// The facts that follow from the kernel's types.
    pub fn of(kernel: &Kernel) -> Self {
        let is_missing = |&&(structure, member): &&(&str, &str)| {
            !KernelLayout::may_lack(member) && kernel.offset(structure, member).is_none()
        };
        let missing = KernelLayout::MEMBERS.iter().filter(is_missing);
        Self {
            congestion_ops: kernel
                .congestion_ops()
                .map(drop)
                .map_err(|error| error.to_string()),
            // The kernel's own type for them (kernel/bpf/bpf_struct_ops.c), since Linux 6.4.
            links: kernel.offset("bpf_struct_ops_link", "link").is_some(),
            observable: observer::possible_way(kernel),
            missing: missing
                .map(|(structure, member)| format!("{structure}.{member}"))
                .collect(),
        }
    }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// Creates a small ring buffer and drops it.
fn make_ring_buffer() -> Result<bool, i32> {
    is_map_supported(MapType::RingBuf)
        .map_err(|error| error.io_error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::btf::VMLINUX;

    #[test]
    fn the_running_kernel_lacks_nothing_where_the_datapath_loads() {
        if !Path::new(VMLINUX).exists() {
            eprintln!("SKIPPED: {VMLINUX} does not exist on this host");
            return;
        }
        let kernel = Kernel::running().expect("its BTF parses");
        let types = KernelTypes::of(&kernel);
        assert_eq!(
            types.missing.is_empty(),
            kernel.layout().is_ok(),
            "{types:?}"
        );
        assert_eq!(
            types.congestion_ops.is_ok(),
            kernel.congestion_ops().is_ok()
        );
    }
}
