//! Attention: `scaled_dot_product_attention`, and the core ops that it and its gradient are made
//! of.

mod gradients;

use crate::kernel::attention::Pass;
use crate::op::{
    Dispatch, Domain, ExpandCx, FLOATS, Facts, InferCx, Inferred, Lower, Rounding, composite_own,
    core, rule,
};
use crate::ops::infer;
use crate::ops::view::{Views, cat};
use crate::{Attrs, DType, Must, Results, Shape, Size, TensorType, Var};
use gradients::{gradient, gradient_of_gradient, less};
use smallvec::smallvec;

const ROUNDED: Rounding = Rounding::result(
    "weights, for the product with values; the result; gradients of scores, for the products with queries and keys; each gradient",
);

crate::ops! { trait Attentions;

/// Means of `value` over keys, `softmax(query · keyᵀ · scale + mask) · value`, with PyTorch's
/// arguments.
///
/// `query` is `[.., L, E]`, `key` `[.., S, E]`, `value` `[.., S, Ev]`; leading axes broadcast. The
/// mask broadcasts to `[.., L, S]`: bool, true where a query sees a key, or floats, of f32 or of
/// the dtype of `query`, that are added to the scores; minus infinity takes a key out. With
/// `is_causal` each query sees the keys up to its own position. `scale` is one over the root of `E`
/// unless it is given; keys without numbers count alike. With `enable_gqa` each head of keys and
/// values, along the third axis from the end, serves as many heads of queries. With `rng` weights
/// are dropped with probability `dropout_p`, as [`DROPOUT`](super::super::random::DROPOUT) would
/// drop elements of a tensor of all weights. A query that sees no key, or of no keys, has the
/// result zero.
///
/// In f32 a result is at most `ε (E + 24) (1 + s) v` away from plain mathematics, where `ε` is
/// 2⁻²³, `s` the largest magnitude of a score that is seen and `v` that of a value. What rounds is
/// told by [`attention`](mod@crate::kernel::attention).
///
/// In 16 bits scores, weights and all sums are f32. Weights and the gradients of scores are rounded
/// where they are multiplied with values, queries and keys, as in PyTorch's kernels, unless values
/// have another width than keys.
SCALED_DOT_PRODUCT_ATTENTION = scaled_dot_product_attention(query, key, value, attn_mask: optional, rng: optional; dropout_p: Float, is_causal: Bool, scale: OptFloat, enable_gqa: Bool, stream: Int) -> (y) {
    infer:    &inferred,
    body:     composite_own(None, &expanded),
    rounding: ROUNDED,
    facts:    Facts::new().draws(drawn),
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 3, 4], T[2, 5, 4], T[2, 5, 3] {dropout_p = 0.0, is_causal = true, stream = 0}",
        "T[2, 4, 3, 4], T[1, 2, 5, 4], T[1, 2, 5, 4], bool[2, 1, 3, 5] {dropout_p = 0.0, enable_gqa = true, stream = 0}",
        "T[3, 4], T[5, 4], T[5, 4], T[5] {dropout_p = 0.0, scale = 0.3, stream = 0}",
        "T[2, 2, 3, 4], T[2, 2, 5, 4], T[2, 2, 5, 4], none, i64[2] {dropout_p = 0.4, stream = 7}",
    ] },
}

/// What [`SCALED_DOT_PRODUCT_ATTENTION`] is made of, over four axes: `q` is `[B, H, L, E]`, `k`
/// `[B, G, S, E]`, `v` `[B, G, S, Ev]`, the mask `[B, H, L, S]`.
///
/// Gives the result as `[B, L, H, Ev]`, and the logarithms of the sums of weights `[B, H, L]` in
/// f32, in f64 for f64. What is computed, and in which order, is told by
/// [`attention`](mod@crate::kernel::attention).
ATTENTION = attention(q, k, v, mask: optional, rng: optional; causal: Bool, scale: Float, dropout: Float, stream: Int) -> (y, lse) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let sizes = sizes(cx, 0)?;
        options(cx, &sizes, 3)?;
        let Sizes { batch, heads, queries, value, dtype, .. } = sizes;
        let lse = TensorType { dtype: dtype.compute(), shape: Shape::new(&[batch, heads, queries]) };
        Ok(Inferred::many([TensorType { dtype, shape: Shape::new(&[batch, queries, heads, value]) }, lse]))
    },
    body:     core(rule(&|cx| gradient(cx)), Lower::Attention(Pass::Forward)),
    rounding: ROUNDED,
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 4, 5, 8], T[2, 2, 7, 8], T[2, 2, 7, 6] {scale = 0.4, dropout = 0.0, stream = 0}",
        "T[2, 2, 9, 4], T[2, 2, 6, 4], T[2, 2, 6, 4] {causal = true, scale = 0.5, dropout = 0.0, stream = 0}",
        "T[1, 3, 4, 5], T[1, 1, 6, 5], T[1, 1, 6, 3], bool[1, 3, 4, 6] {scale = 0.7, dropout = 0.0, stream = 0}",
        "T[1, 2, 4, 5], T[1, 2, 6, 5], T[1, 2, 6, 3], T[1, 2, 4, 6], i64[2] {scale = 0.7, dropout = 0.3, stream = 2}",
        "T[1, 1, 3, 4], T[1, 1, 300, 4], T[1, 1, 300, 2] {scale = 0.5, dropout = 0.0, stream = 0}",
    ] },
}

/// The gradients of the operands of [`ATTENTION`], as `[B, L, H, E]`, `[B, S, G, E]` and
/// `[B, S, G, Ev]`: from that of its result, from the logarithms of the sums of weights, and from
/// what is taken from the gradients of weights, `[B, H, L]`: for each query the sum of its result
/// times the gradient of that.
ATTENTION_BACKWARD = attention_backward(dy, q, k, v, lse, less, mask: optional, rng: optional; causal: Bool, scale: Float, dropout: Float, stream: Int) -> (dq, dk, dv) {
    dispatch: Dispatch::Internal,
    infer:    &|cx| {
        let of = sizes(cx, 1)?;
        options(cx, &of, 6)?;
        let Sizes { batch, heads, shared, queries, keys, width, value, dtype } = of;
        let dy = cx.operand(0);
        if dy.dtype != dtype || !cx.must.alike(&dy.shape, &[batch, queries, heads, value]) {
            return Err(format!("`dy` is {dy}, and the result {}", TensorType { dtype, shape: Shape::new(&[batch, queries, heads, value]) }));
        }
        for (operand, name) in [(4, "lse"), (5, "less")] {
            let t = cx.operand(operand);
            if !t.dtype.is_float() || !cx.must.alike(&t.shape, &[batch, heads, queries]) {
                return Err(format!("`{name}` is {t}, expected a number for each of [{batch}, {heads}, {queries}]"));
            }
        }
        let ty = |sizes: [Size; 4]| TensorType { dtype, shape: Shape::new(&sizes) };
        Ok(Inferred::many([ty([batch, queries, heads, width]), ty([batch, keys, shared, width]), ty([batch, keys, shared, value])]))
    },
    body:     core(rule(&|cx| gradient_of_gradient(cx)), Lower::Attention(Pass::Backward)),
    rounding: Rounding::result("weights and gradients of scores, for the products with them; each result"),
    domain:   Domain { dtypes: FLOATS, samples: &[
        "T[2, 5, 4, 6], T[2, 4, 5, 8], T[2, 2, 7, 8], T[2, 2, 7, 6], T[2, 4, 5] in 0 2, T[2, 4, 5] {scale = 0.4, dropout = 0.0, stream = 0}",
        "T[1, 9, 2, 4], T[1, 2, 9, 4], T[1, 2, 6, 4], T[1, 2, 6, 4], T[1, 2, 9] in 0 2, T[1, 2, 9], none, i64[2] {causal = true, scale = 0.5, dropout = 0.4, stream = 1}",
        "T[1, 4, 3, 3], T[1, 3, 4, 5], T[1, 1, 6, 5], T[1, 1, 6, 3], T[1, 3, 4] in 0 2, T[1, 3, 4], bool[1, 3, 4, 6] {scale = 0.7, dropout = 0.0, stream = 0}",
        "T[1, 4, 2, 3], T[1, 2, 4, 5], T[1, 2, 6, 5], T[1, 2, 6, 3], T[1, 2, 4] in 0 2, T[1, 2, 4], T[1, 2, 4, 6] {scale = 0.7, dropout = 0.0, stream = 0}",
    ] },
}
}

/// What a call of the core op has besides its operands, without dropout.
pub(crate) struct Options<'t> {
    pub(crate) mask: Option<Var<'t>>,
    pub(crate) causal: bool,
    pub(crate) scale: f64,
}

/// The core op: the result with heads behind positions, and the logarithms of the sums of weights.
pub(crate) fn attend<'t>([q, k, v]: [Var<'t>; 3], of: &Options<'t>) -> (Var<'t>, Var<'t>) {
    let none = None::<Var<'t>>;
    let y = q.attention(k, v, of.mask, none, of.causal, of.scale, 0.0, 0);
    let results = y.results();
    (y, results[results.len() - 1])
}

/// Its gradients, with heads behind positions as in `dy` and `y`.
pub(crate) fn backward<'t>(
    dy: Var<'t>,
    [q, k, v]: [Var<'t>; 3],
    y: Var<'t>,
    lse: Var<'t>,
    of: &Options<'t>,
) -> Results<'t> {
    let less = less(dy, y);
    let none = None::<Var<'t>>;
    dy.attention_backward(q, k, v, lse, less, of.mask, none, of.causal, of.scale, 0.0, 0).results()
}

/// The sizes of the operands of a core op.
struct Sizes {
    batch: Size,
    heads: Size,
    shared: Size,
    queries: Size,
    keys: Size,
    width: Size,
    value: Size,
    dtype: DType,
}

/// Those of queries, keys and values, from that operand on.
fn sizes(cx: &InferCx<'_>, from: usize) -> Result<Sizes, String> {
    let [q, k, v] = [0, 1, 2].map(|i| cx.operand(from + i));
    let ([batch, heads, queries, width], [b, shared, keys, e], [c, g, s, value]) =
        (&q.shape[..], &k.shape[..], &v.shape[..])
    else {
        return Err(format!("takes three tensors of four axes, found {q}, {k} and {v}"));
    };
    let dtype = alike(q, k, v)?;
    let equal = |a: &Size, b: &Size| cx.must.equal(*a, *b);
    let fits = equal(batch, b) && equal(batch, c) && equal(width, e) && equal(shared, g);
    if !fits || !equal(keys, s) {
        return Err(format!("{q}, {k} and {v} do not go together"));
    }
    divides(cx.must, *heads, *shared).map_err(|why| format!("{why}: {q}, {k} and {v}"))?;
    countable(&Shape::new(&[*batch, *heads, *queries, *keys]))?;
    let [batch, heads, queries, width] = [*batch, *heads, *queries, *width];
    let [shared, keys, value] = [*shared, *keys, *value];
    Ok(Sizes { batch, heads, shared, queries, keys, width, value, dtype })
}

/// The one floating point dtype of three operands.
fn alike(q: &TensorType, k: &TensorType, v: &TensorType) -> Result<DType, String> {
    infer::need_float(q)?;
    if k.dtype != q.dtype || v.dtype != q.dtype {
        return Err(format!("takes three tensors of one dtype, found {q}, {k} and {v}"));
    }
    Ok(q.dtype)
}

/// How many times the heads of keys those of queries are.
fn divides(must: &Must<'_>, heads: Size, shared: Size) -> Result<(), String> {
    let numbers = || must.number(heads).zip(must.number(shared));
    let whole = heads == shared
        || numbers().is_some_and(|(heads, shared)| shared > 0 && heads % shared == 0);
    if whole {
        Ok(())
    } else {
        Err(format!("{shared} heads of keys do not divide {heads} of queries"))
    }
}

/// Checks mask, generator and probability of a core op.
fn options(cx: &InferCx<'_>, of: &Sizes, from: usize) -> Result<(), String> {
    if let Some(mask) = cx.get(from) {
        mask_dtype(mask)?;
        let shape = [of.batch, of.heads, of.queries, of.keys];
        if !cx.must.alike(&mask.shape, &shape) {
            return Err(format!(
                "the mask is {mask}, expected a number for each of {}",
                Shape::new(&shape)
            ));
        }
    }
    dropout(cx.get(from + 1), cx.attrs.float("dropout").unwrap_or(0.0), 4)?;
    stream(cx.attrs)
}

/// There are not more weights than can be counted.
fn countable(weights: &Shape) -> Result<(), String> {
    match weights.has_names() || weights.checked_numel().is_some() {
        true => Ok(()),
        false => Err(format!("{weights} are too many weights")),
    }
}

fn mask_dtype(mask: &TensorType) -> Result<(), String> {
    if mask.dtype == DType::Bool || mask.dtype.is_float() && mask.dtype.is_computable() {
        return Ok(());
    }
    Err(format!("takes masks of bool or floating point, found {mask}"))
}

fn stream(attrs: &Attrs) -> Result<(), String> {
    let stream = attrs.int("stream").unwrap_or(0);
    let fits = u32::try_from(stream).map(|_| ());
    fits.map_err(|_| format!("`stream` is {stream}, expected 0 to {}", u32::MAX))
}

fn dropout(rng: Option<&TensorType>, p: f64, rank: usize) -> Result<(), String> {
    if !(0.0..=1.0).contains(&p) {
        return Err(format!("the probability of dropout is {p}, expected 0 to 1"));
    }
    let Some(rng) = rng else {
        return match p {
            0.0 => Ok(()),
            p => Err(format!("drops weights with probability {p}, and has no `rng`")),
        };
    };
    let fits = |n: usize| *rng == TensorType::new(DType::I64, [n]);
    if fits(2) || rank <= 4 && fits(3 + rank) {
        return Ok(());
    }
    Err(format!(
        "`rng` is {rng}, expected i64[2]: a key and a step; or of up to four axes a number more than axes and two, for a part of a batch"
    ))
}

/// The shape of weights that are dropped at random.
fn drawn(must: &Must<'_>, attrs: &Attrs, of: &[TensorType]) -> Option<Shape> {
    let [q, k, v, ..] = of else { return None };
    let drops = attrs.float("dropout_p").is_some_and(|p| p > 0.0);
    if !drops || [q, k, v].iter().any(|x| x.shape.rank() < 2) {
        return None;
    }
    let lead = leading(must, attrs, [q, k, v]).ok()?.result;
    let [queries, keys] = [q, k].map(|x| x.shape[x.shape.rank() - 2]);
    Some(lead.iter().copied().chain([queries, keys]).collect())
}

/// The leading axes of the result, the heads of keys last among those of keys.
struct Leading {
    result: Shape,
    keys: Shape,
}

fn leading(must: &Must<'_>, attrs: &Attrs, [q, k, v]: [&TensorType; 3]) -> Result<Leading, String> {
    let outer = |t: &TensorType| Shape::new(&t.shape[..t.shape.rank() - 2]);
    let [of_q, of_k, of_v] = [q, k, v].map(outer);
    if !attrs.bool("enable_gqa") || [&of_q, &of_k, &of_v].iter().any(|outer| outer.rank() == 0) {
        let of_keys = infer::broadcast(must, &of_k, &of_v)?;
        let result = infer::broadcast(must, &of_q, &of_keys)?;
        return Ok(Leading { keys: result.clone(), result });
    }
    let split = |outer: &Shape| {
        let (heads, batch) = outer.split_last().expect("has an axis");
        (Shape::new(batch), *heads)
    };
    let ((q, heads), (k, shared), (v, of_values)) = (split(&of_q), split(&of_k), split(&of_v));
    if !must.equal(shared, of_values) {
        return Err(format!("{shared} heads of keys and {of_values} of values"));
    }
    divides(must, heads, shared)?;
    let batch = infer::broadcast(must, &q, &infer::broadcast(must, &k, &v)?)?;
    let with = |heads: Size| batch.iter().copied().chain([heads]).collect::<Shape>();
    Ok(Leading { result: with(heads), keys: with(shared) })
}

fn inferred(cx: &InferCx<'_>) -> infer::Answer {
    let of @ [q, k, v] = [0, 1, 2].map(|i| cx.operand(i));
    let dtype = alike(q, k, v)?;
    let ([.., queries, width], [.., keys, e], [.., s, value]) =
        (&q.shape[..], &k.shape[..], &v.shape[..])
    else {
        return Err(format!("takes three tensors of at least two axes, found {q}, {k} and {v}"));
    };
    if !cx.must.equal(*width, *e) || !cx.must.equal(*keys, *s) {
        return Err(format!("{q}, {k} and {v} do not go together"));
    }
    // The scale is a number, and so is whether values are as wide as keys.
    let is_told = cx.attrs.float("scale").is_some() || cx.must.number(*width).is_some();
    let wide = v.shape.last().copied().unwrap_or_default();
    if !is_told || wide != *width && cx.must.number(*width).zip(cx.must.number(wide)).is_none() {
        return Err(format!("the widths are {width} and {wide}: pin the sizes"));
    }
    let lead = leading(cx.must, cx.attrs, of).map_err(|why| format!("{why}: {q}, {k} and {v}"))?;
    let lead = lead.result;
    let weights: Shape = lead.iter().chain([queries, keys]).copied().collect();
    countable(&weights)?;
    if let Some(mask) = cx.get(3) {
        mask_dtype(mask)?;
        if mask.dtype.is_float() && mask.dtype != dtype && mask.dtype != DType::F32 {
            let own = if dtype == DType::F32 { String::new() } else { ", f32".to_owned() };
            return Err(format!("takes masks of bool{own} or {dtype}, found {mask}"));
        }
        if cx.attrs.bool("is_causal") {
            return Err("takes a mask or `is_causal`, not both".to_owned());
        }
        if infer::broadcast(cx.must, &mask.shape, &weights)? != weights {
            return Err(format!("the mask is {mask}, and does not broadcast to {weights}"));
        }
    }
    dropout(cx.get(4), cx.attrs.float("dropout_p").unwrap_or(0.0), lead.rank() + 2)?;
    stream(cx.attrs)?;
    let shape = lead.iter().chain([queries, value]).copied().collect();
    Ok(Inferred::one(TensorType { dtype, shape }))
}

fn expanded<'t>(cx: &ExpandCx<'_, 't>) -> Results<'t> {
    let [q, k, v] = [0, 1, 2].map(|i| cx.args[i]);
    let tys = [q, k, v].map(|x| x.ty());
    let [width, value] = [&tys[0], &tys[2]].map(|ty| ty.shape.last().copied().unwrap_or_default());
    let (lead, width, is_as_wide) = cx.tracer.with_graph(|graph| {
        let must = Must::proven(graph.sizes());
        let lead = leading(&must, cx.attrs, [&tys[0], &tys[1], &tys[2]]);
        (lead, must.number(width), must.equal(width, value))
    });
    let shape = &cx.results[0].shape;
    // The type rule has said that they broadcast; what names are equal it has found out then.
    let result = Shape::new(&shape[..shape.rank() - 2]);
    let keys = lead.map_or_else(|_| result.clone(), |lead| lead.keys);
    let dtype = cx.results[0].dtype;
    // PyTorch's kernel takes values as wide as keys, and its gradient the rounded result; of others
    // the result is rounded behind everything else.
    let inside = if is_as_wide { dtype } else { dtype.compute() };
    let [q, k, v] = [over(q, &result), over(k, &keys), over(v, &keys)].map(|x| x.to(inside));
    let mask = cx.get(3).map(|mask| over(mask.expand_to(&weights(&result, q, k)), &result));
    let p = cx.attrs.float("dropout_p").unwrap_or(0.0);
    let rng = cx.get(4).filter(|_| p > 0.0).map(|rng| of_four_axes(rng, shape.rank()));
    let scale = cx.attrs.float("scale").unwrap_or_else(|| scale(width.unwrap_or(1)));
    let stream = cx.attrs.int("stream").unwrap_or(0);
    let y = q.attention(k, v, mask, rng, cx.attrs.bool("is_causal"), scale, p, stream);
    smallvec![y.to(dtype).permute([0, 2, 1, 3]).reshape_to(shape)]
}

/// What scores of keys of that width are multiplied by; those of no width are zero, and all keys
/// count alike.
pub(crate) fn scale(width: i64) -> f64 {
    1.0 / (width.max(1) as f64).sqrt()
}

/// What draws for a part of a batch, given its number of axes, for four.
fn of_four_axes(rng: Var<'_>, rank: usize) -> Var<'_> {
    if rank == 4 || rng.size(0) == Size::from(2) {
        return rng;
    }
    let more = 4 - rank;
    let none = rng.tracer().constant(DType::I64, &[more], &vec![0.0; more]);
    cat(&[rng.slice(0, 0, 3, 1), none, rng.slice(0, 3, 3 + rank as i64, 1)], 0)
}

/// The shape of all weights.
fn weights(lead: &Shape, q: Var<'_>, k: Var<'_>) -> Shape {
    lead.iter().copied().chain([q.size(2), k.size(2)]).collect()
}

/// `x` over these leading axes, as a batch of heads.
fn over<'t>(x: Var<'t>, lead: &Shape) -> Var<'t> {
    let inner = [x.size(x.rank() - 2), x.size(x.rank() - 1)];
    let whole: Shape = lead.iter().copied().chain(inner).collect();
    let one = Size::from(1);
    let (heads, batch) =
        lead.split_last().map_or((one, one), |(heads, batch)| (*heads, batch.iter().product()));
    x.expand_to(&whole).reshape_to(&Shape::new(&[batch, heads, inner[0], inner[1]]))
}
