//! Clusters: groups of flows that may depend on each other, which are the units of folds, bootstrap
//! and effective sample size.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

use crate::dataset::FlowOrigin;

/// What the flows of one cluster have in common.
///
/// Flows that shared a queue had the same luck, so as independent samples they make intervals too
/// narrow. Whatever the choice, all parts of a flow belong to one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterBy {
    /// The flow itself: flows count as independent of each other.
    Flow,
    /// The path to the remote address: the prefix of its network (24 bits of IPv4, 48 of IPv6), or
    /// the whole address where addresses were recorded as hashes.
    Path,
    /// The host, which is the directory of the recording.
    Host,
    /// The host and the hour (UTC) in which the flow's recording began.
    Hour,
}

impl ClusterBy {
    /// All kinds of cluster, beginning with the finest.
    pub const ALL: [Self; 4] = [Self::Flow, Self::Path, Self::Host, Self::Hour];

    /// Returns the name of the kind, as on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Path => "path",
            Self::Host => "host",
            Self::Hour => "hour",
        }
    }

    /// Returns the cluster of a flow; `None` where the recording lacks what identifies it.
    pub fn cluster(self, flow: u64, origin: &FlowOrigin) -> Option<u64> {
        let host = u64::from(origin.directory);
        match self {
            Self::Flow => Some(flow),
            Self::Path => origin.path,
            Self::Host => Some(host),
            // Hours need 19 bits now, and 24 in the year 3800.
            Self::Hour => Some((host << 24) | (origin.hour as u64 & 0xff_ffff)),
        }
    }

    /// Returns whether clusters of this kind are over some day, so that later recordings add new
    /// clusters instead of enlarging old ones.
    pub fn closes(self) -> bool {
        matches!(self, Self::Flow | Self::Hour)
    }

    /// Chooses the safest kind that the recording supports: of those that are known for every flow
    /// and form at least `least` clusters, the one with the fewest. Where there is none, paths if
    /// they are known (they tell which flows shared a link, so that nothing finer would be honest),
    /// and flows otherwise. With `closing`, only kinds that [close](Self::closes) come into
    /// question.
    pub fn safest<'a>(
        flows: impl Iterator<Item = (u64, &'a FlowOrigin)> + Clone,
        least: usize,
        closing: bool,
    ) -> Self {
        let count = |by: Self| -> Option<usize> {
            let clusters: Option<BTreeSet<_>> = flows
                .clone()
                .map(|(flow, origin)| by.cluster(flow, origin))
                .collect();
            Some(clusters?.len())
        };
        let kinds = Self::ALL.into_iter();
        let enough = kinds
            .filter(|by| !closing || by.closes())
            .filter_map(|by| Some((count(by)?, by)))
            .filter(|&(count, _)| count >= least)
            .min_by_key(|&(count, _)| count);
        match enough {
            // A recording of many flows over few paths.
            Some((_, Self::Flow)) | None if !closing && count(Self::Path).is_some() => Self::Path,
            Some((_, by)) => by,
            None => Self::Flow,
        }
    }
}

impl fmt::Display for ClusterBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(path: u64, directory: u32, hour: i64) -> FlowOrigin {
        FlowOrigin {
            path: (path > 0).then_some(path),
            directory,
            hour,
        }
    }

    fn safest(origins: &[FlowOrigin], least: usize, closing: bool) -> ClusterBy {
        let flows = origins.iter().enumerate();
        let flows = flows.map(|(flow, origin)| (flow as u64, origin));
        ClusterBy::safest(flows, least, closing)
    }

    #[test]
    fn the_fewest_clusters_that_suffice_are_the_safest() {
        // 400 flows over 20 paths, on 2 hosts, in 30 hours.
        let flow = |i: u64| origin(1 + i % 20, (i % 2) as u32, (i % 30) as i64);
        let all: Vec<_> = (0..400).map(flow).collect();
        assert_eq!(safest(&all, 10, false), ClusterBy::Path);
        // An hour of an even number comes with an even host here: 30 clusters.
        assert_eq!(safest(&all, 25, false), ClusterBy::Hour);
        assert_eq!(safest(&all, 10, true), ClusterBy::Hour);
        assert_eq!(safest(&all, 2, false), ClusterBy::Host);
        // Too few of anything but flows: that flows shared paths is known.
        assert_eq!(safest(&all, 100, false), ClusterBy::Path);
        assert_eq!(safest(&all, 100, true), ClusterBy::Flow);
    }

    #[test]
    fn what_is_not_recorded_cannot_be_a_cluster() {
        let mut all: Vec<_> = (0..40).map(|i| origin(1 + i % 20, 0, 7)).collect();
        assert_eq!(safest(&all, 10, false), ClusterBy::Path);
        all[3].path = None;
        assert_eq!(safest(&all, 10, false), ClusterBy::Flow);
        assert_eq!(ClusterBy::Path.cluster(3, &all[3]), None);
        assert_eq!(ClusterBy::Flow.cluster(3, &all[3]), Some(3));
    }

    #[test]
    fn an_hour_of_one_host_is_not_that_of_another() {
        let cluster = |host, hour| ClusterBy::Hour.cluster(1, &origin(0, host, hour));
        assert_eq!(cluster(1, 498_000), cluster(1, 498_000));
        assert_ne!(cluster(1, 498_000), cluster(2, 498_000));
        assert_ne!(cluster(1, 498_000), cluster(1, 498_001));
    }
}
