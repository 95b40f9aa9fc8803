//! Guides and both policies of a graph, against episodes without one.

use std::sync::Arc;

use proptest::prelude::*;
use rand::SeedableRng;

use super::super::{FastPolicy, NetworkEnvironment, SlowEnvironment, SlowWorld, World};
use super::*;
use crate::actor::{Actor, Snapshot, StepOutput};
use crate::environment::{Environment, Normalised, Turn};
use crate::model::{Activation, Shape, Weights, initialise};
use crate::normalise::Normalizer;
use crate::rollout::Episode;

const MS: Nanos = 1_000_000;

/// Links of several flows of the policy, with this guide and these weights of the objective.
fn world(guide: &str, weights: &str) -> Arc<World> {
    let text = format!(
        "episode_s = 5
        delay = {{ kind = \"none\" }}
        {guide}
        [[links]]
        random = {{ rate_mbps = [4, 20], delay_ms = [5, 40], queue_bdp = [1, 4] }}
        flows = {{ learned = [1, 2], stagger_s = 2, background_share = 0.5 }}
        [objective]
        kind = \"power\"
        {weights}"
    );
    let config: NetworkConfig = toml::from_str(&text).expect("TOML");
    Arc::new(World::new(config).expect("valid"))
}

/// Plays 300 turns with actions that do not depend on what is observed.
fn play(guide: &str, weights: &str, seed: u64) -> Vec<Turn> {
    let mut network = NetworkEnvironment::new(world(guide, weights), seed);
    (0..300)
        .map(|number| {
            let mut turn = Turn::default();
            network.next(&mut turn);
            network.act(number % 5);
            turn
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// One guide, of the objective's own weight, is but an input; another one is another weight.
    #[test]
    fn a_constant_guide_is_an_input_and_the_weight_of_delay(
        seed: u64,
        weight in prop::sample::select(vec![0.0, 0.25, 1.0, 4.0]),
    ) {
        let of = |weight| format!("delay = {weight}\nbeside = {{ delay = {weight} }}");
        let plain = play("", &of(weight), seed);
        let guided = play(&format!("guide = {{ values = [{weight}] }}"), &of(1.0), seed);
        for (plain, mut guided) in plain.into_iter().zip(guided) {
            prop_assert_eq!(guided.observation.pop(), Some(weight as f32));
            prop_assert_eq!(plain, guided);
        }
    }

    /// After a delay that is fixed, a guide is in force exactly when the question and the answer
    /// have both taken it.
    #[test]
    fn a_guide_is_in_force_after_both_ways(
        delay_ms in 0..400_u64,
        asked in prop::collection::vec(0..2_000_u64, 1..20),
    ) {
        let delay = delay_ms as f64;
        let network = ConditionsRange {
            delay_ms: Some([delay; 2]),
            ..ConditionsRange::default()
        };
        let guide = guide(network);
        let mut line = GuideLine::draw(&guide, &mut StdRng::seed_from_u64(1));
        let mut now = 0;
        for (number, after) in asked.into_iter().enumerate() {
            now += (2 * delay_ms + after) * MS;
            let before = line.in_force();
            line.answer(now, number as f64 + 1.0);
            if delay_ms > 0 {
                line.receive(now + 2 * delay_ms * MS - 1);
                prop_assert_eq!(line.in_force(), before);
            }
            line.receive(now + 2 * delay_ms * MS);
            prop_assert_eq!(line.in_force(), number as f64 + 1.0);
            prop_assert!(!line.is_due(now + 999 * MS) && line.is_due(now + 1_000 * MS));
        }
    }
}

fn guide(network: ConditionsRange) -> Guide {
    Guide {
        values: vec![0.0],
        every_ms: 1000.0,
        network,
        medium: Medium::Datagrams,
        fast: None,
    }
}

#[test]
fn lost_guides_leave_the_last_one_in_force_and_overtaken_ones_are_dropped() {
    let network = ConditionsRange {
        delay_ms: Some([300.0; 2]),
        jitter_ms: Some([200.0; 2]),
        loss: Some([0.5; 2]),
        ..ConditionsRange::default()
    };
    let mut line = GuideLine::draw(&guide(network), &mut StdRng::seed_from_u64(3));
    let (mut before, mut changes, mut overtaken) = (0.0, 0, 0);
    for number in 1..=4_000_u64 {
        line.answer(number * 100 * MS, number as f64);
        let found = line.in_force();
        assert!(found >= before && found <= number as f64);
        changes += u32::from(found > before);
        overtaken += u32::from(found > before + 1.0);
        before = found;
    }
    // A quarter survives both ways, and some of them are too late to count.
    assert!((500..1_000).contains(&changes), "{changes}");
    assert!(overtaken > 100, "{overtaken}");
}

/// The guides of flows behind a fixed delay are those of flows without one, as much later.
#[test]
fn what_a_policy_observes_is_the_guide_in_force() {
    let observed = |delay_ms: u64| {
        let text = format!(
            "guide = {{ values = [0, 1, 2, 3, 4, 5, 6, 7], network = {{ delay_ms = [{delay_ms}, \
             {delay_ms}] }} }}"
        );
        let mut network = NetworkEnvironment::new(world(&text, ""), 5);
        let mut turn = Turn::default();
        let mut all = Vec::new();
        for number in 0..600 {
            network.next(&mut turn);
            let (now, _) = network.guide().expect("asked, with a guide");
            let last = *turn.observation.last().expect("the guide");
            all.push((turn.seat, turn.first.is_some(), now, last));
            network.act(number % 5);
        }
        all
    };
    let (at_once, late) = (observed(0), observed(150));
    let mut changes = 0;
    for (place, &(seat, first, now, found)) in late.iter().enumerate() {
        assert_eq!(
            (seat, first, now),
            (at_once[place].0, at_once[place].1, at_once[place].2)
        );
        // What was in force 300 ms ago in the same episode, or else the first guide.
        let own = at_once[..=place].iter().rev().filter(|one| one.0 == seat);
        let begun = own.clone().position(|one| one.1).unwrap_or(0);
        let mut own = own.take(begun + 1);
        let expected = own
            .find(|one| one.2 + 300 * MS <= now)
            .map_or(0.0, |one| one.3);
        assert_eq!(found, expected, "turn {place}");
        changes += u32::from(found != at_once[place].3);
    }
    assert!(changes > 100, "{changes}");
}

/// An action is rewarded by the guide that was observed with it.
#[test]
fn the_weight_of_a_reward_is_the_guide_in_force() {
    let drawn = play("guide = { values = [0, 2], every_ms = 300 }", "", 7);
    let constant = [0.0, 2.0].map(|weight| play("", &format!("delay = {weight}"), 7));
    let mut before = [None; 2];
    let mut counts = [0; 2];
    for (place, turn) in drawn.iter().enumerate() {
        if let Some(guide) = before[turn.seat] {
            let which = usize::from(guide > 0.0);
            counts[which] += 1;
            assert_eq!(turn.reward, constant[which][place].reward, "turn {place}");
        }
        before[turn.seat] = turn.observation.last().copied();
    }
    assert!(counts.iter().all(|&count| count > 50), "{counts:?}");
    assert_ne!(constant[0][9].reward, constant[1][9].reward);
}

#[test]
fn settings_that_make_no_guide_are_refused_by_name() {
    let error = |guide: &str, objective: &str| {
        let text = format!("guide = {{ {guide} }}\nobjective = {{ kind = \"{objective}\" }}");
        let config: NetworkConfig = toml::from_str(&text).expect("TOML");
        World::new(config).expect_err(guide).to_string()
    };
    for (guide, objective, expected) in [
        ("values = []", "power", "guide.values is empty"),
        (
            "values = [1, -2]",
            "power",
            "guide.values[1] is -2; expected 0 to",
        ),
        ("values = [nan]", "power", "guide.values[0] is NaN"),
        ("values = [inf]", "power", "guide.values[0] is inf"),
        ("values = [1], every_ms = 0", "power", "guide.every_ms is 0"),
        (
            "values = [1], network = { loss = [0, 2] }",
            "power",
            "guide: loss of the network",
        ),
        (
            "values = [1]",
            "environment",
            "guide sets the weight of delay",
        ),
    ] {
        let found = error(guide, objective);
        assert!(found.starts_with(expected), "{found}");
    }
}

/// A random network with an LSTM.
fn snapshot(observation: usize, actions: usize) -> Arc<Snapshot> {
    let shape = Shape {
        observation,
        hidden: vec![8],
        activation: Activation::Tanh,
        lstm: Some(4),
        actions,
        privileged: 0,
        predictions: 0,
        values: 1,
        branches: Vec::new(),
    };
    let weights = Weights::new(&shape, &initialise(&shape, 2));
    Arc::new(Snapshot {
        version: 0,
        weights,
    })
}

fn slow_world(guide: &str) -> Arc<SlowWorld> {
    let world = world(guide, "");
    let spec = world.spec();
    let fast = FastPolicy {
        snapshot: snapshot(spec.observation, spec.actions),
        normalizer: Arc::new(Normalizer::identity(spec.observation)),
    };
    Arc::new(SlowWorld::new(world, fast))
}

fn episodes(
    environment: Box<dyn Environment>,
    policy: Arc<Snapshot>,
    count: usize,
) -> Vec<Episode> {
    let mut actor = Actor::new(vec![environment], policy, 20, 0).greedy();
    let mut output = StepOutput::default();
    while output.episodes.len() < count {
        actor.step(&mut output);
    }
    output.episodes.truncate(count);
    output.episodes
}

/// Episodes of the slow policy are those of the fast one: they earn the same and take as long.
#[test]
fn the_slow_policy_earns_what_the_fast_one_does() {
    let slow = slow_world("guide = { values = [1], fast = \"its directory\" }");
    let spec = slow.spec();
    assert_eq!(spec.actions, 1);
    let found = episodes(
        Box::new(SlowEnvironment::new(slow.clone(), 4)),
        snapshot(spec.observation, 1),
        12,
    );
    let fast = world("guide = { values = [1] }", "");
    let identity = Arc::new(Normalizer::identity(spec.observation));
    let network = NetworkEnvironment::new(fast, 4);
    let expected = episodes(
        Box::new(Normalised::new(Box::new(network), identity)),
        slow.fast.snapshot.clone(),
        12,
    );
    for (slow, fast) in found.iter().zip(&expected) {
        assert_eq!(slow.task, fast.task);
        assert!((slow.total - fast.total).abs() < 1e-3 * fast.total.abs().max(1.0));
        assert!((slow.intervals - fast.intervals).abs() < 1e-2);
        // At most a question each second.
        assert!(slow.steps as f64 <= slow.intervals / 10.0 + 1.0, "{slow:?}");
    }
    assert!(found[0].total != 0.0 && found[0].steps >= 3);
}

#[test]
fn the_slow_policy_observes_the_means_of_a_second_and_its_guide() {
    let guides = |network: &str| {
        let text = format!("guide = {{ values = [0, 4], fast = \"its directory\"{network} }}");
        let world = slow_world(&text);
        let spec = world.spec();
        assert_eq!(spec.actions, 2);
        let mut environment = SlowEnvironment::new(world, 4);
        let mut turn = Turn::default();
        let mut found = [Vec::new(), Vec::new()];
        for _ in 0..60 {
            environment.next(&mut turn);
            assert_eq!(turn.observation.len(), spec.observation);
            assert!(turn.allowed.is_empty() && turn.effects.is_empty());
            assert!(turn.first.is_some() || (8.0..30.0).contains(&turn.intervals));
            found[usize::from(turn.first.is_none())].push(turn.observation[spec.observation - 1]);
            environment.act(1);
        }
        found
    };
    let [first, later] = guides("");
    assert!(first.iter().all(|&guide| guide == 0.0));
    assert!(
        later.len() > 30 && later.iter().all(|&guide| guide == 4.0),
        "{later:?}"
    );
    // Over half a second, the first guide stays in force as long.
    let [_, later] = guides(", network = { delay_ms = [250, 250] }");
    let partly = later.iter().filter(|&&guide| (1.0..3.0).contains(&guide));
    assert!(partly.count() > 5, "{later:?}");
}
