//! The running kernel's type information: where structure members lie, and what a
//! `tcp_congestion_ops` looks like here.

use std::{fs, path::Path};

use btf_rs::{Btf, BtfType, Type};
use cc_ebpf::{ABSENT, KernelLayout};

use super::Error;

/// Where kernels show their BTF.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// The types of the running kernel, as its BTF describes them.
pub struct Kernel {
    btf: Btf,
}

/// What is needed to register a `tcp_congestion_ops`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CongestionOps {
    /// BTF id of `struct tcp_congestion_ops`.
    pub(super) type_id: u32,
    /// BTF id of the kernel's wrapper, the value type of the struct_ops map.
    pub(super) wrapper_id: u32,
    /// Size of the wrapper in bytes.
    pub(super) wrapper_size: usize,
    /// Where the ops lie in the wrapper.
    pub(super) data_offset: usize,
    /// Name, index and byte offset of each member.
    pub(super) members: Vec<(String, u32, usize)>,
    /// Whether `cong_control` takes (sk, ack, flag, rs), since Linux 6.10, rather than (sk, rs).
    pub(super) wide_cong_control: bool,
    /// Whether a link registers it (Linux 6.4), so that it goes with the process.
    pub(super) links: bool,
}

impl CongestionOps {
    pub(super) fn member(&self, name: &str) -> Result<(u32, usize), Error> {
        self.members
            .iter()
            .find(|(member, ..)| member == name)
            .map(|&(_, index, offset)| (index, offset))
            .ok_or_else(|| Error::MissingMember {
                structure: "tcp_congestion_ops".into(),
                member: name.into(),
            })
    }
}

impl Kernel {
    /// Reads the running kernel's type information from [`VMLINUX`].
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoBtf`] when the kernel was built without BTF, or it cannot be read.
    pub fn running() -> Result<Self, Error> {
        Self::from_file(Path::new(VMLINUX))
    }

    /// Reads raw BTF from a file.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoBtf`] when the file cannot be read or is not BTF.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let no_btf = |reason: String| Error::NoBtf {
            path: path.display().to_string(),
            reason,
        };
        let bytes = fs::read(path).map_err(|error| no_btf(error.to_string()))?;
        let btf = Btf::from_bytes(&bytes).map_err(|error| no_btf(error.to_string()))?;
        Ok(Self { btf })
    }

    /// The offsets of the kernel's members that the datapath reads.
    ///
    /// # Errors
    ///
    /// Returns an error that names a member which this kernel lacks and the datapath needs.
    pub fn layout(&self) -> Result<KernelLayout, Error> {
        KernelLayout::resolve(|structure, member| match self.offset(structure, member) {
            Some(offset) => Ok(offset),
            None if KernelLayout::may_lack(member) => Ok(ABSENT),
            None => Err(Error::MissingMember {
                structure: structure.into(),
                member: member.into(),
            }),
        })
    }

    /// The BTF id of a function of that name; `None` where the kernel has none of its own.
    pub fn function_id(&self, name: &str) -> Option<u32> {
        let ids = self.btf.resolve_ids_by_name(name).ok()?;
        ids.into_iter()
            .find(|&id| matches!(self.btf.resolve_type_by_id(id), Ok(Type::Func(_))))
    }

    /// Whether it has a function of that name as one of its own, which can be traced.
    pub(super) fn has_function(&self, name: &str) -> bool {
        self.function_id(name).is_some()
    }

    /// Whether it has a typedef of that name.
    pub(super) fn has_typedef(&self, name: &str) -> bool {
        let types = self.btf.resolve_types_by_name(name).unwrap_or_default();
        types.iter().any(|found| matches!(found, Type::Typedef(_)))
    }

    /// Offset of a member by its path: bytes, or bits for a bit field. Anonymous structures are
    /// seen through, the first element stands for an array.
    pub(super) fn offset(&self, structure: &str, path: &str) -> Option<u32> {
        let candidates = self.btf.resolve_types_by_name(structure).ok()?;
        candidates.into_iter().find_map(|candidate| {
            let mut current = candidate;
            let mut bits = 0;
            let mut bit_field = false;
            for name in path.split('.') {
                let (offset, is_bit_field, member_type) = self.find(&current, name)?;
                bits += offset;
                bit_field = is_bit_field;
                current = member_type;
            }
            Some(if bit_field { bits } else { bits / 8 })
        })
    }

    /// Offset in bits, whether it is a bit field, and type of a member.
    fn find(&self, composite: &Type, name: &str) -> Option<(u32, bool, Type)> {
        let members = match composite {
            Type::Struct(inner) | Type::Union(inner) => &inner.members,
            _ => return None,
        };
        for member in members {
            let member_name = self.btf.resolve_name(member).unwrap_or_default();
            if member_name == name {
                let bit_field = member.bitfield_size().is_some_and(|size| size > 0);
                let member_type = self.strip(self.btf.resolve_chained_type(member).ok()?);
                return Some((member.bit_offset(), bit_field, member_type));
            }
            if member_name.is_empty() {
                let inner = self.strip(self.btf.resolve_chained_type(member).ok()?);
                if let Some((offset, bit_field, member_type)) = self.find(&inner, name) {
                    return Some((member.bit_offset() + offset, bit_field, member_type));
                }
            }
        }
        None
    }

    /// The structure behind qualifiers, typedefs and arrays.
    fn strip(&self, mut current: Type) -> Type {
        loop {
            let inner = match &current {
                Type::Array(array) => self.btf.resolve_chained_type(array),
                Type::Typedef(_) | Type::Const(_) | Type::Volatile(_) | Type::TypeTag(_) => {
                    match current.as_btf_type() {
                        Some(chained) => self.btf.resolve_chained_type(chained),
                        None => return current,
                    }
                }
                _ => return current,
            };
            match inner {
                Ok(inner) => current = inner,
                Err(_) => return current,
            }
        }
    }

    /// What `struct tcp_congestion_ops` looks like; an error where the kernel has no struct_ops for
    /// it.
    pub(super) fn congestion_ops(&self) -> Result<CongestionOps, Error> {
        let (type_id, ops) = self.structure("tcp_congestion_ops")?;
        let wrapper_name = "bpf_struct_ops_tcp_congestion_ops";
        let (wrapper_id, wrapper) = self.structure(wrapper_name)?;
        let data_offset = self
            .offset(wrapper_name, "data")
            .ok_or_else(|| Error::MissingMember {
                structure: wrapper_name.into(),
                member: "data".into(),
            })? as usize;
        let members = ops
            .members
            .iter()
            .enumerate()
            .map(|(index, member)| {
                let name = self.btf.resolve_name(member).unwrap_or_default();
                (name, index as u32, member.bit_offset() as usize / 8)
            })
            .collect();
        Ok(CongestionOps {
            type_id,
            wrapper_id,
            wrapper_size: wrapper.size(),
            data_offset,
            members,
            wide_cong_control: self.arity(&ops, "cong_control")? > 2,
            links: self.structure("bpf_struct_ops_link").is_ok(),
        })
    }

    fn structure(&self, name: &str) -> Result<(u32, btf_rs::Struct), Error> {
        let missing = || Error::MissingMember {
            structure: name.into(),
            member: "(the structure itself: CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT and CONFIG_INET)"
                .into(),
        };
        let ids = self.btf.resolve_ids_by_name(name).map_err(|_| missing())?;
        ids.into_iter()
            .find_map(|id| match self.btf.resolve_type_by_id(id) {
                Ok(Type::Struct(structure)) => Some((id, structure)),
                _ => None,
            })
            .ok_or_else(missing)
    }

    /// Number of parameters of a function-pointer member.
    fn arity(&self, ops: &btf_rs::Struct, name: &str) -> Result<usize, Error> {
        let missing = || Error::MissingMember {
            structure: "tcp_congestion_ops".into(),
            member: name.into(),
        };
        let member = ops
            .members
            .iter()
            .find(|member| {
                let member: &btf_rs::Member = member;
                self.btf
                    .resolve_name(member)
                    .is_ok_and(|found| found == name)
            })
            .ok_or_else(missing)?;
        let proto = self
            .btf
            .chained_type_iter(member as &dyn BtfType)
            .find_map(|t| match t {
                Type::FuncProto(proto) => Some(proto),
                _ => None,
            });
        Ok(proto.ok_or_else(missing)?.parameters.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_btf_is_named() {
        let error = Kernel::from_file(Path::new("/dev/null"))
            .err()
            .expect("empty");
        assert!(error.to_string().contains("/dev/null"), "{error}");
        let error = Kernel::from_file(Path::new("/nonexistent"))
            .err()
            .expect("missing");
        assert!(
            error.to_string().contains("CONFIG_DEBUG_INFO_BTF"),
            "{error}"
        );
    }

    #[test]
    fn the_running_kernel_has_what_the_datapath_reads() {
        if !Path::new(VMLINUX).exists() {
            eprintln!("SKIPPED: {VMLINUX} does not exist on this host");
            return;
        }
        let kernel = Kernel::running().expect("its BTF parses");
        let layout = kernel.layout().expect("it has every member");
        // sock_common starts a socket, and the ports lie behind the addresses (include/net/sock.h).
        assert_eq!((layout.remote_addr, layout.local_addr), (0, 4));
        assert_eq!(layout.remote_port + 2, layout.local_port);
        // Two consecutive fields of rate_sample, and a bit field in its byte.
        assert_eq!(layout.rs_acked_sacked, layout.rs_losses + 4);
        assert_eq!(layout.ca_state_bit % 8, 0);
        let ops = kernel.congestion_ops().expect("it has struct_ops");
        assert_eq!(ops.member("ssthresh").expect("a member"), (0, 0));
        assert!(ops.member("no_such").is_err());
        assert!(ops.wrapper_size > ops.data_offset);
    }
}
