//! Pooling: [`MaxPool1d`] to [`MaxPool3d`], [`AvgPool1d`] to [`AvgPool3d`], their adaptive forms,
//! [`LpPool1d`] to [`LpPool3d`] and [`MaxUnpool1d`] to [`MaxUnpool3d`].

use crate::nn::{Context, Layer, Module};
use crate::setters::setters;
use tracecast_ir::Var;
use tracecast_ir::ops::pool::Pools;

/// Windows as pooling has them.
#[derive(Clone, Debug, PartialEq)]
struct Windows<const AXES: usize> {
    kernel: [i64; AXES],
    stride: [i64; AXES],
    padding: [i64; AXES],
    dilation: [i64; AXES],
    ceil: bool,
}

impl<const AXES: usize> Windows<AXES> {
    fn new(kernel: [i64; AXES]) -> Self {
        let (padding, dilation) = ([0; AXES], [1; AXES]);
        Windows { kernel, stride: kernel, padding, dilation, ceil: false }
    }
}

macro_rules! settings {
    () => {
        setters! {
            /// Windows that move by these steps instead of their size.
            stride(stride: [i64; AXES]) => windows.stride = stride;
            /// With a last window that reaches beyond the operand where one begins within it.
            ceil_mode() => windows.ceil = true;
        }
    };
}

/// The largest element that each window over the last `AXES` axes sees, as PyTorch's `MaxPool1d` to
/// `MaxPool3d`.
///
/// ```
/// use tracecast::nn::{Conv2d, MaxPool2d, Relu, Sequential};
/// let block = Sequential::new().then(Conv2d::new(1, 8, [3, 3])).then(Relu).then(MaxPool2d::new([2, 2]));
/// # let _ = block;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MaxPool<const AXES: usize> {
    windows: Windows<AXES>,
}

/// Largest elements along one axis.
pub type MaxPool1d = MaxPool<1>;
/// Largest elements of images.
pub type MaxPool2d = MaxPool<2>;
/// Largest elements of volumes.
pub type MaxPool3d = MaxPool<3>;

impl<const AXES: usize> MaxPool<AXES> {
    /// With windows of that size, which move by it.
    pub fn new(kernel: [i64; AXES]) -> Self {
        MaxPool { windows: Windows::new(kernel) }
    }

    settings!();

    setters! {
        /// Positions before and behind each axis, which are smaller than everything.
        padding(padding: [i64; AXES]) => windows.padding = padding;
        /// Windows whose positions are so far apart.
        dilation(dilation: [i64; AXES]) => windows.dilation = dilation;
    }

    /// The largest elements and their positions among those of the last axes: `return_indices` of
    /// PyTorch.
    pub fn with_indices<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> [Var<'t>; 2] {
        let Windows { kernel, stride, padding, dilation, ceil } = &self.windows;
        cx.here(|| {
            let y = match AXES {
                1 => x.max_pool1d(kernel, stride, padding, dilation, *ceil),
                2 => x.max_pool2d(kernel, stride, padding, dilation, *ceil),
                _ => x.max_pool3d(kernel, stride, padding, dilation, *ceil),
            };
            [y, y.results().get(1).copied().unwrap_or(y)]
        })
    }
}

impl<const AXES: usize> Module for MaxPool<AXES> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        self.with_indices(cx, x)[0]
    }
}

/// The mean of what each window over the last `AXES` axes sees, as PyTorch's `AvgPool1d` to
/// `AvgPool3d`.
#[derive(Clone, Debug, PartialEq)]
pub struct AvgPool<const AXES: usize> {
    windows: Windows<AXES>,
    counts_padding: bool,
    divisor: Option<i64>,
}

/// Means along one axis.
pub type AvgPool1d = AvgPool<1>;
/// Means of images.
pub type AvgPool2d = AvgPool<2>;
/// Means of volumes.
pub type AvgPool3d = AvgPool<3>;

impl<const AXES: usize> AvgPool<AXES> {
    /// With windows of that size, which move by it.
    pub fn new(kernel: [i64; AXES]) -> Self {
        AvgPool { windows: Windows::new(kernel), counts_padding: true, divisor: None }
    }

    settings!();

    setters! {
        /// Zeros before and behind each axis.
        padding(padding: [i64; AXES]) => windows.padding = padding;
        /// Means of what is there, without the padding.
        without_counting_padding() => counts_padding = false;
        /// Sums divided by this number; over one axis there is none in PyTorch.
        divisor(divisor: i64) => divisor = Some(divisor);
    }
}

impl<const AXES: usize> Module for AvgPool<AXES> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let Windows { kernel, stride, padding, ceil, .. } = &self.windows;
        let (counts, divisor) = (self.counts_padding, self.divisor);
        cx.here(|| match AXES {
            1 => x.avg_pool1d(kernel, stride, padding, *ceil, counts),
            2 => x.avg_pool2d(kernel, stride, padding, *ceil, counts, divisor),
            _ => x.avg_pool3d(kernel, stride, padding, *ceil, counts, divisor),
        })
    }
}

/// The sizes that an adaptive pooling gives: those of the operand where none is said. A value of no
/// type has none.
fn sizes<const AXES: usize>(x: Var<'_>, given: &[Option<i64>; AXES]) -> Vec<i64> {
    let rank = if x.is_poison() { 0 } else { x.rank() };
    let own = |i: usize| (rank + i).checked_sub(AXES).and_then(|axis| x.size(axis).number());
    given.iter().enumerate().map(|(i, size)| size.or_else(|| own(i)).unwrap_or(1)).collect()
}

/// The largest elements of windows that divide each axis into a number of parts, as PyTorch's
/// `AdaptiveMaxPool1d` to `AdaptiveMaxPool3d`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveMaxPool<const AXES: usize> {
    to: [Option<i64>; AXES],
}

/// Largest elements of parts of one axis.
pub type AdaptiveMaxPool1d = AdaptiveMaxPool<1>;
/// Largest elements of parts of images.
pub type AdaptiveMaxPool2d = AdaptiveMaxPool<2>;
/// Largest elements of parts of volumes.
pub type AdaptiveMaxPool3d = AdaptiveMaxPool<3>;

impl<const AXES: usize> AdaptiveMaxPool<AXES> {
    /// Into a number of parts, or as many as there are positions.
    pub fn new(to: [impl Into<Option<i64>>; AXES]) -> Self {
        AdaptiveMaxPool { to: to.map(Into::into) }
    }

    /// The largest elements and their positions among those of the last axes: `return_indices` of
    /// PyTorch.
    pub fn with_indices<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> [Var<'t>; 2] {
        let to = sizes(x, &self.to);
        cx.here(|| {
            let y = match AXES {
                1 => x.adaptive_max_pool1d(&to),
                2 => x.adaptive_max_pool2d(&to),
                _ => x.adaptive_max_pool3d(&to),
            };
            [y, y.results().get(1).copied().unwrap_or(y)]
        })
    }
}

impl<const AXES: usize> Module for AdaptiveMaxPool<AXES> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        self.with_indices(cx, x)[0]
    }
}

/// The means of windows that divide each axis into a number of parts, as PyTorch's
/// `AdaptiveAvgPool1d` to `AdaptiveAvgPool3d`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveAvgPool<const AXES: usize> {
    to: [Option<i64>; AXES],
}

/// Means of parts of one axis.
pub type AdaptiveAvgPool1d = AdaptiveAvgPool<1>;
/// Means of parts of images.
pub type AdaptiveAvgPool2d = AdaptiveAvgPool<2>;
/// Means of parts of volumes.
pub type AdaptiveAvgPool3d = AdaptiveAvgPool<3>;

impl<const AXES: usize> AdaptiveAvgPool<AXES> {
    /// Into a number of parts, or as many as there are positions.
    pub fn new(to: [impl Into<Option<i64>>; AXES]) -> Self {
        AdaptiveAvgPool { to: to.map(Into::into) }
    }
}

impl<const AXES: usize> Module for AdaptiveAvgPool<AXES> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let to = sizes(x, &self.to);
        cx.here(|| match AXES {
            1 => x.adaptive_avg_pool1d(&to),
            2 => x.adaptive_avg_pool2d(&to),
            _ => x.adaptive_avg_pool3d(&to),
        })
    }
}

/// The root of the sum of the powers of what each window sees, as PyTorch's `LPPool1d` to
/// `LPPool3d`.
#[derive(Clone, Debug, PartialEq)]
pub struct LpPool<const AXES: usize> {
    p: f64,
    windows: Windows<AXES>,
}

/// Roots of sums of powers along one axis.
pub type LpPool1d = LpPool<1>;
/// Roots of sums of powers of images.
pub type LpPool2d = LpPool<2>;
/// Roots of sums of powers of volumes.
pub type LpPool3d = LpPool<3>;

impl<const AXES: usize> LpPool<AXES> {
    /// Of that power, with windows of that size, which move by it.
    pub fn new(p: f64, kernel: [i64; AXES]) -> Self {
        LpPool { p, windows: Windows::new(kernel) }
    }

    settings!();
}

impl<const AXES: usize> Module for LpPool<AXES> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let Windows { kernel, stride, ceil, .. } = &self.windows;
        cx.here(|| x.lp_pool(self.p, kernel, stride, *ceil))
    }
}

/// Elements put back where [`MaxPool::with_indices`] found them, as PyTorch's `MaxUnpool1d` to
/// `MaxUnpool3d`: a layer of the elements and their positions.
#[derive(Clone, Debug, PartialEq)]
pub struct MaxUnpool<const AXES: usize> {
    windows: Windows<AXES>,
    to: Option<[i64; AXES]>,
}

/// Along one axis.
pub type MaxUnpool1d = MaxUnpool<1>;
/// In images.
pub type MaxUnpool2d = MaxUnpool<2>;
/// In volumes.
pub type MaxUnpool3d = MaxUnpool<3>;

impl<const AXES: usize> MaxUnpool<AXES> {
    /// For windows of that size, which moved by it.
    pub fn new(kernel: [i64; AXES]) -> Self {
        MaxUnpool { windows: Windows::new(kernel), to: None }
    }

    setters! {
        /// For windows that moved by these steps.
        stride(stride: [i64; AXES]) => windows.stride = stride;
        /// For that padding.
        padding(padding: [i64; AXES]) => windows.padding = padding;
        /// To axes of these sizes, of several that pooling takes to the same one.
        output_size(to: [i64; AXES]) => to = Some(to);
    }
}

impl<const AXES: usize> Layer for MaxUnpool<AXES> {
    type Input<'t> = (Var<'t>, Var<'t>);
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, (x, indices): Self::Input<'t>) -> Var<'t> {
        let Windows { kernel, stride, padding, .. } = &self.windows;
        let of = sizes(x, &[None; AXES]);
        let own = |i: usize| (of[i] - 1) * stride[i] - 2 * padding[i] + kernel[i];
        let to = self.to.unwrap_or_else(|| std::array::from_fn(own));
        cx.here(|| match AXES {
            1 => x.max_unpool1d(indices, to[0]),
            2 => x.max_unpool2d(indices, to),
            _ => x.max_unpool3d(indices, to),
        })
    }
}
