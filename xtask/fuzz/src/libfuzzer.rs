//! Fuzzes one target with libFuzzer: `CC_FUZZ_TARGET=NAME fuzz [OPTIONS] [CORPUS]`.
//!
//! Without a target it prints one line for each: its name, the longest input in bytes, the most
//! memory in bytes, and the longest time in seconds. With `CC_FUZZ_SEEDS=DIR` it writes the seeds
//! of the target to that directory, which must exist, and ends.
#![no_main]

use std::{
    cell::RefCell,
    env, fs, panic,
    path::{Path, PathBuf},
    process::{abort, exit},
    sync::LazyLock,
};

use cc_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let Ok(name) = env::var("CC_FUZZ_TARGET") else {
        for target in TARGETS {
            println!(
                "{} {} {} {}",
                target.name, target.longest, target.memory, target.seconds
            );
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
        // libfuzzer-sys would end the program at every panic, also at those of libraries that the
        // code under test catches.
        panic::set_hook(Box::new(|panic| LAST_PANIC.set(panic.to_string())));
        if let Some(directory) = env::var_os("CC_FUZZ_SEEDS").map(PathBuf::from) {
            for (index, seed) in (target.seeds)().iter().enumerate() {
                write(&directory.join(format!("seed-{index}")), seed);
            }
            exit(0);
        }
    },
    |bytes: &[u8]| {
        if panic::catch_unwind(|| TARGET.check(bytes)).is_err() {
            eprintln!("{}", LAST_PANIC.take());
            abort();
        }
    }
);

thread_local! {
    /// The message and place of this thread's last panic.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

fn write(path: &Path, bytes: &[u8]) {
    if let Err(error) = fs::write(path, bytes) {
        eprintln!("cannot write {}: {error}", path.display());
        exit(1);
    }
}
