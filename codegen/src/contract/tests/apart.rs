//! Rows of a small stride are packed with vectors as they are number by number.

use super::super::Cpu;
use super::super::engines::with_engine;
use super::super::micro::Engine;
use super::super::pack::{Elements, apart_singly};
use super::Tensor;
use crate::machine::InstructionSet;
use tracecast_ir::DType;

/// Elements of a window, and the stride of rows.
const WINDOW: isize = 9;

#[test]
fn rows_close_together() {
    let steps_of: [&[isize]; 5] =
        [&[8, 7, 6, 5, 4, 3, 2, 1, 0], &[0, 1, 2, 3, 4, 5, 6, 7], &[0, 2, 6, 8], &[4], &[7, 1]];
    for (dtype, round) in [
        (DType::F32, None),
        (DType::BF16, None),
        (DType::F16, None),
        (DType::F32, Some(DType::BF16)),
    ] {
        for (steps, rows) in
            steps_of.into_iter().flat_map(|steps| [5, 8, 16, 37].map(|n| (steps, n)))
        {
            // Windows of several channels, which have all rows each.
            let channel = WINDOW * rows as isize;
            let mut offsets: Vec<isize> =
                (0..5).flat_map(|c| steps.iter().map(move |at| c * channel + at)).collect();
            // Two channels alternate.
            for step in steps {
                offsets.extend([0, 1].map(|c| c * channel + step));
            }
            if rows == 37 {
                offsets.drain(..5 * steps.len());
            }
            let x = Tensor::new(dtype, 5 * channel as usize, 31, (1, 1));
            let from = Elements { base: x.bytes.as_ptr(), dtype, round };
            let mut want = vec![0f32; offsets.len() * rows];
            // SAFETY: elements of the tensor, and room for as many numbers.
            unsafe { apart_singly(&from, WINDOW, &offsets, rows, want.as_mut_ptr()) };
            let engines = [InstructionSet::Avx2, InstructionSet::Avx512];
            for cpu in Cpu::all().iter().filter(|cpu| engines.contains(&cpu.instructions)) {
                let mut found = vec![0f32; want.len()];
                with_engine!(cpu, DType::F32, false, E => {
                    // SAFETY: as above; the CPU has the engine's instructions.
                    unsafe { E::pack_apart(&from, WINDOW, &offsets, rows, found.as_mut_ptr().cast()) }
                });
                assert_eq!(want, found, "{dtype} {round:?}, {rows} rows at {steps:?}, by {cpu:?}");
            }
        }
    }
}
