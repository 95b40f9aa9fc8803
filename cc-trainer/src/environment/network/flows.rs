//! The flows on a training link: how many are learned, and what competes with them.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, seq::IndexedRandom};
use serde::{Deserialize, Serialize};

use super::NetworkConfigError;
use super::range::{Range, check, logarithmic, milliseconds, ordered};
use cc_sim::scenario::{App, Flow, MAX_FLOWS, app::RequestResponse};
use cc_sim::sim::Control;

/// The flows on a link: learned ones, and optionally background flows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Flows {
    /// Least and largest number of learned flows.
    pub learned: [usize; 2],
    /// All learned flows but the first, and all background flows, start within this many seconds,
    /// but for the episodes of `late_share`.
    pub stagger_s: f64,
    /// Largest extra propagation delay of a flow in each direction, ms; drawn
    /// uniformly from 0 to it.
    pub extra_delay_ms: f64,
    /// Fraction of the episodes that have background flows, 0 to 1.
    pub background_share: f64,
    /// Least and largest number of background flows in an episode that has any.
    pub background: [usize; 2],
    /// Fraction of the episodes with background flows, 0 to 1, in which these are there first: they
    /// start at once, and the first learned flow within `stagger_s`, too, so that it comes to a
    /// path that they use, unless they have stopped by then.
    pub late_share: f64,
    /// Congestion controls of the background flows, of which each flow draws one: names of
    /// [`Control::NAMES`].
    pub schemes: Vec<String>,
    /// What the applications of learned flows do that do not always have data to send; `None`
    /// where all of them do.
    pub pauses: Option<Pauses>,
}

/// Learned flows whose far end asks for data over one connection, and pauses before it asks again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pauses {
    /// Fraction of the learned flows that pause, 0 to 1.
    pub share: f64,
    /// Sizes of the responses, bytes, drawn uniformly in their logarithm.
    pub bytes: Range,
    /// Range of a flow's mean pause, s, drawn likewise. Pauses are distributed exponentially.
    pub think_s: Range,
}

impl Pauses {
    /// Number of sizes that are drawn for a flow; its requests go through them again and again.
    const SIZES: usize = 16;

    fn check(&self, place: impl Fn(&str) -> String) -> Result<(), NetworkConfigError> {
        check(self.share, [0.0, 1.0], || place("share"))?;
        ordered(self.bytes, 1.0, 1e9, || place("bytes"))?;
        ordered(self.think_s, 1e-3, 1e3, || place("think_s"))
    }

    fn draw(&self, random: &mut Xoshiro256PlusPlus) -> App {
        if random.random::<f64>() >= self.share {
            return App::Bulk;
        }
        let think = Duration::from_secs_f64(logarithmic(self.think_s, random));
        let sizes = (0..Self::SIZES).map(|_| logarithmic(self.bytes, random) as u64);
        App::RequestResponse(RequestResponse {
            bytes: sizes.collect(),
            request_bytes: 200,
            think,
            random: true,
            new_connections: false,
            count: None,
        })
    }
}

impl Default for Flows {
    /// One learned flow from the start, and no background flows.
    fn default() -> Self {
        Self {
            learned: [1, 1],
            stagger_s: 0.0,
            extra_delay_ms: 0.0,
            background_share: 0.0,
            background: [1, 1],
            late_share: 0.0,
            schemes: vec!["cubic".to_owned()],
            pauses: None,
        }
    }
}

impl Flows {
    pub(super) fn check(&self, place: impl Fn(&str) -> String) -> Result<(), NetworkConfigError> {
        let counts = |name: &str, [least, most]: [usize; 2], from: usize| {
            let bounds = [from as f64, MAX_FLOWS as f64 / 2.0];
            check(least as f64, bounds, || place(name))?;
            check(most as f64, [least as f64, bounds[1]], || place(name))
        };
        counts("learned", self.learned, 1)?;
        counts("background", self.background, 1)?;
        check(self.stagger_s, [0.0, 1e5], || place("stagger_s"))?;
        check(self.extra_delay_ms, [0.0, 1e4], || place("extra_delay_ms"))?;
        for (share, name) in [
            (self.background_share, "background_share"),
            (self.late_share, "late_share"),
        ] {
            check(share, [0.0, 1.0], || place(name))?;
        }
        if let Some(pauses) = &self.pauses {
            pauses.check(|field| place(&format!("pauses.{field}")))?;
        }
        for scheme in &self.schemes {
            check_scheme(scheme, || place("schemes"))?;
        }
        if self.background_share > 0.0 && self.schemes.is_empty() {
            return Err(NetworkConfigError::Scheme {
                place: place("schemes"),
                found: String::new(),
            });
        }
        Ok(())
    }

    pub(super) fn draw(&self, seconds: f64, random: &mut Xoshiro256PlusPlus) -> Vec<Flow> {
        let stagger = self.stagger_s.min(seconds * 0.8);
        let extra = |random: &mut Xoshiro256PlusPlus| {
            milliseconds(random.random::<f64>() * self.extra_delay_ms)
        };
        let start = |random: &mut Xoshiro256PlusPlus| {
            Duration::from_secs_f64(random.random::<f64>() * stagger)
        };
        let app = |random: &mut Xoshiro256PlusPlus| {
            (self.pauses.as_ref()).map_or(App::Bulk, |pauses| pauses.draw(random))
        };
        let mut flows = vec![Flow {
            extra_delay: extra(random),
            app: app(random),
            ..Flow::default()
        }];
        for _ in 1..random.random_range(self.learned[0]..=self.learned[1]) {
            flows.push(Flow {
                start: start(random),
                extra_delay: extra(random),
                app: app(random),
                ..Flow::default()
            });
        }
        if random.random::<f64>() < self.background_share {
            // Nothing is drawn where none is late: a seed of a configuration without `late_share`
            // has the episodes that it had before there was one.
            let late = self.late_share > 0.0 && random.random::<f64>() < self.late_share;
            if late {
                flows[0].start = start(random);
            }
            for _ in 0..random.random_range(self.background[0]..=self.background[1]) {
                let start = match late {
                    true => Duration::ZERO,
                    false => start(random),
                };
                // Half of the background flows stop before the episode ends.
                let rest = (seconds - start.as_secs_f64()).max(0.0);
                let stop = random
                    .random::<bool>()
                    .then(|| start + Duration::from_secs_f64(rest * random.random_range(0.2..1.0)));
                flows.push(Flow {
                    start,
                    stop,
                    scheme: self.schemes.choose(random).cloned(),
                    extra_delay: extra(random),
                    app: App::Bulk,
                });
            }
        }
        flows
    }
}

/// Checks that the simulator has a congestion control.
pub(super) fn check_scheme(
    scheme: &str,
    place: impl Fn() -> String,
) -> Result<(), NetworkConfigError> {
    if Control::NAMES.contains(&scheme) {
        return Ok(());
    }
    Err(NetworkConfigError::Scheme {
        place: place(),
        found: scheme.to_owned(),
    })
}
