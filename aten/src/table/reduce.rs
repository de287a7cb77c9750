//! Reductions, scans and norms along axes.

use super::entry::unless;
use super::table;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, TensorType, Var};

table! {
    "sum(Tensor self, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dtype: some_dtype) x.sum(().dtype(dtype));
    "sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dims: some_ints, keep: flag, dtype: some_dtype) x.sum(all(dims).kept(keep).dtype(dtype));
    "mean(Tensor self, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dtype: some_dtype) x.mean(().dtype(dtype));
    "mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dims: some_ints, keep: flag, dtype: some_dtype) x.mean(all(dims).kept(keep).dtype(dtype));
    "prod(Tensor self, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dtype: some_dtype) x.prod(().dtype(dtype));
    "prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dim: int, keep: flag, dtype: some_dtype) x.prod(dim.kept(keep).dtype(dtype));
    "amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor" =>
        (x: tensor, dims: ints, keep: flag) x.amax((&dims).kept(keep));
    "amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor" =>
        (x: tensor, dims: ints, keep: flag) x.amin((&dims).kept(keep));
    "aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)" =>
        (x: tensor, dim: some_int, keep: flag) x.aminmax(dim.kept(keep));
    "argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor" =>
        (x: tensor, dim: some_int, keep: flag) x.argmax(dim.kept(keep));
    "argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor" =>
        (x: tensor, dim: some_int, keep: flag) x.argmin(dim.kept(keep));
    "max(Tensor self) -> Tensor" => (x: tensor) x.amax(());
    "min(Tensor self) -> Tensor" => (x: tensor) x.amin(());
    "max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)" =>
        (x: tensor, dim: int, keep: flag) x.max(dim.kept(keep));
    "min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)" =>
        (x: tensor, dim: int, keep: flag) x.min(dim.kept(keep));
    "median(Tensor self) -> Tensor" => (x: tensor) x.median_of_all();
    "median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)" =>
        (x: tensor, dim: int, keep: flag) x.median(dim.kept(keep));
    "nanmedian(Tensor self) -> Tensor" => (x: tensor) x.nanmedian_of_all();
    "nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)" =>
        (x: tensor, dim: int, keep: flag) x.nanmedian(dim.kept(keep));
    "mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)" =>
        (x: tensor, dim: int, keep: flag) x.mode(dim.kept(keep));
    "all(Tensor self) -> Tensor" => (x: tensor) x.all(());
    "all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor" =>
        (x: tensor, dim: int, keep: flag) x.all(dim.kept(keep));
    "all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor" =>
        (x: tensor, dims: some_ints, keep: flag) x.all(all(dims).kept(keep));
    "any(Tensor self) -> Tensor" => (x: tensor) x.any(());
    "any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor" =>
        (x: tensor, dim: int, keep: flag) x.any(dim.kept(keep));
    "any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor" =>
        (x: tensor, dims: some_ints, keep: flag) x.any(all(dims).kept(keep));
    "count_nonzero(Tensor self, int? dim=None) -> Tensor" =>
        (x: tensor, dim: some_int) x.count_nonzero(dim);
    "count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor" =>
        (x: tensor, dims: ints) x.count_nonzero(&dims);
    "nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dims: some_ints, keep: flag, dtype: some_dtype) x.nansum(all(dims).kept(keep).dtype(dtype));
    "nanmean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dims: some_ints, keep: flag, dtype: some_dtype) x.nanmean(all(dims).kept(keep).dtype(dtype));
    "logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor" =>
        (x: tensor, dims: ints, keep: flag) x.logsumexp((&dims).kept(keep));
    "var(Tensor self, bool unbiased=True) -> Tensor" =>
        (x: tensor, unbiased: flag) x.var((), share(unbiased));
    "var.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor" =>
        (x: tensor, dims: some_ints, unbiased: flag, keep: flag) x.var(all(dims).kept(keep), share(unbiased));
    "var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor" =>
        (x: tensor, dims: some_ints, correction: some_float, keep: flag) x.var(all(dims).kept(keep), correction);
    "std(Tensor self, bool unbiased=True) -> Tensor" =>
        (x: tensor, unbiased: flag) x.std((), share(unbiased));
    "std.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor" =>
        (x: tensor, dims: some_ints, unbiased: flag, keep: flag) x.std(all(dims).kept(keep), share(unbiased));
    "std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor" =>
        (x: tensor, dims: some_ints, correction: some_float, keep: flag) x.std(all(dims).kept(keep), correction);
    "var_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)" =>
        (x: tensor, unbiased: flag) x.var_mean((), share(unbiased));
    "var_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)" =>
        (x: tensor, dims: some_ints, unbiased: flag, keep: flag) x.var_mean(all(dims).kept(keep), share(unbiased));
    "var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)" =>
        (x: tensor, dims: some_ints, correction: some_float, keep: flag) x.var_mean(all(dims).kept(keep), correction);
    "std_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)" =>
        (x: tensor, unbiased: flag) x.std_mean((), share(unbiased));
    "std_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)" =>
        (x: tensor, dims: some_ints, unbiased: flag, keep: flag) x.std_mean(all(dims).kept(keep), share(unbiased));
    "std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)" =>
        (x: tensor, dims: some_ints, correction: some_float, keep: flag) x.std_mean(all(dims).kept(keep), correction);
    "quantile(Tensor self, Tensor q, int? dim=None, bool keepdim=False, *, str interpolation=\"linear\") -> Tensor" =>
        (x: tensor, q: tensor, dim: some_int, keep: flag, how: text) x.quantile(q, dim.kept(keep), Some(&how));
    "quantile.scalar(Tensor self, float q, int? dim=None, bool keepdim=False, *, str interpolation=\"linear\") -> Tensor" =>
        call (x: tensor, q: float, dim: some_int, keep: flag, how: text) x.quantile(call.tracer.full(TensorType::scalar(x.dtype()), q), dim.kept(keep), Some(&how));
    "cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dim: int, dtype: some_dtype) x.cumsum([dim].dtype(dtype));
    "cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, dim: int, dtype: some_dtype) x.cumprod([dim].dtype(dtype));
    "logcumsumexp(Tensor self, int dim) -> Tensor" => (x: tensor, dim: int) x.logcumsumexp(dim);
    "cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)" =>
        (x: tensor, dim: int) x.cummax(dim);
    "cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)" =>
        (x: tensor, dim: int) x.cummin(dim);
    "linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, order: float, dims: some_ints, keep: flag, dtype: some_dtype) x.vector_norm(all(dims).kept(keep).dtype(dtype), unless(order, 2.0));
    "linalg_norm(Tensor self, Scalar? ord=None, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, order: some_float, dims: some_ints, keep: flag, dtype: some_dtype) norm(x, order, dims, keep, dtype)?;
    "linalg_norm.ord_str(Tensor self, str ord, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, order: text, dims: some_ints, keep: flag) frobenius(x, &order, &dims.unwrap_or_else(|| vec![0, 1]), keep)?;
    "linalg_matrix_norm(Tensor self, Scalar ord, int[] dim=[-2, -1], bool keepdim=False, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, order: float, dims: ints, keep: flag) matrix(x, order, &dims, keep)?;
    "linalg_matrix_norm.str_ord(Tensor self, str ord=\"fro\", int[] dim=[-2, -1], bool keepdim=False, *, ScalarType? dtype=None) -> Tensor" =>
        (x: tensor, order: text, dims: ints, keep: flag) frobenius(x, &order, &dims, keep)?;
    "trace(Tensor self) -> Tensor" => (x: tensor) x.trace();
}

/// The axes, none of which means all.
fn all(dims: Option<Vec<i64>>) -> tracecast_ir::Dims {
    (&dims.unwrap_or_default()).into()
}

/// Bessel's correction.
fn share(unbiased: bool) -> Option<f64> {
    Some(f64::from(u8::from(unbiased)))
}

/// A norm of vectors, or of matrices if an order is given and two axes are.
fn norm<'t>(
    x: Var<'t>,
    order: Option<f64>,
    dims: Option<Vec<i64>>,
    keep: bool,
    dtype: Option<DType>,
) -> Result<Var<'t>, String> {
    let two = match &dims {
        None if x.rank() == 2 => Some(vec![0, 1]),
        Some(dims) if dims.len() == 2 => Some(dims.clone()),
        _ => None,
    };
    match (order, two) {
        (Some(order), Some(two)) => matrix(x, order, &two, keep),
        _ => Ok(x.vector_norm(all(dims).kept(keep).dtype(dtype), order)),
    }
}

fn matrix<'t>(x: Var<'t>, order: f64, dims: &[i64], keep: bool) -> Result<Var<'t>, String> {
    if order.abs() == 2.0 {
        return Err("needs singular values, which are not computed here".to_owned());
    }
    Ok(x.matrix_norm(dims.kept(keep), order))
}

fn frobenius<'t>(x: Var<'t>, order: &str, dims: &[i64], keep: bool) -> Result<Var<'t>, String> {
    if order != "fro" {
        return Err("needs singular values, which are not computed here".to_owned());
    }
    Ok(x.matrix_norm(dims.kept(keep), None))
}
