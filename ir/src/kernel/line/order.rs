//! The order of the elements of a line: keys with their positions are sorted, so that equal ones stay as they came.

use super::Layout;
use super::element::Element;

/// From so many elements on, keys of four bytes are sorted by their digits.
const BY_DIGITS: usize = 64;

/// Writes the positions of the elements of all lines in order.
pub(super) fn run<T: Element>(descending: bool, layout: Layout, x: &[u8], output: &mut [u8]) {
    let Layout { outer, length, inner, kept } = layout;
    let mut sorter = Sorter::default();
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
        if T::KEY_BYTES <= 4 && length <= u32::MAX as usize {
            let packed = sorter.narrow(T::KEY_BYTES, kept, (0..length).map(key));
            packed.iter().enumerate().for_each(|(rank, v)| put(rank, (*v & 0xffff_ffff) as usize));
        } else {
            let pairs = sorter.wide(kept, (0..length).map(key));
            pairs.iter().enumerate().for_each(|(rank, v)| put(rank, v.1));
        }
    }
}

/// Memory that lines share.
#[derive(Default)]
struct Sorter {
    packed: Vec<u64>,
    other: Vec<u64>,
    pairs: Vec<(u64, usize)>,
}

impl Sorter {
    /// The first `kept` of some keys of so many bytes, each with its position in the low half.
    fn narrow(&mut self, bytes: usize, kept: usize, keys: impl Iterator<Item = u64>) -> &[u64] {
        self.packed.clear();
        self.packed.extend(keys.zip(0u64..).map(|(key, at)| (key << 32) | at));
        let length = self.packed.len();
        if kept < length / 8 {
            if kept > 0 {
                self.packed.select_nth_unstable(kept - 1);
            }
            self.packed[..kept].sort_unstable();
        } else if length < BY_DIGITS {
            self.packed.sort_unstable();
        } else {
            self.by_digits(bytes);
        }
        &self.packed[..kept]
    }

    /// Sorts by the digits of the keys, the lowest first: each pass keeps the order of equal digits.
    fn by_digits(&mut self, bytes: usize) {
        let mut counts = [[0u32; 256]; 4];
        for v in &self.packed {
            for (digit, counts) in counts[..bytes].iter_mut().enumerate() {
                counts[(v >> (32 + 8 * digit)) as usize & 255] += 1;
            }
        }
        self.other.clear();
        self.other.resize(self.packed.len(), 0);
        for (digit, counts) in counts[..bytes].iter_mut().enumerate() {
            if counts.iter().any(|count| *count as usize == self.packed.len()) {
                continue;
            }
            let mut next = 0;
            for count in counts.iter_mut() {
                next += std::mem::replace(count, next);
            }
            for v in &self.packed {
                let place = &mut counts[(v >> (32 + 8 * digit)) as usize & 255];
                self.other[*place as usize] = *v;
                *place += 1;
            }
            std::mem::swap(&mut self.packed, &mut self.other);
        }
    }

    /// The first `kept` of some keys, each with its position.
    fn wide(&mut self, kept: usize, keys: impl Iterator<Item = u64>) -> &[(u64, usize)] {
        self.pairs.clear();
        self.pairs.extend(keys.zip(0..));
        if kept < self.pairs.len() / 8 && kept > 0 {
            self.pairs.select_nth_unstable(kept - 1);
            self.pairs[..kept].sort_unstable();
        } else {
            self.pairs.sort_unstable();
        }
        &self.pairs[..kept]
    }
}
