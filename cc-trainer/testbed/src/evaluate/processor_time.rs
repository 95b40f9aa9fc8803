//! Processor time that programs other than this one use during a run, on the processors that this
//! one may use: all of them, unless `taskset` or a control group reserves some for it.

use std::{fs, io, time::Duration};

use nix::sched::sched_getaffinity;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::{TimeVal, TimeValLike},
};
use nix::unistd::Pid;

/// Processor time used by all programs on this one's processors, and by this one, since a fixed
/// point in the past.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessorTime {
    all: Duration,
    own: Duration,
}

impl ProcessorTime {
    /// Reads the processor times up to now.
    ///
    /// # Errors
    ///
    /// Returns an error when `/proc/stat` cannot be read or lacks the line of a processor.
    pub(super) fn now() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        // SAFETY: sysconf takes an integer only, and any value is allowed.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        let own = sched_getaffinity(Pid::from_raw(0))?;
        let is_own = |number| own.is_set(number).unwrap_or(false);
        let all = in_programs(&text, is_own).filter(|_| ticks > 0);
        let all = all.ok_or_else(|| {
            io::Error::other("/proc/stat has no line of this program's processors")
        })?;
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let microseconds = |time: TimeVal| time.num_microseconds().max(0) as u64;
        let own = microseconds(usage.user_time()) + microseconds(usage.system_time());
        Ok(Self {
            all: Duration::from_secs_f64(all as f64 / ticks as f64),
            own: Duration::from_micros(own),
        })
    }

    /// Mean number of processors that other programs used since `earlier`, which was read `elapsed`
    /// ago; 0 when no time has passed.
    pub(super) fn others_since(self, earlier: Self, elapsed: Duration) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        let others = all.saturating_sub(self.own.saturating_sub(earlier.own));
        match elapsed.is_zero() {
            true => 0.0,
            false => others.as_secs_f64() / elapsed.as_secs_f64(),
        }
    }
}

/// Clock ticks that the processors with these numbers spent in programs and in system calls: user,
/// nice and system time (proc_stat(5)). Interrupts are excluded, because those of the emulated link
/// would count as load of other programs. `None` when there is no such processor, or a line of one
/// cannot be read.
fn in_programs(stat: &str, counts: impl Fn(usize) -> bool) -> Option<u64> {
    let processors = stat.lines().filter_map(|line| {
        let (number, times) = line.strip_prefix("cpu")?.split_once(' ')?;
        counts(number.parse().ok()?).then_some(times)
    });
    let time = |times: &str| {
        let mut fields = times.split_ascii_whitespace();
        let mut field = || fields.next()?.parse::<u64>().ok();
        Some(field()? + field()? + field()?)
    };
    let times: Vec<u64> = processors.map(time).collect::<Option<_>>()?;
    (!times.is_empty()).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_programs_is_user_nice_and_system_time_of_the_own_processors() {
        let stat = "cpu  11 22 33 400 5 6 7 8 9 0\ncpu0 1 2 3 4\ncpu1 10 20 30 40\nctxt 5\n";
        assert_eq!(in_programs(stat, |_| true), Some(66));
        assert_eq!(in_programs(stat, |number| number == 1), Some(60));
        assert_eq!(in_programs(stat, |number| number == 2), None);
        assert_eq!(in_programs("cpu  1 2 3 4\n", |_| true), None);
        assert_eq!(in_programs("cpu0 1 x 3\n", |_| true), None);
    }

    #[test]
    fn own_processor_time_does_not_count_as_that_of_others() {
        let at = |all, own| ProcessorTime {
            all: Duration::from_secs(all),
            own: Duration::from_secs(own),
        };
        let ten = Duration::from_secs(10);
        assert_eq!(at(125, 12).others_since(at(100, 7), ten), 2.0);
        assert_eq!(at(104, 12).others_since(at(100, 7), ten), 0.0);
        assert_eq!(at(104, 12).others_since(at(100, 7), Duration::ZERO), 0.0);
    }

    #[test]
    fn processor_times_can_be_read_and_never_decrease() {
        let before = ProcessorTime::now().expect("Linux has /proc/stat");
        let after = ProcessorTime::now().expect("Linux has /proc/stat");
        assert!(after.all >= before.all && after.own >= before.own);
    }
}
