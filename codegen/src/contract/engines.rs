//! Which [`Engine`](super::micro::Engine) runs on a CPU: the only place that names all of them.

/// Evaluates `$body` with `$engine` as the CPU's engine for f32 or f64, in bf16 pairs or not.
macro_rules! with_engine {
    ($cpu:expr, $acc:expr, $pairs:expr, $engine:ident => $body:expr) => {{
        use $crate::contract::micro;
        match ($cpu.instructions, $acc == DType::F32) {
            (InstructionSet::Portable, true) => {
                type $engine = micro::portable::PortableF32;
                $body
            }
            (InstructionSet::Portable, false) => {
                type $engine = micro::portable::PortableF64;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            (InstructionSet::Avx2, true) => {
                type $engine = micro::avx2::Avx2F32;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            (InstructionSet::Avx2, false) => {
                type $engine = micro::avx2::Avx2F64;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            (InstructionSet::Avx512, true) if $pairs => {
                type $engine = micro::pairs::PairsF32;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            (InstructionSet::Avx512, true) => {
                type $engine = micro::avx512::Avx512F32;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            (InstructionSet::Avx512, false) => {
                type $engine = micro::avx512::Avx512F64;
                $body
            }
            #[cfg(target_arch = "aarch64")]
            (InstructionSet::Neon, true) => {
                type $engine = micro::neon::NeonF32;
                $body
            }
            #[cfg(target_arch = "aarch64")]
            (InstructionSet::Neon, false) => {
                type $engine = micro::neon::NeonF64;
                $body
            }
        }
    }};
}

pub(super) use with_engine;
