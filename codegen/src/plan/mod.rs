//! From kernels to [`Plan`]s: what the functions of a kernel are, as data. [`PIPELINE`] is the page
//! to read first.
//!
//! A plan is loops over rows and positions (`loops`), in a form fit for emission; `clif` and `x86`
//! read it. Nothing here knows of Cranelift, of addresses or of threads.
//!
//! `nest`, `contract` and `scatter` make a [`Draft`] of the forms of kernels, with what these share
//! in `from_kernel`; the transformations are in modules of their own. `phases` cuts the stages of a
//! finished plan into loops and calls.

mod affine;
pub(crate) mod argmax;
mod arithmetic;
pub(crate) mod attention;
pub(crate) mod canonical;
mod classes;
pub(crate) mod columns;
pub(crate) mod contract;
mod dispatch;
mod draft;
pub(crate) mod facts;
mod from_kernel;
pub(crate) mod lines;
mod loops;
pub(crate) mod max_abs;
pub(crate) mod nest;
pub(crate) mod numbers;
pub(crate) mod phases;
pub(crate) mod scatter;
mod short_rows;
pub(crate) mod split_row;
mod strided;
pub(crate) mod text;
pub(crate) mod transposed;
mod widen_once;
mod windows;

pub(crate) use affine::{Affine, Strides};
pub(crate) use arithmetic::Arithmetic;
pub(crate) use dispatch::{BoundDispatch, Dispatch, dispatch};
pub(crate) use draft::Draft;
pub(crate) use loops::{Neighbours, Place, Plan, Sink, Source, Stage, StridedRows};

use crate::error::{Error, Result};
use facts::Facts;
use numbers::SizeTable;
use tracecast_ir::Values;
use tracecast_ir::kernel::{Form, Kernel};

/// What happens to the plans of a kernel, in order. Every entry is on its own; what it relies on
/// stands above it.
pub(crate) const PIPELINE: [Transformation; 11] = [
    // Largest values of all rows join row by row; first, since it adds a stage that the others are
    // to see.
    Transformation { name: "max-abs", apply: |draft| draft.append_largest() },
    // Rows of a few positions become code of their own; while bodies still speak of axes, whose
    // positions are then numbers.
    Transformation { name: "short-rows", apply: short_rows::unroll },
    // Index arithmetic becomes numbers that loops count along, in 32 bits where they are small, so
    // that vectors can compare them.
    Transformation { name: "affine", apply: |draft| draft.each_plan(canonical::affine) },
    // Fewer and longer rows: what a row costs is paid less often, and a map over any number of axes
    // is one loop.
    Transformation { name: "merge-axes", apply: |draft| draft.merge_axes() },
    // The position of a largest value is found in two passes that vectors can do; after the axes,
    // since it counts along the row.
    Transformation { name: "argmax", apply: |draft| draft.each_plan(argmax::in_two_passes) },
    // 16-bit rows that several passes read are widened by the first; after the passes are known.
    Transformation { name: "widen-once", apply: |draft| draft.each_plan(widen_once::widen) },
    // Threads may share the rows where no accumulator of a column is shared; after the axes, whose
    // rows they count.
    Transformation {
        name: "column-units",
        apply: |draft| columns::set_outer(&draft.plans[0], &mut draft.columns),
    },
    // Operands that step through memory along the row are gathered in the scratch; after the
    // threads' shares, which bound a call.
    Transformation { name: "strided", apply: strided::gather },
    // One long row that is reduced becomes chunks for several threads and an end that combines
    // them; takes the finished row.
    Transformation { name: "split-row", apply: |draft| draft.split_row() },
    // Functions that add up the chunks of a column and write the output follow the main one; they
    // are canonical.
    Transformation {
        name: "column-steps",
        apply: |draft| columns::append_steps(&mut draft.columns, &mut draft.plans),
    },
    // What code has to know of a row whose length is a name is asked; last, of the finished plans.
    Transformation { name: "classes", apply: |draft| draft.each_plan(classes::ask) },
];

/// One change of a kernel's plans.
pub(crate) struct Transformation {
    /// What listings and tests call it.
    pub(crate) name: &'static str,
    apply: fn(&mut Draft<'_>),
}

/// A kernel, planned for a class of sizes.
pub(crate) struct Planned {
    /// The plans of its functions.
    pub(crate) plans: Vec<Plan>,
    /// What a run does with them.
    pub(crate) dispatch: Dispatch,
    /// What the functions read of the sizes of a binding.
    pub(crate) table: SizeTable,
    /// What has been asked.
    pub(crate) facts: Facts,
}

/// The plans of a kernel's functions, and what a run does with them, for the class of the sizes
/// that its names have with these values.
///
/// # Errors
/// If the kernel asks for what no code exists for, or names have no values.
pub(crate) fn plan(kernel: &Kernel, values: &Values) -> Result<Planned> {
    let draft = pipeline(kernel, values, None)?;
    let dispatch = dispatch(&draft);
    let Draft { plans, facts, .. } = draft;
    Ok(Planned { table: SizeTable::of(&plans), plans, dispatch, facts })
}

/// What listings and tests call the plans before the first transformation.
pub(crate) const DRAFT: &str = "draft";

/// The plans of a kernel after the transformations of [`PIPELINE`], or after none ([`DRAFT`]), or
/// after that of a name and all before it.
///
/// # Errors
/// If the kernel asks for what no code exists for, or names have no values.
pub(crate) fn pipeline<'k>(
    kernel: &'k Kernel,
    values: &Values,
    until: Option<&str>,
) -> Result<Draft<'k>> {
    let sizes = |why| Error::Sizes { kernel: kernel.name.clone(), why };
    let facts = Facts::of(kernel, values).map_err(sizes)?;
    let mut draft = match &kernel.form {
        Form::Nest(form) => nest::draft(kernel, form, facts)?,
        Form::Contract(form) => contract::draft(kernel, form, facts)?,
        Form::Scatter(form) => scatter::draft(kernel, form, facts)?,
        // No functions, which is nothing to transform.
        Form::Lines(_) | Form::Attention(_) | Form::Transposed(_) => {
            return Ok(Draft::of_no_functions(kernel, facts));
        }
    };
    let mut reached = DRAFT;
    for transformation in &PIPELINE {
        if until == Some(reached) {
            break;
        }
        (transformation.apply)(&mut draft);
        reached = transformation.name;
    }
    Ok(draft)
}
