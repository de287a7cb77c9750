//! The innermost loop of a contraction: a few rows times two vectors of columns, summed along `k` in registers.
//!
//! One definition serves every element type and CPU; [`Engine`] names the combinations.

/// The most rows computed at once: 6 rows of 2 vectors are 12 of 16 registers.
pub(super) const ROWS: usize = 6;

/// An accumulator type.
pub(super) trait Number: Copy + 'static {
    const ZERO: Self;
}

impl Number for f32 {
    const ZERO: f32 = 0.0;
}

impl Number for f64 {
    const ZERO: f64 = 0.0;
}

/// A product of a strip of rows with a panel of columns over one block of `k`.
pub(super) struct Strip<T> {
    pub(super) k: usize,
    /// The first row's first element; rows are `row` elements apart and steps along `k` are `step` apart.
    pub(super) a: *const T,
    pub(super) row: isize,
    pub(super) step: isize,
    /// The first step's first column; steps along `k` are `b_step` elements apart.
    pub(super) b: *const T,
    pub(super) b_step: isize,
    /// Where the sums go, rows `ld` elements apart.
    pub(super) out: *mut T,
    pub(super) ld: usize,
    /// Adds the sums to what is there instead of replacing it.
    pub(super) add: bool,
}

/// Vectors of one type on one kind of CPU.
pub(super) trait Engine {
    type Num: Number;
    /// The columns of a panel: two vectors.
    const WIDTH: usize;

    /// Computes `rows` (1 to [`ROWS`]) by `vectors` (1 or 2).
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. Everything the strip spans must be readable, and its sums writable.
    unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<Self::Num>);

    /// Writes `columns` sequences of `k` numbers, `stride` apart, across: number `p` of sequence `j` goes to
    /// `dst[p * WIDTH + j]`. With fewer than `WIDTH` sequences, the rest of each row is zero.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. The sequences must be readable and `k * WIDTH` numbers writable.
    unsafe fn across(
        src: *const Self::Num,
        stride: isize,
        columns: usize,
        k: usize,
        dst: *mut Self::Num,
    );
}

/// A vector of numbers. The methods may be called only on a CPU that has it.
trait Vector: Copy {
    type Num: Number;
    const LANES: usize;
    fn splat(x: Self::Num) -> Self;
    /// # Safety
    ///
    /// `p` must be readable for `LANES` numbers.
    unsafe fn load(p: *const Self::Num) -> Self;
    /// # Safety
    ///
    /// `p` must be writable for `LANES` numbers.
    unsafe fn store(self, p: *mut Self::Num);
    /// `self * b + acc`, rounded once.
    fn fma(self, b: Self, acc: Self) -> Self;
    fn add(self, o: Self) -> Self;
}

/// # Safety
///
/// As [`Engine::strip`], for `R` rows and `V` vectors.
#[inline(always)]
unsafe fn product<T: Vector, const R: usize, const V: usize>(s: &Strip<T::Num>) {
    let mut acc = [[T::splat(T::Num::ZERO); V]; R];
    let mut rows = [s.a; R];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = s.a.wrapping_offset(i as isize * s.row);
    }
    let mut b = s.b;
    let mut at = 0isize;
    for _ in 0..s.k {
        let mut right = [T::splat(T::Num::ZERO); V];
        for (v, right) in right.iter_mut().enumerate() {
            // SAFETY: within the panel's row of this step, for which the caller vouches.
            *right = unsafe { T::load(b.wrapping_add(v * T::LANES)) };
        }
        for i in 0..R {
            // SAFETY: row `i` at this step, for which the caller vouches.
            let left = T::splat(unsafe { rows[i].wrapping_offset(at).read_unaligned() });
            for v in 0..V {
                acc[i][v] = left.fma(right[v], acc[i][v]);
            }
        }
        at += s.step;
        b = b.wrapping_offset(s.b_step);
    }
    for (i, row) in acc.iter().enumerate() {
        for (v, sum) in row.iter().enumerate() {
            let out = s.out.wrapping_add(i * s.ld + v * T::LANES);
            let mut total = *sum;
            if s.add {
                // SAFETY: the caller vouches for the sums' memory.
                total = unsafe { T::load(out) }.add(total);
            }
            // SAFETY: as above.
            unsafe { total.store(out) };
        }
    }
}

/// # Safety
///
/// As [`Engine::strip`].
#[inline(always)]
unsafe fn dispatch<T: Vector>(rows: usize, vectors: usize, s: &Strip<T::Num>) {
    macro_rules! sizes {
        ($($r:literal)*) => {
            match (rows, vectors) {
                // SAFETY: the caller vouches for a strip of this size.
                $(($r, 1) => unsafe { product::<T, $r, 1>(s) },
                // SAFETY: the caller vouches for a strip of this size.
                ($r, _) => unsafe { product::<T, $r, 2>(s) },)*
                _ => unreachable!("a strip has 1 to {ROWS} rows"),
            }
        };
    }
    sizes!(1 2 3 4 5 6)
}

/// [`Engine::across`], number by number, for sequences `from..columns` and steps `steps`.
///
/// # Safety
///
/// As [`Engine::across`].
#[inline(always)]
unsafe fn across_singly<T: Number, const WIDTH: usize>(
    src: *const T,
    stride: isize,
    (from, columns): (usize, usize),
    steps: std::ops::Range<usize>,
    dst: *mut T,
) {
    for j in from..WIDTH {
        let sequence = src.wrapping_offset(j as isize * stride);
        for p in steps.clone() {
            let x = if j < columns {
                // SAFETY: sequence `j` exists and has step `p`.
                unsafe { sequence.wrapping_add(p).read_unaligned() }
            } else {
                T::ZERO
            };
            // SAFETY: within the `k * WIDTH` numbers.
            unsafe { dst.wrapping_add(p * WIDTH + j).write(x) };
        }
    }
}

macro_rules! array_vector {
    ($num:ty, $lanes:literal) => {
        impl Vector for [$num; $lanes] {
            type Num = $num;
            const LANES: usize = $lanes;
            #[inline(always)]
            fn splat(x: $num) -> Self {
                [x; $lanes]
            }
            #[inline(always)]
            unsafe fn load(p: *const $num) -> Self {
                // SAFETY: the caller's contract.
                unsafe { p.cast::<Self>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $num) {
                // SAFETY: the caller's contract.
                unsafe { p.cast::<Self>().write_unaligned(self) }
            }
            #[inline(always)]
            fn fma(mut self, b: Self, acc: Self) -> Self {
                for l in 0..$lanes {
                    self[l] = self[l].mul_add(b[l], acc[l]);
                }
                self
            }
            #[inline(always)]
            fn add(mut self, o: Self) -> Self {
                for l in 0..$lanes {
                    self[l] += o[l];
                }
                self
            }
        }
    };
}

array_vector!(f32, 4);
array_vector!(f64, 4);

macro_rules! portable_engine {
    ($name:ident, $num:ty, $what:literal) => {
        #[doc = $what]
        pub(super) struct $name;

        impl Engine for $name {
            type Num = $num;
            const WIDTH: usize = 8;
            unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<$num>) {
                // SAFETY: the caller's contract; arrays are on every CPU.
                unsafe { dispatch::<[$num; 4]>(rows, vectors, strip) }
            }
            unsafe fn across(
                src: *const $num,
                stride: isize,
                columns: usize,
                k: usize,
                dst: *mut $num,
            ) {
                // SAFETY: the caller's contract.
                unsafe { across_singly::<$num, 8>(src, stride, (0, columns), 0..k, dst) }
            }
        }
    };
}

portable_engine!(PlainF32, f32, "f32 on any CPU.");
portable_engine!(PlainF64, f64, "f64 on any CPU.");

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::{WideF32, WideF64};

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Engines for AVX2 and FMA.

    use super::{Engine, Strip, Vector, across_singly, dispatch};
    use core::arch::x86_64 as x86;

    macro_rules! vector {
        ($ty:ident, $num:ty, $lanes:literal, $set:ident, $load:ident, $store:ident, $fma:ident, $add:ident) => {
            impl Vector for x86::$ty {
                type Num = $num;
                const LANES: usize = $lanes;
                #[inline(always)]
                fn splat(x: $num) -> Self {
                    // SAFETY: used by these engines only, whose callers have checked for AVX2 and FMA.
                    unsafe { x86::$set(x) }
                }
                #[inline(always)]
                unsafe fn load(p: *const $num) -> Self {
                    // SAFETY: as for `splat`, and the caller vouches for the memory.
                    unsafe { x86::$load(p) }
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut $num) {
                    // SAFETY: as for `load`.
                    unsafe { x86::$store(p, self) }
                }
                #[inline(always)]
                fn fma(self, b: Self, acc: Self) -> Self {
                    // SAFETY: as for `splat`.
                    unsafe { x86::$fma(self, b, acc) }
                }
                #[inline(always)]
                fn add(self, o: Self) -> Self {
                    // SAFETY: as for `splat`.
                    unsafe { x86::$add(self, o) }
                }
            }
        };
    }

    vector!(
        __m256,
        f32,
        8,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps
    );
    vector!(
        __m256d,
        f64,
        4,
        _mm256_set1_pd,
        _mm256_loadu_pd,
        _mm256_storeu_pd,
        _mm256_fmadd_pd,
        _mm256_add_pd
    );

    /// f32 with AVX2 and FMA.
    pub(crate) struct WideF32;

    impl Engine for WideF32 {
        type Num = f32;
        const WIDTH: usize = 16;
        unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<f32>) {
            // SAFETY: the caller's contract.
            unsafe { strip_f32(rows, vectors, strip) }
        }
        unsafe fn across(src: *const f32, stride: isize, columns: usize, k: usize, dst: *mut f32) {
            // SAFETY: the caller's contract.
            unsafe { across_f32(src, stride, columns, k, dst) }
        }
    }

    /// f64 with AVX2 and FMA.
    pub(crate) struct WideF64;

    impl Engine for WideF64 {
        type Num = f64;
        const WIDTH: usize = 8;
        unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<f64>) {
            // SAFETY: the caller's contract.
            unsafe { strip_f64(rows, vectors, strip) }
        }
        unsafe fn across(src: *const f64, stride: isize, columns: usize, k: usize, dst: *mut f64) {
            // SAFETY: the caller's contract.
            unsafe { across_singly::<f64, 8>(src, stride, (0, columns), 0..k, dst) }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn strip_f32(rows: usize, vectors: usize, strip: &Strip<f32>) {
        // SAFETY: the caller's contract.
        unsafe { dispatch::<x86::__m256>(rows, vectors, strip) }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn strip_f64(rows: usize, vectors: usize, strip: &Strip<f64>) {
        // SAFETY: the caller's contract.
        unsafe { dispatch::<x86::__m256d>(rows, vectors, strip) }
    }

    /// Eight sequences by eight steps at a time; what is left over, singly.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn across_f32(src: *const f32, stride: isize, columns: usize, k: usize, dst: *mut f32) {
        let groups = columns / 8;
        let steps = k / 8 * 8;
        for group in 0..groups {
            let first = src.wrapping_offset(group as isize * 8 * stride);
            for p in (0..steps).step_by(8) {
                let mut rows = [x86::_mm256_setzero_ps(); 8];
                for (j, row) in rows.iter_mut().enumerate() {
                    let from = first.wrapping_offset(j as isize * stride).wrapping_add(p);
                    // SAFETY: steps `p` to `p + 7` of a sequence that exists.
                    *row = unsafe { x86::_mm256_loadu_ps(from) };
                }
                for (q, row) in transpose(rows).into_iter().enumerate() {
                    let to = dst.wrapping_add((p + q) * 16 + group * 8);
                    // SAFETY: half a row of the `k * 16` numbers.
                    unsafe { x86::_mm256_storeu_ps(to, row) };
                }
            }
        }
        // SAFETY: the caller's contract.
        unsafe { across_singly::<f32, 16>(src, stride, (groups * 8, columns), 0..steps, dst) };
        // SAFETY: as above.
        unsafe { across_singly::<f32, 16>(src, stride, (0, columns), steps..k, dst) };
    }

    #[target_feature(enable = "avx2")]
    fn transpose(r: [x86::__m256; 8]) -> [x86::__m256; 8] {
        let mut t = r;
        for i in 0..4 {
            t[2 * i] = x86::_mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = x86::_mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let mut u = t;
        for i in [0, 4] {
            u[i] = x86::_mm256_shuffle_ps::<0x44>(t[i], t[i + 2]);
            u[i + 1] = x86::_mm256_shuffle_ps::<0xee>(t[i], t[i + 2]);
            u[i + 2] = x86::_mm256_shuffle_ps::<0x44>(t[i + 1], t[i + 3]);
            u[i + 3] = x86::_mm256_shuffle_ps::<0xee>(t[i + 1], t[i + 3]);
        }
        let mut out = u;
        for i in 0..4 {
            out[i] = x86::_mm256_permute2f128_ps::<0x20>(u[i], u[i + 4]);
            out[i + 4] = x86::_mm256_permute2f128_ps::<0x31>(u[i], u[i + 4]);
        }
        out
    }
}
