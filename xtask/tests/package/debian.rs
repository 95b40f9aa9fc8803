//! Packages for Debian, as `cargo xtask package` makes them of the agent beside this build.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const XTASK: &str = env!("CARGO_BIN_EXE_xtask");

/// The variable that names another program to package, such as a static one.
const PROGRAM_VARIABLE: &str = "CC_PACKAGED_AGENT";

/// The agent of the same build as these tests, or the one that is named, within the workspace or
/// absolute.
fn agent() -> PathBuf {
    match env::var_os(PROGRAM_VARIABLE) {
        Some(named) => Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(named),
        None => Path::new(XTASK).with_file_name("cc-agent"),
    }
}

/// What is missing to make and to install packages; `None` when nothing is.
pub(crate) fn missing() -> Option<String> {
    let starts = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !agent().exists() {
        return Some(format!(
            "{} is not there (`cargo build -p cc-agent`)",
            agent().display()
        ));
    }
    let needed = ["dpkg-deb", "gzip", "strip", "tar"];
    if let Some(program) = needed.into_iter().find(|program| !starts(program)) {
        return Some(format!("there is no {program}"));
    }
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    (!is_root).then(|| "dpkg installs as root only".to_owned())
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Makes the agent of this build without its symbols in a directory, and returns its path.
pub(crate) fn stripped(directory: &Path) -> PathBuf {
    let program = directory.join("cc-agent");
    run(Command::new("strip").arg("-o").arg(&program).arg(agent()));
    program
}

/// Packages the program into a directory at a time in s since 1970, and returns the path of the
/// .deb.
pub(crate) fn package(program: &Path, out: &Path, epoch: &str) -> PathBuf {
    fs::create_dir(out).expect("it is not there");
    let mut command = Command::new(XTASK);
    command.args(["package", "--program"]).arg(program);
    command.arg("--out").arg(out);
    command.env("SOURCE_DATE_EPOCH", epoch);
    // Quick rather than small.
    command.env("DPKG_DEB_COMPRESSOR_TYPE", "gzip");
    command.env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
    run(&mut command);
    let files = fs::read_dir(out).expect("it is there");
    let files: Vec<PathBuf> = files.flatten().map(|entry| entry.path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let is_deb = |path: &PathBuf| path.extension().is_some_and(|end| end == "deb");
    files.into_iter().find(is_deb).expect("one is a .deb")
}

/// The same package with a higher version.
pub(crate) fn newer(deb: &Path, unpacked: &Path) -> PathBuf {
    run(Command::new("dpkg-deb")
        .arg("--raw-extract")
        .args([deb, unpacked]));
    let control = unpacked.join("DEBIAN/control");
    let text = fs::read_to_string(&control).expect("reads");
    let is_version = |line: &&str| line.starts_with("Version: ");
    let version = text.lines().find(is_version).expect("it has one");
    fs::write(&control, text.replace(version, "Version: 99.0")).expect("writes");
    let newer = unpacked.with_extension("deb");
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zgzip", "-z1", "--build"]);
    run(build.args([unpacked, newer.as_path()]));
    newer
}
