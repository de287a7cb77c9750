//! Every cast of every program on its way stands for points, and each point says what it was asked
//! for.

use tracecast_ir::ops::prelude::*;
use tracecast_ir::policy::{DeviceType, PolicySet, Region};
use tracecast_ir::{DType, Graph, NodeId, Point, Reason, Shape, TensorType, Tracer};
use tracecast_passes::explain::explain;
use tracecast_passes::{PassOptions, Place, standard};

fn f32s(sizes: &[usize]) -> TensorType {
    TensorType::new(DType::F32, sizes)
}

/// The program after each pass before `fuse`.
fn stages(graph: Graph) -> Vec<(String, Graph)> {
    let mut stages = Vec::new();
    let pipeline = standard(&PassOptions::default()).up_to(Place::NAME).expect("a pass");
    pipeline
        .run(graph, |pass, graph, _| stages.push((pass.to_owned(), Graph::clone(graph))))
        .expect("the program compiles");
    stages
}

/// The points of all casts of a program, each of which must have one.
fn standing(pass: &str, graph: &Graph) -> Vec<Point> {
    let mut points = Vec::new();
    for id in graph.nodes() {
        let node = graph.node(id);
        let casts = matches!(node.op.name().text(), "cast" | "round_to");
        assert_eq!(casts, !node.origin.points.is_empty(), "after {pass}:\n{graph}");
        points.extend(node.origin.points.iter().map(|p| graph.points()[*p as usize]));
    }
    points
}

/// A layer that is used twice under bf16, with its gradient.
fn shared_weight() -> Graph {
    let t = Tracer::new("shared");
    let (x, w) = (t.input("x", f32s(&[4, 4])), t.param("w", f32s(&[4, 4])));
    let region = Region::default().with_device(DeviceType::Cpu, true, DType::BF16).with_scope(1);
    let y = t.in_region(&region, || x.matmul(w).relu().matmul(w));
    let loss = y.cast(DType::F32).sum(());
    t.output("dw", t.grad(loss, &[w])[0]);
    t.finish().expect("traces")
}

#[test]
fn every_cast_has_a_reason_and_a_node() {
    let traced = shared_weight();
    let name = |id: NodeId| traced.node(id).op.name().text();
    for (pass, graph) in stages(traced.clone()) {
        for point in standing(&pass, &graph) {
            assert!(point.node.index() < traced.len() && point.from != point.to, "{point:?}");
            match point.reason {
                Reason::Policy { operand } => {
                    assert_eq!((name(point.node), point.to), ("matmul", DType::BF16));
                    assert!(operand < 2 && !point.backward);
                }
                Reason::Written => assert_eq!(name(point.node), "cast"),
                Reason::Gradient => assert!(point.backward),
                Reason::Inside(op) => {
                    assert!(point.backward || op.text() == name(point.node), "{op}")
                }
                Reason::Promotion | Reason::Rewrite => panic!("after {pass}: {point:?}\n{graph}"),
            }
        }
    }
}

#[test]
fn a_shared_cast_stands_for_each_of_its_uses() {
    let (_, cast) = stages(shared_weight()).swap_remove(1);
    let of_w = cast.nodes().find(|id| {
        let port = cast.args(*id).first().and_then(|a| cast.port_of(a.node));
        cast.node(*id).op.name().text() == "cast" && port.is_some_and(|p| p.name == "w")
    });
    let points = &cast.node(of_w.unwrap()).origin.points;
    let users: Vec<_> = points.iter().map(|p| cast.points()[*p as usize].node).collect();
    assert!(users.len() == 2 && users[0] != users[1], "{users:?}");
}

#[test]
fn what_cancels_is_gone_and_what_moves_stays() {
    let t = Tracer::new("moves");
    let x = t.input("x", TensorType::new(DType::BF16, [4, 8]));
    let w = t.input("w", f32s(&[4, 8]));
    // The first two cancel; the last two become one, above the views.
    t.output("same", x.cast(DType::F32).permute([1, 0]).cast(DType::BF16));
    let sum = w.exp();
    t.output("low", sum.permute([1, 0]).cast(DType::F16));
    t.output("too", sum.reshape([32]).cast(DType::F16));
    let graph = t.finish().unwrap();
    let (pass, last) = stages(graph).pop().unwrap();
    let left = standing(&pass, &last);
    assert_eq!(left.len(), 2, "{last}");
    assert!(left.iter().all(|p| p.to == DType::F16 && p.reason == Reason::Written), "{left:?}");
    assert_eq!(last.points().len(), 4);
    assert_eq!(
        last.nodes().filter(|id| last.node(*id).op.name().text() == "cast").count(),
        1,
        "{last}"
    );
}

#[test]
fn a_widening_that_waits_for_its_uses_is_the_one_that_was_asked_for() {
    let t = Tracer::new("waits");
    let x = t.input("x", TensorType::new(DType::F16, [4, 8]));
    let wide = x.cast(DType::F32).permute([1, 0]);
    t.output("y", wide.exp());
    let (pass, last) = stages(t.finish().unwrap()).pop().unwrap();
    let left = standing(&pass, &last);
    assert!(matches!(left[..], [Point { reason: Reason::Written, .. }]), "{left:?}\n{last}");
}

#[test]
fn casts_that_another_trace_asks_for_are_new() {
    let region = Region::default().with_device(DeviceType::Cpu, true, DType::F16).with_scope(1);
    let again = shared_weight().retrace_under(PolicySet::standard().into(), &region).unwrap();
    assert_eq!(again.points().len(), 1);
    assert!(again.nodes().all(|id| again.node(id).origin.node.is_none()));
}

#[test]
fn a_rounding_that_a_kernel_executes_is_not_cancelled() {
    let mut executed = 0;
    for position in [DType::I64, DType::F32] {
        for low in [DType::F16, DType::BF16] {
            for keeps_low in [false, true] {
                let t = Tracer::new("positions");
                let low_numbers = t.iota(position, Shape::from([8, 512]), 1).cast(low);
                t.output("y", low_numbers.cast(DType::F32));
                if keeps_low {
                    t.output("low", low_numbers);
                }
                let graph = t.finish().unwrap();
                let explained = explain(&graph, &PassOptions::default()).unwrap();
                let fused = standard(&PassOptions::default()).run(graph, |_, _, _| ()).unwrap();
                let text = fused.to_string();
                let rounds = text.matches(&format!("= round {low} ")).count();
                let narrows = explained.casts.iter().filter(|c| c.to == low && !c.is_cancelled());
                assert!(rounds <= narrows.count(), "{explained}\n{text}");
                executed += rounds;
            }
        }
    }
    assert!(executed >= 4, "{executed}");
}
