//! Parts of host tensors, and tensors from parts: rows, ranges along an axis, single elements.
//! Nothing here computes; that is for programs.

use super::{Element, Tensor, checked};
use crate::error::{Error, Result};
use std::ops::{Bound, RangeBounds};
use tracecast_ir::eval::Value;
use tracecast_ir::{Shape, Size, TensorType};

impl Tensor {
    /// The tensor of these rows: one axis for the rows, one for what is in them.
    ///
    /// ```
    /// use tracecast_runtime::Tensor;
    /// let table: Vec<Vec<f32>> = vec![vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]];
    /// assert_eq!(Tensor::from_rows(&table)?.to_string(), "f32[2, 3] 1, 2, 3, 4, 5, 6");
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// If two rows differ in length, or there is no row.
    pub fn from_rows<T: Element, R: AsRef<[T]>>(rows: impl IntoIterator<Item = R>) -> Result<Self> {
        let (mut elements, mut width, mut count) = (Vec::new(), None, 0_usize);
        for row in rows {
            let row = row.as_ref();
            let first = *width.get_or_insert(row.len());
            if row.len() != first {
                let found = row.len();
                return Err(Error::Tensor(format!(
                    "row {count} has {found} elements, row 0 has {first}"
                )));
            }
            elements.extend_from_slice(row);
            count += 1;
        }
        let width = width.ok_or_else(|| {
            Error::Tensor("no rows are given, so that nothing tells how long they are".to_owned())
        })?;
        Tensor::new([count, width], &elements)
    }

    /// The tensors one after another along a new first axis: `torch.stack`. All have one type.
    ///
    /// ```
    /// use tracecast_runtime::Tensor;
    /// let rows = [Tensor::from([1.0f32, 2.0]), Tensor::from([3.0f32, 4.0])];
    /// assert_eq!(Tensor::stack(&rows)?, Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]));
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// If two differ in type, or there is no tensor.
    pub fn stack<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<Self> {
        let tensors: Vec<&Tensor> = tensors.into_iter().collect();
        let Some(first) = tensors.first() else {
            return Err(Error::Tensor("stack: no tensors are given".to_owned()));
        };
        if let Some(at) = tensors.iter().position(|tensor| tensor.ty() != first.ty()) {
            let (found, first) = (tensors[at].ty(), first.ty());
            return Err(Error::Tensor(format!(
                "stack: tensor {at} is {found}, tensor 0 is {first}"
            )));
        }
        let shape = [Size::from(tensors.len())].into_iter().chain(first.shape().iter().copied());
        let ty = TensorType { dtype: first.dtype(), shape: shape.collect() };
        Tensor::from_bytes(
            ty,
            tensors.iter().flat_map(|tensor| tensor.bytes()).copied().collect::<Vec<u8>>(),
        )
    }

    /// The elements, one list for each row along the last axis: `x.tolist()` of a matrix. A tensor
    /// without axes is one row of one element.
    ///
    /// # Errors
    /// If they are of another dtype; see [`Tensor::cast`].
    pub fn to_rows<T: Element>(&self) -> Result<Vec<Vec<T>>> {
        let sizes = self.shape().numbers();
        let width = sizes.last().copied().unwrap_or(1);
        let rows: usize = sizes.iter().rev().skip(1).product();
        let all = self.to_vec()?;
        Ok((0..rows).map(|i| all[i * width..(i + 1) * width].to_vec()).collect())
    }

    /// The element at a position, one number for each axis: `x[i, j].item()`.
    ///
    /// ```
    /// use tracecast_runtime::Tensor;
    /// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.at::<f32>(&[1, 0])?, 3.0);
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such position, or the elements are of another dtype.
    pub fn at<T: Element>(&self, position: &[usize]) -> Result<T> {
        self.expect_dtype(T::DTYPE)?;
        let sizes = self.shape().numbers();
        let inside = sizes.len() == position.len()
            && position.iter().zip(&sizes).all(|(place, size)| place < size);
        if !inside {
            return Err(Error::Tensor(format!("{} has no position {position:?}", self.ty())));
        }
        let number = position.iter().zip(&sizes).fold(0, |n, (place, size)| n * size + place);
        let bytes = self.dtype().bytes();
        let element = &self.bytes()[number * bytes..][..bytes];
        T::read_one(element).ok_or_else(|| Error::Tensor(format!("{} is cut off", self.ty())))
    }

    /// The part at one position of the first axis, without that axis: `x[i]`.
    ///
    /// # Errors
    /// If there is no such position.
    pub fn row(&self, row: usize) -> Result<Self> {
        let part = self.select(&[row])?;
        part.reshape(self.shape().iter().skip(1).copied().collect::<Shape>())
    }

    /// The parts at these positions of the first axis, in this order: `x[[3, 1]]`. A position may
    /// stand there more than once.
    ///
    /// ```
    /// use tracecast_runtime::Tensor;
    /// let x = Tensor::from([[1i64, 2], [3, 4], [5, 6]]);
    /// assert_eq!(x.select(&[2, 0])?, Tensor::from([[5i64, 6], [1, 2]]));
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such position.
    pub fn select(&self, rows: &[usize]) -> Result<Self> {
        let sizes = self.shape().numbers();
        let Some(count) = sizes.first().copied() else {
            return Err(Error::Tensor(format!("{} has no axis to select along", self.ty())));
        };
        if let Some(row) = rows.iter().find(|row| **row >= count) {
            return Err(Error::Tensor(format!("{} has no row {row}", self.ty())));
        }
        let mut part = self.part(0, rows.len())?;
        let bytes = self.bytes().len().checked_div(count).unwrap_or(0);
        for (i, row) in rows.iter().enumerate() {
            part.bytes[i * bytes..][..bytes].copy_from_slice(&self.bytes()[row * bytes..][..bytes]);
        }
        Ok(Tensor::from(part))
    }

    /// The positions of one axis that lie in a range: `x[:, 1:3]` is `x.slice(1, 1..3)`, `x[10:]`
    /// is `x.slice(0, 10..)`.
    ///
    /// ```
    /// use tracecast_runtime::Tensor;
    /// let x = Tensor::from([[1i64, 2, 3], [4, 5, 6]]);
    /// assert_eq!(x.slice(1, 1..)?, Tensor::from([[2i64, 3], [5, 6]]));
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such axis, or the range does not lie within it.
    pub fn slice(&self, axis: usize, range: impl RangeBounds<usize>) -> Result<Self> {
        let sizes = self.shape().numbers();
        let Some(size) = sizes.get(axis).copied() else {
            return Err(Error::Tensor(format!("{} has no axis {axis}", self.ty())));
        };
        let start = match range.start_bound() {
            Bound::Included(start) => Some(*start),
            Bound::Excluded(before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1),
            Bound::Excluded(end) => Some(*end),
            Bound::Unbounded => Some(size),
        };
        let (Some(start), Some(end)) = (start, end) else {
            return Err(Error::Tensor(format!("no axis of {} is so long", self.ty())));
        };
        if start > end || end > size {
            return Err(Error::Tensor(format!(
                "{start}..{end} does not lie within axis {axis} of {}",
                self.ty()
            )));
        }
        let mut part = self.part(axis, end - start)?;
        // Bytes of one position of the axis, of all of them, and of those in the range.
        let inner = sizes[axis + 1..].iter().product::<usize>() * self.dtype().bytes();
        let (whole, taken) = (size * inner, (end - start) * inner);
        if taken > 0 {
            let from = self.bytes().chunks_exact(whole);
            for (to, from) in part.bytes.chunks_exact_mut(taken).zip(from) {
                to.copy_from_slice(&from[start * inner..][..taken]);
            }
        }
        Ok(Tensor::from(part))
    }

    /// A value of this type but for the size of one axis, all of which is to be written.
    fn part(&self, axis: usize, size: usize) -> Result<Value> {
        let mut sizes = self.shape().numbers();
        sizes[axis] = size;
        let ty = checked(TensorType::new(self.dtype(), &sizes[..]))?;
        Value::to_write(ty).map_err(Error::Tensor)
    }
}

impl<T: Element> From<&[T]> for Tensor {
    fn from(elements: &[T]) -> Self {
        Tensor::of_numbers(TensorType::new(T::DTYPE, [elements.len()]), elements)
    }
}

impl<T: Element> From<Vec<T>> for Tensor {
    fn from(elements: Vec<T>) -> Self {
        Tensor::from(&elements[..])
    }
}

impl<T: Element, const N: usize> From<[T; N]> for Tensor {
    fn from(elements: [T; N]) -> Self {
        Tensor::from(&elements[..])
    }
}

impl<T: Element, const M: usize, const N: usize> From<[[T; M]; N]> for Tensor {
    fn from(rows: [[T; M]; N]) -> Self {
        Tensor::of_numbers(TensorType::new(T::DTYPE, [N, M]), rows.as_flattened())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracecast_ir::DType;

    fn counted(sizes: &[usize]) -> Tensor {
        Tensor::from_fn(TensorType::new(DType::I64, sizes), |i| i as f64).unwrap()
    }

    #[test]
    fn arrays_and_lists_are_tensors() {
        assert_eq!(Tensor::from([1i64, 2]), Tensor::new([2], &[1i64, 2]).unwrap());
        assert_eq!(Tensor::from(vec![true]), Tensor::new([1], &[true]).unwrap());
        assert_eq!(
            Tensor::from([[1i64, 2, 3], [4, 5, 6]]).to_string(),
            "i64[2, 3] 1, 2, 3, 4, 5, 6"
        );
        assert_eq!(Tensor::from([[0f32; 0]; 3]).shape().to_string(), "[3, 0]");
        assert_eq!(Tensor::from([0f64; 0]).shape().to_string(), "[0]");
    }

    #[test]
    fn rows_go_in_and_come_out() {
        let x = Tensor::from_rows([[1f32, 2.0], [3.0, 4.0]]).unwrap();
        assert_eq!(x.to_rows::<f32>().unwrap(), [[1.0, 2.0], [3.0, 4.0]]);
        assert_eq!(counted(&[2, 1, 2]).to_rows::<i64>().unwrap(), [[0, 1], [2, 3]]);
        assert_eq!(counted(&[3]).to_rows::<i64>().unwrap(), [[0, 1, 2]]);
        assert_eq!(Tensor::scalar(7i64).to_rows::<i64>().unwrap(), [[7]]);
        assert_eq!(counted(&[2, 0]).to_rows::<i64>().unwrap(), [[0i64; 0]; 2]);
        let ragged = Tensor::from_rows(vec![vec![1f32], vec![2.0, 3.0]]).unwrap_err().to_string();
        assert!(ragged.contains("row 1 has 2 elements, row 0 has 1"), "{ragged}");
        assert!(Tensor::from_rows::<f32, [f32; 1]>([]).is_err());
        assert!(x.to_rows::<i64>().unwrap_err().to_string().contains("f32[2, 2]"));
    }

    #[test]
    fn parts_are_those_that_were_asked_for() {
        let x = counted(&[3, 2, 4]);
        for (i, j, k) in [(0, 0, 0), (2, 1, 3), (1, 0, 2)] {
            let number = ((i * 2 + j) * 4 + k) as i64;
            assert_eq!(x.at::<i64>(&[i, j, k]).unwrap(), number);
            assert_eq!(x.row(i).unwrap().at::<i64>(&[j, k]).unwrap(), number);
            assert_eq!(x.slice(2, k..=k).unwrap().at::<i64>(&[i, j, 0]).unwrap(), number);
            assert_eq!(x.slice(1, j..).unwrap().at::<i64>(&[i, 0, k]).unwrap(), number);
        }
        assert_eq!(x.select(&[2, 0, 2]).unwrap().slice(0, 1..2).unwrap(), x.slice(0, ..1).unwrap());
        assert_eq!(x.slice(1, ..).unwrap(), x);
        assert_eq!(x.slice(1, 2..).unwrap().shape().to_string(), "[3, 0, 4]");
        assert_eq!(x.select(&[]).unwrap().shape().to_string(), "[0, 2, 4]");
        assert_eq!(counted(&[3, 0]).slice(0, 1..).unwrap().shape().to_string(), "[2, 0]");
        assert_eq!(counted(&[3, 0]).select(&[1, 1]).unwrap().shape().to_string(), "[2, 0]");
        assert_eq!(counted(&[2]).row(1).unwrap(), Tensor::scalar(1i64));
    }

    #[test]
    fn parts_that_are_not_there_are_errors() {
        let x = counted(&[3, 2]);
        let said = |wrong: Result<Tensor>| wrong.unwrap_err().to_string();
        assert!(said(x.row(3)).contains("i64[3, 2] has no row 3"));
        assert!(said(x.select(&[0, 9])).contains("no row 9"));
        assert!(said(x.slice(2, ..)).contains("has no axis 2"));
        assert!(said(x.slice(1, 1..3)).contains("1..3 does not lie within axis 1 of i64[3, 2]"));
        #[expect(clippy::reversed_empty_ranges, reason = "it is the mistake that is tried")]
        let reversed = x.slice(0, 2..1);
        assert!(reversed.is_err() && x.slice(0, ..=usize::MAX).is_err());
        assert!(Tensor::scalar(1i64).row(0).is_err());
        assert!(x.at::<i64>(&[0]).is_err() && x.at::<i64>(&[0, 2]).is_err());
        assert!(x.at::<f32>(&[0, 0]).is_err());
    }
}
