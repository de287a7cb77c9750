//! Scans of lines side by side: what `tracecast_ir::kernel::line` defines, compiled for the vectors
//! of the CPU.

use crate::machine::InstructionSet;
use tracecast_ir::kernel::line::Scanner;

/// As [`Scanner::advance`], with the vectors of this CPU.
pub(crate) fn advance<const LINES: usize>(
    instructions: InstructionSet,
    scanner: &mut Scanner<LINES>,
    first: usize,
    inputs: &[&[u8]],
    output: &mut [u8],
) {
    match instructions {
        InstructionSet::Portable => scanner.advance(first, inputs, output),
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => scanner.advance(first, inputs, output),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 | InstructionSet::Avx512 => {
            // SAFETY: `InstructionSet::of` gives these for a CPU that has them.
            unsafe { avx2(scanner, first, inputs, output) }
        }
    }
}

/// As [`Scanner::advance`], whose loops become vectors by being compiled for these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2<const LINES: usize>(
    scanner: &mut Scanner<LINES>,
    first: usize,
    inputs: &[&[u8]],
    output: &mut [u8],
) {
    scanner.advance(first, inputs, output);
}
