//! Rows and headers for tests, random ones for property tests.

use std::sync::Arc;

use bytemuck::Zeroable;
use cc_core::{
    interface::Interface,
    paths::PathView,
    reward::Terms,
    rows::{AddressForm, Decided, FileHeader, NO_MODE, Row},
};
use cc_ebpf::{Decision, FEATURES, Header, WindowRecord};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

/// A header of files with the rows of this policy.
pub(crate) fn header(policy: &str) -> FileHeader {
    FileHeader {
        interface: Interface::default(),
        policy: policy.into(),
        policy_metadata: None,
        server: None,
        agent_version: "0.1.0".into(),
        kernel: "6.12.0".into(),
        host: [].into(),
        started_ns: 0,
        utc_offset_ns: 0,
        addresses: AddressForm::Absent,
    }
}

/// One row that a flow can produce, always the same, without a decision.
pub(crate) fn one_row() -> Row {
    let mut runner = TestRunner::deterministic();
    // What the strategy generates is not filtered.
    let row = row().new_tree(&mut runner).expect("a row").current();
    Row {
        decision: None,
        ..row
    }
}

/// Generates any row that a flow can produce.
pub(crate) fn row() -> impl Strategy<Value = Row> {
    let decided = (
        proptest::option::of(0..5u8),
        proptest::option::of(0f32..1.0),
        proptest::option::of(proptest::collection::vec(0f32..1.0, 0..6)),
        any::<u32>(),
        any::<u32>(),
        proptest::option::of(any::<u64>()),
    )
        .prop_map(
            |(action, probability, probabilities, base_cwnd, cwnd, delay_ns)| Decided {
                action,
                probability,
                probabilities,
                base_cwnd,
                cwnd,
                delay_ns,
            },
        );
    let terms = (0f64..1e4, 0f64..1e5, 0f64..1e3).prop_map(|(throughput, delay, loss)| Terms {
        throughput,
        delay,
        loss,
    });
    let path = (proptest::option::of(any::<u32>()), any::<u32>())
        .prop_map(|(rtt_us, flows)| PathView { rtt_us, flows });
    let name = || proptest::option::of("[a-z0-9.:]{0,20}".prop_map(Arc::from));
    (
        (
            (any::<u64>(), any::<u32>()),
            (window(), proptest::option::of(path)),
            any::<u64>(),
        ),
        (
            proptest::option::of(decided),
            terms,
            -1e6f32..1e6,
            any::<bool>(),
        ),
        (name(), name(), any::<(u64, u64, u32)>()),
    )
        .prop_map(
            |(
                ((flow, sequence), (window, path), initial_cwnd_bytes),
                (decision, terms, reward, end),
                (local, remote, (cgroup, cookie, netns)),
            )| Row {
                flow,
                sequence,
                window,
                path,
                initial_cwnd_bytes,
                decision,
                terms,
                reward,
                end,
                local,
                remote,
                cgroup,
                cookie,
                netns,
            },
        )
}

/// Generates any window that the datapath can send.
pub(crate) fn window() -> impl Strategy<Value = WindowRecord> {
    let statistics = proptest::collection::vec(any::<(u64, u64, u32, u32, u32)>(), FEATURES);
    let taken = proptest::option::of((0..1u32 << 20, 0..1u32 << 24, 1..1u64 << 50));
    let mode = prop_oneof![0..5u32, Just(NO_MODE)];
    (
        (any::<u32>(), 1..1u32 << 20, 1..1u64 << 60, 0..1u64 << 40),
        (any::<u32>(), any::<u32>(), any::<u32>(), mode, any::<u32>()),
        taken,
        any::<(u32, u32)>(),
        statistics,
    )
        .prop_map(
            |(
                (slot, generation, start_ns, length),
                (index, acks, cwnd, mode, mss),
                taken,
                (app_limited_acks, marked),
                statistics,
            )| {
                let mut window = WindowRecord::zeroed();
                window.header = Header::of::<WindowRecord>(slot, generation, start_ns + length);
                window.start_ns = start_ns;
                window.index = index;
                window.acks = acks;
                window.cwnd = cwnd;
                window.mode = mode;
                window.mss = mss;
                window.app_limited_acks = app_limited_acks;
                window.marked = marked;
                if let Some((answered, cwnd, taken_ns)) = taken {
                    window.decision = Decision {
                        generation,
                        window: answered,
                        cwnd,
                    }
                    .to_cell();
                    window.decision_taken_ns = taken_ns;
                }
                for (i, (sum, squares, min, max, reference)) in statistics.into_iter().enumerate() {
                    window.features.sum[i] = sum;
                    window.features.squares[i] = squares;
                    window.features.min[i] = min;
                    window.features.max[i] = max;
                    window.features.reference[i] = reference;
                }
                window
            },
        )
}
