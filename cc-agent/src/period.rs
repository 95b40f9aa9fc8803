//! The option `--every` of what looks again and again.

use std::time::Duration;

use anyhow::bail;

/// The time between two looks that `--every` gives in seconds.
///
/// # Errors
///
/// Returns an error when it is 0, negative, no number or too long.
pub(crate) fn period(every: f64) -> anyhow::Result<Duration> {
    match Duration::try_from_secs_f64(every) {
        Ok(period) if !period.is_zero() => Ok(period),
        _ => bail!("--every {every}: expected a number of seconds above 0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_a_number_of_seconds_above_0() {
        assert_eq!(period(0.25).ok(), Some(Duration::from_millis(250)));
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-12] {
            let error = period(wrong).expect_err("no period").to_string();
            assert!(
                error.contains("--every") && error.contains("above 0"),
                "{error}"
            );
        }
    }
}
