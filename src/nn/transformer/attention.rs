//! [`MultiheadAttention`]: each position of the query as a mean of values, by how its query meets
//! their keys.

use crate::entry::Start;
use crate::nn::init;
use crate::nn::{Context, Layer, Linear, Values, dropout};
use crate::setters::setters;
use tracecast_ir::functions::MultiHead;
use tracecast_ir::{DType, TensorType, Var};

/// What [`MultiheadAttention`] takes: made of a tensor that attends to itself, or of query, key and
/// value.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'t> {
    query: Var<'t>,
    key: Var<'t>,
    value: Var<'t>,
    masks: Masks<'t>,
}

/// Which positions see which.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Masks<'t> {
    pub(super) mask: Option<Var<'t>>,
    pub(super) padding: Option<Var<'t>>,
    pub(super) causal: bool,
}

/// The methods of what takes masks as [`Attend`] does: PyTorch's names of its mask and of its
/// padding, and where they are kept.
macro_rules! masks {
    ($name:ident: $masks:ident, $mask:ident = $torch_mask:literal, $padding:ident = $torch_padding:literal) => {
        impl<'t> $name<'t> {
            $crate::setters::setters! {
                #[doc = concat!("With PyTorch's `", $torch_mask, "`: see [`Attend::mask`](crate::nn::Attend::mask).")]
                $mask(mask: Var<'t>) => $masks.mask = Some(mask);
                #[doc = concat!("With PyTorch's `", $torch_padding, "`: see [`Attend::key_padding`](crate::nn::Attend::key_padding).")]
                $padding(padding: Var<'t>) => $masks.padding = Some(padding);
            }
        }
    };
    ($name:ident: causal) => {
        impl $name<'_> {
            $crate::setters::setters! {
                /// Each position sees those up to its own.
                causal() => masks.causal = true;
            }
        }
    };
}
pub(super) use masks;

impl<'t> Attend<'t> {
    /// `query` is `[L, N, width]`, with [`batch_first`](MultiheadAttention::batch_first)
    /// `[N, L, width]`, or `[L, width]`; key and value have `S` in the place of `L`.
    pub fn new(query: Var<'t>, key: Var<'t>, value: Var<'t>) -> Self {
        Attend { query, key, value, masks: Masks::default() }
    }

    setters! {
        /// With a mask `[L, S]` or `[N · heads, L, S]`: true where a query must not see a key, or
        /// floats that are added to the scores. PyTorch's `attn_mask`.
        mask(mask: Var<'t>) => masks.mask = Some(mask);
        /// With a mask `[N, S]`, or `[S]` without a batch: true where a key is padding, or floats
        /// that are added to the scores. PyTorch's `key_padding_mask`.
        key_padding(padding: Var<'t>) => masks.padding = Some(padding);
        /// Each query sees the keys up to its own position.
        causal() => masks.causal = true;
    }

    pub(super) fn masked(mut self, masks: Masks<'t>) -> Self {
        self.masks = masks;
        self
    }
}

impl<'t> From<Var<'t>> for Attend<'t> {
    fn from(x: Var<'t>) -> Self {
        Attend::new(x, x, x)
    }
}

impl<'t> From<(Var<'t>, Var<'t>, Var<'t>)> for Attend<'t> {
    fn from((query, key, value): (Var<'t>, Var<'t>, Var<'t>)) -> Self {
        Attend::new(query, key, value)
    }
}

impl<'t> Values<'t> for Attend<'t> {
    fn unknown(cx: &Context<'t>) -> Self {
        Var::unknown(cx).into()
    }
}

/// `softmax(query · keyᵀ / sqrt(width / heads)) · value` in several heads, with a matrix product in
/// front of each operand and behind:
/// [`torch.nn.MultiheadAttention`](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html).
///
/// It takes an [`Attend`] and gives a result like the query, and the weights of the keys,
/// `[N, L, S]` or `[L, S]`: their mean over the heads. As in PyTorch weights are a tensor of all
/// queries and keys, and attention is computed op by op, unless they are not asked for:
/// [`without_weights`](Self::without_weights) attention is one kernel, whose memory grows with the
/// length alone.
///
/// A query that sees no key has zeros in front of the last product, and weights of zero.
///
/// The parameters are `in_proj_weight: [3 · width, width]` (or `q_proj_weight`, `k_proj_weight` and
/// `v_proj_weight` where keys or values have another width), `in_proj_bias: [3 · width]`,
/// `out_proj.weight` and `out_proj.bias`, and with [`bias_kv`](Self::bias_kv) `bias_k` and
/// `bias_v: [1, 1, width]`. Their starts are PyTorch's.
///
/// ```
/// use tracecast::nn::{Attend, Context, Layer, MultiheadAttention};
/// use tracecast::prelude::*;
///
/// let attention = MultiheadAttention::new(8, 2).batch_first();
/// let mut store = Store::new();
/// attention.init(&mut store, 0)?;
/// let run = jit(Options::new(), move |t| {
///     let (y, weights) = attention.forward(&Context::evaluation(t), Attend::from(t.input("x")).causal());
///     t.output("y", y);
///     t.output("weights", weights.expect("asked for"));
/// });
/// let out = run.run(&mut store, &[("x", &Tensor::new([1, 3, 8], &[0.5f32; 24])?)])?;
/// assert_eq!(out["weights"].to_vec::<f32>()?[..3], [1.0, 0.0, 0.0]);
/// # Ok::<(), tracecast::Error>(())
/// ```
///
/// # Errors
/// Of the trace: a width that the heads do not divide, other numbers of axes or sizes, masks of
/// another shape or of integers, a dropout that is no probability.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiheadAttention {
    width: usize,
    heads: usize,
    widths: [usize; 2],
    dropout: f64,
    bias: bool,
    bias_kv: bool,
    zero: bool,
    batch_first: bool,
    needs_weights: bool,
    per_head: bool,
    dtype: DType,
}

impl MultiheadAttention {
    /// Over `width` numbers in that many heads, in f32, with biases; the batch lies along the
    /// second axis.
    pub fn new(width: usize, heads: usize) -> Self {
        MultiheadAttention {
            width,
            heads,
            widths: [width; 2],
            dropout: 0.0,
            bias: true,
            bias_kv: false,
            zero: false,
            batch_first: false,
            needs_weights: true,
            per_head: false,
            dtype: DType::F32,
        }
    }

    setters! {
        /// With keys and values of other widths: PyTorch's `kdim` and `vdim`.
        widths(key: usize, value: usize) => widths = [key, value];
        /// With a dropout of this probability on the weights of keys.
        dropout(p: f64) => dropout = p;
        /// Without biases.
        without_bias() => bias = false;
        /// With a trained key and a trained value behind the others: PyTorch's `add_bias_kv`.
        bias_kv() => bias_kv = true;
        /// With a key and a value of zeros behind the others: PyTorch's `add_zero_attn`.
        zero_attn() => zero = true;
        /// With the batch along the first axis.
        batch_first() => batch_first = true;
        /// Gives no weights: PyTorch's `need_weights=False`.
        without_weights() => needs_weights = false;
        /// Gives the weights of each head, `[N, heads, L, S]` or `[heads, L, S]`, and not their
        /// mean: PyTorch's `average_attn_weights=False`.
        weights_per_head() => per_head = true;
        /// With parameters of another dtype.
        dtype(dtype: DType) => dtype = dtype;
    }
}

impl Layer for MultiheadAttention {
    type Input<'t> = Attend<'t>;
    type Output<'t> = (Var<'t>, Option<Var<'t>>);

    fn forward<'t>(&self, cx: &Context<'t>, given: Attend<'t>) -> (Var<'t>, Option<Var<'t>>) {
        let of = self.parameters(cx);
        let drawn = dropout::draw(cx, self.dropout);
        let Masks { mask, padding, causal } = given.masks;
        let dropout = drawn.map(|(rng, stream)| (self.dropout, rng, stream));
        let of = MultiHead { dropout, mask, padding, causal, ..of };
        let all = [given.query, given.key, given.value];
        let masks = [mask, padding].into_iter().flatten();
        let poison = all.into_iter().chain(masks).find(|x| x.is_poison());
        let mixed = match poison {
            Some(poison) => Err(poison),
            None => cx.here(|| {
                let mixed = self.checked().and_then(|()| of.mixed(all));
                mixed.map_err(|why| cx.trace().tracer().fail("MultiheadAttention", why))
            }),
        };
        let (mixed, weights) =
            mixed.unwrap_or_else(|failed| (failed, self.needs_weights.then_some(failed)));
        let out = Linear::new(self.width, self.width).dtype(self.dtype).zero_bias();
        let out = if self.bias { out } else { out.without_bias() };
        (cx.part("out_proj", &out, mixed), weights)
    }
}

impl MultiheadAttention {
    /// What a model that is evaluated would not meet.
    fn checked(&self) -> Result<(), String> {
        match self.dropout {
            p if (0.0..=1.0).contains(&p) => Ok(()),
            p => Err(format!("the probability of dropout is {p}, expected 0 to 1")),
        }
    }

    /// With the parameters of the layer.
    fn parameters<'t>(&self, cx: &Context<'t>) -> MultiHead<'t> {
        let &MultiheadAttention { width, widths, dtype, .. } = self;
        let matrix = |name: &str, rows: usize, columns: usize| {
            let ty = TensorType::new(dtype, [rows, columns]);
            let start = init::xavier_uniform(&ty.shape, 1.0);
            cx.parameter(name, ty, start)
        };
        let weights = if widths == [width; 2] {
            vec![matrix("in_proj_weight", 3 * width, width)]
        } else {
            vec![
                matrix("q_proj_weight", width, width),
                matrix("k_proj_weight", width, widths[0]),
                matrix("v_proj_weight", width, widths[1]),
            ]
        };
        let ty = TensorType::new(dtype, [3 * width]);
        let bias = self.bias.then(|| cx.parameter("in_proj_bias", ty, Start::Constant(0.0)));
        let more = self.bias_kv.then(|| {
            ["bias_k", "bias_v"].map(|name| {
                let ty = TensorType::new(dtype, [1, 1, width]);
                let start = init::xavier_normal(&ty.shape, 1.0);
                cx.parameter(name, ty, start)
            })
        });
        MultiHead {
            bias,
            more,
            zero: self.zero,
            batch_first: self.batch_first,
            needs_weights: self.needs_weights,
            per_head: self.per_head,
            ..MultiHead::new(self.heads, weights)
        }
    }
}
