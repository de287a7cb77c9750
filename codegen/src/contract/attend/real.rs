//! The numbers that attention is computed in: f32, and f64 for f64.

use super::super::pack::Wider;
use crate::machine::InstructionSet;
use crate::routines::{NarrowFloat, Scoring, Slopes, Weighed, double};
use std::ops::{AddAssign, Div, Mul, MulAssign};
use tracecast_ir::DType;
use tracecast_ir::kernel::math;

/// Numbers that attention is computed in.
pub(in crate::contract) trait Real:
    Wider + PartialEq + Mul<Output = Self> + Div<Output = Self> + AddAssign + MulAssign
{
    const ONE: Self;
    const NEVER: Self;

    fn of(x: f64) -> Self;
    fn mul_add(self, b: Self, c: Self) -> Self;
    fn log(self) -> Self;
    fn is_finite(self) -> bool;

    /// This memory as numbers.
    fn all(memory: &mut [f64]) -> &mut [Self];

    /// Routines that widen to these numbers and round them, if there are any for a dtype.
    fn narrow(dtype: DType) -> Option<NarrowFloat>;

    /// Turns a row of scores into weights.
    fn weigh(
        instructions: InstructionSet,
        row: &mut [Self],
        scoring: &Scoring<'_, Self>,
        largest: Self,
    ) -> Weighed<Self>;

    /// Turns a row of scores and the gradients of its weights into weights and gradients of scores.
    fn differentiate(
        instructions: InstructionSet,
        row: &mut [Self],
        inner: &mut [Self],
        scoring: &Scoring<'_, Self>,
        slopes: &Slopes<Self>,
    );
}

macro_rules! arithmetic {
    ($num:ident, $log:path, $fma:path) => {
        const ONE: $num = 1.0;
        const NEVER: $num = $num::NEG_INFINITY;

        fn of(x: f64) -> $num {
            x as $num
        }

        #[inline(always)]
        fn mul_add(self, b: $num, c: $num) -> $num {
            $fma(self, b, c)
        }

        fn log(self) -> $num {
            $log(self)
        }

        #[inline(always)]
        fn is_finite(self) -> bool {
            $num::is_finite(self)
        }
    };
}

impl Real for f32 {
    arithmetic!(f32, math::log, math::fma);

    fn all(memory: &mut [f64]) -> &mut [f32] {
        // SAFETY: any bits of an f64 are two f32.
        unsafe { memory.align_to_mut::<f32>().1 }
    }

    fn narrow(dtype: DType) -> Option<NarrowFloat> {
        NarrowFloat::of(dtype)
    }

    fn weigh(
        instructions: InstructionSet,
        row: &mut [f32],
        scoring: &Scoring<'_>,
        largest: f32,
    ) -> Weighed {
        crate::routines::weigh(instructions, row, scoring, largest)
    }

    fn differentiate(
        instructions: InstructionSet,
        row: &mut [f32],
        inner: &mut [f32],
        scoring: &Scoring<'_>,
        slopes: &Slopes,
    ) {
        crate::routines::differentiate(instructions, row, inner, scoring, slopes);
    }
}

impl Real for f64 {
    arithmetic!(f64, math::log_f64, f64::mul_add);

    fn all(memory: &mut [f64]) -> &mut [f64] {
        memory
    }

    fn narrow(_: DType) -> Option<NarrowFloat> {
        None
    }

    fn weigh(
        _: InstructionSet,
        row: &mut [f64],
        scoring: &Scoring<'_, f64>,
        largest: f64,
    ) -> Weighed<f64> {
        double::weigh(row, scoring, largest)
    }

    fn differentiate(
        _: InstructionSet,
        row: &mut [f64],
        inner: &mut [f64],
        scoring: &Scoring<'_, f64>,
        slopes: &Slopes<f64>,
    ) {
        double::differentiate(row, inner, scoring, slopes);
    }
}
