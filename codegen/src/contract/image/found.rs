//! Recognises the windows of a convolution in a view's axes, and estimates what packing costs.

use super::super::MOST_BOUNDS;
use super::super::im2col::{Axis, Seen};
use super::cost::products;
use super::{AXES, Along, Image, PHASES, Step, pitch};
use crate::machine::InstructionSet;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use tracecast_ir::kernel::Moves;

/// Cycles to pack sixteen columns one by one, and to transpose sixteen that are contiguous along
/// `k`.
const SINGLY: f64 = 60.0;
const TRANSPOSING: f64 = 12.0;
/// The masks of a piece, which all channels share, in loads of a piece.
const MASKS: f64 = 1.5;

impl Image {
    /// The image of a view, for a band of windows; `None` if the view is not that of a convolution.
    pub(crate) fn of(seen: &Seen, band: Option<Range<usize>>) -> Option<Image> {
        let mut free: SmallVec<[bool; 4]> = smallvec![true; seen.rows.len()];
        let mut along: SmallVec<[Along; AXES]> = SmallVec::new();
        let mut taps_of: SmallVec<[(usize, usize); 4]> = SmallVec::new();
        let mut bounded: SmallVec<[usize; MOST_BOUNDS]> = SmallVec::new();
        // From the last axis on, so that what has no bound finds the nearest positions.
        for column in seen.columns.iter().rev() {
            let bound = seen.only_bound(column)?;
            let row = match bound {
                // Two axes of columns along one bound are not windows along an axis each.
                Some(bound) if bounded.contains(&bound) => return None,
                Some(bound) => {
                    bounded.push(bound);
                    seen.row_of(bound)?
                }
                None => seen.nearest(column, &free),
            };
            let tap = row.map(|row| &seen.rows[row]);
            if let Some(row) = row {
                free[row] = false;
                taps_of.push((row, along.len()));
            }
            along.push(seen.along(Some(column), tap, bound)?);
        }
        // Bounds along which there is a single window.
        for bound in seen.bounds() {
            if bounded.contains(&bound) {
                continue;
            }
            let row = seen.row_of(bound)?;
            if let Some(row) = row {
                free[row] = false;
                taps_of.push((row, along.len()));
            }
            along.push(seen.along(None, row.map(|row| &seen.rows[row]), Some(bound))?);
        }
        if along.len() > AXES || along.iter().any(|along| along.step.min(along.taps) > PHASES) {
            return None;
        }
        let place = |at: usize| AXES - 1 - at;
        let mut all = [Along::single(), Along::single(), Along::single()];
        for (at, one) in along.into_iter().enumerate() {
            all[place(at)] = one;
        }
        let origin = -all.iter().map(|along| along.first * along.stride).sum::<isize>();
        let step = |(i, axis): (usize, &Axis)| {
            if free[i] {
                return (axis.bounded == [0; MOST_BOUNDS])
                    .then_some(Step::Planes(axis.extent, axis.stride));
            }
            taps_of.iter().find(|(row, _)| *row == i).map(|(_, at)| Step::Taps(place(*at)))
        };
        let steps = seen.rows.iter().enumerate().map(step).collect::<Option<_>>()?;
        if let Some(band) = band {
            let first = all.iter().position(|along| along.count > 1).unwrap_or(AXES - 1);
            let axis = &mut all[first];
            axis.first += (band.start * axis.step) as isize;
            axis.count = band.len();
        }
        let along = all.map(Along::found);
        let pitch = pitch(&along[AXES - 1]);
        let image = Image { along, steps, pitch, origin, second: None, blocks: None };
        image.is_small().then_some(image)
    }

    /// The image of contiguous planes of `from` rows and columns, all of them, for a transposed
    /// convolution: an element of its result of `to` rows and columns is in some adjacent windows.
    pub(in super::super) fn of_transposed(
        planes: usize,
        from: [usize; 2],
        to: [usize; 2],
        moves: [Moves; 2],
    ) -> Image {
        let along = |axis: usize, step: usize| {
            let Moves { positions, stride, low } = moves[axis];
            // The nearest windows of the first and of the last element, and how many are before.
            let (first, last) = (low / stride, (to[axis].max(1) - 1).saturating_add(low) / stride);
            let before = (positions - 1) / stride;
            let (first, last) = (first.min(before), last.max(from[axis].max(1) - 1));
            Along {
                count: last - first + 1,
                taps: before + 1,
                dilation: -1,
                first: first as isize,
                extent: Some(from[axis]),
                stride: step as isize,
                ..Along::single()
            }
        };
        let along = [Along::single(), along(0, from[1]), along(1, 1)];
        let steps = smallvec![Step::Planes(planes, from[0].saturating_mul(from[1]) as isize)];
        let pitch = pitch(&along[AXES - 1]);
        Image { along, steps, pitch, origin: 0, second: None, blocks: None }
    }
}

impl Seen {
    /// The bounds that exist.
    fn bounds(&self) -> impl Iterator<Item = usize> {
        self.bounds.iter().enumerate().filter(|(_, bound)| bound.extent >= 0).map(|(i, _)| i)
    }

    /// The bound that an axis of columns moves along; `None` for several.
    fn only_bound(&self, column: &Axis) -> Option<Option<usize>> {
        let mut all = self.bounds().filter(|bound| column.bounded[*bound] != 0);
        let first = all.next();
        all.next().is_none().then_some(first)
    }

    /// Estimated cycles for sixteen columns of a step by `m` rows, in pairs or not, with packing.
    pub(crate) fn cost(&self, m: usize, instructions: InstructionSet, pairs: bool) -> f64 {
        products(m, pairs) + self.packing(instructions)
    }

    /// Estimated cycles to pack sixteen columns of a step: a load for each piece of a run.
    fn packing(&self, instructions: InstructionSet) -> f64 {
        let run = self.columns.last().map_or(1, |axis| axis.extent);
        let taps = self.period();
        let channels = self.rows.iter().map(|axis| axis.extent).product::<usize>() / taps.max(1);
        let loads = |lanes: usize| {
            let pieces = lanes as f64 / run.clamp(1, lanes) as f64;
            pieces * (1.0 + MASKS / channels.max(1) as f64)
        };
        let is_along = |axis: &Axis| axis.stride == 1 && axis.bounded == [0; MOST_BOUNDS];
        let apart = if self.rows.last().is_some_and(is_along) { TRANSPOSING } else { SINGLY };
        match instructions {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => match self.column_step() {
                Some(1) => 6.0 * loads(16),
                Some(_) => 9.0 * loads(16),
                None => apart,
            },
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => match self.column_step() {
                Some(1) => 14.0 * loads(8),
                Some(_) => 18.0 * loads(8),
                None => apart,
            },
            _ => SINGLY,
        }
    }

    /// The row axis that moves along a bound; `None` for several, or if it moves along others.
    fn row_of(&self, bound: usize) -> Option<Option<usize>> {
        let mut all = (0..self.rows.len()).filter(|row| self.rows[*row].bounded[bound] != 0);
        let Some(first) = all.next() else { return Some(None) };
        let others =
            self.bounds().any(|other| other != bound && self.rows[first].bounded[other] != 0);
        (all.next().is_none() && !others).then_some(Some(first))
    }

    /// The free, unbounded row axis of least stride, if it spans at most twice the column's axis.
    fn nearest(&self, column: &Axis, free: &[bool]) -> Option<usize> {
        let reach = |axis: &Axis| axis.stride.unsigned_abs().saturating_mul(axis.extent);
        let is_open = |row: &usize| {
            let axis = &self.rows[*row];
            let has_bound = self.bounds().any(|bound| axis.bounded[bound] != 0);
            free[*row] && !has_bound && reach(axis) <= 2 * reach(column)
        };
        let open = (0..self.rows.len()).filter(is_open);
        open.min_by_key(|row| self.rows[*row].stride.unsigned_abs())
    }

    /// How windows move along a column's axis; `tap` is the axis of positions in them.
    fn along(
        &self,
        column: Option<&Axis>,
        tap: Option<&Axis>,
        bound: Option<usize>,
    ) -> Option<Along> {
        let count = column.map_or(1, |column| column.extent);
        let taps = tap.map_or(1, |tap| tap.extent);
        let stride = |axis: Option<&Axis>| axis.map_or(0, |axis| axis.stride);
        let (from_window, from_tap) = (stride(column), stride(tap));
        let Some(bound) = bound else {
            // Places have the greatest common divisor of both strides.
            let unit = gcd(from_window.unsigned_abs(), from_tap.unsigned_abs()).max(1) as isize;
            if from_window <= 0 {
                return None;
            }
            let single = Along::single();
            return Some(Along {
                count,
                step: (from_window / unit) as usize,
                taps,
                dilation: from_tap / unit,
                stride: unit,
                phases: SmallVec::new(),
                ..single
            });
        };
        let moved = |axis: Option<&Axis>| axis.map_or(0, |axis| axis.bounded[bound]);
        let (step, dilation) = (moved(column), moved(tap));
        // Either gives the stride of places.
        let unit = match (step, dilation) {
            (0, 0) => 0,
            (0, _) => from_tap / dilation,
            _ => from_window / step,
        };
        let forward = step > 0 || column.is_none();
        let fits = forward && unit * step == from_window && unit * dilation == from_tap;
        let at = self.bounds[bound];
        fits.then(|| Along {
            count,
            step: step.max(1) as usize,
            taps,
            dilation: if tap.is_some() { dilation } else { 1 },
            first: at.offset,
            extent: Some(at.extent as usize),
            stride: unit,
            phases: SmallVec::new(),
        })
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
