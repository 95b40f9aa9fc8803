//! Trains the policy of the control `aurora` by Aurora's recipe (Jay et al., ICML 2019) in the
//! simulator, and writes its weights:
//!
//! ```console
//! $ cargo run --release -p cc-sim --example train_aurora -- \
//!       cc-trainer/sim/src/sim/control/aurora/weights.txt
//! ```
//!
//! The same numbers come out each time on one kind of machine. Links, reward, network and the
//! settings of PPO are those of github.com/PCCproject/PCC-RL (`network_sim.py`, `stable_solve.py`,
//! PPO1 of stable-baselines). What differs: the links and senders are this simulator's, the link of
//! the ACKs loses none, the critic learns returns scaled by 1 - γ, and an episode's end is no end
//! of its return.

mod links;
mod ppo;

use std::{env, fmt::Write as _, fs, process::ExitCode, sync::Arc};

use cc_sim::sim::control::aurora::Network;
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};

use ppo::Ppo;

/// Number of steps to train, of all episodes: one of the six rounds of `stable_solve.py`.
const STEPS: usize = 1_600 * 410;
/// Number of steps between two updates (`timesteps_per_actorbatch`).
const BATCH: usize = 8_192;
/// Number of steps of an episode.
const EPISODE: usize = 400;
const SEED: u64 = 1;
/// Number of links on which the trained policy is judged, and their seed.
const JUDGED: usize = 60;
const JUDGED_SEED: u64 = 1_000;

fn main() -> ExitCode {
    let Some(path) = env::args().nth(1) else {
        eprintln!("usage: train_aurora FILE");
        return ExitCode::FAILURE;
    };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
    let mut ppo = Ppo::new(&mut random);
    let mut steps = 0;
    while steps < STEPS {
        let mut episodes = Vec::new();
        let mut taken = 0;
        while taken < BATCH {
            let link = links::Link::draw(&mut random);
            let episode = link.play(&Arc::new(ppo.actor().clone()), ppo.deviation(), EPISODE);
            taken += episode.rewards.len();
            episodes.push(episode);
        }
        steps += taken;
        let reward = episodes.iter().flat_map(|one| &one.rewards).sum::<f32>() / taken as f32;
        eprintln!(
            "{steps:>7} steps: reward {reward:.3}, deviation {:.2}",
            ppo.deviation()
        );
        ppo.update(&episodes, &mut random);
    }
    let judged = judge(ppo.actor());
    eprintln!("judged: {judged}");
    match fs::write(&path, file(ppo.actor(), steps, &judged)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays links that training has not seen without exploration, and describes the result.
fn judge(network: &Network) -> String {
    let network = Arc::new(network.clone());
    let mut random = Xoshiro256PlusPlus::seed_from_u64(JUDGED_SEED);
    let (mut reward, mut used) = (0.0, 0.0);
    for _ in 0..JUDGED {
        let link = links::Link::draw(&mut random);
        let episode = link.play(&network, 0.0, EPISODE);
        // What follows the first quarter, in which the rate is found.
        let later = &episode.rewards[episode.rewards.len() / 4..];
        reward += later.iter().sum::<f32>() / later.len().max(1) as f32;
        used += episode.utilisation;
    }
    let links = JUDGED as f32;
    format!(
        "mean reward {:.3} and utilisation {:.3} on {JUDGED} other links",
        reward / links,
        used / links
    )
}

/// The weights with their provenance, as `Network::parse` reads them.
fn file(network: &Network, steps: usize, judged: &str) -> String {
    let mut text = format!(
        "# Weights of the control `aurora`: 30 inputs, 32 and 16 tanh units, 1 output; for each\n\
         # layer the weights of each output, then the biases.\n\
         # Written by `cargo run --release -p cc-sim --example train_aurora -- FILE`: {steps}\n\
         # steps of PPO on links drawn with seed {SEED};\n# {judged}.\n"
    );
    for (number, parameter) in network.parameters().enumerate() {
        let end = if number % 8 == 7 { '\n' } else { ' ' };
        let _ = write!(text, "{parameter}{end}");
    }
    text.push('\n');
    text
}
