//! One step of a recurrent layer, and the cells that are this step alone: [`RnnCell`], [`GruCell`]
//! and [`LstmCell`].

use crate::nn::linear::within;
use crate::nn::{Context, Layer, Values};
use crate::setters::setters;
use tracecast_ir::functions::{Carried as State, Cell, Recurrent};
use tracecast_ir::{DType, Size, TensorType, Var};

/// The function that a plain recurrent layer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nonlinearity {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// Zero below zero.
    Relu,
}

impl From<Nonlinearity> for Cell {
    fn from(nonlinearity: Nonlinearity) -> Cell {
        match nonlinearity {
            Nonlinearity::Tanh => Cell::Tanh,
            Nonlinearity::Relu => Cell::Relu,
        }
    }
}

/// What a recurrent layer takes: its input, and the state before the first step, zeros if it is
/// absent. Made of the input alone, or of a pair of both.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'t, S> {
    /// The input.
    pub x: Var<'t>,
    /// The state before the first step.
    pub state: Option<S>,
}

impl<'t, S> From<Var<'t>> for Steps<'t, S> {
    fn from(x: Var<'t>) -> Self {
        Steps { x, state: None }
    }
}

impl<'t, S> From<(Var<'t>, S)> for Steps<'t, S> {
    fn from((x, state): (Var<'t>, S)) -> Self {
        Steps { x, state: Some(state) }
    }
}

impl<'t, S> Values<'t> for Steps<'t, S> {
    fn unknown(cx: &Context<'t>) -> Self {
        Steps { x: Var::unknown(cx), state: None }
    }
}

/// Sizes of the parameters of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) inputs: usize,
    pub(super) hidden: usize,
    /// What the state is projected to, if it is.
    pub(super) proj: Option<usize>,
    pub(super) bias: bool,
    pub(super) dtype: DType,
}

/// A step with its parameters.
pub(super) struct Step<'t> {
    recurrent: Recurrent<'t>,
    hidden: usize,
    is_lstm: bool,
}

impl<'t> Step<'t> {
    /// The parameters of the step, whose names end with `suffix`.
    pub(super) fn new(cx: &Context<'t>, cell: Cell, sizes: Sizes, suffix: &str) -> Self {
        let Sizes { inputs, hidden, proj, bias, dtype } = sizes;
        let rows = cell.gates() * hidden;
        let one = |name: &str, shape: &[usize]| {
            let ty = TensorType::new(dtype, shape);
            cx.parameter(&format!("{name}{suffix}"), ty, within(hidden))
        };
        let ih = one("weight_ih", &[rows, inputs]);
        let hh = one("weight_hh", &[rows, proj.unwrap_or(hidden)]);
        let biases = ["bias_ih", "bias_hh"].map(|name| bias.then(|| one(name, &[rows])));
        let hr = proj.map(|proj| one("weight_hr", &[proj, hidden]));
        let recurrent = cx.here(|| Recurrent::new(cell, [ih, hh], biases, hr));
        Step { recurrent, hidden, is_lstm: cell == Cell::Lstm }
    }

    /// The step itself.
    pub(super) fn recurrent(&self) -> &Recurrent<'t> {
        &self.recurrent
    }

    /// The state before the first step, of zeros, for an input of this shape but for its last axis.
    pub(super) fn zeros(&self, x: Var<'t>, outer: &[Size]) -> State<'t> {
        let hh = self.recurrent.hh();
        let width = |n: Size| outer.iter().copied().chain([n]).collect();
        let zeros = |n| x.tracer().full(TensorType { dtype: x.dtype(), shape: width(n) }, 0.0);
        State { h: zeros(hh.size(1)), c: self.is_lstm.then(|| zeros(Size::from(self.hidden))) }
    }
}

/// Cells: the name, the kind, what the state is and what comes out.
macro_rules! cells {
    ($($(#[$doc:meta])* $name:ident $({ $field:ident: $ty:ty = $absent:expr })? as $kind:expr,
        $state:ty, |$given:ident| $before:expr, |$after:ident| $out:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            inputs: usize,
            hidden: usize,
            bias: bool,
            dtype: DType,
            $($field: $ty,)?
        }

        impl $name {
            /// From `inputs` numbers to a state of `hidden` numbers, in f32, with biases.
            pub fn new(inputs: usize, hidden: usize) -> Self {
                $name { inputs, hidden, bias: true, dtype: DType::F32, $($field: $absent,)? }
            }

            setters! {
                /// Without biases.
                without_bias() => bias = false;
                /// With parameters of another dtype.
                dtype(dtype: DType) => dtype = dtype;
                $(/// With another function of the gates than `tanh`.
                $field($field: $ty) => $field = $field;)?
            }
        }

        impl Layer for $name {
            type Input<'t> = Steps<'t, $state>;
            type Output<'t> = $state;

            fn forward<'t>(&self, cx: &Context<'t>, input: Steps<'t, $state>) -> $state {
                $(let $field = self.$field;)?
                let &$name { inputs, hidden, bias, dtype, .. } = self;
                let sizes = Sizes { inputs, hidden, proj: None, bias, dtype };
                let step = Step::new(cx, $kind, sizes, "");
                let $given = input.state;
                let $after = cx.here(|| one_step(stringify!($name), &step, sizes, input.x, $before));
                $out
            }
        }
    )*};
}

cells! {
    /// A step of [`Rnn`](super::Rnn):
    /// [`torch.nn.RNNCell`](https://docs.pytorch.org/docs/stable/generated/torch.nn.RNNCell.html).
    ///
    /// It takes `x`, `[N, inputs]` or `[inputs]`, and the state, `[N, hidden]` or `[hidden]`, zeros
    /// if absent; it gives the next state. Its parameters are `weight_ih: [hidden, inputs]`,
    /// `weight_hh: [hidden, hidden]`, `bias_ih` and `bias_hh: [hidden]`, and start evenly
    /// distributed within `1 / sqrt(hidden)` of zero.
    RnnCell { nonlinearity: Nonlinearity = Nonlinearity::Tanh } as nonlinearity.into(), Var<'t>,
        |given| given.map(|h| State { h, c: None }), |after| after.h;
    /// A step of [`Gru`](super::Gru):
    /// [`torch.nn.GRUCell`](https://docs.pytorch.org/docs/stable/generated/torch.nn.GRUCell.html).
    ///
    /// As [`RnnCell`], with the three gates reset, update and new one after the other: `weight_ih`
    /// is `[3 · hidden, inputs]`.
    GruCell as Cell::Gru, Var<'t>, |given| given.map(|h| State { h, c: None }), |after| after.h;
    /// A step of [`Lstm`](super::Lstm):
    /// [`torch.nn.LSTMCell`](https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTMCell.html).
    ///
    /// As [`RnnCell`], with the four gates input, forget, cell and output one after the other:
    /// `weight_ih` is `[4 · hidden, inputs]`. The state is a pair: what it gives out and what it
    /// remembers.
    ///
    /// ```
    /// use tracecast::nn::{Context, Layer, LstmCell};
    /// use tracecast::prelude::*;
    ///
    /// let cell = LstmCell::new(8, 16);
    /// let mut store = Store::new();
    /// cell.init(&mut store, 0)?;
    /// let step = jit(Options::new(), move |t| {
    ///     let (h, c) = cell.forward(&Context::evaluation(t), t.input("x").into());
    ///     t.output("h", h);
    ///     t.output("c", c);
    /// });
    /// let x = Tensor::new([2, 8], &[0.5f32; 16])?;
    /// assert_eq!(step.run(&mut store, &[("x", &x)])?["c"].shape()[..], [2, 16]);
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    LstmCell as Cell::Lstm, (Var<'t>, Var<'t>),
        |given| given.map(|(h, c)| State { h, c: Some(c) }), |after| (after.h, after.c.unwrap_or(after.h));
}

/// The state behind one step.
fn one_step<'t>(
    name: &str,
    step: &Step<'t>,
    sizes: Sizes,
    x: Var<'t>,
    given: Option<State<'t>>,
) -> State<'t> {
    if x.is_poison() {
        return State { h: x, c: Some(x) };
    }
    let shape = x.shape();
    let inputs = Size::from(sizes.inputs);
    let (Some(last), 1 | 2) = (shape.last(), shape.rank()) else {
        return failed(name, x, format!("takes [N, {inputs}] or [{inputs}], found {}", x.ty()));
    };
    if *last != inputs {
        return failed(
            name,
            x,
            format!("takes {inputs} numbers for each example, found {}", x.ty()),
        );
    }
    let zeros = step.zeros(x, &shape[..shape.rank() - 1]);
    let state = given.unwrap_or(zeros);
    if let Some(wrong) = wrong_state(state, zeros) {
        return failed(name, x, wrong);
    }
    step.recurrent().step(x, state.in_dtype_of(zeros))
}

/// In what a state differs from what it has to be.
fn wrong_state<'t>(state: State<'t>, wanted: State<'t>) -> Option<String> {
    let pairs = [(Some(state.h), Some(wanted.h)), (state.c, wanted.c)];
    let wrong = pairs.into_iter().find_map(|(given, wanted)| {
        let (given, wanted) = (given?, wanted?);
        // Under autocast a state comes back in the low dtype.
        let fits = given.shape() == wanted.shape() && given.dtype().is_float();
        (!given.is_poison() && !fits).then_some((given, wanted))
    });
    wrong.map(|(given, wanted)| format!("the state is {}, expected {}", given.ty(), wanted.ty()))
}

/// The state of values that a failed op stands for.
fn failed<'t>(name: &str, x: Var<'t>, why: String) -> State<'t> {
    let failed = x.tracer().fail(name, why);
    State { h: failed, c: Some(failed) }
}
