//! [`Target`]: what functions are compiled for, and the facts about this machine that decide how.

use crate::checksum::checksum;
use crate::error::Error;
use crate::plan::phases::VectorLoops;
use crate::routines::Tiles;
use cranelift::codegen::isa::CallConv;
use cranelift::prelude::{AbiParam, Configurable, Signature, isa, settings, types};
use std::fmt;
use std::sync::LazyLock;

/// What functions are compiled for.
pub(crate) struct Target {
    /// The instruction set.
    pub(crate) isa: isa::OwnedTargetIsa,
    /// The routines they call.
    pub(crate) tiles: &'static Tiles,
    /// True if rounding to integral floats is an instruction.
    pub(crate) floor: bool,
    /// True if a product and a sum with one rounding are an instruction.
    pub(crate) mul_add: bool,
    /// True if vector instructions take operands from memory at any address.
    pub(crate) unaligned: bool,
    /// The vectors of wide loops; `None` if vector loops are not wide ones.
    pub(crate) wide: Option<Width>,
    /// What touches fewer bytes stays in the cache of a core.
    pub(crate) near: i64,
    /// Kernels that touch that many bytes write past the caches.
    pub(crate) streamed_from: i64,
    /// All of this and the compiler in a few letters: code for the same kernel and identity is the same.
    pub(crate) identity: String,
}

impl Target {
    /// What makes its vector loops.
    pub(crate) fn vector_loops(&self) -> VectorLoops {
        match self.wide {
            None => VectorLoops::Cranelift { floor: self.floor },
            Some(Width::Bits256) => VectorLoops::Avx2,
            Some(Width::Bits512) => VectorLoops::Avx512,
        }
    }
}

/// The instruction set and routines of this CPU; loops of 256-bit vectors even if it has wider ones, if `narrow`.
pub(crate) fn target(portable: bool, narrow: bool) -> std::result::Result<Target, Error> {
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
    if portable && cfg!(target_arch = "x86_64") {
        for name in PORTABLE_WITHOUT {
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
    let tiles = Tiles::detect(portable);
    // Wide loops are called as the System V ABI has it.
    let wide = isa.default_call_conv() == isa::CallConv::SystemV && tiles.wide;
    let wide = wide.then(|| if narrow { Width::Bits256 } else { Width::detect() });
    // Four cores share the last cache. Tests stream nearly everything, and have little that is near.
    let caches = Caches::of_machine();
    let (near, streamed_from) = match cfg!(test) {
        true => (1 << 14, 1 << 10),
        false => (caches.l2 as i64, caches.passed_from() as i64),
    };
    let identity = format!(
        "{} {} {} {} {:?} {floor} {mul_add} {unaligned} {wide:?} {near} {streamed_from} {}",
        env!("CARGO_PKG_VERSION"),
        env!("TRACECAST_COMPILER"),
        cranelift::codegen::VERSION,
        isa.triple(),
        isa.isa_flags().iter().map(ToString::to_string).collect::<Vec<_>>(),
        isa.flags(),
    );
    let identity = format!("{:032x}", checksum(identity.as_bytes()));
    Ok(Target { isa, tiles, floor, mul_add, unaligned, wide, near, streamed_from, identity })
}

/// Features of x86-64 that the portable code does without.
const PORTABLE_WITHOUT: [&str; 10] = [
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

/// The signature of every function.
pub(crate) fn signature(call_conv: CallConv) -> Signature {
    let mut signature = Signature::new(call_conv);
    signature.params.extend([types::I64; 7].map(AbiParam::new));
    signature
}

/// The vectors that the loops are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// AVX2, FMA and F16C: positions go by sixteens, and the last ones are masked or copied.
    Bits256,
    /// AVX-512 with F, BW, DQ and VL: positions go by 32, then by 16; there are twice as many registers, and any instruction can leave lanes out.
    Bits512,
}

impl Width {
    /// The widest that the CPU has; it must have the narrower one.
    pub(crate) fn detect() -> Width {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            return Width::Bits512;
        }
        Width::Bits256
    }
}

/// The vectors that contractions use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vectors {
    /// Arrays, on any CPU.
    Portable,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512F, BW and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Vectors {
    /// Those of the CPU that these routines were chosen for.
    pub(crate) fn of(tiles: &Tiles) -> Vectors {
        vectors(tiles)
    }
}

#[cfg(target_arch = "x86_64")]
fn vectors(tiles: &Tiles) -> Vectors {
    let all_512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl");
    match (tiles.wide, all_512) {
        (true, true) => Vectors::Avx512,
        (true, false) => Vectors::Avx2,
        (false, _) => Vectors::Portable,
    }
}

#[cfg(target_arch = "aarch64")]
fn vectors(_: &Tiles) -> Vectors {
    // Every 64-bit Arm CPU has NEON, so this is the portable path as well.
    Vectors::Neon
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn vectors(_: &Tiles) -> Vectors {
    Vectors::Portable
}

/// The data caches that a core sees, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caches {
    /// First level.
    pub(crate) l1: usize,
    /// Second level.
    pub(crate) l2: usize,
    /// Third level, as far as one core should count on it.
    pub(crate) l3: usize,
}

impl Caches {
    /// What a CPU has of which nothing is known.
    const USUAL: Caches = Caches { l1: 32 << 10, l2: 512 << 10, l3: 4 << 20 };

    /// The results of a kernel that moves so many bytes are in no near cache when it runs again.
    pub(crate) fn far_from(&self) -> usize {
        4 * self.l2
    }

    /// Results of a kernel that moves so many bytes go past the caches.
    pub(crate) fn passed_from(&self) -> usize {
        4 * self.l3
    }

    /// Those of this machine, looked up once.
    pub(crate) fn of_machine() -> Caches {
        static CACHES: LazyLock<Caches> = LazyLock::new(Caches::detect);
        *CACHES
    }

    /// Those of this machine, as Linux tells them; elsewhere usual ones.
    fn detect() -> Caches {
        let mut caches = Caches { l3: 0, ..Caches::USUAL };
        let folder = "/sys/devices/system/cpu/cpu0/cache";
        let read = |i: usize, name: &str| -> Option<String> {
            let text = std::fs::read_to_string(format!("{folder}/index{i}/{name}")).ok()?;
            Some(text.trim().to_owned())
        };
        for i in 0..8 {
            let (Some(level), Some(kind), Some(size)) =
                (read(i, "level"), read(i, "type"), read(i, "size").as_deref().and_then(bytes))
            else {
                continue;
            };
            match (level.as_str(), kind.as_str()) {
                (_, "Instruction") => {}
                ("1", _) => caches.l1 = size,
                ("2", _) => caches.l2 = size,
                ("3", _) => caches.l3 = size / 4,
                _ => {}
            }
        }
        caches.l3 = caches.l3.max(2 * caches.l2).min(16 << 20);
        caches
    }
}

/// A size such as `32K` or `1M`.
fn bytes(text: &str) -> Option<usize> {
    let (number, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    number.parse::<usize>().ok()?.checked_shl(unit).filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(
            ["32K", "1024K", "32M", "100", "", "K", "x"].map(bytes),
            [Some(32 << 10), Some(1 << 20), Some(32 << 20), Some(100), None, None, None]
        );
        let caches = Caches::detect();
        assert!(caches.l1 >= 4 << 10 && caches.l1 <= caches.l2 && caches.l2 <= caches.l3);
    }
}
