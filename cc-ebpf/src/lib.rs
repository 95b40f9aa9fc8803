//! The congestion control that the kernel's datapath, the agent and the simulator share.
//!
//! This library is compiled three times. For BPF, `main.rs` puts it under the kernel's
//! congestion-control callbacks. On the host, the agent decodes the records that the datapath sends
//! and encodes the decisions that it publishes. In the simulator, it runs on a simulated TCP
//! sender. There is one definition of every feature, of the window accumulators and of what the
//! cwnd does between decisions, so training and deployment cannot drift apart.
//!
//! # Where to find what
//!
//! | question | answer |
//! |---|---|
//! | What does an ACK do to a flow? | [`Flow::on_ack`] |
//! | What is a feature, in which unit, from which kernel field? | [`Feature`] |
//! | What does a window's record hold? | [`WindowRecord`], [`Statistics`], [`Fraction`] |
//! | What sets the cwnd, and when does that change? | [`Controller`], [`Mode`], [`reno`] |
//! | How does a decision reach its flow, and no other? | [`Decision`], [`slot`] |
//! | What comes out of the ring buffers? | [`Record`] |
//! | What does the agent tell the datapath? | [`Settings`], [`Heartbeat`] |
//! | Which connections are left to another congestion control? | [`Scope`], [`Verdict`] |
//! | Which flows of other congestion controls are observed? | [`Selection`], [`Observed`] |
//!
//! # Example
//!
//! Whoever owns a TCP sender fills in an [`AckSample`] per ACK, hands it to [`Flow::on_ack`] and
//! takes the cwnd from the [`CwndState`] afterwards. Records go into a [`RecordSink`].
//!
//! ```
//! use bytemuck::Zeroable;
//! use cc_ebpf::{
//!     AckSample, CaState, CwndState, Decision, Feature, Flow, Heartbeat, Mode, Published,
//!     RecordSink, Settings, Totals, WindowRecord,
//! };
//!
//! struct Records(Vec<WindowRecord>);
//!
//! impl RecordSink for Records {
//!     fn window(&mut self, record: &WindowRecord) {
//!         self.0.push(*record);
//!     }
//! }
//!
//! /// An ACK of two segments at `now_ns`, on a path with an RTT of 30 ms.
//! fn ack(now_ns: u64) -> AckSample {
//!     AckSample {
//!         now_ns,
//!         rtt_us: 30_000,
//!         srtt_us: 30_000,
//!         rttvar_us: 500,
//!         mss: 1448,
//!         header_len: 32,
//!         in_flight: 8,
//!         acked: 2,
//!         lost: 0,
//!         delivered: 10,
//!         interval_us: 30_000,
//!         retransmits: 0,
//!         cwnd_limited: true,
//!         max_packets_out: 40,
//!         app_limited: false,
//!         idle: false,
//!         decays_unused: true,
//!         ca_state: CaState::Open,
//!         totals: Totals::default(),
//!     }
//! }
//!
//! let settings = Settings { window_ns: 100_000_000, ..Settings::default() };
//! let mut cwnd = CwndState { cwnd: 10, ssthresh: u32::MAX, cwnd_cnt: 0, clamp: u32::MAX };
//! let mut records = Records(Vec::new());
//! // Slot 0, first flow in it, opened at 1 ms.
//! let mut flow = Flow::zeroed();
//! flow.open(0, 1, 1_000_000, Totals::default(), 0);
//!
//! let mut cell = 0; // the flow's entry in the cwnd map: no decision yet
//! for ms in [1, 41, 81, 121, 161] {
//!     let ack = ack(ms * 1_000_000);
//!     let heartbeat = Heartbeat { at_ns: ack.now_ns, pid: 1 };
//!     let published = || Published { cell, heartbeat: &heartbeat };
//!     flow.on_ack(&mut cwnd, &ack, published, &settings, &mut records);
//!
//!     // The agent answers each window with a decision, which the next ACK takes up.
//!     if let Some(window) = records.0.pop() {
//!         assert_eq!((window.index, window.acks), (1, 3));
//!         assert_eq!(window.features.mean(Feature::LatestRtt as usize, window.acks), 30_000.0);
//!         cell = Decision { generation: 1, window: window.index, cwnd: 20 }.to_cell();
//!     }
//! }
//! assert_eq!(flow.controller.mode(), Mode::Decided);
//! assert_eq!(cwnd.cwnd, 20);
//! ```
//!
//! Nothing here reads a clock, allocates, panics or loops without a bound. Kernel sources that the
//! documentation names are those of Linux 6.18.
#![no_std]

mod ack;
mod bounds;
mod control;
mod counter;
mod cwnd;
mod decision;
mod feature;
mod filter;
mod flow;
mod hystart;
mod kernel;
mod observed;
mod pacing;
mod probe;
mod record;
pub mod reno;
mod round;
mod scope;
mod selection;
mod settings;
pub mod slot;
mod socket_state;
mod usage;
mod window;

pub use ack::{AckSample, CaState, Totals};
pub use control::{Controller, Events, Mode, Published, WindowEnd, bound};
pub use counter::Counter;
pub use cwnd::{CwndState, SEND_BUFFER_CWNDS};
pub use decision::Decision;
pub use feature::{Extractor, FEATURES, FEATURES_VERSION, Feature, Features, Unit};
pub use filter::WindowedMin;
pub use flow::{Flow, RecordSink};
pub use kernel::{ABSENT, KernelLayout};
pub use observed::Observed;
pub use pacing::{Gains, first_flight_rate, pacing_rate};
pub use probe::Glimpse;
pub use record::{
    AckRecord, ClosedRecord, DecodeError, Header, Identity, OpenedRecord, RECORD_VERSION, Record,
};
pub use scope::{Scope, Verdict, device_name};
pub use selection::{Prefix, Selection};
pub use settings::{AckFilter, Heartbeat, LAYOUT_VERSION, Settings, Startup};
pub use socket_state::SocketState;
pub use usage::{INITIAL_CWND, restart_after_idle};
pub use window::{Fraction, Statistics, WindowRecord};
