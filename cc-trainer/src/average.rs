//! The mean of policies' parameters.
//!
//! Networks that were trained further from a common beginning can be averaged: the mean often keeps
//! what each of them is good at (Wortsman et al., *Model soups*, ICML 2022; *Robust fine-tuning of
//! zero-shot models*, CVPR 2022). Networks that began apart cannot.

use std::collections::{BTreeMap, BTreeSet};

use cc_core::interface::{Interface, InterfaceError};
use cc_core::policy::export::ImportError;
use cc_core::policy::{PolicyFile, PolicyMeta};
use cc_testbed::summary::utc_now;
use thiserror::Error;

use crate::{
    dataset,
    policy_file::{self, ExportError, ImportedNetwork},
    train,
};

/// Why policies cannot be averaged. Numbers of policies count from 1.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AverageError {
    /// There is nothing to average, and nothing to change.
    #[error("{found} policies: give two or more, or one with --shared-path")]
    TooFew {
        /// The number of policies that were given.
        found: usize,
    },
    /// A file's network is none that the trainer makes.
    #[error("policy {number}: {source}")]
    Import {
        /// The policy's number among those that were given, from 1.
        number: usize,
        /// What is wrong with it.
        source: ImportError,
    },
    /// A policy differs from the first one in what is not averaged.
    #[error(
        "policy {number} differs from the first in its {what}: policies that are averaged come \
         from one by `cc-trainer train --init`"
    )]
    Differs {
        /// The policy's number among those that were given, from 1.
        number: usize,
        /// What differs: settings, the network, or the transform of its inputs.
        what: String,
    },
    /// The policies observe nothing that could be shared.
    #[error("--shared-path: {0}")]
    Interface(#[from] InterfaceError),
    /// The mean cannot be encoded.
    #[error(transparent)]
    Export(#[from] ExportError),
}

/// The bytes of a policy file whose parameters are the means of the files' parameters. All else is
/// the first file's; masks and who has slow start may differ, as with
/// [`Config::init`](crate::train::config::Config::init), and others may observe less than the
/// first: the weights of what they do not observe count as 0. With `shared_path` the mean has
/// [`Interface::shared_path`] set, whether or not the files have; the mean of one file is that file
/// with the setting. A critic that sees more than the policy is in no file: the baseline of the
/// mean is not trained then. The provenance is that of all files.
///
/// # Errors
///
/// Returns an error when there are fewer than two files, or none with `shared_path`; when networks,
/// interfaces or transforms of inputs differ, or nothing that is observed can be shared; and when a
/// file was not made by the trainer.
pub fn average(files: &[PolicyFile], shared_path: bool) -> Result<Vec<u8>, AverageError> {
    let (first, others) = match files {
        [first, others @ ..] if shared_path || !others.is_empty() => (first, others),
        _ => return Err(AverageError::TooFew { found: files.len() }),
    };
    let decode = |number: usize, file: &PolicyFile| {
        policy_file::decode(file, 0, 0).map_err(|source| AverageError::Import { number, source })
    };
    let network = decode(1, first)?;
    let interface = &Interface {
        shared_path: shared_path || first.meta().interface.shared_path,
        ..first.meta().interface.clone()
    };
    interface.validate()?;
    let mut sums: Vec<f64> = network.parameters.iter().copied().map(f64::from).collect();
    for (file, number) in others.iter().zip(2..) {
        let own = &file.meta().interface;
        let widened = policy_file::observing_more(own, interface);
        let other = decode(number, file)?.widened(own, &widened);
        if let Some(what) = difference((interface, &network), (&widened, &other)) {
            return Err(AverageError::Differs { number, what });
        }
        for (sum, parameter) in sums.iter_mut().zip(&other.parameters) {
            *sum += f64::from(*parameter);
        }
    }
    let count = files.len() as f64;
    let means: Vec<f32> = sums.iter().map(|sum| (sum / count) as f32).collect();
    let meta = PolicyMeta {
        interface: interface.clone(),
        provenance: provenance(files),
        ..first.meta().clone()
    };
    let shared = if shared_path {
        ", with what is known of a path shared"
    } else {
        ""
    };
    let description = match others.len() {
        0 => format!("A policy{shared}, by cc-trainer"),
        more => format!("The mean of {} policies{shared}, by cc-trainer", more + 1),
    };
    let (shape, normalizer) = (&network.shape, &network.normalizer);
    Ok(policy_file::encode(
        shape,
        &means,
        normalizer,
        &meta,
        &description,
    )?)
}

/// What makes a policy differ from the first one, but for its parameters.
fn difference(
    first: (&Interface, &ImportedNetwork),
    other: (&Interface, &ImportedNetwork),
) -> Option<String> {
    let settings = dataset::network_differences(first.0, other.0);
    if !settings.is_empty() {
        return Some(format!("settings ({})", settings.join("; ")));
    }
    if first.1.shape != other.1.shape {
        return Some("network".to_owned());
    }
    (first.1.normalizer != other.1.normalizer).then(|| "transform of inputs".to_owned())
}

/// Where the mean comes from: besides entries of its own those of each file, and its SHA-256, under
/// the file's number, as in `1.seed`.
fn provenance(files: &[PolicyFile]) -> BTreeMap<String, String> {
    let seen: BTreeSet<String> = (files.iter())
        .flat_map(|file| train::test_sets_seen(file.meta()))
        .collect();
    let seen = Vec::from_iter(seen);
    let own = [
        (
            "trainer",
            format!("cc-trainer {}", env!("CARGO_PKG_VERSION")),
        ),
        ("algorithm", "mean of parameters".to_owned()),
        ("date", utc_now()),
        (PolicyMeta::TEST_SETS, train::stated_test_sets(&seen)),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    let of_files = (1..).zip(files).flat_map(|(number, file)| {
        let hash = ("sha256".to_owned(), file.summary().sha256.clone());
        (file.meta().provenance.clone().into_iter())
            .chain([hash])
            .map(move |(name, value)| (format!("{number}.{name}"), value))
    });
    own.into_iter().chain(of_files).collect()
}

#[cfg(test)]
mod tests {
    use cc_core::policy::ActionSelection;

    use super::*;
    use crate::{
        model::{Activation, Shape, initialise},
        normalise::{Normalizer, input_shapes},
    };

    /// A policy with these hidden layers, with parameters of this seed that were multiplied.
    fn policy(hidden: &[usize], seed: u64, factor: f32, interface: &Interface) -> PolicyFile {
        let shape = Shape {
            observation: interface.observation_len(),
            hidden: hidden.to_vec(),
            activation: Activation::Tanh,
            lstm: Some(3),
            actions: interface.actions.len(),
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: Vec::new(),
        };
        let parameters: Vec<f32> = (initialise(&shape, seed).iter())
            .map(|parameter| parameter * factor)
            .collect();
        let seen = if seed == 1 { "none" } else { "broad" };
        let provenance = BTreeMap::from([("test_sets".to_owned(), seen.to_owned())]);
        let serving = ActionSelection::Greedy;
        let meta = policy_file::meta("a", &shape, interface, serving, provenance);
        let normalizer = Normalizer {
            observation: input_shapes(interface),
            ..Normalizer::identity(interface.observation_len())
        };
        let bytes = policy_file::encode(&shape, &parameters, &normalizer, &meta, "a test");
        PolicyFile::parse(&bytes.expect("finite")).expect("valid")
    }

    #[test]
    fn parameters_are_means_and_the_rest_is_the_firsts() {
        let interface = Interface::default();
        let later = Interface {
            after_slow_start: true,
            ..interface.clone()
        };
        let files = [
            policy(&[4], 1, 1.0, &later),
            policy(&[4], 2, 3.0, &interface),
        ];
        let mean = PolicyFile::parse(&average(&files, false).expect("alike")).expect("valid");
        let parameters = |file: &PolicyFile| policy_file::decode(file, 0, 0).expect("ours");
        let [a, b, found] = [&files[0], &files[1], &mean].map(|file| parameters(file).parameters);
        for ((a, b), found) in a.iter().zip(&b).zip(&found) {
            assert_eq!(*found, ((f64::from(*a) + f64::from(*b)) / 2.0) as f32);
        }
        assert_eq!(mean.meta().interface, later);
        assert_eq!(mean.meta().provenance["test_sets"], "broad");
        let provenance = &mean.meta().provenance;
        assert_eq!(provenance["1.test_sets"], "none");
        assert_eq!(provenance["2.sha256"], files[1].summary().sha256);
    }

    #[test]
    fn what_another_policy_does_not_observe_has_half_the_weight() {
        let interface = Interface {
            situation: 20,
            ..Interface::default()
        };
        let more = Interface {
            response: 40,
            ..interface.clone()
        };
        let files = [
            policy(&[4], 1, 1.0, &more),
            policy(&[4], 2, 1.0, &interface),
        ];
        let mean = PolicyFile::parse(&average(&files, false).expect("alike")).expect("valid");
        assert_eq!(mean.meta().interface, more);
        let [a, b, found] = [&files[0], &files[1], &mean].map(|file| {
            let network = policy_file::decode(file, 0, 0).expect("ours");
            network.parameters
        });
        // Rows of the first layer are inputs, of four units each.
        let (at, added) = (4 * (more.history_offset() - 2), 8);
        let half = |a: f32, b: f32| ((f64::from(a) + f64::from(b)) / 2.0) as f32;
        assert_eq!(found[0], half(a[0], b[0]));
        for place in at..at + added {
            assert_eq!(found[place], half(a[place], 0.0));
        }
        let after = at + added;
        assert_eq!(found[after], half(a[after], b[at]));
        let [first, second] = files;
        let refused = average(&[second, first], false).expect_err("the first sees less");
        assert!(refused.to_string().contains("response"), "{refused}");
    }

    #[test]
    fn one_file_is_itself_with_its_path_shared() {
        let own = Interface {
            situation: 20,
            ..Interface::default()
        };
        let file = policy(&[4], 1, 1.0, &own);
        let bytes = average(std::slice::from_ref(&file), true).expect("it has a situation");
        let shared = PolicyFile::parse(&bytes).expect("valid");
        let expected = Interface {
            shared_path: true,
            ..own
        };
        assert_eq!(shared.meta().interface, expected);
        let parameters = |file: &PolicyFile| policy_file::decode(file, 0, 0).expect("ours");
        assert_eq!(parameters(&shared).parameters, parameters(&file).parameters);
        assert_eq!(parameters(&shared).normalizer, parameters(&file).normalizer);
    }

    #[test]
    fn what_is_not_alike_is_refused() {
        let interface = Interface::default();
        let other = Interface {
            window_ms: 50,
            ..interface.clone()
        };
        let first = || policy(&[4], 1, 1.0, &interface);
        let refused = |files: &[PolicyFile], reason: &str| {
            let error = average(files, false).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
        };
        refused(&[], "0 policies: give two");
        refused(&[first()], "1 policies: give two");
        let error = average(&[first()], true).expect_err("it observes no situation");
        let error = error.to_string();
        assert!(
            error.starts_with("--shared-path: shared_path is true"),
            "{error}"
        );
        refused(
            &[first(), policy(&[5], 1, 1.0, &interface)],
            "policy 2 differs from the first in its network",
        );
        refused(
            &[first(), first(), policy(&[4], 1, 1.0, &other)],
            "policy 3 differs from the first in its settings (window_ms",
        );
    }
}
