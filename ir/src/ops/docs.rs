//! The text of `docs/ops.md`, made from the table.

use super::families;
use crate::kernel::Function;
use crate::op::{Body, Dispatch, Grad, Inside, Lower, Method, OpDef, Operand, OperandKind, View};
use crate::policy::{DeviceType, PolicyTable};
use std::fmt::Write;

const HEAD: &str = "# Ops

Every op of the table, by family, and behind them the functions that record several ops. This page is made from the sources; do not edit it.

An operand marked `?` may be absent, one marked `..` is a list. An attribute marked `?` may be left out, and so may a `bool`, which is
then false.
";

/// How ops are called that are no method of their first operand with their arguments in the order
/// of the record.
const CALLS: &[(&str, &str)] = &[
    ("cat", "cat(xs, dim)"),
    ("constant", "t.constant(dtype, shape, numbers)` or `t.full(ty, value)"),
    ("custom_grad", "custom_grad(operands, forward, backward)"),
    ("einsum", "einsum(equation, xs)"),
    ("grad", "t.grad(loss, wrt)"),
    ("input", "t.input(name)"),
    ("iota", "t.tracer().iota(dtype, shape, dim)"),
    ("kthvalue", "x.kthvalue(k, dim)"),
    ("native_layer_norm", "x.native_layer_norm(normalized_shape, weight, bias, eps)"),
    ("stack", "stack(xs, dim)"),
];

/// What PyTorch calls ops that its policies never meet here.
const CALLED_THERE: &[(&str, &str)] = &[
    ("all_gather", "_c10d_functional::all_gather_into_tensor"),
    ("all_reduce", "_c10d_functional::all_reduce"),
    ("attention", "aten::_scaled_dot_product_flash_attention_for_cpu"),
    ("attention_backward", "aten::_scaled_dot_product_flash_attention_for_cpu_backward"),
    ("batch_norm_backward", "aten::native_batch_norm_backward"),
    ("broadcast", "_c10d_functional::broadcast"),
    ("cast", "aten::to.dtype"),
    ("constant", "aten::full"),
    ("custom_grad", "torch.autograd.Function"),
    ("detach", "aten::detach"),
    ("div_trunc", "aten::div.Tensor_mode"),
    ("embedding_backward", "aten::embedding_dense_backward"),
    ("gelu_backward", "aten::gelu_backward"),
    ("grad", "torch.autograd.grad"),
    ("group_norm_backward", "aten::native_group_norm_backward"),
    ("hardswish_backward", "aten::hardswish_backward"),
    ("integer_power", "aten::pow.Tensor_Tensor"),
    ("iota", "aten::arange"),
    ("layer_norm_backward", "aten::native_layer_norm_backward"),
    ("lerp_by", "aten::lerp.Tensor"),
    ("log_softmax_backward", "aten::_log_softmax_backward_data"),
    ("nll_loss_backward", "aten::nll_loss_backward"),
    ("put_slice", "aten::slice_scatter"),
    ("reduce_scatter", "_c10d_functional::reduce_scatter_tensor"),
    ("reduce_to", "torch.distributed.reduce"),
    ("scatter_max", "aten::scatter_reduce.two"),
    ("scatter_min", "aten::scatter_reduce.two"),
    ("scatter_mul", "aten::scatter_reduce.two"),
    ("sigmoid_backward", "aten::sigmoid_backward"),
    ("silu_backward", "aten::silu_backward"),
    ("softmax_backward", "aten::_softmax_backward_data"),
    ("tanh_backward", "aten::tanh_backward"),
    ("unscale_check", "aten::_amp_foreach_non_finite_check_and_unscale_"),
    ("update_scale", "aten::_amp_update_scale_"),
];

fn listed<'l>(list: &[(&str, &'l str)], op: &OpDef) -> Option<&'l str> {
    list.iter().find(|(name, _)| *name == op.name.text()).map(|(_, text)| *text)
}

/// The page: every op with its operands, attributes and results, what it computes, where it rounds,
/// what policies say of it, and how it is made.
pub fn docs() -> String {
    let mut page = HEAD.to_owned();
    for family in families() {
        write_line(&mut page, format_args!("\n## {}", family.name));
        for (i, op) in family.ops.iter().enumerate() {
            write_op(&mut page, op, family.methods.get(i));
        }
    }
    write_bounds(&mut page);
    page
}

const BOUNDS: &str = "
## Accuracy of functions

How far the functions that kernels call may be from the exact value in f32, in units in the last place; `ir/tests/accuracy.rs` measures
it over all magnitudes. Below zero, where `lgamma` and `digamma` are differences of two numbers, the units are those of the larger of these,
and at least of 1. In 16 bits the result is then rounded once. The last column is how far functions of an f64 may be from the exact value, in units of f64, below
zero as before, and those of `digamma` at least of 1 everywhere.

| function | units | in f64 |
|---|---|---|";

const MADE_OF_FUNCTIONS: &str = "
Ops that are made of several functions, over magnitudes of an f32 up to 1e38. The operand of a probability is rounded before it is used, and far out that
changes it by as many units as its square.

| op | units | of |
|---|---|---|";

fn write_bounds(page: &mut String) {
    write_line(page, format_args!("{BOUNDS}"));
    for function in Function::ALL {
        let of_doubles =
            function.bound_of_doubles().map_or(String::new(), |units| units.to_string());
        let (name, bound) = (function.name(), function.bound());
        write_line(page, format_args!("| `{name}` | {bound} | {of_doubles} |"));
    }
    write_line(page, format_args!("{MADE_OF_FUNCTIONS}"));
    for bound in &super::bounds::BOUNDS {
        let order = bound.order.map_or(String::new(), |n| format!(" with `n = {n}`"));
        let of = if bound.of_one { "the result, at least of 1" } else { "the result" };
        let (op, units) = (bound.op.name, bound.units);
        write_line(page, format_args!("| `{op}`{order} | {units} | {of} |"));
    }
}

fn write_op(page: &mut String, op: &OpDef, method: Option<&Method>) {
    write_line(page, format_args!("\n### `{}`\n\n```text\n{}\n```\n", op.name, signature(op)));
    for line in paragraphs(op.doc) {
        write_line(page, format_args!("{}", without_links(&line)));
    }
    write_line(page, format_args!("\n* Rounds: {}.", op.rounding));
    let own = listed(CALLS, op).map(str::to_owned);
    if let Some(call) = own.or_else(|| method.map(called)) {
        write_line(page, format_args!("* In Rust: `{call}`."));
    }
    if let Some(name) = in_pytorch(op) {
        write_line(page, format_args!("* In PyTorch: `{name}`."));
    }
    write_line(page, format_args!("* Precision: {}.", precision(op)));
    write_line(page, format_args!("* Made of: {}.", made_of(&op.body)));
    write_line(page, format_args!("* Gradient: {}.", gradient(&op.body)));
    if !op.domain.samples.is_empty() {
        let names: Vec<_> = op.domain.dtypes.iter().map(|d| d.name()).collect();
        write_line(page, format_args!("* Tested with: {}.", names.join(", ")));
    }
}

/// The lines of a comment, those of a paragraph or of an item joined.
fn paragraphs(doc: &str) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    let (mut in_code, mut goes_on) = (false, false);
    for line in doc.trim_end().lines() {
        let line = line.strip_prefix(' ').unwrap_or(line);
        let is_fence = line.starts_with("```");
        let begins = in_code || is_fence || line.is_empty() || line.starts_with(['|', '*']);
        match joined.last_mut().filter(|_| goes_on && !begins) {
            Some(last) => last.extend([" ", line.trim_start()]),
            None => joined.push(line.to_owned()),
        }
        in_code ^= is_fence;
        goes_on = !in_code && !is_fence && !line.is_empty() && !line.starts_with('|');
    }
    joined
}

fn write_line(page: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(page, "{text}").expect("writing to a string cannot fail");
}

/// `x.name(arguments)`. A method that gives the first of several results is named for it, beside
/// one that gives them all.
fn called(method: &Method) -> String {
    let name = method.name.strip_suffix("_values").unwrap_or(method.name);
    format!("{}.{name}({})", method.receiver, method.arguments.join(", "))
}

/// `name(operands; attributes) -> (results)`.
fn signature(op: &OpDef) -> String {
    let operand = |o: &Operand| match o.kind {
        OperandKind::One => o.name.to_owned(),
        OperandKind::Optional => format!("{}?", o.name),
        OperandKind::List => format!("{}..", o.name),
    };
    let operands: Vec<_> = op.schema.operands.iter().map(operand).collect();
    let attrs: Vec<_> = op.schema.attrs.iter().map(|a| format!("{}: {}", a.name, a.kind)).collect();
    let semicolon = if operands.is_empty() || attrs.is_empty() { "" } else { "; " };
    format!(
        "{}({}{semicolon}{}) -> ({})",
        op.name,
        operands.join(", "),
        attrs.join(", "),
        op.schema.results.join(", ")
    )
}

/// What it is in PyTorch: the op of its dispatcher that autocast meets in its place, or what it
/// calls the same thing.
fn in_pytorch(op: &OpDef) -> Option<String> {
    if let Some(name) = listed(CALLED_THERE, op) {
        return Some(name.to_owned());
    }
    let (Dispatch::Listed { overload } | Dispatch::ListedOrExpands { overload }) = &op.dispatch
    else {
        return None;
    };
    let point = if overload.is_empty() { "" } else { "." };
    Some(format!("aten::{}{point}{overload}", op.name))
}

/// What the policy tables of cpu and cuda say.
fn precision(op: &OpDef) -> String {
    let (overload, else_expands) = match &op.dispatch {
        Dispatch::Internal => return "no policy casts it".to_owned(),
        Dispatch::Declares(policy) => return format!("its own, {policy}"),
        Dispatch::Expands => {
            return "that of its parts, which policies meet in its place".to_owned();
        }
        Dispatch::Listed { overload } => (*overload, false),
        Dispatch::ListedOrExpands { overload } => (*overload, true),
    };
    let said: Vec<_> = PolicyTable::standard()
        .iter()
        .filter(|table| matches!(table.device(), DeviceType::Cpu | DeviceType::Cuda))
        .map(|table| match table.get(op.name.text(), overload) {
            Some((policy, _)) => format!("`{}` {}", table.name(), policy),
            None if else_expands => format!("`{}` that of its parts", table.name()),
            None => format!("`{}` falls through", table.name()),
        })
        .collect();
    let name =
        if overload.is_empty() { String::new() } else { format!("as `{}.{overload}`: ", op.name) };
    name + &said.join(", ")
}

fn made_of(body: &Body) -> &'static str {
    match body {
        Body::Source(lower) | Body::Core { kernel: lower, .. } => kernel(lower),
        Body::Composite { inside: Inside::F32, .. } => "other ops, in f32 for 16-bit floats",
        Body::Composite { inside: Inside::Own, .. } => "other ops",
        Body::Symbolic(_) => "nothing that runs: a pass removes it",
    }
}

fn kernel(lower: &Lower) -> &'static str {
    match lower {
        Lower::Map(_) => "scalar code for each element",
        Lower::View(View::Identity | View::Barrier) => "nothing: the same value",
        Lower::View(_) => "nothing: a view of the same elements",
        Lower::Gather => "a load at a place computed at run time",
        Lower::Cat | Lower::Pad | Lower::Windows => "guarded loads",
        Lower::ReduceRow => "a reduction along rows",
        Lower::ReduceColumn => "a reduction down columns",
        Lower::Contract => "a contraction",
        Lower::Scatter(_) | Lower::PutSlice => "a scatter",
        Lower::Lines(_) => "lines taken as wholes",
        Lower::Attention(_) => "attention",
        Lower::Transposed(_) => {
            "a transposed convolution; other ops on a device without code for it"
        }
        Lower::Port => "a port of the graph",
        Lower::Data => "numbers in memory",
        Lower::Fused => "a kernel",
        Lower::Exchange(_) => "an exchange between ranks, in no kernel",
    }
}

fn gradient(body: &Body) -> &'static str {
    match body {
        Body::Core { grad: Grad::Zero, .. }
        | Body::Composite { grad: Some(Grad::Zero), .. }
        | Body::Source(_) => "none flows",
        Body::Core { grad: Grad::Rule(_), .. } => "a rule",
        Body::Composite { grad: Some(Grad::Rule(_)), .. } => "a rule of its own",
        Body::Composite { grad: None, .. } => "that of its parts",
        Body::Symbolic(_) => "that of what replaces it",
    }
}

/// The text of a doc line with the targets of its links left out, and constants named as the ops
/// they are.
fn without_links(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        let Some((inside, tail)) =
            after.split_once(']').filter(|(inside, _)| inside.starts_with('`'))
        else {
            out.push('[');
            rest = after;
            continue;
        };
        out.push_str(&name_of(inside));
        rest = match tail.strip_prefix('(').and_then(|t| t.split_once(')')) {
            Some((_, tail)) => tail,
            None => tail,
        };
    }
    out + rest
}

/// `` `GELU` `` as `` `gelu` ``.
fn name_of(inside: &str) -> String {
    let word = inside.trim_matches('`');
    let is_constant = !word.is_empty()
        && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    if is_constant { format!("`{}`", word.to_lowercase()) } else { inside.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_op_once() {
        let page = docs();
        for op in crate::ops::all() {
            assert_eq!(page.matches(&format!("\n### `{}`\n", op.name)).count(), 1, "{}", op.name);
        }
        assert!(page.contains("softmax(x; dim: int, dtype: dtype?) -> (y)"));
        assert!(page.contains(
            "as `softmax.int`: `torch-cpu` falls through, `torch-cuda` fp32_set_opt_dtype"
        ));
        assert!(!page.contains("](") && !page.contains("[`"), "links stay out of the page");
    }

    /// Ops without a name in PyTorch: what other ops are made of, and what passes put into
    /// programs.
    const OURS_ALONE: &[&str] = &[
        "barrier",
        "check_range",
        "contract",
        "convolution_transpose",
        "cotangent",
        "input",
        "kernel",
        "mul_add",
        "nonfinite",
        "order",
        "random",
        "random_at",
        "reciprocal_scale",
        "recurrence",
        "reduce_column",
        "reduce_row",
        "round_to",
        "scan",
        "unscale",
        "unscaled",
        "windows",
    ];

    /// Ops that only passes record.
    const OF_PASSES: &[&str] = &["barrier", "cotangent", "kernel"];

    #[test]
    fn every_op_is_named_in_rust_and_in_pytorch() {
        let page = docs();
        for section in page.split("\n### `").skip(1) {
            let (name, text) = section.split_once('`').expect("a name ends");
            let has = |line: &str| text.contains(&format!("\n* {line}: `"));
            assert_eq!(has("In PyTorch"), !OURS_ALONE.contains(&name), "{name} in PyTorch");
            assert_eq!(has("In Rust"), !OF_PASSES.contains(&name), "{name} in Rust");
        }
        let known = |name: &str| crate::ops::find(name).is_some();
        assert!(CALLS.iter().chain(CALLED_THERE).all(|(name, _)| known(name)));
        assert!(OURS_ALONE.iter().all(|name| known(name)));
        assert!(page.contains("* In Rust: `x.kthvalue(k, dim)`."));
    }

    #[test]
    fn links_become_names() {
        assert_eq!(
            without_links("of [`GELU`] and [`tanh`](crate::TANH), y[i][j]"),
            "of `gelu` and `tanh`, y[i][j]"
        );
    }
}
