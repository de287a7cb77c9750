//! How host tensors are printed: in a line, and with `{:#}` in rows.

use super::{Element, Tensor};
use std::fmt;
use tracecast_ir::eval::Value;
use tracecast_ir::{DType, TensorType};

/// The most elements of a line.
const SHOWN: usize = 8;

/// The most elements that are printed in rows without leaving out any.
const WHOLE: usize = 1000;

/// How many positions are printed at each end of an axis where some are left out.
const ENDS: usize = 3;

/// The type and the first few elements; with `{:#}` the type and the elements in rows, of large
/// tensors those at the ends of each axis.
///
/// ```
/// use tracecast_runtime::Tensor;
/// let x = Tensor::from([[1.5f32, -2.0], [10.0, 0.25]]);
/// assert_eq!(format!("{x}"), "f32[2, 2] 1.5, -2, 10, 0.25");
/// assert_eq!(format!("{x:#}"), "f32[2, 2]\n[[ 1.5,   -2],\n [  10, 0.25]]");
/// assert_eq!(Tensor::scalar(1e-20f32).to_string(), "f32[] 1e-20");
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ty())?;
        if f.alternate() {
            let rows = Rows::of(self);
            f.write_str("\n")?;
            return rows.write(f, 0, 0);
        }
        let count = (self.bytes().len() / self.dtype().bytes().max(1)).min(SHOWN);
        for i in 0..count {
            write!(f, "{}{}", if i == 0 { " " } else { ", " }, element(self, i))?;
        }
        if count < self.ty().numel().get() { f.write_str(", …") } else { Ok(()) }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One element, by its number in row-major order.
fn element(tensor: &Tensor, number: usize) -> String {
    let width = tensor.dtype().bytes();
    let bytes = &tensor.bytes()[number * width..][..width];
    // An f64 does not hold every i64.
    if let (DType::I64, Some(whole)) = (tensor.dtype(), i64::read_one(bytes)) {
        return whole.to_string();
    }
    let one = Value { ty: TensorType::scalar(tensor.dtype()), bytes: bytes.to_vec().into() };
    let number = one.to_f64s()[0];
    match tensor.dtype() {
        DType::Bool => (number != 0.0).to_string(),
        dtype if dtype.is_float() && is_far(number) => match dtype {
            DType::F64 => format!("{number:e}"),
            _ => format!("{:e}", number as f32),
        },
        DType::F32 => (number as f32).to_string(),
        _ => number.to_string(),
    }
}

/// True for a float whose digits would be mostly zeros: it is printed with an exponent.
fn is_far(number: f64) -> bool {
    number.is_finite() && number != 0.0 && !(1e-5..1e16).contains(&number.abs())
}

/// The elements that are shown, as text, and where they are.
struct Rows {
    sizes: Vec<usize>,
    /// For each axis the positions that are shown.
    places: Vec<Vec<usize>>,
    /// In row-major order of the places.
    elements: Vec<String>,
    /// The most characters of an element.
    width: usize,
}

impl Rows {
    fn of(tensor: &Tensor) -> Rows {
        let sizes = tensor.shape().numbers().to_vec();
        let is_whole = tensor.ty().numel().get() <= WHOLE;
        let shown = |size: usize| match is_whole || size <= 2 * ENDS {
            true => (0..size).collect(),
            false => (0..ENDS).chain(size - ENDS..size).collect::<Vec<_>>(),
        };
        let places: Vec<Vec<usize>> = sizes.iter().map(|size| shown(*size)).collect();
        let mut numbers = vec![0];
        for (size, places) in sizes.iter().zip(&places) {
            let before = numbers.iter();
            let inside = before.flat_map(|number| places.iter().map(move |at| number * size + at));
            numbers = inside.collect::<Vec<usize>>();
        }
        let elements: Vec<String> = numbers.into_iter().map(|i| element(tensor, i)).collect();
        let width = elements.iter().map(String::len).max().unwrap_or(0);
        Rows { sizes, places, elements, width }
    }

    /// Writes what is along `axis` and the axes inside it, from that element of the list on.
    fn write(&self, f: &mut fmt::Formatter<'_>, axis: usize, first: usize) -> fmt::Result {
        let Some(places) = self.places.get(axis) else {
            return write!(f, "{:>1$}", self.elements[first], self.width);
        };
        let inside: usize = self.places[axis + 1..].iter().map(Vec::len).product();
        let is_row = axis + 1 == self.places.len();
        let between = match is_row {
            true => ", ".to_owned(),
            false => {
                format!(",{}{}", "\n".repeat(self.places.len() - axis - 1), " ".repeat(axis + 1))
            }
        };
        f.write_str("[")?;
        for (i, place) in places.iter().enumerate() {
            if i > 0 {
                f.write_str(&between)?;
                if places[i - 1] + 1 < *place {
                    write!(f, "…{between}")?;
                }
            }
            if self.sizes[axis + 1..].contains(&0) {
                f.write_str("[]")?;
            } else {
                self.write(f, axis + 1, first + i * inside)?;
            }
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing_is_short() {
        let x = Tensor::full(TensorType::new(DType::BF16, [3, 5]), 0.5).unwrap();
        assert_eq!(x.to_string(), "bf16[3, 5] 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, …");
        assert_eq!(format!("{:?}", Tensor::scalar(true)), "bool[] true");
        let large = Tensor::new([3], &[(1i64 << 53) + 1, i64::MAX, i64::MIN]).unwrap();
        let text = "i64[3] 9007199254740993, 9223372036854775807, -9223372036854775808";
        assert_eq!(large.to_string(), text);
        assert_eq!(Tensor::new::<f32>([0], &[]).unwrap().to_string(), "f32[0]");
    }

    #[test]
    fn rows_are_printed_in_rows() {
        let counted = |sizes: &[usize]| {
            Tensor::from_fn(TensorType::new(DType::I32, sizes), |i| i as f64).unwrap()
        };
        let rows = |x: &Tensor| format!("{x:#}");
        assert_eq!(rows(&counted(&[])), "i32[]\n0");
        assert_eq!(rows(&counted(&[3])), "i32[3]\n[0, 1, 2]");
        assert_eq!(
            rows(&counted(&[2, 2, 3])),
            "i32[2, 2, 3]\n[[[ 0,  1,  2],\n  [ 3,  4,  5]],\n\n [[ 6,  7,  8],\n  [ 9, 10, 11]]]"
        );
        assert_eq!(rows(&counted(&[0])), "i32[0]\n[]");
        assert_eq!(rows(&counted(&[2, 0])), "i32[2, 0]\n[[],\n []]");
        assert_eq!(rows(&counted(&[1001])), "i32[1001]\n[   0,    1,    2, …,  998,  999, 1000]");
        let large = rows(&counted(&[300, 4]));
        assert!(large.starts_with("i32[300, 4]\n[[   0,    1,    2,    3],\n"), "{large}");
        assert!(large.contains("   11],\n …,\n [1188,"), "{large}");
        assert_eq!(large.lines().count(), 8, "{large}");
    }
}
