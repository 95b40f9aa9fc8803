//! `cargo xtask build`: the BPF object, the agent with the object inside, and the trainer.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{
    object,
    process::{self, say},
    workspace,
};

/// Build the agent, optimised, with the BPF object inside, and the trainer.
///
/// Sets up what is missing, builds the BPF object (target/ebpf/cc-ebpf.o) and then target/release/cc-agent and
/// target/release/cc-trainer, each one file that needs nothing else to run. With CC_EBPF_OBJECT=/path/to/object that object is embedded instead.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn command(_: &Args) -> Result<()> {
    let Programs { agent, trainer } = programs()?;
    say(format_args!("built {}", agent.display()));
    say(format_args!("built {}", trainer.display()));
    Ok(())
}

/// The programs of this workspace.
pub(crate) struct Programs {
    pub(crate) agent: PathBuf,
    pub(crate) trainer: PathBuf,
}

/// Builds the programs. Always both: what is built alone is built with other features of its dependencies, and
/// then these are built twice.
pub(crate) fn programs() -> Result<Programs> {
    let object = object::provide()?;
    let mut cargo = workspace::cargo();
    cargo
        .args(["build", "--release", "--bins"])
        .args(["--package", "cc-agent", "--package", "cc-trainer"])
        // One program, with a GPU and without: CUDA's libraries are looked for only when it is to learn on one.
        .args(["--features", "cc-trainer/cuda"])
        .env(object::VARIABLE, &object);
    process::run(&mut cargo).context("cannot build the agent and the trainer")?;
    let dir = workspace::target_dir().join("release");
    Ok(Programs {
        agent: dir.join("cc-agent"),
        trainer: dir.join("cc-trainer"),
    })
}
