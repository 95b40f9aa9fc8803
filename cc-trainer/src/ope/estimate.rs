//! From recordings and a candidate to its estimates: reading, asking the candidate, clustering and
//! evaluating in one call.

use std::path::PathBuf;

use cc_core::{
    interface::Interface,
    policy::{ActionSelection, PolicyError, PolicySpec},
};

use super::{
    ClusterBy, LEAST_CLUSTERS, OpeError, OpeEvaluation, OpeSettings, Per, evaluate,
    recorded::{self, CandidateError, CandidateFlows, Selection},
};
use crate::dataset::{DatasetError, JoinError, Joined, Recordings};

/// Size of the partitions that recordings are sorted in, bytes. Each thread holds one in memory.
const PARTITION: u64 = 32 << 20;

/// What is to be estimated, and from what.
#[derive(Clone, Debug)]
pub struct Request {
    /// Recordings: files, or directories of them.
    pub from: Vec<PathBuf>,
    /// The candidate, which chooses actions.
    pub policy: PolicySpec,
    /// How the candidate selects actions; `None` as its file specifies.
    pub serving: Option<ActionSelection>,
    /// Identifier of the recorded policy that it is compared with, or the beginning of one; `None`
    /// where there is only one.
    pub of: Option<String>,
    /// What clusters of flows have in common; `None` for the safest that the recording supports.
    pub cluster: Option<ClusterBy>,
    /// Settings of the estimators. Their discount is over a window of the policy, or over a
    /// decision with [`Per::Decision`].
    pub settings: OpeSettings,
    /// Number of decisions to read, approximately. They are held in memory.
    pub decisions: usize,
    /// What the application measured about the flows; each of its columns becomes a term.
    pub joined: Option<Joined>,
    /// Directory for the sorted recordings, which are removed at the end.
    pub scratch: PathBuf,
}

/// The estimates, and what they are made from.
#[derive(Clone, Debug)]
pub struct Estimated {
    /// Identifier of the recorded policy that the candidate is compared with.
    pub of: String,
    /// Identifiers of all recorded policies.
    pub policies: Vec<String>,
    /// What the flows of a cluster have in common.
    pub by: ClusterBy,
    /// Number of flows that are left out because nothing is joined with them.
    pub unmatched: u64,
    /// The flows with the candidate's probabilities.
    pub taken: CandidateFlows,
    /// The estimates of all terms.
    pub evaluation: OpeEvaluation,
    /// The settings with the discount as the estimators used it.
    pub settings: OpeSettings,
}

/// Why a candidate cannot be estimated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EstimateError {
    /// The policy sets the cwnd directly.
    #[error(
        "{0}: it sets the cwnd directly and chooses no actions, so it cannot be evaluated from \
         recorded actions"
    )]
    NoActions(PolicySpec),
    /// Clusters that never are complete do not go with intervals for many looks.
    #[error(
        "--anytime with --cluster {0}: a {0} goes on adding flows from day to day, so its clusters \
         are never complete; use --cluster hour, or flow"
    )]
    NeverComplete(ClusterBy),
    /// The recordings cannot be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// What was joined does not go with the recordings.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The candidate's file is refused.
    #[error("the policy {policy}: {source}")]
    Policy {
        /// The candidate as it was named.
        policy: PolicySpec,
        /// What is wrong with it.
        source: PolicyError,
    },
    /// The candidate does not go with the recordings.
    #[error(transparent)]
    Candidate(#[from] CandidateError),
    /// There is too little for an estimate, or a setting is out of range.
    #[error(transparent)]
    Evaluation(#[from] OpeError),
}

/// Estimates what a candidate would earn. `reading` is told the number of rows that were read, and
/// of all.
///
/// # Errors
///
/// Returns an error when the recordings cannot be read or do not say enough, or when the candidate
/// does not fit them.
pub fn estimate(
    request: &Request,
    reading: &(dyn Fn(u64, u64) + Sync),
) -> Result<Estimated, EstimateError> {
    if let PolicySpec::Fixed(_) | PolicySpec::Keep = request.policy {
        return Err(EstimateError::NoActions(request.policy.clone()));
    }
    let mut settings = request.settings.clone();
    let closing = settings.anytime.is_some();
    if let (true, Some(by)) = (closing, request.cluster.filter(|by| !by.closes())) {
        return Err(EstimateError::NeverComplete(by));
    }
    settings.validate()?;
    let mut recordings = Recordings::open(&request.from)?;
    if let Some(joined) = request.joined.clone() {
        recordings = recordings.with_joined(joined.complete())?;
    }
    let of = recorded::behaviour(recordings.policies(), request.of.as_deref())?;
    let mut candidate = request
        .policy
        .load(recordings.interface(), request.serving, settings.seed)
        .map_err(|source| EstimateError::Policy {
            policy: request.policy.clone(),
            source,
        })?;
    // The rows tell what the candidate would have observed, whatever the recorded policy did.
    let recordings = recordings.with_features_version(candidate.interface().features_version)?;
    recorded::check(&*candidate, recordings.interface())?;
    let all = recordings.rows();
    let partitions =
        recordings.partition(&request.scratch, PARTITION, &|rows| reading(rows, all))?;
    settings.discount = discount(&settings, recordings.interface());
    let selection = Selection {
        of: Some(of.clone()),
        per: settings.per,
        most: request.decisions,
    };
    let mut taken = recorded::flows(&partitions, &mut *candidate, &selection)?;
    let least = LEAST_CLUSTERS
        .max(settings.least_effective.ceil() as usize)
        .max(settings.anytime.unwrap_or(0));
    let by = taken.group(request.cluster, least, closing)?;
    let evaluation = evaluate(&taken.flows, &settings)?;
    let joined = partitions.joined();
    Ok(Estimated {
        of,
        policies: recordings.policies().to_vec(),
        by,
        unmatched: joined.map_or(0, |(_, counts)| counts.flows_without_row),
        taken,
        evaluation,
        settings,
    })
}

/// The discount for the estimators: over a second, as much as over the windows that it has.
fn discount(settings: &OpeSettings, interface: &Interface) -> f64 {
    match settings.per {
        Per::Decision => settings.discount,
        Per::Second => {
            let windows = 1000.0 / f64::from(interface.window_ms);
            settings.discount.powf(windows)
        }
    }
}
