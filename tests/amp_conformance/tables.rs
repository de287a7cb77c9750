//! The lists that were read from PyTorch, `tests/data/autocast-policies.json`, against our tables:
//! the same lines, each of which does what its policy means.
//!
//! The calls of `autocast-cases.json` are of three devices; the lists are of all.

use crate::files;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use tracecast::DType;
use tracecast::ir::policy::{
    DeviceType, OperandInfo, PolicySet, PolicyTable, Query, Region, ScriptClass, ScriptTable,
};

use DType::{BF16, F16, F32, F64};

/// The lines of a device's lists: op, perhaps with an overload, and policy.
pub(crate) type Lists = BTreeMap<String, String>;

/// The names of the devices with lists, and the policies that hold our table of each.
pub(crate) fn devices() -> Vec<(&'static str, PolicySet)> {
    let core = ["cpu", "cuda", "xpu", "mps", "mtia", "maia", "xla", "privateuse1"];
    let sets = core.into_iter().map(|name| (name, PolicySet::standard()));
    sets.chain([("torchax", PolicySet::torchax())]).collect()
}

/// Our table of a device of [`devices`].
pub(crate) fn table<'s>(name: &str, set: &'s PolicySet) -> &'s Arc<PolicyTable> {
    let device = if name == "torchax" { "privateuse1" } else { name };
    let device: DeviceType = device.parse().expect("a device type");
    set.table(device).expect("the device has a table")
}

/// The lists of a device, and every line of another device's, which falls through on this one.
pub(crate) fn lists(file: &Value, device: &str) -> Lists {
    let listed = |device: &Value| -> Vec<(String, String)> {
        let policies = device["policies"].as_object().expect("lists by policy");
        let lines = |(policy, ops): (&String, &Value)| -> Vec<(String, String)> {
            let ops = ops.as_array().expect("a list of ops").iter();
            ops.map(|op| (op.as_str().expect("a name").to_owned(), policy.clone())).collect()
        };
        policies.iter().flat_map(lines).collect()
    };
    let all = file["devices"].as_object().expect("devices by name").values();
    let mut lists: Lists =
        all.flat_map(&listed).map(|(op, _)| (op, "fallthrough".to_owned())).collect();
    lists.extend(listed(&file["devices"][device]));
    lists
}

/// What is to happen to two operands: their casts, the dtype argument, and the class of the error.
type Answer = ([Option<DType>; 2], Option<DType>, &'static str);

/// What a policy means for two operands of these dtypes in a region of `low`.
fn meaning(policy: &str, operands: [DType; 2], low: DType, casts_f64: bool) -> Answer {
    let is_eligible = |dtype: DType| matches!(dtype, F16 | BF16 | F32);
    let to = |to: DType, also_f64: bool| {
        let is_cast = |from| from != to && (is_eligible(from) || also_f64 && from == F64);
        operands.map(|from| Some(to).filter(|_| is_cast(from)))
    };
    let first = operands[0];
    match policy {
        "lower_precision_fp" => (to(low, casts_f64), None, "none"),
        "fp32" => (to(F32, casts_f64), None, "none"),
        "fp32_set_opt_dtype" => ([None; 2], Some(F32).filter(|_| is_eligible(first)), "none"),
        "fp32_append_dtype" => {
            ([None; 2], Some(if is_eligible(first) { F32 } else { first }), "none")
        }
        "promote" => (to(if operands.contains(&F32) { F32 } else { low }, false), None, "none"),
        "banned" => ([None; 2], None, "banned"),
        "fallthrough" => ([None; 2], None, "none"),
        other => panic!("a policy of an unknown name: {other}"),
    }
}

/// How the answers for a line differ from what its policy means.
pub(crate) fn differences(
    set: &PolicySet,
    table: &PolicyTable,
    line: &str,
    policy: &str,
) -> Vec<String> {
    let (op, overload) = line.split_once('.').unwrap_or((line, ""));
    let (device, mut found) = (table.device(), Vec::new());
    for low in [F16, BF16] {
        let region = Region::default().with_device(device, true, low).with_scope(1);
        for dtypes in [[F32, F32], [low, low], [F32, low], [low, F32], [F64, F64]] {
            let operands = dtypes.map(|dtype| OperandInfo::tensor(dtype, device));
            let query =
                Query { overload, dtype_arg: Some(None), ..Query::new(op, &operands, &region) };
            let decision = set.decide(&query);
            let class = decision.error.as_ref().map_or("none", |error| error.class());
            let casts = match class {
                "none" => [decision.casts[0], decision.casts[1]],
                _ => [None; 2],
            };
            let (is, should) = (
                (casts, decision.dtype_arg, class),
                meaning(policy, dtypes, low, table.casts_f64()),
            );
            if is != should {
                found.push(format!(
                    "{line} of {dtypes:?} in {low}: {is:?}, {policy} means {should:?}"
                ));
            }
        }
    }
    found
}

#[test]
fn every_line_of_every_table_is_the_recorded_one() {
    let file = files::file("autocast-policies.json");
    let mut lines = 0;
    for (name, set) in devices() {
        let table = table(name, &set);
        let recorded: Lists =
            lists(&file, name).into_iter().filter(|(_, policy)| policy != "fallthrough").collect();
        let own = table.iter().map(|(op, policy)| (op.to_owned(), policy.name().to_owned()));
        assert_eq!(own.collect::<Lists>(), recorded, "{name}");
        lines += recorded.len();
    }
    assert!(!files::are_own() || lines == 890, "{lines} lines");
}

#[test]
fn every_line_of_every_table_does_what_its_policy_means() {
    let file = files::file("autocast-policies.json");
    for (name, set) in devices() {
        let table = table(name, &set);
        let wrong: Vec<_> = lists(&file, name)
            .iter()
            .flat_map(|(line, policy)| differences(&set, table, line, policy))
            .collect();
        assert!(wrong.is_empty(), "{name}: {}", wrong.join("\n"));
    }
}

#[test]
fn every_line_of_the_script_table_is_the_recorded_one() {
    let file = files::file("autocast-policies.json");
    let classes = [
        ("lower_precision", ScriptClass::LowerPrecision),
        ("full_precision", ScriptClass::FullPrecision),
        ("full_precision_if_no_dtype_argument", ScriptClass::FullPrecisionWithoutDtype),
        (
            "full_precision_if_no_dtype_argument_gpu_only",
            ScriptClass::FullPrecisionWithoutDtypeOnGpu,
        ),
        ("widest", ScriptClass::Widest),
        ("banned_when_region_on", ScriptClass::Banned),
    ];
    let mut recorded = BTreeMap::new();
    for (name, class) in classes {
        for op in file["torchscript_jit_pass"][name].as_array().expect("a list of ops") {
            recorded.insert(op.as_str().expect("a name"), class);
        }
    }
    assert_eq!(ScriptTable::built_in().iter().collect::<BTreeMap<_, _>>(), recorded);
}
