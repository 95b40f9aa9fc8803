//! Installs `rust-src`, the source of the standard library, for a compiler.

use std::{process::Command, time::Duration};

use anyhow::{Context, Result, bail};

use super::toolchain::is_new_enough;
use crate::{
    apt,
    process::{self, say},
};

/// A source of a compiler with rust-src; they are tried in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Source {
    /// The compilers that are installed already.
    Installed,
    /// rustup, which adds the source that belongs to the toolchain in use. (It installs no new
    /// toolchain: installing `nightly` would update the present one and bring an LLVM for which few
    /// hosts have a linker.)
    Rustup,
    /// The packages of Debian or Ubuntu.
    Distribution,
}

impl Source {
    pub(super) const ALL: [Self; 3] = [Self::Installed, Self::Rustup, Self::Distribution];

    /// Installs a compiler with rust-src from this source.
    ///
    /// # Errors
    ///
    /// Returns an error when the source is not available on this host or has no such compiler.
    pub(super) fn install(self) -> Result<()> {
        match self {
            Self::Installed => Ok(()),
            Self::Rustup => add_component(),
            Self::Distribution => install_packages(),
        }
    }
}

fn add_component() -> Result<()> {
    rustup(
        &["component", "add", "rust-src"],
        "adding rust-src to the toolchain in use by rustup \
         (the BPF target's core library is built from source)",
    )
}

/// Prints `what` is done, and has rustup do it.
///
/// # Errors
///
/// Returns an error when there is no rustup, and when it fails or takes longer than two minutes.
pub(super) fn rustup(arguments: &[&str], what: &str) -> Result<()> {
    // Its own retries take much longer on a host without network.
    const LIMIT: Duration = Duration::from_secs(120);
    if process::find_program("rustup").is_none() {
        bail!("there is no rustup");
    }
    say(what);
    let mut rustup = Command::new("rustup");
    rustup
        .args(arguments)
        // A backtrace would hide rustup's own message.
        .env("RUST_BACKTRACE", "0");
    process::run_within(&mut rustup, LIMIT)
}

fn install_packages() -> Result<()> {
    let (rustc, source) = pick(apt::names(r"^rustc-[0-9]+\.[0-9]+$"), apt::candidate).context(
        "no package of this distribution has a rustc that is new enough, with its source",
    )?;
    apt::install(
        &[&rustc, &source],
        "a compiler with the core library's source, for the BPF target",
    )
}

/// Returns the first pair of (compiler, source) packages that exists and is new enough. `versioned`
/// are the names of Ubuntu's versioned compilers; `candidate` returns the version of a package that
/// can be installed.
fn pick(
    mut versioned: Vec<String>,
    candidate: impl Fn(&str) -> Option<String>,
) -> Option<(String, String)> {
    // Newest first: by length before text, so that 1.100 comes before 1.95.
    versioned.sort_by_key(|name| std::cmp::Reverse((name.len(), name.clone())));
    // Debian's stable releases carry a current compiler as rustc-web.
    let unversioned = [("rustc-web", "rust-web-src"), ("rustc", "rust-src")];
    let pairs = unversioned.map(|(rustc, source)| (rustc.to_owned(), source.to_owned()));
    let versioned = versioned.into_iter().map(|rustc| {
        let source = format!("{}-src", rustc.replacen("rustc", "rust", 1));
        (rustc, source)
    });
    pairs.into_iter().chain(versioned).find(|(rustc, source)| {
        candidate(rustc).is_some_and(|version| is_new_enough(&version))
            && candidate(source).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(packages: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| {
            let (_, version) = packages.iter().find(|(package, _)| *package == name)?;
            Some((*version).to_owned())
        }
    }

    fn picked(versioned: &[&str], packages: &'static [(&str, &str)]) -> Option<String> {
        let versioned = versioned.iter().map(|name| (*name).to_owned()).collect();
        pick(versioned, archive(packages)).map(|(rustc, source)| format!("{rustc} {source}"))
    }

    #[test]
    fn debian_has_a_current_compiler_beside_its_own() {
        let bookworm = &[
            ("rustc", "1.63.0+dfsg1-2"),
            ("rust-src", "1.63.0+dfsg1-2"),
            ("rustc-web", "1.96.0+dfsg1-1~deb12u2"),
            ("rust-web-src", "1.96.0+dfsg1-1~deb12u2"),
        ];
        assert_eq!(
            picked(&[], bookworm).as_deref(),
            Some("rustc-web rust-web-src")
        );
    }

    #[test]
    fn ubuntu_has_versioned_compilers() {
        let ubuntu = &[
            ("rustc", "1.75.0"),
            ("rust-src", "1.75.0"),
            ("rustc-1.93", "1.93.0"),
            ("rust-1.93-src", "1.93.0"),
            ("rustc-1.95", "1.95.0"),
            ("rust-1.95-src", "1.95.0"),
            ("rustc-1.100", "1.100.0"),
        ];
        let names = ["rustc-1.93", "rustc-1.100", "rustc-1.95"];
        assert_eq!(
            picked(&names, ubuntu).as_deref(),
            Some("rustc-1.95 rust-1.95-src"),
            "1.100 has no source"
        );
    }

    #[test]
    fn nothing_is_picked_where_all_are_too_old() {
        let old = &[("rustc", "1.85.0+dfsg3-1"), ("rust-src", "1.85.0+dfsg3-1")];
        assert_eq!(picked(&[], old), None);
        assert_eq!(picked(&["rustc-1.96"], &[]), None);
    }
}
