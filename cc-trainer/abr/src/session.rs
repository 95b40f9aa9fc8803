//! One video over one trace: the chunk-level simulator of Pensieve.
//!
//! The rules are those of `sim/env.py` and `test/fixed_env.py` of hongzimao/pensieve (section 4.1
//! of the paper), with the same operations in the same order:
//!
//! - A chunk arrives at the trace's throughput times the payload share, and a round trip is added
//!   to its delay. The trace stands still during that round trip.
//! - The buffer drains while the chunk arrives; what it lacks is rebuffering. Then the chunk's
//!   length is added. Playback starts with the first chunk, whose whole delay is rebuffering.
//! - Above the cap the player sleeps, in whole steps, until the buffer is not above it. The trace
//!   goes on meanwhile; the sleep is not part of the delay.
//! - In training a session starts at a random point of the trace, and each delay is multiplied by a
//!   random factor. In tests it starts at the trace's beginning, without noise.

use std::{ops::Range, sync::Arc};

use rand::{Rng, RngExt};

use crate::{View, trace::Trace, video::Video};

/// Range of the factor that the delay of each chunk is multiplied by in training.
pub const TRAINING_NOISE: Range<f64> = 0.9..1.1;

/// Settings of link and player.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Round trip that is added to the delay of each chunk, ms.
    pub rtt_ms: f64,
    /// Share of the throughput that is payload.
    pub payload_share: f64,
    /// Buffer above which the player sleeps before it asks for the next chunk, s.
    pub buffer_cap_s: f64,
    /// Step in which it sleeps, ms.
    pub sleep_step_ms: f64,
    /// Quality of the first chunk, before anything is known; the highest one of a video that has
    /// fewer.
    pub first_quality: usize,
}

impl Rules {
    /// The published settings: 80 ms, 0.95, 60 s, 500 ms, the second-lowest quality.
    pub const PENSIEVE: Self = Self {
        rtt_ms: 80.0,
        payload_share: 0.95,
        buffer_cap_s: 60.0,
        sleep_step_ms: 500.0,
        first_quality: 1,
    };

    /// Quality of the first chunk of a video with this many qualities.
    pub fn first_quality(&self, levels: usize) -> usize {
        self.first_quality.min(levels - 1)
    }
}

/// What the player saw of one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Download {
    /// Number of the chunk, from 0.
    pub chunk: usize,
    /// Quality that it was downloaded in, from 0.
    pub quality: usize,
    /// Size of the chunk, bytes.
    pub bytes: u32,
    /// Time from the request to the last byte, ms.
    pub delay_ms: f64,
    /// Time for which the player slept after the chunk, ms.
    pub sleep_ms: f64,
    /// Time for which playback stood still, ms.
    pub rebuffer_ms: f64,
    /// Buffer after chunk and sleep, ms.
    pub buffer_ms: f64,
}

impl Download {
    /// Throughput of the chunk, Mbit/s, its round trip included.
    pub fn mbps(&self) -> f64 {
        f64::from(self.bytes) * 8.0 / self.delay_ms / 1e3
    }
}

/// A player that downloads a video over a trace.
#[derive(Clone, Debug)]
pub struct Session {
    video: Arc<Video>,
    trace: Arc<Trace>,
    rules: Rules,
    cursor: Cursor,
    buffer_ms: f64,
    next: usize,
}

impl Session {
    /// Begins a session at the beginning of the trace, as in tests.
    pub fn new(video: Arc<Video>, trace: Arc<Trace>, rules: Rules) -> Self {
        Self::starting_at(video, trace, rules, 1)
    }

    /// Begins a session at a random point of the trace, as in training.
    pub fn in_training(
        video: Arc<Video>,
        trace: Arc<Trace>,
        rules: Rules,
        random: &mut impl Rng,
    ) -> Self {
        let point = random.random_range(1..trace.times().len());
        Self::starting_at(video, trace, rules, point)
    }

    /// Begins a session at the time of the point before `point`, so that the throughput of `point`
    /// comes first.
    ///
    /// # Panics
    ///
    /// Panics when `point` is 0 or not a point of the trace.
    pub fn starting_at(video: Arc<Video>, trace: Arc<Trace>, rules: Rules, point: usize) -> Self {
        assert!(
            (1..trace.times().len()).contains(&point),
            "point {point} of a trace with {} points",
            trace.times().len()
        );
        let time_s = trace.times()[point - 1];
        Self {
            video,
            trace,
            rules,
            cursor: Cursor { point, time_s },
            buffer_ms: 0.0,
            next: 0,
        }
    }

    /// The video that is played.
    pub fn video(&self) -> &Arc<Video> {
        &self.video
    }

    /// The trace that it arrives over.
    pub fn trace(&self) -> &Arc<Trace> {
        &self.trace
    }

    /// The settings of link and player.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Number of the next chunk, from 0; the number of chunks at the end.
    pub fn next_chunk(&self) -> usize {
        self.next
    }

    /// Whether all chunks have been downloaded.
    pub fn is_over(&self) -> bool {
        self.next == self.video.chunks()
    }

    /// What is known before the next chunk is asked for, given all downloads of the session.
    pub fn view<'a>(&'a self, history: &'a [Download]) -> View<'a> {
        View {
            kbps: self.video.kbps(),
            chunk_s: self.video.chunk_s(),
            upcoming: &self.video.sizes()[self.next..],
            left: self.video.chunks() - self.next,
            chunks: self.video.chunks(),
            buffer_s: self.buffer_ms / 1e3,
            history,
            past: &self.video.sizes()[..self.next],
        }
    }

    /// The trace's mean throughputs, Mbit/s, over these times from where the session stands: what no
    /// player knows. The times are in s, above 0 and ascending.
    pub fn outlook<'a>(&'a self, times_s: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
        let mut cursor = self.cursor;
        let (mut passed_s, mut megabits) = (0.0, 0.0);
        times_s.iter().map(move |&time_s| {
            megabits += cursor.pass(&self.trace, (time_s - passed_s) * 1e3);
            passed_s = time_s;
            megabits / time_s
        })
    }

    /// Downloads the next chunk in a quality. `noise` multiplies its delay: 1 in tests, drawn from
    /// [`TRAINING_NOISE`] in training.
    ///
    /// # Panics
    ///
    /// Panics when the video has no such quality or the session is over.
    pub fn download(&mut self, quality: usize, noise: f64) -> Download {
        assert!(!self.is_over(), "all chunks have been downloaded");
        assert!(quality < self.video.levels(), "quality {quality}");
        let bytes = self.video.sizes()[self.next][quality];
        let share = self.rules.payload_share;
        let arrival_s = self.cursor.receive(&self.trace, f64::from(bytes), share);
        let delay_ms = (arrival_s * 1e3 + self.rules.rtt_ms) * noise;

        let rebuffer_ms = (delay_ms - self.buffer_ms).max(0.0);
        self.buffer_ms = (self.buffer_ms - delay_ms).max(0.0) + self.video.chunk_s() * 1e3;
        let above = self.buffer_ms - self.rules.buffer_cap_s * 1e3;
        let mut sleep_ms = 0.0;
        if above > 0.0 {
            let step = self.rules.sleep_step_ms;
            sleep_ms = (above / step).ceil() * step;
            self.buffer_ms -= sleep_ms;
            self.cursor.pass(&self.trace, sleep_ms);
        }
        let chunk = self.next;
        self.next += 1;
        Download {
            chunk,
            quality,
            bytes,
            delay_ms,
            sleep_ms,
            rebuffer_ms,
            buffer_ms: self.buffer_ms,
        }
    }
}

/// A place in a trace: a time, and the point whose throughput holds there.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    point: usize,
    time_s: f64,
}

impl Cursor {
    /// Lets bytes arrive, and returns the time that they took, s.
    fn receive(&mut self, trace: &Trace, bytes: f64, payload_share: f64) -> f64 {
        let (mut taken_s, mut received) = (0.0, 0.0);
        loop {
            let throughput = trace.mbps()[self.point] * 1e6 / 8.0;
            let duration_s = trace.times()[self.point] - self.time_s;
            let payload = throughput * duration_s * payload_share;
            if received + payload > bytes {
                let rest_s = (bytes - received) / throughput / payload_share;
                self.time_s += rest_s;
                return taken_s + rest_s;
            }
            received += payload;
            taken_s += duration_s;
            self.advance(trace);
        }
    }

    /// Lets `ms` milliseconds of the trace pass. Returns what its throughput would have carried in
    /// them, Mbit.
    fn pass(&mut self, trace: &Trace, mut ms: f64) -> f64 {
        let mut megabits = 0.0;
        loop {
            let duration_s = trace.times()[self.point] - self.time_s;
            if duration_s > ms / 1e3 {
                self.time_s += ms / 1e3;
                return megabits + trace.mbps()[self.point] * ms / 1e3;
            }
            ms -= duration_s * 1e3;
            megabits += trace.mbps()[self.point] * duration_s;
            self.advance(trace);
        }
    }

    /// Goes to the next point, or back to the beginning after the last one.
    fn advance(&mut self, trace: &Trace) {
        self.time_s = trace.times()[self.point];
        self.point += 1;
        if self.point >= trace.times().len() {
            (self.point, self.time_s) = (1, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    fn session(sizes: &[u32], times: &[f64], mbps: &[f64]) -> Session {
        let video = Video::new("v", vec![1000.0], 4.0, None, &[sizes.to_vec()]).expect("valid");
        let trace = Trace::new("t", times.to_vec(), mbps.to_vec()).expect("valid");
        Session::new(Arc::new(video), Arc::new(trace), Rules::PENSIEVE)
    }

    #[test]
    fn a_chunk_arrives_at_the_payload_share_plus_a_round_trip() {
        // 8 Mbit/s carry 950,000 bytes of payload a second.
        let mut session = session(&[475_000, 1_900_000], &[0.0, 100.0], &[0.0, 8.0]);
        let first = session.download(0, 1.0);
        assert!((first.delay_ms - 580.0).abs() < 1e-9, "{first:?}");
        assert_eq!(first.rebuffer_ms, first.delay_ms);
        assert_eq!((first.buffer_ms, first.sleep_ms), (4_000.0, 0.0));
        let second = session.download(0, 1.0);
        assert!((second.delay_ms - 2_080.0).abs() < 1e-9, "{second:?}");
        assert_eq!(second.rebuffer_ms, 0.0);
        assert!((second.buffer_ms - 5_920.0).abs() < 1e-9, "{second:?}");
        assert!(session.is_over());
    }

    #[test]
    fn a_trace_that_starts_late_repeats_from_zero() {
        // The first pass lasts one second, from 1 s to 2 s; all later ones last two.
        let mut session = session(&[950_000, 1_900_000], &[1.0, 2.0], &[0.0, 8.0]);
        // Exactly one second: the byte count is reached and not exceeded, so that the next pass
        // begins and ends at once.
        assert!((session.download(0, 1.0).delay_ms - 1_080.0).abs() < 1e-6);
        assert!((session.download(0, 1.0).delay_ms - 2_080.0).abs() < 1e-6);
    }

    #[test]
    fn a_full_buffer_drains_in_steps_while_the_trace_goes_on() {
        let sizes = [95_000; 20];
        // 80 Mbit/s: 10 ms and a round trip of 80 ms for each chunk.
        let mut session = session(&sizes, &[0.0, 1000.0], &[0.0, 80.0]);
        let mut buffer = 0.0;
        for _ in 0..20 {
            let before = session.cursor.time_s;
            let download = session.download(0, 1.0);
            let unslept = f64::max(buffer - download.delay_ms, 0.0) + 4_000.0;
            assert!(download.sleep_ms % 500.0 == 0.0 && download.buffer_ms <= 60_000.0);
            assert!((unslept - download.sleep_ms - download.buffer_ms).abs() < 1e-6);
            assert!(
                download.sleep_ms == 0.0 || download.buffer_ms > 59_500.0,
                "{download:?}"
            );
            let trace_ms = (session.cursor.time_s - before) * 1e3;
            assert!(
                (trace_ms - download.sleep_ms - 10.0).abs() < 1e-6,
                "{trace_ms}"
            );
            buffer = download.buffer_ms;
        }
        assert!(buffer > 59_500.0);
    }

    #[test]
    fn the_outlook_is_the_mean_from_here_on() {
        // 8 Mbit/s until 10 s, 2 Mbit/s until 14 s, and again.
        let trace = ([0.0, 10.0, 14.0], [0.0, 8.0, 2.0]);
        let mut session = session(&[1_900_000; 4], &trace.0, &trace.1);
        let outlook = |session: &Session, times: &[f64]| session.outlook(times).collect::<Vec<_>>();
        assert!(outlook(&session, &[]).is_empty());
        let times = [1.0, 10.0, 12.0, 14.0, 28.0, 140.0];
        let means = [8.0, 8.0, 84.0 / 12.0, 88.0 / 14.0, 88.0 / 14.0, 88.0 / 14.0];
        for (found, expected) in outlook(&session, &times).iter().zip(means) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
        // A download of 2 s leads to 2 s, and looking ahead changes nothing.
        let mut other = session.clone();
        session.download(0, 1.0);
        let means = [8.0, 66.0 / 9.0, 84.0 / 14.0];
        let found = outlook(&session, &[8.0, 9.0, 14.0]);
        for (found, expected) in found.iter().zip([means[0], means[1], 88.0 / 14.0]) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
        other.download(0, 1.0);
        assert_eq!(session.download(0, 1.0), other.download(0, 1.0));
    }

    #[test]
    fn training_starts_anywhere_and_its_noise_moves_no_trace() {
        let mut random = StdRng::seed_from_u64(1);
        let quiet = session(&[95_000; 4], &[0.0, 1.0, 2.0, 3.0], &[0.0, 1.0, 2.0, 3.0]);
        let mut points = [0; 4];
        for _ in 0..300 {
            let (video, trace) = (quiet.video.clone(), quiet.trace.clone());
            let session = Session::in_training(video, trace, Rules::PENSIEVE, &mut random);
            points[session.cursor.point] += 1;
        }
        assert!(
            points[0] == 0 && points[1..].iter().all(|&count| count > 60),
            "{points:?}"
        );
        let (mut plain, mut noisy) = (quiet.clone(), quiet);
        let (one, other) = (plain.download(0, 1.0), noisy.download(0, 1.1));
        assert!((other.delay_ms / one.delay_ms - 1.1).abs() < 1e-12);
        assert_eq!(plain.cursor.time_s, noisy.cursor.time_s);
    }

    #[test]
    #[should_panic(expected = "all chunks")]
    fn nothing_comes_after_the_last_chunk() {
        let mut session = session(&[1], &[0.0, 1.0], &[0.0, 1.0]);
        session.download(0, 1.0);
        session.download(0, 1.0);
    }
}
