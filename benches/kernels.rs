//! How fast kernels are: one program for each kind of kernel, in f32, bf16 and f16, on one thread
//! unless the name says otherwise.
//!
//! Measured is the time inside the kernels. All data is state, so a run copies nothing in or out;
//! what launching costs is measured by `train_step`. A `plain` bench is the same in straightforward
//! Rust, built as this crate is, without AVX2.

#[path = "support/programs.rs"]
mod programs;

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use std::hint::black_box;
use std::time::Duration;
use tracecast::ir::ops::amp::LossScaling;
use tracecast::optim::Recorded;
use tracecast::prelude::*;
use tracecast::{Executable, Vectors, compile};

/// The floating-point dtypes that are compared.
const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Elements of the maps: in every dtype they fit into the cache of a core.
const SMALL: usize = 1 << 16;

/// Elements that fit into the cache that cores share.
const MIDDLE: usize = 1 << 20;

/// Elements that fit into none.
const LARGE: usize = 1 << 23;

/// The name of a number that is 1, so that data stays as it is however often it is multiplied.
const ONE: &str = "one";

/// Rows that indices choose from.
const ROWS: usize = 1024;

/// A program with data to work on.
struct Work {
    program: Executable,
    store: Store,
}

impl Work {
    /// Compiles what `body` records, for these options. Floats are normally distributed, integers
    /// are rows.
    fn new(options: &Options, body: impl FnOnce(&Trace)) -> Self {
        let graph = trace("kernel", body).expect("a program");
        let mut store = Store::new();
        for (seed, port) in graph.ports().iter().enumerate() {
            let value = match port.name.as_str() {
                ONE => Tensor::full(port.ty.clone(), 1.0).expect("one number"),
                _ => data(&port.ty, seed as u64),
            };
            store.insert(&port.name, value);
        }
        let program = compile(graph, &programs::written(options.clone())).expect("code");
        Work { program, store }
    }

    /// The time that the kernels of that many runs take.
    fn run(&mut self, rounds: u64) -> Duration {
        let one = |_| {
            let (_, times) = self.program.run_timed(&mut self.store, &[]).expect("a run");
            times.iter().map(|timing| timing.time).sum::<Duration>()
        };
        (0..rounds).map(one).sum()
    }
}

fn data(ty: &TensorType, seed: u64) -> Tensor {
    if ty.dtype.is_float() {
        let numbers = Tensor::randn(ty.shape.clone(), seed);
        numbers.and_then(|x| x.cast(ty.dtype)).expect("a size that fits")
    } else {
        let numbers = Tensor::rand(ty.shape.clone(), seed).and_then(|x| x.to_vec::<f32>());
        let rows: Vec<i64> =
            numbers.expect("a size that fits").iter().map(|x| (x * ROWS as f32) as i64).collect();
        Tensor::new(ty.shape.clone(), &rows).expect("as many rows")
    }
}

/// State that a program reads.
fn read<'t>(t: &'t Trace, name: &str, dtype: DType, shape: &[usize]) -> Var<'t> {
    t.state_of(name, TensorType::new(dtype, shape))
}

/// State that a program replaces.
fn write(t: &Trace, name: &str, value: Var<'_>) {
    t.update(t.state_of(name, value.ty()), value);
}

fn one_thread() -> Options {
    Options::new().threads(1).keep_weights(false)
}

fn portable() -> Options {
    one_thread().vectors(Vectors::Portable)
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn measure(group: &mut Group<'_>, id: BenchmarkId, options: &Options, body: impl FnOnce(&Trace)) {
    let mut work = Work::new(options, body);
    group.bench_function(id, |b| b.iter_custom(|rounds| work.run(rounds)));
}

/// `a * x + b` and `gelu(x)`, elements per second.
fn maps(c: &mut Criterion) {
    let line = |dtype, elements: usize| {
        move |t: &Trace| {
            let [a, b] = ["a", "b"].map(|name| read(t, name, dtype, &[]));
            write(t, "y", a * read(t, "x", dtype, &[elements]) + b);
        }
    };
    let bell = |dtype| move |t: &Trace| write(t, "y", read(t, "x", dtype, &[SMALL]).gelu(None));
    let chain = |dtype| {
        move |t: &Trace| {
            let [x, r] = ["x", "r"].map(|name| read(t, name, dtype, &[64, SMALL / 64]));
            let b = read(t, "b", dtype, &[SMALL / 64]);
            write(t, "y", (x + b).gelu(Some("tanh")) * 0.5 + r);
        }
    };
    let mut group = c.benchmark_group("map");
    for dtype in DTYPES {
        group.throughput(Throughput::Elements(SMALL as u64));
        measure(&mut group, BenchmarkId::new("ax+b", dtype), &one_thread(), line(dtype, SMALL));
        measure(
            &mut group,
            BenchmarkId::new("ax+b portable", dtype),
            &portable(),
            line(dtype, SMALL),
        );
        measure(&mut group, BenchmarkId::new("gelu", dtype), &one_thread(), bell(dtype));
        measure(&mut group, BenchmarkId::new("gelu portable", dtype), &portable(), bell(dtype));
        measure(&mut group, BenchmarkId::new("chain", dtype), &one_thread(), chain(dtype));
        group.throughput(Throughput::Elements(LARGE as u64));
        let id = BenchmarkId::new("ax+b from memory", dtype);
        measure(&mut group, id, &one_thread(), line(dtype, LARGE));
    }
    group.throughput(Throughput::Elements(SMALL as u64));
    let (x, mut y) = (floats(SMALL), vec![0f32; SMALL]);
    group.bench_function("ax+b plain/f32", |bench| {
        let (a, b) = (black_box(1.5), black_box(0.5));
        bench.iter(|| {
            black_box(&mut y).iter_mut().zip(black_box(&x)).for_each(|(y, x)| *y = a * x + b);
        });
    });
    group.finish();
}

fn floats(count: usize) -> Vec<f32> {
    Tensor::randn([count], 7).and_then(|x| x.to_vec()).expect("a size that fits")
}

/// Softmax, layer norm and the sum of columns, elements per second.
fn rows(c: &mut Criterion) {
    let shape = [128, 512];
    let softmax = |dtype| move |t: &Trace| write(t, "y", read(t, "x", dtype, &shape).softmax(-1));
    let layer_norm = |dtype| {
        move |t: &Trace| {
            let [w, b] = ["w", "b"].map(|name| read(t, name, dtype, &shape[1..]));
            let x = read(t, "x", dtype, &shape);
            write(t, "y", x.layer_norm(w, b, [shape[1] as i64], 1e-5));
        }
    };
    let columns = |dtype| move |t: &Trace| write(t, "y", read(t, "x", dtype, &shape).sum(0));
    let mut group = c.benchmark_group("rows");
    group.throughput(Throughput::Elements((shape[0] * shape[1]) as u64));
    for dtype in DTYPES {
        measure(&mut group, BenchmarkId::new("softmax", dtype), &one_thread(), softmax(dtype));
        measure(
            &mut group,
            BenchmarkId::new("softmax portable", dtype),
            &portable(),
            softmax(dtype),
        );
        measure(
            &mut group,
            BenchmarkId::new("layer_norm", dtype),
            &one_thread(),
            layer_norm(dtype),
        );
        measure(&mut group, BenchmarkId::new("column sum", dtype), &one_thread(), columns(dtype));
    }
    let (x, mut y) = (floats(shape[0] * shape[1]), vec![0f32; shape[0] * shape[1]]);
    group.bench_function("softmax plain/f32", |b| {
        b.iter(|| plain_softmax(black_box(&x), black_box(&mut y), shape[1]));
    });
    group.finish();
}

/// Three loops over each row.
fn plain_softmax(x: &[f32], y: &mut [f32], width: usize) {
    for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
        let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for (y, x) in y.iter_mut().zip(x) {
            *y = (x - most).exp();
            sum += *y;
        }
        y.iter_mut().for_each(|y| *y /= sum);
    }
}

/// Matrix products; an element is one addition or one multiplication.
fn contractions(c: &mut Criterion) {
    let product = |[m, k, n]: [usize; 3], dtype| {
        move |t: &Trace| {
            write(t, "y", read(t, "a", dtype, &[m, k]).matmul(read(t, "b", dtype, &[k, n])));
        }
    };
    let mut group = c.benchmark_group("contraction");
    for sizes in [[256, 256, 256], [32, 64, 128]] {
        let [m, k, n] = sizes;
        group.throughput(Throughput::Elements((2 * m * k * n) as u64));
        for dtype in DTYPES {
            let id = BenchmarkId::new(format!("{m}x{k}x{n}"), dtype);
            measure(&mut group, id, &one_thread(), product(sizes, dtype));
        }
    }
    for dtype in DTYPES {
        let id = BenchmarkId::new("32x64x128 portable", dtype);
        measure(&mut group, id, &portable(), product([32, 64, 128], dtype));
    }
    group.finish();
}

/// Rows of 64 elements, taken from a table and added to one, in elements per second.
fn indexed(c: &mut Criterion) {
    let (count, width) = (1024, 64);
    let gather = |dtype| {
        move |t: &Trace| {
            let rows = read(t, "rows", DType::I64, &[count]);
            write(t, "y", read(t, "table", dtype, &[ROWS, width]).embedding(rows));
        }
    };
    let scatter = |dtype| {
        move |t: &Trace| {
            let rows = read(t, "rows", DType::I64, &[count]);
            let dy = read(t, "dy", dtype, &[count, width]);
            write(t, "y", dy.embedding_backward(rows, ROWS as i64, None, false));
        }
    };
    let mut group = c.benchmark_group("indexed");
    group.throughput(Throughput::Elements((count * width) as u64));
    for dtype in DTYPES {
        measure(&mut group, BenchmarkId::new("gather", dtype), &one_thread(), gather(dtype));
        measure(&mut group, BenchmarkId::new("scatter_add", dtype), &one_thread(), scatter(dtype));
    }
    group.finish();
}

/// A gradient divided by the loss scale in place and checked for infinities, and the same in two
/// sweeps.
fn scaling(c: &mut Criterion) {
    fn gradient(t: &Trace) -> Var<'_> {
        read(t, "g", DType::F32, &[SMALL])
    }
    let mut group = c.benchmark_group("unscale and check");
    group.throughput(Throughput::Elements(SMALL as u64));
    measure(&mut group, BenchmarkId::from_parameter("one kernel"), &one_thread(), |t| {
        let g = gradient(t);
        let checked = g.unscale_check(read(t, ONE, DType::F32, &[])).results();
        t.update(g, checked[0]);
        write(t, "found", checked[1]);
    });
    let mut parts = [
        Work::new(&one_thread(), |t| write(t, "found", gradient(t).nonfinite())),
        Work::new(&one_thread(), |t| {
            let g = gradient(t);
            t.update(g, g.unscale(read(t, ONE, DType::F32, &[])));
        }),
    ];
    group.bench_function("two kernels", |b| b.iter_custom(|rounds| in_turn(&mut parts, rounds)));
    group.finish();
}

/// A step of AdamW over four tensors in one kernel, elements per second.
fn optimizer(c: &mut Criterion) {
    let names = ["p0", "p1", "p2", "p3"];
    let step = |t: &Trace| {
        let params = names.map(|name| read(t, name, DType::F32, &[SMALL / 4]));
        let grads = names.map(|name| read(t, &format!("{name}.grad"), DType::F32, &[SMALL / 4]));
        let rule = AdamW::new(1e-3);
        let mut recorded = Recorded::new(t, &rule, &params);
        recorded.set_grads(grads.to_vec());
        recorded.step();
    };
    let mut group = c.benchmark_group("adamw");
    group.throughput(Throughput::Elements(SMALL as u64));
    measure(&mut group, BenchmarkId::from_parameter("one kernel"), &one_thread(), step);
    let mut state = [1, 2, 3].map(|_| floats(SMALL));
    let grad = floats(SMALL);
    group.bench_function("plain", |b| {
        b.iter(|| plain_adamw(black_box(&mut state), black_box(&grad)));
    });
    group.finish();
}

/// The same arithmetic in one loop.
fn plain_adamw([param, average, square]: &mut [Vec<f32>; 3], grad: &[f32]) {
    let (decay, step_size, root) = (0.99999f32, -1e-3f32, 1.0f32);
    let state = param.iter_mut().zip(average).zip(square);
    for (((p, m), v), g) in state.zip(grad) {
        *m += (g - *m) * 0.1;
        *v = *v * 0.999 + g * 0.001 * g;
        *p = *p * decay + step_size * *m / (v.sqrt() / root + 1e-8);
    }
}

/// The time of that many rounds of these programs.
fn in_turn(parts: &mut [Work], rounds: u64) -> Duration {
    (0..rounds).map(|_| parts.iter_mut().map(|part| part.run(1)).sum::<Duration>()).sum()
}

/// A chain of maps over a large tensor in one kernel, and in a kernel for each op.
fn fusion(c: &mut Criterion) {
    let mut group = c.benchmark_group("fusion");
    group.throughput(Throughput::Elements(MIDDLE as u64));
    for dtype in DTYPES {
        measure(&mut group, BenchmarkId::new("one kernel", dtype), &one_thread(), |t| {
            let [x, w, b] = ["x", "w", "b"].map(|name| read(t, name, dtype, &[MIDDLE]));
            write(t, "y", (x * w + b).relu() * 0.5 + x);
        });
        let part = |op: for<'t> fn(Var<'t>, Var<'t>) -> Var<'t>| {
            Work::new(&one_thread(), |t| {
                let [x, other] = ["x", "other"].map(|name| read(t, name, dtype, &[MIDDLE]));
                write(t, "y", op(x, other));
            })
        };
        let mut parts = [
            part(|x, w| x * w),
            part(|x, b| x + b),
            part(|x, _| x.relu()),
            part(|x, _| x * 0.5),
            part(|x, other| x + other),
        ];
        group.bench_function(BenchmarkId::new("five kernels", dtype), |b| {
            b.iter_custom(|rounds| in_turn(&mut parts, rounds));
        });
    }
    group.finish();
}

/// Two threads against one, where there is enough to share.
fn threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("threads");
    for threads in [1, 2] {
        let options = Options::new().threads(threads).keep_weights(false);
        group.throughput(Throughput::Elements(2 << 24));
        let id = BenchmarkId::new("contraction 256x256x256 f32", threads);
        measure(&mut group, id, &options, |t| {
            let [a, b] = ["a", "b"].map(|name| read(t, name, DType::F32, &[256, 256]));
            write(t, "y", a.matmul(b));
        });
        group.throughput(Throughput::Elements(LARGE as u64 / 4));
        let id = BenchmarkId::new("gelu f32", threads);
        measure(&mut group, id, &options, |t| {
            write(t, "y", read(t, "x", DType::F32, &[MIDDLE]).gelu(None));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = maps, rows, contractions, indexed, scaling, optimizer, fusion, threads
}
criterion_main!(benches);
