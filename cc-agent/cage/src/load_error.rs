//! Why a policy is not used, wherever it was loaded.

use std::time::Duration;

use cc_core::policy::PolicyError;

/// Why a policy is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The policy cannot be made.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Answers of the policy are not finite.
    #[error(
        "{invalid} of its {answers} answers to {observations} are not finite, and would leave \
         flows without decisions; train or export it again"
    )]
    NotFinite {
        /// The observations that it was asked about.
        observations: &'static str,
        /// Number of answers that are NaN or infinite.
        invalid: usize,
        /// Number of answers in that batch.
        answers: usize,
    },
    /// Batches of the policy take too long.
    #[error(
        "a batch of {rows} flows takes {:.1} ms of processor time, but at most {:.1} ms are \
         allowed: use a smaller policy or a longer window, or raise --batch-budget-ms",
        took.as_secs_f64() * 1e3,
        budget.as_secs_f64() * 1e3
    )]
    Slow {
        /// Number of queries in the batch.
        rows: usize,
        /// The time that the batch took.
        took: Duration,
        /// The longest time that it may take.
        budget: Duration,
    },
}
