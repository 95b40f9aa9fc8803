//! Processes, told apart from later ones that got the same id.

use std::{fs, os::unix::fs::MetadataExt};

use serde::{Deserialize, Serialize};

use super::clock;

/// A process, told apart from later ones with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pid: u32,
    /// When it was started, in clock ticks since boot, in whatever time namespace.
    started: u64,
    /// The inode number of the PID namespace that has given it the id.
    namespace: u64,
}

impl Process {
    /// This process; `None` where /proc does not show it.
    pub(super) fn current() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// The process that has this id in this PID namespace now, and has not ended.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let offset = clock::boottime_offset_ns() / tick_ns();
        Some(Self {
            pid,
            started: started(&stat)?.wrapping_add_signed(-offset),
            namespace: namespace()?,
        })
    }

    /// Whether it still runs; `None` for a process of another PID namespace.
    pub(super) fn lives(&self) -> Option<bool> {
        let is_here = namespace() == Some(self.namespace);
        // Offsets of time namespaces need not be whole ticks.
        let is_it = |found: Self| found.started.abs_diff(self.started) <= 1;
        is_here.then(|| Self::of(self.pid).is_some_and(is_it))
    }

    /// An earlier process that had this id.
    #[cfg(test)]
    pub(super) fn before(self) -> Self {
        Self {
            started: self.started.saturating_sub(2),
            ..self
        }
    }

    /// How long ago it was started, ns.
    pub(super) fn age_ns(&self) -> u64 {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `now` is a valid place for the result. The call cannot fail for this clock, which
        // is the one that start times are shown on (proc_pid_stat(5)).
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
        let now_ns = now.tv_sec * 1_000_000_000 + now.tv_nsec - clock::boottime_offset_ns();
        let age_ns = now_ns - self.started as i64 * tick_ns();
        u64::try_from(age_ns).unwrap_or(0)
    }
}

/// The length of a clock tick, ns.
fn tick_ns() -> i64 {
    // SAFETY: has no pointers.
    1_000_000_000 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1)
}

/// The inode number of this process's PID namespace.
fn namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid")
        .ok()
        .map(|found| found.ino())
}

/// The start time in a /proc/PID/stat; `None` for a process that has ended and was not waited for.
fn started(stat: &str) -> Option<u64> {
    // The name, in parentheses, may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // Field 22 of proc_pid_stat(5); the state was field 3.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_lives_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
        let process = Process::of(child.id()).expect("it runs");
        assert_eq!(process.lives(), Some(true));
        assert!(process.age_ns() < 3_600_000_000_000);
        child.kill().expect("our child");
        // Also before it is waited for.
        while process.lives() == Some(true) {
            std::thread::yield_now();
        }
        child.wait().expect("our child");
        assert_eq!(process.lives(), Some(false));
    }

    #[test]
    fn another_process_with_its_id_is_another() {
        let current = Process::current().expect("/proc is mounted");
        assert_eq!(current.lives(), Some(true));
        assert_eq!(current.before().lives(), Some(false));
        let elsewhere = Process {
            namespace: 1,
            ..current
        };
        assert_eq!(elsewhere.lives(), None);
    }

    #[test]
    fn names_may_look_like_fields() {
        let numbers: Vec<String> = (4..=30).map(|field| field.to_string()).collect();
        let stat = |state: &str| format!("1 (a) S 9 9) {state} {}", numbers.join(" "));
        assert_eq!(started(&stat("S")), Some(22));
        assert_eq!(started(&stat("Z")), None);
    }
}
