//! Twins of one's own network: links of the simulator on which controls do what they were recorded
//! to do.
//!
//! Recordings of a host are sorted by path ([`recorded`]). For each path, the search of a Bayesian
//! optimisation changes a link, as Pantheon's emulators were calibrated (F. Yan et al., "Pantheon:
//! the training ground for Internet congestion-control research", USENIX ATC 2018, section 5),
//! until the recorded controls have the recorded throughput, delay and loss on it. Features such as
//! random loss, bundled ACKs or steps of the rate are added as long as figures differ ([`fit()`]).
//! [`output`] writes the twins as scenarios and as a family of links for training, and [`hidden`]
//! shows how well all of this finds links that it does not know.
//!
//! ```no_run
//! use cc_trainer::calibrate::{
//!     FitSettings, Simulator, fit, output, recorded::{PathBy, read},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let recorded = read(&["recordings".into()], PathBy::Auto, |_| {})?;
//! let simulator = Simulator::new(recorded.interface.clone());
//! for path in &recorded.paths {
//!     let twin = fit(path, &simulator, &FitSettings::default(), |_| {})?;
//!     print!("{}", output::text(&twin));
//! }
//! # Ok(())
//! # }
//! ```

mod agreement;
mod error;
mod estimate;
mod fit;
mod gaussian;
pub mod hidden;
pub mod output;
pub mod recorded;
mod search;
mod simulate;
mod space;
pub mod statistics;
mod twin;

pub use agreement::{Agreement, Tolerance};
pub use error::CalibrateError;
pub use fit::{FitSettings, Fitted, ParameterRange, fit};
pub use simulate::Simulator;
pub use twin::{Feature, Steps, TokenBucket, Twin, Wandering};

#[cfg(test)]
mod tests;
