//! The binary in a pipeline whose reader has seen enough.

use std::{
    fs, io,
    path::Path,
    process::{Command, ExitStatus},
};

/// A link, and a second on it.
const EVALUATION: [&str; 12] = [
    "evaluate",
    "--on",
    "sim",
    "--schemes",
    "reno",
    "--scenarios",
    "pantheon/bdp-1",
    "--seconds",
    "1",
    "--runs",
    "1",
    "--out",
];

/// With standard output and error into a pipe that nobody reads.
fn unread(arguments: &[&str], out: &Path) -> ExitStatus {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .args(arguments)
        .arg(out)
        .stdout(writer.try_clone().expect("a descriptor"))
        .stderr(writer)
        .status()
        .expect("it starts")
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let file = dir.path().join("rule.onnx");
    let status = unread(&["heuristic", "--out"], &file);
    assert!(status.success() && file.is_file(), "{status}");

    let out = dir.path().join("out");
    let status = unread(&EVALUATION, &out);
    assert!(status.success(), "{status}");
    let summary = out.join("summary.json").display().to_string();
    let status = unread(&["compare", &summary], Path::new(&summary));
    assert!(status.success(), "{status}");

    // A mistake is one all the same.
    fs::write(&file, "no policy").expect("it is ours");
    let wrong = ["compare", &summary];
    assert_eq!(unread(&wrong, &file).code(), Some(1));
}
