//! Whether the host kept up with the link that it emulated.

use std::{fs::File, io, os::unix::fs::FileExt, time::Duration};

use hdrhistogram::Histogram;

use super::{LinkObservation, Way};
use cc_sim::scenario::{Direction, MTU, Scenario};

/// Distribution of the lateness of deliveries: the time from when a packet was due until it was
/// written.
#[derive(Clone, Debug)]
pub struct Lateness {
    /// Lateness in ns; early deliveries count as 0.
    histogram: Histogram<u64>,
    /// Sum of the signed latenesses, ns.
    sum: i128,
}

impl Lateness {
    pub(crate) fn new() -> Self {
        Self {
            histogram: Histogram::new(3).expect("3 digits are allowed"),
            sum: 0,
        }
    }

    /// Records a delivery that was due at `due` and written at `written`, both in ns.
    pub(super) fn record(&mut self, due: u64, written: u64) {
        self.histogram
            .record(written.saturating_sub(due))
            .expect("it grows as needed");
        self.sum += i128::from(written) - i128::from(due);
    }

    /// Number of deliveries that were recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The lateness that a fraction `quantile` (0 to 1) of the deliveries did not exceed, accurate
    /// to three digits.
    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.histogram.value_at_quantile(quantile))
    }

    /// Lateness of the latest delivery, relative to its due time.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.histogram.max())
    }

    /// Mean lateness, ns; negative when deliveries were early on average.
    pub fn mean_ns(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            count => self.sum as f64 / count as f64,
        }
    }
}

/// Processor use of a thread: `/proc/PID/schedstat` (Documentation/scheduler/sched-stats.rst of the
/// kernel).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contention {
    /// Time that the thread ran.
    pub ran: Duration,
    /// Time that the thread was runnable but waited for a processor.
    pub waited: Duration,
}

impl Contention {
    /// Processor use of the calling thread since it began.
    ///
    /// # Errors
    ///
    /// Returns an error where the kernel keeps no such figures (`CONFIG_SCHED_INFO`).
    pub fn this_thread() -> io::Result<Self> {
        ContentionMeter::of_this_thread()?.read()
    }

    /// The difference to a reading made `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(earlier.ran),
            waited: self.waited.saturating_sub(earlier.waited),
        }
    }

    /// Fraction of the time it was runnable that the thread waited for a processor, 0 to 1.
    pub fn share(self) -> f64 {
        let wanted = self.ran + self.waited;
        match wanted.is_zero() {
            true => 0.0,
            false => self.waited.as_secs_f64() / wanted.as_secs_f64(),
        }
    }
}

/// Reads the [`Contention`] of the thread that created it, also from other threads.
#[derive(Debug)]
pub(super) struct ContentionMeter {
    file: File,
}

impl ContentionMeter {
    pub(super) fn of_this_thread() -> io::Result<Self> {
        // SAFETY: gettid has no arguments and cannot fail.
        let thread = unsafe { libc::gettid() };
        let file = File::open(format!("/proc/self/task/{thread}/schedstat"))?;
        Ok(Self { file })
    }

    pub(super) fn read(&self) -> io::Result<Contention> {
        let mut text = [0; 96];
        let length = self.file.read_at(&mut text, 0)?;
        parse(&text[..length]).ok_or_else(|| io::Error::other("schedstat holds no two numbers"))
    }
}

/// Parses schedstat: ns on a processor, ns waiting for one, and further fields that are ignored.
fn parse(text: &[u8]) -> Option<Contention> {
    let mut fields = str::from_utf8(text).ok()?.split_ascii_whitespace();
    let mut field = || Some(Duration::from_nanos(fields.next()?.parse().ok()?));
    Some(Contention {
        ran: field()?,
        waited: field()?,
    })
}

/// Disturbance that a run may suffer and still be valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Limit of the 99.9th percentile of the lateness in the forward direction.
    pub forward: Duration,
    /// Limit of the 99.9th percentile of the lateness in the reverse direction.
    pub reverse: Duration,
    /// Limit of the time that a thread waits for a processor, as a fraction of the run's duration.
    pub waiting: f64,
}

/// Limit of the lateness on links that send a packet within half of this time.
const LATE: Duration = Duration::from_millis(2);
/// Limit of the lateness on slower links, in packets: their own granularity is coarser.
const LATE_PACKETS: f64 = 2.0;

impl Default for Limits {
    /// The limits for a link that sends a packet within 1 ms.
    fn default() -> Self {
        Self {
            forward: LATE,
            reverse: LATE,
            waiting: 0.05,
        }
    }
}

impl Limits {
    /// The limits for the link of a scenario.
    pub fn of(scenario: &Scenario) -> Self {
        let lateness = |way: &Direction| {
            let rate = way
                .service
                .mean_bits_per_second()
                .filter(|&rate| rate > 0.0);
            let packet = rate.map_or(0.0, |rate| f64::from(MTU) * 8.0 / rate);
            LATE.max(Duration::try_from_secs_f64(LATE_PACKETS * packet).unwrap_or(LATE))
        };
        Self {
            forward: lateness(&scenario.forward),
            reverse: lateness(&scenario.reverse),
            ..Self::default()
        }
    }
}

/// An effect of the host that makes the figures of a run doubtful.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Disturbance {
    /// Deliveries were written later than allowed.
    #[error(
        "1 in 1000 packets was delivered {:.3} ms late or more ({way}; limit {:.3} ms): the host \
         was too busy",
        .lateness.as_secs_f64() * 1e3, .limit.as_secs_f64() * 1e3
    )]
    Late {
        /// Direction of the late packets.
        way: Way,
        /// 99.9th percentile of the lateness.
        lateness: Duration,
        /// Limit that the lateness exceeds.
        limit: Duration,
    },
    /// The TUN device dropped packets before the emulator read them.
    #[error(
        "{packets} packets were lost in the TUN device before the emulator saw them ({way}): the \
         host was too busy"
    )]
    RingDrops {
        /// Direction of the dropped packets.
        way: Way,
        /// Number of packets that were dropped.
        packets: u64,
    },
    /// The kernel refused packets that the emulator wrote.
    #[error("{packets} packets were not taken back by the kernel ({way})")]
    Refused {
        /// Direction of the refused packets.
        way: Way,
        /// Number of packets that were refused.
        packets: u64,
    },
    /// A thread waited too long for a processor.
    #[error(
        "{thread} waited {:.1} % of the time for a processor (limit {:.1} %): the host was too \
         busy",
        .share * 100.0, .limit * 100.0
    )]
    Waiting {
        /// The thread, as a subject of the message.
        thread: String,
        /// Waiting time as a fraction of the run's duration.
        share: f64,
        /// Limit that this fraction exceeds.
        limit: f64,
    },
}

impl Limits {
    /// All respects in which an observation exceeds the limits; empty for a valid run.
    pub fn disturbances(&self, observation: &LinkObservation) -> Vec<Disturbance> {
        let mut found = Vec::new();
        let LinkObservation {
            path,
            forward,
            reverse,
        } = observation;
        for (way, observed, elapsed, limit) in [
            (Way::Forward, forward, path.forward.elapsed, self.forward),
            (Way::Reverse, reverse, path.reverse.elapsed, self.reverse),
        ] {
            let lateness = observed.lateness.quantile(0.999);
            if lateness > limit {
                found.push(Disturbance::Late {
                    way,
                    lateness,
                    limit,
                });
            }
            if observed.ring_drops > 0 {
                found.push(Disturbance::RingDrops {
                    way,
                    packets: observed.ring_drops,
                });
            }
            if observed.refused > 0 {
                found.push(Disturbance::Refused {
                    way,
                    packets: observed.refused,
                });
            }
            let thread = format!("the emulator's {way} thread");
            found.extend(self.waiting(thread, observed.contention, elapsed));
        }
        found
    }

    /// The disturbance of a thread that waited too long for a processor in a run of length
    /// `elapsed`, if it did.
    pub fn waiting(
        &self,
        thread: impl Into<String>,
        contention: Contention,
        elapsed: Duration,
    ) -> Option<Disturbance> {
        if elapsed.is_zero() {
            return None;
        }
        let share = contention.waited.as_secs_f64() / elapsed.as_secs_f64();
        (share > self.waiting).then(|| Disturbance::Waiting {
            thread: thread.into(),
            share,
            limit: self.waiting,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use cc_sim::scenario;

    #[test]
    fn lateness_counts_early_as_punctual_but_its_mean_is_signed() {
        let mut lateness = Lateness::new();
        lateness.record(1_000, 900);
        lateness.record(1_000, 1_300);
        assert_eq!(lateness.count(), 2);
        assert_eq!(lateness.quantile(0.5), Duration::ZERO);
        assert_eq!(lateness.max(), Duration::from_nanos(300));
        assert_eq!(lateness.mean_ns(), 100.0);
    }

    #[test]
    fn contention_is_read_from_the_kernels_text() {
        let ms = Duration::from_millis;
        assert_eq!(
            parse(b"3000000 1000000 7\n"),
            Some(Contention {
                ran: ms(3),
                waited: ms(1)
            })
        );
        assert_eq!(parse(b"3000000\n"), None);
        assert_eq!(parse(b"x y z\n"), None);
        let later = Contention {
            ran: ms(6),
            waited: ms(2),
        };
        let between = later.since(Contention {
            ran: ms(3),
            waited: ms(1),
        });
        assert_eq!(between.share(), 0.25);
    }

    #[test]
    fn the_running_time_of_a_busy_thread_increases() {
        let before = Contention::this_thread().expect("Linux keeps it");
        let start = Instant::now();
        while Contention::this_thread().expect("Linux keeps it").ran == before.ran {
            assert!(start.elapsed() < Duration::from_secs(60), "{before:?}");
            std::hint::spin_loop();
        }
    }

    fn link(mbps: &str) -> Scenario {
        let text = format!("[[scenario]]\nname = \"x\"\nrate_mbps = {mbps}\ndelay_ms = 10\n");
        let mut scenarios = scenario::parse(&text, "x.toml".as_ref()).expect("well-formed");
        scenarios.remove(0)
    }

    #[test]
    fn slow_links_may_be_late_by_two_packets() {
        for (mbps, ms) in [("inf", 2), ("100", 2), ("12", 2), ("3", 8), ("0.12", 200)] {
            let limits = Limits::of(&link(mbps));
            let expected = Duration::from_millis(ms);
            assert_eq!(
                (limits.forward, limits.reverse),
                (expected, expected),
                "{mbps}"
            );
        }
    }

    #[test]
    fn waiting_is_a_share_of_the_runs_time() {
        let limits = Limits::of(&link("12"));
        let second = Duration::from_secs(1);
        let waited = |ms| Contention {
            ran: second,
            waited: Duration::from_millis(ms),
        };
        assert_eq!(limits.waiting("t", waited(49), second), None);
        assert!(limits.waiting("t", waited(51), second).is_some());
        assert_eq!(limits.waiting("t", waited(51), Duration::ZERO), None);
    }
}
