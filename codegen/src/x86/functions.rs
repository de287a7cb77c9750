//! The scalar functions as instructions: their one definition, run on lanes that record what is
//! done to them.

use super::inst::{Binary, Op, Shift, Unary, VReg, compare};
use crate::machine::Width;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use tracecast_ir::kernel::math::{self, Double, Lane};
use tracecast_ir::kernel::{Code, Definition, Function, PerFunction};

/// A function as instructions: operands below [`Sequence::STEPS`] are its argument, others earlier
/// steps.
#[derive(Debug)]
pub(super) struct Sequence {
    /// What it does, in order.
    pub(super) steps: Vec<(Op, SmallVec<[VReg; 3]>)>,
    /// Its result.
    pub(super) result: VReg,
}

impl Sequence {
    /// The number of the first step.
    pub(super) const STEPS: VReg = 1;
}

/// That of each function, recorded when somebody asks for it first.
type Sequences = [OnceLock<Sequence>; Function::ALL.len()];

/// The instructions of a function; `None` if it needs a routine for some numbers.
pub(super) fn sequence(function: Function, width: Width) -> Option<&'static Sequence> {
    static BITS_256: Sequences = [const { OnceLock::new() }; Function::ALL.len()];
    static BITS_512: Sequences = [const { OnceLock::new() }; Function::ALL.len()];
    let sequences: &'static Sequences = match width {
        Width::Bits256 => &BITS_256,
        Width::Bits512 => &BITS_512,
    };
    match function.code() {
        Code::StraightLine => {
            Some(sequences[function as usize].get_or_init(|| function.with(Record(width))))
        }
        Code::Patched => None,
    }
}

/// The instructions of a function on lanes of f64, which vectors of 512 bits have; `None` if it is
/// computed number by number, or needs a routine for some numbers.
pub(super) fn sequence_of_doubles(function: Function) -> Option<&'static Sequence> {
    static OF_DOUBLES: Sequences = [const { OnceLock::new() }; Function::ALL.len()];
    let record = || function.with(RecordDoubles);
    let has_sequence = function.has_doubles() && function.code() == Code::StraightLine;
    has_sequence.then(|| OF_DOUBLES[function as usize].get_or_init(record))
}

/// Records the definition of a function on lanes of f64.
struct RecordDoubles;

impl PerFunction for RecordDoubles {
    type Output = Sequence;

    fn make<F: Definition>(self) -> Sequence {
        STEPS.with_borrow_mut(Vec::clear);
        let result = F::of_doubles(Recorded(0)).map_or(0, |result| result.0);
        Sequence { steps: STEPS.with_borrow_mut(std::mem::take), result }
    }
}

/// Records the definition of a function, for vectors of that width.
struct Record(Width);

impl PerFunction for Record {
    type Output = Sequence;

    fn make<F: Definition>(self) -> Sequence {
        WIDTH.set(self.0);
        STEPS.with_borrow_mut(Vec::clear);
        let result = F::of_lanes(Recorded(0)).0;
        Sequence { steps: STEPS.with_borrow_mut(std::mem::take), result }
    }
}

thread_local! {
    static WIDTH: Cell<Width> = const { Cell::new(Width::Bits256) };
    static STEPS: RefCell<Vec<(Op, SmallVec<[VReg; 3]>)>> = const { RefCell::new(Vec::new()) };
}

/// A lane that is only the number of the step that makes it.
#[derive(Clone, Copy)]
struct Recorded(VReg);

fn record(op: Op, args: &[Recorded]) -> Recorded {
    let args: SmallVec<[VReg; 3]> = args.iter().map(|a| a.0).collect();
    STEPS.with_borrow_mut(|steps| {
        let at = steps.iter().position(|s| s.0 == op && s.1 == args).unwrap_or_else(|| {
            steps.push((op, args));
            steps.len() - 1
        });
        Recorded(at as VReg + Sequence::STEPS)
    })
}

fn binary(op: Binary, a: Recorded, b: Recorded) -> Recorded {
    record(Op::Binary(op), &[a, b])
}

impl Lane for Recorded {
    type Bits = Recorded;

    fn splat(v: f32) -> Self {
        record(Op::Splat(v.to_bits()), &[])
    }
    fn splat_bits(v: u32) -> Recorded {
        record(Op::Splat(v), &[])
    }
    fn add(self, o: Self) -> Self {
        binary(Binary::Add, self, o)
    }
    fn sub(self, o: Self) -> Self {
        binary(Binary::Sub, self, o)
    }
    fn mul(self, o: Self) -> Self {
        binary(Binary::Mul, self, o)
    }
    fn div(self, o: Self) -> Self {
        binary(Binary::Div, self, o)
    }
    fn fma(self, b: Self, c: Self) -> Self {
        record(Op::Fma, &[self, b, c])
    }
    fn sqrt(self) -> Self {
        record(Op::Unary(Unary::Sqrt), &[self])
    }
    fn max(self, o: Self) -> Self {
        binary(Binary::Max, self, o)
    }
    fn min(self, o: Self) -> Self {
        binary(Binary::Min, self, o)
    }
    fn lt(self, o: Self) -> Recorded {
        binary(Binary::Compare(compare::LESS), self, o)
    }
    fn eq(self, o: Self) -> Recorded {
        binary(Binary::Compare(compare::EQUAL), self, o)
    }
    fn select(mask: Recorded, a: Self, b: Self) -> Self {
        record(Op::Blend, &[b, a, mask])
    }
    fn bits(self) -> Recorded {
        self
    }
    fn from_bits(b: Recorded) -> Self {
        b
    }
    fn int_add(a: Recorded, b: Recorded) -> Recorded {
        binary(Binary::IntAdd, a, b)
    }
    fn int_sub(a: Recorded, b: Recorded) -> Recorded {
        binary(Binary::IntSub, a, b)
    }
    fn and(a: Recorded, b: Recorded) -> Recorded {
        binary(Binary::And, a, b)
    }
    fn or(a: Recorded, b: Recorded) -> Recorded {
        binary(Binary::Or, a, b)
    }
    fn xor(a: Recorded, b: Recorded) -> Recorded {
        binary(Binary::Xor, a, b)
    }
    fn shl<const N: i32>(a: Recorded) -> Recorded {
        record(Op::Shift(Shift::Left, N as u8), &[a])
    }
    fn sar<const N: i32>(a: Recorded) -> Recorded {
        record(Op::Shift(Shift::Signed, N as u8), &[a])
    }
    fn int_eq(a: Recorded, b: Recorded) -> Recorded {
        binary(Binary::IntEqual, a, b)
    }
    fn scale(self, n: Self, whole: Recorded) -> Self {
        match WIDTH.get() {
            Width::Bits256 => math::scale_in_steps(self, whole),
            Width::Bits512 => binary(Binary::Scale, self, n),
        }
    }
    fn parts(self) -> (Self, Self) {
        let part = |op| record(Op::Unary(op), &[self]);
        match WIDTH.get() {
            Width::Bits256 => math::parts_of_bits(self),
            Width::Bits512 => (part(Unary::Exponent), part(Unary::Fraction)),
        }
    }
    /// Not recorded: a function that needs it has no sequence.
    fn or_exact(self, good: Recorded, _: Self, _: fn(f32) -> f32) -> Self {
        record(Op::Blend, &[self, self, good])
    }
}

/// The sign of an f64.
const SIGN: u64 = 1 << 63;

impl Double for Recorded {
    type Mask = Recorded;

    fn splat(v: f64) -> Self {
        record(Op::Splat64(v.to_bits()), &[])
    }
    fn add(self, o: Self) -> Self {
        binary(Binary::Add, self, o)
    }
    fn sub(self, o: Self) -> Self {
        binary(Binary::Sub, self, o)
    }
    fn mul(self, o: Self) -> Self {
        binary(Binary::Mul, self, o)
    }
    fn div(self, o: Self) -> Self {
        binary(Binary::Div, self, o)
    }
    fn max(self, o: Self) -> Self {
        binary(Binary::Max, self, o)
    }
    fn min(self, o: Self) -> Self {
        binary(Binary::Min, self, o)
    }
    fn lt(self, o: Self) -> Recorded {
        binary(Binary::Compare(compare::LESS), self, o)
    }
    fn select(mask: Recorded, a: Self, b: Self) -> Self {
        record(Op::Blend, &[b, a, mask])
    }
    fn abs(self) -> Self {
        let rest = record(Op::Splat64(!SIGN), &[]);
        binary(Binary::And, self, rest)
    }
    fn with_sign(self, x: Self) -> Self {
        let sign = record(Op::Splat64(SIGN), &[]);
        binary(Binary::Or, self, binary(Binary::And, x, sign))
    }
    fn sqrt(self) -> Self {
        record(Op::Unary(Unary::Sqrt), &[self])
    }
    fn short(self) -> Self {
        let first = record(Op::Splat64(math::SHORT), &[]);
        binary(Binary::And, self, first)
    }
    fn scale(self, n: Self) -> Self {
        binary(Binary::Scale, self, n)
    }
    /// Not recorded: a function that needs it has no sequence.
    fn or_exact(self, good: Recorded, _: Self, _: fn(f64) -> f64) -> Self {
        record(Op::Blend, &[self, self, good])
    }
    fn parts(self) -> (Self, Self) {
        let part = |op| record(Op::Unary(op), &[self]);
        (part(Unary::Exponent), part(Unary::Fraction))
    }
}
