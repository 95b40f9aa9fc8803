//! Recordings of earlier releases stay readable.

use std::{collections::BTreeMap, path::Path};

use cc_core::{
    reward::Terms,
    rows::{AddressForm, FileHeader, Replay, Row},
};
use cc_recording::read;

/// Two flows on the loopback device of Linux 6.18 under the default policy of release 0.1.0, whose
/// actions were sampled: `cc-agent run --record DIR --serving softmax`.
fn version_1() -> (FileHeader, Vec<Row>) {
    recorded("version-1.parquet")
}

fn recorded(name: &str) -> (FileHeader, Vec<Row>) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let (header, rows) = read(&data.join(name)).expect("the header of an earlier release");
    let rows = rows.collect::<Result<_, _>>();
    (header, rows.expect("the rows of an earlier release"))
}

#[test]
fn the_header_of_version_1_is_read() {
    let (header, _) = version_1();
    assert_eq!(
        header.policy,
        "c74d438fa27ec9c9b848787eb1f5ee922e1ca1f914d2272652704f02653bad1e"
    );
    let metadata = header.policy_metadata.expect("a policy file has metadata");
    assert_eq!(metadata.interface, header.interface);
    assert_eq!(header.agent_version, "0.1.0");
    assert!(header.kernel.starts_with("6.18."), "{}", header.kernel);
    assert_eq!(header.host["net.ipv4.tcp_sack"], "1");
    assert_eq!(header.addresses, AddressForm::Absent);
    assert!(header.utc_offset_ns < header.started_ns);
}

/// Two flows as in version 1, under the default policy of 2026-11-28, which observes a situation.
#[test]
fn the_rows_of_version_2_are_read_and_know_nothing_of_the_path() {
    let (header, rows) = recorded("version-2.parquet");
    assert_eq!(rows.len(), 16);
    let interface = &header.interface;
    assert!(interface.situation > 0 && !interface.shared_path);
    let mut flows: BTreeMap<u64, Replay> = BTreeMap::new();
    for row in &rows {
        assert_eq!(row.path, None);
        assert!(row.cookie != 0 && row.netns != 0);
        let observation = flows.entry(row.flow).or_default().next(interface, row);
        assert_eq!(observation.len(), interface.observation_len());
        assert!(observation.iter().all(|value| value.is_finite()));
        let Some(decision) = &row.decision else {
            continue;
        };
        let action = usize::from(decision.action.expect("a policy that chooses actions"));
        let cwnd = (interface.actions).apply(action, decision.base_cwnd, interface.cwnd);
        assert_eq!(decision.cwnd, cwnd);
    }
    assert_eq!(flows.len(), 2);
}

#[test]
fn the_rows_of_version_1_are_read_and_replayed() {
    let (header, rows) = version_1();
    assert_eq!(rows.len(), 14);
    let interface = &header.interface;
    let mut flows: BTreeMap<u64, (Replay, u32)> = BTreeMap::new();
    let mut sums = vec![0.0; interface.observation_len()];
    for row in &rows {
        let (replay, next) = flows.entry(row.flow).or_default();
        assert_eq!(row.sequence, *next);
        *next += 1;

        let terms = Terms::of(&row.window, &interface.reward);
        assert_eq!(row.terms, terms);
        assert_eq!(row.reward, terms.reward(&interface.reward) as f32);

        let observation = replay.next(interface, row);
        for (sum, value) in sums.iter_mut().zip(observation) {
            *sum += f64::from(value);
        }

        let decision = row.decision.as_ref().expect("every window was answered");
        let action = usize::from(decision.action.expect("a policy that chooses actions"));
        let probabilities = decision.probabilities.as_ref().expect("sampled actions");
        assert_eq!(decision.probability, Some(probabilities[action]));
        let cwnd = interface
            .actions
            .apply(action, decision.base_cwnd, interface.cwnd);
        assert_eq!(decision.cwnd, cwnd);
    }
    assert_eq!(flows.len(), 2);
    assert_eq!(rows.iter().filter(|row| row.end).count(), 2);
    let means = MEANS.lines().map(str::parse::<f64>);
    let means: Vec<_> = means.collect::<Result<_, _>>().expect("numbers");
    assert_eq!(means.len(), sums.len());
    for (i, (mean, sum)) in means.iter().zip(&sums).enumerate() {
        let found = sum / rows.len() as f64;
        assert!(
            (found - mean).abs() <= 1e-9 + 1e-6 * mean.abs(),
            "input {i}: {found} instead of {mean}"
        );
    }
}

/// The mean of each input of the observation over all rows, one per line, as release 0.1.0's
/// `cc-trainer dataset` computed it.
const MEANS: &str = include_str!("data/version-1-means.txt");
