//! [`Embedding`]: a table of vectors.

use crate::entry::{Entry, Start};
use crate::nn::{Context, Module};
use tracecast_ir::ops::index::Indexing;
use tracecast_ir::{DType, TensorType, Var};

/// One vector for each index: the rows of `weight`, which start normally distributed.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    rows: usize,
    width: usize,
    dtype: DType,
}

impl Embedding {
    /// `rows` vectors of `width` numbers, in f32.
    pub fn new(rows: usize, width: usize) -> Self {
        Embedding { rows, width, dtype: DType::F32 }
    }

    /// With vectors of another dtype.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    fn weight(&self) -> TensorType {
        TensorType::new(self.dtype, [self.rows, self.width])
    }
}

impl Module for Embedding {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let weight = cx.parameter("weight", self.weight());
        cx.here(|| weight.embedding(x))
    }

    fn entries(&self) -> Vec<Entry> {
        vec![Entry::param("weight", self.weight(), Start::Normal(0.0, 1.0))]
    }
}
