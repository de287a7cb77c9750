//! [`Overload`]: an entry of the table, the macro that writes entries, and readers of arguments
//! that several families share.

use super::Call;
use crate::argument::Argument;
use tracecast_ir::Var;

/// What an entry records, or which argument it cannot have.
type Made<'t> = Result<Vec<Argument<Var<'t>>>, String>;

/// An entry of the table.
pub struct Overload {
    /// PyTorch's signature, which names the overload.
    pub schema: &'static str,
    pub(crate) record: for<'a, 't> fn(&Call<'a, 't>) -> Made<'t>,
}

/// Writes entries: a schema, the names and kinds of the arguments that are asked for, in order, and
/// what they are recorded as.
macro_rules! table {
    ($($schema:literal => $($call:ident)? ($($name:ident: $kind:ident),*) $body:expr;)*) => {
        pub(super) const TABLE: &[$crate::table::Overload] = &[$($crate::table::Overload {
            schema: $schema,
            record: |call| {
                $(let $call = call;)?
                $(let $name: $crate::table::kind!($kind) = call.get()?;)*
                Ok($crate::argument::Results::all($body))
            },
        }),*];
    };
}

/// The type of a kind of argument.
macro_rules! kind {
    (tensor) => { tracecast_ir::Var<'_> };
    (some_tensor) => { Option<tracecast_ir::Var<'_>> };
    (tensors) => { Vec<tracecast_ir::Var<'_>> };
    (some_tensors) => { Vec<Option<tracecast_ir::Var<'_>>> };
    (operand) => { $crate::argument::Operand<'_> };
    (int) => { i64 };
    (some_int) => { Option<i64> };
    (ints) => { Vec<i64> };
    (some_ints) => { Option<Vec<i64>> };
    (size) => { tracecast_ir::Size };
    (some_size) => { Option<tracecast_ir::Size> };
    (sizes) => { Vec<tracecast_ir::Size> };
    (float) => { f64 };
    (some_float) => { Option<f64> };
    (some_floats) => { Option<Vec<f64>> };
    (flag) => { bool };
    (flags) => { Vec<bool> };
    (some_flag) => { Option<bool> };
    (text) => { String };
    (some_text) => { Option<String> };
    (dtype) => { tracecast_ir::DType };
    (some_dtype) => { Option<tracecast_ir::DType> };
    (number) => { $crate::argument::Operand<'_> };
    (maybe_ints) => { Vec<Option<i64>> };
    (raw) => { $crate::argument::Argument<tracecast_ir::Var<'_>> };
    (any) => { $crate::argument::Any };
}

pub(crate) use {kind, table};

/// A number, unless it is what the op takes for one that is not given.
pub(super) fn unless(value: f64, default: f64) -> Option<f64> {
    (value != default).then_some(value)
}

/// The word that a number stands for.
pub(super) fn word(number: i64, words: &[&'static str]) -> Result<&'static str, String> {
    let found = usize::try_from(number).ok().and_then(|at| words.get(at));
    found.copied().ok_or_else(|| format!("takes one of {} numbers, found {number}", words.len()))
}

/// PyTorch's numbers for what becomes of the losses of single elements.
pub(super) fn reduction(over: i64) -> Result<&'static str, String> {
    word(over, &["none", "mean", "sum"])
}
