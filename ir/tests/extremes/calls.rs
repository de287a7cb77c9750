//! Functions with numbers of all kinds: which axis, how many, how much.

use crate::numbers::{DTYPES, Numbers};
use tracecast_ir::functions::{MultiHead, PadMode, Pick, diff, stack};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, IntoDims, TensorType, Var};

pub(crate) type Call = for<'t> fn(Var<'t>, &mut Numbers) -> Vec<Var<'t>>;

/// The seed of random functions.
pub(crate) fn seed<'t>(x: Var<'t>) -> Var<'t> {
    x.tracer().input("rng", TensorType::new(DType::I64, [2]))
}

pub(crate) const VIEWS: &[(&str, Call)] = &[
    ("transpose", |x, n| vec![x.transpose(n.dim(), n.dim())]),
    ("movedim", |x, n| vec![x.movedim(&n.dims(), &n.dims())]),
    ("squeeze", |x, n| vec![x.squeeze(&n.dims())]),
    ("flatten", |x, n| vec![x.flatten(n.dim(), n.dim())]),
    ("unflatten", |x, n| vec![x.unflatten(n.dim(), &n.ints())]),
    ("at_least", |x, n| vec![x.at_least(n.int() as usize)]),
    ("narrow", |x, n| vec![x.narrow(n.dim(), n.int(), n.int())]),
    ("select", |x, n| vec![x.select(n.dim(), n.int())]),
    ("slice_of", |x, n| vec![x.slice_of(n.dim(), n.maybe(), n.maybe(), n.int())]),
    ("repeat", |x, n| vec![x.repeat(&n.ints())]),
    ("tile", |x, n| vec![x.tile(&n.ints())]),
    ("repeat_interleave", |x, n| vec![x.repeat_interleave(n.int(), n.maybe())]),
    ("sum_to_size", |x, n| vec![x.sum_to_size(&n.ints())]),
    ("flip", |x, n| vec![x.flip(&n.dims())]),
    ("roll", |x, n| vec![x.roll(&n.ints(), &n.dims())]),
    ("roll all", |x, n| vec![x.roll(&[n.int()], &[])]),
    ("rot90", |x, n| vec![x.rot90(n.int(), &[n.dim(), n.dim()])]),
    ("pad_last", |x, n| {
        let sizes = if n.flag() { n.ints() } else { vec![n.int(), n.int()] };
        let constant = PadMode::Constant(n.float());
        let mode = n.pick(&[constant, PadMode::Reflect, PadMode::Replicate, PadMode::Circular]);
        vec![x.pad_last(&sizes, mode)]
    }),
    ("split_with_sizes", |x, n| x.split_with_sizes(&n.ints(), n.dim())),
    ("split", |x, n| x.split(n.int(), n.dim())),
    ("chunk", |x, n| x.chunk(n.int(), n.dim())),
    ("tensor_split", |x, n| x.tensor_split(n.int(), n.dim())),
    ("split_at", |x, n| x.split_at(&n.ints(), n.dim())),
    ("unbind", |x, n| x.unbind(n.dim())),
    ("hsplit", |x, n| x.hsplit(n.int())),
    ("vsplit", |x, n| x.vsplit(n.int())),
    ("dsplit", |x, n| x.dsplit(n.int())),
    ("unfold", |x, n| vec![x.unfold(n.dim(), n.int(), n.int())]),
    ("as_strided", |x, n| {
        if n.flag() {
            vec![x.as_strided(&n.ints(), &n.ints(), n.int())]
        } else {
            vec![x.as_strided(&[n.int(), n.int()], &[n.int(), n.int()], n.int())]
        }
    }),
    ("pick", |x, n| {
        let one = |n: &mut Numbers| match n.below(5) {
            0 => Pick::At(n.int()),
            1 => Pick::New,
            2 => Pick::Rest,
            3 => Pick::Of(n.places(x)),
            _ => Pick::Range(n.maybe(), n.maybe(), n.int()),
        };
        let index: Vec<Pick<'_>> = (0..n.below(4)).map(|_| one(n)).collect();
        vec![x.pick(&index)]
    }),
    ("stack", |x, n| vec![stack(&[x, x], n.int())]),
];

pub(crate) const INDICES: &[(&str, Call)] = &[
    ("diagonal", |x, n| vec![x.diagonal(n.int(), n.dim(), n.dim())]),
    ("diag_embed", |x, n| vec![x.diag_embed(n.int(), n.dim(), n.dim())]),
    ("diag", |x, n| vec![x.diag(n.int())]),
    ("diagflat", |x, n| vec![x.diagflat(n.int())]),
    ("diagonal_scatter", |x, n| {
        let offset = n.int();
        let src = if x.rank() > 1 { x.diagonal(offset, 0, 1) } else { x };
        vec![x.diagonal_scatter(src, offset, n.dim(), n.dim())]
    }),
    ("tril", |x, n| vec![x.tril(n.int())]),
    ("triu", |x, n| vec![x.triu(n.int())]),
    ("narrow_at", |x, n| vec![x.narrow_at(n.dim(), n.other(x), n.int())]),
    ("index_select", |x, n| vec![x.index_select(n.dim(), n.places(x))]),
    ("take_along_dim", |x, n| vec![x.take_along_dim(n.places(x), n.maybe())]),
    ("embedding_with", |x, n| vec![x.embedding_with(n.places(x), n.maybe(), n.flag())]),
    ("limited", |x, n| vec![x.limited(n.float(), n.float())]),
    ("one_hot_rows", |x, n| vec![x.one_hot_rows(n.int())]),
    ("select_scatter", |x, n| vec![x.select_scatter(n.other(x), n.dim(), n.int())]),
    ("slice_scatter", |x, n| {
        let (start, end, step) = (n.maybe(), n.maybe(), n.int());
        let has_part = step > 0 && x.rank() > 0;
        let src = if has_part { x.slice_of(0, start, end, step) } else { x };
        vec![x.slice_scatter(src, n.pick(&[0, 0, 0, 7]), start, end, step)]
    }),
    ("index_fill", |x, n| vec![x.index_fill(n.dim(), n.places(x), n.float())]),
    ("scatter_value", |x, n| vec![x.scatter_value(n.places(x), n.float(), n.dim())]),
    ("masked_fill", |x, n| vec![x.masked_fill(x.ne(0.0), n.float())]),
    ("diff", |x, n| vec![diff(x, n.int(), n.dim(), None, None)]),
    ("matrix_power", |x, n| vec![x.matrix_power(n.int())]),
    ("tensordot", |x, n| vec![x.tensordot(x, &n.dims(), &n.dims())]),
    ("cross", |x, n| vec![x.cross(x, n.dim())]),
    ("max", |x, n| vec![x.max(n.dim()).0]),
    ("min", |x, n| vec![x.min(n.dim()).1]),
    ("mode", |x, n| vec![x.mode(n.dim()).0]),
    ("any", |x, n| vec![x.any(&n.dims())]),
    ("all", |x, n| vec![x.all(n.dims().keep())]),
    ("count_nonzero", |x, n| vec![x.count_nonzero(&n.dims())]),
    ("aminmax", |x, n| vec![x.aminmax(&n.dims()).1]),
    ("nanmean", |x, n| vec![x.nanmean(&n.dims())]),
    ("safe_softmax", |x, n| vec![x.safe_softmax(n.dim())]),
    ("softmin", |x, n| vec![x.softmin(n.dim())]),
];

pub(crate) const VALUES: &[(&str, Call)] = &[
    ("celu", |x, n| vec![x.celu(n.float())]),
    ("hardshrink", |x, n| vec![x.hardshrink(n.float())]),
    ("hardtanh", |x, n| vec![x.hardtanh(n.float(), n.float())]),
    ("leaky_relu", |x, n| vec![x.leaky_relu(n.float())]),
    ("softshrink", |x, n| vec![x.softshrink(n.float())]),
    ("threshold", |x, n| vec![x.threshold(n.float(), n.float())]),
    ("add_scaled", |x, n| vec![x.add_scaled(x, n.float())]),
    ("isclose", |x, n| vec![x.isclose(x, n.float(), n.float(), n.flag())]),
    ("shifted", |x, n| vec![x.shifted(n.int())]),
    ("nan_to_num", |x, n| vec![x.nan_to_num(Some(n.float()), Some(n.float()), Some(n.float()))]),
    ("round_places", |x, n| vec![x.round_places(n.int())]),
    ("clamp_to", |x, n| vec![x.clamp_to(Some(n.float()), n.flag().then_some(1.0))]),
    ("beside", |x, n| vec![x.beside(n.float()).0]),
    ("gaussian_nll_loss", |x, n| {
        vec![x.gaussian_nll_loss(x, x, n.flag(), n.float(), Some("none"))]
    }),
    ("normalize", |x, n| vec![x.normalize(n.float(), n.dim(), n.float())]),
    ("pairwise_distance", |x, n| vec![x.pairwise_distance(x, n.float(), n.float(), n.flag())]),
    ("matrix_norm", |x, n| vec![x.matrix_norm(&n.dims(), n.float())]),
    ("native_layer_norm", |x, n| x.native_layer_norm(&n.ints(), None, None, n.float())),
    ("native_group_norm", |x, n| x.native_group_norm(None, None, n.int(), n.float())),
    ("local_response_norm", |x, n| {
        vec![x.local_response_norm(n.int(), n.float(), n.float(), n.float())]
    }),
    ("rotary", |x, n| {
        let positions = x.tracer().full(TensorType::scalar(DType::I64), 3.0);
        vec![x.rotary(positions, n.float())]
    }),
    ("_scaled_dot_product_flash_attention_for_cpu", |x, n| {
        let scale = Some(n.float());
        vec![x.scaled_dot_product_flash_attention_for_cpu(x, x, None, n.flag(), scale).0]
    }),
    ("multi_head_attention_forward", |x, n| {
        let of = MultiHead::new(n.int() as usize, vec![x, x, x]);
        vec![x.multi_head_attention_forward(x, x, &of).0]
    }),
    ("lp_pool", |x, n| vec![x.lp_pool(n.float(), &n.ints(), &n.ints(), n.flag())]),
    ("max_unpool1d", |x, n| vec![x.max_unpool1d(n.places(x), n.int())]),
    ("normal", |x, n| vec![x.normal(seed(x), n.float(), n.float(), n.int())]),
];

pub(crate) const IMAGES: &[(&str, Call)] = &[
    ("im2col", |x, n| vec![x.im2col(&n.ints(), &[n.int()], &[n.int()], &[n.int()])]),
    ("im2col of small windows", |x, n| vec![x.im2col(&[2], &[n.int()], &[n.int()], &[n.int()])]),
    ("col2im", |x, n| {
        let size = if n.flag() { n.ints() } else { vec![n.int(), n.int()] };
        let [dilation, padding] = [n.int(), n.int()];
        vec![x.col2im(&size, &[n.pick(&[1, 2, 1 << 20])], &[dilation], &[padding], &[n.int()])]
    }),
    ("interpolate", |x, n| {
        let (size, factor) = if n.flag() { (n.ints(), vec![]) } else { (vec![], n.floats()) };
        let mode = n.pick(&["nearest", "nearest-exact", "linear", "bilinear", "bicubic", "area"]);
        let corners = mode.ends_with('r').then(|| n.flag());
        vec![x.interpolate(&size, &factor, mode, corners, n.flag() && size.is_empty(), false)]
    }),
    ("affine_grid", |x, n| {
        let map = x.tracer().full(TensorType::new(DType::F32, [1, 2, 3]), 1.0);
        vec![map.affine_grid(&[1, n.int(), n.int(), n.int()], n.flag()), x]
    }),
    ("pixel_shuffle", |x, n| vec![x.pixel_shuffle(n.int())]),
    ("pixel_unshuffle", |x, n| vec![x.pixel_unshuffle(n.int())]),
    ("channel_shuffle", |x, n| vec![x.channel_shuffle(n.int())]),
    ("alpha_dropout", |x, n| vec![x.alpha_dropout(seed(x), n.float(), n.int())]),
    ("feature_dropout", |x, n| vec![x.feature_dropout(seed(x), n.float(), n.int())]),
    ("feature_alpha_dropout", |x, n| vec![x.feature_alpha_dropout(seed(x), n.float(), n.int())]),
    ("bernoulli_each", |x, n| vec![x.bernoulli_each(seed(x), n.int())]),
    ("exponential", |x, n| vec![x.exponential(seed(x), n.float(), n.int())]),
    ("multinomial", |x, n| vec![x.multinomial(seed(x), n.int(), n.flag(), n.int())]),
    ("randint", |x, n| vec![x.randint(seed(x), n.int(), n.int(), n.int())]),
    ("arange", |x, n| vec![x.tracer().arange(n.float(), n.float(), n.float(), n.pick(&DTYPES)), x]),
    ("eye", |x, n| vec![x.tracer().eye(n.int(), n.int(), n.pick(&DTYPES)), x]),
    ("linspace", |x, n| {
        let t = x.tracer();
        let (from, to) = (t.scalar(n.float()), t.scalar(n.float()));
        vec![t.linspace(from, to, n.int(), n.pick(&DTYPES)), x]
    }),
    ("logspace", |x, n| {
        let t = x.tracer();
        let (from, to) = (t.scalar(n.float()), t.scalar(n.float()));
        vec![t.logspace(from, to, n.int(), n.float(), n.pick(&DTYPES)), x]
    }),
    ("triangle_indices", |x, n| {
        vec![x.tracer().triangle_indices(n.int(), n.int(), n.int(), n.flag()), x]
    }),
];
