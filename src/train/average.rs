//! The moving average of the weights.

use crate::entry::{Entry, Start};
use crate::error::Result;
use crate::trace::Trace;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::{Role, TensorType, Var};
use tracecast_runtime::Store;

/// What the names of averages start with.
pub(crate) const PREFIX: &str = "ema";

/// The average of a parameter of this name and type.
fn entry(name: &str, ty: &TensorType) -> Entry {
    let dtype = ty.dtype.compute();
    let ty = TensorType { dtype, shape: ty.shape.clone() };
    Entry::state(format!("{PREFIX}.{name}"), ty, Start::Constant(0.0))
}

/// The averages of those that are trained.
pub(crate) fn entries(model: &[Entry]) -> Vec<Entry> {
    let trained = model.iter().filter(|of| of.role == Role::Param);
    trained.map(|of| entry(&of.name, &of.ty)).collect()
}

/// Puts the values that the parameters have into the store as their averages.
pub(crate) fn start(store: &mut Store, model: &[Entry]) -> Result<()> {
    for of in model.iter().filter(|of| of.role == Role::Param) {
        let average = entry(&of.name, &of.ty);
        let value = store.get(&of.name)?.cast(average.ty.dtype)?;
        store.insert(&average.name, value);
    }
    Ok(())
}

/// Records the next average of each parameter from its next value, unless `skip`. `steps` is the
/// number of steps taken before.
///
/// The first average is the parameter itself, the others
/// `average + (parameter - average) · (1 - decay)`, as PyTorch's `AveragedModel` with
/// `get_ema_multi_avg_fn`.
pub(crate) fn record<'t>(
    t: &'t Trace,
    params: &[Var<'t>],
    decay: f64,
    steps: Var<'t>,
    skip: Option<Var<'t>>,
) {
    let first = steps.eq(0.0);
    for param in params {
        let (Some(name), Some(next)) = (t.name_of(*param), t.next_of(*param)) else {
            continue;
        };
        let average = t.state_from(entry(&name, &param.ty()));
        let next = if next.dtype() == average.dtype() { next } else { next.cast(average.dtype()) };
        let mixed = average + (next - average) * (1.0 - decay);
        let moved = first.choose(next, mixed);
        t.update(average, skip.map_or(moved, |skip| skip.choose(average, moved)));
    }
}
