//! `cc-trainer search` from its command line to its files.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

fn trainer(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .args(arguments)
        .output()
        .expect("the binary starts")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn json(path: &Path) -> Value {
    let text = fs::read(path).expect("just written");
    serde_json::from_slice(&text).expect("it is JSON")
}

#[test]
fn a_search_writes_links_that_other_commands_read_and_a_check_judges_them() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let out = path(dir.path());
    let arguments = [
        "search",
        "--policy",
        "fixed:10",
        "--against",
        "cubic",
        "--families",
        "broad",
        "--links",
        "24",
        "--worst",
        "3",
        "--runs",
        "1",
        "--seconds",
        "1",
        "--out",
        out,
    ];
    let output = trainer(&arguments);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("3 links of 24 tried on which rlcc (fixed:10) loses"),
        "{text}"
    );
    let report = json(&dir.path().join("search.json"));
    assert_eq!(report["worst"].as_array().map(Vec::len), Some(3));
    assert_eq!(report["settings"]["seed"], 1);

    let links = dir.path().join("worst.toml");
    let listed = trainer(&["sets", path(&links)]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert_eq!(listed.lines().count(), 3, "{listed}");

    let checked = trainer(&["search", "check", out, "--on", "sim"]);
    assert!(checked.status.success(), "{checked:?}");
    let check = json(&dir.path().join("check.json"));
    assert_eq!(check["links"][0]["verdict"], "real");
    let table = fs::read_to_string(dir.path().join("table.md")).expect("just written");
    assert!(
        table.contains("of 3 links judged, 3 losses are real"),
        "{table}"
    );
}

#[test]
fn wrong_input_is_explained() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let out = dir.path().join("out");
    let file = dir.path().join("file");
    fs::write(&file, "").expect("a scratch file");
    let under = file.join("out");
    let refused: [(&[&str], &str); 9] = [
        (
            &["--families", "braod"],
            "no family `braod`; there are broad, extreme",
        ),
        (
            &["--families", ","],
            "name at least one, as in --families broad",
        ),
        (
            &["--against", ","],
            "name at least one, as in --against cubic,bbr",
        ),
        (&["--against", "cubik"], "no scheme is called `cubik`"),
        (&["--against", "rlcc"], "remove it from --against"),
        (&["--links", "0"], "--links"),
        (&["--minutes", "0"], "from 0.1 to 10080"),
        (
            &["--out", path(&under)],
            "choose another directory with --out",
        ),
        (&["check", path(dir.path()), "--on", "sim"], "search.json"),
    ];
    for (arguments, expected) in refused {
        let first = match arguments[0] {
            "check" | "--out" => vec!["search"],
            _ => vec!["search", "--out", path(&out)],
        };
        let output = trainer(&[first.as_slice(), arguments].concat());
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
