//! Programs that are wide: many numbers, operands, ports, rules. All of them are compiled in time
//! that grows with their size and not faster; what can be told without a clock is told here, and
//! `cargo bench --bench serving -- wide` has the clock.

use tracecast::compile_reported;
use tracecast::ir::ops::view::cat;
use tracecast::ir::policy::{Policy, PolicySet, Target, review};
use tracecast::ir::{DType, ops, text};
use tracecast::prelude::*;

fn options() -> Options {
    Options::new().threads(1)
}

#[test]
fn a_constant_of_many_numbers_is_memory_and_no_code() {
    let numbers: Vec<f64> = (0..300_000).map(|i| f64::from(i % 1000) * 0.25).collect();
    let graph = trace("table", |t| {
        let table = t.constant(DType::F32, &[300, 1000], &numbers);
        t.output("y", t.input_of("x", TensorType::new(DType::F32, [300, 1000])) + table);
        t.output("table", table);
    });
    let program = compile(graph.unwrap(), &options()).unwrap();
    assert!(program.code_bytes() < 100_000, "{} bytes of code", program.code_bytes());
    assert!(program.peak_bytes() >= 4 * 300_000, "numbers count");
    let x = Tensor::full(TensorType::new(DType::F32, [300, 1000]), 1.0).unwrap();
    for _ in 0..3 {
        let out = program.run(&mut Store::new(), &[("x", &x)]).unwrap();
        let (y, table) = (out["y"].to_vec::<f32>().unwrap(), out["table"].to_vec::<f32>().unwrap());
        assert!(numbers.iter().zip(&table).all(|(a, b)| *a as f32 == *b));
        assert!(table.iter().zip(&y).all(|(a, b)| a + 1.0 == *b));
    }
}

#[test]
fn numbers_have_the_bits_that_code_would_give_them() {
    // Eight numbers are code, sixteen are memory.
    let awkward =
        [0.1, -0.0, 1e-40, 300.7, -7.25, f64::INFINITY, 1.0 + 2f64.powi(-9) + 1e-12, 65519.99];
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        let both = trace("both", |t| {
            let twice = [awkward, awkward].concat();
            t.output("code", t.constant(dtype, &[8], &awkward) * 1.0);
            t.output("memory", t.constant(dtype, &[2, 8], &twice) * 1.0);
        });
        let program = compile(both.unwrap(), &options().fold(false)).unwrap();
        let out = program.run(&mut Store::new(), &[]).unwrap();
        let (code, memory) = (out["code"].bytes(), out["memory"].bytes());
        assert_eq!([code, code].concat(), memory, "{dtype}");
    }
}

#[test]
fn weights_that_are_numbers_stay_packed() {
    let numbers: Vec<f64> = (0..64 * 96).map(|i| f64::from(i % 7) - 3.0).collect();
    let graph = trace("head", |t| {
        let w = t.constant(DType::F32, &[64, 96], &numbers);
        let x = t.input_of("x", TensorType::new(DType::F32, [4, 64]));
        t.output("y", autocast(t, "cpu", DType::BF16, || x.matmul(w)));
    });
    let program = compile(graph.unwrap(), &options()).unwrap();
    let x = Tensor::rand([4, 64], 3).unwrap();
    let run = || program.run(&mut Store::new(), &[("x", &x)]).unwrap()["y"].clone();
    let first = run();
    (0..6).for_each(|_| assert_eq!(run(), first));
}

#[test]
fn a_concatenation_of_thousands_is_made_of_few_at_a_time() {
    const COUNT: usize = 5000;
    let graph = trace("wide", |t| {
        let xs: Vec<Var<'_>> = (0..COUNT)
            .map(|i| t.input_of(&format!("x{i}"), TensorType::new(DType::F32, [1 + i % 2])))
            .collect();
        t.output("y", cat(&xs, 0));
    });
    let program = compile(graph.unwrap(), &options()).unwrap();
    assert!(program.kernels() < 200, "{} kernels", program.kernels());
    let names: Vec<String> = (0..COUNT).map(|i| format!("x{i}")).collect();
    let values: Vec<Tensor> = (0..COUNT)
        .map(|i| Tensor::full(TensorType::new(DType::F32, [1 + i % 2]), i as f64).unwrap())
        .collect();
    let inputs: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&values).collect();
    let y = program.run(&mut Store::new(), &inputs).unwrap()["y"].to_vec::<f32>().unwrap();
    let expected = (0..COUNT).flat_map(|i| vec![i as f32; 1 + i % 2]);
    assert!(expected.eq(y));
}

#[test]
fn inputs_of_a_wide_program_are_checked_as_those_of_others() {
    let text = {
        let ports: Vec<String> = (0..100).map(|i| format!("%x{i}: f32[2]")).collect();
        let returned: Vec<String> = (0..100).map(|i| format!("y{i} = %x{i}")).collect();
        format!(
            "tracecast 1\ngraph @wide({}) {{\n  return {}\n}}\n",
            ports.join(", "),
            returned.join(", ")
        )
    };
    let program = compile(text::parse(&text).unwrap(), &options().strict(true)).unwrap();
    let names: Vec<String> = (0..100).map(|i| format!("x{i}")).collect();
    let value = Tensor::rand([2], 1).unwrap();
    let inputs: Vec<(&str, &Tensor)> = names.iter().map(|name| (name.as_str(), &value)).collect();
    let run = |inputs: &[(&str, &Tensor)]| program.run(&mut Store::new(), inputs);
    assert_eq!(run(&inputs).unwrap()["y99"], value);
    let told = |inputs: &[(&str, &Tensor)]| run(inputs).unwrap_err().to_string();
    let with = |more: (&'static str, &Tensor)| told(&[&inputs[..], &[(more.0, &value)]].concat());
    assert_eq!(with(("x7", &value)), "input `x7`: is given twice");
    assert!(with(("z", &value)).starts_with("input `z`: is unknown"));
    assert!(told(&inputs[1..]).starts_with("input `x0`: is missing: expected f32[2], found `x1`"));
    let wrong = Tensor::rand([3], 1).unwrap();
    let mut other = inputs.clone();
    other[5].1 = &wrong;
    assert_eq!(told(&other), "input `x5`: expected f32[2], found f32[3]");
}

#[test]
fn twenty_thousand_ports_are_a_program_like_others() {
    const COUNT: usize = 20_000;
    let ty = TensorType::new(DType::F32, [2]);
    let graph = trace("ports", |t| {
        for i in 0..COUNT / 2 {
            let (x, w) = (format!("x{i}"), format!("w{i}"));
            t.output(&format!("y{i}"), t.input_of(&x, ty.clone()));
            t.output(&format!("v{i}"), t.param_of(&w, ty.clone()));
        }
    });
    let graph = text::parse(&graph.unwrap().to_string()).unwrap();
    let program = compile(graph, &options()).unwrap();
    let names: Vec<String> = (0..COUNT / 2).map(|i| format!("x{i}")).collect();
    let value = |i: usize| Tensor::new([2], &[i as f32, 1.0]).unwrap();
    let values: Vec<Tensor> = (0..COUNT / 2).map(value).collect();
    let inputs: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&values).collect();
    let mut store: Store = (0..COUNT / 2).map(|i| (format!("w{i}"), value(COUNT + i))).collect();
    let out = program.run(&mut store, &inputs).unwrap();
    for i in [0, 1, 77, COUNT / 2 - 1] {
        assert_eq!(
            (&out[&*format!("y{i}")], &out[&*format!("v{i}")]),
            (&value(i), &value(COUNT + i))
        );
    }
}

#[test]
fn twenty_thousand_rules_decide_as_few_would() {
    let mut set = PolicySet::standard();
    let add = |set: &mut PolicySet, target| set.add_rule(target, None, Policy::Fp32);
    for i in 0..20_000 {
        let target = match i % 3 {
            0 => Target::Node(format!("layer{i}/matmul#0")),
            1 => Target::Module(format!("layer{i}.attention.*")),
            _ => Target::Op(format!("own_op_{i}")),
        };
        add(&mut set, target);
    }
    add(&mut set, Target::Node("deep/matmul#7".into()));
    let options = options().with_policies(set.clone());
    let graph = tracecast::trace_with("ruled", &options, |t| {
        let x = t.input_of("x", TensorType::new(DType::F32, [4, 4]));
        let y = t.scope("deep", || {
            autocast(t, "cpu", DType::BF16, || (0..100).fold(x, |x, _| x.matmul(x).tanh()))
        });
        t.output("y", y);
    });
    let graph = graph.unwrap();
    let decided = graph.decisions(&set);
    let by_rule = decided.iter().flatten().filter(|d| d.rule.is_laid_over()).count();
    assert_eq!(by_rule, 1);
    let (_, report) = compile_reported(graph, &options).unwrap();
    let told: Vec<String> = report.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 101, "the first hundred, and how many more there are");
    assert!(told[100].contains("19900 more rules decide nothing"), "{}", told[100]);
    let file = set.to_toml();
    let found = review(&file, &ops::known(), &|_, _| String::new()).unwrap();
    assert_eq!(found.len(), 20_000 / 3, "ops that nobody knows");
    assert_eq!(found[0].line, file.lines().take_while(|l| !l.contains("own_op_2\"")).count() + 1);
}
