//! Leagues in the simulator, from the links to the standings.

use std::{fs, time::Duration};

use super::*;
use crate::{evaluate::tests::evaluation, report};

/// Two links of one flow, the second one with segments of its own, and a copy of the first.
const SINGLE: &str = "
[[scenario]]
name = \"shallow\"
rate_mbps = 8
delay_ms = 10
queue = { bdp = 0.5 }
loss = 0.002

[[scenario]]
name = \"deep\"
rate_mbps = 8
delay_ms = 10
queue = { bdp = 8 }
seconds = 6
score = { segments_s = [[0, 2], [2, 6]] }

[[scenario]]
name = \"shallow-again\"
rate_mbps = 8
delay_ms = 10
queue = { bdp = 0.5 }
loss = 0.002
";

/// A flow that joins a cubic.
const BESIDE: &str = "
[[scenario]]
name = \"beside\"
rate_mbps = 8
delay_ms = 10
queue = { bdp = 4 }
seconds = 12

[[scenario.flow]]
scheme = \"cubic\"

[[scenario.flow]]
start_s = 2
";

fn league(links: &str, schemes: &str, dir: &tempfile::TempDir) -> League {
    League {
        evaluation: Evaluation {
            seconds: None,
            runs: 1,
            ..evaluation(links, schemes, dir)
        },
        set: "links.toml".into(),
        sample: None,
        harm: false,
        against: Vec::new(),
        by: Vec::new(),
        counted: Counted::Valid,
    }
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a scratch directory")
}

fn played(league: &League) -> Outcome {
    play(league, &AtomicBool::new(false), |_| {}).expect("it needs nothing")
}

/// The standings without what differs between two leagues of the same schemes.
fn results(standings: &Standings) -> String {
    let results = Standings {
        settings: Settings::default(),
        order: Vec::new(),
        ..standings.clone()
    };
    serde_json::to_string(&results).expect("finite")
}

#[test]
fn every_segment_is_a_game_and_equal_links_count_once() {
    let dir = scratch();
    let outcome = played(&league(SINGLE, "cubic,reno,fixed:2", &dir));
    let standings = &outcome.standings;
    assert_eq!((standings.links, standings.games), (2, 3));
    assert_eq!(standings.duplicates.len(), 1);
    let of = |name: &str| &standings.schemes[name];
    assert!(of("cubic").wins + of("reno").wins >= 2);
    assert_eq!(of("fixed:2").wins, 0, "it leaves the links empty");
    for standing in standings.schemes.values() {
        let score = standing.score.expect("links have rates");
        assert!((0.0..1.0).contains(&score), "{score}");
        let rate = standing.measures["win_rate"].estimate.mean;
        assert!((rate - standing.wins as f64 / 3.0).abs() < 1e-12, "{rate}");
        assert!(standing.segments.is_empty(), "links have different ones");
        assert!(!standing.measures.contains_key("share"));
    }
    assert!(of("cubic").score > of("fixed:2").score);
    let lead = of("fixed:2").measures["score"].lead.mean;
    assert!(
        lead > 1.0,
        "two segments leave most of a link empty: {lead}"
    );
    // Segments are measured where they are: slow start leaves more of the link unused.
    let deep = outcome
        .board
        .links
        .iter()
        .position(|link| link.name == "deep");
    let cubic = &outcome.board.cells[deep.expect("it is one of them")][0];
    assert_eq!((cubic.won.len(), cubic.scores.len()), (2, 2));
}

#[test]
fn neither_the_order_nor_a_copy_nor_the_disk_changes_the_standings() {
    let dir = scratch();
    let first = played(&league(SINGLE, "cubic,reno", &dir)).standings;
    let runs = fs::read(dir.path().join("runs.jsonl")).expect("it is there");
    let again = played(&league(SINGLE, "cubic,reno", &dir)).standings;
    assert_eq!(results(&first), results(&again));
    let kept = fs::read(dir.path().join("runs.jsonl")).expect("it is there");
    assert_eq!(runs, kept, "no run was made again");

    let other_order = played(&league(SINGLE, "reno,cubic", &scratch())).standings;
    let without_copy = SINGLE
        .split("[[scenario]]\nname = \"shallow-again\"")
        .next();
    let without_copy = league(without_copy.expect("the rest"), "cubic,reno", &scratch());
    let without_copy = played(&without_copy).standings;
    for (name, standing) in &first.schemes {
        let other = &other_order.schemes[name];
        assert_eq!((standing.wins, standing.score), (other.wins, other.score));
        assert_eq!(standing, &without_copy.schemes[name]);
    }
}

#[test]
fn a_scheme_that_plays_under_two_names_wins_as_often_under_both() {
    let file = tempfile::Builder::new()
        .suffix(".onnx")
        .tempfile()
        .expect("a scratch file");
    fs::write(file.path(), cc_core::policy::DEFAULT_POLICY).expect("it is ours");
    let schemes = format!("rlcc,same={},cubic", file.path().display());
    let standings = played(&league(SINGLE, &schemes, &scratch())).standings;
    let (one, other) = (&standings.schemes["rlcc"], &standings.schemes["same"]);
    assert_eq!((one.wins, one.score), (other.wins, other.score));
    let lead = other.measures["win_rate"].lead;
    assert_eq!(
        (lead.mean, lead.low, lead.high),
        (0.0, Some(0.0), Some(0.0))
    );
}

#[test]
fn harm_is_measured_against_the_neighbour_alone() {
    let dir = scratch();
    let asked = League {
        harm: true,
        ..league(BESIDE, "cubic,fixed:400,fixed:2", &dir)
    };
    let standings = played(&asked).standings;
    let of = |scheme: &str, key: &str| standings.schemes[scheme].measures[key].estimate.mean;
    let harm = |scheme| of(scheme, "harm_throughput");
    // Some 400 segments leave nothing, and two take 2 × 1448 bytes in at least 20 ms.
    assert!(harm("fixed:400") > 0.8, "{}", harm("fixed:400"));
    assert!((0.0..0.2).contains(&harm("fixed:2")), "{}", harm("fixed:2"));
    assert!((0.3..0.7).contains(&harm("cubic")), "{}", harm("cubic"));
    assert_eq!(of("cubic", "excess_harm_throughput"), 0.0);
    assert!(of("fixed:400", "excess_harm_throughput") > 0.2);
    assert!(of("fixed:400", "share") > 1.5);
    for scheme in ["cubic", "fixed:400", "fixed:2"] {
        // The set has one link, so that the mean is that link's figure.
        let share = of(scheme, "share");
        let distance = of(scheme, "share_distance");
        assert!((distance - share.max(1.0 / share)).abs() < 1e-9, "{scheme}");
    }
    assert_eq!(standings.schemes["cubic"].wins, 1, "it shares best");

    // Without cubic in the league, its harm to itself is measured all the same.
    let without = League {
        harm: true,
        ..league(BESIDE, "fixed:2", &scratch())
    };
    let without = played(&without).standings;
    let excess = without.schemes["fixed:2"].measures["excess_harm_throughput"];
    assert!((excess.estimate.mean - (harm("fixed:2") - harm("cubic"))).abs() < 0.1);
}

#[test]
fn the_power_is_compared_with_the_best_of_those_named() {
    let links = format!("{SINGLE}{BESIDE}");
    let asked = League {
        against: vec!["cubic".into(), "reno".into()],
        ..league(&links, "fixed:2,cubic,reno", &scratch())
    };
    let Outcome {
        standings, board, ..
    } = played(&asked);
    let against = standings.against.as_ref().expect("two links of one flow");
    assert_eq!(against.links, 2, "a flow beside a cubic is not compared");
    let own = |link: usize, scheme: usize| board.cells[link][scheme].own_power();
    let ratio = |link, scheme| own(link, scheme) / own(link, 1).max(own(link, 2));
    for (scheme, found) in against.schemes.iter().enumerate() {
        assert_eq!(found.scheme, board.schemes[scheme]);
        let (shallow, deep) = (ratio(0, scheme), ratio(1, scheme));
        let expected = (shallow * deep).sqrt();
        assert!(
            (found.power.mean / expected - 1.0).abs() < 1e-9,
            "{found:?}"
        );
        assert!((found.least.power / shallow.min(deep) - 1.0).abs() < 1e-9);
        let weak = [shallow, deep]
            .iter()
            .filter(|power| **power < WEAK)
            .count();
        assert_eq!(found.weak.len(), weak);
    }
    let [fixed, cubic, reno] = &against.schemes[..] else {
        panic!("{against:?}");
    };
    assert!(cubic.power.mean <= 1.0 && reno.power.mean <= 1.0);
    assert_eq!((fixed.enough, cubic.enough), (0.0, 1.0));

    let text = table::text(&standings);
    assert!(
        text.contains("power against the best of cubic, reno on the same link, over the 2 links"),
        "{text}"
    );
    let page = report::league::html(&standings, &board);
    assert!(page.contains("Power against those named"), "{page}");
    assert_eq!(
        text.contains("links on which fixed:2 has less than 0.6 of the best of cubic, reno"),
        !fixed.weak.is_empty(),
        "{text}"
    );

    let nobody = League {
        against: vec!["cubic".into(), "bbr".into()],
        ..asked
    };
    let error = play(&nobody, &AtomicBool::new(false), |_| {}).expect_err("bbr does not play");
    assert!(
        error.to_string().contains(
            "--against: no scheme of the league is called `bbr`: there are fixed:2, cubic, reno"
        ),
        "{error}"
    );
}

#[test]
fn the_kinds_of_links_make_up_the_whole() {
    let scratch = scratch();
    let later = BESIDE.replace("beside", "deeper").replace("4", "16");
    let links = format!("{SINGLE}{BESIDE}{later}");
    let asked = League {
        by: vec![Property::Neighbours, Property::Buffer],
        ..league(&links, "cubic,fixed:2", &scratch)
    };
    let Outcome {
        standings, board, ..
    } = played(&asked);
    let [power, share] = &standings.by[..] else {
        panic!("{:?}", standings.by);
    };
    assert_eq!((&*power.measure, &*share.measure), ("power", "share"));
    for (by, neighbours, buffers) in [
        (power, "none", ["0.500", "8.00"]),
        (share, "cubic", ["4.00", "16.0"]),
    ] {
        assert_eq!(by.kinds.len(), buffers.len());
        let kinds = by.kinds.iter().zip(buffers);
        for (kind, buffer) in kinds {
            assert_eq!((&*kind.of[0], kind.links), (neighbours, 1), "{kind:?}");
            assert!(kind.of[1].starts_with(&buffer[..2]), "{kind:?}");
        }
    }
    // Both kinds have a link, so that the mean of the kinds is that of the links.
    for (scheme, name) in standings.order.iter().enumerate() {
        let means = share.kinds.iter().map(|kind| kind.schemes[scheme].mean);
        let mean = means.sum::<f64>() / 2.0;
        let whole = standings.schemes[name].measures["share"].estimate.mean;
        assert!((mean / whole - 1.0).abs() < 1e-9, "{mean} {whole}");
    }

    let lines = links::lines(&board).expect("finite");
    fs::write(scratch.path().join(links::LINKS), lines).expect("it is writable");
    let read = links::read(scratch.path()).expect("just written");
    for (line, cells) in read.iter().zip(&board.cells) {
        let cubic = &line.schemes["cubic"];
        assert_eq!(cubic.share.is_some(), line.neighbours == ["cubic"]);
        assert_eq!(cubic.throughput_mbps, cells[0].throughput_mbps);
    }
    assert_eq!(read.len(), 4);

    let title = "share ÷ fair by neighbours and buffer: mean (least, greatest)";
    assert!(table::text(&standings).contains(title));
    let page = report::league::html(&standings, &board);
    assert!(page.contains(title) && page.contains("Where they win"));
    let json = serde_json::to_string(&standings).expect("finite");
    let read: Standings = serde_json::from_str(&json).expect("just written");
    assert_eq!(read.by.len(), 2);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let error = |league: &League| {
        let outcome = play(league, &AtomicBool::new(false), |_| {});
        outcome.expect_err("it is refused").to_string()
    };
    let dir = scratch();
    let nobody = League {
        harm: true,
        ..league(SINGLE, "cubic", &dir)
    };
    assert!(
        error(&nobody).contains("nobody to harm"),
        "{}",
        error(&nobody)
    );
    let empty = League {
        sample: Some(0.1),
        ..league(SINGLE, "cubic", &dir)
    };
    assert!(
        error(&empty).contains("of 2 links is empty; --sample 0.25"),
        "{}",
        error(&empty)
    );
    let short = League {
        evaluation: Evaluation {
            seconds: Some(Duration::from_secs(1)),
            ..league(BESIDE, "cubic", &dir).evaluation
        },
        ..league(BESIDE, "cubic", &dir)
    };
    assert!(error(&short).contains("starts at 2 s"), "{}", error(&short));
}

#[test]
fn a_cancelled_league_continues() {
    let dir = scratch();
    let league = league(SINGLE, "cubic,reno", &dir);
    let cancel = AtomicBool::new(false);
    let first = play(&league, &cancel, |event| {
        if let Event::Ended { .. } = event {
            cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    assert!(first.expect("cancelling is no error").cancelled);
    let mut kept = 0;
    let outcome = play(&league, &AtomicBool::new(false), |event| {
        if let Event::Begun { kept: found, .. } = event {
            kept = found;
        }
    });
    assert!(kept >= 1 && !outcome.expect("it needs nothing").cancelled);
}

#[test]
fn disturbed_runs_count_where_they_are_asked_for_and_are_named() {
    let dir = scratch();
    let strict = league(SINGLE, "cubic,reno", &dir);
    let lenient = League {
        counted: Counted::Disturbed,
        ..strict.clone()
    };
    let calm = played(&lenient).standings;
    assert_eq!(calm.settings.disturbed, None);

    // One run becomes one that the host disturbed.
    let path = dir.path().join("runs.jsonl");
    let text = fs::read_to_string(&path).expect("the runs of the league");
    let late = text
        .replacen("\"reasons\":[]", "\"reasons\":[\"late\"]", 1)
        .replacen("\"lateness_p999_ms\":0.0", "\"lateness_p999_ms\":4.5", 1);
    assert_ne!(late, text);
    fs::write(&path, late).expect("it is ours");

    let begun = |league: &League| {
        let mut begun = (0, 0);
        let outcome = play(league, &AtomicBool::new(false), |event| {
            if let Event::Begun { left, kept } = event {
                begun = (left, kept);
            }
        });
        (outcome.expect("it needs nothing").standings, begun)
    };
    let (disturbed, (left, kept)) = begun(&lenient);
    assert_eq!((left, kept), (0, 4), "nothing is repeated");
    assert_eq!(results(&disturbed), results(&calm));
    let expected = Disturbed {
        runs: 1,
        of: 4,
        lateness_p999_ms: 4.5,
        greatest_p999_ms: 4.5,
        lossy: 0,
    };
    assert_eq!(disturbed.settings.disturbed, Some(expected));
    let text = table::text(&disturbed);
    assert!(text.contains("the host disturbed 1 of 4 runs"), "{text}");

    let (strict, (left, kept)) = begun(&strict);
    assert_eq!((left, kept), (1, 3), "the disturbed run is made again");
    assert_eq!(results(&strict), results(&calm));
    assert_eq!(strict.settings.disturbed, None);
}

#[test]
fn the_standings_are_shown_and_read_again() {
    let dir = scratch();
    let Outcome {
        standings, board, ..
    } = played(&league(BESIDE, "cubic,reno", &dir));
    let json = serde_json::to_string(&standings).expect("finite");
    let read: Standings = serde_json::from_str(&json).expect("just written");
    assert_eq!(read.order, standings.order);
    for (name, standing) in &standings.schemes {
        let keys = |standing: &Standing| standing.measures.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&read.schemes[name]), keys(standing));
    }
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["set"], "links.toml");
    assert_eq!(value["games"], 1);
    assert!(value["schemes"]["cubic"]["wins"].is_u64());
    assert!(value["schemes"]["cubic"]["score"].is_f64());

    let text = table::text(&standings);
    assert!(
        text.starts_with("links.toml: 1 games on 1 links, league of cubic, reno"),
        "{text}"
    );
    assert!(
        text.contains("lead of cubic") && text.contains("share"),
        "{text}"
    );
    assert!(table::markdown(&standings).contains("| scheme |"));
    let page = report::league::write(dir.path(), &standings, &board).expect("it is writable");
    let page = fs::read_to_string(page).expect("just written");
    assert!(
        page.contains("League on links.toml") && page.contains("<svg"),
        "{page}"
    );
    let picture = fs::read_to_string(dir.path().join("league.svg")).expect("just written");
    assert!(
        picture.contains("cubic") && picture.ends_with("</svg>\n"),
        "{picture}"
    );
}
