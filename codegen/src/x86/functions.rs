//! The scalar functions as instructions: their one definition, run on numbers that write down what is done to them.

use super::inst::{One, Op, Shift, Two, V, compare};
use crate::machine::Width;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::sync::LazyLock;
use tracecast_ir::kernel::math::{self, Lane};
use tracecast_ir::kernel::{Code, Definition, Function, PerFunction};

/// A function as instructions: operands below [`Sequence::STEPS`] are its argument, others earlier steps.
#[derive(Debug)]
pub(super) struct Sequence {
    /// What it does, in order.
    pub(super) steps: Vec<(Op, SmallVec<[V; 3]>)>,
    /// Its result.
    pub(super) result: V,
}

impl Sequence {
    /// The number of the first step.
    pub(super) const STEPS: V = 1;

    /// That of each function that has one.
    fn of_all(width: Width) -> Sequences {
        Function::ALL.map(|function| match function.code() {
            Code::StraightLine => Some(function.with(Record(width))),
            Code::Patched => None,
        })
    }
}

type Sequences = [Option<Sequence>; Function::ALL.len()];

/// The instructions of a function; `None` if it needs a routine for some numbers.
pub(super) fn sequence(function: Function, width: Width) -> Option<&'static Sequence> {
    static BITS_256: LazyLock<Sequences> = LazyLock::new(|| Sequence::of_all(Width::Bits256));
    static BITS_512: LazyLock<Sequences> = LazyLock::new(|| Sequence::of_all(Width::Bits512));
    let sequences: &'static Sequences = match width {
        Width::Bits256 => &BITS_256,
        Width::Bits512 => &BITS_512,
    };
    sequences[function as usize].as_ref()
}

/// Records the definition of a function, for vectors of that width.
struct Record(Width);

impl PerFunction for Record {
    type Output = Sequence;

    fn make<F: Definition>(self) -> Sequence {
        WIDTH.set(self.0);
        STEPS.with_borrow_mut(Vec::clear);
        let result = F::of_lanes(Note(0)).0;
        Sequence { steps: STEPS.with_borrow_mut(std::mem::take), result }
    }
}

thread_local! {
    static WIDTH: Cell<Width> = const { Cell::new(Width::Bits256) };
    static STEPS: RefCell<Vec<(Op, SmallVec<[V; 3]>)>> = const { RefCell::new(Vec::new()) };
}

/// Lanes that are only the number of the step that makes them.
#[derive(Clone, Copy)]
struct Note(V);

fn note(op: Op, args: &[Note]) -> Note {
    let args: SmallVec<[V; 3]> = args.iter().map(|a| a.0).collect();
    STEPS.with_borrow_mut(|steps| {
        let at = steps.iter().position(|s| s.0 == op && s.1 == args).unwrap_or_else(|| {
            steps.push((op, args));
            steps.len() - 1
        });
        Note(at as V + Sequence::STEPS)
    })
}

fn two(op: Two, a: Note, b: Note) -> Note {
    note(Op::Two(op), &[a, b])
}

impl Lane for Note {
    type Bits = Note;

    fn splat(v: f32) -> Self {
        note(Op::Splat(v.to_bits()), &[])
    }
    fn splat_bits(v: u32) -> Note {
        note(Op::Splat(v), &[])
    }
    fn add(self, o: Self) -> Self {
        two(Two::Add, self, o)
    }
    fn sub(self, o: Self) -> Self {
        two(Two::Sub, self, o)
    }
    fn mul(self, o: Self) -> Self {
        two(Two::Mul, self, o)
    }
    fn div(self, o: Self) -> Self {
        two(Two::Div, self, o)
    }
    fn fma(self, b: Self, c: Self) -> Self {
        note(Op::Fma, &[self, b, c])
    }
    fn sqrt(self) -> Self {
        note(Op::One(One::Sqrt), &[self])
    }
    fn max(self, o: Self) -> Self {
        two(Two::Max, self, o)
    }
    fn min(self, o: Self) -> Self {
        two(Two::Min, self, o)
    }
    fn lt(self, o: Self) -> Note {
        two(Two::Compare(compare::LESS), self, o)
    }
    fn eq(self, o: Self) -> Note {
        two(Two::Compare(compare::EQUAL), self, o)
    }
    fn select(mask: Note, a: Self, b: Self) -> Self {
        note(Op::Blend, &[b, a, mask])
    }
    fn bits(self) -> Note {
        self
    }
    fn from_bits(b: Note) -> Self {
        b
    }
    fn int_add(a: Note, b: Note) -> Note {
        two(Two::IntAdd, a, b)
    }
    fn int_sub(a: Note, b: Note) -> Note {
        two(Two::IntSub, a, b)
    }
    fn and(a: Note, b: Note) -> Note {
        two(Two::And, a, b)
    }
    fn or(a: Note, b: Note) -> Note {
        two(Two::Or, a, b)
    }
    fn xor(a: Note, b: Note) -> Note {
        two(Two::Xor, a, b)
    }
    fn shl<const N: i32>(a: Note) -> Note {
        note(Op::Shift(Shift::Left, N as u8), &[a])
    }
    fn sar<const N: i32>(a: Note) -> Note {
        note(Op::Shift(Shift::Signed, N as u8), &[a])
    }
    fn int_eq(a: Note, b: Note) -> Note {
        two(Two::IntEqual, a, b)
    }
    fn scale(self, n: Self, whole: Note) -> Self {
        match WIDTH.get() {
            Width::Bits256 => math::scale_in_steps(self, whole),
            Width::Bits512 => two(Two::Scale, self, n),
        }
    }
    /// Never reached: the functions that need it have no sequence.
    fn or_exact(self, good: Note, _: Self, _: fn(f32) -> f32) -> Self {
        note(Op::Blend, &[self, self, good])
    }
}
