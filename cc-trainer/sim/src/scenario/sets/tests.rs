//! Tests of the built-in sets: what they are, and that they stay what they were.

use std::{collections::BTreeSet, time::Duration};

use super::{
    super::{Flow, Loss, Queue, Rule, Service},
    *,
};

fn set(name: &str) -> Vec<Scenario> {
    super::set(name).expect(name).scenarios().expect(name)
}

fn mean_mbps(service: &Service) -> f64 {
    service.mean_bits_per_second().expect("a limit") / 1e6
}

#[test]
fn every_set_loads_and_names_are_unique() {
    let mut names = BTreeSet::new();
    for set in SETS.iter().filter(|set| set.name != "calibrated") {
        for scenario in set.scenarios().expect(set.name) {
            assert!(!scenario.description.is_empty(), "{}", scenario.name);
            assert!(
                names.insert(scenario.name.clone()),
                "{} is there twice",
                scenario.name
            );
            let length = scenario.length(None);
            let lasts = |flow: &Flow| {
                flow.start < length / 2 && flow.stop.is_none_or(|stop| stop <= length)
            };
            assert!(scenario.flows.iter().all(lasts), "{}", scenario.name);
            assert!(!scenario.segments(length).is_empty(), "{}", scenario.name);
        }
    }
}

/// Roles, sizes, and hashes of the content. A hash changes when a set does, and figures that were
/// measured on the set before must not be compared with later ones then.
#[test]
fn sets_are_what_they_were() {
    let found: Vec<_> = SETS
        .iter()
        .map(|set| {
            let scenarios = set.scenarios().expect(set.name).len();
            let hash = set.hash().expect(set.name);
            format!("{} {} {scenarios} {}", set.name, set.role, &hash[..16])
        })
        .collect();
    let expected = [
        "calibrated test 6 9809ced91933a4ae",
        "pantheon test 18 d1a1d4166a5f8195",
        "cellular test 6 add69876f77d3992",
        "dynamic test 10 d9c7936cb9001729",
        "jitter test 3 07614ae3533b22b3",
        "fairness test 11 22e8b4563579697f",
        "fast test 5 257fe934293e2c51",
        "applications test 15 289f0a5a73238121",
        "sage-1 test 660 aaab95ed0220753d",
        "sage-2 test 125 4820be6c692f16e0",
        "sussex-intra-rtt test 30 9d2c025a722895f7",
        "sussex-inter-rtt test 27 ad80cd1d8d606a18",
        "sussex-bandwidth test 30 7a10c9c4dbbbe098",
        "sussex-friendliness test 60 2da9410addd7861e",
        "sussex-convergence test 6 2aff34399da68e21",
        "sussex-fq-codel test 6 6adcd168fc178189",
        "sussex-handover test 10 8319c759d1f976fe",
        "broad test 200 87dc8fe98a8b05e1",
        "extreme test 192 c62d15a8bc3b6c5e",
        "validation validation 236 10760a904061459d",
        "training training 236 1a5ab0e78b4a3131",
        "demo test 2 07b762445896c1f0",
    ];
    assert_eq!(found, expected);
}

/// Kinds that were added at the end left the first seventeen as they were.
#[test]
fn the_older_extreme_links_are_the_same() {
    let hash = content::set(&set("extreme")[..136]);
    assert_eq!(hash[..16], *"8ffee607b57aabef");
}

/// Rows of the benchmark's list: rates in Mbit/s, one-way delay, queue in packets.
#[test]
fn sages_sets_have_the_rows_of_its_scripts() {
    let single = set("sage-1");
    let points = |scenario: &Scenario| match &scenario.forward.service {
        Service::Rate(rate) => {
            let mbps = rate.points.iter().map(|point| point.bits_per_second / 1e6);
            (
                mbps.collect::<Vec<_>>(),
                rate.repeat.map(|time| time.as_secs()),
            )
        }
        service => panic!("{service:?}"),
    };
    for (name, rates, delay_ms, packets) in [
        ("sage-1-12-flat-5ms-q0.5", vec![12.0], 5, 5),
        ("sage-1-12-up4-10ms-q16", vec![12.0, 48.0], 10, 320),
        ("sage-1-12-down4-80ms-q1", vec![12.0, 3.0], 80, 160),
        ("sage-1-96-up2-20ms-q8", vec![96.0, 192.0], 20, 2560),
        ("sage-1-192-down2-40ms-q2", vec![192.0, 96.0], 40, 2560),
        ("sage-1-192-flat-80ms-q16", vec![192.0], 80, 40_960),
    ] {
        let scenario = single.iter().find(|scenario| scenario.name == name);
        let scenario = scenario.unwrap_or_else(|| panic!("{name}"));
        let repeat = (rates.len() > 1).then_some(14);
        assert_eq!(points(scenario), (rates, repeat), "{name}");
        assert_eq!(scenario.base_rtt().as_millis(), 2 * delay_ms, "{name}");
        assert_eq!(scenario.forward.queue.packets, Some(packets), "{name}");
        assert_eq!(scenario.forward, scenario.reverse, "{name}");
    }
    let flat = single
        .iter()
        .filter(|scenario| points(scenario).0.len() == 1);
    assert_eq!(flat.count(), 150);
    for scenario in set("sage-2") {
        assert_eq!((scenario.rule(), scenario.scored_flow()), (Rule::Share, 1));
        assert_eq!(scenario.flows[0].scheme.as_deref(), Some("cubic"));
        let segments = scenario.segments(scenario.length(None)).into_iter();
        let segments: Vec<_> = segments
            .map(|segment| (segment.start.as_secs(), segment.end.as_secs()))
            .collect();
        assert_eq!(segments, [(5, 35), (35, 65), (65, 95), (95, 120)]);
    }
}

#[test]
fn sussexs_runs_last_as_long_as_in_its_scripts() {
    let pair = super::super::load("sussex-intra-rtt/sussex-intra-200ms-q0.2").expect("there");
    assert_eq!(pair[0].length(None).as_secs(), 400);
    assert_eq!(pair[0].flows[1].start.as_secs(), 100);
    // 0.2 of 100 * 2^20 bit/s times 200 ms.
    assert_eq!(pair[0].forward.queue.bytes, Some(524_288));
    for scenario in set("sussex-friendliness") {
        let segments = scenario.segments(scenario.length(None));
        let end = scenario.length(None);
        assert_eq!(segments, [end * 3 / 4..end], "{}", scenario.name);
        assert!(scenario.flows[scenario.scored_flow()].scheme.is_none());
    }
    let four = set("sussex-convergence");
    assert_eq!(
        (four.len(), four[0].segments(four[0].length(None)).len()),
        (6, 5)
    );
}

#[test]
fn splits_share_no_link() {
    use std::collections::HashMap;
    let mut roles = HashMap::new();
    for set in SETS {
        for scenario in set.scenarios().expect(set.name) {
            let link = content::link(&scenario);
            let role = *roles.entry(link).or_insert(set.role);
            assert_eq!(role, set.role, "{}/{}", set.name, scenario.name);
        }
    }
}

#[test]
fn extreme_links_span_what_they_are_for() {
    let scenarios = set("extreme");
    let (mut rates, mut rtts, mut flows) = (Vec::new(), Vec::new(), Vec::new());
    for scenario in &scenarios {
        rates.push(mean_mbps(&scenario.forward.service));
        rtts.push(scenario.base_rtt().as_secs_f64() * 1e3);
        flows.push(scenario.flows.len());
    }
    let span = |values: &[f64]| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        (least, values.iter().copied().fold(0.0, f64::max))
    };
    let (slowest, fastest) = span(&rates);
    assert!(
        slowest < 0.3 && (700.0..=1000.0).contains(&fastest),
        "{slowest} {fastest}"
    );
    let (nearest, farthest) = span(&rtts);
    assert!(
        nearest < 0.2 && (600.0..=800.0).contains(&farthest),
        "{nearest} {farthest}"
    );
    let most = flows.iter().max();
    assert!(
        most.is_some_and(|most| (40..=64).contains(most)),
        "{most:?}"
    );
}

#[test]
fn the_calibrated_six_are_the_first_of_pantheon() {
    let pantheon = set("pantheon");
    assert_eq!(pantheon.len(), 18);
    assert_eq!(set("calibrated"), pantheon[..6]);
}

/// The table of the published experiments: name, Mbit/s of the trace, delay in ms, loss, queue
/// in packets or bytes.
#[test]
fn pantheon_has_the_numbers_of_its_table() {
    let packets = |packets| Queue {
        packets: Some(packets),
        ..Queue::default()
    };
    let bytes = |bytes| Queue {
        bytes: Some(bytes),
        ..Queue::default()
    };
    let table = [
        (
            "nepal-india",
            0.557,
            28,
            Loss::Bernoulli(0.0477),
            packets(14),
        ),
        ("mexico-california", 2.435, 88, Loss::None, packets(130)),
        ("brazil-colombia", 2.817, 130, Loss::None, packets(426)),
        ("india-india", 100.42, 27, Loss::None, packets(173)),
        (
            "korea-china",
            77.72,
            51,
            Loss::Bernoulli(0.0006),
            packets(94),
        ),
        ("california-mexico", 114.68, 45, Loss::None, packets(450)),
        ("policer-12-rtt20", 12.0, 10, Loss::None, packets(1)),
        ("policer-60-rtt20", 60.0, 10, Loss::None, packets(1)),
        ("policer-108-rtt20", 108.0, 10, Loss::None, packets(1)),
        ("policer-12-rtt100", 12.0, 50, Loss::None, packets(1)),
        ("policer-60-rtt100", 60.0, 50, Loss::None, packets(1)),
        ("policer-108-rtt100", 108.0, 50, Loss::None, packets(1)),
        ("ack-1-per-100ms", 12.0, 10, Loss::None, Queue::default()),
        ("ack-10-per-200ms", 12.0, 10, Loss::None, Queue::default()),
        ("bdp-tenth", 12.0, 30, Loss::None, bytes(9000)),
        ("bdp-third", 12.0, 30, Loss::None, bytes(30_000)),
        ("bdp-half", 12.0, 30, Loss::None, bytes(45_000)),
        ("bdp-1", 12.0, 30, Loss::None, bytes(90_000)),
    ];
    for (scenario, (name, mbps, delay_ms, loss, queue)) in set("pantheon").into_iter().zip(table) {
        assert_eq!(scenario.name, name);
        let mean = mean_mbps(&scenario.forward.service);
        assert!(
            (mean / mbps - 1.0).abs() < 0.005,
            "{name}: {mean} is not {mbps} Mbit/s"
        );
        assert_eq!(
            scenario.base_rtt(),
            Duration::from_millis(2 * delay_ms),
            "{name}"
        );
        assert_eq!(scenario.forward.loss, loss, "{name}");
        assert_eq!(scenario.forward.queue, queue, "{name}");
        assert_eq!(scenario.reverse.loss, Loss::None, "{name}");
        let (reverse_mbps, reverse_queue) = match name {
            "ack-1-per-100ms" => (0.12, Queue::default()),
            "ack-10-per-200ms" => (0.6, Queue::default()),
            policer if policer.starts_with("policer") => (mean, packets(1)),
            _ => (mean, Queue::default()),
        };
        assert!(
            (mean_mbps(&scenario.reverse.service) / reverse_mbps - 1.0).abs() < 1e-9,
            "{name}"
        );
        assert_eq!(scenario.reverse.queue, reverse_queue, "{name}");
    }
}

#[test]
fn pantheons_random_traces_have_as_many_opportunities_as_the_recorded_ones() {
    let lines = [2786, 12_177, 14_084];
    for (scenario, lines) in set("pantheon").into_iter().zip(lines) {
        let Service::Opportunities(trace) = scenario.forward.service else {
            panic!("{} has no trace", scenario.name);
        };
        assert_eq!(trace.times().len(), lines, "{}", scenario.name);
    }
}

#[test]
fn capacity_counts_the_bits_that_a_link_can_carry() {
    let capacity = |spec: &str, from, to| {
        let scenario = super::super::load(spec).expect(spec).remove(0);
        scenario
            .forward
            .service
            .capacity_bits(Duration::from_secs(from), Duration::from_secs(to))
    };
    // One packet of 12000 bits per millisecond, the first one after 1 ms.
    assert_eq!(capacity("pantheon/bdp-1", 0, 30), Some(29_999.0 * 12_000.0));
    assert_eq!(capacity("pantheon/bdp-1", 70, 71), Some(12e6));
    assert_eq!(capacity("dynamic/rate-doubles", 5, 15), Some(180e6));
    assert_eq!(capacity("dynamic/outages", 0, 30), Some(540e6));
    assert_eq!(capacity("dynamic/oscillates", 0, 4), Some(72e6));
    assert_eq!(capacity("dynamic/ramps", 0, 30), Some(600e6));
    assert_eq!(capacity("fast/ceiling", 0, 1), None);
}

#[test]
fn fairness_has_two_to_eight_flows_of_which_one_is_under_test() {
    for scenario in set("fairness") {
        assert!((2..=8).contains(&scenario.flows.len()), "{}", scenario.name);
        assert!(
            scenario.flows.iter().any(|flow| flow.scheme.is_none()),
            "{}",
            scenario.name
        );
    }
}

#[test]
fn fast_links_have_queues_of_a_bandwidth_delay_product() {
    for scenario in set("fast") {
        let Some(rate) = scenario.forward.service.mean_bits_per_second() else {
            continue;
        };
        let product = (rate * scenario.base_rtt().as_secs_f64() / 8.0).round() as u64;
        assert_eq!(
            scenario.forward.queue.bytes,
            Some(product),
            "{}",
            scenario.name
        );
    }
}
