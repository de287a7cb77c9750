//! [`OpDef`], the record of an op: one field per stage of the pipeline, in its order; and the [`ops!`](crate::ops!) macro that makes records.

use crate::graph::Groups;
use crate::kernel::{Body as Code, Check, Scalar, ScalarOp, Val};
use crate::{Attrs, DType, Shape, TensorType, Tracer, Var};
use smallvec::SmallVec;
use std::fmt;
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

/// The record of an op.
pub struct OpDef {
    /// The public, ATen-style name, under which policies know it.
    pub name: &'static str,
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
    pub rounding: &'static str,
    /// Operands to test it with.
    pub domain: Domain,
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
    pub fn name(&self) -> &'static str {
        self.def().name
    }

    /// The record.
    pub fn def(&self) -> &OpDef {
        match self {
            OpRef::Static(d) => d,
            OpRef::Shared(d) => d,
        }
    }

    /// True if this is that op of the table.
    pub fn is(&self, def: &OpDef) -> bool {
        self.name() == def.name
    }
}

impl PartialEq for OpRef {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for OpRef {}

impl fmt::Debug for OpRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
    /// A dtype.
    DType,
    /// A dtype or nothing.
    OptDType,
    /// Integers.
    Ints,
    /// Numbers, or nothing.
    OptFloats,
    /// A text, or nothing.
    OptStr,
    /// A fused kernel.
    Kernel,
}

/// How a policy meets an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// Looked up by name; with this overload name if a table distinguishes overloads.
    Listed {
        /// The overload, or `""`.
        overload: &'static str,
    },
    /// PyTorch expands it before autocast sees it: its parts are recorded in its place.
    Expands,
    /// As [`Dispatch::Listed`] where a policy casts something for it, else as [`Dispatch::Expands`]: an op that one device's table
    /// lists and another's does not.
    ListedOrExpands {
        /// The overload, or `""`.
        overload: &'static str,
    },
    /// Ours alone: no table names it, and it never casts.
    Internal,
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
        /// Records them. With `inside: F32`, 16-bit operands arrive widened to f32 and results are rounded once to the types
        /// that `infer` gave.
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
    Lower::Map(Func::Static(f))
}

/// How a core op becomes part of a kernel.
pub enum Lower {
    /// Elementwise: operands and result have one shape. Operand elements come in their scalar types, 16-bit floats widened; the
    /// result is rounded to the node's dtype afterwards.
    Map(Func<MapFn>),
    /// The same elements in another order: no arithmetic. Which view is told by the op's attributes.
    View(View),
    /// Reads `x` at `dim` where the index operand says.
    Gather,
    /// Operands one after another along `dim`.
    Cat,
    /// Surrounded by a value: attributes `low`, `high`, `value`.
    Pad,
    /// Along the last axis: attribute `kind` is `sum`, `max`, `min` or `argmax`.
    ReduceRow,
    /// Over the axes `dim`, the last axis not among them: attribute `kind` is `sum`, `max` or `min`.
    ReduceColumn,
    /// Product over the last axis of the left and the second to last of the right operand.
    Contract,
    /// Adds sources onto a base along `dim` where the index operand says.
    Scatter,
    /// A port.
    Port,
    /// A kernel already.
    Fused,
}

/// Which view a view op is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The same value.
    Identity,
    /// The same elements in row-major order under another shape.
    Reshape,
    /// Axes in the order `dims`.
    Permute,
    /// Axes of size 1 and new leading axes repeated to `shape`.
    Expand,
    /// Every `step`-th position of axis `dim` from `start` up to `end`.
    Slice,
}

/// Operands for the tests: lines such as `T[3, 5], T[5] > 0 {dim = 1}`, where `T` stands for each dtype of the list in turn.
///
/// A range may follow a type: `> 0`, `!= 0`, `in LOW HIGH` (for integers HIGH excluded). A list operand is in brackets, an absent
/// optional is `none`.
#[derive(Clone, Copy, Debug)]
pub struct Domain {
    /// What `T` stands for.
    pub dtypes: &'static [DType],
    /// At least one per op that is not symbolic.
    pub samples: &'static [&'static str],
}

/// The four floats.
pub const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64];
/// Floats and integers.
pub const NUMBERS: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64, DType::U8];
/// Everything computable.
pub const ANY: &[DType] = &DType::COMPUTABLE;

/// What a type rule sees.
pub struct InferCx<'a> {
    /// The flat operands' types.
    pub types: &'a [TensorType],
    /// Their split among the schema's operands.
    pub groups: &'a Groups,
    /// The attributes.
    pub attrs: &'a Attrs,
}

impl<'a> InferCx<'a> {
    /// The flat operands of schema operand `i`.
    pub fn list(&self, i: usize) -> &'a [TensorType] {
        let start: usize = self.groups[..i].iter().map(|&n| usize::from(n)).sum();
        &self.types[start..start + usize::from(self.groups[i])]
    }

    /// Schema operand `i`, if present.
    pub fn get(&self, i: usize) -> Option<&'a TensorType> {
        self.list(i).first()
    }

    /// Schema operand `i`, which is not optional.
    pub fn operand(&self, i: usize) -> &'a TensorType {
        &self.list(i)[0]
    }
}

/// What a type rule answers.
#[derive(Clone, Debug, Default)]
pub struct Inferred {
    /// The types of the results.
    pub results: SmallVec<[TensorType; 1]>,
    /// For each flat operand, the dtype it must be cast to first (promotion). Empty: none.
    pub casts: SmallVec<[Option<DType>; 4]>,
    /// For each flat operand, the shape it must be expanded to first. Empty: none.
    pub shapes: SmallVec<[Option<Shape>; 4]>,
}

impl Inferred {
    /// One result, operands as they are.
    pub fn one(ty: TensorType) -> Self {
        Inferred { results: SmallVec::from_elem(ty, 1), ..Inferred::default() }
    }

    /// Several results, operands as they are.
    pub fn many(types: impl IntoIterator<Item = TensorType>) -> Self {
        Inferred { results: types.into_iter().collect(), ..Inferred::default() }
    }

    /// True if operands can be taken as they are.
    pub fn is_explicit(&self) -> bool {
        self.casts.iter().all(Option::is_none) && self.shapes.iter().all(Option::is_none)
    }
}

/// What a gradient rule sees.
pub struct GradCx<'a, 't> {
    /// Records the rule's ops.
    pub tracer: &'t Tracer,
    /// The flat operands.
    pub args: &'a [Var<'t>],
    /// Their split among the schema's operands.
    pub groups: &'a Groups,
    /// The results.
    pub outs: &'a [Var<'t>],
    /// The gradients of the results; `None` is zero, and at least one is not.
    pub dys: &'a [Option<Var<'t>>],
    /// The attributes.
    pub attrs: &'a Attrs,
}

impl<'t> GradCx<'_, 't> {
    /// The gradient of the first result, zeros if none flows.
    pub fn dy(&self) -> Var<'t> {
        self.dys[0].unwrap_or_else(|| self.tracer.zeros_like(self.outs[0]))
    }

    /// The first result.
    pub fn out(&self) -> Var<'t> {
        self.outs[0]
    }

    /// Schema operand `i`, if present.
    pub fn get(&self, i: usize) -> Option<Var<'t>> {
        operand_at(self.args, self.groups, i)
    }
}

/// What an expansion sees.
pub struct ExpandCx<'a, 't> {
    /// Records the parts.
    pub tracer: &'t Tracer,
    /// The flat operands, widened to f32 if the composite computes inside f32.
    pub args: &'a [Var<'t>],
    /// Their split among the schema's operands.
    pub groups: &'a Groups,
    /// The attributes.
    pub attrs: &'a Attrs,
    /// The types the results will have.
    pub results: &'a [TensorType],
}

impl<'t> ExpandCx<'_, 't> {
    /// Schema operand `i`, if present.
    pub fn get(&self, i: usize) -> Option<Var<'t>> {
        operand_at(self.args, self.groups, i)
    }
}

fn operand_at<'t>(args: &[Var<'t>], groups: &Groups, i: usize) -> Option<Var<'t>> {
    let start: usize = groups[..i].iter().map(|&n| usize::from(n)).sum();
    (groups[i] > 0).then(|| args[start])
}

/// What an elementwise rule sees while its scalar code is put together.
pub struct MapCx<'a> {
    /// The code so far; append to it.
    pub body: &'a mut Code,
    /// The attributes.
    pub attrs: &'a Attrs,
    /// The type of the result.
    pub result: &'a TensorType,
    /// The dtypes of the operands.
    pub operands: &'a [DType],
    /// The op and source line for checks.
    pub origin: (&'static str, String),
    /// The checks of the kernel so far.
    pub checks: &'a mut Vec<Check>,
    /// For each axis of the result, the position as (offset, strides over the kernel's axes, run-time index if any).
    pub position: &'a [Position],
}

/// A position along one axis of a tensor, as a function of the kernel's loop positions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// Added to the sum.
    pub offset: i64,
    /// One per axis of the kernel.
    pub strides: SmallVec<[i64; 4]>,
    /// An i64 of the body to add.
    pub index: Option<Val>,
}

impl MapCx<'_> {
    /// The scalar type of the result.
    pub fn scalar(&self) -> Scalar {
        Scalar::of(self.result.dtype).expect("kernels are built for computable dtypes")
    }

    /// A number of the result's scalar type.
    pub fn constant(&mut self, v: f64) -> Val {
        let ty = self.scalar();
        self.body.constant(ty, v)
    }

    /// The position along an axis of the result, as i64.
    pub fn position(&mut self, axis: usize) -> Val {
        let p = self.position[axis].clone();
        self.position_value(&p)
    }

    fn position_value(&mut self, p: &Position) -> Val {
        let mut sum = p.index;
        for (axis, &stride) in p.strides.iter().enumerate().filter(|(_, s)| **s != 0) {
            let mut term = self.body.push(ScalarOp::Index(axis as u32), &[], Scalar::I64);
            if stride != 1 {
                let by = self.body.push(ScalarOp::Const(stride as u64), &[], Scalar::I64);
                term = self.body.binary(ScalarOp::Mul, term, by);
            }
            sum = Some(sum.map_or(term, |s| self.body.binary(ScalarOp::Add, s, term)));
        }
        match (sum, p.offset) {
            (Some(s), 0) => s,
            (sum, offset) => {
                let c = self.body.push(ScalarOp::Const(offset as u64), &[], Scalar::I64);
                sum.map_or(c, |s| self.body.binary(ScalarOp::Add, s, c))
            }
        }
    }

    /// The row-major number of the result's element, as i64.
    pub fn element(&mut self) -> Val {
        let strides = self.result.shape.strides();
        let mut total = Position { strides: SmallVec::new(), ..Position::default() };
        let mut dynamic: Option<Val> = None;
        for (p, &scale) in self.position.to_vec().iter().zip(strides.iter()) {
            let scale = scale as i64;
            total.offset += p.offset * scale;
            if total.strides.len() < p.strides.len() {
                total.strides.resize(p.strides.len(), 0);
            }
            for (t, s) in total.strides.iter_mut().zip(&p.strides) {
                *t += s * scale;
            }
            if let Some(index) = p.index {
                let by = self.body.push(ScalarOp::Const(scale as u64), &[], Scalar::I64);
                let term = self.body.binary(ScalarOp::Mul, index, by);
                dynamic = Some(dynamic.map_or(term, |d| self.body.binary(ScalarOp::Add, d, term)));
            }
        }
        total.index = dynamic;
        self.position_value(&total)
    }

    /// Raises a data error unless `condition` holds.
    pub fn check(&mut self, condition: Val, message: impl Into<String>) -> Val {
        let check = Check { message: message.into(), op: self.origin.0.to_owned(), source: self.origin.1.clone() };
        let number = self.checks.iter().position(|c| *c == check).unwrap_or_else(|| {
            self.checks.push(check);
            self.checks.len() - 1
        });
        self.body.push(ScalarOp::Check(number as u32), &[condition], Scalar::Bool)
    }
}

/// Defines ops: a `static` [`OpDef`] for each, the list `OPS`, and a trait with a method on [`Var`] for each.
///
/// The first operand is the method's receiver. `name: optional` and `name: list` mark the other kinds of operand; attributes
/// follow a semicolon with their [`AttrKind`]. The macro has no logic of its own.
///
/// ```
/// use tracecast_ir::op::{core, map, rule, Dispatch, Domain, FLOATS};
/// use tracecast_ir::ops::infer;
///
/// tracecast_ir::ops! { trait Mine;
///
/// /// Twice the operand.
/// TWICE = twice(x) -> (y) {
///     dispatch: Dispatch::Listed { overload: "" },
///     infer:    &infer::same,
///     body:     core(
///         rule(&|cx| [Some(cx.dy().twice())].into_iter().collect()),
///         map(&|cx, x| cx.body.binary(tracecast_ir::kernel::ScalarOp::Add, x[0], x[0])),
///     ),
///     rounding: "the result",
///     domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
/// }
/// }
/// assert_eq!(TWICE.name, "twice");
/// ```
#[macro_export]
macro_rules! ops {
    (trait $trait:ident; $(
        $(#[doc = $doc:literal])+
        $NAME:ident = $method:ident $(as $name:literal)? (
            $first:ident $(, $arg:ident $(: $kind:ident)?)* $(; $($attr:ident : $akind:ident),+)?
        ) -> ($($result:ident),+) {
            dispatch: $dispatch:expr,
            infer: $infer:expr,
            body: $body:expr,
            rounding: $rounding:expr,
            domain: $domain:expr $(,)?
        }
    )+) => {
        $(
            $(#[doc = $doc])+
            pub static $NAME: $crate::op::OpDef = $crate::op::OpDef {
                name: $crate::op_name!($method $($name)?),
                doc: concat!($($doc, "\n"),+),
                schema: $crate::op::Schema {
                    operands: &[
                        $crate::op::Operand { name: stringify!($first), kind: $crate::op::OperandKind::One },
                        $($crate::op::Operand { name: stringify!($arg), kind: $crate::operand_kind!($($kind)?) }),*
                    ],
                    attrs: &[$($($crate::op::AttrDef { name: stringify!($attr), kind: $crate::op::AttrKind::$akind }),+)?],
                    results: &[$(stringify!($result)),+],
                },
                dispatch: $dispatch,
                infer: $crate::op::Func::Static($infer),
                body: $body,
                rounding: $rounding,
                domain: $domain,
            };
        )+

        /// The ops of this family.
        pub static OPS: &[&$crate::op::OpDef] = &[$(&$NAME),+];

        /// The ops of this family as methods.
        pub trait $trait<'t>: Copy {
            /// Records an op with `self` as the first operand.
            #[track_caller]
            fn record(self, op: &'static $crate::op::OpDef, rest: $crate::Args<'t>, attrs: $crate::Attrs) -> $crate::Var<'t>;
            $(
                $(#[doc = $doc])+
                #[track_caller]
                fn $method(
                    self
                    $(, $arg: impl $crate::OperandOf<'t>)*
                    $($(, $attr: $crate::attr_type!($akind))+)?
                ) -> $crate::Var<'t> {
                    #[allow(unused_mut, reason = "ops without further operands or attributes")]
                    let mut rest = $crate::Args::new();
                    $(rest.push($arg);)*
                    #[allow(unused_mut, reason = "ops without further operands or attributes")]
                    let mut attrs = $crate::Attrs::new();
                    $($($crate::IntoAttr::put($attr, stringify!($attr), &mut attrs);)+)?
                    self.record(&$NAME, rest, attrs)
                }
            )+
        }

        impl<'t> $trait<'t> for $crate::Var<'t> {
            #[track_caller]
            fn record(self, op: &'static $crate::op::OpDef, rest: $crate::Args<'t>, attrs: $crate::Attrs) -> $crate::Var<'t> {
                self.tracer().apply(op, rest.after(self), attrs)[0]
            }
        }
    };
}

/// The name of an op: the text given, or that of its method. A part of [`ops!`].
#[doc(hidden)]
#[macro_export]
macro_rules! op_name {
    ($method:ident) => {
        stringify!($method)
    };
    ($method:ident $name:literal) => {
        $name
    };
}

/// The kind of an operand. A part of [`ops!`].
#[doc(hidden)]
#[macro_export]
macro_rules! operand_kind {
    () => {
        $crate::op::OperandKind::One
    };
    (optional) => {
        $crate::op::OperandKind::Optional
    };
    (list) => {
        $crate::op::OperandKind::List
    };
}

/// The Rust type of an attribute. A part of [`ops!`].
#[doc(hidden)]
#[macro_export]
macro_rules! attr_type {
    (Bool) => { bool };
    (Int) => { i64 };
    (OptInt) => { Option<i64> };
    (Float) => { f64 };
    (OptFloat) => { Option<f64> };
    (DType) => { $crate::DType };
    (OptDType) => { Option<$crate::DType> };
    (Ints) => { &[i64] };
    (OptFloats) => { Option<&[f64]> };
    (OptStr) => { Option<&str> };
}
