//! Mean entropy of what policies did, from the recorded probabilities of all actions.

use std::path::Path;

use cc_recording::RecordingError;

/// Rows of recordings, and the mean entropy of their decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Recorded {
    /// Number of rows, with decisions or without.
    pub(super) rows: u64,
    /// Mean entropy over the decisions with probabilities, nats; 0 without any.
    pub(super) entropy: f64,
}

/// Reads all complete files of a directory.
///
/// # Errors
///
/// Returns an error when a file cannot be read or is no recording.
pub(super) fn recorded(directory: &Path) -> Result<Recorded, RecordingError> {
    let (mut rows, mut decisions, mut sum) = (0, 0_u64, 0.0);
    for file in cc_recording::files(directory)? {
        let (_, reader) = cc_recording::read(&file)?;
        for row in reader {
            rows += 1;
            let probabilities = row?.decision.and_then(|decided| decided.probabilities);
            if let Some(probabilities) = probabilities {
                decisions += 1;
                sum += of(probabilities.into_iter().map(f64::from));
            }
        }
    }
    Ok(Recorded {
        rows,
        entropy: sum / decisions.max(1) as f64,
    })
}

/// The entropy of a distribution, nats.
pub(super) fn of(probabilities: impl IntoIterator<Item = f64>) -> f64 {
    let terms = probabilities.into_iter().filter(|&p| p > 0.0);
    // Not sum(), which makes -0.0 of no terms.
    terms.fold(0.0, |sum, p| sum - p * p.ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entropy_of_a_certain_action_is_0_and_of_equal_ones_the_largest() {
        assert_eq!(of([0.0, 1.0, 0.0]), 0.0);
        assert!((of([0.25; 4]) - 4.0_f64.ln()).abs() < 1e-12);
        assert!(of([0.7, 0.1, 0.1, 0.1]) < of([0.25; 4]));
    }
}
