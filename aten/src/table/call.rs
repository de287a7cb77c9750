//! [`Call`]: what an entry of the table asks for its arguments, and where random numbers come from.

use crate::argument::{Argument, FromArgument, Operand};
use crate::schema::Schema;
use std::cell::{Cell, RefCell};
use tracecast_ir::{DType, Size, TensorType, Tracer, Var};

/// Where random numbers come from: a generator `i64[2]` and a stream of its own for each call.
pub struct Draws<'a, 't>(Option<&'a dyn Fn() -> (Var<'t>, i64)>);

impl<'a, 't> Draws<'a, 't> {
    /// None: what draws is refused.
    pub fn none() -> Self {
        Draws(None)
    }

    /// The generator and the stream that a function gives.
    pub fn from(next: &'a dyn Fn() -> (Var<'t>, i64)) -> Self {
        Draws(Some(next))
    }
}

/// A call that is being recorded.
pub(crate) struct Call<'a, 't> {
    /// Records it.
    pub(crate) tracer: &'t Tracer,
    schema: &'static Schema,
    arguments: &'a [Argument<Var<'t>>],
    /// The first argument that was not asked for.
    next: Cell<usize>,
    draws: &'a Draws<'a, 't>,
    writes: RefCell<Vec<(String, Var<'t>)>>,
}

impl<'a, 't> Call<'a, 't> {
    /// A call with these arguments, in the order of the schema.
    pub(crate) fn new(
        tracer: &'t Tracer,
        schema: &'static Schema,
        arguments: &'a [Argument<Var<'t>>],
        draws: &'a Draws<'a, 't>,
    ) -> Self {
        let (next, writes) = (Cell::new(0), RefCell::default());
        Call { tracer, schema, arguments, next, draws, writes }
    }

    /// What it writes, once it is recorded.
    pub(crate) fn writes(self) -> Result<Vec<(String, Var<'t>)>, String> {
        self.refuse_unread()?;
        Ok(self.writes.into_inner())
    }

    /// The next argument.
    pub(crate) fn get<A: FromArgument<'t>>(&self) -> Result<A, String> {
        let at = self.next.get();
        self.next.set(at + 1);
        let parameter = self.schema.parameters.get(at).ok_or("takes no such argument")?;
        A::read(&self.arguments[at], self.tracer).ok_or_else(|| {
            let found = self.arguments[at].describe(&|x| x.ty().to_string());
            format!("takes {} for `{}`, found {found}", A::EXPECTED, parameter.name)
        })
    }

    /// The generator and a stream.
    pub(crate) fn draw(&self) -> Result<(Var<'t>, i64), String> {
        let next = self.draws.0.ok_or("draws random numbers, and there is no generator")?;
        Ok(next())
    }

    /// A tensor of equal numbers.
    pub(crate) fn filled(&self, shape: &[Size], dtype: DType, value: f64) -> Var<'t> {
        let value = match Operand::Float(value).within(dtype) {
            Operand::Float(value) => value,
            _ => value,
        };
        let shape = shape.iter().copied().collect();
        self.tracer.full(TensorType { dtype, shape }, value)
    }

    /// Notes that the call gives a tensor among its arguments a new value.
    pub(crate) fn write(&self, parameter: &str, value: Var<'t>) {
        self.writes.borrow_mut().push((parameter.to_owned(), value));
    }

    /// Refuses values of arguments that nobody asked for, unless they are the defaults.
    fn refuse_unread(&self) -> Result<(), String> {
        for (parameter, given) in
            self.schema.parameters.iter().zip(self.arguments).skip(self.next.get())
        {
            let is_default =
                parameter.default.as_ref().is_some_and(|default| given.is_default(default));
            let says_nothing = matches!(given, Argument::None | Argument::Place);
            if !parameter.is_without_effect() && !says_nothing && !is_default {
                let found = given.describe(&|x: &Var<'_>| x.ty().to_string());
                return Err(format!(
                    "takes no other `{}` than its default, found {found}",
                    parameter.name
                ));
            }
        }
        Ok(())
    }
}
