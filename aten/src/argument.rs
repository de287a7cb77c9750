//! [`Argument`]: what is given for an argument of a call, and its conversion to what the tracer
//! takes.

use std::convert::Infallible;
use tracecast_ir::eval::Value;
use tracecast_ir::{
    Attrs, DType, Number, OperandOf, Size, SmallVec, TensorType, Tracer, Var, given,
};

/// What is given for an argument; `T` is what a tensor is.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument<T> {
    /// Nothing.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A size that depends on names.
    Size(Size),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(String),
    /// A dtype.
    DType(DType),
    /// A tensor.
    Tensor(T),
    /// Several of these.
    List(Vec<Argument<T>>),
    /// A device, a layout, a memory format or a generator.
    Place,
}

impl<T> Argument<T> {
    /// The same with each tensor replaced.
    ///
    /// # Errors
    /// The first error of `tensor`.
    pub fn map<U, E>(&self, tensor: &mut impl FnMut(&T) -> Result<U, E>) -> Result<Argument<U>, E> {
        Ok(match self {
            Argument::None => Argument::None,
            Argument::Bool(b) => Argument::Bool(*b),
            Argument::Int(n) => Argument::Int(*n),
            Argument::Size(size) => Argument::Size(*size),
            Argument::Float(v) => Argument::Float(*v),
            Argument::Text(text) => Argument::Text(text.clone()),
            Argument::DType(dtype) => Argument::DType(*dtype),
            Argument::Tensor(t) => Argument::Tensor(tensor(t)?),
            Argument::List(list) => {
                Argument::List(list.iter().map(|one| one.map(tensor)).collect::<Result<_, E>>()?)
            }
            Argument::Place => Argument::Place,
        })
    }

    /// Whether it says the same as a default.
    pub(crate) fn is_default(&self, default: &Argument<Infallible>) -> bool {
        match (self, default) {
            (Argument::None, Argument::None) => true,
            (Argument::Bool(a), Argument::Bool(b)) => a == b,
            (Argument::Text(a), Argument::Text(b)) => a == b,
            (Argument::List(a), Argument::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_default(b))
            }
            (Argument::Int(a), Argument::Int(b)) => a == b,
            (Argument::Float(a), Argument::Float(b)) => a == b,
            (Argument::Float(v), Argument::Int(n)) | (Argument::Int(n), Argument::Float(v)) => {
                *v == *n as f64
            }
            _ => false,
        }
    }

    /// What it is, for messages.
    pub fn describe(&self, tensor: &impl Fn(&T) -> String) -> String {
        match self {
            Argument::None => "None".to_owned(),
            Argument::Bool(b) => b.to_string(),
            Argument::Int(n) => n.to_string(),
            Argument::Size(size) => size.to_string(),
            Argument::Float(v) => format!("{v:?}"),
            Argument::Text(text) => format!("{text:?}"),
            Argument::DType(dtype) => dtype.to_string(),
            Argument::Tensor(t) => tensor(t),
            Argument::List(list) => {
                let list: Vec<String> = list.iter().map(|one| one.describe(tensor)).collect();
                format!("[{}]", list.join(", "))
            }
            Argument::Place => "a place".to_owned(),
        }
    }
}

impl Argument<Infallible> {
    /// The same among arguments that may be tensors.
    pub fn plain<T>(&self) -> Argument<T> {
        let Ok(argument) =
            self.map(&mut |never: &Infallible| -> Result<T, Infallible> { match *never {} });
        argument
    }
}

/// A tensor, or a number in its place.
#[derive(Clone, Copy)]
pub(crate) enum Operand<'t> {
    Tensor(Var<'t>),
    Int(i64),
    Size(Size),
    Float(f64),
}

impl<'t> Operand<'t> {
    /// As a tensor: a number has the dtype that PyTorch gives it beside `x`.
    pub(crate) fn beside(self, x: Var<'t>) -> Var<'t> {
        match self {
            Operand::Tensor(y) => y,
            Operand::Int(n) => x.beside(n as f64).1,
            Operand::Size(size) => x.tracer().number(size, DType::I64),
            Operand::Float(v) => x.beside(v).1,
        }
    }
}

impl<'t> Operand<'t> {
    /// The same for a dtype that a region has made narrower than it was in Python. The extreme of a
    /// wider dtype, which Python has from `finfo`, is the extreme of this one; another number
    /// beyond it is the infinity of its sign.
    pub(crate) fn within(self, dtype: DType) -> Self {
        let (Operand::Float(v), Some(float)) = (self, dtype.storage().float) else { return self };
        let wider = [DType::F16, DType::F32, DType::F64]
            .into_iter()
            .filter_map(|dtype| dtype.storage().float);
        let is_extreme = wider.map(|wider| wider.largest()).any(|largest| largest == v.abs());
        if v.abs() <= float.largest() {
            self
        } else if is_extreme {
            Operand::Float(float.largest().copysign(v))
        } else {
            let held =
                Value::from_f64s(TensorType::scalar(dtype), &[v]).map(|value| value.to_f64s());
            held.ok().and_then(|held| held.first().copied()).map_or(self, Operand::Float)
        }
    }

    /// The size that it is, if it is an integer.
    pub(crate) fn size(self) -> Option<Size> {
        match self {
            Operand::Int(n) => Some(Size::from(n)),
            Operand::Size(size) => Some(size),
            _ => None,
        }
    }

    /// The number that it is; a size is pinned.
    pub(crate) fn number(self, t: &Tracer) -> Option<f64> {
        match self {
            Operand::Tensor(_) => None,
            Operand::Int(n) => Some(n as f64),
            Operand::Size(size) => Some(size.pin(t) as f64),
            Operand::Float(v) => Some(v),
        }
    }
}

impl<'t> OperandOf<'t, given::OrNumber> for Operand<'t> {
    fn append(self, to: &mut SmallVec<[Var<'t>; 4]>, attrs: &mut Attrs) -> u16 {
        match self {
            Operand::Tensor(y) => OperandOf::<given::OrNumber>::append(y, to, attrs),
            Operand::Int(n) => n.append(to, attrs),
            Operand::Size(size) => Number::Size(size).append(to, attrs),
            Operand::Float(v) => v.append(to, attrs),
        }
    }
}

/// What an argument converts to.
pub(crate) trait FromArgument<'t>: Sized {
    /// What is expected, for messages.
    const EXPECTED: &'static str;

    /// The conversion; `None` if it is something else.
    fn read(argument: &Argument<Var<'t>>, t: &'t Tracer) -> Option<Self>;
}

macro_rules! converts {
    ($($ty:ty = $expected:literal: |$argument:ident, $t:ident| $value:expr;)+) => { $(
        impl<'t> FromArgument<'t> for $ty {
            const EXPECTED: &'static str = $expected;

            fn read($argument: &Argument<Var<'t>>, $t: &'t Tracer) -> Option<Self> {
                $value
            }
        }
    )+ };
}

converts! {
    Var<'t> = "a tensor": |argument, t| Some(match argument {
        Argument::Tensor(x) => *x,
        Argument::Bool(b) => t.full(TensorType::scalar(DType::Bool), f64::from(u8::from(*b))),
        Argument::Int(n) => t.full(TensorType::scalar(DType::I64), *n as f64),
        Argument::Size(size) => t.number(*size, DType::I64),
        Argument::Float(v) => t.full(TensorType::scalar(DType::F32), *v),
        _ => return None,
    });
    Operand<'t> = "a tensor or a number": |argument, _t| Some(match argument {
        Argument::Tensor(x) => Operand::Tensor(*x),
        Argument::Bool(b) => Operand::Int(i64::from(*b)),
        Argument::Int(n) => Operand::Int(*n),
        Argument::Size(size) => Operand::Size(*size),
        Argument::Float(v) => Operand::Float(*v),
        _ => return None,
    });
    i64 = "an integer": |argument, t| match argument {
        Argument::Int(n) => Some(*n),
        Argument::Size(size) => i64::try_from(size.pin(t)).ok(),
        _ => None,
    };
    Size = "a size": |argument, _t| match argument {
        Argument::Int(n) => Some(Size::from(*n)),
        Argument::Size(size) => Some(*size),
        _ => None,
    };
    f64 = "a number": |argument, t| match argument {
        Argument::Bool(b) => Some(f64::from(u8::from(*b))),
        Argument::Int(n) => Some(*n as f64),
        Argument::Float(v) => Some(*v),
        Argument::Size(size) => Some(size.pin(t) as f64),
        _ => None,
    };
    bool = "true or false": |argument, _t| match argument {
        Argument::Bool(b) => Some(*b),
        _ => None,
    };
    String = "a text": |argument, _t| match argument {
        Argument::Text(text) => Some(text.clone()),
        _ => None,
    };
    DType = "a dtype": |argument, _t| match argument {
        Argument::DType(dtype) => Some(*dtype),
        // The number by which defaults of schemas name it.
        Argument::Int(4) => Some(DType::I64),
        _ => None,
    };
}

impl<'t> FromArgument<'t> for Argument<Var<'t>> {
    const EXPECTED: &'static str = "anything";

    fn read(argument: &Argument<Var<'t>>, _: &'t Tracer) -> Option<Self> {
        Some(argument.clone())
    }
}

/// An argument that the results do not depend on.
pub(crate) struct Any;

impl<'t> FromArgument<'t> for Any {
    const EXPECTED: &'static str = "anything";

    fn read(_: &Argument<Var<'t>>, _: &'t Tracer) -> Option<Self> {
        Some(Any)
    }
}

impl<'t, A: FromArgument<'t>> FromArgument<'t> for Option<A> {
    const EXPECTED: &'static str = A::EXPECTED;

    fn read(argument: &Argument<Var<'t>>, t: &'t Tracer) -> Option<Self> {
        match argument {
            Argument::None => Some(None),
            given => A::read(given, t).map(Some),
        }
    }
}

/// One in the place of a list stands for all of them.
impl<'t, A: FromArgument<'t>> FromArgument<'t> for Vec<A> {
    const EXPECTED: &'static str = A::EXPECTED;

    fn read(argument: &Argument<Var<'t>>, t: &'t Tracer) -> Option<Self> {
        match argument {
            Argument::List(list) => list.iter().map(|one| A::read(one, t)).collect(),
            Argument::None => None,
            one => A::read(one, t).map(|one| vec![one]),
        }
    }
}

/// What the function of an entry gives.
pub(crate) trait Results<'t> {
    /// All of it, in order.
    fn all(self) -> Vec<Argument<Var<'t>>>;
}

impl<'t> Results<'t> for Var<'t> {
    fn all(self) -> Vec<Argument<Var<'t>>> {
        vec![Argument::Tensor(self)]
    }
}

impl<'t> Results<'t> for (Var<'t>, Var<'t>) {
    fn all(self) -> Vec<Argument<Var<'t>>> {
        vec![Argument::Tensor(self.0), Argument::Tensor(self.1)]
    }
}

impl<'t> Results<'t> for Vec<Var<'t>> {
    fn all(self) -> Vec<Argument<Var<'t>>> {
        self.into_iter().map(Argument::Tensor).collect()
    }
}

impl<'t, const N: usize> Results<'t> for [Var<'t>; N] {
    fn all(self) -> Vec<Argument<Var<'t>>> {
        self.into_iter().map(Argument::Tensor).collect()
    }
}

impl<'t> Results<'t> for SmallVec<[Var<'t>; 1]> {
    fn all(self) -> Vec<Argument<Var<'t>>> {
        self.into_iter().map(Argument::Tensor).collect()
    }
}

impl<'t> Results<'t> for Size {
    fn all(self) -> Vec<Argument<Var<'t>>> {
        vec![self.number().map_or(Argument::Size(self), Argument::Int)]
    }
}

impl<'t> Results<'t> for () {
    fn all(self) -> Vec<Argument<Var<'t>>> {
        Vec::new()
    }
}
