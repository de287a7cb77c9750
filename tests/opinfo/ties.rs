//! Which of equal elements an operator finds is nobody's promise. What holds of any of them is
//! checked: a position points at an equal element, a found zero has the sign of a zero of its line,
//! and equal elements have the same gradient in sum.

use crate::arguments::integers;
use crate::cases::{Arg, Case};
use crate::compare::{Difference, What};
use crate::known::Part;
use tracecast_ir::eval::Value;

/// Operators that find elements along `dim`: their last result says where.
const FINDERS: &[&str] = &["argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"];

/// What differs in a tensor of a call.
pub(crate) struct Differs<'a> {
    pub(crate) part: Part,
    /// The number of the result or of the gradient.
    pub(crate) at: usize,
    pub(crate) found: &'a Value,
    pub(crate) wanted: &'a Value,
    pub(crate) all: &'a [Difference],
}

/// True if that other ones of equal elements were taken explains all that differs.
pub(crate) fn explain(case: &Case, differs: &Differs<'_>) -> bool {
    let Some(lines) = Lines::of(case) else { return false };
    let (found, wanted) = (differs.found.to_f64s(), differs.wanted.to_f64s());
    match differs.part {
        Part::Out if differs.at + 1 == case.out.len() => lines.are_equal_at(&found, &wanted),
        Part::Out => {
            let only_signs = differs.all.iter().all(|d| d.what == What::SignsOfZero);
            only_signs && lines.hold(&found)
        }
        Part::Grad => lines.have_equal_sums(&found, &wanted),
        Part::Refused | Part::Taken => false,
    }
}

/// The elements of the first argument in lines along `dim`.
struct Lines {
    numbers: Vec<f64>,
    length: usize,
    /// Lines between one element of a line and the next.
    inner: usize,
}

impl Lines {
    /// Those of an operator that finds elements along a dimension.
    fn of(case: &Case) -> Option<Lines> {
        let Some(Arg::Tensor(x)) = case.args.first().map(|arg| &arg.is) else { return None };
        let gives_positions = case.out.len() == 2 || case.op == "argsort";
        let sizes = x.ty.shape.numbers();
        if !FINDERS.contains(&case.op.as_str()) || !gives_positions || x.ty.numel() == 0 {
            return None;
        }
        let named = |arg: &&crate::cases::Argument| arg.name.as_deref() == Some("dim");
        let dim = case.args.iter().find(named).and_then(|arg| integers(&arg.is)?.first().copied());
        let dim = dim.unwrap_or(-1).rem_euclid(sizes.len().max(1) as i64) as usize;
        let length = sizes.get(dim).copied().unwrap_or(1);
        let inner = sizes.iter().skip(dim + 1).product();
        Some(Lines { numbers: x.to_f64s(), length, inner })
    }

    /// The line of element `i` of a result of `count` elements, whose lines are shorter than the
    /// operand's or gone.
    fn line(&self, i: usize, count: usize) -> impl Iterator<Item = f64> + '_ {
        let along = count * self.length / self.numbers.len();
        let (before, behind) = (i / (along * self.inner), i % self.inner);
        let at = move |k: usize| self.numbers[(before * self.length + k) * self.inner + behind];
        (0..self.length).map(at)
    }

    fn fits(&self, count: usize) -> bool {
        let lines = self.numbers.len() / self.length;
        count > 0 && count.is_multiple_of(lines)
    }

    /// True if positions point at equal elements.
    fn are_equal_at(&self, found: &[f64], wanted: &[f64]) -> bool {
        let at = |i: usize, places: &[f64]| self.line(i, places.len()).nth(places[i] as usize);
        let are_equal = |i| match (at(i, found), at(i, wanted)) {
            (Some(a), Some(b)) => is_equal(a, b),
            _ => false,
        };
        self.fits(found.len()) && (0..found.len()).all(are_equal)
    }

    /// True if each value is an element of its line, to the sign of zero.
    fn hold(&self, values: &[f64]) -> bool {
        let is_same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        let held = |(i, value): (usize, &f64)| {
            self.line(i, values.len()).any(|element| is_same(element, *value))
        };
        self.fits(values.len()) && values.iter().enumerate().all(held)
    }

    /// True if the gradients of equal elements of a line have the same sum. Each is a sum of
    /// cotangents, which is exact.
    fn have_equal_sums(&self, found: &[f64], wanted: &[f64]) -> bool {
        let count = self.numbers.len();
        let sums_agree = |i: usize| {
            let line = i / (self.length * self.inner) * self.length * self.inner + i % self.inner;
            let equal: Vec<usize> = (0..self.length)
                .map(|k| line + k * self.inner)
                .filter(|k| is_equal(self.numbers[*k], self.numbers[i]))
                .collect();
            let sum = |of: &[f64]| equal.iter().map(|k| of[*k]).sum::<f64>();
            sum(found) == sum(wanted)
        };
        found.len() == count && (0..count).all(sums_agree)
    }
}

fn is_equal(a: f64, b: f64) -> bool {
    a == b || a.is_nan() && b.is_nan()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines {
        Lines { numbers: vec![1.0, 5.0, 1.0, 0.0, 2.0, -0.0, 3.0, 5.0], length: 4, inner: 2 }
    }

    #[test]
    fn positions_of_other_elements_are_no_tie() {
        // The lines are 1, 1, 2, 3 and 5, 0, -0, 5.
        assert!(lines().are_equal_at(&[1.0, 3.0], &[0.0, 0.0]));
        assert!(!lines().are_equal_at(&[2.0, 3.0], &[0.0, 0.0]));
        assert!(!lines().are_equal_at(&[9.0, 3.0], &[0.0, 0.0]));
    }

    #[test]
    fn values_are_elements_with_their_signs() {
        assert!(lines().hold(&[1.0, -0.0]) && lines().hold(&[3.0, 0.0]));
        assert!(!lines().hold(&[0.0, 0.0]), "no zero in the first line");
    }

    #[test]
    fn gradients_go_to_equal_elements_alone() {
        let one = |at: usize| (0..8).map(|i| if i == at { 2.0 } else { 0.0 }).collect::<Vec<f64>>();
        assert!(lines().have_equal_sums(&one(0), &one(2)), "1 and 1");
        assert!(lines().have_equal_sums(&one(3), &one(5)), "0 and -0");
        assert!(!lines().have_equal_sums(&one(0), &one(4)), "1 and 2");
        assert!(!lines().have_equal_sums(&one(1), &one(0)), "another line");
    }
}
