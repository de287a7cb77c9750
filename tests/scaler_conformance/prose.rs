//! Prose entries of the cases as tests, by section and name.

use crate::cases::{class, read, same, tensor};
use crate::{ranks, training};
use tracecast::amp::raw::{amp_foreach_non_finite_check_and_unscale, amp_update_scale};
use tracecast::amp::{EagerScaler, GradScaler, Nested, ScalerOptions, Stage, unscale_grads};
use tracecast::eager::{DeviceTensor, Eager, EagerOptimizer, Gradient, Parameter};
use tracecast::ir::DType;
use tracecast::optim::{Adagrad, AdamW, Optimizer, Sgd};
use tracecast::{Options, Store, Tensor, TensorType, jit};

type Checked = Result<(), String>;

/// The prose sections, and what names an entry in each.
pub(crate) const SECTIONS: [(&str, &str); 4] = [
    ("raw_update_errors", "what"),
    ("scale_container_cases", "what"),
    ("upstream_suite", "name"),
    ("sharded_cases", "name"),
];

/// A test on one device, with another at hand.
pub(crate) type Test = fn(&Eager, &Eager) -> Checked;

/// The entries that have a test.
pub(crate) const TESTS: &[(&str, &str, Test)] = &[
    ("raw_update_errors", "growth_tracker i64", update_refuses),
    ("raw_update_errors", "scale f64", update_refuses),
    ("raw_update_errors", "found_inf not f32", update_refuses),
    ("raw_update_errors", "more than one element in any of the three", update_refuses),
    ("scale_container_cases", "list and tuple, nested", containers),
    ("scale_container_cases", "generator", lazily),
    ("scale_container_cases", "None or number", number_refused),
    ("scale_container_cases", "integer tensor [3], scale 2", integers_become_floats),
    ("scale_container_cases", "gradient of scale(x) with scale 2", gradient_of_scale),
    ("upstream_suite", "grad_scaling_unscale", unscale),
    ("upstream_suite", "grad_scaling_unscale: one optimizer over every mix", every_mix),
    ("upstream_suite", "grad_scaling_update_scale", update_scale),
    ("upstream_suite", "grad_scaling_unscale_sparse", unscale_sparse),
    ("upstream_suite", "grad_scaling_state_dict", state_dict),
    ("upstream_suite", "grad_scaling_multigpu", two_devices),
    ("upstream_suite", "grad_scaling_scale", containers_on_two_devices),
    ("upstream_suite", "grad_scaling_device_as_key", device_as_key),
    ("upstream_suite", "grad_scale_will_not_overflow", will_not_overflow),
    ("upstream_suite", "params_invalidated_between_unscale_and_step", invalidated),
    ("upstream_suite", "grad_scaling_autocast", training::plain),
    ("upstream_suite", "grad_scaling_clipping", training::clipping),
    ("upstream_suite", "grad_scaling_clipping_separate_unscale", training::clipping_after_unscale),
    ("upstream_suite", "grad_scaling_accumulation", training::accumulation),
    ("upstream_suite", "grad_scaling_multiple", training::multiple),
    ("upstream_suite", "grad_scaling_autocast_fused_optimizers", training::fused),
    ("upstream_suite", "graph_grad_scaling", training::recorded_loop),
    ("upstream_suite", "grad_scaling_penalty", training::penalty),
    ("upstream_suite", "grad_scaler_pass_itself", scale_aware),
    ("upstream_suite", "sharded: scale", containers_on_two_devices),
    ("upstream_suite", "sharded: sparse", ranks::sparse),
    ("upstream_suite", "sharded: parity with DDP", ranks::as_one_process),
    ("upstream_suite", "sharded: inf skips", ranks::inf_skips),
    ("upstream_suite", "sharded: found_inf", ranks::found_inf),
    ("sharded_cases", "two ranks, rank 0 sees inf in iteration 1", ranks::two_ranks),
    ("sharded_cases", "rank 1 has no gradient", ranks::rank_without_gradient),
    ("sharded_cases", "fused optimizer without explicit unscale_", ranks::fused_ranks_diverge),
    ("sharded_cases", "flag value after the reduction", ranks::flags_add_up),
    ("sharded_cases", "return dtype of scale()", ranks::dtype_is_kept),
    ("sharded_cases", "growth past the f32 limit on cpu", ranks::grows_to_infinity),
    ("sharded_cases", "fused Adam after explicit unscale_ on cpu", ranks::fused_after_unscale),
];

/// Entries about what cannot be said here.
pub(crate) const WITHOUT_COUNTERPART: [(&str, &str, &str); 2] = [
    ("scale_container_cases", "dict", "a map is not `Scalable`, so the call does not compile"),
    ("scale_container_cases", "named tuple", "a struct is not `Scalable` unless it says how"),
];

fn text(error: tracecast::Error) -> String {
    error.to_string()
}

fn one(eager: &Eager, dtype: &str, number: f64) -> DeviceTensor {
    tensor(eager, dtype, Some(&serde_json::json!([])), &[number]).expect("a known dtype")
}

fn list(eager: &Eager, dtype: &str, numbers: &[f64]) -> DeviceTensor {
    tensor(eager, dtype, None, numbers).expect("a known dtype")
}

fn scaler(init_scale: f64) -> EagerScaler {
    let options = ScalerOptions { init_scale, growth_interval: 1, ..ScalerOptions::default() };
    EagerScaler::new(options).expect("good factors").parity(true)
}

fn need(what: &str, holds: bool) -> Checked {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

fn refused<T>(class_of: &str, result: tracecast::Result<T>) -> Checked {
    match result {
        Ok(_) => Err(format!("went through, expected {class_of}")),
        Err(error) if class(&error) == class_of => Ok(()),
        Err(error) => Err(format!("expected {class_of}, found {error}")),
    }
}

fn update_refuses(eager: &Eager, _: &Eager) -> Checked {
    let good = || [one(eager, "f32", 4.0), one(eager, "i32", 0.0), one(eager, "f32", 0.0)];
    let wrong = [(0, "f64"), (1, "i64"), (2, "f64"), (2, "i32")];
    let wrong = wrong.map(|(at, dtype)| (at, one(eager, dtype, 1.0)));
    let long =
        [(0, "f32"), (1, "i32"), (2, "f32")].map(|(at, d)| (at, list(eager, d, &[1.0, 2.0])));
    for (at, operand) in wrong.into_iter().chain(long) {
        let mut operands = good();
        operands[at] = operand;
        let [scale, tracker, found] = operands;
        refused("RuntimeError", amp_update_scale(&scale, &tracker, &found, 2.0, 0.5, 2))?;
    }
    let [scale, tracker, found] = good();
    amp_update_scale(&scale, &tracker, &found, 2.0, 0.5, 2).map_err(text)
}

fn containers(eager: &Eager, _: &Eager) -> Checked {
    let x = || list(eager, "f32", &[4.0]);
    let mut scaler = scaler(2.0);
    let (a, (b, c), d) = scaler.scale(&(x(), (x(), x()), vec![x(), x()])).map_err(text)?;
    for tensor in [&a, &b, &c, &d[0], &d[1]] {
        same("scaled", &read(tensor), &[8.0])?;
    }
    need("a list keeps its length", d.len() == 2)
}

/// An iterator is scaled as it is read; before that there is no scale on the device yet.
fn lazily(eager: &Eager, _: &Eager) -> Checked {
    let mut scaler = scaler(2.0);
    let tensors = [4.0, 5.0].map(|number| one(eager, "f32", number));
    let lazy = |scaler: &mut EagerScaler| -> Result<Vec<f64>, String> {
        let scaled = tensors.iter().map(|tensor| scaler.scale(tensor).map(|x| read(&x)[0]));
        scaled.collect::<tracecast::Result<_>>().map_err(text)
    };
    refused("AssertionError", scaler.update())?;
    same("scaled", &lazy(&mut scaler)?, &[8.0, 10.0])?;
    scaler.update_to(1.0).map_err(text)
}

fn number_refused(eager: &Eager, _: &Eager) -> Checked {
    let mut scaler = scaler(2.0);
    refused("ValueError", scaler.scale(&Nested::Number(3.0)))?;
    let mixed = Nested::List(vec![Nested::Tensor(one(eager, "f32", 1.0)), Nested::Number(3.0)]);
    refused("ValueError", scaler.scale(&mixed))
}

fn integers_become_floats(eager: &Eager, _: &Eager) -> Checked {
    let scaled = scaler(2.0).scale(&list(eager, "i64", &[3.0])).map_err(text)?;
    need("f32[1]", *scaled.ty() == TensorType::new(DType::F32, [1]))?;
    same("scaled", &read(&scaled), &[6.0])
}

fn gradient_of_scale(eager: &Eager, _: &Eager) -> Checked {
    let step = jit(Options::new().on(eager.device().clone()), |t| {
        let options = ScalerOptions { init_scale: 2.0, ..ScalerOptions::default() };
        let (x, scaler) = (t.param("x"), GradScaler::recorded(t, "amp", options));
        t.output("dx", t.grad(scaler.scale(x), &[x])[0]);
    });
    let mut store = Store::new().with("x", Tensor::scalar(4.0f32));
    let out = step.run(&mut store, &[]).map_err(text)?;
    same("gradient", &out["dx"].to_f64s(), &[2.0])
}

/// Tensors here are row-major always: the transposed layout is a copy, the first five columns
/// another shape.
fn unscale(eager: &Eager, other: &Eager) -> Checked {
    let grad = |columns: usize, bad: Option<f64>| {
        let mut numbers = vec![4.0; 20 * columns];
        if let Some(bad) = bad {
            numbers[2 * columns + 2] = bad;
        }
        let ty = TensorType::new(DType::F32, [20, columns]);
        eager.tensor(Tensor::from_f64s(ty, &numbers).expect("a small tensor"))
    };
    let (inf, nan) = (Some(f64::INFINITY), Some(f64::NAN));
    let cases = [
        ([(20, None), (20, None)], 0.0),
        ([(20, None), (5, None)], 0.0),
        ([(5, None), (5, None)], 0.0),
        ([(20, None), (20, inf)], 1.0),
        ([(20, None), (20, nan)], 1.0),
        ([(20, None), (5, inf)], 1.0),
        ([(20, None), (5, nan)], 1.0),
        ([(20, inf), (5, None)], 1.0),
        ([(5, inf), (5, None)], 1.0),
    ];
    for (case, expected) in cases {
        let (found, inverse) = (one(eager, "f32", 0.0), one(eager, "f32", 0.25));
        let [a, b] = case.map(|(columns, bad)| grad(columns, bad));
        amp_foreach_non_finite_check_and_unscale(&[&a, &b], &found, &inverse).map_err(text)?;
        same("found", &read(&found), &[expected])?;
        if expected == 0.0 {
            need("all 1.0", read(&a).iter().chain(&read(&b)).all(|v| *v == 1.0))?;
        }
    }
    let (found, inverse) = (one(eager, "f32", 0.0), one(eager, "f32", 0.25));
    let (wide, low) = (list(eager, "f32", &[4.0]), list(eager, "f16", &[4.0]));
    amp_foreach_non_finite_check_and_unscale(&[&wide, &low], &found, &inverse).map_err(text)?;
    same("mixed dtypes", &[read(&wide)[0], read(&low)[0], read(&found)[0]], &[1.0, 1.0, 0.0])?;
    let far = list(other, "f32", &[4.0]);
    let mixed = amp_foreach_non_finite_check_and_unscale(&[&wide, &far], &found, &inverse);
    let message = mixed.err().map(text).unwrap_or_default();
    need("all tensors on one device", message.contains("all tensors on one device"))
}

fn every_mix(eager: &Eager, other: &Eager) -> Checked {
    let dtypes = ["f32", "f32", "f16", "f16"];
    for bad in (0..8).map(Some).chain([None]) {
        let mut params = Vec::new();
        for (i, (place, dtype)) in
            [eager, other].iter().flat_map(|e| dtypes.map(|d| (*e, d))).enumerate()
        {
            let param = Parameter::new(list(place, dtype, &[0.0, 0.0]));
            let first = if bad == Some(i) { f64::INFINITY } else { 4.0 };
            param.set_grad(list(place, dtype, &[first, 4.0])).map_err(text)?;
            params.push(param);
        }
        let optimizer = EagerOptimizer::new(Sgd::new(1.0), &params);
        let flags = unscale_grads(&optimizer, &one(eager, "f32", 0.25), true).map_err(text)?;
        let sum: f64 = flags.iter().flat_map(read).sum();
        same("sum of flags", &[sum], &[f64::from(u8::from(bad.is_some()))])?;
        need("a flag for each device", flags.len() == 2)?;
        let grads = params.iter().map(|param| param.grad().expect("set above"));
        let all: Vec<f64> = grads.flat_map(|grad| read(grad.values())).collect();
        need("all 1.0", bad.is_some() || all.iter().all(|v| *v == 1.0))?;
    }
    Ok(())
}

fn update_scale(eager: &Eager, _: &Eager) -> Checked {
    let (scale, tracker) = (one(eager, "f32", 4.0), one(eager, "i32", 0.0));
    for (found, next, count) in [(0.0, 4.0, 1.0), (0.0, 8.0, 0.0), (1.0, 2.0, 0.0)] {
        let found = one(eager, "f32", found);
        amp_update_scale(&scale, &tracker, &found, 2.0, 0.25, 2).map_err(text)?;
        same("scale and tracker", &[read(&scale)[0], read(&tracker)[0]], &[next, count])?;
    }
    Ok(())
}

fn unscale_sparse(eager: &Eager, _: &Eager) -> Checked {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let (apart, twice) = ([[0, 1, 1], [2, 0, 2]], [[0, 1, 0], [2, 0, 2]]);
    let cases = [
        ("f32", [16.0, 32.0, 64.0], apart, 0.0),
        ("f32", [16.0, 32.0, inf], apart, 1.0),
        ("f32", [16.0, 32.0, nan], apart, 1.0),
        ("f16", [16.0, 32.0, 64.0], apart, 0.0),
        ("f16", [64000.0, 32.0, 64000.0], twice, 1.0),
    ];
    for (dtype, values, indices, expected) in cases {
        let shape = TensorType::new(dtype.parse().expect("a dtype"), [2, 3]);
        let param = eager.parameter(Tensor::zeros(shape).expect("a small tensor"));
        let indices = indices.map(Vec::from);
        let grad =
            Gradient::sparse(list(eager, dtype, &values), &indices, &[2, 3]).map_err(text)?;
        param.set_grad(grad).map_err(text)?;
        let optimizer = EagerOptimizer::new(Sgd::new(1.0), std::slice::from_ref(&param));
        let flags = unscale_grads(&optimizer, &one(eager, "f32", 0.25), true).map_err(text)?;
        same("found", &read(&flags[0]), &[expected])?;
        if expected == 0.0 {
            let grad = param.grad().expect("set above").coalesced().map_err(text)?;
            same("values / 4", &read(grad.values()), &[4.0, 8.0, 16.0])?;
        }
    }
    Ok(())
}

fn state_dict(eager: &Eager, _: &Eager) -> Checked {
    for created in [true, false] {
        let with = |init_scale, growth_factor, backoff_factor, growth_interval| {
            let enabled = true;
            let options = ScalerOptions {
                init_scale,
                growth_factor,
                backoff_factor,
                growth_interval,
                enabled,
            };
            EagerScaler::new(options).map_err(text)
        };
        let (mut from, mut to) = (with(3.0, 4.0, 0.5, 2)?, with(6.0, 7.0, 0.8, 1)?);
        if created {
            for scaler in [&mut from, &mut to] {
                scaler.scale(&one(eager, "f32", 4.0)).map_err(text)?;
            }
        }
        let mut later = to.state_dict().map_err(text)?;
        later.insert("_growth_tracker".to_owned(), 7.0);
        to.load_state_dict(&later).map_err(text)?;
        same("tracker", &[to.get_growth_tracker().map_err(text)? as f64], &[7.0])?;
        to.load_state_dict(&from.state_dict().map_err(text)?).map_err(text)?;
        let state = to.state_dict().map_err(text)?;
        let names =
            ["scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"];
        same("state", &names.map(|name| state[name]), &[3.0, 4.0, 0.5, 2.0, 0.0])?;
    }
    Ok(())
}

/// Two optimizers, each on its own device, the second with a bad gradient in iteration 2.
fn two_devices(eager: &Eager, other: &Eager) -> Checked {
    let params = [eager, other].map(|e| Parameter::new(list(e, "f32", &[1.0, 2.0])));
    let mut optimizers = params
        .clone()
        .map(|param| EagerOptimizer::new(Sgd::new(1.0), std::slice::from_ref(&param)));
    let mut scaler = scaler(128.0);
    for iteration in 0..4 {
        scaler.scale(&one(eager, "f32", 1.0)).map_err(text)?;
        let bad = if iteration == 2 { f64::INFINITY } else { 1.0 };
        params[0].set_grad(list(eager, "f32", &[1.0, 1.0])).map_err(text)?;
        params[1].set_grad(list(other, "f32", &[1.0, bad])).map_err(text)?;
        scaler.unscale_(&optimizers[0]).map_err(text)?;
        need("model 0 steps", scaler.step(&mut optimizers[0]).map_err(text)?)?;
        let stepped = scaler.step(&mut optimizers[1]).map_err(text)?;
        need("model 1 is skipped in iteration 2", stepped == (iteration != 2))?;
        same("flags 0", &scaler.found_inf(&optimizers[0]).map_err(text)?, &[0.0])?;
        let flag = f64::from(u8::from(iteration == 2));
        same("flags 1", &scaler.found_inf(&optimizers[1]).map_err(text)?, &[flag])?;
        scaler.update().map_err(text)?;
    }
    same("scale", &[scaler.get_scale().map_err(text)?], &[512.0])
}

fn containers_on_two_devices(eager: &Eager, other: &Eager) -> Checked {
    let (t0, t1) = (|| one(eager, "f32", 4.0), || one(other, "f32", 4.0));
    let mut scaler = scaler(2.0);
    let nest = (t1(), (t0(), t1()), vec![(t0(), t1())]);
    let (a, (b, c), d) = scaler.scale(&nest).map_err(text)?;
    for (tensor, place) in
        [(&a, other), (&b, eager), (&c, other), (&d[0].0, eager), (&d[0].1, other)]
    {
        same("scaled", &read(tensor), &[8.0])?;
        need("on its own device", tensor.eager().same_device(place))?;
    }
    // The scale is where the first tensor was: only there is a new one taken.
    refused("AssertionError", scaler.update_to(&one(eager, "f32", 1.0)))?;
    scaler.update_to(&one(other, "f32", 1.0)).map_err(text)
}

fn device_as_key(eager: &Eager, _: &Eager) -> Checked {
    let again = Eager::new(Options::new().on(eager.device().clone())).map_err(text)?;
    let params = [eager, &again].map(|e| Parameter::new(list(e, "f32", &[1.0])));
    for (param, place) in params.iter().zip([eager, &again]) {
        param.set_grad(list(place, "f32", &[4.0])).map_err(text)?;
    }
    let optimizer = EagerOptimizer::new(Sgd::new(1.0), &params);
    let flags = unscale_grads(&optimizer, &one(eager, "f32", 0.25), false).map_err(text)?;
    need("one flag for one device", flags.len() == 1)
}

fn will_not_overflow(eager: &Eager, _: &Eager) -> Checked {
    let options = ScalerOptions {
        init_scale: 1e38,
        growth_factor: 16.0,
        growth_interval: 1,
        ..Default::default()
    };
    let mut scaler = EagerScaler::new(options).map_err(text)?;
    let param = Parameter::new(list(eager, "f32", &[1.0]));
    let mut sgd = EagerOptimizer::new(Sgd::new(1.0), std::slice::from_ref(&param));
    scaler.scale(&one(eager, "f32", 1.0)).map_err(text)?;
    param.set_grad(list(eager, "f32", &[1.0])).map_err(text)?;
    scaler.step(&mut sgd).map_err(text)?;
    scaler.update().map_err(text)?;
    need("the scale is finite", scaler.get_scale().map_err(text)?.is_finite())
}

fn invalidated(eager: &Eager, _: &Eager) -> Checked {
    fn check(eager: &Eager, rule: impl Optimizer + 'static, fused: bool) -> Checked {
        let params = [0, 1].map(|_| Parameter::new(list(eager, "f32", &[1.0, 2.0])));
        let mut optimizer = EagerOptimizer::new(rule, &params).fused(fused);
        let mut scaler = scaler(128.0);
        scaler.scale(&one(eager, "f32", 1.0)).map_err(text)?;
        for param in &params {
            param.set_grad(list(eager, "f32", &[1.0, 1.0])).map_err(text)?;
        }
        scaler.unscale_(&optimizer).map_err(text)?;
        for (param, bad) in params.iter().zip([f64::NAN, f64::INFINITY]) {
            param.set_grad(list(eager, "f32", &[bad, bad])).map_err(text)?;
        }
        scaler.step(&mut optimizer).map_err(text)?;
        need("stepped", scaler.stage(&optimizer) == Stage::Stepped)?;
        let all: Vec<f64> = params.iter().flat_map(|param| read(param.value())).collect();
        need("every parameter is broken", all.iter().all(|v| !v.is_finite()))
    }
    for fused in [false, true] {
        check(eager, AdamW::new(0.1), fused)?;
        check(eager, AdamW::new(0.1).weight_decay(0.0), fused)?;
        check(eager, Adagrad::new(0.1), fused)?;
    }
    Ok(())
}

/// An optimizer that takes the scaler does everything itself; one that takes scale and flag is told
/// both for its step.
fn scale_aware(eager: &Eager, _: &Eager) -> Checked {
    let param = Parameter::new(list(eager, "f32", &[1.0, 2.0]));
    let own = std::slice::from_ref(&param);
    let set = |grad: [f64; 2]| param.set_grad(list(eager, "f32", &grad)).map_err(text);
    let mut scaler = scaler(8.0);
    let mut sgd = EagerOptimizer::new(Sgd::new(1.0), own);
    refused("AssertionError", scaler.step_by(&mut sgd, |_, _| Ok(())))?;
    scaler.scale(&one(eager, "f32", 1.0)).map_err(text)?;
    set([8.0, 16.0])?;
    let seen = scaler.step_by(&mut sgd, |scaler, optimizer| {
        let found = scaler.found_inf(optimizer)?;
        Ok((scaler.get_scale()?, found.len(), optimizer.params().len()))
    });
    need("the scaler itself and no flag", seen.map_err(text)? == (8.0, 0, 1))?;
    need("stepped", scaler.stage(&sgd) == Stage::Stepped)?;
    refused("RuntimeError", scaler.step_by(&mut sgd, |_, _| Ok(())))?;
    refused("AssertionError", scaler.update())?;
    scaler.update_to(8.0).map_err(text)?;

    let mut fused = EagerOptimizer::new(Sgd::new(1.0), own).fused(true);
    for (grad, value, left) in [
        ([8.0, 16.0], [0.0, 0.0], [1.0, 2.0]),
        ([f64::INFINITY, 16.0], [0.0, 0.0], [f64::INFINITY, 16.0]),
    ] {
        set(grad)?;
        need("called", scaler.step(&mut fused).map_err(text)?)?;
        same("parameter", &read(param.value()), &value)?;
        same("gradient", &read(param.grad().expect("set above").values()), &left)?;
        scaler.update_to(8.0).map_err(text)?;
    }
    Ok(())
}
