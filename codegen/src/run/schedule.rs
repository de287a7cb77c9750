//! The schedule of a product as a line of text, for people and for golden tests: what is chosen for
//! some sizes on a machine, which need not be this one.

use super::{attention, contract, room_bytes, transposed};
use crate::error::Error;
use crate::machine::Machine;
use crate::plan::numbers::Numbers;
use crate::plan::{BoundDispatch, Dispatch, plan};
use std::fmt::Write;
use tracecast_ir::kernel::Kernel;

/// The schedule of a kernel that is a product, at the sizes that it was traced with: sizes,
/// schedule, blocking, thread grid, and bytes of workspace of each thread. `None` for other
/// kernels.
///
/// # Errors
/// If no code exists for the kernel.
pub fn schedule_text(
    kernel: &Kernel,
    machine: &Machine,
) -> tracecast_runtime::Result<Option<String>> {
    let values = kernel.hints();
    let dispatch = plan(kernel, &values)?.dispatch.at(&Numbers::new(&values));
    let dispatch = dispatch.map_err(|why| Error::Sizes { kernel: kernel.name.clone(), why })?;
    Ok(schedule(&dispatch, machine))
}

/// The same at the sizes of a binding.
pub(crate) fn schedule(dispatch: &BoundDispatch, machine: &Machine) -> Option<String> {
    let (problem, (chosen, grid), workspace) = match dispatch {
        Dispatch::Contract(of) => {
            let [left, right] = [0, 1].map(|i| of.factors[i].values());
            let batches: usize = of.batch.iter().product();
            let sizes = format!("batches {batches}, m {}, n {}, k {}", of.m, of.n, of.k);
            let chosen = contract::chosen(of, machine)?;
            (
                format!("{left}*{right} in {}, {sizes}", of.acc),
                chosen,
                contract::workspace(of, machine, None).1.bytes(),
            )
        }
        Dispatch::Transposed(of) => {
            let ([from, to], [rows, columns]) = (of.planes, of.to);
            let sizes = format!("groups {}, channels {from} to {to}, {rows}x{columns}", of.groups);
            let bytes = transposed::workspace(of, &machine.cpu).bytes();
            (format!("{}, {sizes}", of.dtype), transposed::chosen(of, machine), bytes)
        }
        Dispatch::Attention(of) => {
            let e = &of.extents;
            let sizes =
                format!("heads {}, queries {}, keys {}", e.batch * e.heads, e.queries, e.keys);
            let bytes = attention::bytes_of_thread(of);
            (sizes, attention::chosen(of, machine), bytes)
        }
        Dispatch::Nest(_) | Dispatch::Scatter(_) | Dispatch::Lines(_) => return None,
    };
    let mut text = format!("{problem}: {chosen}, grid");
    let cut = grid.iter().filter(|(_, parts)| *parts > 1);
    let cut: Vec<String> = cut.map(|(what, parts)| format!("{what} {parts}")).collect();
    let grid = if cut.is_empty() { "1".to_owned() } else { cut.join(" x ") };
    // Writing to a string does not fail.
    let _ = write!(text, " {grid}, workspace {workspace} B");
    match room_bytes(dispatch, machine) {
        0 => {}
        shared => text += &format!(" + {shared} B shared"),
    }
    Some(text)
}
