//! What dpkg is told of the package, and the scripts that it runs.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result};

use super::{DATA, NAME, PROGRAM, contents::Tree};

/// The user is made at the installation, by systemd where it is there. Services are neither enabled
/// nor started: an agent changes how the host's connections behave, which is for its operator to
/// ask for. Those that run are restarted with the new program, or taken over from by it.
///
/// dpkg sets `DPKG_ROOT` where it installs into another root without running scripts in there.
const AFTER_INSTALLATION: &str = r#"#!/bin/sh
set -e
if [ "$1" = configure ]; then
    root="${DPKG_ROOT:-}"
    if command -v systemd-sysusers > /dev/null; then
        systemd-sysusers ${root:+--root="$root"} cc-agent.conf
    elif [ -z "$root" ] && ! getent passwd cc-agent > /dev/null; then
        useradd --system --user-group --home-dir /var/lib/cc-agent --no-create-home \
            --shell /usr/sbin/nologin cc-agent
    fi
    if [ -z "$root" ] && [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        if [ -n "$2" ]; then
            systemctl try-restart cc-agent-follow cc-agent-metrics cc-agent-observe \
                cc-agent-policy-server
            # The new program takes over from the old one; where it cannot, there is a gap.
            if systemctl --quiet is-active cc-agent; then
                systemctl reload cc-agent || systemctl try-restart cc-agent
            fi
        fi
    fi
fi
"#;

/// An agent restores the host's settings when it ends.
const BEFORE_REMOVAL: &str = r#"#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
    systemctl --quiet disable --now cc-agent cc-agent-follow cc-agent-metrics cc-agent-observe \
        cc-agent-policy-server
fi
"#;

/// The user stays, as files of other directories may be its own.
const AFTER_REMOVAL: &str = r#"#!/bin/sh
set -e
root="${DPKG_ROOT:-}"
if [ "$1" = purge ]; then
    rm -rf "$root/var/lib/cc-agent" "$root/run/cc-agent"
fi
if [ -z "$root" ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
"#;

/// Writes the files of `DEBIAN/`.
pub(super) fn write(tree: &Tree, version: &str, architecture: &str, program: &Path) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let libc = newest_glibc(&bytes).map_or_else(String::new, |(major, minor)| {
        format!("Depends: libc6 (>= {major}.{minor})\n")
    });
    let control = format!(
        "Package: {NAME}\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Section: net\n\
         Priority: optional\n\
         Maintainer: The rlcc authors <rlcc@localhost>\n\
         {libc}\
         Suggests: prometheus\n\
         Description: learned TCP congestion control for stock Linux kernels\n \
         The agent registers the congestion control rlcc as a BPF program (Linux 6.1 and\n \
         newer), and a policy decides the congestion windows of the flows that choose it.\n \
         While no policy decides, flows run on Reno inside the kernel.\n"
    );
    tree.write("DEBIAN/control", DATA, control.as_bytes())?;
    tree.write("DEBIAN/conffiles", DATA, b"/etc/cc-agent.toml\n")?;
    for (name, script) in [
        ("postinst", AFTER_INSTALLATION),
        ("prerm", BEFORE_REMOVAL),
        ("postrm", AFTER_REMOVAL),
    ] {
        tree.write(&format!("DEBIAN/{name}"), PROGRAM, script.as_bytes())?;
    }
    Ok(())
}

/// The newest version of glibc whose symbols a program asks for; `None` for a static one.
fn newest_glibc(program: &[u8]) -> Option<(u32, u32)> {
    let strings = program.split(|&byte| byte == 0);
    let versions: BTreeSet<(u32, u32)> = strings
        .filter_map(|string| {
            let version = std::str::from_utf8(string.strip_prefix(b"GLIBC_")?).ok()?;
            let mut parts = version.split('.').map(str::parse);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        })
        .collect();
    versions.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_compared_as_numbers() {
        let program = b"\x7fELF\0GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0libc.so.6\0";
        assert_eq!(newest_glibc(program), Some((2, 34)));
        assert_eq!(newest_glibc(b"\x7fELF without\0"), None);
    }
}
