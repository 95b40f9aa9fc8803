//! The capabilities of this process (capabilities(7)), and giving them up.
//!
//! Capabilities belong to threads: a thread gives up its own, and threads that it starts later have
//! no more than it has then.

use std::{fmt, fs, io};

// Numbers from include/uapi/linux/capability.h.
const KILL: u32 = 5;
const SETGID: u32 = 6;
const SETUID: u32 = 7;
const NET_ADMIN: u32 = 12;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// Names of capabilities by their numbers, without `CAP_`.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// A set of capabilities, as a mask of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// The set without any capability.
    pub const NONE: Self = Self(0);
    /// Every capability that this version knows.
    pub const ALL: Self = Self((1 << NAMES.len()) - 1);
    /// CAP_BPF: to load programs and create maps.
    pub const BPF: Self = Self(1 << BPF);
    /// CAP_PERFMON: for programs that read kernel memory.
    pub const PERFMON: Self = Self(1 << PERFMON);
    /// CAP_NET_ADMIN: to set the default congestion control, and for programs of cgroups.
    pub const NET_ADMIN: Self = Self(1 << NET_ADMIN);
    /// CAP_SYS_ADMIN: to find the maps of a former agent, and to enter network namespaces.
    pub const SYS_ADMIN: Self = Self(1 << SYS_ADMIN);
    /// CAP_SYS_PTRACE: to see the network namespaces of processes with other privileges.
    pub const SYS_PTRACE: Self = Self(1 << SYS_PTRACE);

    /// CAP_KILL, CAP_SETGID and CAP_SETUID: for policies' processes to become another user, and to
    /// end them then. CAP_SYS_NICE: for them to have the agent's priority.
    pub const CAGE: Self = Self(1 << KILL | 1 << SETGID | 1 << SETUID | 1 << SYS_NICE);

    /// The set whose bits these are, as `CapEff` in /proc/PID/status has them.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The capabilities of either set.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the sets have a capability in common.
    pub const fn has_any_of(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// The effective capabilities of this thread; `None` where /proc does not show them.
    pub fn held() -> Option<Self> {
        parse_effective(&fs::read_to_string("/proc/thread-self/status").ok()?)
    }
}

/// The names, as in `CAP_NET_ADMIN and CAP_SYS_ADMIN`.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = (0..u64::BITS).filter(|number| self.0 & (1 << number) != 0);
        let names: Vec<String> = held
            .map(|number| match NAMES.get(number as usize) {
                Some(name) => format!("CAP_{name}"),
                None => format!("capability {number}"),
            })
            .collect();
        match names.as_slice() {
            [] => write!(f, "none"),
            [name] => write!(f, "{name}"),
            all if all.len() == NAMES.len() => write!(f, "all"),
            [first @ .., last] => write!(f, "{} and {last}", first.join(", ")),
        }
    }
}

/// The `CapEff` line of /proc/PID/status.
pub(super) fn parse_effective(status: &str) -> Option<Capabilities> {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("CapEff:"))?;
    let bits = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(Capabilities(bits))
}

/// Makes this thread, and those that it starts later, give up every capability but those of `keep`
/// that it has, and the ways to get others: it cannot gain any by executing a program
/// (PR_SET_NO_NEW_PRIVS).
///
/// # Errors
///
/// Returns an error when the kernel refuses the change.
pub fn keep_only(keep: Capabilities) -> io::Result<()> {
    // SAFETY: these operations of prctl take numbers only.
    let prctl = |operation, argument: u32| unsafe {
        libc::prctl(operation, libc::c_ulong::from(argument), 0, 0, 0)
    };
    if prctl(libc::PR_SET_NO_NEW_PRIVS, 1) != 0 {
        return Err(io::Error::last_os_error());
    }
    for number in 0..NAMES.len() as u32 {
        if keep.0 & (1 << number) == 0 {
            // Without CAP_SETPCAP, or on a kernel that knows fewer, the bounding set stays; with no
            // new privileges it grants nothing.
            let _ = prctl(libc::PR_CAPBSET_DROP, number);
        }
    }
    let held = sets()?.map(|set| set.permitted);
    let held = u64::from(held[0]) | u64::from(held[1]) << 32;
    let kept = held & keep.0;
    let halves = [kept as u32, (kept >> 32) as u32];
    // Ambient capabilities go with the inheritable ones.
    set(halves.map(|half| Sets {
        effective: half,
        permitted: half,
        inheritable: 0,
    }))
}

/// `struct __user_cap_header_struct` (include/uapi/linux/capability.h).
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`: 32 capabilities of each set.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// This thread, with sets of 64 capabilities.
const HEADER: Header = Header {
    version: 0x2008_0522,
    pid: 0,
};

fn sets() -> io::Result<[Sets; 2]> {
    let mut sets = [Sets::default(); 2];
    let mut header = HEADER;
    // SAFETY: header and sets are as this version of the call has them.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    match result {
        0 => Ok(sets),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(sets: [Sets; 2]) -> io::Result<()> {
    let mut header = HEADER;
    // SAFETY: as above.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_gives_up_what_it_does_not_keep() {
        let before = Capabilities::held().expect("/proc is mounted");
        let during = thread::spawn(|| {
            keep_only(Capabilities::NET_ADMIN).expect("giving up is always allowed");
            let later = thread::spawn(|| Capabilities::held().expect("/proc is mounted"));
            later.join().expect("does not panic")
        });
        let during = during.join().expect("does not panic");
        assert_eq!(during.0, before.0 & Capabilities::NET_ADMIN.0);
        assert_eq!(Capabilities::held(), Some(before), "of other threads");
    }

    #[test]
    fn sets_are_written_as_names() {
        assert_eq!(Capabilities::NONE.to_string(), "none");
        let two = Capabilities::SYS_ADMIN.with(Capabilities::NET_ADMIN);
        assert_eq!(two.to_string(), "CAP_NET_ADMIN and CAP_SYS_ADMIN");
        assert_eq!(Capabilities(1 << 41).to_string(), "capability 41");
        assert_eq!(Capabilities::ALL.to_string(), "all");
    }

    #[test]
    fn capabilities_are_read_from_the_status_file() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001fffeffffff\n";
        assert_eq!(parse_effective(status), Some(Capabilities(0x1ff_feff_ffff)));
        assert_eq!(parse_effective("Name:\tx\n"), None);
        assert_eq!(parse_effective("CapEff:\tx\n"), None);
    }
}
