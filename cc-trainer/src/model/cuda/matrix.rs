//! Matrices in a machine's memory, and products of them.

use std::ops::Range;

use crate::model::Write;

/// The place of a row-major matrix in a machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceMatrix {
    /// Index of the first element.
    pub(super) at: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Distance from a row to the next, elements; at least `cols`.
    pub(super) stride: usize,
}

impl DeviceMatrix {
    /// A matrix without gaps between its rows.
    pub(super) fn dense(at: usize, rows: usize, cols: usize) -> Self {
        Self {
            at,
            rows,
            cols,
            stride: cols,
        }
    }

    /// The number of elements, rows times columns.
    pub(super) fn count(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether there are no gaps between the rows.
    pub(super) fn is_dense(&self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }

    /// The indices from the first element to the last.
    pub(super) fn range(&self) -> Range<usize> {
        match self.rows.checked_sub(1) {
            Some(before) if self.cols > 0 => self.at..self.at + before * self.stride + self.cols,
            _ => self.at..self.at,
        }
    }

    /// The matrix of some of the rows.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer rows.
    pub(super) fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "rows {rows:?} of {self:?}");
        Self {
            at: self.at + rows.start * self.stride,
            rows: rows.len(),
            ..self
        }
    }

    /// The matrix of some of the columns.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer columns.
    pub(super) fn columns(self, columns: Range<usize>) -> Self {
        assert!(columns.end <= self.cols, "columns {columns:?} of {self:?}");
        Self {
            at: self.at + columns.start,
            cols: columns.len(),
            ..self
        }
    }
}

/// A factor of a product: a matrix or its transpose.
#[derive(Clone, Copy, Debug)]
pub(super) enum Factor {
    /// The matrix itself, without transposition.
    Plain(DeviceMatrix),
    /// The transpose of the matrix.
    Transposed(DeviceMatrix),
}

impl Factor {
    fn matrix(self) -> DeviceMatrix {
        match self {
            Self::Plain(matrix) | Self::Transposed(matrix) => matrix,
        }
    }

    fn transposed(self) -> bool {
        matches!(self, Self::Transposed(_))
    }

    /// Rows and columns of the factor.
    fn size(self) -> (usize, usize) {
        match self {
            Self::Plain(matrix) => (matrix.rows, matrix.cols),
            Self::Transposed(matrix) => (matrix.cols, matrix.rows),
        }
    }
}

/// A product in the terms of BLAS's `sgemm`, of column-major matrices: C ← op(A) op(B) + β C, with
/// op(A) `[m, k]`, op(B) `[k, n]` and C `[m, n]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sgemm {
    pub(super) transpose_a: bool,
    pub(super) transpose_b: bool,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: DeviceMatrix,
    pub(super) b: DeviceMatrix,
    pub(super) beta: f32,
    pub(super) c: DeviceMatrix,
}

impl Sgemm {
    /// The row-major product of two factors. To BLAS a row-major matrix is the transpose of itself,
    /// so this is the transpose of the product, with the factors in reverse: (x y)ᵀ = yᵀ xᵀ.
    ///
    /// # Panics
    ///
    /// Panics if the sizes do not agree.
    pub(super) fn row_major(x: Factor, y: Factor, into: DeviceMatrix, write: Write) -> Self {
        let ((rows, inner), (inner_too, cols)) = (x.size(), y.size());
        assert!(
            inner == inner_too && (rows, cols) == (into.rows, into.cols),
            "{x:?} times {y:?} into {into:?}"
        );
        Self {
            transpose_a: y.transposed(),
            transpose_b: x.transposed(),
            m: cols,
            n: rows,
            k: inner,
            a: y.matrix(),
            b: x.matrix(),
            beta: match write {
                Write::Add => 1.0,
                Write::Replace => 0.0,
            },
            c: into,
        }
    }
}
