//! A package that is installed, upgraded and removed by dpkg in a root of its own, in which nothing
//! runs.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::debian::{self, newer, package, run, stripped};

/// What is missing for the test; `None` when nothing is.
pub(crate) fn missing() -> Option<String> {
    let failed = |error| format!("dpkg installs nothing into a root of its own here: {error}");
    debian::missing().or_else(|| install_nothing().err().map(failed))
}

/// Installs a package that holds nothing but a script, which a host may not let dpkg do.
fn install_nothing() -> Result<(), String> {
    let directory = TempDir::new().expect("a directory for the test");
    let tree = directory.path().join("nothing");
    fs::create_dir_all(tree.join("DEBIAN")).expect("it is ours");
    let control = "Package: nothing\nVersion: 1\nArchitecture: all\n\
                   Maintainer: nobody <nobody@localhost>\nDescription: nothing\n";
    let script = tree.join("DEBIAN/postinst");
    fs::write(tree.join("DEBIAN/control"), control).expect("it is ours");
    fs::write(&script, "#!/bin/sh\n").expect("it is ours");
    for path in [&tree, &tree.join("DEBIAN"), &script] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("it is ours");
    }
    let deb = directory.path().join("nothing.deb");
    run(Command::new("dpkg-deb").arg("--build").args([&tree, &deb]));
    let root = new_root(&directory.path().join("root"));
    let mut install = dpkg(&root, &["--install"], &deb.display().to_string());
    let output = install.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).replace('\n', " ")),
    }
}

/// Creates what dpkg asks for of a root.
fn new_root(root: &Path) -> PathBuf {
    for part in [
        "etc",
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "var/lib/dpkg/triggers",
    ] {
        fs::create_dir_all(root.join(part)).expect("it is ours");
    }
    for file in ["status", "available"] {
        fs::write(root.join("var/lib/dpkg").join(file), "").expect("it is ours");
    }
    root.to_owned()
}

/// dpkg on a root of its own, whose scripts run outside of it.
fn dpkg(root: &Path, arguments: &[&str], what: &str) -> Command {
    let mut command = Command::new("dpkg");
    command.arg(format!("--root={}", root.display()));
    // The libc that it needs is this host's.
    command.args(["--force-script-chrootless", "--force-depends"]);
    command.args(["--force-confdef", "--force-confold"]);
    // It asks for programs that are in root's directories only, which not every PATH has.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.args(arguments).arg(what);
    command
}

pub(crate) fn a_package_comes_and_goes() {
    let directory = TempDir::new().expect("a directory for the test");
    let at = |name: &str| directory.path().join(name);
    let program = stripped(directory.path());
    // A commit may be of a machine whose clock is ahead of this one's.
    let epoch = "4102444800";
    let deb = package(&program, &at("first"), epoch);
    let again = package(&program, &at("second"), epoch);
    assert!(
        fs::read(&deb).expect("reads") == fs::read(again).expect("reads"),
        "the same bytes"
    );

    let root = new_root(&at("root"));
    let install = |deb: &Path| run(&mut dpkg(&root, &["--install"], &deb.display().to_string()));
    install(&deb);
    run(Command::new(root.join("usr/bin/cc-agent")).arg("--version"));
    for file in [
        "lib/systemd/system/cc-agent.service",
        "lib/systemd/system/cc-agent-metrics.service",
        "lib/systemd/system/cc-agent-observe.service",
        "lib/systemd/system/cc-agent-policy-server.service",
        "usr/share/man/man1/cc-agent-run.1.gz",
        "usr/share/bash-completion/completions/cc-agent",
        "usr/share/cc-agent/prometheus/rlcc.rules.yml",
        "usr/share/doc/cc-agent/docs/runbook.md",
        "usr/share/doc/cc-agent/copyright",
    ] {
        let length = fs::metadata(root.join(file)).map(|found| found.len());
        assert!(
            length.as_ref().is_ok_and(|&length| length > 0),
            "{file}: {length:?}"
        );
    }
    assert!(!root.join("etc/systemd").exists(), "nothing is enabled");

    // What the operator has written outlives the next version.
    let options = root.join("etc/cc-agent.toml");
    fs::write(&options, "default = true\n").expect("it is ours");
    install(&newer(&deb, &at("newer")));
    assert_eq!(
        fs::read_to_string(&options).expect("reads"),
        "default = true\n"
    );
    let status = fs::read_to_string(root.join("var/lib/dpkg/status")).expect("reads");
    assert!(status.contains("\nVersion: 99.0\n"), "{status}");

    fs::create_dir_all(root.join("var/lib/cc-agent")).expect("it is ours");
    fs::write(root.join("var/lib/cc-agent/rlcc.policy"), "{}").expect("it is ours");
    run(&mut dpkg(&root, &["--remove"], "cc-agent"));
    assert!(options.exists(), "removed is not purged");
    assert!(!root.join("usr").exists(), "nothing is left of the program");
    run(&mut dpkg(&root, &["--purge"], "cc-agent"));
    assert!(!options.exists() && !root.join("var/lib/cc-agent").exists());
}
