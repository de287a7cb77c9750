//! Bags of embeddings: `_embedding_bag` with the results that its gradients read, and these
//! gradients.

use super::table;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Number, Size, TensorType, Var};

table! {
    "embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> (Tensor, Tensor, Tensor, Tensor)" =>
        (weight: tensor, indices: tensor, offsets: tensor, scale: flag, mode: int, _sparse: any, weights: some_tensor, last: flag, padding: some_int) Bagged { indices, offsets, mode: Mode::of(mode)?, last, padding: row(weight, padding)? }.results(weight, weights, scale);
    "_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)" =>
        (weight: tensor, indices: tensor, offsets: tensor, scale: flag, mode: int, _sparse: any, weights: some_tensor, last: flag, padding: int) Bagged { indices, offsets, mode: Mode::of(mode)?, last, padding: (padding >= 0).then_some(padding) }.results(weight, weights, scale);
    "_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor" =>
        (dy: tensor, indices: tensor, offsets: tensor, _bags: any, sizes: tensor, most: tensor, rows: size, scale: flag, mode: int, sparse: flag, weights: some_tensor, padding: int) Bagged::behind(dy, indices, offsets, mode, padding)?.gradient(dy, [sizes, most], rows, weights, scale, sparse)?;
    "_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor" =>
        (dy: tensor, weight: tensor, indices: tensor, offsets: tensor, _bags: any, mode: int, padding: int) Bagged::behind(dy, indices, offsets, mode, padding)?.gradient_of_weights(dy, weight);
}

/// How the rows of a bag are reduced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Sum,
    Mean,
    Max,
}

impl Mode {
    fn of(number: i64) -> Result<Self, String> {
        Ok(match super::entry::word(number, &["sum", "mean", "max"])? {
            "sum" => Mode::Sum,
            "mean" => Mode::Mean,
            _ => Mode::Max,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Mode::Sum => "sum",
            Mode::Mean => "mean",
            Mode::Max => "max",
        }
    }
}

/// A row of a table that may count from the end.
fn row(weight: Var<'_>, row: Option<i64>) -> Result<Option<i64>, String> {
    let rows = weight.size(0).number().ok_or("takes a table whose rows are counted")?;
    Ok(row.map(|row| if row < 0 { row + rows } else { row }))
}

/// Indices in bags that begin at the offsets.
struct Bagged<'t> {
    indices: Var<'t>,
    offsets: Var<'t>,
    mode: Mode,
    /// The last offset ends the last bag.
    last: bool,
    /// The row that counts for nothing.
    padding: Option<i64>,
}

impl<'t> Bagged<'t> {
    /// Those of a result whose gradient is `dy`.
    fn behind(
        dy: Var<'t>,
        indices: Var<'t>,
        offsets: Var<'t>,
        mode: i64,
        padding: i64,
    ) -> Result<Self, String> {
        let last = offsets.size(0) != dy.size(0);
        let padding = (padding >= 0).then_some(padding);
        Ok(Bagged { indices, offsets, mode: Mode::of(mode)?, last, padding })
    }

    fn reduced(&self, weight: Var<'t>, weights: Option<Var<'t>>, scale: bool) -> Var<'t> {
        let mode = Some(self.mode.name());
        weight.embedding_bag(
            self.indices,
            self.offsets,
            weights,
            mode,
            self.last,
            self.padding,
            scale,
        )
    }

    /// The reduced rows; the bag of each index; the number of indices in each bag; the index of
    /// each maximum.
    ///
    /// As PyTorch's for the CPU, the second is empty and the third is zeros where no gradient reads
    /// them. The last is the third for other modes than `max`.
    fn results(&self, weight: Var<'t>, weights: Option<Var<'t>>, scale: bool) -> [Var<'t>; 4] {
        let y = self.reduced(weight, weights, scale);
        if y.is_poison() {
            return [y; 4];
        }
        let bag = self.bag_of_each(y.size(0));
        let is_quick = matches!(weight.dtype(), DType::F32 | DType::F16) && self.padding.is_none();
        let sizes = self.filled(&[y.size(0)], 0.0);
        if self.mode == Mode::Sum {
            return [y, if is_quick { self.filled(&[0.into()], 0.0) } else { bag }, sizes, sizes];
        }
        let ones = self.filled(&[self.indices.size(0)], 1.0);
        let counts = self.counts().map_or(ones, |counts| counts.to(ones.dtype()));
        let sizes = sizes.scatter_add(bag, counts, 0);
        let most = if self.mode == Mode::Max { self.maxima(weight, y, bag) } else { sizes };
        [y, bag, sizes, most]
    }

    fn filled(&self, shape: &[Size], value: impl Into<Number>) -> Var<'t> {
        self.offsets.tracer().full(TensorType::new(self.offsets.dtype(), shape), value)
    }

    /// Which indices count, if not all do.
    fn counts(&self) -> Option<Var<'t>> {
        self.padding.map(|padding| self.indices.ne(padding as f64))
    }

    /// The bag of each index: how many have begun, less one.
    fn bag_of_each(&self, bags: Size) -> Var<'t> {
        let length = self.indices.size(0);
        let begun = self.offsets.slice(0, 0, bags, 1);
        let marks = self.filled(&[length + 1], 0.0);
        let marks = marks.scatter_add(begun, self.filled(&[bags], 1.0), 0);
        marks.slice(0, 0, length, 1).cumsum([0].dtype(self.offsets.dtype())).sub(1.0)
    }

    /// The index of the first row that has the maximum of each bag, element by element; 0 where
    /// none has it.
    fn maxima(&self, weight: Var<'t>, y: Var<'t>, bag: Var<'t>) -> Var<'t> {
        let (length, dtype) = (self.indices.size(0), self.offsets.dtype());
        let rows = weight.embedding(self.indices);
        let mut has = rows.eq(y.index_select(0, bag));
        if let Some(counts) = self.counts() {
            has = has.logical_and(counts.unsqueeze(-1));
        }
        let shape = rows.shape();
        let none = self.filled(&y.shape(), length);
        let at = rows.tracer().iota(dtype, &shape[..], 0);
        let at = has.choose(at, self.filled(&shape, length));
        let first = none.scatter_min(bag.unsqueeze(-1).expand(&shape[..]), at, 0);
        let zero = self.filled(&[1.into()], 0.0);
        cat(&[self.indices.to(dtype), zero], 0).take(first)
    }

    /// The gradient of the table from that of the result, and the third and fourth result.
    fn gradient(
        &self,
        dy: Var<'t>,
        [sizes, most]: [Var<'t>; 2],
        rows: Size,
        weights: Option<Var<'t>>,
        scale: bool,
        sparse: bool,
    ) -> Result<Var<'t>, String> {
        if sparse {
            return Err("gives a sparse gradient".to_owned());
        }
        let t = dy.tracer();
        let table = t.full(TensorType::new(dy.dtype(), &[rows, dy.size(1)][..]), 0.0);
        if self.mode == Mode::Max {
            let counted = sizes.ne(0.0).unsqueeze(-1).choose(dy, 0.0);
            return Ok(table.scatter_add(most, counted, 0));
        }
        let loss = self.reduced(table, weights, scale).mul(dy.detach()).sum(());
        Ok(t.grad(loss, &[table])[0])
    }

    /// The gradient of the weights of single indices: the dot product of the row and the gradient
    /// of its bag.
    fn gradient_of_weights(&self, dy: Var<'t>, weight: Var<'t>) -> Var<'t> {
        let wide = dy.dtype().compute();
        let bag = self.bag_of_each(dy.size(0));
        let rows = weight.embedding(self.indices).to(wide);
        let dots = rows.mul(dy.index_select(0, bag).to(wide)).sum(1).to(dy.dtype());
        self.counts().map_or(dots, |counts| counts.choose(dots, 0.0))
    }
}
