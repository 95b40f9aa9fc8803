//! Running other programs.

use std::{
    env,
    ffi::OsStr,
    fmt::Display,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Tells the user what happens and why.
pub(crate) fn say(message: impl Display) {
    eprintln!("xtask: {message}");
}

/// Runs a program with its output streamed; anything but success is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = command_line(command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Runs a program with its output streamed, and stops it when it takes longer than `limit`.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<()> {
    let line = command_line(command);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            if !status.success() {
                bail!("`{line}` failed: {status}");
            }
            return Ok(());
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("`{line}` did not end within {} s", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// What a program prints on its standard output, or `None` when it cannot be started or fails.
pub(crate) fn capture(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Finds a program as a shell would, the system directories that only root has in its `PATH` included.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| {
            fs::metadata(file)
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

/// Whether this process is root's. The owner of `/proc/self` is the effective user.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// A call of `program` as root: through sudo when this user is not. `purpose` says what root is needed for.
pub(crate) fn as_root(program: &Path, purpose: &str) -> Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    let name = program.display();
    if find_program("sudo").is_none() {
        bail!(
            "{purpose} needs root, this user is not root, and there is no sudo: run {name} as root"
        );
    }
    say(format_args!(
        "{purpose} needs root: starting {name} through sudo"
    ));
    let mut sudo = Command::new("sudo");
    sudo.arg(program);
    Ok(sudo)
}

fn command_line(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command() {
        let error =
            run(Command::new("sh").args(["-c", "exit 3"])).expect_err("exit 3 is a failure");
        let text = format!("{error:#}");
        assert!(
            text.contains("sh -c exit 3") && text.contains('3'),
            "{text}"
        );
        assert!(run(&mut Command::new("/nonexistent/program")).is_err());
    }

    #[test]
    fn a_program_that_never_ends_is_stopped() {
        let error = run_within(Command::new("sleep").arg("1000"), Duration::from_millis(1))
            .expect_err("1000 s is longer than the limit");
        assert!(format!("{error:#}").contains("did not end"), "{error:#}");
    }

    #[test]
    fn capture_tells_failure_from_empty_output() {
        assert_eq!(capture(&mut Command::new("true")), Some(String::new()));
        assert_eq!(capture(&mut Command::new("false")), None);
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-anywhere").is_none());
    }
}
