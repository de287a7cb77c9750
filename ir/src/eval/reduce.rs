//! Reductions in the order the language fixes (see [`kernel`](crate::kernel)).

use super::scalar::{Bits, apply, compare, is_nan};
use crate::kernel::{COLUMN_CHUNK, Cmp, LANES, ROW_CHUNK, Reduction, Scalar, ScalarOp};

/// Two partial results as one.
fn combine(reduction: Reduction, ty: Scalar, a: Bits, b: Bits) -> Bits {
    let op = match reduction {
        Reduction::Sum => ScalarOp::Add,
        Reduction::Max | Reduction::ArgMax => ScalarOp::Max,
        Reduction::Min => ScalarOp::Min,
    };
    apply(op, ty, ty, &[a, b]).unwrap_or(a)
}

/// What a reduction starts from.
fn identity(reduction: Reduction, ty: Scalar) -> Bits {
    let float = |v: f64| match ty {
        Scalar::F32 => Bits::from((v as f32).to_bits()),
        _ => v.to_bits(),
    };
    let int = |narrow: i32, wide: i64| match ty {
        Scalar::I32 => Bits::from(narrow as u32),
        _ => wide as Bits,
    };
    match reduction {
        Reduction::Sum => 0,
        Reduction::Min if ty.is_float() => float(f64::INFINITY),
        Reduction::Min => int(i32::MAX, i64::MAX),
        _ if ty.is_float() => float(f64::NEG_INFINITY),
        _ => int(i32::MIN, i64::MIN),
    }
}

/// A row of values as one.
pub(super) fn row(reduction: Reduction, ty: Scalar, values: &[Bits]) -> Bits {
    if reduction == Reduction::ArgMax {
        return first_largest(ty, values) as Bits;
    }
    let chunk = |chunk: &[Bits]| {
        let mut lanes = [identity(reduction, ty); LANES];
        for (p, v) in chunk.iter().enumerate() {
            lanes[p % LANES] = combine(reduction, ty, lanes[p % LANES], *v);
        }
        let mut width = LANES / 2;
        while width > 0 {
            for l in 0..width {
                lanes[l] = combine(reduction, ty, lanes[l], lanes[l + width]);
            }
            width /= 2;
        }
        lanes[0]
    };
    values
        .chunks(ROW_CHUNK)
        .map(chunk)
        .reduce(|a, b| combine(reduction, ty, a, b))
        .unwrap_or(identity(reduction, ty))
}

fn first_largest(ty: Scalar, values: &[Bits]) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate().skip(1) {
        let held = values[best];
        if !is_nan(ty, held) && (is_nan(ty, *v) || compare(Cmp::Lt, ty, held, *v)) {
            best = i;
        }
    }
    best
}

/// What has come down one column so far.
#[derive(Clone)]
pub(super) struct Column {
    reduction: Reduction,
    ty: Scalar,
    rows: usize,
    chunk: Bits,
    total: Option<Bits>,
}

impl Column {
    /// Nothing yet.
    pub(super) fn new(reduction: Reduction, ty: Scalar) -> Self {
        Column { reduction, ty, rows: 0, chunk: identity(reduction, ty), total: None }
    }

    /// The next row's value.
    pub(super) fn push(&mut self, value: Bits) {
        if self.rows == COLUMN_CHUNK {
            self.total = Some(self.finish());
            self.chunk = identity(self.reduction, self.ty);
            self.rows = 0;
        }
        self.chunk = combine(self.reduction, self.ty, self.chunk, value);
        self.rows += 1;
    }

    /// The result.
    pub(super) fn finish(&self) -> Bits {
        self.total.map_or(self.chunk, |t| combine(self.reduction, self.ty, t, self.chunk))
    }
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
        // Position 32 shares a lane with position 0, so the large numbers cancel before the small ones are added.
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
