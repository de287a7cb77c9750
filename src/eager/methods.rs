//! Methods and operators of eager tensors: `x.relu()`, `&x * &y`, `2.0 - &x`.
//!
//! None of them returns a `Result`: what fails gives a tensor without a value, which hands the
//! error on, and [`to_host`](DeviceTensor::to_host) and [`check`](DeviceTensor::check) tell it.

use crate::eager::DeviceTensor;
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};
use std::panic::Location;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Source, Var};

impl DeviceTensor {
    /// What a function makes of it, such as `x.map(|x| x.softmax(-1).log())`: one program, compiled
    /// once. With several tensors see [`Eager::call`](crate::eager::Eager::call).
    ///
    /// ```
    /// use tracecast::eager::Eager;
    /// use tracecast::prelude::*;
    ///
    /// let eager = Eager::new(Options::new().device("reference"))?;
    /// let x = eager.tensor(Tensor::from([1.0f32, -2.0]));
    /// let y = &x.relu() * &x + 1.0;
    /// assert_eq!(y.to_host()?.to_vec::<f32>()?, [2.0, 1.0]);
    /// assert_eq!(x.map(|x| x.cumsum(0)).to_host()?.to_vec::<f32>()?, [1.0, -1.0]);
    ///
    /// // An error is told where the value is asked for.
    /// let wrong = (&x + &eager.tensor(Tensor::from([1.0f32, 2.0, 3.0]))).exp();
    /// assert!(wrong.to_host().unwrap_err().to_string().contains("do not broadcast"));
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    #[must_use]
    pub fn map(&self, body: impl for<'t> FnOnce(Var<'t>) -> Var<'t>) -> DeviceTensor {
        self.made(&[self], |x| body(x[0]))
    }

    /// What a function makes of it and another tensor.
    #[must_use]
    pub fn with(
        &self,
        other: &DeviceTensor,
        body: impl for<'t> FnOnce(Var<'t>, Var<'t>) -> Var<'t>,
    ) -> DeviceTensor {
        self.made(&[self, other], |x| body(x[0], x[1]))
    }

    /// The op of a method, recorded at the line that calls it.
    #[track_caller]
    fn op(&self, body: impl for<'t> FnOnce(Var<'t>) -> Var<'t>) -> DeviceTensor {
        let line = Source::Rust(Location::caller());
        self.map(|x| x.tracer().at(line, || body(x)))
    }

    /// The same of two tensors.
    #[track_caller]
    fn op_with(
        &self,
        other: &DeviceTensor,
        body: impl for<'t> FnOnce(Var<'t>, Var<'t>) -> Var<'t>,
    ) -> DeviceTensor {
        let line = Source::Rust(Location::caller());
        self.with(other, |x, other| x.tracer().at(line, || body(x, other)))
    }

    fn made(
        &self,
        operands: &[&DeviceTensor],
        body: impl for<'t> FnOnce(&[Var<'t>]) -> Var<'t>,
    ) -> DeviceTensor {
        let made = self.eager().call(operands, |_, x| vec![body(x)]);
        let made = made.and_then(|made| {
            let none = || crate::Error::Tensor("an op gave no result".to_owned());
            made.into_iter().next().ok_or_else(none)
        });
        made.unwrap_or_else(|error| DeviceTensor::failed(self.eager().clone(), error))
    }
}

/// Ops of one tensor.
macro_rules! of_one {
    ($($name:ident),+ $(,)?) => {
        impl DeviceTensor {$(
            #[doc = concat!("The op `", stringify!($name), "`.")]
            #[must_use]
            #[track_caller]
            pub fn $name(&self) -> DeviceTensor {
                self.op(|x| x.$name())
            }
        )+}
    };
}

of_one!(
    abs, exp, log, sqrt, rsqrt, reciprocal, sin, cos, tanh, floor, ceil, round, erf, relu, sigmoid,
    silu, t,
);

/// Ops of two tensors.
macro_rules! of_two {
    ($($name:ident),+ $(,)?) => {
        impl DeviceTensor {$(
            #[doc = concat!("The op `", stringify!($name), "`.")]
            #[must_use]
            #[track_caller]
            pub fn $name(&self, other: &DeviceTensor) -> DeviceTensor {
                self.op_with(other, |x, other| x.$name(other))
            }
        )+}
    };
}

of_two!(matmul, maximum, minimum, eq, ne, lt, le, gt, ge);

/// Reductions, along axes as in [`Reductions`]: `()` for all.
macro_rules! reductions {
    ($($name:ident),+ $(,)?) => {
        impl DeviceTensor {$(
            #[doc = concat!("The op `", stringify!($name), "`.")]
            #[must_use]
            #[track_caller]
            pub fn $name(&self, dims: impl IntoDims) -> DeviceTensor {
                self.op(|x| x.$name(dims))
            }
        )+}
    };
}

reductions!(sum, mean, amax, amin);

impl DeviceTensor {
    /// Exponentials along an axis, divided by their sum.
    #[must_use]
    #[track_caller]
    pub fn softmax(&self, dim: i64) -> DeviceTensor {
        self.op(|x| x.softmax(dim))
    }

    /// In another dtype.
    #[must_use]
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> DeviceTensor {
        self.op(|x| x.cast(dtype))
    }

    /// The elements under another shape; one size may be -1.
    #[must_use]
    #[track_caller]
    pub fn reshape(&self, sizes: &[i64]) -> DeviceTensor {
        self.op(|x| x.reshape(sizes))
    }
}

/// An operator between tensors, owned or lent, and numbers.
macro_rules! operators {
    ($($trait:ident $method:ident $sign:tt),+) => { $(
        impl $trait<&DeviceTensor> for &DeviceTensor {
            type Output = DeviceTensor;

            #[track_caller]
            fn $method(self, other: &DeviceTensor) -> DeviceTensor {
                self.op_with(other, |x, other| x $sign other)
            }
        }

        impl $trait<DeviceTensor> for DeviceTensor {
            type Output = DeviceTensor;

            #[track_caller]
            fn $method(self, other: DeviceTensor) -> DeviceTensor {
                &self $sign &other
            }
        }

        impl $trait<&DeviceTensor> for DeviceTensor {
            type Output = DeviceTensor;

            #[track_caller]
            fn $method(self, other: &DeviceTensor) -> DeviceTensor {
                &self $sign other
            }
        }

        impl $trait<DeviceTensor> for &DeviceTensor {
            type Output = DeviceTensor;

            #[track_caller]
            fn $method(self, other: DeviceTensor) -> DeviceTensor {
                self $sign &other
            }
        }

        impl $trait<f64> for &DeviceTensor {
            type Output = DeviceTensor;

            #[track_caller]
            fn $method(self, number: f64) -> DeviceTensor {
                self.op(|x| x $sign number)
            }
        }

        impl $trait<f64> for DeviceTensor {
            type Output = DeviceTensor;

            #[track_caller]
            fn $method(self, number: f64) -> DeviceTensor {
                &self $sign number
            }
        }

        impl $trait<&DeviceTensor> for f64 {
            type Output = DeviceTensor;

            #[track_caller]
            fn $method(self, x: &DeviceTensor) -> DeviceTensor {
                x.map(|x| self $sign x)
            }
        }
    )+ };
}

operators!(Add add +, Sub sub -, Mul mul *, Div div /, Rem rem %);

impl Neg for &DeviceTensor {
    type Output = DeviceTensor;

    #[track_caller]
    fn neg(self) -> DeviceTensor {
        self.op(|x| -x)
    }
}
