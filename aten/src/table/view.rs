//! The same elements in another order, shape or dtype, parts of tensors, and tensors joined.

use super::Call;
use super::table;
use tracecast_ir::functions as f;
use tracecast_ir::functions::PadMode;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Size, Var};

table! {
    "view(Tensor(a) self, SymInt[] size) -> Tensor(a)" =>
        (x: tensor, shape: sizes) x.reshape(&shape);
    "_unsafe_view(Tensor self, SymInt[] size) -> Tensor" =>
        (x: tensor, shape: sizes) x.reshape(&shape);
    "reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)" =>
        (x: tensor, shape: sizes) x.reshape(&shape);
    "view_as(Tensor(a) self, Tensor other) -> Tensor(a)" =>
        (x: tensor, other: tensor) x.reshape_as(other);
    "reshape_as(Tensor(a) self, Tensor other) -> Tensor(a)" =>
        (x: tensor, other: tensor) x.reshape_as(other);
    "expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)" =>
        (x: tensor, shape: sizes) x.expand(&shape);
    "broadcast_to(Tensor(a) self, SymInt[] size) -> Tensor(a)" =>
        (x: tensor, shape: sizes) x.expand(&shape);
    "expand_as(Tensor(a) self, Tensor other) -> Tensor(a)" =>
        (x: tensor, other: tensor) x.expand_as(other);
    "permute(Tensor(a) self, int[] dims) -> Tensor(a)" => (x: tensor, dims: ints) x.permute(&dims);
    "transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)" =>
        (x: tensor, a: int, b: int) x.transpose(a, b);
    "t(Tensor(a) self) -> Tensor(a)" => (x: tensor) matrix(x);
    "numpy_T(Tensor(a) self) -> Tensor(a)" => (x: tensor) reversed(x);
    "mT(Tensor(a) self) -> Tensor(a)" => (x: tensor) x.m_t();
    "movedim.int(Tensor(a) self, int source, int destination) -> Tensor(a)" =>
        (x: tensor, from: int, to: int) x.movedim(&[from], &[to]);
    "movedim.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)" =>
        (x: tensor, from: ints, to: ints) x.movedim(&from, &to);
    "squeeze(Tensor(a) self) -> Tensor(a)" => (x: tensor) x.squeeze(&[]);
    "squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)" => (x: tensor, dim: int) x.squeeze(&[dim]);
    "squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)" =>
        (x: tensor, dims: ints) if dims.is_empty() { x } else { x.squeeze(&dims) };
    "unsqueeze(Tensor(a) self, int dim) -> Tensor(a)" => (x: tensor, dim: int) x.unsqueeze(dim);
    "flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)" =>
        (x: tensor, start: int, end: int) x.flatten(start, end);
    "unflatten.int(Tensor(a) self, int dim, SymInt[] sizes) -> Tensor(a)" =>
        (x: tensor, dim: int, sizes: ints) x.unflatten(dim, &sizes);
    "ravel(Tensor(a) self) -> Tensor(a)" => (x: tensor) x.ravel();
    "atleast_1d(Tensor self) -> Tensor" => (x: tensor) x.at_least(1);
    "atleast_2d(Tensor self) -> Tensor" => (x: tensor) x.at_least(2);
    "atleast_3d(Tensor self) -> Tensor" => (x: tensor) x.at_least(3);
    "alias(Tensor(a) self) -> Tensor(a)" => (x: tensor) x;
    "contiguous(Tensor(a) self, *, MemoryFormat memory_format=0) -> Tensor(a)" => (x: tensor) x;
    "clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor" => (x: tensor) x;
    "lift_fresh_copy(Tensor self) -> Tensor" => (x: tensor) x;
    "lift_fresh(Tensor(a) self) -> Tensor(a)" => (x: tensor) x;
    "detach(Tensor(a) self) -> Tensor(a)" => (x: tensor) x.detach();
    "copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor" =>
        (x: tensor, from: tensor) from.to(x.dtype()).expand_as(x);
    "to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)" =>
        (x: tensor, dtype: dtype) x.to(dtype);
    "to.dtype_layout(Tensor(a) self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)" =>
        (x: tensor, dtype: some_dtype) x.to(dtype.unwrap_or(x.dtype()));
    "to.device(Tensor(a) self, Device device, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)" =>
        (x: tensor, _device: any, dtype: dtype) x.to(dtype);
    "to.other(Tensor(a) self, Tensor other, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)" =>
        (x: tensor, other: tensor) x.to(other.dtype());
    "type_as(Tensor self, Tensor other) -> Tensor" =>
        (x: tensor, other: tensor) x.to(other.dtype());
    "_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor" =>
        (x: tensor, dtype: some_dtype) x.to(dtype.unwrap_or(x.dtype()));
    "select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)" =>
        (x: tensor, dim: int, at: size) select(x, dim, at)?;
    "slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)" =>
        (x: tensor, dim: int, start: some_size, end: some_size, step: int) slice(x, dim, start, end, step)?;
    "narrow(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)" =>
        (x: tensor, dim: int, start: size, length: size) slice(x, dim, Some(start), Some(start + length), 1)?;
    "narrow.Tensor(Tensor(a) self, int dim, Tensor start, SymInt length) -> Tensor(a)" =>
        (x: tensor, dim: int, start: tensor, length: int) x.narrow_at(dim, start, length);
    "diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)" =>
        (x: tensor, offset: int, a: int, b: int) x.diagonal(offset, a, b);
    "linalg_diagonal(Tensor(a) A, *, int offset=0, int dim1=-2, int dim2=-1) -> Tensor(a)" =>
        (x: tensor, offset: int, a: int, b: int) x.diagonal(offset, a, b);
    "unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)" =>
        (x: tensor, dim: int, size: int, step: int) x.unfold(dim, size, step);
    "as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)" =>
        (x: tensor, sizes: ints, strides: ints, offset: some_int) x.as_strided(&sizes, &strides, offset.unwrap_or(0));
    "split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]" =>
        (x: tensor, each: int, dim: int) x.split(each, dim);
    "unsafe_split.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]" =>
        (x: tensor, each: int, dim: int) x.split(each, dim);
    "split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]" =>
        (x: tensor, sizes: ints, dim: int) x.split_with_sizes(&sizes, dim);
    "chunk(Tensor(a -> *) self, int chunks, int dim=0) -> Tensor(a)[]" =>
        (x: tensor, chunks: int, dim: int) x.chunk(chunks, dim);
    "unsafe_chunk(Tensor self, int chunks, int dim=0) -> Tensor[]" =>
        (x: tensor, chunks: int, dim: int) x.chunk(chunks, dim);
    "unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]" =>
        (x: tensor, dim: int) x.unbind(dim);
    "tensor_split.indices(Tensor(a -> *) self, SymInt[] indices, int dim=0) -> Tensor(a)[]" =>
        (x: tensor, indices: ints, dim: int) x.split_at(&indices, dim);
    "tensor_split.sections(Tensor(a -> *) self, SymInt sections, int dim=0) -> Tensor(a)[]" =>
        (x: tensor, sections: int, dim: int) x.tensor_split(sections, dim);
    "tensor_split.tensor_indices_or_sections(Tensor(a -> *) self, Tensor tensor_indices_or_sections, int dim=0) -> Tensor(a)[]" =>
        (x: tensor, _by: any, _dim: any) x.tracer().fail("tensor_split", "the shapes of the results depend on the data: give numbers");
    "hsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]" =>
        (x: tensor, indices: ints) x.split_at(&indices, i64::from(x.rank() > 1));
    "hsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]" =>
        (x: tensor, sections: int) x.hsplit(sections);
    "vsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]" =>
        (x: tensor, indices: ints) x.split_at(&indices, 0);
    "vsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]" =>
        (x: tensor, sections: int) x.vsplit(sections);
    "dsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]" =>
        (x: tensor, indices: ints) x.split_at(&indices, 2);
    "dsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]" =>
        (x: tensor, sections: int) x.dsplit(sections);
    "cat(Tensor[] tensors, int dim=0) -> Tensor" =>
        call (xs: tensors, dim: int) joined("cat", call, &xs, |xs| cat(xs, dim))?;
    "stack(Tensor[] tensors, int dim=0) -> Tensor" =>
        call (xs: tensors, dim: int) joined("stack", call, &xs, |xs| f::stack(xs, dim))?;
    "hstack(Tensor[] tensors) -> Tensor" =>
        call (xs: tensors) joined("hstack", call, &xs, f::hstack)?;
    "vstack(Tensor[] tensors) -> Tensor" =>
        call (xs: tensors) joined("vstack", call, &xs, f::vstack)?;
    "dstack(Tensor[] tensors) -> Tensor" =>
        call (xs: tensors) joined("dstack", call, &xs, f::dstack)?;
    "column_stack(Tensor[] tensors) -> Tensor" =>
        call (xs: tensors) joined("column_stack", call, &xs, f::column_stack)?;
    "block_diag(Tensor[] tensors) -> Tensor" => (xs: tensors) f::block_diag(&xs);
    "broadcast_tensors(Tensor[] tensors) -> Tensor[]" => (xs: tensors) f::broadcast_tensors(&xs);
    "meshgrid.indexing(Tensor[] tensors, *, str indexing) -> Tensor[]" =>
        (xs: tensors, indexing: text) f::meshgrid(&xs, indexing == "xy");
    "meshgrid(Tensor[] tensors) -> Tensor[]" => (xs: tensors) f::meshgrid(&xs, false);
    "repeat(Tensor self, SymInt[] repeats) -> Tensor" =>
        (x: tensor, repeats: ints) x.repeat(&repeats);
    "tile(Tensor self, SymInt[] dims) -> Tensor" => (x: tensor, dims: ints) x.tile(&dims);
    "repeat_interleave.self_int(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor" =>
        (x: tensor, repeats: int, dim: some_int, _size: any) x.repeat_interleave(repeats, dim);
    "repeat_interleave.self_Tensor(Tensor self, Tensor repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor" =>
        (x: tensor, repeats: tensor, _dim: any, _size: any) x.repeat_interleave_by(repeats);
    "sum_to_size(Tensor self, SymInt[] size) -> Tensor" =>
        (x: tensor, sizes: ints) x.sum_to_size(&sizes);
    "flip(Tensor self, int[] dims) -> Tensor" => (x: tensor, dims: ints) x.flip(&dims);
    "fliplr(Tensor self) -> Tensor" => (x: tensor) x.fliplr();
    "flipud(Tensor self) -> Tensor" => (x: tensor) x.flipud();
    "roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor" =>
        (x: tensor, shifts: ints, dims: ints) x.roll(&shifts, &dims);
    "rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor" =>
        (x: tensor, k: int, dims: ints) x.rot90(k, &dims);
    "constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor" =>
        (x: tensor, pad: ints, value: float) x.pad_last(&pad, PadMode::Constant(value));
    "pad(Tensor self, SymInt[] pad, str mode=\"constant\", float? value=None) -> Tensor" =>
        (x: tensor, pad: ints, mode: text, value: some_float) padded(x, &pad, &mode, value)?;
    "channel_shuffle(Tensor self, SymInt groups) -> Tensor" =>
        (x: tensor, groups: int) x.channel_shuffle(groups);
    "pixel_shuffle(Tensor self, int upscale_factor) -> Tensor" =>
        (x: tensor, factor: int) x.pixel_shuffle(factor);
    "pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor" =>
        (x: tensor, factor: int) x.pixel_unshuffle(factor);
    "diag(Tensor self, int diagonal=0) -> Tensor" => (x: tensor, diagonal: int) x.diag(diagonal);
    "diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor" =>
        (x: tensor, offset: int, a: int, b: int) x.diag_embed(offset, a, b);
    "diagflat(Tensor self, int offset=0) -> Tensor" => (x: tensor, offset: int) x.diagflat(offset);
    "tril(Tensor self, SymInt diagonal=0) -> Tensor" => (x: tensor, diagonal: int) x.tril(diagonal);
    "triu(Tensor self, SymInt diagonal=0) -> Tensor" => (x: tensor, diagonal: int) x.triu(diagonal);
    "sym_size.int(Tensor self, int dim) -> SymInt" =>
        (x: tensor, dim: int) x.size(x.shape().axis(dim)?);
    "sym_numel(Tensor self) -> SymInt" => (x: tensor) x.ty().numel();
}

/// The axes of a tensor of at most two in reverse.
fn matrix(x: Var<'_>) -> Var<'_> {
    if x.rank() > 2 { x.tracer().fail("t", "takes a matrix") } else { reversed(x) }
}

fn reversed(x: Var<'_>) -> Var<'_> {
    x.permute((0..x.rank() as i64).rev().collect::<Vec<_>>())
}

fn select<'t>(x: Var<'t>, dim: i64, at: Size) -> Result<Var<'t>, String> {
    let axis = x.shape().axis(dim)? as i64;
    let from_end = at.number().is_some_and(|at| at < 0);
    match (at.number(), x.size(axis as usize).number()) {
        (Some(at), Some(_)) => Ok(x.select(axis, at)),
        _ => {
            let at = if from_end { x.size(axis as usize) + at } else { at };
            let shape = x.shape();
            let kept: Vec<Size> =
                (0..shape.rank()).filter(|i| *i as i64 != axis).map(|i| shape[i]).collect();
            Ok(x.slice(axis, at, at + 1, 1).reshape(&kept))
        }
    }
}

/// Python's slice: bounds may count from the end, and lie beyond it.
fn slice<'t>(
    x: Var<'t>,
    dim: i64,
    start: Option<Size>,
    end: Option<Size>,
    step: i64,
) -> Result<Var<'t>, String> {
    let axis = x.shape().axis(dim)?;
    if step < 1 {
        return Err(format!("takes a step of at least 1, found {step}"));
    }
    let n = x.size(axis);
    let bound = |at: Option<Size>, absent: Size| match at {
        None => absent,
        Some(at) => match (at.number(), n.number()) {
            (Some(at), Some(n)) if at < 0 => Size::from(at.saturating_add(n).max(0)),
            (Some(at), Some(n)) => Size::from(at.min(n)),
            (Some(i64::MAX), None) => n,
            (Some(at), None) if at < 0 => {
                if x.tracer().holds(n.at_least(at.saturating_neg())) {
                    n + at
                } else {
                    Size::from(0)
                }
            }
            _ if at == n || x.tracer().holds(n.at_least(at)) => at,
            _ => n,
        },
    };
    let start = bound(start, Size::from(0));
    let end = bound(end, n);
    let end = if end == start || x.tracer().holds(end.at_least(start)) { end } else { start };
    if start == 0 && end == n && step == 1 {
        return Ok(x);
    }
    Ok(x.slice(axis as i64, start, end, step))
}

fn joined<'t>(
    name: &str,
    call: &Call<'_, 't>,
    xs: &[Var<'t>],
    join: impl Fn(&[Var<'t>]) -> Var<'t>,
) -> Result<Var<'t>, String> {
    if xs.is_empty() {
        return Ok(call.tracer.fail(name, "takes at least one tensor"));
    }
    Ok(join(xs))
}

fn padded<'t>(x: Var<'t>, pad: &[i64], mode: &str, value: Option<f64>) -> Result<Var<'t>, String> {
    let mode = match mode {
        "constant" => PadMode::Constant(value.unwrap_or(0.0)),
        "reflect" => PadMode::Reflect,
        "replicate" => PadMode::Replicate,
        "circular" => PadMode::Circular,
        other => return Err(format!("there is no `mode` {other:?}")),
    };
    if pad.iter().all(|n| *n == 0) { Ok(x) } else { Ok(x.pad_last(pad, mode)) }
}
