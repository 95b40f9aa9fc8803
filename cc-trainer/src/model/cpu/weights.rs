//! Parameters in the form that forward passes read.

use super::{
    matrix::{Packed, View},
    real::Real,
};
use crate::model::{Array, Layout, Shape};

/// The parameters of a network, ready to be computed with; many threads may read them.
#[derive(Debug)]
pub struct Weights<R = f32> {
    shape: Shape,
    layout: Layout,
    parameters: Vec<R>,
    recurrent: Option<Packed<R>>,
}

impl<R: Real> Weights<R> {
    /// Of parameters in [`Layout`]'s order.
    ///
    /// # Panics
    ///
    /// When they are not as many as the layout has.
    pub fn new(shape: &Shape, parameters: &[R]) -> Self {
        let layout = Layout::of(shape);
        assert_eq!(parameters.len(), layout.len(), "the shape's parameters");
        let recurrent = layout.lstm.as_ref().map(|lstm| &lstm.recurrent);
        let mut weights = Self {
            shape: shape.clone(),
            recurrent: recurrent.map(|array| Packed::new(array.rows, array.cols)),
            layout,
            parameters: parameters.to_vec(),
        };
        weights.pack();
        weights
    }

    /// The network's sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The parameters, in [`Layout`]'s order.
    pub fn parameters(&self) -> &[R] {
        &self.parameters
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// To be followed by [`pack`](Self::pack).
    pub(super) fn parameters_mut(&mut self) -> &mut [R] {
        &mut self.parameters
    }

    /// Brings what is derived from the parameters up to them.
    pub(super) fn pack(&mut self) {
        if let (Some(packed), Some(lstm)) = (&mut self.recurrent, &self.layout.lstm) {
            packed.fill(matrix(&self.parameters, &lstm.recurrent));
        }
    }

    pub(super) fn matrix(&self, array: &Array) -> View<'_, R> {
        matrix(&self.parameters, array)
    }

    pub(super) fn recurrent(&self) -> Option<&Packed<R>> {
        self.recurrent.as_ref()
    }
}

fn matrix<'a, R: Real>(parameters: &'a [R], array: &Array) -> View<'a, R> {
    View::of(array.of(parameters), array.rows, array.cols)
}
