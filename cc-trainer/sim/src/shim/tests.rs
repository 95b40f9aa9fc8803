use std::{fs, path::Path, sync::Arc, time::Duration};

use proptest::{collection::vec, prelude::*};

use super::{
    recording::{Recorder, Recording},
    *,
};
use crate::{path::Nanos, scenario::Loss};

const MS: Nanos = 1_000_000;

fn drawn(delay_ms: f64, jitter_ms: f64, loss: Loss) -> OneWay {
    OneWay::Drawn {
        delay: Duration::from_secs_f64(delay_ms / 1e3),
        jitter: Duration::from_secs_f64(jitter_ms / 1e3),
        loss,
    }
}

fn same(one_way: OneWay) -> Conditions {
    Conditions {
        there: one_way.clone(),
        back: one_way,
        retransmission: None,
    }
}

fn parse(text: &str) -> Result<Conditions, String> {
    parse_in(text, Path::new(""))
}

fn parse_in(text: &str, folder: &Path) -> Result<Conditions, String> {
    let table: ConditionsTable = toml::from_str(text).map_err(|error| error.to_string())?;
    table.conditions(folder).map_err(|error| error.to_string())
}

/// Mean and standard deviation of the delays in ms, and the share of lost messages.
fn statistics(one_way: &OneWay, seed: u64, count: usize) -> (f64, f64, f64) {
    let mut fates = Fates::new(one_way, seed);
    let drawn: Vec<_> = (0..count).map(|_| fates.draw()).collect();
    let delays: Vec<f64> = drawn
        .iter()
        .flatten()
        .map(|&ns| ns as f64 / MS as f64)
        .collect();
    let mean = delays.iter().sum::<f64>() / delays.len() as f64;
    let squares: f64 = delays.iter().map(|delay| (delay - mean).powi(2)).sum();
    let lost = 1.0 - delays.len() as f64 / count as f64;
    (mean, (squares / delays.len() as f64).sqrt(), lost)
}

#[test]
fn presets_have_their_means_deviations_and_losses() {
    const COUNT: usize = 200_000;
    for (preset, mean, deviation, loss) in [
        (Preset::Ethernet, 2.0, 0.5, 0.0),
        (Preset::Fixed50, 50.0, 0.0, 0.0),
        (Preset::Wan, 100.0, 20.0, 0.005),
        (Preset::WifiNormal, 30.0, 10.0, 0.02),
    ] {
        let conditions = Conditions::from(preset);
        for (one_way, seed) in [(&conditions.there, 1), (&conditions.back, 2)] {
            let (m, d, l) = statistics(one_way, seed, COUNT);
            // Five standard errors, and what the few negative delays of wifi-normal make.
            let error = deviation / (COUNT as f64).sqrt();
            assert!((m - mean).abs() <= 5.0 * error + 0.01, "{preset}: mean {m}");
            assert!(
                (d - deviation).abs() <= 5.0 * error + 0.03,
                "{preset}: deviation {d}"
            );
            let error = (loss * (1.0 - loss) / COUNT as f64).sqrt();
            assert!((l - loss).abs() <= 5.0 * error, "{preset}: loss {l}");
        }
    }
}

#[test]
fn negative_delays_are_zero() {
    let degraded = Conditions::from(Preset::WifiDegraded).there;
    // Of max(0, N(80, 40²)): 80 Φ(2) + 40 φ(2); the share of zeros is Φ(-2).
    let (mean, _, lost) = statistics(&degraded, 3, 200_000);
    assert!((mean - 80.34).abs() < 0.5, "{mean}");
    assert!((lost - 0.1).abs() < 0.004, "{lost}");
    let mut fates = Fates::new(&degraded, 3);
    let zeros = (0..200_000).filter(|_| fates.draw() == Some(0)).count();
    let share = zeros as f64 / 180_000.0;
    assert!((share - 0.0228).abs() < 0.002, "{share}");
}

#[test]
fn bursts_have_their_share_and_their_length() {
    let loss = Loss::GilbertElliott {
        to_bad: 0.02,
        to_good: 0.25,
        good: 0.0,
        bad: 1.0,
    };
    let mut fates = Fates::new(&drawn(10.0, 0.0, loss), 4);
    let lost: Vec<bool> = (0..200_000).map(|_| fates.draw().is_none()).collect();
    let share = lost.iter().filter(|lost| **lost).count() as f64 / 200_000.0;
    assert!((share - 0.02 / 0.27).abs() < 0.005, "{share}");
    let bursts = lost.chunk_by(|a, b| a == b).filter(|chunk| chunk[0]);
    let lengths: Vec<usize> = bursts.map(<[bool]>::len).collect();
    let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
    assert!((mean - 4.0).abs() < 0.2, "{mean}");
}

#[test]
fn loss_does_not_change_the_delays_of_what_arrives() {
    let mut clean = Fates::new(&drawn(30.0, 10.0, Loss::None), 5);
    let mut lossy = Fates::new(&drawn(30.0, 10.0, Loss::Bernoulli(0.3)), 5);
    for _ in 0..1_000 {
        let delay = clean.draw();
        assert!([delay, None].contains(&lossy.draw()));
    }
}

#[test]
fn the_ways_and_the_seeds_are_independent() {
    let conditions = Conditions::from(Preset::WifiNormal);
    let fates = |seed| {
        let (mut there, mut back) = conditions.channels::<(), ()>(Medium::Datagrams, seed);
        let both = (0..50).map(|n| (there.offer(n, ()), back.offer(n, ())));
        both.unzip::<_, _, Vec<_>, Vec<_>>()
    };
    assert_eq!(fates(1), fates(1));
    let ((there, back), (other, _)) = (fates(1), fates(2));
    assert!(there != back && there != other);
}

#[test]
fn datagrams_overtake_each_other_and_pieces_of_a_stream_do_not() {
    let conditions = same(drawn(80.0, 40.0, Loss::None));
    let order = |medium| {
        let (mut there, _) = conditions.channels::<u64, ()>(medium, 6);
        for number in 0..200 {
            there.offer(number * MS, number);
        }
        let taken: Vec<_> = std::iter::from_fn(|| there.take(Nanos::MAX)).collect();
        assert!(taken.is_sorted_by_key(|(at, _)| *at));
        taken
            .into_iter()
            .map(|(_, number)| number)
            .collect::<Vec<_>>()
    };
    assert!(order(Medium::Stream).iter().copied().eq(0..200));
    let mut overtaken = order(Medium::Datagrams);
    assert!(!overtaken.is_sorted());
    overtaken.sort_unstable();
    assert!(overtaken.into_iter().eq(0..200));
}

#[test]
fn a_lost_piece_of_a_stream_is_late_and_holds_up_the_rest() {
    let script = [None, None, Some(10 * MS), Some(10 * MS)];
    let mut conditions = same(OneWay::Replayed(Arc::new(script)));
    conditions.retransmission = Some(Duration::from_millis(20));
    let (mut there, _) = conditions.channels::<_, ()>(Medium::Stream, 1);
    // Sent at 0, at 20 and at 60 ms, of which the last arrives.
    let late = Fate::Arrives {
        at: 70 * MS,
        resent: 2,
    };
    assert_eq!(there.offer(0, "late"), late);
    let held_up = Fate::Arrives {
        at: 70 * MS,
        resent: 0,
    };
    assert_eq!(there.offer(MS, "held up"), held_up);
    assert_eq!(
        (there.take(70 * MS - 1), there.next_at()),
        (None, Some(70 * MS))
    );
    assert_eq!(there.take(70 * MS), Some((70 * MS, "late")));
    assert_eq!(there.take(70 * MS), Some((70 * MS, "held up")));
    assert_eq!((there.take(Nanos::MAX), there.in_flight()), (None, 0));
}

#[test]
fn the_wait_for_a_retransmission_is_the_mean_round_trip() {
    let conditions = Conditions {
        there: OneWay::Replayed(Arc::new([None, Some(10 * MS), Some(30 * MS)])),
        back: drawn(40.0, 0.0, Loss::None),
        retransmission: None,
    };
    let (mut there, _) = conditions.channels::<_, ()>(Medium::Stream, 1);
    // 20 ms there and 40 back.
    let late = Fate::Arrives {
        at: 70 * MS,
        resent: 1,
    };
    assert_eq!(there.offer(0, ()), late);
}

#[test]
fn a_stream_that_never_gets_through_breaks() {
    let (mut there, mut back) =
        same(drawn(5.0, 0.0, Loss::Bernoulli(1.0))).channels(Medium::Stream, 1);
    assert_eq!(there.offer(0, ()), Fate::Lost);
    assert_eq!(back.offer(0, ()), Fate::Lost);
    let fates = Arc::new([None; MAX_TRANSMISSIONS as usize]);
    let mixed: Vec<_> = fates.iter().copied().chain([Some(MS)]).collect();
    let (mut there, _) = same(OneWay::Replayed(mixed.into())).channels::<_, ()>(Medium::Stream, 1);
    assert_eq!(there.offer(0, ()), Fate::Lost);
    assert_eq!(there.offer(0, ()), Fate::Lost, "what is broken stays so");
    assert_eq!(there.in_flight(), 0);
}

#[test]
fn tables_say_what_they_mean() {
    let both = parse("delay_ms = 20\njitter_ms = 5\nloss = 0.01").expect("valid");
    assert_eq!(both, same(drawn(20.0, 5.0, Loss::Bernoulli(0.01))));
    assert_eq!(parse("").expect("valid"), same(OneWay::PERFECT));
    for preset in Preset::ALL {
        let parsed = parse(&format!("preset = \"{preset}\"")).expect("valid");
        assert_eq!(parsed, Conditions::from(preset));
        assert_eq!(preset.to_string().parse::<Preset>().expect("valid"), preset);
    }
    let differ = parse(
        "preset = \"wifi-normal\"\nretransmission_ms = 40\n\
         [there]\nloss = 0\n[back]\npreset = \"fixed-50\"\njitter_ms = 1\n\
         loss = { to_bad = 0.1, to_good = 0.5 }",
    );
    let bursts = Loss::GilbertElliott {
        to_bad: 0.1,
        to_good: 0.5,
        good: 0.0,
        bad: 1.0,
    };
    let expected = Conditions {
        there: drawn(30.0, 10.0, Loss::None),
        back: drawn(50.0, 1.0, bursts),
        retransmission: Some(Duration::from_millis(40)),
    };
    assert_eq!(differ.expect("valid"), expected);
}

#[test]
fn tables_are_written_as_they_are_read() {
    for text in [
        "",
        "preset = \"fixed-50\"\n",
        "delay_ms = 20.5\nloss = 0.25\n\n[there]\njitter_ms = 1.0\n\n[back]\nreplay = \"x\"\n",
        "retransmission_ms = 1.0\n\n[loss]\nto_bad = 0.1\nto_good = 0.5\ngood = 0.0\nbad = 1.0\n",
    ] {
        let table: ConditionsTable = toml::from_str(text).expect("valid");
        assert_eq!(toml::to_string(&table).expect("plain data"), text);
    }
    let table = ConditionsTable::from(Preset::Wan);
    assert_eq!(
        toml::to_string(&table).expect("plain data"),
        "preset = \"wan\"\n"
    );
}

#[test]
fn errors_name_the_place_and_the_remedy() {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let write = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).expect("a scratch file");
    };
    write("one-way", "there 3\nthere lost\n");
    write("bad", "# fine\n\n3.5\nthere late\n");
    write("negative", "back -1\n");
    write("empty", "# nothing\n");
    for (text, expected) in [
        (
            "delay_ms = -3",
            "a number of milliseconds from 0 to 60000 is wanted here, not -3",
        ),
        ("delay_ms = nan", "wanted here, not NaN"),
        (
            "loss = 1.5",
            "a probability from 0 to 1 is wanted here, not 1.5",
        ),
        ("loss = { to_bad = 0.1 }", "missing field `to_good`"),
        ("a = 1\nb = 2", "line 1"),
        (
            "delay = 3",
            "unknown field `delay`, expected one of `preset`, `delay_ms`",
        ),
        (
            "[back]\nretransmission_ms = 3",
            "unknown field `retransmission_ms`",
        ),
        (
            "preset = \"wifi\"",
            "unknown variant `wifi`, expected one of `ethernet`, `fixed-50`",
        ),
        ("replay = \"none\"", "cannot read the recording"),
        (
            "replay = \"one-way\"",
            "one-way has no messages of the direction `back`: add lines `back MS`",
        ),
        ("replay = \"empty\"", "no messages of the direction `there`"),
        (
            "replay = \"bad\"",
            "bad:4: `there late` is no message: write its delay in ms",
        ),
        (
            "[back]\nreplay = \"negative\"",
            "negative:1: a number of milliseconds from 0",
        ),
        (
            "replay = \"one-way\"\nloss = 0.1",
            "the table of both directions has both `replay` and `loss`",
        ),
        (
            "[there]\npreset = \"wan\"\nreplay = \"one-way\"",
            "the table [there] has both `replay` and `preset`",
        ),
        (
            "replay = \"one-way\"\n[there]\ndelay_ms = 1",
            "the table [there] has both `replay` and `delay_ms`",
        ),
    ] {
        let error = parse_in(text, folder.path()).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    let unknown = "wifi-norma".parse::<Preset>().expect_err("unknown");
    assert!(
        unknown
            .to_string()
            .starts_with("no preset is called `wifi-norma`: there are wifi-normal, "),
        "{unknown}"
    );
    // One way of a recording may be replayed, and a preset replaces a recording.
    let one = parse_in("[there]\nreplay = \"one-way\"", folder.path()).expect("valid");
    assert_eq!(one.there, OneWay::Replayed(Arc::new([Some(3 * MS), None])));
    assert_eq!(one.back, OneWay::PERFECT);
    write("any", "1\n");
    let replaced = "replay = \"any\"\n[back]\npreset = \"fixed-50\"";
    let replaced = parse_in(replaced, folder.path()).expect("valid");
    assert_eq!(replaced.there, OneWay::Replayed(Arc::new([Some(MS)])));
    assert_eq!(replaced.back, drawn(50.0, 0.0, Loss::None));
}

#[test]
fn a_recording_is_looped() {
    let recording: Recording = "there 1\nlost # both\nback 2.5\n".parse().expect("valid");
    assert_eq!(recording.way(Way::There), [Some(MS), None]);
    assert_eq!(recording.way(Way::Back), [None, Some(2_500_000)]);
    let mut fates = Fates::new(&OneWay::Replayed(recording.way(Way::There).into()), 1);
    let drawn: Vec<_> = (0..5).map(|_| fates.draw()).collect();
    assert_eq!(drawn, [Some(MS), None, Some(MS), None, Some(MS)]);
}

/// Any conditions of one direction that the model can have.
fn one_way() -> impl Strategy<Value = OneWay> {
    let share = || 0.0..=1.0_f64;
    let loss = prop_oneof![
        Just(Loss::None),
        share().prop_map(Loss::Bernoulli),
        (share(), share(), share(), share()).prop_map(|(to_bad, to_good, good, bad)| {
            Loss::GilbertElliott {
                to_bad,
                to_good,
                good,
                bad,
            }
        }),
    ];
    let fates = vec(proptest::option::weighted(0.8, 0..=60_000 * MS), 1..20);
    prop_oneof![
        (0.0..500.0, 0.0..200.0, loss).prop_map(|(delay, jitter, loss)| drawn(delay, jitter, loss)),
        fates.prop_map(|fates| OneWay::Replayed(fates.into())),
    ]
}

fn medium() -> impl Strategy<Value = Medium> {
    prop_oneof![Just(Medium::Datagrams), Just(Medium::Stream)]
}

proptest! {
    #[test]
    fn nothing_is_lost_doubled_or_early_but_as_the_fates_say(
        one_way in one_way(),
        medium in medium(),
        gaps in vec(0..200 * MS, 1..100),
        seed: u64,
    ) {
        let (mut there, _) = same(one_way).channels::<usize, ()>(medium, seed);
        let (mut now, mut promised, mut taken) = (0, Vec::new(), Vec::new());
        for (number, gap) in gaps.into_iter().enumerate() {
            now += gap;
            if let Fate::Arrives { at, resent } = there.offer(now, number) {
                prop_assert!(at >= now);
                prop_assert!(resent == 0 || medium == Medium::Stream);
                promised.push((at, number));
            }
            // What is taken at once and what is taken later are the same.
            if number % 3 == 0 {
                taken.extend(std::iter::from_fn(|| there.take(now)));
                prop_assert!(there.next_at().is_none_or(|at| at > now));
            }
        }
        prop_assert_eq!(promised.len(), taken.len() + there.in_flight());
        taken.extend(std::iter::from_fn(|| there.take(Nanos::MAX)));
        prop_assert!(medium == Medium::Datagrams || promised.is_sorted());
        promised.sort_unstable();
        prop_assert_eq!(promised, taken);
    }

    #[test]
    fn a_replayed_recording_repeats_what_was_recorded(
        there in one_way(),
        back in one_way(),
        seed: u64,
    ) {
        let conditions = Conditions { there, back, retransmission: None };
        let mut recorder = Recorder::new(Vec::new()).expect("memory");
        let run = |conditions: &Conditions, recorder: &mut Recorder<Vec<u8>>| {
            let (mut there, mut back) = conditions.channels::<(), ()>(Medium::Datagrams, seed);
            let mut fates = Vec::new();
            for now in (0..40).map(|number| number * 20 * MS) {
                for (way, channel) in [(Way::There, &mut there), (Way::Back, &mut back)] {
                    let fate = channel.offer(now, ());
                    recorder.record(way, now, fate).expect("memory");
                    fates.push(fate);
                }
            }
            fates
        };
        let first = run(&conditions, &mut recorder);
        let written = recorder.finish().expect("memory");
        let text = String::from_utf8(written.clone()).expect("text");
        let recording: Recording = text.parse().expect("what was written is read");
        let replayed = Conditions {
            there: OneWay::Replayed(recording.way(Way::There).into()),
            back: OneWay::Replayed(recording.way(Way::Back).into()),
            retransmission: None,
        };
        let mut recorder = Recorder::new(Vec::new()).expect("memory");
        prop_assert_eq!(run(&replayed, &mut recorder), first);
        prop_assert_eq!(recorder.finish().expect("memory"), written);
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in "\\PC{0,40}(\n\\PC{0,40}){0,4}") {
        if let Err(error) = text.parse::<Recording>() {
            prop_assert!((1..=5).contains(&error.line) && !error.fault.is_empty());
        }
        let _ = parse(&text);
    }

    #[test]
    fn lines_of_a_recording_are_kept_or_refused(
        lines in vec("(there |back |)(lost|[0-9]{1,5}(\\.[0-9]{1,6})?)( #.{0,5})?", 0..20),
    ) {
        let text = lines.join("\n");
        let parsed = text.parse::<Recording>();
        let is_long = |line: &String| {
            let what = line.trim_start_matches(|c: char| c.is_alphabetic() || c == ' ');
            let number = what.split(' ').next().and_then(|ms| ms.parse::<f64>().ok());
            number.is_some_and(|ms| ms > 60_000.0)
        };
        let Ok(recording) = parsed else {
            prop_assert!(lines.iter().any(is_long));
            return Ok(());
        };
        for (way, other) in [(Way::There, "back"), (Way::Back, "there")] {
            let count = lines.iter().filter(|line| !line.starts_with(other)).count();
            prop_assert_eq!(recording.way(way).len(), count);
        }
    }
}
