//! How an answer differs from PyTorch's.

use crate::cases::Case;
use crate::known::Part;
use std::fmt;
use tracecast_ir::DType;
use tracecast_ir::eval::Value;

/// What differs between two tensors of one type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Difference {
    pub(crate) what: What,
    /// Elements.
    of: usize,
    /// The first few: our number, PyTorch's.
    shown: Vec<(f64, f64)>,
    count: usize,
}

/// In what way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Beyond the tolerance, or NaN or infinite where the other is not.
    Numbers,
    /// Equal but for the sign of zero.
    SignsOfZero,
}

/// How many elements a difference shows.
const SHOWN: usize = 3;

/// What differs beyond the tolerance, and in the signs of zeros. `error` is how far PyTorch itself
/// may be from the exact answer.
///
/// # Errors
/// If the types differ.
pub(crate) fn differences(
    case: &Case,
    found: &Value,
    wanted: &Value,
    error: f64,
    part: Part,
) -> Result<Vec<Difference>, String> {
    if found.ty != wanted.ty {
        return Err(format!("{}, PyTorch {}", found.ty, wanted.ty));
    }
    // Under autocast sums in between are rounded to the low dtype.
    let default = case.autocast.unwrap_or(wanted.ty.dtype);
    let default = if wanted.ty.dtype.is_float() { default } else { wanted.ty.dtype };
    let (rtol, atol) = match case.autocast {
        Some(_) => tolerance(default),
        None => case.tolerance.unwrap_or(tolerance(default)),
    };
    let wider = if error > 0.5 { 1.0 + 2.0 * error } else { 1.0 };
    let is_close = |a: f64, b: f64| {
        let near = || b.is_finite() && (a - b).abs() <= wider * (atol + rtol * b.abs());
        a == b || a.is_nan() && b.is_nan() || near()
    };
    // An f64 does not hold every i64.
    let (a, b) = (found.to_f64s(), wanted.to_f64s());
    let exact = wanted.ty.dtype == DType::I64;
    let differs = |i: usize| exact && found.bytes[8 * i..][..8] != wanted.bytes[8 * i..][..8];
    // Elsewhere the sign of zero is that of a product which PyTorch happens to compute.
    let is_special = part == Part::Out && case.id.contains("/special/");
    let mut all = Vec::new();
    for what in [What::Numbers, What::SignsOfZero] {
        let is = |i: &usize| match what {
            What::Numbers => !is_close(a[*i], b[*i]) || differs(*i),
            What::SignsOfZero => {
                is_special
                    && a[*i] == 0.0
                    && b[*i] == 0.0
                    && a[*i].is_sign_negative() != b[*i].is_sign_negative()
            }
        };
        let at: Vec<usize> = (0..a.len()).filter(is).collect();
        if !at.is_empty() {
            let shown = at.iter().take(SHOWN).map(|i| (a[*i], b[*i])).collect();
            all.push(Difference { what, of: a.len(), shown, count: at.len() });
        }
    }
    Ok(all)
}

/// The defaults of `torch.testing.assert_close`.
fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F32 => (1.3e-6, 1e-5),
        DType::F64 => (1e-7, 1e-7),
        DType::F16 => (1e-3, 1e-5),
        DType::BF16 => (1.6e-2, 1e-5),
        _ => (0.0, 0.0),
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            What::Numbers => "numbers",
            What::SignsOfZero => "signs of zero",
        };
        write!(f, "{what} at {} of {}:", self.count, self.of)?;
        for (i, (found, wanted)) in self.shown.iter().enumerate() {
            write!(f, "{} {found:?} for {wanted:?}", if i == 0 { "" } else { "," })?;
        }
        if self.count > self.shown.len() { f.write_str(", …") } else { Ok(()) }
    }
}
