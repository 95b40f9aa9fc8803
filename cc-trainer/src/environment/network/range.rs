//! Ranges of settings: checking them, and drawing from them.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::NetworkConfigError;

/// A closed range: its lower and its upper end.
pub type Range = [f64; 2];

/// A property that only some of the links of a family have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sometimes {
    /// Fraction of the links that have the property, 0 to 1.
    pub share: f64,
    /// Range of its value on the links that have it, drawn uniformly in its logarithm.
    pub range: Range,
}

/// Draws whether a link has a property, and its value if so. Without a setting nothing is drawn.
pub(super) fn draw(sometimes: Option<Sometimes>, random: &mut Xoshiro256PlusPlus) -> Option<f64> {
    let Sometimes { share, range } = sometimes?;
    (random.random::<f64>() < share).then(|| logarithmic(range, random))
}

/// Checks that both ends of a range are within `least` to `most`, the lower end first.
pub(super) fn ordered(
    range: Range,
    least: f64,
    most: f64,
    place: impl Fn() -> String,
) -> Result<(), NetworkConfigError> {
    check(range[0], [least, most], &place)?;
    check(range[1], [range[0], most], &place)
}

/// Checks that a value is within a range, ends included.
pub(super) fn check(
    value: f64,
    range: Range,
    place: impl Fn() -> String,
) -> Result<(), NetworkConfigError> {
    if value >= range[0] && value <= range[1] {
        return Ok(());
    }
    Err(NetworkConfigError::Range {
        place: place(),
        found: value,
        least: range[0],
        most: range[1],
    })
}

/// Draws from a range, uniformly in the logarithm.
pub(super) fn logarithmic([least, most]: Range, random: &mut Xoshiro256PlusPlus) -> f64 {
    let (least, most) = (least.ln(), most.ln());
    (least + (most - least) * random.random::<f64>()).exp()
}

/// Converts milliseconds, which may have a fraction, to a duration.
pub(super) fn milliseconds(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}
