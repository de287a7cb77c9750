//! The prose entries about the TorchScript pass: what the pass does, and what a traced program does
//! in its place.

use tracecast::amp::Autocast;
use tracecast::ir::ops::prelude::*;
use tracecast::ir::policy::{
    DeviceType, OperandInfo, PolicySet, Query, Region, ScriptCast, ScriptOperand, ScriptTable,
};
use tracecast::ir::{Shape, Var};
use tracecast::passes::{self, Pipeline};
use tracecast::{DType, TensorType, Trace, trace};

use DType::{BF16, F16, F32, F64};
use ScriptOperand::{Known, NoTensor, Unknown};

/// The dtype that `body` computes from two square matrices of `from`.
pub(crate) fn traced(
    from: DType,
    body: impl for<'t> Fn(&'t Trace, Var<'t>, Var<'t>) -> Var<'t>,
) -> DType {
    let mut found = from;
    trace("script", |t| {
        let ty = TensorType::new(from, Shape::new(&[4, 4]));
        let y = body(t, t.input_of("a", ty.clone()), t.input_of("b", ty));
        found = y.dtype();
        t.output("y", y);
    })
    .unwrap_or_else(|error| panic!("{error}"));
    found
}

fn on() -> Autocast {
    Autocast::new("cpu").dtype(BF16)
}

fn off() -> Autocast {
    Autocast::new("cpu").enabled(false)
}

fn region() -> Region {
    Region::default().with_device(DeviceType::Cpu, true, BF16)
}

/// The dtype an operand has after the cast that the pass puts in front of it.
fn script(
    op: &str,
    dtype: DType,
    seen: &[ScriptOperand],
    device: DeviceType,
    region: &Region,
) -> DType {
    let cast = ScriptTable::built_in().cast(op, seen, false, false).expect("not banned");
    cast.map_or(dtype, |cast| cast.apply(dtype, device, region))
}

fn on_cpu(op: &str, dtype: DType) -> DType {
    script(op, dtype, &[Known(dtype)], DeviceType::Cpu, &region())
}

/// The casts that our tables make.
fn casts(set: &PolicySet, op: &str, device: DeviceType, dtypes: &[DType]) -> Vec<Option<DType>> {
    let region = Region::default().with_device(device, true, device.default_low());
    let operands: Vec<_> = dtypes.iter().map(|dtype| OperandInfo::tensor(*dtype, device)).collect();
    set.decide(&Query::new(op, &operands, &region)).casts.to_vec()
}

fn disabled() {
    assert_eq!(traced(F32, |t, a, b| off().run(t, || a.matmul(b))), F32);
    assert_eq!(script("mm", F32, &[Unknown], DeviceType::Cpu, &Region::default()), F32);
}

fn flag_is_a_constant() {
    // A flag is a value of the program that traces and never one of the program that is traced.
    for enabled in [true, false] {
        let dtype = traced(F32, |t, a, b| on().enabled(enabled).run(t, || a.matmul(b)));
        assert_eq!(dtype, if enabled { BF16 } else { F32 });
    }
}

fn explicit_casts() {
    let e = traced(F32, |t, a, b| on().run(t, || a.cast(F64).matmul(b.cast(F64)).cast(F32)));
    let g = traced(F32, |t, a, b| {
        let f = on().run(t, || a.matmul(b).cast(F64));
        a.cast(F64).matmul(f)
    });
    assert_eq!((e, g, on_cpu("mm", F64)), (F32, F64, F64));
}

fn duplicate_input() {
    assert_eq!(traced(F32, |t, a, _| on().run(t, || a.matmul(a).matmul(a.matmul(a)))), BF16);
    assert_eq!((on_cpu("mm", F32), on_cpu("mm", BF16)), (BF16, BF16));
}

fn fp32_policy() {
    assert_eq!(on_cpu("log", BF16), F32);
    // The tables of eager mode differ by device.
    let set = PolicySet::standard();
    assert_eq!(casts(&set, "log", DeviceType::Cpu, &[BF16]), [None]);
    assert_eq!(casts(&set, "log", DeviceType::Cuda, &[F16]), [Some(F32)]);
}

fn promotes() {
    let seen = [Unknown, Known(F32), Known(F32)];
    assert_eq!(script("addcmul", BF16, &seen, DeviceType::Cpu, &region()), F32);
    let set = PolicySet::standard();
    assert_eq!(casts(&set, "addcmul", DeviceType::Cuda, &[F16, F32, F32]), [Some(F32), None, None]);
}

fn set_opt_dtype() {
    let table = ScriptTable::built_in();
    let softmax = table.cast("softmax", &[Known(BF16)], false, false);
    assert_eq!(softmax, Ok(Some(ScriptCast::FullOnGpu)));
    assert_eq!((on_cpu("softmax", BF16), on_cpu("sum", BF16)), (BF16, F32));
    assert_eq!(table.cast("softmax", &[Known(BF16)], true, false), Ok(None));
    assert_eq!(table.cast("sum", &[Known(BF16)], true, false), Ok(None));
    assert_eq!(traced(BF16, |t, a, _| on().run(t, || a.softmax([-1].dtype(F64)))), F64);
}

fn control_flow() {
    // The pass does not know the dtype of a product and widens it; a trace knows every dtype.
    assert_eq!(script("mul", BF16, &[Unknown, NoTensor], DeviceType::Cpu, &region()), F32);
    assert_eq!(traced(F32, |t, a, b| on().run(t, || a.matmul(b).mul(2.0))), BF16);
}

fn divergent_regions() {
    for (branch, dtype) in [(on(), BF16), (off(), F32)] {
        let found = traced(F32, |t, a, b| {
            let e = branch.run(t, || a.matmul(b));
            e.matmul(e)
        });
        assert_eq!(found, dtype);
    }
}

fn two_in_one() {
    assert_eq!(traced(F32, |t, a, b| off().run(t, || on().run(t, || a.matmul(b)))), BF16);
}

fn reused_instance() {
    let region = on();
    let inside = traced(F32, |t, a, b| {
        region.run(t, || {
            let e = region.run(t, || a.matmul(b));
            e.matmul(region.run(t, || b.matmul(a)))
        })
    });
    let after = traced(F32, |t, a, b| {
        region.run(t, || region.run(t, || a.matmul(b)));
        a.matmul(b)
    });
    assert_eq!((inside, after), (BF16, F32));
}

fn region_has_no_value() {
    // The body gets nothing from its region and hands its own value out.
    trace("value", |t| assert_eq!(on().run(t, || 3), 3)).expect("nothing is recorded");
}

fn callees() {
    fn helper<'t>(a: Var<'t>, b: Var<'t>) -> Var<'t> {
        a.matmul(b)
    }
    let found = traced(F32, |t, a, b| {
        on().run(t, || {
            let r = helper(a, b);
            helper(helper(r, r), b)
        })
    });
    assert_eq!(found, BF16);
}

fn callee_off_in_on() {
    let found = traced(F32, |t, a, b| on().run(t, || off().run(t, || a.matmul(b))));
    assert_eq!(found, F32);
}

fn region_around() {
    let found = [on(), off(), on(), off()]
        .map(|region| traced(F32, |t, a, b| region.run(t, || a.matmul(b))));
    assert_eq!(found, [BF16, F32, BF16, F32]);
}

fn in_place() {
    let table = ScriptTable::built_in();
    assert_eq!(table.cast("addmm", &[Known(F32)], false, false), Ok(Some(ScriptCast::Reduced)));
    assert_eq!(table.cast("addmm", &[Known(F32)], false, true), Ok(None));
    let set = PolicySet::standard();
    assert_eq!(casts(&set, "addmm", DeviceType::Cpu, &[F32]), [Some(BF16)]);
    assert_eq!(casts(&set, "addmm_", DeviceType::Cpu, &[F32]), [None]);
    let operands = [OperandInfo::tensor(F32, DeviceType::Cpu)];
    let region = region();
    let out = Query { overload: "out", ..Query::new("addmm", &operands, &region) };
    assert!(set.decide(&out).is_trivial());
}

fn bce_inside() {
    let error =
        ScriptTable::built_in().cast("binary_cross_entropy", &[], false, false).unwrap_err();
    assert!(error.to_string().contains("unsafe"), "{error}");
    let region = Region::default().with_device(DeviceType::Cuda, true, F16);
    let operands = [OperandInfo::tensor(F32, DeviceType::Cuda); 2];
    let decision =
        PolicySet::standard().decide(&Query::new("binary_cross_entropy", &operands, &region));
    assert_eq!(decision.error.map(|error| error.class()), Some("banned"));
}

fn bce_outside() {
    let operands = [OperandInfo::tensor(F32, DeviceType::Cuda); 2];
    let region = Region::default();
    let query = Query::new("binary_cross_entropy", &operands, &region);
    assert!(PolicySet::standard().decide(&query).is_trivial());
}

fn add_promotes() {
    assert_eq!(traced(F32, |t, a, b| on().run(t, || a.matmul(b).add(a))), F32);
    let same = traced(F32, |t, a, b| {
        on().run(t, || {
            let e = a.matmul(b);
            e.mul(e)
        })
    });
    assert_eq!(same, BF16);
    assert_eq!(script("mul", BF16, &[Unknown, Unknown], DeviceType::Cpu, &region()), F32);
}

fn cat_list() {
    assert_eq!(ScriptTable::built_in().cast("cat", &[NoTensor], false, false), Ok(None));
    assert_eq!(traced(F32, |t, a, b| on().run(t, || cat(&[a.matmul(b), a], 0))), F32);
    let set = PolicySet::standard();
    assert_eq!(casts(&set, "stack", DeviceType::Cpu, &[BF16, BF16]), [None, None]);
}

fn default_dtype() {
    assert_eq!(traced(F32, |t, a, b| Autocast::new("cpu").run(t, || a.matmul(b))), BF16);
}

fn other_device() {
    let xpu = Region::default().with_device(DeviceType::Xpu, true, F16);
    assert_eq!(ScriptCast::Reduced.apply(F32, DeviceType::Xpu, &xpu), F32);
    let set = PolicySet::standard();
    assert_eq!(casts(&set, "mm", DeviceType::Xpu, &[F32]), [Some(F16)]);
}

fn cpu_and_cuda() {
    let both = region().with_device(DeviceType::Cuda, true, F16);
    assert_eq!(ScriptCast::Reduced.apply(F32, DeviceType::Cpu, &both), BF16);
    assert_eq!(ScriptCast::Reduced.apply(F32, DeviceType::Cuda, &both), F16);
    let cuda = Autocast::new("cuda").dtype(F16);
    assert_eq!(traced(F32, |t, a, b| on().run(t, || cuda.run(t, || a.matmul(b)))), BF16);
}

fn other_low_input() {
    assert_eq!(on_cpu("mm", F16), F16);
    assert_eq!(traced(F16, |t, a, b| on().run(t, || a.matmul(b))), BF16);
}

fn gelu() {
    assert_eq!(on_cpu("gelu", BF16), F32);
    assert_eq!(traced(BF16, |t, a, _| on().run(t, || a.gelu(None))), BF16);
}

fn module() {
    assert_eq!(on_cpu("mv", F32), BF16);
    assert_eq!(traced(F32, |t, a, b| on().run(t, || a.linear(b, None).linear(b, None))), BF16);
}

fn trace_region() {
    let graph = trace("two", |t| {
        let x = t.input_of("x", TensorType::new(F32, [4, 4]));
        t.output("y", on().run(t, || x.matmul(x)));
    })
    .expect("a matmul");
    let graph =
        Pipeline::new().then(passes::Autocast::new()).run(graph, |_, _, _| ()).expect("casts");
    let casts = graph.nodes().filter(|id| graph.node(*id).op.name().text() == "cast").count();
    assert_eq!(casts, 2);
}

/// What `_autocast_to_reduced_precision` and `_autocast_to_full_precision` do, by the name of the
/// op.
pub(crate) fn cast_op(name: &str) -> Vec<String> {
    let (cast, is_reduced) = match name {
        "_autocast_to_reduced_precision" => (ScriptCast::Reduced, true),
        "_autocast_to_full_precision" => (ScriptCast::Full, false),
        _ => return vec![format!("no cast op `{name}`")],
    };
    let mut found = Vec::new();
    for cpu in [true, false] {
        for cuda in [true, false] {
            let region = Region::default().with_device(DeviceType::Cpu, cpu, BF16).with_device(
                DeviceType::Cuda,
                cuda,
                F16,
            );
            for device in DeviceType::ALL {
                for dtype in DType::ALL {
                    let is_on = matches!(
                        (device, cpu, cuda),
                        (DeviceType::Cpu, true, _) | (DeviceType::Cuda, _, true)
                    );
                    let should = match dtype {
                        F32 if is_on && is_reduced => {
                            if device == DeviceType::Cpu {
                                BF16
                            } else {
                                F16
                            }
                        }
                        F16 | BF16 if is_on && !is_reduced => F32,
                        _ => dtype,
                    };
                    let is = cast.apply(dtype, device, &region);
                    if is != should {
                        found.push(format!(
                            "{dtype} on {device}, cpu {cpu}, cuda {cuda}: {is}, recorded {should}"
                        ));
                    }
                }
            }
        }
    }
    found
}

/// The test of each entry.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("jit/off", disabled),
    ("jit/runtime_flag_expression", flag_is_a_constant),
    ("jit/explicit_casts", explicit_casts),
    ("jit/duplicate_input", duplicate_input),
    ("jit/fp32_policy", fp32_policy),
    ("jit/promote", promotes),
    ("jit/set_opt_dtype_cpu", set_opt_dtype),
    ("jit/control_flow", control_flow),
    ("jit/divergent_regions", divergent_regions),
    ("jit/two_in_one_with", two_in_one),
    ("jit/reused_instance", reused_instance),
    ("jit/with_as", region_has_no_value),
    ("jit/callees", callees),
    ("jit/callee_off_in_on", callee_off_in_on),
    ("jit/eager_region_around", region_around),
    ("jit/in_place", in_place),
    ("jit/bce_inside", bce_inside),
    ("jit/bce_outside", bce_outside),
    ("jit/add_promote", add_promotes),
    ("jit/cat_list", cat_list),
    ("jit/default_dtype", default_dtype),
    ("jit/other_device", other_device),
    ("jit/cpu_and_cuda", cpu_and_cuda),
    ("jit/f16_input_in_bf16_region", other_low_input),
    ("jit/gelu", gelu),
    ("jit/module", module),
    ("jit/trace_region", trace_region),
];
