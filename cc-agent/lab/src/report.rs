//! Reports of benchmarks: figures by name, printed and, for `cargo xtask bench --json`, written to
//! the file that the environment variable `BENCH_JSON` names.

use std::fmt::Display;

use anyhow::Context;
use serde_json::{Map, Value, json};

/// The figures of one benchmark, by name.
pub struct Report {
    bench: &'static str,
    figures: Map<String, Value>,
}

impl Report {
    /// Creates an empty report of the named benchmark.
    pub fn new(bench: &'static str) -> Self {
        Self {
            bench,
            figures: Map::new(),
        }
    }

    /// Adds a figure without printing it. A later figure of the same name replaces it.
    pub fn add(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), json!(value));
    }

    /// Adds a figure, and prints it with three decimals.
    pub fn show(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        println!("{name:<44} {value:.3}");
        self.add(name, value);
    }

    /// Writes the figures as JSON to the file that `BENCH_JSON` names, if it is set.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be written.
    pub fn write(self) -> anyhow::Result<()> {
        let Some(path) = std::env::var_os("BENCH_JSON") else {
            return Ok(());
        };
        let json = json!({ "bench": self.bench, "figures": self.figures });
        std::fs::write(&path, format!("{json:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Prints a figure that a test saw on this kernel, such as an amount or how something was done.
/// `cargo xtask kernels` puts it into its matrix.
pub fn figure(name: &str, value: impl Display) {
    eprintln!("FIGURE {name} = {value}");
}

/// Returns the median: the upper one of two in the middle, and NaN if there are no samples.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
