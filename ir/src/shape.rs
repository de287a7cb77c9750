//! Shapes: sizes along axes, broadcasting, and row-major strides.

use smallvec::SmallVec;
use std::fmt;
use std::ops::Deref;

/// The sizes of a tensor along its axes; a scalar has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Shape {
    /// The shape with the given sizes.
    pub fn new(sizes: &[usize]) -> Self {
        Shape(SmallVec::from_slice(sizes))
    }

    /// The shape without axes.
    pub fn scalar() -> Self {
        Shape::default()
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements; 1 for a scalar.
    ///
    /// Types that a [`Tracer`](crate::Tracer) accepted never overflow here: see [`Shape::checked_numel`].
    pub fn numel(&self) -> usize {
        self.0.iter().product()
    }

    /// The number of elements, or `None` if it does not fit in memory's index type.
    ///
    /// The sizes other than zero must multiply without overflow even when some axis is empty.
    pub fn checked_numel(&self) -> Option<usize> {
        let solid =
            self.0.iter().filter(|&&n| n != 0).try_fold(1usize, |p, &n| p.checked_mul(n))?;
        Some(if self.0.contains(&0) { 0 } else { solid })
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> SmallVec<[usize; 4]> {
        let mut strides: SmallVec<[usize; 4]> = SmallVec::from_elem(1, self.rank());
        for axis in (1..self.rank()).rev() {
            strides[axis - 1] = strides[axis] * self.0[axis].max(1);
        }
        strides
    }

    /// The shape that `self` and `other` stretch to, numpy's rule: align at the last axis, sizes equal or one of them 1.
    ///
    /// # Errors
    /// If two aligned sizes differ and neither is 1.
    pub fn broadcast(&self, other: &Shape) -> Result<Shape, String> {
        let rank = self.rank().max(other.rank());
        let at = |s: &Shape, axis: usize| {
            if axis + s.rank() < rank { 1 } else { s.0[axis + s.rank() - rank] }
        };
        (0..rank)
            .map(|axis| match (at(self, axis), at(other, axis)) {
                (a, b) if a == b || b == 1 => Ok(a),
                (1, b) => Ok(b),
                (a, b) => Err(format!(
                    "shapes {self} and {other} do not broadcast: sizes {a} and {b} at axis {axis}"
                )),
            })
            .collect::<Result<SmallVec<_>, _>>()
            .map(Shape)
    }

    /// Resolves an axis that may count from the end.
    ///
    /// # Errors
    /// If there is no such axis. A scalar accepts 0 and -1, as PyTorch does.
    pub fn axis(&self, axis: i64) -> Result<usize, String> {
        let rank = self.rank().max(1) as i64;
        let resolved = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&resolved) {
            Ok(resolved as usize)
        } else {
            Err(format!("axis {axis} is out of range for shape {self}"))
        }
    }

    /// Resolves a list of axes, sorted; an empty list means every axis.
    ///
    /// # Errors
    /// If an axis does not exist or is named twice.
    pub fn axes(&self, axes: &[i64]) -> Result<SmallVec<[usize; 4]>, String> {
        if axes.is_empty() {
            return Ok((0..self.rank()).collect());
        }
        let mut out =
            axes.iter().map(|&a| self.axis(a)).collect::<Result<SmallVec<[usize; 4]>, _>>()?;
        out.sort_unstable();
        if out.windows(2).any(|w| w[0] == w[1]) {
            return Err(format!("an axis appears twice in {axes:?}"));
        }
        out.retain(|a| *a < self.rank());
        Ok(out)
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<&[usize]> for Shape {
    fn from(sizes: &[usize]) -> Self {
        Shape::new(sizes)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(sizes: [usize; N]) -> Self {
        Shape::new(&sizes)
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(sizes: I) -> Self {
        Shape(sizes.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, n) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{n}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        let a = Shape::new(&[4, 1, 3]);
        assert_eq!(a.broadcast(&Shape::new(&[2, 1])).unwrap(), Shape::new(&[4, 2, 3]));
        assert!(a.broadcast(&Shape::new(&[2])).unwrap_err().contains("sizes 3 and 2 at axis 2"));
        assert_eq!(
            Shape::new(&[0, 3]).broadcast(&Shape::new(&[1, 3])).unwrap(),
            Shape::new(&[0, 3])
        );
    }

    #[test]
    fn strides_and_counts() {
        assert_eq!(Shape::new(&[2, 3, 4]).strides().as_slice(), [12, 4, 1]);
        assert_eq!(Shape::new(&[usize::MAX, 2]).checked_numel(), None);
        assert_eq!(Shape::new(&[usize::MAX, 2, 0]).checked_numel(), None);
        assert_eq!(Shape::scalar().numel(), 1);
    }

    #[test]
    fn axes_resolve_from_either_end() {
        let s = Shape::new(&[2, 3]);
        assert_eq!(s.axes(&[-1, 0]).unwrap().as_slice(), [0, 1]);
        assert!(s.axes(&[2]).is_err() && s.axes(&[1, -1]).is_err());
        assert_eq!(Shape::scalar().axes(&[0]).unwrap().len(), 0);
    }
}
