//! What a contraction keeps of its right operand does not show, whatever becomes of the operand.

use super::products::{Left, product};
use super::{DEVICES, Numbers, inputs};
use crate::run::RUNS;
use tracecast_ir::DType;
use tracecast_ir::eval::{Value, kernel as interpret};
use tracecast_ir::kernel::{Form, Kernel};
use tracecast_runtime::{Access, Arg, Bound, Device, Memory};

/// A kernel whose right operand lasts, with its operands in the memory of a device.
struct Placed<'a> {
    device: &'a dyn Device,
    kernel: &'a Kernel,
    memory: Vec<Memory>,
    bound: Box<dyn Bound>,
    values: Vec<Vec<u8>>,
    /// The results of the interpreter.
    wanted: Vec<Value>,
}

impl<'a> Placed<'a> {
    fn new(device: &'a dyn Device, kernel: &'a Kernel, values: Vec<Vec<u8>>) -> Self {
        let outputs = kernel.outputs.iter().map(|o| o.ty.bytes().get());
        let sizes: Vec<usize> = values.iter().map(Vec::len).chain(outputs).collect();
        let memory: Vec<Memory> = sizes.iter().map(|n| device.alloc(*n).unwrap()).collect();
        let arg = |(i, len): (usize, &usize)| Arg {
            memory: memory[i].clone(),
            offset: 0,
            len: *len,
            access: if i < values.len() { Access::Read } else { Access::Write },
            lasting: i == 1,
        };
        let args: Vec<Arg> = sizes.iter().enumerate().map(arg).collect();
        let bound = device.load(kernel).unwrap().bind(&args, &[]).unwrap();
        let mut placed = Placed { device, kernel, memory, bound, values, wanted: Vec::new() };
        let all: Vec<usize> = (0..placed.values.len()).collect();
        placed.upload(&all);
        placed
    }

    /// Tells the device what the operands are now.
    fn upload(&mut self, operands: &[usize]) {
        for &operand in operands {
            self.memory[operand].changed();
            self.device.upload(&self.values[operand], &self.memory[operand], 0).unwrap();
        }
        let slices: Vec<&[u8]> = self.values.iter().map(Vec::as_slice).collect();
        let results = interpret(self.kernel, &slices).unwrap();
        let types = self.kernel.outputs.iter().map(|output| output.ty.clone());
        self.wanted =
            types.zip(results).map(|(ty, bytes)| Value::new(ty, bytes.to_vec()).unwrap()).collect();
    }

    /// Gives an operand new elements.
    fn change(&mut self, operand: usize, seed: u64) {
        self.values[operand] = Numbers(seed).elements(&self.kernel.inputs[operand], false);
        self.upload(&[operand]);
    }

    /// Runs and compares it until the right operand has been packed and read from the copy.
    fn check_often(&self, when: &str) {
        for run in 1..=RUNS + 1 {
            self.check(&format!("run {run} {when}"));
        }
    }

    /// Runs it and compares the results with the interpreter's.
    fn check(&self, when: &str) {
        self.device.run_step(&mut || self.bound.run()).unwrap();
        for (want, memory) in self.wanted.iter().zip(&self.memory[self.values.len()..]) {
            let mut found = vec![0; want.bytes.len()];
            self.device.download(memory, 0, &mut found).unwrap();
            let found = Value::new(want.ty.clone(), found).unwrap();
            let at = want.first_difference(&found);
            assert_eq!(at, None, "{:?}, {when}: {:?}", self.device, self.kernel);
        }
    }
}

#[test]
fn results_are_those_of_the_present_operands() {
    let sizes = [[1, 40, 33], [5, 100, 513], [17, 10, 19], [20, 200, 130], [3, 5, 2]];
    for size in sizes {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            for how in [Left::Plain, Left::Rounded, Left::Computed] {
                for batch in [&[][..], &[2, 3]] {
                    if size[1] >= 100 && batch.len() == 2 {
                        continue;
                    }
                    let kernel = product(batch, size, dtype, how);
                    for device in DEVICES.iter() {
                        let mut placed = Placed::new(device, &kernel, inputs(&kernel, 1, false));
                        placed.check_often("with the first operands");
                        placed.change(0, 2);
                        placed.check("with another left operand");
                        placed.change(1, 3);
                        placed.check("with another right operand");
                        placed.change(1, 4);
                        placed.check_often("with yet another one");
                        placed.change(1, 5);
                        placed.check("with a change after a copy");
                    }
                }
            }
        }
    }
}

/// Kernels for other rows, and the same kernel loaded again, read one copy; rounded elements and
/// other columns are other ones.
#[test]
fn kernels_of_all_programs_share_a_copy() {
    let device = crate::CpuDevice::new(crate::CpuOptions::default()).unwrap();
    let weights = device.alloc(96 * 64 * 4).unwrap();
    let bind = |rows: usize, columns: usize| {
        let kernel = product(&[], [rows, columns, 96], DType::F32, Left::Plain);
        let types = kernel.inputs.iter().chain(kernel.outputs.iter().map(|output| &output.ty));
        let arg = |(i, ty): (usize, &tracecast_ir::TensorType)| Arg {
            memory: if i == 1 { weights.clone() } else { device.alloc(ty.bytes().get()).unwrap() },
            offset: 0,
            len: ty.bytes().get(),
            access: if i < kernel.inputs.len() { Access::Read } else { Access::Write },
            lasting: i == 1,
        };
        let args: Vec<Arg> = types.enumerate().map(arg).collect();
        device.load(&kernel).unwrap().bind(&args, &[]).unwrap()
    };
    let all = [(4, 64), (5, 64), (4, 64), (4, 63)].map(|(rows, columns)| bind(rows, columns));
    assert_eq!(device.packed_copies(), 2);
    drop(all);
    assert_eq!(device.packed_copies(), 0);
}

/// Every batch has the same right operand, or one of its own; it is rounded or computed.
#[test]
fn a_copy_is_no_larger_than_the_values() {
    let device = &DEVICES[0];
    let mut kernel = product(&[4], [5, 96, 64], DType::F16, Left::Plain);
    let bytes =
        |kernel: &Kernel, lasting: &[usize]| device.load(kernel).unwrap().kept_bytes(lasting, &[]);
    let whole = bytes(&kernel, &[1, 2]);
    assert!((4 * 96 * 64 * 2..=4 * 96 * 64 * 4).contains(&whole), "{whole}");
    assert_eq!([bytes(&kernel, &[]), bytes(&kernel, &[0, 2])], [0, 0]);
    if let Form::Contract(c) = &mut kernel.form {
        c.b.loads[0].access.strides[0] = tracecast_ir::Size::from(0);
    }
    assert_eq!(bytes(&kernel, &[1]), whole / 4);
    let mut placed = Placed::new(device, &kernel, inputs(&kernel, 1, false));
    placed.check_often("with equal batches");
    placed.change(1, 6);
    placed.check("changed");
    // No memory is that large, as binding it would tell.
    assert_eq!(bytes(&product(&[], [5, 17, 1 << 57], DType::F64, Left::Plain), &[1]), usize::MAX);
    // Packing is a small part of many rows, and a few columns are a small operand.
    for size in [[128, 96, 64], [5, 4, 64], [5, 96, 0]] {
        assert_eq!(bytes(&product(&[], size, DType::F16, Left::Plain), &[1]), 0);
    }
}

/// Numbers whose products are subnormal are multiplied by other instructions, also when they come
/// with a later version.
#[test]
fn tiny_numbers_come_and_go() {
    let kernel = product(&[], [20, 40, 64], DType::BF16, Left::Plain);
    for device in DEVICES.iter() {
        let mut placed = Placed::new(device, &kernel, inputs(&kernel, 1, false));
        for exponent in [0x3f80u16, 0x0080, 0x3f80, 0x0001] {
            for operand in [0, 1] {
                for (i, element) in
                    placed.values[operand].as_chunks_mut::<2>().0.iter_mut().enumerate()
                {
                    *element = (exponent + (i * 7 % 96) as u16).to_le_bytes();
                }
            }
            placed.upload(&[0, 1]);
            placed.check_often("tiny or not");
        }
    }
}
