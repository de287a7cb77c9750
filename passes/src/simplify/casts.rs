//! Casts of casts, and casts that cancel behind views and selections.
//!
//! * A cast to a value's own dtype is the value.
//! * A cast of a cast is one cast if the first one kept every value ([`DType::fits_in`]), see
//!   [`folds`].
//! * A rounding of what is rounded already, or was widened from something narrower, is the value; a
//!   cast of a value rounded to the same dtype needs no rounding before it.
//! * Views have no arithmetic, so a cast passes them; selections (`relu`, `neg`, `abs`, `maximum`,
//!   `minimum`, `where`) and movement (`cat`, `pad`, `gather`) give one of their operands, so where
//!   all of those were only widened, so was the result.
//!
//! A narrowing followed by a widening is a rounding and stays, as two casts: the narrow value
//! between them can be stored.

use super::constants::{converted, splat};
use super::recorder::{Draft, Recorder};
use tracecast_ir::op::{Intrinsic, Lower};
use tracecast_ir::ops::cast;
use tracecast_ir::{Attrs, DType, ValueId, Var};

/// Views that a cast looks behind, and ops that a narrowing may be followed through.
const REACH: usize = 16;

/// True if casting `from` to `by` and then to `to` gives the bits of casting `from` to `to`.
pub(crate) fn folds(from: DType, by: DType, to: DType) -> bool {
    // An i32 becomes a 16-bit float by way of f32, with two roundings; by way of f64 there is only
    // one.
    let rounds_once_more = from == DType::I32 && by == DType::F64 && to.is_low();
    // An integer becomes a narrower one by wrapping, a float by saturating.
    let saturates_instead = from == DType::I32 && by == DType::F64 && to == DType::U8;
    from.fits_in(by) && !rounds_once_more && !saturates_instead
}

/// Simplifies a cast to another dtype.
pub(super) fn cast<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let (x, to) = (d.x(), d.attrs.dtype("to")?);
    if x.dtype() == to {
        return Some(x);
    }
    // A rounding to 16 bits stays a cast, so that it can be told where it is.
    let converts = x.dtype() == DType::I64 && to != DType::Bool && !to.is_low();
    if let Some(iota) = r.made_as(x, Intrinsic::Positions).filter(|_| converts) {
        return Some(r.record(iota.op, iota.args, iota.attrs.with("dtype", to))[0]);
    }
    behind_views(r, x, to).or_else(|| {
        let rounds = to.is_float() && x.dtype().is_float() && !x.dtype().fits_in(to);
        (rounds && is_widened(r, x, to, &mut REACH.clone())).then(|| narrowed(r, x, to))
    })
}

/// The cast of a cast, perhaps with views between: one cast below the views.
fn behind_views<'t>(r: &mut Recorder<'_, 't>, x: Var<'t>, to: DType) -> Option<Var<'t>> {
    let mut views = Vec::new();
    let mut below = r.made(x)?;
    let mut below_id = x.id().node;
    while matches!(below.lowering(), Some(Lower::View(_))) && views.len() < REACH {
        below_id = below.x().id().node;
        let next = r.made(below.x())?;
        views.push(std::mem::replace(&mut below, next));
    }
    let (inner, by) = (below.args.vars.first().copied()?, below.attrs.dtype("to"));
    let is_rounded = match below.op.intrinsic()? {
        Intrinsic::Cast if folds(inner.dtype(), by?, to) => false,
        Intrinsic::RoundTo if by == Some(to) => true,
        _ => return None,
    };
    let attrs = Attrs::new().with("to", to);
    let mut y = if is_rounded {
        // One rounding takes the place of two.
        let tracer = r.tracer;
        let points = tracer.with_graph(|g| g.node(below_id).origin.points.clone());
        let y = tracer.standing_for(&points, || r.apply(&cast::CAST, &[inner], attrs));
        tracer.also_stands(y);
        y
    } else {
        r.apply(&cast::CAST, &[inner], attrs)
    };
    for view in views.iter().rev() {
        y = r.again(view, &[y]);
    }
    Some(y)
}

/// The operands whose elements an op hands on, if that is all it does, with a sign changed at most.
fn handed_on<'a, 't>(d: &'a Draft<'t>) -> Option<&'a [Var<'t>]> {
    let vars = &d.args.vars[..];
    match d.lowering()? {
        Lower::View(_) | Lower::Pad | Lower::Windows | Lower::Gather => Some(&vars[..1]),
        Lower::Cat => Some(vars),
        Lower::Map(map) => vars.get(map.handed_on_from()?..),
        _ => None,
    }
}

/// True if every element is one of the dtype `to` as well, seen from how the value was made.
fn is_widened<'t>(r: &Recorder<'_, 't>, x: Var<'t>, to: DType, fuel: &mut usize) -> bool {
    if *fuel == 0 {
        return false;
    }
    *fuel -= 1;
    if let Some(value) = splat(r.tracer, x) {
        return is_exact(value, x.dtype(), to);
    }
    let Some(d) = r.made(x) else { return false };
    if d.op.intrinsic() == Some(Intrinsic::Cast) {
        let from = d.x().dtype();
        return from.fits_in(x.dtype()) && from.fits_in(to);
    }
    let is_padded = matches!(d.lowering(), Some(Lower::Pad));
    if is_padded && !is_exact(d.attrs.float("value").unwrap_or(0.0), x.dtype(), to) {
        return false;
    }
    handed_on(&d).is_some_and(|vars| vars.iter().all(|v| is_widened(r, *v, to, fuel)))
}

/// True if the number, as `from` holds it, is one of `to` as well.
pub(crate) fn is_exact(value: f64, from: DType, to: DType) -> bool {
    let value = converted(value, DType::F64, from);
    let back = converted(converted(value, from, to), to, from);
    back.to_bits() == value.to_bits() || back.is_nan() && value.is_nan()
}

/// The value of [`is_widened`] in the other dtype.
fn narrowed<'t>(r: &mut Recorder<'_, 't>, x: Var<'t>, to: DType) -> Var<'t> {
    if let Some(value) = splat(r.tracer, x) {
        return r.full(x.ty().with_dtype(to), value);
    }
    let Some(d) = r.made(x).filter(|d| d.op.intrinsic() != Some(Intrinsic::Cast)) else {
        return r.apply(&cast::CAST, &[x], Attrs::new().with("to", to));
    };
    let data: Vec<ValueId> = handed_on(&d).unwrap_or(&[]).iter().map(|v| v.id()).collect();
    let narrow = |r: &mut Recorder<'_, 't>, v: Var<'t>| {
        if data.contains(&v.id()) { narrowed(r, v, to) } else { v }
    };
    let vars: Vec<Var<'t>> = d.args.vars.iter().map(|v| narrow(r, *v)).collect();
    r.again(&d, &vars)
}

/// Simplifies a rounding that keeps the dtype.
pub(super) fn round_to<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let (x, to) = (d.x(), d.attrs.dtype("to")?);
    if x.dtype() == to {
        return Some(x);
    }
    let mut below = r.made(x)?;
    for _ in 0..REACH {
        if !matches!(below.lowering(), Some(Lower::View(_))) {
            break;
        }
        below = r.made(below.x())?;
    }
    let is_rounded = match below.op.intrinsic() {
        Some(Intrinsic::Cast) => {
            below.x().dtype().fits_in(to) && below.x().dtype().fits_in(x.dtype())
        }
        Some(Intrinsic::RoundTo) => below.attrs.dtype("to")?.fits_in(to),
        _ => false,
    };
    (is_rounded || is_widened(r, x, to, &mut REACH.clone())).then_some(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracecast_ir::kernel::narrow;

    /// Every number of a 16-bit float.
    fn all(dtype: DType) -> impl Iterator<Item = f64> {
        (0..=u16::MAX).map(move |bits| f64::from(narrow::widen(dtype, bits)))
    }

    fn same(a: f64, b: f64) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    /// How many numbers of `from` come out differently by way of `by`.
    fn differ(numbers: impl Iterator<Item = f64>, from: DType, by: DType, to: DType) -> usize {
        let twice = |v: f64| converted(converted(v, from, by), by, to);
        numbers.filter(|v| !same(twice(*v), converted(*v, from, to))).count()
    }

    #[test]
    fn casts_of_every_16_bit_number_fold_as_told() {
        for from in [DType::F16, DType::BF16] {
            let pairs = DType::FLOATS.iter().flat_map(|by| DType::FLOATS.map(|to| (*by, to)));
            for (by, to) in pairs.filter(|(by, to)| *by != from && by != to) {
                let (found, told) = (differ(all(from), from, by, to), folds(from, by, to));
                // A coarse float may hide a rounding on the way that is not folded.
                let is_hidden = to.bytes() == 1 && found == 0;
                assert!(
                    (found == 0) == told || is_hidden,
                    "{from} by {by} to {to}: {found} numbers differ"
                );
            }
        }
        assert_eq!(differ(all(DType::BF16), DType::BF16, DType::F16, DType::BF16), 56_576);
        assert_eq!(differ(all(DType::F16), DType::F16, DType::BF16, DType::F16), 54_784);
    }

    #[test]
    fn casts_of_small_integers_fold_and_of_large_ones_do_not() {
        for by in DType::COMPUTABLE {
            for to in DType::COMPUTABLE {
                if folds(DType::U8, by, to) {
                    assert_eq!(
                        differ((0..256).map(f64::from), DType::U8, by, to),
                        0,
                        "by {by} to {to}"
                    );
                }
                let large = || {
                    (0..2000).map(|i| f64::from(i32::MAX - i * 65_521)).chain([
                        16_777_217.0,
                        65_793.0,
                        -33_685_505.0,
                    ])
                };
                if folds(DType::I32, by, to) {
                    assert_eq!(differ(large(), DType::I32, by, to), 0, "by {by} to {to}");
                }
            }
        }
        let beyond = [256.0, -1.0].into_iter();
        assert_eq!(differ(beyond, DType::I32, DType::F64, DType::U8), 2);
        assert!(!folds(DType::I32, DType::F64, DType::U8));
        // 2^24 + 2^16 + 1 is just above the middle of two bf16; the nearest f32 is the middle
        // itself.
        let above = [16_842_753.0].into_iter();
        assert_eq!(differ(above, DType::I32, DType::F64, DType::BF16), 1);
        assert!(
            !folds(DType::I32, DType::F64, DType::BF16)
                && folds(DType::I32, DType::F64, DType::F32)
        );
    }

    #[test]
    fn two_roundings_are_not_one() {
        // Just above the middle of two bf16 in f64, the middle itself in f32, which goes to the
        // even one below.
        let above = 1.003_906_25 + f64::EPSILON;
        assert_eq!(differ([above].into_iter(), DType::F64, DType::F32, DType::BF16), 1);
        assert!(
            !folds(DType::F64, DType::F32, DType::BF16)
                && !folds(DType::F32, DType::F16, DType::BF16)
        );
    }

    #[test]
    fn rounding_commutes_with_the_selections_that_place_moves_it_through() {
        let relu = |x: f64| if x.is_nan() || x > 0.0 { x } else { 0.0 };
        // Every upper half of an f32, with lower halves on both sides of each tie and on it.
        let lower = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff];
        for bits in (0..=u32::from(u16::MAX)).flat_map(|high| lower.map(|low| high << 16 | low)) {
            let x = f64::from(f32::from_bits(bits));
            for to in [DType::F16, DType::BF16] {
                let round = |v: f64| converted(v, DType::F32, to);
                assert!(same(round(-x), -round(x)), "neg of {x:e}");
                assert!(same(round(x.abs()), round(x).abs()), "abs of {x:e}");
                assert!(same(round(relu(x)), relu(round(x))), "relu of {x:e}");
                assert!(same(round(round(x)), round(x)), "twice {x:e}");
            }
        }
    }
}
