//! Contractions of many sizes, transposed and batched, against sums in f64.
//!
//! By default some of the sizes are tried; `TRACECAST_ALL_SHAPES=1` tries all of them.

use super::{DEVICES, inputs, kernel, load, place, sizes, store, strides};
use crate::CpuDevice;
use smallvec::SmallVec;
use tracecast_ir::eval::Value;
use tracecast_ir::kernel::{Body, Contract, Factor, Form, Kernel, Over, Scalar, ScalarOp, Stage};
use tracecast_ir::{DType, TensorType};

/// The sizes of rows, columns and the summed axis.
const SIZES: [usize; 7] = [1, 3, 16, 64, 100, 768, 3072];

/// The most products of a contraction.
const MOST: usize = 1 << 24;

/// A contraction and how its operands lie in memory.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    dtype: DType,
    /// The left operand is stored as (k, m), the right one as (n, k).
    transposed: [bool; 2],
    /// The right operand is one for the whole batch.
    shared: bool,
}

impl Case {
    fn products(&self) -> usize {
        self.batch * self.m * self.n * self.k
    }

    /// Strides over (batch, row, column) of both operands.
    fn strides(&self) -> [[usize; 3]; 2] {
        let Case { m, n, k, .. } = *self;
        let [a, b] = self.transposed;
        let left = if a { [m * k, 1, m] } else { [m * k, k, 1] };
        let right = if b { [k * n, 1, k] } else { [k * n, n, 1] };
        [left, if self.shared { [0, right[1], right[2]] } else { right }]
    }

    fn kernel(&self) -> Kernel {
        let Case { batch, m, n, k, dtype, .. } = *self;
        let mut input = 0;
        let mut factor = |strides: [usize; 3]| {
            let mut body = Body::default();
            let value = body.push(ScalarOp::Load(0), &[], Scalar::F32);
            let strides: SmallVec<[i64; 4]> = strides.iter().map(|s| *s as i64).collect();
            input += 1;
            Factor { loads: vec![load(input - 1, dtype, &strides)], body, value, split: None }
        };
        let [a, b] = self.strides().map(&mut factor);
        let mut body = Body::default();
        let sum = body.push(ScalarOp::Acc, &[], Scalar::F32);
        let sinks = vec![store(0, DType::F32, &strides(&[batch, m, n]), sum)];
        let contract = Contract {
            batch: sizes(&[batch]),
            m: m.into(),
            n: n.into(),
            k: k.into(),
            acc: Scalar::F32,
            a,
            b,
            loads: Vec::new(),
            epilogue: Stage { over: Over::Row, body, sinks },
        };
        let right = if self.shared { k * n } else { batch * k * n };
        let ins = vec![TensorType::new(dtype, [batch * m * k]), TensorType::new(dtype, [right])];
        let outs = vec![TensorType::new(DType::F32, [batch, m, n])];
        kernel(ins, outs, Form::Contract(contract))
    }

    /// For every result, the sum and the sum of magnitudes, in f64.
    fn sums(&self, operands: &[Vec<f64>]) -> Vec<[f64; 2]> {
        let Case { batch, m, n, k, .. } = *self;
        let [left, right] = self.strides();
        let mut sums = vec![[0.0; 2]; batch * m * n];
        for (at, sums) in sums.chunks_exact_mut(n).enumerate() {
            let (l, i) = (at / m, at % m);
            for p in 0..k {
                let x = operands[0][l * left[0] + i * left[1] + p * left[2]];
                let row = &operands[1][l * right[0] + p * right[1]..];
                for (j, sum) in sums.iter_mut().enumerate() {
                    let product = x * row[j * right[2]];
                    sum[0] += product;
                    sum[1] += product.abs();
                }
            }
        }
        sums
    }
}

/// Every case within [`MOST`] products.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let dtypes = [DType::F32, DType::BF16, DType::F16];
    for (m, n, k) in triples() {
        for (batch, shared) in [(1, false), (12, false), (12, true)] {
            for transposed in [[false, false], [false, true], [true, false], [true, true]] {
                let dtype = dtypes[cases.len() % 3];
                let case = Case { batch, m, n, k, dtype, transposed, shared };
                if case.products() <= MOST {
                    cases.push(case);
                }
            }
        }
    }
    cases
}

fn triples() -> impl Iterator<Item = (usize, usize, usize)> {
    let pairs = SIZES.into_iter().flat_map(|m| SIZES.map(|n| (m, n)));
    pairs.flat_map(|(m, n)| SIZES.map(|k| (m, n, k)))
}

/// What a device makes of it.
fn run(device: &CpuDevice, kernel: &Kernel, data: &[Vec<u8>]) -> Vec<f64> {
    let placed = place(device, kernel, data);
    placed.bound.run().unwrap();
    let ty = kernel.outputs[0].ty.clone();
    let mut bytes = vec![0; ty.bytes().get()];
    tracecast_runtime::Device::download(device, &placed.outputs[0], 0, &mut bytes).unwrap();
    Value::new(ty, bytes).unwrap().to_f64s()
}

#[test]
fn sums_of_any_size_are_within_their_bound_and_the_same_on_every_device() {
    let all = std::env::var_os("TRACECAST_ALL_SHAPES").is_some();
    let cases = cases();
    let chosen = cases.iter().enumerate().filter(|(i, case)| {
        let one_of_many = match case.products() {
            0..4096 => 3,
            4096..1_000_000 => 17,
            _ => 149,
        };
        all || i % one_of_many == 0
    });
    let mut count = 0;
    for (seed, case) in chosen {
        count += 1;
        let kernel = case.kernel();
        let data = inputs(&kernel, seed as u64, false);
        let numbers = |(ty, bytes): (&TensorType, &Vec<u8>)| {
            Value::new(ty.clone(), bytes.clone()).unwrap().to_f64s()
        };
        let operands: Vec<Vec<f64>> = kernel.inputs.iter().zip(&data).map(numbers).collect();
        let found = run(&DEVICES[0], &kernel, &data);
        let bound = 2.0 * case.k as f64 * f64::from(f32::EPSILON);
        for (at, ([sum, size], found)) in case.sums(&operands).iter().zip(&found).enumerate() {
            assert!((sum - found).abs() <= bound * size, "{case:?} at {at}: {sum} and {found}");
        }
        for device in DEVICES[1..].iter().filter(|_| case.products() < 1 << 21) {
            assert!(run(device, &kernel, &data) == found, "{case:?} differs on {device:?}");
        }
    }
    assert!(count > 100, "{count} of {} cases", cases.len());
}

#[test]
fn strides_say_how_operands_lie() {
    let case = Case {
        batch: 1,
        m: 1,
        n: 2,
        k: 2,
        dtype: DType::F32,
        transposed: [false, true],
        shared: false,
    };
    // (1 2) times the columns (3 4) and (5 6).
    let sums = case.sums(&[vec![1.0, 2.0], vec![3.0, 4.0, 5.0, 6.0]]);
    assert_eq!(sums, [[11.0, 11.0], [17.0, 17.0]]);
}
