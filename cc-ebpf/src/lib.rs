//! What the datapath, the agent and the simulator share.
//!
//! This library is compiled three times: for BPF, where `main.rs` puts it under the kernel's
//! congestion-control callbacks; for the host, where the agent decodes what the datapath sends and
//! sends decisions back; and in the simulator, which runs the very same arithmetic on its own
//! sender. There is one definition of every feature, of the window accumulators and of what the
//! congestion window does between decisions, so training and deployment cannot drift apart.
//!
//! The seam is [`AckSample`]: whoever owns a TCP sender fills one per ACK and then calls, in this
//! order,
//!
//! 1. [`WindowRecord::is_over`], and when it is: emit the record, then [`WindowRecord::restart`];
//! 2. [`Extractor::extract`] and [`WindowRecord::add`];
//! 3. [`Controller::on_ack`], whose [`CwndState`] is the sender's window from then on.
//!
//! Nothing here reads a clock, allocates, panics or loops without a bound.
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
mod kernel;
mod observed;
mod pacing;
mod probe;
mod record;
pub mod reno;
mod selection;
mod settings;
mod socket_state;
mod window;

pub use ack::{AckSample, CaState, Totals};
pub use control::{Controller, Events, Mode, Published};
pub use counter::Counter;
pub use cwnd::CwndState;
pub use decision::Decision;
pub use feature::{Extractor, FEATURES, FEATURES_VERSION, Feature, Features, Unit};
pub use filter::WindowedMin;
pub use flow::{Flow, RecordSink};
pub use kernel::{ABSENT, KernelLayout};
pub use observed::Observed;
pub use pacing::pacing_rate;
pub use probe::Glimpse;
pub use record::{
    AckRecord, ClosedRecord, DecodeError, Header, Identity, OpenedRecord, RECORD_VERSION, Record,
};
pub use selection::{Prefix, Selection};
pub use settings::{AckFilter, Heartbeat, LAYOUT_VERSION, Settings, Startup};
pub use socket_state::SocketState;
pub use window::{Statistics, WindowRecord};
