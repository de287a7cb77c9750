//! Shapes: sizes along axes, broadcasting, and row-major strides.

use crate::Size;
use smallvec::SmallVec;
use std::fmt;
use std::ops::{Deref, DerefMut, Index, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo};

/// The sizes of a tensor along its axes; a scalar has none.
///
/// A shape dereferences to a slice of [`Size`]s, which are numbers or expressions of names. The
/// shape of an op that failed has a size of [`Size::UNKNOWN`] wherever it is asked for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(SmallVec<[Size; 4]>);

/// How many axes the shape of a failed op shows to whoever counts them.
const UNKNOWN_AXES: usize = 4;

impl Shape {
    /// The shape with the given sizes.
    pub fn new<T: Copy + Into<Size>>(sizes: &[T]) -> Self {
        sizes.iter().copied().collect()
    }

    /// The shape without axes.
    pub fn scalar() -> Self {
        Shape::default()
    }

    /// The shape of something whose op failed.
    pub fn unknown() -> Self {
        Shape(SmallVec::from_elem(Size::UNKNOWN, UNKNOWN_AXES))
    }

    /// True if a size is of an op that failed.
    #[inline]
    pub fn is_unknown(&self) -> bool {
        self.0.iter().any(|size| size.is_unknown())
    }

    /// True if a size is an expression of names.
    #[inline]
    pub fn has_names(&self) -> bool {
        self.0.iter().any(|size| size.has_names())
    }

    /// Not inlined: shapes are collected from many kinds of iterators.
    #[inline(never)]
    fn push(&mut self, size: Size) {
        self.0.push(size);
    }

    /// The number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements; 1 for a scalar.
    pub fn numel(&self) -> Size {
        self.0.iter().product()
    }

    /// The sizes of a shape in a program that runs.
    ///
    /// # Panics
    /// If one of them is no number.
    #[track_caller]
    pub fn numbers(&self) -> SmallVec<[usize; 4]> {
        self.0.iter().map(|size| size.get()).collect()
    }

    /// The number of elements, or `None` if it is not a number or does not fit in memory's index
    /// type.
    ///
    /// The sizes other than zero must multiply without overflow even when some axis is empty.
    pub fn checked_numel(&self) -> Option<usize> {
        let numbers: SmallVec<[usize; 4]> = self
            .0
            .iter()
            .map(|size| usize::try_from(size.number()?).ok())
            .collect::<Option<_>>()?;
        let solid = numbers.iter().filter(|&&n| n != 0);
        let solid = solid.copied().try_fold(1usize, usize::checked_mul)?;
        Some(if numbers.contains(&0) { 0 } else { solid })
    }

    /// Row-major strides in elements. An axis that is known to be empty counts as one of a single
    /// position: nothing lies there.
    pub fn strides(&self) -> SmallVec<[Size; 4]> {
        let mut strides: SmallVec<[Size; 4]> = SmallVec::from_elem(Size::from(1), self.rank());
        for axis in (1..self.rank()).rev() {
            let size = self.0[axis];
            strides[axis - 1] = if size == 0 { strides[axis] } else { strides[axis] * size };
        }
        strides
    }

    /// The shape that `self` and `other` stretch to, numpy's rule: align at the last axis, sizes
    /// equal or one of them 1.
    ///
    /// No value of a name is looked at: only the number 1 stretches, and expressions agree if they
    /// are the same.
    ///
    /// # Errors
    /// If two aligned sizes differ and neither is 1.
    pub fn broadcast(&self, other: &Shape) -> Result<Shape, String> {
        self.broadcast_if(other, &|_, _| false)
    }

    /// As [`broadcast`](Shape::broadcast), where sizes of unlike form are equal if `equal` says so.
    /// What would help is asked in order: that they are equal, and that one of them is 1.
    ///
    /// # Errors
    /// If two aligned sizes differ and neither is 1.
    pub fn broadcast_if(
        &self,
        other: &Shape,
        equal: &dyn Fn(Size, Size) -> bool,
    ) -> Result<Shape, String> {
        let rank = self.rank().max(other.rank());
        let one = Size::from(1);
        let at = |s: &Shape, axis: usize| {
            if axis + s.rank() < rank { one } else { s.0[axis + s.rank() - rank] }
        };
        (0..rank)
            .map(|axis| match (at(self, axis), at(other, axis)) {
                (a, b) if a == b || b == one => Ok(a),
                (a, b) if a == one => Ok(b),
                (a, b) if equal(a, b) || equal(b, one) => Ok(a),
                (a, b) if equal(a, one) => Ok(b),
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

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [Size] {
        &mut self.0
    }
}

impl Deref for Shape {
    type Target = [Size];

    #[inline]
    fn deref(&self) -> &[Size] {
        &self.0
    }
}

impl Index<usize> for Shape {
    type Output = Size;

    #[inline]
    fn index(&self, axis: usize) -> &Size {
        match self.0.get(axis) {
            None if self.is_unknown() => &Size::UNKNOWN,
            _ => &self.0[axis],
        }
    }
}

macro_rules! index_by_ranges {
    ($($range:ty),+) => { $(
        impl Index<$range> for Shape {
            type Output = [Size];

            fn index(&self, axes: $range) -> &[Size] {
                match self.0.get(axes.clone()) {
                    None if self.is_unknown() => &self.0,
                    _ => &self.0[axes],
                }
            }
        }
    )+ };
}

index_by_ranges!(RangeFull, Range<usize>, RangeFrom<usize>, RangeTo<usize>, RangeInclusive<usize>);

impl<T: Copy + Into<Size>> From<&[T]> for Shape {
    fn from(sizes: &[T]) -> Self {
        Shape::new(sizes)
    }
}

impl<T: Copy + Into<Size>, const N: usize> From<[T; N]> for Shape {
    fn from(sizes: [T; N]) -> Self {
        Shape::new(&sizes)
    }
}

impl<T: Into<Size>> From<Vec<T>> for Shape {
    fn from(sizes: Vec<T>) -> Self {
        sizes.into_iter().collect()
    }
}

impl<T: Copy + Into<Size>> From<&Vec<T>> for Shape {
    fn from(sizes: &Vec<T>) -> Self {
        Shape::new(sizes)
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl<T: Into<Size>> FromIterator<T> for Shape {
    fn from_iter<I: IntoIterator<Item = T>>(sizes: I) -> Self {
        let mut shape = Shape::default();
        sizes.into_iter().for_each(|size| shape.push(size.into()));
        shape
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
    fn names_broadcast_by_form_unless_somebody_answers() {
        let [b, n] = ["b", "n"].map(Size::named);
        let (x, y) = (Shape::new(&[b, Size::from(1)]), Shape::new(&[n]));
        assert_eq!(x.broadcast(&y).unwrap(), Shape::new(&[b, n]));
        assert!(y.broadcast(&Shape::new(&[b])).unwrap_err().contains("sizes n and b at axis 0"));
        assert_eq!(y.broadcast_if(&Shape::new(&[b]), &|_, _| true).unwrap(), y);
        let is_one = |a: Size, other: Size| a == n && other == 1;
        assert_eq!(y.broadcast_if(&Shape::new(&[b]), &is_one).unwrap(), Shape::new(&[b]));
    }

    #[test]
    fn lists_of_sizes_are_shapes() {
        let shape = Shape::new(&[2, 3]);
        let list = vec![2usize, 3];
        let of_each = [Shape::from(&list), Shape::from(list), Shape::from(&shape)];
        assert!(of_each.iter().all(|made| *made == shape), "{of_each:?}");
    }

    #[test]
    fn the_shape_of_a_failed_op_has_every_size() {
        let shape = Shape::unknown();
        assert!(shape[17].is_unknown() && (shape[0] * 3 + 1).is_unknown());
        assert!(shape[2..9].iter().all(|size| size.is_unknown()) && shape.rank() > 0);
    }

    #[test]
    fn strides_and_counts() {
        assert_eq!(Shape::new(&[2, 3, 4]).strides().as_slice(), [12, 4, 1]);
        assert_eq!(Shape::new(&[Size::MAX, 8]).checked_numel(), None);
        assert_eq!(Shape::new(&[Size::MAX, 8, 0]).checked_numel(), None);
        assert_eq!(Shape::scalar().numel(), 1);
        let batch = Size::named("batch");
        assert_eq!(Shape::new(&[batch, Size::from(784)]).numel(), 784 * batch);
    }

    #[test]
    fn axes_resolve_from_either_end() {
        let s = Shape::new(&[2, 3]);
        assert_eq!(s.axes(&[-1, 0]).unwrap().as_slice(), [0, 1]);
        assert!(s.axes(&[2]).is_err() && s.axes(&[1, -1]).is_err());
        assert_eq!(Shape::scalar().axes(&[0]).unwrap().len(), 0);
    }
}
