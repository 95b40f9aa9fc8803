//! What a trial of a sweep draws.

use cc_sim::seed;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

/// A setting that is drawn, by exactly one of three ways.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Key of the setting in the configuration, such as `learner.learning_rate`.
    pub key: String,
    /// Drawn uniformly between two numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uniform: Option<[f64; 2]>,
    /// Drawn uniformly in the logarithm between two numbers above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<[f64; 2]>,
    /// One of these values, each as likely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choices: Option<Vec<toml::Value>>,
}

/// Why a [`Parameter`] cannot be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parameter `{key}` {wrong}")]
pub struct ParameterError {
    /// Key of the setting that it draws.
    pub key: String,
    /// What is wrong with it, and what it needs.
    pub wrong: &'static str,
}

/// Checks that every parameter has one range that it can be drawn from, and a key of its own.
pub(super) fn check(parameters: &[Parameter]) -> Result<(), ParameterError> {
    for (place, parameter) in parameters.iter().enumerate() {
        let rises = |range: [f64; 2]| range[0] < range[1] && range.iter().all(|x| x.is_finite());
        let wrong = match (&parameter.uniform, &parameter.log, &parameter.choices) {
            (Some(range), None, None) => {
                (!rises(*range)).then_some("needs two rising numbers in `uniform`")
            }
            (None, Some(range), None) => (!(rises(*range) && range[0] > 0.0))
                .then_some("needs two rising numbers above 0 in `log`"),
            (None, None, Some(choices)) => choices
                .is_empty()
                .then_some("needs at least one value in `choices`"),
            _ => Some("needs exactly one of `uniform`, `log` and `choices`"),
        };
        let again = parameters[..place]
            .iter()
            .any(|other| other.key == parameter.key);
        let key = &parameter.key;
        let wrong = wrong
            .or_else(|| again.then_some("is there twice"))
            .or_else(|| key.split('.').any(str::is_empty).then_some("is no key"));
        if let Some(wrong) = wrong {
            let key = key.clone();
            return Err(ParameterError { key, wrong });
        }
    }
    Ok(())
}

/// Draws the settings of a trial. Those of other trials do not depend on how many there are.
pub(super) fn draw(
    parameters: &[Parameter],
    seed: u64,
    trial: usize,
) -> Vec<(String, toml::Value)> {
    let mut random = StdRng::seed_from_u64(seed::fold(seed, trial as u64));
    let one = |parameter: &Parameter| {
        let place: f64 = random.random();
        let value = match (&parameter.uniform, &parameter.log, &parameter.choices) {
            (Some([least, most]), ..) => (least + place * (most - least)).into(),
            (_, Some([least, most]), _) => (least * (most / least).powf(place)).into(),
            (.., Some(choices)) if !choices.is_empty() => {
                choices[((place * choices.len() as f64) as usize).min(choices.len() - 1)].clone()
            }
            _ => toml::Value::Boolean(false),
        };
        (parameter.key.clone(), value)
    };
    parameters.iter().map(one).collect()
}

/// Sets a value below a table; what is in the way and no table is replaced.
pub(super) fn set(table: &mut toml::Table, key: &str, value: toml::Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = table
                .entry(first)
                .or_insert_with(|| toml::Value::Table(toml::Table::new()));
            if !inner.is_table() {
                *inner = toml::Value::Table(toml::Table::new());
            }
            if let toml::Value::Table(inner) = inner {
                set(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(key: &str) -> Parameter {
        Parameter {
            key: key.to_owned(),
            uniform: None,
            log: None,
            choices: None,
        }
    }

    #[test]
    fn settings_are_drawn_from_their_ranges_and_do_not_depend_on_other_trials() {
        let parameters = [
            Parameter {
                uniform: Some([-1.0, 3.0]),
                ..parameter("a")
            },
            Parameter {
                log: Some([1e-4, 1e-2]),
                ..parameter("b.c")
            },
            Parameter {
                choices: Some(vec![20.into(), "x".into()]),
                ..parameter("d")
            },
        ];
        check(&parameters).expect("good ranges");
        let (mut low, mut first) = (0, 0);
        for trial in 0..1000 {
            let drawn = draw(&parameters, 7, trial);
            assert_eq!(drawn, draw(&parameters, 7, trial));
            let number = |at: usize| drawn[at].1.as_float().expect("a number");
            assert!((-1.0..3.0).contains(&number(0)));
            assert!((1e-4..1e-2).contains(&number(1)));
            low += usize::from(number(1) < 1e-3);
            first += usize::from(drawn[2].1.is_integer());
        }
        assert!(
            (450..550).contains(&low) && (450..550).contains(&first),
            "{low} {first}"
        );
        assert_ne!(draw(&parameters, 7, 1), draw(&parameters, 8, 1));
    }

    #[test]
    fn values_are_set_below_tables_that_are_there_or_not() {
        let mut table: toml::Table = toml::from_str("a = { b = 1, c = 2 }").expect("TOML");
        set(&mut table, "a.b", 5.into());
        set(&mut table, "d.e.f", true.into());
        let expected: toml::Table =
            toml::from_str("a = { b = 5, c = 2 }\nd.e.f = true").expect("TOML");
        assert_eq!(table, expected);
    }

    #[test]
    fn what_cannot_be_drawn_is_named() {
        for (wrong, expected) in [
            (parameter("a"), "needs exactly one of"),
            (
                Parameter {
                    uniform: Some([1.0, 1.0]),
                    ..parameter("a")
                },
                "rising numbers in `uniform`",
            ),
            (
                Parameter {
                    log: Some([0.0, 1.0]),
                    ..parameter("a")
                },
                "above 0 in `log`",
            ),
            (
                Parameter {
                    choices: Some(Vec::new()),
                    ..parameter("a")
                },
                "at least one value",
            ),
            (
                Parameter {
                    log: Some([1.0, 2.0]),
                    ..parameter("a..b")
                },
                "is no key",
            ),
        ] {
            let error = check(&[wrong]).expect_err("wrong").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let good = Parameter {
            log: Some([1.0, 2.0]),
            ..parameter("a")
        };
        let error = check(&[good.clone(), good]).expect_err("twice").to_string();
        assert_eq!(error, "the parameter `a` is there twice");
    }
}
