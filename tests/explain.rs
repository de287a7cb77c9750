//! `explain` from Rust: it says what compiling does, also as JSON and as a page, and warnings reach
//! the reports.

use std::collections::BTreeSet;
use tracecast::explain::{Explanation, Home, WarningKind, Why, Width, explain, html, json};
use tracecast::nn::{Linear, Relu, Sequential};
use tracecast::prelude::*;
use tracecast::{compile_reported, ir, passes};

/// A step with everything: two layers, a loss, a scaler, an optimizer.
fn step() -> TrainStep {
    let model = Sequential::new().then(Linear::new(8, 16)).then(Relu).then(Linear::new(16, 4));
    TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
        .optimizer(AdamW::new(0.01))
        .autocast("cpu", DType::F16)
        .scaler(ScalerOptions::default())
        .build()
        .expect("the step is complete")
}

fn batch() -> (Tensor, Tensor) {
    let x = Tensor::new([4, 8], &[0.5f32; 32]).expect("a tensor");
    (x, Tensor::new([4], &[0i64, 1, 2, 3]).expect("a tensor"))
}

/// The step explained, and the graph it is about.
fn explained() -> (Explanation, tracecast::Graph) {
    let (step, (x, y)) = (step(), batch());
    let mut store = Store::new();
    step.init(&mut store, 0).expect("a store");
    let inputs = [("x", &x), ("y", &y)];
    let explained = step.jit().explain(&store, &inputs).expect("an explanation");
    (explained, step.jit().graph(&store, &inputs).expect("a graph"))
}

#[test]
fn homes_are_those_of_the_compiled_program() {
    let (explained, graph) = explained();
    let (_, report) = compile_reported(graph.clone(), &Options::new()).unwrap();
    assert_eq!(explained.kernels.len(), report.kernels);
    assert_eq!(explained.standalone().count(), report.standalone_casts);
    let fused = passes::standard(&passes::PassOptions::default()).run(graph, |_, _, _| ()).unwrap();
    let kernels: BTreeSet<String> = fused
        .nodes()
        .filter_map(|id| match fused.node(id).attrs.get("kernel") {
            Some(ir::Attr::Kernel(kernel)) => Some(kernel.name.clone()),
            _ => None,
        })
        .collect();
    for home in explained.casts.iter().flat_map(|cast| cast.homes()) {
        assert!(kernels.contains(&home.kernel), "{home}: {kernels:?}");
    }
    let homes: BTreeSet<Home> =
        explained.casts.iter().flat_map(|cast| cast.homes()).map(|home| home.home).collect();
    assert!(homes.is_superset(&[Home::Load, Home::Pack, Home::Epilogue, Home::Store].into()));
}

#[test]
fn rules_for_one_device_are_idle_by_themselves() {
    let text = "region #1 = {cpu: bf16} cache on scope 1
graph @g(%x: f32[4, 4]) {
  %0 = matmul %x, %x : bf16[4, 4] @#1
  return y = %0
}";
    let device_rules = |devices: &[ir::policy::DeviceType]| {
        let mut set = ir::policy::PolicySet::standard();
        for device in devices {
            let target = ir::policy::Target::Op("matmul".into());
            set.add_rule(target, Some(*device), ir::policy::Policy::Fp32);
        }
        let policies = std::sync::Arc::new(set);
        let options = ir::text::ParseOptions { policies: policies.clone(), ..Default::default() };
        let file = ir::text::parse_under(text, &options, &ir::policy::Region::default()).unwrap();
        let found = passes::explain::warnings::of_choices(&file.graphs[0], &policies);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    use ir::policy::DeviceType::{Cpu, Cuda};
    let on_cuda = "(`op matmul on cuda: fp32`) matches %0, of whose operands none is on cuda";
    for (devices, idle) in
        [(&[Cuda][..], "rule 0"), (&[Cpu, Cuda], "rule 1"), (&[Cuda, Cpu], "rule 0")]
    {
        let said = device_rules(devices);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with(&format!("{idle} {on_cuda}")), "{said:?}");
    }
    // Of two that say the same, the first decides nothing.
    let twice = device_rules(&[Cpu, Cpu]);
    assert!(
        twice.len() == 1
            && twice[0].starts_with("rule 0 (`op matmul on cpu: fp32`) decides nothing"),
        "{twice:?}"
    );
    assert_eq!(device_rules(&[Cpu]), [""; 0]);
}

#[test]
fn every_op_in_a_region_has_a_reason_with_its_rule_and_line() {
    let (explained, graph) = explained();
    let inside: Vec<_> = explained.ops.iter().filter(|op| op.region != 0).collect();
    assert!(inside.len() >= 4, "{explained}");
    for op in inside {
        assert!(op.source.contains(".rs:"), "{op}");
        assert!(op.rule.is_some() || matches!(op.why, Why::Unseen(_) | Why::Written(_)), "{op}");
        assert_eq!(op.op, graph.node(op.node).op.name().text());
    }
    let linear = explained.ops.iter().find(|op| op.op == "linear").unwrap();
    assert_eq!((linear.width, &linear.why), (Width::Low(DType::F16), &Why::Cast(DType::F16)));
    let weight =
        explained.casts_of(linear).find(|c| c.operand.as_deref() == Some("%\"0.weight\"")).unwrap();
    assert_eq!(weight.rule.as_ref().unwrap().as_str(), "torch-cpu/linear:lower_precision_fp");
    assert_eq!(weight.table.as_deref(), Some("torch-cpu 2.15.0"));
    assert_eq!((weight.bytes, weight.moved), (8 * 16 * 6, 0));
    assert!(
        explained.wide().any(|op| op.op == "cross_entropy_loss" && op.why == Why::Cast(DType::F32))
    );
    assert!(explained.warnings.is_empty(), "{:?}", explained.warnings);
}

#[test]
fn json_reads_back_and_says_the_same() {
    let (explained, _) = explained();
    let value: serde_json::Value = serde_json::from_str(&json(&explained)).unwrap();
    assert_eq!(value["ops"].as_array().unwrap().len(), explained.ops.len());
    assert_eq!(value["casts"].as_array().unwrap().len(), explained.casts.len());
    assert_eq!(value["moved_bytes"], explained.moved);
    for (read, cast) in value["casts"].as_array().unwrap().iter().zip(&explained.casts) {
        assert_eq!(read["from"], cast.from.name());
        let made = read["made"].as_array().unwrap();
        assert_eq!(made.len(), cast.made.len());
        for (number, made) in made.iter().zip(&cast.made) {
            let told = &value["made"][number.as_u64().unwrap() as usize];
            assert_eq!(told["homes"].as_array().unwrap().len(), made.homes.len());
            assert!(told["points"].as_array().unwrap().contains(&cast.point.into()));
        }
        assert_eq!(read["rule"].as_str(), cast.rule.as_ref().map(|rule| rule.as_str()));
    }
}

#[test]
fn what_is_told_grows_with_the_program_and_not_with_its_square() {
    let sizes = |n: usize| {
        let graph = trace("shared", |t| {
            let ty = |shape: [usize; 2]| TensorType::new(DType::F32, shape);
            let w = t.param_of("w", ty([4, 4]));
            autocast(t, "cpu", DType::BF16, || {
                for i in 0..n {
                    t.output(&format!("y{i}"), t.input_of(&format!("x{i}"), ty([8, 4])).matmul(w));
                }
            });
        });
        let explained = explain(&graph.unwrap(), &Options::new()).unwrap();
        assert_eq!((explained.casts.len(), explained.made().count()), (2 * n, n + 1));
        let text = explained.to_string();
        let said = format!("shared with %1, %2, %3 and {} more; moves", n - 4);
        assert!(text.contains(&said), "expected `{said}` in {text}");
        [text.len(), json(&explained).len(), html(&[explained]).len()]
    };
    let (small, large) = (sizes(100), sizes(800));
    for (small, large) in small.into_iter().zip(large) {
        assert!(large < 9 * small, "{small} bytes for 100 ops, {large} for 800");
    }
}

#[test]
fn the_page_is_whole_and_needs_nothing_else() {
    let (explained, _) = explained();
    let page = html(std::slice::from_ref(&explained));
    for outside in ["http", "src=", "<script", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for op in &explained.ops {
        assert!(page.contains(&format!("<tr id=\"p0n{}\"", op.node.index())), "{op}");
    }
    // What looks like markup is text.
    let graph =
        ir::text::parse("graph @\"<b>\"(%\"a&b\": f32[2]) {\n  return y = %\"a&b\"\n}").unwrap();
    let page = html(&[explain(&graph, &Options::new()).unwrap()]);
    assert!(
        page.contains("@&lt;b&gt;") && page.contains("a&amp;b") && !page.contains("<b>"),
        "{page}"
    );
}

#[test]
fn one_node_can_be_asked_about() {
    let (explained, _) = explained();
    let name = &explained.ops.iter().find(|op| op.op == "linear").unwrap().name;
    let about = explained.about(name).unwrap();
    assert!(about.ops.len() == 1 && !about.casts.is_empty(), "{about}");
    assert!(about.casts.iter().all(|cast| cast.node == about.ops[0].node));
    let weight = explained.about("%0.weight").unwrap();
    assert!(
        weight.ops.iter().all(|op| op.operands.contains(&"%\"0.weight\"".to_owned())),
        "{weight}"
    );
    let wrong = explained.about("0.wieght").unwrap_err().to_string();
    assert!(wrong.contains("did you mean `0.weight`"), "{wrong}");
}

#[test]
fn warnings_are_in_the_report_of_a_compilation() {
    let program = jit(Options::new().device("reference"), |t| {
        let x = t.input("x");
        t.output("y", x.mul(x).sum(()));
    });
    let (mut store, ones) =
        (Store::new(), Tensor::full(TensorType::new(DType::F16, [300, 300]), 1.0));
    let x = ones.unwrap();
    let out = program.run(&mut store, &[("x", &x)]).unwrap();
    assert!(out["y"].to_f64s()[0].is_infinite());
    let report = program.report().unwrap();
    let [warning] = &report.warnings[..] else { panic!("{:?}", report.warnings) };
    assert_eq!((warning.kind, warning.subject.as_str()), (WarningKind::LowReduction, "%1 sum"));
    assert!(warning.source.contains("explain.rs:") && warning.advice.contains("f32"), "{warning}");
    let explained = program.explain(&store, &[("x", &x)]).unwrap();
    assert_eq!(explained.warnings, report.warnings);
}

#[test]
fn a_bad_program_is_an_error() {
    let program = jit(Options::new(), |t| t.output("y", t.input("x").matmul(t.input("x"))));
    let x = Tensor::new([2, 3], &[0.0f32; 6]).unwrap();
    let error = program.explain(&Store::new(), &[("x", &x)]).unwrap_err().to_string();
    assert!(error.contains("matmul"), "{error}");
}
