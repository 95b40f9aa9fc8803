//! The output of `cc-trainer link`: a line per second, and a summary.

use std::{
    fmt::Write as _,
    io::{self, Write},
    time::{Duration, Instant},
};

use cc_sim::path::DirectionObservation;
use cc_sim::scenario::{Direction, Scenario};
use cc_testbed::link::LinkObservation;

/// Time between two lines of output.
const PERIOD: Duration = Duration::from_secs(1);
/// Number of lines between two headings.
const PAGE: u32 = 20;

/// Prints a line per second about a running link.
pub(super) struct Live<'a> {
    scenario: &'a Scenario,
    start: Instant,
    lines: u32,
    last: Option<LinkObservation>,
}

impl<'a> Live<'a> {
    pub(super) fn new(scenario: &'a Scenario, start: Instant) -> Self {
        Self {
            scenario,
            start,
            lines: 0,
            last: None,
        }
    }

    /// Returns the time until the next line is due.
    pub(super) fn until_next(&self) -> Duration {
        let due = self.start + PERIOD * (self.lines + 1);
        due.saturating_duration_since(Instant::now())
    }

    /// Prints the next line, from the link's counters.
    pub(super) fn show(&mut self, observation: LinkObservation) {
        let mut text = String::new();
        if self.lines.is_multiple_of(PAGE) {
            let columns = "   in    out     of  queue    delay   p95 drops";
            text += &format!("        | forward (Mbit/s, kB, ms){:24}| reverse\n", "");
            text += &format!("   time |{columns} |{columns}\n");
        }
        let _ = write!(
            text,
            "{:6.0} s",
            observation.path.forward.elapsed.as_secs_f64()
        );
        let last = self.last.as_ref();
        let ways = [
            (
                &self.scenario.forward,
                &observation.path.forward,
                last.map(|last| &last.path.forward),
            ),
            (
                &self.scenario.reverse,
                &observation.path.reverse,
                last.map(|last| &last.path.reverse),
            ),
        ];
        for (model, now, before) in ways {
            text += " |";
            text += &columns(model, now, before);
        }
        // The reader may be gone; a failed write is ignored.
        let _ = writeln!(io::stderr(), "{text}");
        self.last = Some(observation);
        self.lines += 1;
        // After a pause (the process was stopped), one line is printed instead of one per missed
        // second.
        let missed = self.start.elapsed().as_secs() as u32;
        self.lines = self.lines.max(missed);
    }
}

/// Returns a line about a whole run.
pub(super) fn summary(scenario: &Scenario, observation: &LinkObservation) -> String {
    let LinkObservation {
        path,
        forward,
        reverse,
    } = observation;
    let elapsed = path.forward.elapsed;
    let mut text = format!("{:.1} s", elapsed.as_secs_f64());
    let ways = [
        ("forward", &scenario.forward, &path.forward, forward),
        ("reverse", &scenario.reverse, &path.reverse, reverse),
    ];
    for (way, model, observed, host) in ways {
        let total = observed.total();
        let rate = megabits(total.delivered.bytes, elapsed);
        let _ = write!(text, "; {way} {rate:.3} Mbit/s");
        if let Some(capacity) = capacity(model, Duration::ZERO, elapsed) {
            let _ = write!(text, " of {capacity:.3}");
        }
        if let (Some(mean), Some(p95)) = (total.mean_delay(), total.delay_quantile(0.95)) {
            let (mean, p95) = (milliseconds(mean), milliseconds(p95));
            let _ = write!(text, ", delay {mean:.2} ms (p95 {p95:.2})");
        }
        let (dropped, arrived) = (total.dropped.total().packets, total.arrived.packets);
        let late = milliseconds(host.lateness.quantile(0.999));
        let _ = write!(
            text,
            ", {dropped} of {arrived} packets dropped, p99.9 {late:.3} ms late"
        );
    }
    text
}

/// Formats the columns of one direction, from its counters since `before`.
fn columns(
    model: &Direction,
    now: &DirectionObservation,
    before: Option<&DirectionObservation>,
) -> String {
    let from = before.map_or(Duration::ZERO, |before| before.elapsed);
    let period = now.elapsed.saturating_sub(from);
    let (total, earlier) = (now.total(), before.map(DirectionObservation::total));
    let (mut came, mut left, mut drops) = (
        total.arrived.bytes,
        total.delivered.bytes,
        total.dropped.total().packets,
    );
    let (mut delays, mut packets, mut sum) = (
        total.delay,
        total.data_delivered.packets,
        total.delay_sum_ns,
    );
    if let Some(earlier) = earlier {
        came -= earlier.arrived.bytes;
        left -= earlier.delivered.bytes;
        drops -= earlier.dropped.total().packets;
        packets -= earlier.data_delivered.packets;
        sum -= earlier.delay_sum_ns;
        // Counters never decrease, so the difference is not negative.
        let _ = delays.subtract(&earlier.delay);
    }
    let capacity =
        capacity(model, from, now.elapsed).map_or("-".into(), |rate| format!("{rate:.2}"));
    let (mean, p95) = match packets {
        0 => ("-".into(), "-".into()),
        _ => (
            format!("{:.1}", sum as f64 / packets as f64 / 1e6),
            format!("{:.1}", delays.value_at_quantile(0.95) as f64 / 1e3),
        ),
    };
    format!(
        "{:6.2} {:6.2} {capacity:>6} {:6.1} {mean:>8} {p95:>5} {drops:>5}",
        megabits(came, period),
        megabits(left, period),
        now.backlog.bytes as f64 / 1e3,
    )
}

/// Returns the mean capacity between two times, Mbit/s; `None` when it is unlimited.
fn capacity(model: &Direction, from: Duration, to: Duration) -> Option<f64> {
    let seconds = to.saturating_sub(from).as_secs_f64();
    let bits = model.service.capacity_bits(from, to)?;
    Some(if seconds > 0.0 {
        bits / seconds / 1e6
    } else {
        0.0
    })
}

fn megabits(bytes: u64, period: Duration) -> f64 {
    match period.is_zero() {
        true => 0.0,
        false => bytes as f64 * 8.0 / period.as_secs_f64() / 1e6,
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
