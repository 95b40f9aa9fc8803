//! Matrices and their products, computed on the calling thread.

mod packed;

use std::ops::Range;

use gemm::Parallelism;

pub(super) use self::packed::Packed;
use super::{real::Real, vectorised::vectorised};
use crate::model::Write;

/// A row-major matrix whose rows begin at multiples of 16 elements.
#[derive(Debug)]
pub(super) struct Matrix<R> {
    data: Vec<R>,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<R: Real> Matrix<R> {
    /// A matrix of this width without rows.
    pub(super) fn new(cols: usize) -> Self {
        Self {
            data: Vec::new(),
            rows: 0,
            cols,
            stride: cols.next_multiple_of(16),
        }
    }

    /// Makes room for this many rows. Their content is unspecified.
    pub(super) fn resize(&mut self, rows: usize) {
        self.data.resize(rows * self.stride, R::ZERO);
        self.rows = rows;
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn fill(&mut self, value: R) {
        self.data.fill(value);
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &[R] {
        &self.data[row * self.stride..][..self.cols]
    }

    #[inline(always)]
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [R] {
        &mut self.data[row * self.stride..][..self.cols]
    }

    pub(super) fn rows(&self) -> impl ExactSizeIterator<Item = &[R]> {
        let rows = self.data.chunks_exact(self.stride);
        rows.map(|row| &row[..self.cols])
    }

    pub(super) fn rows_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [R]> {
        let rows = self.data.chunks_exact_mut(self.stride);
        rows.map(|row| &mut row[..self.cols])
    }

    pub(super) fn view(&self) -> View<'_, R> {
        View {
            data: &self.data,
            rows: self.rows,
            cols: self.cols,
            row_stride: self.stride,
            col_stride: 1,
        }
    }

    pub(super) fn view_mut(&mut self) -> ViewMut<'_, R> {
        ViewMut {
            data: &mut self.data,
            rows: self.rows,
            cols: self.cols,
            stride: self.stride,
        }
    }
}

/// A borrowed matrix, or a part of one.
#[derive(Clone, Copy)]
pub(super) struct View<'a, R> {
    data: &'a [R],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, R: Real> View<'a, R> {
    /// A view of a row-major array `[rows, cols]`.
    pub(super) fn of(data: &'a [R], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "an array of its matrix's size");
        Self {
            data,
            rows,
            cols,
            row_stride: cols,
            col_stride: 1,
        }
    }

    pub(super) fn rows(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.rows, "rows of the matrix");
        Self {
            data: &self.data[(range.start * self.row_stride).min(self.data.len())..],
            rows: range.len(),
            ..self
        }
    }

    /// The part with the first `cols` columns.
    pub(super) fn columns(self, cols: usize) -> Self {
        assert!(cols <= self.cols, "columns of the matrix");
        Self { cols, ..self }
    }

    /// The part with some of the columns.
    pub(super) fn part(self, columns: Range<usize>) -> Self {
        assert!(columns.end <= self.cols, "columns of the matrix");
        Self {
            data: &self.data[(columns.start * self.col_stride).min(self.data.len())..],
            cols: columns.len(),
            ..self
        }
    }

    pub(super) fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// The number of rows of the view.
    pub(super) fn len(&self) -> usize {
        self.rows
    }

    #[inline(always)]
    pub(super) fn at(&self, row: usize, col: usize) -> R {
        self.data[row * self.row_stride + col * self.col_stride]
    }

    pub(super) fn row(&self, row: usize) -> &'a [R] {
        assert_eq!(self.col_stride, 1, "a matrix that is not transposed");
        &self.data[row * self.row_stride..][..self.cols]
    }
}

/// A mutably borrowed matrix, or a part of one.
pub(super) struct ViewMut<'a, R> {
    data: &'a mut [R],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a, R: Real> ViewMut<'a, R> {
    /// The number of columns of the view.
    pub(super) fn width(&self) -> usize {
        self.cols
    }

    /// A view of a row-major array `[rows, cols]`.
    pub(super) fn of(data: &'a mut [R], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "an array of its matrix's size");
        Self {
            data,
            rows,
            cols,
            stride: cols,
        }
    }

    pub(super) fn rows(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.rows, "rows of the matrix");
        let start = (range.start * self.stride).min(self.data.len());
        Self {
            data: &mut self.data[start..],
            rows: range.len(),
            ..self
        }
    }

    /// The part with the first `cols` columns.
    pub(super) fn columns(self, cols: usize) -> Self {
        assert!(cols <= self.cols, "columns of the matrix");
        Self { cols, ..self }
    }

    /// The part with some of the columns.
    pub(super) fn part(self, columns: Range<usize>) -> Self {
        assert!(columns.end <= self.cols, "columns of the matrix");
        let start = columns.start.min(self.data.len());
        Self {
            data: &mut self.data[start..],
            cols: columns.len(),
            ..self
        }
    }
}

/// Writes a · b to c, or adds it.
pub(super) fn multiply<R: Real>(a: View<'_, R>, b: View<'_, R>, c: ViewMut<'_, R>, write: Write) {
    assert!(
        a.cols == b.rows && (c.rows, c.cols) == (a.rows, b.cols),
        "matrices that fit"
    );
    let spans = |len: usize, rows: usize, rs: usize, cols: usize, cs: usize| {
        rows == 0 || cols == 0 || (rows - 1) * rs + (cols - 1) * cs < len
    };
    assert!(
        spans(a.data.len(), a.rows, a.row_stride, a.cols, a.col_stride)
            && spans(b.data.len(), b.rows, b.row_stride, b.cols, b.col_stride)
            && spans(c.data.len(), c.rows, c.stride, c.cols, 1),
        "matrices within their arrays"
    );
    // SAFETY: every index that the sizes and strides allow is within the slices (asserted above); c
    // is borrowed mutably, so that it overlaps neither a nor b; the strides of an array fit isize.
    unsafe {
        gemm::gemm(
            c.rows,
            c.cols,
            a.cols,
            c.data.as_mut_ptr(),
            1,
            c.stride as isize,
            write == Write::Add,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            R::ONE,
            R::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Writes the sum of the rows of a.
pub(super) fn sum_rows<R: Real>(a: &Matrix<R>, into: &mut [R]) {
    vectorised(
        #[inline(always)]
        || {
            into.fill(R::ZERO);
            for row in a.rows() {
                for (sum, &x) in into.iter_mut().zip(row) {
                    *sum += x;
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    #[test]
    fn both_kinds_of_product_agree_with_the_definition() {
        let mut rng = StdRng::seed_from_u64(1);
        for (m, k, n) in [
            (1, 1, 1),
            (3, 5, 33),
            (16, 24, 64),
            (15, 7, 100),
            (9, 40, 31),
        ] {
            let mut random = |rows, cols| {
                let mut matrix = Matrix::<f64>::new(cols);
                matrix.resize(rows);
                for row in matrix.rows_mut() {
                    row.fill_with(|| rng.random_range(-1.0..1.0));
                }
                matrix
            };
            let (a, b, before) = (random(m, k), random(k, n), random(m, n));
            let mut packed = Packed::new(k, n);
            packed.fill(b.view());
            for write in [Write::Add, Write::Replace] {
                let (mut general, mut small) = (Matrix::new(n), Matrix::new(n));
                for (c, by_gemm) in [(&mut general, true), (&mut small, false)] {
                    c.resize(m);
                    for (row, before) in c.rows_mut().zip(before.rows()) {
                        row.copy_from_slice(before);
                    }
                    if by_gemm {
                        multiply(a.view(), b.view(), c.view_mut(), write);
                    } else {
                        packed.multiply(a.view(), c.view_mut(), write, &mut Vec::new());
                    }
                    for i in 0..m {
                        for j in 0..n {
                            let mut sum = match write {
                                Write::Add => before.view().at(i, j),
                                Write::Replace => 0.0,
                            };
                            for l in 0..k {
                                sum += a.view().at(i, l) * b.view().at(l, j);
                            }
                            let found = c.view().at(i, j);
                            assert!((found - sum).abs() < 1e-12, "{m} {k} {n}: {i} {j}");
                        }
                    }
                }
            }
        }
    }
}
