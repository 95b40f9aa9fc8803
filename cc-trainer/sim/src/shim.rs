//! A network between a policy and what it controls: delay, jitter and loss, message by message.
//!
//! Observations travel one [`Way`] and decisions the other. Each message is lost with some
//! probability or arrives after a delay of its own: max(0, N(mean, jitter²)), as in CALF
//! (communication-aware learning), or as a [recording] of a real network says.
//! The [`Conditions`] of both ways come from a [`Preset`] or a table of a TOML file; a [`Channel`]
//! holds what is in flight in one of them. The model is pure: callers pass the time, and a seed
//! determines what happens. `cc-trainer shim` runs it between real programs, environments and
//! simulations in virtual time.
//!
//! ```
//! use cc_sim::shim::{Conditions, Fate, Medium, Preset};
//!
//! let conditions = Conditions::from(Preset::WifiDegraded);
//! let (mut there, mut back) = conditions.channels(Medium::Datagrams, 1);
//! let mut answered = 0;
//! for number in 0..1_000_u64 {
//!     // A question every 20 ms, in ns.
//!     let asked = number * 20_000_000;
//!     if let Fate::Arrives { at, .. } = there.offer(asked, "question")
//!         && let Fate::Arrives { .. } = back.offer(at, "answer")
//!     {
//!         answered += 1;
//!     }
//! }
//! // Both get through with a probability of 0.9² = 0.81.
//! assert!((760..860).contains(&answered), "{answered}");
//! let (at, answer) = back.take(u64::MAX).expect("all have arrived by the end of time");
//! assert!(answer == "answer" && at > 0);
//! ```

mod channel;
mod conditions;
mod range;
pub mod recording;
#[cfg(test)]
mod tests;

use std::fmt;

pub use channel::{Channel, Fate, Fates, MAX_TRANSMISSIONS, Medium};
pub use conditions::{Conditions, ConditionsError, ConditionsTable, OneWay, Preset};
pub use range::ConditionsRange;

/// Direction in which a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the side that answers: observations to a policy, a client's bytes to its server.
    There,
    /// To the side that asked: decisions, a server's bytes.
    Back,
}

impl Way {
    /// Both ways, in the order in which a question takes them.
    pub const BOTH: [Self; 2] = [Self::There, Self::Back];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Padded as the formatter asks, for tables.
        f.pad(match self {
            Self::There => "there",
            Self::Back => "back",
        })
    }
}
