//! Graphs of PyTorch's AOTAutograd, replayed without Python: values are those of eager PyTorch.
//! `python/tests/record.py` records them.
#![cfg(feature = "cpu")]

use std::path::{Path, PathBuf};
use tracecast::ir::DType;
use tracecast::runtime::npz;
use tracecast::{Options, Store, Tensor, compile};
use tracecast_aten::Program;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fx")
}

/// The largest difference of a result, as a part of the largest number of the tensor.
/// It allows one unit of 16 bits, and another order of sums.
fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 | DType::F16 => 8e-3,
        DType::F32 => 1e-5,
        _ => 0.0,
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.cast(DType::F64).and_then(|wide| wide.to_vec()).expect("numbers")
}

fn replay(name: &str, program: &Program, device: &str) -> Vec<String> {
    let graph = program.graph().expect("no faults");
    let arrays = npz::read(folder().join(format!("{name}.npz"))).expect("arrays beside the graph");
    let array =
        |key: String| arrays.iter().find(|(known, _)| *known == key).map(|(_, tensor)| tensor);
    let given = |port: &tracecast::ir::Port| {
        let tensor = array(format!("in.{}", port.name)).expect("an array for each input");
        (port.name.clone(), tensor.cast(port.ty.dtype).expect("a number"))
    };
    let inputs: Vec<_> = graph.ports().iter().map(given).collect();
    let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (&**name, tensor)).collect();
    let count = graph.outputs().len();
    let compiled = compile(graph, &Options::new().device(device)).expect("a program");
    let results = compiled.run(&mut Store::new(), &inputs).expect("results");
    let mut wrong = Vec::new();
    for at in 0..count {
        let found = &results[&*at.to_string()];
        let expected = array(format!("out.{at}")).expect("an array for each output");
        assert_eq!(found.shape(), expected.shape(), "{name}: result {at}");
        let (ours, theirs) = (numbers(found), numbers(expected));
        let largest = theirs.iter().fold(0.1, |most: f64, v| most.max(v.abs()));
        let difference = |(a, b): (&f64, &f64)| match a == b || a.is_nan() && b.is_nan() {
            true => 0.0,
            false if a.is_nan() != b.is_nan() => f64::INFINITY,
            false => (a - b).abs(),
        };
        let off = ours.iter().zip(&theirs).map(difference).fold(0.0, f64::max);
        if off > bound(found.dtype()) * largest {
            wrong.push(format!(
                "{name} on {device}: result {at} is off by {off:.2e} of {largest:.2e}"
            ));
        }
    }
    wrong
}

#[test]
fn recorded_graphs_give_pytorchs_values() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let program = Program::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
        let faults = program.faults();
        assert!(faults.is_empty(), "{name}: {faults:?}");
        for device in ["reference", "cpu"] {
            wrong.extend(replay(name, &program, device));
        }
    }
    assert_eq!(files.len(), 22, "eleven models, forward and backward");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn all_calls_that_cannot_be_recorded_are_named() {
    let call = |name: &str, overload: &str, arguments: &str| {
        format!(r#"["{name}", "{overload}", {arguments}, [["float32", [2]]], "model.py:7", ""]"#)
    };
    let x = r#"[[null, {"tensor": ["x", 0]}]]"#;
    let calls = [
        call("a", "no_such.default", x),
        call("b", "relu.default", r#"[[null, {"tensor": ["a", 0]}]]"#),
        call("c", "sum.default", x),
        call("d", "relu.default", r#"[[null, "text"]]"#),
    ];
    let text = format!(
        r#"{{"name": "p", "sizes": [], "inputs": [["x", "float32", [2]]], "calls": [{}], "outputs": [["b", 0]]}}"#,
        calls.join(", ")
    );
    let program = Program::parse(&text).unwrap();
    let faults: Vec<String> =
        program.faults().into_iter().map(|(name, why)| format!("{name}: {why}")).collect();
    assert_eq!(
        faults,
        [
            "a: no_such.default: no such overload is in the table (model.py:7)",
            "c: sum.default: gives f32[] where PyTorch gives f32[2] (model.py:7)",
            "d: relu.default: takes a tensor for `self`, found \"text\" (model.py:7)",
        ]
    );
    assert!(program.graph().unwrap_err().starts_with("a: no_such.default"));
}

#[test]
fn a_size_that_is_a_name_is_compiled_once() {
    let text = r#"{"name": "p", "sizes": [["s0", 2, null, 8]], "inputs": [["x", "float32", ["s0", 3]]], "calls": [
        ["y", "view.default", [[null, {"tensor": ["x", 0]}], [null, [{"size": "3*s0"}]]], [["float32", ["3*s0"]]], "", ""],
        ["z", "mul.Tensor", [[null, {"tensor": ["y", 0]}], [null, {"float": "inf"}]], [["float32", ["3*s0"]]], "", ""]
    ], "outputs": [["z", 0]]}"#;
    let graph = Program::parse(text).unwrap().graph().unwrap();
    assert_eq!(graph.sizes().guards().len(), 0);
    let program = tracecast::compile_sized(graph, &Options::new()).unwrap();
    for rows in [2, 5] {
        let x = Tensor::new([rows, 3], &vec![1.0f32; rows * 3]).unwrap();
        let z = program.run(&mut Store::new(), &[("x", &x)]).unwrap()["0"].clone();
        assert_eq!(z.to_vec::<f32>().unwrap(), vec![f32::INFINITY; rows * 3]);
    }
}

/// A step of gradient descent: the loss is in the region, its gradient and the update are behind.
#[test]
fn a_step_updates_its_state() {
    let text = r#"{"name": "step", "sizes": [], "inputs": [["w", "float32", [3, 2]], ["x", "float32", [4, 3]], ["rate", "float32", []]], "calls": [
        ["y", "mm.default", [[null, {"tensor": ["x", 0]}], [null, {"tensor": ["w", 0]}]], [["float32", [4, 2]]], "model.py:3", "layer"],
        ["loss", "sum.default", [[null, {"tensor": ["y", 0]}]], [["float32", []]], "model.py:4", ""],
        ["g", "gradients", [[null, {"tensor": ["loss", 0]}], [null, [{"tensor": ["w", 0]}]]], [], "", ""],
        ["d", "mul.Tensor", [[null, {"tensor": ["g", 0]}], [null, {"tensor": ["rate", 0]}]], [["float32", [3, 2]]], "", ""],
        ["new", "sub.Tensor", [[null, {"tensor": ["w", 0]}], [null, {"tensor": ["d", 0]}]], [["float32", [3, 2]]], "", ""]
    ], "outputs": [["loss", 0]], "updates": [["w", ["new", 0]]], "parameters": ["w"], "in_region": 2}"#;
    let program = Program::parse(text).unwrap();
    assert!(program.faults().is_empty() && program.is_state("w") && !program.is_state("x"));
    let options = Options::new();
    let region = tracecast::amp::Autocast::new("cpu").dtype(DType::BF16);
    let graph = tracecast::trace_with("step", &options, |t| {
        let port = |name: &str, ty, role| match role {
            tracecast::ir::Role::Input => t.input_of(name, ty),
            _ => t.param_of(name, ty),
        };
        let region = |body: &mut dyn FnMut()| region.run(t, body);
        let scene = tracecast_aten::Scene { tracer: t.tracer(), port: &port, region: &region };
        program.record_in(&scene).unwrap();
    });
    let graph = graph.unwrap();
    assert!(graph.to_string().contains("mm %x, %w : bf16[4, 2]"), "{graph}");
    let step = compile(graph, &options).unwrap();
    let x = Tensor::new([4, 3], &[1.0f32; 12]).unwrap();
    let mut store = Store::new().with("w", Tensor::new([3, 2], &[0.5f32; 6]).unwrap());
    let loss = step.run(&mut store, &[("x", &x), ("rate", &Tensor::scalar(0.25f32))]).unwrap();
    assert_eq!(numbers(&loss["0"]), [12.0]);
    assert_eq!(store.get("w").unwrap().to_vec::<f32>().unwrap(), [-0.5; 6]);
}

#[test]
fn text_that_is_no_program_is_refused() {
    let cases = [
        ("{", "EOF while parsing"),
        (r#"{"name": "p"}"#, "`sizes` is missing"),
        (
            r#"{"name": 3, "sizes": [], "inputs": [], "calls": [], "outputs": []}"#,
            "expected a text, found 3",
        ),
        (
            r#"{"name": "p", "sizes": [], "inputs": [["x", "float32"]], "calls": [], "outputs": []}"#,
            r#"expected a list of 3, found ["x","float32"]"#,
        ),
        (
            r#"{"name": "p", "sizes": [], "inputs": [], "calls": [["y", "relu.default", [[null, {"array": 1}]], [], "", ""]], "outputs": []}"#,
            r#"expected tensor, size, dtype, float or place, found {"array":1}"#,
        ),
    ];
    for (text, expected) in cases {
        let error = Program::parse(text).err().expect("an error");
        assert!(error.starts_with(expected), "{error}");
    }
}
