//! What a contraction keeps of its right operand does not show, whatever becomes of the operand.

use super::products::{Left, product};
use super::{DEVICES, Numbers, inputs};
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
}

impl<'a> Placed<'a> {
    fn new(device: &'a dyn Device, kernel: &'a Kernel, values: Vec<Vec<u8>>) -> Self {
        let outputs = kernel.outputs.iter().map(|o| o.ty.bytes());
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
        let bound = device.load(kernel).unwrap().bind(&args).unwrap();
        let placed = Placed { device, kernel, memory, bound, values };
        (0..placed.values.len()).for_each(|i| placed.upload(i));
        placed
    }

    fn upload(&self, operand: usize) {
        self.device.upload(&self.values[operand], &self.memory[operand], 0).unwrap();
    }

    /// Gives an operand new elements.
    fn change(&mut self, operand: usize, seed: u64) {
        self.values[operand] = Numbers(seed).elements(&self.kernel.inputs[operand], false);
        self.memory[operand].changed();
        self.upload(operand);
    }

    /// Runs it and compares the results with the interpreter's.
    fn check(&self, when: &str) {
        let slices: Vec<&[u8]> = self.values.iter().map(Vec::as_slice).collect();
        let wanted = interpret(self.kernel, &slices).unwrap();
        self.device.run_step(&mut || self.bound.run()).unwrap();
        let outputs = self.kernel.outputs.iter().zip(&self.memory[self.values.len()..]);
        for ((output, memory), want) in outputs.zip(wanted) {
            let mut found = vec![0; want.len()];
            self.device.download(memory, 0, &mut found).unwrap();
            let value = |bytes| Value::new(output.ty.clone(), bytes).unwrap();
            let at = value(want.to_vec()).first_difference(&value(found));
            assert_eq!(at, None, "{:?}, {when}: {:?}", self.device, self.kernel);
        }
    }
}

#[test]
fn results_are_those_of_the_present_operands() {
    let sizes = [[1, 40, 33], [5, 100, 513], [17, 10, 19], [40, 200, 600], [3, 5, 2]];
    for size in sizes {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            for how in [Left::Plain, Left::Rounded, Left::Computed] {
                for batch in [&[][..], &[2, 3]] {
                    if size[1] == 200 && (batch.len() == 2 || dtype == DType::F64) {
                        continue;
                    }
                    let kernel = product(batch, size, dtype, how);
                    for device in DEVICES.iter() {
                        let mut placed = Placed::new(device, &kernel, inputs(&kernel, 1, false));
                        for when in ["as it lies", "packed", "from the copy"] {
                            placed.check(when);
                        }
                        placed.change(0, 2);
                        placed.check("with another left operand");
                        placed.change(1, 3);
                        placed.check("with another right operand");
                        placed.change(1, 4);
                        placed.check("with yet another one");
                        placed.check("with that one packed");
                        placed.change(1, 5);
                        placed.check("with a change after a copy");
                    }
                }
            }
        }
    }
}

/// Every batch has the same right operand, or one of its own; it is rounded or computed.
#[test]
fn a_copy_is_no_larger_than_the_values() {
    let device = &DEVICES[0];
    let mut kernel = product(&[4], [5, 96, 64], DType::F16, Left::Plain);
    let bytes =
        |kernel: &Kernel, lasting: &[usize]| device.load(kernel).unwrap().kept_bytes(lasting);
    let whole = bytes(&kernel, &[1, 2]);
    assert!((4 * 96 * 64 * 2..=4 * 96 * 64 * 4).contains(&whole), "{whole}");
    assert_eq!([bytes(&kernel, &[]), bytes(&kernel, &[0, 2])], [0, 0]);
    if let Form::Contract(c) = &mut kernel.form {
        c.b.loads[0].access.strides[0] = 0;
    }
    assert_eq!(bytes(&kernel, &[1]), whole / 4);
    let mut placed = Placed::new(device, &kernel, inputs(&kernel, 1, false));
    placed.check("as it lies");
    placed.check("packed");
    placed.change(1, 6);
    placed.check("changed");
    // Packing is a small part of many rows, and a few columns are a small operand.
    for size in [[256, 96, 64], [5, 4, 64], [5, 96, 0]] {
        assert_eq!(bytes(&product(&[], size, DType::F16, Left::Plain), &[1]), 0);
    }
}

/// Numbers whose products are subnormal are multiplied by other instructions, also when they come with a later version.
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
                placed.memory[operand].changed();
                placed.upload(operand);
            }
            (0..3).for_each(|_| placed.check("tiny or not"));
        }
    }
}
