//! Microkernels for any CPU, on arrays. FMA may be a library call, so larger tiles gain nothing.

use super::alternating::{Alternating, Interleave, alternating};
use super::field::{Field, field};
use super::lanes::{Lanes, lanes};
use super::line::{Line, line};
use super::spots::{Spots, spots};
use super::strip::{Same, sizes};
use super::sweep::{Sight, Sweep, sweep};
use super::taps::{Taps, taps};
use super::{Elementwise, Engine, Strip, Vector};
use tracecast_ir::DType;

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
            // On x86 without FMA each lane calls the C library: unrolling a strip would not pay.
            #[inline(never)]
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

        impl Interleave for [$num; $lanes] {
            #[inline(always)]
            fn interleave(self, odd: Self) -> [Self; 2] {
                let one = |i: usize| if i % 2 == 0 { self[i / 2] } else { odd[i / 2] };
                [0, $lanes].map(|first| std::array::from_fn(|l| one(first + l)))
            }
        }
    };
}

impl Sight<[f32; 4]> for Same {}
impl Sight<[f64; 4]> for Same {}

array_vector!(f32, 4);
array_vector!(f64, 4);

macro_rules! portable_engine {
    ($name:ident, $num:ty, $what:literal) => {
        #[doc = $what]
        pub(in crate::contract) struct $name;

        impl Engine for $name {
            type Num = $num;
            type Singly = Self;
            const LANES: usize = 4;
            const WIDTH: usize = 8;
            const ROWS: usize = 2;
            const SPOTS: usize = 2;
            fn columns(_: usize) -> usize {
                8
            }
            fn reads(cell: DType) -> bool {
                cell == <$num as super::Wider>::DTYPE
            }
            unsafe fn strip(rows: usize, vectors: usize, strip: &Strip<$num>) -> u16 {
                sizes!([$num; 4], Same, false, rows, vectors, strip, few: [], all: [1 2], more: [])
            }
            unsafe fn taps(rows: usize, vectors: usize, strip: &Taps<'_, $num>) {
                taps!([$num; 4], false, rows, vectors, strip, few: [], all: [1 2], more: [])
            }
            unsafe fn spots(columns: usize, vectors: usize, of: &Spots<'_, $num>) {
                spots!([$num; 4], columns, vectors, of, [1 2])
            }
        }

        impl Elementwise for $name {
            const LINE: usize = 2;
            unsafe fn lanes(lines: usize, columns: usize, of: &Lanes<'_, $num>) {
                lanes!([$num; 4], lines, columns, of, [3 by 3])
            }
            unsafe fn line(columns: usize, of: &Line<'_, $num>) {
                line!([$num; 4], columns, of, [1 2])
            }
            unsafe fn field(lines: usize, vectors: usize, of: &Field<'_, $num>) {
                for (l, v) in (0..lines).flat_map(|l| (0..vectors).map(move |v| (l, v))) {
                    let (b, sums) = (of.b.wrapping_add(l * of.line), of.sums.wrapping_add(l * of.ld));
                    let (b, sums) = (b.wrapping_add(4 * v), sums.wrapping_add(4 * v));
                    field!([$num; 4], 1, 1, &Field { b, sums, ..*of }, [1 1])
                }
            }
            unsafe fn alternating(vectors: usize, of: &Alternating<$num>) {
                alternating!([$num; 4], vectors, of, [1])
            }
            unsafe fn sweep(step: usize, _: DType, of: &Sweep<'_, $num>) {
                sweep!([$num; 4], Same, step, of, has_many: true)
            }
        }
    };
}

portable_engine!(PortableF32, f32, "f32 on any CPU.");
portable_engine!(PortableF64, f64, "f64 on any CPU.");
