//! How closely results must agree.

use tracecast_ir::DType;
use tracecast_runtime::Tensor;

/// How closely the values of a case must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// By their bits.
    Exact,
    /// As functions do whose last digits differ: 2e-5 of the value, and 2e-6. In 16 bits one unit
    /// in the last place.
    Functions,
    /// As sums in another order do: the same, and besides that part of the largest result, because
    /// a sum may be small beside its terms.
    Sums,
}

/// What differs between two values, if anything does. Types must be the same.
pub(crate) fn differs(found: &Tensor, wanted: &Tensor, agreement: Agreement) -> Option<String> {
    if found.ty() != wanted.ty() {
        return Some(format!("expected a {}, found a {}", wanted.ty(), found.ty()));
    }
    if found.bytes() == wanted.bytes() {
        return None;
    }
    let (f, w) = (found.to_f64s(), wanted.to_f64s());
    let finite = w.iter().filter(|x| x.is_finite());
    let largest = finite.fold(1f64, |most, x| most.max(x.abs()));
    let dtype = wanted.dtype();
    let absolute = match (agreement, dtype) {
        (Agreement::Sums, DType::BF16) => 0.008 * largest,
        (Agreement::Sums, DType::F16) => 0.001 * largest,
        (Agreement::Sums, _) => 2e-6 * largest,
        _ => 2e-6,
    };
    let at = (0..w.len()).find(|i| !agrees(f[*i], w[*i], agreement, dtype, absolute))?;
    Some(format!("element {at} of {}: expected {}, found {}", w.len(), w[at], f[at]))
}

fn agrees(found: f64, wanted: f64, agreement: Agreement, dtype: DType, absolute: f64) -> bool {
    let is_exact = agreement == Agreement::Exact;
    if wanted.is_nan() || found.is_nan() {
        return wanted.is_nan() && found.is_nan();
    }
    if found == wanted {
        return !is_exact || found.is_sign_negative() == wanted.is_sign_negative();
    }
    let relative = match dtype {
        DType::BF16 => 0.016,
        DType::F16 => 0.002,
        _ => 2e-5,
    };
    let is_number = found.is_finite() && wanted.is_finite() && dtype.is_float();
    !is_exact && is_number && (found - wanted).abs() <= relative * wanted.abs() + absolute
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_is_by_bits_and_close_is_not_far() {
        use Agreement::{Exact, Functions, Sums};
        let of = |x: f32| Tensor::scalar(x);
        assert_eq!(differs(&of(f32::NAN), &of(f32::NAN), Exact), None);
        assert!(differs(&of(0.0), &of(-0.0), Exact).is_some());
        assert_eq!(differs(&of(1.000001), &of(1.0), Functions), None);
        assert!(differs(&of(1.000001), &of(1.0), Exact).is_some());
        assert!(differs(&of(1.001), &of(1.0), Sums).is_some());
        assert!(differs(&of(f32::INFINITY), &of(1.0), Sums).is_some());
        assert!(differs(&Tensor::scalar(1i32), &of(1.0), Sums).is_some());
        let pair = |x: f32| Tensor::from([x, 1e6]);
        assert_eq!(differs(&pair(1.0), &pair(0.0), Sums), None);
        assert!(differs(&pair(1.0), &pair(0.0), Functions).is_some());
    }
}
