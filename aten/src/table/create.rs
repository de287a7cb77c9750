//! Tensors made of numbers and sizes.

use super::Call;
use super::table;
use crate::argument::{Argument, Operand};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Shape, Size, Var};

table! {
    "arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (end: number, dtype: some_dtype) arange(call, Operand::Int(0), end, Operand::Int(1), dtype)?;
    "arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (start: number, end: number, dtype: some_dtype) arange(call, start, end, Operand::Int(1), dtype)?;
    "arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (start: number, end: number, step: number, dtype: some_dtype) arange(call, start, end, step, dtype)?;
    "eye(SymInt n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (n: int, dtype: some_dtype) call.tracer.eye(n, n, dtype.unwrap_or(DType::F32));
    "eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (n: int, m: int, dtype: some_dtype) call.tracer.eye(n, m, dtype.unwrap_or(DType::F32));
    "linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (start: float, end: float, steps: int, dtype: some_dtype) linspace(call, call.tracer.scalar(start), call.tracer.scalar(end), steps, dtype);
    "linspace.Scalar_Tensor(Scalar start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (start: float, end: tensor, steps: int, dtype: some_dtype) linspace(call, call.tracer.scalar(start), end, steps, dtype);
    "linspace.Tensor_Scalar(Tensor start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (start: tensor, end: float, steps: int, dtype: some_dtype) linspace(call, start, call.tracer.scalar(end), steps, dtype);
    "linspace.Tensor_Tensor(Tensor start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (start: tensor, end: tensor, steps: int, dtype: some_dtype) linspace(call, start, end, steps, dtype);
    "logspace(Scalar start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (start: float, end: float, steps: int, base: float, dtype: some_dtype) logspace(call, call.tracer.scalar(start), call.tracer.scalar(end), steps, base, dtype);
    "logspace.Scalar_Tensor(Scalar start, Tensor end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (start: float, end: tensor, steps: int, base: float, dtype: some_dtype) logspace(call, call.tracer.scalar(start), end, steps, base, dtype);
    "logspace.Tensor_Scalar(Tensor start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (start: tensor, end: float, steps: int, base: float, dtype: some_dtype) logspace(call, start, call.tracer.scalar(end), steps, base, dtype);
    "logspace.Tensor_Tensor(Tensor start, Tensor end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (start: tensor, end: tensor, steps: int, base: float, dtype: some_dtype) logspace(call, start, end, steps, base, dtype);
    "tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (rows: int, columns: int, offset: int, dtype: some_dtype) call.tracer.triangle_indices(rows, columns, offset, true).to(dtype.unwrap_or(DType::I64));
    "triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (rows: int, columns: int, offset: int, dtype: some_dtype) call.tracer.triangle_indices(rows, columns, offset, false).to(dtype.unwrap_or(DType::I64));
    "full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (shape: sizes, value: raw, dtype: some_dtype) call.filled(&shape, dtype.unwrap_or(dtype_of(&value)), number(&value)?);
    "full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor" =>
        call (x: tensor, value: float, dtype: some_dtype) call.filled(&x.shape(), dtype.unwrap_or(x.dtype()), value);
    "new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (x: tensor, shape: sizes, value: float, dtype: some_dtype) call.filled(&shape, dtype.unwrap_or(x.dtype()), value);
    "fill.Scalar(Tensor self, Scalar value) -> Tensor" =>
        call (x: tensor, value: float) call.filled(&x.shape(), x.dtype(), value);
    "fill.Tensor(Tensor self, Tensor value) -> Tensor" =>
        (x: tensor, value: tensor) value.to(x.dtype()).expand_as(x);
    "zero(Tensor self) -> Tensor" => call (x: tensor) call.filled(&x.shape(), x.dtype(), 0.0);
    "scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (value: float, dtype: some_dtype) call.filled(&[], dtype.unwrap_or(DType::F32), value);
    "zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (shape: sizes, dtype: some_dtype) call.filled(&shape, dtype.unwrap_or(DType::F32), 0.0);
    "ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (shape: sizes, dtype: some_dtype) call.filled(&shape, dtype.unwrap_or(DType::F32), 1.0);
    "zeros_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor" =>
        call (x: tensor, dtype: some_dtype) call.filled(&x.shape(), dtype.unwrap_or(x.dtype()), 0.0);
    "ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor" =>
        call (x: tensor, dtype: some_dtype) call.filled(&x.shape(), dtype.unwrap_or(x.dtype()), 1.0);
    "new_zeros(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (x: tensor, shape: sizes, dtype: some_dtype) call.filled(&shape, dtype.unwrap_or(x.dtype()), 0.0);
    "new_ones(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (x: tensor, shape: sizes, dtype: some_dtype) call.filled(&shape, dtype.unwrap_or(x.dtype()), 1.0);
    "empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor" =>
        call (shape: sizes, dtype: some_dtype) call.filled(&shape, dtype.unwrap_or(DType::F32), 0.0);
    "empty_permuted(SymInt[] size, int[] physical_layout, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (shape: sizes, _order: any, dtype: some_dtype) call.filled(&shape, dtype.unwrap_or(DType::F32), 0.0);
    "empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor" =>
        call (x: tensor, dtype: some_dtype) call.filled(&x.shape(), dtype.unwrap_or(x.dtype()), 0.0);
    "new_empty(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (x: tensor, shape: sizes, dtype: some_dtype) call.filled(&shape, dtype.unwrap_or(x.dtype()), 0.0);
    "new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (x: tensor, shape: sizes, _strides: any, dtype: some_dtype) call.filled(&shape, dtype.unwrap_or(x.dtype()), 0.0);
}

/// The dtype that PyTorch gives a number.
fn dtype_of<T>(value: &Argument<T>) -> DType {
    match value {
        Argument::Bool(_) => DType::Bool,
        Argument::Int(_) | Argument::Size(_) => DType::I64,
        _ => DType::F32,
    }
}

fn number<T>(value: &Argument<T>) -> Result<f64, String> {
    match value {
        Argument::Bool(b) => Ok(f64::from(u8::from(*b))),
        Argument::Int(n) => Ok(*n as f64),
        Argument::Float(v) => Ok(*v),
        _ => Err("takes a number to fill with".to_owned()),
    }
}

/// Positions, up to a size that may depend on names where the step is 1.
fn arange<'t>(
    call: &Call<'_, 't>,
    start: Operand<'t>,
    end: Operand<'t>,
    step: Operand<'t>,
    dtype: Option<DType>,
) -> Result<Var<'t>, String> {
    let t = call.tracer;
    let whole = [start, end, step].iter().all(|n| !matches!(n, Operand::Float(_)));
    let dtype = dtype.unwrap_or(if whole { DType::I64 } else { DType::F32 });
    if let (Some(from), Some(to), Some(1)) =
        (start.size(), end.size(), step.size().and_then(Size::number))
        && (from.number().is_none() || to.number().is_none())
    {
        let at = t.iota(DType::I64, Shape::new(&[to - from]), 0);
        let at = if from == 0 { at } else { at.add(t.number(from, DType::I64)) };
        return Ok(at.to(dtype));
    }
    let number = |operand: Operand<'t>| operand.number(t).ok_or("takes numbers");
    Ok(t.arange(number(start)?, number(end)?, number(step)?, dtype))
}

fn linspace<'t>(
    call: &Call<'_, 't>,
    start: Var<'t>,
    end: Var<'t>,
    steps: i64,
    dtype: Option<DType>,
) -> Var<'t> {
    call.tracer.linspace(start, end, steps, dtype.unwrap_or(DType::F32))
}

fn logspace<'t>(
    call: &Call<'_, 't>,
    start: Var<'t>,
    end: Var<'t>,
    steps: i64,
    base: f64,
    dtype: Option<DType>,
) -> Var<'t> {
    call.tracer.logspace(start, end, steps, base, dtype.unwrap_or(DType::F32))
}
