//! The op table against itself: every record is complete, and its parts agree with each other for
//! every sample and dtype.

use smallvec::SmallVec;
use tracecast_ir::op::{Body, Dispatch, ExpandCx, Grad, GradCx, GradFn, Inside, Lower, OpDef};
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::sample::{Sample, parse_sample};
use tracecast_ir::ops::{FALLTHROUGH, all};
use tracecast_ir::policy::PolicyTable;
use tracecast_ir::{Args, DType, Graph, Node, Results, Stage, TensorType, Tracer, Var, verify};

/// Calls `check` with every op, every dtype of its domain and every sample.
fn each_sample(check: impl Fn(&'static OpDef, &Sample, &str)) {
    for op in all() {
        for &dtype in op.domain.dtypes {
            for text in op.domain.samples {
                let sample = parse_sample(op, text, dtype).expect("samples are well written");
                check(op, &sample, &format!("{} with T = {dtype}: {text}", op.name));
            }
        }
    }
}

/// Names the values, so that they stay alive.
fn output_all(tracer: &Tracer, values: &[Var<'_>]) {
    for (i, value) in values.iter().enumerate() {
        tracer.output(&format!("y{i}"), *value);
    }
}

/// The parts of a composite, each result in the type that was inferred for it.
fn expand<'t>(tracer: &'t Tracer, node: &Node, args: &Args<'t>) -> Results<'t> {
    let Body::Composite { expand, inside, .. } = &node.op.def().body else {
        unreachable!("a composite")
    };
    let widen = |v: &Var<'t>| {
        if *inside == Inside::F32 && v.dtype().is_low() { v.cast(DType::F32) } else { *v }
    };
    let args: SmallVec<[Var<'t>; 4]> = args.vars.iter().map(widen).collect();
    let cx = ExpandCx {
        tracer,
        args: &args,
        groups: &node.groups,
        attrs: &node.attrs,
        results: &node.results,
    };
    let results = expand(&cx);
    assert_eq!(results.len(), node.results.len(), "{}", node.op.name().text());
    let narrow = |(v, t): (&Var<'t>, &TensorType)| {
        let is_wide = *inside == Inside::F32 && v.dtype() == t.dtype.compute();
        assert!(v.dtype() == t.dtype || is_wide, "{}: {v:?} for {t}", node.op.name().text());
        if v.dtype() == t.dtype { *v } else { v.cast(t.dtype) }
    };
    results.iter().zip(&node.results).map(narrow).collect()
}

/// Expands composites until core ops are left.
fn to_core(mut graph: Graph) -> Graph {
    for _ in 0..10 {
        let is_composite = |n: &Node| matches!(n.op.def().body, Body::Composite { .. });
        graph =
            graph
                .retrace(|t, _, node, args| {
                    if is_composite(node) { expand(t, node, &args) } else { t.again(node, args) }
                })
                .expect("a graph can be traced again");
        let live = graph.live();
        if !graph.nodes().any(|id| live[id.index()] && is_composite(graph.node(id))) {
            return graph
                .retrace(|t, _, node, args| t.again(node, args))
                .expect("a graph can be traced again");
        }
    }
    panic!("composites made of themselves");
}

#[test]
fn every_record_is_complete() {
    for op in all() {
        assert!(!op.doc.trim().is_empty(), "{} has no doc", op.name);
        assert!(!op.rounding.prose.is_empty() && !op.schema.results.is_empty(), "{}", op.name);
        let is_sampled = !matches!(
            op.body,
            Body::Symbolic(_) | Body::Source(Lower::Port) | Body::Core { kernel: Lower::Fused, .. }
        );
        assert_eq!(
            is_sampled,
            !op.domain.samples.is_empty() && !op.domain.dtypes.is_empty(),
            "{}",
            op.name
        );
        if matches!(op.body, Body::Core { .. }) && is_sampled {
            let several = matches!(op.body, Body::Core { kernel: Lower::Attention(_), .. });
            assert_eq!(op.schema.results.len() > 1, several, "{}", op.name);
        }
    }
    let mut names: Vec<_> = all().map(|op| op.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "an op name appears twice");
}

#[test]
fn an_op_that_a_table_gives_a_dtype_takes_one() {
    for op in all() {
        let (Dispatch::Listed { overload } | Dispatch::ListedOrExpands { overload }) = op.dispatch
        else {
            continue;
        };
        for table in PolicyTable::built_in() {
            if let Some((policy, rule)) = table.get(op.name.text(), overload) {
                assert!(op.schema.takes_dtype() || !policy.needs_dtype_argument(), "{rule}");
            }
        }
    }
}

#[test]
fn policies_know_every_listed_op() {
    let is_in_a_table = |name: &str, overload: &str| {
        PolicyTable::standard().iter().any(|t| t.get(name, overload).is_some())
    };
    for op in all() {
        let (Dispatch::Listed { overload } | Dispatch::ListedOrExpands { overload }) = op.dispatch
        else {
            assert!(
                !FALLTHROUGH.contains(&op.name.text()) && !is_in_a_table(op.name.text(), ""),
                "{} is not looked up",
                op.name
            );
            continue;
        };
        let falls_through = FALLTHROUGH.contains(&op.name.text());
        assert_ne!(
            is_in_a_table(op.name.text(), overload),
            falls_through,
            "{}: in a table or in FALLTHROUGH, not both",
            op.name
        );
    }
    assert!(FALLTHROUGH.is_sorted());
    for name in FALLTHROUGH {
        assert!(tracecast_ir::ops::find(name).is_some(), "{name} is no op");
    }
}

#[test]
fn samples_record_and_verify() {
    each_sample(|op, sample, what| {
        let tracer = Tracer::new("sample");
        output_all(&tracer, &sample.record(&tracer, op));
        let graph = tracer.finish().unwrap_or_else(|e| panic!("{what}: {e}"));
        verify(graph, Stage::Traced).unwrap_or_else(|e| panic!("{what}: {e}"));
    });
}

#[test]
fn composites_expand_to_the_types_they_infer() {
    each_sample(|op, sample, what| {
        let tracer = Tracer::explicit("sample");
        let results = sample.record(&tracer, op);
        let types: Vec<_> = results.iter().map(|v| v.ty()).collect();
        output_all(&tracer, &results);
        drop(results);
        let graph = tracer.finish().unwrap_or_else(|e| panic!("{what}: {e}"));
        let graph =
            verify(graph, Stage::Cast).unwrap_or_else(|e| panic!("{what}: {e}")).into_graph();
        let core = to_core(graph);
        let core = verify(core, Stage::Core).unwrap_or_else(|e| panic!("{what}: {e}"));
        let left: Vec<_> = core.outputs().iter().map(|(_, v)| core.ty(*v).clone()).collect();
        assert_eq!(left, types, "{what}");
    });
}

/// The gradient rule of an op, if it has one.
fn rule_of(op: &OpDef) -> Option<&Grad> {
    match &op.body {
        Body::Core { grad, .. } => Some(grad),
        Body::Composite { grad, .. } => grad.as_ref(),
        _ => None,
    }
}

#[test]
fn gradients_have_the_types_of_their_operands() {
    each_sample(|op, sample, what| {
        let Some(Grad::Rule(rule)) = rule_of(op) else { return };
        for only in (0..op.schema.results.len()).map(Some).chain([None]) {
            let tracer = Tracer::explicit("sample");
            if record_gradients(&tracer, op, sample, &**rule, only, what) {
                let graph = verify(tracer.finish().unwrap(), Stage::Cast)
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                verify(to_core(graph.into_graph()), Stage::Core)
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
            }
        }
    });
}

/// Records the op and its gradients for ones as the gradient of one result or of all, and compares
/// their types.
fn record_gradients(
    tracer: &Tracer,
    op: &'static OpDef,
    sample: &Sample,
    rule: &GradFn,
    only: Option<usize>,
    what: &str,
) -> bool {
    let outs = sample.record(tracer, op);
    let node = outs[0].id().node;
    let (ids, groups, attrs) = tracer
        .with_graph(|g| (g.args(node), g.node(node).groups.clone(), g.node(node).attrs.clone()));
    let args: Vec<_> = ids.iter().map(|id| tracer.var(*id)).collect();
    let flows = |i: usize, v: &Var<'_>| v.dtype().is_float() && only.is_none_or(|o| o == i);
    let dys: Vec<_> =
        outs.iter().enumerate().map(|(i, v)| flows(i, v).then(|| tracer.ones_like(*v))).collect();
    if dys.iter().all(Option::is_none) {
        return false;
    }
    let cx = GradCx { tracer, args: &args, groups: &groups, outs: &outs, dys: &dys, attrs: &attrs };
    let grads = rule(&cx);
    assert!(tracer.error().is_none(), "{what}: {}", tracer.error().expect("there is an error"));
    assert_eq!(grads.len(), args.len(), "{what}");
    for (arg, grad) in args.iter().zip(&grads) {
        assert!(grad.is_none_or(|g| g.ty() == arg.ty()), "{what}: gradient {grad:?} of {arg:?}");
    }
    output_all(tracer, &grads.iter().copied().flatten().collect::<Vec<_>>());
    true
}

#[test]
fn refusals_say_what_was_expected() {
    use tracecast_ir::ops::amp::LossScaling;
    use tracecast_ir::ops::index::Indexing;
    use tracecast_ir::ops::linalg::Products;
    use tracecast_ir::ops::nn::{Losses, Norms, Softmaxes};
    use tracecast_ir::ops::random::Random;
    let f32 = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let i64 = |shape: &[usize]| TensorType::new(DType::I64, shape);
    let on = |ty: TensorType, record: &dyn for<'t> Fn(&'t Tracer, Var<'t>) -> Var<'t>| {
        let tracer = Tracer::new("refused");
        record(&tracer, tracer.input("x", ty));
        tracer.finish().unwrap_err().message
    };
    let x = || f32(&[3, 4]);
    let cases = [
        (on(x(), &|t, x| x.matmul(t.input("y", f32(&[5, 2])))), "inner sizes differ, 4 and 5"),
        (
            on(x(), &|t, x| x.matmul(t.input("y", f32(&[4, 2]).with_dtype(DType::F16)))),
            "expected one dtype",
        ),
        (on(x(), &|t, x| x.gather(t.input("i", i64(&[3])), 0)), "as many axes as f32[3, 4]"),
        (on(x(), &|_, x| x.softmax(2)), "axis 2 is out of range"),
        (on(i64(&[3]), &|_, x| x.softmax(0)), "give a `dtype`"),
        (
            on(x(), &|_, x| x.layer_norm(None, None, [3], 1e-5)),
            "expected the last axes of f32[3, 4]",
        ),
        (
            on(x(), &|t, x| x.nll_loss(t.input("i", i64(&[4])), None, None, None)),
            "expected shape [3]",
        ),
        (
            on(x(), &|t, x| x.nll_loss(t.input("i", i64(&[3])), None, Some("max"), None)),
            "`reduction` is \"max\"",
        ),
        (on(x(), &|t, x| x.dropout(t.input("i", i64(&[3])), 0.5, 0)), "expected i64[2]"),
        (on(x(), &|t, x| x.unscale(t.input("i", f32(&[3])))), "expected f32[]"),
    ];
    for (message, part) in cases {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}
