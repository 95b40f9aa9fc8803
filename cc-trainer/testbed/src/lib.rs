//! A testbed for congestion controls: emulated links under the real kernel's TCP, or the simulator.
//!
//! - [`link`] puts the path of a [scenario](cc_sim::scenario) between two network namespaces, so
//!   that the kernel's own TCP crosses it.
//! - [`evaluate`] runs congestion controls and policies on scenarios, on either platform.
//! - [`league`] compares many schemes on many links by games that they win.
//! - [`search`] looks for the links on which a policy loses most.
//! - [`summary`] holds the measurements of an evaluation, with their statistics.
//! - [`report`] shows them as an HTML page.
//! - [`blocking`] measures the cost of a sender that waits for the decisions of its policy.
//!
//! # Examples
//!
//! An evaluation of two schemes in the simulator:
//!
//! ```
//! use std::{path::Path, sync::atomic::AtomicBool, time::Duration};
//!
//! use cc_core::policy::PolicySpec;
//! use cc_sim::scenario;
//! use cc_testbed::{
//!     evaluate::{Controls, Evaluation, Jobs, evaluate, parse_schemes},
//!     report,
//!     summary::{Platform, table},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let link = r#"
//!     [[scenario]]
//!     name = "small"
//!     rate_mbps = 6
//!     delay_ms = 10
//!     queue = { bdp = 1 }
//! "#;
//! let results = tempfile::tempdir()?;
//! // The policy of the scheme `rlcc`, which is not among these schemes.
//! let policy = PolicySpec::Default;
//! let outcome = evaluate(
//!     &Evaluation {
//!         on: Platform::Sim,
//!         schemes: parse_schemes("reno,cubic", &policy, None, Controls::SIMULATOR)?,
//!         scenarios: scenario::parse(link, Path::new("small.toml"))?,
//!         policy,
//!         serving: None,
//!         seconds: Some(Duration::from_secs(2)),
//!         runs: 1,
//!         seed: 1,
//!         jobs: Jobs::Auto,
//!         dir: results.path().to_owned(),
//!         fresh: false,
//!         agent: None,
//!         record: None,
//!         command: "an example".into(),
//!     },
//!     &AtomicBool::new(false),
//!     |_progress| {},
//! )?;
//!
//! let runs = &outcome.summary.runs;
//! assert_eq!([&runs[0].scheme, &runs[1].scheme], ["reno", "cubic"]);
//! assert!(runs.iter().all(|run| run.is_valid() && run.throughput_mbps > 4.0));
//! println!("{}", table::text(&outcome.summary));
//!
//! let page = report::write(results.path(), &outcome.summary, &outcome.runs)?;
//! assert!(page.ends_with("report.html"));
//! # Ok(())
//! # }
//! ```

pub mod blocking;
pub mod evaluate;
pub mod league;
pub mod link;
pub mod report;
pub mod search;
pub mod summary;
