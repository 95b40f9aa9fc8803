//! Fuzz targets: one for each kind of bytes that the agent or the trainer reads from outside.
//!
//! A [`Target`] is a function over arbitrary bytes that must not panic, and a few well-formed
//! inputs to start from. `cargo xtask test --long` fuzzes each target with libFuzzer for a bounded
//! time (`src/libfuzzer.rs`); the ordinary tests (`tests/corpus.rs`) run each target over its seeds
//! and over mutations of them, so that no target stops working unnoticed.
//!
//! An input that made a target fail is kept in `regressions/TARGET/`, under any name; the ordinary
//! tests run those files too.

mod recording;
mod seeds;

use std::path::Path;

use cc_core::{policy::PolicyFile, status::Request};
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
}

/// All targets, in the order in which they are fuzzed.
pub const TARGETS: [Target; 6] = [
    Target {
        name: "record",
        run: record,
        seeds: seeds::records,
        longest: 1024,
    },
    Target {
        name: "policy",
        run: policy,
        seeds: seeds::policies,
        longest: 256 * 1024,
    },
    Target {
        name: "scenario",
        run: scenario,
        seeds: seeds::scenarios,
        longest: 4096,
    },
    Target {
        name: "trace",
        run: trace,
        seeds: seeds::traces,
        longest: 4096,
    },
    Target {
        name: "request",
        run: request,
        seeds: seeds::requests,
        longest: 4096,
    },
    Target {
        name: "recovery",
        run: recording::recover,
        seeds: recording::seeds,
        longest: 64 * 1024,
    },
];

impl Target {
    /// Finds a target by its name; `None` when there is none with it.
    pub fn find(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
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
    assert_eq!(serde_json::to_string(&again).expect("as before"), text);
}
