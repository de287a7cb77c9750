//! The closed set of scalar instructions, and straight-line programs made of them.

use super::Function;
use crate::DType;
use crate::hash::FxHashMap;
use smallvec::SmallVec;
use std::fmt;
use std::hash::{Hash, Hasher};

/// The type of a scalar inside a kernel. Low-precision floats exist only in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 32-bit integer, wrapping; also what `u8` is computed in.
    I32,
    /// 64-bit integer, wrapping.
    I64,
    /// Truth value.
    Bool,
}

impl Scalar {
    /// The scalar that elements of `dtype` are computed in; `None` if no kernels exist for it.
    pub fn of(dtype: DType) -> Option<Scalar> {
        if !dtype.is_computable() {
            return None;
        }
        Some(match dtype.compute() {
            DType::F32 => Scalar::F32,
            DType::F64 => Scalar::F64,
            DType::I32 | DType::U8 => Scalar::I32,
            DType::I64 => Scalar::I64,
            DType::Bool => Scalar::Bool,
            _ => return None,
        })
    }

    /// The dtype whose elements are values of the scalar as they are, without widening or
    /// narrowing.
    pub const fn dtype(self) -> DType {
        match self {
            Scalar::F32 => DType::F32,
            Scalar::F64 => DType::F64,
            Scalar::I32 => DType::I32,
            Scalar::I64 => DType::I64,
            Scalar::Bool => DType::Bool,
        }
    }

    /// The bits of a number, rounded to the type: floats take the value, integers truncate, bool is
    /// `!= 0`.
    pub fn bits_of(self, v: f64) -> u64 {
        match self {
            Scalar::F32 => u64::from((v as f32).to_bits()),
            Scalar::F64 => v.to_bits(),
            Scalar::I32 => u64::from(v as i32 as u32),
            Scalar::I64 => v as i64 as u64,
            Scalar::Bool => u64::from(v != 0.0),
        }
    }

    /// True for the two floats.
    pub const fn is_float(self) -> bool {
        matches!(self, Scalar::F32 | Scalar::F64)
    }

    /// The name used in text.
    pub fn name(self) -> &'static str {
        match self {
            Scalar::F32 => "f32",
            Scalar::F64 => "f64",
            Scalar::I32 => "i32",
            Scalar::I64 => "i64",
            Scalar::Bool => "bool",
        }
    }
}

/// The number of an instruction's result within its body.
pub type Val = u32;

/// How two numbers compare. Comparisons with NaN are false, except `Ne`, which is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cmp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
}

impl Cmp {
    /// The name used in text.
    pub const fn name(self) -> &'static str {
        match self {
            Cmp::Eq => "eq",
            Cmp::Ne => "ne",
            Cmp::Lt => "lt",
            Cmp::Le => "le",
        }
    }
}

/// One scalar instruction. Operand types equal the result type unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalarOp {
    /// A number of the result's type, given by its bits (zero-extended; f32 in the low 32).
    Const(u64),
    /// The kernel's argument of that number ([`Kernel::arguments`](super::Kernel::arguments)), as a
    /// number of the result's type.
    Argument(u32),
    /// The value at the nest's load of that number; the operands are the load's indirect indices
    /// (i64).
    Load(u32),
    /// The position along an axis of the nest, as i64.
    Index(u32),
    /// The element that an earlier stage kept in a row buffer, at the current row position.
    Row(u32),
    /// The value of a register: what a reduction or an earlier `Set` of this row left.
    Register(u32),
    /// The accumulator of a contraction, in its epilogue.
    Acc,
    /// Sum; integers wrap. No other instruction is ever fused into it.
    Add,
    /// Difference; integers wrap.
    Sub,
    /// Product; integers wrap.
    Mul,
    /// The product of the first two operands plus the third, rounded once; floats only.
    MulAdd,
    /// Quotient; integers truncate towards zero, with the divisor checked by a `Check` before.
    Div,
    /// Remainder of truncated integer division; not for floats.
    Rem,
    /// The larger; NaN if either is NaN; of two equal numbers the first operand.
    Max,
    /// The smaller; NaN if either is NaN; of two equal numbers the first operand.
    Min,
    /// Negation: flips the sign bit of a float.
    Neg,
    /// Absolute value: clears the sign bit of a float; integers wrap.
    Abs,
    /// Correctly rounded square root; floats only.
    Sqrt,
    /// Largest integral float not above; floats only.
    Floor,
    /// A function of one float.
    Call(Function),
    /// Rounds an f32 or f64 to the nearest value of a low-precision float (or f64 to `f32`) and
    /// stays wide.
    Round(DType),
    /// Compares two numbers of one type; the result is bool.
    Cmp(Cmp),
    /// Logical (bool) or bitwise (integer) and.
    And,
    /// Logical (bool) or bitwise (integer) or.
    Or,
    /// Logical (bool) or bitwise (integer) not.
    Not,
    /// Operands (bool, T, T): the second where the first holds, else the third.
    Select,
    /// Converts between scalar types: int to float rounds to nearest even, float to int truncates
    /// and saturates (NaN gives 0), anything to bool is `!= 0`, f64 to f32 rounds to nearest even,
    /// i64 to i32 wraps.
    Convert,
    /// Wraps an i32 to the values of u8.
    WrapU8,
    /// Operands (i64 key, i64 step, i64 element): the random word of [`philox`](super::philox) for
    /// that stream, as i32.
    Random {
        /// The stream, fixed when the op was traced.
        stream: u32,
    },
    /// Operands (bool): raises the kernel's check of that number in the status word when false; the
    /// result is the operand.
    Check(u32),
}

impl ScalarOp {
    /// The name used in text.
    pub const fn name(self) -> &'static str {
        match self {
            ScalarOp::Const(_) => "const",
            ScalarOp::Argument(_) => "argument",
            ScalarOp::Load(_) => "load",
            ScalarOp::Index(_) => "index",
            ScalarOp::Row(_) => "row",
            ScalarOp::Register(_) => "register",
            ScalarOp::Acc => "acc",
            ScalarOp::Add => "add",
            ScalarOp::Sub => "sub",
            ScalarOp::Mul => "mul",
            ScalarOp::MulAdd => "mul_add",
            ScalarOp::Div => "div",
            ScalarOp::Rem => "rem",
            ScalarOp::Max => "max",
            ScalarOp::Min => "min",
            ScalarOp::Neg => "neg",
            ScalarOp::Abs => "abs",
            ScalarOp::Sqrt => "sqrt",
            ScalarOp::Floor => "floor",
            ScalarOp::Call(function) => function.name(),
            ScalarOp::Round(_) => "round",
            ScalarOp::Cmp(cmp) => cmp.name(),
            ScalarOp::And => "and",
            ScalarOp::Or => "or",
            ScalarOp::Not => "not",
            ScalarOp::Select => "select",
            ScalarOp::Convert => "convert",
            ScalarOp::WrapU8 => "wrap_u8",
            ScalarOp::Random { .. } => "random",
            ScalarOp::Check(_) => "check",
        }
    }

    /// True if it computes a new number from numbers: the work that is counted as an operation.
    /// Moves, comparisons, conversions, signs and logic are not.
    pub const fn is_arithmetic(self) -> bool {
        match self {
            ScalarOp::Add
            | ScalarOp::Sub
            | ScalarOp::Mul
            | ScalarOp::MulAdd
            | ScalarOp::Div
            | ScalarOp::Rem
            | ScalarOp::Max
            | ScalarOp::Min
            | ScalarOp::Sqrt
            | ScalarOp::Floor
            | ScalarOp::Call(_) => true,
            ScalarOp::Const(_)
            | ScalarOp::Argument(_)
            | ScalarOp::Load(_)
            | ScalarOp::Index(_)
            | ScalarOp::Row(_)
            | ScalarOp::Register(_)
            | ScalarOp::Acc
            | ScalarOp::Neg
            | ScalarOp::Abs
            | ScalarOp::Round(_)
            | ScalarOp::Cmp(_)
            | ScalarOp::And
            | ScalarOp::Or
            | ScalarOp::Not
            | ScalarOp::Select
            | ScalarOp::Convert
            | ScalarOp::WrapU8
            | ScalarOp::Random { .. }
            | ScalarOp::Check(_) => false,
        }
    }
}

/// One instruction of a body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inst {
    /// What it does.
    pub op: ScalarOp,
    /// Results of earlier instructions of the same body.
    pub args: SmallVec<[Val; 3]>,
    /// The type of the result.
    pub ty: Scalar,
}

/// Straight-line code: instruction `i` defines value `i`.
#[derive(Default)]
pub struct Body {
    /// The instructions, operands before uses.
    pub insts: Vec<Inst>,
    /// The first place of each of the first `known` instructions, once there are too many to look
    /// through.
    places: FxHashMap<Inst, Val>,
    known: usize,
}

/// A body of fewer instructions is looked through from the start.
const FEW: usize = 32;

impl Body {
    /// Appends an instruction, or finds an equal one, and returns its value.
    pub fn push(&mut self, op: ScalarOp, args: &[Val], ty: Scalar) -> Val {
        let inst = Inst { op, args: SmallVec::from_slice(args), ty };
        if let Some(at) = self.find(&inst) {
            return at;
        }
        self.insts.push(inst);
        (self.insts.len() - 1) as Val
    }

    fn find(&mut self, inst: &Inst) -> Option<Val> {
        if self.insts.len() <= FEW {
            return self.insts.iter().position(|i| i == inst).map(|at| at as Val);
        }
        if self.known > self.insts.len() {
            (self.places, self.known) = (FxHashMap::default(), 0);
        }
        for (at, inst) in self.insts.iter().enumerate().skip(self.known) {
            self.places.entry(inst.clone()).or_insert(at as Val);
        }
        self.known = self.insts.len();
        self.places.get(inst).copied()
    }

    /// The type of a value.
    pub fn ty(&self, v: Val) -> Scalar {
        self.insts[v as usize].ty
    }

    /// A number, rounded to the type: floats take the value, integers truncate, bool is `!= 0`.
    pub fn constant(&mut self, ty: Scalar, v: f64) -> Val {
        self.push(ScalarOp::Const(ty.bits_of(v)), &[], ty)
    }

    /// An instruction of one operand with the operand's type.
    pub fn unary(&mut self, op: ScalarOp, x: Val) -> Val {
        let ty = self.ty(x);
        self.push(op, &[x], ty)
    }

    /// An instruction of two operands with the first operand's type.
    pub fn binary(&mut self, op: ScalarOp, x: Val, y: Val) -> Val {
        let ty = self.ty(x);
        self.push(op, &[x, y], ty)
    }

    /// A comparison.
    pub fn cmp(&mut self, cmp: Cmp, x: Val, y: Val) -> Val {
        self.push(ScalarOp::Cmp(cmp), &[x, y], Scalar::Bool)
    }

    /// `if c { x } else { y }`.
    pub fn select(&mut self, c: Val, x: Val, y: Val) -> Val {
        let ty = self.ty(x);
        self.push(ScalarOp::Select, &[c, x, y], ty)
    }

    /// The value in another scalar type; itself if it has that type.
    pub fn convert(&mut self, x: Val, ty: Scalar) -> Val {
        if self.ty(x) == ty { x } else { self.push(ScalarOp::Convert, &[x], ty) }
    }

    /// The nearest value of `dtype`, still in the scalar type that computes it: u8 is narrower than
    /// its scalar, nothing else is.
    pub fn saturated(&mut self, x: Val, dtype: DType) -> Val {
        if dtype != DType::U8 {
            return x;
        }
        let (low, high) =
            (self.constant(Scalar::I32, 0.0), self.constant(Scalar::I32, f64::from(u8::MAX)));
        let x = self.binary(ScalarOp::Max, x, low);
        self.binary(ScalarOp::Min, x, high)
    }

    /// The value as an element of `dtype` holds it, still in its scalar type: low-precision floats
    /// are rounded, u8 wraps.
    pub fn as_dtype(&mut self, x: Val, dtype: DType) -> Val {
        match dtype {
            _ if dtype.is_low() => self.unary(ScalarOp::Round(dtype), x),
            DType::U8 => self.unary(ScalarOp::WrapU8, x),
            _ => x,
        }
    }
}

impl From<Vec<Inst>> for Body {
    fn from(insts: Vec<Inst>) -> Self {
        Body { insts, ..Body::default() }
    }
}

impl Clone for Body {
    fn clone(&self) -> Self {
        Body::from(self.insts.clone())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("insts", &self.insts).finish()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.insts == other.insts
    }
}

impl Eq for Body {}

impl Hash for Body {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.insts.hash(state);
    }
}
