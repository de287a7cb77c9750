//! Kernels whose sizes are names: the same code, or that of another class, at many sizes, against
//! the interpreter at those numbers.

use super::{
    DEVICES, access, compare, inputs, kernel, load, nest, no_loops, place_with, sizes, store,
};
use crate::{CpuDevice, CpuOptions, Vectors};
use smallvec::{SmallVec, smallvec};
use tracecast_ir::eval::kernel as interpret;
use tracecast_ir::kernel::{
    Access, Body, Cmp, Combiner, Contract, Factor, Form, Function, Guard, Kernel, Over, Reduction,
    Scalar, ScalarOp, Scatter, Sink, Stage,
};
use tracecast_ir::{DType, NamedSize, Number, Size, TensorType, Values};
use tracecast_runtime::Launch;

/// Around everything that code makes a difference of.
const SIZES: [i64; 15] = [0, 1, 3, 15, 16, 17, 31, 33, 48, 64, 65, 257, 1000, 4096, 4097];

fn n() -> Size {
    Size::named("n")
}

fn rows() -> Size {
    Size::named("rows")
}

/// Row-major strides.
fn strides(extents: &[Size]) -> SmallVec<[Size; 4]> {
    let mut all: SmallVec<[Size; 4]> = smallvec![Size::from(1); extents.len()];
    for axis in (1..extents.len()).rev() {
        all[axis - 1] = all[axis] * extents[axis];
    }
    all
}

fn ty(dtype: DType, extents: &[Size]) -> TensorType {
    TensorType::new(dtype, extents)
}

fn of(values: &[(&'static str, i64)]) -> Values {
    values.iter().copied().collect()
}

/// The values in the order of the names.
fn in_order(values: &Values) -> Vec<i64> {
    values.iter().map(|(_, value)| value).collect()
}

/// The kernel with declarations of its names.
fn declared(mut kernel: Kernel, names: &[(&'static str, i64)]) -> Kernel {
    let name =
        |(name, hint): &(&'static str, i64)| NamedSize { name, least: 0, most: None, hint: *hint };
    kernel.names = names.iter().map(name).collect();
    kernel
}

/// Runs a kernel with names on every device at all of those sizes, and compares it with the
/// interpreter at the numbers. Returns for how many classes there is code on the first.
fn check(named: &Kernel, all: &[Values]) -> usize {
    let named = declared(named.clone(), &all[0].iter().collect::<Vec<_>>());
    let mut classes = Vec::new();
    for device in DEVICES.iter() {
        let loaded = device.loaded(&[&named]).unwrap().pop().unwrap();
        for values in all {
            let numbers = named.at(values).unwrap();
            for special in [false, true] {
                let inputs = inputs(&numbers, 7, special);
                let slices: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                let want = interpret(&numbers, &slices);
                let placed = place_with(device, &numbers, &inputs, |args| {
                    loaded.bind(args, &in_order(values)).unwrap()
                });
                compare(device, &numbers, &want, &placed);
            }
        }
        classes.push(loaded.classes());
    }
    classes[0]
}

/// Every size of one name.
fn each_n() -> Vec<Values> {
    SIZES.iter().map(|size| of(&[("n", *size)])).collect()
}

/// Sizes of two names, in an order in which classes come and go.
fn rows_and_n() -> Vec<Values> {
    let pair = |(i, n): (usize, &i64)| of(&[("rows", [3, 17, 1, 40, 0][i % 5]), ("n", *n)]);
    SIZES.iter().enumerate().map(pair).collect()
}

/// A map over rows with a broadcast operand, a function, and the position.
fn scaled(extents: &[Size], from: DType, to: DType) -> Kernel {
    let dense = strides(extents);
    let mut along: SmallVec<[Size; 4]> = smallvec![Size::from(0); extents.len()];
    along[extents.len() - 1] = Size::from(1);
    let scalar = Scalar::of(from).unwrap();
    let mut body = Body::default();
    let x = body.push(ScalarOp::Load(0), &[], scalar);
    let w = body.push(ScalarOp::Load(1), &[], scalar);
    let y = body.binary(ScalarOp::Mul, x, w);
    let y = if scalar == Scalar::F32 { body.unary(ScalarOp::Call(Function::Exp), y) } else { y };
    let at = body.push(ScalarOp::Index(extents.len() as u32 - 1), &[], Scalar::I64);
    let end = body.push(ScalarOp::Argument(0), &[], Scalar::I64);
    let half = body.push(ScalarOp::Const(2), &[], Scalar::I64);
    let twice = body.binary(ScalarOp::Mul, at, half);
    let first = body.cmp(Cmp::Lt, twice, end);
    let part = body.push(ScalarOp::Argument(1), &[], scalar);
    let other = body.binary(ScalarOp::Mul, y, part);
    let z = body.select(first, y, other);
    let form = super::Nest {
        loads: vec![load(0, from, &dense), load(1, from, &along)],
        stages: vec![Stage { over: Over::Row, body, sinks: vec![store(0, to, &dense, z)] }],
        ..no_loops()
    };
    let last = extents[extents.len() - 1];
    let mut kernel =
        nest(vec![ty(from, extents), ty(from, &[last])], vec![ty(to, extents)], extents, form);
    kernel.arguments = vec![Number::Size(last), Number::Ratio(1.0, last)];
    kernel
}

#[test]
fn maps() {
    for (from, to) in [
        (DType::F32, DType::F32),
        (DType::F32, DType::BF16),
        (DType::BF16, DType::F32),
        (DType::F16, DType::F16),
        (DType::F64, DType::F32),
        (DType::I32, DType::U8),
    ] {
        assert!(check(&scaled(&[n()], from, to), &each_n()) <= 4, "{from}");
        assert!(check(&scaled(&[rows(), n()], from, to), &rows_and_n()) <= 4, "{from}");
    }
    // The row is a number, and another axis an expression.
    check(&scaled(&[n() * 2 + 1, Size::from(20)], DType::F32, DType::BF16), &each_n());
}

/// `y = exp(x - max x)`, divided by its sum, and where the largest is.
fn softmax(extents: &[Size], dtype: DType) -> Kernel {
    let (dense, outer) = (strides(extents), &extents[..extents.len() - 1]);
    let mut kept = strides(outer);
    kept.push(Size::from(0));
    let mut first = Body::default();
    let x = first.push(ScalarOp::Load(0), &[], Scalar::F32);
    let sinks = vec![
        Sink::Reduce { reduction: Reduction::Max, value: x, register: 0 },
        Sink::Reduce { reduction: Reduction::ArgMax, value: x, register: 2 },
    ];
    let first = Stage { over: Over::Row, body: first, sinks };
    let mut second = Body::default();
    let x = second.push(ScalarOp::Load(0), &[], Scalar::F32);
    let max = second.push(ScalarOp::Register(0), &[], Scalar::F32);
    let d = second.binary(ScalarOp::Sub, x, max);
    let e = second.unary(ScalarOp::Call(Function::Exp), d);
    let sinks = vec![
        Sink::Keep { value: e, buffer: 0 },
        Sink::Reduce { reduction: Reduction::Sum, value: e, register: 1 },
    ];
    let second = Stage { over: Over::Row, body: second, sinks };
    let mut third = Body::default();
    let e = third.push(ScalarOp::Row(0), &[], Scalar::F32);
    let sum = third.push(ScalarOp::Register(1), &[], Scalar::F32);
    let y = third.binary(ScalarOp::Div, e, sum);
    let third = Stage { over: Over::Row, body: third, sinks: vec![store(0, dtype, &dense, y)] };
    let mut once = Body::default();
    let sum = once.push(ScalarOp::Register(1), &[], Scalar::F32);
    let count = once.push(ScalarOp::Argument(0), &[], Scalar::F32);
    let mean = once.binary(ScalarOp::Mul, sum, count);
    let at = once.push(ScalarOp::Register(2), &[], Scalar::I64);
    let sinks = vec![store(1, DType::F32, &kept, mean), store(2, DType::I64, &kept, at)];
    let once = Stage { over: Over::Once, body: once, sinks };
    let form = super::Nest {
        loads: vec![load(0, dtype, &dense)],
        registers: vec![Scalar::F32, Scalar::F32, Scalar::I64],
        buffers: vec![Scalar::F32],
        stages: vec![first, second, third, once],
        ..no_loops()
    };
    let outputs = vec![ty(dtype, extents), ty(DType::F32, outer), ty(DType::I64, outer)];
    let mut kernel = nest(vec![ty(dtype, extents)], outputs, extents, form);
    kernel.arguments = vec![Number::Ratio(1.0, extents[extents.len() - 1])];
    kernel
}

#[test]
fn rows_that_are_reduced_and_kept() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        // Rows of at most 16, 64, 256, 1024, 4096 and more.
        assert!(check(&softmax(&[rows(), n()], dtype), &rows_and_n()) <= 8, "{dtype}");
        check(&softmax(&[n(), Size::from(33)], dtype), &each_n());
        check(&softmax(&[rows(), Size::from(2), n() + 1], dtype), &rows_and_n());
    }
}

#[test]
fn bounds_spare_questions() {
    let mut kernel = softmax(&[rows(), n()], DType::F32);
    kernel.names = vec![
        NamedSize { name: "rows", least: 1, most: Some(64), hint: 3 },
        NamedSize { name: "n", least: 1, most: Some(60), hint: 60 },
    ];
    let options =
        CpuOptions { threads: Some(1), vectors: Vectors::Native, ..CpuOptions::default() };
    let device = CpuDevice::new(options).unwrap();
    let loaded = device.loaded(&[&kernel]).unwrap().pop().unwrap();
    for n in 1..=60 {
        let values = of(&[("rows", 64 - n), ("n", n)]);
        let numbers = kernel.at(&values).unwrap();
        let inputs = inputs(&numbers, 7, false);
        place_with(&device, &numbers, &inputs, |args| {
            loaded.bind(args, &in_order(&values)).unwrap()
        });
    }
    // Whether a row is short, and whether all of it lies in a near cache, which in tests is a small
    // one.
    assert!(loaded.classes() <= 4, "{}", loaded.classes());
    let outside = of(&[("rows", 1), ("n", 61)]);
    let wrong = loaded.bind(&[], &in_order(&outside)).err().map(|e| e.to_string());
    assert!(wrong.is_some_and(|e| e.contains("is 61, expected 1..=60")));
}

/// Another process finds the code of every class, not that of the traced sizes alone.
#[test]
#[cfg(unix)]
fn every_class_is_in_the_folder_of_code() {
    use std::os::unix::fs::MetadataExt;
    let folder = std::env::temp_dir().join(format!("tracecast-classes-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let options =
        CpuOptions { threads: Some(1), code_cache: Some(folder.clone()), ..CpuOptions::default() };
    let device = CpuDevice::new(options).unwrap();
    let kernel = declared(softmax(&[rows(), n()], DType::F16), &[("rows", 3), ("n", 1009)]);
    // A file that is written anew is another.
    let files = || {
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap());
        let known = |file: std::fs::DirEntry| (file.path(), file.metadata().unwrap().ino());
        let mut files: Vec<_> = files.map(known).collect();
        files.sort();
        files
    };
    let run = || {
        let loaded = device.loaded(&[&kernel]).unwrap().pop().unwrap();
        for n in [1009, 7, 50] {
            let values = of(&[("rows", 3), ("n", n)]);
            let numbers = kernel.at(&values).unwrap();
            let inputs = inputs(&numbers, 7, false);
            let slices: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
            let placed = place_with(&device, &numbers, &inputs, |args| {
                loaded.bind(args, &in_order(&values)).unwrap()
            });
            compare(&device, &numbers, &interpret(&numbers, &slices), &placed);
        }
        (loaded.classes(), loaded.made().unwrap().from)
    };
    let (classes, from) = run();
    assert_eq!(from, tracecast_runtime::MadeFrom::Compiler);
    let first = files();
    assert!(classes > 1 && first.len() == classes, "{classes} classes, {first:?}");
    // Nothing of the process is left: what is not read is written anew.
    assert_eq!(run(), (classes, tracecast_runtime::MadeFrom::Disk));
    assert_eq!(files(), first);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn one_long_row() {
    for dtype in [DType::F32, DType::F64, DType::I64, DType::BF16] {
        let scalar = Scalar::of(dtype).unwrap();
        let mut body = Body::default();
        let x = body.push(ScalarOp::Load(0), &[], scalar);
        let sinks = vec![
            Sink::Reduce { reduction: Reduction::Sum, value: x, register: 0 },
            Sink::Reduce { reduction: Reduction::Min, value: x, register: 1 },
        ];
        let along = Stage { over: Over::Row, body, sinks };
        let mut body = Body::default();
        let [sum, min] = [0, 1].map(|r| body.push(ScalarOp::Register(r), &[], scalar));
        let sinks = vec![store(0, dtype, &[0], sum), store(1, dtype, &[0], min)];
        let once = Stage { over: Over::Once, body, sinks };
        let form = super::Nest {
            loads: vec![load(0, dtype, &[1])],
            registers: vec![scalar, scalar],
            stages: vec![along, once],
            ..no_loops()
        };
        let outputs = vec![TensorType::scalar(dtype), TensorType::scalar(dtype)];
        let kernel = nest(vec![ty(dtype, &[n()])], outputs, &[n()], form);
        let mut all = each_n();
        all.extend([8191, 8192, 8193, 20_000].map(|size| of(&[("n", size)])));
        check(&kernel, &all);
    }
}

/// Sums down the columns of a matrix, and down those that belong together of a stack of them.
fn columns(extents: &[Size], kept: &[bool], dtype: DType) -> Kernel {
    let scalar = Scalar::of(dtype).unwrap();
    let mut body = Body::default();
    let x = body.push(ScalarOp::Load(0), &[], scalar);
    let column = |reduction, output| Sink::Column {
        reduction,
        value: x,
        output,
        dtype,
        kept: SmallVec::from_slice(kept),
    };
    let sinks = vec![column(Reduction::Sum, 0), column(Reduction::Max, 1)];
    let form = super::Nest {
        loads: vec![load(0, dtype, &strides(extents))],
        stages: vec![Stage { over: Over::Row, body, sinks }],
        ..no_loops()
    };
    let out: Vec<Size> = extents.iter().zip(kept).filter(|(_, k)| **k).map(|(e, _)| *e).collect();
    nest(vec![ty(dtype, extents)], vec![ty(dtype, &out), ty(dtype, &out)], extents, form)
}

#[test]
fn sums_down_columns() {
    let rows_of = |all: &[i64]| -> Vec<Values> {
        all.iter().flat_map(|r| [0, 1, 16, 33].map(|n| of(&[("rows", *r), ("n", n)]))).collect()
    };
    for dtype in [DType::F32, DType::BF16, DType::I32, DType::F64] {
        let all = rows_of(&[0, 1, 7, 255, 256, 257, 600]);
        check(&columns(&[rows(), n()], &[false, true], dtype), &all);
        let all = rows_of(&[0, 1, 5, 40]);
        check(&columns(&[rows(), Size::from(13), n()], &[true, false, true], dtype), &all);
        check(&columns(&[Size::from(13), rows(), n()], &[false, true, true], dtype), &all);
    }
}

/// A matrix read across: what is loaded steps along the row.
#[test]
fn transposed_operands() {
    for dtype in [DType::F32, DType::BF16, DType::I64] {
        let scalar = Scalar::of(dtype).unwrap();
        let extents = [rows(), n()];
        let mut body = Body::default();
        let x = body.push(ScalarOp::Load(0), &[], scalar);
        let y = body.push(ScalarOp::Load(1), &[], scalar);
        let z = body.binary(ScalarOp::Add, x, y);
        let dense = strides(&extents);
        let form = super::Nest {
            loads: vec![load(0, dtype, &[Size::from(1), rows()]), load(1, dtype, &dense)],
            stages: vec![Stage { over: Over::Row, body, sinks: vec![store(0, dtype, &dense, z)] }],
            ..no_loops()
        };
        let inputs = vec![ty(dtype, &[n(), rows()]), ty(dtype, &extents)];
        let kernel = nest(inputs, vec![ty(dtype, &extents)], &extents, form);
        check(&kernel, &rows_and_n());
    }
}

/// A softmax of a matrix read across: rows are gathered whole.
#[test]
fn transposed_rows() {
    let mut kernel = softmax(&[rows(), n()], DType::F32);
    let Form::Nest(nest) = &mut kernel.form else { panic!("a nest") };
    nest.loads[0].access.strides = smallvec![Size::from(1), rows()];
    check(&kernel, &rows_and_n());
}

/// Part of a row, zeros around it, rows of another operand by index, and a stride of elements
/// backwards.
#[test]
fn guards_indices_and_steps() {
    let extents = [rows(), n() + 2];
    let dense = strides(&extents);
    let mut body = Body::default();
    let i = body.push(ScalarOp::Load(0), &[], Scalar::I32);
    let i = body.convert(i, Scalar::I64);
    let zero = body.push(ScalarOp::Const(0), &[], Scalar::I64);
    let end = body.push(ScalarOp::Argument(0), &[], Scalar::I64);
    let above = body.cmp(Cmp::Le, zero, i);
    let below = body.cmp(Cmp::Lt, i, end);
    let fine = body.binary(ScalarOp::And, above, below);
    let fine = body.push(ScalarOp::Check(0), &[fine, i], Scalar::Bool);
    let i = body.select(fine, i, zero);
    let x = body.push(ScalarOp::Load(1), &[i], Scalar::F32);
    let y = body.push(ScalarOp::Load(2), &[], Scalar::F32);
    let z = body.push(ScalarOp::Load(3), &[], Scalar::F32);
    let sum = body.binary(ScalarOp::Add, x, y);
    let sum = body.binary(ScalarOp::Add, sum, z);
    let one = Size::from(1);
    let guard = |strides: [Size; 2], offset: Size, extent: Size| Guard {
        offset,
        strides: SmallVec::from_slice(&strides),
        extent,
    };
    let padded = Access {
        offset: Size::from(-1),
        guards: smallvec![guard([Size::from(0), one], Size::from(-1), n())],
        strides: smallvec![n(), one],
        fill: u64::from(1.5f32.to_bits()),
        ..Access::default()
    };
    // Rows from the end, the first left out.
    let back = Access {
        offset: (rows() - 2) * (n() + 2),
        guards: smallvec![guard([Size::from(-1), Size::from(0)], rows() - 2, rows())],
        strides: smallvec![-(n() + 2), one],
        ..Access::default()
    };
    let looked_up = Access {
        indirect: smallvec![n() + 2],
        strides: smallvec![Size::from(0), one],
        ..Access::default()
    };
    let mut loads = vec![
        load(0, DType::I32, &[Size::from(1), Size::from(0)]),
        load(1, DType::F32, &[one; 2]),
        load(2, DType::F32, &[one; 2]),
        load(3, DType::F32, &[one; 2]),
    ];
    (loads[1].access, loads[2].access, loads[3].access) = (looked_up, padded, back);
    let form = super::Nest {
        loads,
        stages: vec![Stage {
            over: Over::Row,
            body,
            sinks: vec![store(0, DType::F32, &dense, sum)],
        }],
        ..no_loops()
    };
    let inputs = vec![
        ty(DType::I32, &[rows()]),
        ty(DType::F32, &[Size::from(50), n() + 2]),
        ty(DType::F32, &[rows(), n()]),
        ty(DType::F32, &extents),
    ];
    let mut kernel = nest(inputs, vec![ty(DType::F32, &extents)], &extents, form);
    kernel.arguments = vec![Number::Size(Size::from(50))];
    kernel.checks[0].range = Some([Size::from(0), Size::from(50)]);
    check(&kernel, &rows_and_n());
}

/// A product of `m` rows, `n` columns and `k` steps, with a bias, sums down the columns, the
/// largest magnitude; its left factor in place or computed.
fn product(batch: Size, dtype: DType, is_computed: bool) -> Kernel {
    let [m, n, k] = ["m", "n", "k"].map(Size::named);
    let scalar = Scalar::F32;
    let factor = |input: usize, matrix: [Size; 2], is_computed: bool| {
        let load = load(input, dtype, &strides(&[batch, matrix[0], matrix[1]]));
        let mut body = Body::default();
        let mut value = body.push(ScalarOp::Load(0), &[], scalar);
        if is_computed {
            value = body.unary(ScalarOp::Call(Function::Tanh), value);
        }
        Factor { loads: vec![load], body, value, split: None }
    };
    let mut body = Body::default();
    let sum = body.push(ScalarOp::Acc, &[], scalar);
    let bias = body.push(ScalarOp::Load(0), &[], scalar);
    let y = body.binary(ScalarOp::Add, sum, bias);
    let size = body.unary(ScalarOp::Abs, y);
    let kept = smallvec![false, false, true];
    let sinks = vec![
        store(0, dtype, &strides(&[batch, m, n]), y),
        Sink::Column { reduction: Reduction::Sum, value: y, output: 1, dtype: DType::F32, kept },
        Sink::Largest { value: size, output: 2 },
    ];
    let contract = Contract {
        batch: vec![batch],
        m,
        n,
        k,
        acc: scalar,
        a: factor(0, [m, k], is_computed),
        b: factor(1, [k, n], false),
        loads: vec![load(2, dtype, &[0, 0, 1])],
        epilogue: Stage { over: Over::Row, body, sinks },
    };
    let ins = vec![ty(dtype, &[batch, m, k]), ty(dtype, &[batch, k, n]), ty(dtype, &[n])];
    let outs =
        vec![ty(dtype, &[batch, m, n]), ty(DType::F32, &[n]), TensorType::scalar(DType::F32)];
    kernel(ins, outs, Form::Contract(contract))
}

#[test]
fn products() {
    let all: Vec<Values> = [
        [1, 3, 5, 7],
        [2, 17, 33, 19],
        [1, 1, 70, 600],
        [3, 70, 1, 40],
        [1, 300, 16, 64],
        [2, 0, 5, 4],
        [0, 4, 5, 4],
        [1, 5, 4, 0],
        [2, 40, 130, 513],
    ]
    .iter()
    .map(|[b, m, n, k]| of(&[("b", *b), ("m", *m), ("n", *n), ("k", *k)]))
    .collect();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for is_computed in [false, true] {
            check(&product(Size::named("b"), dtype, is_computed), &all);
        }
    }
}

/// Rows of a source added where indices say, some of them several times.
#[test]
fn scatters() {
    for dtype in [DType::F32, DType::BF16, DType::I64] {
        let scalar = Scalar::of(dtype).unwrap();
        let extents = [rows(), n()];
        let mut body = Body::default();
        let i = body.push(ScalarOp::Load(1), &[], Scalar::I32);
        let twenty = body.constant(Scalar::I32, 20.0);
        let i = body.binary(ScalarOp::Add, i, twenty);
        let index = body.convert(i, Scalar::I64);
        let value = body.push(ScalarOp::Load(0), &[], scalar);
        let scatter = Scatter {
            extents: sizes(&extents),
            loads: vec![
                load(0, dtype, &strides(&extents)),
                load(1, DType::I32, &[Size::from(1), Size::from(0)]),
            ],
            body,
            value,
            combiner: Combiner::Add,
            place: Access { indirect: smallvec![n()], ..access(&[Size::from(0), Size::from(1)]) },
            index: smallvec![index],
            base: Some(2),
        };
        let out = [Size::from(40), n()];
        let inputs = vec![ty(dtype, &extents), ty(DType::I32, &[rows()]), ty(dtype, &out)];
        let kernel = kernel(inputs, vec![ty(dtype, &out)], Form::Scatter(scatter));
        check(&kernel, &rows_and_n());
    }
}

#[test]
fn equal_layers_share_code_whatever_names_they_have() {
    let device = &DEVICES[0];
    let a = declared(scaled(&[n()], DType::F32, DType::F32), &[("n", 40)]);
    let b = scaled(&[Size::named("length")], DType::F32, DType::F32);
    let b = declared(b, &[("length", 41)]);
    let loaded = device.loaded(&[&a, &b]).unwrap();
    assert!(loaded[0].shares_code_with(&loaded[1]));
    let none = loaded[0].bind(&[], &[]).err().map(|e| e.to_string());
    assert!(none.is_some_and(|e| e.contains("0 values for 1 names of sizes")));
}
