//! What the ops compute, by the interpreter: samples of every dtype run, gradient rules agree with
//! differences, and the ops with a meaning of their own agree with numbers worked out here.

use std::collections::HashMap;
use tracecast_ir::eval::{self, EvalError, Value};
use tracecast_ir::op::{Body, Grad, GradCx, OpDef};
use tracecast_ir::ops::all;
use tracecast_ir::ops::amp::LossScaling;
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::ops::elementwise::Elementwise;
use tracecast_ir::ops::index::Indexing;
use tracecast_ir::ops::linalg::Products;
use tracecast_ir::ops::nn::{Losses, Norms, Softmaxes};
use tracecast_ir::ops::random::Random;
use tracecast_ir::ops::reduce::Reductions;
use tracecast_ir::ops::sample::{Range, Sample, parse_sample};
use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::{DType, IntoDims, Role, TensorType, Tracer, Var};

/// Numbers without a pattern: multiples of 2^-10 from -2 to 2 for floats, small ones for integers.
fn numbers(ty: &TensorType, range: Range, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut unit = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let mut one = || match (range, ty.dtype) {
        (Range::Between(low, high), d) if d.is_int() => (low + unit() * (high - low)).floor(),
        (Range::Between(low, high), _) => low + unit() * (high - low),
        (_, DType::Bool) => f64::from(unit() < 0.5),
        (_, DType::U8) => 1.0 + (unit() * 9.0).floor(),
        (_, d) if d.is_int() && range == Range::Any => (unit() * 19.0).floor() - 9.0,
        (_, d) if d.is_int() => 1.0 + (unit() * 9.0).floor(),
        (Range::Any, _) => ((unit() * 4096.0).floor() - 2048.0) / 1024.0 + 1.0 / 4096.0,
        _ => 0.25 + unit() * 2.0,
    };
    (0..ty.numel().get()).map(|_| one()).collect()
}

fn value(ty: &TensorType, numbers: &[f64]) -> Value {
    Value::from_f64s(ty.clone(), numbers).expect("the count fits")
}

/// The operands of a sample by the names of their ports.
fn operands(sample: &Sample, seed: u64) -> HashMap<String, Value> {
    let each = sample.operands.iter().enumerate();
    each.map(|(i, (ty, range))| (format!("x{i}"), value(ty, &numbers(ty, *range, seed + i as u64))))
        .collect()
}

#[test]
fn every_sample_runs_in_every_dtype() {
    for op in all() {
        for &dtype in op.domain.dtypes {
            for text in op.domain.samples {
                let sample = parse_sample(op, text, dtype).unwrap();
                let tracer = Tracer::new("sample");
                for (i, y) in sample.record(&tracer, op).iter().enumerate() {
                    tracer.output(&format!("y{i}"), *y);
                }
                let out = eval::graph(&tracer.finish().unwrap(), &operands(&sample, 7));
                assert!(out.is_ok(), "{} with T = {dtype}: {text}: {}", op.name, out.unwrap_err());
            }
        }
    }
}

/// The sum of the results times fixed numbers, with the gradients of the op's own rule if asked
/// for.
fn weighed_sum(op: &'static OpDef, sample: &Sample, rule: Option<&Grad>) -> tracecast_ir::Graph {
    let tracer = Tracer::explicit("weighed");
    record_weighed_sum(&tracer, op, sample, rule);
    tracer.finish().expect("the op records")
}

fn record_weighed_sum(tracer: &Tracer, op: &'static OpDef, sample: &Sample, rule: Option<&Grad>) {
    let outs = sample.record(tracer, op);
    let weights: Vec<Option<Var<'_>>> = outs
        .iter()
        .enumerate()
        .map(|(i, y)| {
            let ty = y.ty();
            let weights = numbers(&ty, Range::Positive, 90 + i as u64);
            ty.dtype.is_float().then(|| tracer.constant(ty.dtype, &ty.shape.numbers(), &weights))
        })
        .collect();
    let parts =
        outs.iter().zip(&weights).filter_map(|(y, w)| Some((*y * (*w)?).sum(().dtype(DType::F64))));
    if let Some(total) = parts.reduce(|a, b| a + b) {
        tracer.output("total", total);
    }
    let Some(Grad::Rule(rule)) = rule else { return };
    let node = outs[0].id().node;
    let (ids, groups, attrs) = tracer
        .with_graph(|g| (g.args(node), g.node(node).groups.clone(), g.node(node).attrs.clone()));
    let args: Vec<_> = ids.iter().map(|id| tracer.var(*id)).collect();
    let cx =
        GradCx { tracer, args: &args, groups: &groups, outs: &outs, dys: &weights, attrs: &attrs };
    for (i, grad) in rule(&cx).iter().enumerate() {
        let original = tracer.input(&format!("x{i}"), sample.operands[i].0.clone());
        if let Some(grad) = grad {
            tracer.output(&format!("dx{i}"), grad.sum_to(&original.shape()));
        }
    }
}

/// How the sum changes with one element of one operand.
fn difference(
    graph: &tracecast_ir::Graph,
    inputs: &HashMap<String, Value>,
    port: &str,
    at: usize,
) -> f64 {
    let step = 1e-5;
    let total = |by: f64| {
        let mut inputs = inputs.clone();
        let moved = inputs.get_mut(port).expect("a port of that name");
        let mut numbers = moved.to_f64s();
        numbers[at] += by;
        *moved = value(&moved.ty, &numbers);
        eval::graph(graph, &inputs)
            .expect("the program runs")
            .get("total")
            .expect("the program runs")
            .to_f64s()[0]
    };
    (total(step) - total(-step)) / (2.0 * step)
}

#[test]
fn gradient_rules_agree_with_differences() {
    for op in all()
        .filter(|op| op.domain.dtypes.contains(&DType::F64) && !op.name.text().starts_with("round"))
    {
        let rule = match &op.body {
            Body::Core { grad: grad @ Grad::Rule(_), .. }
            | Body::Composite { grad: Some(grad @ Grad::Rule(_)), .. } => grad,
            _ => continue,
        };
        for text in op.domain.samples {
            let sample = parse_sample(op, text, DType::F64).unwrap();
            let graph = weighed_sum(op, &sample, Some(rule));
            let in_f64 = graph.nodes().all(|id| {
                graph.node(id).results.iter().all(|t| !t.dtype.is_float() || t.dtype == DType::F64)
            });
            // Large samples exercise the order of sums, not the rules.
            if !in_f64
                || !graph.outputs().iter().any(|(name, _)| name == "total")
                || ["detach", "custom_grad"].contains(&op.name.text())
                || sample.operands.iter().any(|(t, _)| t.numel().get() > 100)
            {
                continue;
            }
            let plain = weighed_sum(op, &sample, None);
            let inputs = operands(&sample, 3);
            let out = eval::graph(&graph, &inputs).unwrap();
            for (i, (ty, _)) in sample.operands.iter().enumerate() {
                let Some(grad) = out.get(&format!("dx{i}")) else { continue };
                for (at, &got) in grad.to_f64s().iter().enumerate().take(ty.numel().get()) {
                    let want = difference(&plain, &inputs, &format!("x{i}"), at);
                    assert!(
                        (got - want).abs() < 1e-5 * (1.0 + want.abs()),
                        "{}: {text}: operand {i}[{at}]: {got}, expected {want}",
                        op.name
                    );
                }
            }
        }
    }
}

/// Runs a program of some operands and returns its results as numbers.
fn run(
    operands: &[(TensorType, &[f64])],
    program: impl for<'t> Fn(&'t Tracer, &[Var<'t>]) -> Vec<Var<'t>>,
) -> Result<Vec<Vec<f64>>, EvalError> {
    let tracer = Tracer::new("run");
    let vars: Vec<_> = operands
        .iter()
        .enumerate()
        .map(|(i, (ty, _))| tracer.input(&format!("x{i}"), ty.clone()))
        .collect();
    for (i, y) in program(&tracer, &vars).into_iter().enumerate() {
        tracer.output(&format!("y{i}"), y);
    }
    let inputs =
        operands.iter().enumerate().map(|(i, (ty, v))| (format!("x{i}"), value(ty, v))).collect();
    let out = eval::graph(&tracer.finish()?, &inputs)?;
    Ok(out.outputs.iter().map(|(_, v)| v.to_f64s()).collect())
}

fn of(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape)
}

#[test]
fn a_linear_layer_rounds_once() {
    // 256 + 1 is no bf16 and would become 256, and 256 + 1 again; 258 is one.
    let (x, w, b) = (of(DType::BF16, &[1, 2]), of(DType::BF16, &[1, 2]), of(DType::BF16, &[1]));
    let out = run(&[(x, &[256.0, 1.0]), (w, &[1.0, 1.0]), (b, &[1.0])], |_, v| {
        vec![v[0].linear(v[1], v[2])]
    })
    .unwrap();
    assert_eq!(out[0], [258.0]);
}

#[test]
fn the_loss_of_classes() {
    let scores = [0.5, 2.0, -1.0, 0.0, 0.25, 3.0];
    let weights = [1.0, 2.0, 0.5];
    let logp = |row: usize, class: usize| {
        let row = &scores[row * 3..row * 3 + 3];
        row[class] - row.iter().map(|v: &f64| v.exp()).sum::<f64>().ln()
    };
    let (x, t, w) = (of(DType::F64, &[2, 3]), of(DType::I64, &[2]), of(DType::F64, &[3]));
    let operands = |target: &'static [f64]| {
        [(x.clone(), &scores[..]), (t.clone(), target), (w.clone(), &weights[..])]
    };
    let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-12, "{got}, expected {want}");

    let out = run(&operands(&[1.0, 2.0]), |_, v| {
        let plain = v[0].cross_entropy_loss(v[1], None, None, None, None);
        let weighed = v[0].cross_entropy_loss(v[1], v[2], None, None, None);
        let each = v[0].cross_entropy_loss(v[1], v[2], Some("none"), None, None);
        let smooth = v[0].cross_entropy_loss(v[1], v[2], None, None, Some(0.3));
        let ignoring = v[0].cross_entropy_loss(v[1], v[2], None, Some(2), None);
        let nothing =
            v[0].slice_none().cross_entropy_loss(v[1].slice_none(), None, None, None, None);
        vec![plain, weighed, each, smooth, ignoring, nothing]
    })
    .unwrap();
    close(out[0][0], -(logp(0, 1) + logp(1, 2)) / 2.0);
    let mean = -(2.0 * logp(0, 1) + 0.5 * logp(1, 2)) / 2.5;
    close(out[1][0], mean);
    close(out[2][0], -2.0 * logp(0, 1));
    close(out[2][1], -0.5 * logp(1, 2));
    let even: f64 = (0..2)
        .flat_map(|r| (0..3).map(move |c| (r, c)))
        .map(|(r, c)| -logp(r, c) * weights[c])
        .sum::<f64>()
        / 2.5;
    close(out[3][0], 0.7 * mean + 0.1 * even);
    close(out[4][0], -logp(0, 1));
    assert!(out[5][0].is_nan(), "a mean over nothing");

    let wrong = run(&operands(&[1.0, 3.0]), |_, v| {
        vec![v[0].cross_entropy_loss(v[1], None, None, None, None)]
    });
    assert!(wrong.unwrap_err().to_string().contains("index out of range: expected 0..3"));
}

/// No rows of a tensor.
trait SliceNone {
    fn slice_none(self) -> Self;
}

impl SliceNone for Var<'_> {
    fn slice_none(self) -> Self {
        tracecast_ir::ops::view::Views::slice(self, 0, 0, 0, 1)
    }
}

#[test]
fn the_scale_follows_its_rules() {
    let (f, i) = (of(DType::F32, &[]), of(DType::I32, &[]));
    let step = |scale: f64, tracker: f64, found: f64| {
        let out = run(
            &[(f.clone(), &[scale]), (i.clone(), &[tracker]), (f.clone(), &[found])],
            |_, v| {
                let scale = v[0].update_scale(v[1], v[2], 2.0, 0.5, 3);
                vec![scale, scale.result(1)]
            },
        );
        let out = out.unwrap();
        (out[0][0], out[1][0])
    };
    assert_eq!(step(8.0, 0.0, 0.0), (8.0, 1.0));
    assert_eq!(step(8.0, 2.0, 0.0), (16.0, 0.0));
    assert_eq!(step(8.0, 2.0, 1.0), (4.0, 0.0));
    assert_eq!(step(8.0, 2.0, f64::NAN), (4.0, 0.0));
    assert_eq!(step(8.0, 3.0, 0.0), (8.0, 4.0), "beyond the interval nothing grows");
    assert_eq!(step(3e38, 2.0, 0.0), (f64::from(3e38f32), 0.0), "infinite scales are refused");
    assert_eq!(step(8.0, 2147483647.0, 0.0), (8.0, -2147483648.0), "the tracker wraps");
}

#[test]
fn unscaling_reports_what_came_in() {
    let check = |numbers: &[f64], inv: f64, dtype| {
        run(&[(of(dtype, &[numbers.len()]), numbers), (of(DType::F32, &[]), &[inv])], |_, v| {
            let y = v[0].unscale_check(v[1]);
            vec![y, y.result(1)]
        })
        .unwrap()
    };
    assert_eq!(check(&[2.0, -8.0], 0.5, DType::F16), [vec![1.0, -4.0], vec![0.0]]);
    assert_eq!(check(&[2.0, f64::INFINITY], 0.5, DType::F32)[1], [1.0]);
    assert_eq!(check(&[f64::NAN, 1.0], 0.5, DType::BF16)[1], [1.0]);
    assert_eq!(
        check(&[60000.0], 2.0, DType::F16),
        [vec![f64::INFINITY], vec![0.0]],
        "the product may overflow unseen"
    );
    assert_eq!(check(&[1e300], 0.5, DType::F64), [vec![5e299], vec![0.0]]);
    let inv = run(&[(of(DType::F32, &[]), &[3.0])], |_, v| vec![v[0].reciprocal_scale()]).unwrap();
    assert_eq!(inv[0], [f64::from((1.0 / 3.0) as f32)]);
}

#[test]
fn dropout_keeps_about_as_many_and_scales_them() {
    let ones = vec![1.0; 4000];
    let (x, rng) = (of(DType::F32, &[4000]), of(DType::I64, &[2]));
    let drop = |step: f64, p: f64| {
        run(&[(x.clone(), &ones), (rng.clone(), &[5.0, step])], |_, v| {
            let y = v[0].dropout(v[1], p, 0);
            vec![y, y.result(1), v[0].uniform(v[1], -1.0, 3.0, 1), v[0].bernoulli(v[1], 0.25, 2)]
        })
        .unwrap()
    };
    let (a, b) = (drop(1.0, 0.2), drop(2.0, 0.2));
    assert_eq!(a, drop(1.0, 0.2));
    assert_ne!(a[1], b[1]);
    let kept: f64 = a[1].iter().sum();
    assert!((kept - 3200.0).abs() < 120.0, "{kept} of 4000");
    assert!(a[0].iter().zip(&a[1]).all(|(y, m)| *y == m * 1.25));
    let mean = a[2].iter().sum::<f64>() / 4000.0;
    assert!((mean - 1.0).abs() < 0.1 && a[2].iter().all(|u| (-1.0..=3.0).contains(u)), "{mean}");
    assert!((a[3].iter().sum::<f64>() - 1000.0).abs() < 120.0);
    assert!(drop(1.0, 1.0)[0].iter().all(|y| *y == 0.0));
    assert_eq!(drop(1.0, 0.0)[0], ones);
}

#[test]
fn rows_are_taken_and_given_back() {
    let table: Vec<f64> = (0..12).map(f64::from).collect();
    let (w, i) = (of(DType::BF16, &[4, 3]), of(DType::I32, &[3]));
    let out = run(&[(w.clone(), &table), (i.clone(), &[2.0, 0.0, 2.0])], |_, v| {
        let y = v[0].embedding(v[1]);
        vec![y, y.embedding_backward(v[1], 4, None, false)]
    });
    let out = out.unwrap();
    assert_eq!(out[0], [6.0, 7.0, 8.0, 0.0, 1.0, 2.0, 6.0, 7.0, 8.0]);
    assert_eq!(out[1], [0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 12.0, 14.0, 16.0, 0.0, 0.0, 0.0]);
    let wrong = run(&[(w, &table), (i, &[2.0, 0.0, -1.0])], |_, v| vec![v[0].embedding(v[1])]);
    assert!(wrong.unwrap_err().to_string().contains("index out of range"));
}

#[test]
fn statistics_of_a_layer_norm_stay_wide() {
    let row = [1.0, 2.0, 3.0, 6.0];
    let out = run(&[(of(DType::BF16, &[1, 4]), &row)], |_, v| {
        let y = v[0].layer_norm(None, None, [4], 0.0);
        vec![y, y.result(1), y.result(2)]
    })
    .unwrap();
    assert_eq!((out[1][0], out[2][0]), (3.0, f64::from(1.0 / 3.5f32.sqrt())));
}

#[test]
fn softmax_converts_first() {
    let x = [1.0 + 1.0 / 512.0, 0.0];
    let out = run(&[(of(DType::F32, &[2]), &x)], |_, v| {
        vec![
            v[0].softmax([0].dtype(DType::BF16)),
            v[0].cast(DType::BF16).softmax(0),
            v[0].log_softmax(0).exp(),
        ]
    })
    .unwrap();
    assert_eq!(out[0], out[1]);
    assert!((out[2][0] + out[2][1] - 1.0).abs() < 1e-6);
}

#[test]
fn cross_entropy_meets_the_policy_of_its_device() {
    let ops_of = |device: DeviceType| {
        let tracer = Tracer::new("policy");
        let region = Region::default().with_device(device, true, DType::BF16);
        let input = |name: &str, ty: TensorType| tracer.port(name, ty, Role::Input, false, device);
        let (x, t) = (input("x", of(DType::BF16, &[4, 7])), input("t", of(DType::I64, &[4])));
        let loss = tracer.in_region(&region, || x.cross_entropy_loss(t, None, None, None, None));
        assert_eq!(loss.ty(), TensorType::scalar(DType::F32), "{device}");
        tracer.output("loss", loss);
        let graph = tracer.finish().unwrap();
        let names: Vec<_> = graph
            .nodes()
            .skip(2)
            .map(|id| format!("{} {}", graph.node(id).op.name().text(), graph.node(id).results[0]))
            .collect();
        names
    };
    assert_eq!(ops_of(DeviceType::Cpu), ["cross_entropy_loss f32[]"]);
    assert_eq!(ops_of(DeviceType::Cuda), ["log_softmax bf16[4, 7]", "nll_loss f32[]"]);
}
