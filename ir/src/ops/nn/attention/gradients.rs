//! Gradients of attention, and gradients of those, where a weight of zero takes no part either.

use super::Attentions;
use crate::kernel::attention::kept_scale;
use crate::op::{GradCx, Grads};
use crate::ops::elementwise::Elementwise;
use crate::ops::linalg::Products;
use crate::ops::random::Random;
use crate::ops::reduce::Reductions;
use crate::ops::view::Views;
use crate::{Attrs, DType, Must, Shape, Size, TensorType, Tracer, Var};
use smallvec::smallvec;

/// What is taken from the gradients of weights: for each query the sum of its result times the
/// gradient of that. It is a chain as the products of gradients and values are that it is taken
/// from, so that nothing is left where one key has all the weight.
pub(super) fn less<'t>(dy: Var<'t>, y: Var<'t>) -> Var<'t> {
    let (wide, shape) = (y.dtype().compute(), Shape::new(&y.shape()[..3]));
    let products = dy.to(wide).unsqueeze(3).contract(y.to(wide).unsqueeze(4), None);
    products.reshape_to(&shape).permute([0, 2, 1])
}

/// `[B, L, H, E]` as `[B, H, L, E]` and the other way round.
fn turned(x: Var<'_>) -> Var<'_> {
    x.permute([0, 2, 1, 3])
}

/// Rows of numbers without those that are not finite, which a product with a weight of zero would
/// bring in.
#[derive(Clone, Copy)]
struct Rows<'t> {
    /// Zero in the place of what is not finite.
    numbers: Var<'t>,
    /// For each row zero, or NaN if a number of it is not finite.
    fault: Var<'t>,
}

impl<'t> Rows<'t> {
    fn new(x: Var<'t>) -> Self {
        let zero = x.mul(0.0);
        Rows { numbers: zero.eq(0.0).choose(x, x.tracer().zeros_like(x)), fault: zero.sum(3) }
    }

    /// The product of each row with each row of the other.
    fn times(&self, other: &Rows<'t>) -> Var<'t> {
        self.numbers.contract(other.numbers.t(), None)
    }
}

/// Weights and what they are made of as tensors, which gradients of masks and of gradients need.
struct Weights<'t> {
    q: Rows<'t>,
    /// Keys and values for each head of queries.
    k: Rows<'t>,
    v: Rows<'t>,
    /// `e^(score - lse)`.
    weights: Var<'t>,
    /// True where the weight is zero: nothing there takes part.
    hidden: Var<'t>,
    /// What dropout multiplies them by.
    kept: Option<Var<'t>>,
}

impl<'t> Weights<'t> {
    fn new(
        attrs: &Attrs,
        [q, k, v]: [Var<'t>; 3],
        lse: Var<'t>,
        mask: Option<Var<'t>>,
        rng: Option<Var<'t>>,
    ) -> Self {
        let t = q.tracer();
        let wide = q.dtype().compute();
        let [q, k, v] = [q, k, v].map(|x| x.to(wide));
        let [k, v] = [k, v].map(|x| Rows::new(each_head(x, q.size(1))));
        let q = Rows::new(q);
        let scores = q.times(&k).mul(attrs.float("scale").unwrap_or(1.0));
        let never = t.full(TensorType::scalar(wide), f64::NEG_INFINITY);
        let mut scores = scores.add(fault(q, k));
        if let Some(mask) = mask {
            let is_bool = mask.dtype() == DType::Bool;
            scores = if is_bool {
                mask.choose(scores, never)
            } else {
                let mask = mask.to(wide);
                mask.eq(never).choose(never, scores.add(mask))
            };
        }
        if attrs.bool("causal") {
            let shape = scores.shape();
            let at = |axis| t.iota(DType::I64, &shape, axis);
            scores = at(3).gt(at(2)).choose(never, scores);
        }
        let lse = lse.to(wide);
        let lse = lse.eq(never).choose(t.full(TensorType::scalar(wide), 0.0), lse);
        let p = attrs.float("dropout").unwrap_or(0.0);
        let kept = rng.filter(|_| p > 0.0).map(|rng| {
            let ones = t.full(scores.ty(), 1.0);
            ones.dropout(rng, p, attrs.int("stream").unwrap_or(0))
                .gt(0.0)
                .to(wide)
                .mul(kept_scale(p))
        });
        let weights = scores.sub(lse.unsqueeze(3)).exp();
        // The logarithm of a query that is NaN is NaN, and what it does not see has the weight zero
        // all the same.
        let weights = scores.eq(never).choose(t.zeros_like(weights), weights);
        Weights { q, k, v, weights, hidden: weights.eq(0.0), kept }
    }

    fn kept(&self, x: Var<'t>) -> Var<'t> {
        self.kept.map_or(x, |kept| x.mul(kept))
    }

    /// Zero where the weight is.
    fn seen(&self, x: Var<'t>) -> Var<'t> {
        self.hidden.choose(x.tracer().zeros_like(x), x)
    }

    /// The gradients of the weights, less what is taken from them.
    fn inner(&self, dy: &Rows<'t>, less: Var<'t>) -> Var<'t> {
        let inner = dy.times(&self.v).add(self.seen(fault(*dy, self.v)));
        self.kept(inner).sub(less.to(inner.dtype()).unsqueeze(3))
    }
}

/// For each query and key zero, or NaN where a number of either is not finite.
fn fault<'t>(queries: Rows<'t>, keys: Rows<'t>) -> Var<'t> {
    queries.fault.unsqueeze(3).add(keys.fault.unsqueeze(2))
}

/// Keys or values of shared heads for each head of queries.
fn each_head<'t>(x: Var<'t>, heads: Size) -> Var<'t> {
    let [batch, shared, keys, width] = [0, 1, 2, 3].map(|axis| x.size(axis));
    if shared == heads {
        return x;
    }
    let group = group(x.tracer(), heads, shared);
    let whole = Shape::new(&[batch, shared, group, keys, width]);
    x.unsqueeze(2).expand_to(&whole).reshape_to(&Shape::new(&[batch, heads, keys, width]))
}

/// The other way round: the sum over heads of queries.
fn of_shared<'t>(x: Var<'t>, shared: Size) -> Var<'t> {
    let [batch, heads, keys, width] = [0, 1, 2, 3].map(|axis| x.size(axis));
    if shared == heads {
        return x;
    }
    let group = group(x.tracer(), heads, shared);
    x.reshape_to(&Shape::new(&[batch, shared, group, keys, width])).sum(2)
}

/// How many heads of queries share one of keys.
fn group(t: &Tracer, heads: Size, shared: Size) -> Size {
    let numbers = t.with_graph(|graph| {
        let must = Must::proven(graph.sizes());
        must.number(heads).zip(must.number(shared))
    });
    numbers.map_or(heads / shared, |(heads, shared)| Size::from(heads / shared.max(1)))
}

pub(super) fn gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let of @ [q, k, v] = [0, 1, 2].map(|i| cx.args[i]);
    let (mask, rng) = (cx.get(3), cx.get(4));
    let (y, lse) = (cx.outs[0], cx.outs[1]);
    let (dy, wide) = (cx.dy(), q.dtype().compute());
    let mut less = less(dy, y);
    if let Some(of_lse) = cx.dys[1] {
        less = less.sub(of_lse);
    }
    let [causal, scale, p, stream] = attributes(cx.attrs);
    let back = dy.attention_backward(
        q,
        k,
        v,
        lse,
        less,
        mask,
        rng,
        causal != 0.0,
        scale,
        p,
        stream as i64,
    );
    let mut grads: Grads<'t> = back.results().into_iter().map(|x| Some(turned(x))).collect();
    if let Some(mask) = mask {
        let is_float = mask.dtype().is_float();
        grads.push(is_float.then(|| {
            let of = Weights::new(cx.attrs, of, lse, Some(mask), rng);
            let inner = of.inner(&Rows::new(turned(dy).to(wide)), less);
            of.seen(of.weights.mul(inner)).to(mask.dtype())
        }));
    }
    grads.extend(rng.map(|_| None));
    grads
}

/// `causal`, `scale`, `dropout` and `stream`.
fn attributes(attrs: &Attrs) -> [f64; 4] {
    let float = |name: &str| attrs.float(name).unwrap_or(0.0);
    let stream = attrs.int("stream").unwrap_or(0);
    [f64::from(u8::from(attrs.bool("causal"))), float("scale"), float("dropout"), stream as f64]
}

pub(super) fn gradient_of_gradient<'t>(cx: &GradCx<'_, 't>) -> Grads<'t> {
    let [dy, q, k, v, lse, less] = [0, 1, 2, 3, 4, 5].map(|i| cx.args[i]);
    let (mask, rng) = (cx.get(6), cx.get(7));
    let (wide, scale) = (q.dtype().compute(), cx.attrs.float("scale").unwrap_or(1.0));
    let of = Weights::new(cx.attrs, [q, k, v], lse, mask, rng);
    let (shared, heads) = (k.size(1), q.size(1));
    let of_dq = cx.dys[0].map(|x| Rows::new(turned(x).to(wide)));
    let [of_dk, of_dv] =
        [1, 2].map(|i| cx.dys[i].map(|x| Rows::new(each_head(turned(x).to(wide), heads))));
    let dy = Rows::new(turned(dy).to(wide));
    let sum = |parts: [Option<Var<'t>>; 2]| parts.into_iter().flatten().reduce(|a, b| a.add(b));
    // What is not finite in a query or a key, wherever it stands, is met by all that see each
    // other.
    let faults = |all: &[Option<Rows<'t>>], axis: i64| {
        let all = all.iter().flatten().map(|rows| rows.fault).reduce(|a, b| a.add(b));
        all.map(|fault| fault.unsqueeze(axis))
    };
    let of_queries = faults(&[Some(of.q), Some(dy), of_dq], 3);
    let of_keys = faults(&[Some(of.k), Some(of.v), of_dk, of_dv], 2);
    let fault = sum([of_queries, of_keys]);
    let seen = |x: Var<'t>| of.seen(fault.map_or(x, |fault| x.add(fault)));
    let inner = of.inner(&dy, less);
    let along = seen(of.weights.mul(inner));
    let zeros = cx.tracer.zeros_like(inner);
    // What arrives at `along`, and at weights.
    let at_along = sum([of_dq.map(|x| x.times(&of.k)), of_dk.map(|x| of.q.times(&x))]);
    let at_along = at_along.map_or(zeros, |x| x.mul(scale));
    let at_inner = seen(of.weights.mul(at_along));
    let at_kept = of_dv.map(|x| of.kept(dy.times(&x)));
    let at_weights = at_kept.map_or(at_along.mul(inner), |x| x.add(at_along.mul(inner)));
    let at_scores = seen(of.weights.mul(at_weights));
    let (at_product, used) = (of.kept(at_inner), of.kept(seen(of.weights)));
    let through = |left: Var<'t>, right: Rows<'t>| left.contract(right.numbers, None);
    let g_dy = sum([of_dv.map(|x| through(used, x)), Some(through(at_product, of.v))]);
    let g_q = sum([of_dk.map(|x| through(along, x)), Some(through(at_scores, of.k))]);
    let g_k = sum([of_dq.map(|x| through(along.t(), x)), Some(through(at_scores.t(), of.q))]);
    let g_v = Some(of_shared(through(at_product.t(), dy), shared));
    let g_lse = at_scores.sum(3).neg();
    let g_less = at_inner.sum(3).neg();
    let mut grads: Grads<'t> = smallvec![
        g_dy.map(|x| turned(x).to(cx.args[0].dtype())),
        g_q.map(|x| x.mul(scale).to(q.dtype())),
        g_k.map(|x| of_shared(x.mul(scale), shared).to(k.dtype())),
        g_v.map(|x| x.to(v.dtype())),
        Some(g_lse.to(lse.dtype())),
        Some(g_less.to(less.dtype())),
    ];
    if let Some(mask) = mask {
        grads.push(mask.dtype().is_float().then(|| at_scores.to(mask.dtype())));
    }
    grads.extend(rng.map(|_| None));
    grads
}
