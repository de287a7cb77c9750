//! [`Draft`]: the plans of a kernel while the transformations of the pipeline change them.

use super::columns::Column;
use super::facts::Facts;
use super::max_abs::{self, Largest};
use super::split_row::{self, SplitRow};
use super::{Plan, Sink, canonical};
use tracecast_ir::kernel::Kernel;

/// A kernel whose plans are being transformed.
pub(crate) struct Draft<'k> {
    /// The kernel.
    pub(crate) kernel: &'k Kernel,
    /// What is known of its sizes.
    pub(crate) facts: Facts,
    /// The plans of its functions.
    pub(crate) plans: Vec<Plan>,
    /// How a run calls them.
    pub(crate) calls: Calls,
    /// What the first plan reduces down the columns.
    pub(crate) columns: Vec<Column>,
    /// The largest values that the first plan finds.
    pub(crate) largest: Vec<Largest>,
    /// The number of registers of the kernel; those beyond are of largest values.
    pub(crate) registers: usize,
    /// How the one long row is split, if it is.
    pub(crate) split_row: Option<SplitRow>,
}

/// How a run calls the functions of a kernel, which transformations rely on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    /// The row may be merged with other axes: nothing is reduced along it, and calls are not in the
    /// kernel's own rows.
    pub(crate) merge_row: bool,
    /// A row is the same in every call, which begins at a multiple of 16 positions and ends at one
    /// or with the row.
    pub(crate) by_sixteens: bool,
    /// Rows and positions are cut as the plans ask for.
    pub(crate) as_planned: bool,
}

impl<'k> Draft<'k> {
    /// Plans that reduce nothing down columns and find no largest values, as yet.
    pub(super) fn new(kernel: &'k Kernel, facts: Facts, plans: Vec<Plan>, calls: Calls) -> Self {
        let (columns, largest) = (Vec::new(), Vec::new());
        Draft { kernel, facts, plans, calls, columns, largest, registers: 0, split_row: None }
    }

    /// Of what is precompiled.
    pub(super) fn of_no_functions(kernel: &'k Kernel, facts: Facts) -> Self {
        let calls = Calls { merge_row: false, by_sixteens: false, as_planned: true };
        Draft::new(kernel, facts, Vec::new(), calls)
    }

    pub(super) fn each_plan(&mut self, change: fn(&mut Plan, &Facts)) {
        self.plans.iter_mut().for_each(|plan| change(plan, &self.facts));
    }

    /// True if all that happens at a position is one stage there. Registers beyond those of the
    /// kernel are of largest values, which every task has of its own; the stage that takes them
    /// comes last.
    pub(super) fn positions_independent(&self) -> bool {
        let stages = &self.plans[0].stages;
        let of_largest =
            |s: &Sink| matches!(s, Sink::Reduce { register, .. } if *register >= self.registers);
        let any = stages.iter().any(|s| s.sinks.iter().any(of_largest));
        let single = stages.len() == 1 + usize::from(any) && !stages[0].once;
        let reduces =
            |s: &Sink| matches!(s, Sink::Reduce { .. } | Sink::Keep { .. }) && !of_largest(s);
        single && !stages[0].sinks.iter().any(reduces)
    }

    /// See [`max_abs::append_so_far`].
    pub(super) fn append_largest(&mut self) {
        max_abs::append_so_far(&mut self.plans[0], &self.largest, self.registers);
    }

    /// See [`canonical::merge_axes`].
    pub(super) fn merge_axes(&mut self) {
        for plan in &mut self.plans {
            canonical::merge_axes(plan, self.calls.merge_row);
            if self.calls.by_sixteens {
                plan.aligned = self.facts.proves(plan.row().multiple_of(16));
            }
        }
    }

    /// See [`split_row::split`].
    pub(super) fn split_row(&mut self) {
        let fits = self.calls.as_planned && self.calls.by_sixteens && self.columns.is_empty();
        if fits && !self.positions_independent() {
            self.split_row = split_row::split(&mut self.plans, &self.facts);
        }
    }
}
