//! Recordings of what every flow did, as Parquet: one row per window, with the decision that
//! answered it, if there was one.
//!
//! A [`Row`](cc_core::rows::Row) holds the window's statistics and the decision. A file holds rows
//! of one policy; its [`FileHeader`](cc_core::rows::FileHeader) describes that policy, the
//! interface and the host. The columns are those of [`schema`]. Observations are not stored:
//! [`Replay`](cc_core::rows::Replay) rebuilds them from a flow's rows, bit for bit.
//!
//! [`FileWriter`] writes one file, [`Recorder`] a directory of files from a thread of its own.
//! [`files`] lists the complete files of a directory, and [`read()`] iterates over one file's rows.
//! A [`Follower`] reads rows while their files are being written.
//!
//! # Example
//!
//! ```
//! use bytemuck::Zeroable;
//! use cc_core::{
//!     interface::Interface,
//!     reward::Terms,
//!     rows::{AddressForm, FileHeader, Row},
//! };
//! use cc_ebpf::WindowRecord;
//! use cc_recording::{FileWriter, files, read};
//!
//! let header = FileHeader {
//!     interface: Interface::default(),
//!     policy: "random".into(),
//!     policy_metadata: None,
//!     server: None,
//!     agent_version: "0.1.0".into(),
//!     kernel: "6.18.0".into(),
//!     host: [].into(),
//!     started_ns: 1_795_000_000_000_000_000,
//!     utc_offset_ns: 1_700_000_000_000_000_000,
//!     addresses: AddressForm::Absent,
//! };
//! let row = |sequence| Row {
//!     flow: 7,
//!     sequence,
//!     window: WindowRecord::zeroed(),
//!     path: None,
//!     initial_cwnd_bytes: 14_480,
//!     decision: None,
//!     terms: Terms::default(),
//!     reward: 0.0,
//!     end: sequence == 1,
//!     local: None,
//!     remote: None,
//!     cgroup: 1,
//!     cookie: 7,
//!     netns: 0,
//! };
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("example.parquet");
//! let mut writer = FileWriter::create(&path, header.clone())?;
//! writer.write(&[row(0), row(1)])?;
//! writer.finish()?;
//!
//! assert_eq!(files(directory.path())?, [path.clone()]);
//! let (found, rows) = read(&path)?;
//! assert_eq!(found, header);
//! let rows = rows.collect::<Result<Vec<_>, _>>()?;
//! assert_eq!(rows[1].sequence, 1);
//! assert!(rows[1].end);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The life of a file
//!
//! A file is readable only when it is complete; readers ignore open files, but for a [`Follower`],
//! which reads their complete row groups. The agent's names are `START-RUN-NUMBER.parquet`, which
//! [`files`] sorts by age.
//!
//! ```text
//!            create
//!               |       write: one row group, and the footer
//!               |      +-----------------------------------------+
//!               v      v                                         |
//!      +---------------------------------------------------+     |
//!      | NAME.parquet.open, locked by its writer           |-----+
//!      | NAME.parquet.open.footer, after the first write   |
//!      +---------------------------------------------------+
//!         |                              |
//!         | finish                       | writer dropped or killed:
//!         |                              | the lock is released
//!         v                              v
//!   NAME.parquet <--- recover --- NAME.parquet.open
//!    (complete)     truncate and         |
//!                   append the footer    | recover, without a complete row group
//!                                        v
//!                                     removed
//! ```
//!
//! [`recover`] completes what a killed agent left behind; [`Recorder::start`] calls it.

pub mod columns;
mod directory;
mod error;
mod file;
mod follow;
mod metadata;
mod name;
mod pages;
mod read;
mod recorder;
mod row_group;
#[cfg(test)]
mod samples;
mod schema;

pub use error::RecordingError;
pub use file::{FileWriter, Recovered, recover};
pub use follow::{Followed, Follower};
pub use metadata::SCHEMA_VERSION;
pub use name::files;
pub use read::{Rows, read};
pub use recorder::{Limits, Recorder};
pub use schema::{feature_name, schema};
