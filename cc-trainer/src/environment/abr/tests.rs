use std::fs;

use cc_abr::{
    baseline::Schedule,
    generate::{self, Family},
    play::{Score, play},
    qoe::{Metric, Qoe},
    session::Rules,
    state::Throughput,
    video::{ENVIVIO_KBPS, Video},
};
use proptest::prelude::*;

use super::{video::VideoChoice, *};

fn markov() -> TraceSource {
    TraceSource {
        family: Some(Family::Markov),
        ..TraceSource::default()
    }
}

fn config() -> AbrConfig {
    AbrConfig {
        sources: vec![markov()],
        ..AbrConfig::default()
    }
}

fn without(bitrates: &[f64]) -> VideoSource {
    VideoSource {
        choice: VideoChoice {
            without: bitrates.to_vec(),
            ..VideoChoice::default()
        },
        ..VideoSource::default()
    }
}

fn world(config: AbrConfig) -> Arc<AbrWorld> {
    Arc::new(AbrWorld::open(config).expect("valid settings"))
}

fn refusal(change: impl FnOnce(&mut AbrConfig)) -> String {
    let mut config = config();
    change(&mut config);
    AbrWorld::open(config).expect_err("refused").to_string()
}

/// Steps an environment by fixed actions over one episode. Returns the turns from the first of the
/// episode to the first of the next one.
fn episode(environment: &mut AbrEnvironment, actions: &[usize]) -> Vec<Turn> {
    let mut turn = Turn::default();
    environment.next(&mut turn);
    let mut turns = vec![turn.clone()];
    for action in actions.iter().cycle() {
        environment.act(*action);
        environment.next(&mut turn);
        turns.push(turn.clone());
        if turn.first.is_some() {
            break;
        }
    }
    turns
}

proptest! {
    /// The environment against sessions of the simulator itself: every observation, every reward,
    /// the end, and the sum of the rewards, for each measure.
    #[test]
    fn an_episode_is_a_session(
        actions in prop::collection::vec(0..6_usize, 47),
        number in 0..1000_u64,
        qoe in prop::sample::select(Qoe::ALL.to_vec()),
        past in 1..=8_usize,
        throughput in prop::sample::select(vec![Throughput::Linear, Throughput::Log]),
        divisor in 0.5..20.0,
    ) {
        let trace = Arc::new(generate::trace(Family::Cellular, 9, number, 200));
        let config = AbrConfig {
            qoe,
            past_chunks: past,
            throughput,
            reward_divisor: divisor,
            ..config()
        };
        let mut environment = AbrEnvironment::new(world(config), 1).of_trace(trace.clone());
        let turns = episode(&mut environment, &actions);
        prop_assert_eq!(turns.len(), 48);
        prop_assert_eq!(turns[0].first, Some(End::Truncated));
        prop_assert_eq!(turns[47].first, Some(End::Terminated));
        prop_assert!(turns[1..47].iter().all(|turn| turn.first.is_none()));

        // The schedule has an entry for the first chunk too, which nobody chooses.
        let mut schedule = vec![1];
        schedule.extend(&actions);
        let video = Arc::new(Video::envivio());
        let session = Session::new(video.clone(), trace, Rules::PENSIEVE);
        let downloads = play(session.clone(), &Schedule(schedule)).expect("qualities of the video");
        let metric = Metric::new(qoe, video.kbps()).expect("its own bitrates");
        let all: Vec<_> = (0..6).map(Some).collect();
        let mut again = session;
        for chunk in 0..47 {
            again.download(downloads[chunk].quality, 1.0);
            let view = again.view(&downloads[..=chunk]);
            let expected = State::of(&view, &all).with_throughput(throughput).recent(past);
            prop_assert_eq!(&turns[chunk].observation[..], &expected.flat()[..]);
            let ahead: Vec<f64> = again.outlook(&OUTLOOK_S).collect();
            prop_assert_eq!(turns[chunk].privileged.len(), ahead.len());
            for (found, mbps) in turns[chunk].privileged.iter().zip(&ahead) {
                let seen = (f64::from(2.0 * found).exp() - 1.0) / 4.0;
                prop_assert!((seen - mbps).abs() < 1e-4 * mbps.max(1.0), "{} {}", seen, mbps);
            }
            prop_assert!(turns[chunk].allowed.is_empty());
            let (last, next) = (&downloads[chunk], &downloads[chunk + 1]);
            let score = metric.score(next.quality, last.quality, next.rebuffer_ms / 1e3);
            let reward = f64::from(turns[chunk + 1].reward);
            prop_assert!((reward * divisor - score).abs() < 1e-5 * score.abs().max(1.0));
        }
        let sum: f64 = turns.iter().map(|turn| f64::from(turn.reward)).sum();
        let score = Score::of(&downloads, &metric, video.kbps()).qoe;
        prop_assert!((sum * divisor / 47.0 - score).abs() < 1e-4 * score.abs().max(1.0));
    }

    /// Whatever bitrates a video keeps, exactly these are allowed, and have sizes.
    #[test]
    fn bitrates_that_a_video_lacks_are_masked(seed: u64, least in 1..=6_usize) {
        let config = AbrConfig {
            videos: vec![VideoSource { least_levels: Some(least), ..VideoSource::default() }],
            ..config()
        };
        let mut environment = AbrEnvironment::new(world(config), seed);
        let mut turn = Turn::default();
        for _ in 0..200 {
            environment.next(&mut turn);
            let allowed = match turn.allowed.is_empty() {
                true => vec![true; 6],
                false => turn.allowed.clone(),
            };
            let count = allowed.iter().filter(|allowed| **allowed).count();
            prop_assert!((least..=6).contains(&count));
            let sizes = &turn.observation[SIZES * COLUMNS..][..6];
            for (size, allowed) in sizes.iter().zip(&allowed) {
                prop_assert_eq!(*size > 0.0, *allowed);
            }
            let view = environment.view().expect("a turn");
            let kept = ENVIVIO_KBPS.iter().zip(&allowed).filter(|(_, allowed)| **allowed);
            let kept: Vec<f64> = kept.map(|(kbps, _)| *kbps).collect();
            prop_assert_eq!(view.kbps, &kept[..]);
            let place = turn.reward.to_bits() as usize % count;
            let action = (0..6).filter(|action| allowed[*action]).nth(place);
            environment.act(action.expect("one of them"));
        }
    }
}

#[test]
fn a_seed_fixes_everything_and_training_differs_from_tests() {
    let trace = |seed| {
        let config = AbrConfig {
            videos: vec![VideoSource {
                least_levels: Some(6),
                ..VideoSource::default()
            }],
            ..config()
        };
        let mut environment = AbrEnvironment::new(world(config), seed);
        episode(&mut environment, &[0, 3, 2])
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));

    // The same single trace from its beginning differs by the noise, and not without it.
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = dir.path().join("t");
    fs::write(&path, "0 1\n300 2\n").expect("a scratch file");
    let rewards = |noise, seed| {
        let config = AbrConfig {
            sources: vec![TraceSource {
                traces: Some(path.clone()),
                ..TraceSource::default()
            }],
            noise,
            ..AbrConfig::default()
        };
        let mut environment = AbrEnvironment::new(world(config), seed);
        let turns = episode(&mut environment, &[0]);
        turns
            .iter()
            .map(|turn| turn.observation[3 * COLUMNS + 7])
            .collect::<Vec<_>>()
    };
    assert_eq!(rewards(false, 1), rewards(false, 2));
    assert_ne!(rewards(true, 1), rewards(true, 2));
    for (noisy, plain) in rewards(true, 1).iter().zip(rewards(false, 1)) {
        assert!((0.9..1.1).contains(&(noisy / plain)), "{noisy} {plain}");
    }
}

#[test]
fn a_replaced_action_downloads_the_nearest_lower_quality_and_costs() {
    let config = AbrConfig {
        videos: vec![without(&[300.0, 1850.0])],
        lacking: Lacking::Replaced,
        lacking_cost: 0.75,
        ..config()
    };
    let trace = Arc::new(generate::trace(Family::Markov, 1, 1, 300));
    let world = world(config);
    let rewards = |action: usize| {
        let environment = AbrEnvironment::new(world.clone(), 1);
        let turns = episode(&mut environment.of_trace(trace.clone()), &[action]);
        assert!(turns.iter().all(|turn| turn.allowed.is_empty()));
        turns[1..]
            .iter()
            .map(|turn| turn.reward)
            .collect::<Vec<_>>()
    };
    for (lacking, nearest) in [(0, 1), (3, 2)] {
        for (paid, free) in rewards(lacking).iter().zip(rewards(nearest)) {
            assert!((free - paid - 0.75).abs() < 1e-5, "{free} {paid}");
        }
    }
}

#[test]
#[should_panic(expected = "does not have action 3")]
fn a_masked_action_is_not_taken() {
    let config = AbrConfig {
        videos: vec![without(&[1850.0])],
        ..config()
    };
    let mut environment = AbrEnvironment::new(world(config), 1);
    environment.next(&mut Turn::default());
    environment.act(3);
}

#[test]
fn sources_and_videos_are_drawn_by_their_weights() {
    let config = AbrConfig {
        sources: vec![
            markov(),
            TraceSource {
                family: Some(Family::Cellular),
                weight: 3.0,
                count: Some(2),
                ..TraceSource::default()
            },
        ],
        ..config()
    };
    let world = world(config);
    assert_eq!(world.sources(), ["markov-1", "cellular-1"]);
    assert_eq!(
        world.summary(),
        "markov-1 (without end), cellular-1 (2 traces)"
    );
    assert_eq!(world.spec().tasks, 2);
    let mut environment = AbrEnvironment::new(world.clone(), 1);
    let mut turn = Turn::default();
    let mut counts = [0; 2];
    let mut names = std::collections::BTreeSet::new();
    while counts[0] + counts[1] < 400 {
        environment.next(&mut turn);
        if turn.first.is_some() {
            counts[turn.task] += 1;
            let playing = environment.playing.as_ref().expect("a turn");
            let name = playing.session.trace().name().to_owned();
            assert!(
                name.starts_with(["markov", "cellular"][turn.task]),
                "{name}"
            );
            names.insert(name);
        }
        environment.act(0);
    }
    assert!((60..140).contains(&counts[0]), "{counts:?}");
    let cellular = names.iter().filter(|name| name.starts_with("cellular"));
    assert_eq!(cellular.count(), 2);
    let mut alone = AbrEnvironment::new(world, 1).of_source(0);
    for _ in 0..200 {
        alone.next(&mut turn);
        assert_eq!(turn.task, 0);
        alone.act(0);
    }
}

#[test]
fn each_session_scales_its_trace_by_a_factor_of_the_range() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = dir.path().join("t");
    fs::write(&path, "0 1\n300 2\n").expect("a scratch file");
    let scaled = |source: TraceSource| TraceSource {
        scale: Some([0.5, 8.0]),
        stretch: Some([0.5, 2.0]),
        ..source
    };
    let of_file = TraceSource {
        traces: Some(path),
        ..TraceSource::default()
    };
    for source in [of_file, markov()] {
        let config = AbrConfig {
            sources: vec![scaled(source.clone())],
            ..AbrConfig::default()
        };
        let mut environment = AbrEnvironment::new(world(config), 1);
        let mut turn = Turn::default();
        let mut factors = Vec::new();
        let mut periods = Vec::new();
        for _ in 0..47 * 400 {
            environment.next(&mut turn);
            if turn.first.is_some() {
                let playing = environment.playing.as_ref().expect("a turn");
                factors.push(playing.session.trace().mbps()[1]);
                periods.push(playing.session.trace().period_s());
            }
            environment.act(0);
        }
        if source.family.is_some() {
            // Its traces have rates of up to 4.5 Mbit/s.
            assert!(factors.iter().any(|&mbps| mbps > 9.0));
            continue;
        }
        for factor in &mut factors {
            *factor /= 2.0;
        }
        assert!(factors.iter().all(|factor| (0.499..8.001).contains(factor)));
        // Half of them are below the geometric mean, 2.
        let below = factors.iter().filter(|&&factor| factor < 2.0).count();
        assert!((160..240).contains(&below), "{below}");
        assert!(periods.iter().all(|s| (149.9..600.1).contains(s)));
        let shorter = periods.iter().filter(|&&s| s < 300.0).count();
        assert!((160..240).contains(&shorter), "{shorter}");
    }
}

#[test]
fn what_is_held_out_is_not_trained_on() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    for name in 0..7 {
        fs::write(dir.path().join(format!("t{name}")), "0 1\n9 2\n").expect("a scratch file");
    }
    let of_files = || TraceSource {
        traces: Some(dir.path().to_owned()),
        ..TraceSource::default()
    };
    let config = AbrConfig {
        sources: vec![of_files()],
        hold_out: 3,
        validation: Some(ValidationConfig {
            sources: vec![TraceSource {
                count: Some(2),
                ..markov()
            }],
            scales: vec![1.0, 2.5],
            ..ValidationConfig::default()
        }),
        ..AbrConfig::default()
    };
    let world = world(config);
    let names: Vec<&str> = world.judges().iter().map(|trace| trace.name()).collect();
    let each = ["t2", "t5", "markov-1-0", "markov-1-1"];
    assert_eq!(names, [each, each].concat());
    let mean = |judge: usize| world.judges()[judge].mean_mbps();
    assert_eq!([mean(0), mean(4)], [2.0, 5.0]);
    let mut environment = AbrEnvironment::new(world, 1);
    let mut turn = Turn::default();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..10_000 {
        environment.next(&mut turn);
        let playing = environment.playing.as_ref().expect("a turn");
        seen.insert(playing.session.trace().name().to_owned());
        environment.act(0);
    }
    assert_eq!(Vec::from_iter(seen), ["t0", "t1", "t3", "t4", "t6"]);
    let error = refusal(|own| {
        own.sources = vec![of_files()];
        own.hold_out = 1;
    });
    assert!(
        error.contains("none of the 7 traces of sources[0]"),
        "{error}"
    );
}

#[test]
fn series_are_what_pensieves_network_reads() {
    let of = |past, actions| -> Vec<(usize, usize)> {
        let all = series(past, actions);
        all.iter().map(|one| (one.from, one.length)).collect()
    };
    assert_eq!(
        of(8, 6),
        [(16, 8), (24, 8), (32, 6), (7, 1), (15, 1), (47, 1)]
    );
    assert_eq!(
        of(1, 3),
        [(23, 1), (31, 1), (32, 3), (7, 1), (15, 1), (47, 1)]
    );
}

#[test]
fn faults_of_the_settings_are_named_with_their_place() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let faulty = dir.path().join("faulty");
    fs::write(&faulty, "0 1\n1 x\n").expect("a scratch file");
    let of_file = |path: &std::path::Path| TraceSource {
        traces: Some(path.to_owned()),
        ..TraceSource::default()
    };
    type Change<'a> = Box<dyn FnOnce(&mut AbrConfig) + 'a>;
    let cases: Vec<(&str, Change<'_>)> = vec![
        ("sources is empty", Box::new(|own| own.sources.clear())),
        (
            "sources[0]: give either `traces`",
            Box::new(|own| own.sources = vec![TraceSource::default()]),
        ),
        (
            "sources[1]: ",
            Box::new(|own| own.sources.push(of_file(&dir.path().join("none")))),
        ),
        (
            "faulty:2: `1 x`",
            Box::new(|own| own.sources = vec![of_file(&faulty)]),
        ),
        (
            "sources[0].weight is 0, and has to be above 0",
            Box::new(|own| own.sources[0].weight = 0.0),
        ),
        (
            "sources[0].seconds is 0",
            Box::new(|own| own.sources[0].seconds = 0),
        ),
        (
            "sources[0].count is 0",
            Box::new(|own| own.sources[0].count = Some(0)),
        ),
        ("videos is empty", Box::new(|own| own.videos.clear())),
        (
            "videos[0]: the mask leaves no bitrate",
            Box::new(|own| own.videos = vec![without(&ENVIVIO_KBPS)]),
        ),
        (
            "videos[0]: 4300 kbit/s is none of the actions",
            Box::new(|own| own.actions = ENVIVIO_KBPS[..5].to_vec()),
        ),
        (
            "actions: bitrate 1, 300 kbit/s, is not above",
            Box::new(|own| own.actions = vec![750.0, 300.0]),
        ),
        (
            "actions has 9 bitrates",
            Box::new(|own| own.actions = (1..=9).map(f64::from).collect()),
        ),
        (
            "videos[0]: hd has no quality for 500 kbit/s",
            Box::new(|own| {
                own.qoe = Qoe::Hd;
                own.actions = vec![500.0];
                own.videos[0].choice.video = "generated:1".to_owned();
                own.videos[0].choice.kbps = vec![500.0];
            }),
        ),
        (
            "videos[0]: a penalty of -1",
            Box::new(|own| own.rebuffer_penalty = Some(-1.0)),
        ),
        (
            "the number of chunks of videos[0] is 1",
            Box::new(|own| {
                own.videos[0].choice.video = "generated:1".to_owned();
                own.videos[0].choice.chunks = 1;
            }),
        ),
        (
            "past_chunks is 9, and has to be from 1 to 8",
            Box::new(|own| own.past_chunks = 9),
        ),
        (
            "reward_divisor is 0",
            Box::new(|own| own.reward_divisor = 0.0),
        ),
        (
            "sources[0].scale[0] is 0, and has to be from 0.01 to 100",
            Box::new(|own| own.sources[0].scale = Some([0.0, 1.0])),
        ),
        (
            "sources[0].scale[1] is 1, and has to be at least scale[0], 2",
            Box::new(|own| own.sources[0].scale = Some([2.0, 1.0])),
        ),
        (
            "validation.scales[1] is NaN",
            Box::new(|own| {
                own.validation = Some(ValidationConfig {
                    scales: vec![1.0, f64::NAN],
                    ..ValidationConfig::default()
                });
            }),
        ),
        (
            "validation.scales is empty",
            Box::new(|own| {
                own.validation = Some(ValidationConfig {
                    scales: Vec::new(),
                    ..ValidationConfig::default()
                });
            }),
        ),
        (
            "validation.sources[0].scale is [1, 2], and has to be left out",
            Box::new(|own| {
                own.validation = Some(ValidationConfig {
                    sources: vec![TraceSource {
                        count: Some(2),
                        scale: Some([1.0, 2.0]),
                        ..markov()
                    }],
                    ..ValidationConfig::default()
                });
            }),
        ),
        (
            "validation has no traces",
            Box::new(|own| own.validation = Some(ValidationConfig::default())),
        ),
        (
            "validation.sources[0].count is left out",
            Box::new(|own| {
                own.validation = Some(ValidationConfig {
                    sources: vec![markov()],
                    ..ValidationConfig::default()
                });
            }),
        ),
    ];
    for (expected, change) in cases {
        let error = refusal(change);
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
