//! What `cc-trainer abr play` needs: Chromium, and dash.js from its package.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    apt,
    process::{self, say},
    workspace,
};

/// The version of dash.js that the player's page was written for.
const DASH_VERSION: &str = include_str!("../../../cc-trainer/src/abr/player/dash.version");

/// Names of the browser's program, separated by spaces.
const BROWSERS: &str = include_str!("../../../cc-trainer/src/abr/player/browsers");

/// Installs Chromium from the distribution's packages, and dash.js by npm into `target/tools`,
/// where either is missing.
///
/// # Errors
///
/// Returns an error when one of them can be neither found nor installed.
pub(super) fn install() -> Result<()> {
    let is_there = |names: &str| {
        let mut names = names.split_whitespace();
        names.any(|name| process::find_program(name).is_some())
    };
    if !is_there(BROWSERS) {
        apt::install(&["chromium"], "the browser of `cc-trainer abr play`")?;
    }
    let dir = workspace::tools_dir().join("dashjs");
    let version = DASH_VERSION.trim_ascii();
    if has_version(&dir, version) {
        say(format_args!("dash.js {version} is in {}", dir.display()));
        return Ok(());
    }
    if !is_there("npm") {
        apt::install(&["npm"], "the source of dash.js, for `cc-trainer abr play`")?;
    }
    unpack(&dir, version)?;
    if !has_version(&dir, version) {
        bail!(
            "the package of dash.js {version} lacks what it should have: {}",
            dir.display()
        );
    }
    say(format_args!(
        "installed dash.js {version} in {}",
        dir.display()
    ));
    Ok(())
}

/// Whether the directory has the unpacked package in this version.
fn has_version(dir: &Path, version: &str) -> bool {
    let text = fs::read_to_string(dir.join("package/package.json")).unwrap_or_default();
    let package: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    package["version"] == version
        && dir
            .join("package/dist/modern/umd/dash.all.min.js")
            .is_file()
}

/// Fetches the package and unpacks it into a directory, which it replaces.
fn unpack(dir: &Path, version: &str) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let package = format!("dashjs@{version}");
    process::run(
        Command::new("npm")
            .args(["pack", "--silent", "--pack-destination"])
            .arg(dir)
            .arg(package)
            .current_dir(dir),
    )?;
    let archive = dir.join(format!("dashjs-{version}.tgz"));
    process::run(
        Command::new("tar")
            .arg("xzf")
            .arg(&archive)
            .arg("-C")
            .arg(dir),
    )?;
    // The package is large, and all of it has been unpacked.
    fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_package_of_the_version_counts() {
        let dir = std::env::temp_dir().join(format!("xtask-player-{}", std::process::id()));
        assert!(!has_version(&dir, "5.2.1"));
        fs::create_dir_all(dir.join("package/dist/modern/umd")).expect("it is ours");
        let write = |name: &str, text: &str| {
            fs::write(dir.join("package").join(name), text).expect("it is ours");
        };
        write("package.json", r#"{"name": "dashjs", "version": "5.2.1"}"#);
        assert!(!has_version(&dir, "5.2.1"));
        write("dist/modern/umd/dash.all.min.js", "");
        assert!(has_version(&dir, "5.2.1"));
        assert!(!has_version(&dir, "5.2.0"));
        fs::remove_dir_all(&dir).expect("it is ours");
    }
}
