//! The instructions that a bench measures, by the environment variable `VECTORS`.

use tracecast::Vectors;

/// The instructions that `VECTORS` names (`avx2`, `portable`), or the machine's best.
///
/// # Panics
/// If the name is none of theirs.
pub(crate) fn named() -> Vectors {
    let named = std::env::var("VECTORS").ok();
    named.map_or(Vectors::Native, |name| name.parse().expect("the name of instructions"))
}
