//! Random numbers and dropout.

use super::Call;
use super::table;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Size, Var};

table! {
    "dropout(Tensor input, float p, bool train) -> Tensor" =>
        call (x: tensor, p: float, train: flag) dropped(call, x, p, train, |rng, stream| x.dropout(rng, p, stream))?;
    "alpha_dropout(Tensor input, float p, bool train) -> Tensor" =>
        call (x: tensor, p: float, train: flag) dropped(call, x, p, train, |rng, stream| x.alpha_dropout(rng, p, stream))?;
    "feature_dropout(Tensor input, float p, bool train) -> Tensor" =>
        call (x: tensor, p: float, train: flag) dropped(call, x, p, train, |rng, stream| x.feature_dropout(rng, p, stream))?;
    "feature_alpha_dropout(Tensor input, float p, bool train) -> Tensor" =>
        call (x: tensor, p: float, train: flag) dropped(call, x, p, train, |rng, stream| x.feature_alpha_dropout(rng, p, stream))?;
    "native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)" =>
        call (x: tensor, p: float, train: some_flag) native_dropout(call, x, p, train.unwrap_or(true))?;
    "bernoulli(Tensor self, *, Generator? generator=None) -> Tensor" =>
        call (x: tensor) drawn(call, |rng, stream| x.bernoulli_each(rng, stream))?;
    "bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor" =>
        call (x: tensor, p: float) drawn(call, |rng, stream| x.bernoulli(rng, p, stream))?;
    "uniform_(Tensor(a!) self, float from=0., float to=1., *, Generator? generator=None) -> Tensor(a!)" =>
        call (x: tensor, from: float, to: float) drawn(call, |rng, stream| x.uniform(rng, from, to, stream))?;
    "normal_(Tensor(a!) self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor(a!)" =>
        call (x: tensor, mean: float, deviation: float) drawn(call, |rng, stream| x.normal(rng, mean, deviation, stream))?;
    "exponential_(Tensor(a!) self, float lambd=1., *, Generator? generator=None) -> Tensor(a!)" =>
        call (x: tensor, rate: float) drawn(call, |rng, stream| x.exponential(rng, rate, stream))?;
    "rand(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (shape: sizes, dtype: some_dtype) drawn(call, |rng, stream| like(call, &shape, dtype).uniform(rng, 0.0, 1.0, stream))?;
    "randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (shape: sizes, dtype: some_dtype) drawn(call, |rng, stream| like(call, &shape, dtype).normal(rng, 0.0, 1.0, stream))?;
    "rand_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor" =>
        call (x: tensor, dtype: some_dtype) drawn(call, |rng, stream| x.to(dtype.unwrap_or(x.dtype())).uniform(rng, 0.0, 1.0, stream))?;
    "randn_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor" =>
        call (x: tensor, dtype: some_dtype) drawn(call, |rng, stream| x.to(dtype.unwrap_or(x.dtype())).normal(rng, 0.0, 1.0, stream))?;
    "randint(SymInt high, SymInt[] size, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (high: int, shape: sizes, dtype: some_dtype) drawn(call, |rng, stream| like(call, &shape, dtype.or(Some(DType::I64))).randint(rng, 0, high, stream))?;
    "randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (low: int, high: int, shape: sizes, dtype: some_dtype) drawn(call, |rng, stream| like(call, &shape, dtype.or(Some(DType::I64))).randint(rng, low, high, stream))?;
    "randint_like(Tensor self, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor" =>
        call (x: tensor, high: int, dtype: some_dtype) drawn(call, |rng, stream| x.to(dtype.unwrap_or(x.dtype())).randint(rng, 0, high, stream))?;
    "randint_like.low_dtype(Tensor self, SymInt low, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor" =>
        call (x: tensor, low: int, high: int, dtype: some_dtype) drawn(call, |rng, stream| x.to(dtype.unwrap_or(x.dtype())).randint(rng, low, high, stream))?;
    "multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor" =>
        call (x: tensor, count: int, replacement: flag) drawn(call, |rng, stream| x.multinomial(rng, count, replacement, stream))?;
    "normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor" =>
        call (mean: tensor, deviation: tensor) drawn(call, |rng, stream| mean.normal(rng, 0.0, 1.0, stream).mul(deviation).add(mean))?;
    "normal.Tensor_float(Tensor mean, float std=1., *, Generator? generator=None) -> Tensor" =>
        call (mean: tensor, deviation: float) drawn(call, |rng, stream| mean.normal(rng, 0.0, 1.0, stream).mul(deviation).add(mean))?;
    "normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor" =>
        call (mean: float, deviation: tensor) drawn(call, |rng, stream| deviation.normal(rng, 0.0, 1.0, stream).mul(deviation).add(mean))?;
    "normal.float_float(float mean, float std, SymInt[] size, *, Generator? generator=None, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor" =>
        call (mean: float, deviation: float, shape: sizes, _generator: any, dtype: some_dtype) drawn(call, |rng, stream| like(call, &shape, dtype).normal(rng, mean, deviation, stream))?;
}

fn drawn<'t>(
    call: &Call<'_, 't>,
    draw: impl FnOnce(Var<'t>, i64) -> Var<'t>,
) -> Result<Var<'t>, String> {
    let (rng, stream) = call.draw()?;
    Ok(draw(rng, stream))
}

fn dropped<'t>(
    call: &Call<'_, 't>,
    x: Var<'t>,
    p: f64,
    train: bool,
    drop: impl FnOnce(Var<'t>, i64) -> Var<'t>,
) -> Result<Var<'t>, String> {
    if train && p > 0.0 { drawn(call, drop) } else { Ok(x) }
}

/// What is left, and where it is.
fn native_dropout<'t>(
    call: &Call<'_, 't>,
    x: Var<'t>,
    p: f64,
    train: bool,
) -> Result<Vec<Var<'t>>, String> {
    if !train {
        return Ok(vec![x, call.filled(&x.shape(), DType::Bool, 1.0)]);
    }
    let (rng, stream) = call.draw()?;
    Ok(x.dropout(rng, p, stream).results().into_vec())
}

/// A tensor of the type to draw.
fn like<'t>(call: &Call<'_, 't>, shape: &[Size], dtype: Option<DType>) -> Var<'t> {
    call.filled(shape, dtype.unwrap_or(DType::F32), 0.0)
}
