//! Hash tables of numbers the program itself has given out: nodes, values, places. Nobody can
//! choose them to collide, so their hash is a multiplication and not the standard one, which
//! resists attacks and takes five times as long.

use rustc_hash::FxBuildHasher;
pub use rustc_hash::FxHasher;
use std::collections::{HashMap, HashSet};

/// A table of values by such a key.
pub type FxHashMap<K, V> = HashMap<K, V, FxBuildHasher>;

/// A set of such keys.
pub type FxHashSet<K> = HashSet<K, FxBuildHasher>;
