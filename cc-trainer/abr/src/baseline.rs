//! The classical choosers that learned ones are compared with.

mod bola;
mod buffer;
mod mpc;
mod rate;

pub use bola::Bola;
pub use buffer::BufferBased;
pub use mpc::{Mpc, Ties};
pub use rate::RateBased;

use crate::{Chooser, View, qoe::Metric};

/// Names of the classical choosers, as [`named`] takes them.
pub const NAMES: [&str; 9] = [
    "buffer-based",
    "rate-based",
    "bola",
    "bola-finite",
    "mpc",
    "robust-mpc",
    "robust-mpc-first",
    "mpc-late",
    "robust-mpc-late",
];

/// Always the same quality, or the highest one of a video with fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed(pub usize);

impl Chooser for Fixed {
    fn choose(&self, view: &View<'_>) -> usize {
        self.0.min(view.kbps.len() - 1)
    }
}

/// A quality for each chunk, known beforehand; the last one goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(pub Vec<usize>);

impl Chooser for Schedule {
    fn choose(&self, view: &View<'_>) -> usize {
        let chunk = view.chunks - view.left;
        let known = self.0.get(chunk).or(self.0.last());
        known.copied().unwrap_or(0).min(view.kbps.len() - 1)
    }
}

/// The chooser of a name: one of [`NAMES`], or `fixed:N`. Those that plan maximise `metric`.
///
/// Returns `None` for any other name.
pub fn named(name: &str, metric: &Metric) -> Option<Box<dyn Chooser>> {
    let mpc = |is_robust, offset, ties| -> Option<Box<dyn Chooser>> {
        Some(Box::new(Mpc {
            is_robust,
            offset,
            ties,
            ..Mpc::published(metric.clone())
        }))
    };
    match name {
        "buffer-based" => Some(Box::new(BufferBased::PENSIEVE)),
        "rate-based" => Some(Box::new(RateBased::PENSIEVE)),
        "bola" => Some(Box::new(Bola::BASIC)),
        "bola-finite" => Some(Box::new(Bola::FINITE)),
        "mpc" => mpc(false, 0, Ties::Last),
        "robust-mpc" => mpc(true, 0, Ties::Last),
        "robust-mpc-first" => mpc(true, 0, Ties::First),
        "mpc-late" => mpc(false, 1, Ties::Last),
        "robust-mpc-late" => mpc(true, 1, Ties::Last),
        _ => {
            let quality = name.strip_prefix("fixed:")?.parse().ok()?;
            Some(Box::new(Fixed(quality)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qoe::Qoe;

    #[test]
    fn every_name_is_a_chooser() {
        let metric = Metric::new(Qoe::Linear, &[300.0, 750.0]).expect("valid");
        for name in NAMES {
            assert!(named(name, &metric).is_some(), "{name}");
        }
        assert!(named("fixed:3", &metric).is_some());
        for unknown in ["", "fixed:", "fixed:-1", "pensieve"] {
            assert!(named(unknown, &metric).is_none(), "{unknown}");
        }
    }
}
