//! [`MultiheadAttention`]: each position of the query as a mean of values, by how its query meets their keys.

use crate::entry::Start;
use crate::nn::init;
use crate::nn::{Context, Dropout, Layer, Linear, Module, Values, dropout};
use tracecast_ir::functions::PadMode;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::linalg::Products;
use tracecast_ir::ops::nn::{Attentions, Softmaxes};
use tracecast_ir::ops::random::Random;
use tracecast_ir::ops::reduce::Reductions;
use tracecast_ir::ops::view::{Views, cat};
use tracecast_ir::{DType, Shape, Size, TensorType, Var};

/// What [`MultiheadAttention`] takes: made of a tensor that attends to itself, or of query, key and value.
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

/// The methods of what takes masks as [`Attend`] does: PyTorch's names of its mask and of its padding, and where they are kept.
macro_rules! masks {
    ($name:ident: $masks:ident, $mask:ident = $torch_mask:literal, $padding:ident = $torch_padding:literal) => {
        impl<'t> $name<'t> {
            #[doc = concat!("With PyTorch's `", $torch_mask, "`: see [`Attend::mask`](crate::nn::Attend::mask).")]
            #[must_use]
            pub fn $mask(mut self, mask: Var<'t>) -> Self {
                self.$masks.mask = Some(mask);
                self
            }

            #[doc = concat!("With PyTorch's `", $torch_padding, "`: see [`Attend::key_padding`](crate::nn::Attend::key_padding).")]
            #[must_use]
            pub fn $padding(mut self, padding: Var<'t>) -> Self {
                self.$masks.padding = Some(padding);
                self
            }
        }
    };
    ($name:ident: causal) => {
        impl $name<'_> {
            /// Each position sees those up to its own.
            #[must_use]
            pub fn causal(mut self) -> Self {
                self.masks.causal = true;
                self
            }
        }
    };
}
pub(super) use masks;

impl<'t> Attend<'t> {
    /// `query` is `[L, N, width]`, with [`batch_first`](MultiheadAttention::batch_first) `[N, L, width]`, or `[L, width]`; key and value
    /// have `S` in the place of `L`.
    pub fn new(query: Var<'t>, key: Var<'t>, value: Var<'t>) -> Self {
        Attend { query, key, value, masks: Masks::default() }
    }

    /// With a mask `[L, S]` or `[N · heads, L, S]`: true where a query must not see a key, or floats that are added to the scores.
    /// PyTorch's `attn_mask`.
    #[must_use]
    pub fn mask(mut self, mask: Var<'t>) -> Self {
        self.masks.mask = Some(mask);
        self
    }

    /// With a mask `[N, S]`, or `[S]` without a batch: true where a key is padding, or floats that are added to the scores. PyTorch's
    /// `key_padding_mask`.
    #[must_use]
    pub fn key_padding(mut self, padding: Var<'t>) -> Self {
        self.masks.padding = Some(padding);
        self
    }

    /// Each query sees the keys up to its own position.
    #[must_use]
    pub fn causal(mut self) -> Self {
        self.masks.causal = true;
        self
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

/// `softmax(query · keyᵀ / sqrt(width / heads)) · value` in several heads, with a matrix product in front of each operand and behind:
/// [`torch.nn.MultiheadAttention`](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html).
///
/// It takes an [`Attend`] and gives a result like the query, and the weights of the keys, `[N, L, S]` or `[L, S]`: their mean over the
/// heads. Weights that nobody uses cost nothing.
///
/// The parameters are `in_proj_weight: [3 · width, width]` (or `q_proj_weight`, `k_proj_weight` and `v_proj_weight` where keys or values
/// have another width), `in_proj_bias: [3 · width]`, `out_proj.weight` and `out_proj.bias`, and with
/// [`bias_kv`](Self::bias_kv) `bias_k` and `bias_v: [1, 1, width]`. Their starts are PyTorch's.
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
///     t.output("weights", weights);
/// });
/// let out = run.run(&mut store, &[("x", &Tensor::new([1, 3, 8], &[0.5f32; 24])?)])?;
/// assert_eq!(out["weights"].to_vec::<f32>()?[..3], [1.0, 0.0, 0.0]);
/// # Ok::<(), tracecast::Error>(())
/// ```
///
/// # Errors
/// Of the trace: a width that the heads do not divide, other numbers of axes or sizes, masks of another shape.
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
    per_head: bool,
    dtype: DType,
}

impl MultiheadAttention {
    /// Over `width` numbers in that many heads, in f32, with biases; the batch lies along the second axis.
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
            per_head: false,
            dtype: DType::F32,
        }
    }

    /// With keys and values of other widths: PyTorch's `kdim` and `vdim`.
    #[must_use]
    pub fn widths(mut self, key: usize, value: usize) -> Self {
        self.widths = [key, value];
        self
    }

    /// With a dropout of this probability on the weights of keys.
    #[must_use]
    pub fn dropout(mut self, p: f64) -> Self {
        self.dropout = p;
        self
    }

    /// Without biases.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// With a trained key and a trained value behind the others: PyTorch's `add_bias_kv`.
    #[must_use]
    pub fn bias_kv(mut self) -> Self {
        self.bias_kv = true;
        self
    }

    /// With a key and a value of zeros behind the others: PyTorch's `add_zero_attn`.
    #[must_use]
    pub fn zero_attn(mut self) -> Self {
        self.zero = true;
        self
    }

    /// With the batch along the first axis.
    #[must_use]
    pub fn batch_first(mut self) -> Self {
        self.batch_first = true;
        self
    }

    /// Gives the weights of each head, `[N, heads, L, S]` or `[heads, L, S]`, and not their mean.
    #[must_use]
    pub fn weights_per_head(mut self) -> Self {
        self.per_head = true;
        self
    }

    /// With parameters of another dtype.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }
}

impl Layer for MultiheadAttention {
    type Input<'t> = Attend<'t>;
    type Output<'t> = (Var<'t>, Var<'t>);

    fn forward<'t>(&self, cx: &Context<'t>, given: Attend<'t>) -> (Var<'t>, Var<'t>) {
        let parameters = Parameters::new(self, cx);
        let (mixed, weights) = match self.checked(&given) {
            _ if given.query.is_poison() => {
                Dropout::new(self.dropout).forward(cx, given.query);
                (given.query, given.query)
            }
            Ok(()) => self.attend(cx, &parameters, &given),
            Err(why) => {
                let failed = cx.here(|| cx.trace().tracer().fail("MultiheadAttention", why));
                (failed, failed)
            }
        };
        let out = Linear::new(self.width, self.width).dtype(self.dtype).zero_bias();
        let out = if self.bias { out } else { out.without_bias() };
        (cx.part("out_proj", &out, mixed), weights)
    }
}

/// What is in front of the heads.
struct Parameters<'t> {
    /// Of query, key and value: all in one, or each.
    weights: Vec<Var<'t>>,
    bias: Option<Var<'t>>,
    /// A key and a value more.
    more: Option<[Var<'t>; 2]>,
}

impl<'t> Parameters<'t> {
    fn new(layer: &MultiheadAttention, cx: &Context<'t>) -> Self {
        let &MultiheadAttention { width, widths, dtype, .. } = layer;
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
        let bias = layer.bias.then(|| cx.parameter("in_proj_bias", ty, Start::Constant(0.0)));
        let more = layer.bias_kv.then(|| {
            ["bias_k", "bias_v"].map(|name| {
                let ty = TensorType::new(dtype, [1, 1, width]);
                let start = init::xavier_normal(&ty.shape, 1.0);
                cx.parameter(name, ty, start)
            })
        });
        Parameters { weights, bias, more }
    }

    /// Query, key and value in front of the heads.
    fn project(&self, width: usize, given: [Var<'t>; 3]) -> [Var<'t>; 3] {
        let width = width as i64;
        let part = |of: Var<'t>, dim: i64, i: usize| {
            let from = i as i64 * width;
            of.slice(dim, from, from + width, 1)
        };
        match &self.weights[..] {
            [all] if given.iter().all(|x| x.id() == given[0].id()) => {
                let together = given[0].linear(*all, self.bias);
                [0, 1, 2].map(|i| part(together, -1, i))
            }
            weights => [0, 1, 2].map(|i| {
                let weight = weights.get(i).filter(|_| weights.len() == 3).copied();
                let weight = weight.unwrap_or_else(|| part(weights[0], 0, i));
                given[i].linear(weight, self.bias.map(|bias| part(bias, 0, i)))
            }),
        }
    }
}

impl MultiheadAttention {
    /// What is wrong with the operands.
    fn checked(&self, given: &Attend<'_>) -> Result<(), String> {
        if self.heads == 0 || !self.width.is_multiple_of(self.heads) {
            return Err(format!("{} heads do not divide {}", self.heads, self.width));
        }
        let [query, key, value] = [given.query, given.key, given.value];
        let rank = query.rank();
        if !(2..=3).contains(&rank) || key.rank() != rank || value.rank() != rank {
            let all = [query, key, value].map(|x| x.ty().to_string()).join(", ");
            return Err(format!("takes three tensors of 2 or of 3 axes, found {all}"));
        }
        let widths = [self.width, self.widths[0], self.widths[1]];
        for (x, width) in [query, key, value].into_iter().zip(widths) {
            if x.size(rank - 1) != Size::from(width) {
                return Err(format!("takes {width} numbers for each position, found {}", x.ty()));
            }
        }
        Ok(())
    }

    /// The mixed values in the form of the query, and the weights.
    fn attend<'t>(
        &self,
        cx: &Context<'t>,
        parameters: &Parameters<'t>,
        given: &Attend<'t>,
    ) -> (Var<'t>, Var<'t>) {
        let is_batch = given.query.rank() == 3;
        let front = |x: Var<'t>| match (is_batch, self.batch_first) {
            (false, _) => x.unsqueeze(0),
            (true, true) => x,
            (true, false) => x.permute([1, 0, 2]),
        };
        let drawn = dropout::draw(cx, self.dropout);
        cx.here(|| {
            // The same tensor stays the same, so that one product does for all.
            let [query, key, value] = [given.query, given.key, given.value];
            let q = front(query);
            let k = if key.id() == query.id() { q } else { front(key) };
            let v = match value.id() {
                id if id == query.id() => q,
                id if id == key.id() => k,
                _ => front(value),
            };
            let [q, k, v] = parameters.project(self.width, [q, k, v]);
            let (k, v) = self.lengthened(parameters, k, v);
            let [q, k, v] = [q, k, v].map(|x| self.in_heads(x));
            let mask = match self.mask(given, [q, k]) {
                Ok(mask) => mask,
                Err(why) => {
                    let failed = q.tracer().fail("MultiheadAttention", why);
                    return (failed, failed);
                }
            };
            let (rng, stream) = drawn.map_or((None, 0), |(rng, stream)| (Some(rng), stream));
            let p = if rng.is_some() { self.dropout } else { 0.0 };
            let seen = if self.is_causal(given) { None } else { mask };
            let is_causal = mask.is_some() && seen.is_none();
            let mixed =
                q.scaled_dot_product_attention(k, v, seen, rng, p, is_causal, None, false, stream);
            let mixed = mixed.permute([0, 2, 1, 3]).flatten(2, 3);
            let weights = self.weights([q, k], mask, drawn);
            match (is_batch, self.batch_first) {
                (false, _) => (mixed.select(0, 0), weights.select(0, 0)),
                (true, true) => (mixed, weights),
                (true, false) => (mixed.permute([1, 0, 2]), weights),
            }
        })
    }

    /// True if queries see the keys up to their own position, and nothing else says what they see.
    fn is_causal(&self, given: &Attend<'_>) -> bool {
        let Masks { mask, padding, causal } = given.masks;
        causal && mask.is_none() && padding.is_none() && !self.bias_kv && !self.zero
    }

    /// The weights of keys, which nothing but a result of their own needs: the same as those that values are weighed by, for each head or their mean.
    fn weights<'t>(
        &self,
        [q, k]: [Var<'t>; 2],
        mask: Option<Var<'t>>,
        drawn: Option<(Var<'t>, i64)>,
    ) -> Var<'t> {
        let scale = ((self.heads as f64) / (self.width as f64)).sqrt();
        let scores = q.mul(scale).matmul(k.permute([0, 1, 3, 2]));
        let scores = match mask {
            Some(mask) if mask.dtype() == DType::Bool => {
                let never = TensorType::scalar(scores.dtype());
                mask.choose(scores, q.tracer().full(never, f64::NEG_INFINITY))
            }
            Some(mask) => scores + mask,
            None => scores,
        };
        let weights = scores.softmax(-1);
        let weights = match drawn {
            Some((rng, stream)) => weights.dropout(rng, self.dropout, stream),
            None => weights,
        };
        if self.per_head { weights } else { weights.mean(1) }
    }

    /// Keys and values with those behind that belong to the layer.
    fn lengthened<'t>(
        &self,
        parameters: &Parameters<'t>,
        k: Var<'t>,
        v: Var<'t>,
    ) -> (Var<'t>, Var<'t>) {
        let mut all = [k, v];
        let one = |x: Var<'t>| Shape::from([x.size(0), Size::from(1), x.size(2)]);
        if let Some(more) = parameters.more {
            for (x, more) in all.iter_mut().zip(more) {
                *x = cat(&[*x, more.to(x.dtype()).expand_to(&one(*x))], 1);
            }
        }
        if self.zero {
            for x in &mut all {
                let zeros = TensorType { dtype: x.dtype(), shape: one(*x) };
                *x = cat(&[*x, x.tracer().full(zeros, 0.0)], 1);
            }
        }
        all.into()
    }

    /// `[N, L, width]` as `[N, heads, L, width / heads]`.
    fn in_heads<'t>(&self, x: Var<'t>) -> Var<'t> {
        let (heads, each) = (Size::from(self.heads), Size::from(self.width / self.heads));
        x.reshape([x.size(0), x.size(1), heads, each]).permute([0, 2, 1, 3])
    }

    /// Which keys a query sees, over `[N, heads, L, S]` or what broadcasts to it: truth values, or floats that are added to the scores.
    fn mask<'t>(
        &self,
        given: &Attend<'t>,
        [q, k]: [Var<'t>; 2],
    ) -> Result<Option<Var<'t>>, String> {
        let t = q.tracer();
        let [n, heads, l] = [0, 1, 2].map(|axis| q.size(axis));
        let one = Size::from(1);
        let more = i64::from(self.bias_kv) + i64::from(self.zero);
        let mut all: Vec<Var<'t>> = Vec::new();
        let mut put = |mask: Var<'t>, shape: [Size; 3]| {
            // What belongs to the layer is seen by all.
            let mask = match more {
                0 => mask,
                more => mask.pad_last(&[0, more], PadMode::Constant(0.0)),
            };
            let keys = mask.size(mask.rank() - 1);
            let mask = mask.reshape([shape[0], shape[1], shape[2], keys]);
            all.push(if mask.dtype() == DType::Bool { mask.logical_not() } else { mask });
        };
        for mask in [given.masks.mask, given.masks.padding].into_iter().flatten() {
            if mask.dtype() != DType::Bool && !mask.dtype().is_float() {
                return Err(format!("takes masks of bool or floating point, found {}", mask.ty()));
            }
        }
        if let Some(mask) = given.masks.mask.filter(|mask| !mask.is_poison()) {
            match mask.rank() {
                2 => put(mask, [one, one, l]),
                3 => put(mask, [n, heads, l]),
                _ => return Err(format!("takes a mask of 2 or 3 axes, found {}", mask.ty())),
            }
        }
        if let Some(padding) = given.masks.padding.filter(|padding| !padding.is_poison()) {
            if !(1..=2).contains(&padding.rank()) {
                return Err(format!("takes padding of 1 or 2 axes, found {}", padding.ty()));
            }
            put(padding, [n, one, one]);
        }
        if given.masks.causal {
            let s = k.size(2) - more;
            let row = t.iota(DType::I64, &Shape::from([l, one]), 0);
            let column = t.iota(DType::I64, &Shape::from([one, s]), 1);
            put(column.gt(row), [one, one, l]);
        }
        let zero_or_never = |mask: Var<'t>, like: Var<'t>| {
            let number = |x: f64| t.full(TensorType::scalar(like.dtype()), x);
            mask.choose(number(0.0), number(f64::NEG_INFINITY))
        };
        Ok(all.into_iter().reduce(|a, b| {
            match (a.dtype() == DType::Bool, b.dtype() == DType::Bool) {
                (true, true) => a.logical_and(b),
                (true, false) => zero_or_never(a, b) + b,
                (false, true) => a + zero_or_never(b, a),
                (false, false) => a + b,
            }
        }))
    }
}
