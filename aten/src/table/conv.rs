//! Convolutions.

use super::table;
use tracecast_ir::ops::prelude::*;

table! {
    "conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] dilation=[1], SymInt groups=1) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor, stride: ints, padding: ints, dilation: ints, groups: int) x.conv1d(weight, bias, &stride, &padding, &dilation, groups, false);
    "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor, stride: ints, padding: ints, dilation: ints, groups: int) x.conv2d(weight, bias, &stride, &padding, &dilation, groups, false);
    "conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor, stride: ints, padding: ints, dilation: ints, groups: int) x.conv3d(weight, bias, &stride, &padding, &dilation, groups, false);
    "conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], str padding=\"valid\", SymInt[1] dilation=[1], SymInt groups=1) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor, stride: ints, padding: text, dilation: ints, groups: int) x.conv1d(weight, bias, &stride, [], &dilation, groups, same(&padding)?);
    "conv2d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], str padding=\"valid\", SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor, stride: ints, padding: text, dilation: ints, groups: int) x.conv2d(weight, bias, &stride, [], &dilation, groups, same(&padding)?);
    "conv3d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], str padding=\"valid\", SymInt[3] dilation=[1, 1, 1], SymInt groups=1) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor, stride: ints, padding: text, dilation: ints, groups: int) x.conv3d(weight, bias, &stride, [], &dilation, groups, same(&padding)?);
    "conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=[1], SymInt[1] padding=[0], SymInt[1] output_padding=[0], SymInt groups=1, SymInt[1] dilation=[1]) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor, stride: ints, padding: ints, output: ints, groups: int, dilation: ints) x.conv_transpose1d(weight, bias, &stride, &padding, &output, groups, &dilation);
    "conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] output_padding=[0, 0], SymInt groups=1, SymInt[2] dilation=[1, 1]) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor, stride: ints, padding: ints, output: ints, groups: int, dilation: ints) x.conv_transpose2d(weight, bias, &stride, &padding, &output, groups, &dilation);
    "conv_transpose3d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=[1, 1, 1], SymInt[3] padding=[0, 0, 0], SymInt[3] output_padding=[0, 0, 0], SymInt groups=1, SymInt[3] dilation=[1, 1, 1]) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor, stride: ints, padding: ints, output: ints, groups: int, dilation: ints) x.conv_transpose3d(weight, bias, &stride, &padding, &output, groups, &dilation);
    "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor, stride: ints, padding: ints, dilation: ints, transposed: flag, output: ints, groups: int) x.convolution(weight, bias, &stride, &padding, &dilation, transposed, &output, groups);
}

fn same(padding: &str) -> Result<bool, String> {
    match padding {
        "same" => Ok(true),
        "valid" => Ok(false),
        other => Err(format!("takes \"same\" or \"valid\" for `padding`, found {other:?}")),
    }
}
