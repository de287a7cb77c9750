//! Traits of accumulator types, and of SIMD vectors of them.

/// A microkernel with its arguments.
pub(in crate::contract) trait Microkernel {
    type Out;

    /// Runs it. To be inlined into the function that has the CPU's instructions.
    ///
    /// # Safety
    ///
    /// The CPU must be the engine's. What its operands span must be readable, and sums writable.
    unsafe fn run(self) -> Self::Out;
}

/// An accumulator type.
pub(in crate::contract) trait Number:
    Copy + Default + std::ops::Add<Output = Self> + 'static
{
    const ZERO: Self;
}

impl Number for f32 {
    const ZERO: f32 = 0.0;
}

impl Number for f64 {
    const ZERO: f64 = 0.0;
}

/// A SIMD vector, in memory an array of its numbers. Its methods may be called only on a CPU that
/// has it.
pub(in crate::contract) trait Vector: Copy {
    type Num: Number;
    const LANES: usize = size_of::<Self>() / size_of::<Self::Num>();

    /// Runs a microkernel with the instructions of the CPUs that have the vector.
    ///
    /// # Safety
    ///
    /// [`Microkernel::run`] must be allowed.
    unsafe fn run<K: Microkernel>(kernel: K) -> K::Out;
    fn splat(x: Self::Num) -> Self;
    /// # Safety
    ///
    /// `p` must be readable for `LANES` numbers.
    #[inline(always)]
    unsafe fn load(p: *const Self::Num) -> Self {
        // SAFETY: the caller's contract: a vector is as many numbers.
        unsafe { p.cast::<Self>().read_unaligned() }
    }
    /// # Safety
    ///
    /// `p` must be writable for `LANES` numbers.
    #[inline(always)]
    unsafe fn store(self, p: *mut Self::Num) {
        // SAFETY: the caller's contract: a vector is as many numbers.
        unsafe { p.cast::<Self>().write_unaligned(self) }
    }
    /// `self * b + acc`, rounded once.
    fn fma(self, b: Self, acc: Self) -> Self;
    fn add(self, o: Self) -> Self;
    /// Stores the lanes rounded to bf16, if the engine rounds.
    ///
    /// # Safety
    ///
    /// `p` must be writable for `LANES` of them.
    unsafe fn round(self, _p: *mut u16) {
        unreachable!("does not round")
    }
}

/// Vectors that can be interleaved.
pub(in crate::contract) trait Interleave: Vector {
    /// Interleaves two vectors: the low half, then the high half.
    fn interleave(self, odd: Self) -> [Self; 2];

    /// Interleaves two vectors and stores them as bf16. The low bits of a NaN are zero.
    ///
    /// # Safety
    ///
    /// `to` must be writable for them.
    unsafe fn round_in_turn(self, _odd: Self, _to: *mut u8) {
        unreachable!("the engine does not alternate bf16")
    }
}

/// An unrolled loop, so that vectors which its index selects stay in registers.
macro_rules! unrolled {
    ($i:ident of $($number:literal)* => $body:block) => {
        $({
            let $i: usize = $number;
            $body
        })*
    };
}

pub(super) use unrolled;
