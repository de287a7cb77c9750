//! Gradients of other table, as PyTorch's backward graphs call them.

use super::entry::{reduction, unless};
use super::norm::weight_norm;
use super::table;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Results, Var};

table! {
    "_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor" =>
        (dy: tensor, y: tensor, dim: int, dtype: dtype) dy.softmax_backward(y, dim).to(dtype);
    "_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor" =>
        (dy: tensor, y: tensor, dim: int, dtype: dtype) dy.log_softmax_backward(y, dim).to(dtype);
    "gelu_backward(Tensor grad_output, Tensor self, *, str approximate=\"none\") -> Tensor" =>
        (dy: tensor, x: tensor, approximate: text) dy.gelu_backward(x, (approximate != "none").then_some(&approximate));
    "sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor" =>
        (dy: tensor, y: tensor) dy.sigmoid_backward(y);
    "tanh_backward(Tensor grad_output, Tensor output) -> Tensor" =>
        (dy: tensor, y: tensor) dy.tanh_backward(y);
    "silu_backward(Tensor grad_output, Tensor self) -> Tensor" =>
        (dy: tensor, x: tensor) dy.silu_backward(x);
    "hardswish_backward(Tensor grad_output, Tensor self) -> Tensor" =>
        (dy: tensor, x: tensor) dy.hardswish_backward(x);
    "hardsigmoid_backward(Tensor grad_output, Tensor self) -> Tensor" =>
        (dy: tensor, x: tensor) of(dy, &[x], |x| x[0].hardsigmoid());
    "leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, bool self_is_result) -> Tensor" =>
        (dy: tensor, x: tensor, slope: float, _is_result: any) x.gt(0.0).choose(dy, dy.mul(slope));
    "elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result, Tensor self_or_result) -> Tensor" =>
        (dy: tensor, alpha: float, scale: float, input: float, is_result: flag, x: tensor) elu(dy, x, [alpha, scale, input], is_result);
    "softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor" =>
        (dy: tensor, x: tensor, beta: float, threshold: float) of(dy, &[x], |x| x[0].softplus(unless(beta, 1.0), unless(threshold, 20.0)));
    "threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor" =>
        (dy: tensor, x: tensor, threshold: float) x.le(threshold).choose(0.0, dy);
    "_prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, Tensor)" =>
        (dy: tensor, x: tensor, weight: tensor) [x.gt(0.0).choose(dy, dy.mul(weight)), x.gt(0.0).choose(0.0, dy.mul(x))];
    "native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor" =>
        (dy: tensor, mask: tensor, scale: float) dy.mul(mask.to(dy.dtype())).mul(scale);
    "embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor" =>
        (dy: tensor, indices: tensor, rows: size, padding: int, scale: flag) dy.embedding_backward(indices, rows, (padding >= 0).then_some(padding), scale);
    "native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)" =>
        (dy: tensor, x: tensor, shape: sizes, mean: tensor, rstd: tensor, weight: some_tensor, _bias: any, mask: flags) masked(dy.layer_norm_backward(x, mean.to(x.dtype().compute()), rstd.to(x.dtype().compute()), weight, &shape).results(), &mask);
    "native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)" =>
        (dy: tensor, x: tensor, mean: tensor, rstd: tensor, weight: some_tensor, _n: any, _c: any, _hw: any, groups: int, mask: flags) masked(dy.group_norm_backward(x, mean.to(x.dtype().compute()), rstd.to(x.dtype().compute()), weight, groups).results(), &mask);
    "native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)" =>
        (dy: tensor, x: tensor, weight: some_tensor, mean: some_tensor, variance: some_tensor, own_mean: some_tensor, rstd: some_tensor, train: flag, eps: float, mask: flags) masked(batch_norm(dy, x, weight, [mean, variance], [own_mean, rstd], train, eps)?, &mask);
    "nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor" =>
        (dy: tensor, x: tensor, y: tensor, weight: some_tensor, over: int, ignored: int, total: tensor) dy.nll_loss_backward(y, total, weight, x.size(1), Some(reduction(over)?), ignored);
    "nll_loss2d_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor" =>
        (dy: tensor, x: tensor, y: tensor, weight: some_tensor, over: int, ignored: int, total: tensor) dy.nll_loss_backward(y, total, weight, x.size(1), Some(reduction(over)?), ignored);
    "mse_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor" =>
        (dy: tensor, x: tensor, y: tensor, over: int) loss(dy, x, over, |x, over| x.mse_loss(y, Some(over)))?;
    "smooth_l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float beta) -> Tensor" =>
        (dy: tensor, x: tensor, y: tensor, over: int, beta: float) loss(dy, x, over, |x, over| x.smooth_l1_loss(y, Some(over), beta))?;
    "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)" =>
        (dy: tensor, x: tensor, weight: tensor, bias: some_ints, stride: ints, padding: ints, dilation: ints, transposed: flag, output: ints, groups: int, mask: flags) convolution(dy, [x, weight], bias.is_some(), &mask, |x, weight| x.convolution(weight, None, &stride, &padding, &dilation, transposed, &output, groups));
    "max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor" =>
        (dy: tensor, x: tensor, kernel: ints, stride: ints, padding: ints, dilation: ints, ceil: flag, _indices: any) of(dy, &[x], |x| x[0].max_pool2d(&kernel, &stride, &padding, &dilation, ceil));
    "avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor" =>
        (dy: tensor, x: tensor, kernel: ints, stride: ints, padding: ints, ceil: flag, counts: flag, divisor: some_int) of(dy, &[x], |x| x[0].avg_pool2d(&kernel, &stride, &padding, ceil, counts, divisor));
    "_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor" =>
        (dy: tensor, x: tensor) of(dy, &[x], |x| x[0].adaptive_avg_pool2d(last_two(dy)));
    "adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor" =>
        (dy: tensor, x: tensor, _indices: any) of(dy, &[x], |x| x[0].adaptive_max_pool2d(last_two(dy)));
    "_weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms, int dim) -> (Tensor, Tensor)" =>
        (dy: tensor, v: tensor, g: tensor, _norms: any, dim: int) both(dy, [v, g], |v, g| weight_norm(v, g, dim).0);
    "select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> Tensor" =>
        call (dy: tensor, sizes: sizes, dim: int, at: int) call.filled(&sizes, dy.dtype(), 0.0).select_scatter(dy, dim, at);
    "slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, SymInt step) -> Tensor" =>
        call (dy: tensor, sizes: sizes, dim: int, start: int, end: int, step: int) call.filled(&sizes, dy.dtype(), 0.0).slice_scatter(dy, dim, Some(start), Some(end), step);
}

/// The gradients of a function from that of its result: the function is recorded and
/// differentiated.
fn gradients<'t>(
    dy: Var<'t>,
    xs: &[Var<'t>],
    forward: impl FnOnce(&[Var<'t>]) -> Var<'t>,
) -> Vec<Var<'t>> {
    // The gradient of the result may itself depend on the operands.
    let xs: Vec<Var<'t>> = xs.to_vec();
    let loss = forward(&xs).mul(dy.detach()).sum(());
    dy.tracer().grad(loss, &xs)
}

fn of<'t>(dy: Var<'t>, xs: &[Var<'t>; 1], forward: impl FnOnce(&[Var<'t>]) -> Var<'t>) -> Var<'t> {
    gradients(dy, xs, forward)[0]
}

fn both<'t>(
    dy: Var<'t>,
    xs: [Var<'t>; 2],
    forward: impl FnOnce(Var<'t>, Var<'t>) -> Var<'t>,
) -> Vec<Var<'t>> {
    gradients(dy, &xs, |xs| forward(xs[0], xs[1]))
}

fn loss<'t>(
    dy: Var<'t>,
    x: Var<'t>,
    over: i64,
    forward: impl FnOnce(Var<'t>, &str) -> Var<'t>,
) -> Result<Var<'t>, String> {
    let over = reduction(over)?;
    Ok(of(dy, &[x], |xs| forward(xs[0], over)))
}

/// Those results that are asked for; the others are zeros.
fn masked<'t>(results: Results<'t>, mask: &[bool]) -> Vec<Var<'t>> {
    let wanted = |(at, result): (usize, Var<'t>)| match mask.get(at) {
        Some(false) => result.tracer().zeros_like(result),
        _ => result,
    };
    results.into_iter().enumerate().map(wanted).collect()
}

/// From the operand, or from the result.
fn elu<'t>(dy: Var<'t>, x: Var<'t>, [alpha, scale, input]: [f64; 3], is_result: bool) -> Var<'t> {
    let slope = if is_result {
        x.add(alpha * scale).mul(input)
    } else {
        x.mul(input).exp().mul(alpha * scale * input)
    };
    x.le(0.0).choose(dy.mul(slope), dy.mul(scale))
}

fn batch_norm<'t>(
    dy: Var<'t>,
    x: Var<'t>,
    weight: Option<Var<'t>>,
    running: [Option<Var<'t>>; 2],
    own: [Option<Var<'t>>; 2],
    train: bool,
    eps: f64,
) -> Result<Results<'t>, String> {
    let (mean, variance) = match (train, running, own) {
        (true, _, [Some(mean), Some(rstd)]) => {
            (mean, rstd.to(x.dtype().compute()).square().reciprocal().sub(eps))
        }
        (false, [Some(mean), Some(variance)], _) => (mean, variance),
        _ => return Err("lacks the statistics that it needs".to_owned()),
    };
    // Without a weight PyTorch keeps the statistics of 16 bits in 16 bits.
    let [mean, variance] = [mean, variance].map(|statistic| statistic.to(x.dtype().compute()));
    Ok(dy.batch_norm_backward(x, mean, variance, weight, train, eps).results())
}

fn convolution<'t>(
    dy: Var<'t>,
    xs: [Var<'t>; 2],
    has_bias: bool,
    mask: &[bool],
    forward: impl FnOnce(Var<'t>, Var<'t>) -> Var<'t>,
) -> Vec<Var<'t>> {
    let mut results: Results<'t> = both(dy, xs, forward).into_iter().collect();
    if has_bias {
        let others: Vec<i64> = (0..dy.rank() as i64).filter(|axis| *axis != 1).collect();
        results.push(dy.sum(&others));
    }
    masked(results, mask)
}

/// The sizes of an image.
fn last_two(dy: Var<'_>) -> Vec<i64> {
    dy.shape().iter().skip(dy.rank().saturating_sub(2)).filter_map(|n| n.number()).collect()
}
