//! [`Compiled`]: the program of a rank for one signature.

use super::own;
use crate::compile::compile_quietly;
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::explain::Warning;
use crate::jit::not_used;
use crate::options::Options;
use crate::report::CompileReport;
use crate::trace::{Trace, Types};
use crate::train::recipe::{Recipe, Share};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use tracecast_ir::{DType, Graph, Role, Shape, TensorType};
use tracecast_runtime::{Collective, ExchangeTiming, Executable, Outputs, Store, Tensor};

/// The rows of a rank among those of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// How many it has; `None` if no input has rows.
    pub(super) own: Option<usize>,
    /// How many the ranks before it have together.
    pub(super) before: usize,
    /// How many all ranks have together.
    pub(super) all: usize,
    /// The inputs that have them.
    pub(super) divided: Vec<String>,
}

/// A number that stands for some bytes, the same in every process.
pub(super) fn fingerprint(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The inputs that a program in parallel is given besides those of the user.
const FIRST: &str = "ranks.first_row";
const WEIGHT: &str = "ranks.weight";

/// The program of a rank and the signature it holds for.
pub(super) struct Compiled {
    inputs: BTreeMap<String, TensorType>,
    state: Vec<(String, TensorType)>,
    starts: Vec<Entry>,
    /// The state that it writes from the rows of this rank.
    own: Vec<String>,
    /// How many rows all ranks have together, if the program depends on it.
    all: Option<usize>,
    /// How many micro-batches the rows are divided into.
    parts: usize,
    uneven: bool,
    weighed: bool,
    size: usize,
    executable: Executable,
    fingerprint: u64,
    report: CompileReport,
}

impl Compiled {
    pub(super) fn of(
        recipe: &Recipe,
        options: &Options,
        ranks: Arc<dyn Collective>,
        store: &Store,
        inputs: &[(&str, &Tensor)],
        rows: &Rows,
        uneven: bool,
    ) -> Result<Self> {
        let types = types(store, inputs)?;
        // Sums and counts are weighed by themselves.
        let weighed = uneven && !recipe.sums();
        let given_types = uneven.then(|| types.clone());
        let share = Share { ranks: Some(ranks.size()), weight: weighed.then_some(WEIGHT) };
        let whole = match rows.own {
            Some(own) if own != rows.all => drawn(recipe, options, &types, rows, &share)?,
            _ => Vec::new(),
        };
        let given = types.inputs.clone();
        let trace = Trace::new("train", options, types)?;
        let draws = !whole.is_empty();
        if draws {
            let part = rows.own.unwrap_or(1) / recipe.parts;
            let first = trace.input_of(FIRST, TensorType::scalar(DType::I64));
            trace.tracer().draw_parts(part, rows.all / recipe.parts, first, whole);
        }
        trace.run(|t| recipe.record_on(t, &share))?;
        let traced = trace.finish()?;
        if let Some(name) = given.keys().find(|name| !traced.asked.contains(*name))
            && options.is_strict()
        {
            return Err(not_used(name.clone(), &traced.asked));
        }
        let ports = traced.graph.ports();
        let state = ports.iter().filter(|port| port.role != Role::Input);
        let state = state.map(|port| (port.name.clone(), port.ty.clone())).collect();
        let asked = given.into_iter().filter(|(name, _)| traced.asked.contains(name)).collect();
        let own = match ranks.size() {
            1 => Vec::new(),
            _ => own::written_from_own(&traced.graph, |name| {
                [FIRST, WEIGHT].contains(&name) || rows.divided.iter().any(|own| own == name)
            }),
        };
        // What is compiled is the same for the same text, and so is the order of what ranks
        // exchange. Ranks with other rows compare what they would run with a row each.
        let compared = match given_types {
            Some(types) => of_a_row(recipe, options, &types, rows, &share)?.on_first_devices(),
            None => traced.graph.on_first_devices(),
        };
        let text = format!("{compared}\n{:?}\n{}", options.passes().precision, options.bucket());
        let (executable, mut report) = compile_quietly(traced.graph, options)?;
        // What is compiled may differ where rows do, but what ranks exchange may not.
        let exchanges: Vec<(&str, usize)> = executable.program().exchanges().collect();
        let fingerprint = fingerprint(format!("{text}\n{exchanges:?}").as_bytes()).max(1 << 16);
        report.warnings.splice(0..0, traced.warnings.into_iter().map(Warning::of_tracing));
        report.warnings.extend(own::warning(&own));
        report.log("train", |_| true);
        Ok(Compiled {
            inputs: asked,
            state,
            starts: traced.starts,
            own,
            all: draws.then_some(rows.all),
            parts: recipe.parts,
            uneven,
            weighed,
            size: ranks.size(),
            executable: executable.on_ranks(ranks, fingerprint)?,
            fingerprint,
            report,
        })
    }

    /// True if it serves these inputs and this store.
    pub(super) fn fits(&self, store: &Store, inputs: &[(&str, &Tensor)], rows: &Rows) -> bool {
        let ty_of = |name: &str| inputs.iter().find(|(n, _)| *n == name).map(|(_, x)| x.ty());
        self.inputs.iter().all(|(name, ty)| ty_of(name) == Some(ty))
            && self.all.is_none_or(|all| all == rows.all)
            && self.state.iter().all(|(name, ty)| match store.ty(name) {
                Some(known) => known == ty,
                None => self.starts.iter().any(|entry| entry.name == *name),
            })
    }

    /// Puts the entries that are not there into the store; returns their names.
    pub(super) fn put_missing(&self, store: &mut Store, seed: u64) -> Result<Vec<String>> {
        let missing: Vec<&Entry> =
            self.starts.iter().filter(|entry| !store.contains(&entry.name)).collect();
        let names: Vec<String> = missing.iter().map(|entry| entry.name.clone()).collect();
        if let Err(error) = missing.iter().try_for_each(|entry| entry.put(store, seed)) {
            for name in &names {
                let _ = store.remove(name);
            }
            return Err(error);
        }
        Ok(names)
    }

    /// Takes step number `step`.
    pub(super) fn run(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        rows: &Rows,
        step: u64,
    ) -> Result<Outputs> {
        let known = |(name, _): &&(&str, &Tensor)| self.inputs.contains_key(*name);
        let mut given: Vec<(&str, &Tensor)> = inputs.iter().filter(known).copied().collect();
        let first = Tensor::scalar((rows.before / self.parts) as i64);
        if self.all.is_some() {
            given.push((FIRST, &first));
        }
        let weight =
            rows.own.map_or(1.0, |own| own as f64 * self.size as f64 / rows.all.max(1) as f64);
        let weight = Tensor::scalar(weight as f32);
        if self.weighed {
            given.push((WEIGHT, &weight));
        }
        self.executable.at_step(step);
        self.executable.run(store, &given).map_err(|error| match error {
            Error::Rank { rank, step, bucket, message } if message.starts_with("runs another") => {
                let own = inputs.iter().map(|(name, x)| format!("`{name}` {}", x.ty()));
                let own = own.collect::<Vec<_>>().join(", ");
                let message = format!("{message}; this rank was given {own}. Batches that differ from rank to rank are asked for with `uneven`");
                Error::Rank { rank, step, bucket, message }
            }
            other => other,
        })
    }

    /// The names of its inputs.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &str> {
        self.inputs.keys().map(String::as_str)
    }

    /// The type of an input as ranks compare it: where batches may differ, without the number of
    /// rows.
    pub(super) fn shown(&self, tensor: &Tensor) -> String {
        match tensor.shape().split_first() {
            Some((_, rest)) if self.uneven => format!("rows of {} {rest:?}", tensor.ty().dtype),
            _ => tensor.ty().to_string(),
        }
    }

    /// True for state that the step writes from the rows of this rank, which other ranks do not
    /// have.
    pub(super) fn writes_from_own_rows(&self, name: &str) -> bool {
        self.own.iter().any(|own| own == name)
    }

    pub(super) fn state(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.state.iter().map(|(name, ty)| (name.as_str(), ty))
    }

    /// A number that stands for what all ranks run; where batches may differ, for what they would
    /// run with a row each.
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(super) fn report(&self) -> &CompileReport {
        &self.report
    }

    pub(super) fn exchanges(&self) -> Vec<ExchangeTiming> {
        self.executable.exchanges()
    }
}

fn types(store: &Store, inputs: &[(&str, &Tensor)]) -> Result<Types> {
    let mut types = Types::default();
    for (name, tensor) in inputs {
        if types.inputs.insert((*name).to_owned(), tensor.ty().clone()).is_some() {
            let (name, message) = ((*name).to_owned(), "is given twice".to_owned());
            return Err(Error::Input { name, message });
        }
    }
    let known = store.names().filter_map(|name| Some((name.to_owned(), store.ty(name)?.clone())));
    types.store = known.collect();
    Ok(types)
}

/// These types with another number of rows.
fn with_rows(types: &Types, divided: &[String], rows: usize) -> Types {
    let mut types = types.clone();
    for name in divided {
        if let Some(ty) = types.inputs.get_mut(name) {
            let sizes = ty.shape.iter().copied().skip(1);
            ty.shape = [rows.into()].into_iter().chain(sizes).collect();
        }
    }
    types
}

/// The step with a row in each of its parts.
fn of_a_row(
    recipe: &Recipe,
    options: &Options,
    types: &Types,
    rows: &Rows,
    share: &Share,
) -> Result<Graph> {
    let trace = Trace::new("train", options, with_rows(types, &rows.divided, recipe.parts))?;
    trace.run(|t| recipe.record_on(t, share))?;
    Ok(trace.finish()?.graph)
}

/// What the same step draws at random with all rows on one rank: shapes, in their order.
fn drawn(
    recipe: &Recipe,
    options: &Options,
    types: &Types,
    rows: &Rows,
    share: &Share,
) -> Result<Vec<Shape>> {
    let trace = Trace::new("train", options, with_rows(types, &rows.divided, rows.all))?;
    trace.tracer().note_draws();
    trace.run(|t| recipe.record_on(t, share))?;
    Ok(trace.tracer().noted_draws())
}
