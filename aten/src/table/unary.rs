//! Functions of one tensor: elementwise mathematics, activations, softmax.

use super::entry::unless;
use super::table;
use tracecast_ir::DType;
use tracecast_ir::ops::prelude::*;

table! {
    "abs(Tensor self) -> Tensor" => (x: tensor) x.abs();
    "acos(Tensor self) -> Tensor" => (x: tensor) x.acos();
    "acosh(Tensor self) -> Tensor" => (x: tensor) x.acosh();
    "asin(Tensor self) -> Tensor" => (x: tensor) x.asin();
    "asinh(Tensor self) -> Tensor" => (x: tensor) x.asinh();
    "atan(Tensor self) -> Tensor" => (x: tensor) x.atan();
    "atanh(Tensor self) -> Tensor" => (x: tensor) x.atanh();
    "bitwise_not(Tensor self) -> Tensor" => (x: tensor) x.bitwise_not();
    "ceil(Tensor self) -> Tensor" => (x: tensor) x.ceil();
    "cos(Tensor self) -> Tensor" => (x: tensor) x.cos();
    "cosh(Tensor self) -> Tensor" => (x: tensor) x.cosh();
    "deg2rad(Tensor self) -> Tensor" => (x: tensor) x.deg2rad();
    "digamma(Tensor self) -> Tensor" => (x: tensor) x.digamma();
    "erf(Tensor self) -> Tensor" => (x: tensor) x.erf();
    "erfc(Tensor self) -> Tensor" => (x: tensor) x.erfc();
    "erfinv(Tensor self) -> Tensor" => (x: tensor) x.erfinv();
    "exp(Tensor self) -> Tensor" => (x: tensor) x.exp();
    "exp2(Tensor self) -> Tensor" => (x: tensor) x.exp2();
    "expm1(Tensor self) -> Tensor" => (x: tensor) x.expm1();
    "floor(Tensor self) -> Tensor" => (x: tensor) x.floor();
    "frac(Tensor self) -> Tensor" => (x: tensor) x.frac();
    "isfinite(Tensor self) -> Tensor" => (x: tensor) x.isfinite();
    "isinf(Tensor self) -> Tensor" => (x: tensor) x.isinf();
    "isnan(Tensor self) -> Tensor" => (x: tensor) x.isnan();
    "isneginf(Tensor self) -> Tensor" => (x: tensor) x.is_infinity(true);
    "isposinf(Tensor self) -> Tensor" => (x: tensor) x.is_infinity(false);
    "isreal(Tensor self) -> Tensor" => (x: tensor) x.eq(x).logical_or(x.ne(x));
    "lgamma(Tensor self) -> Tensor" => (x: tensor) x.lgamma();
    "log(Tensor self) -> Tensor" => (x: tensor) x.log();
    "log10(Tensor self) -> Tensor" => (x: tensor) x.log10();
    "log1p(Tensor self) -> Tensor" => (x: tensor) x.log1p();
    "log2(Tensor self) -> Tensor" => (x: tensor) x.log2();
    "logical_not(Tensor self) -> Tensor" => (x: tensor) x.logical_not();
    "logit(Tensor self, float? eps=None) -> Tensor" => (x: tensor, eps: some_float) x.logit(eps);
    "nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor" =>
        (x: tensor, nan: some_float, above: some_float, below: some_float) x.nan_to_num(nan, above, below);
    "neg(Tensor self) -> Tensor" => (x: tensor) x.neg();
    "positive(Tensor(a) self) -> Tensor(a)" => (x: tensor) x;
    "rad2deg(Tensor self) -> Tensor" => (x: tensor) x.rad2deg();
    "reciprocal(Tensor self) -> Tensor" => (x: tensor) x.reciprocal();
    "round(Tensor self) -> Tensor" => (x: tensor) x.round();
    "round.decimals(Tensor self, *, int decimals) -> Tensor" =>
        (x: tensor, decimals: int) x.round_places(decimals);
    "rsqrt(Tensor self) -> Tensor" => (x: tensor) x.rsqrt();
    "sgn(Tensor self) -> Tensor" => (x: tensor) x.sign();
    "sign(Tensor self) -> Tensor" => (x: tensor) x.sign();
    "signbit(Tensor self) -> Tensor" => (x: tensor) x.signbit();
    "sin(Tensor self) -> Tensor" => (x: tensor) x.sin();
    "sinc(Tensor self) -> Tensor" => (x: tensor) x.sinc();
    "sinh(Tensor self) -> Tensor" => (x: tensor) x.sinh();
    "special_entr(Tensor self) -> Tensor" => (x: tensor) x.entr();
    "special_erfcx(Tensor self) -> Tensor" => (x: tensor) x.erfcx();
    "special_log_ndtr(Tensor self) -> Tensor" => (x: tensor) x.log_ndtr();
    "special_ndtr(Tensor self) -> Tensor" => (x: tensor) x.ndtr();
    "special_ndtri(Tensor self) -> Tensor" => (x: tensor) x.ndtri();
    "sqrt(Tensor self) -> Tensor" => (x: tensor) x.sqrt();
    "square(Tensor self) -> Tensor" => (x: tensor) x.square();
    "tan(Tensor self) -> Tensor" => (x: tensor) x.tan();
    "tanh(Tensor self) -> Tensor" => (x: tensor) x.tanh();
    "trunc(Tensor self) -> Tensor" => (x: tensor) x.trunc();
    "celu(Tensor self, Scalar alpha=1.) -> Tensor" => (x: tensor, alpha: float) x.celu(alpha);
    "elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor" =>
        (x: tensor, alpha: float, scale: float, input: float) x.elu(unless(alpha, 1.0), unless(scale, 1.0), unless(input, 1.0));
    "gelu(Tensor self, *, str approximate=\"none\") -> Tensor" =>
        (x: tensor, approximate: text) x.gelu((approximate != "none").then_some(&approximate));
    "glu(Tensor self, int dim=-1) -> Tensor" => (x: tensor, dim: int) x.glu(dim);
    "hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor" =>
        (x: tensor, lambda: float) x.hardshrink(lambda);
    "hardsigmoid(Tensor self) -> Tensor" => (x: tensor) x.hardsigmoid();
    "hardswish(Tensor self) -> Tensor" => (x: tensor) x.hardswish();
    "hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor" =>
        (x: tensor, least: float, most: float) x.hardtanh(least, most);
    "leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor" =>
        (x: tensor, slope: float) x.leaky_relu(slope);
    "log_sigmoid(Tensor self) -> Tensor" => (x: tensor) x.log_sigmoid();
    "mish(Tensor self) -> Tensor" => (x: tensor) x.mish();
    "prelu(Tensor self, Tensor weight) -> Tensor" => (x: tensor, weight: tensor) x.prelu(weight);
    "_prelu_kernel(Tensor self, Tensor weight) -> Tensor" =>
        (x: tensor, weight: tensor) x.gt(0.0).choose(x, x.mul(weight));
    "relu(Tensor self) -> Tensor" => (x: tensor) x.relu();
    "relu6(Tensor self) -> Tensor" => (x: tensor) x.relu6();
    "selu(Tensor self) -> Tensor" => (x: tensor) x.selu();
    "sigmoid(Tensor self) -> Tensor" => (x: tensor) x.sigmoid();
    "silu(Tensor self) -> Tensor" => (x: tensor) x.silu();
    "softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor" =>
        (x: tensor, beta: float, threshold: float) x.softplus(unless(beta, 1.0), unless(threshold, 20.0));
    "softshrink(Tensor self, Scalar lambd=0.5) -> Tensor" =>
        (x: tensor, lambda: float) x.softshrink(lambda);
    "threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor" =>
        (x: tensor, threshold: float, value: float) x.threshold(threshold, value);
    "softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dim: int, dtype: some_dtype) x.softmax([dim].dtype(dtype));
    "_softmax(Tensor self, int dim, bool half_to_float) -> Tensor" =>
        (x: tensor, dim: int, wide: flag) x.softmax([dim].dtype(wide.then_some(DType::F32)));
    "_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dim: int, dtype: some_dtype) x.safe_softmax([dim].dtype(dtype));
    "log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dim: int, dtype: some_dtype) x.log_softmax([dim].dtype(dtype));
    "_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor" =>
        (x: tensor, dim: int, wide: flag) x.log_softmax([dim].dtype(wide.then_some(DType::F32)));
}
