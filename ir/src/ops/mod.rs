//! The op table, one family per file, and lookup by name.

pub mod amp;
pub mod bag;
pub mod barrier;
pub mod bits;
pub mod bounds;
pub mod cast;
pub mod collective;
pub mod conv;
pub mod custom;
pub mod division;
mod docs;
pub mod einsum;
pub mod elementwise;
pub mod functions;
pub mod fused;
pub mod grad;
pub mod index;
pub mod indexed;
pub mod infer;
pub mod length;
pub mod linalg;
pub mod lines;
pub mod listed;
pub mod mul_add;
pub mod neighbour;
pub mod nn;
mod operators;
pub mod padding;
pub mod pool;
pub mod power;
pub mod products;
pub mod random;
pub mod reduce;
pub mod resize;
pub mod sample;
pub mod scans;
pub mod scatter;
pub mod sorting;
pub mod source;
pub mod statistics;
mod taps;
pub mod view;
pub mod windows;

pub use docs::docs;

use crate::op::{Method, OpDef};
use crate::policy::KnownOp;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The ops of one file.
#[derive(Clone, Copy)]
pub struct Family {
    /// Of what kind they are.
    pub name: &'static str,
    /// The ops.
    pub ops: &'static [&'static OpDef],
    /// How each is called in Rust; empty if they are no methods of their first operand.
    pub methods: &'static [Method],
}

/// The families in the order of the documentation.
pub fn families() -> Vec<Family> {
    vec![
        Family { name: "source", ops: source::OPS, methods: &[] },
        Family { name: "elementwise", ops: elementwise::OPS, methods: elementwise::METHODS },
        Family { name: "functions", ops: functions::OPS, methods: functions::METHODS },
        Family { name: "division", ops: division::OPS, methods: division::METHODS },
        Family { name: "neighbour", ops: neighbour::OPS, methods: neighbour::METHODS },
        Family { name: "power", ops: power::OPS, methods: power::METHODS },
        Family { name: "bits", ops: bits::OPS, methods: bits::METHODS },
        Family { name: "mul_add", ops: mul_add::OPS, methods: mul_add::METHODS },
        Family { name: "reduce", ops: reduce::OPS, methods: reduce::METHODS },
        Family { name: "statistics", ops: statistics::OPS, methods: statistics::METHODS },
        Family { name: "view", ops: view::OPS, methods: view::METHODS },
        Family { name: "cat", ops: view::CAT_OPS, methods: &[] },
        Family { name: "windows", ops: windows::OPS, methods: windows::METHODS },
        Family { name: "index", ops: index::OPS, methods: index::METHODS },
        Family { name: "scatter", ops: scatter::OPS, methods: scatter::METHODS },
        Family { name: "indexed", ops: indexed::OPS, methods: indexed::METHODS },
        Family { name: "bag", ops: bag::OPS, methods: bag::METHODS },
        Family { name: "lines", ops: lines::OPS, methods: lines::METHODS },
        Family { name: "scans", ops: scans::OPS, methods: scans::METHODS },
        Family { name: "sorting", ops: sorting::OPS, methods: sorting::METHODS },
        Family { name: "linalg", ops: linalg::OPS, methods: linalg::METHODS },
        Family { name: "products", ops: products::OPS, methods: products::METHODS },
        Family { name: "listed", ops: listed::OPS, methods: listed::METHODS },
        Family { name: "stack", ops: listed::STACK_OPS, methods: &[] },
        Family { name: "einsum", ops: einsum::EINSUM_OPS, methods: &[] },
        Family { name: "padding", ops: padding::OPS, methods: padding::METHODS },
        Family { name: "conv", ops: conv::OPS, methods: conv::METHODS },
        Family { name: "transpose", ops: conv::transpose::OPS, methods: conv::transpose::METHODS },
        Family { name: "pool", ops: pool::OPS, methods: pool::METHODS },
        Family { name: "resize", ops: resize::OPS, methods: resize::METHODS },
        Family { name: "length", ops: length::OPS, methods: length::METHODS },
        Family { name: "activation", ops: nn::activation::OPS, methods: nn::activation::METHODS },
        Family { name: "curve", ops: nn::curve::OPS, methods: nn::curve::METHODS },
        Family { name: "softmax", ops: nn::softmax::OPS, methods: nn::softmax::METHODS },
        Family { name: "attention", ops: nn::attention::OPS, methods: nn::attention::METHODS },
        Family { name: "norm", ops: nn::norm::OPS, methods: nn::norm::METHODS },
        Family { name: "batch_norm", ops: nn::batch_norm::OPS, methods: nn::batch_norm::METHODS },
        Family { name: "group_norm", ops: nn::group_norm::OPS, methods: nn::group_norm::METHODS },
        Family { name: "loss", ops: nn::loss::OPS, methods: nn::loss::METHODS },
        Family { name: "regression", ops: nn::regression::OPS, methods: nn::regression::METHODS },
        Family { name: "margin", ops: nn::margin::OPS, methods: nn::margin::METHODS },
        Family { name: "random", ops: random::OPS, methods: random::METHODS },
        Family { name: "cast", ops: cast::OPS, methods: cast::METHODS },
        Family { name: "amp", ops: amp::OPS, methods: amp::METHODS },
        Family { name: "grad", ops: grad::OPS, methods: &[] },
        Family { name: "barrier", ops: barrier::OPS, methods: &[] },
        Family { name: "custom", ops: custom::OPS, methods: &[] },
        Family { name: "collective", ops: collective::OPS, methods: collective::METHODS },
        Family { name: "fused", ops: fused::OPS, methods: &[] },
    ]
}

/// A list of names.
macro_rules! names {
    ($($name:tt)*) => { [$(stringify!($name)),*] };
}

/// The ops that policies are asked about though no built-in table lists them: they run in the
/// dtypes they are given.
pub const FALLTHROUGH: &[&str] = &names! {
    abs acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d add
    amax amin argmax argmin argsort asinh atan atanh avg_pool1d avg_pool2d bernoulli bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor cos cummax cummin
    digamma div dropout elu embedding embedding_bag eq erf erfc exp2 expand floor floor_divide fmod
    gather gcd ge gelu glu gt hardsigmoid hardswish hypot index_add index_reduce kthvalue le lerp
    lgamma log_sigmoid logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logit lt
    max_pool1d maximum mean median minimum mish msort mul nanmedian nansum ne neg nextafter pad
    permute polygamma reflection_pad3d remainder reshape rsub scatter scatter_reduce sigmoid silu
    sin sinc slice sort special_entr special_erfcx special_log_ndtr special_ndtr special_ndtri
    special_xlog1py sqrt std std_mean sub tanh topk uniform var var_mean where xlogy
};

/// Every op of the table.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    families().into_iter().flat_map(|family| family.ops.iter().copied())
}

/// Every op as a review of policy files asks about it ([`review`](crate::policy::review)).
pub fn known() -> Vec<KnownOp<'static>> {
    let known = |op: &'static OpDef| KnownOp {
        name: op.name.text(),
        takes_dtype: op.schema.takes_dtype(),
        is_seen: op.dispatch.is_seen(),
    };
    all().map(known).collect()
}

/// The op of that name.
pub fn find(name: &str) -> Option<&'static OpDef> {
    static BY_NAME: LazyLock<HashMap<&'static str, &'static OpDef>> =
        LazyLock::new(|| all().map(|op| (op.name.text(), op)).collect());
    BY_NAME.get(name).copied()
}

/// Every family's methods.
pub mod prelude {
    pub use super::amp::LossScaling;
    pub use super::bag::Bags;
    pub use super::bits::Bits;
    pub use super::cast::Cast;
    pub use super::collective::Collectives;
    pub use super::conv::Convolutions;
    pub use super::division::Divisions;
    pub use super::elementwise::Elementwise;
    pub use super::functions::Functions;
    pub use super::index::Indexing;
    pub use super::indexed::Indexed;
    pub use super::length::Lengths;
    pub use super::linalg::Products;
    pub use super::lines::LineOps;
    pub use super::mul_add::MulAdds;
    pub use super::neighbour::Neighbours;
    pub use super::nn::{
        Activations, Attentions, BatchNorms, Curves, GroupNorms, Losses, Margins, Norms,
        Regressions, Softmaxes,
    };
    pub use super::padding::Paddings;
    pub use super::pool::Pools;
    pub use super::power::Powers;
    pub use super::products::MatrixProducts;
    pub use super::random::Random;
    pub use super::reduce::Reductions;
    pub use super::resize::Resizes;
    pub use super::scans::Scans;
    pub use super::scatter::Scatters;
    pub use super::sorting::Sorting;
    pub use super::statistics::Statistics;
    pub use super::view::{Views, cat};
    pub use super::windows::Windowed;
    pub use crate::IntoDims;
}
