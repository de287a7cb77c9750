//! The macro that writes op records.

/// Defines ops: a `static` [`OpDef`](crate::OpDef) for each, the list `OPS`, and a trait with a
/// method on [`Var`](crate::Var) for each.
///
/// The first operand is the method's receiver. `name: optional` and `name: list` mark the other
/// kinds of operand, and `name: optional | OptFloat` one in whose place a number may stand, the
/// attribute `scalar` of that kind; attributes follow a semicolon with their
/// [`AttrKind`](crate::op::AttrKind). Those in brackets are given as one argument, the
/// [`Dims`](crate::Dims) of a reduction. Without `dispatch` policies look the op up by its name;
/// without `facts` none are stated. The macro has no logic of its own.
///
/// ```
/// use tracecast_ir::op::{core, map, rule, Domain, FLOATS};
/// use tracecast_ir::ops::infer;
///
/// tracecast_ir::ops! { trait Mine;
///
/// /// Twice the operand.
/// TWICE = twice(x) -> (y) {
///     infer:    &infer::same,
///     body:     core(
///         rule(&|cx| [Some(cx.dy().twice())].into_iter().collect()),
///         map(&|cx, x| cx.body.binary(tracecast_ir::kernel::ScalarOp::Add, x[0], x[0])),
///     ),
///     rounding: tracecast_ir::op::Rounding::RESULT,
///     domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
/// }
/// }
/// assert_eq!(TWICE.name.to_string(), "twice");
/// ```
#[macro_export]
macro_rules! ops {
    (trait $trait:ident; $(
        $(#[doc = $doc:literal])+
        $NAME:ident = $method:ident $(as $name:literal)? (
            $first:ident $(, $arg:ident $(: $kind:ident $(| $number:ident)?)?)*
            $(; $([$dim:ident : $dkind:ident $(, $carried:ident : $ckind:ident)*] $(,)?)? $($attr:ident : $akind:ident),*)?
        ) -> ($($result:ident),+) {
            $(dispatch: $dispatch:expr,)?
            infer: $infer:expr,
            body: $body:expr,
            rounding: $rounding:expr,
            $(facts: $facts:expr,)?
            domain: $domain:expr $(,)?
        }
    )+) => {
        $(
            $(#[doc = $doc])+
            pub static $NAME: $crate::op::OpDef = $crate::op::OpDef {
                name: $crate::op::OpName::new($crate::op_name!($method $($name)?)),
                doc: concat!($($doc, "\n"),+),
                schema: $crate::op::Schema {
                    operands: &[
                        $crate::op::Operand { name: stringify!($first), kind: $crate::op::OperandKind::One },
                        $($crate::op::Operand { name: stringify!($arg), kind: $crate::operand_kind!($($kind)?) }),*
                    ],
                    attrs: &[
                        $($($($crate::op::AttrDef { name: "scalar", kind: $crate::op::AttrKind::$number },)?)?)*
                        $(
                            $(
                                $crate::op::AttrDef { name: stringify!($dim), kind: $crate::op::AttrKind::$dkind },
                                $($crate::op::AttrDef { name: stringify!($carried), kind: $crate::op::AttrKind::$ckind },)*
                            )?
                            $($crate::op::AttrDef { name: stringify!($attr), kind: $crate::op::AttrKind::$akind },)*
                        )?
                    ],
                    results: &[$(stringify!($result)),+],
                },
                dispatch: $crate::op_dispatch!($($dispatch)?),
                infer: $crate::op::Func::Static($infer),
                body: $body,
                rounding: $rounding,
                facts: $crate::op_facts!($($facts)?),
                domain: $domain,
            };
        )+

        /// The ops of this family.
        pub static OPS: &[&$crate::op::OpDef] = &[$(&$NAME),+];

        /// How each of them is called on its first operand, in the same order.
        pub static METHODS: &[$crate::op::Method] = &[$(
            $crate::op::Method {
                receiver: stringify!($first),
                name: stringify!($method),
                arguments: &[
                    $(stringify!($arg),)*
                    $($(stringify!($dim),)? $(stringify!($attr),)*)?
                ],
            }
        ),+];

        /// The ops of this family as methods.
        pub trait $trait<'t>: Copy {
            /// Records an op with `self` as the first operand.
            #[track_caller]
            fn record(self, op: &'static $crate::op::OpDef, rest: $crate::Args<'t>, attrs: $crate::Attrs) -> $crate::Var<'t>;
            $(
                $(#[doc = $doc])+
                #[allow(clippy::too_many_arguments, reason = "as many as the op has")]
                #[track_caller]
                fn $method(
                    self
                    $(, $arg: impl $crate::OperandOf<'t, $crate::operand_given!($($kind $($number)?)?)>)*
                    $($(, $dim: impl $crate::IntoDims)? $(, $attr: $crate::attr_type!($akind))*)?
                ) -> $crate::Var<'t> {
                    #[allow(unused_mut, reason = "ops without further operands or attributes")]
                    let mut rest = $crate::Args::new();
                    #[allow(unused_mut, reason = "ops without further operands or attributes")]
                    let mut attrs = $crate::Attrs::new();
                    $(rest.take($arg, &mut attrs);)*
                    $(
                        $($crate::Dims::put($dim.into(), stringify!($dim), $crate::op::AttrKind::$dkind, &mut attrs);)?
                        $($crate::IntoAttr::put($crate::attr_value!($akind $attr), stringify!($attr), &mut attrs);)*
                    )?
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

/// The dispatch given, or the lookup by name. A part of [`ops!`].
#[doc(hidden)]
#[macro_export]
macro_rules! op_dispatch {
    () => {
        $crate::op::Dispatch::Listed { overload: "" }
    };
    ($dispatch:expr) => {
        $dispatch
    };
}

/// The facts stated, or none. A part of [`ops!`].
#[doc(hidden)]
#[macro_export]
macro_rules! op_facts {
    () => {
        $crate::op::Facts::new()
    };
    ($facts:expr) => {
        $facts
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

/// What an operand can be given as. A part of [`ops!`].
#[doc(hidden)]
#[macro_export]
macro_rules! operand_given {
    () => {
        $crate::given::One
    };
    (optional) => {
        $crate::given::Optional
    };
    (list) => {
        $crate::given::List
    };
    (optional $number:ident) => {
        $crate::given::OrNumber
    };
}

/// An attribute as it is stored. A part of [`ops!`].
#[doc(hidden)]
#[macro_export]
macro_rules! attr_value {
    (Ints $value:ident) => {
        $value.as_ref()
    };
    (OptInt $value:ident) => {
        Into::<Option<i64>>::into($value)
    };
    (OptFloat $value:ident) => {
        Into::<Option<f64>>::into($value)
    };
    (OptNumber $value:ident) => {
        Into::<Option<f64>>::into($value)
    };
    (OptDType $value:ident) => {
        Into::<Option<$crate::DType>>::into($value)
    };
    ($kind:ident $value:ident) => {
        $value
    };
}

/// The Rust type of an attribute. A part of [`ops!`].
#[doc(hidden)]
#[macro_export]
macro_rules! attr_type {
    (Bool) => { bool };
    (Int) => { i64 };
    (OptInt) => { impl Into<Option<i64>> };
    (Float) => { f64 };
    (OptFloat) => { impl Into<Option<f64>> };
    (OptNumber) => { impl Into<Option<f64>> };
    (DType) => { $crate::DType };
    (OptDType) => { impl Into<Option<$crate::DType>> };
    (Ints) => { impl AsRef<[i64]> };
    (Size) => { impl $crate::IntoSize };
    (Sizes) => { impl $crate::IntoSizes };
    (OptFloats) => { Option<&[f64]> };
    (OptStr) => { Option<&str> };
}
