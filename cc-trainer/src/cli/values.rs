//! Parsers of option values that several subcommands have.

use std::time::Duration;

use cc_testbed::{evaluate::Jobs, league::Property, summary::Platform};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

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

/// Parses the platform here, so that the library's type does not depend on clap.
pub(super) fn platform() -> impl TypedValueParser<Value = Platform> {
    PossibleValuesParser::new([
        PossibleValue::new("kernel")
            .help("Emulated links under the running kernel's TCP, in real time"),
        PossibleValue::new("sim").help("The simulator, far faster than real time"),
    ])
    .map(|name| match name.as_str() {
        "sim" => Platform::Sim,
        _ => Platform::Kernel,
    })
}

/// Parses a property that links are told apart by.
pub(super) fn property() -> impl TypedValueParser<Value = Property> {
    PossibleValuesParser::new(Property::ALL.map(Property::name)).try_map(|name| {
        let known = Property::ALL.into_iter();
        let mut found = known.filter(|property| property.name() == name);
        found.next().ok_or("it is none of the possible values")
    })
}

/// Parses a number of runs at the same time: `auto`, or 1 to 64.
pub(super) fn jobs(text: &str) -> Result<Jobs, String> {
    match text.parse() {
        _ if text == "auto" => Ok(Jobs::Auto),
        Ok(count) if (1..=64).contains(&count) => Ok(Jobs::Count(count)),
        _ => Err("expected `auto` or a number from 1 to 64".into()),
    }
}

/// Parses a part of the links, above 0 and at most 1.
pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("expected a part above 0 and at most 1, for example 0.1".into()),
    }
}
