//! Packages of Debian and Ubuntu.

use std::{collections::BTreeSet, process::Command, sync::OnceLock};

use anyhow::{Context, Result, bail};

use crate::process::{self, say};

/// Installs those of `packages` that are missing, and prints `why`. Never removes a package.
///
/// # Errors
///
/// Returns an error when something is missing and this host has no apt-get, when this user neither
/// is root nor has sudo, and when apt-get fails.
pub(crate) fn install(packages: &[&str], why: &str) -> Result<()> {
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    update();
    install_with(&[], &missing, why)
}

/// Installs `packages` by apt-get with `options`, such as other sources, and prints `why`. Never
/// removes a package.
///
/// # Errors
///
/// Returns an error when this host has no apt-get, when this user neither is root nor has sudo, and
/// when apt-get fails.
pub(crate) fn install_with(options: &[String], packages: &[&str], why: &str) -> Result<()> {
    let list = packages.join(" ");
    say(format_args!("installing {list} ({why})"));
    let flags = [
        "install",
        "--yes",
        "--no-install-recommends",
        "--no-remove",
        "--quiet=2",
    ];
    // Lines of a log instead of a progress bar that is redrawn.
    let flags = flags.into_iter().chain(["--option", "Dpkg::Use-Pty=0"]);
    process::run(apt_get()?.args(options).args(flags).args(packages))
        .with_context(|| format!("cannot install {list}, needed {why}"))
}

/// Returns the version of `package` that apt-get would install; `None` when there is none.
pub(crate) fn candidate(package: &str) -> Option<String> {
    update();
    let policy = process::capture(
        Command::new("apt-cache")
            .args(["policy", package])
            .env("LC_ALL", "C"),
    )?;
    parse_candidate(&policy).map(str::to_owned)
}

/// Returns the names of the packages that match a regular expression.
pub(crate) fn names(pattern: &str) -> Vec<String> {
    update();
    process::capture(Command::new("apt-cache").args(["search", "--names-only", pattern]))
        .map(|found| {
            found
                .lines()
                .filter_map(|line| line.split_whitespace().next())
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default()
}

/// Refreshes the package lists: once per run of this program, and only when something must be
/// looked up or installed.
fn update() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        say("refreshing the package lists, as something is missing");
        let refreshed =
            apt_get().and_then(|mut apt| process::run(apt.args(["update", "--quiet=2"])));
        if let Err(error) = refreshed {
            say(format_args!(
                "continuing with the present package lists: {error:#}"
            ));
        }
    });
}

/// Creates a call of `apt-get` as root.
fn apt_get() -> Result<Command> {
    if process::find_program("apt-get").is_none() {
        bail!("this host has no apt-get: automatic installation knows Debian and Ubuntu only");
    }
    let mut command = if process::is_root() {
        Command::new("env")
    } else if process::find_program("sudo").is_some() {
        say("apt-get needs root: using sudo");
        let mut sudo = Command::new("sudo");
        sudo.arg("env");
        sudo
    } else {
        bail!("apt-get needs root, this user is not root, and there is no sudo");
    };
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    // Another installation, such as the unattended upgrades of a host that has just started, holds
    // dpkg's lock for a while: wait for it.
    command.args(["--option", "DPkg::Lock::Timeout=600"]);
    Ok(command)
}

fn missing<'a>(packages: &[&'a str]) -> Vec<&'a str> {
    // dpkg-query fails when it does not know one of the names, and still prints the others.
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Package} ${db:Status-Status}\n"])
        .args(packages)
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let installed = parse_installed(&output);
    packages
        .iter()
        .filter(|package| !installed.contains(**package))
        .copied()
        .collect()
}

fn parse_installed(dpkg_query: &str) -> BTreeSet<&str> {
    dpkg_query
        .lines()
        .filter_map(|line| line.strip_suffix(" installed"))
        .collect()
}

fn parse_candidate(policy: &str) -> Option<&str> {
    policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "))
        .filter(|version| *version != "(none)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fully_installed_packages_count() {
        let installed = parse_installed(
            "zlib1g-dev installed\nllvm-22-dev config-files\nlibxml2-dev installed\n",
        );
        assert_eq!(installed, BTreeSet::from(["libxml2-dev", "zlib1g-dev"]));
    }

    #[test]
    fn the_candidate_is_what_apt_would_install() {
        let policy = "rustc-web:\n  Installed: (none)\n  Candidate: 1.96.0+dfsg1-1~deb12u2\n\
                      \x20 Version table:\n";
        assert_eq!(parse_candidate(policy), Some("1.96.0+dfsg1-1~deb12u2"));
        assert_eq!(
            parse_candidate("rustc:\n  Installed: (none)\n  Candidate: (none)\n"),
            None
        );
        assert_eq!(parse_candidate(""), None);
    }
}
