//! Guides: what a slow remote policy tells a fast local one.
//!
//! In a graph of policies (CALF, arXiv 2603.12543) a fast one decides on the flow's own host,
//! window by window. A slow one is behind a network and sets, about once a second, the flow's
//! *guide*: the weight that the fast one is to give to delay. The fast one observes the guide that
//! is in force.
//!
//! The fast policy is trained first, with guides that are drawn, each its objective's weight while
//! it is in force: one network for all weights, as in MOCC (Ma et al., EuroSys 2022). The slow one
//! is trained [above](super::slow) it, on the objective as it is configured.

use std::path::PathBuf;

use cc_sim::path::Nanos;
use cc_sim::shim::{Channel, ConditionsRange, Medium};
use rand::RngExt;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::objective::MOST_WEIGHT;
use super::range::check;
use super::{NetworkConfig, NetworkConfigError, Objective};
use crate::normalise::Input;

/// Keeps the seed of guides apart from that of the links.
pub(super) const GUIDES: u64 = 0x6775_6964_6573_2020;

/// The guides of a [`NetworkConfig`], and the way between the slow and the fast policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guide {
    /// The guides to choose from, weights of delay. The first is in force until another arrives.
    pub values: Vec<f64>,
    /// Time between two questions to the slow policy about a flow, ms. Each is asked at the end of
    /// the first window after it.
    #[serde(default = "second")]
    pub every_ms: f64,
    /// The network to the slow policy and back. Each flow of an episode draws its conditions.
    #[serde(default)]
    pub network: ConditionsRange,
    /// Whether what is lost is gone, or sent again as in a connection of TCP.
    #[serde(default)]
    pub medium: Medium,
    /// Directory of the run that has trained the fast policy, above which the slow one is trained.
    /// `None` trains the fast one, and draws its guides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast: Option<PathBuf>,
}

fn second() -> f64 {
    1000.0
}

impl Guide {
    /// Checks that there are guides to choose from, each a weight that the objective can have.
    ///
    /// # Errors
    ///
    /// Returns an error that names the setting.
    pub(super) fn check(&self, objective: &Objective) -> Result<(), NetworkConfigError> {
        if self.values.is_empty() {
            return Err(NetworkConfigError::NoGuides);
        }
        for (place, &value) in self.values.iter().enumerate() {
            check(value, [0.0, MOST_WEIGHT], || {
                format!("guide.values[{place}]")
            })?;
        }
        check(self.every_ms, [1.0, 60_000.0], || {
            "guide.every_ms".to_owned()
        })?;
        self.network.validate().map_err(NetworkConfigError::Guide)?;
        match objective {
            Objective::Environment { .. } => Err(NetworkConfigError::GuideObjective),
            Objective::Power(_) => Ok(()),
        }
    }

    /// The shape of the input that a guide is: a weight of 1 is about the smallest that matters.
    pub(super) fn input() -> Input {
        Input::logarithmic(1.0)
    }
}

impl NetworkConfig {
    /// Whether there is a fast policy, above which a slow one is trained.
    pub fn has_fast_policy(&self) -> bool {
        self.guide
            .as_ref()
            .is_some_and(|guide| guide.fast.is_some())
    }

    /// Whether a fast policy is trained, with guides that are drawn.
    pub(super) fn draws_guides(&self) -> bool {
        self.guide.is_some() && !self.has_fast_policy()
    }
}

/// The guides of a flow: the one in force, and those on their way.
#[derive(Debug)]
pub(super) struct GuideLine {
    /// From the flow to the slow policy. What is asked does not matter here.
    there: Channel<()>,
    /// From the slow policy, each guide with the number of the question that it answers.
    back: Channel<(u64, f64)>,
    /// Time between two questions, ns.
    every: Nanos,
    /// When the next question is due, ns.
    due: Nanos,
    /// Number of questions so far.
    asked: u64,
    /// The guide in force, with the number of its question; 0 for the first, which nobody asked
    /// for.
    in_force: (u64, f64),
}

impl GuideLine {
    /// Draws the network of a flow. Its first question is due at once.
    pub(super) fn draw(guide: &Guide, random: &mut StdRng) -> Self {
        let conditions = guide.network.draw(random);
        let (there, back) = conditions.channels(guide.medium, random.random());
        Self {
            there,
            back,
            every: (guide.every_ms * 1e6) as Nanos,
            due: 0,
            asked: 0,
            in_force: (0, guide.values[0]),
        }
    }

    /// Whether the slow policy is to be asked at `now`, ns.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        now >= self.due
    }

    /// Asks at `now` what the slow policy answers with this guide, which comes back unless one of
    /// both messages is lost. Over a perfect network it is in force at once.
    pub(super) fn answer(&mut self, now: Nanos, guide: f64) {
        self.due = now + self.every;
        self.asked += 1;
        if let Some(at) = self.there.pass(now) {
            self.back.offer(at, (self.asked, guide));
        }
        self.receive(now);
    }

    /// Takes what has arrived by `now`, ns. An answer that a later one has overtaken is dropped.
    pub(super) fn receive(&mut self, now: Nanos) {
        while let Some((_, answer)) = self.back.take(now) {
            if answer.0 > self.in_force.0 {
                self.in_force = answer;
            }
        }
    }

    /// The guide in force now, which the fast policy observes.
    pub(super) fn in_force(&self) -> f64 {
        self.in_force.1
    }
}

#[cfg(test)]
mod tests;
