//! Autocast regions of a trace: how they nest and end, several devices at once, PyTorch's defects
//! on request, threads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use tracecast::explain::WarningKind;
use tracecast::ir::Role;
use tracecast::ir::policy::{DeviceType, Policy, PolicySet, Target};
use tracecast::prelude::*;
use tracecast::{Graph, trace_with};

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn recorded() -> PolicySet {
    let mut set = PolicySet::standard();
    set.set_parity(true);
    set
}

/// Runs `body` in a trace with a 2×2 input and parameter.
fn with(policies: PolicySet, body: impl FnOnce(&Trace, Var<'_>, Var<'_>)) -> Graph {
    let options = Options::new().with_policies(policies);
    let graph = trace_with("regions", &options, |t| {
        body(t, t.input_of("x", f32s(&[2, 2])), t.param_of("w", f32s(&[2, 2])));
    });
    graph.unwrap_or_else(|error| panic!("{error}"))
}

fn standard(body: impl FnOnce(&Trace, Var<'_>, Var<'_>)) -> Graph {
    with(PolicySet::standard(), body)
}

#[test]
fn a_trace_begins_with_everything_off_and_a_body_of_a_region_ends_anyhow() {
    standard(|t, x, w| {
        assert!(t.tracer().region().is_off());
        let early = |t: &Trace| {
            autocast(t, "cpu", None, || {
                if x.matmul(w).dtype() == DType::BF16 {
                    return "early";
                }
                "late"
            })
        };
        assert_eq!(early(t), "early");
        assert!(t.tracer().region().is_off());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            autocast(t, "cpu", None, || autocast(t, "cuda", None, || panic!("on purpose")))
        }));
        assert!(panicked.is_err() && t.tracer().region().is_off());
        assert_eq!(x.matmul(w).dtype(), DType::F32);
        // The number of open regions is back too: the next one is an outermost one, with a cache
        // scope of its own.
        let scope = |t: &Trace| autocast(t, "cpu", None, || t.tracer().region().scope());
        assert_ne!(scope(t), scope(t));
    });
    // The same with PyTorch's region objects.
    with(recorded(), |t, _, _| {
        let region = Autocast::new("cpu");
        let panicked = catch_unwind(AssertUnwindSafe(|| region.run(t, || panic!("on purpose"))));
        assert!(panicked.is_err() && t.tracer().region().is_off());
    });
}

#[test]
fn regions_nest_islands_switch_off_and_no_dtype_is_the_current_one() {
    standard(|t, x, w| {
        let product = || x.matmul(w).dtype();
        let in_f16 = Autocast::new("cpu").dtype(DType::F16);
        in_f16.run(t, || {
            assert_eq!(product(), DType::F16);
            Autocast::new("cpu").run(t, || assert_eq!(product(), DType::F16));
            Autocast::new("cpu").enabled(false).run(t, || {
                assert_eq!(product(), DType::F32);
                autocast(t, "cpu", None, || assert_eq!(product(), DType::F16));
                autocast(t, "cpu", DType::BF16, || assert_eq!(product(), DType::BF16));
                assert_eq!(product(), DType::F32);
            });
            Autocast::new("cpu").cache(false).run(t, || {
                assert!(!t.tracer().region().cache());
                in_f16.run(t, || assert!(!t.tracer().region().cache()));
            });
            assert!(t.tracer().region().cache());
            assert_eq!(product(), DType::F16);
        });
    });
}

#[test]
fn a_dtype_that_a_device_does_not_take_switches_off_with_a_warning_or_is_an_error() {
    let report = |device: &'static str, dtype| {
        let program = jit(Options::new(), move |t| {
            let x = t.input("x");
            t.output("y", autocast(t, device, dtype, || x.matmul(x)).cast(DType::F32));
        });
        let x = Tensor::full(f32s(&[2, 2]), 1.0).unwrap();
        program.prepare(&Store::new(), &[("x", &x)]).map(|report| {
            let tracing = report.warnings.into_iter().filter(|w| w.kind == WarningKind::Tracing);
            tracing.map(|w| w.message).collect::<Vec<_>>()
        })
    };
    assert_eq!(report("cpu", DType::F16).unwrap(), [""; 0]);
    for device in ["cpu", "xpu", "mps", "mtia", "maia", "hpu", "ipu", "xla"] {
        let warnings = report(device, DType::F64).unwrap();
        assert!(warnings[0].contains("bf16 or f16, not f64: this region is switched off"));
    }
    assert_eq!(report("cuda", DType::F64).unwrap(), [""; 0], "cuda checks nothing");
    for (device, says) in [
        ("tpu", "unknown device type `tpu`"),
        ("cpu:x", "unknown device type `cpu:x`"),
        ("privateuse1", "no device of this type has registered"),
    ] {
        let error = report(device, DType::F16).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(file!()), "{error}");
    }
}

#[test]
fn each_op_is_decided_by_the_device_of_its_operands() {
    let graph = standard(|t, x, w| {
        let port =
            |name: &str| t.tracer().port(name, f32s(&[2, 2]), Role::Input, false, DeviceType::Cuda);
        let (a, b) = (port("a"), port("b"));
        let products = |on_cpu, on_cuda| {
            assert_eq!((x.matmul(w).dtype(), a.matmul(b).dtype()), (on_cpu, on_cuda));
        };
        autocast(t, "cpu", None, || {
            products(DType::BF16, DType::F32);
            autocast(t, "cuda:1", None, || {
                products(DType::BF16, DType::F16);
                // The lists differ: exp is f32 on cuda and not listed on cpu.
                let exp = |x: Var<'_>| x.matmul(x).exp().dtype();
                assert_eq!((exp(x), exp(a)), (DType::BF16, DType::F32));
                Autocast::new("cpu").enabled(false).run(t, || products(DType::F32, DType::F16));
            });
            products(DType::BF16, DType::F32);
        });
        autocast(t, "cuda", DType::BF16, || products(DType::F32, DType::BF16));
        t.output("y", x.matmul(w));
    });
    assert!(graph.regions().len() > 3);
}

#[test]
fn a_wrapped_function_runs_in_the_region_at_each_call() {
    standard(|t, x, w| {
        let region = Autocast::new("cpu").dtype(DType::F16);
        let layer = region.wrap(t, |(x, w): (Var<'_>, Var<'_>)| {
            assert!(t.tracer().region().is_enabled(DeviceType::Cpu));
            (x.matmul(w).dtype(), t.tracer().region().scope())
        });
        let (first, second) = (layer((x, w)), layer((x, w)));
        assert_eq!((first.0, second.0), (DType::F16, DType::F16));
        assert_ne!(first.1, second.1, "each call is a cache scope of its own");
        assert!(t.tracer().region().is_off());
    });
}

#[test]
fn a_wrapped_function_of_an_unknown_device_is_an_error_of_its_line() {
    let error =
        trace("tpu", |t| Autocast::new("tpu").wrap(t, |()| ())(())).unwrap_err().to_string();
    assert!(error.contains("`tpu`") && error.contains(file!()), "{error}");
}

#[test]
fn one_region_inside_itself_leaks_only_on_request() {
    let twice = |policies| {
        let mut after = Vec::new();
        with(policies, |t, x, w| {
            let region = Autocast::new("cpu");
            region.run(t, || region.run(t, || after.push(x.matmul(w).dtype())));
            after.push(x.matmul(w).dtype());
            // A clone is another object.
            t.tracer().in_region(&tracecast::ir::policy::Region::default(), || {
                region.run(t, || region.clone().run(t, || ()));
                after.push(x.matmul(w).dtype());
            });
        });
        after
    };
    use DType::{BF16, F32};
    assert_eq!(twice(PolicySet::standard()), [BF16, F32, F32]);
    assert_eq!(twice(recorded()), [BF16, BF16, F32]);
}

/// A weight used, multiplied by 10 in place, and used again in one region: both products of ones
/// with it.
fn in_place(policies: PolicySet) -> (f64, f64) {
    let graph = with(policies, |t, x, w| {
        autocast(t, "cpu", None, || {
            t.output("before", x.matmul(w).cast(DType::F32));
            let next = w * 10.0;
            t.update(w, next);
            t.output("after", x.matmul(next).cast(DType::F32));
        });
    });
    let ones = Tensor::full(f32s(&[2, 2]), 1.0).unwrap();
    let mut store = Store::new().with("w", ones.clone());
    let options = Options::new();
    let options = options.with_policies(if graph.policy_hash() == recorded().hash() {
        recorded()
    } else {
        PolicySet::standard()
    });
    let out = compile(graph, &options).unwrap().run(&mut store, &[("x", &ones)]).unwrap();
    assert_eq!(store.get("w").unwrap().to_f64s(), [10.0; 4]);
    (out["before"].to_f64s()[0], out["after"].to_f64s()[0])
}

#[test]
fn a_weight_that_changes_in_a_region_is_stale_only_on_request() {
    assert_eq!(in_place(PolicySet::standard()), (2.0, 20.0));
    assert_eq!(in_place(recorded()), (2.0, 2.0));
}

#[test]
fn a_weight_in_two_dtypes_is_mixed_up_only_on_request() {
    let mixed = |policies: PolicySet| {
        let options = Options::new().with_policies(policies);
        trace_with("mixed", &options, |t| {
            let (x, w) = (t.input_of("x", f32s(&[2, 2])), t.param_of("w", f32s(&[2, 2])));
            autocast(t, "cpu", DType::BF16, || {
                t.output("low", x.matmul(w));
                autocast(t, "cpu", DType::F16, || t.output("half", x.matmul(w)));
            });
        })
    };
    let graph = mixed(PolicySet::standard()).unwrap();
    let dtypes = graph.outputs().iter().map(|(_, value)| graph.ty(*value).dtype);
    assert_eq!(dtypes.collect::<Vec<_>>(), [DType::BF16, DType::F16]);
    let error = mixed(recorded()).unwrap_err().to_string();
    assert!(error.contains("matmul") && error.contains("f16") && error.contains("bf16"), "{error}");
}

/// What torchax's autocast does not do.
#[test]
fn torchax_takes_lists_knows_devices_and_has_every_policy() {
    use DType::{BF16, F16, F32};
    use tracecast::ir::policy::{OperandInfo, Query, Region};
    let outside = DeviceType::PrivateUse1;
    let mut set = PolicySet::torchax();
    set.add_rule(Target::Op("softmax".to_owned()), None, Policy::Fp32SetOptDtype);
    set.add_rule(Target::Op("norm".to_owned()), None, Policy::Fp32AppendDtype);
    let region = Region::default().with_device(outside, true, BF16);
    let decide = |op: &str, device, dtypes: &[DType]| {
        let operands: Vec<_> = dtypes.iter().map(|d| OperandInfo::tensor(*d, device)).collect();
        let dtype_arg = Some(None);
        set.decide(&Query { dtype_arg, ..Query::new(op, &operands, &region) })
    };
    // The device of an operand counts: a region of one device leaves the others alone.
    assert_eq!(decide("mm", outside, &[F32]).casts[..], [Some(BF16)]);
    assert!(decide("mm", DeviceType::Cpu, &[F32]).is_trivial());
    // Lists are operands like others, and integers have no say.
    assert_eq!(decide("cat", outside, &[BF16, F32]).casts[..], [Some(F32), None]);
    assert_eq!(decide("cat", outside, &[BF16, DType::I64]).casts[..], [None, None]);
    // No policy is missing.
    assert_eq!(decide("softmax", outside, &[F16]).dtype_arg, Some(F32));
    assert_eq!(decide("norm", outside, &[F16]).dtype_arg, Some(F32));
}

/// Where TorchScript's pass goes wrong.
#[test]
fn no_dtype_is_unknown_and_a_dtype_argument_is_set_without_casts() {
    standard(|t, x, w| {
        autocast(t, "cpu", None, || {
            // TorchScript takes the dtype of an inner result for unknown, and that for f32.
            let y = x.matmul(w);
            assert_eq!(tracecast::ir::ops::view::cat(&[y, y * 2.0], 0).dtype(), DType::BF16);
            assert_eq!(((y * y).dtype(), (y * 2.0).dtype()), (DType::BF16, DType::BF16));
        });
    });
    let graph = standard(|t, _, _| {
        let ty = TensorType::new(DType::F16, [2, 2]);
        let x = t.tracer().port("h", ty, Role::Input, false, DeviceType::Cuda);
        autocast(t, "cuda", None, || t.output("y", x.softmax(-1)));
    });
    let softmax = graph.nodes().find(|id| graph.node(*id).op.name().text() == "softmax").unwrap();
    let decision = graph.node(softmax).decision.as_ref().unwrap();
    assert_eq!((decision.dtype_arg, &decision.casts[..]), (Some(DType::F32), &[None][..]));
    assert_eq!(graph.ty(graph.outputs()[0].1).dtype, DType::F32);
}

#[test]
fn what_parity_recorded_reads_back_under_parity() {
    use tracecast::ir::text::{ParseOptions, parse_with};
    let graph = with(recorded(), |t, x, w| {
        for dtype in [DType::BF16, DType::F16] {
            autocast(t, "cpu", dtype, || {
                let y = x.matmul(w);
                let next = w * 10.0;
                t.tracer().changed_in_place(w, next);
                t.output(dtype.name(), x.matmul(next) + y);
            });
        }
    });
    let options = ParseOptions { policies: Arc::new(recorded()), ..ParseOptions::default() };
    let text = graph.to_string();
    assert_eq!(parse_with(&text, &options).unwrap().to_string(), text);
}

#[test]
fn regions_in_backward_do_not_find_the_casts_of_forward() {
    with(recorded(), |t, x, w| {
        autocast(t, "cpu", DType::BF16, || {
            assert_eq!(x.matmul(w).dtype(), DType::BF16);
            CustomGrad::new().cast_inputs(DType::F32).apply(
                t,
                [x],
                |[x]| ([x * 2.0], ()),
                |(), [dy]| {
                    autocast(t, "cpu", DType::F16, || {
                        assert_eq!(x.matmul(w).dtype(), DType::F16);
                    });
                    [Some(dy)]
                },
            );
            assert_eq!(x.matmul(w).dtype(), DType::BF16);
        });
    });
}

#[test]
fn policies_that_differ_in_parity_are_not_taken_for_each_other() {
    let graph = with(recorded(), |t, x, w| {
        autocast(t, "cpu", None, || t.output("y", x.matmul(w)));
    });
    let error = compile(graph, &Options::new()).unwrap_err().to_string();
    assert!(error.contains("was traced under policy set"), "{error}");
}

/// A program in a region of its own for each number: another dtype, device, island and nesting.
fn program(number: usize) -> String {
    let graph = standard(|t, x, w| {
        let device = ["cpu", "cuda"][number % 2];
        let dtype = [DType::BF16, DType::F16][number / 2 % 2];
        for layer in 0..20 {
            t.scope(&format!("layer{layer}"), || {
                autocast(t, device, dtype, || {
                    let h = x.matmul(w).relu();
                    let island = Autocast::new("cpu").enabled(number < 4);
                    let y = island.run(t, || h.cast(DType::F32).matmul(w).softmax(-1));
                    t.output(&format!("y{layer}"), y);
                });
            });
        }
    });
    graph.to_string()
}

#[test]
fn eight_threads_under_different_regions_give_the_graphs_that_one_gives() {
    let alone: Vec<String> = (0..8).map(program).collect();
    assert!((0..8).all(|i| (0..i).all(|j| alone[i] != alone[j])), "the programs are different");
    for _ in 0..10 {
        let together: Vec<String> = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|number| scope.spawn(move || program(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(together, alone);
    }
}

#[test]
fn the_region_is_part_of_what_a_thread_does_not_share() {
    standard(|t, _, _| {
        autocast(t, "cpu", None, || {
            let other = thread::spawn(|| {
                let mut off = false;
                trace("other", |t| off = t.tracer().region().is_off()).unwrap();
                off
            });
            assert!(other.join().unwrap(), "another thread's trace begins with everything off");
            assert!(!t.tracer().region().is_off());
        });
    });
}
