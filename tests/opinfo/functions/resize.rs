//! Interpolation, places of a grid, and channels as pixels.

use crate::arguments::{Arguments, Bound, number};
use crate::calls::Called;
use crate::cases::Arg;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    let made = || {
        Ok(vec![match name {
            "grid_sample" => {
                let (x, grid) = (a.x()?, a.tensor(1, "grid")?);
                let mode = a.text(2, "mode")?.unwrap_or("bilinear");
                let outside = a.text(3, "padding_mode")?.unwrap_or("zeros");
                x.grid_sample(grid, mode, outside, a.flag(4, "align_corners")?.unwrap_or(false))
            }
            "pixel_shuffle" => a.x()?.pixel_shuffle(a.int(1, "upscale_factor")?),
            "pixel_unshuffle" => a.x()?.pixel_unshuffle(a.int(1, "downscale_factor")?),
            "channel_shuffle" => a.x()?.channel_shuffle(a.int(1, "groups")?),
            _ => return interpolated(name, a),
        }])
    };
    const NAMES: &[&str] = names! {
        "interpolate" "upsample_nearest" "upsample_bilinear" "grid_sample" "pixel_shuffle"
        "pixel_unshuffle" "channel_shuffle"
    };
    NAMES.contains(&name).then(made)
}

fn interpolated<'t>(name: &str, a: &Arguments<'_, 't>) -> Called<'t> {
    let size = a.opt_ints(1, "size")?.unwrap_or_default();
    let factor = match a.get(2, "scale_factor") {
        None => Vec::new(),
        Some(Bound::Plain(arg)) => numbers(arg).ok_or("takes numbers `scale_factor`")?,
        Some(_) => return Err("takes numbers `scale_factor`".to_owned()),
    };
    let (mode, align_corners) = match name {
        "upsample_nearest" => ("nearest", None),
        "upsample_bilinear" => ("bilinear", Some(true)),
        _ => (a.text(3, "mode")?.unwrap_or("nearest"), a.flag(4, "align_corners")?),
    };
    let recomputed = a.flag(5, "recompute_scale_factor")?.unwrap_or(false);
    let antialias = a.flag(6, "antialias")?.unwrap_or(false);
    Ok(vec![a.x()?.interpolate(&size, &factor, mode, align_corners, recomputed, antialias)])
}

fn numbers(arg: &Arg) -> Option<Vec<f64>> {
    match arg {
        Arg::List(list) | Arg::Tuple(list) => list.iter().map(number).collect(),
        arg => Some(vec![number(arg)?]),
    }
}
