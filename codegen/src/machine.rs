//! What is known of the processor: the vector instructions that code may use, and its caches; and
//! [`Machine`], all that the schedule of a product depends on.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

/// The vector instructions that a [`CpuDevice`](crate::CpuDevice) may use: in compiled loops,
/// precompiled routines and contractions alike. Results do not depend on it.
///
/// A CPU that lacks some uses the next best that it has. Where there is nothing to choose, as on
/// 64-bit Arm, all are the same.
///
/// ```
/// use tracecast_codegen::Vectors;
///
/// assert_eq!("avx2".parse(), Ok(Vectors::Avx2));
/// assert_eq!(Vectors::default().to_string(), "native");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Vectors {
    /// The best of the CPU: AVX-512 (F, BW, DQ and VL), else AVX2.
    #[default]
    Native,
    /// AVX2 with FMA and F16C, and nothing of AVX-512.
    Avx2,
    /// Only what every CPU of the architecture has.
    Portable,
}

impl Vectors {
    /// All of them, from the widest to the narrowest.
    pub const ALL: [Vectors; 3] = [Vectors::Native, Vectors::Avx2, Vectors::Portable];

    /// The name in text.
    pub const fn name(self) -> &'static str {
        match self {
            Vectors::Native => "native",
            Vectors::Avx2 => "avx2",
            Vectors::Portable => "portable",
        }
    }
}

impl fmt::Display for Vectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Vectors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Vectors::ALL.into_iter().find(|vectors| vectors.name() == text).ok_or_else(|| {
            let names = Vectors::ALL.map(Vectors::name).join(", ");
            format!("unknown vectors `{text}`: expected one of {names}")
        })
    }
}

/// The vector instructions that are used: those of this CPU, as [`InstructionSet::of`] ensures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstructionSet {
    /// What every CPU of the architecture has.
    Portable,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with F, BW, DQ and VL, and what [`InstructionSet::Avx2`] has.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl InstructionSet {
    /// The best that this CPU has of those that may be used.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of(vectors: Vectors) -> InstructionSet {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match vectors {
            Vectors::Native if avx2 && avx512 => InstructionSet::Avx512,
            Vectors::Native | Vectors::Avx2 if avx2 => InstructionSet::Avx2,
            Vectors::Native | Vectors::Avx2 | Vectors::Portable => InstructionSet::Portable,
        }
    }

    /// The best that this CPU has of those that may be used.
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn of(_: Vectors) -> InstructionSet {
        // Every 64-bit Arm CPU has NEON, so this is the portable path as well.
        InstructionSet::Neon
    }

    /// The best that this CPU has of those that may be used.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(crate) fn of(_: Vectors) -> InstructionSet {
        InstructionSet::Portable
    }
}

/// The vectors that the loops are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// AVX2, FMA and F16C: positions go by sixteens, and the last ones are masked or copied.
    Bits256,
    /// AVX-512 with F, BW, DQ and VL: positions go by 32, then by 16; there are twice as many
    /// registers, and any instruction can leave lanes out.
    Bits512,
}

impl Width {
    /// The widest of an instruction set; `None` if it has none that wide.
    pub(crate) fn of(instructions: InstructionSet) -> Option<Width> {
        match instructions {
            InstructionSet::Portable => None,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => Some(Width::Bits256),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => Some(Width::Bits512),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => None,
        }
    }
}

/// The least work of a part, counted in cheap element operations: some ten microseconds. Giving a
/// part to a thread that is awake takes less than one, but what it writes has to be fetched by who
/// reads it next, which on some machines takes longer than what it saves for parts half as large.
/// Tests split nearly everything.
const SPLIT: usize = if cfg!(test) { 256 } else { 64 * 1024 };

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

    /// The results of a kernel that moves this number of bytes are in no near cache when it runs
    /// again.
    pub(crate) fn far_from(&self) -> usize {
        4 * self.l2
    }

    /// A kernel that moves this number of bytes uses streaming stores.
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

/// A core, as far as products depend on it. The instructions must be the CPU's where products run,
/// as [`InstructionSet::of`] ensures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// The vectors that are used.
    pub(crate) instructions: InstructionSet,
    /// True if it multiplies bf16 in pairs, as `contract::micro::pairs` needs it.
    pub(crate) pairs: bool,
    /// Its caches.
    pub(crate) caches: Caches,
}

/// All that the schedule of a product depends on besides the product: a core, and how many threads
/// share the work.
///
/// A schedule may be chosen for any machine of this architecture. It runs only on the one that it
/// is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// One of its cores.
    pub(crate) cpu: Cpu,
    /// Threads that share the work.
    pub(crate) threads: usize,
}

impl Machine {
    /// A machine that is the same on every computer: `avx512-pairs` (AVX-512 that multiplies bf16
    /// in pairs), `avx512`, `avx2`, `portable` or `neon`, each with the caches of a core that has
    /// them. `None` for another name, and for the vectors of another architecture.
    ///
    /// ```
    /// use tracecast_codegen::Machine;
    ///
    /// assert!(Machine::named("portable", 2).is_some());
    /// assert!(Machine::named("sse", 2).is_none());
    /// ```
    pub fn named(name: &str, threads: usize) -> Option<Machine> {
        // First-level and second-level cache in KiB, and a core's part of the third level in MiB.
        let (instructions, [l1, l2, l3]) = match name {
            #[cfg(target_arch = "x86_64")]
            "avx512-pairs" => (InstructionSet::Avx512, [48, 2048, 16]),
            #[cfg(target_arch = "x86_64")]
            "avx512" => (InstructionSet::Avx512, [32, 1024, 8]),
            #[cfg(target_arch = "x86_64")]
            "avx2" => (InstructionSet::Avx2, [32, 512, 4]),
            #[cfg(target_arch = "aarch64")]
            "neon" => (InstructionSet::Neon, [64, 1024, 8]),
            "portable" => (InstructionSet::Portable, [32, 512, 4]),
            _ => return None,
        };
        let caches = Caches { l1: l1 << 10, l2: l2 << 10, l3: l3 << 20 };
        let cpu = Cpu { instructions, pairs: name == "avx512-pairs", caches };
        Some(Machine { cpu, threads })
    }

    /// Into how many parts to cut that much work, which can be cut into `most`.
    #[inline]
    pub(crate) fn parts(&self, work: usize, most: usize) -> usize {
        parts(self.threads, work, most)
    }
}

/// Into how many parts threads cut that much work, which can be cut into `most`.
#[inline]
pub(crate) fn parts(threads: usize, work: usize, most: usize) -> usize {
    (work / SPLIT).min(threads).min(most).max(1)
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
    fn vectors_have_names() {
        for vectors in Vectors::ALL {
            assert_eq!(vectors.to_string().parse(), Ok(vectors));
        }
        let error = "sse".parse::<Vectors>().unwrap_err();
        assert!(error.contains("`sse`") && error.contains("native, avx2, portable"), "{error}");
    }

    #[test]
    fn nothing_is_used_that_may_not_be() {
        assert_eq!(Width::of(InstructionSet::of(Vectors::Portable)), None);
        assert_ne!(Width::of(InstructionSet::of(Vectors::Avx2)), Some(Width::Bits512));
    }

    #[test]
    fn little_work_is_not_cut() {
        let parts = |work, most| parts(4, work, most);
        assert_eq!((parts(2 * SPLIT - 1, 100), parts(9 * SPLIT, 100)), (1, 4));
        assert_eq!(parts(9 * SPLIT, 3), 3);
    }

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
