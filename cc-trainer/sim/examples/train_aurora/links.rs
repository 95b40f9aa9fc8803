//! The links of training, and an episode on one.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use cc_sim::{
    path::Nanos,
    scenario::{self, Scenario},
    sim::{
        Control, Simulation,
        control::aurora::{Aurora, Experience, Network, Observation},
    },
};
use rand::{RngExt, rngs::Xoshiro256PlusPlus};

const SECOND: Nanos = 1_000_000_000;
/// Longest episode in virtual time: one that fills a long queue would take hours.
const LONGEST: Nanos = 1_000 * SECOND;

/// A link of `network_sim.py`, and the rate at which its sender begins.
pub(crate) struct Link {
    scenario: Scenario,
    /// The link's rate in Mbit/s of IP packets.
    rate: f64,
    first_rate: f64,
    seed: u64,
}

/// What an episode has seen.
pub(crate) struct Episode {
    /// One for each reward, and the one after the last.
    pub(crate) observations: Vec<Observation>,
    pub(crate) actions: Vec<f32>,
    pub(crate) rewards: Vec<f32>,
    /// Payload delivered ÷ what the link could carry, over the whole episode.
    pub(crate) utilisation: f32,
}

impl Link {
    /// 100 to 500 packets/s, 50 to 500 ms in each direction, a queue of 2 to 2,981 packets, up to
    /// 5 % of random loss, and a first rate of 0.3 to 1.5 of the link's.
    pub(crate) fn draw(random: &mut Xoshiro256PlusPlus) -> Self {
        let rate = random.random_range(100.0..500.0) * 1500.0 * 8e-6;
        let delay_ms = random.random_range(50.0..500.0);
        let queue = 1 + random.random_range(0.0_f64..8.0).exp() as u32;
        let loss = random.random_range(0.0..0.05);
        let text = format!(
            "[[scenario]]\nname = \"link\"\nrate_mbps = {rate:.4}\ndelay_ms = {delay_ms:.3}\n\
             loss = {loss:.5}\nqueue = {{ packets = {queue} }}\n"
        );
        let scenario = scenario::parse(&text, Path::new("."))
            .unwrap_or_else(|error| panic!("{error}: {text}"))
            .remove(0);
        Self {
            scenario,
            rate,
            first_rate: rate * random.random_range(0.3..1.5),
            seed: random.random(),
        }
    }

    /// Plays so many steps, with actions drawn around those of the network.
    pub(crate) fn play(&self, network: &Arc<Network>, deviation: f32, steps: usize) -> Episode {
        let experience = Arc::new(Mutex::new(Experience::default()));
        let aurora = Aurora::exploring(
            Arc::clone(network),
            self.first_rate,
            deviation,
            self.seed,
            Arc::clone(&experience),
        );
        let control = Control::Aurora(Box::new(aurora));
        let mut simulation = Simulation::new(&self.scenario, vec![control], self.seed);
        let rewards = || experience.lock().map_or(0, |seen| seen.rewards.len());
        while rewards() < steps && simulation.now() < LONGEST {
            simulation.run(simulation.now() + SECOND);
        }
        let bits = simulation.flow(0).payload_delivered as f64 * 8e-6;
        let seconds = simulation.now() as f64 / SECOND as f64;
        let mut seen = experience
            .lock()
            .map(|seen| seen.clone())
            .unwrap_or_default();
        // The observation after the last reward, too; an action is always taken before its reward.
        let kept = steps
            .min(seen.rewards.len())
            .min(seen.observations.len().saturating_sub(1));
        seen.observations.truncate(kept + 1);
        seen.actions.truncate(kept);
        seen.rewards.truncate(kept);
        Episode {
            observations: seen.observations,
            actions: seen.actions,
            rewards: seen.rewards,
            utilisation: (bits / (seconds * self.rate)) as f32,
        }
    }
}
