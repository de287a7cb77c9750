//! The table of overloads, a file for each family.

mod attend;
mod backward;
mod bag;
mod call;
mod compare;
mod conv;
mod create;
mod elementwise;
mod entry;
mod index;
mod loss;
mod norm;
mod pool;
mod product;
mod random;
mod recurrent;
mod reduce;
mod unary;
mod view;

pub(crate) use call::Call;
pub use call::Draws;
pub use entry::Overload;
pub(crate) use entry::{kind, table};

use crate::schema::Schema;
use std::collections::HashMap;
use std::sync::LazyLock;

/// All entries, family by family.
pub fn overloads() -> impl Iterator<Item = &'static Overload> {
    FAMILIES.iter().flat_map(|family| family.iter())
}

const FAMILIES: [&[Overload]; 17] = [
    attend::TABLE,
    backward::TABLE,
    bag::TABLE,
    compare::TABLE,
    conv::TABLE,
    create::TABLE,
    elementwise::TABLE,
    index::TABLE,
    loss::TABLE,
    norm::TABLE,
    pool::TABLE,
    product::TABLE,
    random::TABLE,
    recurrent::TABLE,
    reduce::TABLE,
    unary::TABLE,
    view::TABLE,
];

type Schemas = HashMap<String, (&'static Overload, Schema)>;

/// The entries by their names.
pub(crate) fn schemas() -> &'static Schemas {
    static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
        let parsed = overloads().map(|overload| (overload, Schema::parse(overload.schema)));
        parsed.map(|(overload, schema)| (schema.name.clone(), (overload, schema))).collect()
    });
    &SCHEMAS
}
