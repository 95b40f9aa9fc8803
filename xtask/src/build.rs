//! `cargo xtask build`: the BPF object, then the agent with the object inside.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{
    object,
    process::{self, say},
    workspace,
};

/// Build the agent, optimised, with the BPF object inside.
///
/// Sets up what is missing, builds the BPF object (target/ebpf/cc-ebpf.o) and then target/release/cc-agent, one file that
/// needs nothing else to run. With CC_EBPF_OBJECT=/path/to/object that object is embedded instead.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn command(_: &Args) -> Result<()> {
    let agent = agent()?;
    say(format_args!("built {}", agent.display()));
    Ok(())
}

/// Builds the agent and returns its path.
pub(crate) fn agent() -> Result<PathBuf> {
    let object = object::provide()?;
    let mut cargo = workspace::cargo();
    cargo
        .args([
            "build",
            "--release",
            "--package",
            "cc-agent",
            "--bin",
            "cc-agent",
        ])
        .env(object::VARIABLE, &object);
    process::run(&mut cargo).context("cannot build the agent")?;
    Ok(workspace::target_dir().join("release/cc-agent"))
}
