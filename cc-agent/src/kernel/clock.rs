//! The clock that datapath and agent share.

use std::{fs, io, sync::OnceLock};

/// Where the offsets of a time namespace are shown (time_namespaces(7)); absent on kernels without
/// time namespaces.
const OFFSETS: &str = "/proc/self/timens_offsets";

/// Why the datapath's clock cannot be read here.
#[derive(Debug, thiserror::Error)]
#[error(
    "this process runs in a time namespace, and {OFFSETS} does not say how far its clock is from \
     the kernel's: {reason}; run the agent in the host's time namespace"
)]
pub struct ClockError {
    reason: String,
}

/// The time in ns on the clock that `bpf_ktime_get_ns` reads in the datapath: `CLOCK_MONOTONIC` of
/// the initial time namespace.
pub fn now_ns() -> u64 {
    static OFFSET_NS: OnceLock<i64> = OnceLock::new();
    // What cannot be read was reported by `check`.
    let offset_ns = *OFFSET_NS.get_or_init(|| offset_ns().unwrap_or(0));
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result. The call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    let here_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    here_ns.wrapping_add_signed(offset_ns.wrapping_neg())
}

/// Checks that [`now_ns`] is the datapath's clock. In a time namespace, such as a container's, it
/// is corrected by the namespace's offset.
///
/// # Errors
///
/// Returns an error when the offset is not known.
pub fn check() -> Result<(), ClockError> {
    match offset_ns()? {
        0 => {}
        offset_ns => tracing::info!(
            "this time namespace is {:.3} s from the kernel's clock, which is used instead",
            offset_ns as f64 / 1e9
        ),
    }
    Ok(())
}

/// How far the monotonic clock of this time namespace is ahead of the kernel's, ns.
fn offset_ns() -> Result<i64, ClockError> {
    let wrong = |reason: String| ClockError { reason };
    // The offsets shown are those of the namespace for children, which can be another one.
    let [own, children] = ["time", "time_for_children"]
        .map(|name| fs::read_link(format!("/proc/self/ns/{name}")).ok());
    if own != children {
        return Err(wrong("it shows those of another one".into()));
    }
    match fs::read_to_string(OFFSETS) {
        Ok(offsets) => {
            offset_of(MONOTONIC, &offsets).ok_or_else(|| wrong(format!("it holds {offsets:?}")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// How far the clock of the time since boot of this time namespace is ahead of the host's, ns.
/// /proc shows when processes were started on that clock.
pub(super) fn boottime_offset_ns() -> i64 {
    let offsets = fs::read_to_string(OFFSETS).ok();
    offsets
        .and_then(|offsets| offset_of(BOOTTIME, &offsets))
        .unwrap_or(0)
}

/// A clock's name in [`OFFSETS`], and its number, which older kernels show.
type Clock = [&'static str; 2];
const MONOTONIC: Clock = ["monotonic", "1"];
const BOOTTIME: Clock = ["boottime", "7"];

/// The offset of a clock in ns, in lines of a clock's name, seconds and nanoseconds.
fn offset_of(clock: Clock, offsets: &str) -> Option<i64> {
    offsets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (name, s, ns) = (words.next()?, words.next()?, words.next()?);
        let (s, ns): (i64, i64) = (s.parse().ok()?, ns.parse().ok()?);
        let offset = s.checked_mul(1_000_000_000)?.checked_add(ns);
        clock.contains(&name).then_some(offset)?
    })
}

/// Processor time that this process has used, s.
pub fn cpu_s() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result. The call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let offsets = "monotonic     1000000         7\nboottime            3         0\n";
        assert_eq!(offset_of(MONOTONIC, offsets), Some(1_000_000_000_000_007));
        assert_eq!(offset_of(BOOTTIME, offsets), Some(3_000_000_000));
        assert_eq!(
            offset_of(MONOTONIC, "1 -5 0\n7 0 0\n"),
            Some(-5_000_000_000)
        );
        assert_eq!(offset_of(MONOTONIC, "boottime 3 0\n"), None);
    }

    #[test]
    fn here_the_clock_is_the_datapaths() {
        check().expect("the offset is known");
        assert!(now_ns() > 0);
    }
}
