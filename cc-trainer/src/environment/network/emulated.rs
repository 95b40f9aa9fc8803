//! The links of a configuration for the real kernel, where they run by the clock.

use std::{sync::Arc, time::Duration};

use cc_sim::scenario::Scenario;
use cc_testbed::{evaluate::fastest_mbps, link::Link};
use rand::rngs::Xoshiro256PlusPlus;

use super::{Objective, World, links::EpisodeLink};
use crate::environment::{FlowTask, RewardScale};

/// Links that are drawn, at most, until there is one that can be emulated.
const DRAWS: usize = 1_000;

/// A link to emulate, and what is learned from its flows.
#[derive(Clone, Debug)]
pub struct EmulatedLink {
    /// The link and its flows. Those without a scheme are served by the policy.
    pub scenario: Scenario,
    /// What the decisions of these count as.
    pub of: FlowTask,
    /// How long it is to run.
    pub length: Duration,
}

impl World {
    /// Draws a link as an episode in simulation does, but from the beginning of its scenario.
    /// `None` where the configuration hardly has any that is slow enough to be emulated.
    pub fn emulated_link(&self, random: &mut Xoshiro256PlusPlus) -> Option<EmulatedLink> {
        let mut draws = (0..DRAWS).map(|_| self.links.draw(self.config.episode_s, None, random));
        let EpisodeLink {
            scenario,
            task,
            begins,
        } = draws.find(|link| fastest_mbps(&link.scenario) <= Link::MAX_MBPS)?;
        let mut scenario = Arc::unwrap_or_clone(scenario);
        for flow in &mut scenario.flows {
            flow.start = flow.start.saturating_sub(begins);
            flow.stop = flow.stop.map(|stop| stop.saturating_sub(begins));
        }
        let rewards = self.recorded_rewards(Some(&scenario));
        Some(EmulatedLink {
            scenario,
            of: FlowTask { task, rewards },
            length: Duration::from_secs_f64(self.config.episode_s),
        })
    }

    /// What the objective of recorded decisions counts as beside the rewards of simulated links.
    ///
    /// The objective of a [power](Objective::Power) reward has the throughput in Mbit/s where the
    /// reward has it relative to the fair share. On an emulated link the difference is known:
    /// the link's mean rate divided by all of its flows, whether or not all are active. Elsewhere,
    /// `link` is `None`, it stays, a constant of each link.
    pub fn recorded_rewards(&self, link: Option<&Scenario>) -> RewardScale {
        let config = &self.config;
        let power = match &config.objective {
            Objective::Environment { scale } => {
                return RewardScale {
                    factor: *scale,
                    level: 0.0,
                };
            }
            Objective::Power(power) => power,
        };
        let objective = config.policy.objective();
        let share = link.and_then(|link| {
            let rate = link.forward.service.mean_bits_per_second()?;
            let sharers = match power.whole_rate {
                true => 1,
                false => link.flows.len().max(1),
            };
            Some(rate / 1e6 / sharers as f64)
        });
        RewardScale {
            factor: power.scale,
            level: share.map_or(0.0, |mbps| objective.throughput * mbps.ln()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::environment::network::NetworkConfig;

    fn world(text: &str) -> World {
        let config: NetworkConfig = toml::from_str(text).expect("settings");
        World::new(config).expect("a valid configuration")
    }

    #[test]
    fn links_begin_with_their_scenario_and_are_of_their_task() {
        let world = world(
            "episode_s = 7\n[[links]]\nscenarios = \"calibrated\"\nshift_s = 40\n\
             [[links]]\nscenarios = \"calibrated\"\nflows = { learned = [2, 2] }\n",
        );
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        let mut tasks = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let link = world.emulated_link(&mut random).expect("slow links");
            assert_eq!(link.length, Duration::from_secs(7));
            let name = &world.tasks()[link.of.task];
            assert_eq!(*name, link.scenario.name);
            assert!(link.scenario.flows[0].start.is_zero());
            let rate = link.scenario.forward.service.mean_bits_per_second();
            let share = rate.expect("a rate") / 1e6 / link.scenario.flows.len() as f64;
            let throughput = world.config().policy.objective().throughput;
            assert!((link.of.rewards.level - throughput * share.ln()).abs() < 1e-9);
            tasks.insert(link.of.task);
        }
        assert_eq!(tasks.len(), world.tasks().len());
    }

    #[test]
    fn rewards_of_the_environment_have_its_scale_alone() {
        let world = world(
            "objective = { kind = \"environment\", scale = 0.25 }\n\
             [[links]]\nscenarios = \"calibrated\"\n",
        );
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        let link = world.emulated_link(&mut random).expect("slow links");
        let expected = RewardScale {
            factor: 0.25,
            level: 0.0,
        };
        assert_eq!(link.of.rewards, expected);
        assert_eq!(world.recorded_rewards(None), expected);
    }

    #[test]
    fn links_that_are_too_fast_to_be_emulated_are_not_drawn() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let file = scratch.path().join("fast.toml");
        let link = "[[scenario]]\nname = \"fast\"\nrate_mbps = 5000\ndelay_ms = 10\n";
        std::fs::write(&file, format!("{link}queue = {{ bdp = 1 }}\n")).expect("there is space");
        let fast = world(&format!("[[links]]\nscenarios = \"{}\"\n", file.display()));
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        assert!(fast.emulated_link(&mut random).is_none());
    }
}
