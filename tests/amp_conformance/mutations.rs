//! Every line of every policy table is held: with any other policy in its place, a recorded case
//! differs, or what the line does is no longer what the recorded lists mean.
//!
//! Ops that are not listed are flipped as well: a line for them would be noticed.

use crate::cases::{self, Call};
use crate::files;
use crate::{decided, tables};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Write, stdout};
use std::sync::Arc;
use tracecast::ir::policy::{Policy, PolicySet, PolicyTable};

/// The calls of every line of a table, and of every op that it does not list.
type Lines<'c> = BTreeMap<String, Vec<Call<'c>>>;

/// The differences between what was decided and what was recorded.
fn differences(set: &PolicySet, call: &Call<'_>) -> Vec<String> {
    decided::differences(call, &decided::decide(set, call))
}

/// The line of a table that speaks of a call; its own name if none does.
fn line(table: &PolicyTable, call: &Call<'_>) -> String {
    let exact = match call.overload.as_str() {
        "" => call.op.clone(),
        overload => format!("{}.{overload}", call.op),
    };
    let any = format!("{}.*", call.op);
    let is_listed = |key: &str| table.iter().any(|(listed, _)| listed == key);
    if !is_listed(&exact) && is_listed(&any) { any } else { exact }
}

/// The table with one policy in every line, where it was another.
fn flipped(table: &PolicyTable, lines: &Lines<'_>, policy: &str) -> Arc<PolicyTable> {
    let mut text = format!(
        "name = \"flipped\"\ndevice = \"{}\"\nversion = \"0\"\ncasts_f64 = {}\n[ops]\n",
        table.device(),
        table.casts_f64()
    );
    let listed = table.iter().map(|(key, _)| key.to_owned());
    for key in listed.chain(lines.keys().cloned()).collect::<BTreeSet<_>>() {
        let value = match policy {
            "banned" => "{ policy = \"banned\", advice = \"none\" }".to_owned(),
            policy => format!("\"{policy}\""),
        };
        text += &format!("\"{key}\" = {value}\n");
    }
    Arc::new(PolicyTable::parse(&text).unwrap_or_else(|error| panic!("{error}")))
}

/// The lines of a table and the recorded calls of each, those aside that differ already: they would
/// be noticed with every table.
fn lines<'c>(
    file: &'c serde_json::Value,
    set: &PolicySet,
    table: &PolicyTable,
) -> (Lines<'c>, usize) {
    let mut lines: Lines<'_> = table.iter().map(|(key, _)| (key.to_owned(), Vec::new())).collect();
    let mut differing = 0;
    let aten = ["aten_op_cases", "single_probes"]
        .map(|name| cases::section(file, name).iter().map(cases::by_aten_name).collect());
    let python: Vec<_> =
        cases::section(file, "upstream_list_cases").iter().map(cases::by_python_name).collect();
    for call in aten.into_iter().chain([python]).flatten() {
        if call.home != table.device() {
            continue;
        }
        if differences(set, &call).is_empty() {
            lines.entry(line(table, &call)).or_default().push(call);
        } else {
            differing += 1;
        }
    }
    (lines, differing)
}

#[test]
fn a_flipped_line_of_a_table_is_noticed() {
    let (file, recorded) = (cases::read(), files::file("autocast-policies.json"));
    let mut not_held = BTreeSet::new();
    let (mut flips, mut by_cases, mut by_lists) = (0, 0, 0);
    for (name, set) in tables::devices() {
        let table = tables::table(name, &set).clone();
        let lists = tables::lists(&recorded, name);
        let (mut lines, differing) = lines(&file, &set, &table);
        assert!(!files::are_own() || differing == 0, "{differing} cases differ as it is");
        for line in lists.keys() {
            lines.entry(line.clone()).or_default();
        }
        let own: BTreeMap<&str, &Policy> = table.iter().collect();
        // Lines do not look at each other, so all of them are flipped at once.
        for policy in Policy::NAMES {
            let mut other = set.clone();
            let flipped = flipped(&table, &lines, policy);
            other.set_table(flipped.clone());
            for (key, calls) in &lines {
                let is = own.get(key.as_str()).map_or("fallthrough", |policy| policy.name());
                if is == policy {
                    continue;
                }
                flips += 1;
                let mut found = calls.iter().flat_map(|call| differences(&other, call));
                if found.any(|what| !what.starts_with("policy:")) {
                    by_cases += 1;
                } else if !tables::differences(&other, &flipped, key, is).is_empty() {
                    by_lists += 1;
                } else {
                    not_held.insert(format!("{name}: {key} as {policy}"));
                }
            }
        }
    }
    let line = format!(
        "flipped lines: {flips}, noticed by recorded calls {by_cases}, by what the lists mean {by_lists}"
    );
    writeln!(stdout(), "{line}").expect("standard output is open");
    assert!(not_held.is_empty(), "{not_held:?}");
    assert!(!files::are_own() || by_cases > 4000, "{line}");
}
