//! The simulator beside an independent recomputation from the published rules: bytes as an integral
//! of the trace, and playback as a schedule of deadlines, instead of a cursor and a buffer.

use std::sync::Arc;

use cc_abr::{
    baseline::Schedule,
    optimum::{self, Resolution},
    play::{Score, play},
    qoe::{Metric, Qoe},
    session::{Download, Rules, Session},
    trace::Trace,
    video::Video,
};
use proptest::prelude::*;

/// Payload that has arrived by time `t`, bytes; `t` counts from the first point.
///
/// The trace is unrolled: after the last point everything begins again at time 0.
fn carried(times: &[f64], mbps: &[f64], t: f64) -> f64 {
    let mut sum = 0.0;
    let (mut from, mut elapsed) = (times[0], 0.0);
    loop {
        for (end, rate) in times.iter().zip(mbps).skip(1) {
            let piece = (end - from).min(t - elapsed);
            sum += piece * rate * 0.95 * 125_000.0;
            elapsed += piece;
            if elapsed >= t {
                return sum;
            }
            from = *end;
        }
        from = 0.0;
    }
}

/// The time by which so much has been carried, by bisection.
fn moment(times: &[f64], mbps: &[f64], bytes: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while carried(times, mbps, high) < bytes {
        (low, high) = (high, high * 2.0);
    }
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        match carried(times, mbps, middle) < bytes {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

/// One chunk of the recomputation: delay, rebuffering, sleep and buffer in s.
#[derive(Debug)]
struct Expected {
    delay: f64,
    rebuffer: f64,
    sleep: f64,
    buffer: f64,
}

/// Plays chunks of these sizes. `clock` is the wall time of the player; the trace's time is behind
/// it by the round trips, which do not move it. Playback that began at `origin` would need chunk
/// `n` at `origin + n * length`; each time that it is not there, `origin` moves.
fn recompute(
    times: &[f64],
    mbps: &[f64],
    sizes: &[u32],
    length: f64,
    noise: &[f64],
) -> Vec<Expected> {
    let (mut clock, mut link, mut origin) = (0.0, 0.0, 0.0);
    let mut all = Vec::new();
    for (n, (&size, noise)) in sizes.iter().zip(noise).enumerate() {
        let arrived = moment(times, mbps, carried(times, mbps, link) + f64::from(size));
        let delay = (arrived - link + 0.08) * noise;
        link = arrived;
        clock += delay;
        let deadline = origin + n as f64 * length;
        let rebuffer = f64::max(clock - deadline, 0.0);
        origin += rebuffer;
        // What is in the buffer is played until here.
        let end = origin + (n + 1) as f64 * length;
        let above = end - clock - 60.0;
        let sleep = if above > 0.0 {
            (above * 2.0).ceil() / 2.0
        } else {
            0.0
        };
        clock += sleep;
        link += sleep;
        let buffer = end - clock;
        all.push(Expected {
            delay,
            rebuffer,
            sleep,
            buffer,
        });
    }
    all
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-6 * (1.0 + one.abs())
}

/// A trace that may begin late, has gaps and very different rates.
fn traces() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
    let rate = prop_oneof![1 => Just(0.0), 8 => 0.1..6.0_f64, 1 => 50.0..200.0_f64];
    let points = prop::collection::vec((0.05..9.0_f64, rate), 2..30);
    (0.0..2.0_f64, points).prop_map(|(start, points)| {
        let mut time = start;
        let mut times = Vec::new();
        for (step, _) in &points {
            times.push(time);
            time += step;
        }
        let mut mbps: Vec<f64> = points.iter().map(|point| point.1).collect();
        // Something arrives in each pass.
        mbps[1] += 0.3;
        (times, mbps)
    })
}

fn videos() -> impl Strategy<Value = (Vec<f64>, f64, Vec<Vec<u32>>)> {
    (1..6_usize, 1..60_usize, 1.0..10.0_f64).prop_flat_map(|(levels, chunks, length)| {
        let sizes = prop::collection::vec(
            prop::collection::vec(1_000..3_000_000_u32, chunks..=chunks),
            levels..=levels,
        );
        let kbps: Vec<f64> = (1..=levels).map(|level| 400.0 * level as f64).collect();
        (Just(kbps), Just(length), sizes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_chunk_is_as_the_published_rules_say(
        (times, mbps) in traces(),
        (kbps, length, sizes) in videos(),
        choices in prop::collection::vec((0..6_usize, 0.9..1.1_f64), 60),
        is_training in any::<bool>(),
    ) {
        let levels = kbps.len();
        let video = Video::new("v", kbps, length, None, &sizes).expect("valid");
        let trace = Trace::new("t", times.clone(), mbps.clone()).expect("valid");
        let mut session = Session::new(Arc::new(video), Arc::new(trace), Rules::PENSIEVE);
        let chunks = sizes[0].len();
        let quality = |chunk: usize| choices[chunk].0 % levels;
        let noise: Vec<f64> = choices
            .iter()
            .map(|choice| if is_training { choice.1 } else { 1.0 })
            .collect();
        let chosen: Vec<u32> = (0..chunks).map(|chunk| sizes[quality(chunk)][chunk]).collect();
        let expected = recompute(&times, &mbps, &chosen, length, &noise);
        for (chunk, expected) in expected.iter().enumerate() {
            let found: Download = session.download(quality(chunk), noise[chunk]);
            prop_assert_eq!(found.bytes, chosen[chunk]);
            let rounding = (expected.buffer - 60.0).abs() < 1e-6
                || (expected.buffer - 59.5).abs() < 1e-6;
            prop_assert!(near(found.delay_ms / 1e3, expected.delay), "{found:?} {expected:?}");
            prop_assert!(near(found.rebuffer_ms / 1e3, expected.rebuffer), "{found:?}");
            if rounding {
                // Half a second of sleep hangs on the last digit.
                return Ok(());
            }
            prop_assert!(near(found.sleep_ms / 1e3, expected.sleep), "{found:?} {expected:?}");
            prop_assert!(near(found.buffer_ms / 1e3, expected.buffer), "{found:?} {expected:?}");
            prop_assert!((0.0..=60_000.0_f64.max(length * 1e3)).contains(&found.buffer_ms));
        }
        prop_assert!(session.is_over());
    }

    #[test]
    fn the_optimum_lies_between_schedule_and_bound(
        (times, mbps) in traces(),
        seed in any::<u64>(),
        which in 0..3_usize,
    ) {
        let kbps = vec![300.0, 1200.0, 2850.0];
        let video = Arc::new(Video::generate(seed, kbps, 4.0, 7).expect("valid"));
        let trace = Arc::new(Trace::new("t", times, mbps).expect("valid"));
        let metric = Metric::new(Qoe::ALL[which], video.kbps()).expect("its bitrates");
        let of = |schedule: Vec<usize>| {
            let session = Session::new(video.clone(), trace.clone(), Rules::PENSIEVE);
            let downloads = play(session, &Schedule(schedule)).expect("its qualities");
            Score::of(&downloads, &metric, video.kbps()).qoe
        };
        let all = (0..3_usize.pow(6)).map(|number| {
            let digit = |place: u32| number / 3_usize.pow(place) % 3;
            of(std::iter::once(1).chain((0..6).map(digit)).collect())
        });
        let best = all.fold(f64::NEG_INFINITY, f64::max);
        let resolution = Resolution::default();
        let found = optimum::solve(&video, &trace, Rules::PENSIEVE, &metric, resolution);
        let found = found.expect("qualities of the video");
        prop_assert_eq!(found.schedule.len(), 7);
        prop_assert!(near(of(found.schedule.clone()), found.score.qoe));
        prop_assert!(found.score.qoe <= best + 1e-9, "{found:?}, best {best}");
        prop_assert!(found.bound >= best - 1e-9, "{found:?}, best {best}");
        // Seven chunks never reach the cap: only merging separates the two.
        let cells = resolution.net + resolution.quality;
        prop_assert!(found.bound - found.score.qoe < cells, "{found:?}, best {best}");
    }
}

#[test]
fn the_bound_holds_where_the_player_sleeps() {
    // Fast, then nothing for a minute and a half: only a full buffer helps.
    let times = vec![0.0, 40.0, 130.0, 170.0];
    let trace = Arc::new(Trace::new("t", times, vec![0.0, 40.0, 0.1, 2.0]).expect("valid"));
    let video = Video::generate(5, vec![300.0, 4300.0], 8.0, 14).expect("valid");
    let video = Arc::new(video);
    let metric = Metric::new(Qoe::Linear, video.kbps()).expect("its bitrates");
    let of = |schedule: Vec<usize>| {
        let session = Session::new(video.clone(), trace.clone(), Rules::PENSIEVE);
        let downloads = play(session, &Schedule(schedule)).expect("its qualities");
        let slept: f64 = downloads.iter().map(|one| one.sleep_ms).sum();
        (Score::of(&downloads, &metric, video.kbps()).qoe, slept)
    };
    let all = (0..1 << 13).map(|bits| {
        of(std::iter::once(1)
            .chain((0..13).map(|place| bits >> place & 1))
            .collect())
    });
    let best = all.fold((f64::NEG_INFINITY, 0.0), |best, one| {
        if one.0 > best.0 { one } else { best }
    });
    assert!(best.1 > 0.0, "the best schedule sleeps");
    let exact = Resolution {
        quality: 1e-6,
        net: 1e-6,
    };
    for (resolution, gap) in [(Resolution::default(), 0.1), (exact, 0.1)] {
        let found = optimum::solve(&video, &trace, Rules::PENSIEVE, &metric, resolution)
            .expect("qualities of the video");
        assert!(
            found.score.qoe <= best.0 + 1e-9 && found.bound >= best.0 - 1e-9,
            "{found:?}"
        );
        assert!(
            found.bound - found.score.qoe < gap,
            "{found:?}, best {best:?}"
        );
    }
}
