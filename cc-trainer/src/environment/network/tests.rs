use super::*;

fn config(text: &str) -> NetworkConfig {
    toml::from_str(text).expect("a valid configuration")
}

fn network(text: &str, seed: u64) -> NetworkEnvironment {
    let world = World::new(config(text)).expect("a valid world");
    NetworkEnvironment::new(Arc::new(world), seed)
}

/// Plays a number of turns under a fixed rule and returns them.
fn play(
    network: &mut NetworkEnvironment,
    turns: usize,
    rule: impl Fn(&Turn) -> usize,
) -> Vec<Turn> {
    let mut all = Vec::new();
    for _ in 0..turns {
        let mut turn = Turn::default();
        network.next(&mut turn);
        network.act(rule(&turn));
        all.push(turn);
    }
    all
}

const ONE: &str = "
    episode_s = 3
    delay = { kind = \"none\" }
    [[links]]
    [links.random]
    rate_mbps = [12, 12]
    delay_ms = [20, 20]
    queue_bdp = [2, 2]
";

#[test]
fn turns_have_the_lengths_of_the_spec_and_come_every_window() {
    let mut network = network("episode_s = 3", 1);
    let spec = network.spec();
    assert_eq!((spec.seats, spec.observation, spec.actions), (1, 220, 5));
    assert_eq!(spec.tasks, 1);
    let turns = play(&mut network, 100, |_| 0);
    for turn in &turns {
        assert_eq!(turn.observation.len(), spec.observation);
        assert_eq!(turn.privileged.len(), spec.privileged);
        assert!(turn.task < spec.tasks && turn.seat < spec.seats);
        let finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
        assert!(finite(&turn.observation) && finite(&[turn.reward, turn.observed_reward]));
        assert!(
            turn.privileged.iter().all(|v| v.abs() < 8.0),
            "{:?}",
            turn.privileged
        );
    }
    let first = turns.iter().filter(|turn| turn.first.is_some()).count();
    assert!((3..=10).contains(&first), "{first} episodes");
    assert_eq!(
        (turns[0].first, turns[0].reward),
        (Some(End::Truncated), 0.0)
    );
}

#[test]
fn a_seed_repeats_a_run() {
    let text = "
        episode_s = 2
        [[links]]
        scenarios = \"calibrated,dynamic\"
        [[links]]
        weight = 2
        random = { service = \"cellular\" }
    ";
    let run = |seed| {
        play(&mut network(text, seed), 60, |turn| {
            turn.observation.len() % 5
        })
    };
    assert!(run(3) == run(3));
    assert!(run(3) != run(4));
}

/// Compares rewards with the formula's value, derived from what the link can carry.
#[test]
fn the_power_reward_is_best_where_the_cwnd_fills_the_link_but_not_the_queue() {
    // The BDP: 12 Mbit/s × 40 ms are 40 segments.
    let mean = |cwnd: u32| {
        let actions = format!("0,/1.2,*1.2,+{cwnd}");
        let text = format!(
            "{ONE}\n[policy]\nactions = \"{actions}\"\ncwnd = {{ min = 2, max = {cwnd} }}\n"
        );
        // The upper bound on the cwnd turns the action +cwnd into a fixed cwnd.
        let turns = play(&mut network(&text, 1), 100, |_| 3);
        let rewards = turns.iter().filter(|turn| turn.first.is_none());
        let rewards: Vec<_> = rewards.map(|turn| f64::from(turn.reward)).skip(2).collect();
        rewards.iter().sum::<f64>() / rewards.len() as f64
    };
    let (little, right, much) = (mean(10), mean(40), mean(80));
    // ln(1448/1500) at the BDP; a fifth of the rate, in bursts of ten segments, below it; above it
    // a delay of 60 ms where the propagation takes 20.
    assert!((-0.15..0.02).contains(&right), "{right}");
    assert!((-2.0..-1.5).contains(&little), "{little}");
    assert!((-1.2..-0.9).contains(&much), "{much}");
}

/// The marks of a random family's links arrive in the observations of version 2 of the features.
#[test]
fn a_policy_of_features_version_2_observes_the_links_marks() {
    let fractions = |marking: &str| {
        let text = format!("{ONE}{marking}\n[policy]\nfeatures_version = 2\n");
        let mut network = network(&text, 1);
        assert_eq!(network.spec().observation, 222);
        // The action *2 until the queue is full.
        let turns = play(&mut network, 60, |_| 4);
        let marked: Vec<f32> = turns.iter().map(|turn| turn.observation[100]).collect();
        assert!(marked.iter().all(|marked| (0.0..=1.0).contains(marked)));
        assert!(turns.iter().all(|turn| turn.observation[101] <= 0.5));
        marked
    };
    let marked = fractions("ce_threshold_ms = { share = 1, range = [10, 10] }");
    assert!(
        marked[0] < 0.5 && marked.iter().any(|marked| *marked > 0.5),
        "{marked:?}"
    );
    assert!(fractions("").iter().all(|marked| *marked == 0.0));
}

/// The time between turns is that of the simulation, also where no ACK comes and no window ends.
#[test]
fn the_time_of_an_action_is_counted_in_windows_and_silence_with_it() {
    let turns = play(&mut network(ONE, 1), 60, |_| 0);
    for turn in turns.iter().skip(1) {
        let is_usual = (0.99..1.2).contains(&turn.intervals);
        // What is left of an episode after the last window.
        assert!(
            is_usual || turn.first.is_some() && turn.intervals < 1.2,
            "{turn:?}"
        );
    }
    let episodes = turns.iter().filter(|turn| turn.first.is_some()).count();
    let windows: f32 = turns.iter().skip(1).map(|turn| turn.intervals).sum();
    assert!(episodes > 1 && windows > 55.0);
    // A link that is silent for seconds at a time.
    let text = "
        episode_s = 30
        [[links]]
        [links.random]
        service = \"outages\"
        rate_mbps = [4, 4]
    ";
    let turns = play(&mut network(text, 3), 250, |_| 0);
    let longest = turns.iter().map(|turn| turn.intervals).fold(0.0, f32::max);
    assert!(longest > 5.0, "{longest}");
}

#[test]
fn the_agents_own_reward_can_be_the_objective() {
    let text = format!("{ONE}\n[objective]\nkind = \"environment\"\nscale = 0.5\n");
    let turns = play(&mut network(&text, 1), 20, |_| 0);
    for turn in turns.iter().filter(|turn| turn.first.is_none()) {
        assert!((turn.reward - 0.5 * turn.observed_reward).abs() < 1e-6);
    }
}

#[test]
fn policies_state_what_they_are_trained_for() {
    let world = |text: &str| World::new(config(text)).expect("a valid world");
    let power =
        format!("{ONE}\n[objective]\nkind = \"power\"\nthroughput = 5\ndelay = 1\nloss = 20\n");
    let objective = world(&power).config().policy.objective;
    // Those of the embedded policy.
    assert_eq!(objective, Some(Default::default()));
    let given = format!("{power}\n[policy.objective]\nloss = 3\n");
    let stated = world(&given).config().policy.objective.expect("as given");
    assert_eq!(stated.loss, 3.0);
    let own = format!("{ONE}\n[objective]\nkind = \"environment\"\n");
    let found = world(&own);
    let policy = &found.config().policy;
    let expected = cc_core::objective::Objective::derived(&policy.reward);
    assert_eq!(policy.objective, Some(expected));
    let nothing = power.replace("throughput = 5", "throughput = 0");
    assert_eq!(world(&nothing).config().policy.objective, None);
}

#[test]
fn an_objective_that_weighs_otherwise_than_training_is_told() {
    let divergence = |stated: &str| {
        let text = format!(
            "{ONE}\n[policy.objective]\n{stated}\n\
             [objective]\nkind = \"power\"\nthroughput = 5\ndelay = 1\nloss = 20\n"
        );
        let config = config(&text);
        config.objective.divergence(&config.policy)
    };
    assert!(divergence("").is_empty());
    // A factor of the whole, and what training knows nothing of.
    assert!(divergence("throughput = 10\ndelay = 2\nloss = 40\ndelay_floor_ms = 5").is_empty());
    assert_eq!(
        divergence("loss = 0\nmarks = 5"),
        [
            "loss 0.000 of the throughput's weight, 4.000 in training",
            "marks 1.000 of the throughput's weight, 0.000 in training",
        ]
    );
}

#[test]
fn changing_the_cwnd_costs_the_configured_amount() {
    let with = |switch: f64| {
        let text = format!("{ONE}\n[objective]\nkind = \"power\"\nswitch = {switch}\n");
        play(&mut network(&text, 1), 3, |_| 1)[1].reward
    };
    // The action halves the cwnd, so the cost is about ln 2.
    let difference = with(0.0) - with(1.0);
    assert!((0.5..0.9).contains(&difference), "{difference}");
}

/// Beside CUBIC, taking more than the fair share earns without `beside`, and costs with it; alone
/// it changes nothing.
#[test]
fn beside_others_the_fair_share_is_the_best() {
    let flows = "[links.flows]\nbackground_share = 1\nschemes = [\"cubic\"]\nlearned = [1, 1]\n";
    let rewards = |flows: &str, beside: &str, action: usize| {
        let text = format!("{ONE}{flows}[objective]\nkind = \"power\"\nloss = 0\n{beside}");
        let turns = play(&mut network(&text, 2), 90, |_| action);
        let turns = turns.iter().skip(30).filter(|turn| turn.first.is_none());
        turns
            .map(|turn| (turn.reward, turn.quantities.share))
            .collect::<Vec<_>>()
    };
    let (halve, double) = (1, 4);
    let with = "beside = { excess = 2 }\n";
    assert_eq!(rewards("", "", double), rewards("", with, double));
    let plain = rewards(flows, "delay = 0\n", double);
    let mut above = 0;
    for ((reward, share), (plain, same)) in rewards(flows, with, double).into_iter().zip(plain) {
        assert_eq!(share, same, "what happens does not depend on the objective");
        match share.expect("beside another flow") {
            share if share > 1.05 => {
                above += 1;
                assert!(reward < 0.0 && plain > 0.0, "{share}: {reward} and {plain}");
                assert!((reward / plain + 2.0).abs() < 0.5, "{reward} and {plain}");
            }
            share if share < 0.95 => assert!((reward - plain).abs() < 1e-6),
            _ => {}
        }
    }
    assert!(above > 10, "{above}");
    // The delay, which is the neighbour's doing as well, counts for who gives way too.
    let [free, priced] = ["", ", delay = 1"]
        .map(|delay| rewards(flows, &format!("beside = {{ excess = 2{delay} }}\n"), halve))
        .map(|rewards| rewards.iter().map(|(reward, _)| reward).sum::<f32>());
    assert!(free > priced, "{free} and {priced}");
}

/// Among its like, who has more than the fair share is charged for the queue and the losses, and
/// who has less is not; alone it changes nothing.
#[test]
fn a_flow_is_charged_for_what_it_causes() {
    let flows = "[links.flows]\nlearned = [2, 2]\n";
    let rewards = |flows: &str, caused: bool| {
        let text = format!("{ONE}{flows}[objective]\nkind = \"power\"\ncaused = {caused}\n");
        // The first flow halves its cwnd, and the second doubles it.
        let turns = play(&mut network(&text, 2), 180, |turn| match turn.seat {
            0 => 1,
            _ => 4,
        });
        let turns = turns.iter().skip(60).filter(|turn| turn.first.is_none());
        turns
            .map(|turn| (turn.seat, turn.reward, turn.quantities.share))
            .collect::<Vec<_>>()
    };
    assert_eq!(rewards("", false), rewards("", true));
    let mut counts = [0; 2];
    for (own, caused) in rewards(flows, false).into_iter().zip(rewards(flows, true)) {
        assert_eq!(
            (own.0, own.2),
            (caused.0, caused.2),
            "what happens is the same"
        );
        let share = own.2.expect("beside another flow");
        let (own, caused) = (own.1, caused.1);
        if share < 0.9 {
            counts[0] += 1;
            assert!(caused >= own - 1e-6, "{share}: {caused} and {own}");
        } else if share > 1.1 {
            counts[1] += 1;
            assert!(caused < own, "{share}: {caused} and {own}");
        }
    }
    assert!(counts.iter().all(|&count| count > 10), "{counts:?}");
}

/// Responses as fast as the link earn the same however long the application pauses between them.
#[test]
fn pauses_of_the_application_earn_and_cost_nothing() {
    let mean = |think_s: f64| {
        let text = format!(
            "{ONE}[links.flows]
            pauses = {{ share = 1, bytes = [3e6, 3e6], think_s = [{think_s}, {think_s}] }}
            [policy]
            actions = \"0,+1\"
            cwnd = {{ min = 2, max = 45 }}"
        );
        let text = text.replace("episode_s = 3", "episode_s = 60");
        let turns = play(&mut network(&text, 1), 400, |_| 0);
        let earned = turns.iter().filter(|turn| turn.first.is_none());
        let (rewards, busy): (Vec<_>, Vec<_>) = earned
            .map(|turn| (f64::from(turn.reward), f64::from(turn.intervals)))
            .unzip();
        let total = busy.iter().sum::<f64>();
        (rewards.iter().sum::<f64>() / rewards.len() as f64, total)
    };
    let ((short, shortly), (long, longer)) = (mean(0.05), mean(2.0));
    assert!(longer > 1.3 * shortly, "{longer} windows and {shortly}");
    assert!((short - long).abs() < 0.2, "{short} and {long} a turn");
}

#[test]
fn the_share_of_flows_that_pause_is_that_of_the_configuration() {
    let text = |pauses: &str| format!("{ONE}[links.flows]\nlearned = [2, 4]\n{pauses}");
    let apps = |pauses: &str| {
        let world = World::new(config(&text(pauses))).expect("a valid world");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut counts = [0; 2];
        for _ in 0..100 {
            let flows = &world.links.draw(5.0, None, &mut random).scenario.flows;
            for flow in flows {
                counts[usize::from(flow.app != cc_sim::scenario::App::Bulk)] += 1;
            }
        }
        counts
    };
    assert_eq!(apps("")[1], 0);
    let [bulk, pausing] = apps("pauses = { share = 0.3, bytes = [1e4, 1e6], think_s = [0.1, 1] }");
    let share = f64::from(pausing) / f64::from(bulk + pausing);
    assert!((0.22..0.38).contains(&share), "{share}");
}

/// With `late_share` the background flows are there first in that part of the episodes.
#[test]
fn a_share_of_the_flows_comes_after_those_of_the_background() {
    let flows = |late: &str| {
        let text = format!(
            "{ONE}[links.flows]\nstagger_s = 2\nbackground_share = 1\nbackground = [1, 3]\n\
             schemes = [\"reno\"]\n{late}"
        );
        let world = World::new(config(&text)).expect("a valid world");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let draws = (0..200).map(|_| world.links.draw(5.0, None, &mut random).scenario);
        draws.map(|link| link.flows.clone()).collect::<Vec<_>>()
    };
    let late = |flows: &Vec<cc_sim::scenario::Flow>| {
        let (own, others): (Vec<_>, Vec<_>) = flows.iter().partition(|f| f.scheme.is_none());
        let late = !own[0].start.is_zero();
        assert!(own[0].start.as_secs_f64() < 2.0);
        for other in others {
            assert_eq!(
                other.start.is_zero(),
                late,
                "either the learned flow or the others are there first"
            );
        }
        late
    };
    assert!(!flows("").iter().any(late));
    assert!(flows("late_share = 1").iter().all(late));
    let half = flows("late_share = 0.5").iter().filter(|f| late(f)).count();
    assert!((70..130).contains(&half), "{half} of 200");
}

#[test]
fn several_flows_have_seats_of_their_own() {
    let text = "
        episode_s = 4
        [[links]]
        random = { rate_mbps = [20, 20], delay_ms = [10, 20] }
        [links.flows]
        learned = [1, 3]
        stagger_s = 1
        extra_delay_ms = 10
        background_share = 0.5
        schemes = [\"reno\"]
        [objective]
        kind = \"power\"
        shared = true
    ";
    let mut network = network(text, 5);
    assert_eq!(network.spec().seats, 3);
    let turns = play(&mut network, 400, |_| 0);
    for seat in 0..3 {
        let own: Vec<_> = turns.iter().filter(|turn| turn.seat == seat).collect();
        assert!(own.len() > 30, "seat {seat} has {} turns", own.len());
        assert!(own[0].first.is_some() && own[1].first.is_none());
    }
}

/// Loss and share are measured over the same time as the reward; there is no share to have on a
/// link of one's own.
#[test]
fn what_can_be_limited_is_measured() {
    let turns = play(&mut network(ONE, 2), 60, |_| 4);
    let losses: Vec<f32> = turns
        .iter()
        .filter_map(|turn| turn.quantities.loss)
        .collect();
    assert!(turns.iter().all(|turn| turn.quantities.share.is_none()));
    // Always doubling overflows the queue.
    assert!(losses.iter().all(|loss| (0.0..=1.0).contains(loss)));
    assert!(losses.iter().any(|&loss| loss > 0.05), "{losses:?}");
    let beside = format!(
        "{ONE}[links.flows]\nbackground_share = 1\nschemes = [\"cubic\"]\nlearned = [1, 1]\n"
    );
    let share = |action: usize| {
        let turns = play(&mut network(&beside, 2), 90, |_| action);
        let shares: Vec<f32> = turns
            .iter()
            .filter_map(|turn| turn.quantities.share)
            .collect();
        assert!(shares.len() > 20, "{}", shares.len());
        shares.iter().sum::<f32>() / shares.len() as f32
    };
    // Who always halves has next to nothing beside CUBIC, and who doubles more than its share.
    let (meek, bold) = (share(1), share(4));
    assert!(meek < 0.5 && bold > 1.0 && bold < 2.1, "{meek} and {bold}");
}

#[test]
fn links_of_one_task_can_be_drawn_alone() {
    let text = "
        [[links]]
        weight = 0.01
        scenarios = \"calibrated\"
        [[links]]
        random = { rate_mbps = [4, 9], delay_ms = [5, 9] }
    ";
    let world = World::new(config(text)).expect("a valid world");
    assert_eq!(world.spec().tasks, 7);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    for task in 0..7 {
        for _ in 0..20 {
            let link = world.links.draw(5.0, Some(task), &mut random);
            assert_eq!(link.task, task);
            if task < 6 {
                assert_eq!(link.scenario.name, world.tasks()[task]);
            }
        }
    }
    // By their weights, the family is drawn nearly always.
    let mut drawn = || world.links.draw(5.0, None, &mut random).task;
    assert!((0..50).filter(|_| drawn() == 6).count() > 40);
}

#[test]
fn a_flow_that_is_not_decided_about_goes_on_in_slow_start() {
    let mut network = network(ONE, 4);
    let mut turn = Turn::default();
    let mut last = 0;
    for _ in 0..2 {
        network.next(&mut turn);
        let cwnd = network.cwnd().expect("a flow waits");
        assert!(cwnd > last, "{cwnd} after {last}");
        last = cwnd;
        network.keep();
        assert_eq!(network.cwnd(), None, "answered");
    }
    assert!(last > 20, "{last}");
}

#[test]
fn actions_with_the_same_effect_are_told_with_the_turn() {
    let text = "
        episode_s = 3
        policy = { actions = \"0,/1.05,*1.05,/2\", cwnd = { min = 2, max = 4 } }
        [[links]]
        random = { rate_mbps = [4, 9], delay_ms = [5, 9] }
    ";
    let turns = play(&mut network(text, 3), 40, |turn| {
        assert_eq!(turn.effects.len(), 4);
        assert_eq!(turn.effects[0], 0);
        3
    });
    // At two segments nothing changes anything; within [2, 4] a twentieth never does.
    assert!(turns.iter().any(|turn| turn.effects == [0, 0, 0, 0]));
    assert!(
        turns
            .iter()
            .all(|turn| turn.effects[1] == 0 && turn.effects[2] == 0)
    );
}

#[test]
fn masks_leave_one_action_for_each_cwnd() {
    let text = |mask: bool| {
        format!(
            "
        episode_s = 3
        policy = {{ actions = \"0,/1.05,*1.05,/2\", cwnd = {{ min = 2, max = 4 }}, \
             mask_actions = {mask} }}
        [[links]]
        random = {{ rate_mbps = [4, 9], delay_ms = [5, 9] }}
    "
        )
    };
    let rule = |turn: &Turn| if turn.allows(3) { 3 } else { 0 };
    let turns = play(&mut network(&text(true), 3), 40, rule);
    for turn in &turns {
        let first = (0_u8..)
            .zip(&turn.effects)
            .map(|(index, first)| index == *first);
        assert!(turn.allowed.iter().copied().eq(first), "{turn:?}");
    }
    assert!(
        turns
            .iter()
            .any(|turn| turn.allowed == [true, false, false, false])
    );
    assert!(turns.iter().any(|turn| turn.allowed[3]));
    // Without masks the same turns have none.
    let without = play(&mut network(&text(false), 3), 40, |turn| {
        if turn.effects[3] == 3 { 3 } else { 0 }
    });
    assert!(without.iter().all(|turn| turn.allowed.is_empty()));
    let plain = |turn: &Turn| Turn {
        allowed: Vec::new(),
        ..turn.clone()
    };
    assert_eq!(without, turns.iter().map(plain).collect::<Vec<_>>());
}

#[test]
fn random_families_draw_within_their_ranges() {
    let kinds = [
        "constant", "poisson", "cellular", "steps", "ramps", "outages",
    ];
    for kind in kinds {
        let text = format!(
            "episode_s = 5
            [[links]]
            [links.random]
            service = \"{kind}\"
            rate_mbps = [4, 16]
            delay_ms = [5, 50]
            queue_bdp = [0.5, 2]
            loss = {{ share = 0.5, range = [0.001, 0.01] }}
            jitter_ms = {{ share = 0.5, range = [0.5, 2] }}
            delay_factor = {{ share = 0.5, range = [0.5, 2] }}
            policer = {{ share = 0.3, range = [0.5, 0.9] }}
            ack_aggregation_ms = {{ share = 0.3, range = [2, 20] }}
            ack_every_ms = {{ share = 0.3, range = [20, 100] }}"
        );
        let world = World::new(config(&text)).expect("a valid world");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let (mut lossy, mut least, mut most) = (0, f64::MAX, 0.0_f64);
        for _ in 0..60 {
            let scenario = world.links.draw(5.0, None, &mut random).scenario;
            let truth = Truth::new(&scenario, Duration::ZERO, Duration::from_secs(5));
            least = least.min(truth.mean_bits_per_second);
            most = most.max(truth.mean_bits_per_second);
            lossy += u32::from(scenario.forward.loss != cc_sim::scenario::Loss::None);
            let delay = scenario.forward.delay.base.as_secs_f64();
            assert!((0.005..0.0501).contains(&delay));
            assert!(scenario.forward.queue.bytes >= Some(1500));
        }
        assert!(least > 0.5e6 && most < 65e6, "{kind}: {least} to {most}");
        assert!(most > 1.8 * least, "{kind}");
        assert!((15..45).contains(&lossy), "{kind}: {lossy} of 60");
        // An environment of these links can also be played.
        let turns = play(&mut network(&text, 2), 40, |_| 0);
        assert!(turns.iter().any(|turn| turn.first.is_none()), "{kind}");
    }
}

#[test]
fn links_that_rise_are_slow_first() {
    for kind in ["constant", "poisson"] {
        let text = format!(
            "episode_s = 10
            [[links]]
            [links.random]
            service = \"{kind}\"
            rate_mbps = [4, 16]
            rises_after_s = {{ share = 0.5, range = [1, 8] }}"
        );
        let world = World::new(config(&text)).expect("a valid world");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut rose = 0;
        for _ in 0..60 {
            let scenario = world.links.draw(10.0, None, &mut random).scenario;
            // Its megabits in each second.
            let carried: Vec<f64> = (0..10)
                .map(|second| {
                    let [from, to] = [second, second + 1].map(Duration::from_secs);
                    scenario.capacity_bits(from, to).expect("it has a rate") / 1e6
                })
                .collect();
            assert!((2.0..20.0).contains(&carried[9]), "{kind}: {carried:?}");
            if carried[0] < 0.6 * carried[9] {
                rose += 1;
                let second = carried.iter().position(|mbps| *mbps > 0.6 * carried[9]);
                assert!((1..=9).contains(&second.expect("it rises")), "{carried:?}");
            }
        }
        assert!((15..45).contains(&rose), "{kind}: {rose} of 60");
    }
}

#[test]
fn invalid_configurations_are_refused_naming_the_setting() {
    for (text, expected) in [
        (
            "[[links]]\nrandom = { service = \"steps\", \
             rises_after_s = { share = 1, range = [1, 2] } }",
            "links[0].random.rises_after_s goes with `service` \"constant\" or \"poisson\"",
        ),
        ("links = []", "links is empty"),
        (
            "[objective]\nkind = \"power\"\nloss = -1.0",
            "objective.loss is -1",
        ),
        (
            "[objective]\nkind = \"power\"\nshared = true\ncaused = true",
            "objective.caused and objective.shared are both true",
        ),
        (
            "[objective]\nkind = \"power\"\nbeside = { excess = nan }",
            "objective.beside.excess is NaN",
        ),
        ("[[links]]", "links[0]: give either"),
        (
            "[[links]]\nfamily = \"broad\"\nflows = { late_share = 2 }",
            "links[0].flows.late_share is 2",
        ),
        (
            "[[links]]\nscenarios = \"calibrate\"",
            "links: no set of scenarios is called `calibrate`",
        ),
        (
            "[[links]]\nscenarios = \"fast/ceiling\"",
            "the scenario `ceiling` has no rate",
        ),
        (
            "[[links]]\nrandom = { rate_mbps = [50, 2] }",
            "links[0].random.rate_mbps is 2; expected 50 to 1000",
        ),
        (
            "[[links]]\nrandom = { loss = { share = 2, range = [0.1, 0.2] } }",
            "links[0].random.loss.share is 2; expected 0 to 1",
        ),
        (
            "[[links]]\nrandom = {}\nflows = { schemes = [\"cdg\"] }",
            "links[0].flows.schemes names the scheme `cdg`; \
             the simulator has reno, cubic",
        ),
        (
            "[[links]]\nrandom = {}\nflows = { pauses = \
             { share = 2, bytes = [1, 2], think_s = [1, 2] } }",
            "links[0].flows.pauses.share is 2; expected 0 to 1",
        ),
        (
            "[[links]]\nrandom = {}\nflows = { pauses = \
             { share = 1, bytes = [9, 2], think_s = [1, 2] } }",
            "links[0].flows.pauses.bytes is 2; expected 9 to 1000000000",
        ),
        ("[[links]]\nweight = 0\nrandom = {}", "links[0].weight is 0"),
        ("episode_s = 0", "episode_s is 0"),
        ("policy = { window_ms = 0 }", "policy.window_ms is 0"),
        (
            "delay = { kind = \"fixed\", ms = -1 }",
            "delay: ms of the decision delay is -1",
        ),
    ] {
        let error = World::new(config(text)).expect_err(text).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn the_mean_rate_of_a_shifted_episode_is_that_of_its_own_time() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = dir.path().join("step.toml");
    let text = "
        [[scenario]]
        name = \"step\"
        schedule = [{ at_s = 0, rate_mbps = 2 }, { at_s = 10, rate_mbps = 20 }]
        delay_ms = 10
        queue = { packets = 50 }
    ";
    std::fs::write(&path, text).expect("a file");
    let scenarios = cc_sim::scenario::load(&path.display().to_string()).expect("a scenario");
    let scenario = Arc::new(scenarios.into_iter().next().expect("one"));
    for (begins, end, expected) in [(0, 5, 2.0), (0, 20, 11.0), (5, 15, 11.0), (12, 20, 20.0)] {
        let [from, to] = [begins, end].map(Duration::from_secs);
        let found = Truth::new(&scenario, from, to).mean_bits_per_second / 1e6;
        assert!((found - expected).abs() < 0.1, "{begins} to {end}: {found}");
    }
}

/// The critic sees the same at the beginning of an episode as at its end, where the link and the
/// flow are in the same state.
#[test]
fn the_privileged_input_knows_no_clock() {
    let mut network = network(ONE, 1);
    // The first action keeps the cwnd.
    let turns = play(&mut network, 60, |_| 0);
    let ends = turns.iter().skip(1).position(|turn| turn.first.is_some());
    let last = ends.expect("an episode of 3 s has ended");
    let settled = last / 2;
    let [early, late] = [settled, last].map(|turn| &turns[turn].privileged);
    for (one, other) in early.iter().zip(late) {
        assert!((one - other).abs() < 0.1, "{early:?} and {late:?}");
    }
}

#[test]
fn a_shifted_episode_may_begin_anywhere_in_a_trace() {
    let openings = |shift_s: f64| {
        let text = format!(
            "episode_s = 3
             delay = {{ kind = \"none\" }}
             links = [{{ scenarios = \"calibrated/mexico-california\", shift_s = {shift_s} }}]"
        );
        let turns = play(&mut network(&text, 1), 80, |_| 0);
        let firsts = turns.iter().filter(|turn| turn.first.is_some());
        firsts
            .map(|turn| turn.observation.clone())
            .collect::<Vec<_>>()
    };
    let alike = |openings: &[Vec<f32>]| {
        assert!(openings.len() >= 3, "{} episodes", openings.len());
        let same = openings.iter().filter(|other| **other == openings[0]);
        same.count()
    };
    let fixed = openings(0.0);
    let shifted = openings(40.0);
    assert!(alike(&fixed) > 1, "hosts' small delays alone change little");
    assert_eq!(alike(&shifted), 1);
}
