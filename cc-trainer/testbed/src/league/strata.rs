//! A sample of links that resembles the whole set: stratified by rate, RTT and buffer.

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

/// Number of parts that each property of the links is divided into.
const PARTS: usize = 3;
/// Seed of the order within a stratum, fixed so that every sample of a set is the same.
const SEED: u64 = 1;

/// What a sample is stratified by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Properties {
    /// Mean rate, Mbit/s; infinite for a link without a rate.
    pub rate_mbps: f64,
    /// Propagation delay of both directions together, in ms.
    pub rtt_ms: f64,
    /// Buffer as a multiple of the bandwidth-delay product; infinite for an unlimited queue.
    pub buffer_bdp: f64,
}

/// The indices of the links in a sample of `share` of them, ascending.
///
/// The links are sorted by stratum, a third of the rates, of the RTTs and of the buffers each; in a
/// stratum their order is random. Every `1 / share`-th of that order is taken. Each stratum is
/// therefore represented by its share, to within one link, also where it has fewer than
/// `1 / share`.
///
/// The result is empty when `share` is less than half a link.
pub fn sample(links: &[Properties], share: f64) -> Vec<usize> {
    let thirds = [
        thirds(links, |link| link.rate_mbps),
        thirds(links, |link| link.rtt_ms),
        thirds(links, |link| link.buffer_bdp),
    ];
    let mut order: Vec<usize> = (0..links.len()).collect();
    order.shuffle(&mut StdRng::seed_from_u64(SEED));
    // A stable sort keeps the random order within each stratum.
    order.sort_by_key(|&link| thirds.each_ref().map(|thirds| thirds[link]));
    let count = (share * links.len() as f64).round() as usize;
    let mut taken: Vec<usize> = (0..count.min(links.len()))
        // The middle of each of `count` equal parts.
        .map(|part| order[(2 * part + 1) * links.len() / (2 * count)])
        .collect();
    taken.sort_unstable();
    taken
}

/// The third of the links that each link belongs to by a property. Links with equal properties are
/// in the same third.
fn thirds(links: &[Properties], property: fn(&Properties) -> f64) -> Vec<usize> {
    let mut sorted: Vec<f64> = links.iter().map(property).collect();
    sorted.sort_by(f64::total_cmp);
    let third = |link: &Properties| {
        let rank = sorted.partition_point(|&value| value < property(link));
        rank * PARTS / links.len()
    };
    links.iter().map(third).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn grid() -> Vec<Properties> {
        let mut links = Vec::new();
        for rate_mbps in [12.0, 24.0, 48.0, 96.0, 192.0] {
            for rtt_ms in [10.0, 20.0, 40.0, 80.0, 160.0] {
                for buffer_bdp in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0] {
                    links.push(Properties {
                        rate_mbps,
                        rtt_ms,
                        buffer_bdp,
                    });
                }
            }
        }
        links
    }

    #[test]
    fn a_tenth_of_a_grid_resembles_it() {
        let links = grid();
        let taken = sample(&links, 0.1);
        assert_eq!(taken.len(), 15);
        for property in [
            |link: &Properties| link.rate_mbps,
            |link: &Properties| link.rtt_ms,
            |link: &Properties| link.buffer_bdp,
        ] {
            let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
            let thirds = thirds(&links, property);
            for &link in &taken {
                *counts.entry(thirds[link]).or_default() += 1;
            }
            assert!(
                counts.len() == PARTS && counts.values().all(|count| (2..=7).contains(count)),
                "{counts:?}"
            );
        }
    }

    #[test]
    fn the_whole_and_nothing_are_samples_too() {
        let links = grid();
        let all: Vec<usize> = (0..links.len()).collect();
        assert_eq!(sample(&links, 1.0), all);
        assert!(sample(&links, 0.003).is_empty());
        assert_eq!(sample(&links, 0.004).len(), 1);
        assert!(sample(&[], 0.5).is_empty());
    }

    #[test]
    fn links_without_limits_are_in_the_last_third() {
        let unlimited = Properties {
            rate_mbps: f64::INFINITY,
            rtt_ms: 1.0,
            buffer_bdp: f64::INFINITY,
        };
        let mut links = grid();
        links.push(unlimited);
        assert_eq!(thirds(&links, |link| link.buffer_bdp).last(), Some(&2));
    }

    proptest! {
        #[test]
        fn a_sample_has_its_size_and_no_link_twice(
            links in prop::collection::vec((0.1..500.0_f64, 1.0..300.0_f64, 0.1..20.0_f64), 1..300),
            share in 0.0..=1.0_f64,
        ) {
            let links: Vec<_> = links
                .into_iter()
                .map(|(rate_mbps, rtt_ms, buffer_bdp)| Properties { rate_mbps, rtt_ms, buffer_bdp })
                .collect();
            let taken = sample(&links, share);
            prop_assert_eq!(taken.len(), (share * links.len() as f64).round() as usize);
            prop_assert!(taken.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", taken);
        }
    }
}
