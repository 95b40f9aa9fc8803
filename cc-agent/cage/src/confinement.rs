//! What a policy's process gives up before it looks at the policy.
//!
//! Each part stands for itself. A part that the kernel lacks, or does not allow here, is named, and
//! the others are put in place all the same.

use std::{collections::BTreeMap, ffi::CStr, fs, io};

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus, Scope};
use nix::{
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::{SigHandler, Signal, signal},
    },
    unistd::{Gid, Uid, chdir, geteuid, setgroups, setresgid, setresuid},
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// The user and group that a process of root becomes: `nobody`, the kernel's overflow uid.
const NOBODY: u32 = 65_534;

/// The process's name in `ps` and in the kernel's messages.
const NAME: &CStr = c"cc-policy";

/// Confines this process for good. It must have one thread, and only the standard descriptors. From
/// now on it may take `memory` bytes more than it has. Returns the parts that could not be put in
/// place, with the reasons.
///
/// It ends with the thread `parent` of the process that started it.
#[must_use]
pub fn confine(memory: u64, parent: u32) -> Vec<String> {
    let mut lacking = Vec::new();
    let mut part = |name: &str, outcome: Result<(), String>| {
        if let Err(reason) = outcome {
            lacking.push(format!("{name} ({reason})"));
        }
    };
    let text = |error: nix::Error| error.desc().to_owned();
    let _ = prctl::set_name(NAME);
    // The agent ends it, by SIGKILL: a signal to all of a terminal or a service must not.
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: no handler is installed, the signal is ignored.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
    let _ = chdir("/");
    part(
        "an own set of descriptors",
        close_others().map_err(|e| e.to_string()),
    );
    // The first to go when the host runs out of memory.
    let first = fs::write("/proc/self/oom_score_adj", "1000");
    part("OOM score 1000", first.map_err(|error| error.to_string()));
    part("a memory limit", limit_memory(memory));
    for (name, resource) in [
        ("no core dumps", Resource::RLIMIT_CORE),
        ("no further processes", Resource::RLIMIT_NPROC),
        ("no locked memory", Resource::RLIMIT_MEMLOCK),
    ] {
        part(name, setrlimit(resource, 0, 0).map_err(text));
    }
    part("an unprivileged user", become_nobody());
    part(
        "no capabilities",
        drop_capabilities().map_err(|e| e.to_string()),
    );
    part("no new privileges", prctl::set_no_new_privs().map_err(text));
    // Both are reset by the change of the user, so they come after it.
    let undumpable = prctl::set_dumpable(false);
    part("no tracing", undumpable.map_err(text));
    part("an end with the agent", end_with(parent));
    part("Landlock", landlock());
    // Landlock needed a last descriptor.
    let closed = setrlimit(Resource::RLIMIT_NOFILE, 0, 0);
    part("no further descriptors", closed.map_err(text));
    part("seccomp", seccomp());
    lacking
}

/// Closes all descriptors but the standard ones, whatever the agent left open.
fn close_others() -> io::Result<()> {
    // SAFETY: the standard library owns no descriptor above 2 this early in the process.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Limits the address space to its present size and `memory` bytes.
fn limit_memory(memory: u64) -> Result<(), String> {
    let pages = fs::read_to_string("/proc/self/statm").map_err(|error| error.to_string())?;
    let pages: u64 = pages
        .split(' ')
        .next()
        .and_then(|pages| pages.parse().ok())
        .ok_or("unreadable /proc/self/statm")?;
    // SAFETY: has no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let present = pages * u64::try_from(page).unwrap_or(4_096);
    let text = |error: nix::Error| error.desc().to_owned();
    let (_, most) = getrlimit(Resource::RLIMIT_AS).map_err(text)?;
    let limit = (present + memory).min(most);
    setrlimit(Resource::RLIMIT_AS, limit, limit).map_err(text)
}

/// Gives root's identity up; any other user's stays.
fn become_nobody() -> Result<(), String> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let text = |error: nix::Error| error.desc().to_owned();
    // What bounds the capabilities of programs to come; there will be none, so a refusal is no
    // loss.
    const NONE: libc::c_ulong = 0;
    for capability in 0..libc::c_ulong::from(u64::BITS) {
        // SAFETY: has no pointers.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, NONE, NONE, NONE) } != 0 {
            break;
        }
    }
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[]).map_err(text)?;
    setresgid(gid, gid, gid).map_err(text)?;
    setresuid(uid, uid, uid).map_err(text)
}

/// Empties every set of capabilities.
fn drop_capabilities() -> io::Result<()> {
    // _LINUX_CAPABILITY_VERSION_3: two words for each of three sets.
    let header = [0x2008_0522u32, 0];
    let none = [0u32; 6];
    const NONE: libc::c_ulong = 0;
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong;
    // SAFETY: both arrays have the layouts of include/uapi/linux/capability.h, and outlive the
    // call.
    let emptied = unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, clear, NONE, NONE, NONE);
        libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr())
    };
    match emptied {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel kill this process when the thread that started it ends, and makes sure that it
/// has not ended before.
fn end_with(parent: u32) -> Result<(), String> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|error| error.desc().to_owned())?;
    if std::os::unix::process::parent_id() != parent {
        std::process::exit(1);
    }
    Ok(())
}

/// Takes away all access to files, to TCP, and to processes outside.
///
/// # Errors
///
/// Returns the reason why there is no Landlock.
pub fn landlock() -> Result<(), String> {
    let newest = ABI::V9;
    let restrict = || {
        Ruleset::default()
            .handle_access(AccessFs::from_all(newest))?
            .handle_access(AccessNet::from_all(newest))?
            .scope(Scope::from_all(newest))?
            .create()?
            .restrict_self()
    };
    match restrict().map_err(|error: landlock::RulesetError| error.to_string())? {
        status if status.ruleset == RulesetStatus::NotEnforced => {
            Err("the kernel does not have it".into())
        }
        // An older kernel controls fewer kinds of access.
        _ => Ok(()),
    }
}

/// Permits the system calls that computing and answering need. All others fail with EPERM.
///
/// They fail rather than kill, because a C library or an engine of another version may try a call
/// that it can do without.
///
/// # Errors
///
/// Returns the reason why the filter is not installed.
pub fn seccomp() -> Result<(), String> {
    let filter = filter().map_err(|error| error.to_string())?;
    seccompiler::apply_filter(&filter).map_err(|error| error.to_string())
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let rule = |argument, operator, value: u64| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
        SeccompRule::new(vec![condition])
    };
    let not_executable = || rule(2, MaskedEq(libc::PROT_EXEC as u64), 0);
    let own = u64::from(std::process::id());
    let mut rules = BTreeMap::from([
        // The socket; it and the log.
        (libc::SYS_read, vec![rule(0, Eq, 0)?]),
        (libc::SYS_write, vec![rule(0, Eq, 0)?, rule(0, Eq, 2)?]),
        // Memory, without code to be run from it.
        (libc::SYS_mmap, vec![not_executable()?]),
        (libc::SYS_mprotect, vec![not_executable()?]),
        // A process that aborts signals itself.
        (libc::SYS_tgkill, vec![rule(0, Eq, own)?]),
    ]);
    let whatever_the_arguments = [
        libc::SYS_brk,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_futex,
        libc::SYS_getpid,
        libc::SYS_getrandom,
        libc::SYS_gettid,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_nanosleep,
        libc::SYS_restart_syscall,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_getaffinity,
        libc::SYS_sched_yield,
        libc::SYS_sigaltstack,
    ];
    rules.extend(whatever_the_arguments.map(|call| (call, Vec::new())));
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_for_this_architecture() {
        assert!(!filter().expect("valid rules").is_empty());
    }
}
