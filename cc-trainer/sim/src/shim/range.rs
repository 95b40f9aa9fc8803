//! Ranges of conditions, of which each episode of training draws its own.

use std::{ops::RangeInclusive, time::Duration};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use super::{Conditions, OneWay, Preset};
use crate::scenario::Loss;

/// Delays and jitters that can be set, ms.
const MILLISECONDS: RangeInclusive<f64> = 0.0..=60_000.0;
/// Shares of lost messages that can be set. At more, episodes would wait for decisions for ever.
const LOSS: RangeInclusive<f64> = 0.0..=0.9;

/// Conditions between two ends, drawn uniformly: a policy that is trained with another network in
/// each episode stands all of them.
///
/// All keys are optional. Without any, messages arrive at once; with a preset alone, every draw is
/// that preset. Both directions have the same figures and sources of chance of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConditionsRange {
    /// The conditions that the other keys change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Least and largest mean of the delay in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<[f64; 2]>,
    /// Least and largest standard deviation of the delay in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<[f64; 2]>,
    /// Least and largest probability that a message is lost, each on its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<[f64; 2]>,
}

impl ConditionsRange {
    /// Checks that each range is one, within what can be set.
    ///
    /// # Errors
    ///
    /// Returns an error that names the key when a range is none or goes too far.
    pub fn validate(&self) -> Result<(), String> {
        let check = |key: &str, range: Option<[f64; 2]>, within: RangeInclusive<f64>| {
            let Some([least, most]) = range else {
                return Ok(());
            };
            if within.contains(&least) && within.contains(&most) && least <= most {
                return Ok(());
            }
            Err(format!(
                "{key} of the network is [{least}, {most}]; expected the least and the largest \
                 value, from {} to {}",
                within.start(),
                within.end()
            ))
        };
        check("delay_ms", self.delay_ms, MILLISECONDS)?;
        check("jitter_ms", self.jitter_ms, MILLISECONDS)?;
        check("loss", self.loss, LOSS)
    }

    /// The conditions of every episode; `None` where there is something to draw.
    pub fn fixed(&self) -> Option<Conditions> {
        let ranges = [self.delay_ms, self.jitter_ms, self.loss];
        let is_one = ranges.iter().flatten().all(|[least, most]| least == most);
        is_one.then(|| self.draw(&mut StdRng::seed_from_u64(0)))
    }

    /// Draws the conditions of an episode, from ranges that are valid.
    pub fn draw(&self, random: &mut impl Rng) -> Conditions {
        let mut within = |[least, most]: [f64; 2]| least + (most - least) * random.random::<f64>();
        let perfect = (Duration::ZERO, Duration::ZERO, Loss::None);
        let (mut delay, mut jitter, mut loss) = self.preset.map_or(perfect, Preset::figures);
        if let Some(range) = self.delay_ms {
            delay = Duration::from_secs_f64(within(range) / 1e3);
        }
        if let Some(range) = self.jitter_ms {
            jitter = Duration::from_secs_f64(within(range) / 1e3);
        }
        if let Some(range) = self.loss {
            loss = Loss::Bernoulli(within(range));
        }
        let one_way = OneWay::Drawn {
            delay,
            jitter,
            loss,
        };
        Conditions {
            there: one_way.clone(),
            back: one_way,
            retransmission: None,
        }
    }
}

impl From<Preset> for ConditionsRange {
    fn from(preset: Preset) -> Self {
        Self {
            preset: Some(preset),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_preset_is_drawn_as_it_is_and_no_key_is_a_perfect_network() {
        let mut random = StdRng::seed_from_u64(1);
        for preset in Preset::ALL {
            let range = ConditionsRange::from(preset);
            assert_eq!(range.draw(&mut random), Conditions::from(preset));
        }
        let perfect = ConditionsRange::default().draw(&mut random);
        assert_eq!(ConditionsRange::default().fixed().as_ref(), Some(&perfect));
        assert_eq!(
            (perfect.there, perfect.back),
            (OneWay::PERFECT, OneWay::PERFECT)
        );
    }

    #[test]
    fn keys_change_a_preset_and_bad_ones_are_refused_by_name() {
        let parse = |text: &str| -> Result<ConditionsRange, String> {
            let range: ConditionsRange = toml::from_str(text).map_err(|error| error.to_string())?;
            range.validate().map(|()| range)
        };
        let range = parse("preset = \"wifi-degraded\"\njitter_ms = [0, 0]").expect("a range");
        let drawn = range.draw(&mut StdRng::seed_from_u64(1)).there;
        assert_eq!(range.fixed().map(|one| one.back), Some(drawn.clone()));
        assert_eq!(
            parse("loss = [0, 0.1]").map(|range| range.fixed()),
            Ok(None)
        );
        assert_eq!(
            drawn,
            OneWay::Drawn {
                delay: Duration::from_millis(80),
                jitter: Duration::ZERO,
                loss: Loss::Bernoulli(0.1)
            }
        );
        for (bad, key) in [
            ("delay_ms = [20, 10]", "delay_ms"),
            ("delay_ms = [0, 70000]", "delay_ms"),
            ("jitter_ms = [-1, 1]", "jitter_ms"),
            ("jitter_ms = [0, nan]", "jitter_ms"),
            ("loss = [0, 1]", "loss"),
            ("latency = 3", "latency"),
        ] {
            let error = parse(bad).expect_err(bad);
            assert!(error.contains(key), "{error}");
        }
    }

    proptest! {
        #[test]
        fn draws_are_within_the_ranges(
            delay in (0.0..500.0f64, 0.0..500.0f64),
            loss in (0.0..0.4f64, 0.0..0.4f64),
            seed: u64,
        ) {
            let range = ConditionsRange {
                delay_ms: Some([delay.0, delay.0 + delay.1]),
                loss: Some([loss.0, loss.0 + loss.1]),
                ..ConditionsRange::from(Preset::WifiNormal)
            };
            prop_assert_eq!(range.validate(), Ok(()));
            let drawn = range.draw(&mut StdRng::seed_from_u64(seed));
            prop_assert_eq!(&drawn.there, &drawn.back);
            let OneWay::Drawn {
                delay: mean,
                jitter,
                loss: Loss::Bernoulli(lost),
            } = drawn.there
            else {
                return Err(TestCaseError::fail("of another kind"));
            };
            let ms = mean.as_secs_f64() * 1e3;
            prop_assert!(ms > delay.0 - 1e-5 && ms < delay.0 + delay.1 + 1e-5);
            prop_assert!(lost >= loss.0 && lost <= loss.0 + loss.1);
            prop_assert_eq!(jitter, Duration::from_millis(10));
        }
    }
}
