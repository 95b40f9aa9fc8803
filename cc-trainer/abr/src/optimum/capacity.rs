//! When bytes arrive, by one search in the sum of all that the trace carries.

use crate::trace::Trace;

/// What a trace can carry until each moment. Times are s since the trace's beginning, which is the
/// time of its first point.
pub(super) struct Capacity {
    /// The pass from the first point to the last one.
    first: Pass,
    /// The later passes, which begin at time 0.
    repeated: Pass,
}

/// One pass through the trace: time and bytes of payload at the end of each piece.
struct Pass {
    times: Vec<f64>,
    bytes: Vec<f64>,
}

impl Pass {
    fn new(trace: &Trace, from_s: f64, payload_share: f64) -> Self {
        let (mut times, mut bytes) = (vec![0.0], vec![0.0]);
        let (mut before, mut sum) = (from_s, 0.0);
        for (time, mbps) in trace.times().iter().zip(trace.mbps()).skip(1) {
            sum += (time - before) * mbps * 1e6 / 8.0 * payload_share;
            before = *time;
            times.push(time - from_s);
            bytes.push(sum);
        }
        Self { times, bytes }
    }

    fn length_s(&self) -> f64 {
        self.times[self.times.len() - 1]
    }

    fn total(&self) -> f64 {
        self.bytes[self.bytes.len() - 1]
    }

    /// Bytes carried until a time within the pass.
    fn until(&self, time_s: f64) -> f64 {
        interpolate(&self.times, &self.bytes, time_s)
    }

    /// The time by which this many bytes, at most the pass's own, have been carried.
    fn time(&self, bytes: f64) -> f64 {
        interpolate(&self.bytes, &self.times, bytes)
    }
}

/// The value at `x` of the line through points with ascending `xs`; where these are equal the first
/// point counts.
fn interpolate(xs: &[f64], ys: &[f64], x: f64) -> f64 {
    let right = xs
        .partition_point(|&known| known < x)
        .clamp(1, xs.len() - 1);
    let (x0, x1, y0, y1) = (xs[right - 1], xs[right], ys[right - 1], ys[right]);
    if x1 > x0 {
        y0 + (y1 - y0) * ((x - x0) / (x1 - x0)).clamp(0.0, 1.0)
    } else {
        y0
    }
}

impl Capacity {
    pub(super) fn new(trace: &Trace, payload_share: f64) -> Self {
        Self {
            first: Pass::new(trace, trace.times()[0], payload_share),
            repeated: Pass::new(trace, 0.0, payload_share),
        }
    }

    /// The time at which a chunk that is asked for at a time has arrived, s.
    pub(super) fn arrival(&self, from_s: f64, bytes: u32) -> f64 {
        self.time(self.until(from_s) + f64::from(bytes))
    }

    /// Bytes that the trace has carried by a time; 0 before its beginning.
    pub(super) fn until(&self, time_s: f64) -> f64 {
        let beyond = time_s - self.first.length_s();
        if beyond <= 0.0 {
            return self.first.until(time_s);
        }
        let passes = (beyond / self.repeated.length_s()).floor();
        let rest = beyond - passes * self.repeated.length_s();
        self.first.total() + passes * self.repeated.total() + self.repeated.until(rest)
    }

    /// The time by which the trace has carried so many bytes, s.
    pub(super) fn time(&self, bytes: f64) -> f64 {
        let beyond = bytes - self.first.total();
        if beyond <= 0.0 {
            return self.first.time(bytes);
        }
        let passes = (beyond / self.repeated.total()).floor();
        let rest = beyond - passes * self.repeated.total();
        self.first.length_s() + passes * self.repeated.length_s() + self.repeated.time(rest)
    }

    /// The times between two others at which a piece of the trace ends, s, ascending.
    pub(super) fn ends_between(&self, from_s: f64, to_s: f64) -> Vec<f64> {
        let (mut ends, mut pass, mut began_s) = (Vec::new(), &self.first, 0.0);
        while began_s < to_s {
            let times = pass.times.iter().skip(1).map(|time| began_s + time);
            ends.extend(times.filter(|&time| from_s < time && time < to_s));
            began_s += pass.length_s();
            pass = &self.repeated;
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_over_gaps_and_repetitions() {
        // From 1 s: 1 MB/s for a second, nothing for two, 2 MB/s for one. Repeated from 0 on, the
        // first piece lasts two seconds.
        let times = vec![1.0, 2.0, 4.0, 5.0];
        let trace = Trace::new("t", times, vec![9.0, 8.0, 0.0, 16.0]).expect("valid");
        let capacity = Capacity::new(&trace, 1.0);
        for (from, bytes, expected) in [
            (0.0, 500_000, 0.5),
            (0.5, 500_000, 1.0),
            (0.5, 1_500_000, 3.5),
            (1.7, 1_000_000, 3.5),
            (0.0, 3_000_000, 4.0),
            // One second into the second pass.
            (0.0, 4_000_000, 5.0),
            // The second pass carries 4 MB in 5 s.
            (0.0, 7_500_000, 9.5),
            (9.5, 500_000, 10.0),
        ] {
            let found = capacity.arrival(from, bytes);
            assert!(
                (found - expected).abs() < 1e-9,
                "{from} {bytes}: {found}, not {expected}"
            );
        }
    }

    #[test]
    fn pieces_end_at_the_points_of_each_pass() {
        let trace = Trace::new("t", vec![1.0, 2.0, 4.0], vec![1.0; 3]).expect("valid");
        let capacity = Capacity::new(&trace, 1.0);
        // The first pass lasts 3 s; the later ones begin at time 0 and last 4 s.
        assert_eq!(capacity.ends_between(0.0, 8.0), [1.0, 3.0, 5.0, 7.0]);
        assert_eq!(capacity.ends_between(1.0, 5.0), [3.0]);
        assert_eq!(capacity.ends_between(6.0, 6.5), [] as [f64; 0]);
        assert_eq!(capacity.until(-1.0), 0.0);
    }
}
