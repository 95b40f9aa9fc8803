//! Quality of experience: what a viewer gets, as one number per chunk.
//!
//! Section 5.1 of the Pensieve paper, after Yin et al. (SIGCOMM 2015): the quality of the chunk,
//! less a penalty for each second of rebuffering, less the change of quality from the chunk before.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The three published measures of quality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Qoe {
    /// Quality is the bitrate in Mbit/s; a second of rebuffering costs 4.3.
    #[default]
    Linear,
    /// Quality is ln(bitrate ÷ lowest bitrate); a second of rebuffering costs 2.66.
    Log,
    /// Quality is 1, 2, 3, 12, 15 or 20 for the six bitrates of Pensieve's video; a second of
    /// rebuffering costs 8.
    Hd,
}

/// The bitrates that [`Qoe::Hd`] is defined for, kbit/s, with the quality of each.
const HD: [(f64, f64); 6] = [
    (300.0, 1.0),
    (750.0, 2.0),
    (1200.0, 3.0),
    (1850.0, 12.0),
    (2850.0, 15.0),
    (4300.0, 20.0),
];

/// Why a measure cannot score a video.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QoeError {
    /// No measure has this name.
    #[error("`{0}` is no quality of experience: take linear, log or hd")]
    Unknown(String),
    /// The measure has no quality for a bitrate.
    #[error(
        "hd has no quality for {0} kbit/s: it is defined for 300, 750, 1200, 1850, 2850 and 4300; \
         take linear or log"
    )]
    NoQuality(f64),
    /// The penalty is no usable number.
    #[error("a penalty of {0} for each second of rebuffering: give a number from 0 to 1000")]
    Penalty(f64),
}

impl Qoe {
    /// All measures, in the paper's order.
    pub const ALL: [Self; 3] = [Self::Linear, Self::Log, Self::Hd];

    /// The published penalty for a second of rebuffering.
    pub fn rebuffer_penalty(self) -> f64 {
        match self {
            Self::Linear => 4.3,
            Self::Log => 2.66,
            Self::Hd => 8.0,
        }
    }
}

impl fmt::Display for Qoe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linear => "linear",
            Self::Log => "log",
            Self::Hd => "hd",
        })
    }
}

impl FromStr for Qoe {
    type Err = QoeError;

    fn from_str(text: &str) -> Result<Self, QoeError> {
        let named = Self::ALL.into_iter().find(|one| one.to_string() == text);
        named.ok_or_else(|| QoeError::Unknown(text.to_owned()))
    }
}

/// A measure for the bitrates of one video.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Quality of each bitrate, times `unit`. Sums of whole numbers are exact, so that ties stay
    /// ties.
    levels: Vec<f64>,
    unit: f64,
    rebuffer_penalty: f64,
}

impl Metric {
    /// Creates the published measure for these bitrates (kbit/s, ascending).
    ///
    /// # Errors
    ///
    /// Returns an error when the measure has no quality for a bitrate.
    pub fn new(qoe: Qoe, kbps: &[f64]) -> Result<Self, QoeError> {
        let quality = |&rate: &f64| match qoe {
            Qoe::Linear => Ok(rate),
            Qoe::Log => Ok((rate / kbps[0]).ln()),
            Qoe::Hd => {
                let known = HD.iter().find(|(known, _)| *known == rate);
                known.map(|known| known.1).ok_or(QoeError::NoQuality(rate))
            }
        };
        Ok(Self {
            levels: kbps.iter().map(quality).collect::<Result<_, _>>()?,
            unit: if qoe == Qoe::Linear { 1e3 } else { 1.0 },
            rebuffer_penalty: qoe.rebuffer_penalty(),
        })
    }

    /// The same measure with another penalty for a second of rebuffering.
    ///
    /// # Errors
    ///
    /// Returns an error when the penalty is not a number from 0 to 1000.
    pub fn with_penalty(mut self, penalty: f64) -> Result<Self, QoeError> {
        if !(0.0..=1e3).contains(&penalty) {
            return Err(QoeError::Penalty(penalty));
        }
        self.rebuffer_penalty = penalty;
        Ok(self)
    }

    /// Quality of each bitrate in units of 1 ÷ [`Metric::unit`].
    pub fn levels(&self) -> &[f64] {
        &self.levels
    }

    /// What [`Metric::levels`] are divided by: 1000 for kbit/s.
    pub fn unit(&self) -> f64 {
        self.unit
    }

    /// Penalty for a second of rebuffering.
    pub fn rebuffer_penalty(&self) -> f64 {
        self.rebuffer_penalty
    }

    /// Score of one chunk, from its quality, that of the chunk before, and its rebuffering in s.
    pub fn score(&self, quality: usize, last: usize, rebuffer_s: f64) -> f64 {
        self.levels[quality] / self.unit
            - self.rebuffer_penalty * rebuffer_s
            - self.change(quality, last)
    }

    /// Size of the change between two qualities.
    pub fn change(&self, quality: usize, last: usize) -> f64 {
        (self.levels[quality] - self.levels[last]).abs() / self.unit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::video::ENVIVIO_KBPS;

    #[test]
    fn scores_are_the_published_sums() {
        let metric = |qoe| Metric::new(qoe, &ENVIVIO_KBPS).expect("its own bitrates");
        let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-12, "{one} {other}");
        // 2.85 - 4.3 * 0.5 - (2.85 - 0.75)
        near(metric(Qoe::Linear).score(4, 1, 0.5), -1.4);
        near(
            metric(Qoe::Log).score(5, 5, 1.0),
            (43.0_f64 / 3.0).ln() - 2.66,
        );
        near(metric(Qoe::Hd).score(3, 2, 0.25), 12.0 - 2.0 - 9.0);
        let severe = metric(Qoe::Linear).with_penalty(10.0).expect("valid");
        near(severe.score(0, 0, 1.0), -9.7);
    }

    #[test]
    fn hd_is_for_the_bitrates_that_it_lists() {
        assert!(Metric::new(Qoe::Hd, &[750.0, 2850.0]).is_ok());
        assert_eq!(
            Metric::new(Qoe::Hd, &[300.0, 800.0]),
            Err(QoeError::NoQuality(800.0))
        );
    }

    #[test]
    fn names_are_read_back() {
        for qoe in Qoe::ALL {
            assert_eq!(qoe.to_string().parse(), Ok(qoe));
        }
        assert!("vmaf".parse::<Qoe>().is_err());
    }
}
