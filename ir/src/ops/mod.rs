//! The op table, one family per file, and lookup by name.

pub mod cast;
pub mod elementwise;
pub mod infer;
pub mod reduce;
pub mod source;
pub mod view;
pub mod index;
pub mod linalg;
pub mod nn;
pub mod random;
pub mod amp;
pub mod grad;
pub mod fused;

use crate::op::OpDef;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The families in the order of the documentation.
pub fn families() -> Vec<(&'static str, &'static [&'static OpDef])> {
    vec![
        ("source", source::OPS),
        ("elementwise", elementwise::OPS),
        ("reduce", reduce::OPS),
        ("view", view::OPS),
        ("cat", view::CAT_OPS),
        ("index", index::OPS),
        ("linalg", linalg::OPS),
        ("nn", nn::OPS),
        ("random", random::OPS),
        ("cast", cast::OPS),
        ("amp", amp::OPS),
        ("grad", grad::OPS),
        ("fused", fused::OPS),
    ]
}

/// Every op of the table.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    families().into_iter().flat_map(|(_, ops)| ops.iter().copied())
}

/// The op of that name.
pub fn find(name: &str) -> Option<&'static OpDef> {
    static BY_NAME: LazyLock<HashMap<&'static str, &'static OpDef>> =
        LazyLock::new(|| all().map(|op| (op.name, op)).collect());
    BY_NAME.get(name).copied()
}
