//! The fit of the observations' normaliser, before a run begins.
//!
//! The normaliser's means and deviations are constant from then on, so they should be those of what
//! a policy meets in its life and not of one kind of behaviour: random actions alone keep the
//! queues of some links full for good, and never fill those of others. In the mixture every link
//! counts alike, and on each of them flows that are not decided about, random ones, ones that probe
//! as CUBIC does, and ones that keep the delay low.

use std::sync::Arc;

use cc_core::interface::Interface;
use cc_ebpf::{FEATURES, Feature};
use cc_sim::seed;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    config::{ActorSettings, FitBy},
    source::Source,
};
use crate::{
    environment::{
        Environment, Turn,
        network::{NetworkEnvironment, World},
    },
    normalise::{Fit, Normalizer},
};

/// The normaliser of observations: the one that the configuration names, or else one fitted to
/// about [`ActorSettings::fit_steps`] steps. `None` for environments that need none.
pub(super) fn normalizer(
    source: &Source,
    seed: u64,
    settings: &ActorSettings,
) -> Option<Normalizer> {
    if let Some(given) = source.normalizer() {
        return Some(given.clone());
    }
    let mut fit = source.fit()?;
    let seed = seed::fold(seed, u64::MAX);
    match (source, settings.fit_by) {
        (Source::Network(world), FitBy::Mixture) => {
            mixture(&mut fit, world, seed, settings.fit_steps);
        }
        // Recordings act by themselves.
        _ => random(&mut fit, source, seed, settings.fit_steps),
    }
    Some(fit.normalizer())
}

/// Adds the frames of uniformly random actions.
fn random(fit: &mut Fit, source: &Source, seed: u64, steps: u64) {
    let mut environment = source.environment(0, seed, None);
    let mut random = StdRng::seed_from_u64(seed);
    let mut turn = Turn::default();
    let actions = environment.spec().actions;
    while fit.frames() < steps {
        environment.next(&mut turn);
        fit.add(&turn.observation, turn.observed_reward);
        environment.act(any_action(&turn, actions, &mut random));
    }
}

/// One of the actions that a turn allows, each with the same probability.
fn any_action(turn: &Turn, actions: usize, random: &mut StdRng) -> usize {
    let mut allowed = (0..actions).filter(|&action| turn.allows(action));
    let place = random.random_range(0..allowed.clone().count());
    allowed.nth(place).expect("the place is below their number")
}

/// Adds as many frames of each behaviour on each task.
fn mixture(fit: &mut Fit, world: &Arc<World>, seed: u64, steps: u64) {
    let interface = &world.config().policy;
    let tasks = world.spec().tasks;
    let share = steps.div_ceil((tasks * Behaviour::ALL.len()) as u64);
    let mut turn = Turn::default();
    for task in 0..tasks {
        for (kind, behaviour) in Behaviour::ALL.into_iter().enumerate() {
            let seed = [task as u64, kind as u64]
                .into_iter()
                .fold(seed, seed::fold);
            let mut environment = NetworkEnvironment::new(world.clone(), seed).of_task(task);
            let mut random = StdRng::seed_from_u64(seed);
            let mut seats = vec![Sawtooth::default(); environment.spec().seats];
            for _ in 0..share {
                environment.next(&mut turn);
                fit.add(&turn.observation, turn.observed_reward);
                let cwnd = environment.cwnd().unwrap_or(interface.cwnd.min);
                let target = match behaviour {
                    Behaviour::Undecided => {
                        environment.keep();
                        continue;
                    }
                    Behaviour::Random => {
                        let actions = interface.actions.len();
                        environment.act(any_action(&turn, actions, &mut random));
                        continue;
                    }
                    Behaviour::Sawtooth => seats[turn.seat].target(interface, &turn, cwnd),
                    Behaviour::LowDelay => low_delay(interface, &turn.observation, cwnd),
                };
                let target = target.round().clamp(1.0, f64::from(u32::MAX)) as u32;
                let actions = &interface.actions;
                environment.act(actions.nearest(cwnd, target, interface.cwnd));
            }
        }
    }
}

/// How a flow behaves while the normaliser is fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// No decision is made: slow start, as before a flow's first decision.
    Undecided,
    /// Each action with the same probability.
    Random,
    /// The actions that come nearest to CUBIC's curve.
    Sawtooth,
    /// The actions that come nearest to a queueing delay of [`TARGET_MS`].
    LowDelay,
}

impl Behaviour {
    const ALL: [Self; 4] = [
        Self::Undecided,
        Self::Random,
        Self::Sawtooth,
        Self::LowDelay,
    ];
}

/// The mean of a feature over the window, in the observation's units; the means follow the sums.
fn mean(observation: &[f32], feature: Feature) -> f64 {
    f64::from(observation[FEATURES + feature as usize])
}

/// Whether segments were lost in the window; the sums are the first of the observation.
fn has_lost(observation: &[f32]) -> bool {
    observation[Feature::Lost as usize] > 0.0
}

/// The queueing delay that low-delay flows aim at, ms.
const TARGET_MS: f64 = 10.0;
/// Delay that is added to the measured one and to the target, so that no ratio is extreme, ms.
const OFFSET_MS: f64 = 5.0;

/// The cwnd with which a flow of this cwnd would have the target's delay, were all of its delay of
/// its own making; by a factor of two at most.
fn low_delay(interface: &Interface, observation: &[f32], cwnd: u32) -> f64 {
    let delay_ms = mean(observation, Feature::Delay) * f64::from(interface.scales.time_ms);
    let most = if has_lost(observation) { 0.8 } else { 2.0 };
    let factor = (TARGET_MS + OFFSET_MS) / (delay_ms.max(0.0) + OFFSET_MS);
    f64::from(cwnd) * factor.clamp(0.5, most)
}

/// A cwnd that follows CUBIC's curve (RFC 9438, section 4.2) from window to window.
#[derive(Clone, Copy, Debug, Default)]
struct Sawtooth {
    /// The cwnd at the last loss, segments; `None` before the first.
    most: Option<f64>,
    /// Time since the last loss, s.
    seconds: f64,
}

impl Sawtooth {
    /// CUBIC's C, segments/s³, and β.
    const C: f64 = 0.4;
    const BETA: f64 = 0.7;

    /// The cwnd after this turn of a flow whose cwnd is `cwnd`: twice as large before the first
    /// loss, then along the curve.
    fn target(&mut self, interface: &Interface, turn: &Turn, cwnd: u32) -> f64 {
        let cwnd = f64::from(cwnd);
        if turn.first.is_some() {
            *self = Self::default();
        }
        self.seconds += f64::from(turn.intervals) * f64::from(interface.window_ms) / 1e3;
        if has_lost(&turn.observation) {
            self.most = Some(cwnd);
            self.seconds = 0.0;
        }
        let Some(most) = self.most else {
            return 2.0 * cwnd;
        };
        let back = (most * (1.0 - Self::BETA) / Self::C).cbrt();
        (Self::C * (self.seconds - back).powi(3) + most).max(2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::End;

    #[test]
    fn random_actions_are_allowed_ones() {
        let mut turn = Turn::default();
        let mut random = StdRng::seed_from_u64(5);
        let mut plain = StdRng::seed_from_u64(5);
        for _ in 0..100 {
            let expected = plain.random_range(0..4);
            assert_eq!(
                any_action(&turn, 4, &mut random),
                expected,
                "as without masks"
            );
        }
        turn.allowed = vec![false, true, false, true];
        let mut counts = [0; 4];
        for _ in 0..1000 {
            counts[any_action(&turn, 4, &mut random)] += 1;
        }
        // Binomial(1000, 0.5): the standard deviation is 16.
        assert_eq!((counts[0], counts[2]), (0, 0));
        assert!((436..564).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn the_sawtooth_is_cubics() {
        let interface = Interface::default();
        let mut turn = Turn {
            first: Some(End::Truncated),
            observation: vec![0.0; interface.observation_len()],
            ..Turn::default()
        };
        let mut flow = Sawtooth::default();
        assert_eq!(flow.target(&interface, &turn, 10), 20.0, "slow start");
        turn.first = None;
        turn.observation[Feature::Lost as usize] = 1.448;
        let reduced = flow.target(&interface, &turn, 100);
        assert!((reduced - 70.0).abs() < 1e-9, "{reduced}");
        // Back at 100 segments after K = (100 · 0.3 / 0.4)^(1/3) s, and flat there.
        turn.observation[Feature::Lost as usize] = 0.0;
        let back = 75.0_f64.cbrt();
        turn.intervals = (back * 10.0) as f32;
        assert!((flow.target(&interface, &turn, 70) - 100.0).abs() < 1e-6);
        turn.intervals = 10.0;
        assert!((flow.target(&interface, &turn, 100) - 100.4).abs() < 1e-6);
        // A new flow begins anew.
        turn.first = Some(End::Truncated);
        assert_eq!(flow.target(&interface, &turn, 10), 20.0);
    }

    #[test]
    fn low_delay_flows_turn_back_where_the_queue_is_long() {
        let interface = Interface::default();
        let mut observation = vec![0.0; interface.observation_len()];
        assert_eq!(low_delay(&interface, &observation, 40), 80.0);
        // In units of 100 ms.
        observation[FEATURES + Feature::Delay as usize] = 0.1;
        assert!((low_delay(&interface, &observation, 40) - 40.0).abs() < 1e-4);
        observation[FEATURES + Feature::Delay as usize] = 9.0;
        assert_eq!(low_delay(&interface, &observation, 40), 20.0);
        observation[FEATURES + Feature::Delay as usize] = 0.0;
        observation[Feature::Lost as usize] = 3.0;
        assert_eq!(low_delay(&interface, &observation, 40), 32.0);
    }

    /// Links count alike however often they are trained on: two that differ in nothing but their
    /// weights give the same transform.
    #[test]
    fn the_weights_of_links_do_not_matter() {
        let world = |weights: [f64; 2]| {
            let link = |weight: f64, delay_ms: f64| {
                format!(
                    "[[links]]\nweight = {weight}\nrandom = {{ rate_mbps = [2, 8], \
                     delay_ms = [{delay_ms}, {delay_ms}] }}\n"
                )
            };
            let text = link(weights[0], 5.0) + &link(weights[1], 90.0);
            let config = toml::from_str(&format!("episode_s = 3\n{text}")).expect("valid");
            Source::Network(Arc::new(World::new(config).expect("valid")))
        };
        let fitted = |world: &Source, fit_by| {
            let settings = ActorSettings {
                fit_steps: 400,
                fit_by,
                ..ActorSettings::default()
            };
            normalizer(world, 1, &settings).expect("networks have one")
        };
        let (even, uneven) = (world([1.0, 1.0]), world([30.0, 1.0]));
        let mixture = fitted(&even, FitBy::Mixture);
        assert!(fitted(&uneven, FitBy::Mixture) == mixture);
        assert!(fitted(&uneven, FitBy::Random) != fitted(&even, FitBy::Random));
        // Both links' RTTs are inside a few deviations: neither is an outlier.
        let rtt = &mixture.observation[FEATURES + Feature::RttMin as usize];
        for ms in [10.0_f32, 180.0] {
            assert!(rtt.apply(ms / 100.0).abs() < 3.0, "{ms}: {rtt:?}");
        }
    }
}
