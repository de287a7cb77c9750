//! Rounds an f64 to the bits of any float of at most 16 bits.

use crate::dtype::{Float, Top};

/// The bits of the float nearest to a number.
pub(super) fn narrow_to(float: Float, x: f64) -> u16 {
    let bits = x.to_bits();
    let at_sign = float.exponent_bits + float.fraction_bits;
    let sign = ((bits >> 63) as u16) << at_sign;
    let nan = match float.top {
        Top::Infinite => sign | (end(float) as u16) | 1 << (float.fraction_bits - 1),
        Top::Finite => sign | (end(float) as u16 + 1),
        Top::FiniteUnsignedZero => 1 << at_sign,
    };
    let beyond = match float.top {
        Top::Infinite => sign | end(float) as u16,
        Top::Finite | Top::FiniteUnsignedZero => nan,
    };
    let unsigned = match float.top {
        Top::Infinite | Top::Finite => sign,
        Top::FiniteUnsignedZero => 0,
    };
    if x.is_nan() {
        return nan;
    }
    let biased = ((bits >> 52) & 0x7ff) as i32;
    let exponent = biased - 1023;
    if exponent > float.most_exponent() {
        return beyond;
    }
    // Below the normal numbers the step stays that of the smallest exponent; f64 subnormals are far
    // below half a step.
    let lost = 52 - float.fraction_bits as i32 + (float.least_exponent() - exponent).max(0);
    if lost > 54 || biased == 0 {
        return unsigned;
    }
    let significand = bits & ((1 << 52) - 1) | 1 << 52;
    let kept = significand >> lost;
    let rest = significand - (kept << lost);
    let half = 1u64 << (lost - 1);
    let rounded = kept + u64::from(rest > half || rest == half && kept & 1 == 1);
    // A normal number's leading bit adds one to its exponent field; a carry out of the fraction
    // does so too.
    let field = (exponent - float.least_exponent()).max(0) as u64;
    let magnitude = (field << float.fraction_bits) + rounded;
    match magnitude {
        0 => unsigned,
        _ if magnitude > float.largest_bits() => beyond,
        _ => sign | magnitude as u16,
    }
}

/// The largest bits that stand for a number or an infinity.
pub(super) fn end(float: Float) -> u64 {
    match float.top {
        Top::Infinite => float.largest_bits() + 1,
        Top::Finite | Top::FiniteUnsignedZero => float.largest_bits(),
    }
}
