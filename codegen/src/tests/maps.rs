//! Maps: every instruction, dtype and odd size.

use super::{
    CpuDevice, CpuOptions, Numbers, check, inputs, kernel, load, map, nest, no_loops, sizes, store,
};
use smallvec::smallvec;
use tracecast_ir::kernel::{
    Body, Cmp, Form, Function, Guard, Kernel, Nest, Output, Over, Scalar, ScalarOp, Segment, Sink,
    Stage, Val,
};
use tracecast_ir::{DType, Size, TensorType};
use tracecast_runtime::Device;

const SIZES: [&[usize]; 7] = [&[1], &[7], &[16], &[131], &[3, 5, 17], &[1000], &[4, 300]];

#[test]
fn arithmetic_of_every_scalar() {
    for extents in SIZES {
        for dtype in
            [DType::F32, DType::F64, DType::I32, DType::I64, DType::F16, DType::BF16, DType::U8]
        {
            let k = map(extents, &[dtype, dtype], &[dtype; 7], |b, x| {
                let s = b.binary(ScalarOp::Add, x[0], x[1]);
                let d = b.binary(ScalarOp::Sub, x[0], s);
                let m = b.binary(ScalarOp::Mul, d, x[1]);
                let q = b.binary(ScalarOp::Div, x[0], x[1]);
                let high = b.binary(ScalarOp::Max, x[0], x[1]);
                let low = b.binary(ScalarOp::Min, m, x[1]);
                let n = b.unary(ScalarOp::Neg, x[0]);
                let a = b.unary(ScalarOp::Abs, n);
                vec![s, m, q, high, low, n, a].into_iter().map(|v| b.as_dtype(v, dtype)).collect()
            });
            check(&k, &inputs(&k, 1, true));
        }
    }
}

#[test]
fn functions_and_rounding() {
    for extents in SIZES {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for f in Function::ALL {
                let k = map(extents, &[dtype, dtype], &[dtype, dtype, DType::Bool], |b, x| {
                    let y = b.unary(ScalarOp::Call(f), x[0]);
                    let y = b.binary(ScalarOp::Add, y, x[1]);
                    let y = b.unary(ScalarOp::Round(DType::F16), y);
                    let z = b.unary(ScalarOp::Call(f), y);
                    let z = b.unary(ScalarOp::Round(DType::BF16), z);
                    let z = b.unary(ScalarOp::Floor, z);
                    let r = b.unary(ScalarOp::Sqrt, y);
                    let c = b.cmp(Cmp::Le, r, x[1]);
                    vec![y, z, c]
                });
                check(&k, &inputs(&k, 2, true));
            }
        }
    }
}

#[test]
fn comparisons_logic_and_selection() {
    for dtype in
        [DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool, DType::BF16, DType::U8]
    {
        for extents in SIZES {
            let k = map(
                extents,
                &[dtype, dtype, DType::Bool],
                &[DType::Bool, DType::Bool, dtype, dtype],
                |b, x| {
                    let eq = b.cmp(Cmp::Eq, x[0], x[1]);
                    let ne = b.cmp(Cmp::Ne, x[0], x[1]);
                    let lt = b.cmp(Cmp::Lt, x[0], x[1]);
                    let le = b.cmp(Cmp::Le, x[0], x[1]);
                    let a = b.binary(ScalarOp::And, eq, le);
                    let o = b.binary(ScalarOp::Or, lt, x[2]);
                    let n = b.unary(ScalarOp::Not, ne);
                    let o = b.binary(ScalarOp::Or, o, n);
                    let s = b.select(x[2], x[0], x[1]);
                    let t = b.select(o, x[1], s);
                    vec![a, o, s, t]
                },
            );
            check(&k, &inputs(&k, 3, true));
        }
    }
}

#[test]
fn conversions_between_all_dtypes() {
    for from in DType::COMPUTABLE {
        for to in DType::COMPUTABLE {
            for extents in [&[5usize][..], &[16], &[37], &[300]] {
                let k = map(extents, &[from, from], &[to, to], |b, x| {
                    let y = b.convert(x[0], Scalar::of(to).unwrap());
                    let y = b.as_dtype(y, to);
                    // Stores convert on their own as well.
                    vec![y, x[1]]
                });
                check(&k, &inputs(&k, 4, true));
            }
        }
    }
}

#[test]
fn integer_division_does_not_trap() {
    for dtype in [DType::I32, DType::I64] {
        let k = map(&[64], &[dtype, dtype], &[dtype, dtype], |b, x| {
            let least = b.push(
                ScalarOp::Const(if dtype == DType::I32 { 1 << 31 } else { 1 << 63 }),
                &[],
                b.ty(x[0]),
            );
            let minus = b.constant(b.ty(x[0]), -1.0);
            let q = b.binary(ScalarOp::Div, x[0], x[1]);
            let r = b.binary(ScalarOp::Rem, x[0], x[1]);
            let wrapped = b.binary(ScalarOp::Div, least, minus);
            let zero = b.binary(ScalarOp::Rem, least, minus);
            let q = b.binary(ScalarOp::Add, q, wrapped);
            let r = b.binary(ScalarOp::Add, r, zero);
            vec![q, r]
        });
        check(&k, &inputs(&k, 5, false));
    }
}

#[test]
fn views_broadcasts_and_constants() {
    // A transposed operand, a row, a column, a scalar, a slice with a step, and constants of every
    // dtype.
    let (m, n) = (9usize, 37usize);
    let mut body = Body::default();
    let loads = vec![
        load(0, DType::F32, &[1, m as i64]),
        load(1, DType::BF16, &[0, 1]),
        load(2, DType::F16, &[1, 0]),
        load(3, DType::F32, &[0, 0]),
        {
            let mut l = load(4, DType::F32, &[2 * n as i64, -2]);
            l.access.offset = Size::from(2 * n as i64 - 1);
            l
        },
        load(5, DType::F16, &[n as i64, 1]),
    ];
    let x: Vec<Val> = (0..6).map(|i| body.push(ScalarOp::Load(i), &[], Scalar::F32)).collect();
    let sum = x.iter().copied().reduce(|a, b| body.binary(ScalarOp::Add, a, b)).unwrap();
    let e = body.unary(ScalarOp::Call(Function::Exp), x[3]);
    let y = body.binary(ScalarOp::Mul, sum, e);
    let mut sinks =
        vec![store(0, DType::F32, &[n as i64, 1], y), store(1, DType::BF16, &[1, m as i64], y)];
    let mut outputs =
        vec![TensorType::new(DType::F32, [m, n]), TensorType::new(DType::BF16, [n, m])];
    for dtype in DType::COMPUTABLE {
        let c = body.constant(Scalar::of(dtype).unwrap(), 1.0);
        sinks.push(store(outputs.len(), dtype, &[n as i64, 1], c));
        outputs.push(TensorType::new(dtype, [m, n]));
    }
    let f = |d, s: &[usize]| TensorType::new(d, s);
    let ins = vec![
        f(DType::F32, &[n, m]),
        f(DType::BF16, &[n]),
        f(DType::F16, &[m]),
        f(DType::F32, &[]),
        f(DType::F32, &[m, 2 * n]),
        f(DType::F16, &[m, n]),
    ];
    let form = Nest { loads, stages: vec![Stage { over: Over::Row, body, sinks }], ..no_loops() };
    let k = nest(ins, outputs, &[m, n], form);
    check(&k, &inputs(&k, 6, false));
}

#[test]
fn guards_along_and_across_the_row() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I64, DType::U8, DType::Bool] {
        let (m, n) = (6usize, 50usize);
        let scalar = Scalar::of(dtype).unwrap();
        let mut body = Body::default();
        // Rows 2.. of the first, columns 10..40 of the second.
        let mut a = load(0, dtype, &[n as i64, 1]);
        a.access.offset = Size::from(-2 * n as i64);
        a.access.guards =
            smallvec![Guard { offset: -2, strides: smallvec![1, 0], extent: 3 }.map(&Size::from)];
        let mut b = load(1, dtype, &[30, 1]);
        b.access.offset = Size::from(-10);
        b.access.guards = smallvec![
            Guard { offset: -10, strides: smallvec![0, 1], extent: 30 }.map(&Size::from),
            Guard { offset: 0, strides: smallvec![1, 0], extent: 5 }.map(&Size::from),
        ];
        b.access.fill = match scalar {
            Scalar::F32 => u64::from(2f32.to_bits()),
            _ => 1,
        };
        let x = body.push(ScalarOp::Load(0), &[], scalar);
        let y = body.push(ScalarOp::Load(1), &[], scalar);
        let z = if scalar == Scalar::Bool {
            body.binary(ScalarOp::Or, x, y)
        } else {
            body.binary(ScalarOp::Add, x, y)
        };
        let z = body.as_dtype(z, dtype);
        let sinks = vec![store(0, dtype, &[n as i64, 1], z), store(1, dtype, &[n as i64, 1], x)];
        let form = Nest {
            loads: vec![a, b],
            stages: vec![Stage { over: Over::Row, body, sinks }],
            ..no_loops()
        };
        let ty = TensorType::new(dtype, [m, n]);
        let k = nest(
            vec![TensorType::new(dtype, [3, n]), TensorType::new(dtype, [5, 30])],
            vec![ty.clone(), ty],
            &[m, n],
            form,
        );
        check(&k, &inputs(&k, 7, false));
    }
}

#[test]
fn positions_masks_and_random_words() {
    for (m, n) in [(5usize, 33usize), (3, 128), (1, 7)] {
        let mut body = Body::default();
        let i = body.push(ScalarOp::Index(0), &[], Scalar::I64);
        let j = body.push(ScalarOp::Index(1), &[], Scalar::I64);
        let width = body.constant(Scalar::I64, n as f64);
        let row = body.binary(ScalarOp::Mul, i, width);
        let element = body.binary(ScalarOp::Add, row, j);
        let key = body.push(ScalarOp::Load(0), &[], Scalar::I64);
        let step = body.push(ScalarOp::Load(1), &[], Scalar::I64);
        let word = body.push(ScalarOp::Random { stream: 3 }, &[key, step, element], Scalar::I32);
        let two = body.constant(Scalar::I64, 2.0);
        let twice = body.binary(ScalarOp::Mul, element, two);
        let sparse = body.push(ScalarOp::Random { stream: 4 }, &[key, step, twice], Scalar::I32);
        let causal = body.cmp(Cmp::Le, j, i);
        let label = body.push(ScalarOp::Load(2), &[], Scalar::I64);
        let hit = body.cmp(Cmp::Eq, j, label);
        let huge = body.push(ScalarOp::Const(1 << 40), &[], Scalar::I64);
        let far = body.cmp(Cmp::Lt, huge, twice);
        let hit = body.binary(ScalarOp::Or, hit, far);
        let float = body.convert(twice, Scalar::F32);
        let sinks = vec![
            store(0, DType::I32, &[n as i64, 1], word),
            store(1, DType::I32, &[n as i64, 1], sparse),
            store(2, DType::Bool, &[n as i64, 1], causal),
            store(3, DType::Bool, &[n as i64, 1], hit),
            store(4, DType::F32, &[n as i64, 1], float),
            store(5, DType::I64, &[n as i64, 1], element),
        ];
        let mut loads = vec![
            load(0, DType::I64, &[0, 0]),
            load(0, DType::I64, &[0, 0]),
            load(1, DType::I64, &[1, 0]),
        ];
        loads[1].access.offset = Size::from(1);
        let form =
            Nest { loads, stages: vec![Stage { over: Over::Row, body, sinks }], ..no_loops() };
        let ty = |d| TensorType::new(d, [m, n]);
        let outs = vec![
            ty(DType::I32),
            ty(DType::I32),
            ty(DType::Bool),
            ty(DType::Bool),
            ty(DType::F32),
            ty(DType::I64),
        ];
        let k = nest(
            vec![TensorType::new(DType::I64, [2]), TensorType::new(DType::I64, [m])],
            outs,
            &[m, n],
            form,
        );
        check(&k, &inputs(&k, 8, false));
    }
}

/// Rows of a table by index, the index checked; and single elements by index.
fn gather(rows: usize, n: usize, varying: bool, dtype: DType) -> Kernel {
    let mut body = Body::default();
    let index = body.push(ScalarOp::Load(1), &[], Scalar::I64);
    let zero = body.constant(Scalar::I64, 0.0);
    let count = body.constant(Scalar::I64, 10.0);
    let low = body.cmp(Cmp::Le, zero, index);
    let high = body.cmp(Cmp::Lt, index, count);
    let fine = body.binary(ScalarOp::And, low, high);
    body.push(ScalarOp::Check(1), &[fine], Scalar::Bool);
    let x = body.push(ScalarOp::Load(0), &[index], Scalar::of(dtype).unwrap());
    let mut table = load(0, dtype, &[0, 1]);
    table.access.indirect = smallvec![Size::from(n)];
    let index = load(1, DType::I64, if varying { &[0, 1] } else { &[1, 0] });
    let sinks = vec![store(0, dtype, &[n as i64, 1], x)];
    let form = Nest {
        loads: vec![table, index],
        stages: vec![Stage { over: Over::Row, body, sinks }],
        ..no_loops()
    };
    let indices = TensorType::new(DType::I64, [if varying { n } else { rows }]);
    nest(
        vec![TensorType::new(dtype, [10, n]), indices],
        vec![TensorType::new(dtype, [rows, n])],
        &[rows, n],
        form,
    )
}

#[test]
fn gathers_and_their_checks() {
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::I64, DType::U8] {
        for varying in [false, true] {
            for n in [1, 20, 64, 1000] {
                let k = gather(7, n, varying, dtype);
                let mut ins = inputs(&k, 9, false);
                for (i, at) in ins[1].chunks_mut(8).enumerate() {
                    at.copy_from_slice(&((i * 3 % 10) as i64).to_le_bytes());
                }
                check(&k, &ins);
                let last = ins[1].len() - 8;
                for bad in [10i64, -1, i64::MAX, i64::MIN] {
                    ins[1][last..].copy_from_slice(&bad.to_le_bytes());
                    check(&k, &ins);
                }
            }
        }
    }
}

/// Rows of a table that exceeds a core's cache are prefetched; in tests such a cache has 16 KiB.
#[test]
fn rows_of_large_tables_are_prefetched() {
    let device = CpuDevice::new(CpuOptions::default()).unwrap();
    for (n, varying, expected) in [(64, false, false), (1000, false, true), (1000, true, false)] {
        let text = device.load(&gather(7, n, varying, DType::F32)).unwrap().text().unwrap();
        let vectors = text.contains("vector loop");
        assert_eq!(text.contains("prefetcht0"), expected && vectors, "{n} {varying}: {text}");
    }
    let text = device.load(&gather(1 << 20, 1024, false, DType::F32)).unwrap().text().unwrap();
    let bodies: Vec<&str> = text.split("main").skip(1).collect();
    assert_eq!(bodies.len(), if text.contains("vector loop") { 2 } else { 0 }, "{text}");
    assert!(bodies.iter().all(|body| body.contains("prefetcht0")), "{text}");
}

#[test]
fn checks_in_vector_code() {
    for n in [3, 16, 40] {
        let k = map(&[n], &[DType::F32, DType::F32], &[DType::F32], |b, x| {
            let zero = b.constant(Scalar::F32, 0.0);
            for (number, v) in [(2, x[1]), (0, x[0])] {
                let fine = b.cmp(Cmp::Le, zero, v);
                b.push(ScalarOp::Check(number), &[fine], Scalar::Bool);
            }
            vec![b.binary(ScalarOp::Add, x[0], x[1])]
        });
        let floats = |f: &dyn Fn(usize) -> f32| -> Vec<u8> {
            (0..n).flat_map(|i| f(i).to_le_bytes()).collect()
        };
        let fine = floats(&|i| i as f32);
        let bad = floats(&|i| if i == n - 1 { -1.0 } else { 1.0 });
        check(&k, &[fine.clone(), fine.clone()]);
        check(&k, &[bad.clone(), fine.clone()]);
        check(&k, &[fine, bad.clone()]);
        check(&k, &[bad.clone(), bad]);
    }
}

/// An optimizer's step over several tensors at once, in place, unless a flag is up.
#[test]
fn segments_updates_and_when() {
    let lengths = [5usize, 1, 64, 1000, 33];
    let mut body = Body::default();
    let p = body.push(ScalarOp::Load(0), &[], Scalar::F32);
    let g = body.push(ScalarOp::Load(1), &[], Scalar::F32);
    let v = body.push(ScalarOp::Load(2), &[], Scalar::F32);
    let rate = body.push(ScalarOp::Load(3), &[], Scalar::F32);
    let decay = body.constant(Scalar::F32, 0.9);
    let old = body.binary(ScalarOp::Mul, v, decay);
    let new = body.binary(ScalarOp::Add, old, g);
    let step = body.unary(ScalarOp::Call(Function::Tanh), new);
    let step = body.binary(ScalarOp::Mul, step, rate);
    let q = body.binary(ScalarOp::Sub, p, step);
    let stage = Stage {
        over: Over::Row,
        body,
        sinks: vec![
            store(0, DType::F32, &[1], q),
            store(1, DType::F32, &[1], new),
            store(2, DType::BF16, &[1], q),
        ],
    };
    let loads = vec![
        load(0, DType::F32, &[1]),
        load(1, DType::BF16, &[1]),
        load(2, DType::F32, &[1]),
        load(3, DType::F32, &[0]),
    ];
    let scalar = TensorType::new(DType::F32, [] as [usize; 0]);
    let (mut ins, mut outs, mut segments) = (vec![scalar.clone(), scalar], Vec::new(), Vec::new());
    for n in lengths {
        let (i, o) = (ins.len(), outs.len());
        segments.push(Segment {
            extents: sizes(&[n]),
            inputs: vec![i, i + 1, i + 2, 0],
            outputs: vec![o, o + 1, o + 2],
        });
        let ty = |d| TensorType::new(d, [n]);
        ins.extend([ty(DType::F32), ty(DType::BF16), ty(DType::F32)]);
        outs.extend([ty(DType::F32), ty(DType::F32), ty(DType::BF16)]);
    }
    let form = Nest { segments, loads, stages: vec![stage], ..no_loops() };
    let mut k = kernel(ins, outs, Form::Nest(form));
    for s in 0..lengths.len() {
        k.outputs[3 * s].update = Some(2 + 3 * s);
        k.outputs[3 * s + 1].update = Some(4 + 3 * s);
    }
    let mut data = inputs(&k, 10, false);
    check(&k, &data);
    for o in (2..k.outputs.len()).step_by(3) {
        // Everything is an update where a flag may keep it.
        let ty = k.outputs[o].ty.clone();
        k.inputs.push(ty.clone());
        data.push(Numbers(o as u64).elements(&ty, false));
        k.outputs[o].update = Some(k.inputs.len() - 1);
    }
    k.when = Some(1);
    for flag in [0f32, 1.0, f32::NAN, -0.0] {
        data[1] = flag.to_le_bytes().to_vec();
        check(&k, &data);
    }
}

#[test]
fn empty_and_scalar_maps() {
    for extents in [&[0usize][..], &[3, 0], &[0, 3], &[1], &[1, 1, 1]] {
        let k = map(extents, &[DType::F32], &[DType::F32], |b, x| {
            vec![b.unary(ScalarOp::Call(Function::Exp), x[0])]
        });
        check(&k, &inputs(&k, 11, true));
    }
}

/// `count` operands whose elements alternate in one output, and behind them in `zeros` more places
/// zeros.
fn alternate(dtype: DType, n: usize, count: usize, zeros: usize) -> Kernel {
    let all = (count + zeros) as i64;
    let mut body = Body::default();
    let ty = Scalar::of(dtype).unwrap();
    let mut sinks = Vec::new();
    for at in 0..count + zeros {
        let value = match at < count {
            true => body.push(ScalarOp::Load(at as u32), &[], ty),
            false => body.constant(ty, 0.0),
        };
        let mut sink = store(0, dtype, &[n as i64 * all, all], value);
        if let Sink::Store { access, .. } = &mut sink {
            access.offset = Size::from(at as i64);
        }
        sinks.push(sink);
    }
    let form = Nest {
        loads: (0..count).map(|i| load(i, dtype, &[n as i64, 1])).collect(),
        stages: vec![Stage { over: Over::Row, body, sinks }],
        ..no_loops()
    };
    let part = TensorType::new(dtype, [3, n]);
    let outputs = vec![TensorType::new(dtype, [3, n, count + zeros])];
    nest(vec![part; count], outputs, &[3, n], form)
}

#[test]
fn elements_that_are_moved() {
    let all = DType::ALL.into_iter().filter(|dtype| dtype.is_computable() || dtype.is_low());
    for dtype in all.filter(|dtype| Scalar::of(*dtype).is_some()) {
        for (count, zeros) in [(1, 1), (2, 0), (3, 0), (4, 0), (3, 4), (9, 0)] {
            let k = alternate(dtype, 37, count, zeros);
            check(&k, &inputs(&k, 21, true));
        }
    }
}

#[test]
fn elements_that_are_moved_and_computed_with() {
    // The first operand is stored as it is, once dense and once two apart; next to it lies what it
    // becomes.
    for dtype in [DType::F16, DType::BF16, DType::U8] {
        let mut k = alternate(dtype, 50, 2, 0);
        let Form::Nest(form) = &mut k.form else { unreachable!() };
        let Stage { body, sinks, .. } = &mut form.stages[0];
        let sum = body.binary(ScalarOp::Add, 0, 1);
        let sum = body.as_dtype(sum, dtype);
        if let Sink::Store { value, .. } = &mut sinks[1] {
            *value = sum;
        }
        sinks.push(store(1, dtype, &[50, 1], 1));
        form.segments[0].outputs.push(1);
        let ty = TensorType::new(dtype, [3, 50]);
        k.outputs.push(Output { ty, update: None });
        check(&k, &inputs(&k, 22, true));
    }
}

#[test]
fn large_maps_are_split() {
    let k = map(&[3, 100_003], &[DType::F32, DType::BF16], &[DType::F16, DType::F32], |b, x| {
        let y = b.unary(ScalarOp::Call(Function::Tanh), x[0]);
        let z = b.binary(ScalarOp::Mul, y, x[1]);
        vec![z, y]
    });
    check(&k, &inputs(&k, 12, true));
}

/// Sweeps over several tensors, or over a tensor whose rows lie apart, with the largest magnitude
/// and a flag of each tensor.
#[test]
fn largest_values() {
    let sweep = |extents: &[&[usize]], row: i64, dtype: DType| {
        let mut body = Body::default();
        let x = body.push(ScalarOp::Load(0), &[], Scalar::of(dtype).unwrap());
        let y = body.binary(ScalarOp::Add, x, x);
        let size = body.unary(ScalarOp::Abs, y);
        let inf = body.constant(body.ty(size), f64::INFINITY);
        let finite = body.cmp(Cmp::Lt, size, inf);
        let not = body.unary(ScalarOp::Not, finite);
        let flag = body.convert(not, Scalar::F32);
        let along = |row: i64| if extents[0].len() == 2 { vec![row, 1] } else { vec![1] };
        let sinks = vec![
            Sink::Largest { value: size, output: 0 },
            store(1, dtype, &along(*extents[0].last().unwrap() as i64), y),
            Sink::Largest { value: flag, output: 2 },
        ];
        let (mut ins, mut outs, mut segments) = (Vec::new(), Vec::new(), Vec::new());
        for extents in extents {
            let (input, o) = (ins.len(), outs.len());
            let (extents, outputs) = (extents.to_vec(), vec![o, o + 1, o + 2]);
            let padded =
                if extents.len() == 2 { vec![extents[0], row as usize] } else { extents.clone() };
            ins.push(TensorType::new(dtype, &padded[..]));
            let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
            outs.push(TensorType::scalar(wide));
            outs.push(TensorType::new(dtype, &extents[..]));
            outs.push(TensorType::scalar(DType::F32));
            let extents = sizes(&extents);
            segments.push(Segment { extents, inputs: vec![input], outputs });
        }
        let stages = vec![Stage { over: Over::Row, body, sinks }];
        let loads = vec![load(0, dtype, &along(row))];
        let k = kernel(ins, outs, Form::Nest(Nest { segments, loads, stages, ..no_loops() }));
        for special in [false, true] {
            check(&k, &inputs(&k, 13, special));
        }
    };
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        sweep(&[&[5], &[1], &[64], &[100_003], &[33]], 0, dtype);
        sweep(&[&[70_000]], 0, dtype);
        sweep(&[&[40, 17]], 20, dtype);
        sweep(&[&[300, 512]], 512, dtype);
        sweep(&[&[0]], 0, dtype);
    }
}
