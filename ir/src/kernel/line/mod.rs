//! What is done with a line of numbers as a whole: running results and the order of its elements.
//! It is written once, here; the interpreter runs it, and so does the CPU, whose threads take some
//! lines each.
//!
//! # Order
//!
//! A scan takes positions one after another, from the first, or from the last if it is reversed,
//! and shows every partial result: there are no lanes and no chunks. Sums, products and recurrences
//! of f32 are accumulated in f64 and rounded to f32 where they are shown, 16-bit floats in f32, the
//! others in their own type. Logarithms of sums are accumulated in f32, or in f64 for f64.

mod element;
mod layout;
mod order;
mod scan;

use crate::DType;
use element::with_element;
pub use layout::{Layout, Scan};
pub use scan::{Scanner, panel_dtype};
use smallvec::{SmallVec, smallvec};
use std::fmt;

/// What is done with each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The result so far at every position.
    Scan {
        /// Which.
        scan: Scan,
        /// From the last position to the first.
        reverse: bool,
    },
    /// The positions of the elements in order, equal ones as they come, as i64. NaN counts as the
    /// largest, and zeros are equal.
    Order {
        /// The largest first.
        descending: bool,
    },
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Scan { scan, reverse } => {
                write!(f, "scan {}{}", scan.name(), if *reverse { " reversed" } else { "" })
            }
            Work::Order { descending: false } => f.write_str("order ascending"),
            Work::Order { descending: true } => f.write_str("order descending"),
        }
    }
}

impl Work {
    /// How many words of memory the work takes beside its operands, however many lines there are:
    /// an order has the keys of a line there.
    pub fn words(self, dtype: DType, layout: Layout) -> usize {
        if let Work::Order { .. } = self {
            with_element!(dtype, T => {
                return order::words::<T>(layout);
            });
        }
        0
    }

    /// Does the work for whole lines: `inputs` are elements of `dtype`, `output` is as long as
    /// `layout` says. What `words` hold is of no importance; there are as many as
    /// [`words`](Work::words) says, or more.
    ///
    /// # Errors
    /// If the buffers are not of these sizes, or there is no such work for the dtype.
    pub fn run(
        self,
        dtype: DType,
        layout: Layout,
        inputs: &[&[u8]],
        output: &mut [u8],
        words: &mut [u64],
    ) -> Result<(), String> {
        let Layout { outer, length, inner, kept } = layout;
        let operands = if self.takes_two() { 2 } else { 1 };
        let to = if self.is_position() { DType::I64 } else { dtype };
        let fit = inputs.len() == operands
            && inputs.iter().all(|i| i.len() == outer * length * inner * dtype.bytes())
            && output.len() == outer * kept * inner * to.bytes()
            && words.len() >= self.words(dtype, layout)
            && kept <= length
            && (kept == length || matches!(self, Work::Order { .. }));
        if !fit {
            return Err(format!("operands of {self} are not of the sizes of its lines"));
        }
        let descending = match self {
            Work::Order { descending } => descending,
            Work::Scan { scan, reverse } => {
                return scan::run(scan, reverse, dtype, layout, inputs, output);
            }
        };
        with_element!(dtype, T => {
            order::run::<T>(descending, layout, inputs[0], output, words);
            return Ok(());
        });
        Err(format!("there is no {self} of {dtype}"))
    }

    /// The operands, where a kernel has these inputs: one input may be both.
    ///
    /// # Errors
    /// If there is no input.
    pub fn operands<'a>(self, inputs: &[&'a [u8]]) -> Result<SmallVec<[&'a [u8]; 2]>, String> {
        let (Some(first), Some(last)) = (inputs.first(), inputs.last()) else {
            return Err(format!("there is nothing to {self}"));
        };
        Ok(if self.takes_two() { smallvec![*first, *last] } else { smallvec![*first] })
    }

    /// True for work on two operands.
    pub const fn takes_two(self) -> bool {
        matches!(self, Work::Scan { scan: Scan::Recurrence, .. })
    }

    /// True if the results are positions, i64 whatever the operands are.
    pub const fn is_position(self) -> bool {
        match self {
            Work::Scan { scan, .. } => scan.is_position(),
            Work::Order { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<T: Copy, const N: usize>(values: &[T], to: fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|v| to(*v)).collect()
    }

    fn f32s(work: Work, layout: Layout, inputs: &[&[f32]]) -> Vec<f32> {
        let inputs: Vec<_> = inputs.iter().map(|i| bytes(i, f32::to_le_bytes)).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(|i| &i[..]).collect();
        let mut out = vec![0; layout.outer * layout.kept * layout.inner * 4];
        work.run(DType::F32, layout, &inputs, &mut out, &mut []).unwrap();
        out.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    fn positions(work: Work, layout: Layout, x: &[f32]) -> Vec<i64> {
        let mut out = vec![0; layout.outer * layout.kept * layout.inner * 8];
        let mut words = vec![7; work.words(DType::F32, layout)];
        work.run(DType::F32, layout, &[&bytes(x, f32::to_le_bytes)], &mut out, &mut words).unwrap();
        out.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
    }

    fn row(length: usize) -> Layout {
        Layout { outer: 1, length, inner: 1, kept: length }
    }

    fn scan(scan: Scan) -> Work {
        Work::Scan { scan, reverse: false }
    }

    #[test]
    fn scans_of_rows_and_columns_are_those_of_the_definition() {
        let x: Vec<f32> = (0..2 * 5 * 19).map(|i| ((i * 37 % 23) as f32 - 11.0) * 0.25).collect();
        for layout in [
            Layout { outer: 38, length: 5, inner: 1, kept: 5 },
            Layout { outer: 2, length: 5, inner: 19, kept: 5 },
        ] {
            for reverse in [false, true] {
                let got = f32s(Work::Scan { scan: Scan::Sum, reverse }, layout, &[&x]);
                for (i, got) in got.iter().enumerate() {
                    let (o, k) = (i / (5 * layout.inner), i / layout.inner % 5);
                    let at = |k: usize| x[(o * 5 + k) * layout.inner + i % layout.inner];
                    let range = if reverse { k..5 } else { 0..k + 1 };
                    let want: f64 = range.map(|k| f64::from(at(k))).sum();
                    assert_eq!(*got, want as f32, "{layout:?} {reverse} {i}");
                }
            }
        }
    }

    #[test]
    fn sums_of_f32_are_rounded_once_and_products_and_recurrences_run_on() {
        let x = [1.0, 3.0e-8, 3.0e-8, 3.0e-8, 3.0e-8];
        assert_eq!(f32s(scan(Scan::Sum), row(5), &[&x])[4], 1.0 + 1.2e-7);
        assert_eq!(f32s(scan(Scan::Prod), row(3), &[&[2.0, 0.0, 5.0]]), [2.0, 0.0, 0.0]);
        let (a, b) = ([9.0, 2.0, -1.0], [1.0, 1.0, 0.5]);
        assert_eq!(f32s(scan(Scan::Recurrence), row(3), &[&a, &b]), [1.0, 3.0, -2.5]);
        let back = Work::Scan { scan: Scan::Recurrence, reverse: true };
        assert_eq!(f32s(back, row(3), &[&a, &b]), [19.0, 2.0, 0.5]);
    }

    #[test]
    fn extremes_take_the_last_of_equal_ones_and_stay_at_a_nan() {
        let nan = f32::NAN;
        let x = [1.0, 3.0, 3.0, 2.0, nan, 9.0, nan];
        assert_eq!(positions(scan(Scan::ArgMax), row(7), &x), [0, 1, 2, 2, 4, 4, 6]);
        assert_eq!(positions(scan(Scan::ArgMin), row(7), &x), [0, 0, 0, 0, 4, 4, 6]);
    }

    #[test]
    fn logarithms_of_sums_hold_at_the_ends() {
        let inf = f32::INFINITY;
        let got = f32s(scan(Scan::LogSumExp), row(5), &[&[-inf, 0.0, 0.0, -inf, inf]]);
        let ln2 = std::f32::consts::LN_2;
        assert_eq!(got, [-inf, 0.0, ln2, ln2, inf]);
        assert!(f32s(scan(Scan::LogSumExp), row(2), &[&[f32::NAN, 1.0]])[1].is_nan());
    }

    #[test]
    fn an_order_is_stable_and_has_nan_last_or_first() {
        let x = [0.0, f32::NAN, -0.0, 2.0, -1.0, 2.0, f32::NEG_INFINITY];
        let up = Work::Order { descending: false };
        let down = Work::Order { descending: true };
        assert_eq!(positions(up, row(7), &x), [6, 4, 0, 2, 3, 5, 1]);
        assert_eq!(positions(down, row(7), &x), [1, 3, 5, 0, 2, 4, 6]);
        let some = Layout { kept: 3, ..row(7) };
        assert_eq!(positions(down, some, &x), [1, 3, 5]);
    }

    /// Long lines are sorted in another way than short ones, in both widths of keys.
    #[test]
    fn an_order_of_any_length_is_that_of_a_stable_sort() {
        for length in [1, 2, 63, 64, 65, 255, 1000, 5000] {
            let x: Vec<f32> =
                (0..length).map(|i| ((i * 7919 + i * i) % 211) as f32 - 100.0).collect();
            for descending in [false, true] {
                let mut want: Vec<i64> = (0..length as i64).collect();
                want.sort_by(|a, b| {
                    let (a, b) = (x[*a as usize], x[*b as usize]);
                    if descending { b.total_cmp(&a) } else { a.total_cmp(&b) }
                });
                for kept in [length, length.min(16)] {
                    let layout = Layout { kept, ..row(length) };
                    let work = Work::Order { descending };
                    assert_eq!(positions(work, layout, &x), want[..kept], "{length} {kept}");
                    let wide: Vec<u8> =
                        x.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect();
                    let mut out = vec![0; kept * 8];
                    let mut words = vec![7; work.words(DType::F64, layout)];
                    work.run(DType::F64, layout, &[&wide], &mut out, &mut words).unwrap();
                    let wide: Vec<i64> = out
                        .chunks_exact(8)
                        .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
                        .collect();
                    assert_eq!(wide, want[..kept], "{length} {kept} of f64");
                }
            }
        }
    }

    #[test]
    fn buffers_of_other_sizes_are_refused() {
        let mut out = [0; 8];
        let sum = scan(Scan::Sum).run(DType::F32, row(3), &[&[0; 12]], &mut out, &mut []);
        assert!(sum.is_err_and(|error| error.contains("scan sum")));
        let (order, mut out) = (Work::Order { descending: false }, [0; 24]);
        let order = order.run(DType::F32, row(3), &[&[0; 12]], &mut out, &mut [0; 2]);
        assert!(order.is_err_and(|error| error.contains("order ascending")));
    }
}
