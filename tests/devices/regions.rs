//! What devices from outside say about autocast, and where regions name them.

use crate::guest::{Driver, Npu, with};
use std::sync::Arc;
use tracecast::ir::Role;
use tracecast::ir::policy::{DeviceType, Policy, PolicyTable, Site, Target};
use tracecast::ir::text::{ParseOptions, parse_with};
use tracecast::prelude::*;
use tracecast::runtime::{AmpSupport, Base, Registry};
use tracecast::{Graph, Result, trace_with};

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// bf16, PyTorch's table for `cuda`, and `relu` in f32.
fn amp() -> AmpSupport {
    let relu = Target::DeviceOp("relu".to_owned());
    AmpSupport::new([DType::BF16]).base(Base::Of(DeviceType::Cuda)).rule(relu, Policy::Fp32)
}

fn traced(options: &Options, body: impl FnOnce(&Trace, Var<'_>)) -> Result<Graph> {
    trace_with("npu", options, |t| body(t, t.input_of("x", f32s(&[2, 2]))))
}

#[test]
fn a_device_brings_its_dtypes_its_default_and_its_rules() {
    let device = Npu { amp: Some(amp()), ..Npu::named("npu") };
    let options = Options::new().on(Arc::new(device));
    let graph = traced(&options, |t, x| {
        // Its name is a word for its type, and its first dtype the default.
        autocast(t, "npu", None, || assert_eq!(x.matmul(x).dtype(), DType::BF16));
        autocast(t, "npu", DType::F16, || assert_eq!(x.matmul(x).dtype(), DType::F32));
        autocast(t, "npu:0", DType::BF16, || {
            let y = x.matmul(x);
            assert_eq!((y.dtype(), y.relu().dtype()), (DType::BF16, DType::F32));
            t.output("y", y);
        });
        autocast(t, "cpu", None, || assert_eq!(x.matmul(x).dtype(), DType::F32));
    })
    .unwrap();
    let ones = Tensor::full(f32s(&[2, 2]), 1.0).unwrap();
    let out = compile(graph, &options).unwrap().run(&mut Store::new(), &[("x", &ones)]).unwrap();
    assert_eq!(out["y"].to_f64s(), [2.0; 4]);
    // A user's rule is stronger than the device's.
    let mut policies = options.policies().as_ref().clone();
    policies.add_rule(Target::Op("relu".to_owned()), None, Policy::LowerPrecisionFp);
    traced(&options.with_policies(policies), |t, x| {
        autocast(t, "npu", DType::BF16, || assert_eq!(x.relu().dtype(), DType::BF16));
    })
    .unwrap();
}

#[test]
fn a_table_of_its_own_is_for_its_type_whatever_the_table_says() {
    let text =
        "name = \"npu\"\ndevice = \"cpu\"\nversion = \"1\"\n[ops]\nexp = \"lower_precision_fp\"\n";
    let table = Base::Table(PolicyTable::parse(text).unwrap());
    let amp = Some(AmpSupport::new([DType::F16]).base(table));
    let options = Options::new().on(Arc::new(Npu { amp, ..Npu::named("npu") }));
    traced(&options, |t, x| {
        autocast(t, "npu", None, || {
            assert_eq!((x.exp().dtype(), x.matmul(x).dtype()), (DType::F16, DType::F32));
        });
    })
    .unwrap();
}

#[test]
fn every_device_of_a_kind_is_a_word_for_its_type() {
    let (registry, _) = with(Driver { count: 2, amp: Some(amp()), ..Driver::default() });
    for name in ["npu", "npu:0", "npu:1"] {
        let options = Options::new().registry(&registry).device(name);
        assert_eq!(options.target().unwrap().name(), if name == "npu" { "npu:0" } else { name });
        let graph = traced(&options, |t, x| {
            for region in ["npu", "npu:0", "npu:1", "privateuse1"] {
                autocast(t, region, None, || assert_eq!(x.matmul(x).dtype(), DType::BF16));
            }
        });
        let ordinal = u16::from(name == "npu:1");
        let here = Site { kind: DeviceType::PrivateUse1, ordinal };
        assert_eq!(graph.unwrap().ports()[0].device, here);
        for (region, says) in [
            ("npu:2", "no device `npu:2`: npu:0, npu:1"),
            ("npu:99", "no device `npu:99`: npu:0, npu:1"),
            ("npu:", "unknown device type `npu:`"),
            ("npu:-1", "unknown device type `npu:-1`"),
            ("npu:99999", "unknown device type `npu:99999`"),
            ("a:b:c", "unknown device type `a:b:c`"),
            ("my dev!", "unknown device type `my dev!`"),
            ("", "unknown device type ``"),
            (
                "tpu",
                "mtia, maia, hpu, ipu, xla, privateuse1, privateuse2, privateuse3, privateuse4, npu",
            ),
        ] {
            let error = traced(&options, |t, x| {
                autocast(t, region, None, || x.relu());
            });
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says) && error.contains(file!()), "{error}");
        }
    }
}

#[test]
fn a_device_that_says_nothing_has_no_autocast() {
    let (registry, _) = with(Driver { count: 1, ..Driver::default() });
    let options = Options::new().registry(&registry).device("npu");
    for enabled in [true, false] {
        let error = traced(&options, |t, x| {
            Autocast::new("npu").enabled(enabled).run(t, || x.matmul(x));
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("`npu` has no autocast") && error.contains(file!()), "{error}");
    }
    // The tables of others do not hold for what lives there.
    traced(&options, |t, x| {
        autocast(t, "cpu", None, || assert_eq!(x.matmul(x).dtype(), DType::F32));
    })
    .unwrap();
    // Neither do they for a device that nobody registered.
    let options = Options::new().on(Arc::new(Npu::named("npu:1")));
    let error = traced(&options, |t, x| {
        autocast(t, "npu", None, || x.matmul(x));
    });
    assert!(error.unwrap_err().to_string().contains("`npu` has no autocast"));
}

#[test]
fn kinds_have_rules_of_their_own_in_one_program() {
    let registry = Arc::new(Registry::new());
    let mine =
        AmpSupport::new([DType::F16]).rule(Target::Op("exp".to_owned()), Policy::LowerPrecisionFp);
    for (name, amp) in [("npu", Some(amp())), ("tpu", Some(mine)), ("dsp", None)] {
        let driver = Driver { count: 1, amp, ..Driver::default() };
        registry.register(name, Arc::new(driver)).unwrap();
    }
    let options = Options::new().registry(&registry);
    let graph = traced(&options, |t, x| {
        let on = |ty| t.tracer().port(&format!("on_{ty}"), f32s(&[2, 2]), Role::Input, false, ty);
        let (a, b) = (on(DeviceType::PrivateUse1), on(DeviceType::PrivateUse2));
        autocast(t, "npu", None, || {
            autocast(t, "tpu", None, || {
                assert_eq!((a.matmul(a).dtype(), a.exp().dtype()), (DType::BF16, DType::F32));
                assert_eq!((b.matmul(b).dtype(), b.exp().dtype()), (DType::F32, DType::F16));
                assert_eq!((x.matmul(x).dtype(), x.exp().dtype()), (DType::F32, DType::F32));
                t.output("y", a.matmul(a));
                t.output("z", b.exp());
            });
        });
    })
    .unwrap();
    // What is known of devices is written into the program.
    let text = graph.to_string();
    assert!(
        text.contains("on privateuse2") && text.contains("{privateuse1: bf16, privateuse2: f16}"),
        "{text}"
    );
    let policies = ParseOptions { policies: options.policies(), ..ParseOptions::default() };
    assert_eq!(parse_with(&text, &policies).unwrap().to_string(), text);
    // Who is registered later changes nothing for options that have been asked.
    let before = options.policies().hash();
    registry
        .register("late", Arc::new(Driver { count: 1, amp: Some(amp()), ..Driver::default() }))
        .unwrap();
    assert_eq!(options.policies().hash(), before);
}

#[test]
fn a_device_that_serves_a_type_has_the_types_table_unless_it_says_more() {
    let card = |amp| Npu { amp, serves: Some(DeviceType::Cuda), ..Npu::named("cuda") };
    for (amp, dtype) in [(None, DType::F16), (Some(AmpSupport::new([DType::BF16])), DType::BF16)] {
        let options = Options::new().on(Arc::new(card(amp)));
        traced(&options, |t, x| {
            autocast(t, "cuda", None, || assert_eq!(x.matmul(x).dtype(), dtype));
        })
        .unwrap();
    }
}

#[test]
fn a_name_without_a_device_is_an_error_of_the_trace() {
    let error = traced(&Options::new().device("npu"), |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("no device `npu`"), "{error}");
}
