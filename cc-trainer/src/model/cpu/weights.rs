//! The parameters in the form that forward passes read.

use super::{
    matrix::{Packed, View},
    real::Real,
};
use crate::model::{Array, ParameterLayout, Shape};

/// The parameters of a network, packed for forward passes. Several threads can read them at once.
#[derive(Debug)]
pub struct Weights<R = f32> {
    shape: Shape,
    layout: ParameterLayout,
    parameters: Vec<R>,
    recurrent: Option<Packed<R>>,
}

impl<R: Real> Weights<R> {
    /// Weights from parameters in [`ParameterLayout`]'s order.
    ///
    /// # Panics
    ///
    /// Panics if their number is not the layout's.
    pub fn new(shape: &Shape, parameters: &[R]) -> Self {
        let layout = ParameterLayout::of(shape);
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

    /// The sizes of the network they belong to.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The parameters, in [`ParameterLayout`]'s order.
    pub fn parameters(&self) -> &[R] {
        &self.parameters
    }

    pub(super) fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    /// The parameters, mutably. [`pack`](Self::pack) must be called after a change.
    pub(super) fn parameters_mut(&mut self) -> &mut [R] {
        &mut self.parameters
    }

    /// Updates the packed weights after the parameters have changed.
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
