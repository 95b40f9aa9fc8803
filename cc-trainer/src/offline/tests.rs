//! Every method on processes whose best policy is known, learned from behaviour that is not it.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    config::{Crr, Filter, Method, Myopic, Optimiser, Parametric},
    losses::{largest, softmax},
    *,
};
use crate::environment::{
    End, Environment, Turn,
    cartpole::{CartPole, CartPoleConfig},
};

/// Length of the corridor, in places.
const PLACES: usize = 6;
/// Discount of the corridor over a step.
const GAMMA: f64 = 0.8;

/// A corridor: action 0 stays and pays a little at once, action 1 goes on and pays nothing until
/// the end, where going on pays much and ends the episode. To go on is better everywhere, but its
/// next reward is smaller. The behaviour goes on in one case of five.
fn corridor() -> Transitions {
    let mut random = StdRng::seed_from_u64(1);
    let mut data = Transitions::new(PLACES, 2);
    let state = |place: usize| {
        let mut state = [0.0; PLACES];
        state[place] = 1.0;
        state
    };
    for _ in 0..400 {
        let mut place = random.random_range(0..PLACES);
        for step in 0..60 {
            let action = usize::from(random.random_bool(0.2));
            let is_end = action == 1 && place == PLACES - 1;
            let reward = match (action, is_end) {
                (0, _) => 0.1,
                (_, true) => 5.0,
                _ => 0.0,
            };
            let ends = is_end || step == 59;
            let outcome = Outcome {
                reward,
                discount: if is_end { 0.0 } else { GAMMA as f32 },
                ahead: usize::from(!is_end),
            };
            let taken = Taken {
                action,
                change: action as f32,
            };
            // The last step of a truncated episode has no state after it.
            let is_known = is_end || step < 59;
            data.push(
                &state(place),
                taken,
                &[0.0, 1.0],
                is_known.then_some(outcome),
            );
            if ends {
                break;
            }
            place += action;
        }
    }
    data
}

/// The optimal action at each place, by value iteration.
fn optimum() -> Vec<usize> {
    let mut values = [0.0; PLACES];
    let both = |values: &[f64; PLACES], place: usize| {
        let on = match values.get(place + 1) {
            Some(next) => GAMMA * next,
            None => 5.0,
        };
        [0.1 + GAMMA * values[place], on]
    };
    for _ in 0..1_000 {
        values = std::array::from_fn(|place| {
            let [stay, on] = both(&values, place);
            f64::max(stay, on)
        });
    }
    (0..PLACES)
        .map(|place| largest(&both(&values, place)))
        .collect()
}

fn config(method: Method) -> OfflineConfig {
    OfflineConfig {
        updates: 1_500,
        batch: 64,
        hidden: vec![24],
        discount: GAMMA,
        optimiser: Optimiser {
            learning_rate: 5e-3,
            ..Optimiser::default()
        },
        method,
        ..OfflineConfig::default()
    }
}

fn greedy(method: Method) -> Vec<usize> {
    let learned = learn(&config(method), &corridor(), &mut |_| true).expect("learned");
    (0..PLACES)
        .map(|place| {
            let mut state = [0.0; PLACES];
            state[place] = 1.0;
            let logits = learned.network.logits(&state);
            largest(&logits.iter().map(|&z| f64::from(z)).collect::<Vec<_>>())
        })
        .collect()
}

#[test]
fn the_best_of_the_corridor_is_to_go_on() {
    assert_eq!(optimum(), [1; PLACES]);
}

#[test]
fn cloning_does_what_was_done_most() {
    assert_eq!(greedy(Method::Bc), [0; PLACES]);
}

/// Looking one outcome ahead, it finds the end only.
#[test]
fn the_myopic_regression_takes_what_pays_next() {
    let mut data = corridor();
    let settings = config(Method::Myopic(Myopic::default()));
    assert_eq!(settings.effective_discount(), 0.0);
    data.forget_what_follows();
    let learned = learn(&settings, &data, &mut |_| true).expect("learned");
    let mut expected = [0; PLACES];
    expected[PLACES - 1] = 1;
    let states: Vec<f32> = (0..PLACES * PLACES)
        .map(|at| f32::from(u8::from(at % (PLACES + 1) == 0)))
        .collect();
    let logits = learned.network.logits(&states);
    let found: Vec<_> = logits.chunks(2).map(|z| usize::from(z[1] > z[0])).collect();
    assert_eq!(found, expected);
}

#[test]
fn q_learning_finds_the_best() {
    let dqn = |pessimism| {
        Method::Dqn(Dqn {
            pessimism,
            ..Dqn::default()
        })
    };
    assert_eq!(greedy(dqn(0.0)), optimum());
    assert_eq!(greedy(dqn(0.05)), optimum(), "a little pessimism");
    assert_eq!(greedy(dqn(100.0)), [0; PLACES], "much of it is cloning");
}

#[test]
fn critic_regularised_regression_finds_the_best() {
    for filter in [Filter::Exponential, Filter::Binary] {
        let crr = Method::Crr(Crr {
            filter,
            beta: 0.1,
            ..Crr::default()
        });
        assert_eq!(greedy(crr), optimum(), "{filter:?}");
    }
}

#[test]
fn the_parametric_form_finds_the_best() {
    let parametric = Method::Parametric(Parametric {
        pessimism: 0.0,
        ..Parametric::default()
    });
    assert_eq!(greedy(parametric), optimum());
}

/// What a control did between two actions of the list teaches the values of both.
#[test]
fn the_parametric_form_values_actions_that_were_never_taken() {
    let mut random = StdRng::seed_from_u64(2);
    let mut data = Transitions::new(1, 3);
    for _ in 0..2_000 {
        // The best change is 0.5; the list has 0.25, which is better than 0 and 1.
        let change: f32 = random.random_range(-0.2..0.2) + if random.random() { 1.0 } else { 0.1 };
        let outcome = Outcome {
            reward: -(change - 0.5).powi(2),
            discount: 0.0,
            ahead: 0,
        };
        let taken = Taken {
            action: usize::from(change > 0.5) * 2,
            change,
        };
        data.push(&[1.0], taken, &[-0.1, 0.3, 1.2], Some(outcome));
    }
    let parametric = Method::Parametric(Parametric {
        pessimism: 0.0,
        ..Parametric::default()
    });
    let learned = learn(&config(parametric), &data, &mut |_| true).expect("learned");
    let logits = learned.network.logits(&[1.0]);
    let logits: Vec<f64> = logits.iter().map(|&z| f64::from(z)).collect();
    assert_eq!(largest(&logits), 1, "{logits:?}");
}

#[test]
fn a_seed_determines_what_is_learned() {
    let settings = OfflineConfig {
        updates: 50,
        ..config(Method::Crr(Crr::default()))
    };
    let data = corridor();
    let of = |settings: &OfflineConfig| learn(settings, &data, &mut |_| true).expect("learned");
    let once = of(&settings);
    assert_eq!(once, of(&settings));
    assert_eq!(once.curve.len(), 50);
    let other = OfflineConfig {
        seed: 2,
        ..settings.clone()
    };
    assert_ne!(once.network, of(&other).network);
}

#[test]
fn nothing_is_learned_from_nothing() {
    let settings = config(Method::Bc);
    let mut none = Transitions::new(1, 2);
    none.push(&[1.0], Taken::default(), &[0.0, 0.0], None);
    let error = learn(&settings, &none, &mut |_| true).expect_err("no outcome");
    assert!(error.to_string().contains("no outcome"), "{error}");
    let stopped = learn(&settings, &corridor(), &mut |_| false).expect_err("stopped");
    assert!(matches!(stopped, LearnError::Cancelled));
    let wrong = OfflineConfig {
        batch: 0,
        ..settings
    };
    let error = learn(&wrong, &none, &mut |_| true).expect_err("no batch");
    assert_eq!(error.to_string(), "batch is 0; expected 1 to 65536");
}

/// Balances a pole until it falls, `episodes` times, and returns the mean length. `decide` gets
/// the state; `keep` each state with its action and whether the episode ended after it.
fn balance(
    episodes: usize,
    seed: u64,
    mut decide: impl FnMut(&[f32]) -> usize,
    mut keep: impl FnMut(&[f32], usize, Option<End>),
) -> f64 {
    let mut cart = CartPole::new(&CartPoleConfig { steps: 200 }, seed);
    let (mut turn, mut before) = (Turn::default(), None::<(Vec<f32>, usize)>);
    let (mut ended, mut steps) = (0, 0);
    while ended < episodes {
        cart.next(&mut turn);
        if let Some((state, action)) = before.take() {
            keep(&state, action, turn.first);
            ended += usize::from(turn.first.is_some());
        }
        let action = decide(&turn.observation);
        before = Some((turn.observation.clone(), action));
        steps += 1;
        cart.act(action);
    }
    steps as f64 / episodes as f64
}

/// CartPole from 300 episodes of a player who pushes towards the lean in two cases of five and at
/// random in the others: the offline policy balances at least twice as long.
#[test]
#[ignore = "takes a minute"]
fn a_pole_is_balanced_by_what_an_unsteady_player_did() {
    let mut random = StdRng::seed_from_u64(3);
    let mut data = Transitions::new(4, 2);
    let player = |state: &[f32]| match random.random_bool(0.6) {
        true => usize::from(random.random::<bool>()),
        false => usize::from(state[2] + state[3] > 0.0),
    };
    let gamma = 0.97;
    let behaviour = balance(300, 4, player, |state, action, end| {
        let scaled = [0.5, 0.5, 5.0, 0.5];
        let state: Vec<f32> = state.iter().zip(scaled).map(|(x, k)| x * k).collect();
        let taken = Taken {
            action,
            change: action as f32,
        };
        let outcome = match end {
            Some(End::Terminated) => Some(Outcome {
                reward: 1.0 - gamma,
                discount: 0.0,
                ahead: 0,
            }),
            // The state after it is that of another episode.
            Some(End::Truncated) => None,
            None => Some(Outcome {
                reward: 1.0 - gamma,
                discount: gamma,
                ahead: 1,
            }),
        };
        data.push(&state, taken, &[0.0, 1.0], outcome);
    });
    for method in [
        Method::Dqn(Dqn {
            pessimism: 0.01,
            ..Dqn::default()
        }),
        Method::Crr(Crr {
            filter: Filter::Binary,
            ..Crr::default()
        }),
    ] {
        let name = method.name();
        let settings = OfflineConfig {
            updates: 3_000,
            hidden: vec![32],
            discount: gamma.into(),
            ..config(method)
        };
        let learned = learn(&settings, &data, &mut |_| true).expect("learned");
        let length = balance(
            20,
            5,
            |state| {
                let scaled = [0.5, 0.5, 5.0, 0.5];
                let state: Vec<f32> = state.iter().zip(scaled).map(|(x, k)| x * k).collect();
                let logits = learned.network.logits(&state);
                usize::from(logits[1] > logits[0])
            },
            |_, _, _| {},
        );
        assert!(
            length > f64::min(190.0, 2.0 * behaviour),
            "{name}: {length}, behaviour {behaviour}"
        );
    }
}

#[test]
fn a_softmax_at_a_low_temperature_is_greedy() {
    let probabilities = softmax(&[1.0, 2.0], 0.05);
    assert!(probabilities[1] > 0.999);
}

mod material {
    use std::{path::PathBuf, sync::atomic::AtomicBool};

    use cc_core::policy::{ActionSelection, OnnxPolicy, Policy, Query, State};

    use super::*;
    use crate::{
        dataset::{Reading, Recordings},
        pool::{PartSizes, PoolConfig, record},
    };

    /// Six links, and what three controls did on them in five seconds.
    fn pool() -> (tempfile::TempDir, Vec<PathBuf>) {
        let config = PoolConfig {
            seconds: 5.0,
            links: PartSizes {
                training: 6,
                validation: 1,
                test: 1,
            },
            ..PoolConfig::default()
        };
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let links = config.draw().expect("valid");
        let never = AtomicBool::new(false);
        let place = scratch.path().join("recordings");
        record(&config, &links.parts[0], &place, &never, &|_| {}).expect("recorded");
        (scratch, vec![place])
    }

    fn config() -> OfflineConfig {
        toml::from_str(
            r#"
            updates = 40
            batch = 32
            held_out = 0.4
            hidden = [16]
            inputs = ["mean.delay", "mean.rtt_min", "sum.acked", "past1.*"]
            method = { kind = "crr", quantiles = 4 }

            [policy]
            history = 2
            actions = "0,/1.25,*1.25"
            pacing_gain = 1.25
            "#,
        )
        .expect("TOML")
    }

    #[test]
    fn what_was_recorded_becomes_a_policy_that_an_agent_serves() {
        let (scratch, from) = pool();
        let config = config();
        let material = gather(&config, &from, scratch.path()).expect("recordings");
        // Past decisions: three actions and a cwnd.
        assert_eq!(material.learned.width(), 3 + 4);
        let (learned, held_out) = (material.learned.len(), material.held_out.len());
        assert!(learned > 400 && held_out > 100, "{learned} {held_out}");
        let again = gather(&config, &from, scratch.path()).expect("recordings");
        assert_eq!(again.learned, material.learned);

        let found = learn(&config, &material.learned, &mut |_| true).expect("learned");
        let likeness = material.likeness(&found.network).expect("some is held out");
        assert_eq!(likeness.states, held_out);
        assert!(likeness.log_likelihood < 0.0 && (0.0..=1.0).contains(&likeness.agreement));
        let bytes = material
            .policy_file(&found.network, ActionSelection::Greedy, [].into())
            .expect("a policy");
        let mut policy = OnnxPolicy::from_bytes(&bytes, None, 0).expect("accepted");
        assert_eq!(policy.interface().pacing_gain, Some(1.25));

        // Raw observations through the file, transformed ones through the network.
        let recordings = Recordings::open(&from).expect("recordings");
        let recordings = recordings.read_as(&config.policy, Reading::InFlight);
        let recordings = recordings.expect("observed flows");
        let partitions = recordings
            .partition(scratch.path(), 1 << 20, &|_| {})
            .expect("sorted");
        let mut checked = 0;
        for index in 0..partitions.len() {
            partitions
                .visit(index, |trajectory| {
                    let step = &trajectory.steps[trajectory.steps.len() / 2];
                    let state = material.state(&step.observation);
                    let logits = found.network.logits(&state);
                    let mut query = Query {
                        observation: step.observation.clone(),
                        reward: step.observed_reward,
                        cwnd: step.base_cwnd,
                        state: State::default(),
                        probabilities: Vec::new(),
                    };
                    let answers = policy.evaluate(std::slice::from_mut(&mut query));
                    let answer = answers[0].as_ref().expect("an answer");
                    for (found, expected) in answer.logits.iter().zip(&logits) {
                        assert!((found - expected).abs() < 1e-4, "{found} {expected}");
                        checked += 1;
                    }
                    Ok(())
                })
                .expect("readable");
        }
        assert_eq!(checked, 18 * 3);
    }

    #[test]
    fn inputs_and_recordings_that_do_not_fit_are_refused() {
        let (scratch, from) = pool();
        let wrong = OfflineConfig {
            inputs: vec!["mean.delay".into(), "mean.colour".into()],
            ..config()
        };
        let error = gather(&wrong, &from, scratch.path()).expect_err("no such input");
        assert!(error.to_string().contains("`mean.colour`"), "{error}");
        let missing = vec![scratch.path().join("nowhere")];
        assert!(gather(&config(), &missing, scratch.path()).is_err());
        let mut wrong = config();
        wrong.policy.mask_actions = true;
        let error = wrong.validate().expect_err("not learned with").to_string();
        assert!(
            error.starts_with("policy.mask_actions is true; expected false"),
            "{error}"
        );
        wrong.policy.mask_actions = false;
        wrong.policy.pacing_gain = Some(9.0);
        let error = gather(&wrong, &from, scratch.path()).expect_err("too fast");
        assert!(error.to_string().contains("pacing_gain"), "{error}");
    }
}
