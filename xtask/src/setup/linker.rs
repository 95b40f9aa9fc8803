//! Installs bpf-linker for a given LLVM.

use std::{ops::RangeInclusive, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use super::toolchain::{Compiler, Linker, installed_linker};
use crate::{
    apt,
    process::{self, say},
    workspace,
};

/// The release of bpf-linker to install.
const VERSION: &str = "0.13.0";
/// The LLVM versions that this release can be built with.
const LLVM: RangeInclusive<u32> = 21..=23;

/// Installs a bpf-linker that fits `compiler` into `target/tools`.
///
/// # Errors
///
/// Returns an error when the linker can neither be downloaded nor built, or does not fit.
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
    say("installing a prebuilt bpf-linker by cargo-binstall \
         (it turns the compiler's bitcode into the BPF object)");
    let mut cargo = workspace::cargo();
    cargo
        .args(["binstall", "--no-confirm"])
        .args(["--disable-strategies", "compile", "--root"])
        .arg(workspace::tools_dir())
        .arg(format!("bpf-linker@{VERSION}"));
    process::run(&mut cargo)?;
    check(compiler)
}

fn built(compiler: &Compiler) -> Result<Linker> {
    let llvm = (compiler.llvm..=*LLVM.end())
        .filter(|llvm| LLVM.contains(llvm))
        .find(|&llvm| {
            Path::new(&development_files(llvm)).exists() || apt::candidate(&package(llvm)).is_some()
        })
        .with_context(|| {
            format!(
                "this compiler's LLVM is {}, and building bpf-linker {VERSION} needs the package \
                 {} (or newer, up to {}), which is not available here; \
                 `cargo install cargo-binstall` makes a prebuilt bpf-linker available",
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
        "building bpf-linker {VERSION} with LLVM {llvm}: about a minute, once \
         (it turns the compiler's bitcode into the BPF object)"
    ));
    let mut cargo = Command::new(workspace::cargo_path());
    cargo
        .args(["install", "bpf-linker", "--version", VERSION])
        .args(["--locked", "--force", "--no-default-features"])
        .args(["--features", &format!("llvm-{llvm}"), "--root"])
        .arg(workspace::tools_dir())
        // It links one small object, and nearly all of that time is LLVM's, which is not built
        // here.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        // Without it the first llvm-config on PATH decides, which may belong to another LLVM.
        .env("LLVM_PREFIX", prefix(llvm));
    process::run(&mut cargo)?;
    check(compiler)
}

/// Returns the linker that was just installed, if it runs and fits.
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
