//! The labels that no other one is better than.

use std::collections::BTreeMap;

/// One way to have downloaded the chunks so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Label {
    /// Place in the trace at which the next chunk is asked for, s since its beginning.
    pub(super) trace_s: f64,
    /// Sum of qualities less changes.
    pub(super) quality: f64,
    /// Rebuffering that is scored, s.
    pub(super) rebuffer_s: f64,
    /// Quality of the last chunk.
    pub(super) last: u32,
    /// Place of the label of the chunk before among its labels.
    pub(super) parent: u32,
}

impl Label {
    /// Qualities less changes less penalties for rebuffering.
    pub(super) fn net(&self, penalty: f64) -> f64 {
        self.quality - penalty * self.rebuffer_s
    }
}

/// Sizes of the cells in which labels are merged.
pub(super) struct Cells {
    pub(super) quality: f64,
    pub(super) net: f64,
    /// Penalty for a second of rebuffering.
    pub(super) penalty: f64,
}

/// All labels after one chunk that none is better than.
pub(super) struct Frontier {
    labels: Vec<Label>,
}

impl Frontier {
    pub(super) fn of_one(label: Label) -> Self {
        Self {
            labels: vec![label],
        }
    }

    /// Merges labels within a cell and drops those that another one is better than.
    pub(super) fn new(mut labels: Vec<Label>, levels: usize, cells: &Cells) -> Self {
        let mut kept = Vec::new();
        let mut of_level: Vec<Vec<Label>> = vec![Vec::new(); levels];
        for label in labels.drain(..) {
            of_level[label.last as usize].push(label);
        }
        for labels in of_level {
            prune(merge(labels, cells), cells.penalty, &mut kept);
        }
        Self { labels: kept }
    }

    /// Keeps the `count` labels of which the most is hoped for.
    pub(super) fn keep_best(&mut self, count: usize, promise: impl Fn(&Label) -> f64) {
        if self.labels.len() > count {
            self.labels
                .sort_by_cached_key(|label| std::cmp::Reverse(Key(promise(label))));
            self.labels.truncate(count);
        }
    }

    pub(super) fn labels(&self) -> &[Label] {
        &self.labels
    }

    pub(super) fn len(&self) -> usize {
        self.labels.len()
    }
}

/// The labels, of one last quality, with one for each cell: the earliest, with the best values of
/// all in the cell. The result is sorted by quality, the highest cell first.
fn merge(labels: Vec<Label>, cells: &Cells) -> Vec<Label> {
    let cell = |label: &Label| {
        let quality = (label.quality / cells.quality).round() as i64;
        let net = (label.net(cells.penalty) / cells.net).floor() as i64;
        (quality, net)
    };
    let mut placed: Vec<_> = labels.into_iter().map(|one| (cell(&one), one)).collect();
    placed.sort_unstable_by(|(cell, one), (other_cell, other)| {
        let places = other_cell.cmp(cell);
        let times = || one.trace_s.total_cmp(&other.trace_s);
        places.then_with(times).then(one.parent.cmp(&other.parent))
    });
    placed.dedup_by(|(of, label), (cell, best)| {
        let same = of == cell;
        if same {
            best.quality = best.quality.max(label.quality);
            best.rebuffer_s = best.rebuffer_s.min(label.rebuffer_s);
        }
        same
    });
    placed.into_iter().map(|(_, label)| label).collect()
}

/// Appends those labels, of one last quality, that none is better than.
fn prune(mut labels: Vec<Label>, penalty: f64, kept: &mut Vec<Label>) {
    labels.sort_by(|one, other| {
        let quality = other.quality.total_cmp(&one.quality);
        let net = || other.net(penalty).total_cmp(&one.net(penalty));
        quality
            .then_with(net)
            .then(one.trace_s.total_cmp(&other.trace_s))
    });
    // Of the labels so far, all of at least the quality at hand: the earliest time for each net
    // value, ascending in both.
    let mut stairs: BTreeMap<Key, f64> = BTreeMap::new();
    for label in labels {
        let net = Key(label.net(penalty));
        let better = stairs.range(net..).next();
        if better.is_some_and(|(_, &trace_s)| trace_s <= label.trace_s) {
            continue;
        }
        // What this label is better than is no step any more.
        while let Some((&below, _)) = stairs
            .range(..=net)
            .next_back()
            .filter(|(_, trace_s)| **trace_s >= label.trace_s)
        {
            stairs.remove(&below);
        }
        stairs.insert(net, label.trace_s);
        kept.push(label);
    }
}

/// A number as a key.
#[derive(Clone, Copy, PartialEq)]
struct Key(f64);

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    /// Whether a label is better than another one by the definition.
    fn is_better(one: &Label, other: &Label, penalty: f64) -> bool {
        let more = penalty * f64::max(one.rebuffer_s - other.rebuffer_s, 0.0);
        one.trace_s <= other.trace_s && one.quality - other.quality >= more
    }

    #[test]
    fn only_labels_without_a_better_one_are_kept() {
        let mut random = StdRng::seed_from_u64(7);
        for count in [1, 2, 5, 40, 300] {
            // Multiples of 1/4, so that the penalty of 2 rounds nothing.
            let mut quarter = |most: i32| f64::from(random.random_range(0..=most)) / 4.0;
            let labels: Vec<Label> = (0..count)
                .map(|parent| Label {
                    trace_s: quarter(60),
                    quality: quarter(60),
                    rebuffer_s: quarter(12),
                    last: 0,
                    parent,
                })
                .collect();
            let mut kept = Vec::new();
            prune(labels.clone(), 2.0, &mut kept);
            for (place, one) in kept.iter().enumerate() {
                let others = kept.iter().enumerate().filter(|(other, _)| *other != place);
                for (_, other) in others {
                    assert!(!is_better(other, one, 2.0), "{one:?} {other:?}");
                }
            }
            for label in &labels {
                assert!(
                    kept.iter().any(|one| is_better(one, label, 2.0)),
                    "{label:?}"
                );
            }
        }
    }

    #[test]
    fn a_merged_label_has_the_best_of_its_cell() {
        let label = |trace_s, quality, rebuffer_s| Label {
            trace_s,
            quality,
            rebuffer_s,
            last: 0,
            parent: 0,
        };
        let cells = Cells {
            quality: 1.0,
            net: 1.0,
            penalty: 1.0,
        };
        let labels = vec![
            label(2.0, 5.1, 0.1),
            label(1.0, 5.0, 0.2),
            label(1.0, 6.0, 0.0),
        ];
        let expected = vec![
            label(1.0, 6.0, 0.0),
            label(2.0, 5.1, 0.1),
            label(1.0, 5.0, 0.2),
        ];
        assert_eq!(merge(labels, &cells), expected);
        let labels = vec![label(2.0, 5.3, 0.1), label(1.0, 5.0, 0.0)];
        assert_eq!(merge(labels, &cells), [label(1.0, 5.3, 0.0)]);
    }
}
