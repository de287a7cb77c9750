//! The plans of a kernel as text, in the style of the text of kernels. Printed, never read;
//! `docs/codegen.md` explains it.
//!
//! ```text
//! plan @reduce_row rows {
//!   slot0 = in0, slot1 = out0
//!   threads share rows
//! }
//! function 0, 2 slots {
//!   …
//! }
//! ```
//!
//! `function` writes what is between the braces of a function; this module what a run does with the
//! functions.

mod function;

use super::columns::Column;
use super::contract::{self, FactorSource, Windows};
use super::max_abs::Largest;
use super::nest::{self, BoundNest, Split};
use super::numbers::Numbers;
use super::phases::VectorLoops;
use super::scatter::ScatterDispatch;
use super::split_row::{LEAST, SplitRow};
use super::{DRAFT, Dispatch, Draft, PIPELINE, Sink, dispatch, pipeline};
use crate::error::{Error, Result};
use function::PlanText;
use std::fmt::{self, Display, Formatter, Write};
use tracecast_ir::Values;
use tracecast_ir::kernel::{Contract, Form, Kernel, Nest, ROW_CHUNK, Segment};
use tracecast_ir::text::Name;

/// The names of the transformations of plans in order, behind that of the plans before the first.
pub(crate) fn stages() -> impl Iterator<Item = &'static str> {
    [DRAFT].into_iter().chain(PIPELINE.iter().map(|transformation| transformation.name))
}

/// The plans behind the transformation of that name.
///
/// # Errors
/// If the kernel asks for what no code exists for, or there is no such transformation.
pub(crate) fn until(kernel: &Kernel, name: &str) -> Result<String> {
    if !stages().any(|known| known == name) {
        let known = stages().collect::<Vec<_>>().join(", ");
        return Err(Error::NoTransformation { name: name.to_owned(), known });
    }
    let draft = pipeline(kernel, &kernel.hints(), Some(name))?;
    Ok(DraftText { draft: &draft, vectors: None }.to_string())
}

/// The finished plans, with the phases for such vector loops.
///
/// # Errors
/// If the kernel asks for what no code exists for.
pub(crate) fn finished(kernel: &Kernel, vectors: VectorLoops) -> Result<String> {
    let draft = pipeline(kernel, &kernel.hints(), None)?;
    Ok(DraftText { draft: &draft, vectors: Some(vectors) }.to_string())
}

/// The plans of a kernel: those of a draft, or, with vectors, the finished ones with their phases.
struct DraftText<'a> {
    /// The plans.
    draft: &'a Draft<'a>,
    /// The vector loops that the phases are for.
    vectors: Option<VectorLoops>,
}

impl Display for DraftText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let DraftText { draft, vectors } = *self;
        let kernel = draft.kernel;
        writeln!(f, "plan @{} {} {{", Name(&kernel.name), kernel.form_name())?;
        // How threads share the work depends on the numbers of a run: those that the kernel was
        // traced with.
        let values = kernel.hints();
        let run = vectors.and_then(|_| dispatch(draft).at(&Numbers::new(&values)).ok());
        match &kernel.form {
            Form::Nest(nest) => show_segments(f, kernel, nest)?,
            Form::Contract(contract) => show_contract(f, kernel, contract)?,
            Form::Scatter(scatter) => show_scatter(f, draft, scatter.base)?,
            Form::Lines(lines) => writeln!(f, "  {}", lines.work)?,
            Form::Attention(_) | Form::Transposed(_) => {}
        }
        match run {
            Some(Dispatch::Nest(run)) => show_shares(f, draft, &run)?,
            Some(Dispatch::Scatter(ScatterDispatch { positions_independent: true, .. })) => {
                f.write_str("  threads share positions\n")?;
            }
            Some(Dispatch::Scatter(_)) => f.write_str("  one thread adds\n")?,
            Some(Dispatch::Lines(_)) => {
                f.write_str("  threads share positions before the axis\n")?
            }
            Some(Dispatch::Attention(_)) => f.write_str("  threads share heads and queries\n")?,
            Some(Dispatch::Transposed(_)) => f.write_str("  threads share groups or planes\n")?,
            Some(Dispatch::Contract(_)) | None => {}
        }
        for answer in draft.facts.asked() {
            writeln!(f, "  asks {answer}")?;
        }
        show_columns(f, draft)?;
        show_largest(f, draft)?;
        if let Some(split) = &draft.split_row {
            show_split_row(f, draft, split)?;
        }
        f.write_str("}\n")?;
        for (number, plan) in draft.plans.iter().enumerate() {
            let slots = if plan.slots == 1 { "slot" } else { "slots" };
            writeln!(f, "function {number}, {} {slots} {{", plan.slots)?;
            PlanText { plan, vectors }.fmt(f)?;
            f.write_str("}\n")?;
        }
        Ok(())
    }
}

/// An operand of a kernel: its inputs are counted first, then its outputs.
fn operand(kernel: &Kernel, number: usize) -> String {
    match number.checked_sub(kernel.inputs.len()) {
        Some(output) => format!("out{output}"),
        None => format!("in{number}"),
    }
}

/// `slot0 = in0, slot1 = out0`, and the length of the row where segments differ in it.
fn show_segments(f: &mut Formatter<'_>, kernel: &Kernel, nest: &Nest) -> fmt::Result {
    for Segment { extents, inputs, outputs } in &nest.segments {
        f.write_str("  ")?;
        if nest.segments.len() > 1 {
            write!(f, "segment row r {}: ", extents.last().copied().unwrap_or_default())?;
        }
        let outputs = outputs.iter().map(|output| kernel.inputs.len() + output);
        show_slots(f, kernel, inputs.iter().copied().chain(outputs))?;
        f.write_char('\n')?;
    }
    Ok(())
}

fn show_slots(
    f: &mut Formatter<'_>,
    kernel: &Kernel,
    operands: impl Iterator<Item = usize>,
) -> fmt::Result {
    for (slot, number) in operands.enumerate() {
        let comma = if slot > 0 { ", " } else { "" };
        write!(f, "{comma}slot{slot} = {}", operand(kernel, number))?;
    }
    Ok(())
}

/// How the threads share a nest.
fn show_shares(f: &mut Formatter<'_>, draft: &Draft<'_>, run: &BoundNest) -> fmt::Result {
    f.write_str("  threads share ")?;
    match run.split {
        _ if run.split_row.is_some() => f.write_str("chunks of the row")?,
        Split::Positions => f.write_str("positions")?,
        Split::Rows(1) => f.write_str("rows")?,
        Split::Rows(unit) => write!(f, "rows, {unit} at a time")?,
    }
    if nest::call(draft) < i64::MAX {
        write!(f, ", calls of at most {} positions", nest::call(draft))?;
    }
    f.write_char('\n')
}

fn show_contract(f: &mut Formatter<'_>, kernel: &Kernel, contract: &Contract) -> fmt::Result {
    let Contract { batch, m, n, k, acc, .. } = contract;
    let operands = kernel.inputs.len() + kernel.outputs.len();
    f.write_str("  ")?;
    show_slots(f, kernel, 0..operands)?;
    f.write_str("\n  loop ")?;
    for (i, extent) in batch.iter().enumerate() {
        write!(f, "b{i} {extent}, ")?;
    }
    writeln!(f, "i {m}, j {n}, reduce p {k} in {}", acc.name())?;
    for (name, source) in ['a', 'b'].iter().zip(contract::factors(contract)) {
        match source {
            FactorSource::Plain { input, dtype, round, .. } => {
                write!(f, "  factor {name} = {dtype} in{input}")?;
                round.map_or(Ok(()), |to| write!(f, " rounded to {to}"))?;
            }
            FactorSource::Seen(Windows { input, dtype, round, bounds, .. }) => {
                let how = if bounds.is_empty() { "in runs of" } else { "through windows over" };
                write!(f, "  factor {name} = {dtype} {how} in{input}")?;
                round.map_or(Ok(()), |to| write!(f, " rounded to {to}"))?;
            }
            FactorSource::Computed { code, dtype, .. } => {
                write!(f, "  factor {name} = {dtype} slot{operands} of function {code}")?;
            }
        }
        f.write_char('\n')?;
    }
    writeln!(f, "  epilogue = function 0, sums in slot{operands}")?;
    let prefetched = contract::epilogue_operands(kernel, contract);
    if prefetched.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = prefetched.iter().map(|p| operand(kernel, p.slot)).collect();
    writeln!(f, "  prefetch {}", names.join(", "))
}

fn show_scatter(f: &mut Formatter<'_>, draft: &Draft<'_>, base: Option<usize>) -> fmt::Result {
    let kernel = draft.kernel;
    let operands = kernel.inputs.len() + kernel.outputs.len();
    f.write_str("  ")?;
    show_slots(f, kernel, 0..operands)?;
    let from = base.map_or("zeros".to_owned(), |input| operand(kernel, input));
    let rounds = draft.plans.len() > 2;
    let acc = if rounds { "an accumulator" } else { "out0" };
    writeln!(f, "\n  function 0 copies {from} to {acc}")?;
    writeln!(f, "  function 1 adds to {acc}, slot{operands}")?;
    if rounds { writeln!(f, "  function 2 rounds {acc} to out0") } else { Ok(()) }
}

/// `column 0 : f32[16, 1024] slot2, sum of 4096 rows into out1, …`
fn show_columns(f: &mut Formatter<'_>, draft: &Draft<'_>) -> fmt::Result {
    let first = draft.plans.first();
    let sinks = first.into_iter().flat_map(|plan| &plan.stages).flat_map(|s| &s.sinks);
    let slots = sinks.filter_map(|sink| match sink {
        Sink::Column { slot, .. } => Some(slot),
        _ => None,
    });
    for (i, (column, slot)) in draft.columns.iter().zip(slots).enumerate() {
        let Column { reduction, scalar, output, dtype, size, rows, outer: _, sum, finish } = column;
        write!(f, "  column {i} : {}[{}, {size}] slot{slot}", scalar.name(), column.chunks())?;
        write!(
            f,
            ", {} of {rows} rows into {dtype} {}",
            reduction.name(),
            operand(draft.kernel, *output)
        )?;
        let at = column.at(&Numbers::new(&Values::default()));
        if let Some(unit) = at.ok().map(|column| column.unit).filter(|unit| *unit > 0) {
            write!(f, ", unit {unit} rows")?;
        }
        if column.is_direct() {
            f.write_str(", in place")?;
        }
        sum.map_or(Ok(()), |code| write!(f, ", chunks added by function {code}"))?;
        finish.map_or(Ok(()), |code| write!(f, ", stored by function {code}"))?;
        f.write_char('\n')?;
    }
    Ok(())
}

/// `largest 0 : f32 g1 of every row, into slot3`
fn show_largest(f: &mut Formatter<'_>, draft: &Draft<'_>) -> fmt::Result {
    for (i, Largest { scalar, output }) in draft.largest.iter().enumerate() {
        let register = draft.registers + i;
        writeln!(
            f,
            "  largest {i} : {} g{register} of every row, into slot{output}",
            scalar.name()
        )?;
    }
    Ok(())
}

/// `row 20000 split : chunks by function 0, sum f32 slot2, end by function 1`
fn show_split_row(f: &mut Formatter<'_>, draft: &Draft<'_>, split: &SplitRow) -> fmt::Result {
    let SplitRow { row, chunk, finish, cost: _, reductions } = split;
    write!(f, "  row {row} in chunks of {ROW_CHUNK} by function {chunk}")?;
    let first = draft.plans[*chunk].slots - reductions.len();
    for (i, (reduction, scalar)) in reductions.iter().enumerate() {
        write!(f, ", {} of {} slot{}", reduction.name(), scalar.name(), first + i)?;
    }
    let long = if row.has_names() { format!(", if it has {LEAST} or more") } else { String::new() };
    writeln!(f, ", then function {finish}{long}")
}
