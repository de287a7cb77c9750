//! [`Operator`]: an overload as it is called, its arguments bound to the schema, and what it
//! records.

use crate::argument::Argument;
use crate::schema::Schema;
use crate::table::{Call, Draws, Overload, schemas};
use tracecast_ir::{Tracer, Var};

/// An overload of ATen: a functional one, or one that writes.
#[derive(Clone, Copy)]
pub struct Operator {
    overload: &'static Overload,
    schema: &'static Schema,
    writes: Writes,
}

/// What an operator writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    Nothing,
    /// Its first argument, with the functional result: `add_`.
    First,
    /// Arguments that the functional overload does not have: `add.out`.
    Out,
}

/// What a call recorded.
#[derive(Debug)]
pub struct Recorded<'t> {
    /// The results in order.
    pub results: Vec<Argument<Var<'t>>>,
    /// New values of arguments that the call writes to, by the argument's name.
    pub writes: Vec<(String, Var<'t>)>,
}

impl<'t> Recorded<'t> {
    /// The results that are tensors.
    pub fn tensors(&self) -> Vec<Var<'t>> {
        let tensor = |result: &Argument<Var<'t>>| match result {
            Argument::Tensor(x) => Some(*x),
            _ => None,
        };
        self.results.iter().filter_map(tensor).collect()
    }
}

/// The operator of that name, such as `add.Tensor`, `relu_.default` or `add.out`; `None` if it is
/// not in the table.
pub fn find(name: &str) -> Option<Operator> {
    let all = schemas();
    let plain = |name: &str| all.get(name);
    if let Some((overload, schema)) = plain(name) {
        let is_written = schema.parameters.first().is_some_and(|first| first.is_written);
        let writes = if is_written { Writes::First } else { Writes::Nothing };
        return Some(Operator { overload, schema, writes });
    }
    let (op, variant) = name.split_once('.')?;
    if let Some(base) = op.strip_suffix('_').filter(|base| !base.ends_with('_')) {
        let (overload, schema) = plain(&format!("{base}.{variant}"))?;
        return Some(Operator { overload, schema, writes: Writes::First });
    }
    let variant = match variant {
        "out" => None,
        other => Some(other.strip_suffix("_out")?),
    };
    let first = ["default", "Tensor", "self", "dim_IntList"];
    let names = variant.map_or(first.to_vec(), |variant| vec![variant]);
    let found = names.into_iter().find_map(|variant| plain(&format!("{op}.{variant}")));
    found.map(|(overload, schema)| Operator { overload, schema, writes: Writes::Out })
}

/// An argument of a call, and its name if it has one.
pub type Given<'n, T> = (Option<&'n str>, Argument<T>);

impl Operator {
    /// The functional signature.
    pub fn schema(&self) -> &'static Schema {
        self.schema
    }

    /// Whether it writes to its first argument.
    pub fn is_in_place(&self) -> bool {
        self.writes == Writes::First
    }

    /// The arguments in the order of the schema, with defaults, and behind them what is written to.
    ///
    /// # Errors
    /// If one is missing, or there is no such argument.
    pub fn bind<T: Clone>(&self, given: &[Given<'_, T>]) -> Result<Bound<T>, String> {
        let parameters = &self.schema.parameters;
        let mut bound: Vec<Option<Argument<T>>> = vec![None; parameters.len()];
        let mut out = Vec::new();
        for (at, (name, argument)) in given.iter().enumerate() {
            let found = match name {
                Some(name) => self.schema.position(name),
                None => Some(at).filter(|at| *at < parameters.len()),
            };
            match (found, self.writes, name) {
                (Some(at), ..) => bound[at] = Some(argument.clone()),
                (None, Writes::Out, Some(name)) => out.push(((*name).to_owned(), argument.clone())),
                _ => {
                    let shown = name.map_or_else(|| format!("argument {at}"), |n| format!("`{n}`"));
                    return Err(format!("has no {shown}"));
                }
            }
        }
        let complete = bound.into_iter().zip(parameters).map(|(given, parameter)| {
            let default = parameter.default.as_ref().map(Argument::plain);
            given.or(default).ok_or_else(|| format!("lacks `{}`", parameter.name))
        });
        Ok(Bound { arguments: complete.collect::<Result<_, String>>()?, out })
    }

    /// Records a call.
    ///
    /// # Errors
    /// An argument that is missing, of another kind than expected, or that nothing here stands for.
    /// What the tracer refuses is the tracer's error.
    pub fn record<'t>(
        &self,
        t: &'t Tracer,
        given: &[Given<'_, Var<'t>>],
        draws: &Draws<'_, 't>,
    ) -> Result<Recorded<'t>, String> {
        self.record_bound(t, &self.bind(given)?, draws)
    }

    /// Records a call whose arguments are bound.
    ///
    /// # Errors
    /// As [`record`](Operator::record).
    pub fn record_bound<'t>(
        &self,
        t: &'t Tracer,
        bound: &Bound<Var<'t>>,
        draws: &Draws<'_, 't>,
    ) -> Result<Recorded<'t>, String> {
        let call = Call::new(t, self.schema, &bound.arguments, draws);
        let mut results = (self.overload.record)(&call)?;
        let mut writes = call.writes()?;
        let target = match self.writes {
            Writes::Nothing => Vec::new(),
            Writes::First => {
                let first = self.schema.parameters[0].name.to_owned();
                vec![(first, &bound.arguments[0])]
            }
            Writes::Out => bound.out.iter().map(|(name, to)| (name.clone(), to)).collect(),
        };
        for ((name, to), result) in target.into_iter().zip(&mut results) {
            let (Argument::Tensor(to), Argument::Tensor(value)) = (to, &mut *result) else {
                return Err(format!("takes a tensor to write to as `{name}`"));
            };
            *value = fitted(*to, *value, self.writes)?;
            writes.push((name, *value));
        }
        Ok(Recorded { results, writes })
    }
}

/// What is written to a tensor: of its dtype, and of its shape.
fn fitted<'t>(to: Var<'t>, value: Var<'t>, writes: Writes) -> Result<Var<'t>, String> {
    if to.is_poison() || value.is_poison() {
        return Ok(value);
    }
    if writes == Writes::First && to.shape() != value.shape() {
        return Err(format!("writes {} to a tensor of type {}", value.ty(), to.ty()));
    }
    Ok(value.to(to.dtype()))
}

/// Arguments in the order of a schema.
#[derive(Clone, Debug)]
pub struct Bound<T> {
    /// One for each parameter.
    pub arguments: Vec<Argument<T>>,
    /// What an `out` overload writes to, by name.
    pub out: Vec<(String, Argument<T>)>,
}

impl<T> Bound<T> {
    /// The same with each tensor replaced.
    ///
    /// # Errors
    /// The first error of `tensor`.
    pub fn map<U, E>(&self, tensor: &mut impl FnMut(&T) -> Result<U, E>) -> Result<Bound<U>, E> {
        let arguments =
            self.arguments.iter().map(|one| one.map(tensor)).collect::<Result<_, E>>()?;
        let out = self.out.iter().map(|(name, one)| Ok((name.clone(), one.map(tensor)?)));
        let out = out.collect::<Result<_, E>>()?;
        Ok(Bound { arguments, out })
    }
}
