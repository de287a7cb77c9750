//! [`Plan`]: the loops that become one function, in a form fit for emission.
//!
//! A plan is made from a kernel (`from_kernel`), transformed by the other modules here, and read by `clif` and `x86`. Operands are *slots*, positions in the table of addresses that
//! the function is given. `ScalarOp::Index(i)` in a plan's bodies means [`Plan::positions`]`[i]`, an affine number.

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
mod widen_once;

use crate::error::Result;
use contract::ContractDispatch;
use nest::NestDispatch;
use scatter::ScatterDispatch;
use smallvec::SmallVec;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Access, Body, Form, Kernel, LANES, Reduction, Scalar, Val};

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

/// The plans of a kernel's functions, and what a run does with them.
///
/// # Errors
/// If the kernel asks for what no code exists for.
pub(crate) fn draft(kernel: &Kernel) -> Result<(Vec<Plan>, Dispatch)> {
    Ok(match &kernel.form {
        Form::Nest(form) => {
            let (plans, run) = nest::draft(kernel, form)?;
            (plans, Dispatch::Nest(run))
        }
        Form::Contract(form) => {
            let (plans, run) = contract::draft(kernel, form)?;
            (plans, Dispatch::Contract(run))
        }
        Form::Scatter(form) => {
            let (plans, run) = scatter::draft(kernel, form)?;
            (plans, Dispatch::Scatter(run))
        }
    })
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
    pub(crate) apart: Vec<Apart>,
    /// The types of the row buffers.
    pub(crate) buffers: Vec<Scalar>,
    /// Run in order for each row.
    pub(crate) stages: Vec<Stage>,
}

impl Plan {
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
        self.fresh.contains(&slot) || self.loads.iter().all(|l| l.fixed)
    }
}

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
    /// In the scratch, where the rows of that number of [`Plan::apart`] are.
    Brought(usize),
}

/// Rows whose elements lie apart.
#[derive(Clone, Debug)]
pub(crate) struct Apart {
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

impl Apart {
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
    /// From a position to the next, in elements.
    pub(crate) fn row_stride(&self) -> i64 {
        match self {
            Place::At(access) => access.strides.last().copied().unwrap_or(0),
            Place::Stream | Place::Brought(_) => 1,
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
    pub(crate) fixed: bool,
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
