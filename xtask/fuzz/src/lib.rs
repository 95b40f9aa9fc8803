//! Fuzz targets: one for each kind of bytes that the agent or the trainer reads from outside.
//!
//! A [`Target`] is a function over arbitrary bytes that must not panic, the memory and the time
//! that it may take, and a few well-formed inputs to start from. `cargo xtask test --long` fuzzes
//! each target with libFuzzer for a bounded time (`src/libfuzzer.rs`).
//!
//! `corpus/TARGET/` has inputs that together reach most of what fuzzing has ever reached, in few
//! kilobytes, and `regressions/TARGET/` every input that once made the target fail. The ordinary
//! tests (`tests/corpus.rs`) run each target over both, over its seeds and over mutations of them,
//! so that no target stops working unnoticed.

mod cage;
mod memory;
mod recording;
mod remote;
mod seeds;

use std::path::Path;

use cc_core::{
    policy::PolicyFile,
    status::{Command, Request},
};
use cc_ebpf::Record;
use cc_sim::scenario::{self, Trace};

/// A function over bytes from outside, with inputs to start from.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name on the command line, and of the directory of regressions.
    pub name: &'static str,
    /// Reads the bytes and checks what they were read as.
    ///
    /// # Panics
    ///
    /// Panics when the code under test is wrong.
    pub run: fn(&[u8]),
    /// Returns well-formed inputs, at least one.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The longest input, in bytes, that fuzzing tries.
    pub longest: usize,
    /// The most memory that the target may have allocated at once, bytes.
    pub memory: usize,
    /// The longest time that an input may take, seconds: many times what the slowest one takes, as
    /// the instrumented program shares a busy host.
    pub seconds: u32,
}

/// All targets, in the order in which they are fuzzed.
pub const TARGETS: [Target; 9] = [
    Target {
        name: "record",
        run: record,
        seeds: seeds::records,
        longest: 1024,
        // A record is copied, and is smaller than 4 KiB.
        memory: 64 << 10,
        seconds: 2,
    },
    Target {
        name: "policy",
        run: policy,
        seeds: seeds::policies,
        longest: 256 * 1024,
        // What is decoded of a file is proportional to it. The bounds of what a graph takes are
        // proven in cc-core/tests/policy_bounds.rs.
        memory: 64 << 20,
        seconds: 20,
    },
    Target {
        name: "scenario",
        run: scenario,
        seeds: seeds::scenarios,
        longest: 8192,
        // A scenario may ask for a generated trace.
        memory: 64 << 20,
        seconds: 10,
    },
    Target {
        name: "trace",
        run: trace,
        seeds: seeds::traces,
        longest: 4096,
        // A time is at least two bytes of text and eight of memory.
        memory: 1 << 20,
        seconds: 5,
    },
    Target {
        name: "request",
        run: request,
        seeds: seeds::requests,
        longest: 4096,
        // The strings of a line.
        memory: 1 << 20,
        seconds: 2,
    },
    Target {
        name: "recovery",
        run: recording::recover,
        seeds: recording::seeds,
        longest: 64 * 1024,
        // A page may have 64 MiB, and the texts of a batch of rows 256 MiB (cc_recording::read).
        memory: 512 << 20,
        seconds: 20,
    },
    Target {
        name: "batches",
        run: cc_cage::hostile::answer_batches,
        seeds: cage::batches,
        longest: 1024,
        // The answers to a batch of 16 queries, each of some dozen numbers.
        memory: 256 << 10,
        seconds: 2,
    },
    Target {
        name: "report",
        run: cc_cage::hostile::report,
        seeds: cage::reports,
        longest: 16 * 1024,
        // A report is JSON; the action space and the provenance are the largest parts.
        memory: 1 << 20,
        seconds: 2,
    },
    Target {
        name: "remote",
        run: remote::read,
        seeds: remote::seeds,
        longest: 32 * 1024,
        // A byte of a message is at most a number of eight bytes, in a list that has doubled.
        memory: 1 << 20,
        seconds: 2,
    },
];

impl Target {
    /// Finds a target by its name; `None` when there is none with it.
    pub fn find(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// Runs the target over an input.
    ///
    /// # Panics
    ///
    /// Panics when the code under test is wrong, and when it takes too much memory.
    pub fn check(&self, bytes: &[u8]) {
        let peak = memory::peak(|| (self.run)(bytes));
        assert!(
            peak <= self.memory,
            "{peak} bytes were allocated at once; at most {} are allowed",
            self.memory
        );
    }
}

/// Decodes a record of the datapath, as the agent does with each entry of the ring buffer.
fn record(bytes: &[u8]) {
    let Ok(record) = Record::decode(bytes) else {
        return;
    };
    let header = bytemuck::bytes_of(record.header());
    assert!(bytes.starts_with(header), "{record:?}");
}

/// Checks a policy file, as the agent does before it serves one.
fn policy(bytes: &[u8]) {
    PolicyFile::parse(bytes).ok();
}

/// Reads a file of scenarios.
fn scenario(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    // A scenario may name files with traces: not those of this host.
    if text.contains("trace") {
        return;
    }
    let Ok(scenarios) = scenario::parse(text, Path::new("fuzz.toml")) else {
        return;
    };
    for scenario in scenarios {
        assert!(!scenario.flows.is_empty(), "{scenario:?}");
    }
}

/// Reads a trace in mahimahi's format.
fn trace(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let Ok(trace) = Trace::parse(text, Path::new("fuzz.trace")) else {
        return;
    };
    let times = trace.times();
    assert!(times.is_sorted(), "{times:?}");
    assert!(trace.period_ms() > 0, "{times:?}");
    assert!(trace.mean_bits_per_second().is_finite(), "{times:?}");
}

/// Reads a line that a client sent to the agent's status socket.
fn request(bytes: &[u8]) {
    let Ok(request) = serde_json::from_slice::<Request>(bytes) else {
        return;
    };
    let text = serde_json::to_string(&request).expect("a request that was read can be written");
    let again: Request = serde_json::from_str(&text).expect("a request that was written");
    match (request, again) {
        (Request::Status, Request::Status) => {}
        (
            Request::Command(Command::StartCanary { file, percent, by }),
            Request::Command(Command::StartCanary {
                file: again,
                percent: read,
                by: way,
            }),
        ) => {
            assert_eq!((file, by), (again, way));
            // serde_json reads a number to within one unit in the last place.
            let tolerance = percent.abs() * 2.0 * f64::EPSILON;
            assert!((percent - read).abs() <= tolerance, "{percent} as {text}");
        }
        (Request::Command(command), Request::Command(again)) => assert_eq!(command, again),
        _ => panic!("another request: {text}"),
    }
}
