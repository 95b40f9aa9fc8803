//! The state of a run in one file, `checkpoint.bin`, from which the run continues.
//!
//! Layout: the magic number `RLCK`; the format version (u32) and the header's length (u64); the
//! header as JSON; the parameters, the optimiser's moments and, where one is kept, the mean of the
//! parameters, as f32; and the SHA-256 digest of all that. Integers and floats are little-endian.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{record::Record, statistics::Statistics};
use crate::{
    learner::{
        LearnerState, average::ParameterAverage, constraints::Multipliers,
        reward::RewardStatistics, values::ValueStatistics,
    },
    normalise::Normalizer,
};

const MAGIC: &[u8; 4] = b"RLCK";
const VERSION: u32 = 1;
/// Length of the magic number, the version and the header's length, bytes.
const PREFIX: usize = 16;
/// Length of the SHA-256 digest, bytes.
const DIGEST: usize = 32;

/// The state that a run continues from.
///
/// The environments and the actors' random number generators are not part of it: episodes in
/// progress are lost, and new ones begin with seeds that the run has not used yet.
#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    pub(super) header: Header,
    /// The network's parameters, in [`ParameterLayout`](crate::model::ParameterLayout)'s order.
    pub(super) parameters: Vec<f32>,
    /// The optimiser's moments, as [`Device::moments`](crate::model::Device::moments) gives them.
    pub(super) moments: Vec<f32>,
    /// The mean of the parameters over updates; of none where none is kept.
    pub(super) average: ParameterAverage,
}

/// Everything in a checkpoint but its arrays.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) record: Record,
    pub(super) statistics: Statistics,
    rewards: RewardStatistics,
    /// Multipliers of the constraints; none in checkpoints of versions that had no constraints.
    #[serde(default)]
    multipliers: Multipliers,
    /// Scales of values; none in checkpoints of versions that did not scale them.
    #[serde(default)]
    values: ValueStatistics,
    pub(super) normalizer: Option<Normalizer>,
    /// Length of [`Checkpoint::parameters`], to check the file.
    parameters: usize,
    /// Length of [`Checkpoint::moments`], to check the file.
    moments: usize,
    /// Length of [`Checkpoint::average`]; 0 in checkpoints of versions that averaged nothing.
    #[serde(default)]
    average: usize,
}

/// Why a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system could not read the file.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// The file that could not be read.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// The file is damaged, or no checkpoint of this version.
    #[error(
        "{}: {reason}; choose another directory with --out, or remove the file to start anew",
        path.display()
    )]
    Unreadable {
        /// The file that cannot be used.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl Header {
    pub(super) fn new(
        record: Record,
        statistics: Statistics,
        learner: &LearnerState,
        normalizer: Option<Normalizer>,
    ) -> Self {
        let LearnerState {
            rewards,
            multipliers,
            values,
            average: _,
        } = learner;
        Self {
            record,
            statistics,
            rewards: rewards.clone(),
            multipliers: multipliers.clone(),
            values: values.clone(),
            normalizer,
            parameters: 0,
            moments: 0,
            average: 0,
        }
    }

    /// What the learner had learnt beside the network.
    pub(super) fn learner(&self, average: ParameterAverage) -> LearnerState {
        LearnerState {
            rewards: self.rewards.clone(),
            multipliers: self.multipliers.clone(),
            values: self.values.clone(),
            average,
        }
    }
}

impl Checkpoint {
    /// Reads the checkpoint at `path`; `None` if there is no such file.
    pub(super) fn load(path: &Path) -> Result<Option<Self>, CheckpointError> {
        let data = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|source| CheckpointError::Read {
                path: path.to_owned(),
                source,
            })?,
        };
        Self::read(path, &data).map(Some)
    }

    /// Reads a checkpoint from the bytes of the file at `path`.
    pub(super) fn read(path: &Path, data: &[u8]) -> Result<Self, CheckpointError> {
        Self::decode(data).map_err(|reason| CheckpointError::Unreadable {
            path: path.to_owned(),
            reason,
        })
    }

    /// The checkpoint as the bytes of its file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let header = Header {
            parameters: self.parameters.len(),
            moments: self.moments.len(),
            average: self.average.parameters().len(),
            ..self.header.clone()
        };
        let header = serde_json::to_vec(&header)
            .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
        let arrays = [&self.parameters, &self.moments, self.average.parameters()].concat();
        let mut data = Vec::with_capacity(PREFIX + header.len() + 4 * arrays.len() + DIGEST);
        data.extend_from_slice(MAGIC);
        data.extend_from_slice(&VERSION.to_le_bytes());
        data.extend_from_slice(&(header.len() as u64).to_le_bytes());
        data.extend_from_slice(&header);
        for value in arrays {
            data.extend_from_slice(&value.to_le_bytes());
        }
        let digest = Sha256::digest(&data);
        data.extend_from_slice(&digest);
        data
    }

    fn decode(data: &[u8]) -> Result<Self, String> {
        let (body, digest) = data
            .split_at_checked(data.len().saturating_sub(DIGEST))
            .filter(|(body, _)| body.len() >= PREFIX && body.starts_with(MAGIC))
            .ok_or("not a checkpoint")?;
        let version = u32::from_le_bytes([body[4], body[5], body[6], body[7]]);
        if version != VERSION {
            return Err(format!(
                "a checkpoint of format {version}, and this version reads {VERSION}"
            ));
        }
        if Sha256::digest(body).as_slice() != digest {
            return Err("a damaged checkpoint: its checksum is another".to_owned());
        }
        let mut length = [0; 8];
        length.copy_from_slice(&body[8..PREFIX]);
        let (json, arrays) = usize::try_from(u64::from_le_bytes(length))
            .ok()
            .and_then(|length| body[PREFIX..].split_at_checked(length))
            .ok_or("a checkpoint without its header")?;
        let header: Header = serde_json::from_slice(json)
            .map_err(|error| format!("a checkpoint of another version: {error}"))?;
        let mut values = arrays
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let parameters: Vec<_> = values.by_ref().take(header.parameters).collect();
        let moments: Vec<_> = values.by_ref().take(header.moments).collect();
        let average: Vec<_> = values.collect();
        let lengths = (parameters.len(), moments.len(), average.len());
        if lengths != (header.parameters, header.moments, header.average) {
            return Err("a checkpoint whose arrays have other lengths".to_owned());
        }
        Ok(Self {
            header,
            parameters,
            moments,
            average: ParameterAverage::new(average),
        })
    }

    /// The parameters of the policy that is judged and served, as
    /// [`Learner::served_parameters`](crate::learner::Learner::served_parameters).
    pub(super) fn served_parameters(&self) -> &[f32] {
        match self.average.parameters() {
            [] => &self.parameters,
            mean => mean,
        }
    }
}
