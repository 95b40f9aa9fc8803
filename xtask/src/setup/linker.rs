//! Installing bpf-linker for a given LLVM.

use std::{ops::RangeInclusive, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use super::toolchain::{Compiler, Linker, installed_linker};
use crate::{
    apt,
    process::{self, say},
    workspace,
};

/// The release to install, and the LLVM versions that it can be built with.
const VERSION: &str = "0.13.0";
const LLVM: RangeInclusive<u32> = 21..=23;

/// Installs a bpf-linker that fits `compiler` under `target/tools`.
pub(super) fn install(compiler: &Compiler) -> Result<Linker> {
    if process::find_program("cargo-binstall").is_some() {
        match prebuilt(compiler) {
            Ok(linker) => return Ok(linker),
            Err(error) => say(format_args!(
                "no prebuilt bpf-linker, so it is built here: {error:#}"
            )),
        }
    }
    built(compiler)
}

fn prebuilt(compiler: &Compiler) -> Result<Linker> {
    say(
        "installing a prebuilt bpf-linker by cargo-binstall (it turns the compiler's bitcode into the BPF object)",
    );
    let mut cargo = workspace::cargo();
    cargo
        .args([
            "binstall",
            "--no-confirm",
            "--disable-strategies",
            "compile",
            "--root",
        ])
        .arg(workspace::tools_dir())
        .arg(format!("bpf-linker@{VERSION}"));
    process::run(&mut cargo)?;
    check(compiler)
}

fn built(compiler: &Compiler) -> Result<Linker> {
    let llvm = (compiler.llvm..=*LLVM.end())
        .filter(|llvm| LLVM.contains(llvm))
        .find(|llvm| Path::new(&development_files(*llvm)).exists() || apt::candidate(&package(*llvm)).is_some())
        .with_context(|| {
            format!(
                "this compiler's LLVM is {}, and bpf-linker {VERSION} needs the package {} (or newer, up to {}) to be built, \
                 which cannot be had here; `cargo install cargo-binstall` makes a prebuilt one available",
                compiler.llvm,
                package(compiler.llvm),
                LLVM.end()
            )
        })?;
    let development = package(llvm);
    if !Path::new(&development_files(llvm)).exists() {
        let packages = [&development, "zlib1g-dev", "libzstd-dev", "libxml2-dev"];
        apt::install(&packages, "LLVM's own library, for bpf-linker")?;
    }
    say(format_args!(
        "building bpf-linker {VERSION} with LLVM {llvm}: about two minutes, once (it turns the compiler's bitcode into the BPF object)"
    ));
    let mut cargo = Command::new(workspace::cargo_path());
    cargo
        .args([
            "install",
            "bpf-linker",
            "--version",
            VERSION,
            "--locked",
            "--force",
        ])
        .args([
            "--no-default-features",
            "--features",
            &format!("llvm-{llvm}"),
            "--root",
        ])
        .arg(workspace::tools_dir())
        // Without it the first llvm-config on PATH decides, which may belong to another LLVM.
        .env("LLVM_PREFIX", prefix(llvm));
    process::run(&mut cargo)?;
    check(compiler)
}

/// The freshly installed linker, if it runs and fits.
fn check(compiler: &Compiler) -> Result<Linker> {
    let path = installed_linker();
    let linker = Linker::probe(path.clone())
        .with_context(|| format!("{} was installed, but does not run", path.display()))?;
    if !linker.fits(compiler) {
        bail!(
            "{} was installed with LLVM {}, but the compiler's is {}",
            path.display(),
            linker.llvm,
            compiler.llvm
        );
    }
    Ok(linker)
}

fn package(llvm: u32) -> String {
    format!("llvm-{llvm}-dev")
}

fn prefix(llvm: u32) -> String {
    format!("/usr/lib/llvm-{llvm}")
}

fn development_files(llvm: u32) -> String {
    format!("{}/lib/libLLVM.so", prefix(llvm))
}
