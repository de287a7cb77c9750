//! Tensors surrounded by numbers, or by elements of their own.

use super::{Made, named, resized, size};
use crate::ops::elementwise::Elementwise;
use crate::ops::view::Views;
use crate::{DType, Shape, Size, Var};

/// What stands around a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// This number.
    Constant(f64),
    /// The elements mirrored at the ends, which are not repeated.
    Reflect,
    /// The ends.
    Replicate,
    /// The elements from the other end.
    Circular,
}

impl<'t> Var<'t> {
    /// Surrounded along its last axes: `sizes` are the positions before and behind the last axis, then those of the one before it, and
    /// so on: [`torch.nn.functional.pad`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.pad.html). Negative ones cut.
    #[track_caller]
    pub fn pad_last(self, sizes: &[i64], mode: PadMode) -> Var<'t> {
        named(self, "pad_last", || {
            let (pairs, rank) = (sizes.len() / 2, self.rank());
            if sizes.len() % 2 == 1 || pairs > rank {
                return Err(format!("{sizes:?} are no pairs for {rank} axes"));
            }
            if let Some(n) = sizes.iter().find(|n| n.unsigned_abs() > Size::MAX as u64 / 2) {
                return Err(format!("{n} positions more or less"));
            }
            let pair = |axis: usize| {
                let from_end = rank - 1 - axis;
                if from_end < pairs {
                    (sizes[2 * from_end], sizes[2 * from_end + 1])
                } else {
                    (0, 0)
                }
            };
            let mut y = self;
            let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
            for axis in 0..rank {
                let ((mut before, mut behind), n) = (pair(axis), size(self, axis)?);
                if before + behind + n < 0 || before.min(0) + behind.min(0) + n < 0 {
                    return Err(format!("{before} and {behind} cut more than axis {axis} has"));
                }
                if mode == PadMode::Circular {
                    // What is cut off is not repeated.
                    y = y.slice(axis as i64, -before.min(0), n + behind.min(0), 1);
                    (before, behind) = (before.max(0), behind.max(0));
                }
                match mode {
                    PadMode::Constant(_) => {
                        (low[axis], high[axis]) = (before.max(0), behind.max(0))
                    }
                    _ => y = y.extended(axis, before.max(0), behind.max(0), mode)?,
                }
                if before < 0 || behind < 0 {
                    let end = size(y, axis)? + behind.min(0);
                    y = y.slice(axis as i64, -before.min(0), end, 1);
                }
            }
            Ok(match mode {
                PadMode::Constant(value) if low.iter().chain(&high).any(|n| *n > 0) => {
                    y.pad(&low, &high, value)
                }
                _ => y,
            })
        })
    }

    /// With elements of its own before and behind along an axis.
    fn extended(self, axis: usize, before: i64, behind: i64, mode: PadMode) -> Made<Var<'t>> {
        if before == 0 && behind == 0 {
            return Ok(self);
        }
        let n = size(self, axis)?;
        if self.ty().numel() == 0 && n > 0 {
            let shape = resized(&self.shape(), axis, before + n + behind);
            return Ok(self.reshape_to(&shape));
        }
        let most = match mode {
            PadMode::Reflect => n - 1,
            PadMode::Circular => n,
            _ if n == 0 => 0,
            _ => i64::MAX,
        };
        if before.max(behind) > most {
            return Err(format!("{before} and {behind} are more than axis {axis} can give"));
        }
        let t = self.tracer();
        let at = t.iota(DType::I64, &Shape::new(&[before + n + behind]), 0);
        let at = at.sub(before as f64);
        let number = |v: i64| t.full(at.ty(), v as f64);
        let last = (n - 1) as f64;
        let index = match mode {
            PadMode::Reflect => at.abs().sub(last).abs().rsub(last),
            PadMode::Circular => {
                let behind = at.ge(n as f64);
                behind.choose(at.sub(n as f64), at).wrapped(n)
            }
            _ => at.maximum(number(0)).minimum(number(n - 1)),
        };
        Ok(self.picked(axis, index))
    }
}
