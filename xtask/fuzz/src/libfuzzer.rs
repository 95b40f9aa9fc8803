//! Fuzzes one target with libFuzzer: `CC_FUZZ_TARGET=NAME fuzz [OPTIONS] [CORPUS]`.
//!
//! Without a target it prints one line for each: its name, and the longest input in bytes. With
//! `CC_FUZZ_SEEDS=DIR` it writes the target's seeds to that directory, which must exist, and ends.
#![no_main]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::exit,
    sync::LazyLock,
};

use cc_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let Ok(name) = env::var("CC_FUZZ_TARGET") else {
        for target in TARGETS {
            println!("{} {}", target.name, target.longest);
        }
        exit(0);
    };
    Target::find(&name).unwrap_or_else(|| {
        eprintln!("CC_FUZZ_TARGET: there is no target {name}");
        exit(2);
    })
});

fuzz_target!(
    init: {
        let target = *TARGET;
        if let Some(directory) = env::var_os("CC_FUZZ_SEEDS").map(PathBuf::from) {
            for (index, seed) in (target.seeds)().iter().enumerate() {
                write(&directory.join(format!("seed-{index}")), seed);
            }
            exit(0);
        }
    },
    |bytes: &[u8]| (TARGET.run)(bytes)
);

fn write(path: &Path, bytes: &[u8]) {
    if let Err(error) = fs::write(path, bytes) {
        eprintln!("cannot write {}: {error}", path.display());
        exit(1);
    }
}
