//! [`Exchange`]: what the ranks of a parallel run do together; and [`Across`], how numbers of
//! several ranks become one.

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
/// Sums and means are made **in the order of the ranks**, whoever makes them and however they are
/// divided among messages: floats of 16 bits in f32, f32 in f32, f64 in f64, and integers modulo
/// their width. A mean is that sum divided by the number of ranks. The result is rounded once to
/// its dtype. A maximum is NaN where a rank has NaN, and of zeros the one of the first rank.
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

    /// Combines elements of that dtype: those of every rank, in the order of the ranks, into as
    /// many bytes.
    ///
    /// # Panics
    /// If there is no rank, the lengths differ, or the dtype is no number.
    pub fn combine(self, dtype: DType, ranks: &[&[u8]], into: &mut [u8]) {
        assert!(!ranks.is_empty(), "there is a rank");
        self.combined(dtype, Ranks { before: ranks, own: into, counts: false, after: &[] });
    }

    /// As [`combine`](Across::combine), where the elements of one rank lie where the result goes:
    /// those of the ranks `before` it and `after` it.
    ///
    /// # Panics
    /// If the lengths differ, or the dtype is no number.
    pub fn combine_in_place(self, dtype: DType, before: &[&[u8]], own: &mut [u8], after: &[&[u8]]) {
        self.combined(dtype, Ranks { before, own, counts: true, after });
    }

    fn combined(self, dtype: DType, ranks: Ranks<'_>) {
        let mut others = ranks.before.iter().chain(ranks.after);
        assert!(others.all(|r| r.len() == ranks.own.len()), "every rank gives as many bytes");
        let count = ranks.before.len() + usize::from(ranks.counts) + ranks.after.len();
        match dtype {
            DType::F32 => {
                let by = count as f32;
                self.floats(ranks, f32::from_le_bytes, f32::to_le_bytes, |x| x / by);
            }
            DType::F64 => {
                let by = count as f64;
                self.floats(ranks, f64::from_le_bytes, f64::to_le_bytes, |x| x / by);
            }
            DType::F16 | DType::BF16 => {
                let read = |bytes| widen(dtype, u16::from_le_bytes(bytes));
                let write = |x| narrow(dtype, x).to_le_bytes();
                let by = count as f32;
                self.floats(ranks, read, write, |x| x / by);
            }
            DType::I32 => {
                let rule = Rule(self.of(i32::wrapping_add, i32::max), |x| x);
                fold(ranks, i32::from_le_bytes, i32::to_le_bytes, rule);
            }
            DType::I64 => {
                let rule = Rule(self.of(i64::wrapping_add, i64::max), |x| x);
                fold(ranks, i64::from_le_bytes, i64::to_le_bytes, rule);
            }
            DType::U8 => {
                let rule = Rule(self.of(u8::wrapping_add, u8::max), |x| x);
                fold(ranks, u8::from_le_bytes, u8::to_le_bytes, rule);
            }
            _ => unreachable!("the type rule takes numbers that kernels compute with"),
        }
    }

    fn of<T>(self, sum: fn(T, T) -> T, max: fn(T, T) -> T) -> fn(T, T) -> T {
        if self == Across::Max { max } else { sum }
    }

    /// Floats, with loops of their own for each rule: they become vector instructions.
    fn floats<T, const N: usize>(
        self,
        ranks: Ranks<'_>,
        read: impl Fn([u8; N]) -> T,
        write: impl Fn(T) -> [u8; N],
        divided: impl Fn(T) -> T,
    ) where
        T: Copy + Default + PartialOrd + std::ops::Add<Output = T>,
    {
        let is_nan = |a: T| a.partial_cmp(&a).is_none();
        let max = |a: T, b: T| if is_nan(a) || b <= a { a } else { b };
        match self {
            Across::Sum => fold(ranks, read, write, Rule(|a, b| a + b, |x| x)),
            Across::Mean => fold(ranks, read, write, Rule(|a, b| a + b, divided)),
            Across::Max => fold(ranks, read, write, Rule(max, |x| x)),
        }
    }
}

/// The elements of all ranks, one of which may have them where the result goes.
struct Ranks<'a> {
    before: &'a [&'a [u8]],
    own: &'a mut [u8],
    /// False if there is only room for the result.
    counts: bool,
    after: &'a [&'a [u8]],
}

/// What joins two numbers, and what is done with the last.
struct Rule<J, E>(J, E);

/// Elements combined at once, in registers.
const LANES: usize = 32;

fn fold<T: Copy + Default, const N: usize>(
    Ranks { before, own, counts, after }: Ranks<'_>,
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(T) -> [u8; N],
    Rule(join, end): Rule<impl Fn(T, T) -> T, impl Fn(T) -> T>,
) {
    let (blocks, rest) = own.as_chunks_mut::<N>().0.as_chunks_mut::<LANES>();
    let done = blocks.len() * LANES;
    for (at, own) in blocks.iter_mut().enumerate() {
        let (mut sums, mut is_first) = ([T::default(); LANES], true);
        let mut take = |numbers: &[[u8; N]; LANES]| {
            for (sum, x) in sums.iter_mut().zip(numbers) {
                *sum = if is_first { read(*x) } else { join(*sum, read(*x)) };
            }
            is_first = false;
        };
        for rank in before {
            take(&rank.as_chunks::<N>().0.as_chunks::<LANES>().0[at]);
        }
        if counts {
            take(own);
        }
        for rank in after {
            take(&rank.as_chunks::<N>().0.as_chunks::<LANES>().0[at]);
        }
        own.iter_mut().zip(sums).for_each(|(place, sum)| *place = write(end(sum)));
    }
    for (at, own) in rest.iter_mut().enumerate() {
        let number = |rank: &&[u8]| read(rank.as_chunks::<N>().0[done + at]);
        let own_number = counts.then(|| read(*own));
        let numbers = before.iter().map(number).chain(own_number).chain(after.iter().map(number));
        if let Some(sum) = numbers.reduce(&join) {
            *own = write(end(sum));
        }
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
        for own in 0..bytes.len() {
            let mut in_place = bytes[own].to_vec();
            across.combine_in_place(DType::F32, &bytes[..own], &mut in_place, &bytes[own + 1..]);
            assert_eq!(in_place, into, "with rank {own} where the result goes");
        }
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
            .map(|r| (0..3011).flat_map(|i| (i * r + r).to_le_bytes()).collect())
            .collect();
        let ranks: Vec<&[u8]> = ranks.iter().map(|b| &b[..]).collect();
        let mut into = vec![0; 12_044];
        Across::Sum.combine(DType::I32, &ranks, &mut into);
        for (i, bytes) in into.as_chunks::<4>().0.iter().enumerate() {
            assert_eq!(i32::from_le_bytes(*bytes), 3 * i as i32 + 3);
        }
    }
}
