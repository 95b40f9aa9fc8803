//! The floating-point types that networks are computed in: f32 to learn, f64 to check gradients.

use std::{
    iter::Sum,
    ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub},
};

use pulp::Simd;

/// A floating-point type that networks can be computed in: `f32` or `f64`.
pub trait Real:
    Copy
    + Default
    + PartialOrd
    + From<f32>
    + Into<f64>
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + MulAssign
    + Div<Output = Self>
    + Neg<Output = Self>
    + Sum
    + Send
    + Sync
    + sealed::Sealed
    + 'static
{
    /// The number 0 of this type.
    const ZERO: Self;
    /// The number 1 of this type.
    const ONE: Self;
    /// The number ½ of this type.
    const HALF: Self;

    /// Computes self · a + b, rounded once.
    fn mul_add(self, a: Self, b: Self) -> Self;

    /// A SIMD register of such numbers.
    type Vector<S: Simd>: Copy;

    /// A slice as SIMD registers; the elements that do not fill one are left out.
    fn vectors<S: Simd>(slice: &[Self]) -> &[Self::Vector<S>];

    /// A mutable slice as SIMD registers; the elements that do not fill one are left out.
    fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [Self::Vector<S>];

    /// A register with every element equal to `x`.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;

    /// Computes a · b + c element by element.
    fn vector_mul_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;

    /// The square root, correctly rounded.
    fn sqrt(self) -> Self;

    /// The hyperbolic tangent. In f32 it has no branch, so that loops over it are vectorised.
    fn tanh(self) -> Self;

    /// The logistic function, 1 / (1 + e^−self).
    #[inline(always)]
    fn sigmoid(self) -> Self {
        (self * Self::HALF).tanh().mul_add(Self::HALF, Self::HALF)
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const HALF: Self = 0.5;

    type Vector<S: Simd> = S::f32s;

    #[inline(always)]
    fn vectors<S: Simd>(slice: &[Self]) -> &[S::f32s] {
        S::as_simd_f32s(slice).0
    }

    #[inline(always)]
    fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [S::f32s] {
        S::as_mut_simd_f32s(slice).0
    }

    #[inline(always)]
    fn splat<S: Simd>(simd: S, x: Self) -> S::f32s {
        simd.splat_f32s(x)
    }

    #[inline(always)]
    fn vector_mul_add<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
        simd.mul_add_e_f32s(a, b, c)
    }

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        self.mul_add(a, b)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    /// Lambert's continued fraction x/(1 + x²/(3 + x²/(5 + …))) up to 25, as a quotient of two
    /// polynomials in x² with positive coefficients (nothing cancels). The argument is clamped
    /// where tanh rounds to ±1.
    #[inline(always)]
    fn tanh(self) -> Self {
        const NUMERATOR: [f32; 7] = [
            1.264_885_6e-13,
            5.179_706e-10,
            3.228_683_7e-7,
            6.625_258_8e-5,
            5.217_391_3e-3,
            1.466_666_7e-1,
            1.0,
        ];
        const DENOMINATOR: [f32; 7] = [
            1.151_045_9e-11,
            1.519_380_5e-8,
            5.230_467_5e-6,
            6.625_259e-4,
            3.188_406e-2,
            4.8e-1,
            1.0,
        ];
        let x = self.clamp(-9.1, 9.1);
        let square = x * x;
        let (mut numerator, mut denominator) = (NUMERATOR[0], DENOMINATOR[0]);
        for i in 1..NUMERATOR.len() {
            numerator = numerator.mul_add(square, NUMERATOR[i]);
            denominator = denominator.mul_add(square, DENOMINATOR[i]);
        }
        (x * numerator / denominator).clamp(-1.0, 1.0)
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const HALF: Self = 0.5;

    type Vector<S: Simd> = S::f64s;

    #[inline(always)]
    fn vectors<S: Simd>(slice: &[Self]) -> &[S::f64s] {
        S::as_simd_f64s(slice).0
    }

    #[inline(always)]
    fn vectors_mut<S: Simd>(slice: &mut [Self]) -> &mut [S::f64s] {
        S::as_mut_simd_f64s(slice).0
    }

    #[inline(always)]
    fn splat<S: Simd>(simd: S, x: Self) -> S::f64s {
        simd.splat_f64s(x)
    }

    #[inline(always)]
    fn vector_mul_add<S: Simd>(simd: S, a: S::f64s, b: S::f64s, c: S::f64s) -> S::f64s {
        simd.mul_add_e_f64s(a, b, c)
    }

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        self.mul_add(a, b)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    fn tanh(self) -> Self {
        self.tanh()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_and_sigmoid_are_those_of_f64_to_some_units_in_the_last_place() {
        for i in -24_000..=24_000 {
            let x = i as f32 / 1000.0;
            let (exact, found) = (f64::from(x).tanh(), f64::from(Real::tanh(x)));
            assert!((found - exact).abs() <= 4e-7 * exact.abs(), "{x}: {found}");
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            let found = f64::from(Real::sigmoid(x));
            assert!((found - exact).abs() <= 2e-7, "{x}: {found}");
            assert!((0.0..=1.0).contains(&found));
        }
        for x in [f32::MIN_POSITIVE, 1e-20, 1e30, f32::INFINITY] {
            let exact = f64::from(x).tanh();
            for (x, exact) in [(x, exact), (-x, -exact)] {
                let found = f64::from(Real::tanh(x));
                assert!((found - exact).abs() <= 4e-7 * exact.abs(), "{x}: {found}");
            }
        }
        assert!(Real::tanh(f32::NAN).is_nan());
    }
}
