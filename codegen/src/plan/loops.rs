//! [`Plan`]: the function of a kernel as loops over rows and positions.
//!
//! Operands are *slots*, positions in the table of addresses that the function is given.

use super::{Affine, Strides};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::kernel::{
    Access, Body, Combiner, LANES, Reduction, SHORT_ROW, Scalar, ScalarOp, Val,
};
use tracecast_ir::{Claim, DType, Size};

/// Rows of positions, and what happens at each.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Sizes of the outer axes and of the row.
    pub(crate) extents: Vec<Size>,
    /// What code may take for the most positions of a row whose size is a name; see
    /// [`Plan::row_at_most`].
    pub(crate) most: Option<i64>,
    /// True if every call covers positions from a multiple of 16 to a multiple of 16.
    pub(crate) aligned: bool,
    /// The number of addresses it is given.
    pub(crate) slots: usize,
    /// About how many tensors of this size a run of the kernel goes over: more than one for a
    /// multi-tensor kernel.
    pub(crate) tensors: usize,
    /// The slots of outputs that replace nothing that is loaded.
    pub(crate) fresh: SmallVec<[usize; 2]>,
    /// Where it loads from.
    pub(crate) loads: Vec<Source>,
    /// The meanings of `ScalarOp::Index`.
    pub(crate) positions: Vec<Affine>,
    /// Operands that step through memory along the row, and are gathered in the scratch first.
    pub(crate) strided: Vec<StridedRows>,
    /// The types of the row buffers.
    pub(crate) buffers: Vec<Scalar>,
    /// Run in order for each row.
    pub(crate) stages: Vec<Stage>,
}

impl Plan {
    /// A plan that does nothing as yet.
    pub(super) fn new(extents: Vec<Size>, slots: usize) -> Plan {
        Plan {
            extents,
            most: None,
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
    pub(super) fn map(
        n: Size,
        slots: usize,
        loads: Vec<Source>,
        body: Body,
        sinks: Vec<Sink>,
    ) -> Plan {
        let stages = vec![Stage::along_row(body, sinks)];
        let aligned = n.number().is_some_and(|n| n % 16 == 0);
        Plan { aligned, loads, stages, ..Plan::new(vec![n], slots) }
    }

    /// About how many cheap operations a position is.
    pub(super) fn cost(&self) -> usize {
        self.stages.iter().map(|s| cost(&s.body)).sum()
    }

    /// The axis of the positions.
    pub(crate) fn row_axis(&self) -> usize {
        self.extents.len() - 1
    }

    /// The size of the row.
    pub(crate) fn row(&self) -> Size {
        self.extents[self.row_axis()]
    }

    /// The most positions that a row may have: its size if that is a number, else what has been
    /// asked or is bounded. `None`: any number.
    pub(crate) fn row_at_most(&self) -> Option<i64> {
        self.row().number().or(self.most)
    }

    /// False if no row has that number of positions.
    pub(crate) fn may_reach(&self, positions: i64) -> bool {
        self.row_at_most().is_none_or(|most| most >= positions)
    }

    /// True if a row may have no positions, which code finds out when it runs.
    pub(crate) fn may_be_empty(&self) -> bool {
        self.row().has_names()
    }

    /// How many lanes the row fills of a reduction along it. The others stay what they start from,
    /// which changes nothing.
    pub(crate) fn lanes(&self) -> usize {
        if self.may_reach(LANES as i64 / 2 + 1) { LANES } else { LANES / 2 }
    }

    /// True if reductions along the row combine its positions one after another.
    pub(crate) fn is_short(&self) -> bool {
        !self.may_reach(SHORT_ROW as i64)
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> Size {
        self.extents[..self.row_axis()].iter().product()
    }

    /// That a run goes over fewer bytes than that.
    pub(crate) fn goes_over_less(&self, bytes: i64) -> Claim {
        Size::from(bytes).at_least(self.traffic() + 1)
    }

    /// About how many bytes are read and written.
    pub(crate) fn traffic(&self) -> Size {
        // What several loads read of an operand is there once.
        let is_first = |i: usize| self.loads[..i].iter().all(|l| l.slot != self.loads[i].slot);
        let firsts = self.loads.iter().enumerate().filter(|(i, _)| is_first(*i));
        let read = firsts.map(|(_, l)| l.elements * l.dtype.bytes());
        let written = self.stages.iter().flat_map(|s| &s.sinks).map(|s| match s {
            Sink::Store { dtype, place, .. } if place.row_stride() != 0 => {
                self.rows() * self.row() * dtype.bytes()
            }
            _ => Size::from(0),
        });
        read.chain(written).sum::<Size>() * self.tensors
    }

    /// True if an operand has an element for each position of a row, wherever that begins.
    pub(crate) fn spans_row(&self, source: &Source) -> bool {
        match (source.elements.number(), self.row().number()) {
            (Some(elements), Some(row)) => elements >= row,
            _ => source.spans_row,
        }
    }

    /// True if a slot may be written with streaming stores: nothing there was loaded just before.
    pub(crate) fn may_stream(&self, slot: usize) -> bool {
        self.fresh.contains(&slot) || self.loads.iter().all(|l| l.read_only)
    }
}

/// Where an element lies.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// As the kernel says.
    At(Access),
    /// One after another: element `(row - begin) * (to - from) + (position - from)` of the call.
    Stream,
    /// In the scratch: that row of those that number `rows` of [`Plan::strided`] brings; of the
    /// axis around the row, the one of its position.
    Gathered { rows: usize, row: i64 },
}

/// Rows whose elements lie apart.
#[derive(Clone, Debug)]
pub(crate) struct StridedRows {
    /// The operand.
    pub(crate) slot: usize,
    /// The bytes of an element.
    pub(crate) size: i64,
    /// The element; never indirect. Where its guards fail the row has the fill.
    pub(crate) access: Access,
    /// How many rows, adjacent in memory, one block gathers.
    pub(crate) rows: i64,
    /// What those rows are.
    pub(crate) neighbours: Neighbours,
    /// The most positions of a call.
    pub(crate) positions: i64,
}

/// Rows that lie side by side in memory, a step of one element apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbours {
    /// Those of positions of the last outer axis, from a multiple of their number on, which is a
    /// power of two.
    Positions,
    /// Those of loads: the elements of windows that step along the row.
    Loads,
}

impl StridedRows {
    /// Elements from row to row in the scratch, by the positions of a row: more than that, since
    /// rows a power of two apart would share the places of the cache.
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
    pub(super) fn in_order() -> Place {
        Place::At(Access { strides: smallvec![Size::from(1)], ..Access::default() })
    }

    /// From a position to the next, in elements.
    pub(crate) fn row_stride(&self) -> Size {
        match self {
            Place::At(access) => access.strides.last().copied().unwrap_or_default(),
            Place::Stream | Place::Gathered { .. } => Size::from(1),
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
    pub(crate) elements: Size,
    /// True if nothing in the kernel writes this operand.
    pub(crate) read_only: bool,
    /// True if the operand is known to have as many elements as the row has positions; asked of
    /// guarded loads alone.
    pub(crate) spans_row: bool,
}

impl Source {
    /// An operand at a place; that it has an element for each position is not known.
    pub(crate) fn new(
        slot: usize,
        dtype: DType,
        place: Place,
        elements: Size,
        read_only: bool,
    ) -> Source {
        Source { slot, dtype, place, elements, read_only, spans_row: false }
    }
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
    pub(super) fn along_row(body: Body, sinks: Vec<Sink>) -> Stage {
        Stage { once: false, first: false, body, sinks }
    }

    /// True if its code has that load.
    pub(super) fn loads(&self, number: u32) -> bool {
        self.body.insts.iter().any(|inst| inst.op == ScalarOp::Load(number))
    }

    /// What is done once per row.
    pub(super) fn once_per_row(body: Body, sinks: Vec<Sink>) -> Stage {
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
        size: Size,
    },
    /// Combined with an element of an operand, which is of the value's type (or u8); what is put in
    /// its place is narrowed.
    Combine {
        /// How.
        combiner: Combiner,
        /// The operand.
        slot: usize,
        /// Its dtype.
        dtype: DType,
        /// Where.
        access: Access,
        /// The run-time indices.
        index: SmallVec<[Val; 1]>,
        /// How many elements the operand has.
        elements: Size,
        /// What.
        value: Val,
    },
}

impl Sink {
    /// The operand that it writes; none if it writes a register or a row buffer.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self {
            Sink::Store { slot, .. } | Sink::Column { slot, .. } | Sink::Combine { slot, .. } => {
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
            Sink::Combine { value, index, .. } => index.iter().copied().chain([*value]).collect(),
        }
    }
}

/// About how many cheap operations a body is.
pub(super) fn cost(body: &Body) -> usize {
    let one = |op: &ScalarOp| match op {
        ScalarOp::Call(_) => 8,
        ScalarOp::Random { .. } => 6,
        ScalarOp::Div | ScalarOp::Rem | ScalarOp::Sqrt => 3,
        _ => 1,
    };
    let sum: usize = body.insts.iter().map(|i| one(&i.op)).sum();
    (sum / 4).max(1)
}

/// The access with exactly one stride per axis.
pub(super) fn padded(access: &Access, rank: usize) -> Access {
    let mut access = access.clone();
    access.strides.resize(rank, Size::from(0));
    for guard in &mut access.guards {
        guard.strides.resize(rank, Size::from(0));
    }
    access
}
