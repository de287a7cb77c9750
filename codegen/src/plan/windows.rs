//! Factors of contractions that are one operand seen through windows, or an operand whose rows or
//! columns are several axes: where its elements lie.

use super::numbers::Numbers;
use tracecast_ir::kernel::{Access, Contract, Factor, Load};
use tracecast_ir::{DType, Size};

/// What sizes are in a binding.
type Evaluated<T> = std::result::Result<T, String>;

/// A factor that packing reads from one operand, run by run.
#[derive(Clone, Debug)]
pub(crate) struct Windows<O = Size> {
    /// The operand.
    pub(crate) input: usize,
    /// Its dtype.
    pub(crate) dtype: DType,
    /// The 16-bit float to whose values the elements are rounded.
    pub(crate) round: Option<DType>,
    /// Element (0, 0) of the first batch.
    pub(crate) offset: O,
    /// From a batch to the next, along each batch axis.
    pub(crate) batch: Vec<Axis<O>>,
    /// What rows are made of.
    pub(crate) rows: Vec<Axis<O>>,
    /// What columns are made of.
    pub(crate) columns: Vec<Axis<O>>,
    /// Numbers that lie within bounds where there is an element: the first of each, and where it
    /// ends.
    pub(crate) bounds: Vec<[O; 2]>,
}

/// An axis: its positions, and from one to the next in elements and in each of the numbers that are
/// bounded.
#[derive(Clone, Debug)]
pub(crate) struct Axis<O = Size> {
    pub(crate) extent: O,
    pub(crate) stride: O,
    pub(crate) bounded: Vec<O>,
}

impl Windows {
    /// Of the factor of a contraction that is this load.
    pub(super) fn of(
        c: &Contract,
        factor: &Factor,
        matrix: [Size; 2],
        (load, round): (&Load, Option<DType>),
    ) -> Windows {
        let Access { offset, strides, guards, .. } = &load.access;
        let at = |strides: &[Size], axis: usize| strides.get(axis).copied().unwrap_or_default();
        let extents = [c.batch.as_slice(), &factor.axes(matrix)].concat();
        let axes = extents.iter().enumerate().map(|(axis, extent)| Axis {
            extent: *extent,
            stride: at(strides, axis),
            bounded: guards.iter().map(|guard| at(&guard.strides, axis)).collect(),
        });
        let mut axes: Vec<Axis> = axes.collect();
        let rows = factor.split.as_ref().map_or(1, |split| split.rows.len());
        let columns = axes.split_off(c.batch.len() + rows);
        let rows = axes.split_off(c.batch.len());
        Windows {
            input: load.input,
            dtype: load.dtype,
            round,
            offset: *offset,
            batch: axes,
            rows,
            columns,
            bounds: guards.iter().map(|guard| [guard.offset, guard.extent]).collect(),
        }
    }

    /// For the sizes of a binding.
    ///
    /// # Errors
    /// If a name has no value.
    pub(super) fn at(&self, sizes: &Numbers<'_>) -> Evaluated<Windows<i64>> {
        let axes = |axes: &[Axis]| -> Evaluated<Vec<Axis<i64>>> {
            axes.iter().map(|axis| axis.at(sizes)).collect()
        };
        let bound = |[first, end]: &[Size; 2]| Ok([sizes.number(*first)?, sizes.number(*end)?]);
        let Windows { input, dtype, round, offset, batch, rows, columns, bounds } = self;
        Ok(Windows {
            input: *input,
            dtype: *dtype,
            round: *round,
            offset: sizes.number(*offset)?,
            batch: axes(batch)?,
            rows: axes(rows)?,
            columns: axes(columns)?,
            bounds: bounds.iter().map(bound).collect::<Evaluated<_>>()?,
        })
    }
}

impl Axis {
    fn at(&self, sizes: &Numbers<'_>) -> Evaluated<Axis<i64>> {
        Ok(Axis {
            extent: sizes.number(self.extent)?,
            stride: sizes.number(self.stride)?,
            bounded: sizes.numbers(&self.bounded)?,
        })
    }
}
