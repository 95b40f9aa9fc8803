//! Linux's TCP in virtual time.
//!
//! A [`scenario`] describes a path, with rates, delays, queues and losses that may change over
//! time, and the flows on it. [`app`] runs the flows' applications. [`path`] is what such a path
//! does to packets, as pure code that emulated links run too. [`sim`] puts simulated senders and
//! receivers on it: the TCP of Linux 6.18 with RACK, tail loss probes, F-RTO, proportional rate
//! reduction, pacing, delayed and compressed ACKs and receive buffer tuning, under a classical
//! congestion control ([`sim::Control::NAMES`]), a learned one or one of your own
//! ([`sim::Control`]). Nothing reads a clock, and a seed determines a run: [`seed`] derives seeds
//! from seeds. [`shim`] is a network between a policy and what it controls, message by message.
//!
//! A flow under CUBIC on a link of 12 Mbit/s, for ten seconds:
//!
//! ```
//! use std::path::Path;
//!
//! use cc_sim::scenario;
//! use cc_sim::sim::{Control, Simulation};
//!
//! let text = r#"
//!     [[scenario]]
//!     name = "dsl"
//!     rate_mbps = 12
//!     delay_ms = 20
//!     queue = { bdp = 1 }
//! "#;
//! let scenario = scenario::parse(text, Path::new("."))?.remove(0);
//! let cubic = Control::named("cubic", 1).expect("a known control");
//! let mut simulation = Simulation::new(&scenario, vec![cubic], 1);
//! simulation.run(10_000_000_000);
//!
//! let flow = simulation.flow(0);
//! let mbps = flow.payload_delivered as f64 * 8.0 / 10.0 / 1e6;
//! println!("{mbps:.1} Mbit/s, {} segments lost, {} timeouts", flow.lost, flow.timeouts);
//! // 1,448 of 1,500 bytes are payload.
//! assert!((10.5..11.6).contains(&mbps));
//! # Ok::<(), cc_sim::scenario::ScenarioError>(())
//! ```
//!
//! `examples/own_control.rs` runs a congestion control of its own beside CUBIC.

pub mod app;
pub mod path;
pub mod scenario;
pub mod seed;
pub mod shim;
pub mod sim;
