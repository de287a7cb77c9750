//! Convolutions, pooling, norms and interpolation of random shapes and parameters: compiled code
//! against the interpreter, bit by bit, on several numbers of threads and every kind of vectors,
//! with gradients. And what they refuse.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::dice::Dice;
use tracecast_ir::functions::PadMode;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Graph, TensorType, Tracer, Var};

/// A program of one function of `x`, and the gradients of what it reads.
fn program(dice: &mut Dice) -> Result<(String, Graph), String> {
    let axes = 1 + dice.below(3);
    let dtype = dice.pick(&[DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64]);
    let most = [70, 24, 9][axes - 1];
    let sizes: Vec<i64> = (0..axes).map(|_| 1 + dice.below(most) as i64).collect();
    let channels = 1 + dice.below(4) as i64;
    let shape = [&[1 + dice.below(3) as i64, channels][..], &sizes].concat();
    let shape: Vec<usize> = shape.into_iter().map(|n| n as usize).collect();
    let t = Tracer::new("images");
    let x = t.input("x", TensorType::new(dtype, shape.as_slice()));
    let (what, y, weight) = function(dice, &t, x, &sizes, channels);
    let wide = y.to(if dtype == DType::F64 { dtype } else { DType::F32 });
    let loss = wide.mul(wide).sum(());
    t.output("y", y);
    let read: Vec<Var<'_>> = [x].into_iter().chain(weight).collect();
    for (i, gradient) in t.grad(loss, &read).into_iter().enumerate() {
        t.output(&format!("g{i}"), gradient);
    }
    let what = format!("{what} of {}", x.ty());
    t.finish().map(|graph| (what.clone(), graph)).map_err(|error| format!("{what}: {error}"))
}

fn function<'t>(
    dice: &mut Dice,
    t: &'t Tracer,
    x: Var<'t>,
    sizes: &[i64],
    channels: i64,
) -> (String, Var<'t>, Option<Var<'t>>) {
    let axes = sizes.len();
    let mut each = |from: i64, count: usize| -> Vec<i64> {
        (0..axes).map(|_| from + dice.below(count) as i64).collect()
    };
    let (kernel, stride, dilation) = (each(1, 4), each(1, 3), each(1, 2));
    let to = each(1, 12);
    let reach = |i: usize| dilation[i] * (kernel[i] - 1) + 1;
    let padding: Vec<i64> =
        (0..axes).map(|i| dice.below(reach(i) as usize / 2 + 1) as i64).collect();
    let (ceil, counts) = (dice.chance(30), dice.chance(50));
    let corners = dice.chance(50);
    match dice.below(7) {
        0 => {
            let y = match axes {
                1 => x.max_pool1d(&kernel, &stride, &padding, &dilation, ceil),
                2 => x.max_pool2d(&kernel, &stride, &padding, &dilation, ceil),
                _ => x.max_pool3d(&kernel, &stride, &padding, &dilation, ceil),
            };
            (format!("max_pool {kernel:?} {stride:?} {padding:?} {dilation:?} {ceil}"), y, None)
        }
        1 => {
            let padding: Vec<i64> =
                kernel.iter().map(|k| dice.below(*k as usize / 2 + 1) as i64).collect();
            let y = match axes {
                1 => x.avg_pool1d(&kernel, &stride, &padding, ceil, counts),
                2 => x.avg_pool2d(&kernel, &stride, &padding, ceil, counts, None),
                _ => x.avg_pool3d(&kernel, &stride, &padding, ceil, counts, None),
            };
            (format!("avg_pool {kernel:?} {stride:?} {padding:?} {ceil} {counts}"), y, None)
        }
        2 => {
            let y = match (axes, counts) {
                (1, true) => x.adaptive_avg_pool1d(&to),
                (2, true) => x.adaptive_avg_pool2d(&to),
                (3, true) => x.adaptive_avg_pool3d(&to),
                (1, _) => x.adaptive_max_pool1d(&to),
                (2, _) => x.adaptive_max_pool2d(&to),
                _ => x.adaptive_max_pool3d(&to),
            };
            (format!("adaptive pool {to:?} {counts}"), y, None)
        }
        3 => {
            let norm = match counts {
                true => x.batch_norm(None, None, None, None, true, 1e-3),
                false => x.group_norm(None, None, channels, 1e-3),
            };
            (format!("norm {counts}"), norm, None)
        }
        4 => {
            let weight = [&[2, channels][..], &kernel].concat();
            let weight: Vec<usize> = weight.into_iter().map(|n| n as usize).collect();
            let weight = t.input("w", TensorType::new(x.dtype(), weight.as_slice()));
            let y = match axes {
                1 => x.conv1d(weight, None, &stride, &padding, &dilation, None, false),
                2 => x.conv2d(weight, None, &stride, &padding, &dilation, None, false),
                _ => x.conv3d(weight, None, &stride, &padding, &dilation, None, false),
            };
            (format!("conv {kernel:?} {stride:?} {padding:?} {dilation:?}"), y, Some(weight))
        }
        5 => {
            let around: Vec<i64> = (0..2 * axes).map(|_| dice.below(3) as i64).collect();
            let mode = dice.pick(&[PadMode::Replicate, PadMode::Constant(1.5)]);
            (format!("pad {around:?} {mode:?}"), x.pad_last(&around, mode), None)
        }
        _ => {
            let modes = [&["linear"][..], &["bilinear", "bicubic"], &["trilinear"]][axes - 1];
            let modes = [modes, &["nearest", "nearest-exact", "area"]].concat();
            let mode = dice.pick(&modes);
            let takes = !["nearest", "nearest-exact", "area"].contains(&mode);
            let smooth = axes == 2 && takes && dice.chance(40);
            let by = 0.3 + 2.5 * (dice.unit() + 1.0) / 2.0;
            let fits = sizes.iter().all(|n| *n as f64 * by >= 1.0) && dice.chance(40);
            let by = if dice.chance(50) { 2.0 } else { by };
            let (size, factor) = if fits { (vec![], vec![by]) } else { (to, vec![]) };
            let corners = takes.then_some(corners);
            let y = x.interpolate(&size, &factor, mode, corners, false, smooth);
            (format!("{mode} {size:?} {factor:?} {corners:?} {smooth}"), y, None)
        }
    }
}

#[test]
fn random_shapes_and_parameters_agree_with_the_interpreter() {
    let cpus = support::cpus();
    let mut dice = Dice::new(14);
    let (mut compared, mut refused, mut failures) = (0, 0, Vec::new());
    for seed in 0..160 {
        let (what, graph) = match program(&mut dice) {
            Ok(made) => made,
            // Windows that do not fit.
            Err(why) if why.contains("do not fit") => {
                refused += 1;
                continue;
            }
            Err(why) => panic!("{why}"),
        };
        let inputs = support::inputs(&graph, seed);
        let (reference, fused) = support::lowered(graph).unwrap_or_else(|e| panic!("{what}: {e}"));
        let wanted =
            support::expected(&reference, &inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (cpu, device) in &cpus {
            match support::computed(&fused, device.clone(), &inputs) {
                Ok(found) => failures.extend(
                    support::difference(&found, &wanted).map(|d| format!("{what} on {cpu}: {d}")),
                ),
                Err(why) => failures.push(format!("{what} on {cpu}: {why}")),
            }
            compared += 1;
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {compared} differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(compared > 900 && refused > 0, "{compared} compared, {refused} refused");
}

/// What recording a function of a tensor is refused with.
fn refusal(shape: &[usize], body: impl FnOnce(Var<'_>) -> Var<'_>) -> String {
    let t = Tracer::new("refused");
    t.output("y", body(t.input("x", TensorType::new(DType::F32, shape))));
    t.finish().unwrap_err().to_string()
}

#[test]
fn what_makes_no_image_is_refused_by_the_functions() {
    let images = [1, 4, 6, 6];
    let cases = [
        (
            refusal(&images, |x| x.interpolate(&[], &[], "nearest", None, false, false)),
            "either `size`",
        ),
        (
            refusal(&images, |x| x.interpolate(&[3], &[2.0], "nearest", None, false, false)),
            "either `size`",
        ),
        (
            refusal(&images, |x| x.interpolate(&[3, 3, 3], &[], "nearest", None, false, false)),
            "one number or 2",
        ),
        (
            refusal(&images, |x| x.interpolate(&[3], &[], "linear", None, false, false)),
            "no `mode` \"linear\" over 2",
        ),
        (
            refusal(&images, |x| x.interpolate(&[3], &[], "nearest", Some(true), false, false)),
            "`align_corners`",
        ),
        (
            refusal(&images, |x| x.interpolate(&[3], &[], "nearest", None, false, true)),
            "`antialias`",
        ),
        (
            refusal(&[1, 2, 3], |x| x.affine_grid(&[1, 1, 1 << 40, 2], false)),
            "each from 1 to 4194304",
        ),
        (
            refusal(&[1, 3, 4], |x| x.affine_grid(&[1, 1, 1 << 22, 1 << 22, 1 << 22], false)),
            "overflows",
        ),
        (
            refusal(&images, |x| x.interpolate(&[3], &[], "nearest", None, true, false)),
            "asks for a `scale_factor`",
        ),
        (
            refusal(&images, |x| x.interpolate(&[], &[0.1], "nearest", None, false, false)),
            "leaves no size",
        ),
        (
            refusal(&images, |x| x.interpolate(&[], &[f64::NAN], "nearest", None, false, false)),
            "leaves no size",
        ),
        (
            refusal(&images, |x| x.interpolate(&[], &[1e300], "nearest", None, false, false)),
            "leaves no size",
        ),
        (
            refusal(&[4, 6], |x| x.interpolate(&[3], &[], "nearest", None, false, false)),
            "one to three axes",
        ),
        (refusal(&[1, 2, 3], |x| x.affine_grid(&[1, 1, 0, 4], false)), "`size` has examples"),
        (refusal(&[2, 2, 3], |x| x.affine_grid(&[1, 1, 4, 4], false)), "for `size`"),
        (refusal(&images, |x| x.pixel_shuffle(3)), "4 is no multiple of 9"),
        (refusal(&images, |x| x.pixel_shuffle(i64::MAX)), "too large"),
        (refusal(&images, |x| x.pixel_unshuffle(4)), "6 is no multiple of 4"),
        (refusal(&images, |x| x.channel_shuffle(3)), "4 is no multiple of 3"),
        (refusal(&images, |x| x.max_pool2d([9], [], [], [], false)), "do not fit"),
    ];
    for (found, wanted) in cases {
        assert!(found.contains(wanted) && found.contains("images.rs"), "{wanted:?} in {found}");
    }
}
