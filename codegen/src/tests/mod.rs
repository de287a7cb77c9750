//! Runs kernels on CPU devices of every kind and compares the bits with the interpreter's.

mod bodies;
mod lines;
mod maps;
mod named;
mod packed_weights;
mod products;
mod random;
mod rows;
mod shapes;
mod strided;
mod sums;
mod transposed;

use crate::{CpuDevice, CpuOptions, Vectors};
use smallvec::{SmallVec, smallvec};
use std::sync::LazyLock;
use tracecast_ir::eval::{Bytes, EvalError, Value, kernel as interpret};
use tracecast_ir::kernel::{
    Access, Body, Check, Form, Kernel, Load, Nest, Output, Over, Scalar, ScalarOp, Segment, Sink,
    Stage, Val,
};
use tracecast_ir::{DType, Size, TensorType};
use tracecast_runtime::{Access as Use, Arg, Bound, Device, Error, Memory};

/// Numbers that look random and are the same every time.
struct Numbers(u64);

impl Numbers {
    /// The next one.
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// One of those.
    fn one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// Elements of a type: mostly small numbers, sometimes zeros, infinities and NaNs.
    fn elements(&mut self, ty: &TensorType, special: bool) -> Vec<u8> {
        let specials = [
            0.0,
            -0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            1e-40,
            3e38,
            -7.5,
            65504.0,
            1e10,
        ];
        let numbers: Vec<f64> = (0..ty.numel().get())
            .map(|_| {
                let small = (self.bits() >> 11) as f64 / (1u64 << 53) as f64 * 8.0 - 4.0;
                match ty.dtype {
                    DType::Bool => (self.bits() & 1) as f64,
                    DType::I32 | DType::I64 | DType::U8 => {
                        (self.below(40) as f64) - if ty.dtype == DType::U8 { 0.0 } else { 20.0 }
                    }
                    _ if special && self.below(12) == 0 => self.one_of(&specials),
                    _ => small,
                }
            })
            .collect();
        Value::from_f64s(ty.clone(), &numbers).unwrap().bytes.to_vec()
    }
}

/// Devices that must agree: one thread, two, eight; the widest vectors, those of 256 bits, and the
/// portable code.
static DEVICES: LazyLock<Vec<CpuDevice>> = LazyLock::new(|| {
    let all = [
        (1, Vectors::Native),
        (1, Vectors::Portable),
        (2, Vectors::Native),
        (8, Vectors::Portable),
        (1, Vectors::Avx2),
    ];
    let device = |(threads, vectors)| {
        CpuDevice::new(CpuOptions { threads: Some(threads), vectors, ..CpuOptions::default() })
            .unwrap()
    };
    all.map(device).into()
});

/// A kernel with its operands in the memory of a device.
pub(crate) struct Placed {
    pub(crate) bound: Box<dyn Bound>,
    pub(crate) outputs: Vec<Memory>,
}

/// Loads and binds a kernel. Outputs that update an input share its memory.
pub(crate) fn place(device: &CpuDevice, kernel: &Kernel, inputs: &[Vec<u8>]) -> Placed {
    let launch = device.load(kernel).unwrap();
    place_with(device, kernel, inputs, |args| launch.bind(args, &[]).unwrap())
}

/// Gives a kernel without names memory, and binds something to it.
fn place_with(
    device: &CpuDevice,
    kernel: &Kernel,
    inputs: &[Vec<u8>],
    bind: impl FnOnce(&[Arg]) -> Box<dyn Bound>,
) -> Placed {
    let memory = |bytes: usize| device.alloc(bytes).unwrap();
    let mut args = Vec::new();
    for (i, bytes) in inputs.iter().enumerate() {
        let m = memory(bytes.len());
        device.upload(bytes, &m, 0).unwrap();
        let updated = kernel.outputs.iter().any(|o| o.update == Some(i));
        args.push(Arg {
            memory: m,
            offset: 0,
            len: bytes.len(),
            access: if updated { Use::Update } else { Use::Read },
            lasting: false,
        });
    }
    let mut outputs = Vec::new();
    for output in &kernel.outputs {
        let len = output.ty.bytes().get();
        let m = match output.update {
            Some(i) => args[i].memory.clone(),
            None => {
                let m = memory(len);
                device.upload(&vec![0xa5; len], &m, 0).unwrap();
                m
            }
        };
        let access = if output.update.is_some() { Use::Update } else { Use::Write };
        args.push(Arg { memory: m.clone(), offset: 0, len, access, lasting: false });
        outputs.push(m);
    }
    Placed { bound: bind(&args), outputs }
}

/// Compares a kernel's outputs on every device with the interpreter's.
fn check(kernel: &Kernel, inputs: &[Vec<u8>]) {
    let slices: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let want = interpret(kernel, &slices);
    for device in DEVICES.iter() {
        compare(device, kernel, &want, &place(device, kernel, inputs));
    }
}

/// Runs a kernel on a device and compares its outputs, or its failure, with what is wanted.
fn compare(
    device: &CpuDevice,
    kernel: &Kernel,
    want: &Result<Vec<Bytes>, EvalError>,
    placed: &Placed,
) {
    let mut found = Ok(());
    device
        .run_step(&mut || {
            found = placed.bound.run();
            Ok(())
        })
        .unwrap();
    match (want, found) {
        (Ok(outputs), Ok(())) => {
            for (i, (want, memory)) in outputs.iter().zip(&placed.outputs).enumerate() {
                let mut bytes = vec![0; want.len()];
                device.download(memory, 0, &mut bytes).unwrap();
                let ty = &kernel.outputs[i].ty;
                let value = |b: &[u8]| Value::new(ty.clone(), b.to_vec()).unwrap();
                let (want, found) = (value(want), value(&bytes));
                if let Some(at) = want.first_difference(&found) {
                    let (w, f) = (want.to_f64s()[at], found.to_f64s()[at]);
                    panic!(
                        "{device:?}: output {i} ({ty}) at {at}: expected {w:?}, found {f:?} in {kernel:#?}"
                    );
                }
            }
        }
        (Err(EvalError::Data(raised)), Err(Error::Data { message, op, .. })) => {
            assert_eq!(
                (raised.check.says(raised.found), &raised.check.op),
                (message, &op),
                "{device:?}: {kernel:#?}"
            );
        }
        (want, found) => {
            panic!("{device:?}: expected {want:?}, found {found:?} in {kernel:#?}")
        }
    }
}

/// Sizes of axes.
fn sizes<S: Copy + Into<Size>>(extents: &[S]) -> Vec<Size> {
    extents.iter().map(|n| (*n).into()).collect()
}

/// Row-major strides.
fn strides(extents: &[usize]) -> SmallVec<[i64; 4]> {
    let mut all: SmallVec<[i64; 4]> = smallvec![1; extents.len()];
    for axis in (1..extents.len()).rev() {
        all[axis - 1] = all[axis] * extents[axis] as i64;
    }
    all
}

fn access<S: Copy + Into<Size>>(strides: &[S]) -> Access {
    let strides = strides.iter().map(|stride| (*stride).into()).collect();
    Access { strides, ..Access::default() }
}

fn load<S: Copy + Into<Size>>(input: usize, dtype: DType, strides: &[S]) -> Load {
    Load { input, dtype, access: access(strides) }
}

fn store<S: Copy + Into<Size>>(output: usize, dtype: DType, strides: &[S], value: u32) -> Sink {
    Sink::Store { output, dtype, access: access(strides), value }
}

fn kernel(inputs: Vec<TensorType>, outputs: Vec<TensorType>, form: Form) -> Kernel {
    let check = |i: usize| Check {
        message: format!("check {i}"),
        op: "test".to_owned(),
        source: String::new(),
        range: None,
    };
    Kernel {
        name: "test".to_owned(),
        inputs,
        outputs: outputs.into_iter().map(|ty| Output { ty, update: None }).collect(),
        when: None,
        checks: (0..4).map(check).collect(),
        arguments: Vec::new(),
        names: Vec::new(),
        form,
    }
}

/// A nest with one segment over all operands.
fn nest<S: Copy + Into<Size>>(
    inputs: Vec<TensorType>,
    outputs: Vec<TensorType>,
    extents: &[S],
    mut nest: Nest,
) -> Kernel {
    nest.segments = vec![Segment {
        extents: sizes(extents),
        inputs: (0..inputs.len()).collect(),
        outputs: (0..outputs.len()).collect(),
    }];
    kernel(inputs, outputs, Form::Nest(nest))
}

/// A nest with nothing in it.
fn no_loops() -> Nest {
    Nest {
        segments: Vec::new(),
        loads: Vec::new(),
        registers: Vec::new(),
        buffers: Vec::new(),
        stages: Vec::new(),
    }
}

/// A map over dense operands: `make` gets the loaded values and returns what is stored.
fn map(
    extents: &[usize],
    from: &[DType],
    to: &[DType],
    make: impl Fn(&mut Body, &[Val]) -> Vec<Val>,
) -> Kernel {
    let mut body = Body::default();
    let dense = strides(extents);
    let mut form = no_loops();
    let mut values = Vec::new();
    for (i, dtype) in from.iter().enumerate() {
        form.loads.push(load(i, *dtype, &dense));
        values.push(body.push(ScalarOp::Load(i as u32), &[], Scalar::of(*dtype).unwrap()));
    }
    let results = make(&mut body, &values);
    let sinks = results
        .iter()
        .zip(to)
        .enumerate()
        .map(|(i, (v, dtype))| store(i, *dtype, &dense, *v))
        .collect();
    form.stages.push(Stage { over: Over::Row, body, sinks });
    let ty = |d: &DType| TensorType::new(*d, extents);
    nest(from.iter().map(ty).collect(), to.iter().map(ty).collect(), extents, form)
}

/// A map with a tile routine between cheap arithmetic.
pub(crate) fn gelu(n: usize) -> Kernel {
    map(&[n], &[DType::F32], &[DType::F32], |b, x| {
        let [c, k, half, one] =
            [0.044_715, 0.797_884_6, 0.5, 1.0].map(|v| b.constant(Scalar::F32, v));
        let square = b.binary(ScalarOp::Mul, x[0], x[0]);
        let cube = b.binary(ScalarOp::Mul, square, x[0]);
        let t = b.binary(ScalarOp::Mul, cube, c);
        let t = b.binary(ScalarOp::Add, x[0], t);
        let t = b.binary(ScalarOp::Mul, t, k);
        let t = b.unary(ScalarOp::Call(tracecast_ir::kernel::Function::Tanh), t);
        let t = b.binary(ScalarOp::Add, t, one);
        let y = b.binary(ScalarOp::Mul, x[0], half);
        vec![b.binary(ScalarOp::Mul, y, t)]
    })
}

/// Random inputs for a kernel.
pub(crate) fn inputs(kernel: &Kernel, seed: u64, special: bool) -> Vec<Vec<u8>> {
    let mut numbers = Numbers(seed);
    kernel.inputs.iter().map(|ty| numbers.elements(ty, special)).collect()
}
