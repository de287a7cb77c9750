//! Microkernels for any CPU, on arrays. Where FMA is emulated or a call, larger tiles gain little.

use super::cell::{Same, Sight};
use super::engine::{Elementwise, Engine};
use super::vector::{Interleave, Microkernel, Vector};
#[cfg(all(target_arch = "x86_64", not(target_feature = "fma")))]
use tracecast_ir::kernel::math::emulated_fma as fma;
#[cfg(not(all(target_arch = "x86_64", not(target_feature = "fma"))))]
use tracecast_ir::kernel::math::fma;

macro_rules! array_vector {
    ($num:ty, $lanes:literal, $fma:path) => {
        impl Vector for [$num; $lanes] {
            type Num = $num;
            unsafe fn run<K: Microkernel>(kernel: K) -> K::Out {
                // SAFETY: the caller's contract.
                unsafe { kernel.run() }
            }
            #[inline(always)]
            fn splat(x: $num) -> Self {
                [x; $lanes]
            }
            #[inline(always)]
            fn fma(mut self, b: Self, acc: Self) -> Self {
                for l in 0..$lanes {
                    self[l] = $fma(self[l], b[l], acc[l]);
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

array_vector!(f32, 4, fma);
array_vector!(f64, 4, f64::mul_add);

macro_rules! portable_engine {
    ($name:ident, $num:ty, $what:literal) => {
        #[doc = $what]
        pub(in crate::contract) struct $name;

        impl Engine for $name {
            type Num = $num;
            type Vector = [$num; 4];
            type Singly = Self;
            type Careful = Self;
            type Bf16 = Same;
            type F16 = Same;
            const WIDTH: usize = 8;
            const ROWS: usize = 2;
            const FEW: usize = 0;
            const SPOTS: usize = 2;
        }

        impl Elementwise for $name {
            type Same = Same;
            const LINE: usize = 2;
            const FILLS_CACHES: bool = false;
            const ALTERNATING: usize = 1;
        }
    };
}

portable_engine!(PortableF32, f32, "f32 on any CPU.");
portable_engine!(PortableF64, f64, "f64 on any CPU.");
