//! Where arrays lie in a machine's memory, and products of them.

use std::ops::Range;

/// A row-major matrix in a machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    /// Index of its first element.
    pub(super) at: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Elements from a row to the next, at least `cols`.
    pub(super) stride: usize,
}

impl Matrix {
    /// A matrix without gaps.
    pub(super) fn dense(at: usize, rows: usize, cols: usize) -> Self {
        Self {
            at,
            rows,
            cols,
            stride: cols,
        }
    }

    /// Its number of elements.
    pub(super) fn count(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether its elements lie one after the other.
    pub(super) fn is_dense(&self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }

    /// The indices from its first element to its last.
    pub(super) fn range(&self) -> Range<usize> {
        match self.rows.checked_sub(1) {
            Some(before) if self.cols > 0 => self.at..self.at + before * self.stride + self.cols,
            _ => self.at..self.at,
        }
    }

    /// Some of its rows.
    ///
    /// # Panics
    ///
    /// When it has not these.
    pub(super) fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "rows {rows:?} of {self:?}");
        Self {
            at: self.at + rows.start * self.stride,
            rows: rows.len(),
            ..self
        }
    }

    /// Some of its columns.
    ///
    /// # Panics
    ///
    /// When it has not these.
    pub(super) fn columns(self, columns: Range<usize>) -> Self {
        assert!(columns.end <= self.cols, "columns {columns:?} of {self:?}");
        Self {
            at: self.at + columns.start,
            cols: columns.len(),
            ..self
        }
    }
}

/// A matrix as a factor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Factor {
    /// As it lies.
    Plain(Matrix),
    /// Rows taken for columns.
    Transposed(Matrix),
}

impl Factor {
    fn matrix(self) -> Matrix {
        match self {
            Self::Plain(matrix) | Self::Transposed(matrix) => matrix,
        }
    }

    fn transposed(self) -> bool {
        matches!(self, Self::Transposed(_))
    }

    /// Rows and columns, as a factor.
    fn size(self) -> (usize, usize) {
        match self {
            Self::Plain(matrix) => (matrix.rows, matrix.cols),
            Self::Transposed(matrix) => (matrix.cols, matrix.rows),
        }
    }
}

/// Whether a product replaces what was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    Add,
    Replace,
}

/// A product in the terms of BLAS's `sgemm`, of column-major matrices: C ← op(A) op(B) + β C, with op(A) `[m, k]`,
/// op(B) `[k, n]` and C `[m, n]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sgemm {
    pub(super) transpose_a: bool,
    pub(super) transpose_b: bool,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) beta: f32,
    pub(super) c: Matrix,
}

impl Sgemm {
    /// The row-major product of two factors. To BLAS a row-major matrix is its own transpose; so it is asked for the
    /// transpose of the product, with the factors in reverse: (x y)ᵀ = yᵀ xᵀ.
    ///
    /// # Panics
    ///
    /// When the sizes do not fit together.
    pub(super) fn row_major(x: Factor, y: Factor, into: Matrix, write: Write) -> Self {
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
