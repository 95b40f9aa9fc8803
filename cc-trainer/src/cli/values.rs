//! Parsers of option values that several subcommands have.

use std::time::Duration;

/// Parses a number of seconds from 0.1 to 86400.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds from 0.1 to 86400".to_owned()),
    }
}

/// Parses a discount: above 0 and at most 1.
pub(super) fn discount(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(discount) if discount > 0.0 && discount <= 1.0 => Ok(discount),
        _ => Err("expected a number above 0 and at most 1".to_owned()),
    }
}
