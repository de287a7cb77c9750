//! What kernels add up is held in f32 or wider, and no narrower than what is added.

use crate::kernel::{Kernel, Scalar};

/// The accumulators of a kernel that are narrower than what they take.
pub(super) fn narrow(kernel: &Kernel) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |what: &str, acc: Scalar, term: Scalar| {
        if bits(acc) < bits(term) || acc.is_float() != term.is_float() {
            wrong.push(format!(
                "@{}: {what} of {} is accumulated in {}",
                kernel.name,
                term.name(),
                acc.name()
            ));
        }
    };
    kernel.form.as_loops().accumulators(kernel, &mut check);
    wrong
}

fn bits(scalar: Scalar) -> usize {
    match scalar {
        Scalar::Bool => 1,
        Scalar::F32 | Scalar::I32 => 32,
        Scalar::F64 | Scalar::I64 => 64,
    }
}
