//! From kernels to [`Plan`]s: what the functions of a kernel are, as data. [`PIPELINE`] is the page to read first.
//!
//! A plan is loops over rows and positions, in a form fit for emission; `clif` and `x86` read it. Operands are *slots*, positions in the
//! table of addresses that the function is given. Nothing here knows of Cranelift, of addresses or of threads.
//!
//! `nest`, `contract` and `scatter` make plans of the forms of kernels, with what these share in `from_kernel`; the transformations are
//! in modules of their own. `phases` cuts the stages of a finished plan into loops and calls.

pub(crate) mod argmax;
pub(crate) mod canonical;
pub(crate) mod columns;
pub(crate) mod contract;
mod from_kernel;
pub(crate) mod max_abs;
pub(crate) mod nest;
pub(crate) mod phases;
pub(crate) mod scatter;
pub(crate) mod split_row;
mod strided;
pub(crate) mod text;
mod widen_once;

use crate::error::Result;
use columns::Column;
use contract::ContractDispatch;
use max_abs::Largest;
use nest::NestDispatch;
use scatter::ScatterDispatch;
use smallvec::{SmallVec, smallvec};
use split_row::SplitRow;
use tracecast_ir::DType;
use tracecast_ir::kernel::{
    self as ir, Body, Form, Kernel, LANES, Reduction, Scalar, ScalarOp, Val,
};

/// What happens to the plans of a kernel, in order. Every entry is on its own; what it relies on stands above it.
pub(crate) const PIPELINE: [Transformation; 9] = [
    // Largest values of all rows join row by row; first, since it adds a stage that the others are to see.
    Transformation { name: "max-abs", apply: max_abs::append_so_far },
    // Index arithmetic becomes numbers that loops count along, in 32 bits where they are small, so that vectors can compare them.
    Transformation {
        name: "affine",
        apply: |draft| draft.plans.iter_mut().for_each(canonical::affine),
    },
    // Fewer and longer rows: what a row costs is paid less often, and a map over any number of axes is one loop.
    Transformation { name: "merge-axes", apply: |draft| draft.merge_axes() },
    // The position of a largest value is found in two passes that vectors can do; after the axes, since it counts along the row.
    Transformation {
        name: "argmax",
        apply: |draft| draft.plans.iter_mut().for_each(argmax::in_two_passes),
    },
    // 16-bit rows that several passes read are widened by the first; after the passes are known.
    Transformation {
        name: "widen-once",
        apply: |draft| draft.plans.iter_mut().for_each(widen_once::widen),
    },
    // Threads may share the rows where no accumulator of a column is shared; after the axes, whose rows they count.
    Transformation {
        name: "column-units",
        apply: |draft| columns::set_units(&draft.plans[0], &mut draft.columns),
    },
    // Operands that step through memory along the row are gathered in the scratch; after the threads' shares, which bound a call.
    Transformation { name: "strided", apply: strided::gather },
    // One long row that is reduced becomes chunks for several threads and an end that combines them; takes the finished row.
    Transformation { name: "split-row", apply: split_row::split },
    // Functions that add up the chunks of a column and write the output follow the main one; last, since they are canonical.
    Transformation {
        name: "column-steps",
        apply: |draft| columns::append_steps(&mut draft.columns, &mut draft.plans),
    },
];

/// One change of a kernel's plans.
pub(crate) struct Transformation {
    /// What listings and tests call it.
    pub(crate) name: &'static str,
    apply: fn(&mut Draft<'_>),
}

/// The plans of a kernel's functions, and what a run does with them.
///
/// # Errors
/// If the kernel asks for what no code exists for.
pub(crate) fn plan(kernel: &Kernel) -> Result<(Vec<Plan>, Dispatch)> {
    let draft = pipeline(kernel, None)?;
    Ok(match &kernel.form {
        Form::Nest(form) => {
            let (plans, dispatch) = nest::dispatch(draft, form);
            (plans, Dispatch::Nest(dispatch))
        }
        Form::Contract(form) => {
            let (plans, dispatch) = contract::dispatch(draft, form);
            (plans, Dispatch::Contract(dispatch))
        }
        Form::Scatter(form) => {
            let (plans, dispatch) = scatter::dispatch(draft, form);
            (plans, Dispatch::Scatter(dispatch))
        }
    })
}

/// What listings and tests call the plans before the first transformation.
pub(crate) const DRAFT: &str = "draft";

/// The plans of a kernel after the transformations of [`PIPELINE`], or after none ([`DRAFT`]), or after that of a name and all before it.
///
/// # Errors
/// If the kernel asks for what no code exists for, as names in its sizes are.
pub(crate) fn pipeline<'k>(kernel: &'k Kernel, until: Option<&str>) -> Result<Draft<'k>> {
    if !kernel.names.is_empty() {
        return Err(from_kernel::unsupported(kernel, "sizes that are names"));
    }
    let mut draft = match &kernel.form {
        Form::Nest(form) => nest::draft(kernel, form)?,
        Form::Contract(form) => contract::draft(kernel, form)?,
        Form::Scatter(form) => scatter::draft(kernel, form)?,
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

/// A kernel whose plans are being transformed.
pub(crate) struct Draft<'k> {
    /// The kernel.
    pub(crate) kernel: &'k Kernel,
    /// The plans of its functions.
    pub(crate) plans: Vec<Plan>,
    /// How a run calls them.
    pub(crate) calls: Calls,
    /// What the first plan reduces down the columns.
    pub(crate) columns: Vec<Column>,
    /// The largest values that the first plan finds.
    pub(crate) largest: Vec<Largest>,
    /// The kernel has so many registers; those beyond are of largest values.
    pub(crate) registers: usize,
    /// How the one long row is split, if it is.
    pub(crate) split_row: Option<SplitRow>,
}

/// How a run calls the functions of a kernel, which transformations rely on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    /// The row may be merged with other axes: nothing is reduced along it, and calls are not in the kernel's own rows.
    pub(crate) merge_row: bool,
    /// A row is the same in every call, which begins at a multiple of 16 positions and ends at one or with the row.
    pub(crate) by_sixteens: bool,
    /// Rows and positions are cut as the plans ask for.
    pub(crate) as_planned: bool,
}

impl<'k> Draft<'k> {
    /// Plans that reduce nothing down columns and find no largest values, as yet.
    fn new(kernel: &'k Kernel, plans: Vec<Plan>, calls: Calls) -> Self {
        let (columns, largest) = (Vec::new(), Vec::new());
        Draft { kernel, plans, calls, columns, largest, registers: 0, split_row: None }
    }

    /// See [`canonical::merge_axes`].
    fn merge_axes(&mut self) {
        for plan in &mut self.plans {
            canonical::merge_axes(plan, self.calls.merge_row);
            if self.calls.by_sixteens {
                plan.aligned = plan.row() % 16 == 0;
            }
        }
    }
}

/// What a run does with the functions of a kernel: how its work is divided, and what it needs besides the operands.
#[derive(Debug)]
pub(crate) enum Dispatch {
    /// One pass over rows and positions.
    Nest(NestDispatch),
    /// A contraction by the precompiled routine.
    Contract(ContractDispatch),
    /// Sources added to a copy of the base.
    Scatter(ScatterDispatch),
}

/// One number per axis: outer axes, then the row.
pub(crate) type Strides = SmallVec<[i64; 4]>;

/// Rows of positions, and what happens at each.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Sizes of the outer axes and of the row.
    pub(crate) extents: Vec<i64>,
    /// True if every call covers positions from a multiple of 16 to a multiple of 16.
    pub(crate) aligned: bool,
    /// The number of addresses it is given.
    pub(crate) slots: usize,
    /// About how many tensors of this size a run of the kernel goes over: more than one for a multi-tensor kernel.
    pub(crate) tensors: i64,
    /// The slots of outputs that replace nothing that is loaded.
    pub(crate) fresh: SmallVec<[usize; 2]>,
    /// Where it loads from.
    pub(crate) loads: Vec<Source>,
    /// The meanings of `ScalarOp::Index`.
    pub(crate) positions: Vec<Affine>,
    /// Operands that step through memory along the row, and are brought together in the scratch first.
    pub(crate) strided: Vec<StridedRows>,
    /// The types of the row buffers.
    pub(crate) buffers: Vec<Scalar>,
    /// Run in order for each row.
    pub(crate) stages: Vec<Stage>,
}

impl Plan {
    /// A plan that does nothing as yet.
    fn new(extents: Vec<i64>, slots: usize) -> Plan {
        Plan {
            extents,
            aligned: false,
            slots,
            tensors: 1,
            fresh: SmallVec::new(),
            loads: Vec::new(),
            positions: Vec::new(),
            strided: Vec::new(),
            buffers: Vec::new(),
            stages: Vec::new(),
        }
    }

    /// A map over one axis of `n` elements, with `slots` operands.
    fn map(n: i64, slots: usize, loads: Vec<Source>, body: Body, sinks: Vec<Sink>) -> Plan {
        let stages = vec![Stage::along_row(body, sinks)];
        Plan { aligned: n % 16 == 0, loads, stages, ..Plan::new(vec![n], slots) }
    }

    /// About how many cheap operations a position is.
    fn cost(&self) -> usize {
        self.stages.iter().map(|s| cost(&s.body)).sum()
    }

    /// The axis of the positions.
    pub(crate) fn row_axis(&self) -> usize {
        self.extents.len() - 1
    }

    /// The size of the row.
    pub(crate) fn row(&self) -> i64 {
        self.extents[self.row_axis()]
    }

    /// How many lanes the row fills of a reduction along it. The others stay what they start from, which changes nothing.
    pub(crate) fn lanes(&self) -> usize {
        if self.row() <= LANES as i64 / 2 { LANES / 2 } else { LANES }
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> i64 {
        self.extents[..self.row_axis()].iter().product()
    }

    /// About how many bytes are read and written.
    pub(crate) fn traffic(&self) -> i64 {
        let read = self.loads.iter().map(|l| l.elements * l.dtype.bytes() as i64);
        let written = self.stages.iter().flat_map(|s| &s.sinks).map(|s| match s {
            Sink::Store { dtype, place, .. } if place.row_stride() != 0 => {
                self.rows() * self.row() * dtype.bytes() as i64
            }
            _ => 0,
        });
        read.chain(written).sum::<i64>() * self.tensors
    }

    /// True if what is stored to a slot may go past the caches: nothing there was loaded just before.
    pub(crate) fn may_stream(&self, slot: usize) -> bool {
        self.fresh.contains(&slot) || self.loads.iter().all(|l| l.read_only)
    }
}

/// An element as a function of the positions, in numbers.
pub(crate) type Access = ir::Access<i64>;

/// `offset + Σ strides[axis] * position`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Affine {
    /// Added to the sum.
    pub(crate) offset: i64,
    /// One per axis.
    pub(crate) strides: Strides,
}

/// Where an element lies.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// As the kernel says.
    At(Access),
    /// One after another: element `(row - begin) * (to - from) + (position - from)` of the call.
    Stream,
    /// In the scratch, where the rows of that number of [`Plan::strided`] are.
    Gathered(usize),
}

/// Rows whose elements lie apart.
#[derive(Clone, Debug)]
pub(crate) struct StridedRows {
    /// The operand.
    pub(crate) slot: usize,
    /// The bytes of an element.
    pub(crate) size: i64,
    /// The element; never guarded or indirect.
    pub(crate) access: Access,
    /// How many rows are brought at a time, from a multiple of that number along the last outer axis on: neighbours in memory. A power
    /// of two.
    pub(crate) rows: i64,
    /// The most positions of a call.
    pub(crate) positions: i64,
}

impl StridedRows {
    /// Elements from row to row in the scratch, for so many positions: more than that, since rows a power of two apart would share the
    /// places of the cache.
    pub(crate) fn pitch(&self, positions: i64) -> i64 {
        positions + 64 / self.size
    }

    /// The bytes in the scratch.
    pub(crate) fn bytes(&self) -> i64 {
        self.rows * self.pitch(self.positions) * self.size
    }
}

impl Place {
    /// The element of a map over one axis that has the number of the position.
    fn in_order() -> Place {
        Place::At(Access { strides: smallvec![1], ..Access::default() })
    }

    /// From a position to the next, in elements.
    pub(crate) fn row_stride(&self) -> i64 {
        match self {
            Place::At(access) => access.strides.last().copied().unwrap_or(0),
            Place::Stream | Place::Gathered(_) => 1,
        }
    }
}

/// Something to load from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// The operand.
    pub(crate) slot: usize,
    /// Its dtype.
    pub(crate) dtype: DType,
    /// The element.
    pub(crate) place: Place,
    /// How many elements the operand has.
    pub(crate) elements: i64,
    /// True if nothing in the kernel writes this operand.
    pub(crate) read_only: bool,
}

/// One pass along the row, or once per row.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    /// Once per row.
    pub(crate) once: bool,
    /// Only in the first row of a call: the row buffers that it fills are those of all rows.
    pub(crate) first: bool,
    /// The scalar code.
    pub(crate) body: Body,
    /// Where its results go.
    pub(crate) sinks: Vec<Sink>,
}

impl Stage {
    /// A pass along the row, in every row.
    fn along_row(body: Body, sinks: Vec<Sink>) -> Stage {
        Stage { once: false, first: false, body, sinks }
    }

    /// True if its code has that load.
    fn loads(&self, number: u32) -> bool {
        self.body.insts.iter().any(|inst| inst.op == ScalarOp::Load(number))
    }

    /// What is done once per row.
    fn once_per_row(body: Body, sinks: Vec<Sink>) -> Stage {
        Stage { once: true, first: false, body, sinks }
    }
}

/// Where a value of a stage goes.
#[derive(Clone, Debug)]
pub(crate) enum Sink {
    /// To an operand, narrowed.
    Store {
        /// The operand.
        slot: usize,
        /// Its dtype.
        dtype: DType,
        /// Where.
        place: Place,
        /// What.
        value: Val,
        /// The loads that must have happened for a position before this store.
        after: SmallVec<[u32; 1]>,
    },
    /// Along the row into a register.
    Reduce {
        /// How.
        reduction: Reduction,
        /// What.
        value: Val,
        /// The register.
        register: usize,
    },
    /// Into a row buffer.
    Keep {
        /// What.
        value: Val,
        /// The row buffer.
        buffer: usize,
    },
    /// Into a register, once per row.
    Set {
        /// What.
        value: Val,
        /// The register.
        register: usize,
    },
    /// Into the accumulators of a column reduction, one line of them per chunk of rows.
    Column {
        /// How.
        reduction: Reduction,
        /// What.
        value: Val,
        /// The operand that holds the accumulators.
        slot: usize,
        /// Their element for a chunk of number 0.
        keep: Strides,
        /// The number of the reduced row, which gives the chunk.
        count: Strides,
        /// Accumulators of a chunk.
        size: i64,
    },
    /// Added to an element of an operand, which is of the value's type (or u8).
    Add {
        /// The operand.
        slot: usize,
        /// Its dtype.
        dtype: DType,
        /// Where.
        access: Access,
        /// The run-time indices.
        index: SmallVec<[Val; 1]>,
        /// How many elements the operand has.
        elements: i64,
        /// What.
        value: Val,
    },
}

impl Sink {
    /// The operand that it writes; none if it writes a register or a row buffer.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self {
            Sink::Store { slot, .. } | Sink::Column { slot, .. } | Sink::Add { slot, .. } => {
                Some(*slot)
            }
            Sink::Reduce { .. } | Sink::Keep { .. } | Sink::Set { .. } => None,
        }
    }

    /// The values it reads.
    pub(crate) fn values(&self) -> SmallVec<[Val; 2]> {
        match self {
            Sink::Store { value, .. }
            | Sink::Reduce { value, .. }
            | Sink::Keep { value, .. }
            | Sink::Set { value, .. }
            | Sink::Column { value, .. } => SmallVec::from_slice(&[*value]),
            Sink::Add { value, index, .. } => index.iter().copied().chain([*value]).collect(),
        }
    }
}

/// About how many cheap operations a body is.
fn cost(body: &Body) -> usize {
    let one = |op: &ScalarOp| match op {
        ScalarOp::Call(_) => 8,
        ScalarOp::Random { .. } => 6,
        ScalarOp::Div | ScalarOp::Rem | ScalarOp::Sqrt => 3,
        _ => 1,
    };
    let sum: usize = body.insts.iter().map(|i| one(&i.op)).sum();
    (sum / 4).max(1)
}
