//! Functions of several tensors, of which each may be of any type.

use crate::calls::{Call, seed};
use crate::numbers::Numbers;
use tracecast_ir::functions::{
    self as f, block_diag, broadcast_tensors, column_stack, diff, dstack, einsum, hstack, meshgrid,
    multi_dot, vstack,
};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Size, Var};

/// Two or three tensors.
fn several<'t>(x: Var<'t>, n: &mut Numbers) -> Vec<Var<'t>> {
    vec![x, n.other(x), n.other(x)]
}

pub(crate) const TENSORS: &[(&str, Call)] = &[
    // One tensor, and nothing else.
    ("fliplr", |x, _| vec![x.fliplr()]),
    ("flipud", |x, _| vec![x.flipud()]),
    ("ravel", |x, _| vec![x.ravel()]),
    ("m_t", |x, _| vec![x.m_t()]),
    ("nonzero", |x, _| vec![x.nonzero()]),
    ("argwhere", |x, _| vec![x.argwhere()]),
    ("median_of_all", |x, _| vec![x.median_of_all()]),
    ("nanmedian_of_all", |x, _| vec![x.nanmedian_of_all()]),
    ("all_hold", |x, _| vec![x.all_hold()]),
    ("trace", |x, _| vec![x.trace()]),
    ("relu6", |x, _| vec![x.relu6()]),
    ("tanhshrink", |x, _| vec![x.tanhshrink()]),
    ("softsign", |x, _| vec![x.softsign()]),
    ("selu", |x, _| vec![x.selu()]),
    ("square", |x, _| vec![x.square()]),
    ("sign", |x, _| vec![x.sign()]),
    ("signbit", |x, _| vec![x.signbit()]),
    ("deg2rad", |x, _| vec![x.deg2rad()]),
    ("rad2deg", |x, _| vec![x.rad2deg()]),
    ("isnan", |x, _| vec![x.isnan()]),
    ("isinf", |x, _| vec![x.isinf()]),
    ("isfinite", |x, _| vec![x.isfinite()]),
    ("is_infinity", |x, n| vec![x.is_infinity(n.flag())]),
    ("ceil", |x, _| vec![x.ceil()]),
    ("trunc", |x, _| vec![x.trunc()]),
    ("frac", |x, _| vec![x.frac()]),
    ("round", |x, _| vec![x.round()]),
    // Two.
    ("expand_as", |x, n| vec![x.expand_as(n.other(x))]),
    ("reshape_as", |x, n| vec![x.reshape_as(n.other(x))]),
    ("divided_towards_zero", |x, n| vec![x.divided_towards_zero(n.other(x))]),
    ("logical_xor", |x, n| vec![x.logical_xor(n.other(x))]),
    ("fmax", |x, n| vec![x.fmax(n.other(x))]),
    ("fmin", |x, n| vec![x.fmin(n.other(x))]),
    ("heaviside", |x, n| vec![x.heaviside(n.other(x))]),
    ("copysign", |x, n| vec![x.copysign(n.other(x))]),
    ("equal", |x, n| vec![x.equal(n.other(x))]),
    ("ldexp", |x, n| vec![x.ldexp(n.other(x))]),
    ("float_power", |x, n| vec![x.float_power(n.other(x))]),
    ("lcm", |x, n| vec![x.lcm(n.other(x))]),
    ("add_scaled of two", |x, n| vec![x.add_scaled(n.other(x), n.float())]),
    ("isclose of two", |x, n| vec![x.isclose(n.other(x), 1e-5, 1e-8, n.flag())]),
    ("outer", |x, n| vec![x.outer(n.other(x))]),
    ("inner", |x, n| vec![x.inner(n.other(x))]),
    ("kron", |x, n| vec![x.kron(n.other(x))]),
    ("tensordot of two", |x, n| vec![x.tensordot(n.other(x), &n.dims(), &n.dims())]),
    ("cross of two", |x, n| vec![x.cross(n.other(x), n.dim())]),
    ("swiglu", |x, n| vec![x.swiglu(n.other(x))]),
    ("rotary of two", |x, n| vec![x.rotary(n.other(x), n.float())]),
    ("grid_sample", |x, n| {
        let mode = n.pick(&["bilinear", "nearest", "bicubic", "none"]);
        vec![x.grid_sample(n.other(x), mode, n.pick(&["zeros", "border", "far"]), n.flag())]
    }),
    ("take", |x, n| vec![x.take(n.places(x))]),
    ("masked_select", |x, n| vec![x.masked_select(n.other(x))]),
    ("repeat_interleave_by", |x, n| vec![x.repeat_interleave_by(n.places(x))]),
    ("bucketize", |x, n| vec![x.bucketize(n.other(x), n.flag())]),
    ("isin", |x, n| vec![x.isin(n.other(x), n.flag())]),
    ("masked_fill of two", |x, n| vec![x.masked_fill(n.other(x), n.float())]),
    ("unbiased", |x, n| vec![x.unbiased(Size::from(n.int()))]),
    ("select_scatter of two", |x, n| vec![x.select_scatter(n.other(x), n.dim(), n.int())]),
    ("slice_scatter of two", |x, n| {
        vec![x.slice_scatter(n.other(x), n.dim(), n.maybe(), n.maybe(), n.int())]
    }),
    ("diagonal_scatter of two", |x, n| {
        vec![x.diagonal_scatter(n.other(x), n.int(), n.dim(), n.dim())]
    }),
    ("bernoulli_each of two", |x, n| vec![x.bernoulli_each(n.other(x), n.int())]),
    ("normal of two", |x, n| vec![x.normal(n.other(x), 0.0, 1.0, n.int())]),
    ("multinomial of two", |x, n| vec![x.multinomial(n.other(x), n.int(), n.flag(), 0)]),
    ("feature_dropout of two", |x, n| vec![x.feature_dropout(n.other(x), 0.5, n.int())]),
    // A tensor and a number, in front of it or behind.
    ("where", |x, n| match n.below(3) {
        0 => vec![x.ne(0.0).choose(n.float(), x)],
        1 => vec![x.choose(n.other(x), n.int())],
        _ => vec![x.choose(n.int(), n.float())],
    }),
    ("pow", |x, n| vec![f::pow(n.float(), x)]),
    ("xlogy", |x, n| vec![f::xlogy(n.int(), x)]),
    ("xlog1py", |x, n| vec![f::xlog1py(n.float(), x)]),
    ("floor_divide", |x, n| vec![f::floor_divide(n.int(), x)]),
    ("remainder", |x, n| vec![f::remainder(n.float(), x)]),
    ("bitwise_left_shift", |x, n| vec![f::bitwise_left_shift(n.int(), x)]),
    ("bitwise_right_shift", |x, n| vec![f::bitwise_right_shift(n.int(), x)]),
    ("float_power of a number", |x, n| match n.flag() {
        true => vec![f::float_power(n.float(), x)],
        false => vec![x.float_power(n.int())],
    }),
    ("copysign of a number", |x, n| vec![x.copysign(n.float())]),
    ("divided_towards_zero of a number", |x, n| vec![x.divided_towards_zero(n.float())]),
    ("add_scaled of a number", |x, n| vec![x.add_scaled(n.int(), n.float())]),
    ("isin of a number", |x, n| vec![x.isin(n.float(), n.flag())]),
    ("searchsorted of a number", |x, n| {
        vec![x.searchsorted(n.float(), n.maybe_other(x), n.flag())]
    }),
    ("masked_fill of an element", |x, n| vec![x.masked_fill(x.ne(0.0), n.other(x))]),
    ("bitwise_and", |x, n| vec![x & n.int()]),
    ("bitwise_xor", |x, n| vec![n.int() ^ x]),
    ("bitwise_right_shift of a tensor", |x, n| vec![x >> n.int()]),
    // Several.
    ("clamp", |x, n| vec![x.clamp(n.maybe_other(x), n.maybe_other(x))]),
    ("index_fill_with", |x, n| vec![x.index_fill_with(n.dim(), n.places(x), n.other(x))]),
    ("put", |x, n| vec![x.put(n.places(x), n.other(x), n.flag())]),
    ("masked_scatter", |x, n| vec![x.masked_scatter(n.other(x), n.other(x))]),
    ("searchsorted", |x, n| vec![x.searchsorted(n.other(x), n.maybe_other(x), n.flag())]),
    ("moved", |x, n| vec![x.moved(n.other(x), n.other(x))]),
    ("bilinear", |x, n| vec![x.bilinear(n.other(x), n.other(x), n.maybe_other(x))]),
    ("gaussian_nll_loss of several", |x, n| {
        let reduction = n.pick(&[None, Some("sum"), Some("product")]);
        vec![x.gaussian_nll_loss(n.other(x), n.other(x), n.flag(), 1e-6, reduction)]
    }),
    ("multilabel_soft_margin_loss", |x, n| {
        let reduction = n.pick(&[None, Some("sum"), Some("product")]);
        vec![x.multilabel_soft_margin_loss(n.other(x), n.maybe_other(x), reduction)]
    }),
    ("pairwise_distance of two", |x, n| {
        vec![x.pairwise_distance(n.other(x), n.float(), 1e-6, n.flag())]
    }),
    ("native_layer_norm of several", |x, n| {
        x.native_layer_norm(&n.ints(), n.maybe_other(x), n.maybe_other(x), 1e-5)
    }),
    ("native_group_norm of several", |x, n| {
        x.native_group_norm(n.maybe_other(x), n.maybe_other(x), n.int(), 1e-5)
    }),
    ("native_batch_norm", |x, n| {
        let scale = [n.maybe_other(x), n.maybe_other(x)];
        x.native_batch_norm(scale, [n.maybe_other(x), n.maybe_other(x)], n.flag(), n.float())
    }),
    ("instance_norm", |x, n| {
        let running = n.flag().then(|| [n.other(x), n.other(x)]);
        x.instance_norm(n.maybe_other(x), n.maybe_other(x), running, n.float())
    }),
    ("_scaled_dot_product_flash_attention_for_cpu of several", |x, n| {
        let (key, value, mask) = (n.other(x), n.other(x), n.maybe_other(x));
        vec![x.scaled_dot_product_flash_attention_for_cpu(key, value, mask, n.flag(), None).0]
    }),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", |x, n| {
        let [q, k, v, y, lse] = [0; 5].map(|_| n.other(x));
        let mask = n.maybe_other(x);
        x.scaled_dot_product_flash_attention_for_cpu_backward(q, k, v, y, lse, mask, n.flag(), None)
            .to_vec()
    }),
    ("diff of several", |x, n| vec![diff(x, n.int(), n.dim(), n.maybe_other(x), n.maybe_other(x))]),
    ("hstack", |x, n| vec![hstack(&several(x, n))]),
    ("vstack", |x, n| vec![vstack(&several(x, n))]),
    ("dstack", |x, n| vec![dstack(&several(x, n))]),
    ("column_stack", |x, n| vec![column_stack(&several(x, n))]),
    ("block_diag", |x, n| vec![block_diag(&several(x, n))]),
    ("broadcast_tensors", |x, n| broadcast_tensors(&several(x, n))),
    ("meshgrid", |x, n| meshgrid(&several(x, n), n.flag())),
    ("multi_dot", |x, n| vec![multi_dot(&several(x, n))]),
    ("einsum", |x, n| {
        let equation =
            n.pick(&["ij,jk,kl->il", "i,i,i->", "ii,jj,kk", "...i,...i,...i->...", "a,b", "->"]);
        vec![einsum(equation, &several(x, n))]
    }),
    ("alpha_dropout of two", |x, n| vec![x.alpha_dropout(seed(x), n.float(), n.int())]),
];
