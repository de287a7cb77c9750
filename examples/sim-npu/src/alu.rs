//! Arithmetic of single words: what the lanes of the vector unit do.
//!
//! Each result is the one that the language defines, down to the bits; functions are those of its
//! library.

use crate::isa::{Combine, FloatOp, IntegerOp, TruthOp, Word};
use tracecast_runtime::ir::kernel::{Cmp, half, math};

/// The f32 in a word.
pub(crate) fn float(word: u64) -> f32 {
    f32::from_bits(word as u32)
}

/// The word of an f32.
pub(crate) fn of_float(x: f32) -> u64 {
    u64::from(x.to_bits())
}

/// Floats.
pub(crate) fn floats(op: FloatOp, [a, b, c]: [u64; 3]) -> u64 {
    let (x, y) = (float(a), float(b));
    of_float(match op {
        FloatOp::Add => x + y,
        FloatOp::Sub => x - y,
        FloatOp::Mul => x * y,
        FloatOp::MulAdd => math::fma(x, y, float(c)),
        FloatOp::Div => x / y,
        FloatOp::Max if x.is_nan() || y <= x => x,
        FloatOp::Min if x.is_nan() || x <= y => x,
        FloatOp::Max | FloatOp::Min => y,
        FloatOp::Neg => -x,
        FloatOp::Abs => x.abs(),
        FloatOp::Sqrt => x.sqrt(),
        FloatOp::Floor => x.floor(),
        FloatOp::Round => half::round_to_bf16(x),
        FloatOp::Call(function) => function.of_f32(x),
    })
}

/// Integers, of 32 bits or of 64.
pub(crate) fn integers(op: IntegerOp, word: Word, [a, b]: [u64; 2]) -> u64 {
    macro_rules! wrapping {
        ($ty:ident, $bits:ident) => {{
            let (x, y) = (a as $ty, b as $ty);
            let result = match op {
                IntegerOp::Add => x.wrapping_add(y),
                IntegerOp::Sub => x.wrapping_sub(y),
                IntegerOp::Mul => x.wrapping_mul(y),
                IntegerOp::Div | IntegerOp::Rem if y == 0 => 0,
                IntegerOp::Div => x.wrapping_div(y),
                IntegerOp::Rem => x.wrapping_rem(y),
                IntegerOp::Max => x.max(y),
                IntegerOp::Min => x.min(y),
                IntegerOp::Neg => x.wrapping_neg(),
                IntegerOp::Abs => x.wrapping_abs(),
                IntegerOp::And => x & y,
                IntegerOp::Or => x | y,
                IntegerOp::Not => !x,
            };
            u64::from(result as $bits)
        }};
    }
    if word == Word::I32 { wrapping!(i32, u32) } else { wrapping!(i64, u64) }
}

/// Logic.
pub(crate) fn truths(op: TruthOp, [a, b]: [u64; 2]) -> u64 {
    let (x, y) = (a != 0, b != 0);
    u64::from(match op {
        TruthOp::And => x && y,
        TruthOp::Or => x || y,
        TruthOp::Not => !x,
    })
}

/// Two words as one.
pub(crate) fn combine(with: Combine, a: u64, b: u64) -> u64 {
    match with {
        Combine::Float(op) => floats(op, [a, b, 0]),
        Combine::Integer(op, word) => integers(op, word, [a, b]),
        Combine::Truth(op) => truths(op, [a, b]),
    }
}

/// Whether two numbers compare so; NaN differs from everything.
pub(crate) fn compares(cmp: Cmp, word: Word, a: u64, b: u64) -> bool {
    fn holds<T: PartialOrd>(cmp: Cmp, a: T, b: T) -> bool {
        match cmp {
            Cmp::Eq => a == b,
            Cmp::Ne => a != b,
            Cmp::Lt => a < b,
            Cmp::Le => a <= b,
        }
    }
    match word {
        Word::F32 => holds(cmp, float(a), float(b)),
        Word::I32 => holds(cmp, a as i32, b as i32),
        Word::I64 | Word::Bool => holds(cmp, a as i64, b as i64),
    }
}

/// The same number in another word: floats become whole numbers towards zero, as far as these go,
/// integers the nearest float, and truth values whatever is not zero.
pub(crate) fn convert(word: u64, from: Word, into: Word) -> u64 {
    match (from, into) {
        _ if from == into => word,
        (Word::F32, Word::I32) => u64::from(float(word) as i32 as u32),
        (Word::F32, _) if into == Word::I64 => (float(word) as i64).cast_unsigned(),
        (Word::F32, _) => u64::from(float(word) != 0.0),
        _ => {
            let number = if from == Word::I32 { i64::from(word as i32) } else { word as i64 };
            match into {
                Word::F32 => of_float(number as f32),
                Word::I32 => u64::from(number as u32),
                Word::I64 => number.cast_unsigned(),
                Word::Bool => u64::from(number != 0),
            }
        }
    }
}
