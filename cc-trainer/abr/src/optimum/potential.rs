//! What the chunks to come can still be worth at most.

use super::capacity::Capacity;

/// Rebuffering beyond which the bound does not look, s: as if a penalty were too small to count.
const FAR_S: f64 = 1e4;

/// An upper bound of the score of the chunks to come.
///
/// All bytes have to arrive by the last chunk's deadline and what is rebuffered in all; the
/// deadlines before it are left out, and changes cost nothing. The most quality for so many bytes
/// is the linear relaxation of a knapsack: the steps on the upper hulls of all chunks' sizes, in
/// the order of their quality per byte. Bytes that more rebuffering brings are worth at most the
/// quality per byte at that place, since the line is concave.
pub(super) struct Potential {
    /// Place in the trace by which everything has arrived if nothing rebuffers, s.
    deadline_s: f64,
    /// Penalty for a second of rebuffering.
    penalty: f64,
    /// Rebuffering beyond which no schedule is worth what is asked for, s.
    most_rebuffer_s: f64,
    /// Rebuffering at which a piece of the trace ends, s, ascending up to `most_rebuffer_s`, and
    /// the bytes that the trace has carried by then.
    ends: Vec<(f64, f64)>,
    /// For each chunk: what it and those after it can be worth.
    knapsacks: Vec<Knapsack>,
}

/// What the bound is about.
pub(super) struct Problem<'a> {
    /// Bytes of each chunk in each quality: `[chunks][levels]`.
    pub(super) sizes: &'a [Vec<u32>],
    /// Score of each quality: `[levels]`.
    pub(super) qualities: &'a [f64],
    /// Place in the trace by which everything has arrived if nothing rebuffers, s.
    pub(super) deadline_s: f64,
    /// Penalty for a second of rebuffering.
    pub(super) penalty: f64,
}

impl Potential {
    /// Prepares the bound for schedules whose score is at least `asked`, summed over the chunks
    /// from the second one on.
    pub(super) fn new(problem: &Problem<'_>, capacity: &Capacity, asked: f64) -> Self {
        let knapsacks = Knapsack::of_suffixes(problem);
        let all = knapsacks.get(1).map_or(0.0, Knapsack::most);
        let most_rebuffer_s = ((all - asked) / problem.penalty).max(0.0);
        let from_s = problem.deadline_s;
        let mut ends = Vec::new();
        if most_rebuffer_s < FAR_S {
            ends = capacity.ends_between(from_s, from_s + most_rebuffer_s);
            ends.push(from_s + most_rebuffer_s);
        }
        let end = |time_s: f64| (time_s - from_s, capacity.until(time_s));
        Self {
            deadline_s: from_s,
            penalty: problem.penalty,
            most_rebuffer_s,
            ends: ends.into_iter().map(end).collect(),
            knapsacks,
        }
    }

    /// The bound for the chunks from `chunk` on, the first of which is asked for at a place in the
    /// trace after so much rebuffering, both s. Minus infinity where no schedule is worth what was
    /// asked for.
    pub(super) fn of(
        &self,
        chunk: usize,
        trace_s: f64,
        rebuffer_s: f64,
        capacity: &Capacity,
    ) -> f64 {
        let Some(knapsack) = self.knapsacks.get(chunk) else {
            return 0.0;
        };
        if self.most_rebuffer_s >= FAR_S {
            return knapsack.most();
        }
        let had = capacity.until(trace_s);
        let mut rebuffered_s = rebuffer_s;
        let mut carried = capacity.until(self.deadline_s + rebuffered_s);
        if carried - had < knapsack.least_bytes() {
            carried = had + knapsack.least_bytes();
            rebuffered_s = rebuffered_s.max(capacity.time(carried) - self.deadline_s);
        }
        if rebuffered_s > self.most_rebuffer_s {
            return f64::NEG_INFINITY;
        }
        let (quality, per_byte) = knapsack.quality(carried - had);
        let later = self
            .ends
            .partition_point(|&(end_s, _)| end_s <= rebuffered_s);
        let more = self.ends[later..].iter().map(|&(end_s, bytes)| {
            per_byte * (bytes - carried) - self.penalty * (end_s - rebuffered_s)
        });
        quality + more.fold(0.0, f64::max) - self.penalty * (rebuffered_s - rebuffer_s)
    }
}

/// The most quality for so many bytes: a concave line through points, level after the last one.
struct Knapsack {
    /// Bytes and quality of the points, ascending. The first one has every chunk at its smallest.
    points: Vec<(f64, f64)>,
}

impl Knapsack {
    /// For each chunk the knapsack of it and those after it.
    fn of_suffixes(problem: &Problem<'_>) -> Vec<Self> {
        let hulls: Vec<_> = problem
            .sizes
            .iter()
            .map(|sizes| hull(sizes, problem.qualities))
            .collect();
        let mut steps: Vec<(usize, (f64, f64))> = Vec::new();
        for (chunk, hull) in hulls.iter().enumerate() {
            let step = |pair: &[(f64, f64)]| (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
            steps.extend(hull.windows(2).map(|pair| (chunk, step(pair))));
        }
        let per_byte = |&(_, (bytes, quality)): &(usize, (f64, f64))| quality / bytes;
        steps.sort_by(|one, other| per_byte(other).total_cmp(&per_byte(one)));
        let of = |first: usize| {
            let least = hulls[first..].iter().map(|hull| hull[0]);
            let mut at = least.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let mut points = vec![at];
            for (_, step) in steps.iter().filter(|(chunk, _)| *chunk >= first) {
                at = (at.0 + step.0, at.1 + step.1);
                points.push(at);
            }
            Self { points }
        };
        (0..hulls.len()).map(of).collect()
    }

    fn least_bytes(&self) -> f64 {
        self.points[0].0
    }

    fn most(&self) -> f64 {
        self.points[self.points.len() - 1].1
    }

    /// The most quality for so many bytes, at least the least, and what each byte more is worth.
    fn quality(&self, bytes: f64) -> (f64, f64) {
        let next = self.points.partition_point(|point| point.0 <= bytes).max(1);
        let Some(&(right, above)) = self.points.get(next) else {
            return (self.most(), 0.0);
        };
        let (left, below) = self.points[next - 1];
        let per_byte = (above - below) / (right - left);
        (below + per_byte * (bytes - left).max(0.0), per_byte)
    }
}

/// The upper hull of a chunk's sizes and qualities, from the smallest size to the best quality.
fn hull(sizes: &[u32], qualities: &[f64]) -> Vec<(f64, f64)> {
    let sizes = sizes.iter().map(|&bytes| f64::from(bytes));
    let mut points: Vec<(f64, f64)> = sizes.zip(qualities.iter().copied()).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.total_cmp(&one.1)));
    let mut hull: Vec<(f64, f64)> = Vec::with_capacity(points.len());
    for point in points {
        if hull.last().is_some_and(|last| point.1 <= last.1) {
            continue;
        }
        while let [.., before, last] = hull[..] {
            let below = (last.1 - before.1) * (point.0 - last.0)
                <= (point.1 - last.1) * (last.0 - before.0);
            if !below {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::trace::Trace;

    #[test]
    fn a_hull_leaves_out_what_is_not_worth_its_bytes() {
        let found = hull(&[10, 20, 30, 40, 50], &[1.0, 2.0, 3.5, 3.4, 4.0]);
        assert_eq!(found, [(10.0, 1.0), (30.0, 3.5), (50.0, 4.0)]);
        // A better quality with fewer bytes leaves only itself.
        assert_eq!(hull(&[20, 10], &[1.0, 2.0]), [(10.0, 2.0)]);
        assert_eq!(hull(&[10, 10], &[1.0, 2.0]), [(10.0, 2.0)]);
    }

    /// The best score of the chunks from `chunk` on without costs of changes, by trying all.
    fn best(problem: &Problem<'_>, capacity: &Capacity, chunk: usize, at: (f64, f64)) -> f64 {
        let Some(sizes) = problem.sizes.get(chunk) else {
            return 0.0;
        };
        let left = (problem.sizes.len() - 1 - chunk) as f64;
        let options = sizes
            .iter()
            .zip(problem.qualities)
            .map(|(&bytes, quality)| {
                let arrival_s = capacity.arrival(at.0, bytes);
                // Chunks of 4 s: those before the last one are due earlier.
                let late_s = arrival_s - (problem.deadline_s - 4.0 * left);
                let more_s = (late_s - at.1).max(0.0);
                let next = (arrival_s, at.1 + more_s);
                quality - problem.penalty * more_s + best(problem, capacity, chunk + 1, next)
            });
        options.fold(f64::NEG_INFINITY, f64::max)
    }

    #[test]
    fn nothing_exceeds_the_potential() {
        let mut random = StdRng::seed_from_u64(3);
        let mut near = 0;
        for _ in 0..200 {
            let times: Vec<f64> = (0..20).map(f64::from).collect();
            let mbps = times.iter().map(|_| random.random_range(0.05..4.0));
            let trace = Trace::new("t", times.clone(), mbps.collect()).expect("valid");
            let capacity = Capacity::new(&trace, 0.95);
            let sizes: Vec<Vec<u32>> = (0..5)
                .map(|_| {
                    (0..3)
                        .map(|_| random.random_range(50_000..2_000_000))
                        .collect()
                })
                .collect();
            let problem = Problem {
                sizes: &sizes,
                qualities: &[0.3, 1.2, 2.85],
                deadline_s: random.random_range(2.0..30.0),
                penalty: random.random_range(0.5..8.0),
            };
            for chunk in 1..5 {
                let at = (random.random_range(0.0..9.0), random.random_range(0.0..3.0));
                let best = best(&problem, &capacity, chunk, at);
                // Nothing that is found is left out by what was asked for.
                let asked = best - problem.penalty * at.1 - 1e-9;
                let potential = Potential::new(&problem, &capacity, asked);
                let found = potential.of(chunk, at.0, at.1, &capacity);
                assert!(found >= best - 1e-9, "{found} {best}");
                near += usize::from(found < best + 0.3);
                // Asking for less changes nothing about being a bound.
                let potential = Potential::new(&problem, &capacity, asked - 20.0);
                let found = potential.of(chunk, at.0, at.1, &capacity);
                assert!(found >= best - 1e-9, "{found} {best}");
            }
            assert_eq!(
                Potential::new(&problem, &capacity, 0.0).of(5, 1.0, 0.0, &capacity),
                0.0
            );
        }
        // It is no bound that anything would satisfy.
        assert!(near > 100, "{near} of 800");
    }
}
