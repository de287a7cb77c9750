//! What vector loops can do: the one table that says it.
//!
//! `classify` and `cut` read the table to give every instruction and sink of a stage to a vector
//! loop, a tile routine or a scalar loop. The two emitters of vector loops, `clif` and `x86`, are
//! held to it: for every entry there is a small plan (`tests`), and each emitter has to accept
//! exactly those that the table promises. Whether operands lie next to each other is no capability;
//! `classify` and `cut` look at that.

use crate::plan::Sink;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Code, Combine, Function, Inst, Reduction, Scalar, ScalarOp, Val};

/// How a value is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Once per row.
    Uniform,
    /// Wherever it is needed, by a vector or scalar loop, or read in place by a tile routine.
    Free,
    /// In a vector loop.
    Vector,
    /// In a scalar loop.
    Scalar,
    /// By a tile routine.
    Tile,
}

/// What makes the vector loops of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VectorLoops {
    /// Cranelift, in vectors of 128 bits.
    Cranelift {
        /// Rounding to integral floats is an instruction.
        floor: bool,
    },
    /// Machine code of our own, in vectors of 256 bits: AVX2, FMA and F16C.
    Avx2,
    /// Machine code of our own, in vectors of 512 bits: AVX-512 with F, BW, DQ and VL.
    Avx512,
}

impl VectorLoops {
    /// True for loops that `x86` makes.
    pub(super) fn are_own(self) -> bool {
        match self {
            VectorLoops::Cranelift { .. } => false,
            VectorLoops::Avx2 | VectorLoops::Avx512 => true,
        }
    }

    fn has_floor(self) -> bool {
        match self {
            VectorLoops::Cranelift { floor } => floor,
            VectorLoops::Avx2 | VectorLoops::Avx512 => true,
        }
    }
}

/// The size of a loop's lanes, which is the same for all its vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes {
    /// Lanes of 32 bits, in which 16-bit floats and bytes are computed, too.
    Bits32,
    /// Lanes of 64 bits.
    Bits64,
}

impl Lanes {
    /// True if values of that type are lanes of the loop. Truth values are masks of any size.
    pub(crate) fn hold(self, ty: Scalar) -> bool {
        match (self, ty) {
            (_, Scalar::Bool) => true,
            (Lanes::Bits32, Scalar::F32 | Scalar::I32) => true,
            (Lanes::Bits64, Scalar::F64 | Scalar::I64) => true,
            (Lanes::Bits32, Scalar::F64 | Scalar::I64) => false,
            (Lanes::Bits64, Scalar::F32 | Scalar::I32) => false,
        }
    }

    /// True if elements of that dtype are lanes without a conversion.
    fn are(self, dtype: DType) -> bool {
        match self {
            Lanes::Bits32 => matches!(dtype, DType::F32 | DType::I32),
            Lanes::Bits64 => matches!(dtype, DType::F64 | DType::I64),
        }
    }

    /// The bytes of a lane.
    pub(crate) fn bytes(self) -> i32 {
        match self {
            Lanes::Bits32 => 4,
            Lanes::Bits64 => 8,
        }
    }
}

/// What loops of one kind can do: the entries of the table.
///
/// An answer is [`Class::Vector`], [`Class::Tile`] if a routine does it over a tile, or
/// [`Class::Scalar`] if it is done one position at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capability {
    /// What makes the loops.
    pub(crate) loops: VectorLoops,
    /// Their lanes.
    pub(crate) lanes: Lanes,
}

fn vector_if(can: bool) -> Class {
    if can { Class::Vector } else { Class::Scalar }
}

impl Capability {
    /// True if there are such loops at all.
    pub(crate) fn exists(self) -> bool {
        self.lanes == Lanes::Bits32 || self.loops == VectorLoops::Avx512
    }

    /// An instruction some of whose operands vary along the row; `ty` is the type of a value.
    pub(crate) fn computes(self, inst: &Inst, ty: impl Fn(Val) -> Scalar) -> Class {
        let held = self.lanes.hold(inst.ty) && inst.args.iter().all(|a| self.lanes.hold(ty(*a)));
        if !self.exists() {
            return Class::Scalar;
        }
        match inst.op {
            // Operands are two numbers and a position, from which a routine counts on by itself.
            ScalarOp::Random { .. } if self.lanes == Lanes::Bits32 => Class::Tile,
            ScalarOp::Random { .. } => Class::Scalar,
            // Positions are counted in any phase that needs them.
            ScalarOp::Index(_) if self.lanes == Lanes::Bits32 => Class::Free,
            // A routine takes them from where scalar loops leave them, whatever the lanes of vector
            // loops.
            ScalarOp::Call(function) => self.calls(function, inst.ty),
            _ if !held => Class::Scalar,
            ScalarOp::Const(_) | ScalarOp::Argument(_) | ScalarOp::Register(_) | ScalarOp::Acc => {
                Class::Uniform
            }
            // What is loaded decides, and what row buffers hold: see `loads` and `keeps`.
            ScalarOp::Load(_) | ScalarOp::Row(_) | ScalarOp::Index(_) => Class::Scalar,
            ScalarOp::Add | ScalarOp::Sub | ScalarOp::Neg | ScalarOp::Abs => {
                vector_if(inst.ty != Scalar::Bool)
            }
            ScalarOp::Mul | ScalarOp::Max | ScalarOp::Min => Class::Vector,
            ScalarOp::Cmp(_) | ScalarOp::Select | ScalarOp::Convert => Class::Vector,
            ScalarOp::MulAdd | ScalarOp::Div | ScalarOp::Sqrt => vector_if(inst.ty.is_float()),
            ScalarOp::Floor => vector_if(inst.ty.is_float() && self.loops.has_floor()),
            ScalarOp::Rem => Class::Scalar,
            ScalarOp::And | ScalarOp::Or | ScalarOp::Not => vector_if(!inst.ty.is_float()),
            ScalarOp::WrapU8 => vector_if(inst.ty == Scalar::I32),
            ScalarOp::Round(dtype) => self.rounds(dtype, inst.ty),
            // A check that says what it found says it of one position.
            ScalarOp::Check(_) => vector_if(!self.loops.are_own() && inst.args.len() == 1),
        }
    }

    fn calls(self, function: Function, ty: Scalar) -> Class {
        match (self.lanes, ty, function.code()) {
            (Lanes::Bits32, Scalar::F32, Code::StraightLine) if self.loops.are_own() => {
                Class::Vector
            }
            (Lanes::Bits32, Scalar::F32, Code::StraightLine | Code::Patched) => Class::Tile,
            (Lanes::Bits32, Scalar::F64, _) if function.has_doubles() => Class::Tile,
            (Lanes::Bits64, Scalar::F64, Code::StraightLine) if function.has_doubles() => {
                Class::Vector
            }
            _ => Class::Scalar,
        }
    }

    fn rounds(self, dtype: DType, ty: Scalar) -> Class {
        match ty {
            Scalar::F32 => match dtype {
                DType::F32 => Class::Vector,
                _ if dtype.is_low() && dtype.is_computable() => self.low_floats(dtype),
                _ => Class::Scalar,
            },
            Scalar::F64 | Scalar::I32 | Scalar::I64 | Scalar::Bool => Class::Scalar,
        }
    }

    /// A load of neighbours. [`Class::Free`] says that a vector of them is an operand without a
    /// conversion.
    pub(crate) fn loads(self, dtype: DType) -> Class {
        match self.converts(dtype) {
            Class::Vector if self.lanes.are(dtype) => Class::Free,
            class => class,
        }
    }

    /// Widening and narrowing of neighbours in memory.
    fn converts(self, dtype: DType) -> Class {
        match (self.lanes, dtype) {
            _ if !self.exists() => Class::Scalar,
            (Lanes::Bits32, DType::F32 | DType::I32) => Class::Vector,
            (Lanes::Bits32, DType::U8 | DType::Bool) => Class::Vector,
            (Lanes::Bits32, _) if dtype.is_low() && dtype.is_computable() => self.low_floats(dtype),
            (Lanes::Bits64, DType::F64 | DType::I64 | DType::Bool) => Class::Vector,
            _ => Class::Scalar,
        }
    }

    /// Conversions between f32 and a low-precision float: bf16 is half of an f32, and x86 has
    /// instructions for f16. Routines convert any.
    fn low_floats(self, dtype: DType) -> Class {
        match dtype {
            DType::BF16 => Class::Vector,
            DType::F16 if self.loops.are_own() => Class::Vector,
            _ => Class::Tile,
        }
    }

    /// What becomes of a value of type `ty` in a sink whose elements are neighbours; `uniform` if
    /// the value is the same along the row.
    pub(crate) fn takes(self, sink: &Sink, ty: Scalar, uniform: bool) -> Class {
        match sink {
            Sink::Store { dtype, .. } if Scalar::of(*dtype) != Some(ty) => Class::Scalar,
            // Its bytes are repeated: in lanes of 32 bits elements of any size.
            Sink::Store { dtype, .. } if uniform => {
                vector_if(self.exists() && (self.lanes == Lanes::Bits32 || self.lanes.are(*dtype)))
            }
            Sink::Store { dtype, .. } => self.converts(*dtype),
            Sink::Reduce { reduction, .. } => self.reduces(*reduction, ty),
            Sink::Keep { .. } => vector_if(self.keeps(ty)),
            // Accumulators and elements that are added to lie in memory, as lanes of 32 bits.
            Sink::Column { reduction, .. } => match self.lanes {
                Lanes::Bits32 => self.reduces(*reduction, ty),
                Lanes::Bits64 => Class::Scalar,
            },
            Sink::Combine { dtype, .. } if Scalar::of(*dtype) != Some(ty) => Class::Scalar,
            Sink::Combine { combiner, dtype, .. } => vector_if(
                self.lanes == Lanes::Bits32
                    && match combiner.combines(ty) {
                        None => self.converts(*dtype) == Class::Vector,
                        Some(_) => self.lanes.are(*dtype),
                    },
            ),
            Sink::Set { .. } => Class::Scalar,
        }
    }

    /// True if row buffers of that type are written and read by vectors. In lanes of 64 bits, masks
    /// are not.
    pub(crate) fn keeps(self, ty: Scalar) -> bool {
        let masks = self.lanes == Lanes::Bits32;
        self.exists() && self.lanes.hold(ty) && (masks || ty != Scalar::Bool)
    }

    fn reduces(self, reduction: Reduction, ty: Scalar) -> Class {
        match reduction.combines() {
            Combine::Value(op) if ty != Scalar::Bool => {
                self.computes(&Inst { op, args: [0, 0].as_slice().into(), ty }, |_| ty)
            }
            // A truth value has no lane in the scratch, and positions are compared one by one.
            Combine::Value(_) | Combine::Position(_) => Class::Scalar,
        }
    }
}
