//! Products of attention: packed columns of a right operand, and rows of weights that may be zero.
//!
//! Columns are packed in groups of [`KEYS`], so that a block starts at a panel of any width.

use super::super::micro::Engine;
use super::super::micro::gemm::{Strip, Sums, outer};
use super::super::pack::{Lines, Wider, pack, panels, room, strips};
use super::operands::Rows;
use super::real::Real;
use tracecast_ir::kernel::attention::{KEYS, LANES};

/// The widest panel of any engine.
const WIDEST: usize = 32;

/// Size in numbers of the panels of `columns` by `steps`.
pub(super) fn panel_room(columns: usize, steps: usize) -> usize {
    (columns + columns.div_ceil(KEYS) * WIDEST) * steps + LANES
}

/// The first column of a group in panels of that width.
fn beginning(column: usize, width: usize) -> usize {
    column / KEYS * KEYS.next_multiple_of(width)
}

/// Columns of a right operand in panels.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a, N> {
    numbers: &'a [N],
    /// Steps of a panel.
    steps: usize,
}

impl<'a, N: Real> Panels<'a, N> {
    /// Packs lines of stride `across`, whose steps have stride `along`.
    pub(super) fn pack<E: Engine<Num = N>>(
        from: &[N],
        [columns, steps]: [usize; 2],
        [across, along]: [usize; 2],
        to: &'a mut [N],
    ) -> Self {
        if columns > 0 && steps > 0 {
            let last = (columns - 1) * across + (steps - 1) * along;
            assert!(last < from.len());
        }
        for first in (0..columns).step_by(KEYS).filter(|_| steps > 0) {
            let count = KEYS.min(columns - first);
            let to = &mut to[beginning(first, E::WIDTH) * steps..];
            assert!(room::<E>(count, E::WIDTH, steps) <= to.len());
            let base = from[first * across..].as_ptr().cast();
            let (across, along) = (across as isize, along as isize);
            let lines = Lines { base, dtype: N::DTYPE, round: None, across, along };
            // SAFETY: lines are in `from` and fit `to`; `attend` is called for the engine's CPU.
            unsafe { pack::<E>(lines, panels(count, E::WIDTH), steps, to.as_mut_ptr()) };
        }
        Panels { numbers: to, steps }
    }
}

/// A left operand, with the strides of rows and of steps.
#[derive(Clone, Copy)]
pub(super) struct Left<'a, N> {
    pub(super) numbers: &'a [N],
    pub(super) row: usize,
    pub(super) step: usize,
}

/// Multiplies rows by columns over steps; `on` continues what is in `out`. `column` begins a group.
/// Rows of `out` have stride `ld` and whole lanes.
pub(super) fn product<E: Engine<Num: Real>>(
    [rows, columns, steps]: [usize; 3],
    left: Left<'_, E::Num>,
    right: Panels<'_, E::Num>,
    [column, step]: [usize; 2],
    (out, ld): (&mut [E::Num], usize),
    on: bool,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!((rows - 1) * ld + columns.next_multiple_of(LANES) <= out.len());
    assert!(steps == 0 || (rows - 1) * left.row + (steps - 1) * left.step < left.numbers.len());
    assert!(column.is_multiple_of(KEYS) && step + steps <= right.steps);
    for group in (0..columns).step_by(KEYS) {
        let packed = beginning(column + group, E::WIDTH);
        for panel in panels(KEYS.min(columns - group), E::WIDTH) {
            let first = (packed + panel.start) * right.steps + step * E::WIDTH;
            let b = &right.numbers[first..][..steps * E::WIDTH];
            for strip in strips(rows, E::ROWS) {
                let to = out.as_mut_ptr().wrapping_add(strip.start * ld + group + panel.start);
                let strip_of = Strip {
                    k: steps,
                    a: left.numbers.as_ptr().wrapping_add(strip.start * left.row),
                    row: left.row as isize,
                    step: left.step as isize,
                    b: b.as_ptr().cast(),
                    b_step: (E::WIDTH * size_of::<E::Num>()) as isize,
                    cell: E::Num::DTYPE,
                    ahead: 0,
                    sums: Sums {
                        from: if on { to.cast_const() } else { std::ptr::null() },
                        from_ld: ld,
                        out: to,
                        ld,
                        add: false,
                        rounded: false,
                        tiny: false,
                    },
                };
                let sizes = [strip.count, panel.count.div_ceil(E::LANES)];
                // SAFETY: the asserts bound all slices; `attend` is called for the engine's CPU.
                unsafe { outer::<E, _>(sizes, &strip_of) };
            }
        }
    }
}

/// As [`product`] with `on`, key by key: a weight of zero skips its key, even an infinite one.
fn careful<N: Real>(
    [rows, steps]: [usize; 2],
    left: Left<'_, N>,
    right: &Rows<'_, N>,
    first: usize,
    (out, ld): (&mut [N], usize),
) {
    for row in 0..rows {
        for step in 0..steps {
            let weight = left.numbers[row * left.row + step * left.step];
            if weight != N::ZERO {
                let to = &mut out[row * ld..][..right.width];
                to.iter_mut()
                    .zip(right.row(first + step))
                    .for_each(|(to, x)| *to = weight.mul_add(*x, *to));
            }
        }
    }
}

/// Adds products of weights and rows, which may hold infinities or NaNs.
pub(super) fn weighed<E: Engine<Num: Real>>(
    [rows, steps]: [usize; 2],
    left: Left<'_, E::Num>,
    (of, packed): (&Rows<'_, E::Num>, Panels<'_, E::Num>),
    first: usize,
    (out, ld): (&mut [E::Num], usize),
) {
    match of.finite {
        true => product::<E>([rows, of.width, steps], left, packed, [0, first], (out, ld), true),
        false => careful([rows, steps], left, of, first, (out, ld)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_begin_at_panels_of_any_width_and_fit() {
        for (width, columns, steps) in [(6, 600, 5), (12, 257, 1), (12, 32, 64), (16, 512, 7)] {
            for first in (0usize..columns).step_by(KEYS) {
                let begin = beginning(first, width);
                assert!(begin.is_multiple_of(width) && begin >= first);
                let count = KEYS.min(columns - first).next_multiple_of(width);
                let room = (begin + count) * steps + 8;
                assert!(room <= panel_room(columns, steps), "{width} {columns} {steps}");
            }
        }
    }
}
