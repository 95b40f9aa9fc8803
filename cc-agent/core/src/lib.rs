//! The pure core of the learned congestion control: everything between a datapath's records and the
//! decisions that go back to it.
//!
//! Nothing here opens a socket, reads a clock or touches a BPF map: the time is an argument,
//! records come in, decisions and rows come out. The agent runs this crate on the live kernel, the
//! simulator runs it in virtual time, and so a policy is trained and served by the same code.
//!
//! | Module | Contents |
//! |---|---|
//! | [`flows`] | the life of a flow, from its opened record to its closed record |
//! | [`agent`] | flows that a policy decides for: queries, answers, decisions |
//! | [`foreign`] | flows of other congestion controls, which are only observed |
//! | [`canary`] | a candidate policy beside the incumbent, and the guard rails for it |
//! | [`interface`] | the settings that define a policy's observations, actions and rewards |
//! | [`observation`], [`action`], [`reward`] | what a policy sees, does and is rewarded for |
//! | [`paths`] | what the flows between two hosts know of their path |
//! | [`objective`] | what a flow is to achieve, in quantities that its host observes |
//! | [`tolerance`] | how much worse than the policy in service another one may be |
//! | [`policy`] | policies, and the files that they are stored in |
//! | [`remote`] | asking a policy server, with a local policy that stands in for it |
//! | [`rows`] | the rows of recordings, and observations rebuilt from them |
//! | [`status`] | the state of a running agent, and the messages over its socket |
//! | [`durable`] | replacing a file so that a power failure leaves a whole one |
//!
//! # Example
//!
//! A flow opens, its first window ends, and a policy decides on it:
//!
//! ```
//! use cc_core::{agent::Agent, interface::Interface, policy::{Heuristic, Policy}};
//! use cc_ebpf::{FEATURES, Feature, Header, Identity, OpenedRecord, Record, WindowRecord};
//!
//! let mut policy = Heuristic::new(Interface::default())?;
//! let mut agent = Agent::new(policy.interface().clone(), 1);
//! let ms = 1_000_000;
//!
//! let identity = Identity { family: 2, mss: 1448, initial_cwnd: 10, ..Identity::default() };
//! let opened = OpenedRecord { header: Header::of::<OpenedRecord>(0, 1, 0), identity };
//! agent.on_record(0, &Record::Opened(opened), |_| None);
//!
//! // 100 ms later: 50 ACKs with 80 ms of queueing delay, at which the rule halves the cwnd.
//! let mut window: WindowRecord = bytemuck::Zeroable::zeroed();
//! window.header = Header::of::<WindowRecord>(0, 1, 100 * ms);
//! (window.index, window.cwnd, window.mss) = (1, 60, 1448);
//! let mut features = [0; FEATURES];
//! features[Feature::Delay as usize] = 80_000;
//! features[Feature::SmoothedRtt as usize] = 100_000;
//! features[Feature::Cwnd as usize] = 60 * 1448;
//! features[Feature::Acked as usize] = 2896;
//! (0..50).for_each(|_| window.add(&features));
//! agent.on_record(100 * ms, &Record::Window(window), |_| None);
//!
//! let mut batch = agent.take_batch(256);
//! assert_eq!(batch.queries[0].cwnd, 60);
//! let choices = policy.decide(&mut batch.queries);
//! let mut published = Vec::new();
//! agent.on_choices(101 * ms, batch, &choices, |slot, decision| {
//!     published.push((slot, decision.cwnd));
//! });
//! assert_eq!(published, [(0, 30)]);
//! assert_eq!(agent.views(1)[0].action, "/2");
//! # Ok::<(), cc_core::policy::HeuristicError>(())
//! ```

pub mod action;
pub mod agent;
pub mod canary;
pub mod durable;
mod error_chain;
pub mod flows;
pub mod foreign;
mod guarded;
pub mod interface;
pub mod objective;
pub mod observation;
pub mod ownership;
pub mod paths;
pub mod policy;
pub mod regular_file;
pub mod remote;
pub mod reward;
pub mod rows;
mod served;
pub mod status;
pub mod tolerance;
mod traces;

pub use error_chain::error_chain;
pub use guarded::guarded;
pub use served::ServedPolicy;
