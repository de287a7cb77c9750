//! How a contraction is cut so that what is used again is still in a cache.

use super::Tiles;
use super::micro::Engine;
use std::sync::LazyLock;

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

/// What a contraction needs to know of the CPU. The vectors must be the CPU's, as [`Cpu::of`] ensures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// The vectors it has.
    pub(crate) vectors: Vectors,
    /// True if it multiplies bf16 in pairs, as `micro::pairs` needs it.
    pub(crate) pairs: bool,
    /// Its caches.
    pub(crate) caches: Caches,
}

impl Cpu {
    /// The CPU that these routines were chosen for.
    pub(crate) fn of(tiles: &Tiles) -> Cpu {
        static CACHES: LazyLock<Caches> = LazyLock::new(Caches::detect);
        let vectors = vectors(tiles);
        #[cfg(target_arch = "x86_64")]
        let pairs = vectors == Vectors::Avx512 && super::micro::pairs::available();
        #[cfg(not(target_arch = "x86_64"))]
        let pairs = false;
        Cpu { vectors, pairs, caches: *CACHES }
    }

    /// What this CPU can also use, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Cpu> {
        let small = Caches { l1: 4 << 10, l2: 32 << 10, l3: 64 << 10 };
        let best = Cpu::of(Tiles::detect(false));
        let mut all = vec![best, Cpu { caches: small, ..best }, Cpu::of(Tiles::detect(true))];
        #[cfg(target_arch = "x86_64")]
        if best.vectors == Vectors::Avx512 {
            all.push(Cpu { pairs: false, ..best });
            all.push(Cpu { vectors: Vectors::Avx2, pairs: false, ..best });
            all.push(Cpu { vectors: Vectors::Avx2, pairs: false, caches: small });
        }
        all
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

/// The sizes of what is worked on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocking {
    /// Rows whose packed left operand and sums stay in the second-level cache.
    pub(super) rows: usize,
    /// Columns whose panels stay in the second-level cache, or in the third where several groups of rows use them.
    pub(super) columns: usize,
    /// Steps of `k` whose part of a panel fills the first-level cache.
    steps: usize,
}

impl Blocking {
    /// For a contraction of that size, in blocks of `block` steps; panel by panel, or as many columns as fit.
    pub(super) fn of<E: Engine>(
        caches: &Caches,
        [m, n, k]: [usize; 3],
        block: usize,
        by_panel: bool,
    ) -> Blocking {
        let size = size_of::<E::Num>();
        // In numbers.
        let [k, block] = [k.div_ceil(E::DEPTH), block / E::DEPTH];
        let kb = k.clamp(1, block);
        let rows = multiple(caches.l2 / 4 / (kb * size), E::ROWS, 24 / E::ROWS + 1);
        let rows = rows.min(MOST_ROWS / E::ROWS * E::ROWS);
        let columns = if by_panel {
            E::WIDTH
        } else if m <= rows {
            caches.l2 / 4 / (kb * size)
        } else {
            (caches.l3 / (k * size).max(1)).min(caches.l2 / 2 / (rows * size))
        };
        let columns = multiple(columns, E::WIDTH, 1).min(MOST_COLUMNS);
        // Even groups.
        let columns =
            n.div_ceil(n.div_ceil(columns).max(1)).next_multiple_of(E::WIDTH).max(E::WIDTH);
        let rows = if m <= rows { rows } else { m.div_ceil(m.div_ceil(rows)) };
        let steps = multiple(caches.l1 / (E::WIDTH * size), 64, 1);
        Blocking { rows, columns, steps }
    }
}

impl Blocking {
    /// Into what parts to cut blocks of a single panel, which few rows use as it is packed: a power of two that divides the block. Where
    /// many rows use a panel, loops read it from the second-level cache as fast, and whole blocks need no sums stored in between.
    pub(super) fn part(&self, block: usize) -> usize {
        (1 << (self.steps / 2).max(1).ilog2()).min(block)
    }
}

/// More rows are not worth it.
const MOST_ROWS: usize = 128;
/// More columns are not worth it.
const MOST_COLUMNS: usize = 1024;

/// The multiple of `unit` that is at most `n` and at least `least` times the unit.
fn multiple(n: usize, unit: usize, least: usize) -> usize {
    (n / unit).max(least) * unit
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
