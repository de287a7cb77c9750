//! Parts of a tensor along an axis.

use super::{MOST_PARTS, Made, axis, few, named, named_parts, size};
use crate::ops::view::Views;
use crate::{Shape, Var};

impl<'t> Var<'t> {
    /// Parts of these sizes, which make the whole:
    /// [`torch.split`](https://docs.pytorch.org/docs/stable/generated/torch.split.html) with a
    /// list.
    #[track_caller]
    pub fn split_with_sizes(self, sizes: &[i64], dim: i64) -> Vec<Var<'t>> {
        named_parts(self, "split_with_sizes", Some(sizes.len()), || {
            let axis = axis(self, dim)?;
            let n = size(self, axis)?;
            let whole = sizes.iter().try_fold(0i64, |sum, n| sum.checked_add(*n));
            if sizes.iter().any(|n| *n < 0) || whole != Some(n) {
                return Err(format!("{sizes:?} does not make {n}"));
            }
            Ok(self.between(axis, &ends(sizes)))
        })
    }

    /// Parts of one size, the last one what is left:
    /// [`torch.split`](https://docs.pytorch.org/docs/stable/generated/torch.split.html).
    #[track_caller]
    pub fn split(self, each: i64, dim: i64) -> Vec<Var<'t>> {
        named_parts(self, "split", None, || {
            let axis = axis(self, dim)?;
            let n = size(self, axis)?;
            if each < 0 || each == 0 && n > 0 {
                return Err(format!("parts of size {each}"));
            }
            let count = if n == 0 { 1 } else { few((n - 1) / each + 1, "parts")? };
            let ends: Vec<i64> = (1..=count).map(|i| i.saturating_mul(each).min(n)).collect();
            Ok(self.between(axis, &ends))
        })
    }

    /// At most that many parts of one size, the last one what is left:
    /// [`torch.chunk`](https://docs.pytorch.org/docs/stable/generated/torch.chunk.html).
    #[track_caller]
    pub fn chunk(self, chunks: i64, dim: i64) -> Vec<Var<'t>> {
        named_parts(self, "chunk", count(chunks), || {
            let axis = axis(self, dim)?;
            let n = size(self, axis)?;
            if chunks < 1 {
                return Err(format!("{chunks} chunks"));
            }
            if n == 0 {
                return Ok(self.between(axis, &vec![0; few(chunks, "parts")? as usize]));
            }
            Ok(self.split((n - 1) / chunks + 1, axis as i64))
        })
    }

    /// That many parts of nearly one size:
    /// [`torch.tensor_split`](https://docs.pytorch.org/docs/stable/generated/torch.tensor_split.html)
    /// with a number.
    #[track_caller]
    pub fn tensor_split(self, sections: i64, dim: i64) -> Vec<Var<'t>> {
        named_parts(self, "tensor_split", count(sections), || {
            let axis = axis(self, dim)?;
            let n = size(self, axis)?;
            if sections < 1 {
                return Err(format!("{sections} sections"));
            }
            let of = |i: i64| n / sections + i64::from(i < n % sections);
            let sizes: Vec<i64> = (0..few(sections, "parts")?).map(of).collect();
            Ok(self.between(axis, &ends(&sizes)))
        })
    }

    /// Parts that begin at these positions:
    /// [`torch.tensor_split`](https://docs.pytorch.org/docs/stable/generated/torch.tensor_split.html)
    /// with a list.
    #[track_caller]
    pub fn split_at(self, indices: &[i64], dim: i64) -> Vec<Var<'t>> {
        named_parts(self, "split_at", Some(indices.len() + 1), || {
            let axis = axis(self, dim)?;
            let n = size(self, axis)?;
            let bound = |at: &i64| if *at < 0 { (at + n).max(0) } else { (*at).min(n) };
            let ends: Vec<i64> = indices.iter().map(bound).chain([n]).collect();
            Ok(self.between(axis, &ends))
        })
    }

    /// Every position of an axis, which goes:
    /// [`torch.unbind`](https://docs.pytorch.org/docs/stable/generated/torch.unbind.html).
    #[track_caller]
    pub fn unbind(self, dim: i64) -> Vec<Var<'t>> {
        named_parts(self, "unbind", None, || {
            let axis = axis(self, dim)?;
            let count = few(size(self, axis)?, "parts")?;
            Ok((0..count).map(|i| self.select(axis as i64, i)).collect())
        })
    }

    /// The axis that `hsplit`, `vsplit` and `dsplit` cut: the second, or the only one; the first;
    /// the third.
    fn stacked_axis(self, name: &str) -> Made<i64> {
        let (least, axis) = match name {
            "vsplit" => (2, 0),
            "dsplit" => (3, 2),
            _ => (1, i64::from(self.rank() > 1)),
        };
        if self.rank() < least { Err(format!("takes at least {least} axes")) } else { Ok(axis) }
    }

    /// Equal parts side by side:
    /// [`torch.hsplit`](https://docs.pytorch.org/docs/stable/generated/torch.hsplit.html).
    #[track_caller]
    pub fn hsplit(self, sections: i64) -> Vec<Var<'t>> {
        self.equal_parts("hsplit", sections)
    }

    /// Equal parts one above the other:
    /// [`torch.vsplit`](https://docs.pytorch.org/docs/stable/generated/torch.vsplit.html).
    #[track_caller]
    pub fn vsplit(self, sections: i64) -> Vec<Var<'t>> {
        self.equal_parts("vsplit", sections)
    }

    /// Equal parts along the third axis:
    /// [`torch.dsplit`](https://docs.pytorch.org/docs/stable/generated/torch.dsplit.html).
    #[track_caller]
    pub fn dsplit(self, sections: i64) -> Vec<Var<'t>> {
        self.equal_parts("dsplit", sections)
    }

    #[track_caller]
    fn equal_parts(self, name: &'static str, sections: i64) -> Vec<Var<'t>> {
        named_parts(self, name, count(sections), || {
            let dim = self.stacked_axis(name)?;
            let n = size(self, dim as usize)?;
            if sections < 1 || n % sections != 0 {
                return Err(format!("{sections} sections do not divide {n}"));
            }
            Ok(self.tensor_split(sections, dim))
        })
    }

    /// The parts that end at these positions; each begins where the one before ends, and is empty
    /// if that lies behind.
    fn between(self, axis: usize, ends: &[i64]) -> Vec<Var<'t>> {
        let mut from = 0;
        let part = |&to: &i64| {
            let part = self.slice(axis as i64, from, to.max(from), 1);
            from = to;
            part
        };
        ends.iter().map(part).collect()
    }

    /// Windows of `size` positions along an axis, one each `step`, as a new last axis:
    /// [`Tensor.unfold`](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.unfold.html).
    #[track_caller]
    pub fn unfold(self, dim: i64, window: i64, step: i64) -> Var<'t> {
        named(self, "unfold", || {
            let x = if self.rank() == 0 { self.reshape([1]) } else { self };
            let axis = axis(x, dim)?;
            let n = size(x, axis)?;
            if window < 0 || window > n || step < 1 {
                return Err(format!("windows of {window} each {step} positions do not fit {n}"));
            }
            if self.rank() == 0 {
                return Ok(x.slice(0, 0, window, 1));
            }
            let count = (n - window) / step + 1;
            let windows = (0..few(window, "steps")?).map(|i| {
                let part = x.slice(axis as i64, i, i + (count - 1) * step + 1, step);
                part.unsqueeze(part.rank() as i64)
            });
            let windows: Vec<Var<'t>> = windows.collect();
            if windows.is_empty() {
                let mut sizes = x.shape().to_vec();
                sizes[axis] = count.into();
                sizes.push(0.into());
                let empty = x.slice(axis as i64, 0, 0, 1);
                return Ok(empty.reshape_to(&Shape::new(&sizes)));
            }
            Ok(crate::ops::view::cat(&windows, -1))
        })
    }
}

/// Where parts of these sizes end.
fn ends(sizes: &[i64]) -> Vec<i64> {
    sizes
        .iter()
        .scan(0, |end, n| {
            *end += n;
            Some(*end)
        })
        .collect()
}

/// How many parts a value of no type has. Chunks may be fewer than asked for, which its sizes would
/// say.
fn count(parts: i64) -> Option<usize> {
    (1..=MOST_PARTS).contains(&parts).then_some(parts as usize)
}
