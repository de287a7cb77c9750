//! The op table, one family per file, and lookup by name.

pub mod amp;
pub mod bag;
pub mod bits;
pub mod bounds;
pub mod cast;
pub mod collective;
pub mod conv;
pub mod custom;
pub mod division;
mod docs;
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
pub mod mul_add;
pub mod neighbour;
pub mod nn;
pub mod power;
pub mod products;
pub mod random;
pub mod reduce;
pub mod sample;
pub mod scans;
pub mod scatter;
pub mod sorting;
pub mod source;
pub mod statistics;
pub mod view;
pub mod windows;

pub use docs::docs;

use crate::op::OpDef;
use crate::policy::KnownOp;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The families in the order of the documentation.
pub fn families() -> Vec<(&'static str, &'static [&'static OpDef])> {
    vec![
        ("source", source::OPS),
        ("elementwise", elementwise::OPS),
        ("functions", functions::OPS),
        ("division", division::OPS),
        ("neighbour", neighbour::OPS),
        ("power", power::OPS),
        ("bits", bits::OPS),
        ("mul_add", mul_add::OPS),
        ("reduce", reduce::OPS),
        ("statistics", statistics::OPS),
        ("view", view::OPS),
        ("cat", view::CAT_OPS),
        ("windows", windows::OPS),
        ("index", index::OPS),
        ("scatter", scatter::OPS),
        ("indexed", indexed::OPS),
        ("bag", bag::OPS),
        ("lines", lines::OPS),
        ("scans", scans::OPS),
        ("sorting", sorting::OPS),
        ("linalg", linalg::OPS),
        ("products", products::OPS),
        ("conv", conv::OPS),
        ("length", length::OPS),
        ("activation", nn::activation::OPS),
        ("curve", nn::curve::OPS),
        ("softmax", nn::softmax::OPS),
        ("norm", nn::norm::OPS),
        ("loss", nn::loss::OPS),
        ("regression", nn::regression::OPS),
        ("margin", nn::margin::OPS),
        ("random", random::OPS),
        ("cast", cast::OPS),
        ("amp", amp::OPS),
        ("grad", grad::OPS),
        ("custom", custom::OPS),
        ("collective", collective::OPS),
        ("fused", fused::OPS),
    ]
}

/// The ops that policies are asked about though no built-in table lists them: they run in the dtypes they are given.
pub const FALLTHROUGH: &[&str] = &[
    "abs",
    "acosh",
    "add",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "argsort",
    "asinh",
    "atan",
    "atanh",
    "bernoulli",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "cos",
    "cummax",
    "cummin",
    "digamma",
    "div",
    "dropout",
    "elu",
    "embedding",
    "embedding_bag",
    "eq",
    "erf",
    "erfc",
    "exp2",
    "expand",
    "floor",
    "floor_divide",
    "fmod",
    "gather",
    "gcd",
    "ge",
    "gelu",
    "glu",
    "gt",
    "hardsigmoid",
    "hardswish",
    "hypot",
    "index_add",
    "index_reduce",
    "kthvalue",
    "le",
    "lerp",
    "lgamma",
    "log_sigmoid",
    "logaddexp",
    "logaddexp2",
    "logcumsumexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logit",
    "lt",
    "maximum",
    "mean",
    "median",
    "minimum",
    "mish",
    "msort",
    "mul",
    "nanmedian",
    "nansum",
    "ne",
    "neg",
    "nextafter",
    "pad",
    "permute",
    "polygamma",
    "remainder",
    "reshape",
    "rsub",
    "scatter",
    "scatter_reduce",
    "sigmoid",
    "silu",
    "sin",
    "sinc",
    "slice",
    "sort",
    "special_entr",
    "special_erfcx",
    "special_log_ndtr",
    "special_ndtr",
    "special_ndtri",
    "special_xlog1py",
    "sqrt",
    "std",
    "std_mean",
    "sub",
    "tanh",
    "topk",
    "uniform",
    "var",
    "var_mean",
    "where",
    "xlogy",
];

/// Every op of the table.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    families().into_iter().flat_map(|(_, ops)| ops.iter().copied())
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
    pub use super::nn::{Activations, Curves, Losses, Margins, Norms, Regressions, Softmaxes};
    pub use super::power::Powers;
    pub use super::products::MatrixProducts;
    pub use super::random::Random;
    pub use super::reduce::Reductions;
    pub use super::scans::Scans;
    pub use super::scatter::Scatters;
    pub use super::sorting::Sorting;
    pub use super::statistics::Statistics;
    pub use super::view::{Views, cat};
    pub use super::windows::Windowed;
}
