//! Recurrent layers: [`Rnn`], [`Gru`] and [`Lstm`], and their steps as cells.
//!
//! A program has no loops, so the steps are recorded one after the other: the number of steps is
//! pinned, and each length is a program of its own. What inputs contribute to gates is a matrix
//! product for each step: as one product ahead of all steps, its gradient would be put together of
//! as many pieces, which costs more than the product.

mod cell;
mod unroll;

pub use cell::{GruCell, LstmCell, Nonlinearity, RnnCell, Steps};

use crate::nn::{Context, Layer};
use crate::setters::setters;
use tracecast_ir::functions::Cell;
use tracecast_ir::{DType, Var};
use unroll::{Settings, Unrolled, unroll};

/// Layers of steps: the name, a setting of its own, the kind, what the state is, and what is made
/// of the states behind the last step.
macro_rules! layers {
    ($($(#[$doc:meta])* $name:ident
        $(with $(#[$about:meta])* $field:ident: $ty:ty = $absent:expr)? ; as $kind:expr,
        $state:ty, |$given:ident| $before:expr, |$after:ident| $last:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            settings: Settings,
            $($field: $ty,)?
        }

        impl $name {
            /// One layer from `inputs` numbers to a state of `hidden` numbers, in f32, with biases,
            /// in one direction; the input has the steps along its first axis.
            pub fn new(inputs: usize, hidden: usize) -> Self {
                $name { settings: Settings::new(inputs, hidden), $($field: $absent,)? }
            }

            setters! {
                /// With that many layers, each on what the one before gives.
                layers(layers: usize) => settings.layers = layers;
                /// Without biases.
                without_bias() => settings.bias = false;
                /// With the batch along the first axis and the steps along the second.
                batch_first() => settings.batch_first = true;
                /// With a dropout of this probability on what each layer but the last gives.
                dropout(p: f64) => settings.dropout = p;
                /// With a second direction, from the last step to the first, in each layer.
                bidirectional() => settings.bidirectional = true;
                /// With parameters of another dtype.
                dtype(dtype: DType) => settings.dtype = dtype;
                $($(#[$about])* $field($field: $ty) => $field = $field;)?
            }
        }

        impl Layer for $name {
            type Input<'t> = Steps<'t, $state>;
            type Output<'t> = (Var<'t>, $state);

            fn forward<'t>(
                &self,
                cx: &Context<'t>,
                input: Steps<'t, $state>,
            ) -> (Var<'t>, $state) {
                $(let $field = self.$field;)?
                let $given = input.state;
                let Unrolled { out, $after } =
                    unroll(cx, stringify!($name), $kind, &self.settings, input.x, $before);
                (out, $last)
            }
        }
    )*};
}

layers! {
    /// `tanh(x · weight_ihᵀ + bias_ih + h · weight_hhᵀ + bias_hh)` step by step:
    /// [`torch.nn.RNN`](https://docs.pytorch.org/docs/stable/generated/torch.nn.RNN.html).
    ///
    /// It takes `x`, `[L, N, inputs]`, with [`batch_first`](Self::batch_first) `[N, L, inputs]`, or
    /// `[L, inputs]`, and the state, `[layers · directions, N, hidden]` or
    /// `[layers · directions, hidden]`. It gives what the last layer gives at each step, as many
    /// axes with `directions · hidden` numbers, and the state behind the last step. `L` is a
    /// number: steps are recorded one by one.
    ///
    /// The parameters of layer `k` are `weight_ih_lk`, `weight_hh_lk`, `bias_ih_lk` and
    /// `bias_hh_lk`, those of the second direction with `_reverse` behind; they start evenly
    /// distributed within `1 / sqrt(hidden)` of zero.
    ///
    /// # Errors
    /// Of the trace: another number of axes, other sizes, another dtype than that of the
    /// parameters, a number of steps that is a name.
    Rnn with
        /// With another function than `tanh`.
        nonlinearity: Nonlinearity = Nonlinearity::Tanh; as nonlinearity.into(),
        Var<'t>, |given| given.map(|h| (h, None)), |after| after.0;
    /// Gated recurrent units:
    /// [`torch.nn.GRU`](https://docs.pytorch.org/docs/stable/generated/torch.nn.GRU.html). Sizes
    /// and names are those of [`Rnn`], with three gates in each weight.
    Gru; as Cell::Gru, Var<'t>, |given| given.map(|h| (h, None)), |after| after.0;
    /// Long short-term memory:
    /// [`torch.nn.LSTM`](https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html).
    ///
    /// Sizes and names are those of [`Rnn`], with four gates in each weight. The state is a pair:
    /// what is given out, and what is remembered, `[layers · directions, N, hidden]`.
    ///
    /// ```
    /// use tracecast::nn::{Context, Layer, Lstm};
    /// use tracecast::prelude::*;
    ///
    /// let lstm = Lstm::new(8, 16).layers(2).batch_first();
    /// let mut store = Store::new();
    /// lstm.init(&mut store, 0)?;
    /// assert!(store.contains("weight_hh_l1"));
    /// let read = jit(Options::new(), move |t| {
    ///     let (y, (_h, c)) = lstm.forward(&Context::evaluation(t), t.input("x").into());
    ///     t.output("y", y);
    ///     t.output("c", c);
    /// });
    /// let x = Tensor::new([3, 5, 8], &[0.5f32; 120])?;
    /// let out = read.run(&mut store, &[("x", &x)])?;
    /// assert_eq!(out["y"].shape()[..], [3, 5, 16]);
    /// assert_eq!(out["c"].shape()[..], [2, 3, 16]);
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    Lstm; as Cell::Lstm, (Var<'t>, Var<'t>),
        |given| given.map(|(h, c)| (h, Some(c))), |after| (after.0, after.1.unwrap_or(after.0));
}

impl Lstm {
    setters! {
        /// With what is given out projected to that many numbers, fewer than there are hidden ones;
        /// 0 for none. The parameters are `weight_hr_lk`, `[proj, hidden]`.
        proj(proj: usize) => settings.proj = Some(proj).filter(|proj| *proj > 0);
    }
}
