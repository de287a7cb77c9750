//! Lowering: a [`Kernel`] becomes a [`Program`].
//!
//! Maps, rows and contractions do, with f32 and bf16 as numbers to compute with. [`Refused`] says
//! what of a kernel the chip does not have.

mod contraction;
mod narrow;
mod nest;
mod scalar;
mod sinks;

use crate::isa::{Affine, Bound, Cell, Element, Format, Program, Reg, Word};
use std::fmt;
use tracecast_runtime::ir::kernel::{Access, Form, Kernel, Load, Scalar};
use tracecast_runtime::ir::{DType, Size};

/// The words of tables that a program may have, all together.
pub const MOST_WORDS: usize = 1 << 21;

/// Why the chip does not run a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is made, or why it is not.
pub(crate) type Lowered<T> = Result<T, Refused>;

/// Refuses.
pub(crate) fn refuse<T>(why: impl Into<String>) -> Lowered<T> {
    Err(Refused(why.into()))
}

/// The dtypes that tensors in memory may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memories {
    /// Those of numbers, f32 and bf16, and those of masks and indices: bool, i32 and i64.
    #[default]
    NumbersMasksIndices,
    /// Those of numbers alone.
    Numbers,
}

impl Memories {
    /// The dtypes.
    pub const fn dtypes(self) -> &'static [DType] {
        match self {
            Memories::NumbersMasksIndices => {
                &[DType::F32, DType::BF16, DType::I32, DType::I64, DType::Bool]
            }
            Memories::Numbers => &[DType::F32, DType::BF16],
        }
    }

    /// How elements of a dtype lie.
    ///
    /// # Errors
    /// If there are no such elements here.
    pub fn format(self, dtype: DType) -> Result<Format, Refused> {
        let format = match dtype {
            DType::F32 => Format::F32,
            DType::BF16 => Format::Bf16,
            DType::I32 => Format::I32,
            DType::I64 => Format::I64,
            DType::Bool => Format::Bool,
            _ => return refuse(format!("{dtype} is no dtype of its memory")),
        };
        match (self, format.word()) {
            (Memories::NumbersMasksIndices, _) | (_, Word::F32) => Ok(format),
            _ => refuse(format!("its memory holds numbers only, found {dtype}")),
        }
    }
}

/// The program of a kernel, all of whose sizes are numbers.
///
/// # Errors
/// If it is of a form, or has an instruction or a dtype, that the chip does not have, or needs more
/// words of tables than there are.
pub fn lower(kernel: &Kernel, memories: Memories) -> Result<Program, Refused> {
    if !kernel.names.is_empty() {
        return refuse("its sizes are names");
    }
    let mut lowering = Lowering {
        memories,
        inputs: kernel.inputs.len(),
        outputs: kernel.outputs.len(),
        program: Program { name: kernel.name.clone(), gate: kernel.when, ..Program::default() },
    };
    let operands = kernel.inputs.iter().chain(kernel.outputs.iter().map(|output| &output.ty));
    operands.map(|ty| memories.format(ty.dtype)).collect::<Lowered<Vec<_>>>()?;
    match &kernel.form {
        Form::Nest(nest) => lowering.nest(nest)?,
        Form::Contract(contract) => lowering.contraction(contract)?,
        other => return refuse(format!("it has no {}", name_of(other))),
    }
    let words =
        lowering.program.tables.iter().fold(0, |sum: usize, words| sum.saturating_add(*words));
    if words > MOST_WORDS {
        return refuse(format!(
            "it takes {words} words of tables, of which there are {MOST_WORDS}"
        ));
    }
    Ok(lowering.program)
}

fn name_of(form: &Form) -> &'static str {
    match form {
        Form::Nest(_) => "maps",
        Form::Contract(_) => "contractions",
        Form::Scatter(_) => "scatters",
        Form::Lines(_) => "scans and orders",
        Form::Attention(_) => "fused attention",
        Form::Transposed(_) => "transposed convolutions",
    }
}

/// A program that is being made.
struct Lowering {
    memories: Memories,
    /// How many operands are read; those that are written come behind them.
    inputs: usize,
    /// How many are written.
    outputs: usize,
    program: Program,
}

impl Lowering {
    /// A table of `words` words.
    fn table(&mut self, words: usize) -> usize {
        self.program.tables.push(words);
        self.program.tables.len() - 1
    }

    /// A register besides those there are.
    fn register(&mut self) -> Reg {
        self.program.registers += 1;
        (self.program.registers - 1) as Reg
    }

    /// Makes room for `count` axes.
    fn axes(&mut self, count: usize) {
        self.program.axes = self.program.axes.max(count);
    }

    /// What a load reads; `operand` is the tensor of its slot.
    fn element(&self, load: &Load, operand: usize, indices: &[Reg]) -> Lowered<Element> {
        let format = self.memories.format(load.dtype)?;
        let Access { indirect, guards, fill, .. } = &load.access;
        let strides = indirect.iter().map(|stride| number(*stride)).collect::<Lowered<Vec<_>>>()?;
        if strides.len() != indices.len() {
            return refuse("a load has other indices than strides of indices");
        }
        let bounds = guards.iter().map(|guard| {
            let at = affine(guard.offset, &guard.strides)?;
            Ok(Bound { at, extent: number(guard.extent)? })
        });
        Ok(Element {
            operand,
            format,
            at: affine(load.access.offset, &load.access.strides)?,
            indices: indices.iter().copied().zip(strides).collect(),
            bounds: bounds.collect::<Lowered<_>>()?,
            fill: *fill,
        })
    }
}

/// A size.
fn number(size: Size) -> Lowered<i64> {
    size.number().ok_or_else(|| Refused(format!("the size {size} is a name")))
}

/// The size of an axis.
fn extent(size: Size) -> Lowered<usize> {
    usize::try_from(number(size)?).map_err(|_| Refused(format!("an axis of size {size}")))
}

/// The sizes of axes.
fn extents(sizes: &[Size]) -> Lowered<Vec<usize>> {
    sizes.iter().map(|size| extent(*size)).collect()
}

fn affine(offset: Size, strides: &[Size]) -> Lowered<Affine> {
    let strides = strides.iter().map(|stride| number(*stride)).collect::<Lowered<_>>()?;
    Ok(Affine { offset: number(offset)?, strides })
}

/// Row-major strides of axes of these sizes.
fn row_major(extents: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; extents.len()];
    for axis in (1..extents.len()).rev() {
        strides[axis - 1] = strides[axis] * extents[axis] as i64;
    }
    strides
}

/// The word of a table at a place that does not move.
fn cell(table: usize, at: usize) -> Cell {
    Cell { table, at: Affine { offset: at as i64, strides: Vec::new() } }
}

/// What a scalar is in a register.
fn word(scalar: Scalar) -> Lowered<Word> {
    match scalar {
        Scalar::F32 => Ok(Word::F32),
        Scalar::I32 => Ok(Word::I32),
        Scalar::I64 => Ok(Word::I64),
        Scalar::Bool => Ok(Word::Bool),
        Scalar::F64 => refuse("it does not compute in f64"),
    }
}
