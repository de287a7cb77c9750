//! The programs whose instructions are counted: one for each kind of kernel, and training steps.

#[path = "../support/digits.rs"]
mod digits;

use digits::Digits;
use tracecast::prelude::*;
use tracecast::{Graph, Options};

/// A program with its name.
type Named = (&'static str, fn(&Trace));

/// Programs of one or two kernels.
const KERNELS: [Named; 17] = [
    ("map bf16", |t| {
        let [x, r] = ["x", "r"].map(|name| read(t, name, DType::BF16, &[64, 256]));
        write(t, (x + read(t, "b", DType::BF16, &[256])).gelu(None) * 0.5 + r);
    }),
    ("softmax f32", |t| write(t, read(t, "x", DType::F32, &[64, 256]).softmax(-1))),
    ("layer_norm bf16", |t| {
        let [w, b] = ["w", "b"].map(|name| read(t, name, DType::BF16, &[256]));
        write(t, read(t, "x", DType::BF16, &[64, 256]).layer_norm(w, b, [256], 1e-5));
    }),
    ("column sum f32", |t| write(t, read(t, "x", DType::F32, &[64, 256]).sum(0))),
    ("cumsum f32", |t| write(t, read(t, "x", DType::F32, &[64, 256]).cumsum(1))),
    ("sort f32", |t| write(t, read(t, "x", DType::F32, &[16, 256]).sort(1, false).0)),
    ("permute f32", |t| write(t, read(t, "x", DType::F32, &[64, 256]).permute([1, 0]))),
    ("matmul f32", |t| product(t, DType::F32, [64, 64, 64])),
    ("matmul bf16", |t| product(t, DType::BF16, [64, 64, 64])),
    ("matrix-vector product f32", |t| product(t, DType::F32, [1, 256, 256])),
    ("conv2d f32", |t| write(t, convolution(t, 1).0)),
    ("depthwise conv2d f32", |t| write(t, convolution(t, 16).0)),
    ("conv2d weight gradient f32", |t| {
        let (y, w) = convolution(t, 1);
        let loss = y.mul(read(t, "dy", DType::F32, &[2, 16, 14, 14])).sum(());
        write(t, t.grad(loss, &[w])[0]);
    }),
    ("max_pool2d f32", |t| {
        let x = read(t, "x", DType::F32, &[2, 16, 28, 28]);
        write(t, x.max_pool2d([2], [], [], [], false));
    }),
    ("attention f32", |t| write(t, attention(t).0)),
    ("attention gradient f32", |t| {
        let (y, query) = attention(t);
        let loss = y.mul(read(t, "dy", DType::F32, &[1, 2, 64, 32])).sum(());
        write(t, t.grad(loss, &[query])[0]);
    }),
    ("embedding and its gradient f32", |t| {
        let table = read(t, "table", DType::F32, &[ROWS, 64]);
        let y = table.embedding(read(t, "rows", DType::I64, &[64]));
        let loss = y.mul(read(t, "dy", DType::F32, &[64, 64])).sum(());
        write(t, t.grad(loss, &[table])[0]);
    }),
];

/// Rows that an index may choose.
const ROWS: usize = 128;

/// A program as it is traced, with state and inputs to run it on.
pub(crate) struct Work {
    pub(crate) name: String,
    pub(crate) graph: Graph,
    pub(crate) store: Store,
    pub(crate) inputs: Vec<(&'static str, Tensor)>,
}

/// All programs, in the order of the list.
pub(crate) fn all(options: &Options) -> Vec<Work> {
    let kernels = KERNELS.into_iter().map(|(name, body)| {
        let graph = trace("kernel", body).expect("a program");
        let mut store = Store::new();
        for (seed, port) in graph.ports().iter().enumerate() {
            store.insert(&port.name, data(&port.ty, seed as u64));
        }
        Work { name: name.to_owned(), graph, store, inputs: Vec::new() }
    });
    let steps = digits::MODES.into_iter().map(|dtype| {
        let mut digits = Digits::new(dtype, 1, options.clone());
        let (x, y) = digits.batches.remove(0);
        let graph = digits.step.jit().graph(&digits.store, &[("x", &x), ("y", &y)]);
        let graph = graph.expect("a traced step");
        let name = format!("training step {dtype}");
        Work { name, graph, store: digits.store, inputs: vec![("x", x), ("y", y)] }
    });
    kernels.chain(steps).collect()
}

/// Normally distributed floats, or rows.
fn data(ty: &TensorType, seed: u64) -> Tensor {
    if ty.dtype.is_float() {
        let numbers = Tensor::randn(ty.shape.clone(), seed);
        return numbers.and_then(|x| x.cast(ty.dtype)).expect("a size that fits");
    }
    let numbers = Tensor::rand(ty.shape.clone(), seed).and_then(|x| x.to_vec::<f32>());
    let numbers = numbers.expect("a size that fits");
    let rows: Vec<i64> = numbers.iter().map(|x| (x * ROWS as f32) as i64).collect();
    Tensor::new(ty.shape.clone(), &rows).expect("as many rows")
}

/// State that a program reads.
fn read<'t>(t: &'t Trace, name: &str, dtype: DType, shape: &[usize]) -> Var<'t> {
    t.state_of(name, TensorType::new(dtype, shape))
}

/// The state that a program replaces.
fn write(t: &Trace, value: Var<'_>) {
    t.update(t.state_of("y", value.ty()), value);
}

fn product(t: &Trace, dtype: DType, [m, k, n]: [usize; 3]) {
    let (a, b) = (read(t, "a", dtype, &[m, k]), read(t, "w", dtype, &[k, n]));
    write(t, (a.matmul(b) + read(t, "b", dtype, &[n])).relu());
}

/// A convolution, and its weight.
fn convolution(t: &Trace, groups: usize) -> (Var<'_>, Var<'_>) {
    let x = read(t, "x", DType::F32, &[2, 16, 14, 14]);
    let w = read(t, "w", DType::F32, &[16, 16 / groups, 3, 3]);
    (x.conv2d(w, None, [1], [1], [], Some(groups as i64), false), w)
}

/// Attention, and its query.
fn attention(t: &Trace) -> (Var<'_>, Var<'_>) {
    let [q, k, v] = ["q", "k", "v"].map(|name| read(t, name, DType::F32, &[1, 2, 64, 32]));
    let none = None::<Var<'_>>;
    (q.scaled_dot_product_attention(k, v, none, none, 0.0, true, None, false, 0), q)
}
