//! Environments behind networks, against the plain ones and a reference made by hand.

use cc_sim::shim::Preset;
use proptest::prelude::*;

use super::{policy_end::AGE, *};
use crate::environment::End;

const CARTPOLE: &str = "world = { kind = \"cartpole\" }\n";

fn config(settings: &str) -> NetworkedConfig {
    let config: NetworkedConfig = toml::from_str(&format!("{CARTPOLE}{settings}")).expect("TOML");
    config.validate().expect("valid settings");
    config
}

fn networked(config: &NetworkedConfig, seed: u64) -> Networked<Box<dyn Environment>> {
    Networked::new(config.world.environment(seed), config.clone(), seed)
}

/// Keeps the pole up: the rule of the plain environment's test, on the newest observation.
fn balance(observation: &[f32]) -> usize {
    let [x, v, angle, spin] = [0, 1, 2, 3].map(|at| observation[at]);
    usize::from(0.1 * x + 0.3 * v + 3.0 * angle + spin > 0.0)
}

#[test]
fn a_perfect_network_is_the_plain_environment_step_for_step() {
    for world in ["cartpole", "gridworld"] {
        let text = format!("world = {{ kind = \"{world}\" }}");
        let config: NetworkedConfig = toml::from_str(&text).expect("TOML");
        let (mut plain, mut behind) = (config.world.environment(7), networked(&config, 7));
        assert_eq!(plain.spec(), behind.spec());
        let mut random = StdRng::seed_from_u64(5);
        let (mut expected, mut found) = (Turn::default(), Turn::default());
        let mut episodes = 0;
        for step in 0..5_000 {
            plain.next(&mut expected);
            behind.next(&mut found);
            assert_eq!(found, expected, "{world}, step {step}");
            episodes += u32::from(found.first.is_some());
            let action = random.random_range(0..plain.spec().actions);
            plain.act(action);
            behind.act(action);
        }
        assert!(episodes > 50, "{episodes}");
    }
}

#[test]
fn what_arrives_within_the_grace_counts_for_the_step() {
    for (grace, late) in [(10, false), (7, true)] {
        let late_ms = config(&format!(
            "grace_ms = {grace}\nnetwork = {{ delay_ms = [4, 4] }}"
        ));
        let (mut plain, mut behind) = (late_ms.world.environment(7), networked(&late_ms, 7));
        let (mut expected, mut found) = (Turn::default(), Turn::default());
        let mut differ = false;
        for step in 0..200 {
            plain.next(&mut expected);
            behind.next(&mut found);
            differ |= found.observation != expected.observation;
            plain.act(step % 2);
            behind.act(step % 2);
        }
        // Both ways take 8 ms.
        assert_eq!(differ, late, "a grace of {grace} ms");
    }
}

/// With a round trip of n intervals, the n-th decision is about the first observation, which
/// waits for one; all later ones are n steps late.
#[test]
fn a_fixed_delay_of_n_steps_is_the_reference() {
    for n in [1_usize, 2, 5, 8] {
        let each = 10.0 * n as f64;
        let config = config(&format!(
            "network = {{ delay_ms = [{each}, {each}] }}\nobservations = 2\nages = true\n\
             decisions = 3"
        ));
        let mut random = StdRng::seed_from_u64(n as u64);
        let actions: Vec<usize> = (0..1_000).map(|_| random.random_range(0..2)).collect();

        // The reference: step i of the world takes action i.
        let mut plain = config.world.environment(9);
        let mut turn = Turn::default();
        plain.next(&mut turn);
        let mut states = vec![turn.observation.clone()];
        for &action in &actions {
            plain.act(action);
            plain.next(&mut turn);
            if turn.first.is_some() {
                break;
            }
            states.push(turn.observation.clone());
        }
        let steps = states.len();
        let observed = |message: usize| states[message.saturating_sub(n)].clone();

        let mut behind = networked(&config, 9);
        let mut total = 0.0;
        let mut turns = 0;
        loop {
            behind.next(&mut turn);
            total += turn.reward;
            if turns > 0 && turn.first.is_some() {
                break;
            }
            let age = (n as f32 / 2.0) / AGE;
            let mut expected = observed(turns);
            expected.push(age);
            match turns.checked_sub(1) {
                None => expected.extend([0.0; 5]),
                Some(before) => {
                    expected.extend(observed(before));
                    expected.push(age + 1.0 / AGE);
                }
            }
            for back in 1..=3 {
                let decided = turns.checked_sub(back).map(|at| actions[at]);
                expected.extend([0, 1].map(|action| f32::from(decided == Some(action))));
            }
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
            assert!(
                expected.len() == turn.observation.len()
                    && expected.iter().zip(&turn.observation).all(near),
                "n = {n}, turn {turns}: {:?} instead of {expected:?}",
                turn.observation
            );
            behind.act(actions[turns]);
            turns += 1;
        }
        assert_eq!(total, steps as f32, "n = {n}");
        // Observations that were on their way when the pole fell were about nothing any more.
        assert_eq!(turns, steps + n / 2, "n = {n}");
    }
}

#[test]
fn a_step_without_an_observation_or_a_decision_goes_on_with_the_last_action() {
    // The rule stands a loss of 30 % in each direction, as the plain one is never near its limit.
    let config = config("network = { loss = [0.3, 0.3] }");
    let mut behind = networked(&config, 3);
    let mut turn = Turn::default();
    let (mut turns, mut steps, mut best) = (0.0, 0.0, 0.0_f32);
    let mut episode = 0.0;
    for _ in 0..5_000 {
        behind.next(&mut turn);
        turns += 1.0;
        steps += turn.intervals;
        episode += turn.reward;
        if turn.first.is_some() {
            best = best.max(std::mem::take(&mut episode));
        }
        behind.act(balance(&turn.observation));
    }
    assert_eq!(best, 500.0);
    let share = turns / steps;
    assert!((0.66..0.75).contains(&share), "{share}");
}

#[test]
fn an_action_of_an_older_observation_does_not_replace_that_of_a_newer_one() {
    // With this jitter half of the observations are overtaken. Those ask for nothing, so that the
    // first age is below the second, which they fill.
    let config = config(
        "network = { preset = \"wifi-degraded\", loss = [0, 0] }\nobservations = 3\nages = true",
    );
    let mut behind = networked(&config, 4);
    let mut turn = Turn::default();
    let (mut filled, mut turns) = (0, 0);
    for _ in 0..2_000 {
        behind.next(&mut turn);
        let ages = [4, 9, 14].map(|at| turn.observation[at]);
        let missing = turn.observation[10..15] == [0.0; 5];
        assert!(
            missing || ages[0] < ages[1] && ages[1] < ages[2],
            "{ages:?}"
        );
        filled += u32::from((ages[1] - ages[0] - 0.1).abs() < 1e-4);
        turns += 1;
        behind.act(balance(&turn.observation));
    }
    assert!(filled * 3 > turns, "{filled} of {turns}");
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    for (text, key) in [
        ("observations = 0", "observations"),
        ("decisions = 101", "decisions"),
        ("interval_ms = 0", "interval_ms"),
        ("grace_ms = 20", "grace_ms"),
        ("network = { loss = [0.0, 1.0] }", "loss"),
    ] {
        let config: NetworkedConfig = toml::from_str(&format!("{CARTPOLE}{text}")).expect(text);
        let error = config.validate().expect_err(text);
        assert!(error.starts_with(key), "{error}");
    }
}

fn networks() -> impl Strategy<Value = ConditionsRange> {
    let presets = proptest::sample::select(Preset::ALL.to_vec());
    let drawn = (0.0..150.0f64, 0.0..80.0f64, 0.0..0.6f64).prop_map(|(delay, jitter, loss)| {
        ConditionsRange {
            preset: None,
            delay_ms: Some([0.0, delay]),
            jitter_ms: Some([jitter / 2.0, jitter]),
            loss: Some([0.0, loss]),
        }
    });
    prop_oneof![presets.prop_map(ConditionsRange::from), drawn]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever the network does: each turn is complete, what the world earned is reported once,
    /// and a seed repeats it.
    #[test]
    fn every_step_is_reported_once(
        network in networks(),
        observations in 1..6usize,
        ages: bool,
        decisions in 0..6usize,
        seed: u64,
    ) {
        let config = NetworkedConfig { network, observations, ages, decisions, ..config("") };
        let run = || {
            let mut behind = networked(&config, seed);
            let mut random = StdRng::seed_from_u64(seed);
            let mut turn = Turn::default();
            let mut turns = Vec::new();
            for _ in 0..400 {
                behind.next(&mut turn);
                turns.push(turn.clone());
                behind.act(random.random_range(0..2));
            }
            turns
        };
        let turns = run();
        prop_assert_eq!(turns[0].first, Some(End::Truncated));
        let mut episode = 0.0;
        for (number, turn) in turns.iter().enumerate() {
            let width = observations * (4 + usize::from(ages)) + 2 * decisions;
            prop_assert_eq!(turn.observation.len(), width);
            prop_assert!(turn.observation.iter().all(|value| value.is_finite()));
            if number == 0 {
                continue;
            }
            // The world earns 1 a step.
            prop_assert_eq!(turn.reward, turn.intervals);
            episode += turn.reward;
            if turn.first.is_some() {
                prop_assert_eq!(turn.first, Some(End::Terminated));
                prop_assert!((8.0..500.0).contains(&episode), "{}", episode);
                episode = 0.0;
            }
        }
        prop_assert!(run() == turns);
    }
}
