//! Layers of channels with positions: convolutions and norms.

use super::settings::Settings;
use super::{Made, Played, one};
use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast::nn::*;
use tracecast_ir::Var;

/// The layer, if there is one of that name.
pub(super) fn made(name: &str, s: &Settings<'_>) -> Made {
    let name = name.strip_prefix("nn.")?;
    norm(name, s).or_else(|| convolution(name, s)).or_else(|| pooling(name, s))
}

/// A layer that gives the positions of the largest elements beside them.
struct WithIndices<F>(F);

impl<F: for<'t> Fn(&Context<'t>, Var<'t>) -> [Var<'t>; 2]> Played for WithIndices<F> {
    fn entries(&self) -> Vec<Entry> {
        Vec::new()
    }

    fn play<'t>(&self, cx: &Context<'t>, a: &Arguments<'_, 't>) -> Called<'t> {
        Ok((self.0)(cx, a.tensor(0, "input")?).to_vec())
    }
}

fn with_indices<F>(play: F) -> Result<Box<dyn Played>, String>
where
    F: for<'t> Fn(&Context<'t>, Var<'t>) -> [Var<'t>; 2] + 'static,
{
    Ok(Box::new(WithIndices(play)))
}

fn max_pool<const AXES: usize>(s: &Settings<'_>) -> Result<Box<dyn Played>, String> {
    let layer = MaxPool::<AXES>::new(axes(s, 0, "kernel_size")?.ok_or("takes a `kernel_size`")?);
    let layer = match axes(s, 1, "stride")? {
        Some(stride) => layer.stride(stride),
        None => layer,
    };
    let layer = layer.padding(axes(s, 2, "padding")?.unwrap_or([0; AXES]));
    let layer = layer.dilation(axes(s, 3, "dilation")?.unwrap_or([1; AXES]));
    if s.flag(4, "return_indices", false)? {
        return with_indices(move |cx, x| layer.with_indices(cx, x));
    }
    one(layer)
}

fn avg_pool<const AXES: usize>(s: &Settings<'_>) -> Result<AvgPool<AXES>, String> {
    let layer = AvgPool::<AXES>::new(axes(s, 0, "kernel_size")?.ok_or("takes a `kernel_size`")?);
    let layer = match axes(s, 1, "stride")? {
        Some(stride) => layer.stride(stride),
        None => layer,
    };
    let layer = layer.padding(axes(s, 2, "padding")?.unwrap_or([0; AXES]));
    Ok(match s.int(5, "divisor_override")? {
        Some(divisor) => layer.divisor(divisor),
        None => layer,
    })
}

fn parts<const AXES: usize>(s: &Settings<'_>) -> Result<[Option<i64>; AXES], String> {
    let all = s.opt_ints(0, "output_size")?.ok_or("takes an `output_size`")?;
    match all[..] {
        [one] => Ok([one; AXES]),
        _ => all.try_into().map_err(|_| format!("takes {AXES} sizes")),
    }
}

fn pooling(name: &str, s: &Settings<'_>) -> Made {
    let made = || match name {
        "MaxPool1d" => max_pool::<1>(s),
        "MaxPool2d" => max_pool::<2>(s),
        "MaxPool3d" => max_pool::<3>(s),
        "AvgPool1d" => one(avg_pool::<1>(s)?),
        "AvgPool2d" => one(avg_pool::<2>(s)?),
        "AvgPool3d" => one(avg_pool::<3>(s)?),
        "AdaptiveMaxPool1d" => one(AdaptiveMaxPool::<1>::new(parts(s)?)),
        "AdaptiveMaxPool2d" => one(AdaptiveMaxPool::<2>::new(parts(s)?)),
        "AdaptiveMaxPool3d" => one(AdaptiveMaxPool::<3>::new(parts(s)?)),
        "AdaptiveAvgPool1d" => one(AdaptiveAvgPool::<1>::new(parts(s)?)),
        "AdaptiveAvgPool2d" => one(AdaptiveAvgPool::<2>::new(parts(s)?)),
        _ => one(AdaptiveAvgPool::<3>::new(parts(s)?)),
    };
    name.contains("Pool").then(made)
}

/// A batch norm with the settings of PyTorch's class.
fn batch_norm<const AXES: usize>(s: &Settings<'_>) -> Result<BatchNorm<AXES>, String> {
    let layer = BatchNorm::new(s.size(0, "num_features")?).dtype(s.dtype);
    let layer = layer.eps(s.float(1, "eps")?.unwrap_or(1e-5));
    let layer = match s.given(2, "momentum") {
        false => layer,
        true => match s.float(2, "momentum")? {
            Some(momentum) => layer.momentum(momentum),
            None => layer.cumulative(),
        },
    };
    let layer = if s.flag(3, "affine", true)? { layer } else { layer.without_affine() };
    let is_tracked = s.flag(4, "track_running_stats", true)?;
    Ok(if is_tracked { layer } else { layer.without_running_statistics() })
}

/// The same of an instance norm.
fn instance_norm<const AXES: usize>(s: &Settings<'_>) -> Result<InstanceNorm<AXES>, String> {
    let layer = InstanceNorm::new(s.size(0, "num_features")?).dtype(s.dtype);
    let layer = layer.eps(s.float(1, "eps")?.unwrap_or(1e-5));
    let layer = layer.momentum(s.float(2, "momentum")?.unwrap_or(0.1));
    let layer = if s.flag(3, "affine", false)? { layer.affine() } else { layer };
    let is_tracked = s.flag(4, "track_running_stats", false)?;
    Ok(if is_tracked { layer.running_statistics() } else { layer })
}

fn norm(name: &str, s: &Settings<'_>) -> Made {
    let made = || match name {
        "BatchNorm1d" => one(batch_norm::<1>(s)?),
        "BatchNorm2d" => one(batch_norm::<2>(s)?),
        "BatchNorm3d" => one(batch_norm::<3>(s)?),
        "InstanceNorm1d" => one(instance_norm::<1>(s)?),
        "InstanceNorm2d" => one(instance_norm::<2>(s)?),
        "InstanceNorm3d" => one(instance_norm::<3>(s)?),
        "GroupNorm" => {
            let layer = GroupNorm::new(s.size(0, "num_groups")?, s.size(1, "num_channels")?);
            let layer = layer.dtype(s.dtype).eps(s.float(2, "eps")?.unwrap_or(1e-5));
            let layer = if s.flag(4, "bias", true)? { layer } else { layer.without_bias() };
            one(if s.flag(3, "affine", true)? { layer } else { layer.without_affine() })
        }
        _ => {
            let layer = LocalResponseNorm::new(s.int(0, "size")?.ok_or("takes a `size`")?);
            let layer = layer.alpha(s.float(1, "alpha")?.unwrap_or(1e-4));
            let layer = layer.beta(s.float(2, "beta")?.unwrap_or(0.75));
            one(layer.k(s.float(3, "k")?.unwrap_or(1.0)))
        }
    };
    let is_norm = name.starts_with("BatchNorm") || name.starts_with("InstanceNorm");
    (is_norm || ["GroupNorm", "LocalResponseNorm"].contains(&name)).then(made)
}

/// A number for each axis, given as one for all or one each.
fn axes<const AXES: usize>(
    s: &Settings<'_>,
    at: usize,
    name: &str,
) -> Result<Option<[i64; AXES]>, String> {
    match s.ints(at, name)?.as_deref() {
        None => Ok(None),
        Some([one]) => Ok(Some([*one; AXES])),
        Some(several) => several.try_into().map(Some).map_err(|_| format!("takes {AXES} `{name}`")),
    }
}

/// The channels and the windows of a convolution.
fn shape<const AXES: usize>(s: &Settings<'_>) -> Result<([usize; 2], [usize; AXES]), String> {
    let kernel = axes::<AXES>(s, 2, "kernel_size")?.ok_or("takes a `kernel_size`")?;
    let kernel = kernel.map(|n| usize::try_from(n).unwrap_or(0));
    Ok(([s.size(0, "in_channels")?, s.size(1, "out_channels")?], kernel))
}

fn conv<const AXES: usize>(s: &Settings<'_>) -> Result<Conv<AXES>, String> {
    let ([inputs, outputs], kernel) = shape::<AXES>(s)?;
    let conv = Conv::new(inputs, outputs, kernel).dtype(s.dtype);
    let conv = conv.stride(axes(s, 3, "stride")?.unwrap_or([1; AXES]));
    Ok(match s.text(4, "padding") {
        Ok(Some("same")) => conv.same(),
        _ => conv.padding(axes(s, 4, "padding")?.unwrap_or([0; AXES])),
    })
}

fn transposed<const AXES: usize>(s: &Settings<'_>) -> Result<ConvTranspose<AXES>, String> {
    let ([inputs, outputs], kernel) = shape::<AXES>(s)?;
    let conv = ConvTranspose::new(inputs, outputs, kernel).dtype(s.dtype);
    let conv = conv.stride(axes(s, 3, "stride")?.unwrap_or([1; AXES]));
    Ok(conv.padding(axes(s, 4, "padding")?.unwrap_or([0; AXES])))
}

fn convolution(name: &str, s: &Settings<'_>) -> Made {
    let made = || match name {
        "Conv1d" => one(conv::<1>(s)?),
        "Conv2d" => one(conv::<2>(s)?),
        "Conv3d" => one(conv::<3>(s)?),
        "ConvTranspose1d" => one(transposed::<1>(s)?),
        "ConvTranspose2d" => one(transposed::<2>(s)?),
        _ => one(transposed::<3>(s)?),
    };
    name.starts_with("Conv").then(made)
}
