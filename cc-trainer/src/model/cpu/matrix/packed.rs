//! A constant matrix in a form that makes products with few rows fast.

use pulp::{Arch, Simd, WithSimd};

use super::{View, ViewMut};
use crate::model::{Write, cpu::real::Real};

/// A matrix on the right-hand side of many products with few rows, laid out once in
/// the order in which they read it. A general product would do so every time, which
/// takes longer than the arithmetic.
#[derive(Debug)]
pub(in super::super) struct Packed<R> {
    /// Panels of [`WIDTH`] columns, each with all rows; missing columns of
    /// the last panel are zeros.
    panels: Vec<PanelRow<R>>,
    rows: usize,
    cols: usize,
}

/// A row of a panel, aligned to a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct PanelRow<R>([R; WIDTH]);

/// Columns of a panel: two AVX-512 registers of f32.
const WIDTH: usize = 32;

/// Rows that a panel is multiplied with at a time: 8 rows of 2 sums fill half of the 32 registers.
const HEIGHT: usize = 8;

impl<R: Real> Packed<R> {
    /// A packed matrix of zeros.
    pub(in super::super) fn new(rows: usize, cols: usize) -> Self {
        Self {
            panels: vec![PanelRow([R::ZERO; WIDTH]); rows * cols.div_ceil(WIDTH)],
            rows,
            cols,
        }
    }

    /// Copies the elements of a matrix of the same size.
    pub(in super::super) fn fill(&mut self, from: View<'_, R>) {
        assert_eq!((self.rows, self.cols), (from.rows, from.cols));
        for (i, panel) in self.panels.chunks_exact_mut(self.rows).enumerate() {
            let start = i * WIDTH;
            let width = WIDTH.min(self.cols - start);
            for (k, row) in panel.iter_mut().enumerate() {
                for (j, x) in row.0[..width].iter_mut().enumerate() {
                    *x = from.at(k, start + j);
                }
            }
        }
    }

    /// Writes a · self to c, or adds it. `scratch` keeps its memory between calls.
    pub(in super::super) fn multiply(
        &self,
        a: View<'_, R>,
        c: ViewMut<'_, R>,
        write: Write,
        scratch: &mut Vec<R>,
    ) {
        assert!(
            a.cols == self.rows && (c.rows, c.cols) == (a.rows, self.cols),
            "matrices that fit"
        );
        // The rows of a block are interleaved, so that a step of the product reads them in one
        // place.
        scratch.resize(a.rows * a.cols, R::ZERO);
        for block in RowBlocks::of(a.rows) {
            let into = &mut scratch[block.start * a.cols..][..block.height * a.cols];
            for i in 0..block.height {
                let row = a.row(block.start + i);
                for (x, &from) in into[i..].iter_mut().step_by(block.height).zip(row) {
                    *x = from;
                }
            }
        }
        Arch::new().dispatch(Multiply {
            packed: self,
            blocks: scratch,
            c,
            write,
        });
    }
}

/// A product whose left-hand rows are interleaved in blocks.
struct Multiply<'a, R> {
    packed: &'a Packed<R>,
    blocks: &'a [R],
    c: ViewMut<'a, R>,
    write: Write,
}

impl<R: Real> WithSimd for Multiply<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Packed { panels, rows, cols } = self.packed;
        let (stride, write) = (self.c.stride, self.write);
        for (panel, start) in panels.chunks_exact(*rows).zip((0..).step_by(WIDTH)) {
            let width = WIDTH.min(cols - start);
            for block in RowBlocks::of(self.c.rows) {
                let a = &self.blocks[block.start * rows..][..block.height * rows];
                let c = &mut self.c.data[block.start * stride + start..];
                let c = c.chunks_mut(stride).map(|row| &mut row[..width]);
                match block.height {
                    HEIGHT => tile::<R, S, HEIGHT>(simd, a, panel, c, write),
                    4 => tile::<R, S, 4>(simd, a, panel, c, write),
                    2 => tile::<R, S, 2>(simd, a, panel, c, write),
                    _ => tile::<R, S, 1>(simd, a, panel, c, write),
                }
            }
        }
    }
}

/// Rows that are multiplied together with a panel.
struct RowBlock {
    start: usize,
    height: usize,
}

/// Divides rows into blocks of [`HEIGHT`], and the remainder into blocks of 4, 2 and 1.
struct RowBlocks {
    start: usize,
    rows: usize,
}

impl RowBlocks {
    fn of(rows: usize) -> Self {
        Self { start: 0, rows }
    }
}

impl Iterator for RowBlocks {
    type Item = RowBlock;

    #[inline(always)]
    fn next(&mut self) -> Option<RowBlock> {
        let left = self.rows - self.start;
        let height = match left {
            0 => return None,
            1 => 1,
            2..4 => 2,
            4..HEIGHT => 4,
            _ => HEIGHT,
        };
        let start = self.start;
        self.start += height;
        Some(RowBlock { start, height })
    }
}

/// Multiplies a block of rows, interleaved in `a`, with a panel. The sums stay in registers.
#[inline(always)]
fn tile<'c, R: Real, S: Simd, const ROWS: usize>(
    simd: S,
    a: &[R],
    panel: &[PanelRow<R>],
    c: impl Iterator<Item = &'c mut [R]>,
    write: Write,
) {
    let mut all = [PanelRow([R::ZERO; WIDTH]); ROWS];
    let vectors = R::vectors::<S>(&all[0].0).len();
    for first in (0..vectors).step_by(2) {
        let mut sums = [[R::splat(simd, R::ZERO); 2]; ROWS];
        for (a, b) in a.as_chunks::<ROWS>().0.iter().zip(panel) {
            let b = &R::vectors::<S>(&b.0)[first..first + 2];
            for (sums, &a) in sums.iter_mut().zip(a) {
                let a = R::splat(simd, a);
                sums[0] = R::vector_mul_add(simd, a, b[0], sums[0]);
                sums[1] = R::vector_mul_add(simd, a, b[1], sums[1]);
            }
        }
        for (row, sums) in all.iter_mut().zip(sums) {
            R::vectors_mut::<S>(&mut row.0)[first..first + 2].copy_from_slice(&sums);
        }
    }
    for (row, sums) in c.zip(all) {
        match write {
            Write::Add => {
                for (x, sum) in row.iter_mut().zip(sums.0) {
                    *x += sum;
                }
            }
            Write::Replace => row.copy_from_slice(&sums.0[..row.len()]),
        }
    }
}
