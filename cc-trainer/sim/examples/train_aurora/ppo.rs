//! Proximal policy optimisation (Schulman et al., arXiv 1707.06347) of a Gaussian policy with a
//! deviation that no input changes.

use cc_sim::sim::control::aurora::{Activations, Layer, Network, Observation};
use rand::{RngExt, rngs::Xoshiro256PlusPlus, seq::SliceRandom};
use rand_distr::StandardNormal;

use super::links::Episode;

/// Discount of a step (γ), and of generalised advantages (λ).
const DISCOUNT: f32 = 0.99;
const LAMBDA: f32 = 0.95;
/// Bound of the change of a probability.
const CLIP: f32 = 0.2;
/// Weight of the policy's entropy in the objective.
const ENTROPY: f32 = 0.01;
/// Passes over a batch, and steps between two changes of the weights.
const PASSES: usize = 4;
const MINIBATCH: usize = 2_048;
/// Step size of Adam, and its other constants.
const STEP: f32 = 1e-3;
const MOMENTS: (f32, f32) = (0.9, 0.999);
const SMALL: f32 = 1e-5;

/// The policy, its critic, and the state of their optimisers.
pub(crate) struct Ppo {
    actor: Network,
    critic: Network,
    log_deviation: f32,
    adam: [Adam; 2],
}

/// A step, with what the update needs of it.
struct Step {
    observation: Observation,
    action: f32,
    /// Logarithm of the probability density, less a constant.
    log_probability: f32,
    advantage: f32,
    /// What the critic should say: the return, scaled by 1 - γ.
    value: f32,
}

/// The moments of the gradients of a network, and of the deviation last.
struct Adam {
    first: Vec<f32>,
    second: Vec<f32>,
    updates: i32,
}

impl Ppo {
    pub(crate) fn new(random: &mut Xoshiro256PlusPlus) -> Self {
        let actor = initial(0.01, random);
        let critic = initial(1.0, random);
        let size = actor.parameters().count() + 1;
        Self {
            actor,
            critic,
            log_deviation: 0.0,
            adam: [Adam::new(size), Adam::new(size)],
        }
    }

    pub(crate) fn actor(&self) -> &Network {
        &self.actor
    }

    /// The standard deviation of the actions.
    pub(crate) fn deviation(&self) -> f32 {
        self.log_deviation.exp()
    }

    fn log_probability(&self, action: f32, mean: f32) -> f32 {
        let distance = (action - mean) / self.deviation();
        -0.5 * distance * distance - self.log_deviation
    }

    /// Improves the policy by the episodes.
    pub(crate) fn update(&mut self, episodes: &[Episode], random: &mut Xoshiro256PlusPlus) {
        let mut steps: Vec<Step> = episodes.iter().flat_map(|one| self.steps(one)).collect();
        let count = steps.len() as f32;
        let mean = steps.iter().map(|step| step.advantage).sum::<f32>() / count;
        let square = |step: &Step| (step.advantage - mean).powi(2);
        let deviation = (steps.iter().map(square).sum::<f32>() / count).sqrt();
        for step in &mut steps {
            step.advantage = (step.advantage - mean) / (deviation + 1e-8);
        }
        for _ in 0..PASSES {
            steps.shuffle(random);
            for minibatch in steps.chunks(MINIBATCH) {
                self.descend(minibatch);
            }
        }
    }

    /// The steps of an episode with their generalised advantages (Schulman et al., ICLR 2016).
    fn steps(&self, episode: &Episode) -> Vec<Step> {
        let value = |observation| self.critic.activations(observation).output / (1.0 - DISCOUNT);
        let values: Vec<f32> = episode.observations.iter().map(value).collect();
        let mut advantage = 0.0;
        let mut steps = Vec::with_capacity(episode.rewards.len());
        for number in (0..episode.rewards.len()).rev() {
            let (now, next) = (values[number], values[number + 1]);
            let error = episode.rewards[number] + DISCOUNT * next - now;
            advantage = error + DISCOUNT * LAMBDA * advantage;
            let (observation, action) = (episode.observations[number], episode.actions[number]);
            let mean = self.actor.activations(&observation).output;
            steps.push(Step {
                observation,
                action,
                log_probability: self.log_probability(action, mean),
                advantage,
                value: (1.0 - DISCOUNT) * (advantage + now),
            });
        }
        steps
    }

    /// Changes the weights once, by the gradients of a minibatch.
    fn descend(&mut self, steps: &[Step]) {
        let (mut of_actor, mut of_critic) = (Network::zero(), Network::zero());
        let mut of_deviation = -ENTROPY;
        let share = 1.0 / steps.len() as f32;
        for step in steps {
            let units = self.actor.activations(&step.observation);
            let distance = (step.action - units.output) / self.deviation();
            let ratio =
                (self.log_probability(step.action, units.output) - step.log_probability).exp();
            // Beyond the bound the objective is flat.
            let is_flat = match step.advantage > 0.0 {
                true => ratio > 1.0 + CLIP,
                false => ratio < 1.0 - CLIP,
            };
            if !is_flat {
                let weight = -step.advantage * ratio * share;
                let slope = weight * distance / self.deviation();
                backward(&self.actor, &step.observation, &units, slope, &mut of_actor);
                of_deviation += weight * (distance * distance - 1.0);
            }
            let units = self.critic.activations(&step.observation);
            let slope = 2.0 * (units.output - step.value) * share;
            backward(
                &self.critic,
                &step.observation,
                &units,
                slope,
                &mut of_critic,
            );
        }
        let Self {
            actor,
            critic,
            log_deviation,
            adam: [first, second],
        } = self;
        first.descend(
            actor.parameters_mut().chain([log_deviation]),
            of_actor.parameters().chain([&of_deviation]),
        );
        second.descend(critic.parameters_mut(), of_critic.parameters());
    }
}

impl Adam {
    fn new(size: usize) -> Self {
        Self {
            first: vec![0.0; size],
            second: vec![0.0; size],
            updates: 0,
        }
    }

    /// Kingma and Ba, arXiv 1412.6980.
    fn descend<'a>(
        &mut self,
        parameters: impl Iterator<Item = &'a mut f32>,
        gradients: impl Iterator<Item = &'a f32>,
    ) {
        self.updates += 1;
        let (one, two) = MOMENTS;
        let scale = STEP * (1.0 - two.powi(self.updates)).sqrt() / (1.0 - one.powi(self.updates));
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((parameter, gradient), (first, second)) in parameters.zip(gradients).zip(moments) {
            *first = one * *first + (1.0 - one) * gradient;
            *second = two * *second + (1.0 - two) * gradient * gradient;
            *parameter -= scale * *first / (second.sqrt() + SMALL);
        }
    }
}

/// A network with random weights, whose output is about `scale` times that of its last layer's
/// inputs.
fn initial(scale: f32, random: &mut Xoshiro256PlusPlus) -> Network {
    fn fill<const I: usize, const O: usize>(
        layer: &mut Layer<I, O>,
        gain: f32,
        random: &mut Xoshiro256PlusPlus,
    ) {
        for weight in layer.weights.iter_mut().flatten() {
            let value: f32 = random.sample(StandardNormal);
            *weight = value * gain / (I as f32).sqrt();
        }
    }
    let mut network = Network::zero();
    fill(&mut network.first, 1.0, random);
    fill(&mut network.second, 1.0, random);
    fill(&mut network.last, scale, random);
    network
}

/// Adds to `gradients` those of a loss that changes with the output by `slope`.
fn backward(
    network: &Network,
    observation: &Observation,
    units: &Activations,
    slope: f32,
    gradients: &mut Network,
) {
    let behind = through(&network.last, &units.second, &[slope], &mut gradients.last);
    let slopes = std::array::from_fn(|i| behind[i] * (1.0 - units.second[i].powi(2)));
    let behind = through(
        &network.second,
        &units.first,
        &slopes,
        &mut gradients.second,
    );
    let slopes = std::array::from_fn(|i| behind[i] * (1.0 - units.first[i].powi(2)));
    through(&network.first, observation, &slopes, &mut gradients.first);
}

/// The slopes of a layer's inputs from those of its outputs.
fn through<const I: usize, const O: usize>(
    layer: &Layer<I, O>,
    inputs: &[f32; I],
    slopes: &[f32; O],
    gradients: &mut Layer<I, O>,
) -> [f32; I] {
    let mut behind = [0.0; I];
    for (number, slope) in slopes.iter().enumerate() {
        gradients.biases[number] += slope;
        let weights = layer.weights[number].iter();
        let gradients = gradients.weights[number].iter_mut();
        let places = inputs.iter().zip(&mut behind);
        for ((weight, gradient), (input, before)) in weights.zip(gradients).zip(places) {
            *gradient += slope * input;
            *before += slope * weight;
        }
    }
    behind
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn gradients_are_those_of_differences() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        let network = initial(1.0, &mut random);
        let observation: Observation = std::array::from_fn(|i| (i as f32 * 0.7).sin());
        let mut gradients = Network::zero();
        let units = network.activations(&observation);
        backward(&network, &observation, &units, 1.0, &mut gradients);
        let gradients: Vec<f32> = gradients.parameters().copied().collect();
        for place in (0..gradients.len()).step_by(97) {
            let moved = |by: f32| {
                let mut network = network.clone();
                if let Some(parameter) = network.parameters_mut().nth(place) {
                    *parameter += by;
                }
                network.activations(&observation).output
            };
            let difference = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            assert!(
                (difference - gradients[place]).abs() < 1e-2,
                "{place}: {difference} and {}",
                gradients[place]
            );
        }
    }
}
