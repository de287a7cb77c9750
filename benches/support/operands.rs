//! Random numbers for a program of a bench.

use tracecast::prelude::*;
use tracecast::{Graph, ir};

/// Numbers for each port of a program, in one dtype: a store with its parameters and state, and its
/// inputs by name.
pub(crate) fn random(graph: &Graph, dtype: DType) -> (Store, Vec<(String, Tensor)>) {
    let (mut store, mut inputs) = (Store::new(), Vec::new());
    for (seed, port) in graph.ports().iter().enumerate() {
        let numbers = Tensor::randn(port.ty.shape.clone(), seed as u64);
        let numbers = numbers.and_then(|x| x.cast(dtype)).expect("a size that fits");
        match port.role {
            ir::Role::Input => inputs.push((port.name.clone(), numbers)),
            _ => store.insert(&port.name, numbers),
        }
    }
    (store, inputs)
}
