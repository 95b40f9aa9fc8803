use std::{fs, sync::Arc, time::Duration};

use proptest::prelude::*;

use super::{
    super::{
        App, Aqm, CoDel, Delay, DelayChange, DelayVariation, Direction, Discipline, DualPi2, Flow,
        FqCoDel, Loss, Pie, Policer, Queue, Rate, RatePoint, Service, Shaper, Trace, load,
    },
    *,
};

const LEAST: &str = "[[scenario]]\nname = \"a\"\nrate_mbps = 12\ndelay_ms = 30\n";

fn parse(text: &str) -> Result<Vec<Scenario>, ScenarioError> {
    super::parse(text, Path::new("links.toml"))
}

fn one(text: &str) -> Scenario {
    let mut scenarios = parse(text).expect("a good file");
    assert_eq!(scenarios.len(), 1);
    scenarios.remove(0)
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Files that somebody may take for scenario files.
#[test]
fn foreign_files_are_answered_with_the_place_and_what_is_wanted() {
    let table = "bw_mbps,bw2_mbps,pattern\n12,24,2x-u\n";
    let error = super::parse(table, Path::new("set1.csv")).expect_err("no TOML");
    let error = error.to_string();
    assert!(error.starts_with("set1.csv:1:"), "{error}");
    assert!(error.contains("TOML with [[scenario]] tables"), "{error}");

    let trace = super::parse("1\n2\n2\n", Path::new("wired12")).expect_err("no TOML");
    assert!(trace.to_string().contains("the key `trace`"), "{trace}");

    let keys = "[[scenario]]\nname = \"a\"\nr = 12\ndelay_ms = 5\n";
    let error = super::parse(keys, Path::new("set.toml"))
        .expect_err("no key")
        .to_string();
    assert!(
        error.starts_with("set.toml:3:1: unknown field `r`, expected"),
        "{error}"
    );
    assert!(error.contains("`rate_mbps`"), "{error}");
}

#[test]
fn scores_name_flows_that_are_there_and_segments_in_order() {
    let link = "[[scenario]]\nname = \"a\"\nrate_mbps = 12\ndelay_ms = 5\nscore = ";
    for (score, expected) in [
        (
            "{ flow = 1 }",
            "5:18: there is no such flow: they are numbered from 0 to 0",
        ),
        (
            "{ rule = \"jain\" }",
            "unknown variant `jain`, expected one of `power`, `share`",
        ),
        (
            "{ segments_s = [[3, 1]] }",
            "segments are [from, to] in seconds",
        ),
        ("{ segments_s = [[0, 3], [2, 5]] }", "one after the other"),
        ("{ segment_s = [[0, 3]] }", "unknown field `segment_s`"),
    ] {
        let text = format!("{link}{score}");
        let error = super::parse(&text, Path::new("set.toml"))
            .expect_err(score)
            .to_string();
        assert!(error.contains(expected), "{score}: {error}");
    }
}

#[test]
fn the_smallest_scenario_has_a_name_a_rate_and_a_delay() {
    let scenario = one(LEAST);
    let direction = Direction {
        policer: None,
        queue: Queue::default(),
        service: Service::Rate(Rate::constant(12e6)),
        loss: Loss::None,
        aggregation: None,
        delay: Delay {
            base: ms(30),
            changes: vec![],
            variation: None,
            jitter: Duration::ZERO,
        },
    };
    assert_eq!(scenario.name, "a");
    assert_eq!(scenario.forward, direction);
    assert_eq!(scenario.reverse, direction);
    assert_eq!(scenario.flows, [Flow::default()]);
    assert_eq!(scenario.base_rtt(), ms(60));
}

#[test]
fn every_key_sets_its_part_of_the_scenario() {
    let scenario = one(r#"
        [[scenario]]
        name = "all"
        description = "everything"
        schedule = [{ at_s = 0, rate_mbps = 10, ramp = true }, { at_s = 1.5, rate_mbps = 0 }]
        repeat_s = 2
        delay_ms = 20.5
        delay_changes = [{ at_s = 3, delay_ms = 40 }]
        jitter_ms = 0.5
        loss = { to_bad = 0.01, to_good = 0.25, bad = 0.5 }
        queue = { packets = 10, bytes = 9000, drop = "head", ce_threshold_ms = 2.5 }
        policer = { rate_mbps = 8, burst_bytes = 30000 }
        aggregation_ms = 5

        [scenario.reverse]
        rate_mbps = inf
        delay_ms = 10
        loss = 0.02
        queue = { packets = 7 }

        [[scenario.flow]]
        start_s = 1
        stop_s = 20
        scheme = "cubic"
        extra_delay_ms = 15

        [[scenario.flow]]
        "#);
    let points = vec![
        RatePoint {
            at: ms(0),
            bits_per_second: 10e6,
            ramp: true,
        },
        RatePoint {
            at: ms(1500),
            bits_per_second: 0.0,
            ramp: false,
        },
    ];
    let forward = Direction {
        policer: Some(Policer {
            bits_per_second: 8e6,
            burst: 30_000,
        }),
        queue: Queue {
            packets: Some(10),
            bytes: Some(9000),
            discipline: Discipline::DropHead,
            ce_threshold: Some(Duration::from_micros(2_500)),
            aqm: None,
        },
        service: Service::Rate(Rate {
            points,
            repeat: Some(ms(2000)),
        }),
        loss: Loss::GilbertElliott {
            to_bad: 0.01,
            to_good: 0.25,
            good: 0.0,
            bad: 0.5,
        },
        aggregation: Some(ms(5)),
        delay: Delay {
            base: Duration::from_micros(20_500),
            changes: vec![DelayChange {
                at: ms(3000),
                delay: ms(40),
            }],
            variation: None,
            jitter: Duration::from_micros(500),
        },
    };
    let reverse = Direction {
        policer: None,
        queue: Queue {
            packets: Some(7),
            ..Queue::default()
        },
        service: Service::Unlimited,
        loss: Loss::Bernoulli(0.02),
        aggregation: None,
        // It has its own delay, so the changes of the forward direction do not apply.
        delay: Delay {
            base: ms(10),
            changes: vec![],
            variation: None,
            jitter: Duration::ZERO,
        },
    };
    let flow = Flow {
        start: ms(1000),
        stop: Some(ms(20_000)),
        scheme: Some("cubic".to_owned()),
        extra_delay: ms(15),
        app: App::Bulk,
    };
    assert_eq!(scenario.description, "everything");
    assert_eq!(scenario.forward, forward);
    assert_eq!(scenario.reverse, reverse);
    assert_eq!(scenario.flows, [flow, Flow::default()]);
}

#[test]
fn the_reverse_direction_inherits_rate_and_delay_only() {
    let scenario = one(&format!(
        "{LEAST}delay_changes = [{{ at_s = 1, delay_ms = 9 }}]\njitter_ms = 2\nloss = 0.1\n\
         queue = {{ packets = 3 }}\n\
         policer = {{ rate_mbps = 3, burst_bytes = 3000 }}\naggregation_ms = 4"
    ));
    assert_eq!(scenario.reverse.service, scenario.forward.service);
    assert_eq!(scenario.reverse.delay.base, ms(30));
    assert_eq!(
        scenario.reverse.delay.changes,
        [DelayChange {
            at: ms(1000),
            delay: ms(9)
        }]
    );
    assert_eq!(scenario.reverse.delay.jitter, Duration::ZERO);
    assert_eq!(scenario.reverse.loss, Loss::None);
    assert_eq!(scenario.reverse.queue, Queue::default());
    assert_eq!(
        (scenario.reverse.policer, scenario.reverse.aggregation),
        (None, None)
    );
}

#[test]
fn active_queue_management_has_linuxs_defaults() {
    let queue = |keys: &str| one(&format!("{LEAST}queue = {{ {keys} }}")).forward.queue;
    let limit = |packets| Queue {
        packets: Some(packets),
        ..Queue::default()
    };
    let managed = |packets, aqm| Queue {
        aqm: Some(aqm),
        ..limit(packets)
    };
    for (name, packets, aqm, marks) in [
        ("codel", 1_000, Aqm::CoDel(CoDel::default()), false),
        ("fq_codel", 10_240, Aqm::FqCoDel(FqCoDel::default()), true),
        ("pie", 1_000, Aqm::Pie(Pie::default()), false),
        ("dualpi2", 10_000, Aqm::DualPi2(DualPi2::default()), true),
    ] {
        let keys = format!("aqm = \"{name}\"");
        assert_eq!(queue(&keys), managed(packets, aqm), "{name}");
        assert_eq!(
            one(&format!("{LEAST}queue = {{ {keys} }}")).marks(),
            marks,
            "{name}"
        );
        // A limit replaces the default one, whatever it counts.
        let bytes = queue(&format!("{keys}, bdp = 2"));
        assert_eq!(
            (bytes.packets, bytes.bytes),
            (None, Some(180_000)),
            "{name}"
        );
    }
}

#[test]
fn every_key_of_active_queue_management_sets_its_part() {
    let queue = |keys: &str| {
        one(&format!("{LEAST}queue = {{ packets = 9, {keys} }}"))
            .forward
            .queue
    };
    let codel = CoDel {
        target: ms(2),
        interval: ms(30),
        ecn: true,
    };
    let with = queue("aqm = \"codel\", target_ms = 2, interval_ms = 30, ecn = true");
    assert_eq!((with.packets, with.aqm), (Some(9), Some(Aqm::CoDel(codel))));
    let with = queue(
        "aqm = \"fq_codel\", target_ms = 2, interval_ms = 30, quantum = 300, queues = 8, \
         ce_threshold_ms = 1",
    );
    assert_eq!(with.ce_threshold, Some(ms(1)));
    let fq_codel = FqCoDel {
        codel,
        quantum: 300,
        queues: 8,
    };
    assert_eq!(with.aqm, Some(Aqm::FqCoDel(fq_codel)));
    let with = queue("aqm = \"pie\", target_ms = 20, update_ms = 30, ecn = true");
    let pie = Pie {
        target: ms(20),
        update: ms(30),
        ecn: true,
    };
    assert_eq!(with.aqm, Some(Aqm::Pie(pie)));
    let with = queue(
        "aqm = \"dualpi2\", target_ms = 20, update_ms = 30, step_ms = 2, coupling = 3, \
         classic_percent = 20",
    );
    let dualpi2 = DualPi2 {
        target: ms(20),
        update: ms(30),
        step: ms(2),
        coupling: 3,
        classic_percent: 20,
    };
    assert_eq!(with.aqm, Some(Aqm::DualPi2(dualpi2)));
}

#[test]
fn a_shaper_is_the_rate_of_a_link() {
    let text = "[[scenario]]\nname = \"a\"\ndelay_ms = 30\nqueue = { bdp = 1 }\n\
                shaper = { rate_mbps = 12, burst_bytes = 30_000, peak_mbps = 50 }";
    let scenario = one(text);
    let shaper = Service::Shaper(Shaper {
        bits_per_second: 12e6,
        burst: 30_000,
        peak_bits_per_second: Some(50e6),
    });
    assert_eq!(scenario.forward.service, shaper);
    assert_eq!(scenario.reverse.service, shaper);
    assert_eq!(scenario.forward.queue.bytes, Some(90_000));
    assert_eq!(shaper.capacity_bits(ms(500), ms(1_500)), Some(12e6));
}

#[test]
fn the_variation_of_the_delay_is_that_of_the_other_direction_too() {
    let text = format!("{LEAST}delay_variation = {{ spread_ms = 8, drift_ms = 2, seed = 3 }}");
    let variation = Some(DelayVariation {
        every: ms(15_000),
        spread: ms(8),
        drift: ms(2),
        seed: 3,
    });
    let scenario = one(&text);
    assert_eq!(scenario.forward.delay.variation, variation);
    assert_eq!(scenario.reverse.delay.variation, variation);
    let own = one(&format!("{text}\n[scenario.reverse]\ndelay_ms = 5"));
    assert_eq!(own.reverse.delay.variation, None);
    let own = one(&format!(
        "{text}\n[scenario.reverse]\ndelay_variation = {{ every_s = 7, spread_ms = 1 }}"
    ));
    let other = DelayVariation {
        every: ms(7_000),
        spread: ms(1),
        drift: Duration::ZERO,
        seed: 1,
    };
    assert_eq!(own.reverse.delay.variation, Some(other));
}

#[test]
fn a_queue_of_bdp_counts_mean_rate_and_both_delays() {
    let bytes = |text: &str| one(text).forward.queue.bytes;
    assert_eq!(
        bytes(&format!("{LEAST}queue = {{ bdp = 1 }}")),
        Some(90_000)
    );
    assert_eq!(
        bytes(&format!("{LEAST}queue = {{ bdp = 0.001 }}")),
        Some(1500),
        "a packet at least"
    );
    assert_eq!(
        bytes(&format!(
            "{LEAST}queue = {{ bdp = 1 }}\n[scenario.reverse]\ndelay_ms = 10"
        )),
        Some(60_000)
    );
    let scheduled = "[[scenario]]\nname = \"a\"\ndelay_ms = 30\nqueue = { bdp = 2 }\nrepeat_s = 2\n\
                     schedule = [{ at_s = 0, rate_mbps = 6 }, { at_s = 1, rate_mbps = 18 }]";
    assert_eq!(bytes(scheduled), Some(180_000));
}

#[test]
fn a_trace_is_a_regular_file_of_bounded_size() {
    let text = "[[scenario]]\nname = \"a\"\ntrace = \"/dev/zero\"\ndelay_ms = 30\n";
    let folder = tempfile::tempdir().expect("a scratch directory");
    let file = folder.path().join("links.toml");
    fs::write(&file, text).expect("the scratch directory takes files");
    let spec = file.to_str().expect("a path in UTF-8");
    let error = load(spec).expect_err("endless").to_string();
    assert!(error.contains("it is a character device"), "{error}");
    let large = folder.path().join("large.trace");
    let sparse = fs::File::create(&large).expect("the scratch directory takes files");
    sparse.set_len(1 << 40).expect("a sparse file");
    fs::write(&file, text.replace("/dev/zero", "large.trace")).expect("it is ours");
    let error = load(spec).expect_err("too large").to_string();
    assert!(error.contains("shorten the trace (it loops)"), "{error}");
}

#[test]
fn the_path_of_a_trace_is_relative_to_the_file() {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let file = folder.path().join("links.toml");
    let text = "[[scenario]]\nname = \"a\"\ntrace = \"some.trace\"\ndelay_ms = 30\n";
    fs::write(&file, text).expect("the scratch directory takes files");
    let spec = file.to_str().expect("a path in UTF-8");

    let missing = load(spec).expect_err("no trace yet").to_string();
    assert!(
        missing.contains("links.toml:3:9: cannot read the trace"),
        "{missing}"
    );
    fs::write(folder.path().join("some.trace"), "1\n5\n3\n")
        .expect("the scratch directory takes files");
    let bad = load(spec).expect_err("a bad trace").to_string();
    assert!(
        bad.contains("links.toml:3:9: the trace cannot be used: "),
        "{bad}"
    );
    assert!(bad.contains("some.trace:3: 3 ms comes after 5 ms"), "{bad}");
    fs::write(folder.path().join("some.trace"), "1\n5\n")
        .expect("the scratch directory takes files");
    for spec in [spec.to_owned(), format!("{spec}/a"), format!("{spec}/0")] {
        let scenarios = load(&spec).expect("a good file");
        let trace = Trace::from_times(vec![1, 5]).expect("a good trace");
        assert_eq!(
            scenarios[0].forward.service,
            Service::Opportunities(Arc::new(trace))
        );
    }
}

#[test]
fn every_fault_names_file_line_and_remedy() {
    let with = |line: &str| format!("{LEAST}{line}\n");
    let without_rate = |line: &str| format!("[[scenario]]\nname = \"a\"\ndelay_ms = 30\n{line}\n");
    let flows = "[[scenario.flow]]\n".repeat(MAX_FLOWS + 1);
    for (text, line, expected) in [
        (
            String::new(),
            1,
            "there is no scenario: add a [[scenario]] table",
        ),
        ("# nothing\n".to_owned(), 1, "there is no scenario: add"),
        ("[[scenario]\n".to_owned(), 1, ""),
        (
            LEAST.replace("delay_ms = 30", "delay = 30"),
            4,
            "unknown field `delay`, expected one of `name`",
        ),
        (
            LEAST.replace("delay_ms = 30", "delay_ms = \"30\""),
            4,
            "invalid type: string \"30\", expected f64",
        ),
        (
            LEAST.replace("delay_ms = 30\n", ""),
            2,
            "the scenario has no delay: add delay_ms",
        ),
        (
            LEAST.replace("name = \"a\"\n", ""),
            1,
            "missing field `name`",
        ),
        (
            LEAST.replace("30", "-1"),
            4,
            "a number of milliseconds from 0 to 60000 is wanted here, not -1",
        ),
        (
            LEAST.replace("30", "nan"),
            4,
            "a number of milliseconds from 0 to 60000 is wanted here, not NaN",
        ),
        (
            LEAST.replace("12", "0"),
            3,
            "a rate in Mbit/s from 0.001 to 100000 is wanted here, not 0 (inf is",
        ),
        (
            LEAST.replace("12", "1e300"),
            3,
            "a rate in Mbit/s from 0.001",
        ),
        (
            LEAST.replace("\"a\"", "\"a/b\""),
            2,
            "`a/b` cannot be a name: use 1 to 64 letters",
        ),
        (LEAST.replace("\"a\"", "\"\""), 2, "`` cannot be a name"),
        (
            format!("{LEAST}{LEAST}"),
            6,
            "`a` is also the name of the scenario at line 2: rename one",
        ),
        (
            without_rate(""),
            2,
            "the scenario has no rate: add rate_mbps",
        ),
        (
            with("trace = \"x\""),
            5,
            "both `rate_mbps` and `trace` give the link's rate: keep one",
        ),
        (
            with("repeat_s = 3"),
            5,
            "`repeat_s` repeats a `schedule`, which is missing",
        ),
        (
            with("loss = 1.5"),
            5,
            "a probability from 0 to 1 is wanted here, not 1.5",
        ),
        (
            with("loss = 2"),
            5,
            "a probability from 0 to 1 is wanted here, not 2",
        ),
        (
            with("loss = { to_bad = 7, to_good = 1 }"),
            5,
            "a probability from 0 to 1",
        ),
        (with("loss = { to_bad = 1 }"), 5, "missing field `to_good`"),
        (
            with("loss = true"),
            5,
            "invalid type: boolean `true`, expected a probability, or a table",
        ),
        (
            with("queue = { packets = 0 }"),
            5,
            "a number of packets from 1 to 100000000 is wanted here, not 0",
        ),
        (
            with("queue = { bytes = 100 }"),
            5,
            "a number of bytes (a full packet at least) from 1500",
        ),
        (
            with("queue = { bytes = 1e9 }"),
            5,
            "invalid type: floating point",
        ),
        (with("queue = {}"), 5, "`queue` has no limit: add"),
        (
            with("queue = { bdp = 1, ce_threshold_ms = -1 }"),
            5,
            "a number of milliseconds from 0 to 60000",
        ),
        (
            with("queue = { bdp = 1, packets = 3 }"),
            5,
            "`bdp` is the limit in bytes: give it alone",
        ),
        (
            with("queue = { packet = 3 }"),
            5,
            "unknown field `packet`, expected one of `packets`",
        ),
        (
            with("queue = { packets = 3, drop = \"middle\" }"),
            5,
            "unknown variant `middle`, expected `head` or `tail`",
        ),
        (
            with("queue = { aqm = \"red\" }"),
            5,
            "unknown variant `red`, expected one of `codel`, `fq_codel`, `pie`, `dualpi2`",
        ),
        (
            with("queue = { aqm = \"codel\", quantum = 300 }"),
            5,
            "`quantum` is no key of a `codel` queue, which has target_ms, interval_ms, ecn",
        ),
        (
            with("queue = { aqm = \"pie\", drop = \"head\" }"),
            5,
            "`drop` is no key of a `pie` queue, which has target_ms, update_ms, ecn: remove it",
        ),
        (
            with("queue = { packets = 9, target_ms = 5 }"),
            5,
            "`target_ms` is a key of a queue with active queue management: add `aqm` (codel,",
        ),
        (
            with("queue = { aqm = \"codel\", target_ms = 100 }"),
            5,
            "the target of 100 ms is not below the interval of 100 ms, which is to be a long RTT",
        ),
        (
            with("queue = { aqm = \"fq_codel\", interval_ms = 3 }"),
            5,
            "the target of 5 ms is not below the interval of 3 ms",
        ),
        (
            with("queue = { aqm = \"codel\", target_ms = -1 }"),
            5,
            "a number of milliseconds from 0.001 to 60000 is wanted here, not -1",
        ),
        (
            with("queue = { aqm = \"codel\", target_ms = nan }"),
            5,
            "a number of milliseconds from 0.001 to 60000 is wanted here, not NaN",
        ),
        (
            with("queue = { aqm = \"fq_codel\", quantum = 0 }"),
            5,
            "a number of bytes (the quantum) from 256",
        ),
        (
            with("queue = { aqm = \"fq_codel\", queues = 0 }"),
            5,
            "a number of queues from 1 to 65536",
        ),
        (
            with("queue = { aqm = \"dualpi2\", coupling = 0 }"),
            5,
            "a coupling factor from 1 to 32",
        ),
        (
            with("queue = { aqm = \"dualpi2\", classic_percent = 100 }"),
            5,
            "a share in percent from 1 to 99",
        ),
        (
            without_rate("rate_mbps = inf\nqueue = { aqm = \"codel\" }"),
            5,
            "nothing waits for an unlimited link, so `codel` has nothing to manage: give the link",
        ),
        (
            without_rate("shaper = { rate_mbps = 12, burst_bytes = 3000, peak_mbps = 12 }"),
            4,
            "the peak rate must be above the rate of 12 Mbit/s: raise `peak_mbps`",
        ),
        (
            without_rate("shaper = { rate_mbps = 12, burst_bytes = 1000 }"),
            4,
            "a number of bytes (a full packet at least) from 1500",
        ),
        (
            with("shaper = { rate_mbps = 12, burst_bytes = 3000 }"),
            5,
            "both `rate_mbps` and `shaper` give the link's rate",
        ),
        (
            with("delay_variation = { drift_ms = 3 }"),
            5,
            "missing field `spread_ms`",
        ),
        (
            with("delay_variation = { every_s = 0, spread_ms = 3 }"),
            5,
            "a number of seconds from 0.001",
        ),
        (
            without_rate("rate_mbps = inf\nqueue = { bdp = 1 }"),
            5,
            "an unlimited link has no bandwidth-delay product",
        ),
        (
            without_rate("schedule = []"),
            4,
            "the `schedule` never carries anything",
        ),
        (
            without_rate("schedule = [{ at_s = 0, rate_mbps = 0 }]"),
            4,
            "the `schedule` never carries anything",
        ),
        (
            without_rate("schedule = [{ at_s = 1, rate_mbps = 2 }]"),
            4,
            "the first point of a `schedule` must be at_s = 0",
        ),
        (
            without_rate(
                "schedule = [\n{ at_s = 0, rate_mbps = 2 },\n{ at_s = 0, rate_mbps = 3 }]",
            ),
            6,
            "the times of a `schedule` must ascend: sort the points",
        ),
        (
            without_rate(
                "schedule = [{ at_s = 0, rate_mbps = 2 }, { at_s = 3, rate_mbps = 3 }]\n\
                 repeat_s = 3",
            ),
            5,
            "`repeat_s` must be later than the last point",
        ),
        (
            without_rate("schedule = [{ at_s = 0, rate_mbps = 2, ramp = true }]"),
            4,
            "the last point has nowhere to ramp to: add a point",
        ),
        (
            without_rate("opportunities = { every_ms = 3 }"),
            4,
            "`opportunities` takes either `every_ms` and `packets`",
        ),
        (
            without_rate("opportunities = { mbps = 3, packets = 1 }"),
            4,
            "`opportunities` takes either",
        ),
        (
            without_rate("poisson = { mbps = 3, seconds = 9, ramp_s = 9 }"),
            4,
            "the ramp of 9 s fills the trace of 9 s",
        ),
        (
            without_rate("cellular = { mbps = 3, outage_share = 1 }"),
            4,
            "a share of the time from 0 to 0.95",
        ),
        (
            with("delay_changes = [{ at_s = 0, delay_ms = 3 }]"),
            5,
            "the times of `delay_changes` must ascend",
        ),
        (
            with("[scenario.reverse]\nname = \"b\""),
            6,
            "unknown field `name`",
        ),
        (
            with("[[scenario.flow]]\nstart_s = 3\nstop_s = 3"),
            7,
            "the flow stops before it starts: make `stop_s`",
        ),
        (
            with("[[scenario.flow]]\nscheme = \"a,b\""),
            6,
            "`a,b` is no scheme",
        ),
        (
            with(&flows),
            5 + MAX_FLOWS,
            "a scenario has at most 64 flows",
        ),
        (
            with("[[scenario.flow]]\napp = \"bulky\""),
            6,
            "unknown variant `bulky`, expected one of `bulk`, `on-off`",
        ),
        (
            with("[[scenario.flow]]\napp = \"video\""),
            6,
            "a `video` application needs `bitrates_mbps`: add it",
        ),
        (
            with("[[scenario.flow]]\napp = 3"),
            6,
            "invalid type: integer `3`, expected the name of an application, or a table",
        ),
        (
            with("[[scenario.flow]]\napp = { kind = \"bulk\", bytes = 3 }"),
            6,
            "a `bulk` application has no keys: remove `bytes`",
        ),
        (
            with("[scenario.flow.app]\nkind = \"video\"\nthink_ms = 3").replace(
                "[scenario.flow.app]",
                "[[scenario.flow]]\n[scenario.flow.app]",
            ),
            8,
            "`think_ms` is no key of a `video` application, which has bitrates_mbps, chunk_s",
        ),
        (
            with("[[scenario.flow]]\napp = { kind = \"request-response\", bytes = 0 }"),
            6,
            "a number of bytes from 1 to 4294967296 is wanted here, not 0",
        ),
        (
            with("[[scenario.flow]]\napp = { kind = \"request-response\", bytes = [] }"),
            6,
            "the list of sizes is empty: add one",
        ),
        (
            with(
                "[[scenario.flow]]\napp = { kind = \"script\", repeat = true, steps = [{ bytes = 1 \
                 }] }",
            ),
            6,
            "the repeated steps take no time: add",
        ),
        (
            with("[[scenario.flow]]\napp = { kind = \"script\", steps = [{ pause_s = 1 }] }"),
            6,
            "the script writes nothing: add a step",
        ),
        (
            with(
                "[[scenario.flow]]\napp = { kind = \"script\", steps = [\n{ bytes = 1, pause_s = 1 \
                 }] }",
            ),
            7,
            "a step is { pause_s }, { bytes }, or",
        ),
        (
            with(
                "[[scenario.flow]]\napp = { kind = \"short-flows\", load = 0.5, sizes = { pareto = \
                 1 } }",
            ),
            6,
            "`sizes` is { pareto, least_bytes, most_bytes } or",
        ),
        (
            without_rate(
                "rate_mbps = inf\n[[scenario.flow]]\napp = { kind = \"short-flows\", load = 0.5, \
                 sizes = { pareto = 1, least_bytes = 3, most_bytes = 9 } }",
            ),
            6,
            "an unlimited link has no load: give `per_s`",
        ),
        (
            with("[[scenario.flow]]\napp = { kind = \"short-flows\", load = 0.5 }"),
            6,
            "a `short-flows` application needs `sizes`: add it",
        ),
        (
            with(
                "[[scenario.flow]]\napp = { kind = \"video\", bitrates_mbps = [1], chunk_s = 4, \
                 buffer_s = 3 }",
            ),
            6,
            "the buffer holds less than a chunk: make `buffer_s`",
        ),
    ] {
        let message = parse(&text).expect_err(&text).to_string();
        let place = format!("links.toml:{line}:");
        let rest = message
            .strip_prefix(&place)
            .unwrap_or_else(|| panic!("not at line {line}: {message}\n{text}"));
        let (column, rest) = rest.split_once(": ").expect("a column");
        assert!(
            column.parse::<usize>().is_ok_and(|column| column > 0),
            "{message}"
        );
        assert!(rest.starts_with(expected), "{message}\n{text}");
    }
}

proptest! {
    #[test]
    fn any_text_is_parsed_without_panicking(
        key in "(rate_mbps|delay_ms|loss|queue|schedule|repeat_s|flow|reverse|delay_changes|\
                policer|shaper|delay_variation|\\PC{0,5})",
        value in "(-?[0-9]{1,20}|-?[0-9]e[0-9]{1,3}|inf|-inf|nan|\\[\\{at_s = -?[0-9], \
                  (rate_mbps|delay_ms) = [0-9]\\}\\]|\\PC{0,12})",
    ) {
        let _ = parse(&format!("{LEAST}{key} = {value}\n"));
        let _ = parse(&format!("[[scenario]]\nname = \"a\"\ndelay_ms = 1\n{key} = {value}\n"));
    }
}
