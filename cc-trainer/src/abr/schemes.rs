//! What can select bitrates, by its name on a command line.
//!
//! This is the one place that a kind of scheme is added to: evaluation and server take what it
//! returns.

use std::{fmt, str::FromStr};

use cc_abr::{
    baseline::{self, NAMES},
    qoe::{Metric, Qoe, QoeError},
    request::ChooserFor,
};

/// Name of the optimum, which needs the whole trace and can therefore not serve players.
const OPTIMUM: &str = "optimum";

/// What selects bitrates in an evaluation: a chooser by its name, or the optimum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// A classical chooser, by its name in [`baseline::named`].
    Classical(String),
    /// The best schedule for the whole trace, known beforehand.
    Optimum,
}

/// No scheme has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no scheme: take {names}, fixed:N (N from 0) or {OPTIMUM}",
    names = NAMES.join(", ")
)]
pub struct UnknownScheme(String);

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(text: &str) -> Result<Self, UnknownScheme> {
        if text == OPTIMUM {
            return Ok(Self::Optimum);
        }
        let fixed = text
            .strip_prefix("fixed:")
            .is_some_and(|n| n.parse::<usize>().is_ok());
        match fixed || NAMES.contains(&text) {
            true => Ok(Self::Classical(text.to_owned())),
            false => Err(UnknownScheme(text.to_owned())),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classical(name) => name,
            Self::Optimum => OPTIMUM,
        })
    }
}

/// What schemes aim at and are scored by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aim {
    /// The measure of the quality of experience, one of the three published ones.
    pub qoe: Qoe,
    /// Penalty for a second of rebuffering instead of the published one.
    pub rebuffer_penalty: Option<f64>,
}

impl Aim {
    /// The measure for a video with these bitrates, kbit/s.
    ///
    /// # Errors
    ///
    /// Returns an error when the measure does not know a bitrate, or the penalty cannot be used.
    pub fn metric(&self, kbps: &[f64]) -> Result<Metric, QoeError> {
        let metric = Metric::new(self.qoe, kbps)?;
        match self.rebuffer_penalty {
            Some(penalty) => metric.with_penalty(penalty),
            None => Ok(metric),
        }
    }
}

impl Scheme {
    /// Makes choosers of this scheme for the bitrates of a video; `None` for the optimum, which
    /// decides with the whole trace known.
    pub fn choosers(&self, aim: Aim) -> Option<Box<ChooserFor>> {
        let Self::Classical(name) = self else {
            return None;
        };
        let name = name.clone();
        Some(Box::new(move |kbps| {
            let metric = aim.metric(kbps).map_err(|error| error.to_string())?;
            baseline::named(&name, &metric).ok_or_else(|| UnknownScheme(name.clone()).to_string())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_make_choosers() {
        let aim = Aim {
            qoe: Qoe::Linear,
            rebuffer_penalty: None,
        };
        for name in NAMES.iter().chain(&["fixed:2", OPTIMUM]) {
            let scheme: Scheme = name.parse().expect("a known name");
            assert_eq!(scheme.to_string(), *name);
            let made = scheme
                .choosers(aim)
                .map(|choosers| choosers(&[300.0]).is_ok());
            assert_eq!(made, (scheme != Scheme::Optimum).then_some(true));
        }
        for unknown in ["", "pensieve", "fixed:", "fixed:x", "BOLA"] {
            let error = unknown.parse::<Scheme>().expect_err(unknown);
            assert!(error.to_string().contains("robust-mpc"), "{error}");
        }
    }
}
