//! Recordings: what every flow did, a row a window, as Parquet.
//!
//! A [`Row`] is one ended window of one flow with the decision that answered it, if one did. A file holds rows of
//! one policy, and its [`FileHeader`] says everything about that policy and the host. Observations are not stored:
//! [`Replay`] rebuilds them from a flow's rows, bit for bit.
//!
//! `DIR/<start>-<run>-<number>.parquet` is a complete file. While it is being written it is called
//! `….parquet.open`, which readers ignore; [`recover`] completes what a killed agent left behind.

mod addresses;
pub mod columns;
mod episode;
mod file;
mod header;
mod read;
mod recorder;
mod replay;
mod row;
mod row_group;
mod schema;

pub use addresses::{AddressKey, Addresses, Form as AddressForm};
pub use episode::Episodes;
pub use file::{FileWriter, Recovered, recover};
pub use header::{FileHeader, SCHEMA_VERSION};
pub use read::{RecordingError, Rows, files, read};
pub use recorder::{Limits, Recorded, Recorder, RecordingStatus};
pub use replay::Replay;
pub use row::{Decided, NO_MODE, Row};
pub use schema::{feature_name, schema};
