//! `cargo xtask build`: the BPF object, the agent with the object inside, and the trainer.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{
    object, prebuilt,
    process::{self, say},
    setup::musl,
    workspace,
};

/// Build the agent, with the BPF object inside, and the trainer, both optimised.
///
/// Sets up what is missing, and builds target/release/cc-agent and target/release/cc-trainer. The
/// BPF object is the committed one (cc-ebpf/prebuilt), or is built where the sources are others.
/// Each program is one file that needs no other file to run. With CC_EBPF_OBJECT=/path/to/object
/// that object is embedded instead.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn command(_: &Args) -> Result<()> {
    let Programs { agent, trainer } = programs()?;
    say(format_args!("built {}", agent.display()));
    say(format_args!("built {}", trainer.display()));
    Ok(())
}

/// The paths of both programs.
pub(crate) struct Programs {
    pub(crate) agent: PathBuf,
    pub(crate) trainer: PathBuf,
}

/// Builds the agent and the trainer.
///
/// # Errors
///
/// Returns an error when the BPF object cannot be provided or the build fails.
pub(crate) fn programs() -> Result<Programs> {
    let [agent, trainer] = release(["cc-agent", "cc-trainer"])?;
    Ok(Programs { agent, trainer })
}

/// Builds the agent alone, and nothing that only the trainer needs.
///
/// # Errors
///
/// Returns an error when the BPF object cannot be provided or the build fails.
pub(crate) fn agent() -> Result<PathBuf> {
    let [agent] = release(["cc-agent"])?;
    Ok(agent)
}

/// Builds the agent alone, as a program that needs no library of the host that it runs on.
///
/// # Errors
///
/// Returns an error when the BPF object or a compiler for [musl] cannot be provided, or the build
/// fails.
pub(crate) fn static_agent() -> Result<PathBuf> {
    let target = musl::target()?;
    let [agent] = release_for(Some(&target), ["cc-agent"])?;
    Ok(agent)
}

/// Builds the programs with these names, optimised, and returns the path of each.
fn release<const N: usize>(names: [&str; N]) -> Result<[PathBuf; N]> {
    release_for(None, names)
}

/// The same for a target; `None` for this host.
fn release_for<const N: usize>(target: Option<&str>, names: [&str; N]) -> Result<[PathBuf; N]> {
    let object = object::provide()?;
    let mut cargo = workspace::cargo();
    cargo
        .args(["build", "--release"])
        .args(workspace::SELECTION)
        .args(names.iter().flat_map(|name| ["--bin", name]))
        .env(prebuilt::VARIABLE, &object);
    let mut dir = workspace::target_dir();
    if let Some(target) = target {
        cargo.args(["--target", target]);
        dir.push(target);
    }
    process::run(&mut cargo).with_context(|| format!("cannot build {}", names.join(" and ")))?;
    dir.push("release");
    Ok(names.map(|name| dir.join(name)))
}
