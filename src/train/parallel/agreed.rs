//! What ranks have to have in common before a program runs.

use super::program::{Compiled, fingerprint};
use crate::error::Result;
use tracecast_runtime::collective::{Label, agree};
use tracecast_runtime::{Collective, Store, Tensor};

/// Compares the types of inputs, the program and the entries of the store that it uses and that
/// ranks have in common; the first difference is an error on every rank.
pub(super) fn compare(
    ranks: &dyn Collective,
    program: &Compiled,
    store: &Store,
    inputs: &[(&str, &Tensor)],
    label: Label,
) -> Result<()> {
    let mut facts: Vec<(String, String)> = Vec::new();
    for name in program.inputs() {
        if let Some((_, tensor)) = inputs.iter().find(|(given, _)| *given == name) {
            let ty = program.shown(tensor);
            facts.push((format!("the input `{name}`"), ty));
        }
    }
    facts.push(("the program".to_owned(), format!("{:016x}", program.fingerprint())));
    for (name, ty) in program.state() {
        facts.push((format!("the type of `{name}`"), ty.to_string()));
        if program.writes_from_own_rows(name) {
            continue;
        }
        let bytes = fingerprint(store.get(name)?.bytes());
        facts.push((format!("the value of `{name}`"), format!("{bytes:016x}")));
    }
    agree(ranks, label, &facts)
}
