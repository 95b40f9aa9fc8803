//! Gaussian processes of several outputs over the unit cube, for few points of few dimensions.
//!
//! Carl Edward Rasmussen and Christopher K. I. Williams, "Gaussian Processes for Machine Learning",
//! MIT Press 2006: algorithm 2.1 and equation 5.8, with the Matérn kernel of ν = 5/2 (equation
//! 4.17) and a length scale per dimension. The outputs share kernel and noise, so that one factor
//! serves all of them; each has a mean and a variance of its own, the latter at its maximum
//! likelihood.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

use crate::cholesky::Cholesky;

/// Range of the length scales, in widths of the cube.
const LENGTHS: [f64; 2] = [0.03, 5.0];
/// Range of the noise's variance, as a part of the process's.
const NOISE: [f64; 2] = [1e-5, 0.3];

/// The parameters of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Kernel {
    /// Length scale of each dimension.
    pub(super) lengths: Vec<f64>,
    /// Variance of the noise of an evaluation over that of the process.
    pub(super) noise: f64,
}

/// A process that has been conditioned on evaluations.
#[derive(Clone, Debug)]
pub(super) struct Process {
    points: Vec<Vec<f64>>,
    kernel: Kernel,
    factor: Cholesky,
    outputs: Vec<Output>,
    /// The log-likelihood of the evaluations, without constants.
    pub(super) evidence: f64,
}

#[derive(Clone, Debug)]
struct Output {
    mean: f64,
    deviation: f64,
    /// K⁻¹ (y − mean), the weight of each evaluation in a prediction.
    weights: Vec<f64>,
}

impl Kernel {
    pub(super) fn new(dimensions: usize) -> Self {
        Self {
            lengths: vec![0.5; dimensions],
            noise: 1e-3,
        }
    }

    /// The correlation of two points.
    fn correlation(&self, a: &[f64], b: &[f64]) -> f64 {
        let scaled = a.iter().zip(b).zip(&self.lengths);
        let square: f64 = scaled.map(|((a, b), l)| ((a - b) / l).powi(2)).sum();
        let r = (5.0 * square).sqrt();
        (1.0 + r + 5.0 * square / 3.0) * (-r).exp()
    }

    /// A kernel near this one: one parameter, or all of them, multiplied by random factors.
    fn near(&self, random: &mut Xoshiro256PlusPlus) -> Self {
        let mut near = self.clone();
        let which = random.random_range(0..self.lengths.len() + 2);
        let mut move_by = |value: &mut f64, range: [f64; 2]| {
            let factor = (random.random_range(-1.0..1.0f64) * 1.2).exp();
            *value = (*value * factor).clamp(range[0], range[1]);
        };
        for (number, length) in near.lengths.iter_mut().enumerate() {
            if which == number || which > self.lengths.len() {
                move_by(length, LENGTHS);
            }
        }
        if which == self.lengths.len() {
            move_by(&mut near.noise, NOISE);
        }
        near
    }
}

impl Process {
    /// Conditions a process on `values`, of which there is a list for each point.
    pub(super) fn new(points: &[Vec<f64>], values: &[Vec<f64>], kernel: Kernel) -> Self {
        let size = points.len();
        let mut matrix = vec![0.0; size * size];
        for i in 0..size {
            for j in 0..=i {
                matrix[i * size + j] = kernel.correlation(&points[i], &points[j]);
            }
            matrix[i * size + i] += kernel.noise;
        }
        let factor = Cholesky::new(&matrix, size);
        let mut fits = 0.0;
        let outputs = values.first().map_or(0, Vec::len);
        let outputs: Vec<Output> = (0..outputs)
            .map(|output| {
                let mean = values.iter().map(|v| v[output]).sum::<f64>() / size as f64;
                let centred: Vec<f64> = values.iter().map(|v| v[output] - mean).collect();
                let mut weights = centred.clone();
                factor.solve(&mut weights, 1);
                let square: f64 = centred.iter().zip(&weights).map(|(y, w)| y * w).sum();
                // An output that is the same everywhere has no variance.
                let variance = (square / size as f64).max(1e-12);
                fits += variance.ln();
                Output {
                    mean,
                    deviation: variance.sqrt(),
                    weights,
                }
            })
            .collect();
        let complexity = outputs.len() as f64 * factor.log_determinant();
        Self {
            points: points.to_vec(),
            kernel,
            factor,
            outputs,
            evidence: -0.5 * (size as f64 * fits + complexity),
        }
    }

    /// Conditions a process whose kernel is the likeliest of `tries` random steps from the one
    /// given.
    pub(super) fn likeliest(
        points: &[Vec<f64>],
        values: &[Vec<f64>],
        kernel: Kernel,
        tries: usize,
        random: &mut Xoshiro256PlusPlus,
    ) -> Self {
        let mut best = Self::new(points, values, kernel);
        for _ in 0..tries {
            let other = Self::new(points, values, best.kernel.near(random));
            if other.evidence > best.evidence {
                best = other;
            }
        }
        best
    }

    pub(super) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Writes the mean of each output at a point to `means`, and its standard deviation, without
    /// the noise of an evaluation, to `deviations`.
    pub(super) fn predict(&self, at: &[f64], means: &mut Vec<f64>, deviations: &mut Vec<f64>) {
        let mut along: Vec<f64> = (self.points.iter())
            .map(|point| self.kernel.correlation(point, at))
            .collect();
        means.clear();
        means.extend(self.outputs.iter().map(|output| {
            let products = output.weights.iter().zip(&along);
            output.mean + products.map(|(w, k)| w * k).sum::<f64>()
        }));
        self.factor.solve_lower(&mut along, 1);
        let explained: f64 = along.iter().map(|x| x * x).sum();
        let share = (1.0 - explained).max(0.0).sqrt();
        deviations.clear();
        deviations.extend(self.outputs.iter().map(|output| output.deviation * share));
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn branin(x: &[f64]) -> f64 {
        let (a, b) = (15.0 * x[0] - 5.0, 15.0 * x[1]);
        let pi = std::f64::consts::PI;
        let curve = b - 5.1 / (4.0 * pi * pi) * a * a + 5.0 / pi * a - 6.0;
        curve * curve + 10.0 * (1.0 - 1.0 / (8.0 * pi)) * a.cos() + 10.0
    }

    fn grid(side: usize) -> Vec<Vec<f64>> {
        let at = |i: usize| (i as f64 + 0.5) / side as f64;
        (0..side * side)
            .map(|n| vec![at(n / side), at(n % side)])
            .collect()
    }

    #[test]
    fn it_passes_through_its_points_and_is_certain_there() {
        let points = grid(4);
        let values: Vec<Vec<f64>> = points.iter().map(|p| vec![p[0] - p[1], 7.0]).collect();
        let kernel = Kernel {
            noise: 1e-9,
            ..Kernel::new(2)
        };
        let process = Process::new(&points, &values, kernel);
        let (mut means, mut deviations) = (Vec::new(), Vec::new());
        for (point, values) in points.iter().zip(&values) {
            process.predict(point, &mut means, &mut deviations);
            assert!((means[0] - values[0]).abs() < 1e-5, "{means:?}");
            assert!((means[1] - 7.0).abs() < 1e-5, "a constant stays one");
            assert!(deviations[0] < 1e-3, "{deviations:?}");
        }
        process.predict(&[0.5, 0.5], &mut means, &mut deviations);
        let near = deviations[0];
        process.predict(&[3.0, 3.0], &mut means, &mut deviations);
        assert!(deviations[0] > 10.0 * near, "less is known far away");
        // Far from all points nothing is known but mean and variance.
        process.predict(&[90.0, 90.0], &mut means, &mut deviations);
        assert!(means[0].abs() < 1e-9, "the mean over the points");
    }

    /// Two points and no noise, as in Rasmussen and Williams's equations 2.25 and 2.26 by hand.
    #[test]
    fn mean_and_variance_are_those_of_the_textbook() {
        let kernel = Kernel {
            lengths: vec![1.0],
            noise: 0.0,
        };
        let k = |d: f64| {
            let r = 5f64.sqrt() * d;
            (1.0 + r + r * r / 3.0) * (-r).exp()
        };
        let process = Process::new(&[vec![0.0], vec![1.0]], &[vec![1.0], vec![3.0]], kernel);
        let (mut means, mut deviations) = (Vec::new(), Vec::new());
        process.predict(&[0.25], &mut means, &mut deviations);
        let (c, a, b) = (k(1.0), k(0.25), k(0.75));
        // The mean of the values is 2; K⁻¹ is [1 −c; −c 1] / (1 − c²).
        let (wa, wb) = ((a - c * b) / (1.0 - c * c), (b - c * a) / (1.0 - c * c));
        assert!((means[0] - (2.0 - wa + wb)).abs() < 1e-9, "{means:?}");
        // yᵀ K⁻¹ y / n for y = (−1, 1).
        let variance = (2.0 + 2.0 * c) / (1.0 - c * c) / 2.0;
        let expected = (variance * (1.0 - wa * a - wb * b)).sqrt();
        assert!((deviations[0] - expected).abs() < 1e-9, "{deviations:?}");
    }

    #[test]
    fn the_likeliest_kernel_predicts_a_known_function_and_finds_the_idle_dimension() {
        let mut points = grid(7);
        let values: Vec<Vec<f64>> = points.iter().map(|p| vec![branin(p)]).collect();
        for (number, point) in points.iter_mut().enumerate() {
            point.push((number * 37 % 49) as f64 / 49.0);
        }
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let process = Process::likeliest(&points, &values, Kernel::new(3), 300, &mut random);
        let (mut means, mut deviations) = (Vec::new(), Vec::new());
        let (mut error, mut spread) = (0.0, 0.0);
        let mean = values.iter().map(|v| v[0]).sum::<f64>() / 49.0;
        for at in grid(6) {
            let truth = branin(&at);
            process.predict(&[at[0], at[1], 0.4], &mut means, &mut deviations);
            error += (means[0] - truth).powi(2);
            spread += (truth - mean).powi(2);
        }
        assert!(error < 0.01 * spread, "{}", error / spread);
        let lengths = &process.kernel().lengths;
        assert!(lengths[2] > 2.0 * lengths[0], "{lengths:?}");
    }
}
