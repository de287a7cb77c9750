//! Convolutions and their gradients have the bits of the interpreter, whatever reads their windows:
//! images or packing, for every dtype, number of threads and path.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use tracecast::prelude::*;
use tracecast::runtime::ReferenceDevice;
use tracecast::{Vectors, compile, compile_sized};

/// Batch, channels, height, width, channels of the result, window, stride, padding, dilation,
/// groups.
const SHAPES: [[usize; 10]; 37] = [
    // Depthwise: one row, in images; gradients of the weight in lanes.
    [2, 19, 9, 11, 19, 3, 1, 1, 1, 19],
    [1, 20, 14, 14, 20, 5, 1, 2, 1, 20],
    [3, 6, 11, 8, 6, 5, 2, 2, 1, 6],
    [1, 17, 28, 28, 17, 3, 2, 1, 1, 17],
    // Lines of a vector and less, of many vectors, and of which every second or third place is
    // seen; more zeros around than windows need.
    [2, 21, 7, 7, 21, 5, 1, 2, 1, 21],
    [1, 5, 9, 83, 5, 3, 1, 1, 1, 5],
    [2, 4, 112, 37, 4, 3, 2, 1, 1, 4],
    [1, 6, 23, 41, 6, 4, 3, 5, 1, 6],
    [3, 4, 6, 15, 4, 2, 1, 4, 3, 4],
    // More lines than a block of steps.
    [6, 3, 100, 18, 3, 3, 1, 1, 1, 3],
    [3, 5, 70, 40, 5, 5, 2, 0, 1, 5],
    // Lines of whole vectors, of some windows more, and of a single one more; no zeros around, and
    // more than a vector of them; windows of even positions behind the last column.
    [3, 5, 28, 28, 5, 3, 1, 1, 1, 5],
    [2, 3, 56, 56, 3, 3, 2, 1, 1, 3],
    [2, 3, 8, 33, 3, 3, 1, 1, 1, 3],
    [1, 4, 19, 66, 4, 3, 2, 0, 1, 4],
    [2, 3, 3, 18, 3, 3, 1, 5, 1, 3],
    [1, 2, 2, 32, 2, 3, 2, 19, 1, 2],
    // Windows that are far apart.
    [1, 17, 70, 65, 17, 3, 32, 1, 1, 17],
    // Two results for each channel, and dilated.
    [2, 5, 7, 9, 10, 3, 1, 2, 2, 5],
    // Small groups.
    [2, 12, 10, 9, 8, 3, 1, 1, 1, 4],
    // Dense ones: few channels, phases, a stride alone, no padding.
    [2, 3, 20, 22, 16, 7, 2, 3, 1, 1],
    [1, 64, 9, 10, 20, 3, 1, 1, 1, 1],
    [2, 16, 9, 12, 24, 3, 2, 1, 1, 1],
    [2, 16, 8, 8, 24, 1, 2, 0, 1, 1],
    // Many steps for few channels.
    [3, 3, 75, 60, 12, 3, 1, 1, 1, 1],
    [2, 8, 9, 9, 40, 3, 1, 0, 1, 1],
    // Phases that see every second or third position of a weight, for more steps than a block; in
    // groups, dilated.
    [1, 24, 8, 9, 150, 3, 2, 1, 1, 1],
    [2, 10, 7, 8, 140, 5, 3, 2, 1, 1],
    [2, 26, 5, 9, 20, 3, 2, 1, 2, 2],
    // Vectors across channels of the result, and of the operand: one, two apart, in groups, an odd
    // number of channels.
    [2, 34, 9, 10, 32, 3, 1, 1, 1, 1],
    [3, 32, 9, 11, 64, 3, 2, 1, 1, 1],
    [2, 64, 7, 7, 64, 3, 2, 1, 1, 2],
    [1, 15, 14, 14, 96, 3, 1, 1, 2, 1],
    // Windows of one position: gradients of weights with vectors across channels of the operand, of
    // few steps and of many; lines of every second place; as many steps as nearly fill a cache.
    [5, 16, 6, 7, 41, 1, 1, 0, 1, 1],
    [3, 16, 37, 40, 40, 1, 1, 0, 1, 1],
    [2, 9, 6, 34, 20, 1, 2, 0, 1, 1],
    [1, 40, 12, 11, 270, 1, 1, 0, 1, 1],
];

/// The convolution of `x` and both of its gradients.
fn convolution(t: &Trace, shape: [usize; 10], batch: Size, dtype: DType) {
    let [_, from, height, width, to, window, stride, padding, dilation, groups] = shape;
    let x = t.input_of("x", TensorType::new(dtype, sizes![batch, from, height, width]));
    let w = t.param_of("w", TensorType::new(dtype, [to, from / groups, window, window]));
    let b = t.param_of("b", TensorType::new(dtype, [to]));
    let number = |n: usize| [n as i64];
    let y = x.conv2d(
        w,
        Some(b),
        number(stride),
        number(padding),
        number(dilation),
        Some(groups as i64),
        false,
    );
    let loss = y.mul(y).sum(().dtype(DType::F32));
    for (name, value) in ["dx", "dw", "db"].into_iter().zip(t.grad(loss, &[x, w, b])) {
        t.output(name, value);
    }
    t.output("y", y.relu());
}

fn numbers(shape: impl Into<Shape>, seed: u64, dtype: DType) -> Tensor {
    Tensor::randn(shape, seed).unwrap().cast(dtype).unwrap()
}

fn store([_, from, _, _, to, window, .., groups]: [usize; 10], dtype: DType) -> Store {
    let mut store = Store::new();
    store.insert("w", numbers([to, from / groups, window, window], 1, dtype));
    store.insert("b", numbers([to], 2, dtype));
    store
}

/// A store that has a weight alone.
fn weight(shape: &[usize], dtype: DType) -> Store {
    let mut store = Store::new();
    store.insert("w", numbers(shape, 1, dtype));
    store
}

fn input([batch, from, height, width, ..]: [usize; 10], dtype: DType) -> Tensor {
    numbers([batch, from, height, width], 3, dtype)
}

/// Every path has the results of the interpreter.
fn agrees(what: &str, program: &dyn Fn(&Trace), store: &dyn Fn() -> Store, x: &Tensor) {
    let wide = [(1, Vectors::Native), (2, Vectors::Native), (8, Vectors::Native)];
    let paths = wide.into_iter().chain([(2, Vectors::Avx2), (1, Vectors::Portable)]);
    let run = |options: &Options| {
        let graph = trace("convolution", |t| program(t)).unwrap();
        compile(graph, options).unwrap().run(&mut store(), &[("x", x)]).unwrap()
    };
    let want = run(&Options::new().on(Arc::new(ReferenceDevice)));
    for (threads, vectors) in paths {
        let found = run(&Options::new().on(support::cpu_with(threads, vectors)));
        for (name, want) in want.iter() {
            assert!(
                want.to_f64s() == found[name].to_f64s(),
                "{name} of {what} on {threads} threads with {vectors:?}"
            );
        }
    }
}

#[test]
fn every_path_has_the_bits_of_the_interpreter() {
    for (shape, dtype) in SHAPES.into_iter().flat_map(|shape| {
        [DType::F32, DType::BF16, DType::F16, DType::F64].map(|dtype| (shape, dtype))
    }) {
        let program = |t: &Trace| convolution(t, shape, shape[0].into(), dtype);
        let what = format!("{shape:?} in {dtype}");
        agrees(&what, &program, &|| store(shape, dtype), &input(shape, dtype));
    }
}

/// What becomes of a convolution is rounded to 16 bits where its sums are stored.
#[test]
fn results_may_be_narrower_than_operands() {
    for shape in [SHAPES[0], SHAPES[1], SHAPES[3], SHAPES[6], SHAPES[17]] {
        for (dtype, to) in [DType::F32, DType::BF16, DType::F16]
            .into_iter()
            .flat_map(|from| [DType::F32, DType::BF16, DType::F16].map(|to| (from, to)))
        {
            let [_, from, height, width, channels, window, stride, padding, dilation, groups] =
                shape;
            let program = |t: &Trace| {
                let x = t.input_of("x", TensorType::new(dtype, [shape[0], from, height, width]));
                let w = [channels, from / groups, window, window];
                let w = t.param_of("w", TensorType::new(dtype, w));
                let [stride, padding, dilation] = [stride, padding, dilation].map(|n| [n as i64]);
                let y = x.conv2d(w, None, stride, padding, dilation, Some(groups as i64), false);
                t.output("y", y.to(to));
            };
            let what = format!("{shape:?} from {dtype} to {to}");
            agrees(&what, &program, &|| store(shape, dtype), &input(shape, dtype));
        }
    }
}

/// Size, window, stride, padding and dilation along each axis.
type Axes<'a> = &'a [[usize; 5]];

#[test]
fn channels_on_their_own_along_one_axis_and_three() {
    let cases: [(usize, usize, Axes<'_>); 4] = [
        (20, 1, &[[37, 5, 1, 2, 1]]),
        (6, 2, &[[50, 3, 3, 0, 2]]),
        (18, 1, &[[6, 3, 1, 1, 1], [9, 3, 2, 1, 1], [11, 2, 3, 0, 2]]),
        (4, 3, &[[5, 1, 2, 0, 1], [8, 3, 1, 2, 2], [7, 3, 2, 1, 1]]),
    ];
    for (channels, each, axes) in cases {
        for dtype in [DType::F32, DType::BF16] {
            along_axes([channels, channels * each, channels], axes, dtype);
        }
    }
}

/// A single window along the first axis sees a plane, or zeros alone.
#[test]
fn windows_of_one_place_along_an_axis() {
    for around in [[1, 1, 1, 0, 1], [1, 1, 3, 1, 1]] {
        for channels in [[3, 8, 1], [4, 4, 4], [5, 40, 1]] {
            for sizes in [[50, 47], [14, 15], [7, 7]] {
                let [height, width] = sizes.map(|size| [size, 3, 1, 1, 1]);
                for dtype in [DType::F32, DType::BF16, DType::F64] {
                    along_axes(channels, &[around, height, width], dtype);
                }
            }
        }
    }
}

/// A convolution and its gradients, by the numbers of channels and groups.
fn along_axes([from, to, groups]: [usize; 3], axes: Axes<'_>, dtype: DType) {
    let of = |i: usize| axes.iter().map(|axis| axis[i]).collect::<Vec<_>>();
    let whole = |i: usize| of(i).into_iter().map(|n| n as i64).collect::<Vec<_>>();
    let shape = |first: [usize; 2], i| first.into_iter().chain(of(i)).collect::<Vec<usize>>();
    let (of_x, of_w) = (shape([2, from], 0), shape([to, from / groups], 1));
    let program = |t: &Trace| {
        let x = t.input_of("x", TensorType::new(dtype, &of_x[..]));
        let w = t.param_of("w", TensorType::new(dtype, &of_w[..]));
        let (stride, padding, dilation) = (whole(2), whole(3), whole(4));
        let groups = Some(groups as i64);
        let y = match axes.len() {
            1 => x.conv1d(w, None, stride, padding, dilation, groups, false),
            _ => x.conv3d(w, None, stride, padding, dilation, groups, false),
        };
        let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
        let loss = y.mul(y).add(y).sum(().dtype(wide));
        for (name, value) in ["dx", "dw"].into_iter().zip(t.grad(loss, &[x, w])) {
            t.output(name, value);
        }
        t.output("y", y);
    };
    let store = || weight(&of_w, dtype);
    let what = format!("{from} channels to {to} in {groups} groups of {axes:?} in {dtype}");
    agrees(&what, &program, &store, &numbers(&of_x[..], 3, dtype));
}

/// Positions in windows are columns beside the windows themselves: both move along the same axis.
#[test]
fn windows_whose_positions_are_columns() {
    for (channels, rows) in [(8, 4), (32, 2), (3, 20)] {
        let program = |t: &Trace| {
            let x = t.input_of("x", TensorType::new(DType::F32, [1, channels, 5, 16]));
            let w = t.param_of("w", TensorType::new(DType::F32, [1, rows, channels]));
            let windows = x.im2col(&[1, 3], &[1, 1], &[0, 1], &[1, 1]);
            let all = windows.reshape([1, channels as i64, 3 * 5 * 16]);
            t.output("y", w.matmul(all));
        };
        let store = || weight(&[1, rows, channels], DType::F32);
        let x = numbers([1, channels, 5, 16], 3, DType::F32);
        agrees(&format!("{rows} rows"), &program, &store, &x);
    }
}

#[test]
fn the_batch_may_be_a_name() {
    for shape in [SHAPES[0], SHAPES[2], SHAPES[7], SHAPES[8]] {
        let named = trace("named", |t| {
            let batch = t.size_in("batch", 1..=64);
            convolution(t, shape, batch, DType::F32);
        });
        let named = compile_sized(named.unwrap(), &Options::new().threads(2)).unwrap();
        for batch in [1, 2, 5] {
            let mut shape = shape;
            shape[0] = batch;
            let (x, mut store) = (input(shape, DType::F32), store(shape, DType::F32));
            let found = named.run(&mut store, &[("x", &x)]).unwrap();
            let graph = trace("numbers", |t| convolution(t, shape, batch.into(), DType::F32));
            let numbers = compile(graph.unwrap(), &Options::new().threads(2)).unwrap();
            let want = numbers.run(&mut store, &[("x", &x)]).unwrap();
            for name in ["y", "dx", "dw", "db"] {
                assert!(want[name].to_f64s() == found[name].to_f64s(), "{name} of {shape:?}");
            }
        }
    }
}
