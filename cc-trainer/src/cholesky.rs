//! The Cholesky factor of small dense matrices.

/// The factor L of a positive definite matrix L Lᵀ.
#[derive(Clone, Debug)]
pub(crate) struct Cholesky {
    lower: Vec<f64>,
    size: usize,
}

impl Cholesky {
    /// Factorises a row-major matrix, of which it reads the lower triangle.
    pub(crate) fn new(matrix: &[f64], size: usize) -> Self {
        let mut lower = vec![0.0; size * size];
        for i in 0..size {
            for j in 0..=i {
                let (row, other) = (&lower[i * size..][..j], &lower[j * size..][..j]);
                let dot: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
                let left = matrix[i * size + j] - dot;
                lower[i * size + j] = match i == j {
                    // Rounding alone can make the pivot smaller than the ridge penalty.
                    true => left.max(1e-12).sqrt(),
                    false => left / lower[j * size + j],
                };
            }
        }
        Self { lower, size }
    }

    /// Solves L Lᵀ x = b in place for `columns` right-hand sides, `[size][columns]`.
    pub(crate) fn solve(&self, right: &mut [f64], columns: usize) {
        self.solve_lower(right, columns);
        let size = self.size;
        for column in 0..columns {
            for i in (0..size).rev() {
                let mut value = right[i * columns + column];
                for j in i + 1..size {
                    value -= self.lower[j * size + i] * right[j * columns + column];
                }
                right[i * columns + column] = value / self.lower[i * size + i];
            }
        }
    }

    /// Solves L x = b in place for `columns` right-hand sides, `[size][columns]`.
    pub(crate) fn solve_lower(&self, right: &mut [f64], columns: usize) {
        let size = self.size;
        for column in 0..columns {
            for i in 0..size {
                let row = &self.lower[i * size..][..=i];
                let mut value = right[i * columns + column];
                for (j, factor) in row[..i].iter().enumerate() {
                    value -= factor * right[j * columns + column];
                }
                right[i * columns + column] = value / row[i];
            }
        }
    }

    /// The natural logarithm of the determinant of L Lᵀ.
    pub(crate) fn log_determinant(&self) -> f64 {
        let diagonal = self.lower.iter().step_by(self.size + 1);
        2.0 * diagonal.map(|pivot| pivot.ln()).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cholesky_factor_solves_for_several_columns() {
        let matrix = [4.0, 0.0, 0.0, 2.0, 5.0, 0.0, 1.0, 3.0, 6.0];
        let cholesky = Cholesky::new(&matrix, 3);
        // The columns (1, 2, 3) and (−1, 0, 2), multiplied by the symmetric matrix.
        let mut right = [11.0, -2.0, 21.0, 4.0, 25.0, 11.0];
        cholesky.solve(&mut right, 2);
        for (found, expected) in right.iter().zip([1.0, -1.0, 2.0, 0.0, 3.0, 2.0]) {
            assert!((found - expected).abs() < 1e-12, "{right:?}");
        }
    }

    #[test]
    fn the_determinant_is_the_product_of_the_pivots() {
        // 4 (5 · 6 − 3 · 3) − 2 (2 · 6 − 3 · 1) + (2 · 3 − 5).
        let matrix = [4.0, 0.0, 0.0, 2.0, 5.0, 0.0, 1.0, 3.0, 6.0];
        let determinant = Cholesky::new(&matrix, 3).log_determinant().exp();
        assert!((determinant - 67.0).abs() < 1e-9, "{determinant}");
    }
}
