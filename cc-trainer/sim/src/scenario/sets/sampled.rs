//! Sets that are samples of families. The seeds are part of their definition.

use super::super::{Scenario, families::Family};

/// Seed of the test sets.
const TEST: u64 = 1301;
/// Seed of the validation set.
const VALIDATION: u64 = 1302;
/// Seed of the training set.
const TRAINING: u64 = 1303;

pub(super) fn broad() -> Vec<Scenario> {
    Family::Broad.sample("broad", 200, TEST)
}

pub(super) fn extreme() -> Vec<Scenario> {
    Family::Extreme.sample("extreme", 8, TEST)
}

pub(super) fn validation() -> Vec<Scenario> {
    mixture("validation", VALIDATION)
}

pub(super) fn training() -> Vec<Scenario> {
    mixture("training", TRAINING)
}

/// A sample of every family, in which the plain links have the largest share.
fn mixture(prefix: &str, seed: u64) -> Vec<Scenario> {
    let counts = [
        (Family::Broad, 80),
        (Family::Extreme, 4),
        (Family::Steps, 40),
        (Family::BesideCubic, 20),
    ];
    let samples = counts.map(|(family, count)| {
        let prefix = format!("{prefix}-{family}");
        family.sample(&prefix, count, seed)
    });
    samples.into_iter().flatten().collect()
}
