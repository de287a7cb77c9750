//! Packs buffers that live at different times into one piece of memory.

/// Every buffer starts at a multiple of this many bytes.
pub(crate) const ALIGNMENT: usize = 64;

/// A buffer and the steps during which it holds something, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub(crate) bytes: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Buffer {
    fn meets(&self, other: &Buffer) -> bool {
        self.from <= other.to && other.from <= self.to
    }
}

/// An offset for each buffer, and the size of the whole. Buffers that live at the same time do not
/// overlap.
///
/// The largest buffers are placed first, each into the smallest gap that takes it between those
/// that live at the same time. A whole that is too large for any memory has the size `usize::MAX`,
/// which no device reserves.
pub(crate) fn pack(buffers: &[Buffer]) -> (Vec<usize>, usize) {
    let size = |i: usize| buffers[i].bytes.next_multiple_of(ALIGNMENT);
    let mut order: Vec<usize> = (0..buffers.len()).filter(|&i| buffers[i].bytes > 0).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(size(i)), buffers[i].from));
    let mut offsets = vec![0usize; buffers.len()];
    // The buffers placed so far, by offset.
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let mut best: Option<(usize, usize)> = None;
        let mut end = 0usize;
        for &p in placed.iter().filter(|&&p| buffers[p].meets(&buffers[i])) {
            let gap = offsets[p].saturating_sub(end);
            if gap >= size(i) && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, end));
            }
            end = end.max(offsets[p].saturating_add(size(p)));
        }
        offsets[i] = best.map_or(end, |(_, at)| at);
        total = total.max(offsets[i].saturating_add(size(i)));
        let at = placed.partition_point(|&p| offsets[p] <= offsets[i]);
        placed.insert(at, i);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_used_again() {
        let buffer = |bytes, from, to| Buffer { bytes, from, to };
        let (offsets, total) = pack(&[
            buffer(256, 0, 1),
            buffer(128, 2, 3),
            buffer(100, 2, 2),
            buffer(0, 0, 9),
            buffer(64, 1, 2),
        ]);
        assert_eq!((offsets, total), (vec![0, 0, 128, 0, 256], 320));
    }

    #[test]
    fn live_buffers_never_overlap() {
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..200 {
            let buffers: Vec<Buffer> = (0..random(40))
                .map(|_| {
                    let from = random(20);
                    Buffer { bytes: random(1000), from, to: from + random(8) }
                })
                .collect();
            let (offsets, total) = pack(&buffers);
            for (i, a) in buffers.iter().enumerate().filter(|(_, a)| a.bytes > 0) {
                assert!(offsets[i] % ALIGNMENT == 0 && offsets[i] + a.bytes <= total);
                for (j, b) in buffers
                    .iter()
                    .enumerate()
                    .skip(i + 1)
                    .filter(|(_, b)| b.bytes > 0 && a.meets(b))
                {
                    let apart =
                        offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                    assert!(apart, "{a:?} at {} and {b:?} at {}", offsets[i], offsets[j]);
                }
            }
        }
    }
}
