//! Scalar reverse-mode differentiation: slow, and nothing in common with what it checks.

use std::cell::RefCell;

/// The operations so far. Each has a value and up to two operands, with the derivatives by them.
#[derive(Default)]
pub(super) struct Tape {
    nodes: RefCell<Vec<Node>>,
}

struct Node {
    value: f64,
    operands: [(usize, f64); 2],
}

/// A number on a tape.
#[derive(Clone, Copy)]
pub(super) struct Var(usize);

impl Tape {
    pub(super) fn constant(&self, value: f64) -> Var {
        let index = self.nodes.borrow().len();
        self.push(value, [(index, 0.0); 2])
    }

    pub(super) fn value(&self, x: Var) -> f64 {
        self.nodes.borrow()[x.0].value
    }

    pub(super) fn add(&self, a: Var, b: Var) -> Var {
        self.push(self.value(a) + self.value(b), [(a.0, 1.0), (b.0, 1.0)])
    }

    pub(super) fn mul(&self, a: Var, b: Var) -> Var {
        let (x, y) = (self.value(a), self.value(b));
        self.push(x * y, [(a.0, y), (b.0, x)])
    }

    pub(super) fn scale(&self, a: Var, factor: f64) -> Var {
        self.push(self.value(a) * factor, [(a.0, factor), (a.0, 0.0)])
    }

    pub(super) fn tanh(&self, a: Var) -> Var {
        let y = self.value(a).tanh();
        self.push(y, [(a.0, 1.0 - y * y), (a.0, 0.0)])
    }

    pub(super) fn sigmoid(&self, a: Var) -> Var {
        let y = 1.0 / (1.0 + (-self.value(a)).exp());
        self.push(y, [(a.0, y * (1.0 - y)), (a.0, 0.0)])
    }

    pub(super) fn relu(&self, a: Var) -> Var {
        let x = self.value(a);
        self.push(x.max(0.0), [(a.0, f64::from(x > 0.0)), (a.0, 0.0)])
    }

    pub(super) fn exp(&self, a: Var) -> Var {
        let y = self.value(a).exp();
        self.push(y, [(a.0, y), (a.0, 0.0)])
    }

    pub(super) fn ln(&self, a: Var) -> Var {
        let x = self.value(a);
        self.push(x.ln(), [(a.0, 1.0 / x), (a.0, 0.0)])
    }

    pub(super) fn sum(&self, terms: impl IntoIterator<Item = Var>) -> Var {
        terms
            .into_iter()
            .fold(self.constant(0.0), |sum, term| self.add(sum, term))
    }

    /// The derivatives of a number by some others.
    pub(super) fn derivatives(&self, of: Var, by: &[Var]) -> Vec<f64> {
        let nodes = self.nodes.borrow();
        let mut derivatives = vec![0.0; nodes.len()];
        derivatives[of.0] = 1.0;
        for index in (0..=of.0).rev() {
            for (operand, factor) in nodes[index].operands {
                if operand != index {
                    derivatives[operand] += derivatives[index] * factor;
                }
            }
        }
        by.iter().map(|x| derivatives[x.0]).collect()
    }

    fn push(&self, value: f64, operands: [(usize, f64); 2]) -> Var {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(Node { value, operands });
        Var(nodes.len() - 1)
    }
}
