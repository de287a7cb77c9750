//! Shared type rules.

use crate::op::{InferCx, Inferred};
use crate::{DType, Must, Number, Shape, Size, TensorType};
use smallvec::SmallVec;

/// The answer of a type rule.
pub type Answer = Result<Inferred, String>;

/// The type of the first operand in floating point: integers and truth values are computed in f32,
/// as PyTorch does.
pub fn float(cx: &InferCx<'_>) -> Answer {
    let x = cx.operand(0);
    if x.dtype.is_float() {
        return Ok(Inferred::one(x.clone()));
    }
    let mut casts = SmallVec::from_elem(None, cx.types.len());
    casts[0] = Some(DType::F32);
    Ok(Inferred { casts, ..Inferred::one(x.with_dtype(DType::F32)) })
}

/// The type of the first operand, which is floating point.
pub fn float_only(cx: &InferCx<'_>) -> Answer {
    need_float(cx.operand(0))?;
    Ok(Inferred::one(cx.operand(0).clone()))
}

/// The type of the first operand, whatever it is.
pub fn same(cx: &InferCx<'_>) -> Answer {
    Ok(Inferred::one(cx.operand(0).clone()))
}

/// The type of the first operand, which is a number.
pub fn number(cx: &InferCx<'_>) -> Answer {
    need_number(cx.operand(0))?;
    Ok(Inferred::one(cx.operand(0).clone()))
}

/// As [`arithmetic`], of integers.
pub fn integers(cx: &InferCx<'_>) -> Answer {
    let inferred = arithmetic(cx)?;
    let y = &inferred.results[0];
    if y.dtype.is_int() { Ok(inferred) } else { Err(format!("takes integers, found {y}")) }
}

/// Every flat operand promoted to one dtype and expanded to one shape; bool is refused.
pub fn arithmetic(cx: &InferCx<'_>) -> Answer {
    let all: SmallVec<[usize; 4]> = (0..cx.types.len()).collect();
    let inferred = elementwise(cx, &all)?;
    need_number(&inferred.results[0])?;
    Ok(inferred)
}

/// As [`arithmetic`]; truth values are fine.
pub fn promoted(cx: &InferCx<'_>) -> Answer {
    let all: SmallVec<[usize; 4]> = (0..cx.types.len()).collect();
    elementwise(cx, &all)
}

/// As [`promoted`], in floating point: integers and truth values are computed in f32.
pub fn float_arithmetic(cx: &InferCx<'_>) -> Answer {
    let mut inferred = promoted(cx)?;
    if !inferred.results[0].dtype.is_float() {
        inferred.results[0].dtype = DType::F32;
        inferred.casts = SmallVec::from_elem(Some(DType::F32), cx.types.len());
    }
    Ok(inferred)
}

/// As [`arithmetic`], with a truth value as the result; bool operands are fine.
pub fn comparison(cx: &InferCx<'_>) -> Answer {
    let all: SmallVec<[usize; 4]> = (0..cx.types.len()).collect();
    let mut inferred = elementwise(cx, &all)?;
    inferred.results[0].dtype = DType::Bool;
    Ok(inferred)
}

/// Operands of any dtype, taken as truth values: every number but 0 is true.
pub fn logical(cx: &InferCx<'_>) -> Answer {
    let none: [usize; 0] = [];
    let mut inferred = stretched_to(cx, DType::Bool, &none)?;
    let to = |t: &TensorType| (t.dtype != DType::Bool).then_some(DType::Bool);
    inferred.casts = cx.types.iter().map(to).collect();
    Ok(inferred)
}

/// A bool condition and two values of one promoted dtype.
pub fn choice(cx: &InferCx<'_>) -> Answer {
    if cx.operand(0).dtype != DType::Bool {
        return Err(format!("the condition is bool, found {}", cx.operand(0)));
    }
    elementwise(cx, &[1, 2])
}

/// Expands all operands to their common shape and promotes the `promoted` ones; the result has the
/// common shape and dtype.
///
/// Tensors without axes only vote on the dtype if no tensor with axes has as high a class, as in
/// PyTorch.
pub fn elementwise(cx: &InferCx<'_>, promoted: &[usize]) -> Answer {
    if let Some(ty) = alike(cx, promoted) {
        return Ok(Inferred::one(ty.clone()));
    }
    stretched(cx, promoted)
}

/// The type of operands that all have it, those besides the promoted ones with a dtype of their
/// own.
fn alike<'a>(cx: &InferCx<'a>, promoted: &[usize]) -> Option<&'a TensorType> {
    let first = &cx.types[*promoted.first()?];
    let same = cx.types.iter().all(|t| t.shape == first.shape)
        && promoted.iter().all(|&i| cx.types[i].dtype == first.dtype);
    same.then_some(first)
}

/// As [`elementwise`], and the answer speaks of each operand, also if there is nothing to do.
pub fn stretched(cx: &InferCx<'_>, promoted: &[usize]) -> Answer {
    let dtype = promote(promoted.iter().map(|&i| &cx.types[i]))?;
    stretched_to(cx, dtype, promoted)
}

/// All operands expanded to their common shape, and the `cast` ones in that dtype.
fn stretched_to(cx: &InferCx<'_>, dtype: DType, cast: &[usize]) -> Answer {
    let mut shape = Shape::scalar();
    for t in cx.types {
        shape = broadcast(cx.must, &shape, &t.shape)?;
    }
    let result = TensorType { dtype, shape };
    let casts = (0..cx.types.len())
        .map(|i| (cast.contains(&i) && cx.types[i].dtype != dtype).then_some(dtype))
        .collect();
    let shapes =
        cx.types.iter().map(|t| (t.shape != result.shape).then(|| result.shape.clone())).collect();
    Ok(Inferred { results: SmallVec::from_elem(result, 1), casts, shapes })
}

/// The dtype that a tensor has beside a number, as PyTorch promotes: a fractional number makes
/// integers f32, any other number makes truth values i64. What depends on names is whole, as sizes
/// are: [`need_held_for_all`] refuses quotients beside integers.
pub fn beside(dtype: DType, number: Number) -> DType {
    let is_fraction = |v: f64| v.fract() != 0.0 || !v.is_finite();
    match dtype {
        dtype if dtype.is_float() => dtype,
        _ if number.value().is_some_and(is_fraction) => DType::F32,
        DType::Bool => DType::I64,
        dtype => dtype,
    }
}

/// The dtype that PyTorch promotes these operands to.
pub fn promote<'a>(types: impl Iterator<Item = &'a TensorType> + Clone) -> Result<DType, String> {
    let join = |with_axes: bool| {
        types.clone().filter(|t| (t.shape.rank() > 0) == with_axes).map(|t| t.dtype).try_fold(
            None,
            |acc, d| match acc {
                None => Ok(Some(d)),
                Some(a) => DType::promote(a, d)
                    .map(Some)
                    .ok_or_else(|| format!("{a} and {d} have no common dtype")),
            },
        )
    };
    match (join(true)?, join(false)?) {
        (Some(a), Some(b)) if b.class() > a.class() => Ok(b),
        (Some(a), _) => Ok(a),
        (None, Some(b)) => Ok(b),
        (None, None) => Err("takes at least one operand".to_owned()),
    }
}

/// Fails unless the dtype is floating point.
pub fn need_float(t: &TensorType) -> Result<(), String> {
    if t.dtype.is_float() { Ok(()) } else { Err(format!("takes floating point, found {t}")) }
}

/// Fails unless the dtype is a number.
pub fn need_number(t: &TensorType) -> Result<(), String> {
    if t.dtype == DType::Bool { Err(format!("takes numbers, found {t}")) } else { Ok(()) }
}

/// Fails unless the dtype is i32 or i64.
pub fn need_index(t: &TensorType) -> Result<(), String> {
    if matches!(t.dtype, DType::I32 | DType::I64) {
        Ok(())
    } else {
        Err(format!("takes i32 or i64 indices, found {t}"))
    }
}

/// The size of an axis.
///
/// # Errors
/// If it is a name.
pub fn pinned(t: &TensorType, axis: usize) -> Result<i64, String> {
    let size = t.shape[axis].number();
    size.ok_or_else(|| format!("axis {axis} of {t} needs numbers there: pin the size"))
}

/// Fails unless a tensor of that dtype can hold a number that an attribute gives.
///
/// Floats hold every number, rounded. Integers hold the integers of their range; the largest of i64
/// is written as 2^63, the nearest number of 64 bits.
pub fn need_held(dtype: DType, name: &str, number: f64) -> Result<(), String> {
    let (least, most) = match dtype {
        DType::Bool => (0, 1),
        dtype if !dtype.is_int() => return Ok(()),
        DType::U8 => (0, i64::from(u8::MAX)),
        dtype => {
            let most = i64::MAX >> (64 - dtype.storage().bits);
            (-most - 1, most)
        }
    };
    if !(number >= least as f64 && number <= most as f64) {
        // Without all the digits of 1e300.
        let number = if number.abs() < 1e18 { number.to_string() } else { format!("{number:?}") };
        return Err(format!("{name} is {number}, out of range for {dtype}: {least} to {most}"));
    }
    if number.fract() != 0.0 {
        return Err(format!("{name} is {number}, which {dtype} does not hold: it holds integers"));
    }
    Ok(())
}

/// As [`need_held`]; of what depends on names, floats hold all, i64 and i32 sizes, and narrower
/// integers nothing.
pub fn need_held_for_all(dtype: DType, name: &str, number: Number) -> Result<(), String> {
    match (number.value(), number) {
        (Some(value), _) => need_held(dtype, name, value),
        (None, Number::Size(_)) if matches!(dtype, DType::I64 | DType::I32) => Ok(()),
        _ if dtype.is_float() => Ok(()),
        _ => Err(format!("{name} is {number}, which {dtype} does not hold for all sizes")),
    }
}

/// Fails if beside a tensor of that dtype all digits of an integer count, and the numbers of
/// programs, which are f64, do not hold them.
pub fn need_exact(dtype: DType, number: i64) -> Result<(), String> {
    // The largest of i64 is written as 2^63, and becomes itself again.
    if dtype.is_float() || (number as f64) as i64 == number {
        return Ok(());
    }
    Err(format!(
        "{number} has more digits than the numbers of a program, which are f64: give it as a tensor"
    ))
}

/// The shape that two stretch to.
///
/// # Errors
/// If two aligned sizes differ and neither is 1.
pub fn broadcast(must: &Must<'_>, a: &Shape, b: &Shape) -> Result<Shape, String> {
    a.broadcast_if(b, &|a, b| must.equal(a, b))
}

/// Fails if axes whose sizes are names may be empty, for expansions that take a largest element. Of
/// numbers they see it by themselves.
pub fn need_elements(must: &Must<'_>, t: &TensorType, axes: &[usize]) -> Result<(), String> {
    let may_be_empty = |&&axis: &&usize| {
        let size = t.shape.get(axis).copied().unwrap_or_default();
        size.has_names() && !must.hold(size.at_least(1))
    };
    match axes.iter().find(may_be_empty) {
        Some(axis) => Err(format!("{t} may be empty along axis {axis}")),
        None => Ok(()),
    }
}

/// The sizes in an attribute. That what names make of them is not negative is a guard in the trace
/// of user code; passes write sizes that are there already, and numbers are checked again when
/// names have some.
///
/// # Errors
/// If one of them is negative.
pub fn sizes(must: &Must<'_>, list: &[Size]) -> Result<Shape, String> {
    let is_there = |n: Size| n.is_out_of_range() || n.has_names() && !must.adds_guards();
    let wrong = list.iter().find(|&&n| !is_there(n) && !must.hold(n.at_least(0)));
    match wrong {
        Some(n) if n.has_names() => Err(format!("size {n} may be negative")),
        Some(n) => Err(format!("size {n} is negative")),
        None => Ok(Shape::new(list)),
    }
}
