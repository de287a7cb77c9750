//! [`Facts`]: what is true of an op, for whoever rewrites programs or checks rewrites.
//!
//! A fact is an equation or a bound that holds for every value of every dtype the op takes, down to
//! the bit; only the payload of a NaN is nobody's. Rules and analyses read facts and never ask
//! which op they look at, so a new op that states a fact is rewritten at once, and one that states
//! none is left alone. `ir/tests/op_facts.rs` tries every fact of every op of the table in the
//! interpreter.
//!
//! In the equations `x` and `y` are operands, and `c` is the number that the attribute `scalar`
//! puts in the place of the second one. How gradients flow, where results round and which elements
//! are handed on are fields of their own ([`Body`](super::Body), [`Rounding`](super::Rounding),
//! [`Elements`](super::Elements)).

use super::{OpDef, OpRef};
use crate::{Attrs, Must, Shape, TensorType};

/// What is true of an op. Made of [`Facts::new`], which states nothing, one method for each fact.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub(super) swapped: Swapped,
    pub(super) opposite: Option<Opposite>,
    /// What the language knows of the op beyond equations.
    pub intrinsic: Option<Intrinsic>,
    /// A number may stand for the second operand: where all elements of `y` are `c`,
    /// `op(x, y) = op(x){c}`, if the op takes a `y` at all.
    pub takes_number: bool,
    /// `op(x, c) = x`. Of floats only for the number with that sign: `-0.0` is not `0.0`.
    pub neutral: Option<f64>,
    /// `op(x, c) = -x`. Of floats only for the number with that sign.
    pub negating: Option<f64>,
    /// `op(x, c) = c`, of integers and truth values. No op of floats has it: there are NaN.
    pub absorbing: Option<f64>,
    /// `op(op(x, c), c) = op(x, c)`. Of floats only for the number with that sign.
    pub settling: Option<f64>,
    /// `op(x, x)`.
    pub with_itself: Option<WithItself>,
    /// `op(op(x)) = x`.
    pub is_involution: bool,
    /// `op(x, -y) = other(x, y)`.
    pub subtracts: Option<&'static OpDef>,
    /// `op(-x, y) = op(x, -y) = -op(x, y)`.
    pub passes_signs: bool,
    /// `op(-x) = op(x)`, of integers and floats that have a sign.
    pub ignores_sign: bool,
    /// `op(x, c) = other(x, 1 / c)`, of floats, where `c` is a power of two and both it and its
    /// inverse are normal numbers.
    pub by_inverse: Option<&'static OpDef>,
    /// `op(x) = x` for every `x` that is not negative: neither below zero nor `-0.0`.
    pub keeps_nonnegative: bool,
    /// Which signs results of floats can have.
    pub signs: Signs,
    /// What is compared, of an op whose result says how its operands compare.
    pub compares: Option<Compares>,
    /// How large integral results are.
    pub magnitude: Option<Magnitude>,
    /// Each float operand is computed with, whatever the others hold: no rewrite makes the result
    /// independent of one. For ops that are made of others; a kernel's scalar code shows it.
    pub takes_all: bool,
    /// Data may be wrong for it, which is an error that no rewrite lets go of.
    pub raises: bool,
    /// What numbers are drawn at random with the operand `rng`, if that is not one for each element
    /// of the first operand.
    pub draws: Option<Drawn>,
}

/// The shape of numbers that are drawn for operands of these types, without those that are absent.
pub type Drawn = fn(&Must<'_>, &Attrs, &[TensorType]) -> Option<Shape>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Swapped {
    Unknown,
    Itself,
    Other(&'static OpDef),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Opposite {
    op: &'static OpDef,
    holds_with_nan: bool,
}

/// What an op gives of a value and the same value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WithItself {
    /// The value.
    Operand,
    /// This number, whatever the value.
    Number(f64),
    /// This number, of integers and truth values. Of floats it depends on the value.
    NumberExceptFloats(f64),
}

/// What can be said of the signs of an op's results where those are floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signs {
    /// Any.
    #[default]
    Any,
    /// No number is below zero or `-0.0`; a NaN may have a sign.
    NeverNegative,
    /// No result has its sign bit set, not even a NaN: ordering results as integers orders them as
    /// numbers.
    Cleared,
}

/// What a comparison asks of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compares {
    /// Whether they are equal or differ.
    Equality,
    /// Which of them is less.
    Order,
}

/// How large the results of an op are that are integral numbers where the operands are: at most
/// this, and integral.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Magnitude {
    /// The size of the first operand.
    Operand,
    /// The sum of the sizes of both operands. Floats of very different sizes lose the smaller one.
    Sum,
    /// The product of the sizes of both operands.
    Product,
}

/// Ops that the language itself knows: passes look for them, because no equation says what they are
/// for.
///
/// Several ops may be of one kind; what is said here is all that passes may assume of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Intrinsic {
    /// The operand's numbers in the dtype of the attribute `to`, which is the dtype of the result.
    Cast,
    /// The operand's numbers rounded to the dtype of the attribute `to`, in the dtype that they
    /// have.
    RoundTo,
    /// The number with the other sign.
    Negation,
    /// The other truth value.
    Not,
    /// Elements of the second operand where the first, of truth values, holds, and else of the
    /// third.
    Choice,
    /// Numbers that are written in the attributes: `value` everywhere, or `data` in row-major
    /// order.
    Constant,
    /// Each element's position along the axis of the attribute `dim`, in the dtype of the attribute
    /// `dtype`.
    Positions,
    /// The gradients of the first operand with respect to the others, for the pass that
    /// differentiates to record.
    Gradient,
    /// A value that training makes small: the first result.
    Loss,
    /// The sum of elements along axes.
    Total,
    /// The mean of elements along axes.
    Mean,
    /// A gradient, the first operand, divided by the loss scale: times its inverse, the second
    /// operand.
    Unscale,
    /// As [`Intrinsic::Unscale`], and a second result that says whether the gradient was finite
    /// everywhere.
    UnscaleCheck,
    /// The product within an [`Intrinsic::UnscaleCheck`]: computed and stored where the gradient is
    /// checked, and never again by kernels that read it.
    Unscaled,
    /// Whether a gradient has an element that is infinite or NaN.
    NonFinite,
    /// One over the loss scale.
    ScaleInverse,
    /// The next loss scale: the first result.
    ScaleUpdate,
    /// What random numbers are drawn for: the last operand is their state, the attribute `stream`
    /// tells which.
    Random,
}

impl Intrinsic {
    /// True if rewrites turn ops of this kind into others.
    const fn is_rewritten(self) -> bool {
        match self {
            Intrinsic::Cast
            | Intrinsic::RoundTo
            | Intrinsic::Negation
            | Intrinsic::Not
            | Intrinsic::Choice
            | Intrinsic::Constant
            | Intrinsic::Positions => true,
            Intrinsic::Gradient
            | Intrinsic::Loss
            | Intrinsic::Total
            | Intrinsic::Mean
            | Intrinsic::Unscale
            | Intrinsic::UnscaleCheck
            | Intrinsic::Unscaled
            | Intrinsic::NonFinite
            | Intrinsic::ScaleInverse
            | Intrinsic::ScaleUpdate
            | Intrinsic::Random => false,
        }
    }
}

impl Facts {
    /// Nothing is known: the op is left as it is.
    pub const fn new() -> Facts {
        Facts {
            swapped: Swapped::Unknown,
            opposite: None,
            intrinsic: None,
            takes_number: false,
            neutral: None,
            negating: None,
            absorbing: None,
            settling: None,
            with_itself: None,
            is_involution: false,
            subtracts: None,
            passes_signs: false,
            ignores_sign: false,
            by_inverse: None,
            keeps_nonnegative: false,
            signs: Signs::Any,
            compares: None,
            magnitude: None,
            takes_all: false,
            raises: false,
            draws: None,
        }
    }

    /// True if no equation is stated: a rewrite leaves the op as it is, unless all its operands are
    /// numbers known in advance, or it only moves elements.
    pub const fn is_opaque(&self) -> bool {
        let no_equation = matches!(self.swapped, Swapped::Unknown)
            && self.opposite.is_none()
            && self.with_itself.is_none()
            && self.subtracts.is_none()
            && self.by_inverse.is_none()
            && !self.is_involution
            && !self.passes_signs
            && !self.ignores_sign
            && !self.keeps_nonnegative;
        let no_number = !self.takes_number
            && self.neutral.is_none()
            && self.negating.is_none()
            && self.absorbing.is_none()
            && self.settling.is_none();
        let is_rewritten = match self.intrinsic {
            Some(intrinsic) => intrinsic.is_rewritten(),
            None => false,
        };
        no_equation && no_number && !is_rewritten
    }

    /// The language itself knows the op.
    pub const fn intrinsic(mut self, intrinsic: Intrinsic) -> Facts {
        self.intrinsic = Some(intrinsic);
        self
    }

    /// See [`Facts::raises`](#structfield.raises).
    pub const fn raises(mut self) -> Facts {
        self.raises = true;
        self
    }

    /// Numbers of this shape are drawn at random.
    pub const fn draws(mut self, shape: Drawn) -> Facts {
        self.draws = Some(shape);
        self
    }

    /// `op(x, y) = op(y, x)`.
    pub const fn commutes(mut self) -> Facts {
        self.swapped = Swapped::Itself;
        self
    }

    /// `op(x, y) = other(y, x)`. `other` may take a number alone for its second operand.
    pub const fn swapped(mut self, other: &'static OpDef) -> Facts {
        self.swapped = Swapped::Other(other);
        self
    }

    /// `not op(x, y) = other(x, y)`.
    pub const fn opposite(mut self, other: &'static OpDef) -> Facts {
        self.opposite = Some(Opposite { op: other, holds_with_nan: true });
        self
    }

    /// `not op(x, y) = other(x, y)`, unless `x` or `y` is NaN.
    pub const fn opposite_without_nan(mut self, other: &'static OpDef) -> Facts {
        self.opposite = Some(Opposite { op: other, holds_with_nan: false });
        self
    }

    /// See [`Facts::takes_number`](#structfield.takes_number).
    pub const fn takes_number(mut self) -> Facts {
        self.takes_number = true;
        self
    }

    /// `op(x, c) = x`.
    pub const fn neutral(mut self, c: f64) -> Facts {
        self.neutral = Some(c);
        self
    }

    /// `op(x, c) = -x`.
    pub const fn negating(mut self, c: f64) -> Facts {
        self.negating = Some(c);
        self
    }

    /// `op(x, c) = c`, unless `x` is a float.
    pub const fn absorbing(mut self, c: f64) -> Facts {
        self.absorbing = Some(c);
        self
    }

    /// `op(op(x, c), c) = op(x, c)`.
    pub const fn settling(mut self, c: f64) -> Facts {
        self.settling = Some(c);
        self
    }

    /// `op(x, x)` is known.
    pub const fn with_itself(mut self, gives: WithItself) -> Facts {
        self.with_itself = Some(gives);
        self
    }

    /// `op(op(x)) = x`.
    pub const fn involution(mut self) -> Facts {
        self.is_involution = true;
        self
    }

    /// `op(x, -y) = other(x, y)`.
    pub const fn subtracts(mut self, other: &'static OpDef) -> Facts {
        self.subtracts = Some(other);
        self
    }

    /// `op(-x, y) = op(x, -y) = -op(x, y)`.
    pub const fn passes_signs(mut self) -> Facts {
        self.passes_signs = true;
        self
    }

    /// `op(-x) = op(x)`.
    pub const fn ignores_sign(mut self) -> Facts {
        self.ignores_sign = true;
        self
    }

    /// `op(x, c) = other(x, 1 / c)` for powers of two.
    pub const fn by_inverse(mut self, other: &'static OpDef) -> Facts {
        self.by_inverse = Some(other);
        self
    }

    /// `op(x) = x` unless `x` is negative.
    pub const fn keeps_nonnegative(mut self) -> Facts {
        self.keeps_nonnegative = true;
        self
    }

    /// What signs results have.
    pub const fn signs(mut self, signs: Signs) -> Facts {
        self.signs = signs;
        self
    }

    /// The op compares its operands.
    pub const fn compares(mut self, compares: Compares) -> Facts {
        self.compares = Some(compares);
        self
    }

    /// How large integral results are.
    pub const fn magnitude(mut self, magnitude: Magnitude) -> Facts {
        self.magnitude = Some(magnitude);
        self
    }

    /// Every float operand is computed with.
    pub const fn takes_all(mut self) -> Facts {
        self.takes_all = true;
        self
    }
}

impl Default for Facts {
    fn default() -> Self {
        Facts::new()
    }
}

impl OpRef {
    /// What is true of the op.
    pub fn facts(&self) -> &Facts {
        &self.def().facts
    }

    /// What the language knows of the op, if it is one of those.
    pub fn intrinsic(&self) -> Option<Intrinsic> {
        self.def().facts.intrinsic
    }

    /// True if the op changes the precision of its operand's numbers and nothing else: a cast, or a
    /// rounding in place.
    pub fn is_cast(&self) -> bool {
        matches!(self.intrinsic(), Some(Intrinsic::Cast | Intrinsic::RoundTo))
    }

    /// True if the order of two operands changes nothing.
    pub fn commutes(&self) -> bool {
        matches!(self.def().facts.swapped, Swapped::Itself)
    }

    /// The op that gives the same with its two operands exchanged.
    pub fn swapped(&self) -> Option<OpRef> {
        match self.def().facts.swapped {
            Swapped::Unknown => None,
            Swapped::Itself => Some(self.clone()),
            Swapped::Other(op) => Some(op.into()),
        }
    }

    /// The op that gives the opposite truth value of the same operands, which may be NaN or,
    /// without `nan`, are not.
    pub fn opposite(&self, nan: bool) -> Option<OpRef> {
        let opposite = self.def().facts.opposite?;
        (opposite.holds_with_nan || !nan).then(|| opposite.op.into())
    }
}
