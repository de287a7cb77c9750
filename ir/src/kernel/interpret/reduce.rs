//! Reductions in the order the language fixes (see [`kernel`](crate::kernel)).

use super::scalar::{Bits, apply, compare, is_nan, write};
use super::{Stopped, malformed, repeated};
use crate::DType;
use crate::kernel::{
    Body, COLUMN_CHUNK, Cascade, Cmp, Combine, Extreme, LANES, ROW_CHUNK, Reduction, SHORT_ROW,
    Scalar, Sink,
};

impl Reduction {
    /// Two partial results of `ty` as one, bits in and bits out as in
    /// [`ScalarOp::Const`](crate::kernel::ScalarOp::Const). Of a reduction to a position, the value
    /// that is found there.
    pub fn combine(self, ty: Scalar, a: u64, b: u64) -> u64 {
        match self.combines() {
            Combine::Value(op) => apply(op, ty, ty, &[a, b]).unwrap_or(a),
            Combine::Position(extreme) => extreme.value().combine(ty, a, b),
        }
    }
}

/// A row of values as one.
pub(crate) fn row(reduction: Reduction, ty: Scalar, values: &[Bits]) -> Bits {
    if let Combine::Position(extreme) = reduction.combines() {
        return first(extreme, ty, values) as Bits;
    }
    if values.len() < SHORT_ROW {
        let combine = |all: Bits, v: &Bits| reduction.combine(ty, all, *v);
        return values.iter().fold(reduction.identity(ty), combine);
    }
    let chunk = |chunk: &[Bits]| {
        let mut lanes = [reduction.identity(ty); LANES];
        for (p, v) in chunk.iter().enumerate() {
            lanes[p % LANES] = reduction.combine(ty, lanes[p % LANES], *v);
        }
        let mut width = LANES / 2;
        while width > 0 {
            for l in 0..width {
                lanes[l] = reduction.combine(ty, lanes[l], lanes[l + width]);
            }
            width /= 2;
        }
        lanes[0]
    };
    let combine = |a, b| reduction.combine(ty, a, b);
    let mut chunks = Cascade::default();
    values.chunks(ROW_CHUNK).for_each(|values| chunks.push(chunk(values), combine));
    chunks.total(combine).unwrap_or(reduction.identity(ty))
}

/// The first position of an extreme value; NaN is beyond all others.
fn first(extreme: Extreme, ty: Scalar, values: &[Bits]) -> usize {
    let beats = |new: Bits, held: Bits| match extreme {
        Extreme::Largest => compare(Cmp::Lt, ty, held, new),
        Extreme::Smallest => compare(Cmp::Lt, ty, new, held),
    };
    let mut best = 0;
    for (i, v) in values.iter().enumerate().skip(1) {
        let held = values[best];
        if !is_nan(ty, held) && (is_nan(ty, *v) || beats(*v, held)) {
            best = i;
        }
    }
    best
}

/// What has come down one column so far.
#[derive(Clone)]
pub(crate) struct Column {
    reduction: Reduction,
    ty: Scalar,
    rows: usize,
    chunk: Bits,
    chunks: Cascade<Bits>,
}

impl Column {
    /// Nothing yet.
    pub(crate) fn new(reduction: Reduction, ty: Scalar) -> Self {
        Column { reduction, ty, rows: 0, chunk: reduction.identity(ty), chunks: Cascade::default() }
    }

    /// The next row's value.
    pub(crate) fn push(&mut self, value: Bits) {
        if self.rows == COLUMN_CHUNK {
            self.chunks.push(self.chunk, |a, b| self.reduction.combine(self.ty, a, b));
            self.chunk = self.reduction.identity(self.ty);
            self.rows = 0;
        }
        self.chunk = self.reduction.combine(self.ty, self.chunk, value);
        self.rows += 1;
    }

    /// The result.
    pub(crate) fn finish(&self) -> Bits {
        let combine = |a, b| self.reduction.combine(self.ty, a, b);
        let mut chunks = self.chunks.clone();
        chunks.push(self.chunk, combine);
        chunks.total(combine).unwrap_or(self.chunk)
    }
}

/// The columns of a sink, if it is one down them.
pub(crate) fn column(
    body: &Body,
    sink: &Sink,
    extents: &[usize],
) -> Result<Option<Vec<Column>>, Stopped> {
    let Sink::Column { reduction, value, kept, .. } = sink else { return Ok(None) };
    let mut kept = extents.iter().zip(kept).filter(|(_, k)| **k).map(|(n, _)| n);
    let count = kept.try_fold(1usize, |all, n| all.checked_mul(*n)).unwrap_or(usize::MAX);
    repeated(Column::new(*reduction, body.ty(*value)), count).map(Some)
}

/// The number of the column at a position.
pub(crate) fn kept_place(extents: &[usize], position: &[i64], kept: &[bool]) -> usize {
    let place = extents.iter().zip(position).zip(kept).filter(|(_, k)| **k);
    place.fold(0, |at, ((n, p), _)| at * n + *p as usize)
}

/// Stores what has come down columns.
pub(crate) fn finish<'a>(
    to: &mut [u8],
    (dtype, ty): (DType, Scalar),
    columns: impl Iterator<Item = &'a Column>,
) -> Result<(), Stopped> {
    for (at, column) in columns.enumerate() {
        write(to, dtype, at as i64, ty, column.finish())
            .ok_or_else(|| malformed("a column is outside of its output"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(v: &[f32]) -> Vec<Bits> {
        v.iter().map(|v| Bits::from(v.to_bits())).collect()
    }

    fn float(b: Bits) -> f32 {
        f32::from_bits(b as u32)
    }

    #[test]
    fn a_row_is_summed_in_lanes_and_chunks() {
        // Position 32 shares a lane with position 0, so the large numbers cancel before the small
        // ones are added.
        let mut v = vec![1.0f32; LANES + 1];
        (v[0], v[LANES]) = (1e9, -1e9);
        assert_eq!(float(row(Reduction::Sum, Scalar::F32, &bits(&v))), 31.0);
        // In the next chunk they do not.
        let mut v = vec![0.0f32; ROW_CHUNK + 1];
        (v[0], v[1], v[ROW_CHUNK]) = (1e9, 1.0, -1e9);
        assert_eq!(float(row(Reduction::Sum, Scalar::F32, &bits(&v))), 0.0);
        assert_eq!(float(row(Reduction::Max, Scalar::F32, &[])), f32::NEG_INFINITY);
        assert_eq!(float(row(Reduction::Sum, Scalar::F32, &bits(&[-0.0]))).to_bits(), 0);
        assert_eq!(row(Reduction::Min, Scalar::I32, &[]), Bits::from(i32::MAX as u32));
    }

    #[test]
    fn a_short_row_is_summed_in_order() {
        // In order the large numbers cancel behind the first small one; in lanes before any.
        let mut v = vec![1.0f32; SHORT_ROW - 1];
        (v[1], v[9]) = (1e9, -1e9);
        assert_eq!(float(row(Reduction::Sum, Scalar::F32, &bits(&v))), 5.0);
        v.push(1.0);
        assert_eq!(float(row(Reduction::Sum, Scalar::F32, &bits(&v))), 14.0);
    }

    #[test]
    fn the_first_largest_and_nan_above_all() {
        let at = |v: &[f32]| row(Reduction::ArgMax, Scalar::F32, &bits(v));
        assert_eq!(
            (at(&[1.0, 3.0, 3.0]), at(&[1.0, f32::NAN, 9.0, f32::NAN]), at(&[-0.0, 0.0])),
            (1, 1, 0)
        );
        assert!(float(row(Reduction::Max, Scalar::F32, &bits(&[1.0, f32::NAN]))).is_nan());
    }

    #[test]
    fn a_column_is_summed_in_chunks() {
        let mut column = Column::new(Reduction::Sum, Scalar::F32);
        let mut v = vec![0.0f32; COLUMN_CHUNK + 2];
        (v[0], v[1], v[COLUMN_CHUNK], v[COLUMN_CHUNK + 1]) = (1e9, 1.0, -1e9, 1.0);
        bits(&v).into_iter().for_each(|b| column.push(b));
        // (1e9 + 1) rounds to 1e9, (-1e9 + 1) to -1e9.
        assert_eq!(float(column.finish()), 0.0);
        assert_eq!(Column::new(Reduction::Sum, Scalar::I64).finish(), 0);
    }
}
