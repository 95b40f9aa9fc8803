//! Running, finding and killing other programs.

use std::{
    env,
    ffi::OsStr,
    fmt::Display,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Prints a message to the user, on standard error.
pub(crate) fn say(message: impl Display) {
    eprintln!("xtask: {message}");
}

/// Runs a program that writes to this process's own output.
///
/// # Errors
///
/// Returns an error that names the command when it cannot be started or does not succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = command_line(command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    check(status, &line)
}

/// Runs a program that writes to this process's own output, and kills it when it takes longer than
/// `limit`.
///
/// # Errors
///
/// Returns an error that names the command when it cannot be started, does not succeed or takes too
/// long.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<()> {
    let line = command_line(command);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    let Some(status) = wait_within(&mut child, limit)? else {
        child.kill()?;
        child.wait()?;
        bail!("`{line}` did not end within {} s", limit.as_secs());
    };
    check(status, &line)
}

/// Waits for a process for at most `limit`; `None` when it has not ended by then.
///
/// # Errors
///
/// Returns an error when the process cannot be waited for.
pub(crate) fn wait_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    const PERIOD: Duration = Duration::from_millis(20);
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            return Ok(None);
        }
        thread::sleep(PERIOD);
    }
}

fn check(status: ExitStatus, line: &str) -> Result<()> {
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Returns what a program prints on its standard output; `None` when it cannot be started or fails.
pub(crate) fn capture(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Kills a process and every process that it or one of its descendants has started.
///
/// They are found by their parents in `/proc`. (Not by a process group: the group of a terminal's
/// foreground must stay one, so that Ctrl-C reaches all of them.)
///
/// # Errors
///
/// Returns an error when `/proc` cannot be listed or the shell, whose `kill` is used, cannot be
/// started.
pub(crate) fn kill_with_descendants(pid: u32) -> Result<()> {
    let mut family = vec![pid];
    let processes = processes()?;
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        let children = processes.iter().filter(|(_, of)| *of == parent);
        family.extend(children.map(|(child, _)| *child));
        next += 1;
    }
    Command::new("sh")
        .args(["-c", "kill -KILL \"$@\"", "sh"])
        .args(family.iter().map(u32::to_string))
        // A process may have ended meanwhile.
        .stderr(Stdio::null())
        .status()
        .context("cannot start sh")?;
    Ok(())
}

/// Lists all processes, each with its parent.
fn processes() -> Result<Vec<(u32, u32)>> {
    let entries = fs::read_dir("/proc").context("cannot list /proc")?;
    Ok(entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((pid, parse_parent(&stat)?))
        })
        .collect())
}

/// The parent in `/proc/PID/stat`: the second field after the name, which is in parentheses and may
/// itself have some (proc(5)).
fn parse_parent(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

/// Finds a program as a shell would, and also in the system directories that only root has in its
/// `PATH`.
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

/// Whether this process runs as root. The owner of `/proc/self` is the effective user.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// Creates a call of `program` as root, through sudo when this user is not root. `purpose` is what
/// root is needed for.
///
/// # Errors
///
/// Returns an error when this user is not root and there is no sudo.
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
    fn capture_distinguishes_failure_from_empty_output() {
        assert_eq!(capture(&mut Command::new("true")), Some(String::new()));
        assert_eq!(capture(&mut Command::new("false")), None);
    }

    #[test]
    fn a_whole_family_is_killed() {
        let mut parent = Command::new("sh")
            .args(["-c", "sleep 1000 & sleep 1000 & wait"])
            .spawn()
            .expect("sh can be started");
        let pid = parent.id();
        let children = || -> Vec<u32> {
            let processes = processes().expect("/proc");
            let children = processes.into_iter().filter(|(_, of)| *of == pid);
            children.map(|(child, _)| child).collect()
        };
        let start = Instant::now();
        while children().len() < 2 {
            assert!(start.elapsed() < Duration::from_secs(30), "two children");
            thread::sleep(Duration::from_millis(5));
        }
        let children = children();
        kill_with_descendants(pid).expect("sh can be started");
        let status = parent.wait().expect("our own child");
        assert!(!status.success());
        for child in children {
            // A killed process needs a moment to end, and stays as a zombie until its new parent
            // has read its status.
            let start = Instant::now();
            loop {
                let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
                if stat.is_empty() || stat.contains(") Z ") {
                    break;
                }
                assert!(start.elapsed() < Duration::from_secs(30), "{stat}");
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parse_parent("12 (sh) S 7 12 12 0"), Some(7));
        assert_eq!(parse_parent("12 (a) b) (c) R 8 12 12 0"), Some(8));
        assert_eq!(parse_parent(""), None);
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-anywhere").is_none());
    }
}
