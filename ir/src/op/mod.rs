//! [`OpDef`], the record of an op: one field per stage of the pipeline, in its order.
//!
//! What its rules see is in `context`; the [`ops!`](crate::ops!) macro that writes records in
//! `macros`.

pub mod args;
mod context;
mod elements;
mod exchange;
mod facts;
mod macros;
mod name;
mod rounding;

pub use context::{ExpandCx, GradCx, InferCx, Inferred, MapCx, Position};
pub use elements::{Elements, Map};
pub use exchange::{Across, Exchange};
pub use facts::{Compares, Drawn, Facts, Intrinsic, Magnitude, Signs, WithItself};
pub use name::OpName;
pub use rounding::{Rounding, Rounds};

use crate::kernel::attention::Pass;
use crate::kernel::{Combiner, Val};
use crate::policy::Policy;
use crate::{DType, Var};
use smallvec::SmallVec;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A rule: a plain function for the ops of the table, a closure for ops made at run time.
pub enum Func<F: ?Sized + 'static> {
    /// Lives as long as the program.
    Static(&'static F),
    /// Made at run time.
    Shared(Arc<F>),
}

impl<F: ?Sized> Deref for Func<F> {
    type Target = F;

    fn deref(&self) -> &F {
        match self {
            Func::Static(f) => f,
            Func::Shared(f) => f,
        }
    }
}

impl<F: ?Sized> Clone for Func<F> {
    fn clone(&self) -> Self {
        match self {
            Func::Static(f) => Func::Static(f),
            Func::Shared(f) => Func::Shared(f.clone()),
        }
    }
}

/// Which results come of which operands. See [`InferCx`].
pub type InferFn = dyn for<'a> Fn(&InferCx<'a>) -> Result<Inferred, String> + Send + Sync;
/// The gradients of the operands, from those of the results.
pub type GradFn = dyn for<'a, 't> Fn(&GradCx<'a, 't>) -> Grads<'t> + Send + Sync;
/// The results, recorded with other ops.
pub type ExpandFn = dyn for<'a, 't> Fn(&ExpandCx<'a, 't>) -> SmallVec<[Var<'t>; 1]> + Send + Sync;
/// One element of the result, from the elements of the operands at the same position.
pub type MapFn = dyn for<'a, 'b> Fn(&mut MapCx<'a>, &'b [Val]) -> Val + Send + Sync;
/// Gradients, one per flat operand; `None` is zero.
pub type Grads<'t> = SmallVec<[Option<Var<'t>>; 4]>;

/// How an op is called in Rust on its first operand.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// The first operand's name.
    pub receiver: &'static str,
    /// The method's name.
    pub name: &'static str,
    /// The names of what it takes.
    pub arguments: &'static [&'static str],
}

/// The record of an op.
pub struct OpDef {
    /// The public, ATen-style name, under which policies know it.
    pub name: OpName,
    /// The doc comment: what it computes, in the words of `docs/ops.md`.
    pub doc: &'static str,
    /// Operands and attributes.
    pub schema: Schema,
    /// How policies meet it.
    pub dispatch: Dispatch,
    /// Types of the results from types of the operands.
    pub infer: Func<InferFn>,
    /// What it is made of.
    pub body: Body,
    /// Where a low-precision run rounds, forward and backward.
    pub rounding: Rounding,
    /// What is true of it, for rewrites and their check.
    pub facts: Facts,
    /// Operands to test it with.
    pub domain: Domain,
}

impl OpDef {
    /// How the op becomes part of a kernel; `None` if it is made of other ops, or a pass removes
    /// it.
    pub fn lowering(&self) -> Option<&Lower> {
        match &self.body {
            Body::Source(kernel) | Body::Core { kernel, .. } => Some(kernel),
            Body::Composite { .. } | Body::Symbolic(_) => None,
        }
    }

    /// What records the ops that it can be made of, and in which precision these are computed;
    /// `None` if it can be made of none.
    pub fn parts(&self) -> Option<(&ExpandFn, Inside)> {
        match &self.body {
            Body::Composite { expand, inside, .. } => Some((&**expand, *inside)),
            Body::Core { kernel: Lower::Transposed(parts), .. } => Some((&**parts, Inside::Own)),
            Body::Source(_) | Body::Core { .. } | Body::Symbolic(_) => None,
        }
    }
}

impl fmt::Debug for OpDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpDef({})", self.name)
    }
}

/// An op: of the static tables, or made at run time. Compared by name.
#[derive(Clone)]
pub enum OpRef {
    /// An entry of a table.
    Static(&'static OpDef),
    /// Made at run time.
    Shared(Arc<OpDef>),
}

impl OpRef {
    /// The name.
    pub fn name(&self) -> OpName {
        self.def().name
    }

    /// The record.
    pub fn def(&self) -> &OpDef {
        match self {
            OpRef::Static(d) => d,
            OpRef::Shared(d) => d,
        }
    }
}

impl PartialEq for OpRef {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for OpRef {}

impl Hash for OpRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Debug for OpRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())
    }
}

impl From<&'static OpDef> for OpRef {
    fn from(def: &'static OpDef) -> Self {
        OpRef::Static(def)
    }
}

/// The operands and attributes an op takes, and the names of its results.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// In order.
    pub operands: &'static [Operand],
    /// In order of the method's arguments.
    pub attrs: &'static [AttrDef],
    /// At least one; the ops whose results depend on their operands' number name one.
    pub results: &'static [&'static str],
}

impl Schema {
    /// True if there is an argument `dtype`, which policies may set.
    pub fn takes_dtype(&self) -> bool {
        self.attrs.iter().any(|attr| attr.name == "dtype")
    }
}

/// An operand of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Its name in documentation and errors.
    pub name: &'static str,
    /// One, optional, or a list.
    pub kind: OperandKind,
}

/// How many values an operand takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// Exactly one.
    One,
    /// None or one.
    Optional,
    /// Any number.
    List,
}

/// An attribute of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrDef {
    /// Its name.
    pub name: &'static str,
    /// Its type, and whether it may be left out.
    pub kind: AttrKind,
}

/// The type of an attribute. The optional kinds may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrKind {
    /// `true` or `false`; false if left out.
    Bool,
    /// An integer.
    Int,
    /// An integer or nothing.
    OptInt,
    /// A number.
    Float,
    /// A number or nothing.
    OptFloat,
    /// A number that may depend on names, or nothing: the count that a mean divides by.
    OptNumber,
    /// A dtype.
    DType,
    /// A dtype or nothing.
    OptDType,
    /// Integers.
    Ints,
    /// An integer that may depend on names: where a slice begins.
    Size,
    /// Integers that may depend on names: the sizes of a shape.
    Sizes,
    /// Numbers, or nothing.
    OptFloats,
    /// A text, or nothing.
    OptStr,
    /// A fused kernel.
    Kernel,
}

/// As signatures name it: `int?` may be left out.
impl fmt::Display for AttrKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AttrKind::Bool => "bool",
            AttrKind::Int => "int",
            AttrKind::OptInt => "int?",
            AttrKind::Float => "float",
            AttrKind::OptFloat | AttrKind::OptNumber => "float?",
            AttrKind::DType => "dtype",
            AttrKind::OptDType => "dtype?",
            AttrKind::Ints => "ints",
            AttrKind::Size => "size",
            AttrKind::Sizes => "sizes",
            AttrKind::OptFloats => "floats?",
            AttrKind::OptStr => "text?",
            AttrKind::Kernel => "kernel",
        })
    }
}

/// How a policy meets an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// Looked up by name; with this overload name if a table distinguishes overloads.
    Listed {
        /// The overload, or `""`.
        overload: &'static str,
    },
    /// PyTorch expands it before autocast sees it: its parts are recorded in its place.
    Expands,
    /// As [`Dispatch::Listed`] where a policy speaks of it, else as [`Dispatch::Expands`]: an op
    /// that one device's table lists and another's does not.
    ListedOrExpands {
        /// The overload, or `""`.
        overload: &'static str,
    },
    /// Looked up by name; where no table and no rule names it, the op's own policy holds, on every
    /// device type. For ops from outside of the tables: they bring their policy with them.
    Declares(Policy),
    /// Ours alone: no table names it, and it never casts.
    Internal,
}

impl Dispatch {
    /// True if policies are asked about the op: it is not ours alone, and does more than stand for
    /// its parts.
    pub const fn is_seen(&self) -> bool {
        !matches!(self, Dispatch::Expands | Dispatch::Internal)
    }
}

/// What an op is made of.
pub enum Body {
    /// A value from outside or from attributes alone; no operands.
    Source(Lower),
    /// Computed by a kernel.
    Core {
        /// How gradients flow.
        grad: Grad,
        /// How one element is computed.
        kernel: Lower,
    },
    /// Made of other ops.
    Composite {
        /// Records them. With `inside: F32`, 16-bit operands arrive widened to f32 and results are
        /// rounded once to the types that `infer` gave.
        expand: Func<ExpandFn>,
        /// Whether 16-bit operands are widened.
        inside: Inside,
        /// The gradient of its own, or `None` to differentiate the expansion.
        grad: Option<Grad>,
    },
    /// Removed by the pass of that name.
    Symbolic(&'static str),
}

/// The precision inside a composite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// f32 for 16-bit operands, one rounding at each result.
    F32,
    /// The operands' own; each part rounds.
    Own,
}

/// How gradients flow.
pub enum Grad {
    /// They do not: the derivative is zero or undefined everywhere.
    Zero,
    /// By a rule, which may record core ops and composites.
    Rule(Func<GradFn>),
}

/// A gradient rule of the table.
pub const fn rule(f: &'static GradFn) -> Grad {
    Grad::Rule(Func::Static(f))
}

/// A core op of the table.
pub const fn core(grad: Grad, kernel: Lower) -> Body {
    Body::Core { grad, kernel }
}

/// A composite of the table that computes in f32 and rounds once.
pub const fn composite(grad: Option<Grad>, expand: &'static ExpandFn) -> Body {
    Body::Composite { expand: Func::Static(expand), inside: Inside::F32, grad }
}

/// A composite of the table whose parts round as they would alone.
pub const fn composite_own(grad: Option<Grad>, expand: &'static ExpandFn) -> Body {
    Body::Composite { expand: Func::Static(expand), inside: Inside::Own, grad }
}

/// An elementwise kernel of the table.
pub const fn map(f: &'static MapFn) -> Lower {
    Lower::Map(Map::new(Func::Static(f)))
}

/// As [`map`], for what is cheaper to compute again than to store.
pub const fn cheap(f: &'static MapFn) -> Lower {
    Lower::Map(Map::new(Func::Static(f)).cheap())
}

/// As [`cheap`], for an op that hands one element on of its operands `from` that one on, with a
/// sign changed at most. See [`Elements`].
pub const fn chosen(from: usize, f: &'static MapFn) -> Lower {
    Lower::Map(Map::new(Func::Static(f)).with_elements(Elements::Chosen { from }).cheap())
}

/// As [`cheap`], for the largest or the smallest element. See [`Elements`].
pub const fn extremum(f: &'static MapFn) -> Lower {
    Lower::Map(Map::new(Func::Static(f)).with_elements(Elements::Extreme).cheap())
}

/// How a core op becomes part of a kernel.
pub enum Lower {
    /// Elementwise: operands and result have one shape. Operand elements come in their scalar
    /// types, 16-bit floats widened; the result is rounded to the node's dtype afterwards.
    Map(Map),
    /// The same elements in another order: no arithmetic. Which view is told by the op's
    /// attributes.
    View(View),
    /// Reads `x` at `dim` where the index operand says.
    Gather,
    /// Operands one after another along `dim`.
    Cat,
    /// Surrounded by a value: attributes `low`, `high`, `value`.
    Pad,
    /// Through windows over the last axes, zeros outside: attributes `size`, `count`, `stride`,
    /// `dilation`, `low`.
    Windows,
    /// Along the last axis: attribute `kind` names the [`Reduction`](crate::kernel::Reduction).
    ReduceRow,
    /// Over the axes `dim`, the last axis not among them: attribute `kind` names a reduction that
    /// gives no position.
    ReduceColumn,
    /// Product over the last axis of the left and the second to last of the right operand.
    Contract,
    /// Combines sources with the elements of a base along `dim` where the index operand says.
    Scatter(Combiner),
    /// Puts its second operand into the first, along `dim` from `start` on.
    PutSlice,
    /// Takes the lines of its operands along `dim` as wholes.
    Lines(Along),
    /// Weighs values by how queries meet keys, or gives the gradients of that.
    Attention(Pass),
    /// The transpose of a convolution: attributes `groups`, `size`, `stride`, `low`. For a device
    /// without code for the form, the ops that give the same bits.
    Transposed(Func<ExpandFn>),
    /// A port.
    Port,
    /// Numbers that lie in memory before a program runs: attribute `data`. No op is lowered so by
    /// itself; a constant of many numbers is, see [`lowering`](crate::kernel::build::lowering).
    Data,
    /// A kernel already.
    Fused,
    /// Something that the ranks of a parallel run do together. Never a part of a kernel: its
    /// operand lies in memory, and so does its result.
    Exchange(Exchange),
}

/// What an op does along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Gives the result so far: attribute `kind` names a [`Scan`](crate::kernel::line::Scan), from
    /// the last position with `reverse`.
    Scan,
    /// Gives the results of a recurrence of two operands, from the last position with `reverse`.
    Recurrence,
    /// Gives the positions of the elements in order, the largest first with `descending`.
    Order,
}

/// Which view a view op is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The same value.
    Identity,
    /// The same value, which passes take for another one and no kernel computes with too early.
    Barrier,
    /// The same elements in row-major order under another shape.
    Reshape,
    /// Axes in the order `dims`.
    Permute,
    /// Axes of size 1 and new leading axes repeated to `shape`.
    Expand,
    /// Every `step`-th position of axis `dim` from `start` up to `end`.
    Slice,
}

/// Operands for the tests: lines such as `T[3, 5], T[5] > 0 {dim = 1}`, where `T` stands for each
/// dtype of the list in turn.
///
/// A range may follow a type: `> 0`, `!= 0`, `in LOW HIGH` (for integers HIGH excluded). A list
/// operand is in brackets, an absent optional is `none`.
#[derive(Clone, Copy, Debug)]
pub struct Domain {
    /// What `T` stands for.
    pub dtypes: &'static [DType],
    /// At least one per op that is not symbolic.
    pub samples: &'static [&'static str],
}

/// The computable floats.
pub const FLOATS: &[DType] = &DType::FLOATS;
/// Floats and integers.
pub const NUMBERS: &[DType] = &DType::NUMBERS;
/// Everything computable.
pub const ANY: &[DType] = &DType::COMPUTABLE;
