//! The systemd units, as `systemd-analyze` judges them: that they are valid, and how much they
//! leave open. Without systemd the trials are skipped with the reason.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");

/// The units, and the exposure that `systemd-analyze security` finds in each at most, in tenths: 0
/// is nothing, 100 everything. The agent may change sysctls and load BPF programs.
const UNITS: [(&str, u32); 5] = [
    ("cc-agent.service", 30),
    ("cc-agent-follow.service", 20),
    ("cc-agent-metrics.service", 15),
    ("cc-agent-observe.service", 25),
    ("cc-agent-policy-server.service", 20),
];

fn main() -> ExitCode {
    let has_systemd = Command::new("systemd-analyze")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let trial = |name: &str, judge: fn() -> Result<(), Failed>| {
        let skipped = format!("{name}: there is no systemd-analyze");
        Trial::ignorable_test(name, move || {
            if !has_systemd {
                eprintln!("SKIPPED: {skipped}");
                return Ok(Completion::ignored_with("there is no systemd-analyze"));
            }
            judge().map(|()| Completion::Completed)
        })
    };
    let trials = vec![
        trial("units_are_valid", units_are_valid),
        trial("units_leave_little_open", units_leave_little_open),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The units in a directory, with the path of the binary of this build.
fn units() -> TempDir {
    let directory = TempDir::new().expect("a directory for the test");
    for (unit, _) in UNITS {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("systemd")
            .join(unit);
        let text = fs::read_to_string(file).expect("the unit is there");
        assert!(text.contains("/usr/bin/cc-agent "), "{unit}");
        let text = text.replace("/usr/bin/cc-agent", BINARY);
        fs::write(directory.path().join(unit), text).expect("writes");
    }
    directory
}

fn units_are_valid() -> Result<(), Failed> {
    let directory = units();
    for (unit, _) in UNITS {
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(directory.path().join(unit))
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        // Remarks on keys that are not known do not change the exit status.
        let remarks: Vec<_> = said.lines().filter(|line| line.contains(unit)).collect();
        if !output.status.success() || !remarks.is_empty() {
            return Err(format!("{unit}: {} {said}", output.status).into());
        }
    }
    Ok(())
}

fn units_leave_little_open() -> Result<(), Failed> {
    let directory = units();
    for (unit, most) in UNITS {
        let output = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager"])
            .arg(format!("--threshold={most}"))
            .arg(directory.path().join(unit))
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("{unit}: {said}").into());
        }
        println!("{}", said.lines().last().unwrap_or_default());
    }
    Ok(())
}
