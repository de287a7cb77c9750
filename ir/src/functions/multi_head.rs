//! Attention of several heads, with a matrix product in front of each operand and behind: PyTorch's `multi_head_attention_forward`.

use super::{Made, PadMode, named_all};
use crate::ops::elementwise::Elementwise;
use crate::ops::linalg::Products;
use crate::ops::nn::{Attentions, Softmaxes};
use crate::ops::random::Random;
use crate::ops::reduce::Reductions;
use crate::ops::view::{Views, cat};
use crate::{DType, Shape, Size, TensorType, Var};

/// What [`Var::multi_head_attention_forward`] has besides query, key and value.
#[derive(Clone, Debug)]
pub struct MultiHead<'t> {
    /// How many heads there are.
    pub heads: usize,
    /// The matrices of query, key and value, `[width, ...]`: all in one, or three.
    pub weights: Vec<Var<'t>>,
    /// What is added behind them, `[3 · width]`.
    pub bias: Option<Var<'t>>,
    /// A key and a value more, which end with the width.
    pub more: Option<[Var<'t>; 2]>,
    /// A key and a value of zeros more.
    pub zero: bool,
    /// The probability that a weight is dropped, the generator, and the stream.
    pub dropout: Option<(f64, Var<'t>, i64)>,
    /// The matrix and the bias behind the heads.
    pub out: Option<(Var<'t>, Option<Var<'t>>)>,
    /// `[L, S]` or `[N · heads, L, S]`: true where a query must not see a key, or floats that are added to the scores.
    pub mask: Option<Var<'t>>,
    /// `[N, S]` or `[S]`: true where a key is padding, or floats that are added to the scores.
    pub padding: Option<Var<'t>>,
    /// Each query sees the keys up to its own position.
    pub causal: bool,
    /// The batch lies along the first axis, not along the second.
    pub batch_first: bool,
    /// The weights of each head, and not their mean.
    pub per_head: bool,
}

impl<'t> Var<'t> {
    /// Attention of several heads, as the layer `MultiheadAttention` has it, with parameters that are given: PyTorch's `multi_head_attention_forward`. The query is `[L, N, width]` or
    /// `[L, width]`, key and value have `S` in the place of `L`. Gives a result like the query and the weights, `[N, L, S]`, with heads in front of `L` if they are asked for.
    ///
    /// ```
    /// use tracecast_ir::functions::MultiHead;
    /// use tracecast_ir::{DType, TensorType, Tracer};
    /// let t = Tracer::new("heads");
    /// let x = t.input("x", TensorType::new(DType::F32, [5, 2, 4]));
    /// let weight = t.input("weight", TensorType::new(DType::F32, [12, 4]));
    /// let of = MultiHead { causal: true, ..MultiHead::new(2, vec![weight]) };
    /// let (y, weights) = x.multi_head_attention_forward(x, x, &of);
    /// assert_eq!([y, weights].map(|x| x.ty().to_string()), ["f32[5, 2, 4]", "f32[2, 5, 5]"]);
    /// ```
    ///
    /// # Errors
    /// Of the trace: a width that the heads do not divide, other numbers of axes or sizes, masks of another shape or dtype.
    #[track_caller]
    pub fn multi_head_attention_forward(
        self,
        key: Var<'t>,
        value: Var<'t>,
        of: &MultiHead<'t>,
    ) -> (Var<'t>, Var<'t>) {
        let results = named_all(self, "multi_head_attention_forward", || {
            of.mixed([self, key, value]).map(|(y, weights)| vec![y, weights])
        });
        (results[0], results[results.len() - 1])
    }
}

impl<'t> MultiHead<'t> {
    /// Of so many heads, with these matrices and nothing else.
    pub fn new(heads: usize, weights: Vec<Var<'t>>) -> Self {
        MultiHead {
            heads,
            weights,
            bias: None,
            more: None,
            zero: false,
            dropout: None,
            out: None,
            mask: None,
            padding: None,
            causal: false,
            batch_first: false,
            per_head: false,
        }
    }

    /// The width of what is in front of the heads, if the operands fit.
    fn checked(&self, [query, key, value]: [Var<'t>; 3]) -> Made<usize> {
        let rank = query.rank();
        if !(2..=3).contains(&rank) || key.rank() != rank || value.rank() != rank {
            let all = [query, key, value].map(|x| x.ty().to_string()).join(", ");
            return Err(format!("takes three tensors of 2 or of 3 axes, found {all}"));
        }
        let widths = match &self.weights[..] {
            [all] => [Some(all.size(1)); 3],
            [q, k, v] => [q, k, v].map(|weight| Some(weight.size(1))),
            _ => return Err(format!("takes one matrix or three, found {}", self.weights.len())),
        };
        for (x, width) in [query, key, value].into_iter().zip(widths.into_iter().flatten()) {
            if x.size(rank - 1) != width {
                return Err(format!("takes {width} numbers for each position, found {}", x.ty()));
            }
        }
        let rows = self.weights[0].size(0).number().ok_or("the width is a name: pin the sizes")?;
        let width =
            usize::try_from(rows).unwrap_or(0) / if self.weights.len() == 1 { 3 } else { 1 };
        if self.heads == 0 || !width.is_multiple_of(self.heads) {
            return Err(format!("{} heads do not divide {width}", self.heads));
        }
        Ok(width)
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

    /// A result like the query, and the weights of keys.
    ///
    /// # Errors
    /// As [`Var::multi_head_attention_forward`].
    pub fn mixed(&self, [query, key, value]: [Var<'t>; 3]) -> Made<(Var<'t>, Var<'t>)> {
        let width = self.checked([query, key, value])?;
        let is_batch = query.rank() == 3;
        let front = |x: Var<'t>| match (is_batch, self.batch_first) {
            (false, _) => x.unsqueeze(0),
            (true, true) => x,
            (true, false) => x.permute([1, 0, 2]),
        };
        // The same tensor stays the same, so that one product does for all.
        let q = front(query);
        let k = if key.id() == query.id() { q } else { front(key) };
        let v = match value.id() {
            id if id == query.id() => q,
            id if id == key.id() => k,
            _ => front(value),
        };
        let [q, k, v] = self.project(width, [q, k, v]);
        let (k, v) = self.lengthened(k, v);
        let [q, k, v] = [q, k, v].map(|x| self.in_heads(x, width));
        let mask = self.seen([q, k])?;
        let (p, rng, stream) = match self.dropout {
            Some((p, rng, stream)) => (p, Some(rng), stream),
            None => (0.0, None, 0),
        };
        let seen = if self.is_causal() { None } else { mask };
        let is_causal = mask.is_some() && seen.is_none();
        let mixed =
            q.scaled_dot_product_attention(k, v, seen, rng, p, is_causal, None, false, stream);
        let mixed = mixed.permute([0, 2, 1, 3]).flatten(2, 3);
        let weights = self.weights_of([q, k], width, mask);
        let (mixed, weights) = match (is_batch, self.batch_first) {
            (false, _) => (mixed.select(0, 0), weights.select(0, 0)),
            (true, true) => (mixed, weights),
            (true, false) => (mixed.permute([1, 0, 2]), weights),
        };
        Ok((self.out.map_or(mixed, |(weight, bias)| mixed.linear(weight, bias)), weights))
    }

    /// True if queries see the keys up to their own position, and nothing else says what they see.
    fn is_causal(&self) -> bool {
        let alone = self.mask.is_none() && self.padding.is_none();
        self.causal && alone && self.more.is_none() && !self.zero
    }

    /// The weights of keys, which nothing but a result of their own needs: the same as those that values are weighed by, for each head or their mean.
    fn weights_of(&self, [q, k]: [Var<'t>; 2], width: usize, mask: Option<Var<'t>>) -> Var<'t> {
        let scale = ((self.heads as f64) / (width as f64)).sqrt();
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
        let weights = match self.dropout {
            Some((p, rng, stream)) => weights.dropout(rng, p, stream),
            None => weights,
        };
        if self.per_head { weights } else { weights.mean(1) }
    }

    /// Keys and values with those behind that belong to the layer.
    fn lengthened(&self, k: Var<'t>, v: Var<'t>) -> (Var<'t>, Var<'t>) {
        let mut all = [k, v];
        let one = |x: Var<'t>| Shape::from([x.size(0), Size::from(1), x.size(2)]);
        if let Some(more) = self.more {
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
    fn in_heads(&self, x: Var<'t>, width: usize) -> Var<'t> {
        let (heads, each) = (Size::from(self.heads), Size::from(width / self.heads));
        x.reshape([x.size(0), x.size(1), heads, each]).permute([0, 2, 1, 3])
    }

    /// Which keys a query sees, over `[N, heads, L, S]` or what broadcasts to it: truth values, or floats that are added to the scores.
    fn seen(&self, [q, k]: [Var<'t>; 2]) -> Made<Option<Var<'t>>> {
        let t = q.tracer();
        let [n, heads, l] = [0, 1, 2].map(|axis| q.size(axis));
        let one = Size::from(1);
        let more = i64::from(self.more.is_some()) + i64::from(self.zero);
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
        for mask in [self.mask, self.padding].into_iter().flatten() {
            if mask.dtype() != DType::Bool && !mask.dtype().is_float() {
                return Err(format!("takes masks of bool or floating point, found {}", mask.ty()));
            }
        }
        if let Some(mask) = self.mask.filter(|mask| !mask.is_poison()) {
            match mask.rank() {
                2 => put(mask, [one, one, l]),
                3 => put(mask, [n, heads, l]),
                _ => return Err(format!("takes a mask of 2 or 3 axes, found {}", mask.ty())),
            }
        }
        if let Some(padding) = self.padding.filter(|padding| !padding.is_poison()) {
            if !(1..=2).contains(&padding.rank()) {
                return Err(format!("takes padding of 1 or 2 axes, found {}", padding.ty()));
            }
            put(padding, [n, one, one]);
        }
        if self.causal {
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
