//! The order of the elements of a line: keys with their positions are sorted, so that equal ones
//! stay as they came.

use super::element::Element;
use super::layout::Layout;

/// From this number of elements on, keys of four bytes are sorted by their digits.
const BY_DIGITS: usize = 64;

/// True if the key of an element and its position are one word.
fn is_narrow<T: Element>(length: usize) -> bool {
    T::KEY_BYTES <= 4 && length <= u32::MAX as usize
}

/// The words that the keys of a line take, which [`run`] is to be given.
pub(super) fn words<T: Element>(Layout { length, kept, .. }: Layout) -> usize {
    let is_swapped = !is_narrow::<T>(length) || is_by_digits(length, kept);
    length.saturating_mul(if is_swapped { 2 } else { 1 })
}

/// True if words are sorted by their digits, from one half of the memory to the other.
fn is_by_digits(length: usize, kept: usize) -> bool {
    kept >= length / 8 && length >= BY_DIGITS
}

/// Writes the positions of the elements of all lines in order. `keys` are as many words as
/// [`words`] says.
pub(super) fn run<T: Element>(
    descending: bool,
    layout: Layout,
    x: &[u8],
    output: &mut [u8],
    keys: &mut [u64],
) {
    let Layout { outer, length, inner, kept } = layout;
    for line in 0..outer * inner {
        let (o, i) = (line / inner, line % inner);
        let key = |position: usize| {
            let key = T::read(&x[((o * length + position) * inner + i) * T::BYTES..]).key();
            if descending { !key } else { key }
        };
        let mut put = |rank: usize, position: usize| {
            let at = ((o * kept + rank) * inner + i) * 8;
            output[at..at + 8].copy_from_slice(&(position as i64).to_le_bytes());
        };
        if is_narrow::<T>(length) {
            let (packed, other) = keys.split_at_mut(length);
            let mut sorter = Sorter { packed, other };
            let packed = sorter.narrow(T::KEY_BYTES, kept, (0..length).map(key));
            packed.iter().enumerate().for_each(|(rank, v)| put(rank, (*v & 0xffff_ffff) as usize));
        } else {
            let (pairs, _) = keys[..2 * length].as_chunks_mut();
            let pairs = wide(pairs, kept, (0..length).map(key));
            pairs.iter().enumerate().for_each(|(rank, v)| put(rank, v[1] as usize));
        }
    }
}

/// Words of a key and a position, and as many more if they are sorted by their digits.
struct Sorter<'k> {
    packed: &'k mut [u64],
    other: &'k mut [u64],
}

impl Sorter<'_> {
    /// The first `kept` of some keys of `bytes` bytes, each with its position in the low half.
    fn narrow(&mut self, bytes: usize, kept: usize, keys: impl Iterator<Item = u64>) -> &[u64] {
        for (word, (key, at)) in self.packed.iter_mut().zip(keys.zip(0u64..)) {
            *word = (key << 32) | at;
        }
        let length = self.packed.len();
        if is_by_digits(length, kept) {
            self.by_digits(bytes);
        } else if kept < length / 8 {
            if kept > 0 {
                self.packed.select_nth_unstable(kept - 1);
            }
            self.packed[..kept].sort_unstable();
        } else {
            self.packed.sort_unstable();
        }
        &self.packed[..kept]
    }

    /// Sorts by the digits of the keys, the lowest first: each pass keeps the order of equal
    /// digits.
    fn by_digits(&mut self, bytes: usize) {
        let mut counts = [[0u32; 256]; 4];
        for v in self.packed.iter() {
            for (digit, counts) in counts[..bytes].iter_mut().enumerate() {
                counts[(v >> (32 + 8 * digit)) as usize & 255] += 1;
            }
        }
        for (digit, counts) in counts[..bytes].iter_mut().enumerate() {
            if counts.iter().any(|count| *count as usize == self.packed.len()) {
                continue;
            }
            let mut next = 0;
            for count in counts.iter_mut() {
                next += std::mem::replace(count, next);
            }
            for v in self.packed.iter() {
                let place = &mut counts[(v >> (32 + 8 * digit)) as usize & 255];
                self.other[*place as usize] = *v;
                *place += 1;
            }
            std::mem::swap(&mut self.packed, &mut self.other);
        }
    }
}

/// The first `kept` of some keys, each with its position.
fn wide(pairs: &mut [[u64; 2]], kept: usize, keys: impl Iterator<Item = u64>) -> &[[u64; 2]] {
    for (pair, (key, at)) in pairs.iter_mut().zip(keys.zip(0u64..)) {
        *pair = [key, at];
    }
    if kept < pairs.len() / 8 && kept > 0 {
        pairs.select_nth_unstable(kept - 1);
        pairs[..kept].sort_unstable();
    } else {
        pairs.sort_unstable();
    }
    &pairs[..kept]
}
