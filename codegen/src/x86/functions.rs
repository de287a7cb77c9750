//! The scalar functions as instructions: their one definition, run on numbers that write down what is done to them.

use super::inst::{One, Op, Shift, Two, V, compare};
use crate::target::Width;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::sync::LazyLock;
use tracecast_ir::kernel::Function;
use tracecast_ir::kernel::math::{self, Lane};

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

    fn of(f: fn(Note) -> Note, width: Width) -> Sequence {
        WIDTH.set(width);
        STEPS.with_borrow_mut(Vec::clear);
        let result = f(Note(0)).0;
        Sequence { steps: STEPS.with_borrow_mut(std::mem::take), result }
    }
}

/// The instructions of a function; `None` for the two that need a routine for large numbers.
pub(super) fn sequence(function: Function, width: Width) -> Option<&'static Sequence> {
    fn all(width: Width) -> [Sequence; 4] {
        [math::exp, math::log, math::tanh, math::erf].map(|f| Sequence::of(f, width))
    }
    static SHORT: LazyLock<[Sequence; 4]> = LazyLock::new(|| all(Width::Bits256));
    static LONG: LazyLock<[Sequence; 4]> = LazyLock::new(|| all(Width::Bits512));
    let all: &'static [Sequence; 4] = match width {
        Width::Bits256 => &SHORT,
        Width::Bits512 => &LONG,
    };
    Some(match function {
        Function::Exp => &all[0],
        Function::Log => &all[1],
        Function::Tanh => &all[2],
        Function::Erf => &all[3],
        Function::Sin | Function::Cos => return None,
    })
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
