//! What a traced closure records beside the methods of its values: tensors made of numbers, state,
//! gradients, names of parts, errors.

use super::Trace;
use std::fmt::Display;
use std::ops::RangeBounds;
use tracecast_ir::{DType, Number, Size, TensorType, TraceError, Tracer, Var};

impl Trace {
    /// Zeros: [`torch.zeros`](https://docs.pytorch.org/docs/stable/generated/torch.zeros.html).
    ///
    /// ```
    /// use tracecast::prelude::*;
    ///
    /// let graph = trace("g", |t| {
    ///     let bias = t.zeros(TensorType::new(DType::F32, [4]));
    ///     let steps = t.arange(0.0, 4.0, 1.0, DType::F32);
    ///     t.output("y", bias + steps * 0.5);
    /// })?;
    /// assert!(graph.ports().is_empty(), "nothing comes from outside");
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    #[track_caller]
    pub fn zeros(&self, ty: TensorType) -> Var<'_> {
        self.called("zeros", || self.tracer().full(ty, 0.0))
    }

    /// Ones: [`torch.ones`](https://docs.pytorch.org/docs/stable/generated/torch.ones.html).
    #[track_caller]
    pub fn ones(&self, ty: TensorType) -> Var<'_> {
        self.called("ones", || self.tracer().full(ty, 1.0))
    }

    /// A tensor of equal numbers:
    /// [`torch.full`](https://docs.pytorch.org/docs/stable/generated/torch.full.html).
    #[track_caller]
    pub fn full(&self, ty: TensorType, value: f64) -> Var<'_> {
        self.called("full", || self.tracer().full(ty, value))
    }

    /// Records what is a function of that name to the user, at the line of the caller.
    #[track_caller]
    fn called<'t>(&self, name: &'static str, body: impl FnOnce() -> Var<'t>) -> Var<'t> {
        self.tracer().at_caller(|| self.tracer().called(name, None, body))
    }

    /// Zeros in the type of `x`.
    #[track_caller]
    pub fn zeros_like<'t>(&'t self, x: Var<'t>) -> Var<'t> {
        self.tracer().zeros_like(x)
    }

    /// Ones in the type of `x`.
    #[track_caller]
    pub fn ones_like<'t>(&'t self, x: Var<'t>) -> Var<'t> {
        self.tracer().ones_like(x)
    }

    /// A tensor of the given numbers in row-major order:
    /// [`torch.tensor`](https://docs.pytorch.org/docs/stable/generated/torch.tensor.html).
    #[track_caller]
    pub fn constant(&self, dtype: DType, shape: &[usize], data: &[f64]) -> Var<'_> {
        self.tracer().constant(dtype, shape, data)
    }

    /// A number as a tensor without axes in f64, for bounds that may be tensors.
    #[track_caller]
    pub fn scalar(&self, number: f64) -> Var<'_> {
        self.tracer().scalar(number)
    }

    /// A size, or a number that depends on one, as a tensor without axes: see
    /// [`Tracer::number`](tracecast_ir::Tracer::number).
    #[track_caller]
    pub fn number(&self, number: impl Into<Number>, dtype: DType) -> Var<'_> {
        self.tracer().number(number, dtype)
    }

    /// `start`, `start + step` and so on, up to and without `end`:
    /// [`torch.arange`](https://docs.pytorch.org/docs/stable/generated/torch.arange.html).
    #[track_caller]
    pub fn arange(&self, start: f64, end: f64, step: f64, dtype: DType) -> Var<'_> {
        self.tracer().arange(start, end, step, dtype)
    }

    /// `steps` numbers from `start` to and with `end`:
    /// [`torch.linspace`](https://docs.pytorch.org/docs/stable/generated/torch.linspace.html).
    #[track_caller]
    pub fn linspace(&self, start: f64, end: f64, steps: i64, dtype: DType) -> Var<'_> {
        let [start, end] = [start, end].map(|number| self.scalar(number));
        self.tracer().linspace(start, end, steps, dtype)
    }

    /// Ones on the diagonal of a matrix:
    /// [`torch.eye`](https://docs.pytorch.org/docs/stable/generated/torch.eye.html).
    #[track_caller]
    pub fn eye(&self, rows: i64, columns: i64, dtype: DType) -> Var<'_> {
        self.tracer().eye(rows, columns, dtype)
    }

    /// The size of that name, which is 0 or more; see
    /// [`Tracer::size_in`](tracecast_ir::Tracer::size_in).
    #[track_caller]
    pub fn size(&self, name: &str) -> Size {
        self.tracer().size(name)
    }

    /// The size of that name, which lies within these bounds; see
    /// [`Tracer::size_in`](tracecast_ir::Tracer::size_in).
    #[track_caller]
    pub fn size_in(&self, name: &str, bounds: impl RangeBounds<i64>) -> Size {
        self.tracer().size_in(name, bounds)
    }

    /// The size of that name within these bounds, in a program that is traced with a value of it.
    #[track_caller]
    pub fn size_at(&self, name: &str, bounds: impl RangeBounds<i64>, traced: i64) -> Size {
        self.tracer().size_at(name, bounds, traced)
    }

    /// Gives a state or parameter its next value, which is stored when a run of the program has
    /// succeeded.
    #[track_caller]
    pub fn update(&self, state: Var<'_>, next: Var<'_>) {
        self.tracer().update(state, next);
    }

    /// The gradients of `loss`, one number, with respect to each of `wrt`.
    #[track_caller]
    pub fn grad<'t>(&'t self, loss: Var<'t>, wrt: &[Var<'t>]) -> Vec<Var<'t>> {
        self.tracer().grad(loss, wrt)
    }

    /// Records what `body` does under the name of a part of the program, which reports show.
    pub fn scope<R>(&self, name: &str, body: impl FnOnce() -> R) -> R {
        self.tracer().scope(name, body)
    }

    /// Refuses the program: compilation gives this error, with the line of the caller. The value
    /// stands for what could not be made.
    #[track_caller]
    pub fn fail(&self, op: impl Display, message: impl Into<String>) -> Var<'_> {
        self.tracer().fail(op, message)
    }

    /// The first op that could not be recorded, if there is one.
    pub fn error(&self) -> Option<TraceError> {
        self.tracer().error()
    }
}

impl AsRef<Tracer> for Trace {
    fn as_ref(&self) -> &Tracer {
        self.tracer()
    }
}
