//! The commands' output goes to a pipeline whose reader has closed its end.

mod deadline;

use std::{
    fs, io,
    path::Path,
    process::{Command, ExitStatus},
};

/// One second on one simulated link.
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

/// Runs a command whose standard output and error go to a pipe without a reader.
fn unread(arguments: &[&str], out: &Path) -> ExitStatus {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let mut child = Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .args(arguments)
        .arg(out)
        .stdout(writer.try_clone().expect("a descriptor"))
        .stderr(writer)
        .spawn()
        .expect("the binary starts");
    deadline::wait(&mut child)
}

#[test]
fn a_closed_pipe_is_not_an_error() {
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

    // An actual error still has its exit status.
    fs::write(&file, "no policy").expect("a writable file");
    let wrong = ["compare", &summary];
    assert_eq!(unread(&wrong, &file).code(), Some(1));
}
