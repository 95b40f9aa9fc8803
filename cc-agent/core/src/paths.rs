//! Paths: what the flows between two hosts know of the path that they share, which is its least RTT
//! and how many they are.
//!
//! A flow that begins while others keep a queue has never seen the path without one: to it a
//! standing queue is a long path, and its share is not that of the others. What the flows before it
//! have seen tells the two apart. And the first one of many, which had the path for itself, learns
//! from their number that it will not have it again. RFC 9040 describes such *ensemble sharing*
//! among the concurrent connections of two hosts.
//!
//! A path is known while a flow on it is followed, and an RTT that no flow has seen again for five
//! to ten minutes is forgotten, because routes change. It is told by the addresses of both ends and
//! the network namespace: in namespaces of their own, which they may set up as they like, local
//! users say nothing about the paths of others.

use std::collections::HashMap;

use cc_ebpf::{Feature, Identity, WindowRecord};

/// Time after which the older half of what was seen is forgotten, ns.
const HALF_NS: u64 = 300_000_000_000;

/// What is known of a flow's path at the end of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathView {
    /// Least RTT that flows between the same hosts had lately, this window included, µs; `None`
    /// while none is known.
    pub rtt_us: Option<u32>,
    /// Number of flows between these hosts that are followed, with this one.
    pub flows: u32,
}

/// The paths of all flows that are followed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths {
    known: HashMap<Ends, Path>,
}

/// The two ends of a path: addresses as IPv6 has them, and the network namespace of the local one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    local: [u32; 4],
    remote: [u32; 4],
    netns: u32,
}

impl From<&Identity> for Ends {
    fn from(identity: &Identity) -> Self {
        let (local, remote) = identity.addresses6();
        Self {
            local,
            remote,
            netns: identity.netns,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Path {
    /// Number of flows on it that are followed at present.
    flows: u32,
    least: Least,
}

impl Paths {
    /// Notes that a flow has begun.
    pub(crate) fn join(&mut self, flow: &Identity) {
        self.known.entry(flow.into()).or_default().flows += 1;
    }

    /// Notes that a flow has ended. The last one takes what is known of its path with it.
    pub(crate) fn leave(&mut self, flow: &Identity) {
        let ends = flow.into();
        let Some(path) = self.known.get_mut(&ends) else {
            return;
        };
        path.flows -= 1;
        if path.flows == 0 {
            self.known.remove(&ends);
        }
    }

    /// Adds a window of a flow, and returns what is known of its path then; `None` when the flow
    /// has not begun.
    pub(crate) fn observe(&mut self, flow: &Identity, window: &WindowRecord) -> Option<PathView> {
        let path = self.known.get_mut(&flow.into())?;
        let rtt_us = window.features.min[Feature::LatestRtt as usize];
        let has_rtt = window.acks > 0 && rtt_us > 0;
        let rtt_us = has_rtt.then_some(rtt_us);
        Some(PathView {
            rtt_us: path.least.observe(window.header.time_ns, rtt_us),
            flows: path.flows,
        })
    }
}

/// The least of the values of the last five to ten minutes.
#[derive(Clone, Copy, Debug, Default)]
struct Least {
    /// When the newer half began, ns.
    since_ns: u64,
    /// The least values of the newer half and of the one before it.
    halves: [Option<u32>; 2],
}

impl Least {
    /// Adds a value, if there is one, and returns the least one.
    fn observe(&mut self, now_ns: u64, value: Option<u32>) -> Option<u32> {
        match now_ns.saturating_sub(self.since_ns) / HALF_NS {
            0 => {}
            passed => {
                let former = self.halves[0].filter(|_| passed == 1);
                self.halves = [None, former];
                self.since_ns += passed * HALF_NS;
            }
        }
        self.halves[0] = self.halves[0].into_iter().chain(value).min();
        self.halves.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use cc_ebpf::FEATURES;
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A flow to a host, in a network namespace.
    fn flow(host: u8, netns: u32) -> Identity {
        let mut identity = Identity {
            family: 2,
            netns,
            ..Identity::default()
        };
        identity.remote_addr[0] = u32::from_ne_bytes([10, 0, 0, host]);
        identity
    }

    /// A window that ended at this second, of one ACK with this RTT.
    fn window(second: u64, rtt_us: u32) -> WindowRecord {
        let mut window = WindowRecord::zeroed();
        let mut features = [0; FEATURES];
        features[Feature::LatestRtt as usize] = rtt_us;
        window.add(&features);
        window.header.time_ns = second * SECOND;
        window
    }

    /// The least RTT after a window, µs, and the number of flows.
    fn seen(paths: &mut Paths, flow: &Identity, window: &WindowRecord) -> (Option<u32>, u32) {
        let view = paths.observe(flow, window).expect("it has begun");
        (view.rtt_us, view.flows)
    }

    #[test]
    fn flows_between_the_same_hosts_know_what_each_has_seen() {
        let mut paths = Paths::default();
        let first = flow(1, 7);
        let second = Identity {
            remote_port: 5_001,
            ..first
        };
        for flow in [first, second, flow(2, 7), flow(1, 8)] {
            paths.join(&flow);
        }
        let paths = &mut paths;
        assert_eq!(seen(paths, &first, &window(1, 20_000)), (Some(20_000), 2));
        assert_eq!(seen(paths, &second, &window(2, 80_000)), (Some(20_000), 2));
        let elsewhere = seen(paths, &flow(2, 7), &window(2, 80_000));
        assert_eq!(elsewhere, (Some(80_000), 1), "another host");
        let elsewhere = seen(paths, &flow(1, 8), &window(2, 80_000));
        assert_eq!(elsewhere, (Some(80_000), 1), "another network namespace");
    }

    #[test]
    fn a_path_is_known_until_its_last_flow_ends() {
        let mut paths = Paths::default();
        let flow = flow(1, 7);
        paths.join(&flow);
        paths.join(&flow);
        paths.observe(&flow, &window(1, 20_000));
        paths.leave(&flow);
        let paths = &mut paths;
        assert_eq!(seen(paths, &flow, &window(2, 80_000)), (Some(20_000), 1));
        paths.leave(&flow);
        assert_eq!(paths.observe(&flow, &window(3, 80_000)), None);
        assert!(paths.known.is_empty());
        paths.leave(&flow);
        paths.join(&flow);
        assert_eq!(seen(paths, &flow, &window(4, 80_000)), (Some(80_000), 1));
    }

    #[test]
    fn a_window_without_an_rtt_adds_none() {
        let mut paths = Paths::default();
        let flow = flow(1, 7);
        paths.join(&flow);
        let mut empty = WindowRecord::zeroed();
        empty.header.time_ns = SECOND;
        let paths = &mut paths;
        assert_eq!(seen(paths, &flow, &empty), (None, 1));
        assert_eq!(seen(paths, &flow, &window(2, 0)), (None, 1));
        assert_eq!(seen(paths, &flow, &window(3, 20_000)), (Some(20_000), 1));
        assert_eq!(seen(paths, &flow, &empty), (Some(20_000), 1), "it is late");
    }

    proptest! {
        /// Against the whole past: what was seen in the last five minutes is known, and nothing
        /// that is older than ten.
        #[test]
        fn what_is_not_seen_again_is_forgotten(
            past in prop::collection::vec((0_u64..400, 1_u32..1_000), 1..40),
        ) {
            let (mut least, mut now) = (Least::default(), 0);
            let mut seen = Vec::new();
            for (pause, value) in past {
                now += pause * SECOND;
                seen.push((now, value));
                let found = least.observe(now, Some(value));
                let within = |ns: u64| {
                    let recent = seen.iter().filter(move |(at, _)| now - at < ns);
                    recent.map(|(_, value)| *value).min()
                };
                prop_assert!(found <= within(HALF_NS), "{found:?}");
                prop_assert!(found >= within(2 * HALF_NS), "{found:?}");
            }
        }
    }
}
