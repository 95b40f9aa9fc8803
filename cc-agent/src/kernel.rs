//! The interface to the running kernel: its BTF, the loading of the BPF programs, the maps shared
//! with them, and the check of what a host must have.

mod bpf;
pub mod btf;
mod cgroup;
pub mod clock;
mod cookies;
pub mod datapath;
mod hook;
pub mod host;
mod inheritance;
mod namespaces;
mod object;
pub mod observer;
pub mod priority;
pub mod privileges;
mod process;
mod scope;
mod shared;
pub mod struct_ops;
pub mod sysctl;

pub use cgroup::{CgroupPaths, cgroup_id};
pub use datapath::{Datapath, Options};
pub use inheritance::Inheritance;
pub use object::object_sha256;
pub use observer::Observer;
pub use scope::Scope;

use std::{io, path::PathBuf};

/// Why the datapath or the observer could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This build carries no BPF object.
    #[error(
        "this cc-agent was built without the BPF object: build it with `cargo xtask build`, or \
         set CC_EBPF_OBJECT to a prebuilt object when building"
    )]
    NoObject,
    /// The kernel shows no type information.
    #[error(
        "cannot read the kernel's BTF at {path}: {reason}; the kernel must be built with \
         CONFIG_DEBUG_INFO_BTF=y (distribution kernels are)"
    )]
    NoBtf {
        /// Path of the BTF file.
        path: String,
        /// Why it cannot be read.
        reason: String,
    },
    /// The kernel lacks a structure member that the datapath needs.
    #[error(
        "this kernel has no {structure}.{member}, which the datapath needs; Linux 6.1 or newer is \
         required"
    )]
    MissingMember {
        /// Name of the kernel's structure, such as `tcp_sock`.
        structure: String,
        /// Path of the member in it.
        member: String,
    },
    /// The kernel's TCP cannot be traced.
    #[error(
        "flows of other congestion controls cannot be observed here: {reason}; root, or CAP_BPF \
         and CAP_PERFMON, is needed, and a kernel with CONFIG_TRACEPOINTS=y or CONFIG_KPROBES=y"
    )]
    NotTraceable {
        /// The kernel's feature or the privilege that is missing.
        reason: String,
    },
    /// The datapath's clock cannot be told.
    #[error(transparent)]
    Clock(#[from] clock::ClockError),
    /// Another congestion control has the name.
    #[error(
        "a congestion control named {0:?} is already registered: stop the agent that serves it, \
         or choose another with --name"
    )]
    NameTaken(String),
    /// The name cannot be a congestion control's.
    #[error(
        "{0:?} cannot name a congestion control: 1 to 15 characters out of a-z, A-Z, 0-9 and _ \
         are needed"
    )]
    BadName(String),
    /// The running agent's maps are laid out in another way.
    #[error(
        "the running agent's maps have layout {theirs}, this one's {}: it cannot be taken over \
         from. It goes on serving; end it and start this one without --takeover, which leaves its \
         open flows on the fallback",
        cc_ebpf::LAYOUT_VERSION
    )]
    Layout {
        /// The [`cc_ebpf::LAYOUT_VERSION`] of the running agent.
        theirs: u32,
    },
    /// The running agent was registered without a link.
    #[error(
        "a registered congestion control can be replaced only where a link has registered it: \
         Linux 6.4 or newer is needed"
    )]
    NoLink,
    /// What the running agent has handed over cannot be used.
    #[error(
        "what the running agent has handed over cannot be used: {0}. It goes on serving; end it \
         and start this one without --takeover"
    )]
    Inheritance(String),
    /// A cgroup is given twice.
    #[error("the cgroup {} is given twice: leave one of them out", .0.display())]
    CgroupTwice(PathBuf),
    /// The agent was not started to take cgroups by command.
    #[error(
        "this agent's cgroups are those that it was started with: start it with \
         --cgroups-by-command, which a successor with --takeover can do as well, or name them with \
         --cgroup"
    )]
    CgroupsFixed,
    /// Commands have named as many cgroups as an agent takes.
    #[error(
        "commands have named {0} cgroups already, which is the most: remove some, or name a \
             directory above them"
    )]
    CgroupsFull(usize),
    /// The verifier refused a program.
    #[error(
        "the kernel refused the BPF program {program}: {source}; `cc-agent check` says what this \
         host lacks. The verifier:\n{log}"
    )]
    Verifier {
        /// Name of the BPF program that was refused.
        program: String,
        /// The error that the kernel returned.
        source: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// A system call other than loading a program failed.
    #[error("{what}: {source}{}", hint(.source))]
    System {
        /// The action that failed, as a participle phrase.
        what: String,
        /// The error that the kernel returned.
        source: io::Error,
    },
    /// aya could not load the object or use a map.
    #[error("{what}: {reason}")]
    Aya {
        /// The action that failed, as a participle phrase.
        what: String,
        /// The message of the library that failed.
        reason: String,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }

    /// aya's errors print little; their sources say what happened.
    pub(crate) fn aya<E: std::error::Error + 'static>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |error| {
            let mut reason = String::new();
            let mut remedy = "";
            let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
            while let Some(error) = cause {
                let text = error.to_string();
                if !reason.contains(&text) {
                    let separator = if reason.is_empty() { "" } else { ": " };
                    reason.push_str(separator);
                    reason.push_str(&text);
                }
                if let Some(source) = error.downcast_ref::<io::Error>() {
                    remedy = hint(source);
                }
                cause = error.source();
            }
            reason.push_str(remedy);
            Self::Aya { what, reason }
        }
    }
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            " (root is needed, or CAP_BPF and CAP_PERFMON, and CAP_NET_ADMIN for --cgroup)"
        }
        _ => "",
    }
}
