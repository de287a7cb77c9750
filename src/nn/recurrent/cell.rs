//! One step of a recurrent layer, and the cells that are this step alone: [`RnnCell`], [`GruCell`] and [`LstmCell`].

use super::{Nonlinearity, Steps};
use crate::nn::linear::within;
use crate::nn::{Context, Layer};
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::linalg::Products;
use tracecast_ir::{DType, Size, TensorType, Var};

/// What is computed from the gates of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rnn(Nonlinearity),
    Gru,
    Lstm,
}

impl Kind {
    /// How many gates a step has, each as wide as the state.
    pub(super) fn gates(self) -> usize {
        match self {
            Kind::Rnn(_) => 1,
            Kind::Gru => 3,
            Kind::Lstm => 4,
        }
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

/// What is carried from step to step.
#[derive(Clone, Copy)]
pub(super) struct State<'t> {
    /// The last result, `[N, hidden]` or what it is projected to.
    pub(super) h: Var<'t>,
    /// What a long short-term memory remembers, `[N, hidden]`.
    pub(super) c: Option<Var<'t>>,
}

impl State<'_> {
    /// The same in the dtypes of another one.
    pub(super) fn in_dtype_of(self, other: Self) -> Self {
        let h = self.h.to(other.h.dtype());
        let c = self.c.zip(other.c).map(|(c, like)| c.to(like.dtype()));
        State { h, c: c.or(self.c) }
    }
}

/// A step with its parameters.
pub(super) struct Step<'t> {
    kind: Kind,
    hidden: i64,
    ih: Var<'t>,
    hh: Var<'t>,
    /// Added to what comes from the input and to what comes from the state.
    biases: [Option<Var<'t>>; 2],
    hr: Option<Var<'t>>,
}

impl<'t> Step<'t> {
    /// The parameters of the step, whose names end with `suffix`.
    pub(super) fn new(cx: &Context<'t>, kind: Kind, sizes: Sizes, suffix: &str) -> Self {
        let Sizes { inputs, hidden, proj, bias, dtype } = sizes;
        let rows = kind.gates() * hidden;
        let one = |name: &str, shape: &[usize]| {
            let ty = TensorType::new(dtype, shape);
            cx.parameter(&format!("{name}{suffix}"), ty, within(hidden))
        };
        let ih = one("weight_ih", &[rows, inputs]);
        let hh = one("weight_hh", &[rows, proj.unwrap_or(hidden)]);
        let [from_x, from_h] = ["bias_ih", "bias_hh"].map(|name| bias.then(|| one(name, &[rows])));
        // What is added to one sum anyway is added to it once. A GRU multiplies what comes from its state.
        let biases = match (kind, from_x, from_h) {
            (Kind::Rnn(_) | Kind::Lstm, Some(x), Some(h)) => [Some(cx.here(|| x + h)), None],
            (_, x, h) => [x, h],
        };
        let hr = proj.map(|proj| one("weight_hr", &[proj, hidden]));
        let hidden = i64::try_from(hidden).unwrap_or(i64::MAX);
        Step { kind, hidden, ih, hh, biases, hr }
    }

    /// What the input of one step, or of several, contributes to the gates.
    pub(super) fn gates_of(&self, x: Var<'t>) -> Var<'t> {
        x.linear(self.ih, self.biases[0])
    }

    /// The state after a step, from what its input contributes to the gates.
    pub(super) fn next(&self, gates: Var<'t>, state: State<'t>) -> State<'t> {
        let from_h = state.h.linear(self.hh, self.biases[1]);
        match self.kind {
            Kind::Rnn(Nonlinearity::Tanh) => State { h: (gates + from_h).tanh(), c: None },
            Kind::Rnn(Nonlinearity::Relu) => State { h: (gates + from_h).relu(), c: None },
            Kind::Gru => {
                let [gates, from_h] = [gates, from_h].map(|all| self.apart(all));
                let gate = |of: Var<'t>, i: i64| of.select(-2, i);
                let reset = (gate(gates, 0) + gate(from_h, 0)).sigmoid();
                let keep = (gate(gates, 1) + gate(from_h, 1)).sigmoid();
                let new = (gate(gates, 2) + reset * gate(from_h, 2)).tanh();
                State { h: new + keep * (state.h - new), c: None }
            }
            Kind::Lstm => {
                let all = self.apart(gates + from_h);
                let [i, f, o] = [0, 1, 3].map(|at| all.select(-2, at).sigmoid());
                let new = i * all.select(-2, 2).tanh();
                let c = state.c.map_or(new, |c| f * c + new);
                let h = o * c.tanh();
                State { h: self.hr.map_or(h, |hr| h.linear(hr, None)), c: Some(c) }
            }
        }
    }

    /// The gates along an axis of their own: what belongs to one of them is rows in gradients, too, and no part of a row.
    fn apart(&self, all: Var<'t>) -> Var<'t> {
        let gates = i64::try_from(self.kind.gates()).unwrap_or(i64::MAX);
        all.unflatten(-1, &[gates, self.hidden])
    }

    /// The state before the first step, of zeros, for an input of this shape but for its last axis.
    pub(super) fn zeros(&self, x: Var<'t>, outer: &[Size]) -> State<'t> {
        let [h, c] = [self.hh, self.hh].map(|weight| weight.dtype());
        let width = |n: Size| outer.iter().copied().chain([n]).collect();
        let zeros = |dtype, n| x.tracer().full(TensorType { dtype, shape: width(n) }, 0.0);
        let is_lstm = self.kind == Kind::Lstm;
        State {
            h: zeros(h, self.hh.size(1)),
            c: is_lstm.then(|| zeros(c, Size::from(self.hidden))),
        }
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

            /// Without biases.
            #[must_use]
            pub fn without_bias(mut self) -> Self {
                self.bias = false;
                self
            }

            /// With parameters of another dtype.
            #[must_use]
            pub fn dtype(mut self, dtype: DType) -> Self {
                self.dtype = dtype;
                self
            }

            $(/// With another function of the gates than `tanh`.
            #[must_use]
            pub fn $field(mut self, $field: $ty) -> Self {
                self.$field = $field;
                self
            })?
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
    /// A step of [`Rnn`](super::Rnn): [`torch.nn.RNNCell`](https://docs.pytorch.org/docs/stable/generated/torch.nn.RNNCell.html).
    ///
    /// It takes `x`, `[N, inputs]` or `[inputs]`, and the state, `[N, hidden]` or `[hidden]`, zeros if absent; it gives the next state.
    /// Its parameters are `weight_ih: [hidden, inputs]`, `weight_hh: [hidden, hidden]`, `bias_ih` and `bias_hh: [hidden]`, and start
    /// evenly distributed within `1 / sqrt(hidden)` of zero.
    RnnCell { nonlinearity: Nonlinearity = Nonlinearity::Tanh } as Kind::Rnn(nonlinearity), Var<'t>,
        |given| given.map(|h| State { h, c: None }), |after| after.h;
    /// A step of [`Gru`](super::Gru): [`torch.nn.GRUCell`](https://docs.pytorch.org/docs/stable/generated/torch.nn.GRUCell.html).
    ///
    /// As [`RnnCell`], with the three gates reset, update and new one after the other: `weight_ih` is `[3 · hidden, inputs]`.
    GruCell as Kind::Gru, Var<'t>, |given| given.map(|h| State { h, c: None }), |after| after.h;
    /// A step of [`Lstm`](super::Lstm): [`torch.nn.LSTMCell`](https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTMCell.html).
    ///
    /// As [`RnnCell`], with the four gates input, forget, cell and output one after the other: `weight_ih` is `[4 · hidden, inputs]`.
    /// The state is a pair: what it gives out and what it remembers.
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
    LstmCell as Kind::Lstm, (Var<'t>, Var<'t>),
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
    let state = state.in_dtype_of(zeros);
    step.next(step.gates_of(x), state)
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
