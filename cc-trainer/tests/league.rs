//! `cc-trainer league` from its command line to its files.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

fn league(out: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .arg("league")
        .args(arguments)
        .arg("--out")
        .arg(out)
        .output()
        .expect("the binary starts")
}

fn error(arguments: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let output = league(&dir.path().join("out"), arguments);
    assert!(!output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stderr).expect("it is text")
}

#[test]
fn a_league_writes_its_standings_table_page_and_picture() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let link = "pantheon/bdp-1,pantheon/policer-12-rtt20,pantheon/policer-60-rtt20";
    let arguments = [
        "--schemes",
        "cubic,fixed:2",
        "--scenarios",
        link,
        "--seconds",
        "2",
    ];
    let output = league(dir.path(), &arguments);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("league of cubic, fixed:2"), "{text}");
    assert!(
        text.contains("policer-60-rtt20 (as policer-12-rtt20)"),
        "{text}"
    );
    let json = fs::read(dir.path().join("league.json")).expect("just written");
    let json: Value = serde_json::from_slice(&json).expect("it is JSON");
    assert_eq!((&json["set"], &json["games"]), (&link.into(), &2.into()));
    for scheme in ["cubic", "fixed:2"] {
        let standing = &json["schemes"][scheme];
        assert!(standing["wins"].is_u64() && standing["score"].is_f64());
    }
    for file in [
        "table.md",
        "report.html",
        "league.svg",
        "links.jsonl",
        "runs.jsonl",
    ] {
        assert!(dir.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn two_leagues_are_compared_run_by_run() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
    let links = [
        "--scenarios",
        "pantheon/bdp-1,pantheon/bdp-half",
        "--seconds",
        "2",
    ];
    for (out, schemes) in [(&one, "cubic,fixed:2"), (&other, "fixed:2,reno")] {
        let output = league(out, &[&links[..], &["--schemes", schemes]].concat());
        assert!(output.status.success(), "{output:?}");
    }
    let compare = |second: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cc-trainer"));
        command.arg("compare").arg(one.join("league.json"));
        let output = command.arg(second).output().expect("the binary starts");
        let text = [output.stdout, output.stderr].concat();
        (output.status, String::from_utf8(text).expect("it is text"))
    };
    let (status, text) = compare(&other.join("league.json"));
    assert!(status.success(), "{text}");
    assert!(
        text.contains("fixed:2") && text.contains("bdp-half"),
        "{text}"
    );
    assert!(text.contains("left out: 4 pairs"), "{text}");

    fs::remove_file(other.join("links.jsonl")).expect("it is there");
    let (status, text) = compare(&other.join("league.json"));
    assert!(
        !status.success() && text.contains("other/links.jsonl (written by"),
        "{text}"
    );
}

#[test]
fn wrong_input_is_explained() {
    let bdp = ["--scenarios", "pantheon/bdp-1"];
    let refused: [(&[&str], &str); 8] = [
        (
            &["--scenarios", "sage-3"],
            "called `sage-3`: there are sage-",
        ),
        (&["--schemes", "cubik"], "no scheme is called `cubik`"),
        (&["--schemes", ","], "no scheme is named"),
        (&["--sample", "0"], "above 0 and at most 1"),
        (&["--sample", "1.5"], "above 0 and at most 1"),
        (&["--by", "size"], "rate, rtt, buffer, neighbours"),
        (&[bdp[0], bdp[1], "--sample", "0.1"], "--sample 0.5 or more"),
        (&[bdp[0], bdp[1], "--harm"], "nobody to harm"),
    ];
    for (arguments, expected) in refused {
        let error = error(arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
