//! Results so far. A [`Scanner`] takes some lines side by side, since each waits for its own result
//! before, and some of their positions at a time; what it does with a line does not depend on the
//! lines beside it. How elements come to lie side by side is left to those who call it: [`run`]
//! takes line by line.

use super::element::{self, Element, Number, Scanned};
use super::layout::{Layout, Scan};
use crate::DType;
use crate::kernel::half;

/// The results so far of some lines, from which a scan goes on.
///
/// It reads and writes *panels*: for each of some neighbouring positions, in order, the elements of
/// all lines. Elements lie in a panel as [`panel_dtype`] says.
///
/// ```
/// use tracecast_ir::DType;
/// use tracecast_ir::kernel::line::{Scan, Scanner};
///
/// let mut sums = Scanner::<2>::new(Scan::Sum, false, DType::U8).unwrap();
/// let mut out = [0; 4];
/// sums.advance(0, &[&[1, 10, 2, 20]], &mut out);
/// assert_eq!(out, [1, 10, 3, 30]);
/// sums.advance(2, &[&[3, 30]], &mut out[..2]);
/// assert_eq!(out[..2], [6, 60]);
/// ```
#[derive(Clone, Debug)]
pub struct Scanner<const LINES: usize> {
    scan: Scan,
    reverse: bool,
    elements: Elements,
    /// The numbers so far, as words.
    so_far: [u64; LINES],
    /// Where extremes have been found.
    at: [i64; LINES],
    begun: bool,
}

/// What lies in panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    F32,
    /// 16-bit floats as f32.
    Widened,
    F64,
    I64,
    I32,
    U8,
}

/// What the elements of a dtype are in a panel: 16-bit floats are f32, which whoever makes the
/// panel widens, and narrows afterwards.
#[must_use]
pub const fn panel_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

impl<const LINES: usize> Scanner<LINES> {
    /// Before the first position of lines of that dtype. `None` if there is no such scan.
    #[must_use]
    pub fn new(scan: Scan, reverse: bool, dtype: DType) -> Option<Self> {
        let elements = match dtype {
            DType::F32 => Elements::F32,
            DType::F16 | DType::BF16 => Elements::Widened,
            DType::F64 => Elements::F64,
            DType::I64 => Elements::I64,
            DType::I32 => Elements::I32,
            DType::U8 | DType::Bool => Elements::U8,
            _ => return None,
        };
        let so_far = match elements {
            Elements::F32 => starts::<element::F32>(scan),
            Elements::Widened => starts::<element::Widened>(scan),
            Elements::F64 => starts::<element::F64>(scan),
            Elements::I64 => starts::<element::I64>(scan),
            Elements::I32 => starts::<element::I32>(scan),
            Elements::U8 => starts::<element::U8>(scan),
        };
        if scan == Scan::LogSumExp && !dtype.is_float() {
            return None;
        }
        let (so_far, at) = ([so_far; LINES], [0; LINES]);
        Some(Scanner { scan, reverse, elements, so_far, at, begun: false })
    }

    /// Takes the next positions, of which `first` is the least: from the least to the largest, or
    /// the other way round if the scan is reversed. There is an input for each operand of the scan;
    /// the results of extremes are positions, as i64.
    ///
    /// # Panics
    /// If an input is missing, or the panels are not of the same positions.
    #[inline(always)]
    pub fn advance(&mut self, first: usize, inputs: &[&[u8]], output: &mut [u8]) {
        match self.elements {
            Elements::F32 => self.advance_as::<element::F32>(first, inputs, output),
            Elements::Widened => self.advance_as::<element::Widened>(first, inputs, output),
            Elements::F64 => self.advance_as::<element::F64>(first, inputs, output),
            Elements::I64 => self.advance_as::<element::I64>(first, inputs, output),
            Elements::I32 => self.advance_as::<element::I32>(first, inputs, output),
            Elements::U8 => self.advance_as::<element::U8>(first, inputs, output),
        }
        self.begun = true;
    }

    // All of it is inlined into `advance`, whose caller says by which instructions it becomes
    // vectors. So there are no closures here: they would keep the instructions that every CPU has.

    #[inline(always)]
    fn advance_as<T: Scanned>(&mut self, first: usize, inputs: &[&[u8]], output: &mut [u8]) {
        let x = inputs[0];
        match self.scan {
            Scan::Sum => self.sums::<T, Plus>(x, output),
            Scan::Prod => self.sums::<T, Times>(x, output),
            Scan::LogSumExp => self.logarithms::<T>(x, output),
            Scan::Recurrence => self.recurrence::<T>([x, inputs[1]], output),
            Scan::ArgMax => self.extremes::<T, Largest>(first, x, output),
            Scan::ArgMin => self.extremes::<T, Smallest>(first, x, output),
        }
    }

    /// The position that comes after a number of others.
    #[inline(always)]
    fn position(&self, step: usize, positions: usize) -> usize {
        if self.reverse { positions - 1 - step } else { step }
    }

    #[inline(always)]
    fn sums<T: Scanned, C: Combine>(&mut self, x: &[u8], output: &mut [u8]) {
        let mut sums = from_words::<T::Sum, LINES>(&self.so_far);
        let positions = positions::<T, LINES>(x);
        for step in 0..positions {
            let position = self.position(step, positions);
            let x = to_sums::<T, LINES>(x, position);
            for line in 0..LINES {
                sums[line] = C::combine(sums[line], x[line]);
            }
            show_sums::<T, LINES>(output, position, &sums);
        }
        self.so_far = to_words(&sums);
    }

    #[inline(always)]
    fn logarithms<T: Scanned>(&mut self, x: &[u8], output: &mut [u8]) {
        let mut sums = from_words::<T::Own, LINES>(&self.so_far);
        let positions = positions::<T, LINES>(x);
        for step in 0..positions {
            let position = self.position(step, positions);
            let x = to_own::<T, LINES>(x, position);
            for line in 0..LINES {
                sums[line] = sums[line].log_plus(x[line]);
            }
            let to = row_mut::<LINES>(output, position, T::BYTES);
            for line in 0..LINES {
                T::from_own(sums[line]).write(&mut to[line * T::BYTES..]);
            }
        }
        self.so_far = to_words(&sums);
    }

    #[inline(always)]
    fn recurrence<T: Scanned>(&mut self, [factor, x]: [&[u8]; 2], output: &mut [u8]) {
        let mut sums = from_words::<T::Sum, LINES>(&self.so_far);
        let positions = positions::<T, LINES>(x);
        for step in 0..positions {
            let position = self.position(step, positions);
            let x = to_sums::<T, LINES>(x, position);
            if self.begun || step > 0 {
                let factor = to_sums::<T, LINES>(factor, position);
                for line in 0..LINES {
                    sums[line] = sums[line].times(factor[line]).plus(x[line]);
                }
            } else {
                // The first has none before it, whatever its factor is.
                sums = x;
            }
            show_sums::<T, LINES>(output, position, &sums);
        }
        self.so_far = to_words(&sums);
    }

    #[inline(always)]
    fn extremes<T: Scanned, B: Beats>(&mut self, first: usize, x: &[u8], output: &mut [u8]) {
        let mut found = from_words::<T::Own, LINES>(&self.so_far);
        let mut at = self.at;
        let positions = positions::<T, LINES>(x);
        for step in 0..positions {
            let position = self.position(step, positions);
            let x = to_own::<T, LINES>(x, position);
            let here = (first + position) as i64;
            for line in 0..LINES {
                // No number beats a NaN, and a NaN is taken in any case; the first takes the place
                // of what is beaten by all.
                let takes = B::beats(x[line], found[line]) || x[line].is_nan();
                found[line] = if takes { x[line] } else { found[line] };
                at[line] = if takes { here } else { at[line] };
            }
            let to = row_mut::<LINES>(output, position, 8);
            for line in 0..LINES {
                to[line * 8..][..8].copy_from_slice(&at[line].to_le_bytes());
            }
        }
        (self.so_far, self.at) = (to_words(&found), at);
    }
}

/// How a sum or a product goes on.
trait Combine {
    fn combine<N: Number>(so_far: N, x: N) -> N;
}

enum Plus {}
enum Times {}

impl Combine for Plus {
    #[inline(always)]
    fn combine<N: Number>(so_far: N, x: N) -> N {
        so_far.plus(x)
    }
}

impl Combine for Times {
    #[inline(always)]
    fn combine<N: Number>(so_far: N, x: N) -> N {
        so_far.times(x)
    }
}

/// Which of two numbers an extreme is; equal ones beat each other.
trait Beats {
    fn beats<N: Number>(x: N, found: N) -> bool;
}

enum Largest {}
enum Smallest {}

impl Beats for Largest {
    #[inline(always)]
    fn beats<N: Number>(x: N, found: N) -> bool {
        x >= found
    }
}

impl Beats for Smallest {
    #[inline(always)]
    fn beats<N: Number>(x: N, found: N) -> bool {
        x <= found
    }
}

/// What stands before the first position.
fn starts<T: Scanned>(scan: Scan) -> u64 {
    match scan {
        Scan::Sum | Scan::Recurrence => T::Sum::ZERO.to_word(),
        Scan::Prod => T::Sum::ONE.to_word(),
        Scan::LogSumExp | Scan::ArgMax => T::Own::LEAST.to_word(),
        Scan::ArgMin => T::Own::MOST.to_word(),
    }
}

/// The positions of a panel.
#[inline(always)]
fn positions<T: Element, const LINES: usize>(panel: &[u8]) -> usize {
    panel.len() / (LINES * T::BYTES)
}

/// The bytes of a position.
#[inline(always)]
fn row<const LINES: usize>(panel: &[u8], position: usize, bytes: usize) -> &[u8] {
    &panel[position * LINES * bytes..][..LINES * bytes]
}

#[inline(always)]
fn row_mut<const LINES: usize>(panel: &mut [u8], position: usize, bytes: usize) -> &mut [u8] {
    &mut panel[position * LINES * bytes..][..LINES * bytes]
}

#[inline(always)]
fn to_sums<T: Scanned, const LINES: usize>(panel: &[u8], position: usize) -> [T::Sum; LINES] {
    let (row, mut sums) = (row::<LINES>(panel, position, T::BYTES), [T::Sum::ZERO; LINES]);
    for line in 0..LINES {
        sums[line] = T::read(&row[line * T::BYTES..]).to_sum();
    }
    sums
}

#[inline(always)]
fn to_own<T: Scanned, const LINES: usize>(panel: &[u8], position: usize) -> [T::Own; LINES] {
    let (row, mut own) = (row::<LINES>(panel, position, T::BYTES), [T::Own::ZERO; LINES]);
    for line in 0..LINES {
        own[line] = T::read(&row[line * T::BYTES..]).to_own();
    }
    own
}

#[inline(always)]
fn show_sums<T: Scanned, const LINES: usize>(
    panel: &mut [u8],
    position: usize,
    sums: &[T::Sum; LINES],
) {
    let row = row_mut::<LINES>(panel, position, T::BYTES);
    for line in 0..LINES {
        T::from_sum(sums[line]).write(&mut row[line * T::BYTES..]);
    }
}

#[inline(always)]
fn from_words<N: Number, const LINES: usize>(words: &[u64; LINES]) -> [N; LINES] {
    let mut numbers = [N::ZERO; LINES];
    for line in 0..LINES {
        numbers[line] = N::from_word(words[line]);
    }
    numbers
}

#[inline(always)]
fn to_words<N: Number, const LINES: usize>(numbers: &[N; LINES]) -> [u64; LINES] {
    let mut words = [0; LINES];
    for line in 0..LINES {
        words[line] = numbers[line].to_word();
    }
    words
}

/// Positions of a line that are read at once.
const PIECE: usize = 256;

/// Writes the results so far of all lines, one line after another.
///
/// # Errors
/// If there is no such scan of the dtype.
pub(super) fn run(
    scan: Scan,
    reverse: bool,
    dtype: DType,
    layout: Layout,
    inputs: &[&[u8]],
    output: &mut [u8],
) -> Result<(), String> {
    let Layout { outer, length, inner, .. } = layout;
    let before = Scanner::<1>::new(scan, reverse, dtype)
        .ok_or_else(|| format!("there is no scan {} of {dtype}", scan.name()))?;
    let to = if scan.is_position() { DType::I64 } else { dtype };
    let [wide, wide_to] = [dtype, to].map(|dtype| panel_dtype(dtype).bytes());
    let (mut panels, mut results) = ([[0; 8 * PIECE]; 2], [0; 8 * PIECE]);
    for line in 0..outer * inner {
        let mut scanner = before.clone();
        let pieces = length.div_ceil(PIECE);
        for piece in 0..pieces {
            let first = if reverse { pieces - 1 - piece } else { piece } * PIECE;
            let positions = PIECE.min(length - first);
            let at = |p: usize| (line / inner * length + first + p) * inner + line % inner;
            for (panel, input) in panels.iter_mut().zip(inputs) {
                for (p, to) in panel.chunks_exact_mut(wide).take(positions).enumerate() {
                    widen(dtype, &input[at(p) * dtype.bytes()..], to);
                }
            }
            let read = panels.each_ref().map(|panel| &panel[..positions * wide]);
            scanner.advance(first, &read, &mut results[..positions * wide_to]);
            for (p, result) in results.chunks_exact(wide_to).take(positions).enumerate() {
                narrow(to, result, &mut output[at(p) * to.bytes()..]);
            }
        }
    }
    Ok(())
}

/// Puts the first element into a panel.
fn widen(dtype: DType, element: &[u8], to: &mut [u8]) {
    let low = |wide: fn(u16) -> f32| wide(u16::from_le_bytes([element[0], element[1]]));
    match dtype {
        DType::F16 => to.copy_from_slice(&low(half::f16_to_f32).to_le_bytes()),
        DType::BF16 => to.copy_from_slice(&low(half::bf16_to_f32).to_le_bytes()),
        other => to.copy_from_slice(&element[..other.bytes()]),
    }
}

/// Puts an element of a panel in its place.
fn narrow(dtype: DType, element: &[u8], to: &mut [u8]) {
    let mut low = |narrow: fn(f32) -> u16| {
        let element = f32::from_le_bytes([element[0], element[1], element[2], element[3]]);
        to[..2].copy_from_slice(&narrow(element).to_le_bytes());
    };
    match dtype {
        DType::F16 => low(half::f32_to_f16),
        DType::BF16 => low(half::f32_to_bf16),
        other => to[..other.bytes()].copy_from_slice(&element[..other.bytes()]),
    }
}
