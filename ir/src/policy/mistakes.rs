//! What is written in a policy file and cannot mean what it says, line by line: patterns where none
//! are taken, advice that nobody reads, names that no node or module has.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::rule::OpPattern;
use super::{DeviceType, Policy, PolicyTable};

/// A place in the text, and what is odd there.
pub(super) type Mistake = (usize, String);

type Value<'a> = Spanned<DeValue<'a>>;
type Fields<'a> = DeTable<'a>;

/// The odd lines of a file that reads as a set or as a table.
///
/// `takes_dtype` answers whether an op has a `dtype` argument, `None` if nobody knows the op.
pub(super) fn mistakes(
    root: &Fields<'_>,
    takes_dtype: &dyn Fn(&str) -> Option<bool>,
) -> Vec<Mistake> {
    let mut found = Vec::new();
    for rule in entries(root, "rule") {
        of_target(rule, &mut found);
        of_advice(rule, &mut found);
        of_dtype(rule, takes_dtype, &mut found);
    }
    for table in entries(root, "table").chain([root]) {
        of_name(table, &mut found);
        let lines = table.get("ops").and_then(|ops| ops.get_ref().as_table());
        for (key, value) in lines.into_iter().flatten() {
            if let Some(fields) = value.get_ref().as_table() {
                of_advice(fields, &mut found);
            }
            let policy =
                value.get_ref().as_str().or_else(|| text(value.get_ref().as_table()?, "policy"));
            let op = OpPattern::in_table(key.get_ref()).0;
            if let Some(policy) =
                policy.filter(|p| works_by_dtype(p) && takes_dtype(op) == Some(false))
            {
                found.push((key.span().start, no_dtype(policy, op)));
            }
        }
    }
    found
}

fn entries<'v, 't>(root: &'v Fields<'t>, name: &str) -> impl Iterator<Item = &'v Fields<'t>> {
    let list = root.get(name).and_then(|list| list.get_ref().as_array());
    list.into_iter().flat_map(|list| list.iter()).filter_map(|entry| entry.get_ref().as_table())
}

fn text<'v>(fields: &'v Fields<'_>, name: &str) -> Option<&'v str> {
    fields.get(name)?.get_ref().as_str()
}

fn start(value: &Value<'_>) -> usize {
    let Range { start, .. } = value.span();
    start
}

/// Patterns where none are taken, and patterns that match no module or no node.
fn of_target(rule: &Fields<'_>, found: &mut Vec<Mistake>) {
    for key in ["op", "device_op", "module", "node"] {
        let Some((value, target)) = rule.get(key).zip(text(rule, key)) else { continue };
        let odd = match key {
            "module" => odd_module(target),
            "node" => odd_node(target),
            key => odd_op(key, target),
        };
        found.extend(odd.map(|message| (start(value), message)));
    }
}

/// What is wrong with the op of a rule, if it is no name at all.
pub(super) fn odd_op(key: &str, op: &str) -> Option<String> {
    let name = OpPattern::in_table(op).0;
    if op.trim().is_empty() || op.trim() != op {
        return Some(format!("`{key}` takes the name of an op, found `{op}`"));
    }
    if op.contains([',', ';', ' ']) {
        return Some(format!("`{key}` takes one name, found `{op}`: write a rule for each op"));
    }
    (name.contains('*')).then(|| {
        format!(
            "`{key}` takes no pattern, so no op has the name `{op}`: write a rule for each op, `OP.*` for the overloads of one, or \
             `module = \"**\"` for all ops"
        )
    })
}

fn odd_module(path: &str) -> Option<String> {
    let message = if path.contains('/') && path.contains('#') {
        "that is the name of a node: write `node` in the place of `module`"
    } else if path.split('.').any(str::is_empty) && !path.is_empty() {
        "no module path has an empty part: a module stands for all that is inside it, without a dot"
    } else {
        return None;
    };
    Some(format!("`module = \"{path}\"` matches nothing: {message}"))
}

fn odd_node(name: &str) -> Option<String> {
    let message = if name.contains('*') || (name.contains('/') && name.contains('#')) {
        return None;
    } else if name.starts_with('%') {
        "that is a value of one text".to_owned()
    } else if name.contains('/') {
        format!("its number is missing, as in `{name}#0`")
    } else if name.contains('#') {
        format!("a node outside of all modules is `/{name}`, one in any module `**/{name}`")
    } else {
        "that is no name of a node".to_owned()
    };
    Some(format!(
        "`node = \"{name}\"` matches nothing: {message}; nodes are named `MODULE/OP#NUMBER`, as `tracecast explain --json` tells them"
    ))
}

/// Advice that nobody reads, or that is missing.
fn of_advice(fields: &Fields<'_>, found: &mut Vec<Mistake>) {
    let (Some(value), Some(policy)) = (fields.get("advice"), text(fields, "policy")) else {
        return;
    };
    let is_empty = value.get_ref().as_str().is_some_and(|advice| advice.trim().is_empty());
    if policy != "banned" {
        let message = format!("`advice` is what a banned op says; `{policy}` leaves it unread");
        found.push((start(value), message));
    } else if is_empty {
        let message = "the advice is empty: an error that bans an op says what to do instead";
        found.push((start(value), message.to_owned()));
    }
}

/// A policy that works by a dtype argument, for what has none.
fn of_dtype(
    rule: &Fields<'_>,
    takes_dtype: &dyn Fn(&str) -> Option<bool>,
    found: &mut Vec<Mistake>,
) {
    let Some((value, policy)) = rule.get("policy").zip(text(rule, "policy")) else { return };
    if !works_by_dtype(policy) {
        return;
    }
    let op = text(rule, "op").or(text(rule, "device_op")).map(|op| OpPattern::in_table(op).0);
    let of_node = text(rule, "node").and_then(|name| name.rsplit_once('/')?.1.split('#').next());
    match op.or(of_node) {
        Some(op) if takes_dtype(op) == Some(false) => {
            found.push((start(value), no_dtype(policy, op)));
        }
        None if rule.contains_key("module") => {
            let message = format!(
                "`{policy}` gives every op of the module the argument `dtype`: those that do not have it are refused"
            );
            found.push((start(value), message));
        }
        _ => {}
    }
}

fn works_by_dtype(policy: &str) -> bool {
    Policy::named(policy, "").is_ok_and(|policy| policy.needs_dtype_argument())
}

fn no_dtype(policy: &str, op: &str) -> String {
    format!(
        "`{policy}` gives `{op}` the argument `dtype`, which it does not have: every call of it is refused"
    )
}

/// A table that has the name of a built-in one of another device type.
fn of_name(table: &Fields<'_>, found: &mut Vec<Mistake>) {
    let (Some(value), Some(name)) = (table.get("name"), text(table, "name")) else { return };
    let Some(device) = text(table, "device").and_then(|d| d.parse::<DeviceType>().ok()) else {
        return;
    };
    if let Some(other) = PolicyTable::named(name).filter(|other| other.device() != device) {
        let message = format!(
            "`{name}` is the name of the built-in table for {}, and this one is for {device}: its rule ids would name the other",
            other.device()
        );
        found.push((start(value), message));
    }
}
