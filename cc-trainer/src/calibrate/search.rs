//! Bayesian optimisation: looks for the point of the unit cube at which a simulation comes nearest
//! to what was recorded.
//!
//! What is minimised is a sum of squared residuals, and each residual is modelled by itself: a
//! process of every figure knows more than one of their sum (R. Astudillo and P. Frazier, "Bayesian
//! Optimization of Composite Functions", ICML 2019). The next point is the one of many with the
//! greatest expected improvement (D. Jones, M. Schonlau, W. Welch, "Efficient Global Optimization
//! of Expensive Black-Box Functions", Journal of Global Optimization 13, 1998), which is computed
//! from draws, because a sum of squares of Gaussian variables has no closed form for it.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

use super::gaussian::{Kernel, Process};

/// Number of draws of which an expected improvement is computed.
const DRAWS: usize = 48;
/// Number of points over the whole cube among which the next one is chosen.
const WIDE: usize = 300;
/// Number of points near each of the best ones among which it is chosen.
const NEAR: usize = 60;
/// Number of the best points that others are tried near.
const BEST: usize = 4;
/// Number of kernels that are tried before each step.
const KERNELS: usize = 12;

/// One evaluation: a point of the unit cube, and the weighted residuals there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Evaluation {
    pub(super) point: Vec<f64>,
    pub(super) residuals: Vec<f64>,
}

impl Evaluation {
    /// What is minimised: the sum of the squared residuals.
    pub(super) fn score(&self) -> f64 {
        score(&self.residuals)
    }
}

fn score(residuals: &[f64]) -> f64 {
    residuals.iter().map(|r| r * r).sum()
}

/// How many evaluations a search may take, and when it ends before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Number of points that fill the cube before the first process is made.
    pub(super) initial: usize,
    /// Number of evaluations at most, those that are known included.
    pub(super) most: usize,
    /// Number of evaluations after which a search ends that has not got better.
    pub(super) patience: usize,
    /// Score at which the search ends before.
    pub(super) enough: f64,
}

/// Minimises the squared residuals that `evaluate` returns, and returns all evaluations in order,
/// after those of an earlier search, `known`. Without these the first ones are at `starts`, points
/// with as many coordinates as there are dimensions.
pub(super) fn minimise<E>(
    known: Vec<Evaluation>,
    starts: &[Vec<f64>],
    dimensions: usize,
    budget: Budget,
    seed: u64,
    mut evaluate: impl FnMut(&[f64]) -> Result<Vec<f64>, E>,
) -> Result<Vec<Evaluation>, E> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut all = known;
    let filling = (1..).map(|number| halton(number, dimensions));
    let starts = starts.iter().cloned().chain(filling);
    let missing = budget.initial.saturating_sub(all.len());
    let least = |all: &[Evaluation]| all.iter().map(Evaluation::score).fold(f64::MAX, f64::min);
    for point in starts.take(missing) {
        // What is known may be enough already.
        if least(&all) <= budget.enough {
            return Ok(all);
        }
        let residuals = evaluate(&point)?;
        all.push(Evaluation { point, residuals });
    }
    let mut kernel = Kernel::new(dimensions);
    let (mut best, mut since) = (least(&all), 0);
    while all.len() < budget.most && since < budget.patience && best > budget.enough {
        let points: Vec<_> = all.iter().map(|e| e.point.clone()).collect();
        let values: Vec<_> = all.iter().map(|e| e.residuals.clone()).collect();
        let process = Process::likeliest(&points, &values, kernel, KERNELS, &mut random);
        kernel = process.kernel().clone();
        let point = next(&process, &all, &mut random);
        let residuals = evaluate(&point)?;
        all.push(Evaluation { point, residuals });
        // Less than a twentieth is no progress.
        since = if least(&all) < 0.95 * best {
            0
        } else {
            since + 1
        };
        best = least(&all);
    }
    Ok(all)
}

/// The point with the greatest expected improvement; where none is expected, the one with the least
/// expected score.
fn next(process: &Process, all: &[Evaluation], random: &mut Xoshiro256PlusPlus) -> Vec<f64> {
    let mut order: Vec<&Evaluation> = all.iter().collect();
    order.sort_by(|a, b| a.score().total_cmp(&b.score()));
    let Some(best) = order.first() else {
        return Vec::new();
    };
    let dimensions = best.point.len();
    let mut candidates: Vec<Vec<f64>> = (0..WIDE)
        .map(|_| (0..dimensions).map(|_| random.random()).collect())
        .collect();
    for centre in order.iter().take(BEST) {
        for _ in 0..NEAR {
            // From steps of a fifth of the cube to those of a thousandth.
            let width = 0.2 * random.random_range(-5.3..0.0f64).exp();
            let all = random.random::<bool>();
            let only = random.random_range(0..dimensions);
            let moved = centre.point.iter().enumerate().map(|(number, &value)| {
                if !all && number != only {
                    return value;
                }
                (value + width * random.sample::<f64, _>(StandardNormal)).clamp(0.0, 1.0)
            });
            candidates.push(moved.collect());
        }
    }
    let draws: Vec<f64> = (0..DRAWS * best.residuals.len())
        .map(|_| random.sample(StandardNormal))
        .collect();
    let expected = |point: &Vec<f64>| expectation(process, point, best.score(), &draws);
    let chosen = candidates
        .into_iter()
        .map(|point| (expected(&point), point))
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    chosen.map_or_else(Vec::new, |(_, point)| point)
}

/// The expected improvement of a point over `best`; where no draw improves, the expected worsening
/// as a negative number.
fn expectation(process: &Process, point: &[f64], best: f64, draws: &[f64]) -> f64 {
    let (mut means, mut deviations) = (Vec::new(), Vec::new());
    process.predict(point, &mut means, &mut deviations);
    let (mut improvement, mut total) = (0.0, 0.0);
    for draw in draws.chunks_exact(means.len()) {
        let each = means.iter().zip(&deviations).zip(draw);
        let score: f64 = each.map(|((m, d), z)| (m + d * z).powi(2)).sum();
        improvement += (best - score).max(0.0);
        total += score;
    }
    let count = (draws.len() / means.len().max(1)).max(1) as f64;
    match improvement > 0.0 {
        true => improvement / count,
        false => best - total / count,
    }
}

/// A point of Halton's sequence (J. Halton, Numerische Mathematik 2, 1960): coordinate d is the
/// radical inverse of `number` in the d-th prime base.
fn halton(number: u32, dimensions: usize) -> Vec<f64> {
    const PRIMES: [u32; 10] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29];
    let inverse = |base: u32| {
        let (mut left, mut value, mut digit) = (number, 0.0, 1.0);
        while left > 0 {
            digit /= f64::from(base);
            value += f64::from(left % base) * digit;
            left /= base;
        }
        value
    };
    (0..dimensions)
        .map(|d| inverse(PRIMES[d % PRIMES.len()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const BUDGET: Budget = Budget {
        initial: 12,
        most: 40,
        patience: 40,
        enough: 1e-4,
    };

    fn search(
        dimensions: usize,
        seed: u64,
        mut of: impl FnMut(&[f64]) -> Vec<f64>,
    ) -> Vec<Evaluation> {
        let found = minimise(Vec::new(), &[], dimensions, BUDGET, seed, |point| {
            Ok::<_, Infallible>(of(point))
        });
        found.unwrap_or_else(|never| match never {})
    }

    #[test]
    fn it_finds_what_made_four_figures() {
        let model = |x: &[f64]| {
            vec![
                (3.0 * x[0]).exp() - 4.0 * x[1],
                (x[1] - x[2]).sin() * 5.0,
                x[2] * x[0] * 6.0,
                x[1] * x[1] * 3.0,
            ]
        };
        for (seed, truth) in [
            (1, [0.3, 0.8, 0.4]),
            (2, [0.9, 0.2, 0.1]),
            (3, [0.5, 0.5, 0.95]),
        ] {
            let target = model(&truth);
            let found = search(3, seed, |x| {
                let here = model(x);
                here.iter().zip(&target).map(|(a, b)| a - b).collect()
            });
            let best = found.iter().map(Evaluation::score).fold(f64::MAX, f64::min);
            assert!(best < 1e-3, "{best} after {} evaluations", found.len());
        }
    }

    #[test]
    fn it_is_better_than_a_random_search_of_the_same_length() {
        let of = |x: &[f64]| {
            let a = 20.0 * (x[0] - 0.62) * (1.0 + x[3]);
            let b = 15.0 * (x[1] - x[0] * x[0]);
            let c = 8.0 * (x[2] - 0.2 * (6.0 * x[3]).sin().abs());
            vec![a, b, c, 4.0 * (x[3] - 0.31)]
        };
        let best = |found: &[Evaluation]| found.iter().map(Evaluation::score).fold(9e9, f64::min);
        let mut wins = 0;
        for seed in 0..5 {
            let ours = best(&search(4, seed, of));
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let theirs = (0..BUDGET.most)
                .map(|_| score(&of(&[(); 4].map(|()| random.random()))))
                .fold(f64::MAX, f64::min);
            wins += usize::from(ours < 0.1 * theirs);
        }
        assert_eq!(wins, 5);
    }

    #[test]
    fn it_ends_where_it_is_good_enough_and_begins_where_it_is_told() {
        let mut asked = Vec::new();
        let start = vec![0.25, 0.75];
        let found = minimise(
            Vec::new(),
            std::slice::from_ref(&start),
            2,
            BUDGET,
            1,
            |point| {
                asked.push(point.to_vec());
                Ok::<_, Infallible>(vec![point[0] - 0.25])
            },
        );
        let Ok(found) = found;
        assert_eq!((found.len(), &asked[0]), (1, &start));
        let broken = |_: &[f64]| Err::<Vec<f64>, _>("broken");
        let error = minimise(Vec::new(), &[], 2, BUDGET, 1, broken);
        assert_eq!(error, Err("broken"));
        let mut asked = 0;
        let hopeless = Budget {
            patience: 3,
            ..BUDGET
        };
        let known = found.clone();
        let more = minimise(known, &[], 2, hopeless, 1, |_| {
            asked += 1;
            Ok::<_, Infallible>(vec![5.0])
        });
        // What is known is good enough.
        assert_eq!((more, asked), (Ok(found), 0));
        let known: Vec<Evaluation> = (1..=12)
            .map(|number| Evaluation {
                point: halton(number, 2),
                residuals: vec![5.0],
            })
            .collect();
        let more = minimise(known, &[], 2, hopeless, 1, |_| {
            Ok::<_, Infallible>(vec![5.0])
        });
        let Ok(more) = more;
        assert_eq!(more.len(), 15, "three more without progress");
    }

    #[test]
    fn an_improvement_is_expected_more_where_the_score_is_lower() {
        let points: Vec<_> = (1..20).map(|number| halton(number, 1)).collect();
        let values: Vec<_> = points.iter().map(|p| vec![10.0 * (p[0] - 0.5)]).collect();
        let process = Process::new(&points, &values, Kernel::new(1));
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let draws: Vec<f64> = (0..DRAWS).map(|_| random.sample(StandardNormal)).collect();
        let at = |x: f64| expectation(&process, &[x], 9.0, &draws);
        // 9 is the score at 0.2 and 0.8.
        assert!((at(0.5) - 9.0).abs() < 0.1, "{}", at(0.5));
        for pair in [0.5, 0.6, 0.7, 0.79, 0.9, 0.99].windows(2) {
            assert!(at(pair[0]) > at(pair[1]), "{pair:?}");
        }
        assert!(at(0.99) < 0.0, "nothing but a loss is expected there");
    }

    #[test]
    fn points_of_the_sequence_are_its_radical_inverses() {
        assert_eq!(halton(1, 2), [0.5, 1.0 / 3.0]);
        assert_eq!(halton(6, 1), [0.375]);
        let ninth = halton(9, 3);
        assert!((ninth[1] - 1.0 / 27.0).abs() < 1e-12 && (ninth[2] - 0.84).abs() < 1e-12);
    }
}
