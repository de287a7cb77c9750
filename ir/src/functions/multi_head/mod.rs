//! Attention of several heads, with a matrix product in front of each operand and behind: PyTorch's
//! `multi_head_attention_forward`.

mod masks;
mod settings;
mod sizes;

use super::{Made, named_all};
use crate::ops::elementwise::Elementwise;
use crate::ops::linalg::Products;
use crate::ops::nn::{Attentions, Softmaxes, attention};
use crate::ops::products::MatrixProducts;
use crate::ops::random::Random;
use crate::ops::reduce::Reductions;
use crate::ops::view::{Views, cat};
use crate::{Shape, Size, TensorType, Var};
use masks::Seen;
pub use settings::MultiHead;
use sizes::Sizes;

impl<'t> Var<'t> {
    /// Attention of several heads, as the layer `MultiheadAttention` has it, with parameters that
    /// are given: PyTorch's `multi_head_attention_forward`. The query is `[L, N, width]` or
    /// `[L, width]`, key and value have `S` in the place of `L`. Gives a result like the query and,
    /// unless they are not needed, the weights, `[N, L, S]`, with heads in front of `L` if they are
    /// asked for.
    ///
    /// A query that sees no key has zeros in front of the last product, and weights of zero, where
    /// PyTorch has NaN. With weights, NaN behind a mask gets through, as in PyTorch.
    ///
    /// ```
    /// use tracecast_ir::functions::MultiHead;
    /// use tracecast_ir::{DType, TensorType, Tracer};
    /// let t = Tracer::new("heads");
    /// let x = t.input("x", TensorType::new(DType::F32, [5, 2, 4]));
    /// let weight = t.input("weight", TensorType::new(DType::F32, [12, 4]));
    /// let of = MultiHead { causal: true, ..MultiHead::new(2, vec![weight]) };
    /// let (y, weights) = x.multi_head_attention_forward(x, x, &of);
    /// assert_eq!(y.ty().to_string(), "f32[5, 2, 4]");
    /// assert_eq!(weights.map(|x| x.ty().to_string()).as_deref(), Some("f32[2, 5, 5]"));
    /// ```
    ///
    /// # Errors
    /// Of the trace: a width that the heads do not divide, other numbers of axes or sizes, masks of
    /// another shape or dtype.
    #[track_caller]
    pub fn multi_head_attention_forward(
        self,
        key: Var<'t>,
        value: Var<'t>,
        of: &MultiHead<'t>,
    ) -> (Var<'t>, Option<Var<'t>>) {
        let results = named_all(self, "multi_head_attention_forward", || {
            let (y, weights) = of.mixed([self, key, value])?;
            Ok([y].into_iter().chain(weights).collect())
        });
        (results[0], of.needs_weights.then(|| results[results.len() - 1]))
    }
}

impl<'t> MultiHead<'t> {
    /// Of a number of heads, with these matrices and nothing else.
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
            needs_weights: true,
            per_head: false,
        }
    }

    /// A result like the query, and the weights of keys if they are needed.
    ///
    /// # Errors
    /// As [`Var::multi_head_attention_forward`].
    pub fn mixed(&self, given: [Var<'t>; 3]) -> Made<(Var<'t>, Option<Var<'t>>)> {
        let sizes = Sizes::of(self, given)?;
        let [query, key, value] = given;
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
        let [q, k, v] = self.project(sizes.width, [q, k, v]);
        let (k, v) = self.lengthened(k, v);
        let of = [q, k, v].map(|x| self.in_heads(x, sizes.width));
        let seen = Seen::of(self, &sizes, query)?;
        let (mixed, weights) = match self.needs_weights {
            true => {
                let (mixed, weights) =
                    self.weighed(of, seen.map(|seen| seen.added(self, &sizes, query)));
                (mixed, Some(if self.per_head { weights } else { weights.mean(1) }))
            }
            false => (self.attended(of, seen), None),
        };
        let mixed = mixed.permute([0, 2, 1, 3]).flatten(2, 3);
        let (mixed, weights) = match (is_batch, self.batch_first) {
            (false, _) => (mixed.select(0, 0), weights.map(|weights| weights.select(0, 0))),
            (true, true) => (mixed, weights),
            (true, false) => (mixed.permute([1, 0, 2]), weights),
        };
        Ok((self.out.map_or(mixed, |(weight, bias)| mixed.linear(weight, bias)), weights))
    }

    /// Attention as one kernel.
    fn attended(&self, [q, k, v]: [Var<'t>; 3], seen: Option<Seen<'t>>) -> Var<'t> {
        let (p, rng, stream) = match self.dropout {
            Some((p, rng, stream)) => (p, Some(rng), stream),
            None => (0.0, None, 0),
        };
        let is_causal = matches!(seen, Some(Seen::Causal(_)));
        let mask = seen.filter(|_| !is_causal).map(Seen::mask);
        q.scaled_dot_product_attention(k, v, mask, rng, p, is_causal, None, false, stream)
    }

    /// Attention op by op, as PyTorch computes it where weights are asked for, and the weights of
    /// each head.
    fn weighed(&self, of: [Var<'t>; 3], added: Option<Var<'t>>) -> (Var<'t>, Var<'t>) {
        let [heads, width] = [Size::from(self.heads), of[0].size(3)];
        let split = |x: Var<'t>| x.reshape([of[0].size(0), heads, x.size(1), x.size(2)]);
        let [q, k, v] = of.map(|x| x.flatten(0, 1));
        let scale = attention::scale(width.number().unwrap_or(1));
        let (q, k) = (q.mul(scale), k.permute([0, 2, 1]));
        let scores = match added {
            Some(added) => added.baddbmm(q, k, None, None),
            None => q.bmm(k),
        };
        // A query that sees no key has weights of zero.
        let weights = added.map_or_else(|| scores.softmax(-1), |_| scores.safe_softmax(-1));
        let mut weights = split(weights);
        if let Some((p, rng, stream)) = self.dropout {
            weights = weights.dropout(rng, p, stream);
        }
        (split(weights.flatten(0, 1).bmm(v)), weights)
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
}
