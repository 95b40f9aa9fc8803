//! Axes of a study: all combinations of their options are its variants.

use serde::Deserialize;

use super::{Variant, merge};

/// One dimension in which the variants of a study differ.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Whether the axis chooses the chart's panel; otherwise it chooses the curve in it.
    #[serde(default)]
    pub panel: bool,
    /// The values that the axis can have.
    #[serde(rename = "option")]
    pub options: Vec<AxisOption>,
}

/// One value of an [`Axis`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisOption {
    /// The option's part of a variant's name; the parts are joined by `-`.
    pub name: String,
    /// The option's part of the label of a panel or a curve; `None` stands for its name.
    #[serde(default)]
    pub label: Option<String>,
    /// The option's settings, which are merged into those of the options of earlier axes.
    #[serde(default)]
    pub set: toml::Table,
}

/// All combinations of one option of each axis, those of the last axis next to each other; none
/// without an axis.
pub(super) fn combinations(axes: &[Axis]) -> Vec<Variant> {
    if axes.is_empty() {
        return Vec::new();
    }
    let none = Variant {
        name: String::new(),
        panel: String::new(),
        curve: None,
        set: toml::Table::new(),
        above: None,
    };
    axes.iter().fold(vec![none], |before, axis| {
        let with = |variant: &Variant, option: &AxisOption| {
            let mut variant = variant.clone();
            let label = option.label.as_ref().unwrap_or(&option.name);
            append(&mut variant.name, "-", &option.name);
            match axis.panel {
                true => append(&mut variant.panel, ", ", label),
                false => append(variant.curve.get_or_insert_default(), ", ", label),
            }
            merge(&mut variant.set, &option.set);
            variant
        };
        before
            .iter()
            .flat_map(|variant| axis.options.iter().map(|option| with(variant, option)))
            .collect()
    })
}

/// Appends a part to a text, with a separator unless the text is empty.
fn append(text: &mut String, separator: &str, part: &str) {
    if !text.is_empty() {
        text.push_str(separator);
    }
    text.push_str(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_all_combinations_of_the_options() {
        #[derive(Deserialize)]
        struct File {
            axis: Vec<Axis>,
        }
        let text = "
            [[axis]]
            panel = true
            option = [
                { name = \"0ms\", label = \"0 ms\", set.environment.delay = { kind = \"none\" } },
                { name = \"9ms\", set.environment.delay = { kind = \"fixed\", ms = 9 } },
            ]
            [[axis]]
            option = [
                { name = \"k0\", label = \"k = 0\", set = { environment.policy.history = 0 } },
                { name = \"k10\", set = { environment.policy.history = 10 } },
            ]
            [[axis]]
            option = [{ name = \"lstm\", set = { model.lstm = 64 } }]
        ";
        let file: File = toml::from_str(text).expect("valid");
        let variants = combinations(&file.axis);
        let names: Vec<_> = variants
            .iter()
            .map(|own| (&*own.name, &*own.panel, own.curve.as_deref().unwrap_or("")))
            .collect();
        assert_eq!(
            names,
            [
                ("0ms-k0-lstm", "0 ms", "k = 0, lstm"),
                ("0ms-k10-lstm", "0 ms", "k10, lstm"),
                ("9ms-k0-lstm", "9ms", "k = 0, lstm"),
                ("9ms-k10-lstm", "9ms", "k10, lstm"),
            ]
        );
        // Settings of different options below one table stay side by side.
        let set = toml::to_string(&variants[3].set).expect("a table");
        let expected: toml::Table = toml::from_str(
            "environment.delay = { kind = \"fixed\", ms = 9 }\n\
             environment.policy.history = 10\nmodel.lstm = 64",
        )
        .expect("valid");
        assert_eq!(set, toml::to_string(&expected).expect("a table"));
        assert_eq!(combinations(&[]), []);
    }
}
