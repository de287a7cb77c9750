//! What the readers know of a record. A field or a step that nobody reads is a failure of its case
//! by name: the case is neither skipped nor the end of the run.

use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};

const CALL: &[&str] = &[
    "about",
    "args",
    "call",
    "device",
    "expect",
    "id",
    "in_upstream_suite",
    "kwargs",
    "list",
    "note",
    "op",
    "policy",
    "region",
    "region_device",
    "region_dtype",
];
const EXPECT: &[&str] = &[
    "casts",
    "casts_inside_the_op",
    "dtype_argument",
    "error",
    "kernel_refuses",
    "out",
    "run_dtype",
];
const ARGUMENT: &[&str] = &["dtype", "on", "shape", "tensor"];
const PROGRAM: &[&str] = &["about", "device", "id", "program", "tensors"];
const TENSOR: &[&str] = &["dtype", "fill", "kind", "shape"];
const DEVICE: &[&str] = &["expect", "id", "steps"];
const DEVICE_EXPECT: &[&str] = &["casts", "enabled", "error", "names", "out", "warns"];

/// The steps of programs, and what each may have.
const STEPS: &[(&str, &[&str])] = &[
    ("backward", &["casts_in_backward", "do", "from", "grad_dtypes", "kernels"]),
    (
        "call",
        &[
            "args",
            "as",
            "casts",
            "do",
            "error",
            "op",
            "out",
            "requires_grad",
            "show_requires_grad",
            "state",
            "value",
            "value_of",
        ],
    ),
    ("enter", &["cache_enabled", "device", "do", "dtype", "enabled", "reuse", "state", "warns"]),
    ("exit", &["do", "state"]),
    ("inference_mode", &["do", "state"]),
    ("other_thread", &["args", "do", "enabled_there", "op", "out"]),
    ("scale_in_place", &["by", "do", "tensor"]),
];

/// The fields of an object that are not among these.
fn fields(at: &str, object: &Value, known: &[&str]) -> Vec<String> {
    let names = object.as_object().into_iter().flatten().map(|(name, _)| name);
    let unknown = names.filter(|name| !known.contains(&name.as_str()));
    unknown.map(|name| format!("an unknown field `{name}` of {at}")).collect()
}

/// What nobody reads of a call.
pub(crate) fn of_call(case: &Value) -> Vec<String> {
    let positional = case["args"].as_array().into_iter().flatten();
    let named = case["kwargs"].as_object().into_iter().flatten().map(|(_, value)| value);
    let arguments = positional.chain(named).flat_map(|value| match value.as_array() {
        Some(list) => list.iter().collect::<Vec<_>>(),
        None => vec![value],
    });
    let mut found = fields("a call", case, CALL);
    found.extend(fields("`expect`", &case["expect"], EXPECT));
    found.extend(arguments.flat_map(|value| fields("an argument", value, ARGUMENT)));
    found
}

/// What nobody reads of a program.
pub(crate) fn of_program(program: &Value) -> Vec<String> {
    let mut found = fields("a program", program, PROGRAM);
    let tensors = program["tensors"].as_object().into_iter().flatten();
    found.extend(tensors.flat_map(|(_, tensor)| fields("a tensor", tensor, TENSOR)));
    for step in program["program"].as_array().into_iter().flatten() {
        let name = step["do"].as_str().unwrap_or("?");
        match STEPS.iter().find(|(known, _)| *known == name) {
            Some((_, known)) => found.extend(fields(&format!("the step `{name}`"), step, known)),
            None => found.push(format!("an unknown step `{name}`")),
        }
    }
    found
}

/// What nobody reads of a case of a device from outside.
pub(crate) fn of_device(case: &Value) -> Vec<String> {
    let mut found = fields("a case", case, DEVICE);
    found.extend(fields("`expect`", &case["expect"], DEVICE_EXPECT));
    found
}

/// Runs a case. A panic is what is wrong with it.
pub(crate) fn caught(run: impl FnOnce() -> Vec<String>) -> Vec<String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        vec![format!("panicked: {}", text.unwrap_or("without words"))]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(region: &str, casts: &Value, out: &str) -> Value {
        let x = json!({"tensor": "f32", "shape": [4, 4]});
        json!({"id": "made/up", "device": "cpu", "op": "mm", "policy": "lower_precision_fp", "region": region,
            "args": [x, x], "expect": {"casts": casts, "out": out}})
    }

    /// A call in a region of bf16 on the CPU: what differs, and what was compared.
    fn compared(
        op: &str,
        args: &Value,
        kwargs: &Value,
        expect: &Value,
    ) -> (Vec<String>, &'static str) {
        let case = json!({"id": "made/up", "device": "cpu", "op": op, "region": "bf16", "args": args, "kwargs": kwargs, "expect": expect});
        let (found, note) = crate::run_call(&case, crate::cases::by_aten_name);
        (found, note.unwrap_or("nothing"))
    }

    #[test]
    fn a_call_without_a_form_is_counted_and_named() {
        let of = |dtype: &str, shape: &[usize]| json!({"tensor": dtype, "shape": shape});
        let f32 = |shape: &[usize]| of("f32", shape);
        let low = |count: usize, out: &str| {
            let casts: Vec<Value> =
                (0..count).map(|i| json!([i.to_string(), "f32", "bf16"])).collect();
            json!({"casts": casts, "out": out})
        };
        let (none, no_casts) = (json!({}), |out: &str| json!({"casts": [], "out": out}));
        let absent = "out not compared, the op or this form of it is listed as absent";
        let writes = "out not compared, the op writes to an operand";
        let no_kernels = "out not compared, an operand has a dtype without kernels";
        let cases = [
            ("matrix_exp", json!([f32(&[4, 4])]), none.clone(), no_casts("f32"), absent),
            (
                "linear",
                json!([f32(&[8, 8]), f32(&[8, 8]), f32(&[8, 8])]),
                none.clone(),
                low(3, "bf16"),
                crate::RECORDED,
            ),
            (
                "linear",
                json!([f32(&[5, 8]), f32(&[8])]),
                none.clone(),
                low(2, "bf16"),
                crate::RECORDED,
            ),
            (
                "matmul",
                json!([f32(&[8]), f32(&[8])]),
                none.clone(),
                low(2, "bf16"),
                crate::RECORDED,
            ),
            (
                "add_.Tensor",
                json!([f32(&[4]), of("bf16", &[4])]),
                none.clone(),
                no_casts("f32"),
                writes,
            ),
            (
                "mm.out",
                json!([f32(&[4, 4]), f32(&[4, 4])]),
                json!({"out": f32(&[4, 4])}),
                no_casts("f32"),
                writes,
            ),
            (
                "mm",
                json!([of("c64", &[4, 4]), of("c64", &[4, 4])]),
                none.clone(),
                no_casts("c64"),
                no_kernels,
            ),
            ("relu", json!([of("f8e5m2", &[4])]), none.clone(), no_casts("f8e5m2"), no_kernels),
            ("relu", json!([of("f8e4m3fn", &[4])]), none, no_casts("f8e4m3fn"), no_kernels),
        ];
        for (op, args, kwargs, expect, note) in &cases {
            assert_eq!(compared(op, args, kwargs, expect), (Vec::new(), *note), "{op} {args}");
        }
        let (found, _) = compared("no_such_op", &json!([f32(&[4])]), &json!({}), &no_casts("f32"));
        assert_eq!(found, ["has no form here: there is no such op"]);
    }

    fn run(case: &Value) -> Vec<String> {
        caught(|| crate::run_call(case, crate::cases::by_aten_name).0)
    }

    fn program(steps: &Value) -> Value {
        json!({"id": "made/up", "device": "cpu", "tensors": {"x": {"dtype": "f32", "shape": [4, 4]}}, "program": steps})
    }

    #[test]
    fn an_unknown_field_is_named() {
        let low = json!([["0", "f32", "bf16"], ["1", "f32", "bf16"]]);
        let mut case = call("bf16", &low, "bf16");
        assert_eq!(run(&case), Vec::<String>::new());
        case["weather"] = json!("fine");
        case["expect"]["mood"] = json!(1);
        case["args"][0]["colour"] = json!("red");
        let found = run(&case).join("\n");
        for name in ["`weather` of a call", "`mood` of `expect`", "`colour` of an argument"] {
            assert!(found.contains(name), "{found}");
        }
    }

    #[test]
    fn an_unknown_step_is_named() {
        let found = crate::run_program(&program(&json!([{"do": "dance"}]))).0;
        assert_eq!(found, ["an unknown step `dance`"]);
        let case = json!({"id": "pu1/made_up", "steps": ["sing"], "expect": {}});
        let found = caught(|| crate::outside::run(&case)).join("\n");
        assert!(found.contains("a step that nobody has words for: sing"), "{found}");
    }

    #[test]
    fn a_region_of_another_device_casts_nothing_here() {
        let of = |device: &str, dtype: &str, casts: &Value, out: &str| {
            program(&json!([{"do": "enter", "device": device, "dtype": dtype},
                {"do": "call", "op": "mm", "args": ["x", "x"], "out": out, "casts": casts}, {"do": "exit"}]))
        };
        let low = json!([["x", "f32", "bf16"], ["x", "f32", "bf16"]]);
        assert_eq!(crate::run_program(&of("cpu", "bf16", &low, "bf16")).0, Vec::<String>::new());
        assert_eq!(
            crate::run_program(&of("cuda", "bf16", &json!([]), "f32")).0,
            Vec::<String>::new()
        );
        assert_ne!(crate::run_program(&of("cuda", "bf16", &low, "bf16")).0, Vec::<String>::new());
    }

    #[test]
    fn a_region_whose_dtype_the_device_does_not_take_is_off() {
        assert_eq!(run(&call("f64", &json!([]), "f32")), Vec::<String>::new());
        assert_ne!(run(&call("f64", &json!([["0", "f32", "f64"]]), "f64")), Vec::<String>::new());
    }
}
