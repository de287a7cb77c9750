//! What a device compiles: a [`Kernel`] is loops, loads, straight-line scalar code, and stores.
//!
//! Its form is its loops, of which each in [`Form`] has a file. A [`Nest`] runs stages along rows:
//! with one stage and no reduction it is a *map*, with reductions a *rows* kernel, with
//! [`Sink::Column`] it accumulates down the rows as well. A [`Contract`] multiplies and sums over
//! an inner axis, and may accumulate its results down the rows. A [`Scatter`] combines values with
//! what is at computed places. [`Lines`] scans operands along an axis, or puts their elements in
//! order. An [`Attention`] weighs values by how queries meet keys. A [`Transposed`] sums over
//! windows that are evenly apart.
//!
//! Views cost nothing: they are the strides of an [`Access`]. Inside a kernel scalars are f32, f64,
//! i32, i64 or bool; 16-bit floats exist at loads, at stores and at [`ScalarOp::Round`].
//!
//! # Order of accumulation
//!
//! Reductions are defined down to the bits, so that no device, fusion, vector width or thread count
//! changes a result:
//!
//! * **Along a row** of `n` positions (the nest's inner axis): the row is cut into chunks of
//!   [`ROW_CHUNK`] positions. In a chunk, lane `p % LANES` of [`LANES`] accumulators takes position
//!   `p`, in order, starting from the reduction's identity; then lanes `l` and `l + 16` are
//!   combined, then `l + 8`, `l + 4`, `l + 2`, `l + 1`. Chunk results are combined as a
//!   [`Cascade`]. A row of fewer than [`SHORT_ROW`] positions is combined in order, as PyTorch does
//!   with rows that do not fill a vector of AVX-512.
//! * **Down a column** of `n` rows (the reduced outer axes, counted row-major): rows are cut into
//!   chunks of [`COLUMN_CHUNK`]; a chunk combines its rows in order, starting from the identity;
//!   chunk results are combined as a [`Cascade`].
//! * **A cascade** combines [`GROUP`] chunk results in order, starting with the first; as many of
//!   these results in order; and the rest in order.
//! * **A contraction** is summed in blocks of [`math::CONTRACT_BLOCK`]: fused multiply-adds in
//!   order from zero within a block, block sums added in order.
//! * **A scatter** takes sources in row-major order: each is added to what the base has at its
//!   place, multiplied with it, compared, or put there.
//! * **A transposed convolution** is summed as a contraction, over the channels of a group and the
//!   positions of a window that an element meets, in row-major order.
//! * **Attention** takes keys in blocks, and rescales what is summed so far for each
//!   ([`attention`]).
//! * **A scan** takes the positions of a line one after another, without lanes or chunks
//!   ([`mod@line`]).
//!
//! A form that reduces in one of these orders says in its own file in which.
//!
//! [`Reduction::identity`] is what each reduction starts from.
//!
//! # Sizes that are names
//!
//! Extents, offsets, strides and bounds are [`Size`]s: numbers, or expressions of the names in
//! [`Kernel::names`]. A kernel with names means the kernel with numbers in their place
//! ([`Kernel::at`]), which is what the interpreter runs; every form and every order above holds for
//! each set of numbers. What scalar code needs of names it reads as an argument
//! ([`ScalarOp::Argument`]).

mod at;
pub mod attention;
pub mod build;
mod cascade;
mod checked;
pub(crate) mod code;
mod cost;
mod emit;
pub(crate) mod forms;
mod function;
pub mod half;
pub mod index;
pub(crate) mod interpret;
mod limits;
pub mod line;
mod low_float;
pub mod math;
pub mod narrow;
pub mod philox;
mod reduction;
mod scalar;
pub mod scalar_text;
pub mod update;

pub use at::argument_bits;
pub use cascade::{Cascade, GROUP, LEVELS};
pub use checked::Checked;
pub use cost::Cost;
pub use forms::*;
pub use function::{Code, Definition, Function, PerFunction};
pub use limits::KernelLimits;
pub use reduction::{Combine, Extreme, Reduction};
pub use scalar::{Body, Cmp, Inst, Scalar, ScalarOp, Val};

use crate::TensorType;
use crate::size::{NamedSize, Number, Size, Values};
use smallvec::SmallVec;

/// Accumulators of a row reduction.
pub const LANES: usize = 32;
/// Rows with fewer positions are combined one position after another.
pub const SHORT_ROW: usize = LANES / 2;
/// Positions of a row that share one set of lanes.
pub const ROW_CHUNK: usize = 4096;
/// Rows that share one column accumulator.
pub const COLUMN_CHUNK: usize = 256;

/// A program for a device. Operands are dense row-major buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// A name made of what it computes; unique within a program.
    pub name: String,
    /// The buffers it reads.
    pub inputs: Vec<TensorType>,
    /// The buffers it writes, every element of each.
    pub outputs: Vec<Output>,
    /// If set, the kernel runs only when this input, one f32, is zero; otherwise every output keeps
    /// what it held. Every output then is an update.
    pub when: Option<usize>,
    /// The data errors it can raise.
    pub checks: Vec<Check>,
    /// What [`ScalarOp::Argument`] gives: numbers that depend on names. Each is computed in f64,
    /// then rounded to the type of the instruction; a size that is read as an integer is exact.
    pub arguments: Vec<Number>,
    /// The names that sizes and arguments depend on, in order of first use; empty if all of them
    /// are numbers ([`Kernel::at`]).
    pub names: Vec<NamedSize>,
    /// The loops.
    pub form: Form,
}

/// What a device's kernels can do besides what every device's can, as data that plans and passes
/// may ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The forms that may have names in their sizes: one kernel then serves all sizes.
    pub sizes: Vec<FormKind>,
    /// The forms that there is code for. An op of another form is compiled as the ops that it can
    /// be made of ([`OpDef::parts`](crate::op::OpDef::parts)). If it can be made of none, its
    /// kernel is loaded all the same, so that only a form for which there is such a choice need be
    /// in the list.
    pub forms: Vec<FormKind>,
    /// What all of its kernels are limited to.
    pub limits: KernelLimits,
}

/// A buffer that a kernel writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    /// Its type.
    pub ty: TensorType,
    /// The input whose buffer this output may replace in place: each element is read only at the
    /// position where it is written.
    pub update: Option<usize>,
}

/// A data error that a kernel raises in its status word.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What went wrong, such as `index out of range`.
    pub message: String,
    /// The range from the first to before the second within which something had to lie, if the
    /// message is about one.
    pub range: Option<[Size; 2]>,
    /// The op that asked for it.
    pub op: String,
    /// The source line of that op.
    pub source: String,
}

impl Check {
    /// The message, with the range, and with what was found if it is known. Numbers of more than 47
    /// bits are not named: a device may keep the number and that of the check in one word.
    pub fn says(&self, found: Option<i64>) -> String {
        match found.filter(|found| found.unsigned_abs() < (1 << 47) - 1) {
            Some(found) => format!("{}, found {found}", self.expects()),
            None => self.expects(),
        }
    }

    /// The same with numbers in the place of names, as far as they have values.
    #[must_use]
    pub fn at(&self, values: &Values) -> Check {
        let number = |size: Size| size.at(&|name| values.get(name)).map_or(size, Size::from);
        Check { range: self.range.map(|range| range.map(number)), ..self.clone() }
    }

    /// The message with the range.
    pub fn expects(&self) -> String {
        match self.range {
            Some([from, to]) => format!("{}: expected {from}..{to}", self.message),
            None => self.message.clone(),
        }
    }
}

impl Kernel {
    /// The name of the form, such as `map`, `rows` or `contraction`.
    pub fn form_name(&self) -> &'static str {
        self.form.as_loops().name()
    }

    /// True if it moves one value from one dtype to another and does nothing else.
    pub fn only_casts(&self) -> bool {
        let Form::Nest(nest) = &self.form else { return false };
        let changes = self.outputs.len() == 1
            && self.inputs.len() == 1
            && self.inputs[0].dtype != self.outputs[0].ty.dtype;
        let is_move = |inst: &Inst| {
            matches!(inst.op, ScalarOp::Load(_) | ScalarOp::Convert | ScalarOp::Round(_))
        };
        let moves = |stage: &Stage| {
            stage.body.insts.iter().all(is_move)
                && stage.sinks.iter().all(|sink| matches!(sink, Sink::Store { .. }))
        };
        changes && nest.is_map() && nest.stages.iter().all(moves)
    }
}

/// A place to load from: an input slot and where in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    /// The input slot (see [`Segment::inputs`]; in other forms the kernel's input itself).
    pub input: usize,
    /// The dtype of that input.
    pub dtype: crate::DType,
    /// The element.
    pub access: Access,
}

/// An element of a buffer as a function of the loop positions: `offset + Σ strides[axis] *
/// position + Σ indirect[i] * index[i]`. In a kernel they are sizes; who compiles kernels of
/// numbers alone may take it of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access<N = Size> {
    /// In elements.
    pub offset: N,
    /// One per axis of the form, in elements.
    pub strides: SmallVec<[N; 4]>,
    /// The strides of the indices computed at run time, the operands of the `Load`, in elements.
    pub indirect: SmallVec<[N; 1]>,
    /// The load happens only if all hold; else the value is `fill`.
    pub guards: SmallVec<[Guard<N>; 1]>,
    /// The bits (as in [`ScalarOp::Const`]) of the value where a guard fails.
    pub fill: u64,
}

/// Holds if `0 <= offset + Σ strides[axis] * position < extent`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Guard<N = Size> {
    /// Added to the sum.
    pub offset: N,
    /// One per axis of the form.
    pub strides: SmallVec<[N; 4]>,
    /// The bound.
    pub extent: N,
}

impl<N: Copy> Access<N> {
    /// The same of what `with` makes of each number.
    pub fn map<M>(&self, with: &dyn Fn(N) -> M) -> Access<M> {
        Access {
            offset: with(self.offset),
            strides: self.strides.iter().map(|stride| with(*stride)).collect(),
            indirect: self.indirect.iter().map(|stride| with(*stride)).collect(),
            guards: self.guards.iter().map(|guard| guard.map(with)).collect(),
            fill: self.fill,
        }
    }
}

impl<N: Copy> Guard<N> {
    /// The same of what `with` makes of each number.
    pub fn map<M>(&self, with: &dyn Fn(N) -> M) -> Guard<M> {
        Guard {
            offset: with(self.offset),
            strides: self.strides.iter().map(|stride| with(*stride)).collect(),
            extent: with(self.extent),
        }
    }
}

/// What a stage runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Over {
    /// Every position of the row.
    Row,
    /// Once per row, with the row position 0: registers only.
    Once,
}

/// One pass along the row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    /// Once or per position.
    pub over: Over,
    /// The scalar code.
    pub body: Body,
    /// Where its results go.
    pub sinks: Vec<Sink>,
}

/// Where a value of a stage goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sink {
    /// To an output slot, narrowed to its dtype (16-bit floats round to nearest even). In an `Once`
    /// stage, once per row.
    Store {
        /// The output slot (see [`Segment::outputs`]).
        output: usize,
        /// Its dtype.
        dtype: crate::DType,
        /// Where; never guarded or indirect.
        access: Access,
        /// What.
        value: Val,
    },
    /// Along the row into a register. Only in `Row` stages.
    Reduce {
        /// How.
        reduction: Reduction,
        /// What.
        value: Val,
        /// The register; i64 for `ArgMax`.
        register: usize,
    },
    /// Into a row buffer, for later stages. Only in `Row` stages.
    Keep {
        /// What.
        value: Val,
        /// The row buffer.
        buffer: usize,
    },
    /// Into a register. Only in `Once` stages.
    Set {
        /// What.
        value: Val,
        /// The register.
        register: usize,
    },
    /// Down the outer axes whose stride is 0, into an output slot of the accumulator's dtype; the
    /// others are kept. The row axis is always kept. Only in `Row` stages.
    Column {
        /// How; not `ArgMax`.
        reduction: Reduction,
        /// What.
        value: Val,
        /// The output slot.
        output: usize,
        /// Its dtype; 16-bit floats are accumulated in f32 and rounded once.
        dtype: crate::DType,
        /// For each axis, whether it is kept; the kept axes in order are the axes of the output.
        kept: SmallVec<[bool; 4]>,
    },
    /// The largest of all positions, at least 0, into the only element of an output slot of the
    /// value's type. The values are magnitudes, none of them negative or `-0.0`, so that no order
    /// shows; NaN is the largest. Only in `Row` stages.
    Largest {
        /// What.
        value: Val,
        /// The output slot.
        output: usize,
    },
}
