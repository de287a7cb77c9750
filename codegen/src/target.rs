//! [`Target`]: what functions are compiled for, and the facts about this machine that decide how.

use crate::checksum::checksum;
use crate::error::Error;
use crate::machine::{Caches, InstructionSet, Vectors, Width};
use crate::plan::phases::VectorLoops;
use cranelift::codegen::isa::CallConv;
use cranelift::prelude::{AbiParam, Configurable, Signature, isa, settings, types};
use std::fmt;

/// What functions are compiled for.
pub(crate) struct Target {
    /// The instruction set.
    pub(crate) isa: isa::OwnedTargetIsa,
    /// The vectors that routines and contractions are made of.
    pub(crate) instructions: InstructionSet,
    /// True if rounding to integral floats is an instruction.
    pub(crate) floor: bool,
    /// True if a product and a sum with one rounding are an instruction.
    pub(crate) mul_add: bool,
    /// True if vector instructions take operands from memory at any address.
    pub(crate) unaligned: bool,
    /// The vectors of the loops in `x86`; `None` if Cranelift makes the vector loops.
    pub(crate) vector_width: Option<Width>,
    /// What touches fewer bytes stays in the cache of a core.
    pub(crate) core_cache: i64,
    /// Kernels that touch at least this many bytes use non-temporal stores.
    pub(crate) streamed_from: i64,
    /// All of this and the compiler in a few letters: code for the same kernel and identity is the
    /// same.
    pub(crate) identity: String,
}

impl Target {
    /// What makes its vector loops.
    pub(crate) fn vector_loops(&self) -> VectorLoops {
        match self.vector_width {
            None => VectorLoops::Cranelift { floor: self.floor },
            Some(Width::Bits256) => VectorLoops::Avx2,
            Some(Width::Bits512) => VectorLoops::Avx512,
        }
    }
}

/// This CPU, with these vectors.
///
/// # Errors
/// If there is no code generator for it.
pub(crate) fn target(vectors: Vectors) -> std::result::Result<Target, Error> {
    let machine = |e: &dyn fmt::Display| Error::Machine(e.to_string());
    let mut flags = settings::builder();
    for (name, value) in [
        // Its reordering undoes the interleaving of our loops.
        ("opt_level", "none"),
        ("regalloc_algorithm", "backtracking"),
        ("is_pic", "false"),
        ("use_colocated_libcalls", "false"),
        ("unwind_info", "false"),
        ("preserve_frame_pointers", "true"),
        ("enable_probestack", "false"),
        ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
    ] {
        flags.set(name, value).map_err(|e| machine(&e))?;
    }
    let mut builder = cranelift::native::builder().map_err(|e| machine(&e))?;
    if cfg!(target_arch = "x86_64") {
        for name in without(vectors) {
            builder.set(name, "false").map_err(|e| machine(&e))?;
        }
    }
    let isa: isa::OwnedTargetIsa =
        builder.finish(settings::Flags::new(flags)).map_err(|e| machine(&e))?;
    #[cfg(target_arch = "x86_64")]
    let floor = is_x86_feature_detected!("sse4.1");
    #[cfg(not(target_arch = "x86_64"))]
    let floor = true;
    let has = |name: &str| {
        cfg!(not(target_arch = "x86_64"))
            || isa.isa_flags().iter().any(|f| f.name == name && f.as_bool() == Some(true))
    };
    let (unaligned, mul_add) = (has("has_avx"), has("has_fma"));
    let instructions = InstructionSet::of(vectors);
    // Vector loops are called as the System V ABI has it.
    let vector_width =
        Width::of(instructions).filter(|_| isa.default_call_conv() == CallConv::SystemV);
    // Four cores share the last cache. Tests stream nearly everything, and have little that is
    // near.
    let caches = Caches::of_machine();
    let (core_cache, streamed_from) = match cfg!(test) {
        true => (1 << 14, 1 << 10),
        false => (caches.l2 as i64, caches.passed_from() as i64),
    };
    let identity = format!(
        "{} {} {} {} {:?} {instructions:?} {floor} {mul_add} {unaligned} {vector_width:?} {core_cache} {streamed_from} {}",
        env!("CARGO_PKG_VERSION"),
        env!("TRACECAST_COMPILER"),
        cranelift::codegen::VERSION,
        isa.triple(),
        isa.isa_flags().iter().map(ToString::to_string).collect::<Vec<_>>(),
        isa.flags(),
    );
    let identity = format!("{:032x}", checksum(identity.as_bytes()));
    Ok(Target {
        isa,
        instructions,
        floor,
        mul_add,
        unaligned,
        vector_width,
        core_cache,
        streamed_from,
        identity,
    })
}

/// The features of x86-64, as Cranelift calls them, that code with these vectors does without.
fn without(vectors: Vectors) -> &'static [&'static str] {
    const ALL: [&str; 10] = [
        "has_avx",
        "has_avx2",
        "has_fma",
        "has_avx_vnni",
        "has_avx512vnni",
        "has_avx512bitalg",
        "has_avx512dq",
        "has_avx512f",
        "has_avx512vl",
        "has_avx512vbmi",
    ];
    match vectors {
        Vectors::Native => &[],
        Vectors::Avx2 => &ALL[4..],
        Vectors::Portable => &ALL,
    }
}

/// The signature of every function.
pub(crate) fn signature(call_conv: CallConv) -> Signature {
    let mut signature = Signature::new(call_conv);
    signature.params.extend([types::I64; 7].map(AbiParam::new));
    signature
}
