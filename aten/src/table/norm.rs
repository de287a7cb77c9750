//! Norms, with the running statistics that they write.

use super::Call;
use super::table;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Size, TensorType, Var};

table! {
    "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enable=True) -> Tensor" =>
        (x: tensor, shape: sizes, weight: some_tensor, bias: some_tensor, eps: float) x.layer_norm(weight, bias, &shape, eps);
    "native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)" =>
        (x: tensor, shape: ints, weight: some_tensor, bias: some_tensor, eps: float) x.native_layer_norm(&shape, weight, bias, eps);
    "rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor" =>
        (x: tensor, shape: sizes, weight: some_tensor, eps: some_float) x.rms_norm(weight, &shape, eps);
    "group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enabled=True) -> Tensor" =>
        (x: tensor, groups: int, weight: some_tensor, bias: some_tensor, eps: float) x.group_norm(weight, bias, groups, eps);
    "native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)" =>
        (x: tensor, weight: some_tensor, bias: some_tensor, _n: any, _c: any, _hw: any, groups: int, eps: float) x.native_group_norm(weight, bias, groups, eps);
    "batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor" =>
        call (x: tensor, weight: some_tensor, bias: some_tensor, mean: some_tensor, variance: some_tensor, training: flag, momentum: float, eps: float) batch_norm(call, x, [weight, bias], [mean, variance], training, momentum, eps);
    "native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)" =>
        call (x: tensor, weight: some_tensor, bias: some_tensor, mean: some_tensor, variance: some_tensor, training: flag, momentum: float, eps: float) native(call, x, [weight, bias], [mean, variance], training, momentum, eps);
    "_native_batch_norm_legit(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, Tensor(b!) running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)" =>
        call (x: tensor, weight: some_tensor, bias: some_tensor, mean: tensor, variance: tensor, training: flag, momentum: float, eps: float) native(call, x, [weight, bias], [Some(mean), Some(variance)], training, momentum, eps);
    "_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)" =>
        (x: tensor, weight: some_tensor, bias: some_tensor, training: flag, _momentum: any, eps: float) x.native_batch_norm([weight, bias], [None, None], training, eps);
    "_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)" =>
        (x: tensor, weight: some_tensor, bias: some_tensor, mean: tensor, variance: tensor, _momentum: any, eps: float) x.native_batch_norm([weight, bias], [Some(mean), Some(variance)], false, eps);
    "_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)" =>
        (x: tensor, weight: some_tensor, bias: some_tensor, mean: tensor, variance: tensor, training: flag, momentum: float, eps: float) functional(x, [weight, bias], [mean, variance], training, momentum, eps);
    "instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool use_input_stats, float momentum, float eps, bool cudnn_enabled) -> Tensor" =>
        call (x: tensor, weight: some_tensor, bias: some_tensor, mean: some_tensor, variance: some_tensor, own: flag, momentum: float, eps: float) instance_norm(call, x, [weight, bias], [mean, variance], own, momentum, eps);
    "_weight_norm(Tensor v, Tensor g, int dim=0) -> Tensor" =>
        (v: tensor, g: tensor, dim: int) weight_norm(v, g, dim).0;
    "_weight_norm_interface(Tensor v, Tensor g, int dim=0) -> (Tensor, Tensor)" =>
        (v: tensor, g: tensor, dim: int) weight_norm(v, g, dim);
}

type Pair<'t> = [Option<Var<'t>>; 2];

/// Running statistics after a batch of `count` elements for each channel, with this mean and this
/// variance.
fn moved<'t>(
    old: Pair<'t>,
    [mean, variance]: [Var<'t>; 2],
    count: Size,
    momentum: f64,
) -> Pair<'t> {
    let new = [mean, variance.unbiased(count)];
    let share = mean.tracer().full(TensorType::scalar(DType::F32), momentum);
    [0, 1].map(|i| old[i].map(|old| old.moved(new[i], share)))
}

fn write<'t>(call: &Call<'_, 't>, moved: Pair<'t>) {
    for (name, value) in ["running_mean", "running_var"].into_iter().zip(moved) {
        if let Some(value) = value {
            call.write(name, value);
        }
    }
}

fn batch_norm<'t>(
    call: &Call<'_, 't>,
    x: Var<'t>,
    [weight, bias]: Pair<'t>,
    running: Pair<'t>,
    training: bool,
    momentum: f64,
    eps: f64,
) -> Var<'t> {
    if !training {
        return x.batch_norm(weight, bias, running[0], running[1], false, eps);
    }
    let y = x.batch_norm(weight, bias, None, None, true, eps);
    if let [y, mean, variance] = y.results()[..] {
        let count = x.ty().numel() / mean.ty().numel();
        write(call, moved(running, [mean, variance], count, momentum));
        return y;
    }
    y
}

fn native<'t>(
    call: &Call<'_, 't>,
    x: Var<'t>,
    scales: Pair<'t>,
    running: Pair<'t>,
    training: bool,
    momentum: f64,
    eps: f64,
) -> Vec<Var<'t>> {
    if training {
        batch_norm(call, x, scales, running, training, momentum, eps);
    }
    x.native_batch_norm(scales, running, training, eps)
}

/// The results, and the running statistics that a call in place would leave.
fn functional<'t>(
    x: Var<'t>,
    scales: Pair<'t>,
    running: [Var<'t>; 2],
    training: bool,
    momentum: f64,
    eps: f64,
) -> Vec<Var<'t>> {
    let mut results = x.native_batch_norm(scales, running.map(Some), training, eps);
    let own = x.batch_norm(scales[0], scales[1], None, None, true, eps).results();
    let after = match own[..] {
        [_, mean, variance] if training => {
            let count = x.ty().numel() / mean.ty().numel();
            moved(running.map(Some), [mean, variance], count, momentum)
        }
        _ => running.map(Some),
    };
    results.extend(after.into_iter().flatten());
    results
}

fn instance_norm<'t>(
    call: &Call<'_, 't>,
    x: Var<'t>,
    [weight, bias]: Pair<'t>,
    running: Pair<'t>,
    own: bool,
    momentum: f64,
    eps: f64,
) -> Var<'t> {
    let given =
        running[0].zip(running[1]).filter(|_| !own).map(|(mean, variance)| [mean, variance]);
    let results = x.instance_norm(weight, bias, given, eps);
    if let ([_, mean, variance], true) = (&results[..], own) {
        let count = x.shape()[2..].iter().product();
        write(call, moved(running, [*mean, *variance], count, momentum));
    }
    results[0]
}

/// `v` with norms `g` over all axes but `dim`, and the norms that it had.
pub(super) fn weight_norm<'t>(v: Var<'t>, g: Var<'t>, dim: i64) -> (Var<'t>, Var<'t>) {
    let rank = v.rank() as i64;
    let dim = if dim < 0 { dim + rank } else { dim };
    let others: Vec<i64> = (0..rank).filter(|axis| *axis != dim).collect();
    let norms = v.vector_norm((&others).keep(), None);
    (v.mul(g.div(norms)), norms)
}
