//! Pooling, interpolation and sampling of images.

use super::entry::word as named;
use super::table;
use tracecast_ir::Var;
use tracecast_ir::ops::prelude::*;

table! {
    "max_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], int[1] dilation=[1], bool ceil_mode=False) -> Tensor" =>
        (x: tensor, kernel: ints, stride: ints, padding: ints, dilation: ints, ceil: flag) x.max_pool1d(&kernel, &stride, &padding, &dilation, ceil);
    "max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor" =>
        (x: tensor, kernel: ints, stride: ints, padding: ints, dilation: ints, ceil: flag) x.max_pool2d(&kernel, &stride, &padding, &dilation, ceil);
    "max_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> Tensor" =>
        (x: tensor, kernel: ints, stride: ints, padding: ints, dilation: ints, ceil: flag) x.max_pool3d(&kernel, &stride, &padding, &dilation, ceil);
    "max_pool1d_with_indices(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], int[1] dilation=[1], bool ceil_mode=False) -> (Tensor, Tensor)" =>
        (x: tensor, kernel: ints, stride: ints, padding: ints, dilation: ints, ceil: flag) x.max_pool1d(&kernel, &stride, &padding, &dilation, ceil).results();
    "max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)" =>
        (x: tensor, kernel: ints, stride: ints, padding: ints, dilation: ints, ceil: flag) x.max_pool2d(&kernel, &stride, &padding, &dilation, ceil).results();
    "max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)" =>
        (x: tensor, kernel: ints, stride: ints, padding: ints, dilation: ints, ceil: flag) x.max_pool3d(&kernel, &stride, &padding, &dilation, ceil).results();
    "avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], bool ceil_mode=False, bool count_include_pad=True) -> Tensor" =>
        (x: tensor, kernel: ints, stride: ints, padding: ints, ceil: flag, counts: flag) x.avg_pool1d(&kernel, &stride, &padding, ceil, counts);
    "avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor" =>
        (x: tensor, kernel: ints, stride: ints, padding: ints, ceil: flag, counts: flag, divisor: some_int) x.avg_pool2d(&kernel, &stride, &padding, ceil, counts, divisor);
    "avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor" =>
        (x: tensor, kernel: ints, stride: ints, padding: ints, ceil: flag, counts: flag, divisor: some_int) x.avg_pool3d(&kernel, &stride, &padding, ceil, counts, divisor);
    "adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor" =>
        (x: tensor, to: maybe_ints) x.adaptive_avg_pool1d(&sizes(x, 1, &to)?);
    "adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor" =>
        (x: tensor, to: maybe_ints) x.adaptive_avg_pool2d(&sizes(x, 2, &to)?);
    "_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor" =>
        (x: tensor, to: maybe_ints) x.adaptive_avg_pool2d(&sizes(x, 2, &to)?);
    "adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor" =>
        (x: tensor, to: maybe_ints) x.adaptive_avg_pool3d(&sizes(x, 3, &to)?);
    "adaptive_max_pool1d(Tensor self, int[1] output_size) -> (Tensor, Tensor)" =>
        (x: tensor, to: maybe_ints) x.adaptive_max_pool1d(&sizes(x, 1, &to)?).results();
    "adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)" =>
        (x: tensor, to: maybe_ints) x.adaptive_max_pool2d(&sizes(x, 2, &to)?).results();
    "adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)" =>
        (x: tensor, to: maybe_ints) x.adaptive_max_pool3d(&sizes(x, 3, &to)?).results();
    "upsample_nearest1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor" =>
        (x: tensor, size: some_ints, scale: some_floats) resized(x, size, scale, "nearest", None);
    "upsample_nearest2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor" =>
        (x: tensor, size: some_ints, scale: some_floats) resized(x, size, scale, "nearest", None);
    "upsample_nearest3d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor" =>
        (x: tensor, size: some_ints, scale: some_floats) resized(x, size, scale, "nearest", None);
    "_upsample_nearest_exact1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor" =>
        (x: tensor, size: some_ints, scale: some_floats) resized(x, size, scale, "nearest-exact", None);
    "_upsample_nearest_exact2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor" =>
        (x: tensor, size: some_ints, scale: some_floats) resized(x, size, scale, "nearest-exact", None);
    "upsample_linear1d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor" =>
        (x: tensor, size: some_ints, corners: flag, scale: some_floats) resized(x, size, scale, "linear", Some(corners));
    "upsample_bilinear2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor" =>
        (x: tensor, size: some_ints, corners: flag, scale: some_floats) resized(x, size, scale, "bilinear", Some(corners));
    "upsample_trilinear3d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor" =>
        (x: tensor, size: some_ints, corners: flag, scale: some_floats) resized(x, size, scale, "trilinear", Some(corners));
    "upsample_bicubic2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor" =>
        (x: tensor, size: some_ints, corners: flag, scale: some_floats) resized(x, size, scale, "bicubic", Some(corners));
    "_upsample_bilinear2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor" =>
        (x: tensor, size: some_ints, corners: flag, scale: some_floats) x.interpolate(&size.unwrap_or_default(), &scale.unwrap_or_default(), "bilinear", Some(corners), false, true);
    "grid_sampler(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor" =>
        (x: tensor, grid: tensor, mode: int, outside: int, corners: flag) x.grid_sample(grid, named(mode, &["bilinear", "nearest", "bicubic"])?, named(outside, &["zeros", "border", "reflection"])?, corners);
}

/// The sizes of results, where none is that of the operand.
fn sizes(x: Var<'_>, axes: usize, to: &[Option<i64>]) -> Result<Vec<i64>, String> {
    let first = x.rank().checked_sub(axes).ok_or("takes channels with positions")?;
    let own = |i: usize| x.shape().get(first + i).and_then(|n| n.number());
    let sizes = to.iter().enumerate().map(|(i, to)| to.or_else(|| own(i)));
    sizes
        .collect::<Option<_>>()
        .ok_or_else(|| format!("takes sizes that are numbers, of {}", x.ty()))
}

fn resized<'t>(
    x: Var<'t>,
    size: Option<Vec<i64>>,
    scale: Option<Vec<f64>>,
    mode: &str,
    corners: Option<bool>,
) -> Var<'t> {
    let (size, scale) = (size.unwrap_or_default(), scale.unwrap_or_default());
    x.interpolate(&size, &scale, mode, corners, false, false)
}
