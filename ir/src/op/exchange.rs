//! [`Exchange`]: what the ranks of a parallel run do together; and [`Across`], how numbers of several ranks become one.

use crate::kernel::narrow::{narrow, widen};
use crate::{Attrs, DType};

/// What the ranks of a parallel run do together: each gives a value and gets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Every rank gets the values of all ranks combined, by the attribute `across`.
    AllReduce,
    /// Every rank gets the value of the rank `root`.
    Broadcast,
    /// Every rank gets the values of all ranks one after another along the first axis.
    AllGather,
    /// The rank `root` gets the sum of all values, the others zeros.
    ReduceTo,
    /// Every rank gets its part of the sum of all values, which is divided along the first axis.
    ReduceScatter,
}

impl Exchange {
    /// How the values of ranks are combined; `None` where they are only handed on.
    pub fn across(self, attrs: &Attrs) -> Option<Across> {
        match self {
            Exchange::AllReduce => Across::find(attrs.str("across")?),
            Exchange::ReduceTo | Exchange::ReduceScatter => Some(Across::Sum),
            Exchange::Broadcast | Exchange::AllGather => None,
        }
    }
}

/// How numbers of several ranks become one.
///
/// Sums and means are made **in the order of the ranks**, whoever makes them and however they are divided among messages: floats of 16 bits
/// in f32, f32 in f32, f64 in f64, and integers modulo their width. A mean is that sum divided by the number of ranks. The result is rounded
/// once to its dtype. A maximum is NaN where a rank has NaN, and of zeros the one of the first rank.
///
/// ```
/// use tracecast_ir::DType;
/// use tracecast_ir::op::Across;
/// let (a, b) = (1.5f32.to_le_bytes(), 2.0f32.to_le_bytes());
/// let mut mean = [0; 4];
/// Across::Mean.combine(DType::F32, &[&a, &b], &mut mean);
/// assert_eq!(f32::from_le_bytes(mean), 1.75);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Across {
    /// The sum.
    Sum,
    /// The sum divided by the number of ranks; of floats only.
    Mean,
    /// The largest.
    Max,
}

impl Across {
    /// All of them.
    pub const ALL: [Across; 3] = [Across::Sum, Across::Mean, Across::Max];

    /// The name used in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Across::Sum => "sum",
            Across::Mean => "mean",
            Across::Max => "max",
        }
    }

    /// The one of that name.
    pub fn find(name: &str) -> Option<Across> {
        Across::ALL.into_iter().find(|across| across.name() == name)
    }

    /// Combines elements of that dtype: those of every rank, in the order of the ranks, into as many bytes.
    ///
    /// # Panics
    /// If there is no rank, the lengths differ, or the dtype is no number.
    pub fn combine(self, dtype: DType, ranks: &[&[u8]], into: &mut [u8]) {
        assert!(ranks.iter().all(|r| r.len() == into.len()), "every rank gives as many bytes");
        let count = ranks.len();
        match dtype {
            DType::F32 => fold(ranks, into, f32::from_le_bytes, f32::to_le_bytes, self.f32(count)),
            DType::F64 => fold(ranks, into, f64::from_le_bytes, f64::to_le_bytes, self.f64(count)),
            DType::F16 | DType::BF16 => {
                let read = |bytes| widen(dtype, u16::from_le_bytes(bytes));
                let write = |x| narrow(dtype, x).to_le_bytes();
                fold(ranks, into, read, write, self.f32(count));
            }
            DType::I32 => {
                let rule = Rule(self.of(i32::wrapping_add, i32::max), |x| x);
                fold(ranks, into, i32::from_le_bytes, i32::to_le_bytes, rule);
            }
            DType::I64 => {
                let rule = Rule(self.of(i64::wrapping_add, i64::max), |x| x);
                fold(ranks, into, i64::from_le_bytes, i64::to_le_bytes, rule);
            }
            DType::U8 => {
                let rule = Rule(self.of(u8::wrapping_add, u8::max), |x| x);
                fold(ranks, into, u8::from_le_bytes, u8::to_le_bytes, rule);
            }
            _ => unreachable!("the type rule takes numbers that kernels compute with"),
        }
    }

    fn of<T>(self, sum: fn(T, T) -> T, max: fn(T, T) -> T) -> fn(T, T) -> T {
        if self == Across::Max { max } else { sum }
    }

    fn f32(self, count: usize) -> Rule<impl Fn(f32, f32) -> f32, impl Fn(f32) -> f32> {
        let (is_max, by) = (self == Across::Max, count as f32);
        let join = move |a: f32, b: f32| match is_max {
            false => a + b,
            true if a.is_nan() || b <= a => a,
            true => b,
        };
        Rule(join, move |x| if self == Across::Mean { x / by } else { x })
    }

    fn f64(self, count: usize) -> Rule<impl Fn(f64, f64) -> f64, impl Fn(f64) -> f64> {
        let (is_max, by) = (self == Across::Max, count as f64);
        let join = move |a: f64, b: f64| match is_max {
            false => a + b,
            true if a.is_nan() || b <= a => a,
            true => b,
        };
        Rule(join, move |x| if self == Across::Mean { x / by } else { x })
    }
}

/// What joins two numbers, and what is done with the last.
struct Rule<J, E>(J, E);

/// How many elements of all ranks are combined before the next are read, so that they stay in the nearest cache.
const BLOCK: usize = 1024;

fn fold<T: Copy, const N: usize>(
    ranks: &[&[u8]],
    into: &mut [u8],
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
    Rule(join, end): Rule<impl Fn(T, T) -> T, impl Fn(T) -> T>,
) {
    let (first, others) = ranks.split_first().expect("there is a rank");
    let mut sums: Vec<T> = Vec::with_capacity(BLOCK);
    for (i, out) in into.chunks_mut(BLOCK * N).enumerate() {
        let here = i * BLOCK * N..i * BLOCK * N + out.len();
        sums.clear();
        sums.extend(first[here.clone()].as_chunks::<N>().0.iter().map(|bytes| read(*bytes)));
        for other in others {
            let bytes = other[here.clone()].as_chunks::<N>().0;
            sums.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum = join(*sum, read(*bytes)));
        }
        let places = out.as_chunks_mut::<N>().0.iter_mut();
        places.zip(&sums).for_each(|(place, sum)| *place = write(end(*sum)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_f32(across: Across, ranks: &[f32]) -> f32 {
        let bytes: Vec<[u8; 4]> = ranks.iter().map(|x| x.to_le_bytes()).collect();
        let bytes: Vec<&[u8]> = bytes.iter().map(|b| &b[..]).collect();
        let mut into = [0; 4];
        across.combine(DType::F32, &bytes, &mut into);
        f32::from_le_bytes(into)
    }

    #[test]
    fn sums_keep_the_order_of_ranks() {
        let ranks = [1.0e8f32, 1.0, -1.0e8, 1.0];
        assert_eq!(of_f32(Across::Sum, &ranks), ((1.0e8f32 + 1.0) - 1.0e8) + 1.0);
        assert_eq!(of_f32(Across::Sum, &ranks), 1.0);
        let turned = [1.0f32, 1.0, 1.0e8, -1.0e8];
        assert_eq!(of_f32(Across::Sum, &turned), 0.0);
        assert_eq!(of_f32(Across::Mean, &[1.0, 2.0, 6.0]), 3.0);
    }

    #[test]
    fn a_maximum_hands_nan_on_and_takes_the_first_zero() {
        assert!(of_f32(Across::Max, &[1.0, f32::NAN, 2.0]).is_nan());
        assert!(of_f32(Across::Max, &[f32::NAN, 2.0]).is_nan());
        assert_eq!(of_f32(Across::Max, &[-0.0, 0.0]).to_bits(), (-0.0f32).to_bits());
        assert_eq!(of_f32(Across::Max, &[1.0, 3.0, 2.0]), 3.0);
    }

    #[test]
    fn sixteen_bits_are_summed_wide_and_rounded_once() {
        // In bf16 each sum alone would be rounded back to 256.
        let ranks: Vec<[u8; 2]> =
            [256.0, 1.0, 1.0, 1.0].map(|x| narrow(DType::BF16, x).to_le_bytes()).to_vec();
        let ranks: Vec<&[u8]> = ranks.iter().map(|b| &b[..]).collect();
        let mut into = [0; 2];
        Across::Sum.combine(DType::BF16, &ranks, &mut into);
        assert_eq!(widen(DType::BF16, u16::from_le_bytes(into)), 260.0);
    }

    #[test]
    fn many_elements_and_integers() {
        let ranks: Vec<Vec<u8>> = (0..3i32)
            .map(|r| (0..3000).flat_map(|i| (i * r + r).to_le_bytes()).collect())
            .collect();
        let ranks: Vec<&[u8]> = ranks.iter().map(|b| &b[..]).collect();
        let mut into = vec![0; 12_000];
        Across::Sum.combine(DType::I32, &ranks, &mut into);
        for (i, bytes) in into.as_chunks::<4>().0.iter().enumerate() {
            assert_eq!(i32::from_le_bytes(*bytes), 3 * i as i32 + 3);
        }
    }
}
