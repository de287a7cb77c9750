//! Elements by their positions: read, written and counted.

use super::entry::unless;
use super::table;
use tracecast_ir::functions::Pick;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Size, Var};

table! {
    "embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor" =>
        (weight: tensor, indices: tensor, padding: int, scale: flag) weight.embedding_with(indices, (padding >= 0).then_some(padding), scale);
    "gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor" =>
        (x: tensor, dim: int, index: tensor) x.gather(index, dim);
    "index.Tensor(Tensor self, Tensor?[] indices) -> Tensor" =>
        (x: tensor, indices: some_tensors) x.pick(&picks(&indices));
    "_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor" =>
        (x: tensor, indices: some_tensors) x.pick(&picks(&indices));
    "index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor" =>
        (x: tensor, indices: some_tensors, values: tensor, accumulate: flag) index_put(x, &indices, values, accumulate);
    "_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor" =>
        (x: tensor, indices: some_tensors, values: tensor, accumulate: flag) index_put(x, &indices, values, accumulate);
    "index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor" =>
        (x: tensor, dim: int, index: tensor, source: tensor, alpha: float) x.index_add(index, source, dim, unless(alpha, 1.0));
    "index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor" =>
        (x: tensor, dim: int, index: tensor, source: tensor) x.index_copy(index, source, dim);
    "index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor" =>
        (x: tensor, dim: int, index: tensor, value: float) x.index_fill(dim, index, value);
    "index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor" =>
        (x: tensor, dim: int, index: tensor, value: tensor) x.index_fill_with(dim, index, value);
    "index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor" =>
        (x: tensor, dim: int, index: tensor, source: tensor, reduce: text, own: flag) x.index_reduce(index, source, dim, Some(&reduce), own);
    "index_select(Tensor self, int dim, Tensor index) -> Tensor" =>
        (x: tensor, dim: int, index: tensor) x.index_select(dim, index);
    "take(Tensor self, Tensor index) -> Tensor" => (x: tensor, index: tensor) x.take(index);
    "take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor" =>
        (x: tensor, index: tensor, dim: some_int) x.take_along_dim(index, dim);
    "put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor" =>
        (x: tensor, index: tensor, source: tensor, accumulate: flag) x.put(index, source, accumulate);
    "masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor" =>
        (x: tensor, mask: tensor, source: tensor) x.masked_scatter(mask, source);
    "scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor" =>
        (x: tensor, dim: int, index: tensor, src: tensor) x.scatter(index, src, dim);
    "scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor" =>
        (x: tensor, dim: int, index: tensor, value: float) x.scatter_value(index, value, dim);
    "scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor" =>
        (x: tensor, dim: int, index: tensor, src: tensor, reduce: text) x.scatter_reduce(index, src, dim, Some(reduction_of(&reduce)), true);
    "scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor" =>
        (x: tensor, dim: int, index: tensor, src: tensor) x.scatter_add(index, src, dim);
    "scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor" =>
        (x: tensor, dim: int, index: tensor, src: tensor, reduce: text, own: flag) x.scatter_reduce(index, src, dim, Some(&reduce), own);
    "select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor" =>
        (x: tensor, src: tensor, dim: int, at: int) x.select_scatter(src, dim, at);
    "slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor" =>
        (x: tensor, src: tensor, dim: int, start: some_int, end: some_int, step: int) x.slice_scatter(src, dim, start, end, step);
    "diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor" =>
        (x: tensor, src: tensor, offset: int, a: int, b: int) x.diagonal_scatter(src, offset, a, b);
    "as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor" =>
        (x: tensor, src: tensor, sizes: ints, strides: ints, offset: some_int) strided(x, src, &sizes, &strides, offset.unwrap_or(0))?;
    "nonzero(Tensor self) -> Tensor" => (x: tensor) x.nonzero();
    "argwhere(Tensor self) -> Tensor" => (x: tensor) x.argwhere();
    "masked_select(Tensor self, Tensor mask) -> Tensor" =>
        (x: tensor, mask: tensor) x.masked_select(mask);
    "one_hot(Tensor self, int num_classes=-1) -> Tensor" =>
        (x: tensor, classes: int) x.one_hot_rows(classes);
    "im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor" =>
        (x: tensor, kernel: ints, dilation: ints, padding: ints, stride: ints) x.im2col(&kernel, &dilation, &padding, &stride);
    "col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor" =>
        (x: tensor, size: ints, kernel: ints, dilation: ints, padding: ints, stride: ints) x.col2im(&size, &kernel, &dilation, &padding, &stride);
    "histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor" =>
        (x: tensor, bins: int, least: float, most: float) histogram(x, bins, least, most)?;
}

fn picks<'t>(indices: &[Option<Var<'t>>]) -> Vec<Pick<'t>> {
    indices.iter().map(|index| index.map_or(Pick::Range(None, None, 1), Pick::Of)).collect()
}

fn index_put<'t>(
    x: Var<'t>,
    indices: &[Option<Var<'t>>],
    values: Var<'t>,
    accumulate: bool,
) -> Var<'t> {
    let (mut axis, mut dims, mut given) = (0, Vec::new(), Vec::new());
    for index in indices {
        let Some(index) = index else {
            axis += 1;
            continue;
        };
        dims.push(axis);
        given.push(*index);
        let is_mask = matches!(index.dtype(), DType::Bool | DType::U8);
        axis += if is_mask { index.rank() as i64 } else { 1 };
    }
    let in_front = dims.iter().zip(0..).all(|(dim, at)| *dim == at);
    x.index_put(&given[..], values, if in_front { &[][..] } else { &dims }, accumulate)
}

fn reduction_of(reduce: &str) -> &str {
    match reduce {
        "add" => "sum",
        "multiply" => "prod",
        other => other,
    }
}

/// `src` in the place of what strides see, which has to be all of a dense tensor in order.
fn strided<'t>(
    x: Var<'t>,
    src: Var<'t>,
    sizes: &[i64],
    strides: &[i64],
    offset: i64,
) -> Result<Var<'t>, String> {
    let mut dense = 1;
    let steps = sizes.iter().zip(strides).rev().all(|(size, stride)| {
        let fits = *size == 1 || *stride == dense;
        dense *= size;
        fits
    });
    if !steps || offset != 0 || x.ty().numel() != dense {
        return Err(format!(
            "writes through strides {strides:?} of {sizes:?}, which cover a part of {}",
            x.ty()
        ));
    }
    Ok(src.to(x.dtype()).reshape(&x.shape()))
}

/// How many numbers fall into each of as many ranges of one width.
fn histogram<'t>(x: Var<'t>, bins: i64, least: f64, most: f64) -> Result<Var<'t>, String> {
    if least >= most || bins < 1 {
        return Err(format!(
            "takes bounds of {bins} bins, found {least} and {most}: they would depend on the data"
        ));
    }
    let t = x.tracer();
    let flat = x.reshape([-1]);
    let at = flat.sub(least).mul(bins as f64 / (most - least)).floor();
    let at = at.eq(bins as f64).choose(bins as f64 - 1.0, at);
    let inside = flat.ge(least).logical_and(flat.le(most));
    let bins = t.iota(x.dtype(), [Size::from(bins), Size::from(1)], 0);
    Ok(inside.logical_and(at.unsqueeze(0).eq(bins)).to(x.dtype()).sum(1))
}
