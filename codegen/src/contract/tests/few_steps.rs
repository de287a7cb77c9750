//! Images of few steps: vectors go along lines of columns.

use super::super::{Axis, Bound, Correlation, Cpu, Elements, Image, Scratch, Seen, Source};
use super::{SEEN, Tensor, images, sum};
use tracecast_ir::DType;

/// Single channels have the sums of windows.
pub(super) fn few_steps(
    x: &Tensor,
    all: &[f64],
    [k, n]: [usize; 2],
    [stride, dilation]: [isize; 2],
    scratch: &mut Scratch,
) {
    const K: usize = 9;
    let Tensor { dtype, round, .. } = *x;
    let left = Tensor::new(dtype, SEEN * K, 43, (K as isize, 1));
    let seen = windows_over(1, stride, dilation);
    let base = x.bytes.as_ptr().wrapping_offset(-2 * (21 + 1) * dtype.bytes() as isize);
    let b = Source::Windows { of: Elements { base, dtype, round }, seen: &seen };
    let windows = Image::of(&seen, None).expect("windows of a convolution").windows()[0];
    let at = |batch: usize| [(batch % 3 * K) as isize, (batch * 5 * 21) as isize];
    assert!(k >= K, "there is a channel");
    for cpu in &Cpu::all() {
        let a = left.source();
        let work = Correlation { period: 3, ..images::correlation(cpu, [1, K], [a, b]) };
        let parts = [0..windows / 3, windows / 3..windows];
        let each = parts.clone().map(|part| (0..SEEN, part));
        let found = images::handed_on(&work, each, &at, [SEEN, n], scratch);
        let each = images::stored(&work, (0..SEEN, parts), &at, n, scratch);
        assert_eq!(found, each, "stored as they are by {cpu:?}");
        let whole = (0..SEEN, std::array::from_fn::<_, 1, _>(|_| 0..windows));
        let whole = images::stored(&work, whole, &at, n, scratch);
        assert_eq!(found, whole, "stored as they are, at once, by {cpu:?}");
        for (i, bits) in found.into_iter().enumerate() {
            let (batch, column) = (i / n, i % n);
            let right = |p: usize| all[(p + batch * 9) * n + column];
            let want = sum(DType::F32, K, |p| left.get(batch % 3, p), right);
            assert_eq!(bits.map(u64::from), Some(want), "channel {batch}, {column}, {cpu:?}");
        }
    }
}

/// The view of 3 × 3 windows over `channels` channels.
pub(super) fn windows_over(channels: usize, stride: isize, dilation: isize) -> Seen {
    let (height, width, around) = (5, 21, 2);
    let reach = |size: isize| (size + 2 * around - 2 * dilation.abs() - 1) / stride + 1;
    let (down, across) = (reach(height as isize), reach(width as isize));
    let axis = |extent: isize, stride: isize, bounded: [isize; 2]| Axis {
        extent: extent as usize,
        stride,
        bounded: [bounded[0], bounded[1], 0],
    };
    let w = width as isize;
    let rows = [
        axis(channels as isize, w * height as isize, [0, 0]),
        axis(3, dilation * w, [dilation, 0]),
        axis(3, dilation, [0, dilation]),
    ];
    let columns = [axis(down, stride * w, [stride, 0]), axis(across, stride, [0, stride])];
    let bound = |extent: usize| Bound { offset: -around, extent: extent as isize };
    Seen::new(&rows, &columns, [bound(height), bound(width), Bound::default()])
}
