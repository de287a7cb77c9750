//! [`MultiHead`]: what attention of several heads has besides query, key and value.

use crate::Var;

/// What [`Var::multi_head_attention_forward`] has besides query, key and value.
#[derive(Clone, Debug)]
pub struct MultiHead<'t> {
    /// How many heads there are.
    pub heads: usize,
    /// The matrices of query, key and value, `[width, ...]`: all in one, or three.
    pub weights: Vec<Var<'t>>,
    /// What is added behind them, `[3 · width]`.
    pub bias: Option<Var<'t>>,
    /// A key and a value more, which end with the width.
    pub more: Option<[Var<'t>; 2]>,
    /// A key and a value of zeros more.
    pub zero: bool,
    /// The probability that a weight is dropped, the generator, and the stream.
    pub dropout: Option<(f64, Var<'t>, i64)>,
    /// The matrix and the bias behind the heads.
    pub out: Option<(Var<'t>, Option<Var<'t>>)>,
    /// `[L, S]` or `[N · heads, L, S]`, without a batch `[heads, L, S]`: true where a query must
    /// not see a key, or floats that are added to the scores.
    pub mask: Option<Var<'t>>,
    /// `[N, S]`, without a batch `[S]`: true where a key is padding, or floats that are added to
    /// the scores.
    pub padding: Option<Var<'t>>,
    /// Each query sees the keys up to its own position.
    pub causal: bool,
    /// The batch lies along the first axis, not along the second.
    pub batch_first: bool,
    /// Weights of keys are a result as well: PyTorch's `need_weights`. Then it computes attention
    /// op by op, and so is done here; without them attention is one kernel.
    pub needs_weights: bool,
    /// The weights of each head, and not their mean: PyTorch's `average_attn_weights`, the other
    /// way round.
    pub per_head: bool,
}
