//! Results so far: some lines at a time, since each waits for its own result before.

use super::element::{Element, Number};
use super::{Layout, Scan};

/// Lines that are worked on together.
const TOGETHER: usize = 16;

/// Where the elements of some lines are.
struct Lines {
    /// The first elements.
    first: [usize; TOGETHER],
    /// How many lines there are.
    count: usize,
    length: usize,
    inner: usize,
    reverse: bool,
}

impl Lines {
    /// Calls `each` with a number of a line, a position of it, and where that lies, position after position.
    #[inline(always)]
    fn each(&self, mut each: impl FnMut(usize, usize, usize)) {
        for step in 0..self.length {
            let position = if self.reverse { self.length - 1 - step } else { step };
            for line in 0..self.count {
                each(line, position, self.first[line] + position * self.inner);
            }
        }
    }
}

/// Writes the results so far of all lines.
pub(super) fn run<T: Element>(
    scan: Scan,
    reverse: bool,
    layout: Layout,
    inputs: &[&[u8]],
    output: &mut [u8],
) {
    let Layout { outer, length, inner, .. } = layout;
    for group in (0..outer * inner).step_by(TOGETHER) {
        let count = TOGETHER.min(outer * inner - group);
        let mut first = [0; TOGETHER];
        for (line, first) in (group..).zip(&mut first[..count]) {
            *first = line / inner * length * inner + line % inner;
        }
        let lines = Lines { first, count, length, inner, reverse };
        match scan {
            Scan::Sum => sums::<T>(&lines, inputs[0], output, T::Sum::ZERO, T::Sum::plus),
            Scan::Prod => sums::<T>(&lines, inputs[0], output, T::Sum::ONE, T::Sum::times),
            Scan::LogSumExp => logarithms::<T>(&lines, inputs[0], output),
            Scan::Recurrence => recurrence::<T>(&lines, [inputs[0], inputs[1]], output),
            Scan::ArgMax => extremes::<T>(&lines, inputs[0], output, |new, old| new >= old),
            Scan::ArgMin => extremes::<T>(&lines, inputs[0], output, |new, old| new <= old),
        }
    }
}

#[inline(always)]
fn sums<T: Element>(
    lines: &Lines,
    x: &[u8],
    output: &mut [u8],
    start: T::Sum,
    combine: impl Fn(T::Sum, T::Sum) -> T::Sum,
) {
    let mut sums = [start; TOGETHER];
    lines.each(|line, _, at| {
        let at = at * T::BYTES;
        sums[line] = combine(sums[line], T::read(&x[at..]).to_sum());
        T::from_sum(sums[line]).write(&mut output[at..]);
    });
}

fn logarithms<T: Element>(lines: &Lines, x: &[u8], output: &mut [u8]) {
    let mut sums = [T::Log::LEAST; TOGETHER];
    lines.each(|line, _, at| {
        let at = at * T::BYTES;
        sums[line] = sums[line].log_plus(T::read(&x[at..]).to_log());
        T::from_log(sums[line]).write(&mut output[at..]);
    });
}

fn recurrence<T: Element>(lines: &Lines, [factor, x]: [&[u8]; 2], output: &mut [u8]) {
    let mut sums = [T::Sum::ZERO; TOGETHER];
    let begins = if lines.reverse { lines.length.saturating_sub(1) } else { 0 };
    lines.each(|line, position, at| {
        let at = at * T::BYTES;
        let x = T::read(&x[at..]).to_sum();
        // The first has none before it, whatever its factor is.
        sums[line] = match position == begins {
            true => x,
            false => sums[line].times(T::read(&factor[at..]).to_sum()).plus(x),
        };
        T::from_sum(sums[line]).write(&mut output[at..]);
    });
}

fn extremes<T: Element>(
    lines: &Lines,
    x: &[u8],
    output: &mut [u8],
    beats: impl Fn(u64, u64) -> bool,
) {
    // The key of the extreme so far, if it is a number, and its position.
    let mut found: [(Option<u64>, usize); TOGETHER] = [(None, 0); TOGETHER];
    let mut begun = [false; TOGETHER];
    lines.each(|line, position, at| {
        let x = T::read(&x[at * T::BYTES..]);
        let key = (!x.is_nan()).then(|| x.key());
        let takes = match (key, found[line].0) {
            (None, _) => true,
            (Some(_), None) => !begun[line],
            (Some(new), Some(old)) => beats(new, old),
        };
        if takes {
            found[line] = (key, position);
        }
        begun[line] = true;
        output[at * 8..at * 8 + 8].copy_from_slice(&(found[line].1 as i64).to_le_bytes());
    });
}
