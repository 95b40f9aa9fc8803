//! The agent that tests serve flows with.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The agent beside the program under test, or the reason why there is none that runs here.
pub(crate) fn find() -> Result<PathBuf, String> {
    let program = Path::new(env!("CARGO_BIN_EXE_cc-trainer")).with_file_name("cc-agent");
    let name = format!("rlt{}", std::process::id());
    let works = Command::new(&program)
        .args(["run", "--plain", "--policy", "fixed:3"])
        .args(["--duration", "0.1", "--name", &name, "--socket"])
        .arg(std::env::temp_dir().join(format!("{name}.sock")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match works {
        Ok(status) if status.success() => Ok(program),
        _ => Err(
            "no cc-agent that runs here beside cc-trainer (`cargo xtask build` makes it)".into(),
        ),
    }
}
