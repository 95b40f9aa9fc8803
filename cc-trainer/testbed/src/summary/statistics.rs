//! Statistics of runs: means, percentiles, fairness, confidence intervals and convergence.

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Largest deviation from the fair share, as a fraction of it, at which a flow counts as settled
/// ([`convergence`]).
pub const CONVERGENCE_TOLERANCE: f64 = 0.25;
/// Time for which flows must stay settled, s.
pub const CONVERGENCE_HOLD_S: f64 = 5.0;
/// Time over which throughput is averaged to judge convergence, s.
pub const CONVERGENCE_WINDOW_S: f64 = 1.0;

/// Number of bootstrap resamples. The ends of a 95 % interval are then the 50th resamples from
/// either end.
const RESAMPLES: usize = 2_000;

/// The arithmetic mean; `None` without samples.
pub fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

/// The geometric mean of positive numbers; `None` without samples or when one is not positive.
pub fn geometric_mean(samples: &[f64]) -> Option<f64> {
    if samples.iter().any(|&sample| sample <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = samples.iter().map(|sample| sample.ln()).collect();
    mean(&logs).map(f64::exp)
}

/// The nearest-rank percentile: the smallest sample that at least `percent` % of the samples do not
/// exceed. `percent` is in (0, 100]; `None` without samples.
pub fn percentile(samples: &[f64], percent: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    nearest_rank(&sorted, percent)
}

/// Jain's fairness index, `(sum x)^2 / (n sum x^2)`: 1 when all shares are equal, `1/n` when one
/// flow has everything (Jain, Chiu, Hawe: A Quantitative Measure of Fairness, DEC TR-301, 1984).
/// `None` without a positive share.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let largest = shares.iter().copied().fold(0.0, f64::max);
    // Scaled so that no square overflows or underflows.
    let scaled = || shares.iter().map(|share| share / largest);
    let (sum, squares) = (scaled().sum::<f64>(), scaled().map(|x| x * x).sum::<f64>());
    (largest > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The least share over the greatest: 1 when all are equal, 0 when one flow has nothing. `None`
/// without a positive share.
pub fn least_over_greatest(shares: &[f64]) -> Option<f64> {
    let greatest = shares.iter().copied().fold(0.0, f64::max);
    let least = shares.iter().copied().fold(greatest, f64::min);
    (greatest > 0.0).then(|| least / greatest)
}

/// Kleinrock's power of a network, throughput divided by delay, in Mbit/s per ms. The delay is the
/// 95th percentile of the one-way delay.
pub fn power(throughput_mbps: f64, p95_owd_ms: f64) -> f64 {
    throughput_mbps / p95_owd_ms
}

/// The confidence interval of the mean by the percentile bootstrap (Efron, Tibshirani: An
/// Introduction to the Bootstrap, 1993, chapter 13).
///
/// `confidence` is in (0, 1), and the same seed gives the same interval. `None` for fewer than two
/// samples, as one sample has no spread. With three samples a 95 % interval spans them all: few
/// runs give a rough interval.
pub fn bootstrap_interval(samples: &[f64], confidence: f64, seed: u64) -> Option<(f64, f64)> {
    if samples.len() < 2 {
        return None;
    }
    let mut random = StdRng::seed_from_u64(seed);
    let mut resample = || {
        let picks = samples
            .iter()
            .map(|_| samples[random.random_range(0..samples.len())]);
        picks.sum::<f64>() / samples.len() as f64
    };
    let mut means: Vec<f64> = (0..RESAMPLES).map(|_| resample()).collect();
    means.sort_by(f64::total_cmp);
    let tail = 50.0 * (1.0 - confidence);
    Some((
        nearest_rank(&means, tail)?,
        nearest_rank(&means, 100.0 - tail)?,
    ))
}

/// The confidence interval of a quantile by order statistics, whatever the distribution (David and
/// Nagaraja: Order Statistics, 2003, section 7.1).
///
/// `sorted` ascends; `quantile` and `confidence` are in (0, 1). The number of samples below the
/// quantile is binomial, so the ends are those samples whose ranks it leaves with probability (1 -
/// `confidence`) / 2 each, at most. `None` when there are too few samples for that.
pub fn quantile_interval(sorted: &[f64], quantile: f64, confidence: f64) -> Option<(f64, f64)> {
    let n = sorted.len();
    let tail = (1.0 - confidence) / 2.0;
    let (odds, mut below) = ((quantile / (1.0 - quantile)).ln(), 0.0);
    // Logarithm of the probability that `k` samples are below the quantile.
    let mut log = n as f64 * (1.0 - quantile).ln();
    let (mut low, mut high) = (None, None);
    for k in 0..=n {
        if below <= tail && k > 0 {
            low = Some(k - 1);
        }
        below += log.exp();
        if below >= 1.0 - tail {
            high = Some(k);
            break;
        }
        log += ((n - k) as f64 / (k + 1) as f64).ln() + odds;
    }
    Some((*sorted.get(low?)?, *sorted.get(high?)?))
}

/// The throughput of one flow over time, for [`convergence`].
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    /// Start of the flow, s.
    pub start_s: f64,
    /// Stop of the flow, s.
    pub stop_s: f64,
    /// Throughput in `[i, i + 1) * bin_s`, in any unit.
    pub throughput: &'a [f64],
}

/// Time that flows take to share a link equally, s.
///
/// It counts from the last flow's start to the earliest moment from which every flow, averaged over
/// each [`CONVERGENCE_WINDOW_S`], stays within [`CONVERGENCE_TOLERANCE`] of the equal share (the
/// mean of the flows in that window) for [`CONVERGENCE_HOLD_S`], all before the first flow stops.
/// `None` when that never happens or when there are fewer than two flows. The tolerance and the
/// hold are those of PCC's experiment (Dong et al., NSDI 2015, section 4.2).
pub fn convergence(flows: &[Share<'_>], bin_s: f64) -> Option<f64> {
    if flows.len() < 2 || bin_s <= 0.0 {
        return None;
    }
    let joined = flows.iter().map(|flow| flow.start_s).fold(0.0, f64::max);
    let left = flows
        .iter()
        .map(|flow| flow.stop_s)
        .fold(f64::INFINITY, f64::min);
    let recorded = flows.iter().map(|flow| flow.throughput.len()).min()?;
    let bins = |seconds: f64| seconds / bin_s;
    // Tolerates the rounding error of a start such as 0.3 / 0.1.
    let first = (bins(joined) - 1e-6).ceil() as usize;
    let end = recorded.min((bins(left) + 1e-6).floor() as usize);
    let window = bins(CONVERGENCE_WINDOW_S).round().max(1.0) as usize;
    let hold = bins(CONVERGENCE_HOLD_S).round().max(1.0) as usize;
    // Number of windows that lie entirely within the hold.
    let needed = hold.saturating_sub(window) + 1;

    let mut settled = 0;
    for start in first..(end + 1).saturating_sub(window) {
        let shares = flows
            .iter()
            .map(|flow| flow.throughput[start..start + window].iter().sum::<f64>());
        let shares: Vec<f64> = shares.collect();
        settled = if is_equal(&shares) { settled + 1 } else { 0 };
        if settled == needed {
            return Some(((start + 1 - needed) as f64 * bin_s - joined).max(0.0));
        }
    }
    None
}

fn is_equal(shares: &[f64]) -> bool {
    let fair = shares.iter().sum::<f64>() / shares.len() as f64;
    let is_near = |share: &f64| (share - fair).abs() <= CONVERGENCE_TOLERANCE * fair;
    fair > 0.0 && shares.iter().all(is_near)
}

fn nearest_rank(sorted: &[f64], percent: f64) -> Option<f64> {
    // Subtracts less than one sample's weight, so that rounding does not make the 19th of 20
    // samples the 20th at 95 %.
    let rank = (percent / 100.0 * sorted.len() as f64 - 1e-9).ceil();
    sorted
        .get((rank.max(1.0) as usize - 1).min(sorted.len().checked_sub(1)?))
        .copied()
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let samples: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        for (percent, expected) in [
            (5.0, 1.0),
            (50.0, 10.0),
            (95.0, 19.0),
            (95.1, 20.0),
            (100.0, 20.0),
        ] {
            assert_eq!(percentile(&samples, percent), Some(expected), "{percent}");
        }
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn statistics_match_known_values() {
        assert_eq!(jain(&[1.0, 1.0, 0.0, 0.0]), Some(0.5));
        assert_eq!(jain(&[0.0, 0.0]), None);
        assert_eq!(jain(&[]), None);
        assert_eq!(least_over_greatest(&[3.0, 4.0, 1.0]), Some(0.25));
        assert_eq!(least_over_greatest(&[0.0, 0.0]), None);
        assert_eq!(least_over_greatest(&[]), None);
        assert_eq!(geometric_mean(&[1.0, 100.0]).map(f64::round), Some(10.0));
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
        assert_eq!(mean(&[]), None);
        assert_eq!(bootstrap_interval(&[3.0], 0.95, 1), None);
        assert_eq!(power(12.0, 48.0), 0.25);
    }

    /// A 95 % interval of the mean of thirty samples covers the true mean in about 95 % of the
    /// cases.
    #[test]
    fn intervals_cover_the_mean() {
        let mut random = StdRng::seed_from_u64(7);
        let covered = (0..100).filter(|&trial| {
            let samples: Vec<f64> = (0..30).map(|_| random.random_range(0.0..2.0)).collect();
            let interval = bootstrap_interval(&samples, 0.95, trial);
            interval.is_some_and(|(low, high)| low <= 1.0 && 1.0 <= high)
        });
        let covered = covered.count();
        assert!((86..=99).contains(&covered), "{covered} of 100");
    }

    #[test]
    fn intervals_of_quantiles_are_those_of_the_tables() {
        let samples = |n: u32| (1..=n).map(f64::from).collect::<Vec<f64>>();
        // Ranks 40 and 61 of 100 for the median (Conover: Practical Nonparametric Statistics).
        let interval = |n, quantile| quantile_interval(&samples(n), quantile, 0.95);
        assert_eq!(interval(100, 0.5), Some((40.0, 61.0)));
        assert_eq!(interval(10, 0.5), Some((2.0, 9.0)));
        assert_eq!(interval(5, 0.5), None, "2⁻⁵ is more than 2.5 %");
        assert_eq!(interval(367, 0.99), None);
        assert!(interval(368, 0.99).is_some_and(|(_, high)| high == 368.0));
        assert_eq!(interval(0, 0.5), None);
        let (low, high) = interval(20_000, 0.99).expect("enough");
        assert!((19_760.0..19_780.0).contains(&low) && (19_820.0..19_840.0).contains(&high));
    }

    /// A 95 % interval of a quantile covers the true one in at least about 95 % of the cases.
    #[test]
    fn intervals_cover_the_quantile() {
        let mut random = StdRng::seed_from_u64(9);
        let covered = (0..200).filter(|_| {
            let mut samples: Vec<f64> = (0..500).map(|_| random.random()).collect();
            samples.sort_by(f64::total_cmp);
            let interval = quantile_interval(&samples, 0.99, 0.95);
            interval.is_some_and(|(low, high)| low <= 0.99 && 0.99 <= high)
        });
        let covered = covered.count();
        assert!(covered >= 185, "{covered} of 200");
    }

    /// Two flows in bins of 100 ms; the second one starts at 2 s and reaches its full share at
    /// `settles_s`.
    fn pair(settles_s: f64, seconds: f64) -> (Vec<f64>, Vec<f64>) {
        let times = (0..(seconds * 10.0) as u32).map(|bin| f64::from(bin) / 10.0);
        let second = |t: f64| match t {
            t if t < 2.0 => 0.0,
            t if t < settles_s => 1.0,
            _ => 5.0,
        };
        times.map(|t| (10.0 - second(t), second(t))).unzip()
    }

    fn converge(first: &[f64], second: &[f64], stop_s: f64) -> Option<f64> {
        let share = |start_s, throughput| Share {
            start_s,
            stop_s,
            throughput,
        };
        convergence(&[share(0.0, first), share(2.0, second)], 0.1)
    }

    #[test]
    fn convergence_counts_from_the_last_start() {
        let (first, second) = pair(7.0, 30.0);
        let time = converge(&first, &second, 30.0).expect("they settle");
        // A window that begins a little before 7 s averages to nearly the share.
        assert!((4.6..=5.0).contains(&time), "{time}");
        let share = |throughput| Share {
            start_s: 0.3,
            stop_s: 30.0,
            throughput,
        };
        let at_once =
            convergence(&[share(&first), share(&first)], 0.1).expect("equal from the start");
        assert!(at_once < 1e-9, "{at_once}");
    }

    #[test]
    fn convergence_must_last_and_before_a_flow_stops() {
        let (first, second) = pair(7.0, 30.0);
        assert_eq!(converge(&first, &second, 11.0), None);
        assert_eq!(converge(&first[..110], &second[..110], 30.0), None);
        let (mut first, mut second) = pair(7.0, 30.0);
        for bin in (0..300).step_by(40) {
            first[bin..bin + 10].fill(9.0);
            second[bin..bin + 10].fill(1.0);
        }
        assert_eq!(converge(&first, &second, 30.0), None);
        assert_eq!(
            convergence(
                &[Share {
                    start_s: 0.0,
                    stop_s: 9.0,
                    throughput: &[1.0]
                }],
                0.1
            ),
            None
        );
    }

    #[test]
    fn flows_that_deliver_nothing_do_not_converge() {
        assert_eq!(converge(&[0.0; 300], &[0.0; 300], 30.0), None);
    }

    proptest! {
        #[test]
        fn jain_is_between_one_nth_and_one_and_ignores_scale(
            shares in vec(0.001..1e6_f64, 1..20), scale in 1e-200..1e200_f64,
        ) {
            let index = jain(&shares).expect("shares are positive");
            let n = shares.len() as f64;
            prop_assert!(index >= 1.0 / n - 1e-9 && index <= 1.0 + 1e-9, "{index}");
            let scaled: Vec<f64> = shares.iter().map(|share| share * scale).collect();
            prop_assert!((jain(&scaled).expect("still positive") - index).abs() < 1e-9);
            let equal = jain(&vec![shares[0]; shares.len()]).expect("positive");
            prop_assert!((equal - 1.0).abs() < 1e-9);
        }

        #[test]
        fn a_percentile_is_a_sample_with_its_share_below(
            samples in vec(-1e3..1e3_f64, 1..60), percent in 0.1..100.0_f64,
        ) {
            let value = percentile(&samples, percent).expect("there are samples");
            let share = |count: usize| 100.0 * count as f64 / samples.len() as f64;
            prop_assert!(samples.contains(&value));
            prop_assert!(share(samples.iter().filter(|s| **s <= value).count()) >= percent - 1e-6);
            prop_assert!(share(samples.iter().filter(|s| **s < value).count()) < percent);
        }

        #[test]
        fn convergence_lies_within_the_time_together(
            bins in vec((0.0..10.0_f64, 0.0..10.0_f64), 0..200), start_s in 0.0..10.0_f64,
        ) {
            let (first, second): (Vec<f64>, Vec<f64>) = bins.into_iter().unzip();
            let share = |start_s, throughput| Share { start_s, stop_s: 20.0, throughput };
            if let Some(time) = convergence(&[share(0.0, &first), share(start_s, &second)], 0.1) {
                prop_assert!(time >= 0.0, "{time}");
                prop_assert!(start_s + time + CONVERGENCE_HOLD_S <= 20.0 + 1e-6, "{time}");
            }
        }
    }

    proptest! {
        // Few cases, because each one resamples many times.
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn intervals_hold_the_mean_and_stay_among_the_samples(
            samples in vec(-1e3..1e3_f64, 2..8), seed: u64,
        ) {
            let (low, high) = bootstrap_interval(&samples, 0.95, seed).expect("several samples");
            let least = samples.iter().copied().fold(f64::MAX, f64::min);
            let most = samples.iter().copied().fold(f64::MIN, f64::max);
            prop_assert!(least - 1e-9 <= low && low <= high && high <= most + 1e-9);
            let mean = mean(&samples).expect("several samples");
            prop_assert!(low - 1e-9 <= mean && mean <= high + 1e-9);
            prop_assert_eq!(bootstrap_interval(&samples, 0.95, seed), Some((low, high)));
        }
    }
}
