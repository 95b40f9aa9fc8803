//! Tests that record simulated flows and read them back as trajectories and as a timeline.

use std::{collections::BTreeMap, fs, path::Path};

use arrow_array::{
    Array, ArrayRef, Float64Array, UInt64Array,
    cast::AsArray,
    types::{Float32Type, Float64Type, Int32Type, UInt32Type, UInt64Type},
};
use cc_core::{
    interface::Interface,
    objective::Measured,
    policy::{Choice, Query, State},
    reward::Terms,
    rows::{AddressForm, Decided, FileHeader, Row},
};
use cc_ebpf::Startup;
use cc_recording::{FileWriter, read};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tempfile::TempDir;

use super::{
    features::names,
    timeline::{self, TimelineDirectory, TimelineSettings},
    *,
};
use cc_sim::{
    scenario,
    sim::{
        Control, Simulation,
        agent::{AgentDelay, SenderMode, SimulatedAgent},
        control::learned::Learned,
    },
};

/// The probabilities of the actions, given the query.
pub(crate) type Shares<'a> = &'a dyn Fn(&Query) -> Vec<f32>;

pub(crate) fn header(interface: &Interface, policy: &str) -> FileHeader {
    FileHeader {
        interface: interface.clone(),
        policy: policy.to_owned(),
        policy_metadata: None,
        server: None,
        agent_version: "0.1.0".to_owned(),
        kernel: "6.12.0".to_owned(),
        host: BTreeMap::new(),
        started_ns: 1_795_000_000_000_000_000,
        utc_offset_ns: 1_700_000_000_000_000_000,
        addresses: AddressForm::Absent,
    }
}

/// Records `flows` flows, numbered from `first`, to one file. Each is alone on a link of 12 Mbit/s
/// for `seconds` seconds. Probabilities are recorded if `known` is set.
pub(crate) fn record(
    path: &Path,
    interface: &Interface,
    first: u64,
    flows: u64,
    seconds: u64,
    known: bool,
    shares: Shares<'_>,
) {
    let link =
        "[[scenario]]\nname = \"link\"\nrate_mbps = 12\ndelay_ms = 10\nqueue = { bdp = 3 }\n";
    let link = &scenario::parse(link, Path::new(".")).expect("a valid scenario")[0];
    let mut writer = FileWriter::create(path, header(interface, "softmax")).expect("a new file");
    let mut rows = Vec::new();
    for flow in first..first + flows {
        let settings = Learned::settings(interface, Startup::SlowStart);
        let control = Control::Learned(Box::new(Learned::new(settings)));
        let simulation = Simulation::new(link, vec![control], flow);
        let delay = AgentDelay::Fixed { ms: 2.0 };
        let mut served = SimulatedAgent::new(
            simulation,
            interface.clone(),
            delay,
            SenderMode::Asynchronous,
            1,
        );
        let mut random = StdRng::seed_from_u64(flow);
        let mut sequence = 0;
        while let Some(asked) = served.next(seconds * 1_000_000_000) {
            let shares = shares(&asked.query);
            let mut left = random.random::<f32>();
            let action = shares.iter().position(|share| {
                left -= share;
                left < 0.0
            });
            let action = action.unwrap_or(shares.len() - 1);
            let base_cwnd = asked.query.cwnd;
            for (place, window) in asked.windows.iter().enumerate() {
                let newest = place + 1 == asked.windows.len();
                let terms = Terms::of(window, &interface.reward);
                let decision = newest.then(|| Decided {
                    action: Some(action as u8),
                    probability: known.then(|| shares[action]),
                    probabilities: known.then(|| shares.clone()),
                    base_cwnd,
                    cwnd: interface.actions.apply(action, base_cwnd, interface.cwnd),
                    delay_ns: Some(2_000_000),
                });
                rows.push(Row {
                    flow,
                    sequence,
                    window: *window,
                    path: None,
                    initial_cwnd_bytes: 14_480,
                    decision,
                    terms,
                    reward: terms.reward(&interface.reward) as f32,
                    end: false,
                    local: None,
                    remote: None,
                    cgroup: 0,
                    cookie: 0,
                    netns: 0,
                });
                sequence += 1;
            }
            let choice = Choice::Action {
                index: action,
                probability: shares[action],
            };
            served.answer(choice, State::default());
        }
        rows.last_mut().expect("some windows").end = true;
    }
    // Interleaved, as an agent that serves all of them would record them.
    rows.sort_by_key(|row| row.window.header.time_ns);
    for group in rows.chunks(1_000) {
        writer.write(group).expect("there is space");
    }
    writer.finish().expect("there is space");
}

pub(crate) fn interface() -> Interface {
    Interface {
        history: 2,
        ..Interface::default()
    }
}

fn uniform(_: &Query) -> Vec<f32> {
    vec![0.2; 5]
}

fn rows_of(path: &Path) -> Vec<Row> {
    let (_, rows) = read(path).expect("a recording");
    rows.collect::<Result<_, _>>().expect("sound")
}

/// Writes a copy of a recording with some rows changed.
fn rewrite(from: &Path, to: &Path, change: impl FnOnce(&mut Vec<Row>)) {
    let mut rows = rows_of(from);
    change(&mut rows);
    let (header, _) = read(from).expect("a recording");
    let mut writer = FileWriter::create(to, header).expect("a new file");
    writer.write(&rows).expect("there is space");
    writer.finish().expect("there is space");
}

fn trajectories(paths: &[PathBuf], bytes: u64) -> Result<Vec<Trajectory>, DatasetError> {
    let scratch = TempDir::new().expect("a scratch directory");
    let partitions = Recordings::open(paths)?.partition(scratch.path(), bytes, &|_| {})?;
    let mut all = Vec::new();
    for index in 0..partitions.len() {
        partitions.visit(index, |trajectory| {
            all.push(trajectory);
            Ok(())
        })?;
    }
    all.sort_by_key(|trajectory| (trajectory.flow, trajectory.steps[0].sequence));
    Ok(all)
}

/// A setting that is left out where it is off differs from one that is on, in both directions.
#[test]
fn masks_are_a_difference_of_interfaces() {
    let masked = Interface {
        mask_actions: true,
        ..interface()
    };
    assert_eq!(differences(&interface(), &interface()), [""; 0]);
    assert_eq!(differences(&masked, &masked), [""; 0]);
    let found = differences(&interface(), &masked);
    assert_eq!(found, ["mask_actions: true, not null"]);
    let found = differences(&masked, &interface());
    assert_eq!(found, ["mask_actions: null, not true"]);
}

#[test]
fn every_decision_is_read_back_with_its_outcome() {
    let directory = TempDir::new().expect("a scratch directory");
    let (a, b) = (
        directory.path().join("a.parquet"),
        directory.path().join("b.parquet"),
    );
    record(&a, &interface(), 0, 3, 4, true, &uniform);
    record(&b, &interface(), 3, 2, 4, true, &uniform);
    // The size of the partitions makes no difference.
    let all = trajectories(&[directory.path().to_owned()], 1 << 30).expect("sound");
    assert_eq!(
        all,
        trajectories(&[b.clone(), a.clone()], 20_000).expect("sound")
    );
    assert_eq!(all.len(), 5);

    let mut rows = rows_of(&a);
    rows.extend(rows_of(&b));
    for trajectory in &all {
        assert!(trajectory.ended && trajectory.steps.len() > 30);
        let own: Vec<_> = rows
            .iter()
            .filter(|row| row.flow == trajectory.flow)
            .collect();
        let mut replay = cc_core::rows::Replay::new();
        let mut steps = trajectory.steps.iter();
        let mut previous: Option<(&TrajectoryStep, Vec<&Row>)> = None;
        for row in own {
            let observation = replay.next(&interface(), row);
            if let Some((_, after)) = &mut previous {
                after.push(row);
            }
            let Some(decision) = &row.decision else {
                continue;
            };
            let step = steps.next().expect("a step for every decision");
            assert_eq!(step.observation, observation);
            assert_eq!(Some(step.action), decision.action);
            assert_eq!(step.probability, decision.probability);
            if let Some((step, after)) = previous.take() {
                let outcome = step.outcome.expect("something followed");
                assert_eq!(outcome.windows as usize, after.len());
                let windows = after.iter().map(|row| Measured::of(&row.window));
                let windows = windows.fold(Measured::default(), |sum, own| sum + own);
                let waited = outcome.measured.ns - windows.ns;
                assert_eq!(outcome.measured, windows + Measured::silence(waited));
                // The agent closes a window 5 ms after its end; the ACK may take another moment.
                assert!(waited < 100_000_000, "{waited}");
                let mbps = windows.acked_bytes as f64 * 8e-6 / outcome.seconds;
                assert!((outcome.terms[0] - mbps).abs() < 1e-9);
                let reward = interface().objective().value(&outcome.measured);
                assert_eq!(outcome.reward, reward as f32);
                assert_eq!(step.delay_ns, Some(2_000_000));
                assert!(step.taken_after_ns.is_some_and(|ns| ns < 100_000_000));
            }
            previous = Some((step, Vec::new()));
        }
        assert!(steps.next().is_none());
    }
}

#[test]
fn all_parts_of_a_flow_have_its_path_its_directory_and_the_hour_in_which_it_began() {
    let directory = TempDir::new().expect("a scratch directory");
    let whole = directory.path().join("whole.parquet");
    record(&whole, &interface(), 0, 3, 4, true, &uniform);
    let hosts = ["one", "other"].map(|host| directory.path().join(host));
    for (host, number) in hosts.iter().zip(0..) {
        fs::create_dir(host).expect("a new directory");
        rewrite(&whole, &host.join("part.parquet"), |rows| {
            for row in rows.iter_mut() {
                let address = format!("192.0.{}.{}:4{number}", row.flow.min(1), row.flow);
                row.remote = (row.flow > 0 || number == 0).then(|| address.into());
                row.flow += 3 * number;
            }
            // The first flow goes on after a gap.
            let gap = rows
                .iter()
                .position(|row| row.flow == 3 * number && row.sequence == 10);
            rows.remove(gap.expect("a row"));
        });
    }
    let all = trajectories(&hosts, 1 << 30).expect("sound");
    assert!(all.len() >= 8, "two flows have two parts");
    let (header, _) = read(&whole).expect("a recording");
    let began = header.time_ns(&rows_of(&whole)[0]);
    let of = |flow: u64| {
        let mut origins = all
            .iter()
            .filter(|own| own.flow == flow)
            .map(|own| own.origin);
        let first = origins.next().expect("a trajectory");
        assert!(origins.all(|origin| origin == first));
        first
    };
    for flow in 0..6 {
        assert_eq!(of(flow).hour, of(0).hour);
        assert_eq!(of(flow).directory, of(3 * (flow / 3)).directory);
    }
    assert_ne!(of(0).directory, of(3).directory);
    assert_eq!(of(0).hour, began / 3_600_000_000_000);
    // Flows 1 and 2 of both hosts share a network, flow 0 of the second has no address.
    assert_eq!(of(1).path, of(2).path);
    assert_eq!(of(1).path, of(5).path);
    assert_ne!(of(0).path, of(1).path);
    assert!(of(0).path.is_some() && of(3).path.is_none());
}

#[test]
fn missing_rows_end_a_trajectory_until_the_observation_is_complete_again() {
    let directory = TempDir::new().expect("a scratch directory");
    let whole = directory.path().join("whole.parquet");
    record(&whole, &interface(), 0, 1, 4, true, &uniform);
    let with_gap = directory.path().join("gap.parquet");
    rewrite(&whole, &with_gap, |rows| {
        rows.remove(10);
    });
    let of = |path: &Path| trajectories(&[path.to_owned()], 1 << 30).expect("sound");
    let [whole] = &of(&whole)[..] else {
        panic!("one flow")
    };
    let [before, after] = &of(&with_gap)[..] else {
        panic!("two parts")
    };
    assert_eq!(before.steps.last().and_then(|step| step.outcome), None);
    let known = before.steps.len() - 1;
    assert_eq!(before.steps[..known], whole.steps[..known]);
    let from = after.steps[0].sequence;
    assert_eq!(from, 11 + interface().history as u32);
    let same = whole.steps.iter().position(|step| step.sequence == from);
    assert_eq!(after.steps, whole.steps[same.expect("there")..]);

    // The same applies where the beginning of the flow is missing.
    let late = directory.path().join("late.parquet");
    rewrite(&with_gap, &late, |rows| drop(rows.drain(..10)));
    assert_eq!(of(&late), std::slice::from_ref(after));
}

#[test]
fn a_replaced_policy_ends_a_trajectory_without_loss_of_steps() {
    let directory = TempDir::new().expect("a scratch directory");
    let whole = directory.path().join("whole.parquet");
    record(&whole, &interface(), 0, 1, 4, true, &uniform);
    let rows = rows_of(&whole);
    let parts = [
        ("a.parquet", "first", &rows[..20]),
        ("b.parquet", "second", &rows[20..]),
    ];
    let paths = parts.map(|(name, policy, rows)| {
        let path = directory.path().join(name);
        let mut writer =
            FileWriter::create(&path, header(&interface(), policy)).expect("a new file");
        writer.write(rows).expect("there is space");
        writer.finish().expect("there is space")
    });
    let of = |paths: &[PathBuf]| trajectories(paths, 1 << 30).expect("sound");
    let whole = of(&[whole]).remove(0);
    let parts = of(&paths);
    let names: Vec<&str> = parts.iter().map(|part| &*part.policy).collect();
    assert_eq!(names, ["first", "second"]);
    let steps: Vec<TrajectoryStep> = parts.iter().flat_map(|part| part.steps.clone()).collect();
    assert_eq!(steps, whole.steps);
    assert_eq!((parts[0].ended, parts[1].ended), (false, true));
    // Both go on until their end: the new policy's first decision, and the flow's last window.
    assert!(parts[0].reached && parts[1].reached);
    assert_eq!(parts[0].until_ns, parts[1].steps[0].time_ns);
    assert_eq!(parts[1].until_ns, whole.until_ns);
    assert!(whole.until_ns >= whole.steps[whole.steps.len() - 1].time_ns);
}

/// An agent that ends leaves its flows without a last row. They were recorded until it ended.
#[test]
fn flows_that_did_not_close_were_recorded_as_long_as_any_of_their_agent() {
    let directory = TempDir::new().expect("a scratch directory");
    let at = |name: &str| directory.path().join(name);
    record(&at("a"), &interface(), 1, 3, 4, true, &uniform);
    let half = |rows: &[Row]| rows.iter().filter(|row| row.flow == 1).count() / 2;
    rewrite(&at("a"), &at("a.parquet"), |rows| {
        // The first flow fell silent halfway, and the second closed there.
        let mut left = [half(rows), half(rows)];
        rows.retain_mut(|row| {
            let Some(left) = left.get_mut(row.flow as usize - 1) else {
                row.end = false;
                return true;
            };
            *left = left.saturating_sub(1);
            row.end = row.flow == 2 && *left == 1;
            *left > 0
        });
    });
    let all = trajectories(&[at("a.parquet")], 1 << 30).expect("sound");
    let [silent, closed, last] = &all[..] else {
        panic!("three flows: {all:?}")
    };
    let newest = |own: &Trajectory| own.steps[own.steps.len() - 1].time_ns;
    assert!(silent.reached && closed.reached && last.reached);
    assert_eq!(silent.until_ns, last.until_ns);
    assert!(silent.until_ns > newest(silent) + 1_000_000_000);
    assert!((closed.until_ns - newest(closed)).abs() < 300_000_000);
}

#[test]
fn what_applications_measured_is_joined_by_the_cookie_of_the_socket() {
    let directory = TempDir::new().expect("a scratch directory");
    let at = |name: &str| directory.path().join(name);
    record(&at("a"), &interface(), 1, 4, 4, true, &uniform);
    rewrite(&at("a"), &at("a.parquet"), |rows| {
        for row in rows {
            row.cookie = 100 + row.flow;
        }
    });
    fs::remove_file(at("a")).expect("it is there");
    let served = at("served");
    let keys: ArrayRef = Arc::new(UInt64Array::from(vec![103, 101, 999]));
    let times: ArrayRef = Arc::new(Float64Array::from(vec![3.5, 1.5, 9.0]));
    join::tests::write(&served, vec![("cookie", keys), ("completion_s", times)]);
    let plain = trajectories(&[at("a.parquet")], 1 << 30).expect("sound");

    let scratch = TempDir::new().expect("a scratch directory");
    let joined = |weights: &[(&str, f64)]| {
        let weights = weights
            .iter()
            .map(|&(name, weight)| (name.to_owned(), weight));
        let joined = Joined::read(&served).and_then(|own| own.weighed(&weights.collect()));
        let recordings = Recordings::open(&[at("a.parquet")]).expect("one file");
        let recordings = recordings.with_joined(joined.expect("sound"));
        let recordings = recordings.expect("a new name");
        let partitions = recordings.partition(scratch.path(), 1 << 30, &|_| {});
        let partitions = partitions.expect("two match");
        let mut all = Vec::new();
        let visited = partitions.visit(0, |trajectory| {
            all.push(trajectory);
            Ok(())
        });
        visited.expect("sound");
        all.sort_by_key(|trajectory| trajectory.flow);
        (partitions, all)
    };
    let (partitions, all) = joined(&[]);
    let figures: Vec<_> = all
        .iter()
        .map(|own| Some(own.figures.as_ref()?[0]))
        .collect();
    assert_eq!(figures, [Some(1.5), None, Some(3.5), None]);
    let counts = JoinCounts {
        flows: 2,
        flows_without_row: 2,
        rows_without_flow: 1,
    };
    assert_eq!(partitions.joined().map(|(_, counts)| counts), Some(counts));
    for (own, plain) in all.iter().zip(&plain) {
        assert_eq!(own.steps, plain.steps, "nothing has a weight");
    }

    // With a weight, every decision earns its flow's figure too, and what has none is left out.
    let (_, weighed) = joined(&[("completion_s", -2.0)]);
    assert_eq!(
        weighed.iter().map(|own| own.flow).collect::<Vec<_>>(),
        [1, 3]
    );
    for (own, cost) in weighed.iter().zip([3.0, 7.0]) {
        for (step, plain) in own.steps.iter().zip(&plain[own.flow as usize - 1].steps) {
            let (Some(own), Some(plain)) = (step.outcome, plain.outcome) else {
                continue;
            };
            assert!((own.reward - (plain.reward - cost)).abs() < 1e-5);
        }
    }

    // The timeline has a column more.
    let output = TimelineDirectory::create(&at("timeline")).expect("new");
    let settings = TimelineSettings::default();
    let (summary, sample) =
        timeline::write(&partitions, &output, &settings, &|_| {}).expect("there is space");
    let analysis = sample.analyse(&[], &[]).expect("no overrides");
    output.publish(&summary, &analysis).expect("there is space");
    assert_eq!((summary.joined_flows, summary.rows_without_flow), (2, 1));
    let file = File::open(at("timeline/timeline-000000.parquet")).expect("readable");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let mut rows = 0;
    for batch in reader.build().expect("readable") {
        let batch = batch.expect("readable");
        let column = |name: &str| batch.column_by_name(name).expect("a column").clone();
        let (flow, figure) = (column("flow"), column("completion_s"));
        for row in 0..batch.num_rows() {
            let expected = match flow.as_primitive::<UInt64Type>().value(row) {
                1 => Some(1.5),
                3 => Some(3.5),
                _ => None,
            };
            let found = figure.as_primitive::<Float64Type>();
            let found = found.is_valid(row).then(|| found.value(row));
            assert_eq!(found, expected);
            rows += 1;
        }
    }
    assert_eq!(rows, plain.iter().map(|own| own.steps.len()).sum::<usize>());
}

#[test]
fn the_timeline_holds_the_outcome_of_every_decision() {
    let directory = TempDir::new().expect("a scratch directory");
    let path = directory.path().join("a.parquet");
    record(&path, &interface(), 0, 4, 4, true, &uniform);
    let all = trajectories(std::slice::from_ref(&path), 1 << 30).expect("sound");
    let recordings = Recordings::open(&[path]).expect("one file");
    let partitions = recordings
        .partition(directory.path(), 100_000, &|_| {})
        .expect("there is space");
    let out = directory.path().join("timeline");
    let settings = TimelineSettings {
        sample: 50,
        ..TimelineSettings::default()
    };
    let output = TimelineDirectory::create(&out).expect("new");
    let (summary, sample) =
        timeline::write(&partitions, &output, &settings, &|_| {}).expect("there is space");
    let analysis = sample.analyse(&[], &[]).expect("no overrides");
    output.publish(&summary, &analysis).expect("there is space");
    let decisions: usize = all.iter().map(|trajectory| trajectory.steps.len()).sum();
    assert_eq!(summary.decisions as usize, decisions);
    assert_eq!(
        (summary.trajectories, summary.ended, summary.left_out),
        (4, 4, 0)
    );
    assert!((25..150).contains(&sample.len()), "{}", sample.len());

    let mut found = 0;
    for entry in fs::read_dir(&out).expect("it was made") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|kind| kind == "json") {
            continue;
        }
        let file = File::open(path).expect("readable");
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
        for batch in reader.build().expect("readable") {
            let batch = batch.expect("readable");
            let column = |name: &str| batch.column_by_name(name).expect("a column").clone();
            let (flow, ordinal) = (column("flow"), column("ordinal"));
            let (state, next) = (column("state"), column("next_state"));
            let (ahead, value) = (column("reward_timeline"), column("episode_value"));
            let (terminal, next_action) = (column("terminal"), column("next_action"));
            let (mode, delay) = (column("mode"), column("decision_delay_ns"));
            let taken = column("taken_after_ns");
            for row in 0..batch.num_rows() {
                let flow = flow.as_primitive::<UInt64Type>().value(row);
                let ordinal = ordinal.as_primitive::<UInt32Type>().value(row) as usize;
                let trajectory = &all[flow as usize];
                let step = &trajectory.steps[ordinal];
                let observation = state.as_fixed_size_list().value(row);
                let observation = observation.as_primitive::<Float32Type>().values().to_vec();
                assert_eq!(observation, step.observation);
                let after = trajectory.steps.get(ordinal + 1);
                assert_eq!(next.is_valid(row), after.is_some());
                assert_eq!(next_action.is_valid(row), after.is_some());
                assert_eq!(terminal.as_boolean().value(row), after.is_none());
                if let Some(after) = after {
                    let observation = next.as_fixed_size_list().value(row);
                    let observation = observation.as_primitive::<Float32Type>().values().to_vec();
                    assert_eq!(observation, after.observation);
                }
                let rewards: Vec<f32> = trajectory.steps[ordinal..]
                    .iter()
                    .filter_map(|step| Some(step.outcome?.reward))
                    .collect();
                let timeline = ahead.as_list::<i32>().value(row);
                let timeline = timeline.as_primitive::<Float32Type>().values().to_vec();
                assert_eq!(timeline, rewards[..rewards.len().min(10)]);
                // A rate over the time of each decision, in windows of 100 ms.
                let (mut expected, mut discount) = (0.0, 1.0);
                for outcome in trajectory.steps[ordinal..].iter().filter_map(|s| s.outcome) {
                    let next = discount * 0.99f64.powf(outcome.seconds * 10.0);
                    expected += f64::from(outcome.reward) * (discount - next) / (1.0 - 0.99);
                    discount = next;
                }
                assert!(mode.as_dictionary::<Int32Type>().is_valid(row));
                let delay = delay.as_primitive::<UInt64Type>();
                assert_eq!((delay.is_valid(row), delay.value(row)), (true, 2_000_000));
                assert_eq!(taken.is_valid(row), step.taken_after_ns.is_some());
                let value = value.as_primitive::<Float64Type>().value(row);
                assert!((value - expected).abs() < 1e-6 * expected.abs().max(1.0));
                found += 1;
            }
        }
    }
    assert_eq!(found, decisions);

    let error = TimelineDirectory::create(&out).expect_err("not empty");
    assert!(
        error.to_string().contains("nothing is overwritten"),
        "{error}"
    );
}

#[test]
fn recordings_that_do_not_go_together_are_refused_naming_the_file() {
    let directory = TempDir::new().expect("a scratch directory");
    let place = |name: &str| directory.path().join(name);
    let error = |paths: &[PathBuf]| {
        trajectories(paths, 1 << 30)
            .expect_err("refused")
            .to_string()
    };
    let found = error(&[directory.path().to_owned()]);
    assert!(found.contains("no recording there"), "{found}");

    record(&place("a.parquet"), &interface(), 0, 1, 1, true, &uniform);
    let other = Interface {
        actions: "0,/2,*2,+1,-1".parse().expect("actions"),
        ..interface()
    };
    record(&place("b.parquet"), &other, 1, 1, 1, true, &uniform);
    let found = error(&[directory.path().to_owned()]);
    assert!(
        found.contains("b.parquet: recorded with other settings than"),
        "{found}"
    );
    assert!(
        found.contains("actions: \"0,/2,*2,+1,-1\", not \"0,/2,-10,+10,*2\""),
        "{found}"
    );

    let found = error(&[place("a.parquet"), place("a.parquet")]);
    assert!(
        found.contains("row 0 of flow 0x0000000000000000 is present twice, in ")
            && found.matches("a.parquet").count() == 2,
        "{found}"
    );

    rewrite(&place("a.parquet"), &place("nothing.parquet"), |rows| {
        rows.iter_mut().for_each(|row| row.decision = None);
    });
    let found = error(&[place("nothing.parquet")]);
    assert!(found.contains("not one decision"), "{found}");

    fs::write(place("c.parquet"), b"PAR1 and then nothing").expect("there is space");
    let found = error(&[place("c.parquet")]);
    assert!(found.contains("c.parquet"), "{found}");
}

#[test]
fn inputs_are_named_after_statistic_feature_and_past_action() {
    let names = names(&interface());
    assert_eq!(names.len(), interface().observation_len() + 1);
    assert_eq!(names[25], "mean.delay");
    assert_eq!(names[100..103], ["past2.0", "past2./2", "past2.-10"]);
    assert_eq!(names[names.len() - 2], "past1.cwnd");

    let names = self::names(&Interface {
        features_version: 2,
        ..interface()
    });
    assert_eq!(
        names[99..103],
        [
            "max.persistent_congestion",
            "fraction.marked",
            "fraction.app_limited",
            "past2.0"
        ]
    );

    let with_situation = Interface {
        situation: 20,
        ..interface()
    };
    let names = self::names(&with_situation);
    assert_eq!(names.len(), with_situation.observation_len() + 1);
    assert_eq!(names[100..102], ["situation.floor", "situation.ceiling"]);
    assert_eq!(names[106..108], ["situation.without_loss", "past2.0"]);

    let with_series = Interface {
        series: 3,
        ..interface()
    };
    let names = self::names(&with_series);
    assert_eq!(names.len(), with_series.observation_len() + 1);
    let first = with_series.series_offset();
    assert_eq!(
        names[first..first + 4],
        [
            "series.throughput.2",
            "series.throughput.1",
            "series.throughput.0",
            "series.latest_rtt.2"
        ]
    );
    assert_eq!(names[names.len() - 2..], ["series.marked.0", "reward"]);
}
