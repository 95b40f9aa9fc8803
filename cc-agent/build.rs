//! Embeds the BPF object into the agent.
//!
//! `CC_EBPF_OBJECT` names it; without the variable, the place where `cargo xtask build` leaves it
//! is looked at. Where there is none, the agent still builds, and says at run time what it lacks.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-env-changed=CC_EBPF_OBJECT");
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let object = env::var_os("CC_EBPF_OBJECT")
        .map(PathBuf::from)
        .unwrap_or_else(|| here.join("../target/ebpf/cc-ebpf.o"));
    println!("cargo::rerun-if-changed={}", object.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("cc-ebpf.o");
    if object.exists() {
        fs::copy(&object, &out)?;
    } else {
        fs::write(&out, [])?;
    }
    Ok(())
}
