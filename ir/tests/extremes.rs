//! Functions that are several ops take every number: each call is recorded, or refused with the function, the operand's type and the line; and what is recorded
//! runs.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tracecast_ir::eval::{self, Value};
use tracecast_ir::functions::{MultiHead, PadMode, Pick, block_diag, diff, meshgrid, stack};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Graph, IntoDims, Port, TensorType, Tracer, Var};

const INTS: [i64; 18] = [
    0,
    1,
    -1,
    2,
    3,
    -2,
    5,
    63,
    65,
    1 << 31,
    i32::MIN as i64 - 1,
    (1 << 53) + 1,
    1 << 61,
    i64::MAX / 2,
    i64::MAX - 1,
    i64::MAX,
    i64::MIN + 1,
    i64::MIN,
];
const FLOATS: [f64; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.3,
    2.5,
    300.0,
    1e-320,
    1e19,
    -1e300,
    f64::MAX,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];
const SHAPES: [&[usize]; 12] = [
    &[],
    &[0],
    &[1],
    &[6],
    &[3, 3],
    &[0, 4],
    &[2, 3, 4],
    &[1, 4, 6, 6],
    &[1 << 40],
    &[1 << 50, 2],
    &[1 << 45, 0, 1 << 10],
    &[1, 4, 1 << 20, 1 << 20],
];
const DTYPES: [DType; 6] =
    [DType::F32, DType::BF16, DType::F64, DType::I64, DType::U8, DType::Bool];

/// Numbers drawn for the arguments of one call.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Any number, or a small one as often.
    fn int(&mut self) -> i64 {
        if self.below(2) == 0 { self.pick(&INTS) } else { self.pick(&[1, 2, 3]) }
    }

    /// An axis that may be there, or any number.
    fn dim(&mut self) -> i64 {
        if self.below(4) == 0 { self.pick(&INTS) } else { self.pick(&[0, -1, 1]) }
    }

    fn float(&mut self) -> f64 {
        self.pick(&FLOATS)
    }

    fn maybe(&mut self) -> Option<i64> {
        (self.below(3) > 0).then(|| self.int())
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 0
    }

    fn ints(&mut self) -> Vec<i64> {
        (0..self.below(5)).map(|_| self.int()).collect()
    }

    fn dims(&mut self) -> Vec<i64> {
        (0..self.below(4)).map(|_| self.dim()).collect()
    }

    fn floats(&mut self) -> Vec<f64> {
        (0..self.below(4)).map(|_| self.float()).collect()
    }
}

type Call = for<'t> fn(Var<'t>, &mut Numbers) -> Vec<Var<'t>>;

/// The seed of random functions.
fn seed<'t>(x: Var<'t>) -> Var<'t> {
    x.tracer().input("rng", TensorType::new(DType::I64, [2]))
}

/// Positions, some of them beyond every axis.
fn places<'t>(x: Var<'t>) -> Var<'t> {
    x.tracer().constant(DType::I64, &[2], &[0.0, 1.0])
}

const VIEWS: [(&str, Call); 32] =
    [
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
                3 => Pick::Of(places(x)),
                _ => Pick::Range(n.maybe(), n.maybe(), n.int()),
            };
            let index: Vec<Pick<'_>> = (0..n.below(4)).map(|_| one(n)).collect();
            vec![x.pick(&index)]
        }),
        ("stack", |x, n| vec![stack(&[x, x], n.int())]),
        ("joined", |x, n| {
            if n.flag() { vec![block_diag(&[x, x, x])] } else { meshgrid(&[x, x], n.flag()) }
        }),
    ];

const INDICES: [(&str, Call); 26] = [
    ("diagonal", |x, n| vec![x.diagonal(n.int(), n.dim(), n.dim())]),
    ("diag_embed", |x, n| vec![x.diag_embed(n.int(), n.dim(), n.dim())]),
    ("diag", |x, n| vec![x.diag(n.int())]),
    ("diagflat", |x, n| vec![x.diagflat(n.int())]),
    ("diagonal_scatter", |x, n| {
        let offset = n.int();
        vec![x.diagonal_scatter(x.diagonal(offset, 0, 1), offset, n.dim(), n.dim())]
    }),
    ("tril", |x, n| vec![x.tril(n.int())]),
    ("triu", |x, n| vec![x.triu(n.int())]),
    ("narrow_at", |x, n| vec![x.narrow_at(n.dim(), places(x).select(0, 0), n.int())]),
    ("index_select", |x, n| vec![x.index_select(n.dim(), places(x))]),
    ("take_along_dim", |x, n| vec![x.take_along_dim(places(x), n.maybe())]),
    ("embedding_with", |x, n| vec![x.embedding_with(places(x), n.maybe(), n.flag())]),
    ("limited", |x, n| vec![x.limited(n.float(), n.float())]),
    ("one_hot_rows", |x, n| vec![x.one_hot_rows(n.maybe())]),
    ("select_scatter", |x, n| vec![x.select_scatter(x.select(0, 0), n.dim(), n.int())]),
    ("slice_scatter", |x, n| {
        let (start, end, step) = (n.maybe(), n.maybe(), n.int());
        let src = if step > 0 { x.slice_of(0, start, end, step) } else { x };
        vec![x.slice_scatter(src, n.pick(&[0, 0, 0, 7]), start, end, step)]
    }),
    ("index_fill", |x, n| vec![x.index_fill(n.dim(), places(x), n.float())]),
    ("scatter_value", |x, n| vec![x.scatter_value(places(x), n.float(), n.dim())]),
    ("masked_fill", |x, n| vec![x.masked_fill(x.ne(0.0), n.float())]),
    ("diff", |x, n| vec![diff(x, n.int(), n.dim(), None, None)]),
    ("matrix_power", |x, n| vec![x.matrix_power(n.int())]),
    ("tensordot", |x, n| vec![x.tensordot(x, &n.dims(), &n.dims())]),
    ("cross", |x, n| vec![x.cross(x, n.dim())]),
    ("max", |x, n| vec![x.max(n.dim()).0, x.min(n.dim()).1]),
    ("mode", |x, n| vec![x.mode(n.dim()).0]),
    ("any", |x, n| vec![x.any(&n.dims()), x.all(n.dims().keep()), x.count_nonzero(&n.dims())]),
    ("nanmean", |x, n| vec![x.nanmean(&n.dims()), x.safe_softmax(n.dim()), x.softmin(n.dim())]),
];

const VALUES: [(&str, Call); 26] = [
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
    ("flash", |x, n| {
        let scale = Some(n.float());
        vec![x.scaled_dot_product_flash_attention_for_cpu(x, x, None, n.flag(), scale).0]
    }),
    ("heads", |x, n| {
        let of = MultiHead::new(n.int() as usize, vec![x, x, x]);
        vec![x.multi_head_attention_forward(x, x, &of).0]
    }),
    ("lp_pool", |x, n| vec![x.lp_pool(n.float(), &n.ints(), &n.ints(), n.flag())]),
    ("max_unpool1d", |x, n| {
        let index = x.to(DType::I64);
        vec![x.max_unpool1d(index, n.int())]
    }),
    ("normal", |x, n| vec![x.normal(seed(x), n.float(), n.float(), n.int())]),
];

const IMAGES: [(&str, Call); 20] = [
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

const CREATED: [&str; 5] = ["arange", "eye", "linspace", "logspace", "triangle_indices"];

/// Runs a program whose tensors are all small.
fn run(graph: &Graph, name: &str) {
    let few = |ty: &TensorType| ty.shape.checked_numel().is_some_and(|n| n < 20_000);
    let mut types = graph.nodes().flat_map(|id| &graph.node(id).results);
    if graph.len() > 2_000 || !types.all(few) {
        return;
    }
    let given = |port: &Port| {
        let numbers: Vec<f64> = (0..port.ty.numel().get()).map(|i| (i % 2) as f64).collect();
        let value = Value::from_f64s(port.ty.clone(), &numbers).expect("the count fits");
        (port.name.to_string(), value)
    };
    let inputs: HashMap<String, Value> = graph.ports().iter().map(given).collect();
    if let Err(error) = eval::graph(graph, &inputs) {
        let told = error.to_string();
        let known = ["out of range", "too many elements"];
        assert!(known.iter().any(|known| told.contains(known)), "{name}: {told}");
    }
}

/// One call with numbers of that seed.
fn attempt((name, call): (&'static str, Call), seed: u64) -> Result<(), String> {
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    numbers.below(2);
    let (shape, dtype) = (numbers.pick(&SHAPES), numbers.pick(&DTYPES));
    let tracer = Tracer::new("extreme");
    let x = tracer.input("x", TensorType::new(dtype, shape));
    let all = call(x, &mut numbers);
    if let Some(error) = tracer.error() {
        let told = error.to_string();
        // What makes tensors of numbers has no operand.
        let is_of_none = CREATED.contains(&name);
        let names_type = is_of_none || DTYPES.iter().any(|dtype| told.contains(dtype.name()));
        let names_place = error.source_line.contains("extremes.rs") && !error.op.is_empty();
        return if names_type && names_place { Ok(()) } else { Err(told) };
    }
    for (i, y) in all.into_iter().enumerate() {
        tracer.output(&format!("y{i}"), y);
    }
    run(&tracer.finish().map_err(|e| e.to_string())?, name);
    Ok(())
}

#[test]
fn every_number_is_taken_or_refused() {
    let mut wrong = String::new();
    for (name, call) in VIEWS.into_iter().chain(INDICES).chain(VALUES).chain(IMAGES) {
        for seed in 0..400 {
            let end = catch_unwind(AssertUnwindSafe(|| attempt((name, call), seed)));
            let told = match end {
                Ok(Ok(())) => continue,
                Ok(Err(told)) => told,
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or(panic.downcast_ref::<&str>().map(|s| s.to_string()));
                    format!("panics: {}", text.unwrap_or_default())
                }
            };
            wrong += &format!("{name}, seed {seed}: {told}\n");
            break;
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
