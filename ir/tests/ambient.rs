//! A text recorded in a region of the reader's choice is the graph that the same text gives with
//! that region on its lines.

use smallvec::smallvec;
use std::sync::Arc;
use tracecast_ir::op::{
    Body, Dispatch, Domain, FLOATS, Facts, Func, Inside, OpDef, OpName, OpRef, Operand,
    OperandKind, Rounding, Schema,
};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::ops::sample::{Sample, parse_sample};
use tracecast_ir::policy::{DeviceType, Policy, PolicySet, Region, Target};
use tracecast_ir::text::{ParseOptions, parse_under, parse_with};
use tracecast_ir::{DType, Graph, TensorType, Tracer, ops};

/// An op of a user that is expanded before policies see it, into one that every table lists, and
/// one that has a dtype attribute.
fn expands() -> OpRef {
    OpRef::Shared(Arc::new(OpDef {
        name: OpName::new("my_scores"),
        doc: "Scores of each row with each.",
        schema: Schema {
            operands: &[Operand { name: "x", kind: OperandKind::One }],
            attrs: &[],
            results: &["y"],
        },
        dispatch: Dispatch::Expands,
        infer: Func::Static(&ops::infer::same),
        body: Body::Composite {
            expand: Func::Static(&|cx| {
                let scores = cx.args[0].matmul(cx.args[0]);
                smallvec![scores.softmax([1].dtype(scores.dtype()))]
            }),
            inside: Inside::Own,
            grad: None,
        },
        rounding: Rounding::parts("as its parts"),
        facts: Facts::new(),
        domain: Domain { dtypes: FLOATS, samples: &["T[4, 4]"] },
    }))
}

/// A line that records the sample, with the types that it gives in that region; or why the policies
/// refuse it there.
fn text(
    op: &OpRef,
    sample: &Sample,
    device: DeviceType,
    region: &Region,
    place: &str,
) -> Result<String, String> {
    let t = Tracer::new("g");
    let mut inputs = sample.inputs(&t);
    for (i, var) in inputs.vars.iter_mut().enumerate() {
        let role = tracecast_ir::Role::Input;
        *var = t.port(&format!("on{i}"), var.ty(), role, false, device);
    }
    let results = t.in_region(region, || t.apply(op.clone(), inputs, sample.attrs.clone()));
    let types: Vec<TensorType> = results.iter().map(|var| var.ty()).collect();
    if let Some(error) = t.error() {
        return Err(error.message);
    }
    let ports: Vec<String> = (sample.operands.iter().enumerate())
        .map(|(i, (ty, _))| format!("%x{i}: {ty} on {device}"))
        .collect();
    let (mut operands, mut next) = (Vec::new(), 0);
    for (operand, &count) in op.def().schema.operands.iter().zip(&sample.groups) {
        let values: Vec<String> =
            (next..next + usize::from(count)).map(|i| format!("%x{i}")).collect();
        next += usize::from(count);
        operands.push(match operand.kind {
            OperandKind::List => format!("[{}]", values.join(", ")),
            _ => values.first().cloned().unwrap_or("none".to_owned()),
        });
    }
    let comma = |items: Vec<String>| items.join(", ");
    let names = (0..types.len()).map(|i| format!("%y{i}")).collect();
    let types = types.iter().map(ToString::to_string).collect();
    let returns = (0..op.def().schema.results.len()).map(|i| format!("r{i} = %y{i}")).collect();
    Ok(format!(
        "region #1 = {region}\ngraph @g({}) {{\n  {} = {} {} {} : {}{place}\n  return {}\n}}",
        comma(ports),
        comma(names),
        op.name().text(),
        comma(operands),
        sample.attrs,
        comma(types),
        comma(returns)
    ))
}

fn same(ambient: &Graph, inside: &Graph, text: &str) {
    assert_eq!(ambient.to_string(), inside.to_string(), "{text}");
    for id in inside.nodes() {
        assert_eq!(ambient.node(id).decision, inside.node(id).decision, "{text}");
    }
}

#[test]
fn an_op_that_is_expanded_is_expanded_in_the_region() {
    let options = ParseOptions { ops: vec![expands()], ..ParseOptions::default() };
    let table = ops::all().map(OpRef::Static).filter(|op| {
        matches!(op.def().dispatch, Dispatch::Expands | Dispatch::ListedOrExpands { .. })
    });
    let (mut count, mut refused) = (0, 0);
    for op in table.chain([expands()]) {
        for (line, &dtype) in op
            .def()
            .domain
            .samples
            .iter()
            .flat_map(|line| op.def().domain.dtypes.iter().map(move |dtype| (*line, dtype)))
        {
            let sample = parse_sample(op.def(), line, dtype).unwrap();
            for (device, low) in [
                (DeviceType::Cpu, DType::BF16),
                (DeviceType::Cuda, DType::BF16),
                (DeviceType::Cuda, DType::F16),
            ] {
                let region = Region::default().with_device(device, true, low);
                let outside = text(&op, &sample, device, &Region::default(), "").unwrap();
                let outside = outside.split_once('\n').unwrap().1;
                let ambient = parse_under(outside, &options, &region);
                let inside = text(&op, &sample, device, &region.clone().with_scope(1), " @#1");
                let inside = match inside {
                    Ok(inside) => inside,
                    // The other 16-bit float, which `promote` refuses in this region.
                    Err(why) => {
                        assert!(
                            dtype.is_low() && dtype != low && why.starts_with("promote: "),
                            "{why}"
                        );
                        assert!(ambient.unwrap_err().to_string().contains("promote: "));
                        refused += 1;
                        continue;
                    }
                };
                let ambient = ambient.unwrap().graphs.remove(0);
                same(&ambient, &parse_with(&inside, &options).unwrap(), &inside);
                count += 1;
            }
        }
    }
    assert!(count >= 50 && refused > 0, "{count}, {refused} refused");
}

const LOSS: &str = "graph @g(%x: f32[4, 4], %y: i64[4]) {
  %0 = matmul %x, %x : f32[4, 4]
  %1 = cross_entropy_loss %0, %y : f32[]
  return loss = %1
}";

fn ops_under(text: &str, policies: PolicySet, ambient: &str) -> Vec<String> {
    let options = ParseOptions { policies: policies.into(), ..ParseOptions::default() };
    let ambient = ambient.parse().expect("a region");
    let file = parse_under(text, &options, &ambient).expect("reads under these policies");
    let graph = &file.graphs[0];
    let line = |id| format!("{} {}", graph.node(id).op.name().text(), graph.node(id).results[0]);
    graph.nodes().filter(|id| graph.port_of(*id).is_none()).map(line).collect()
}

#[test]
fn a_rule_about_an_op_that_is_expanded_elsewhere_is_asked() {
    let cpu = "{cpu: bf16} cache on scope 0";
    let mut set = PolicySet::standard();
    let listed = ["matmul bf16[4, 4]", "cross_entropy_loss f32[]"];
    assert_eq!(ops_under(LOSS, set.clone(), cpu), listed);
    set.add_rule(Target::Op("cross_entropy_loss".into()), None, Policy::Fallthrough);
    assert_eq!(ops_under(LOSS, set, cpu)[1], "log_softmax bf16[4, 4]");
}

#[test]
fn an_op_that_a_policy_speaks_of_is_whole_also_if_there_is_nothing_to_cast() {
    let text = "graph @g(%x: f32[4, 4], %y: i64[4]) {
  %0 = cross_entropy_loss %x, %y : f32[]
  return loss = %0
}";
    let set = PolicySet::standard;
    let (cpu, cuda) = ("{cpu: bf16} cache on scope 0", "{cuda: bf16} cache on scope 0");
    assert_eq!(ops_under(text, set(), cpu), ["cross_entropy_loss f32[]"]);
    let parts = ["log_softmax f32[4, 4]", "nll_loss f32[]"];
    assert_eq!(ops_under(&text.replace("[4, 4],", "[4, 4] on cuda,"), set(), cuda), parts);
    assert_eq!(ops_under(text, set(), &Region::default().to_string()), parts);
}

#[test]
fn a_text_written_for_the_standard_policies_reads_under_others() {
    let text = "region #1 = {cpu: bf16} cache on scope 1
graph @g(%x: f32[4, 4]) {
  %0 = matmul %x, %x : bf16[4, 4] @#1
  %1 = relu %0 : bf16[4, 4] @#1
  return y = %1
}";
    let off = Region::default().to_string();
    let mut set = PolicySet::standard();
    set.add_rule(Target::Op("relu".into()), None, Policy::Fp32);
    assert_eq!(ops_under(text, set.clone(), &off), ["matmul bf16[4, 4]", "relu f32[4, 4]"]);
    let own = text.replace("relu %0 : bf16", "relu %0 : f32");
    assert_eq!(ops_under(&own, set.clone(), &off), ["matmul bf16[4, 4]", "relu f32[4, 4]"]);
    let options = ParseOptions { policies: set.into(), ..ParseOptions::default() };
    let wrong = |text: &str, says: &str| {
        let error = parse_under(text, &options, &Region::default()).unwrap_err();
        assert!(error.to_string().starts_with(says), "{error}");
    };
    // Wrong under both; the reading that got further tells what it expected.
    wrong(&text.replace("y = %1", "y = %9"), "5:14: `%9` is not defined");
    wrong(&own.replace("y = %1", "y = %9"), "5:14: `%9` is not defined");
    wrong(&text.replace("%x : bf16", "%x : f32"), "3:24: expected bf16[4, 4]");
}

#[test]
fn what_a_text_switches_off_stays_off() {
    for island in ["{cpu: off bf16} cache on scope 0", "{cpu: off} cache on scope 1"] {
        let text = format!(
            "region #1 = {island}
graph @g(%x: f32[4, 4]) {{
  %0 = matmul %x, %x : f32[4, 4] @#1
  %1 = matmul %x, %x : f32[4, 4]
  return a = %0, b = %1
}}"
        );
        let bf16 = "{cpu: bf16} cache on scope 0";
        let expected = ["matmul f32[4, 4]", "matmul bf16[4, 4]"];
        assert_eq!(ops_under(&text, PolicySet::standard(), bf16), expected);
        let graph = tracecast_ir::text::parse(&text).unwrap();
        let again = graph.retrace_under(PolicySet::standard().into(), &bf16.parse().unwrap());
        let again = again.unwrap();
        let dtypes: Vec<_> = again.outputs().iter().map(|(_, v)| again.ty(*v).dtype).collect();
        assert_eq!(dtypes, [DType::F32, DType::BF16]);
    }
}
