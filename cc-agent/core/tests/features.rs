//! The versions of the observed features: version 1 stays what it was.

use bytemuck::Zeroable;
use cc_core::interface::Interface;
use cc_core::observation::{History, Windows, observe};
use cc_core::paths::PathView;
use cc_ebpf::{FEATURES, WindowRecord};

/// Windows of very different flows, always the same ones.
fn windows(count: usize) -> Vec<WindowRecord> {
    let mut state = 1_u64;
    let mut below = |most: u64| {
        // Knuth's linear congruential generator (MMIX).
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) % most
    };
    (0..count)
        .map(|_| {
            let mut window = WindowRecord::zeroed();
            window.cwnd = below(1_000) as u32 + 2;
            window.mss = 1_448;
            for _ in 0..=below(12) {
                let shift = below(12);
                let features: [u32; FEATURES] =
                    std::array::from_fn(|_| (below(1 << 20) >> shift) as u32);
                window.add(&features);
            }
            window
        })
        .collect()
}

/// The same windows with marks, and with ACKs of segments that the application limited.
fn marked(mut windows: Vec<WindowRecord>) -> Vec<WindowRecord> {
    for (i, window) in windows.iter_mut().enumerate() {
        window.marked = (i * i % 97) as u32;
        window.app_limited_acks = i as u32 % (window.acks + 1);
    }
    windows
}

/// The observations of one flow whose windows these are, and that decides after each.
fn observations(interface: &Interface, windows: &[WindowRecord]) -> Vec<Vec<f32>> {
    let mut history = History::new(interface, 14_480);
    let mut memory = Windows::new(interface);
    let actions = interface.actions.len();
    (windows.iter().enumerate())
        .map(|(i, window)| {
            // What is known of the path is observed only where the interface says so.
            let (rtt_us, flows) = (Some(1 + i as u32), 1 + i as u32 % 7);
            memory.push(interface, window, Some(PathView { rtt_us, flows }));
            let observation = observe(interface, window, &history, &memory);
            history.push(interface, i % actions, u64::from(window.cwnd) * 1_448);
            observation
        })
        .collect()
}

/// FNV-1a over the bits of all values.
fn digest(observations: &[Vec<f32>]) -> u64 {
    let bytes = observations.iter().flatten().flat_map(|v| v.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The interface of the policy that was embedded when version 2 was added.
fn first() -> Interface {
    Interface {
        history: 5,
        actions: "0,/2,/1.25,/1.05,-1,+1,*1.05,*1.25,*2"
            .parse()
            .expect("actions"),
        ..Interface::default()
    }
}

#[test]
fn version_1_is_observed_as_before_version_2() {
    let observations_of = |windows: &[WindowRecord]| observations(&first(), windows);
    let found = observations_of(&windows(64));
    assert_eq!(digest(&found), 4_784_598_479_868_881_634);
    // What version 2 observes besides is nothing to it.
    assert_eq!(observations_of(&marked(windows(64))), found);
}

#[test]
fn version_2_adds_the_fractions_and_changes_nothing_else() {
    let first = Interface::default();
    let second = Interface {
        features_version: 2,
        ..first.clone()
    };
    let windows = marked(windows(64));
    let former = observations(&first, &windows);
    let found = observations(&second, &windows);
    let at = second.history_offset() - 2;
    for ((former, found), window) in former.iter().zip(&found).zip(&windows) {
        assert_eq!(found[..at], former[..at]);
        assert_eq!(found[at], window.marked_fraction() as f32);
        assert_eq!(found[at + 1], window.application_limited_fraction() as f32);
        assert_eq!(found[at + 2..], former[at..]);
        assert!(found[at..at + 2].iter().all(|f| (0.0..=1.0).contains(f)));
    }
    let distinct = |i: usize| {
        let mut values: Vec<u32> = found.iter().map(|values| values[i].to_bits()).collect();
        values.sort_unstable();
        values.dedup();
        values.len()
    };
    assert!(distinct(at) > 20 && distinct(at + 1) > 10);
}
