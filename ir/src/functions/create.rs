//! Tensors of positions and of numbers that follow from each other.

use super::{MOST_NUMBERS, Made};
use crate::ops::elementwise::Elementwise;
use crate::ops::infer;
use crate::{DType, Shape, TensorType, Tracer, Var};

impl Tracer {
    /// `start`, `start + step` and so on, up to and without `end`:
    /// [`torch.arange`](https://docs.pytorch.org/docs/stable/generated/torch.arange.html).
    #[track_caller]
    pub fn arange(&self, start: f64, end: f64, step: f64, dtype: DType) -> Var<'_> {
        self.created("arange", || {
            let count = ((end - start) / step).ceil();
            if !(step != 0.0 && count >= 0.0 && count < i64::MAX as f64) {
                return Err(format!("steps of {step} do not lead from {start} to {end}"));
            }
            let wide = if dtype.is_float() { DType::F64 } else { DType::I64 };
            [start, step].into_iter().try_for_each(|v| infer::need_held(wide, "a number", v))?;
            let at = self.iota(wide, Shape::new(&[count as i64]), 0);
            Ok(at.mul(step).add(start).to(dtype))
        })
    }

    /// Ones on the diagonal of a matrix:
    /// [`torch.eye`](https://docs.pytorch.org/docs/stable/generated/torch.eye.html).
    #[track_caller]
    pub fn eye(&self, rows: i64, columns: i64, dtype: DType) -> Var<'_> {
        self.created("eye", || {
            if rows < 0 || columns < 0 {
                return Err(format!("a matrix of {rows} rows and {columns} columns"));
            }
            let column = self.iota(DType::I64, Shape::new(&[1, columns]), 1);
            Ok(column.eq(self.iota(DType::I64, Shape::new(&[rows, 1]), 0)).to(dtype))
        })
    }

    /// A number as a tensor without axes in f64, for bounds that may be tensors.
    #[track_caller]
    pub fn scalar(&self, number: f64) -> Var<'_> {
        self.full(TensorType::scalar(DType::F64), number)
    }

    /// Records a function without operands with the line of its caller; every error names it.
    #[track_caller]
    fn created<'t>(&'t self, name: &'static str, body: impl FnOnce() -> Made<Var<'t>>) -> Var<'t> {
        let _line = self.come_to_caller();
        let _function = self.enter_function(name, None);
        body().unwrap_or_else(|why| self.fail(name, why))
    }

    /// `steps` numbers from `start` to and with `end`, tensors without axes:
    /// [`torch.linspace`](https://docs.pytorch.org/docs/stable/generated/torch.linspace.html).
    #[track_caller]
    pub fn linspace<'t>(
        &'t self,
        start: Var<'t>,
        end: Var<'t>,
        steps: i64,
        dtype: DType,
    ) -> Var<'t> {
        self.spaced("linspace", start, end, steps, dtype, |y| y.to(dtype))
    }

    /// `base` to the power of the numbers of [`linspace`](Tracer::linspace):
    /// [`torch.logspace`](https://docs.pytorch.org/docs/stable/generated/torch.logspace.html).
    #[track_caller]
    pub fn logspace<'t>(
        &'t self,
        start: Var<'t>,
        end: Var<'t>,
        steps: i64,
        base: f64,
        dtype: DType,
    ) -> Var<'t> {
        self.spaced("logspace", start, end, steps, dtype, |y| {
            let power = y.mul(base.ln()).exp();
            // What is an integer but for the last bits is one, so that it becomes one as an
            // integer.
            let near = power.add(0.5).floor();
            let rest = power.sub(near).abs();
            let is_whole = rest.lt(near.abs().mul(1e-12));
            is_whole.choose(near, power).to(dtype)
        })
    }

    #[track_caller]
    fn spaced<'t>(
        &'t self,
        name: &'static str,
        start: Var<'t>,
        end: Var<'t>,
        steps: i64,
        dtype: DType,
        finish: impl FnOnce(Var<'t>) -> Var<'t>,
    ) -> Var<'t> {
        if start.is_poison() || end.is_poison() {
            return if start.is_poison() { start } else { end };
        }
        self.created(name, || {
            if let Some(x) = [start, end].into_iter().find(|x| x.rank() > 0) {
                return Err(format!("takes bounds without axes, found {}", x.ty()));
            }
            if steps < 0 {
                return Err(format!("{steps} steps"));
            }
            let kept = |x: Var<'t>| if dtype.is_float() { x } else { x.to(dtype) };
            let (from, to) = (kept(start).to(DType::F64), kept(end).to(DType::F64));
            let shape = Shape::new(&[steps]);
            let at = self.iota(DType::F64, &shape, 0);
            let each = to.sub(from).div((steps - 1).max(1) as f64);
            let (from, to, each) =
                (from.expand_to(&shape), to.expand_to(&shape), each.expand_to(&shape));
            let first = from.add(at.mul(each));
            // The second half is counted from the end, as PyTorch does.
            let last = to.sub(at.rsub((steps - 1) as f64).mul(each));
            let y = at.lt((steps / 2) as f64).choose(first, last);
            Ok(finish(if steps == 1 { from } else { y }))
        })
    }

    /// The rows and columns of the places of a matrix on and below a diagonal, or on and above it,
    /// in row-major order, as i64[2, count]:
    /// [`torch.tril_indices`](https://docs.pytorch.org/docs/stable/generated/torch.tril_indices.html),
    /// `torch.triu_indices`.
    #[track_caller]
    pub fn triangle_indices(
        &self,
        rows: i64,
        columns: i64,
        offset: i64,
        is_lower: bool,
    ) -> Var<'_> {
        self.created("triangle_indices", || {
            let numbers = places_of_triangle(rows, columns, offset, is_lower)?;
            Ok(self.constant(DType::I64, &[2, numbers.len() / 2], &numbers))
        })
    }
}

/// The rows of those places, and then their columns.
fn places_of_triangle(rows: i64, columns: i64, offset: i64, is_lower: bool) -> Made<Vec<f64>> {
    if rows < 0 || columns < 0 {
        return Err(format!("a matrix of {rows} rows and {columns} columns"));
    }
    // The rows that have a place, and the columns of each.
    let held = match is_lower {
        _ if columns == 0 => 0..0,
        true => offset.saturating_neg().clamp(0, rows)..rows,
        false => 0..columns.saturating_sub(offset).clamp(0, rows),
    };
    let within = |row: i64| match row.saturating_add(offset) {
        middle if is_lower => 0..middle.saturating_add(1).min(columns),
        middle => middle.max(0)..columns,
    };
    let mut count = 0i64;
    for columns in held.clone().map(within) {
        count = count.saturating_add(columns.end - columns.start);
        if count > MOST_NUMBERS {
            return Err(format!("more than {MOST_NUMBERS} places of {rows} rows"));
        }
    }
    let places = || held.clone().flat_map(|row| within(row).map(move |column| [row, column]));
    let of = |i: usize| places().map(move |place| place[i] as f64);
    Ok(of(0).chain(of(1)).collect())
}
