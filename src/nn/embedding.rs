//! [`Embedding`]: a table of vectors.

use crate::entry::Start;
use crate::nn::{Context, Module};
use crate::setters::setters;
use tracecast_ir::{DType, TensorType, Var};

/// One vector for each index: the rows of `weight`, which start normally distributed:
/// [`torch.nn.Embedding`](https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html).
///
/// `x` is i64 or i32 of any shape, the result has an axis of `width` elements behind it.
///
/// ```
/// use tracecast::nn::{Embedding, Module};
/// use tracecast::prelude::*;
///
/// let words = Embedding::new(10, 3).padding(0);
/// let mut store = Store::new();
/// words.init(&mut store, 0)?;
/// assert_eq!(store.get("weight")?.to_vec::<f32>()?[..3], [0.0; 3]);
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    rows: usize,
    width: usize,
    dtype: DType,
    padding: Option<i64>,
    most: Option<f64>,
    order: f64,
    scale: bool,
}

impl Embedding {
    /// `rows` vectors of `width` numbers, in f32.
    pub fn new(rows: usize, width: usize) -> Self {
        let (dtype, padding, most) = (DType::F32, None, None);
        Embedding { rows, width, dtype, padding, most, order: 2.0, scale: false }
    }

    setters! {
        /// With vectors of another dtype.
        dtype(dtype: DType) => dtype = dtype;
        /// With a row for what is no word: it starts as zeros and gets no gradient. A negative
        /// index counts from the end.
        padding(index: i64) => padding = Some(index);
        /// With rows whose norm is above `most` shortened to it where they are read. PyTorch
        /// shortens them in the table itself.
        max_norm(most: f64) => most = Some(most);
        /// With another order of the norm than 2.
        norm_type(order: f64) => order = order;
        /// With the gradient of each row divided by how often it was taken.
        scale_grad_by_freq() => scale = true;
    }
}

impl Module for Embedding {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let weight = table(cx, self.dtype, [self.rows, self.width], self.padding);
        cx.here(|| {
            let table = self.most.map_or(weight, |most| weight.limited(self.order, most));
            table.embedding_with(x, self.padding, self.scale)
        })
    }
}

/// The table, normally distributed but for the row of the padding.
fn table<'t>(cx: &Context<'t>, dtype: DType, size: [usize; 2], padding: Option<i64>) -> Var<'t> {
    let rows = i64::try_from(size[0]).unwrap_or(i64::MAX);
    let row = padding.map(|index| if index < 0 { index.saturating_add(rows) } else { index });
    let row = row.and_then(|row| usize::try_from(row).ok());
    let start = Start::Normal(0.0, 1.0);
    let start = row.map_or(start.clone(), |row| Start::ExceptRow(row, Box::new(start)));
    cx.parameter("weight", TensorType::new(dtype, size), start)
}
