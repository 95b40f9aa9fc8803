//! `cargo xtask setup`: installs what the BPF object and the tests on the live kernel need.

mod compiler;
mod linker;
pub(crate) mod musl;
mod player;
mod toolchain;

use std::{collections::BTreeSet, path::Path};

use anyhow::{Result, bail};

pub(crate) use self::toolchain::Toolchain;
use self::{compiler::Source, toolchain::Compiler};
use crate::{
    apt, prebuilt,
    process::{self, say},
};

/// Install what is missing to build the BPF object and to test it.
///
/// The BPF object needs a compiler with its library's source (rust-src), as the BPF target has no
/// prebuilt core library, and bpf-linker, built with an LLVM at least as new as the compiler's.
/// What is installed is used as it is. Otherwise rust-src comes from rustup, or, where rustup can
/// fetch nothing, from the distribution's packages (Debian's rustc-web and rust-web-src, or
/// Ubuntu's versioned ones); bpf-linker comes from cargo-binstall where that is installed, or is
/// built in target/tools with the distribution's LLVM.
///
/// The tests on the live kernel need root and the programs ip, tc, ss and bpftool.
///
/// Packages are installed by apt-get, through sudo when this user is not root; none is ever
/// removed. With CC_EBPF_OBJECT set to a prebuilt object, nothing is needed to build one.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also install what `cc-trainer abr play` needs, and its tests: Chromium, and dash.js by npm
    /// into target/tools. No other command needs them.
    #[arg(long)]
    player: bool,
    /// Also install Prometheus and its Alertmanager, for the tests of what an operator sees, which
    /// are skipped without. Debian's packages start both as services where there is systemd; to
    /// stop them: `systemctl disable --now prometheus prometheus-alertmanager`.
    #[arg(long)]
    monitoring: bool,
}

pub(crate) fn command(args: &Args) -> Result<()> {
    match prebuilt::object()? {
        Some(object) => say(format_args!("using the BPF object {}", object.display())),
        None => say(format_args!("the BPF object is built by {}", toolchain()?)),
    }
    kernel_tools();
    if args.player {
        player::install()?;
    }
    if args.monitoring {
        install_programs(&MONITORING, "the tests of what an operator sees")?;
    }
    Ok(())
}

/// Finds a compiler and a linker for the BPF object, and installs what is missing.
///
/// # Errors
///
/// Returns an error when none of the sources yields a complete toolchain, with the reason and the
/// remedy for each source.
pub(crate) fn toolchain() -> Result<Toolchain> {
    if let Some(ready) = toolchain::choose(&toolchain::compilers(), &toolchain::linkers()) {
        return Ok(ready);
    }
    let mut failures = Vec::new();
    let mut tried = BTreeSet::new();
    for source in Source::ALL {
        if let Err(error) = source.install() {
            say(format_args!("going on without: {error:#}"));
            failures.push(format!("{error:#}"));
            continue;
        }
        match complete(&mut tried) {
            Ok(Some(toolchain)) => return Ok(toolchain),
            Ok(None) => {}
            Err(errors) => failures.extend(errors),
        }
    }
    bail!(
        "cannot set up a toolchain for the BPF object:\n  - {}\n\
         It needs rustc with rust-src (`rustup component add rust-src`) and bpf-linker with an \
         LLVM at least as new as that rustc's. Or set CC_EBPF_OBJECT to a prebuilt object.",
        failures.join("\n  - ")
    )
}

/// Installs a linker for the first compiler for which that is possible. Compilers with an LLVM in
/// `tried` are skipped, and those that fail are added to it.
fn complete(tried: &mut BTreeSet<u32>) -> Result<Option<Toolchain>, Vec<String>> {
    let compilers = toolchain::compilers();
    if let Some(ready) = toolchain::choose(&compilers, &toolchain::linkers()) {
        return Ok(Some(ready));
    }
    let mut failures = Vec::new();
    for compiler in compilers {
        if !tried.insert(compiler.llvm) {
            continue;
        }
        match linker::install(&compiler) {
            Ok(linker) => return Ok(Some(Toolchain { compiler, linker })),
            Err(error) => failures.push(failure(&compiler, &error)),
        }
    }
    if failures.is_empty() {
        Ok(None)
    } else {
        Err(failures)
    }
}

fn failure(compiler: &Compiler, error: &anyhow::Error) -> String {
    let line = format!(
        "no bpf-linker for {}: {error:#}",
        compiler.rustc().display()
    );
    say(&line);
    line
}

/// Installs the programs that tests and benchmarks on the live kernel call, where these can run at
/// all, and prints what prevents this host from running them.
pub(crate) fn kernel_tools() {
    let root = process::is_root();
    if root && let Err(error) = install_programs(&KERNEL_TOOLS, "the tests on the live kernel") {
        say(format_args!("{error:#}"));
    }
    let obstacles = obstacles(
        root,
        Path::new("/sys/kernel/btf/vmlinux").exists(),
        |program| process::find_program(program).is_some(),
    );
    if obstacles.is_empty() {
        say("this host can run the tests on the live kernel");
    } else {
        say(format_args!(
            "tests and benchmarks on the live kernel cannot run here: {}",
            obstacles.join("; ")
        ));
    }
}

/// A program, and the packages that may have it.
type Program = (&'static str, &'static [&'static str]);

/// The programs that the tests on the live kernel call.
const KERNEL_TOOLS: [Program; 4] = [
    ("ip", &["iproute2"]),
    ("tc", &["iproute2"]),
    ("ss", &["iproute2"]),
    // Older releases of Ubuntu have it in the kernel's own tools.
    (
        "bpftool",
        &["bpftool", "linux-tools-generic", "linux-tools-common"],
    ),
];

/// The programs that watch an agent in the tests of what an operator sees.
const MONITORING: [Program; 2] = [
    ("prometheus", &["prometheus"]),
    ("prometheus-alertmanager", &["prometheus-alertmanager"]),
];

/// Installs those of the programs that are missing, of the first package that is available here.
fn install_programs(programs: &[Program], what_for: &str) -> Result<()> {
    for (program, packages) in programs {
        if process::find_program(program).is_some() {
            continue;
        }
        match packages
            .iter()
            .find(|package| apt::candidate(package).is_some())
        {
            Some(package) => apt::install(&[package], &format!("{program}, for {what_for}"))?,
            None => bail!(
                "{program} is missing, and no package here has it ({})",
                packages.join(", ")
            ),
        }
    }
    Ok(())
}

fn obstacles(root: bool, btf: bool, has_program: impl Fn(&str) -> bool) -> Vec<String> {
    let mut obstacles = Vec::new();
    if !root {
        obstacles.push("not root".to_owned());
    }
    if !btf {
        obstacles.push("the kernel has no BTF (/sys/kernel/btf/vmlinux)".to_owned());
    }
    let missing = KERNEL_TOOLS
        .iter()
        .filter(|(program, _)| !has_program(program));
    obstacles.extend(missing.map(|(program, _)| format!("no {program}")));
    obstacles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_obstacle_is_named() {
        assert!(obstacles(true, true, |_| true).is_empty());
        let found = obstacles(false, false, |program| program != "ss");
        assert_eq!(
            found,
            [
                "not root",
                "the kernel has no BTF (/sys/kernel/btf/vmlinux)",
                "no ss"
            ]
        );
    }
}
