//! An independent computation of windows.

use cc_ebpf::{AckRecord, FEATURES, Feature, WindowRecord};

/// Asserts that a window's record is what its per-ACK records add up to.
///
/// Every statistic of every feature is computed anew in 128 bits, and compared exactly; the sum of
/// squares saturates at `u64::MAX`, as in the datapath.
///
/// # Panics
///
/// Panics with the feature and the window's number if a statistic differs, if the number of ACKs
/// differs, or if an ACK lies outside the window or out of order.
pub fn assert_window_is(window: &WindowRecord, acks: &[AckRecord]) {
    let index = window.index;
    assert_eq!(window.acks as usize, acks.len(), "ACKs of window {index}");
    for pair in acks.windows(2) {
        assert!(pair[0].header.time_ns <= pair[1].header.time_ns);
    }
    for ack in acks {
        let time = ack.header.time_ns;
        assert!(
            (window.start_ns..window.header.time_ns).contains(&time),
            "window {index}"
        );
    }
    for feature in 0..FEATURES {
        let values: Vec<u128> = acks
            .iter()
            .map(|ack| ack.features[feature].into())
            .collect();
        let reference = values[0];
        let sum: u128 = values.iter().sum();
        let squares: u128 = values.iter().map(|v| v.abs_diff(reference).pow(2)).sum();
        let statistics = &window.features;
        let found = [
            u128::from(statistics.sum[feature]),
            u128::from(statistics.squares[feature]),
            u128::from(statistics.min[feature]),
            u128::from(statistics.max[feature]),
            u128::from(statistics.reference[feature]),
        ];
        let expected = [
            sum,
            squares.min(u64::MAX.into()),
            values.iter().copied().min().unwrap_or_default(),
            values.iter().copied().max().unwrap_or_default(),
            reference,
        ];
        assert_eq!(
            found,
            expected,
            "{:?} of window {index}",
            Feature::ALL[feature]
        );
    }
}
