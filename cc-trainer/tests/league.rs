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
    for file in ["table.md", "report.html", "league.svg", "runs.jsonl"] {
        assert!(dir.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn wrong_input_is_explained() {
    let bdp = ["--scenarios", "pantheon/bdp-1"];
    let refused: [(&[&str], &str); 7] = [
        (
            &["--scenarios", "sage-3"],
            "called `sage-3`: there are sage-",
        ),
        (&["--schemes", "cubik"], "no scheme is called `cubik`"),
        (&["--schemes", ","], "no scheme is named"),
        (&["--sample", "0"], "above 0 and at most 1"),
        (&["--sample", "1.5"], "above 0 and at most 1"),
        (&[bdp[0], bdp[1], "--sample", "0.1"], "--sample 0.5 or more"),
        (&[bdp[0], bdp[1], "--harm"], "nobody to harm"),
    ];
    for (arguments, expected) in refused {
        let error = error(arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
