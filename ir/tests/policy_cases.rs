//! The recorded PyTorch facts about single calls and about regions, against `decide` and `Region::enter`.
//!
//! The cases are `tests/data/autocast-cases.json`; `TRACECAST_CASES` names another folder with a file of that name.

use std::fmt::Display;

use serde_json::Value;
use tracecast_ir::DType;
use tracecast_ir::policy::{
    Decision, DeviceType, OperandInfo, OperandKind, PolicySet, Query, Region,
};

/// Operands with the paths by which the cases name them.
type Operands = Vec<(String, OperandInfo)>;

fn cases() -> Value {
    let folder = std::env::var("TRACECAST_CASES")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data").to_string());
    let path = format!("{folder}/autocast-cases.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&strict(&text)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The file with `Infinity` and `NaN`, which JSON has no words for, written as null; no test looks at them.
fn strict(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find('"') {
        let (numbers, string) = rest.split_at(start);
        let mut escaped = false;
        let ends = |(_, byte): &(usize, u8)| {
            let end = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            end
        };
        let end =
            string.bytes().enumerate().skip(1).find(ends).map_or(string.len(), |(at, _)| at + 1);
        out += &numbers
            .replace("-Infinity", "null")
            .replace("Infinity", "null")
            .replace("NaN", "null");
        out += &string[..end];
        rest = &string[end..];
    }
    out + rest
}

fn dtype(value: &Value) -> DType {
    let name = value.as_str().expect("a dtype is a string");
    let name = if name == "f8e4m3fn" { "f8e4m3" } else { name };
    name.parse().expect("the cases use known dtypes")
}

fn device(value: &Value) -> DeviceType {
    value.as_str().expect("a device is a string").parse().expect("the cases use known devices")
}

/// How an op takes the argument at `path`, where that makes a difference.
fn kind(op: &str, path: &str, in_list: bool) -> OperandKind {
    match (op, path) {
        ("index_put", "1") | (_, "out") => OperandKind::Ignored,
        ("bilinear", "3") | (_, "attn_mask") => OperandKind::Optional,
        _ if in_list => OperandKind::ListItem,
        _ => OperandKind::Tensor,
    }
}

fn collect(operands: &mut Operands, op: &str, path: &str, argument: &Value, home: DeviceType) {
    let mut add = |value: &Value, item: Option<usize>| {
        let Some(tensor) = value.get("tensor") else { return };
        let on = value.get("on").map_or(home, device);
        let full = item.map_or_else(|| path.to_string(), |item| format!("{path}[{item}]"));
        let kind = kind(op, path, item.is_some());
        operands.push((full, OperandInfo { dtype: dtype(tensor), device: on, kind }));
    };
    match argument.as_array() {
        Some(items) => items.iter().enumerate().for_each(|(at, item)| add(item, Some(at))),
        None => add(argument, None),
    }
}

fn arguments(case: &Value) -> Vec<(String, &Value)> {
    let args = case["args"].as_array().expect("args is a list");
    let positional = args.iter().enumerate().map(|(at, value)| (at.to_string(), value));
    let named = case.get("kwargs").and_then(Value::as_object).into_iter().flatten();
    positional.chain(named.map(|(name, value)| (name.clone(), value))).collect()
}

/// The op and overload that a call by its Python name ends in.
fn resolve(case: &Value) -> (String, &'static str) {
    let args = case["args"].as_array().expect("args is a list");
    let is_tensor = |at: usize| args.get(at).is_some_and(|arg| arg.get("tensor").is_some());
    let has_dim = args.len() > 1 || case.pointer("/kwargs/dim").is_some();
    let op = case["op"].as_str().expect("op is a string").trim_matches('_');
    let overload = match op {
        "pow" if !is_tensor(0) => "Scalar",
        "pow" if is_tensor(1) => "Tensor_Tensor",
        "pow" => "Tensor_Scalar",
        "conv_transpose2d" | "conv_transpose3d" => "input",
        "norm" if case.pointer("/kwargs/dim").is_some() => "ScalarOpt_dim",
        "norm" => "Scalar",
        "softmax" | "log_softmax" => "int",
        "sum" if has_dim => "dim_IntList",
        "prod" if has_dim => "dim_int",
        "frobenius_norm" => "dim",
        "nuclear_norm" if has_dim => "dim",
        _ => "",
    };
    let private =
        case["op"].as_str().is_some_and(|name| name.starts_with('_') && !name.ends_with("__"));
    (if private { format!("_{op}") } else { op.to_string() }, overload)
}

fn decide(
    set: &PolicySet,
    case: &Value,
    op: &str,
    overload: &str,
    region: &Region,
) -> (Operands, Decision) {
    let home = device(&case["device"]);
    let mut operands = Vec::new();
    let mut explicit = None;
    for (path, value) in arguments(case) {
        explicit = explicit.or_else(|| value.get("dtype").map(dtype));
        collect(&mut operands, op, &path, value, home);
    }
    let infos: Vec<_> = operands.iter().map(|(_, info)| *info).collect();
    let query = Query { overload, dtype_arg: Some(explicit), ..Query::new(op, &infos, region) };
    let decision = set.decide(&query);
    (operands, decision)
}

/// Every difference between what was decided and what was recorded.
fn differences(case: &Value, operands: &Operands, decision: &Decision) -> Vec<String> {
    let expect = &case["expect"];
    let mut found = Vec::new();
    let mut compare = |what: &str, is: &dyn Display, should: &dyn Display| {
        let (is, should) = (is.to_string(), should.to_string());
        if is != should {
            found.push(format!("{what}: {is}, recorded {should}"));
        }
    };
    let class = decision.error.as_ref().map_or("none", |error| error.class());
    compare("error", &class, &expect["error"].as_str().unwrap_or("none"));
    if decision.error.is_some() {
        return found;
    }
    let argument = decision.dtype_arg.map_or("none", DType::name);
    compare("dtype argument", &argument, &recorded_dtype_argument(case));
    if let Some(recorded) = expect["casts"].as_array() {
        let paths: Vec<_> = recorded.iter().map(|cast| cast[0].as_str().expect("a path")).collect();
        // One tensor passed twice was recorded under one of its paths.
        let aliased =
            paths.iter().any(|path| paths.iter().filter(|other| *other == path).count() > 1);
        let line = |path: &str, from: DType, to: DType| {
            format!("{}:{from}->{to}", if aliased { "" } else { path })
        };
        let mut should: Vec<_> = recorded
            .iter()
            .zip(&paths)
            .map(|(cast, path)| line(path, dtype(&cast[1]), dtype(&cast[2])))
            .collect();
        let casts = operands.iter().zip(&decision.casts);
        let mut is: Vec<_> = casts
            .filter_map(|((path, info), cast)| cast.map(|to| line(path, info.dtype, to)))
            .collect();
        should.sort();
        is.sort();
        compare("casts", &is.join(" "), &should.join(" "));
    }
    if let Some(policy) = case["policy"].as_str().filter(|policy| !policy.starts_with('(')) {
        compare("policy", &decision.policy, &policy);
    }
    found
}

/// What was put in the dtype argument. The upstream lists leave it out for the softmax functions, where only an f32
/// result of a low operand, without any cast, shows that it was there.
fn recorded_dtype_argument(case: &Value) -> &str {
    let expect = &case["expect"];
    let silent = case.get("list").is_some()
        && matches!(case["op"].as_str(), Some("softmax" | "log_softmax"));
    let by_result = silent
        && expect["casts"].as_array().is_some_and(Vec::is_empty)
        && expect["out"] != case["args"][0]["tensor"];
    if by_result { &expect["out"] } else { &expect["dtype_argument"] }.as_str().unwrap_or("none")
}

/// Runs one section; returns how many cases ran and how many are about devices without a table.
fn run_section(section: &str, resolve_call: impl Fn(&Value) -> (String, String)) -> (usize, usize) {
    let set = PolicySet::standard();
    let (mut ran, mut skipped) = (0, 0);
    let mut failures = Vec::new();
    for case in cases()[section].as_array().expect("a section is a list") {
        let home = case.get("region_device").unwrap_or(&case["device"]);
        if set.table(device(home)).is_none() {
            skipped += 1;
            continue;
        }
        let low = dtype(case.get("region").unwrap_or(&case["region_dtype"]));
        let (region, warning) = Region::default()
            .enter(device(home), Some(low), true, None)
            .expect("no error on this device");
        assert_eq!(warning, None, "{}", case["id"]);
        let (op, overload) = resolve_call(case);
        let (operands, decision) = decide(&set, case, &op, &overload, &region);
        let found = differences(case, &operands, &decision);
        ran += 1;
        if !found.is_empty() {
            failures.push(format!("{} [{}]: {}", case["id"], decision.rule, found.join("; ")));
        }
    }
    let shown = failures.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{section}: {} of {ran} differ\n{shown}", failures.len());
    assert!(ran > 0, "{section} has no case for a device with a table");
    (ran, skipped)
}

fn by_aten_name(case: &Value) -> (String, String) {
    let name = case["op"].as_str().expect("op is a string");
    let (op, overload) = name.split_once('.').unwrap_or((name, ""));
    (op.to_string(), overload.to_string())
}

#[test]
fn policy_of_aten_ops() {
    let (ran, skipped) = run_section("aten_op_cases", by_aten_name);
    println!("aten_op_cases: {ran} ran and passed, {skipped} are about devices without a table");
}

#[test]
fn policy_of_upstream_lists() {
    let (ran, skipped) = run_section("upstream_list_cases", |case| {
        let (op, overload) = resolve(case);
        (op, overload.to_string())
    });
    println!(
        "upstream_list_cases: {ran} ran and passed, {skipped} are about devices without a table"
    );
}

#[test]
fn policy_of_single_probes() {
    let (ran, skipped) = run_section("single_probes", by_aten_name);
    println!("single_probes: {ran} ran and passed, {skipped} are about devices without a table");
}

#[test]
fn policy_regions_have_the_recorded_states() {
    let mut states = 0;
    for program in cases()["behaviour_programs"].as_array().expect("a section is a list") {
        let steps = program["program"].as_array().expect("a program is a list");
        // Entering one region object twice leaves PyTorch's autocast on; here a region cannot leak.
        if steps.iter().any(|step| step.get("reuse").is_some()) {
            continue;
        }
        let home = device(&program["device"]);
        let mut stack = vec![Region::default()];
        for step in steps {
            match step["do"].as_str() {
                Some("enter") => {
                    let low = step.get("dtype").map(dtype);
                    let enabled = step.get("enabled").is_none_or(|enabled| *enabled == true);
                    let cache = step.get("cache_enabled").and_then(Value::as_bool);
                    let outer = stack.last().expect("programs are balanced");
                    let (region, warning) = outer.enter(home, low, enabled, cache).unwrap();
                    assert_eq!(warning.is_some(), step.get("warns").is_some(), "{}", program["id"]);
                    stack.push(region);
                }
                Some("exit") => drop(stack.pop()),
                Some("inference_mode") => {
                    stack.push(stack.last().expect("programs are balanced").clone());
                    continue;
                }
                _ => continue,
            }
            let now = stack.last().expect("programs are balanced");
            let state = &step["state"];
            let is = (now.is_enabled(home), now.low(home), now.cache());
            let should = (state["enabled"] == true, dtype(&state["dtype"]), state["cache"] == true);
            assert_eq!(is, should, "{}: {step}", program["id"]);
            states += 1;
        }
    }
    assert!(states > 0);
    println!("behaviour_programs: {states} states of regions are as recorded");
}
