//! Interpolation under the arguments of `torch.nn.functional.interpolate`, grids of affine maps,
//! and channels as pixels.

use super::{Made, named};
use crate::ops::elementwise::Elementwise;
use crate::ops::pool::Pools;
use crate::ops::resize::{MOST, Resizes};
use crate::ops::view::Views;
use crate::{Shape, Size, Tracer, Var};

impl<'t> Var<'t> {
    /// Resized along the axes behind the channels, to the sizes `size` or by `scale_factor`, of
    /// which one is empty; each is a number for every axis, or one for all:
    /// [`torch.nn.functional.interpolate`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html).
    ///
    /// `mode` is `nearest`, `nearest-exact`, `linear`, `bilinear`, `trilinear`, `bicubic` or
    /// `area`. With `recompute_scale_factor` places are those of the sizes that the factors make,
    /// rounded down, and not of the factors.
    ///
    /// ```
    /// use tracecast_ir::{DType, Tracer, TensorType};
    /// let t = Tracer::new("double");
    /// let x = t.input("x", TensorType::new(DType::F32, [1, 3, 4, 5]));
    /// let y = x.interpolate(&[], &[2.0], "bilinear", Some(false), false, false);
    /// assert_eq!(y.ty().to_string(), "f32[1, 3, 8, 10]");
    /// ```
    #[track_caller]
    pub fn interpolate(
        self,
        size: &[i64],
        scale_factor: &[f64],
        mode: &str,
        align_corners: Option<bool>,
        recompute_scale_factor: bool,
        antialias: bool,
    ) -> Var<'t> {
        named(self, "interpolate", || {
            let axes = self.rank().saturating_sub(2);
            if !(1..=3).contains(&axes) {
                return Err("takes a batch, channels, and one to three axes".to_owned());
            }
            let has_corners = matches!(mode, "linear" | "bilinear" | "bicubic" | "trilinear");
            if align_corners.is_some() && !has_corners {
                return Err(format!("`align_corners` says nothing about {mode:?}"));
            }
            if antialias && !matches!(mode, "bilinear" | "bicubic") {
                return Err(format!(
                    "`antialias` is for \"bilinear\" and \"bicubic\", found {mode:?}"
                ));
            }
            let (to, scales) = self.sizes_of(axes, size, scale_factor, recompute_scale_factor)?;
            let scales = (!scales.is_empty() && !recompute_scale_factor).then_some(&scales[..]);
            let corners = align_corners.unwrap_or(false);
            Ok(match (mode, axes, antialias) {
                ("nearest", 1, _) => self.upsample_nearest1d(&to, scales),
                ("nearest", 2, _) => self.upsample_nearest2d(&to, scales),
                ("nearest", _, _) => self.upsample_nearest3d(&to, scales),
                ("nearest-exact", 1, _) => self.upsample_nearest_exact1d(&to, scales),
                ("nearest-exact", 2, _) => self.upsample_nearest_exact2d(&to, scales),
                ("nearest-exact", _, _) => self.upsample_nearest_exact3d(&to, scales),
                ("linear", 1, _) => self.upsample_linear1d(&to, corners, scales),
                ("bilinear", 2, false) => self.upsample_bilinear2d(&to, corners, scales),
                ("bilinear", 2, true) => self.upsample_bilinear2d_aa(&to, corners, scales),
                ("trilinear", 3, _) => self.upsample_trilinear3d(&to, corners, scales),
                ("bicubic", 2, false) => self.upsample_bicubic2d(&to, corners, scales),
                ("bicubic", 2, true) => self.upsample_bicubic2d_aa(&to, corners, scales),
                ("area", 1, _) => self.adaptive_avg_pool1d(&to),
                ("area", 2, _) => self.adaptive_avg_pool2d(&to),
                ("area", _, _) => self.adaptive_avg_pool3d(&to),
                _ => return Err(format!("there is no `mode` {mode:?} over {axes} axes")),
            })
        })
    }

    /// The sizes that interpolation makes, and the factor of each axis if there are any.
    fn sizes_of(
        self,
        axes: usize,
        size: &[i64],
        factor: &[f64],
        recomputed: bool,
    ) -> Made<(Vec<i64>, Vec<f64>)> {
        if size.is_empty() == factor.is_empty() {
            return Err("takes either `size` or `scale_factor`".to_owned());
        }
        if recomputed && factor.is_empty() {
            return Err("`recompute_scale_factor` asks for a `scale_factor`".to_owned());
        }
        if !factor.is_empty() {
            let factor = each(factor, axes, "scale_factor")?;
            let new = |(i, factor): (usize, &f64)| {
                let to = super::size(self, 2 + i)? as f64 * factor;
                if !(1.0..9e15).contains(&to) {
                    return Err(format!(
                        "`scale_factor` {factor} leaves no size of axis {}",
                        2 + i
                    ));
                }
                Ok(to as i64)
            };
            let to = factor.iter().enumerate().map(new).collect::<Made<_>>()?;
            return Ok((to, factor));
        }
        Ok((each(size, axes, "size")?, Vec::new()))
    }

    /// At the places of `grid`, whose numbers go from -1 to 1 along each axis:
    /// [`torch.nn.functional.grid_sample`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.grid_sample.html).
    /// The arguments are those of [`GRID_SAMPLER`](crate::ops::resize::GRID_SAMPLER).
    #[track_caller]
    pub fn grid_sample(
        self,
        grid: Var<'t>,
        mode: &str,
        padding_mode: &str,
        align_corners: bool,
    ) -> Var<'t> {
        named(self, "grid_sample", || {
            Ok(self.grid_sampler(grid, Some(mode), Some(padding_mode), align_corners))
        })
    }

    /// The places of a result of that size under affine maps, `[batch, axes, axes + 1]`, one for
    /// each example, for [`grid_sample`](Var::grid_sample):
    /// [`torch.nn.functional.affine_grid`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.affine_grid.html).
    /// `size` begins with examples and channels.
    #[track_caller]
    pub fn affine_grid(self, size: &[i64], align_corners: bool) -> Var<'t> {
        named(self, "affine_grid", || {
            let axes = size.len().saturating_sub(2);
            let examples = size.first().copied().unwrap_or(0);
            let wanted = [examples, axes as i64, axes as i64 + 1].map(Size::from);
            if !(2..=3).contains(&axes) || size.iter().any(|n| !(1..=MOST).contains(n)) {
                return Err(format!(
                    "`size` has examples, channels and two or three axes, each from 1 to {MOST}, found {size:?}"
                ));
            }
            if !self.dtype().is_float() || self.shape()[..] != wanted {
                return Err(format!("takes floats {:?} for `size` {size:?}", &wanted));
            }
            let dtype = self.dtype();
            let maps = self.to(dtype.compute());
            let mut shape = vec![Size::from(examples)];
            shape.extend(size[2..].iter().map(|n| Size::from(*n)));
            shape.push(Size::from(axes as i64));
            let shape = Shape::new(&shape);
            if shape.numel().is_out_of_range() {
                return Err("the element count overflows".to_owned());
            }
            // The column of the map for the axis that many from the last; behind them that of the
            // shift.
            let column = |i: usize| {
                let mut own = vec![Size::from(1); axes + 2];
                (own[0], own[axes + 1]) = (Size::from(examples), Size::from(axes as i64));
                let column = maps.slice(2, i as i64, i as i64 + 1, 1).reshape_to(&Shape::new(&own));
                column.expand_to(&shape)
            };
            let part = |i: usize| {
                let axis = axes - i;
                let places = from_end_to_end(size[axis + 1], align_corners);
                let mut own = vec![1; axes + 2];
                own[axis] = places.len();
                let places = maps.tracer().constant(maps.dtype(), &own, &places);
                places.expand_to(&shape).mul(column(i))
            };
            let sum = (0..axes).map(part).reduce(|sum, part| sum.add(part));
            Ok(sum.map_or(maps, |sum| sum.add(column(axes))).to(dtype))
        })
    }

    /// Channels as pixels, `[…, C·r², H, W]` as `[…, C, H·r, W·r]`:
    /// [`torch.nn.functional.pixel_shuffle`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.pixel_shuffle.html).
    #[track_caller]
    pub fn pixel_shuffle(self, upscale_factor: i64) -> Var<'t> {
        named(self, "pixel_shuffle", || {
            let (r, rank) = (upscale_factor, self.rank());
            self.pixels(r)?;
            let channels = self.size(rank - 3);
            let all = r.checked_mul(r).ok_or("the factor is too large")?;
            multiple(self.tracer(), channels, all)?;
            let x = self.unflatten(-3, &[-1, r, r]);
            // [.., c, r1, r2, h, w] to [.., c, h, r1, w, r2]
            Ok(x.last_moved([0, 3, 1, 4, 2]).flatten(-2, -1).flatten(-3, -2))
        })
    }

    /// Pixels as channels, `[…, C, H·r, W·r]` as `[…, C·r², H, W]`:
    /// [`torch.nn.functional.pixel_unshuffle`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.pixel_unshuffle.html).
    #[track_caller]
    pub fn pixel_unshuffle(self, downscale_factor: i64) -> Var<'t> {
        named(self, "pixel_unshuffle", || {
            let (r, rank) = (downscale_factor, self.rank());
            self.pixels(r)?;
            for axis in [rank - 2, rank - 1] {
                multiple(self.tracer(), self.size(axis), r)?;
            }
            let x = self.unflatten(-1, &[-1, r]).unflatten(-3, &[-1, r]);
            // [.., c, h, r1, w, r2] to [.., c, r1, r2, h, w]
            Ok(x.last_moved([0, 2, 4, 1, 3]).flatten(-5, -3))
        })
    }

    /// The channels of each group taken in turn, channel `i·C + j` of `[N, g·C, …]` at `j·g + i`:
    /// [`torch.channel_shuffle`](https://docs.pytorch.org/docs/stable/generated/torch.nn.ChannelShuffle.html).
    #[track_caller]
    pub fn channel_shuffle(self, groups: i64) -> Var<'t> {
        named(self, "channel_shuffle", || {
            if self.rank() < 3 || groups < 1 {
                return Err(format!(
                    "takes a batch, channels in {groups} groups and what they have"
                ));
            }
            multiple(self.tracer(), self.size(1), groups)?;
            Ok(self.unflatten(1, &[groups, -1]).transpose(1, 2).flatten(1, 2))
        })
    }

    /// An error unless there are channels, rows and columns.
    fn pixels(self, factor: i64) -> Made<()> {
        if self.rank() < 3 || factor < 1 {
            return Err(format!(
                "takes at least 3 axes and a factor of at least 1, found {factor}"
            ));
        }
        Ok(())
    }

    /// The last five axes in that order.
    fn last_moved(self, order: [i64; 5]) -> Var<'t> {
        let first = self.rank() as i64 - 5;
        let order = order.map(|axis| first + axis);
        self.permute((0..first).chain(order).collect::<Vec<_>>())
    }
}

/// A number for each axis, given as one for all or one each.
fn each<T: Copy + std::fmt::Debug>(list: &[T], axes: usize, name: &str) -> Made<Vec<T>> {
    match list {
        [one] => Ok(vec![*one; axes]),
        each if each.len() == axes => Ok(each.to_vec()),
        each => Err(format!("`{name}` takes one number or {axes}, found {each:?}")),
    }
}

fn multiple(t: &Tracer, size: Size, of: i64) -> Made<()> {
    match t.holds(size.multiple_of(of)) {
        true => Ok(()),
        false => Err(format!("{size} is no multiple of {of}")),
    }
}

/// Evenly spaced places from -1 to 1: middles of elements, or the ends themselves.
fn from_end_to_end(size: i64, align_corners: bool) -> Vec<f64> {
    if size == 1 {
        return vec![0.0];
    }
    let (size, end) =
        (size as f64, if align_corners { 1.0 } else { (size - 1) as f64 / size as f64 });
    (0..size as i64).map(|i| (2.0 * i as f64 / (size - 1.0) - 1.0) * end).collect()
}
